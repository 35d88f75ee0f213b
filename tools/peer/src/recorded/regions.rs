//! Memory of the NIC that takes the place of the recorded regions.

use std::collections::BTreeMap;

use roce_packet::{NakCode, Syndrome};

use super::packet::{NoScript, Packet, access, answered_psns};

/// The largest region that a script registers.
const MOST_BYTES: u64 = 64 << 20;
/// Registered memory begins at a multiple of this.
const PAGE: u64 = 4096;

/// The recorded regions by their keys, each with its first address, its length, and its name in the script.
#[derive(Debug, Default)]
pub(super) struct Regions(BTreeMap<u32, Region>);

#[derive(Debug)]
struct Region {
    begin: u64,
    end: u64,
    name: String,
}

impl Regions {
    /// Collects what the requests of the script access. A key that was refused stays as it is.
    pub(super) fn of(packets: &[Packet<'_>]) -> Result<Self, NoScript> {
        let refused = answered_psns(packets, |syndrome| syndrome == Syndrome::Nak(NakCode::RemoteAccess));
        let mut regions: BTreeMap<u32, Region> = BTreeMap::new();
        for packet in packets.iter().filter(|packet| packet.is_request(true)) {
            let Some((rkey, va, len)) = packet.datagram.as_ref().and_then(access) else { continue };
            if packet.psn().is_some_and(|psn| refused.contains(&psn.get())) || len == 0 {
                continue;
            }
            let (begin, end) = (va / PAGE * PAGE, va.saturating_add(len));
            let region = regions.entry(rkey).or_insert_with(|| Region { begin, end, name: String::new() });
            (region.begin, region.end) = (region.begin.min(begin), region.end.max(end));
        }
        let count = regions.len();
        for (number, (rkey, region)) in regions.iter_mut().enumerate() {
            region.name = if count == 1 { "remote".to_owned() } else { format!("remote{number}") };
            if region.len() > MOST_BYTES {
                let len = region.len();
                return Err(NoScript(format!(
                    "the requests with rkey {rkey:#x} reach over {len} bytes, more than {MOST_BYTES}"
                )));
            }
        }
        Ok(Self(regions))
    }

    /// Returns the lines that register the regions.
    pub(super) fn lines(&self) -> Vec<String> {
        let line = |region: &Region| format!("memory {} {} bytes", region.name, region.len());
        self.0.values().map(line).collect()
    }

    /// Returns an address and a key in the words of the script.
    pub(super) fn words(&self, rkey: u32, va: u64, len: u64) -> (String, String) {
        let region =
            self.0.get(&rkey).filter(|region| va >= region.begin && va.saturating_add(len) <= region.end);
        match region {
            None => (format!("{va:#x}"), format!("{rkey:#x}")),
            Some(Region { begin, name, .. }) => {
                let va = match va - begin {
                    0 => format!("{name}.va"),
                    offset => format!("{name}.va+{offset}"),
                };
                (va, format!("{name}.rkey"))
            }
        }
    }
}

impl Region {
    fn len(&self) -> u64 {
        (self.end - self.begin).next_multiple_of(PAGE)
    }
}
