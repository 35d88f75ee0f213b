//! Packets to an address that has never answered: connection management with a REQ that another host may have
//! sent.

use std::time::Duration;

use roce::verbs::*;
use roce_packet::mad::{CmMessage, CmRtu};
use roce_transport::cm::CmTiming;

use crate::common::within;
use crate::devices::Recorder;
use crate::peers::{BarePeer, HEADERS, dest_qp, management_of};
use crate::world::*;

const PORT: u16 = 7174;

/// Returns a timing with 15 retries, one every 42 ms.
fn quick() -> CmTiming {
    CmTiming { response_timeout: CmTimeout::new(13), packet_lifetime: CmTimeout::new(10), max_retries: 15 }
}

/// ```text
///   another host    server
///        ~~ REQ ~~▶          (its sender is somebody else)
///        ◀── REP             three times at most, and nothing else
/// ```
#[test]
fn an_address_that_never_answers_gets_at_most_three_times_what_came_from_it() {
    within(60, || {
        let (_, server) = Wire::UdpV4.open().unwrap();
        let server = Side::new(server, QpType::Rc);
        let listener = server.context.listen(PortSpace::Tcp, PORT).unwrap();
        let peer = BarePeer::new(server.context.address().unwrap());
        let mut came = peer.send(&peer.management(&peer.req(PORT, 0x77, quick())));
        let request = listener.accept(Some(PATIENCE)).unwrap();
        let mut connection = request.accept(&server.qp, &ConnectionParameters::default()).unwrap();
        // The server sends first.
        server.fill(0, 100_000, 1);
        server.receive(5, 200_000, 1_000);
        server.post(1, SendOp::Send, &[server.region.element(0..100_000)]);
        let arrived = peer.receive_for(Duration::from_millis(1_500));
        let went: usize = arrived.iter().map(|datagram| datagram.len() + HEADERS).sum();
        println!("{came} bytes came, {went} bytes in {} datagrams went", arrived.len());
        assert!(!arrived.is_empty() && went <= 3 * came, "{went} bytes for {came}");
        assert!(arrived.iter().all(|datagram| dest_qp(datagram) == 1), "nothing but connection management");
        assert!(server.counter("cm_withheld") > 0);
        // The connection is given up, and its queue pair goes to the error state.
        assert_eq!(connection.next_event(Some(PATIENCE)).unwrap(), ConnectionEvent::Unreachable);
        assert_eq!(server.qp.query().unwrap().state, QpState::Err);
        // Many more requests also get at most three times their bytes.
        for number in 0..20 {
            came += peer.send(&peer.management(&peer.req(PORT + 1, 0x100 + number, quick())));
        }
        let refusals = peer.receive_for(Duration::from_millis(500));
        let refusals = refusals.iter().map(|it| it.len() + HEADERS);
        assert!(went + refusals.sum::<usize>() <= 3 * came);
    });
}

/// The RTU proves the address, so messages that were posted before it are sent then.
#[test]
fn what_was_posted_before_the_rtu_is_sent_after_it() {
    within(60, || {
        let (_, server) = Wire::UdpV4.open().unwrap();
        let server = Side::new(server, QpType::Rc);
        let listener = server.context.listen(PortSpace::Tcp, PORT).unwrap();
        let peer = BarePeer::new(server.context.address().unwrap());
        let mad = peer.req(PORT, 0x77, CmTiming::default());
        peer.send(&peer.management(&mad));
        let request = listener.accept(Some(PATIENCE)).unwrap();
        let mut connection = request.accept(&server.qp, &ConnectionParameters::default()).unwrap();
        server.qp.post_send(&SendWr::inline(1, SendOp::Send, b"hello")).unwrap();
        assert_eq!(server.qp.query().unwrap().state, QpState::Sqd);
        let arrived = peer.receive_for(Duration::from_millis(300));
        let reply = management_of(&arrived[0]);
        let CmMessage::Rep(rep) = reply.message else { panic!("{reply:?}") };
        assert!(arrived.iter().all(|datagram| dest_qp(datagram) == 1));
        let rtu = CmRtu {
            local_comm_id: rep.remote_comm_id,
            remote_comm_id: rep.local_comm_id,
            private_data: [0; CmRtu::PRIVATE_DATA],
        };
        let mut bytes = [0; roce_packet::mad::MAD_LEN];
        roce_packet::mad::CmMad::new(reply.transaction_id, CmMessage::Rtu(rtu)).emit(&mut bytes);
        peer.send(&peer.management(&bytes));
        connection.established(Some(PATIENCE)).unwrap();
        assert_eq!(server.qp.query().unwrap().state, QpState::Rts);
        let arrived = peer.receive_for(Duration::from_millis(300));
        assert!(arrived.iter().any(|datagram| dest_qp(datagram) == 0x77), "{}", arrived.len());
    });
}

/// While the address of one request does not answer, the next requests are served.
#[test]
fn a_spoofed_request_does_not_keep_the_next_one_waiting() {
    within(60, || {
        let (near, server) = Wire::UdpV4.open().unwrap();
        let (near, server) = (Side::new(near, QpType::Rc), Side::new(server, QpType::Rc));
        let listener = server.context.listen(PortSpace::Tcp, PORT).unwrap();
        let peer = BarePeer::new(server.context.address().unwrap());
        peer.send(&peer.management(&peer.req(PORT, 0x77, CmTiming::default())));
        let spoofed = listener.accept(Some(PATIENCE)).unwrap();
        let _waiting = spoofed.accept(&server.qp, &ConnectionParameters::default()).unwrap();
        assert_eq!(server.counter("cm_half_open"), 1);
        let second = server.another_qp(QpType::Rc);
        let to = (server.context.address().unwrap(), PORT).into();
        let mut active = near.context.start_connect(to, &near.qp, &ConnectionParameters::default()).unwrap();
        let request = listener.accept(Some(PATIENCE)).unwrap();
        let mut passive = request.accept(&second, &ConnectionParameters::default()).unwrap();
        active.established(Some(PATIENCE)).unwrap();
        passive.established(Some(PATIENCE)).unwrap();
        assert_eq!(server.counter("cm_half_open"), 1);
    });
}

/// As docs/reference/congestion.md says, the ECN bits of a packet are those of the traffic class of its path,
/// for connection management and for data. The BTH of connection management requests an acknowledgement, as
/// in Soft-RoCE.
#[test]
fn connection_management_has_the_traffic_class_of_its_connection() {
    within(60, || {
        for (class, expected) in [(0, 0), (2, 2), (26 << 2, 26 << 2), (26 << 2 | 1, 26 << 2 | 1)] {
            let (device, peer, sent) = Recorder::pair();
            let near = Context::builder().attach(device).unwrap();
            let far = Context::builder().attach(peer).unwrap();
            let (near, far) = (Side::new(near, QpType::Rc), Side::new(far, QpType::Rc));
            // Each end is once on the side that is recorded.
            for (asks, answers) in [(&near, &far), (&far, &near)] {
                let listener = answers.context.listen(PortSpace::Tcp, PORT).unwrap();
                let (one, other) = (asks.another_qp(QpType::Rc), answers.another_qp(QpType::Rc));
                let path = PathOptions::default().traffic_class(class);
                let parameters = ConnectionParameters::default().path(path);
                let to = (answers.context.address().unwrap(), PORT).into();
                let mut active = asks.context.start_connect(to, &one, &parameters).unwrap();
                let mut passive =
                    listener.accept(Some(PATIENCE)).unwrap().accept(&other, &parameters).unwrap();
                active.established(Some(PATIENCE)).unwrap();
                passive.established(Some(PATIENCE)).unwrap();
                one.post_send(&SendWr::inline(1, answers.write_op(0), b"data")).unwrap();
                succeed(&asks.send_cq);
            }
            let sent = sent.lock().unwrap();
            assert!(sent.iter().any(|(_, bytes)| dest_qp(bytes) != 1));
            for (path, bytes) in sent.iter() {
                assert_eq!(path.traffic_class, expected, "to queue pair {}", dest_qp(bytes));
                assert!(dest_qp(bytes) != 1 || bytes[8] & 0x80 != 0, "AckReq");
            }
        }
    });
}
