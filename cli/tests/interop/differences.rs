//! What the Soft-RoCE of two kernels does differently from the scripts of `roce peer`, in a form that can be
//! reported to its maintainers. `scripts.rs` compares it with the kernels and writes the page.

/// The kernels, in the order of the verdicts.
pub(crate) const KERNELS: [&str; 2] = ["6.1", "6.12"];

/// The outcome of a script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Passes,
    /// The line that fails (0 after the last one), and what came instead, without times.
    Fails(usize, &'static str),
    /// The script does not apply, and the reason.
    Lacks(&'static str),
    /// The machine crashes, and its message. The script is not run.
    Crashes(&'static str),
    /// The script passes in some runs, and fails with an end of this text in others.
    Varies(&'static str),
}

use Verdict::{Crashes, Fails, Lacks, Passes, Varies};

impl Verdict {
    /// Returns the column in tables of counts.
    pub(crate) const fn index(self) -> usize {
        match self {
            Passes => 0,
            Fails(..) | Crashes(_) | Varies(_) => 1,
            Lacks(_) => 2,
        }
    }
}

/// A difference, with the scripts that show it.
#[derive(Debug)]
pub(crate) struct Difference {
    pub(crate) title: &'static str,
    /// What the kernel does, and what the specification says about it.
    pub(crate) text: &'static str,
    pub(crate) scripts: &'static [(&'static str, [Verdict; 2])],
}

pub(crate) const DIFFERENCES: &[Difference] = &[
    Difference {
        title: "A WRITE whose payload is longer than its RETH says crashes the machine",
        text: "The script sends a WRITE whose RETH announces 0 bytes, with 1 byte behind it. Soft-RoCE does not compare the\n\
               length of the datagram with the header, and looks up no region for a WRITE of 0 bytes. Then it copies the byte\n\
               into the missing region. Linux 6.1 dereferences a null pointer in `rxe_mr_copy` in interrupt context and panics.\n\
               Linux 6.12 notices the missing region and answers NAK remote access error, where a packet with a wrong length\n\
               is to be dropped. A connected peer needs no key for this packet: it is a security problem of 6.1.",
        scripts: &[(
            "drop-odd-length",
            [
                Crashes("NULL pointer dereference in rxe_mr_copy, kernel panic"),
                Fails(5, "nak access migreq=0 psn=100 msn=0"),
            ],
        )],
    },
    Difference {
        title: "A memory window does not limit the range",
        text: "The second WRITE of the script ends one byte behind a window of type 2 and inside its region. Soft-RoCE compares\n\
               the address only with the region, so the peer can access the whole region through the key of any window over\n\
               it. IBTA 10.6.7 limits a window to the range that it was bound to.",
        scripts: &[(
            "window-range",
            [
                Fails(9, "ack migreq=0 psn=101 msn=2: its syndrome is 0x1f (ACK), msn is 2, not 1"),
                Fails(9, "ack migreq=0 psn=101 msn=2: its syndrome is 0x1f (ACK), msn is 2, not 1"),
            ],
        )],
    },
    Difference {
        title: "A receive completion does not say which key was invalidated",
        text: "After a SEND with invalidate, programs see a completion with `IBV_WC_IP_CSUM_OK` instead of `IBV_WC_WITH_INV`.\n\
               The kernel copies its own flag `IB_WC_WITH_INVALIDATE` (bit 2) into the completion queue that user space reads;\n\
               in libibverbs the flag is bit 3. The window itself is closed.",
        scripts: &[(
            "send-invalidate",
            [
                Fails(11, "completion id=1 SUCCESS: no invalidated"),
                Fails(11, "completion id=1 SUCCESS: no invalidated"),
            ],
        )],
    },
    Difference {
        title: "The first acknowledgement of a duplicate has PSN 0xffffff",
        text: "A queue pair that expects PSN 100 and has executed nothing receives a duplicate. Its acknowledgement carries\n\
               PSN 0xffffff instead of 99: the PSN of acknowledgements is not initialized from the expected PSN when the queue\n\
               pair goes to RTR.",
        scripts: &[(
            "psn-far-behind",
            [
                Fails(5, "ack migreq=0 psn=16777215 msn=0: psn is 0xffffff, not 99"),
                Fails(5, "ack migreq=0 psn=16777215 msn=0: psn is 0xffffff, not 99"),
            ],
        )],
    },
    Difference {
        title: "A sequence NAK follows an RNR NAK",
        text: "After an RNR NAK, Soft-RoCE answers the next request with a sequence NAK for the PSN that the RNR NAK named.\n\
               IBTA 9.7.5.2.8 lets a responder drop later requests without an answer until the refused request is repeated. A\n\
               requester that obeys the second NAK repeats the request before the RNR time is over.",
        scripts: &[(
            "rnr-drops-later",
            [
                Fails(10, "nak sequence migreq=0 psn=100 msn=0"),
                Fails(10, "nak sequence migreq=0 psn=100 msn=0"),
            ],
        )],
    },
    Difference {
        title: "A READ that is repeated from the middle is not answered with a First packet",
        text: "The repeated request is a READ of its own length from a later PSN. Soft-RoCE continues the old response with a\n\
               Middle packet, without an AETH. A requester that treats the repeated request as a request cannot use it.",
        scripts: &[(
            "read-duplicate-part",
            [
                Fails(9, "read_response_middle migreq=0 psn=101 bytes=256: it is not read_response_first"),
                Fails(9, "read_response_middle migreq=0 psn=101 bytes=256: it is not read_response_first"),
            ],
        )],
    },
    Difference {
        title: "Lengths of packets are not checked (6.1)",
        text: "The check of lengths in Linux 6.1 tests bits of the opcode instead of bits of its mask, so no packet is ever\n\
               refused by it. An empty Last packet completes a SEND, and a READ of more than 2^31 bytes is refused only\n\
               because of its key. Linux 6.12 checks both.",
        scripts: &[
            (
                "length-above-2-31",
                [
                    Fails(
                        6,
                        "nak access migreq=0 psn=100 msn=0: its syndrome is 0x62 (NAK remote access error)",
                    ),
                    Passes,
                ],
            ),
            (
                "length-last-empty",
                [Fails(8, "ack migreq=0 psn=101 msn=1: its syndrome is 0x1f (ACK), msn is 1, not 0"), Passes],
            ),
        ],
    },
    Difference {
        title: "A message that is longer than its receive is a remote operational error",
        text: "Soft-RoCE answers NAK remote operational error. IBTA 9.7.4.1.6 counts the length of a message among the\n\
               checks of a request, whose NAK is invalid request.",
        scripts: &[(
            "length-above-receive",
            [
                Fails(
                    7,
                    "nak operational migreq=0 psn=100 msn=0: its syndrome is 0x63 (NAK remote operational error)",
                ),
                Fails(
                    7,
                    "nak operational migreq=0 psn=100 msn=0: its syndrome is 0x63 (NAK remote operational error)",
                ),
            ],
        )],
    },
    Difference {
        title: "Asynchronous events are missing",
        text: "Soft-RoCE raises neither the event of a request that fails the responder (`IBV_EVENT_QP_REQ_ERR`) nor that of\n\
               the first packet in RTR (`IBV_EVENT_COMM_EST`). A server learns only from flushed receives that its queue pair\n\
               failed.",
        scripts: &[
            ("order-middle-first", [Fails(7, "no event"), Fails(7, "no event")]),
            ("state-rtr", [Fails(6, "no event"), Fails(6, "no event")]),
        ],
    },
    Difference {
        title: "An acknowledgement of a PSN that was not sent completes requests",
        text: "Soft-RoCE compares a PSN only with the oldest request, not with the last one that was sent. An acknowledgement\n\
               from the future completes every request before it.",
        scripts: &[(
            "request-ack-unsent",
            [Fails(8, "a completion: id=1 SUCCESS"), Fails(8, "a completion: id=1 SUCCESS")],
        )],
    },
    Difference {
        title: "A reserved syndrome completes requests",
        text: "Bit 7 of a syndrome is reserved. Soft-RoCE looks only at the bits that name the kind, so syndrome 0x80 counts as\n\
               an acknowledgement.",
        scripts: &[(
            "request-syndrome-reserved",
            [Fails(8, "a completion: id=1 SUCCESS"), Fails(8, "a completion: id=1 SUCCESS")],
        )],
    },
    Difference {
        title: "A missing READ response is noticed only after the timeout",
        text: "After a response with a later PSN, Soft-RoCE waits for its local ACK timeout (1.07 s here) instead of asking\n\
               again at once. IBTA 9.7.5.1.3 allows this, but each lost response costs a timeout.",
        scripts: &[("request-read-gap", [Fails(9, "nothing arrived"), Fails(9, "nothing arrived")])],
    },
    Difference {
        title: "A READ response that is too short leaves the READ open",
        text: "The only response has 15 of 16 bytes. Soft-RoCE copies them and neither completes the READ nor fails it until its\n\
               retries are over. IBTA 9.7.6 makes such a response an error of the request.",
        scripts: &[("request-read-short", [Fails(8, "no completion"), Fails(8, "no completion")])],
    },
    Difference {
        title: "A READ response to a WRITE has the status of a fatal error",
        text: "The completion has `IBV_WC_FATAL_ERR`. The status for an answer of the wrong kind is `IBV_WC_BAD_RESP_ERR`.",
        scripts: &[(
            "request-response-to-write",
            [
                Fails(8, "completion id=1 FATAL_ERR: status is FATAL_ERR"),
                Fails(8, "completion id=1 FATAL_ERR: status is FATAL_ERR"),
            ],
        )],
    },
    Difference {
        title: "MigReq is 0",
        text: "A queue pair without an alternate path is in the state MIGRATED, and then MigReq is 1 in every packet. Soft-RoCE\n\
               sends 0. Receivers without path migration ignore the bit.",
        scripts: &[(
            "request-write",
            [
                Fails(
                    7,
                    "write_first migreq=0 psn=500 va=0x1000 rkey=0x77 len=600 bytes=256: migreq is 0, not 1",
                ),
                Fails(
                    7,
                    "write_first migreq=0 psn=500 va=0x1000 rkey=0x77 len=600 bytes=256: migreq is 0, not 1",
                ),
            ],
        )],
    },
    Difference {
        title: "The ICRC of a FLUSH covers the headers twice (6.12)",
        text: "Soft-RoCE refuses a FLUSH with a correct ICRC, and sends FLUSHes with a wrong one. Its table of opcodes has no\n\
               payload offset for FLUSH, so the headers count as payload too. Linux 6.1 has neither FLUSH nor ATOMIC WRITE.",
        scripts: &[
            ("flush", [Lacks("this NIC does not support RC_FLUSH"), Fails(6, "nothing arrived")]),
            ("atomic-write", [Lacks("this NIC does not support RC_ATOMIC_WRITE"), Passes]),
        ],
    },
    Difference {
        title: "Marked packets cause no CNP",
        text: "Soft-RoCE has no congestion control for ECN marks (annex A17.9). A sender does not learn of a congested switch.",
        scripts: &[
            (
                "cnp-after-mark",
                [
                    Fails(6, "ack migreq=0 psn=100 msn=1: it is not cnp"),
                    Fails(6, "ack migreq=0 psn=100 msn=1: it is not cnp"),
                ],
            ),
            ("cnp-interval", [Fails(6, "nothing arrived"), Fails(6, "nothing arrived")]),
        ],
    },
    Difference {
        title: "A local ACK timeout may be over early",
        text: "Soft-RoCE rounds the timeout down to whole ticks of the kernel, 4 ms here, and the first tick may be over at\n\
               once. The timeout of 4.19 ms of these scripts then ends after less than one tick. IBTA 9.7.6.1.3 gives the lower\n\
               limit. Whether a script shows it depends on the time at which it runs.",
        scripts: &[
            ("request-timeout", [Varies("too early"), Varies("too early")]),
            ("request-timeout-last", [Varies("too early"), Varies("too early")]),
            ("request-atomic-timeout", [Varies("too early"), Varies("too early")]),
        ],
    },
    Difference {
        title: "Not applicable over a UDP socket or through verbs",
        text: "These scripts send from or to other addresses, from source port 0, or choose a congestion control. They say nothing\n\
               about the kernel here.",
        scripts: &[
            (
                "cnp-received",
                [
                    Lacks("verbs cannot choose the congestion control of this NIC"),
                    Lacks("verbs cannot choose the congestion control of this NIC"),
                ],
            ),
            (
                "cnp-unknown-qp",
                [
                    Lacks("verbs cannot choose the congestion control of this NIC"),
                    Lacks("verbs cannot choose the congestion control of this NIC"),
                ],
            ),
            (
                "drop-destination-address",
                [
                    Lacks("this device cannot send to an address that is not that of the NIC"),
                    Lacks("this device cannot send to an address that is not that of the NIC"),
                ],
            ),
            (
                "drop-source-address",
                [
                    Lacks("this device cannot send from another address"),
                    Lacks("this device cannot send from another address"),
                ],
            ),
            (
                "source-port",
                [
                    Lacks("this device cannot send from this source port"),
                    Lacks("this device cannot send from this source port"),
                ],
            ),
        ],
    },
];
