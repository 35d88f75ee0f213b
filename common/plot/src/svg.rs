//! Figures as SVG.

use std::fmt::Write as _;

use crate::chart::Mark;
use crate::drawing::{Anchor, Drawing, Ink, Place, Shape, Text, fixed};
use crate::series::{COLORS, DARK_COLORS};

/// Fonts that exist on most machines, by preference. All but the last two have the same widths.
const FONTS: &str = "Helvetica, Arial, 'Liberation Sans', 'Nimbus Sans', 'DejaVu Sans', sans-serif";

/// Escapes text between tags.
#[must_use]
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// Returns the rules of a style sheet that show figures on a dark page with this background color. They
/// belong into `@media (prefers-color-scheme: dark)`.
#[must_use]
pub fn dark_style(background: &str) -> String {
    let inks =
        [(Ink::Text, "#e4e4e4"), (Ink::Grid, "#33363d"), (Ink::Frame, "#8a8a8a"), (Ink::Warning, "#ff9b8f")];
    let inks = inks.into_iter().map(|(ink, dark)| (ink.color(), dark));
    let series = COLORS.into_iter().zip(DARK_COLORS);
    let rules = inks.chain([("#ffffff", background)]).chain(series).map(|(light, dark)| {
        format!("svg.plot [fill=\"{light}\"]{{fill:{dark}}}svg.plot [stroke=\"{light}\"]{{stroke:{dark}}}")
    });
    rules.collect()
}

/// Returns the document.
pub(crate) fn text(drawing: &Drawing) -> String {
    let mut svg = String::new();
    // Writing to a string cannot fail.
    let _ = write(&mut svg, drawing);
    svg
}

fn write(svg: &mut String, drawing: &Drawing) -> std::fmt::Result {
    let (width, height) = (fixed(drawing.width), fixed(drawing.height));
    let (shown_width, shown_height) = if drawing.is_screen {
        (width.clone(), height.clone())
    } else {
        let inches = |points: f64| format!("{}in", fixed(points / 72.0));
        (inches(drawing.width), inches(drawing.height))
    };
    writeln!(
        svg,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"plot\" viewBox=\"0 0 {width} {height}\" \
         width=\"{shown_width}\" height=\"{shown_height}\" font-family=\"{FONTS}\">"
    )?;
    writeln!(svg, "<rect width=\"{width}\" height=\"{height}\" fill=\"#ffffff\"/>")?;
    for shape in &drawing.shapes {
        match shape {
            Shape::Path { places, is_closed, stroke } => {
                let element = if *is_closed { "polygon" } else { "polyline" };
                write!(
                    svg,
                    "<{element} fill=\"none\" stroke=\"{}\" stroke-width=\"{}\"",
                    stroke.ink.color(),
                    fixed(stroke.width)
                )?;
                if !stroke.dash.is_empty() {
                    let lengths = stroke.dash.iter().map(|length| fixed(length * stroke.width));
                    write!(svg, " stroke-dasharray=\"{}\"", lengths.collect::<Vec<_>>().join(" "))?;
                }
                writeln!(svg, " stroke-linejoin=\"round\" points=\"{}\"/>", points(places))?;
            }
            Shape::Lines { lines, stroke } => {
                let of = |[(x, y), (to_x, to_y)]: &[Place; 2]| {
                    format!("M{} {}L{} {}", fixed(*x), fixed(*y), fixed(*to_x), fixed(*to_y))
                };
                let (color, width) = (stroke.ink.color(), fixed(stroke.width));
                let lines: String = lines.iter().map(of).collect();
                writeln!(
                    svg,
                    "<path fill=\"none\" stroke=\"{color}\" stroke-width=\"{width}\" d=\"{lines}\"/>"
                )?;
            }
            Shape::Area { places, ink, opacity } => {
                writeln!(
                    svg,
                    "<polygon fill=\"{}\" fill-opacity=\"{}\" points=\"{}\"/>",
                    ink.color(),
                    fixed(*opacity),
                    points(places)
                )?;
            }
            Shape::Marks { places, mark, radius, ink } => write_marks(svg, places, *mark, *radius, *ink)?,
            Shape::Text(text) => write_text(svg, text)?,
        }
    }
    writeln!(svg, "</svg>")
}

fn points(places: &[Place]) -> String {
    let points = places.iter().map(|(x, y)| format!("{},{}", fixed(*x), fixed(*y)));
    points.collect::<Vec<_>>().join(" ")
}

fn write_marks(svg: &mut String, places: &[Place], mark: Mark, radius: f64, ink: Ink) -> std::fmt::Result {
    let outline = mark.outline(radius);
    if outline.is_some() {
        write!(svg, "<path fill=\"{}\" d=\"", ink.color())?;
    } else {
        write!(
            svg,
            "<path fill=\"none\" stroke=\"{}\" stroke-width=\"{}\" stroke-linecap=\"round\" d=\"",
            ink.color(),
            fixed(mark.stroke_width(radius))
        )?;
    }
    for (x, y) in places {
        let near = |(dx, dy): &Place| format!("{} {}", fixed(x + dx), fixed(y + dy));
        match (&outline, mark) {
            (Some(outline), _) => {
                let corners: Vec<String> = outline.iter().map(near).collect();
                write!(svg, "M{}z", corners.join("L"))?;
            }
            // Some viewers draw nothing for a stroke without any length.
            (None, Mark::Circle) => write!(svg, "M{} {}h.01", fixed(*x), fixed(*y))?,
            (None, _) => {
                for [from, to] in mark.strokes(radius) {
                    write!(svg, "M{}L{}", near(&from), near(&to))?;
                }
            }
        }
    }
    writeln!(svg, "\"/>")
}

fn write_text(svg: &mut String, text: &Text) -> std::fmt::Result {
    let (x, y) = (fixed(text.at.0), fixed(text.at.1));
    write!(svg, "<text ")?;
    if text.is_upward {
        write!(svg, "transform=\"translate({x} {y}) rotate(-90)\"")?;
    } else {
        write!(svg, "x=\"{x}\" y=\"{y}\"")?;
    }
    write!(svg, " font-size=\"{}\" fill=\"{}\"", fixed(text.size), text.ink.color())?;
    if text.is_bold {
        write!(svg, " font-weight=\"bold\"")?;
    }
    match text.anchor {
        Anchor::Start => {}
        Anchor::Middle => write!(svg, " text-anchor=\"middle\"")?,
        Anchor::End => write!(svg, " text-anchor=\"end\"")?,
    }
    writeln!(svg, ">{}</text>", escape(&text.text))
}
