//! `rselect`, implemented with `rpoll`.

use std::ffi::c_int;

use roce_fault::verbs::Verb;

use super::descriptors::called;
use super::poll::rpoll;
use crate::answer::{Errno, count};

/// The requested events of each of the three sets, and the events that satisfy them.
const ASKED: [i16; 3] = [libc::POLLIN, libc::POLLOUT, libc::POLLPRI];
const ANSWERS: [i16; 3] =
    [libc::POLLIN | libc::POLLHUP | libc::POLLERR, libc::POLLOUT | libc::POLLERR, libc::POLLPRI];

/// Returns the time in milliseconds, rounded up; -1 means forever.
fn milliseconds(timeout: Option<&libc::timeval>) -> Result<c_int, Errno> {
    let Some(time) = timeout else { return Ok(-1) };
    if time.tv_sec < 0 || !(0..1_000_000).contains(&time.tv_usec) {
        return Err(Errno::INVALID);
    }
    let all = time.tv_sec.saturating_mul(1000).saturating_add((time.tv_usec + 999) / 1000);
    Ok(c_int::try_from(all).unwrap_or(c_int::MAX))
}

pub(in super::super) unsafe extern "C" fn rselect(
    number: c_int,
    readable: *mut libc::fd_set,
    writable: *mut libc::fd_set,
    exceptional: *mut libc::fd_set,
    timeout: *mut libc::timeval,
) -> c_int {
    count(Verb::rselect, || {
        if usize::try_from(number).map_or(true, |number| number > libc::FD_SETSIZE) {
            return Err(Errno::INVALID);
        }
        let sets = [readable, writable, exceptional];
        // SAFETY: the application's sets and time, or null; every descriptor is less than the size of a set.
        unsafe {
            let timeout = milliseconds(timeout.as_ref())?;
            let mut list = Vec::new();
            for fd in 0..number {
                let is_asked = |set: *mut libc::fd_set| !set.is_null() && libc::FD_ISSET(fd, set);
                let asked = sets.iter().zip(ASKED).filter(|(set, _)| is_asked(**set));
                let events = asked.fold(0, |events, (_, event)| events | event);
                if events != 0 {
                    list.push(libc::pollfd { fd, events, revents: 0 });
                }
            }
            let found = rpoll(list.as_mut_ptr(), list.len() as libc::nfds_t, timeout);
            called(found.min(0))?;
            if list.iter().any(|entry| entry.revents & libc::POLLNVAL != 0) {
                return Err(Errno(libc::EBADF));
            }
            let mut bits = 0;
            for ((set, asked), answers) in sets.into_iter().zip(ASKED).zip(ANSWERS) {
                if set.is_null() {
                    continue;
                }
                libc::FD_ZERO(set);
                for entry in
                    list.iter().filter(|entry| entry.events & asked != 0 && entry.revents & answers != 0)
                {
                    libc::FD_SET(entry.fd, set);
                    bits += 1;
                }
            }
            Ok(bits)
        }
    })
}
