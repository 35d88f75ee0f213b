//! Several engines in one context.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use roce::device::OpenOptions;
use roce::observe::CounterSource;
use roce::verbs::*;
use roce_fault::FaultInjector;
use roce_testing::on_idle;

use crate::cm::{at, join, talk};
use crate::common::{own_address, within};
use crate::world::*;

const ENGINES: usize = 2;

fn open() -> Context {
    Context::builder().engines(ENGINES).open(&format!("udp:{}", own_address())).unwrap()
}

/// Returns two ends, each with one queue pair in every engine and one region for all of them.
fn ends() -> [Vec<Side>; 2] {
    let contexts = [open(), open()];
    let [near, far] = contexts.map(|context| {
        let first = Side::new(context.clone(), QpType::Rc);
        let others = (1..ENGINES).map(|engine| {
            let [send_cq, recv_cq] = [(); 2].map(|()| context.create_cq_on(engine, 256, None).unwrap());
            let options =
                QueuePairOptions::new(QpType::Rc, &send_cq).recv_cq(&recv_cq).capabilities(CAPABILITIES);
            let qp = first.pd.create_qp(&options).unwrap();
            let (pd, region) = (first.pd.clone(), first.region.clone());
            Side { context: context.clone(), pd, region, send_cq, recv_cq, qp }
        });
        let others: Vec<_> = others.collect();
        std::iter::once(first).chain(others).collect::<Vec<_>>()
    });
    for (near, far) in near.iter().zip(&far) {
        connect_qps(&near.qp, &far.qp, &ConnectOptions::default());
    }
    [near, far]
}

#[test]
fn a_queue_pair_is_in_the_engine_of_its_queues_and_its_number_begins_with_the_slot() {
    within(60, || {
        let context = open();
        assert_eq!(context.engines(), ENGINES);
        for engine in 0..ENGINES {
            let side = Side::on(context.clone(), engine, QpType::Rc);
            let srq = side.pd.create_srq_on(engine, 8, 1).unwrap();
            assert_eq!([side.qp.engine(), side.send_cq.engine(), srq.engine()], [engine; 3]);
            assert_eq!(side.qp.number().get() >> 16, 1 + engine as u32);
            side.pd.create_qp(&QueuePairOptions::new(QpType::Rc, &side.send_cq).srq(&srq)).unwrap();
        }
        let ids = [0, 1].map(|engine| context.create_cq_on(engine, 8, None).unwrap().id());
        assert_ne!(ids[0], ids[1]);
    });
}

#[test]
fn one_engine_is_what_a_context_has_and_others_are_refused_by_name() {
    let context = Context::open(&format!("udp:{}", own_address())).unwrap();
    assert_eq!(context.engines(), 1);
    let error = context.create_cq_on(1, 16, None).unwrap_err();
    assert_eq!(error.errno(), 22, "EINVAL");
    assert!(error.to_string().contains("no engine 1, its last engine is 0"), "{error}");
    let mut named = 0;
    context.visit_engine_counters(&mut |_, _, _| named += 1);
    assert_eq!(named, 0, "the sums say the same");
}

#[test]
fn a_device_that_cannot_have_several_engines_is_refused_with_the_reason() {
    let address = own_address();
    let open = |engines, spec: &str| {
        let error = Context::builder().engines(engines).open(spec).unwrap_err();
        assert_eq!(error.errno(), 22);
        error.to_string()
    };
    for spec in [format!("udp:{address},share=off"), format!("udp:{address},port=0")] {
        let error = open(2, &spec);
        assert!(error.contains("2 engines") && error.contains("without share=off and port=0"), "{error}");
    }
    let plain = format!("udp:{address}");
    for engines in [0, 64, usize::MAX] {
        assert!(open(engines, &plain).contains("1 to 63"));
    }
    let faults = FaultInjector::new("drop=50%".parse().unwrap(), 1);
    let options = OpenOptions { receive_faults: Some(faults), ..OpenOptions::default() };
    let error = Context::builder().engines(2).options(options).open(&plain).unwrap_err().to_string();
    assert!(error.contains("faults and captures"), "{error}");
    let device = roce::device::open(&plain, OpenOptions::default()).unwrap();
    let error = Context::builder().engines(2).attach_box(device).unwrap_err().to_string();
    assert!(error.contains("use `open`"), "{error}");
}

#[test]
fn a_region_has_one_key_in_all_engines() {
    within(60, || {
        let [near, far] = ends();
        for (engine, (near, far)) in near.iter().zip(&far).enumerate() {
            let (at, seed) = (engine * 10_000, 1 + engine as u64);
            near.fill(at, 5_000, seed);
            near.carry_out(1, far.write_op(at), &[near.region.element(at..at + 5_000)]);
            far.check(at, 5_000, seed);
        }
        // A READ through one engine returns the data that a WRITE through the other engine stored.
        near[1].carry_out(2, far[1].read_op(0), &[near[1].region.element(50_000..55_000)]);
        near[1].check(50_000, 5_000, 1);
    });
}

#[test]
fn deregistering_revokes_in_all_engines() {
    within(60, || {
        let [near, far] = ends();
        let target = far[0].pd.allocate(64, Access::LOCAL_WRITE | Access::REMOTE).unwrap();
        let op = SendOp::Write { remote_addr: target.addr(), rkey: target.rkey() };
        for near in &near {
            near.carry_out(1, op, &[near.region.element(0..64)]);
        }
        drop(target);
        for near in &near {
            near.post(2, op, &[near.region.element(0..64)]);
            fail(&near.send_cq, WcStatus::RemoteAccessError);
        }
    });
}

#[test]
fn windows_of_type_1_are_bound_in_all_engines_and_keep_a_region() {
    within(60, || {
        let [near, far] = ends();
        let window = far[0].pd.alloc_window(WindowType::Type1).unwrap();
        let region = &far[0].region;
        let access = Access::REMOTE_WRITE;
        let binding = WindowBinding { region: region.lkey(), addr: region.addr() + 100, len: 64, access };
        let rkey = window.bind(&binding).unwrap();
        let raw = far[0].context.raw();
        assert_eq!(raw.deregister(region.lkey()).unwrap_err().errno(), 16, "EBUSY");
        let op = |rkey| SendOp::Write { remote_addr: region.addr() + 100, rkey };
        for near in &near {
            near.carry_out(1, op(rkey), &[near.region.element(0..64)]);
        }
        let newer = window.bind(&binding).unwrap();
        near[1].carry_out(2, op(newer), &[near[1].region.element(0..64)]);
        for near in &near {
            near.post(3, op(rkey), &[near.region.element(0..64)]);
            fail(&near.send_cq, WcStatus::RemoteAccessError);
        }
    });
}

#[test]
fn a_window_of_type_2_is_bound_by_a_queue_pair_of_any_engine() {
    within(60, || {
        let [near, far] = ends();
        let window = far[0].pd.alloc_window(WindowType::Type2).unwrap();
        let region = &far[1].region;
        let access = Access::REMOTE_WRITE;
        let binding = WindowBinding { region: region.lkey(), addr: region.addr(), len: 64, access };
        let new_rkey = window.rkey().next_variant();
        let op = SendOp::BindWindow { window: window.rkey(), new_rkey, binding };
        far[1].carry_out(1, op, &[]);
        window.note_bound(new_rkey).unwrap();
        let op = SendOp::Write { remote_addr: region.addr(), rkey: new_rkey };
        near[1].carry_out(2, op, &[near[1].region.element(0..64)]);
        // The window cannot be used through another queue pair.
        near[0].post(3, op, &[near[0].region.element(0..64)]);
        fail(&near[0].send_cq, WcStatus::RemoteAccessError);
    });
}

#[test]
fn a_protection_domain_with_a_queue_pair_in_any_engine_stays() {
    within(60, || {
        let context = open();
        let raw = context.raw();
        let pd = raw.allocate_pd().unwrap();
        let cq = raw.create_cq_on(1, 16, None).unwrap();
        let init = raw_init(pd, &cq);
        let qpn = raw.create_qp(&init, &QpOptions::default()).unwrap();
        assert_eq!(raw.deallocate_pd(pd).unwrap_err().errno(), 16, "EBUSY");
        assert_eq!(raw.destroy_cq(&cq).unwrap_err().errno(), 16, "EBUSY");
        raw.destroy_qp(qpn).unwrap();
        raw.destroy_cq(&cq).unwrap();
        raw.deallocate_pd(pd).unwrap();
        assert_eq!(raw.deallocate_pd(pd).unwrap_err().errno(), 22, "EINVAL");
    });
}

#[test]
fn queues_of_two_engines_are_refused_with_the_names_of_both() {
    within(60, || {
        let context = open();
        let pd = context.alloc_pd().unwrap();
        let cqs = [0, 1].map(|engine| context.create_cq_on(engine, 16, None).unwrap());
        let refuse = |options: &QueuePairOptions<'_>, what: &str| {
            let error = pd.create_qp(options).unwrap_err();
            assert_eq!(error.errno(), 22, "EINVAL");
            let text = error.to_string();
            assert!(text.contains(what) && text.contains("engine 0") && text.contains("engine 1"), "{text}");
        };
        refuse(&QueuePairOptions::new(QpType::Rc, &cqs[0]).recv_cq(&cqs[1]), "receive completion queue");
        let srq = pd.create_srq(16, 1).unwrap();
        refuse(&QueuePairOptions::new(QpType::Rc, &cqs[1]).srq(&srq), "shared receive queue");
        let xrcd = context.raw().allocate_xrcd().unwrap();
        let cq = context.raw().create_cq_on(1, 16, None).unwrap();
        let raw_pd = context.raw().allocate_pd().unwrap();
        let error = context.raw().create_xrc_srq(raw_pd, xrcd, &cq, 16, 1).unwrap_err().to_string();
        assert!(error.contains("engine 1") && error.contains("engine 0"), "{error}");
    });
}

/// Posts a receive, requests a notification, and has the peer send.
fn provoke_event(near: &Side, far: &Side) {
    far.receive(7, 0, 64);
    far.recv_cq.request_notification(Notify::Next).unwrap();
    assert_eq!(far.recv_cq.poll(&mut [Wc::default()]).unwrap(), 0);
    near.carry_out(1, SendOp::Send, &[near.region.element(0..64)]);
}

/// Waits in a channel with a queue in each engine, and returns how long the longest wait took.
fn wait_for_each(engines: usize, background: bool, spin: Duration) -> Duration {
    let builder = || Context::builder().engines(engines);
    let near = builder().open(&format!("udp:{}", own_address())).unwrap();
    let far = builder().background(background).spin(spin).open(&format!("udp:{}", own_address())).unwrap();
    let channel = far.create_channel().unwrap();
    let sides: Vec<_> = (0..engines)
        .map(|engine| {
            let near = Side::on(near.clone(), engine, QpType::Rc);
            let mut far = Side::on(far.clone(), engine, QpType::Rc);
            far.recv_cq = far.context.create_cq_on(engine, 16, Some(&channel)).unwrap();
            far.qp = far.another_qp(QpType::Rc);
            connect_qps(&near.qp, &far.qp, &ConnectOptions::default());
            (near, far)
        })
        .collect();
    let error = channel.wait(Some(Duration::from_millis(10))).unwrap_err();
    assert!(matches!(error, WaitError::TimedOut));
    let wait = |(near, far): &(Side, Side)| {
        let took = std::thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                let began = Instant::now();
                assert_eq!(channel.wait(Some(PATIENCE)).unwrap(), far.recv_cq.id());
                began.elapsed()
            });
            // In most runs the thread sleeps when the event arrives.
            std::thread::sleep(Duration::from_millis(5));
            provoke_event(near, far);
            waiting.join().unwrap()
        });
        assert_eq!(succeed(&far.recv_cq).wr_id, 7);
        took
    };
    sides.iter().rev().chain(&sides).map(wait).max().unwrap()
}

#[test]
fn a_channel_serves_queues_of_two_engines() {
    for (background, spin) in [(true, 50), (true, 0), (false, 50)] {
        within(60, move || {
            wait_for_each(ENGINES, background, Duration::from_micros(spin));
        });
    }
}

/// Regression: no thread watched the devices of the further engines, so a wait lasted until a retransmission.
#[test]
fn a_channel_with_more_engines_than_a_sleep_has_descriptors_is_woken_by_each() {
    for background in [true, false] {
        within(60, move || {
            let longest = wait_for_each(6, background, Duration::ZERO);
            assert!(on_idle(longest) < Duration::from_millis(200), "{longest:?}");
        });
    }
}

#[test]
fn a_task_waits_for_a_queue_of_another_engine() {
    within(60, || {
        let [near, far] = ends();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        far[1].receive(7, 0, 64);
        let queue = AsyncCompletionQueue::new(far[1].recv_cq.clone());
        near[1].carry_out(1, SendOp::Send, &[near[1].region.element(0..64)]);
        let mut done = [Wc::default()];
        assert_eq!(runtime.block_on(queue.wait(&mut done)).unwrap(), 1);
        assert_eq!(done[0].wr_id, 7);
    });
}

#[test]
fn connection_management_connects_queue_pairs_of_any_engine() {
    within(60, || {
        let (here, there) = (open(), open());
        for (near, far) in [(0, 1), (1, 0), (1, 1)] {
            let near = Side::on(here.clone(), near, QpType::Rc);
            let far = Side::on(there.clone(), far, QpType::Rc);
            let listener = far.context.listen(PortSpace::Tcp, 7174).unwrap();
            let (mut active, mut passive) = join(&near, &far, &listener);
            talk(&near, &far);
            far.receive(9, 0, 64);
            active.disconnect().unwrap();
            assert_eq!(passive.next_event(Some(PATIENCE)).unwrap(), ConnectionEvent::Disconnected);
            fail(&far.recv_cq, WcStatus::WrFlushError);
            assert_eq!(near.qp.query().unwrap().state, QpState::Err);
            // The queue pair is rejected now, in every engine.
            let refused = near.context.start_connect(at(&far, 7174), &near.qp, &Default::default());
            assert!(matches!(refused.unwrap_err(), ConnectionError::QueuePairState(QpState::Err)));
        }
    });
}

/// Regression: the engine without connection management received half of the requests and did not answer
/// them.
#[test]
fn a_request_that_nobody_listens_for_is_refused_at_once() {
    within(60, || {
        let (near, far) = (Side::new(open(), QpType::Rc), open());
        let _listener = far.listen(PortSpace::Tcp, 7174).unwrap();
        let nobody = std::net::SocketAddr::new(far.address().unwrap(), 9);
        for _ in 0..20 {
            let qp = near.another_qp(QpType::Rc);
            let refused = near.context.connect(nobody, &qp, &Default::default()).unwrap_err();
            assert!(matches!(refused, ConnectionError::Rejected { .. }), "{refused}");
        }
        assert_eq!(near.counter("cm_repeated"), 0);
    });
}

#[test]
fn the_counters_of_a_context_are_the_sums_over_its_engines() {
    within(60, || {
        let [near, far] = ends();
        for (near, far) in near.iter().zip(&far) {
            near.carry_out(1, far.write_op(0), &[near.region.element(0..64)]);
        }
        near[1].carry_out(2, far[1].write_op(0), &[near[1].region.element(0..64)]);
        let context = &far[0].context;
        let each = [0, 1].map(|engine| context.engine_counters(engine).unwrap().rx_write_requests);
        assert_eq!((each, context.engine_counters(2)), ([1, 2], None));
        assert_eq!(context.counters().rx_write_requests, 3);
        assert_eq!(counter(context, "rx_write_requests"), 3);
        let mut named = Vec::new();
        context.visit_engine_counters(&mut |engine, name, value| {
            if name == "rx_write_requests" {
                named.push((engine, value));
            }
        });
        assert_eq!(named, [(0, 1), (1, 2)]);
    });
}

#[test]
fn the_last_handle_frees_all_slots() {
    within(60, || {
        let spec = format!("udp:{}", own_address());
        for _ in 0..3 {
            let context = Context::builder().engines(3).open(&spec).unwrap();
            let slots = [0, 1, 2].map(|engine| {
                let side = Side::on(context.clone(), engine, QpType::Rc);
                side.qp.number().get() >> 16
            });
            assert_eq!(slots, [1, 2, 3]);
        }
    });
}

/// Threads that use one engine each do not deadlock with threads that need all engines or connection
/// management.
#[test]
fn engines_are_used_and_locked_together_at_the_same_time() {
    within(120, || {
        let [near, far] = ends();
        let (here, there) = (near[0].context.clone(), far[0].context.clone());
        let stopped = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let _stop = StopAtEnd(&stopped);
            for engine in 0..ENGINES {
                let (near, far, stopped) = (&near[engine], &far[engine], &stopped);
                scope.spawn(move || {
                    while !stopped.load(Ordering::Relaxed) {
                        near.carry_out(1, far.write_op(engine * 64), &[near.region.element(0..64)]);
                    }
                });
                scope.spawn(move || {
                    while !stopped.load(Ordering::Relaxed) {
                        let pd = far.context.alloc_pd().unwrap();
                        let region = pd.allocate(64, Access::LOCAL_WRITE | Access::MW_BIND).unwrap();
                        let window = pd.alloc_window(WindowType::Type1).unwrap();
                        let (access, addr) = (Access::REMOTE_READ, region.addr());
                        window.bind(&WindowBinding { region: region.lkey(), addr, len: 8, access }).unwrap();
                    }
                });
            }
            for round in 0..10 {
                let near = Side::on(here.clone(), round % ENGINES, QpType::Rc);
                let far = Side::on(there.clone(), round / 2 % ENGINES, QpType::Rc);
                let listener = far.context.listen(PortSpace::Tcp, 7175).unwrap();
                let _links = join(&near, &far, &listener);
            }
            stopped.store(true, Ordering::Relaxed);
        });
    });
}
