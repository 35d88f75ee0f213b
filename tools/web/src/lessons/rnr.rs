//! Lesson 5: receiver not ready.

use roce_packet::RnrTimer;
use roce_sim::pair::{Settings, Side};

use super::answer::{AnswerKey, Expected, Outcome};
use super::scene::Scene;

/// The code of the minimum RNR timer in tasks 1 and 3.
const CODE_OF_TASK_1: u8 = 14;
/// The code of the minimum RNR timer in task 2, the longest time.
const CODE_OF_TASK_2: u8 = 0;
/// The number of SENDs in task 3.
const SENDS: usize = 3;
/// The retry count of task 4, which stands for no limit, and the highest one that is a number.
const UNLIMITED: u8 = 7;
const HIGHEST: u8 = 6;
/// Copies after which task 4 takes the number for unlimited.
const MANY_COPIES: usize = 50;
const NO_LIMIT: &str = "without limit";

/// Judges an answer.
pub fn check(task: usize, answer: &str) -> Option<Outcome> {
    let key = match task {
        1 => wait_for_code()?,
        2 => longest_wait()?,
        3 => packets_in_all()?,
        4 => retries()?,
        _ => return None,
    };
    Some(key.judge(answer))
}

/// Returns the time between the arrival of an RNR NAK with this code and the repetition, in nanoseconds, and
/// the packets.
fn wait(code: u8) -> Option<(u64, String)> {
    let settings = Settings { min_rnr_timer: code, ..Settings::default() };
    let mut scene = Scene::new(&settings);
    scene.send(21)?;
    // Until the NAK has arrived.
    scene.run_for(100);
    scene.receive(64)?;
    scene.run_for(1_000_000);
    let arrival = scene.sent_ns(scene.sent_by(Side::B).first()?) + scene.pair.link_delay_ns;
    let again = scene.sent_ns(scene.sent_by(Side::A).get(1)?);
    Some((again.checked_sub(arrival)?, scene.lines()))
}

/// Returns a number of microseconds.
fn us(ns: u64) -> Expected {
    Expected::Near(ns as f64 / 1e3, 0.5)
}

/// Returns a number of milliseconds.
fn ms(ns: u64) -> Expected {
    Expected::Near(ns as f64 / 1e6, ns as f64 / 1e9)
}

fn wait_for_code() -> Option<AnswerKey> {
    let (wait, lines) = wait(CODE_OF_TASK_1)?;
    let shows =
        format!("{lines}Code {CODE_OF_TASK_1}: the requester waits {} us after the NAK.", wait / 1000);
    let key = AnswerKey::new(us(wait), shows)
        .hint(
            us(4096 << CODE_OF_TASK_1),
            "That is the formula of the local ACK timeout. RNR timers have a table of their own.",
        )
        .hint(us(u64::from(CODE_OF_TASK_1) * 1000), "That is the code. The table of RNR timers has the time.")
        .hint(
            us(u64::from(CODE_OF_TASK_1) * 10_000),
            "The times are not multiples of the code. The table of RNR timers has the time.",
        )
        .hint(ms(wait), "That is the time in milliseconds. The question asks for microseconds.")
        .otherwise("Look for the code in the table of RNR timers.");
    Some(key)
}

fn longest_wait() -> Option<AnswerKey> {
    let (wait, lines) = wait(CODE_OF_TASK_2)?;
    let shows = format!("{lines}Code {CODE_OF_TASK_2}: the requester waits {} ms.", wait as f64 / 1e6);
    let of_code = |code| RnrTimer::new(code).map(RnrTimer::delay_ns);
    let key = AnswerKey::new(ms(wait), shows)
        .hint(Expected::Near(0.0, 0.0), "Code 0 is a time like the others. It does not mean \"at once\".")
        .hint(ms(of_code(1)?), "That is the time of code 1, the shortest. Code 0 is not below it.")
        .hint(ms(of_code(31)?), "That is the time of code 31. The longest time has another code.")
        .hint(us(wait), "That is the time in microseconds. The question asks for milliseconds.")
        .otherwise(
            "Look for code 0 in the table of RNR timers. The codes are not in the order of the times.",
        );
    Some(key)
}

fn packets_in_all() -> Option<AnswerKey> {
    let settings = Settings { min_rnr_timer: CODE_OF_TASK_1, ..Settings::default() };
    let mut scene = Scene::new(&settings);
    for _ in 0..SENDS {
        scene.send(21)?;
    }
    // All SENDs arrive, and the NAK arrives, before the receives are posted.
    scene.run_for(100);
    for _ in 0..SENDS {
        scene.receive(64)?;
    }
    scene.run_for(1_000_000);
    let all = scene.sent_by(Side::A).len();
    let number = |value: usize| Expected::Number(value as u64);
    let shows = format!("{}The requester has sent {all} packets.", scene.lines());
    let key = AnswerKey::new(number(all), shows)
        .hint(
            number(SENDS + 1),
            "The responder has also dropped the requests behind the refused one, so they are sent again.",
        )
        .hint(number(all - SENDS), "You have counted one copy of each SEND. Add the other copies.")
        .hint(number(SENDS * 3), "The requester waits, so each SEND is repeated once only.")
        .otherwise("Count the first copies, then all that the responder refused or dropped.");
    Some(key)
}

/// Returns how often the first SEND is repeated with this count, or [`NO_LIMIT`], and its packets.
fn repetitions(rnr_retry: u8) -> Option<(String, String)> {
    let settings = Settings { rnr_retry, min_rnr_timer: 1, ..Settings::default() };
    let mut scene = Scene::new(&settings);
    scene.send(21)?;
    scene.run_for(2_000);
    let copies = scene.sent_by(Side::A).len();
    let has_failed = !scene.pair.completions(Side::A).is_empty();
    let often = match has_failed {
        true => times(copies.checked_sub(1)?),
        false => (copies > MANY_COPIES).then(|| NO_LIMIT.to_owned())?,
    };
    Some((often, scene.lines()))
}

fn times(count: usize) -> String {
    let words =
        ["never", "once", "twice", "three times", "four times", "five times", "six times", "seven times"];
    words.get(count).map_or_else(|| format!("{count} times"), |word| (*word).to_owned())
}

fn retries() -> Option<AnswerKey> {
    let (often, lines) = repetitions(UNLIMITED)?;
    let (highest, _) = repetitions(HIGHEST)?;
    let shows = format!("{lines}With rnr_retry {UNLIMITED}, the requester repeats {often}.");
    let key = AnswerKey::new(Expected::text(often), shows)
        .hint(
            Expected::text(times(UNLIMITED.into())),
            format!(
                "With {HIGHEST} it repeats {highest}. The next value, {UNLIMITED}, has a special meaning."
            ),
        )
        .hint(Expected::text(highest.as_str()), format!("That is right for {HIGHEST}, not for {UNLIMITED}."))
        .hint(Expected::text(times(0)), "That is right for 0: then the first RNR NAK ends the request.")
        .otherwise("Three bits hold the count. Its highest value has a special meaning.");
    Some(key)
}
