//! Figures of lines and points as SVG and PDF, for papers and for the reports of measurements, simulations
//! and captures.
//!
//! ```text
//! formats   a figure as SVG, PDF and table
//! layout    where everything stands: titles, legend, panels, axes, caption
//! legend    the names of the series, each beside its line and its mark
//! svg, pdf, table   the text of each format
//! drawing   the shapes that the formats write
//! sizes     fonts, lines and margins at each width
//! series    the color, dash and mark of each series, and the points that are drawn
//! ticks, axis         scales, and the values with tick marks
//! metrics   the widths of texts
//! chart     the data of a figure
//! ```
//!
//! A [`Chart`] is data. A [`Figure`] consists of charts with a common legend and a caption. It returns its
//! SVG, its PDF and a table of the points that it draws. Equal figures give equal bytes. The crate uses only
//! the standard library, and reads and writes nothing.
#![forbid(unsafe_code)]

mod axis;
mod chart;
mod drawing;
mod formats;
mod layout;
mod legend;
mod metrics;
mod pdf;
mod series;
mod sizes;
mod svg;
mod table;
mod ticks;

pub use axis::Axis;
pub use chart::{Axes, Band, Chart, Dots, Figure, Line, MOST_LINES, Mark, Spread, Width};
pub use svg::{dark_style, escape};

#[cfg(test)]
mod tests;
