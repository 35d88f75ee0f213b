//! One side of the trials: a queue pair for probes, and bursts of probes.

use std::time::{Duration, Instant};

use roce_exchange::{
    CompletionQueues, Exchange, GRH, Requirements, Resources, ToolError, source_address, take,
};
use roce_packet::Qpn;
use roce_transport::{Access, QpCapabilities, QpType, SendOp, SendWr, Wc, WcStatus};

use super::doctor::Doctor;
use super::icrc;
use super::local::interface_of;
use super::watch::Log;
use super::wire::{Burst, Introduction, Link, MOST_LINKS, Observation, PROBE_BYTES, PROTOCOL, Stamp};
use roce::observe::Snapshot;
use roce::verbs::{AddressHandle, Context, PathOptions, WaitError};

/// Maximum number of probes in flight; the smallest socket buffer can hold more.
const CHUNK: u32 = 128;
/// Number of receives posted at once.
const RECEIVES: usize = 256;
/// After both sides have sent everything, nothing more arrives once this time has passed without a packet.
const QUIET: Duration = Duration::from_millis(60);
/// Time limit for sending a chunk.
const SEND_PATIENCE: Duration = Duration::from_secs(5);
const QKEY: u32 = 0x1d0c_7012;

/// The resources of a side for all trials.
pub(super) struct Probe {
    pub(super) context: Context,
    pub(super) log: Log,
    pub(super) path: PathOptions,
    resources: Resources,
}

/// The state of a side during a burst.
struct Progress {
    arrived: Vec<bool>,
    highest: Option<u32>,
    observation: Observation,
}

impl Doctor {
    /// Creates the resources of this side for all trials.
    pub(super) fn probe(&self) -> Result<Probe, ToolError> {
        Probe::new(&self.context, self.log.clone(), self.path)
    }
}

impl Probe {
    fn new(context: &Context, log: Log, path: PathOptions) -> Result<Self, ToolError> {
        let resources = Resources::new(
            context,
            &Requirements {
                qp_type: QpType::Ud,
                capabilities: QpCapabilities {
                    max_send_wr: CHUNK as usize,
                    max_recv_wr: RECEIVES,
                    ..QpCapabilities::default()
                },
                completion_queues: CompletionQueues::Separate,
                memory: RECEIVES * (GRH + PROBE_BYTES) + CHUNK as usize * PROBE_BYTES,
                access: Access::empty(),
            },
        )?;
        resources.qp.activate_datagram(QKEY)?;
        let probe = Self { context: context.clone(), log, path, resources };
        for slot in 0..RECEIVES {
            probe.post_receive(slot)?;
        }
        Ok(probe)
    }

    /// Returns the introduction for the other side.
    pub(super) fn introduction(&self) -> Result<Introduction, ToolError> {
        let attributes = self.context.query();
        let own = self.own_address()?;
        let local = interface_of(own);
        let interface = local.and_then(|local| Some(Link { mac: local.mac?.0, name: local.interface }));
        let all = roce_device::ethernet_interfaces().unwrap_or_default().into_iter();
        let links = all.map(|(name, mac)| Link { name, mac: mac.0 }).take(MOST_LINKS).collect();
        Ok(Introduction {
            doctor: PROTOCOL,
            kind: attributes.capabilities.kind.to_owned(),
            address: own,
            link_mtu: attributes.capabilities.link_mtu,
            largest_path_mtu: attributes.active_mtu.map_or(0, roce_packet::PathMtu::bytes),
            sees_ip_header: attributes.capabilities.sees_ip_header,
            qpn: self.resources.qp.number().get(),
            qkey: QKEY,
            interface,
            links,
        })
    }

    /// Returns the address of the used GID.
    pub(super) fn own_address(&self) -> Result<std::net::IpAddr, ToolError> {
        source_address(&self.context, self.path.sgid_index)
    }

    fn post_receive(&self, slot: usize) -> Result<(), ToolError> {
        let start = slot * (GRH + PROBE_BYTES);
        Ok(self.resources.post_receive(slot as u64, start..start + GRH + PROBE_BYTES)?)
    }

    /// Returns the destination of probes of a traffic class.
    fn destination(&self, peer: &Introduction, burst: &Burst, class: u8) -> Result<AddressHandle, ToolError> {
        let path = self.path.traffic_class(class).flow_label(burst.flow_label);
        Ok(self.context.create_address_handle(peer.address, Qpn::new(peer.qpn), peer.qkey, &path)?)
    }

    /// Sends a burst while the other side does so, too. Returns the observations of this side and of the
    /// other side.
    pub(super) fn burst(
        &self,
        exchange: &mut Exchange,
        burst: &Burst,
        peer: &Introduction,
    ) -> Result<(Observation, Observation), ToolError> {
        let destinations = burst
            .classes
            .iter()
            .map(|class| self.destination(peer, burst, *class))
            .collect::<Result<Vec<_>, _>>()?;
        let mut progress = Progress {
            arrived: vec![false; burst.count as usize],
            highest: None,
            observation: Observation {
                source_port: destinations.first().map_or(0, |to| to.path.source_port),
                ..Observation::default()
            },
        };
        self.log.take();
        let before = Snapshot::of(&self.context);
        for first in (0..burst.count).step_by(CHUNK as usize) {
            let chunk = first..burst.count.min(first + CHUNK);
            exchange.barrier()?;
            progress.observation.sent += self.send(burst, chunk.clone(), &destinations)?;
            exchange.barrier()?;
            self.drain(burst, chunk, &mut progress)?;
        }
        let own = self.conclude(burst, progress, &before);
        let theirs = exchange.swap("what arrived of a burst", &own)?;
        Ok((own, theirs))
    }

    /// Sends some probes. Returns the number of sent probes.
    fn send(
        &self,
        burst: &Burst,
        probes: std::ops::Range<u32>,
        destinations: &[AddressHandle],
    ) -> Result<u32, ToolError> {
        let base = RECEIVES * (GRH + PROBE_BYTES);
        let mut payload = [0x5a; PROBE_BYTES];
        let count = probes.len();
        for (slot, probe) in probes.enumerate() {
            let start = base + slot * PROBE_BYTES;
            Stamp { burst: burst.number, probe }.write(&mut payload);
            self.resources.put(start, &payload);
            let element = [self.resources.region.element(start..start + burst.bytes.min(PROBE_BYTES))];
            let Some(to) = destinations.get(probe as usize % destinations.len().max(1)) else { break };
            self.resources.qp.post_send(&SendWr::new(probe.into(), SendOp::Send, &element).to(to))?;
        }
        let mut done = [Wc::default(); 64];
        let (mut completed, mut sent) = (0, 0);
        while completed < count {
            let found = match self.resources.send_cq.wait(&mut done, Some(SEND_PATIENCE)) {
                Ok(found) => found,
                Err(WaitError::TimedOut) => return Err(ToolError::NotSent { patience: SEND_PATIENCE }),
                Err(error) => return Err(error.into()),
            };
            completed += found;
            sent += done.iter().take(found).filter(|wc| wc.status == WcStatus::Success).count() as u32;
        }
        Ok(sent)
    }

    /// Receives probes until all probes of a chunk have arrived or nothing more arrives.
    fn drain(
        &self,
        burst: &Burst,
        chunk: std::ops::Range<u32>,
        progress: &mut Progress,
    ) -> Result<(), ToolError> {
        let mut last = Instant::now();
        let mut done = [Wc::default(); 64];
        while last.elapsed() < QUIET {
            let found = match self.resources.recv_cq.wait(&mut done, Some(Duration::from_millis(2))) {
                Ok(found) => found,
                Err(WaitError::TimedOut) => 0,
                Err(error) => return Err(error.into()),
            };
            for wc in done.iter().take(found) {
                last = Instant::now();
                self.take(burst, wc, progress)?;
            }
            let range = chunk.start as usize..chunk.end as usize;
            if progress.arrived.get(range).is_some_and(|chunk| chunk.iter().all(|arrived| *arrived)) {
                break;
            }
        }
        Ok(())
    }

    fn take(&self, burst: &Burst, wc: &Wc, progress: &mut Progress) -> Result<(), ToolError> {
        let slot = wc.wr_id as usize;
        let mut start = [0; Stamp::LEN];
        take(&self.resources.region, slot * (GRH + PROBE_BYTES) + GRH, &mut start);
        self.post_receive(slot)?;
        let is_whole = wc.status == WcStatus::Success && wc.byte_len as usize == GRH + burst.bytes;
        let stamp = Stamp::read(&start).filter(|stamp| is_whole && stamp.burst == burst.number);
        let Some(stamp) = stamp else { return Ok(()) };
        let Some(arrived) = progress.arrived.get_mut(stamp.probe as usize) else { return Ok(()) };
        if std::mem::replace(arrived, true) {
            progress.observation.duplicates += 1;
            return Ok(());
        }
        progress.observation.intact += 1;
        if progress.highest.is_some_and(|highest| stamp.probe < highest) {
            progress.observation.late += 1;
        }
        progress.highest = progress.highest.max(Some(stamp.probe));
        Ok(())
    }

    /// Adds the information from counters and headers, all taken at one moment.
    fn conclude(&self, burst: &Burst, progress: Progress, before: &Snapshot) -> Observation {
        let Progress { arrived, mut observation, .. } = progress;
        let since = Snapshot::of(&self.context).since(before);
        let mut damaged_arrivals = 0;
        for (name, value) in since.iter() {
            match name {
                // Damage may also affect fields that are parsed before the ICRC is checked.
                "rx_icrc_encapsulated"
                | "drop_short"
                | "drop_bad_length"
                | "drop_bad_version"
                | "drop_unknown_opcode"
                | "drop_malformed" => damaged_arrivals += value,
                "frame_rx_wrong_vlan" => observation.wrong_vlan += value,
                _ if name.ends_with("_rx_overflow") => observation.overflow += value,
                _ => {}
            }
        }
        let mut seen = arrived;
        let (mut arrivals, mut damaged_probes) = (0, 0);
        let log = self.log.take();
        let mistakes = icrc::cause(&log.icrcs);
        observation.mistakes = mistakes.iter().map(|mistake| mistake.name().to_owned()).collect();
        for (stamp, path) in log.probes {
            let known = seen.get_mut(stamp.probe as usize).filter(|_| stamp.burst == burst.number);
            let Some(known) = known else { continue };
            arrivals += 1;
            damaged_probes += u64::from(!std::mem::replace(known, true));
            let (sent, seen) = (burst.class_of(stamp.probe), path.traffic_class);
            let known = observation.classes.iter_mut().find(|(a, b, _)| (*a, *b) == (sent, seen));
            match known {
                Some((_, _, count)) => *count += 1,
                None => observation.classes.push((sent, seen, 1)),
            }
            let source = (path.source, path.source_port);
            if !observation.sources.contains(&source) && observation.sources.len() < 8 {
                observation.sources.push(source);
            }
            let lowest = observation.hop_limit.map_or(path.hop_limit, |lowest| lowest.min(path.hop_limit));
            observation.hop_limit = Some(lowest);
            if !observation.flow_labels.contains(&path.flow_label) && observation.flow_labels.len() < 8 {
                observation.flow_labels.push(path.flow_label);
            }
        }
        // A probe that arrives twice, each time damaged, is one damaged probe. If damage hides the number of
        // the probe, each arrival counts.
        let intact = u64::from(observation.intact);
        let legible = u64::saturating_sub(arrivals, intact + u64::from(observation.duplicates));
        let illegible = damaged_arrivals.saturating_sub(legible);
        let most = u64::from(burst.count).saturating_sub(intact);
        observation.damaged = (damaged_probes + illegible).min(damaged_arrivals).min(most);
        observation
    }
}
