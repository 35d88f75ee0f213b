//! The columns of the lines, and the selection of `--columns`.

use roce_document::dissect::columns::{COLUMNS, DESTINATION, MARK, NUMBER, SOURCE};

/// The heading, which begins with `#` so that other programs can skip it.
pub(super) const TITLES: [&str; COLUMNS] = [
    "#",
    "seconds",
    "source",
    "destination",
    "opcode",
    "QP",
    "PSN",
    "bytes",
    "SMA",
    "ICRC",
    "mark",
    "DSCP",
    "ECN",
    "port",
    "wire",
    "interface",
];
/// The title of the text behind the columns.
pub(super) const DETAILS_TITLE: &str = "headers";
/// Numbers are right-aligned, which makes them easier to compare.
pub(super) const RIGHT_ALIGNED: [bool; COLUMNS] =
    [true, true, false, false, false, true, true, true, false, false, false, true, false, true, true, false];
/// Widths for a live capture, whose later lines are not known.
pub(super) const LIVE_WIDTHS: [usize; COLUMNS] = [4, 10, 13, 13, 23, 8, 8, 5, 3, 4, 6, 4, 7, 5, 5, 9];

/// The names in `--columns`.
const NAMES: [&str; COLUMNS] = [
    "number",
    "time",
    "source",
    "destination",
    "opcode",
    "qp",
    "psn",
    "bytes",
    "flags",
    "icrc",
    "mark",
    "dscp",
    "ecn",
    "port",
    "length",
    "interface",
];

/// The columns to print, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Selection {
    pub(super) columns: Vec<usize>,
    /// Whether the extended headers and other remarks follow.
    pub(super) details: bool,
    /// Whether the user chose the columns. Then every line has all of them, with `-` for those without a
    /// value.
    pub(super) is_chosen: bool,
}

impl Default for Selection {
    fn default() -> Self {
        Self { columns: (NUMBER..=MARK).collect(), details: true, is_chosen: false }
    }
}

impl Selection {
    /// Parses names with commas between them.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let mut selection = Self { columns: Vec::new(), details: false, is_chosen: true };
        for name in text.split(',').map(str::trim) {
            let column = NAMES.iter().position(|known| *known == name);
            let is_repeated = match column {
                Some(column) => selection.columns.contains(&column),
                None if name == DETAILS_TITLE => std::mem::replace(&mut selection.details, true),
                None => {
                    let names = NAMES.join(", ");
                    return Err(format!("there is no column {name:?}; the columns are {names} and headers"));
                }
            };
            if is_repeated {
                return Err(format!("the column {name} is named twice"));
            }
            selection.columns.extend(column);
        }
        Ok(selection)
    }

    /// Returns the separator behind a column, as short as possible because there are many columns.
    pub(super) fn separator(&self, position: usize) -> &'static str {
        match self.columns.get(position..) {
            Some([SOURCE, DESTINATION, ..]) => " > ",
            _ => " ",
        }
    }
}

#[cfg(test)]
mod tests {
    use roce_document::dissect::columns::{DSCP, OPCODE, PSN, TIME};

    use super::*;

    #[test]
    fn columns_are_selected_by_name_and_in_order() {
        let selection = Selection::parse("time, psn,opcode,headers").unwrap();
        assert_eq!((selection.columns, selection.details), (vec![TIME, PSN, OPCODE], true));
        assert_eq!(Selection::parse("dscp").unwrap().columns, [DSCP]);
        for (text, expected) in
            [("", "no column \"\""), ("psn,PSN", "no column \"PSN\""), ("psn,qp,psn", "psn is named twice")]
        {
            let error = Selection::parse(text).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
        assert!(Selection::parse("headers,headers").is_err());
        let all = Selection::parse(&NAMES.join(",")).unwrap();
        assert_eq!(all.columns, (0..COLUMNS).collect::<Vec<_>>());
    }

    #[test]
    fn only_the_destination_behind_the_source_has_an_arrow() {
        let separators = |text: &str| {
            let selection = Selection::parse(text).unwrap();
            (0..selection.columns.len()).map(|position| selection.separator(position)).collect::<String>()
        };
        assert_eq!(separators("number,source,destination"), "  >  ");
        assert_eq!(separators("destination,source,number"), "   ");
    }
}
