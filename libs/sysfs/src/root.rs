//! Environment variables at the start of the program: the folder with the files, and the report file.

use std::cell::UnsafeCell;
use std::ffi::CStr;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::buffer::LONGEST;

/// Environment variable with the path of the folder.
const FOLDER_VARIABLE: &CStr = c"ROCE_SYSFS";
/// Environment variable with the path of the file for reports about processes.
const REPORT_VARIABLE: &CStr = c"ROCE_REPORT";

/// A copy of a variable's value. The copy is needed because programs that change their title overwrite the
/// environment.
struct Copy {
    text: UnsafeCell<[u8; LONGEST]>,
    /// Length of the text, which a NUL follows; 0 if there is no value.
    len: AtomicUsize,
}

// SAFETY: the loader's only thread writes the text once, before the length. The text is read only after the
// length.
unsafe impl Sync for Copy {}

static FOLDER: Copy = Copy::new();
static REPORT: Copy = Copy::new();

impl Copy {
    const fn new() -> Self {
        Self { text: UnsafeCell::new([0; LONGEST]), len: AtomicUsize::new(0) }
    }

    /// Copies the value of a variable that contains an absolute path.
    fn fill(&self, variable: &CStr) {
        // SAFETY: the name is NUL-terminated. libc has set up the environment, and no thread changes it yet.
        let value = unsafe { libc::getenv(variable.as_ptr()) };
        if value.is_null() {
            return;
        }
        // SAFETY: a value is NUL-terminated, and nothing changes it before this function returns.
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
        // SAFETY: the text is not written after the length is set.
        let text = unsafe { &*self.text.get() };
        (len > 0).then(|| &text[..len])
    }
}

/// Reads the environment, before any other thread runs.
pub(crate) fn read_environment() {
    FOLDER.fill(FOLDER_VARIABLE);
    REPORT.fill(REPORT_VARIABLE);
}

/// Returns the folder, without a trailing `/`.
pub(crate) fn root() -> Option<&'static [u8]> {
    FOLDER.get()
}

/// Returns the path of the report file.
pub(crate) fn report_file() -> Option<&'static [u8]> {
    REPORT.get()
}
