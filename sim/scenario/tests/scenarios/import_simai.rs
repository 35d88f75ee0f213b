//! Workloads of SimAI.

use roce_sim::net::{OperationKind, Time};

use super::import::{File, pairs, parse, run, star};

const SIMAI: &str = "\
HYBRID_TRANSFORMER_FWD_IN_BCKWD model_parallel_NPU_group: 2 ep: 2 pp: 1 vpp: 1 ga: 1 all_gpus: 8 checkpoints: 0 \
checkpoint_initiates: 0 pp_comm: 0
3
embedding\t-1\t1000\tALLREDUCE\t8000\t1\tNONE\t0\t1\tNONE\t0\t10
attention\t-1\t2000\tALLGATHER\t4000\t3000\tREDUCESCATTER\t4000\t500\tREDUCESCATTER\t6000\t10
moe       -1  100   ALLTOALL_EP 2000  100   ALLTOALL_EP    2000  50   ALLREDUCE_DP_EP 3000  10
";

pub(super) fn sample() -> (String, Vec<File>) {
    (star(9, "kind = \"simai\"\nfile = \"x.txt\""), vec![("x.txt".to_owned(), SIMAI.into())])
}

fn parse_text(text: &str) -> Result<roce_scenario::Scenario, String> {
    parse(&sample().0, &[("x.txt".to_owned(), text.into())])
}

#[test]
fn layers_compute_and_communicate_in_their_groups() {
    let scenario = parse_text(SIMAI).unwrap();
    let bytes: u64 = pairs(&scenario).iter().map(|(.., bytes)| bytes).sum();
    // Twice the buffer for an all-reduce of two ranks, once for the others, and three times for four ranks.
    let expected = 4 * 2 * 8_000 + 4 * 4_000 + 2 * 4 * 2_000 + 4 * 2 * 3_000 + 4 * 4_000 + 2 * 3 * 6_000;
    assert_eq!((scenario.flows.len(), bytes), (28, expected));
    let whole = &scenario.operations[0];
    assert_eq!((whole.kind, &*whole.hosts), (OperationKind::Step, &[0, 1, 2, 3, 4, 5, 6, 7][..]));
    let hosts = |kind: OperationKind| -> Vec<Vec<u32>> {
        let all = scenario.operations.iter().filter(|operation| operation.kind == kind);
        all.map(|operation| operation.hosts.to_vec()).collect()
    };
    let pairs = |of: [[u32; 2]; 4]| of.map(|pair| pair.to_vec()).to_vec();
    let tensor = pairs([[0, 1], [2, 3], [4, 5], [6, 7]]);
    let expert = pairs([[0, 2], [1, 3], [4, 6], [5, 7]]);
    let same_expert = pairs([[0, 4], [1, 5], [2, 6], [3, 7]]);
    assert_eq!(hosts(OperationKind::AllReduce), [tensor.clone(), same_expert].concat());
    assert_eq!(hosts(OperationKind::AllGather), tensor);
    assert_eq!(hosts(OperationKind::AllToAll), [expert.clone(), expert].concat());
    let data = vec![vec![0, 2, 4, 6], vec![1, 3, 5, 7]];
    assert_eq!(hosts(OperationKind::ReduceScatter), [tensor, data].concat());
    assert_eq!(scenario.operations.len(), 1 + 26);

    let results = run(&scenario);
    let of = |kind: OperationKind| {
        let found = scenario.operations.iter().find(|operation| operation.kind == kind).unwrap();
        let at = |task: u32| results.task_ends[task as usize].unwrap();
        (at(found.begins[0]), at(found.ends[0]))
    };
    let (sum, gather, exchange) =
        (of(OperationKind::AllReduce), of(OperationKind::AllGather), of(OperationKind::AllToAll));
    assert_eq!(sum.0, Time::from_us(1), "the first layer");
    assert_eq!(gather.0, sum.1 + Time::from_ns(10 + 2_000), "the next layer, after the update");
    assert_eq!(exchange.0, gather.1 + Time::from_ns(10 + 100));
    let time = whole.result(&results.task_ends).time.unwrap();
    assert!(time > Time::from_ns(3_100 + 3_652) && time < Time::from_us(200), "{time}");
}

/// In the next pass, a layer waits for the sum of its weight gradients, which was added meanwhile.
#[test]
fn passes_repeat_and_layers_are_computed_again() {
    let twice = star(8, "kind = \"simai\"\nfile = \"x.txt\"\nrepeat = 2");
    let scenario = parse(&twice, &sample().1).unwrap();
    assert_eq!(scenario.operations.len(), 2 * 27);
    let results = run(&scenario);
    let [first, second] = [0, 1].map(|pass| scenario.operations[pass].result(&results.task_ends));
    let end = first.begin.unwrap() + first.time.unwrap();
    assert!(second.begin.unwrap() < end, "{first:?} {second:?}");

    let again = SIMAI.replace("checkpoints: 0", "checkpoints: 1 0").replace("initiates: 0", "initiates: 1 2");
    let scenario = parse_text(&again).unwrap();
    // The forward operations of the two layers before the last one are repeated.
    assert_eq!(scenario.operations.len(), 1 + 26 + 8);
    run(&scenario);
}

#[test]
fn what_is_wrong_names_file_and_line() {
    let error = |from: &str, to: &str| {
        assert!(SIMAI.contains(from), "{from}");
        parse_text(&SIMAI.replacen(from, to, 1)).unwrap_err()
    };
    let kinds = "is not simulated; there are NONE, ALLREDUCE, ALLGATHER, REDUCESCATTER and ALLTOALL, also with _EP and _DP_EP";
    for (from, to, reason) in [
        ("HYBRID_TRANSFORMER_FWD_IN_BCKWD", "HYBRID_DLRM", "line 1: \"HYBRID_DLRM\" is not simulated; there are HYBRID_TRANSFORMER_FWD_IN_BCKWD and HYBRID_TRANSFORMER".to_owned()),
        ("all_gpus: 8", "all_gpus: 7", "line 1: all_gpus is 7, which must be a multiple of model_parallel_NPU_group times pp, 2".to_owned()),
        ("all_gpus: 8", "all_gpus: 16", "line 1: all_gpus: 16 ranks need as many hosts, and there are 9; use a larger topology".to_owned()),
        ("ep: 2", "ep: 3", "line 1: ep is 3, which must divide the 4 replicas (all_gpus over model_parallel_NPU_group and pp)".to_owned()),
        ("\n3\n", "\n4\n", "line 2: the file announces 4 layers, and has 3; 1 is the least".to_owned()),
        ("\n3\n", "\n2\n", "line 5: the file announces 2 layers, and this is another one".to_owned()),
        ("\n3\n", "\nthree\n", "line 2: the number of layers: \"three\" is not a whole number from 0 to 1048576".to_owned()),
        ("\tALLREDUCE\t", "\tALLREDUCEALLTOALL\t", format!("line 3: \"ALLREDUCEALLTOALL\" {kinds}")),
        ("\tALLREDUCE\t", "\tBROADCAST\t", format!("line 3: \"BROADCAST\" {kinds}")),
        ("\t1000\t", "\t-1\t", "line 3: the computation time: \"-1\" is not a whole number from 0 to 281474976710656".to_owned()),
        ("\t1000\t", "\t", "line 3: 11 fields; a layer has 12".to_owned()),
        ("initiates: 0", "initiates: 1 1", "line 1: checkpoint_initiates: no checkpoint precedes layer 1".to_owned()),
    ] {
        let found = error(from, to);
        let expected = format!("line 5: x.txt, {reason}");
        assert!(found.starts_with(&expected), "{from} -> {to}: {found}\nnot {expected}");
    }
}

#[test]
fn messages_between_stages_are_ignored_with_a_warning() {
    let staged = SIMAI.replace("ep: 2 pp: 1", "ep: 1 pp: 2").replace("pp_comm: 0", "pp_comm 4096 seq_len: 7");
    let scenario = parse_text(&staged).unwrap();
    assert_eq!(
        scenario.warnings,
        [
            "x.txt: pp_comm: messages between stages are not simulated",
            "x.txt: seq_len: this key of the header has no effect"
        ]
    );
    run(&scenario);
}
