//! The kernel's neighbour table and routes, in the test's namespaces.

use std::net::Ipv6Addr;
use std::time::Instant as Clock;

use super::*;
use roce_testing::{Cable, Namespace, on_idle};

/// A host and its clock, which starts above zero.
struct Rig {
    host: KernelHost,
    began: Clock,
}

impl Rig {
    fn new(near: &Namespace) -> Self {
        let host = near.run(|| {
            let link = Link::find("raw:v0", "v0").expect("v0");
            KernelHost::open("raw:v0", &link).expect("a host")
        });
        Self { host, began: Clock::now() }
    }

    fn now(&self) -> Instant {
        Instant::from_nanos(1 + self.began.elapsed().as_nanos() as u64)
    }

    fn resolve(&mut self, address: &str) -> Resolution {
        let now = self.now();
        self.host.resolve(now, address.parse().unwrap())
    }

    /// Resolves until the answer is final; returns the answer and the duration.
    #[track_caller]
    fn settle(&mut self, address: &str) -> (Resolution, Duration) {
        let began = Clock::now();
        loop {
            let answer = self.resolve(address);
            if answer != Resolution::Pending {
                return (answer, began.elapsed());
            }
            assert!(on_idle(began.elapsed()) < Duration::from_secs(20), "{address} is still pending");
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    /// Resolves until the answer is `wanted`.
    #[track_caller]
    fn until(&mut self, address: &str, wanted: &Resolution) -> Duration {
        let began = Clock::now();
        while self.resolve(address) != *wanted {
            assert!(
                on_idle(began.elapsed()) < Duration::from_secs(20),
                "{address}: {:?}",
                self.resolve(address)
            );
            std::thread::sleep(Duration::from_millis(1));
        }
        began.elapsed()
    }

    fn counter(&self, name: &str) -> u64 {
        let mut found = None;
        self.host.counters(&mut |known, value| {
            if known == name {
                found = Some(value);
            }
        });
        found.unwrap()
    }
}

fn mac(last: u8) -> Resolution {
    Resolution::Known(MacAddr([2, 0, 0, 0, 0, last]))
}

fn neighbours(namespace: &Namespace) -> String {
    let output = namespace.run(|| std::process::Command::new("ip").args(["neigh", "show"]).output());
    String::from_utf8(output.unwrap().stdout).unwrap()
}

#[test]
fn addresses_come_in_the_order_in_which_people_mean_them() {
    let Some(cable) = Cable::new(1500) else { return };
    cable.near.ip(&["address add 198.18.7.1/24 dev v0", "address add 2001:db8:7::1/64 dev v0"]);
    let rig = Rig::new(&cable.near);
    let found: Vec<String> = rig.host.addresses().iter().map(ToString::to_string).collect();
    // 2001:db8:7::1 is absent while the kernel checks it for duplicates, unless that has ended.
    let found: Vec<&str> = found.iter().map(String::as_str).filter(|it| *it != "2001:db8:7::1").collect();
    assert_eq!(found, ["198.18.0.1", "198.18.7.1", "2001:db8::1", "fe80::ff:fe00:1"]);
}

#[test]
fn tentative_addresses_are_not_used() {
    let Some(cable) = Cable::new(1500) else { return };
    let conf = "/proc/sys/net/ipv6/conf/v0/";
    cable.near.run(move || std::fs::write(format!("{conf}accept_dad"), "1")).unwrap();
    cable.near.run(move || std::fs::write(format!("{conf}dad_transmits"), "20")).unwrap();
    cable.near.ip(&["address flush dev v0", "address add 2001:db8::77/64 dev v0"]);
    let error = cable.near.run(|| {
        let link = Link::find("raw:v0", "v0").unwrap();
        KernelHost::open("raw:v0", &link).map(|_| ()).unwrap_err().to_string()
    });
    assert!(error.contains("no address of v0 is usable yet"), "{error}");
    cable.near.ip(&["address flush dev v0"]);
    let error = cable.near.run(|| {
        let link = Link::find("raw:v0", "v0").unwrap();
        KernelHost::open("raw:v0", &link).map(|_| ()).unwrap_err().to_string()
    });
    assert!(error.contains("v0 has no IP address; add one with `ip address add"), "{error}");
}

#[test]
fn neighbours_are_learned_by_arp_and_ndp() {
    let Some(cable) = Cable::new(1500) else { return };
    let mut rig = Rig::new(&cable.near);
    for address in ["198.18.0.2", "2001:db8::2", "fe80::ff:fe00:2"] {
        assert_eq!(rig.resolve(address), Resolution::Pending, "{address}");
        let (answer, took) = rig.settle(address);
        assert_eq!(answer, mac(2), "{address}");
        assert!(on_idle(took) < Duration::from_secs(3), "{address} took {took:?}");
    }
    // Known answers cause no requests.
    let lookups = rig.counter("host_lookups");
    for _ in 0..1000 {
        assert_eq!(rig.resolve("198.18.0.2"), mac(2));
    }
    assert!(rig.counter("host_lookups") <= lookups + 3);
    assert_eq!(rig.counter("host_errors"), 0);
}

#[test]
fn own_and_group_addresses_need_nobody_to_answer() {
    let Some(cable) = Cable::new(1500) else { return };
    let mut rig = Rig::new(&cable.near);
    assert_eq!(rig.resolve("198.18.0.1"), mac(1));
    // On a busy machine, the kernel adds the route of an IPv6 address later than the address.
    rig.until("2001:db8::1", &mac(1));
    let v4 = Resolution::Known(MacAddr([1, 0, 0x5e, 1, 2, 3]));
    cable.near.ip(&["route add 239.0.0.0/8 dev v0"]);
    assert_eq!(rig.resolve("239.1.2.3"), v4);
    assert_eq!(rig.resolve("ff02::1:2"), Resolution::Known(MacAddr([0x33, 0x33, 0, 1, 0, 2])));
}

#[test]
fn what_no_route_leads_to_is_unreachable_until_one_does() {
    let Some(cable) = Cable::new(1500) else { return };
    let mut rig = Rig::new(&cable.near);
    for address in ["198.19.0.1", "2001:db8:9::1"] {
        assert_eq!(rig.resolve(address), Resolution::Failed(Unreachable::NoRoute), "{address}");
    }
    cable.near.ip(&[
        "route add 198.19.0.0/16 via 198.18.0.2",
        "route add 2001:db8:9::/48 via 2001:db8::2",
        "route add blackhole 198.19.7.0/24",
    ]);
    for address in ["198.19.0.1", "2001:db8:9::1"] {
        rig.until(address, &mac(2));
    }
    assert_eq!(rig.resolve("198.19.7.1"), Resolution::Failed(Unreachable::NoRoute));
    // A gateway of the other IP version (RFC 5549).
    cable.near.ip(&["route add 198.19.8.0/24 via inet6 fe80::ff:fe00:2 dev v0"]);
    let (answer, _) = rig.settle("198.19.8.1");
    assert_eq!(answer, mac(2));
}

#[test]
fn a_route_through_another_interface_is_not_ours() {
    let Some(cable) = Cable::new(1500) else { return };
    cable.near.ip(&[
        "link add w0 type veth peer name w1",
        "address add 198.19.0.1/24 dev w0",
        "link set w0 up",
        "link set w1 up",
    ]);
    let mut rig = Rig::new(&cable.near);
    assert_eq!(rig.resolve("198.19.0.2"), Resolution::Failed(Unreachable::NoRoute));
}

#[test]
fn a_neighbour_that_moves_is_followed() {
    let Some(cable) = Cable::new(1500) else { return };
    let mut rig = Rig::new(&cable.near);
    for address in ["198.18.0.2", "2001:db8::2"] {
        assert_eq!(rig.settle(address).0, mac(2));
    }
    // The peer announces itself, as the kernel does with arp_notify.
    cable.far.run(|| std::fs::write("/proc/sys/net/ipv4/conf/v1/arp_notify", "1")).unwrap();
    cable.far.run(|| std::fs::write("/proc/sys/net/ipv6/conf/v1/ndisc_notify", "1")).unwrap();
    cable.near.run(|| std::fs::write("/proc/sys/net/ipv4/conf/v0/arp_accept", "1")).unwrap();
    cable.far.ip(&["link set v1 address 02:00:00:00:00:09"]);
    for address in ["198.18.0.2", "2001:db8::2"] {
        let took = rig.until(address, &mac(9));
        assert!(on_idle(took) < Duration::from_secs(10), "{address} took {took:?}");
    }
    assert_eq!(rig.counter("host_moved"), 2);
}

#[test]
fn a_neighbour_that_does_not_answer_fails_after_three_seconds_and_is_tried_again() {
    let Some(cable) = Cable::new(1500) else { return };
    let mut rig = Rig::new(&cable.near);
    let next_hop = "198.18.0.3".parse().unwrap();
    let (answer, took) = rig.settle("198.18.0.3");
    assert_eq!(answer, Resolution::Failed(Unreachable::NoAnswer { next_hop }));
    assert!(took.as_secs_f64() > 2.8 && on_idle(took).as_secs_f64() < 8.0, "{took:?}");
    assert_eq!(rig.counter("host_unanswered"), 1);
    cable.far.ip(&["address add 198.18.0.3/24 dev v1"]);
    let took = rig.until("198.18.0.3", &mac(2));
    assert!(on_idle(took) < Duration::from_secs(10), "{took:?}");
}

#[test]
fn a_neighbour_that_is_asked_for_again_gets_the_whole_time_again() {
    let Some(cable) = Cable::new(1500) else { return };
    let mut rig = Rig::new(&cable.near);
    let next_hop = "198.18.0.3".parse().unwrap();
    let failed = Resolution::Failed(Unreachable::NoAnswer { next_hop });
    let mut now = Instant::from_nanos(1);
    for attempt in 1..=3 {
        assert_eq!(rig.host.resolve(now, next_hop), Resolution::Pending, "attempt {attempt}");
        now = now.plus_nanos(GIVE_UP_NS);
        assert_eq!(rig.host.resolve(now, next_hop), failed, "attempt {attempt}");
        // Not immediately: frames to an absent neighbour would be held all the time.
        assert_eq!(rig.host.resolve(now.plus_nanos(RETRY_NS - 1), next_hop), failed, "attempt {attempt}");
        now = now.plus_nanos(RETRY_NS);
        assert_eq!(rig.counter("host_unanswered"), attempt);
    }
    // Asked, and then not checked: the silence meanwhile proves nothing.
    assert_eq!(rig.host.resolve(now, next_hop), Resolution::Pending);
    assert_eq!(rig.host.resolve(now.plus_nanos(10 * GIVE_UP_NS), next_hop), Resolution::Pending);
}

#[test]
fn a_question_before_the_clock_runs_is_no_delay() {
    let Some(cable) = Cable::new(1500) else { return };
    let mut rig = Rig::new(&cable.near);
    let address = "198.18.0.3".parse().unwrap();
    assert_eq!(rig.host.resolve(Instant::ZERO, address), Resolution::Pending);
    // Half a minute later, a frame waits for the neighbour: the time for an answer starts then.
    let later = Instant::from_nanos(30_000_000_000);
    assert_eq!(rig.host.resolve(later, address), Resolution::Pending);
    let failed = rig.host.resolve(later.plus_nanos(GIVE_UP_NS), address);
    assert_eq!(failed, Resolution::Failed(Unreachable::NoAnswer { next_hop: address }));
}

#[test]
fn what_the_kernel_forgot_is_still_sent_to_and_asked_for_again() {
    let Some(cable) = Cable::new(1500) else { return };
    let mut rig = Rig::new(&cable.near);
    assert_eq!(rig.settle("198.18.0.2").0, mac(2));
    cable.near.ip(&["neigh flush dev v0"]);
    let end = Clock::now() + Duration::from_millis(1300);
    while Clock::now() < end {
        assert_eq!(rig.resolve("198.18.0.2"), mac(2));
    }
    assert!(neighbours(&cable.near).contains("198.18.0.2 dev v0 lladdr 02:00:00:00:00:02"));
}

#[test]
fn a_stale_neighbour_is_confirmed() {
    let Some(cable) = Cable::new(1500) else { return };
    cable.near.run(|| std::fs::write("/proc/sys/net/ipv4/neigh/v0/delay_first_probe_time", "1")).unwrap();
    let mut rig = Rig::new(&cable.near);
    assert_eq!(rig.settle("198.18.0.2").0, mac(2));
    cable.near.ip(&["neigh change 198.18.0.2 lladdr 02:00:00:00:00:02 dev v0 nud stale"]);
    let began = Clock::now();
    loop {
        assert_eq!(rig.resolve("198.18.0.2"), mac(2));
        let all = neighbours(&cable.near);
        let entry = all.lines().find(|line| line.starts_with("198.18.0.2 ")).unwrap();
        if entry.trim_end().ends_with("REACHABLE") {
            break;
        }
        assert!(on_idle(began.elapsed()) < Duration::from_secs(20), "{entry}");
        std::thread::sleep(Duration::from_millis(20));
    }
    // A stale entry with a wrong address is detected in the same way.
    cable.near.ip(&["neigh change 198.18.0.2 lladdr 02:00:00:00:00:66 dev v0 nud stale"]);
    rig.until("198.18.0.2", &mac(0x66));
    rig.until("198.18.0.2", &mac(2));
}

#[test]
fn static_neighbours_are_taken() {
    let Some(cable) = Cable::new(1500) else { return };
    cable.near.ip(&["neigh add 198.18.0.5 lladdr 02:00:00:00:00:05 dev v0 nud permanent"]);
    let mut rig = Rig::new(&cable.near);
    assert_eq!(rig.resolve("198.18.0.5"), mac(5));
    assert_eq!(rig.counter("host_asked"), 0);
}

#[test]
fn the_kernel_is_in_the_groups_that_were_joined() {
    let Some(cable) = Cable::new(1500) else { return };
    let mut rig = Rig::new(&cable.near);
    let groups: [IpAddr; 2] = ["239.1.2.3".parse().unwrap(), "ff05::1:3".parse().unwrap()];
    let joined = |namespace: &Namespace| {
        let output = namespace
            .run(|| std::process::Command::new("ip").args(["maddress", "show", "dev", "v0"]).output());
        let text = String::from_utf8(output.unwrap().stdout).unwrap();
        groups.map(|group| text.contains(&group.to_string()))
    };
    // A device is used in the namespace where it was opened.
    let mut rig = cable.near.run(move || {
        for group in groups {
            rig.host.set_multicast(group, true).unwrap();
            rig.host.set_multicast(group, true).unwrap();
        }
        rig
    });
    assert_eq!(joined(&cable.near), [true, true]);
    // SAFETY: the child closes its copies of the sockets, and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        groups.iter().for_each(|group| drop(rig.host.set_multicast(*group, false)));
        // SAFETY: ends only the child.
        unsafe { libc::_exit(0) };
    }
    // SAFETY: the child of this test; its status is not needed.
    assert_eq!(unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) }, child);
    assert_eq!(joined(&cable.near), [true, true], "the child has left the groups of its parent");
    // As a child has them.
    let _copies: Vec<_> = rig.host.groups.iter().map(|(_, socket)| socket.try_clone().unwrap()).collect();
    for group in groups {
        rig.host.set_multicast(group, false).unwrap();
    }
    assert_eq!(joined(&cable.near), [false, false]);
    let unicast = IpAddr::V6(Ipv6Addr::LOCALHOST);
    assert_eq!(rig.host.set_multicast(unicast, true).unwrap_err().kind(), io::ErrorKind::InvalidInput);
}

#[test]
fn the_port_is_held_and_a_second_device_is_told_so() {
    let Some(cable) = Cable::new(1500) else { return };
    let rig = Rig::new(&cable.near);
    let error = cable.near.run(|| {
        let link = Link::find("raw:v0", "v0").unwrap();
        KernelHost::open("raw:v0", &link).map(|_| ()).unwrap_err()
    });
    assert!(matches!(error, OpenError::PortInUse { port: 4791, .. }), "{error}");
    drop(rig);
    drop(Rig::new(&cable.near));
}

/// The kernel's table serves the whole machine, and holds about a thousand entries.
#[test]
fn a_flood_of_silent_neighbours_does_not_fill_the_table_of_the_kernel() {
    let Some(cable) = Cable::new(1500) else { return };
    cable.near.ip(&["address add 198.19.0.1/16 dev v0"]);
    let mut host = Rig::new(&cable.near).host;
    let at = |millis: u64| Instant::from_nanos(1 + millis * 1_000_000);
    for number in 0..1_000_u16 {
        let [high, low] = (256 + number).to_be_bytes();
        assert_eq!(host.resolve(at(0), [198, 19, high, low].into()), Resolution::Pending);
    }
    assert_eq!(host.counters.asked, MAX_ASKED_AT_ONCE as u64);
    // A present neighbour waits no longer than a neighbour may take to answer promptly.
    let honest = IpAddr::from([198, 18, 0, 2]);
    assert_eq!(host.resolve(at(1), honest), Resolution::Pending);
    assert_eq!(host.counters.asked, MAX_ASKED_AT_ONCE as u64);
    let end = Clock::now() + Duration::from_secs(20);
    let mut millis = 101;
    while host.resolve(at(millis), honest) != mac(2) {
        assert!(Clock::now() < end, "it is there");
        std::thread::sleep(Duration::from_millis(1));
        millis += 1;
    }
    // The soliciting socket always has room for one more.
    for round in 1..4 {
        for number in 0..1_000_u16 {
            let [high, low] = (256 + number).to_be_bytes();
            host.resolve(at(millis + 200 * round), [198, 19, high, low].into());
        }
    }
    assert_eq!((host.counters.asked, host.counters.errors), (MAX_ASKED as u64 + 1, 0));
}
