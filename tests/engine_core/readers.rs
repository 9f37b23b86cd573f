//! Slow readers: paused before too much waits, resumed when they read, and never at a loss.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use fathom::engine::backend::canary::CanaryOptions;
use fathom::engine::model::ModelLimits;
use fathom::engine::request::FinishReason;
use fathom::engine::{Code, EngineOptions};

use crate::host::*;

#[test]
fn a_reader_that_does_not_poll_pauses_its_request_and_loses_nothing() {
    let host = host(CanaryOptions::default(), &EngineOptions::default());
    let mut slow = request(1, 10, 100);
    slow.ignore_eos = true;
    slow.max_unread_tokens = 7;
    let expected = alone(&host.canary, &slow).0;
    let other = queue();
    let id = host.engine.submit(&other, slow, None).unwrap();
    let mut seen = Seen::default();
    for pause in 1..=14 {
        wait_for(|| host.engine.stats().paused == 1);
        // Others are not held up.
        assert_eq!(host.run(request(2, 5, 20)).code(), None);
        seen.glance(&other);
        assert_eq!(seen.outcomes[&id].tokens.len(), pause * 7);
        assert_eq!(seen.outcomes[&id].tokens, expected[..pause * 7]);
    }
    seen.until_ended(&other, 1);
    assert_eq!(seen.outcomes[&id].tokens, expected);
    assert_eq!(host.engine.stats().paused_for_reader, 14);
    host.assert_idle();
}

#[test]
fn acknowledged_tokens_make_room_and_polled_ones_do_not() {
    let host = host(CanaryOptions::default(), &EngineOptions::default());
    let mut slow = request(1, 10, 40);
    slow.ignore_eos = true;
    slow.max_unread_tokens = 10;
    slow.explicit_ack = true;
    let expected = alone(&host.canary, &slow).0;
    let id = host.submit(slow);
    let mut seen = Seen::default();
    let paused_at = |seen: &mut Seen, count: usize| {
        wait_for(|| {
            seen.glance(&host.queue);
            seen.outcomes
                .get(&id)
                .is_some_and(|o| o.tokens.len() == count)
        });
        wait_for(|| host.engine.stats().paused == 1);
    };
    paused_at(&mut seen, 10);
    let steps = host.probe.steps.load(Relaxed);
    host.engine.ack(&[(id, 3)]);
    paused_at(&mut seen, 13);
    assert_eq!(host.probe.steps.load(Relaxed), steps + 3);
    // More than is outstanding counts as all of it.
    host.engine.ack(&[(id, 1_000_000)]);
    paused_at(&mut seen, 23);
    host.engine.ack(&[(id, 10)]);
    paused_at(&mut seen, 33);
    host.engine.ack(&[(id, 7)]);
    seen.until_ended(&host.queue, 1);
    assert_eq!(seen.outcomes[&id].tokens, expected);
    host.engine.ack(&[(id, 1)]);
    host.assert_idle();
}

#[test]
fn a_paused_request_yields_its_memory_and_resumes_where_it_was() {
    let canary = CanaryOptions {
        limits: ModelLimits {
            max_context: 120,
            blocks: 17,
            slots: 4,
            ..CanaryOptions::default().limits
        },
        ..CanaryOptions::default()
    };
    let host = host(canary, &options(2, ""));
    let mut slow = request(1, 60, 50);
    slow.ignore_eos = true;
    slow.max_unread_tokens = 20;
    let expected = alone(&host.canary, &slow).0;
    let other = queue();
    let id = host.engine.submit(&other, slow, None).unwrap();
    wait_for(|| host.engine.stats().paused == 1);
    // Needs more than is left, so the oldest of all gives way.
    let big = request(2, 90, 10);
    assert_eq!(host.run(big.clone()).tokens, alone(&host.canary, &big).0);
    assert_eq!(host.engine.stats().preemptions, 1);
    let mut seen = Seen::default();
    seen.until_ended(&other, 1);
    assert_eq!(seen.outcomes[&id].tokens, expected);
    assert_eq!(seen.outcomes[&id].detail()["preemptions"], 1);
    host.assert_idle();
}

#[test]
fn a_host_may_have_stalled_requests_ended() {
    let host = host(
        CanaryOptions::default(),
        &options(2, r#"{"stall_timeout_ms": 5}"#),
    );
    let mut slow = request(1, 10, 100);
    slow.ignore_eos = true;
    slow.max_unread_tokens = 5;
    let expected = alone(&host.canary, &slow).0;
    let id = host.submit(slow);
    wait_for(|| host.engine.stats().requests_cancelled == 1);
    let mut seen = Seen::default();
    seen.until_ended(&host.queue, 1);
    let outcome = &seen.outcomes[&id];
    assert_eq!(outcome.tokens, expected[..5]);
    assert_eq!(outcome.finish(), FinishReason::Cancelled);
    assert_eq!(outcome.code(), Some(Code::ConsumerStalled));
    assert_eq!(outcome.detail()["reason"], "consumer_stalled");
    host.assert_idle();
}

#[test]
fn a_wake_ends_a_wait_and_the_queue_serves_several_engines() {
    let queue = queue();
    let a = host(CanaryOptions::default(), &EngineOptions::default());
    let b = host(CanaryOptions::default(), &EngineOptions::default());
    queue.wake();
    let mut events = Vec::new();
    queue.poll(&mut events, None).unwrap();
    assert!(events.is_empty());
    a.engine.submit(&queue, request(1, 5, 9), None).unwrap();
    b.engine.submit(&queue, request(2, 5, 9), None).unwrap();
    let mut seen = Seen::default();
    seen.until_ended(&queue, 2);
    a.engine.shutdown(Duration::ZERO).unwrap();
    b.engine.submit(&queue, request(3, 5, 9), None).unwrap();
    seen.until_ended(&queue, 3);
}
