//! `roce stat` and the processes that it reads.

use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::common::{Finished, Running, on_idle, own_address, roce};
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

    /// Starts a server of `roce ping`; also returns its address.
    fn server(&self) -> (Running, String) {
        let address = own_address().to_string();
        let mut command = self.command();
        let mut running = Running::start(command.args(["ping", "--device", &format!("udp:{address}")]));
        running.wait_for_line("waiting on");
        (running, address)
    }

    #[track_caller]
    fn stat(&self, args: &[&str]) -> Finished {
        Running::start(self.command().arg("stat").args(args)).finish(60)
    }

    /// Returns the process at this address; omits processes that root sees in other directories.
    #[track_caller]
    fn of(&self, address: &str) -> Option<Value> {
        let finished = self.stat(&["--all", "--json"]);
        assert!(finished.success, "{finished:?}");
        let document: Value = serde_json::from_str(&finished.stdout).expect("JSON");
        let all = document["processes"].as_array().expect("a list");
        all.iter().find(|one| one["addresses"][0] == address).cloned()
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
    // The messages, and acknowledgements, each of which may cover several messages.
    let packets = told["counters"]["rdma_rx_packets"].as_u64().unwrap();
    assert!((101..=400).contains(&packets), "{told}");
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
    check_prometheus(&text);
    assert!(text.contains("# TYPE roce_rdma_rx_packets_total counter\n"), "{text}");
    assert!(text.contains("# TYPE roce_uptime_seconds gauge\n"), "{text}");
    let sample = format!("roce_rdma_rx_packets_total{{pid=\"{pid}\",device=\"udp\",address=\"{address}\"}} ");
    assert!(text.lines().any(|line| line.starts_with(&sample)), "{text}");

    let watched = place.stat(&[&pid, "--watch", "0.1", "--count", "2"]);
    assert!(watched.success, "{watched:?}");
    assert!(server.is_alive());
}

/// Checks the rules for names and for the text format: each metric has HELP and TYPE once, directly above its
/// samples. Counters, and only they, end with `_total`; before that comes the unit, which is a base unit.
#[track_caller]
fn check_prometheus(text: &str) {
    let mut known = std::collections::BTreeSet::new();
    let mut lines = text.lines().peekable();
    while let Some(help) = lines.next() {
        let (name, meaning) = help.strip_prefix("# HELP ").and_then(|rest| rest.split_once(' ')).expect(help);
        assert!(known.insert(name), "{name} is there twice");
        assert!(!meaning.is_empty() && !meaning.contains("docs/reference/counters.md"), "no meaning: {help}");
        let kind = lines.next().and_then(|line| line.strip_prefix("# TYPE ")).expect("a TYPE line");
        let kind = kind.strip_prefix(name).expect("the same metric").trim();
        let base = name.strip_suffix("_total");
        assert_eq!(base.is_some(), kind == "counter", "{name} is a {kind}");
        assert!(name.starts_with("roce_"), "{name}");
        let words: Vec<&str> = base.unwrap_or(name).split('_').collect();
        let units =
            words.iter().rev().skip(1).filter(|word| ["bytes", "seconds", "ns", "us", "ms"].contains(word));
        assert_eq!(units.count(), 0, "{name}: the unit is the last word");
        let mut samples = 0;
        while let Some(sample) = lines.next_if(|line| !line.starts_with('#')) {
            let rest = sample.strip_prefix(name).expect("a sample of this metric");
            assert!(rest.starts_with("{pid=\""), "{sample}");
            rest.rsplit(' ').next().unwrap().parse::<f64>().expect(sample);
            samples += 1;
        }
        assert!(samples > 0, "{name}");
    }
    assert!(known.len() > 50, "{known:?}");
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
    assert!(on_idle(start.elapsed()) < Duration::from_secs(20), "{:?}", start.elapsed());
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
    server.wait_for_line("waiting on");
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

/// A stopped process does not delay the command: it is named, and the others are shown.
#[test]
fn a_process_that_does_not_answer_is_named_and_the_others_are_shown() {
    let place = Place::new();
    let (_server, address) = place.server();
    // This socket listens but never accepts, as in a stopped process.
    let _silent = UnixListener::bind(place.folder().join("4194305.0")).unwrap();
    let finished = place.stat(&["--all"]);
    assert!(finished.success, "{finished:?}");
    assert!(on_idle(finished.took) < Duration::from_secs(10), "{finished:?}");
    assert!(finished.stdout.contains(&address), "{finished:?}");
    assert!(finished.stderr.contains("process 4194305 does not answer"), "{finished:?}");
}
