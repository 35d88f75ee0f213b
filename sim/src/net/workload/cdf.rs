//! Distributions of flow sizes, read from points.

/// A distribution of flow sizes, given by points with linear interpolation.
#[derive(Clone, Debug, PartialEq)]
pub struct FlowSizes {
    /// Pairs of a size in bytes and the share of all flows up to this size. Both values rise.
    points: Vec<(f64, f64)>,
}

/// An error in a file of points.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {reason}")]
pub struct CdfError {
    /// The number of the line, from 1, or 0 for the whole file.
    pub line: usize,
    /// The reason.
    pub reason: String,
}

impl FlowSizes {
    /// Returns the web search distribution: the sizes of the DCTCP paper (Alizadeh and others, SIGCOMM 2010),
    /// as used in later simulations of congestion control.
    #[must_use]
    pub fn web_search() -> Self {
        Self::parse(include_str!("../../../data/websearch.cdf")).unwrap_or(Self { points: Vec::new() })
    }

    /// Returns the Hadoop distribution: the sizes in a Facebook cluster (Roy and others, SIGCOMM 2015), as
    /// used in the same simulations.
    #[must_use]
    pub fn hadoop() -> Self {
        Self::parse(include_str!("../../../data/hadoop.cdf")).unwrap_or(Self { points: Vec::new() })
    }

    /// Parses points, one per line: a size in bytes and the percentage of flows up to this size. Both values
    /// rise, and the last percentage is 100.
    ///
    /// # Errors
    ///
    /// Returns the first line with an error.
    pub fn parse(text: &str) -> Result<Self, CdfError> {
        let mut points: Vec<(f64, f64)> = Vec::new();
        for (line, text) in (1..).zip(text.lines()) {
            let text = text.split('#').next().unwrap_or_default().trim();
            if text.is_empty() {
                continue;
            }
            let wrong = |reason: &str| CdfError { line, reason: reason.to_owned() };
            let mut words = text.split([' ', '\t', ',']).filter(|word| !word.is_empty());
            let mut number = || words.next().and_then(|word| word.parse::<f64>().ok()).filter(|n| *n >= 0.0);
            let (Some(bytes), Some(percent)) = (number(), number()) else {
                return Err(wrong("two numbers are needed: bytes, and per cent of flows"));
            };
            let part = percent / 100.0;
            let rises = points.last().is_none_or(|(b, p)| bytes >= *b && part >= *p);
            if !rises || part > 1.0 || bytes > 1e12 {
                return Err(wrong("bytes and per cent must rise, to at most 10^12 and 100"));
            }
            points.push((bytes, part));
        }
        match points.last() {
            Some((bytes, part)) if *part == 1.0 && *bytes >= 1.0 => Ok(Self { points }),
            _ => {
                let line = text.lines().count().max(1);
                Err(CdfError { line, reason: "the last point must be at 100 per cent".to_owned() })
            }
        }
    }

    /// Returns the size that the share `quantile` of all flows does not exceed, which is at least one byte.
    #[must_use]
    pub fn at(&self, quantile: f64) -> u64 {
        let index = self.points.partition_point(|(_, part)| *part < quantile);
        let Some((bytes, part)) = self.points.get(index).copied() else { return 1 };
        let (before, below) = match index.checked_sub(1) {
            Some(index) => self.points[index],
            None => (bytes, 0.0),
        };
        let share = if part > below { (quantile - below) / (part - below) } else { 1.0 };
        (before + (bytes - before) * share).round().max(1.0) as u64
    }

    /// Returns the mean size.
    #[must_use]
    pub fn mean(&self) -> f64 {
        let mut sum = self.points.first().map_or(1.0, |(bytes, part)| bytes * part);
        for pair in self.points.windows(2) {
            let ((from, low), (to, high)) = (pair[0], pair[1]);
            sum += (from + to) / 2.0 * (high - low);
        }
        sum.max(1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shipped_ones() {
        let web = FlowSizes::web_search();
        assert!((1.6e6..1.8e6).contains(&web.mean()), "{}", web.mean());
        assert_eq!(web.at(1.0), 30_000_000);
        let hadoop = FlowSizes::hadoop();
        assert!((1e5..1.4e5).contains(&hadoop.mean()), "{}", hadoop.mean());
        assert!(hadoop.at(0.5) < 1_000, "most are short: {}", hadoop.at(0.5));
    }

    #[test]
    fn between_points() {
        let sizes = FlowSizes::parse("0 0\n100 50\n# remark\n200 100").unwrap();
        assert_eq!((sizes.at(0.25), sizes.at(0.5), sizes.at(0.75), sizes.at(1.0)), (50, 100, 150, 200));
        assert_eq!((sizes.at(0.0), sizes.mean()), (1, 100.0));
    }

    #[test]
    fn errors_name_the_line() {
        let message = |text: &str| FlowSizes::parse(text).unwrap_err().to_string();
        assert_eq!(message("1 x"), "line 1: two numbers are needed: bytes, and per cent of flows");
        assert!(message("10 50\n5 100").starts_with("line 2: bytes and per cent must rise"));
        assert!(message("10 50").contains("last point"));
    }
}
