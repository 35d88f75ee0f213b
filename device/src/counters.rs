//! The table from which a device gets its counters.

/// Defines the counters of one part of a device. Each entry has a description, a field and a name; a test
/// checks that `docs/reference/counters.md` has a row for each name.
macro_rules! counters {
    ($visibility:vis struct $type:ident { $($(#[doc = $doc:literal])+ $field:ident => $name:literal,)+ }) => {
        /// 64-bit event counts since the device was opened.
        #[derive(Clone, Copy, Debug, Default)]
        $visibility struct $type {
            $($(#[doc = $doc])+ $visibility $field: u64,)+
        }

        impl $type {
            /// Calls `visit` with each name and value.
            $visibility fn visit(&self, visit: &mut dyn FnMut(&'static str, u64)) {
                $(visit($name, self.$field);)+
            }
        }
    };
}
pub(crate) use counters;

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::Path;

    /// Collects all counter names below `folder`: from tables, arrays of names, and calls of `visit`.
    fn names(folder: &Path, found: &mut BTreeSet<String>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                names(&path, found);
            } else if path.extension().is_some_and(|it| it == "rs") && !path.ends_with("counters.rs") {
                names_in(&fs::read_to_string(&path).unwrap(), found);
            }
        }
    }

    fn names_in(text: &str, found: &mut BTreeSet<String>) {
        let mut is_array = false;
        for line in text.lines().map(str::trim) {
            is_array = (is_array || line.contains("COUNTERS: [&str")) && !line.starts_with(']');
            let is_row = !line.starts_with("//") && line.contains(" => \"") && line.ends_with("\",");
            let literal = match line.split_once("visit(\"") {
                Some((_, rest)) => rest.split('"').next(),
                None if is_row || is_array => line.split('"').nth(1),
                None => None,
            };
            let is_name = |text: &&str| {
                text.contains('_')
                    && text.bytes().all(|it| it.is_ascii_lowercase() || it.is_ascii_digit() || it == b'_')
            };
            found.extend(literal.filter(is_name).map(str::to_owned));
        }
    }

    #[test]
    fn every_counter_of_a_device_is_explained() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
        let mut found = BTreeSet::new();
        names(&folder.join("src"), &mut found);
        for fate in roce_fault::FaultCounters::NAMES {
            found.extend(["tx", "rx"].map(|direction| format!("fault_{direction}_{fate}")));
        }
        for name in ["udp_tx_datagrams", "raw_rx_overflow", "rx_prio7_pause", "fault_tx_seen", "host_lookups"]
        {
            assert!(found.contains(name), "the search does not find {name}");
        }
        let text = fs::read_to_string(folder.join("../docs/reference/counters.md")).unwrap();
        let missing: Vec<_> = found.iter().filter(|name| !text.contains(&format!("| `{name}` |"))).collect();
        assert!(missing.is_empty(), "no row in docs/reference/counters.md: {missing:?}");
    }
}
