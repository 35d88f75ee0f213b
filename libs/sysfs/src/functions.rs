//! The functions of libc that take a path.
//!
//! `open` and its relatives use their last argument only with some flags. They are declared with it, because
//! on x86-64 and AArch64 a missing argument is a register that is passed on unchanged.

use std::ffi::{CStr, c_char, c_int, c_long, c_uint, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

use libc::{DIR, FILE, mode_t, size_t, ssize_t};

use crate::redirected;

/// A function of a library that the loader searches after this one. It is looked up on first use.
pub(crate) struct Next {
    name: &'static CStr,
    address: AtomicPtr<c_void>,
}

impl Next {
    pub(crate) const fn new(name: &'static CStr) -> Self {
        Self { name, address: AtomicPtr::new(null_mut()) }
    }

    /// Returns the address of the function. Returns `None` and sets `errno` if this libc does not have it.
    pub(crate) fn address(&self) -> Option<*mut c_void> {
        let mut address = self.address.load(Ordering::Relaxed);
        if address.is_null() {
            // SAFETY: the name is NUL-terminated.
            address = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
            self.address.store(address, Ordering::Relaxed);
        }
        if address.is_null() {
            // SAFETY: every thread has its own `errno`.
            unsafe { *libc::__errno_location() = libc::ENOSYS };
            return None;
        }
        Some(address)
    }
}

/// Syntax: `name([arguments before the path] [arguments after the path]) -> result, value on failure`
macro_rules! functions {
    ($($name:ident([$($before:ident: $before_type:ty),*] [$($after:ident: $after_type:ty),*]) -> $result:ty, $failure:expr;)*) => {$(
        /// Calls the function of libc with the redirected path.
        ///
        /// # Safety
        ///
        /// The requirements are those of the function of libc.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            $($before: $before_type,)*
            path: *const c_char,
            $($after: $after_type,)*
        ) -> $result {
            type Function = unsafe extern "C" fn($($before_type,)* *const c_char, $($after_type,)*) -> $result;
            // The name of this function, NUL-terminated.
            const NAME: &CStr = match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => panic!("a name has no zero"),
            };
            static NEXT: Next = Next::new(NAME);
            let Some(next) = NEXT.address() else { return $failure };
            // SAFETY: libc's function of this name has this type.
            let next = unsafe { std::mem::transmute::<*mut c_void, Function>(next) };
            // SAFETY: the caller meets the requirements of libc's function; only the path may differ.
            unsafe { redirected(path, |path| next($($before,)* path, $($after,)*)) }
        }
    )*};
}

functions! {
    open([] [flags: c_int, mode: mode_t]) -> c_int, -1;
    open64([] [flags: c_int, mode: mode_t]) -> c_int, -1;
    __open_2([] [flags: c_int]) -> c_int, -1;
    __open64_2([] [flags: c_int]) -> c_int, -1;
    openat([folder: c_int] [flags: c_int, mode: mode_t]) -> c_int, -1;
    openat64([folder: c_int] [flags: c_int, mode: mode_t]) -> c_int, -1;
    __openat_2([folder: c_int] [flags: c_int]) -> c_int, -1;
    __openat64_2([folder: c_int] [flags: c_int]) -> c_int, -1;
    fopen([] [mode: *const c_char]) -> *mut FILE, null_mut();
    fopen64([] [mode: *const c_char]) -> *mut FILE, null_mut();
    opendir([] []) -> *mut DIR, null_mut();
    chdir([] []) -> c_int, -1;

    access([] [mode: c_int]) -> c_int, -1;
    eaccess([] [mode: c_int]) -> c_int, -1;
    euidaccess([] [mode: c_int]) -> c_int, -1;
    faccessat([folder: c_int] [mode: c_int, flags: c_int]) -> c_int, -1;

    stat([] [found: *mut c_void]) -> c_int, -1;
    stat64([] [found: *mut c_void]) -> c_int, -1;
    lstat([] [found: *mut c_void]) -> c_int, -1;
    lstat64([] [found: *mut c_void]) -> c_int, -1;
    fstatat([folder: c_int] [found: *mut c_void, flags: c_int]) -> c_int, -1;
    fstatat64([folder: c_int] [found: *mut c_void, flags: c_int]) -> c_int, -1;
    statx([folder: c_int] [flags: c_int, mask: c_uint, found: *mut c_void]) -> c_int, -1;
    // Programs built with glibc before 2.33 call these functions.
    __xstat([version: c_int] [found: *mut c_void]) -> c_int, -1;
    __xstat64([version: c_int] [found: *mut c_void]) -> c_int, -1;
    __lxstat([version: c_int] [found: *mut c_void]) -> c_int, -1;
    __lxstat64([version: c_int] [found: *mut c_void]) -> c_int, -1;
    __fxstatat([version: c_int, folder: c_int] [found: *mut c_void, flags: c_int]) -> c_int, -1;
    __fxstatat64([version: c_int, folder: c_int] [found: *mut c_void, flags: c_int]) -> c_int, -1;
    pathconf([] [what: c_int]) -> c_long, -1;

    readlink([] [buffer: *mut c_char, size: size_t]) -> ssize_t, -1;
    __readlink_chk([] [buffer: *mut c_char, size: size_t, room: size_t]) -> ssize_t, -1;
    readlinkat([folder: c_int] [buffer: *mut c_char, size: size_t]) -> ssize_t, -1;
    __readlinkat_chk([folder: c_int] [buffer: *mut c_char, size: size_t, room: size_t]) -> ssize_t, -1;
    realpath([] [resolved: *mut c_char]) -> *mut c_char, null_mut();
    __realpath_chk([] [resolved: *mut c_char, room: size_t]) -> *mut c_char, null_mut();
    canonicalize_file_name([] []) -> *mut c_char, null_mut();

    // `ls -l` calls these functions.
    getxattr([] [name: *const c_char, value: *mut c_void, size: size_t]) -> ssize_t, -1;
    lgetxattr([] [name: *const c_char, value: *mut c_void, size: size_t]) -> ssize_t, -1;
    listxattr([] [names: *mut c_char, size: size_t]) -> ssize_t, -1;
    llistxattr([] [names: *mut c_char, size: size_t]) -> ssize_t, -1;

    scandir([] [found: *mut c_void, filter: *mut c_void, order: *mut c_void]) -> c_int, -1;
    scandir64([] [found: *mut c_void, filter: *mut c_void, order: *mut c_void]) -> c_int, -1;
    glob([] [flags: c_int, on_error: *mut c_void, found: *mut c_void]) -> c_int, libc::GLOB_ABORTED;
    glob64([] [flags: c_int, on_error: *mut c_void, found: *mut c_void]) -> c_int, libc::GLOB_ABORTED;
    ftw([] [function: *mut c_void, descriptors: c_int]) -> c_int, -1;
    ftw64([] [function: *mut c_void, descriptors: c_int]) -> c_int, -1;
    nftw([] [function: *mut c_void, descriptors: c_int, flags: c_int]) -> c_int, -1;
    nftw64([] [function: *mut c_void, descriptors: c_int, flags: c_int]) -> c_int, -1;
}
