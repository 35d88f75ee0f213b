//! The version of the command, and the build script that finds its commit.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use roce_testing::has_program;
use serde_json::Value;

use crate::common::{run, skip_unless};

/// Returns what git prints in a folder, or `None` if it fails.
fn git(folder: &Path, arguments: &[&str]) -> Option<String> {
    let mut command = Command::new("git");
    // Settings of the user and variables of a hook have no effect.
    for name in ["GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"] {
        command.env_remove(name);
    }
    command.current_dir(folder).args([
        "-c",
        "user.name=a",
        "-c",
        "user.email=a@b",
        "-c",
        "commit.gpgsign=false",
    ]);
    let output = command.args(arguments).output().ok()?;
    output.status.success().then(|| String::from_utf8(output.stdout).unwrap().trim().to_owned())
}

#[test]
fn the_version_has_commit_features_and_target() {
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!(run(&["-V"]).stdout, format!("roce {version}\n"));
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    let is_tracked = git(own, &["ls-files", "--error-unmatch", "Cargo.toml"]).is_some();
    let commit = if is_tracked { git(own, &["rev-parse", "HEAD"]) } else { None };

    let document: Value = serde_json::from_str(&run(&["sim", "--list", "--json"]).stdout).unwrap();
    assert_eq!(document["version"], version);
    assert_eq!(document["build"]["commit"], Value::from(commit.clone()));
    let features: Vec<&str> =
        document["build"]["features"].as_array().unwrap().iter().map(|one| one.as_str().unwrap()).collect();
    for name in ["capture", "fault", "raw", "tap", "udp", "xdp"] {
        assert!(features.contains(&name), "{features:?}");
    }
    assert!(features.is_sorted(), "{features:?}");
    let target = document["build"]["target"].as_str().unwrap();
    assert_eq!(target, xtask::build::host().unwrap());

    let commit = commit.unwrap_or_else(|| "unknown".to_owned());
    let expected =
        format!("roce {version}\ncommit: {commit}\nfeatures: {}\ntarget: {target}\n", features.join(" "));
    assert_eq!(run(&["--version"]).stdout, expected);
    let page = run(&["man"]).stdout;
    assert!(page.contains(version) && !page.contains(&commit) && !page.contains("features:"), "{page}");
}

/// Compiles the build script of the command.
fn script(folder: &Path) -> PathBuf {
    let script = folder.join("script");
    let mut rustc = Command::new("rustc");
    rustc.args(["--edition", "2024", "--crate-name", "script", "-o"]).arg(&script);
    let compiled = rustc.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("build.rs")).output().unwrap();
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    script
}

/// Runs the build script in a folder. Returns the commit, and the files whose changes run it again.
fn found(script: &Path, folder: &Path) -> (String, Vec<String>) {
    let output = Command::new(script).current_dir(folder).env("TARGET", "of-a-test").output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && text.contains("BUILD_TARGET=of-a-test\n"), "{text}");
    let values = |name: &str| -> Vec<String> {
        let lines = text.lines().filter_map(|line| line.strip_prefix("cargo::")?.strip_prefix(name));
        lines.map(|value| value.trim_start_matches('=').to_owned()).collect()
    };
    let commits = values("rustc-env=BUILD_COMMIT");
    assert_eq!(commits.len(), 1, "{text}");
    (commits[0].clone(), values("rerun-if-changed"))
}

#[test]
fn the_build_script_knows_the_commit_of_a_repository_and_of_a_package() {
    if skip_unless(has_program("git"), "git is not installed") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let script = script(folder.path());
    let root = folder.path().join("root");
    let package = root.join("cli");
    fs::create_dir_all(&package).unwrap();
    fs::write(package.join("Cargo.toml"), "").unwrap();
    let none = || (String::new(), vec!["build.rs".to_owned()]);
    assert_eq!(found(&script, &package), none(), "without a repository");

    git(&root, &["init", "--quiet"]).unwrap();
    fs::write(root.join("other"), "").unwrap();
    git(&root, &["add", "other"]).unwrap();
    git(&root, &["commit", "--quiet", "-m", "one"]).unwrap();
    assert_eq!(found(&script, &package), none(), "in a repository of somebody else");

    git(&root, &["add", "."]).unwrap();
    git(&root, &["commit", "--quiet", "-m", "two"]).unwrap();
    let commit = git(&root, &["rev-parse", "HEAD"]).unwrap();
    let (first, watched) = found(&script, &package);
    assert!(first == commit && commit.len() >= 40, "{first}");
    let before: Vec<_> = watched.iter().map(|path| fs::read(package.join(path)).ok()).collect();
    assert!(watched.len() >= 3 && before[1..].iter().all(Option::is_some), "{watched:?}");
    git(&root, &["commit", "--quiet", "--allow-empty", "-m", "three"]).unwrap();
    let after: Vec<_> = watched.iter().map(|path| fs::read(package.join(path)).ok()).collect();
    assert_ne!(before, after, "a new commit runs the script again: {watched:?}");
    assert_ne!(found(&script, &package).0, commit);

    let text = "{\n  \"git\": {\n    \"sha1\": \"0123abcd\"\n  },\n  \"path_in_vcs\": \"cli\"\n}";
    fs::write(package.join(".cargo_vcs_info.json"), text).unwrap();
    assert_eq!(found(&script, &package), ("0123abcd".to_owned(), vec!["build.rs".to_owned()]));
}
