//! How a process becomes a member of the group of an address, or makes the group.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{RecvFlags, SendFlags, send};
use socket2::Socket;

use super::escrow::{Escrow, receive_with};
use super::names::{self, Names, Peer};
use super::{ADMITTED, JOIN, SLOTS};
use crate::descriptors::aside;
use crate::fork::StaticMutex;

/// Why a process is no member.
#[derive(Debug)]
pub(in crate::udp) enum JoinError {
    /// The address has a group, but not for this process: the reason and the next step, as the end of a sentence.
    Excluded(String),
    /// The system refused something.
    System(io::Error),
}

impl From<io::Error> for JoinError {
    fn from(error: io::Error) -> Self {
        Self::System(error)
    }
}

/// What a new member holds.
pub(super) struct Joined {
    pub(super) escrow: Arc<Escrow>,
    pub(super) slot: u8,
    /// Others connect to it.
    pub(super) listener: OwnedFd,
    /// Slot 0's, then its own.
    pub(super) sockets: [Socket; 2],
}

/// Joins the group, or makes it of what `make` returns, and takes the lowest free slot.
pub(super) fn join(names: &Names, make: impl Fn() -> io::Result<Vec<Socket>>) -> Result<Joined, JoinError> {
    let _lock = lock(names)?;
    let escrow = match registered(names) {
        Some(escrow) => escrow,
        None => Arc::new(ask_or_make(names, make)?),
    };
    let (slot, listener) = claim(names)?;
    let mut sockets = escrow.sockets()?;
    let own = Socket::from(aside(sockets.swap_remove(slot.into()).into()));
    let front = Socket::from(aside(sockets.swap_remove(0).into()));
    register(names, &escrow);
    Ok(Joined { escrow, slot, listener, sockets: [front, own] })
}

fn ask_or_make(names: &Names, make: impl Fn() -> io::Result<Vec<Socket>>) -> Result<Escrow, JoinError> {
    match ask(names) {
        Ok(Some(escrow)) => Ok(escrow),
        Ok(None) => Ok(Escrow::new(&make_patiently(make)?)?),
        // Any process can take a name. One without the port keeps no other from it.
        Err(excluded @ JoinError::Excluded(_)) => match make() {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => Err(excluded),
            made => Ok(Escrow::new(&made?)?),
        },
        Err(error) => Err(error),
    }
}

/// Keeps others from joining and making the group until it is dropped.
fn lock(names: &Names) -> Result<OwnedFd, JoinError> {
    let (name, end) = (names.lock(), Instant::now() + LOCK_PATIENCE);
    loop {
        match names::bind(&name) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                if Instant::now() < end {
                    thread::sleep(Duration::from_millis(1));
                    continue;
                }
                let holder = names::connect(&name).and_then(Peer::of);
                let holder = holder.map_or_else(|_| "another process".to_owned(), |peer| peer.to_string());
                return Err(JoinError::Excluded(format!(
                    "{holder} has been joining them for {} s; if it is stopped, end it",
                    LOCK_PATIENCE.as_secs()
                )));
            }
            bound => return Ok(bound?),
        }
    }
}

/// The sockets of processes that have just ended may be closed a little later than their names.
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

fn claim(names: &Names) -> Result<(u8, OwnedFd), JoinError> {
    for slot in 1..SLOTS {
        match names::bind(&names.slot(slot)) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
            bound => return Ok((slot, bound?)),
        }
    }
    let most = SLOTS - 1;
    Err(JoinError::Excluded(format!("all {most} places are taken; end one of them or use another address")))
}

/// Asks the members in turn for the sockets. `None`: there is no member.
fn ask(names: &Names) -> Result<Option<Escrow>, JoinError> {
    let mut question = Question { asked: Vec::new(), strangers: Vec::new() };
    let (mut is_patient, mut crowded) = (true, Vec::new());
    for slot in 1..SLOTS {
        let connection = match names::connect(&names.slot(slot)) {
            Ok(connection) => connection,
            // Somebody holds the name, and nothing shows yet who.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                crowded.push(slot);
                continue;
            }
            Err(_) => continue,
        };
        question.put_to(connection)?;
        // One that is stopped costs this time once; then all others are asked together.
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
            "{silent}, which has it, does not answer; if it is stopped, continue or end it"
        ))),
        (None, None, Some(&slot)) => Err(JoinError::Excluded(format!(
            "the queue of connections to @{} was full for {} s; `ss -xp` shows which processes fill it: end them or use \
             another address",
            names.slot(slot),
            CROWD_PATIENCE.as_secs()
        ))),
        (None, None, None) => Ok(None),
    }
}

/// Asks the members whose queues of connections were full, until one answers or the time is up. Those that could be asked or have
/// ended leave `crowded`.
fn ask_crowded(
    names: &Names,
    question: &mut Question,
    crowded: &mut Vec<u8>,
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
    /// Members that share nothing with this process.
    strangers: Vec<Peer>,
}

impl Question {
    fn put_to(&mut self, connection: OwnedFd) -> io::Result<()> {
        let peer = Peer::of(&connection)?;
        if !peer.is_trusted() {
            self.strangers.push(peer);
        } else {
            // A member that refuses this process may have answered and closed already: then this fails, and the answer waits.
            let _ = send(&connection, &[JOIN], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
            self.asked.push((connection, peer));
        }
        Ok(())
    }

    /// Waits for the first answer of those that were asked.
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
                    // The kernel reports a close with unread bytes once; an answer that came before it is still there.
                    Err(error) if error.kind() == io::ErrorKind::ConnectionReset => continue,
                    Ok((1.., _)) => self.strangers.push(*peer),
                    // It has ended.
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
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// The groups that this process is a member of: another device of the same process asks no member, because the one that would
/// have to answer may be waiting for it.
static REGISTER: StaticMutex<Vec<Entry>> = StaticMutex::new(Vec::new());

struct Entry {
    /// Names mean something in one network namespace only.
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

/// A member answers within a millisecond unless it is stopped.
const FIRST_PATIENCE: Duration = Duration::from_millis(300);
const LAST_PATIENCE: Duration = Duration::from_secs(1);
/// Time for members whose queues of connections are full, for all together and for one in its turn.
const CROWD_PATIENCE: Duration = Duration::from_secs(5);
const CROWD_TURN: Duration = Duration::from_millis(200);
/// Longer than joining takes if several members are stopped and the queues of others are full.
const LOCK_PATIENCE: Duration = Duration::from_secs(8);
