//! Socket calls with several buffers or with an address, which a stream ignores.

use std::ffi::{c_int, c_void};

use roce_fault::verbs::Verb;

use super::calls::{give_address, receive, rgetpeername, send};
use super::flow::FIRST_TRANSFER;
use super::{datagram_of, socket_of};
use crate::answer::{Errno, count};
use crate::rdmacm::sockaddr::read;

/// Maximum number of buffers of a call.
const MOST_BUFFERS: usize = 1024;

/// Returns the buffers of a call.
///
/// # Safety
///
/// The list has this length, and stays valid while the result is in use.
unsafe fn buffers<'a>(list: *const libc::iovec, number: usize) -> Result<&'a [libc::iovec], Errno> {
    if number > MOST_BUFFERS {
        return Err(Errno::INVALID);
    }
    if number == 0 {
        return Ok(&[]);
    }
    if list.is_null() {
        return Err(Errno(libc::EFAULT));
    }
    // SAFETY: the caller's promise.
    Ok(unsafe { std::slice::from_raw_parts(list, number) })
}

/// Applies `one` to each buffer until one is not used up; returns the total number of bytes.
fn each(
    buffers: &[libc::iovec],
    mut one: impl FnMut(&libc::iovec, bool) -> Result<isize, Errno>,
) -> Result<isize, Errno> {
    let mut all: isize = 0;
    for buffer in buffers.iter().filter(|buffer| buffer.iov_len > 0) {
        if buffer.iov_base.is_null() {
            return Err(Errno(libc::EFAULT));
        }
        match one(buffer, all > 0) {
            Ok(bytes) => {
                all += bytes;
                if bytes.cast_unsigned() < buffer.iov_len {
                    break;
                }
            }
            Err(_) if all > 0 => break,
            Err(errno) => return Err(errno),
        }
    }
    Ok(all)
}

/// Returns the bytes of the buffers of a datagram.
///
/// # Safety
///
/// The buffers belong to the application.
unsafe fn parts(buffers: &[libc::iovec]) -> Result<Vec<&[u8]>, Errno> {
    let some = buffers.iter().filter(|buffer| buffer.iov_len > 0);
    some.map(|buffer| match buffer.iov_base.is_null() {
        true => Err(Errno(libc::EFAULT)),
        // SAFETY: the caller's promise.
        false => Ok(unsafe { std::slice::from_raw_parts(buffer.iov_base.cast(), buffer.iov_len) }),
    })
    .collect()
}

/// Copies a datagram into several buffers; the rest is discarded.
///
/// # Safety
///
/// The application has given the buffers as room.
unsafe fn scatter(mut data: &[u8], buffers: &[libc::iovec]) -> isize {
    let mut done = 0;
    for buffer in buffers.iter().filter(|buffer| !buffer.iov_base.is_null()) {
        let length = data.len().min(buffer.iov_len);
        // SAFETY: the caller's promise.
        unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), buffer.iov_base.cast(), length) };
        data = &data[length..];
        done += length.cast_signed();
    }
    done
}

fn send_all(number: c_int, buffers: &[libc::iovec], flags: c_int) -> Result<isize, Errno> {
    if let Some(socket) = datagram_of(number) {
        // SAFETY: the application's buffers.
        return socket.send(&unsafe { parts(buffers)? }, flags, None);
    }
    let socket = socket_of(number)?;
    if buffers.iter().fold(0_usize, |all, buffer| all.saturating_add(buffer.iov_len)) <= FIRST_TRANSFER {
        // As one transfer, so that the peer reads a header and what it announces at once.
        // SAFETY: the application's buffers.
        return send(&socket, &unsafe { parts(buffers)? }.concat(), flags);
    }
    each(buffers, |buffer, _| {
        // SAFETY: the application's bytes; the buffer is not empty.
        let data = unsafe { std::slice::from_raw_parts(buffer.iov_base.cast(), buffer.iov_len) };
        send(&socket, data, flags)
    })
}

fn receive_all(number: c_int, buffers: &[libc::iovec], flags: c_int) -> Result<isize, Errno> {
    if let Some(socket) = datagram_of(number) {
        // SAFETY: the application's room.
        return socket.receive(flags, |found, _| unsafe { scatter(found, buffers) });
    }
    let socket = socket_of(number)?;
    each(buffers, |buffer, has_some| {
        // Only the first buffer waits for data.
        let is_patient = !has_some || flags & libc::MSG_WAITALL != 0;
        let flags = if is_patient { flags } else { flags | libc::MSG_DONTWAIT };
        // SAFETY: the application's room; the buffer is not empty.
        let data = unsafe { std::slice::from_raw_parts_mut(buffer.iov_base.cast(), buffer.iov_len) };
        receive(&socket, data, flags)
    })
}

/// Converts a number of buffers. The type of `msg_iovlen` depends on the C library.
fn length(number: impl TryInto<usize>) -> Result<usize, Errno> {
    number.try_into().map_err(|_| Errno::INVALID)
}

pub(in super::super) unsafe extern "C" fn rwritev(
    number: c_int,
    list: *const libc::iovec,
    buffers_of_it: c_int,
) -> isize {
    // SAFETY: the application's list of this length.
    count(Verb::rwritev, || send_all(number, unsafe { buffers(list, length(buffers_of_it)?)? }, 0))
}

pub(in super::super) unsafe extern "C" fn rreadv(
    number: c_int,
    list: *const libc::iovec,
    buffers_of_it: c_int,
) -> isize {
    // SAFETY: the application's list of this length.
    count(Verb::rreadv, || receive_all(number, unsafe { buffers(list, length(buffers_of_it)?)? }, 0))
}

/// Returns the buffers of a message. A stream does not support control data.
///
/// # Safety
///
/// The pointer is null or a message of the application.
unsafe fn buffers_of<'a>(message: *const libc::msghdr) -> Result<&'a [libc::iovec], Errno> {
    // SAFETY: the caller's promise.
    unsafe {
        let message = message.as_ref().ok_or(Errno(libc::EFAULT))?;
        if !message.msg_control.is_null() && message.msg_controllen > 0 {
            return Err(Errno::UNSUPPORTED);
        }
        buffers(message.msg_iov, length(message.msg_iovlen)?)
    }
}

pub(in super::super) unsafe extern "C" fn rsendmsg(
    number: c_int,
    message: *const libc::msghdr,
    flags: c_int,
) -> isize {
    // SAFETY: the application's message.
    count(Verb::rsendmsg, || send_all(number, unsafe { buffers_of(message)? }, flags))
}

pub(in super::super) unsafe extern "C" fn rrecvmsg(
    number: c_int,
    message: *mut libc::msghdr,
    flags: c_int,
) -> isize {
    count(Verb::rrecvmsg, || {
        // SAFETY: the application's message.
        unsafe {
            let found = receive_all(number, buffers_of(message)?, flags)?;
            (*message).msg_flags = 0;
            Ok(found)
        }
    })
}

pub(in super::super) unsafe extern "C" fn rsendto(
    number: c_int,
    data: *const c_void,
    len: usize,
    flags: c_int,
    address: *const libc::sockaddr,
    _address_len: libc::socklen_t,
) -> isize {
    count(Verb::rsendto, || {
        if let Some(socket) = datagram_of(number)
            && !address.is_null()
        {
            let buffer = libc::iovec { iov_base: data.cast_mut(), iov_len: len };
            // SAFETY: the application's bytes and address.
            return unsafe { socket.send(&parts(&[buffer])?, flags, Some(read(address)?)) };
        }
        if !address.is_null() {
            socket_of(number)?;
            return Err(Errno(libc::EISCONN));
        }
        let buffer = libc::iovec { iov_base: data.cast_mut(), iov_len: len };
        send_all(number, &[buffer], flags)
    })
}

pub(in super::super) unsafe extern "C" fn rrecvfrom(
    number: c_int,
    data: *mut c_void,
    len: usize,
    flags: c_int,
    address: *mut libc::sockaddr,
    address_len: *mut libc::socklen_t,
) -> isize {
    count(Verb::rrecvfrom, || {
        let buffer = libc::iovec { iov_base: data, iov_len: len };
        if let Some(socket) = datagram_of(number) {
            let (found, from) = socket.receive(flags, |found, from| {
                // SAFETY: the application's room.
                (unsafe { scatter(found, &[buffer]) }, from)
            })?;
            if !address.is_null() && !address_len.is_null() {
                // SAFETY: as above.
                unsafe { give_address(Some(from), address, address_len)? };
            }
            return Ok(found);
        }
        let found = receive_all(number, &[buffer], flags)?;
        if found > 0 && !address.is_null() && !address_len.is_null() {
            // SAFETY: the application's room.
            unsafe { rgetpeername(number, address, address_len) };
        }
        Ok(found)
    })
}
