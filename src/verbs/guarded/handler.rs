//! The handler of SIGSEGV and SIGBUS.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use super::x86_64::{roce_guarded_copy, roce_guarded_fault};

const SIGNALS: [c_int; 2] = [libc::SIGSEGV, libc::SIGBUS];

/// The action that was installed before, for each signal; null for the default action.
static BEFORE: [AtomicPtr<libc::sigaction>; SIGNALS.len()] =
    [const { AtomicPtr::new(std::ptr::null_mut()) }; SIGNALS.len()];

/// Turns faults of the guarded accesses into errors, from the first call on. A handler that the application
/// installs later stays in place. It receives these faults as well, and passes them on if it calls the
/// previous handler.
pub(in super::super) fn install() {
    static IS_INSTALLED: AtomicBool = AtomicBool::new(false);
    if IS_INSTALLED.swap(true, Ordering::Relaxed) {
        return;
    }
    for (signal, before) in SIGNALS.into_iter().zip(&BEFORE) {
        // SAFETY: the structures are this function's own, or never freed; the handler is never unloaded.
        unsafe {
            let mut known: libc::sigaction = std::mem::zeroed();
            if libc::sigaction(signal, std::ptr::null(), &raw mut known) != 0 {
                continue;
            }
            // With the mask and flags of the previous action, its handler runs as if the system had called
            // it.
            let mut own = known;
            own.sa_sigaction = handle as *const () as usize;
            own.sa_flags = known.sa_flags & !libc::SA_RESETHAND | libc::SA_SIGINFO | libc::SA_ONSTACK;
            if known.sa_sigaction != libc::SIG_DFL {
                // Stored before the handler that reads it is installed.
                before.store(Box::into_raw(Box::new(known)), Ordering::Release);
            }
            libc::sigaction(signal, &raw const own, std::ptr::null_mut());
        }
    }
}

/// Runs in the thread that faulted, after any instruction. Therefore it takes no lock and allocates nothing.
unsafe extern "C" fn handle(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the system gives both to a handler with `SA_SIGINFO`.
    let (code, registers) =
        unsafe { ((*info).si_code, &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs) };
    let place = &mut registers[libc::REG_RIP as usize];
    let (begin, end) = (roce_guarded_copy as *const (), roce_guarded_fault as *const ());
    // Other codes belong to signals that a process sent.
    if code > 0 && (begin as i64..end as i64).contains(place) {
        *place = end as i64;
        return;
    }
    // SAFETY: what the system gave to this handler.
    unsafe { pass_on(signal, info, context) };
}

/// Passes a signal to the previous handler.
unsafe fn pass_on(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    let index = SIGNALS.iter().position(|known| *known == signal).unwrap_or(0);
    let before = BEFORE[index].load(Ordering::Acquire);
    // SAFETY: the stored action is never freed, and is the previous one of the system: a handler of the kind
    // that its flags say.
    unsafe {
        let is_sent = (*info).si_code <= 0;
        match before.as_ref() {
            Some(known) if known.sa_sigaction == libc::SIG_IGN && is_sent => {}
            Some(known) if known.sa_sigaction != libc::SIG_IGN => {
                if known.sa_flags & libc::SA_RESETHAND != 0 {
                    BEFORE[index].store(std::ptr::null_mut(), Ordering::Release);
                }
                if known.sa_flags & libc::SA_SIGINFO == 0 {
                    std::mem::transmute::<usize, extern "C" fn(c_int)>(known.sa_sigaction)(signal);
                } else {
                    type Handler = extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void);
                    std::mem::transmute::<usize, Handler>(known.sa_sigaction)(signal, info, context);
                }
            }
            _ => {
                let mut default: libc::sigaction = std::mem::zeroed();
                default.sa_sigaction = libc::SIG_DFL;
                libc::sigaction(signal, &raw const default, std::ptr::null_mut());
                // A fault recurs at the same instruction; a signal from a process must be sent again.
                if is_sent {
                    libc::raise(signal);
                }
            }
        }
    }
}
