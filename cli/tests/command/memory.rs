//! Runs every command that reads from a file or a peer with a hostile sender; memory stays bounded. The
//! address space of the child is limited (`RLIMIT_AS`).

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::{Finished, Running, on_idle, own_address};

/// Address space of the child: several times the need of a small file, and a fraction of what arrives.
const LIMIT_KIB: u32 = 300 << 10;
/// Maximum number of bytes to send; the child usually ends earlier.
const SENT: usize = 400 << 20;

/// Returns a pcapng block, little-endian.
fn block(block_type: u32, body: &[u8]) -> Vec<u8> {
    let len = (body.len() + 12) as u32;
    [&block_type.to_le_bytes()[..], &len.to_le_bytes(), body, &len.to_le_bytes()].concat()
}

fn section() -> Vec<u8> {
    block(0x0a0d_0d0a, &[&0x1a2b_3c4d_u32.to_le_bytes()[..], &[1, 0, 0, 0], &[0xff; 8]].concat())
}

/// Returns an interface block with a name of `name_len` bytes.
fn interface(name_len: usize) -> Vec<u8> {
    let mut body = vec![1, 0, 0, 0, 0, 0, 0, 0, 2, 0];
    body.extend((name_len as u16).to_le_bytes());
    body.resize(body.len() + name_len.next_multiple_of(4), b'x');
    block(1, &body)
}

/// Returns `roce` with the limit on its address space.
fn limited(args: &[&str]) -> Command {
    let mut command = Command::new("sh");
    command
        .args(["-c", &format!("ulimit -v {LIMIT_KIB} && exec \"$0\" \"$@\""), env!("CARGO_BIN_EXE_roce")])
        .args(args);
    command
}

/// Sends `begin` and then `part` repeatedly; returns the exit code and the standard error.
fn dissect(begin: &[u8], part: &[u8]) -> (Option<i32>, String) {
    let mut child = limited(&["dissect", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut pipe = child.stdin.take().unwrap();
    let chunk = part.repeat((64 << 10) / part.len() + 1);
    let mut sent = pipe.write(begin).unwrap();
    while sent < SENT && pipe.write_all(&chunk).is_ok() {
        sent += chunk.len();
    }
    drop(pipe);
    let output = child.wait_with_output().unwrap();
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn interface_blocks_without_end_are_an_error_and_not_memory() {
    for name_len in [4, 60_000] {
        let (code, stderr) = dissect(&section(), &interface(name_len));
        assert_eq!(code, Some(1), "{stderr}");
        assert!(stderr.contains("more than 4096 interfaces") && stderr.contains("at byte"), "{stderr}");
    }
}

#[test]
fn sections_without_end_and_long_blocks_take_no_memory() {
    let many_interfaces = [section(), interface(200).repeat(1000)].concat();
    let (code, stderr) = dissect(&[], &many_interfaces);
    assert_eq!(code, Some(1), "{stderr}");
    assert!(stderr.contains("the file has no packets"), "{stderr}");
    // One block of 1 GiB that is not read to its end.
    let begin = [section(), vec![0xad, 0x0b, 0, 0], (1_u32 << 30).to_le_bytes().to_vec()].concat();
    let (code, stderr) = dissect(&begin, &[7; 4096]);
    assert_eq!(code, Some(1), "{stderr}");
    assert!(stderr.contains("the file ends here"), "{stderr}");
}

/// Checks that the command reported an error: it neither ran out of memory nor was killed by a signal.
#[track_caller]
fn check_refused(finished: &Finished, what: &str) {
    assert!(matches!(finished.code, Some(1 | 2)), "{what}: {finished:?}");
    let text = format!("{}{}", finished.stdout, finished.stderr);
    assert!(!text.contains("memory allocation") && !text.contains("out of memory"), "{what}: {finished:?}");
}

/// Regression: `roce sim /dev/zero` used all memory.
#[test]
fn files_without_end_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let scenario = folder.path().join("scenario.toml");
    let scenario = scenario.to_str().unwrap();
    let run = folder.path().join("runs/one");
    std::fs::create_dir_all(&run).unwrap();
    std::os::unix::fs::symlink("/dev/zero", run.join("summary.json")).unwrap();
    let runs = folder.path().join("runs");
    let with_file = [
        "name = \"x\"\nstop = \"1ms\"\n[topology]\nkind = \"file\"\nfile = \"/dev/zero\"\n",
        "name = \"x\"\nstop = \"1ms\"\n[topology]\nkind = \"star\"\nhosts = 3\nrate = \"1Gbps\"\ndelay = \"1us\"\n\
         [[flows]]\nkind = \"trace\"\nfile = \"/dev/zero\"\n",
    ];
    let commands: [&[&str]; 6] = [
        &["dissect", "/dev/zero"],
        &["explain", "/dev/zero:1"],
        &["inject", "--device", "udp:127.0.0.1", "--dry-run", "/dev/null", "/dev/zero"],
        &["sim", "/dev/zero"],
        &["bridge", "--left", "tap:a", "--right", "tap:b", "--scenario", "/dev/zero"],
        &["sim", "--merge", runs.to_str().unwrap()],
    ];
    for args in commands {
        check_refused(&Running::start(&mut limited(args)).finish(60), &args.join(" "));
    }
    for text in with_file {
        std::fs::write(scenario, text).unwrap();
        let finished = Running::start(&mut limited(&["sim", scenario])).finish(60);
        check_refused(&finished, text);
        assert!(finished.stderr.contains("longer than 64 MiB"), "{text}: {finished:?}");
    }
}

/// Sends bytes without a line end, endless lines, or zeros until the other side closes or enough has been
/// sent. Returns the number of sent bytes.
fn send_without_end(stream: &mut impl Write, kind: usize) -> usize {
    let chunk = ["x", "x\n", "\0"][kind].as_bytes().repeat(32 << 10);
    let end = Instant::now() + Duration::from_secs(20);
    let mut sent = 0;
    while sent < SENT && Instant::now() < end && stream.write_all(&chunk).is_ok() {
        sent += chunk.len();
    }
    sent
}

/// Tools that have a server and a client, with the TCP port of each.
const TOOLS: [(&str, u16); 6] = [
    ("ping", 18_520),
    ("blast", 18_520),
    ("doctor", 18_520),
    ("limit", 18_521),
    ("pingpong rc", 18_515),
    ("perf write bw", 18_515),
];

#[test]
fn clients_that_send_without_end_take_no_memory_of_a_server() {
    for (server, port) in TOOLS {
        for kind in 0..3 {
            let address = own_address().to_string();
            let device = format!("udp:{address}");
            let mut args: Vec<&str> = server.split(' ').collect();
            args.extend(["--device", &device]);
            let mut running = Running::start(&mut limited(&args));
            running.wait_for_line("waiting on");
            let mut stream = TcpStream::connect((address.as_str(), port)).unwrap();
            stream.set_write_timeout(Some(Duration::from_secs(5))).unwrap();
            send_without_end(&mut stream, kind);
            drop(stream);
            std::thread::sleep(Duration::from_millis(100));
            let serves_on = running.is_alive();
            if serves_on {
                running.interrupt();
            }
            let finished = running.finish(60);
            assert!(serves_on || finished.code.is_some(), "{server}: {finished:?}");
            let text = format!("{}{}", finished.stdout, finished.stderr);
            assert!(
                !text.contains("memory allocation") && !text.contains("panicked"),
                "{server}: {finished:?}"
            );
        }
    }
}

#[test]
fn servers_that_send_without_end_take_no_memory_of_a_client() {
    for (client, port) in TOOLS {
        for kind in 0..3 {
            let address = own_address().to_string();

            let listener = TcpListener::bind((address.as_str(), port)).unwrap();
            let hostile = std::thread::spawn(move || {
                let (mut stream, _) = listener.accept().unwrap();
                stream.set_write_timeout(Some(Duration::from_secs(5))).unwrap();
                send_without_end(&mut stream, kind);
                let _ = stream.take(1).read(&mut [0]);
            });
            let mut args: Vec<&str> = client.split(' ').collect();
            args.push(&address);
            let finished = Running::start(&mut limited(&args)).finish(60);
            check_refused(&finished, client);
            hostile.join().unwrap();
        }
    }
}

/// A process of the same user publishes counters and writes without end.
#[test]
fn counters_without_end_take_no_memory_of_stat() {
    use std::os::unix::fs::PermissionsExt as _;
    for kind in 0..3 {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("roce");
        std::fs::create_dir(&place).unwrap();
        std::fs::set_permissions(&place, std::fs::Permissions::from_mode(0o700)).unwrap();
        let socket = place.join(format!("{}.0", std::process::id()));
        let listener = UnixListener::bind(&socket).unwrap();
        let hostile = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.set_write_timeout(Some(Duration::from_secs(5))).unwrap();
            send_without_end(&mut stream, kind)
        });
        let started = Instant::now();
        let mut command = limited(&["stat", "--all"]);
        let finished = Running::start(command.env("XDG_RUNTIME_DIR", folder.path())).finish(60);
        let text = format!("{}{}", finished.stdout, finished.stderr);
        assert!(finished.code.is_some() && !text.contains("memory allocation"), "{finished:?}");
        assert!(on_idle(started.elapsed()) < Duration::from_secs(30), "{finished:?}");
        // Releases the hostile thread if the command did not connect.
        let _ = UnixStream::connect(&socket);
        assert!(hostile.join().unwrap() > 0, "it was never asked: {finished:?}");
    }
}
