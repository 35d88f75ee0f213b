//! The licences of the crates whose code is in the command, the libraries and the page, as one text.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, bail};
use serde_json::Value;

use crate::build;

/// The beginnings of the names of files with licences, in upper case.
const NAMES: [&str; 6] = ["LICENSE", "LICENCE", "COPYING", "COPYRIGHT", "NOTICE", "UNLICENSE"];

/// The beginning of the text of the MIT licence after its copyright notice.
const PERMISSION: &str = "Permission is hereby granted";

/// The crate of the page, which `tools/web/build` compiles.
const PAGE: &str = "roce-web";

/// The copyright notice of the C library in static builds.
const MUSL: &str = "Copyright © 2005-2020 Rich Felker, et al.";

/// A crate with its licence.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Crate {
    name: String,
    version: String,
    /// SPDX expression.
    expression: String,
    /// The texts in its package.
    texts: Vec<String>,
}

/// Returns the licences of all crates of a build for a target, and of the standard library.
///
/// # Errors
///
/// A crate has no licence.
pub fn of_target(target: &str) -> anyhow::Result<String> {
    let metadata = build::metadata(target)?;
    let mit = fs::read_to_string(build::root().join("LICENSE-MIT")).context("LICENSE-MIT")?;
    let mut crates = Vec::new();
    for package in linked(&metadata)? {
        crates.push(read(package, &mit)?);
    }
    let mut text = together(&crates);
    let _ = write!(text, "\n{}\n\n{}\n", "=".repeat(80), of_standard_library()?.trim());
    if target.contains("-musl") {
        let _ = write!(text, "\n{}\n\nThe C library musl\n\n{}\n", "=".repeat(80), mit_of(MUSL, &mit)?);
    }
    Ok(text)
}

/// Returns the packages of registries that the command, the libraries and the page contain, by name. Crates
/// that only build scripts or tests use are not among them.
fn linked(metadata: &Value) -> anyhow::Result<Vec<&Value>> {
    let packages = metadata["packages"].as_array().context("cargo metadata has no packages")?;
    let nodes = metadata["resolve"]["nodes"].as_array().context("cargo metadata has no dependencies")?;
    let id = |value: &Value| value["id"].as_str().unwrap_or_default().to_owned();
    let nodes: BTreeMap<String, &Value> = nodes.iter().map(|node| (id(node), node)).collect();
    let installed = [&build::PACKAGES[..], &[PAGE]].concat();
    let is_installed = |package: &&Value| installed.iter().any(|name| package["name"] == *name);
    let mut open: Vec<String> = packages.iter().filter(is_installed).map(id).collect();
    let mut found = BTreeSet::new();
    while let Some(next) = open.pop() {
        let dependencies = nodes.get(&next).and_then(|node| node["deps"].as_array());
        if !found.insert(next) {
            continue;
        }
        // The kind of a normal dependency is null.
        let is_normal = |kinds: &Value| {
            kinds.as_array().is_some_and(|kinds| kinds.iter().any(|kind| kind["kind"].is_null()))
        };
        let normal = dependencies.into_iter().flatten().filter(|one| is_normal(&one["dep_kinds"]));
        open.extend(normal.filter_map(|one| one["pkg"].as_str()).map(str::to_owned));
    }
    // The crates of this repository have no source.
    let of_others = packages.iter().filter(|one| one["source"].is_string() && found.contains(&id(one)));
    let mut all: Vec<&Value> = of_others.collect();
    all.sort_by_key(|one| [one["name"].to_string(), one["version"].to_string()]);
    Ok(all)
}

/// Reads the licence of a package.
///
/// # Errors
///
/// The package has neither a text nor the expression of a licence whose text is known.
fn read(package: &Value, mit: &str) -> anyhow::Result<Crate> {
    let word = |key: &str| package[key].as_str().unwrap_or_default().to_owned();
    let (name, version) = (word("name"), word("version"));
    let manifest = PathBuf::from(word("manifest_path"));
    let folder = manifest.parent().with_context(|| format!("{name} has no folder"))?;
    let mut texts = texts_in(folder).with_context(|| format!("cannot read the licences of {name}"))?;
    let named = package["license_file"].as_str().map(|file| folder.join(file));
    if let (true, Some(file)) = (texts.is_empty(), named) {
        texts.push(fs::read_to_string(&file).with_context(|| file.display().to_string())?);
    }
    let expression = package["license"].as_str().unwrap_or("see the text").to_owned();
    if texts.is_empty() {
        // The only licence that is known here, and whose text is the same for all crates but for a line.
        let mut alternatives = expression.split(" OR ").flat_map(|part| part.split('/'));
        if !alternatives.any(|one| one.trim() == "MIT") {
            bail!("the package of {name} {version} has no text of its licence ({expression})");
        }
        let authors = package["authors"].as_array();
        let authors: Vec<&str> = authors.into_iter().flatten().filter_map(Value::as_str).collect();
        texts.push(mit_of(&format!("Copyright (c) {}", authors.join(", ")), mit)?);
    }
    Ok(Crate { name, version, expression, texts })
}

/// Returns the text of the MIT licence with another copyright notice.
fn mit_of(notice: &str, mit: &str) -> anyhow::Result<String> {
    let at = mit.find(PERMISSION).context("LICENSE-MIT is not the MIT licence")?;
    Ok(format!("MIT License\n\n{notice}\n\n{}", mit[at..].trim()))
}

/// Returns the texts of the licences in a package.
fn texts_in(folder: &Path) -> anyhow::Result<Vec<String>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().to_uppercase();
        if NAMES.iter().any(|begin| name.starts_with(begin)) && path.is_file() {
            files.push(path);
        }
    }
    files.sort();
    let read = |path: PathBuf| Ok(String::from_utf8_lossy(&fs::read(path)?).into_owned());
    files.into_iter().map(read).collect()
}

/// Returns a list of the crates, and then each text with the crates that it belongs to.
fn together(crates: &[Crate]) -> String {
    // Many crates have the same text, with other spaces at the ends of lines.
    let plain = |text: &String| {
        let lines: Vec<&str> = text.lines().map(str::trim_end).collect();
        lines.join("\n").trim_matches('\n').to_owned()
    };
    let mut texts: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for one in crates {
        for text in &one.texts {
            let of = texts.entry(plain(text)).or_default();
            if of.last() != Some(&one.name.as_str()) {
                of.push(&one.name);
            }
        }
    }
    let mut together =
        "The command roce, its libraries and its page contain code of these crates:\n\n".to_owned();
    for one in crates {
        let _ = writeln!(together, "{} {}: {}", one.name, one.version, one.expression);
    }
    for (text, of) in texts {
        let _ = write!(together, "\n{}\n\nOf {}:\n\n{text}\n", "=".repeat(80), of.join(", "));
    }
    together
}

/// Returns the copyright notices that come with the compiler. A compiler of a distribution may lack them.
fn of_standard_library() -> anyhow::Result<String> {
    let sysroot = build::text(Command::new("rustc").args(["--print", "sysroot"]).current_dir(build::root()))?;
    let page = Path::new(sysroot.trim()).join("share/doc/rust/COPYRIGHT-library.html");
    let sentence = "The standard library of Rust: MIT OR Apache-2.0. Its sources contain the notices.";
    Ok(fs::read_to_string(page).map_or_else(|_| sentence.to_owned(), |page| without_tags(&page)))
}

/// Returns the text of a page without its tags, and at most one empty line between others.
fn without_tags(page: &str) -> String {
    // What stands before the body is a title and styles.
    let body = page.split_once("<body").map_or(page, |(_, body)| body.split_once('>').map_or("", |at| at.1));
    let parts = body.split('<').enumerate();
    let text: String = parts
        .map(
            |(index, part)| {
                if index == 0 { part } else { part.split_once('>').map_or(part, |(_, text)| text) }
            },
        )
        .collect();
    let signs =
        [("&lt;", "<"), ("&gt;", ">"), ("&quot;", "\""), ("&#39;", "'"), ("&#x27;", "'"), ("&amp;", "&")];
    let text = signs.iter().fold(text, |text, (from, to)| text.replace(from, to));
    let mut lines: Vec<&str> = text.lines().map(str::trim).collect();
    lines.dedup_by(|next, before| next.is_empty() && before.is_empty());
    lines.join("\n").trim().to_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const MIT: &str = "MIT License\n\nCopyright (c) us\n\nPermission is hereby granted, and so on\n";

    /// A package in a folder, with these files.
    fn package(files: &[(&str, &str)], expression: Option<&str>) -> (tempfile::TempDir, Value) {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in files {
            fs::write(folder.path().join(name), text).unwrap();
        }
        let value = json!({
            "name": "them", "version": "1.2.3", "license": expression, "authors": ["A <a@b>", "C"],
            "license_file": expression.is_none().then_some("terms.txt"),
            "manifest_path": folder.path().join("Cargo.toml"),
        });
        (folder, value)
    }

    #[test]
    fn a_crate_has_the_texts_of_its_package() {
        let files = [("LICENSE-MIT", "one"), ("copying", "two"), ("NOTICE.md", "three"), ("README.md", "no")];
        let (_folder, value) = package(&files, Some("MIT"));
        assert_eq!(read(&value, MIT).unwrap().texts, ["one", "three", "two"]);
        let (_folder, value) = package(&[("terms.txt", "terms")], None);
        let own = read(&value, MIT).unwrap();
        assert_eq!((own.texts, own.expression.as_str()), (vec!["terms".to_owned()], "see the text"));
    }

    #[test]
    fn a_crate_without_a_text_has_that_of_its_expression_or_is_an_error() {
        let (_folder, value) = package(&[], Some("Apache-2.0 OR MIT"));
        let text = "MIT License\n\nCopyright (c) A <a@b>, C\n\nPermission is hereby granted, and so on";
        assert_eq!(read(&value, MIT).unwrap().texts, [text]);
        for expression in ["Zlib", "MIT AND Zlib"] {
            let (_folder, value) = package(&[("README.md", "no")], Some(expression));
            let error = read(&value, MIT).unwrap_err().to_string();
            assert!(error.contains("them 1.2.3") && error.contains(expression), "{error}");
        }
        let (_folder, value) = package(&[], None);
        assert!(format!("{:#}", read(&value, MIT).unwrap_err()).contains("terms.txt"));
    }

    #[test]
    fn a_text_of_several_crates_is_printed_once() {
        let of = |name: &str, texts: &[&str]| Crate {
            name: name.to_owned(),
            version: "1.0.0".to_owned(),
            expression: "MIT".to_owned(),
            texts: texts.iter().map(|text| (*text).to_owned()).collect(),
        };
        let text = together(&[of("a", &["one \n\n", "two"]), of("b", &["\none\n"])]);
        assert!(text.contains("\na 1.0.0: MIT\nb 1.0.0: MIT\n"), "{text}");
        assert!(text.contains("\nOf a, b:\n\none\n") && text.contains("\nOf a:\n\ntwo\n"), "{text}");
        assert_eq!(text.matches("one").count(), 1, "{text}");
    }

    #[test]
    fn tags_are_removed() {
        let page = "<head><title>no</title></head><body class=\"x\"><h1>A &amp; B</h1>\n\n \n<p>C &lt;d&gt;</p></body>";
        assert_eq!(without_tags(page), "A & B\n\nC <d>");
    }

    /// All crates of the command and of the page, and none of the tests.
    #[test]
    fn every_crate_of_the_command_and_the_page_has_a_licence() {
        let text = of_target(&build::host().unwrap()).unwrap();
        let list = text.split("=====").next().unwrap_or_default();
        for name in ["clap", "smoltcp", "zerocopy", "libc", "pulldown-cmark"] {
            assert!(list.contains(&format!("\n{name} ")), "{list}");
        }
        for name in ["proptest", "criterion", "hex-literal", "roce-packet"] {
            assert!(!list.contains(&format!("\n{name} ")), "{list}");
        }
        assert!(list.lines().count() > 100, "{list}");
        let texts = text.matches("\n\nOf ").count();
        assert!(texts > 50 && text.contains(PERMISSION), "{texts} texts");
        assert!(text.to_lowercase().contains("standard library"), "{list}");
    }
}
