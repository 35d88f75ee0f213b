//! The simulator as the network of an external scheduler, which sends messages and schedules its own events.
//!
//! The scheduler keeps the control flow: it calls [`Network::send`], [`Network::receive`] and
//! [`Network::schedule`], and fetches one event after the other with [`Network::next_event`].

mod error;
mod message;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::dependencies::News;
use super::flow::FlowState;
use super::payload::MAX_FLOW;
use super::results::Results;
use super::settings::{FlowOperation, Settings};
use super::simulation::{BuildError, Reached, Simulation};
use super::time::Time;
use super::topology::Topology;
use super::workload::MAX_FLOWS;

pub use error::NetworkError;
pub use message::{Handle, Message, NetworkEvent};

/// A network in virtual time whose messages an external scheduler sends.
///
/// Ranks are the hosts of the topology in their order, from 0. Time passes only in [`Self::next_event`]; all
/// other methods act at the current time.
///
/// **Matching.** A receive matches a send with the same sender, receiver and tag. Among those, the first send
/// matches the first receive, the second one the second, and so on. A message leaves at its send, whether or
/// not its receive exists. The receive completes when the message has arrived and the receive exists.
///
/// **Queue pairs.** All messages from one rank to another use one queue pair, which is connected at the first
/// of them and takes no time for it. The messages are WRITEs with immediate data that are posted in the order
/// of the sends, so they arrive in this order, whatever their tags. `depth` of
/// [`HostSettings`](super::HostSettings) limits the outstanding requests. A collective operation of a
/// [`Schedule`](super::Schedule) uses queue pairs in the same way.
///
/// **Order.** At equal times, completions that have already happened come first, then scheduled tokens in the
/// order of their calls, then the events of the network. The same calls give the same events, times and
/// [`trace_hash`](Self::trace_hash). The run has one thread: [`Settings::threads`] does not apply.
///
/// ```
/// use roce_sim::net::{LinkSpec, Network, NetworkEvent, Settings, Time, Topology};
///
/// let topology = Topology::star(2, LinkSpec::DEFAULT)?;
/// let mut network = Network::new(&topology, Settings::default())?;
/// network.receive(0, 1, 7, 1_000_000)?;
/// // Rank 0 computes for 50 µs, then sends a megabyte, which takes 88.5 µs on links of 100 Gb/s.
/// network.schedule(Time::from_us(50), 1);
/// while let Some(event) = network.next_event()? {
///     match event {
///         NetworkEvent::Scheduled { token: 1 } => _ = network.send(0, 1, 7, 1_000_000)?,
///         NetworkEvent::Received(message) => {
///             assert_eq!((message.tag, message.bytes), (7, 1_000_000));
///             assert!(network.now() > Time::from_us(138) && network.now() < Time::from_us(139));
///         }
///         _ => {}
///     }
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Network {
    simulation: Simulation,
    stop: Time,
    ranks: u32,
    /// The flow of each pair of ranks that has exchanged messages.
    flow_of: BTreeMap<(u32, u32), u32>,
    flows: Vec<Pair>,
    /// Messages that are not complete at both ends, by flow and number.
    messages: BTreeMap<(u32, u32), Sending>,
    /// The number of these whose bytes or acknowledgement have not arrived.
    in_flight: usize,
    /// Sends without a receive, oldest first, as keys of `messages`; and receives without a send.
    sends: BTreeMap<Key, VecDeque<(u32, u32)>>,
    receives: BTreeMap<Key, VecDeque<Message>>,
    /// Scheduled tokens: time, number of the call, token.
    scheduled: BTreeSet<(Time, u64, u64)>,
    events: VecDeque<NetworkEvent>,
    /// The number of sends and receives, and of scheduled tokens so far.
    handles: u64,
    tokens: u64,
    /// The reason why the run cannot go on.
    broken: Option<NetworkError>,
}

/// Sender, receiver and tag.
type Key = (u32, u32, u64);

/// The messages between two ranks.
struct Pair {
    /// The sum of their bytes.
    bytes: u64,
    /// The time of the last acknowledgement.
    last: Time,
}

/// A message that is not complete at both ends.
struct Sending {
    message: Message,
    is_acknowledged: bool,
    has_arrived: bool,
    /// The receive that it matches.
    receive: Option<Handle>,
}

impl Sending {
    fn is_in_flight(&self) -> bool {
        !self.is_acknowledged || !self.has_arrived
    }
}

impl Network {
    /// Builds a network at time 0.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Simulation::new`]. Also returns an error if the operation of hosts is not
    /// WRITE, or if single flows have settings of their own, because messages have those of
    /// [`Settings::host`], or if there is a scale-up network.
    pub fn new(topology: &Topology, settings: Settings) -> Result<Self, BuildError> {
        if settings.host.operation != FlowOperation::Write {
            let reason = "operation: messages are WRITEs with immediate data; set it to WRITE";
            return Err(BuildError::Setting(reason.to_owned()));
        }
        if !settings.profiles.is_empty() {
            let reason =
                "profiles: messages have the settings of `host`; remove those of groups and of single flows";
            return Err(BuildError::Setting(reason.to_owned()));
        }
        if topology.scale_up.is_some() {
            let reason = "scale_up: the messages of a scheduler do not take this network; leave it out";
            return Err(BuildError::Setting(reason.to_owned()));
        }
        let stop = settings.stop;
        let simulation = Simulation::new(topology, &[], Settings { threads: 1, ..settings })?;
        Ok(Self {
            simulation,
            stop,
            ranks: topology.hosts() as u32,
            flow_of: BTreeMap::new(),
            flows: Vec::new(),
            messages: BTreeMap::new(),
            in_flight: 0,
            sends: BTreeMap::new(),
            receives: BTreeMap::new(),
            scheduled: BTreeSet::new(),
            events: VecDeque::new(),
            handles: 0,
            tokens: 0,
            broken: None,
        })
    }

    /// Returns the number of ranks.
    #[must_use]
    pub fn ranks(&self) -> u32 {
        self.ranks
    }

    /// Returns the name of the host with this rank, or an empty text if there is no such rank.
    #[must_use]
    pub fn name(&self, rank: u32) -> &str {
        if rank < self.ranks { self.simulation.node_name(rank) } else { "" }
    }

    /// Returns the current time: that of the last event.
    #[must_use]
    pub fn now(&self) -> Time {
        self.simulation.now()
    }

    /// Returns the hash over all events of the network so far. Equal calls give equal hashes.
    #[must_use]
    pub fn trace_hash(&self) -> u64 {
        self.simulation.trace_hash()
    }

    /// Sends `bytes` bytes now.
    ///
    /// # Errors
    ///
    /// Returns an error and sends nothing if a rank does not exist, if both ranks are equal, if the number of
    /// bytes is 0 or too large, if the matching receive has fewer bytes, if no queue pair can be connected,
    /// or if the run has ended with an error.
    pub fn send(&mut self, from: u32, to: u32, tag: u64, bytes: u64) -> Result<Handle, NetworkError> {
        self.check(from, to, bytes)?;
        let key = (from, to, tag);
        if let Some(receive) = self.receives.get(&key).and_then(VecDeque::front)
            && receive.bytes < bytes
        {
            return Err(NetworkError::Short { from, to, tag, send: bytes, receive: receive.bytes });
        }
        let known = self.flow_of.get(&(from, to)).copied();
        let sent = known.and_then(|flow| self.flows.get(flow as usize)).map_or(0, |pair| pair.bytes);
        if sent.saturating_add(bytes) >= MAX_FLOW {
            return Err(NetworkError::TooMuch { from, to, bytes, sent });
        }
        let flow = match known {
            Some(flow) => flow,
            None => self.connect(from, to)?,
        };
        let refused = NetworkError::Refused { from, to, reason: "the flow does not exist" };
        let number = self.simulation.add_message(flow, bytes).ok_or(refused)?;
        if let Some(pair) = self.flows.get_mut(flow as usize) {
            pair.bytes += bytes;
        }
        let handle = self.next_handle();
        let receive = take_first(&mut self.receives, key).map(|receive| receive.handle);
        if receive.is_none() {
            self.sends.entry(key).or_default().push_back((flow, number));
        }
        let message = Message { handle, from, to, tag, bytes };
        let sending = Sending { message, is_acknowledged: false, has_arrived: false, receive };
        self.messages.insert((flow, number), sending);
        self.in_flight += 1;
        Ok(handle)
    }

    /// Receives a message of at most `bytes` bytes that `from` has sent or will send to `to` with this tag.
    ///
    /// # Errors
    ///
    /// Returns an error and receives nothing if a rank does not exist, if both ranks are equal, if the number
    /// of bytes is 0, if the matching send has more bytes, or if the run has ended with an error.
    pub fn receive(&mut self, from: u32, to: u32, tag: u64, bytes: u64) -> Result<Handle, NetworkError> {
        self.check(from, to, bytes)?;
        let key = (from, to, tag);
        let place = self.sends.get(&key).and_then(VecDeque::front).copied();
        let Some(place) = place else {
            let handle = self.next_handle();
            let message = Message { handle, from, to, tag, bytes };
            self.receives.entry(key).or_default().push_back(message);
            return Ok(handle);
        };
        let send = self.messages.get(&place).map_or(0, |sending| sending.message.bytes);
        if send > bytes {
            return Err(NetworkError::Short { from, to, tag, send, receive: bytes });
        }
        take_first(&mut self.sends, key);
        let handle = self.next_handle();
        if let Some(sending) = self.messages.get_mut(&place) {
            sending.receive = Some(handle);
            if sending.has_arrived {
                self.events.push_back(NetworkEvent::Received(Message { handle, ..sending.message }));
                self.forget_complete(place);
            }
        }
        Ok(handle)
    }

    /// Returns `token` as an event `after` from now. At equal times, tokens come in the order of the calls.
    pub fn schedule(&mut self, after: Time, token: u64) {
        self.scheduled.insert((self.now() + after, self.tokens, token));
        self.tokens += 1;
    }

    /// Lets time pass until the next event, and returns it. Returns `None` if nothing is left: each send and
    /// each receive is complete, and no token is scheduled. More calls can follow then.
    ///
    /// # Errors
    ///
    /// [`NetworkError::Unmatched`] if nothing is left but sends without a receive, or receives without a
    /// send; calls that match them can follow. [`NetworkError::Failed`] if a queue pair failed, and
    /// [`NetworkError::Stopped`] at [`Settings::stop`]; all later calls return the same error.
    pub fn next_event(&mut self) -> Result<Option<NetworkEvent>, NetworkError> {
        loop {
            if let Some(event) = self.events.pop_front() {
                return Ok(Some(event));
            }
            self.check_whole()?;
            let scheduled = self.scheduled.first().copied();
            if self.in_flight == 0 && scheduled.is_none() {
                return self.at_end();
            }
            let limit = scheduled.map_or(Time::NEVER, |(time, _, _)| time);
            match (self.simulation.run_to_news(limit), scheduled) {
                (Reached::News, _) => self.take_news(),
                (Reached::Limit, Some(first)) => {
                    self.scheduled.remove(&first);
                    self.simulation.advance_to(first.0);
                    return Ok(Some(NetworkEvent::Scheduled { token: first.2 }));
                }
                (Reached::Limit | Reached::Stop, _) => self.broken = Some(self.stopped()),
            }
        }
    }

    /// Ends the run and returns its results, with one flow for each pair of ranks that exchanged messages, in
    /// the order of their first messages. The size of a flow is the sum of its messages.
    #[must_use]
    pub fn results(mut self) -> Results {
        for (number, pair) in (0..).zip(&self.flows) {
            self.simulation.close_flow(number, pair.bytes, pair.last);
        }
        self.simulation.close();
        self.simulation.results()
    }

    fn check(&self, from: u32, to: u32, bytes: u64) -> Result<(), NetworkError> {
        self.check_whole()?;
        let ranks = self.ranks;
        if let Some(rank) = [from, to].into_iter().find(|rank| *rank >= ranks) {
            return Err(NetworkError::NoRank { rank, ranks });
        }
        if from == to {
            return Err(NetworkError::ToItself { rank: from });
        }
        if bytes == 0 {
            return Err(NetworkError::Empty { from, to });
        }
        Ok(())
    }

    fn check_whole(&self) -> Result<(), NetworkError> {
        self.broken.clone().map_or(Ok(()), Err)
    }

    /// Connects the queue pair for messages of one rank to another, and returns its flow.
    fn connect(&mut self, from: u32, to: u32) -> Result<u32, NetworkError> {
        let refused = |reason| NetworkError::Refused { from, to, reason };
        if self.flows.len() >= MAX_FLOWS {
            return Err(refused("there are too many queue pairs"));
        }
        let flow = self.simulation.open_flow(from, to);
        // A refused flow has a number, too.
        self.flows.push(Pair { bytes: 0, last: Time::ZERO });
        let flow = flow.map_err(|refusal| {
            refused(FlowState::Refused(refusal).failure().unwrap_or("the flow was refused"))
        })?;
        self.flow_of.insert((from, to), flow);
        Ok(flow)
    }

    fn next_handle(&mut self) -> Handle {
        let handle = Handle::new(self.handles);
        self.handles += 1;
        handle
    }

    /// Turns the news of the simulation into events.
    fn take_news(&mut self) {
        let now = self.now();
        for news in self.simulation.take_news() {
            let (News::Acknowledged { flow, message } | News::Arrived { flow, message }) = news;
            let place = (flow, message);
            let Some(sending) = self.messages.get_mut(&place) else { continue };
            if matches!(news, News::Acknowledged { .. }) {
                sending.is_acknowledged = true;
                self.events.push_back(NetworkEvent::Sent(sending.message));
                if let Some(pair) = self.flows.get_mut(flow as usize) {
                    pair.last = now;
                }
            } else {
                sending.has_arrived = true;
                if let Some(handle) = sending.receive {
                    self.events.push_back(NetworkEvent::Received(Message { handle, ..sending.message }));
                }
            }
            if !sending.is_in_flight() {
                self.in_flight -= 1;
            }
            self.forget_complete(place);
        }
        if let Some((flow, state, at)) = self.simulation.take_failure() {
            let ends = self.flow_of.iter().find(|(_, number)| **number == flow);
            let (from, to) = ends.map_or((0, 0), |(ends, _)| *ends);
            let reason = state.failure().unwrap_or(state.name());
            self.broken = Some(NetworkError::Failed { from, to, at, reason });
        }
    }

    /// Removes a message that is complete at both ends.
    fn forget_complete(&mut self, place: (u32, u32)) {
        let sending = self.messages.get(&place);
        if sending.is_some_and(|sending| !sending.is_in_flight() && sending.receive.is_some()) {
            self.messages.remove(&place);
        }
    }

    /// Returns what is left when nothing can happen any more.
    fn at_end(&self) -> Result<Option<NetworkEvent>, NetworkError> {
        if self.sends.is_empty() && self.receives.is_empty() {
            return Ok(None);
        }
        let sends = self.sends.values().flatten().filter_map(|place| self.messages.get(place));
        let mut sends: Vec<Message> = sends.map(|sending| sending.message).collect();
        let mut receives: Vec<Message> = self.receives.values().flatten().copied().collect();
        for list in [&mut sends, &mut receives] {
            list.sort_by_key(|message| message.handle);
        }
        Err(NetworkError::Unmatched { sends, receives })
    }

    fn stopped(&self) -> NetworkError {
        let waiting = self.messages.values().filter(|sending| sending.is_in_flight());
        let mut waiting: Vec<Message> = waiting.map(|sending| sending.message).collect();
        waiting.sort_by_key(|message| message.handle);
        NetworkError::Stopped { at: self.stop, waiting }
    }
}

/// Removes and returns the first element of the list of a key, and the list if it is empty then.
fn take_first<T>(lists: &mut BTreeMap<Key, VecDeque<T>>, key: Key) -> Option<T> {
    let list = lists.get_mut(&key)?;
    let first = list.pop_front();
    if list.is_empty() {
        lists.remove(&key);
    }
    first
}
