//! Statements: one line each.

use roce_packet::PathMtu;
use roce_transport::{Access, QpState, QpType, WcStatus};

use super::ast::{Action, Completing, Connect, Expression, Posting, Verb};
use super::cursor::{Cursor, Parsed};
use super::packets;
use crate::suggest::{one_of, suggestion, unknown};

/// The first words of statements.
pub(super) const STATEMENTS: [&str; 20] = [
    "rule",
    "let",
    "connect",
    "memory",
    "window",
    "fill",
    "revoke",
    "post",
    "modify",
    "send",
    "expect",
    "ignore",
    "wait",
    "check",
    "counter",
    "completion",
    "event",
    "repeat",
    "include",
    "}",
];

/// Reads one statement, except `include`, `repeat` and the end of a loop.
pub(super) fn action(cursor: &mut Cursor) -> Parsed<Action> {
    let first = cursor.word("a statement such as `send` or `expect`")?;
    let action = match first.as_str() {
        "rule" => Action::Rule(cursor.text("the rule, such as \"IBTA 9.7.5.1.2\",")?),
        "let" => {
            let name = cursor.name("the name of a variable")?;
            cursor.sign("=")?;
            Action::Let(name, cursor.expression()?)
        }
        "connect" => Action::Connect(Box::new(connect(cursor)?)),
        "memory" => memory(cursor)?,
        "window" => window(cursor)?,
        "fill" => {
            let area = cursor.area()?;
            cursor.sign("=")?;
            Action::Fill(area, cursor.bytes()?)
        }
        "revoke" => Action::Revoke(cursor.name("the name of a memory")?),
        "post" => Action::Post(Box::new(post(cursor)?)),
        "modify" => Action::Modify(state(cursor)?),
        "send" => packets::send(cursor)?,
        "expect" => packets::expect(cursor)?,
        "ignore" if cursor.take_word("for") => Action::IgnoreFor(cursor.expression()?),
        "ignore" => Action::Ignore(cursor.expression()?),
        "wait" => Action::Wait(cursor.expression()?),
        "check" => check(cursor)?,
        "counter" => {
            let name = cursor.name("the name of a counter")?;
            if !roce_transport::Counters::NAMES.contains(&name.as_str()) {
                let known = roce_transport::Counters::NAMES.iter().copied();
                return Err(format!("there is no counter `{name}`{}", suggestion(&name, known)));
            }
            cursor.sign("+=")?;
            Action::Counter(name, cursor.expression()?)
        }
        "completion" if cursor.take_word("none") => Action::NoCompletion,
        "completion" => Action::Completion(Box::new(completion(cursor)?)),
        "event" => Action::Event(event(cursor)?),
        _ => {
            return Err(format!("there is no statement `{first}`{}", suggestion(&first, STATEMENTS)));
        }
    };
    cursor.end()?;
    Ok(action)
}

/// The settings of `connect` that are numbers.
const CONNECT_NUMBERS: [&str; 8] =
    ["psn", "peer_psn", "timeout", "retry", "rnr_retry", "rnr_timer", "reads", "qkey"];

const STATES: [(&str, QpState); 7] = [
    ("reset", QpState::Reset),
    ("init", QpState::Init),
    ("rtr", QpState::Rtr),
    ("rts", QpState::Rts),
    ("sqd", QpState::Sqd),
    ("sqe", QpState::Sqe),
    ("err", QpState::Err),
];

fn state(cursor: &mut Cursor) -> Parsed<QpState> {
    one_of(&cursor.word("a state such as err")?, "a state of a queue pair", &STATES)
}

fn connect(cursor: &mut Cursor) -> Parsed<Connect> {
    let types = [("rc", QpType::Rc), ("uc", QpType::Uc), ("ud", QpType::Ud)];
    let transport = cursor.word("a transport: rc, uc or ud,")?;
    let qp_type = one_of(&transport, "a transport", &types)?;
    let mut found = Connect {
        qp_type,
        mtu: PathMtu::Mtu1024,
        numbers: Vec::new(),
        rights: Access::REMOTE,
        state: QpState::Rts,
        congestion: None,
    };
    while !cursor.is_empty() {
        let name = cursor.word("a setting such as psn=100")?;
        cursor.sign("=")?;
        match name.as_str() {
            "mtu" => {
                let sizes = [256_i128, 512, 1024, 2048, 4096];
                let wanted = cursor.expression()?;
                let mtu = match wanted {
                    Expression::Number(bytes) => usize::try_from(bytes).ok().and_then(PathMtu::from_bytes),
                    _ => None,
                };
                found.mtu = mtu.ok_or_else(|| format!("mtu is not one of {sizes:?}"))?;
            }
            "rights" => found.rights = rights(cursor)?,
            "state" => found.state = state(cursor)?,
            "congestion" => found.congestion = Some(cursor.text("an algorithm such as \"dcqcn\"")?),
            _ => {
                let known = CONNECT_NUMBERS.iter().find(|known| **known == name);
                let all = CONNECT_NUMBERS.into_iter().chain(["mtu", "rights", "state", "congestion"]);
                let known = known.ok_or_else(|| unknown("setting of `connect`", &name, all))?;
                found.numbers.push((known, cursor.expression()?));
            }
        }
    }
    Ok(found)
}

/// Reads rights, separated by commas.
fn rights(cursor: &mut Cursor) -> Parsed<Access> {
    let flush = Access::FLUSH_GLOBAL.union(Access::FLUSH_PERSISTENT);
    let known = [
        ("write", Access::REMOTE_WRITE),
        ("read", Access::REMOTE_READ),
        ("atomic", Access::REMOTE_ATOMIC),
        ("flush", flush),
        ("all", Access::REMOTE),
        ("none", Access::empty()),
    ];
    let mut rights = Access::empty();
    loop {
        rights |= one_of(&cursor.word("a right such as write")?, "a right", &known)?;
        if !cursor.take(",") {
            return Ok(rights);
        }
    }
}

fn memory(cursor: &mut Cursor) -> Parsed<Action> {
    let name = cursor.name("the name of the memory")?;
    let len = cursor.expression()?;
    cursor.keyword("bytes")?;
    let (mut rights_found, mut is_foreign) = (Access::REMOTE, false);
    while !cursor.is_empty() {
        if cursor.take_word("foreign") {
            is_foreign = true;
        } else {
            cursor.keyword("rights")?;
            cursor.sign("=")?;
            rights_found = rights(cursor)?;
        }
    }
    Ok(Action::Memory { name, len, rights: rights_found, is_foreign })
}

fn window(cursor: &mut Cursor) -> Parsed<Action> {
    let name = cursor.name("the name of the window")?;
    cursor.keyword("over")?;
    let area = cursor.area()?;
    let mut found = Access::REMOTE_WRITE | Access::REMOTE_READ;
    if cursor.take_word("rights") {
        cursor.sign("=")?;
        found = rights(cursor)?;
    }
    Ok(Action::Window { name, area, rights: found })
}

/// The settings of `post` that are numbers.
const POST_NUMBERS: [&str; 9] = ["id", "va", "rkey", "imm", "invalidate", "add", "compare", "swap", "len"];

fn post(cursor: &mut Cursor) -> Parsed<Posting> {
    let verbs = [
        ("send", Verb::Send),
        ("write", Verb::Write),
        ("read", Verb::Read),
        ("fetch_add", Verb::FetchAdd),
        ("compare_swap", Verb::CompareSwap),
        ("atomic_write", Verb::AtomicWrite),
        ("flush", Verb::Flush),
        ("local_invalidate", Verb::LocalInvalidate),
        ("recv", Verb::Receive),
    ];
    let verb = one_of(&cursor.word("a verb such as write")?, "a verb", &verbs)?;
    let mut posting =
        Posting { verb, numbers: Vec::new(), area: None, has_fence: false, is_solicited: false };
    while !cursor.is_empty() {
        let name = cursor.word("a setting such as id=1")?;
        match name.as_str() {
            "fence" => posting.has_fence = true,
            "solicited" => posting.is_solicited = true,
            "data" => {
                cursor.sign("=")?;
                posting.area = Some(cursor.area()?);
            }
            _ => {
                let known = POST_NUMBERS.iter().find(|known| **known == name);
                let all = POST_NUMBERS.into_iter().chain(["data", "fence", "solicited"]);
                let known = known.ok_or_else(|| unknown("setting of `post`", &name, all))?;
                cursor.sign("=")?;
                posting.numbers.push((known, cursor.expression()?));
            }
        }
    }
    Ok(posting)
}

fn check(cursor: &mut Cursor) -> Parsed<Action> {
    if cursor.take_word("state") {
        cursor.sign("==")?;
        return Ok(Action::CheckState(state(cursor)?));
    }
    if cursor.is_area() {
        let area = cursor.area()?;
        cursor.sign("==")?;
        return Ok(Action::CheckMemory(area, cursor.bytes()?));
    }
    let left = cursor.expression()?;
    let is_equal = cursor.take("==");
    if !is_equal {
        cursor.sign("!=")?;
    }
    Ok(Action::CheckValues(left, is_equal, cursor.expression()?))
}

fn completion(cursor: &mut Cursor) -> Parsed<Completing> {
    cursor.keyword("id")?;
    cursor.sign("=")?;
    let id = cursor.expression()?;
    let statuses: Vec<(&'static str, &'static str)> =
        WcStatus::ALL.map(|status| (status.name(), status.name())).into();
    let name = cursor.word("a status such as success")?.to_uppercase();
    let status = one_of(&name, "a status of a completion", &statuses)?;
    let mut found = Completing { id, status, numbers: Vec::new(), within: None };
    while !cursor.is_empty() {
        if cursor.take_word("within") {
            found.within = Some(cursor.expression()?);
            continue;
        }
        let name = cursor.word("a value such as bytes=16")?;
        let known = ["bytes", "imm", "invalidated"].into_iter();
        let known = known
            .clone()
            .find(|known| *known == name)
            .ok_or_else(|| unknown("value of a completion", &name, known))?;
        cursor.sign("=")?;
        found.numbers.push((known, cursor.expression()?));
    }
    Ok(found)
}

/// The names of asynchronous events.
pub(crate) const EVENTS: [&str; 6] = [
    "qp_fatal",
    "qp_request_error",
    "qp_access_error",
    "communication_established",
    "sq_drained",
    "last_wqe_reached",
];

fn event(cursor: &mut Cursor) -> Parsed<&'static str> {
    let name = cursor.word("an event such as qp_access_error")?;
    one_of(&name, "an event", &EVENTS.map(|name| (name, name)))
}
