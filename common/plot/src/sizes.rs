//! The sizes of everything at each width.

use crate::chart::Width;
use crate::drawing::{Ink, Place, Shape};
use crate::series::look;

/// The opacity of areas.
pub(crate) const BAND_OPACITY: f64 = 0.2;

/// The sizes of a figure, in points or pixels.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    pub(crate) width: f64,
    /// Font sizes of labels, tick labels and titles.
    pub(crate) label: f64,
    pub(crate) tick: f64,
    pub(crate) title: f64,
    /// The width of lines.
    pub(crate) line: f64,
    /// The radius of marks.
    pub(crate) radius: f64,
    /// The height of a plot.
    pub(crate) height: f64,
    /// The margin of the figure.
    pub(crate) pad: f64,
    /// Maximum number of points of a line that all have marks.
    pub(crate) most_marks: usize,
}

impl Sizes {
    pub(crate) fn of(width: Width) -> Self {
        let (inch, pixel) = (72.0, 1.0);
        match width {
            Width::Column => Self {
                width: 3.3 * inch,
                label: 7.5,
                tick: 7.0,
                title: 8.0,
                line: 1.0,
                radius: 1.7,
                height: 118.0,
                pad: 3.0,
                most_marks: 18,
            },
            Width::Page => Self {
                width: 7.0 * inch,
                label: 8.0,
                tick: 7.5,
                title: 8.5,
                line: 1.1,
                radius: 1.9,
                height: 160.0,
                pad: 4.0,
                most_marks: 24,
            },
            Width::Screen => Self {
                width: 860.0 * pixel,
                label: 12.5,
                tick: 12.0,
                title: 15.0,
                line: 1.6,
                radius: 2.8,
                height: 250.0,
                pad: 8.0,
                most_marks: 40,
            },
        }
    }
}

/// Returns the mark of a series at these places.
pub(crate) fn mark_of(places: Vec<Place>, index: usize, sizes: &Sizes) -> Shape {
    let look = look(index);
    Shape::Marks { places, mark: look.mark, radius: sizes.radius, ink: Ink::Series(look.color) }
}

/// Returns the lines of a vertical bar with short ends.
pub(crate) fn bar(x: f64, (low, high): (f64, f64), half: f64) -> Vec<[Place; 2]> {
    let end = |y: f64| [(x - half, y), (x + half, y)];
    vec![[(x, low), (x, high)], end(low), end(high)]
}
