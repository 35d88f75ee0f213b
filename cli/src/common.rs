//! Options and helpers of all subcommands that send packets: device, capture, faults, seed.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use roce_fault::{FaultInjector, FaultPlan};
use roce_packet::{PathMtu, ROCE_UDP_PORT};
use roce_transport::Recovery;

use super::algorithms;
use roce::tcp::Tcp;
use roce::verbs::{Congestion, Context, ContextBuilder, NotificationPoint, Rate};
use roce_device::pcap::CaptureFile;
use roce_device::{Device, OpenOptions};

/// The port of the TCP exchange through which our own tools set up connections.
pub(super) const EXCHANGE_PORT: u16 = 18_520;
/// How long a client waits for a server that was started at the same time to listen.
pub(super) const LISTENING: Duration = Duration::from_secs(5);

/// Options of every subcommand that sends packets.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct DeviceArgs {
    /// Device to use, such as udp:192.0.2.1; `roce devices` lists them
    #[arg(long, value_name = "DEVICE")]
    pub(super) device: Option<String>,

    /// Write every packet sent and received to this file (pcapng)
    #[arg(long, value_name = "FILE")]
    pub(super) pcap: Option<PathBuf>,

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

    /// Line rate of the link, at which congestion control starts, such as 25G [default: 100G]
    #[arg(long, value_name = "RATE", hide_short_help = true)]
    pub(super) line_rate: Option<Rate>,

    /// What to retransmit after a loss: go-back-n, or selective-repeat if both sides use it [default: go-back-n]
    #[arg(long, value_name = "RECOVERY", hide_short_help = true, long_help = RECOVERY_HELP)]
    pub(super) recovery: Option<Recovery>,
}

const CONGESTION_HELP: &str = "\
Congestion control of the queue pairs of this side [default: none].

  none                    no limit besides the device and the window
  fixed:RATE              a constant rate, such as fixed:10G
  dcqcn[:PRESET]          the algorithm of RDMA NICs; presets: paper, cx-default, hpcc, tester
  dctcp                   a window that reacts to ECN marks
  swift                   a window that reacts to delay
  timely                  a rate that reacts to the gradient of the delay

Parameters follow as name=value, separated by commas, such as dcqcn:paper,rpg_ai_rate=40. The list may also contain parameters
that control how this side answers marked packets, such as min_time_between_cnps=50. docs/congestion.md lists all of them.";

const RECOVERY_HELP: &str = "\
What to retransmit after a loss [default: go-back-n].

  go-back-n               the lost packet and all packets after it; works with every peer
  selective-repeat        only the lost packets; not part of any standard, so both sides must use it

Parameters of selective-repeat follow as name=value: cap (packets), rto_low and rto_high (us), few (packets). The default
timeouts of 100 and 320 us suit hardware; a process that the scheduler can suspend needs longer ones, such as
selective-repeat:rto_low=20000,rto_high=20000. docs/congestion.md has the details.";

const FAULT_HELP: &str = "\
Faults to inject into sent packets.

Rates, separated by commas, apply to all packets: drop=1%, dup=0.5%, reorder=2%, corrupt=0.1%, ecn=5%,
delay=50us or delay=10us-1ms@20%.
Rules, separated by semicolons, apply to selected packets; the first rule that matches decides:
  rule:qp=0x11,psn=5,pass=1,action=drop
Conditions: qp, rqp (queue pairs numbered by first appearance), psn, rpsn (relative to the first PSN seen),
opcode (name, prefix* or number), pass (1 for the first time this PSN is seen), len (bytes from BTH to ICRC),
chance, times, after, until.
Actions: drop, dup, reorder, corrupt, ecn, force-ecn, clear-ecn, clear-dscp, delay:TIME, deliver.";

/// Sets an option if it was given.
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
        Ok(self.builder().attach(device)?)
    }

    /// The builder of a context with these options.
    pub(super) fn builder(&self) -> ContextBuilder {
        let builder = set(Context::builder(), self.seed, ContextBuilder::seed);
        let builder = set(builder, self.window, ContextBuilder::window);
        let builder = set(builder, self.congestion.clone(), ContextBuilder::congestion);
        let builder = set(builder, self.line_rate, ContextBuilder::line_rate);
        let builder = set(builder, self.recovery, ContextBuilder::recovery);
        // The variable decides if it is set; otherwise `roce stat` shows every command.
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
            let files = CaptureFile::create(path, &[spec.as_str()])
                .with_context(|| format!("cannot create the capture file {}", path.display()))?;
            for file in files {
                options.capture = Some(Box::new(file));
            }
        }
        Ok((roce_device::open(&spec, options)?, spec))
    }

    fn fault_seed(&self) -> u64 {
        self.seed.unwrap_or_else(|| fastrand::u64(..))
    }
}

/// Resolves a server given by the user: a name, or an address with or without a port.
pub(super) fn resolve(server: &str, port: u16) -> anyhow::Result<SocketAddr> {
    if let Ok(address) = server.parse::<IpAddr>() {
        return Ok(SocketAddr::new(address, port));
    }
    if let Ok(address) = server.parse::<SocketAddr>() {
        return Ok(address);
    }
    let mut found = (server, port).to_socket_addrs().with_context(|| format!("cannot resolve {server}"))?;
    match found.next() {
        Some(address) => Ok(address),
        None => bail!("{server} has no address"),
    }
}

/// Connects to the TCP exchange of a server; retries until it listens.
pub(super) fn connect_exchange(context: &Context, server: SocketAddr) -> io::Result<Tcp> {
    let end = Instant::now() + LISTENING;
    loop {
        match Tcp::connect(context, server) {
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused && Instant::now() < end => {
                std::thread::sleep(Duration::from_millis(20));
            }
            other => return other,
        }
    }
}

/// The default device of a client: the local address of the route to the server. Client and server on one machine
/// need different addresses; 127.0.0.0/8 provides them.
pub(super) fn device_towards(server: SocketAddr) -> anyhow::Result<String> {
    let local = match server.ip() {
        IpAddr::V4(address) if address.is_loopback() => {
            let other = if address == Ipv4Addr::LOCALHOST {
                Ipv4Addr::new(127, 0, 0, 2)
            } else {
                Ipv4Addr::LOCALHOST
            };
            IpAddr::V4(other)
        }
        IpAddr::V6(address) if address.is_loopback() => bail!(
            "server and client cannot both use [::1], and IPv6 has no second loopback address; use 127.0.0.1 on the server, or \
             give each side a --device with a different port"
        ),
        address => {
            let any: SocketAddr = if address.is_ipv4() {
                (Ipv4Addr::UNSPECIFIED, 0).into()
            } else {
                (std::net::Ipv6Addr::UNSPECIFIED, 0).into()
            };
            // Connecting a UDP socket sends nothing; it makes the kernel choose the route.
            let socket = UdpSocket::bind(any).context("cannot open a socket to look up the route")?;
            socket.connect((address, ROCE_UDP_PORT)).with_context(|| format!("no route to {address}"))?;
            socket.local_addr().context("cannot read the local address of the route")?.ip()
        }
    };
    Ok(device_on(local))
}

/// The default device on an address.
pub(super) fn device_on(address: IpAddr) -> String {
    match address {
        IpAddr::V4(address) => format!("udp:{address}"),
        IpAddr::V6(address) => format!("udp:[{address}]"),
    }
}

/// Parses a path MTU in bytes.
pub(super) fn parse_mtu(text: &str) -> Result<PathMtu, String> {
    let bytes = text.parse().ok();
    bytes.and_then(PathMtu::from_bytes).ok_or_else(|| "write 256, 512, 1024, 2048 or 4096".into())
}
