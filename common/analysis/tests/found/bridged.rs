//! Captures of the fault bridge: the messages of a scene pass a real bridge in virtual time, whose capture
//! has what leaves it and what it drops.

use std::cell::RefCell;
use std::rc::Rc;

use roce_bridge::{Bridge, Port, Settings, Side as BridgeSide};
use roce_device::whole::Offload;
use roce_packet::{Ecn, Frame, MacAddr};
use roce_sim::pair::{Action, Sent, Side};

use super::scene::{Class, Ending, Fault, PACKET_NS, Seen, Tapped, exchange_with, frame_of};

/// Returns what the bridge captures from each side.
pub(crate) fn bridged(seed: u64, class: Class, fault: Fault, psn: u32) -> Tapped {
    let mut settings = Settings { seed, ..Settings::default() };
    let action = match fault {
        Fault::Drop => "drop",
        // A bit behind the BTH.
        Fault::Corrupt => "corrupt:120",
        Fault::Duplicate => "dup",
        Fault::Mark => "ecn",
        Fault::Delay => panic!("a script does not see the time at which a packet leaves"),
    };
    let direction = if class == Class::Request { &mut settings.left } else { &mut settings.right };
    direction.faults = format!("rule:psn={psn},pass=1,times=1,action={action}").parse().unwrap();
    let port = Port { mac: MacAddr([2, 0, 0, 0, 0, 9]), bits_per_second: None };
    let mut bridge = Bridge::new(&settings, [port; 2]);
    bridge.keep_lost();
    let captured = Rc::new(RefCell::new(Tapped::default()));
    let capture = Rc::clone(&captured);
    let script = move |sent: &Sent| pass(&mut bridge, sent, &mut capture.borrow_mut());
    drop(exchange_with(seed, script, 1, Ending::Good));
    captured.take()
}

/// Passes a packet through the bridge, and captures what leaves it and what is lost. Returns what the bridge
/// did to the packet.
fn pass(bridge: &mut Bridge, sent: &Sent, captured: &mut Tapped) -> Action {
    let from = if sent.from == Side::A { BridgeSide::Left } else { BridgeSide::Right };
    let frame = frame_of(&sent.path, &sent.bytes);
    bridge.handle_frame(sent.at, from, Offload::NONE, &frame);
    bridge.handle_timeout(sent.at);
    let mut left = Vec::new();
    while let Some(leaving) = bridge.poll_transmit(sent.at, from.other()) {
        left.push(leaving.bytes);
    }
    let mut lost = Vec::new();
    while let Some(dropped) = bridge.poll_lost(from) {
        lost.push(dropped.bytes);
    }
    let captured = &mut captured[usize::from(sent.from == Side::B)];
    for bytes in left.iter().chain(&lost) {
        // The packets of a burst follow each other.
        let before = captured.last().map_or(0, |seen| seen.time);
        let seen = Seen::of(sent, sent.at.as_nanos().max(before) + PACKET_NS);
        captured.push(Seen { frames: Some(vec![bytes.clone()]), ..seen });
    }
    let [one] = &left[..] else {
        return if left.is_empty() { Action::Drop } else { Action::Duplicate };
    };
    let arrived = Frame::parse(one).expect("the bridge changes no length");
    if arrived.path().ecn() == Ecn::CongestionExperienced {
        return Action::Mark;
    }
    let changed = arrived.transport.iter().zip(&sent.bytes).position(|(after, before)| after != before);
    match changed {
        Some(at) => {
            let difference = arrived.transport[at] ^ sent.bytes[at];
            Action::FlipBit(8 * at + difference.leading_zeros() as usize)
        }
        None => Action::Pass,
    }
}
