//! Scenarios with flows that wait, collective operations and training.

use roce_scenario::Scenario;
use roce_sim::net::{OperationResult, Time};

use super::{no_files, results_of, text};

/// Returns the results of all operations of a scenario: name, iteration and result.
fn operations(text: &str, replaced: &[(&str, &str)]) -> Vec<(String, u32, OperationResult)> {
    let set: Vec<_> = replaced.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
    let scenario = Scenario::parse_with(text, &set, &no_files).unwrap();
    let results = results_of(&scenario);
    assert_eq!(results.incomplete(), 0);
    let all = scenario.operations.iter();
    all.map(|it| (it.name.clone(), it.iteration, it.result(&results.task_ends))).collect()
}

fn us(time: Option<Time>) -> f64 {
    time.unwrap().as_secs_f64() * 1e6
}

#[test]
fn a_ring_takes_what_its_scenario_says() {
    for (hosts, expected) in [("8", 1_239.0), ("64", 1_625.2)] {
        let all = operations(&text("ring-all-reduce"), &[("topology.hosts", hosts)]);
        let took = us(all[0].2.time);
        println!("{hosts}: {took}");
        assert!((took / expected - 1.0).abs() < 0.003, "{hosts}: {took}");
    }
}

/// Four rails carry four rings at the same time, and each takes the time that it would take alone.
#[test]
fn rails_do_not_share_a_link() {
    let alone = operations(&text("ring-all-reduce"), &[("topology.hosts", "8")])[0].2.time;
    let all = operations(&text("multi-rail"), &[]);
    assert_eq!(all.len(), 4);
    for (name, _, result) in &all {
        assert_eq!(result.time, alone, "{name}");
    }
    // 14 steps of 1 MB over two links, without the acknowledgements.
    let closed = 14.0 * (1_000_000.0 + 977.0 * 82.0 + 20.0 + 1_122.0 + 2.0 * 12_500.0) * 80e-6;
    assert!((us(alone) / closed - 1.0).abs() < 0.003, "{alone:?} {closed}");
    let pair = ["[[flows]]\nkind = \"pair\"\nfrom = \"h0r0\"\nto = \"h1r1\"\nbytes = 1\n"];
    let refused = |spines: &str| {
        let text = format!(
            "name = \"x\"\n[topology]\nkind = \"rail-optimised\"\nservers = 2\nrails = 2\n{spines}{}",
            pair[0]
        );
        let scenario = Scenario::parse(&text, &no_files).unwrap();
        results_of(&scenario).incomplete()
    };
    assert_eq!((refused(""), refused("spines = 1\n")), (1, 0), "only a spine joins rails");
}

#[test]
fn collisions_slow_a_ring_down_and_spraying_does_not() {
    // 62 steps of 200,000 bytes over four links.
    let expected = 62.0 * (200_000.0 + 196.0 * 82.0 + 20.0 + 3.0 * 1_122.0 + 4.0 * 12_500.0) * 80e-6;
    let took =
        |balance| us(operations(&text("all-reduce-collisions"), &[("switch.balance", balance)])[0].2.time);
    let (flow, spray) = (took("flow"), took("spray"));
    println!("closed form {expected}, flow {flow}, spray {spray}");
    assert!(flow > 1.5 * expected, "{flow} {expected}");
    assert!(spray < 1.2 * expected, "{spray} {expected}");
}

#[test]
fn training_overlaps_computation_and_communication() {
    let all = operations(&text("training"), &[]);
    let of = |name: &str, iteration| {
        us(all.iter().find(|(other, number, _)| other == name && *number == iteration).unwrap().2.time)
    };
    let computation = 8.0 * 150.0;
    // The all-reduce of a bucket alone: 14 steps of 250,000 bytes at one switch.
    let sum = 14.0 * (250_000.0 + 245.0 * 82.0 + 20.0 + 1_122.0 + 2.0 * 12_500.0) * 80e-6;
    for step in [0, 1] {
        let whole = of("data", step);
        println!("data {whole}, sum {sum}; pipeline {}", of("pipeline", step));
        assert!(of("data bucket 0", step) > 0.999 * sum);
        // The last bucket is added after the computation; the others at least partly during it.
        assert!(whole > computation + sum && whole < 0.85 * (computation + 4.0 * sum), "{whole} {sum}");
        // Stages begin the second step at different times, so it takes longer from the first one.
        let pipeline = of("pipeline", step);
        assert!(pipeline > 11.0 * 150.0 && pipeline < 22.0 * 150.0, "{pipeline}");
    }
}

/// A quarter of the bytes of the scenario. The failure comes later in the step.
#[test]
fn a_mixture_of_experts_exchanges_tokens_along_the_rails() {
    let few = [("training.0.bytes", "1MB"), ("training.0.gradients", "2MB")];
    let run = |balance, more: &[(&str, &str)]| {
        let set = [&few[..], &[("switch.balance", balance)], more].concat();
        let all = operations(&text("mixture-of-experts"), &set);
        let names: Vec<_> = all.iter().map(|(name, ..)| &**name).collect();
        assert_eq!(
            names[..4],
            ["step", "step gradients", "step layer 0 dispatch", "step layer 0 combine"],
            "{names:?}"
        );
        assert_eq!(all.len(), 1 + 1 + 8);
        println!(
            "{balance} {more:?}: {:?}",
            all.iter().map(|(.., result)| us(result.time)).collect::<Vec<_>>()
        );
        all.iter().map(|(.., result)| us(result.time)).collect::<Vec<_>>()
    };
    let whole = run("spray", &[("failure", "[]")]);
    // 31 of 32 servers are across the network; the first part leaves when it has been moved within the
    // server.
    let line = 31.0 / 32.0 * 1e6 * (4_096.0 + 82.0) / 4_096.0 * 8.0 / 400e3;
    for exchange in &whole[2..] {
        assert!((line + 4.0..1.15 * line + 12.0).contains(exchange), "{exchange} {line}");
    }
    // Computation: two layers of 50 and 100 us. An exchange begins at a host when its computation has ended.
    let sum: f64 = whole[1..].iter().sum();
    assert!(whole[0] > 300.0 + 8.0 * line && whole[0] < 300.0 + sum, "{whole:?}");
    let (hashed, sprayed) = (run("flow", &[("failure", "[]")]), run("spray", &[]));
    assert!(hashed[2..].iter().sum::<f64>() > 1.1 * whole[2..].iter().sum::<f64>(), "hashes collide");
    // A loss among the last packets of a transfer is found by a timeout, and delays two exchanges.
    let slow = sprayed[2..].iter().filter(|exchange| **exchange > 2.0 * line).count();
    assert!(slow <= 2 && sprayed[0] < whole[0] + 350.0, "{sprayed:?}");
}

/// All GPUs of a server: nothing takes a link. Regression: such a scenario was refused because nothing
/// was sent.
#[test]
fn a_server_alone_uses_its_scale_up_network() {
    let text = |more: &str| {
        format!(
            "name = \"x\"\n[topology]\nkind = \"rail-optimised\"\nservers = 1\nrails = 8\n\
             scale_up = {{ rate = \"800Gbps\", delay = \"2us\" }}\n{more}"
        )
    };
    let all = operations(&text("[[collective]]\nkind = \"all-gather\"\nbytes = \"8MB\"\n"), &[]);
    // A ring of seven rounds of a megabyte each.
    assert!((us(all[0].2.time) - 7.0 * 12.0).abs() < 0.001, "{:?}", all[0]);
    let refused = |more: &str, reason: &str| {
        let error = Scenario::parse(&text(more), &no_files).unwrap_err().to_string();
        assert!(error.ends_with(reason), "{error}");
    };
    let gather =
        "[[collective]]\nkind = \"all-gather\"\nalgorithm = \"hierarchical\"\nbytes = \"1GB\"\nchunk = 1\n";
    refused(gather, "125000000 pieces at each host are more than 8388608 tasks: use longer chunks");
    let training = |more, reason| {
        let keys = "forward = \"1us\"\nbackward = \"1us\"\nbytes = \"1MB\"\n";
        refused(&format!("[[training]]\nkind = \"mixture-of-experts\"\n{keys}{more}\n"), reason);
    };
    let groups = "8 hosts are not whole groups of 9; 2 hosts are the least";
    training("layers = 1\ngroup = 9", groups);
    training("layers = 1\nchunk = 9", "chunk: it divides the gradients, which are 0");
    training("layers = 1\nseed = 9", "seed: it requires `skew`, which is missing");
    training("layers = 1\nstages = 9", "this kind of training has no `stages`");
    let pipeline = |more| {
        let keys = "forward = \"24us\"\nbackward = \"48us\"\nbytes = \"400KB\"\nmicrobatches = 3\n";
        format!("[[training]]\nkind = \"pipeline\"\n{keys}{more}\n")
    };
    refused(&pipeline("layers = 2"), "layers: they matter for hosts of a stage; set `tensor` above 1");
    refused(&pipeline("tensor = 0"), "tensor is 0; 1 to 100000 are possible");
    let all = operations(&text(&pipeline("tensor = 4\nlayers = 2")), &[]);
    // Three micro-batches, and one more for two stages, of 72 us and of eight sums of 400 KB among four
    // hosts.
    let sums = 8.0 * 2.0 * (0.75 * 400e3 * 8.0 / 800e3 + 2.0);
    assert!((us(all[0].2.time) / (4.0 * (72.0 + sums)) - 1.0).abs() < 0.05, "{:?} {sums}", all[0]);
    let bad = text("").replace("rails = 8", "rails = 1").replace("servers = 1", "servers = 2");
    let error = Scenario::parse(&bad, &no_files).unwrap_err().to_string();
    assert!(error.ends_with("scale_up: a domain has at least 2 hosts"), "{error}");
}

const CHAIN: &str = r#"
name = "chain"
[topology]
kind = "star"
hosts = 4
[[flows]]
name = "late"
kind = "pair"
from = "h1"
to = "h2"
bytes = "1MB"
after = ["early"]
compute = "30us"
[[flows]]
name = "early"
kind = "pair"
from = "h0"
to = "h1"
bytes = "1MB"
start = "5us"
[[collective]]
name = "sum"
kind = "all-reduce"
algorithm = "halving-doubling"
bytes = "100KB"
hosts = ["h2", "h1"]
after = ["late"]
repeat = 3
compute = "10us"
"#;

/// Tables are evaluated after all tables that they wait for.
#[test]
fn tables_wait_for_each_other() {
    let scenario = Scenario::parse(CHAIN, &no_files).unwrap();
    let results = results_of(&scenario);
    assert_eq!(results.incomplete(), 0);
    let start = |flow: usize| results.flows[flow].spec.start.as_secs_f64() * 1e6;
    // A megabyte takes 86.4 µs, and two links of 1 µs with a packet each.
    assert_eq!(start(0), 5.0);
    assert!((start(1) - (5.0 + 86.4 + 2.1 + 30.0)).abs() < 0.3, "{}", start(1));
    let sums: Vec<_> =
        scenario.operations.iter().map(|operation| operation.result(&results.task_ends)).collect();
    assert_eq!(sums.len(), 3);
    // h1 detects the end of its flow by the acknowledgement, h2 by the last packet; both then compute.
    assert!((us(sums[0].begin) - (start(1) + 86.4 + 2.1 + 10.0)).abs() < 0.3, "{:?}", sums[0]);
    assert!(us(sums[1].begin) > us(sums[0].begin) + us(sums[0].time), "{sums:?}");
}

#[test]
fn what_cannot_be_scheduled_is_refused_with_its_line() {
    let message = |from: &str, to: &str| {
        assert!(CHAIN.contains(from), "{from}");
        Scenario::parse(&CHAIN.replacen(from, to, 1), &no_files).unwrap_err().to_string()
    };
    assert_eq!(
        message("after = [\"early\"]", "after = [\"earl\"]"),
        "line 6: after: no table has the name earl"
    );
    assert_eq!(
        message("from = \"h1\"\nto = \"h2\"", "from = \"h3\"\nto = \"h2\""),
        "line 6: after: no flow of early begins or ends at h3, so h3 cannot detect its end"
    );
    assert_eq!(message("start = \"5us\"", "after = [\"sum\"]"), "line 6: after: the tables form a cycle");
    assert_eq!(
        message("name = \"early\"", "name = \"late\""),
        "line 14: a table with the name late already exists"
    );
    assert_eq!(
        message("[\"h2\", \"h1\"]", "[\"h2..h1\"]"),
        "line 21: hosts: h2 must precede h1 in the topology"
    );
    assert_eq!(
        message("hosts = [\"h2\", \"h1\"]\nafter = [\"late\"]", "hosts = [\"h1..h3\"]"),
        "line 21: halving-doubling needs a power of two of hosts, not 3"
    );
    assert_eq!(message("repeat = 3", "repeat = 0"), "line 21: repeat: it must be 1 to 100000");
    assert_eq!(
        message("repeat = 3", "clear_to_send = 0"),
        "line 21: clear_to_send and queue_pairs are at least 1"
    );
    assert_eq!(message("repeat = 3", "seed = 3"), "line 21: seed: it requires `skew`, which is missing");
    assert_eq!(
        message("after = [\"early\"]\n", ""),
        "line 6: compute: it requires `after`, whose end begins the computation"
    );
}
