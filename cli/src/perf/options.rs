//! Every option of perftest (release 6.29), and its treatment here.
//!
//! Options that work are separate arguments. This file adds the others to the command line, so that each of
//! them is accepted or refused with the reason. docs/reference/perftest.md contains the table, and a test
//! compares the two.

use clap::error::{Error, ErrorKind};
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command};

/// The treatment of an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Treatment {
    /// The option has its effect.
    Works,
    /// The option is accepted and changes nothing, for this reason.
    Ignored(&'static str),
    /// The option is refused, for this reason.
    Refused(&'static str),
}

use Treatment::{Ignored, Refused, Works};

/// One option of perftest.
#[derive(Clone, Copy, Debug)]
pub(super) struct PerftestOption {
    /// The name of the argument on our command line.
    id: &'static str,
    /// The long name.
    pub(super) long: &'static str,
    /// The short name.
    pub(super) short: Option<char>,
    /// An example of the value, if the option has one.
    pub(super) value: Option<&'static str>,
    /// The treatment.
    pub(super) treatment: Treatment,
}

macro_rules! options {
    ($($long:literal $(-$short:literal)? $(= $value:literal)?: $treatment:expr;)*) => {
        &[$(PerftestOption {
            id: concat!("perftest-", $long),
            long: $long,
            short: options!(@optional $($short)?),
            value: options!(@optional $($value)?),
            treatment: $treatment,
        }),*]
    };
    (@optional) => { None };
    (@optional $given:literal) => { Some($given) };
}

const NO_GPU: Treatment = Refused("roce does not support GPU memory; leave it out");
const RAW: Treatment = Refused(
    "this option belongs to raw_ethernet_bw, and roce perf does not send raw Ethernet; `roce limit` measures \
     a device without RoCE",
);
const NO_DC: Treatment = Refused("this option belongs to the DC transport of mlx5; use -c RC, UC or UD");
const NO_CRYPTO: Treatment = Refused("roce supports neither encryption nor signatures; leave it out");
const NO_PCIE: Treatment = Ignored("roce is not a PCIe device");
const NO_HINT: Treatment = Refused("roce is not a PCIe device, so it has no use for hints; leave it out");
const BY_TASKSET: Treatment =
    Refused("the operating system places processes; start roce with taskset or numactl");
const NO_SHAPING: Treatment =
    Refused("roce limits its rate by congestion control; use --congestion fixed:10G or another rate");
const ONE_PORT: Treatment = Refused("a device of roce has one port; leave it out");
const ONE_MESSAGE: Treatment = Refused(
    "roce perf measures SEND, WRITE, READ and atomics without immediate data; `roce blast --op write-imm` measures WRITE with immediate data",
);

/// All options, in the order of perftest.
pub(super) const OPTIONS: &[PerftestOption] = options! {
    "port" -'p' = "18600": Works;
    "ib-dev" -'d' = "udp:127.0.0.1": Works;
    "ib-port" -'i' = "1": Works;
    "mtu" -'m' = "1024": Works;
    "size" -'s' = "4096": Works;
    "iters" -'n' = "100": Works;
    "tx-depth" -'t' = "16": Works;
    "qp-timeout" -'u' = "18": Works;
    "sl" -'S' = "3": Works;
    "gid-index" -'x' = "1": Works;
    "all" -'a': Works;
    "CPU-freq" -'F': Ignored("roce measures time with the system clock");
    "connection" -'c' = "UC": Works;
    "qp" -'q' = "4": Works;
    "events" -'e': Works;
    "vector" -'X' = "0": Refused("a device of roce has one completion vector; leave it out");
    "inline_size" -'I' = "64": Works;
    "outs" -'o' = "8": Works;
    "mcg" -'g': Refused("roce perf does not support multicast groups; use -c UD without -g");
    "comm_rdma_cm" -'z': Works;
    "rdma_cm" -'R': Works;
    "tos" -'T' = "104": Works;
    "hop_limit" -'L' = "8": Refused("perftest uses this option only for raw Ethernet; roce perf sends packets with a hop limit of 64");
    "help" -'h': Works;
    "MGID" -'M' = "ff0e::1": Refused("roce perf does not support multicast groups; use -c UD without -M");
    "rx-depth" -'r' = "64": Works;
    "bidirectional" -'b': Works;
    "cq-mod" -'Q' = "10": Works;
    "noPeak" -'N': Works;
    "version" -'V': Works;
    "report-cycles" -'C': Refused("roce measures time, not processor cycles; leave it out");
    "report-histogrm" -'H': Works;
    "report-unsorted" -'U': Works;
    "atomic_type" -'A' = "CMP_AND_SWAP": Works;
    "dualport" -'O': ONE_PORT;
    "post_list" -'l' = "4": Works;
    "duration" -'D' = "2": Works;
    "margin" -'f' = "1": Works;
    "source_mac" -'B' = "02:00:00:00:00:01": RAW;
    "dest_mac" -'E' = "02:00:00:00:00:02": RAW;
    "dest_ip" -'J' = "198.18.0.2": RAW;
    "source_ip" -'j' = "198.18.0.1": RAW;
    "dest_port" -'K' = "1": RAW;
    "source_port" -'k' = "1": RAW;
    "ethertype" = "0x800": RAW;
    "limit_bw" -'w' = "1": Works;
    "limit_msgrate" -'y' = "1": Works;
    "server" -'Z': RAW;
    "client" -'P': RAW;
    "mac_fwd" -'v': RAW;
    "use_rss": RAW;
    "report-counters" -'W' = "rcvd_pkts": Refused("`roce stat` shows the counters of a running process");
    "force-link" = "Ethernet": Refused("the link of roce is always Ethernet; leave it out");
    "remote_mac" = "02:00:00:00:00:01": RAW;
    "local_mac" = "02:00:00:00:00:02": RAW;
    "remote_ip" = "198.18.0.2": RAW;
    "local_ip" = "198.18.0.1": RAW;
    "remote_port" = "1": RAW;
    "local_port" = "1": RAW;
    "run_infinitely": Works;
    "report_gbits": Works;
    "use-srq": Refused("roce perf gives each queue pair its own receives; `roce pingpong srq` uses a shared receive queue");
    "no_lock": Ignored("a queue pair of roce does not have a separate lock");
    "use-null-mr": Refused("roce perf verifies received messages, so it needs memory; leave it out");
    "report-both": Refused("roce perf -b prints the sum of both directions; run each direction alone for its own figures");
    "reversed": Works;
    "pkey_index" = "0": Refused("a device of roce has one P_Key, 0xffff at index 0; leave it out");
    "tcp": RAW;
    "burst_size" = "1": NO_SHAPING;
    "typical_pkt_size" = "1024": NO_SHAPING;
    "rate_limit" = "10": NO_SHAPING;
    "rate_limit_type" = "SW": NO_SHAPING;
    "rate_units" = "g": NO_SHAPING;
    "output" = "bandwidth": Works;
    "cpu_util": Refused("`roce blast` shows processor time");
    "out_json": Works;
    "out_json_file" = "perftest.json": Works;
    "latency_gap" = "10": Refused("roce perf sends the next message of a latency test at once; leave it out");
    "flow_label" = "1": Refused("roce derives the source port from the numbers of the queue pairs; leave it out");
    "retry_count" = "3": Works;
    "dont_xchg_versions": Refused("the release of the other side determines the exchanged blocks; leave it out on both sides");
    "payload_file_path" = "payload.txt": Refused("roce perf sends its own content, which the other side verifies; leave it out");
    "use_cuda" = "0": NO_GPU;
    "use_cuda_bus_id" = "0": NO_GPU;
    "use_cuda_dmabuf": NO_GPU;
    "use_cuda_pcie_mapping": NO_GPU;
    "use_data_direct": NO_GPU;
    "cuda_mem_type" = "0": NO_GPU;
    "use_musa" = "0": NO_GPU;
    "use_musa_bus_id" = "0": NO_GPU;
    "use_musa_dmabuf": NO_GPU;
    "use_musa_pcie_mapping": NO_GPU;
    "use_rocm" = "0": NO_GPU;
    "use_rocm_dmabuf": NO_GPU;
    "use_neuron" = "0": NO_GPU;
    "use_neuron_dmabuf": NO_GPU;
    "use_hl" = "0": NO_GPU;
    "use_mlu" = "0": NO_GPU;
    "use_mlu_dmabuf": NO_GPU;
    "use_opencl" = "0": NO_GPU;
    "opencl_platform_id" = "0": NO_GPU;
    "use_ib_dm_dmabuf" = "1": NO_GPU;
    "gpu_touch" = "once": NO_GPU;
    "mmap" = "file": Refused("roce perf allocates its own memory; leave it out");
    "mmap-offset" = "0": Refused("roce perf allocates its own memory; leave it out");
    "ipv6": Ignored("the GID follows from the address of the server; -x chooses another one");
    "ipv6-addr": Ignored("the address of the server determines the IP version");
    "raw_ipv6": RAW;
    "report-per-port": ONE_PORT;
    "odp": Ignored("roce does not pin memory");
    "use_hugepages": Refused("roce perf allocates ordinary pages; leave it out");
    "use_old_post_send": Ignored("roce has only one interface to post requests");
    "promiscuous": RAW;
    "sniffer": RAW;
    "raw_mcast": RAW;
    "mr_per_qp": Refused("the queue pairs of roce perf share their memory regions; leave it out");
    "dlid" = "1": Refused("RoCE has no LIDs; leave it out");
    "tclass" = "104": Works;
    "wait_destroy" = "1": Refused("roce perf exits immediately; leave it out");
    "flows" = "1": RAW;
    "flows_burst" = "1": RAW;
    "reply_every" = "1": RAW;
    "perform_warm_up": Refused("-D with -f leaves out the first seconds of a test");
    "vlan_en": RAW;
    "vlan_pcp" = "1": RAW;
    "recv_post_list" = "4": Refused("roce perf posts receives one at a time; leave it out");
    "log_dci_streams" = "1": NO_DC;
    "log_active_dci_streams" = "1": NO_DC;
    "aes_xts": NO_CRYPTO;
    "encrypt_on_tx": NO_CRYPTO;
    "sig_before": NO_CRYPTO;
    "aes_block_size" = "512": NO_CRYPTO;
    "data_enc_keys_number" = "1": NO_CRYPTO;
    "kek_path" = "file": NO_CRYPTO;
    "credentials_path" = "file": NO_CRYPTO;
    "data_enc_key_app_path" = "file": NO_CRYPTO;
    "disable_pcie_relaxed": NO_PCIE;
    "use_ooo": Refused("roce keeps the order of packets; leave it out");
    "congest_type" = "DCQCN": Refused("use --congestion dcqcn or another algorithm of roce");
    "bind_source_ip" = "127.0.0.1": Works;
    "write_with_imm": ONE_MESSAGE;
    "send_with_imm": ONE_MESSAGE;
    "no_enhanced_reorder": Refused("roce keeps the order of packets; leave it out");
    "unsolicited_write": Refused("this option belongs to the SRD transport of EFA; use -c RC, UC or UD");
    "connectionless": Refused("roce perf first agrees on a test with the other side; leave it out on both sides");
    "cqe_poll" = "16": Ignored("roce perf fetches up to 32 completions at once");
    "tph_mem" = "vm": NO_HINT;
    "cpu_id" = "0": NO_HINT;
    "ph" = "0": NO_HINT;
    "disable_dynamic_polling": Ignored("roce perf fetches up to 32 completions at once");
    "sig_offload": NO_CRYPTO;
    "data_validation": Refused("two `roce perf` always verify every message; leave it out, because perftest exchanges other blocks with it");
    "data_validation_debug": Refused("two `roce perf` always verify every message; leave it out");
    "pin_cores" = "0": BY_TASKSET;
    "numa_node" = "0": BY_TASKSET;
    "disable_numa": Ignored("the operating system chooses the processor");
};

/// The options that are not separate arguments.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Others;

impl clap::Args for Others {
    fn augment_args(command: Command) -> Command {
        let others = OPTIONS.iter().filter(|option| option.treatment != Works);
        others.fold(command, |command, option| {
            let arg = Arg::new(option.id).long(option.long).hide(true);
            let arg = option.short.into_iter().fold(arg, Arg::short);
            command.arg(match option.value {
                Some(_) => arg.action(ArgAction::Append).allow_hyphen_values(true),
                None => arg.action(ArgAction::Count),
            })
        })
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl clap::FromArgMatches for Others {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        for option in OPTIONS {
            if let Refused(reason) = option.treatment
                && matches.value_source(option.id) == Some(ValueSource::CommandLine)
            {
                let name = option.short.map_or_else(String::new, |short| format!("-{short}, "));
                let text = format!("perftest's {name}--{}: {reason}\n", option.long);
                return Err(Error::raw(ErrorKind::InvalidValue, text));
            }
        }
        Ok(Self)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
