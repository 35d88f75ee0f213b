//! The tables of headers, and packets decoded into headers.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;

use pyo3::exceptions::{PyIndexError, PyOverflowError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyByteArray, PyBytes};
use roce_analysis::walk::{Framed, Icrc, Protocol, Walk};
use roce_capture::{CaptureError, CaptureReader, LinkType};
use roce_packet::fields::{self, Show, Value};
use roce_packet::outer::Link;
use roce_packet::{Ipv4View, MacAddr, Opcode, ROCE_UDP_PORT};

use crate::errors::exception;

/// The headers with the names of their classes in Python.
static HEADERS: &[(&str, &fields::Header)] = &[
    ("Ethernet", &fields::ETHERNET),
    ("VLAN", &fields::VLAN),
    ("ServiceVLAN", &fields::SERVICE_VLAN),
    ("MPLS", &fields::MPLS),
    ("ControlWord", &fields::CONTROL_WORD),
    ("IPv4", &fields::IPV4),
    ("IPv4Options", &fields::IPV4_OPTIONS),
    ("IPv6", &fields::IPV6),
    ("HopByHop", &fields::HOP_BY_HOP),
    ("Routing", &fields::ROUTING),
    ("Fragment", &fields::FRAGMENT),
    ("DestinationOptions", &fields::DESTINATION_OPTIONS),
    ("Authentication", &fields::AUTHENTICATION),
    ("GRE", &fields::GRE),
    ("GREChecksum", &fields::GRE_CHECKSUM),
    ("GREKey", &fields::GRE_KEY),
    ("GRESequence", &fields::GRE_SEQUENCE),
    ("ERSPAN2", &fields::ERSPAN_II),
    ("ERSPAN3", &fields::ERSPAN_III),
    ("VXLAN", &fields::VXLAN),
    ("VXLANGPE", &fields::VXLAN_GPE),
    ("Geneve", &fields::GENEVE),
    ("UDP", &fields::UDP),
    ("LRH", &fields::LRH),
    ("GRH", &fields::GRH),
    ("BTH", &fields::BTH),
    ("RDETH", &fields::RDETH),
    ("DETH", &fields::DETH),
    ("XRCETH", &fields::XRCETH),
    ("FETH", &fields::FETH),
    ("RETH", &fields::RETH),
    ("AtomicETH", &fields::ATOMIC_ETH),
    ("AETH", &fields::AETH),
    ("AtomicAckETH", &fields::ATOMIC_ACK_ETH),
    ("ImmDt", &fields::IMMDT),
    ("IETH", &fields::IETH),
    ("CNP", &fields::CNP),
    ("MAD", &fields::MAD),
    ("MADData", &fields::MAD_DATA),
    ("CmReq", &fields::REQ),
    ("IpCm", &fields::IP_CM),
    ("CmRep", &fields::REP),
    ("CmRtu", &fields::RTU),
    ("CmRej", &fields::REJ),
    ("CmMra", &fields::MRA),
    ("CmDreq", &fields::DREQ),
    ("CmDrep", &fields::DREP),
    ("CmLap", &fields::LAP),
    ("CmApr", &fields::APR),
    ("CmSidrReq", &fields::SIDR_REQ),
    ("CmSidrRep", &fields::SIDR_REP),
    ("Payload", &fields::PAYLOAD),
    ("Padding", &fields::PADDING),
    ("ICRC", &fields::ICRC),
    ("VCRC", &fields::VCRC),
    ("Telemetry", &fields::TELEMETRY),
    ("Trailer", &fields::ETHERNET_TRAILER),
    ("Pause", &fields::PAUSE),
    ("PFC", &fields::PFC),
    ("ERF", &fields::ERF),
    ("ERFExtensions", &fields::ERF_EXTENSIONS),
];

/// Fields of this length and less are numbers, even if the specification gives their bits no meaning.
const LONGEST_NUMBER: usize = 32;

/// A field of a header.
#[pyclass(frozen, get_all, module = "roce._roce")]
pub(crate) struct Field {
    /// The name in the specification.
    name: &'static str,
    /// The name in the display filters of Wireshark.
    key: &'static str,
    /// The first bit from the start of the header.
    start: usize,
    /// The number of bits.
    width: usize,
    /// The type of its values in Python: `int`, `bool`, `str` or `bytes`.
    kind: &'static str,
    /// Whether networks may change it, so that the ICRC does not cover it.
    variant: bool,
    /// Whether other bits decide whether the field is present.
    conditional: bool,
    /// What it means.
    meaning: &'static str,
}

/// The table of a header.
#[pyclass(frozen, module = "roce._roce")]
pub(crate) struct Header {
    class_name: &'static str,
    header: &'static fields::Header,
}

#[pymethods]
impl Header {
    /// The name of the class in `roce.layers`.
    #[getter]
    const fn class_name(&self) -> &'static str {
        self.class_name
    }

    /// The common name.
    #[getter]
    const fn name(&self) -> &'static str {
        self.header.name
    }

    /// The full name.
    #[getter]
    const fn title(&self) -> &'static str {
        self.header.title
    }

    /// What the header is for.
    #[getter]
    const fn purpose(&self) -> &'static str {
        self.header.purpose
    }

    /// The section of the specification.
    #[getter]
    const fn rule(&self) -> &'static str {
        self.header.rule
    }

    /// The length of all fields, in bytes.
    #[getter]
    fn length(&self) -> usize {
        self.header.len_bytes()
    }

    /// The fields in the order of the wire.
    #[getter]
    fn fields(&self) -> Vec<Field> {
        let field = |field: &fields::Field| Field {
            name: field.name,
            key: field.key,
            start: field.start,
            width: field.width,
            kind: kind(field).name(),
            variant: field.variant,
            conditional: field.when.is_some(),
            meaning: field.meaning,
        };
        self.header.fields.iter().map(field).collect()
    }

    /// Returns the value of a field of a header, or `None` if the field is not present.
    fn get<'py>(&self, py: Python<'py>, index: usize, raw: &[u8]) -> PyResult<Option<Bound<'py, PyAny>>> {
        let field = self.field(index)?;
        field.value(raw).map(|value| value_of(py, field, &value)).transpose()
    }

    /// Changes a field in the bytes of a header.
    fn set(&self, index: usize, raw: &Bound<'_, PyByteArray>, value: &Bound<'_, PyAny>) -> PyResult<()> {
        let field = self.field(index)?;
        let mut bytes = raw.to_vec();
        set(field, &mut bytes, value)?;
        let source = PyBytes::new(raw.py(), &bytes);
        raw.as_any().set_item(pyo3::types::PySlice::full(raw.py()), source)
    }

    /// Returns the name or the meaning of the value of a field, or an empty text.
    fn note(&self, index: usize, raw: &[u8]) -> PyResult<String> {
        let field = self.field(index)?;
        let (Some(note), Some(Value::Number(number))) = (field.note, field.value(raw)) else {
            return Ok(String::new());
        };
        let mut text = String::new();
        note(number, &mut text).map_err(|error| exception(&error))?;
        Ok(text)
    }
}

impl Header {
    fn field(&self, index: usize) -> PyResult<&'static fields::Field> {
        let no_field = || PyIndexError::new_err(format!("{} has no field {index}", self.header.name));
        self.header.fields.get(index).ok_or_else(no_field)
    }
}

/// The type of the values of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Number,
    Words,
    Flag,
    Mac,
    Ipv4,
    Ipv6,
    Bytes,
}

impl Kind {
    const fn name(self) -> &'static str {
        match self {
            Self::Number | Self::Words => "int",
            Self::Flag => "bool",
            Self::Mac | Self::Ipv4 | Self::Ipv6 => "str",
            Self::Bytes => "bytes",
        }
    }
}

fn kind(field: &fields::Field) -> Kind {
    match field.show {
        Show::Decimal | Show::Hex => Kind::Number,
        Show::Bytes if field.width <= LONGEST_NUMBER => Kind::Number,
        Show::Words => Kind::Words,
        Show::Flag => Kind::Flag,
        Show::Mac => Kind::Mac,
        Show::Ipv4 => Kind::Ipv4,
        Show::Ipv6 => Kind::Ipv6,
        Show::Bytes => Kind::Bytes,
    }
}

fn value_of<'py>(py: Python<'py>, field: &fields::Field, value: &Value<'_>) -> PyResult<Bound<'py, PyAny>> {
    Ok(match (kind(field), *value) {
        (Kind::Flag, Value::Number(number)) => PyBool::new(py, number != 0).to_owned().into_any(),
        (Kind::Words, Value::Number(number)) => number.saturating_mul(4).into_pyobject(py)?.into_any(),
        (Kind::Mac, Value::Number(number)) => {
            let [_, _, mac @ ..] = number.to_be_bytes();
            MacAddr(mac).to_string().into_pyobject(py)?.into_any()
        }
        (Kind::Ipv4, Value::Number(number)) => {
            Ipv4Addr::from_bits(number as u32).to_string().into_pyobject(py)?.into_any()
        }
        (_, Value::Number(number)) => number.into_pyobject(py)?.into_any(),
        (Kind::Ipv4, Value::Bytes(&[.., a, b, c, d])) => {
            Ipv4Addr::new(a, b, c, d).to_string().into_pyobject(py)?.into_any()
        }
        (Kind::Number, Value::Bytes(bytes)) => {
            let number = bytes.iter().fold(0_u64, |all, byte| all << 8 | u64::from(*byte));
            number.into_pyobject(py)?.into_any()
        }
        (Kind::Ipv6, Value::Bytes(bytes)) => match <[u8; 16]>::try_from(bytes) {
            Ok(octets) => Ipv6Addr::from(octets).to_string().into_pyobject(py)?.into_any(),
            Err(_) => PyBytes::new(py, bytes).into_any(),
        },
        (_, Value::Bytes(bytes)) => PyBytes::new(py, bytes).into_any(),
    })
}

/// Writes a value of Python into the bytes of a header.
fn set(field: &fields::Field, header: &mut [u8], value: &Bound<'_, PyAny>) -> PyResult<()> {
    let kind = kind(field);
    let is_set = match kind {
        Kind::Number | Kind::Words => {
            let number = number(field, kind, value)?;
            field.set(header, number)
        }
        Kind::Flag => field.set(header, value.is_truthy()?.into()),
        Kind::Mac => {
            let mac: MacAddr = text(field, value)?.parse().map_err(|error| exception(&error))?;
            let [a, b, c, d, e, f] = mac.0;
            field.set(header, u64::from_be_bytes([0, 0, a, b, c, d, e, f]))
        }
        Kind::Ipv4 if field.width == 32 => {
            let address: Ipv4Addr = text(field, value)?.parse().map_err(|error| named(field, &error))?;
            field.set(header, address.to_bits().into())
        }
        Kind::Ipv4 | Kind::Ipv6 => match text(field, value)?.parse().map_err(|error| named(field, &error))? {
            IpAddr::V6(address) => field.set_bytes(header, &address.octets()),
            // The upper bytes say which kind of address it is, so they stay.
            IpAddr::V4(address) if kind == Kind::Ipv4 => {
                let place = header.get_mut(field.byte_range());
                place.and_then(<[u8]>::last_chunk_mut).map(|last| *last = address.octets()).is_some()
            }
            IpAddr::V4(address) => field.set_bytes(header, &address.to_ipv6_mapped().octets()),
        },
        Kind::Bytes => return set_bytes(field, header, value),
    };
    if is_set { Ok(()) } else { Err(too_short(field)) }
}

/// Writes bytes. Zeros follow if the field is longer.
fn set_bytes(field: &fields::Field, header: &mut [u8], value: &Bound<'_, PyAny>) -> PyResult<()> {
    let mut bytes: Vec<u8> = value.extract()?;
    let len = field.byte_range().len();
    if bytes.len() > len {
        let have = bytes.len();
        return Err(PyValueError::new_err(format!("{} has {len} bytes; {have} do not fit", field.name)));
    }
    bytes.resize(len, 0);
    if field.set_bytes(header, &bytes) { Ok(()) } else { Err(too_short(field)) }
}

fn number(field: &fields::Field, kind: Kind, value: &Bound<'_, PyAny>) -> PyResult<u64> {
    let most = u64::MAX.checked_shr(64_u32.saturating_sub(field.width as u32)).unwrap_or(0);
    let scale = if kind == Kind::Words { 4 } else { 1 };
    let outside = || {
        let most = u128::from(most) * u128::from(scale);
        PyOverflowError::new_err(format!("{} is a number from 0 to {most}", field.name))
    };
    let is_number = value.hasattr("__index__")?;
    if !is_number {
        return Err(PyTypeError::new_err(format!("{} is a number", field.name)));
    }
    let number: u64 = value.call_method0("__index__")?.extract().map_err(|_| outside())?;
    if !number.is_multiple_of(scale) {
        return Err(PyValueError::new_err(format!("{} is a multiple of {scale}", field.name)));
    }
    let number = number / scale;
    if number > most { Err(outside()) } else { Ok(number) }
}

fn text(field: &fields::Field, value: &Bound<'_, PyAny>) -> PyResult<String> {
    // Objects of the module `ipaddress` are addresses, too.
    let text = value.str()?.to_string();
    if text.is_empty() { Err(PyValueError::new_err(format!("{} is empty", field.name))) } else { Ok(text) }
}

fn named(field: &fields::Field, error: &dyn std::error::Error) -> PyErr {
    PyValueError::new_err(format!("{}: {error}", field.name))
}

fn too_short(field: &fields::Field) -> PyErr {
    PyValueError::new_err(format!("the header ends before {}", field.name))
}

/// Returns the tables of all headers.
#[pyfunction]
pub(crate) fn headers() -> Vec<Header> {
    HEADERS.iter().map(|(class_name, header)| Header { class_name, header }).collect()
}

/// Returns the numbers and names of all opcodes.
#[pyfunction]
pub(crate) fn opcodes() -> Vec<(u8, &'static str)> {
    (0..=u8::MAX).filter_map(|number| Some((number, Opcode(number).name()?))).collect()
}

/// A decoded packet.
#[pyclass(frozen, get_all, module = "roce._roce")]
pub(crate) struct Decoded {
    /// For each header: the name of its class, its first byte, its length, and whether it is of a tunnel.
    parts: Vec<(&'static str, usize, usize, bool)>,
    /// The protocol.
    protocol: String,
    /// The first error in the headers.
    error: Option<String>,
    /// The ICRC in the packet and the computed one, as numbers of four bytes in the order of the wire.
    icrc: Option<(u32, u32)>,
    /// Why the ICRC was not checked.
    unchecked: Option<&'static str>,
}

/// Decodes a packet whose first header is that of `link`.
#[pyfunction]
#[pyo3(signature = (bytes, link, wire_length=None, port=ROCE_UDP_PORT))]
pub(crate) fn decode(bytes: &[u8], link: &str, wire_length: Option<usize>, port: u16) -> PyResult<Decoded> {
    let walk = match link {
        "bth" => Walk::datagram(bytes),
        _ => Walk::new(Framed::new(bytes, link_named(link)?, wire_length.unwrap_or(bytes.len())), port),
    };
    let class = |header: &'static fields::Header| {
        HEADERS.iter().find(|(_, known)| std::ptr::eq(*known, header)).map_or("Payload", |(name, _)| name)
    };
    let parts = walk.parts.iter().map(|part| (class(part.header), part.start, part.len, part.is_outer));
    let protocol = match &walk.protocol {
        Protocol::Roce(_) => walk.roce_name().to_owned(),
        Protocol::Pause => "pause".to_owned(),
        Protocol::Other(name, _) => name.clone(),
    };
    let (icrc, unchecked) = match walk.packet().map(|packet| packet.icrc) {
        Some(Icrc::Checked(check, _)) => {
            (Some((check.found.swap_bytes(), check.computed.swap_bytes())), None)
        }
        Some(Icrc::Unchecked(reason)) => (None, Some(reason)),
        None => (None, Some("not RoCE")),
    };
    let error = walk.error.map(|error| error.to_string());
    Ok(Decoded { parts: parts.collect(), protocol, error, icrc, unchecked })
}

fn link_named(name: &str) -> PyResult<Link> {
    Ok(match name {
        "ethernet" => Link::Ethernet,
        "ip" => Link::Ip,
        "null" => Link::AddressFamily,
        "sll" => Link::LinuxSll,
        "sll2" => Link::LinuxSll2,
        "infiniband" => Link::InfiniBand,
        "erf" => Link::Erf,
        _ => {
            let known = "ethernet, ip, bth, null, sll, sll2, infiniband or erf";
            return Err(PyValueError::new_err(format!("{name:?} is not a link; write {known}")));
        }
    })
}

fn name_of(link: Link) -> Option<&'static str> {
    Some(match link {
        Link::Ethernet => "ethernet",
        Link::Ip => "ip",
        Link::AddressFamily => "null",
        Link::LinuxSll => "sll",
        Link::LinuxSll2 => "sll2",
        Link::InfiniBand => "infiniband",
        Link::Erf => "erf",
        _ => return None,
    })
}

/// Returns the link of a link type of tcpdump.org, or `None` if it cannot carry RoCE.
#[pyfunction]
pub(crate) fn link_of(link_type: u32) -> Option<&'static str> {
    LinkType(link_type).link().and_then(name_of)
}

/// Returns the ICRC of a packet as a number of four bytes in the order of the wire.
#[pyfunction]
pub(crate) fn icrc(bytes: &[u8], link: &str) -> PyResult<u32> {
    let decoded = decode(bytes, link, None, ROCE_UDP_PORT)?;
    let reason = || decoded.error.as_deref().or(decoded.unchecked).unwrap_or("not RoCE").to_owned();
    decoded.icrc.map(|(_, computed)| computed).ok_or_else(|| PyValueError::new_err(reason()))
}

/// Returns the checksum of an IPv4 header with its options, whose own checksum field is ignored.
#[pyfunction]
pub(crate) fn ipv4_checksum(header: &[u8]) -> PyResult<u16> {
    let (view, options) = Ipv4View::from_prefix(header).map_err(|error| exception(&error))?;
    Ok(view.computed_checksum(options))
}

/// A packet of a capture: number, time in nanoseconds, link, length on the wire, captured bytes.
type Captured<Bytes> = (u64, Option<u64>, Option<&'static str>, u32, Bytes);

/// Returns the packets of a capture file.
#[pyfunction]
pub(crate) fn packets(py: Python<'_>, path: PathBuf) -> PyResult<Vec<Captured<Py<PyBytes>>>> {
    let read = || {
        let mut reader = CaptureReader::open(&path)?;
        let mut found: Vec<Captured<Vec<u8>>> = Vec::new();
        while let Some(packet) = reader.next_packet() {
            let packet = packet?;
            let link = packet.link_type.link().and_then(name_of);
            found.push((packet.number, packet.time_ns, link, packet.original_len, packet.bytes.to_vec()));
        }
        Ok::<_, CaptureError>(found)
    };
    // Other threads of Python run meanwhile.
    let found = py.detach(read).map_err(|error| exception(&error))?;
    let object = |(number, time, link, len, bytes): Captured<Vec<u8>>| {
        (number, time, link, len, PyBytes::new(py, &bytes).unbind())
    };
    Ok(found.into_iter().map(object).collect())
}
