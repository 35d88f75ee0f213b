//! The setting that the script `run` passes to this program in its environment.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use roce::device::OpenOptions as Wrappers;
use roce::device::pcap::CaptureFile;
use roce::verbs::Context;
use roce_fault::{FaultInjector, FaultPlan};
use roce_transport::EngineConfig;

use crate::case::{Case, Family, Scope};
use crate::common::skip_unless;
use crate::peer::{Addresses, Peer, PeerDevice};

#[derive(Clone, Debug)]
pub(crate) struct Setting {
    pub(crate) scope: Scope,
    /// Only cases whose name contains this text are run.
    pub(crate) only: String,
    pub(crate) kernel: String,
    /// The kind of our device, for the table.
    pub(crate) device: String,
    /// Specification of our device for each family.
    specs: [String; 2],
    ours: [IpAddr; 2],
    theirs: [IpAddr; 2],
    peer_port: u16,
    /// Name of the guest in the script `guest`.
    pub(crate) guest: String,
    /// Percentage of datagrams that are lost, as text; `0` for none.
    pub(crate) loss: String,
    results: PathBuf,
    /// The tested commit and its date.
    commit: String,
    /// Folder for captures, if any.
    captures: Option<PathBuf>,
}

fn variable(name: &str) -> Result<String> {
    std::env::var(name).with_context(|| format!("{name} is not set; cli/tests/interop/run sets it"))
}

fn pair<T>(name: &str) -> Result<[T; 2]>
where
    T: std::str::FromStr,
    T::Err: std::error::Error + Send + Sync + 'static,
{
    let [v4, v6] = ["V4", "V6"].map(|family| format!("ROCE_INTEROP_{name}_{family}"));
    let read = |name: &str| variable(name)?.parse::<T>().with_context(|| name.to_owned());
    Ok([read(&v4)?, read(&v6)?])
}

/// Returns the name of the guest whose process number is in this file.
fn name_of(pid_file: &str) -> Result<String> {
    let folder = Path::new(pid_file).parent().and_then(Path::file_name);
    Ok(folder.context("ROCE_INTEROP_GUEST names no guest")?.to_string_lossy().into_owned())
}

fn columns(case: &Case) -> String {
    let Case { operation, family, mtu, .. } = case;
    [operation.name(), case.starter(), family.name(), &mtu.bytes().to_string()].join("\t")
}

fn capture_to(wrappers: &mut Wrappers, file: &Path) -> Result<()> {
    let mut files = CaptureFile::create(file, &["roce0"])?;
    wrappers.capture = files.pop().map(|file| Box::new(file) as _);
    Ok(())
}

impl Setting {
    /// Reads the setting; returns `None`, with a message, if the script did not start this program.
    #[track_caller]
    pub(crate) fn read() -> Option<Self> {
        let started = std::env::var_os("ROCE_INTEROP").is_some();
        if skip_unless(started, "it needs a guest with kernel Soft-RoCE: run cli/tests/interop/run") {
            return None;
        }
        Some(Self::from_environment().expect("the setting"))
    }

    fn from_environment() -> Result<Self> {
        let scope = match variable("ROCE_INTEROP")?.as_str() {
            "smoke" => Scope::Smoke,
            "all" => Scope::All,
            other => bail!("ROCE_INTEROP is `{other}`, neither smoke nor all"),
        };
        Ok(Self {
            scope,
            only: std::env::var("ROCE_INTEROP_CASE").unwrap_or_default(),
            kernel: variable("ROCE_INTEROP_KERNEL")?,
            device: variable("ROCE_INTEROP_DEVICE")?,
            specs: pair("SPEC")?,
            ours: pair("OURS")?,
            theirs: pair("THEIRS")?,
            peer_port: variable("ROCE_INTEROP_PORT")?.parse()?,
            guest: name_of(&variable("ROCE_INTEROP_GUEST")?)?,
            loss: std::env::var("ROCE_INTEROP_LOSS").unwrap_or_else(|_| "0".to_owned()),
            results: variable("ROCE_INTEROP_RESULTS")?.into(),
            commit: variable("ROCE_INTEROP_COMMIT")?,
            captures: std::env::var_os("ROCE_INTEROP_CAPTURES").map(PathBuf::from),
        })
    }

    /// Returns the specification of our device for this family.
    pub(crate) fn spec(&self, family: Family) -> &str {
        &self.specs[family as usize]
    }

    pub(crate) fn is_lossy(&self) -> bool {
        self.loss != "0"
    }

    /// Returns the time limit for a completion. The guest's processors are emulated and sometimes stand
    /// still.
    pub(crate) fn patience(&self) -> Duration {
        Duration::from_secs(if self.is_lossy() { 60 } else { 20 })
    }

    pub(crate) fn addresses(&self, family: Family) -> Addresses {
        Addresses { ours: self.ours[family as usize], theirs: self.theirs[family as usize] }
    }

    pub(crate) fn connect(&self) -> Result<(Peer, PeerDevice)> {
        Peer::open(self.agent())
    }

    /// Returns the address of the agent in the guest.
    pub(crate) fn agent(&self) -> SocketAddr {
        SocketAddr::new(self.theirs[0], self.peer_port)
    }

    /// Returns the faults of the setting, in both directions.
    fn faults(&self, seed: u64) -> Result<Wrappers> {
        let mut wrappers = Wrappers::default();
        if self.is_lossy() {
            let plan: FaultPlan = format!("drop={}%", self.loss).parse()?;
            wrappers.transmit_faults = Some(FaultInjector::new(plan.clone(), seed));
            wrappers.receive_faults = Some(FaultInjector::new(plan, !seed));
        }
        Ok(wrappers)
    }

    /// Opens our device, with the faults of the setting in both directions, and with the limits that `tune`
    /// sets.
    pub(crate) fn open_tuned(
        &self,
        family: Family,
        seed: u64,
        tune: fn(&mut EngineConfig),
    ) -> Result<Context> {
        let spec = self.spec(family);
        let builder = Context::builder().options(self.faults(seed)?).tune(tune);
        builder.open(spec).with_context(|| format!("opening {spec}"))
    }

    /// Opens our device, with the faults of the setting in both directions, and a capture with this name.
    pub(crate) fn open(&self, family: Family, seed: u64, capture: Option<&str>) -> Result<Context> {
        let mut wrappers = self.faults(seed)?;
        if let (Some(folder), Some(name)) = (&self.captures, capture) {
            capture_to(&mut wrappers, &folder.join(format!("{name}.pcapng")))?;
        }
        self.open_wrapped(family, wrappers)
    }

    /// Opens our device without faults, and captures its packets into a file.
    pub(crate) fn open_captured(&self, family: Family, file: &Path) -> Result<Context> {
        let mut wrappers = Wrappers::default();
        capture_to(&mut wrappers, file)?;
        self.open_wrapped(family, wrappers)
    }

    fn open_wrapped(&self, family: Family, wrappers: Wrappers) -> Result<Context> {
        let spec = self.spec(family);
        Context::builder().options(wrappers).open(spec).with_context(|| format!("opening {spec}"))
    }

    /// Adds a line to the results.
    pub(crate) fn record(&self, case: &Case, outcome: &Result<usize>, took: Duration) -> Result<()> {
        let (result, messages, detail) = match outcome {
            Ok(messages) => ("pass", *messages, String::new()),
            Err(error) => ("FAIL", 0, format!("{error:#}").replace(['\t', '\n'], " ")),
        };
        self.write_line(&format!("{}\t{result}\t{messages}\t{}\t{detail}", columns(case), took.as_millis()))
    }

    /// Adds a line for a case that was omitted because of an error of the kernel.
    pub(crate) fn record_left_out(&self, case: &Case, reason: &str) -> Result<()> {
        self.write_line(&format!("{}\tkernel\t0\t0\t{reason}", columns(case)))
    }

    /// Adds a line for a test that is not a cell of the matrix.
    pub(crate) fn record_special(&self, name: &str, outcome: &Result<String>, took: Duration) -> Result<()> {
        let (result, detail) = match outcome {
            Ok(detail) => ("pass", detail.clone()),
            Err(error) => ("FAIL", format!("{error:#}")),
        };
        let detail = detail.replace(['\t', '\n'], " ");
        self.write_line(&format!("special:{name}\t-\t-\t-\t{result}\t1\t{}\t{detail}", took.as_millis()))
    }

    /// Adds a line for a program of Debian with a program of ours.
    pub(crate) fn record_program(
        &self,
        name: &str,
        role: &str,
        family: Family,
        outcome: &Result<()>,
        took: Duration,
    ) -> Result<()> {
        let (result, detail) = match outcome {
            Ok(()) => ("pass", String::new()),
            Err(error) => ("FAIL", format!("{error:#}").replace(['\t', '\n'], " ")),
        };
        let family = family.name();
        self.write_line(&format!(
            "program:{name}\t{role}\t{family}\t-\t{result}\t1\t{}\t{detail}",
            took.as_millis()
        ))
    }

    fn write_line(&self, line: &str) -> Result<()> {
        let mut file: File = OpenOptions::new().create(true).append(true).open(&self.results)?;
        let (kernel, device, loss) = (&self.kernel, &self.device, &self.loss);
        Ok(writeln!(file, "{kernel}\t{device}\t{loss}\t{line}\t{}", self.commit)?)
    }
}
