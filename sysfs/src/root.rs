//! What the environment said when the program began: the folder that has the files, and the file of the report.

use std::cell::UnsafeCell;
use std::ffi::CStr;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::{LONGEST, report};

/// The environment variable that names the folder.
const FOLDER_VARIABLE: &CStr = c"ROCE_SYSFS";
/// The environment variable that names the file to which facts about processes are appended.
const REPORT_VARIABLE: &CStr = c"ROCE_REPORT";

/// A copy of a variable's value: programs that change their title write over the environment.
struct Copy {
    text: UnsafeCell<[u8; LONGEST]>,
    /// 0: there is none. The text is followed by a zero.
    len: AtomicUsize,
}

// SAFETY: the text is written once, by the loader's only thread, before the length is; nothing is read of it before that.
unsafe impl Sync for Copy {}

static FOLDER: Copy = Copy::new();
static REPORT: Copy = Copy::new();

impl Copy {
    const fn new() -> Self {
        Self { text: UnsafeCell::new([0; LONGEST]), len: AtomicUsize::new(0) }
    }

    /// Copies the value of a variable that is an absolute name of a file.
    fn fill(&self, variable: &CStr) {
        // SAFETY: the name has a zero at its end; libc has the environment by now, and no thread changes it yet.
        let value = unsafe { libc::getenv(variable.as_ptr()) };
        if value.is_null() {
            return;
        }
        // SAFETY: a value has a zero at its end, and nothing changes it until this returns.
        let value = unsafe { CStr::from_ptr(value) }.to_bytes();
        if !value.starts_with(b"/") || value.len() >= LONGEST {
            return;
        }
        // SAFETY: no other thread runs, and `get` reads nothing before the length is set.
        let text = unsafe { &mut *self.text.get() };
        text[..value.len()].copy_from_slice(value);
        self.len.store(value.len(), Ordering::Release);
    }

    fn get(&self) -> Option<&[u8]> {
        let len = self.len.load(Ordering::Acquire);
        // SAFETY: the text is not written any more once the length is set.
        let text = unsafe { &*self.text.get() };
        (len > 0).then(|| &text[..len])
    }
}

/// Run by the loader before the program begins.
// SAFETY: the section is a list of such functions.
#[used]
#[unsafe(link_section = ".init_array")]
static INITIALIZER: extern "C" fn() = initialize;

/// Run by the loader when the program exits.
// SAFETY: the section is a list of such functions.
#[used]
#[unsafe(link_section = ".fini_array")]
static FINALIZER: extern "C" fn() = report::foreign_libraries;

extern "C" fn initialize() {
    FOLDER.fill(FOLDER_VARIABLE);
    REPORT.fill(REPORT_VARIABLE);
    report::start();
}

/// The folder, without a `/` at its end.
pub(crate) fn root() -> Option<&'static [u8]> {
    FOLDER.get()
}

/// The file of the report.
pub(crate) fn report_file() -> Option<&'static [u8]> {
    REPORT.get()
}
