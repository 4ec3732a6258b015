#![no_main]

#[path = "../properties.rs"]
#[allow(dead_code)] // each target holds one of them
mod properties;

libfuzzer_sys::fuzz_target!(|data: &[u8]| properties::replies(data));
