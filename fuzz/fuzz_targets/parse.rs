//! See `roce_fuzz::parse`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| roce_fuzz::parse::run(data));
