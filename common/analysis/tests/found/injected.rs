//! The kinds of injected events: how each is made, and which events it must have.

use std::borrow::Cow;

use roce_analysis::event::{EventKind, Where};
use roce_packet::pause::PauseRequest;
use roce_packet::{MacAddr, Opcode, PauseFrame};
use roce_sim::pair::{Action, Sent, Side};

use super::bridged::bridged;
use super::managed::managed;
use super::scene::{Class, Ending, Fault, Numbers, Seen, Tapped, Taps, run, tapped};

/// A kind of injected event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The network does something to a packet.
    Network(Fault, Class),
    /// The capture lacks a packet.
    Missing(Class),
    /// The requester sends another P_Key once.
    PKey,
    /// The requester sets reserved bits once.
    Reserved,
    /// The network changes the DSCP from some packet on.
    Dscp,
    /// The responder counts messages wrongly once.
    Msn,
    /// The responder acknowledges what was not sent.
    Unsent,
    /// The responder says nothing for a while.
    Stall,
    /// The clock of the last capture goes back.
    Clock,
    /// The responder asks for a lower rate.
    Cnp,
    /// The network loses such a request.
    CnpLost,
    /// The responder answers the same READ with other data.
    Changed,
    /// The requester uses a wrong key.
    WrongKey,
    /// The responder has no receive.
    NoReceive,
    /// The network loses or doubles the first message of connection management with this name.
    Managed(Fault, &'static str),
    /// Nobody listens, so the connection is refused.
    Refused,
    /// The port that the responder is connected to asks it for a pause.
    Pause,
    /// The network fragments a request.
    Fragments,
    /// A fault bridge does something to a packet, and captures it.
    Bridge(Fault, Class),
}

/// The first ones are faults of the network.
const NETWORK_KINDS: u64 = 14;

/// All kinds with their names in the table.
pub(crate) const KINDS: [(&str, Kind); 50] = {
    use Class::{Acknowledgement, ReadResponse, Request};
    use Fault::{Corrupt, Delay, Drop, Duplicate, Mark};
    use Kind::{Bridge, Managed};
    [
        ("request lost", Kind::Network(Drop, Request)),
        ("READ response lost", Kind::Network(Drop, ReadResponse)),
        ("acknowledgement lost", Kind::Network(Drop, Acknowledgement)),
        ("request damaged", Kind::Network(Corrupt, Request)),
        ("READ response damaged", Kind::Network(Corrupt, ReadResponse)),
        ("acknowledgement damaged", Kind::Network(Corrupt, Acknowledgement)),
        ("request doubled", Kind::Network(Duplicate, Request)),
        ("READ response doubled", Kind::Network(Duplicate, ReadResponse)),
        ("acknowledgement doubled", Kind::Network(Duplicate, Acknowledgement)),
        ("request delayed", Kind::Network(Delay, Request)),
        ("READ response delayed", Kind::Network(Delay, ReadResponse)),
        ("acknowledgement delayed", Kind::Network(Delay, Acknowledgement)),
        ("request marked", Kind::Network(Mark, Request)),
        ("READ response marked", Kind::Network(Mark, ReadResponse)),
        ("request not captured", Kind::Missing(Request)),
        ("READ response not captured", Kind::Missing(ReadResponse)),
        ("another P_Key", Kind::PKey),
        ("reserved bits", Kind::Reserved),
        ("DSCP changed by the network", Kind::Dscp),
        ("wrong MSN", Kind::Msn),
        ("answer to an unsent request", Kind::Unsent),
        ("silence of the responder", Kind::Stall),
        ("clock of the capture goes back", Kind::Clock),
        ("CNP", Kind::Cnp),
        ("CNP lost", Kind::CnpLost),
        ("READ answered with other data", Kind::Changed),
        ("wrong key", Kind::WrongKey),
        ("receiver not ready", Kind::NoReceive),
        ("REQ lost", Managed(Drop, "REQ")),
        ("REP lost", Managed(Drop, "REP")),
        ("RTU lost", Managed(Drop, "RTU")),
        ("DREQ lost", Managed(Drop, "DREQ")),
        ("DREP lost", Managed(Drop, "DREP")),
        ("REQ doubled", Managed(Duplicate, "REQ")),
        ("REP doubled", Managed(Duplicate, "REP")),
        ("RTU doubled", Managed(Duplicate, "RTU")),
        ("connection refused (REJ)", Kind::Refused),
        ("pause frames (PFC)", Kind::Pause),
        ("request in IP fragments", Kind::Fragments),
        ("request lost, at the fault bridge", Bridge(Drop, Request)),
        ("READ response lost, at the fault bridge", Bridge(Drop, ReadResponse)),
        ("acknowledgement lost, at the fault bridge", Bridge(Drop, Acknowledgement)),
        ("request damaged, at the fault bridge", Bridge(Corrupt, Request)),
        ("READ response damaged, at the fault bridge", Bridge(Corrupt, ReadResponse)),
        ("acknowledgement damaged, at the fault bridge", Bridge(Corrupt, Acknowledgement)),
        ("request doubled, at the fault bridge", Bridge(Duplicate, Request)),
        ("READ response doubled, at the fault bridge", Bridge(Duplicate, ReadResponse)),
        ("acknowledgement doubled, at the fault bridge", Bridge(Duplicate, Acknowledgement)),
        ("request marked, at the fault bridge", Bridge(Mark, Request)),
        ("READ response marked, at the fault bridge", Bridge(Mark, ReadResponse)),
    ]
};

/// An event that was injected.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Injected {
    pub(crate) kind: Kind,
    /// PSN that the event must name, if any.
    pub(crate) psn: Option<u32>,
}

/// Injected events and the captures with them.
pub(crate) struct Scene {
    pub(crate) taps: Tapped,
    pub(crate) injected: Vec<Injected>,
}

impl Kind {
    /// Returns the captures of a seed, whose packets without events are `good`, or `None` if it has no packet
    /// that this can happen to.
    pub(crate) fn scene(self, seed: u64, good: &[Sent]) -> Option<Scene> {
        let mut numbers = Numbers(seed ^ 0x5eed);
        let ending = match self {
            Self::WrongKey => Ending::WrongKey,
            Self::NoReceive => Ending::NoReceive,
            _ => Ending::Good,
        };
        let plain = if ending == Ending::Good { Cow::Borrowed(good) } else { run(seed, &[], ending).into() };
        let (taps, psn) = match self {
            Self::Network(fault, class) => {
                let psn = choose(&mut numbers, &plain, class)?;
                (tapped(&run(seed, &[(class, fault, psn)], ending)), Some(psn))
            }
            Self::Managed(fault, name) => {
                let action = if fault == Fault::Drop { Action::Drop } else { Action::Duplicate };
                let (sent, psn) = managed(&plain, Some((name, action)), false);
                (tapped(&sent), Some(psn?))
            }
            Self::Refused => {
                let (sent, psn) = managed(&plain, Some(("REJ", Action::Pass)), true);
                (tapped(&sent), Some(psn?))
            }
            Self::Bridge(fault, class) => {
                let psn = choose(&mut numbers, &plain, class)?;
                (bridged(seed, class, fault, psn), Some(psn))
            }
            Self::WrongKey | Self::NoReceive => {
                let last = of_class(&plain, Class::Request).last()?;
                (tapped(&plain), Some(last.psn.get()))
            }
            _ => {
                let mut taps = tapped(&plain);
                let psn = self.edit(&mut taps, &mut numbers)?;
                (taps, psn)
            }
        };
        Some(Scene { taps, injected: vec![Injected { kind: self, psn }] })
    }

    /// Changes what the taps show. Returns the PSN that the event must name, if any.
    fn edit(self, taps: &mut Tapped, numbers: &mut Numbers) -> Option<Option<u32>> {
        let class = match self {
            Self::Missing(class) => class,
            Self::Msn | Self::Unsent | Self::Stall | Self::Pause | Self::Cnp | Self::CnpLost => {
                Class::Acknowledgement
            }
            Self::Changed => Class::ReadResponse,
            _ => Class::Request,
        };
        // The first answer follows nothing, and the clock goes back between two packets.
        let first = u64::from(matches!(self, Self::Msn | Self::Clock | Self::Stall | Self::Pause));
        let near = &taps[usize::from(class != Class::Request || self == Self::Clock)];
        let mut all: Vec<&Seen> = near.iter().filter(|seen| seen.class() == Some(class)).collect();
        match self {
            // Nothing shows that the last packet of a capture was lost.
            Self::CnpLost => drop(all.pop()),
            // A requester that is silent at the same time hides it.
            Self::Stall | Self::Pause => {
                let requests: Vec<u64> =
                    near.iter().filter(|seen| seen.from == Side::A).map(|seen| seen.sent).collect();
                all.retain(|seen| {
                    !requests.iter().any(|sent| (seen.sent..seen.sent + 50_000).contains(sent))
                });
            }
            // Fragments other than the last one are full.
            Self::Fragments => all.retain(|seen| seen.bytes.len() > 300),
            _ => {}
        }
        let choice = first + numbers.below((all.len() as u64).checked_sub(first).filter(|count| *count > 0)?);
        let chosen = Seen::clone(all[choice as usize]);
        let is_chosen = |seen: &Seen| seen.bytes == chosen.bytes && seen.sent == chosen.sent;
        let psn = Some(chosen.psn());
        match self {
            // Where both taps are, the second one lacks it.
            Self::Missing(_) => taps.iter_mut().for_each(|tap| tap.retain(|seen| !is_chosen(seen))),
            Self::PKey => change(taps, is_chosen, |seen| seen.bytes[3] ^= 0x11),
            Self::Reserved => change(taps, is_chosen, |seen| seen.bytes[8] |= 0x20),
            Self::Msn => change(taps, is_chosen, |seen| seen.bytes[15] = seen.bytes[15].wrapping_add(9)),
            Self::Dscp => {
                let from = |seen: &Seen| seen.from == chosen.from && seen.sent >= chosen.sent;
                for seen in taps[1].iter_mut().filter(|seen| from(seen)) {
                    seen.path.traffic_class = 10 << 2 | seen.path.traffic_class & 3;
                }
            }
            Self::Unsent => {
                let mut answer = chosen.clone();
                let unsent = (chosen.psn() + 5000) & 0xff_ffff;
                answer.set_psn(unsent);
                answer.seal();
                insert(taps, &answer, [true; 2]);
                return Some(Some(unsent));
            }
            Self::Stall | Self::Pause => {
                let later = |seen: &&mut Seen| seen.sent >= chosen.sent;
                taps.iter_mut().flatten().filter(later).for_each(|seen| seen.time += 20_000_000);
                if self == Self::Pause {
                    taps[1].extend(pause_frames(&chosen));
                }
                taps.iter_mut().for_each(|tap| tap.sort_by_key(|seen| seen.time));
                if self == Self::Pause {
                    return Some(None);
                }
            }
            Self::Fragments => {
                let (whole, fragments) = chosen.fragments();
                for (tap, frames) in taps.iter_mut().zip([vec![whole], fragments]) {
                    for seen in tap.iter_mut().filter(|seen| is_chosen(seen)) {
                        seen.frames = Some(frames.clone());
                    }
                }
            }
            Self::Clock => {
                let tap = taps.iter_mut().next_back()?;
                let later = |seen: &&mut Seen| seen.time >= chosen.time;
                tap.iter_mut().filter(later).for_each(|seen| seen.time -= 500_000_000);
                return Some(None);
            }
            Self::Cnp | Self::CnpLost => {
                let mut cnp = chosen.clone();
                cnp.bytes = [&chosen.bytes[..12], &[0; 16], &[0; 4]].concat();
                cnp.bytes[0] = Opcode::CNP.0;
                // BECN.
                cnp.bytes[4] = 0x40;
                cnp.set_psn(0);
                cnp.seal();
                insert(taps, &cnp, [self == Self::Cnp, true]);
                return Some(None);
            }
            Self::Changed => {
                let mut other = chosen.clone();
                let middle = other.bytes.len() - 8;
                other.bytes[middle] ^= 1;
                other.seal();
                insert(taps, &other, [true; 2]);
            }
            Self::Network(..)
            | Self::WrongKey
            | Self::NoReceive
            | Self::Managed(..)
            | Self::Refused
            | Self::Bridge(..) => return None,
        }
        Some(psn)
    }

    /// Returns whether the headers show it, so that a truncated capture does. Messages of connection
    /// management are longer.
    pub(crate) fn shows_in_headers(self) -> bool {
        let is_damage = matches!(self, Self::Network(Fault::Corrupt, _) | Self::Bridge(Fault::Corrupt, _));
        !is_damage && !matches!(self, Self::Changed | Self::Managed(..) | Self::Refused)
    }

    /// Returns the places where it is captured.
    pub(crate) fn places(self) -> &'static [Taps] {
        if matches!(self, Self::Bridge(..)) { &[Taps::Bridge] } else { &Taps::ALL }
    }

    /// Returns the kinds of which exactly one event is expected, and whether it may be missing because the
    /// packets do not show it.
    pub(crate) fn expected(self, taps: Taps) -> (&'static [EventKind], bool) {
        use EventKind as E;
        match self {
            Self::Network(fault, class) => expected_of_network(class, fault, taps),
            // Nothing may show that a packet was sent.
            Self::Missing(_) => (&[E::NotCaptured], true),
            Self::PKey => (&[E::WrongPKey], false),
            Self::Reserved => (&[E::ReservedBits], false),
            Self::Dscp => (&[E::DscpChanged], taps != Taps::Both),
            Self::Msn => (&[E::MsnJump], false),
            Self::Unsent => (&[E::UnsentAnswer], false),
            Self::Stall => (&[E::Stall], false),
            Self::Clock => (&[E::ClockStep], !taps.has(1)),
            Self::Cnp => (&[E::Cnp], false),
            Self::CnpLost => match taps {
                Taps::Both => (&[E::CnpLost(Where::BetweenTaps)], false),
                _ => (&[E::Cnp], taps == Taps::A),
            },
            Self::Changed => (&[E::AnswerChanged], false),
            Self::WrongKey => (&[E::RemoteAccessNak], false),
            Self::NoReceive => (&[E::RnrNak], false),
            Self::Managed(fault, name) => expected_of_management(fault, name, taps),
            Self::Refused => (&[E::CmReject], false),
            // The port near the requester has no such frames, so the pause looks like a slow responder.
            Self::Pause => (if taps.has(1) { &[E::Pause] } else { &[E::Stall] }, false),
            Self::Fragments => (&[E::Fragment], !taps.has(1)),
            Self::Bridge(fault, class) => expected_of_network(class, fault, taps),
        }
    }
}

fn expected_of_management(fault: Fault, name: &str, taps: Taps) -> (&'static [EventKind], bool) {
    use EventKind::{CmLost, CmRepetition, Doubled};
    let arrives_at = if matches!(name, "REP" | "DREP") { 0 } else { 1 };
    match (fault, name, taps) {
        (Fault::Duplicate, ..) => (&[Doubled], !taps.has(arrives_at)),
        (_, _, Taps::Both) => (&[CmLost(Where::BetweenTaps)], false),
        // The first copy never came here.
        (_, "REQ" | "DREQ", Taps::B) => (&[CmRepetition], true),
        // What it answers comes again although this place has seen the answer.
        (_, "REP" | "DREP", Taps::B) | (_, "RTU", Taps::A) => (&[CmLost(Where::BehindTap)], false),
        _ => (&[CmRepetition], false),
    }
}

/// Returns frames that pause the sender of a packet, one every 4 ms, and the one that ends the pause. The
/// packet is late by 20 ms.
fn pause_frames(chosen: &Seen) -> Vec<Seen> {
    let frame = |(after_ns, quanta): (u64, u16)| {
        let mut priorities = [None; 8];
        priorities[3] = Some(quanta);
        let request = PauseRequest::PerPriority(priorities);
        let mut bytes = [0; PauseFrame::LEN];
        PauseFrame { source: PAUSING, request }.emit(&mut bytes);
        let time = chosen.sent + after_ns;
        Seen { time, sent: time, bytes: Vec::new(), frames: Some(vec![bytes.to_vec()]), ..chosen.clone() }
    };
    let asks = (0..5).map(|number| (number * 4_000_000, u16::MAX));
    asks.chain([(19_990_000, 0)]).map(frame).collect()
}

/// The port that pauses the responder.
pub(crate) const PAUSING: MacAddr = MacAddr([2, 0, 0, 0, 0, 9]);

/// Returns the packets of a class.
fn of_class(sent: &[Sent], class: Class) -> impl Iterator<Item = &Sent> {
    sent.iter().filter(move |sent| Class::of(sent.opcode) == Some(class))
}

/// Chooses the PSN of a packet of a class, if there is one.
fn choose(numbers: &mut Numbers, sent: &[Sent], class: Class) -> Option<u32> {
    let all: Vec<&Sent> = of_class(sent, class).collect();
    let at = numbers.below((all.len() as u64).max(1)) as usize;
    Some(all.get(at)?.psn.get())
}

/// Returns the captures of a seed with two faults in different bursts, or `None` if it has too few packets.
pub(crate) fn mixed(seed: u64, plain: &[Sent]) -> Option<Scene> {
    let mut numbers = Numbers(seed ^ 0x2eed);
    // A burst follows the previous one after a pause.
    let second = plain.windows(2).position(|pair| pair[0].at.plus_nanos(50_000) < pair[1].at)? + 1;
    let mut faults = Vec::new();
    let mut injected = Vec::new();
    for burst in [&plain[..second], &plain[second..]] {
        let (_, kind) = KINDS[numbers.below(NETWORK_KINDS) as usize];
        let Kind::Network(fault, class) = kind else { return None };
        let psn = choose(&mut numbers, burst, class)?;
        faults.push((class, fault, psn));
        injected.push(Injected { kind, psn: Some(psn) });
    }
    Some(Scene { taps: tapped(&run(seed, &faults, Ending::Good)), injected })
}

/// Changes a packet at both taps, as if its sender had sent it so.
fn change(taps: &mut Tapped, is_chosen: impl Fn(&Seen) -> bool, edit: impl Fn(&mut Seen)) {
    for seen in taps.iter_mut().flatten().filter(|seen| is_chosen(seen)) {
        edit(seen);
        seen.seal();
    }
}

/// Inserts a packet of B soon after the one whose times it has.
fn insert(taps: &mut Tapped, packet: &Seen, at: [bool; 2]) {
    for (tap, is_there) in at.into_iter().enumerate() {
        let delay = if tap == 0 { super::scene::DELAY_NS } else { 0 };
        let time = packet.time + 50 + delay;
        let position = taps[tap].partition_point(|seen| seen.time <= time);
        if is_there {
            taps[tap].insert(position, Seen { time, from: Side::B, ..packet.clone() });
        }
    }
}

fn expected_of_network(class: Class, fault: Fault, taps: Taps) -> (&'static [EventKind], bool) {
    use Class::{Acknowledgement, ReadResponse, Request};
    use EventKind::{
        AckLost, Corrupted, Doubled, EcnMark, Overtaken, RequestLost, RequestOrAnswerLost, ResponseLost,
    };
    use Where::{BeforeTap, BehindTap, BetweenTaps};
    let arrives_at = if class == Request { 1 } else { 0 };
    let is_seen = taps.has(arrives_at);
    // A bridge captures what it drops, as a place does in front of the loss.
    match (fault, class, taps) {
        (Fault::Corrupt, ..) if is_seen => (&[Corrupted], false),
        (Fault::Duplicate, ..) => (&[Doubled], !is_seen),
        (Fault::Mark, ..) => (&[EcnMark], !is_seen),
        (Fault::Delay, _, Taps::Both) => (&[Overtaken], true),
        (Fault::Delay, Request, Taps::A) => (&[RequestLost(BehindTap)], true),
        (Fault::Delay, Request, _) => (&[Overtaken], true),
        (Fault::Delay, ReadResponse, Taps::B) => (&[ResponseLost(BehindTap)], true),
        (Fault::Delay, ..) => (&[Overtaken], true),
        (_, Request, Taps::Both) => (&[RequestLost(BetweenTaps)], false),
        (_, Request, Taps::A | Taps::Bridge) => (&[RequestLost(BehindTap), RequestOrAnswerLost], false),
        // Nothing shows that the last request of a burst was sent.
        (_, Request, Taps::B) => (&[RequestLost(BeforeTap)], true),
        (_, ReadResponse, Taps::Both) => (&[ResponseLost(BetweenTaps)], false),
        (_, ReadResponse, Taps::A) => (&[ResponseLost(BeforeTap), RequestOrAnswerLost], false),
        (_, ReadResponse, Taps::B | Taps::Bridge) => (&[ResponseLost(BehindTap)], false),
        (_, Acknowledgement, Taps::Both) => (&[AckLost(BetweenTaps)], false),
        // A later answer acknowledges, too.
        (_, Acknowledgement, Taps::A) => (&[RequestOrAnswerLost], true),
        (_, Acknowledgement, Taps::B | Taps::Bridge) => (&[AckLost(BehindTap)], true),
    }
}
