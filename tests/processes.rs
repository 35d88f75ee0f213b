//! Many processes share one address. Half of them are killed while they transfer, and started again, several
//! times. No process receives packets of another process, no slot is lost, and connections between the
//! surviving processes continue.
//!
//! Each process is this test program again, in the role of [`a_process_of_the_tests`]. The test sends it
//! commands as lines on its standard input, and reads its answers. On each of its connections, a process
//! sends one message after the other. It checks every message that arrives: its connection, the end that sent
//! it, and its number.

use std::io::{BufRead, BufReader, Write};
use std::net::IpAddr;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::{Duration, Instant};

use roce::verbs::*;
use roce_testing::{own_address, within};

/// Environment variable that tells a process its address.
const ADDRESS: &str = "ROCE_TEST_PROCESSES_ADDRESS";
/// Environment variable with the pause between messages, in milliseconds, which lets hundreds of processes
/// share the processors.
const PAUSE: &str = "ROCE_TEST_PROCESSES_PAUSE";
/// Marks the answers of a process among the lines of the test harness.
const MARK: &str = "answer: ";
/// Length of a message, in bytes: several packets.
const MESSAGE: usize = 3000;
/// Receives that each connection posts, so that every message finds one.
const RECEIVES: usize = 2;
/// Buffers of a connection: one for sending, and one for each receive.
const BUFFERS: usize = 1 + RECEIVES;
/// Maximum number of connections of a process over all rounds that it survives.
const MOST_CONNECTIONS: usize = 200;
/// Time limit for an answer of one process among many on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// A queue pair number and its first PSN.
type Number = (u32, u32);

/// A process that the test has started.
struct Worker {
    child: Child,
    input: ChildStdin,
    answers: Receiver<String>,
    slot: usize,
    /// Number of queue pairs that the process has created.
    made: usize,
}

impl Worker {
    fn start(address: IpAddr, pause: usize) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "a_process_of_the_tests", "--nocapture"])
            .env(ADDRESS, address.to_string())
            .env(PAUSE, pause.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (input, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let (answer, answers) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if let Some((_, text)) = line.split_once(MARK)
                    && answer.send(text.to_owned()).is_err()
                {
                    return;
                }
            }
        });
        Self { child, input, answers, slot: 0, made: 0 }
    }

    /// Reads the first answer of a process that has just started.
    fn until_ready(&mut self) {
        self.slot = self.answer().parse().expect("a slot");
    }

    #[track_caller]
    fn say(&mut self, line: &str) {
        writeln!(self.input, "{line}").expect("a process has ended by itself");
    }

    #[track_caller]
    fn answer(&self) -> String {
        match self.answers.recv_timeout(PATIENCE) {
            Ok(text) => text,
            Err(error) => panic!("no answer of process {}: {error}", self.child.id()),
        }
    }

    /// Reads the answer to `make`: the places of the queue pairs, and their numbers.
    fn made(&mut self, count: usize) -> Vec<(usize, Number)> {
        let answer = self.answer();
        let first = self.made;
        self.made += count;
        let numbers = answer.split_whitespace().map(|number| {
            let (qpn, psn) = number.split_once(':').unwrap();
            (qpn.parse().unwrap(), psn.parse().unwrap())
        });
        (first..).zip(numbers).collect()
    }

    /// Reads the answer to `state`.
    fn state(&self) -> State {
        let answer = self.answer();
        let mut parts = answer.split(';');
        let mut next = || parts.next().unwrap();
        let (received, unknown) = (next().parse().unwrap(), next().parse().unwrap());
        let mut list = || next().split_whitespace().map(|place| place.parse().unwrap()).collect();
        State { received, unknown, failed: list(), waiting: list() }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The state that a process reports.
#[derive(Debug)]
struct State {
    /// Received messages, all of which were correct.
    received: u64,
    /// Received packets for queue pairs that the process does not have.
    unknown: u64,
    /// Places of connections that have failed.
    failed: Vec<usize>,
    /// Places of connections on which nothing has arrived since the last report, or ever.
    waiting: Vec<usize>,
}

/// One end of a connection: the process, and the place of its queue pair there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct End {
    process: usize,
    place: usize,
}

struct Group {
    address: IpAddr,
    pause: usize,
    workers: Vec<Worker>,
    /// The ends of each connection.
    connections: Vec<[End; 2]>,
    /// Connections created so far; the next one gets this number.
    made: u64,
}

impl Group {
    fn start(processes: usize, connections: usize) -> Self {
        let address = own_address().into();
        let pause = if processes > 100 { processes } else { 0 };
        let mut workers: Vec<_> = (0..processes).map(|_| Worker::start(address, pause)).collect();
        workers.iter_mut().for_each(Worker::until_ready);
        let ends = |number: usize| {
            let (first, distance) = (number % processes, 1 + number / processes % (processes - 1));
            [first, (first + distance) % processes].map(|process| End { process, place: usize::MAX })
        };
        let connections_of = (0..connections).map(ends).collect();
        let mut group = Self { address, pause, workers, connections: connections_of, made: 0 };
        group.connect(&(0..connections).collect::<Vec<_>>());
        group
    }

    /// Establishes these connections, with new queue pairs at both ends.
    fn connect(&mut self, which: &[usize]) {
        let mut counts = vec![0; self.workers.len()];
        which.iter().flat_map(|number| self.connections[*number]).for_each(|end| counts[end.process] += 1);
        for (worker, count) in self.workers.iter_mut().zip(&counts) {
            worker.say(&format!("make {count}"));
        }
        let workers = self.workers.iter_mut().zip(counts);
        let mut numbers: Vec<_> = workers.map(|(worker, count)| worker.made(count)).collect();
        for number in which {
            let ends =
                self.connections[*number].map(|end| numbers[end.process].pop().expect("one for each end"));
            for side in [0, 1] {
                let ((place, _), (_, (qpn, psn))) = (ends[side], ends[1 - side]);
                let end = &mut self.connections[*number][side];
                end.place = place;
                self.workers[end.process].say(&format!("join {place} {qpn} {psn} {} {side}", self.made));
            }
            self.made += 1;
        }
    }

    /// Waits until a message has arrived at every end.
    fn until_all_transfer(&mut self) -> u64 {
        let end = Instant::now() + PATIENCE;
        let mut received = 0;
        let mut left: Vec<usize> = (0..self.workers.len()).collect();
        while !left.is_empty() {
            // Ask all processes before reading the first answer, because each of them waits for a processor.
            left.iter().for_each(|process| self.workers[*process].say("state"));
            left.retain(|process| {
                let state = self.workers[*process].state();
                assert!(state.failed.is_empty(), "process {process}: {state:?}");
                assert!(Instant::now() < end, "nothing arrives at process {process}: {state:?}");
                if state.waiting.is_empty() {
                    received += state.received;
                }
                !state.waiting.is_empty()
            });
            std::thread::sleep(Duration::from_millis(20));
        }
        received
    }

    /// Kills every second process during transfers and starts as many new ones. Returns the number of packets
    /// that arrived for processes that no longer exist.
    fn replace_half(&mut self, round: usize) -> u64 {
        let is_killed = |process: usize| process % 2 == round % 2;
        let killed: Vec<_> = (0..self.workers.len()).filter(|process| is_killed(*process)).collect();
        for process in &killed {
            self.workers[*process].child.kill().unwrap();
        }
        // The surviving processes retransmit to the killed ones, and to the new owners of their slots.
        for process in &killed {
            self.workers[*process] = Worker::start(self.address, self.pause);
        }
        for process in &killed {
            self.workers[*process].until_ready();
        }
        std::thread::sleep(Duration::from_millis(500));
        let mut unknown = 0;
        let lost: Vec<usize> = (0..self.connections.len())
            .filter(|number| self.connections[*number].iter().any(|end| is_killed(end.process)))
            .collect();
        self.workers.iter_mut().for_each(|worker| worker.say("state"));
        for (process, worker) in self.workers.iter_mut().enumerate() {
            let state = worker.state();
            unknown += state.unknown;
            if is_killed(process) {
                assert_eq!(state.received, 0, "process {process} has no connection: {state:?}");
                continue;
            }
            // Only connections with killed processes may have failed. All others have continued.
            let of_lost = |place: usize| {
                let here = End { process, place };
                lost.iter().any(|number| self.connections[*number].contains(&here))
            };
            assert!(state.failed.iter().all(|place| of_lost(*place)), "process {process}: {state:?}");
            for number in &lost {
                for end in self.connections[*number].iter().filter(|end| end.process == process) {
                    worker.say(&format!("drop {}", end.place));
                }
            }
        }
        self.connect(&lost);
        unknown
    }

    /// Checks that every process has a slot of its own.
    fn check_slots(&self) {
        let mut slots: Vec<_> = self.workers.iter().map(|worker| worker.slot).collect();
        slots.sort_unstable();
        slots.dedup();
        assert_eq!(slots.len(), self.workers.len(), "{slots:?}");
    }

    /// Checks that every slot up to the highest one in use can be allocated, and after these the next higher
    /// one.
    fn check_that_no_slot_is_lost(&self) {
        let device = format!("udp:{}", self.address);
        let open = || Context::open(&device).unwrap();
        let slot = |context: &Context| usize::from(context.query().limits.process_slot.get());
        let highest = self.workers.iter().map(|worker| worker.slot).max().unwrap();
        let rest: Vec<_> = (self.workers.len()..highest).map(|_| open()).collect();
        assert!(rest.iter().all(|context| slot(context) < highest), "all of {highest}");
        assert_eq!(slot(&open()), highest + 1);
    }
}

fn storm(processes: usize, connections: usize, rounds: usize) {
    let begun = Instant::now();
    let mut group = Group::start(processes, connections);
    group.until_all_transfer();
    let (mut unknown, mut received) = (0, 0);
    for round in 0..rounds {
        unknown += group.replace_half(round);
        received = group.until_all_transfer();
        group.check_slots();
        println!("[{:3} s] round {round}: every connection transfers", begun.elapsed().as_secs());
    }
    println!("{received} messages at the end, and {unknown} packets that were for processes which are gone");
    assert!(
        unknown > 0,
        "the slots of those that were killed were never used again while peers sent to them"
    );
    group.check_that_no_slot_is_lost();
}

#[test]
fn processes_are_killed_and_started_again_and_the_others_go_on() {
    within(300, || storm(8, 60, 4));
}

/// Runs [`storm`] with as many processes as an address is designed for.
#[test]
#[ignore = "takes minutes"]
fn half_of_sixty_processes_are_killed_ten_times() {
    within(1200, || storm(60, 1000, 10));
}

/// Runs [`storm`] with more processes than a group has sockets for at first.
#[test]
fn half_of_three_hundred_processes_are_killed() {
    within(600, || storm(300, 300, 1));
}

/// One end of a connection in a process that a test has started.
struct Connection {
    qp: QueuePair,
    /// The number of the connection, and which of its ends this is, once it is connected.
    joined: Option<(u64, u64)>,
    sent: u64,
    received: u64,
    /// Messages received when the state was last reported.
    seen: u64,
    has_failed: bool,
}

/// A process that a test has started.
struct Role {
    address: IpAddr,
    pd: ProtectionDomain,
    cq: CompletionQueue,
    region: MemoryRegion,
    connections: Vec<Option<Connection>>,
    received: u64,
}

/// Returns the bytes of a message: the connection, the end and the number, followed by a pattern derived from
/// them.
fn message(connection: u64, side: u64, number: u64) -> Vec<u8> {
    let mut bytes: Vec<u8> = [connection, side, number].iter().flat_map(|part| part.to_be_bytes()).collect();
    let mut random = fastrand::Rng::with_seed(connection << 33 ^ side << 32 ^ number);
    bytes.resize_with(MESSAGE, || random.u8(..));
    bytes
}

impl Role {
    fn open(address: IpAddr) -> Self {
        let context = Context::builder().spin(Duration::ZERO).open(&format!("udp:{address}")).unwrap();
        let pd = context.alloc_pd().unwrap();
        let cq = context.create_cq(MOST_CONNECTIONS * (BUFFERS + 1), None).unwrap();
        let region = pd.allocate(MOST_CONNECTIONS * BUFFERS * MESSAGE, Access::LOCAL_WRITE).unwrap();
        Self { address, pd, cq, region, connections: Vec::new(), received: 0 }
    }

    fn make(&mut self) -> Number {
        assert!(self.connections.len() < MOST_CONNECTIONS);
        let capabilities = QpCapabilities {
            max_send_wr: 1,
            max_recv_wr: RECEIVES,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline: 0,
        };
        let options = QueuePairOptions::new(QpType::Rc, &self.cq).capabilities(capabilities);
        let qp = self.pd.create_qp(&options).unwrap();
        let endpoint = qp.endpoint().unwrap();
        let connection = Connection { qp, joined: None, sent: 0, received: 0, seen: 0, has_failed: false };
        self.connections.push(Some(connection));
        (endpoint.qpn, endpoint.psn)
    }

    fn connection(&mut self, place: usize) -> Option<&mut Connection> {
        self.connections[place].as_mut()
    }

    fn offset(place: usize, buffer: usize) -> usize {
        (place * BUFFERS + buffer) * MESSAGE
    }

    fn join(&mut self, place: usize, (qpn, psn): Number, connection: u64, side: u64) {
        let remote = Endpoint { address: self.address, qpn, psn };
        // Many processes share few processors, so half a second without an answer does not mean that a peer
        // is lost.
        let options = ConnectOptions::default().timeout(17);
        let here = self.connection(place).unwrap();
        here.qp.connect(&remote, &options).unwrap();
        here.joined = Some((connection, side));
        (0..RECEIVES).for_each(|receive| self.receive(place, 1 + receive));
        self.send(place);
    }

    /// Posts a receive. The ID of a work request is the number of its buffer.
    fn receive(&mut self, place: usize, buffer: usize) {
        let offset = Self::offset(place, buffer);
        let element = self.region.element(offset..offset + MESSAGE);
        let wr_id = (place * BUFFERS + buffer) as u64;
        self.connection(place).unwrap().qp.post_recv(&RecvWr { wr_id, elements: &[element] }).unwrap();
    }

    fn send(&mut self, place: usize) {
        let offset = Self::offset(place, 0);
        let here = self.connection(place).unwrap();
        let (connection, side) = here.joined.unwrap();
        let bytes = message(connection, side, here.sent);
        here.sent += 1;
        self.region.write(offset, &bytes).unwrap();
        let element = self.region.element(offset..offset + MESSAGE);
        let wr_id = (place * BUFFERS) as u64;
        self.connection(place).unwrap().qp.post_send(&SendWr::new(wr_id, SendOp::Send, &[element])).unwrap();
    }

    fn complete(&mut self, wc: &Wc) {
        let (place, buffer) = (wc.wr_id as usize / BUFFERS, wc.wr_id as usize % BUFFERS);
        let Some(here) = self.connection(place) else { return };
        if wc.status != WcStatus::Success {
            here.has_failed = true;
            return;
        }
        if buffer == 0 {
            return self.send(place);
        }
        let (connection, side) = here.joined.unwrap();
        let number = here.received;
        here.received += 1;
        self.received += 1;
        let mut found = vec![0; MESSAGE];
        self.region.read(Self::offset(place, buffer), &mut found).unwrap();
        assert!(
            found == message(connection, 1 - side, number),
            "message {number} of connection {connection}"
        );
        self.receive(place, buffer);
    }

    fn state(&mut self) -> String {
        let mut unknown = 0;
        self.pd.context().visit_counters(&mut |name, value| {
            if name == "drop_unknown_qpn" {
                unknown = value;
            }
        });
        let (mut failed, mut waiting) = (String::new(), String::new());
        for (place, here) in self.connections.iter_mut().enumerate() {
            let Some(here) = here else { continue };
            if here.has_failed {
                failed += &format!("{place} ");
            } else if here.received == here.seen {
                waiting += &format!("{place} ");
            }
            here.seen = here.received;
        }
        format!("{};{unknown};{failed};{waiting}", self.received)
    }

    /// Executes a command of the test; returns the answer.
    fn obey(&mut self, line: &str) -> Option<String> {
        let mut words = line.split_whitespace();
        let verb = words.next().unwrap();
        let numbers: Vec<u64> = words.map(|word| word.parse().unwrap()).collect();
        match (verb, numbers.as_slice()) {
            ("make", [count]) => {
                let made = (0..*count).map(|_| self.make());
                let made: Vec<String> = made.map(|(qpn, psn)| format!("{qpn}:{psn}")).collect();
                Some(made.join(" "))
            }
            ("join", [place, qpn, psn, connection, side]) => {
                self.join(*place as usize, (*qpn as u32, *psn as u32), *connection, *side);
                None
            }
            ("drop", [place]) => {
                self.connections[*place as usize] = None;
                None
            }
            ("state", []) => Some(self.state()),
            _ => panic!("{line}"),
        }
    }
}

/// Is not a test but the program that the tests above start. It ends with the test whose commands it reads.
#[test]
fn a_process_of_the_tests() {
    let Ok(address) = std::env::var(ADDRESS) else { return };
    let mut role = Role::open(address.parse().unwrap());
    let (line, lines) = channel();
    std::thread::spawn(move || {
        for text in std::io::stdin().lines().map_while(Result::ok) {
            if line.send(text).is_err() {
                return;
            }
        }
    });
    let pause = Duration::from_millis(std::env::var(PAUSE).unwrap().parse().unwrap());
    println!("{MARK}{}", role.pd.context().query().limits.process_slot);
    let mut done = [Wc::default(); 64];
    loop {
        loop {
            match lines.try_recv() {
                Ok(text) => {
                    if let Some(answer) = role.obey(&text) {
                        println!("{MARK}{answer}");
                    }
                }
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => return,
            }
        }
        std::thread::sleep(pause);
        match role.cq.wait(&mut done, Some(Duration::from_millis(5))) {
            Ok(count) => done[..count].iter().for_each(|wc| role.complete(wc)),
            Err(WaitError::TimedOut) => {}
            Err(error) => panic!("{error:?}"),
        }
    }
}
