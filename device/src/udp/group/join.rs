//! Joining the group of an address, or creating it.

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use roce_transport::ProcessSlot;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use socket2::Socket;

use super::escrow::{Chunk, Escrow, receive_with};
use super::names::{self, BACKLOG, Names, Peer};
use super::protocol::{ADMITTED, CHUNK, JOIN, SLOTS, slots};
use crate::descriptors::aside;
use crate::fork::StaticMutex;

/// The reason why a process could not become a member.
#[derive(Debug)]
pub(in crate::udp) enum JoinError {
    /// The address has a group that this process cannot join: the reason and the next step, as a clause.
    Excluded(String),
    /// The operating system refused a step.
    System(io::Error),
}

impl From<io::Error> for JoinError {
    fn from(error: io::Error) -> Self {
        Self::System(error)
    }
}

/// The resources of a new member.
pub(super) struct Joined {
    pub(super) escrow: Arc<Escrow>,
    pub(super) slot: ProcessSlot,
    /// The listener that other processes connect to.
    pub(super) listener: OwnedFd,
    /// The socket of slot 0, then the member's own socket.
    pub(super) sockets: [Socket; 2],
}

/// Joins or creates the group and takes the lowest free slot. `make(n)` makes sockets after the first `n`.
pub(super) fn join(
    names: &Names,
    make: impl Fn(usize) -> io::Result<Vec<Socket>>,
) -> Result<Joined, JoinError> {
    let _lock = lock(names)?;
    let escrow = match registered(names) {
        Some(escrow) => escrow,
        None => Arc::new(ask_or_make(names, || make(0))?),
    };
    let (slot, listener) = claim(names)?;
    let sockets = sockets_of(slot, &escrow, make)?;
    let sockets = sockets.map(|socket| Socket::from(aside(socket.into())));
    register(names, &escrow);
    Ok(Joined { escrow, slot, listener, sockets })
}

/// Returns the sockets of slot 0 and of this slot, growing the group if necessary.
fn sockets_of(
    slot: ProcessSlot,
    escrow: &Escrow,
    make: impl Fn(usize) -> io::Result<Vec<Socket>>,
) -> Result<[Socket; 2], JoinError> {
    let (full, place) = (usize::from(slot.get()) / CHUNK, usize::from(slot.get()) % CHUNK);
    let mut chunk = escrow.first()?;
    if full == 0 {
        let own = chunk.sockets.swap_remove(place);
        return Ok([chunk.sockets.swap_remove(0), own]);
    }
    let front = chunk.sockets.swap_remove(0);
    for number in 1..=full {
        // Close them early, because descriptors are scarce.
        chunk.sockets.clear();
        chunk = match chunk.next()? {
            Some(next) => next,
            None => grow(&chunk, number * CHUNK, &make)?,
        };
    }
    Ok([front, chunk.sockets.swap_remove(place)])
}

/// Adds sockets to a full group. If this process ends meanwhile, the others continue with the old sockets.
fn grow(
    last: &Chunk,
    sockets: usize,
    make: impl Fn(usize) -> io::Result<Vec<Socket>>,
) -> Result<Chunk, JoinError> {
    let refusal =
        |problem: String| JoinError::Excluded(format!("all {} slots are taken, and {problem}", sockets - 1));
    if !last.can_grow() {
        return Err(refusal(
            "a process with an older version created them and cannot add more; end all processes of the address, or use \
             another address"
                .to_owned(),
        ));
    }
    let grown = make(sockets).and_then(|made| last.append(&made)).and_then(|()| last.next());
    match grown {
        Ok(Some(chunk)) => Ok(chunk),
        Ok(None) => Err(io::Error::from(io::ErrorKind::InvalidData).into()),
        Err(error) => Err(refusal(format!("adding more failed: {}", advice_on(&error)))),
    }
}

/// Describes an error and the next step.
pub(in crate::udp) fn advice_on(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(libc::EMFILE | libc::ETOOMANYREFS) => {
            format!("{error}; raise the limit of open files (`ulimit -n`)")
        }
        Some(_) => format!("{error}; use another address"),
        // An error of this library, which already names the next step.
        None => error.to_string(),
    }
}

fn ask_or_make(names: &Names, make: impl Fn() -> io::Result<Vec<Socket>>) -> Result<Escrow, JoinError> {
    let asked = match ask(names, 1..CHUNK as u16) {
        Ok(Some(escrow)) => return Ok(escrow),
        Ok(None) => None,
        Err(excluded @ JoinError::Excluded(_)) => Some(excluded),
        Err(error) => return Err(error),
    };
    // Any process can take a name, so an untrusted holder without the port must not block this one.
    match make() {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
        made => return Ok(Escrow::new(&made?)?),
    }
    // Members may have only higher slots. They are asked last, because those slots are numerous.
    let asked_last = ask(names, CHUNK as u16..SLOTS);
    if let Ok(Some(escrow)) = asked_last {
        return Ok(escrow);
    }
    match asked {
        Some(excluded) => Err(excluded),
        None => {
            asked_last?;
            Ok(Escrow::new(&make_patiently(make)?)?)
        }
    }
}

/// Takes the lock that prevents others from joining or creating the group, until the result is dropped.
fn lock(names: &Names) -> Result<OwnedFd, JoinError> {
    let name = names.lock();
    let (mut holder, mut pause) = (None, SHORTEST_PAUSE);
    loop {
        match names::bind(&name, SLOTS.into()) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
            bound => return Ok(bound?),
        }
        // Gives up only if a single process takes too long, not because many join in turn.
        let (connection, end) =
            holder.get_or_insert_with(|| (names::connect(&name), Instant::now() + LOCK_PATIENCE));
        thread::sleep(pause);
        // Hundreds of processes may wait, and must leave the processor to the one that joins.
        pause = (2 * pause).min(LONGEST_PAUSE);
        if has_ended(connection) {
            holder = None;
        } else if Instant::now() >= *end {
            let holder = connection.as_ref().ok().and_then(|it| Peer::of(it).ok());
            let holder = holder.map_or_else(|| "another process".to_owned(), |peer| peer.to_string());
            return Err(JoinError::Excluded(format!(
                "{holder} has been joining them for {} s; if it is stopped, end it",
                LOCK_PATIENCE.as_secs()
            )));
        }
    }
}

/// Returns whether the process that held the lock when this connection was made has released it.
fn has_ended(connection: &io::Result<OwnedFd>) -> bool {
    match connection {
        // The holder accepts no connections, so there is nothing to read until it closes the lock.
        Ok(connection) => recv(connection, &mut [0_u8; 1], RecvFlags::DONTWAIT) != Err(Errno::AGAIN),
        Err(error) => error.kind() == io::ErrorKind::ConnectionRefused,
    }
}

/// Retries `make`, because sockets of processes that just ended may close later than their names.
fn make_patiently(make: impl Fn() -> io::Result<Vec<Socket>>) -> io::Result<Vec<Socket>> {
    for _ in 0..10 {
        match make() {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                thread::sleep(Duration::from_millis(10));
            }
            made => return made,
        }
    }
    make()
}

fn claim(names: &Names) -> Result<(ProcessSlot, OwnedFd), JoinError> {
    for slot in slots(1..SLOTS) {
        match names::bind(&names.slot(slot), BACKLOG) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
            bound => return Ok((slot, bound?)),
        }
    }
    let most = SLOTS - 1;
    Err(JoinError::Excluded(format!(
        "all {most} slots are taken; end one of the processes, or use another address"
    )))
}

/// Asks the members in these slots, one after the other, for the sockets. `None` without a member.
fn ask(names: &Names, numbers: Range<u16>) -> Result<Option<Escrow>, JoinError> {
    let mut question = Question { asked: Vec::new(), strangers: Vec::new() };
    let (mut is_patient, mut crowded) = (true, Vec::new());
    for slot in slots(numbers) {
        let connection = match names::connect(&names.slot(slot)) {
            Ok(connection) => connection,
            // The name is taken, but its holder is still unknown.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                crowded.push(slot);
                continue;
            }
            Err(_) => continue,
        };
        question.put_to(connection)?;
        // One stopped member costs this time once; then all others are asked together.
        if is_patient && !question.asked.is_empty() {
            if let Some(escrow) = question.answer(FIRST_PATIENCE)? {
                return Ok(Some(escrow));
            }
            is_patient = question.asked.is_empty();
        }
    }
    if !question.asked.is_empty()
        && let Some(escrow) = question.answer(LAST_PATIENCE)?
    {
        return Ok(Some(escrow));
    }
    if let Some(escrow) = ask_crowded(names, &mut question, &mut crowded)? {
        return Ok(Some(escrow));
    }
    match (question.strangers.first(), question.asked.first(), crowded.first()) {
        (Some(stranger), _, _) => Err(JoinError::Excluded(stranger.refusal())),
        (None, Some((_, silent)), _) => Err(JoinError::Excluded(format!(
            "{silent}, which uses it, does not answer; if that process is stopped, continue or end it"
        ))),
        (None, None, Some(&slot)) => Err(JoinError::Excluded(format!(
            "the queue of connections to @{} was full for {} s; end the processes that fill it (`ss -xp` shows them), or use \
             another address",
            names.slot(slot),
            CROWD_PATIENCE.as_secs()
        ))),
        (None, None, None) => Ok(None),
    }
}

/// Asks the members whose queues of connections were full, until one answers or the time is up. Removes those
/// that could be asked or have ended from `crowded`.
fn ask_crowded(
    names: &Names,
    question: &mut Question,
    crowded: &mut Vec<ProcessSlot>,
) -> Result<Option<Escrow>, JoinError> {
    let end = Instant::now() + CROWD_PATIENCE;
    let mut turn = 0;
    while let Some(&slot) = crowded.get(turn % crowded.len().max(1)) {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break;
        }
        match names::connect_within(&names.slot(slot), left.min(CROWD_TURN)) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                turn += 1;
                continue;
            }
            Err(_) => {}
            Ok(connection) => {
                question.put_to(connection)?;
                if let Some(escrow) = question.answer(LAST_PATIENCE)? {
                    return Ok(Some(escrow));
                }
            }
        }
        crowded.retain(|&it| it != slot);
    }
    Ok(None)
}

struct Question {
    /// Members that have not answered yet.
    asked: Vec<(OwnedFd, Peer)>,
    /// Members that do not share the address with this process.
    strangers: Vec<Peer>,
}

impl Question {
    fn put_to(&mut self, connection: OwnedFd) -> io::Result<()> {
        let peer = Peer::of(&connection)?;
        if !peer.is_trusted() {
            self.strangers.push(peer);
        } else {
            // A refusing member may have answered and closed already: this fails, and the answer is readable.
            let _ = send(&connection, &[JOIN], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
            self.asked.push((connection, peer));
        }
        Ok(())
    }

    /// Waits for the first answer of the asked members.
    fn answer(&mut self, patience: Duration) -> io::Result<Option<Escrow>> {
        let end = Instant::now() + patience;
        loop {
            let mut place = 0;
            while let Some((connection, peer)) = self.asked.get(place) {
                let mut answer = [0; 16];
                match receive_with(connection, &mut answer, RecvFlags::empty()) {
                    Ok((1.., mut descriptors)) if answer[0] == ADMITTED && descriptors.len() == 1 => {
                        return descriptors.pop().map(Escrow::adopt).transpose();
                    }
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        place += 1;
                        continue;
                    }
                    // The member answered, but this process has no descriptor left for the answer.
                    Err(error) if error.raw_os_error() == Some(libc::EMFILE) => return Err(error),
                    // The kernel reports a close with unread bytes once; an earlier answer is still there.
                    Err(error) if error.kind() == io::ErrorKind::ConnectionReset => continue,
                    Ok((1.., _)) => self.strangers.push(*peer),
                    // The member has ended.
                    Ok((0, _)) | Err(_) => {}
                }
                self.asked.remove(place);
            }
            let left = end.saturating_duration_since(Instant::now());
            if self.asked.is_empty() || left.is_zero() {
                return Ok(None);
            }
            let mut polled: Vec<_> = self
                .asked
                .iter()
                .map(|(it, _)| PollFd::from_borrowed_fd(it.as_fd(), PollFlags::IN))
                .collect();
            match poll(&mut polled, Timespec::try_from(left).ok().as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// The groups that this process is a member of. Another device of the same process must not ask a member,
/// because the asked member may be waiting for that device.
static REGISTER: StaticMutex<Vec<Entry>> = StaticMutex::new(Vec::new());

struct Entry {
    /// Names are valid in one network namespace only.
    namespace: u64,
    prefix: String,
    escrow: Weak<Escrow>,
}

fn registered(names: &Names) -> Option<Arc<Escrow>> {
    let namespace = network_namespace()?;
    let register = REGISTER.lock();
    let mut found = register.iter().filter(|it| it.namespace == namespace && it.prefix == names.prefix);
    found.find_map(|it| it.escrow.upgrade())
}

fn register(names: &Names, escrow: &Arc<Escrow>) {
    let Some(namespace) = network_namespace() else { return };
    let mut register = REGISTER.lock();
    register.retain(|it| it.escrow.strong_count() > 0);
    let (prefix, escrow) = (names.prefix.clone(), Arc::downgrade(escrow));
    register.push(Entry { namespace, prefix, escrow });
}

fn network_namespace() -> Option<u64> {
    Some(std::fs::metadata("/proc/thread-self/ns/net").ok()?.ino())
}

/// Members that are not stopped answer within a millisecond.
const FIRST_PATIENCE: Duration = Duration::from_millis(300);
const LAST_PATIENCE: Duration = Duration::from_secs(1);
/// Limits for members whose queues of connections are full: for all together, and for each turn of one.
const CROWD_PATIENCE: Duration = Duration::from_secs(5);
const CROWD_TURN: Duration = Duration::from_millis(200);
/// Longer than joining takes if members in the first and later slots are stopped or have full queues.
const LOCK_PATIENCE: Duration = Duration::from_secs(15);
/// Pauses between two attempts to take the lock.
const SHORTEST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(16);
