use std::collections::BTreeSet;

use clap::Parser as _;
use clap::error::ErrorKind;

use super::*;

#[derive(Debug, clap::Parser)]
struct Alone {
    #[command(flatten)]
    args: crate::network::perf::Args,
}

fn parse(words: &[&str]) -> Result<Alone, Error> {
    Alone::try_parse_from(["perf", "send", "bw"].iter().chain(words))
}

/// Returns the names of an option as the page shows them.
fn names(option: &PerftestOption) -> String {
    let short = option.short.map_or_else(String::new, |short| format!("`-{short}` "));
    format!("{short}`--{}`", option.long)
}

/// Returns whether the section for this treatment names the option, in the row of its reason if it has one.
fn is_shown(page: &str, option: &PerftestOption) -> bool {
    let (heading, reason) = match option.treatment {
        Works => ("### Supported\n", None),
        Ignored(reason) => ("### Accepted without effect\n", Some(reason)),
        Refused(reason) => ("### Refused\n", Some(reason)),
    };
    let section = page.split(heading).nth(1).unwrap_or_default().split("\n### ").next().unwrap_or_default();
    let text = match reason {
        Some(reason) => section.lines().find(|line| line.starts_with(&format!("| {reason} |"))),
        None => Some(section),
    };
    // A list of names may be wrapped between two names of an option.
    text.is_some_and(|text| text.replace('\n', " ").contains(&names(option)))
}

#[test]
fn every_option_of_perftest_works_or_is_refused_with_the_reason() {
    let without = format!("{:?}", parse(&[]).unwrap());
    for option in OPTIONS {
        let names = [Some(format!("--{}", option.long)), option.short.map(|short| format!("-{short}"))];
        for name in names.iter().flatten() {
            let words: Vec<&str> = [name.as_str()].into_iter().chain(option.value).collect();
            match (option.treatment, parse(&words)) {
                (Works, Ok(found)) => {
                    assert_ne!(format!("{found:?}"), without, "{words:?} is accepted and changes nothing");
                }
                (Works, Err(error)) => {
                    let kinds = [ErrorKind::DisplayHelp, ErrorKind::DisplayVersion];
                    assert!(kinds.contains(&error.kind()), "{words:?}: {error}");
                }
                (Ignored(_), found) => assert!(found.is_ok(), "{words:?}: {found:?}"),
                (Refused(reason), found) => {
                    let text = found.expect_err(name).to_string();
                    let expected = format!("--{}: {reason}", option.long);
                    assert!(text.contains("perftest's") && text.contains(&expected), "{words:?}: {text}");
                }
            }
        }
    }
}

/// The short options of release 6.29: those without a value and those with one.
const FLAGS: &str = "abeghvzCFHNOPRUVZ";
const VALUED: &str = "cdfijklmnopqrstuwxyABDEIJKLMQSTWX";
/// The number of long options, including those of special builds.
const LONG_OPTIONS: usize = 156;

#[test]
fn the_table_has_every_option_once() {
    for (letters, is_valued) in [(FLAGS, false), (VALUED, true)] {
        let found = OPTIONS.iter().filter(|option| option.value.is_some() == is_valued);
        let mut found: Vec<char> = found.filter_map(|option| option.short).collect();
        found.sort_unstable();
        let mut expected: Vec<char> = letters.chars().collect();
        expected.sort_unstable();
        assert_eq!(found, expected);
    }
    let long: BTreeSet<&str> = OPTIONS.iter().map(|option| option.long).collect();
    assert_eq!((long.len(), OPTIONS.len()), (LONG_OPTIONS, LONG_OPTIONS));
}

#[test]
fn the_page_shows_every_option() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/reference/perftest.md");
    let page = std::fs::read_to_string(page).unwrap();
    let missing = OPTIONS.iter().filter(|option| !is_shown(&page, option));
    let missing: Vec<String> = missing.map(|option| format!("{option:?}")).collect();
    assert!(missing.is_empty(), "docs/reference/perftest.md lacks:\n{}", missing.join("\n"));
    let options = page.split("## All options").nth(1).unwrap_or_default();
    assert_eq!(options.matches("`--").count(), OPTIONS.len(), "options that perftest does not have");
}
