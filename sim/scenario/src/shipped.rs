//! The scenarios of the folder `shipped`, which are part of this crate.

macro_rules! texts {
    ($($name:literal),+ $(,)?) => {
        &[$(($name, include_str!(concat!("../shipped/", $name, ".toml")))),+]
    };
}

/// Names and texts of the shipped scenarios, from an introduction to the largest network.
pub static SHIPPED: &[(&str, &str)] = texts![
    "two-to-one",
    "two-to-one-bridge",
    "incast",
    "dcqcn-incast",
    "unfairness-pfc",
    "fairness-dcqcn",
    "victim-pfc",
    "victim-dcqcn",
    "pfc-deadlock",
    "pause-storm",
    "link-failure",
    "paths",
    "trimming",
    "victim-trimming",
    "balancing",
    "dual-homed",
    "loss",
    "storage-reads",
    "applications",
    "timely-unfairness",
    "lost-cnps",
    "ecn-without-pfc",
    "tuning",
    "parameters",
    "permutation-k8",
    "ring-all-reduce",
    "multi-rail",
    "all-reduce-collisions",
    "training",
    "mixture-of-experts",
    "two-classes",
    "hpcc-example",
    "clos-1000",
    "permutation-8192",
];

/// Returns the text of a shipped scenario.
#[must_use]
pub fn shipped(name: &str) -> Option<&'static str> {
    SHIPPED.iter().find(|(known, _)| *known == name).map(|(_, text)| *text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_scenario_file_is_shipped() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/shipped");
        let mut files: Vec<String> = std::fs::read_dir(folder)
            .unwrap()
            .filter_map(|entry| {
                entry.unwrap().path().file_stem().map(|stem| stem.to_string_lossy().into_owned())
            })
            .collect();
        files.sort();
        let mut names: Vec<&str> = SHIPPED.iter().map(|(name, _)| *name).collect();
        names.sort_unstable();
        assert_eq!(files, names);
        assert!(shipped("two-to-one").is_some() && shipped("three-to-one").is_none());
    }
}
