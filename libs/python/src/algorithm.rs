//! A congestion control whose decisions are those of an object of Python.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::PyTuple;
use roce_transport::Instant;
use roce_transport::congestion::{Ack, Algorithm, CongestionControl, Loss, Rate, Start};

/// The first exception that an algorithm raised. Later calls are left out, because an algorithm of the engine
/// cannot fail.
#[derive(Clone, Default)]
pub(crate) struct Failure(Arc<Mutex<Option<PyErr>>>);

impl Failure {
    /// Raises the exception.
    pub(crate) fn check(&self) -> PyResult<()> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take().map_or(Ok(()), Err)
    }

    fn set(&self, error: PyErr) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
    }
}

/// Returns an algorithm that creates an object of `class` for each queue pair.
pub(crate) fn algorithm(name: &str, class: Py<PyAny>, failure: Failure) -> Algorithm {
    Algorithm::custom(kept(name), move |start| {
        let made = Python::attach(|py| PythonControl::new(py, &class, start, failure.clone()));
        match made {
            Ok(control) => Box::new(control),
            Err(error) => {
                failure.set(error);
                Box::new(Unlimited)
            }
        }
    })
}

/// Returns a name that lives as long as the program. Each name is kept once.
fn kept(name: &str) -> &'static str {
    static NAMES: Mutex<BTreeMap<String, &'static str>> = Mutex::new(BTreeMap::new());
    let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    names.entry(name.to_owned()).or_insert_with(|| Box::leak(name.to_owned().into_boxed_str()))
}

/// Replaces an algorithm that could not be created, until the simulation ends.
#[derive(Debug)]
struct Unlimited;

impl CongestionControl for Unlimited {}

/// The methods that a class may have.
const METHODS: [&str; 5] = ["on_send", "on_ack", "on_cnp", "on_loss", "on_timer"];

/// An object of Python, and its decisions after the last call.
struct PythonControl {
    object: Py<PyAny>,
    /// The methods in the order of [`METHODS`]; `None` if the class does not have its own.
    methods: [Option<Py<PyAny>>; METHODS.len()],
    rate: Rate,
    window: Option<u64>,
    next_timer: Option<Instant>,
    failure: Failure,
}

impl PythonControl {
    fn new(py: Python<'_>, class: &Py<PyAny>, start: &Start, failure: Failure) -> PyResult<Self> {
        let rate = start.line_rate.get();
        let object = class.bind(py).call1((start.now.as_nanos(), start.qpn.get(), start.mtu, rate))?;
        let base = py.import("roce.sim")?.getattr("Algorithm")?;
        let mut methods = [const { None }; METHODS.len()];
        for (method, name) in methods.iter_mut().zip(METHODS) {
            let own = object.get_type().getattr(name)?;
            if !own.is(&base.getattr(name)?) {
                *method = Some(object.getattr(name)?.unbind());
            }
        }
        let mut control = Self {
            object: object.unbind(),
            methods,
            rate: Rate::UNLIMITED,
            window: None,
            next_timer: None,
            failure,
        };
        control.read(py)?;
        Ok(control)
    }

    /// Reads the decisions of the object.
    fn read(&mut self, py: Python<'_>) -> PyResult<()> {
        let object = self.object.bind(py);
        let rate: Option<f64> = object.getattr("rate")?.extract()?;
        // Casts of floating-point numbers saturate.
        self.rate = rate.map_or(Rate::UNLIMITED, |rate| Rate::bits_per_second(rate as u64));
        let window: Option<f64> = object.getattr("window")?.extract()?;
        self.window = window.map(|window| window as u64);
        let timer: Option<f64> = object.getattr("next_timer")?.extract()?;
        self.next_timer = timer.map(|timer| Instant::from_nanos(timer as u64));
        Ok(())
    }

    /// Calls a method, if the class has it, and reads the decisions.
    fn call<A>(&mut self, index: usize, arguments: A)
    where
        A: for<'py> IntoPyObject<'py, Target = PyTuple, Output = Bound<'py, PyTuple>, Error = PyErr>,
    {
        let Some(Some(_)) = self.methods.get(index) else { return };
        let called = Python::attach(|py| {
            if let Some(Some(method)) = self.methods.get(index) {
                method.bind(py).call1(arguments.into_pyobject(py)?)?;
            }
            self.read(py)
        });
        if let Err(error) = called {
            self.failure.set(error);
            self.methods = [const { None }; METHODS.len()];
            self.next_timer = None;
        }
    }
}

impl fmt::Debug for PythonControl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PythonControl").field("rate", &self.rate).field("window", &self.window).finish()
    }
}

impl CongestionControl for PythonControl {
    fn on_send(&mut self, now: Instant, bytes: u32) {
        self.call(0, (now.as_nanos(), bytes));
    }

    fn on_ack(&mut self, now: Instant, ack: &Ack) {
        let rtt = ack.rtt.map(|rtt: Duration| rtt.as_nanos() as u64);
        self.call(1, (now.as_nanos(), ack.bytes, ack.in_flight, rtt, ack.marked));
    }

    fn on_cnp(&mut self, now: Instant) {
        self.call(2, (now.as_nanos(),));
    }

    fn on_loss(&mut self, now: Instant, loss: Loss) {
        self.call(3, (now.as_nanos(), loss == Loss::Timeout));
    }

    fn on_timer(&mut self, now: Instant) {
        // A timer that stays where it is would be due again at once.
        let before = self.next_timer.take();
        self.call(4, (now.as_nanos(),));
        self.next_timer = self.next_timer.filter(|timer| before != Some(*timer) && *timer > now);
    }

    fn next_timer(&self) -> Option<Instant> {
        self.next_timer
    }

    fn rate(&self) -> Rate {
        self.rate
    }

    fn window(&self) -> Option<u64> {
        self.window
    }
}
