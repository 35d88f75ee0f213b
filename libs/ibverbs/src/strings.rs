//! Texts and rates: functions that need no object.

use std::ffi::{CStr, c_char, c_int};

/// Returns the text with this number, or the default text.
fn choose(texts: &[&'static CStr], number: c_int, otherwise: &'static CStr) -> *const c_char {
    let index = usize::try_from(number).ok();
    index.and_then(|index| texts.get(index)).unwrap_or(&otherwise).as_ptr()
}

pub(crate) extern "C" fn ibv_wc_status_str(status: c_int) -> *const c_char {
    const TEXTS: [&CStr; 24] = [
        c"success",
        c"local length error",
        c"local QP operation error",
        c"local EE context operation error",
        c"local protection error",
        c"Work Request Flushed Error",
        c"memory management operation error",
        c"bad response error",
        c"local access error",
        c"remote invalid request error",
        c"remote access error",
        c"remote operation error",
        c"transport retry counter exceeded",
        c"RNR retry counter exceeded",
        c"local RDD violation error",
        c"remote invalid RD request",
        c"aborted error",
        c"invalid EE context number",
        c"invalid EE context state",
        c"fatal error",
        c"response timeout error",
        c"general error",
        c"TM error",
        c"TM software rendezvous",
    ];
    choose(&TEXTS, status, c"unknown")
}

pub(crate) extern "C" fn ibv_node_type_str(node_type: c_int) -> *const c_char {
    const TEXTS: [&CStr; 8] = [
        c"unknown",
        c"InfiniBand channel adapter",
        c"InfiniBand switch",
        c"InfiniBand router",
        c"iWARP NIC",
        c"usNIC",
        c"usNIC UDP",
        c"unspecified",
    ];
    choose(&TEXTS, node_type, c"unknown")
}

pub(crate) extern "C" fn ibv_port_state_str(state: c_int) -> *const c_char {
    const TEXTS: [&CStr; 6] =
        [c"no state change (NOP)", c"DOWN", c"INIT", c"ARMED", c"ACTIVE", c"ACTIVE DEFER"];
    choose(&TEXTS, state, c"unknown")
}

pub(crate) extern "C" fn ibv_event_type_str(event: c_int) -> *const c_char {
    const TEXTS: [&CStr; 20] = [
        c"CQ error",
        c"local work queue catastrophic error",
        c"invalid request local work queue error",
        c"local access violation work queue error",
        c"communication established",
        c"send queue drained",
        c"path migrated",
        c"path migration request error",
        c"local catastrophic error",
        c"port active",
        c"port error",
        c"LID change",
        c"P_Key change",
        c"SM change",
        c"SRQ catastrophic error",
        c"SRQ limit reached",
        c"last WQE reached",
        c"client reregistration",
        c"GID table change",
        c"WQ fatal",
    ];
    choose(&TEXTS, event, c"unknown")
}

/// Result for rates that are not in the table.
const NONE: c_int = -1;

/// Values of `enum ibv_rate` with their multiple of 2.5 Gb/s and their rate in Mb/s (IBTA table of static
/// rates).
const RATES: [(c_int, c_int, c_int); 23] = [
    (2, 1, 2_500),
    (3, 4, 10_000),
    (4, 12, 30_000),
    (5, 2, 5_000),
    (6, 8, 20_000),
    (7, 16, 40_000),
    (8, 24, 60_000),
    (9, 32, 80_000),
    (10, 48, 120_000),
    (11, NONE, 14_062),
    (12, NONE, 56_250),
    (13, NONE, 112_500),
    (14, NONE, 168_750),
    (15, NONE, 25_781),
    (16, NONE, 103_125),
    (17, NONE, 206_250),
    (18, NONE, 309_375),
    (19, 11, 28_125),
    (20, 20, 53_125),
    (21, 160, 425_000),
    (22, 240, 637_500),
    (23, 320, 850_000),
    (24, 480, 1_275_000),
];

/// Converts a value of one column of [`RATES`] to another column.
fn rate(
    of: c_int,
    from: fn(&(c_int, c_int, c_int)) -> c_int,
    to: fn(&(c_int, c_int, c_int)) -> c_int,
) -> Option<c_int> {
    RATES.iter().find(|row| of != NONE && from(row) == of).map(to)
}

pub(crate) extern "C" fn ibv_rate_to_mult(number: c_int) -> c_int {
    rate(number, |row| row.0, |row| row.1).unwrap_or(-1)
}

pub(crate) extern "C" fn mult_to_ibv_rate(multiple: c_int) -> c_int {
    rate(multiple, |row| row.1, |row| row.0).unwrap_or(0)
}

pub(crate) extern "C" fn ibv_rate_to_mbps(number: c_int) -> c_int {
    rate(number, |row| row.0, |row| row.2).unwrap_or(-1)
}

pub(crate) extern "C" fn mbps_to_ibv_rate(megabits: c_int) -> c_int {
    rate(megabits, |row| row.2, |row| row.0).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(pointer: *const c_char) -> String {
        // SAFETY: every result is a null-terminated constant.
        unsafe { CStr::from_ptr(pointer) }.to_str().unwrap().to_owned()
    }

    #[test]
    fn numbers_out_of_range_have_a_text() {
        assert_eq!(text(ibv_wc_status_str(12)), "transport retry counter exceeded");
        assert_eq!(text(ibv_event_type_str(15)), "SRQ limit reached");
        for number in [-1, 24, c_int::MAX] {
            assert_eq!(text(ibv_wc_status_str(number)), "unknown");
            assert_eq!(text(ibv_node_type_str(number)), "unknown");
        }
    }

    #[test]
    fn rates_go_both_ways() {
        for (number, multiple, megabits) in RATES {
            assert_eq!(ibv_rate_to_mult(number), multiple);
            assert_eq!(mult_to_ibv_rate(multiple), if multiple == NONE { 0 } else { number });
            assert_eq!(mbps_to_ibv_rate(ibv_rate_to_mbps(number)), number, "{megabits}");
        }
        assert_eq!((ibv_rate_to_mult(0), mult_to_ibv_rate(3)), (-1, 0));
    }
}
