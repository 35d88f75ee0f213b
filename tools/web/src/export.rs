//! What WebAssembly exports: three functions, with which a page passes a call and reads its answer.
//!
//! 1. `reserve(length)` returns the address at which the page writes the call: JSON, then bytes.
//! 2. `call(json_length)` calls the function, and returns the length of the answer. The first byte of the
//!    answer is 0 for text, 1 for bytes, and 2 for the sentence of an error.
//! 3. `answer()` returns the address of the answer, which stays until the next call.
//!
//! The page runs one call at a time, so each buffer is free when it is used.

use std::cell::RefCell;

use crate::call::{Answer, Page};

thread_local! {
    static PAGE: RefCell<Page> = RefCell::default();
    static INPUT: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    static OUTPUT: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn reserve(length: usize) -> *mut u8 {
    INPUT.with_borrow_mut(|input| {
        // A buffer of the last call may be as large as a capture.
        *input = vec![0; length];
        input.as_mut_ptr()
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn call(json_length: usize) -> usize {
    let input = INPUT.take();
    let (json, bytes) = input.split_at_checked(json_length).unwrap_or((&input, &[]));
    let json = String::from_utf8_lossy(json);
    let (kind, answer) = match PAGE.with_borrow_mut(|page| page.call(&json, bytes)) {
        Ok(Answer::Text(text)) => (0, text.into_bytes()),
        Ok(Answer::Bytes(bytes)) => (1, bytes),
        Err(sentence) => (2, sentence.into_bytes()),
    };
    OUTPUT.with_borrow_mut(|output| {
        output.clear();
        output.push(kind);
        output.extend_from_slice(&answer);
        output.len()
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn answer() -> *const u8 {
    OUTPUT.with_borrow(|output| output.as_ptr())
}
