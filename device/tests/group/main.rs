//! Tests that each of several devices on one address, in one process or several, receives its own datagrams.
//! One test needs a second user; an ordinary user runs the others.

mod crowd;
#[path = "../names/mod.rs"]
mod names;

use std::collections::{BTreeMap, HashSet};
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant as Clock};

use roce_device::udp::{UdpDevice, UdpSpec};
use roce_device::{Device, Encapsulation, Instant, OpenError, Path, Qpn, Transmit};
use roce_testing::{Running, free_v6_port, on_idle, own_address, skip_unless, within};
use rustix::process::{Pid, Signal, kill_process};
use socket2::{Domain, Socket, Type};

/// The environment variable that holds the role of a process started by a test.
const ROLE: &str = "ROCE_TEST_GROUP_ROLE";
/// Attribute IDs of CM messages: REQ, MRA, REJ, REP, RTU, DREQ, DREP, SIDR_REQ, SIDR_REP, LAP, APR.
const KINDS: [u8; 11] = [0x10, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18, 0x19, 0x1a];
const REQ: u8 = 0x10;
const SIDR_REQ: u8 = 0x17;
const SIDR_REP: u8 = 0x18;
/// Time limit for arrivals, sufficient on a busy machine.
const PATIENCE: Duration = Duration::from_secs(5);

fn spec(text: &str) -> UdpSpec {
    text.parse().unwrap()
}

#[track_caller]
fn open(text: &str) -> UdpDevice {
    UdpDevice::open(&spec(text)).unwrap()
}

#[track_caller]
fn refusal(text: &str) -> OpenError {
    UdpDevice::open(&spec(text)).map(|device| panic!("opened: {device:?}")).unwrap_err()
}

/// Held while a process is started or a device is closed. A child process has copies of all descriptors until
/// it executes its program. A device closed in that time would keep its slot and its address.
static STARTS_AND_ENDS: Mutex<()> = Mutex::new(());

/// Starts a process, and waits until it has closed its copies of this one's sockets: it runs before that is
/// done, which takes a while if there are thousands.
#[track_caller]
fn start(command: &mut Command) -> Running {
    let _one = STARTS_AND_ENDS.lock().unwrap_or_else(PoisonError::into_inner);
    let own = sockets_of("self");
    let running = Running::start(command);
    let (pid, begun) = (running.pid().to_string(), Clock::now());
    while !own.is_disjoint(&sockets_of(&pid)) {
        assert!(begun.elapsed() < PATIENCE, "the process keeps copies of sockets");
        std::thread::sleep(Duration::from_millis(1));
    }
    running
}

/// Returns the sockets of a process; none if it has ended.
fn sockets_of(pid: &str) -> HashSet<PathBuf> {
    let descriptors = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let targets = descriptors.filter_map(|descriptor| std::fs::read_link(descriptor.path()).ok());
    targets.filter(|target| target.as_os_str().as_encoded_bytes().starts_with(b"socket:")).collect()
}

/// Closes a device or a name, so that the next test step can have its slot or address.
fn close<T>(holder: T) {
    let _one = STARTS_AND_ENDS.lock().unwrap_or_else(PoisonError::into_inner);
    drop(holder);
}

fn slot(device: &UdpDevice) -> u16 {
    device.capabilities().process_slot.get()
}

fn slots(devices: &[UdpDevice]) -> Vec<u16> {
    devices.iter().map(slot).collect()
}

fn now() -> Instant {
    static START: OnceLock<Clock> = OnceLock::new();
    Instant::from_nanos(START.get_or_init(Clock::now).elapsed().as_nanos() as u64)
}

/// Returns a datagram for a queue pair, with a number as its PSN and without a valid ICRC.
fn datagram(qpn: u32, number: u32, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    bytes[..4].copy_from_slice(&[4, 0, 0xff, 0xff]);
    bytes[4..8].copy_from_slice(&qpn.to_be_bytes());
    bytes[8..12].copy_from_slice(&number.to_be_bytes());
    bytes
}

/// Returns a connection management message for queue pair 1.
fn message(kind: u8, number: u32, request_id: u32, remote_id: u32) -> Vec<u8> {
    let mut bytes = datagram(1, number, 12 + 8 + 256 + 4);
    bytes[37] = kind;
    bytes[44..48].copy_from_slice(&request_id.to_be_bytes());
    bytes[48..52].copy_from_slice(&remote_id.to_be_bytes());
    bytes
}

fn number_of(bytes: &[u8]) -> u32 {
    bytes[8..12].try_into().map(u32::from_be_bytes).unwrap()
}

/// Receives until `count` datagrams have arrived, and then a little longer. Returns each device's numbers.
#[track_caller]
fn numbers(devices: &mut [UdpDevice], count: usize) -> Vec<Vec<u32>> {
    let mut found = vec![Vec::new(); devices.len()];
    let (start, mut idle) = (Clock::now(), 0);
    while idle < 1000 && start.elapsed() < PATIENCE {
        let all: usize = found.iter().map(Vec::len).sum();
        idle = if all < count { 0 } else { idle + 1 };
        for (device, found) in devices.iter_mut().zip(&mut found) {
            device.receive(now(), &mut |received| found.push(number_of(received.head()))).unwrap();
        }
    }
    found.iter_mut().for_each(|found| found.sort_unstable());
    found
}

fn counter(device: &UdpDevice, name: &str) -> u64 {
    let mut found = None;
    device.counters(&mut |it, value| found = found.or((it == name).then_some(value)));
    found.unwrap_or_else(|| panic!("no counter {name}"))
}

/// Returns addresses to test on, as text for a device and for a socket.
fn addresses() -> Vec<(String, SocketAddr)> {
    let v4 = IpAddr::V4(own_address());
    let mut found = vec![(format!("udp:{v4}"), SocketAddr::new(v4, 4791))];
    match free_v6_port() {
        Some(port) => {
            let address = IpAddr::V6(Ipv6Addr::LOCALHOST);
            found.push((format!("udp:[::1],port={port}"), SocketAddr::new(address, port)));
        }
        None => assert!(skip_unless(false, "no IPv6 on this machine")),
    }
    found
}

fn sender_to(to: SocketAddr) -> UdpSocket {
    let sender = UdpSocket::bind(SocketAddr::new(to.ip(), 0)).unwrap();
    sender.connect(to).unwrap();
    sender
}

#[test]
fn datagrams_go_to_the_slot_in_their_destination() {
    for (text, to) in addresses() {
        let mut devices: Vec<_> = (0..7).map(|_| open(&text)).collect();
        assert_eq!(slots(&devices), [1, 2, 3, 4, 5, 6, 7]);
        let sender = sender_to(to);
        let mut expected = vec![Vec::new(); 7];
        for round in 0..100 {
            for slot in 1..8 {
                let number = round * 8 + slot;
                sender.send(&datagram(slot << 16 | round, number, 80)).unwrap();
                expected[slot as usize - 1].push(number);
            }
            if round % 10 == 9 {
                let count = expected.iter().map(Vec::len).sum();
                assert_eq!(numbers(&mut devices, count), expected, "{text}, round {round}");
                expected.iter_mut().for_each(Vec::clear);
            }
        }
        // Slots without an owner, and slots that do not exist.
        for slot in [8, 63] {
            sender.send(&datagram(slot << 16 | 5, 0, 80)).unwrap();
        }
        assert_eq!(numbers(&mut devices, 0).concat(), []);
        for slot in [0, 64, 255] {
            sender.send(&datagram(slot << 16 | 5, slot, 80)).unwrap();
        }
        sender.send(&[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]).unwrap();
        assert_eq!(numbers(&mut devices, 4).concat().len(), 4, "each is taken by one");
    }
}

#[test]
fn messages_of_connection_management_go_where_their_connection_is() {
    for (text, to) in addresses() {
        let mut devices: Vec<_> = (0..7).map(|_| open(&text)).collect();
        let sender = sender_to(to);
        for kind in KINDS {
            for slot in 1..8_u32 {
                let (id, other) = (slot << 24 | 77, (8 - slot) << 24 | 5);
                let ids = if kind == SIDR_REP { (id, other) } else { (other, id) };
                sender.send(&message(kind, slot, ids.0, ids.1)).unwrap();
            }
            let found = numbers(&mut devices, 7);
            if [REQ, SIDR_REQ].contains(&kind) {
                let mut all = found.concat();
                all.sort_unstable();
                assert_eq!(all, [1, 2, 3, 4, 5, 6, 7], "one device takes each request");
            } else {
                let expected: Vec<_> = (1..8).map(|slot| vec![slot]).collect();
                assert_eq!(found, expected, "attribute {kind:#x}");
            }
        }
    }
}

/// Sends datagrams for several processes in one superpacket, as other implementations may.
fn send_joined(from: &str, to: SocketAddr, datagrams: &[Vec<u8>]) -> bool {
    let mut sender = open(&format!("{from},port=0,peer_port={}", to.port()));
    let path = Path {
        encapsulation: Encapsulation::RoceV2,
        source: sender.addresses()[0],
        destination: to.ip(),
        source_port: sender.port(),
        traffic_class: 0x6a,
        hop_limit: 9,
        flow_label: 0,
        vlan: None,
    };
    for bytes in datagrams {
        let slot = sender.slot().unwrap();
        slot.buffer[..bytes.len()].copy_from_slice(bytes);
        let identification = slot.batch.identification(&path, Qpn::default(), bytes.len());
        let transmit = Transmit::new(path, Qpn::default(), bytes.len(), identification);
        sender.commit(Instant::ZERO, &transmit);
    }
    sender.flush(Instant::ZERO).unwrap();
    if sender.report().max_segments > 1 {
        assert_eq!(counter(&sender, "udp_tx_messages"), 1, "one superpacket");
    }
    sender.report().max_segments > 1
}

#[test]
fn a_superpacket_for_several_slots_arrives_where_its_datagrams_belong() {
    for (text, to) in addresses() {
        let from = if to.is_ipv4() { format!("udp:{}", own_address()) } else { "udp:[::1]".to_owned() };
        for gro in ["on", "off"] {
            let mut devices: Vec<_> = (0..3).map(|_| open(&format!("{text},gro={gro}"))).collect();
            let places = [1_u32, 2, 3, 1, 3, 3];
            let datagrams: Vec<_> =
                (0..).zip(places).map(|(number, slot)| datagram(slot << 16 | 9, number, 300)).collect();
            let joined = send_joined(&from, to, &datagrams);
            assert_eq!(numbers(&mut devices, 6), [vec![0, 3], vec![1], vec![2, 4, 5]], "{text}, gro={gro}");
            if joined {
                assert_eq!(counter(&devices[0], "udp_rx_forwarded"), 4, "{text}, gro={gro}");
            }
            // A forwarded datagram keeps its path, its position in the superpacket and all its bytes.
            send_joined(&from, to, &datagrams);
            let mut found = BTreeMap::new();
            let start = Clock::now();
            while found.len() < 3 && start.elapsed() < PATIENCE {
                devices[0].receive(now(), &mut |_| ()).unwrap();
                devices[2]
                    .receive(now(), &mut |received| {
                        let path = received.path;
                        assert_eq!(
                            (path.traffic_class, path.hop_limit, path.destination),
                            (0x6a, 9, to.ip())
                        );
                        found.insert(number_of(received.head()), received.head().to_vec());
                    })
                    .unwrap();
            }
            for number in [2, 4, 5] {
                assert_eq!(found[&number], datagrams[number as usize], "{text}, gro={gro}");
            }
        }
    }
}

#[test]
fn what_nobody_fetches_is_dropped_and_nothing_waits() {
    let (text, to) = addresses().swap_remove(0);
    let mut devices = [open(&text), open(&text)];
    let joined: Vec<_> = (0..40).map(|number| datagram((1 + number.min(1)) << 16, number, 1400)).collect();
    let from = format!("udp:{}", own_address());
    let mut sent = 0;
    for _ in 0..200 {
        if skip_unless(send_joined(&from, to, &joined), "no segmentation offload") {
            return;
        }
        sent += 39;
        devices[0].receive(now(), &mut |_| ()).unwrap();
    }
    numbers(&mut devices[..1], 0);
    let [passed, dropped] =
        ["udp_rx_forwarded", "udp_rx_forward_dropped"].map(|name| counter(&devices[0], name));
    assert_eq!(passed + dropped, sent);
    assert!(passed > 0 && dropped > 0, "{passed} passed on, {dropped} dropped");
    let found = numbers(&mut devices[1..], passed as usize);
    assert_eq!(found[0].len() as u64, passed);
}

#[test]
fn requests_get_to_the_device_that_listens() {
    let (text, to) = addresses().swap_remove(0);
    let mut devices = [open(&text), open(&text), open(&text)];
    let sender = sender_to(to);
    let service = 0x0106_1c06_u64;
    devices[1].claim_service(service).unwrap();
    let again = devices[2].claim_service(service).unwrap_err();
    assert_eq!(again.kind(), std::io::ErrorKind::AddrInUse);
    let request = |number: u32| {
        let mut bytes = message(if number.is_multiple_of(2) { REQ } else { SIDR_REQ }, number, 3 << 24, 0);
        bytes[52..60].copy_from_slice(&service.to_be_bytes());
        bytes
    };
    // Each device in turn is the only one that reads slot 0.
    for reader in 0..3 {
        for number in 0..20 {
            sender.send(&request(number)).unwrap();
        }
        for _ in 0..1000 {
            if reader != 1 {
                devices[reader].receive(now(), &mut |_| panic!("a request for another device")).unwrap();
            }
        }
        let found = numbers(&mut devices[1..2], 20);
        assert_eq!(found[0], (0..20).collect::<Vec<_>>(), "read by {reader}");
    }
    assert_eq!(counter(&devices[0], "udp_rx_forwarded"), 20);
    // No device listens any more: the device that reads the request must refuse it.
    devices[1].release_service(service);
    sender.send(&request(7)).unwrap();
    assert_eq!(numbers(&mut devices[2..], 1), [[7]]);
    devices[2].claim_service(service).unwrap();
}

#[test]
fn a_slot_that_is_given_back_is_the_next_ones_without_what_waited() {
    for (text, to) in addresses() {
        let keeper = open(&text);
        let sender = sender_to(to);
        for round in 0..3 {
            let second = open(&text);
            assert_eq!(slot(&second), 2, "{text}, round {round}");
            // One datagram waits when the device is closed; another one arrives while the slot is free.
            sender.send(&datagram(2 << 16, 1, 80)).unwrap();
            close(second);
            sender.send(&datagram(2 << 16, 2, 80)).unwrap();
            // A busy kernel may deliver a datagram after `send` has returned.
            std::thread::sleep(Duration::from_millis(20));
            let mut second = [open(&text)];
            sender.send(&datagram(2 << 16, 3, 80)).unwrap();
            assert_eq!(numbers(&mut second, 1), [[3]]);
            assert_eq!(counter(&second[0], "udp_rx_overflow"), 0, "what was dropped before");
            close(second);
        }
        close(keeper);
        // The last device is closed, so the port is free.
        let alone = open(&format!("{text},share=off"));
        assert_eq!((slot(&alone), alone.report().shared), (0, false));
    }
}

#[test]
fn who_does_not_share_has_the_address_alone() {
    let text = format!("udp:{}", own_address());
    let alone = open(&format!("{text},share=off"));
    assert!(matches!(refusal(&text), OpenError::PortInUse { port: 4791, .. }));
    close(alone);
    let shared = open(&text);
    let error = refusal(&format!("{text},share=off"));
    assert!(matches!(error, OpenError::NotShared { .. }), "{error}");
    assert!(error.to_string().contains("leave share=off out"), "{error}");
    // Other programs are excluded as well; a program that asks for a share of the port receives nothing.
    let port = SocketAddr::new(shared.addresses()[0], 4791);
    assert!(UdpSocket::bind(port).is_err());
    let other = Socket::new(Domain::IPV4, Type::DGRAM.nonblocking(), None).unwrap();
    other.set_reuse_port(true).unwrap();
    other.bind(&port.into()).unwrap();
    let sender = sender_to(port);
    for number in 0..256 {
        sender.send(&datagram(number << 16, number, 80)).unwrap();
    }
    let mut devices = [shared];
    let mut expected: Vec<_> = (64..256).collect();
    expected.splice(..0, [0, 1]);
    assert_eq!(numbers(&mut devices, expected.len()), [expected]);
    let got = UdpSocket::from(other).recv(&mut [0; 64]);
    assert_eq!(got.unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
}

/// Another process with a device. It prints what it receives until it is ended.
struct Other(Running);

impl Other {
    #[track_caller]
    fn start(test: &str, text: &str) -> Self {
        Self::start_as(test, text, None)
    }

    #[track_caller]
    fn start_as(test: &str, text: &str, uid: Option<u32>) -> Self {
        Self(start(&mut Self::command(test, text, uid)))
    }

    fn command(test: &str, text: &str, uid: Option<u32>) -> Command {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", test, "--nocapture"]).env(ROLE, text);
        if let Some(uid) = uid {
            command.uid(uid).gid(uid);
        }
        command
    }

    /// Starts a process as `uid` of a new user namespace, which maps its users 0 to 65535 from `first` on.
    #[track_caller]
    fn start_in_namespace(test: &str, text: &str, first: u32, uid: u32) -> Self {
        let (mut requests, request) = std::io::pipe().unwrap();
        let (permission, mut permit) = std::io::pipe().unwrap();
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", test, "--nocapture"]).env(ROLE, text).env("ROCE_STAT", "0");
        // SAFETY: the closure only makes system calls and does not allocate.
        unsafe {
            command.pre_exec(move || enter_namespace(request.as_raw_fd(), permission.as_raw_fd(), uid));
        }
        let mapper = std::thread::spawn(move || {
            let mut pid = [0; 4];
            requests.read_exact(&mut pid).unwrap();
            let pid = i32::from_ne_bytes(pid);
            for map in ["uid_map", "gid_map"] {
                std::fs::write(format!("/proc/{pid}/{map}"), format!("0 {first} 65536")).unwrap();
            }
            permit.write_all(&[1]).unwrap();
        });
        let other = Self(start(&mut command));
        mapper.join().unwrap();
        other
    }

    /// Returns the slot of the process when it is ready.
    #[track_caller]
    fn slot(&mut self) -> u16 {
        let line = self.0.wait_for_line("slot ");
        line.rsplit(' ').next().and_then(|number| number.parse().ok()).unwrap_or_else(|| panic!("{line}"))
    }

    #[track_caller]
    fn expect(&mut self, number: u32) {
        self.0.wait_for_line(&format!("got {number};"));
    }

    #[track_caller]
    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_raw(self.0.pid() as i32).unwrap(), signal).unwrap();
    }

    /// Stops the process and waits until it is stopped, which takes a moment on a busy machine.
    #[track_caller]
    fn stop(&self) {
        self.signal(Signal::STOP);
        let (status, start) = (format!("/proc/{}/stat", self.0.pid()), Clock::now());
        while !std::fs::read_to_string(&status).unwrap().contains(") T ") {
            assert!(start.elapsed() < PATIENCE);
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Kills the process, as a crash would.
    #[track_caller]
    fn kill(mut self) {
        self.signal(Signal::KILL);
        let start = Clock::now();
        while self.0.is_alive() {
            assert!(start.elapsed() < PATIENCE);
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Between `fork` and `exec`, makes a user namespace, waits for its maps, and becomes a user of it.
fn enter_namespace(request: i32, permission: i32, uid: u32) -> std::io::Result<()> {
    let check = |result: i64| if result < 0 { Err(std::io::Error::last_os_error()) } else { Ok(()) };
    // SAFETY: system calls on numbers and on two local arrays that outlive them.
    unsafe {
        check(libc::setgroups(0, std::ptr::null()).into())?;
        check(libc::unshare(libc::CLONE_NEWUSER).into())?;
        let (pid, mut byte) = (libc::getpid().to_ne_bytes(), [0_u8]);
        check(libc::write(request, pid.as_ptr().cast(), pid.len()) as i64)?;
        check(libc::read(permission, byte.as_mut_ptr().cast(), 1) as i64)?;
        check(libc::setresgid(uid, uid, uid).into())?;
        check(libc::setresuid(uid, uid, uid).into())
    }
}

/// Connects to a name repeatedly, and closes each connection at once unless `keep` is set.
fn flood(name: &str, keep: bool) {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
    let address = SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap();
    let mut kept = Vec::new();
    if !keep {
        println!("\nslot 0");
    }
    let end = Clock::now() + Duration::from_secs(60);
    while Clock::now() < end {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        if connect(&socket, &address).is_ok() && keep {
            kept.push(socket);
        } else if keep {
            if kept.len() > 1 {
                println!("\nslot 0");
            }
            std::thread::sleep(Duration::from_secs(60));
        }
    }
}

/// Acts as a process that a test has started; returns `false` in the test itself.
fn is_other() -> bool {
    let Ok(text) = std::env::var(ROLE) else { return false };
    if let Some(name) = text.strip_prefix("name:") {
        use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, bind, listen, socket};
        let holder = socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
        bind(&holder, &SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap()).unwrap();
        listen(&holder, 1).unwrap();
        println!("\nslot 0");
        std::thread::sleep(Duration::from_secs(60));
        return true;
    }
    if let Some(name) = text.strip_prefix("flood:") {
        flood(name, false);
        return true;
    }
    if let Some(name) = text.strip_prefix("fill:") {
        flood(name, true);
        return true;
    }
    match UdpDevice::open(&spec(&text)) {
        Ok(mut device) => {
            println!("\nslot {}", slot(&device));
            let end = Clock::now() + Duration::from_secs(60);
            while Clock::now() < end {
                device
                    .receive(now(), &mut |received| println!("\ngot {};", number_of(received.head())))
                    .unwrap();
                std::thread::sleep(Duration::from_micros(100));
            }
        }
        Err(error) => println!("\nrefused: {error}"),
    }
    true
}

#[test]
fn the_others_keep_their_slots_when_the_first_is_killed() {
    if is_other() {
        return;
    }
    within(60, || {
        let name = "the_others_keep_their_slots_when_the_first_is_killed";
        for (text, to) in addresses() {
            let sender = sender_to(to);
            let mut first = Other::start(name, &text);
            assert_eq!(first.slot(), 1);
            let mut second = Other::start(name, &text);
            assert_eq!(second.slot(), 2);
            let mut third = Other::start(name, &text);
            assert_eq!(third.slot(), 3);
            first.kill();
            for (other, slot) in [(&mut second, 2), (&mut third, 3)] {
                sender.send(&datagram(slot << 16, 100 + slot, 80)).unwrap();
                other.expect(100 + slot);
            }
            // Waits in the socket of the killed process.
            sender.send(&datagram(1 << 16, 1, 80)).unwrap();
            std::thread::sleep(Duration::from_millis(20));
            let mut again = [open(&text)];
            assert_eq!(slots(&again), [1]);
            sender.send(&datagram(1 << 16, 2, 80)).unwrap();
            assert_eq!(numbers(&mut again, 1), [[2]]);
            // Any survivor admits new processes.
            close(again);
            second.kill();
            let mut fourth = Other::start(name, &text);
            assert_eq!(fourth.slot(), 1);
            third.kill();
            let mut fifth = Other::start(name, &text);
            assert_eq!(fifth.slot(), 2);
            sender.send(&datagram(2 << 16, 5, 80)).unwrap();
            fifth.expect(5);
            fourth.kill();
            fifth.kill();
            assert_eq!(slot(&open(&text)), 1, "a new group");
        }
    });
}

#[test]
fn a_process_that_is_stopped_holds_up_nobody_for_long() {
    if is_other() {
        return;
    }
    within(60, || {
        let name = "a_process_that_is_stopped_holds_up_nobody_for_long";
        let text = format!("udp:{}", own_address());
        let mut first = Other::start(name, &text);
        first.slot();
        let mut second = Other::start(name, &text);
        second.slot();
        first.stop();
        let start = Clock::now();
        let third = open(&text);
        let took = start.elapsed();
        assert_eq!(slot(&third), 3);
        assert!(took >= Duration::from_millis(300) && on_idle(took) < Duration::from_secs(2), "{took:?}");
        close(third);
        second.stop();
        let error = refusal(&text).to_string();
        for part in [&format!("process {}", first.0.pid())[..], "does not answer", "continue or end it"] {
            assert!(error.contains(part), "{error}");
        }
        first.signal(Signal::CONT);
        assert_eq!(slot(&open(&text)), 3);
    });
}

#[test]
fn another_user_is_refused_unless_both_want_it() {
    if is_other() {
        return;
    }
    let is_root = rustix::process::getuid().is_root();
    if skip_unless(is_root, "a second user needs root") {
        return;
    }
    within(60, || {
        let name = "another_user_is_refused_unless_both_want_it";
        const NOBODY: u32 = 65534;
        let text = format!("udp:{}", own_address());
        let own = open(&text);
        // The new process asks root's process, which must answer. The loop below lets that one receive.
        let mut device = [own];
        let mut other = Other::start_as(name, &text, Some(NOBODY));
        let refused = std::thread::scope(|scope| {
            let waiting = scope.spawn(|| other.0.wait_for_line("refused: "));
            while !waiting.is_finished() {
                numbers(&mut device, 0);
            }
            waiting.join().unwrap()
        });
        assert!(refused.contains("(user 0)") && refused.contains("ROCE_SHARE=all"), "{refused}");
        close(device);
        // The reverse case: a socket of root must not pass through an ordinary user's hands.
        let mut other = Other::start_as(name, &text, Some(NOBODY));
        assert_eq!(other.slot(), 1);
        let error = refusal(&text).to_string();
        assert!(error.contains("(user 65534)") && error.contains("ROCE_SHARE=all"), "{error}");
        // A bound name alone does not block the address.
        let address = own_address();
        let mut other = Other::start_as(name, &format!("name:roce/{address}/1"), Some(NOBODY));
        assert_eq!(other.slot(), 0);
        assert_eq!(slot(&open(&format!("udp:{address}"))), 2);
    });
}

/// A user in a user namespace; `None` is the namespace of the test. Each namespace has 65,536 users.
type Who = (Option<u32>, u32);

/// Regression: the overflow ID, which stands for every user that a namespace does not map, was taken for one
/// user. Another user then got all sockets of a process that ran as user 65534 in a rootless container.
#[test]
fn users_and_namespaces_in_a_matrix() {
    if is_other() {
        return;
    }
    let is_root = rustix::process::getuid().is_root();
    if skip_unless(is_root, "other users and namespaces need root") {
        return;
    }
    const HERE: Option<u32> = None;
    const THERE: Option<u32> = Some(200_000);
    // The owner of the address, the user that wants to join, and whether it may.
    let rows: [(Who, Who, bool); 12] = [
        ((HERE, 1001), (HERE, 1001), true),
        ((HERE, 1001), (HERE, 1002), false),
        ((HERE, 65534), (HERE, 65534), true),
        ((HERE, 65534), (HERE, 1001), false),
        ((THERE, 1001), (THERE, 1001), true),
        ((THERE, 1001), (THERE, 1002), false),
        ((THERE, 65534), (THERE, 65534), false),
        ((THERE, 65534), (HERE, 1001), false),
        ((THERE, 65534), (HERE, 65534), false),
        ((HERE, 1001), (THERE, 65534), false),
        ((HERE, 201_001), (THERE, 1001), true),
        ((THERE, 1001), (HERE, 201_001), true),
    ];
    within(120, move || {
        let name = "users_and_namespaces_in_a_matrix";
        for (holder, joiner, may) in rows {
            let text = format!("udp:{}", own_address());
            let start = |(namespace, uid): Who| match namespace {
                None => Other::start_as(name, &text, Some(uid)),
                Some(first) => Other::start_in_namespace(name, &text, first, uid),
            };
            let mut has = start(holder);
            assert_eq!(has.slot(), 1, "{holder:?}");
            let mut wants = start(joiner);
            if may {
                assert_eq!(wants.slot(), 2, "{holder:?}, {joiner:?}");
            } else {
                let refused = wants.0.wait_for_line("refused: ");
                assert!(refused.contains("uses it, and"), "{holder:?}, {joiner:?}: {refused}");
            }
        }
    });
}

/// Regression: connections of another user filled the queue of a member, so its own user could not join. The
/// error blamed the kernel's Soft-RoCE.
#[test]
fn a_flood_of_connections_by_another_user_keeps_nobody_out() {
    if is_other() {
        return;
    }
    let is_root = rustix::process::getuid().is_root();
    if skip_unless(is_root, "other users need root") {
        return;
    }
    within(120, || {
        let name = "a_flood_of_connections_by_another_user_keeps_nobody_out";
        let (own, stranger) = (Some(1001), Some(1002));
        let address = own_address();
        let text = format!("udp:{address}");
        let mut first = Other::start_as(name, &text, own);
        assert_eq!(first.slot(), 1);
        let attack = format!("flood:roce/{address}/1");
        let mut attackers: Vec<_> = (0..2).map(|_| Other::start_as(name, &attack, stranger)).collect();
        for attacker in &mut attackers {
            assert_eq!(attacker.slot(), 0);
        }
        for _ in 0..10 {
            let mut joins = Other::start_as(name, &text, own);
            assert_eq!(joins.slot(), 2);
            joins.kill();
        }
    });
}

/// A queue that stays full is reported as full.
#[test]
fn a_name_whose_queue_is_full_is_named() {
    if is_other() {
        return;
    }
    within(60, || {
        let name = "a_name_whose_queue_is_full_is_named";
        let address = own_address();
        let text = format!("udp:{address},share=off");
        let mut alone = Other::start(name, &text);
        assert_eq!(alone.slot(), 0);
        let mut holder = Other::start(name, &format!("name:roce/{address}/1"));
        assert_eq!(holder.slot(), 0);
        let mut filler = Other::start(name, &format!("fill:roce/{address}/1"));
        assert_eq!(filler.slot(), 0);
        let error = refusal(&format!("udp:{address}")).to_string();
        assert!(error.contains(&format!("@roce/{address}/1 was full")), "{error}");
        assert!(!error.contains("Soft-RoCE"), "{error}");
    });
}
