//! Tests the files of `docs/how-to/containers` as far as possible without a container engine. The image is
//! built by its own script, and the commands of the compose file run unchanged.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::{Running, has_program, skip_unless};
use roce_testing::{Cable, Namespace, in_own_network};

const ROCE: &str = env!("CARGO_BIN_EXE_roce");

fn file(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/how-to/containers").join(name);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Returns the instructions of the Dockerfile, without comments.
fn instructions() -> Vec<(String, String)> {
    let text = file("Dockerfile");
    let lines = text.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty());
    let split = |line: &str| {
        let (name, rest) = line.split_once(' ').unwrap_or_else(|| panic!("{line}"));
        (name.to_owned(), rest.to_owned())
    };
    lines.map(split).collect()
}

/// Returns the arguments of an instruction of the last stage.
#[track_caller]
fn last_stage(name: &str) -> String {
    let all = instructions();
    let start = all.iter().rposition(|(name, _)| name == "FROM").expect("a stage");
    let found = all[start..].iter().find(|(known, _)| known == name);
    found.unwrap_or_else(|| panic!("no {name} in the last stage")).1.clone()
}

/// Returns the folder of the image, built as in the Dockerfile.
fn image() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let script = "docs/how-to/containers/image-root";
    let runs: Vec<_> = instructions().into_iter().filter(|(name, _)| name == "RUN").collect();
    assert!(runs.iter().any(|(_, run)| run == &format!("{script} target/release/roce /image")), "{runs:?}");
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let output = Command::new(root.join(script)).arg(ROCE).arg(folder.path()).output().expect("the script");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    // A container engine makes the root folder readable.
    Command::new("chmod").arg("755").arg(folder.path()).status().expect("chmod");
    folder
}

/// Returns whether this machine can give a process its own root folder; skips the test otherwise.
#[track_caller]
fn can_confine() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    let has_programs = ["setpriv", "chroot", "unshare"].iter().all(|name| has_program(name));
    !skip_unless(is_root, "a root folder of its own needs root")
        && !skip_unless(has_programs, "setpriv, chroot or unshare is not installed")
}

/// Returns the command of a container: its own root folder, /proc and /dev, and the user and entry point of
/// the Dockerfile.
fn contained(image: &Path, arguments: &[String]) -> Command {
    let entry: Vec<String> = serde_json::from_str(&last_stage("ENTRYPOINT")).expect("a list");
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c"]).arg(
        "mount -t proc proc \"$0/proc\" && mount --bind /dev \"$0/dev\" && exec setpriv --no-new-privs chroot \"--userspec=$USER_OF_IMAGE\" \"$0\" \"$@\"",
    );
    command.arg(image).args(entry).args(arguments);
    command.env("USER_OF_IMAGE", last_stage("USER")).env_remove("ROCE_LOG").env_remove("XDG_RUNTIME_DIR");
    command
}

/// Returns the command of a service in the compose file.
#[track_caller]
fn service(name: &str) -> Vec<String> {
    let text = file("compose.yaml");
    let (_, rest) = text.split_once(&format!("\n  {name}:\n")).unwrap_or_else(|| panic!("no service {name}"));
    let own: Vec<&str> =
        rest.lines().take_while(|line| line.starts_with("    ") || line.is_empty()).collect();
    for needed in ["    cap_drop: [ALL]", "    read_only: true"] {
        assert!(own.contains(&needed), "{name}: {needed}");
    }
    let command = own.iter().find_map(|line| line.trim().strip_prefix("command: "));
    serde_json::from_str(command.unwrap_or_else(|| panic!("{name} has no command"))).expect("a list")
}

#[test]
fn the_image_has_the_program_and_what_it_loads() {
    let image = image();
    let mut files = Vec::new();
    list(image.path(), &mut files);
    let name = |path: &PathBuf| path.strip_prefix(image.path()).unwrap().to_str().unwrap().to_owned();
    let files: Vec<String> = files.iter().map(name).collect();
    assert!(files.contains(&"usr/bin/roce".to_owned()), "{files:?}");
    // The loader, the C library, and at most those of the compiler and of mathematics.
    let libraries = files.iter().filter(|file| file.contains(".so"));
    assert!((2..=5).contains(&libraries.count()), "{files:?}");
    assert!(files.len() < 12 && !files.iter().any(|file| file.ends_with("/sh")), "{files:?}");
}

fn list(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { list(&path, files) } else { files.push(path) }
    }
}

#[test]
fn the_build_uses_the_oldest_supported_compiler_and_the_lock_file() {
    let manifest = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../Cargo.toml")).unwrap();
    let version = manifest.split("rust-version = \"").nth(1).and_then(|rest| rest.split('"').next()).unwrap();
    let all = instructions();
    assert_eq!(all[0].1, format!("rust:{version}-slim-bookworm AS build"));
    assert!(
        all.iter().any(|(name, run)| name == "RUN" && run.starts_with("cargo build --locked --release "))
    );
    assert_eq!(last_stage("FROM"), "scratch");
    assert_ne!(last_stage("USER").split(':').next(), Some("0"));
}

#[test]
fn the_image_runs_the_demo_as_its_user() {
    if !can_confine() {
        return;
    }
    in_own_network(&["link set lo up"], || {
        let image = image();
        let arguments: Vec<String> = serde_json::from_str(&last_stage("CMD")).expect("a list");
        // The working folder of the image cannot be set from outside.
        let arguments = [arguments, vec!["--pcap".into(), "/work/demo.pcapng".into()]].concat();
        let finished = Running::start(&mut contained(image.path(), &arguments)).finish(120);
        assert!(finished.success, "{finished:?}");
        assert!(finished.stdout.contains("all contents are correct"), "{finished:?}");
        assert!(image.path().join("work/demo.pcapng").is_file());
    });
}

#[test]
fn the_services_of_the_compose_file_talk_to_each_other() {
    if !can_confine() {
        return;
    }
    let Some(Cable { near, far }) = Cable::new(1500) else { return };
    let image = image();
    // The container engine resolves the names of services.
    fs::write(image.path().join("etc/hosts"), "198.18.0.1 server\n198.18.0.2 client\n").unwrap();
    let start = |place: &Namespace, name: &str| {
        let mut command = contained(image.path(), &service(name));
        place.run(move || Running::start(&mut command))
    };
    let mut server = start(&near, "server");
    server.wait_for_line("waiting on");
    let client = start(&far, "client").finish(60);
    assert!(client.success, "{client:?}");
    assert!(client.stdout.contains("path mtu 1024"), "{client:?}");
    assert!(server.finish(60).success);
}
