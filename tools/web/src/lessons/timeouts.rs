//! Lesson 4: the local ACK timeout and retries.

use roce_sim::pair::{Settings, Side};
use roce_transport::{Retransmission, WcStatus};

use super::answer::{AnswerKey, Expected, Outcome};
use super::scene::{Scene, lose, lose_requests};

/// The timeout code of task 1.
const CODE_OF_TASK_1: u8 = 10;
/// The retry count of task 2.
const RETRIES_OF_TASK_2: u8 = 3;
/// The timeout code and the retry count of task 3.
const CODE_OF_TASK_3: u8 = 14;
const RETRIES_OF_TASK_3: u8 = 7;
/// Task 4: number of packets of the message, and the packets to choose from.
const PACKETS: usize = 10;
const CHOICES: [(usize, &str); 3] =
    [(0, "the first packet"), (4, "the fifth packet"), (9, "the last packet")];
/// Longest run of a scene, in microseconds.
const MOST_US: u64 = 10_000_000;

/// Judges an answer.
pub fn check(task: usize, answer: &str) -> Option<Outcome> {
    let key = match task {
        1 => wait_before_second_copy()?,
        2 => copies()?,
        3 => time_until_error()?,
        4 => loss_that_waits()?,
        _ => return None,
    };
    Some(key.judge(answer))
}

/// Returns a number in a unit, which may differ from an answer by 0.1 %.
fn about(ns: f64, ns_per_unit: f64) -> Expected {
    let value = ns / ns_per_unit;
    Expected::Near(value, value / 1000.0)
}

const US: f64 = 1e3;
const MS: f64 = 1e6;

fn wait_before_second_copy() -> Option<AnswerKey> {
    let settings = Settings { timeout: CODE_OF_TASK_1, ..Settings::default() };
    let mut scene = Scene::with_fate(&settings, lose(0));
    scene.write(16)?;
    scene.run_for(MOST_US);
    let sent = scene.sent_by(Side::A);
    let wait = (scene.sent_ns(sent.get(1)?) - scene.sent_ns(sent.first()?)) as f64;
    let shows = format!("{}T is {} us.", scene.lines(), wait / US);
    let code = f64::from(CODE_OF_TASK_1);
    let key = AnswerKey::new(about(wait, US), shows)
        .hint(about(wait / 4.096 * 4.0, US), "The unit of time is 4.096 us, not 4 us.")
        .hint(about(4096.0 * code, US), "You have multiplied by the code. The code is the exponent of 2.")
        .hint(about(wait, MS), "That is the time in milliseconds. The question asks for microseconds.")
        .hint(about(wait * 2.0, US), "That is twice T. The timer of this engine expires after T.")
        .hint(about(wait / 4.096, US), "That is 2 to the power of the code. Multiply it by 4.096 us.")
        .otherwise("T is 4.096 us multiplied by 2 to the power of the code.");
    Some(key)
}

/// Runs a WRITE of one packet whose copies are all lost.
fn dead_peer(timeout: u8, retry_cnt: u8) -> Option<(Scene, WcStatus)> {
    let settings = Settings { timeout, retry_cnt, ..Settings::default() };
    let mut scene = Scene::with_fate(&settings, lose_requests);
    scene.write(16)?;
    let status = scene.first_completion(MOST_US)?.status;
    Some((scene, status))
}

fn copies() -> Option<AnswerKey> {
    let (scene, status) = dead_peer(CODE_OF_TASK_1, RETRIES_OF_TASK_2)?;
    let copies = scene.sent_by(Side::A).len() as u64;
    let shows = format!("{}{copies} copies, then the completion says {}.", scene.lines(), status.name());
    let key = AnswerKey::new(Expected::Number(copies), shows)
        .hint(
            Expected::Number(RETRIES_OF_TASK_2.into()),
            "retry_cnt counts the repetitions. The first copy comes before them.",
        )
        .hint(
            Expected::Number(copies + 1),
            "After the last retry the timer runs once more, but then the request fails and nothing is sent.",
        )
        .hint(Expected::Number(1), "The requester does not fail at the first timeout. It repeats the packet.")
        .otherwise("Count the first copy and one copy for each retry.");
    Some(key)
}

fn time_until_error() -> Option<AnswerKey> {
    let (scene, status) = dead_peer(CODE_OF_TASK_3, RETRIES_OF_TASK_3)?;
    let time = scene.now_ns() as f64;
    let sent = scene.sent_by(Side::A);
    let last_copy = scene.sent_ns(sent.last()?) as f64;
    let one = scene.sent_ns(sent.get(1)?) as f64;
    let least = u32::from(Retransmission::ADAPTIVE.least_timeout);
    let on_device = f64::from(1_u32 << (least - u32::from(CODE_OF_TASK_3))) * time;
    let shows = format!("{}{:12.3} us  {}", scene.lines(), time / US, status.name());
    let key = AnswerKey::new(about(time, MS), shows)
        .hint(
            about(last_copy, MS),
            "That is when the last copy leaves. The requester waits for an answer to it, too.",
        )
        .hint(about(one, MS), "That is T, the time until the first retry. Seven more waits follow.")
        .hint(about(time, US), "That is the time in microseconds. The question asks for milliseconds.")
        .hint(about(time, MS * 1000.0), "That is the time in seconds. The question asks for milliseconds.")
        .hint(
            about(on_device, MS),
            "That is the time on a device, where code 17 is the least. The question is about exactly T.",
        )
        .otherwise("The requester waits T for each copy: for the first and for each of the retries.");
    Some(key)
}

fn loss_that_waits() -> Option<AnswerKey> {
    let mut quick = Vec::new();
    let mut slow = None;
    for (index, name) in CHOICES {
        let settings = Settings::default();
        let mut scene = Scene::with_fate(&settings, lose(index));
        scene.write(PACKETS * settings.mtu.bytes())?;
        scene.run_for(MOST_US);
        let end = scene.sent_ns(scene.sent_by(Side::A).last()?);
        let t = 4096_u64 << settings.timeout;
        if end < t { quick.push((name, end)) } else { slow = Some((name, scene.lines())) }
    }
    let (name, lines) = slow?;
    let mut key = AnswerKey::new(Expected::text(name), format!("With the loss of {name}:\n{lines}"))
        .otherwise("Ask for each packet: does a later packet arrive and show the gap?");
    for (name, end_ns) in quick {
        let end = end_ns as f64 / US;
        let hint = format!(
            "A packet after it arrives and shows the gap, so a NAK leaves. All packets are sent again after \
             {end} us."
        );
        key = key.hint(Expected::text(name), hint);
    }
    Some(key)
}
