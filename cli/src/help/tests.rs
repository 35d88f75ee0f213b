use std::collections::BTreeMap;

use super::*;
use crate::command;

/// Returns every command, including hidden ones.
fn commands() -> Vec<Command> {
    let mut all = command();
    all.build();
    all.get_subcommands().filter(|command| command.get_name() != "help").cloned().collect()
}

/// Returns both forms of the help of every command.
fn texts() -> Vec<(String, String)> {
    let mut all = command();
    all.build();
    let mut every = vec![all.clone()];
    every.extend(all.get_subcommands().cloned());
    every
        .into_iter()
        .flat_map(|mut command| {
            let name = command.get_name().to_owned();
            [
                (name.clone(), command.render_help().to_string()),
                (name, command.render_long_help().to_string()),
            ]
        })
        .collect()
}

#[test]
fn no_line_of_help_has_more_than_80_columns() {
    for (name, text) in texts() {
        for line in text.lines() {
            assert!(line.chars().count() <= 80, "{name}: {line}");
        }
    }
}

#[test]
fn every_option_stands_under_a_heading_and_those_of_all_commands_last() {
    for command in commands() {
        let name = command.get_name();
        let options = command.get_arguments().filter(|arg| !arg.is_positional() && !arg.is_hide_set());
        for option in options.filter(|option| !["help", "version"].contains(&option.get_id().as_str())) {
            let (id, heading) = (option.get_id(), option.get_help_heading());
            assert!(heading.is_some(), "`{id}` of {name} has no place in HEADINGS of cli/src/help.rs");
        }
    }
    for (name, text) in texts() {
        let titles: Vec<&str> = text
            .lines()
            .filter(|line| line.ends_with(':') && !line.starts_with(' ') && !line.contains("Examples"))
            .collect();
        let last = titles.iter().rev().find(|title| **title != "Options:");
        if name != "help" {
            assert!(text.contains("Every command:"), "{name}: {titles:?}");
            let globals = text.split("Every command:").nth(1).unwrap_or_default();
            for (heading, _) in HEADINGS {
                assert!(
                    !globals.contains(&format!("\n{heading}:\n")),
                    "{name}: {heading} comes after, {last:?}"
                );
            }
            for option in ["--color", "--trace", "--trace-level", "--help"] {
                assert!(globals.contains(option), "{name}: {option}");
            }
        }
    }
}

#[test]
fn every_heading_is_used_by_a_command() {
    let used: Vec<String> = commands()
        .iter()
        .flat_map(|command| {
            command.get_arguments().filter_map(|arg| arg.get_help_heading().map(str::to_owned))
        })
        .collect();
    for (heading, _) in HEADINGS {
        assert!(used.iter().any(|used| used == heading), "{heading}");
    }
    for (name, option, _) in ELSEWHERE {
        let command = commands().into_iter().find(|command| command.get_name() == name).expect(name);
        assert!(command.get_arguments().any(|arg| arg.get_id() == option), "{name} has no {option}");
    }
}

/// Returns the examples at the end of the help: one for each line that begins with `roce` or has it behind a
/// pipe.
fn examples(text: &str) -> Vec<String> {
    let Some((_, end)) = text.split_once("Examples:\n") else { return Vec::new() };
    let lines = end.lines().take_while(|line| line.starts_with("  "));
    // Takes the part of a pipeline that runs this command, without redirections.
    let part = |line: &str| {
        let part = line.split(" | ").find(|part| part.trim().starts_with("roce "))?;
        Some(part.split(" > ").next()?.split(" < ").next()?.trim().to_owned())
    };
    lines.filter_map(part).collect()
}

#[test]
fn every_command_has_examples_and_each_of_them_parses() {
    for mut one in commands() {
        let name = one.get_name().to_owned();
        let found = examples(&one.render_long_help().to_string());
        assert!(!found.is_empty(), "{name} has no examples");
        // A wrapped line cannot be pasted.
        let written =
            one.get_after_help().or(one.get_after_long_help()).map(ToString::to_string).unwrap_or_default();
        let long = written.lines().find(|line| line.chars().count() > 80);
        assert_eq!(long, None, "{name}: an example is wider than the help");
        for example in found {
            let words: Vec<&str> = example.split_whitespace().collect();
            assert_eq!(words.get(1), Some(&name.as_str()), "{example}");
            let parsed = command().try_get_matches_from(&words);
            assert!(parsed.is_ok(), "{example}: {}", parsed.expect_err("checked above"));
        }
    }
}

/// The option of each letter. `perf`, `pingpong` and `rping` have the letters of the original programs.
const LETTERS: [(char, &[&str]); 10] = [
    ('a', &["all"]),
    ('h', &["help"]),
    ('n', &["iterations", "frames", "count"]),
    ('p', &["port"]),
    ('q', &["quiet"]),
    ('s', &["size"]),
    ('v', &["verbose"]),
    ('w', &["watch"]),
    ('x', &["gid_index"]),
    ('z', &["zeros"]),
];

#[test]
fn a_letter_means_the_same_in_every_command() {
    let mut seen: BTreeMap<char, Vec<String>> = BTreeMap::new();
    for command in commands().iter().filter(|one| !["perf", "pingpong", "rping"].contains(&one.get_name())) {
        for arg in command.get_arguments() {
            if let Some(letter) = arg.get_short() {
                seen.entry(letter).or_default().push(arg.get_id().to_string());
            }
        }
    }
    for (letter, names) in &seen {
        let known = LETTERS.iter().find(|(of, _)| of == letter).map(|(_, names)| *names);
        let known = known.unwrap_or_else(|| panic!("-{letter} ({names:?}) is not in LETTERS"));
        assert!(
            names.iter().all(|name| known.contains(&name.as_str())),
            "-{letter}: {names:?}, not {known:?}"
        );
    }
    for (letter, _) in LETTERS {
        assert!(seen.contains_key(&letter), "no command has -{letter}");
    }
}

/// Checks that options with the same meaning have the same name in all commands.
#[test]
fn one_thing_has_one_name_in_every_command() {
    for command in commands() {
        let is_original = ["perf", "pingpong", "rping"].contains(&command.get_name());
        for arg in command.get_arguments().filter(|_| !is_original) {
            let id = arg.get_id().as_str();
            for (other, name) in [
                ("iters", "iterations"),
                ("gid_idx", "gid_index"),
                ("num_qp", "qp"),
                ("src_mac", "source_mac"),
                ("capture", "pcap"),
                ("silent", "quiet"),
                ("loops", "count"),
            ] {
                assert_ne!(id, other, "{} calls {name} {other}", command.get_name());
            }
        }
    }
}
