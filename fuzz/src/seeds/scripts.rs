//! Scripts of records for the targets that drive an engine: valid sequences that the fuzzer can damage.

use roce_packet::{Opcode, Syndrome};

use super::Seeds;
use crate::api::{self, Action};
use crate::{requester, responder};

pub(super) fn add(seeds: &mut Seeds) {
    for (name, steps) in responder_scripts() {
        let bytes = steps.iter().flat_map(|step| step.to_bytes()).collect();
        seeds.insert(("responder", name.to_owned()), bytes);
    }
    for (name, steps) in requester_scripts() {
        for settings in [0x00_u8, 0x59, 0xaa] {
            let records = steps.iter().flat_map(|step| step.to_bytes());
            let bytes = std::iter::once(settings).chain(records).collect();
            seeds.insert(("requester", format!("{name}-{settings:02x}")), bytes);
        }
    }
    for (name, steps) in api_scripts() {
        let bytes = steps.iter().flat_map(|step| step.to_bytes()).collect();
        seeds.insert(("api", name.to_owned()), bytes);
    }
}

type Script<S> = (&'static str, Vec<S>);

/// Returns a packet with this opcode for this queue pair; all other fields are correct.
fn packet(queue: u8, opcode: Opcode) -> responder::Step {
    responder::Step {
        opcode: opcode.0,
        queue,
        flags: responder::FLAG_ACK_REQUEST | responder::FLAG_REVIVE,
        payload: 60,
        fill: 4,
        ..responder::Step::default()
    }
}

fn responder_scripts() -> Vec<Script<responder::Step>> {
    let post = |queue| responder::Step { action: 0xf1, queue, ..responder::Step::default() };
    let mut all = Vec::new();
    for (name, queue, base) in
        [("rc", 0, 0x00_u8), ("rc-shared", 1, 0x00), ("rc-rtr", 2, 0x00), ("uc", 3, 0x20)]
    {
        let at = |offset: u8| packet(queue, Opcode(base | offset));
        // SEND and WRITE, in one packet and in three, with and without immediate data.
        let numbers = [4, 0, 1, 2, 5, 10, 6, 7, 8, 11, 6, 9, 3];
        let mut steps: Vec<_> = numbers.into_iter().map(at).collect();
        steps.insert(4, post(queue));
        steps[7].length = 300;
        all.push((name, steps));
    }
    let rc = |opcode| packet(0, opcode);
    let read = responder::Step { length: 700, ..rc(Opcode::RC_RDMA_READ_REQUEST) };
    all.push((
        "rc-answers",
        vec![
            read,
            rc(Opcode::RC_COMPARE_SWAP),
            rc(Opcode::RC_FETCH_ADD),
            rc(Opcode::RC_ATOMIC_WRITE),
            rc(Opcode::RC_FLUSH),
            // Repetitions: from the start, and from the middle of the READ.
            responder::Step { psn: -7, ..read },
            responder::Step { psn: -3, ..rc(Opcode::RC_COMPARE_SWAP) },
            responder::Step { psn: -5, offset: 512, length: 188, ..read },
        ],
    ));
    all.push(("ud", (0..4).map(|index| packet(4 + index % 2, Opcode(0x64 + index / 2))).collect()));
    // One WRITE and one READ per region at its start, across its end, and around address zero.
    let mut edges = Vec::new();
    for key in 0..9 {
        for offset in [0, 4096 - 61, 4096 - 60, -1] {
            let key = if offset < 0 { key | 0x80 } else { key };
            edges.push(responder::Step { key, offset, ..rc(Opcode::RC_RDMA_WRITE_ONLY) });
            edges.push(responder::Step { key, offset, length: 61, ..rc(Opcode::RC_RDMA_READ_REQUEST) });
        }
    }
    all.push(("edges", edges));
    all.push(("one-of-each", (0..=0x17).map(|number| rc(Opcode(number))).collect()));
    all.push((
        "revoked",
        vec![
            responder::Step { length: 600, ..rc(Opcode::RC_RDMA_WRITE_FIRST) },
            responder::Step { action: 0xf8, key: 0, ..responder::Step::default() },
            rc(Opcode::RC_RDMA_WRITE_MIDDLE),
            responder::Step { action: 0xf9, key: 0, ..responder::Step::default() },
            rc(Opcode::RC_RDMA_WRITE_ONLY),
            responder::Step { action: 0xfd, offset: 64, length: 128, ..responder::Step::default() },
            responder::Step { key: 0x80, offset: 64, ..rc(Opcode::RC_RDMA_WRITE_ONLY) },
        ],
    ));
    all.push((
        "gap",
        vec![
            responder::Step { psn: 1, ..rc(Opcode::RC_SEND_ONLY) },
            responder::Step { psn: 2, ..rc(Opcode::RC_SEND_ONLY) },
            rc(Opcode::RC_SEND_ONLY),
            responder::Step { psn: -1, ..rc(Opcode::RC_SEND_ONLY) },
            responder::Step { psn: i8::MIN, ..rc(Opcode::RC_SEND_ONLY) },
        ],
    ));
    all
}

fn requester_scripts() -> Vec<Script<requester::Step>> {
    let post = |operation: usize, length| requester::Step {
        operation: u8::try_from(operation).unwrap_or(0),
        length,
        ..requester::Step::default()
    };
    let answer = requester::Step { action: 0x60, ..requester::Step::default() };
    let wait = requester::Step { action: 0xe0, ..requester::Step::default() };
    let resume = requester::Step { action: 0xea, ..requester::Step::default() };
    let count = requester::OPERATIONS.len();
    let mut each: Vec<_> = (0..count - 2).flat_map(|index| [post(index, 90), answer]).collect();
    each.extend([post(10, 0), post(11, 0)]);
    let mut long: Vec<_> = [0, 3, 5, 4].into_iter().map(|index| post(index, 1000)).collect();
    long.extend([answer; 16]);
    let mut lost = long.clone();
    lost[5] = wait;
    lost[8] = requester::Step {
        syndrome: Syndrome::Nak(roce_packet::NakCode::PsnSequence).to_byte(),
        rule: 1,
        ..answer
    };
    lost[10] = requester::Step { syndrome: 0x20 | 5, rule: 1, ..answer };
    lost[11] = wait;
    let mut fenced: Vec<_> = [5, 6, 7, 8, 9, 3].into_iter().map(|index| post(index, 300)).collect();
    fenced[5].flags = 2;
    fenced.extend([answer; 10]);
    let drained = vec![
        post(5, 700),
        requester::Step { action: 0xe9, ..wait },
        post(3, 40),
        answer,
        answer,
        answer,
        resume,
        answer,
    ];
    let refused = vec![
        post(3, 600),
        requester::Step { syndrome: 0x62, rule: 1, ..answer },
        requester::Step { flags: requester::FLAG_REVIVE, ..post(5, 600) },
        requester::Step { payload_rule: 1, ..answer },
        requester::Step { flags: requester::FLAG_REVIVE, ..post(6, 8) },
        requester::Step { rule: 2, operation: Opcode::RC_RDMA_READ_RESPONSE_ONLY.0, ..answer },
    ];
    let skipped =
        vec![post(5, 1024), answer, requester::Step { skip: 1, ..answer }, answer, wait, answer, answer];
    vec![
        ("one-of-each", each),
        ("long", long),
        ("lost", lost),
        ("fenced", fenced),
        ("drained", drained),
        ("refused", refused),
        ("skipped", skipped),
    ]
}

fn api_scripts() -> Vec<Script<api::Step>> {
    let of = api::Step::of;
    let set_up = |kind| {
        let register = api::Step { size: 2048, rights: 0xdf, ..of(Action::Register) };
        let create = api::Step { kind, srq: 0xff, ..of(Action::CreateQp) };
        let connect = api::Step { other: 1, ..of(Action::Connect) };
        vec![of(Action::AllocatePd), of(Action::CreateCq), register, create, create, connect]
    };
    let receive = |qp| api::Step { qp, size: 900, ..of(Action::PostReceive) };
    let send = |kind| api::Step { kind, flags: 2, size: 700, number: 16, fill: 100, ..of(Action::PostSend) };
    let poll = api::Step { size: 9, fill: 15, ..of(Action::Poll) };
    let removals = [Action::DestroyQp, Action::Deregister, Action::DestroyCq, Action::DeallocatePd];
    let mut all = Vec::new();
    for (name, kind, last) in [("rc", 0, 10), ("uc", 1, 5)] {
        let mut steps = set_up(kind);
        steps.extend([receive(1), receive(1), receive(1)]);
        for op in 0..last {
            let size = if (6..9).contains(&op) { 8 } else { 700 };
            steps.extend([api::Step { size, ..send(op) }, of(Action::Drive), poll]);
        }
        steps.extend(removals.map(of));
        all.push((name, steps));
    }
    let mut datagrams = set_up(2);
    datagrams.push(of(Action::Group));
    datagrams.extend([receive(0), receive(1)]);
    datagrams.extend([0x12, 0x32].map(|flags| api::Step { flags, other: 0, size: 300, ..send(1) }));
    datagrams.extend([of(Action::Drive), poll]);
    all.push(("ud", datagrams));
    let mut lossy = set_up(0);
    lossy.extend([send(0), send(2), send(2)]);
    for _ in 0..4 {
        lossy.extend([api::Step { flags: 1, fill: 0x24, ..of(Action::Drive) }, of(Action::Wait)]);
    }
    lossy.extend([
        api::Step { kind: 1, ..of(Action::MoveQp) },
        of(Action::Drive),
        of(Action::DestroyQp),
        poll,
    ]);
    all.push(("lossy", lossy));
    let mut windows = set_up(0);
    let window = api::Step { kind: 1, ..of(Action::AllocateWindow) };
    windows.extend([of(Action::AllocateWindow), window]);
    windows.push(api::Step { size: 512, rights: 6, ..of(Action::BindWindow) });
    windows.push(api::Step { size: 0, window: 1, rights: 6, fill: 3, kind: 10, ..of(Action::PostSend) });
    windows.extend([api::Step { rights: 1, ..send(0) }, of(Action::Drive), poll]);
    windows.extend([Action::Deregister, Action::DeallocateWindow, Action::Deregister].map(of));
    all.push(("windows", windows));
    let mut shared = vec![of(Action::AllocatePd), of(Action::CreateCq), of(Action::CreateSrq)];
    shared.extend(set_up(0).drain(2..));
    for step in &mut shared {
        step.srq = 0;
    }
    shared.push(api::Step { size: 1, ..of(Action::ArmSrq) });
    shared.extend([
        api::Step { size: 900, ..of(Action::PostSharedReceive) },
        send(1),
        of(Action::Drive),
        poll,
    ]);
    shared.extend([Action::DestroySrq, Action::DestroyQp, Action::DestroySrq].map(of));
    all.push(("shared", shared));
    all.push(("everything", (0..27).map(|action| api::Step { action, ..api::Step::default() }).collect()));
    all
}
