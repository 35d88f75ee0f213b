//! Calls every public function with 0, 1 and the largest values. Each call returns an error, waits forever,
//! or does what was requested; none of them panics.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use roce::observe::with_causes;
use roce::tcp::{Tcp, TcpListening};
use roce::verbs::*;

use crate::common::within;
use crate::world::*;

const EVER: Duration = Duration::MAX;

/// Runs `work` on another thread, after a short delay.
fn later(work: impl FnOnce() + Send + 'static) -> std::thread::JoinHandle<()> {
    std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(60));
        work();
    })
}

#[test]
fn the_longest_time_is_for_ever() {
    within(60, || {
        // One context spins forever, and one never spins.
        let builders = (Context::builder().spin(EVER), Context::builder().spin(Duration::ZERO));
        let (near, far) = Wire::UdpV4.open_with(builders.0, builders.1).unwrap();
        let (near, far) = connect((near, far), QpType::Rc, &ConnectOptions::default());
        far.receive(1, 0, 100);
        let post = |qp: &QueuePair| qp.post_send(&SendWr::inline(1, SendOp::Send, b"hello")).unwrap();
        let qp = near.qp.clone();
        let posting = later(move || post(&qp));
        let mut done = [Wc::default()];
        assert_eq!(far.recv_cq.wait(&mut done, Some(EVER)).unwrap(), 1);
        posting.join().unwrap();
        assert_eq!(near.send_cq.wait(&mut done, Some(EVER)).unwrap(), 1);
        // Waiting through a channel.
        let channel = far.context.create_channel().unwrap();
        let cq = far.context.create_cq(8, Some(&channel)).unwrap();
        let qp = far.pd.create_qp(&QueuePairOptions::new(QpType::Rc, &cq)).unwrap();
        let other = near.another_qp(QpType::Rc);
        connect_qps(&other, &qp, &ConnectOptions::default());
        qp.post_recv(&RecvWr { wr_id: 1, elements: &[far.region.element(0..100)] }).unwrap();
        cq.request_notification(Notify::Next).unwrap();
        let posting = later(move || post(&other));
        assert_eq!(channel.wait(Some(EVER)).unwrap(), cq.id());
        posting.join().unwrap();
        // Connection management.
        let listener = far.context.listen(PortSpace::Tcp, 7174).unwrap();
        let (one, two) = (near.another_qp(QpType::Rc), far.another_qp(QpType::Rc));
        let (context, to) = (near.context.clone(), (far.context.address().unwrap(), 7174).into());
        let asking = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(60));
            context.start_connect(to, &one, &ConnectionParameters::default()).unwrap()
        });
        let request = listener.accept(Some(EVER)).unwrap();
        let mut passive = request.accept(&two, &ConnectionParameters::default()).unwrap();
        let mut active = asking.join().unwrap();
        active.established(Some(EVER)).unwrap();
        passive.established(Some(EVER)).unwrap();
        active.disconnect().unwrap();
        assert_eq!(passive.next_event(Some(EVER)).unwrap(), ConnectionEvent::Disconnected);
        // The shortest time is zero. The queue of the SENDs above is not used, because an acknowledgement may
        // have arrived before its queue pair was dropped.
        let idle = near.context.create_cq(1, None).unwrap();
        assert!(matches!(idle.wait(&mut done, Some(Duration::ZERO)), Err(WaitError::TimedOut)));
        assert!(matches!(idle.wait(&mut [], Some(Duration::ZERO)), Err(WaitError::TimedOut)));
        assert!(matches!(channel.wait(Some(Duration::ZERO)), Err(WaitError::TimedOut)));
        assert!(matches!(listener.accept(Some(Duration::ZERO)), Err(ConnectionError::TimedOut)));
        assert!(matches!(listener.accept_datagrams(Some(Duration::ZERO)), Err(ConnectionError::TimedOut)));
        // An existing peer might answer even within that time.
        let nobody = (roce_testing::own_address(), 7174).into();
        assert!(matches!(
            near.context.resolve(nobody, &ConnectionParameters::default(), Some(Duration::ZERO)),
            Err(ConnectionError::TimedOut)
        ));
    });
}

#[test]
fn times_of_tcp() {
    within(60, || {
        let (near, far) = Wire::UdpV4.open().unwrap();
        let listening = TcpListening::bind(&far, 0).unwrap();
        let to = listening.local_addr();
        let mut tcp = Tcp::connect_within(&near, to, EVER).unwrap();
        assert!(Tcp::connect_within(&near, to, Duration::ZERO).is_err());
        let mut other = listening.accept().unwrap();
        for timeout in [Some(EVER), Some(Duration::from_nanos(1)), None] {
            tcp.set_read_timeout(timeout).unwrap();
            tcp.set_write_timeout(timeout).unwrap();
        }
        assert!(tcp.set_read_timeout(Some(Duration::ZERO)).is_err());
        assert!(tcp.set_write_timeout(Some(Duration::ZERO)).is_err());
        other.write_all(b"x").unwrap();
        tcp.read_exact(&mut [0]).unwrap();
        assert_eq!(tcp.read(&mut []).unwrap(), 0);
    });
}

#[test]
fn memory_of_every_size() {
    let (context, _far) = Wire::Memory.open().unwrap();
    let pd = context.alloc_pd().unwrap();
    for len in [usize::MAX, usize::MAX - 7, isize::MAX as usize, 1 << 62, 1 << 46] {
        let error = pd.allocate(len, Access::LOCAL_WRITE).unwrap_err();
        assert!(matches!(error, VerbsError::Register(RegisterError::OutOfMemory { .. })), "{len}: {error}");
        let text = with_causes(&error).to_string();
        assert!(text.contains(&len.to_string()), "{text}");
        assert!(SharedMemory::try_new(len).is_err());
    }
    assert!(pd.allocate(0, Access::LOCAL_WRITE).is_err());
    let one = pd.allocate(1, Access::LOCAL_WRITE | Access::REMOTE_READ).unwrap();
    let mut byte = [0];
    one.read(0, &mut byte).unwrap();
    one.write(0, &byte).unwrap();
    for offset in [1, usize::MAX, usize::MAX - 1, 1 << 46] {
        assert!(one.read(offset, &mut byte).is_err() && one.write(offset, &byte).is_err());
        assert_eq!(one.element(0..offset).lkey, one.lkey());
        assert!(offset == 1 || one.remote(0..offset).is_err());
    }
    one.read(1, &mut []).unwrap();
    #[allow(clippy::reversed_empty_ranges, reason = "a caller may write it")]
    let reversed = 1..0;
    assert!(one.remote(reversed.clone()).is_err());
    assert_eq!(one.element(reversed).length, 0);
    let far_away = RemoteMemory { addr: u64::MAX, len: u64::MAX, rkey: u32::MAX };
    assert!(far_away.slice(1..2).is_err() && far_away.slice(0..u64::MAX).is_ok());
    assert_eq!(RemoteMemory::from_bytes(&far_away.to_bytes()), far_away);
    let binding =
        WindowBinding { region: one.lkey(), addr: u64::MAX, len: usize::MAX, access: Access::all() };
    let window = pd.alloc_window(WindowType::Type1).unwrap();
    assert!(window.bind(&binding).is_err());
    assert!(window.note_bound(RKey::from(u32::MAX)).is_err());
}

#[test]
fn objects_of_every_size() {
    let (context, _far) = Wire::Memory.open().unwrap();
    let pd = context.alloc_pd().unwrap();
    for capacity in [0, usize::MAX, 1 << 46] {
        assert!(context.create_cq(capacity, None).is_err(), "{capacity}");
    }
    let cq = context.create_cq(1, None).unwrap();
    for capacity in [0, usize::MAX, 1 << 46] {
        assert!(cq.resize(capacity).is_err(), "{capacity}");
    }
    assert_eq!(cq.poll(&mut []).unwrap(), 0);
    for (max_wr, max_sge) in [(usize::MAX, 1), (1, usize::MAX), (usize::MAX, usize::MAX), (1 << 46, 1 << 46)]
    {
        assert!(pd.create_srq(max_wr, max_sge).is_err(), "{max_wr} {max_sge}");
    }
    let srq = pd.create_srq(1, 1).unwrap();
    assert!(srq.arm_limit(usize::MAX).is_err());
    assert!(srq.arm_limit(0).is_ok());
    let most = usize::MAX;
    let all =
        QpCapabilities { max_send_wr: 0, max_recv_wr: 0, max_send_sge: 0, max_recv_sge: 0, max_inline: 0 };
    for capabilities in [
        QpCapabilities { max_send_wr: most, ..all },
        QpCapabilities { max_recv_wr: most, ..all },
        QpCapabilities { max_send_sge: most, ..all },
        QpCapabilities { max_recv_sge: most, ..all },
        QpCapabilities { max_inline: most, ..all },
    ] {
        for qp_type in [QpType::Rc, QpType::Uc, QpType::Ud] {
            let options = QueuePairOptions::new(qp_type, &cq).capabilities(capabilities);
            assert!(pd.create_qp(&options).is_err(), "{capabilities:?}");
        }
    }
    // A queue pair without capacities may exist, but accepts no work requests.
    if let Ok(qp) = pd.create_qp(&QueuePairOptions::new(QpType::Rc, &cq).capabilities(all)) {
        qp.initialize().unwrap();
        assert!(qp.post_recv(&RecvWr { wr_id: u64::MAX, elements: &[] }).is_err());
    }
}

#[test]
fn queue_pairs_with_extreme_options() {
    let (near, far) = Wire::Memory.open().unwrap();
    let (near, far) = (Side::new(near, QpType::Rc), Side::new(far, QpType::Rc));
    let address = far.context.address().unwrap();
    let default = ConnectOptions::default();
    let path = PathOptions::default;
    let options = [
        default.timeout(255),
        default.retry_cnt(255),
        default.rnr_retry(255),
        default.min_rnr_timer(255),
        default.max_rd_atomic(255),
        default.max_dest_rd_atomic(255),
        default.path(path().sgid_index(usize::MAX)),
    ];
    for options in options {
        let remote = Endpoint { address, qpn: u32::MAX, psn: u32::MAX };
        assert!(near.qp.connect(&remote, &options).is_err(), "{options:?}");
        assert_eq!(near.qp.query().unwrap().state, QpState::Reset, "{options:?}");
    }
    let path = path().traffic_class(255).hop_limit(0).flow_label(u32::MAX).source_port(0).sgid_index(0);
    for number in [0, 1, u32::MAX] {
        let qp = near.another_qp(QpType::Rc);
        let options = default.path(path).access(Access::all()).timeout(0).retry_cnt(0).max_rd_atomic(0);
        qp.connect(&Endpoint { address, qpn: number, psn: number }, &options).unwrap();
        let op = SendOp::Write { remote_addr: u64::MAX, rkey: RKey(u32::MAX) };
        qp.post_send(&SendWr::inline(u64::MAX, op, b"x")).unwrap();
        qp.post_send_list(&[]).unwrap();
        let huge = Sge { addr: u64::MAX, length: u32::MAX, lkey: LKey(u32::MAX) };
        assert!(qp.post_send(&SendWr::new(1, op, &[huge; 4])).is_err());
        assert!(qp.post_send(&SendWr::new(1, op, &[huge; 1000])).is_err());
        qp.post_recv(&RecvWr { wr_id: 0, elements: &[huge; 4] }).unwrap();
        near.context.create_address_handle(address, Qpn::new(number), number, &path).unwrap();
    }
    for group in ["0.0.0.0", "255.255.255.255", "ff02::1", "::"] {
        let group: IpAddr = group.parse().unwrap();
        assert!(near.qp.attach_multicast(group).is_err());
        let _ = near.qp.detach_multicast(group);
    }
}

#[test]
fn connection_management_with_extreme_parameters() {
    within(60, || {
        let (near, far) = Wire::Memory.open().unwrap();
        let (near, far) = (Side::new(near, QpType::Rc), Side::new(far, QpType::Rc));
        let listener = far.context.listen(PortSpace::Tcp, u16::MAX).unwrap();
        let to = SocketAddr::new(far.context.address().unwrap(), u16::MAX);
        let parameters = ConnectionParameters::default;
        for refused in [
            parameters().private_data(vec![0; 57]),
            parameters().private_data(vec![0; 1 << 20]),
            parameters().min_rnr_timer(255),
            parameters().path(PathOptions::default().sgid_index(usize::MAX)),
        ] {
            assert!(near.context.start_connect(to, &near.qp, &refused).is_err());
            assert!(near.context.resolve(to, &parameters().private_data(vec![0; 181]), Some(EVER)).is_err());
            assert_eq!(near.qp.query().unwrap().state, QpState::Reset);
        }
        let timing = CmTiming {
            response_timeout: CmTimeout::new(255),
            packet_lifetime: CmTimeout::new(255),
            max_retries: 255,
        };
        let asked = parameters()
            .responder_resources(255)
            .initiator_depth(255)
            .retry_count(255)
            .rnr_retry_count(255)
            .timing(timing)
            .access(Access::all());
        let mut active = near.context.start_connect(to, &near.qp, &asked).unwrap();
        let request = listener.accept(Some(PATIENCE)).unwrap();
        // More READs than a queue pair can have outstanding are refused, without any change.
        let error = request.accept(&far.qp, &asked).unwrap_err();
        let text = with_causes(&error).to_string();
        assert!(text.contains("255"), "{text}");
        assert_eq!(far.qp.query().unwrap().state, QpState::Reset);
        assert!(matches!(active.next_event(Some(PATIENCE)).unwrap(), ConnectionEvent::Rejected { .. }));
        for port in [0, 1] {
            let nobody = SocketAddr::new(to.ip(), port);
            let mut asking =
                near.context.start_connect(nobody, &near.another_qp(QpType::Rc), &parameters()).unwrap();
            let event = asking.next_event(Some(PATIENCE)).unwrap();
            assert!(matches!(event, ConnectionEvent::Rejected { .. }), "{event:?}");
        }
    });
}

/// Settings beyond every limit are refused where they are used, before memory is allocated.
#[test]
fn contexts_with_extreme_settings() {
    let open = |builder: ContextBuilder| builder.open("udp:127.0.0.1,port=0").unwrap();
    for window in [0, 1, u32::MAX] {
        open(Context::builder().window(window).seed(u64::MAX).process_slot(ProcessSlot::MAX));
    }
    let context = open(Context::builder().background(false).tune(|config| {
        config.max_cqe = usize::MAX;
        config.max_events = usize::MAX;
        config.max_qp = usize::MAX;
        config.max_mr = usize::MAX;
        config.max_read_packets = u32::MAX;
        config.quantum = 0;
    }));
    let nothing = open(Context::builder().tune(|config| {
        (config.max_cq, config.max_pd, config.max_events) = (0, 0, 0);
    }));
    assert!(nothing.alloc_pd().is_err() && nothing.create_cq(1, None).is_err());
    assert!(context.create_cq(usize::MAX, None).is_err());
    assert!(context.create_cq(1 << 46, None).is_err());
    assert!(context.gid_address(Some(usize::MAX)).is_none());
    for spec in ["", "udp", "udp:", "udp:127.0.0.1,port=65536", "udp:127.0.0.1,port=-1", &"x".repeat(1 << 16)]
    {
        assert!(Context::open(spec).is_err(), "{}", &spec[..spec.len().min(40)]);
    }
}
