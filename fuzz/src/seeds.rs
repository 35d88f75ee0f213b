//! The committed seeds: their content and their location.
//!
//! They are made from traffic between two engines over the link of `roce-sim`, from every capture in
//! `pcaps/`, and from scripts of records. `make_seeds` writes the seeds. One test replays them, and another
//! one fails if they differ from the output of the code that makes them.

mod captures;
mod connections;
mod files;
mod scenarios;
mod scripts;

use std::path::{Path, PathBuf};

pub use files::Seeds;

/// A target: its name, and the function that it runs.
pub type Target = (&'static str, fn(&[u8]));

/// All targets.
pub const TARGETS: [Target; 8] = [
    ("parse", crate::parse::run),
    ("parse_repaired", crate::parse_repaired::run),
    ("responder", crate::responder::run),
    ("requester", crate::requester::run),
    ("pcap", crate::pcap::run),
    ("api", crate::api::run),
    ("cm", crate::cm::run),
    ("scenario", crate::scenario::run),
];

/// All seeds.
#[must_use]
pub fn all() -> Seeds {
    let mut seeds = Seeds::new();
    captures::add(&mut seeds);
    scripts::add(&mut seeds);
    connections::add(&mut seeds);
    scenarios::add(&mut seeds);
    seeds
}

/// Returns the directory of a target's seeds in the repository.
#[must_use]
pub fn directory(target: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("seeds").join(target)
}

/// Returns all directories with seeds of a target. The shipped scenarios are seeds where they lie, without a
/// copy.
#[must_use]
pub fn directories(target: &str) -> Vec<PathBuf> {
    let mut directories = vec![directory(target)];
    if target == "scenario" {
        directories.push(Path::new(env!("CARGO_MANIFEST_DIR")).join("../sim/scenario/shipped"));
    }
    directories
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn every_seed_runs_through_its_target() {
        for (target, run) in TARGETS {
            let mut count = 0;
            for directory in directories(target) {
                for entry in fs::read_dir(directory).unwrap() {
                    let path = entry.unwrap().path();
                    eprintln!("{}", path.display());
                    run(&fs::read(&path).unwrap());
                    count += 1;
                }
            }
            assert!(count > 0, "{target} has no seeds");
        }
    }

    #[test]
    fn the_seeds_in_the_repository_are_those_that_make_seeds_writes() {
        for ((target, name), content) in all() {
            let path = directory(target).join(&name);
            let found = fs::read(&path).unwrap_or_default();
            assert!(found == content, "{} is out of date: run make_seeds", path.display());
        }
    }

    #[test]
    fn the_seeds_are_small() {
        let total: usize = all().values().map(Vec::len).sum();
        assert!(total < 300 << 10, "{total} bytes");
    }
}
