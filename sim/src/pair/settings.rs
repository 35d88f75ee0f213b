//! Settings of the queue pairs of a pair.

use roce_packet::{Path, PathMtu, Psn, Qpn, RnrTimer};
use roce_transport::{Access, QpAttr, QpCapabilities, QpState, QpType};

use super::Side;

/// Settings of the queue pairs of a pair. `Settings::default()` suits most tests.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Path MTU.
    pub mtu: PathMtu,
    /// First PSN of A and of B.
    pub psns: [u32; 2],
    /// Local ACK timeout exponent.
    pub timeout: u8,
    /// Retries after timeouts.
    pub retry_cnt: u8,
    /// Retries after RNR NAKs.
    pub rnr_retry: u8,
    /// Code of the minimum RNR timer.
    pub min_rnr_timer: u8,
    /// Outstanding READs and atomics in each direction.
    pub rd_atomic: u8,
    /// The access rights of peers.
    pub access: Access,
    /// Queue sizes.
    pub capabilities: QpCapabilities,
    /// The Q_Key of UD queue pairs.
    pub qkey: u32,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            mtu: PathMtu::Mtu1024,
            psns: [0x00_1000, 0x00_2000],
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            min_rnr_timer: 12,
            rd_atomic: 16,
            access: Access::REMOTE,
            capabilities: QpCapabilities {
                max_send_wr: 256,
                max_recv_wr: 256,
                max_send_sge: 8,
                max_recv_sge: 8,
                max_inline: 256,
            },
            qkey: 0x1111_1111,
        }
    }
}
/// Returns the attributes of the three calls that move a queue pair from RESET to INIT, RTR and RTS.
#[must_use]
pub fn bring_up_attributes(
    qp_type: QpType,
    side: Side,
    path: Path,
    peer: Qpn,
    settings: &Settings,
) -> [(QpState, QpAttr); 3] {
    let [own_psn, peer_psn] = match side {
        Side::A => settings.psns,
        Side::B => [settings.psns[1], settings.psns[0]],
    };
    let mut init = QpAttr { pkey_index: Some(0), port: Some(1), ..QpAttr::to_state(QpState::Init) };
    let mut rtr = QpAttr::to_state(QpState::Rtr);
    let mut rts = QpAttr { sq_psn: Some(Psn::new(own_psn)), ..QpAttr::to_state(QpState::Rts) };
    if qp_type == QpType::Ud {
        init.qkey = Some(settings.qkey);
        return [(QpState::Init, init), (QpState::Rtr, rtr), (QpState::Rts, rts)];
    }
    init.access = Some(settings.access);
    rtr.path = Some(path);
    rtr.path_mtu = Some(settings.mtu);
    rtr.dest_qpn = Some(peer);
    rtr.rq_psn = Some(Psn::new(peer_psn));
    // Each end of an XRC connection supports one direction only.
    if matches!(qp_type, QpType::Rc | QpType::XrcRecv) {
        rtr.max_dest_rd_atomic = Some(settings.rd_atomic);
        rtr.min_rnr_timer = RnrTimer::new(settings.min_rnr_timer);
    }
    if qp_type.is_reliable() {
        rts.timeout = Some(settings.timeout);
    }
    if matches!(qp_type, QpType::Rc | QpType::XrcSend) {
        rts.retry_cnt = Some(settings.retry_cnt);
        rts.rnr_retry = Some(settings.rnr_retry);
        rts.max_rd_atomic = Some(settings.rd_atomic);
    }
    [(QpState::Init, init), (QpState::Rtr, rtr), (QpState::Rts, rts)]
}
