//! The output of `roce devices`, and link-local addresses from end to end, on a cable between two namespaces.

use std::process::Command;
use std::time::{Duration, Instant};

use crate::common::{Finished, Running, roce};
use roce_testing::{Cable, Namespace};
use serde_json::Value;

/// Runs `roce` inside a namespace.
#[track_caller]
fn run_in(namespace: &Namespace, args: &[&str]) -> Finished {
    start_in(namespace, args).finish(60)
}

#[track_caller]
fn start_in(namespace: &Namespace, args: &[&str]) -> Running {
    let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
    namespace.run(move || Running::start(roce().args(args)))
}

#[test]
fn every_device_is_listed_by_the_name_that_opens_it() {
    let Some(cable) = Cable::new(4200) else { return };
    let listed = run_in(&cable.near, &["devices", "--json"]);
    assert_eq!(listed.code, Some(0), "{}", listed.stderr);
    let document: Value = serde_json::from_str(&listed.stdout).unwrap();
    let ids = |kind: &str| -> Vec<String> {
        let kinds = document["kinds"].as_array().unwrap();
        let kind = kinds.iter().find(|it| it["device"] == kind).unwrap();
        let devices = kind["devices"].as_array().unwrap().iter();
        devices.map(|device| device["device_spec"].as_str().unwrap().to_owned()).collect()
    };
    let udp = ["udp:198.18.0.1", "udp:[2001:db8::1]", "udp:[fe80::ff:fe00:1%v0]"];
    assert_eq!(ids("udp"), udp);
    assert_eq!(ids("raw"), ["raw:v0"]);
    // Not every user who can create a namespace may load programs into the kernel.
    let xdp = ids("xdp");
    assert!(xdp.is_empty() || xdp == ["xdp:v0"], "{xdp:?}");

    let plain = run_in(&cable.near, &["devices", "-v"]).stdout;
    for id in udp.iter().copied().chain(["raw:v0"]) {
        assert!(plain.contains(&format!("hca_id:\t{id}\n")), "{id}: {plain}");
    }
    for id in udp.iter().copied().map(str::to_owned).chain(ids("raw")).chain(xdp) {
        let shown = run_in(&cable.near, &["devices", "--device", &id, "--json"]);
        assert_eq!(shown.code, Some(0), "{id}: {}", shown.stderr);
        let shown: Value = serde_json::from_str(&shown.stdout).unwrap();
        let device = document["kinds"].as_array().unwrap().iter();
        let device = device
            .flat_map(|kind| kind["devices"].as_array().unwrap())
            .find(|it| it["device_spec"] == id.as_str());
        let listed = device.unwrap()["gids"].as_array().unwrap();
        for (listed, shown) in listed.iter().zip(shown["gids"].as_array().unwrap()) {
            assert_eq!((&listed["gid"], &listed["type"]), (&shown["gid"], &shown["type"]), "{id}");
        }
    }
}

#[test]
fn link_local_addresses_work_from_end_to_end() {
    let Some(cable) = Cable::new(4200) else { return };
    for server_device in ["udp:fe80::ff:fe00:2%v1", "raw:v1"] {
        let server = start_in(&cable.far, &["ping", "--device", server_device, "--once"]);
        std::thread::sleep(Duration::from_millis(300));
        let mut args = vec!["ping", "fe80::ff:fe00:2%v0", "-n", "20", "-s", "64"];
        if server_device.starts_with("raw") {
            args.extend(["--device", "raw:v0"]);
        }
        let client = run_in(&cable.near, &args);
        assert_eq!(client.code, Some(0), "{server_device}: {}{}", client.stdout, client.stderr);
        let server = server.finish(20);
        assert_eq!(server.code, Some(0), "{server_device}: {}{}", server.stdout, server.stderr);
    }
}

/// Interfaces with the same Ethernet address, such as those of VLANs, have the same link-local address.
#[test]
fn an_address_that_two_interfaces_have_needs_its_zone() {
    let Some(namespace) = Namespace::new() else { return };
    namespace.run(|| {
        std::fs::write("/proc/sys/net/ipv6/conf/default/accept_dad", "0").unwrap();
        for line in [
            "link add v0 address 02:00:00:00:00:01 type veth peer name v1",
            "link add w0 address 02:00:00:00:00:01 type veth peer name w1",
            "link set v1 up",
            "link set w1 up",
            "link set v0 up",
            "link set w0 up",
        ] {
            let output = Command::new("ip").args(line.split(' ')).output().unwrap();
            assert!(output.status.success(), "ip {line}: {}", String::from_utf8_lossy(&output.stderr));
        }
        // The kernel gives an interface its address a moment after it is up.
        let addresses = || std::fs::read_to_string("/proc/thread-self/net/if_inet6").unwrap();
        let begun = Instant::now();
        while addresses().matches("fe80000000000000000000fffe000001").count() < 2 {
            assert!(begun.elapsed() < Duration::from_secs(30), "{}", addresses());
            std::thread::sleep(Duration::from_millis(5));
        }
    });
    let refused = run_in(&namespace, &["devices", "--device", "udp:fe80::ff:fe00:1"]);
    assert_ne!(refused.code, Some(0));
    for part in ["several interfaces have the address", "v0, w0", "udp:fe80::ff:fe00:1%v0"] {
        assert!(refused.stderr.contains(part), "{}", refused.stderr);
    }
    for id in ["udp:fe80::ff:fe00:1%v0", "udp:[fe80::ff:fe00:1%w0]"] {
        let shown = run_in(&namespace, &["devices", "--device", id]);
        assert_eq!(shown.code, Some(0), "{id}: {}", shown.stderr);
    }
    let wrong = run_in(&namespace, &["devices", "--device", "udp:fe80::ff:fe00:1%v1"]);
    assert!(wrong.stderr.contains("does not have the address"), "{}", wrong.stderr);
}
