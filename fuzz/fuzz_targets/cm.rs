//! See `roce_fuzz::cm`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| roce_fuzz::cm::run(data));
