//! Waiting for rsockets and other descriptors together.

use std::ffi::{c_int, c_short};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use roce_fault::verbs::Verb;

use super::descriptors::LONGEST_SLEEP_MS;
use super::{Any, Phase, Socket, find};
use crate::answer::{Errno, count};

/// Returns the requested events that an rsocket has. Before a sleep, also requests an event for the next
/// completion.
fn look(socket: &Any, events: c_short, is_sleep_next: bool) -> c_short {
    match socket {
        Any::Stream(socket) => look_at_stream(socket, events, is_sleep_next),
        Any::Datagram(socket) => socket.look(is_sleep_next) & (events | libc::POLLERR),
    }
}

fn look_at_stream(socket: &Socket, events: c_short, is_sleep_next: bool) -> c_short {
    let mut state = socket.state();
    if state.phase == Phase::Listening {
        let mut descriptors = [PollFd::from_borrowed_fd(socket.watch.as_fd(), PollFlags::IN)];
        let found = poll(&mut descriptors, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
        return if found == Ok(1) { events & libc::POLLIN } else { 0 };
    }
    let mut progressed = state.progress();
    if is_sleep_next && !state.is_watched {
        progressed = progressed.and_then(|()| state.arm()).and_then(|()| state.progress());
    }
    socket.changed.notify_all();
    if let Err(errno) = progressed {
        state.fail(errno);
    }
    let stream = state.stream.as_ref();
    let has_data = stream.is_some_and(super::Stream::has_data);
    let mut found = 0;
    match state.phase {
        Phase::New | Phase::Listening => return libc::POLLOUT & events | libc::POLLHUP,
        Phase::Connecting | Phase::Accepting => return 0,
        Phase::Connected => {
            if has_data || !state.is_readable {
                found |= libc::POLLIN;
            }
            if state.is_writable && stream.is_some_and(super::Stream::can_send) {
                found |= libc::POLLOUT;
            }
        }
        // Programs stop reading at the end of the connection, so the end is not reported before the last
        // bytes were read.
        Phase::Disconnected if has_data => found = libc::POLLIN,
        Phase::Disconnected => found = libc::POLLIN | libc::POLLHUP,
        Phase::Failed => found = libc::POLLIN | libc::POLLOUT | libc::POLLERR,
    }
    found & (events | libc::POLLHUP | libc::POLLERR)
}

/// # Safety
///
/// The list has this length.
unsafe fn list<'a>(descriptors: *mut libc::pollfd, length: usize) -> &'a mut [libc::pollfd] {
    if length == 0 {
        return &mut [];
    }
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts_mut(descriptors, length) }
}

pub(in super::super) unsafe extern "C" fn rpoll(
    descriptors: *mut libc::pollfd,
    number: libc::nfds_t,
    timeout: c_int,
) -> c_int {
    count(Verb::rpoll, || {
        let length = usize::try_from(number).map_err(|_| Errno::INVALID)?;
        if descriptors.is_null() && length > 0 {
            return Err(Errno(libc::EFAULT));
        }
        // SAFETY: the application's list of this length, or an empty one.
        let asked = unsafe { list(descriptors, length) };
        let sockets: Vec<_> = asked.iter().map(|entry| find(entry.fd)).collect();
        if sockets.iter().all(Option::is_none) {
            // SAFETY: the application's, as for `poll`.
            let found = unsafe { libc::poll(descriptors, number, timeout) };
            return if found < 0 { Err(std::io::Error::last_os_error().into()) } else { Ok(found) };
        }
        let end = u64::try_from(timeout).ok().map(|timeout| Instant::now() + Duration::from_millis(timeout));
        let mut system = asked.to_vec();
        loop {
            let left = end.map_or(LONGEST_SLEEP_MS, |end| {
                let left = end.saturating_duration_since(Instant::now()).as_millis();
                c_int::try_from(left).unwrap_or(c_int::MAX).min(LONGEST_SLEEP_MS)
            });
            let is_at_end = end.is_some_and(|end| Instant::now() >= end);
            for (index, socket) in sockets.iter().enumerate() {
                let Some(socket) = socket else { continue };
                system[index].events = libc::POLLIN;
                asked[index].revents = look(socket, asked[index].events, !is_at_end);
            }
            let mut looked = asked.iter().zip(&sockets);
            let has_found = looked.any(|(entry, socket)| socket.is_some() && entry.revents != 0);
            let sleep = if has_found || is_at_end { 0 } else { left };
            // SAFETY: a list of this length.
            let polled = unsafe { libc::poll(system.as_mut_ptr(), number, sleep) };
            if polled < 0 {
                return Err(std::io::Error::last_os_error().into());
            }
            for ((entry, found), socket) in asked.iter_mut().zip(&system).zip(&sockets) {
                if socket.is_none() {
                    entry.revents = found.revents;
                }
            }
            let ready = asked.iter().filter(|entry| entry.revents != 0).count();
            if ready > 0 || is_at_end {
                return Ok(c_int::try_from(ready).unwrap_or(c_int::MAX));
            }
        }
    })
}
