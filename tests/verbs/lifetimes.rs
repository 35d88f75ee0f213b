//! Tests that objects keep the objects alive that they depend on, and release everything at the end.

use std::any::Any;
use std::collections::BTreeSet;

use roce::verbs::*;

use crate::common::{own_address, within};
use crate::world::*;

/// Returns one object of each kind, connected and in use.
fn one_of_each(spec: &str) -> Vec<Box<dyn Any>> {
    let context = Context::open(spec).unwrap();
    let pd = context.alloc_pd().unwrap();
    let channel = context.create_channel().unwrap();
    let cq = context.create_cq(8, Some(&channel)).unwrap();
    let srq = pd.create_srq(8, 1).unwrap();
    let region = pd.allocate(4096, Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::MW_BIND).unwrap();
    let window = pd.alloc_window(WindowType::Type1).unwrap();
    let access = Access::REMOTE_WRITE;
    let binding = WindowBinding { region: region.lkey(), addr: region.addr(), len: 100, access };
    window.bind(&binding).unwrap();
    let own = pd.create_qp(&QueuePairOptions::new(QpType::Rc, &cq)).unwrap();
    let options = QueuePairOptions::new(QpType::Rc, &cq).srq(&srq);
    let shared = pd.create_qp(&options).unwrap();
    own.connect(&shared.endpoint().unwrap(), &ConnectOptions::default()).unwrap();
    shared.connect(&own.endpoint().unwrap(), &ConnectOptions::default()).unwrap();
    srq.post_recv(&RecvWr { wr_id: 1, elements: &[region.element(0..100)] }).unwrap();
    own.post_send(&SendWr::new(1, SendOp::Send, &[region.element(0..100)])).unwrap();
    vec![
        Box::new(context),
        Box::new(pd),
        Box::new(channel),
        Box::new(cq),
        Box::new(srq),
        Box::new(region),
        Box::new(window),
        Box::new(own),
        Box::new(shared),
    ]
}

#[test]
fn objects_can_be_dropped_in_any_order_and_the_port_is_free_at_once() {
    within(100, || {
        let spec = format!("udp:{}", own_address());
        let mut random = fastrand::Rng::with_seed(4);
        for _ in 0..150 {
            let mut objects = one_of_each(&spec);
            random.shuffle(&mut objects);
            objects.into_iter().for_each(drop);
            // The next round opens the same address.
        }
    });
}

#[test]
fn handles_keep_what_they_need_alive() {
    within(60, || {
        let (mut near, far) = rc_pair();
        let channel = near.context.create_channel().unwrap();
        near.send_cq = near.context.create_cq(64, Some(&channel)).unwrap();
        near.qp = near.another_qp(QpType::Rc);
        let far_qp = far.another_qp(QpType::Rc);
        connect_qps(&near.qp, &far_qp, &ConnectOptions::default());
        near.fill(0, 5000, 1);
        let Side { context, pd, region, send_cq, recv_cq, qp } = near;
        drop((context, pd, recv_cq));
        let elements = [region.element(0..5000)];
        qp.post_send(&SendWr::new(1, far.write_op(0), &elements)).unwrap();
        succeed(&send_cq);
        far.check(0, 5000, 1);
        let copy = qp.clone();
        drop(qp);
        copy.post_send(&SendWr::new(2, far.write_op(8000), &elements)).unwrap();
        assert_eq!(succeed(&send_cq).wr_id, 2);
        // The queue pair is dropped; its completions can still be polled. An answer alone would not show
        // that the last one is there: it may be the second answer to a request that was sent again.
        send_cq.request_notification(Notify::Next).unwrap();
        copy.post_send(&SendWr::new(3, far.write_op(8000), &elements)).unwrap();
        assert_eq!(channel.wait(Some(PATIENCE)).unwrap(), send_cq.id());
        drop(copy);
        assert_eq!(succeed(&send_cq).wr_id, 3);
    });
}

/// A device has 64 ports besides its own. Only existing queue pairs use them.
#[test]
fn a_queue_pair_takes_its_source_port_with_it() {
    within(60, || {
        let (near, far) = rc_pair();
        let port = |qp: &QueuePair| qp.query().unwrap().path.unwrap().source_port;
        let mut of_their_own = 0;
        for round in 0..200 {
            let (one, other) = (near.another_qp(QpType::Rc), far.another_qp(QpType::Rc));
            one.connect(&other.endpoint().unwrap(), &ConnectOptions::default()).unwrap();
            other.connect(&one.endpoint().unwrap(), &ConnectOptions::default()).unwrap();
            of_their_own += u32::from(port(&one) >= 49_152);
            one.post_send(&SendWr::new(round, far.write_op(0), &[near.region.element(0..8)])).unwrap();
            assert_eq!(succeed(&near.send_cq).wr_id, round);
        }
        // Other programs on this machine may use a few of the ports.
        assert!(of_their_own > 190, "{of_their_own}");
    });
}

#[test]
fn memory_is_registered_twice_and_revoked_once() {
    within(60, || {
        let (near, far) = rc_pair();
        let memory = far.region.memory().clone();
        let second = far.pd.register(memory.clone(), Access::LOCAL_WRITE | Access::REMOTE_WRITE).unwrap();
        assert_ne!((second.rkey(), second.addr()), (far.region.rkey(), far.region.addr()));
        let op = SendOp::Write { remote_addr: second.addr(), rkey: second.rkey() };
        near.fill(0, 100, 1);
        near.carry_out(1, op, &[near.region.element(0..100)]);
        far.check(0, 100, 1);
        drop(second);
        near.post(2, op, &[near.region.element(0..100)]);
        fail(&near.send_cq, WcStatus::RemoteAccessError);
        assert_same(&memory.to_vec()[..100], &pattern(100, 1));
    });
}

#[test]
fn a_context_comes_back_on_its_address_and_knows_nothing_of_its_past() {
    within(60, || {
        let (near, far) = rc_pair();
        let spec = format!("udp:{}", far.context.address().unwrap());
        let (write, old) = (far.write_op(0), far.qp.number());
        drop(far);
        let again = Side::new(Context::open(&spec).unwrap(), QpType::Rc);
        assert_ne!(again.qp.number(), old);
        let options = ConnectOptions::default().timeout(8).retry_cnt(1);
        let qp = near.another_qp(QpType::Rc);
        qp.connect(&Endpoint { qpn: old.get(), ..again.qp.endpoint().unwrap() }, &options).unwrap();
        qp.post_send(&SendWr::new(1, write, &[near.region.element(0..8)])).unwrap();
        fail(&near.send_cq, WcStatus::RetryExceededError);
    });
}

/// Returns the numbers that a peer would have to guess.
fn numbers(builder: ContextBuilder) -> Vec<u64> {
    let context = builder.open(&format!("udp:{},share=off", own_address())).unwrap();
    let pd = context.alloc_pd().unwrap();
    let cq = context.create_cq(8, None).unwrap();
    let mut numbers = Vec::new();
    for _ in 0..3 {
        let region = pd.allocate(4096, Access::LOCAL_WRITE).unwrap();
        let qp = pd.create_qp(&QueuePairOptions::new(QpType::Rc, &cq)).unwrap();
        let Endpoint { qpn, psn, .. } = qp.endpoint().unwrap();
        numbers.extend([u64::from(qpn), u64::from(psn), u64::from(region.rkey().0), region.addr()]);
        assert!(psn < 1 << 24 && qpn < 1 << 24);
    }
    numbers
}

#[test]
fn a_seed_makes_numbers_repeatable_and_without_it_they_differ() {
    within(60, || {
        let seeded = |seed| numbers(Context::builder().seed(seed));
        assert_eq!(seeded(1), seeded(1));
        let all: Vec<Vec<u64>> =
            vec![seeded(1), seeded(2), numbers(Context::builder()), numbers(Context::builder())];
        for place in 0..all[0].len() {
            let different: BTreeSet<u64> = all.iter().map(|numbers| numbers[place]).collect();
            // 16 random bits may be equal by chance, but rarely.
            assert!(different.len() >= 3, "number {place}: {different:x?}");
        }
        for slot in [0x3b, 0xab, 831].map(|slot| ProcessSlot::new(slot).unwrap()) {
            let found = numbers(Context::builder().process_slot(slot));
            assert!(
                [0, 4, 8].iter().all(|place| ProcessSlot::of(found[*place] as u32) == slot),
                "{slot}: {found:x?}"
            );
        }
    });
}
