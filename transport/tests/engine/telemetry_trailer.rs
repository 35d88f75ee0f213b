//! In-band telemetry after the ICRC of datagrams: who sends it, who accepts it, and how packets with it are
//! treated where it is off.

use std::time::Duration;

use crate::common::{Bench, Forge, address};
use roce_packet::{Datagram, Direction, Encapsulation, Opcode, Psn, Telemetry, TelemetryHop};
use roce_sim::direct::Direct;
use roce_sim::pair::{MEMORY_BASE, Settings, Side};
use roce_transport::congestion::Congestion;
use roce_transport::{
    Allowed, Batch, DropReason, EngineConfig, Identification, Instant, QpType, Received, SendFlags, SendOp,
    SendWr, Transmit, TxSlot, Verdict,
};

const LEN: usize = 100_000;
const MEMORY: usize = 1 << 18;

fn config(telemetry: bool, congestion: &str) -> EngineConfig {
    let (congestion, _) = Congestion::parse(congestion).unwrap();
    EngineConfig { telemetry, congestion, ..EngineConfig::from_number(7) }
}

/// Sends one message from A to B and polls both until it is complete. `wire` may change a datagram, or return
/// `false` to drop it. Returns the datagrams with their senders.
fn write(direct: &mut Direct, mut wire: impl FnMut(Side, &mut Vec<u8>) -> bool) -> Vec<(Side, Vec<u8>)> {
    let data: Vec<u8> = (0..LEN).map(|at| (at % 251) as u8).collect();
    let [a, _] = direct.connect(QpType::Rc, &Settings::default());
    direct.write(Side::A, 0, &data);
    let element = direct.host(Side::A).element(0, LEN);
    let rkey = direct.host(Side::B).region.rkey;
    let op = SendOp::Write { remote_addr: MEMORY_BASE + 8, rkey };
    let wr = SendWr { flags: SendFlags::SIGNALED, ..SendWr::new(1, op, std::slice::from_ref(&element)) };
    let now = direct.now;
    direct.host_mut(Side::A).engine.post_send(now, a, &wr).unwrap();
    let (mut sent, mut buffer) = (Vec::new(), vec![0; 8192]);
    for _ in 0..1_000_000 {
        direct.now = direct.now.plus_nanos(1_000);
        let now = direct.now;
        for side in [Side::A, Side::B] {
            direct.host_mut(side).engine.handle_timeout(now, Duration::ZERO);
            while let Some(transmit) =
                direct.host_mut(side).engine.poll_transmit(now, &mut TxSlot::new(&mut buffer), Allowed::All)
            {
                let mut bytes = buffer[..transmit.len].to_vec();
                sent.push((side, bytes.clone()));
                if wire(side, &mut bytes) {
                    let identification = Identification::ABSENT;
                    let received = Received::whole(transmit.path, identification, &bytes);
                    direct.host_mut(side.other()).engine.handle(now, &received);
                }
            }
        }
        let mut completions = [roce_transport::Wc::default(); 4];
        let cq = direct.host(Side::A).cq;
        if direct.host_mut(Side::A).engine.poll_cq(cq, &mut completions).unwrap() > 0 {
            assert_eq!(completions[0].status, roce_transport::WcStatus::Success);
            assert!(direct.read(Side::B, 8, LEN) == data, "the data is that of the sender");
            return sent;
        }
    }
    panic!("the message does not end");
}

fn trailer(bytes: &[u8]) -> Option<(&[u8], Telemetry)> {
    Telemetry::split_off(bytes, &[]).map(|(rest, _, telemetry)| (rest, telemetry))
}

#[test]
fn data_and_acknowledgements_have_a_trailer_where_it_is_on() {
    let mut direct = Direct::new(&config(true, "hpcc"), MEMORY);
    let hop = |count: u64| TelemetryHop::new(1_000_000_000, 1_000 * count, 1_106 * count, 6_400);
    let mut count = 0;
    let sent = write(&mut direct, |from, bytes| {
        if from == Side::A {
            count += 1;
            let at = bytes.len() - Telemetry::LEN;
            let mut telemetry = Telemetry::parse(bytes[at..].first_chunk().unwrap()).unwrap();
            telemetry.push(hop(count), 1);
            bytes[at..].copy_from_slice(&telemetry.emit());
        }
        true
    });
    let mut echoed = 0;
    for (from, bytes) in &sent {
        let (rest, telemetry) = trailer(bytes).expect("a trailer");
        let datagram = Datagram::parse(rest, &[]).unwrap();
        assert_eq!(datagram.info().direction == Direction::Request, *from == Side::A);
        // The switch came after the sender: only the hop that it wrote came back.
        match from {
            Side::A => assert_eq!(telemetry, Telemetry::default()),
            Side::B => {
                echoed += 1;
                assert_eq!(telemetry.emit()[0], 0x81);
                assert_eq!(telemetry.hops()[0].queue_bytes(), 6_400);
            }
        }
    }
    assert!(echoed > 0 && count as usize == LEN.div_ceil(1024), "{echoed} {count}");
    for side in [Side::A, Side::B] {
        let counters = direct.host(side).engine.counters();
        assert_eq!((counters.dropped(), counters.rx_telemetry_refused), (0, 0));
    }
}

/// The receiver does not need an algorithm of its own; the sender sends telemetry only if its algorithm uses
/// it.
#[test]
fn the_algorithm_of_the_sender_decides() {
    for (congestion, has) in [("powertcp", true), ("none", false), ("dcqcn", false)] {
        let sent = write(&mut Direct::new(&config(true, congestion), MEMORY), |_, _| true);
        assert!(
            sent.iter().all(|(_, bytes)| if has { trailer(bytes).is_some() } else { is_bare(bytes) }),
            "{congestion}"
        );
    }
    let off = write(&mut Direct::new(&config(false, "hpcc"), MEMORY), |_, _| true);
    assert!(off.iter().all(|(_, bytes)| is_bare(bytes)));
}

/// Returns whether a datagram has no trailer. The payload may look like a trailer, so the length decides.
fn is_bare(bytes: &[u8]) -> bool {
    Datagram::parse(bytes, &[]).is_ok_and(|datagram| datagram.payload_len() <= 1_024)
}

/// The ICRC does not cover the trailer. Damage that makes the trailer invalid is reported as a wrong ICRC, or
/// as trailing bytes of an acknowledgement.
#[test]
fn a_damaged_trailer_costs_a_packet_and_no_data() {
    let mut direct = Direct::new(&config(true, "hpcc"), MEMORY);
    let mut count = 0;
    write(&mut direct, |_, bytes| {
        count += 1;
        if count % 40 == 0 {
            // An impossible number of hops.
            let at = bytes.len() - Telemetry::LEN;
            bytes[at] ^= 6;
        }
        true
    });
    let damaged = [Side::A, Side::B].map(|side| {
        let counters = direct.host(side).engine.counters();
        counters.rx_icrc_encapsulated + counters.drop_malformed
    });
    assert!(damaged.iter().sum::<u64>() == count / 40 && damaged[1] > 0, "{damaged:?} {count}");
}

fn forged(bench: &Bench, offset: u32) -> Forge {
    bench
        .forge(Side::B, Opcode::RC_RDMA_WRITE_ONLY, Psn::new(0x1000 + offset))
        .reth(address(0), bench.host(Side::B).rkey(), 8)
        .payload(b"the data")
}

fn with_trailer(mut datagram: Vec<u8>, hops: u64) -> Vec<u8> {
    let mut telemetry = Telemetry::default();
    (0..hops).for_each(|hop| telemetry.push(TelemetryHop::new(1_000_000_000, hop, hop * 64, hop), 1));
    datagram.extend(telemetry.emit());
    datagram
}

/// With and without a trailer, for each knowledge that devices have of the Identification, in one slice or
/// two.
#[test]
fn where_it_is_on_both_kinds_arrive() {
    let unknown = |hint| Identification::Unknown { hint };
    let known = |identification| Identification::Known { identification, dont_fragment: true };
    let cases = [
        (0, unknown(0)),
        (5, unknown(5)),
        (5, unknown(0)),
        (77, unknown(3)),
        (0, known(0)),
        (900, known(900)),
    ];
    let mut bench = Bench::with_config(
        QpType::Rc,
        &crate::common::settings(),
        EngineConfig { telemetry: true, ..config(true, "none") },
    );
    // The bench parses sent packets and does not support trailers.
    bench.blocked = [true; 2];
    let mut offset = 0;
    for (identification, seen) in cases {
        for hops in [None, Some(0), Some(1), Some(5), Some(7)] {
            for behind in [0, 4, 20, 53, 200] {
                let forge = forged(&bench, offset);
                let datagram = forge.build_with(identification);
                let bytes = hops.map_or(datagram.clone(), |hops| with_trailer(datagram, hops));
                // All headers are in the first slice.
                let (head, tail) = bytes.split_at(bytes.len().saturating_sub(behind).max(28));
                let received = Received::in_pieces(forge.path, seen, [head, tail]);
                assert_eq!(
                    bench.deliver(Side::B, &received),
                    Verdict::Handled,
                    "{identification} {seen:?} {hops:?}"
                );
                offset += 1;
            }
        }
    }
    assert_eq!(bench.expected(Side::B), Psn::new(0x1000 + offset));
}

/// Where telemetry is off, a trailer is a wrong ICRC with a separate counter. This holds for every
/// encapsulation, and for requests whose opcode fixes their length.
#[test]
fn where_it_is_off_a_trailer_is_a_wrong_icrc() {
    let mut bench = Bench::rc();
    let write = forged(&bench, 0);
    let read = bench.forge(Side::B, Opcode::RC_RDMA_READ_REQUEST, Psn::new(0x1000)).reth(
        address(0),
        bench.host(Side::B).rkey(),
        8,
    );
    let mut count = 0;
    for forge in [&write, &read] {
        for encapsulation in [Encapsulation::RoceV2, Encapsulation::RoceV1] {
            let mut forge = forge.clone();
            forge.path.encapsulation = encapsulation;
            let bytes = with_trailer(forge.build(), 1);
            assert_eq!(bench.inject(Side::B, forge.path, &bytes), Verdict::Dropped(DropReason::BadIcrc));
            count += 1;
            assert_eq!(bench.counter(Side::B, "rx_telemetry_refused"), count);
        }
    }
    // Damage after the BTH is not telemetry.
    let mut bytes = with_trailer(write.build(), 1);
    bytes[40] ^= 1;
    assert_eq!(bench.inject(Side::B, write.path, &bytes), Verdict::Dropped(DropReason::BadIcrc));
    assert_eq!(bench.counter(Side::B, "rx_telemetry_refused"), count);
    assert_eq!(bench.inject(Side::B, write.path, &write.build()), Verdict::Handled);
}

/// Regression: for an unknown peer and a hidden Identification, only 16 bits of the ICRC were compared. One
/// datagram with a trailer in 65,536 was taken for one with 52 more bytes of payload.
#[test]
fn no_trailer_is_taken_for_payload() {
    const NUMBER: u64 = 400_000;
    let mut bench = Bench::rc();
    let forge = bench.forge(Side::B, Opcode::RC_SEND_ONLY, Psn::new(0x1000)).payload(b"data");
    let bytes = forge.build();
    for number in 0..NUMBER {
        let mut telemetry = Telemetry::default();
        telemetry.push(TelemetryHop::new(1_000_000_000, number * 7_919, number * 64, 0), 1);
        let bytes = [&bytes[..], &telemetry.emit()].concat();
        let identification = Identification::Unknown { hint: 0 };
        let received = Received::whole(forge.path, identification, &bytes);
        let verdict = bench.deliver(Side::B, &received);
        assert_eq!(verdict, Verdict::Dropped(DropReason::BadIcrc), "number {number}");
    }
    assert_eq!(bench.counter(Side::B, "rx_telemetry_refused"), NUMBER);
}

/// Datagrams with a trailer form superpackets, whose size includes the trailers. A datagram that does not fit
/// has the ICRC of the first one of a new superpacket.
#[test]
fn datagrams_with_a_trailer_form_superpackets() {
    let mut direct = Direct::new(&config(true, "hpcc,base_rtt=1000000"), MEMORY);
    let [a, _] = direct.connect(QpType::Rc, &Settings::default());
    let element = direct.host(Side::A).element(0, 200_000);
    let rkey = direct.host(Side::B).region.rkey;
    let op = SendOp::Write { remote_addr: MEMORY_BASE, rkey };
    let now = Instant::from_nanos(1_000);
    let wr = SendWr::new(1, op, std::slice::from_ref(&element));
    direct.host_mut(Side::A).engine.post_send(now, a, &wr).unwrap();
    // The superpacket has room for 59 datagrams of 1,092 bytes. Without their trailers, 60 would fit.
    let (mut batch, mut runs, mut buffer) = (Batch::EMPTY, Vec::new(), vec![0; 8192]);
    for step in 0..400 {
        let now = now.plus_nanos(step * 1_000);
        let mut slot = TxSlot { buffer: &mut buffer, batch: &batch };
        let Some(transmit) = direct.host_mut(Side::A).engine.poll_transmit(now, &mut slot, Allowed::All)
        else {
            continue;
        };
        let Transmit { path, identification, len, .. } = transmit;
        let identification_of = Identification::Known { identification, dont_fragment: true };
        let received = Received::whole(path, identification_of, &buffer[..len]);
        assert_eq!(direct.host_mut(Side::B).engine.handle(now, &received), Verdict::Handled);
        if batch.accepts(&transmit) {
            batch.push(&transmit);
            *runs.last_mut().unwrap() += 1;
        } else {
            assert_eq!(identification, 0, "it begins a superpacket");
            batch = Batch::start(&transmit, 64, 65_507);
            runs.push(1);
        }
    }
    // The first packet is longer because of its RETH.
    assert_eq!(runs, [2, 59, 59, 59, 17]);
}

/// Regression: telemetry of dropped acknowledgements, for packets that were never sent, changed the rate.
#[test]
fn telemetry_of_a_dropped_acknowledgement_changes_no_rate() {
    let mut bench = Bench::with_config(QpType::Rc, &crate::common::settings(), config(true, "hpcc"));
    let before = bench.host(Side::A).engine.congestion(bench.now, bench.a);
    assert!(before.is_some());
    for count in 1..6_u64 {
        let path = bench.path(Side::B);
        let forged = bench.forge(Side::A, Opcode::RC_ACKNOWLEDGE, Psn::new(0x12_3456)).aeth(0x1f, 0);
        let mut bytes = forged.build();
        let mut telemetry = Telemetry::default();
        // A line that sends four times its rate.
        telemetry.push(TelemetryHop::new(1_000_000_000, count * 1_000, count * 500, 60_000), 1);
        bytes.extend(telemetry.echo().emit());
        let identification = Identification::Unknown { hint: 0 };
        let verdict = bench.deliver(Side::A, &Received::whole(path, identification, &bytes));
        assert_eq!(verdict, Verdict::Dropped(DropReason::UnsentPsn));
        bench.now = bench.now.plus_nanos(1_000);
    }
    assert_eq!(bench.host(Side::A).engine.congestion(bench.now, bench.a), before);
}
