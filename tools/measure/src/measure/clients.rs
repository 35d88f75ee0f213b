//! A server of several clients at once. Each client has its own thread, queue pair and memory, so its results
//! are its own, and its failure ends no other measurement.

use std::net::IpAddr;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use roce_exchange::{Exchange, ExchangeError, Listening, ToolError};
use serde::Serialize;

use super::ServerOptions;
use super::run::{Served, serve};
use crate::harness::statistics::gigabits_per_s;
use roce::verbs::Context;

/// Time after which the end of a client is noticed.
const SLICE: Duration = Duration::from_millis(20);
/// Interval between two looks of a server without clients, which has nothing to notice.
const IDLE: Duration = Duration::from_secs(1);
/// Time that a client waits for one that is about to end, before it is refused.
const GRACE: Duration = Duration::from_millis(500);
/// Maximum number of clients in one [`Totals`], so that a list of them is bounded.
const MOST_IN_TOTALS: u64 = 1_000;

/// The numbers of clients that a server serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum number of clients at once, at least 1. Others are refused.
    pub at_once: usize,
    /// Number of clients after which the server ends; `None` if it does not end.
    pub in_all: Option<usize>,
    /// Addresses that packets may go to, besides the address that a client calls from.
    pub allow_peers: Vec<IpAddr>,
}

/// A server of several clients at once.
#[derive(Debug)]
pub struct Clients {
    listening: Listening,
    limits: Limits,
    options: ServerOptions,
    /// Clients that have called and were not refused because of the limits.
    called: usize,
    serving: Vec<Serving>,
    /// Clients that could not be served.
    unserved: Vec<Ended>,
    sum: Sum,
}

/// A client that is served.
#[derive(Debug)]
struct Serving {
    peer: String,
    thread: JoinHandle<Result<Served, ToolError>>,
}

/// The next thing that happens to a server.
#[derive(Debug)]
pub enum Event {
    /// A client has called. The caller continues with [`Clients::serve`] or [`Clients::refuse`].
    Called(Exchange),
    /// A client has ended.
    Ended(Ended),
    /// The totals of the clients that have ended since the previous totals. They come when no client is left;
    /// if the server ends after a number of clients, after all of them. A list is cut after 1,000 clients.
    Totals(Totals),
}

/// A client that has ended.
#[derive(Debug)]
pub struct Ended {
    /// Its address and port.
    pub peer: String,
    /// Its results.
    pub outcome: Result<Served, ToolError>,
}

/// Several clients together.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Totals {
    /// Clients that have ended.
    pub clients: u64,
    /// Those that were served.
    pub served: u64,
    /// Those that failed.
    pub failed: u64,
    /// Messages of the served clients.
    pub messages: u64,
    /// Bytes of these messages.
    pub bytes: u64,
    /// Time from the first message of a served client to the last message of one, in seconds.
    pub elapsed_s: f64,
    /// Payload bits per second in this time, in units of 10^9.
    pub gigabits_per_s: f64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    served: u64,
    failed: u64,
    messages: u64,
    bytes: u64,
    span: Option<(Instant, Instant)>,
}

impl Sum {
    fn clients(&self) -> u64 {
        self.served + self.failed
    }

    fn add(&mut self, outcome: &Result<Served, ToolError>) {
        let Ok(served) = outcome else {
            self.failed += 1;
            return;
        };
        self.served += 1;
        self.messages = self.messages.saturating_add(served.messages());
        self.bytes = self.bytes.saturating_add(served.bytes());
        let (began, ended) = self.span.unwrap_or((served.began, served.ended));
        self.span = Some((began.min(served.began), ended.max(served.ended)));
    }

    fn totals(&self) -> Totals {
        let elapsed = self.span.map_or(Duration::ZERO, |(began, ended)| ended.duration_since(began));
        let elapsed_s = elapsed.as_secs_f64();
        let rate = if elapsed.is_zero() { 0.0 } else { gigabits_per_s(self.bytes as f64, elapsed_s) };
        Totals {
            clients: self.clients(),
            served: self.served,
            failed: self.failed,
            messages: self.messages,
            bytes: self.bytes,
            elapsed_s,
            gigabits_per_s: rate,
        }
    }
}

impl Clients {
    /// Creates a server that accepts clients on these sockets.
    #[must_use]
    pub fn new(listening: Listening, limits: Limits, options: ServerOptions) -> Self {
        let (serving, unserved) = (Vec::new(), Vec::new());
        Self { listening, limits, options, called: 0, serving, unserved, sum: Sum::default() }
    }

    /// Waits for the next event. Returns `None` after the totals of the last client.
    ///
    /// # Errors
    ///
    /// The sockets do not accept clients any more.
    pub fn event(&mut self) -> Result<Option<Event>, ExchangeError> {
        loop {
            if let Some(ended) = self.take_ended() {
                return Ok(Some(Event::Ended(ended)));
            }
            let (is_idle, is_last) = (self.serving.is_empty(), self.is_last());
            let is_list_over = match self.limits.in_all {
                Some(_) => is_idle && is_last,
                None => is_idle || self.sum.clients() >= MOST_IN_TOTALS,
            };
            if is_list_over && self.sum.clients() > 0 {
                return Ok(Some(Event::Totals(std::mem::take(&mut self.sum).totals())));
            }
            if is_idle && is_last {
                return Ok(None);
            }
            let wait = if is_idle { IDLE } else { SLICE };
            if let Some(client) = Exchange::accept_within(&self.listening, wait)?
                && let Some(client) = self.admit(client)
            {
                return Ok(Some(Event::Called(client)));
            }
        }
    }

    /// Serves a client that has called, on a thread of its own.
    pub fn serve(&mut self, context: &Context, client: Exchange) {
        let peer = client.peer().to_owned();
        let (context, options) = (context.clone(), self.options);
        let work = move || serve(&context, client, &options);
        match std::thread::Builder::new().name("client".into()).spawn(work) {
            Ok(thread) => self.serving.push(Serving { peer, thread }),
            Err(error) => {
                let what = "cannot start a thread for the client; serve fewer clients at once";
                self.unserved.push(Ended { peer, outcome: Err(ToolError::Io { what, error }) });
            }
        }
    }

    /// Tells a client that has called why it cannot be served. It counts as a client that failed.
    pub fn refuse(&mut self, mut client: Exchange, reason: String) {
        client.fail(&reason);
        let peer = client.peer().to_owned();
        self.unserved.push(Ended { peer, outcome: Err(ToolError::Plan(reason)) });
    }

    /// Returns whether the server serves no further client.
    fn is_last(&self) -> bool {
        self.limits.in_all.is_some_and(|in_all| self.called >= in_all)
    }

    /// Returns the client if the limits allow it. Otherwise the client is told.
    fn admit(&mut self, mut client: Exchange) -> Option<Exchange> {
        let at_once = self.limits.at_once.max(1);
        if self.is_last() {
            client.fail("the server serves its last clients and then ends; start it again");
            return None;
        }
        if !self.has_room(at_once) {
            let clients = if at_once == 1 { "client" } else { "clients" };
            client.fail(&format!(
                "the server serves {at_once} {clients}; start it with --clients {}, or try again later",
                at_once + 1
            ));
            return None;
        }
        self.called += 1;
        Some(client.allow_peers(&self.limits.allow_peers))
    }

    /// Returns whether fewer clients than the limit are served. A client may call just after the end of
    /// another one, whose thread has not ended yet; therefore this waits for a moment.
    fn has_room(&self, at_once: usize) -> bool {
        let end = Instant::now() + GRACE;
        loop {
            let running = self.serving.iter().filter(|client| !client.thread.is_finished()).count();
            if running < at_once {
                return true;
            }
            if Instant::now() > end {
                return false;
            }
            std::thread::sleep(SLICE);
        }
    }

    /// Takes a client that has ended.
    fn take_ended(&mut self) -> Option<Ended> {
        let ended = self.unserved.pop().or_else(|| {
            let place = self.serving.iter().position(|client| client.thread.is_finished())?;
            let Serving { peer, thread } = self.serving.remove(place);
            let panicked = |_| Err(ToolError::Plan("the thread of this client panicked".into()));
            Some(Ended { peer, outcome: thread.join().unwrap_or_else(panicked) })
        })?;
        self.sum.add(&ended.outcome);
        Some(ended)
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use roce_testing::{own_address, within};

    use super::*;
    use crate::measure::{Completion, Op, Plan, Post, Signal, Tool, run_client};

    fn plan(tool: Tool, op: Op, iterations: u64) -> Plan {
        Plan {
            tool,
            op,
            sizes: vec![64, 4096],
            iterations,
            buffers: 16,
            inline: false,
            completion: Completion::Poll,
            post: Post::List,
            signal: Signal::Full,
            path_mtu: 1024,
            timeout: 16,
        }
    }

    /// Starts a server and returns its address and its thread, which ends after `in_all` clients.
    fn start(at_once: usize, in_all: usize) -> (SocketAddr, JoinHandle<(Vec<Ended>, Totals)>) {
        let address = own_address();
        let listening = Listening::at(address.into(), &[], 0).unwrap();
        let at = SocketAddr::new(address.into(), listening.port());
        let limits = Limits { at_once, in_all: Some(in_all), allow_peers: Vec::new() };
        let serving = std::thread::spawn(move || {
            let context = Context::open(&format!("udp:{address}")).unwrap();
            let mut clients = Clients::new(listening, limits, ServerOptions::default());
            let (mut all, mut totals) = (Vec::new(), None);
            while let Some(event) = clients.event().unwrap() {
                match event {
                    Event::Called(client) => clients.serve(&context, client),
                    Event::Ended(ended) => all.push(ended),
                    Event::Totals(found) => assert_eq!(totals.replace(found), None, "once, at the end"),
                }
            }
            (all, totals.unwrap())
        });
        (at, serving)
    }

    /// Runs a client on an address of its own; returns its rows.
    fn run(at: SocketAddr, plan: &Plan) -> Result<Vec<crate::measure::Row>, ToolError> {
        let context = Context::open(&format!("udp:{}", own_address())).unwrap();
        let exchange = Exchange::connect_from(&context, at)?;
        run_client(&context, exchange, plan, None, &mut |_| {})
    }

    #[test]
    fn three_clients_at_once_are_served_and_a_wrong_one_fails_alone() {
        within(120, || {
            let (at, serving) = start(4, 4);
            let plans = [
                plan(Tool::Blast, Op::Send, 2_000),
                plan(Tool::Ping, Op::Send, 200),
                plan(Tool::Blast, Op::Read, 500),
            ];
            std::thread::scope(|scope| {
                let good = plans.each_ref().map(|plan| scope.spawn(move || run(at, plan)));
                // Its plan is wrong, so the server refuses it.
                let wrong = scope.spawn(move || {
                    let context = Context::open(&format!("udp:{}", own_address())).unwrap();
                    let mut exchange = Exchange::connect_from(&context, at).unwrap();
                    exchange.greet("ping` or `roce blast").unwrap();
                    exchange.swap::<_, ()>("the plan", &"not a plan").unwrap_err().to_string()
                });
                assert!(wrong.join().unwrap().contains("did not send the plan"));
                for (client, plan) in good.into_iter().zip(&plans) {
                    let rows = client.join().unwrap().unwrap();
                    let sizes: Vec<usize> = rows.iter().map(|row| row.size).collect();
                    assert_eq!(sizes, plan.sizes);
                    assert!(rows.iter().all(|row| row.iterations == plan.iterations));
                }
            });
            let (all, totals) = serving.join().unwrap();
            assert_eq!((totals.clients, totals.served, totals.failed), (4, 3, 1));
            assert_eq!(totals.messages, 2 * (2_000 + 2 * 200 + 500));
            assert_eq!(totals.bytes, (64 + 4096) * (2_000 + 2 * 200 + 500));
            assert!(totals.elapsed_s > 0.0 && totals.gigabits_per_s > 0.0);
            let mut peers: Vec<&str> = all.iter().map(|ended| ended.peer.as_str()).collect();
            peers.sort_unstable();
            peers.dedup();
            assert_eq!(peers.len(), 4, "{peers:?}");
            for served in all.iter().filter_map(|ended| ended.outcome.as_ref().ok()) {
                assert!(plans.contains(&served.plan));
                assert!(served.rows.iter().all(|row| row.elapsed_s > 0.0 && row.percentiles_us.is_none()));
            }
        });
    }

    #[test]
    fn a_client_above_the_limit_is_told_the_limit_and_another_takes_a_free_place() {
        within(120, || {
            let (at, serving) = start(1, 2);
            let context = Context::open(&format!("udp:{}", own_address())).unwrap();
            // A client that has a place and does not begin yet.
            let mut first = Exchange::connect_from(&context, at).unwrap();
            first.greet("ping` or `roce blast").unwrap();
            let refused = run(at, &plan(Tool::Ping, Op::Send, 5)).unwrap_err().to_string();
            assert!(refused.contains("serves 1 client; start it with --clients 2"), "{refused}");
            drop(first);
            // The server notices the end of the first client in its own time.
            let served = (0..100).find_map(|_| run(at, &plan(Tool::Ping, Op::Send, 5)).ok());
            assert_eq!(served.map(|rows| rows.len()), Some(2));
            let (_, totals) = serving.join().unwrap();
            assert_eq!((totals.served, totals.failed), (1, 1));
        });
    }
}
