//! Devices, and connected ends.

use std::collections::BTreeMap;
use std::future::Future;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context as TaskContext, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use pyo3::exceptions::{PyTimeoutError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};
use roce::PeerOptions;
use roce::verbs::{Congestion, Context};
use roce_device::OpenOptions;
use roce_device::pcap::CaptureFile;
use roce_fault::{FaultInjector, FaultPlan};

use crate::errors::exception;

/// Longest time until an interrupt of the user is noticed.
const SLICE: Duration = Duration::from_millis(50);

/// A device with its queue pairs. It is open until `close`.
#[pyclass(frozen, module = "roce")]
pub(crate) struct Device {
    spec: String,
    context: Mutex<Option<Context>>,
    capture: Option<CaptureFile>,
}

#[pymethods]
impl Device {
    /// Opens a device.
    #[new]
    #[pyo3(signature = (spec, *, fault=None, receive_fault=None, capture=None, seed=None, congestion=None))]
    fn new(
        py: Python<'_>,
        spec: String,
        fault: Option<&str>,
        receive_fault: Option<&str>,
        capture: Option<PathBuf>,
        seed: Option<u64>,
        congestion: Option<&str>,
    ) -> PyResult<Self> {
        let plan = |text: Option<&str>| text.map(str::parse::<FaultPlan>).transpose();
        let (sent, received) = (
            plan(fault).map_err(|error| exception(&error))?,
            plan(receive_fault).map_err(|error| exception(&error))?,
        );
        let congestion = congestion.map(Congestion::parse).transpose().map_err(|error| exception(&error))?;
        let file = capture.map(|path| CaptureFile::create(&path, &[&spec]));
        let files = file.transpose().map_err(|error| exception(&error))?;
        let capture = files.and_then(|files| files.into_iter().next());
        let mut options = OpenOptions::default();
        let of_faults = seed.unwrap_or(0);
        options.transmit_faults = sent.map(|plan| FaultInjector::new(plan, of_faults));
        options.receive_faults = received.map(|plan| FaultInjector::new(plan, !of_faults));
        if let Some(capture) = &capture {
            options.capture = Some(Box::new(capture.clone()));
        }
        let mut builder = Context::builder().options(options);
        if let Some(seed) = seed {
            builder = builder.seed(seed);
        }
        if let Some(congestion) = congestion {
            builder = builder.congestion(congestion);
        }
        let context = py.detach(|| builder.open(&spec)).map_err(|error| exception(&error))?;
        Ok(Self { spec, context: Mutex::new(Some(context)), capture })
    }

    /// The text that the device was opened with.
    #[getter]
    fn spec(&self) -> &str {
        &self.spec
    }

    /// The address of the device, or `None` if it serves several.
    #[getter]
    fn address(&self) -> PyResult<Option<String>> {
        Ok(self.open()?.address().map(|address| address.to_string()))
    }

    /// Returns the counters by name.
    fn counters(&self) -> PyResult<BTreeMap<&'static str, u64>> {
        let mut counters = BTreeMap::new();
        self.open()?.visit_counters(&mut |name, value| {
            counters.insert(name, value);
        });
        Ok(counters)
    }

    /// Connects to an address with its port.
    #[pyo3(signature = (address, *, memory=65536, message=4096, buffers=64, operations=128, timeout=None))]
    #[expect(clippy::too_many_arguments, reason = "they are keywords in Python")]
    fn connect(
        &self,
        py: Python<'_>,
        address: &str,
        memory: usize,
        message: usize,
        buffers: usize,
        operations: usize,
        timeout: Option<f64>,
    ) -> PyResult<Peer> {
        let options = options(memory, message, buffers, operations).context(&self.open()?);
        let address = socket_address(address)?;
        let connected = block_on(py, Box::pin(options.connect_async(address)), timeout)?;
        connected.map(Peer::new).map_err(|error| exception(&error))
    }

    /// Listens at a port; 0 lets the device choose one.
    #[pyo3(signature = (port=0, *, memory=65536, message=4096, buffers=64, operations=128))]
    fn listen(
        &self,
        port: u16,
        memory: usize,
        message: usize,
        buffers: usize,
        operations: usize,
    ) -> PyResult<Listener> {
        let context = self.open()?;
        let no_address = || PyValueError::new_err(format!("{} has no address to listen at", self.spec));
        let at = SocketAddr::new(context.address().ok_or_else(no_address)?, port);
        let options = options(memory, message, buffers, operations).context(&context);
        let listener = options.listen(at).map_err(|error| exception(&error))?;
        Ok(Listener(Mutex::new(Some(Arc::new(listener)))))
    }

    /// Closes the device once its peers and listeners are closed, and completes the capture.
    fn close(&self, py: Python<'_>) {
        let context = lock(&self.context).take();
        py.detach(|| drop(context));
        if let Some(capture) = &self.capture {
            capture.flush();
        }
    }

    fn __enter__(this: Py<Self>) -> Py<Self> {
        this
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyTuple>) {
        self.close(py);
    }
}

impl Device {
    fn open(&self) -> PyResult<Context> {
        let closed = || PyValueError::new_err(format!("the device {} is closed", self.spec));
        lock(&self.context).clone().ok_or_else(closed)
    }
}

/// Accepts peers.
#[pyclass(frozen, module = "roce")]
pub(crate) struct Listener(Mutex<Option<Arc<roce::Listener>>>);

#[pymethods]
impl Listener {
    /// The address with the port that peers connect to.
    #[getter]
    fn address(&self) -> PyResult<String> {
        Ok(self.open()?.address().to_string())
    }

    /// Waits for a peer.
    #[pyo3(signature = (timeout=None))]
    fn accept(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Peer> {
        let listener = self.open()?;
        let accepted = block_on(py, Box::pin(listener.accept_async()), timeout)?;
        accepted.map(Peer::new).map_err(|error| exception(&error))
    }

    /// Refuses peers that were not accepted.
    fn close(&self, py: Python<'_>) {
        let listener = lock(&self.0).take();
        py.detach(|| drop(listener));
    }

    fn __enter__(this: Py<Self>) -> Py<Self> {
        this
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyTuple>) {
        self.close(py);
    }
}

impl Listener {
    fn open(&self) -> PyResult<Arc<roce::Listener>> {
        lock(&self.0).clone().ok_or_else(|| PyValueError::new_err("the listener is closed"))
    }
}

/// Connects two devices of this process; returns both ends.
#[pyfunction]
pub(crate) fn connect_pair(
    py: Python<'_>,
    near: &Device,
    far: &Device,
    memory: usize,
    message: usize,
    buffers: usize,
    operations: usize,
) -> PyResult<(Peer, Peer)> {
    let options = || options(memory, message, buffers, operations);
    let far = far.open()?;
    let no_address = || PyValueError::new_err("the second device has no address");
    let at = SocketAddr::new(far.address().ok_or_else(no_address)?, 0);
    let listener = options().context(&far).listen(at).map_err(|error| exception(&error))?;
    let (near, to) = (options().context(&near.open()?), listener.address());
    let both = async {
        let (mut connected, mut accepted) = (pin!(near.connect_async(to)), pin!(listener.accept_async()));
        let (mut near, mut far) = (None, None);
        std::future::poll_fn(|task| {
            for_ready(&mut near, connected.as_mut(), task);
            for_ready(&mut far, accepted.as_mut(), task);
            match (near.take(), far.take()) {
                (Some(Ok(one)), Some(Ok(other))) => Poll::Ready(Ok((one, other))),
                (Some(Err(error)), _) | (_, Some(Err(error))) => Poll::Ready(Err(error)),
                (one, other) => {
                    (near, far) = (one, other);
                    Poll::Pending
                }
            }
        })
        .await
    };
    let ends: Result<_, roce::Error> = block_on(py, Box::pin(both), None)?;
    ends.map(|(near, far)| (Peer::new(near), Peer::new(far))).map_err(|error| exception(&error))
}

/// Polls a future that has no result yet.
fn for_ready<F: Future>(result: &mut Option<F::Output>, future: Pin<&mut F>, task: &mut TaskContext<'_>) {
    if result.is_none()
        && let Poll::Ready(ready) = future.poll(task)
    {
        *result = Some(ready);
    }
}

/// Memory of the other end of a connection.
#[pyclass(frozen, get_all, eq, module = "roce")]
#[derive(Clone, PartialEq)]
pub(crate) struct RemoteMemory {
    /// First virtual address.
    address: u64,
    /// Length in bytes.
    length: u64,
    /// Remote key.
    r_key: u32,
}

#[pymethods]
impl RemoteMemory {
    #[new]
    const fn new(address: u64, length: u64, r_key: u32) -> Self {
        Self { address, length, r_key }
    }

    /// Returns a part of the memory. Without a length, it reaches to the end.
    #[pyo3(signature = (offset, length=None))]
    fn part(&self, offset: u64, length: Option<u64>) -> PyResult<Self> {
        let end = length.map_or(Some(self.length), |length| offset.checked_add(length));
        let part = end.and_then(|end| self.native().slice(offset..end).ok());
        let outside = || PyValueError::new_err(format!("the memory has only {} bytes", self.length));
        part.map(Self::of).ok_or_else(outside)
    }
}

impl RemoteMemory {
    const fn of(memory: roce::verbs::RemoteMemory) -> Self {
        Self { address: memory.addr, length: memory.len, r_key: memory.rkey }
    }

    const fn native(&self) -> roce::verbs::RemoteMemory {
        roce::verbs::RemoteMemory { addr: self.address, len: self.length, rkey: self.r_key }
    }
}

/// One end of a connection.
#[pyclass(frozen, module = "roce")]
pub(crate) struct Peer(Mutex<Option<Arc<roce::Peer>>>);

#[pymethods]
impl Peer {
    /// The memory that the other end offers.
    #[getter]
    fn remote(&self) -> PyResult<RemoteMemory> {
        Ok(RemoteMemory::of(self.open()?.remote()))
    }

    /// The number of the queue pair.
    #[getter]
    fn qpn(&self) -> PyResult<u32> {
        Ok(self.open()?.qp().number().get())
    }

    /// Sends a message to the next `receive` of the other end.
    fn send(&self, message: &[u8]) -> PyResult<Operation> {
        self.start(|peer| peer.send(message).map(Pending::Nothing))
    }

    /// Returns the next message of the other end.
    #[pyo3(signature = (timeout=None))]
    fn receive<'py>(&self, py: Python<'py>, timeout: Option<f64>) -> PyResult<Bound<'py, PyAny>> {
        Operation::new(Pending::Bytes(self.open()?.receive())).wait(py, timeout)
    }

    /// Writes bytes into memory of the other end.
    fn write(&self, to: &RemoteMemory, bytes: &[u8]) -> PyResult<Operation> {
        self.start(|peer| peer.write(to.native(), bytes).map(Pending::Nothing))
    }

    /// Reads memory of the other end.
    #[pyo3(name = "read")]
    fn read_remote(&self, from: &RemoteMemory) -> PyResult<Operation> {
        self.start(|peer| peer.read(from.native()).map(Pending::Bytes))
    }

    /// Adds to a number in memory of the other end; the result is the number before.
    fn fetch_add(&self, at: &RemoteMemory, add: u64) -> PyResult<Operation> {
        self.start(|peer| peer.fetch_add(at.native(), add).map(Pending::Number))
    }

    /// Replaces a number in memory of the other end if it is `compare`; the result is the number before.
    fn compare_swap(&self, at: &RemoteMemory, compare: u64, swap: u64) -> PyResult<Operation> {
        self.start(|peer| peer.compare_swap(at.native(), compare, swap).map(Pending::Number))
    }

    /// Returns bytes of the memory that this end offers. Without a length, they reach to the end.
    #[pyo3(signature = (offset=0, length=None))]
    fn memory<'py>(
        &self,
        py: Python<'py>,
        offset: usize,
        length: Option<usize>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let peer = self.open()?;
        let memory = peer.memory();
        let length = length.unwrap_or_else(|| memory.len().saturating_sub(offset));
        if length > memory.len() {
            return Err(PyValueError::new_err(format!("the memory has only {} bytes", memory.len())));
        }
        let mut bytes = vec![0; length];
        memory.read(offset, &mut bytes).map_err(|error| exception(&error))?;
        Ok(PyBytes::new(py, &bytes))
    }

    /// Changes the memory that this end offers.
    fn set_memory(&self, offset: usize, bytes: &[u8]) -> PyResult<()> {
        self.open()?.memory().write(offset, bytes).map_err(|error| exception(&error))
    }

    /// Ends the connection, once its operations are done or dropped.
    fn close(&self, py: Python<'_>) {
        let peer = lock(&self.0).take();
        py.detach(|| drop(peer));
    }

    fn __enter__(this: Py<Self>) -> Py<Self> {
        this
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyTuple>) {
        self.close(py);
    }
}

impl Peer {
    fn new(peer: roce::Peer) -> Self {
        Self(Mutex::new(Some(Arc::new(peer))))
    }

    fn open(&self) -> PyResult<Arc<roce::Peer>> {
        lock(&self.0).clone().ok_or_else(|| PyValueError::new_err("the peer is closed"))
    }

    fn start(&self, post: impl FnOnce(&roce::Peer) -> Result<Pending, roce::Error>) -> PyResult<Operation> {
        post(self.open()?.as_ref()).map(Operation::new).map_err(|error| exception(&error))
    }
}

/// An operation by the type of its result.
enum Pending {
    Nothing(roce::Operation),
    Bytes(roce::Operation<Vec<u8>>),
    Number(roce::Operation<u64>),
}

/// The result of an operation.
enum Done {
    Nothing,
    Bytes(Vec<u8>),
    Number(u64),
}

impl Pending {
    fn wait(&mut self, timeout: Duration) -> Result<Done, roce::Error> {
        match self {
            Self::Nothing(operation) => operation.wait_timeout(timeout).map(|()| Done::Nothing),
            Self::Bytes(operation) => operation.wait_timeout(timeout).map(Done::Bytes),
            Self::Number(operation) => operation.wait_timeout(timeout).map(Done::Number),
        }
    }
}

/// An operation that has begun.
#[pyclass(frozen, module = "roce")]
pub(crate) struct Operation(Mutex<Pending>);

#[pymethods]
impl Operation {
    /// Waits until the operation is done, and returns its result.
    #[pyo3(signature = (timeout=None))]
    fn wait<'py>(&self, py: Python<'py>, timeout: Option<f64>) -> PyResult<Bound<'py, PyAny>> {
        let deadline = deadline(timeout)?;
        loop {
            let slice = slice(deadline);
            let done = py.detach(|| lock(&self.0).wait(slice));
            py.check_signals()?;
            return match done {
                Err(roce::Error::TimedOut) if !is_over(deadline) => continue,
                Err(error @ roce::Error::TimedOut) => Err(PyTimeoutError::new_err(error.to_string())),
                Err(error) => Err(exception(&error)),
                Ok(Done::Nothing) => Ok(py.None().into_bound(py)),
                Ok(Done::Bytes(bytes)) => Ok(PyBytes::new(py, &bytes).into_any()),
                Ok(Done::Number(number)) => Ok(number.into_pyobject(py)?.into_any()),
            };
        }
    }
}

impl Operation {
    const fn new(pending: Pending) -> Self {
        Self(Mutex::new(pending))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn options(memory: usize, message: usize, buffers: usize, operations: usize) -> PeerOptions {
    PeerOptions::default().memory(memory).message(message).buffers(buffers).operations(operations)
}

fn socket_address(text: &str) -> PyResult<SocketAddr> {
    let wrong =
        |_| PyValueError::new_err(format!("{text:?} is not an address with a port, such as 10.0.0.1:7000"));
    text.parse().map_err(wrong)
}

/// Returns the end of a time limit in seconds.
fn deadline(timeout: Option<f64>) -> PyResult<Option<Instant>> {
    let Some(seconds) = timeout else { return Ok(None) };
    let wrong = |_| PyValueError::new_err(format!("{seconds} is not a time limit in seconds"));
    let timeout = Duration::try_from_secs_f64(seconds).map_err(wrong)?;
    // A limit beyond the range of the clock is never reached.
    Ok(Instant::now().checked_add(timeout))
}

fn is_over(deadline: Option<Instant>) -> bool {
    deadline.is_some_and(|deadline| deadline <= Instant::now())
}

/// Returns how long to wait until the next look at the signals.
fn slice(deadline: Option<Instant>) -> Duration {
    deadline.map_or(SLICE, |deadline| SLICE.min(deadline.saturating_duration_since(Instant::now())))
}

/// Wakes a thread up.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Waits for a future, while other threads of Python run.
fn block_on<T: Send>(
    py: Python<'_>,
    mut future: Pin<Box<dyn Future<Output = T> + Send + '_>>,
    timeout: Option<f64>,
) -> PyResult<T> {
    let deadline = deadline(timeout)?;
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    loop {
        let slice = slice(deadline);
        let polled = py.detach(|| {
            let polled = future.as_mut().poll(&mut TaskContext::from_waker(&waker));
            if polled.is_pending() {
                thread::park_timeout(slice);
            }
            polled
        });
        if let Poll::Ready(result) = polled {
            return Ok(result);
        }
        py.check_signals()?;
        if is_over(deadline) {
            return Err(PyTimeoutError::new_err("the time limit expired"));
        }
    }
}
