//! Many queue pairs between one context of ours and one process of the peer, all busy in both directions.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use roce::verbs::*;

use crate::case::Family;
use crate::end::{Done, MEMORY, of_theirs, pattern};
use crate::peer::{Addresses, Peer};
use crate::setting::Setting;

const QUEUE_PAIRS: usize = 256;
/// Part of each side's memory for one queue pair: its source is in the first half, its target in the second.
const PART: usize = MEMORY / QUEUE_PAIRS;

fn len_of(index: usize) -> usize {
    3 * 1024 + index
}

/// One of our queue pairs; `index` is the number of the peer's queue pair.
struct Pair {
    ours: QueuePair,
    index: usize,
}

struct Memory {
    region: MemoryRegion,
    their_addr: u64,
    their_rkey: u32,
}

/// Returns a description of the result.
pub(crate) fn run(setting: &Setting, family: Family) -> Result<String> {
    let (mut peer, _) = setting.connect()?;
    let context = setting.open(family, 256, None)?;
    let addresses = setting.addresses(family);
    let pd = context.alloc_pd()?;
    let region = pd.allocate(MEMORY, Access::LOCAL_WRITE | Access::REMOTE)?;
    let cq = context.create_cq(4 * QUEUE_PAIRS, None)?;
    let answer = peer.ask(&format!("mr id=0 len={MEMORY}"))?;
    let memory = Memory {
        region,
        their_addr: answer.number("addr")?,
        their_rkey: u32::try_from(answer.number("rkey")?)?,
    };
    peer.ask(&format!("cq id=0 depth={}", 4 * QUEUE_PAIRS))?;
    let mut pairs = Vec::new();
    for index in 0..QUEUE_PAIRS {
        pairs.push(connect(&mut peer, &pd, &cq, index, &addresses).with_context(|| format!("pair {index}"))?);
    }
    for round in 0..3 {
        exchange(&mut peer, &cq, &pairs, &memory, round).with_context(|| format!("round {round}"))?;
    }
    peer.ask("destroy all=1")?;
    Ok(format!("{QUEUE_PAIRS} queue pairs, 3 rounds, WRITE with immediate data in both directions at once"))
}

fn connect(
    peer: &mut Peer,
    pd: &ProtectionDomain,
    cq: &CompletionQueue,
    index: usize,
    addresses: &Addresses,
) -> Result<Pair> {
    let Addresses { ours: our_address, theirs } = *addresses;
    let ours = pd.create_qp(&QueuePairOptions::new(QpType::Rc, cq))?;
    let answer = peer.ask(&format!("qp id={index} type=rc cq=0 sends=16 recvs=16"))?;
    let qpn = u32::try_from(answer.number("qpn")?)?;
    let own = ours.endpoint()?;
    let options = ConnectOptions::default().timeout(18);
    ours.connect(&Endpoint { address: theirs, qpn, psn: 77 }, &options)?;
    peer.ask(&format!(
        "connect qp={index} local={theirs} remote={our_address} mtu=1024 dest={} psn=77 rq_psn={} timeout=18",
        own.qpn, own.psn
    ))?;
    Ok(Pair { ours, index })
}

/// Writes from each queue pair to the other side, from both sides.
fn exchange(
    peer: &mut Peer,
    cq: &CompletionQueue,
    pairs: &[Pair],
    memory: &Memory,
    round: u64,
) -> Result<()> {
    let seed = |index: usize, theirs: u64| round << 32 | theirs << 16 | index as u64;
    for Pair { ours, index } in pairs {
        let (index, source) = (*index, index * PART);
        ours.post_recv(&RecvWr { wr_id: 1000 + index as u64, elements: &[] })?;
        memory.region.write(source, &pattern(len_of(index), seed(index, 0)))?;
        peer.ask(&format!("recv qp={index} wr={} mr=0 off=0 len=0", 1000 + index))?;
        peer.ask(&format!("fill mr=0 off={source} len={} seed={}", len_of(index), seed(index, 1)))?;
    }
    for Pair { ours, index } in pairs {
        let (index, source, target) = (*index, index * PART, index * PART + PART / 2);
        peer.ask(&format!(
            "send qp={index} wr={index} op=write_imm imm={index} mr=0 off={source} len={} addr={} rkey={}",
            len_of(index),
            memory.region.addr() + target as u64,
            memory.region.rkey().0
        ))?;
        let remote_addr = memory.their_addr + target as u64;
        let imm = ImmDt(u32::try_from(index)?.to_be_bytes());
        let op = SendOp::WriteWithImm { remote_addr, rkey: RKey(memory.their_rkey), imm };
        let element = memory.region.element(source..source + len_of(index));
        ours.post_send(&SendWr::new(index as u64, op, &[element]))?;
    }
    our_completions(cq, pairs.len()).context("ours")?;
    let line = format!("poll cq=0 max=512 count={} wait_ms=60000", 2 * pairs.len());
    let theirs: Vec<Done> = peer.ask(&line)?.words().map(of_theirs).collect::<Result<_>>()?;
    let reported = theirs.iter().map(|done| (done.status, done.received, done.wr_id, done.imm));
    check_reported(reported.collect(), pairs.len()).context("theirs")?;
    for index in 0..pairs.len() {
        let (len, target) = (len_of(index), index * PART + PART / 2);
        let mut found = vec![0; len];
        memory.region.read(target, &mut found)?;
        ensure!(found == pattern(len, seed(index, 1)), "our bytes of pair {index}");
        let answer = peer.ask(&format!("check mr=0 off={target} len={len} seed={}", seed(index, 0)))?;
        ensure!(answer.text() == "same", "their bytes of pair {index}: {}", answer.text());
    }
    Ok(())
}

fn our_completions(cq: &CompletionQueue, pairs: usize) -> Result<()> {
    let mut reported = Vec::new();
    let mut done = [Wc::default(); 64];
    while reported.len() < 2 * pairs {
        let got = cq.wait(&mut done, Some(Duration::from_secs(60)))?;
        reported.extend(done[..got].iter().map(|wc| {
            let imm = wc.flags.contains(WcFlags::WITH_IMM).then(|| u32::from_be_bytes(wc.imm.0));
            (wc.status as u32, wc.opcode == WcOpcode::RecvRdmaWithImm, wc.wr_id, imm)
        }));
    }
    check_reported(reported, pairs)
}

/// Checks that each queue pair has one completion of each kind, and that the receive contains the immediate
/// data of its own pair.
fn check_reported(reported: Vec<(u32, bool, u64, Option<u32>)>, pairs: usize) -> Result<()> {
    let mut seen = BTreeSet::new();
    for (status, received, wr_id, imm) in reported {
        ensure!(status == 0, "completion {wr_id} has status {status}");
        let index = if received { wr_id - 1000 } else { wr_id };
        ensure!(!received || imm.map(u64::from) == Some(index), "receive {index} has {imm:?}");
        ensure!(seen.insert((received, index)), "a second completion of {index}");
    }
    ensure!(seen.len() == 2 * pairs, "{} of {} completions", seen.len(), 2 * pairs);
    Ok(())
}
