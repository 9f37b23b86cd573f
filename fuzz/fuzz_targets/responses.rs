//! Bytes as Responses requests.

#![no_main]

use fathom::recipe::Protocol;
use libfuzzer_sys::{fuzz_mutator, fuzz_target, fuzzer_mutate};

fuzz_target!(|body: &[u8]| fathom_fuzz::requests::check(Protocol::Responses, body));

fuzz_mutator!(|body: &mut [u8], size: usize, max_size: usize, seed: u32| {
    fathom_fuzz::mutate::body(body, size, max_size, seed, fuzzer_mutate)
});
