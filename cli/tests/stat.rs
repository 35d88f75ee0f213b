//! `roce stat` and the processes that it reads.

mod common;

use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use common::{Finished, Running, own_address, roce};
use serde_json::Value;

/// A private directory for the sockets, so that a test sees only its own processes.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("a directory"))
    }

    fn command(&self) -> Command {
        let mut command = roce();
        command.env("XDG_RUNTIME_DIR", self.0.path()).env_remove("ROCE_STAT");
        command
    }

    fn folder(&self) -> PathBuf {
        self.0.path().join("roce")
    }

    /// A server of `roce ping`, and where it is.
    fn server(&self) -> (Running, String) {
        let address = own_address().to_string();
        let mut command = self.command();
        let mut running = Running::start(command.args(["ping", "--device", &format!("udp:{address}")]));
        running.until_it_says("waiting on");
        (running, address)
    }

    #[track_caller]
    fn stat(&self, args: &[&str]) -> Finished {
        Running::start(self.command().arg("stat").args(args)).finish(60)
    }

    /// Leaves out processes that root sees in other directories.
    #[track_caller]
    fn of(&self, address: &str) -> Option<Value> {
        let finished = self.stat(&["--all", "--json"]);
        assert!(finished.success, "{finished:?}");
        let all: Vec<Value> = serde_json::from_str(&finished.stdout).expect("JSON");
        all.into_iter().find(|one| one["addresses"][0] == address)
    }

    fn ping(&self, server: &str) {
        let device = format!("udp:{}", own_address());
        let mut command = self.command();
        let finished = Running::start(command.args([
            "ping",
            server,
            "--device",
            &device,
            "-n",
            "100",
            "--timeout",
            "16",
        ]))
        .finish(60);
        assert!(finished.success, "{finished:?}");
    }
}

fn sockets(folder: &Path) -> Vec<PathBuf> {
    std::fs::read_dir(folder).expect("the folder").flatten().map(|entry| entry.path()).collect()
}

#[test]
fn counters_of_a_running_server_are_shown_in_every_form() {
    let place = Place::new();
    let (mut server, address) = place.server();
    place.ping(&address);
    let told = place.of(&address).expect("the server is there");
    assert!(told["counters"]["rdma_rx_packets"].as_u64().unwrap() >= 200, "{told}");
    assert_eq!(told["device"], "udp");
    assert!(told["command"].as_str().unwrap().contains("ping --device"), "{told}");
    let pid = told["pid"].to_string();

    let lines = place.stat(&[&pid]);
    assert!(lines.success && lines.stdout.contains("rdma_rx_packets"), "{lines:?}");
    assert!(!lines.stdout.contains("drop_malformed"), "zeros are left out: {lines:?}");
    let lines = place.stat(&[&pid, "--zeros"]);
    let zero = lines.stdout.lines().find(|line| line.starts_with("drop_malformed")).expect("with zeros");
    assert_eq!(zero.split_whitespace().last(), Some("0"));

    let text = place.stat(&[&pid, "--prometheus"]).stdout;
    assert!(text.contains("# TYPE roce_rdma_rx_packets counter\n"), "{text}");
    let sample = format!("roce_rdma_rx_packets{{pid=\"{pid}\",device=\"udp\",address=\"{address}\"}} ");
    assert!(text.lines().any(|line| line.starts_with(&sample)), "{text}");

    let watched = place.stat(&[&pid, "--watch", "0.1", "--count", "2"]);
    assert!(watched.success, "{watched:?}");
    assert!(server.is_alive());
}

#[test]
fn ended_processes_are_not_shown() {
    let place = Place::new();
    let (server, address) = place.server();
    assert!(place.of(&address).is_some());
    assert_eq!(sockets(&place.folder()).len(), 1);
    // A killed process leaves its socket.
    drop(server);
    assert_eq!(sockets(&place.folder()).len(), 1);
    assert!(place.of(&address).is_none());
    let (_server, address) = place.server();
    assert!(place.of(&address).is_some());
    // A process that exits removes its socket.
    place.ping(&address);
    assert_eq!(sockets(&place.folder()).len(), 2, "the one that was killed, and the one that runs");
}

#[test]
fn sockets_are_private_and_clients_cannot_disturb() {
    let place = Place::new();
    let (mut server, address) = place.server();
    let mode = std::fs::metadata(place.folder()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
    let socket = sockets(&place.folder()).pop().unwrap();
    // Some clients send garbage, some neither send nor read, and some disconnect at once.
    let mut idle = Vec::new();
    for round in 0..100 {
        let mut stream = UnixStream::connect(&socket).unwrap();
        match round % 3 {
            0 => _ = stream.write_all(&[0xff; 4096]),
            1 => idle.push(stream),
            _ => drop(stream),
        }
    }
    assert!(place.of(&address).is_some());
    place.ping(&address);
    assert!(server.is_alive());
}

#[test]
fn foreign_files_are_ignored() {
    let place = Place::new();
    std::fs::DirBuilder::new().mode(0o700).create(place.folder()).unwrap();
    let silent = UnixListener::bind(place.folder().join("1.0")).unwrap();
    let endless = UnixListener::bind(place.folder().join("2.0")).unwrap();
    std::fs::write(place.folder().join("3.0"), "no socket").unwrap();
    std::fs::write(place.folder().join("name"), "no process").unwrap();
    let writer = std::thread::spawn(move || {
        let (mut stream, _) = endless.accept().unwrap();
        while stream.write_all(&[b'['; 1 << 16]).is_ok() {}
    });
    let (_server, address) = place.server();
    let start = Instant::now();
    assert!(place.of(&address).is_some());
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
    writer.join().unwrap();
    drop(silent);
}

#[test]
fn the_environment_decides() {
    let place = Place::new();
    let address = own_address().to_string();
    let mut command = place.command();
    command.env("ROCE_STAT", "0").args(["ping", "--device", &format!("udp:{address}")]);
    let mut server = Running::start(&mut command);
    server.until_it_says("waiting on");
    assert!(place.of(&address).is_none());
    assert!(!place.folder().exists());
    let nobody = place.stat(&["4194304"]);
    assert!(!nobody.success && nobody.stderr.contains("does not publish its counters"), "{nobody:?}");
}

#[test]
fn a_directory_that_is_open_to_others_is_not_used() {
    let place = Place::new();
    std::fs::create_dir(place.folder()).unwrap();
    std::fs::set_permissions(place.folder(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let (mut server, address) = place.server();
    assert!(place.of(&address).is_none(), "and the server runs all the same");
    place.ping(&address);
    assert!(server.is_alive() && sockets(&place.folder()).is_empty());
}
