//! The scripts of `roce peer` against the kernel: single packets, right and wrong, and the rules for them.
//!
//! `differences.rs` has every script that does not pass, and what the kernel does instead. This test fails if
//! a script has another outcome than there, and prints the outcome as a row of that file. The page
//! docs/results/interop/scripts.md is written from the rows, without a virtual machine:
//!
//! ```sh
//! ROCE_WRITE_TABLE=1 cargo test -p roce-cli --test interop -- page
//! ```

use std::fmt::Write as _;
use std::net::SocketAddr;

use anyhow::{Context as _, Result, bail, ensure};
use roce_device::OpenOptions;
use roce_peer::bed::{Agent, Control, EngineNic, Stated, run_device, run_virtual};
use roce_peer::run::{Outcome, Report};
use roce_peer::script::{Action, Script};
use roce_peer::shipped::{SHIPPED, shipped};

use crate::case::Family;
use crate::differences::{DIFFERENCES, Difference, KERNELS, Verdict};
use crate::programs::{Detached, await_listener};
use crate::setting::Setting;

/// Time that an answer may take longer than a script says: the guest's processors are emulated.
const SLACK_NS: u64 = 1_000_000_000;
/// Number of runs of a script with an unexpected outcome. The emulated machine sometimes stands still, so one
/// unexpected outcome says little.
const TRIES: usize = 3;

fn script(name: &str) -> Script {
    shipped(name).expect("a script of the folder").expect("a script without errors")
}

/// Removes times, which differ from run to run: `within` or `after`, a number and `ms`.
fn without_times(found: &str) -> String {
    let words: Vec<&str> = found.split(' ').collect();
    let (mut kept, mut rest) = (Vec::<String>::new(), words.as_slice());
    while let Some((first, others)) = rest.split_first() {
        rest = match others {
            [time, unit, behind @ ..]
                if ["within", "after"].contains(first)
                    && time.parse::<f64>().is_ok()
                    && unit.trim_end_matches([',', ':']) == "ms" =>
            {
                if let Some(last) = kept.last_mut() {
                    last.push_str(&unit["ms".len()..]);
                }
                behind
            }
            _ => {
                kept.push((*first).to_owned());
                others
            }
        };
    }
    kept.join(" ")
}

/// Returns whether a run had this outcome.
fn has(report: &Report, expected: &Verdict) -> bool {
    match (&report.outcome, expected) {
        (Outcome::Passed, Verdict::Passes) => true,
        (Outcome::Failed(failure), Verdict::Fails(line, found)) => {
            failure.place.as_ref().map_or(0, |place| place.line) == *line
                && without_times(&failure.found) == *found
        }
        (Outcome::Inapplicable(what), Verdict::Lacks(reason)) => what == reason,
        (Outcome::Passed, Verdict::Varies(_)) => true,
        (Outcome::Failed(failure), Verdict::Varies(end)) => failure.found.ends_with(end),
        _ => false,
    }
}

/// Returns the outcome as the source of a [`Verdict`].
fn source_of(report: &Report) -> String {
    match &report.outcome {
        Outcome::Passed => "Passes".to_owned(),
        Outcome::Failed(failure) => {
            let line = failure.place.as_ref().map_or(0, |place| place.line);
            format!("Fails({line}, {:?})", without_times(&failure.found))
        }
        Outcome::Inapplicable(what) => format!("Lacks({what:?})"),
    }
}

/// Returns the difference that a script shows, and its verdicts.
fn recorded(name: &str) -> Option<(usize, &'static Difference, &'static [Verdict; 2])> {
    let name = name.trim_end_matches(".roce");
    DIFFERENCES.iter().enumerate().find_map(|(index, difference)| {
        let (_, verdicts) = difference.scripts.iter().find(|(script, _)| *script == name)?;
        Some((index, difference, verdicts))
    })
}

/// Returns the outcome of a script on the kernel with this index in [`KERNELS`].
fn expected(name: &str, kernel: usize) -> &'static Verdict {
    recorded(name).map_or(&Verdict::Passes, |(.., verdicts)| &verdicts[kernel])
}

/// Runs every script against queue pairs of the agent, and returns a description of the result.
pub(crate) fn run(setting: &Setting) -> Result<String> {
    let mut agent = Agent::connect(setting.agent(), None)?;
    let (text, _) = run_against(setting, &mut agent, expected, has)?;
    Ok(text)
}

/// Minimum number of scripts that need nothing but a connection by rdma_cm. The others ask for verbs.
const FEWEST_BY_RDMA_CM: usize = 45;

/// The scripts that have other outcomes over rdma_cm than with the agent.
const OTHER_BY_RDMA_CM: &[(&str, [Verdict; 2])] = &[
    // Nobody can ask the older kernel whether it has ATOMIC WRITE, so the script runs, and it has not.
    ("atomic-write", [Verdict::Fails(6, "nothing arrived"), Verdict::Passes]),
    // Nobody sees that the event is missing.
    ("order-middle-first", [Verdict::Passes, Verdict::Passes]),
    // The kernel's PSN 0xffffff is shown relative to the first PSN of the connection, which is random.
    ("psn-far-behind", [Verdict::Varies(", not 99"), Verdict::Varies(", not 99")]),
];

/// Runs every script against queue pairs that rdma_cm connects to a listener in the guest. A script that asks
/// for verbs does not apply, and most of the others have the outcome that they have with the agent.
pub(crate) fn run_by_rdma_cm(setting: &Setting) -> Result<String> {
    let (address, port) = (setting.addresses(Family::V4).theirs, 7174);
    let line = format!("/share/rdma_cm_target {address} {port}");
    let _target = Detached::start(setting, 600, &line)?;
    await_listener(setting)?;
    let mut control = Stated::by_rdma_cm(SocketAddr::new(address, port));
    let expected = |name: &str, kernel: usize| {
        let other = OTHER_BY_RDMA_CM.iter().find(|(script, _)| *script == name);
        other.map_or_else(|| expected(name, kernel), |(_, verdicts)| &verdicts[kernel])
    };
    let is_right = |report: &Report, expected: &Verdict| {
        matches!(report.outcome, Outcome::Inapplicable(_)) || has(report, expected)
    };
    let (text, [passed, failed, _]) = run_against(setting, &mut control, expected, is_right)?;
    ensure!(passed + failed >= FEWEST_BY_RDMA_CM, "only {passed} + {failed} scripts apply: {text}");
    Ok(text)
}

/// Runs every script against the NIC behind `control`. `is_right` compares an outcome with the one that
/// `expected` returns for the name of a script and the index of a kernel. Returns a description of the
/// result, and the numbers of scripts in the columns of a table.
fn run_against(
    setting: &Setting,
    control: &mut dyn Control,
    expected: impl Fn(&str, usize) -> &'static Verdict,
    is_right: impl Fn(&Report, &Verdict) -> bool,
) -> Result<(String, [usize; 3])> {
    let kernel = KERNELS.iter().position(|kernel| *kernel == setting.kernel);
    let kernel = kernel.with_context(|| format!("no outcomes are recorded for kernel {}", setting.kernel))?;
    let mut device = roce_device::open(setting.spec(Family::V4), OpenOptions::default())?;
    let (mut unexpected, mut counts) = (Vec::new(), [0; 3]);
    for (name, _) in SHIPPED {
        let (script, name) = (script(name), name.trim_end_matches(".roce"));
        let expected = expected(name, kernel);
        if matches!(expected, Verdict::Crashes(_)) {
            counts[expected.index()] += 1;
            continue;
        }
        let mut report = run_device(&script, device.as_mut(), SLACK_NS, control)?;
        for _ in 1..TRIES {
            if is_right(&report, expected) {
                break;
            }
            report = run_device(&script, device.as_mut(), SLACK_NS, control)?;
        }
        let is_lacking = matches!(report.outcome, Outcome::Inapplicable(_));
        counts[if is_lacking { Verdict::Lacks("").index() } else { expected.index() }] += 1;
        if !is_right(&report, expected) {
            unexpected.push(format!("(\"{name}\", {}), expected {expected:?}", source_of(&report)));
        }
    }
    let count = SHIPPED.len();
    ensure!(
        unexpected.is_empty(),
        "{} of {count} scripts have other outcomes than recorded:\n{}",
        unexpected.len(),
        unexpected.join("\n")
    );
    let [passed, failed, lacking] = counts;
    let text =
        format!("{count} scripts: {passed} passed, {failed} failed as recorded, {lacking} not applicable");
    Ok((text, counts))
}

/// Returns the lines of a script up to the one that fails, without rules.
fn until(script: &Script, line: usize) -> String {
    let is_shown = |action: &Action| !matches!(action, Action::Rule(_) | Action::End(_));
    let statements = script.statements.iter().filter(|statement| is_shown(&statement.action));
    let shown = statements.take_while(|statement| line == 0 || statement.place.line <= line);
    let mut text = String::new();
    for statement in shown {
        writeln!(text, "{}", statement.text.trim()).expect("a string");
    }
    text
}

fn cell(verdict: &Verdict) -> &'static str {
    match verdict {
        Verdict::Passes => "passes",
        Verdict::Fails(..) => "**fails**",
        Verdict::Crashes(_) => "**crashes**",
        Verdict::Varies(_) => "**varies**",
        Verdict::Lacks(_) => "not applicable",
    }
}

/// Returns the text of the page.
fn page() -> Result<String> {
    let mut rows = String::new();
    let mut counts = [[0_usize; 3]; 3];
    for (name, _) in SHIPPED {
        let script = script(name);
        let own = run_virtual(&script, &mut EngineNic::new(1));
        if !own.has_passed() {
            bail!("{name} fails against the engine");
        }
        let found = recorded(name);
        let verdicts = found.map_or(&[Verdict::Passes, Verdict::Passes], |(.., verdicts)| verdicts);
        counts[0][0] += 1;
        for (count, verdict) in counts[1..].iter_mut().zip(verdicts) {
            count[verdict.index()] += 1;
        }
        let number = found.map_or(String::new(), |(index, ..)| (index + 1).to_string());
        let rules = script.rules().collect::<Vec<_>>().join(", ");
        let [older, newer] = verdicts.each_ref().map(cell);
        let name = name.trim_end_matches(".roce");
        writeln!(rows, "| `{name}` | {rules} | passes | {older} | {newer} | {number} |")?;
    }
    let mut text = include_str!("scripts-page.txt").to_owned();
    writeln!(text, "\n| NIC | passes | fails | not applicable |\n|---|---|---|---|")?;
    let kernels = KERNELS.map(|kernel| format!("Soft-RoCE of Linux {kernel}"));
    for (nic, [passed, failed, lacking]) in
        ["`roce`", kernels[0].as_str(), kernels[1].as_str()].iter().zip(counts)
    {
        writeln!(text, "| {nic} | {passed} | {failed} | {lacking} |")?;
    }
    writeln!(text, "\n## Differences")?;
    for (index, difference) in DIFFERENCES.iter().enumerate() {
        section(&mut text, index + 1, difference)?;
    }
    writeln!(text, "\n## Scripts\n\nThe last column is the number of the difference above.\n")?;
    let [older, newer] = KERNELS;
    writeln!(text, "| script | rule | `roce` | Linux {older} | Linux {newer} | difference |")?;
    write!(text, "|---|---|---|---|---|---|\n{rows}")?;
    Ok(text)
}

/// Adds the section of a difference: its explanation, and for each script the packets sent, the expectation
/// and what came instead.
fn section(text: &mut String, number: usize, difference: &Difference) -> Result<()> {
    writeln!(text, "\n### {number}. {}\n\n{}", difference.title, difference.text)?;
    for (name, verdicts) in difference.scripts {
        let script = script(name);
        let rules = script.rules().collect::<Vec<_>>().join(", ");
        writeln!(text, "\n`{name}`, {rules}: {}\n", script.title)?;
        let last = verdicts.iter().filter_map(|verdict| match verdict {
            Verdict::Fails(line, _) => Some(*line),
            _ => None,
        });
        if let Some(last) = last.max() {
            writeln!(text, "```text\n{}```\n", until(&script, last))?;
        }
        for (kernel, verdict) in KERNELS.iter().zip(verdicts) {
            let found = match verdict {
                Verdict::Passes => "passes".to_owned(),
                Verdict::Lacks(reason) => format!("not applicable: {reason}"),
                Verdict::Varies(end) => format!("in some runs, an answer comes {end}"),
                Verdict::Crashes(message) => format!("the machine crashes: {message}"),
                Verdict::Fails(line, found) => {
                    let statement = script.statements.iter().find(|statement| statement.place.line == *line);
                    let expected = statement.map_or("no more packets", |statement| statement.text.trim());
                    format!("instead of `{expected}`: {found}")
                }
            };
            writeln!(text, "- Linux {kernel}: {found}")?;
        }
    }
    Ok(())
}

#[test]
fn page_of_scripts_is_as_recorded() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/results/interop/scripts.md");
    let text = page().expect("the page");
    if std::env::var_os("ROCE_WRITE_TABLE").is_some() {
        std::fs::write(path, &text).expect("the page can be written");
    }
    let written = std::fs::read_to_string(path).expect("the page");
    assert!(written == text, "write the page again, see the top of this file");
}

#[test]
fn every_recorded_script_exists_once_and_differs() {
    let mut seen = std::collections::BTreeSet::new();
    for (name, verdicts) in DIFFERENCES.iter().flat_map(|difference| difference.scripts) {
        assert!(shipped(name).is_some(), "{name} is not a script");
        assert!(seen.insert(name), "{name} is recorded twice");
        assert!(verdicts.iter().any(|verdict| *verdict != Verdict::Passes), "{name} passes; remove its row");
    }
}

#[test]
fn times_are_not_compared() {
    for (found, expected) in [
        ("nothing arrived within 1001.000 ms", "nothing arrived"),
        ("ack psn=1 after 0.123 ms, too early", "ack psn=1, too early"),
        ("ack psn=100 msn=1: msn is 1, not 2", "ack psn=100 msn=1: msn is 1, not 2"),
        ("ack psn=100 msn=1 after 12.000 ms", "ack psn=100 msn=1"),
    ] {
        assert_eq!(without_times(found), expected);
    }
}
