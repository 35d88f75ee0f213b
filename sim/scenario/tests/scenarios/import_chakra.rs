//! Execution traces of Chakra. The samples are written here in the wire format of protocol buffers.

use roce_scenario::Scenario;
use roce_sim::net::{OperationKind, Time};

use super::import::{File, pairs, parse, run, star, start};

const MEM_LOAD: u64 = 2;
const COMP: u64 = 4;
const SEND: u64 = 5;
const RECV: u64 = 6;
const COLL: u64 = 7;

fn varint(mut number: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while number > 0x7f {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
    bytes
}

fn number(field: u64, number: u64) -> Vec<u8> {
    [varint(field << 3), varint(number)].concat()
}

fn bytes(field: u64, bytes: &[u8]) -> Vec<u8> {
    [varint(field << 3 | 2), varint(bytes.len() as u64), bytes.to_vec()].concat()
}

/// An attribute with an `int64_val`.
fn count(name: &str, value: u64) -> Vec<u8> {
    bytes(10, &[bytes(1, name.as_bytes()), number(9, value)].concat())
}

/// An attribute with a `string_val`.
fn text(name: &str, value: &str) -> Vec<u8> {
    bytes(10, &[bytes(1, name.as_bytes()), bytes(29, value.as_bytes())].concat())
}

/// An attribute with a `bool_list`.
fn flags(name: &str, values: &[u8]) -> Vec<u8> {
    bytes(10, &[bytes(1, name.as_bytes()), bytes(28, &bytes(1, values))].concat())
}

/// A node that waits for others, with its duration in microseconds.
fn node(id: u64, kind: u64, waits: &[u8], us: u64, more: &[Vec<u8>]) -> Vec<u8> {
    let own = [number(1, id), bytes(2, b"a name"), number(3, kind), bytes(5, waits), number(7, us)];
    [own.concat(), more.concat()].concat()
}

/// A file: metadata and nodes, each behind its length.
fn file(nodes: &[Vec<u8>]) -> Vec<u8> {
    let delimited = |message: &[u8]| [varint(message.len() as u64), message.to_vec()].concat();
    let metadata = delimited(&bytes(1, b"0.0.4"));
    nodes.iter().fold(metadata, |file, node| [file, delimited(node)].concat())
}

/// The nodes of a rank of the sample.
fn nodes(rank: usize) -> Vec<Vec<u8>> {
    let mut nodes = vec![
        node(1, COMP, &[], 5, &[]),
        node(2, COLL, &[1], 0, &[count("comm_type", 0), count("comm_size", 8_000)]),
        // A control dependency that is not packed.
        [node(3, COMP, &[], 3, &[]), number(4, 2)].concat(),
        node(6, MEM_LOAD, &[], 2, &[]),
    ];
    let message = |key: &str, peer: u64| [count(key, peer), count("comm_size", 3_000), count("comm_tag", 5)];
    nodes.push(match rank {
        0 => node(4, SEND, &[3], 0, &message("comm_dst", 1)),
        1 => node(4, RECV, &[1], 0, &message("comm_src", 0)),
        _ => {
            let gather = [count("comm_type", 2), count("comm_size", 1_000), text("pg_name", "7")];
            node(4, COLL, &[3], 0, &gather)
        }
    });
    nodes.push(node(5, COMP, &[4], 1, &[count("is_cpu_op", 1)]));
    nodes
}

fn trace(change: impl Fn(usize, &mut Vec<Vec<u8>>)) -> Vec<File> {
    let one = |rank| {
        let mut nodes = nodes(rank);
        change(rank, &mut nodes);
        (format!("x.{rank}.et"), file(&nodes))
    };
    let groups = ("groups.json".to_owned(), b"{\n  \"3\": [0, 1],\n  \"7\": [2, 3]\n}\n".to_vec());
    (0..4).map(one).chain([groups]).collect()
}

const TABLE: &str = "kind = \"chakra\"\nfile = \"x\"\ngroups = \"groups.json\"";

pub(super) fn sample() -> (String, Vec<File>) {
    (star(4, TABLE), trace(|_, _| {}))
}

fn kinds(scenario: &Scenario) -> Vec<(OperationKind, u64, &[u32])> {
    scenario.operations.iter().map(|one| (one.kind, one.bytes, &*one.hosts)).collect()
}

#[test]
fn nodes_begin_after_those_that_they_wait_for() {
    let (text, files) = sample();
    let scenario = parse(&text, &files).unwrap();
    // A ring of 2 × 3 steps of 2,000 bytes, a message on one of its links, and parts of 1,000 bytes.
    let ring = 6 * 2_000;
    let expected = [(0, 1, ring + 3_000), (1, 2, ring), (2, 3, ring + 1_000), (3, 0, ring), (3, 2, 1_000)];
    assert_eq!(pairs(&scenario), expected);
    assert_eq!(
        kinds(&scenario),
        [
            (OperationKind::Step, 0, &[0, 1, 2, 3][..]),
            (OperationKind::AllReduce, 8_000, &[0, 1, 2, 3]),
            (OperationKind::AllGather, 2_000, &[2, 3]),
        ]
    );
    assert_eq!(
        scenario.warnings,
        [
            "x: 4 nodes of memory or storage: they take the time that was recorded, and do not share a resource"
        ]
    );
    let results = run(&scenario);
    assert_eq!(start(&results, 1, 2), Time::from_us(5), "after the first computation");
    let at = |task: u32| results.task_ends[task as usize].unwrap();
    let (sum, gather) = (&scenario.operations[1], &scenario.operations[2]);
    assert_eq!(at(gather.begins[0]), at(sum.ends[2]) + Time::from_us(3));
    let whole = &scenario.operations[0];
    assert_eq!(at(whole.ends[3]), at(gather.ends[1]) + Time::from_us(1));
    assert!(at(whole.ends[1]) > at(sum.ends[0]) + Time::from_us(3 + 2 + 1), "the message of rank 0");
}

/// Two computations of a GPU follow each other, and one of the CPU does not wait for them.
#[test]
fn a_gpu_computes_one_node_at_a_time() {
    let files = trace(|rank, nodes| {
        *nodes = vec![
            node(1, COMP, &[], 5, &[]),
            node(2, COMP, &[], 7, &[count("is_cpu_op", 0)]),
            node(3, COMP, &[], 11, &[count("is_cpu_op", 1)]),
        ];
        if rank == 0 {
            nodes.push(node(4, SEND, &[3], 0, &[count("comm_dst", 1), count("comm_size", 1)]));
        } else if rank == 1 {
            nodes.push(node(4, RECV, &[], 0, &[count("comm_src", 0), count("comm_size", 1)]));
        }
    });
    let scenario = parse(&star(4, TABLE), &files).unwrap();
    let results = run(&scenario);
    assert_eq!(start(&results, 0, 1), Time::from_us(11));
    let end = results.task_ends[scenario.operations[0].ends[3] as usize];
    assert_eq!(end, Some(Time::from_us(12)));
}

/// A collective operation has the ranks of its group, of its dimensions, or all.
#[test]
fn groups_come_from_a_file_from_metadata_or_from_dimensions() {
    let only = |more: Vec<Vec<u8>>, extra: Vec<Vec<u8>>| {
        trace(move |_, nodes| {
            let reduce = [vec![count("comm_type", 7), count("comm_size", 600)], more.clone()].concat();
            *nodes = extra.clone();
            nodes.push(node(9, COLL, &[], 0, &reduce));
        })
    };
    let hosts = |table: &str, files: &[File]| -> Vec<Vec<u32>> {
        let scenario = parse(&star(4, table), files).unwrap();
        run(&scenario);
        scenario.operations.iter().skip(1).map(|one| one.hosts.to_vec()).collect()
    };
    let plain = "kind = \"chakra\"\nfile = \"x\"\nalgorithm = \"halving-doubling\"";
    assert_eq!(hosts(plain, &only(vec![], vec![])), [[0, 1, 2, 3]]);
    assert_eq!(hosts(plain, &only(vec![text("pg_name", "0")], vec![])), [[0, 1, 2, 3]]);
    let pairs = [[0, 2], [1, 3]];
    let along = only(vec![flags("involved_dim", &[0, 1, 1])], vec![]);
    assert_eq!(hosts(&format!("{plain}\ndimensions = [2, 2]"), &along), pairs);
    let inputs = b"['[{\"pg_name\": \"4\", \"ranks\": [0, 2], \"desc\": null}, {\"pg_name\": \"5\", \"ranks\": [1, 3]}]']";
    let metadata = node(1, 1, &[], 0, &[bytes(8, &bytes(1, inputs))]);
    let recorded = trace(|rank, nodes| {
        let name = ["4", "5"][rank % 2];
        let reduce = [count("comm_type", 7), count("comm_size", 600), text("pg_name", name)];
        *nodes = vec![metadata.clone(), node(9, COLL, &[], 0, &reduce)];
    });
    assert_eq!(hosts(plain, &recorded), pairs);

    let error = |files: &[File]| parse(&star(4, plain), files).unwrap_err();
    assert_eq!(
        error(&along),
        "line 5: x.0.et, node 9: involved_dim selects some dimensions of a network, which are unknown; add `dimensions` \
         with their sizes, such as [8, 4]"
    );
    assert_eq!(
        error(&only(vec![text("pg_name", "7")], vec![])),
        "line 5: x.0.et, node 9: the group 7 is unknown; name the file of communicator groups with `groups`"
    );
}

#[test]
fn what_is_wrong_names_file_and_node() {
    let error = |change: &dyn Fn(usize, &mut Vec<Vec<u8>>)| {
        parse(&star(4, TABLE), &trace(change)).unwrap_err().strip_prefix("line 5: ").unwrap().to_owned()
    };
    let last = |nodes: Vec<u8>| {
        move |rank: usize, all: &mut Vec<Vec<u8>>| {
            if rank == 1 {
                all.push(nodes.clone());
            }
        }
    };
    for (added, reason) in [
        (node(1, COMP, &[], 0, &[]), "node 1: another node has the same id"),
        (node(9, COMP, &[8], 0, &[]), "node 9: it waits for node 8, which is not in the file"),
        (
            node(9, COMP, &[9], 0, &[]),
            "node 9: this operation never begins: it waits for itself through other operations",
        ),
        (node(9, 11, &[], 0, &[]), "node 9: the type 11 is not known; the types of schema 0.0.4 are 0 to 10"),
        (node(9, SEND, &[], 0, &[]), "node 9: comm_dst is missing"),
        (
            node(9, SEND, &[], 0, &[count("comm_dst", 1)]),
            "node 9: comm_dst is the rank itself, which sends nothing over the network",
        ),
        (node(9, RECV, &[], 0, &[count("comm_src", 4)]), "node 9: comm_src is 4, but there are 4 ranks"),
        (node(9, SEND, &[], 0, &[count("comm_dst", 2)]), "node 9: comm_size is missing"),
        (node(9, SEND, &[], 0, &[text("comm_dst", "2")]), "node 9: comm_dst is not a number"),
        (
            node(9, SEND, &[], 0, &[count("comm_dst", 2), count("comm_size", u64::MAX)]),
            "node 9: comm_size is 18446744073709551615; at most 281474976710656 bytes are possible",
        ),
        (
            node(9, SEND, &[], 0, &[count("comm_dst", 2), count("comm_size", 4)]),
            "node 9: rank 2 never receives this message from rank 1 with tag 0",
        ),
        (node(9, COLL, &[], 0, &[count("comm_size", 4)]), "node 9: comm_type is missing"),
        (
            node(9, COLL, &[], 0, &[count("comm_size", 4), count("comm_type", 1)]),
            "node 9: comm_type 1 (REDUCE) is not simulated; there are ALL_REDUCE, ALL_GATHER, BROADCAST, ALL_TO_ALL, REDUCE_SCATTER and BARRIER",
        ),
        (
            node(9, COLL, &[], 0, &[count("comm_size", 4), count("comm_type", 0)]),
            "node 9: rank 0 does not take part in this all-reduce, so it would never end",
        ),
        (
            node(9, COLL, &[], 0, &[count("comm_size", 4), count("comm_type", 0), text("pg_name", "7")]),
            "node 9: rank 1 is not in the group of this operation",
        ),
        (number(1, 9)[..1].to_vec(), "byte "),
    ] {
        let found = error(&last(added));
        assert!(found.starts_with(&format!("x.1.et, {reason}")), "{reason}: {found}");
    }
    let other = error(&|rank, nodes| {
        if rank == 2 {
            nodes[1] = node(2, COLL, &[1], 0, &[count("comm_type", 0), count("comm_size", 8_001)]);
        }
    });
    assert_eq!(
        other,
        "x.2.et, node 2: operation 0 of its group is all-reduce of 8001 bytes at rank 2, and all-reduce of 8000 bytes at \
         another rank"
    );
}

#[test]
fn what_is_wrong_with_files_is_told() {
    let (text, files) = sample();
    let error = |name: &str, bytes: Option<&[u8]>| {
        let mut files = files.clone();
        match bytes {
            Some(bytes) => files.iter_mut().find(|(known, _)| known == name).unwrap().1 = bytes.to_vec(),
            None => files.retain(|(known, _)| known != name),
        }
        parse(&text, &files).unwrap_err().strip_prefix("line 5: ").unwrap().to_owned()
    };
    assert_eq!(error("x.3.et", None), "cannot read x.3.et; `hosts` selects one host for each of the 4 ranks");
    assert_eq!(error("x.3.et", Some(&[])), "x.3.et, byte 0: a number has no end");
    assert_eq!(
        error("x.3.et", Some(&[0x1f, 0x8b, 8])),
        "x.3.et, the file is compressed; decompress it with gunzip"
    );
    assert_eq!(
        error("x.3.et", Some(&[9, 1])),
        "x.3.et, byte 1: a field is longer than the 1 bytes that are left"
    );
    let shape = "the file has the form {\"1\": [0, 1], \"2\": [2, 3]}";
    assert_eq!(error("groups.json", Some(b"{\n\"1\" [0]}")), format!("groups.json, line 2: {shape}"));
    assert_eq!(
        error("groups.json", Some(b"{\"1\": [0, 4]}")),
        "groups.json, the group 1 has rank 4, but there are 4 ranks"
    );
    assert_eq!(
        error("groups.json", Some(b"{\"1\": [0, 0]}")),
        "groups.json, the group 1 has no ranks, or one of them twice"
    );
}
