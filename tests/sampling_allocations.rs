//! A choice costs no allocation, whatever it is asked for: its memory is there from the choices before it. Lists that
//! a request wants at its end grow, and are not counted.
//!
//! Its own program, because the allocator is everybody's.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use fathom::engine::Request;
use fathom::engine::request::{Logprobs, RepeatGuard, Think};
use fathom::engine::sampling::{Sampler, State};

/// The system's allocator, with a count of the calls of this thread.
struct Counting;

thread_local! {
    static CALLS: Cell<usize> = const { Cell::new(0) };
}

fn note() {
    // A thread that ends may allocate without its counter.
    let _ = CALLS.try_with(|calls| calls.set(calls.get() + 1));
}

// SAFETY: every call is handed on unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note();
        // SAFETY: as promised by the caller.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as promised by the caller.
        unsafe { System.dealloc(pointer, layout) }
    }
    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        note();
        // SAFETY: as promised by the caller.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Calls of the allocator during the last 100 of 200 choices.
fn calls_of(request: &Request, mask: Option<&[u32]>) -> usize {
    let rows: Vec<Vec<f32>> = (0..7u32)
        .map(|row| {
            (0..500u32)
                .map(|v| ((v + row) * 37 % 101) as f32 * 0.1)
                .collect()
        })
        .collect();
    let mut sampler = Sampler::without(&[3]);
    let mut state = State::new(request, &[1], 9);
    let mut tokens = request.prompt.clone();
    tokens.reserve(200);
    let mut calls = 0;
    for (at, row) in rows.iter().cycle().take(200).enumerate() {
        let before = CALLS.get();
        let token = state
            .choose(&mut sampler, row, mask, &tokens)
            .unwrap()
            .token;
        if at >= 100 {
            calls += CALLS.get() - before;
        }
        tokens.push(token);
    }
    calls
}

#[test]
fn a_choice_allocates_nothing() {
    let mut plain = Request::new(vec![5, 6]);
    assert_eq!(calls_of(&plain, None), 0);
    let mask = [u32::MAX; 16];
    assert_eq!(calls_of(&plain, Some(&mask)), 0);
    plain.sampling.temperature = 0.0;
    assert_eq!(calls_of(&plain, None), 0);

    let mut wild = Request::new(vec![5, 6]);
    let sampling = &mut wild.sampling;
    sampling.top_p = 0.9;
    sampling.top_k = 40;
    sampling.min_p = 0.001;
    sampling.logit_bias = vec![(4, 1.0)];
    sampling.bad_words = vec![vec![5, 6], vec![7]];
    sampling.min_tokens = 150;
    sampling.golden_tokens = vec![None, Some(9)];
    sampling.think = Some(Think {
        budget: 120,
        end: vec![10, 11],
    });
    wild.repeat_guard = Some(RepeatGuard {
        pattern: 8,
        count: 4,
    });
    assert_eq!(calls_of(&wild, Some(&mask)), 0);

    // Its own lists grow now and then, and nothing else does.
    wild.logprobs = Logprobs::Top(20);
    wild.sampling.frequency_penalty = 0.5;
    let calls = calls_of(&wild, None);
    assert!(calls <= 8, "{calls}");
}
