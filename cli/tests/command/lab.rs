//! Students who follow `docs/lessons/lab.md` find what its table of grades expects.
//!
//! The commands come from the page: each code block of a step runs as its comments say, `# terminal 1` before
//! the command of `# terminal 2` that needs the server. Every student is an ordinary user in a network
//! namespace, and several work at the same time. `ROCE_STUDENTS=20` is the number that the page promises.
//! Step 4 takes place in the browser; `tools/web/browser/test_lab.py` visits it.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use roce_testing::Namespace;
use serde_json::Value;

use crate::common::{Finished, Running, as_nobody, share_command, shell_of_user, skip_unless, within};

const LESSONS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/lessons");
/// Number of students without `ROCE_STUDENTS`.
const STUDENTS: usize = 2;
/// Number of students for whom the page is written.
const MOST_STUDENTS: usize = 20;
/// Number of times that a student does a step. On a busy machine, packets are also sent again without a loss.
const TRIES: usize = 5;
/// Time limit of a command, in seconds.
const LIMIT: u64 = 120;

/// Returns the code blocks of a language in a section of the page.
fn blocks(section: &str, language: &str) -> Vec<String> {
    let page = fs::read_to_string(format!("{LESSONS}/lab.md")).unwrap();
    let (_, from) = page.split_once(&format!("\n## {section}")).expect("a section of the page");
    let text = from.split("\n## ").next().unwrap_or_default();
    let parts = text.split("```").skip(1).step_by(2);
    parts.filter_map(|part| part.strip_prefix(language)?.strip_prefix('\n')).map(str::to_owned).collect()
}

/// Returns the lines of a code block. A line that ends with a backslash continues.
fn lines(block: &str) -> Vec<String> {
    block.replace("\\\n", " ").lines().map(str::to_owned).collect()
}

struct Student {
    number: usize,
    namespace: Namespace,
    folder: PathBuf,
    /// The folder with the command and the lessons, which all students read.
    shared: PathBuf,
}

impl Student {
    fn start(&self, line: &str) -> Running {
        let mut command = shell_of_user(line, &self.shared, &self.folder);
        command.env("LAB", &self.shared);
        self.namespace.run(move || Running::start(&mut command))
    }

    fn try_line(&self, line: &str) -> Finished {
        self.start(line).finish(LIMIT)
    }

    fn run(&self, line: &str) -> Result<String, String> {
        let finished = self.try_line(line);
        if finished.success { Ok(finished.stdout) } else { Err(format!("{line}: {finished:?}")) }
    }

    /// Runs the commands of a block, each client with a new server. Of several clients, only the one that
    /// writes `file` runs, if there is a `file`.
    fn perform(&self, block: &str, file: Option<&str>) -> Result<(), String> {
        let (mut is_server, mut server) = (false, String::new());
        for line in lines(block) {
            if line.starts_with("# terminal") {
                is_server = line.starts_with("# terminal 1");
            } else if is_server {
                server = line;
            } else if file.is_some_and(|file| !line.contains(file)) {
                // It belongs to another run of the step.
            } else if line.starts_with("roce blast 127.0.0.1 ") {
                self.run_pair(&server, &line)?;
            } else {
                self.run(&line)?;
            }
        }
        Ok(())
    }

    fn run_pair(&self, server: &str, client: &str) -> Result<(), String> {
        // A signal reaches the command instead of the shell.
        let mut serving = self.start(&format!("exec {server}"));
        serving.wait_for_line("waiting on");
        self.run(client)?;
        let finished = serving.finish(LIMIT);
        if finished.success { Ok(()) } else { Err(format!("{server}: {finished:?}")) }
    }

    /// Does a step until its captures show what they should.
    #[track_caller]
    fn until(&self, done: impl Fn() -> Result<(), String>) {
        let failures: Vec<String> = (0..TRIES).map_while(|_| done().err()).collect();
        assert!(failures.len() < TRIES, "student {}: {failures:#?}", self.number);
    }

    /// Does something that needs no second try.
    #[track_caller]
    fn must<T>(&self, result: Result<T, String>) -> T {
        result.unwrap_or_else(|failure| panic!("student {}: {failure}", self.number))
    }

    fn packets(&self, file: &str) -> Vec<Packet> {
        let text = self.must(self.run(&format!("roce dissect --json {file}")));
        text.lines().map(|line| Packet(serde_json::from_str(line).unwrap())).collect()
    }

    /// Returns the number of copies of request packets in the capture of a requester.
    fn sent_again(&self, file: &str) -> usize {
        let packets = self.packets(file);
        let sent: Vec<u64> = packets.iter().filter(|packet| packet.is_write()).map(Packet::psn).collect();
        sent.len() - sent.iter().collect::<BTreeSet<_>>().len()
    }
}

/// A packet, as `roce dissect --json` describes it.
struct Packet(Value);

impl Packet {
    fn number(&self, field: &str) -> Option<u64> {
        self.0[format!("infiniband.{field}")].as_u64()
    }

    fn psn(&self) -> u64 {
        self.number("bth.psn").expect("a PSN")
    }

    fn opcode(&self) -> &str {
        self.0["roce.opcode"].as_str().unwrap_or_default()
    }

    fn is_write(&self) -> bool {
        self.opcode().starts_with("RC_RDMA_WRITE")
    }

    fn is_nak(&self) -> bool {
        self.number("aeth.syndrome.opcode") == Some(3)
    }

    /// Virtual address in the RETH.
    fn va(&self) -> Option<u64> {
        u64::from_str_radix(self.0["infiniband.reth.va"].as_str()?.trim_start_matches("0x"), 16).ok()
    }
}

/// Returns `then - first`, for PSNs.
fn distance(first: u64, then: u64) -> u64 {
    then.wrapping_sub(first) & 0xff_ffff
}

fn expect(holds: bool, what: &str) -> Result<(), String> {
    if holds { Ok(()) } else { Err(what.to_owned()) }
}

fn one_write(student: &Student) -> Result<(), String> {
    student.perform(&blocks("Step 1", "sh")[0], None)?;
    let packets = student.packets("step1.pcapng");
    let sent: Vec<&Packet> = packets.iter().filter(|packet| packet.is_write()).collect();
    let [first, middle, last] = sent[..] else { return Err(format!("{} packets of a WRITE", sent.len())) };
    let psns = [middle, last].map(|packet| distance(first.psn(), packet.psn()));
    expect(psns == [1, 2], "consecutive PSNs")?;
    expect(first.number("reth.dmalen") == Some(3000) && first.va().is_some(), "a RETH in the first packet")?;
    expect(middle.va().is_none() && last.va().is_none(), "no other RETH")?;
    let asks = sent.iter().map(|packet| packet.0["infiniband.bth.a"] == true);
    expect(asks.eq([false, false, true]), "the last packet asks for an acknowledgement")?;
    let payload = (last.0["roce.payload_len"].as_u64(), last.number("bth.padcnt"));
    expect(payload == (Some(952), Some(0)), "952 bytes and no padding")?;
    let answer = packets.last().filter(|packet| packet.opcode() == "RC_ACKNOWLEDGE");
    let answer = answer.map(|answer| (answer.psn(), answer.number("aeth.msn")));
    expect(answer == Some((last.psn(), Some(1))), "an acknowledgement of the last packet with MSN 1")
}

fn a_damaged_packet(student: &Student) -> Result<(), String> {
    student.perform(&blocks("Step 2", "sh")[0], None)?;
    let packets = student.packets("step2.pcapng");
    let damaged: Vec<usize> = (0..packets.len()).filter(|at| packets[*at].0["roce.icrc"] == "bad").collect();
    let [damaged] = damaged[..] else { return Err(format!("{} damaged packets", damaged.len())) };
    expect(distance(packets[0].psn(), packets[damaged].psn()) == 1, "the second packet is damaged")?;
    let next = packets.get(damaged + 1).ok_or("a packet behind the damaged one")?;
    expect(next.is_write(), "the damaged packet gets no answer")?;
    let nak = packets.get(damaged + 2).filter(|packet| packet.is_nak()).ok_or("a NAK behind the next one")?;
    expect(nak.psn() == packets[damaged].psn(), "the NAK has the PSN of the damaged packet")?;
    let whole = packets[damaged + 1..]
        .iter()
        .any(|packet| packet.is_write() && packet.psn() == nak.psn() && packet.0["roce.icrc"] == "ok");
    expect(whole, "a whole copy came later")
}

/// Runs the client of step 3 that writes this capture, in which `expected` packets are sent again. Returns
/// the causes that `roce analyze` reports.
fn a_lost_packet(student: &Student, block: &str, file: &str, expected: usize) -> Result<String, String> {
    student.perform(block, Some(file))?;
    let again = student.sent_again(file);
    expect(again == expected, &format!("{expected} packets sent again, not {again}"))?;
    let causes = student.run(&format!("roce analyze {file} --only causes"))?;
    Ok(causes.split_whitespace().collect::<Vec<_>>().join(" "))
}

fn lost_packets(student: &Student) {
    let block = &blocks("Step 3", "sh")[0];
    for (file, again, reason) in
        [("step3a.pcapng", 5, "1 after a NAK"), ("step3b.pcapng", 1, "1 after a timeout")]
    {
        student.until(|| {
            let causes = a_lost_packet(student, block, file, again)?;
            expect(causes.contains(reason), &format!("{reason} in {causes}"))
        });
    }
    // The answer to the last question: a loss of the third packet from the end.
    let other = block.replace("rpsn=3", "rpsn=5").replace("step3a", "step3c");
    student.until(|| a_lost_packet(student, &other, "step3c.pcapng", 3).map(drop));
}

fn a_read(student: &Student) -> Result<(), String> {
    student.perform(&blocks("Step 5", "sh")[0], None)?;
    let packets = student.packets("step5.pcapng");
    let is = |part: &str| packets.iter().filter(|packet| packet.opcode().contains(part)).collect::<Vec<_>>();
    let requests = is("READ_REQUEST");
    let [first, second] = requests[..] else { return Err(format!("{} READ requests", requests.len())) };
    expect(first.number("reth.dmalen") == Some(6000), "6,000 bytes are requested")?;
    expect(distance(first.psn(), second.psn()) == 2, "the second request has the PSN of the lost response")?;
    let missing = (second.va(), second.number("reth.dmalen"));
    expect(missing == (first.va().map(|va| va + 2048), Some(6000 - 2048)), "two packets less are requested")?;
    let psns: BTreeSet<u64> =
        is("READ_RESPONSE").iter().map(|packet| distance(first.psn(), packet.psn())).collect();
    expect(psns.into_iter().eq(0..6), "the READ takes six PSNs")
}

/// Runs a script and expects that it holds, or that it does not.
#[track_caller]
fn expect_of_script(student: &Student, script: &str, holds: bool) {
    fs::write(student.folder.join("mine.roce"), script).unwrap();
    let finished = student.try_line(&blocks("Step 6", "sh")[0]);
    // A script that cannot be read ends with another status than one that does not hold.
    let code = if holds { 0 } else { 1 };
    assert_eq!(finished.code, Some(code), "student {}: {script}{finished:?}", student.number);
}

fn keys(student: &Student) {
    let script = &blocks("Step 6", "text")[0];
    let replaced = |changes: &[(&str, &str)]| {
        changes.iter().fold(script.clone(), |text, (from, to)| {
            assert!(text.contains(from), "{from} is not in the script of the page");
            text.replace(from, to)
        })
    };
    expect_of_script(student, script, true);
    let right_key = ("rkey=remote.rkey+256", "rkey=remote.rkey");
    expect_of_script(student, &replaced(&[right_key, ("va=remote.va", "va=remote.va+4081")]), true);
    // The WRITE succeeds, and both other lines are wrong then.
    let acknowledged = ("expect nak access psn=100 msn=0", "expect ack psn=100 msn=1");
    let written = ("== 0", "== 0x55*16");
    expect_of_script(student, &replaced(&[right_key]), false);
    expect_of_script(student, &replaced(&[right_key, acknowledged]), false);
    expect_of_script(student, &replaced(&[right_key, acknowledged, written]), true);
    // A second WRITE behind the refused one gets no answer.
    let refusal = "expect nak access psn=100 msn=0 within 1ms\n";
    let second = format!(
        "{refusal}send write_only psn=101 va=remote.va rkey=remote.rkey len=16 payload=0x55*16 ackreq\n\
         expect nothing for 20ms\n"
    );
    let last = replaced(&[(refusal, second.as_str())]);
    expect_of_script(student, &last, true);
    fs::write(student.folder.join("step6.roce"), last).unwrap();
}

fn congestion(student: &Student) {
    let block = &blocks("Step 7", "sh")[0];
    student.must(student.perform(block, None));
    let table = fs::read_to_string(student.folder.join("step7-all/sweep.csv")).unwrap();
    assert_eq!(table.lines().count(), 1 + 4, "{table}");
    assert!(student.folder.join("step7-all/report.html").is_file());
    let scenario = "roce sim $LAB/lessons/scenarios/three-points.toml --json";
    let run = |more: &str| -> Value {
        let text = student.must(student.run(&format!("{scenario} {more}")));
        serde_json::from_str(&text).expect("a summary")
    };
    let first = run("");
    let marked = first["marked"].as_u64().unwrap();
    let cnps = first["cnps_sent"].as_u64().unwrap();
    assert!(cnps > 0 && marked > 10 * cnps, "{marked} marks and {cnps} CNPs");
    let ends = |summary: &Value| summary["end_seconds"].as_f64().unwrap();
    let later = run("--set switch.marking.kmax=2MB");
    assert!(ends(&later) < 0.9 * ends(&first), "{} s and {} s", ends(&first), ends(&later));
}

/// The captures of all students of the page are divided among those of the test.
fn a_capture_with_a_fault(student: &Student, count: usize) {
    for number in (student.number..=MOST_STUDENTS).step_by(count) {
        let own = blocks("Step 8", "sh")[0].replace("/07.pcapng", &format!("/{number:02}.pcapng"));
        student.must(student.perform(&own, None));
    }
}

fn hand_in(student: &Student) {
    fs::write(student.folder.join("answers.md"), "# Step 1\n").unwrap();
    student.must(student.perform(&blocks("What to hand in", "sh")[0], None));
    assert!(student.folder.join("lab-NAME.tar.gz").is_file());
    for block in blocks("How to grade", "sh") {
        student.must(student.run(&block));
    }
}

/// Everything that a student does, except in the browser.
fn work(student: &Student, count: usize) {
    student.until(|| one_write(student));
    student.until(|| a_damaged_packet(student));
    lost_packets(student);
    student.until(|| a_read(student));
    keys(student);
    congestion(student);
    a_capture_with_a_fault(student, count);
    hand_in(student);
}

/// Copies the command and what the teacher puts on the machine: the lessons without the solutions.
fn prepare(shared: &Path) {
    share_command(shared);
    for folder in ["lessons", "lessons/scenarios", "lessons/captures"] {
        fs::create_dir(shared.join(folder)).unwrap();
        fs::set_permissions(shared.join(folder), fs::Permissions::from_mode(0o755)).unwrap();
    }
    for folder in ["scenarios", "captures"] {
        for file in fs::read_dir(Path::new(LESSONS).join(folder)).unwrap() {
            let file = file.unwrap();
            let to = shared.join("lessons").join(folder).join(file.file_name());
            fs::copy(file.path(), &to).unwrap();
            fs::set_permissions(to, fs::Permissions::from_mode(0o644)).unwrap();
        }
    }
}

#[test]
fn students_find_what_the_lab_expects() {
    within(1_800, || {
        if skip_unless(as_nobody().is_some(), "setpriv is not installed; it is in util-linux") {
            return;
        }
        let count = std::env::var("ROCE_STUDENTS").map_or(STUDENTS, |count| count.parse().expect("a number"));
        let folder = tempfile::tempdir().unwrap();
        prepare(folder.path());
        let mut students = Vec::new();
        for number in 1..=count {
            let Some(namespace) = Namespace::new() else { return };
            namespace.ip(&["link set lo up"]);
            let own = folder.path().join(format!("student-{number}"));
            fs::create_dir(&own).unwrap();
            fs::set_permissions(&own, fs::Permissions::from_mode(0o777)).unwrap();
            students.push(Student { number, namespace, folder: own, shared: folder.path().to_owned() });
        }
        std::thread::scope(|scope| {
            for student in &students {
                scope.spawn(|| work(student, count));
            }
        });
    });
}
