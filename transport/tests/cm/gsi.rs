//! The engine's support for connection management: queue pair 1, and numbers that are not reused at once.

use std::collections::BTreeSet;

use roce_packet::Qpn;
use roce_transport::{CqId, CreateQpError, Engine, EngineConfig, PdId, QpCapabilities, QpInit, QpType};

fn engine() -> (Engine, PdId, CqId) {
    let mut engine = Engine::new(EngineConfig::from_number(7));
    let pd = engine.allocate_pd().unwrap();
    let cq = engine.create_cq(16).unwrap();
    (engine, pd, cq)
}

fn init(pd: PdId, cq: CqId, qp_type: QpType) -> QpInit {
    let capabilities =
        QpCapabilities { max_send_wr: 1, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline: 0 };
    QpInit { qp_type, pd, send_cq: cq, recv_cq: cq, srq: None, capabilities, signal_all: false }
}

#[test]
fn queue_pair_1_exists_once_and_is_ud() {
    let (mut engine, pd, cq) = engine();
    assert_eq!(engine.create_gsi_qp(&init(pd, cq, QpType::Rc)), Err(CreateQpError::Gsi));
    assert_eq!(engine.create_gsi_qp(&init(pd, cq, QpType::Ud)), Ok(Qpn::GSI));
    assert_eq!(engine.create_gsi_qp(&init(pd, cq, QpType::Ud)), Err(CreateQpError::Gsi));
    assert_eq!(engine.qp_type(Qpn::GSI), Some(QpType::Ud));
    engine.destroy_qp(Qpn::GSI).unwrap();
    assert_eq!(engine.create_gsi_qp(&init(pd, cq, QpType::Ud)), Ok(Qpn::GSI));
}

/// A peer that still holds a connection in time-wait would take a reused number for a stale connection.
#[test]
fn numbers_are_not_used_again_at_once() {
    let (mut engine, pd, cq) = engine();
    let mut numbers = Vec::new();
    for _ in 0..20_000 {
        let number = engine.create_qp(&init(pd, cq, QpType::Rc)).unwrap();
        engine.destroy_qp(number).unwrap();
        numbers.push(number);
    }
    for window in numbers.windows(2_049) {
        let (last, before) = window.split_last().unwrap();
        assert!(!before.contains(last), "{last} was used again");
    }
    assert!(numbers.iter().collect::<BTreeSet<_>>().len() > 10_000);
}
