//! `roce study`: the study of MacArthur and Russell, on the devices of this machine.

use std::io::{self, IsTerminal as _, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context as _, bail};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

use super::choices::one_of;
use super::errors::print_error;
use super::sim::WIDTHS;
use super::terminal::{Output, Paint, Style};
use roce_measure::study::{
    CONCLUSIONS, Device, Ended, Grid, Identity, Places, Progress, Store, Study, Verdict, Wish, disturbed,
    draw_figure, side, write_report,
};
use roce_plot::Width;

/// Measure which conclusions of a well-known RDMA study hold for this software NIC
///
/// The study is MacArthur and Russell, "A Performance Study to Guide RDMA Programming Decisions" (2012):
/// latency (ping) and throughput (blast) with SEND, WRITE, READ and WRITE with immediate data, for many
/// message sizes, inline or not, with polling or events, with 1 to 128 buffers, compared with kernel TCP and
/// the limit of each device. Both sides run on this machine: on loopback, and also over virtual cables for
/// root, or if users may create namespaces. No other program should run during the study. Ctrl-C stops the
/// study after the current cell, and a second Ctrl-C stops it immediately; the same command resumes it.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Measure some values of each axis: about 3 minutes instead of hours
    #[arg(long)]
    quick: bool,

    /// Directory for study.csv, the figures (SVG) and report.html
    #[arg(long, value_name = "DIR", default_value = "study")]
    out: PathBuf,

    /// Measure only cells whose name contains this text, such as udp-loopback/ping/send; --list prints names
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,

    /// Print the names of the cells, and measure nothing
    #[arg(long)]
    list: bool,

    /// Draw one figure of the cells that DIR contains, such as latency-small-all, as SVG, PDF and a table of
    /// its points (.tsv), and measure nothing
    #[arg(long, value_name = "NAME", conflicts_with_all = ["list", "only", "quick"])]
    figure: Option<String>,

    /// Width of the figure in inches [default: 3.3]
    #[arg(long, value_name = "INCHES", value_parser = one_of(WIDTHS), requires = "figure")]
    figure_width: Option<Width>,

    /// Run one side of a cell, which standard input describes.
    #[arg(long, hide = true)]
    side: bool,
}

pub(super) fn run(args: &Args, output: &mut Output) -> anyhow::Result<ExitCode> {
    if args.side {
        side::run(&mut io::stdin().lock(), output)?;
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(name) = &args.figure {
        return draw(args, name, output);
    }
    let grid = if args.quick { Grid::Quick } else { Grid::Full };
    if args.list {
        return list(args, grid, output);
    }
    let only = args.only.as_deref();
    let takes_cables =
        Device::ALL.into_iter().any(|device| device.takes_cable() && !grid.chosen(device, only).is_empty());
    // This must run before any thread starts, because it may enter a user namespace.
    let places = if takes_cables { Places::new() } else { Places::loopback() };
    let wishes = Wishes::listen()?;
    std::fs::create_dir_all(&args.out).with_context(|| {
        format!("cannot create the directory {}; choose another with --out", args.out.display())
    })?;
    let mut store = Store::open(&args.out, Identity::here(grid))?;
    let study = Study {
        grid,
        only: args.only.clone(),
        program: std::env::current_exe().context("cannot find this program, which runs both sides")?,
        arguments: vec!["study".to_owned(), "--side".to_owned()],
        places: &places,
    };
    let mut line = ProgressLine::new();
    let ended = study.run(&mut store, &|| wishes.wish(), &mut |progress| line.show(progress))?;
    line.clear();
    if store.rows().is_empty() && ended.total == 0 {
        let reasons: Vec<String> =
            ended.unusable.iter().map(|(device, reason)| format!("{}: {reason}", device.name())).collect();
        bail!(
            "no cell to measure; {}",
            if reasons.is_empty() {
                "`roce study --list` prints the names of all cells".to_owned()
            } else {
                reasons.join("; ")
            }
        );
    }
    let report = write_report(&args.out, &store, &ended).map_err(|(path, error)| {
        anyhow::Error::new(error).context(format!("cannot write {}", path.display()))
    })?;
    print_verdicts(output, &store, &ended)?;
    let disturbed = disturbed(&store);
    if disturbed > 0 {
        writeln!(
            output,
            "other processes were busy while {disturbed} of {} cells were measured; those numbers are \
             unreliable",
            store.rows().len()
        )?;
    }
    writeln!(output, "\nreport: {}", report.display())?;
    if ended.missing > 0 {
        writeln!(
            output,
            "stopped; {} of {} cells are missing; run the same command to measure them",
            ended.missing, ended.total
        )?;
        return Ok(ExitCode::from(INTERRUPTED));
    }
    Ok(ExitCode::SUCCESS)
}

/// Draws a figure of measured cells, and prints the paths of its files.
fn draw(args: &Args, name: &str, output: &mut Output) -> anyhow::Result<ExitCode> {
    for path in draw_figure(&args.out, name, args.figure_width.unwrap_or(Width::Column))? {
        writeln!(output, "{}", path.display())?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The exit status of a program that SIGINT ended.
const INTERRUPTED: u8 = 130;

fn list(args: &Args, grid: Grid, output: &mut Output) -> anyhow::Result<ExitCode> {
    let cells = Device::ALL.into_iter().flat_map(|device| grid.chosen(device, args.only.as_deref()));
    cells.map(|cell| cell.key()).try_for_each(|key| writeln!(output, "{key}"))?;
    Ok(ExitCode::SUCCESS)
}

/// Prints the verdicts on the first device, and the devices that cannot be used.
fn print_verdicts(output: &mut Output, store: &Store, ended: &Ended) -> io::Result<()> {
    let Some(device) = store.devices().first().copied() else { return Ok(()) };
    let style = output.style;
    writeln!(
        output,
        "{}",
        style.paint(Paint::BOLD, format!("conclusions of the study on {}", device.name()))
    )?;
    for conclusion in &CONCLUSIONS {
        let judgement = conclusion.judge(store.rows(), device);
        writeln!(output, "{} {}", verdict(style, judgement.verdict), conclusion.claim)?;
        if !judgement.numbers.is_empty() {
            writeln!(output, "{:15}{}", "", judgement.numbers)?;
        }
    }
    for (device, reason) in &ended.unusable {
        writeln!(output, "{} cannot be used: {reason}", device.name())?;
    }
    Ok(())
}

fn verdict(style: Style, verdict: Verdict) -> String {
    let paint = match verdict {
        Verdict::Holds => Paint::GREEN,
        Verdict::DoesNotHold => Paint::RED,
        Verdict::NotMeasured => Paint::DIM,
    };
    style.paint(paint, format!("{:<14}", verdict.text())).to_string()
}

/// The number of times that the user has asked to stop.
struct Wishes(Arc<AtomicUsize>);

impl Wishes {
    /// Takes SIGINT and SIGTERM from now on. The processes of the sides do not belong to the process group of
    /// the terminal.
    fn listen() -> anyhow::Result<Self> {
        let signals: SigSet = [Signal::SIGINT, Signal::SIGTERM].into_iter().collect();
        signals.thread_block().context("cannot block signals")?;
        let descriptor =
            SignalFd::with_flags(&signals, SfdFlags::SFD_CLOEXEC).context("cannot create a signalfd")?;
        let count = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&count);
        // The thread ends with the process.
        std::thread::Builder::new().name("signals".into()).spawn(move || {
            while let Ok(Some(_)) = descriptor.read_signal() {
                if counted.fetch_add(1, Ordering::Relaxed) == 0 {
                    print_error("stopping after this cell; press Ctrl-C again to stop immediately");
                }
            }
        })?;
        Ok(Self(count))
    }

    fn wish(&self) -> Wish {
        match self.0.load(Ordering::Relaxed) {
            0 => Wish::Continue,
            1 => Wish::Stop,
            _ => Wish::StopNow,
        }
    }
}

/// The progress of the study on standard error: one changing line on a terminal, or a line at intervals in a
/// log.
struct ProgressLine {
    is_terminal: bool,
    shown: Option<std::time::Instant>,
}

impl ProgressLine {
    /// The interval between two lines in a log.
    const INTERVAL: Duration = Duration::from_secs(10);

    fn new() -> Self {
        Self { is_terminal: io::stderr().is_terminal(), shown: None }
    }

    fn show(&mut self, progress: &Progress) {
        if !self.is_terminal && self.shown.is_some_and(|shown| shown.elapsed() < Self::INTERVAL) {
            return;
        }
        self.shown = Some(std::time::Instant::now());
        let Progress { done, total, left, cell } = progress;
        let text = format!("{done} of {total} cells, {} left: {}", duration(*left), cell.key());
        // A failed write is ignored, because nothing depends on it.
        let _ = if self.is_terminal {
            write!(io::stderr(), "\r\x1b[K{text}").and_then(|()| io::stderr().flush())
        } else {
            writeln!(io::stderr(), "roce: {text}")
        };
    }

    fn clear(&self) {
        if self.is_terminal {
            let _ = write!(io::stderr(), "\r\x1b[K").and_then(|()| io::stderr().flush());
        }
    }
}

/// Formats hours, minutes and seconds, with the known precision.
fn duration(time: Duration) -> String {
    match time.as_secs() {
        seconds @ 0..=99 => format!("{seconds} s"),
        seconds @ 100..=5_999 => format!("{} min", seconds.div_ceil(60)),
        seconds => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_as_long_as_they_are_known() {
        for (seconds, text) in
            [(0, "0 s"), (99, "99 s"), (100, "2 min"), (5_999, "100 min"), (7_260, "2 h 1 min")]
        {
            assert_eq!(duration(Duration::from_secs(seconds)), text);
        }
    }
}
