//! TAPs in separate network namespaces.

use std::time::{Duration, Instant as StdInstant};

use roce_testing::Namespace;

use super::*;
use crate::framed::port::Split;

/// Longer than any step takes.
const PATIENCE: Duration = Duration::from_secs(20);

/// Returns a namespace in which TAPs can be created.
#[track_caller]
fn namespace() -> Option<Namespace> {
    let namespace = Namespace::new()?;
    let has_driver = std::path::Path::new(DRIVER).exists();
    if roce_testing::skip_unless(has_driver, "there is no /dev/net/tun; `modprobe tun` makes it") {
        return None;
    }
    Some(namespace)
}

#[track_caller]
fn ports(namespace: &Namespace, spec: &str) -> (TapPort, OwnHost) {
    let spec: TapSpec = spec.parse().unwrap();
    namespace.run(move || open(&spec)).unwrap()
}

fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|place| (place * 31 + place / 251 + seed) as u8).collect()
}

#[test]
fn superframes_stay_whole_between_taps() {
    let Some(namespace) = namespace() else { return };
    namespace.ip(&["link add br0 type bridge mcast_snooping 0", "link set br0 up"]);
    let (mut near, _) = ports(&namespace, "tap:roce2,ip=198.18.0.2/24");
    let (mut far, _) = ports(&namespace, "tap:roce3,ip=198.18.0.3/24");
    namespace.ip(&["link set roce2 master br0", "link set roce3 master br0"]);
    if near.record.max_segments == 1 {
        // Kernels before 6.2 do not split frames.
        return;
    }
    let (segment_len, segments) = (1000, 5);
    let frame = superframe(near.record.mac, far.record.mac, segment_len, segments);
    let split = Split { segment_len: segment_len as u16, udp_offset: 34, headers_len: 42, is_ipv4: true };
    let slot = near.slot().unwrap();
    slot[100..100 + frame.len()].copy_from_slice(&frame);
    near.commit(Outgoing { bytes: 100..100 + frame.len(), split: Some(split) });
    near.flush(Instant::ZERO).unwrap();
    assert_eq!((near.counters.tx_refused, near.counters.tx_dropped), (0, 0));
    let end = StdInstant::now() + PATIENCE;
    let mut found = None;
    while found.is_none() && StdInstant::now() < end {
        far.receive(&mut |arrived| {
            if arrived.head.get(..6) == Some(&frame[..6]) {
                found = Some((arrived.segment_len, arrived.head[42..].to_vec()));
            }
        })
        .unwrap();
    }
    let (arrived_len, payload) = found.expect("it arrives");
    assert_eq!(arrived_len, Some(1000));
    assert!(payload == frame[42..], "the content is right");
}

/// Returns IPv4 UDP datagrams behind one header, as the framed device writes them.
fn superframe(
    source: roce_packet::MacAddr,
    destination: roce_packet::MacAddr,
    len: usize,
    count: usize,
) -> Vec<u8> {
    let payload = pattern(len * count, 9);
    let udp_len = (8 + payload.len()) as u16;
    let mut ip = vec![0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, 17, 0, 0, 198, 18, 0, 2, 198, 18, 0, 3];
    ip[2..4].copy_from_slice(&(20 + udp_len).to_be_bytes());
    let sum = !smoltcp::wire::checksum::data(&ip);
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    let addresses = smoltcp::wire::checksum::data(&ip[12..20]);
    let pseudo = smoltcp::wire::checksum::combine(&[addresses, 17, udp_len]);
    let mut udp = vec![0x12, 0xb7, 0x12, 0xb7, 0, 0, 0, 0];
    udp[4..6].copy_from_slice(&udp_len.to_be_bytes());
    udp[6..8].copy_from_slice(&pseudo.to_be_bytes());
    [&destination.0[..], &source.0, &[8, 0], &ip, &udp, &payload].concat()
}

#[test]
fn a_link_that_is_down_loses_frames_and_one_that_is_deleted_is_an_error() {
    let Some(namespace) = namespace() else { return };
    let (mut port, _) = ports(&namespace, "tap:roce0,ip=198.18.0.2/24");
    let send = |port: &mut TapPort| {
        port.slot().expect("room")[..60].fill(0xff);
        port.commit(Outgoing { bytes: 0..60, split: None });
        port.flush(Instant::ZERO)
    };
    namespace.ip(&["link set roce0 down"]);
    send(&mut port).unwrap();
    assert_eq!(port.counters.tx_dropped, 1);
    namespace.ip(&["link set roce0 up"]);
    send(&mut port).unwrap();
    assert_eq!(port.counters.tx_dropped, 1);
    namespace.ip(&["link delete roce0"]);
    let error = send(&mut port).unwrap_err().to_string();
    assert!(error.contains("roce0 has been deleted"), "{error}");
    let error = port.receive(&mut |_| {}).unwrap_err().to_string();
    assert!(error.contains("roce0 has been deleted"), "{error}");
}

#[test]
fn whether_taps_can_be_made_is_known_without_making_one() {
    let Some(namespace) = namespace() else { return };
    let before = namespace.run(|| std::fs::read_to_string("/proc/thread-self/net/dev")).unwrap();
    assert_eq!(namespace.run(availability), Availability::Usable(Vec::new()));
    let after = namespace.run(|| std::fs::read_to_string("/proc/thread-self/net/dev")).unwrap();
    assert_eq!(before.lines().count(), after.lines().count());
    // Without the privilege, the availability reports it as missing.
    let lacking = namespace.run(|| {
        use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
        let all = capabilities(None).unwrap();
        let mut none = all;
        none.effective.remove(CapabilitySet::NET_ADMIN);
        set_capabilities(None, none).unwrap();
        let lacking = availability();
        let refused = open(&"tap:roce0,ip=198.18.0.2/24".parse().unwrap()).map(|_| ()).unwrap_err();
        set_capabilities(None, all).unwrap();
        (lacking, refused.to_string())
    });
    let Availability::Lacks(reason) = &lacking.0 else { panic!("{lacking:?}") };
    assert!(reason.contains("CAP_NET_ADMIN"), "{reason}");
    assert!(
        lacking.1.contains("this needs CAP_NET_ADMIN") && lacking.1.contains("unshare -Urn"),
        "{}",
        lacking.1
    );
}
