//! What the library reported of the processes of a program, and what is said about it.
//!
//! Each line of the file is one fact: the number of the process, the device, a word that says what it is, and the fact. Processes
//! append whole lines, so that those of a parallel program do not mix.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::ExitStatus;

use anyhow::Context as _;
use roce::observe::Text;

use crate::text_file;

/// Work requests that failed are shown up to this number.
const MOST_SHOWN: usize = 5;

/// What became of a device that was open when a signal ended its process.
const KILLED: &str = "the process was killed before the device was closed";

/// One device that one process opened.
#[derive(Debug, Default, PartialEq, Eq)]
struct Opened {
    /// What it was opened with, such as `udp:192.0.2.1`.
    specification: String,
    counters: Vec<(String, u64)>,
    /// Work requests that failed, with a remedy.
    failures: Vec<String>,
    /// Why it could not be opened.
    refusals: Vec<String>,
}

impl Opened {
    /// Whether it was open when the process was killed: every device that closes has counters.
    fn was_cut_short(&self) -> bool {
        self.counters.is_empty() && self.refusals.is_empty()
    }
}

/// What all processes reported, by process and device.
#[derive(Debug, Default)]
pub(super) struct Report {
    opened: BTreeMap<(u32, String), Opened>,
}

impl Report {
    pub(super) fn read(file: &Path) -> anyhow::Result<Self> {
        let bytes = text_file::read(file).with_context(|| format!("cannot read {}", file.display()))?;
        Ok(Self::parse(&String::from_utf8_lossy(&bytes)))
    }

    /// Lines that are not of the library are left out: the program may have written there.
    fn parse(text: &str) -> Self {
        let mut report = Self::default();
        for line in text.lines() {
            let mut fields = line.splitn(4, '\t');
            let (Some(Ok(process)), Some(device), Some(kind), Some(fact)) =
                (fields.next().map(str::parse), fields.next(), fields.next(), fields.next())
            else {
                continue;
            };
            let opened = report.opened.entry((process, device.to_owned())).or_default();
            match kind {
                "device" => opened.specification = fact.to_owned(),
                "failed" => opened.failures.push(fact.to_owned()),
                // A program may try again many times.
                "refused" if opened.refusals.iter().any(|known| known == fact) => {}
                "refused" => opened.refusals.push(fact.to_owned()),
                "counter" => {
                    if let Some((name, value)) = fact.split_once('\t')
                        && let Ok(value) = value.parse()
                    {
                        opened.counters.push((name.to_owned(), value));
                    }
                }
                _ => {}
            }
        }
        report
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
                writeln!(out, "  no counters: {KILLED}")?;
            }
            let counters = opened.counters.iter().filter(|(_, value)| *value > 0);
            let width = counters.clone().map(|(name, _)| name.len()).max().unwrap_or(0);
            for (name, value) in counters {
                writeln!(out, "  {:width$}  {value}", Text::new(name))?;
            }
        }
        Ok(())
    }

    /// Says what the engine saw of a program that failed.
    pub(super) fn explain(&self, out: &mut impl Write, program: &str, status: &ExitStatus) -> io::Result<()> {
        let program = Text::new(program);
        match (status.code(), status.signal()) {
            (Some(code), _) => writeln!(out, "roce: {program} ended with status {code}")?,
            (None, signal) => writeln!(out, "roce: signal {} ended {program}", signal.unwrap_or(0))?,
        }
        if self.opened.is_empty() {
            return writeln!(
                out,
                "roce: it opened no device: it may not use libibverbs, may be linked statically or with a library path of its own, \
                 or may have failed before; `ldd` shows which libibverbs.so.1 it loads"
            );
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
            if opened.was_cut_short() {
                writeln!(out, "roce: {place}: {KILLED}; --pcap shows its packets")?;
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

    const TEXT: &str = "7\troce0\tdevice\tudp:127.0.0.1\n7\troce0\tcounter\trdma_tx_packets\t12\n\
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
        let text = printed(|out| Report::parse(TEXT).explain(out, "ib_write_bw", &status));
        assert!(text.contains("ib_write_bw ended with status 1"), "{text}");
        assert!(text.contains("process 7, roce0: work request 1 of queue pair 0x11"), "{text}");
        assert!(text.contains("process 8, roce0: no such address"), "{text}");
        assert!(!text.contains('\x1b'), "{text}");
        let killed = ExitStatus::from_raw(9);
        let text = printed(|out| Report::parse("").explain(out, "x", &killed));
        assert!(text.contains("signal 9 ended x") && text.contains("ldd"), "{text}");
    }

    /// The command said that the program had opened no device.
    #[test]
    fn a_process_that_was_killed_is_not_said_to_have_no_device() {
        let opened = "7\troce0\tdevice\tudp:127.0.0.1\n";
        let text = printed(|out| Report::parse(opened).explain(out, "tgtd", &ExitStatus::from_raw(11)));
        assert!(
            text.contains("process 7, roce0: the process was killed before the device was closed"),
            "{text}"
        );
        assert!(!text.contains("ldd"), "{text}");
        let text = printed(|out| Report::parse(opened).print_counters(out));
        assert!(text.contains("no counters: the process was killed"), "{text}");
    }
}
