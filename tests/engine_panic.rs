//! A panic on the engine's own thread, seen from C: every request ends, the engine says FAILED, and the process,
//! its queues and its other engines go on.

use std::ptr::null_mut;

use fathom::capi::batch::{fathom_batch_free, fathom_batch_new};
use fathom::capi::engine::{FATHOM_ENGINE_FAILED, fathom_engine_free, fathom_engine_state, wrap};
use fathom::capi::library::fathom_error_status;
use fathom::capi::queue::{
    FATHOM_EVENT_DONE, FATHOM_FINISH_ERROR, fathom_event, fathom_queue_free, fathom_queue_new,
    fathom_queue_poll,
};
use fathom::capi::request::fathom_submit_tokens;
use fathom::capi::types::{FATHOM_ERR_POISONED, FATHOM_OK};
use fathom::engine::backend::canary::{Canary, CanaryOptions, Fault};
use fathom::engine::{Engine, EngineOptions};

fn engine(fault: Option<(u64, Fault)>) -> *mut fathom::capi::types::fathom_engine {
    let mut options = CanaryOptions {
        fault,
        ..CanaryOptions::default()
    };
    // Nobody may end before the fault, whatever is drawn.
    options.limits.eos.clear();
    let model = Canary::new(options);
    wrap(Engine::with_model(Box::new(model), &EngineOptions::default()).unwrap())
}

#[test]
fn a_panic_of_the_engine_thread_ends_requests_with_a_status() {
    let (broken, healthy) = (engine(Some((3, Fault::Panic))), engine(None));
    let (mut queue, mut batch) = (null_mut(), null_mut());
    let prompt = [5u32, 6, 7];
    let submit = |engine, queue| {
        let mut id = 0;
        // SAFETY: the prompt is readable for its length, the id writable; options and error may be NULL.
        let status = unsafe {
            fathom_submit_tokens(
                engine,
                queue,
                prompt.as_ptr(),
                prompt.len(),
                std::ptr::null(),
                &mut id,
                null_mut(),
            )
        };
        (status, id)
    };
    // SAFETY: out-parameters are writable, options and errors may be NULL, and the handles come from the library.
    unsafe {
        assert_eq!(
            fathom_queue_new(std::ptr::null(), &mut queue, null_mut()),
            FATHOM_OK
        );
        assert_eq!(
            fathom_batch_new(size_of::<fathom_event>(), &mut batch),
            FATHOM_OK
        );
        let accepted: Vec<u64> = (0..5)
            .map(|_| submit(broken, queue))
            .map(|(_, id)| id)
            .filter(|id| *id > 0)
            .collect();
        assert!(!accepted.is_empty());
        let mut ended = Vec::new();
        while ended.len() < accepted.len() {
            let (mut events, mut count) = (std::ptr::null(), 0);
            assert_eq!(
                fathom_queue_poll(queue, batch, 60_000, &mut events, &mut count, null_mut()),
                FATHOM_OK
            );
            assert!(count > 0, "nothing for a minute");
            for event in std::slice::from_raw_parts(events, count) {
                if event.kind == FATHOM_EVENT_DONE {
                    assert_eq!(event.finish, FATHOM_FINISH_ERROR);
                    assert_eq!(fathom_error_status(event.error), FATHOM_ERR_POISONED);
                    ended.push(event.request);
                }
            }
        }
        ended.sort_unstable();
        ended.dedup();
        assert_eq!(ended.len(), accepted.len(), "each ends once");
        assert_eq!(fathom_engine_state(broken), FATHOM_ENGINE_FAILED);
        assert_eq!(submit(broken, queue).0, FATHOM_ERR_POISONED);
        assert_eq!(submit(healthy, queue).0, FATHOM_OK);
        fathom_engine_free(broken);
        fathom_engine_free(healthy);
        fathom_batch_free(batch);
        fathom_queue_free(queue);
    }
}
