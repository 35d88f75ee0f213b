//! The explanation as JSON.

use roce_analysis::icrc::{Certainty, Finding};
use roce_analysis::walk::{Part, Protocol};
use roce_packet::fields::{Field, Value};
use serde::ser::{Serialize, SerializeMap, Serializer};

use super::explanation::{Explanation, Origin};
use crate::document::{Program, escaped};
use crate::fields::{self, hex};
use crate::parts::{JsonError, JsonValue, icrc_entries};

/// The format of the document; see docs/reference/json.md.
const SCHEMA: &str = "roce/explain/1";

/// Returns the document of an explanation, without a line break at its end.
///
/// # Errors
///
/// Returns an error if the document cannot be serialized, which does not happen with any bytes.
pub fn text(explanation: &Explanation<'_>, program: Program<'_>) -> serde_json::Result<String> {
    Ok(escaped(serde_json::to_string_pretty(&Document { explanation, program })?))
}

/// The document of an explanation: `roce/explain/1` in docs/reference/json-captures.md.
#[derive(Clone, Copy, Debug)]
pub struct Document<'a> {
    /// The packet.
    pub explanation: &'a Explanation<'a>,
    /// The program that makes the document.
    pub program: Program<'a>,
}

impl Serialize for Document<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self { explanation, program } = *self;
        let walk = &explanation.walk;
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("schema", SCHEMA)?;
        map.serialize_entry("version", program.version)?;
        map.serialize_entry("build", &program.build)?;
        map.serialize_entry("length", &explanation.bytes.len())?;
        match explanation.origin {
            Origin::Digits { from, .. } => map.serialize_entry("from", from.name())?,
            Origin::Capture { file, number, link_type } => {
                map.serialize_entry("file", file)?;
                map.serialize_entry("frame.number", &number)?;
                map.serialize_entry("link_type", &link_type.0)?;
            }
        }
        map.serialize_entry("bytes", &hex(explanation.bytes))?;
        if let Some(info) = walk.packet().and_then(|packet| packet.info) {
            map.serialize_entry("roce.opcode", info.name)?;
        }
        if let Protocol::Other(name, _) = &walk.protocol {
            map.serialize_entry("roce.protocol", name)?;
        }
        let headers: Vec<_> = walk.parts.iter().map(|part| JsonPart { explanation, part }).collect();
        map.serialize_entry("headers", &headers)?;
        if let Some(icrc) = explanation.icrc() {
            icrc_entries(icrc, &mut map)?;
        }
        if let Some(wrong) = explanation.wrong_icrc() {
            let findings: Vec<_> = wrong.findings.iter().map(JsonFinding).collect();
            map.serialize_entry("roce.icrc_mistakes", &findings)?;
        }
        let covered = explanation.covered();
        if !covered.is_empty() {
            let all: String = covered.iter().map(|(_, bytes)| hex(bytes)).collect();
            map.serialize_entry("roce.icrc_input", &format!("{}{all}", hex(explanation.ones())))?;
        }
        if let (Some(error), Protocol::Roce(_) | Protocol::Pause) = (walk.error, &walk.protocol) {
            map.serialize_entry("roce.error", &JsonError(error))?;
        }
        map.end()
    }
}

/// Mistakes that lead to a wrong ICRC.
struct JsonFinding<'a>(&'a Finding);

impl Serialize for JsonFinding<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self(finding) = self;
        let names: Vec<_> = finding.mistakes.iter().map(|mistake| mistake.name()).collect();
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("names", &names)?;
        match finding.certainty {
            Certainty::Definite => map.serialize_entry("certainty", "definite")?,
            Certainty::Probable { tried } => {
                map.serialize_entry("certainty", "probable")?;
                map.serialize_entry("tried", &tried)?;
            }
        }
        if let Some(detail) = finding.detail {
            map.serialize_entry("detail", &detail.to_string())?;
        }
        map.serialize_entry("explanation", &finding.explanation())?;
        map.serialize_entry("fix", &finding.fix())?;
        map.end()
    }
}

struct JsonPart<'a> {
    explanation: &'a Explanation<'a>,
    part: &'a Part,
}

impl Serialize for JsonPart<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let header = self.part.header;
        let bytes = self.explanation.walk.part_bytes(self.part);
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("name", header.name)?;
        map.serialize_entry("title", header.title)?;
        map.serialize_entry("purpose", header.purpose)?;
        map.serialize_entry("rule", header.rule)?;
        map.serialize_entry("offset", &self.part.start)?;
        map.serialize_entry("bytes", &hex(bytes))?;
        let field = |field| Some(JsonField { field, header: bytes, value: Field::value(field, bytes)? });
        map.serialize_entry("fields", &header.fields.iter().filter_map(field).collect::<Vec<_>>())?;
        map.end()
    }
}

struct JsonField<'a> {
    field: &'static Field,
    header: &'a [u8],
    value: Value<'a>,
}

impl Serialize for JsonField<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self { field, header, value } = self;
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("name", field.name)?;
        map.serialize_entry("key", field.key)?;
        map.serialize_entry("first_bit", &field.start)?;
        map.serialize_entry("bits", &field.width)?;
        map.serialize_entry("value", &JsonValue { field, value: *value })?;
        map.serialize_entry("text", &fields::text(field, value))?;
        if let Some(pattern) = fields::bit_pattern(field, header) {
            map.serialize_entry("pattern", &pattern)?;
        }
        if let Some(note) = fields::note(field, value) {
            map.serialize_entry("note", &note)?;
        }
        map.serialize_entry("masked_from_icrc", &field.variant)?;
        map.serialize_entry("meaning", field.meaning)?;
        map.end()
    }
}
