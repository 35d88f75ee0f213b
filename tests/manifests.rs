//! Tests that each crate has the metadata that a registry and a packager need, and that each package is
//! complete.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Component, Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// The categories that crates here may have: slugs of <https://crates.io/category_slugs>.
const CATEGORIES: &[&str] = &[
    "command-line-utilities",
    "development-tools::testing",
    "hardware-support",
    "network-programming",
    "no-std",
    "no-std::no-alloc",
    "parser-implementations",
    "simulation",
];

/// Limits of crates.io.
const MOST_KEYWORDS: usize = 5;
const LONGEST_KEYWORD: usize = 20;

/// Crates that are not published: tests, stand-alone examples, the Python package and the page.
const UNPUBLISHED: &[&str] = &["costs", "own-algorithm", "roce-python", "roce-testing", "roce-web", "xtask"];

/// The only pages in a package: the library has the meanings of counters and the cookbook from them.
const INCLUDED_PAGES: &[&str] = &["docs/reference/counters.md", "docs/how-to/cookbook.md"];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Runs `cargo` in the root without network access; returns its standard output and standard error.
#[track_caller]
fn cargo(arguments: &[&str]) -> [String; 2] {
    let mut command = Command::new(env!("CARGO"));
    command.current_dir(root()).args(arguments).arg("--offline").env("CARGO_TERM_COLOR", "never");
    let output = command.output().expect("running cargo");
    let [stdout, stderr] =
        [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    assert!(output.status.success(), "cargo {arguments:?}: {stderr}");
    [stdout, stderr]
}

/// Returns the metadata of each crate of the workspace.
fn packages() -> Vec<Value> {
    let [stdout, _] = cargo(&["metadata", "--no-deps", "--format-version", "1"]);
    let mut metadata: Value = serde_json::from_str(&stdout).expect("JSON");
    let Value::Array(packages) = metadata["packages"].take() else { panic!("packages") };
    assert!(packages.len() > 9, "{} packages", packages.len());
    packages
}

fn name(package: &Value) -> &str {
    package["name"].as_str().expect("a name")
}

fn is_published(package: &Value) -> bool {
    // `publish = false` is an empty list of registries.
    package["publish"].as_array().is_none_or(|registries| !registries.is_empty())
}

fn texts<'a>(package: &'a Value, key: &str) -> Vec<&'a str> {
    package[key].as_array().map(|list| list.iter().filter_map(Value::as_str).collect()).unwrap_or_default()
}

#[track_caller]
fn report(wrong: &[String], advice: &str) {
    assert!(wrong.is_empty(), "{}\n{} places: {advice}", wrong.join("\n"), wrong.len());
}

#[test]
fn every_published_crate_has_what_a_registry_shows() {
    let mut wrong = Vec::new();
    for package in packages() {
        let mut check = |is_right: bool, what: &str| {
            if !is_right {
                wrong.push(format!("{}: {what}", name(&package)));
            }
        };
        let is_listed = UNPUBLISHED.contains(&name(&package));
        check(is_published(&package) != is_listed, "publish = false and UNPUBLISHED of this test differ");
        if !is_published(&package) {
            continue;
        }
        let description = package["description"].as_str().unwrap_or_default();
        check((15..160).contains(&description.len()), "a description in one line");
        check(package["license"] == "MIT OR Apache-2.0", "the license");
        check(package["rust_version"].is_string(), "rust-version");
        let keywords = texts(&package, "keywords");
        check((1..=MOST_KEYWORDS).contains(&keywords.len()), "1 to 5 keywords");
        check(
            keywords.iter().all(|keyword| keyword.len() <= LONGEST_KEYWORD),
            "keywords of at most 20 characters",
        );
        let categories = texts(&package, "categories");
        check(!categories.is_empty(), "categories");
        check(categories.iter().all(|slug| CATEGORIES.contains(slug)), "a category that this test knows");
        let manifest = Path::new(package["manifest_path"].as_str().unwrap_or_default());
        let readme = package["readme"].as_str().map(|readme| manifest.with_file_name("").join(readme));
        check(readme.is_some_and(|readme| readme.is_file()), "a readme that exists");
    }
    report(&wrong, "a published crate needs this in its Cargo.toml");
}

/// Places that name the oldest supported Rust, with the text before the number.
const NAMES_OF_THE_OLDEST_RUST: &[(&str, &str)] = &[
    ("README.md", "Rust "),
    ("CONTRIBUTING.md", "Rust "),
    (".ci/run", "Rust "),
    ("fuzz/Cargo.toml", "rust-version = \""),
];

/// Returns the versions of Rust that a text names after `before`, such as `1.95`.
fn rust_versions<'a>(text: &'a str, before: &'a str) -> impl Iterator<Item = &'a str> {
    text.match_indices(before).filter_map(move |(at, _)| {
        let number = &text[at + before.len()..];
        let is_part = |character: char| character.is_ascii_digit() || character == '.';
        let number = number.split(|character: char| !is_part(character)).next()?.trim_end_matches('.');
        number.starts_with("1.").then_some(number)
    })
}

/// If the toolchain in use is the oldest supported Rust, each build tests that version. If it is newer,
/// `.ci/run` also checks the crates with the oldest.
#[test]
fn the_oldest_rust_is_the_same_everywhere() {
    let packages = packages();
    let oldest = packages[0]["rust_version"].as_str().expect("rust-version").to_owned();
    let mut wrong = Vec::new();
    for package in packages.iter().filter(|package| package["rust_version"] != oldest.as_str()) {
        wrong.push(format!("{}: rust-version {}", name(package), package["rust_version"]));
    }
    for (file, before) in NAMES_OF_THE_OLDEST_RUST {
        let text = fs::read_to_string(root().join(file)).unwrap_or_else(|error| panic!("{file}: {error}"));
        let versions: Vec<&str> = rust_versions(&text, before).collect();
        if versions.is_empty() {
            wrong.push(format!("{file}: no version after {before:?}"));
        }
        let others = versions.iter().filter(|version| **version != oldest);
        wrong.extend(others.map(|version| format!("{file}: {before}{version}")));
    }
    let toolchain = fs::read_to_string(root().join("rust-toolchain.toml")).expect("rust-toolchain.toml");
    let channel = toolchain.lines().find_map(|line| line.strip_prefix("channel = \"")?.strip_suffix('"'));
    let is_new_enough = channel.is_some_and(|channel| channel == "stable" || channel.starts_with(&oldest));
    if !is_new_enough {
        wrong.push(format!("rust-toolchain.toml: the channel {channel:?}"));
    }
    report(&wrong, &format!("Cargo.toml has rust-version {oldest}, so these should name it"));
    // The search can fail.
    assert_eq!(rust_versions("Rust 1.95. Rust 2024, rust 1.9, Rust 1.96-", "Rust ").count(), 2);
    assert_eq!(rust_versions("FROM rust:1.95-slim", "FROM rust:").collect::<Vec<_>>(), ["1.95"]);
}

/// Published crates depend only on published crates of this workspace, so that a downloaded crate can be
/// resolved.
#[test]
fn published_crates_depend_on_published_crates() {
    let packages = packages();
    let published: BTreeSet<&str> = packages.iter().filter(|one| is_published(one)).map(name).collect();
    let mut wrong = Vec::new();
    for package in packages.iter().filter(|package| is_published(package)) {
        for dependency in package["dependencies"].as_array().expect("dependencies") {
            let ours = dependency["path"].is_string() && dependency["kind"] != "dev";
            let on = name(dependency);
            if ours && (!published.contains(on) || dependency["req"] == "*") {
                wrong.push(format!("{} depends on {on} without a version", name(package)));
            }
        }
    }
    report(&wrong, "give path dependencies a version, and publish what they name");
}

/// Returns whether an SPDX expression permits use under the allowed licences: in each part that `AND` joins,
/// one of the alternatives is allowed.
fn permits(expression: &str, allowed: &[&str]) -> bool {
    let is_allowed = |licence: &str| allowed.contains(&licence.trim_matches(['(', ')', ' ']));
    expression.split(" AND ").all(|part| {
        let part = part.trim_matches(['(', ')', ' ']);
        part.split(" OR ").flat_map(|part| part.split('/')).any(is_allowed)
    })
}

#[test]
fn every_licence_and_source_is_allowed() {
    let deny = fs::read_to_string(root().join("deny.toml")).expect("deny.toml");
    let list = |key: &str| {
        let line =
            deny.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(" = [")).expect("a list");
        line.trim_end_matches(']').split(", ").map(|text| text.trim_matches('"')).collect::<Vec<_>>()
    };
    let (licences, registries) = (list("allow"), list("allow-registry"));
    let arguments = ["metadata", "--format-version", "1", "--filter-platform", "x86_64-unknown-linux-gnu"];
    let [stdout, _] = cargo(&arguments);
    let metadata: Value = serde_json::from_str(&stdout).expect("JSON");
    let packages = metadata["packages"].as_array().expect("packages");
    assert!(packages.len() > 100, "{} packages", packages.len());
    let mut wrong = Vec::new();
    for package in packages {
        let licence = package["license"].as_str().unwrap_or("none");
        if !permits(licence, &licences) {
            wrong.push(format!("{}: the licence {licence}", name(package)));
        }
        // Crates of the workspace have no source.
        let Some(source) = package["source"].as_str() else { continue };
        if !registries.iter().any(|registry| source.strip_prefix("registry+") == Some(registry)) {
            wrong.push(format!("{}: the source {source}", name(package)));
        }
    }
    report(&wrong, "deny.toml does not allow them");
    assert!(permits("(MIT OR Apache-2.0) AND Unicode-3.0", &licences) && permits("Apache-2.0/MIT", &["MIT"]));
    assert!(!permits("GPL-3.0-only", &licences) && !permits("MIT AND GPL-2.0-only", &licences));
}

/// The list of files contains what a build needs, and nothing of the rest of the repository.
#[test]
fn packages_are_complete_and_small() {
    let mut wrong = Vec::new();
    for package in packages().iter().filter(|package| is_published(package)) {
        let name = name(package);
        let [list, stderr] = cargo(&["package", "--list", "--allow-dirty", "-p", name]);
        // The repository does not have a public address yet.
        let warnings = stderr.lines().filter(|line| line.starts_with("warning"));
        wrong.extend(
            warnings
                .filter(|line| !line.contains("no documentation, homepage or repository"))
                .filter(|line| !line.contains("not included in the published package"))
                .map(|line| format!("{name}: {line}")),
        );
        let files: BTreeSet<&str> = list.lines().collect();
        for needed in ["Cargo.toml", "README.md", "src/lib.rs"] {
            if !files.contains(needed) {
                wrong.push(format!("{name}: the package has no {needed}"));
            }
        }
        let strange = ["target/", "docs/", ".ci/", "pcaps/", "fuzz/", "demo.pcapng"];
        let is_strange = |file: &str| {
            !INCLUDED_PAGES.contains(&file) && strange.iter().any(|begin| file.starts_with(begin))
        };
        let found = files.iter().filter(|file| is_strange(file));
        wrong.extend(found.map(|file| format!("{name}: the package has {file}")));
    }
    let [list, _] = cargo(&["package", "--list", "--allow-dirty", "-p", "roce-scenario"]);
    assert!(list.lines().any(|file| file == "shipped/two-to-one.toml"), "{list}");
    report(&wrong, "`cargo package --list` shows a package");
}

/// Regression: crates had dev-dependencies with a version on crates above them, so neither could be published
/// first.
#[test]
fn packages_can_be_published_one_after_the_other() {
    let folder = tempfile::tempdir().expect("a folder");
    let target = folder.path().to_str().expect("a path");
    let mut arguments =
        vec!["package", "--workspace", "--no-verify", "--allow-dirty", "--target-dir", target];
    arguments.extend(UNPUBLISHED.iter().flat_map(|name| ["--exclude", *name]));
    let [_, stderr] = cargo(&arguments);
    let order: Vec<&str> = stderr.lines().filter_map(|line| line.trim().strip_prefix("Packaging ")).collect();
    let count = packages().iter().filter(|package| is_published(package)).count();
    assert_eq!(order.len(), count, "{stderr}");
}

/// Source code that includes a file from outside its package would compile only in this repository.
#[test]
fn sources_include_only_files_of_their_package() {
    let mut wrong = Vec::new();
    let mut count = 0;
    for package in packages().iter().filter(|package| is_published(package)) {
        let manifest = PathBuf::from(package["manifest_path"].as_str().expect("a path"));
        let folder = manifest.parent().expect("a folder");
        let mut files = Vec::new();
        collect(&folder.join("src"), &mut files);
        let mut found = Vec::new();
        for file in files {
            let text = fs::read_to_string(&file).expect("a source");
            let targets = included(&text).into_iter().map(|path| normal(&file.with_file_name("").join(path)));
            found.extend(targets.map(|target| (file.clone(), target)));
        }
        if found.is_empty() {
            continue;
        }
        count += found.len();
        let [list, _] = cargo(&["package", "--list", "--allow-dirty", "-p", name(package)]);
        // A path may be a folder, if a macro adds the name of the file.
        let is_packaged = |target: &Path| {
            let inside = target.strip_prefix(folder);
            inside.is_ok_and(|inside| list.lines().any(|file| Path::new(file).starts_with(inside)))
        };
        let missing = found.iter().filter(|(_, target)| !is_packaged(target));
        wrong.extend(missing.map(|(file, target)| format!("{}: {}", file.display(), target.display())));
    }
    assert!(count > 3, "only {count} included files were found");
    report(&wrong, "move the file into the package, or the code into the package that has the file");
}

/// Returns the relative paths in `include_str!`, `include_bytes!` and `#[path]` outside tests.
fn included(text: &str) -> Vec<&str> {
    let text = text.split("#[cfg(test)]\nmod ").next().unwrap_or(text);
    let mut found = Vec::new();
    for begin in ["include_str!(\"", "include_str!(concat!(\"", "include_bytes!(\"", "#[path = \""] {
        for (at, _) in text.match_indices(begin) {
            found.extend(text[at + begin.len()..].split('"').next());
        }
    }
    found
}

/// Returns a path without `..`, whether or not it exists.
fn normal(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for component in path.components() {
        match component {
            Component::ParentDir => _ = normal.pop(),
            Component::CurDir => {}
            other => normal.push(other),
        }
    }
    normal
}

fn collect(directory: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).expect("a folder of sources").flatten() {
        let path = entry.path();
        if path.is_dir() {
            collect(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
}

#[test]
fn an_include_from_outside_is_noticed() {
    let text = "const A: &str = include_str!(\"../x\");\n#[path = \"y.rs\"]\n#[cfg(test)]\nmod t { include_str!(\"z\") }";
    assert_eq!(included(text), ["../x", "y.rs"]);
    assert_eq!(normal(Path::new("/a/b/../../c/./d")), Path::new("/c/d"));
}
