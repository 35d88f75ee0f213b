//! Several queue pairs of one context in one multicast group.

use std::net::IpAddr;

use roce::verbs::*;

use crate::common::within;
use crate::world::*;

/// A sender to a group, and a context with two queue pairs that can be members of it.
struct Net {
    near: Side,
    far: Side,
    other: QueuePair,
    group: IpAddr,
    handle: AddressHandle,
}

impl Net {
    fn new() -> Self {
        let (near, far) = Wire::Memory.open().unwrap();
        let (near, far) = (Side::new(near, QpType::Ud), Side::new(far, QpType::Ud));
        let other = far.another_qp(QpType::Ud);
        for qp in [&near.qp, &far.qp, &other] {
            qp.activate_datagram(QKEY).unwrap();
        }
        let group = "239.1.2.3".parse().unwrap();
        let path = PathOptions::default();
        let handle = near.context.create_address_handle(group, Qpn::MULTICAST, QKEY, &path).unwrap();
        Self { near, far, other, group, handle }
    }

    fn send(&self) {
        let wr = SendWr::inline(1, SendOp::Send, b"hello").to(&self.handle);
        self.near.qp.post_send(&wr).unwrap();
        succeed(&self.near.send_cq);
    }

    /// Asserts that this queue pair receives messages to the group.
    #[track_caller]
    fn assert_heard_by(&self, qp: &QueuePair) {
        let element = self.far.region.element(0..100);
        qp.post_recv(&RecvWr { wr_id: 1, elements: &[element] }).unwrap();
        self.send();
        assert_eq!(succeed(&self.far.recv_cq).qpn, qp.number());
    }

    /// Asserts that the device of the other context is not in a group, so that messages to the group go
    /// nowhere.
    #[track_caller]
    fn assert_left(&self) {
        let before = counter(&self.near.context, "memory_tx_bad_destination");
        self.send();
        assert_eq!(counter(&self.near.context, "memory_tx_bad_destination"), before + 1);
    }
}

#[test]
fn the_device_leaves_a_group_with_its_last_member() {
    within(60, || {
        let net = Net::new();
        net.assert_left();
        net.far.qp.attach_multicast(net.group).unwrap();
        net.far.qp.attach_multicast(net.group).unwrap();
        net.other.attach_multicast(net.group).unwrap();
        net.far.qp.detach_multicast(net.group).unwrap();
        net.assert_heard_by(&net.other);
        // The queue pair is not a member any more.
        net.far.qp.detach_multicast(net.group).unwrap();
        net.assert_heard_by(&net.other);
        net.other.detach_multicast(net.group).unwrap();
        net.assert_left();
        net.other.attach_multicast(net.group).unwrap();
        net.assert_heard_by(&net.other);
    });
}

#[test]
fn a_queue_pair_that_is_destroyed_leaves_its_groups() {
    within(60, || {
        let mut net = Net::new();
        net.far.qp.attach_multicast(net.group).unwrap();
        net.other.attach_multicast(net.group).unwrap();
        net.other = net.far.another_qp(QpType::Ud);
        net.assert_heard_by(&net.far.qp);
        net.far.qp = net.far.another_qp(QpType::Ud);
        net.assert_left();
    });
}

#[test]
fn who_may_not_join_leaves_the_device_where_it_is() {
    within(60, || {
        let net = Net::new();
        let connected = net.far.another_qp(QpType::Rc);
        assert!(matches!(connected.attach_multicast(net.group), Err(VerbsError::Destroy(_))));
        net.assert_left();
        net.far.qp.attach_multicast(net.group).unwrap();
        connected.detach_multicast(net.group).unwrap();
        net.assert_heard_by(&net.far.qp);
    });
}
