//! What the test of a handle costs on the way in: a whole C call, panic guard included, among 2000 live handles.
//! `fathom_parser_push` runs once a token, so it must stay well below 100 ns.

use std::time::Instant;

use fathom::capi::library::{fathom_buf_data, fathom_buf_free, fathom_devices};
use fathom::capi::types::FATHOM_OK;

fn main() {
    const ROUNDS: u32 = 200_000;
    let mut handles = Vec::new();
    // As many as a busy server has, so that the chunks that are searched are more than one.
    for _ in 0..2_000 {
        let mut buffer = std::ptr::null_mut();
        // SAFETY: the out-parameter is writable, the error one may be NULL.
        let status = unsafe { fathom_devices(&mut buffer, std::ptr::null_mut()) };
        assert_eq!(status, FATHOM_OK);
        handles.push(buffer);
    }
    let best = (0..5)
        .map(|_| {
            let start = Instant::now();
            for round in 0..ROUNDS as usize {
                let mut length = 0;
                let handle = handles[round % handles.len()];
                // SAFETY: a handle may be any value; the length is writable.
                let bytes = unsafe { fathom_buf_data(handle, &mut length) };
                assert!(!std::hint::black_box(bytes).is_null());
            }
            start.elapsed() / ROUNDS
        })
        .min()
        .unwrap_or_default();
    println!("{} ns to enter and leave a handle", best.as_nanos());
    for handle in handles {
        // SAFETY: a handle may be any value.
        unsafe { fathom_buf_free(handle) };
    }
}
