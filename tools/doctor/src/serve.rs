//! The server, which waits to be examined.

use std::time::Duration;

use super::doctor::Doctor;
use super::probe::Probe;
use super::trips::RoundTrips;
use super::wire::{Admission, Introduction, TOOL, Trial, unreasonable};
use roce::observe::{Text, with_causes};
use roce_exchange::{Exchange, ToolError, tell_failure};

/// Time limit for an examination, because other clients wait.
const EXAMINATION: Duration = Duration::from_secs(300);

impl Doctor {
    /// Takes part in the examination by a connected client. Returns the number of problems that it found.
    ///
    /// # Errors
    ///
    /// The client breaks the rules or leaves, or a verb fails. The client is told of every error that is not
    /// its own.
    pub fn serve(&self, mut exchange: Exchange) -> Result<usize, ToolError> {
        let problems = serve(self, &mut exchange);
        tell_failure(&mut exchange, &problems);
        problems
    }
}

/// Takes part in one examination. Returns the number of problems that the client found.
fn serve(doctor: &Doctor, exchange: &mut Exchange) -> Result<usize, ToolError> {
    exchange.greet(TOOL)?;
    exchange.limit(Some(EXAMINATION));
    let peer: Introduction = exchange.receive("the introduction of a doctor")?;
    // Probes and messages go to the address that the client names.
    exchange.peers().check(peer.address)?;
    let probe = doctor.probe()?;
    exchange.send("the introduction", &probe.introduction()?)?;
    loop {
        match exchange.receive("the next test")? {
            Trial::Burst(burst) => {
                if !burst.is_reasonable() {
                    return Err(unreasonable(&format!("{} probes", burst.count)));
                }
                probe.burst(exchange, &burst, &peer)?;
            }
            Trial::Trips(trips) => {
                if !trips.is_reasonable() {
                    return Err(unreasonable(&format!("{} round trips", trips.count)));
                }
                let round_trips = RoundTrips::new(&probe, trips);
                let admission: Admission = match &round_trips {
                    Ok(round_trips) => Ok(round_trips.endpoint(&probe)?),
                    Err(error) => Err(with_causes(error).to_string()),
                };
                exchange.send("the queue pair for round trips", &admission)?;
                let Ok(round_trips) = round_trips else { continue };
                let other = exchange.receive("the queue pair for round trips")?;
                round_trips.connect(&probe, &peer, &other)?;
                let report = round_trips.return_all(&probe, exchange)?;
                let _: super::wire::TripReport = exchange.swap("the result of the round trips", &report)?;
            }
            Trial::End(problems) => return Ok(problems),
        }
    }
}

/// Runs the client's half of a trial of round trips.
pub(super) fn ask_for_trips(
    probe: &Probe,
    exchange: &mut Exchange,
    peer: &Introduction,
    trips: super::wire::Trips,
) -> Result<Result<[super::wire::TripReport; 2], String>, ToolError> {
    exchange.send("the next test", &Trial::Trips(trips))?;
    let admission: Admission = exchange.receive("the queue pair for round trips")?;
    let other = match admission {
        Ok(other) => other,
        Err(refusal) => {
            return Ok(Err(Text::new(&refusal).to_string()));
        }
    };
    let round_trips = RoundTrips::new(probe, trips)?;
    exchange.send("the queue pair for round trips", &round_trips.endpoint(probe)?)?;
    round_trips.connect(probe, peer, &other)?;
    let own = round_trips.send_all(probe, exchange)?;
    let theirs: super::wire::TripReport = exchange.swap("the result of the round trips", &own)?;
    let theirs = theirs.shown();
    Ok(Ok([own, theirs]))
}
