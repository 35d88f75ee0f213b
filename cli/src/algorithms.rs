//! Additions of a program to the command: congestion control, policies of paths and receivers, and rules of
//! switches; see [`main_with`](super::main_with).

use std::fmt;
use std::sync::OnceLock;
use std::time::Duration;

use roce_packet::{Qpn, Telemetry, TelemetryHop};
use roce_scenario::Own;
use roce_sim::net::Settings;
use roce_transport::congestion::{
    Ack, Algorithm, Congestion, CongestionControl, Custom, Loss, NotificationPoint, PathStart, Paths, Policy,
    PullStart, Rate, Start,
};
use roce_transport::{Instant, with_causes};

static OWN: OnceLock<Own> = OnceLock::new();

/// Stores what the program adds. It must be called once, before the command line is parsed.
pub(super) fn register(own: Own) {
    // A second call has no effect, because options may have been parsed already.
    let _ = OWN.set(own);
}

pub(super) fn registered() -> &'static Own {
    static NONE: Own = Own::NONE;
    OWN.get().unwrap_or(&NONE)
}

/// Parses the value of `--congestion`.
pub(super) fn parse_congestion(text: &str) -> Result<(Congestion, NotificationPoint), String> {
    // clap prints an error without its sources.
    Congestion::parse_among(text, &registered().algorithms).map_err(|error| with_causes(&error).to_string())
}

/// Parses the value of `--paths`.
pub(super) fn parse_paths(text: &str) -> Result<Paths, String> {
    Paths::parse_among(text, &registered().policies).map_err(|error| with_causes(&error).to_string())
}

/// The identity of an algorithm, policy or rules of the program: the fields of a new instance, and for an
/// algorithm a hash of its answers to a fixed sequence of events. Both are part of the configuration of a
/// run, because the name does not change with the code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Identity {
    /// The name.
    pub(super) name: String,
    /// The `Debug` output of a new instance.
    pub(super) instance: String,
    /// Hash of rates, windows and timers; 0 for policies and rules.
    pub(super) behavior: u64,
}

impl Identity {
    /// Returns the whole identity on one line.
    pub(super) fn text(&self) -> String {
        let instance = self.instance.replace(['\n', '\r'], " ");
        format!("{} {:016x} {instance}\n", self.name, self.behavior)
    }
}

/// Returns the identities of the algorithms, policies and rules of a network that the program added. The
/// version identifies those that exist without it.
pub(super) fn identities(settings: &Settings) -> Vec<Identity> {
    let hosts = || std::iter::once(&settings.host).chain(&settings.profiles);
    let algorithms = hosts().filter_map(|host| identity(&host.congestion));
    let policies = hosts().filter_map(|host| match &host.paths.policy {
        Policy::Custom(own) => Some(unmeasured(own, &PathStart { paths: host.paths.count(), seed: 0 })),
        _ => None,
    });
    let pulls = hosts().filter_map(|host| host.reads.policy.as_ref());
    let pulls = pulls.map(|pulls| unmeasured(pulls, &PullStart { line_rate: Rate::UNLIMITED }));
    let rules = settings.switch.rules.iter().map(|rules| unmeasured(rules, &0));
    let mut all: Vec<Identity> = Vec::new();
    for identity in algorithms.chain(policies).chain(pulls).chain(rules) {
        if !all.contains(&identity) {
            all.push(identity);
        }
    }
    all
}

/// Returns the identity of something whose answers are not hashed.
fn unmeasured<S: 'static, M: fmt::Debug + 'static>(own: &Custom<S, M>, start: &S) -> Identity {
    Identity { name: own.to_string(), instance: format!("{:?}", own.make(start)), behavior: 0 }
}

fn identity(congestion: &Congestion) -> Option<Identity> {
    let Algorithm::Custom(custom) = &congestion.algorithm else { return None };
    let start = Start {
        now: Instant::from_nanos(0),
        qpn: Qpn::new(0),
        mtu: 1024,
        line_rate: Rate::bits_per_second(100_000_000_000),
    };
    let mut control = custom.make(&start);
    let (name, instance) = (congestion.algorithm.to_string(), format!("{control:?}"));
    Some(Identity { name, instance, behavior: behavior(control.as_mut()) })
}

/// Returns the hash of the answers to 2,000 events in 20 ms: packets that leave and are acknowledged, marks,
/// notifications, losses and timers, in the order of a linear congruential generator.
fn behavior(control: &mut dyn CongestionControl) -> u64 {
    const EVENTS: u32 = 2_000;
    const PAYLOAD: u64 = 1_024;
    let (mut hash, mut random, mut now) = (0xcbf2_9ce4_8422_2325_u64, 1_u64, 0_u64);
    let (mut in_flight, mut sent) = (0_u64, 0_u64);
    for _ in 0..EVENTS {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let draw = random >> 33;
        now += draw % 20_000;
        let at = Instant::from_nanos(now);
        if control.next_timer().is_some_and(|timer| timer <= at) {
            control.on_timer(at);
        }
        match draw % 64 {
            0 => control.on_loss(at, if draw & 64 == 0 { Loss::Nak } else { Loss::Timeout }),
            1..=6 => control.on_cnp(at),
            7..=34 => {
                control.on_send(at, 1_106);
                (in_flight, sent) = (in_flight + PAYLOAD, sent + 1_106);
            }
            _ if in_flight == 0 => {}
            _ => {
                if control.wants_telemetry() {
                    let mut telemetry = Telemetry::default();
                    telemetry.push(TelemetryHop::new(100_000_000_000, now, sent, draw % 500_000), 1);
                    control.on_telemetry(at, &telemetry);
                }
                let bytes = in_flight.min(PAYLOAD * (1 + draw % 3));
                in_flight -= bytes;
                let rtt = Some(Duration::from_nanos(4_000 + draw % 60_000));
                control.on_ack(at, &Ack { bytes, in_flight, rtt, marked: draw & 128 == 0, hops: Some(3) });
            }
        }
        let timer = control.next_timer().map_or(u64::MAX, Instant::as_nanos);
        for value in [control.rate().get(), control.window().unwrap_or(u64::MAX), timer] {
            hash = (hash ^ value).wrapping_mul(0x0100_0000_01b3).rotate_left(29);
        }
    }
    hash
}

#[cfg(test)]
mod tests {
    use roce_sim::net::{NamedRules, SwitchRules};
    use roce_transport::congestion::parameters::NoParameters;
    use roce_transport::congestion::{PathPolicy, Pull, PullPolicy, Pulls};

    use super::*;

    #[derive(Debug)]
    struct Halves {
        rate: u64,
        divisor: u64,
    }

    impl CongestionControl for Halves {
        fn on_cnp(&mut self, _: Instant) {
            self.rate = (self.rate / self.divisor).max(1_000);
        }

        fn rate(&self) -> Rate {
            Rate::bits_per_second(self.rate)
        }
    }

    fn settings(divisor: u64) -> Settings {
        let make = move |start: &Start| -> Box<dyn CongestionControl> {
            Box::new(Halves { rate: start.line_rate.get(), divisor })
        };
        let mut settings = Settings::default();
        settings.host.congestion = Congestion::new(Algorithm::custom("halves", make));
        settings
    }

    #[test]
    fn an_identity_changes_with_the_code_and_not_by_itself() {
        let with = |divisor| identities(&settings(divisor));
        assert_eq!(with(2), with(2));
        assert_ne!(with(2)[0].behavior, with(3)[0].behavior);
        assert_eq!(with(2)[0].instance, "Halves { rate: 100000000000, divisor: 2 }");
        assert_eq!(identity(&Congestion::parse("swift").unwrap().0), None);
    }

    /// Checks that flows may have their own algorithms.
    #[test]
    fn algorithms_of_profiles_count() {
        let mut mixed = settings(2);
        mixed.profiles = [2, 3].map(|divisor| settings(divisor).host).to_vec();
        assert_eq!(identities(&mixed).len(), 2, "one of them twice");
        mixed.host.congestion = Congestion::none();
        assert_eq!(identities(&mixed).len(), 2);
    }

    #[derive(Debug)]
    #[expect(dead_code, reason = "part of the identity")]
    struct Nothing(u32);

    impl SwitchRules for Nothing {}

    impl PullPolicy for Nothing {
        fn turn(&mut self, now: Instant, _: &Pull) -> Instant {
            now
        }
    }

    impl PathPolicy for Nothing {
        fn next(&mut self, _: Instant) -> u16 {
            0
        }
    }

    #[test]
    fn policies_and_rules_count() {
        let with = |own: u32| {
            let mut settings = Settings::default();
            settings.host.paths = Paths::new(Policy::custom("first", move |_| Box::new(Nothing(own))));
            let pulls = Pulls::new("second", NoParameters, move |_, _| Box::new(Nothing(own)));
            settings.host.reads.policy = Some(pulls);
            let rules = NamedRules::new("third", NoParameters, move |_, _| Box::new(Nothing(own)));
            settings.switch.rules = Some(rules);
            identities(&settings).iter().map(Identity::text).collect::<Vec<String>>()
        };
        let hash = "0000000000000000";
        let expected = ["first", "second", "third"].map(|name| format!("{name} {hash} Nothing(7)\n"));
        assert_eq!(with(7), expected);
        assert_ne!(with(7), with(8));
    }
}
