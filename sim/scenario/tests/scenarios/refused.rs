//! Texts that are refused as scenarios, and the line that the error names.

use roce_fault::FaultPlan;
use roce_scenario::Scenario;
use roce_sim::net::Time;

const STAR: &str = "name = \"x\"\n[topology]\nkind = \"star\"\nhosts = 3\n[[flows]]\nkind = \"pair\"\nfrom = \"h0\"\n\
                    to = \"h1\"\nbytes = \"1MB\"\n";

fn parse(text: &str) -> Result<Scenario, String> {
    Scenario::parse(text, &|file| Err(file.to_owned())).map_err(|error| error.to_string())
}

/// Returns the error of the star followed by `more`.
#[track_caller]
fn with(more: &str) -> String {
    parse(&format!("{STAR}{more}")).unwrap_err()
}

/// Regression: the error came from the network at the end of the build, without a line.
#[test]
fn every_setting_is_refused_with_its_line() {
    let wrong = [
        ("[host]\ntimeout = 32", "line 11: timeout: it must be 0 to 31"),
        ("[host]\ndepth = 0", "line 11: depth: it must be 1 to 4096 WRITEs"),
        ("[host]\ndscp = 64", "line 11: dscp: it must be 0 to 63"),
        (
            "[host]\napplication = \"poll\"",
            "line 11: there is no application \"poll\"; there are immediate, polling, events, events:TIME and \
             computing:TIME",
        ),
        (
            "[host]\napplication = \"computing:0us\"",
            "line 11: application: its time must be above 0 and at most 1 s",
        ),
        ("[host]\npoll_time = \"1ns\"", "line 11: poll_time: it must be 10 ns to 1 ms"),
        ("[host]\nwake_up_time = \"2s\"", "line 11: wake_up_time: it must be at most 1 s"),
        ("[host]\nsocket_buffer = 1000", "line 11: socket_buffer: it must be at least 8,192 bytes"),
        ("[[group]]\nhosts = [\"h1\"]", "line 10: a group needs host or application"),
        (
            "[[group]]\nhosts = [\"h1\"]\napplication = \"events:2s\"",
            "line 10: application: its time must be above 0 and at most 1 s",
        ),
        ("[measure]\ninterval = \"0us\"", "line 11: interval: it must be longer than 0"),
        ("[switch]\nthreshold = {}", "line 11: threshold needs either alpha or bytes"),
        ("[switch]\nthreshold = { alpha = nan }", "line 11: threshold: alpha must be a number from 0 up"),
        ("[switch]\nmarking_rate = \"0bps\"", "line 11: marking_rate: it must be above 0"),
        ("[switch]\nlossy_alpha = -1.0", "line 11: lossy_alpha: it must be a number from 0 up"),
        ("[switch]\npfc = [3, 8]", "line 11: pfc: priority 8 is not 0 to 7"),
        (
            "[switch]\nmarking = { kmin = 5 }",
            "line 11: marking needs kmin, kmax and pmax, or step, or off = true",
        ),
        ("[[switch.queue]]\npriority = 3\nweight = 0", "line 10: weight: it must be 1 to 65535"),
        (
            "[[route]]\nat = \"s1\"\nto = \"h1\"\nvia = [\"h1\"]",
            "line 10: route at s1 to h1: no node s1; near names are h1, s0",
        ),
        (
            "[[storm]]\nhost = \"h1\"\npriority = 3\nstart = \"5us\"\nend = \"5us\"",
            "line 10: end: a storm must end after its start",
        ),
        (
            "[[failure]]\nat = \"5us\"",
            "line 10: a failure needs either link = [\"A\", \"B\"] or switch = \"NAME\"",
        ),
        (
            "[[failure]]\nlink = [\"h1\", \"h0\"]\nat = \"5us\"",
            "line 10: failure: there is no link between h1 and h0",
        ),
        (
            "[[failure]]\nswitch = \"s0\"\nat = \"5us\"\nuntil = \"5us\"",
            "line 10: failure: until: it must be later than at",
        ),
        ("[switch]\nflowlet_gap = \"5us\"", "line 11: flowlet_gap: balance is not \"flowlet\""),
        ("[switch]\ntrimming = { dscp = 64 }", "line 11: trimming: dscp must be 0 to 63"),
        ("[switch]\ntrimming = { dscp = 25 }", "line 11: trimming: the priority of its dscp is lossless"),
        ("[switch]\ntrimming = { to = \"1KB\" }", "line 11: trimming: to must be 64 to 512 bytes"),
        ("[switch]\ntrimming = { off = true, to = 64 }", "line 11: trimming: off = true has no other keys"),
    ];
    for (more, reason) in wrong {
        assert_eq!(with(more), reason, "{more}");
    }
}

/// A key of another kind of topology is refused, because it has no effect.
#[test]
fn a_topology_has_only_its_own_keys() {
    let kind = |kind: &str| parse(&STAR.replace("kind = \"star\"", kind));
    assert_eq!(
        kind("kind = \"fat-tree\"\nk = 4").unwrap_err(),
        "line 2: this kind of topology has no `hosts`"
    );
    assert_eq!(
        kind("kind = \"star\"\nfabric_rate = \"1Gbps\"").unwrap_err(),
        "line 2: this kind of topology has no `fabric_rate`"
    );
    let bus = kind("kind = \"bus\"\nfabric_rate = \"1Gbps\"").unwrap();
    assert_eq!((bus.topology.hosts(), bus.topology.nodes.len(), bus.topology.links.len()), (3, 6, 5));
}

/// Returns the text of a plan that must exist.
fn plan_text(plan: Option<FaultPlan>) -> String {
    plan.expect("a plan").to_string()
}

/// A link has one plan for each direction: its own, or the one for all links.
#[test]
fn what_is_said_of_one_link_holds_beside_what_is_said_of_all() {
    let one = "[[topology.faults]]\nlink = [\"s0\", \"h1\"]\nplan = \"drop=2%\"\n";
    let all = "[[topology.faults]]\nplan = \"drop=1%\"\n";
    for text in [[one, all], [all, one]] {
        let links = parse(&format!("{STAR}{}", text.concat())).unwrap().topology.links;
        let plans: Vec<_> = links.iter().map(|link| link.faults.clone().map(plan_text)).collect();
        assert_eq!(plans, ["drop=1%", "drop=2%", "drop=1%"].map(|plan| [plan, plan]));
    }
    let twice = "the link between s0 and h1 already has a fault plan: write one plan for each link, or one with \
                 `from` for each direction";
    assert_eq!(with(&format!("{one}{one}")), format!("line 13: {twice}"));
    assert_eq!(
        with(&format!("{all}{all}")),
        "line 12: a fault plan for all links already exists: write one plan for them"
    );
}

/// `from` names the end whose packets the plan concerns. The other direction has a plan of its own, that of
/// all links, or none.
#[test]
fn what_is_said_of_one_direction_holds_beside_what_is_said_of_the_other() {
    let of = |from: &str, plan: &str| {
        format!("[[topology.faults]]\nlink = [\"h1\", \"s0\"]\n{from}plan = \"{plan}\"\n")
    };
    let plans = |more: &str| {
        let topology = parse(&format!("{STAR}{more}")).unwrap().topology;
        let h1 = topology.node_named("h1").unwrap();
        let link = topology.links.iter().find(|link| [link.a, link.b].contains(&h1)).unwrap();
        let [of_a, of_b] =
            link.faults.clone().map(|plan| plan.map_or("none".to_owned(), |one| one.to_string()));
        // The plan of h1, and that of its switch.
        if link.a == h1 { [of_a, of_b] } else { [of_b, of_a] }
    };
    let from_host = of("from = \"h1\"\n", "drop=2%");
    let from_switch = of("from = \"s0\"\n", "drop=3%");
    let all = "[[topology.faults]]\nplan = \"drop=1%\"\n";
    assert_eq!(plans(&from_host), ["drop=2%", "none"]);
    assert_eq!(plans(&from_switch), ["none", "drop=3%"]);
    assert_eq!(plans(&format!("{from_host}{from_switch}")), ["drop=2%", "drop=3%"]);
    assert_eq!(plans(&format!("{all}{from_host}")), ["drop=2%", "drop=1%"]);

    let twice = with(&format!("{from_host}{from_host}"));
    assert!(
        twice.starts_with("line 14: the link between h1 and s0 already has a fault plan for what h1 sends: ")
    );
    let overlap = with(&format!("{from_switch}{}", of("", "drop=1%")));
    assert!(
        overlap.starts_with("line 14: the link between h1 and s0 already has a fault plan: "),
        "{overlap}"
    );
    assert_eq!(
        with(&of("from = \"h0\"\n", "drop=1%")),
        "line 10: `from` is h0, which is no end of the link: write h1 or s0"
    );
    assert_eq!(
        with("[[topology.faults]]\nfrom = \"h1\"\nplan = \"drop=1%\"\n"),
        "line 10: `from = \"h1\"` needs the `link` of which it is one end"
    );
}

/// The load of Poisson arrivals is relative to the links that a topology file gives its hosts.
#[test]
fn a_load_is_a_part_of_the_links_of_the_file() {
    let text = |rate: &str| {
        format!(
            "name = \"x\"\nstop = \"1ms\"\n[topology]\nkind = \"file\"\ntext = \"host a b\\nswitch s\\nlink a s 10Gbps 1us\\nlink b s {rate} 1us\"\n\
             [[flows]]\nkind = \"poisson\"\nload = 0.5\nduration = \"100ms\"\nsizes = \"websearch\"\n"
        )
    };
    let bytes: u64 = parse(&text("10Gbps")).unwrap().flows.iter().map(|flow| flow.bytes).sum();
    let load = bytes as f64 * 8.0 / (0.1 * 10e9 * 2.0);
    assert!((0.3..0.7).contains(&load), "{load}");
    assert_eq!(
        parse(&text("40Gbps")).unwrap_err(),
        "line 6: the links of hosts have different rates, so a common load is undefined"
    );
}

/// Each of these is refused instead of using unlimited memory.
#[test]
fn what_is_too_large_is_refused() {
    let many = STAR.replace("\"pair\"", "\"on-off\"\nperiod = \"1us\"\ncount = 4000000000");
    assert_eq!(parse(&many).unwrap_err(), "line 5: 4000000000 bursts are more than 8388608");
    let half = STAR.replace("\"pair\"", "\"on-off\"\nperiod = \"1us\"\ncount = 5000000");
    let flows = half.split("[[flows]]").nth(1).unwrap();
    let error = parse(&format!("{half}[[flows]]{flows}")).unwrap_err();
    assert_eq!(error, "line 12: the sum of all flows exceeds 8388608");
    let line =
        STAR.replace("kind = \"star\"\nhosts = 3", "kind = \"line\"\nswitches = 1000000000\nhosts = 0");
    assert_eq!(parse(&line).unwrap_err(), "line 2: that would be more than 262144 nodes or links");
    assert!(parse(STAR).unwrap().settings.stop > Time::ZERO);
}
