//! The number of packets that a blind attacker needs: the tables of `docs/explanation/security.md`, computed
//! from the numbers that the engine draws and accepts.

use std::sync::Arc;

use crate::common::Bench;
use roce_packet::{Opcode, Psn, Qpn};
use roce_sim::pair::Side;
use roce_transport::{
    Access, CreateQpError, Engine, EngineConfig, ProcessSlot, QpCapabilities, QpInit, QpType, SendFlags,
    SendWr, Verdict, WordMemory,
};

const PAGE: &str = include_str!("../../../docs/explanation/security.md");
/// The row for queue pair numbers with a process slot of 10 bits.
const LONG_SLOTS: &str = "queue pair number in slots 64 to 831";
const PER_SECOND: u128 = 1_000_000;

/// Returns the bits in which numbers differ.
fn random_bits(numbers: &[u32]) -> u32 {
    numbers.iter().fold(0, |bits, number| bits | number ^ numbers[0])
}

/// Returns the attributes of small queue pairs of an engine.
fn init_in(engine: &mut Engine) -> QpInit {
    let pd = engine.allocate_pd().unwrap();
    let cq = engine.create_cq(1).unwrap();
    let capabilities =
        QpCapabilities { max_send_wr: 1, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline: 0 };
    QpInit { qp_type: QpType::Rc, pd, send_cq: cq, recv_cq: cq, srq: None, capabilities, signal_all: false }
}

/// Returns numbers of queue pairs of an engine with this slot.
fn qpns(process_slot: ProcessSlot) -> Vec<u32> {
    let mut engine = Engine::new(EngineConfig { process_slot, ..EngineConfig::from_number(9) });
    let init = init_in(&mut engine);
    (0..64).map(|_| engine.create_qp(&init).unwrap().get()).collect()
}

fn keys() -> Vec<u32> {
    let mut engine = Engine::new(EngineConfig::from_number(9));
    let pd = engine.allocate_pd().unwrap();
    let memory = Arc::new(WordMemory::new(8));
    let key = |_| engine.register(pd, 0, memory.clone(), Access::empty()).unwrap().rkey.0;
    (0..64).map(key).collect()
}

/// Returns the other cells of the page's table row that begins with this cell.
#[track_caller]
fn row(first: &str) -> Vec<&'static str> {
    let row = PAGE.lines().find_map(|line| line.strip_prefix(&format!("| {first} | ")));
    row.unwrap_or_else(|| panic!("docs/explanation/security.md has no row {first:?}"))
        .trim_end_matches(" |")
        .split(" | ")
        .collect()
}

#[test]
fn the_page_states_the_bits_that_are_drawn() {
    for (slot, name) in [
        (0, "queue pair number"),
        (1, "queue pair number"),
        (63, "queue pair number"),
        (64, LONG_SLOTS),
        (831, LONG_SLOTS),
    ] {
        let slot = ProcessSlot::new(slot).unwrap();
        let numbers = qpns(slot);
        assert_eq!(random_bits(&numbers).count_ones().to_string(), row(name)[0]);
        assert!(numbers.iter().all(|qpn| ProcessSlot::of(*qpn) == slot), "the rest is the slot");
    }
    // The variant byte is a counter.
    let keys = keys();
    assert_eq!((random_bits(&keys) >> 8).count_ones().to_string(), row("R_Key")[0]);
    assert!(keys.windows(2).all(|pair| pair[1] as u8 == (pair[0] as u8).wrapping_add(1)));
    assert_eq!(Psn::new(u32::MAX).get().count_ones().to_string(), row("PSN that is expected next")[0]);
    let ids = row("communication ID");
    assert_eq!(ids[0], "32");
    let [short, long] = [1, 64].map(|slot| ProcessSlot::new(slot).unwrap().bits_below() + 8);
    assert!(
        ids[1].starts_with(&format!("{short} for")) && ids[1].contains(&format!(", {long} in")),
        "{ids:?}"
    );
}

/// Returns a time as the page writes it, such as "33 ms".
fn time(packets: u128) -> String {
    let millis = packets * 1_000 / PER_SECOND;
    let rounded = |unit: u128| (millis + unit / 2) / unit;
    match millis {
        0..1_000 => format!("{} ms", (packets * 1_000 + PER_SECOND / 2) / PER_SECOND),
        1_000..60_000 => format!("{} s", rounded(1_000)),
        60_000..86_400_000 => format!("{} min", rounded(60_000)),
        _ => format!("{} d", rounded(86_400_000)),
    }
}

fn with_commas(number: u128) -> String {
    let digits = number.to_string();
    let groups: Vec<_> = digits.as_bytes().rchunks(3).rev().collect();
    groups.iter().map(|group| str::from_utf8(group).unwrap()).collect::<Vec<_>>().join(",")
}

/// Counts the PSNs that have an effect on an engine: of acknowledgements while a full window is in flight,
/// and of requests. One packet is sent for each of some thousand PSNs at equal distances, and for all PSNs
/// near the window.
#[test]
fn the_page_states_how_many_packets_a_forger_needs() {
    let qpn_bits: u32 = row("queue pair number")[0].parse().unwrap();
    let psn_bits: u32 = row("PSN that is expected next")[0].parse().unwrap();
    let window = u128::from(EngineConfig::from_number(1).max_outstanding_packets);
    assert_eq!(accepted_answers(), window, "as many PSNs are in flight");
    assert_eq!(accepted_requests(), 1, "one PSN is expected");
    let psns = 1_u128 << psn_bits;
    for (effect, combinations) in [
        ("a queue pair with congestion control slows down, to its minimum rate at most", 1),
        ("the peer sends again what is in flight, once for each gap", 2),
        ("the connection ends while 256 packets are in flight", psns / window),
        ("an idle connection ends, or a SEND arrives that the peer never made", psns),
    ] {
        let of_all = (combinations << qpn_bits) / 2;
        let of_known = (combinations / 2).max(1);
        let expected = [with_commas(of_all), time(of_all), with_commas(of_known), time(of_known)];
        assert_eq!(row(effect)[1..], expected, "{effect}");
    }
    let fewer = qpn_bits - row(LONG_SLOTS)[0].parse::<u32>().unwrap();
    assert_eq!(1 << fewer, 4, "the page says that a quarter of the packets is enough");
    assert!(PAGE.contains("a quarter of the packets of the third column"));
    let key_bits: u32 = row("R_Key")[0].parse().unwrap();
    let bits = qpn_bits + psn_bits + key_bits + 8;
    assert!(row("a WRITE or READ of memory")[1].starts_with(&format!("2^{} ", bits - 1)), "{bits}");
}

/// Returns the number of PSNs of acknowledgements that end a connection whose window is full.
fn accepted_answers() -> u128 {
    let mut accepted = 0;
    for psn in (0x1000 - 40..0x1000 + 300).chain((0..1 << 24).step_by(0x7_0001)) {
        let mut bench = Bench::rc();
        let (element, op) = (bench.host(Side::A).memory_range(0, 300 * crate::common::MTU), bench.write(0));
        let a = bench.a;
        let wr = SendWr { flags: SendFlags::SIGNALED, ..SendWr::new(1, op, std::slice::from_ref(&element)) };
        bench.blocked = [false, true];
        bench.set_script(|_| roce_sim::pair::Action::Drop);
        bench.post_send(Side::A, a, &wr).unwrap();
        bench.collect(Side::A);
        // A NAK: remote access error.
        let forged = bench.forge(Side::A, Opcode::RC_ACKNOWLEDGE, Psn::new(psn)).aeth(0x62, 0);
        accepted += u128::from(bench.arrive(Side::A, &forged).0 == Verdict::Handled);
    }
    accepted
}

/// Returns the number of PSNs of SENDs that are delivered.
fn accepted_requests() -> u128 {
    let mut accepted = 0;
    for psn in (0x1000 - 40..0x1000 + 300).chain((0..1 << 24).step_by(0x7_0001)) {
        let mut bench = Bench::rc();
        bench.receive(1, 0, 8);
        let forged = bench.forge(Side::B, Opcode::RC_SEND_ONLY, Psn::new(psn)).payload(b"forgery!");
        bench.arrive(Side::B, &forged);
        accepted += u128::from(!bench.completions(Side::B).is_empty());
    }
    accepted
}

/// The number of a queue pair cannot be derived from the previous ones.
#[test]
fn numbers_do_not_follow_each_other() {
    let numbers = qpns(ProcessSlot::NONE);
    let steps: std::collections::BTreeSet<_> =
        numbers.windows(2).map(|pair| Qpn::new(pair[1].wrapping_sub(pair[0])).get()).collect();
    assert!(steps.len() > 60, "{steps:?}");
}

/// An engine assigns nearly all numbers of its slot, and it reuses the numbers of removed queue pairs.
#[test]
fn a_slot_has_room_for_as_many_queue_pairs_as_the_settings_say() {
    for (slot, most) in [(63, 65_000), (64, 15_848), (831, 15_848)] {
        let process_slot = ProcessSlot::new(slot).unwrap();
        let mut engine =
            Engine::new(EngineConfig { process_slot, max_qp: usize::MAX, ..EngineConfig::from_number(9) });
        assert_eq!(engine.config().max_qp, most);
        let init = init_in(&mut engine);
        let numbers: std::collections::BTreeSet<_> =
            (0..most).map(|_| engine.create_qp(&init).unwrap()).collect();
        assert_eq!(numbers.len(), most);
        assert!(numbers.iter().all(|qpn| ProcessSlot::of(qpn.get()) == process_slot));
        let error = engine.create_qp(&init).unwrap_err();
        assert_eq!(error, CreateQpError::TooManyQps { limit: most });
        // If nearly all numbers are in use, only those of removed queue pairs are left.
        for qpn in numbers.iter().take(3_000) {
            engine.destroy_qp(*qpn).unwrap();
            engine.create_qp(&init).unwrap();
        }
    }
}
