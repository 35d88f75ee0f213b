//! The program on the interface, attached by libxdp, which lets several programs share one interface.

use std::io;
use std::os::raw::{c_char, c_int};
use std::ptr::NonNull;

use libxdp_sys::{
    bpf_map_update_elem, bpf_object, bpf_object__close, bpf_object__find_map_fd_by_name,
    bpf_object__open_mem, libxdp_get_error, libxdp_set_print, xdp_attach_mode,
    xdp_attach_mode_XDP_MODE_NATIVE, xdp_attach_mode_XDP_MODE_SKB, xdp_program, xdp_program__attach,
    xdp_program__close, xdp_program__detach, xdp_program__from_bpf_obj,
};
use roce_packet::MacAddr;

use crate::fork::Process;

/// Number of queues in the map of the program.
pub(super) const MAX_QUEUES: u32 = 64;

/// The output of clang for `program.bpf.c`.
static OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/program.bpf.o"));

unsafe extern "C" {
    /// Sets the function for messages of libbpf, which is linked in with libxdp; `None` discards them.
    fn libbpf_set_print(print: Option<unsafe extern "C" fn()>) -> Option<unsafe extern "C" fn()>;
}

/// The program as parsed by libbpf, not yet attached.
struct Object(NonNull<bpf_object>);

impl Object {
    fn open() -> io::Result<Self> {
        // SAFETY: the functions for messages and the options may be absent; the bytes outlive everything.
        let object = unsafe {
            libxdp_set_print(None);
            libbpf_set_print(None);
            bpf_object__open_mem(OBJECT.as_ptr().cast(), OBJECT.len() as _, std::ptr::null())
        };
        // libbpf 1 reports errors in errno.
        NonNull::new(object).map(Self).ok_or_else(io::Error::last_os_error)
    }

    /// Returns the descriptor of a map, which the object still owns.
    fn map(&self, name: &'static [u8]) -> io::Result<c_int> {
        debug_assert!(name.ends_with(&[0]));
        // SAFETY: the object is open and the name ends with a zero.
        let fd = unsafe { bpf_object__find_map_fd_by_name(self.0.as_ptr(), name.as_ptr().cast::<c_char>()) };
        check(fd).map(|()| fd)
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        // SAFETY: the object is open, and is not used any more.
        unsafe { bpf_object__close(self.0.as_ptr()) };
    }
}

/// The program, attached to an interface until dropped. If the process is killed, libxdp leaves the program
/// attached, and it then passes everything on.
pub(super) struct Program {
    program: NonNull<xdp_program>,
    object: Object,
    interface: c_int,
    mode: xdp_attach_mode,
    process: Process,
}

// SAFETY: libxdp binds nothing to a thread, and all use is through one owner.
unsafe impl Send for Program {}

impl Program {
    /// Attaches the program to an interface, in addition to existing programs.
    pub(super) fn attach(interface: u32, mac: MacAddr, native: bool) -> io::Result<Self> {
        let object = Object::open()?;
        // SAFETY: the object is open, and stays so as long as the program.
        let program = unsafe { xdp_program__from_bpf_obj(object.0.as_ptr(), c"xdp.frags".as_ptr()) };
        // SAFETY: the function only inspects the pointer's value, which may encode an error.
        check(unsafe { libxdp_get_error(program.cast()) } as c_int)?;
        let program = NonNull::new(program).ok_or(io::ErrorKind::Other)?;
        let mode = if native { xdp_attach_mode_XDP_MODE_NATIVE } else { xdp_attach_mode_XDP_MODE_SKB };
        let interface = interface as c_int;
        // SAFETY: the program is valid.
        if let Err(error) = check(unsafe { xdp_program__attach(program.as_ptr(), interface, mode, 0) }) {
            // SAFETY: the program is valid, and is not used any more.
            unsafe { xdp_program__close(program.as_ptr()) };
            return Err(error);
        }
        let attached = Self { program, object, interface, mode, process: Process::current() };
        let mut address = [0; 8];
        address[..6].copy_from_slice(&mac.0);
        attached.put(b"own_address\0", 0, &address)?;
        Ok(attached)
    }

    /// Puts a socket into the map; from then on, frames of this queue arrive there.
    pub(super) fn put_socket(&self, queue: u32, socket: c_int) -> io::Result<()> {
        self.put(b"sockets\0", queue, &socket.to_ne_bytes())
    }

    /// Puts a value into a map; the value must have the map's value size.
    fn put(&self, map: &'static [u8], key: u32, value: &[u8]) -> io::Result<()> {
        let map = self.object.map(map)?;
        // SAFETY: key and value outlive the call, and have the lengths in `program.bpf.c`.
        check(unsafe { bpf_map_update_elem(map, (&raw const key).cast(), value.as_ptr().cast(), 0) })
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if !self.process.is_current() {
            // The child of a fork; the parent needs the program.
            return;
        }
        // SAFETY: the program is valid and attached, and not used afterwards; the object is dropped later.
        let result = unsafe {
            let result = xdp_program__detach(self.program.as_ptr(), self.interface, self.mode, 0);
            xdp_program__close(self.program.as_ptr());
            result
        };
        if let Err(error) = check(result) {
            tracing::warn!(interface = self.interface, %error, "the XDP program stays on the interface");
        }
    }
}

/// Converts errors of libxdp and libbpf, which are negative numbers.
fn check(result: c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::from_raw_os_error(-result)) } else { Ok(()) }
}
