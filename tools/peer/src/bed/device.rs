//! A NIC behind a device, in real time.

use std::fmt;
use std::io;
use std::net::IpAddr;

use roce_device::{Clock, Device};
use roce_packet::{Encapsulation, Opcode, Operation, Path, Qpn};
use roce_transport::{Identification, Instant, Transmit};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::run::{Answer, Connected, Output, Packet, Refusal, Report, Request, Run, Settings};
use crate::script::Script;

/// Time between two questions to a NIC while a step waits for it.
const LOOK_AGAIN_NS: u64 = 2_000_000;
/// Longest sleep without a look at the device.
const MOST_SLEEP_NS: u64 = 1_000_000;
/// The source port of scripts without `sport`.
const SOURCE_PORT: u16 = 0xc000;
/// The queue pair number of the script, behind the process slot of the device.
const OWN_QPN: u32 = 0x0f01;

/// The queue pair of a NIC, as its owner states it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parameters {
    /// The address of the NIC.
    pub address: IpAddr,
    /// The queue pair number.
    pub qpn: Qpn,
    /// The first PSN that the queue pair sends; `None` for the one that the script asks for.
    pub psn: Option<u32>,
    /// The registered memory: first address, key and length in bytes.
    pub memory: Option<(u64, u32, usize)>,
}

/// The description of this end, for the owner of the NIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnEnd {
    /// The address.
    pub address: IpAddr,
    /// The queue pair number.
    pub qpn: Qpn,
}

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

/// A queue pair whose owner states its end. Its NIC cannot be asked for anything.
pub struct Stated<'a> {
    connect: &'a mut Connect<'a>,
    /// Memory that no statement has taken: first address, key and length in bytes.
    memory: Option<(u64, u32, usize)>,
}

impl<'a> Stated<'a> {
    /// Creates the control; `connect` is called for the statement of that name.
    pub fn new(connect: &'a mut Connect<'a>) -> Self {
        Self { connect, memory: None }
    }
}

impl Control for Stated<'_> {
    fn connect(&mut self, settings: &Settings, own: OwnEnd) -> Result<Parameters, Refusal> {
        let parameters = (self.connect)(settings, own)?;
        self.memory = parameters.memory;
        Ok(parameters)
    }

    fn answer(&mut self, request: &Request) -> Result<Answer, Refusal> {
        let Request::Memory { name, len, .. } = request else {
            return Err(Refusal::Unable(format!("this NIC cannot be asked to {}", purpose(request))));
        };
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

    fn offers(&self, _: Operation) -> bool {
        true
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
        source_port: 0,
        was_empty: now,
        looked: now,
        burst: Vec::new(),
    };
    let report = nic.run(Run::new(script).with_slack(slack_ns));
    nic.control.disconnect();
    report
}

impl DeviceNic<'_> {
    fn run(&mut self, mut run: Run<'_>) -> Result<Report, DeviceError> {
        loop {
            self.receive(&mut run)?;
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
        let parameters = self.control.connect(settings, own)?;
        if parameters.address.is_ipv4() != own.address.is_ipv4() {
            let text = format!("{} and {} are not of one IP version", parameters.address, own.address);
            return Err(Refusal::Failed(text));
        }
        self.parameters = Some(parameters);
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
            nic_psn: parameters.psn.unwrap_or(settings.nic_psn),
            address: parameters.address,
            own_address: own.address,
            source_port,
        }))
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

    /// Passes everything that the NIC sent to the run. Packets of others are left out.
    fn receive(&mut self, run: &mut Run<'_>) -> Result<(), DeviceError> {
        let address = self.parameters.map(|parameters| parameters.address);
        let burst = &mut self.burst;
        let now = self.clock.now();
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
        for (path, identification, bytes) in self.burst.drain(..) {
            run.receive_since(self.was_empty, now, &path, identification, &bytes);
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
