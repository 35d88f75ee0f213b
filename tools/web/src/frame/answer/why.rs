//! The verdict of the engine in words, with the rule behind it.

use roce_packet::fields::{AETH, BTH, ICRC};
use roce_packet::{Datagram, Operation, PathMtu, Position, Qpn};
use roce_transport::{DropReason, GRH_AREA, Invalid, QpType, Reason, Rule, Verdict, Wc, WcFlags, WcStatus};

/// All that is known after the engine has handled a packet.
pub(super) struct Situation<'a> {
    /// The packet, if it can be parsed.
    pub(super) datagram: Option<&'a Datagram<'a>>,
    /// The failure of the queue pair.
    pub(super) reason: Option<&'a Reason>,
    pub(super) qp_type: Option<QpType>,
    /// The completion of the receive.
    pub(super) completion: Option<Wc>,
    /// The rate of the queue pair before and after the packet, in bits per second.
    pub(super) rates: Option<(f64, f64)>,
    /// Number of replies that are shown, and whether more follow.
    pub(super) replies: usize,
    pub(super) has_more: bool,
    /// Whether a reply is a CNP.
    pub(super) has_notification: bool,
    pub(super) mtu: PathMtu,
    /// Whether the first packet of the message was handed over before.
    pub(super) has_begun: bool,
    /// Whether the ICRC was not checked.
    pub(super) is_unsealed: bool,
}

/// Returns the reason for a verdict in sentences, and its rule.
pub(super) fn of(verdict: Verdict, situation: &Situation<'_>) -> (String, &'static str) {
    let (mut text, rule) = match verdict {
        Verdict::Dropped(reason) => dropped(reason, situation),
        Verdict::Handled => match situation.reason {
            Some(reason) => refused(reason, situation),
            None => handled(situation),
        },
    };
    if situation.has_notification {
        text += " The packet has the congestion mark CE, so a CNP goes back.";
    }
    if situation.has_begun {
        text += " Before this packet, the engine got the first packet of the message.";
    }
    if situation.is_unsealed {
        text += " The ICRC was not checked, because it covers the IP header, which is missing here.";
    }
    (text, rule)
}

fn dropped(reason: DropReason, situation: &Situation<'_>) -> (String, &'static str) {
    let unreliable = match situation.qp_type {
        Some(QpType::Ud) => "IBTA 9.8.3",
        _ => "IBTA 9.8.2",
    };
    let (text, rule) = match reason {
        DropReason::Short => ("it is shorter than its headers, its padding and the ICRC", "IBTA 9.6"),
        DropReason::BadLength => ("its length does not fit the opcode, PadCnt or the path MTU", "IBTA 9.6"),
        DropReason::BadVersion => ("its transport version is not 0", BTH.rule),
        DropReason::UnknownOpcode => ("its opcode does not exist", BTH.rule),
        DropReason::Malformed => ("it cannot be parsed", "IBTA 9.6"),
        DropReason::BadIcrc => ("its ICRC is wrong", ICRC.rule),
        DropReason::UnknownQpn => ("no queue pair has its number", "IBTA 9.6.1"),
        DropReason::BadOpcodeForQp => ("its opcode belongs to another transport", "IBTA 9.6.1"),
        DropReason::BadState => ("the queue pair does not receive in its state", "IBTA 10.3"),
        DropReason::BadPkey => {
            ("its P_Key is not that of the queue pair, which is in the default partition", "IBTA 10.9.1.1")
        }
        DropReason::BadQkey => ("its Q_Key is not that of the queue pair", "IBTA 10.2.5"),
        DropReason::BadAddress => ("its addresses are not those of the connection", "IBTA A17"),
        DropReason::OutOfSequence => ("packets before it are missing", "IBTA 9.7.5"),
        DropReason::DuplicateUnanswerable => ("its first copy cannot be answered again", "IBTA 9.7.5"),
        DropReason::UnsentPsn => ("it answers a PSN that was never sent", AETH.rule),
        DropReason::StaleResponse => ("its request was already answered", AETH.rule),
        DropReason::ResponseGap => ("a response before it is missing", AETH.rule),
        DropReason::ReservedSyndrome => ("its syndrome is reserved", AETH.rule),
        DropReason::NoReceive => ("no receive is posted", unreliable),
        DropReason::ReceiveTooSmall => ("the message is longer than its receive", unreliable),
        DropReason::Access => ("the memory key does not permit the access", unreliable),
        DropReason::IncompleteMessage => ("the beginning of its message is missing", unreliable),
        DropReason::LatePacket => ("it is a duplicate, or other packets overtook it", unreliable),
        DropReason::Trimmed => ("a switch removed its payload", "IBTA 9.6"),
        DropReason::NoMulticastMember => ("no queue pair joined the multicast group", "IBTA 9.8.3"),
    };
    (format!("The responder drops the packet without an answer: {text}."), rule)
}

/// Describes a request that moved the queue pair to the error state.
fn refused(reason: &Reason, situation: &Situation<'_>) -> (String, &'static str) {
    let rule = match reason.rule {
        Rule::RemoteAccess { .. } | Rule::LocalKey(_) | Rule::RemoteInvalidate { .. } => "IBTA 10.6",
        Rule::RemoteInvalid { problem: Invalid::Length, .. } => "IBTA 9.7.4.1.6",
        Rule::RemoteInvalid { problem: Invalid::TooLong, .. } => "IBTA 9.7.7",
        Rule::RemoteInvalid { problem: Invalid::Misaligned, .. } => "IBTA 9.3.4",
        Rule::RemoteInvalid { problem: Invalid::Flush, .. } => "IBTA A19",
        _ => "IBTA 9.7",
    };
    let answer = match situation.replies {
        0 => "without an answer",
        _ => "with a NAK",
    };
    let why = &reason.rule;
    (format!("The responder refuses the request {answer}, and its queue pair goes to ERR. {why}."), rule)
}

fn handled(situation: &Situation<'_>) -> (String, &'static str) {
    let Some(datagram) = situation.datagram else {
        return ("The responder handles the packet.".to_owned(), "IBTA 9.6");
    };
    let text = match datagram.info().operation {
        Operation::Cnp => return notification(situation),
        Operation::Send => received(situation, datagram),
        Operation::Write => written(situation, datagram),
        Operation::ReadRequest => read(situation, datagram),
        Operation::CompareSwap | Operation::FetchAdd => {
            let va = datagram.atomic_eth().map_or(0, |atomic| atomic.va);
            format!("The responder changes the 8 bytes at 0x{va:x} and returns their old value.")
        }
        Operation::AtomicWrite => "The responder writes the 8 bytes at once, and answers with an empty READ \
                                   response."
            .to_owned(),
        Operation::Flush => {
            "Earlier writes are flushed, and the responder answers with an empty READ response.".to_owned()
        }
        Operation::ReadResponse
        | Operation::Acknowledge
        | Operation::AtomicAcknowledge
        | Operation::Resync => "The responder handles the packet.".to_owned(),
    };
    let is_plain = matches!(datagram.info().operation, Operation::Send | Operation::Write);
    let (more, rule) = match situation.qp_type {
        Some(QpType::Uc) => (" Packets of UC are not acknowledged.", "IBTA 9.8.2"),
        Some(QpType::Ud) => (" Packets of UD are not acknowledged.", "IBTA 9.8.3"),
        _ if !is_plain => ("", "IBTA 9.7.5"),
        _ if datagram.bth().ack_req => (" AckReq is 1, so an acknowledgement leaves.", "IBTA 9.7.5"),
        _ => (" AckReq is 0, so no acknowledgement leaves now.", "IBTA 9.7.5"),
    };
    (text + more, rule)
}

fn notification(situation: &Situation<'_>) -> (String, &'static str) {
    const GIGABIT: f64 = 1e9;
    let effect = match situation.rates {
        Some((before, after)) => format!(
            "DCQCN changes the rate of the queue pair from {:.1} to {:.1} Gb/s",
            before / GIGABIT,
            after / GIGABIT
        ),
        None => "the queue pair has no congestion control that uses it".to_owned(),
    };
    (format!("A CNP is not a request, and nothing answers it: {effect}."), "IBTA A17.9")
}

/// Describes a completion after the first clause of a sentence.
fn completed(completion: &Wc) -> String {
    if completion.status != WcStatus::Success {
        return format!("A receive completes with {}.", completion.status.name());
    }
    let mut text = format!("A receive completes with {} bytes", completion.byte_len);
    if completion.flags.contains(WcFlags::WITH_IMM) {
        let [a, b, c, d] = completion.imm.0;
        text += &format!(" and the immediate data {a:02x} {b:02x} {c:02x} {d:02x}");
    }
    if completion.flags.contains(WcFlags::WITH_INV) {
        text += &format!(", and the key {} is invalid now", completion.invalidated);
    }
    text + "."
}

fn received(situation: &Situation<'_>, datagram: &Datagram<'_>) -> String {
    match &situation.completion {
        Some(completion) if situation.qp_type == Some(QpType::Ud) => {
            let text = completed(completion);
            let service = match datagram.bth().dest_qp {
                Qpn::GSI => " The connection service of the host gets the message.",
                _ => "",
            };
            format!("{text} The first {GRH_AREA} of these bytes describe the IP header.{service}")
        }
        Some(completion) => completed(completion),
        None => format!(
            "The responder puts {} bytes into a receive and waits for the rest of the message.",
            datagram.payload_len()
        ),
    }
}

fn written(situation: &Situation<'_>, datagram: &Datagram<'_>) -> String {
    let len = datagram.payload_len();
    let mut text = match datagram.reth() {
        Some(reth) => format!("The responder writes {len} bytes to 0x{:x}.", reth.va),
        None => format!("The responder writes {len} bytes behind those of the packet before."),
    };
    if matches!(datagram.info().position, Position::First | Position::Middle) {
        text += " It waits for the rest of the message.";
    }
    if let Some(completion) = &situation.completion {
        text += &format!(" {}", completed(completion));
    }
    text
}

fn read(situation: &Situation<'_>, datagram: &Datagram<'_>) -> String {
    let Some(reth) = datagram.reth() else { return "The responder answers the READ.".to_owned() };
    let mtu = u32::try_from(situation.mtu.bytes()).unwrap_or(u32::MAX);
    let packets = reth.dma_len.div_ceil(mtu).max(1);
    let (len, va) = (reth.dma_len, reth.va);
    let plural = if packets == 1 { "packet" } else { "packets" };
    let mut text = format!(
        "The responder reads {len} bytes at 0x{va:x}, and answers with {packets} {plural} of up to {mtu} \
         bytes."
    );
    if situation.has_more {
        text += &format!(" The first {} of them are shown.", situation.replies);
    }
    text
}
