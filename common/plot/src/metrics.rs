//! The widths of texts in Helvetica, from the metrics that Adobe published for the standard fonts of PDF.
//! Arial, Liberation Sans and Nimbus Sans have the same widths.

/// Width of each character from space to `~`, in thousandths of the font size.
const REGULAR: [u16; 95] = [
    278, 278, 355, 556, 556, 889, 667, 191, 333, 333, 389, 584, 278, 333, 278, 278, 556, 556, 556, 556, 556,
    556, 556, 556, 556, 556, 278, 278, 584, 584, 584, 556, 1015, 667, 667, 722, 722, 667, 611, 778, 722, 278,
    500, 667, 556, 833, 722, 778, 667, 778, 722, 667, 611, 722, 667, 944, 667, 667, 611, 278, 278, 278, 469,
    556, 333, 556, 556, 500, 556, 556, 278, 556, 556, 222, 222, 500, 222, 833, 556, 556, 556, 556, 333, 500,
    278, 556, 500, 722, 500, 500, 500, 334, 260, 334, 584,
];
const BOLD: [u16; 95] = [
    278, 333, 474, 556, 556, 889, 722, 238, 333, 333, 389, 584, 278, 333, 278, 278, 556, 556, 556, 556, 556,
    556, 556, 556, 556, 556, 333, 333, 584, 584, 584, 611, 975, 722, 722, 722, 722, 667, 611, 778, 722, 278,
    556, 722, 611, 833, 722, 778, 667, 778, 722, 667, 611, 722, 667, 944, 667, 667, 611, 333, 278, 333, 584,
    556, 333, 556, 611, 556, 611, 556, 333, 611, 611, 278, 278, 556, 278, 889, 611, 611, 611, 611, 389, 556,
    333, 611, 556, 778, 556, 556, 500, 389, 280, 389, 584,
];

/// The room that texts get, relative to their width. A viewer without Helvetica may use a wider font.
const ROOM: f64 = 1.16;

/// The height of a line of text, relative to the font size.
pub(crate) const LINE: f64 = 1.25;
/// The height of digits and capitals above the baseline, relative to the font size.
pub(crate) const ASCENT: f64 = 0.73;
/// The depth of letters below the baseline, relative to the font size.
pub(crate) const DESCENT: f64 = 0.22;

/// Returns the width of a text.
pub(crate) fn width(text: &str, size: f64, is_bold: bool) -> f64 {
    let thousandths: u32 = text.chars().map(|letter| u32::from(advance(letter, is_bold))).sum();
    f64::from(thousandths) * size / 1e3
}

/// Returns the room for a text.
pub(crate) fn room(text: &str, size: f64, is_bold: bool) -> f64 {
    width(text, size, is_bold) * ROOM
}

fn advance(letter: char, is_bold: bool) -> u16 {
    let table = if is_bold { &BOLD } else { &REGULAR };
    let known = (letter as usize).checked_sub(' ' as usize).and_then(|place| table.get(place));
    match (known, letter) {
        (Some(width), _) => *width,
        (None, '\u{b5}' | '\u{3bc}') => 611,
        (None, '\u{d7}' | '\u{b1}' | '\u{2212}') => 584,
        (None, '\u{2013}') => 556,
        (None, '\u{b7}') => 278,
        (None, '\u{b0}' | '\u{2018}' | '\u{2019}') => 400,
        (None, '\u{df}'..='\u{ff}') => 611,
        (None, '\u{a0}'..='\u{de}') => 778,
        // Other characters come from any font; most are at most as wide as the font is high.
        (None, _) => 1000,
    }
}

/// Splits a text into lines that have room in this width. It breaks lines at spaces. A word that is too long
/// is broken after punctuation, or anywhere.
pub(crate) fn wrap(text: &str, most: f64, size: f64, is_bold: bool) -> Vec<String> {
    let fits = |line: &str| room(line, size, is_bold) <= most;
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        let joined = lines.last().map(|line| format!("{line} {word}")).filter(|joined| fits(joined));
        match (joined, lines.last_mut()) {
            (Some(joined), Some(last)) => *last = joined,
            _ => {
                let mut rest = word;
                while !fits(rest) {
                    let end = break_of(rest, fits);
                    let (first, others) = rest.split_at(end);
                    lines.push(first.to_owned());
                    rest = others;
                }
                if !rest.is_empty() {
                    lines.push(rest.to_owned());
                }
            }
        }
    }
    lines
}

/// Returns where a word is broken: after the last punctuation that fits, or after the last letter. The first
/// part has at least one letter.
fn break_of(word: &str, fits: impl Fn(&str) -> bool) -> usize {
    let ends = word.char_indices().map(|(at, letter)| (at + letter.len_utf8(), letter));
    let fitting: Vec<(usize, char)> =
        ends.take_while(|(end, _)| word.get(..*end).is_some_and(&fits)).collect();
    let after = |letter: char| matches!(letter, ',' | ';' | ':' | '=' | '/' | '-' | '_');
    let punctuation = fitting.iter().rev().find(|(_, letter)| after(*letter));
    let first = word.chars().next().map_or(1, char::len_utf8);
    punctuation.or(fitting.last()).map_or(first, |(end, _)| *end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn widths_are_those_of_helvetica() {
        assert!((width("Wii", 10.0, false) - (9.44 + 2.0 * 2.22)).abs() < 1e-9);
        assert!((width("Wii", 10.0, true) - (9.44 + 2.0 * 2.78)).abs() < 1e-9);
        assert!(REGULAR.iter().zip(BOLD).all(|(regular, bold)| *regular <= bold + 40));
    }

    #[test]
    fn lines_are_as_wide_as_allowed_and_lose_nothing() {
        let text = "payload sent, all flows together, host.congestion=dcqcn:paper,rpg_ai_rate=40 of 5 seeds";
        for most in [3.0, 20.0, 60.0, 150.0, 1e4] {
            let lines = wrap(text, most, 8.0, false);
            let fits = |line: &String| room(line, 8.0, false) <= most || line.chars().count() == 1;
            assert!(lines.iter().all(fits), "{most}: {lines:?}");
            let letters = |text: &str| text.split_whitespace().collect::<String>();
            assert_eq!(letters(&lines.concat()), letters(text));
        }
        assert_eq!(wrap(text, 1e4, 8.0, false), [text]);
        assert_eq!(wrap("", 10.0, 8.0, false), [""; 0]);
        assert_eq!(wrap("aaa=bbb", 26.0, 8.0, false)[0], "aaa=");
    }
}
