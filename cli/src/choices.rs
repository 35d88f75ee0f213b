//! The values of options that stand for enums of the tools, which do not know the command line.

use roce_bridge::Origin;
use roce_measure::measure::{Completion, Op, Post, Signal};
use roce_measure::perf::{AtomicOp, Connection, Test, Verb};
use roce_measure::pingpong::Kind;

use crate::choice::Choice;
pub(super) use crate::choice::one_of;

/// `--from` of `roce bridge`.
pub(super) const ORIGINS: &[Choice<Origin>] = &[
    ("left", "Packets from the left", Origin::Left),
    ("right", "Packets from the right", Origin::Right),
    ("both", "All packets", Origin::Both),
];

/// `--op` of `roce ping` and `roce blast`.
pub(super) const OPS: &[Choice<Op>] = &[
    ("send", "Sends messages with SEND", Op::Send),
    ("write", "Writes messages with WRITE. ping writes, then reads the same bytes with READ", Op::Write),
    (
        "write-imm",
        "Writes messages with WRITE with immediate data, which completes a receive of the other side",
        Op::WriteImm,
    ),
    ("read", "Reads messages with READ", Op::Read),
];

/// `--completion` of `roce ping` and `roce blast`.
pub(super) const COMPLETIONS: &[Choice<Completion>] = &[
    ("poll", "Polls the completion queue", Completion::Poll),
    ("event", "Waits for completion events", Completion::Event),
    (
        "memory",
        "ping with WRITE: polls memory for the last byte of the message; each side writes, and there is no \
         READ",
        Completion::Memory,
    ),
];

/// `--post` of `roce ping` and `roce blast`.
pub(super) const POSTS: &[Choice<Post>] = &[
    ("single", "Posts each request alone", Post::Single),
    ("list", "Posts one list of requests for all free buffers", Post::List),
];

/// `--signal` of `roce ping` and `roce blast`.
pub(super) const SIGNALS: &[Choice<Signal>] = &[
    ("full", "Signals every request", Signal::Full),
    ("periodic", "Signals one of N/2 requests, where N is the number of buffers", Signal::Periodic),
];

/// The operation of `roce perf`.
pub(super) const VERBS: &[Choice<Verb>] = &[
    ("write", "RDMA WRITE", Verb::Write),
    ("send", "SEND", Verb::Send),
    ("read", "RDMA READ", Verb::Read),
    ("atomic", "Atomic operations of 8 bytes", Verb::Atomic),
];

/// The quantity of `roce perf`.
pub(super) const TESTS: &[Choice<Test>] =
    &[("bw", "Bandwidth", Test::Bandwidth), ("lat", "Latency", Test::Latency)];

/// `--connection` of `roce perf`.
pub(super) const CONNECTIONS: &[Choice<Connection>] = &[
    ("RC", "Reliable connection", Connection::Rc),
    ("UC", "Unreliable connection", Connection::Uc),
    ("UD", "Unreliable datagram", Connection::Ud),
];

/// `--atomic_type` of `roce perf`.
pub(super) const ATOMIC_OPS: &[Choice<AtomicOp>] = &[
    ("FETCH_AND_ADD", "Adds 1", AtomicOp::FetchAdd),
    ("CMP_AND_SWAP", "Replaces 0 by 0", AtomicOp::CompareSwap),
];

/// The program of `roce pingpong`.
pub(super) const KINDS: &[Choice<Kind>] = &[
    ("rc", "Reliable connection", Kind::Rc),
    ("uc", "Unreliable connection", Kind::Uc),
    ("ud", "Unreliable datagram", Kind::Ud),
    ("srq", "Reliable connections that share a receive queue", Kind::Srq),
];

#[cfg(test)]
mod tests {
    use serde::Serialize;

    use super::*;

    /// Checks that the options have the names that JSON documents have.
    fn check_names<T: Copy + Serialize>(choices: &[Choice<T>]) {
        for (name, _, value) in choices {
            assert_eq!(serde_json::to_value(value).unwrap(), *name);
        }
    }

    #[test]
    fn values_have_one_name_in_options_and_in_documents() {
        check_names(OPS);
        check_names(COMPLETIONS);
        check_names(POSTS);
        check_names(SIGNALS);
        check_names(VERBS);
        check_names(TESTS);
        check_names(CONNECTIONS);
        check_names(ATOMIC_OPS);
        assert!(VERBS.iter().all(|(name, _, verb)| *name == verb.name()));
        assert!(TESTS.iter().all(|(name, _, test)| *name == test.name()));
        assert!(KINDS.iter().all(|(name, _, kind)| *name == kind.name()));
    }
}
