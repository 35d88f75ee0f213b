//! Prints packets as one line each.

use std::fmt::Write as _;
use std::io::{self, Write};

use roce_document::dissect::columns::{COLUMNS, Cells, NUMBER, OPCODE, QP, TIME};
use roce_document::dissect::{Row, Shown, Tone};

use super::columns::{DETAILS_TITLE, LIVE_WIDTHS, RIGHT_ALIGNED, Selection, TITLES};
use crate::terminal::{Output, Paint};

/// A table with columns of automatic width.
///
/// The first lines are buffered to find the widths of the columns. Later lines widen a column if necessary.
pub(super) struct Table {
    waiting: Vec<Row>,
    /// Maximum number of buffered lines.
    look_ahead: usize,
    widths: [usize; COLUMNS],
    fraction_digits: usize,
    selection: Selection,
    /// The row that was printed last, whose memory the next one uses.
    spare: Row,
}

/// The prefix of a line that continues another one.
const CONTINUED: &str = "  ";

impl Table {
    /// Creates a table with these columns. A live capture does not buffer lines and starts with fixed widths.
    pub(super) fn new(selection: Selection, is_live: bool) -> Self {
        let (look_ahead, widths) = if is_live { (0, LIVE_WIDTHS) } else { (500, [0; COLUMNS]) };
        let (waiting, spare) = (Vec::new(), Row::default());
        Self { waiting, look_ahead, widths, fraction_digits: 0, selection, spare }
    }

    pub(super) fn print(&mut self, shown: &Shown<'_>, output: &mut Output) -> io::Result<()> {
        let mut row = std::mem::take(&mut self.spare);
        row.fill(shown, self.selection.is_chosen);
        if self.fraction_digits != 0 {
            let result = self.line(&mut row, output);
            self.spare = row;
            return result;
        }
        self.waiting.push(row);
        if self.waiting.len() > self.look_ahead { self.finish(output) } else { Ok(()) }
    }

    /// Prints the buffered lines.
    pub(super) fn finish(&mut self, output: &mut Output) -> io::Result<()> {
        if self.waiting.is_empty() {
            return Ok(());
        }
        for (width, title) in self.widths.iter_mut().zip(TITLES) {
            *width = (*width).max(title.len());
        }
        let rows = std::mem::take(&mut self.waiting);
        let exact = rows.iter().any(|row| row.time_ns.is_some_and(|time| time % 1_000 != 0));
        self.fraction_digits = if exact { 9 } else { 6 };
        let any_in_columns = rows.iter().any(|row| row.in_columns);
        for row in &rows {
            if row.in_columns || !any_in_columns {
                for (width, cell) in self.widths.iter_mut().zip(&row.cells) {
                    *width = (*width).max(cell.chars().count());
                }
            }
        }
        let longest = rows.iter().map(|row| row.time_text(self.fraction_digits).len()).max();
        self.widths[TIME] = self.widths[TIME].max(longest.unwrap_or(0));
        self.title(output)?;
        rows.into_iter().try_for_each(|mut row| self.line(&mut row, output))
    }

    /// Prints the names of the columns, on the same number of lines as the columns of a row.
    fn title(&self, output: &mut Output) -> io::Result<()> {
        let text = self.title_text(output.terminal_width);
        text.lines().try_for_each(|line| writeln!(output, "{}", output.style.paint(Paint::BOLD, line)))
    }

    fn title_text(&self, terminal_width: Option<usize>) -> String {
        let mut titles = TITLES.map(str::to_owned);
        // The line begins with `#`, although numbers are right-aligned.
        titles[NUMBER] = format!("{:<width$}", TITLES[NUMBER], width = self.widths[NUMBER]);
        let mut text = self.columns(&titles, usize::MAX, terminal_width);
        if !text.starts_with('#') {
            text.insert(0, '#');
            // The mark takes the place of a space, so that the titles stay above their columns.
            if let Some(space) = text.find("  ").or_else(|| text.starts_with("# ").then_some(1)) {
                text.remove(space);
            }
        }
        let room = terminal_width.unwrap_or(usize::MAX);
        if self.selection.details && last_line_width(&text) + DETAILS_TITLE.len() > room {
            text.push('\n');
            text.push_str(CONTINUED);
        }
        if self.selection.details {
            text.push_str(DETAILS_TITLE);
        } else {
            text.truncate(text.trim_end().len());
        }
        // Every line of the heading begins like the first.
        text.replace("\n ", "\n#")
    }

    fn line(&mut self, row: &mut Row, output: &mut Output) -> io::Result<()> {
        let time = row.time_text(self.fraction_digits);
        row.cells[TIME].push_str(&time);
        if row.in_columns {
            for (width, cell) in self.widths.iter_mut().zip(&row.cells) {
                *width = (*width).max(cell.chars().count());
            }
        }
        // Packets other than RoCE leave the columns after the opcode empty.
        let mut count = if row.in_columns { usize::MAX } else { QP };
        if self.selection.is_chosen {
            count = usize::MAX;
            row.cells.iter_mut().filter(|cell| cell.is_empty()).for_each(|cell| cell.push('-'));
        }
        let mut text = self.columns(&row.cells, count, output.terminal_width);
        if self.selection.details {
            self.add_details(&mut text, &row.details, output.terminal_width);
        }
        let text = text.trim_end();
        match row.tone.map(paint) {
            Some(paint) => writeln!(output, "{}", output.style.paint(paint, text)),
            None => writeln!(output, "{text}"),
        }
    }

    /// Appends the details after the columns, or on separate lines if the terminal is too narrow.
    fn add_details(&self, text: &mut String, details: &str, terminal_width: Option<usize>) {
        let details = details.trim_end();
        let room = match terminal_width {
            Some(room) if last_line_width(text) + details.chars().count() > room => room,
            _ => return text.push_str(details),
        };
        let columns = self.selection.columns.iter().enumerate();
        let before_opcode: usize = columns
            .take_while(|(_, column)| **column != OPCODE)
            .map(|(position, column)| self.widths[*column] + self.selection.separator(position).len())
            .sum();
        // The details begin below the opcode, if that leaves half of the line.
        let indent = if before_opcode <= room / 2 { before_opcode } else { CONTINUED.len() };
        let mut column = room;
        for word in details.split_whitespace() {
            let len = word.chars().count();
            if column + 1 + len > room {
                text.truncate(text.trim_end().len());
                let _ = write!(text, "\n{:indent$}{word}", "");
                column = indent + len;
            } else {
                let _ = write!(text, " {word}");
                column += 1 + len;
            }
        }
    }

    /// Returns the first `count` selected cells in their columns. Columns that do not fit on a line continue
    /// on the next one, at the same position in every row.
    fn columns(&self, cells: &Cells, count: usize, terminal_width: Option<usize>) -> String {
        let room = terminal_width.unwrap_or(usize::MAX);
        let mut text = String::with_capacity(120);
        let mut at = 0;
        for (position, &index) in self.selection.columns.iter().enumerate().take(count) {
            let (cell, width, separator) =
                (&cells[index], self.widths[index], self.selection.separator(position));
            if position > 0 && at + width > room {
                text.truncate(text.trim_end().len());
                text.push('\n');
                text.push_str(CONTINUED);
                at = CONTINUED.len();
            }
            let _ = match RIGHT_ALIGNED[index] {
                true => write!(text, "{cell:>width$}"),
                false => write!(text, "{cell:<width$}"),
            };
            // Without addresses there is no arrow between them.
            text.push_str(if cell.is_empty() && separator == " > " { "   " } else { separator });
            at += width + separator.len();
        }
        text
    }
}

/// Returns the width of the last line of a text.
fn last_line_width(text: &str) -> usize {
    text.rsplit('\n').next().unwrap_or_default().chars().count()
}

/// Returns the color of a line.
const fn paint(tone: Tone) -> Paint {
    match tone {
        Tone::Foreign => Paint::DIM,
        Tone::Marked => Paint::YELLOW,
        Tone::Bad => Paint::RED,
    }
}

#[cfg(test)]
mod tests {
    use roce_document::dissect::columns::{DESTINATION, MARK, SOURCE};

    use super::*;

    fn cells(first: [&str; MARK + 1]) -> Cells {
        let mut cells = [const { String::new() }; COLUMNS];
        for (cell, text) in cells.iter_mut().zip(first) {
            text.clone_into(cell);
        }
        cells
    }

    fn table(rows: &[Cells]) -> Table {
        let mut table = Table::new(Selection::default(), false);
        for (index, width) in table.widths.iter_mut().enumerate() {
            let cells = rows.iter().map(|row| row[index].len());
            *width = cells.chain([TITLES[index].len()]).max().unwrap();
        }
        table
    }

    /// Regression: rows were longer than a terminal of 80 columns, and the heading was cut off in the middle
    /// of a word.
    #[test]
    fn rows_and_headings_fit_80_columns() {
        let v4 = cells([
            "1234567",
            "12345.123456789",
            "198.18.100.101",
            "198.18.100.102",
            "RC_RDMA_READ_RESPONSE_MIDDLE",
            "0x123456",
            "16777215",
            "4096",
            "SMA",
            "BAD",
            "repeat",
        ]);
        let mut v6 = v4.clone();
        v6[SOURCE] = "2001:db8:1111:2222:3333:4444:5555:6666".to_owned();
        v6[DESTINATION] = v6[SOURCE].clone();
        for rows in [&[v4.clone()][..], &[v4, v6]] {
            let table = table(rows);
            let title = table.title_text(Some(80));
            for word in TITLES[..=MARK].iter().chain([&DETAILS_TITLE]) {
                assert!(title.split_whitespace().any(|found| found == *word), "{word} is missing: {title}");
            }
            assert!(title.lines().all(|line| line.starts_with('#')), "{title}");
            for row in rows {
                let mut text = table.columns(row, usize::MAX, Some(80));
                let details =
                    "va 0x7f00deadb000 rkey 0x1234 len 4096  in 198.19.0.1 > 198.19.0.2 VXLAN 16777215  CE";
                table.add_details(&mut text, details, Some(80));
                for line in text.lines().chain(title.lines()) {
                    assert!(line.trim_end().chars().count() <= 80, "{line}");
                }
                for cell in row {
                    assert!(text.contains(cell.as_str()), "{cell} is missing: {text}");
                }
                let wide = table.columns(row, usize::MAX, None);
                assert_eq!(wide.lines().count(), 1, "only a terminal breaks lines");
            }
        }
    }
}
