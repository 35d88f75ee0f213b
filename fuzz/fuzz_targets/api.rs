//! See `roce_fuzz::api`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| roce_fuzz::api::run(data));
