//! Tests with faulty wires and hostile hosts.

use std::net::{IpAddr, UdpSocket};
use std::path::Path as FilePath;

use roce::device::OpenOptions;
use roce::device::pcap::CaptureFile;
use roce::verbs::*;
use roce_capture::CaptureReader;
use roce_fault::FaultInjector;
use roce_packet::Frame;

use crate::common::within;
use crate::world::*;

fn injector(plan: &str, seed: u64) -> Option<FaultInjector> {
    Some(FaultInjector::new(plan.parse().unwrap(), seed))
}

fn capture(path: &FilePath) -> Option<Box<dyn roce::device::pcap::FrameSink>> {
    let [file] = CaptureFile::create(path, &["near"]).unwrap().try_into().ok().unwrap();
    Some(Box::new(file))
}

/// Runs SENDs, WRITEs, READs and atomics; verifies the contents each time.
fn exercise(near: &Side, far: &Side, rounds: u64) {
    let mut sum = 0;
    far.region.write(0, &[0; 8]).unwrap();
    for round in 0..rounds {
        let len = 1 + (round as usize * 997) % 20_000;
        near.fill(1000, len, round);
        let elements = [near.region.element(1000..1000 + len)];
        far.receive(round, 30_000, len);
        near.post(1, SendOp::Send, &elements);
        near.post(2, far.write_op(60_000), &elements);
        near.post(3, far.read_op(60_000), &[near.region.element(90_000..90_000 + len)]);
        let add = round + 1;
        let (remote_addr, rkey) = (far.region.addr(), far.region.rkey());
        near.post(4, SendOp::FetchAdd { remote_addr, rkey, add }, &[near.region.element(8..16)]);
        for wr_id in 1..=4 {
            assert_eq!(succeed(&near.send_cq).wr_id, wr_id);
        }
        let wc = succeed(&far.recv_cq);
        assert_eq!((wc.wr_id, wc.byte_len as usize), (round, len));
        far.check(30_000, len, round);
        far.check(60_000, len, round);
        near.check(90_000, len, round);
        let mut found = [0; 8];
        near.region.read(8, &mut found).unwrap();
        assert_eq!(u64::from_ne_bytes(found), sum, "each atomic is carried out once");
        sum += add;
    }
    let mut found = [0; 8];
    far.region.read(0, &mut found).unwrap();
    assert_eq!(u64::from_ne_bytes(found), sum);
}

#[test]
fn no_wrong_byte_whatever_the_wire_does() {
    const PLAN: &str = "drop=1%,reorder=1%,corrupt=1%,dup=1%,delay=10us-200us@5%";
    within(120, || {
        for (number, wire) in Wire::ALL.into_iter().enumerate() {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("near.pcapng");
            let seed = number as u64;
            let options = |seed, capture| OpenOptions {
                transmit_faults: injector(PLAN, seed),
                receive_faults: injector(PLAN, seed + 100),
                capture,
            };
            let near = Context::builder().options(options(seed, capture(&path)));
            let far = Context::builder().options(options(seed + 7, None));
            let Some(contexts) = wire.open_with(near, far) else { continue };
            // Eight times 134 ms, because a thread may not run for a while on a busy machine.
            let options = ConnectOptions::default().timeout(15);
            let (near, far) = connect(contexts, QpType::Rc, &options);
            exercise(&near, &far, 60);
            let (own, theirs) = (near.context.counters(), far.context.counters());
            assert!(own.retransmitted_packets > 0 && theirs.rx_icrc_encapsulated > 0, "{own:?} {theirs:?}");
            assert!(theirs.duplicate_request > 0 && theirs.out_of_sequence > 0, "{theirs:?}");
            let recorded = near.counter("pcap_sent") + near.counter("pcap_received");
            assert_eq!((near.counter("pcap_unframed"), near.counter("pcap_write_errors")), (0, 0));
            drop((near, far));
            check_capture(&path, recorded);
        }
    });
}

/// Checks that each packet is a frame, and that exactly the damaged packets have a wrong ICRC.
fn check_capture(path: &FilePath, recorded: u64) {
    let mut reader = CaptureReader::open(path).unwrap();
    let (mut packets, mut bad) = (0, 0);
    while let Some(packet) = reader.next_packet() {
        let packet = packet.unwrap();
        packets += 1;
        match Frame::parse(packet.bytes).map(|frame| frame.verify_icrc().is_ok_and(|check| check.is_good())) {
            Ok(true) => {}
            Ok(false) | Err(_) => bad += 1,
        }
    }
    assert!(packets >= recorded && recorded > 1000, "{packets} of {recorded}");
    assert!(bad > 0 && bad * 20 < packets, "{bad} of {packets} are damaged");
}

#[test]
fn a_tenth_of_the_packets_lost_is_only_slow() {
    within(60, || {
        let options = || OpenOptions { transmit_faults: injector("drop=10%", 3), ..OpenOptions::default() };
        let (near, far) = (Context::builder().options(options()), Context::builder().options(options()));
        let contexts = Wire::UdpV4.open_with(near, far).unwrap();
        // Eight times 134 ms, because a thread may not run for a while on a busy machine.
        let options = ConnectOptions::default().timeout(15);
        let (near, far) = connect(contexts, QpType::Rc, &options);
        exercise(&near, &far, 6);
    });
}

#[test]
fn unreliable_messages_are_whole_or_missing() {
    within(60, || {
        let options = OpenOptions { transmit_faults: injector("drop=3%", 3), ..OpenOptions::default() };
        let near = Context::builder().options(options);
        let contexts = Wire::UdpV4.open_with(near, Context::builder()).unwrap();
        let (near, far) = connect(contexts, QpType::Uc, &ConnectOptions::default());
        let (len, count) = (5000, 100_u32);
        for number in 0..32 {
            far.receive(number, number as usize * len, len);
        }
        let (mut arrived, mut number) = (0, 0);
        while number < count {
            near.fill(200_000, len, u64::from(number));
            let op = SendOp::SendWithImm(ImmDt(number.to_be_bytes()));
            near.carry_out(1, op, &[near.region.element(200_000..200_000 + len)]);
            number += 1;
            let mut done = [Wc::default(); 8];
            let taken = far.recv_cq.wait(&mut done, Some(std::time::Duration::from_millis(3))).unwrap_or(0);
            for wc in &done[..taken] {
                assert_eq!(wc.status, WcStatus::Success);
                let at = wc.wr_id as usize * len;
                far.check(at, len, u64::from(u32::from_be_bytes(wc.imm.0)));
                far.receive(wc.wr_id, at, len);
                arrived += 1;
            }
        }
        assert!(arrived > count / 2 && arrived < count, "{arrived} of {count} arrived");
    });
}

#[test]
fn a_flood_of_garbage_disturbs_nothing_and_is_counted() {
    within(60, || {
        // On a shared address, the kernel drops packets for slots that no process has.
        let alone = || Context::open(&format!("udp:{},share=off", crate::common::own_address())).unwrap();
        let (near, far) = connect((alone(), alone()), QpType::Rc, &ConnectOptions::default());
        let target = far.context.address().unwrap();
        let IpAddr::V4(address) = crate::common::own_address().into() else { unreachable!() };
        let socket = UdpSocket::bind((address, 0)).unwrap();
        let sent = std::thread::scope(|scope| {
            let flood = scope.spawn(move || {
                let mut random = fastrand::Rng::with_seed(9);
                let mut sent = 0_u64;
                for number in 0..5000 {
                    let len = random.usize(..1500);
                    let mut bytes: Vec<u8> = (0..len).map(|_| random.u8(..)).collect();
                    // Every second datagram begins like a real packet.
                    if number % 2 == 0 && len > 16 {
                        bytes[..4].copy_from_slice(&[random.u8(..0x18), 0x40, 0xff, 0xff]);
                    }
                    sent += u64::from(socket.send_to(&bytes, (target, 4791)).is_ok());
                    if number % 50 == 0 {
                        std::thread::sleep(std::time::Duration::from_millis(1));
                    }
                }
                sent
            });
            while !flood.is_finished() {
                exercise(&near, &far, 5);
            }
            flood.join().unwrap()
        });
        exercise(&near, &far, 5);
        let theirs = far.context.counters();
        let counted = theirs.dropped() + far.counter("udp_rx_overflow") + far.counter("udp_rx_too_long");
        assert!(sent > 4000 && counted >= sent, "{counted} of {sent} counted: {theirs:?}");
        assert!(theirs.drop_short > 0 && theirs.drop_unknown_opcode > 0, "{theirs:?}");
    });
}

#[test]
fn packets_for_the_right_queue_pair_from_a_stranger_change_nothing() {
    within(60, || {
        let (near, far) = rc_pair();
        far.fill(0, 4096, 5);
        // A WRITE with the right numbers and ICRC, but from an address that is not the peer's.
        let stranger = Context::builder().open(&format!("udp:{}", crate::common::own_address())).unwrap();
        let stranger = Side::new(stranger, QpType::Rc);
        let endpoint = far.qp.endpoint().unwrap();
        let next_psn = near.qp.endpoint().unwrap().psn;
        stranger
            .qp
            .connect(&Endpoint { psn: 0, ..endpoint }, &ConnectOptions::default().timeout(8).retry_cnt(1))
            .unwrap();
        assert_ne!(stranger.qp.endpoint().unwrap().psn, next_psn);
        stranger.post(1, far.write_op(0), &[stranger.region.element(0..4096)]);
        fail(&stranger.send_cq, WcStatus::RetryExceededError);
        far.check(0, 4096, 5);
        exercise(&near, &far, 3);
        // By now the other side has processed the packets that arrived before.
        assert!(far.counter("drop_bad_address") > 0);
    });
}
