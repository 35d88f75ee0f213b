//! What all subcommands that send have in common: device, capture, faults, seed.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use roce_fault::{FaultInjector, FaultPlan};
use roce_packet::{PathMtu, ROCE_UDP_PORT};
use roce_transport::Recovery;

use super::own;
use roce::tcp::Tcp;
use roce::verbs::{Congestion, Context, ContextBuilder, NotificationPoint, Rate};
use roce_device::pcap::CaptureFile;
use roce_device::{Device, OpenOptions};

/// The port of the TCP exchange that our own tools set up connections with.
pub(super) const EXCHANGE_PORT: u16 = 18_520;
/// A server that was started together with the client may take so long until it listens.
pub(super) const LISTENING: Duration = Duration::from_secs(5);

/// Options of everything that sends.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct DeviceArgs {
    /// Device to use, such as udp:192.0.2.1; `roce devices` lists them
    #[arg(long, value_name = "DEVICE")]
    pub(super) device: Option<String>,

    /// Write every packet sent and received to this file (pcapng)
    #[arg(long, value_name = "FILE")]
    pub(super) pcap: Option<PathBuf>,

    /// What to do to packets on their way out, such as drop=1%,reorder=2%,ecn=5%
    #[arg(long, value_name = "PLAN", long_help = FAULT_HELP)]
    pub(super) fault: Option<FaultPlan>,

    /// What to do to packets on their way in, such as drop=1%: as --fault
    #[arg(long, value_name = "PLAN", hide_short_help = true)]
    pub(super) receive_fault: Option<FaultPlan>,

    /// Make queue pair numbers, keys, PSNs and faults repeatable
    #[arg(long, value_name = "N")]
    pub(super) seed: Option<u64>,

    /// PSNs that a queue pair leaves unacknowledged at most [default: 256]
    #[arg(long, value_name = "PACKETS", value_parser = clap::value_parser!(u32).range(1..=8_388_607))]
    pub(super) window: Option<u32>,

    /// Congestion control, such as dcqcn, dcqcn:paper,rpg_ai_rate=40, swift or fixed:10G [default: none]
    #[arg(long, value_name = "ALGORITHM", value_parser = own::parse_congestion, long_help = CONGESTION_HELP)]
    pub(super) congestion: Option<(Congestion, NotificationPoint)>,

    /// What the link carries, where congestion control begins, such as 25G [default: 100G]
    #[arg(long, value_name = "RATE", hide_short_help = true)]
    pub(super) line_rate: Option<Rate>,

    /// What is sent again after a loss: go-back-n, or selective-repeat if both sides are set so [default: go-back-n]
    #[arg(long, value_name = "RECOVERY", hide_short_help = true, long_help = RECOVERY_HELP)]
    pub(super) recovery: Option<Recovery>,
}

const CONGESTION_HELP: &str = "\
Congestion control of the queue pairs of this side [default: none].

  none                    as fast as device and window allow
  fixed:RATE              one rate, such as fixed:10G
  dcqcn[:PRESET]          what RDMA NICs do; presets paper, cx-default, hpcc, tester
  dctcp, swift, timely    a window by marks, a window by delay, a rate by the gradient of delay

Parameters follow as name=value with commas between, such as dcqcn:paper,rpg_ai_rate=40. Those of the other direction, how this
side answers marked packets, may stand among them: min_time_between_cnps=50. docs/congestion.md lists all.";

const RECOVERY_HELP: &str = "\
What is sent again after a loss [default: go-back-n].

  go-back-n               everything from the lost packet on: what every peer understands
  selective-repeat        only what is missing; no standard knows it, so both sides have to be set so

Parameters of selective-repeat follow as name=value: cap (packets), rto_low and rto_high (us), few (packets). The timeouts of
100 and 320 us are those of hardware; a process that does not run for a while needs longer ones, such as
selective-repeat:rto_low=20000,rto_high=20000. docs/congestion.md tells the rest.";

const FAULT_HELP: &str = "\
What to do to packets on their way out.

Rates, separated by commas: drop=1%, dup=0.5%, reorder=2%, corrupt=0.1%, ecn=5%, delay=50us or
delay=10us-1ms@20%.
Rules, separated by semicolons, apply to chosen packets only; the first that matches decides:
  rule:qp=0x11,psn=5,pass=1,action=drop
with qp, rqp (order of appearance), psn, rpsn (from the first one seen), opcode (name, prefix* or
number), pass (which time this PSN is seen), len (bytes from BTH to ICRC), chance, times, after, until;
and action drop, dup, reorder, corrupt, ecn, force-ecn, clear-ecn, clear-dscp, delay:TIME or deliver.";

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
    /// Opens the device: the one asked for, or `default`.
    pub(super) fn open(&self, default: impl FnOnce() -> anyhow::Result<String>) -> anyhow::Result<Context> {
        let (device, _) = self.open_device(default)?;
        Ok(self.builder().attach(device)?)
    }

    /// What a context on this device is made with.
    pub(super) fn builder(&self) -> ContextBuilder {
        let builder = set(Context::builder(), self.seed, ContextBuilder::seed);
        let builder = set(builder, self.window, ContextBuilder::window);
        let builder = set(builder, self.congestion.clone(), ContextBuilder::congestion);
        let builder = set(builder, self.line_rate, ContextBuilder::line_rate);
        let builder = set(builder, self.recovery, ContextBuilder::recovery);
        // Whoever sets the variable decides; without it `roce stat` shows every command.
        if std::env::var_os("ROCE_STAT").is_some() { builder } else { builder.publish(true) }
    }

    /// Opens the device alone, and says which one it is.
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
                .with_context(|| format!("making the capture {}", path.display()))?;
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

/// The address of a server as the user wrote it: a name or an address, with or without a port.
pub(super) fn resolve(server: &str, port: u16) -> anyhow::Result<SocketAddr> {
    if let Ok(address) = server.parse::<IpAddr>() {
        return Ok(SocketAddr::new(address, port));
    }
    if let Ok(address) = server.parse::<SocketAddr>() {
        return Ok(address);
    }
    let mut found = (server, port).to_socket_addrs().with_context(|| format!("looking up {server}"))?;
    match found.next() {
        Some(address) => Ok(address),
        None => bail!("{server} has no address"),
    }
}

/// Connects to the TCP exchange of a server, as soon as it listens.
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

/// The device of a client: the local address that leads to the server. On one machine the two need
/// different addresses, and 127/8 has many.
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
            "server and client cannot both use [::1], which has no second address; use 127.0.0.1 on the server, or give \
             both a --device with a port of its own"
        ),
        address => {
            let any: SocketAddr = if address.is_ipv4() {
                (Ipv4Addr::UNSPECIFIED, 0).into()
            } else {
                (std::net::Ipv6Addr::UNSPECIFIED, 0).into()
            };
            // Connecting a UDP socket sends nothing; it makes the kernel choose the route.
            let socket = UdpSocket::bind(any).context("opening a socket to look up the route")?;
            socket
                .connect((address, ROCE_UDP_PORT))
                .with_context(|| format!("there is no route to {address}"))?;
            socket.local_addr().context("asking for the local address of the route")?.ip()
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

/// A path MTU as users write it.
pub(super) fn parse_mtu(text: &str) -> Result<PathMtu, String> {
    let bytes = text.parse().ok();
    bytes.and_then(PathMtu::from_bytes).ok_or_else(|| "write 256, 512, 1024, 2048 or 4096".into())
}
