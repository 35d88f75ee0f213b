//! An open device.

use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::Thread;
use std::time::{Duration, Instant};

use roce_packet::{PathMtu, Psn, Qpn};
use roce_transport::congestion::{Congestion, NotificationPoint, Rate};
use roce_transport::{AsyncEvent, Counters, Engine, EngineConfig, Recovery, UdDestination};

use super::cq::ChannelRegistry;
use super::{CompletionChannel, CompletionQueue, ProtectionDomain, VerbsError};
use crate::device::{Capabilities, Device, OpenOptions};
use crate::driver::wake::Wake;
use crate::driver::{Driver, PathOptions};
use crate::observe::Publisher;
use crate::runtime::background;

/// While the application polled so recently, the background thread stays away.
const POLLED_RECENTLY: Duration = Duration::from_micros(50);
/// IPv4 or IPv6, UDP, BTH, RETH, ImmDt and ICRC around the payload of the largest ordinary packet.
const OVERHEAD_V4: usize = 20 + 8 + 12 + 16 + 4 + 4;
const OVERHEAD_V6: usize = 40 + 8 + 12 + 16 + 4 + 4;

/// An open device: engine, device and clock behind one lock. Clones are handles to the same.
#[derive(Clone, Debug)]
pub struct Context {
    pub(crate) inner: Arc<Inner>,
    _guard: Arc<Guard>,
}

/// What all handles share.
pub(crate) struct Inner {
    driver: Mutex<Driver>,
    pub(super) capabilities: Capabilities,
    pub(super) addresses: Vec<IpAddr>,
    device_descriptor: Option<OwnedFd>,
    wake: Wake,
    async_wake: Wake,
    pub(crate) channels: ChannelRegistry,
    pub(crate) spin: Duration,
    pub(crate) stopped: AtomicBool,
    /// When the application last polled, and how many of its threads wait inside this library.
    last_poll: AtomicU64,
    waiters: AtomicUsize,
    /// Until when the background thread sleeps if nothing arrives, in nanoseconds of the driver's clock; 0
    /// while it is awake. Written and read under the driver's lock, but for going back to 0.
    sleeps_until: AtomicU64,
    origin: Instant,
    random: Mutex<fastrand::Rng>,
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Context").field("capabilities", &self.capabilities).finish_non_exhaustive()
    }
}

/// Ends the background thread with the last handle.
#[derive(Debug)]
struct Guard {
    inner: Arc<Inner>,
    background: Mutex<Option<std::thread::JoinHandle<()>>>,
    /// Tells the counters to other processes until it is dropped.
    _publisher: Option<Publisher>,
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.inner.stopped.store(true, Ordering::Release);
        self.inner.wake.signal();
        let thread = self.background.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread
            && !is_current(thread.thread())
        {
            // A panic over there has been reported by its own hook; there is nothing to add here.
            let _ = thread.join();
        }
        // The last words of queue pairs, such as a NAK or an acknowledgement, still go out.
        let mut driver = self.inner.lock();
        let now = driver.now();
        driver.transmit(now);
    }
}

fn is_current(thread: &Thread) -> bool {
    thread.id() == std::thread::current().id()
}

/// How a context is opened.
#[derive(Debug)]
pub struct ContextBuilder {
    seed: Option<u64>,
    spin: Duration,
    background: bool,
    options: OpenOptions,
    tune: Option<fn(&mut EngineConfig)>,
    process_slot: u8,
    window: Option<u32>,
    publish: bool,
    congestion: Option<(Congestion, NotificationPoint)>,
    line_rate: Option<Rate>,
    recovery: Option<Recovery>,
}

impl Default for ContextBuilder {
    fn default() -> Self {
        Self {
            seed: None,
            spin: Duration::from_micros(50),
            background: true,
            options: OpenOptions::default(),
            tune: None,
            process_slot: 0,
            window: None,
            publish: std::env::var_os("ROCE_STAT").is_some_and(|wish| !wish.is_empty() && wish != "0"),
            congestion: None,
            line_rate: None,
            recovery: None,
        }
    }
}

impl ContextBuilder {
    /// Makes queue pair numbers, keys and PSNs repeatable. Without it nobody can guess them.
    #[must_use]
    pub fn seed(mut self, seed: Option<u64>) -> Self {
        self.seed = seed;
        self
    }

    /// How long waiting spins before it sleeps; 50 µs unless said otherwise.
    #[must_use]
    pub fn spin(mut self, spin: Duration) -> Self {
        self.spin = spin;
        self
    }

    /// Whether a background thread serves peers and timers; without it the application must poll.
    #[must_use]
    pub fn background(mut self, background: bool) -> Self {
        self.background = background;
        self
    }

    /// Wrappers around the device: faults and a capture.
    #[must_use]
    pub fn options(mut self, options: OpenOptions) -> Self {
        self.options = options;
        self
    }

    /// The most PSNs that a queue pair leaves unacknowledged.
    #[must_use]
    pub fn window(mut self, packets: Option<u32>) -> Self {
        self.window = packets;
        self
    }

    /// Whether `roce stat` of the same user, or of root, can read the counters while the context is open. Unless said
    /// otherwise, the environment decides: `ROCE_STAT=1` asks for it. Where it is not possible the context works all
    /// the same, and a warning says why.
    #[must_use]
    pub fn publish(mut self, publish: bool) -> Self {
        self.publish = publish;
        self
    }

    /// The congestion control of RC and UC queue pairs that have none of their own, and how marked packets are answered: what
    /// [`Congestion::parse`] gives. Without it nothing controls rates, and marks are answered as ConnectX does.
    #[must_use]
    pub fn congestion(mut self, congestion: Option<(Congestion, NotificationPoint)>) -> Self {
        self.congestion = congestion;
        self
    }

    /// What the link carries, where congestion control begins; 100 Gb/s unless said otherwise.
    #[must_use]
    pub fn line_rate(mut self, line_rate: Option<Rate>) -> Self {
        self.line_rate = line_rate;
        self
    }

    /// How RC queue pairs that say nothing else make up for losses; go-back-N unless said otherwise. Selective repeat is for
    /// our own peers only, and both ends have to be set so.
    #[must_use]
    pub fn recovery(mut self, recovery: Option<Recovery>) -> Self {
        self.recovery = recovery;
        self
    }

    /// Changes further settings of the engine.
    #[must_use]
    pub fn tune(mut self, tune: fn(&mut EngineConfig)) -> Self {
        self.tune = Some(tune);
        self
    }

    /// The upper 8 bits of queue pair numbers, for processes that share an address.
    #[must_use]
    pub fn process_slot(mut self, slot: u8) -> Self {
        self.process_slot = slot;
        self
    }

    /// Opens the device that `spec` names, such as `udp:127.0.0.1`.
    ///
    /// # Errors
    ///
    /// When the device cannot be opened; the error says what to do.
    pub fn open(mut self, spec: &str) -> Result<Context, VerbsError> {
        let device = crate::device::open(spec, std::mem::take(&mut self.options))?;
        self.attach(device)
    }

    /// Takes a device that is open already, and puts the wrappers around it that were asked for.
    ///
    /// # Errors
    ///
    /// When the operating system refuses a descriptor or thread.
    pub fn attach(mut self, device: Box<dyn Device>) -> Result<Context, VerbsError> {
        let device = crate::device::wrap(device, std::mem::take(&mut self.options));
        let capabilities = device.capabilities().clone();
        let addresses = device.addresses().to_vec();
        let device_descriptor = device
            .as_fd()
            .map(|descriptor| descriptor.try_clone_to_owned())
            .transpose()
            .map_err(VerbsError::io("duplicating the descriptor of the device"))?;
        let mut random = self.seed.map_or_else(fastrand::Rng::new, fastrand::Rng::with_seed);
        let config = self.engine_config(&mut random, &capabilities);
        let inner = Arc::new(Inner {
            driver: Mutex::new(Driver::new(Engine::new(config), device)),
            capabilities,
            addresses,
            device_descriptor,
            wake: Wake::new().map_err(VerbsError::io("making an eventfd"))?,
            async_wake: Wake::new().map_err(VerbsError::io("making an eventfd"))?,
            channels: ChannelRegistry::default(),
            spin: self.spin,
            stopped: AtomicBool::new(false),
            last_poll: AtomicU64::new(0),
            waiters: AtomicUsize::new(0),
            sleeps_until: AtomicU64::new(0),
            origin: Instant::now(),
            random: Mutex::new(random),
        });
        let background = self
            .background
            .then(|| background::start(&inner))
            .transpose()
            .map_err(VerbsError::io("starting the progress thread"))?;
        let publisher = if self.publish { publisher(&inner) } else { None };
        let guard = Guard { inner: inner.clone(), background: Mutex::new(background), _publisher: publisher };
        Ok(Context { inner, _guard: Arc::new(guard) })
    }

    /// The engine's settings. Its secret comes from the operating system unless a seed was given.
    fn engine_config(&self, random: &mut fastrand::Rng, capabilities: &Capabilities) -> EngineConfig {
        let mut seed = [0; 32];
        let secret = if self.seed.is_none() { fill_from_system(&mut seed) } else { false };
        if !secret {
            random.fill(&mut seed);
        }
        let mut config = EngineConfig::new(seed);
        config.process_slot = self.process_slot;
        if let Some(mtu) = largest_mtu(capabilities, OVERHEAD_V6) {
            config.port_mtu = mtu;
        }
        if let Some(window) = self.window {
            config.max_outstanding_packets = window.clamp(1, (1 << 23) - 1);
            config.max_read_packets = (window / 2).max(1);
        }
        if let Some((congestion, notification)) = &self.congestion {
            (config.congestion, config.notification) = (congestion.clone(), *notification);
        }
        config.line_rate = self.line_rate.unwrap_or(config.line_rate);
        config.recovery = self.recovery.unwrap_or(config.recovery);
        if let Some(tune) = self.tune {
            tune(&mut config);
        }
        config
    }
}

fn publisher(inner: &Arc<Inner>) -> Option<Publisher> {
    match Publisher::start(inner) {
        Ok(publisher) => Some(publisher),
        Err(error) => {
            // Only who asked for it misses it.
            if std::env::var_os("ROCE_STAT").is_some() {
                tracing::warn!(%error, "`roce stat` cannot show this process");
            } else {
                tracing::debug!(%error, "`roce stat` cannot show this process");
            }
            None
        }
    }
}

fn fill_from_system(seed: &mut [u8]) -> bool {
    use rustix::rand::{GetRandomFlags, getrandom};
    matches!(getrandom(&mut *seed, GetRandomFlags::empty()), Ok(count) if count == seed.len())
}

fn largest_mtu(capabilities: &Capabilities, overhead: usize) -> Option<PathMtu> {
    PathMtu::ALL.into_iter().rev().find(|mtu| mtu.bytes() + overhead <= capabilities.link_mtu)
}

/// What `ibv_query_device` and `ibv_query_port` tell.
#[derive(Clone, Debug)]
pub struct DeviceAttributes {
    /// What the device underneath can do.
    pub capabilities: Capabilities,
    /// The GID table: addresses in their order.
    pub addresses: Vec<IpAddr>,
    /// The largest path MTU that the link carries.
    pub active_mtu: Option<PathMtu>,
    /// Limits of the engine.
    pub limits: EngineConfig,
}

impl Context {
    /// Opens a device with the default settings, for example `udp:127.0.0.1`.
    ///
    /// # Errors
    ///
    /// When the device cannot be opened; the error says what to do.
    pub fn open(spec: &str) -> Result<Self, VerbsError> {
        ContextBuilder::default().open(spec)
    }

    /// Other settings.
    #[must_use]
    pub fn builder() -> ContextBuilder {
        ContextBuilder::default()
    }

    /// What the device is like.
    #[must_use]
    pub fn query(&self) -> DeviceAttributes {
        let capabilities = self.inner.capabilities.clone();
        let active_mtu = self.largest_path_mtu();
        let limits = self.inner.lock().engine.config().clone();
        DeviceAttributes { capabilities, addresses: self.inner.addresses.clone(), active_mtu, limits }
    }

    /// The address that this device sends from.
    #[must_use]
    pub fn address(&self) -> Option<IpAddr> {
        self.inner.addresses.first().copied()
    }

    /// The largest path MTU that the link carries.
    #[must_use]
    pub fn largest_path_mtu(&self) -> Option<PathMtu> {
        largest_mtu(&self.inner.capabilities, self.overhead())
    }

    fn overhead(&self) -> usize {
        if self.inner.addresses.iter().any(IpAddr::is_ipv6) { OVERHEAD_V6 } else { OVERHEAD_V4 }
    }

    pub(crate) fn check_path_mtu(&self, mtu: PathMtu) -> Result<(), VerbsError> {
        let (path_mtu, link_mtu) = (mtu.bytes(), self.inner.capabilities.link_mtu);
        let needed = path_mtu + self.overhead();
        if needed > link_mtu { Err(VerbsError::PathMtu { path_mtu, needed, link_mtu }) } else { Ok(()) }
    }

    /// Makes a protection domain.
    ///
    /// # Errors
    ///
    /// When the configured number is in use.
    pub fn alloc_pd(&self) -> Result<ProtectionDomain, VerbsError> {
        ProtectionDomain::new(self)
    }

    /// Makes a completion queue of `capacity` entries whose events go to `channel`, if one is given.
    ///
    /// # Errors
    ///
    /// When the capacity or the number of queues is out of range.
    pub fn create_cq(
        &self,
        capacity: usize,
        channel: Option<&CompletionChannel>,
    ) -> Result<CompletionQueue, VerbsError> {
        CompletionQueue::new(self, capacity, channel)
    }

    /// Makes a channel for completion events: a descriptor to wait on.
    ///
    /// # Errors
    ///
    /// When the operating system refuses a descriptor.
    pub fn create_channel(&self) -> Result<CompletionChannel, VerbsError> {
        CompletionChannel::new(self)
    }

    /// Makes the destination of UD sends: `ibv_create_ah` and the two numbers of the work request.
    ///
    /// # Errors
    ///
    /// When the device has no address of that family.
    pub fn create_address_handle(
        &self,
        destination: IpAddr,
        remote_qpn: Qpn,
        remote_qkey: u32,
        options: &PathOptions,
    ) -> Result<UdDestination, VerbsError> {
        let path = self
            .inner
            .lock()
            .path_to(destination, Qpn::GSI, (remote_qpn, remote_qpn), options)
            .map_err(VerbsError::io("making an address handle"))?;
        Ok(UdDestination { path, remote_qpn, remote_qkey })
    }

    /// The next asynchronous event, if there is one.
    #[must_use]
    pub fn async_event(&self) -> Option<AsyncEvent> {
        let mut driver = self.inner.lock();
        let event = driver.async_events.pop_front();
        // Under the lock, so that an event that comes now is not missed.
        if driver.async_events.is_empty() {
            self.inner.async_wake.clear();
        }
        event
    }

    /// A descriptor that is readable while asynchronous events wait.
    #[must_use]
    pub fn async_descriptor(&self) -> BorrowedFd<'_> {
        self.inner.async_wake.as_fd()
    }

    /// The counters of the engine.
    #[must_use]
    pub fn counters(&self) -> Counters {
        *self.inner.lock().engine.counters()
    }

    /// All counters by name: the engine's, the driver's and the device's.
    pub fn visit_counters(&self, visit: &mut dyn FnMut(&'static str, u64)) {
        self.inner.visit_counters(visit);
    }

    /// Receives and sends once, for applications that poll nothing themselves.
    pub fn progress(&self) {
        self.inner.lock_and_progress();
    }

    /// A PSN to start with: random, or from the seed.
    #[must_use]
    pub fn random_psn(&self) -> Psn {
        Psn::new(self.inner.random_u64() as u32)
    }

    /// A device error that ended all traffic.
    ///
    /// # Errors
    ///
    /// The error itself, if there was one.
    pub fn check_device(&self) -> Result<(), VerbsError> {
        match self.inner.lock().failure() {
            Some(error) => Err(VerbsError::DeviceFailed(error.to_string())),
            None => Ok(()),
        }
    }
}

impl Inner {
    pub(crate) fn visit_counters(&self, visit: &mut dyn FnMut(&'static str, u64)) {
        let mut driver = self.lock();
        driver.engine.counters().visit(visit);
        if let Some(cm) = driver.cm() {
            cm.visit_counters(visit);
        }
        visit("tx_device_full", driver.statistics.tx_device_full);
        visit("busy_polls", driver.statistics.busy_polls);
        visit("idle_polls", driver.statistics.idle_polls);
        driver.device().counters(visit);
    }

    pub(crate) fn device_kind(&self) -> &'static str {
        self.capabilities.kind
    }

    pub(crate) fn addresses(&self) -> &[IpAddr] {
        &self.addresses
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Driver> {
        // A panic elsewhere leaves the engine between two calls, never inside one that matters here.
        self.driver.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes progress and passes on the events that came of it.
    pub(crate) fn lock_and_progress(&self) -> bool {
        let mut driver = self.lock();
        let arrived = driver.progress();
        self.deliver_events(&mut driver);
        arrived
    }

    /// Sends what was posted and passes on the events that came of it.
    pub(crate) fn transmit(&self, driver: &mut Driver) {
        let now = driver.now();
        driver.transmit(now);
        self.deliver_events(driver);
    }

    pub(crate) fn deliver_events(&self, driver: &mut Driver) {
        while let Some(cq) = driver.notifications.pop_front() {
            self.channels.notify(cq);
        }
        if !driver.async_events.is_empty() {
            self.async_wake.signal();
        }
        if driver.failure().is_some() {
            self.channels.tell_failure();
        }
        self.wake_for_deadline(driver);
    }

    /// Wakes the background thread if it would sleep past a deadline that has come up since it lay down,
    /// such as the ACK timeout of what was posted just now.
    #[inline]
    fn wake_for_deadline(&self, driver: &Driver) {
        let sleeps_until = self.sleeps_until.load(Ordering::Relaxed);
        if sleeps_until != 0 && driver.deadline().is_some_and(|deadline| deadline.as_nanos() < sleeps_until) {
            self.sleeps_until.store(0, Ordering::Relaxed);
            self.wake.signal();
        }
    }

    /// Notes how long the background thread is going to sleep; the caller holds the driver's lock.
    pub(crate) fn lie_down(&self, until: roce_transport::Instant) {
        self.sleeps_until.store(until.as_nanos(), Ordering::Relaxed);
    }

    pub(crate) fn get_up(&self) {
        self.sleeps_until.store(0, Ordering::Relaxed);
        self.wake.clear();
    }

    /// Notes that the application is polling, so that the background thread keeps out of its way.
    #[inline]
    pub(crate) fn note_poll(&self) {
        self.last_poll.store(self.origin.elapsed().as_nanos() as u64, Ordering::Relaxed);
    }

    /// Whether the application polled a moment ago.
    pub(crate) fn is_being_polled(&self) -> bool {
        let last = self.last_poll.load(Ordering::Relaxed);
        let now = self.origin.elapsed().as_nanos() as u64;
        last != 0 && now.saturating_sub(last) < POLLED_RECENTLY.as_nanos() as u64
    }

    /// Whether a thread of the application waits inside this library. It watches the device.
    pub(crate) fn is_being_waited_for(&self) -> bool {
        self.waiters.load(Ordering::Relaxed) > 0
    }

    /// Counts a thread that waits for events and makes progress meanwhile.
    pub(crate) fn enter_wait(&self) -> Waiting<'_> {
        self.waiters.fetch_add(1, Ordering::Relaxed);
        Waiting(self)
    }

    pub(crate) fn device_descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.device_descriptor.as_ref().map(AsFd::as_fd)
    }

    pub(crate) fn wake_descriptor(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    pub(crate) fn random_u64(&self) -> u64 {
        self.random.lock().unwrap_or_else(PoisonError::into_inner).u64(..)
    }
}

/// A thread inside a wait, as long as this lives.
pub(crate) struct Waiting<'a>(&'a Inner);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiters.fetch_sub(1, Ordering::Relaxed);
        // The background thread may have nothing to wake it but this.
        self.0.wake.signal();
    }
}
