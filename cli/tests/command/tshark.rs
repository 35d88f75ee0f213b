//! Compares `roce dissect` with tshark, which shares no code with it, on the same captures. For every packet,
//! every field that both show has the same value. Every field that only one of them shows is in a list here,
//! with the reason.
//!
//! The lists describe tshark 4.0 (Debian 12). Each entry must occur: the test fails if another version of
//! tshark differs, and the entry has to be removed.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use crate::common::{Running, captures_in, has_program, kernel_captures, roce, shared, skip_unless, tshark};
use serde_json::Value;

/// Layers of tshark whose fields must all be accounted for. In other layers, only the fields that `roce` also
/// shows are compared.
const LAYERS: [&str; 8] = ["data.", "eth.", "infiniband.", "ip.", "ipv6.", "macc.", "udp.", "vlan."];

/// A field that tshark does not show, or shows with a different value.
struct Exception {
    keys: &'static [&'static str],
    reason: &'static str,
    /// Selects the packets to which the exception applies.
    when: fn(&Value) -> bool,
    /// The value that tshark shows instead, computed from our fields.
    theirs: Theirs,
}

enum Theirs {
    /// tshark has no such field. It shows the bytes as a part of `infiniband.vendor`.
    AsVendorBytes,
    Misread(fn(&Value, &str) -> u64),
}

const CNP: Exception = Exception {
    keys: &["infiniband.invariant.crc"],
    reason: "tshark 4.0 does not know the opcode of a CNP (A17.9.3): to it, all behind the BTH is vendor-specific",
    when: |ours| ours["infiniband.bth.opcode"] == 0x81,
    theirs: Theirs::AsVendorBytes,
};

const EXCEPTIONS: &[Exception] = &[
    CNP,
    Exception {
        keys: RETH_AND_CRC,
        reason: "tshark 4.0 does not know RC FLUSH (IBTA Annex A19): to it, all behind the BTH is vendor-specific",
        when: |ours| ours["infiniband.bth.opcode"] == 0x1c,
        theirs: Theirs::AsVendorBytes,
    },
    Exception {
        keys: RETH_AND_CRC,
        reason: "tshark 4.0 does not know RC ATOMIC WRITE (IBTA Annex A19): to it, all behind the BTH is \
                 vendor-specific",
        when: |ours| ours["infiniband.bth.opcode"] == 0x1d,
        theirs: Theirs::AsVendorBytes,
    },
];

const RETH_AND_CRC: &[&str] =
    &["infiniband.reth.va", "infiniband.reth.r_key", "infiniband.reth.dmalen", "infiniband.invariant.crc"];

/// Exceptions for messages of connection management, which `pcaps/` does not contain.
const CM_EXCEPTIONS: &[Exception] = &[
    CNP,
    Exception {
        keys: &["infiniband.cm.req.prim_flowlabel"],
        reason: "tshark 4.0 reads three bytes and takes the upper 20 of 32 bits (IBTA 12.6.5: of these 24)",
        when: |_| true,
        theirs: Theirs::Misread(|ours, _| ours["infiniband.cm.req.prim_flowlabel"].as_u64().unwrap() >> 8),
    },
    Exception {
        keys: &["infiniband.cm.req.prim_reserved0", "infiniband.cm.req.prim_pktrate"],
        reason: "tshark 4.0 reads them from the first byte of the flow label, as bits of two bytes",
        when: |_| true,
        theirs: Theirs::Misread(|ours, key| {
            let first = ours["infiniband.cm.req.prim_flowlabel"].as_u64().unwrap() >> 12;
            if key.ends_with("reserved0") { first >> 6 } else { first & 0x3f }
        }),
    },
];

/// A field of tshark that `roce` does not show, or does not show separately.
enum Besides {
    /// Combinations or parts of our fields; these are compared too.
    Made(fn(&Value) -> Vec<Value>),
    /// The bytes of a part of the packet whose fields are shown and compared separately.
    Whole(&'static str),
    /// A value that tshark stores or derives, and that is not in the packet.
    Own(&'static str),
}

use Besides::{Made, Own, Whole};

const THEIRS: &[(&str, Besides)] = &[
    ("data.data", Whole("roce.payload_len")),
    // The payload including its padding, which tshark does not remove.
    (
        "data.len",
        Made(|ours| vec![(number(ours, "roce.payload_len") + number(ours, "infiniband.bth.padcnt")).into()]),
    ),
    ("eth.addr", Made(|ours| fields(ours, &["eth.dst", "eth.src"]))),
    ("eth.addr.oui", Made(|ours| vec![oui(ours, "eth.dst"), oui(ours, "eth.src")])),
    ("eth.addr_resolved", Made(|ours| fields(ours, &["eth.dst", "eth.src"]))),
    ("eth.dst.ig", Made(|ours| vec![address_bit(ours, "eth.dst", 1)])),
    ("eth.dst.lg", Made(|ours| vec![address_bit(ours, "eth.dst", 2)])),
    ("eth.dst.oui", Made(|ours| vec![oui(ours, "eth.dst")])),
    ("eth.dst_resolved", Made(|ours| fields(ours, &["eth.dst"]))),
    ("eth.ig", Made(|ours| vec![address_bit(ours, "eth.dst", 1), address_bit(ours, "eth.src", 1)])),
    ("eth.lg", Made(|ours| vec![address_bit(ours, "eth.dst", 2), address_bit(ours, "eth.src", 2)])),
    ("eth.src.ig", Made(|ours| vec![address_bit(ours, "eth.src", 1)])),
    ("eth.src.lg", Made(|ours| vec![address_bit(ours, "eth.src", 2)])),
    ("eth.src.oui", Made(|ours| vec![oui(ours, "eth.src")])),
    ("eth.src_resolved", Made(|ours| fields(ours, &["eth.src"]))),
    ("infiniband.aeth", Whole("infiniband.aeth.msn")),
    ("infiniband.atomicacketh", Whole("infiniband.atomicacketh.origremdt")),
    ("infiniband.atomiceth", Whole("infiniband.atomiceth.cmpdt")),
    ("infiniband.bth", Whole("infiniband.bth.psn")),
    ("infiniband.deth", Whole("infiniband.deth.srcqp")),
    ("infiniband.grh", Whole("infiniband.grh.dgid")),
    ("infiniband.reth", Whole("infiniband.reth.va")),
    ("infiniband.reserved", Made(reserved)),
    ("infiniband.vendor", Own("what tshark cannot read; see the exceptions")),
    ("ip.addr", Made(|ours| fields(ours, &["ip.src", "ip.dst"]))),
    ("ip.checksum.status", Own("tshark does not check it unless asked to")),
    ("ip.dsfield", Made(|ours| vec![bits(ours, &[("ip.dsfield.dscp", 2), ("ip.dsfield.ecn", 0)])])),
    ("ip.dst_host", Made(|ours| fields(ours, &["ip.dst"]))),
    (
        "ip.flags",
        Made(|ours| vec![bits(ours, &[("ip.flags.rb", 2), ("ip.flags.df", 1), ("ip.flags.mf", 0)])]),
    ),
    ("ip.host", Made(|ours| fields(ours, &["ip.src", "ip.dst"]))),
    ("ip.src_host", Made(|ours| fields(ours, &["ip.src"]))),
    ("ip.version", Made(|ours| fields(ours, &["ipv6.version"]))),
    ("ipv6.addr", Made(|ours| fields(ours, &["ipv6.src", "ipv6.dst"]))),
    ("ipv6.dst_host", Made(|ours| fields(ours, &["ipv6.dst"]))),
    ("ipv6.host", Made(|ours| fields(ours, &["ipv6.src", "ipv6.dst"]))),
    ("ipv6.src_host", Made(|ours| fields(ours, &["ipv6.src"]))),
    ("ipv6.tclass", Made(|ours| vec![bits(ours, &[("ipv6.tclass.dscp", 2), ("ipv6.tclass.ecn", 0)])])),
    ("udp.checksum.status", Own("tshark does not check it unless asked to")),
    ("udp.checksum.zero", Own("a complaint: RFC 8200 wants a checksum, RFC 6936 and A17 allow none")),
    ("udp.payload", Whole("infiniband.bth.psn")),
    ("udp.port", Made(|ours| fields(ours, &["udp.srcport", "udp.dstport"]))),
    ("udp.stream", Own("a number that tshark gives each flow")),
    ("udp.time_delta", Own("computed from frame.time_epoch")),
    ("udp.time_relative", Own("computed from frame.time_epoch")),
];

/// Additional fields of tshark in pause frames.
const THEIRS_IN_PAUSES: &[(&str, Besides)] = &[("macc.cbfc.enbv", Made(|ours| vec![bits(ours, &ENABLED)]))];

/// Additional fields of tshark in messages of connection management and in captures from other sources.
const THEIRS_IN_CM: &[(&str, Besides)] = &[
    ("infiniband.cm.req.alt_flowlabel", Whole(ALTERNATE_PATH)),
    ("infiniband.cm.req.alt_hoplim", Whole(ALTERNATE_PATH)),
    ("infiniband.cm.req.alt_localacktout", Whole(ALTERNATE_PATH)),
    ("infiniband.cm.req.alt_localgid", Whole(ALTERNATE_PATH)),
    ("infiniband.cm.req.alt_locallid", Whole(ALTERNATE_PATH)),
    ("infiniband.cm.req.alt_pktrate", Whole(ALTERNATE_PATH)),
    ("infiniband.cm.req.alt_remotegid", Whole(ALTERNATE_PATH)),
    ("infiniband.cm.req.alt_remotelid", Whole(ALTERNATE_PATH)),
    ("infiniband.cm.req.alt_reserved0", Whole(ALTERNATE_PATH)),
    ("infiniband.cm.req.alt_reserved1", Whole(ALTERNATE_PATH)),
    ("infiniband.cm.req.alt_sl", Whole(ALTERNATE_PATH)),
    ("infiniband.cm.req.alt_subnetlocal", Whole(ALTERNATE_PATH)),
    ("infiniband.cm.req.alt_tfcclass", Whole(ALTERNATE_PATH)),
    ("infiniband.cm.req.ip_cm", Whole("infiniband.cm.req.ip_cm.sport")),
    ("infiniband.cm.req.serviceid.dport", Made(|ours| vec![(service(ours) & 0xffff).into()])),
    ("infiniband.cm.req.serviceid.prefix", Made(|ours| vec![format!("{:010x}", service(ours) >> 24).into()])),
    ("infiniband.cm.req.serviceid.protocol", Made(|ours| vec![(service(ours) >> 16 & 0xff).into()])),
    ("infiniband.mad", Whole("infiniband.mad.transactionid")),
    ("infiniband.mad.data", Whole("infiniband.mad.transactionid")),
    ("infiniband.smplid.smpdata", Whole("infiniband.mad.transactionid")),
    ("eth.addr.oui_resolved", Own("the name of the manufacturer, from a table")),
    ("eth.dst.oui_resolved", Own("the name of the manufacturer, from a table")),
    ("eth.src.oui_resolved", Own("the name of the manufacturer, from a table")),
    ("ipv6.dst_slaac_mac", Own("a guess at the Ethernet address from the IPv6 address")),
    ("ipv6.slaac_mac", Own("a guess at the Ethernet address from the IPv6 address")),
    ("ipv6.src_slaac_mac", Own("a guess at the Ethernet address from the IPv6 address")),
];

const ALTERNATE_PATH: &str = "roce.cm.req.alternate_path";

const ENABLED: [(&str, u32); 8] = [
    ("macc.cbfc.enbv.c7", 7),
    ("macc.cbfc.enbv.c6", 6),
    ("macc.cbfc.enbv.c5", 5),
    ("macc.cbfc.enbv.c4", 4),
    ("macc.cbfc.enbv.c3", 3),
    ("macc.cbfc.enbv.c2", 2),
    ("macc.cbfc.enbv.c1", 1),
    ("macc.cbfc.enbv.c0", 0),
];

/// Returns the values of some of our fields.
fn fields(ours: &Value, keys: &[&str]) -> Vec<Value> {
    keys.iter().map(|key| ours[key].clone()).collect()
}

fn number(ours: &Value, key: &str) -> u64 {
    match &ours[key] {
        Value::Bool(set) => u64::from(*set),
        Value::Number(number) => number.as_u64().expect(key),
        other => panic!("{key} is {other}"),
    }
}

/// Combines fields into one number; each field comes with the number of bits to its right.
fn bits(ours: &Value, parts: &[(&str, u32)]) -> Value {
    parts.iter().fold(0, |all, (key, shift)| all | number(ours, key) << shift).into()
}

fn address(ours: &Value, key: &str) -> u64 {
    u64::from_str_radix(&ours[key].as_str().expect(key).replace(':', ""), 16).expect(key)
}

/// Returns the manufacturer's half of an Ethernet address.
fn oui(ours: &Value, key: &str) -> Value {
    (address(ours, key) >> 24).into()
}

/// Returns a bit of the first byte of an Ethernet address.
fn address_bit(ours: &Value, key: &str, bit: u64) -> Value {
    u64::from(address(ours, key) >> 40 & bit != 0).into()
}

/// Returns the bytes that tshark calls reserved: the fifth byte of every BTH, although it contains FECN and
/// BECN (A17.9.3), and all bytes that really are reserved.
fn reserved(ours: &Value) -> Vec<Value> {
    let flags = bits(ours, &[("roce.bth.fecn", 7), ("roce.bth.becn", 6), ("roce.bth.reserved6", 0)]);
    let deth = ours.get("roce.deth.reserved").map(|_| bits(ours, &[("roce.deth.reserved", 0)]));
    let digits = |byte: Value| format!("{:02x}", byte.as_u64().expect("a byte")).into();
    [flags].into_iter().chain(deth).map(digits).collect()
}

fn service(ours: &Value) -> u64 {
    let text = ours["infiniband.cm.req.serviceid"].as_str().expect("a 64-bit number");
    u64::from_str_radix(text.trim_start_matches("0x"), 16).expect("a number")
}

/// All fields of a packet as tshark shows them, in order. A field may occur several times.
type Shown = BTreeMap<String, Vec<String>>;

fn collect(key: &str, value: &Value, into: &mut Shown) {
    match value {
        Value::Object(fields) => fields.iter().for_each(|(key, value)| collect(key, value, into)),
        Value::Array(values) => values.iter().for_each(|value| collect(key, value, into)),
        Value::String(text) => into.entry(key.to_owned()).or_default().push(text.clone()),
        other => panic!("tshark shows {key} as {other}"),
    }
}

fn shown_by_tshark(capture: &Path) -> Vec<Shown> {
    let mut command = tshark();
    command.args(["-n", "-T", "json", "--no-duplicate-keys", "-r"]).arg(capture);
    let finished = Running::start(&mut command).finish(120);
    assert!(finished.success, "{}: {}", capture.display(), finished.stderr);
    let packets: Vec<Value> = serde_json::from_str(&finished.stdout).unwrap();
    let shown = |packet: &Value| {
        let mut shown = Shown::new();
        collect("", &packet["_source"]["layers"], &mut shown);
        shown
    };
    packets.iter().map(shown).collect()
}

fn shown_by_us(capture: &Path) -> Vec<Value> {
    let finished = Running::start(roce().args(["dissect", "--json"]).arg(capture)).finish(120);
    assert!(finished.success, "{}: {}", capture.display(), finished.stderr);
    let mut packets: Vec<Value> =
        finished.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    for packet in &mut packets {
        // The name of the format is not a field of the packet.
        packet.as_object_mut().unwrap().remove("schema").expect("the name of the format");
    }
    packets
}

/// Compares one of our values with one of tshark's. tshark writes numbers in decimal or hexadecimal, flags as
/// 0 and 1, and bytes with colons.
fn is_same(ours: &Value, theirs: &str) -> bool {
    let number = |text: &str| match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    };
    match ours {
        Value::Bool(ours) => number(theirs) == Some(u64::from(*ours)),
        Value::Number(ours) => number(theirs) == ours.as_u64(),
        Value::String(ours) if ours.starts_with("0x") => number(ours) == number(theirs),
        Value::String(ours) => ours == theirs || (theirs.contains(':') && *ours == theirs.replace(':', "")),
        _ => false,
    }
}

/// Returns whether one of our fields is at its place in the bytes that tshark shows as `infiniband.vendor`.
fn is_in_vendor_bytes(ours: &Value, key: &str, vendor: &str) -> bool {
    let digits = match &ours[key] {
        Value::Number(number) => format!("{:08x}", number.as_u64().unwrap()),
        Value::String(text) => text.trim_start_matches("0x").to_owned(),
        other => panic!("{key} is {other}"),
    };
    // The RETH of a FLUSH follows the FETH.
    let reth = if ours.get("roce.feth.selectivity").is_some() { 8 } else { 0 };
    let at = match key {
        "infiniband.reth.va" => reth,
        "infiniband.reth.r_key" => reth + 16,
        "infiniband.reth.dmalen" => reth + 24,
        "infiniband.invariant.crc" => vendor.len() - 8,
        _ => panic!("where {key} lies is not known"),
    };
    vendor[at..].starts_with(&digits)
}

/// The result of comparing a folder of captures.
struct Comparison {
    exceptions: &'static [Exception],
    besides: Vec<&'static (&'static str, Besides)>,
    /// Number of compared values, each of one field of one packet.
    values: usize,
    /// Names of the compared fields.
    keys: BTreeSet<String>,
    exceptions_seen: BTreeSet<(usize, &'static str)>,
    besides_seen: BTreeSet<&'static str>,
    /// Fields, and their errors.
    wrong: Vec<(String, String)>,
}

impl Comparison {
    fn of(
        captures: &[PathBuf],
        exceptions: &'static [Exception],
        besides: &[&'static [(&'static str, Besides)]],
    ) -> Self {
        let mut comparison = Self {
            exceptions,
            besides: besides.iter().copied().flatten().collect(),
            values: 0,
            keys: BTreeSet::new(),
            exceptions_seen: BTreeSet::new(),
            besides_seen: BTreeSet::new(),
            wrong: Vec::new(),
        };
        for capture in captures {
            let (ours, theirs) = (shown_by_us(capture), shown_by_tshark(capture));
            assert_eq!(ours.len(), theirs.len(), "{}", capture.display());
            for (ours, theirs) in ours.iter().zip(&theirs) {
                let place = format!("{} packet {}", capture.display(), ours["frame.number"]);
                comparison.packet(&place, ours, theirs);
            }
        }
        comparison
    }

    fn packet(&mut self, place: &str, ours: &Value, theirs: &Shown) {
        for (key, value) in ours.as_object().unwrap().iter().filter(|(key, _)| !key.starts_with("roce.")) {
            if self.is_exception(ours, key, theirs) {
                continue;
            }
            match theirs.get(key) {
                Some(shown) => self.compare(place, key, shown.iter().map(|theirs| (value, theirs))),
                None => self.complain(key, format!("{place}: tshark has no {key}, which is {value}")),
            }
        }
        // `roce dissect` does not show the contents of other protocols.
        let is_roce = ours.get("roce.payload_len").is_some();
        let is_ours = |layer: &&&str| is_roce || **layer != "data.";
        let foreign = |key: &&String| LAYERS.iter().filter(is_ours).any(|layer| key.starts_with(*layer));
        for key in theirs.keys().filter(foreign).filter(|key| ours.get(key).is_none()) {
            self.besides(place, ours, key, &theirs[key]);
        }
    }

    fn complain(&mut self, key: &str, text: String) {
        self.wrong.push((key.to_owned(), text));
    }

    fn compare<'a>(&mut self, place: &str, key: &str, pairs: impl Iterator<Item = (&'a Value, &'a String)>) {
        self.keys.insert(key.to_owned());
        for (ours, theirs) in pairs {
            self.values += 1;
            if !is_same(ours, theirs) {
                self.complain(key, format!("{place}: {key} is {ours}, and {theirs} to tshark"));
            }
        }
    }

    /// Returns whether tshark is known to be wrong here, and is wrong in the known way.
    fn is_exception(&mut self, ours: &Value, key: &str, theirs: &Shown) -> bool {
        for (index, exception) in self.exceptions.iter().enumerate() {
            let listed = exception.keys.iter().find(|listed| **listed == key);
            let Some(listed) = listed.filter(|_| (exception.when)(ours)) else { continue };
            let shown = theirs.get(key).map(|shown| &shown[..]);
            let as_known = match (&exception.theirs, shown) {
                (Theirs::AsVendorBytes, None) => {
                    let vendor = theirs["infiniband.vendor"].last().unwrap().replace(':', "");
                    is_in_vendor_bytes(ours, key, &vendor)
                }
                (Theirs::Misread(predict), Some([shown])) => {
                    // If both readings give the same value, this packet does not show the difference.
                    !is_same(&ours[key], shown) && is_same(&predict(ours, key).into(), shown)
                }
                _ => false,
            };
            if as_known {
                self.exceptions_seen.insert((index, listed));
                return true;
            }
        }
        false
    }

    fn besides(&mut self, place: &str, ours: &Value, key: &str, shown: &[String]) {
        let Some((name, besides)) = self.besides.iter().copied().find(|(name, _)| *name == key) else {
            return self.complain(key, format!("{place}: we have no {key}, which is {shown:?} to tshark"));
        };
        self.besides_seen.insert(name);
        match besides {
            Made(make) => {
                let made = make(ours);
                // tshark has more reserved fields, some of them several bytes long.
                let same_count = made.len() == shown.len() || key == "infiniband.reserved";
                if !same_count {
                    return self
                        .complain(key, format!("{place}: {key} is {made:?}, and {shown:?} to tshark"));
                }
                self.compare(place, key, made.iter().zip(shown));
            }
            Whole(part) if ours.get(part).is_none() => {
                self.complain(key, format!("{place}: tshark has {key}, and we have no {part}"));
            }
            Whole(_) => {}
            Own(reason) => assert!(!reason.is_empty()),
        }
    }

    /// Fails if any value is wrong, if an entry of a list does not occur, or if fewer values or fields were
    /// compared than expected.
    #[track_caller]
    fn finish(self, values: usize, keys: usize) {
        println!("{} values of {} fields compared", self.values, self.keys.len());
        let mut shown = BTreeSet::new();
        let first = self.wrong.iter().filter(|(key, _)| shown.insert(key.clone()));
        let some = first.map(|(_, text)| text.as_str()).collect::<Vec<_>>().join("\n");
        assert!(self.wrong.is_empty(), "{} differences, of each field the first:\n{some}", self.wrong.len());
        for (index, exception) in self.exceptions.iter().enumerate() {
            for key in exception.keys {
                let seen = self.exceptions_seen.contains(&(index, *key));
                assert!(
                    seen,
                    "{key} is an exception no more ({}): strike it from the list",
                    exception.reason
                );
            }
        }
        for (name, _) in self.besides {
            assert!(self.besides_seen.contains(name), "tshark shows no {name}: strike it from the list");
        }
        assert!(self.values >= values, "only {} values were compared, not {values}", self.values);
        assert!(self.keys.len() >= keys, "only {} fields were compared, not {keys}", self.keys.len());
    }
}

fn files(folders: &[PathBuf], extension: &str) -> Vec<PathBuf> {
    folders.iter().flat_map(|folder| captures_in(folder, &[extension])).collect()
}

#[test]
fn every_field_of_our_captures_is_what_tshark_shows() {
    if skip_unless(has_program("tshark"), "tshark is not installed") {
        return;
    }
    let captures = files(&[PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../pcaps")], "pcapng");
    Comparison::of(&captures, EXCEPTIONS, &[THEIRS, THEIRS_IN_PAUSES]).finish(35_585, 124);
}

#[test]
fn every_field_of_captures_from_elsewhere_is_what_tshark_shows() {
    let folder = shared("pcaps");
    if skip_unless(has_program("tshark"), "tshark is not installed")
        || skip_unless(folder.is_some(), "no captures of other people at ../shared/pcaps")
    {
        return;
    }
    let mut captures = files(&[folder.unwrap(), kernel_captures()], "pcap");
    // tshark decodes the subnet management in this capture, which `roce` does not. Another test compares it.
    captures.retain(|path| !path.ends_with("ib-native-erf.pcap"));
    Comparison::of(&captures, CM_EXCEPTIONS, &[THEIRS, THEIRS_IN_CM]).finish(174_617, 187);
}
