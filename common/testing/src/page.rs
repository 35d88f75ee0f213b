//! Tables of docs/results that tests write and compare.

use std::path::Path;

/// Compares the rows below a head in a page of docs/results. With `ROCE_WRITE_TABLE` in the environment,
/// writes them there first.
///
/// # Panics
///
/// Panics if the page has no such head, or other rows.
#[track_caller]
pub fn check_table(page: &str, head: &str, rows: &str) {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/results").join(page);
    let text = std::fs::read_to_string(&page).expect("a page of docs/results");
    let start = text.find(head).unwrap_or_else(|| panic!("{head} is not in {}", page.display()));
    let table: Vec<&str> =
        text[start..].split_inclusive('\n').take_while(|line| line.starts_with('|')).collect();
    if std::env::var_os("ROCE_WRITE_TABLE").is_some() {
        let new = [&table[..2].concat(), rows].concat();
        std::fs::write(&page, text.replace(&table.concat(), &new)).expect("the page can be written");
    }
    assert_eq!(table[2..].concat(), rows, "write the table again, see the top of this file");
}
