//! The socket calls.

use std::ffi::{c_int, c_void};
use std::net::SocketAddr;
use std::sync::Arc;

use roce_fault::verbs::Verb;

use super::connection::accept;
use super::datagram::DatagramSocket;
use super::descriptors::{called, wait_readable};
use super::flow::{FIRST_TRANSFER, LONGEST_TRANSFER};
use super::settings::Options;
use super::{Any, Phase, Socket, datagram_of, find, publish, socket_of, withdraw};
use crate::abi::{RDMA_PS_TCP, rdma_cm_id};
use crate::answer::{Errno, count};
use crate::rdmacm::addresses::rdma_bind_addr;
use crate::rdmacm::connect::rdma_listen;
use crate::rdmacm::id::id_of;
use crate::rdmacm::identifiers::rdma_create_id;
use crate::rdmacm::sockaddr::{read, storage};

pub(crate) extern "C" fn rsocket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    count(Verb::rsocket, || {
        if !matches!(kind, libc::SOCK_STREAM | libc::SOCK_DGRAM) {
            return Err(Errno::UNSUPPORTED);
        }
        if !matches!(domain, libc::AF_INET | libc::AF_INET6) {
            return Err(Errno(libc::EAFNOSUPPORT));
        }
        if kind == libc::SOCK_DGRAM {
            if !matches!(protocol, 0 | libc::IPPROTO_UDP) {
                return Err(Errno(libc::EPROTONOSUPPORT));
            }
            let socket = DatagramSocket::new(domain == libc::AF_INET)?;
            return Ok(publish(Any::Datagram(Arc::new(socket))));
        }
        if !matches!(protocol, 0 | libc::IPPROTO_TCP) {
            return Err(Errno(libc::EPROTONOSUPPORT));
        }
        let mut id: *mut rdma_cm_id = std::ptr::null_mut();
        // SAFETY: the function has room for a pointer.
        called(unsafe {
            rdma_create_id(std::ptr::null_mut(), &raw mut id, std::ptr::null_mut(), RDMA_PS_TCP)
        })?;
        Ok(publish(Any::Stream(Arc::new(Socket::new(id, Phase::New, Options::default())?))))
    })
}

pub(crate) unsafe extern "C" fn rbind(
    number: c_int,
    address: *const libc::sockaddr,
    _len: libc::socklen_t,
) -> c_int {
    count(Verb::rbind, || {
        if let Some(socket) = datagram_of(number) {
            // SAFETY: the address is the application's, or null, which is refused.
            socket.bind(unsafe { read(address)? })?;
            return Ok(0);
        }
        let socket = socket_of(number)?;
        let state = socket.state();
        if state.phase != Phase::New {
            return Err(Errno::INVALID);
        }
        // SAFETY: the identifier is alive; the address is the application's, or null, which is refused.
        unsafe {
            id_of(state.id.0)?.state().shares_port = state.options.is_port_shared();
            called(rdma_bind_addr(state.id.0, address.cast_mut()))?;
        }
        Ok(0)
    })
}

pub(crate) extern "C" fn rlisten(number: c_int, backlog: c_int) -> c_int {
    count(Verb::rlisten, || {
        let socket = socket_of(number)?;
        let mut state = socket.state();
        match state.phase {
            Phase::Listening => return Ok(0),
            Phase::New => {}
            _ => return Err(Errno::INVALID),
        }
        // SAFETY: the identifier is alive.
        called(unsafe { rdma_listen(state.id.0, backlog) })?;
        state.phase = Phase::Listening;
        Ok(0)
    })
}

pub(crate) unsafe extern "C" fn raccept(
    number: c_int,
    address: *mut libc::sockaddr,
    len: *mut libc::socklen_t,
) -> c_int {
    count(Verb::raccept, || {
        let socket = socket_of(number)?;
        loop {
            let state = socket.state();
            if state.phase != Phase::Listening {
                return Err(Errno::INVALID);
            }
            match accept(&state) {
                Ok(new) => {
                    new.state().is_nonblocking = state.is_nonblocking;
                    let new = publish(Any::Stream(Arc::new(new)));
                    if !address.is_null() && !len.is_null() {
                        // SAFETY: the application has room for an address of the given length.
                        unsafe { rgetpeername(new, address, len) };
                    }
                    return Ok(new);
                }
                Err(Errno::AGAIN) if !state.is_nonblocking => {}
                Err(errno) => return Err(errno),
            }
            drop(state);
            wait_readable(&socket.watch)?;
        }
    })
}

pub(crate) unsafe extern "C" fn rconnect(
    number: c_int,
    address: *const libc::sockaddr,
    _len: libc::socklen_t,
) -> c_int {
    count(Verb::rconnect, || {
        if let Some(socket) = datagram_of(number) {
            // SAFETY: the address is the application's, or null, which is refused.
            socket.connect(unsafe { read(address)? })?;
            return Ok(0);
        }
        let socket = socket_of(number)?;
        let mut state = socket.state();
        // SAFETY: the address is the application's, or null, which is refused.
        unsafe { state.connect(&socket, address.cast_mut())? };
        if state.is_nonblocking && state.is_opening() {
            return Err(Errno(libc::EINPROGRESS));
        }
        state = socket.wait(state, false, |state| !state.is_opening())?;
        if state.phase == Phase::Failed { Err(Errno(state.error)) } else { Ok(0) }
    })
}

pub(crate) extern "C" fn rshutdown(number: c_int, how: c_int) -> c_int {
    count(Verb::rshutdown, || {
        match datagram_of(number) {
            Some(socket) => socket.shut_down(how)?,
            None => socket_of(number)?.shut_down(how)?,
        }
        Ok(0)
    })
}

pub(crate) extern "C" fn rclose(number: c_int) -> c_int {
    count(Verb::rclose, || {
        if let Some(Any::Stream(socket)) = find(number) {
            // Data that cannot be sent any more are lost, as with `close`.
            let _ = socket.shut_down(libc::SHUT_RDWR);
        }
        withdraw(number)?;
        Ok(0)
    })
}

/// Returns whether a call with these flags does not wait.
pub(super) fn is_impatient(state: &super::State, flags: c_int) -> bool {
    state.is_nonblocking || flags & libc::MSG_DONTWAIT != 0
}

/// Returns whether nothing more can be sent.
pub(super) fn is_over(state: &super::State) -> bool {
    !state.is_opening() && (state.phase != Phase::Connected || !state.is_writable)
}

/// Sends data; returns the number of accepted bytes.
pub(super) fn send(socket: &Arc<Socket>, data: &[u8], flags: c_int) -> Result<isize, Errno> {
    let mut state = socket.state();
    let is_nonblocking = is_impatient(&state, flags);
    let mut done = 0;
    while done < data.len() {
        let is_ready = |state: &super::State| {
            is_over(state)
                || !state.is_opening()
                    && !state.mappings.is_pending()
                    && state.stream.as_ref().is_some_and(super::Stream::can_send)
        };
        if !is_ready(&state) || state.phase != Phase::Connected {
            match socket.wait(state, is_nonblocking, is_ready) {
                Ok(found) => state = found,
                Err(_) if done > 0 => break,
                Err(errno) => return Err(errno),
            }
        }
        if state.phase != Phase::Connected || !state.is_writable {
            let errno = if state.phase == Phase::New { libc::ENOTCONN } else { libc::ECONNRESET };
            return if done > 0 { Ok(done.cast_signed()) } else { Err(Errno(errno)) };
        }
        // The first transfers of a call are short, so that copying and sending overlap.
        let most = (data.len() - done).min(done.clamp(FIRST_TRANSFER, LONGEST_TRANSFER));
        let Some(stream) = &mut state.stream else { return Err(Errno(libc::ENOTCONN)) };
        done += stream.send(&data[done..done + most])?;
    }
    Ok(done.cast_signed())
}

/// Receives data; returns 0 at the end of the stream.
pub(super) fn receive(socket: &Arc<Socket>, data: &mut [u8], flags: c_int) -> Result<isize, Errno> {
    let mut state = socket.state();
    if matches!(state.phase, Phase::New | Phase::Listening) {
        return Err(Errno(libc::ENOTCONN));
    }
    let is_nonblocking = is_impatient(&state, flags);
    let is_look = flags & libc::MSG_PEEK != 0;
    let mut done = 0;
    while done < data.len() {
        let is_ready = |state: &super::State| {
            state.stream.as_ref().is_none_or(super::Stream::has_data)
                || !state.is_opening() && (state.phase != Phase::Connected || !state.is_readable)
        };
        match socket.wait(state, is_nonblocking, is_ready) {
            Ok(found) => state = found,
            Err(_) if done > 0 => return Ok(done.cast_signed()),
            Err(errno) => return Err(errno),
        }
        let is_connected = state.phase == Phase::Connected;
        let Some(stream) = &mut state.stream else { return Err(Errno(libc::ENOTCONN)) };
        let found = stream.receive(&mut data[done..], is_look);
        if found > 0 && is_connected {
            stream.give_credits()?;
        }
        done += found;
        if found == 0 && done == 0 && state.phase == Phase::Failed {
            return Err(Errno(if state.error == 0 { libc::ENOTCONN } else { state.error }));
        }
        if found == 0 || flags & libc::MSG_WAITALL == 0 || is_look {
            break;
        }
    }
    Ok(done.cast_signed())
}

/// Copies the part of a datagram that fits; the rest is discarded, as with sockets.
fn copy_to(found: &[u8], room: &mut [u8]) -> isize {
    let length = found.len().min(room.len());
    room[..length].copy_from_slice(&found[..length]);
    length.cast_signed()
}

pub(crate) unsafe extern "C" fn rsend(number: c_int, data: *const c_void, len: usize, flags: c_int) -> isize {
    count(Verb::rsend, || {
        let socket = find(number).ok_or(Errno(libc::EBADF))?;
        if data.is_null() && len > 0 {
            return Err(Errno(libc::EFAULT));
        }
        // SAFETY: the application's bytes.
        let data = if len == 0 { &[] } else { unsafe { std::slice::from_raw_parts(data.cast(), len) } };
        match socket {
            Any::Stream(socket) => send(&socket, data, flags),
            Any::Datagram(socket) => socket.send(&[data], flags, None),
        }
    })
}

pub(crate) unsafe extern "C" fn rrecv(number: c_int, data: *mut c_void, len: usize, flags: c_int) -> isize {
    count(Verb::rrecv, || {
        let socket = find(number).ok_or(Errno(libc::EBADF))?;
        if data.is_null() && len > 0 {
            return Err(Errno(libc::EFAULT));
        }
        let data: &mut [u8] = match len {
            0 => &mut [],
            // SAFETY: the application's room.
            _ => unsafe { std::slice::from_raw_parts_mut(data.cast(), len) },
        };
        match socket {
            Any::Stream(socket) => receive(&socket, data, flags),
            Any::Datagram(socket) => socket.receive(flags, |found, _| copy_to(found, data)),
        }
    })
}

pub(crate) unsafe extern "C" fn rwrite(number: c_int, data: *const c_void, len: usize) -> isize {
    // SAFETY: the application's, as for `rsend`.
    count(Verb::rwrite, || Ok(unsafe { rsend(number, data, len, 0) }))
}

pub(crate) unsafe extern "C" fn rread(number: c_int, data: *mut c_void, len: usize) -> isize {
    // SAFETY: the application's, as for `rrecv`.
    count(Verb::rread, || Ok(unsafe { rrecv(number, data, len, 0) }))
}

/// Writes an address of an rsocket for the application.
///
/// # Safety
///
/// The pointers are null, or the application's room with its length.
pub(super) unsafe fn give_address(
    address: Option<SocketAddr>,
    to: *mut libc::sockaddr,
    len: *mut libc::socklen_t,
) -> Result<c_int, Errno> {
    let address = address.ok_or(Errno(libc::ENOTCONN))?;
    if to.is_null() || len.is_null() {
        return Err(Errno(libc::EFAULT));
    }
    let size =
        if address.is_ipv4() { size_of::<libc::sockaddr_in>() } else { size_of::<libc::sockaddr_in6>() };
    let from = storage(address);
    // SAFETY: the application has the room that `len` says.
    unsafe {
        let room = (*len as usize).min(size);
        std::ptr::copy_nonoverlapping((&raw const from).cast::<u8>(), to.cast::<u8>(), room);
        *len = size as libc::socklen_t;
    }
    Ok(0)
}

pub(crate) unsafe extern "C" fn rgetpeername(
    number: c_int,
    to: *mut libc::sockaddr,
    len: *mut libc::socklen_t,
) -> c_int {
    count(Verb::rgetpeername, || {
        if let Some(socket) = datagram_of(number) {
            // SAFETY: the application's room.
            return unsafe { give_address(socket.peer_address(), to, len) };
        }
        let socket = socket_of(number)?;
        // SAFETY: the identifier is alive; the application's room.
        unsafe {
            let peer = id_of(socket.state().id.0)?.state().peer;
            give_address(peer, to, len)
        }
    })
}

pub(crate) unsafe extern "C" fn rgetsockname(
    number: c_int,
    to: *mut libc::sockaddr,
    len: *mut libc::socklen_t,
) -> c_int {
    count(Verb::rgetsockname, || {
        if let Some(socket) = datagram_of(number) {
            // SAFETY: the application's room.
            return unsafe { give_address(socket.own_address(), to, len) };
        }
        let socket = socket_of(number)?;
        // SAFETY: the identifier is alive; the application's room.
        unsafe {
            let own = id_of(socket.state().id.0)?.state().source;
            give_address(own, to, len)
        }
    })
}
