//! The formats of a figure.

use crate::chart::{Chart, Figure, Width};
use crate::{layout, pdf, svg, table};

impl Figure {
    /// Returns the figure as a complete SVG document, which may also stand inside HTML.
    #[must_use]
    pub fn to_svg(&self, width: Width) -> String {
        svg::text(&layout::drawing(self, width))
    }

    /// Returns the figure as a PDF document of one page. Its font is Helvetica, one of the standard fonts of
    /// PDF, which is not embedded.
    #[must_use]
    pub fn to_pdf(&self, width: Width) -> Vec<u8> {
        pdf::document(&layout::drawing(self, width))
    }

    /// Returns the points that the figure draws, as values separated by tabs. Lines that begin with `#`
    /// contain the caption and the labels of the axes.
    #[must_use]
    pub fn to_table(&self) -> String {
        table::text(self)
    }
}

impl Chart {
    /// Returns the chart as a figure for a screen.
    #[must_use]
    pub fn to_svg(&self) -> String {
        Figure::from(self.clone()).to_svg(Width::Screen)
    }
}
