//! Simulations of the page, compared with those of `roce-scenario`.

use std::collections::VecDeque;
use std::sync::Mutex;

use roce_scenario::{SHIPPED, Scenario};
use roce_sim::net::{Results, Time};
use roce_transport::congestion::Congestion;
use roce_web::congestion::{Run, algorithms, scenarios};
use serde_json::{Value, json};

/// Events of one piece of a run: few, so that points arrive in many pieces.
const STRIDE: u64 = 50_000;

fn parsed(text: &str) -> Value {
    serde_json::from_str(text).expect("JSON")
}

/// Returns the results of the scenario as the command runs it.
fn directly(text: &str) -> Results {
    let scenario = Scenario::parse(text, &|file| Err(format!("{file} is not here"))).expect("a scenario");
    let estimate = scenario.data_packets();
    let mut simulation = scenario.simulation().expect("a network");
    simulation.run_to_end();
    let results = simulation.results();
    let again: u64 = results.flows.iter().map(|flow| flow.counts.retransmitted).sum();
    let first = results.data_packets - again;
    // The parts of a collective are not whole packets.
    let most = estimate + estimate / 100;
    assert!(first <= most, "{}: {first} packets of an estimate of {estimate}", scenario.name);
    results
}

/// Runs a scenario in pieces; returns all points that the pieces returned, and the results.
fn in_pieces(text: &str, sets: &str) -> (Value, Value) {
    let mut run = Run::new(text, sets).expect("a run");
    let mut all = json!({ "rates": [], "queues": [] });
    let (mut goes_on, mut pieces) = (true, 0);
    let mut before = 0.0;
    while goes_on {
        goes_on = run.run(STRIDE);
        let progress = parsed(&run.progress());
        let time = progress["time_us"].as_f64().expect("a time");
        assert!(time >= before && progress["share"].as_f64() <= Some(1.0), "{progress}");
        before = time;
        for (key, points) in parsed(&run.take()).as_object_mut().expect("an object") {
            let points = points.as_array_mut().expect("a list");
            pieces += usize::from(key == "rates" && !points.is_empty());
            all[key].as_array_mut().expect("a list").append(points);
        }
    }
    assert_eq!(parsed(&run.take()), json!({ "rates": [], "queues": [] }), "each point is returned once");
    let results = parsed(&run.results());
    let is_long = results["events"].as_u64() > Some(10 * STRIDE);
    assert!(!is_long || pieces > 2, "the rates came in {pieces} pieces");
    assert!(!run.run(STRIDE), "the run is over");
    assert_eq!(parsed(&run.progress())["events"], results["events"]);
    (all, results)
}

fn micros(time: Time) -> f64 {
    time.as_ps() as f64 / 1e6
}

/// Returns the series of results in the form of the page, through text as there.
fn series(results: &Results) -> Value {
    let rates: Vec<Value> = results
        .rates
        .iter()
        .map(|point| {
            json!([
                micros(point.time),
                point.flow,
                point.goodput_bps,
                point.rate_bps,
                point.target_bps,
                point.alpha
            ])
        })
        .collect();
    let queues: Vec<Value> = results
        .queues
        .iter()
        .map(|point| json!([micros(point.time), point.port, point.bytes, micros(point.paused)]))
        .collect();
    parsed(&json!({ "rates": rates, "queues": queues }).to_string())
}

fn check(name: &str, text: &str) {
    let expected = directly(text);
    let (points, results) = in_pieces(text, "[]");
    assert_eq!(results["trace_hash"], format!("{:016x}", expected.trace_hash), "{name}");
    assert_eq!(points, series(&expected), "{name}");
    assert_eq!(results["end_us"], micros(expected.end), "{name}");
    assert_eq!(results["data_packets"], expected.data_packets, "{name}");
    let states = |flow: usize| (&results["flows"][flow]["state"], &results["flows"][flow]["packets"]);
    for (number, flow) in expected.flows.iter().enumerate() {
        let (state, packets) = states(number);
        assert_eq!(
            (state, packets),
            (&flow.state.name().into(), &flow.counts.packets.into()),
            "{name} {number}"
        );
    }
    assert_eq!(results["ports"].as_array().map(Vec::len), Some(expected.ports.len()), "{name}");
    assert_eq!(results["command"], format!("roce sim {name}"));
}

/// Compares the scenarios that fit a page and have at most this number of packets. Returns how many there
/// are.
fn compare(most_packets: u64) -> usize {
    let list = parsed(&scenarios());
    let fits = list.as_array().expect("a list").iter().filter(|scenario| scenario["fits"] == true);
    let texts = fits
        .map(|scenario| [&scenario["name"], &scenario["text"]].map(|text| text.as_str().unwrap().to_owned()));
    let is_short = |text: &str| {
        Scenario::parse(text, &|_| Err(String::new())).expect("a scenario").data_packets() <= most_packets
    };
    let chosen: VecDeque<[String; 2]> = texts.filter(|[_, text]| is_short(text)).collect();
    let count = chosen.len();
    let left = Mutex::new(chosen);
    let next = || left.lock().unwrap().pop_front();
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some([name, text]) = next() {
                    check(&name, &text);
                }
            });
        }
    });
    count
}

#[test]
fn short_scenarios_run_as_in_the_command() {
    assert!(compare(100_000) >= 4);
}

#[test]
#[ignore = "takes a minute"]
fn every_scenario_that_fits_runs_as_in_the_command() {
    assert!(compare(u64::MAX) >= 20);
}

#[test]
fn the_list_has_every_scenario_and_says_which_are_too_large() {
    let list = parsed(&scenarios());
    let list = list.as_array().unwrap();
    let names: Vec<&str> = list.iter().map(|scenario| scenario["name"].as_str().unwrap()).collect();
    assert_eq!(names, SHIPPED.iter().map(|(name, _)| *name).collect::<Vec<_>>());
    let of = |name: &str| list.iter().find(|scenario| scenario["name"] == name).unwrap();
    assert_eq!((&of("two-to-one")["fits"], &of("two-to-one")["why_not"]), (&json!(true), &Value::Null));
    let large = of("permutation-8192");
    assert_eq!(large["fits"], false);
    assert!(large["why_not"].as_str().unwrap().ends_with("; `roce sim` runs it"), "{}", large["why_not"]);
    assert!(list.iter().all(|one| !one["description"].as_str().unwrap().is_empty()));
    assert_eq!(of("incast")["sweeps"][0]["name"], "flows.0.degree");
}

#[test]
fn values_are_set_as_in_the_command() {
    let text = roce_scenario::shipped("pause-storm").unwrap();
    let sets = [("seed".to_owned(), "7".to_owned()), ("host.congestion".to_owned(), "swift".to_owned())];
    let scenario = Scenario::parse_with(text, &sets, &|_| Err(String::new())).unwrap();
    let mut simulation = scenario.simulation().unwrap();
    simulation.run_to_end();
    let (_, results) = in_pieces(text, r#"[["seed","7"],["host.congestion","swift"]]"#);
    assert_eq!(results["trace_hash"], format!("{:016x}", simulation.results().trace_hash));
    assert_eq!(results["command"], "roce sim pause-storm --set seed=7 --set host.congestion=swift");
}

#[test]
fn wrong_scenarios_are_refused_with_the_line() {
    let text = "name = \"a\"\n[topology]\nkind = \"star\"\nhosts = 3\n[[flows]]\nkind = \"incast\"\ndegree = 3\n\
                to = \"h2\"\nbytes = \"1KB\"\n";
    let refused = |text: &str, sets: &str| Run::new(text, sets).err().expect("an error");
    assert!(refused(text, "[]").starts_with("line 5: "), "{}", refused(text, "[]"));
    assert!(refused("name = ", "[]").starts_with("line 1: "), "{}", refused("name = ", "[]"));
    let good = text.replace("degree = 3", "degree = 2");
    assert!(Run::new(&good, "[]").is_ok());
    let error = refused(&good, r#"[["host.congestion","reno"]]"#);
    assert!(error.contains("with host.congestion=reno: there is no congestion control"), "{error}");
    assert!(refused(&good, "{}").contains("JSON list of pairs"), "{}", refused(&good, "{}"));
    let with_file = format!("{good}[[flows]]\nkind = \"trace\"\nfile = \"flows.txt\"\n");
    assert!(refused(&with_file, "[]").contains("put its text into the table [files]"));
}

/// The memory is checked before the network is built, because a page that needs too much is ended.
#[test]
fn a_network_that_cannot_fit_is_refused_before_it_is_built() {
    let text = "name = \"a\"\n[topology]\nkind = \"star\"\nhosts = 65000\n\
                [[flows]]\nkind = \"permutation\"\nbytes = \"1KB\"\n";
    let error = Run::new(text, "[]").err().expect("an error");
    assert!(
        error.starts_with("the run needs at least ") && error.contains("make the network smaller"),
        "{error}"
    );
}

/// A rule acts in both directions of a link, unless a set value selects one.
#[test]
fn faults_of_one_direction_are_selected_by_a_value() {
    let text = "name = \"a\"\n[topology]\nkind = \"star\"\nhosts = 2\n[[topology.faults]]\n\
                link = [\"h0\", \"s0\"]\nplan = \"rule:pass=1,times=1,action=drop\"\n\
                [[flows]]\nkind = \"pair\"\nfrom = \"h0\"\nto = \"h1\"\nbytes = \"50KB\"\n";
    let lost = |sets: &str| {
        let (_, results) = in_pieces(text, sets);
        let ports = results["ports"].as_array().unwrap().clone();
        let lost = ports.into_iter().filter(|port| port["dropped"] != json!({}));
        lost.map(|port| port["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(lost("[]"), ["h0->s0", "s0->h0"]);
    assert_eq!(lost(r#"[["topology.faults.0.from","h0"]]"#), ["h0->s0"]);
    assert_eq!(lost(r#"[["topology.faults.0.from","s0"]]"#), ["s0->h0"]);
}

#[test]
fn a_run_that_is_ended_early_has_results() {
    let mut run = Run::new(roce_scenario::shipped("two-to-one").unwrap(), "[]").unwrap();
    assert!(run.run(STRIDE));
    let progress = parsed(&run.progress());
    assert_eq!(progress["until_us"], 60_000.0);
    assert!(progress["share"].as_f64().unwrap() < 1.0, "{progress}");
    let results = parsed(&run.results());
    assert!(results["end_us"].as_f64().unwrap() < 60_000.0, "{results}");
    assert_eq!(results["flows"][0]["state"], "running");
    assert!(!run.run(STRIDE));
    let names = parsed(&run.names());
    assert_eq!(
        names["flows"][1],
        json!({ "number": 1, "source": "h1", "destination": "h2", "bytes": 1_000_000_000 })
    );
    assert_eq!(names["ports"].as_array().unwrap().len(), 6);
}

/// Returns the algorithms of the page, each with its name.
fn described() -> Vec<(String, Value)> {
    let list = parsed(&algorithms());
    let named = |algorithm: &Value| (algorithm["name"].as_str().unwrap().to_owned(), algorithm.clone());
    list.as_array().unwrap().iter().map(named).collect()
}

/// The sliders show the values of a preset, so each of its values set alone has the effect of the preset.
#[test]
fn the_values_of_a_preset_have_its_effect() {
    let mut presets = Vec::new();
    for (name, algorithm) in described() {
        let keys: Vec<&Value> =
            algorithm["parameters"].as_array().unwrap().iter().map(|parameter| &parameter["key"]).collect();
        for preset in algorithm["presets"].as_array().unwrap() {
            let word = preset["name"].as_str().unwrap();
            let values = preset["values"].as_object().unwrap();
            assert!(keys.iter().all(|key| values.contains_key(key.as_str().unwrap())), "{preset}");
            assert_eq!(values.len(), keys.len(), "{preset}");
            let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            let set: String = values.iter().map(|(key, value)| format!(",{key}={}", text(value))).collect();
            let (written, short) = (format!("{name}{set}"), format!("{name}:{word}"));
            assert_eq!(Congestion::parse(&written).unwrap(), Congestion::parse(&short).unwrap(), "{short}");
            presets.push(short);
        }
    }
    assert_eq!(presets[0], "dcqcn:paper");
    assert!(presets.len() >= 5, "{presets:?}");
    // A preset differs from the defaults on both sides.
    let (_, dcqcn) = described().into_iter().find(|(name, _)| name == "dcqcn").unwrap();
    let paper = &dcqcn["presets"][0]["values"];
    assert_eq!((&paper["rpg_ai_rate"], &paper["form"]), (&json!(40), &json!("paper")));
    let point = roce_transport::congestion::NotificationPoint::preset("paper").unwrap();
    assert_eq!(paper["min_time_between_cnps"], json!(point.min_time_between_cnps));
}

/// Every default is accepted as a value, and has the effect of the default.
#[test]
fn the_parameters_of_algorithms_are_those_that_text_sets() {
    let list = described();
    for (name, algorithm) in &list {
        let mut text = name.clone();
        for parameter in algorithm["parameters"].as_array().unwrap() {
            let value = match &parameter["default"] {
                Value::String(word) => word.clone(),
                number => number.to_string(),
            };
            let range = [&parameter["min"], &parameter["max"]].map(Value::as_u64);
            match (range, parameter["words"].as_array()) {
                ([Some(min), Some(max)], None) => assert!((min..=max).contains(&value.parse().unwrap())),
                ([None, None], Some(words)) => assert!(words.contains(&json!(value)), "{parameter}"),
                other => panic!("{other:?}: {parameter}"),
            }
            assert!(!parameter["about"].as_str().unwrap().is_empty() && parameter["unit"].is_string());
            text += &format!(",{}={value}", parameter["key"].as_str().unwrap());
        }
        assert_eq!(Congestion::parse(&text).unwrap(), Congestion::parse(name).unwrap(), "{text}");
    }
    let (_, dcqcn) = list.iter().find(|(name, _)| name == "dcqcn").unwrap();
    let find =
        |key: &str| dcqcn["parameters"].as_array().unwrap().iter().find(|one| one["key"] == key).unwrap();
    assert_eq!((&find("rpg_ai_rate")["default"], &find("rpg_ai_rate")["unit"]), (&json!(5), &json!("Mb/s")));
    assert_eq!((&find("form")["default"], &find("form")["side"]), (&json!("device"), &json!("sender")));
    assert_eq!(find("min_time_between_cnps")["side"], "receiver");
    assert!(list.iter().any(|(name, algorithm)| name == "none" && algorithm["presets"] == json!([])));
}
