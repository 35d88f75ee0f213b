//! The loss recovery of RC.

use alloc::borrow::ToOwned;
use alloc::string::String;
use core::fmt;
use core::str::FromStr;

use roce_congestion::parameters;
use roce_congestion::parameters::ParameterRange::Number;
use roce_congestion::parameters::{ParameterError, Parameters as _};

/// The packets to be sent again after a loss.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Recovery {
    /// All packets from the lost one on (IBTA 9.7.5.1.4). Every peer supports this.
    #[default]
    GoBackN,
    /// Only the missing packets. **This is not part of any standard**: the protocol has no negotiation, so
    /// both ends must be configured. See [`SelectiveRepeat`].
    SelectiveRepeat(SelectiveRepeat),
}

parameters! {
    /// Selective repeat as in IRN (SIGCOMM 2018), with the timeouts of the paper.
    ///
    /// The responder keeps early requests and reports each of them: an ACKNOWLEDGE with the reserved syndrome
    /// 0x40, the missing PSN in the BTH, and the received PSN instead of the MSN. Once the gap is filled, the
    /// requests are executed in order, so completions, acknowledgements, RNR NAKs and atomics are those of
    /// go-back-N. The requester sends a missing packet once, and again after a timeout.
    ///
    /// The requester accepts responses of READs and atomics in any order, and requests only the missing ones
    /// again. For a part of a READ response this is a READ request of that part, with the PSN of its first
    /// packet, as the specification allows for repeated requests (IBTA 9.7.5.1.3).
    ///
    /// A packet that fewer than `reorder` others overtook counts as lost after `rto_low`: near the end of a
    /// transfer, not enough others follow.
    ///
    /// If switches trim packets ([`Body::Trimmed`](crate::Body::Trimmed)), the responder
    /// reports each trimmed request in this way with the syndrome 0x41, and the requester sends only that
    /// request again. A trimmed response is requested again by itself.
    pub struct SelectiveRepeat {
        /// Maximum number of unacknowledged PSNs, and of early packets that are kept; equal at both ends.
        cap: u32 = 128, Number(1, SelectiveRepeat::MOST), "packets", "";
        /// Timeout with few packets in flight, or of an overtaken one. It replaces the local ACK timeout.
        rto_low: u32 = 100, Number(1, 4_000_000), "us", "";
        /// Timeout with more packets in flight.
        rto_high: u32 = 320, Number(1, 4_000_000), "us", "";
        /// Maximum number of packets in flight for which `rto_low` applies.
        few: u32 = 3, Number(0, SelectiveRepeat::MOST), "packets", "";
        /// Packets that may overtake a missing one before it counts as lost; above 0 if frames are sprayed.
        reorder: u32 = 0, Number(0, SelectiveRepeat::MOST), "packets", "";
    }
}

impl SelectiveRepeat {
    /// Maximum of `cap`; a responder keeps at most this number of packets, each allocated separately.
    pub const MOST: u32 = 4_096;

    pub(crate) fn cap(&self) -> u32 {
        self.cap.clamp(1, Self::MOST)
    }
}

/// An error in the text of a loss recovery.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecoveryError {
    /// The loss recovery does not exist.
    #[error("there is no loss recovery {name:?}; there are go-back-n and selective-repeat")]
    Unknown {
        /// The given name.
        name: String,
    },
    /// A parameter is wrong.
    #[error("invalid parameter of selective-repeat")]
    Parameter(#[from] ParameterError),
}

/// Reads `go-back-n` or `selective-repeat[:name=value,…]` with the parameters of [`SelectiveRepeat`], for
/// example `selective-repeat:cap=256,rto_high=1000`.
impl FromStr for Recovery {
    type Err = RecoveryError;

    fn from_str(text: &str) -> Result<Self, RecoveryError> {
        let (name, rest) = text.split_once(':').unwrap_or((text, ""));
        match name {
            "go-back-n" if rest.is_empty() => Ok(Self::GoBackN),
            "selective-repeat" => {
                let mut settings = SelectiveRepeat::default();
                for piece in rest.split(',').filter(|piece| !piece.is_empty()) {
                    let (name, value) = parameters::split(piece)?;
                    if !settings.take(name, value)? {
                        return Err(parameters::unknown(name, &[SelectiveRepeat::PARAMETERS]).into());
                    }
                }
                Ok(Self::SelectiveRepeat(settings))
            }
            _ => Err(RecoveryError::Unknown { name: text.to_owned() }),
        }
    }
}

/// The form that [`FromStr`] reads.
impl fmt::Display for Recovery {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::GoBackN => formatter.write_str("go-back-n"),
            Self::SelectiveRepeat(settings) => write!(formatter, "selective-repeat:{settings}"),
        }
    }
}

/// Syndrome of an acknowledgement that reports an early packet, from the range that IBTA reserves.
pub(crate) const SELECTIVE_SYNDROME: u8 = 0x40;
/// Syndrome of an acknowledgement that reports a trimmed packet.
pub(crate) const TRIMMED_SYNDROME: u8 = 0x41;
