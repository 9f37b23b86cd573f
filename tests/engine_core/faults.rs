//! Faults of the model, of jobs and of adapters: the right scope, the right code, everybody gets an end.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

use fathom::engine::backend::canary::{CanaryOptions, Fault, Gate};
use fathom::engine::request::{Adapter, Event, EventKind, Failure, FinishReason, Flow};
use fathom::engine::{Code, Engine, EngineOptions, EngineState, Error};

use crate::host::*;

fn faulty(step: u64, fault: Fault) -> Host {
    let canary = CanaryOptions {
        fault: Some((step, fault)),
        ..CanaryOptions::default()
    };
    host(canary, &options(2, ""))
}

/// Three requests of which two run and one waits: all end with this code, and so do later submits.
fn assert_fails(host: &Host, code: Code) {
    for n in 0..3 {
        let mut request = request(n, 5, 100);
        request.ignore_eos = true;
        // The fault may come before the last one.
        let _ = host.engine.submit(&host.queue, request, None);
    }
    let accepted = host.engine.stats().requests_accepted as usize;
    let mut seen = Seen::default();
    seen.until_ended(&host.queue, accepted);
    for outcome in seen.outcomes.values() {
        assert_eq!(outcome.finish(), FinishReason::Error);
        assert_eq!(outcome.code(), Some(code));
        assert_eq!(outcome.detail()["reason"], "engine_failed");
        assert_eq!(outcome.detail()["code"], code.name());
    }
    assert_eq!(host.engine.state(), EngineState::Failed);
    let refused = host.engine.submit(&host.queue, request(1, 5, 5), None);
    assert_eq!(refused.unwrap_err().code, code);
    assert_eq!(Seen::default().glance(&host.queue), 0);
    assert!(host.engine.metrics_json().contains("\"failed\""));
}

#[test]
fn a_panic_in_the_model_fails_the_engine_and_nothing_else() {
    let broken = faulty(4, Fault::Panic);
    assert_fails(&broken, Code::WorkerPanic);
    broken.engine.shutdown(Duration::ZERO).unwrap();
    // Another engine of the process goes on, with the same queue.
    let other = host(CanaryOptions::default(), &EngineOptions::default());
    let id = other
        .engine
        .submit(&broken.queue, request(1, 5, 5), None)
        .unwrap();
    let mut seen = Seen::default();
    seen.until_ended(&broken.queue, 1);
    assert_eq!(seen.outcomes[&id].code(), None);
}

#[test]
fn an_error_of_a_step_fails_the_engine_with_its_code() {
    for code in [Code::DeviceLost, Code::StateCorrupt] {
        let host = faulty(2, Fault::Error(code));
        assert_fails(&host, code);
        host.engine.shutdown(Duration::ZERO).unwrap();
    }
}

#[test]
fn a_row_with_nan_ends_its_request_only() {
    let host = host(
        CanaryOptions {
            poison: Some(96),
            ..CanaryOptions::default()
        },
        &EngineOptions::default(),
    );
    let good = request(1, 20, 40);
    let mut bad = request(2, 30, 40);
    bad.prompt.push(96);
    let good_id = host.submit(good.clone());
    let bad_id = host.submit(bad);
    let mut seen = Seen::default();
    seen.until_ended(&host.queue, 2);
    let outcome = &seen.outcomes[&bad_id];
    assert_eq!(outcome.finish(), FinishReason::Error);
    assert_eq!(outcome.code(), Some(Code::Numeric));
    assert_eq!(outcome.detail()["reason"], "error");
    assert!(outcome.tokens.is_empty());
    assert_eq!(seen.outcomes[&good_id].tokens, alone(&host.canary, &good).0);
    // Its slot and blocks serve the next ones.
    for n in 3..20 {
        let next = request(n, 30, 5);
        assert_eq!(host.run(next.clone()).tokens, alone(&host.canary, &next).0);
    }
    assert_eq!(host.engine.state(), EngineState::Ready);
    host.assert_idle();
}

#[test]
fn a_row_with_nan_in_the_middle_of_an_output_keeps_what_came_before() {
    let host = faulty(3, Fault::NanRow);
    let mut request = request(1, 5, 10);
    request.ignore_eos = true;
    let expected = alone(&host.canary, &request).0;
    let outcome = host.run(request);
    assert_eq!(outcome.code(), Some(Code::Numeric));
    assert_eq!(outcome.tokens, expected[..3]);
    assert_eq!(outcome.done().usage.completion_tokens, 3);
    host.assert_idle();
}

#[test]
fn a_step_that_does_not_end_fails_the_engine_and_is_left_behind() {
    let gate = Gate::closed();
    let host = host(
        CanaryOptions {
            gate: Some(gate.clone()),
            ..CanaryOptions::default()
        },
        &options(2, r#"{"step_timeout_ms": 20}"#),
    );
    assert_fails(&host, Code::Watchdog);
    let error = host.engine.shutdown(Duration::ZERO).unwrap_err();
    assert_eq!(error.code, Code::Watchdog);
    // The thread comes back at last, finds that it has failed, and says nothing.
    gate.open();
    wait_for(|| Arc::strong_count(&host.probe) == 1);
    assert_eq!(Seen::default().glance(&host.queue), 0);
}

#[test]
fn a_deferred_request_runs_like_any_other() {
    let host = host(CanaryOptions::default(), &EngineOptions::default());
    let expected = alone(&host.canary, &request(1, 20, 10)).0;
    let job = Box::new(|| Ok((request(1, 20, 10), None)));
    let id = host
        .engine
        .submit_deferred(&host.queue, 77, None, job)
        .unwrap();
    let mut events = Vec::new();
    let mut seen = Seen::default();
    while seen.ended == 0 {
        host.queue.poll(&mut events, None).unwrap();
        for event in events.drain(..) {
            assert_eq!((event.request, event.tag), (id, 77));
            seen.take(event);
        }
    }
    assert_eq!(seen.outcomes[&id].tokens, expected);
    host.assert_idle();
}

#[test]
fn a_deferred_request_that_cannot_be_made_ends_with_its_reason() {
    let host = host(CanaryOptions::default(), &EngineOptions::default());
    #[derive(Debug, thiserror::Error)]
    #[error("messages[2] is empty")]
    struct Refused;
    type Job = Box<dyn FnOnce() -> fathom::engine::Prepared + Send>;
    let jobs: [(Job, Option<Code>); 4] = [
        (Box::new(|| Err(Failure::Prepare(Arc::new(Refused)))), None),
        (
            Box::new(|| {
                Err(Failure::Engine(Error::new(
                    Code::InvalidConstraint,
                    "",
                    "no",
                )))
            }),
            Some(Code::InvalidConstraint),
        ),
        (Box::new(|| panic!("of the job")), Some(Code::WorkerPanic)),
        (
            Box::new(|| Ok((request(1, 5000, 1), None))),
            Some(Code::ContextExceeded),
        ),
    ];
    let mut seen = Seen::default();
    for (at, (job, code)) in jobs.into_iter().enumerate() {
        let id = host
            .engine
            .submit_deferred(&host.queue, 0, None, job)
            .unwrap();
        seen.until_ended(&host.queue, at + 1);
        let outcome = &seen.outcomes[&id];
        assert_eq!(outcome.finish(), FinishReason::Error);
        assert_eq!(outcome.code(), code);
        assert_eq!(outcome.detail()["reason"], "error");
        if let Some(Failure::Prepare(error)) = &outcome.done().failure {
            assert_eq!(error.to_string(), "messages[2] is empty");
        }
    }
    assert_eq!(host.run(request(1, 5, 5)).code(), None);
    host.assert_idle();
}

/// Makes text of tokens, and stops or panics after some.
struct Text {
    stop_after: usize,
    panic_after: usize,
    seen: usize,
    ends: Arc<AtomicU32>,
}

impl Adapter for Text {
    fn adapt(&mut self, mut event: Event, out: &mut Vec<Event>) -> Flow {
        match event.kind {
            EventKind::Tokens(tokens) => {
                let from = self.seen;
                self.seen += tokens.tokens.len();
                assert!(self.seen < self.panic_after, "of the adapter");
                let keep = self
                    .stop_after
                    .saturating_sub(from)
                    .min(tokens.tokens.len());
                event.kind = EventKind::Data {
                    name: None,
                    data: format!("{:?}", &tokens.tokens[..keep]),
                    token_count: keep as u32,
                };
                out.push(event);
                if self.seen >= self.stop_after {
                    return Flow::Stop;
                }
            }
            EventKind::Done(_) => {
                self.ends.fetch_add(1, Relaxed);
                out.push(event);
            }
            EventKind::Data { .. } => unreachable!("made by adapters only"),
        }
        Flow::Continue
    }
}

#[test]
fn an_adapter_that_stops_ends_the_request_in_the_engine() {
    let host = host(CanaryOptions::default(), &EngineOptions::default());
    let ends = Arc::new(AtomicU32::new(0));
    let mut endless = request(1, 5, 4000);
    endless.ignore_eos = true;
    // Less than it wants: without the stop it would be paused for ever.
    endless.max_unread_tokens = 16;
    let text = Text {
        stop_after: 20,
        panic_after: usize::MAX,
        seen: 0,
        ends: ends.clone(),
    };
    let id = host
        .engine
        .submit(&host.queue, endless, Some(Box::new(text)))
        .unwrap();
    let mut seen = Seen::default();
    seen.until_ended(&host.queue, 1);
    let outcome = &seen.outcomes[&id];
    assert_eq!(outcome.finish(), FinishReason::Stop);
    assert!(outcome.done().failure.is_none());
    assert_eq!(outcome.detail()["reason"], "stop");
    assert!((20..40).contains(&outcome.done().usage.completion_tokens));
    assert_eq!(ends.load(Relaxed), 1);
    host.assert_idle();
    assert_eq!(host.engine.stats().requests_finished, 1);
}

#[test]
fn an_adapter_that_panics_ends_its_request_and_no_other() {
    let host = host(CanaryOptions::default(), &EngineOptions::default());
    let ends = Arc::new(AtomicU32::new(0));
    let mut endless = request(1, 5, 4000);
    endless.ignore_eos = true;
    let text = Text {
        stop_after: usize::MAX,
        panic_after: 10,
        seen: 0,
        ends: ends.clone(),
    };
    let bad = host
        .engine
        .submit(&host.queue, endless, Some(Box::new(text)))
        .unwrap();
    let good = host.submit(request(2, 5, 20));
    let mut seen = Seen::default();
    seen.until_ended(&host.queue, 2);
    assert_eq!(seen.outcomes[&bad].code(), Some(Code::Internal));
    assert_eq!(seen.outcomes[&bad].finish(), FinishReason::Error);
    assert_eq!(seen.outcomes[&good].code(), None);
    assert_eq!(ends.load(Relaxed), 0);
    assert_eq!(host.engine.state(), EngineState::Ready);
    host.assert_idle();
}

#[test]
fn without_a_backend_open_says_so_and_tuning_is_read_first() {
    let open = |options: &EngineOptions| Engine::open(options, &mut |_, _| true).unwrap_err();
    let bad = EngineOptions {
        tuning_json: r#"{"chunks": 1}"#.to_owned(),
        ..EngineOptions::default()
    };
    let error = open(&bad);
    assert_eq!(
        (error.code, &error.param[..]),
        (Code::InvalidParam, "chunks")
    );
}
