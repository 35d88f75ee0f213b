//! The conclusions of the paper, as data: the claim, the cells that decide, and the rule.

use std::collections::BTreeMap;

use super::grid::{Carrier, Cell, Device, Test};
use super::measured::Measured;
use super::store::Outcome;

/// The verdict of the rows on a conclusion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The rule is fulfilled.
    Holds,
    /// The rule is not fulfilled.
    DoesNotHold,
    /// Deciding cells are missing.
    NotMeasured,
}

impl Verdict {
    /// Returns the text in the report.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Self::Holds => "holds",
            Self::DoesNotHold => "does not hold",
            Self::NotMeasured => "not measured",
        }
    }
}

/// A verdict and the numbers that it is based on.
#[derive(Clone, Debug, PartialEq)]
pub struct Judgement {
    /// The verdict.
    pub verdict: Verdict,
    /// The numbers, with units.
    pub numbers: String,
}

impl Judgement {
    fn of(holds: bool, numbers: String) -> Self {
        Self { verdict: if holds { Verdict::Holds } else { Verdict::DoesNotHold }, numbers }
    }

    fn missing() -> Self {
        Self { verdict: Verdict::NotMeasured, numbers: String::new() }
    }
}

/// A conclusion of the paper.
#[derive(Debug)]
pub struct Conclusion {
    /// The name in links and tests.
    pub id: &'static str,
    /// The claim.
    pub claim: &'static str,
    /// The condition under which the claim counts as true here.
    pub rule: &'static str,
    /// The name of the figure that shows it.
    pub figure: &'static str,
    decide: fn(&Rows<'_>) -> Option<Judgement>,
}

impl Conclusion {
    /// Judges the conclusion by the rows of a device.
    #[must_use]
    pub fn judge(&self, rows: &BTreeMap<Cell, Outcome>, device: Device) -> Judgement {
        (self.decide)(&Rows { rows, device }).unwrap_or_else(Judgement::missing)
    }
}

/// The conclusions of the paper, and two conclusions of the guides that measure storage over RoCE.
pub const CONCLUSIONS: [Conclusion; 18] = [
    Conclusion {
        id: "inline-latency",
        claim: "Posting small messages inline lowers their latency.",
        rule: "ping by SEND, 8 to 256 bytes, polling: the median with inline is at most 0.97 of the one without (geometric mean).",
        figure: "latency-small-send-recv",
        decide: |rows| {
            let ratio = rows.ratio(SMALL, Measured::median, &|size| {
                let cell = rows.ping(Carrier::Send, size);
                [Cell { inline: true, ..cell }, cell]
            })?;
            Some(Judgement::of(ratio <= 0.97, format!("inline takes {ratio:.2} of the time without")))
        },
    },
    Conclusion {
        id: "inline-throughput",
        claim: "Posting small messages inline raises their rate.",
        rule: "blast by SEND, 8 to 256 bytes: messages per second with inline are at least 1.03 of those without.",
        figure: "throughput-small-inline",
        decide: |rows| {
            let ratio = rows.ratio(SMALL, Measured::rate, &|size| {
                let cell = rows.blast(Carrier::Send, size);
                [Cell { inline: true, ..cell }, cell]
            })?;
            Some(Judgement::of(ratio >= 1.03, format!("inline reaches {ratio:.2} of the rate without")))
        },
    },
    Conclusion {
        id: "polling-latency",
        claim: "Polling has a lower latency than waiting for events.",
        rule: "ping by SEND, 8 bytes to 4 KiB: the median with events is at least 1.1 of the one with polling.",
        figure: "latency-small-send-recv",
        decide: |rows| {
            let ratio = rows.ratio(UP_TO_4K, Measured::median, &|size| {
                let cell = rows.ping(Carrier::Send, size);
                [Cell { events: true, ..cell }, cell]
            })?;
            Some(Judgement::of(ratio >= 1.1, format!("events take {ratio:.2} of the time of polling")))
        },
    },
    Conclusion {
        id: "polling-cost",
        claim: "Polling keeps a whole processor busy, and events do not.",
        rule: "ping by SEND, 8 bytes to 4 KiB: the client uses at least 90 % of a processor with polling, and with events at most \
               75 % of what it uses with polling.",
        figure: "cpu-latency",
        decide: |rows| {
            let cpu = |events| {
                rows.mean(UP_TO_4K, Measured::cpu_of_client, &|size| Cell {
                    events,
                    ..rows.ping(Carrier::Send, size)
                })
            };
            let (polling, events) = (cpu(false)?, cpu(true)?);
            let holds = polling >= 90.0 && events <= 0.75 * polling;
            Some(Judgement::of(holds, format!("polling {polling:.0} %, events {events:.0} % of a processor")))
        },
    },
    Conclusion {
        id: "write-like-send",
        claim: "A WRITE that the receiver finds in its memory takes about as long as a SEND, or less.",
        rule: "ping, 8 bytes to 1 KiB: the median of WRITE is at most 1.15 of that of SEND.",
        figure: "latency-small-all",
        decide: |rows| {
            let ratio = rows.ratio(UP_TO_1K, Measured::median, &|size| {
                [rows.ping(Carrier::Write, size), rows.ping(Carrier::Send, size)]
            })?;
            Some(Judgement::of(ratio <= 1.15, format!("WRITE takes {ratio:.2} of the time of SEND")))
        },
    },
    Conclusion {
        id: "read-slower",
        claim: "A READ of a small message is slower than a SEND or a WRITE of it.",
        rule: "ping, 8 bytes to 1 KiB: a whole READ takes at least 1.25 of half a round trip by SEND.",
        figure: "latency-small-all",
        decide: |rows| {
            let ratio = rows.ratio(UP_TO_1K, Measured::one_way, &|size| {
                [rows.ping(Carrier::Read, size), rows.ping(Carrier::Send, size)]
            })?;
            Some(Judgement::of(ratio >= 1.25, format!("READ takes {ratio:.2} of the time of SEND")))
        },
    },
    Conclusion {
        id: "latency-flat",
        claim: "Latency hardly depends on the size of small messages, and grows with that of large ones.",
        rule: "ping by SEND, polling: the median of 1 KiB is at most 1.5 of that of 8 bytes, and that of 1 MiB at least 4 times \
               that of 64 KiB.",
        figure: "latency-large-all",
        decide: |rows| {
            let median = |size| rows.get(&rows.ping(Carrier::Send, size)).and_then(Measured::median);
            let (tiny, small, large, huge) = (median(8)?, median(KIB)?, median(64 * KIB)?, median(MIB)?);
            let numbers = format!(
                "8 bytes {tiny:.1} µs, 1 KiB {small:.1} µs, 64 KiB {large:.0} µs, 1 MiB {huge:.0} µs"
            );
            Some(Judgement::of(small <= 1.5 * tiny && huge >= 4.0 * large, numbers))
        },
    },
    Conclusion {
        id: "operations-alike",
        claim: "For large messages it does not matter which operation carries them.",
        rule: "blast, 1 MiB: the slowest of the four operations reaches at least 0.75 of the fastest.",
        figure: "throughput-large-all",
        decide: |rows| {
            let all = rows.of_operations(MIB)?;
            let (least, most) = (fold(&all, f64::min), fold(&all, f64::max));
            Some(Judgement::of(least >= 0.75 * most, format!("{}: {:.2}", named(&all), least / most)))
        },
    },
    Conclusion {
        id: "near-link-rate",
        claim: "Large messages reach nearly the rate of the link.",
        rule: "blast, 64 KiB or 1 MiB: each of the four operations reaches at least 0.8 of the limit of the device with frames of \
               4 KiB, in one of the two sizes.",
        figure: "throughput-large-all",
        decide: |rows| {
            let limit =
                rows.get(&Cell::new(rows.device, Test::Blast, Carrier::Limit, 4 * KIB))?.gigabits_per_s;
            let (middle, large) = (rows.of_operations(64 * KIB)?, rows.of_operations(MIB)?);
            let best: Vec<(Carrier, f64)> =
                middle.iter().zip(&large).map(|((carrier, a), (_, b))| (*carrier, a.max(*b))).collect();
            let share = fold(&best, f64::min) / limit;
            Some(Judgement::of(
                share >= 0.8,
                format!("limit {limit:.1} Gb/s; {}; least {share:.2}", named(&best)),
            ))
        },
    },
    Conclusion {
        id: "buffers-help",
        claim: "More outstanding buffers raise the throughput of small and medium messages.",
        rule: "blast by SEND: with 16 buffers at least 1.5 of what 1 buffer reaches, for 64 bytes and for 4 KiB.",
        figure: "throughput-buffers-small",
        decide: |rows| {
            let gain = |size| rows.buffers(size, 16, 1);
            let (small, medium) = (gain(64)?, gain(4 * KIB)?);
            let numbers =
                format!("16 buffers against 1: {small:.1} times for 64 bytes, {medium:.1} times for 4 KiB");
            Some(Judgement::of(small >= 1.5 && medium >= 1.5, numbers))
        },
    },
    Conclusion {
        id: "buffers-enough",
        claim: "Beyond some number, more buffers bring little.",
        rule: "blast by SEND: 128 buffers reach at most 1.25 of what 32 reach, for 64 bytes and for 4 KiB.",
        figure: "throughput-buffers-small",
        decide: |rows| {
            let gain = |size| rows.buffers(size, 128, 32);
            let (small, medium) = (gain(64)?, gain(4 * KIB)?);
            let numbers = format!("128 buffers against 32: {small:.2} for 64 bytes, {medium:.2} for 4 KiB");
            Some(Judgement::of(small <= 1.25 && medium <= 1.25, numbers))
        },
    },
    Conclusion {
        id: "few-buffers-large",
        claim: "Large messages need few buffers.",
        rule: "blast by SEND, 1 MiB: 4 buffers reach at least 0.9 of what 16 reach.",
        figure: "throughput-buffers-large",
        decide: |rows| {
            let share = rows.buffers(MIB, 4, 16)?;
            Some(Judgement::of(share >= 0.9, format!("4 buffers reach {share:.2} of 16")))
        },
    },
    Conclusion {
        id: "lists-help",
        claim: "Submitting lists of work requests helps small messages.",
        rule: "blast by SEND and WRITE, 64 bytes and 1 KiB, 16 buffers: messages per second with lists are at least 1.05 of those with \
               single posts.",
        figure: "throughput-post",
        decide: |rows| {
            let both = [Carrier::Send, Carrier::Write].map(|carrier| {
                rows.ratio(&[64, KIB], Measured::rate, &|size| {
                    let cell = rows.blast(carrier, size);
                    [cell, Cell { lists: false, ..cell }]
                })
            });
            let [Some(send), Some(write)] = both else { return None };
            let ratio = (send * write).sqrt();
            Some(Judgement::of(
                ratio >= 1.05,
                format!("lists against single: SEND {send:.2}, WRITE {write:.2}"),
            ))
        },
    },
    Conclusion {
        id: "periodic-signals",
        claim: "Signaling only some of the requests helps a little.",
        rule: "blast by SEND and WRITE, 64 bytes and 4 KiB, 16 buffers: messages per second are 1.01 to 1.5 of those with every \
               request signaled.",
        figure: "throughput-signal",
        decide: |rows| {
            let both = [Carrier::Send, Carrier::Write].map(|carrier| {
                rows.ratio(&[64, 4 * KIB], Measured::rate, &|size| {
                    let cell = rows.blast(carrier, size);
                    [Cell { periodic: true, ..cell }, cell]
                })
            });
            let [Some(send), Some(write)] = both else { return None };
            let ratio = (send * write).sqrt();
            let numbers = format!("periodic against full: SEND {send:.2}, WRITE {write:.2}");
            Some(Judgement::of((1.01..=1.5).contains(&ratio), numbers))
        },
    },
    Conclusion {
        id: "events-large",
        claim: "For large messages with few buffers, events save processor time and cost no throughput.",
        rule: "blast by SEND, 1 MiB, 1 to 4 buffers: with events both sides use at most 0.9 of the processor time for each gigabit, and \
               reach at least 0.9 of the throughput.",
        figure: "cpu-buffers-large",
        decide: |rows| {
            let cells = |buffers| {
                let cell = Cell { buffers, ..rows.blast(Carrier::Send, MIB) };
                [Cell { events: true, ..cell }, cell]
            };
            let cpu = rows.ratio(&[1, 2, 4], Measured::cpu_per_gigabit, &cells)?;
            let speed = rows.ratio(&[1, 2, 4], Measured::speed, &cells)?;
            let numbers = format!(
                "events: {cpu:.2} of the processor time for each gigabit, {speed:.2} of the throughput"
            );
            Some(Judgement::of(cpu <= 0.9 && speed >= 0.9, numbers))
        },
    },
    Conclusion {
        id: "tcp-latency",
        claim: "RDMA has a lower latency than TCP.",
        rule: "ping, 8 bytes to 1 KiB, polling: the median of SEND is at most 0.95 of that of TCP.",
        figure: "latency-small-all",
        decide: |rows| {
            let ratio = rows.ratio(UP_TO_1K, Measured::median, &|size| {
                [rows.ping(Carrier::Send, size), rows.ping(Carrier::Tcp, size)]
            })?;
            Some(Judgement::of(ratio <= 0.95, format!("SEND takes {ratio:.2} of the time of TCP")))
        },
    },
    Conclusion {
        id: "tcp-throughput",
        claim: "RDMA moves large messages faster than TCP.",
        rule: "blast, 64 KiB and 1 MiB: WRITE reaches at least 1.05 of TCP.",
        figure: "throughput-large-all",
        decide: |rows| {
            let ratio = rows.ratio(&[64 * KIB, MIB], Measured::speed, &|size| {
                [rows.blast(Carrier::Write, size), rows.blast(Carrier::Tcp, size)]
            })?;
            Some(Judgement::of(ratio >= 1.05, format!("WRITE reaches {ratio:.2} of TCP")))
        },
    },
    Conclusion {
        id: "workers",
        claim: "Guides: more workers raise the throughput of small blocks, and large blocks take less processor time for each byte.",
        rule: "WRITE, blocks of 4 KiB: 16 workers reach at least 2 times what 1 reaches; 16 workers: blocks of 256 KiB take at most half of \
               the processor time for each gigabit.",
        figure: "throughput-workers",
        decide: |rows| {
            let get = |size, workers| rows.get(&rows.worker(Carrier::Write, size, workers));
            let (one, many, large) = (get(4 * KIB, 1)?, get(4 * KIB, 16)?, get(256 * KIB, 16)?);
            let gain = many.gigabits_per_s / one.gigabits_per_s;
            let (small_cost, large_cost) = (many.cpu_per_gigabit()?, large.cpu_per_gigabit()?);
            let numbers = format!(
                "16 workers reach {gain:.1} times 1; {small_cost:.0} % of a processor for each Gb/s with 4 KiB, {large_cost:.0} % with 256 KiB"
            );
            Some(Judgement::of(gain >= 2.0 && large_cost <= 0.5 * small_cost, numbers))
        },
    },
];

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;
const SMALL: &[usize] = &[8, 64, 256];
const UP_TO_1K: &[usize] = &[8, 64, 256, KIB];
const UP_TO_4K: &[usize] = &[8, 64, 256, KIB, 4 * KIB];

/// The rows of a device.
struct Rows<'a> {
    rows: &'a BTreeMap<Cell, Outcome>,
    device: Device,
}

type Value = fn(&Measured) -> Option<f64>;

impl Rows<'_> {
    fn get(&self, cell: &Cell) -> Option<&Measured> {
        self.rows.get(cell)?.as_ref().ok()
    }

    fn ping(&self, carrier: Carrier, size: usize) -> Cell {
        Cell::new(self.device, Test::Ping, carrier, size)
    }

    fn blast(&self, carrier: Carrier, size: usize) -> Cell {
        Cell::new(self.device, Test::Blast, carrier, size)
    }

    fn worker(&self, carrier: Carrier, size: usize, workers: usize) -> Cell {
        Cell { workers, buffers: 1, events: true, ..self.blast(carrier, size) }
    }

    /// Returns the geometric mean, over sizes or another axis, of the ratio of two cells. Sizes without both
    /// cells are left out. Returns `None` if no size has both.
    fn ratio(&self, sizes: &[usize], value: Value, cells: &dyn Fn(usize) -> [Cell; 2]) -> Option<f64> {
        let of_size = |size: &usize| {
            let [above, below] = cells(*size).map(|cell| self.get(&cell).and_then(value));
            Some(above? / below?).filter(|ratio| ratio.is_finite() && *ratio > 0.0)
        };
        let logarithms: Vec<f64> = sizes.iter().filter_map(of_size).map(f64::ln).collect();
        (!logarithms.is_empty()).then(|| (logarithms.iter().sum::<f64>() / logarithms.len() as f64).exp())
    }

    fn mean(&self, sizes: &[usize], value: Value, cell: &dyn Fn(usize) -> Cell) -> Option<f64> {
        let values: Vec<f64> =
            sizes.iter().filter_map(|size| self.get(&cell(*size)).and_then(value)).collect();
        (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
    }

    /// Returns the throughput of the four operations, or `None` if one is missing.
    fn of_operations(&self, size: usize) -> Option<Vec<(Carrier, f64)>> {
        let speed = |carrier| Some((carrier, self.get(&self.blast(carrier, size))?.gigabits_per_s));
        Carrier::OPERATIONS.into_iter().map(speed).collect()
    }

    /// Returns the throughput of SEND with `these` buffers, as a share of the throughput with `those`
    /// buffers.
    fn buffers(&self, size: usize, these: usize, those: usize) -> Option<f64> {
        let speed =
            |buffers| Some(self.get(&Cell { buffers, ..self.blast(Carrier::Send, size) })?.gigabits_per_s);
        Some(speed(these)? / speed(those)?)
    }
}

fn fold(values: &[(Carrier, f64)], by: fn(f64, f64) -> f64) -> f64 {
    values.iter().map(|(_, value)| *value).reduce(by).unwrap_or(f64::NAN)
}

fn named(values: &[(Carrier, f64)]) -> String {
    let one = |(carrier, value): &(Carrier, f64)| format!("{} {value:.1} Gb/s", carrier.name());
    values.iter().map(one).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests;
