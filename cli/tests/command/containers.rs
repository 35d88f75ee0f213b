//! Tests the files of `docs/how-to/containers` as far as possible without a container engine. The root folder
//! is that of `xtask image`, and the commands of the compose file run unchanged.
//! `cli/tests/distribution/image` tests the image with an engine.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::{Running, has_program, skip_unless};
use roce_testing::{Cable, Namespace, in_own_network};
use xtask::build::{self, Build};
use xtask::{image, layout};

const ROCE: &str = env!("CARGO_BIN_EXE_roce");

fn file(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/how-to/containers").join(name);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Returns the arguments of an instruction of the Dockerfile.
#[track_caller]
fn instruction(name: &str) -> String {
    let text = file("Dockerfile");
    let found = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    found.unwrap_or_else(|| panic!("no {name} in {text}")).to_owned()
}

/// Returns a folder with the root folder of the image.
fn image() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("root");
    let built = Path::new(ROCE).parent().unwrap().to_owned();
    let files = layout::files(&Build { folder: built, target: build::host().unwrap() }).unwrap();
    image::write_root(&files, &root).unwrap();
    // The user of the image enters it.
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    (folder, root)
}

/// Returns whether this machine can give a process its own root folder; skips the test otherwise.
#[track_caller]
fn can_confine() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    let has_programs = ["setpriv", "chroot", "unshare"].iter().all(|name| has_program(name));
    !skip_unless(is_root, "a root folder of its own needs root")
        && !skip_unless(has_programs, "setpriv, chroot or unshare is not installed")
}

/// Prepares the root folder `$0` in a mount namespace, and starts the program `$@` in it.
const ENTER: &str = "mount --bind \"$0\" \"$0\" && mount -t proc proc \"$0/proc\" && mount --bind /dev \"$0/dev\" && \
                     mount -t tmpfs tmpfs \"$0/dev/shm\" && mount -o \"remount,bind,$ACCESS\" \"$0\" && \
                     exec setpriv --no-new-privs chroot \"--userspec=$USER_OF_IMAGE\" \"$0\" \"$@\"";

/// Returns the command of a container: its own root folder, which is "rw" or "ro", /proc and /dev, and the
/// user and entry point of the Dockerfile.
fn contained(image: &Path, access: &str, arguments: &[String]) -> Command {
    let entry: Vec<String> = serde_json::from_str(&instruction("ENTRYPOINT")).expect("a list");
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", ENTER]).arg(image).args(entry).args(arguments);
    command.env("USER_OF_IMAGE", instruction("USER")).env("ACCESS", access);
    command.env_remove("ROCE_LOG").env_remove("XDG_RUNTIME_DIR").env_remove("TMPDIR");
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
    let (_folder, image) = image();
    let mut files = Vec::new();
    list(&image, &mut files);
    let name = |path: &PathBuf| path.strip_prefix(&image).unwrap().to_str().unwrap().to_owned();
    let files: Vec<String> = files.iter().map(name).collect();
    for needed in ["usr/bin/roce", "usr/lib/roce/libibverbs.so.1", "usr/share/doc/roce/LICENSE-MIT"] {
        assert!(files.iter().any(|file| file == needed), "{needed}: {files:?}");
    }
    // The loader, the C library, and at most those of the compiler and of mathematics.
    let libraries = files.iter().filter(|file| file.contains(".so") && !file.starts_with("usr/lib/roce/"));
    assert!((2..=5).contains(&libraries.count()), "{files:?}");
    assert!(files.len() < 22 && !files.iter().any(|file| file.ends_with("/sh")), "{files:?}");
}

fn list(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { list(&path, files) } else { files.push(path) }
    }
}

#[test]
fn the_image_is_empty_otherwise_and_its_user_is_not_root() {
    assert_eq!(instruction("FROM"), "scratch");
    assert_eq!(instruction("COPY"), "root /");
    assert_eq!(instruction("USER"), "65534:65534");
    // Where `xtask image` writes them, seen from the compose file.
    assert!(file("compose.yaml").contains("\n      context: ../../../target/dist/image\n"));
}

#[test]
fn the_image_runs_the_demo_as_its_user() {
    if !can_confine() {
        return;
    }
    in_own_network(&["link set lo up"], || {
        let (_folder, image) = image();
        let arguments: Vec<String> = serde_json::from_str(&instruction("CMD")).expect("a list");
        // The working folder of the image cannot be set from outside.
        let arguments = [arguments, vec!["--pcap".into(), "/work/demo.pcapng".into()]].concat();
        let finished = Running::start(&mut contained(&image, "rw", &arguments)).finish(120);
        assert!(finished.success, "{finished:?}");
        assert!(finished.stdout.contains("all contents are correct"), "{finished:?}");
        assert!(image.join("work/demo.pcapng").is_file());
    });
}

/// Regression: both failed because no folder could be written. Only /dev/shm can.
#[test]
fn a_read_only_image_runs_the_demo_and_programs() {
    if !can_confine() {
        return;
    }
    in_own_network(&["link set lo up"], || {
        let (_folder, image) = image();
        let run = |words: &[&str]| {
            let words: Vec<String> = words.iter().map(|&word| word.to_owned()).collect();
            Running::start(&mut contained(&image, "ro", &words)).finish(120)
        };
        let demo = run(&["demo"]);
        assert!(demo.success && demo.stdout.contains("/dev/shm/roce-demo-"), "{demo:?}");
        let program = run(&["run", "--", "/usr/bin/roce", "--version"]);
        assert!(program.success && program.stdout.starts_with("roce "), "{program:?}");
    });
}

#[test]
fn the_services_of_the_compose_file_talk_to_each_other() {
    if !can_confine() {
        return;
    }
    let Some(Cable { near, far }) = Cable::new(1500) else { return };
    let (_folder, image) = image();
    // The container engine resolves the names of services.
    fs::write(image.join("etc/hosts"), "198.18.0.1 server\n198.18.0.2 client\n").unwrap();
    let start = |place: &Namespace, name: &str| {
        let mut command = contained(&image, "ro", &service(name));
        place.run(move || Running::start(&mut command))
    };
    let mut server = start(&near, "server");
    server.wait_for_line("waiting on");
    let client = start(&far, "client").finish(60);
    assert!(client.success, "{client:?}");
    assert!(client.stdout.contains("path mtu 1024"), "{client:?}");
    assert!(server.finish(60).success);
}

/// `cli/tests/distribution/manifest` validates the manifest with the schema of Kubernetes.
#[test]
fn the_pods_run_the_commands_of_the_compose_file_without_privileges() {
    let text = file("kubernetes.yaml");
    let pods: Vec<&str> = text.split("---\n").filter(|document| document.contains("\nkind: Pod\n")).collect();
    assert_eq!(pods.len(), 2, "{text}");
    for (pod, name) in pods.iter().zip(["server", "client"]) {
        assert!(pod.contains(&format!("\n  name: roce-{name}\n")), "{pod}");
        for needed in [
            "runAsNonRoot: true",
            "runAsUser: 65534",
            "type: RuntimeDefault",
            "allowPrivilegeEscalation: false",
            "readOnlyRootFilesystem: true",
            "drop: [ALL]",
        ] {
            assert!(pod.lines().any(|line| line.trim() == needed), "{needed}: {pod}");
        }
        let words = pod.lines().find_map(|line| line.trim().strip_prefix("args: ")).expect("arguments");
        let words: Vec<String> = serde_json::from_str(words).expect("a list");
        // The service has the name of its pod.
        let of_compose = service(name).into_iter().map(|word| word.replace("server", "roce-server"));
        assert_eq!(words, of_compose.collect::<Vec<_>>());
    }
}
