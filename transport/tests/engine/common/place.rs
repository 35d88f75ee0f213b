//! Queue pairs in a chosen state.

use roce_packet::Qpn;
use roce_sim::pair::{Pair, Settings, Side};
use roce_transport::{
    EngineConfig, LKey, QpAttr, QpState, QpType, SendOp, SendWr, Sge, UdDestination, WcStatus,
};

use super::{Bench, pattern};

/// The bytes of each host's memory.
pub const BYTES: usize = 16_384;

/// Returns settings with small queues, because some tests create thousands of queue pairs.
pub fn settings() -> Settings {
    let mut settings = super::settings();
    let capabilities = &mut settings.capabilities;
    (capabilities.max_send_wr, capabilities.max_recv_wr, capabilities.max_inline) = (8, 8, 16);
    settings
}

/// Returns hosts with little memory, so that tests can compare all of it after every packet.
pub fn small() -> Bench {
    let mut pair = Pair::with_config(EngineConfig::from_number(5), BYTES);
    pair.record = true;
    pair.host_mut(Side::B).write_memory(0, &pattern(BYTES));
    Bench { pair, a: Qpn::new(0), b: Qpn::new(0) }
}

/// Creates a queue pair at B in this state; returns `None` for the one state that RC does not have.
#[track_caller]
pub fn place(bench: &mut Bench, qp_type: QpType, state: QpState, settings: &Settings) -> Option<Qpn> {
    let a = bench.create_qp(Side::A, qp_type, settings);
    let b = bench.create_qp(Side::B, qp_type, settings);
    (bench.a, bench.b) = (a, b);
    let now = bench.now;
    match state {
        QpState::Reset => {}
        QpState::Init | QpState::Rtr | QpState::Rts => bench.bring_up(Side::B, b, a, settings, state),
        QpState::Sqd | QpState::Err => {
            bench.bring_up(Side::B, b, a, settings, QpState::Rts);
            bench.host_mut(Side::B).engine.modify_qp(now, b, &QpAttr::to_state(state)).unwrap();
        }
        QpState::Sqe if qp_type.is_reliable() => return None,
        QpState::Sqe => {
            bench.bring_up(Side::B, b, a, settings, QpState::Rts);
            // A send with an unknown key fails locally, which stops only the send queue.
            let element = Sge { addr: 0, length: 8, lkey: LKey(0xdead_0000) };
            let elements = [element];
            let mut wr = SendWr::new(1, SendOp::Send, &elements);
            if qp_type == QpType::Ud {
                let path = bench.path(Side::B);
                wr = wr.to(UdDestination { path, remote_qpn: a, remote_qkey: 0 });
            }
            bench.post_send(Side::B, b, &wr).unwrap();
            bench.collect(Side::B);
            assert_eq!(bench.ended(Side::B), [(1, WcStatus::LocalProtectionError)]);
        }
    }
    assert_eq!(bench.state(Side::B), state);
    Some(b)
}
