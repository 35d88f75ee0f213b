//! A NIC that an agent controls: a program on the machine of the NIC that drives the libibverbs there.
//!
//! The source of the program, `agent/verbs_agent.c`, describes the commands. Each is one line of text.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::Duration;

use roce_packet::{Operation, Qpn};
use roce_transport::{Access, QpState, QpType, WcFlags, WcStatus};

use super::device::Control;
use super::ends::{OwnEnd, Parameters};
use crate::run::{self, Answer, Completion, MemoryArea, Refusal, Request, Settings, WorkRequest};
use crate::script::EVENTS;

/// The source of the agent, in C.
pub const AGENT: &str = include_str!("../../agent/verbs_agent.c");

/// Time limit for each answer. An emulated machine sometimes stands still.
const PATIENCE: Duration = Duration::from_secs(5);
/// Maximum length of an answer.
const MOST_ANSWER: u64 = 1 << 17;
/// Maximum number of bytes of memory in one command.
const MOST_PIECE: usize = 8192;
/// Maximum number of completions in one answer.
const MOST_COMPLETIONS: usize = 64;
/// Endings of errors that say that the NIC or its driver does not offer something: `ENOSYS`, `EOPNOTSUPP`.
const NOT_OFFERED: [&str; 2] = ["(38)", "(95)"];

/// An error of the connection to an agent.
#[derive(Debug)]
pub struct AgentError {
    agent: SocketAddr,
    what: String,
    error: Option<io::Error>,
}

impl fmt::Display for AgentError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the agent at {}: {}", self.agent, self.what)
    }
}

impl std::error::Error for AgentError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.error.as_ref().map(|error| error as _)
    }
}

/// A connection to an agent.
#[derive(Debug)]
pub struct Agent {
    reader: BufReader<TcpStream>,
    writer: TcpStream,
    address: SocketAddr,
    /// The address of the NIC.
    nic: IpAddr,
    has_flush: bool,
    has_atomic_write: bool,
    /// Memory of the present script by name: its number at the agent, first address and length.
    memories: BTreeMap<String, (usize, u64, usize)>,
    /// The numbers of regions and of windows that the present script has registered.
    regions: usize,
    windows: usize,
    /// Whether the present script has a queue pair.
    has_queue_pair: bool,
    /// The counters before the present script.
    counters: BTreeMap<String, u64>,
}

type Answered = Result<Answer, Refusal>;

fn failed(error: impl fmt::Display) -> Refusal {
    Refusal::Failed(error.to_string())
}

impl Agent {
    /// Connects to the agent at this address and opens the device with the address `nic`, or with that of the
    /// agent.
    ///
    /// # Errors
    ///
    /// Returns an error if no agent listens there, or if the machine has no RDMA device with the address.
    pub fn connect(address: SocketAddr, nic: Option<IpAddr>) -> Result<Self, AgentError> {
        let failed =
            |error| AgentError { agent: address, what: "cannot connect".to_owned(), error: Some(error) };
        let (reader, writer) = open(address).map_err(failed)?;
        let mut agent = Self {
            reader,
            writer,
            address,
            nic: nic.unwrap_or(address.ip()),
            has_flush: false,
            has_atomic_write: false,
            memories: BTreeMap::new(),
            regions: 0,
            windows: 0,
            has_queue_pair: false,
            counters: BTreeMap::new(),
        };
        agent.open_device().map_err(|refusal| {
            let (Refusal::Failed(what) | Refusal::Unable(what)) = refusal;
            AgentError { agent: address, what, error: None }
        })?;
        Ok(agent)
    }

    fn open_device(&mut self) -> Result<(), Refusal> {
        let opened = self.ask(&format!("open local={}", self.nic))?;
        self.has_flush = number(&opened, "flush")? != 0;
        self.has_atomic_write = number(&opened, "atomic_write")? != 0;
        Ok(())
    }

    /// Connects again, which gets a new process of the agent.
    fn connect_again(&mut self) -> Result<(), Refusal> {
        (self.reader, self.writer) = open(self.address).map_err(failed)?;
        self.open_device()
    }

    /// Sends a command and returns its answer, without the word `ok`.
    fn ask(&mut self, line: &str) -> Result<String, Refusal> {
        let command = line.split(' ').next().unwrap_or_default();
        let lost =
            |error: io::Error| Refusal::Failed(format!("no answer of the agent to `{command}`: {error}"));
        self.writer.write_all(format!("{line}\n").as_bytes()).map_err(lost)?;
        let mut answer = String::new();
        (&mut self.reader).take(MOST_ANSWER).read_line(&mut answer).map_err(lost)?;
        let Some(answer) = answer.strip_suffix('\n') else {
            return Err(Refusal::Failed(format!("the agent ended at `{command}`")));
        };
        let (result, rest) = answer.split_once(' ').unwrap_or((answer, ""));
        match result {
            "ok" => Ok(rest.to_owned()),
            "error" if NOT_OFFERED.iter().any(|end| rest.ends_with(end)) => {
                Err(Refusal::Unable(format!("this NIC does not offer it: {rest}")))
            }
            "error" => Err(Refusal::Failed(rest.to_owned())),
            _ => Err(Refusal::Failed(format!("not an answer of an agent: {answer:.80}"))),
        }
    }

    fn done(&mut self, line: &str) -> Answered {
        self.ask(line).map(|_| Answer::Done)
    }

    /// Returns rights in the words of the agent.
    fn rights(&self, access: Access) -> String {
        let names = [
            ("write", Access::REMOTE_WRITE),
            ("read", Access::REMOTE_READ),
            ("atomic", Access::REMOTE_ATOMIC),
            ("flush", Access::FLUSH_GLOBAL),
        ];
        let given = names
            .iter()
            .filter(|(name, right)| access.contains(*right) && (*name != "flush" || self.has_flush));
        let words: Vec<&str> = given.map(|(name, _)| *name).collect();
        if words.is_empty() { "none".to_owned() } else { words.join(",") }
    }

    fn memory(&self, name: &str) -> Result<(usize, u64, usize), Refusal> {
        self.memories.get(name).copied().ok_or_else(|| failed(format!("there is no memory `{name}`")))
    }

    /// Returns the arguments for a part of a memory.
    fn area(&self, area: &MemoryArea) -> Result<String, Refusal> {
        let (id, _, len) = self.memory(&area.memory)?;
        if area.at.saturating_add(area.len) > len {
            return Err(failed(format!("`{}` ends before byte {}", area.memory, area.at + area.len)));
        }
        Ok(format!(" mr={id} off={} len={}", area.at, area.len))
    }

    fn register(&mut self, name: &str, len: usize, rights: Access, is_foreign: bool) -> Answered {
        let (id, rights) = (self.regions, self.rights(rights));
        let foreign = u8::from(is_foreign);
        let answer = self.ask(&format!("mr id={id} len={len} rights={rights} foreign={foreign}"))?;
        self.regions += 1;
        let va = number(&answer, "addr")?;
        self.memories.insert(name.to_owned(), (id, va, len));
        Ok(Answer::Memory { va, rkey: word(&answer, "rkey")? })
    }

    fn bind(&mut self, area: &MemoryArea, rights: Access) -> Answered {
        let (_, va, _) = self.memory(&area.memory)?;
        let (part, rights, id) = (self.area(area)?, self.rights(rights), self.windows);
        let answer = self.ask(&format!("mw id={id} qp=0{part} rights={rights}"))?;
        self.windows += 1;
        Ok(Answer::Memory { va: va + area.at as u64, rkey: word(&answer, "rkey")? })
    }

    fn write(&mut self, area: &MemoryArea, bytes: &[u8]) -> Answered {
        for (index, piece) in bytes.chunks(MOST_PIECE).enumerate() {
            let at = area.at + index * MOST_PIECE;
            let part = self.area(&MemoryArea { memory: area.memory.clone(), at, len: piece.len() })?;
            let mut hex = String::with_capacity(2 * piece.len());
            for byte in piece {
                // A string takes everything.
                let _ = write!(hex, "{byte:02x}");
            }
            self.ask(&format!("put{part} hex={hex}"))?;
        }
        Ok(Answer::Done)
    }

    fn read(&mut self, area: &MemoryArea) -> Answered {
        let mut bytes = Vec::with_capacity(area.len);
        while bytes.len() < area.len {
            let len = MOST_PIECE.min(area.len - bytes.len());
            let at = area.at + bytes.len();
            let part = self.area(&MemoryArea { memory: area.memory.clone(), at, len })?;
            let hex = self.ask(&format!("hex{part}"))?;
            let piece = from_hex(hex.trim()).filter(|piece| piece.len() == len);
            bytes.extend(piece.ok_or_else(|| failed("the agent shows other bytes than it was asked for"))?);
        }
        Ok(Answer::Bytes(bytes))
    }

    fn post(&mut self, request: &WorkRequest) -> Answered {
        use run::Operation::{
            AtomicWrite, CompareSwap, FetchAdd, Flush, LocalInvalidate, Read, Send, Write as RdmaWrite,
        };
        let remote = |va: u64, rkey: u32| format!(" addr={va} rkey={rkey}");
        let operation = match request.operation {
            Send { invalidate: Some(rkey), .. } => format!("send_inv invalidate={rkey}"),
            Send { imm: Some(value), .. } => format!("send_imm imm={value}"),
            Send { .. } => "send".to_owned(),
            RdmaWrite { va, rkey, imm: Some(value) } => format!("write_imm imm={value}{}", remote(va, rkey)),
            RdmaWrite { va, rkey, imm: None } => format!("write{}", remote(va, rkey)),
            Read { va, rkey } => format!("read{}", remote(va, rkey)),
            FetchAdd { va, rkey, add } => format!("fetch_add add={add}{}", remote(va, rkey)),
            CompareSwap { va, rkey, compare, swap } => {
                format!("cas compare={compare} swap={swap}{}", remote(va, rkey))
            }
            LocalInvalidate { rkey } => format!("local_inv invalidate={rkey}"),
            AtomicWrite { .. } | Flush { .. } => {
                return Err(Refusal::Unable("the agent posts neither ATOMIC WRITE nor FLUSH".to_owned()));
            }
        };
        let area = request.area.as_ref().map_or(Ok(String::new()), |area| self.area(area))?;
        let (fence, solicited) = (u8::from(request.has_fence), u8::from(request.is_solicited));
        let id = request.id;
        self.done(&format!("send qp=0 wr={id} op={operation}{area} fence={fence} solicited={solicited}"))
    }

    fn completions(&mut self) -> Answered {
        let answer = self.ask(&format!("poll cq=0 max={MOST_COMPLETIONS} wait_ms=0"))?;
        let completions = answer.split_ascii_whitespace().map(completion).collect::<Option<_>>();
        completions.map(Answer::Completions).ok_or_else(|| failed(format!("not completions: {answer:.80}")))
    }

    fn state(&mut self) -> Answered {
        let answer = self.ask("state qp=0")?;
        let name = answer.trim();
        let state = QpState::ALL.into_iter().find(|state| state.name().eq_ignore_ascii_case(name));
        state.map(Answer::State).ok_or_else(|| failed(format!("not a state: {name:.80}")))
    }

    fn all_counters(&mut self) -> Result<BTreeMap<String, u64>, Refusal> {
        let answer = self.ask("counters")?;
        let pairs = answer.split_ascii_whitespace().filter_map(|pair| pair.split_once('='));
        Ok(pairs.filter_map(|(name, value)| Some((name.to_owned(), value.parse().ok()?))).collect())
    }

    /// Returns the growth of a counter since the queue pair was connected.
    fn counter(&mut self, name: &str) -> Answered {
        let now =
            self.all_counters().map_err(|_| Refusal::Unable("this NIC shows no counters".to_owned()))?;
        let before = self.counters.get(name).copied();
        match now.get(name).zip(before) {
            Some((now, before)) => Ok(Answer::Count(now.wrapping_sub(before))),
            None => Err(Refusal::Unable(format!("this NIC has no counter {name}"))),
        }
    }
}

impl Control for Agent {
    fn connect(&mut self, settings: &Settings, own: OwnEnd) -> Result<Parameters, Refusal> {
        if settings.congestion.is_some() {
            let what = "verbs cannot choose the congestion control of this NIC".to_owned();
            return Err(Refusal::Unable(what));
        }
        if self.has_queue_pair {
            return Err(failed("the script has a queue pair already"));
        }
        // A NIC without files for its counters has no counters for scripts.
        self.counters = self.all_counters().unwrap_or_default();
        self.ask("cq id=0 depth=256")?;
        let kind = match settings.qp_type {
            QpType::Uc => "uc",
            QpType::Ud => "ud",
            QpType::Rc | QpType::XrcSend | QpType::XrcRecv => "rc",
        };
        let qpn = word(&self.ask(&format!("qp id=0 type={kind} cq=0 sends=64 recvs=64"))?, "qpn")?;
        self.has_queue_pair = true;
        let (local, state) = (self.nic, settings.state.name().to_lowercase());
        let Settings { psn, nic_psn, timeout, retry, rnr_retry, rnr_timer, reads, qkey, .. } = settings;
        let line = match settings.qp_type {
            _ if settings.state == QpState::Reset => None,
            QpType::Ud => Some(format!("activate qp=0 psn={nic_psn} qkey={qkey} state={state}")),
            _ => Some(format!(
                "connect qp=0 local={local} remote={} mtu={} dest={} psn={nic_psn} rq_psn={psn} timeout={timeout} \
                 retry={retry} rnr_retry={rnr_retry} min_rnr={rnr_timer} rd={reads} rights={} state={state}",
                own.address,
                settings.mtu.bytes(),
                own.qpn.get(),
                self.rights(settings.rights),
            )),
        };
        if let Some(line) = line {
            self.ask(&line)?;
        }
        Ok(Parameters { address: local, qpn: Qpn::new(qpn), psn: Some(*nic_psn), memory: None })
    }

    fn answer(&mut self, request: &Request) -> Answered {
        match request {
            Request::Connect(_) => Err(failed("a queue pair is connected with both ends")),
            Request::Memory { name, len, rights, is_foreign } => {
                self.register(name, *len, *rights, *is_foreign)
            }
            Request::Window { area, rights, .. } => self.bind(area, *rights),
            Request::Write(area, bytes) => self.write(area, bytes),
            Request::Read(area) => self.read(area),
            Request::Revoke(name) => {
                let (id, ..) = self.memory(name)?;
                self.done(&format!("destroy mr={id}"))
            }
            Request::Receive(id, area) => {
                let area = area.as_ref().map_or(Ok(String::new()), |area| self.area(area))?;
                self.done(&format!("recv qp=0 wr={id}{area}"))
            }
            Request::Post(request) => self.post(request),
            Request::Modify(state) => self.done(&format!("state qp=0 to={}", state.name().to_lowercase())),
            Request::State => self.state(),
            Request::Counter(name) => self.counter(name),
            Request::Completions => self.completions(),
            Request::Events => {
                let answer = self.ask("events")?;
                let known = |name: &str| EVENTS.into_iter().find(|known| *known == name);
                Ok(Answer::Events(answer.split_ascii_whitespace().filter_map(known).collect()))
            }
        }
    }

    fn offers(&self, operation: Operation) -> bool {
        match operation {
            Operation::Flush => self.has_flush,
            Operation::AtomicWrite => self.has_atomic_write,
            _ => true,
        }
    }

    fn disconnect(&mut self) {
        // A driver that keeps an object must not affect the next script. If no new process of the agent
        // answers either, the next script fails.
        if self.ask("destroy all=1").is_err() {
            let _ = self.connect_again();
        }
        self.memories.clear();
        (self.regions, self.windows) = (0, 0);
        self.has_queue_pair = false;
    }
}

/// Opens a connection with time limits.
fn open(address: SocketAddr) -> io::Result<(BufReader<TcpStream>, TcpStream)> {
    let stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    Ok((BufReader::new(stream.try_clone()?), stream))
}

/// Returns the number after `name=` in an answer.
fn number(answer: &str, name: &str) -> Result<u64, Refusal> {
    let found = answer.split_ascii_whitespace().find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
    let value = found.and_then(|value| value.parse().ok());
    value.ok_or_else(|| failed(format!("the answer of the agent has no {name}: {answer:.80}")))
}

/// Returns the number of 32 bits after `name=` in an answer.
fn word(answer: &str, name: &str) -> Result<u32, Refusal> {
    u32::try_from(number(answer, name)?).map_err(failed)
}

/// Reads a completion of the agent: identifier, status, opcode, length, immediate data or key, two queue pair
/// numbers, flags.
fn completion(text: &str) -> Option<Completion> {
    let numbers: Vec<u64> = text.split(':').map(|part| part.parse().ok()).collect::<Option<_>>()?;
    let [id, status, _opcode, bytes, imm, _qpn, _source, flags] = numbers.as_slice() else { return None };
    let status = WcStatus::ALL.get(usize::try_from(*status).ok()?)?.name();
    let imm = u32::try_from(*imm).ok()?;
    let flags = WcFlags::from_bits_truncate(u32::try_from(*flags).ok()?);
    Some(Completion {
        id: *id,
        status,
        bytes: u32::try_from(*bytes).ok()?,
        imm: flags.contains(WcFlags::WITH_IMM).then_some(imm),
        invalidated: flags.contains(WcFlags::WITH_INV).then_some(imm),
    })
}

fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digit = |sign: u8| char::from(sign).to_digit(16).map(|digit| digit as u8);
    let pairs = text.as_bytes().chunks(2).map(|pair| match pair {
        [high, low] => Some(digit(*high)? << 4 | digit(*low)?),
        _ => None,
    });
    pairs.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_read() {
        let found = completion("7:12:0:16:51966:17:3841:2").unwrap();
        assert_eq!((found.id, found.status, found.imm), (7, "RETRY_EXC_ERR", Some(51966)));
        assert_eq!(found.invalidated, None);
        assert_eq!(completion("7:0:0:16:9:17:3841:8").unwrap().invalidated, Some(9));
        for wrong in ["", "7:0", "7:99:0:0:0:0:0:0", "x:0:0:0:0:0:0:0", "7:0:0:0:4294967296:0:0:0"] {
            assert_eq!(completion(wrong), None, "{wrong}");
        }
        assert_eq!(number("addr=17 rkey=3", "rkey"), Ok(3));
        assert!(number("addr=17", "rkey").is_err() && word("rkey=4294967296", "rkey").is_err());
        assert_eq!(from_hex("00ff5A"), Some(vec![0, 0xff, 0x5a]));
        assert_eq!((from_hex("0"), from_hex("0g")), (None, None));
    }
}
