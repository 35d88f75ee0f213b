//! The simulator as the network of a scheduler in C. `include/roce_sim.h` describes each function.
//!
//! This crate is only the binary interface: pointers, numbers of errors and texts. [`Network`] is the
//! network. Panics never cross an entry point.

mod open;

use std::ffi::{CStr, CString, c_char, c_int};
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind};

use roce_sim::net::{Message, Network, NetworkError, NetworkEvent, Time};

/// A null pointer.
pub const ROCE_SIM_ERROR_ARGUMENT: c_int = -1;
/// A rank does not exist, or both ranks are equal.
pub const ROCE_SIM_ERROR_RANK: c_int = -2;
/// A message has 0 bytes or too many.
pub const ROCE_SIM_ERROR_SIZE: c_int = -3;
/// A receive has fewer bytes than its send.
pub const ROCE_SIM_ERROR_SHORT: c_int = -4;
/// Nothing is left but sends without a receive, or receives without a send.
pub const ROCE_SIM_ERROR_UNMATCHED: c_int = -5;
/// The simulation reached its stop time.
pub const ROCE_SIM_ERROR_STOPPED: c_int = -6;
/// Two ranks could not be connected, or their queue pair failed.
pub const ROCE_SIM_ERROR_FAILED: c_int = -7;
/// A defect of the library.
pub const ROCE_SIM_ERROR_INTERNAL: c_int = -8;

/// The kind of an event: a send is complete.
pub const ROCE_SIM_SENT: u32 = 1;
/// The kind of an event: a receive is complete.
pub const ROCE_SIM_RECEIVED: u32 = 2;
/// The kind of an event: the time of a token has come.
pub const ROCE_SIM_SCHEDULED: u32 = 3;

/// The text of an error that is a defect.
const DEFECT: &CStr = c"a defect of this library; please report it with the calls before it";

/// A network of a scheduler.
pub struct RoceSim {
    network: Network,
    /// The text of the last error.
    error: CString,
    /// Whether a panic has ended a call, so that the network may be inconsistent.
    is_broken: bool,
}

impl RoceSim {
    fn new(network: Network) -> Self {
        Self { network, error: CString::default(), is_broken: false }
    }
}

/// An event: `struct roce_sim_event`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RoceSimEvent {
    /// The kind: [`ROCE_SIM_SENT`], [`ROCE_SIM_RECEIVED`] or [`ROCE_SIM_SCHEDULED`].
    pub kind: u32,
    /// The rank of the sender.
    pub from: u32,
    /// The rank of the receiver.
    pub to: u32,
    /// Zero.
    pub reserved: u32,
    /// The handle of the send or receive, or -1.
    pub handle: i64,
    /// The tag of the message.
    pub tag: u64,
    /// The bytes of the message.
    pub bytes: u64,
    /// The token.
    pub token: u64,
    /// The time in picoseconds.
    pub time: u64,
}

impl RoceSimEvent {
    fn new(event: NetworkEvent, time: Time) -> Self {
        let of = |kind: u32, message: Message| {
            let Message { handle, from, to, tag, bytes } = message;
            let handle = handle.number() as i64;
            Self { kind, from, to, handle, tag, bytes, ..Self::default() }
        };
        let event = match event {
            NetworkEvent::Sent(message) => of(ROCE_SIM_SENT, message),
            NetworkEvent::Received(message) => of(ROCE_SIM_RECEIVED, message),
            NetworkEvent::Scheduled { token } => {
                Self { kind: ROCE_SIM_SCHEDULED, handle: -1, token, ..Self::default() }
            }
        };
        Self { time: time.as_ps(), ..event }
    }
}

/// Builds a network from a scenario. Returns a null pointer and writes the reason if this is not possible.
///
/// # Safety
///
/// `scenario` is null or a string that ends with a zero byte. `error` is null or has room for `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn roce_sim_open(
    scenario: *const c_char,
    error: *mut c_char,
    size: usize,
) -> Option<Box<RoceSim>> {
    let opened = catch_unwind(|| {
        if scenario.is_null() {
            return Err("the scenario is a null pointer".to_owned());
        }
        // SAFETY: the caller passes a string.
        open::network(unsafe { CStr::from_ptr(scenario) })
    });
    let reason = match opened {
        Ok(Ok(network)) => return Some(Box::new(RoceSim::new(network))),
        Ok(Err(reason)) => text_of(&reason),
        Err(_) => DEFECT.to_owned(),
    };
    // SAFETY: the caller passes a buffer of this size.
    unsafe { write_text(error, size, &reason) };
    None
}

/// Returns the number of ranks, or 0 for a null pointer.
#[unsafe(no_mangle)]
pub extern "C" fn roce_sim_ranks(sim: Option<&RoceSim>) -> u32 {
    sim.map_or(0, |sim| sim.network.ranks())
}

/// Returns the current time in picoseconds, or 0 for a null pointer.
#[unsafe(no_mangle)]
pub extern "C" fn roce_sim_now(sim: Option<&RoceSim>) -> u64 {
    sim.map_or(0, |sim| sim.network.now().as_ps())
}

/// Returns the hash over all events of the network so far, or 0 for a null pointer.
#[unsafe(no_mangle)]
pub extern "C" fn roce_sim_trace_hash(sim: Option<&RoceSim>) -> u64 {
    sim.map_or(0, |sim| sim.network.trace_hash())
}

/// Sends now. Returns the handle or an error.
#[unsafe(no_mangle)]
pub extern "C" fn roce_sim_send(sim: Option<&mut RoceSim>, from: u32, to: u32, tag: u64, bytes: u64) -> i64 {
    call(sim, |network| Ok(network.send(from, to, tag, bytes)?.number() as i64))
}

/// Receives from now on. Returns the handle or an error.
#[unsafe(no_mangle)]
pub extern "C" fn roce_sim_receive(
    sim: Option<&mut RoceSim>,
    from: u32,
    to: u32,
    tag: u64,
    bytes: u64,
) -> i64 {
    call(sim, |network| Ok(network.receive(from, to, tag, bytes)?.number() as i64))
}

/// Schedules a token. Returns 0 or an error.
#[unsafe(no_mangle)]
pub extern "C" fn roce_sim_schedule(sim: Option<&mut RoceSim>, after: u64, token: u64) -> c_int {
    call(sim, |network| {
        network.schedule(Time::from_ps(after), token);
        Ok(0)
    }) as c_int
}

/// Lets time pass until the next event. Returns 1 with an event, 0 if nothing is left, or an error.
#[unsafe(no_mangle)]
pub extern "C" fn roce_sim_next(
    sim: Option<&mut RoceSim>,
    event: Option<&mut MaybeUninit<RoceSimEvent>>,
) -> c_int {
    let Some(event) = event else { return ROCE_SIM_ERROR_ARGUMENT };
    call(sim, |network| {
        let Some(next) = network.next_event()? else { return Ok(0) };
        event.write(RoceSimEvent::new(next, network.now()));
        Ok(1)
    }) as c_int
}

/// Returns the text of the last error, or an empty text. It is valid until the next call with this network.
#[unsafe(no_mangle)]
pub extern "C" fn roce_sim_error(sim: Option<&RoceSim>) -> *const c_char {
    sim.map_or(c"", |sim| sim.error.as_c_str()).as_ptr()
}

/// Ends a network. A null pointer has no effect.
#[unsafe(no_mangle)]
pub extern "C" fn roce_sim_close(sim: Option<Box<RoceSim>>) {
    let _ = catch_unwind(AssertUnwindSafe(|| drop(sim)));
}

/// Calls a method of the network. Returns its result or the number of its error, whose text is kept.
fn call(sim: Option<&mut RoceSim>, method: impl FnOnce(&mut Network) -> Result<i64, NetworkError>) -> i64 {
    let Some(sim) = sim else { return ROCE_SIM_ERROR_ARGUMENT.into() };
    if sim.is_broken {
        return ROCE_SIM_ERROR_INTERNAL.into();
    }
    match catch_unwind(AssertUnwindSafe(|| method(&mut sim.network))) {
        Ok(Ok(result)) => result,
        Ok(Err(error)) => {
            sim.error = text_of(&error.to_string());
            number_of(&error).into()
        }
        Err(_) => {
            (sim.is_broken, sim.error) = (true, DEFECT.to_owned());
            ROCE_SIM_ERROR_INTERNAL.into()
        }
    }
}

fn number_of(error: &NetworkError) -> c_int {
    match error {
        NetworkError::NoRank { .. } | NetworkError::ToItself { .. } => ROCE_SIM_ERROR_RANK,
        NetworkError::Empty { .. } | NetworkError::TooMuch { .. } => ROCE_SIM_ERROR_SIZE,
        NetworkError::Short { .. } => ROCE_SIM_ERROR_SHORT,
        NetworkError::Unmatched { .. } => ROCE_SIM_ERROR_UNMATCHED,
        NetworkError::Stopped { .. } => ROCE_SIM_ERROR_STOPPED,
        NetworkError::Refused { .. } | NetworkError::Failed { .. } => ROCE_SIM_ERROR_FAILED,
        _ => ROCE_SIM_ERROR_INTERNAL,
    }
}

/// Returns a text up to its first zero byte.
fn text_of(text: &str) -> CString {
    let bytes = text.split('\0').next().unwrap_or_default();
    CString::new(bytes).unwrap_or_default()
}

/// Writes the beginning of a text that fits, with a zero byte at the end.
///
/// # Safety
///
/// `to` is null or has room for `size` bytes.
unsafe fn write_text(to: *mut c_char, size: usize, text: &CStr) {
    let Some(room) = size.checked_sub(1).filter(|_| !to.is_null()) else { return };
    let mut len = text.count_bytes().min(room);
    // Characters remain whole.
    while text.to_str().is_ok_and(|text| !text.is_char_boundary(len)) {
        len -= 1;
    }
    // SAFETY: `len` bytes and the zero byte fit into the buffer, which the text does not overlap.
    unsafe {
        to.copy_from_nonoverlapping(text.as_ptr(), len);
        to.add(len).write(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_an_error_and_ends_the_network() {
        let network = open::network(c"two-to-one").unwrap();
        let mut sim = RoceSim::new(network);
        assert_eq!(call(Some(&mut sim), |_| Ok(7)), 7);
        let hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(|_| {}));
        let result = call(Some(&mut sim), |_| panic!("a defect"));
        std::panic::set_hook(hook);
        assert_eq!(result, i64::from(ROCE_SIM_ERROR_INTERNAL));
        assert_eq!(sim.error.as_c_str(), DEFECT);
        assert_eq!(roce_sim_send(Some(&mut sim), 0, 1, 0, 1), i64::from(ROCE_SIM_ERROR_INTERNAL));
        assert_eq!(roce_sim_ranks(Some(&sim)), 3);
    }

    #[test]
    fn texts_are_cut_between_characters_and_end_with_a_zero_byte() {
        let written = |size: usize| {
            let mut buffer = [b'x' as c_char; 8];
            // SAFETY: the sizes below are at most that of the buffer.
            unsafe { write_text(buffer.as_mut_ptr(), size, c"aµb") };
            buffer.map(|byte| byte as u8)
        };
        assert_eq!(written(0), *b"xxxxxxxx");
        assert_eq!(written(1), *b"\0xxxxxxx");
        assert_eq!(written(3), *b"a\0xxxxxx");
        assert_eq!(written(8), *b"a\xc2\xb5b\0xxx");
        // SAFETY: a null pointer is allowed.
        unsafe { write_text(std::ptr::null_mut(), 8, c"a") };
        assert_eq!(text_of("a\0b").as_c_str(), c"a");
    }
}
