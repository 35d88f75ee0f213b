//! The statements `send` and `expect`.

use std::net::IpAddr;

use roce_packet::{Ecn, OpcodeInfo};

use super::ast::{Action, Expecting, Expression, Sending, Wanted};
use super::cursor::{Cursor, Parsed};
use crate::suggest::{one_of, suggestion, unknown};
use crate::wire::{AnswerKind, PacketName, nak_code, packet_names, slot, slots_of};

/// Reads the name of a packet.
fn packet(cursor: &mut Cursor) -> Parsed<(PacketName, &'static OpcodeInfo)> {
    let name = cursor.word("the name of a packet such as write_only")?;
    let mut packet = PacketName::parse(&name).ok_or_else(|| {
        let names: Vec<String> = packet_names().collect();
        format!(
            "there is no packet `{name}`{}; docs/how-to/peer.md lists them",
            suggestion(&name, names.iter().map(String::as_str))
        )
    })?;
    if let (Some(AnswerKind::Nak(_)), Some(super::lexer::Token::Word(code))) = (packet.answer, cursor.peek())
        && let Some(code) = nak_code(code)
    {
        packet.answer = Some(AnswerKind::Nak(Some(code)));
        cursor.next();
    }
    let info = packet.opcode.info().ok_or("the opcode is not assigned")?;
    Ok((packet, info))
}

const ECN: [(&str, Ecn); 4] = [
    ("none", Ecn::NotCapable),
    ("ect0", Ecn::Capable0),
    ("ect1", Ecn::Capable1),
    ("ce", Ecn::CongestionExperienced),
];

/// Settings of sent packets outside the BTH.
const PATH_NUMBERS: [&str; 3] = ["sport", "dscp", "ttl"];
const DAMAGE_NUMBERS: [&str; 3] = ["truncated", "extra", "flip"];

pub(super) fn send(cursor: &mut Cursor) -> Parsed<Action> {
    if cursor.take_word("raw") {
        return match cursor.bytes()?.as_slice() {
            [super::ast::Piece::Literal(bytes)] => Ok(Action::SendRaw(bytes.clone())),
            _ => Err("`send raw` takes the bytes as hex\"...\"".to_owned()),
        };
    }
    let (packet, info) = packet(cursor)?;
    let mut sending = Sending {
        packet,
        fields: Vec::new(),
        payload: None,
        path: Vec::new(),
        ecn: None,
        source: None,
        destination: None,
        damage: Vec::new(),
        has_wrong_icrc: false,
    };
    while !cursor.is_empty() {
        let name = cursor.word("a field such as psn=100")?;
        if !cursor.take("=") {
            let slot = slot(&name, info).filter(|slot| slot.width() == 1);
            let slot = slot.ok_or_else(|| no_flag(&name, info))?;
            sending.fields.push((slot, Expression::Number(1)));
            continue;
        }
        send_setting(cursor, &name, info, &mut sending)?;
    }
    let needs_psn =
        info.offset_of(roce_packet::HeaderSet::DETH).is_none() && packet.opcode != roce_packet::Opcode::CNP;
    if needs_psn && !sending.fields.iter().any(|(slot, _)| slot.name == "psn") {
        return Err("the packet has no sequence number; add psn=NUMBER".to_owned());
    }
    Ok(Action::Send(Box::new(sending)))
}

fn send_setting(cursor: &mut Cursor, name: &str, info: &OpcodeInfo, sending: &mut Sending) -> Parsed<()> {
    match name {
        "payload" => sending.payload = Some(cursor.bytes()?),
        "ecn" => sending.ecn = Some(one_of(&cursor.word("ECN bits such as ce")?, "a value of ECN", &ECN)?),
        "source" => sending.source = Some(address(cursor)?),
        "destination" => sending.destination = Some(address(cursor)?),
        "icrc" if cursor.take_word("wrong") => sending.has_wrong_icrc = true,
        "icrc" => sending.damage.push(("icrc", cursor.expression()?)),
        _ => {
            if let Some(slot) = slot(name, info) {
                sending.fields.push((slot, cursor.expression()?));
            } else if let Some(known) = PATH_NUMBERS.iter().find(|known| **known == name) {
                sending.path.push((known, cursor.expression()?));
            } else if let Some(known) = DAMAGE_NUMBERS.iter().find(|known| **known == name) {
                sending.damage.push((known, cursor.expression()?));
            } else {
                return Err(no_field(name, info, true));
            }
        }
    }
    Ok(())
}

fn address(cursor: &mut Cursor) -> Parsed<IpAddr> {
    let text = cursor.text("an address")?;
    text.parse().map_err(|_| format!("\"{text}\" is not an IP address; write for example \"198.18.0.9\""))
}

/// Returns the message for an unknown field.
fn no_field(name: &str, info: &OpcodeInfo, is_sent: bool) -> String {
    let fields: Vec<&str> = slots_of(info).map(|slot| slot.name).collect();
    let others: &[&str] = if is_sent {
        &[
            "payload",
            "ecn",
            "sport",
            "dscp",
            "ttl",
            "source",
            "destination",
            "icrc",
            "truncated",
            "extra",
            "flip",
        ]
    } else {
        &["payload", "bytes", "ecn"]
    };
    let what = format!("field of {}", info.name);
    unknown(&what, name, fields.iter().chain(others).copied())
}

fn no_flag(name: &str, info: &OpcodeInfo) -> String {
    match slot(name, info) {
        Some(_) => format!("`{name}` has no value; write {name}=VALUE"),
        None => no_field(name, info, true),
    }
}

pub(super) fn expect(cursor: &mut Cursor) -> Parsed<Action> {
    if cursor.take_word("nothing") {
        cursor.keyword("for")?;
        return Ok(Action::ExpectNothing(cursor.expression()?));
    }
    let (packet, info) = packet(cursor)?;
    let mut expecting = Expecting {
        packet,
        fields: Vec::new(),
        bytes: None,
        payload: None,
        ecn: None,
        within: None,
        after: None,
        name: None,
    };
    while !cursor.is_empty() {
        let name = cursor.word("a field such as psn=100")?;
        match name.as_str() {
            "within" => expecting.within = Some(cursor.expression()?),
            "after" => expecting.after = Some(cursor.expression()?),
            "as" => expecting.name = Some(cursor.name("a name for the packet")?),
            "payload" => {
                cursor.sign("=")?;
                expecting.payload = Some(cursor.bytes()?);
            }
            "ecn" => {
                cursor.sign("=")?;
                let bits = cursor.word("ECN bits such as ect0")?;
                expecting.ecn = Some(one_of(&bits, "a value of ECN", &ECN)?);
            }
            "bytes" => expecting.bytes = Some(wanted(cursor)?),
            _ => {
                let slot = slot(&name, info).ok_or_else(|| no_field(&name, info, false))?;
                let is_flag = slot.width() == 1
                    && !matches!(cursor.peek(), Some(super::lexer::Token::Sign("=" | "!=")));
                let value = if is_flag { Wanted::Equal(Expression::Number(1)) } else { wanted(cursor)? };
                expecting.fields.push((slot, value));
            }
        }
    }
    Ok(Action::Expect(Box::new(expecting)))
}

/// Reads `=VALUE`, `=FROM..TO`, `=*` or `!=VALUE`.
fn wanted(cursor: &mut Cursor) -> Parsed<Wanted> {
    if cursor.take("!=") {
        return Ok(Wanted::Unequal(cursor.expression()?));
    }
    cursor.sign("=")?;
    if cursor.take("*") {
        return Ok(Wanted::Any);
    }
    let from = cursor.expression()?;
    if cursor.take("..") {
        return Ok(Wanted::Within(from, cursor.expression()?));
    }
    Ok(Wanted::Equal(from))
}
