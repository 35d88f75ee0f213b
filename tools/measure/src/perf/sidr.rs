//! UD queue pairs that find each other through rdma_cm, which resolves the service of the server (SIDR).
//!
//! ```text
//!   client                                        server
//!   SIDR REQ, service of RDMA_PS_UDP         ──▶
//!                                            ◀──  SIDR REP: queue pair, Q_Key
//!   where both sides send:
//!   SEND with the own queue pair number      ──▶
//!   as immediate data
//! ```

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use roce_exchange::ToolError;
use roce_packet::mad::{PortSpace, SidrStatus};
use roce_packet::{ImmDt, Qpn};
use roce_transport::{Payload, RecvWr, SendFlags, SendOp, SendWr, Wc};

use super::Test;
use super::connect::LISTEN_PATIENCE;
use super::end::End;
use crate::harness::check_completion;
use roce::verbs::{AddressHandle, CmListener, ConnectionError, QueuePair};

/// The Q_Key of rdma_cm for `RDMA_PS_UDP`.
const UDP_QKEY: u32 = 0x0123_4567;
/// Interval between two requests for a service that does not exist yet.
const RETRY_INTERVAL: Duration = Duration::from_millis(50);

impl End {
    /// Returns whether the server sends, too, and therefore must know the client's queue pair.
    fn needs_introduction(&self) -> bool {
        self.plan.test == Test::Latency || self.plan.bidirectional
    }

    /// Resolves one queue pair after the other, as the client.
    pub(super) fn resolve(&mut self, server: SocketAddr) -> Result<(), ToolError> {
        for index in 0..self.lanes.len() {
            let qp = self.lanes[index].qp.clone();
            qp.activate_datagram(UDP_QKEY)?;
            let destination = self.ask_for_service(server)?;
            if self.needs_introduction() {
                self.introduce(&qp, &destination)?;
            }
            self.lanes[index].destination = Some(destination);
        }
        Ok(())
    }

    /// Repeats the request until the service exists.
    fn ask_for_service(&self, server: SocketAddr) -> Result<AddressHandle, ToolError> {
        let parameters = self.plan.connection_parameters(self.agreement.mtu).port_space(PortSpace::Udp);
        let end = Instant::now() + LISTEN_PATIENCE;
        loop {
            match self.context.resolve(server, &parameters, Some(self.plan.patience)) {
                Err(ConnectionError::Unresolved { status: SidrStatus::UNSUPPORTED })
                    if Instant::now() < end =>
                {
                    std::thread::sleep(RETRY_INTERVAL);
                }
                found => return Ok(found?.destination),
            }
        }
    }

    /// Sends the number of a queue pair to the server.
    fn introduce(&self, qp: &QueuePair, destination: &AddressHandle) -> Result<(), ToolError> {
        let number = qp.number().get().to_be_bytes();
        qp.post_send(&SendWr {
            wr_id: 0,
            op: SendOp::SendWithImm(ImmDt(number)),
            flags: SendFlags::SIGNALED,
            payload: Payload::Elements(&[self.buffers.introduction_to_send()]),
            destination: Some(**destination),
            remote_srqn: 0,
        })?;
        self.one_completion("sending the number of a queue pair").map(drop)
    }

    /// Answers one request for each queue pair, as the server.
    pub(super) fn accept_datagrams(&mut self, listener: &CmListener) -> Result<(), ToolError> {
        for index in 0..self.lanes.len() {
            let request = listener.accept_datagrams(Some(self.plan.patience))?;
            let client = request.peer().ip();
            let qp = self.lanes[index].qp.clone();
            qp.activate_datagram(UDP_QKEY)?;
            let needs_introduction = self.needs_introduction();
            if needs_introduction {
                qp.post_recv(&RecvWr { wr_id: 0, elements: &[self.buffers.introduction()] })?;
            }
            request.accept(&qp, &[])?;
            if needs_introduction {
                self.lanes[index].destination = Some(self.introduced(client)?);
            }
        }
        Ok(())
    }

    /// Waits for the number of a client's queue pair.
    fn introduced(&self, client: IpAddr) -> Result<AddressHandle, ToolError> {
        let wc = self.one_completion("waiting for the number of the other side's queue pair")?;
        let number = u32::from_be_bytes(wc.imm.0);
        if number >> 24 != 0 {
            return Err(ToolError::Peer(format!("announced {number:#x}, which is not a queue pair number")));
        }
        let path = self.plan.path();
        Ok(self.context.create_address_handle(client, Qpn::new(number), UDP_QKEY, &path)?)
    }

    fn one_completion(&self, progress: &str) -> Result<Wc, ToolError> {
        let mut completions = [Wc::default()];
        let patience = self.plan.patience;
        let stalled = || ToolError::Stalled { progress: progress.to_owned(), patience, is_reliable: false };
        let waited = self.cq.wait(&mut completions, Some(patience));
        waited.map_err(|error| ToolError::of_wait(error, stalled))?;
        check_completion(&self.context, &completions[0])?;
        Ok(completions[0])
    }
}
