//! The `bpf` system call: creating a map, loading a program, and attaching the program to an interface.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use super::program::Instruction;

/// Creates a map from queue numbers to AF_XDP sockets.
pub(super) fn create_socket_map(entries: u32) -> io::Result<OwnedFd> {
    let attributes = MapCreate { kind: XSKMAP, key_size: 4, value_size: 4, max_entries: entries };
    // SAFETY: the attributes have the layout of this command and contain no pointers.
    let map = unsafe { bpf(MAP_CREATE, &attributes) }?;
    // SAFETY: the kernel has just created this descriptor for the caller.
    Ok(unsafe { OwnedFd::from_raw_fd(map) })
}

/// Puts a socket into the map, at its queue.
pub(super) fn put_socket(map: BorrowedFd<'_>, queue: u32, socket: BorrowedFd<'_>) -> io::Result<()> {
    let value = socket.as_raw_fd();
    let attributes = MapUpdate {
        map: map.as_raw_fd().cast_unsigned(),
        _padding: 0,
        key: (&raw const queue) as u64,
        value: (&raw const value) as u64,
        flags: 0,
    };
    // SAFETY: key and value have four bytes each, as in the map, and live until the call returns.
    unsafe { bpf(MAP_UPDATE, &attributes) }.map(|_| ())
}

/// Loads a program. If the verifier refuses it, logs the verifier's text.
pub(super) fn load(program: &[Instruction], takes_fragments: bool) -> io::Result<OwnedFd> {
    match try_load(program, takes_fragments, &mut []) {
        Err(error) if matches!(error.raw_os_error(), Some(libc::EACCES | libc::EINVAL)) => {
            let mut log = vec![0; 64 << 10];
            let error = match try_load(program, takes_fragments, &mut log) {
                Ok(program) => return Ok(program),
                Err(error) => error,
            };
            let text = CStr::from_bytes_until_nul(&log).map(CStr::to_string_lossy).unwrap_or_default();
            tracing::debug!(%text, "the verifier refused the program");
            Err(error)
        }
        result => result,
    }
}

fn try_load(program: &[Instruction], takes_fragments: bool, log: &mut [u8]) -> io::Result<OwnedFd> {
    let attributes = ProgramLoad {
        kind: PROGRAM_XDP,
        count: program.len() as u32,
        instructions: program.as_ptr() as u64,
        license: LICENSE.as_ptr() as u64,
        log_level: u32::from(!log.is_empty()),
        log_size: log.len() as u32,
        log: if log.is_empty() { 0 } else { log.as_mut_ptr() as u64 },
        kernel_version: 0,
        flags: if takes_fragments { XDP_HAS_FRAGS } else { 0 },
        name: *b"roce\0\0\0\0\0\0\0\0\0\0\0\0",
        interface: 0,
        attach_type: ATTACH_XDP,
    };
    // SAFETY: instructions, licence and log have the lengths in the attributes, and live until the call
    // returns.
    let program = unsafe { bpf(PROGRAM_LOAD, &attributes) }?;
    // SAFETY: the kernel has just created this descriptor for the caller.
    Ok(unsafe { OwnedFd::from_raw_fd(program) })
}

/// Attaches a program to an interface until the returned descriptor is closed.
pub(super) fn attach(program: BorrowedFd<'_>, interface: u32, native: bool) -> io::Result<OwnedFd> {
    let attributes = LinkCreate {
        program: program.as_raw_fd().cast_unsigned(),
        interface,
        attach_type: ATTACH_XDP,
        flags: if native { XDP_FLAGS_DRIVER } else { XDP_FLAGS_GENERIC },
    };
    // SAFETY: the attributes have the layout of this command and contain no pointers.
    let link = unsafe { bpf(LINK_CREATE, &attributes) }?;
    // SAFETY: the kernel has just created this descriptor for the caller.
    Ok(unsafe { OwnedFd::from_raw_fd(link) })
}

/// # Safety
///
/// `attributes` must have the layout of this command, and its pointers must be valid.
unsafe fn bpf<T>(command: libc::c_long, attributes: &T) -> io::Result<i32> {
    // SAFETY: the kernel reads `size` bytes of the attributes; the caller guarantees the rest.
    let result = unsafe {
        libc::syscall(libc::SYS_bpf, command, std::ptr::from_ref(attributes), size_of::<T>() as libc::c_uint)
    };
    i32::try_from(result).ok().filter(|result| *result >= 0).ok_or_else(io::Error::last_os_error)
}

#[repr(C)]
struct MapCreate {
    kind: u32,
    key_size: u32,
    value_size: u32,
    max_entries: u32,
}

#[repr(C)]
struct MapUpdate {
    map: u32,
    _padding: u32,
    key: u64,
    value: u64,
    flags: u64,
}

#[repr(C)]
struct ProgramLoad {
    kind: u32,
    count: u32,
    instructions: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log: u64,
    kernel_version: u32,
    flags: u32,
    name: [u8; 16],
    interface: u32,
    attach_type: u32,
}

#[repr(C)]
struct LinkCreate {
    program: u32,
    interface: u32,
    attach_type: u32,
    flags: u32,
}

const MAP_CREATE: libc::c_long = 0;
const MAP_UPDATE: libc::c_long = 2;
const PROGRAM_LOAD: libc::c_long = 5;
const LINK_CREATE: libc::c_long = 28;
const XSKMAP: u32 = 17;
const PROGRAM_XDP: u32 = 6;
const ATTACH_XDP: u32 = 37;
const XDP_HAS_FRAGS: u32 = 1 << 5;
const XDP_FLAGS_GENERIC: u32 = 1 << 1;
const XDP_FLAGS_DRIVER: u32 = 1 << 2;
/// The licence of the program; its helpers do not require a particular one.
const LICENSE: &CStr = c"Dual MIT/GPL";
