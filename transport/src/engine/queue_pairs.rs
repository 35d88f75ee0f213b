//! The verbs that create, modify and destroy queue pairs.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::net::IpAddr;

use rand_core::Rng;
use roce_packet::{Ecn, Path, PathMtu, Qpn};

use super::qp::{Halves, Qp};
use super::{DestroyError, Engine, numbers_of};
use crate::Instant;
use crate::congestion::{CnpPace, Congestion, Paths, Policy};
use crate::counters::QpCounters;
use crate::qp::{
    AttrMask, CreateQpError, MAX_RD_ATOMIC, ModifyQpError, PeerIdentification, QpAttr, QpAttributes, QpCore,
    QpInit, QpOptions, QpState, QpType, transition,
};
use crate::rc::{RcRequester, RcResponder};
use crate::reason::Rule;
use crate::recovery::Recovery;
use crate::rq::{Landing, ReceiveQueue};
use crate::segment::KnownPath;
use crate::timer::Deadlines;
use crate::uc::{UcRequester, UcResponder};
use crate::ud::{UdRequester, UdResponder};
use crate::wr::MAX_SGE;

/// Number of recently destroyed queue pairs whose numbers are not reused.
const RETIRED: usize = 2_048;

/// Queue pairs.
impl Engine {
    /// Creates a queue pair in state RESET and returns its number.
    ///
    /// # Errors
    ///
    /// Returns an error if a referenced object does not exist, a size is out of range, or no number is free.
    pub fn create_qp(&mut self, init: &QpInit) -> Result<Qpn, CreateQpError> {
        self.create_qp_with(init, &QpOptions::default())
    }

    /// Creates a queue pair like [`Self::create_qp`], with options that override those of the engine.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Self::create_qp`].
    pub fn create_qp_with(&mut self, init: &QpInit, options: &QpOptions) -> Result<Qpn, CreateQpError> {
        self.check_init(init)?;
        self.add_qp(init, options)
    }

    /// Creates a queue pair from checked arguments.
    pub(super) fn add_qp(&mut self, init: &QpInit, options: &QpOptions) -> Result<Qpn, CreateQpError> {
        let position = self.qps.vacant_key();
        let number = self.draw_number(position)?;
        self.insert_qp(init, options, position, number);
        Ok(number)
    }

    /// Creates the UD queue pair 1, which receives connection management datagrams (IBTA 10.2.5). No other
    /// queue pair can have that number.
    ///
    /// # Errors
    ///
    /// Returns an error if queue pair 1 exists or `init` is not for UD. Also returns an error if an object
    /// that it refers to does not exist, or a size is out of range.
    pub fn create_gsi_qp(&mut self, init: &QpInit) -> Result<Qpn, CreateQpError> {
        self.check_init(init)?;
        let position = self.qps.vacant_key();
        if init.qp_type != QpType::Ud || !self.numbers.insert(Qpn::GSI.get(), position) {
            return Err(CreateQpError::Gsi);
        }
        self.insert_qp(init, &QpOptions::default(), position, Qpn::GSI);
        Ok(Qpn::GSI)
    }

    fn insert_qp(&mut self, init: &QpInit, options: &QpOptions, position: usize, number: Qpn) {
        let capabilities = &init.capabilities;
        let recovery = self.recovery_of(init, options);
        let halves = match init.qp_type {
            QpType::Rc | QpType::XrcSend | QpType::XrcRecv => {
                Halves::Rc(RcRequester::new(capabilities, &recovery), RcResponder::new())
            }
            QpType::Uc => Halves::Uc(UcRequester::new(capabilities), UcResponder::new()),
            QpType::Ud => Halves::Ud(UdRequester::new(capabilities), UdResponder),
        };
        let depth = if init.srq.is_some() { 0 } else { capabilities.max_recv_wr };
        let path_mtu = match init.qp_type {
            QpType::Ud => self.shared.config.port_mtu,
            _ => PathMtu::Mtu1024,
        };
        let congestion = match init.qp_type {
            // A UD queue pair sends to many peers, so a single rate does not apply.
            QpType::Ud => Congestion::none(),
            _ => options.congestion.as_ref().unwrap_or(&self.shared.config.congestion).clone(),
        };
        let srq_pd = init.srq.and_then(|srq| self.shared.srqs.get(srq.index())).map(|srq| srq.pd);
        let mut core = QpCore {
            number,
            qp_type: init.qp_type,
            pd: init.pd,
            receive_pd: srq_pd.unwrap_or(init.pd),
            send_cq: init.send_cq,
            recv_cq: init.recv_cq,
            srq: init.srq,
            xrcd: None,
            rq: ReceiveQueue::new(depth, capabilities.max_recv_sge),
            landing: Landing::new(if init.srq.is_some() || init.qp_type == QpType::XrcRecv {
                MAX_SGE
            } else {
                capabilities.max_recv_sge
            }),
            signal_all: init.signal_all,
            capabilities: *capabilities,
            attr: QpAttributes::new(path_mtu),
            outgoing: None,
            counters: QpCounters::default(),
            deadlines: Deadlines::default(),
            failure: None,
            reason: None,
            drain_pending: false,
            peer_identification: PeerIdentification::default(),
            has_heard_peer: false,
            heard: Instant::ZERO,
            congestion,
            control: None,
            recovery,
            paths: self.several_paths(init, options),
            cnp_pace: CnpPace::default(),
            echo_owed: false,
            telemetry: None,
            telemetry_owed: false,
            established: false,
        };
        core.start_control(&self.shared);
        let qp = Qp { core, halves, requester_turn: true, passed: 0, scheduled: false };
        self.qps.insert(Box::new(qp));
        // A queue pair is in the ready queue at most once, so this capacity is always sufficient.
        self.ready.reserve(self.qps.len().saturating_sub(self.ready.len()));
        self.timers.reserve(position + 1);
        self.count_users(init, 1);
        self.join_pd(init.pd);
    }

    /// Returns the loss recovery of a new queue pair.
    fn recovery_of(&self, init: &QpInit, options: &QpOptions) -> Recovery {
        match init.qp_type {
            // The reorder buffer does not keep the shared receive queue number of a request.
            QpType::XrcSend | QpType::XrcRecv => Recovery::GoBackN,
            _ => options.recovery.unwrap_or(self.shared.config.recovery),
        }
    }

    /// Returns the paths of a new queue pair, if there are several.
    fn several_paths(&self, init: &QpInit, options: &QpOptions) -> Option<Box<Paths>> {
        let paths = options.paths.as_ref().unwrap_or(&self.shared.config.paths);
        let has_several = init.qp_type == QpType::Rc && paths.policy != Policy::One;
        has_several.then(|| Box::new(paths.clone()))
    }

    fn check_init(&self, init: &QpInit) -> Result<(), CreateQpError> {
        if init.qp_type == QpType::XrcRecv {
            return Err(CreateQpError::XrcTarget);
        }
        if !self.pds.contains(init.pd) {
            return Err(CreateQpError::UnknownProtectionDomain);
        }
        let cqs = &self.shared.cqs;
        if !cqs.contains(init.send_cq.index()) || !cqs.contains(init.recv_cq.index()) {
            return Err(CreateQpError::UnknownCq);
        }
        // The SRQ may belong to another protection domain: receives then use the memory of that domain.
        if init.srq.is_some_and(|srq| !self.shared.srqs.contains(srq.index())) {
            return Err(CreateQpError::UnknownSrq);
        }
        init.capabilities.check()
    }

    /// Draws an unpredictable number: the process slot, then random bits (0 and 1 are reserved).
    fn draw_number(&mut self, position: usize) -> Result<Qpn, CreateQpError> {
        let limit = self.shared.config.max_qp;
        if self.qps.len() >= limit {
            return Err(CreateQpError::TooManyQps { limit });
        }
        let slot = self.shared.config.process_slot;
        let (first, random_bits) = (slot.first_qpn(), (1 << slot.bits_below()) - 1);
        // A peer may keep a number in time-wait, so recent numbers are avoided unless most are in use.
        let avoid_retired = self.qps.len() < numbers_of(slot) / 2;
        // The limits keep some numbers free, so the loop ends.
        loop {
            let number = first | self.rng.next_u32() & random_bits;
            let reserved = number < 2 || number == Qpn::MULTICAST.get();
            let retired = avoid_retired && self.retired.contains(&number);
            if !reserved && !retired && self.numbers.insert(number, position) {
                return Ok(Qpn::new(number));
            }
        }
    }

    fn count_users(&mut self, init: &QpInit, change: isize) {
        for cq in [init.send_cq, init.recv_cq] {
            if let Some(queue) = self.shared.cqs.get_mut(cq.index()) {
                queue.users = queue.users.saturating_add_signed(change);
            }
        }
        if let Some(srq) = init.srq.and_then(|srq| self.shared.srqs.get_mut(srq.index())) {
            srq.users = srq.users.saturating_add_signed(change);
        }
    }

    /// Destroys a queue pair in any state. Its completions stay in their queues.
    ///
    /// # Errors
    ///
    /// Returns an error if the queue pair does not exist.
    pub fn destroy_qp(&mut self, qpn: Qpn) -> Result<(), DestroyError> {
        let index = self.numbers.remove(qpn.get()).ok_or(DestroyError::UnknownQp)?;
        let qp = self.qps.remove(index);
        if self.retired.len() == RETIRED {
            self.retired.pop_front();
        }
        self.retired.push_back(qpn.get());
        self.ready.retain(|waiting| *waiting != index);
        self.groups.retain(|(_, member)| *member != qpn);
        self.shared.keys.release_owner(qpn);
        let mut core = qp.core;
        self.leave_xrcd(&mut core);
        let init = QpInit {
            qp_type: core.qp_type,
            pd: core.pd,
            send_cq: core.send_cq,
            recv_cq: core.recv_cq,
            srq: core.srq,
            capabilities: core.capabilities,
            signal_all: core.signal_all,
        };
        self.count_users(&init, -1);
        self.leave_pd(core.pd);
        Ok(())
    }

    /// Changes attributes and state. A call that fails changes nothing.
    ///
    /// # Errors
    ///
    /// Returns an error if the transition does not exist, attributes are missing or not allowed, or a value
    /// is out of range.
    pub fn modify_qp(&mut self, now: Instant, qpn: Qpn, attr: &QpAttr) -> Result<(), ModifyQpError> {
        self.set_now(now);
        let index = self.numbers.get(qpn.get()).ok_or(ModifyQpError::UnknownQp)?;
        let qp = self.qps.get_mut(index).ok_or(ModifyQpError::UnknownQp)?;
        let from = qp.core.attr.state;
        let to = attr.state.unwrap_or(from);
        check_modify(qp.core.qp_type, from, to, attr)?;
        qp.apply(attr);
        match to {
            QpState::Reset => {
                qp.reset();
                let (send_cq, recv_cq) = (qp.core.send_cq, qp.core.recv_cq);
                self.shared.discard_completions(send_cq, qpn);
                self.shared.discard_completions(recv_cq, qpn);
                self.shared.keys.release_owner(qpn);
            }
            QpState::Err => {
                qp.halves.abandon_answers();
                qp.core.record(&self.shared, None, Rule::Moved);
                qp.enter_error(&mut self.shared);
            }
            QpState::Rtr if from == QpState::Init => qp.start_receiving(&self.shared),
            QpState::Rts if from == QpState::Rtr => qp.start_sending(),
            QpState::Sqd if from == QpState::Rts => qp.start_draining(&mut self.shared),
            // A restarted queue is no longer draining.
            QpState::Rts => {
                qp.core.drain_pending = false;
                if from == QpState::Sqe {
                    qp.core.reason = None;
                }
            }
            _ => {}
        }
        qp.core.attr.state = to;
        tracing::debug!(qpn = qpn.get(), from = from.name(), to = to.name(), "state");
        self.settle(index);
        Ok(())
    }

    /// Checks whether [`modify_qp`](Self::modify_qp) would accept these changes in sequence. Changes nothing.
    ///
    /// # Errors
    ///
    /// Returns the error of the first change that would be refused.
    pub fn check_modify_qp(&self, qpn: Qpn, steps: &[QpAttr]) -> Result<(), ModifyQpError> {
        let core = &self.qp(qpn).ok_or(ModifyQpError::UnknownQp)?.core;
        let mut from = core.attr.state;
        for attr in steps {
            let to = attr.state.unwrap_or(from);
            check_modify(core.qp_type, from, to, attr)?;
            from = to;
        }
        Ok(())
    }

    /// Returns the paths of a queue pair besides that of its attributes: other UDP source ports, if it has
    /// several ([`EngineConfig::paths`](crate::EngineConfig::paths)). A device that needs a socket for each
    /// port binds them.
    #[must_use]
    pub fn other_paths(&self, qpn: Qpn) -> Vec<Path> {
        let index = self.numbers.get(qpn.get());
        index.and_then(|index| self.qps.get(index)).map_or(Vec::new(), |qp| qp.core.other_paths().collect())
    }

    /// Lets a UD queue pair receive datagrams for a multicast group. Joining twice makes one membership.
    ///
    /// # Errors
    ///
    /// Returns an error if the queue pair does not exist or is not UD.
    pub fn attach_multicast(&mut self, qpn: Qpn, group: IpAddr) -> Result<(), DestroyError> {
        if self.qp(qpn).ok_or(DestroyError::UnknownQp)?.core.qp_type != QpType::Ud {
            return Err(DestroyError::NotDatagram);
        }
        if !self.groups.contains(&(group, qpn)) {
            self.groups.push((group, qpn));
        }
        Ok(())
    }

    /// Ends the membership of a UD queue pair in a multicast group.
    ///
    /// # Errors
    ///
    /// Returns an error if the queue pair does not exist.
    pub fn detach_multicast(&mut self, qpn: Qpn, group: IpAddr) -> Result<(), DestroyError> {
        self.qp(qpn).ok_or(DestroyError::UnknownQp)?;
        self.groups.retain(|member| *member != (group, qpn));
        Ok(())
    }
}

fn check_modify(qp_type: QpType, from: QpState, to: QpState, attr: &QpAttr) -> Result<(), ModifyQpError> {
    if let Some(believed) = attr.cur_state.filter(|believed| *believed != from) {
        return Err(ModifyQpError::CurrentState { actual: from, believed });
    }
    let rule = transition(qp_type, from, to).ok_or(ModifyQpError::Transition { qp_type, from, to })?;
    let given = attr.mask();
    let missing = rule.required - given;
    if !missing.is_empty() {
        return Err(ModifyQpError::Missing { from, to, missing });
    }
    let extra = given - rule.required - rule.optional - AttrMask::CUR_STATE;
    if !extra.is_empty() {
        return Err(ModifyQpError::NotAllowed { from, to, extra });
    }
    if attr.port == Some(0) {
        return Err(ModifyQpError::OutOfRange { name: "port", have: 0, limit: 1 });
    }
    let limits = [
        ("pkey_index", attr.pkey_index.map(u32::from), 0),
        ("port", attr.port.map(u32::from), 1),
        ("timeout", attr.timeout.map(u32::from), 31),
        ("retry_cnt", attr.retry_cnt.map(u32::from), 7),
        ("rnr_retry", attr.rnr_retry.map(u32::from), 7),
        ("max_rd_atomic", attr.max_rd_atomic.map(u32::from), u32::from(MAX_RD_ATOMIC)),
        ("max_dest_rd_atomic", attr.max_dest_rd_atomic.map(u32::from), u32::from(MAX_RD_ATOMIC)),
    ];
    for (name, value, limit) in limits {
        if let Some(have) = value.filter(|have| *have > limit) {
            return Err(ModifyQpError::OutOfRange { name, have, limit });
        }
    }
    Ok(())
}

impl Qp {
    fn apply(&mut self, attr: &QpAttr) {
        fn set<T: Copy>(target: &mut T, value: Option<T>) {
            if let Some(value) = value {
                *target = value;
            }
        }
        let own = &mut self.core.attr;
        set(&mut own.en_sqd_async_notify, attr.en_sqd_async_notify);
        set(&mut own.access, attr.access);
        set(&mut own.qkey, attr.qkey);
        set(&mut own.path_mtu, attr.path_mtu);
        set(&mut own.timeout, attr.timeout);
        set(&mut own.retry_cnt, attr.retry_cnt);
        set(&mut own.rnr_retry, attr.rnr_retry);
        set(&mut own.rq_psn, attr.rq_psn);
        set(&mut own.sq_psn, attr.sq_psn);
        set(&mut own.max_rd_atomic, attr.max_rd_atomic);
        set(&mut own.max_dest_rd_atomic, attr.max_dest_rd_atomic);
        set(&mut own.min_rnr_timer, attr.min_rnr_timer);
        set(&mut own.dest_qpn, attr.dest_qpn);
        if let Some(path) = attr.path {
            // Switches mark only packets that are ECN-capable.
            let controlled = self.core.control.as_ref().is_some_and(|control| control.is_chosen());
            let path = if controlled { path.with_ecn(Ecn::Capable0) } else { path };
            own.path = Some(path);
            // The new path may lead to another interface of the peer, or to another host.
            self.core.peer_identification = PeerIdentification::default();
            self.core.outgoing = Some(KnownPath::new(path));
            if let Halves::Rc(requester, responder) = &mut self.halves {
                requester.spread(&self.core);
                responder.spread(&self.core);
            }
        }
        if let Halves::Rc(_, responder) = &mut self.halves
            && let Some(limit) = attr.max_dest_rd_atomic
        {
            responder.set_resources(limit);
        }
    }

    /// Discards all work requests without completions (IBTA 10.3.1).
    fn reset(&mut self) {
        match &mut self.halves {
            Halves::Rc(requester, responder) => {
                requester.reset();
                responder.reset();
            }
            Halves::Uc(requester, responder) => {
                requester.sq.clear();
                responder.start(roce_packet::Psn::new(0));
            }
            Halves::Ud(requester, _) => requester.sq.clear(),
        }
        let core = &mut self.core;
        core.rq.clear();
        core.deadlines.clear();
        core.failure = None;
        core.reason = None;
        core.drain_pending = false;
        core.established = false;
        core.peer_identification = PeerIdentification::default();
        core.has_heard_peer = false;
        core.cnp_pace = CnpPace::default();
        let path_mtu = core.attr.path_mtu;
        core.attr = QpAttributes::new(path_mtu);
        core.outgoing = None;
    }

    fn start_receiving(&mut self, shared: &crate::shared::Shared) {
        self.core.start_control(shared);
        self.core.established = false;
        let psn = self.core.attr.rq_psn;
        match &mut self.halves {
            Halves::Rc(_, responder) => responder.start(psn, &self.core.recovery, self.core.mtu()),
            Halves::Uc(_, responder) => responder.start(psn),
            Halves::Ud(..) => {}
        }
    }

    fn start_sending(&mut self) {
        let psn = self.core.attr.sq_psn;
        match &mut self.halves {
            Halves::Rc(requester, _) => {
                requester.start(psn);
                requester.reload_retries(&self.core);
            }
            Halves::Uc(requester, _) => requester.start(psn),
            Halves::Ud(requester, _) => requester.start(psn),
        }
    }

    /// Enters SQD: started requests finish, and then an event reports this if it is enabled.
    fn start_draining(&mut self, shared: &mut crate::shared::Shared) {
        self.core.drain_pending = true;
        if self.halves.sq().is_drained() {
            self.core.drained(shared);
        }
    }
}
