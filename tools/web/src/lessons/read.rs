//! Lesson 6: the PSNs of a READ, lost responses, and the number of outstanding READs.

use roce_packet::{Datagram, Operation, Psn};
use roce_sim::pair::{Action, Settings, Side};
use roce_transport::SendOp;

use super::scene::{Scene, operation_of};
use super::{AnswerKey, Expected, Outcome};

/// The READ of task 1 and its first PSN.
const FIRST: u32 = 100;
const BYTES: usize = 5_000;
/// The READ of tasks 2 and 3, its first PSN, and the number of responses before the lost one.
const LOSSY_FIRST: u32 = 200;
const LOSSY_BYTES: usize = 4_500;
const BEFORE: u32 = 2;
/// Task 4: the READs, and how many may be outstanding.
const READS: u64 = 5;
const ALLOWED: u8 = 2;

/// Judges an answer to a task of the lesson.
pub fn check(task: usize, answer: &str) -> Option<Outcome> {
    let key = match task {
        1 => after_a_read(),
        2 => second_request().map(|request| request.psn_key()),
        3 => second_request().map(|request| request.length_key()),
        4 => outstanding(),
        _ => None,
    };
    Some(key?.judge(answer))
}

/// Returns the PSN that comes some steps after another one, as a number.
fn psn_after(first: u32, steps: u32) -> u64 {
    Psn::new(first).add(steps).get().into()
}

fn read(remote_addr: u64, rkey: roce_transport::RKey) -> SendOp {
    SendOp::Read { remote_addr, rkey }
}

/// The PSN of the request behind a READ.
fn after_a_read() -> Option<AnswerKey> {
    let settings = Settings { psns: [FIRST, 7_000], ..Settings::default() };
    let mtu = settings.mtu.bytes();
    let mut scene = Scene::new(&settings);
    scene.post(1, BYTES, read)?;
    scene.post(2, 64, |remote_addr, rkey| SendOp::Write { remote_addr, rkey })?;
    scene.run();
    let behind = scene.sent(Side::A, Operation::Write).next()?.psn.get();
    let responses = scene.sent(Side::B, Operation::ReadResponse).count() as u32;
    let shows = format!(
        "Two engines exchanged the READ and the WRITE.\n\
         The READ request had PSN {FIRST}.\n\
         {BYTES} bytes came in {responses} response packets of at most {mtu} bytes, with PSN {FIRST} to {}.\n\
         The WRITE had PSN {behind}.",
        psn_after(FIRST, responses - 1),
    );
    let key = AnswerKey::new(Expected::Number(behind.into()), shows)
        .hint(
            Expected::Number(psn_after(FIRST, 1)),
            format!(
                "A READ takes as many PSNs as its response has packets, not one. How many packets of at most \
                 {mtu} bytes carry {BYTES} bytes?"
            ),
        )
        .hint(
            Expected::Number(psn_after(FIRST, responses + 1)),
            "The request does not take a PSN of its own: the first response packet has the PSN of the \
             request.",
        )
        .hint(
            Expected::Number(psn_after(FIRST, (BYTES / mtu) as u32)),
            "Round up: the last response packet is not full, but it is a packet.",
        )
        .otherwise(format!(
            "Count the response packets of {BYTES} bytes with a path MTU of {mtu} bytes, and start with \
             PSN {FIRST}."
        ));
    Some(key)
}

/// The second request for a READ of which one response was lost.
struct SecondRequest {
    psn: u32,
    length: u32,
    /// The number of response packets of the whole READ.
    responses: u32,
    mtu: usize,
}

fn second_request() -> Option<SecondRequest> {
    let settings = Settings { psns: [LOSSY_FIRST, 7_000], ..Settings::default() };
    let mut scene = Scene::new(&settings);
    scene.pair.packet_time_ns = 300;
    let mut seen = 0;
    scene.pair.set_script(move |sent| {
        let is_response = operation_of(sent) == Some(Operation::ReadResponse);
        seen += u32::from(is_response);
        if is_response && seen == BEFORE + 1 { Action::Drop } else { Action::Pass }
    });
    scene.post(1, LOSSY_BYTES, read)?;
    scene.run();
    let again = scene.sent(Side::A, Operation::ReadRequest).nth(1)?;
    let length = Datagram::parse(&again.bytes, &[]).ok()?.reth()?.dma_len;
    let mtu = settings.mtu.bytes();
    Some(SecondRequest { psn: again.psn.get(), length, responses: LOSSY_BYTES.div_ceil(mtu) as u32, mtu })
}

impl SecondRequest {
    fn shows(&self) -> String {
        let Self { psn, length, responses, .. } = self;
        format!(
            "Two engines exchanged the READ, and the link lost the response with PSN {}.\n\
             The READ of {LOSSY_BYTES} bytes has {responses} response packets.\n\
             The second request had PSN {psn} and a DMA length of {length} bytes.",
            psn_after(LOSSY_FIRST, BEFORE),
        )
    }

    fn psn_key(&self) -> AnswerKey {
        AnswerKey::new(Expected::Number(self.psn.into()), self.shows())
            .hint(
                Expected::Number(LOSSY_FIRST.into()),
                "The requester keeps the responses that arrived before the gap. It does not request them \
                 again.",
            )
            .hint(
                Expected::Number(psn_after(LOSSY_FIRST, BEFORE + 1)),
                "This response shows the gap, but the response before it is the one that is missing.",
            )
            .hint(
                Expected::Number(psn_after(LOSSY_FIRST, self.responses)),
                "This PSN belongs to the next message. The second request asks for a part of the first READ, \
                 so it uses the PSNs of that READ again.",
            )
            .otherwise("Write the PSNs of all response packets in a row, and strike out the lost one.")
    }

    fn length_key(&self) -> AnswerKey {
        let Self { length, mtu, .. } = self;
        let whole = LOSSY_BYTES as u64;
        AnswerKey::new(Expected::Number((*length).into()), self.shows())
            .hint(
                Expected::Number(whole),
                "The RETH of the second request describes only what is still missing. Subtract the payload \
                 that arrived before the gap.",
            )
            .hint(
                Expected::Number(*mtu as u64),
                "One response is lost, but the requester also drops those behind it: it requests everything \
                 from the gap to the end.",
            )
            .hint(
                Expected::Number(whole.saturating_sub(u64::from(BEFORE + 1) * *mtu as u64)),
                "The lost response did not arrive, so do not subtract its payload.",
            )
            .otherwise(format!(
                "{BEFORE} response packets of {mtu} bytes arrived before the gap. How much of {whole} bytes \
                 is missing?"
            ))
    }
}

/// The number of READ requests that leave before the first response arrives.
fn outstanding() -> Option<AnswerKey> {
    let settings = Settings { rd_atomic: ALLOWED, ..Settings::default() };
    let mut scene = Scene::new(&settings);
    for wr_id in 0..READS {
        scene.post(wr_id, 64, read)?;
    }
    scene.run();
    let first = scene.pair.sent.iter().take_while(|sent| sent.from == Side::A).count() as u64;
    let all = scene.sent(Side::A, Operation::ReadRequest).count();
    let shows = format!(
        "Two engines exchanged {READS} READs of 64 bytes with max_rd_atomic = {ALLOWED}.\n\
         The requester sent {first} requests, and then waited for a response.\n\
         In all it sent {all} requests."
    );
    let key = AnswerKey::new(Expected::Number(first), shows)
        .hint(
            Expected::Number(READS),
            "The responder keeps resources for a limited number of READs and atomics. max_rd_atomic is the \
             limit of the requester.",
        )
        .hint(
            Expected::Number(1),
            "READs of one queue pair do not wait for each other, up to the limit of max_rd_atomic.",
        )
        .otherwise("Which attribute of the queue pair limits outstanding READs?");
    Some(key)
}
