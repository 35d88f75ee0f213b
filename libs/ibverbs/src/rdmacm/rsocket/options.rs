//! The calls that set and return options and flags of rsockets.

use std::ffi::{c_int, c_long, c_void};

use roce_fault::verbs::Verb;

use super::settings::Options;
use super::{Any, Phase, State, find};
use crate::answer::{Errno, count};

pub(crate) unsafe extern "C" fn rsetsockopt(
    number: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: libc::socklen_t,
) -> c_int {
    count(Verb::rsetsockopt, || {
        let socket = find(number).ok_or(Errno(libc::EBADF))?;
        if value.is_null() || (len as usize) < size_of::<c_int>() {
            return Err(Errno::INVALID);
        }
        // SAFETY: the application's value has at least the size of an integer.
        let value = unsafe { value.cast::<c_int>().read_unaligned() };
        match socket {
            Any::Stream(socket) => socket.state().options.set((level, name), value)?,
            Any::Datagram(socket) => socket.state().options.set((level, name), value)?,
        }
        Ok(0)
    })
}

fn of_stream(state: &mut State, name: (c_int, c_int)) -> Result<c_int, Errno> {
    match name {
        (libc::SOL_SOCKET, libc::SO_ERROR) => Ok(std::mem::take(&mut state.error)),
        (libc::SOL_SOCKET, libc::SO_TYPE) => Ok(libc::SOCK_STREAM),
        (libc::SOL_SOCKET, libc::SO_ACCEPTCONN) => Ok((state.phase == Phase::Listening).into()),
        name => state.options.get(name),
    }
}

fn of_datagrams(options: &Options, name: (c_int, c_int)) -> Result<c_int, Errno> {
    match name {
        (libc::SOL_SOCKET, libc::SO_ERROR | libc::SO_ACCEPTCONN) => Ok(0),
        (libc::SOL_SOCKET, libc::SO_TYPE) => Ok(libc::SOCK_DGRAM),
        name => options.get(name),
    }
}

pub(crate) unsafe extern "C" fn rgetsockopt(
    number: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut libc::socklen_t,
) -> c_int {
    count(Verb::rgetsockopt, || {
        let socket = find(number).ok_or(Errno(libc::EBADF))?;
        // SAFETY: the application's room for the answer, or null.
        unsafe {
            if value.is_null() || len.is_null() || (*len as usize) < size_of::<c_int>() {
                return Err(Errno::INVALID);
            }
            let found = match socket {
                Any::Stream(socket) => of_stream(&mut socket.state(), (level, name))?,
                Any::Datagram(socket) => of_datagrams(&socket.state().options, (level, name))?,
            };
            value.cast::<c_int>().write_unaligned(found);
            *len = size_of::<c_int>() as libc::socklen_t;
        }
        Ok(0)
    })
}

/// Implements `fcntl`. In C it has a variable number of arguments, which these architectures pass like
/// others.
pub(crate) extern "C" fn rfcntl(number: c_int, command: c_int, argument: c_long) -> c_int {
    count(Verb::rfcntl, || {
        let change = |is_nonblocking: &mut bool| match command {
            libc::F_GETFL => Ok(libc::O_RDWR | if *is_nonblocking { libc::O_NONBLOCK } else { 0 }),
            libc::F_SETFL => {
                *is_nonblocking = argument & c_long::from(libc::O_NONBLOCK) != 0;
                Ok(0)
            }
            _ => Err(Errno::UNSUPPORTED),
        };
        match find(number).ok_or(Errno(libc::EBADF))? {
            Any::Stream(socket) => change(&mut socket.state().is_nonblocking),
            Any::Datagram(socket) => change(&mut socket.state().is_nonblocking),
        }
    })
}
