//! Debian's RDMA packages, and the symbols of libraries.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Time limit for fetching and unpacking all packages.
const FETCHING: Duration = Duration::from_secs(180);

/// Returns the folder with the distribution's unpacked packages, or `None` if they are not available. The
/// test runner for programs uses the same folder. `scratch` is the `CARGO_TARGET_TMPDIR` of the test.
#[must_use]
pub fn distribution(scratch: &str) -> Option<&'static Path> {
    static ROOT: OnceLock<Option<PathBuf>> = OnceLock::new();
    ROOT.get_or_init(|| {
        let target = Path::new(scratch).parent().expect("the folder of cargo's results");
        let folder = target.join("programs");
        let fetch = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../cli/tests/programs/fetch");
        run(Command::new(fetch).arg(&folder))?;
        Some(folder.join("root"))
    })
    .as_deref()
}

/// Runs a program silently. Returns `None` if it is not installed, fails, or takes too long.
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

/// Returns the output of `readelf` for a file.
#[track_caller]
#[must_use]
pub fn readelf(option: &str, file: &Path) -> String {
    let output = Command::new("readelf").args(["-W", option]).arg(file).output().expect("running readelf");
    assert!(output.status.success(), "readelf of {}", file.display());
    String::from_utf8(output.stdout).expect("text")
}

/// Returns the names that a library exports, each as `name@NODE`, or as `name` if it has no version.
#[track_caller]
#[must_use]
pub fn exported_names(file: &Path) -> BTreeSet<String> {
    let symbols = readelf("--dyn-syms", file);
    let defined = symbols.lines().filter_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [_, _, _, kind, "GLOBAL" | "WEAK", "DEFAULT", section, name] = fields[..] else { return None };
        // Some linkers emit a symbol for the version node itself.
        let is_defined = section != "UND" && section != "ABS" && matches!(kind, "FUNC" | "OBJECT" | "NOTYPE");
        is_defined.then(|| name.replace("@@", "@"))
    });
    defined.collect()
}

/// Returns the libraries that a library needs.
#[track_caller]
#[must_use]
pub fn needed_libraries(file: &Path) -> Vec<String> {
    let dynamic = readelf("-d", file);
    let names = dynamic.lines().filter_map(|line| line.split_once("Shared library: [")?.1.split(']').next());
    names.map(str::to_owned).collect()
}

/// Returns whether every program of this system has a library: the C library, the loader, and the compiler's
/// library.
#[must_use]
pub fn is_of_system(library: &str) -> bool {
    ["libc.so.6", "libm.so.6", "libgcc_s.so.1"].contains(&library) || library.starts_with("ld-linux-")
}
