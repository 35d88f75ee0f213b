//! The operations, each written once for both directions: `starter` posts, and `other` is the responder or
//! receiver.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};

use crate::case::Operation;
use crate::end::{Done, End, GRH, Op, Work, pattern};
use crate::peer::Addresses;

/// Offsets of sent and of arriving messages.
const SOURCE: usize = 0;
const TARGET: usize = 2 << 20;
/// Bytes between two messages, which must not change.
const GUARD: usize = 64;
const GUARD_SEED: u64 = 0x6a7d;

/// The participants, and the time limit.
pub(crate) struct Scene<'a> {
    pub(crate) starter: &'a mut dyn End,
    pub(crate) other: &'a mut dyn End,
    pub(crate) mtu: usize,
    pub(crate) patience: Duration,
    /// Addresses of the starter and of the other end.
    pub(crate) addresses: [IpAddr; 2],
}

/// A message: its offset in source and target, and its length.
#[derive(Clone, Copy, Debug)]
struct Slot {
    offset: usize,
    len: usize,
}

/// Returns the tested lengths: zero, one byte, odd ones, around the path MTU, several packets, many packets.
fn lengths(operation: Operation, mtu: usize) -> Vec<usize> {
    let mut lengths = vec![0, 1, 2, 3, 4, 5, 63, mtu - 1, mtu];
    if !matches!(operation, Operation::UdSend | Operation::UdSendImm) {
        lengths.extend([mtu + 1, 2 * mtu, 3 * mtu + 3, 50_001, 1 << 20]);
    }
    lengths
}

fn slots(lengths: &[usize], header: usize) -> Vec<Slot> {
    let mut offset = GUARD;
    let mut slots = Vec::new();
    for &len in lengths {
        slots.push(Slot { offset, len });
        offset += len + header + GUARD;
    }
    assert!(offset < TARGET, "the messages do not fit");
    slots
}

/// Runs one case without losses. Returns the number of messages.
pub(crate) fn run(operation: Operation, scene: &mut Scene<'_>) -> Result<usize> {
    match operation {
        Operation::RcCas => compare_swap(scene),
        Operation::RcFetchAdd => fetch_add(scene),
        Operation::RcAtomicWrite => atomic_write(scene),
        Operation::RcFlush => flush(scene),
        _ => messages(operation, scene),
    }
}

fn messages(operation: Operation, scene: &mut Scene<'_>) -> Result<usize> {
    let slots = slots(&lengths(operation, scene.mtu), header(operation));
    let is_read = operation == Operation::RcRead;
    for slot in &slots {
        let receiver = if is_read { &mut *scene.starter } else { &mut *scene.other };
        receiver.fill(TARGET + slot.offset - GUARD, GUARD, GUARD_SEED)?;
        receiver.fill(TARGET + slot.offset + slot.len + header(operation), GUARD, GUARD_SEED)?;
    }
    // Messages one after the other, then all at once.
    for (index, slot) in slots.iter().enumerate() {
        let index = index as u64;
        let one = std::slice::from_ref(slot);
        exchange(operation, scene, one, index).with_context(|| format!("{} bytes alone", slot.len))?;
    }
    exchange(operation, scene, &slots, 1000).context("all lengths at once")?;
    for slot in &slots {
        let receiver = if is_read { &mut *scene.starter } else { &mut *scene.other };
        let around = || format!("around a message of {} bytes", slot.len);
        receiver.check(TARGET + slot.offset - GUARD, GUARD, GUARD_SEED).with_context(around)?;
        receiver
            .check(TARGET + slot.offset + slot.len + header(operation), GUARD, GUARD_SEED)
            .with_context(around)?;
    }
    Ok(2 * slots.len())
}

fn header(operation: Operation) -> usize {
    if matches!(operation, Operation::UdSend | Operation::UdSendImm) { GRH } else { 0 }
}

fn op_of(operation: Operation, imm: u32) -> Op {
    match operation {
        Operation::RcSend | Operation::UcSend | Operation::UdSend => Op::Send,
        Operation::RcSendImm | Operation::UcSendImm | Operation::UdSendImm => Op::SendImm(imm),
        Operation::RcWriteImm | Operation::UcWriteImm => Op::WriteImm(imm),
        Operation::RcRead => Op::Read,
        _ => Op::Write,
    }
}

/// Posts one message per slot at once; checks completions and bytes.
fn exchange(operation: Operation, scene: &mut Scene<'_>, slots: &[Slot], round: u64) -> Result<()> {
    let imm = |index: usize| 0xa1b2_0000 | (round as u32) << 8 | index as u32;
    let seed = |index: usize| 1 + (round << 16) + index as u64;
    let is_read = operation == Operation::RcRead;
    for (index, slot) in slots.iter().enumerate() {
        let sender = if is_read { &mut *scene.other } else { &mut *scene.starter };
        sender.fill(SOURCE + slot.offset, slot.len, seed(index))?;
        if operation.takes_receive() {
            // A WRITE with immediate data uses a receive, but none of its bytes.
            let (at, len) = (TARGET + slot.offset, slot.len + header(operation));
            scene.other.receive(index as u64, at, len)?;
        }
    }
    for (index, slot) in slots.iter().enumerate() {
        let [local, remote] = if is_read { [TARGET, SOURCE] } else { [SOURCE, TARGET] };
        let (local, remote) = (local + slot.offset, remote + slot.offset);
        let op = op_of(operation, imm(index));
        scene.starter.post(&Work { wr_id: 500 + index as u64, op, local, len: slot.len, remote })?;
    }
    for index in 0..slots.len() as u64 {
        let done = scene.starter.succeed(scene.patience)?;
        ensure!(done.wr_id == 500 + index && !done.received, "out of order: {done:?} instead of {index}");
    }
    for (index, slot) in slots.iter().enumerate() {
        if operation.takes_receive() {
            let done = scene.other.succeed(scene.patience)?;
            let expected_imm = operation.has_imm().then(|| imm(index));
            check_receive(operation, scene, slot, &done)?;
            ensure!(done.wr_id == index as u64, "out of order: {done:?} instead of {index}");
            ensure!(done.imm == expected_imm, "{done:?} without the immediate data {expected_imm:x?}");
        }
        let receiver = if is_read { &mut *scene.starter } else { &mut *scene.other };
        let at = TARGET + slot.offset + header(operation);
        if operation == Operation::UcWrite {
            // The arrival of this WRITE is not signaled.
            let end = Instant::now() + scene.patience.min(Duration::from_secs(5));
            while receiver.check(at, slot.len, seed(index)).is_err() && Instant::now() < end {
                std::thread::sleep(Duration::from_millis(2));
            }
        }
        receiver.check(at, slot.len, seed(index)).with_context(|| format!("message {index}"))?;
    }
    Ok(())
}

/// Checks length, kind and, for UD, the source address.
fn check_receive(operation: Operation, scene: &mut Scene<'_>, slot: &Slot, done: &Done) -> Result<()> {
    let expected = slot.len + header(operation);
    ensure!(done.received && done.len as usize == expected, "{done:?} instead of {expected} bytes");
    if header(operation) > 0 {
        ensure!(done.grh, "{done:?} without a GRH");
        ensure!(done.src_qp == scene.starter.qpn(), "{done:?} is not from {:#x}", scene.starter.qpn());
        let grh = scene.other.bytes(TARGET + slot.offset, GRH)?;
        let found: [IpAddr; 2] = match scene.addresses[0] {
            // An IPv4 header occupies the last 20 of the 40 bytes.
            IpAddr::V4(_) => [32, 36].map(|at| <[u8; 4]>::try_from(&grh[at..at + 4]).unwrap().into()),
            IpAddr::V6(_) => [8, 24].map(|at| <[u8; 16]>::try_from(&grh[at..at + 16]).unwrap().into()),
        };
        ensure!(found == scene.addresses, "the GRH says {found:?} instead of {:?}", scene.addresses);
    }
    Ok(())
}

/// Starts one eight-byte operation; returns its result.
fn on_word(scene: &mut Scene<'_>, index: u64, op: Op) -> Result<u64> {
    let local = SOURCE + 8 * index as usize;
    scene.starter.post(&Work { wr_id: index, op, local, len: 8, remote: TARGET })?;
    let done = scene.starter.succeed(scene.patience)?;
    ensure!(done.wr_id == index, "{done:?} instead of {index}");
    scene.starter.word(local)
}

/// Posts operations on one word at once; returns the result of each.
fn on_word_at_once(scene: &mut Scene<'_>, ops: &[Op]) -> Result<Vec<u64>> {
    for (index, &op) in ops.iter().enumerate() {
        let local = SOURCE + 8 * index;
        scene.starter.post(&Work { wr_id: index as u64, op, local, len: 8, remote: TARGET })?;
    }
    for index in 0..ops.len() as u64 {
        let done = scene.starter.succeed(scene.patience)?;
        ensure!(done.wr_id == index, "out of order: {done:?} instead of {index}");
    }
    (0..ops.len()).map(|index| scene.starter.word(SOURCE + 8 * index)).collect()
}

const WORDS: [u64; 6] = [1, 0, u64::MAX, 0x0102_0304_0506_0708, 1 << 63, 0xdead_beef];

fn compare_swap(scene: &mut Scene<'_>) -> Result<usize> {
    let mut value = 0x1122_3344_5566_7788;
    scene.other.set_word(TARGET, value)?;
    scene.other.set_word(TARGET + 8, GUARD_SEED)?;
    let mut count = 0;
    for swap in WORDS {
        // One comparison that fails, and one that succeeds.
        for compare in [value ^ 1 << 40, value] {
            let old = on_word(scene, count, Op::CompareSwap { compare, swap })?;
            ensure!(old == value, "COMPARE SWAP returned {old:#x} instead of {value:#x}");
            value = if compare == value { swap } else { value };
            let now = scene.other.word(TARGET)?;
            ensure!(now == value, "after {compare:#x} -> {swap:#x} the word is {now:#x}, not {value:#x}");
            count += 1;
        }
    }
    // A chain in which each operation succeeds only after the previous one.
    scene.other.set_word(TARGET, 0)?;
    let chain: Vec<Op> = (0..40).map(|at| Op::CompareSwap { compare: at, swap: at + 1 }).collect();
    let found = on_word_at_once(scene, &chain)?;
    ensure!(found == (0..40).collect::<Vec<u64>>(), "a chain of COMPARE SWAPs returned {found:?}");
    ensure!(scene.other.word(TARGET)? == 40, "a chain of COMPARE SWAPs ended elsewhere");
    ensure!(scene.other.word(TARGET + 8)? == GUARD_SEED, "the next word was touched");
    Ok(count as usize + chain.len())
}

fn fetch_add(scene: &mut Scene<'_>) -> Result<usize> {
    let mut value = u64::MAX - 5;
    scene.other.set_word(TARGET, value)?;
    scene.other.set_word(TARGET + 8, GUARD_SEED)?;
    for (index, add) in WORDS.into_iter().enumerate() {
        let old = on_word(scene, index as u64, Op::FetchAdd { add })?;
        ensure!(old == value, "FETCH ADD returned {old:#x} instead of {value:#x}");
        value = value.wrapping_add(add);
        let now = scene.other.word(TARGET)?;
        ensure!(now == value, "after adding {add:#x} the word is {now:#x} instead of {value:#x}");
    }
    scene.other.set_word(TARGET, 0)?;
    let adds: Vec<Op> = (0..40).map(|at| Op::FetchAdd { add: at }).collect();
    let found = on_word_at_once(scene, &adds)?;
    let sums: Vec<u64> = (0..40).map(|at| at * (at.max(1) - 1) / 2).collect();
    ensure!(found == sums, "FETCH ADDs in a row returned {found:?}");
    ensure!(scene.other.word(TARGET)? == 780, "FETCH ADDs in a row ended elsewhere");
    ensure!(scene.other.word(TARGET + 8)? == GUARD_SEED, "the next word was touched");
    Ok(WORDS.len() + adds.len())
}

fn atomic_write(scene: &mut Scene<'_>) -> Result<usize> {
    scene.other.set_word(TARGET, 7)?;
    scene.other.set_word(TARGET + 8, GUARD_SEED)?;
    for (index, value) in WORDS.into_iter().enumerate() {
        scene.starter.set_word(SOURCE + 8 * index, value)?;
        on_word(scene, index as u64, Op::AtomicWrite)?;
        let now = scene.other.word(TARGET)?;
        ensure!(now == value, "after an ATOMIC WRITE of {value:#x} the word is {now:#x}");
    }
    (0..40).try_for_each(|at| scene.starter.set_word(SOURCE + 8 * at, at as u64))?;
    on_word_at_once(scene, &[Op::AtomicWrite; 40])?;
    ensure!(scene.other.word(TARGET)? == 39, "ATOMIC WRITEs in a row ended elsewhere");
    ensure!(scene.other.word(TARGET + 8)? == GUARD_SEED, "the next word was touched");
    Ok(WORDS.len() + 40)
}

/// Performs WRITEs, each with a FLUSH of the written bytes.
fn flush(scene: &mut Scene<'_>) -> Result<usize> {
    let lengths = [1, 63, scene.mtu, scene.mtu + 1, 50_001];
    for (index, slot) in slots(&lengths, 0).iter().enumerate() {
        let seed = 77 + index as u64;
        let (local, remote, len) = (SOURCE + slot.offset, TARGET + slot.offset, slot.len);
        scene.starter.fill(local, len, seed)?;
        scene.starter.post(&Work { wr_id: 1, op: Op::Write, local, len, remote })?;
        scene.starter.post(&Work { wr_id: 2, op: Op::Flush, local, len, remote })?;
        for wr_id in [1, 2] {
            let done = scene.starter.succeed(scene.patience)?;
            ensure!(done.wr_id == wr_id, "out of order: {done:?} instead of {wr_id}");
        }
        scene.other.check(remote, len, seed).with_context(|| format!("{len} bytes"))?;
    }
    Ok(2 * lengths.len())
}

/// Sends messages on transports without retransmission over a lossy link. Messages must arrive whole, in
/// order and once, and most must arrive. Returns the number of messages that arrived.
pub(crate) fn run_unreliable(operation: Operation, scene: &mut Scene<'_>) -> Result<usize> {
    const COUNT: usize = 60;
    let is_write = matches!(operation, Operation::UcWrite | Operation::UcWriteImm);
    // Without a completion for each message, only single packets can be checked for completeness. Also, a
    // kernel that misses the end of a UC WRITE accepts no more messages on that queue pair (6.1 and 6.12; a
    // missed end of a SEND does not have this effect).
    let single = header(operation) > 0 || operation == Operation::UcWrite;
    let packets = if single || is_write && scene.starter.name() == "we" { 1 } else { 3 };
    let slots = slots(&[packets * scene.mtu; COUNT], header(operation));
    for (index, slot) in slots.iter().enumerate() {
        scene.starter.fill(SOURCE + slot.offset, slot.len, index as u64)?;
        scene.other.fill(TARGET + slot.offset + header(operation), slot.len, GUARD_SEED)?;
        if operation.takes_receive() {
            scene.other.receive(index as u64, TARGET + slot.offset, slot.len + header(operation))?;
        }
    }
    for (index, slot) in slots.iter().enumerate() {
        let (local, remote) = (SOURCE + slot.offset, TARGET + slot.offset);
        let op = op_of(operation, index as u32);
        scene.starter.post(&Work { wr_id: index as u64, op, local, len: slot.len, remote })?;
        scene.starter.succeed(scene.patience)?;
    }
    let arrived = if operation.takes_receive() {
        let arrived = scene.other.completions(COUNT, Duration::from_millis(500))?;
        check_arrived(operation, scene, &slots, &arrived)?;
        arrived.len()
    } else {
        std::thread::sleep(Duration::from_millis(300));
        let mut arrived = 0;
        for (index, slot) in slots.iter().enumerate() {
            let at = TARGET + slot.offset;
            if scene.other.check(at, slot.len, GUARD_SEED).is_err() {
                scene.other.check(at, slot.len, index as u64).context("a message arrived in part")?;
                arrived += 1;
            }
        }
        arrived
    };
    ensure!(arrived >= COUNT * 3 / 4, "of {COUNT} messages only {arrived} arrived");
    Ok(arrived)
}

/// Determines which message is in each receive: messages arrive in order, with gaps. Immediate data contain
/// the number.
fn check_arrived(
    operation: Operation,
    scene: &mut Scene<'_>,
    slots: &[Slot],
    arrived: &[Done],
) -> Result<()> {
    let is_write = operation == Operation::UcWriteImm;
    let mut next = 0;
    for (position, done) in arrived.iter().enumerate() {
        ensure!(done.status == 0 && done.wr_id == position as u64, "{done:?} in receive {position}");
        let message = match done.imm {
            Some(imm) => imm as usize,
            None => {
                let at = TARGET + slots[position].offset + header(operation);
                let head = scene.other.bytes(at, 8)?;
                let known = (next..slots.len()).find(|&index| pattern(8, index as u64) == head);
                known.with_context(|| format!("receive {position} holds no message after {next}"))?
            }
        };
        if message < next || message >= slots.len() {
            bail!("message {message} arrived when {next} or a later one was expected");
        }
        next = message + 1;
        // A WRITE goes to its own place, a SEND to the next receive.
        let place = &slots[if is_write { message } else { position }];
        let at = TARGET + place.offset + header(operation);
        scene.other.check(at, place.len, message as u64).with_context(|| format!("message {message}"))?;
    }
    Ok(())
}

impl Scene<'_> {
    pub(crate) fn addresses_of(addresses: &Addresses, they_start: bool) -> [IpAddr; 2] {
        if they_start { [addresses.theirs, addresses.ours] } else { [addresses.ours, addresses.theirs] }
    }
}
