//! Bytes as text, against the `tokenizers` crate.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &[u8]| fathom_fuzz::texts::check(text));
