//! The options of all subcommands that send packets: device, capture, faults, seed, congestion control.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Context as _;
use roce_fault::{FaultInjector, FaultPlan};
use roce_transport::{Recovery, with_causes};

use super::algorithms;
use roce::verbs::{Congestion, Context, ContextBuilder, NotificationPoint, Paths, Rate};
use roce_device::pcap::{CaptureFile, CaptureSpec};
use roce_device::{Device, OpenOptions};

/// Options of every subcommand that sends packets.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct DeviceArgs {
    /// Device to use, such as udp:192.0.2.1; `roce devices` lists them
    #[arg(long, value_name = "DEVICE")]
    pub(super) device: Option<String>,

    /// Write every packet sent and received to this file (pcapng)
    ///
    /// The file also contains packets that --fault drops, with a comment. The timestamp of a packet is the
    /// time when this process handed it to the device or read it from the device, not its time on the wire.
    #[arg(long, value_name = "FILE")]
    pub(super) pcap: Option<PathBuf>,

    /// The interfaces of that file: a server may open a device for each address that clients call.
    #[arg(skip)]
    pub(super) captures: Captures,

    /// Write only this many bytes of each packet to --pcap; 128 bytes contain every header
    #[arg(long, value_name = "BYTES", requires = "pcap", hide_short_help = true)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) snaplen: Option<u32>,

    /// Write at most this many packets to --pcap
    #[arg(long, value_name = "PACKETS", requires = "pcap", hide_short_help = true)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) pcap_limit: Option<u64>,

    /// Faults to inject into sent packets, such as drop=1%,reorder=2%,ecn=5%
    #[arg(long, value_name = "PLAN", long_help = FAULT_HELP)]
    pub(super) fault: Option<FaultPlan>,

    /// Faults to inject into received packets, such as drop=1%; same syntax as --fault
    #[arg(long, value_name = "PLAN", hide_short_help = true)]
    pub(super) receive_fault: Option<FaultPlan>,

    /// Seed that makes queue pair numbers, keys, PSNs and faults reproducible
    #[arg(long, value_name = "N")]
    pub(super) seed: Option<u64>,

    /// Largest number of unacknowledged PSNs per queue pair [default: 256]
    #[arg(long, value_name = "PACKETS", value_parser = clap::value_parser!(u32).range(1..=8_388_607))]
    pub(super) window: Option<u32>,

    /// Congestion control, such as dcqcn, dcqcn:paper,rpg_ai_rate=40, swift or fixed:10G [default: none]
    #[arg(long, value_name = "ALGORITHM", value_parser = algorithms::parse_congestion, long_help = CONGESTION_HELP)]
    pub(super) congestion: Option<(Congestion, NotificationPoint)>,

    /// Rate of the link, such as 25G: limits the rate of sending, and is the initial rate of congestion
    /// control [default: no limit]
    #[arg(long, value_name = "RATE", hide_short_help = true)]
    pub(super) line_rate: Option<Rate>,

    /// Send and accept in-band telemetry, which hpcc and powertcp need; not part of any standard, so both
    /// sides must use it
    #[arg(long, hide_short_help = true, long_help = TELEMETRY_HELP)]
    pub(super) telemetry: bool,

    /// Packets to retransmit after a loss: go-back-n, or selective-repeat if both sides use it [default:
    /// go-back-n]
    #[arg(
        long,
        value_name = "RECOVERY",
        value_parser = parse::<Recovery>,
        hide_short_help = true,
        long_help = RECOVERY_HELP
    )]
    pub(super) recovery: Option<Recovery>,

    /// UDP source ports of the packets of a queue pair: one, or several with round-robin, penalty, recycle or
    /// reps [default: one]
    #[arg(long, value_name = "PATHS", value_parser = algorithms::parse_paths, hide_short_help = true, long_help = PATHS_HELP)]
    pub(super) paths: Option<Paths>,
}

/// The interfaces of a capture file, by the name of their devices.
#[derive(Clone, Debug, Default)]
pub(super) struct Captures(Arc<Mutex<Vec<(String, CaptureFile)>>>);

const CONGESTION_HELP: &str = "\
Congestion control of the queue pairs of this side [default: none].

  none              no limit besides the device and the window
  fixed:RATE        a constant rate, such as fixed:10G
  dcqcn[:PRESET]    the algorithm of RDMA NICs, with the preset paper,
                    cx-default, hpcc, ns3 or tester
  dctcp             a window that reacts to ECN marks
  swift             a window that reacts to delay
  timely            a rate that reacts to the gradient of the delay
  theta-powertcp    a window that reacts to delay and its growth
  nscc              a window that reacts to echoed marks, delay and trimming
  hpcc, powertcp    windows that need --telemetry on both sides

Parameters follow as name=value, separated by commas, such as dcqcn:paper,rpg_ai_rate=40. The list may \
also contain parameters that control how this side answers marked packets, such as \
min_time_between_cnps=50. docs/reference/congestion.md lists all of them.";

const TELEMETRY_HELP: &str = "\
Send and accept in-band telemetry, which hpcc and powertcp need; not part of any standard, so both sides \
must use it.

Data packets of queue pairs with such an algorithm carry a trailer of 52 bytes after the ICRC. Switches \
that support it, such as `roce bridge --telemetry`, write their queue length into it, and acknowledgements \
return it. Without such a switch, the algorithms keep their initial window. A side without --telemetry \
drops data with a trailer and counts rx_telemetry_refused. The trailer has to fit the MTU of the link \
together with the path MTU.";

const RECOVERY_HELP: &str = "\
Packets to retransmit after a loss [default: go-back-n].

  go-back-n         the lost packet and all packets after it, which
                    works with every peer
  selective-repeat  only lost packets; not part of any standard,
                    so both sides must use it

Parameters of selective-repeat follow as name=value: cap (packets), rto_low and rto_high (us), few \
(packets), reorder (packets). The default timeouts of 100 and 320 us suit hardware; a process that the \
scheduler can suspend needs longer ones, such as selective-repeat:rto_low=20000,rto_high=20000. \
docs/reference/loss-recovery.md has the details.";

const PATHS_HELP: &str = "\
UDP source ports of the packets of a queue pair, by which switches choose among several paths [default: one].

  one          one port, so one path
  round-robin  all ports in turn
  penalty      all ports in turn, but fewer turns for ports whose packets
               were marked, trimmed or lost
  recycle      ports whose packets arrived without a mark, again
  reps         the same, of the last packets only; after a loss these
               alone

Parameters follow as name=value: paths, losses (packets), probe (us), and of reps cache, freeze (us), \
explore (packets). Packets overtake each other, so both sides need --recovery selective-repeat with reorder. \
docs/reference/paths.md has the details.";

const FAULT_HELP: &str = "\
Faults to inject into sent packets.

Rates, separated by commas, apply to all packets: drop=1%, dup=0.5%, reorder=2%, corrupt=0.1%, ecn=5%, \
delay=50us or delay=10us-1ms@20%.

Rules, separated by semicolons, apply to selected packets; the first rule that matches decides:
  rule:qp=0x11,psn=5,pass=1,action=drop

Conditions: qp, rqp (queue pairs numbered by first appearance), psn, rpsn (relative to the first PSN seen), \
opcode (name, prefix* or number), pass (1 for the first time this PSN is seen), len (bytes from BTH to \
ICRC), chance, times, after, until.

Actions: drop, dup, reorder, corrupt, ecn, force-ecn, clear-ecn, clear-dscp, delay:TIME, deliver.";

/// Sets an option if it has a value.
pub(super) fn set<T>(
    builder: ContextBuilder,
    value: Option<T>,
    setter: impl FnOnce(ContextBuilder, T) -> ContextBuilder,
) -> ContextBuilder {
    match value {
        Some(value) => setter(builder, value),
        None => builder,
    }
}

impl DeviceArgs {
    /// Opens a context on the device that the user chose, or on `default`.
    pub(super) fn open(&self, default: impl FnOnce() -> anyhow::Result<String>) -> anyhow::Result<Context> {
        let (device, _) = self.open_device(default)?;
        Ok(self.builder().attach_box(device)?)
    }

    /// Returns the builder of a context with these options.
    pub(super) fn builder(&self) -> ContextBuilder {
        let builder = set(Context::builder(), self.seed, ContextBuilder::seed);
        let builder = set(builder, self.window, ContextBuilder::window);
        let builder = set(builder, self.congestion.clone(), ContextBuilder::congestion);
        let builder = set(builder, self.line_rate, ContextBuilder::line_rate);
        let builder = set(builder, self.recovery, ContextBuilder::recovery);
        let builder = set(builder, self.paths.clone(), ContextBuilder::paths).telemetry(self.telemetry);
        // The variable takes precedence. Otherwise `roce stat` shows every command.
        if std::env::var_os("ROCE_STAT").is_some() { builder } else { builder.publish(true) }
    }

    /// Opens the device without a context; also returns its name.
    pub(super) fn open_device(
        &self,
        default: impl FnOnce() -> anyhow::Result<String>,
    ) -> anyhow::Result<(Box<dyn Device>, String)> {
        let spec = match &self.device {
            Some(spec) => spec.clone(),
            None => default()?,
        };
        let mut options = OpenOptions::default();
        if let Some(plan) = &self.fault {
            options.transmit_faults = Some(FaultInjector::new(plan.clone(), self.fault_seed()));
        }
        if let Some(plan) = &self.receive_fault {
            options.receive_faults = Some(FaultInjector::new(plan.clone(), !self.fault_seed()));
        }
        if let Some(path) = &self.pcap {
            let capture = self.capture(path, &spec);
            let failed = || format!("cannot create the capture file {}", path.display());
            options.capture = Some(Box::new(capture.with_context(failed)?));
        }
        Ok((roce_device::open(&spec, options)?, spec))
    }

    /// Returns the interface of a device in the capture file. The first device creates the file, and the
    /// others share it.
    fn capture(&self, path: &Path, spec: &str) -> anyhow::Result<CaptureFile> {
        let mut interfaces = self.captures.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, file)) = interfaces.iter().find(|(known, _)| known == spec) {
            return Ok(file.clone());
        }
        let file = match interfaces.first() {
            Some((_, file)) => file.add_interface(spec)?,
            None => {
                let mut capture = CaptureSpec::new(path.to_owned());
                capture.snap_len = self.snaplen;
                capture.max_packets = self.pcap_limit;
                capture.create(&[spec])?.into_iter().next().context("the file has no interface")?
            }
        };
        interfaces.push((spec.to_owned(), file.clone()));
        Ok(file)
    }

    /// Flushes the capture file. A server that is ended by Ctrl-C writes nothing more.
    pub(super) fn flush_captures(&self) {
        let interfaces = self.captures.0.lock().unwrap_or_else(PoisonError::into_inner);
        interfaces.iter().for_each(|(_, file)| file.flush());
    }

    fn fault_seed(&self) -> u64 {
        self.seed.unwrap_or_else(|| fastrand::u64(..))
    }
}

/// Parses the value of `--recovery` and of `--paths`. clap prints an error without its sources.
fn parse<T: FromStr<Err: Error>>(text: &str) -> Result<T, String> {
    text.parse().map_err(|error| with_causes(&error).to_string())
}
