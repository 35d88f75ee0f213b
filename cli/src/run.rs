//! `roce run`: runs an unmodified RDMA program on this engine.
//!
//! The program loads libibverbs from the folder that this command puts first into its library path.
//! Environment variables configure the library. They also work without this command; docs/how-to/run.md lists
//! them. Before it ends, the library appends its counters and the failed work requests to a file. This
//! command prints the parts that the user may need.

mod files;
mod hints;
mod library;
mod netlink;
mod program;
mod report;

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{ExitCode, ExitStatus};

use anyhow::{Context as _, ensure};
use roce::verbs::raw::listing;
use roce_fault::FaultPlan;
use roce_fault::verbs::VerbsPlan;
use roce_machine::text_file;

use super::algorithms;
use super::temporary;
use super::terminal::Output;
use program::Program;
use report::Report;

/// Run an RDMA program, unmodified, on this engine: no RDMA device, kernel module or privilege is needed
///
/// The program's calls of libibverbs and librdmacm go to the libraries beside this command. By default it
/// sees one device, roce0, with the address of the default route, or 127.0.0.1. The exit status is that of
/// the program.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Device that the program sees, such as udp:192.0.2.1; may be given several times (roce0, roce1 and so
    /// on)
    #[arg(long, value_name = "DEVICE")]
    device: Vec<String>,

    /// Write every packet sent and received to this file (pcapng); %p in the name is replaced by the process
    /// ID
    #[arg(long, value_name = "FILE")]
    pcap: Option<PathBuf>,

    /// Faults to inject into sent packets, such as drop=1%,reorder=2%,ecn=5%
    #[arg(long, value_name = "PLAN", value_parser = fault_plan)]
    fault: Option<String>,

    /// Faults to inject into received packets, such as drop=1%; same syntax as --fault
    #[arg(long, value_name = "PLAN", value_parser = fault_plan)]
    receive_fault: Option<String>,

    /// Faults of verbs, such as ibv_reg_mr:3=ENOMEM or completion:5=IBV_WC_RETRY_EXC_ERR, or @FILE; each
    /// fault is one line on standard error, or in the file that ROCE_VERBS_FAULT_LOG names
    #[arg(long, value_name = "PLAN", value_parser = verbs_plan)]
    verbs_fault: Option<String>,

    /// Seed that makes queue pair numbers, keys, PSNs and faults reproducible
    #[arg(long, value_name = "N")]
    seed: Option<u64>,

    /// Congestion control, such as dcqcn, dcqcn:paper,rpg_ai_rate=40, swift or fixed:10G [default: none]
    #[arg(long, value_name = "ALGORITHM", value_parser = congestion)]
    congestion: Option<String>,

    /// Send and accept in-band telemetry, which hpcc and powertcp need; not part of any standard, so both
    /// sides must use it
    #[arg(long)]
    telemetry: bool,

    /// Name that the program sees instead of roce0, such as mlx5_0; may be given several times, for the
    /// devices in their order
    #[arg(long, value_name = "NAME", value_parser = device_name)]
    name: Vec<String>,

    /// Index of the GID, for programs with a built-in index above 3; all lower indexes have the same GID
    /// [default: 3]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(..=127))]
    gid_index: Option<u8>,

    /// Engines of each device, 1 to 63, for programs with several threads: completion vector i is engine i
    /// [default: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=63))]
    engines: Option<u8>,

    /// File name of a libibverbs or librdmacm that the program bundles, such as
    /// libibverbs-1de1263b.so.1.14.48.0 of a Python wheel; the library of this command replaces it. May be
    /// given several times; `ldd` shows the names
    #[arg(long, value_name = "NAME", value_parser = library::alias, hide_short_help = true)]
    alias: Vec<String>,

    /// Print the counters of every process to standard error when the program has ended
    #[arg(long)]
    stat: bool,

    /// Write the report and the counters of every process to this file when the program has ended, for
    /// example to keep them with the results of a test; standard error is unchanged
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,

    /// Program and its arguments; a -- before the program ends the options of this command
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

/// The environment variable with the index of the GID.
const GID_INDEX: &str = "ROCE_GID_INDEX";

/// Checks a fault plan, which the library parses again.
fn fault_plan(text: &str) -> Result<String, String> {
    text.parse::<FaultPlan>().map(|_| text.to_owned()).map_err(|error| error.to_string())
}

/// Checks a plan of faults of verbs, which the library parses again. Reads it if the text names a file, which
/// may have another path for the program.
fn verbs_plan(text: &str) -> Result<String, String> {
    let text = match text.strip_prefix('@') {
        Some(file) => {
            text_file::read_text(Path::new(file)).map_err(|error| format!("cannot read {file}: {error}"))?
        }
        None => text.to_owned(),
    };
    text.parse::<VerbsPlan>().map_err(|error| error.to_string())?;
    Ok(text)
}

fn congestion(text: &str) -> Result<String, String> {
    algorithms::parse_congestion(text).map(|_| text.to_owned())
}

fn device_name(text: &str) -> Result<String, String> {
    if listing::is_name(text) {
        Ok(text.to_owned())
    } else {
        Err("expected 1 to 63 letters, digits, underscores, hyphens and dots, such as mlx5_0".to_owned())
    }
}

/// Returns the names of the devices, for the variable of the library.
///
/// # Errors
///
/// There are more names than devices, or two devices would have the same name.
fn names(args: &Args, devices: Option<&str>) -> anyhow::Result<Option<String>> {
    if args.name.is_empty() {
        return Ok(std::env::var(listing::NAMES).ok());
    }
    let (names, number) = (args.name.join(";"), listing::specifications(devices).len());
    ensure!(
        args.name.len() <= number,
        "--name is given {} times, but the program sees {number} device{}; --device adds one",
        args.name.len(),
        if number == 1 { "" } else { "s" }
    );
    let all: BTreeSet<String> = (0..number).map(|index| listing::name(Some(&names), index)).collect();
    ensure!(all.len() == number, "--name gives two devices the same name; choose different names");
    Ok(Some(names))
}

/// Returns the index that the library of the program reads. The library refuses an invalid value.
fn gid_index_of_environment() -> usize {
    std::env::var(GID_INDEX).ok().and_then(|text| text.parse::<u8>().ok()).map_or(0, usize::from)
}

pub(super) fn run(args: &Args, output: &mut Output) -> anyhow::Result<ExitCode> {
    let folder = library::Folder::new(&args.alias)?;
    let reports = temporary::create(|place| tempfile::NamedTempFile::new_in(place))
        .context("cannot create a file for the counters of the program")?;
    let devices = match args.device.as_slice() {
        [] => std::env::var(listing::VARIABLE).ok(),
        devices => Some(devices.join(";")),
    };
    let first_gid = args.gid_index.map_or_else(gid_index_of_environment, usize::from);
    let names = names(args, devices.as_deref())?;
    files::create(&folder.files(), devices.as_deref(), names.as_deref(), first_gid)
        .context("cannot create the files of the devices")?;
    let variables = environment(args, devices, names, &folder, reports.path())?;
    // Before the program runs, because a test may take an hour.
    let create = |path: &PathBuf| {
        File::create(path).with_context(|| format!("--report: cannot create {}", path.display()))
    };
    let mut file = args.report.as_ref().map(create).transpose()?;
    output.flush()?;
    let status = Program::start(&args.program, variables)?.wait()?;
    let report = Report::read(reports.path())?;
    let mut errors = io::stderr().lock();
    if args.stat {
        report.print_counters(&mut errors)?;
    }
    explain(args, &report, status, &mut errors)?;
    if let Some(file) = &mut file {
        explain(args, &report, status, file)?;
        report.print_counters(file)?;
    }
    Ok(exit_code(status))
}

/// Prints what the engine saw of a program that has ended.
fn explain(args: &Args, report: &Report, status: ExitStatus, out: &mut impl Write) -> io::Result<()> {
    if status.success() {
        return report.note(out);
    }
    let named = hints::device_in(&args.program);
    report.explain(out, &name_of(Path::new(&args.program[0])), &status, named.as_deref())
}

/// Returns the environment variables that the library of the program reads.
fn environment(
    args: &Args,
    devices: Option<String>,
    names: Option<String>,
    folder: &library::Folder,
    reports: &Path,
) -> anyhow::Result<Vec<(&'static str, OsString)>> {
    let mut variables = vec![
        ("LD_LIBRARY_PATH", folder.before(std::env::var_os("LD_LIBRARY_PATH"))?),
        ("LD_PRELOAD", folder.preload(std::env::var_os("LD_PRELOAD"))),
        ("ROCE_SYSFS", folder.files().into()),
        ("ROCE_REPORT", reports.into()),
        ("ROCE_RUN", std::process::id().to_string().into()),
    ];
    let pcap = args.pcap.as_ref().map(std::path::absolute).transpose().context("--pcap")?;
    let others = [
        (listing::VARIABLE, devices.map(OsString::from)),
        (listing::NAMES, names.map(OsString::from)),
        ("ROCE_PCAP", pcap.map(PathBuf::into_os_string)),
        ("ROCE_FAULT", args.fault.clone().map(OsString::from)),
        ("ROCE_RECEIVE_FAULT", args.receive_fault.clone().map(OsString::from)),
        ("ROCE_VERBS_FAULT", args.verbs_fault.clone().map(OsString::from)),
        ("ROCE_SEED", args.seed.map(|seed| seed.to_string().into())),
        (GID_INDEX, args.gid_index.map(|index| index.to_string().into())),
        ("ROCE_ENGINES", args.engines.map(|engines| engines.to_string().into())),
        ("ROCE_CONGESTION", args.congestion.clone().map(OsString::from)),
        ("ROCE_TELEMETRY", args.telemetry.then(|| "1".into())),
    ];
    variables.extend(others.into_iter().filter_map(|(name, value)| Some((name, value?))));
    Ok(variables)
}

/// Returns the exit status of the program, or the status that shells use for a signal.
fn exit_code(status: ExitStatus) -> ExitCode {
    let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
    ExitCode::from(u8::try_from(code).unwrap_or(1))
}

fn name_of(program: &Path) -> String {
    program.file_name().unwrap_or(program.as_os_str()).to_string_lossy().into_owned()
}
