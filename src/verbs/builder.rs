//! How a context is opened.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use roce_transport::congestion::{Congestion, NotificationPoint, Rate};
use roce_transport::{EngineConfig, ProcessSlot, Recovery, Retransmission};

use super::VerbsError;
use super::context::{Context, OVERHEAD_V6, largest_mtu};
use super::engines::{OtherDevices, divided, open_devices};
use crate::device::{Capabilities, Clock, Device, OpenOptions};
use crate::runtime::{Engines, Opening};

/// Changes settings of the engine.
type Tune = Box<dyn FnOnce(&mut EngineConfig) + Send>;

/// How a context is opened.
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
    /// Makes queue pair numbers, keys and PSNs repeatable. Without it they cannot be guessed.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// How long waiting spins before it sleeps; 50 µs unless said otherwise.
    #[must_use]
    pub fn spin(mut self, spin: Duration) -> Self {
        self.spin = spin;
        self
    }

    /// Another clock, for tests without a background thread that do not depend on the speed of the machine.
    #[doc(hidden)]
    #[must_use]
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = Some(clock);
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

    /// Opens so many engines instead of one, from 1 to 63: each has a lock, a background thread and a device of its own, so that threads
    /// which use queue pairs of different engines do not wait for each other. The address has to be one that devices of the kind `udp`
    /// share. A completion queue is made in an engine ([`Context::create_cq_on`]), and a queue pair is in the engine of its completion
    /// queues; protection domains, memory regions and memory windows are in all of them. The limits of the settings are those of each
    /// engine, and a line rate is divided among them.
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

    /// The most PSNs that a queue pair leaves unacknowledged.
    #[must_use]
    pub fn window(mut self, packets: u32) -> Self {
        self.window = Some(packets);
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
    pub fn congestion(mut self, congestion: (Congestion, NotificationPoint)) -> Self {
        self.congestion = Some(congestion);
        self
    }

    /// The rate of the link: all packets of the context together are sent at most at this rate, and congestion control
    /// starts at it. By default there is no limit, and congestion control starts at 100 Gb/s.
    #[must_use]
    pub fn line_rate(mut self, line_rate: Rate) -> Self {
        self.line_rate = Some(line_rate);
        self
    }

    /// How RC queue pairs that say nothing else make up for losses; go-back-N unless said otherwise. Selective repeat is for
    /// our own peers only, and both ends have to be set so.
    #[must_use]
    pub fn recovery(mut self, recovery: Recovery) -> Self {
        self.recovery = Some(recovery);
        self
    }

    /// When RC queue pairs send again what was not answered: early, and not sooner than 537 ms otherwise, as ConnectX does, unless said
    /// otherwise. [`Retransmission::IBTA`] follows the local ACK timeout of a queue pair exactly.
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

    /// Whether in-band telemetry travels with datagrams, for congestion control that needs it (`hpcc`, `powertcp`): a trailer of 52 bytes
    /// behind the ICRC, into which switches write and which acknowledgements bring back. Off by default. **It is not part of a
    /// standard**: both ends have to be set so, and any other peer takes it for a wrong ICRC. It has to fit the link
    /// MTU together with the path MTU. `docs/congestion.md`, "In-band telemetry".
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

    /// The slot that queue pair numbers and communication IDs begin with. Unless said otherwise, it is the device's
    /// ([`Capabilities::process_slot`]): where it shares its address with other devices, no others will do.
    #[must_use]
    pub fn process_slot(mut self, slot: ProcessSlot) -> Self {
        self.process_slot = Some(slot);
        self
    }

    /// Opens the device that `spec` names, such as `udp:127.0.0.1`.
    ///
    /// # Errors
    ///
    /// When the device cannot be opened, or not for so many engines; the error says what to do.
    pub fn open(mut self, spec: &str) -> Result<Context, VerbsError> {
        let (first, others) = open_devices(spec, self.engines, std::mem::take(&mut self.options))?;
        self.build(first, others)
    }

    /// Takes a device that is open already, and puts the wrappers around it that were asked for.
    ///
    /// # Errors
    ///
    /// When the operating system refuses a descriptor or thread, or several engines were asked for, each of which needs a device.
    pub fn attach(mut self, device: Box<dyn Device>) -> Result<Context, VerbsError> {
        if self.engines != 1 {
            let problem =
                "one device is for one engine; use `open`, which opens a device for each".to_owned();
            return Err(VerbsError::Engines { engines: self.engines, problem });
        }
        let device = crate::device::wrap(device, std::mem::take(&mut self.options));
        self.build(device, Vec::new())
    }

    fn build(mut self, device: Box<dyn Device>, others: OtherDevices) -> Result<Context, VerbsError> {
        let mut random = self.seed.map_or_else(fastrand::Rng::new, fastrand::Rng::with_seed);
        let mut config = self.engine_config(&mut random, device.capabilities());
        check_slot(config.process_slot, device.capabilities())?;
        if config.limit_to_line_rate {
            config.line_rate = divided(config.line_rate, self.engines);
        }
        let others = others.into_iter().map(|device| {
            let mut config = config.clone();
            config.seed = self.secret(&mut random);
            config.process_slot = device.capabilities().process_slot;
            Opening { config, device, random: random.fork() }
        });
        let others = others.collect();
        let clock = self.clock.unwrap_or_else(Clock::start);
        let mut handle = Engines::new(Opening { config, device, random }, others, self.spin, clock)
            .map_err(VerbsError::io("making the descriptors of the context"))?;
        if self.background {
            handle.start_background().map_err(VerbsError::io("starting the progress thread"))?;
        }
        if self.publish
            && let Err(error) = handle.publish()
        {
            // Without the variable, the user did not ask for it.
            if std::env::var_os("ROCE_STAT").is_some() {
                tracing::warn!(%error, "roce stat cannot show this process");
            } else {
                tracing::debug!(%error, "roce stat cannot show this process");
            }
        }
        Ok(Context(Arc::new(handle)))
    }

    /// The secret of an engine: from the operating system unless a seed was given.
    fn secret(&self, random: &mut fastrand::Rng) -> [u8; 32] {
        let mut secret = [0; 32];
        if self.seed.is_some() || !fill_from_system(&mut secret) {
            random.fill(&mut secret);
        }
        secret
    }

    /// The engine's settings.
    fn engine_config(&mut self, random: &mut fastrand::Rng, capabilities: &Capabilities) -> EngineConfig {
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
        config.retransmission = self.retransmission;
        config.telemetry = self.telemetry;
        if let Some(tune) = self.tune.take() {
            tune(&mut config);
        }
        config
    }
}

/// Datagrams for another slot of a shared address arrive at another device.
fn check_slot(slot: ProcessSlot, capabilities: &Capabilities) -> Result<(), VerbsError> {
    let given = capabilities.process_slot;
    if given == ProcessSlot::NONE || given == slot {
        return Ok(());
    }
    let problem = format!(
        "the device shares its address and has slot {given}, but slot {slot} was asked for; leave `process_slot` out, or open \
         the device with share=off"
    );
    Err(VerbsError::io("choosing queue pair numbers")(std::io::Error::new(
        std::io::ErrorKind::InvalidInput,
        problem,
    )))
}

fn fill_from_system(seed: &mut [u8]) -> bool {
    use rustix::rand::{GetRandomFlags, getrandom};
    matches!(getrandom(&mut *seed, GetRandomFlags::empty()), Ok(count) if count == seed.len())
}
