//! How a queue pair is created and connected.

use std::net::IpAddr;

use roce_packet::{PathMtu, RnrTimer};
use roce_transport::congestion::{Congestion, Paths};
use roce_transport::{Access, ModifyQpError, QpCapabilities, QpType, Recovery};

use super::{CompletionQueue, PathOptions, SharedReceiveQueue};

/// Options for creating a queue pair.
///
/// ```
/// use roce::verbs::{Context, QpType, QueuePairOptions};
///
/// # fn main() -> Result<(), roce::verbs::VerbsError> {
/// let context = Context::open("udp:127.0.0.1,port=0")?;
/// let (pd, cq) = (context.alloc_pd()?, context.create_cq(16, None)?);
/// let srq = pd.create_srq(64, 1)?;
/// let qp = pd.create_qp(&QueuePairOptions::new(QpType::Rc, &cq).srq(&srq).signal_all(true))?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct QueuePairOptions<'a> {
    /// Transport type.
    pub qp_type: QpType,
    /// Completion queue for send requests.
    pub send_cq: &'a CompletionQueue,
    /// Completion queue for receives.
    pub recv_cq: &'a CompletionQueue,
    /// Shared receive queue, which replaces the queue pair's own receive queue.
    pub srq: Option<&'a SharedReceiveQueue>,
    /// Sizes of the queues and of their requests.
    pub capabilities: QpCapabilities,
    /// Whether every send request generates a completion, whatever its flags.
    pub signal_all: bool,
    /// Congestion control of this queue pair; `None` uses that of the context.
    pub congestion: Option<Congestion>,
    /// Loss recovery of this queue pair; `None` uses that of the context. Anything but go-back-N requires a
    /// `roce` peer.
    pub recovery: Option<Recovery>,
    /// UDP source ports of this queue pair; `None` uses those of the context. Several are of use with
    /// selective repeat only, because packets overtake each other.
    pub paths: Option<Paths>,
}

impl<'a> QueuePairOptions<'a> {
    /// Returns options with the given transport, one completion queue for both directions, and default sizes.
    #[must_use]
    pub fn new(qp_type: QpType, cq: &'a CompletionQueue) -> Self {
        let capabilities = QpCapabilities::default();
        Self {
            qp_type,
            send_cq: cq,
            recv_cq: cq,
            srq: None,
            capabilities,
            signal_all: false,
            congestion: None,
            recovery: None,
            paths: None,
        }
    }
}

/// Converts the code of an RNR NAK delay.
pub(super) fn rnr_timer(code: u8) -> Result<RnrTimer, ModifyQpError> {
    let error = ModifyQpError::OutOfRange { name: "min_rnr_timer", have: code.into(), limit: 31 };
    RnrTimer::new(code).ok_or(error)
}

setters!(QueuePairOptions<'a> {
    send_cq: &'a CompletionQueue,
    recv_cq: &'a CompletionQueue,
    srq: impl Into<Option<&'a SharedReceiveQueue>>,
    capabilities: QpCapabilities,
    signal_all: bool,
    congestion: impl Into<Option<Congestion>>,
    recovery: impl Into<Option<Recovery>>,
    paths: impl Into<Option<Paths>>,
});

/// The data that a peer needs to connect. The application exchanges endpoints by any means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Endpoint {
    /// Address of the device.
    pub address: IpAddr,
    /// Queue pair number.
    pub qpn: u32,
    /// First PSN that this side will send.
    pub psn: u32,
}

/// Options for connecting a queue pair. The default suits most uses.
///
/// ```
/// use roce::verbs::{ConnectOptions, PathMtu, PathOptions};
///
/// let path = PathOptions::default().traffic_class(2 | 26 << 2);
/// let options = ConnectOptions::default().path_mtu(PathMtu::Mtu4096).path(path).timeout(12);
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct ConnectOptions {
    /// Path MTU; it must be equal at both ends.
    pub path_mtu: PathMtu,
    /// Traffic class, hop limit, source port.
    pub path: PathOptions,
    /// Local ACK timeout exponent: 4.096 µs × 2^timeout; 0 disables the timeout. The timeout is at least 537
    /// ms unless [`ContextBuilder::retransmission`](super::ContextBuilder::retransmission) sets another
    /// minimum.
    pub timeout: u8,
    /// Number of retries after timeouts and sequence errors.
    pub retry_cnt: u8,
    /// Number of retries after RNR NAKs; 7 means infinite.
    pub rnr_retry: u8,
    /// Delay in the RNR NAKs of this queue pair, as a code from 0 to 31.
    pub min_rnr_timer: u8,
    /// Maximum number of outstanding READs and atomics as requester.
    pub max_rd_atomic: u8,
    /// Maximum number of READs and atomics held as responder.
    pub max_dest_rd_atomic: u8,
    /// Operations that the peer may perform.
    pub access: Access,
    /// Q_Key (UD only).
    pub qkey: u32,
}

impl Default for ConnectOptions {
    fn default() -> Self {
        Self {
            path_mtu: PathMtu::Mtu1024,
            path: PathOptions::default(),
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            min_rnr_timer: 12,
            max_rd_atomic: 16,
            max_dest_rd_atomic: 16,
            access: Access::REMOTE,
            qkey: 0x1111_1111,
        }
    }
}

setters!(ConnectOptions {
    path_mtu: PathMtu,
    path: PathOptions,
    timeout: u8,
    retry_cnt: u8,
    rnr_retry: u8,
    min_rnr_timer: u8,
    max_rd_atomic: u8,
    max_dest_rd_atomic: u8,
    access: Access,
    qkey: u32,
});
