//! The exchange of the servers with hostile, slow and vanished clients, and where all servers send packets.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use roce::observe::with_causes;
use roce::tcp::Tcp;
use roce::verbs::{ConnectionParameters, Context, PathMtu, PortSpace, QpType, QueuePairOptions};
use roce_device::{Capabilities, Device, OpenOptions, Received, Transmit, TxSlot, forward_to_inner};
use roce_doctor::Doctor;
use roce_exchange::{ClientQueue, Exchange, Listening, MOST_WAITING, PeerAddresses, ToolError};
use roce_measure::measure::{self, ServerOptions};
use roce_measure::pingpong::Kind;
use roce_measure::rping::{RPING_PORT, RpingPlan, serve_all};
use roce_measure::{Role, limit, perf, pingpong, rping};
use roce_packet::Gid;
use roce_packet::mad::CmTimeout;
use roce_testing::{on_idle, own_address, within};
use roce_transport::cm::CmTiming;
use serde_json::{Value, json};
use socket2::{Domain, Socket, Type};

const MEASURE: &str = "ping` or `roce blast";

/// Number of bytes that a device has sent to each address.
type Record = Arc<Mutex<BTreeMap<IpAddr, usize>>>;

/// A device that records the destinations of the datagrams of an inner device.
struct Recorder {
    inner: Box<dyn Device>,
    record: Record,
}

impl Device for Recorder {
    fn capabilities(&self) -> &Capabilities {
        self.inner.capabilities()
    }

    forward_to_inner!();

    fn slot(&mut self) -> Option<TxSlot<'_>> {
        self.inner.slot()
    }

    fn commit(&mut self, now: roce_device::Instant, transmit: &Transmit) {
        *self.record.lock().unwrap().entry(transmit.path.destination).or_default() += transmit.len;
        self.inner.commit(now, transmit);
    }

    fn flush(&mut self, now: roce_device::Instant) -> io::Result<()> {
        self.inner.flush(now)
    }

    fn receive(
        &mut self,
        now: roce_device::Instant,
        sink: &mut dyn FnMut(&Received<'_>),
    ) -> io::Result<usize> {
        self.inner.receive(now, sink)
    }

    fn deadline(&self) -> Option<roce_device::Instant> {
        self.inner.deadline()
    }

    fn counters(&self, visit: &mut dyn FnMut(&'static str, u64)) {
        self.inner.counters(visit);
    }
}

fn recorder(address: Ipv4Addr) -> (Box<dyn Device>, Record) {
    let record = Record::default();
    let inner = roce_device::open(&format!("udp:{address}"), OpenOptions::default()).unwrap();
    (Box::new(Recorder { inner, record: Arc::clone(&record) }), record)
}

/// The servers that exchange over TCP.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Server {
    Measure,
    Doctor,
    Limit,
    Pingpong(Kind),
    Perf,
}

const ALL: [Server; 8] = [
    Server::Measure,
    Server::Doctor,
    Server::Limit,
    Server::Pingpong(Kind::Rc),
    Server::Pingpong(Kind::Uc),
    Server::Pingpong(Kind::Ud),
    Server::Pingpong(Kind::Srq),
    Server::Perf,
];

/// Serves one client on an address of its own; also returns the record of destinations.
fn start(server: Server) -> (SocketAddr, JoinHandle<Result<(), ToolError>>, Record) {
    let address = own_address();
    let listener = TcpListener::bind((address, 0)).unwrap();
    let at = listener.local_addr().unwrap();
    let (device, record) = recorder(address);
    let serving = std::thread::spawn(move || serve(server, device, &listener));
    (at, serving, record)
}

fn serve(server: Server, mut device: Box<dyn Device>, listener: &TcpListener) -> Result<(), ToolError> {
    match server {
        Server::Measure => {
            let context = Context::builder().attach_box(device).unwrap();
            measure::serve(&context, Exchange::accept_from(listener)?, &ServerOptions::default()).map(drop)
        }
        Server::Doctor => {
            let doctor = Doctor::new(Context::builder(), device, None).unwrap();
            doctor.serve(Exchange::accept_from(listener)?).map(drop)
        }
        Server::Limit => limit::serve(device.as_mut(), Exchange::accept_from(listener)?).map(drop),
        Server::Pingpong(kind) => {
            let context = Context::builder().attach_box(device).unwrap();
            let (stream, caller) = listener.accept().unwrap();
            let mut stream = Tcp::try_from(stream).unwrap();
            let mut session = pingpong::Session::new(&context, &pingpong_plan(kind), Role::Server)?;
            session.connect(&mut stream, Some(&PeerAddresses::of_caller(caller.ip())), &mut |_| Ok(()))
        }
        Server::Perf => {
            let context = Context::builder().attach_box(device).unwrap();
            let (stream, caller) = listener.accept().unwrap();
            let method = perf::ConnectMethod::Keys(Some(PeerAddresses::of_caller(caller.ip())));
            let stream = Tcp::try_from(stream).unwrap();
            perf::Session::open(&context, &perf_plan(), stream, Role::Server, &method).map(drop)
        }
    }
}

/// Regression: `margin` was doubled before it was checked.
#[test]
fn no_number_of_a_plan_ends_the_program_by_a_panic() {
    type Change = (&'static str, fn(&mut perf::Plan, u64));
    let number = |value: u64| usize::try_from(value).unwrap();
    let changes: [Change; 16] = [
        ("size", |plan, value| plan.size = perf::Size::Given(value as usize)),
        ("default size", |plan, value| plan.size = perf::Size::Default(value as usize)),
        ("iterations", |plan, value| plan.length = perf::Length::Iterations(value)),
        ("seconds", |plan, value| plan.length = perf::Length::Seconds { all: value, margin: 1 }),
        ("margin", |plan, value| plan.length = perf::Length::Seconds { all: 10, margin: value }),
        ("both", |plan, value| plan.length = perf::Length::Seconds { all: value, margin: value }),
        ("interval", |plan, value| plan.length = perf::Length::Endless { interval: value }),
        ("num_qp", |plan, value| plan.num_qp = value as usize),
        ("tx_depth", |plan, value| plan.tx_depth = value as usize),
        ("rx_depth", |plan, value| plan.rx_depth = value as usize),
        ("cq_mod", |plan, value| plan.cq_mod = value as usize),
        ("post_list", |plan, value| plan.post_list = Some(value as usize)),
        ("in_flight", |plan, value| plan.in_flight = Some(value as usize)),
        ("out_reads", |plan, value| plan.out_reads = value as u8),
        ("inline", |plan, value| plan.inline = value as usize),
        ("patience", |plan, value| plan.patience = Duration::from_secs(value)),
    ];
    for value in [0, 1, u64::from(u32::MAX), u64::MAX] {
        for (_, change) in changes {
            let mut plan = perf_plan();
            change(&mut plan, value);
            // Other tests check which plans are refused.
            let _ = plan.check();
        }
        let context = Context::open(&format!("udp:{}", own_address())).unwrap();
        for kind in [Kind::Rc, Kind::Uc, Kind::Ud, Kind::Srq] {
            let plan = pingpong_plan(kind);
            let changed = [
                pingpong::Plan { size: number(value), ..plan.clone() },
                pingpong::Plan { iterations: value, ..plan.clone() },
                pingpong::Plan { rx_depth: number(value), ..plan.clone() },
                // The largest memory that the numbers allow.
                pingpong::Plan { rx_depth: 16_384, size: number(value).min(1 << 30), ..plan.clone() },
                pingpong::Plan { num_qp: number(value), ..plan.clone() },
                pingpong::Plan { gid_index: Some(number(value)), ..plan.clone() },
                pingpong::Plan { timeout: value as u8, ..plan.clone() },
                pingpong::Plan { patience: Duration::from_secs(value), ..plan },
            ];
            changed.iter().for_each(|plan| drop(pingpong::Session::new(&context, plan, Role::Server)));
        }
    }
}

fn pingpong_plan(kind: Kind) -> pingpong::Plan {
    pingpong::Plan {
        kind,
        size: 64,
        iterations: 10,
        mtu: PathMtu::Mtu1024,
        rx_depth: 16,
        num_qp: 1,
        gid_index: None,
        events: false,
        timeout: 14,
        patience: Duration::from_secs(3),
    }
}

fn perf_plan() -> perf::Plan {
    perf::Plan {
        verb: perf::Verb::Send,
        test: perf::Test::Bandwidth,
        connection: perf::Connection::Rc,
        size: perf::Size::Given(4096),
        length: perf::Length::Iterations(100),
        bidirectional: true,
        num_qp: 1,
        tx_depth: 16,
        rx_depth: 16,
        cq_mod: 1,
        post_list: None,
        in_flight: None,
        events: false,
        out_reads: 1,
        inline: 0,
        atomic: perf::AtomicOp::FetchAdd,
        mtu: None,
        gid_index: None,
        rdma_cm: false,
        comm_rdma_cm: false,
        reversed: false,
        traffic_class: 0,
        retry_count: 7,
        timeout: 14,
        gigabits: false,
        peak: true,
        patience: Duration::from_secs(3),
    }
}

/// A client that can send anything.
struct Hostile {
    stream: TcpStream,
    lines: BufReader<TcpStream>,
}

impl Hostile {
    #[track_caller]
    fn call(from: Ipv4Addr, server: SocketAddr) -> Self {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.bind(&SocketAddr::new(from.into(), 0).into()).unwrap();
        socket.connect(&server.into()).unwrap();
        let stream = TcpStream::from(socket);
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let lines = BufReader::new(stream.try_clone().unwrap());
        Self { stream, lines }
    }

    /// Sends a line; a server that has ended does not receive it.
    fn say(&mut self, line: &Value) {
        let _ = writeln!(self.stream, "{line}");
    }

    fn greet(&mut self, tool: &str) {
        self.say(&json!({"roce": tool, "protocol": 2, "version": env!("CARGO_PKG_VERSION")}));
    }

    #[track_caller]
    fn hear(&mut self) -> Value {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line:?}"))
    }

    /// Reads lines until one reports a failure of the server; returns its text.
    #[track_caller]
    fn hear_failure(&mut self) -> String {
        loop {
            let line = self.hear();
            if let Some(reason) = line.get("roce_failed") {
                return reason.as_str().unwrap().to_owned();
            }
        }
    }

    /// Sends everything before the first message of a measurement; the memory of this side is at `addr`.
    #[track_caller]
    fn begin(&mut self, from: Ipv4Addr, plan: &Value, addr: u64) {
        self.greet(MEASURE);
        self.say(plan);
        self.say(&introduction(from, addr));
        self.hear();
        assert_eq!(self.hear(), Value::Null);
        self.hear();
        self.say(&json!(0));
        assert_eq!(self.hear(), json!(0));
    }
}

fn introduction(address: Ipv4Addr, addr: u64) -> Value {
    json!({"endpoint": {"address": address, "qpn": 0x11, "psn": 7}, "addr": addr, "rkey": 9})
}

fn plan(tool: &str, op: &str) -> Value {
    json!({
        "tool": tool, "op": op, "sizes": [65_536], "iterations": 100_000, "buffers": 16, "inline": false,
        "completion": "poll", "post": "list", "signal": "full", "path_mtu": 1024, "timeout": 14,
    })
}

fn doctor_lines(address: Ipv4Addr) -> Vec<Value> {
    vec![
        json!({
            "doctor": 2, "kind": "udp", "address": address, "link_mtu": 1500, "largest_path_mtu": 1024,
            "sees_ip_header": false, "qpn": 0x11, "qkey": 0x1d0c_7012, "interface": null, "links": [],
        }),
        json!({"Burst": {"number": 1, "count": 8192, "bytes": 64, "classes": [0], "flow_label": 0}}),
    ]
}

fn limit_lines(address: Ipv4Addr) -> Vec<Value> {
    let sizes = [64];
    vec![
        json!({"sizes": sizes, "frames": 10, "round_trips": 1, "window": 32, "tcp": false}),
        json!({"kind": "udp", "address": address, "max_payload": 1024}),
    ]
}

/// Sends everything that a server expects, but with the address of a third party.
fn name_a_third_party(server: Server, client: &mut Hostile, third: Ipv4Addr) {
    match server {
        Server::Measure => {
            client.greet(MEASURE);
            client.say(&plan("ping", "send"));
            client.say(&introduction(third, 4096));
            (0..4).for_each(|_| client.say(&json!(0)));
        }
        Server::Doctor => {
            client.greet("doctor");
            doctor_lines(third).iter().for_each(|line| client.say(line));
            (0..200).for_each(|_| client.say(&json!(0)));
        }
        Server::Limit => {
            client.greet("limit");
            limit_lines(third).iter().for_each(|line| client.say(line));
            (0..4).for_each(|_| client.say(&json!(0)));
        }
        Server::Pingpong(kind) => {
            let gid: String = Gid::from_ipv4(third).0.iter().map(|byte| format!("{byte:02x}")).collect();
            let destination = format!("0000:000011:abcdef:{gid}\0");
            // The program for shared receive queues always sends 256 queue pairs.
            let count = if kind == Kind::Srq { 256 } else { 1 };
            let _ = write!(client.stream, "{}done\0", destination.repeat(count));
        }
        Server::Perf => {
            let gid: Vec<String> = Gid::from_ipv4(third).0.iter().map(|byte| format!("{byte:02x}")).collect();
            let mut keys =
                format!("0000:0001:000011:abcdef:00001234:00007f0123456000:{}:00000000:", gid.join(":"))
                    .into_bytes();
            keys.resize(108, 0);
            let _ =
                client.stream.write_all(b"6.06\0\0\0\0\0\0\0\0\0\0\0\0\x00\x00\x10\x00\x00\x00\x00\x403\0");
            (0..4).for_each(|_| drop(client.stream.write_all(&keys)));
        }
    }
}

/// No server sends packets to a third party. The client and the user of the server are told why.
#[test]
fn no_server_sends_packets_to_a_third_party_that_its_client_names() {
    within(120, || {
        for server in ALL {
            let (at, serving, record) = start(server);
            let (caller, third) = (own_address(), own_address());
            let mut client = Hostile::call(caller, at);
            name_a_third_party(server, &mut client, third);
            if !matches!(server, Server::Pingpong(_) | Server::Perf) {
                let reason = client.hear_failure();
                for part in [&third.to_string(), &caller.to_string(), "--device", "--allow-peer"] {
                    assert!(reason.contains(part), "{server:?}: {reason}");
                }
            }
            let error = serving.join().unwrap().expect_err("the client was served").to_string();
            assert!(error.contains("only to the address that a client connects from"), "{server:?}: {error}");
            let sent = record.lock().unwrap().clone();
            assert!(sent.is_empty(), "{server:?} sent {sent:?} for a client at {caller}");
        }
    });
}

/// Calls `say` with variants of a client's lines, each with one number replaced by an extreme value.
fn with_extreme_numbers(lines: &[Value], say: &mut dyn FnMut(&str, &[Value])) {
    /// Replaces the number at this place; returns its name if it exists.
    fn replace(value: &mut Value, name: &str, left: &mut usize, by: &Value) -> Option<String> {
        match value {
            Value::Number(_) if *left == 0 => {
                *value = by.clone();
                Some(name.to_owned())
            }
            Value::Number(_) => {
                *left -= 1;
                None
            }
            Value::Array(list) => list.iter_mut().find_map(|item| replace(item, name, left, by)),
            Value::Object(map) => map.iter_mut().find_map(|(key, item)| replace(item, key, left, by)),
            _ => None,
        }
    }
    for by in [json!(0), json!(1), json!(u8::MAX), json!(u32::MAX), json!(1_u64 << 62), json!(u64::MAX)] {
        for place in 0.. {
            let (mut changed, mut left) = (lines.to_vec(), place);
            let name = changed.iter_mut().find_map(|line| replace(line, "a line", &mut left, &by));
            let Some(name) = name else { break };
            say(&format!("{name} = {by}"), &changed);
        }
    }
}

/// A server must check the numbers of its client before it computes with them, because they can overflow.
#[test]
fn no_number_of_a_client_ends_a_server_by_a_panic() {
    within(300, || {
        for server in [Server::Measure, Server::Doctor, Server::Limit] {
            let caller = own_address();
            let (tool, lines) = match server {
                Server::Measure => (MEASURE, vec![plan("blast", "read"), introduction(caller, 4096)]),
                Server::Doctor => ("doctor", doctor_lines(caller)),
                _ => ("limit", limit_lines(caller)),
            };
            let mut variants = 0;
            with_extreme_numbers(&lines, &mut |what, lines| {
                let (at, serving, _) = start(server);
                let mut client = Hostile::call(caller, at);
                client.greet(tool);
                lines.iter().for_each(|line| client.say(line));
                client.say(&json!(0));
                // Waits until the server has read everything or has ended.
                let _ = client.stream.shutdown(std::net::Shutdown::Write);
                let mut rest = String::new();
                let _ = client.lines.read_to_string(&mut rest);
                drop(client);
                assert!(serving.join().is_ok(), "{server:?} with {what}");
                variants += 1;
            });
            assert!(variants > 20, "{server:?}: {variants}");
        }
    });
}

/// Clients that name the address that they call from are served, and only they get packets.
#[test]
fn a_client_that_names_its_own_address_gets_packets_and_nobody_else() {
    within(120, || {
        for server in [Server::Measure, Server::Doctor, Server::Perf] {
            let (at, serving, record) = start(server);
            let caller = own_address();
            let mut client = Hostile::call(caller, at);
            name_a_third_party(server, &mut client, caller);
            // A measurement server sends nothing before the client's messages; a doctor sends probes.
            if server == Server::Doctor {
                let end = Instant::now() + Duration::from_secs(10);
                while record.lock().unwrap().is_empty() {
                    assert!(Instant::now() < end, "no probe was sent");
                    std::thread::sleep(Duration::from_millis(10));
                }
            }
            drop(client);
            let outcome = serving.join().unwrap();
            if let Err(error) = outcome {
                let error = with_causes(&error).to_string();
                assert!(!error.contains("only to the address"), "{server:?}: {error}");
            }
            let sent = record.lock().unwrap().clone();
            assert!(sent.keys().all(|address| *address == IpAddr::from(caller)), "{server:?}: {sent:?}");
        }
    });
}

/// A server of rping has no TCP connection to prove an address, so it sends little before the first answer.
#[test]
fn a_server_of_rping_sends_three_messages_to_an_address_that_never_answers() {
    // BTH, DETH, a management datagram, ICRC.
    const MESSAGE: usize = 12 + 8 + 256 + 4;
    within(120, || {
        let address = own_address();
        let (device, record) = recorder(address);
        let context = Context::builder().attach_box(device).unwrap();
        let listener = context.listen(PortSpace::Tcp, RPING_PORT).unwrap();
        // This thread ends with the process.
        std::thread::spawn(move || serve_all(&context, &listener, true, &mut |_, _| ()));
        let server = SocketAddr::new(address.into(), RPING_PORT);
        let open = |address: Ipv4Addr, background: bool| {
            let device = roce_device::open(&format!("udp:{address}"), OpenOptions::default()).unwrap();
            Context::builder().background(background).attach_box(device).unwrap()
        };
        let sent_to =
            |address: Ipv4Addr| record.lock().unwrap().get(&address.into()).copied().unwrap_or_default();
        let (silent, served) = (own_address(), own_address());
        // This client connects and then does nothing: no thread reads its packets.
        let client = open(silent, false);
        let cq = client.create_cq(4, None).unwrap();
        let qp = client.alloc_pd().unwrap().create_qp(&QueuePairOptions::new(QpType::Rc, &cq)).unwrap();
        // The server repeats its answer every 25 ms.
        let timing = CmTiming {
            response_timeout: CmTimeout::new(12),
            packet_lifetime: CmTimeout::new(10),
            ..CmTiming::default()
        };
        let parameters = ConnectionParameters::default().timing(timing);
        let _asking = client.start_connect(server, &qp, &parameters).unwrap();
        let plan = RpingPlan { count: 10, size: 64, verify: true, path_mtu: PathMtu::Mtu1024 };
        rping::client(&open(served, true), server.ip(), RPING_PORT, &plan, &mut |_| ()).unwrap();
        std::thread::sleep(Duration::from_secs(1));
        let sent = record.lock().unwrap().clone();
        assert!(
            sent.keys().all(|to| [IpAddr::from(silent), IpAddr::from(served)].contains(to)),
            "others got packets: {sent:?}"
        );
        assert!(sent_to(served) > 10 * 64, "{sent:?}");
        assert!((MESSAGE..=3 * MESSAGE).contains(&sent_to(silent)), "{sent:?}");
    });
}

#[test]
fn a_client_that_leaves_ends_the_server_at_once() {
    within(120, || {
        for (tool, op) in
            [("ping", "send"), ("ping", "write"), ("blast", "send"), ("blast", "write"), ("blast", "read")]
        {
            let (at, serving, _) = start(Server::Measure);
            let caller = own_address();
            let mut client = Hostile::call(caller, at);
            client.begin(caller, &plan(tool, op), 4096);
            if tool == "ping" {
                client.say(&json!(0));
            }
            std::thread::sleep(Duration::from_millis(100));
            assert!(!serving.is_finished(), "{tool} {op} did not wait for messages");
            let left = Instant::now();
            drop(client);
            let error = serving.join().unwrap().expect_err("it was not served").to_string();
            assert!(on_idle(left.elapsed()) < Duration::from_secs(1), "{tool} {op}: {:?}", left.elapsed());
            assert!(error.contains("closed the connection"), "{tool} {op}: {error}");
        }
    });
}

#[test]
fn a_client_that_fails_is_quoted_at_once_and_its_text_is_harmless() {
    within(60, || {
        let (at, serving, _) = start(Server::Measure);
        let caller = own_address();
        let mut client = Hostile::call(caller, at);
        client.begin(caller, &plan("blast", "send"), 4096);
        let failed = Instant::now();
        client.say(&json!({"roce_failed": "\u{1b}[2Jno \u{202e}luck\r\n"}));
        let error = serving.join().unwrap().expect_err("it was not served").to_string();
        assert!(on_idle(failed.elapsed()) < Duration::from_secs(1), "{:?}", failed.elapsed());
        assert!(error.contains(r"\u{1b}[2Jno \u{202e}luck\u{d}\u{a}"), "{error}");
    });
}

/// A client that sends nothing must not cause the server to spin.
#[test]
fn a_server_without_packets_sleeps() {
    within(120, || {
        for (tool, op) in [("blast", "send"), ("blast", "write"), ("ping", "send")] {
            let address = own_address();
            let listener = TcpListener::bind((address, 0)).unwrap();
            let at = listener.local_addr().unwrap();
            let serving = std::thread::spawn(move || {
                let context = Context::open(&format!("udp:{address}")).unwrap();
                let exchange = Exchange::accept_from(&listener).unwrap();
                let before = busy_time();
                measure::serve(&context, exchange, &ServerOptions::default()).expect_err("it was not served");
                busy_time() - before
            });
            let caller = own_address();
            let mut client = Hostile::call(caller, at);
            client.begin(caller, &plan(tool, op), 4096);
            if tool == "ping" {
                client.say(&json!(0));
            }
            std::thread::sleep(Duration::from_secs(2));
            drop(client);
            let busy = serving.join().unwrap();
            assert!(busy < Duration::from_millis(700), "{tool} {op}: busy for {busy:?} of 2 s");
        }
    });
}

/// Returns the processor time of this thread.
fn busy_time() -> Duration {
    use nix::sys::resource::{UsageWho, getrusage};
    use nix::sys::time::TimeValLike;
    let usage = getrusage(UsageWho::RUSAGE_THREAD).unwrap();
    let micros = usage.user_time().num_microseconds() + usage.system_time().num_microseconds();
    Duration::from_micros(micros.try_into().unwrap())
}

#[test]
fn a_plan_that_takes_too_much_memory_is_refused_on_both_sides() {
    within(60, || {
        let (at, serving, _) = start(Server::Measure);
        let mut client = Hostile::call(own_address(), at);
        client.greet(MEASURE);
        let mut plan = plan("blast", "write");
        (plan["sizes"], plan["buffers"]) = (json!([1 << 20]), json!(2048));
        client.say(&plan);
        let told = client.hear_failure();
        let error = serving.join().unwrap().expect_err("it was not served").to_string();
        for text in [told, error] {
            for part in ["4294967296 bytes of memory", "268435456", "--max-memory 4294967296"] {
                assert!(text.contains(part), "{text}");
            }
        }
    });
}

#[test]
fn memory_of_the_client_at_the_end_of_the_address_space_is_refused() {
    within(60, || {
        for op in ["send", "write", "read"] {
            let (at, serving, _) = start(Server::Measure);
            let caller = own_address();
            let mut client = Hostile::call(caller, at);
            client.greet(MEASURE);
            client.say(&plan("blast", op));
            client.say(&introduction(caller, u64::MAX));
            let told = client.hear_failure();
            assert!(told.contains("0xffffffffffffffff"), "{told}");
            assert!(serving.join().unwrap().is_err());
        }
    });
}

/// Returns a pair of exchanges: the calling one and the called one.
fn exchanges() -> (Exchange, Exchange) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let calling = Exchange::connect(listener.local_addr().unwrap()).unwrap();
    (calling, Exchange::accept_from(&listener).unwrap())
}

#[test]
fn two_different_tools_notice_it_on_both_sides() {
    within(30, || {
        let (mut client, mut server) = exchanges();
        let begun = Instant::now();
        let serving = std::thread::spawn(move || server.greet("doctor").unwrap_err().to_string());
        let [here, there] = [client.greet("limit").unwrap_err().to_string(), serving.join().unwrap()];
        assert!(on_idle(begun.elapsed()) < Duration::from_secs(1), "{:?}", begun.elapsed());
        assert!(here.contains("runs `roce doctor`") && here.contains("this is `roce limit`"), "{here}");
        assert!(there.contains("runs `roce limit`") && there.contains("this is `roce doctor`"), "{there}");
    });
}

#[test]
fn another_version_is_named() {
    within(30, || {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let mut client = Hostile::call(Ipv4Addr::LOCALHOST, listener.local_addr().unwrap());
        client.say(&json!({"roce": "limit", "protocol": 77, "version": "9\u{1b}[31m"}));
        let error = Exchange::accept_from(&listener).unwrap().greet("limit").unwrap_err().to_string();
        assert!(error.contains(r"version 9\u{1b}[31m of roce with protocol 77"), "{error}");
    });
}

/// The time limit applies to the whole line, not to each read.
#[test]
fn a_line_that_comes_byte_by_byte_is_given_up_in_time() {
    within(30, || {
        let (client, mut server) = exchanges();
        drop(client);
        assert!(server.receive::<u32>("a number").is_err());
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let mut slow = Hostile::call(Ipv4Addr::LOCALHOST, listener.local_addr().unwrap());
        let slow = std::thread::spawn(move || {
            for byte in br#"{"roce": "limit"#.iter().chain(&[b' '; 100]) {
                if slow.stream.write_all(&[*byte]).is_err() {
                    break;
                }
                std::thread::sleep(Duration::from_millis(150));
            }
        });
        let begun = Instant::now();
        let error = Exchange::accept_from(&listener).unwrap().greet("limit").unwrap_err().to_string();
        assert!(error.contains("within 3 s"), "{error}");
        assert!(on_idle(begun.elapsed()) < Duration::from_secs(5), "{:?}", begun.elapsed());
        slow.join().unwrap();
    });
}

/// Regression: in `perf` and `pingpong`, each byte restarted the time limit.
#[test]
fn a_set_up_that_comes_byte_by_byte_is_given_up_in_time() {
    within(60, || {
        for server in [Server::Pingpong(Kind::Rc), Server::Pingpong(Kind::Srq), Server::Perf] {
            let (at, serving, record) = start(server);
            let mut client = Hostile::call(own_address(), at);
            let begun = Instant::now();
            let dripping = std::thread::spawn(move || {
                // A destination of pingpong has 52 bytes, and the release of perf has 16.
                while client.stream.write_all(b"0").is_ok() {
                    std::thread::sleep(Duration::from_millis(500));
                }
            });
            let error = serving.join().unwrap().expect_err("it was not served");
            let error = with_causes(&error).to_string();
            // Both plans have a patience of 3 s.
            let took = begun.elapsed();
            assert!((2..6).contains(&took.as_secs()), "{server:?}: {took:?}, {error}");
            assert!(error.contains("3 s"), "{server:?}: {error}");
            assert!(record.lock().unwrap().is_empty(), "{server:?}");
            dripping.join().unwrap();
        }
    });
}

/// The time limit also applies to many lines that each arrive in time.
#[test]
fn the_lines_of_the_set_up_have_a_limit_together() {
    within(30, || {
        let (mut client, mut server) = exchanges();
        server.limit(Some(Duration::from_secs(1)));
        let talking = std::thread::spawn(move || {
            while client.send("a number", &1).is_ok() {
                std::thread::sleep(Duration::from_millis(100));
            }
        });
        let begun = Instant::now();
        while server.receive::<u32>("a number").is_ok() {}
        assert!(on_idle(begun.elapsed()) < Duration::from_secs(3), "{:?}", begun.elapsed());
        drop(server);
        talking.join().unwrap();
    });
}

#[test]
fn another_program_is_noticed_by_its_first_byte() {
    within(30, || {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let mut client = Hostile::call(Ipv4Addr::LOCALHOST, listener.local_addr().unwrap());
        client.stream.write_all(b"6.20\0\0\0\0\0\0\0\0\0\0\0\0").unwrap();
        let begun = Instant::now();
        let error = Exchange::accept_from(&listener).unwrap().greet("limit").unwrap_err().to_string();
        assert!(
            on_idle(begun.elapsed()) < Duration::from_secs(1) && error.contains("did not send the greeting"),
            "{error}"
        );
    });
}

#[test]
fn clients_wait_in_a_queue_and_know_their_place() {
    within(60, || {
        let listening = Listening::at(Ipv4Addr::LOCALHOST.into(), &[], 0).unwrap();
        let at = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), listening.port());
        let queue = ClientQueue::new(listening).unwrap();
        let place = |client: &mut Hostile| client.hear()["roce_busy"]["position"].as_u64();
        let first = Hostile::call(Ipv4Addr::LOCALHOST, at);
        let served = queue.next().unwrap();
        assert_eq!(served.peer(), first.stream.local_addr().unwrap().to_string());
        assert_eq!(served.called().unwrap(), at);
        let [mut second, third, mut fourth] = [(); 3].map(|()| {
            let mut client = Hostile::call(Ipv4Addr::LOCALHOST, at);
            // Clients are accepted in this order.
            assert!(place(&mut client).is_some());
            client
        });
        let until = |client: &mut Hostile, position| while place(client) != Some(position) {};
        until(&mut fourth, 3);
        // A client that leaves makes room for those behind it.
        third.stream.shutdown(std::net::Shutdown::Both).unwrap();
        until(&mut fourth, 2);
        drop(served);
        let served = queue.next().unwrap();
        assert_eq!(served.peer(), second.stream.local_addr().unwrap().to_string());
        until(&mut fourth, 1);
        let busy = fourth.hear();
        assert_eq!(busy["roce_busy"]["serving"], second.stream.local_addr().unwrap().to_string());
        // The queue tells its clients that the server has ended.
        drop(queue);
        assert!(fourth.hear_failure().contains("the server has ended"));
        let mut rest = String::new();
        drop(served);
        second.lines.read_to_string(&mut rest).unwrap();
        assert!(!rest.contains("roce_failed"), "{rest}");
    });
}

#[test]
fn a_queue_has_an_end() {
    within(60, || {
        let listening = Listening::at(Ipv4Addr::LOCALHOST.into(), &[], 0).unwrap();
        let at = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), listening.port());
        let queue = ClientQueue::new(listening).unwrap();
        let _first = Hostile::call(Ipv4Addr::LOCALHOST, at);
        let _served = queue.next().unwrap();
        let mut waiting: Vec<Hostile> =
            (0..MOST_WAITING).map(|_| Hostile::call(Ipv4Addr::LOCALHOST, at)).collect();
        for client in &mut waiting {
            assert!(client.hear()["roce_busy"].is_object());
        }
        let mut last = Hostile::call(Ipv4Addr::LOCALHOST, at);
        assert!(last.hear_failure().contains("16 clients wait"));
    });
}

#[test]
fn a_server_listens_on_every_address_of_both_ip_versions() {
    within(30, || {
        let listening = Listening::everywhere(0).unwrap();
        let mut called: Vec<SocketAddr> = vec![SocketAddr::new(own_address().into(), listening.port())];
        if TcpListener::bind("[::1]:0").is_ok() {
            called.push(SocketAddr::new(std::net::Ipv6Addr::LOCALHOST.into(), listening.port()));
        }
        for address in called {
            let _client = TcpStream::connect(address).unwrap();
            let accepted = listening.accept_within(Duration::from_secs(10)).unwrap();
            assert_eq!(accepted.expect("a client").1, Some(address));
        }
        assert!(listening.accept_within(Duration::from_millis(20)).unwrap().is_none());
        assert!(Listening::everywhere(listening.port()).is_err());
    });
}

/// A link-local address needs its zone everywhere.
#[test]
fn a_link_local_address_can_be_called() {
    let Some(cable) = roce_testing::Cable::new(1500) else { return };
    let zone = |name: &'static str| {
        move || {
            let text = std::fs::read_to_string("/proc/thread-self/net/if_inet6").unwrap();
            let line = text
                .lines()
                .find(|line| line.starts_with("fe80") && line.ends_with(name))
                .expect("an address");
            u32::from_str_radix(line.split_whitespace().nth(1).unwrap(), 16).unwrap()
        }
    };
    let (near, far) = (cable.near.run(zone("v0")), cable.far.run(zone("v1")));
    let address = "fe80::ff:fe00:2".parse().unwrap();
    let listening = cable.far.run(|| Listening::everywhere(0)).unwrap();
    let peer = std::net::SocketAddrV6::new(address, listening.port(), 0, near);
    let client = cable
        .near
        .run(move || Exchange::connect_as("fe80::ff:fe00:1".parse().unwrap(), peer.into()))
        .unwrap();
    let (accepted, called) = listening.accept_within(Duration::from_secs(10)).unwrap().expect("a client");
    assert_eq!(called, Some(std::net::SocketAddrV6::new(address, listening.port(), 0, far).into()));
    assert_eq!(accepted.peer_addr().ip(), "fe80::ff:fe00:1".parse::<IpAddr>().unwrap());
    drop(client);
}
