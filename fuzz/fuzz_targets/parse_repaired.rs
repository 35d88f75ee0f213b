//! See `roce_fuzz::parse_repaired`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| roce_fuzz::parse_repaired::run(data));
