//! The rdma_cm request to a peer that does not run the doctor.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use roce_analysis::icrc::Mistake;
use roce_exchange::ToolError;
use roce_packet::PathMtu;
use roce_packet::mad::{CmTimeout, RejReason};
use roce_transport::QpType;
use roce_transport::cm::CmTiming;

use super::doctor::Doctor;
use super::finding::{Finding, Step};
use super::icrc;
use super::local::Reach;
use super::peer::Peer;
use roce::observe::{Snapshot, with_causes};
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
            let seen = doctor.log.take();
            let arrivals = Arrivals {
                datagrams: seen.datagrams,
                damaged: since.get("rx_icrc_encapsulated").unwrap_or(0),
                mistakes: icrc::cause(&seen.icrcs),
            };
            silence(peer, reach, &arrivals)
        }
        Err(error) => unexpected(&with_causes(&error).to_string()),
    }
}

fn rejection(reason: RejReason, port: u16) -> String {
    if reason == RejReason::INVALID_SERVICE_ID {
        return format!("the peer answered that nothing is listening on port {port} (REJ, reason 8)");
    }
    format!("the peer refused a connection to port {port} (REJ, reason {reason})")
}

fn unexpected(error: &str) -> Finding {
    Finding::problem(
        Step::RdmaCm,
        format!("the connection request failed: {error}"),
        "repeat with --pcap FILE, and examine the answer with `roce dissect FILE`",
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
    /// The mistakes that certainly lead to the wrong ICRCs.
    pub(super) mistakes: Vec<Mistake>,
}

/// Explains why no answer arrived, as far as the other observations permit.
pub(super) fn silence(peer: &Peer, reach: &Reach, arrivals: &Arrivals) -> Finding {
    let address = peer.address;
    let problem = |text: String, remedy: &str| Finding::problem(Step::RdmaCm, text, remedy);
    if arrivals.damaged > 0 {
        let text = format!("{address} answers, but {} packets arrived with a wrong ICRC", arrivals.damaged);
        if !arrivals.mistakes.is_empty() {
            let (name, remedy) = icrc::in_words(&arrivals.mistakes);
            return problem(format!("{text}; the cause is: {name}"), &remedy);
        }
        return problem(
            text,
            "a device on the path rewrites headers (NAT of addresses or ports), or one side computes the \
             ICRC incorrectly: repeat with --pcap FILE, and check every ICRC with `roce dissect FILE`",
        );
    }
    if arrivals.datagrams > 0 {
        return problem(
            format!("{address} sends RoCE packets, but does not answer the request"),
            "repeat with --pcap FILE, and examine the packets that arrive with `roce dissect FILE`",
        );
    }
    match reach {
        Reach::PortUnreachable => problem(
            format!("no answer, because nothing uses UDP port 4791 at {address}"),
            "start a RoCE device there; see the finding about UDP port 4791",
        ),
        Reach::Refused(_) | Reach::OwnRule => {
            let text = format!("no answer: packets do not reach {address}");
            problem(text, "remedy the problem with UDP port 4791 first; see above")
        }
        Reach::Silent | Reach::NotTested(_) => problem(
            format!("no answer from {address} after {} attempts", TIMING.max_retries + 1),
            "a firewall drops UDP port 4791 (here, there or on the path), the machine is down, or its RoCE \
             device does not support rdma_cm (`roce ping` and `roce blast` do not): `ping` the machine, look \
             for drop rules in `nft list ruleset` on both sides, and run `roce doctor` there without an \
             address",
        ),
    }
}
