//! The answer of a responder to a frame.
//!
//! The engine gives the answer. It gets a queue pair for which the frame is made: with the transport of the
//! opcode, the addresses of the frame, the PSN that it has, a receive, and memory under its R_Key. Then the
//! engine handles the datagram, and its verdict and its packets are reported.

mod arrival;
mod outcome;
mod reply;
mod responder;
mod why;

use roce_analysis::walk::Walk;
use roce_packet::{BthView, Direction, OpcodeInfo, Operation, Transport};

use arrival::Arrival;
pub(super) use outcome::Answer;
use responder::Responder;

/// Hands the frame to a responder and returns the answer.
pub(super) fn of(walk: &Walk<'_>) -> Answer {
    let arrival = match Arrival::of(walk) {
        Ok(arrival) => arrival,
        Err(answer) => return *answer,
    };
    let info = BthView::from_prefix(&arrival.bytes).ok().and_then(|(bth, _)| bth.opcode().info());
    if let Some(answer) = info.and_then(not_a_request) {
        return answer;
    }
    match Responder::new(&arrival) {
        Ok(responder) => responder.answer(&arrival),
        Err(error) => {
            Answer::none(format!("No queue pair can be made for this frame: {error}."), "IBTA 10.3")
        }
    }
}

/// Returns the answer for an opcode that a responder of RC, UC or UD does not take.
fn not_a_request(info: &OpcodeInfo) -> Option<Answer> {
    let name = info.name;
    if info.direction == Direction::Response {
        let why = match info.operation {
            Operation::Acknowledge => {
                "An acknowledgement is a response: it ends at the requester, and nothing \
                                       answers it. Take a request to see an answer."
            }
            _ => {
                "This is a response: it ends at the requester, and nothing answers it. Take a request to see \
                  an answer."
            }
        };
        return Some(Answer::none(why, "IBTA 9.7.5"));
    }
    match info.transport {
        Transport::Rd => {
            let why =
                format!("{name} belongs to reliable datagrams, which RoCE NICs and this engine do not have.");
            Some(Answer::none(why, "IBTA 9.3.1"))
        }
        Transport::Xrc => {
            let why = format!("{name} belongs to XRC. This page answers requests of RC, UC and UD.");
            Some(Answer::none(why, "IBTA A14"))
        }
        Transport::Rc | Transport::Uc | Transport::Ud | Transport::Cnp => None,
    }
}
