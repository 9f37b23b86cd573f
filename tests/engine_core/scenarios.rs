//! Random scenarios: whatever the host does, each accepted request ends once, with a prefix of the tokens it has
//! alone, and the pools are as after the start.

use std::collections::BTreeMap;

use fathom::engine::backend::canary::CanaryOptions;
use fathom::engine::model::ModelLimits;
use fathom::engine::request::FinishReason;
use fathom::engine::{Code, EngineOptions, EngineState, Request, RequestId};
use proptest::prelude::*;

use crate::host::*;

#[derive(Clone, Debug)]
enum Act {
    Submit { request: Request, queue: usize },
    Defer { request: Request, queue: usize },
    Cancel(usize),
    Ack(usize, u32),
    Poll(usize),
    Close(usize),
    ClearCache,
}

const QUEUES: usize = 3;

fn any_request() -> impl Strategy<Value = Request> {
    (
        any::<u32>(),
        1u32..70,
        0u32..50,
        prop::option::of(any::<u64>()),
        (any::<bool>(), any::<bool>(), 0u32..12, 0u8..8),
    )
        .prop_map(
            |(number, prompt, max_tokens, seed, (ack, ignore, unread, class))| {
                let mut request = request(number, prompt, max_tokens);
                if let Some(seed) = seed {
                    request.sampling = seeded(seed);
                }
                request.explicit_ack = ack;
                request.ignore_eos = ignore;
                request.max_unread_tokens = unread;
                request.class = class;
                request
            },
        )
}

fn any_act() -> impl Strategy<Value = Act> {
    prop_oneof![
        6 => (any_request(), 0..QUEUES).prop_map(|(request, queue)| Act::Submit { request, queue }),
        2 => (any_request(), 0..QUEUES).prop_map(|(request, queue)| Act::Defer { request, queue }),
        3 => (0..40usize).prop_map(Act::Cancel),
        4 => (0..40usize, 0..30u32).prop_map(|(at, count)| Act::Ack(at, count)),
        8 => (0..QUEUES).prop_map(Act::Poll),
        1 => (0..QUEUES).prop_map(Act::Close),
        1 => Just(Act::ClearCache),
    ]
}

fn run(acts: Vec<Act>, max_queued: u32, fixed: bool) {
    let canary = CanaryOptions {
        limits: ModelLimits {
            max_context: 160,
            blocks: 22,
            slots: 5,
            ..CanaryOptions::default().limits
        },
        ..CanaryOptions::default()
    };
    let host = host(
        canary,
        &EngineOptions {
            max_queued,
            deterministic: fixed,
            ..options(3, r#"{"chunk": 16, "max_step_tokens": 24}"#)
        },
    );
    let queues: Vec<_> = (0..QUEUES).map(|_| queue()).collect();
    let mut is_closed = [false; QUEUES];
    let mut requests: BTreeMap<RequestId, (Request, usize)> = BTreeMap::new();
    let mut ids = Vec::new();
    let mut seen = Seen::default();
    for act in acts {
        match act {
            Act::Submit { request, queue } => {
                match host.engine.submit(&queues[queue], request.clone(), None) {
                    Ok(id) => {
                        assert!(!is_closed[queue]);
                        ids.push(id);
                        requests.insert(id, (request, queue));
                    }
                    Err(error) if is_closed[queue] => {
                        assert!([Code::Closed, Code::QueueFull].contains(&error.code));
                    }
                    Err(error) => assert_eq!(error.code, Code::QueueFull),
                }
            }
            Act::Defer { request, queue } => {
                let made = request.clone();
                let job = Box::new(move || Ok((made, None)));
                if let Ok(id) = host.engine.submit_deferred(&queues[queue], 0, None, job) {
                    ids.push(id);
                    requests.insert(id, (request, queue));
                }
            }
            Act::Cancel(at) => host
                .engine
                .cancel(ids.get(at).map_or(&[], std::slice::from_ref)),
            Act::Ack(at, count) => {
                if let Some(&id) = ids.get(at) {
                    host.engine.ack(&[(id, count)]);
                }
            }
            Act::Poll(at) if !is_closed[at] => {
                seen.glance(&queues[at]);
            }
            Act::Poll(_) => {}
            Act::Close(at) => {
                queues[at].close();
                is_closed[at] = true;
            }
            Act::ClearCache => host.engine.clear_cache().unwrap(),
        }
    }
    // The host becomes reasonable: it reads everything and says so.
    let to_end = |seen: &Seen| {
        requests
            .iter()
            .filter(|(id, (_, queue))| {
                !is_closed[*queue] && seen.outcomes.get(id).is_none_or(|o| o.done.is_none())
            })
            .count()
    };
    while to_end(&seen) > 0 {
        let mut events = 0;
        for (queue, closed) in queues.iter().zip(is_closed) {
            if !closed {
                events += seen.glance(queue);
            }
        }
        let all: Vec<_> = ids.iter().map(|id| (*id, u32::MAX)).collect();
        host.engine.ack(&all);
        if events == 0 {
            std::thread::yield_now();
        }
        assert_eq!(host.engine.state(), EngineState::Ready);
    }
    for (id, (request, _)) in &requests {
        let Some(outcome) = seen.outcomes.get(id) else {
            continue;
        };
        let (tokens, finish) = alone(&host.canary, request);
        match outcome.done.as_ref().map(|d| d.finish) {
            Some(FinishReason::Cancelled) | None => {
                assert!(tokens.starts_with(&outcome.tokens));
            }
            Some(other) => {
                assert_eq!((&outcome.tokens, other), (&tokens, finish));
            }
        }
    }
    host.assert_idle();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]
    #[test]
    fn every_accepted_request_ends_once_and_nothing_is_left_behind(
        acts in prop::collection::vec(any_act(), 1..60),
        max_queued in prop_oneof![Just(0u32), 1..6u32],
        fixed in any::<bool>(),
    ) {
        run(acts, max_queued, fixed);
    }
}
