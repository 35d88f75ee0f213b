//! Debian's RDMA packages, and what is in their libraries.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// The longest that fetching and unpacking all packages may take.
const FETCHING: Duration = Duration::from_secs(180);

/// The distribution's packages, unpacked into the folder that the runner of programs uses as well; `None` where they cannot be
/// had. `scratch` is the `CARGO_TARGET_TMPDIR` of the test.
#[must_use]
pub fn distribution(scratch: &str) -> Option<&'static Path> {
    static ROOT: OnceLock<Option<PathBuf>> = OnceLock::new();
    ROOT.get_or_init(|| {
        let target = Path::new(scratch).parent().expect("the folder of cargo's results");
        let folder = target.join("programs");
        let fetch = Path::new(env!("CARGO_MANIFEST_DIR")).join("../cli/tests/programs/fetch");
        run(Command::new(fetch).arg(&folder))?;
        Some(folder.join("root"))
    })
    .as_deref()
}

/// Runs a program quietly; `None` if it is not there, fails, or takes too long.
fn run(command: &mut Command) -> Option<()> {
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().ok()?;
    let end = Instant::now() + FETCHING;
    loop {
        if let Some(status) = child.try_wait().ok()? {
            return status.success().then_some(());
        }
        if Instant::now() > end {
            let _ = child.kill();
            let _ = child.wait();
            return None;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// What `readelf` says of a file.
#[track_caller]
#[must_use]
pub fn readelf(option: &str, file: &Path) -> String {
    let output = Command::new("readelf").args(["-W", option]).arg(file).output().expect("running readelf");
    assert!(output.status.success(), "readelf of {}", file.display());
    String::from_utf8(output.stdout).expect("text")
}

/// The names that a library defines for others, each as `name@NODE`; without a version, as the name alone.
#[track_caller]
#[must_use]
pub fn exported_names(file: &Path) -> BTreeSet<String> {
    let symbols = readelf("--dyn-syms", file);
    let defined = symbols.lines().filter_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [_, _, _, kind, "GLOBAL" | "WEAK", "DEFAULT", section, name] = fields[..] else { return None };
        // A node has a symbol of its own with some linkers.
        let is_defined = section != "UND" && section != "ABS" && matches!(kind, "FUNC" | "OBJECT" | "NOTYPE");
        is_defined.then(|| name.replace("@@", "@"))
    });
    defined.collect()
}

/// The libraries that a library needs.
#[track_caller]
#[must_use]
pub fn needed_libraries(file: &Path) -> Vec<String> {
    let dynamic = readelf("-d", file);
    let names = dynamic.lines().filter_map(|line| line.split_once("Shared library: [")?.1.split(']').next());
    names.map(str::to_owned).collect()
}

/// Whether every program of this system has a library anyway: the C library, the loader, and what the compiler adds.
#[must_use]
pub fn is_of_system(library: &str) -> bool {
    ["libc.so.6", "libm.so.6", "libgcc_s.so.1"].contains(&library) || library.starts_with("ld-linux-")
}
