//! The files that a packet passes through, from a trace of the functions that ran.
//!
//! Valgrind records every call while one WRITE is posted, and while it is received. A file counts if one of
//! its functions was on the stack when the packet met a station, such as the payload copy or the system call.
//! Functions that only help, such as those of types, do not count.

use roce_testing as common;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use common::{has_program, own_address, skip_unless, within};
use roce::verbs::{
    Access, CompletionQueue, ConnectOptions, Context, QpType, QueuePair, QueuePairOptions, SendOp, SendWr, Wc,
};

/// One way of a packet.
struct Way {
    /// The function of this test below which calls are recorded.
    recorded: &'static str,
    /// Functions that a packet meets.
    stations: &'static [&'static str],
    /// Files whose functions a packet meets, but which the compiler puts into their callers.
    inlined: &'static [&'static str],
    /// The heading of the table in docs/explanation/architecture.md.
    heading: &'static str,
}

const WAYS: [Way; 2] = [
    Way {
        recorded: "posts",
        stations: &[
            "SendQueue::push",
            "SharedMemory as roce_transport::memory::Memory>::read",
            "KnownPath::seal",
            "mmsg::send_run",
        ],
        inlined: &["packet/src/writer.rs", "packet/src/icrc.rs"],
        heading: "| out |",
    },
    Way {
        recorded: "polls",
        stations: &[
            "Inbox<_,_>::fill",
            "udp::receive::deliver",
            "SharedMemory as roce_transport::memory::Memory>::write",
        ],
        inlined: &["packet/src/datagram.rs", "packet/src/icrc.rs"],
        heading: "| in |",
    },
];

/// The part of the trace for the way out.
#[inline(never)]
fn posts(qp: &QueuePair, wr: &SendWr<'_>) {
    qp.post_send(wr).unwrap();
}

/// The part of the trace for the way in.
#[inline(never)]
fn polls(cq: &CompletionQueue, done: &mut [Wc]) {
    cq.poll(done).unwrap();
}

/// Without background threads, so that only these calls move packets, and with a socket of its own.
fn end() -> (Context, CompletionQueue) {
    let device = format!("udp:{},share=off", own_address());
    let context = Context::builder().background(false).open(&device).unwrap();
    let cq = context.create_cq(16, None).unwrap();
    (context, cq)
}

#[test]
fn one_write_arrives() {
    within(120, || {
        let ((near, near_cq), (far, far_cq)) = (end(), end());
        let (near_pd, far_pd) = (near.alloc_pd().unwrap(), far.alloc_pd().unwrap());
        let source = near_pd.allocate(4096, Access::LOCAL_WRITE).unwrap();
        let target = far_pd.allocate(4096, Access::LOCAL_WRITE | Access::REMOTE_WRITE).unwrap();
        let near_qp = near_pd.create_qp(&QueuePairOptions::new(QpType::Rc, &near_cq)).unwrap();
        let far_qp = far_pd.create_qp(&QueuePairOptions::new(QpType::Rc, &far_cq)).unwrap();
        near_qp.connect(&far_qp.endpoint().unwrap(), &ConnectOptions::default()).unwrap();
        far_qp.connect(&near_qp.endpoint().unwrap(), &ConnectOptions::default()).unwrap();
        source.write(0, b"one packet").unwrap();
        let op = SendOp::Write { remote_addr: target.addr(), rkey: target.rkey() };
        posts(&near_qp, &SendWr::new(1, op, &[source.element(0..10)]));
        let (mut done, mut text) = ([Wc::default(); 1], [0; 10]);
        while text != *b"one packet" {
            polls(&far_cq, &mut done);
            target.read(0, &mut text).unwrap();
        }
        while near_cq.poll(&mut done).unwrap() == 0 {}
        assert!(done[0].result().is_ok());
    });
}

/// The calls of a recorded trace.
#[derive(Default)]
struct Trace {
    /// The file of each function.
    files: BTreeMap<String, String>,
    /// All files, also those of functions that the compiler put into others.
    all_files: BTreeSet<String>,
    callers: BTreeMap<String, BTreeSet<String>>,
}

impl Trace {
    /// Runs [`one_write_arrives`] under valgrind, and records the calls below the function `recorded`.
    fn record(recorded: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("calls");
        let mut command = Command::new("valgrind");
        command.arg("--tool=callgrind").arg(format!("--callgrind-out-file={}", out.display()));
        command.arg(format!("--toggle-collect=path::{recorded}"));
        command.arg(std::env::current_exe().unwrap()).args(["--exact", "one_write_arrives"]);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Self::parse(&std::fs::read_to_string(out).unwrap())
    }

    /// Parses the format of callgrind: names are numbers in parentheses, after the first occurrence without
    /// the text.
    fn parse(text: &str) -> Self {
        let (mut files, mut functions) = (BTreeMap::new(), BTreeMap::new());
        let (mut trace, mut file, mut function) = (Self::default(), String::new(), String::new());
        for (key, value) in text.lines().filter_map(|line| line.split_once('=')) {
            match key {
                "fl" | "fi" | "fe" => {
                    file = named(&mut files, value);
                    trace.all_files.insert(file.clone());
                }
                "cfi" | "cfl" => drop(named(&mut files, value)),
                "fn" => {
                    function = named(&mut functions, value);
                    trace.files.entry(function.clone()).or_insert_with(|| file.clone());
                }
                "cfn" => {
                    let called = named(&mut functions, value);
                    trace.callers.entry(called).or_default().insert(function.clone());
                }
                _ => {}
            }
        }
        trace
    }

    /// Returns the files of this workspace with a function that was on the stack of one of the stations, and
    /// the inlined ones.
    #[track_caller]
    fn files_on(&self, way: &Way) -> BTreeSet<String> {
        let mut reached = BTreeSet::new();
        for station in way.stations {
            let met: Vec<_> = self.files.keys().filter(|name| name.ends_with(station)).collect();
            assert!(!met.is_empty(), "no function {station} was called");
            reached.extend(met);
        }
        let mut pending: Vec<_> = reached.iter().copied().collect();
        while let Some(name) = pending.pop() {
            let callers = self.callers.get(name).into_iter().flatten();
            pending.extend(callers.filter(|caller| reached.insert(caller)));
        }
        let files = reached.into_iter().filter_map(|name| self.files.get(name));
        let mut found: BTreeSet<String> = files.filter_map(|file| within_workspace(file)).collect();
        for inlined in way.inlined {
            let is_met = self.all_files.iter().any(|file| file.ends_with(inlined));
            assert!(is_met && found.insert((*inlined).to_owned()), "{inlined} is not inlined");
        }
        found
    }
}

/// Returns the name that a value of callgrind stands for.
fn named(names: &mut BTreeMap<String, String>, value: &str) -> String {
    let (number, name) = value.split_once(')').unwrap_or((value, ""));
    let known = names.entry(number.to_owned()).or_default();
    if !name.trim().is_empty() {
        *known = name.trim().to_owned();
    }
    known.clone()
}

/// Returns the path of a file relative to the root of the workspace, unless it belongs to a test or to
/// another crate.
fn within_workspace(file: &str) -> Option<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let path = Path::new(file).strip_prefix(root).unwrap_or(Path::new(file));
    let is_test = ["tests", "common/testing"].iter().any(|folder| path.starts_with(folder));
    let is_ours = path.is_relative() && root.join(path).is_file() && !is_test;
    is_ours.then(|| path.to_str().map(str::to_owned)).flatten()
}

/// Returns the files in the table with this heading.
fn files_in_table(heading: &str) -> BTreeSet<String> {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/explanation/architecture.md");
    let page = std::fs::read_to_string(page).unwrap();
    let rows = page.lines().skip_while(|line| !line.starts_with(heading)).skip(2);
    let rows = rows.take_while(|line| line.starts_with('|'));
    rows.map(|row| row.split('`').nth(1).expect("a file").to_owned()).collect()
}

#[test]
fn a_packet_passes_through_the_files_of_the_architecture_page() {
    if skip_unless(has_program("valgrind"), "valgrind is not installed") {
        return;
    }
    for way in WAYS {
        let files = Trace::record(way.recorded).files_on(&way);
        let table = files_in_table(way.heading);
        assert_eq!(files, table, "left: the trace; right: the table `{}`", way.heading);
    }
}
