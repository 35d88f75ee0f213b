//! What a program or library needs of the system that runs it, as `readelf` prints it.

use std::fmt;
use std::path::Path;
use std::process::Command;
use std::str::FromStr;

use anyhow::{Context as _, ensure};

use crate::build;

/// A version of glibc, such as 2.31.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(Vec<u32>);

impl FromStr for Version {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        let numbers: Result<Vec<u32>, _> = text.split('.').map(str::parse).collect();
        numbers.map(Self).with_context(|| format!("{text} is not a version such as 2.31"))
    }
}

impl fmt::Display for Version {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let numbers: Vec<String> = self.0.iter().map(u32::to_string).collect();
        formatter.write_str(&numbers.join("."))
    }
}

/// What a program or library needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Needs {
    /// Nothing: it is linked statically.
    Nothing,
    /// Shared libraries, and glibc in this version or a newer one.
    Glibc(Version),
}

/// Returns what a program or library needs.
///
/// # Errors
///
/// `readelf` is not installed, the file is not an ELF file, or it needs shared libraries but not glibc.
pub fn needs(file: &Path) -> anyhow::Result<Needs> {
    let options = ["--wide", "--program-headers", "--dynamic", "--dyn-syms"];
    let printed = build::text(Command::new("readelf").args(options).arg(file).env("LC_ALL", "C"))?;
    ensure!(printed.contains("Program Headers:"), "{} is not an ELF file", file.display());
    if !printed.contains("(NEEDED)") && !printed.contains(" INTERP ") {
        return Ok(Needs::Nothing);
    }
    let version = newest_glibc(&printed);
    version.map(Needs::Glibc).with_context(|| format!("{} names no version of glibc", file.display()))
}

/// Returns the newest version of glibc in a list of symbols.
fn newest_glibc(symbols: &str) -> Option<Version> {
    let names = symbols.split_whitespace().filter_map(|word| word.split_once("@GLIBC_"));
    names.filter_map(|(_, version)| version.parse().ok()).max()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_version_is_compared_by_numbers() {
        let symbols = " 1: 0 0 FUNC GLOBAL DEFAULT UND read@GLIBC_2.2.5 (3)\n 2: x@GLIBC_2.34 (2)\n 3: y@GLIBC_2.4\n\
                       4: z@GLIBC_PRIVATE 5: ibv_open_device@@IBVERBS_1.1";
        assert_eq!(newest_glibc(symbols).unwrap().to_string(), "2.34");
        assert_eq!(newest_glibc("a b@GCC_3.0"), None);
        let version = |text: &str| text.parse::<Version>().unwrap();
        assert!(version("2.4") < version("2.31") && version("2.2.5") < version("2.3"));
        assert!("2.x".parse::<Version>().is_err() && "".parse::<Version>().is_err());
    }

    /// The test program itself is linked dynamically, and a page is not a program.
    #[test]
    fn a_program_needs_glibc() {
        let own = std::env::current_exe().unwrap();
        assert!(matches!(needs(&own).unwrap(), Needs::Glibc(version) if version > Version(vec![2, 2])));
        assert!(needs(&build::root().join("README.md")).is_err());
    }
}
