//! Two peers of one server, one of them hostile: tests how long one call holds the context, and what the
//! honest peer receives.

use roce::verbs::*;

use crate::common::within;
use crate::devices::Recorder;
use crate::peers::BarePeer;
use crate::world::*;

/// Maximum that one call may send; see `src/driver/budget.rs`.
const PACKETS_OF_A_CALL: usize = 1024;
const BYTES_OF_A_CALL: usize = (1 << 20) + 4_200;
const LONG: u32 = 128 << 20;

/// ```text
///   hostile    server    honest
///     16 × READ of 128 MiB ──▶
///                    ◀── READ of 1 KiB
///          at most 1024 packets in one call, and the answer of the honest one among the first
/// ```
#[test]
fn one_call_sends_a_bounded_number_of_packets_and_the_honest_peer_has_its_turn() {
    within(60, || {
        let (device, peer, sent) = Recorder::pair();
        let server = Context::builder().background(false).attach(device).unwrap();
        // Requests the whole READ at once, as a kernel does.
        let client = Context::builder().background(false).tune(|config| config.max_read_packets = 0);
        let client = client.attach(peer).unwrap();
        let (server, client) = (Side::new(server, QpType::Rc), Side::new(client, QpType::Rc));
        let long = server.pd.allocate(LONG as usize, Access::LOCAL_WRITE | Access::REMOTE).unwrap();
        let options = ConnectOptions::default().timeout(20);
        connect_qps(&client.qp, &server.qp, &options);
        let (honest, served) = (client.another_qp(QpType::Rc), server.another_qp(QpType::Rc));
        connect_qps(&honest, &served, &options);
        let hostile_target = client.pd.allocate(LONG as usize, Access::LOCAL_WRITE).unwrap();
        let op = SendOp::Read { remote_addr: long.addr(), rkey: long.rkey() };
        for wr_id in 0..16 {
            client.post(wr_id, op, &[hostile_target.element(0..LONG as usize)]);
        }
        honest.post_send(&SendWr::new(99, server.read_op(0), &[client.region.element(0..1024)])).unwrap();
        let mut done = [Wc::default(); 4];
        let mut calls = 0;
        let completed = loop {
            let before = sent.lock().unwrap().len();
            server.context.progress();
            calls += 1;
            let sent = sent.lock().unwrap();
            let (packets, bytes) =
                (sent.len() - before, sent[before..].iter().map(|(_, bytes)| bytes.len()).sum::<usize>());
            assert!(
                packets <= PACKETS_OF_A_CALL && bytes <= BYTES_OF_A_CALL,
                "{packets} packets, {bytes} bytes"
            );
            drop(sent);
            let count = client.send_cq.poll(&mut done).unwrap();
            if count > 0 {
                break done[0];
            }
            assert!(calls < 4, "the honest peer waits for its turn");
        };
        assert_eq!((completed.wr_id, completed.status), (99, WcStatus::Success));
        // The remaining packets are sent without any input.
        let before = sent.lock().unwrap().len();
        server.context.progress();
        assert!(sent.lock().unwrap().len() > before);
        assert!(server.counter("tx_budget_spent") > 0);
    });
}

/// Creates the datagram with this number, for a queue pair of the server.
type Make = fn(&BarePeer, &Side, u32) -> Vec<u8>;

/// Returns the kinds of hostile datagrams.
fn floods() -> Vec<(&'static str, Make)> {
    vec![
        ("garbage", |_, _, number| (0..200).map(|at| (number.wrapping_mul(31) ^ at) as u8).collect()),
        ("READ requests", |peer, server, number| {
            peer.read_request(server.qp.number(), number % 16 * (LONG >> 10), &server.region, MEMORY as u32)
        }),
        ("WRITEs", |peer, server, number| peer.write(server.qp.number(), number, &server.region, &[7; 1024])),
        ("SENDs without receives", |peer, server, number| {
            peer.message(server.qp.number(), number % 2, &[7; 64])
        }),
        ("NAKs", |peer, server, number| peer.nak(server.qp.number(), number)),
        ("CNPs", |peer, server, _| peer.cnp(server.qp.number())),
        ("CNPs for nobody", |peer, _, number| peer.cnp(Qpn::new(number))),
        ("messages of connection management", |peer, _, number| {
            peer.management(&peer.req(7174, number, CmTiming::default()))
        }),
    ]
}

/// Returns a client and a server that make progress only when the test calls them, so that the speed of the
/// machine does not matter.
fn alone() -> (Side, Side) {
    let builder = || Context::builder().background(false);
    let contexts = Wire::UdpV4.open_with(builder(), builder()).unwrap();
    connect(contexts, QpType::Rc, &ConnectOptions::default())
}

/// Completes WRITEs of 1 KiB from the client, one after the other, and calls `beside` before each call of the
/// server. Asserts that each call sends a limited amount. Returns the number of calls.
fn honest_work(client: &Side, server: &Side, writes: u64, mut beside: impl FnMut()) -> u64 {
    let sent = || (server.counter("rdma_tx_packets"), server.counter("rdma_tx_bytes"));
    let mut done = [Wc::default()];
    let mut calls = 0;
    for wr_id in 0..writes {
        client.post(wr_id, server.write_op(4096), &[client.region.element(0..1024)]);
        let begin = calls;
        while client.send_cq.poll(&mut done).unwrap() == 0 {
            beside();
            let before = sent();
            server.context.progress();
            calls += 1;
            let (packets, bytes) = (sent().0 - before.0, sent().1 - before.1);
            assert!(
                packets <= PACKETS_OF_A_CALL as u64 && bytes <= BYTES_OF_A_CALL as u64,
                "one call sent {packets} packets, {bytes} bytes"
            );
            assert!(calls - begin < MOST_CALLS, "a WRITE is not done after {MOST_CALLS} calls");
        }
        assert_eq!((done[0].wr_id, done[0].status), (wr_id, WcStatus::Success));
    }
    calls
}

/// Maximum number of calls of the server for one WRITE.
const MOST_CALLS: u64 = 64;

#[test]
fn an_honest_peer_goes_on_under_every_flood_and_no_call_holds_the_context() {
    const WRITES: u64 = 200;
    within(120, || {
        let (client, server) = alone();
        let _listener = server.context.listen(PortSpace::Tcp, 7174).unwrap();
        for (name, make) in floods() {
            // A separate queue pair for the hostile peer, because a NAK or SEND may put it into the error
            // state.
            let victim = Side::new(server.context.clone(), QpType::Rc);
            let peer = BarePeer::new(server.context.address().unwrap());
            let remote = Endpoint { address: peer.address, qpn: 0x77, psn: 0 };
            victim.qp.connect(&remote, &ConnectOptions::default()).unwrap();
            let datagrams: Vec<Vec<u8>> = (0..512).map(|number| make(&peer, &victim, number)).collect();
            let mut count = 0;
            let calls = honest_work(&client, &server, WRITES, || {
                if count < 200_000 {
                    for datagram in datagrams.iter().skip(count % 512).take(32) {
                        peer.send(datagram);
                    }
                    count += 32;
                }
            });
            println!("{name}: {count} datagrams; {calls} calls for {WRITES} WRITEs");
            assert!(count >= WRITES as usize, "{name}: the flood is not under way");
            assert!(calls <= 8 * WRITES, "{name}: {calls} calls for {WRITES} WRITEs");
        }
    });
}

/// Sixteen READs of 128 MiB from a peer that acknowledges nothing compete with another client of the same
/// server.
#[test]
fn long_reads_of_one_peer_leave_the_other_its_share() {
    const WRITES: u64 = 100;
    within(120, || {
        let (client, server) = alone();
        let long = server.pd.allocate(LONG as usize, Access::LOCAL_WRITE | Access::REMOTE).unwrap();
        let peer = BarePeer::new(server.context.address().unwrap());
        let victim = server.another_qp(QpType::Rc);
        victim
            .connect(&Endpoint { address: peer.address, qpn: 0x77, psn: 0 }, &ConnectOptions::default())
            .unwrap();
        for number in 0..16 {
            peer.send(&peer.read_request(victim.number(), number * (LONG >> 10), &long, LONG));
        }
        let calls = honest_work(&client, &server, WRITES, || {});
        println!("{calls} calls for {WRITES} WRITEs");
        assert!(server.counter("tx_budget_spent") >= WRITES / 2, "the READs are under way");
        assert!(calls <= 8 * WRITES, "{calls} calls for {WRITES} WRITEs");
        victim.modify(&QpAttr::to_state(QpState::Err)).unwrap();
    });
}

/// Events that peers cause are kept up to the configured limit, and counted beyond it.
#[test]
fn events_that_nobody_fetches_are_bounded_and_counted() {
    let context =
        Context::builder().tune(|config| config.max_events = 16).open("udp:127.0.0.1,port=0").unwrap();
    let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(16, None).unwrap());
    let srq = pd.create_srq(4, 1).unwrap();
    let options = QueuePairOptions::new(QpType::Rc, &cq).srq(&srq);
    for _ in 0..50 {
        let qp = pd.create_qp(&options).unwrap();
        qp.initialize().unwrap();
        // Raises LAST_WQE_REACHED.
        qp.modify(&QpAttr::to_state(QpState::Err)).unwrap();
    }
    let fetched = std::iter::from_fn(|| context.async_event()).count();
    assert_eq!(fetched, 16);
    assert_eq!(counter(&context, "async_events_lost"), 34);
}

/// Creates 200 address handles one after the other, each of which gets its own source port.
#[test]
fn a_dropped_address_handle_gives_its_source_port_back() {
    let (near, far) = Wire::UdpV4.open().unwrap();
    let target = far.address().unwrap();
    let handle = |port| {
        let options = PathOptions::default().source_port(port);
        near.create_address_handle(target, Qpn::new(17), QKEY, &options).unwrap()
    };
    for port in 50_000..50_200 {
        assert_eq!(handle(port).path.source_port, port);
    }
    let held: Vec<AddressHandle> = (51_000..51_020).map(handle).collect();
    assert!(held.iter().zip(51_000..).all(|(handle, port)| handle.path.source_port == port));
}
