//! Checks whether a run fits into memory: compares the estimate of the simulator with the memory of the
//! machine.

use anyhow::ensure;
use roce_machine::memory;
use roce_sim::net::MemoryEstimate;

/// The memory that runs may take.
#[derive(Clone, Copy, Debug)]
pub(super) struct Budget {
    /// The number of bytes; `None` if it is unknown.
    bytes: Option<u64>,
    is_given: bool,
}

impl Budget {
    /// Takes the memory of the command line, or else the available memory.
    pub(super) fn new(given: Option<u64>) -> Self {
        Self { bytes: given.or_else(memory::available), is_given: given.is_some() }
    }

    /// Returns how many of these runs fit at the same time: at least one, and at most `most`.
    pub(super) fn runs_at_once(&self, largest: u64, most: usize) -> usize {
        let fit = self.bytes.map_or(u64::MAX, |bytes| bytes / largest.max(1));
        usize::try_from(fit).unwrap_or(usize::MAX).clamp(1, most)
    }

    /// Returns an error if a run certainly takes more, and prints a warning if it possibly does.
    pub(super) fn check(&self, estimate: &MemoryEstimate) -> anyhow::Result<()> {
        let (Some(bytes), Some(part), Some(at_most)) =
            (self.bytes, estimate.largest(), estimate.largest_at_most())
        else {
            return Ok(());
        };
        let own = mb(bytes);
        let own =
            if self.is_given { format!("--memory allows {own}") } else { format!("{own} are available") };
        let (least, most) = (mb(estimate.least()), mb(estimate.most()));
        ensure!(
            estimate.least() <= bytes,
            "the run needs at least {least} of memory, but {own}. {} take {} of it: change {}, or use a \
             machine with more memory",
            part.what,
            mb(part.least),
            part.keys
        );
        if estimate.most() > bytes {
            tracing::warn!(
                "the run may need up to {most} of memory, but {own}. {} may take {} of it; change {} to \
                 reduce it",
                at_most.what,
                mb(at_most.most),
                at_most.keys
            );
        }
        Ok(())
    }
}

/// Formats bytes in a human-readable unit.
fn mb(bytes: u64) -> String {
    match bytes {
        0..10_000_000_000 => format!("{:.0} MB", bytes as f64 / 1e6),
        _ => format!("{:.1} GB", bytes as f64 / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use roce_sim::net::MemoryPart;

    use super::*;

    fn estimate(least: u64, most: u64) -> MemoryEstimate {
        let part =
            |what: &str, least, most| MemoryPart { what: what.to_owned(), least, most, keys: "[topology]" };
        MemoryEstimate { parts: vec![part("9 hosts", least, least), part("7 packets", 0, most - least)] }
    }

    #[test]
    fn a_run_that_does_not_fit_is_refused_with_the_figures() {
        let budget = Budget::new(Some(50_000_000));
        assert!(budget.check(&estimate(50_000_000, 90_000_000)).is_ok());
        let error = budget.check(&estimate(20_000_000_000, 30_000_000_000)).unwrap_err().to_string();
        assert_eq!(
            error,
            "the run needs at least 20.0 GB of memory, but --memory allows 50 MB. 9 hosts take 20.0 GB of \
             it: change [topology], or use a machine with more memory"
        );
    }

    #[test]
    fn as_many_runs_as_fit_take_place_at_once() {
        let budget = Budget::new(Some(100));
        let at_once = [1, 30, 60, 1_000].map(|largest| budget.runs_at_once(largest, 8));
        assert_eq!(at_once, [8, 3, 1, 1]);
        assert_eq!(Budget { bytes: None, is_given: false }.runs_at_once(1 << 40, 8), 8);
    }
}
