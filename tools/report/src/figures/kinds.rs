//! The figures that a user asks for by name.

use roce_plot::Figure;

use super::charts;
use super::samples::Series;
use super::sweeps::{Points, Sweep};
use crate::data::completed::CompletedRun;
use crate::data::summary::Summary;

/// A figure with a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FigureKind {
    /// The slowdown of completion times by size, with the number of flows of each size.
    Slowdown,
    /// Queues: over time for a single run, otherwise the distribution of the longest one.
    Queue,
    /// The payload that flows sent over time.
    Rates,
    /// The distribution of completion times.
    Cdf,
    /// Completion time, queue and goodput against a swept value, such as the number of senders.
    Incast,
}

/// A figure has no points in these runs.
#[derive(Debug, thiserror::Error)]
#[error("the figure {name} has no points in {what}: {remedy}")]
pub struct NoFigure {
    name: &'static str,
    what: &'static str,
    remedy: &'static str,
}

impl FigureKind {
    /// All figures, by name.
    pub const ALL: [(&'static str, Self); 5] = [
        ("slowdown", Self::Slowdown),
        ("queue", Self::Queue),
        ("rates", Self::Rates),
        ("cdf", Self::Cdf),
        ("incast", Self::Incast),
    ];

    /// Returns the points that the figure needs of each of several runs, besides their summaries.
    #[must_use]
    pub const fn series(self) -> Option<Series> {
        match self {
            Self::Queue => Some(Series::Queue),
            Self::Rates => Some(Series::Total),
            Self::Cdf => Some(Series::Times),
            Self::Slowdown | Self::Incast => None,
        }
    }

    /// Draws the figure of a single run.
    ///
    /// # Errors
    ///
    /// The run has no points for the figure.
    pub fn of_run(self, completed: &CompletedRun) -> Result<Figure, NoFigure> {
        let (results, measure) = (&completed.results, &completed.scenario.settings.measure);
        let summary = &completed.summary;
        let chart = match self {
            Self::Slowdown => None,
            Self::Queue => Some(charts::queues(results, measure)),
            Self::Rates => Some(charts::rates(results, measure)),
            Self::Cdf => Some(charts::completion(results)),
            Self::Incast => return Err(self.missing("a single run")),
        };
        let figure = chart.map_or_else(|| charts::slowdown(summary), |chart| charts::figure(chart, summary));
        self.checked(figure, "this run")
    }

    /// Draws the figure of several runs. `points` returns the points that [`Self::series`] names.
    ///
    /// # Errors
    ///
    /// The runs have no points for the figure.
    pub fn of_runs(self, runs: &[Summary], points: Points<'_>) -> Result<Figure, NoFigure> {
        let sweep = Sweep::new(runs, points);
        let figure = match self {
            Self::Slowdown => sweep.slowdown(),
            Self::Queue => sweep.queue(),
            Self::Rates => sweep.rates(),
            Self::Cdf => sweep.times(),
            Self::Incast => sweep.incast(),
        };
        self.checked(figure, "these runs")
    }

    /// Returns the figure as papers have it: a single chart has its title in the caption.
    fn checked(self, figure: Figure, what: &'static str) -> Result<Figure, NoFigure> {
        let mut figure = figure.without_empty();
        if figure.charts.is_empty() {
            return Err(self.missing(what));
        }
        if let [chart] = figure.charts.as_mut_slice() {
            let title = std::mem::take(&mut chart.title);
            figure.caption = format!("{title}. {}", figure.caption);
        }
        Ok(figure)
    }

    fn missing(self, what: &'static str) -> NoFigure {
        let named = Self::ALL.into_iter().find(|(_, kind)| *kind == self);
        let remedy = match self {
            Self::Slowdown => {
                "it needs complete flows of several sizes that belong to no collective operation"
            }
            Self::Queue => {
                "no sample found a queue; set a smaller measure.interval or an earlier measure.warm_up"
            }
            Self::Rates => "it needs samples; set a smaller measure.interval",
            Self::Cdf => "it needs at least three complete flows",
            Self::Incast => {
                "it shows runs against a value that is a number; add a sweep such as \
                 --sweep flows.0.degree=2,4,8"
            }
        };
        NoFigure { name: named.map_or("", |(name, _)| name), what, remedy }
    }
}
