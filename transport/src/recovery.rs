//! How RC makes up for lost requests, as a choice.

/// What is sent again after a loss.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Recovery {
    /// Everything from the lost packet on (IBTA 9.7.5.1.4). What every peer understands.
    #[default]
    GoBackN,
    /// Only what is missing. **No standard knows this**: both ends have to be set so, and nothing is negotiated on the
    /// wire. See [`SelectiveRepeat`].
    SelectiveRepeat(SelectiveRepeat),
}

/// Selective repeat after IRN (SIGCOMM 2018).
///
/// The responder keeps requests that came too early, and says of each that it came and what is missing: an ACKNOWLEDGE
/// with the reserved syndrome 0x40, the missing PSN in the BTH and the PSN that came in place of the message count. Once
/// the gap is filled everything is executed in its order, so completions, acknowledgements, RNR NAKs and atomics are
/// those of go-back-N. The requester sends what is missing once, and again after a timeout.
///
/// While READs or atomics are in flight the requester goes back as usual; what the responder kept is then not
/// executed twice. READ responses that are lost are asked for again as usual.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SelectiveRepeat {
    /// PSNs that a requester leaves unacknowledged at most, and how far ahead a responder keeps: the bandwidth-delay
    /// product in packets. 1 to [`SelectiveRepeat::MOST`], the same at both ends; the responder keeps that many packets of
    /// memory.
    pub cap: u32,
    /// Timeout with few packets in flight, in nanoseconds. It replaces the local ACK timeout.
    pub rto_low: u64,
    /// Timeout otherwise, in nanoseconds.
    pub rto_high: u64,
    /// How many packets are few.
    pub few: u32,
}

impl SelectiveRepeat {
    /// The largest cap.
    pub const MOST: u32 = 4_096;

    pub(crate) fn cap(&self) -> u32 {
        self.cap.clamp(1, Self::MOST)
    }
}

/// The timeouts of the paper, and a cap of 128 packets.
impl Default for SelectiveRepeat {
    fn default() -> Self {
        Self { cap: 128, rto_low: 100_000, rto_high: 320_000, few: 3 }
    }
}

/// The syndrome of an acknowledgement that says what came too early: in the range that IBTA reserves.
pub(crate) const SELECTIVE_SYNDROME: u8 = 0x40;
