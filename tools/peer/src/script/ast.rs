//! The statements of a script.

use roce_packet::PathMtu;
use roce_transport::{Access, QpState, QpType};

use super::error::Place;
use crate::wire::{PacketName, Slot};

/// A script with its includes.
#[derive(Clone, Debug)]
pub struct Script {
    /// The name of the file.
    pub name: String,
    /// The comment in the first line: what the script shows.
    pub title: String,
    /// The statements in order. A loop is a [`Action::Repeat`] with the [`Action::End`] that it names.
    pub statements: Vec<Statement>,
}

impl Script {
    /// Returns the rules that the script names.
    pub fn rules(&self) -> impl Iterator<Item = &str> {
        self.statements.iter().filter_map(|statement| match &statement.action {
            Action::Rule(rule) => Some(rule.as_str()),
            _ => None,
        })
    }
}

/// A statement and its source.
#[derive(Clone, Debug)]
pub struct Statement {
    /// The line.
    pub place: Place,
    /// The text of the line, without its comment.
    pub text: String,
    /// The meaning.
    pub action: Action,
}

/// A number or a time that may depend on variables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expression {
    /// A number.
    Number(i128),
    /// A time in nanoseconds.
    Time(i128),
    /// A variable.
    Name(String),
    /// The negative value.
    Negative(Box<Self>),
    /// Two values and an operator.
    Binary(Box<Self>, Operator, Box<Self>),
}

/// An operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operator {
    /// `+`
    Add,
    /// `-`
    Subtract,
    /// `*`
    Multiply,
    /// `/`, rounded toward zero
    Divide,
    /// `%`
    Remainder,
}

/// A part of the contents of a payload or a memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    /// A byte, and the number of its copies.
    Repeated(Expression, Option<Expression>),
    /// Bytes that the script contains.
    Literal(Vec<u8>),
    /// Bytes of the pattern, from one position to another.
    Pattern(Expression, Expression),
    /// A 64-bit number in the byte order of this machine, as atomics leave it in memory.
    Word(Expression),
}

/// A part of a memory: its name, first byte and end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Area {
    /// The name of the memory.
    pub memory: String,
    /// The first byte.
    pub from: Expression,
    /// The byte behind the last one.
    pub to: Expression,
}

/// The expected value of a field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// This value.
    Equal(Expression),
    /// Any value but this one.
    Unequal(Expression),
    /// Any value.
    Any,
    /// At least the first value, and less than the second one.
    Within(Expression, Expression),
}

/// Settings of the connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connect {
    /// The transport.
    pub qp_type: QpType,
    /// The path MTU.
    pub mtu: PathMtu,
    /// Numbers by name: `psn`, `peer_psn`, `timeout`, `retry`, `rnr_retry`, `rnr_timer`, `reads`, `qkey`.
    pub numbers: Vec<(&'static str, Expression)>,
    /// Rights of the queue pair of the NIC.
    pub rights: Access,
    /// The state of the queue pair of the NIC.
    pub state: QpState,
    /// The congestion control of the queue pair of the NIC, with its parameters.
    pub congestion: Option<String>,
}

/// A packet to send.
#[derive(Clone, Debug)]
pub struct Sending {
    /// The packet.
    pub packet: PacketName,
    /// The fields.
    pub fields: Vec<(Slot, Expression)>,
    /// The payload, if given.
    pub payload: Option<Vec<Piece>>,
    /// Settings outside the BTH: `sport`, `dscp`, `ttl`.
    pub path: Vec<(&'static str, Expression)>,
    /// The ECN bits, if given.
    pub ecn: Option<roce_packet::Ecn>,
    /// Another source or destination address.
    pub source: Option<std::net::IpAddr>,
    /// Another destination address.
    pub destination: Option<std::net::IpAddr>,
    /// Damage by name: `truncated`, `extra`, `flip`, `icrc`.
    pub damage: Vec<(&'static str, Expression)>,
    /// Whether one bit of the ICRC is wrong.
    pub has_wrong_icrc: bool,
}

/// An expected packet.
#[derive(Clone, Debug)]
pub struct Expecting {
    /// The packet.
    pub packet: PacketName,
    /// The fields that are compared.
    pub fields: Vec<(Slot, Wanted)>,
    /// The expected number of bytes of the payload.
    pub bytes: Option<Wanted>,
    /// The expected payload.
    pub payload: Option<Vec<Piece>>,
    /// The expected ECN bits.
    pub ecn: Option<roce_packet::Ecn>,
    /// The time at which it may arrive at the latest, after the previous step.
    pub within: Option<Expression>,
    /// The time at which it may arrive at the earliest, after the previous step.
    pub after: Option<Expression>,
    /// The name under which later steps use its fields.
    pub name: Option<String>,
}

/// The verb of a posted request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// SEND, with `imm` or `invalidate` if given.
    Send,
    /// RDMA WRITE, with `imm` if given.
    Write,
    /// RDMA READ.
    Read,
    /// Fetch and add.
    FetchAdd,
    /// Compare and swap.
    CompareSwap,
    /// Atomic write.
    AtomicWrite,
    /// Flush.
    Flush,
    /// Invalidate a window of the NIC.
    LocalInvalidate,
    /// A receive.
    Receive,
}

/// A work request of the NIC.
#[derive(Clone, Debug)]
pub struct Posting {
    /// The verb.
    pub verb: Verb,
    /// Numbers by name: `id`, `va`, `rkey`, `imm`, `invalidate`, `add`, `compare`, `swap`, `len`.
    pub numbers: Vec<(&'static str, Expression)>,
    /// The memory of the NIC.
    pub area: Option<Area>,
    /// Whether the request waits for earlier READs and atomics.
    pub has_fence: bool,
    /// Whether the request asks for a solicited event.
    pub is_solicited: bool,
}

/// A completion of the NIC.
#[derive(Clone, Debug)]
pub struct Completing {
    /// The identifier of the request.
    pub id: Expression,
    /// The status, as libibverbs names it without its prefix.
    pub status: &'static str,
    /// Numbers by name: `bytes`, `imm`, `invalidated`.
    pub numbers: Vec<(&'static str, Expression)>,
    /// The time at which it is there at the latest, after the previous step.
    pub within: Option<Expression>,
}

/// The meaning of a statement.
#[derive(Clone, Debug)]
pub enum Action {
    /// The rule that the next statements check.
    Rule(String),
    /// Sets a variable.
    Let(String, Expression),
    /// Begins a loop: the number of rounds, the variable that counts them, and the index of its end.
    Repeat(Expression, Option<String>, usize),
    /// Ends a loop, with the index of its beginning.
    End(usize),
    /// Connects a queue pair of the NIC to the script.
    Connect(Box<Connect>),
    /// Registers memory of the NIC: name, length, rights, and whether in another protection domain.
    Memory {
        /// The name.
        name: String,
        /// The length in bytes.
        len: Expression,
        /// The rights of peers.
        rights: Access,
        /// Whether the memory belongs to another protection domain than the queue pair.
        is_foreign: bool,
    },
    /// Binds a window over memory of the NIC.
    Window {
        /// The name.
        name: String,
        /// The memory below it.
        area: Area,
        /// The rights of peers.
        rights: Access,
    },
    /// Writes into memory of the NIC.
    Fill(Area, Vec<Piece>),
    /// Deregisters memory of the NIC.
    Revoke(String),
    /// Posts a request or a receive.
    Post(Box<Posting>),
    /// Moves the queue pair of the NIC to a state.
    Modify(QpState),
    /// Sends a packet.
    Send(Box<Sending>),
    /// Sends these bytes, from BTH to padding, and their ICRC.
    SendRaw(Vec<u8>),
    /// Expects a packet.
    Expect(Box<Expecting>),
    /// Expects no packet for a time.
    ExpectNothing(Expression),
    /// Takes any packets, as many as given, or those of a time.
    Ignore(Expression),
    /// Takes any packets that arrive within a time.
    IgnoreFor(Expression),
    /// Waits. Packets that arrive meanwhile stay for later steps.
    Wait(Expression),
    /// Compares memory of the NIC.
    CheckMemory(Area, Vec<Piece>),
    /// Compares two values.
    CheckValues(Expression, bool, Expression),
    /// Compares the state of the queue pair of the NIC.
    CheckState(QpState),
    /// Expects that a counter grew by a number since its last statement.
    Counter(String, Expression),
    /// Expects a completion.
    Completion(Box<Completing>),
    /// Expects that no completion is there.
    NoCompletion,
    /// Expects an asynchronous event.
    Event(&'static str),
}
