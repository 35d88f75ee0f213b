//! Ports that carry every frame of a link unchanged: for a bridge between two hosts.
//!
//! A frame arrives with its pending offloads (several packets joined, an incomplete checksum) and leaves with
//! them, so the kernel on the other side continues. The kernel cannot continue inside a tunnel: such frames,
//! and those that it refuses, are split and completed here.

use std::io;

use roce_packet::VlanTag;

use super::OpenError;
use super::framed::FrameSettings;
use super::framed::port::FramePort;
use super::raw::{self, RawSpec};
use super::segment::Plan;
use super::spec::SpecText;
use super::tap::{self, TapSpec};
#[cfg(feature = "xdp")]
use super::xdp;

pub use super::offload::Offload;

impl Offload {
    /// Returns the bytes of UDP payload in each datagram except the last, if several were joined.
    pub fn udp_segment_len(&self) -> Option<usize> {
        self.segment_len().ok().flatten().map(usize::from)
    }

    /// Returns the offloads of one of the joined packets.
    pub const fn of_one(self) -> Self {
        let [flags, _, _, _, _, _, c0, c1, o0, o1] = self.0;
        Self([flags, 0, 0, 0, 0, 0, c0, c1, o0, o1])
    }

    /// Returns the offloads of the same frame with `bytes` more bytes near its start.
    pub fn moved_by(mut self, bytes: u16) -> Self {
        // The length of the headers, and the start of the checksum.
        for (at, is_used) in [(2, self.is_joined()), (6, self.needs_checksum())] {
            if is_used {
                let place = u16::from_ne_bytes([self.0[at], self.0[at + 1]]);
                self.0[at..at + 2].copy_from_slice(&place.saturating_add(bytes).to_ne_bytes());
            }
        }
        self
    }
}

/// Splits a joined frame, completes its checksums, also in known tunnels, and calls `sink` with each
/// completed packet. Returns `false` if the frame needs no work, or if its headers are unknown or malformed.
pub fn finish(offload: Offload, frame: &[u8], sink: &mut dyn FnMut(&[u8])) -> bool {
    let Some(plan) = Plan::of(frame, &offload) else { return false };
    let mut packet = Vec::new();
    for index in 0..plan.count() {
        plan.write(frame, index, &mut packet, &[]);
        sink(&packet);
    }
    true
}

/// A received frame.
#[derive(Clone, Copy, Debug)]
pub struct WholeFrame<'a> {
    /// The offloads that the frame still needs.
    pub offload: Offload,
    /// The frame, beginning with the destination address, without frame check sequence.
    pub bytes: &'a [u8],
    /// A tag that the interface removed from the frame.
    pub vlan: Option<VlanTag>,
}

/// A port that moves all frames of a link, in addition to the methods of [`FramePort`]. Never blocks.
pub trait WholePort: FramePort {
    /// Receives one burst and returns the number of frames. Does not receive frames that this side sent.
    ///
    /// # Errors
    ///
    /// Returns only errors that are not transient.
    fn receive_whole(&mut self, sink: &mut dyn FnMut(&WholeFrame<'_>)) -> io::Result<usize>;

    /// Sends a frame; `false` if there is no room until [`flush`](FramePort::flush) makes progress.
    fn send_whole(&mut self, offload: Offload, frame: &[u8]) -> bool;
}

/// Opens `raw:IFNAME` or `tap:NAME[,mtu=BYTES]` for all frames.
pub fn open_whole(spec: &str) -> Result<Box<dyn WholePort>, OpenError> {
    if ["xdp", "pnet"].contains(&kind_of(spec)) {
        return Err(unsuitable(
            spec,
            "this device receives only RoCE frames, and the kernel receives the others; use raw: with the same interface",
        ));
    }
    open_raw_or_tap(spec, "frames pass with their own tags; leave vlan= and prio= out")
}

/// Opens `raw:IFNAME`, `tap:NAME[,mtu=BYTES]`, `xdp:IFNAME` or `pnet:IFNAME` for frames that are sent
/// unchanged: the sender writes all headers. No host answers for the addresses of the frames.
///
/// # Errors
///
/// Fails if the specification is invalid, the kind moves no Ethernet frames, or the machine refuses.
pub fn open_to_send(spec: &str) -> Result<Box<dyn FramePort>, OpenError> {
    #[cfg(feature = "xdp")]
    if kind_of(spec) == "xdp" {
        return Ok(xdp::open(&spec.parse()?)?.0);
    }
    #[cfg(feature = "pnet")]
    if kind_of(spec) == "pnet" {
        return Ok(Box::new(crate::pnet::open(spec)?.0));
    }
    Ok(open_raw_or_tap(spec, "frames are sent with their own tags; leave vlan= and prio= out")?)
}

fn kind_of(spec: &str) -> &str {
    spec.split(':').next().unwrap_or_default()
}

fn unsuitable(spec: &str, problem: &str) -> OpenError {
    OpenError::Unsuitable { spec: spec.to_owned(), problem: problem.to_owned() }
}

/// Opens `raw` or `tap`; `tagged` is the error for a specification that sets a tag.
fn open_raw_or_tap(spec: &str, tagged: &str) -> Result<Box<dyn WholePort>, OpenError> {
    match kind_of(spec) {
        "raw" => {
            let parsed: RawSpec = spec.parse()?;
            if parsed.settings != FrameSettings::default() {
                return Err(unsuitable(spec, tagged));
            }
            Ok(Box::new(raw::open_whole(&parsed)?))
        }
        "tap" => Ok(Box::new(tap::open_whole(&tap_spec(spec)?)?)),
        "udp" | "memory" => Err(unsuitable(
            spec,
            "this device carries RoCE datagrams, not Ethernet frames; use raw:INTERFACE or tap:NAME",
        )),
        kind => Err(crate::registry::unavailable(spec, kind)),
    }
}

/// Parses the specification of a TAP without addresses and host.
fn tap_spec(text: &str) -> Result<TapSpec, OpenError> {
    const NAME: &str = "the name of a TAP interface such as tap0";
    const MTU: &str = "only mtu=BYTES, because a TAP of a bridge has no host";
    let text = SpecText::new("tap", text);
    let name = text.interface(NAME)?;
    let mut spec = TapSpec::named(name);
    for option in text.options(MTU) {
        let option = option?;
        let value = (option.name == "mtu").then(|| option.value.parse().ok()).flatten();
        spec.mtu = Some(value.ok_or_else(|| text.bad(option.whole, MTU))?);
    }
    Ok(spec)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_to_do_is_read_and_moved() {
        let words = |flags, kind, words: [u16; 4]| {
            let mut bytes = [0; Offload::LEN];
            bytes[..2].copy_from_slice(&[flags, kind]);
            for (place, word) in bytes[2..].chunks_exact_mut(2).zip(words) {
                place.copy_from_slice(&word.to_ne_bytes());
            }
            Offload(bytes)
        };
        let joined = words(1, 5, [42, 1042, 34, 6]);
        assert_eq!((joined.udp_segment_len(), joined.is_joined()), (Some(1042), true));
        assert_eq!(joined.moved_by(4), words(1, 5, [46, 1042, 38, 6]));
        assert_eq!(joined.of_one(), words(1, 0, [0, 0, 34, 6]));
        assert!(joined.needs_checksum() && !Offload::NONE.needs_checksum());
        let tcp = words(1, 0x81, [54, 1448, 34, 16]);
        assert_eq!((tcp.udp_segment_len(), tcp.is_joined()), (None, true));
        assert_eq!(Offload::NONE.moved_by(4), Offload::NONE);
    }

    #[test]
    fn devices_that_cannot_stand_between_are_refused_with_a_reason() {
        for (spec, part) in [
            ("udp:127.0.0.1", "not Ethernet frames; use raw:INTERFACE"),
            ("xdp:eth0", "receives only RoCE frames"),
            ("raw:eth0,vlan=5", "leave vlan= and prio= out"),
            ("raw:nosuch0", "there is no interface `nosuch0`"),
            ("tap:t0,ip=198.18.0.1/24", "`ip=198.18.0.1/24`: expected only mtu=BYTES"),
            ("tap:", "the name of a TAP interface"),
            ("rwa:eth0", "`rwa` is not a kind of device"),
        ] {
            let Err(error) = open_whole(spec) else { panic!("{spec} was opened") };
            assert!(error.to_string().contains(part), "{spec}: {error}");
        }
    }
}
