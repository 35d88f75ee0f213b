//! The time at which each frame is due.

use std::time::Duration;

use anyhow::bail;
use roce_packet::wire_len;
use roce_transport::units;

/// The speed of sending.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Rate {
    /// As fast as the device accepts frames.
    Max,
    /// Frames per second.
    Frames(f64),
    /// Bits per second on the wire, with preamble and interframe gap.
    Bits(u64),
}

impl Rate {
    /// Parses `1000/s`, `100Mbps` or `max`.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        const EXPECTED: &str = "expected frames per second such as 1000/s, a speed such as 100Mbps, or max";
        if text == "max" {
            return Ok(Self::Max);
        }
        if let Some(number) = text.strip_suffix("/s") {
            let number = number.parse().ok().filter(|rate: &f64| (1e-3..=1e9).contains(rate));
            return number.map(Self::Frames).ok_or_else(|| EXPECTED.to_owned());
        }
        // A number without a unit is ambiguous.
        let has_unit = !text.ends_with(|last: char| last.is_ascii_digit());
        match units::rate(text) {
            Ok(bits) if bits > 0 && has_unit => Ok(Self::Bits(bits)),
            _ => Err(EXPECTED.to_owned()),
        }
    }
}

/// The schedule of frames, counted from the start of the run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    kind: Kind,
    frames: u64,
    wire_bytes: u64,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Rate(Rate),
    /// The intervals of the capture, divided by `speed`.
    Capture {
        speed: f64,
        round: Option<Round>,
    },
}

/// One pass through the capture.
#[derive(Clone, Copy, Debug)]
struct Round {
    /// The time of the first packet.
    first_ns: u64,
    /// The time when the first packet is due.
    begin: Duration,
    /// The time when the last packet so far is due.
    last: Duration,
}

impl Pace {
    pub(super) const fn rate(rate: Rate) -> Self {
        Self { kind: Kind::Rate(rate), frames: 0, wire_bytes: 0 }
    }

    pub(super) const fn capture(speed: f64) -> Self {
        Self { kind: Kind::Capture { speed, round: None }, frames: 0, wire_bytes: 0 }
    }

    /// Returns when the next frame is due, given its length and its capture time.
    pub(super) fn due(&mut self, frame_len: usize, time_ns: Option<u64>) -> anyhow::Result<Duration> {
        let due = match &mut self.kind {
            Kind::Rate(Rate::Max) => Duration::ZERO,
            Kind::Rate(Rate::Frames(rate)) => seconds(self.frames as f64 / *rate),
            Kind::Rate(Rate::Bits(rate)) => seconds(self.wire_bytes as f64 * 8.0 / *rate as f64),
            Kind::Capture { speed, round } => {
                let Some(time_ns) = time_ns else {
                    bail!("a packet has no timestamp, so --timing is not possible; use --rate");
                };
                let round = round.get_or_insert(Round {
                    first_ns: time_ns,
                    begin: Duration::ZERO,
                    last: Duration::ZERO,
                });
                // Captures of several interfaces are not always in order.
                let since = seconds(time_ns.saturating_sub(round.first_ns) as f64 / 1e9 / *speed);
                round.last = round.last.max(round.begin.saturating_add(since));
                round.last
            }
        };
        self.frames += 1;
        self.wire_bytes += wire_len(frame_len) as u64;
        Ok(due)
    }

    /// Begins another pass through the capture. Its first packet is due with the last packet of the previous
    /// pass.
    pub(super) fn next_round(&mut self) {
        if let Kind::Capture { round: Some(round), .. } = &mut self.kind {
            round.begin = round.last;
        }
    }
}

/// Converts seconds to a duration. No number causes a panic.
fn seconds(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_frames_bits_or_max() {
        assert_eq!(Rate::parse("1000/s"), Ok(Rate::Frames(1000.0)));
        assert_eq!(Rate::parse("0.5/s"), Ok(Rate::Frames(0.5)));
        assert_eq!(Rate::parse("100Mbps"), Ok(Rate::Bits(100_000_000)));
        assert_eq!(Rate::parse("max"), Ok(Rate::Max));
        for text in ["", "0/s", "-1/s", "nan/s", "inf/s", "1e300/s", "0Mbps", "fast", "1000"] {
            assert!(Rate::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn frames_are_due_by_number_by_length_or_by_the_capture() {
        let due = |mut pace: Pace, frames: &[(usize, u64)]| -> Vec<u64> {
            let ms = |&(len, time): &(usize, u64)| pace.due(len, Some(time)).unwrap().as_millis() as u64;
            frames.iter().map(ms).collect()
        };
        let frames = [(60, 5_000_000), (60, 7_000_000), (1480, 6_000_000), (60, 45_000_000)];
        assert_eq!(due(Pace::rate(Rate::Frames(100.0)), &frames), [0, 10, 20, 30]);
        assert_eq!(due(Pace::rate(Rate::Max), &frames), [0; 4]);
        assert_eq!(due(Pace::capture(2.0), &frames), [0, 1, 1, 20]);
        // A short frame takes 84 bytes on the wire, with preamble, frame check sequence and gap.
        assert_eq!(due(Pace::rate(Rate::Bits(84 * 8 * 100)), &frames), [0, 10, 20, 199]);
    }

    #[test]
    fn the_next_round_begins_where_the_last_one_ended() {
        let mut pace = Pace::capture(1.0);
        let due = |pace: &mut Pace, time| pace.due(60, Some(time)).unwrap().as_nanos() as u64;
        assert_eq!([due(&mut pace, 100), due(&mut pace, 150)], [0, 50]);
        pace.next_round();
        assert_eq!([due(&mut pace, 100), due(&mut pace, 150)], [50, 100]);
    }
}
