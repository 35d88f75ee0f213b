//! The InfiniBand transport headers: BTH, the extended headers, and the parts behind them.

use roce_packet::{HeaderSet, NakCode, Opcode, Syndrome};

use super::Show::{Bytes, Decimal, Flag, Hex};
use super::{Field, Header, bits, bytes, mask, some};

const VIRTUAL_ADDRESS: &str = "Address in the memory of the responder, as the owner of that memory told it.";
const REMOTE_KEY: &str =
    "Key that allows this access; the owner of the memory got it when registering the memory, and told it.";

pub(crate) static BTH: Header = Header {
    name: "BTH",
    title: "base transport header",
    purpose: "Begins every packet: what it asks for, of which queue pair, and its place in the sequence.",
    rule: "IBTA 9.2",
    fields: &[
        Field::new(
            "OpCode",
            "infiniband.bth.opcode",
            bytes(0, 1),
            Hex,
            "Transport service in the upper 3 bits, operation and place in the message in the lower 5; \
             decides which headers follow.",
        )
        .note(opcode),
        Field::new(
            "SE",
            "infiniband.bth.se",
            mask(1, 0x80),
            Flag,
            "Solicited event: the receiver's completion should wake the application up.",
        ),
        Field::new(
            "M",
            "infiniband.bth.m",
            mask(1, 0x40),
            Flag,
            "MigReq, the state of path migration; RDMA NICs send 1, Linux rxe 0, and receivers take both.",
        ),
        Field::new(
            "PadCnt",
            "infiniband.bth.padcnt",
            mask(1, 0x30),
            Decimal,
            "Bytes, 0 to 3, that fill the payload up to a multiple of 4; the receiver drops them.",
        ),
        Field::new(
            "TVer",
            "infiniband.bth.tver",
            mask(1, 0x0f),
            Decimal,
            "Version of the transport; other than 0 is dropped.",
        ),
        Field::new(
            "P_Key",
            "infiniband.bth.p_key",
            bytes(2, 2),
            Hex,
            "Partition: both ends must be in the same one; 0xffff, the default partition, practically \
             always in RoCE.",
        )
        .note(partition),
        Field::new(
            "F",
            "roce.bth.fecn",
            mask(4, 0x80),
            Flag,
            "FECN, congestion seen on the way; RoCE v2 uses the ECN bits of IP instead.",
        )
        .variant(),
        Field::new(
            "B",
            "roce.bth.becn",
            mask(4, 0x40),
            Flag,
            "BECN, set in a CNP: the receiver of this packet is to slow down.",
        )
        .variant(),
        Field::reserved("roce.bth.reserved6", mask(4, 0x3f)).variant(),
        Field::new(
            "DestQP",
            "infiniband.bth.destqp",
            bytes(5, 3),
            Hex,
            "Number of the queue pair that is to take the packet, 24 bits; 1 is the one for connection \
             management.",
        )
        .note(queue_pair),
        Field::new(
            "A",
            "infiniband.bth.a",
            mask(8, 0x80),
            Flag,
            "AckReq: the responder should acknowledge this packet at once.",
        ),
        Field::reserved("infiniband.bth.reserved7", mask(8, 0x7f)),
        Field::new(
            "PSN",
            "infiniband.bth.psn",
            bytes(9, 3),
            Decimal,
            "Packet sequence number, 24 bits, counted in a circle; a response carries the number of its \
             request.",
        ),
    ],
};

static RDETH: Header = Header {
    name: "RDETH",
    title: "reliable datagram header",
    purpose: "Names the connection between two nodes that reliable datagrams share.",
    rule: "IBTA 9.3.1",
    fields: &[
        Field::reserved("roce.rdeth.reserved", bytes(0, 1)),
        Field::new(
            "EE context",
            "infiniband.rdeth.eecnxt",
            bytes(1, 3),
            Hex,
            "Number of the end-to-end context, 24 bits.",
        ),
    ],
};

pub(crate) static DETH: Header = Header {
    name: "DETH",
    title: "datagram header",
    purpose: "Tells an unconnected queue pair who sent the datagram, and proves that it may.",
    rule: "IBTA 9.3.2",
    fields: &[
        Field::new(
            "Q_Key",
            "infiniband.deth.q_key",
            bytes(0, 4),
            Hex,
            "Must be the key of the receiving queue pair, or the datagram is dropped.",
        )
        .note(q_key),
        Field::reserved("roce.deth.reserved", bytes(4, 1)),
        Field::new(
            "SrcQP",
            "infiniband.deth.srcqp",
            bytes(5, 3),
            Hex,
            "The queue pair that sent the datagram; where an answer goes.",
        ),
    ],
};

pub(crate) static XRCETH: Header = Header {
    name: "XRCETH",
    title: "extended reliable connection header",
    purpose: "Names the receive queue at the far end of a connection that many processes share.",
    rule: "IBTA A14",
    fields: &[
        Field::reserved("roce.xrceth.reserved", bytes(0, 1)),
        Field::new(
            "XRCSRQ",
            "roce.xrceth.srq",
            bytes(1, 3),
            Hex,
            "Number of the shared receive queue, 24 bits.",
        ),
    ],
};

static FETH: Header = Header {
    name: "FETH",
    title: "flush header",
    purpose: "Says how far data written before must have come until the flush is answered.",
    rule: "IBTA A19",
    fields: &[
        Field::reserved("roce.feth.reserved", bits(0, 0, 26)),
        Field::new(
            "SEL",
            "roce.feth.selectivity",
            mask(3, 0x30),
            Decimal,
            "What to flush: the range in the RETH (0) or the whole memory region (1).",
        ),
        Field::reserved("roce.feth.reserved2", mask(3, 0x0c)),
        Field::new(
            "P",
            "roce.feth.persistence",
            mask(3, 0x02),
            Flag,
            "Persistence: the data must survive a loss of power.",
        ),
        Field::new(
            "G",
            "roce.feth.global_visibility",
            mask(3, 0x01),
            Flag,
            "Global visibility: the data must be seen by everybody at the responder.",
        ),
    ],
};

static RETH: Header = Header {
    name: "RETH",
    title: "RDMA header",
    purpose: "Says which memory of the responder is read or written, and with which right.",
    rule: "IBTA 9.3.3",
    fields: &[
        Field::new("VA", "infiniband.reth.va", bytes(0, 8), Hex, VIRTUAL_ADDRESS),
        Field::new("R_Key", "infiniband.reth.r_key", bytes(8, 4), Hex, REMOTE_KEY),
        Field::new(
            "DMALen",
            "infiniband.reth.dmalen",
            bytes(12, 4),
            Decimal,
            "Bytes of the whole message, however many packets it takes; at most 2^31.",
        ),
    ],
};

// tshark shows address and key of an atomic operation under the names of the RETH.
static ATOMIC_ETH: Header = Header {
    name: "AtomicETH",
    title: "atomic header",
    purpose: "Says which 64-bit number of the responder is changed, and how.",
    rule: "IBTA 9.3.4",
    fields: &[
        Field::new("VA", "infiniband.reth.va", bytes(0, 8), Hex, "Address of the number; a multiple of 8."),
        Field::new("R_Key", "infiniband.reth.r_key", bytes(8, 4), Hex, REMOTE_KEY),
        Field::new(
            "SwapDt",
            "infiniband.atomiceth.swapdt",
            bytes(12, 8),
            Hex,
            "Compare and swap: the new value. Fetch and add: what is added.",
        ),
        Field::new(
            "CmpDt",
            "infiniband.atomiceth.cmpdt",
            bytes(20, 8),
            Hex,
            "Compare and swap: the value that must be there for the new one to be stored. Fetch and \
             add: unused.",
        ),
    ],
};

static AETH: Header = Header {
    name: "AETH",
    title: "acknowledge header",
    purpose: "Says how a request went, and how many messages were completed.",
    rule: "IBTA 9.3.5, 9.7.5",
    fields: &[
        Field::new(
            "Syndrome",
            "infiniband.aeth.syndrome",
            bytes(0, 1),
            Hex,
            "Acknowledged, refused, or not ready; the bits below say more.",
        )
        .note(|value| Some(aeth_text(value as u8))),
        Field::new("reserved", "infiniband.aeth.syndrome.reserved", mask(0, 0x80), Flag, "Sent as zero."),
        Field::new(
            "kind",
            "infiniband.aeth.syndrome.opcode",
            mask(0, 0x60),
            Decimal,
            "0 acknowledged, 1 receiver not ready, 3 refused; 2 is reserved.",
        ),
        Field::new(
            "credits",
            "infiniband.aeth.syndrome.credit_count",
            mask(0, 0x1f),
            Decimal,
            "Code of how many more messages the responder can take: 31 is no limit, and healthy NICs \
             send 0 at times.",
        )
        .when(|aeth| syndrome(aeth) == 0)
        .note(|code| {
            some(match Syndrome::credits(code as u8) {
                Some(credits) => format!("{credits} messages"),
                None => "no limit".to_owned(),
            })
        }),
        Field::new(
            "timer",
            "infiniband.aeth.syndrome.timer",
            mask(0, 0x1f),
            Decimal,
            "Code of the shortest time to wait before trying again, 0.01 to 655.36 ms.",
        )
        .when(|aeth| syndrome(aeth) == 1)
        .note(|code| Some(rnr_time(code as u8))),
        Field::new(
            "NAK code",
            "infiniband.aeth.syndrome.error_code",
            mask(0, 0x1f),
            Decimal,
            "Why the request was refused.",
        )
        .when(|aeth| syndrome(aeth) == 3)
        .note(|code| some(nak_text(NakCode::from_code(code as u8)))),
        Field::new(
            "value",
            "infiniband.aeth.syndrome.reserved_value",
            mask(0, 0x1f),
            Decimal,
            "Without meaning while the bits before it are reserved.",
        )
        .when(|aeth| syndrome(aeth) == 2),
        Field::new(
            "MSN",
            "infiniband.aeth.msn",
            bytes(1, 3),
            Decimal,
            "How many request messages the responder has completed, 24 bits, counted in a circle.",
        ),
    ],
};

pub(crate) static ATOMIC_ACK_ETH: Header = Header {
    name: "AtomicAckETH",
    title: "atomic acknowledge header",
    purpose: "Brings back what an atomic operation found.",
    rule: "IBTA 9.3.5.3",
    fields: &[Field::new(
        "OrigRemDt",
        "infiniband.atomicacketh.origremdt",
        bytes(0, 8),
        Hex,
        "The value that was in the responder's memory before the operation.",
    )],
};

static IMMDT: Header = Header {
    name: "ImmDt",
    title: "immediate data",
    purpose: "Four bytes that reach the receiving application in its completion, beside the payload.",
    rule: "IBTA 9.3.6",
    fields: &[Field::new(
        "ImmDt",
        "infiniband.immdt",
        bytes(0, 4),
        Bytes,
        "Handed over as the four bytes that they are, in no byte order.",
    )],
};

static IETH: Header = Header {
    name: "IETH",
    title: "invalidate header",
    purpose: "Takes back a key of the receiver's memory together with a SEND.",
    rule: "IBTA 9.3.7",
    fields: &[Field::new(
        "R_Key",
        "infiniband.ieth",
        bytes(0, 4),
        Bytes,
        "The key that is not valid any more once the message has been received.",
    )],
};

pub(crate) static CNP: Header = Header {
    name: "CNP",
    title: "congestion notification",
    purpose: "Has no content: that it arrives tells the sender of a flow to slow down.",
    rule: "IBTA A17.9",
    fields: &[Field::new("reserved", "roce.cnp.reserved", bytes(0, 16), Bytes, "16 bytes, sent as zero.")],
};

pub(crate) static PAYLOAD: Header = Header {
    name: "payload",
    title: "payload",
    purpose: "The bytes of the application.",
    rule: "IBTA 9.2",
    fields: &[],
};

pub(crate) static PADDING: Header = Header {
    name: "pad",
    title: "padding",
    purpose: "Fills the payload up to a multiple of 4 bytes; the ICRC covers it.",
    rule: "IBTA 9.2",
    fields: &[],
};

pub(crate) static ICRC: Header = Header {
    name: "ICRC",
    title: "invariant CRC",
    purpose: "Protects everything that does not change between the two ends; a receiver drops what does \
              not match.",
    rule: "IBTA 7.8.1, A17.3",
    fields: &[Field::new(
        "ICRC",
        "infiniband.invariant.crc",
        bytes(0, 4),
        Hex,
        "CRC-32 over the masked packet, written here as it lies on the wire, which is lowest byte first.",
    )],
};

/// The extended headers by their flag. The flags stand in wire order, and so does this list.
pub(crate) static EXTENDED: [(HeaderSet, &Header); 10] = [
    (HeaderSet::RDETH, &RDETH),
    (HeaderSet::DETH, &DETH),
    (HeaderSet::XRCETH, &XRCETH),
    (HeaderSet::FETH, &FETH),
    (HeaderSet::RETH, &RETH),
    (HeaderSet::ATOMIC_ETH, &ATOMIC_ETH),
    (HeaderSet::AETH, &AETH),
    (HeaderSet::ATOMIC_ACK_ETH, &ATOMIC_ACK_ETH),
    (HeaderSet::IMMDT, &IMMDT),
    (HeaderSet::IETH, &IETH),
];

/// A syndrome in words.
pub(crate) fn aeth_text(syndrome: u8) -> String {
    match Syndrome::from_byte(syndrome) {
        Syndrome::Ack { credit_code } => match Syndrome::credits(credit_code) {
            Some(1) => "ACK 1 credit".to_owned(),
            Some(credits) => format!("ACK {credits} credits"),
            None => "ACK".to_owned(),
        },
        Syndrome::RnrNak { timer } => format!("RNR NAK wait {}", rnr_time(timer.code())),
        Syndrome::Nak(code) => format!("NAK {}", nak_text(code)),
        Syndrome::Reserved(byte) => format!("reserved syndrome 0x{byte:02x}"),
    }
}

fn syndrome(aeth: &[u8]) -> u8 {
    // tshark takes the highest bit by itself, so the kind has two bits.
    aeth.first().map_or(0, |byte| byte >> 5 & 0b11)
}

fn nak_text(code: NakCode) -> String {
    match code {
        NakCode::PsnSequence => "PSN sequence error".to_owned(),
        NakCode::InvalidRequest => "invalid request".to_owned(),
        NakCode::RemoteAccess => "remote access error".to_owned(),
        NakCode::RemoteOperational => "remote operational error".to_owned(),
        NakCode::InvalidRdRequest => "invalid RD request".to_owned(),
        NakCode::Reserved(code) => format!("reserved code {code}"),
    }
}

fn rnr_time(code: u8) -> String {
    match roce_packet::RnrTimer::new(code) {
        // Every time in the table is a multiple of 10 us.
        Some(timer) => {
            let hundredths = timer.delay_ns() / 10_000;
            format!("{}.{:02} ms", hundredths / 100, hundredths % 100)
        }
        None => format!("reserved code {code}"),
    }
}

fn opcode(value: u64) -> Option<String> {
    match Opcode(value as u8).name() {
        Some(name) => some(name),
        None if value >= 0xc0 => some("manufacturer's own"),
        None => some("not assigned"),
    }
}

fn partition(value: u64) -> Option<String> {
    match value {
        0xffff => some("default partition, full member"),
        0x7fff => some("default partition, limited member"),
        value if value & 0x8000 != 0 => some("full member"),
        _ => some("limited member"),
    }
}

fn queue_pair(value: u64) -> Option<String> {
    match value {
        0 => some("subnet management, unused in RoCE"),
        1 => some("connection management (GSI)"),
        0xff_ffff => some("multicast"),
        _ => None,
    }
}

pub(super) fn q_key(value: u64) -> Option<String> {
    match value {
        0x8001_0000 => some("connection management"),
        0x0123_4567 => some("rdma_cm"),
        0x1111_1111 => some("ibv_ud_pingpong, perftest"),
        value if value & 0x8000_0000 != 0 => some("privileged"),
        _ => None,
    }
}
