//! See `roce_fuzz::requester`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| roce_fuzz::requester::run(data));
