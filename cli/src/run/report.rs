//! The report of the library about the processes of a program, and the messages about it.
//!
//! Each line of the file contains one fact: the number of the process, the device, the kind of fact, and the
//! fact. Processes append whole lines, so that the lines of a parallel program do not mix.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::ExitStatus;

use anyhow::Context as _;
use roce::observe::Text;

use roce_machine::text_file;

/// Maximum number of failed work requests that are shown.
const MOST_SHOWN: usize = 5;

/// Maximum number of lines that explain a failure.
const MOST_LINES: usize = 25;

/// The message about a device that was open when a signal ended its process.
const KILLED: &str = "the process was killed before the device was closed";

/// The names of the libraries in distributions. These are replaced without an option.
const OF_DISTRIBUTIONS: [&str; 4] = ["libibverbs.so.1", "libibverbs.so", "librdmacm.so.1", "librdmacm.so"];

/// Returns possible reasons for a device without packets.
fn silence(queue_pairs: u64) -> String {
    let plural = if queue_pairs == 1 { "" } else { "s" };
    format!(
        "{queue_pairs} queue pair{plural}, but no packet sent or received: if the program transferred data, \
         it did not use RDMA; check the program's log for a fallback"
    )
}

/// A device that one process opened, once or several times.
#[derive(Debug, Default, PartialEq, Eq)]
struct Opened {
    /// The specification of the device, such as `udp:192.0.2.1`.
    specification: String,
    /// Number of lines that name the device: one when it was opened, and one when it was closed.
    named: u64,
    /// Number of times that it was closed.
    closed: u64,
    /// Sums of the counters of all times that it was closed.
    counters: Vec<(String, u64)>,
    /// Failed work requests, with a remedy.
    failures: Vec<String>,
    /// The lines that explain the first failure.
    explanation: Vec<String>,
    /// The reason why it could not be opened, and refused verbs.
    refusals: Vec<String>,
    /// Number of queue pairs that the process created.
    queue_pairs: u64,
}

impl Opened {
    /// Returns whether it was open when the process was killed. Every device that is closed has counters.
    fn was_cut_short(&self) -> bool {
        self.named > 2 * self.closed
    }

    /// Returns whether it was opened for traffic and had none: its counters are known, there were queue
    /// pairs, and no packet was sent or received.
    fn was_silent(&self) -> bool {
        let packets = ["rdma_tx_packets", "rdma_rx_packets"];
        let has_none = |name: &str| self.counters.iter().any(|(known, value)| known == name && *value == 0);
        self.queue_pairs > 0 && !self.was_cut_short() && packets.into_iter().all(has_none)
    }

    /// Explains the first failure.
    fn write_explanation(&self, out: &mut impl Write, place: &str) -> io::Result<()> {
        if let Some((first, lines)) = self.explanation.split_first() {
            writeln!(out, "roce: {place}: why: {}", Text::new(first))?;
            for line in lines {
                writeln!(out, "  {}", Text::new(line))?;
            }
        }
        Ok(())
    }

    fn count(&mut self, name: &str, value: u64) {
        match self.counters.iter_mut().find(|(known, _)| known == name) {
            Some((_, sum)) => *sum = sum.saturating_add(value),
            None => self.counters.push((name.to_owned(), value)),
        }
    }
}

/// The reports of all processes, by process and device.
#[derive(Debug, Default)]
pub(super) struct Report {
    opened: BTreeMap<(u32, String), Opened>,
    /// Devices that a process got when it asked for the list.
    listed: BTreeSet<String>,
    /// Files of other verbs libraries that processes loaded.
    foreign: BTreeSet<String>,
    /// Whether the program loaded the libraries of this command.
    has_started: bool,
}

impl Report {
    pub(super) fn read(file: &Path) -> anyhow::Result<Self> {
        let bytes = text_file::read(file).with_context(|| format!("cannot read {}", file.display()))?;
        Ok(Self::parse(&String::from_utf8_lossy(&bytes)))
    }

    /// Parses the lines. Lines of other origins are skipped, because the program may have written to the
    /// file.
    fn parse(text: &str) -> Self {
        let mut report = Self::default();
        for line in text.lines() {
            let mut fields = line.splitn(4, '\t');
            let (Some(Ok(process)), Some(device), Some(kind), Some(fact)) =
                (fields.next().map(str::parse), fields.next(), fields.next(), fields.next())
            else {
                continue;
            };
            match kind {
                "started" => report.has_started = true,
                "foreign" => drop(report.foreign.insert(fact.to_owned())),
                "listed" => drop(report.listed.insert(device.to_owned())),
                _ => report.add((process, device.to_owned()), kind, fact),
            }
        }
        report
    }

    /// Adds a fact about a device.
    fn add(&mut self, place: (u32, String), kind: &str, fact: &str) {
        let opened = self.opened.entry(place).or_default();
        match kind {
            "device" => {
                opened.specification = fact.to_owned();
                opened.named += 1;
            }
            // This line is written when the device is closed.
            "queue_pairs" => {
                opened.queue_pairs = opened.queue_pairs.saturating_add(fact.parse().unwrap_or(0));
                opened.closed += 1;
            }
            "failed" => opened.failures.push(fact.to_owned()),
            "why" if opened.explanation.len() < MOST_LINES => opened.explanation.push(fact.to_owned()),
            // A program may repeat an attempt many times.
            "refused" if opened.refusals.iter().any(|known| known == fact) => {}
            "refused" => opened.refusals.push(fact.to_owned()),
            "counter" => {
                if let Some((name, value)) = fact.split_once('\t')
                    && let Ok(value) = value.parse()
                {
                    opened.count(name, value);
                }
            }
            _ => {}
        }
    }

    /// Prints the counters that are not zero.
    pub(super) fn print_counters(&self, out: &mut impl Write) -> io::Result<()> {
        if self.opened.is_empty() {
            writeln!(out, "roce: the program opened no device")?;
        }
        for ((process, device), opened) in &self.opened {
            let specification = Text::new(&opened.specification);
            writeln!(out, "roce: process {process}, {} ({specification})", Text::new(device))?;
            if opened.was_cut_short() {
                let some = if opened.closed == 0 { "no counters" } else { "some counters are missing" };
                writeln!(out, "  {some}: {KILLED}")?;
            }
            let counters = opened.counters.iter().filter(|(_, value)| *value > 0);
            let width = counters.clone().map(|(name, _)| name.len()).max().unwrap_or(0);
            for (name, value) in counters {
                writeln!(out, "  {:width$}  {value}", Text::new(name))?;
            }
        }
        Ok(())
    }

    /// Prints refused requests, missing traffic and the first failure of a program that succeeded, because it
    /// may have used another transport.
    pub(super) fn note(&self, out: &mut impl Write) -> io::Result<()> {
        for ((process, device), opened) in &self.opened {
            let place = format!("process {process}, {}", Text::new(device));
            for refusal in opened.refusals.iter().take(MOST_SHOWN) {
                writeln!(out, "roce: {place}: {}", Text::new(refusal))?;
            }
            if opened.was_silent() {
                writeln!(out, "roce: {place}: {}", silence(opened.queue_pairs))?;
            }
            opened.write_explanation(out, &place)?;
        }
        self.name_foreign(out)
    }

    /// Names other verbs libraries, which a program may have used instead.
    fn name_foreign(&self, out: &mut impl Write) -> io::Result<()> {
        for path in &self.foreign {
            let name = path.rsplit('/').next().unwrap_or_default();
            write!(out, "roce: the program loaded {}, which is not a library of roce; ", Text::new(path))?;
            if OF_DISTRIBUTIONS.contains(&name) {
                writeln!(out, "make the program load {name} without a folder")?;
            } else {
                writeln!(
                    out,
                    "--alias {} replaces it if the program needs it by that name",
                    Text::new(name)
                )?;
            }
        }
        Ok(())
    }

    /// Explains why a failed program may have opened no device.
    fn explain_without_device(&self, out: &mut impl Write, named: Option<&str>) -> io::Result<()> {
        let names = self.listed.iter().map(|name| Text::new(name).to_string()).collect::<Vec<_>>().join(", ");
        self.name_foreign(out)?;
        match named {
            Some(named) if !self.listed.is_empty() && !self.listed.contains(named) => writeln!(
                out,
                "roce: the program found {names} but opened no device; it was told to use {0}: --name {0} \
                 gives the device this name",
                Text::new(named)
            ),
            _ if !self.listed.is_empty() => writeln!(
                out,
                "roce: the program found {names} but opened no device; if it expects another name, --name \
                 NAME gives the device that name"
            ),
            _ if !self.has_started => writeln!(
                out,
                "roce: the program did not load the libraries of this command: it is linked statically, or \
                 has more rights than its user (setuid)"
            ),
            _ if !self.foreign.is_empty() => Ok(()),
            _ => writeln!(
                out,
                "roce: the program did not list devices: it does not use libibverbs, or failed before"
            ),
        }
    }

    /// Explains a failed program with the observations of the engine. `named` is the device that the program
    /// was told to use, if known.
    pub(super) fn explain(
        &self,
        out: &mut impl Write,
        program: &str,
        status: &ExitStatus,
        named: Option<&str>,
    ) -> io::Result<()> {
        let program = Text::new(program);
        match (status.code(), status.signal()) {
            (Some(code), _) => writeln!(out, "roce: {program} ended with status {code}")?,
            (None, signal) => writeln!(out, "roce: signal {} ended {program}", signal.unwrap_or(0))?,
        }
        if self.opened.is_empty() {
            return self.explain_without_device(out, named);
        }
        for ((process, device), opened) in &self.opened {
            let place = format!("process {process}, {}", Text::new(device));
            for refusal in &opened.refusals {
                writeln!(out, "roce: {place}: {}", Text::new(refusal))?;
            }
            for failure in opened.failures.iter().take(MOST_SHOWN) {
                writeln!(out, "roce: {place}: {}", Text::new(failure))?;
            }
            let more = opened.failures.len().saturating_sub(MOST_SHOWN);
            if more > 0 {
                writeln!(out, "roce: {place}: {more} more failures")?;
            }
            opened.write_explanation(out, &place)?;
            if opened.was_cut_short() {
                writeln!(out, "roce: {place}: {KILLED}; --pcap shows its packets")?;
            } else if opened.was_silent() {
                writeln!(out, "roce: {place}: {}", silence(opened.queue_pairs))?;
            } else if opened.refusals.is_empty() && opened.failures.is_empty() {
                writeln!(
                    out,
                    "roce: {place}: no work request failed and no queue pair was refused; --stat shows its counters"
                )?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "7\troce0\tdevice\tudp:127.0.0.1\n7\troce0\tqueue_pairs\t1\n7\troce0\tcounter\trdma_tx_packets\t12\n\
                        7\troce0\tcounter\tnak\t0\n7\troce0\tfailed\twork request 1 of queue pair 0x11 ended with \x1b[31mRETRY\n\
                        nothing\n8\troce0\trefused\tno such address\nx\troce0\tdevice\ty\n7\troce0\tcounter\tbroken\n";

    fn printed(print: impl FnOnce(&mut Vec<u8>) -> io::Result<()>) -> String {
        let mut out = Vec::new();
        print(&mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn counters_are_printed_for_each_process_and_device() {
        let text = printed(|out| Report::parse(TEXT).print_counters(out));
        assert!(text.contains("process 7, roce0 (udp:127.0.0.1)\n  rdma_tx_packets  12\n"), "{text}");
        assert!(!text.contains("nak"), "{text}");
        assert!(printed(|out| Report::parse("").print_counters(out)).contains("opened no device"));
    }

    #[test]
    fn what_failed_is_said_and_controls_no_terminal() {
        let status = ExitStatus::from_raw(1 << 8);
        let text = printed(|out| Report::parse(TEXT).explain(out, "ib_write_bw", &status, None));
        assert!(text.contains("ib_write_bw ended with status 1"), "{text}");
        assert!(text.contains("process 7, roce0: work request 1 of queue pair 0x11"), "{text}");
        assert!(text.contains("process 8, roce0: no such address"), "{text}");
        assert!(!text.contains('\x1b'), "{text}");
        let killed = ExitStatus::from_raw(9);
        let text = printed(|out| Report::parse("").explain(out, "x", &killed, None));
        assert!(text.contains("signal 9 ended x") && text.contains("linked statically"), "{text}");
    }

    #[test]
    fn the_first_failure_is_explained_line_by_line_even_if_the_program_succeeds() {
        let lines: String = (0..40).map(|line| format!("7\troce0\twhy\tline {line}\x1b[31m\n")).collect();
        let report = Report::parse(&format!("7\troce0\tdevice\tudp:127.0.0.1\n{lines}"));
        let failed = ExitStatus::from_raw(1 << 8);
        for text in [printed(|out| report.explain(out, "x", &failed, None)), printed(|out| report.note(out))]
        {
            assert!(text.contains("process 7, roce0: why: line 0") && text.contains("\n  line 24"), "{text}");
            assert!(!text.contains("line 25") && !text.contains('\x1b'), "{text}");
        }
    }

    /// Regression: the command claimed that the program had opened no device.
    #[test]
    fn a_process_that_was_killed_is_not_said_to_have_no_device() {
        let opened = "7\troce0\tdevice\tudp:127.0.0.1\n";
        let text = printed(|out| Report::parse(opened).explain(out, "tgtd", &ExitStatus::from_raw(11), None));
        assert!(
            text.contains("process 7, roce0: the process was killed before the device was closed"),
            "{text}"
        );
        assert!(!text.contains("statically"), "{text}");
        let text = printed(|out| Report::parse(opened).print_counters(out));
        assert!(text.contains("no counters: the process was killed"), "{text}");
    }

    /// Regression: libfabric opens a device several times. The counters of the last time were not added, and
    /// a program with thousands of packets was reported to have none.
    #[test]
    fn counters_of_a_device_that_was_opened_several_times_are_added() {
        let opened = "7\troce0\tdevice\tudp:127.0.0.1\n";
        let closed = |packets: u64| {
            format!(
                "{opened}7\troce0\tqueue_pairs\t2\n7\troce0\tcounter\trdma_tx_packets\t{packets}\n\
                 7\troce0\tcounter\trdma_rx_packets\t{packets}\n"
            )
        };
        let text = [opened, opened, &closed(0), &closed(5)].concat();
        let report = Report::parse(&text);
        assert_eq!(printed(|out| report.note(out)), "");
        let counters = printed(|out| report.print_counters(out));
        assert_eq!(counters.matches("rdma_tx_packets  5").count(), 1, "{counters}");
        assert!(!counters.contains(KILLED), "{counters}");
        // The process was killed while one of the two was open.
        let report = Report::parse(&[opened, opened, &closed(0)].concat());
        assert_eq!(printed(|out| report.note(out)), "");
        let counters = printed(|out| report.print_counters(out));
        assert!(counters.contains("some counters are missing: the process was killed"), "{counters}");
    }

    /// Regression: a program that asked for a device of another name was reported as linked statically.
    #[test]
    fn hints_follow_from_what_the_program_did() {
        let failed = ExitStatus::from_raw(1 << 8);
        let explained = |text: &str, named: Option<&str>| {
            printed(|out| Report::parse(text).explain(out, "x", &failed, named))
        };
        let started = "7\t-\tstarted\t\n";
        let listed = "7\t-\tstarted\t\n7\troce0\tlisted\t\n";
        let foreign = "7\t-\tstarted\t\n7\t-\tforeign\t/w/libibverbs-1de.so.1\n7\t-\tforeign\t/usr/lib/libibverbs.so.1\n";
        for (text, named, hint) in [
            ("", None, "linked statically"),
            (started, Some("mlx5_0"), "the program did not list devices"),
            (
                listed,
                Some("mlx5_0"),
                "the program found roce0 but opened no device; it was told to use mlx5_0: --name mlx5_0",
            ),
            (listed, None, "if it expects another name, --name NAME"),
            (listed, Some("roce0"), "if it expects another name, --name NAME"),
            (
                foreign,
                None,
                "the program loaded /w/libibverbs-1de.so.1, which is not a library of roce; --alias \
                 libibverbs-1de.so.1",
            ),
            (
                foreign,
                None,
                "the program loaded /usr/lib/libibverbs.so.1, which is not a library of roce; make the \
                 program load libibverbs.so.1",
            ),
        ] {
            let all = explained(text, named);
            assert!(all.contains(hint), "{hint}: {all}");
            assert_eq!(all.contains("statically"), hint.contains("statically"), "{all}");
        }
    }

    /// Regression: a program that did not get its GID fell back to TCP, and nothing was reported because it
    /// succeeded.
    #[test]
    fn a_program_that_succeeded_is_told_what_it_did_not_get() {
        let opened = "7\troce0\tdevice\tudp:127.0.0.1\n";
        let noted = |more: &str| printed(|out| Report::parse(&format!("{opened}{more}")).note(out));
        let packets = "7\troce0\tcounter\trdma_tx_packets\t9\n7\troce0\tcounter\trdma_rx_packets\t9\n";
        let none = packets.replace('9', "0");
        assert_eq!(noted(""), "");
        assert_eq!(noted(&format!("7\troce0\tqueue_pairs\t2\n{packets}")), "");
        assert_eq!(noted(&format!("7\troce0\tqueue_pairs\t0\n{none}")), "");
        let silent = noted(&format!("7\troce0\tqueue_pairs\t2\n{none}"));
        assert!(
            silent.contains("process 7, roce0: 2 queue pairs, but no packet sent or received"),
            "{silent}"
        );
        let refused = noted("7\troce0\trefused\tthe port has no GID with index 9\n");
        assert_eq!(refused, "roce: process 7, roce0: the port has no GID with index 9\n");
    }
}
