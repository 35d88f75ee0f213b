//! The JSON of every command, compared with the tables of `docs/reference/json*.md`.

use std::collections::BTreeMap;

use crate::common;
use crate::common::frames::{frame, write_capture};
use crate::common::{Running, own_address, roce};
use roce_packet::{Opcode, Psn};
use roce_testing::in_own_network;
use serde_json::Value;

const PAGE: &str = concat!(
    include_str!("../../../docs/reference/json.md"),
    include_str!("../../../docs/reference/json-captures.md"),
    include_str!("../../../docs/reference/json-simulator.md"),
);

/// A row of the page: the path and the type of a field.
#[derive(Clone, Debug)]
struct Field {
    path: String,
    kind: String,
}

impl Field {
    fn is_optional(&self) -> bool {
        self.kind.ends_with(", optional")
    }

    fn allows(&self, value: &Value) -> bool {
        let kind = self.kind.trim_end_matches(", optional");
        let (kind, or_null) = kind.strip_suffix(" or null").map_or((kind, false), |kind| (kind, true));
        match kind {
            "any" => true,
            _ if value.is_null() => or_null,
            "string" => value.is_string(),
            "integer" => value.is_u64() || value.is_i64(),
            "number" => value.is_number(),
            "boolean" => value.is_boolean(),
            other => panic!("docs/reference/json.md has the type {other}"),
        }
    }
}

/// Returns the fields of each schema, with references to other tables resolved.
fn schemas() -> BTreeMap<String, Vec<Field>> {
    let mut tables: BTreeMap<String, Vec<Field>> = BTreeMap::new();
    let mut current: Vec<String> = Vec::new();
    for line in PAGE.lines() {
        if let Some(heading) = line.strip_prefix("## ") {
            current =
                heading.split('`').filter(|part| part.starts_with("roce/")).map(str::to_owned).collect();
        } else if let Some(row) = line.strip_prefix("| `") {
            let (path, rest) = row.split_once("` | ").expect(line);
            let (kind, meaning) = rest.split_once(" | ").expect(line);
            assert!(meaning.len() > 3, "{line}");
            for schema in &current {
                let field = Field { path: path.to_owned(), kind: kind.to_owned() };
                tables.entry(schema.clone()).or_default().push(field);
            }
        }
    }
    let resolved = |fields: &Vec<Field>| fields.iter().flat_map(|field| resolve(field, &tables)).collect();
    let common = [
        ("schema", "string"),
        ("version", "string"),
        ("build.commit", "string or null"),
        ("build.features[]", "string"),
        ("build.target", "string"),
    ];
    let common = common.map(|(path, kind)| Field { path: path.to_owned(), kind: kind.to_owned() });
    tables
        .iter()
        .map(|(schema, fields)| {
            let mut fields: Vec<Field> = resolved(fields);
            // Lines of packets do not contain the version and the build of the program.
            let count = if schema == "roce/dissect/1" { 1 } else { common.len() };
            fields.extend(common.iter().take(count).cloned());
            (schema.clone(), fields)
        })
        .collect()
}

/// Resolves a reference: "as `rows[].client` of `roce/ping/1`" stands for all fields of that table below that
/// path.
fn resolve(field: &Field, tables: &BTreeMap<String, Vec<Field>>) -> Vec<Field> {
    let kind = field.kind.trim_end_matches(", optional");
    let Some(reference) = kind.strip_prefix("as `") else { return vec![field.clone()] };
    let (from, schema) = reference.split_once("` of `").expect(reference);
    let fields = &tables[schema.trim_end_matches('`')];
    let below = |other: &Field| {
        let rest = if from.is_empty() {
            format!(".{}", other.path)
        } else {
            other.path.strip_prefix(from)?.to_owned()
        };
        // The whole referring object may be null or missing, so its fields are optional.
        let kind = format!("{}, optional", other.kind.trim_end_matches(", optional"));
        rest.starts_with(['.', '[']).then(|| Field { path: format!("{}{rest}", field.path), kind })
    };
    let mut found: Vec<Field> =
        fields.iter().filter_map(below).flat_map(|other| resolve(&other, tables)).collect();
    assert!(!found.is_empty(), "{field:?}");
    found.push(Field { path: field.path.clone(), kind: "any, optional".to_owned() });
    found
}

/// Collects all values that are not objects or lists, with their paths.
fn leaves(path: &str, value: &Value, found: &mut Vec<(String, Value)>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                leaves(&if path.is_empty() { name.clone() } else { format!("{path}.{name}") }, value, found);
            }
        }
        Value::Array(items) => items.iter().for_each(|item| leaves(&format!("{path}[]"), item, found)),
        value => found.push((path.to_owned(), value.clone())),
    }
}

/// Checks that a field exists at every place where it is required.
#[track_caller]
fn must_have(value: &Value, path: &str, whole: &str) {
    match value {
        Value::Object(fields) if fields.contains_key(path) => {}
        Value::Object(fields) => {
            let (name, rest) = path.split_once('.').unwrap_or((path, ""));
            let plain = name.trim_end_matches("[]");
            let Some(below) = fields.get(plain) else { panic!("{whole} is missing in {value}") };
            let mut items: Vec<&Value> = vec![below];
            for _ in 0..(name.len() - plain.len()) / 2 {
                items = items.into_iter().flat_map(|item| item.as_array().into_iter().flatten()).collect();
            }
            if !rest.is_empty() && rest != "*" {
                items.into_iter().for_each(|item| must_have(item, rest, whole));
            }
        }
        _ => {}
    }
}

/// Checks a document against the page.
#[track_caller]
pub(crate) fn check(document: &Value, expected: &str) {
    let schema = document["schema"].as_str().unwrap_or_else(|| panic!("no schema: {document}"));
    assert_eq!(schema, expected);
    let schemas = schemas();
    let fields = &schemas[schema];
    let mut found = Vec::new();
    leaves("", document, &mut found);
    for (path, value) in found {
        let exact = fields.iter().find(|field| field.path == path);
        let wild = || {
            fields
                .iter()
                .find(|field| field.path.strip_suffix('*').is_some_and(|start| path.starts_with(start)))
        };
        let Some(field) = exact.or_else(wild) else {
            panic!("{schema}: `{path}` = {value} is not in docs/reference/json.md");
        };
        assert!(field.allows(&value), "{schema}: {value} of `{path}` is not of the type {}", field.kind);
        for unit in ["_s", "_ms", "_us", "_ns", "_gbps", "gigabits_per_s"] {
            // Counters keep their names, such as `frame_rx_not_for_us`.
            let is_counter = path.contains("counters.");
            assert!(is_counter || !path.ends_with(unit), "{schema}: `{path}` is not in a base unit");
        }
    }
    for field in fields.iter().filter(|field| !field.is_optional()) {
        must_have(document, &field.path, &field.path);
    }
}

#[track_caller]
fn document(arguments: &[&str]) -> Value {
    let finished = common::run(arguments);
    serde_json::from_str(&finished.stdout)
        .unwrap_or_else(|error| panic!("{arguments:?}: {error}: {finished:?}"))
}

/// Returns the document of a server of two clients, of which the second asks for too much memory.
#[track_caller]
fn of_server(tool: &str) -> Value {
    let far = own_address().to_string();
    let mut command = roce();
    let device = format!("udp:{far}");
    command.args([tool, "--clients", "2", "--once", "--json", "--max-memory", "64K", "--device", &device]);
    // It prints nothing when it starts. A client tries again until the server listens.
    let serving = Running::start(&mut command);
    for size in ["64", "64K"] {
        let device = format!("udp:{}", own_address());
        let client = [tool, &far, "--size", size, "-n", "20", "--timeout", "16", "--device", &device];
        assert_eq!(common::run(&client).success, size == "64");
    }
    let finished = serving.finish(60);
    assert!(!finished.success && finished.stderr.contains("1 of 2 clients failed"), "{finished:?}");
    serde_json::from_str(&finished.stdout).unwrap_or_else(|error| panic!("{error}: {finished:?}"))
}

/// Returns the document of a client, with a server of the same command on another address.
#[track_caller]
fn of_client(server: &[&str], client: &[&str]) -> Value {
    let (near, far) = (own_address().to_string(), own_address().to_string());
    let [near_device, far_device] = [&near, &far].map(|address| format!("udp:{address}"));
    let mut command = roce();
    let mut running = Running::start(command.args(server).args(["--device", &far_device]));
    running.wait_for_line("waiting on");
    let client: Vec<&str> =
        client.iter().map(|word| if *word == "SERVER" { far.as_str() } else { word }).collect();
    document(&[&client[..], &["--json", "--device", &near_device]].concat())
}

#[test]
fn documents_of_measurements_are_those_of_the_page() {
    let short = ["--size", "64", "-n", "20", "--timeout", "16"];
    check(&of_client(&["ping"], &[&["ping", "SERVER"][..], &short].concat()), "roce/ping/1");
    check(&of_client(&["blast"], &[&["blast", "SERVER"][..], &short].concat()), "roce/blast/1");
    for (tool, messages) in [("ping", 40), ("blast", 20)] {
        let server = of_server(tool);
        check(&server, &format!("roce/{tool}-server/1"));
        let totals = &server["totals"];
        assert_eq!([&totals["served"], &totals["failed"]], [1, 1], "{server}");
        assert_eq!([&totals["messages"], &totals["bytes"]], [messages, messages * 64], "{server}");
        let errors = server["clients"].as_array().unwrap().iter().filter_map(|one| one["error"].as_str());
        let [error] = errors.collect::<Vec<_>>()[..] else { panic!("one client failed: {server}") };
        assert!(error.contains("--max-memory"), "{error}");
    }
    let limit = ["limit", "SERVER", "--round-trips", "20", "-n", "500"];
    check(&of_client(&["limit"], &limit), "roce/limit/1");
    let limit = ["limit", "SERVER", "--round-trips", "20", "-n", "500", "--tcp"];
    check(&of_client(&["limit"], &limit), "roce/limit/1");
    for test in ["bw", "lat"] {
        let server = ["perf", "send", test, "-n", "100", "-u", "16"];
        let client = ["perf", "send", test, "SERVER", "-n", "100", "-u", "16"];
        check(&of_client(&server, &client), "roce/perf/1");
    }
    let pingpong = ["pingpong", "rc", "SERVER", "-n", "50"];
    check(&of_client(&["pingpong", "rc", "-n", "50"], &pingpong), "roce/pingpong/1");
    check(&of_client(&["doctor"], &["doctor", "SERVER"]), "roce/doctor/1");
}

#[test]
fn documents_of_lists_and_simulations_are_those_of_the_page() {
    check(&document(&["devices", "--json"]), "roce/devices/1");
    check(&document(&["devices", "--json", "--verbose"]), "roce/devices/1");
    let device = format!("udp:{}", own_address());
    check(&document(&["devices", "--json", "--device", &device]), "roce/device/1");
    check(&document(&["sim", "--list", "--json"]), "roce/sim-list/1");
    let short = ["sim", "two-to-one", "--set", "stop=200us", "--json"];
    check(&document(&short), "roce/sim/2");
    let polling = document(&[&short[..], &["--set", "host.application=polling"]].concat());
    assert!(polling["host_waits"]["packets"].as_u64() > Some(0), "{polling}");
    check(&polling, "roce/sim/2");
    check(&document(&[&short[..], &["--sweep", "seed=1,2"]].concat()), "roce/sim-sweep/2");
    let folder = tempfile::tempdir().unwrap();
    let capture = folder.path().join("demo.pcapng");
    let other = format!("udp:{}", own_address());
    let demo = ["demo", "--json", "--pcap", capture.to_str().unwrap(), "--device", &device, &other];
    check(&document(&demo), "roce/demo/1");
    let mut command = roce();
    let own = own_address().to_string();
    command.args(["ping", "--device", &format!("udp:{own}")]).env("XDG_RUNTIME_DIR", folder.path());
    let mut server = Running::start(&mut command);
    server.wait_for_line("waiting on");
    let mut stat = roce();
    stat.args(["stat", "--all", "--json"]).env("XDG_RUNTIME_DIR", folder.path());
    let stat: Value = serde_json::from_str(&Running::start(&mut stat).finish(60).stdout).unwrap();
    assert!(!stat["processes"].as_array().unwrap().is_empty());
    check(&stat, "roce/stat/1");
}

#[test]
fn documents_of_packets_are_those_of_the_page() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("made.pcapng");
    let mut damaged = frame(Opcode::RC_SEND_ONLY, Psn::new(9), b"damaged");
    damaged.truncate(60);
    let mut frames: Vec<Vec<u8>> =
        [1, 2, 5, 2].map(|psn| frame(Opcode::RC_RDMA_WRITE_ONLY, Psn::new(psn), b"hello")).into();
    frames.push(damaged);
    frames.push(vec![0xff; 60]);
    write_capture(&path, &frames);
    let mut files = vec![path.clone()];
    let kernels =
        ["cm-rping.pcap", "rc-read-lost-responses.pcap.gz", "rc-atomic-fadd.pcap", "ud-pingpong-900.pcap"];
    files.extend(kernels.iter().map(|name| common::kernel_captures().join(name)));
    for file in files {
        let finished = common::run(&["dissect", "--json", file.to_str().unwrap()]);
        for line in finished.stdout.lines() {
            check(&serde_json::from_str(line).unwrap(), "roce/dissect/1");
        }
        for number in [1, 2, 5, 6] {
            let packet = format!("{}:{number}", file.display());
            check(&document(&["explain", "--json", &packet]), "roce/explain/1");
        }
        check(&document(&["inject", file.to_str().unwrap(), "--dry-run", "--json"]), "roce/inject/1");
        check(&document(&["analyze", file.to_str().unwrap(), "--json"]), "roce/analyze/1");
    }
    check(&document(&["explain", "--json"]), "roce/explain/1");
    let mut damaged = frame(Opcode::RC_SEND_ONLY, Psn::new(9), b"damaged.");
    damaged[60] ^= 1;
    let digits: String = damaged.iter().map(|byte| format!("{byte:02x}")).collect();
    let explained = document(&["explain", "--json", &digits]);
    assert_eq!(explained["roce.icrc_mistakes"].as_array().map(Vec::len), Some(1), "{explained}");
    check(&explained, "roce/explain/1");
}

#[test]
fn the_document_of_counters_is_that_of_the_page() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let before =
        write("before", "link mlx5_0/1 out_of_sequence 3 gone 1 odd 1\nNIC statistics:\n strange: 1\n");
    let after =
        write("after", "link mlx5_0/1 out_of_sequence 9 fresh 1 odd 2\nNIC statistics:\n strange: 1\n");
    check(&document(&["counters", &before, &after, "--json"]), "roce/counters/1");
}

#[test]
fn the_document_of_a_bridge_is_that_of_the_page() {
    in_own_network(&["link set lo up"], || {
        let made =
            std::process::Command::new("ip").args(["tuntap", "add", "dev", "t9", "mode", "tap"]).output();
        if common::skip_unless(made.is_ok_and(|made| made.status.success()), "a TAP takes /dev/net/tun") {
            return;
        }
        let bridge =
            ["bridge", "--left", "tap:t0", "--right", "tap:t1", "--duration", "100ms", "--json", "--quiet"];
        check(&document(&bridge), "roce/bridge/1");
    });
}
