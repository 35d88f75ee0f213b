//! Connections made by connection management over queue pair 1.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use roce::device::OpenOptions;
use roce::verbs::*;
use roce_fault::FaultInjector;
use roce_testing::on_idle;

use crate::common::within;
use crate::world::*;

const PORT: u16 = 7174;

/// Returns parameters with a response timeout of 34 ms and a packet lifetime of at most 4 ms.
fn quick() -> ConnectionParameters {
    let timing = CmTiming {
        response_timeout: CmTimeout::new(13),
        packet_lifetime: CmTimeout::new(10),
        max_retries: 15,
    };
    ConnectionParameters::default().timing(timing)
}

fn saying(private_data: &[u8]) -> ConnectionParameters {
    quick().private_data(private_data)
}

fn address(side: &Side) -> IpAddr {
    side.context.address().unwrap()
}

pub(crate) fn at(side: &Side, port: u16) -> SocketAddr {
    SocketAddr::new(address(side), port)
}

/// Connects the queue pairs of two sides. The far side listens.
pub(crate) fn join(near: &Side, far: &Side, listener: &CmListener) -> (Connection, Connection) {
    let mut active =
        near.context.start_connect(at(far, listener.port()), &near.qp, &saying(b"hello")).unwrap();
    let request = listener.accept(Some(PATIENCE)).unwrap();
    assert_eq!(request.peer().ip(), address(near));
    assert_eq!(&request.private_data()[..6], b"hello\0");
    assert_eq!(request.qp_type(), QpType::Rc);
    let mut passive = request.accept(&far.qp, &saying(b"welcome")).unwrap();
    active.established(Some(PATIENCE)).unwrap();
    assert_eq!(&active.private_data()[..8], b"welcome\0");
    passive.established(Some(PATIENCE)).unwrap();
    (active, passive)
}

/// Transfers data in both directions, with the operations that need the negotiated attributes.
pub(crate) fn talk(near: &Side, far: &Side) {
    near.fill(0, 5_000, 1);
    far.fill(20_000, 5_000, 2);
    far.receive(1, 50_000, 5_000);
    near.receive(2, 60_000, 5_000);
    near.carry_out(1, SendOp::Send, &[near.region.element(0..5_000)]);
    far.carry_out(2, SendOp::Send, &[far.region.element(20_000..25_000)]);
    succeed(&far.recv_cq);
    succeed(&near.recv_cq);
    far.check(50_000, 5_000, 1);
    near.check(60_000, 5_000, 2);
    near.carry_out(3, far.read_op(20_000), &[near.region.element(70_000..75_000)]);
    near.check(70_000, 5_000, 2);
    far.carry_out(4, near.write_op(0), &[far.region.element(20_000..25_000)]);
    near.check(0, 5_000, 2);
}

fn sides(wire: Wire) -> Option<(Side, Side)> {
    let (near, far) = wire.open()?;
    Some((Side::new(near, QpType::Rc), Side::new(far, QpType::Rc)))
}

/// A queue pair in INIT, where receives can be posted, gets the rights of the parameters as well.
#[test]
fn a_connection_from_init_has_its_rights() {
    within(60, || {
        let Some((near, far)) = sides(Wire::Memory) else { return };
        for side in [&near, &far] {
            side.qp.initialize().unwrap();
        }
        let listener = far.context.listen(PortSpace::Tcp, PORT).unwrap();
        let _connections = join(&near, &far, &listener);
        talk(&near, &far);
    });
}

#[test]
fn connect_talk_and_disconnect_on_every_wire() {
    within(60, || {
        for wire in Wire::ALL {
            let Some((near, far)) = sides(wire) else { continue };
            let listener = far.context.listen(PortSpace::Tcp, PORT).unwrap();
            let (mut active, mut passive) = join(&near, &far, &listener);
            talk(&near, &far);
            // A receive for which nothing arrives completes as flushed when the connection ends.
            far.receive(77, 0, 100);
            active.disconnect().unwrap();
            for connection in [&mut active, &mut passive] {
                assert_eq!(connection.next_event(Some(PATIENCE)).unwrap(), ConnectionEvent::Disconnected);
            }
            assert_eq!(fail(&far.recv_cq, WcStatus::WrFlushError).wr_id, 77);
            assert_eq!(near.qp.query().unwrap().state, QpState::Err);
            assert_eq!(far.qp.query().unwrap().state, QpState::Err);
            for connection in [&mut active, &mut passive] {
                assert_eq!(connection.next_event(Some(PATIENCE)).unwrap(), ConnectionEvent::TimewaitExit);
            }
            let again = active.disconnect();
            assert!(matches!(again, Err(ConnectionError::Manager(CmError::Unknown(_)))), "{again:?}");
            for side in [&near, &far] {
                assert_eq!(side.counter("cm_connections"), 0);
                assert_eq!(side.counter("cm_malformed"), 0);
            }
        }
    });
}

/// Regression: the end of a connection moved its queue pair to ERR, although another one had it by then.
#[test]
fn an_old_connection_does_not_end_the_next_one_of_its_queue_pair() {
    within(60, || {
        let Some((near, far)) = sides(Wire::UdpV4) else { return };
        let listener = far.context.listen(PortSpace::Tcp, PORT).unwrap();
        let mut old = join(&near, &far, &listener);
        old.0.disconnect().unwrap();
        for connection in [&mut old.0, &mut old.1] {
            assert_eq!(connection.next_event(Some(PATIENCE)).unwrap(), ConnectionEvent::Disconnected);
        }
        for side in [&near, &far] {
            side.qp.modify(&QpAttr::to_state(QpState::Reset)).unwrap();
        }
        let (mut active, mut passive) = join(&near, &far, &listener);
        drop(old);
        talk(&near, &far);
        active.disconnect().unwrap();
        for connection in [&mut active, &mut passive] {
            assert_eq!(connection.next_event(Some(PATIENCE)).unwrap(), ConnectionEvent::Disconnected);
        }
        assert_eq!(near.qp.query().unwrap().state, QpState::Err);
    });
}

/// The attributes of the queue pairs are those that the ends have negotiated.
#[test]
fn attributes_of_both_ends() {
    within(60, || {
        let (near, far) = sides(Wire::UdpV4).unwrap();
        let listener = far.context.listen(PortSpace::Tcp, 0).unwrap();
        let asked = quick()
            .responder_resources(3)
            .initiator_depth(9)
            .retry_count(5)
            .rnr_retry_count(2)
            .path_mtu(PathMtu::Mtu512);
        let mut active = near.context.start_connect(at(&far, listener.port()), &near.qp, &asked).unwrap();
        let request = listener.accept(Some(PATIENCE)).unwrap();
        let given = quick().responder_resources(4).initiator_depth(8).rnr_retry_count(6);
        let mut passive = request.accept(&far.qp, &given).unwrap();
        active.established(Some(PATIENCE)).unwrap();
        passive.established(Some(PATIENCE)).unwrap();
        let (one, other) = (near.qp.query().unwrap(), far.qp.query().unwrap());
        assert_eq!((one.dest_qpn, other.dest_qpn), (far.qp.number(), near.qp.number()));
        assert_eq!((one.rq_psn, other.rq_psn), (other.sq_psn, one.sq_psn));
        assert_eq!((one.path_mtu, other.path_mtu), (PathMtu::Mtu512, PathMtu::Mtu512));
        assert_eq!((one.retry_cnt, other.retry_cnt), (5, 5));
        assert_eq!((one.rnr_retry, other.rnr_retry), (6, 2));
        assert_eq!((one.max_rd_atomic, other.max_dest_rd_atomic), (4, 4));
        assert_eq!((one.max_dest_rd_atomic, other.max_rd_atomic), (3, 3));
        assert_eq!((one.timeout, other.timeout), (15, 15));
        assert_eq!((one.state, other.state), (QpState::Rts, QpState::Rts));
        drop((active, passive));
    });
}

#[test]
fn unreliable_connections() {
    within(60, || {
        let (near, far) = Wire::UdpV4.open().unwrap();
        let (near, far) = (Side::new(near, QpType::Uc), Side::new(far, QpType::Uc));
        let listener = far.context.listen(PortSpace::Tcp, PORT).unwrap();
        let mut active = near.context.start_connect(at(&far, PORT), &near.qp, &quick()).unwrap();
        let request = listener.accept(Some(PATIENCE)).unwrap();
        assert_eq!(request.qp_type(), QpType::Uc);
        let mut passive = request.accept(&far.qp, &quick()).unwrap();
        active.established(Some(PATIENCE)).unwrap();
        passive.established(Some(PATIENCE)).unwrap();
        near.fill(0, 3_000, 5);
        far.receive(1, 0, 3_000);
        near.carry_out(1, SendOp::Send, &[near.region.element(0..3_000)]);
        succeed(&far.recv_cq);
        far.check(0, 3_000, 5);
    });
}

#[test]
fn rejections() {
    within(60, || {
        let (near, far) = sides(Wire::UdpV4).unwrap();
        // Nothing listens on that port. The far end can reject the request only because the listener has
        // started connection management.
        let listener = far.context.listen(PortSpace::Tcp, PORT).unwrap();
        let error = near.context.connect(at(&far, PORT + 1), &near.qp, &quick()).unwrap_err();
        let reason = |error| match error {
            ConnectionError::Rejected { reason, private_data } => (reason, private_data),
            other => panic!("{other}"),
        };
        assert_eq!(reason(error).0, RejReason::INVALID_SERVICE_ID);

        // The application rejects the request, explicitly and by dropping it.
        let mut asking =
            near.context.start_connect(at(&far, PORT), &near.another_qp(QpType::Rc), &quick()).unwrap();
        listener.accept(Some(PATIENCE)).unwrap().reject(b"not today").unwrap();
        let (why, words) = reason(asking.established(Some(PATIENCE)).unwrap_err());
        assert_eq!((why, &words[..10]), (RejReason::CONSUMER, &b"not today\0"[..]));
        let mut asking =
            near.context.start_connect(at(&far, PORT), &near.another_qp(QpType::Rc), &quick()).unwrap();
        drop(listener.accept(Some(PATIENCE)).unwrap());
        assert_eq!(reason(asking.established(Some(PATIENCE)).unwrap_err()).0, RejReason::CONSUMER);

        // A listener that is dropped rejects its pending requests.
        let mut asking =
            near.context.start_connect(at(&far, PORT), &near.another_qp(QpType::Rc), &quick()).unwrap();
        until("the request arrived", || far.counter("cm_connections") > 0);
        drop(listener);
        let (why, _) = reason(asking.established(Some(PATIENCE)).unwrap_err());
        assert_eq!(why, RejReason::INVALID_SERVICE_ID);
    });
}

#[test]
fn queue_pairs_that_cannot_be_connected() {
    within(60, || {
        let (near, far) = sides(Wire::UdpV4).unwrap();
        let listener = far.context.listen(PortSpace::Tcp, PORT).unwrap();
        let taken = far.context.listen(PortSpace::Tcp, PORT);
        assert!(matches!(taken, Err(ConnectionError::Manager(CmError::InUse(_)))), "{taken:?}");
        let datagrams = near.another_qp(QpType::Ud);
        let error = near.context.connect(at(&far, PORT), &datagrams, &quick()).unwrap_err();
        assert!(matches!(error, ConnectionError::QueuePairType(QpType::Ud)), "{error}");
        let too_long = near.context.connect(at(&far, PORT), &near.qp, &saying(&[0; 57])).unwrap_err();
        assert!(too_long.to_string().contains("57 bytes"), "{too_long}");
        // The queue pair of the passive side has the wrong transport, so the peer is rejected.
        let mut asking = near.context.start_connect(at(&far, PORT), &near.qp, &quick()).unwrap();
        let request = listener.accept(Some(PATIENCE)).unwrap();
        let error = request.accept(&far.another_qp(QpType::Uc), &quick()).unwrap_err();
        assert!(matches!(error, ConnectionError::QueuePairType(QpType::Uc)), "{error}");
        assert!(matches!(asking.established(Some(PATIENCE)), Err(ConnectionError::Rejected { .. })));
        // The queue pair is in RTS already.
        let (one, other) = (near.another_qp(QpType::Rc), far.another_qp(QpType::Rc));
        connect_qps(&one, &other, &ConnectOptions::default());
        let error = near.context.connect(at(&far, PORT), &one, &quick()).unwrap_err();
        assert!(matches!(error, ConnectionError::QueuePairState(QpState::Rts)), "{error}");
    });
}

/// Nothing exists at the address of the peer.
#[test]
fn a_peer_that_does_not_exist() {
    within(60, || {
        let (near, _) = sides(Wire::UdpV4).unwrap();
        let mut parameters = quick();
        parameters.timing.max_retries = 2;
        let begin = Instant::now();
        let nobody = "127.255.255.254".parse().unwrap();
        let error = near.context.connect(SocketAddr::new(nobody, PORT), &near.qp, &parameters).unwrap_err();
        assert!(matches!(error, ConnectionError::Unreachable), "{error}");
        let expected = Duration::from_nanos(3 * parameters.timing.interval_ns());
        assert!(begin.elapsed() >= expected, "{:?}", begin.elapsed());
        // The caller may give up earlier than the protocol.
        let mut asking = near
            .context
            .start_connect(SocketAddr::new(nobody, PORT), &near.another_qp(QpType::Rc), &quick())
            .unwrap();
        let error = asking.established(Some(Duration::from_millis(10))).unwrap_err();
        assert!(matches!(error, ConnectionError::TimedOut), "{error}");
    });
}

/// The contexts have room for queue pair 1 and two others, so a leaked queue pair makes the next round fail.
#[test]
fn a_thousand_connections_leave_nothing_behind() {
    within(120, || {
        let tight = || Context::builder().tune(|config| config.max_qp = 3);
        let (near, far) = Wire::UdpV4.open_with(tight(), tight()).unwrap();
        let (near, far) = (Side::new(near, QpType::Rc), Side::new(far, QpType::Rc));
        let listener = far.context.listen(PortSpace::Tcp, PORT).unwrap();
        for round in 0..1_000_u64 {
            let (one, other) = (near.another_qp(QpType::Rc), far.another_qp(QpType::Rc));
            let mut active = near.context.start_connect(at(&far, PORT), &one, &quick()).unwrap();
            let mut passive = listener.accept(Some(PATIENCE)).unwrap().accept(&other, &quick()).unwrap();
            active.established(Some(PATIENCE)).unwrap();
            passive.established(Some(PATIENCE)).unwrap();
            if round % 100 == 0 {
                let receive = far.region.element(0..100);
                other.post_recv(&RecvWr { wr_id: round, elements: &[receive] }).unwrap();
                one.post_send(&SendWr::inline(round, SendOp::Send, &round.to_be_bytes())).unwrap();
                assert_eq!(succeed(&near.send_cq).wr_id, round);
                assert_eq!(succeed(&far.recv_cq).byte_len, 8);
            }
            match round % 3 {
                0 => active.disconnect().unwrap(),
                1 => passive.disconnect().unwrap(),
                // The connection is dropped without a disconnect.
                _ => {}
            }
        }
        for side in [&near, &far] {
            until("all records are gone", || side.counter("cm_connections") == 0);
            assert_eq!(side.counter("cm_established"), 1_000);
            assert_eq!((side.counter("cm_stale"), side.counter("cm_malformed")), (0, 0));
            assert_eq!(side.counter("cm_dropped_queue_full"), 0);
        }
    });
}

/// One packet in five is lost in each direction, including packets of queue pair 1.
#[test]
fn connections_over_a_lossy_wire() {
    within(120, || {
        let lossy = |seed| OpenOptions {
            transmit_faults: Some(FaultInjector::new("drop=20%".parse().unwrap(), seed)),
            ..OpenOptions::default()
        };
        let (near, far) = Wire::UdpV4
            .open_with(Context::builder().options(lossy(1)), Context::builder().options(lossy(2)))
            .unwrap();
        let (near, far) = (Side::new(near, QpType::Rc), Side::new(far, QpType::Rc));
        let listener = far.context.listen(PortSpace::Tcp, PORT).unwrap();
        for round in 0..40 {
            let (one, other) = (near.another_qp(QpType::Rc), far.another_qp(QpType::Rc));
            let mut active = near.context.start_connect(at(&far, PORT), &one, &quick()).unwrap();
            let mut passive = listener.accept(Some(PATIENCE)).unwrap().accept(&other, &quick()).unwrap();
            active.established(Some(PATIENCE)).unwrap_or_else(|error| panic!("round {round}: {error}"));
            // This packet replaces the RTU, which is repeated only twice.
            let nothing = SendOp::Write { remote_addr: 0, rkey: RKey(0) };
            one.post_send(&SendWr::inline(1, nothing, b"").with_flags(SendFlags::empty())).unwrap();
            passive.established(Some(PATIENCE)).unwrap_or_else(|error| panic!("round {round}: {error}"));
            active.disconnect().unwrap();
            for connection in [&mut active, &mut passive] {
                assert_eq!(connection.next_event(Some(PATIENCE)).unwrap(), ConnectionEvent::Disconnected);
            }
        }
        assert!(near.counter("cm_repeated") > 0 && far.counter("cm_repeated") > 0);
        for side in [&near, &far] {
            until("all records are gone", || side.counter("cm_connections") == 0);
        }
    });
}

/// The peer disappears without a message, as if it had been killed.
#[test]
fn a_peer_that_was_killed() {
    within(60, || {
        let (near, far) =
            Wire::UdpV4.open_with(Context::builder(), Context::builder().background(false)).unwrap();
        let (near, far) = (Side::new(near, QpType::Rc), Side::new(far, QpType::Rc));
        let listener = far.context.listen(PortSpace::Tcp, PORT).unwrap();
        let mut parameters = quick();
        parameters.retry_count = 2;
        parameters.timing.max_retries = 3;
        let mut active = near.context.start_connect(at(&far, PORT), &near.qp, &parameters).unwrap();
        let mut passive = listener.accept(Some(PATIENCE)).unwrap().accept(&far.qp, &parameters).unwrap();
        active.established(Some(PATIENCE)).unwrap();
        passive.established(Some(PATIENCE)).unwrap();
        // From here on, nothing drives the far end.
        near.post(5, far.write_op(0), &[near.region.element(0..100)]);
        fail(&near.send_cq, WcStatus::RetryExceededError);
        active.disconnect().unwrap();
        assert_eq!(active.next_event(Some(PATIENCE)).unwrap(), ConnectionEvent::Disconnected);
        assert!(near.counter("cm_timed_out") > 0);
        assert_eq!(active.next_event(Some(PATIENCE)).unwrap(), ConnectionEvent::TimewaitExit);
        assert_eq!(near.counter("cm_connections"), 0);
    });
}

#[test]
fn tokio_tasks_connect_and_listen() {
    within(60, || {
        let (near, far) = sides(Wire::UdpV4).unwrap();
        let listener = far.context.listen(PortSpace::Tcp, PORT).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let connect = near.context.clone();
            let peer = address(&far);
            let parameters = saying(b"async");
            let serve = async {
                let request = listener.accept_async().await.unwrap();
                assert_eq!(&request.private_data()[..5], b"async");
                let mut passive = request.accept(&far.qp, &quick()).unwrap();
                passive.established_async().await.unwrap();
                passive
            };
            let ask = connect.connect_async(SocketAddr::new(peer, PORT), &near.qp, &parameters);
            let both = async {
                let (mut serve, mut ask) = (Box::pin(serve), Box::pin(ask));
                let (mut passive, mut active) = (None, None);
                std::future::poll_fn(|task| {
                    use std::future::Future as _;
                    use std::task::Poll;
                    if passive.is_none()
                        && let Poll::Ready(connection) = serve.as_mut().poll(task)
                    {
                        passive = Some(connection);
                    }
                    if active.is_none()
                        && let Poll::Ready(connection) = ask.as_mut().poll(task)
                    {
                        active = Some(connection.unwrap());
                    }
                    if passive.is_some() && active.is_some() { Poll::Ready(()) } else { Poll::Pending }
                })
                .await;
                (active.unwrap(), passive.unwrap())
            };
            let (mut active, mut passive) = tokio::time::timeout(PATIENCE, both).await.unwrap();
            passive.disconnect().unwrap();
            assert_eq!(active.next_event_async().await, ConnectionEvent::Disconnected);
            assert_eq!(passive.next_event_async().await, ConnectionEvent::Disconnected);
        });
    });
}

#[test]
fn services_for_datagrams() {
    within(60, || {
        let (near, far) = Wire::UdpV4.open().unwrap();
        let (near, far) = (Side::new(near, QpType::Ud), Side::new(far, QpType::Ud));
        near.qp.activate_datagram(QKEY).unwrap();
        far.qp.activate_datagram(QKEY).unwrap();
        let listener = far.context.listen(PortSpace::Udp, PORT).unwrap();
        let parameters = quick().port_space(PortSpace::Udp).private_data(b"where?");
        std::thread::scope(|scope| {
            let asked =
                scope.spawn(|| near.context.resolve(at(&far, PORT), &parameters, Some(PATIENCE)).unwrap());
            let request = listener.accept_datagrams(Some(PATIENCE)).unwrap();
            assert_eq!(&request.private_data()[..7], b"where?\0");
            assert_eq!(request.peer().ip(), address(&near));
            request.accept(&far.qp, b"here").unwrap();
            let service = asked.join().unwrap();
            assert_eq!(&service.private_data[..5], b"here\0");
            assert_eq!(service.destination.remote_qpn, far.qp.number());
            far.receive(1, 0, 100);
            let wr = SendWr::inline(1, SendOp::Send, b"found you").to(&service.destination);
            near.qp.post_send(&wr).unwrap();
            assert_eq!(succeed(&far.recv_cq).byte_len, 40 + 9);
        });
        let parameters = parameters.port_space(PortSpace::Ipoib);
        let error = near.context.resolve(at(&far, PORT), &parameters, Some(PATIENCE)).unwrap_err();
        assert!(matches!(error, ConnectionError::Unresolved { status: SidrStatus::UNSUPPORTED }), "{error}");
        until("all records are gone", || far.counter("cm_connections") == 0);
    });
}

/// A port space of connections does not answer SIDR requests, one of datagrams does not accept connections,
/// and that of InfiniBand does both. A request of the wrong kind is rejected at once.
#[test]
fn listeners_refuse_what_their_port_space_is_not_for() {
    within(60, || {
        let (near, far) = sides(Wire::UdpV4).unwrap();
        let there = address(&far);
        let of = |port_space| quick().port_space(port_space);
        let listeners = PortSpace::ALL.map(|space| far.context.listen(space, PORT).unwrap());
        let error = near
            .context
            .resolve(SocketAddr::new(there, PORT), &of(PortSpace::Tcp), Some(PATIENCE))
            .unwrap_err();
        let unsupported = matches!(error, ConnectionError::Unresolved { status: SidrStatus::UNSUPPORTED });
        assert!(unsupported, "{error}");
        for space in [PortSpace::Udp, PortSpace::Ipoib] {
            let qp = near.another_qp(QpType::Rc);
            let mut asking =
                near.context.start_connect(SocketAddr::new(there, PORT), &qp, &of(space)).unwrap();
            match asking.established(Some(PATIENCE)) {
                Err(ConnectionError::Rejected { reason, .. }) => {
                    assert_eq!(reason, RejReason::INVALID_TRANSPORT_TYPE);
                }
                other => panic!("{space:?}: {other:?}"),
            }
        }
        let both = of(PortSpace::Ib);
        let mut active = near.context.start_connect(SocketAddr::new(there, PORT), &near.qp, &both).unwrap();
        let listener = &listeners[3];
        let _passive = listener.accept(Some(PATIENCE)).unwrap().accept(&far.qp, &both).unwrap();
        active.established(Some(PATIENCE)).unwrap();
        let datagrams = far.another_qp(QpType::Ud);
        std::thread::scope(|scope| {
            let asked = scope
                .spawn(|| near.context.resolve(SocketAddr::new(there, PORT), &both, Some(PATIENCE)).unwrap());
            let request = listener.accept_datagrams(Some(PATIENCE)).unwrap();
            request.accept(&datagrams, b"").unwrap();
            assert_eq!(asked.join().unwrap().destination.remote_qpn, datagrams.number());
        });
    });
}

/// A context can connect to itself.
#[test]
fn both_ends_in_one_context() {
    within(60, || {
        let (context, _) = Wire::UdpV4.open().unwrap();
        let near = Side::new(context.clone(), QpType::Rc);
        let far = Side::new(context, QpType::Rc);
        let listener = far.context.listen(PortSpace::Tcp, PORT).unwrap();
        let (active, mut passive) = join(&near, &far, &listener);
        talk(&near, &far);
        drop(active);
        assert_eq!(passive.next_event(Some(PATIENCE)).unwrap(), ConnectionEvent::Disconnected);
    });
}

/// If the RTU is lost, the first packet on the queue pair establishes the connection without waiting for the
/// next RTU.
#[test]
fn a_packet_stands_for_the_lost_rtu() {
    within(60, || {
        // The rule drops the second datagram of queue pair 1, which follows the REQ.
        let plan = "rule:qp=1,rpsn=1,action=drop".parse().unwrap();
        let options =
            OpenOptions { transmit_faults: Some(FaultInjector::new(plan, 1)), ..OpenOptions::default() };
        let (near, far) =
            Wire::UdpV4.open_with(Context::builder().options(options), Context::builder()).unwrap();
        let (near, far) = (Side::new(near, QpType::Rc), Side::new(far, QpType::Rc));
        let listener = far.context.listen(PortSpace::Tcp, PORT).unwrap();
        // The next RTU would be sent after 8.6 s.
        let timing = CmTiming { response_timeout: CmTimeout::new(21), ..quick().timing };
        let patient = quick().timing(timing);
        let begin = Instant::now();
        let mut active = near.context.start_connect(at(&far, PORT), &near.qp, &patient).unwrap();
        let mut passive = listener.accept(Some(PATIENCE)).unwrap().accept(&far.qp, &quick()).unwrap();
        active.established(Some(PATIENCE)).unwrap();
        far.receive(1, 0, 100);
        near.carry_out(1, SendOp::Send, &[near.region.element(0..100)]);
        passive.established(Some(PATIENCE)).unwrap();
        assert!(on_idle(begin.elapsed()) < Duration::from_secs(5), "{:?}", begin.elapsed());
        assert_eq!(near.counter("cm_repeated") + far.counter("cm_repeated"), 0);
    });
}
