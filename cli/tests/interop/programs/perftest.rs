//! The eight programs of perftest.

use super::{Pair, Role};
use crate::case::{Family, Scope};
use crate::setting::Setting;

const VERBS: [&str; 4] = ["write", "send", "read", "atomic"];

/// Operation, kind of test, and the additional options of both sides.
type Test = (&'static str, &'static str, String);

/// Returns tests with and without rdma_cm: one queue pair and four, one direction and both, and latency.
fn combinations() -> Vec<Test> {
    let mut tests = Vec::new();
    for verb in VERBS {
        for options in ["", "-R"] {
            tests.push((verb, "lat", format!("-n 100 {options}")));
            tests.push((verb, "bw", format!("-n 100 {options}")));
            for more in ["-b", "-q 4", "-b -q 4"] {
                tests.push((verb, "bw", format!("-n 40 {more} {options}")));
            }
        }
    }
    tests
}

/// Returns tests of all sizes; atomics have only one size.
fn all_sizes() -> Vec<Test> {
    let mut tests = Vec::new();
    for verb in ["write", "send", "read"] {
        for kind in ["bw", "lat"] {
            for options in ["", "-R"] {
                tests.push((verb, kind, format!("-n 5 -a {options}")));
            }
        }
        tests.push((verb, "bw", "-n 5 -a -b -R".to_owned()));
    }
    tests
}

/// Returns tests of other transports and features. These do not retransmit, so lost messages stay lost.
fn others() -> Vec<Test> {
    [
        ("send", "bw", "-n 100 -s 1000 -c UC -t 16"),
        ("send", "bw", "-n 100 -s 1000 -c UD -t 16"),
        ("send", "lat", "-n 100 -c UD"),
        ("send", "bw", "-n 40 -s 1000 -c UD -t 4 -b -R"),
        ("write", "lat", "-n 100 -c UC"),
        ("write", "bw", "-D 2"),
        ("write", "bw", "-n 100 -m 1024 -s 5000 -p 19000 --report_gbits"),
        ("send", "bw", "-n 100 -m 1024 -s 5000 -p 19000 -R"),
    ]
    .map(|(verb, kind, options)| (verb, kind, options.to_owned()))
    .into_iter()
    .chain(datagrams_by_rdma_cm())
    .chain(habits())
    .collect()
}

/// Returns tests in which rdma_cm resolves the service of a UD queue pair (SIDR).
fn datagrams_by_rdma_cm() -> Vec<Test> {
    vec![
        ("send", "bw", "-n 100 -s 1000 -c UD -t 16 -R".to_owned()),
        ("send", "lat", "-n 100 -c UD -R".to_owned()),
    ]
}

/// Returns tests with options that change how a test runs, but not what it measures.
fn habits() -> Vec<Test> {
    [
        ("write", "bw", "-n 100 -l 4 --retry_count=5"),
        ("send", "bw", "-n 100 -e --tclass=104"),
        ("read", "lat", "-n 100 -e"),
        ("write", "bw", "-n 100 -z"),
        ("send", "bw", "-n 100 -R -T 104"),
        ("send", "bw", "-n 100 --reversed -S 3"),
        ("write", "bw", "-n 100 --reversed"),
    ]
    .map(|(verb, kind, options)| (verb, kind, options.to_owned()))
    .into()
}

/// Returns tests that cover every program and every option at least once, alternately as server and as
/// client. All sizes in one run are one test of one kernel.
fn covering(setting: &Setting) -> Vec<(Test, &'static [Role])> {
    let mut tests: Vec<(Test, &[Role])> = Vec::new();
    for (index, verb) in VERBS.into_iter().enumerate() {
        let [one, other]: [&[Role]; 2] = if index % 2 == 0 {
            [&[Role::Server], &[Role::Client]]
        } else {
            [&[Role::Client], &[Role::Server]]
        };
        tests.push(((verb, "bw", "-n 100".to_owned()), &Role::BOTH));
        tests.push(((verb, "lat", "-n 100".to_owned()), &Role::BOTH));
        tests.push(((verb, "bw", "-n 100 -R".to_owned()), one));
        tests.push(((verb, "lat", "-n 100 -R".to_owned()), other));
        tests.push(((verb, "bw", "-n 40 -b -q 4 -R".to_owned()), other));
    }
    if !setting.is_lossy() {
        tests.extend(datagrams_by_rdma_cm().into_iter().map(|test| (test, &Role::BOTH[..])));
        for (index, test) in habits().into_iter().enumerate() {
            tests.push((test, if index % 2 == 0 { &[Role::Server] } else { &[Role::Client] }));
        }
    }
    // It transfers 80 MB, so one is enough.
    if setting.kernel != "6.1" && !setting.is_lossy() {
        tests.push((("write", "bw", "-n 5 -a -R".to_owned()), &[Role::Client]));
    }
    tests
}

/// Options of every test. The timeout is long because the guest's processors are emulated and sometimes stand
/// still, and packets are in flight for seconds on a busy machine.
const OPTIONS: &str = "-F -u 18";

fn pair(setting: &Setting, test: &Test, role: Role, family: Family) -> Pair {
    let (verb, kind, options) = test;
    let addresses = setting.addresses(family);
    let program = format!("ib_{verb}_{kind}");
    let (of_original, of_ours) = match role {
        Role::Server => (addresses.ours.to_string(), String::new()),
        Role::Client => (String::new(), addresses.theirs.to_string()),
    };
    // The exchange also uses the addresses of that family.
    let family_options = if family == Family::V6 { "--ipv6-addr -x 2" } else { "" };
    Pair {
        name: format!("{program} {options}").trim_end().to_owned(),
        role,
        family,
        original: format!("{program} -d rxe0 {OPTIONS} {family_options} {options} {of_original}"),
        ours: format!("perf {verb} {kind} {OPTIONS} --patience 40 {options} {of_ours}"),
        seconds: if setting.is_lossy() { 300 } else { 240 },
    }
}

/// Returns every second pair, or the others: a short run tests each pair with one of two kernels. A test in
/// both roles is two pairs that follow each other, and has one of them with each kernel.
fn half<T>(pairs: Vec<T>, is_second: bool) -> Vec<T> {
    let is_mine = |index: usize| ((index + index / 2) % 2 == 1) == is_second;
    pairs.into_iter().enumerate().filter(|(index, _)| is_mine(*index)).map(|(_, pair)| pair).collect()
}

pub(crate) fn pairs(setting: &Setting) -> Vec<Pair> {
    let mut pairs = Vec::new();
    if setting.scope == Scope::Smoke || setting.is_lossy() || setting.device != "udp" {
        for (test, roles) in covering(setting) {
            pairs.extend(roles.iter().map(|role| pair(setting, &test, *role, Family::V4)));
        }
        if setting.scope == Scope::Smoke {
            pairs = half(pairs, setting.kernel == "6.1");
        }
    } else {
        for test in [combinations(), all_sizes(), others()].concat() {
            pairs.extend(Role::BOTH.map(|role| pair(setting, &test, role, Family::V4)));
        }
    }
    // perftest 4.5, in the guest with the older kernel, exchanges only over IPv4.
    if setting.kernel != "6.1" {
        for (index, verb) in VERBS.into_iter().enumerate() {
            let role = Role::BOTH[index % 2];
            pairs.push(pair(setting, &(verb, "bw", "-n 100".to_owned()), role, Family::V6));
            pairs.push(pair(setting, &(verb, "lat", "-n 100 -R".to_owned()), role, Family::V6));
        }
    }
    pairs
}
