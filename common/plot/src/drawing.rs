//! The shapes of a figure, which the formats write.

use crate::chart::Mark;
use crate::metrics;

/// A place in a drawing: to the right and down from its upper left corner.
pub(crate) type Place = (f64, f64);

/// The purpose of a shape, which decides its color.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ink {
    /// Texts.
    Text,
    /// The lines of the grid.
    Grid,
    /// The frame of a plot and its tick marks.
    Frame,
    /// A text that a reader must not miss.
    Warning,
    /// A series, by the index of its color.
    Series(usize),
}

impl Ink {
    pub(crate) fn color(self) -> &'static str {
        match self {
            Self::Text => "#222222",
            Self::Grid => "#e4e4e4",
            Self::Frame => "#767676",
            Self::Warning => "#a32020",
            Self::Series(index) => crate::series::COLORS[index % crate::series::COLORS.len()],
        }
    }
}

/// How a line is drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Stroke {
    pub(crate) ink: Ink,
    pub(crate) width: f64,
    /// Lengths of strokes and gaps, relative to the width.
    pub(crate) dash: &'static [f64],
}

/// Which part of a text is at its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Anchor {
    Start,
    Middle,
    End,
}

/// A line of text.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Text {
    /// The place of the anchor on the baseline.
    pub(crate) at: Place,
    pub(crate) text: String,
    pub(crate) size: f64,
    pub(crate) is_bold: bool,
    pub(crate) anchor: Anchor,
    /// Whether the text runs upward.
    pub(crate) is_upward: bool,
    pub(crate) ink: Ink,
}

impl Text {
    /// Returns the left, upper, right and lower end of the text if it has this width.
    #[cfg(test)]
    pub(crate) fn bounds(&self, width: f64) -> [f64; 4] {
        let before = match self.anchor {
            Anchor::Start => 0.0,
            Anchor::Middle => width / 2.0,
            Anchor::End => width,
        };
        let (above, below) = (metrics::ASCENT * self.size, metrics::DESCENT * self.size);
        let (x, y) = self.at;
        if self.is_upward {
            [x - above, y + before - width, x + below, y + before]
        } else {
            [x - before, y - above, x - before + width, y + below]
        }
    }

    /// Returns the distance from the anchor back to the begin of the text.
    pub(crate) fn before(&self) -> f64 {
        let width = || metrics::width(&self.text, self.size, self.is_bold);
        match self.anchor {
            Anchor::Start => 0.0,
            Anchor::Middle => width() / 2.0,
            Anchor::End => width(),
        }
    }
}

/// A shape. Later shapes are in front of earlier ones.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Shape {
    /// A line through all places; a closed one returns to its begin.
    Path {
        places: Vec<Place>,
        is_closed: bool,
        stroke: Stroke,
    },
    /// Separate lines from one place to another.
    Lines {
        lines: Vec<[Place; 2]>,
        stroke: Stroke,
    },
    /// A filled area.
    Area {
        places: Vec<Place>,
        ink: Ink,
        opacity: f64,
    },
    /// Marks of one kind.
    Marks {
        places: Vec<Place>,
        mark: Mark,
        radius: f64,
        ink: Ink,
    },
    Text(Text),
}

/// A figure as shapes.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Drawing {
    pub(crate) width: f64,
    pub(crate) height: f64,
    /// Whether the unit is a pixel instead of 1/72 inch.
    pub(crate) is_screen: bool,
    pub(crate) shapes: Vec<Shape>,
}

impl Mark {
    /// Returns the outline of a mark around zero, or `None` for marks that consist of strokes.
    pub(crate) fn outline(self, radius: f64) -> Option<Vec<Place>> {
        let unit: &[Place] = match self {
            Self::Square => &[(-0.88, -0.88), (0.88, -0.88), (0.88, 0.88), (-0.88, 0.88)],
            Self::Triangle => &[(0.0, -1.2), (1.1, 0.8), (-1.1, 0.8)],
            Self::Diamond => &[(0.0, -1.3), (1.3, 0.0), (0.0, 1.3), (-1.3, 0.0)],
            Self::Circle | Self::Cross | Self::Plus => return None,
        };
        Some(unit.iter().map(|(x, y)| (x * radius, y * radius)).collect())
    }

    /// Returns the two strokes of a mark around zero.
    pub(crate) fn strokes(self, radius: f64) -> [[Place; 2]; 2] {
        let far = 1.25 * radius;
        match self {
            Self::Plus => [[(-far, 0.0), (far, 0.0)], [(0.0, -far), (0.0, far)]],
            _ => [[(-radius, -radius), (radius, radius)], [(-radius, radius), (radius, -radius)]],
        }
    }

    /// Returns the width of the strokes of a mark. A circle is a stroke without length and with round ends.
    pub(crate) fn stroke_width(self, radius: f64) -> f64 {
        if self == Self::Circle { 2.0 * radius } else { 0.62 * radius }
    }
}

/// Formats a length with at most one digit after the point, or two for short lengths.
pub(crate) fn fixed(value: f64) -> String {
    let text = if value.abs() < 10.0 { format!("{value:.2}") } else { format!("{value:.1}") };
    let text = text.trim_end_matches('0').trim_end_matches('.');
    if matches!(text, "-0" | "") { "0".to_owned() } else { text.to_owned() }
}
