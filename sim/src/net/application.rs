//! The applications of hosts.

use std::fmt;
use std::str::FromStr;

use roce_transport::units::{self, UnitError};

use super::time::Time;

/// The longest time that an application computes or spins.
const LONGEST: Time = Time::from_us(1_000_000);

/// The way in which the application of a host uses the library. Except for [`Immediate`](Self::Immediate),
/// the threads of its process handle packets, deadlines and completions, as the waiting policy of the library
/// decides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Application {
    /// The host handles each packet, deadline and completion at once, as a NIC in hardware would.
    #[default]
    Immediate,
    /// Polls its completion queue all the time.
    Polling,
    /// Requests a notification when its queue is empty, and waits for it in the library.
    Events {
        /// The time for which a wait spins before it sleeps, and again after each packet.
        spin: Time,
    },
    /// Computes, polls its completion queue once, computes again, and so on.
    Computing {
        /// The time of each computation.
        time: Time,
    },
}

/// An error in the text of an application.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ApplicationError {
    /// The application does not exist.
    #[error(
        "there is no application {name:?}; there are immediate, polling, events, events:TIME and \
         computing:TIME"
    )]
    Unknown {
        /// The given name.
        name: String,
    },
    /// The text after the colon is not a time.
    #[error(transparent)]
    Time(#[from] UnitError),
}

impl Application {
    /// Returns why the application is impossible.
    #[must_use]
    pub fn problem(self) -> Option<&'static str> {
        let good = match self {
            Self::Immediate | Self::Polling => true,
            Self::Events { spin } => spin <= LONGEST,
            Self::Computing { time } => time > Time::ZERO && time <= LONGEST,
        };
        (!good).then_some("its time must be above 0 and at most 1 s")
    }
}

/// Reads `immediate`, `polling`, `events`, `events:50us` or `computing:20us`. With `events`, waits do not
/// spin.
impl FromStr for Application {
    type Err = ApplicationError;

    fn from_str(text: &str) -> Result<Self, ApplicationError> {
        let time = |text: &str| units::duration_ps(text).map(Time::from_ps);
        match text.split_once(':') {
            None if text == "immediate" => Ok(Self::Immediate),
            None if text == "polling" => Ok(Self::Polling),
            None if text == "events" => Ok(Self::Events { spin: Time::ZERO }),
            Some(("events", spin)) => Ok(Self::Events { spin: time(spin)? }),
            Some(("computing", of)) => Ok(Self::Computing { time: time(of)? }),
            _ => Err(ApplicationError::Unknown { name: text.to_owned() }),
        }
    }
}

/// Writes the text that [`FromStr`] reads.
impl fmt::Display for Application {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, time) = match self {
            Self::Immediate => return f.write_str("immediate"),
            Self::Polling => return f.write_str("polling"),
            Self::Events { spin: Time::ZERO } => return f.write_str("events"),
            Self::Events { spin } => ("events", spin.as_ps()),
            Self::Computing { time } => ("computing", time.as_ps()),
        };
        let units = [(1_000_000, "us"), (1_000, "ns"), (1, "ps")];
        let (scale, unit) = units.into_iter().find(|(scale, _)| time % scale == 0).unwrap_or((1, "ps"));
        write!(f, "{name}:{}{unit}", time / scale)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_application_is_read_as_it_is_written() {
        for text in ["immediate", "polling", "events", "events:50us", "computing:20us", "computing:1500ns"] {
            let application: Application = text.parse().unwrap();
            assert_eq!((application.to_string(), application.problem()), (text.to_owned(), None));
        }
        assert_eq!("computing:1ms".parse::<Application>().unwrap().to_string(), "computing:1000us");
        assert_eq!("events:0us".parse(), Ok(Application::Events { spin: Time::ZERO }));
    }

    #[test]
    fn what_does_not_exist_is_answered_with_what_does() {
        let error = |text: &str| text.parse::<Application>().unwrap_err().to_string();
        let known = "there are immediate, polling, events, events:TIME and computing:TIME";
        for text in ["", "poll", "computing", "polling:5us", "Events"] {
            assert_eq!(error(text), format!("there is no application {text:?}; {known}"));
        }
        assert!(error("computing:20").contains("20"), "{}", error("computing:20"));
        let problem = |text: &str| text.parse::<Application>().unwrap().problem();
        assert!(problem("computing:0us").is_some() && problem("events:2s").is_some());
    }
}
