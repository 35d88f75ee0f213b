//! A bridge that loses, marks, delays and queues packets, in a thread of its own.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use roce_bridge::{Bridge as Engine, Counts, Observer, Runner, Scenario, Side};

use crate::errors::exception;

/// Time between two readings of the counters.
const INTERVAL: Duration = Duration::from_millis(50);

/// A running bridge between two devices. It runs until `close`.
#[pyclass(frozen, module = "roce")]
pub(crate) struct Bridge {
    counts: Arc<Mutex<[Counts; 2]>>,
    running: Mutex<Option<Running>>,
}

/// The thread, and the end of a stream whose other end tells the thread to stop.
struct Running {
    thread: JoinHandle<PyResult<()>>,
    stop: UnixStream,
}

#[pymethods]
impl Bridge {
    /// Opens both devices and begins to forward. `settings` is the text of a file of `roce bridge`.
    #[new]
    #[pyo3(signature = (left, right, *, settings="", capture=None))]
    fn new(
        py: Python<'_>,
        left: String,
        right: String,
        settings: &str,
        capture: Option<PathBuf>,
    ) -> PyResult<Self> {
        let load = |name: &str| std::fs::read_to_string(name).map_err(|error| format!("{name}: {error}"));
        let scenario = Scenario::parse(settings, &load).map_err(|error| exception(&error))?;
        if left == right {
            return Err(PyValueError::new_err(format!("both devices are {left}; a bridge needs two")));
        }
        let counts = Arc::new(Mutex::new([Counts::default(); 2]));
        let (stop, stopped) = UnixStream::pair()?;
        let (opened, is_open) = mpsc::channel();
        let live = Live { stopped, next: Duration::ZERO, counts: counts.clone() };
        // A device stays in the thread that opened it.
        let thread = thread::Builder::new().name("roce-bridge".to_owned()).spawn(move || {
            let mut runner = match open(&scenario, [&left, &right], capture) {
                Ok(runner) => runner,
                Err(error) => {
                    // The receiver waits for this.
                    _ = opened.send(Err(error));
                    return Ok(());
                }
            };
            _ = opened.send(Ok(()));
            let mut live = live;
            runner.run(&mut live).map_err(|error| exception(&error))
        })?;
        let ended = || PyRuntimeError::new_err("the thread of the bridge ended");
        py.detach(move || is_open.recv()).map_err(|_| ended())??;
        Ok(Self { counts, running: Mutex::new(Some(Running { thread, stop })) })
    }

    /// Returns the counters of the packets from the left and from the right.
    #[getter]
    fn counters(&self) -> PyResult<(BTreeMap<String, u64>, BTreeMap<String, u64>)> {
        let [left, right] = *self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        Ok((by_name(&left)?, by_name(&right)?))
    }

    /// Ends the bridge. Raises the exception that ended it before.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let running = self.running.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(Running { thread, stop }) = running else { return Ok(()) };
        drop(stop);
        let ended = || PyRuntimeError::new_err("the thread of the bridge failed");
        py.detach(|| thread.join()).map_err(|_| ended())?
    }

    fn __enter__(this: Py<Self>) -> Py<Self> {
        this
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyTuple>) -> PyResult<()> {
        self.close(py)
    }
}

fn open(scenario: &Scenario, devices: [&str; 2], capture: Option<PathBuf>) -> PyResult<Runner> {
    let mut runner = Runner::open(&scenario.settings, devices).map_err(|error| exception(&error))?;
    if let Some(path) = capture {
        runner.capture(&path).map_err(|error| exception(&error))?;
    }
    Ok(runner)
}

/// Returns the counters by name.
fn by_name(counts: &Counts) -> PyResult<BTreeMap<String, u64>> {
    let value = serde_json::to_value(counts).map_err(|error| exception(&error))?;
    let counters = value.as_object().into_iter().flatten();
    Ok(counters.filter_map(|(name, value)| Some((name.clone(), value.as_u64()?))).collect())
}

/// Reads the counters of a bridge while it runs.
struct Live {
    stopped: UnixStream,
    next: Duration,
    counts: Arc<Mutex<[Counts; 2]>>,
}

impl Observer for Live {
    fn end(&self) -> Option<BorrowedFd<'_>> {
        Some(self.stopped.as_fd())
    }

    fn next(&self) -> Duration {
        self.next
    }

    fn observe(&mut self, since_start: Duration, bridge: &Engine) -> ControlFlow<()> {
        self.next = since_start + INTERVAL;
        let counts = Side::BOTH.map(|side| bridge.counts(side));
        *self.counts.lock().unwrap_or_else(PoisonError::into_inner) = counts;
        ControlFlow::Continue(())
    }
}
