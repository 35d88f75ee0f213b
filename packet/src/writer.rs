//! Builds one datagram, BTH to ICRC, in the caller's buffer.

use crate::aeth::Aeth;
use crate::atomic::{AtomicAckEth, AtomicEth};
use crate::bth::{Bth, PAD_SHIFT};
use crate::deth::{Deth, Rdeth, Xrceth};
use crate::envelope::Envelope;
use crate::error::BufferTooSmall;
use crate::flush::Feth;
use crate::icrc;
use crate::immediate::{Ieth, ImmDt};
use crate::reth::Reth;

/// Writes the parts of a datagram one after the other, in the order of the calls.
///
/// The writer does not compare the headers with the opcode, so that tests can send invalid packets. It always
/// reserves room for the ICRC: a later call cannot invalidate a successful one.
///
/// ```
/// use roce_packet::{Bth, Datagram, DatagramWriter, Encapsulation, Envelope, Opcode, Path, Psn, Qpn};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let path = Path {
///     encapsulation: Encapsulation::RoceV2,
///     source: [192, 0, 2, 1].into(),
///     destination: [192, 0, 2, 2].into(),
///     source_port: 0xc000,
///     traffic_class: 0,
///     hop_limit: 64,
///     flow_label: 0,
///     vlan: None,
/// };
/// let envelope = Envelope::new(&path, 0);
/// let mut buffer = [0; 64];
/// let bth = Bth::new(Opcode::RC_SEND_ONLY, Qpn::new(0x12), Psn::new(7));
/// let mut writer = DatagramWriter::new(&mut buffer, &bth)?;
/// writer.payload_slot(5)?.copy_from_slice(b"hello");
/// let len = writer.finish(&envelope)?;
///
/// let datagram = Datagram::parse(&buffer[..len], &[])?;
/// assert_eq!(datagram.payload().0, b"hello");
/// assert_eq!(datagram.icrc(), datagram.compute_icrc(&envelope));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct DatagramWriter<'a> {
    out: &'a mut [u8],
    len: usize,
}

impl<'a> DatagramWriter<'a> {
    /// Starts a datagram with its BTH. Ignores `pad_count`, because the payload determines it.
    #[inline]
    pub fn new(out: &'a mut [u8], bth: &Bth) -> Result<Self, BufferTooSmall> {
        let mut writer = Self { out, len: 0 };
        Bth { pad_count: 0, ..*bth }.emit(writer.append()?);
        Ok(writer)
    }

    /// Appends room for `len` bytes of payload, which the caller fills, and writes the padding after it. Must
    /// be called at most once per datagram, after the headers. Bytes that the caller does not write keep the
    /// buffer's previous content.
    #[inline]
    pub fn payload_slot(&mut self, len: usize) -> Result<&mut [u8], BufferTooSmall> {
        let pad = len.wrapping_neg() & 0b11;
        let start = self.len;
        self.len = self.end_after(len.saturating_add(pad))?;
        if let Some(flags) = self.out.get_mut(1) {
            *flags = *flags & !(0b11 << PAD_SHIFT) | (pad as u8) << PAD_SHIFT;
        }
        let slot = self.out.get_mut(start..self.len).unwrap_or_default();
        match slot.split_at_mut_checked(len) {
            Some((payload, padding)) => {
                // Most payloads have no padding, and filling an empty slice costs a call.
                if pad > 0 {
                    padding.fill(0);
                }
                Ok(payload)
            }
            None => Ok(&mut []),
        }
    }

    /// Returns the length from BTH to ICRC inclusive that [`Self::finish`] would return now, in bytes.
    #[inline]
    #[must_use]
    pub const fn len_with_icrc(&self) -> usize {
        self.len.saturating_add(icrc::LEN)
    }

    /// Appends the ICRC. Returns the length from BTH to ICRC inclusive, in bytes.
    #[inline]
    pub fn finish(self, envelope: &Envelope) -> Result<usize, BufferTooSmall> {
        self.seal(|covered| icrc::compute(envelope, covered, &[]))
    }

    /// Appends the ICRC, computed with a precomputed contribution of the headers below the BTH.
    #[inline]
    pub fn finish_from(self, seed: &icrc::Seed, identification: u16) -> Result<usize, BufferTooSmall> {
        self.seal(|covered| seed.compute(identification, covered, &[]))
    }

    /// Appends four zero bytes instead of the ICRC, for a network that does not check it. Returns the length
    /// from BTH to ICRC inclusive, in bytes.
    #[inline]
    pub fn finish_unsealed(self) -> Result<usize, BufferTooSmall> {
        self.seal(|_| 0)
    }

    #[inline]
    fn seal(self, compute: impl FnOnce(&[u8]) -> u32) -> Result<usize, BufferTooSmall> {
        let (need, have) = (self.len_with_icrc(), self.out.len());
        let (covered, rest) = self.out.split_at_mut_checked(self.len).ok_or(BufferTooSmall { need, have })?;
        let icrc = rest.first_chunk_mut().ok_or(BufferTooSmall { need, have })?;
        *icrc = compute(covered).to_le_bytes();
        Ok(need)
    }

    /// Appends `N` bytes and returns them for writing.
    #[inline]
    fn append<const N: usize>(&mut self) -> Result<&mut [u8; N], BufferTooSmall> {
        let (start, end) = (self.len, self.end_after(N)?);
        self.len = end;
        let too_small = BufferTooSmall { need: end.saturating_add(icrc::LEN), have: self.out.len() };
        self.out.get_mut(start..).and_then(<[u8]>::first_chunk_mut).ok_or(too_small)
    }

    /// Returns the end of `count` further bytes, if they and the ICRC fit.
    #[inline]
    const fn end_after(&self, count: usize) -> Result<usize, BufferTooSmall> {
        let end = self.len.saturating_add(count);
        let need = end.saturating_add(icrc::LEN);
        if need > self.out.len() { Err(BufferTooSmall { need, have: self.out.len() }) } else { Ok(end) }
    }
}

/// Defines a method for each extended header, which appends the header.
macro_rules! appenders {
    ($($(#[$doc:meta])* $name:ident: $header:ty;)*) => {
        impl DatagramWriter<'_> {
            $($(#[$doc])* #[inline] pub fn $name(&mut self, header: &$header) -> Result<(), BufferTooSmall> {
                header.emit(self.append()?);
                Ok(())
            })*
        }
    };
}

appenders! {
    /// Appends a reliable datagram header.
    rdeth: Rdeth;
    /// Appends a datagram header.
    deth: Deth;
    /// Appends an extended reliable connection header.
    xrceth: Xrceth;
    /// Appends a flush header.
    feth: Feth;
    /// Appends an RDMA header.
    reth: Reth;
    /// Appends an atomic header.
    atomic_eth: AtomicEth;
    /// Appends an acknowledge header.
    aeth: Aeth;
    /// Appends an atomic acknowledge header.
    atomic_ack_eth: AtomicAckEth;
    /// Appends immediate data.
    imm_dt: ImmDt;
    /// Appends an invalidate header.
    ieth: Ieth;
}
