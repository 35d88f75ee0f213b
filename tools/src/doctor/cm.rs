//! The rdma_cm request to a peer that does not run the doctor.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use roce_packet::PathMtu;
use roce_packet::mad::{CmTimeout, RejReason};
use roce_transport::QpType;
use roce_transport::cm::CmTiming;

use super::finding::{Finding, Step};
use super::local::Reach;
use super::{Doctor, Peer};
use crate::harness::ToolError;
use roce::observe::Snapshot;
use roce::verbs::{ConnectionError, ConnectionParameters, QueuePairOptions};

/// Time limit for the answer, which is longer than all retransmissions together.
const PATIENCE: Duration = Duration::from_secs(8);
/// 268 ms for the answer and 67 ms for each transfer: retransmission after 403 ms.
const TIMING: CmTiming =
    CmTiming { response_timeout: CmTimeout::new(16), packet_lifetime: CmTimeout::new(14), max_retries: 5 };

/// Sends the request and returns the finding.
pub(super) fn ask(doctor: &Doctor, peer: &Peer, reach: &Reach) -> Finding {
    doctor.log.take();
    let before = Snapshot::of(&doctor.context);
    let start = Instant::now();
    let answer = request(doctor, peer);
    let took_ms = start.elapsed().as_secs_f64() * 1e3;
    let since = Snapshot::of(&doctor.context).since(&before);
    let proof = format!("in {took_ms:.1} ms, so RoCE, queue pair 1 and the ICRC work in both directions");
    let port = peer.service_port;
    match answer {
        Ok(()) => Finding::ok(Step::RdmaCm, format!("a service at port {port} accepted (REP) {proof}")),
        Err(ToolError::Connection(ConnectionError::Rejected { reason, .. })) => {
            Finding::ok(Step::RdmaCm, format!("{} {proof}", rejection(reason, port)))
        }
        Err(ToolError::Connection(ConnectionError::Unreachable | ConnectionError::TimedOut)) => {
            let arrivals = Arrivals {
                datagrams: doctor.log.take().datagrams,
                damaged: since.get("rx_icrc_encapsulated").unwrap_or(0),
            };
            silence(peer, reach, &arrivals)
        }
        Err(error) => unexpected(&error.to_string()),
    }
}

fn rejection(reason: RejReason, port: u16) -> String {
    if reason == RejReason::INVALID_SERVICE_ID {
        return format!("the peer answered that nobody listens at port {port} (REJ, reason 8)");
    }
    format!("the peer refused a connection to port {port} (REJ, reason {reason})")
}

fn unexpected(error: &str) -> Finding {
    Finding::problem(
        Step::RdmaCm,
        format!("the request could not be made: {error}"),
        "repeat with --pcap FILE and look at the answer with `roce dissect`",
    )
}

fn request(doctor: &Doctor, peer: &Peer) -> Result<(), ToolError> {
    let pd = doctor.context.alloc_pd()?;
    let cq = doctor.context.create_cq(16, None)?;
    let qp = pd.create_qp(&QueuePairOptions::new(QpType::Rc, &cq))?;
    let parameters = ConnectionParameters::default()
        .path_mtu(doctor.context.largest_path_mtu().map_or(PathMtu::Mtu256, |mtu| mtu.min(PathMtu::Mtu1024)))
        .path(doctor.path)
        .timing(TIMING);
    let mut connection =
        doctor.context.start_connect(SocketAddr::new(peer.address, peer.service_port), &qp, &parameters)?;
    Ok(connection.established(Some(PATIENCE))?)
}

/// The packets that arrived instead of an answer.
pub(super) struct Arrivals {
    pub(super) datagrams: u64,
    pub(super) damaged: u64,
}

/// Explains why no answer arrived, as far as the other observations permit.
pub(super) fn silence(peer: &Peer, reach: &Reach, arrivals: &Arrivals) -> Finding {
    let address = peer.address;
    let problem = |text: String, remedy: &str| Finding::problem(Step::RdmaCm, text, remedy);
    if arrivals.damaged > 0 {
        return problem(
            format!("{address} answers, but {} packets came with a wrong ICRC", arrivals.damaged),
            "something rewrites headers on the way (NAT of addresses or ports), or one side computes the ICRC \
             wrongly: record it with --pcap and see `roce dissect`, which checks every ICRC",
        );
    }
    if arrivals.datagrams > 0 {
        return problem(
            format!("{address} sends RoCE packets, but no answer to the request"),
            "record it with --pcap and look at what comes with `roce dissect`",
        );
    }
    match reach {
        Reach::PortUnreachable => problem(
            format!("no answer, since nobody has UDP port 4791 at {address}"),
            "start a RoCE device there, see above",
        ),
        Reach::Refused(_) | Reach::OwnRule => {
            problem(format!("no answer: {address} is not reached"), "begin with the UDP port, see above")
        }
        Reach::Silent | Reach::NotTested(_) => problem(
            format!("no answer from {address} within {} tries", TIMING.max_retries + 1),
            "either a firewall drops UDP port 4791 (here, there or on the way), or the machine is down, or its \
             RoCE device serves no rdma_cm (`roce ping` and `blast` do not): `ping` it, look for drops in `nft list \
             ruleset` on both sides, and run `roce doctor` there without an address",
        ),
    }
}
