//! A NIC behind a device, in real time.

use std::fmt;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::io;
use std::net::{IpAddr, SocketAddr};

use roce_device::{Clock, Device};
use roce_packet::mad::CmMessage;
use roce_packet::{BthView, Encapsulation, Opcode, Operation, Path, Qpn};
use roce_transport::{Access, Identification, Instant, QpState, Transmit};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::ends::{OwnEnd, Parameters};
use super::rdma_cm::{Connection, Outcome};
use crate::run::{Answer, Connected, Output, Packet, Refusal, Report, Request, Run, Settings};
use crate::script::Script;

/// Time between two questions to a NIC while a step waits for it.
const LOOK_AGAIN_NS: u64 = 2_000_000;
/// Longest sleep without a look at the device.
const MOST_SLEEP_NS: u64 = 1_000_000;
/// The source port of scripts without `sport`.
const SOURCE_PORT: u16 = 0xc000;
/// Time after which a message of rdma_cm is sent again.
const REPEAT_NS: u64 = 500_000_000;
/// Time limit for the answer of a listener of rdma_cm.
const LISTENER_NS: u64 = 10_000_000_000;
/// Time limit for the confirmation of the end of a connection by rdma_cm.
const END_NS: u64 = 1_000_000_000;
/// The rights of memory, and of a queue pair, that is not limited.
const ALL_RIGHTS: Access = Access::REMOTE_WRITE.union(Access::REMOTE_READ).union(Access::REMOTE_ATOMIC);
/// The queue pair number of the script, behind the process slot of the device.
const OWN_QPN: u32 = 0x0f01;

/// A failure of the device.
#[derive(Debug)]
pub struct DeviceError {
    /// The failed operation.
    what: &'static str,
    error: io::Error,
}

impl fmt::Display for DeviceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the device cannot {}", self.what)
    }
}

impl std::error::Error for DeviceError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

/// Exchanges the parameters of both ends: tells the NIC the settings and this end, and returns the NIC's end.
pub type Connect<'a> = dyn FnMut(&Settings, OwnEnd) -> Result<Parameters, Refusal> + 'a;

/// The control of a NIC behind a device: connects its queue pair, and carries out what a script asks.
pub trait Control {
    /// Tells the NIC the settings and this end, and returns the NIC's end.
    ///
    /// # Errors
    ///
    /// Returns why the queue pair cannot be connected.
    fn connect(&mut self, settings: &Settings, own: OwnEnd) -> Result<Parameters, Refusal>;

    /// Returns the listener of rdma_cm at the NIC that connects the queue pair. Then [`Self::accepted`] is
    /// called instead of [`Self::connect`].
    fn listener(&self) -> Option<SocketAddr> {
        None
    }

    /// Takes the NIC's end of a connection by rdma_cm.
    fn accepted(&mut self, _parameters: &Parameters) {}

    /// Carries out a request other than to connect.
    ///
    /// # Errors
    ///
    /// Returns why the request was not carried out.
    fn answer(&mut self, request: &Request) -> Result<Answer, Refusal>;

    /// Returns whether the NIC handles requests with this operation.
    fn offers(&self, operation: Operation) -> bool;

    /// Destroys the queue pair and the memory of a script that has ended.
    fn disconnect(&mut self);
}

/// A queue pair whose owner states its end, or that a listener of rdma_cm connects. Its NIC cannot be asked
/// for anything else.
pub struct Stated<'a> {
    source: Source<'a>,
    /// Memory that no statement has taken: first address, key and length in bytes.
    memory: Option<(u64, u32, usize)>,
}

/// Who states the NIC's end.
enum Source<'a> {
    Owner(&'a mut Connect<'a>),
    RdmaCm(SocketAddr),
}

impl<'a> Stated<'a> {
    /// Creates the control; `connect` is called for the statement of that name.
    pub fn new(connect: &'a mut Connect<'a>) -> Self {
        Self { source: Source::Owner(connect), memory: None }
    }

    /// Creates the control of queue pairs that a listener of rdma_cm connects. Memory is that which the
    /// listener offers in its private data, as [`RDMA_CM_TARGET`](super::RDMA_CM_TARGET) does.
    #[must_use]
    pub const fn by_rdma_cm(listener: SocketAddr) -> Self {
        Self { source: Source::RdmaCm(listener), memory: None }
    }
}

/// Refuses settings that only somebody who creates the queue pair of the NIC can choose.
fn without_verbs(settings: &Settings) -> Result<(), Refusal> {
    let what = if settings.state != QpState::Rts {
        "leave its queue pair in another state"
    } else if !settings.rights.contains(ALL_RIGHTS) {
        "limit the rights of its queue pair"
    } else {
        return Ok(());
    };
    Err(Refusal::Unable(format!("this NIC cannot be asked to {what}")))
}

impl Control for Stated<'_> {
    fn connect(&mut self, settings: &Settings, own: OwnEnd) -> Result<Parameters, Refusal> {
        without_verbs(settings)?;
        let Source::Owner(connect) = &mut self.source else {
            return Err(Refusal::Failed("the listener of rdma_cm connects the queue pair".to_owned()));
        };
        let parameters = connect(settings, own)?;
        self.memory = parameters.memory;
        Ok(parameters)
    }

    fn listener(&self) -> Option<SocketAddr> {
        match self.source {
            Source::RdmaCm(listener) => Some(listener),
            Source::Owner(_) => None,
        }
    }

    fn accepted(&mut self, parameters: &Parameters) {
        self.memory = parameters.memory;
    }

    fn answer(&mut self, request: &Request) -> Result<Answer, Refusal> {
        let Request::Memory { name, len, rights, is_foreign } = request else {
            return Err(Refusal::Unable(format!("this NIC cannot be asked to {}", purpose(request))));
        };
        if *is_foreign || !rights.contains(ALL_RIGHTS) {
            let what = format!("`memory {name}`: this NIC cannot be asked to limit the rights of its memory");
            return Err(Refusal::Unable(what));
        }
        match self.memory {
            Some((va, rkey, have)) if *len <= have => {
                self.memory = None;
                Ok(Answer::Memory { va, rkey })
            }
            Some((_, _, have)) => {
                Err(Refusal::Unable(format!("`memory {name}` needs {len} bytes, and the NIC offers {have}")))
            }
            None => Err(Refusal::Unable(format!(
                "`memory {name}`: this NIC offers no (other) memory to the script"
            ))),
        }
    }

    fn offers(&self, operation: Operation) -> bool {
        // A queue pair of rdma_cm has no right for FLUSH.
        !(matches!(self.source, Source::RdmaCm(_)) && operation == Operation::Flush)
    }

    fn disconnect(&mut self) {
        self.memory = None;
    }
}

/// A NIC behind a device.
struct DeviceNic<'a> {
    device: &'a mut dyn Device,
    control: &'a mut dyn Control,
    clock: Clock,
    parameters: Option<Parameters>,
    /// The address of the NIC.
    address: Option<IpAddr>,
    /// The connection by rdma_cm.
    session: Option<Connection>,
    /// The source port of scripts without `sport`.
    source_port: u16,
    /// The last time at which the device had no packet.
    was_empty: Instant,
    /// The time of the last question to the NIC.
    looked: Instant,
    /// Packets of the last burst.
    burst: Vec<(Path, Option<u16>, Vec<u8>)>,
}

/// Runs a script against a NIC behind a device. Answers may take `slack_ns` longer than the script says.
///
/// # Errors
///
/// Returns an error if the device fails.
pub fn run_device(
    script: &Script,
    device: &mut dyn Device,
    slack_ns: u64,
    control: &mut dyn Control,
) -> Result<Report, DeviceError> {
    let clock = Clock::start();
    let now = clock.now();
    let mut nic = DeviceNic {
        device,
        control,
        clock,
        parameters: None,
        address: None,
        session: None,
        source_port: 0,
        was_empty: now,
        looked: now,
        burst: Vec::new(),
    };
    let report = nic.run(Run::new(script).with_slack(slack_ns));
    let ended = nic.end_session();
    nic.control.disconnect();
    ended.and(report)
}

impl DeviceNic<'_> {
    fn run(&mut self, mut run: Run<'_>) -> Result<Report, DeviceError> {
        loop {
            self.messages(Some(&mut run))?;
            let now = self.clock.now();
            match run.poll(now) {
                Output::Send(packet) => {
                    if let Err(refusal) = self.send(&packet)? {
                        run.answer(Err(refusal));
                    }
                }
                Output::Ask(Request::Connect(settings)) => run.answer(self.connected(&settings)),
                Output::Ask(request) => run.answer(self.control.answer(&request)),
                Output::Wait(until) => {
                    self.sleep(now, until)?;
                    if now >= self.looked.plus_nanos(LOOK_AGAIN_NS) {
                        self.looked = now;
                        run.wake();
                    }
                }
                Output::Finished => return Ok(run.into_report(now)),
            }
        }
    }

    fn own_end(&self) -> Result<OwnEnd, Refusal> {
        let address = self.device.addresses().first().copied();
        let address = address.ok_or_else(|| Refusal::Failed("the device has no address".to_owned()))?;
        let qpn = Qpn::new(self.device.capabilities().process_slot.first_qpn() | OWN_QPN);
        Ok(OwnEnd { address, qpn })
    }

    fn connected(&mut self, settings: &Settings) -> Result<Answer, Refusal> {
        let own = self.own_end()?;
        let (parameters, own_psn) = match self.control.listener() {
            Some(listener) => self.ask_listener(listener, settings, own)?,
            None => (self.control.connect(settings, own)?, settings.psn),
        };
        if parameters.address.is_ipv4() != own.address.is_ipv4() {
            let text = format!("{} and {} are not of one IP version", parameters.address, own.address);
            return Err(Refusal::Failed(text));
        }
        self.parameters = Some(parameters);
        self.address = Some(parameters.address);
        let path = Path {
            encapsulation: Encapsulation::RoceV2,
            source: own.address,
            destination: parameters.address,
            source_port: SOURCE_PORT,
            traffic_class: 2,
            hop_limit: 64,
            flow_label: 0,
            vlan: None,
        };
        let bound = self.device.bind_source_port(&path, SOURCE_PORT);
        let source_port = bound.map_err(|error| Refusal::Failed(error.to_string()))?;
        self.source_port = source_port;
        Ok(Answer::Connected(Connected {
            qpn: parameters.qpn,
            own_qpn: own.qpn,
            own_psn,
            nic_psn: parameters.psn.unwrap_or(settings.nic_psn),
            address: parameters.address,
            own_address: own.address,
            source_port,
        }))
    }

    /// Connects a queue pair by rdma_cm. Returns the NIC's end, and the PSN with which the script must begin.
    fn ask_listener(
        &mut self,
        listener: SocketAddr,
        settings: &Settings,
        own: OwnEnd,
    ) -> Result<(Parameters, u32), Refusal> {
        without_verbs(settings)?;
        let failed = |what: &str| Refusal::Failed(format!("rdma_cm at {listener}: {what}"));
        let broken = |error: DeviceError| failed(&error.to_string());
        let connection = Connection::new(listener, own, settings, self.new_id())?;
        let request = connection.request();
        self.session = Some(connection);
        self.address = Some(listener.ip());
        let began = self.clock.now();
        let mut next = began;
        while self.clock.now() < began.plus_nanos(LISTENER_NS) {
            if self.clock.now() >= next {
                self.send_message(request).map_err(broken)?;
                next = self.clock.now().plus_nanos(REPEAT_NS);
            }
            for outcome in self.messages(None).map_err(broken)? {
                match outcome {
                    Outcome::Accepted(parameters, psn) => {
                        self.control.accepted(&parameters);
                        return Ok((parameters, psn));
                    }
                    Outcome::Rejected(why) => return Err(failed(&why)),
                    Outcome::Ended => {}
                }
            }
            self.sleep(self.clock.now(), next).map_err(broken)?;
        }
        Err(failed("no answer; check that the address is that of the NIC and that a program listens there"))
    }

    /// Returns an ID for a connection by rdma_cm. The first bits say which device of the address gets the
    /// answers.
    fn new_id(&self) -> u32 {
        let slot = self.device.capabilities().process_slot;
        let random = RandomState::new().build_hasher().finish() as u32;
        let below = (1 << (slot.bits_below() + 8)) - 1;
        slot.first_qpn() << 8 | random & below
    }

    /// Ends the connection by rdma_cm, if there is one. A NIC that does not confirm the end is left alone.
    fn end_session(&mut self) -> Result<(), DeviceError> {
        let began = self.clock.now();
        let mut next = began;
        while let Some(message) = self.session.as_ref().and_then(Connection::end)
            && self.clock.now() < began.plus_nanos(END_NS)
        {
            if self.clock.now() >= next {
                self.send_message(message)?;
                next = self.clock.now().plus_nanos(REPEAT_NS);
            }
            if self.messages(None)?.contains(&Outcome::Ended) {
                break;
            }
            self.sleep(self.clock.now(), next)?;
        }
        self.session = None;
        Ok(())
    }

    /// Sends a message of rdma_cm.
    fn send_message(&mut self, message: CmMessage) -> Result<(), DeviceError> {
        let Some(session) = &mut self.session else { return Ok(()) };
        let path = session.path();
        let port = self.device.bind_source_port(&path, path.source_port).map_err(of("bind a source port"))?;
        let path = Path { source_port: port, ..path };
        let Some(bytes) = session.datagram(message, &path) else { return Ok(()) };
        let now = self.clock.now();
        // Without room, the message is sent again later.
        if let Some(slot) = self.device.slot()
            && let Some(room) = slot.buffer.get_mut(..bytes.len())
        {
            room.copy_from_slice(&bytes);
            self.device.commit(now, &Transmit::new(path, Qpn::GSI, bytes.len(), 0));
        }
        self.device.flush(now).map_err(of("send"))
    }

    /// Takes what arrived: passes packets of the queue pair to the run, answers messages of rdma_cm, and
    /// returns what they say.
    fn messages(&mut self, mut run: Option<&mut Run<'_>>) -> Result<Vec<Outcome>, DeviceError> {
        let now = self.clock.now();
        self.look(now)?;
        let mut outcomes = Vec::new();
        for (path, identification, bytes) in std::mem::take(&mut self.burst) {
            let is_message = BthView::from_prefix(&bytes).is_ok_and(|(bth, _)| bth.dest_qp() == Qpn::GSI);
            match (&mut self.session, &mut run) {
                (Some(session), _) if is_message => {
                    let (answer, outcome) = session.handle(&bytes);
                    outcomes.extend(outcome);
                    if let Some(answer) = answer {
                        self.send_message(answer)?;
                    }
                }
                (_, Some(run)) => run.receive_since(self.was_empty, now, &path, identification, &bytes),
                (_, None) => {}
            }
        }
        Ok(outcomes)
    }

    /// Sends a packet. The inner result says whether the device can send such a packet.
    fn send(&mut self, packet: &Packet) -> Result<Result<(), Refusal>, DeviceError> {
        let Packet { path, dest_qp, bytes } = packet;
        let unable = |what: &str| Ok(Err(Refusal::Unable(format!("this device cannot send {what}"))));
        if !self.device.addresses().contains(&path.source) {
            return unable("from another address");
        }
        if self.parameters.is_some_and(|parameters| parameters.address != path.destination) {
            return unable("to an address that is not that of the NIC");
        }
        let info = bytes.first().and_then(|opcode| Opcode(*opcode).info());
        if let Some(info) = info.filter(|info| !self.control.offers(info.operation)) {
            return Ok(Err(Refusal::Unable(format!("this NIC does not support {}", info.name))));
        }
        if path.source_port != self.source_port {
            let port = self.device.bind_source_port(path, path.source_port);
            if port.map_err(of("bind a source port"))? != path.source_port {
                return unable("from this source port");
            }
        }
        let Some(slot) = self.device.slot() else { return unable("more packets before others have left") };
        let Some(room) = slot.buffer.get_mut(..bytes.len()) else { return unable("such a long packet") };
        room.copy_from_slice(bytes);
        let now = self.clock.now();
        self.device.commit(now, &Transmit::new(*path, *dest_qp, bytes.len(), 0));
        self.device.flush(now).map_err(of("send"))?;
        Ok(Ok(()))
    }

    /// Collects what the NIC sent. Packets of others are left out.
    fn look(&mut self, now: Instant) -> Result<(), DeviceError> {
        let address = self.address;
        let burst = &mut self.burst;
        let received = self.device.receive(now, &mut |received| {
            let identification = match received.identification {
                Identification::Known { identification, .. } => Some(identification),
                Identification::Unknown { .. } | Identification::Unsealed => None,
            };
            if Some(received.path.source) == address {
                burst.push((received.path, identification, received.body.pieces().concat()));
            }
        });
        if received.map_err(of("receive"))? == 0 {
            self.was_empty = now;
        }
        Ok(())
    }

    /// Sleeps until a packet arrives, at the latest until the given time.
    fn sleep(&self, now: Instant, until: Instant) -> Result<(), DeviceError> {
        let nanos = u64::try_from(until.since(now).as_nanos()).unwrap_or(u64::MAX).min(MOST_SLEEP_NS);
        let timeout = Timespec { tv_sec: 0, tv_nsec: nanos as _ };
        let Some(descriptor) = self.device.as_fd() else {
            std::thread::sleep(std::time::Duration::from_nanos(nanos));
            return Ok(());
        };
        match poll(&mut [PollFd::new(&descriptor, PollFlags::IN)], Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(of("wait for packets")(error.into())),
        }
    }
}

fn of(what: &'static str) -> impl FnOnce(io::Error) -> DeviceError {
    move |error| DeviceError { what, error }
}

/// Describes a request that only a NIC with verbs can carry out.
const fn purpose(request: &Request) -> &'static str {
    match request {
        Request::Connect(_) => "connect",
        Request::Memory { .. } | Request::Revoke(_) | Request::Window { .. } => "change its memory",
        Request::Write(..) => "fill its memory",
        Request::Read(_) => "show its memory",
        Request::Receive(..) | Request::Post(_) => "post requests",
        Request::Modify(_) => "change the state of its queue pair",
        Request::State => "show the state of its queue pair",
        Request::Counter(_) => "show its counters",
        Request::Completions | Request::Events => "show its completions and events",
    }
}
