//! Connecting and disconnecting the queue pairs of the two sides.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use roce_exchange::{PeerAddresses, ToolError};
use roce_packet::PathMtu;
use roce_packet::mad::CmTimeout;
use roce_transport::Access;
use roce_transport::cm::CmTiming;

use super::end::End;
use super::{Connection, Plan, Verb};
use crate::harness::{PeerQueuePair, connect_as_originals};
use crate::perf::messages::connect_when_listening;
use roce::observe::with_causes;
use roce::verbs::{
    CmListener, ConnectOptions, ConnectionError, ConnectionEvent, ConnectionParameters, Context, PathOptions,
};

/// Time limit for the listener. The originals begin to listen for the queue pairs just after they report that
/// they are ready.
pub(super) const LISTEN_PATIENCE: Duration = Duration::from_secs(5);
/// Time limit for disconnecting.
const DISCONNECT_PATIENCE: Duration = Duration::from_secs(3);

/// The method that connects the queue pairs.
#[derive(Debug)]
pub enum ConnectMethod {
    /// The keys that both sides exchange. A server passes the addresses that its packets may go to.
    Keys(Option<PeerAddresses>),
    /// rdma_cm: this side requests each connection.
    Connect(SocketAddr),
    /// rdma_cm: this side accepts the connections of this listener.
    Accept(CmListener),
}

impl Plan {
    /// Returns the path MTU that this side proposes.
    #[must_use]
    pub fn largest_mtu(&self, context: &Context) -> PathMtu {
        self.mtu.or_else(|| context.largest_path_mtu()).unwrap_or(PathMtu::Mtu256)
    }

    /// Returns the access rights of the peer.
    pub(super) fn access(&self) -> Access {
        match self.verb {
            Verb::Write => Access::REMOTE_WRITE,
            Verb::Read => Access::REMOTE_READ,
            Verb::Atomic => Access::REMOTE_ATOMIC,
            Verb::Send => Access::empty(),
        }
    }

    pub(super) fn path(&self) -> PathOptions {
        PathOptions::default().sgid_index(self.gid_index).traffic_class(self.traffic_class)
    }

    /// Returns the parameters with which rdma_cm connections are requested or accepted.
    #[must_use]
    pub fn connection_parameters(&self, path_mtu: PathMtu) -> ConnectionParameters {
        let reads = if self.lands() { self.out_reads } else { 0 };
        // The local ACK timeout of a connection is twice the packet lifetime.
        let lifetime = CmTimeout::new(self.timeout.saturating_sub(1).clamp(1, 20));
        ConnectionParameters::default()
            .responder_resources(reads)
            .initiator_depth(reads)
            .path_mtu(path_mtu)
            .access(self.access())
            .path(self.path())
            .retry_count(self.retry_count)
            .timing(CmTiming { packet_lifetime: lifetime, ..CmTiming::default() })
    }
}

impl End {
    /// Connects every queue pair to its peer, with the attributes of the originals.
    pub(super) fn connect(&mut self, method: &ConnectMethod) -> Result<(), ToolError> {
        match method {
            ConnectMethod::Keys(allowed) => self.connect_by_keys(allowed.as_ref()),
            ConnectMethod::Connect(server) if self.plan.connection == Connection::Ud => self.resolve(*server),
            ConnectMethod::Connect(server) => self.ask(*server),
            ConnectMethod::Accept(listener) if self.plan.connection == Connection::Ud => {
                self.accept_datagrams(listener)
            }
            ConnectMethod::Accept(listener) => self.accept(listener),
        }
    }

    fn connect_by_keys(&mut self, allowed: Option<&PeerAddresses>) -> Result<(), ToolError> {
        let (path, access) = (self.plan.path(), self.plan.access());
        for lane in &mut self.lanes {
            let (local, remote) = (lane.local, lane.remote);
            let reads = |count: u32| count.clamp(1, 128) as u8;
            let options = ConnectOptions::default()
                .path_mtu(self.agreement.mtu)
                .path(path)
                .timeout(self.plan.timeout)
                .retry_cnt(self.plan.retry_count)
                .access(access)
                .max_rd_atomic(reads(remote.out_reads).min(self.plan.out_reads))
                .max_dest_rd_atomic(reads(local.out_reads));
            let peer = PeerQueuePair { gid: remote.gid, qpn: remote.qpn, psn: remote.psn };
            let qp_type = self.plan.qp_type();
            lane.destination =
                connect_as_originals(&self.context, &lane.qp, qp_type, local.gid, peer, allowed, &options)?;
        }
        Ok(())
    }

    /// Connects as the client, one queue pair after the other, so that both sides number them alike.
    fn ask(&mut self, server: SocketAddr) -> Result<(), ToolError> {
        let parameters = self.plan.connection_parameters(self.agreement.mtu);
        for lane in &mut self.lanes {
            let qp = &lane.qp;
            let mut fresh = || {
                // A refusal has moved the queue pair to ERR.
                qp.modify(&roce_transport::QpAttr::to_state(roce_transport::QpState::Reset))?;
                Ok(qp.clone())
            };
            let connection =
                connect_when_listening(&self.context, server, &parameters, LISTEN_PATIENCE, &mut fresh)?;
            lane.connection = Some(connection);
        }
        Ok(())
    }

    /// Accepts as the server, in the order of the requests.
    fn accept(&mut self, listener: &CmListener) -> Result<(), ToolError> {
        let parameters = self.plan.connection_parameters(self.agreement.mtu);
        for lane in &mut self.lanes {
            let request = listener.accept(Some(self.plan.patience))?;
            lane.connection = Some(request.accept(&lane.qp, &parameters)?);
        }
        // An original requests all connections at once. Each waits until the one before it is established.
        for lane in &mut self.lanes {
            if let Some(connection) = &mut lane.connection {
                connection.established(Some(self.plan.patience))?;
            }
        }
        Ok(())
    }

    /// Disconnects all rdma_cm connections. Some originals disconnect themselves, others wait for it.
    pub(super) fn disconnect(&mut self) {
        let connections: Vec<_> = self.lanes.iter_mut().filter_map(|lane| lane.connection.as_mut()).collect();
        let end = Instant::now() + DISCONNECT_PATIENCE;
        for connection in connections {
            // The other side may have disconnected first.
            let _ = connection.disconnect();
            loop {
                match connection.next_event(Some(end.saturating_duration_since(Instant::now()))) {
                    Ok(ConnectionEvent::Disconnected | ConnectionEvent::TimewaitExit) => break,
                    Ok(_) => {}
                    Err(ConnectionError::TimedOut) => break,
                    Err(error) => {
                        tracing::debug!(error = %with_causes(&error), "disconnecting");
                        break;
                    }
                }
            }
        }
    }
}
