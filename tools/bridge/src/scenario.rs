//! Scenario files: the options of `roce bridge` as TOML, or a scenario of the simulator whose switch the
//! bridge replaces (`docs/how-to/bridge.md`). An unknown key is an error.

use std::fmt;
use std::num::NonZeroU64;
use std::ops::Range;
use std::time::Duration;

use roce_fault::{FaultPlan, FaultPlanError};
use roce_scenario::{Load, Scenario as Network, ScenarioError, read_toml};
use roce_sim::net::Marking;
use roce_transport::units::{self, UnitError};
use serde::Deserialize;
use serde::de::IgnoredAny;
use toml::Spanned;

use super::network;
use super::settings::{QueueSettings, Settings, Side};

/// The contents of a scenario file.
#[derive(Debug, Default)]
pub struct Scenario {
    /// The settings of both directions.
    pub settings: Settings,
    /// The left device.
    pub left: Option<String>,
    /// The right device.
    pub right: Option<String>,
    /// The time after which the bridge ends.
    pub duration: Option<Duration>,
}

impl Scenario {
    /// Parses the text of a file. `load` returns the files that a scenario of the simulator names.
    ///
    /// # Errors
    ///
    /// The text is not TOML, or has unknown keys or invalid values.
    pub fn parse(text: &str, load: &Load<'_>) -> Result<Self, ScenarioError> {
        let kind: Kind = read_toml(text)?;
        let (file, base) = if kind.topology.is_some() {
            let network = Network::parse(text, load)?;
            let whole: Whole = read_toml(text)?;
            let pauses = whole.bridge.queue.as_ref().is_some_and(|queue| queue.get_ref().pfc.is_some());
            let port =
                network::port(&network, pauses).map_err(|problem| ScenarioError::at(text, None, problem))?;
            let seed = whole.bridge.seed.or(Some(network.settings.seed));
            (File { seed, ..whole.bridge }, port)
        } else {
            (read_toml(text)?, QueueSettings::default())
        };
        file.build(base).map_err(|(span, problem)| ScenarioError::at(text, Some(span), problem))
    }
}

/// The position and the reason of an error.
type Problem = (Range<usize>, String);

/// The key that distinguishes the two kinds of files.
#[derive(Debug, Deserialize)]
struct Kind {
    topology: Option<IgnoredAny>,
}

/// The part of a scenario of the simulator that the simulator does not read.
#[derive(Debug, Deserialize)]
struct Whole {
    #[serde(default)]
    bridge: File,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    seed: Option<u64>,
    duration: Option<Spanned<String>>,
    #[serde(default)]
    left: End,
    #[serde(default)]
    right: End,
    #[serde(default)]
    rule: Vec<Spanned<Rule>>,
    queue: Option<Spanned<Queue>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct End {
    device: Option<String>,
    fault: Option<Spanned<String>>,
}

/// The directions to which a table applies, by the origin of their packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Origin {
    /// Packets from the left.
    Left,
    /// Packets from the right.
    Right,
    /// All packets.
    #[default]
    Both,
}

impl Origin {
    /// Returns the sides where these packets come from.
    pub fn sides(self) -> impl Iterator<Item = Side> {
        Side::BOTH.into_iter().filter(move |side| match self {
            Self::Left => *side == Side::Left,
            Self::Right => *side == Side::Right,
            Self::Both => true,
        })
    }
}

/// The parts of a rule, named as in the text of a fault plan.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Rule {
    #[serde(default)]
    from: Origin,
    qp: Option<Word>,
    rqp: Option<Word>,
    psn: Option<Word>,
    rpsn: Option<Word>,
    opcode: Option<Word>,
    pass: Option<Word>,
    len: Option<Word>,
    after: Option<Word>,
    until: Option<Word>,
    chance: Option<Word>,
    times: Option<Word>,
    action: String,
}

/// A number, or a text such as `3-7`.
#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "a number or a text")]
enum Word {
    Number(u64),
    Text(String),
}

impl fmt::Display for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => number.fmt(f),
            Self::Text(text) => text.fmt(f),
        }
    }
}

/// The settings of the queue as text, from a file or the command line.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Queue {
    /// The packets that pass through this queue.
    #[serde(default)]
    pub from: Origin,
    /// The rate at which packets leave.
    pub rate: Option<String>,
    /// The delay of every packet.
    pub delay: Option<String>,
    /// The capacity of the queue of one priority.
    pub bytes: Option<String>,
    /// The queue length above which packets are marked with a probability.
    pub kmin: Option<String>,
    /// The queue length above which all packets are marked.
    pub kmax: Option<String>,
    /// The probability of a mark at `kmax`.
    pub pmax: Option<f64>,
    /// The queue length above which all packets are marked, instead of `kmin` and `kmax`.
    pub step: Option<String>,
    /// Whether to write a hop into in-band telemetry.
    pub telemetry: Option<bool>,
    /// Priorities whose sender is paused.
    pub pfc: Option<Vec<u8>>,
    /// The queue length above which the pause starts.
    pub xoff: Option<String>,
    /// The queue length at which the pause ends.
    pub xon: Option<String>,
}

impl Queue {
    /// Parses the values; `base` contains the values that are not given.
    ///
    /// # Errors
    ///
    /// A value is invalid. The error is a sentence.
    pub fn build(&self, base: &QueueSettings) -> Result<QueueSettings, String> {
        let bytes = |text: &Option<String>| read(text, units::size);
        let marking = match (bytes(&self.step)?, bytes(&self.kmin)?, bytes(&self.kmax)?, self.pmax) {
            (None, None, None, None) => base.marking,
            (Some(bytes), None, None, None) => Marking::Step { bytes },
            (None, Some(kmin), Some(kmax), Some(pmax)) => Marking::Red { kmin, kmax, pmax },
            _ => return Err("marking needs kmin, kmax and pmax together, or step alone".to_owned()),
        };
        let mut pfc = 0;
        for priority in self.pfc.iter().flatten() {
            if *priority > 7 {
                return Err(format!("pfc: priority {priority} is not 0 to 7"));
            }
            pfc |= 1 << priority;
        }
        let xoff_bytes = bytes(&self.xoff)?.unwrap_or(base.xoff_bytes);
        let rate = read(&self.rate, units::rate)?.map(|rate| NonZeroU64::new(rate).ok_or(NO_RATE));
        let settings = QueueSettings {
            rate: rate.transpose()?.or(base.rate),
            delay_ns: read(&self.delay, units::duration_ns)?.unwrap_or(base.delay_ns),
            limit_bytes: bytes(&self.bytes)?.unwrap_or(base.limit_bytes),
            marking,
            telemetry: self.telemetry.unwrap_or(base.telemetry),
            pfc,
            xoff_bytes,
            xon_bytes: bytes(&self.xon)?.unwrap_or(xoff_bytes / 5 * 4),
        };
        settings.problem().map_or(Ok(settings), Err)
    }
}

/// Parses an optional number with its unit.
fn read<T>(text: &Option<String>, parse: fn(&str) -> Result<T, UnitError>) -> Result<Option<T>, String> {
    text.as_deref().map(parse).transpose().map_err(|error| error.to_string())
}

/// The error for a queue without throughput.
const NO_RATE: &str = "a rate of 0 forwards nothing; leave it out to forward as fast as the device can";

impl Rule {
    /// Returns the rule in the syntax of fault plans.
    fn text(&self) -> String {
        let action = Some(Word::Text(self.action.clone()));
        let parts = [
            ("qp", &self.qp),
            ("rqp", &self.rqp),
            ("psn", &self.psn),
            ("rpsn", &self.rpsn),
            ("opcode", &self.opcode),
            ("pass", &self.pass),
            ("len", &self.len),
            ("after", &self.after),
            ("until", &self.until),
            ("chance", &self.chance),
            ("times", &self.times),
            ("action", &action),
        ];
        let given = parts.iter().filter_map(|(name, value)| Some(format!("{name}={}", value.as_ref()?)));
        format!("rule:{}", given.collect::<Vec<_>>().join(","))
    }
}

impl File {
    /// Builds the scenario. `base` is the queue of both directions unless the file sets it.
    fn build(self, base: QueueSettings) -> Result<Scenario, Problem> {
        let mut settings = Settings { seed: self.seed.unwrap_or_default(), ..Settings::default() };
        for side in Side::BOTH {
            settings.direction_mut(side).queue = base.clone();
        }
        // Rules come first, because they take precedence over chance.
        for rule in &self.rule {
            let plan: FaultPlan = rule
                .get_ref()
                .text()
                .parse()
                .map_err(|error: FaultPlanError| (rule.span(), error.to_string()))?;
            for side in rule.get_ref().from.sides() {
                settings.direction_mut(side).faults.rules.extend(plan.rules.iter().cloned());
            }
        }
        for (side, end) in [(Side::Left, &self.left), (Side::Right, &self.right)] {
            let Some(fault) = &end.fault else { continue };
            let plan: FaultPlan =
                fault.get_ref().parse().map_err(|error: FaultPlanError| (fault.span(), error.to_string()))?;
            let faults = &mut settings.direction_mut(side).faults;
            faults.rules.extend(plan.rules);
            faults.rates = plan.rates;
        }
        if let Some(queue) = &self.queue {
            let built = queue.get_ref().build(&base).map_err(|problem| (queue.span(), problem))?;
            for side in queue.get_ref().from.sides() {
                settings.direction_mut(side).queue = built.clone();
            }
        }
        let duration = match &self.duration {
            Some(text) => {
                let ns =
                    units::duration_ns(text.get_ref()).map_err(|error| (text.span(), error.to_string()))?;
                Some(Duration::from_nanos(ns))
            }
            None => None,
        };
        let (left, right) = (self.left.device, self.right.device);
        Ok(Scenario { settings, left, right, duration })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NO_FILES: &Load<'_> = &|name| Err(format!("there is no {name}"));

    #[test]
    fn a_file_sets_all_options() {
        let scenario = Scenario::parse(
            r#"
            seed = 7
            duration = "1.5s"
            [left]
            device = "raw:v0"
            fault = "drop=1%"
            [right]
            device = "tap:t0"
            [[rule]]
            from = "left"
            rqp = 1
            rpsn = "5-6"
            opcode = "RC_SEND_*"
            pass = 1
            action = "drop"
            [[rule]]
            action = "delay:10us"
            chance = "2%"
            [queue]
            from = "right"
            rate = "1Gbps"
            delay = "20us"
            bytes = "1MB"
            kmin = "5KB"
            kmax = "200KB"
            pmax = 0.01
            telemetry = true
            pfc = [3, 4]
            xoff = "500KB"
            "#,
            NO_FILES,
        )
        .unwrap();
        assert_eq!(scenario.settings.seed, 7);
        assert_eq!(scenario.duration, Some(Duration::from_millis(1500)));
        assert_eq!((scenario.left.as_deref(), scenario.right.as_deref()), (Some("raw:v0"), Some("tap:t0")));
        let plan = "drop=1%;rule:rqp=1,rpsn=5-6,opcode=RC_SEND_*,pass=1,action=drop;rule:chance=2%,action=delay:10us";
        assert_eq!(scenario.settings.left.faults.to_string(), plan);
        assert_eq!(scenario.settings.right.faults.to_string(), "rule:chance=2%,action=delay:10us");
        assert_eq!(scenario.settings.left.queue, QueueSettings::default());
        let queue = &scenario.settings.right.queue;
        assert_eq!(queue.rate.map(NonZeroU64::get), Some(1_000_000_000));
        assert_eq!((queue.delay_ns, queue.limit_bytes, queue.pfc), (20_000, 1_000_000, 0b11000));
        assert_eq!(queue.marking, Marking::Red { kmin: 5_000, kmax: 200_000, pmax: 0.01 });
        assert_eq!((queue.xoff_bytes, queue.xon_bytes), (500_000, 400_000));
        assert!(queue.telemetry && !scenario.settings.left.queue.telemetry);
    }

    #[test]
    fn errors_name_their_line() {
        for (text, line, part) in [
            ("seed = 1\nsped = 2\n", 2, "unknown field `sped`"),
            ("[left]\ndevice = \"raw:a\"\nrate = \"1Gbps\"\n", 3, "unknown field `rate`"),
            ("[[rule]]\npsn = 5\n", 1, "missing field `action`"),
            ("\n[[rule]]\npsn = \"x\"\naction = \"drop\"\n", 2, "psn=`x`"),
            ("[[rule]]\nfrom = \"top\"\naction = \"drop\"\n", 2, "unknown variant `top`"),
            ("[queue]\nrate = \"fast\"\n", 1, "\"fast\" is not a rate"),
            ("[queue]\nkmin = \"5KB\"\n", 1, "kmin, kmax and pmax together"),
            ("[queue]\npfc = [8]\n", 1, "priority 8 is not 0 to 7"),
            ("[queue]\ntelemetry = true\n", 1, "set a rate as well"),
            ("[left]\nfault = \"drop=2\"\n", 2, "drop=`2`"),
            ("duration = \"1\"\n", 1, "\"1\" is not a time"),
            ("[left\n", 1, ""),
        ] {
            let error = Scenario::parse(text, NO_FILES).unwrap_err();
            assert!(error.line == Some(line) && error.reason.contains(part), "{text}: {error}");
        }
    }
    const NETWORK: &str = r#"
        name = "two to one"
        seed = 9
        [topology]
        kind = "star"
        hosts = 3
        rate = "200Mbps"
        delay = "50us"
        [switch]
        buffer = "3MB"
        pfc = []
        marking = { kmin = "5KB", kmax = "200KB", pmax = 0.01 }
        [[flows]]
        kind = "pair"
        from = "h0"
        to = "h2"
        bytes = "1MB"
        [bridge.left]
        device = "raw:m0"
        fault = "drop=1%"
    "#;

    #[test]
    fn a_scenario_of_the_simulator_is_one_of_the_bridge() {
        let scenario = Scenario::parse(NETWORK, NO_FILES).unwrap();
        assert_eq!((scenario.settings.seed, scenario.left.as_deref()), (9, Some("raw:m0")));
        assert_eq!(scenario.settings.left.faults.to_string(), "drop=1%");
        for side in Side::BOTH {
            let queue = &scenario.settings.direction(side).queue;
            assert_eq!(queue.rate.map(NonZeroU64::get), Some(200_000_000));
            assert_eq!((queue.delay_ns, queue.limit_bytes, queue.pfc), (50_000, 1_500_000, 0));
            assert!(queue.telemetry, "as the switches of the simulator do");
            assert_eq!(queue.marking, Marking::Red { kmin: 5_000, kmax: 200_000, pmax: 0.01 });
        }
        // The settings of the bridge take precedence in their direction.
        let other = format!("{NETWORK}[bridge.queue]\nfrom = \"right\"\nstep = \"9KB\"\nrate = \"1Gbps\"\n");
        let scenario = Scenario::parse(&other, NO_FILES).unwrap();
        let [left, right] = Side::BOTH.map(|side| scenario.settings.direction(side).queue.clone());
        assert_eq!(left.rate.map(NonZeroU64::get), Some(200_000_000));
        assert_eq!((right.rate.map(NonZeroU64::get), right.delay_ns), (Some(1_000_000_000), 50_000));
        assert_eq!(right.marking, Marking::Step { bytes: 9_000 });
    }

    #[test]
    fn marks_are_those_of_the_port_of_the_switch() {
        let marking = |keys: &str, ports: &str| {
            let text = NETWORK.replace("pfc = []", &format!("pfc = []\n{keys}"));
            Scenario::parse(&(text + ports), NO_FILES).unwrap().settings.left.queue.marking
        };
        // The thresholds apply at 800 Mb/s, and the links have a quarter of that rate.
        let scaled = Marking::Red { kmin: 1_250, kmax: 50_000, pmax: 0.01 };
        assert_eq!(marking("marking_rate = \"800Mbps\"", ""), scaled);
        let port = "\n[[switch.port]]\nrate = \"200Mbps\"\nmarking = { step = \"7KB\" }\n";
        assert_eq!(marking("", port), Marking::Step { bytes: 7_000 });
        let other_priority = format!("{port}priority = 5\n");
        assert_eq!(marking("", &other_priority), Marking::Red { kmin: 5_000, kmax: 200_000, pmax: 0.01 });
    }

    #[test]
    fn settings_of_the_switch_and_of_all_its_ports_are_those_of_the_bridge() {
        let queue = |ports: &str| {
            let text = format!("{NETWORK}\n[[switch.port]]\n{ports}\n");
            Scenario::parse(&text, NO_FILES).map(|scenario| scenario.settings.left.queue.clone())
        };
        let usual = Scenario::parse(NETWORK, NO_FILES).unwrap().settings.left.queue.limit_bytes;
        assert_eq!(queue("switch = \"s0\"\nbuffer = \"1MB\"").unwrap().limit_bytes, 500_000);
        assert_eq!(
            queue("to = \"h*\"\nlossy_alpha = 0.25\nrate = \"200Mbps\"").unwrap().limit_bytes,
            usual * 2 / 5
        );
        let same = queue("to = \"h1\"\nwatchdog = { after = \"1ms\", restore = \"1ms\" }").unwrap();
        assert_eq!(same.limit_bytes, usual, "a bridge has no watchdog");
        for different in ["lossy_alpha = 0.25", "marking = { step = \"7KB\" }", "pfc = [3]"] {
            let error = queue(&format!("to = \"h1\"\n{different}")).unwrap_err().to_string();
            assert!(error.contains("cannot distinguish the ports"), "{different}: {error}");
        }
        let error = queue("pfc = [3]").unwrap_err().to_string();
        assert!(error.contains("pfc = []"), "{error}");
    }

    #[test]
    fn a_network_that_is_not_one_port_is_refused() {
        for (from, to, line, part) in [
            ("hosts = 3", "hosts = 1", Some(13), "no host h2"),
            ("hosts = 3", "hosts = 3\n        speed = 1", Some(7), "unknown field `speed`"),
            ("fault = ", "faults = ", Some(20), "unknown field `faults`"),
            ("\"star\"\n        hosts = 3", "\"ring\"\n        switches = 3", None, "kind = \"star\""),
            ("        pfc = []\n", "", None, "pfc = []"),
            (
                "[[flows]]",
                "[[topology.faults]]\n        plan = \"drop=1%\"\n        [[flows]]",
                None,
                "[[bridge.rule]]",
            ),
        ] {
            let text = NETWORK.replace(from, to);
            assert_ne!(text, NETWORK);
            let error = Scenario::parse(&text, NO_FILES).unwrap_err();
            assert!(error.line == line && error.reason.contains(part), "{text}: {error}");
        }
        let paused = NETWORK.replace("        pfc = []\n", "") + "[bridge.queue]\npfc = [3]\n";
        assert_eq!(Scenario::parse(&paused, NO_FILES).unwrap().settings.left.queue.pfc, 8);
    }
}
