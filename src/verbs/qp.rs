//! Queue pairs: the handle, and the verbs on identifiers.

use std::net::IpAddr;
use std::sync::Arc;

use roce_packet::{Path, Psn, Qpn};
use roce_transport::congestion::Observation;
use roce_transport::{
    Access, Counters, DestroyError, Payload, PostError, ProcessSlot, QpAttr, QpAttributes, QpInit, QpOptions,
    QpState, QpType, RecvWr, SendWr,
};

use super::pd::check_elements;
use super::qp_options::rnr_timer;
use super::{
    CompletionQueue, ConnectOptions, Endpoint, PathOptions, ProtectionDomain, QueuePairOptions, Raw,
    SharedReceiveQueue, VerbsError,
};
use crate::driver::PortHolder;
use crate::runtime::{Runtime, State};

/// A queue pair. Dropping the last handle destroys it in any state.
///
/// ```
/// # use roce::verbs::{example::ends, *};
/// # let (near, far) = ends()?;
/// // Received, written and read in the memory of the other side.
/// let target = far.pd.allocate(4096, Access::LOCAL_WRITE | Access::REMOTE)?;
/// let local = near.pd.allocate(4096, Access::LOCAL_WRITE)?;
/// let (remote_addr, rkey) = (target.addr(), target.rkey());
/// local.write(0, b"hello")?;
/// near.qp.post_send_list(&[
///     SendWr::new(1, SendOp::Write { remote_addr, rkey }, &[local.element(0..5)]),
///     SendWr::new(2, SendOp::Read { remote_addr, rkey }, &[local.element(100..105)]),
/// ])?;
/// let mut done = [Wc::default()];
/// for wr_id in 1..=2 {
///     near.cq.wait(&mut done, None)?;
///     assert_eq!(done[0].result()?.wr_id, wr_id);
/// }
/// let mut text = [0; 5];
/// local.read(100, &mut text)?;
/// assert_eq!(&text, b"hello");
///
/// // The states, one by one, for what `connect` does not offer.
/// assert_eq!(near.qp.query().map(|attributes| attributes.state), Some(QpState::Rts));
/// near.qp.modify(&QpAttr::to_state(QpState::Err))?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct QueuePair(Arc<QpInner>);

#[derive(Debug)]
struct QpInner {
    pd: ProtectionDomain,
    number: Qpn,
    qp_type: QpType,
    psn: Psn,
    /// Spans the lifetime of the queue pair.
    span: tracing::Span,
    // Held because the engine completes into these queues.
    _send_cq: CompletionQueue,
    _recv_cq: CompletionQueue,
    _srq: Option<SharedReceiveQueue>,
}

impl Drop for QpInner {
    fn drop(&mut self) {
        let _destroy = tracing::debug_span!(parent: &self.span, "destroy").entered();
        let destroyed = self.pd.context().raw().destroy_qp(self.number);
        debug_assert!(destroyed.is_ok(), "only its last handle destroys it: {destroyed:?}");
    }
}

impl ProtectionDomain {
    /// Creates a queue pair in state RESET, in the engine of its queues.
    ///
    /// # Errors
    ///
    /// Fails if a size is out of range, or a queue belongs to another context or engine.
    pub fn create_qp(&self, options: &QueuePairOptions<'_>) -> Result<QueuePair, VerbsError> {
        QueuePair::new(self, options)
    }
}

impl QueuePair {
    fn new(pd: &ProtectionDomain, options: &QueuePairOptions<'_>) -> Result<Self, VerbsError> {
        let context = pd.context();
        if !context.is_same(options.send_cq.context()) || !context.is_same(options.recv_cq.context()) {
            return Err(VerbsError::OtherContext("the completion queue"));
        }
        if options.srq.is_some_and(|srq| !context.is_same(srq.pd().context())) {
            return Err(VerbsError::OtherContext("the shared receive queue"));
        }
        let init = QpInit {
            qp_type: options.qp_type,
            pd: pd.id(),
            send_cq: options.send_cq.id(),
            recv_cq: options.recv_cq.id(),
            srq: options.srq.map(SharedReceiveQueue::id),
            capabilities: options.capabilities,
            signal_all: options.signal_all,
        };
        let own = QpOptions {
            congestion: options.congestion.clone(),
            recovery: options.recovery,
            paths: options.paths.clone(),
        };
        let span =
            tracing::debug_span!("queue_pair", qpn = tracing::field::Empty, transport = ?options.qp_type);
        let number = span.in_scope(|| context.raw().create_qp(&init, &own))?;
        span.record("qpn", number.get());
        Ok(Self(Arc::new(QpInner {
            pd: pd.clone(),
            number,
            qp_type: options.qp_type,
            psn: pd.context().random_psn(),
            span,
            _send_cq: options.send_cq.clone(),
            _recv_cq: options.recv_cq.clone(),
            _srq: options.srq.cloned(),
        })))
    }

    /// Returns the current state of its congestion control; `None` if it has no congestion control.
    #[must_use]
    pub fn congestion(&self) -> Option<Observation> {
        let nic = &self.runtime().lock().nic;
        nic.engine.congestion(nic.now(), self.0.number)
    }

    /// Explains its failure, or its state if it has not failed; see [`Context::why`](super::Context::why).
    #[must_use]
    pub fn why(&self) -> Option<crate::observe::Explanation> {
        self.context().why(self.0.number)
    }

    pub(crate) fn context(&self) -> &super::Context {
        self.0.pd.context()
    }

    fn runtime(&self) -> &Runtime {
        self.0.pd.context().of_qp(self.0.number)
    }

    /// Returns the index of its engine, which is the engine of its completion queues.
    #[must_use]
    pub fn engine(&self) -> usize {
        self.context().index_of_qp(self.0.number)
    }

    fn raw(&self) -> Raw<'_> {
        self.0.pd.context().raw()
    }

    pub(crate) fn first_psn(&self) -> Psn {
        self.0.psn
    }

    pub(crate) fn qp_type(&self) -> QpType {
        self.0.qp_type
    }

    pub(crate) fn uses_srq(&self) -> bool {
        self.0._srq.is_some()
    }

    /// Returns the protection domain that it was created in.
    #[must_use]
    pub fn pd(&self) -> &ProtectionDomain {
        &self.0.pd
    }

    /// Returns its queue pair number.
    #[must_use]
    pub fn number(&self) -> Qpn {
        self.0.number
    }

    /// Returns the endpoint that the peer needs to connect to this queue pair.
    ///
    /// # Errors
    ///
    /// Fails if the device has no address.
    pub fn endpoint(&self) -> Result<Endpoint, VerbsError> {
        let address = self.0.pd.context().address().ok_or(VerbsError::NoAddress)?;
        Ok(Endpoint { address, qpn: self.0.number.get(), psn: self.0.psn.get() })
    }

    /// Changes attributes and state, or nothing at all. A change to RESET releases the source port.
    ///
    /// # Errors
    ///
    /// Fails if the transition does not exist, attributes are missing or not allowed, or the path MTU exceeds
    /// the link MTU.
    pub fn modify(&self, attr: &QpAttr) -> Result<(), VerbsError> {
        self.modify_in_steps(&mut self.runtime().lock(), std::slice::from_ref(attr))
    }

    /// Applies all steps, or none of them.
    fn modify_in_steps(&self, state: &mut State, steps: &[QpAttr]) -> Result<(), VerbsError> {
        let _queue_pair = self.0.span.enter();
        self.raw().modify_in_steps(state, self.0.number, steps)
    }

    /// Moves the queue pair from RESET to INIT, where it accepts receives. [`connect`](Self::connect),
    /// [`activate_datagram`](Self::activate_datagram) and connection management continue from INIT, so
    /// receives can be posted before the first message can arrive.
    ///
    /// ```
    /// # use roce::verbs::{example::ends, *};
    /// # let (near, _far) = ends()?;
    /// let (pd, cq) = (near.context.alloc_pd()?, near.context.create_cq(16, None)?);
    /// let qp = pd.create_qp(&QueuePairOptions::new(QpType::Rc, &cq))?;
    /// let buffer = pd.allocate(4096, Access::LOCAL_WRITE)?;
    /// qp.initialize()?;
    /// qp.post_recv(&RecvWr { wr_id: 7, elements: &[buffer.element(0..4096)] })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Fails if the queue pair is neither in RESET nor in INIT.
    pub fn initialize(&self) -> Result<(), VerbsError> {
        self.modify_in_steps(&mut self.runtime().lock(), &[self.to_init(Access::empty(), 0)])
    }

    /// Returns the step from RESET or INIT to INIT.
    fn to_init(&self, access: Access, qkey: u32) -> QpAttr {
        let datagram = self.0.qp_type == QpType::Ud;
        QpAttr {
            pkey_index: Some(0),
            port: Some(1),
            access: (!datagram).then_some(access),
            qkey: datagram.then_some(qkey),
            ..QpAttr::to_state(QpState::Init)
        }
    }

    /// Returns the current attributes; `None` if the queue pair does not exist.
    #[must_use]
    pub fn query(&self) -> Option<QpAttributes> {
        self.raw().query_qp(self.0.number)
    }

    /// Returns its counters; `None` if the queue pair does not exist.
    #[must_use]
    pub fn counters(&self) -> Option<Counters> {
        self.runtime().lock().nic.engine.qp_counters(self.0.number)
    }

    /// Moves a connected queue pair from RESET or INIT to RTS towards `remote`, or changes nothing.
    ///
    /// # Errors
    ///
    /// Fails if the peer's address has another family, or an option is out of range.
    pub fn connect(&self, remote: &Endpoint, options: &ConnectOptions) -> Result<(), VerbsError> {
        let rc = self.0.qp_type == QpType::Rc;
        let min_rnr_timer = rnr_timer(options.min_rnr_timer)?;
        let (own, peer) = (self.0.number, Qpn::new(remote.qpn));
        let state = &mut *self.runtime().lock();
        let to_path = VerbsError::io("cannot create a path to the peer");
        let mut path = state.nic.route_to(remote.address, &options.path).map_err(to_path)?;
        let steps = |path| {
            let to_rtr = QpAttr {
                path: Some(path),
                path_mtu: Some(options.path_mtu),
                dest_qpn: Some(peer),
                rq_psn: Some(Psn::new(remote.psn)),
                max_dest_rd_atomic: rc.then_some(options.max_dest_rd_atomic),
                min_rnr_timer: rc.then_some(min_rnr_timer),
                ..QpAttr::to_state(QpState::Rtr)
            };
            let to_rts = QpAttr {
                sq_psn: Some(self.0.psn),
                timeout: rc.then_some(options.timeout),
                retry_cnt: rc.then_some(options.retry_cnt),
                rnr_retry: rc.then_some(options.rnr_retry),
                max_rd_atomic: rc.then_some(options.max_rd_atomic),
                ..QpAttr::to_state(QpState::Rts)
            };
            [self.to_init(options.access, options.qkey), to_rtr, to_rts]
        };
        self.context().check_path_mtu(options.path_mtu)?;
        state.nic.engine.check_modify_qp(own, &steps(path))?;
        // The last step that may fail.
        let holder = PortHolder::QueuePair(own);
        let to_port = VerbsError::io("cannot bind a source port");
        path = state.nic.path_to(remote.address, holder, (own, peer), &options.path).map_err(to_port)?;
        self.modify_in_steps(state, &steps(path))
    }

    /// Moves a UD queue pair from RESET or INIT to RTS, or changes nothing.
    ///
    /// # Errors
    ///
    /// Fails if this is not a UD queue pair in RESET or INIT.
    pub fn activate_datagram(&self, qkey: u32) -> Result<(), VerbsError> {
        let to_init = QpAttr {
            pkey_index: Some(0),
            port: Some(1),
            qkey: Some(qkey),
            ..QpAttr::to_state(QpState::Init)
        };
        let to_rts = QpAttr { sq_psn: Some(self.0.psn), ..QpAttr::to_state(QpState::Rts) };
        let steps = [to_init, QpAttr::to_state(QpState::Rtr), to_rts];
        self.modify_in_steps(&mut self.runtime().lock(), &steps)
    }

    /// Posts a send request. It usually leaves at once, as far as flow and congestion control permit. If the
    /// application posts several requests between two polls, it may wait for more: see
    /// [Progress](super#progress).
    ///
    /// # Errors
    ///
    /// Fails if the queue pair cannot accept the request; nothing is queued then.
    #[inline]
    pub fn post_send(&self, wr: &SendWr<'_>) -> Result<(), VerbsError> {
        self.raw().post_send(self.0.number, wr).map_err(|error| find_reason(error, std::slice::from_ref(wr)))
    }

    /// Posts a chain of send requests. They leave like requests of [`post_send`](Self::post_send).
    ///
    /// # Errors
    ///
    /// Fails with [`VerbsError::PostList`] for the first request that was not accepted; those before it stay
    /// queued.
    pub fn post_send_list(&self, list: &[SendWr<'_>]) -> Result<(), VerbsError> {
        self.raw().post_send_list(self.0.number, list).map_err(|error| find_reason(error, list))
    }

    /// Posts a receive. The queue pair accepts receives from INIT on: see [`initialize`](Self::initialize).
    ///
    /// # Errors
    ///
    /// Fails if the queue pair cannot accept the request; nothing is queued then.
    #[inline]
    pub fn post_recv(&self, wr: &RecvWr<'_>) -> Result<(), VerbsError> {
        check_elements(wr.elements)?;
        self.raw().post_recv(self.0.number, wr)
    }

    /// Joins a multicast group with a UD queue pair. Joining twice creates one membership, which ends with
    /// the queue pair at the latest.
    ///
    /// # Errors
    ///
    /// Fails if this is not a UD queue pair, or the device cannot join.
    pub fn attach_multicast(&self, group: IpAddr) -> Result<(), VerbsError> {
        self.raw().attach_multicast(self.0.number, group)
    }

    /// Leaves a multicast group. Other queue pairs of the context stay members.
    ///
    /// # Errors
    ///
    /// Fails if the device cannot leave the group.
    pub fn detach_multicast(&self, group: IpAddr) -> Result<(), VerbsError> {
        self.raw().detach_multicast(self.0.number, group)
    }
}

/// Queue pairs.
impl Raw<'_> {
    /// Creates a queue pair in state RESET, in the engine of its queues.
    ///
    /// # Errors
    ///
    /// Fails if a size or the number of queue pairs is out of range, if an object in `init` does not exist,
    /// or if the queues belong to several engines.
    pub fn create_qp(self, init: &QpInit, options: &QpOptions) -> Result<Qpn, VerbsError> {
        let own = init.send_cq.slot();
        self.check_same_engine("receive completion queue", own, init.recv_cq.slot())?;
        if let Some(srq) = init.srq {
            self.check_same_engine("shared receive queue", own, srq.slot())?;
        }
        Ok(self.context.of_slot(own).lock().nic.engine.create_qp_with(init, options)?)
    }

    /// Fails if a queue belongs to another engine than the send completion queue.
    fn check_same_engine(
        self,
        what: &'static str,
        own: ProcessSlot,
        other: ProcessSlot,
    ) -> Result<(), VerbsError> {
        let [engine, other] = [own, other].map(|slot| self.context.index_of_slot(slot));
        if engine == other { Ok(()) } else { Err(VerbsError::OtherEngine { what, other, engine }) }
    }

    /// Destroys a queue pair after sending its pending responses, such as an acknowledgement.
    ///
    /// # Errors
    ///
    /// Fails if the queue pair does not exist.
    pub fn destroy_qp(self, qpn: Qpn) -> Result<(), VerbsError> {
        let mut state = self.of_qp(qpn).lock();
        if state.nic.engine.query_qp(qpn).is_none() {
            return Err(DestroyError::UnknownQp.into());
        }
        state.transmit_owed();
        let nic = &mut state.nic;
        // While the queue pair exists: when the last member leaves a group, the device leaves it.
        nic.leave_all_groups(qpn);
        nic.release_source_ports(PortHolder::QueuePair(qpn));
        Ok(nic.engine.destroy_qp(qpn)?)
    }

    /// Changes attributes and state, or nothing at all. A queue pair in RESET releases its source port.
    ///
    /// # Errors
    ///
    /// Fails if the transition does not exist, if attributes are missing or not allowed, or if the path MTU
    /// exceeds that of the link.
    pub fn modify_qp(self, qpn: Qpn, attr: &QpAttr) -> Result<(), VerbsError> {
        self.modify_in_steps(&mut self.of_qp(qpn).lock(), qpn, std::slice::from_ref(attr))
    }

    /// Makes all of these changes or none.
    pub(super) fn modify_in_steps(
        self,
        state: &mut State,
        qpn: Qpn,
        steps: &[QpAttr],
    ) -> Result<(), VerbsError> {
        for mtu in steps.iter().filter_map(|step| step.path_mtu) {
            self.context.check_path_mtu(mtu)?;
        }
        let now = state.nic.now();
        state.nic.modify_qp(now, qpn, steps)?;
        if steps.iter().any(|step| step.state == Some(QpState::Reset)) {
            state.nic.release_source_ports(PortHolder::QueuePair(qpn));
        }
        state.transmit_at(now);
        Ok(())
    }

    /// Returns the current attributes of a queue pair, or `None` if it does not exist.
    #[must_use]
    pub fn query_qp(self, qpn: Qpn) -> Option<QpAttributes> {
        self.of_qp(qpn).lock().nic.engine.query_qp(qpn)
    }

    /// Returns the path of a queue pair to its peer, for [`QpAttr::path`]. The queue pair holds the source
    /// port of the path until it goes to RESET or is destroyed.
    ///
    /// # Errors
    ///
    /// Fails if the device has no address of this family, or not this GID.
    pub fn path_of_qp(
        self,
        qpn: Qpn,
        peer: Qpn,
        destination: IpAddr,
        options: &PathOptions,
    ) -> Result<Path, VerbsError> {
        let nic = &mut self.of_qp(qpn).lock().nic;
        let path = nic.path_to(destination, PortHolder::QueuePair(qpn), (qpn, peer), options);
        path.map_err(VerbsError::io("cannot create a path to the peer"))
    }

    /// Posts a send request. The packets usually leave at once, within flow and congestion control. If the
    /// application posts several requests between two polls, they may wait for each other. They leave with 32
    /// requests or 64 KiB, with the next poll, or when the background thread sends them.
    ///
    /// # Errors
    ///
    /// Fails if the queue pair cannot accept the request. Nothing is queued then.
    #[inline]
    pub fn post_send(self, qpn: Qpn, wr: &SendWr<'_>) -> Result<(), VerbsError> {
        let mut state = self.of_qp(qpn).lock();
        let now = state.nic.now();
        state.nic.engine.post_send(now, qpn, wr)?;
        state.transmit_posted(now, 1, wr.payload.len());
        Ok(())
    }

    /// Posts a chain of send requests. Their packets leave as with [`post_send`](Self::post_send).
    ///
    /// # Errors
    ///
    /// Fails with [`VerbsError::PostList`] for the first request that was not accepted. The requests before
    /// it stay queued.
    pub fn post_send_list(self, qpn: Qpn, list: &[SendWr<'_>]) -> Result<(), VerbsError> {
        let mut state = self.of_qp(qpn).lock();
        let now = state.nic.now();
        let posted = state.nic.engine.post_send_list(now, qpn, list);
        let bytes = list.iter().map(|wr| wr.payload.len()).fold(0, u64::saturating_add);
        state.transmit_posted(now, list.len(), bytes);
        posted.map_err(|(position, error)| VerbsError::PostList { position, error })
    }

    /// Posts a receive, from state INIT on.
    ///
    /// # Errors
    ///
    /// Fails if the queue pair cannot accept the receive. Nothing is queued then.
    #[inline]
    pub fn post_recv(self, qpn: Qpn, wr: &RecvWr<'_>) -> Result<(), VerbsError> {
        Ok(self.of_qp(qpn).lock().nic.engine.post_recv(qpn, wr)?)
    }

    /// Joins a multicast group with a UD queue pair. A second join of the same group has no effect.
    ///
    /// # Errors
    ///
    /// Fails if the queue pair is not UD, or if the device cannot join.
    pub fn attach_multicast(self, qpn: Qpn, group: IpAddr) -> Result<(), VerbsError> {
        let joined = self.of_qp(qpn).lock().nic.join_group(qpn, group);
        joined.map_err(|error| VerbsError::group("cannot join a multicast group", error))
    }

    /// Leaves a multicast group. Other queue pairs of the context remain members.
    ///
    /// # Errors
    ///
    /// Fails if the device cannot leave.
    pub fn detach_multicast(self, qpn: Qpn, group: IpAddr) -> Result<(), VerbsError> {
        let left = self.of_qp(qpn).lock().nic.leave_group(qpn, group);
        left.map_err(|error| VerbsError::group("cannot leave a multicast group", error))
    }
}

/// Names an element that exceeds its region as the reason. The engine only finds that it is too long.
#[cold]
fn find_reason(error: VerbsError, list: &[SendWr<'_>]) -> VerbsError {
    let (position, reason) = match &error {
        VerbsError::Post(reason) => (0, reason),
        VerbsError::PostList { position, error } => (*position, error),
        _ => return error,
    };
    let is_length = matches!(reason, PostError::MessageTooLong { .. } | PostError::WrongLength { .. });
    let elements = match list.get(position).map(|wr| &wr.payload) {
        Some(Payload::Elements(elements)) if is_length => elements,
        _ => return error,
    };
    match (check_elements(elements), error) {
        (Err(outside), VerbsError::PostList { position, .. }) => {
            VerbsError::PostList { position, error: outside }
        }
        (Err(outside), _) => outside.into(),
        (Ok(()), error) => error,
    }
}
