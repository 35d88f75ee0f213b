//! Traffic inside a VXLAN through the bridge, where the kernel joins packets and does not split them again.

use super::*;

/// Creates a VXLAN between both hosts, over IPv4 or IPv6, with the addresses 198.19.0.1 and 198.19.0.2.
/// Returns `None` if the kernel does not support VXLAN.
fn vxlan(row: &Row, underlay: [&str; 2], options: &str) -> Option<()> {
    for (end, number, [own, other]) in [(&row.left, 1, underlay), (&row.right, 2, [underlay[1], underlay[0]])]
    {
        let dev = if number == 1 { "l0" } else { "r0" };
        let line = format!(
            "ip link add vx type vxlan id 72 local {own} remote {other} dstport 4789 dev {dev} {options}"
        );
        let made = end.run(move || std::process::Command::new("sh").args(["-c", &line]).output());
        let made = made.is_ok_and(|output| output.status.success());
        if skip_unless(made, "the kernel has no VXLAN") {
            return None;
        }
        end.ip(&[
            &format!("address add 198.19.0.{number}/24 dev vx"),
            "link set dev vx mtu 4000",
            "link set dev vx up",
        ]);
    }
    Some(())
}

/// Regression: the bridge retried one joined frame inside a VXLAN forever, because the kernel refused it with
/// ENOMEM. No later frame was forwarded.
#[test]
fn joined_packets_in_a_tunnel_are_forwarded() {
    let underlays: [([&str; 2], &str); 3] = [
        (["198.18.0.1", "198.18.0.2"], "noudpcsum"),
        (["198.18.0.1", "198.18.0.2"], "udpcsum"),
        (["2001:db8::1", "2001:db8::2"], ""),
    ];
    for (underlay, options) in underlays {
        within(120, move || {
            let Some(row) = Row::new() else { return };
            let Some(()) = vxlan(&row, underlay, options) else { return };
            let bridge = row.bridge(&[]);
            tcp_there_and_back(&row.left, &row.right, "198.19.0.2:5000", 1 << 20);
            // UDP segmentation offload in the tunnel.
            let mut command = roce();
            command.args(["blast", "--once", "--device", "udp:198.19.0.2"]);
            let mut server = row.right.run(move || Running::start(&mut command));
            server.wait_for_line("waiting on");
            let mut command = roce();
            command.args(["blast", "198.19.0.2", "-n", "16", "-s", "64K", "--device", "udp:198.19.0.1"]);
            // Concurrent tests may delay a process for longer than the default timeout of half a second.
            command.args(["--timeout", "18"]);
            let client = row.left.run(move || Running::start(&mut command)).finish(60);
            assert!(client.success, "{client:?}");
            ping(&row);
            let document = end(bridge);
            for direction in ["from_left", "from_right"] {
                let device = &document[direction]["device_counters"];
                assert!(device["raw_tx_finished"].as_u64() > Some(0), "{options}: {document:#}");
                for dropped in ["raw_tx_gave_up", "raw_tx_refused", "raw_tx_too_long", "raw_rx_bad_kind"] {
                    assert_eq!(device[dropped], 0, "{dropped}, {options}: {document:#}");
                }
            }
        });
    }
}
