//! Workloads in formats of other projects: what is common to all of them, and random changes of each sample.
//!
//! - `ROCE_SEEDS=100000` runs this many seeds instead of the default;
//! - `ROCE_SEED=123` runs one seed.

use roce_scenario::{Own, Scenario, contents};
use roce_sim::net::{Results, Time};

use super::{import_chakra, import_goal, import_htsim, import_simai, results_of};

/// The default number of random changes of each sample.
const SEEDS: u64 = 300;
/// Sizes of a network that is built after a change. Larger ones are only read.
const MOST_LINKS: usize = 300;
const MOST_FLOWS: usize = 500;

/// A file by name.
pub(super) type File = (String, Vec<u8>);

/// Parses a scenario with files.
pub(super) fn parse(text: &str, files: &[File]) -> Result<Scenario, String> {
    let load = |name: &str| {
        let found = files.iter().find(|(known, _)| known == name);
        found.map(|(_, bytes)| contents(bytes.clone())).ok_or_else(|| format!("cannot read {name}"))
    };
    Scenario::parse(text, &load).map_err(|error| error.to_string())
}

/// A scenario of a star with a workload.
pub(super) fn star(hosts: usize, table: &str) -> String {
    format!("name = \"x\"\n[topology]\nkind = \"star\"\nhosts = {hosts}\n[[workload]]\n{table}\n")
}

/// Runs a scenario, which must complete.
#[track_caller]
pub(super) fn run(scenario: &Scenario) -> Results {
    let results = results_of(scenario);
    super::assert_lossless(&results);
    assert!(results.task_ends.iter().all(Option::is_some), "{:?}", results.task_ends);
    results
}

/// Returns source, destination and bytes of each flow in order.
pub(super) fn pairs(scenario: &Scenario) -> Vec<(u32, u32, u64)> {
    let mut all: Vec<_> =
        scenario.flows.iter().map(|flow| (flow.source, flow.destination, flow.bytes)).collect();
    all.sort_unstable();
    all
}

/// Returns the time of the first post of the flow between two hosts.
#[track_caller]
pub(super) fn start(results: &Results, source: u32, destination: u32) -> Time {
    let ends = |flow: &&roce_sim::net::FlowResult| {
        (flow.spec.source, flow.spec.destination) == (source, destination)
    };
    let found: Vec<_> = results.flows.iter().filter(ends).collect();
    assert_eq!(found.len(), 1, "flows from {source} to {destination}");
    found[0].spec.start
}

/// Workloads wait for other tables and others for them, each rank for itself.
#[test]
fn workloads_wait_for_tables_and_tables_for_workloads() {
    let table = "name = \"w\"\nkind = \"goal\"\ntext = \"num_ranks 2\\nrank 0 {\\na: send 9b to 1\\n}\\nrank 1 {\\nb: recv 9b \
                 from 0\\n}\"\nafter = [\"first\"]\nhosts = [\"h2\", \"h1\"]\nstart = \"3us\"";
    let flows = "[[flows]]\nname = \"first\"\nkind = \"pair\"\nfrom = \"h1\"\nto = \"h2\"\nbytes = 1000\n\
                 [[flows]]\nkind = \"pair\"\nfrom = \"h1\"\nto = \"h0\"\nbytes = 1000\nafter = [\"w\"]\ncompute = \"1us\"\n";
    let text = star(3, table) + flows;
    let scenario = parse(&text, &[]).unwrap();
    assert_eq!(pairs(&scenario), [(1, 0, 1000), (1, 2, 1000), (2, 1, 9)]);
    let results = run(&scenario);
    let (first, workload, last) = (start(&results, 1, 2), start(&results, 2, 1), start(&results, 1, 0));
    assert_eq!(first, Time::ZERO);
    assert_eq!(workload, Time::from_us(3), "h2 has everything before");
    assert!(last > workload + Time::from_us(3) && last < workload + Time::from_us(4), "{last}");
    let error = parse(&text.replace("\"h2\", \"h1\"", "\"h0\", \"h1\""), &[]).unwrap_err();
    assert_eq!(error, "line 5: after: no flow of first begins or ends at h0, so h0 cannot detect its end");
}

#[test]
fn a_workload_has_only_its_own_keys() {
    let error = |table: &str| parse(&star(4, table), &[]).unwrap_err();
    assert_eq!(error("kind = \"goal\""), "line 5: a workload needs either file or text");
    assert_eq!(error("kind = \"goal\"\nfile = \"x\""), "line 5: cannot read x");
    assert_eq!(
        error("kind = \"goal\"\ntext = \"\"\nalgorithm = \"ring\""),
        "line 5: this kind of workload has no `algorithm`"
    );
    assert_eq!(error("kind = \"chakra\"\ntext = \"\""), "line 5: this kind of workload has no `text`");
    assert_eq!(
        error("kind = \"chakra\"\nfile = \"x\"\ndimensions = [2, 3]"),
        "line 5: dimensions: the product of [2, 3] must be the number of ranks, 4"
    );
    assert_eq!(error("kind = \"simai\"\ntext = \"\"\nrepeat = 0"), "line 5: repeat: it must be 1 to 100000");
    assert!(error("kind = \"goat\"").starts_with("line 6: unknown variant `goat`"));
}

/// The text of a report contains files of any contents.
#[test]
fn a_scenario_with_its_files_is_one_text() {
    let (text, files) = import_chakra::sample();
    let load = |name: &str| {
        let found = files.iter().find(|(known, _)| known == name);
        found.map(|(_, bytes)| contents(bytes.clone())).ok_or_else(|| name.to_owned())
    };
    let whole = Scenario::parse_whole_with(&text, &[], &load, &Own::NONE).unwrap();
    assert!(whole.text.contains("base64:"), "{}", whole.text);
    let again = Scenario::parse(&whole.text, &|name| Err(format!("{name} is not in the text"))).unwrap();
    assert_eq!(again, whole.scenario);
}

#[test]
fn a_text_format_refuses_bytes() {
    let text = star(2, "kind = \"goal\"\nfile = \"x.goal\"");
    let error = parse(&text, &[("x.goal".to_owned(), vec![1, 0xff])]).unwrap_err();
    assert_eq!(error, "line 5: x.goal is not UTF-8 text");
}

/// Random numbers from a seed (xorshift).
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % limit.max(1) as u64) as usize
    }
}

/// Changes a digit, or changes, removes, repeats or inserts some bytes.
fn change(bytes: &mut Vec<u8>, random: &mut Random) {
    if random.below(2) == 0 {
        let from = random.below(bytes.len());
        if let Some(digit) = bytes.iter_mut().skip(from).find(|byte| byte.is_ascii_digit()) {
            *digit = b'0' + random.below(10) as u8;
            return;
        }
    }
    for _ in 0..=random.below(3) {
        let at = random.below(bytes.len());
        let end = (at + random.below(20)).min(bytes.len());
        match random.below(5) {
            0 if !bytes.is_empty() => bytes[at] ^= 1 << random.below(8),
            1 if !bytes.is_empty() => bytes[at] = b"0123456789-: \n{}"[random.below(16)],
            2 => drop(bytes.drain(at..end)),
            3 => {
                let part = bytes[at..end].to_vec();
                let to = random.below(bytes.len() + 1);
                bytes.splice(to..to, part);
            }
            _ => bytes.insert(at, random.below(256) as u8),
        }
    }
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|value| value.parse().unwrap_or_else(|_| panic!("{name} is not a number")))
}

/// Prints how to repeat a seed that failed.
struct Replay(u64);

impl Drop for Replay {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!(
                "seed {0} failed; replay with: ROCE_SEED={0} cargo test -p roce-scenario --test scenarios import:: -- \
                 --nocapture",
                self.0
            );
        }
    }
}

#[test]
fn random_changes_of_samples_are_refused_or_simulated() {
    let samples = [
        import_htsim::topology_sample(),
        import_htsim::connections_sample(),
        import_goal::sample(),
        import_chakra::sample(),
        import_simai::sample(),
    ];
    let seeds = match number("ROCE_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("ROCE_SEEDS").unwrap_or(SEEDS),
    };
    let mut simulated = [0; 5];
    for seed in seeds.clone() {
        let _replay = Replay(seed);
        for ((text, files), simulated) in samples.iter().zip(&mut simulated) {
            let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(0x2545_f491));
            let mut files = files.clone();
            let which = random.below(files.len());
            change(&mut files[which].1, &mut random);
            match parse(text, &files) {
                Err(reason) => assert!(!reason.is_empty()),
                Ok(scenario) => {
                    let is_small =
                        scenario.topology.links.len() <= MOST_LINKS && scenario.flows.len() <= MOST_FLOWS;
                    match is_small.then(|| scenario.simulation()) {
                        Some(Ok(mut simulation)) => {
                            simulation.run(300);
                            *simulated += 1;
                        }
                        Some(Err(error)) => assert!(!error.to_string().is_empty()),
                        None => {}
                    }
                }
            }
        }
    }
    println!("simulated: {simulated:?} of {seeds:?}");
    let is_long = seeds.end - seeds.start >= SEEDS;
    assert!(!is_long || simulated.iter().all(|count| *count > 0), "{simulated:?}");
}
