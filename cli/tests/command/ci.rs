//! The action at the root of the repository, the template for GitLab, and the examples of both in
//! `docs/how-to/ci`: every step runs as a runner of GitHub or GitLab runs it. Only the package manager and
//! cargo are replaced, by programs that install what this test has built.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use roce_testing::in_own_network;
use serde_json::Value;
use xtask::ci::{Outcome, Runner, github, gitlab};

use crate::common::{Finished, Running, has_program, skip_unless};

const ROCE: &str = env!("CARGO_BIN_EXE_roce");
/// The options of the examples that change in other tests.
const LOSSES: &str = "--fault drop=1%";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().unwrap()
}

/// A runner with its folders.
struct Place {
    folder: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("bin")).unwrap();
        let place = Self { folder };
        for program in ["sudo", "apt-get"] {
            place.program(program, "exit 0");
        }
        // Installs links to what this test has built.
        let install = format!(
            "echo \"$@\" >>'{}'\nwhile [ \"$1\" != --prefix ]; do shift; done\nmkdir -p \"$2/bin\"\nln -s '{ROCE}' \"$2/bin/roce\"",
            place.path("cargo-calls").display()
        );
        place.program("cargo", &install);
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    fn program(&self, name: &str, script: &str) {
        let path = self.path("bin").join(name);
        fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// Returns a new runner. All of them share a cache.
    fn runner(&self) -> Runner {
        for name in ["workspace", "temp", "artifacts", "log"] {
            let path = self.path("home").join(name);
            _ = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
        }
        let mut runner = Runner::new(&self.path("home")).unwrap();
        let path = format!("{}:{}", self.path("bin").display(), std::env::var("PATH").unwrap());
        runner.environment.insert("PATH".to_owned(), path);
        runner
    }

    /// Runs a workflow.
    fn github(&self, workflow: &str) -> Outcome {
        let file = self.path("workflow.yaml");
        fs::write(&file, workflow).unwrap();
        github::run(&file, &self.runner()).unwrap()
    }

    /// Runs a job of GitLab, which clones a repository with the script of the template.
    fn gitlab(&self, job: &str) -> Outcome {
        let sources = self.path("sources");
        let wrap = sources.join("tools/ci-action/wrap");
        if !sources.exists() {
            fs::create_dir_all(wrap.parent().unwrap()).unwrap();
            fs::copy(root().join("tools/ci-action/wrap"), &wrap).unwrap();
            for arguments in [
                &["init", "--quiet", "--initial-branch", "main"][..],
                &["add", "--all"],
                &["-c", "user.name=A", "-c", "user.email=a@b", "commit", "--quiet", "--message", "sources"],
            ] {
                let status = Command::new("git").args(arguments).current_dir(&sources).status();
                assert!(status.expect("git").success(), "{arguments:?}");
            }
        }
        let file = self.path("job.yaml");
        fs::write(&file, job).unwrap();
        let mut runner = self.runner();
        let source = format!("file://{}", sources.display());
        runner.environment.insert("ROCE_CI_SOURCES".to_owned(), source);
        gitlab::run(&file, &root(), &runner).unwrap()
    }

    /// Runs the script of the action by itself, as a step of GitHub with these variables.
    fn wrap(&self, argument: &str, variables: &[(&str, &str)]) -> Finished {
        self.wrap_of(&root(), argument, variables)
    }

    fn wrap_of(&self, sources: &Path, argument: &str, variables: &[(&str, &str)]) -> Finished {
        let mut command = Command::new(sources.join("tools/ci-action/wrap"));
        let path = format!("{}:{}", self.path("bin").display(), std::env::var("PATH").unwrap());
        command.arg(argument).env("PATH", path).current_dir(self.folder.path());
        command.env("RUNNER_TEMP", self.path("temp")).env("GITHUB_OUTPUT", self.path("output"));
        command.env("GITHUB_ACTIONS", "true").envs(variables.iter().copied());
        Running::start(&mut command).finish(60)
    }
}

fn example(name: &str) -> String {
    let path = root().join("docs/how-to/ci").join(name);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Returns an example whose peer never answers.
fn failing(name: &str) -> String {
    let text = example(name);
    assert!(text.contains(LOSSES), "{text}");
    text.replace(LOSSES, "--fault drop=100%")
}

/// Returns whether the program of the examples is installed; skips the test otherwise.
#[track_caller]
fn has_ping_pong() -> bool {
    let has_all = ["ibv_rc_pingpong", "ss", "git"].into_iter().all(has_program);
    !skip_unless(has_all, "ibverbs-utils, iproute2 or git is not installed")
}

/// Checks that a job failed, and that its only artifact explains why. Returns its folder.
#[track_caller]
fn check_failure(outcome: &Outcome) -> &Path {
    assert!(!outcome.success && outcome.artifacts.len() == 1, "{outcome:?}");
    let folder = outcome.artifacts.values().next().unwrap().as_path();
    let read = |name: &str| fs::read_to_string(folder.join(name)).unwrap_or_default();
    let report = read("report.txt");
    assert!(report.contains("RETRY_EXC_ERR") && report.contains("likely causes"), "{report}");
    assert!(report.contains("ended with status 1\n"), "{report}");
    assert!(read("analysis.txt").contains("127.0.0.1"), "{}", read("analysis.txt"));
    assert!(read("analysis.html").contains("<html"), "{}", outcome.log);
    assert!(read("verdicts.xml").contains("<testsuite"), "{}", outcome.log);
    let names = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let captures: Vec<PathBuf> =
        names.filter(|path| path.extension().is_some_and(|is| is == "pcapng")).collect();
    assert!(captures.iter().all(|path| path.metadata().unwrap().len() > 1000), "{captures:?}");
    assert!(!captures.is_empty(), "{}", outcome.log);
    folder
}

#[test]
fn the_example_for_github_builds_once_and_keeps_nothing_of_a_success() {
    if !has_ping_pong() {
        return;
    }
    in_own_network(&["link set lo up"], || {
        let place = Place::new();
        for run in 0..2 {
            let outcome = place.github(&example("github.yaml"));
            assert!(outcome.success && outcome.artifacts.is_empty(), "{outcome:?}");
            assert_eq!(outcome.log.contains("roce is in the cache"), run == 1, "{}", outcome.log);
            assert_eq!(outcome.log.matches("200 iters in").count(), 2, "{}", outcome.log);
            let text = place.read("home/workspace/blast.json");
            let document: Value = serde_json::from_str(&text).expect("JSON");
            let retransmitted = &document["rows"][0]["client"]["retransmitted_packets"];
            assert!(retransmitted.as_u64().unwrap() > 0, "{document}");
        }
        let calls = place.read("cargo-calls");
        let prefix = place.path("home/temp/roce");
        let install = format!("-p xtask -- install --prefix {} --profile release", prefix.display());
        assert_eq!(calls, format!("run --quiet --locked {install}\n"));
    });
}

#[test]
fn the_example_for_github_explains_a_failure() {
    if !has_ping_pong() {
        return;
    }
    in_own_network(&["link set lo up"], || {
        let place = Place::new();
        let outcome = place.github(&failing("github.yaml"));
        check_failure(&outcome);
        let name = outcome.artifacts.keys().next().unwrap();
        assert!(name.starts_with("roce-rdma-") && name.len() == "roce-rdma-".len() + 8, "{name}");
        let annotations = outcome.log.lines().filter(|line| line.starts_with("::error title=roce::"));
        let annotations: Vec<&str> = annotations.collect();
        assert!(annotations.iter().any(|line| line.contains("RETRY_EXC_ERR")), "{annotations:#?}");
        assert!(!annotations.iter().any(|line| line.ends_with("(udp:127.0.0.1)")), "{annotations:#?}");
        let summary = place.read("home/summary.md");
        assert!(summary.starts_with("### roce: the command ended with status 1\n"), "{summary}");
        assert!(summary.contains("<summary>report.txt</summary>"), "{summary}");
        assert!(summary.contains("<summary>analysis.txt</summary>"), "{summary}");
        // Later steps do not run.
        assert!(!place.path("home/workspace/blast.json").exists());
    });
}

#[test]
fn the_example_for_gitlab_succeeds_and_explains_a_failure() {
    if !has_ping_pong() {
        return;
    }
    in_own_network(&["link set lo up"], || {
        let place = Place::new();
        let outcome = place.gitlab(&example("gitlab.yaml"));
        assert!(outcome.success && outcome.artifacts.is_empty(), "{outcome:?}");
        assert_eq!(outcome.log.matches("200 iters in").count(), 2, "{}", outcome.log);
        let outcome = place.gitlab(&failing("gitlab.yaml"));
        check_failure(&outcome);
        assert!(outcome.log.contains("roce is in the cache"), "{}", outcome.log);
        assert!(!outcome.log.contains("::error"), "{}", outcome.log);
        assert_eq!(place.read("cargo-calls").lines().count(), 1);
        // The cache of GitLab may be older than the sources.
        fs::write(place.path("sources/src.rs"), "changed").unwrap();
        let commit = "git add --all && git -c user.name=A -c user.email=a@b commit --quiet -m changed";
        let status = Command::new("sh").args(["-c", commit]).current_dir(place.path("sources")).status();
        assert!(status.unwrap().success());
        let outcome = place.gitlab(&example("gitlab.yaml").replace("-n 200", "-n 20"));
        assert!(outcome.success && !outcome.log.contains("roce is in the cache"), "{outcome:?}");
    });
}

/// Installs into the folder of the script, as the action does before it runs commands.
fn installed() -> Place {
    let place = Place::new();
    fs::create_dir_all(place.path("temp/roce/bin")).unwrap();
    symlink(ROCE, place.path("temp/roce/bin/roce")).unwrap();
    place
}

#[test]
fn the_status_is_that_of_the_command_and_captures_are_kept_on_request() {
    let place = installed();
    let run = |command: &str, capture: &str| {
        _ = fs::remove_file(place.path("output"));
        let options = ("ROCE_CI_OPTIONS", "--device udp:127.0.0.1");
        let artifact = ("ROCE_CI_ARTIFACT", "mine");
        let variables = [("ROCE_CI_RUN", command), ("ROCE_CI_CAPTURE", capture), options, artifact];
        (place.wrap("run", &variables), place.read("output"))
    };
    let kept = format!("folder={}\nartifact=mine\n", place.path("temp/roce-artifact").display());
    for capture in ["auto", "true", "false"] {
        let (failed, output) = run("echo first\nfalse | true\nexit 7", capture);
        assert_eq!((failed.code, output.as_str()), (Some(1), &*format!("status=1\n{kept}")), "{failed:?}");
        let (failed, output) = run("exit 7", capture);
        assert_eq!((failed.code, output.as_str()), (Some(7), &*format!("status=7\n{kept}")), "{failed:?}");
        let expected = "::error title=roce::bash ended with status 7\n";
        assert!(failed.stdout.contains(expected), "{failed:?}");
        let (ended, output) = run("echo \"$ROCE_PCAP\"", capture);
        let expected = if capture == "true" { format!("status=0\n{kept}") } else { "status=0\n".to_owned() };
        assert_eq!((ended.code, output), (Some(0), expected), "{ended:?}");
        assert_eq!(ended.stdout.contains("%p.pcapng"), capture != "false", "{ended:?}");
        assert_eq!(place.path("temp/roce-artifact/report.txt").exists(), capture == "true");
    }
    for (name, value) in [("ROCE_CI_CAPTURE", "maybe"), ("ROCE_CI_RUN", "")] {
        let refused = place.wrap("run", &[("ROCE_CI_RUN", "true"), (name, value)]);
        assert!(refused.code == Some(1) && refused.stdout.starts_with("::error title=roce::"), "{refused:?}");
    }
}

/// A value of a workflow, such as the title of a pull request, must not become part of a script.
#[test]
fn values_are_not_commands() {
    let place = installed();
    let mark = place.path("injected");
    let hostile = format!("$(touch {0}) `touch {0}` ; touch {0}", mark.display());
    for name in ["ROCE_CI_OPTIONS", "ROCE_CI_VERSION", "ROCE_CI_PROFILE", "ROCE_CI_CAPTURE"] {
        for argument in ["find", "install", "run"] {
            place.wrap(argument, &[("ROCE_CI_RUN", "true"), (name, &hostile)]);
            assert!(!mark.exists(), "{name} {argument}");
        }
    }
    let refused = place.wrap("find", &[("ROCE_CI_VERSION", "v1/../../other")]);
    assert!(!refused.success && refused.stderr.contains("expected letters"), "{refused:?}");
    // A second line of an output would be another output.
    _ = fs::remove_file(place.path("output"));
    let refused = place.wrap("run", &[("ROCE_CI_RUN", "false"), ("ROCE_CI_ARTIFACT", "a\nfolder=/etc")]);
    assert!(!refused.success && !place.read("output").contains("/etc"), "{refused:?}");
    // An annotation is one line, and only the decoded text of the report.
    let refused = place.wrap("run", &[("ROCE_CI_RUN", "true"), ("ROCE_CI_CAPTURE", "100%\n::warning::x")]);
    assert!(refused.stdout.contains("100%25 ::warning::x"), "{refused:?}");
    assert!(!refused.stdout.lines().any(|line| line.starts_with("::warning")), "{refused:?}");
}

#[test]
fn the_key_of_the_cache_contains_every_source() {
    let place = Place::new();
    let sources = place.path("sources");
    fs::create_dir_all(sources.join("tools/ci-action")).unwrap();
    fs::create_dir_all(sources.join("target")).unwrap();
    fs::copy(root().join("tools/ci-action/wrap"), sources.join("tools/ci-action/wrap")).unwrap();
    let key = |version: &str| {
        _ = fs::remove_file(place.path("output"));
        let found = place.wrap_of(&sources, "find", &[("ROCE_CI_VERSION", version)]);
        assert!(found.success, "{found:?}");
        place.read("output").lines().find_map(|line| line.strip_prefix("key=").map(str::to_owned))
    };
    let mut keys = vec![key("source").expect("a key")];
    assert!(keys[0].starts_with("roce-Linux-") && keys[0].contains("-release-"), "{keys:?}");
    for (name, text) in [("a.rs", "one"), ("a.rs", "two"), ("b c.rs", "one"), ("Cargo.lock", "one")] {
        fs::write(sources.join(name), text).unwrap();
        keys.push(key("source").expect("a key"));
    }
    fs::rename(sources.join("a.rs"), sources.join("d.rs")).unwrap();
    keys.push(key("source").expect("a key"));
    let last = keys.last().cloned();
    keys.sort();
    keys.dedup();
    assert_eq!(keys.len(), 6, "{keys:?}");
    fs::write(sources.join("target/result"), "built").unwrap();
    assert_eq!(key("source"), last);
    assert_eq!(key("v0.1.0"), None);
}

#[test]
fn a_release_is_installed_if_its_sum_is_right() {
    if skip_unless(has_program("curl"), "curl is not installed") {
        return;
    }
    let place = Place::new();
    let release = place.path("releases/v0.1.0");
    let name = format!("roce-0.1.0-{}-unknown-linux-gnu", std::env::consts::ARCH);
    fs::create_dir_all(release.join(&name).join("bin")).unwrap();
    symlink(ROCE, release.join(&name).join("bin/roce")).unwrap();
    let pack = format!("tar -czf {name}.tar.gz {name} && sha256sum {name}.tar.gz >SHA256SUMS");
    let status = Command::new("sh").args(["-c", &pack]).current_dir(&release).status();
    assert!(status.unwrap().success());
    let releases = format!("file://{}", place.path("releases").display());
    let install = |version: &str| {
        let path = place.path("path");
        let variables = [("ROCE_CI_VERSION", version), ("ROCE_CI_RELEASES", &releases)];
        place.wrap("install", &[&variables[..], &[("GITHUB_PATH", path.to_str().unwrap())]].concat())
    };
    let installed = install("v0.1.0");
    assert!(installed.success && installed.stdout.contains("roce 0.1.0"), "{installed:?}");
    assert_eq!(place.read("path"), format!("{}\n", place.path("temp/roce/bin").display()));
    assert!(place.path("temp/roce/bin/roce").is_file() && place.read("cargo-calls").is_empty());
    let refused = install("v0.2.0");
    let expected = format!("roce: cannot download {releases}/v0.2.0/SHA256SUMS\n");
    assert!(!refused.success && refused.stderr.ends_with(&expected), "{refused:?}");
    fs::write(release.join(format!("{name}.tar.gz")), "other").unwrap();
    let refused = install("v0.1.0");
    assert!(!refused.success && refused.stderr.contains("differs from its sum"), "{refused:?}");
    let refused = install("0.1.0");
    assert!(!refused.success && refused.stderr.contains("such as v0.1.0"), "{refused:?}");
}

/// A tag can be moved to other code; a commit cannot. Every value comes as an environment variable, because
/// an expression in a script lets its value run as a command.
#[test]
fn actions_are_pinned_and_scripts_have_no_expressions() {
    for name in ["action.yml", "docs/how-to/ci/github.yaml"] {
        let text = fs::read_to_string(root().join(name)).unwrap();
        let uses =
            text.lines().filter_map(|line| line.trim().trim_start_matches("- ").strip_prefix("uses: "));
        for action in uses.filter(|action| !action.starts_with("OWNER/roce@")) {
            let (commit, version) = action.split_once('@').unwrap().1.split_once(" # v").expect("a version");
            assert!(commit.len() == 40 && !version.is_empty(), "{name}: {action}");
        }
        let scripts = text.lines().filter(|line| line.trim().starts_with("run: "));
        assert!(!scripts.clone().any(|line| line.contains("${{")), "{name}");
    }
}
