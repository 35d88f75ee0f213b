//! Mappings: memory of the application that the peer writes at an offset (`riomap`, `riounmap`, `riowrite`).

use std::ffi::{c_int, c_void};

use roce_fault::verbs::Verb;

use super::calls::{is_impatient, is_over};
use super::descriptors::last_errno;
use super::flow::{FIRST_TRANSFER, LONGEST_TRANSFER};
use super::mapped::Mapped;
use super::wire::{Mapping, Target};
use super::{Phase, Socket, State, Stream, socket_of};
use crate::answer::{Errno, count};
use crate::context::Pointer;
use crate::memory::ibv_reg_mr;

/// `IBV_ACCESS_LOCAL_WRITE`, and `IBV_ACCESS_REMOTE_WRITE`.
const LOCAL: c_int = 1;
const REMOTE: c_int = 2;

impl State {
    /// Announces mappings that the peer does not know.
    pub(super) fn announce_mappings(&mut self) -> Result<(), Errno> {
        match &mut self.stream {
            Some(stream) if self.phase == Phase::Connected => self.mappings.announce(stream),
            _ => Ok(()),
        }
    }

    /// # Safety
    ///
    /// The identifier is alive.
    unsafe fn map(
        &mut self,
        memory: *mut c_void,
        length: usize,
        is_remote: bool,
        offset: i64,
    ) -> Result<i64, Errno> {
        let stream = self.stream.as_ref().ok_or(Errno::INVALID)?;
        let most = stream.peer_mappings.length;
        let index = is_remote.then(|| self.mappings.free_index(most).ok_or(Errno::NO_MEMORY)).transpose()?;
        // SAFETY: the caller's promise; the memory is the application's.
        let region = unsafe {
            ibv_reg_mr((*self.id.0).pd, memory, length, LOCAL | if is_remote { REMOTE } else { 0 })
        };
        if region.is_null() {
            return Err(last_errno());
        }
        let offset = if offset == -1 { memory as i64 } else { offset };
        self.mappings.mapped.push(Mapped {
            address: memory as usize,
            length,
            region: Pointer(region),
            index,
        });
        if let Some(index) = index {
            // SAFETY: the region is alive.
            let key = unsafe { (*region).rkey };
            let length = u32::try_from(length).unwrap_or(u32::MAX);
            let target = Target { address: memory as u64, key, length };
            self.mappings.pending.push_back((index, Mapping { offset: offset as u64, target }));
            self.announce_mappings()?;
        }
        Ok(offset)
    }
}

pub(in super::super) unsafe extern "C" fn riomap(
    number: c_int,
    memory: *mut c_void,
    length: usize,
    protection: c_int,
    _flags: c_int,
    offset: i64,
) -> i64 {
    count(Verb::riomap, || {
        let socket = socket_of(number)?;
        if protection & !libc::PROT_WRITE != 0 {
            return Err(Errno::INVALID);
        }
        // SAFETY: the identifier lives as long as the rsocket.
        unsafe { socket.state().map(memory, length, protection & libc::PROT_WRITE != 0, offset) }
    })
}

pub(in super::super) unsafe extern "C" fn riounmap(
    number: c_int,
    memory: *mut c_void,
    length: usize,
) -> c_int {
    count(Verb::riounmap, || {
        let socket = socket_of(number)?;
        let mut state = socket.state();
        let mappings = &mut state.mappings;
        let is_it = |known: &Mapped| known.address == memory as usize && known.length == length;
        let at = mappings.mapped.iter().position(is_it).ok_or(Errno::INVALID)?;
        let gone = mappings.mapped.swap_remove(at);
        mappings.pending.retain(|(index, _)| gone.index != Some(*index));
        Ok(0)
    })
}

/// Writes bytes into the mappings of the peer; returns the number of bytes inside the mappings.
fn write(socket: &Socket, data: &[u8], offset: u64, flags: c_int) -> Result<isize, Errno> {
    let mut state = socket.state();
    let is_nonblocking = is_impatient(&state, flags);
    let mut done = 0;
    while done < data.len() {
        let is_ready = |state: &State| {
            is_over(state)
                || !state.mappings.is_pending() && state.stream.as_ref().is_some_and(Stream::can_write)
        };
        match socket.wait(state, is_nonblocking, is_ready) {
            Ok(found) => state = found,
            Err(_) if done > 0 => break,
            Err(errno) => return Err(errno),
        }
        if is_over(&state) {
            return if done > 0 { Ok(done.cast_signed()) } else { Err(Errno(libc::ECONNRESET)) };
        }
        let Some(stream) = &mut state.stream else { return Err(Errno(libc::ENOTCONN)) };
        let Some(to) = stream.mapping_at(offset.wrapping_add(done as u64)) else { break };
        let most = (data.len() - done).min(done.clamp(FIRST_TRANSFER, LONGEST_TRANSFER));
        done += stream.write(&data[done..done + most], to)?;
    }
    Ok(done.cast_signed())
}

pub(in super::super) unsafe extern "C" fn riowrite(
    number: c_int,
    data: *const c_void,
    length: usize,
    offset: i64,
    flags: c_int,
) -> isize {
    count(Verb::riowrite, || {
        let socket = socket_of(number)?;
        if length == 0 {
            return Ok(0);
        }
        if data.is_null() {
            return Err(Errno(libc::EFAULT));
        }
        // SAFETY: the application's bytes.
        let data = unsafe { std::slice::from_raw_parts(data.cast(), length) };
        write(&socket, data, offset as u64, flags)
    })
}
