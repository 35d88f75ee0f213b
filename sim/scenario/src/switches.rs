//! Values in the tables of switches and of their ports.

use super::values::set;
use super::{Wrong, file};
use roce_sim::net::{Balance, Headroom, Marking, Threshold, Time, Trimming, Watchdog};

pub(super) fn headroom(headroom: &file::Headroom) -> Headroom {
    match headroom {
        file::Headroom::Auto(_) => Headroom::Auto,
        file::Headroom::Bytes(bytes) => Headroom::Bytes(bytes.0),
    }
}

pub(super) fn watchdog(table: &file::Watchdog) -> Result<Option<Watchdog>, Wrong> {
    match (table.off, &table.after, &table.restore) {
        (true, None, None) => Ok(None),
        (false, Some(after), Some(restore)) => Ok(Some(Watchdog { after: after.0, restore: restore.0 })),
        _ => Err("watchdog needs after and restore, or off = true".to_owned()),
    }
}

pub(super) fn threshold(table: &file::Threshold) -> Result<Threshold, Wrong> {
    match (table.alpha, &table.bytes) {
        (Some(alpha), None) => Ok(Threshold::Dynamic { alpha }),
        (None, Some(bytes)) => Ok(Threshold::Static { bytes: bytes.0 }),
        _ => Err("threshold needs either alpha or bytes".to_owned()),
    }
}

/// The default gap between flowlets. 50 µs exceed the differences in path delay in a data centre.
const FLOWLET_GAP: Time = Time::from_us(50);

pub(super) fn balance(balance: &file::Balance, gap: Option<Time>) -> Balance {
    match balance {
        file::Balance::Flow => Balance::Flow,
        file::Balance::Weighted => Balance::Weighted,
        file::Balance::Spray => Balance::Spray,
        file::Balance::Adaptive => Balance::Adaptive,
        file::Balance::Flowlet => Balance::Flowlet { gap: gap.unwrap_or(FLOWLET_GAP) },
    }
}

pub(super) fn trimming(table: &file::Trimming) -> Result<Option<Trimming>, Wrong> {
    let file::Trimming { off, dscp, to, above } = table;
    if *off {
        let alone = dscp.is_none() && to.is_none() && above.is_none();
        return if alone { Ok(None) } else { Err("trimming: off = true has no other keys".to_owned()) };
    }
    let mut trimming = Trimming::default();
    set(&mut trimming.dscp, *dscp);
    // The range is checked together with the other settings.
    set(&mut trimming.frame_bytes, to.as_ref().map(|to| u32::try_from(to.0).unwrap_or(u32::MAX)));
    trimming.above_bytes = above.as_ref().map(|above| above.0);
    Ok(Some(trimming))
}

/// Returns one bit for each priority of a list.
pub(super) fn priorities(list: &[u8]) -> Result<u8, Wrong> {
    list.iter().try_fold(0, |bits, priority| {
        let bit = 1_u8.checked_shl((*priority).into());
        bit.map(|bit| bits | bit).ok_or_else(|| format!("pfc: priority {priority} is not 0 to 7"))
    })
}

pub(super) fn marks(table: &file::Marking) -> Result<Marking, Wrong> {
    match (table.off, table.step, table.kmin, table.kmax, table.pmax) {
        (true, None, None, None, None) => Ok(Marking::Off),
        (false, Some(step), None, None, None) => Ok(Marking::Step { bytes: step.0 }),
        (false, None, Some(kmin), Some(kmax), Some(pmax)) => {
            if kmin.0 > kmax.0 || !(0.0..=1.0).contains(&pmax) {
                return Err("marking: kmin must be at most kmax, and pmax must be 0 to 1".to_owned());
            }
            Ok(Marking::Red { kmin: kmin.0, kmax: kmax.0, pmax })
        }
        _ => Err("marking needs kmin, kmax and pmax, or step, or off = true".to_owned()),
    }
}
