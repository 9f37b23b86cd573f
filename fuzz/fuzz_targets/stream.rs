//! Bytes as the output of a model, in several splits.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| fathom_fuzz::streams::check(input));
