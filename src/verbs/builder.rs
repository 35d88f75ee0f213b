//! The options for opening a context.

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use rand_chacha::ChaCha12Rng;
use rand_core::{Rng, SeedableRng};
use roce_transport::congestion::{Congestion, NotificationPoint, Paths, Rate};
use roce_transport::{EngineConfig, ProcessSlot, Recovery, Retransmission};

use super::VerbsError;
use super::context::{Context, OVERHEAD_V6, largest_mtu};
use super::engines::{OtherDevices, divided, open_devices};
use crate::device::{Capabilities, Clock, Device, OpenOptions};
use crate::runtime::{Engines, Opening};

/// Changes settings of the engine.
type Tune = Box<dyn FnOnce(&mut EngineConfig) + Send>;

/// Options for opening a [`Context`].
///
/// ```
/// use std::time::Duration;
///
/// use roce::verbs::Context;
///
/// # fn main() -> Result<(), roce::verbs::VerbsError> {
/// let most = 8;
/// let context = Context::builder()
///     .spin(Duration::ZERO)
///     .window(256)
///     .tune(move |config| config.max_qp = most)
///     .open("udp:127.0.0.1,port=0")?;
/// assert_eq!(context.query().limits.max_qp, most);
/// # Ok(())
/// # }
/// ```
pub struct ContextBuilder {
    seed: Option<u64>,
    spin: Duration,
    clock: Option<Clock>,
    background: bool,
    options: OpenOptions,
    engines: usize,
    tune: Option<Tune>,
    process_slot: Option<ProcessSlot>,
    window: Option<u32>,
    publish: bool,
    congestion: Option<(Congestion, NotificationPoint)>,
    line_rate: Option<Rate>,
    recovery: Option<Recovery>,
    paths: Option<Paths>,
    retransmission: Retransmission,
    telemetry: bool,
}

impl Default for ContextBuilder {
    fn default() -> Self {
        Self {
            seed: None,
            spin: Duration::from_micros(50),
            clock: None,
            background: true,
            options: OpenOptions::default(),
            engines: 1,
            tune: None,
            process_slot: None,
            window: None,
            publish: std::env::var_os("ROCE_STAT").is_some_and(|wish| !wish.is_empty() && wish != "0"),
            congestion: None,
            line_rate: None,
            recovery: None,
            paths: None,
            retransmission: Retransmission::ADAPTIVE,
            telemetry: false,
        }
    }
}

impl fmt::Debug for ContextBuilder {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("ContextBuilder").field("options", &self.options).finish_non_exhaustive()
    }
}

impl ContextBuilder {
    /// Makes queue pair numbers, keys and PSNs repeatable. Without a seed they cannot be guessed.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// Sets how long waiting spins before it sleeps; 50 µs by default.
    #[must_use]
    pub fn spin(mut self, spin: Duration) -> Self {
        self.spin = spin;
        self
    }

    /// Replaces the clock, for tests without a background thread that must not depend on the speed of the
    /// machine.
    #[doc(hidden)]
    #[must_use]
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = Some(clock);
        self
    }

    /// Sets whether a background thread serves peers and timers. Without it the application must poll.
    #[must_use]
    pub fn background(mut self, background: bool) -> Self {
        self.background = background;
        self
    }

    /// Sets the wrappers around the device: faults and a capture.
    #[must_use]
    pub fn options(mut self, options: OpenOptions) -> Self {
        self.options = options;
        self
    }

    /// Opens 1 to 63 engines; 1 by default. Each engine has its own lock, background thread and device, so
    /// threads that use queue pairs of different engines do not wait for each other. The address must be one
    /// that `udp` devices share. A completion queue belongs to one engine ([`Context::create_cq_on`]), and a
    /// queue pair to the engine of its completion queues. All engines share protection domains, memory
    /// regions and memory windows. Limits in the settings apply to each engine; a line rate is divided among
    /// the engines.
    ///
    /// ```
    /// use roce::verbs::{Context, QpType, QueuePairOptions};
    ///
    /// # fn main() -> Result<(), roce::verbs::VerbsError> {
    /// # let spec = format!("udp:{},port={}", roce_testing::own_address(), 14791);
    /// let context = Context::builder().engines(2).open(&spec)?;
    /// let pd = context.alloc_pd()?;
    /// // What each of two threads uses.
    /// let cqs = [context.create_cq_on(0, 16, None)?, context.create_cq_on(1, 16, None)?];
    /// let first = pd.create_qp(&QueuePairOptions::new(QpType::Rc, &cqs[0]))?;
    /// let second = pd.create_qp(&QueuePairOptions::new(QpType::Rc, &cqs[1]))?;
    /// assert_eq!([first.engine(), second.engine()], [0, 1]);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn engines(mut self, engines: usize) -> Self {
        self.engines = engines;
        self
    }

    /// Sets the maximum number of unacknowledged PSNs of a queue pair.
    #[must_use]
    pub fn window(mut self, packets: u32) -> Self {
        self.window = Some(packets);
        self
    }

    /// Sets whether `roce stat` of the same user or of root can read the counters while the context is open.
    /// By default the environment decides: `ROCE_STAT=1` enables it. If publishing fails, the context works
    /// without it, and a log message gives the reason: a warning if `ROCE_STAT` is set, else a debug message.
    #[must_use]
    pub fn publish(mut self, publish: bool) -> Self {
        self.publish = publish;
        self
    }

    /// Sets the congestion control of RC and UC queue pairs that have none of their own, and the response to
    /// marked packets. [`Congestion::parse`] returns both. By default no congestion control limits rates, and
    /// marked packets are answered as ConnectX does.
    #[must_use]
    pub fn congestion(mut self, congestion: (Congestion, NotificationPoint)) -> Self {
        self.congestion = Some(congestion);
        self
    }

    /// Sets the rate of the link. The context sends all its packets together at most at this rate, and
    /// congestion control starts at it. By default the rate is not limited, and congestion control starts at
    /// 100 Gb/s.
    #[must_use]
    pub fn line_rate(mut self, line_rate: Rate) -> Self {
        self.line_rate = Some(line_rate);
        self
    }

    /// Sets the loss recovery of RC queue pairs that do not choose one; go-back-N by default. Selective
    /// repeat works with `roce` peers only and must be set at both ends.
    #[must_use]
    pub fn recovery(mut self, recovery: Recovery) -> Self {
        self.recovery = Some(recovery);
        self
    }

    /// Sets the UDP source ports of RC queue pairs that do not choose them; one by default. With several, the
    /// hashes of switches spread the packets of a queue pair over the links of the network. Packets then
    /// overtake each other, so it needs [`recovery`](Self::recovery) with a selective repeat that expects
    /// this (`reorder`), at both ends.
    #[must_use]
    pub fn paths(mut self, paths: Paths) -> Self {
        self.paths = Some(paths);
        self
    }

    /// Sets when RC queue pairs retransmit unanswered packets. The default follows ConnectX: an early
    /// retransmission, and local ACK timeouts of at least 537 ms. [`Retransmission::IBTA`] follows the local
    /// ACK timeout of a queue pair exactly.
    ///
    /// ```
    /// use roce::verbs::{ConnectOptions, Context, Retransmission};
    ///
    /// # fn main() -> Result<(), roce::verbs::VerbsError> {
    /// // A lost peer is noticed after 3 × 1 ms. A peer that has no processor for so long is taken for lost as well.
    /// let context = Context::builder().retransmission(Retransmission::IBTA).open("udp:127.0.0.1,port=0")?;
    /// let options = ConnectOptions::default().timeout(8).retry_cnt(2);
    /// # let _ = (context, options);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn retransmission(mut self, retransmission: Retransmission) -> Self {
        self.retransmission = retransmission;
        self
    }

    /// Sets whether datagrams carry in-band telemetry, which the congestion controls `hpcc` and `powertcp`
    /// require. Off by default. Telemetry is a trailer of 52 bytes behind the ICRC: switches write into it,
    /// and acknowledgements return it. **It is not part of a standard**: both ends must enable it, because
    /// any other peer sees a wrong ICRC. The link MTU must have room for it in addition to the path MTU. See
    /// `docs/reference/congestion.md`, "In-band telemetry".
    ///
    /// ```
    /// use roce::verbs::{Congestion, Context};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let sender = Context::builder().telemetry(true).congestion(Congestion::parse("hpcc")?).open("udp:127.0.0.1,port=0")?;
    /// // What receives needs no congestion control of its own.
    /// let receiver = Context::builder().telemetry(true).open("udp:127.0.0.2,port=0")?;
    /// # let _ = (sender, receiver);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn telemetry(mut self, telemetry: bool) -> Self {
        self.telemetry = telemetry;
        self
    }

    /// Changes further settings of the engine.
    #[must_use]
    pub fn tune(mut self, tune: impl FnOnce(&mut EngineConfig) + Send + 'static) -> Self {
        self.tune = Some(Box::new(tune));
        self
    }

    /// Sets the slot that queue pair numbers and communication IDs begin with. The default is the slot of the
    /// device ([`Capabilities::process_slot`]). A device that shares its address with other devices accepts
    /// no other slot.
    #[must_use]
    pub fn process_slot(mut self, slot: ProcessSlot) -> Self {
        self.process_slot = Some(slot);
        self
    }

    /// Opens the device that `spec` names, such as `udp:127.0.0.1`.
    ///
    /// # Errors
    ///
    /// Fails if the device cannot be opened, or not for this number of engines. The error says what to do.
    pub fn open(mut self, spec: &str) -> Result<Context, VerbsError> {
        let (first, others) = open_devices(spec, self.engines, std::mem::take(&mut self.options))?;
        self.build(first, others)
    }

    /// Opens a context on a device that is already open, with the requested wrappers around the device.
    ///
    /// # Errors
    ///
    /// Fails if the operating system refuses a descriptor or thread, or if several engines were requested:
    /// each of them needs its own device.
    pub fn attach(self, device: impl Device + 'static) -> Result<Context, VerbsError> {
        self.attach_box(Box::new(device))
    }

    /// Opens a context like [`attach`](Self::attach), on a device whose type is known at run time only, such
    /// as one from [`device::open`](crate::device::open).
    ///
    /// # Errors
    ///
    /// Fails like [`attach`](Self::attach).
    pub fn attach_box(mut self, device: Box<dyn Device>) -> Result<Context, VerbsError> {
        if self.engines != 1 {
            let problem =
                "a device has only one engine; use `open`, which opens a device for each engine".to_owned();
            return Err(VerbsError::Engines { engines: self.engines, problem });
        }
        let device = crate::device::wrap(device, std::mem::take(&mut self.options));
        self.build(device, Vec::new())
    }

    fn build(mut self, device: Box<dyn Device>, others: OtherDevices) -> Result<Context, VerbsError> {
        let mut random = self.seed.map_or_else(random_generator, ChaCha12Rng::seed_from_u64);
        let mut config = self.engine_config(&mut random, device.capabilities());
        check_slot(config.process_slot, device.capabilities())?;
        if config.limit_to_line_rate {
            config.line_rate = divided(config.line_rate, self.engines);
        }
        let others = others.into_iter().map(|device| {
            let mut config = config.clone();
            config.seed = self.secret(&mut random);
            config.process_slot = device.capabilities().process_slot;
            Opening { config, device, random: ChaCha12Rng::from_seed(drawn(&mut random)) }
        });
        let others = others.collect();
        let clock = self.clock.unwrap_or_else(Clock::start);
        let mut handle = Engines::new(Opening { config, device, random }, others, self.spin, clock)
            .map_err(VerbsError::io("cannot create the descriptors of the context"))?;
        if self.background {
            handle.start_background().map_err(VerbsError::io("cannot start the progress thread"))?;
        }
        if self.publish
            && let Err(error) = handle.publish()
        {
            // Without the variable, the program asked for publishing and not the user.
            if std::env::var_os("ROCE_STAT").is_some() {
                tracing::warn!(%error, "roce stat cannot show this process");
            } else {
                tracing::debug!(%error, "roce stat cannot show this process");
            }
        }
        Ok(Context(Arc::new(handle)))
    }

    /// Returns the secret of an engine: from the operating system unless a seed was given.
    fn secret(&self, random: &mut ChaCha12Rng) -> [u8; 32] {
        let own = if self.seed.is_some() { None } else { from_system() };
        own.unwrap_or_else(|| drawn(random))
    }

    /// Builds the settings of the engine.
    fn engine_config(&mut self, random: &mut ChaCha12Rng, capabilities: &Capabilities) -> EngineConfig {
        let mut config = EngineConfig::new(self.secret(random));
        config.process_slot = self.process_slot.unwrap_or(capabilities.process_slot);
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
        if let Some(line_rate) = self.line_rate {
            (config.line_rate, config.limit_to_line_rate) = (line_rate, true);
        }
        config.recovery = self.recovery.unwrap_or(config.recovery);
        if let Some(paths) = &self.paths {
            config.paths = paths.clone();
        }
        config.retransmission = self.retransmission;
        config.telemetry = self.telemetry;
        if let Some(tune) = self.tune.take() {
            tune(&mut config);
        }
        config
    }
}

impl Context {
    /// Opens a device with the default settings, for example `udp:127.0.0.1`.
    ///
    /// # Errors
    ///
    /// Fails if the device cannot be opened; the error says what to do.
    pub fn open(spec: &str) -> Result<Self, VerbsError> {
        ContextBuilder::default().open(spec)
    }

    /// Returns a builder for a context with other settings.
    #[must_use]
    pub fn builder() -> ContextBuilder {
        ContextBuilder::default()
    }
}

/// Refuses a slot other than the device's, because the datagrams of another slot arrive at another device.
fn check_slot(slot: ProcessSlot, capabilities: &Capabilities) -> Result<(), VerbsError> {
    let given = capabilities.process_slot;
    if given == ProcessSlot::NONE || given == slot {
        return Ok(());
    }
    let problem = format!(
        "the device shares its address and has slot {given}, but slot {slot} was requested; leave \
         `process_slot` out, or open the device with share=off"
    );
    Err(VerbsError::io("cannot choose queue pair numbers")(std::io::Error::new(
        std::io::ErrorKind::InvalidInput,
        problem,
    )))
}

/// Returns a generator whose numbers cannot be guessed, if the operating system has random bytes.
fn random_generator() -> ChaCha12Rng {
    // The keys of hash tables are random too, but they are fewer bits.
    let weaker = || ChaCha12Rng::seed_from_u64(RandomState::new().hash_one(0));
    from_system().map_or_else(weaker, ChaCha12Rng::from_seed)
}

fn drawn(random: &mut ChaCha12Rng) -> [u8; 32] {
    let mut bytes = [0; 32];
    random.fill_bytes(&mut bytes);
    bytes
}

/// Returns random bytes of the operating system, if it has some.
fn from_system() -> Option<[u8; 32]> {
    use rustix::rand::{GetRandomFlags, getrandom};
    let mut bytes = [0; 32];
    let count = getrandom(&mut bytes, GetRandomFlags::empty()).ok()?;
    (count == bytes.len()).then_some(bytes)
}
