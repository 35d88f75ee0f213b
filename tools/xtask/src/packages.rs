//! `xtask packages`: the packages that `cargo publish` uploads, and builds of the library and the command
//! from these packages alone.
//!
//! The packages are unpacked into a workspace of their own. There, a patch replaces every published crate of
//! this repository with its package, so a file or a feature that a package lacks is an error. The crates of
//! others come from cargo's cache.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, bail, ensure};
use serde_json::Value;

use crate::build;

/// A crate that is published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Package {
    /// Name of the crate.
    pub name: String,
    /// Version of the crate.
    pub version: String,
    /// Published crates of this repository that must be published before this one.
    pub needs: BTreeSet<String>,
}

impl Package {
    /// Returns the name of its folder, and of its file without the extension.
    fn folder(&self) -> String {
        format!("{}-{}", self.name, self.version)
    }
}

/// Features of a crate whose public interface is compared, where they are not the default ones. `pnet` and
/// `xsk-rs` add no names, and need a library in C.
const FEATURES: [(&str, &str); 3] =
    [("roce", "all-devices,serde"), ("roce-device", "udp,whole,xdp,fault,capture"), ("roce-packet", "std")];

/// The program that a user of the library writes first.
const FIRST_PROGRAM: &str = "first-program";

/// Returns the published crates in the order in which they can be published: each after those that it needs.
///
/// # Errors
///
/// cargo fails, or crates need each other.
pub fn in_order() -> anyhow::Result<Vec<Package>> {
    let arguments = ["metadata", "--no-deps", "--format-version", "1", "--offline"];
    sorted(published(&serde_json::from_slice(&build::output(build::cargo().args(arguments))?)?)?)
}

/// Returns the published crates of `cargo metadata`. A dev-dependency without a version does not count,
/// because packages leave it out.
fn published(metadata: &Value) -> anyhow::Result<Vec<Package>> {
    let all = metadata["packages"].as_array().context("cargo metadata has no packages")?;
    // `publish = false` is an empty list of registries.
    let is_published = |package: &&Value| package["publish"].as_array().is_none_or(|list| !list.is_empty());
    let all: Vec<&Value> = all.iter().filter(is_published).collect();
    let text = |value: &Value, key: &str| value[key].as_str().unwrap_or_default().to_owned();
    let names: BTreeSet<String> = all.iter().map(|package| text(package, "name")).collect();
    let packages = all.iter().map(|package| {
        let name = text(package, "name");
        let dependencies = package["dependencies"].as_array().into_iter().flatten();
        let counts = |one: &&Value| one["kind"] != "dev" || one["req"] != "*";
        let needs = dependencies.filter(counts).map(|one| text(one, "name"));
        let needs = needs.filter(|needed| names.contains(needed) && *needed != name).collect();
        Package { version: text(package, "version"), needs, name }
    });
    Ok(packages.collect())
}

/// Sorts packages: each after those that it needs, and by name where this leaves a choice.
fn sorted(packages: Vec<Package>) -> anyhow::Result<Vec<Package>> {
    let mut rest: BTreeMap<String, Package> =
        packages.into_iter().map(|package| (package.name.clone(), package)).collect();
    let mut order: Vec<Package> = Vec::new();
    while !rest.is_empty() {
        let is_free = |package: &&Package| package.needs.iter().all(|needed| !rest.contains_key(needed));
        let Some(next) = rest.values().find(is_free).map(|package| package.name.clone()) else {
            let names: Vec<&str> = rest.keys().map(String::as_str).collect();
            bail!(
                "none of these crates can be published first, because they need each other: {}; remove the \
                 version of a dev-dependency",
                names.join(", ")
            );
        };
        order.extend(rest.remove(&next));
    }
    Ok(order)
}

/// Makes all packages, builds the library and the command from them, and runs both. Returns the folder of
/// the packages, and lines about what was done. With `baseline`, the folder of an earlier call, it also
/// compares the public interfaces.
///
/// # Errors
///
/// A file is not committed, a package lacks something, a build fails, or an interface changed more than the
/// version permits.
pub fn packages(out: Option<&Path>, baseline: Option<&Path>) -> anyhow::Result<(PathBuf, Vec<String>)> {
    let order = in_order()?;
    let out = match out {
        Some(out) => std::path::absolute(out).context("--out")?,
        None => build::root().join("target/packages"),
    };
    let results = out.join("target");
    pack(&results, &order)?;
    let place = out.join("unpacked");
    unpack(&results.join("package"), &place, &order)?;
    let mut lines: Vec<String> =
        (1..).zip(&order).map(|(number, package)| format!("{number:2} {}", package.folder())).collect();
    lines.extend(build_and_run(&place, &results)?);
    if let Some(baseline) = baseline {
        lines.extend(compare(&place, &std::path::absolute(baseline)?.join("unpacked"), &out, &order)?);
    }
    Ok((out, lines))
}

/// Makes the packages with one call of cargo: with a call for each, cargo would look for the lower crates in
/// a registry, where they are not yet.
fn pack(results: &Path, order: &[Package]) -> anyhow::Result<()> {
    let mut cargo = build::cargo();
    cargo.args(["package", "--no-verify", "--locked", "--offline", "--target-dir"]).arg(results);
    cargo.args(order.iter().flat_map(|package| ["-p", &package.name]));
    let output = cargo.env("CARGO_TERM_COLOR", "never").output().context("cannot run cargo")?;
    let printed = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "cargo package failed: {}", printed.trim());
    check_order(order, &printed)
}

/// Checks that cargo, which also publishes, has packed every crate after those that it needs.
fn check_order(order: &[Package], printed: &str) -> anyhow::Result<()> {
    let packed = printed.lines().filter_map(|line| line.trim().strip_prefix("Packaging ")?.split(' ').next());
    let packed: Vec<&str> = packed.collect();
    for package in order {
        let at = packed.iter().position(|name| *name == package.name);
        let at = at.with_context(|| format!("cargo did not pack {}", package.name))?;
        let late = package.needs.iter().find(|needed| !packed[..at].contains(&needed.as_str()));
        if let Some(needed) = late {
            bail!("cargo packs {} before {needed}, which it needs", package.name);
        }
    }
    Ok(())
}

/// Unpacks the packages into a workspace, which contains a first program as well.
fn unpack(packed: &Path, place: &Path, order: &[Package]) -> anyhow::Result<()> {
    if place.exists() {
        fs::remove_dir_all(place).with_context(|| format!("cannot remove {}", place.display()))?;
    }
    fs::create_dir_all(place.join(FIRST_PROGRAM).join("src"))?;
    for package in order {
        let file = packed.join(format!("{}.crate", package.folder()));
        build::run(Command::new("tar").arg("-C").arg(place).arg("-xzf").arg(file))?;
    }
    fs::write(place.join("Cargo.toml"), workspace(order))?;
    // The versions of the crates of others are those of the tests.
    fs::copy(build::root().join("Cargo.lock"), place.join("Cargo.lock"))?;
    let library = order.iter().find(|package| package.name == "roce").context("roce is not published")?;
    let manifest = format!(
        "[package]\nname = \"{FIRST_PROGRAM}\"\nversion = \"0.0.0\"\nedition = \"2024\"\n\n[dependencies]\n\
         roce = \"{}\"\n",
        library.version
    );
    fs::write(place.join(FIRST_PROGRAM).join("Cargo.toml"), manifest)?;
    let program = place.join(library.folder()).join("examples/hello.rs");
    let copied = fs::copy(&program, place.join(FIRST_PROGRAM).join("src/main.rs"));
    copied.with_context(|| format!("cannot copy {}", program.display()))?;
    Ok(())
}

/// Returns the manifest of the workspace of the packages.
fn workspace(order: &[Package]) -> String {
    let mut text = "[workspace]\nresolver = \"3\"\nmembers = [\n".to_owned();
    for package in order {
        let _ = writeln!(text, "    \"{}\",", package.folder());
    }
    let _ = write!(text, "    \"{FIRST_PROGRAM}\",\n]\n\n[patch.crates-io]\n");
    for package in order {
        let _ = writeln!(text, "{} = {{ path = \"{}\" }}", package.name, package.folder());
    }
    text
}

/// Returns cargo for the workspace of packages, with a subcommand.
fn cargo(subcommand: &str, place: &Path, results: &Path) -> Command {
    let mut cargo = build::cargo();
    cargo.current_dir(place).args([subcommand, "--offline", "--target-dir"]).arg(results);
    cargo
}

/// Builds the command and the first program, and runs both.
fn build_and_run(place: &Path, results: &Path) -> anyhow::Result<Vec<String>> {
    let mut cargo = cargo("build", place, results);
    cargo.args(["-p", "roce-cli", "-p", FIRST_PROGRAM, "--bins", "--features", build::FEATURES]);
    build::run(&mut cargo)?;
    let folder = results.join("debug");
    let version = build::text(Command::new(folder.join("roce")).arg("--version"))?;
    ensure!(!version.contains("commit: unknown"), "the package of the command does not know its commit");
    let said = build::text(&mut Command::new(folder.join(FIRST_PROGRAM)))?;
    ensure!(said == "hello, remote memory\n", "the first program printed {said:?}");
    let demo = tempfile::tempdir()?;
    let said = build::text(Command::new(folder.join("roce")).arg("demo").current_dir(&demo))?;
    let last = said.lines().find(|line| line.starts_with("Completed in "));
    let last = last.with_context(|| format!("roce demo did not complete: {said}"))?;
    Ok(version.lines().chain([last]).map(str::to_owned).collect())
}

/// Compares the public interface of each crate with that of its earlier package.
fn compare(place: &Path, before: &Path, out: &Path, order: &[Package]) -> anyhow::Result<Vec<String>> {
    ensure!(before.is_dir(), "{} is missing; --baseline is the --out of an earlier call", before.display());
    let mut lines = Vec::new();
    // The crates that an installation consists of have no public interface in Rust.
    for package in order.iter().filter(|package| !build::PACKAGES.contains(&package.name.as_str())) {
        let name = &package.name;
        if !has_package(before, name)? {
            lines.push(format!("{name} is new"));
            continue;
        }
        let now = interface(place, &out.join("target"), name)?;
        let old = interface(before, &out.join("baseline"), name)?;
        let compared = build::run(&mut semver_checks(&old, &now));
        compared.with_context(|| {
            format!(
                "the public interface of {name} changed more than its version permits, or \
                 cargo-semver-checks is missing (cargo install cargo-semver-checks --locked)"
            )
        })?;
        lines.push(format!("{name}: the version permits the changes"));
    }
    Ok(lines)
}

/// Returns whether a workspace of packages has a crate, in any version.
fn has_package(place: &Path, name: &str) -> anyhow::Result<bool> {
    for entry in fs::read_dir(place)? {
        let folder = entry?.file_name();
        let version = folder.to_str().and_then(|folder| folder.strip_prefix(name)?.strip_prefix('-'));
        if version.is_some_and(|version| version.starts_with(|sign: char| sign.is_ascii_digit())) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Writes the public interface of a crate as rustdoc's JSON. Returns the file.
fn interface(place: &Path, results: &Path, name: &str) -> anyhow::Result<PathBuf> {
    let mut cargo = cargo("rustdoc", place, results);
    cargo.args(["--quiet", "--lib", "-p", name]);
    if let Some((_, features)) = FEATURES.iter().find(|(of, _)| *of == name) {
        cargo.args(["--features", features]);
    }
    cargo.args(["--", "-Zunstable-options", "--output-format", "json", "--cap-lints", "allow"]);
    // The format is not stable; cargo-semver-checks supports some versions of it.
    build::run(cargo.env("RUSTC_BOOTSTRAP", "1"))?;
    Ok(results.join("doc").join(name.replace('-', "_")).with_extension("json"))
}

/// Returns the program that compares two interfaces.
fn semver_checks(old: &Path, now: &Path) -> Command {
    let mut cargo = build::cargo();
    let option = |name: &str, path: &Path| [OsString::from(name), path.as_os_str().to_owned()];
    cargo.arg("semver-checks").args(option("--baseline-rustdoc", old)).args(option("--current-rustdoc", now));
    cargo
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn names(packages: &[Package]) -> Vec<&str> {
        packages.iter().map(|package| package.name.as_str()).collect()
    }

    /// A crate and its dependencies: name, kind, requirement.
    type Crate<'a> = (&'a str, &'a [(&'a str, &'a str, &'a str)]);

    /// Returns the metadata of these crates.
    fn metadata(crates: &[Crate<'_>]) -> Value {
        let packages = crates.iter().map(|(name, dependencies)| {
            let dependencies: Vec<Value> = dependencies
                .iter()
                .map(|(name, kind, req)| {
                    json!({ "name": name, "kind": (!kind.is_empty()).then_some(kind), "req": req })
                })
                .collect();
            json!({ "name": name, "version": "1.2.3", "publish": null, "dependencies": dependencies })
        });
        json!({ "packages": packages.collect::<Vec<_>>() })
    }

    fn order(crates: &[Crate<'_>]) -> anyhow::Result<Vec<Package>> {
        sorted(published(&metadata(crates))?)
    }

    #[test]
    fn every_crate_is_published_after_those_that_it_needs() {
        let order = in_order().unwrap();
        assert!(order.len() > 20 && order[0].name == "roce-packet", "{:?}", names(&order));
        assert!(names(&order).contains(&"roce-cli"), "{:?}", names(&order));
        for (at, package) in order.iter().enumerate() {
            let before = names(&order[..at]);
            assert!(package.needs.iter().all(|needed| before.contains(&needed.as_str())), "{package:?}");
        }
        for unpublished in ["xtask", "roce-testing", "roce-python", "costs"] {
            assert!(!names(&order).contains(&unpublished), "{unpublished}");
        }
    }

    #[test]
    fn a_dev_dependency_counts_only_with_a_version() {
        let upward = |req| [("above", "dev", req), ("serde", "", "^1")];
        let downward = [("below", "build", "^1")];
        let found = order(&[("below", &upward("*")), ("above", &downward)]).unwrap();
        assert_eq!(names(&found), ["below", "above"]);
        assert_eq!(found[1].needs, BTreeSet::from(["below".to_owned()]));
        let error = order(&[("below", &upward("^1")), ("above", &downward)]).unwrap_err().to_string();
        assert!(error.contains("need each other: above, below; remove the version"), "{error}");
    }

    #[test]
    fn a_crate_that_is_not_published_has_no_place() {
        let mut metadata =
            metadata(&[("tests", &[]), ("own", &[("tests", "dev", "*"), ("own", "dev", "*")])]);
        metadata["packages"][0]["publish"] = json!([]);
        let found = sorted(published(&metadata).unwrap()).unwrap();
        assert_eq!(names(&found), ["own"]);
        assert!(found[0].needs.is_empty());
    }

    #[test]
    fn another_order_of_cargo_is_an_error() {
        let order = order(&[("b", &[("a", "", "^1")]), ("a", &[])]).unwrap();
        assert_eq!(names(&order), ["a", "b"]);
        check_order(&order, "   Packaging a v1.2.3 (/x)\n    Packaged 3 files\n   Packaging b v1.2.3 (/y)\n")
            .unwrap();
        let error = check_order(&order, "Packaging b v1.2.3\nPackaging a v1.2.3\n").unwrap_err().to_string();
        assert_eq!(error, "cargo packs b before a, which it needs");
        let error = check_order(&order, "Packaging a v1.2.3\n").unwrap_err().to_string();
        assert_eq!(error, "cargo did not pack b");
    }

    #[test]
    fn the_workspace_replaces_every_crate_with_its_package() {
        let order = order(&[("b", &[("a", "", "^1")]), ("a", &[])]).unwrap();
        let text = workspace(&order);
        for line in [
            "    \"a-1.2.3\",\n    \"b-1.2.3\",\n",
            "a = { path = \"a-1.2.3\" }\nb = { path = \"b-1.2.3\" }\n",
        ] {
            assert!(text.contains(line), "{text}");
        }
        let place = tempfile::tempdir().unwrap();
        fs::create_dir(place.path().join("roce-packet-0.9.0")).unwrap();
        assert!(has_package(place.path(), "roce-packet").unwrap());
        assert!(!has_package(place.path(), "roce").unwrap(), "the package of roce-packet is another one");
    }
}
