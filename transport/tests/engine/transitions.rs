//! Every transition of every type of queue pair, with every attribute (section 6.4 of the protocol
//! description).

use crate::common::place::{place, settings, small};
use roce_packet::{Psn, Qpn, RnrTimer};
use roce_sim::pair::Side;
use roce_transport::{Access, AttrMask, ModifyQpError, QpAttr, QpState, QpType, transition};

const TYPES: [QpType; 5] = [QpType::Rc, QpType::Uc, QpType::Ud, QpType::XrcSend, QpType::XrcRecv];

/// Required attributes as in section 6.4 of the protocol description. Optional ones (after the bar) as in the
/// manual page of `ibv_modify_qp` and the table of the kernel. STATE is required except in the three
/// transitions that keep the state. CUR_STATE has no effect and is accepted in each.
const TRANSITIONS: &[&str] = &[
    "RC RESET INIT PKEY_INDEX PORT ACCESS_FLAGS |",
    "UC RESET INIT PKEY_INDEX PORT ACCESS_FLAGS |",
    "UD RESET INIT PKEY_INDEX PORT QKEY |",
    "RC INIT INIT | PKEY_INDEX PORT ACCESS_FLAGS",
    "UC INIT INIT | PKEY_INDEX PORT ACCESS_FLAGS",
    "UD INIT INIT | PKEY_INDEX PORT QKEY",
    "RC INIT RTR AV PATH_MTU DEST_QPN RQ_PSN MAX_DEST_RD_ATOMIC MIN_RNR_TIMER | ACCESS_FLAGS PKEY_INDEX",
    "UC INIT RTR AV PATH_MTU DEST_QPN RQ_PSN | ACCESS_FLAGS PKEY_INDEX",
    "UD INIT RTR | PKEY_INDEX QKEY",
    "RC RTR RTS SQ_PSN MAX_QP_RD_ATOMIC RETRY_CNT RNR_RETRY TIMEOUT | ACCESS_FLAGS MIN_RNR_TIMER",
    "UC RTR RTS SQ_PSN | ACCESS_FLAGS",
    "UD RTR RTS SQ_PSN | QKEY",
    "RC RTS RTS | ACCESS_FLAGS MIN_RNR_TIMER",
    "UC RTS RTS | ACCESS_FLAGS",
    "UD RTS RTS | QKEY",
    "RC RTS SQD | EN_SQD_ASYNC_NOTIFY",
    "UC RTS SQD | EN_SQD_ASYNC_NOTIFY",
    "UD RTS SQD | EN_SQD_ASYNC_NOTIFY",
    "RC SQD RTS | ACCESS_FLAGS MIN_RNR_TIMER",
    "UC SQD RTS | ACCESS_FLAGS",
    "UD SQD RTS | QKEY",
    "RC SQD SQD | PORT AV TIMEOUT RETRY_CNT RNR_RETRY MAX_QP_RD_ATOMIC MAX_DEST_RD_ATOMIC ACCESS_FLAGS \
     PKEY_INDEX MIN_RNR_TIMER",
    "UC SQD SQD | AV ACCESS_FLAGS PKEY_INDEX",
    "UD SQD SQD | PKEY_INDEX QKEY",
    "XRCSEND RESET INIT PKEY_INDEX PORT ACCESS_FLAGS |",
    "XRCRECV RESET INIT PKEY_INDEX PORT ACCESS_FLAGS |",
    "XRCSEND INIT INIT | PKEY_INDEX PORT ACCESS_FLAGS",
    "XRCRECV INIT INIT | PKEY_INDEX PORT ACCESS_FLAGS",
    "XRCSEND INIT RTR AV PATH_MTU DEST_QPN RQ_PSN | ACCESS_FLAGS PKEY_INDEX MAX_DEST_RD_ATOMIC MIN_RNR_TIMER",
    "XRCRECV INIT RTR AV PATH_MTU DEST_QPN RQ_PSN MAX_DEST_RD_ATOMIC MIN_RNR_TIMER | ACCESS_FLAGS PKEY_INDEX",
    "XRCSEND RTR RTS SQ_PSN MAX_QP_RD_ATOMIC RETRY_CNT RNR_RETRY TIMEOUT | ACCESS_FLAGS",
    "XRCRECV RTR RTS SQ_PSN TIMEOUT | ACCESS_FLAGS MIN_RNR_TIMER MAX_QP_RD_ATOMIC RETRY_CNT RNR_RETRY",
    "XRCSEND RTS RTS | ACCESS_FLAGS",
    "XRCRECV RTS RTS | ACCESS_FLAGS MIN_RNR_TIMER",
    "XRCSEND RTS SQD | EN_SQD_ASYNC_NOTIFY",
    "XRCRECV RTS SQD | EN_SQD_ASYNC_NOTIFY",
    "XRCSEND SQD RTS | ACCESS_FLAGS",
    "XRCRECV SQD RTS | ACCESS_FLAGS MIN_RNR_TIMER",
    "XRCSEND SQD SQD | PORT AV TIMEOUT RETRY_CNT RNR_RETRY MAX_QP_RD_ATOMIC ACCESS_FLAGS PKEY_INDEX",
    "XRCRECV SQD SQD | PORT AV TIMEOUT MAX_DEST_RD_ATOMIC ACCESS_FLAGS PKEY_INDEX MIN_RNR_TIMER",
    "UC SQE RTS | ACCESS_FLAGS",
    "UD SQE RTS | QKEY",
];

/// Returns the required and optional attributes, without STATE and CUR_STATE.
fn rule(qp_type: QpType, from: QpState, to: QpState) -> Option<(AttrMask, AttrMask)> {
    if matches!(to, QpState::Reset | QpState::Err) {
        return Some((AttrMask::empty(), AttrMask::empty()));
    }
    let start = format!("{} {} {} ", format!("{qp_type:?}").to_uppercase(), from.name(), to.name());
    let row = TRANSITIONS.iter().find_map(|row| row.strip_prefix(&start))?;
    let mask = |names: &str| {
        names.split_whitespace().fold(AttrMask::empty(), |sum, name| sum | AttrMask::from_name(name).unwrap())
    };
    let (required, optional) = row.split_once('|').unwrap();
    Some((mask(required), mask(optional)))
}

/// Returns a valid value for each attribute in `mask`.
fn attributes(mask: AttrMask, from: QpState, to: QpState, path: roce_packet::Path) -> QpAttr {
    let given = |bit| mask.contains(bit);
    QpAttr {
        state: given(AttrMask::STATE).then_some(to),
        cur_state: given(AttrMask::CUR_STATE).then_some(from),
        en_sqd_async_notify: given(AttrMask::EN_SQD_ASYNC_NOTIFY).then_some(true),
        access: given(AttrMask::ACCESS_FLAGS).then_some(Access::REMOTE),
        pkey_index: given(AttrMask::PKEY_INDEX).then_some(0),
        port: given(AttrMask::PORT).then_some(1),
        qkey: given(AttrMask::QKEY).then_some(5),
        path: given(AttrMask::AV).then_some(path),
        path_mtu: given(AttrMask::PATH_MTU).then_some(roce_packet::PathMtu::Mtu512),
        timeout: given(AttrMask::TIMEOUT).then_some(31),
        retry_cnt: given(AttrMask::RETRY_CNT).then_some(7),
        rnr_retry: given(AttrMask::RNR_RETRY).then_some(7),
        rq_psn: given(AttrMask::RQ_PSN).then_some(Psn::new(1)),
        max_rd_atomic: given(AttrMask::MAX_QP_RD_ATOMIC).then_some(128),
        min_rnr_timer: given(AttrMask::MIN_RNR_TIMER).then(|| RnrTimer::new(3).unwrap()),
        sq_psn: given(AttrMask::SQ_PSN).then_some(Psn::new(2)),
        max_dest_rd_atomic: given(AttrMask::MAX_DEST_RD_ATOMIC).then_some(128),
        dest_qpn: given(AttrMask::DEST_QPN).then_some(Qpn::new(77)),
    }
}

#[test]
fn every_transition_with_every_attribute() {
    for qp_type in TYPES {
        for from in QpState::ALL {
            for to in QpState::ALL {
                one_transition(qp_type, from, to);
            }
        }
    }
}

fn one_transition(qp_type: QpType, from: QpState, to: QpState) {
    let what = format!("{qp_type:?} {} to {}", from.name(), to.name());
    if qp_type.is_reliable() && from == QpState::Sqe {
        // This state cannot be reached, so only the table itself can be tested.
        assert_eq!(transition(qp_type, from, to).is_some(), rule(qp_type, from, to).is_some(), "{what}");
        return;
    }
    let mut bench = small();
    let mut modify = |mask: AttrMask| {
        place(&mut bench, qp_type, from, &settings()).unwrap();
        let (now, qpn, path) = (bench.now, bench.b, bench.path(Side::B));
        let attr = attributes(mask, from, to, path);
        let before = bench.host(Side::B).engine.query_qp(qpn).unwrap();
        let result = bench.host_mut(Side::B).engine.modify_qp(now, qpn, &attr);
        let after = bench.host(Side::B).engine.query_qp(qpn).unwrap();
        match result {
            Ok(()) => assert_eq!(after.state, to, "{what}"),
            Err(_) => assert_eq!(after, before, "{what}: a refused call changes nothing"),
        }
        result
    };
    let Some((required, optional)) = rule(qp_type, from, to) else {
        let refused = Err(ModifyQpError::Transition { qp_type, from, to });
        assert_eq!(modify(AttrMask::STATE), refused, "{what}");
        assert_eq!(modify(AttrMask::all()), refused, "{what}");
        return;
    };
    let required = required | AttrMask::STATE;
    assert_eq!(modify(required), Ok(()), "{what}");
    assert_eq!(modify(required | optional | AttrMask::CUR_STATE), Ok(()), "{what}: all that is possible");
    let stays = from == to && !matches!(to, QpState::Reset | QpState::Err);
    for bit in AttrMask::all().iter() {
        if bit == AttrMask::STATE {
            // Without STATE, the call refers to the current state; then STATE is optional.
            if stays {
                assert_eq!(modify(required - bit), Ok(()), "{what} without STATE");
            }
        } else if required.contains(bit) {
            let missing = Err(ModifyQpError::Missing { from, to, missing: bit });
            assert_eq!(modify(required - bit), missing, "{what} without {bit:?}");
        } else if optional.contains(bit) || bit == AttrMask::CUR_STATE {
            assert_eq!(modify(required | bit), Ok(()), "{what} with {bit:?}");
        } else {
            let refused = Err(ModifyQpError::NotAllowed { from, to, extra: bit });
            assert_eq!(modify(required | bit), refused, "{what} with {bit:?}");
        }
    }
}

#[test]
fn wrong_present_state_and_values_out_of_range() {
    let mut bench = small();
    let mut refused = |qp_type, from, attr: QpAttr, expected: ModifyQpError| {
        place(&mut bench, qp_type, from, &settings()).unwrap();
        let (now, qpn) = (bench.now, bench.b);
        let before = bench.host(Side::B).engine.query_qp(qpn).unwrap();
        let result = bench.host_mut(Side::B).engine.modify_qp(now, qpn, &attr);
        assert_eq!(result, Err(expected));
        assert_eq!(bench.host(Side::B).engine.query_qp(qpn).unwrap(), before);
    };
    for actual in [QpState::Reset, QpState::Init, QpState::Rtr, QpState::Rts, QpState::Sqd, QpState::Err] {
        for believed in QpState::ALL.into_iter().filter(|believed| *believed != actual) {
            let attr = QpAttr { cur_state: Some(believed), ..QpAttr::to_state(QpState::Err) };
            refused(QpType::Rc, actual, attr, ModifyQpError::CurrentState { actual, believed });
        }
    }
    let range = |name, have, limit| ModifyQpError::OutOfRange { name, have, limit };
    let init = QpAttr {
        pkey_index: Some(0),
        port: Some(1),
        access: Some(Access::empty()),
        ..QpAttr::to_state(QpState::Init)
    };
    let rows = [
        (QpState::Reset, QpAttr { pkey_index: Some(1), ..init }, range("pkey_index", 1, 0)),
        (QpState::Reset, QpAttr { port: Some(2), ..init }, range("port", 2, 1)),
        (QpState::Reset, QpAttr { port: Some(0), ..init }, range("port", 0, 1)),
    ];
    for (from, attr, expected) in rows {
        refused(QpType::Rc, from, attr, expected);
    }
    let sqd = QpAttr::to_state(QpState::Sqd);
    let rows = [
        (QpAttr { timeout: Some(32), ..sqd }, range("timeout", 32, 31)),
        (QpAttr { retry_cnt: Some(8), ..sqd }, range("retry_cnt", 8, 7)),
        (QpAttr { rnr_retry: Some(8), ..sqd }, range("rnr_retry", 8, 7)),
        (QpAttr { max_rd_atomic: Some(129), ..sqd }, range("max_rd_atomic", 129, 128)),
        (QpAttr { max_dest_rd_atomic: Some(129), ..sqd }, range("max_dest_rd_atomic", 129, 128)),
    ];
    for (attr, expected) in rows {
        refused(QpType::Rc, QpState::Sqd, attr, expected);
    }
}
