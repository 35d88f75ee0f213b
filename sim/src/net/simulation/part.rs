//! A part of the network: its nodes with all their events, and the flows whose requests they post.
//!
//! Parts interact through frames and transfers of the scale-up network, which take at least the
//! [`lookahead`](super::Simulation) from one part to another, and between two windows, when
//! [`Simulation`](super::Simulation) owns all parts. Each event in a window concerns one node, so it does
//! not depend on the other nodes of the part.

use std::sync::Arc;

use crate::net::dependencies::{News, Open};
use crate::net::event::Event;
use crate::net::flow::{Flow, FlowState, Refusal};
use crate::net::host::Host;
use crate::net::journal::{self, Journal};
use crate::net::place::Place;
use crate::net::port::Owner;
use crate::net::switch::Switch;
use crate::net::time::Time;
use crate::net::trace::Tag;
use crate::net::world::{Mail, World};

/// The size of all ports in bytes from which more data is prefetched. Smaller networks mostly fit into the
/// cache.
const LARGE: usize = 1 << 20;

/// A part of the network.
pub(super) struct Part {
    pub(super) world: World,
    pub(super) hosts: Vec<Host>,
    pub(super) switches: Vec<Switch>,
    /// Flows whose requests a host of this part posts.
    pub(super) flows: Vec<Flow>,
    /// The location of each flow of the network.
    pub(super) places: Arc<Vec<Place>>,
    /// Flows that have begun and have not been processed yet.
    pub(super) begun: Vec<u32>,
    /// Flows that have ended and have not been processed yet.
    pub(super) ended: Vec<u32>,
    /// Flows that have not ended.
    pub(super) unfinished: usize,
    /// Tasks without a flow that have not ended, and transfers of the scale-up network that have not arrived.
    pub(super) computations_left: usize,
    /// What hosts have noticed about messages of a program: see
    /// [`Simulation::run_to_news`](super::Simulation).
    pub(super) news: Vec<News>,
    /// The end of the last flow or task.
    pub(super) end: Time,
    /// Frames from other parts that have not been queued yet.
    pub(super) incoming: Vec<Vec<Mail>>,
    /// The time of the next event, or of the first arrival of an outgoing frame, or [`Time::NEVER`].
    pub(super) next: Time,
    /// Trace events of the windows, if trace events are kept.
    pub(super) journal: Journal,
}

impl Part {
    /// Handles all events up to and including a time, or until there are news.
    pub(super) fn run(&mut self, last: Time) {
        for mails in &mut self.incoming {
            for mail in mails.drain(..) {
                self.world.take_in(&mail);
            }
        }
        let traced = self.world.traced;
        if traced {
            std::mem::take(&mut self.journal).enter();
        }
        'events: loop {
            while let Some((time, event)) = self.world.events.pop_current(last) {
                self.world.now = self.world.now.max(time);
                self.world.handled += 1;
                self.handle(event);
                if !self.news.is_empty() {
                    break 'events;
                }
            }
            if !self.world.events.advance(last) {
                break;
            }
            self.fetch_bucket();
        }
        if traced {
            self.journal = journal::leave();
        }
        self.find_next();
    }

    /// Prefetches the data that the events of the next bucket need first. Independent loads wait for memory
    /// at the same time. When the events are handled in sequence, most of the data is in the cache.
    #[inline(never)]
    fn fetch_bucket(&self) {
        let world = &self.world;
        let mut read = 0;
        // No branch depends on the event or the loaded data, because a misprediction would serialise the
        // loads.
        for event in world.events.current() {
            read ^= world.fetch_port(event.place()) ^ world.frames.fetch(event.frame());
        }
        std::hint::black_box(read);
        if size_of_val(&world.ports[..]) < LARGE {
            return;
        }
        for event in world.events.current() {
            let Event::Arrive { port, frame } = *event else { continue };
            let frame = world.frames.get(frame);
            read ^= match world.ports[port as usize].owner {
                Owner::Switch(switch) => self.switches[switch as usize].fetch_receive(world, frame),
                Owner::Host(host) => self.hosts[host as usize].nic.fetch_receive(frame),
            };
        }
        std::hint::black_box(read);
    }

    /// Updates [`Self::next`].
    pub(super) fn find_next(&mut self) {
        let mails = self.world.outgoing.iter().chain(&self.incoming).flatten();
        let next = mails.map(|mail| mail.arrival).chain(self.world.events.next_time()).min();
        self.next = next.unwrap_or(Time::NEVER);
    }

    #[inline]
    fn handle(&mut self, event: Event) {
        let world = &mut self.world;
        match event {
            Event::Arrive { port, frame } => {
                world.note_arrival(port, frame);
                match world.ports[port as usize].owner {
                    Owner::Switch(switch) => self.switches[switch as usize].receive(world, port, frame),
                    Owner::Host(host) => {
                        self.hosts[host as usize].receive(world, frame);
                        self.look_at(host);
                    }
                }
            }
            Event::Free { port, .. } => {
                world.trace(port, Tag::Free, 0);
                world.ports[port as usize].wakes = false;
                match world.ports[port as usize].owner {
                    Owner::Switch(switch) => self.switches[switch as usize].send(world, port),
                    Owner::Host(host) => self.hosts[host as usize].send(world),
                }
            }
            Event::Taken { host, frame } => {
                let one = &mut self.hosts[host as usize];
                world.trace(one.nic.port, Tag::Taken, 0);
                one.take(world, frame);
                self.look_at(host);
            }
            Event::Timer { host } => {
                let one = &mut self.hosts[host as usize];
                world.trace(one.nic.port, Tag::Timer, 0);
                one.look_at_clock(world);
                self.look_at(host);
            }
            Event::Thread { host, thread } => {
                let one = &mut self.hosts[host as usize];
                if one.step(world, thread) {
                    world.trace(one.nic.port, Tag::Thread, thread);
                    self.look_at(host);
                }
            }
            Event::ScaledUp { host, task } => {
                world.trace(self.hosts[host as usize].nic.port, Tag::ScaleUp, task);
                self.end_tasks(host, |one, world| one.agenda.left(world.now, task));
                self.proceed(host, None);
            }
            Event::ScaleUpBegins { host, task } => self.hosts[host as usize].begin_scale_up(world, task),
            Event::ScaleUpEnds { host, task } => {
                world.trace(self.hosts[host as usize].nic.port, Tag::ScaleUp, task);
                self.end_tasks(host, |one, _| one.agenda.scaled_up(task));
                self.proceed(host, None);
            }
            Event::Task { host, task } => {
                world.trace(self.hosts[host as usize].nic.port, Tag::Task, task);
                let open = self.end_tasks(host, |one, world| one.computed(world, task));
                self.proceed(host, open);
            }
            other => self.handle_rare(other),
        }
    }

    fn handle_rare(&mut self, event: Event) {
        let world = &mut self.world;
        match event {
            Event::PauseEnds { port, priority } => world.check_pause(port, priority),
            Event::PauseRefresh { port, priority } => match world.ports[port as usize].owner {
                Owner::Switch(switch) => self.switches[switch as usize].refresh_pause(world, port, priority),
                Owner::Host(host) => self.hosts[host as usize].nic.refresh_pause(world, priority),
            },
            Event::Watchdog { port, priority } => {
                if let Owner::Switch(switch) = world.ports[port as usize].owner {
                    self.switches[switch as usize].watch(world, port, priority);
                }
            }
            Event::Restore { port, priority } => {
                if let Owner::Switch(switch) = world.ports[port as usize].owner {
                    self.switches[switch as usize].restore(world, port, priority);
                }
            }
            Event::Release { port, frame } => world.release(port, frame),
            _ => {}
        }
    }

    /// Returns a flow of this part by its number in the network.
    pub(super) fn flow(&mut self, number: u32) -> Option<&mut Flow> {
        let place = self.places.get(number as usize).filter(|place| place.part == self.world.part)?;
        self.flows.get_mut(place.index as usize)
    }

    /// Handles the new completions of a host.
    #[inline]
    pub(super) fn look_at(&mut self, host: u32) {
        while let Some(wc) = self.hosts[host as usize].completions.pop() {
            if self.hosts[host as usize].take_arrival(&self.world.settings, &wc) {
                self.proceed(host, None);
                continue;
            }
            let number = wc.wr_id as u32;
            let Some(flow) = self.flow(number) else { continue };
            if flow.state != FlowState::Running {
                continue;
            }
            if wc.status != roce_transport::WcStatus::Success {
                self.finish(number, FlowState::Failed(wc.status));
                continue;
            }
            flow.completed += u64::from(wc.byte_len);
            flow.outstanding -= 1;
            let (completed, scheduled) = (flow.completed, flow.scheduled);
            if completed >= flow.spec.bytes {
                self.finish(number, FlowState::Complete);
            } else {
                self.post(number);
                self.hosts[host as usize].settle(&mut self.world);
            }
            if scheduled {
                let now = self.world.now;
                self.hosts[host as usize].agenda.acknowledged(now, number, completed);
                self.proceed(host, None);
            }
        }
    }

    /// Ends a flow of this part. The queue pairs are processed between two windows.
    pub(super) fn finish(&mut self, number: u32, state: FlowState) {
        let now = self.world.now;
        let Some(flow) = self.flow(number) else { return };
        (flow.state, flow.end, flow.connected) = (state, now, false);
        let requester = flow.requester;
        self.unfinished -= 1;
        self.end = self.end.max(now);
        self.ended.push(number);
        let port = self.hosts[requester as usize].nic.port;
        self.world.trace(port, Tag::FlowEnd, number);
    }

    /// Ends computations or transfers of a host now, and counts those that are left.
    fn end_tasks<R>(&mut self, host: u32, change: impl FnOnce(&mut Host, &mut World) -> R) -> R {
        self.end = self.end.max(self.world.now);
        self.counted(host, change)
    }

    /// Changes the tasks of a host, and counts the computations and transfers that are left.
    fn counted<R>(&mut self, host: u32, change: impl FnOnce(&mut Host, &mut World) -> R) -> R {
        let one = &mut self.hosts[host as usize];
        let before = one.agenda.computations_left();
        let result = change(one, &mut self.world);
        self.computations_left -= before - one.agenda.computations_left();
        result
    }

    /// Starts the tasks of a host that can start, and posts all possible requests, including those of the
    /// flow `open`.
    pub(super) fn proceed(&mut self, host: u32, open: Option<u32>) {
        self.hosts[host as usize].agenda.move_news(&mut self.news);
        let mut flows = self.counted(host, Host::begin_tasks);
        flows.extend(open);
        for flow in &flows {
            self.post(*flow);
        }
        if !flows.is_empty() {
            self.hosts[host as usize].settle(&mut self.world);
        }
    }

    /// Posts requests of a flow of this part, up to the limit of outstanding requests, while bytes without
    /// open dependencies are left.
    pub(super) fn post(&mut self, number: u32) {
        let Some(place) = self.places.get(number as usize) else { return };
        let Some(flow) = self.flows.get_mut(place.index as usize) else { return };
        let settings = self.world.settings.of_flow(number).0;
        let host = &mut self.hosts[flow.requester as usize];
        while flow.connected && flow.outstanding < settings.depth {
            // Flows of tasks are not READs, so the requester is the source.
            let open = if flow.scheduled {
                host.agenda.open(number, flow.posted)
            } else {
                Some(Open { left: flow.spec.bytes - flow.posted, signal: None }).filter(|open| open.left > 0)
            };
            let Some(open) = open else { return };
            let len = open.left.min(settings.message_bytes);
            let signal = open.signal.filter(|_| len == open.left);
            if flow.state == FlowState::Waiting {
                flow.state = FlowState::Running;
                flow.spec.start = self.world.now;
                self.begun.push(number);
            }
            let [(_, own), _] = flow.ends(settings.operation);
            let range = (flow.posted, len as u32);
            if !host.post(&self.world, (own, number), settings.operation, flow.rkey, range, signal) {
                return self.finish(number, FlowState::Refused(Refusal::NotPosted));
            }
            flow.posted += len;
            flow.outstanding += 1;
        }
    }
}
