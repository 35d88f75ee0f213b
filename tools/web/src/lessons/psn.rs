//! Lesson 3: PSNs, gaps and go-back-N.

use roce_packet::{NakCode, PathMtu, Syndrome};
use roce_sim::pair::{Action, Sent, Settings, Side};

use super::answer::{AnswerKey, Expected, Outcome};
use super::scene::{Scene, lose, syndrome};

/// Task 1: first PSN and length of the message, in bytes.
const NEAR_THE_END: u32 = 0xff_fffe;
const LEN_OF_TASK_1: usize = 5000;
/// Tasks 2 and 3: first PSN, number of packets, and index of the lost one.
const FIRST: u32 = 1000;
const PACKETS: usize = 10;
const LOST: usize = 3;

/// Judges an answer.
pub fn check(task: usize, answer: &str) -> Option<Outcome> {
    let key = match task {
        1 => last_psn()?,
        2 => psn_of_nak()?,
        3 => packets_in_all()?,
        4 => receives()?,
        _ => return None,
    };
    Some(key.judge(answer))
}

fn psn(value: u32) -> Expected {
    Expected::Number(value.into())
}

fn last_psn() -> Option<AnswerKey> {
    let settings = Settings { psns: [NEAR_THE_END, 0], ..Settings::default() };
    let mut scene = Scene::new(&settings);
    scene.write(LEN_OF_TASK_1)?;
    scene.run_for(1000);
    let sent = scene.sent_by(Side::A);
    let last = sent.last()?.psn;
    let count = sent.len() as u32;
    let shows = format!("{}{count} packets; the last one has PSN {}.", scene.lines(), last.get());
    let key = AnswerKey::new(psn(last.get()), shows)
        .hint(psn(NEAR_THE_END + count - 1), "A PSN has 24 bits. After 0xffffff comes 0.")
        .hint(
            psn(last.next().get()),
            "That is the PSN of the next message. The first packet has the first PSN.",
        )
        .hint(psn(last.sub(1).get()), "One packet is missing: the rest of the message needs a packet, too.")
        .hint(psn(count), "That is the number of packets. The first packet has PSN 0xfffffe, not 0.")
        .otherwise("Count the packets, then count up from 0xfffffe modulo 2^24.");
    Some(key)
}

/// Runs a WRITE of [`PACKETS`] packets, of which one is lost once.
fn lossy_write() -> Option<Scene> {
    let mtu = PathMtu::Mtu256;
    let settings = Settings { mtu, psns: [FIRST, 0], ..Settings::default() };
    let mut scene = Scene::with_fate(&settings, lose(LOST));
    scene.write(PACKETS * mtu.bytes())?;
    scene.run_for(1000);
    Some(scene)
}

fn psn_of_nak() -> Option<AnswerKey> {
    let scene = lossy_write()?;
    let is_nak = |sent: &&&Sent| syndrome(sent) == Some(Syndrome::Nak(NakCode::PsnSequence));
    let nak = scene.sent_by(Side::B).iter().find(is_nak)?.psn;
    let shows = format!("{}The NAK has PSN {}.", scene.lines(), nak.get());
    let key = AnswerKey::new(psn(nak.get()), shows)
        .hint(
            psn(nak.sub(1).get()),
            "That is the last packet in order. The NAK names the PSN that is missing.",
        )
        .hint(
            psn(nak.next().get()),
            "That packet showed the gap. The NAK names the PSN that the responder expects.",
        )
        .hint(psn(FIRST), "The responder keeps the packets before the gap, so nobody sends them again.")
        .hint(psn(FIRST + PACKETS as u32 - 1), "The NAK does not wait for the end of the message.")
        .hint(Expected::Number(LOST as u64), "Add this number to the first PSN.")
        .otherwise("The PSN of the NAK is the expected PSN: the first that did not arrive.");
    Some(key)
}

fn packets_in_all() -> Option<AnswerKey> {
    let scene = lossy_write()?;
    let all = scene.sent_by(Side::A).len();
    let again = all - PACKETS;
    let number = |value: usize| Expected::Number(value as u64);
    let shows = format!("{}The requester has sent {all} packets, {again} of them again.", scene.lines());
    let key = AnswerKey::new(number(all), shows)
        .hint(
            number(PACKETS + 1),
            "You have counted the lost packet only. Go-back-N also sends all packets after it again.",
        )
        .hint(number(again), "You have counted the retransmissions only. Add the first copies.")
        .hint(number(all - 1), "You have left out the lost packet itself: its first copy was also sent.")
        .hint(
            number(PACKETS * 2),
            "The requester goes back to the lost packet, not to the start of the message.",
        )
        .hint(number(PACKETS), "The lost packet must be sent again, and the packets after it as well.")
        .otherwise("Add the first copies, and everything from the lost packet to the end.");
    Some(key)
}

fn receives() -> Option<AnswerKey> {
    let is_first_answer = |sent: &Sent| sent.from == Side::B && sent.index == 0;
    let fate = move |sent: &Sent| if is_first_answer(sent) { Action::Drop } else { Action::Pass };
    let mut scene = Scene::with_fate(&Settings::default(), fate);
    for _ in 0..2 {
        scene.receive(64)?;
    }
    scene.send(21)?;
    scene.run_for(1_000_000);
    let used = scene.pair.completions(Side::B).len();
    let copies = scene.sent_by(Side::A).len();
    let shows = format!("{}{copies} copies of the SEND arrived, and {used} receive is used.", scene.lines());
    let key = AnswerKey::new(Expected::Number(used as u64), shows)
        .hint(
            Expected::Number(copies as u64),
            "Both copies arrive, but the second has an old PSN. A duplicate is acknowledged, not executed.",
        )
        .hint(
            Expected::Number(0),
            "Only the acknowledgement was lost. The responder had executed the first copy before.",
        )
        .otherwise("Count the copies that the responder executes.");
    Some(key)
}
