//! Figures as PDF: one page with vector paths and the standard font Helvetica.

use std::fmt::Write as _;

use crate::chart::Mark;
use crate::drawing::{Drawing, Ink, Place, Shape, Stroke, Text, fixed};

/// Returns the document. Its streams are not compressed, and it contains no time and no name, so equal
/// drawings give equal bytes.
pub(crate) fn document(drawing: &Drawing) -> Vec<u8> {
    let mut content = String::new();
    let opacities = opacities(drawing);
    // Writing to a string cannot fail.
    let _ = write_content(&mut content, drawing, &opacities);
    let mut states = String::new();
    for (number, opacity) in opacities.iter().enumerate() {
        let _ = write!(states, "/G{number} << /ca {} >> ", fixed(*opacity));
    }
    let (width, height) = (fixed(drawing.width), fixed(drawing.height));
    let font = |name: &str| {
        format!("<< /Type /Font /Subtype /Type1 /BaseFont /{name} /Encoding /WinAnsiEncoding >>")
    };
    let objects = [
        "<< /Type /Catalog /Pages 2 0 R >>".to_owned(),
        "<< /Type /Pages /Kids [3 0 R] /Count 1 >>".to_owned(),
        format!(
            "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 {width} {height}] /Contents 6 0 R /Resources << \
             /Font << /F0 4 0 R /F1 5 0 R >> /ExtGState << {states}>> >> >>"
        ),
        font("Helvetica"),
        font("Helvetica-Bold"),
        format!("<< /Length {} >>\nstream\n{content}\nendstream", content.len()),
    ];
    let mut pdf = b"%PDF-1.4\n%\xe2\xe3\xcf\xd3\n".to_vec();
    let mut table = format!("xref\n0 {}\n0000000000 65535 f \n", objects.len() + 1);
    for (number, object) in (1..).zip(&objects) {
        let _ = writeln!(table, "{:010} 00000 n ", pdf.len());
        pdf.extend_from_slice(format!("{number} 0 obj\n{object}\nendobj\n").as_bytes());
    }
    let begin = pdf.len();
    let _ =
        write!(table, "trailer\n<< /Size {} /Root 1 0 R >>\nstartxref\n{begin}\n%%EOF\n", objects.len() + 1);
    pdf.extend_from_slice(table.as_bytes());
    pdf
}

/// Returns the opacities of areas; the first one is that of all other shapes.
fn opacities(drawing: &Drawing) -> Vec<f64> {
    let mut all = vec![1.0];
    for shape in &drawing.shapes {
        if let Shape::Area { opacity, .. } = shape
            && !all.contains(opacity)
        {
            all.push(*opacity);
        }
    }
    all
}

fn write_content(content: &mut String, drawing: &Drawing, opacities: &[f64]) -> std::fmt::Result {
    // The origin of PDF is the lower left corner.
    let flip = |(x, y): Place| (x, drawing.height - y);
    write!(content, "1 j /G0 gs 1 1 1 rg 0 0 {} {} re f", fixed(drawing.width), fixed(drawing.height))?;
    for shape in &drawing.shapes {
        match shape {
            Shape::Path { places, is_closed, stroke } => {
                write_stroke(content, stroke)?;
                write_path(content, places.iter().copied().map(flip))?;
                write!(content, "{}", if *is_closed { " s" } else { " S" })?;
            }
            Shape::Lines { lines, stroke } => {
                write_stroke(content, stroke)?;
                for line in lines {
                    write_path(content, line.iter().copied().map(flip))?;
                }
                write!(content, " S")?;
            }
            Shape::Area { places, ink, opacity } => {
                let state = opacities.iter().position(|known| known == opacity).unwrap_or(0);
                write!(content, "\n/G{state} gs {} rg", color(*ink))?;
                write_path(content, places.iter().copied().map(flip))?;
                write!(content, " f /G0 gs")?;
            }
            Shape::Marks { places, mark, radius, ink } => {
                write_marks(content, places.iter().copied().map(flip), *mark, *radius, *ink)?;
            }
            Shape::Text(text) => write_text(content, text, flip(text.at))?,
        }
    }
    Ok(())
}

/// Returns the parts of a color, from 0 to 1.
fn color(ink: Ink) -> String {
    let hex = ink.color().trim_start_matches('#');
    let number = u32::from_str_radix(hex, 16).unwrap_or(0);
    let part = |shift: u32| fixed(f64::from(number >> shift & 0xff) / 255.0);
    format!("{} {} {}", part(16), part(8), part(0))
}

fn write_stroke(content: &mut String, stroke: &Stroke) -> std::fmt::Result {
    let lengths: Vec<String> = stroke.dash.iter().map(|length| fixed(length * stroke.width)).collect();
    write!(content, "\n0 J {} RG {} w [{}] 0 d", color(stroke.ink), fixed(stroke.width), lengths.join(" "))
}

fn write_path(content: &mut String, places: impl Iterator<Item = Place>) -> std::fmt::Result {
    for (number, (x, y)) in places.enumerate() {
        write!(content, " {} {} {}", fixed(x), fixed(y), if number == 0 { 'm' } else { 'l' })?;
    }
    Ok(())
}

fn write_marks(
    content: &mut String,
    places: impl Iterator<Item = Place>,
    mark: Mark,
    radius: f64,
    ink: Ink,
) -> std::fmt::Result {
    let outline = mark.outline(radius);
    if outline.is_some() {
        write!(content, "\n{} rg", color(ink))?;
    } else {
        let width = fixed(mark.stroke_width(radius));
        write!(content, "\n1 J {} RG {width} w [] 0 d", color(ink))?;
    }
    for (x, y) in places {
        // Up is the other way round.
        let near = |(dx, dy): &Place| (x + dx, y - dy);
        match (&outline, mark) {
            (Some(outline), _) => {
                write_path(content, outline.iter().map(near))?;
                write!(content, " f")?;
            }
            (None, Mark::Circle) => {
                write_path(content, [(x, y), (x, y)].into_iter())?;
                write!(content, " S")?;
            }
            (None, _) => {
                for [from, to] in mark.strokes(radius) {
                    write_path(content, [near(&from), near(&to)].into_iter())?;
                    write!(content, " S")?;
                }
            }
        }
    }
    Ok(())
}

fn write_text(content: &mut String, text: &Text, (x, y): Place) -> std::fmt::Result {
    let before = text.before();
    let font = if text.is_bold { "F1" } else { "F0" };
    let (matrix, x, y) =
        if text.is_upward { ("0 1 -1 0", x, y - before) } else { ("1 0 0 1", x - before, y) };
    write!(
        content,
        "\nBT {} rg /{font} {} Tf {matrix} {} {} Tm ({}) Tj ET",
        color(text.ink),
        fixed(text.size),
        fixed(x),
        fixed(y),
        string(&text.text)
    )
}

/// Returns the text of a string in the encoding of the font, which has the characters of Windows-1252. Other
/// characters become similar ones, or a question mark.
fn string(text: &str) -> String {
    let mut string = String::with_capacity(text.len());
    for letter in text.chars() {
        let octal = |code: u32| format!("\\{code:03o}");
        match letter {
            '(' | ')' | '\\' => string.extend(['\\', letter]),
            ' '..='~' => string.push(letter),
            '\u{a0}'..='\u{ff}' => string.push_str(&octal(letter as u32)),
            '\u{3bc}' => string.push_str(&octal(0xb5)),
            '\u{2013}' => string.push_str(&octal(0x96)),
            '\u{2014}' => string.push_str(&octal(0x97)),
            '\u{2026}' => string.push_str(&octal(0x85)),
            '\u{2018}' => string.push_str(&octal(0x91)),
            '\u{2019}' => string.push_str(&octal(0x92)),
            '\u{201c}' => string.push_str(&octal(0x93)),
            '\u{201d}' => string.push_str(&octal(0x94)),
            '\u{2212}' => string.push('-'),
            '\u{2264}' => string.push_str("<="),
            '\u{2265}' => string.push_str(">="),
            '\u{2192}' => string.push_str("->"),
            _ => string.push('?'),
        }
    }
    string
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_are_escaped_and_encoded() {
        assert_eq!(string(r"a(b)\"), r"a\(b\)\\");
        assert_eq!(string("5 \u{b5}s \u{b1}1 \u{2013} \u{4e2d}\n"), r"5 \265s \2611 \226 ??");
    }
}
