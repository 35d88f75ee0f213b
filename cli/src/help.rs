//! The headings and examples of the help of every command.
//!
//! One table contains the heading of each option, so that an option has the same place in every command. A
//! test fails for a new option without a heading.

use clap::{Arg, Command};

/// The heading of the options that every command has.
pub(super) const EVERY_COMMAND: &str = "Every command";
const CONNECTION: &str = "Connection";
const LOAD: &str = "Load";
const INPUT: &str = "Input and selection";
const ADDRESSES: &str = "Addresses and ICRC";
const OUTPUT: &str = "Output";
const DEVICE: &str = "Device and faults";

/// The options under each heading, by the names of their fields. The options of all commands follow under a
/// separate heading.
const HEADINGS: [(&str, &[&str]); 6] = [
    (
        CONNECTION,
        &[
            "address",
            "allow_peer",
            "bind_source_ip",
            "client",
            "clients",
            "comm_rdma_cm",
            "connection",
            "control",
            "exchange_port",
            "gid_idx",
            "gid_index",
            "ib_port",
            "listen",
            "max_memory",
            "mtu",
            "nic",
            "nic_memory",
            "nic_psn",
            "nic_qp",
            "nic_rkey",
            "nic_va",
            "once",
            "patience",
            "perftest",
            "persistent",
            "port",
            "qp_timeout",
            "rdma_cm",
            "retry_count",
            "server",
            "sl",
            "slack",
            "source",
            "tclass",
            "timeout",
            "tos",
        ],
    ),
    (
        LOAD,
        &[
            "all",
            "atomic_type",
            "bidirectional",
            "buffers",
            "completion",
            "cq_mod",
            "cpu_freq",
            "duration",
            "events",
            "frames",
            "in_flight",
            "inline",
            "inline_size",
            "iterations",
            "iters",
            "limit_bw",
            "limit_msgrate",
            "margin",
            "num_qp",
            "op",
            "outs",
            "post",
            "post_list",
            "qp",
            "quick",
            "rate",
            "reversed",
            "round_trips",
            "run_infinitely",
            "rx_depth",
            "signal",
            "size",
            "sizes",
            "speed",
            "tcp",
            "timing",
            "tx_depth",
            "verify",
            "count",
        ],
    ),
    (
        INPUT,
        &[
            "bad_icrc",
            "counters",
            "counters_of",
            "dscp",
            "ecn",
            "emit",
            "follow",
            "from",
            "icrc",
            "index",
            "limit",
            "list",
            "mark",
            "memory",
            "merge",
            "only",
            "opcode",
            "pid",
            "play",
            "psn",
            "scenario",
            "seeds",
            "set",
            "sweep",
            "sweeps",
            "threads",
            "time",
        ],
    ),
    (
        ADDRESSES,
        &[
            "destination_ip",
            "destination_mac",
            "destination_port",
            "keep_icrc",
            "source_ip",
            "source_mac",
            "source_port",
        ],
    ),
    (
        OUTPUT,
        &[
            "agent",
            "columns",
            "figure",
            "figure_width",
            "html",
            "interval",
            "json",
            "junit",
            "ladder",
            "live",
            "no_peak",
            "out",
            "out_json",
            "out_json_file",
            "output",
            "page",
            "prometheus",
            "quiet",
            "rdma_cm_target",
            "report",
            "report_gbits",
            "report_histogram",
            "report_unsorted",
            "rows",
            "stat",
            "svg",
            "tree",
            "verbose",
            "watch",
            "write",
            "zeros",
        ],
    ),
    (
        DEVICE,
        &[
            "alias",
            "congestion",
            "delay",
            "device",
            "dry_run",
            "fault",
            "kmax",
            "kmin",
            "left",
            "line_rate",
            "paths",
            "pcap",
            "pcap_limit",
            "pcap_port",
            "pfc",
            "pmax",
            "queue",
            "receive_fault",
            "recovery",
            "right",
            "seed",
            "snaplen",
            "step",
            "telemetry",
            "verbs_fault",
            "window",
            "xoff",
            "xon",
        ],
    ),
];

/// Options with another meaning in a command, and their heading there.
const ELSEWHERE: [(&str, &str, &str); 17] = [
    ("analyze", "connection", INPUT),
    ("analyze", "line_rate", INPUT),
    ("analyze", "port", INPUT),
    ("dissect", "address", INPUT),
    ("ladder", "connection", INPUT),
    ("peer", "connection", INPUT),
    ("ladder", "port", INPUT),
    ("dissect", "port", INPUT),
    ("dissect", "qp", INPUT),
    ("explain", "port", INPUT),
    ("bridge", "rate", DEVICE),
    ("run", "name", DEVICE),
    ("run", "gid_index", DEVICE),
    ("run", "engines", DEVICE),
    ("sim", "seed", INPUT),
    ("stat", "all", INPUT),
    ("stat", "count", OUTPUT),
];

/// The end of the help of each command.
const EXAMPLES: [(&str, &str); 19] = [
    (
        "analyze",
        "  roce analyze trace.pcapng\n  roce analyze sender.pcap receiver.pcap --html report.html\n  \
         roce analyze trace.pcap --only naks,timeouts --junit results.xml\n  \
         roce analyze trace.pcap --counters before.txt after.txt",
    ),
    (
        "ladder",
        "  roce ladder trace.pcapng\n  roce ladder trace.pcapng --connection 2 --rows 20 --svg ladder.svg",
    ),
    (
        "demo",
        "  roce demo\n  roce demo --pcap demo.pcapng --seed 7\n  roce demo --fault drop=5%,reorder=5% --json",
    ),
    ("devices", "  roce devices\n  roce devices --verbose\n  roce devices --device udp:127.0.0.1 --json"),
    (
        "ping",
        "  roce ping --device udp:127.0.0.1\n  roce ping 127.0.0.1 --device udp:127.0.0.2 --size 64 -n 1000\n  \
         roce ping 192.0.2.1 --op write --json\n  roce ping --clients 4",
    ),
    (
        "blast",
        "  roce blast --device udp:127.0.0.1\n  roce blast 127.0.0.1 --device udp:127.0.0.2 --op write\n  \
         roce blast 192.0.2.1 --fault drop=1% --seed 3 --pcap lossy.pcapng\n  \
         roce blast --clients 3 --once --json",
    ),
    (
        "pingpong",
        "  roce pingpong rc --device udp:127.0.0.1\n  roce pingpong rc 127.0.0.1 --device udp:127.0.0.2\n  \
         roce pingpong ud 192.0.2.1 -s 512 -n 100",
    ),
    (
        "bridge",
        "  roce bridge --left raw:eth0 --right raw:eth1 --fault drop=1%\n  \
         roce bridge --left tap:t0 --right tap:t1 --rate 1Gbps --duration 10s",
    ),
    ("limit", "  roce limit --device udp:127.0.0.1\n  roce limit 127.0.0.1 --device udp:127.0.0.2 --tcp"),
    ("rping", "  roce rping -s -a 127.0.0.1 -v\n  roce rping -c -a 127.0.0.1 -I 127.0.0.2 -C 10 -v -V"),
    (
        "perf",
        "  roce perf write bw --device udp:127.0.0.1\n  roce perf write bw 127.0.0.1 -d udp:127.0.0.2 -s 65536 -n 1000\n  \
         roce perf send lat 192.0.2.1 -c UD -n 1000 --report-histogram",
    ),
    (
        "peer",
        "  roce peer\n  roce peer gap-one-nak write-duplicate --pcap peer.pcapng\n  \
         roce peer mine.roce --junit results.xml\n  roce peer --from capture.pcapng > mine.roce\n  \
         roce peer key-unknown --device udp:127.0.0.1 --perftest 127.0.0.2\n  \
         roce peer --agent > verbs_agent.c\n  roce peer --device udp:192.0.2.1 --control 192.0.2.2\n  \
         roce peer gap-one-nak --device udp:192.0.2.1 --rdma-cm 192.0.2.2:7174",
    ),
    ("doctor", "  roce doctor\n  roce doctor 192.0.2.1\n  roce doctor 192.0.2.1 --device raw:eth0 --json"),
    (
        "stat",
        "  roce stat --all\n  roce stat --watch 1 --count 10\n  roce stat --all --prometheus > roce.prom",
    ),
    (
        "why",
        "  roce why IBV_WC_RETRY_EXC_ERR\n  roce why 12\n  roce why 0x81 0x88\n  roce why --pid 4711 --json",
    ),
    (
        "explore",
        "  roce explore\n  roce explore trace.pcapng\n  roce explore growing.pcapng --follow --port 8470",
    ),
    (
        "study",
        "  roce study --quick --out quick\n  roce study --out full\n  roce study --quick --only udp-loopback/ping/send --list\n  \
         roce study --out full --figure latency-small-all --figure-width 3.3",
    ),
    (
        "run",
        "  roce run ibv_devinfo -v\n  roce run --device udp:127.0.0.1 -- ib_write_bw -d roce0\n  \
         roce run --fault drop=1% --pcap lossy.pcapng ibv_rc_pingpong -g 0 192.0.2.1\n  \
         roce run --verbs-fault ibv_reg_mr:3=ENOMEM ib_write_bw -d roce0 192.0.2.1",
    ),
    (
        "sim",
        "  roce sim --list\n  roce sim two-to-one --out report\n  \
         roce sim two-to-one --sweep host.congestion=dcqcn,swift --json\n  \
         roce sim incast --seeds 5 --figure cdf --figure-width 7 --out cdf.pdf",
    ),
];

/// Adds headings and examples to the command line.
pub(super) fn with_headings(command: Command) -> Command {
    command.mut_subcommands(|command| {
        let name = command.get_name().to_owned();
        let with_headings = command.mut_args(|arg| match heading(&name, &arg) {
            Some(heading) => arg.help_heading(heading),
            None => arg,
        });
        match EXAMPLES.iter().find(|(of, _)| *of == name) {
            Some((_, examples)) => with_headings.after_help(format!("Examples:\n{examples}")),
            None => with_headings,
        }
    })
}

/// Returns the heading of an option. Arguments without a name are shown above all headings.
fn heading(command: &str, arg: &Arg) -> Option<&'static str> {
    if arg.is_positional() || arg.get_help_heading() == Some(EVERY_COMMAND) {
        return None;
    }
    let id = arg.get_id().as_str();
    let elsewhere = ELSEWHERE.iter().find(|(of, name, _)| *of == command && *name == id);
    let usual = || HEADINGS.iter().find(|(_, names)| names.contains(&id)).map(|(heading, _)| *heading);
    elsewhere.map(|(_, _, heading)| *heading).or_else(usual)
}

#[cfg(test)]
mod tests;
