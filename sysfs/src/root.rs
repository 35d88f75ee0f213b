//! The folder that has the files.

use std::cell::UnsafeCell;
use std::ffi::CStr;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::LONGEST;

/// The environment variable that names the folder.
const VARIABLE: &CStr = c"ROCE_SYSFS";

/// A copy of the variable's value: programs that change their title write over the environment.
struct Root {
    name: UnsafeCell<[u8; LONGEST]>,
    /// 0: there is none.
    len: AtomicUsize,
}

// SAFETY: the name is written once, by the loader's only thread, before the length is; nothing is read of it before that.
unsafe impl Sync for Root {}

static ROOT: Root = Root { name: UnsafeCell::new([0; LONGEST]), len: AtomicUsize::new(0) };

/// Run by the loader before the program begins.
// SAFETY: the section is a list of such functions.
#[used]
#[unsafe(link_section = ".init_array")]
static INITIALIZER: extern "C" fn() = initialize;

extern "C" fn initialize() {
    // SAFETY: the name has a zero at its end; libc has the environment by now, and no thread changes it yet.
    let value = unsafe { libc::getenv(VARIABLE.as_ptr()) };
    if value.is_null() {
        return;
    }
    // SAFETY: a value has a zero at its end, and nothing changes it until this returns.
    let value = unsafe { CStr::from_ptr(value) }.to_bytes();
    if !value.starts_with(b"/") || value.len() >= LONGEST {
        return;
    }
    // SAFETY: no other thread runs, and `root` reads nothing before the length is set.
    let name = unsafe { &mut *ROOT.name.get() };
    name[..value.len()].copy_from_slice(value);
    ROOT.len.store(value.len(), Ordering::Release);
}

/// The folder, without a `/` at its end.
pub(crate) fn root() -> Option<&'static [u8]> {
    let len = ROOT.len.load(Ordering::Acquire);
    // SAFETY: the name is not written any more once the length is set.
    let name = unsafe { &*ROOT.name.get() };
    (len > 0).then(|| &name[..len])
}
