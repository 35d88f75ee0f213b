//! A refused verb changes nothing: compares snapshots before and after every refusal.

use std::net::SocketAddr;

use roce::verbs::*;

use crate::common::within;
use crate::world::*;

const PORT: u16 = 7174;

/// Returns the observable state of two ends as text.
fn snapshot(sides: [&Side; 2], qps: &[&QueuePair]) -> String {
    let mut text = String::new();
    for side in sides {
        text += &format!("{:?} {:?} {:?}\n", side.qp.query(), side.qp.congestion(), side.context.gid_table());
        for name in ["cm_connections", "cm_half_open", "async_events_lost"] {
            side.context.visit_counters(&mut |known, value| {
                // These counters do not exist without connection management, which is equivalent to zero.
                if known == name && value > 0 {
                    text += &format!("{name} {value}\n");
                }
            });
        }
        text += &format!("{:?}\n", side.context.async_event());
        text += &format!("{:?}\n", side.send_cq.poll(&mut [Wc::default()]));
    }
    for qp in qps {
        text += &format!("{:?}\n", qp.query());
    }
    text
}

/// Calls a verb that must be refused.
#[track_caller]
fn refused<T, E: std::fmt::Display>(
    what: &str,
    (sides, qps): ([&Side; 2], &[&QueuePair]),
    verb: impl FnOnce() -> Result<T, E>,
) {
    let before = snapshot(sides, qps);
    assert!(verb().is_err(), "{what} is taken");
    assert_eq!(snapshot(sides, qps), before, "{what}");
}

fn sides() -> (Side, Side) {
    let (near, far) = Wire::Memory.open().unwrap();
    (Side::new(near, QpType::Rc), Side::new(far, QpType::Rc))
}

#[test]
fn verbs_of_queue_pairs() {
    let (near, far) = sides();
    let ud = near.another_qp(QpType::Ud);
    let initialized = near.another_qp(QpType::Rc);
    initialized.initialize().unwrap();
    let connected = near.another_qp(QpType::Rc);
    let remote = far.qp.endpoint().unwrap();
    connected.connect(&remote, &ConnectOptions::default()).unwrap();
    let qps = [&ud, &initialized, &connected];
    let all = ([&near, &far], &qps[..]);
    let default = ConnectOptions::default();
    let other_family = Endpoint { address: "2001:db8::1".parse().unwrap(), ..remote };
    for qp in [&near.qp, &initialized, &connected] {
        refused("a peer of another family", all, || qp.connect(&other_family, &default));
        refused("timeout", all, || qp.connect(&remote, &default.timeout(32)));
        refused("retry_cnt", all, || qp.connect(&remote, &default.retry_cnt(8)));
        refused("rnr_retry", all, || qp.connect(&remote, &default.rnr_retry(8)));
        refused("min_rnr_timer", all, || qp.connect(&remote, &default.min_rnr_timer(32)));
        refused("max_rd_atomic", all, || qp.connect(&remote, &default.max_rd_atomic(200)));
        refused("max_dest_rd_atomic", all, || qp.connect(&remote, &default.max_dest_rd_atomic(200)));
        refused("GID", all, || qp.connect(&remote, &default.path(PathOptions::default().sgid_index(99))));
        refused("a datagram verb on RC", all, || qp.activate_datagram(1));
        refused("multicast on RC", all, || qp.attach_multicast("239.1.2.3".parse().unwrap()));
    }
    refused("connecting UD", all, || ud.connect(&remote, &default));
    refused("connecting twice", all, || connected.connect(&remote, &default));
    refused("activating twice", all, || connected.activate_datagram(1));
    refused("initializing in RTS", all, || connected.initialize());
    let to = QpAttr::to_state;
    for (what, attr) in [
        ("no such transition", to(QpState::Sqe)),
        ("missing attributes", to(QpState::Rtr)),
        ("wrong state believed", QpAttr { cur_state: Some(QpState::Rts), ..to(QpState::Init) }),
        (
            "port",
            QpAttr { port: Some(2), pkey_index: Some(0), access: Some(Access::empty()), ..to(QpState::Init) },
        ),
    ] {
        refused(what, all, || near.qp.modify(&attr));
    }
    let element = near.region.element(0..8);
    refused("a send in RESET", all, || near.qp.post_send(&SendWr::inline(1, SendOp::Send, b"x")));
    refused("a receive in RESET", all, || near.qp.post_recv(&RecvWr { wr_id: 1, elements: &[element] }));
    refused("a send in INIT", all, || initialized.post_send(&SendWr::inline(1, SendOp::Send, b"x")));
    refused("too many elements", all, || {
        connected.post_send(&SendWr::new(1, far.write_op(0), &[element; 5]))
    });
    refused("too much inline", all, || connected.post_send(&SendWr::inline(1, SendOp::Send, &[0; 129])));
    refused("a receive of many elements", all, || {
        initialized.post_recv(&RecvWr { wr_id: 1, elements: &[element; 5] })
    });
}

#[test]
fn verbs_with_objects_of_others() {
    let (near, far) = sides();
    let all = ([&near, &far], &[][..]);
    let foreign_srq = far.pd.create_srq(4, 1).unwrap();
    let channel = far.context.create_channel().unwrap();
    refused("a foreign channel", all, || near.context.create_cq(4, Some(&channel)));
    refused("a foreign completion queue", all, || {
        near.pd.create_qp(&QueuePairOptions::new(QpType::Rc, &far.send_cq))
    });
    refused("a foreign receive queue", all, || {
        near.pd.create_qp(&QueuePairOptions::new(QpType::Rc, &near.send_cq).srq(&foreign_srq))
    });
    let other_pd = near.context.alloc_pd().unwrap();
    let (window, other) =
        (near.pd.alloc_window(WindowType::Type1).unwrap(), near.pd.alloc_window(WindowType::Type2).unwrap());
    let binding = |region: &MemoryRegion, len| WindowBinding {
        region: region.lkey(),
        addr: region.addr(),
        len,
        access: Access::REMOTE_READ,
    };
    let keys = (window.rkey(), other.rkey());
    let unbindable = near.pd.allocate(64, Access::LOCAL_WRITE).unwrap();
    let elsewhere = other_pd.allocate(64, Access::LOCAL_WRITE | Access::MW_BIND).unwrap();
    refused("a region without MW_BIND", all, || window.bind(&binding(&unbindable, 64)));
    refused("a region of another domain", all, || window.bind(&binding(&elsewhere, 64)));
    refused("a range outside", all, || window.bind(&binding(&near.region, MEMORY + 1)));
    refused("a type 2 window", all, || other.bind(&binding(&near.region, 64)));
    refused("the key of another window", all, || other.note_bound(window.rkey()));
    assert_eq!((window.rkey(), other.rkey()), keys);
    // Neither window has lost its number.
    window.bind(&binding(&near.region, 64)).unwrap();
    refused("a queue that holds more", all, || near.send_cq.resize(0));
    refused("memory without right", all, || near.pd.allocate(8, Access::REMOTE_WRITE));
    refused("no memory", all, || near.pd.allocate(0, Access::LOCAL_WRITE));
    refused("an address handle", all, || {
        let options = PathOptions::default();
        near.context.create_address_handle("2001:db8::1".parse().unwrap(), Qpn::new(1), 1, &options)
    });
}

#[test]
fn verbs_of_connection_management() {
    within(60, || {
        let (near, far) = sides();
        let (ud, connected) = (near.another_qp(QpType::Ud), near.another_qp(QpType::Rc));
        connected.connect(&far.qp.endpoint().unwrap(), &ConnectOptions::default()).unwrap();
        let listener = far.context.listen(PortSpace::Tcp, PORT).unwrap();
        let qps = [&ud, &connected];
        let all = ([&near, &far], &qps[..]);
        let to = SocketAddr::new(far.context.address().unwrap(), PORT);
        let parameters = ConnectionParameters::default;
        let connect = |qp: &QueuePair, parameters| near.context.start_connect(to, qp, &parameters);
        refused("57 bytes", all, || connect(&near.qp, parameters().private_data(vec![1; 57])));
        refused("RNR timer", all, || connect(&near.qp, parameters().min_rnr_timer(32)));
        refused("GID", all, || connect(&near.qp, parameters().path(PathOptions::default().sgid_index(9))));
        refused("UD", all, || connect(&ud, parameters()));
        refused("RTS", all, || connect(&connected, parameters()));
        refused("a foreign queue pair", all, || connect(&far.qp, parameters()));
        refused("another family", all, || {
            near.context.start_connect("[2001:db8::1]:7174".parse().unwrap(), &near.qp, &parameters())
        });
        refused("a second listener", all, || far.context.listen(PortSpace::Tcp, PORT));
        refused("181 bytes", all, || {
            near.context.resolve(to, &parameters().private_data(vec![1; 181]), Some(PATIENCE))
        });
        drop(listener);
    });
}

/// Refused calls of a listener leave its queue pair unchanged, and the peer receives the rejection.
#[test]
fn refused_answers_of_connection_management() {
    within(60, || {
        let (near, far) = sides();
        let listener = far.context.listen(PortSpace::Tcp, PORT).unwrap();
        let to = SocketAddr::new(far.context.address().unwrap(), PORT);
        let parameters = ConnectionParameters::default;
        let (ud, ready) = (far.another_qp(QpType::Ud), far.another_qp(QpType::Rc));
        ready.connect(&near.qp.endpoint().unwrap(), &ConnectOptions::default()).unwrap();
        let with_receives = far.another_qp(QpType::Rc);
        with_receives.initialize().unwrap();
        with_receives.post_recv(&RecvWr { wr_id: 1, elements: &[far.region.element(0..8)] }).unwrap();
        type Answer<'a> = Box<dyn Fn(ConnectRequest) -> Result<(), ConnectionError> + 'a>;
        let accept = |qp: QueuePair, parameters: ConnectionParameters| -> Answer<'_> {
            Box::new(move |request| request.accept(&qp, &parameters).map(drop))
        };
        let cases: Vec<(&str, Answer<'_>)> = vec![
            ("197 bytes", accept(far.qp.clone(), parameters().private_data(vec![1; 197]))),
            ("197 bytes in INIT", accept(with_receives.clone(), parameters().private_data(vec![1; 197]))),
            ("RNR timer", accept(far.qp.clone(), parameters().min_rnr_timer(32))),
            ("too many READs", accept(with_receives.clone(), parameters().initiator_depth(200))),
            ("too many READs of the peer", accept(far.qp.clone(), parameters().responder_resources(200))),
            ("UD", accept(ud.clone(), parameters())),
            ("RTS", accept(ready.clone(), parameters())),
            ("a foreign queue pair", accept(near.qp.clone(), parameters())),
            ("a REJ of 149 bytes", Box::new(|request| request.reject(&[1; 149]))),
        ];
        for (what, answer) in cases {
            let asking = near.another_qp(QpType::Rc);
            let asked = parameters().responder_resources(255).initiator_depth(255);
            let mut active = near.context.start_connect(to, &asking, &asked).unwrap();
            let request = listener.accept(Some(PATIENCE)).unwrap();
            let watched = [&ud, &ready, &with_receives];
            let states =
                || [&near.qp, &far.qp].into_iter().chain(watched).map(QueuePair::query).collect::<Vec<_>>();
            let before = states();
            assert!(answer(request).is_err(), "{what} is taken");
            assert_eq!(states(), before, "{what}");
            let event = active.next_event(Some(PATIENCE)).unwrap();
            assert!(matches!(event, ConnectionEvent::Rejected { .. }), "{what}: {event:?}");
        }
        // A refused call does not end a connection that is not yet established.
        let asking = near.another_qp(QpType::Rc);
        let mut active = near.context.start_connect(to, &asking, &parameters()).unwrap();
        let before = asking.query();
        assert!(active.disconnect().is_err());
        assert_eq!(asking.query(), before);
        let mut passive =
            listener.accept(Some(PATIENCE)).unwrap().accept(&with_receives, &parameters()).unwrap();
        active.established(Some(PATIENCE)).unwrap();
        passive.established(Some(PATIENCE)).unwrap();
        // The receive that was posted before still exists.
        asking.post_send(&SendWr::inline(1, SendOp::Send, b"hello")).unwrap();
        assert_eq!(succeed(&far.recv_cq).wr_id, 1);
    });
}
