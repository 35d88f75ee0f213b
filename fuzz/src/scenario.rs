//! A scenario from an untrusted file, and its simulation.
//!
//! The text after a line of `%%%` is the content of every file that the scenario names.
//!
//! Properties that are checked:
//!
//! - no panic, and no memory without bound;
//! - the error of a rejected scenario has a reason, and a line that exists in the text;
//! - a network that can be built runs, and two runs of it are the same;
//! - setting a value to its current value changes nothing.

use roce_scenario::Scenario;
use roce_sim::net::Results;

/// Maximum number of simulated events.
const MOST_EVENTS: u64 = 300;
/// Maximum sizes of a network that is built. Larger ones are only read, because they find nothing new.
const MOST_LINKS: usize = 200;
const MOST_FLOWS: usize = 500;

/// Runs the target on an input, see the module.
pub fn run(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let (text, file) = text.split_once("\n%%%\n").unwrap_or((text, ""));
    let load = |name: &str| if name.is_empty() { Err("no name".to_owned()) } else { Ok(file.to_owned()) };
    let scenario = match Scenario::parse(text, &load) {
        Ok(scenario) => scenario,
        Err(error) => {
            assert!(!error.reason.is_empty(), "{error:?}");
            let lines = text.matches('\n').count() + 1;
            assert!(error.line.is_none_or(|line| (1..=lines).contains(&line)), "{error:?} of {lines} lines");
            return;
        }
    };
    let same = [("name".to_owned(), format!("{:?}", scenario.name))];
    if let Ok(again) = Scenario::parse_with(text, &same, &load) {
        assert_eq!(again.flows, scenario.flows, "with a name set from outside");
    }
    if scenario.topology.links.len() > MOST_LINKS || scenario.flows.len() > MOST_FLOWS {
        return;
    }
    if let Some(first) = results(&scenario) {
        assert_eq!(Some(first), results(&scenario), "two runs");
    }
}

fn results(scenario: &Scenario) -> Option<Results> {
    let built = scenario.simulation();
    let mut simulation = match built {
        Ok(simulation) => simulation,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            return None;
        }
    };
    simulation.run(MOST_EVENTS);
    Some(simulation.results())
}
