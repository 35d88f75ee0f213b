//! One test per bug that was found and mended, named after what went wrong.

use roce_packet::PathMtu;
use roce_sim::pair::{Action, Pair, Settings, Side};
use roce_transport::{DropReason, QpType, SendOp, SendWr, Verdict};

/// ```text
/// A  SEND ONLY 0 ---> B   receives it
/// A  SEND ONLY 0 ---> B   the link's second copy: dropped
/// A  SEND ONLY 1 ------.
/// A  SEND ONLY 2 ---> B | receives it
///                    <--' late: dropped, or message 1 would come after message 2
/// ```
#[test]
fn a_uc_message_doubled_or_overtaken_on_the_way_is_not_delivered_again_or_late() {
    let mut pair = Pair::new(1);
    let settings = Settings { mtu: PathMtu::Mtu256, psns: [0xff_ffff, 0], ..Settings::default() };
    let (a, b) = pair.connect_with(QpType::Uc, &settings);
    pair.set_script(|sent| match sent.index {
        0 => Action::Duplicate,
        1 => Action::Delay(10_000),
        _ => Action::Pass,
    });
    for index in 0..4 {
        pair.post_recv(Side::B, b, index, 64 * index as usize, 64).unwrap();
    }
    for len in [10, 11, 12] {
        let range = pair.host(Side::A).memory_range(0, len);
        pair.post_send(Side::A, a, &SendWr::new(len as u64, SendOp::Send, &[range])).unwrap();
    }
    pair.drive();
    let arrived: Vec<u32> = pair.completions(Side::B).iter().map(|wc| wc.byte_len).collect();
    assert_eq!(arrived, [10, 12]);
    let late = pair.verdicts.iter().filter(|(_, v)| *v == Verdict::Dropped(DropReason::LatePacket));
    assert_eq!(late.count(), 2);
    assert_eq!(pair.host(Side::B).engine.counters().drop_late_packet, 2);
}
