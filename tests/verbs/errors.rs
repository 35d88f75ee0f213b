//! Tests of errors, and whether each message tells the user the next step.

use std::io;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;

use roce::device::memory::MemoryDevice;
use roce::observe::{explain, with_causes};
use roce::verbs::*;
use roce_packet::{NakCode, Opcode, Syndrome};
use roce_transport::{Instant, Received, Transmit, TxSlot};

use crate::common::{own_address, within};
use crate::world::*;

#[track_caller]
fn says<T: std::fmt::Debug>(result: Result<T, VerbsError>, parts: &[&str]) {
    let error = match result {
        Ok(value) => panic!("it worked: {value:?}"),
        Err(error) => with_causes(&error).to_string(),
    };
    for part in parts {
        assert!(error.contains(part), "`{part}` is missing: {error}");
    }
}

fn open() -> Context {
    Context::open(&format!("udp:{}", own_address())).unwrap()
}

#[test]
fn a_wrong_remote_key_or_range_is_refused_by_the_peer() {
    within(60, || {
        for (offset, rkey_difference, right) in
            [(0, 1, true), (MEMORY as u64 - 4, 0, true), (u64::MAX - 3, 0, true), (0, 0, false)]
        {
            let (near, mut far) = rc_pair();
            if !right {
                far.region = far.pd.allocate(4096, Access::LOCAL_WRITE | Access::REMOTE_READ).unwrap();
            }
            far.fill(0, 4096, 3);
            let remote_addr = far.region.addr().wrapping_add(offset);
            let rkey = RKey(far.region.rkey().0 ^ rkey_difference);
            near.post(1, SendOp::Write { remote_addr, rkey }, &[near.region.element(0..8)]);
            near.post(2, SendOp::Send, &[near.region.element(0..8)]);
            let wc = fail(&near.send_cq, WcStatus::RemoteAccessError);
            assert_eq!((wc.wr_id, wc.cause), (1, Cause::NakRemoteAccess));
            let wc = fail(&near.send_cq, WcStatus::WrFlushError);
            assert_eq!((wc.wr_id, wc.cause), (2, Cause::Flushed));
            far.check(0, 4096, 3);
            assert_eq!(far.context.counters().resp_remote_access_errors, 1);
            assert_eq!(near.context.counters().req_remote_access_errors, 1);
            assert_eq!(near.qp.query().unwrap().state, QpState::Err);
            until(
                "an event that tells the owner",
                || matches!(far.context.async_event(), Some(AsyncEvent::QpAccessError(qpn)) if qpn == far.qp.number()),
            );
            says(
                near.qp
                    .post_recv(&RecvWr { wr_id: 1, elements: &[] })
                    .and(near.qp.modify(&QpAttr::to_state(QpState::Rts))),
                &["cannot go from ERR to RTS"],
            );
        }
    });
}

/// An element of a range that exceeds its region is refused when it is posted, and nothing is queued.
#[test]
fn an_element_outside_its_region_cannot_be_posted() {
    within(60, || {
        let (near, far) = rc_pair();
        let inside = near.region.element(0..8);
        #[allow(clippy::reversed_empty_ranges, reason = "a caller may write it")]
        let outside =
            [MEMORY - 4..MEMORY + 4, 0..MEMORY + 1, MEMORY + 1..MEMORY + 1, 0..usize::MAX, usize::MAX..0];
        for outside in outside.map(|range| near.region.element(range)) {
            let is_refused = |posted: Result<(), VerbsError>| match posted {
                Err(VerbsError::Post(error)) => assert_eq!(error, PostError::OutsideRegion),
                other => panic!("{other:?}"),
            };
            let SendOp::Write { remote_addr, rkey } = far.write_op(0) else { unreachable!() };
            let add = SendOp::FetchAdd { remote_addr, rkey, add: 1 };
            for op in [far.write_op(0), far.read_op(0), SendOp::Send, add] {
                is_refused(near.qp.post_send(&SendWr::new(1, op, &[outside])));
                is_refused(near.qp.post_send(&SendWr::new(1, op, &[inside, outside])));
            }
            is_refused(near.qp.post_recv(&RecvWr { wr_id: 1, elements: &[inside, outside] }));
            let srq = near.pd.create_srq(1, 1).unwrap();
            is_refused(srq.post_recv(&RecvWr { wr_id: 1, elements: &[outside] }));
            let list = [[inside], [outside]];
            let list = [0, 1].map(|number| SendWr::new(number, far.write_op(0), &list[number as usize]));
            let error = near.qp.post_send_list(&list).unwrap_err();
            let reason = PostError::OutsideRegion;
            assert!(
                matches!(error, VerbsError::PostList { position: 1, error } if error == reason),
                "{error:?}"
            );
            assert_eq!(succeed(&near.send_cq).wr_id, 0);
        }
        // The whole region and an empty range at its end can be posted.
        near.carry_out(
            2,
            far.write_op(0),
            &[near.region.element(0..MEMORY), near.region.element(MEMORY..MEMORY)],
        );
        // A message that is too long for other reasons has its own error.
        let long = Sge { length: u32::MAX, ..inside };
        let error = near.qp.post_send(&SendWr::new(3, far.write_op(0), &[long])).unwrap_err();
        assert!(matches!(error, VerbsError::Post(PostError::MessageTooLong { .. })), "{error:?}");
    });
}

/// The raw interface, which serves programs for libibverbs, posts every element, and the request fails later.
#[test]
fn raw_requests_with_an_element_outside_its_region_fail_when_they_are_executed() {
    within(60, || {
        let (near, far) = rc_pair();
        let outside = Sge { length: 8, ..near.region.element(MEMORY - 4..MEMORY) };
        let wr = SendWr::new(1, far.write_op(0), std::slice::from_ref(&outside));
        near.context.raw().post_send(near.qp.number(), &wr).unwrap();
        let wc = fail(&near.send_cq, WcStatus::LocalProtectionError);
        assert_eq!((wc.wr_id, wc.cause), (1, Cause::LocalKeyRange));
    });
}

type MakeElement = fn(&Side, &MemoryRegion) -> Sge;

#[test]
fn a_wrong_local_key_or_range_fails_before_anything_is_sent() {
    within(60, || {
        let stranger = open();
        let foreign = stranger.alloc_pd().unwrap().allocate(4096, Access::LOCAL_WRITE).unwrap();
        let cases: [(&str, MakeElement, Cause); 4] = [
            (
                "outside",
                |near, _| Sge { length: 8, ..near.region.element(MEMORY - 4..MEMORY) },
                Cause::LocalKeyRange,
            ),
            ("a key of another context", |_, foreign| foreign.element(0..8), Cause::LocalKeyUnknown),
            (
                "a key that nobody has",
                |near, _| Sge { lkey: LKey(near.region.lkey().0 ^ 1), ..near.region.element(0..8) },
                Cause::LocalKeyUnknown,
            ),
            (
                "a key of another domain",
                |near, _| {
                    let pd = near.context.alloc_pd().unwrap();
                    // Leaked on purpose, because it must outlive the request.
                    let region = std::mem::ManuallyDrop::new(pd.allocate(100, Access::LOCAL_WRITE).unwrap());
                    region.element(0..8)
                },
                Cause::LocalKeyWrongDomain,
            ),
        ];
        for (name, element, cause) in cases {
            let (near, far) = rc_pair();
            near.post(1, far.write_op(0), &[element(&near, &foreign)]);
            let wc = fail(&near.send_cq, WcStatus::LocalProtectionError);
            assert_eq!((wc.wr_id, wc.cause), (1, cause), "{name}");
            assert_eq!(far.context.counters().rx_write_requests, 0, "{name}");
        }
    });
}

#[test]
fn a_message_longer_than_its_receive_fails_on_both_sides() {
    within(60, || {
        let (near, far) = rc_pair();
        far.receive(1, 0, 99);
        near.post(1, SendOp::Send, &[near.region.element(0..100)]);
        fail(&near.send_cq, WcStatus::RemoteInvalidRequestError);
        let wc = fail(&far.recv_cq, WcStatus::LocalLengthError);
        assert_eq!((wc.wr_id, wc.cause), (1, Cause::MessageTooLong));
    });
}

#[test]
fn nobody_there_and_nobody_ready() {
    within(60, || {
        let (near, far) = rc_pair();
        let (near_qp, far_qp) = (near.another_qp(QpType::Rc), far.another_qp(QpType::Rc));
        connect_qps(&near_qp, &far_qp, &ConnectOptions::default().rnr_retry(1));
        near_qp.post_send(&SendWr::inline(1, SendOp::Send, b"hello")).unwrap();
        let wc = fail(&near.send_cq, WcStatus::RnrRetryExceededError);
        assert_eq!(wc.cause, Cause::RnrRetries);

        let near_qp = near.another_qp(QpType::Rc);
        let options = ConnectOptions::default().timeout(8).retry_cnt(2);
        near_qp.connect(&far_qp.endpoint().unwrap(), &options).unwrap();
        drop(far_qp);
        near_qp.post_send(&SendWr::inline(2, SendOp::Send, b"hello")).unwrap();
        let wc = fail(&near.send_cq, WcStatus::RetryExceededError);
        assert_eq!((wc.wr_id, wc.cause), (2, Cause::AckTimeout));
        until("all three have arrived", || far.counter("drop_unknown_qpn") >= 3);
    });
}

/// Both ends explain a refused access: one has the NAK, the other one the check that failed.
#[test]
fn both_ends_explain_why_an_access_was_refused() {
    within(60, || {
        let (near, far) = rc_pair();
        assert!(near.qp.why().unwrap().reason.is_none());
        let (addr, rkey) = (far.region.addr(), RKey(far.region.rkey().0 ^ 1));
        near.post(7, SendOp::Write { remote_addr: addr, rkey }, &[near.region.element(0..8)]);
        near.post(8, far.write_op(0), &[near.region.element(0..8)]);
        fail(&near.send_cq, WcStatus::RemoteAccessError);
        let flushed = fail(&near.send_cq, WcStatus::WrFlushError);
        let near_why = near.qp.why().unwrap();
        let reason = near_why.reason.unwrap();
        assert_eq!(reason.request, Some((7, WcStatus::RemoteAccessError)));
        assert!(matches!(reason.rule, Rule::Nak { .. }), "{:?}", reason.rule);
        let text = near_why.to_string();
        let [local, remote] = [&near, &far].map(|side| side.context.address().unwrap());
        assert!(text.contains(&format!("at {local} towards")) && text.contains("NAK 0x62"), "{text}");
        assert!(text.contains("1. ") && text.lines().count() <= 25, "{text}");
        // The last packets in both directions.
        let [first, .., last] = &near_why.packets[..] else { panic!("{text}") };
        assert_eq!(
            (first.is_sent, first.opcode, first.len),
            (true, Opcode::RC_RDMA_WRITE_ONLY, 40),
            "{text}"
        );
        assert_eq!((last.is_sent, last.psn), (false, first.psn), "{text}");
        assert_eq!(last.syndrome, Some(Syndrome::Nak(NakCode::RemoteAccess)), "{text}");
        assert!(text.contains(&format!("before: sent RC_RDMA_WRITE_ONLY PSN {}, 40 bytes", first.psn.get())));
        // A flushed request names the failure that it follows from.
        let error = near.context.result(&flushed).unwrap_err().to_string();
        assert!(error.contains("WR_FLUSH_ERR") && error.contains("failed before: NAK 0x62"), "{error}");

        let far_why = far.context.why(far.qp.number()).unwrap();
        let Rule::RemoteAccess { denial, .. } = far_why.reason.unwrap().rule else { panic!("{far_why}") };
        assert_eq!((denial.error, denial.rkey, denial.va, denial.len), (KeyError::Unknown, rkey, addr, 8));
        let refused = far_why.packets.iter().find(|packet| packet.psn == first.psn).expect("the request");
        assert_eq!(
            (refused.is_sent, refused.opcode, refused.dropped),
            (false, first.opcode, None),
            "{far_why}"
        );
        assert!(far_why.to_string().contains(&format!("at {remote} towards")), "{far_why}");
        assert!(far.context.why(Qpn::new(0)).is_none());
    });
}

/// The causes of a peer that was never heard begin with the network; HOST is the address of the peer.
#[test]
fn a_peer_that_was_never_heard_is_looked_for_in_the_network() {
    within(60, || {
        let (near, far) = rc_pair();
        let (near_qp, far_qp) = (near.another_qp(QpType::Rc), far.another_qp(QpType::Rc));
        let options = ConnectOptions::default().timeout(8).retry_cnt(1);
        near_qp.connect(&far_qp.endpoint().unwrap(), &options).unwrap();
        drop(far_qp);
        near_qp.post_send(&SendWr::inline(2, SendOp::Send, b"hello")).unwrap();
        fail(&near.send_cq, WcStatus::RetryExceededError);
        let why = near_qp.why().unwrap();
        assert_eq!(why.silence, None);
        let [sent] = &why.packets[..] else { panic!("{why}") };
        assert!(sent.is_sent && sent.opcode == Opcode::RC_SEND_ONLY && sent.times >= 2, "{why}");
        assert!(why.likely[0].next.contains("roce doctor HOST"), "{why}");
        let remote = far.context.address().unwrap();
        assert!(why.to_string().contains(&format!("roce doctor {remote}")), "{why}");
    });
}

#[test]
fn objects_of_two_contexts_do_not_mix() {
    within(60, || {
        let (one, other) = (open(), open());
        let pd = one.alloc_pd().unwrap();
        let (cq, foreign) = (one.create_cq(4, None).unwrap(), other.create_cq(4, None).unwrap());
        let error = "the completion queue belongs to another context";
        says(pd.create_qp(&QueuePairOptions::new(QpType::Rc, &foreign)), &[error]);
        let options = QueuePairOptions::new(QpType::Rc, &cq).recv_cq(&foreign);
        says(pd.create_qp(&options), &[error]);
        let channel = other.create_channel().unwrap();
        says(one.create_cq(4, Some(&channel)), &["the completion channel belongs to another context"]);
    });
}

/// A device with a small link MTU, or without an address.
struct Odd {
    inner: MemoryDevice,
    capabilities: Capabilities,
    addresses: Vec<IpAddr>,
}

impl Odd {
    fn new(link_mtu: usize, has_address: bool) -> Self {
        let [a, b] = ["192.0.2.1", "192.0.2.2"].map(|text| text.parse().unwrap());
        let (inner, _) = MemoryDevice::pair(a, b).unwrap();
        let capabilities = Capabilities { link_mtu, ..inner.capabilities().clone() };
        Self { inner, capabilities, addresses: if has_address { vec![a] } else { Vec::new() } }
    }
}

impl Device for Odd {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }
    fn addresses(&self) -> &[IpAddr] {
        &self.addresses
    }
    fn bind_source_port(&mut self, path: &Path, wanted: u16) -> io::Result<u16> {
        self.inner.bind_source_port(path, wanted)
    }
    fn slot(&mut self) -> Option<TxSlot<'_>> {
        self.inner.slot()
    }
    fn commit(&mut self, now: Instant, transmit: &Transmit) {
        self.inner.commit(now, transmit);
    }
    fn flush(&mut self, now: Instant) -> io::Result<()> {
        self.inner.flush(now)
    }
    fn receive(&mut self, now: Instant, sink: &mut dyn FnMut(&Received<'_>)) -> io::Result<usize> {
        self.inner.receive(now, sink)
    }
    fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        self.inner.as_fd()
    }
    fn counters(&self, visit: &mut dyn FnMut(&'static str, u64)) {
        self.inner.counters(visit);
    }
}

#[test]
fn a_path_mtu_that_the_link_does_not_carry() {
    within(60, || {
        let context = Context::builder().attach(Odd::new(1500, true)).unwrap();
        assert_eq!(context.largest_path_mtu(), Some(PathMtu::Mtu1024));
        let side = Side::new(context, QpType::Rc);
        let remote = Endpoint { address: "192.0.2.2".parse().unwrap(), qpn: 17, psn: 0 };
        let options = ConnectOptions::default().path_mtu(PathMtu::Mtu2048);
        let parts =
            ["path MTU 2048 needs a link MTU of 2112", "the device has 1500", "use a smaller path MTU"];
        says(side.qp.connect(&remote, &options), &parts);
    });
}

#[test]
fn an_address_of_the_other_family_or_none() {
    within(60, || {
        let side = Side::new(open(), QpType::Rc);
        let address: IpAddr = "2001:db8::1".parse().unwrap();
        let remote = Endpoint { address, qpn: 17, psn: 0 };
        let parts = ["no IPv6 address to reach 2001:db8::1 from", "open a device that has one"];
        says(side.qp.connect(&remote, &ConnectOptions::default()), &parts);
        let path = PathOptions::default();
        says(side.context.create_address_handle(address, Qpn::new(17), QKEY, &path), &parts);

        let context = Context::builder().attach(Odd::new(1500, false)).unwrap();
        let side = Side::new(context, QpType::Rc);
        let error = side.qp.endpoint().unwrap_err().to_string();
        assert!(error.contains("the device has no address"), "{error}");
        assert!(!error.contains("another context"), "{error}");
    });
}

#[test]
fn limits_are_named() {
    within(60, || {
        let context = Context::builder()
            .tune(|config| {
                (config.max_qp, config.max_cq, config.max_cqe) = (2, 3, 100);
                (config.max_mr, config.max_pd, config.max_srq) = (2, 2, 1);
            })
            .open(&format!("udp:{}", own_address()))
            .unwrap();
        let pd = context.alloc_pd().unwrap();
        let _pd = context.alloc_pd().unwrap();
        says(context.alloc_pd(), &["all 2 protection domains are in use"]);
        says(context.create_cq(101, None), &["cannot have 101 entries", "use 1 to 100"]);
        let cq = context.create_cq(100, None).unwrap();
        let _cqs = [context.create_cq(1, None).unwrap(), context.create_cq(1, None).unwrap()];
        says(context.create_cq(1, None), &["all 3 completion queues are in use"]);
        let options = QueuePairOptions::new(QpType::Rc, &cq);
        let qps = [pd.create_qp(&options).unwrap(), pd.create_qp(&options).unwrap()];
        says(pd.create_qp(&options), &["all 2 queue pairs are in use", "destroy one or raise the limit"]);
        drop(qps);
        pd.create_qp(&options).unwrap();
        let capabilities = QpCapabilities { max_inline: 513, ..QpCapabilities::default() };
        says(pd.create_qp(&options.capabilities(capabilities)), &["max_inline is 513", "512"]);
        let _regions = [1, 2].map(|len| pd.allocate(len, Access::empty()).unwrap());
        says(pd.allocate(1, Access::empty()), &["all 2 memory keys are in use", "raise the limit"]);
        says(pd.alloc_window(WindowType::Type1), &["all 2 memory keys are in use"]);
        let _srq = pd.create_srq(1, 1).unwrap();
        says(pd.create_srq(1, 1), &["all 1 shared receive queues are in use"]);
        says(pd.allocate(0, Access::empty()), &["zero bytes"]);
        says(pd.allocate(1, Access::REMOTE_WRITE), &["need LOCAL_WRITE as well"]);
    });
}

#[test]
fn a_completion_queue_that_overflows_is_named() {
    within(60, || {
        let (near, far) = rc_pair();
        let small = near.context.create_cq(2, None).unwrap();
        let qp = near.pd.create_qp(&QueuePairOptions::new(QpType::Rc, &small)).unwrap();
        let far_qp = far.another_qp(QpType::Rc);
        connect_qps(&qp, &far_qp, &ConnectOptions::default());
        for number in 0..5 {
            qp.post_send(&SendWr::new(number, far.write_op(0), &[near.region.element(0..8)])).unwrap();
        }
        until(
            "an event about it",
            || matches!(near.context.async_event(), Some(AsyncEvent::CqError(cq)) if cq == small.id()),
        );
        // The queue returns its completions first, and then reports the overflow.
        let mut done = [Wc::default(); 8];
        let mut found = 0;
        let error = loop {
            match small.poll(&mut done) {
                Ok(count) => found += count,
                Err(error) => break with_causes(&error).to_string(),
            }
        };
        assert!(found <= 2, "{found}");
        assert!(error.contains("completion queue") && error.contains("overflow"), "{error}");
        until("the failure of its queue pair", || qp.query().unwrap().state == QpState::Err);
        // The other queue pairs still work.
        near.carry_out(1, far.write_op(0), &[near.region.element(0..8)]);
    });
}

#[test]
fn an_address_that_is_taken() {
    within(60, || {
        let address = own_address();
        let first = Context::open(&format!("udp:{address},share=off")).unwrap();
        says(
            Context::open(&format!("udp:{address}")),
            &[&format!("UDP port 4791 of {address} is taken"), "another address", "ss -lunp"],
        );
        drop(first);
        Context::open(&format!("udp:{address}")).unwrap();
    });
}

#[test]
fn work_that_cannot_be_posted() {
    within(60, || {
        let (near, far) = rc_pair();
        let element = near.region.element(0..8);
        let fresh = near.another_qp(QpType::Rc);
        says(
            fresh.post_send(&SendWr::inline(1, SendOp::Send, b"x")),
            &["state RESET", "does not accept this work request", "connect it first"],
        );
        says(fresh.post_recv(&RecvWr { wr_id: 1, elements: &[] }), &["state RESET", "from INIT on"]);
        let post = |op, elements: &[Sge]| near.qp.post_send(&SendWr::new(1, op, elements));
        says(post(far.write_op(0), &[element; 5]), &["5 scatter/gather elements", "accepts 4"]);
        says(near.qp.post_send(&SendWr::inline(1, SendOp::Send, &[0; 129])), &["129 inline", "accepts 128"]);
        says(near.qp.post_send(&SendWr::inline(1, far.read_op(0), &[0; 8])), &["cannot be inline"]);
        let atomic = SendOp::FetchAdd { remote_addr: 0, rkey: RKey(1), add: 1 };
        says(post(atomic, &[near.region.element(0..9)]), &["exactly 8 bytes", "not 9"]);
        let huge = Sge { length: u32::MAX, ..element };
        says(post(far.write_op(0), &[huge]), &["too long", "the maximum is 2147483648 bytes"]);
        let path = PathOptions::default();
        let target = far.context.address().unwrap();
        let handle = near.context.create_address_handle(target, Qpn::new(5), QKEY, &path).unwrap();
        let wr = SendWr::new(1, SendOp::Send, &[]);
        says(near.qp.post_send(&wr.to(&handle)), &["needs a destination, and other work requests must not"]);
        // None of these requests was queued.
        near.carry_out(7, far.write_op(0), &[element]);
    });
}

#[test]
fn a_delay_of_rnr_naks_that_does_not_exist() {
    within(60, || {
        let (near, far) = rc_pair();
        let (one, other) = (near.another_qp(QpType::Rc), far.another_qp(QpType::Rc));
        let remote = other.endpoint().unwrap();
        let names = ["min_rnr_timer cannot be 32", "31"];
        says(one.connect(&remote, &ConnectOptions::default().min_rnr_timer(32)), &names);
        let parameters = ConnectionParameters::default().min_rnr_timer(255);
        let peer = (far.context.address().unwrap(), 7174).into();
        let error = near.context.start_connect(peer, &one, &parameters).unwrap_err();
        let error = with_causes(&error).to_string();
        assert!(error.contains("min_rnr_timer cannot be 255"), "{error}");
        // The refused call has changed nothing.
        assert_eq!(one.query().unwrap().state, QpState::Reset);
        one.connect(&remote, &ConnectOptions::default().min_rnr_timer(31)).unwrap();
    });
}

#[test]
fn the_result_of_a_completion_is_an_error_if_the_request_failed() {
    within(60, || {
        let (near, far) = rc_pair();
        assert_eq!(
            near.carry_out(1, far.write_op(0), &[near.region.element(0..8)]).result().unwrap().wr_id,
            1
        );
        let op = SendOp::Write { remote_addr: far.region.addr(), rkey: RKey(far.region.rkey().0 ^ 1) };
        near.post(2, op, &[near.region.element(0..8)]);
        let wc = fail(&near.send_cq, WcStatus::RemoteAccessError);
        let error = wc.result().unwrap_err();
        assert_eq!(error.wc.wr_id, 2);
        assert!(error.to_string().contains("REM_ACCESS_ERR, NakRemoteAccess"), "{error}");
    });
}

/// Regression: this error named only the own queue pair, so that among many connections the peer was unknown.
#[test]
fn the_error_of_a_connection_names_both_ends() {
    within(60, || {
        let (near, far) = rc_pair();
        let op = SendOp::Write { remote_addr: far.region.addr(), rkey: RKey(far.region.rkey().0 ^ 1) };
        near.post(7, op, &[near.region.element(0..8)]);
        let wc = fail(&near.send_cq, WcStatus::RemoteAccessError);
        let (own, peer) = (near.qp.number().get(), far.qp.number().get());
        let status = "ended with REM_ACCESS_ERR, NakRemoteAccess";
        // Without the context, the addresses are unknown.
        let error = wc.result().unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("work request 7 of queue pair {own} towards queue pair {peer} {status}")
        );
        let error = near.context.result(&wc).unwrap_err();
        let [local, remote] = [&near, &far].map(|side| side.context.address().unwrap());
        let names = format!(
            "work request 7 of queue pair {own} at {local} towards queue pair {peer} at {remote} {status}"
        );
        let named = format!("{names} (NAK 0x62 (remote access error) for PSN ");
        assert!(error.to_string().starts_with(&named), "{error}");
        let text = explain(&error);
        assert!(text.starts_with(&format!("{error}: check the remote address")), "{text}");
        // The addresses of a queue pair are no longer known after its destruction.
        drop(near.qp);
        assert_eq!(near.context.result(&wc).unwrap_err().ends, None);
        assert_eq!(near.context.result(&Wc { status: WcStatus::Success, ..wc }).unwrap().wr_id, 7);
    });
}
