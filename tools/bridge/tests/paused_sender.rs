//! A sender of this project in front of a slower bridge that pauses it.

#[path = "../../../device/src/framed/tests/rig.rs"]
mod rig;
#[path = "../../../device/tests/support/testing.rs"]
mod testing;

use std::collections::VecDeque;
use std::num::NonZeroU64;

use roce_bridge::{Bridge, Port, QueueSettings, Settings, Side};
use roce_device::whole::Offload;
use roce_device::{Device, FrameSettings};
use roce_transport::Instant;

use rig::{PEER_MAC, device, sent, us};
use testing::{datagram, path, put};

/// Time between two datagrams with 1,024 bytes of payload at 1 Gb/s; the bridge forwards a fifth of that
/// rate.
const INTERVAL_NS: u64 = 8_848;
/// Travel time of frames and pauses.
const CABLE_NS: u64 = 100_000;
const STEPS: u64 = 100_000;

fn due<T>(cable: &mut VecDeque<(Instant, T)>, now: Instant) -> Option<T> {
    cable.pop_front_if(|(there, _)| *there <= now).map(|(_, what)| what)
}

/// Returns how many packets the sender loses in 0.9 s if the queue has `room` bytes above `xoff`, and how
/// often it was paused.
fn losses(room: u64) -> (u64, u64) {
    let mut settings = Settings::default();
    settings.left.queue = QueueSettings {
        rate: NonZeroU64::new(200_000_000),
        pfc: 1,
        xoff_bytes: 100_000,
        xon_bytes: 80_000,
        limit_bytes: 100_000 + room,
        ..QueueSettings::default()
    };
    let mut bridge =
        Bridge::new(&settings, [Port { mac: PEER_MAC, bits_per_second: Some(1_000_000_000) }; 2]);
    let (mut device, link) = device(1, FrameSettings::default());
    let way = path(us(1), us(2));
    let bytes = datagram(&way, 0, 1024);
    let (mut frames, mut pauses) = (VecDeque::new(), VecDeque::new());
    for step in 0..STEPS {
        let now = Instant::from_nanos(step * INTERVAL_NS);
        while let Some(pause) = due(&mut pauses, now) {
            link.lock().unwrap().arriving.push((pause, None, None));
        }
        device.receive(now, &mut |_| {}).unwrap();
        // A paced sender keeps datagrams that it may not send now, and its pace.
        if device.slot().is_some() {
            put(&mut device, now, &way, &bytes);
        }
        device.flush(now).unwrap();
        let there = now.plus_nanos(CABLE_NS);
        frames.extend(sent(&link).into_iter().map(|frame| (there, frame)));
        while let Some(frame) = due(&mut frames, now) {
            bridge.handle_frame(now, Side::Left, Offload::NONE, &frame);
        }
        bridge.handle_timeout(now);
        while bridge.poll_transmit(now, Side::Right).is_some() {}
        while let Some(pause) = bridge.poll_transmit(now, Side::Left) {
            pauses.push_back((there, pause.bytes));
        }
    }
    let counts = bridge.counts(Side::Left);
    // The bridge always used most of its rate, even if packets were lost.
    let most = STEPS * INTERVAL_NS / 1000 * 200 / 8;
    assert!(counts.forwarded_bytes * 100 > most * 90, "{counts:?}");
    (counts.queue_dropped, counts.pauses_sent)
}

/// Above `xoff`, the queue needs room for packets that travel at the same time as the pause, and for those
/// that the last pause held back.
#[test]
fn pauses_of_a_bridge_lose_nothing_where_the_queue_has_room_for_what_is_under_way() {
    let way_and_back = 2 * CABLE_NS / INTERVAL_NS * 1_082;
    let held = 32 * 1_082;
    let (dropped, pauses) = losses(way_and_back + held);
    assert!(dropped == 0 && pauses > 100, "{dropped} lost, {pauses} pauses");
    assert!(losses(way_and_back / 2).0 > 0, "the room is needed");
}
