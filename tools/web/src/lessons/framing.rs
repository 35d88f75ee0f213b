//! Lesson 1: the headers of a frame.

use roce_packet::{
    Bth, Datagram, DatagramWriter, Encapsulation, Envelope, Frame, FrameHeaders, HeaderSet, MacAddr, Opcode,
    Path, Psn, Qpn, VlanHeader, icrc,
};
use roce_sim::pair::{Settings, Side};

use super::answer::{AnswerKey, Expected, Outcome, from_hex, hex};
use super::scene::Scene;

/// The frame of task 1: a SEND of 21 bytes in a VLAN, packet 11 of `pcaps/vlan.pcapng`.
pub const FRAME: &str = "0200c00002020200c0000201810060640800450200440000400040\
    11b6a3c0000201c0000202d55112b7003000000470ffff000009b78095357f416c6c206f6620746869732077617320\
    73656e74200000008f9bcf1e";
/// The length of the message of task 2, in bytes.
const LEN_OF_TASK_2: usize = 1021;
/// The length of the message of task 4, in bytes.
const LEN_OF_TASK_4: usize = 5000;
/// Length of the frame check sequence of Ethernet, in bytes.
const FCS_LEN: usize = 4;

/// Judges an answer.
pub fn check(task: usize, answer: &str) -> Option<Outcome> {
    let key = match task {
        1 => start_of_bth()?,
        2 => length_of_frame()?,
        3 => headers_of_last()?,
        4 => second_opcode()?,
        _ => return None,
    };
    Some(key.judge(answer))
}

fn number(value: usize) -> Expected {
    Expected::Number(value as u64)
}

fn start_of_bth() -> Option<AnswerKey> {
    let bytes = from_hex(FRAME);
    let headers = Frame::parse(&bytes).ok()?.headers;
    let (network, udp, bth) = (headers.network_offset(), headers.udp_offset()?, headers.len_bytes());
    let shows = format!(
        "The IPv4 header begins at byte {network}, behind Ethernet and the VLAN tag. The UDP header begins at \
         byte {udp}, the BTH at byte {bth}."
    );
    let key = AnswerKey::new(number(bth), shows)
        .hint(
            number(bth - VlanHeader::LEN),
            format!(
                "You have left out the VLAN tag: {} bytes behind the Ethernet addresses.",
                VlanHeader::LEN
            ),
        )
        .hint(number(bth - network), "You have counted from the IPv4 header. Count from the frame's start.")
        .hint(number(udp), "The UDP header begins there. The BTH follows it.")
        .hint(number(bth + 1), "You have counted from 1. The first byte of the frame is byte 0.")
        .hint(number(bth + Bth::LEN), "The BTH ends before that byte. The question asks where it begins.")
        .otherwise("Add the lengths of all headers before the BTH: Ethernet, VLAN tag, IPv4 and UDP.");
    Some(key)
}

fn length_of_frame() -> Option<AnswerKey> {
    let path = path();
    let mut buffer = vec![0; LEN_OF_TASK_2 + 64];
    let bth = Bth::new(Opcode::RC_SEND_ONLY, Qpn::new(0x12), Psn::new(5));
    let mut writer = DatagramWriter::new(&mut buffer, &bth).ok()?;
    writer.payload_slot(LEN_OF_TASK_2).ok()?;
    let datagram = writer.finish(&Envelope::new(&path, 0)).ok()?;
    let pad = usize::from(Datagram::parse(buffer.get(..datagram)?, &[]).ok()?.bth().pad_count);
    let none = MacAddr::ZERO;
    let outer = FrameHeaders::new(&path, 0, none, none, datagram).ok()?.len_bytes();
    let frame = outer + datagram;
    let shows = format!(
        "{outer} bytes of headers before the BTH, {} of BTH, {LEN_OF_TASK_2} of payload, {pad} of padding and \
         {} of ICRC: {frame} bytes.",
        Bth::LEN,
        icrc::LEN
    );
    let key = AnswerKey::new(number(frame), shows)
        .hint(number(frame - pad), "You have left out the padding: the payload is filled to a multiple of 4.")
        .hint(number(frame - icrc::LEN), "You have left out the ICRC, the last 4 bytes of every packet.")
        .hint(number(frame - icrc::LEN - pad), "You have left out the padding and the ICRC.")
        .hint(
            number(frame + FCS_LEN),
            "You have counted the FCS of Ethernet, too. The question leaves it out.",
        )
        .hint(number(datagram), "That is the length from the BTH on. The frame has three headers before it.")
        .otherwise("Add Ethernet, IPv4, UDP, BTH, payload, padding and ICRC.");
    Some(key)
}

fn headers_of_last() -> Option<AnswerKey> {
    let text = |opcode: Opcode| Some(Expected::text(names(opcode.info()?.headers)));
    let right = Opcode::RC_RDMA_WRITE_LAST_WITH_IMM;
    let shows = format!("{right} in the table of opcodes: {}.", names(right.info()?.headers));
    let key = AnswerKey::new(text(right)?, shows)
        .hint(
            text(Opcode::RC_RDMA_WRITE_FIRST)?,
            "The first packet of a WRITE has this header. It names the memory for all packets of the message.",
        )
        .hint(
            text(Opcode::RC_RDMA_WRITE_ONLY_WITH_IMM)?,
            "These are the headers of a WRITE with immediate data in a single packet. This one is the last of \
             several.",
        )
        .hint(text(Opcode::RC_RDMA_WRITE_LAST)?, "That is right without immediate data. This packet carries it.")
        .otherwise("Look at the table of opcodes: the last packet, with immediate data.");
    Some(key)
}

/// Returns the names of extended headers, as in the choices of task 3.
fn names(headers: HeaderSet) -> String {
    let all = [(HeaderSet::RETH, "RETH"), (HeaderSet::IMMDT, "ImmDt")];
    let found: Vec<&str> =
        all.iter().filter(|(flag, _)| headers.contains(*flag)).map(|(_, name)| *name).collect();
    if found.is_empty() { "no header".to_owned() } else { found.join(", then ") }
}

fn second_opcode() -> Option<AnswerKey> {
    let mut scene = Scene::new(&Settings::default());
    scene.write(LEN_OF_TASK_4)?;
    scene.run_for(1000);
    let sent = scene.sent_by(Side::A);
    let byte = |opcode: Opcode| Expected::Bytes(vec![opcode.0]);
    let (first, second, last) = (sent.first()?.opcode, sent.get(1)?.opcode, sent.last()?.opcode);
    let shows = format!("{}The opcode of {second} is 0x{}.", scene.lines(), hex(&[second.0]));
    let key = AnswerKey::new(byte(second), shows)
        .hint(byte(first), "That is the opcode of the first packet. The question asks for the second.")
        .hint(byte(last), "That is the opcode of the last packet. The message needs more than two packets.")
        .hint(byte(Opcode::RC_RDMA_WRITE_ONLY), "That opcode is for a message that fits into one packet.")
        .hint(byte(Opcode::RC_SEND_MIDDLE), "That is a middle packet of a SEND. The operation is a WRITE.")
        .otherwise("The message needs several packets. Look for the opcode of a middle packet of a WRITE.");
    Some(key)
}

fn path() -> Path {
    Path {
        encapsulation: Encapsulation::RoceV2,
        source: [192, 0, 2, 1].into(),
        destination: [192, 0, 2, 2].into(),
        source_port: 0xc000,
        traffic_class: 0,
        hop_limit: 64,
        flow_label: 0,
        vlan: None,
    }
}
