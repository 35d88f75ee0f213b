//! TAPs in their own network namespaces, through the public interface: against the kernel, and against each
//! other on a bridge.

use std::io::{self, Read, Write};
use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use roce::tcp::{Tcp, TcpListening};
use roce::verbs::Context;
use roce_exchange::Exchange;
use roce_measure::measure::{self as perf, Completion, Op, Plan, Post, Signal, Tool};
use roce_testing::{Namespace, on_idle, skip_unless};
use socket2::{Domain, Protocol, Socket, Type};

const KERNEL: &str = "198.18.0.1";
const OURS: &str = "198.18.0.2";

/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(20);

/// Returns a namespace in which TAPs can be created.
#[track_caller]
fn namespace() -> Option<Namespace> {
    let namespace = Namespace::new()?;
    let has_driver = std::path::Path::new("/dev/net/tun").exists();
    if skip_unless(has_driver, "there is no /dev/net/tun; `modprobe tun` makes it") {
        return None;
    }
    Some(namespace)
}

/// Returns the Internet checksum (RFC 1071), not yet inverted.
fn sum(bytes: &[u8]) -> u16 {
    let words =
        bytes.chunks(2).map(|word| u32::from(word[0]) << 8 | word.get(1).map_or(0, |low| u32::from(*low)));
    let sum: u32 = words.sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    ((folded & 0xffff) + (folded >> 16)) as u16
}

fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|place| (place * 31 + place / 251 + seed) as u8).collect()
}

#[track_caller]
fn refusal(namespace: &Namespace, spec: &str) -> String {
    let spec = spec.to_owned();
    namespace.run(move || Context::open(&spec)).expect_err("it was opened").to_string()
}

#[track_caller]
fn context(namespace: &Namespace, spec: &str) -> Context {
    let spec = spec.to_owned();
    namespace.run(move || Context::open(&spec)).unwrap()
}

/// Assigns the kernel's addresses to the TAP.
fn address_the_kernel(namespace: &Namespace) {
    namespace.ip(&["address add 198.18.0.1/24 dev roce0", "address add 2001:db8::1/64 dev roce0 nodad"]);
}

fn device_counter(context: &Context, name: &str) -> u64 {
    let mut found = 0;
    context.visit_counters(&mut |known, value| {
        if known == name {
            found = value;
        }
    });
    found
}

/// Sends an echo request of the kernel with `len` bytes of payload; returns whether the answer arrived.
fn kernel_pings(namespace: &Namespace, to: IpAddr, len: usize) -> bool {
    namespace.run(move || {
        let (domain, protocol, request, reply) = match to {
            IpAddr::V4(_) => (Domain::IPV4, Protocol::ICMPV4, 8_u8, 0_u8),
            IpAddr::V6(_) => (Domain::IPV6, Protocol::ICMPV6, 128, 129),
        };
        let socket = Socket::new(domain, Type::RAW, Some(protocol)).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        let mut message = vec![0x5a; 8 + len];
        message[..8].copy_from_slice(&[request, 0, 0, 0, 0x12, 0x34, 0, 1]);
        if to.is_ipv4() {
            // The kernel computes the checksum of ICMPv6.
            let sum = !sum(&message);
            message[2..4].copy_from_slice(&sum.to_be_bytes());
        }
        let end = Instant::now() + PATIENCE;
        while Instant::now() < end {
            socket.send_to(&message, &SocketAddr::new(to, 0).into()).unwrap();
            let mut buffer = vec![MaybeUninit::new(0); 10_000];
            while let Ok(received) = socket.recv(&mut buffer) {
                // SAFETY: `recv` has written that many bytes.
                let bytes: Vec<u8> =
                    buffer[..received].iter().map(|byte| unsafe { byte.assume_init() }).collect();
                let icmp = if to.is_ipv4() { &bytes[20..] } else { &bytes[..] };
                if icmp[0] == reply && icmp[4..] == message[4..] {
                    return true;
                }
            }
        }
        false
    })
}

/// Writes and reads a megabyte at both ends at once, and checks every byte.
fn swap_a_megabyte(stream: &mut (impl Read + Write), own: usize, other: usize) {
    const LEN: usize = 1 << 20;
    const STEP: usize = 32 << 10;
    let sent = pattern(LEN, own);
    let mut received = vec![0; LEN];
    for place in (0..LEN).step_by(STEP) {
        stream.write_all(&sent[place..place + STEP]).unwrap();
        stream.read_exact(&mut received[place..place + STEP]).unwrap();
    }
    assert!(received == pattern(LEN, other), "the content is right");
}

#[test]
fn the_kernel_pings_us() {
    let Some(namespace) = namespace() else { return };
    let context = context(&namespace, "tap:roce0,ip=198.18.0.2/24,ip6=2001:db8::2/64");
    assert_eq!(context.address(), Some(OURS.parse().unwrap()));
    address_the_kernel(&namespace);
    for len in [0, 1, 56, 1400] {
        assert!(kernel_pings(&namespace, OURS.parse().unwrap(), len), "{len} bytes");
        assert!(kernel_pings(&namespace, "2001:db8::2".parse().unwrap(), len), "{len} bytes");
    }
    assert!(device_counter(&context, "frame_rx_host") >= 8);
}

#[test]
fn a_link_with_room_for_path_mtu_4096() {
    let Some(namespace) = namespace() else { return };
    let context = context(&namespace, "tap:roce0,ip=198.18.0.2/24,ip6=2001:db8::2/64,mtu=4200");
    assert_eq!(context.query().capabilities.link_mtu, 4200);
    assert_eq!(context.largest_path_mtu().map(|mtu| mtu.bytes()), Some(4096));
    address_the_kernel(&namespace);
    // The IP packet has 4,096 bytes, as many as the largest RoCE payload.
    assert!(kernel_pings(&namespace, OURS.parse().unwrap(), 4096 - 28));
}

#[test]
fn tcp_from_the_kernel_to_us_and_from_us_to_the_kernel() {
    let Some(namespace) = namespace() else { return };
    let context = context(&namespace, "tap:roce0,ip=198.18.0.2/24,ip6=2001:db8::2/64");
    address_the_kernel(&namespace);
    for (ours, kernel) in [(OURS, KERNEL), ("2001:db8::2", "2001:db8::1")] {
        let (ours, kernel): (IpAddr, IpAddr) = (ours.parse().unwrap(), kernel.parse().unwrap());
        std::thread::scope(|scope| {
            let listening = TcpListening::bind(&context, 7471).unwrap();
            assert_eq!(listening.local_addr().port(), 7471);
            scope.spawn(move || {
                let mut stream = listening.accept().unwrap();
                assert_eq!(stream.peer_addr().ip(), kernel);
                stream.set_read_timeout(Some(PATIENCE)).unwrap();
                swap_a_megabyte(&mut stream, 1, 2);
            });
            namespace.run(move || {
                let mut stream = TcpStream::connect((ours, 7471)).unwrap();
                stream.set_read_timeout(Some(PATIENCE)).unwrap();
                swap_a_megabyte(&mut stream, 2, 1);
                assert_eq!(stream.read(&mut [0; 9]).unwrap(), 0, "closed when dropped");
            });
        });

        let listener = namespace.run(move || TcpListener::bind((kernel, 7472))).unwrap();
        let looked = std::sync::Barrier::new(2);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let (mut stream, peer) = listener.accept().unwrap();
                assert_eq!(peer.ip(), ours);
                stream.set_read_timeout(Some(PATIENCE)).unwrap();
                looked.wait();
                swap_a_megabyte(&mut stream, 3, 4);
            });
            let mut stream = Tcp::connect(&context, SocketAddr::new(kernel, 7472)).unwrap();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            assert!(!stream.has_input().unwrap());
            looked.wait();
            swap_a_megabyte(&mut stream, 4, 3);
        });
    }
}

#[test]
fn tcp_that_cannot_be_says_why_and_a_silent_peer_runs_into_the_timeout() {
    let Some(namespace) = namespace() else { return };
    let context = context(&namespace, "tap:roce0,ip=198.18.0.2/24");
    address_the_kernel(&namespace);
    let kernel: IpAddr = KERNEL.parse().unwrap();
    let error = Tcp::connect(&context, SocketAddr::new(kernel, 9)).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
    let nobody = SocketAddr::new("198.18.0.77".parse().unwrap(), 9);
    let error = Tcp::connect(&context, nobody).unwrap_err();
    assert!(error.to_string().contains("198.18.0.77 does not answer"), "{error}");
    let elsewhere = SocketAddr::new("203.0.113.1".parse().unwrap(), 9);
    assert_eq!(Tcp::connect(&context, elsewhere).unwrap_err().kind(), io::ErrorKind::NetworkUnreachable);

    let listener = namespace.run(move || TcpListener::bind((kernel, 7473))).unwrap();
    let mut stream = Tcp::connect(&context, SocketAddr::new(kernel, 7473)).unwrap();
    let _silent = listener.accept().unwrap();
    stream.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    let started = Instant::now();
    assert_eq!(stream.read(&mut [0; 9]).unwrap_err().kind(), io::ErrorKind::TimedOut);
    assert!(started.elapsed() >= Duration::from_millis(50));
    assert!(stream.set_read_timeout(Some(Duration::ZERO)).is_err());

    let _first = TcpListening::bind(&context, 7474).unwrap();
    assert_eq!(TcpListening::bind(&context, 7474).unwrap_err().kind(), io::ErrorKind::AddrInUse);
}

/// If a peer reads single bytes now and then, a write ends with its time limit, and so does the end of the
/// connection.
#[test]
fn a_peer_that_reads_byte_by_byte_holds_up_a_write_and_the_end_no_longer_than_their_limits() {
    let Some(namespace) = namespace() else { return };
    let context = context(&namespace, "tap:roce0,ip=198.18.0.2/24");
    address_the_kernel(&namespace);
    let kernel: IpAddr = KERNEL.parse().unwrap();
    let listener = namespace.run(move || TcpListener::bind((kernel, 7475))).unwrap();
    let mut stream = Tcp::connect(&context, SocketAddr::new(kernel, 7475)).unwrap();
    let (mut slow, _) = listener.accept().unwrap();
    let reader = std::thread::spawn(move || {
        // Reads until the connection is closed or reset.
        let mut taken = 0;
        while slow.read(&mut [0]).is_ok_and(|count| count > 0) && taken < 100 {
            taken += 1;
            std::thread::sleep(Duration::from_millis(50));
        }
        taken
    });
    stream.set_write_timeout(Some(Duration::from_millis(300))).unwrap();
    let chunk = vec![7; 1 << 16];
    let begun = Instant::now();
    // The buffers of both ends hold several megabytes.
    let error = loop {
        let started = Instant::now();
        match stream.write(&chunk) {
            Ok(count) => assert!(count > 0),
            Err(error) => {
                assert!(started.elapsed() >= Duration::from_millis(300), "{:?}", started.elapsed());
                break error;
            }
        }
        assert!(on_idle(begun.elapsed()) < Duration::from_secs(30), "the peer takes everything");
    };
    assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    let dropped = Instant::now();
    drop(stream);
    assert!(on_idle(dropped.elapsed()) < Duration::from_secs(5), "{:?}", dropped.elapsed());
    assert!(reader.join().unwrap() > 1, "some bytes were taken");
}

/// Returns contexts on two TAPs that a bridge of the kernel connects.
fn bridged(namespace: &Namespace, more: &str) -> [Context; 2] {
    namespace.ip(&["link add br0 type bridge mcast_snooping 0", "link set br0 up"]);
    let open = |number: u8| {
        let spec = format!("tap:roce{number},ip=198.18.0.{number}/24,ip6=2001:db8::{number}/64{more}");
        let context = context(namespace, &spec);
        namespace.ip(&[&format!("link set roce{number} master br0")]);
        context
    };
    [open(2), open(3)]
}

/// Runs one measurement between two contexts, which exchange endpoints over their own TCP.
fn measure([near, far]: &[Context; 2], plan: &Plan) {
    let listening = TcpListening::bind(far, 7471).unwrap();
    let address = listening.local_addr();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let exchange = Exchange::accept_on(&listening).unwrap();
            perf::serve(far, exchange, &perf::ServerOptions::default()).unwrap();
        });
        let exchange = Exchange::connect_from(near, address).unwrap();
        let rows = perf::run_client(near, exchange, plan, None, &mut |_| {}).unwrap();
        assert_eq!(rows.len(), plan.sizes.len());
    });
}

fn plan(tool: Tool, op: Op, path_mtu: usize) -> Plan {
    Plan {
        tool,
        op,
        sizes: vec![1, 1000, 65_536],
        iterations: 200,
        buffers: 8,
        inline: false,
        completion: Completion::Event,
        post: Post::List,
        signal: Signal::Full,
        path_mtu,
        timeout: 14,
    }
}

#[test]
fn two_taps_on_a_bridge_exchange_messages() {
    let Some(namespace) = namespace() else { return };
    let contexts = bridged(&namespace, "");
    measure(&contexts, &plan(Tool::Ping, Op::Send, 1024));
    measure(&contexts, &plan(Tool::Blast, Op::Write, 1024));
    measure(&contexts, &plan(Tool::Blast, Op::Read, 1024));
    for context in &contexts {
        assert_eq!(device_counter(context, "tap_tx_refused"), 0);
        assert_eq!(device_counter(context, "tap_rx_malformed"), 0);
        assert_eq!(device_counter(context, "host_address_conflicts"), 0);
    }
}

#[test]
fn two_taps_exchange_messages_of_path_mtu_4096_in_a_vlan() {
    let Some(namespace) = namespace() else { return };
    let contexts = bridged(&namespace, ",mtu=4200,vlan=7,prio=3");
    namespace.ip(&["link set br0 mtu 4200"]);
    measure(&contexts, &plan(Tool::Blast, Op::Send, 4096));
}

#[test]
fn a_tap_and_a_udp_socket_of_the_kernel_exchange_messages() {
    let Some(namespace) = namespace() else { return };
    let tap = context(&namespace, "tap:roce0,ip=198.18.0.2/24,mtu=4200");
    address_the_kernel(&namespace);
    let udp = namespace.run(|| Context::open("udp:198.18.0.1")).unwrap();
    for (number, op) in [Op::Send, Op::Write, Op::Read].into_iter().enumerate() {
        let (port, plan) = (7471 + number as u16, plan(Tool::Blast, op, 4096));
        // The UDP device must run in the namespace, because it opens sockets when queue pairs connect.
        let server = udp.clone();
        let listening = namespace.run(move || TcpListening::bind(&server, port)).unwrap();
        let address = listening.local_addr();
        std::thread::scope(|scope| {
            let server = udp.clone();
            let namespace = &namespace;
            scope.spawn(move || {
                namespace.run(move || {
                    let exchange = Exchange::accept_on(&listening).unwrap();
                    perf::serve(&server, exchange, &perf::ServerOptions::default()).unwrap()
                });
            });
            let exchange = Exchange::connect_from(&tap, address).unwrap();
            perf::run_client(&tap, exchange, &plan, None, &mut |_| {}).unwrap();
        });

        let listening = TcpListening::bind(&tap, port).unwrap();
        let address = listening.local_addr();
        std::thread::scope(|scope| {
            let tap = &tap;
            scope.spawn(move || {
                let exchange = Exchange::accept_on(&listening).unwrap();
                perf::serve(tap, exchange, &perf::ServerOptions::default()).unwrap();
            });
            let client = udp.clone();
            namespace.run(move || {
                let exchange = Exchange::connect_from(&client, address).unwrap();
                perf::run_client(&client, exchange, &plan, None, &mut |_| {}).unwrap();
            });
        });
    }
    assert_eq!(device_counter(&tap, "tap_tx_refused"), 0);
}

#[test]
fn another_host_with_the_same_address_is_noticed() {
    let Some(namespace) = namespace() else { return };
    let context = context(&namespace, "tap:roce0,ip=198.18.0.1/24,mac=02:00:00:00:00:77");
    address_the_kernel(&namespace);
    // The kernel sends with its address.
    let end = Instant::now() + PATIENCE;
    while device_counter(&context, "host_address_conflicts") == 0 {
        assert!(Instant::now() < end, "not noticed");
        let spoken = namespace.run(|| {
            TcpStream::connect_timeout(
                &SocketAddr::new(Ipv4Addr::new(198, 18, 0, 50).into(), 9),
                Duration::from_millis(100),
            )
        });
        assert!(spoken.is_err());
    }
}

#[test]
fn an_interface_that_we_made_goes_with_us_and_one_that_was_there_stays() {
    let Some(namespace) = namespace() else { return };
    let exists = |namespace: &Namespace| {
        namespace.run(|| std::process::Command::new("ip").args(["link", "show", "roce0"]).output()).unwrap()
    };
    for _ in 0..2 {
        let context = context(&namespace, "tap:roce0,ip=198.18.0.2/24");
        address_the_kernel(&namespace);
        assert!(kernel_pings(&namespace, OURS.parse().unwrap(), 56), "also after a restart");
        drop(context);
        assert!(!exists(&namespace).status.success(), "it is gone");
    }

    namespace.ip(&["tuntap add dev roce0 mode tap", "link set roce0 mtu 2000 up"]);
    address_the_kernel(&namespace);
    for _ in 0..2 {
        let context = context(&namespace, "tap:roce0,ip=198.18.0.2/24");
        assert_eq!(context.query().capabilities.link_mtu, 2000);
        assert!(kernel_pings(&namespace, OURS.parse().unwrap(), 1900));
        let taken = refusal(&namespace, "tap:roce0,ip=198.18.0.3/24");
        assert!(taken.contains("another process has the TAP interface roce0 open"), "{taken}");
        drop(context);
        assert!(exists(&namespace).status.success(), "it stays");
    }
    let wrong = refusal(&namespace, "tap:roce0,ip=198.18.0.3/24,mtu=9000");
    assert!(wrong.contains("has MTU 2000") && wrong.contains("ip link set dev roce0 mtu 9000"), "{wrong}");
    let no_tap = refusal(&namespace, "tap:lo,ip=198.18.0.3/24");
    assert!(no_tap.contains("lo exists and is not a TAP"), "{no_tap}");
}
