#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| foam_fuzz::calls(data));
