//! The loop between the interpreter and a NIC in virtual time.
//!
//! Packets arrive at the moment in which they are sent. Therefore the times of a script are those of the NIC
//! alone.

use roce_packet::Path;
use roce_transport::Instant;

use crate::run::{Answer, Output, Refusal, Report, Request, Run};
use crate::script::Script;

/// Time at which every script begins.
const BEGIN: Instant = Instant::from_nanos(1_000_000_000);
/// Maximum number of packets of the NIC at one moment, so that a faulty NIC cannot send forever.
const MOST_AT_ONCE: usize = 10_000;
/// Maximum number of events of one script.
const MOST_EVENTS: usize = 1_000_000;

/// A NIC in virtual time.
pub trait VirtualNic {
    /// Carries out a request of the script.
    ///
    /// # Errors
    ///
    /// Returns why the request was not carried out.
    fn answer(&mut self, now: Instant, request: &Request) -> Result<Answer, Refusal>;

    /// Takes a packet of the script.
    fn receive(&mut self, now: Instant, path: &Path, packet: &[u8]);

    /// Returns the next packet that the NIC sends now, with its IPv4 Identification.
    fn transmit(&mut self, now: Instant) -> Option<(Path, u16, Vec<u8>)>;

    /// Returns the time of the next timer.
    fn deadline(&self) -> Option<Instant>;

    /// Handles the timers that are due.
    fn handle_timeout(&mut self, now: Instant);
}

/// Runs a script against a NIC in virtual time.
pub fn run_virtual(script: &Script, nic: &mut dyn VirtualNic) -> Report {
    let mut run = Run::new(script);
    let mut now = BEGIN;
    for _ in 0..MOST_EVENTS {
        match run.poll(now) {
            Output::Send(packet) => nic.receive(now, &packet.path, &packet.bytes),
            Output::Ask(request) => run.answer(nic.answer(now, &request)),
            Output::Wait(until) => {
                now = nic.deadline().map_or(until, |deadline| deadline.min(until)).max(now);
                nic.handle_timeout(now);
                run.wake();
            }
            Output::Finished => break,
        }
        for _ in 0..MOST_AT_ONCE {
            let Some((path, identification, bytes)) = nic.transmit(now) else { break };
            run.receive(now, &path, Some(identification), &bytes);
        }
    }
    run.into_report(now)
}
