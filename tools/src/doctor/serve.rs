//! The side that waits to be examined.

use super::probe::Probe;
use super::trips::Traveller;
use super::wire::{Admission, Introduction, Trial};
use super::{Doctor, DoctorError};
use crate::exchange::Exchange;

/// Takes part in one examination; returns how many problems the client found.
pub(super) fn serve(doctor: &Doctor, mut exchange: Exchange) -> Result<usize, DoctorError> {
    let peer: Introduction = exchange.receive_first("the introduction of a doctor")?;
    let probe = doctor.probe()?;
    exchange.send("the introduction", &probe.introduction()?)?;
    loop {
        match exchange.receive("what to try next")? {
            Trial::Burst(burst) => {
                if !burst.is_reasonable() {
                    return Err(DoctorError::Unreasonable(format!("{} probes", burst.count)));
                }
                probe.burst(&mut exchange, &burst, &peer)?;
            }
            Trial::Trips(trips) => {
                if !trips.is_reasonable() {
                    return Err(DoctorError::Unreasonable(format!("{} round trips", trips.count)));
                }
                let traveller = Traveller::new(&probe, trips);
                let admission: Admission = match &traveller {
                    Ok(traveller) => Ok(traveller.endpoint(&probe)?),
                    Err(error) => Err(error.to_string()),
                };
                exchange.send("the queue pair for round trips", &admission)?;
                let Ok(traveller) = traveller else { continue };
                let other = exchange.receive("the queue pair for round trips")?;
                traveller.connect(&probe, &peer, &other)?;
                let report = traveller.back(&probe, &mut exchange)?;
                let _: super::wire::TripReport = exchange.swap("how the round trips went", &report)?;
            }
            Trial::End(problems) => return Ok(problems),
        }
    }
}

/// The client's half of a trial of round trips.
pub(super) fn ask_for_trips(
    probe: &Probe,
    exchange: &mut Exchange,
    peer: &Introduction,
    trips: super::wire::Trips,
) -> Result<Result<[super::wire::TripReport; 2], String>, DoctorError> {
    exchange.send("what to try next", &Trial::Trips(trips))?;
    let admission: Admission = exchange.receive("the queue pair for round trips")?;
    let other = match admission {
        Ok(other) => other,
        Err(refusal) => {
            return Ok(Err(refusal.chars().filter(|sign| !sign.is_control()).take(200).collect()));
        }
    };
    let traveller = Traveller::new(probe, trips)?;
    exchange.send("the queue pair for round trips", &traveller.endpoint(probe)?)?;
    traveller.connect(probe, peer, &other)?;
    let own = traveller.there(probe, exchange)?;
    let theirs = exchange.swap("how the round trips went", &own)?;
    Ok(Ok([own, theirs]))
}
