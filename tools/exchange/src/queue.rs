//! The queue of clients that wait for their turn.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::error::ExchangeError;
use crate::exchange::Exchange;
use crate::lines::Busy;
use crate::listening::Listening;

/// Maximum number of waiting clients.
pub const MOST_WAITING: usize = 16;
/// Interval at which waiting clients are told their place.
const EVERY: Duration = Duration::from_secs(2);
/// Time that a thread may take to end after the request.
const SLICE: Duration = Duration::from_millis(100);

/// A queue that accepts clients while one client is served. It tells the others which client is served and
/// their place.
#[derive(Debug)]
pub struct ClientQueue {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<Exchange>,
    serving: Option<String>,
    failure: Option<ExchangeError>,
    is_over: bool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Tells every waiting client its place, and drops those that have left.
    fn tell_places(&mut self) {
        let Some(serving) = self.serving.clone() else { return };
        let mut position = 0;
        self.waiting.retain_mut(|client| {
            position += 1;
            let stays =
                !client.has_left() && client.tell_busy(&Busy { position, serving: serving.clone() }).is_ok();
            if !stays {
                position -= 1;
            }
            stays
        });
    }

    fn add(&mut self, mut client: Exchange) {
        if self.waiting.len() >= MOST_WAITING {
            let serving = self.serving.as_deref().unwrap_or("another client");
            client.fail(&format!(
                "the server is busy with {serving}, and {MOST_WAITING} clients wait; try again later"
            ));
            return;
        }
        self.waiting.push_back(client);
        self.tell_places();
    }
}

impl ClientQueue {
    /// Starts to accept clients.
    ///
    /// # Errors
    ///
    /// The operating system refuses a thread.
    pub fn new(listening: Listening) -> Result<Self, ExchangeError> {
        let shared = Arc::new(Shared::default());
        let port = listening.port();
        let accepting = Arc::clone(&shared);
        let thread =
            std::thread::Builder::new().name("clients".into()).spawn(move || accept(&listening, &accepting));
        let failed = |source| ExchangeError::Listen { address: format!("TCP port {port}"), source };
        Ok(Self { shared, thread: Some(thread.map_err(failed)?) })
    }

    /// Waits for the next client, and stops serving the previous one.
    ///
    /// # Errors
    ///
    /// The listener failed.
    pub fn next(&self) -> Result<Exchange, ExchangeError> {
        let mut state = self.shared.lock();
        state.serving = None;
        loop {
            while let Some(mut client) = state.waiting.pop_front() {
                if !client.has_left() {
                    state.serving = Some(client.peer().to_owned());
                    state.tell_places();
                    return Ok(client);
                }
            }
            if let Some(error) = state.failure.take() {
                return Err(error);
            }
            state = self.shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Drop for ClientQueue {
    fn drop(&mut self) {
        let waiting = {
            let mut state = self.shared.lock();
            state.is_over = true;
            std::mem::take(&mut state.waiting)
        };
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        for mut client in waiting {
            client.fail("the server has ended; start it again, without --once to serve several clients");
        }
    }
}

fn accept(listening: &Listening, shared: &Shared) {
    let mut told = Instant::now();
    loop {
        let accepted = Exchange::accept_within(listening, SLICE);
        let mut state = shared.lock();
        if state.is_over {
            return;
        }
        match accepted {
            Ok(Some(client)) => {
                state.add(client);
                shared.changed.notify_all();
            }
            Ok(None) => {}
            Err(error) => {
                state.failure = Some(error);
                shared.changed.notify_all();
                return;
            }
        }
        if told.elapsed() >= EVERY {
            state.tell_places();
            told = Instant::now();
        }
    }
}
