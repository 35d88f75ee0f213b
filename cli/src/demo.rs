//! `roce demo`: runs every operation between two processes, without root and without set-up.

mod operations;
mod peer;
mod place;
mod side;

use std::io::Write;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Instant;

use anyhow::{Context as _, bail};

use super::device_options::set;
use super::measure::table::{print_columns, print_row};
use super::terminal::{Output, Paint};
use operations::{OPERATIONS, Outcome};
use roce::verbs::{Context, ContextBuilder};
use roce_device::OpenOptions;
use roce_device::pcap::CaptureFile;
use roce_exchange::Exchange;
use roce_measure::measure::{self, Completion, Op, Plan, Post, Row, Signal, Tool};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use side::{Request, Response, Side};

/// Number of repetitions of each operation under loss.
const ROUNDS_UNDER_LOSS: u32 = 20;
/// Number of measured messages per size. It is small because each round trip waits twice for a processor on a
/// busy machine.
const MESSAGES: u64 = 1_000;

/// Run RDMA between two processes: real RoCE v2 packets, no root required
///
/// Two processes on 127.0.0.1 and 127.0.0.2 (UDP port 4791) run every RC operation, UC and UD, and verify the
/// contents. They repeat this while 1 % of the packets is dropped, then print a short ping table and a short
/// blast table. The packets of the first two parts are written to demo.pcapng. If these addresses cannot be
/// used, the demo chooses other loopback addresses, or one for both processes.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// File to write the packets to [default: demo.pcapng, in the directory for temporary files if this one
    /// is read-only]
    #[arg(long, value_name = "FILE")]
    pcap: Option<PathBuf>,

    /// Seed that makes queue pair numbers, keys, PSNs and losses reproducible
    #[arg(long, value_name = "N")]
    seed: Option<u64>,

    /// Faults of the second part, injected into the packets that both processes send
    #[arg(long, value_name = "PLAN", default_value = "drop=1%")]
    fault: roce_fault::FaultPlan,

    /// Devices of this process and of the second one
    #[arg(long, value_name = "DEVICE", num_args = 2, value_names = ["NEAR", "FAR"])]
    device: Vec<String>,

    /// Print JSON
    #[arg(long)]
    json: bool,

    /// Run as the second process: address of the exchange
    #[arg(long, hide = true, value_name = "ADDRESS")]
    peer_of: Option<SocketAddr>,
}

/// The results of the demo, for `--json`.
#[derive(Default, serde::Serialize)]
struct Findings {
    operations: Vec<Outcome>,
    under_loss: Vec<Outcome>,
    retransmitted_packets: u64,
    timeouts: u64,
    sequence_naks: u64,
    ping: Vec<Row>,
    blast: Vec<Row>,
    elapsed_s: f64,
}

pub(super) fn run(args: &Args, output: &mut Output) -> anyhow::Result<ExitCode> {
    if let Some(address) = args.peer_of {
        peer::run(address)?;
        return Ok(ExitCode::SUCCESS);
    }
    let started = Instant::now();
    let mut demo = Demo::start(args)?;
    let mut findings = Findings::default();
    let (path, captures) = place::capture(args.pcap.as_deref())?;
    let mut captures = captures.into_iter();

    demo.heading(output, "1. Every operation, contents verified by the receiver")?;
    findings.operations = demo.operations(output, captures.next(), false, 1)?;

    demo.heading(output, &format!("2. The same {ROUNDS_UNDER_LOSS} times with faults: {}", args.fault))?;
    findings.under_loss = demo.operations(output, captures.next(), true, ROUNDS_UNDER_LOSS)?;
    demo.print_recovery(output, &mut findings)?;

    demo.heading(output, "3. Latency: SEND in both directions")?;
    findings.ping = demo.measure(output, Tool::Ping, Op::Send, &[8, 4096], MESSAGES)?;
    demo.heading(output, "4. Throughput: WRITE in one direction")?;
    findings.blast = demo.measure(output, Tool::Blast, Op::Write, &[64, 4096, 65_536, 1 << 20], MESSAGES)?;

    demo.request(&Request::Quit)?;
    findings.elapsed_s = started.elapsed().as_secs_f64();
    if args.json {
        super::document::print(output, "demo", &findings)?;
    } else {
        print_closing(output, &path, findings.elapsed_s)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn print_closing(output: &mut Output, path: &Path, seconds: f64) -> std::io::Result<()> {
    let (path, roce) = (path.display(), own_name());
    let bold = |text: String| output.style.paint(Paint::BOLD, text).to_string();
    let lines = [
        String::new(),
        format!("Completed in {seconds:.1} s: all contents are correct. The packets are in {path}."),
        String::new(),
        "Try next:".into(),
        format!("  {}    list them and check their ICRCs", bold(format!("{roce} dissect {path} | less"))),
        format!("  {}   explain one packet", bold(format!("{roce} explain {path}:8"))),
        format!("  {}   list the devices of this machine", bold(format!("{roce} devices -v"))),
        format!("  {}   start a server; then, in another shell:", bold(format!("{roce} blast"))),
        format!("  {}", bold(format!("{roce} blast 127.0.0.1 --op write --sizes 64..1048576"))),
        format!(
            "  {}",
            bold(format!("{roce} blast 127.0.0.1 --fault drop=1%,reorder=2% --pcap lossy.pcapng"))
        ),
    ];
    for line in lines {
        writeln!(output, "{line}")?;
    }
    Ok(())
}

/// Returns the command that starts this program: `roce` if it is in the search path, otherwise the command
/// that was used.
fn own_name() -> String {
    let called = std::env::args().next().unwrap_or_else(|| "roce".to_owned());
    let own = std::env::current_exe().and_then(|path| path.canonicalize()).ok();
    let search = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&search).map(|folder| folder.join("roce")).find(|path| path.is_file());
    let is_installed = own.is_some() && found.and_then(|path| path.canonicalize().ok()) == own;
    if is_installed { "roce".to_owned() } else { called }
}

/// The running demo: the second process and the TCP exchange with it.
struct Demo<'a> {
    args: &'a Args,
    /// The devices of this process and of the second process.
    devices: [String; 2],
    child: Child,
    exchange: Exchange,
    listener: TcpListener,
    recovery: Recovery,
}

/// Counters of loss recovery, summed over both sides.
#[derive(Clone, Copy, Debug, Default)]
struct Recovery {
    retransmitted_packets: u64,
    timeouts: u64,
    sequence_naks: u64,
}

/// Waits for the connection of the second process, as long as that process runs.
fn accept(listener: &TcpListener, child: &mut Child) -> anyhow::Result<Exchange> {
    const TURN: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
    loop {
        if poll(&mut [PollFd::new(listener, PollFlags::IN)], Some(&TURN))? > 0 {
            return Ok(Exchange::accept_from(listener)?);
        }
        if let Some(status) = child.try_wait()? {
            bail!("the second process ended before it connected ({status}); its error is above");
        }
    }
}

impl Drop for Demo<'_> {
    fn drop(&mut self) {
        // The second process ends when the exchange closes; it is killed if that takes too long.
        for _ in 0..50 {
            if matches!(self.child.try_wait(), Ok(Some(_)) | Err(_)) {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl<'a> Demo<'a> {
    fn start(args: &'a Args) -> anyhow::Result<Self> {
        let devices = match &args.device[..] {
            [near, far] => [near.clone(), far.clone()],
            _ => place::devices()?,
        };
        let listener = place::listen()?;
        let address = listener.local_addr().context("cannot read the number of the TCP port")?;
        let program =
            std::env::current_exe().context("cannot find this program to start it a second time")?;
        let child = Command::new(program)
            .args(["demo", "--peer-of", &address.to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .context("cannot start the second process")?;
        let mut child = child;
        let exchange = accept(&listener, &mut child)?;
        Ok(Self { args, devices, child, exchange, listener, recovery: Recovery::default() })
    }

    fn heading(&self, output: &mut Output, text: &str) -> std::io::Result<()> {
        if !self.args.json {
            let heading = output.style.paint(Paint::BOLD, text).to_string();
            writeln!(output, "\n{heading}")?;
            output.flush()?;
        }
        Ok(())
    }

    fn request(&mut self, request: &Request) -> anyhow::Result<Response> {
        let response = self.exchange.swap("a response", request)?;
        if let Response::Failed(reason) = response {
            bail!("the second process: {reason}");
        }
        Ok(response)
    }

    fn spec(&self, near: bool) -> String {
        self.devices[usize::from(!near)].clone()
    }

    /// Opens devices on both sides and connects queue pairs of all transports.
    fn side(&mut self, capture: Option<CaptureFile>, faults: bool) -> anyhow::Result<Side> {
        let plan = faults.then(|| self.args.fault.clone());
        let open = Request::Open {
            device: self.spec(false),
            fault: plan.as_ref().map(ToString::to_string),
            seed: self.args.seed.map(|seed| seed.wrapping_add(1)),
        };
        let Response::Opened(theirs) = self.request(&open)? else {
            bail!("the second process sent an unexpected response")
        };
        let options = OpenOptions {
            transmit_faults: plan.map(|plan| side::injector(plan, self.args.seed)),
            capture: capture.map(|file| Box::new(file) as _),
            ..OpenOptions::default()
        };
        let context = set(Context::builder(), self.args.seed, ContextBuilder::seed)
            .options(options)
            .open(&self.spec(true))?;
        let mut side = Side::new(context)?;
        self.request(&Request::Connect(side.info()?))?;
        side.connect(&theirs)?;
        side.set_remote(&theirs)?;
        Ok(side)
    }

    /// Runs all operations `rounds` times and prints a line for each.
    fn operations(
        &mut self,
        output: &mut Output,
        capture: Option<CaptureFile>,
        faults: bool,
        rounds: u32,
    ) -> anyhow::Result<Vec<Outcome>> {
        let mut side = self.side(capture, faults)?;
        let mut outcomes = Vec::new();
        for operation in OPERATIONS {
            let mut outcome = Outcome::new(operation);
            for round in 0..rounds {
                operations::run(&mut side, &mut self.exchange, operation, round, &mut outcome)
                    .with_context(|| format!("{}, round {round}", operation.name))?;
            }
            outcome.check(faults)?;
            if !self.args.json {
                writeln!(output, "   {}", outcome.line(output.style))?;
                output.flush()?;
            }
            outcomes.push(outcome);
        }
        self.collect_recovery(&side)?;
        drop(side);
        self.request(&Request::Close)?;
        Ok(outcomes)
    }

    fn collect_recovery(&mut self, side: &Side) -> anyhow::Result<()> {
        let Response::Counters { retransmitted_packets, timeouts, sequence_naks } =
            self.request(&Request::Counters)?
        else {
            bail!("the second process sent an unexpected response")
        };
        let own = side.context.counters();
        self.recovery = Recovery {
            retransmitted_packets: retransmitted_packets + own.retransmitted_packets,
            timeouts: timeouts + own.expired_timers(),
            sequence_naks: sequence_naks + own.packet_seq_err + own.implied_nak_seq_err,
        };
        Ok(())
    }

    fn print_recovery(&self, output: &mut Output, findings: &mut Findings) -> std::io::Result<()> {
        let Recovery { retransmitted_packets, timeouts, sequence_naks } = self.recovery;
        findings.retransmitted_packets = retransmitted_packets;
        findings.timeouts = timeouts;
        findings.sequence_naks = sequence_naks;
        if self.args.json {
            return Ok(());
        }
        writeln!(
            output,
            "   recovered: {retransmitted_packets} packets retransmitted after {sequence_naks} sequence errors and {timeouts} timeouts"
        )
    }

    fn measure(
        &mut self,
        output: &mut Output,
        tool: Tool,
        op: Op,
        sizes: &[usize],
        iterations: u64,
    ) -> anyhow::Result<Vec<Row>> {
        let address = self.listener.local_addr().context("cannot read the number of the TCP port")?;
        self.request(&Request::Serve { device: self.spec(false), address })?;
        let exchange = accept(&self.listener, &mut self.child)?;
        let context = set(Context::builder(), self.args.seed, ContextBuilder::seed).open(&self.spec(true))?;
        let path_mtu =
            context.largest_path_mtu().context("the link MTU is too small for every path MTU")?.bytes();
        let plan = Plan {
            tool,
            op,
            sizes: sizes.to_vec(),
            iterations,
            buffers: 16,
            inline: false,
            completion: Completion::Poll,
            post: Post::List,
            signal: Signal::Full,
            path_mtu,
            timeout: 14,
        };
        let json = self.args.json;
        if !json {
            print_columns(output, tool)?;
        }
        let rows = measure::run_client(&context, exchange, &plan, None, &mut |row| {
            if !json {
                // The command reports a closed pipe at its end.
                let _ = print_row(output, tool, row).and_then(|()| output.flush());
            }
        })?;
        let response: Response = self.exchange.receive("a response")?;
        if let Response::Failed(reason) = response {
            bail!("the second process: {reason}");
        }
        Ok(rows)
    }
}
