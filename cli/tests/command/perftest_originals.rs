//! `roce perf` against originals of perftest with different options, which the originals do not exchange.
//!
//! Each side is a `roce perf` behind a proxy that removes its mark from the exchange. So each side treats the
//! other one as an original, and both exchange the blocks and packets of an original.

use std::io::{Read, Write};
use std::net::{IpAddr, Shutdown, TcpListener, TcpStream};

use crate::common::{Finished, Running, own_address, roce, within};

const PORT: u16 = 18_515;
/// Length of the block with the release, in bytes. The bytes after the NUL tell the programs apart.
const RELEASE: usize = 16;
const RELEASE_TEXT: usize = 4;

/// Forwards bytes, without the mark in the first block.
fn pass_on(mut from: TcpStream, mut to: TcpStream) {
    let mut release = [0; RELEASE];
    if from.read_exact(&mut release).is_ok() {
        release[RELEASE_TEXT..].fill(0);
        let _ = to.write_all(&release).and_then(|()| std::io::copy(&mut from, &mut to));
    }
    let _ = to.shutdown(Shutdown::Write);
}

/// Returns an address at which a client finds the server as if it were an original.
fn disguised(server: IpAddr) -> IpAddr {
    let address = IpAddr::from(own_address());
    let listener = TcpListener::bind((address, PORT)).expect("a port of an address of its own");
    std::thread::spawn(move || {
        let (client, _) = listener.accept().expect("a client");
        let server = TcpStream::connect((server, PORT)).expect("the server");
        let back = (server.try_clone().expect("a socket"), client.try_clone().expect("a socket"));
        let there = std::thread::spawn(move || pass_on(client, server));
        pass_on(back.0, back.1);
        let _ = there.join();
    });
    address
}

/// Runs both sides, each of which mistakes the other one for an original; returns the output of each, the
/// client first.
fn meet(test: &[&str], of_client: &[&str], of_server: &[&str]) -> [Finished; 2] {
    let (server, client) = (IpAddr::from(own_address()), IpAddr::from(own_address()));
    let patience = ["--patience", "10"];
    let mut command = roce();
    command.arg("perf").args(test).args(of_server).args(patience);
    command.args(["-d", &format!("udp:{server}"), "--allow-peer", &client.to_string()]);
    let mut serving = Running::start(&mut command);
    serving.wait_for_line("waiting on");
    let mut command = roce();
    command.arg("perf").args(test).arg(disguised(server).to_string()).args(of_client).args(patience);
    command.args(["-d", &format!("udp:{client}")]);
    [Running::start(&mut command).finish(60), serving.finish(60)]
}

#[test]
fn two_sides_that_fit_end_with_success_and_without_a_warning() {
    within(100, || {
        for (test, options) in [
            (["write", "bw"], &["-n", "50"][..]),
            (["write", "bw"], &["-n", "50", "-b"]),
            (["write", "bw"], &["-n", "5", "-a"]),
            (["write", "bw"], &["-n", "50", "-c", "UC", "-s", "100"]),
            (["read", "bw"], &["-n", "50", "-b", "-s", "4096"]),
            (["atomic", "bw"], &["-n", "50"]),
            // An original repeats the contents of each buffer; this program does not.
            (["send", "bw"], &["-n", "5", "-s", "2"]),
            (["read", "lat"], &["-n", "50"]),
        ] {
            for finished in meet(&test, options, options) {
                assert!(finished.success && finished.stderr.is_empty(), "{test:?} {options:?}: {finished:?}");
            }
        }
    });
}

/// Regression: WRITEs of UC are not acknowledged, so the final blocks arrive before delayed WRITEs. The
/// server mistook these for messages that the client had sent after its end.
#[test]
fn messages_without_acknowledgements_that_come_after_the_blocks_are_no_mistake() {
    within(100, || {
        for (options, delay) in [(["-n", "50"], "delay=10ms"), (["-n", "50"], "delay=15ms@50%")] {
            let options = [&options[..], &["-c", "UC", "-s", "100", "--fault", delay]].concat();
            for finished in meet(&["write", "bw"], &options, &options) {
                assert!(finished.success && finished.stderr.is_empty(), "{options:?}: {finished:?}");
            }
            let both = [&options[..], &["-b"]].concat();
            for finished in meet(&["write", "bw"], &both, &both) {
                assert!(finished.success && finished.stderr.is_empty(), "{both:?}: {finished:?}");
            }
        }
    });
}

/// Regression: both sides exited with success, and one of them printed half of a test.
#[test]
fn both_directions_on_one_side_only_are_named() {
    within(100, || {
        let (both, one) = (["-n", "50", "-b", "-s", "4096"], ["-n", "50", "-s", "4096"]);
        for verb in ["write", "read", "atomic"] {
            let (both, one) = if verb == "atomic" { (&both[..3], &one[..2]) } else { (&both[..], &one[..]) };
            for (of_client, of_server) in [(both, one), (one, both)] {
                let sides = meet(&[verb, "bw"], of_client, of_server);
                assert!(sides.iter().all(|side| !side.success), "{verb}, client {of_client:?}: {sides:?}");
                // The server notices first. If it has left, the client reports that instead.
                let named = "only one of the two sides has -b";
                assert!(sides[1].stderr.contains(named), "{verb}, client {of_client:?}: {sides:?}");
            }
        }
    });
}

/// Regression: a side with one size exited with success, regardless of later messages of the other side.
#[test]
fn all_sizes_on_one_side_only_are_named() {
    within(100, || {
        // The first of all sizes is 2 bytes, the last one is 8 MiB.
        let all = ["-n", "5", "-a"];
        let [client, server] = meet(&["write", "bw"], &all, &["-n", "5", "-s", "8388608"]);
        assert!(!server.success && server.stderr.contains("only one of the two sides has -a"), "{server:?}");
        drop(client);
        let [_, server] = meet(&["write", "bw"], &["-n", "5", "-s", "65536"], &all);
        assert!(!server.success && server.stderr.contains("does not measure"), "{server:?}");
        let [_, server] = meet(&["write", "bw"], &["-n", "5", "-s", "8388608"], &all);
        assert!(!server.success && server.stderr.contains("only one of the two sides has -a"), "{server:?}");
        let [_, server] = meet(&["send", "bw"], &all, &["-n", "5", "-s", "2"]);
        assert!(!server.success && server.stderr.contains("only one of the two sides has -a"), "{server:?}");
        let [client, _] = meet(&["send", "bw"], &["-n", "5", "-s", "2"], &all);
        assert!(client.stderr.contains("check whether only one of the two sides has -a"), "{client:?}");
    });
}
