//! TCP between two hosts, over a wire that may lose frames.

use super::*;
use crate::TcpId;
use std::net::SocketAddr;

/// Two hosts and their time.
struct Pair {
    near: OwnHost,
    far: OwnHost,
    now: Instant,
    /// One of this number of frames is lost; 0 loses none.
    loses_each: usize,
    frames: usize,
}

const FAR: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 9);

impl Pair {
    fn new() -> Self {
        let far = HostConfig {
            mac: MacAddr([2, 0, 0, 0, 0, 9]),
            addresses: vec![(FAR.into(), 24), ("2001:db8::9".parse().unwrap(), 64)],
            seed: 8,
            ..config()
        };
        Self { near: OwnHost::new(&config()), far: OwnHost::new(&far), now: at(0), loses_each: 0, frames: 0 }
    }

    /// Transfers frames until none is left.
    fn carry(&mut self) {
        for _ in 0..1000 {
            let there = sent(&mut self.near, self.now);
            let back = sent(&mut self.far, self.now);
            if there.is_empty() && back.is_empty() {
                return;
            }
            for (frames, to) in [(there, &mut self.far), (back, &mut self.near)] {
                for frame in frames {
                    self.frames += 1;
                    if self.loses_each == 0 || !self.frames.is_multiple_of(self.loses_each) {
                        give(to, self.now, &frame);
                    }
                }
            }
        }
        panic!("they talk for ever");
    }

    /// Transfers frames, and advances the time to the next deadline, but at most 100 ms, because the programs
    /// on both hosts continue.
    fn step(&mut self) {
        self.carry();
        let next = [self.near.deadline(), self.far.deadline()].into_iter().flatten().min();
        let (soonest, latest) = (self.now.plus_nanos(1_000_000), self.now.plus_nanos(100_000_000));
        self.now = next.unwrap_or(latest).clamp(soonest, latest);
    }

    /// Connects near to far; returns both ends.
    #[track_caller]
    fn connect(&mut self, to: IpAddr) -> (TcpId, TcpId) {
        let (listening, port) = self.far.listen(7471).unwrap();
        assert_eq!(port, 7471);
        let near = self.near.connect(self.now, SocketAddr::new(to, port)).unwrap();
        for _ in 0..100 {
            self.step();
            if let Ok((far, peer)) = self.far.accept(listening) {
                self.carry();
                assert!(self.near.check_connected(self.now, near).is_ok());
                assert!(self.near.addresses().contains(&peer.ip()), "{peer}");
                return (near, far);
            }
        }
        panic!("no connection");
    }
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|place| (place * 31 + place / 251) as u8).collect()
}

/// Sends `bytes` from `near` and returns the received bytes.
fn transfer(pair: &mut Pair, near: TcpId, far: TcpId, bytes: &[u8]) -> Vec<u8> {
    let (mut written, mut read, mut buffer) = (0, Vec::new(), vec![0; 70_000]);
    for _ in 0..100_000 {
        while let Ok(len) = pair.near.write(near, &bytes[written..]) {
            written += len;
            if len == 0 {
                break;
            }
        }
        pair.step();
        while let Ok(len) = pair.far.read(far, &mut buffer) {
            assert_ne!(len, 0, "the connection is open");
            read.extend(&buffer[..len]);
        }
        if read.len() >= bytes.len() {
            return read;
        }
    }
    panic!("stuck at {} of {} bytes", read.len(), bytes.len());
}

#[test]
fn a_megabyte_goes_through_and_the_end_is_seen() {
    for to in [IpAddr::V4(FAR), "2001:db8::9".parse().unwrap()] {
        let mut pair = Pair::new();
        let (near, far) = pair.connect(to);
        let bytes = pattern(1 << 20);
        assert!(transfer(&mut pair, near, far, &bytes) == bytes, "to {to}");
        assert!(pair.now < at(60_000), "it took {}", pair.now);
        assert!(!pair.far.is_readable(far));
        assert_eq!(pair.near.unacknowledged(near), 0);
        pair.near.close(near);
        pair.carry();
        assert!(pair.far.is_readable(far));
        assert_eq!(pair.far.read(far, &mut [0; 9]).unwrap(), 0);
        pair.far.close(far);
        assert_eq!(pair.near.read(near, &mut [0; 9]).unwrap_err().kind(), io::ErrorKind::NotConnected);
    }
}

#[test]
fn lost_frames_are_sent_again() {
    let mut pair = Pair::new();
    let (near, far) = pair.connect(FAR.into());
    pair.loses_each = 13;
    let bytes = pattern(300_000);
    assert!(transfer(&mut pair, near, far, &bytes) == bytes);
}

#[test]
fn nobody_listens_nobody_is_there_and_no_way_leads_there() {
    let mut pair = Pair::new();
    let error = |pair: &mut Pair, id| pair.near.check_connected(pair.now, id).unwrap_err();
    let refused = pair.near.connect(pair.now, SocketAddr::new(FAR.into(), 9)).unwrap();
    assert_eq!(error(&mut pair, refused).kind(), io::ErrorKind::WouldBlock);
    pair.step();
    assert_eq!(error(&mut pair, refused).kind(), io::ErrorKind::ConnectionRefused);
    pair.near.close(refused);

    let silent =
        pair.near.connect(pair.now, SocketAddr::new(Ipv4Addr::new(198, 18, 0, 77).into(), 9)).unwrap();
    let started = pair.now;
    while pair.now.since(started) < Duration::from_secs(10) {
        if error(&mut pair, silent).kind() == io::ErrorKind::HostUnreachable {
            break;
        }
        pair.step();
    }
    let text = error(&mut pair, silent).to_string();
    assert!(text.contains("198.18.0.77 does not answer"), "{text}");
    assert!(pair.now.since(started) < Duration::from_secs(5));

    let nowhere = SocketAddr::new("2001:db8:9::1".parse().unwrap(), 9);
    let error = pair.near.connect(pair.now, nowhere).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::NetworkUnreachable);
}

#[test]
fn a_port_has_one_listener_and_is_free_again_afterwards() {
    let mut pair = Pair::new();
    let (listening, _) = pair.far.listen(80).unwrap();
    assert_eq!(pair.far.listen(80).unwrap_err().kind(), io::ErrorKind::AddrInUse);
    let (_, free) = pair.far.listen(0).unwrap();
    assert!(free >= 49_152);
    assert_eq!(pair.far.accept(listening).unwrap_err().kind(), io::ErrorKind::WouldBlock);
    pair.far.close(listening);
    assert_eq!(pair.far.accept(listening).unwrap_err().kind(), io::ErrorKind::NotConnected);
    pair.far.listen(80).unwrap();
}

#[test]
fn several_clients_wait_in_line_and_sockets_have_a_limit() {
    let mut pair = Pair::new();
    let (listening, _) = pair.far.listen(80).unwrap();
    let to = SocketAddr::new(FAR.into(), 80);
    let clients: Vec<_> = (0..8).map(|_| pair.near.connect(pair.now, to).unwrap()).collect();
    pair.step();
    pair.step();
    for client in &clients {
        pair.near.check_connected(pair.now, *client).unwrap();
    }
    for _ in &clients {
        pair.far.accept(listening).unwrap();
    }
    assert_eq!(pair.far.accept(listening).unwrap_err().kind(), io::ErrorKind::WouldBlock);

    let mut made = 0;
    while pair.near.connect(pair.now, to).is_ok() {
        made += 1;
        assert!(made < 1000, "no limit");
    }
}

#[test]
fn a_peer_that_vanishes_is_noticed() {
    let mut pair = Pair::new();
    let (near, _) = pair.connect(FAR.into());
    assert_eq!(pair.near.read(near, &mut [0; 9]).unwrap_err().kind(), io::ErrorKind::WouldBlock);
    let vanished = pair.now;
    pair.loses_each = 1;
    while pair.near.read(near, &mut [0; 9]).unwrap_err().kind() == io::ErrorKind::WouldBlock {
        pair.step();
        assert!(pair.now.since(vanished) < Duration::from_secs(60), "not noticed");
    }
    assert_eq!(pair.near.read(near, &mut [0; 9]).unwrap_err().kind(), io::ErrorKind::ConnectionReset);
    assert_eq!(pair.near.write(near, b"hello").unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    assert_eq!(pair.near.unacknowledged(near), 0);
}

#[test]
fn an_idle_connection_stays() {
    let mut pair = Pair::new();
    let (near, far) = pair.connect(FAR.into());
    let started = pair.now;
    while pair.now.since(started) < Duration::from_secs(300) {
        pair.step();
    }
    assert_eq!(transfer(&mut pair, near, far, b"still there"), b"still there");
}

#[test]
fn half_open_connections_block_a_port_for_seconds_only() {
    let mut pair = Pair::new();
    let (listening, _) = pair.far.listen(80).unwrap();
    pair.carry();
    let to = SocketAddr::new(FAR.into(), 80);
    // The answers get lost, so eight connections stay half-open.
    for _ in 0..8 {
        pair.near.connect(pair.now, to).unwrap();
    }
    for frame in sent(&mut pair.near, pair.now) {
        give(&mut pair.far, pair.now, &frame);
    }
    for _ in 0..2 {
        for frame in sent(&mut pair.far, pair.now) {
            // ARP frames arrive.
            if frame[12..14] == [8, 6] {
                give(&mut pair.near, pair.now, &frame);
            }
        }
        for frame in sent(&mut pair.near, pair.now) {
            give(&mut pair.far, pair.now, &frame);
        }
    }
    let begun = pair.now;
    // These peers stay silent, and another one connects.
    pair.near = OwnHost::new(&HostConfig {
        mac: MacAddr([2, 0, 0, 0, 0, 5]),
        addresses: vec![(Ipv4Addr::new(198, 18, 0, 5).into(), 24)],
        ..config()
    });
    let late = pair.near.connect(pair.now, to).unwrap();
    pair.step();
    let refused = pair.near.check_connected(pair.now, late).unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused, "all places are taken");
    while pair.now.since(begun) < Duration::from_secs(6) {
        pair.step();
    }
    let later = pair.near.connect(pair.now, to).unwrap();
    pair.step();
    pair.near.check_connected(pair.now, later).unwrap();
    pair.far.accept(listening).unwrap();
}

#[test]
fn an_established_connection_may_wait_long_to_be_accepted() {
    let mut pair = Pair::new();
    let (listening, _) = pair.far.listen(80).unwrap();
    let client = pair.near.connect(pair.now, SocketAddr::new(FAR.into(), 80)).unwrap();
    let started = pair.now;
    while pair.now.since(started) < Duration::from_secs(60) {
        pair.step();
    }
    let (accepted, _) = pair.far.accept(listening).unwrap();
    assert_eq!(transfer(&mut pair, client, accepted, b"patience"), b"patience");
}
