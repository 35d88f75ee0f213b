//! How the queue pairs of the two sides are connected, and parted.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use roce_packet::PathMtu;
use roce_packet::mad::CmTimeout;
use roce_transport::Access;
use roce_transport::cm::CmTiming;

use super::session::End;
use super::{Connection, PerftestError, Plan, Verb};
use crate::exchange::connect_when_listening;
use roce::verbs::{
    CmListener, ConnectOptions, ConnectionError, ConnectionEvent, ConnectionParameters, Context, Endpoint,
    PathOptions,
};

/// What the originals agree on without saying so.
const QKEY: u32 = 0x1111_1111;
/// The originals listen for the queue pairs a moment after they have said that they are ready.
const LISTENING: Duration = Duration::from_secs(5);
/// How long the end of a connection is waited for.
const PARTING: Duration = Duration::from_secs(3);

/// What connects the queue pairs.
#[derive(Debug)]
pub enum Meeting {
    /// The keys that both sides exchange.
    Keys,
    /// rdma_cm: this side asks for each connection.
    Connect(SocketAddr),
    /// rdma_cm: this side takes what is asked for here.
    Accept(CmListener),
}

impl Plan {
    /// The path MTU that this side proposes.
    #[must_use]
    pub fn largest_mtu(&self, context: &Context) -> PathMtu {
        self.mtu.or_else(|| context.largest_path_mtu()).unwrap_or(PathMtu::Mtu256)
    }

    /// What the peer may do.
    fn access(&self) -> Access {
        match self.verb {
            Verb::Write => Access::REMOTE_WRITE,
            Verb::Read => Access::REMOTE_READ,
            Verb::Atomic => Access::REMOTE_ATOMIC,
            Verb::Send => Access::empty(),
        }
    }

    fn path(&self) -> PathOptions {
        PathOptions::default().sgid_index(self.gid_index).traffic_class(0)
    }

    /// What connections of rdma_cm are asked for or accepted with.
    #[must_use]
    pub fn connection_parameters(&self, path_mtu: PathMtu) -> ConnectionParameters {
        let reads = if matches!(self.verb, Verb::Read | Verb::Atomic) { self.out_reads } else { 0 };
        // The local ACK timeout of a connection is twice the time that a packet is under way.
        let lifetime = CmTimeout::new(self.timeout.saturating_sub(1).clamp(1, 20));
        ConnectionParameters::default()
            .responder_resources(reads)
            .initiator_depth(reads)
            .path_mtu(path_mtu)
            .access(self.access())
            .path(self.path())
            .timing(CmTiming { packet_lifetime: lifetime, ..CmTiming::default() })
    }
}

impl End {
    /// Connects every queue pair with its peer, with the attributes of the originals.
    pub(super) fn connect(&mut self, meeting: &Meeting) -> Result<(), PerftestError> {
        match meeting {
            Meeting::Keys => self.connect_by_keys(),
            Meeting::Connect(server) => self.ask(*server),
            Meeting::Accept(listener) => self.accept(listener),
        }
    }

    fn connect_by_keys(&mut self) -> Result<(), PerftestError> {
        let (path, access) = (self.plan.path(), self.plan.access());
        for lane in &mut self.lanes {
            let (local, remote) = (lane.local, lane.remote);
            let address = remote.gid.to_ip();
            if local.gid.is_ipv4_mapped() != remote.gid.is_ipv4_mapped() {
                return Err(PerftestError::GidMismatch { remote: address });
            }
            if self.plan.connection == Connection::Ud {
                lane.qp.activate_datagram(QKEY)?;
                let destination = self.context.create_address_handle(address, remote.qpn, QKEY, &path)?;
                lane.destination = Some(destination);
                continue;
            }
            let endpoint = Endpoint { address, qpn: remote.qpn.get(), psn: remote.psn.get() };
            let reads = |count: u32| count.clamp(1, 128) as u8;
            let options = ConnectOptions::default()
                .path_mtu(self.agreement.mtu)
                .path(path)
                .timeout(self.plan.timeout)
                .access(access)
                .max_rd_atomic(reads(remote.out_reads).min(self.plan.out_reads))
                .max_dest_rd_atomic(reads(local.out_reads));
            lane.qp.connect(&endpoint, &options)?;
        }
        Ok(())
    }

    /// Client: one connection after the other, so that both sides number them alike.
    fn ask(&mut self, server: SocketAddr) -> Result<(), PerftestError> {
        let parameters = self.plan.connection_parameters(self.agreement.mtu);
        for lane in &mut self.lanes {
            let qp = &lane.qp;
            let mut fresh = || {
                // A refusal has moved it to ERR.
                qp.modify(&roce_transport::QpAttr::to_state(roce_transport::QpState::Reset))?;
                Ok(qp.clone())
            };
            let connection =
                connect_when_listening(&self.context, server, &parameters, LISTENING, &mut fresh)?;
            lane.connection = Some(connection);
        }
        Ok(())
    }

    /// Server: takes the connections in the order in which they are asked for.
    fn accept(&mut self, listener: &CmListener) -> Result<(), PerftestError> {
        let parameters = self.plan.connection_parameters(self.agreement.mtu);
        for lane in &mut self.lanes {
            let request = listener.accept(Some(self.plan.patience))?;
            lane.connection = Some(request.accept(&lane.qp, &parameters)?);
        }
        // An original asks for all at once: each of them waits until the one before it is established.
        for lane in &mut self.lanes {
            if let Some(connection) = &mut lane.connection {
                connection.established(Some(self.plan.patience))?;
            }
        }
        Ok(())
    }

    /// Ends what rdma_cm connected. Some originals do so themselves, others wait until it is done.
    pub(super) fn disconnect(&mut self) {
        let connections: Vec<_> = self.lanes.iter_mut().filter_map(|lane| lane.connection.as_mut()).collect();
        let end = Instant::now() + PARTING;
        for connection in connections {
            // The other side may have been faster.
            let _ = connection.disconnect();
            loop {
                match connection.next_event(Some(end.saturating_duration_since(Instant::now()))) {
                    Ok(ConnectionEvent::Disconnected | ConnectionEvent::TimewaitExit) => break,
                    Ok(_) => {}
                    Err(ConnectionError::TimedOut) => break,
                    Err(error) => {
                        tracing::debug!(%error, "parting");
                        break;
                    }
                }
            }
        }
    }

    /// Stays until nothing has come for twice the time after which the other side repeats what was not
    /// acknowledged: the last acknowledgement may have been lost.
    pub(super) fn await_silence(&self) {
        let quiet = Duration::from_nanos(4096 << self.plan.timeout.clamp(14, 19)) * 2;
        for _ in 0..20 {
            let before = self.context.counters().rdma_rx_packets;
            std::thread::sleep(quiet);
            if self.context.counters().rdma_rx_packets == before {
                return;
            }
        }
    }
}
