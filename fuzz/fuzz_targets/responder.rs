//! See `roce_fuzz::responder`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| roce_fuzz::responder::run(data));
