//! Cancels, deadlines, limits and shutdown: one end each, and everything given back.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc;
use std::time::Duration;

use fathom::engine::backend::canary::{CanaryOptions, Gate};
use fathom::engine::request::FinishReason;
use fathom::engine::{Code, EngineOptions, EngineState, RequestId};

use crate::host::*;

fn gated(max_running: u32, tuning: &str) -> (Host, Arc<Gate>) {
    let gate = Gate::closed();
    let canary = CanaryOptions {
        gate: Some(gate.clone()),
        ..CanaryOptions::default()
    };
    (host(canary, &options(max_running, tuning)), gate)
}

fn assert_cancelled(outcome: &Outcome, code: Code, reason: &str) {
    assert_eq!(outcome.finish(), FinishReason::Cancelled);
    assert_eq!(outcome.code(), Some(code));
    assert_eq!(outcome.detail()["code"], code.name());
    assert_eq!(outcome.detail()["reason"], reason);
}

#[test]
fn cancel_works_in_every_state() {
    let (host, gate) = gated(1, r#"{"chunk": 8, "max_step_tokens": 16}"#);
    let mut seen = Seen::default();
    let mut ended = 0;
    let mut end = |host: &Host, id: RequestId| -> usize {
        // Twice is once.
        host.engine.cancel(&[id, RequestId(u64::MAX), id]);
        gate.allow(1);
        ended += 1;
        seen.until_ended(&host.queue, ended);
        assert_cancelled(&seen.outcomes[&id], Code::Cancelled, "cancelled");
        seen.outcomes[&id].tokens.len()
    };

    // While its request is being made.
    let (go, wait) = mpsc::channel::<()>();
    let (begun, has_begun) = mpsc::channel();
    let preparing = host
        .engine
        .submit_deferred(
            &host.queue,
            1,
            None,
            Box::new(move || {
                begun.send(()).unwrap();
                let _ = wait.recv();
                Ok((request(1, 5, 5), None))
            }),
        )
        .unwrap();
    has_begun.recv().unwrap();
    assert_eq!(end(&host, preparing), 0);
    drop(go);

    // Between the chunks of its prompt, and while another one waits behind it.
    let long = host.submit(request(2, 60, 30));
    gate.wait_begun(1);
    let waiting = host.submit(request(3, 5, 5));
    assert_eq!(end(&host, waiting), 0);
    let rows = host.probe.rows.load(Relaxed);
    assert!(rows < 60, "{rows}");
    assert_eq!(end(&host, long), 0);

    // While it decodes.
    let mut decoding = request(4, 5, 50);
    decoding.ignore_eos = true;
    let decoding = host.submit(decoding);
    let begun = host.probe.steps.load(Relaxed);
    gate.allow(3);
    wait_for(|| host.probe.steps.load(Relaxed) >= begun + 3);
    let tokens = end(&host, decoding);
    assert!((1..50).contains(&tokens), "{tokens}");

    // While it is paused.
    gate.open();
    let mut paused = request(5, 5, 50);
    paused.ignore_eos = true;
    paused.max_unread_tokens = 4;
    let paused = host.submit(paused);
    wait_for(|| host.engine.stats().paused == 1);
    assert_eq!(end(&host, paused), 4);

    // After its end.
    let over = host.run(request(6, 5, 5));
    assert!(over.done().failure.is_none());
    host.engine.cancel(&[paused]);
    assert_eq!(host.run(request(7, 5, 5)).code(), None);
    assert_eq!(host.engine.stats().requests_cancelled, 5);
    host.assert_idle();
}

#[test]
fn each_deadline_has_its_name() {
    let (host, gate) = gated(1, "");
    let mut first = request(1, 5, 5);
    first.deadline_first_token = Some(Duration::from_millis(20));
    let first = host.submit(first);
    gate.wait_begun(1);
    let mut behind = request(2, 5, 5);
    behind.deadline_queue = Some(Duration::from_millis(1));
    let behind = host.submit(behind);
    let mut total = request(3, 5, 5);
    total.deadline = Some(Duration::from_millis(1));
    total.deadline_first_token = Some(Duration::from_secs(3600));
    let total = host.submit(total);
    // The step that runs takes longer than all of them.
    let begun = std::time::Instant::now();
    wait_for(|| begun.elapsed() > Duration::from_millis(25));
    gate.open();
    let mut seen = Seen::default();
    seen.until_ended(&host.queue, 3);
    assert_cancelled(&seen.outcomes[&behind], Code::DeadlineQueue, "deadline");
    assert_cancelled(&seen.outcomes[&total], Code::DeadlineTotal, "deadline");
    // The first one got its token in the step that ran.
    assert_eq!(seen.outcomes[&first].code(), None);
    host.assert_idle();
}

#[test]
fn a_first_token_that_comes_too_late_ends_the_request() {
    let (host, gate) = gated(1, r#"{"chunk": 8, "max_step_tokens": 9}"#);
    let mut late = request(1, 50, 5);
    late.deadline_first_token = Some(Duration::from_millis(10));
    late.deadline_queue = Some(Duration::from_millis(5));
    let late = host.submit(late);
    gate.wait_begun(1);
    let begun = std::time::Instant::now();
    wait_for(|| begun.elapsed() > Duration::from_millis(15));
    gate.allow(1);
    let mut seen = Seen::default();
    seen.until_ended(&host.queue, 1);
    assert_cancelled(&seen.outcomes[&late], Code::DeadlineFirstToken, "deadline");
    host.assert_idle();
}

#[test]
fn an_idle_engine_still_watches_the_clock() {
    let host = host(CanaryOptions::default(), &EngineOptions::default());
    let (go, wait) = mpsc::channel::<()>();
    let id = host
        .engine
        .submit_deferred(
            &host.queue,
            1,
            Some(Duration::from_millis(5)),
            Box::new(move || {
                let _ = wait.recv();
                Ok((request(1, 5, 5), None))
            }),
        )
        .unwrap();
    let mut seen = Seen::default();
    seen.until_ended(&host.queue, 1);
    assert_cancelled(&seen.outcomes[&id], Code::DeadlineTotal, "deadline");
    drop(go);
    // A deadline given to the deferred call holds for the request that is made.
    let mut endless = request(1, 5, 4000);
    endless.ignore_eos = true;
    endless.max_unread_tokens = 2;
    host.engine
        .submit_deferred(
            &host.queue,
            1,
            Some(Duration::from_millis(50)),
            Box::new(move || Ok((endless, None))),
        )
        .unwrap();
    wait_for(|| host.engine.stats().requests_cancelled == 2);
    host.assert_idle();
}

#[test]
fn a_full_line_refuses_at_once() {
    let gate = Gate::closed();
    let host = host(
        CanaryOptions {
            gate: Some(gate.clone()),
            ..CanaryOptions::default()
        },
        &EngineOptions {
            max_queued: 3,
            ..options(1, "")
        },
    );
    host.submit(request(0, 5, 1));
    gate.wait_begun(1);
    for n in 1..4 {
        host.submit(request(n, 5, 1));
    }
    let refused = |deferred: bool| {
        let result = if deferred {
            let job = Box::new(|| Ok((request(9, 5, 1), None)));
            host.engine.submit_deferred(&host.queue, 9, None, job)
        } else {
            host.engine.submit(&host.queue, request(9, 5, 1), None)
        };
        result.unwrap_err().code
    };
    assert_eq!(refused(false), Code::QueueFull);
    assert_eq!(refused(true), Code::QueueFull);
    gate.open();
    let mut seen = Seen::default();
    seen.until_ended(&host.queue, 4);
    assert_eq!(host.run(request(5, 5, 1)).code(), None);
    assert_eq!(host.engine.stats().requests_refused, 2);
    host.assert_idle();
}

#[test]
fn shutdown_lets_requests_finish_within_its_time() {
    let host = host(CanaryOptions::default(), &options(2, ""));
    for n in 0..6 {
        host.submit(request(n, 20, 20));
    }
    let slow = Box::new(|| Ok((request(7, 5, 3), None)));
    host.engine
        .submit_deferred(&host.queue, 7, None, slow)
        .unwrap();
    host.engine.shutdown(Duration::from_secs(3600)).unwrap();
    assert_eq!(host.engine.state(), EngineState::Closed);
    let mut seen = Seen::default();
    seen.until_ended(&host.queue, 7);
    assert!(seen.outcomes.values().all(|o| o.done().failure.is_none()));
    host.assert_idle();
    host.engine.shutdown(Duration::ZERO).unwrap();
    let error = host
        .engine
        .submit(&host.queue, request(1, 5, 5), None)
        .unwrap_err();
    assert_eq!(error.code, Code::Closed);
}

#[test]
fn shutdown_ends_what_is_left_when_its_time_is_up() {
    let (host, gate) = gated(1, "");
    let running = host.submit(request(0, 5, 50));
    gate.wait_begun(1);
    let waiting = host.submit(request(1, 5, 50));
    let (go, wait) = mpsc::channel::<()>();
    let preparing = host
        .engine
        .submit_deferred(
            &host.queue,
            1,
            None,
            Box::new(move || {
                let _ = wait.recv();
                Ok((request(1, 5, 5), None))
            }),
        )
        .unwrap();
    let mut seen = Seen::default();
    std::thread::scope(|scope| {
        let closing = scope.spawn(|| host.engine.shutdown(Duration::from_millis(1)));
        wait_for(|| host.engine.state() == EngineState::Draining);
        let refused = host.engine.submit(&host.queue, request(2, 5, 5), None);
        assert_eq!(refused.unwrap_err().code, Code::Shutdown);
        gate.open();
        seen.until_ended(&host.queue, 3);
        drop(go);
        closing.join().unwrap().unwrap();
    });
    for id in [running, waiting, preparing] {
        // The first may have had the time to end by itself.
        if seen.outcomes[&id].done().failure.is_some() {
            assert_cancelled(&seen.outcomes[&id], Code::Shutdown, "shutdown");
        }
    }
    assert!(seen.outcomes[&preparing].code() == Some(Code::Shutdown));
    host.assert_idle();
}

#[test]
fn dropping_the_engine_ends_its_requests_and_the_queue_outlives_it() {
    let queue = queue();
    {
        let host = host(CanaryOptions::default(), &EngineOptions::default());
        let mut endless = request(1, 5, 4000);
        endless.max_unread_tokens = 8;
        endless.ignore_eos = true;
        host.engine.submit(&queue, endless, None).unwrap();
    }
    let mut seen = Seen::default();
    seen.until_ended(&queue, 1);
    let outcome = seen.outcomes.values().next().unwrap();
    assert_cancelled(outcome, Code::Shutdown, "shutdown");
}

#[test]
fn a_callback_cannot_shut_down_the_engine_it_runs_on() {
    let host = host(CanaryOptions::default(), &EngineOptions::default());
    let queue = queue();
    let engine = Arc::new(host.engine);
    let (send, receive) = mpsc::channel();
    let (weak, send) = (Arc::downgrade(&engine), std::sync::Mutex::new(send));
    queue.on_ready(Some(Box::new(move || {
        if let Some(engine) = weak.upgrade() {
            let result = engine.shutdown(Duration::ZERO);
            let _ = send.lock().unwrap().send(result);
        }
    })));
    engine.submit(&queue, request(1, 5, 5), None).unwrap();
    let error = receive.recv().unwrap().unwrap_err();
    assert_eq!(error.code, Code::WrongMoment);
    let mut seen = Seen::default();
    seen.until_ended(&queue, 1);
    assert_eq!(engine.state(), EngineState::Ready);
    queue.on_ready(None);
    engine.shutdown(Duration::ZERO).unwrap();
}

#[test]
fn closing_a_queue_cancels_its_requests_only() {
    let host = host(CanaryOptions::default(), &EngineOptions::default());
    let gone = queue();
    let mut endless = request(1, 5, 4000);
    endless.ignore_eos = true;
    endless.max_unread_tokens = 8;
    host.engine.submit(&gone, endless, None).unwrap();
    let kept = host.submit(request(2, 5, 30));
    wait_for(|| host.engine.stats().paused == 1);
    gone.close();
    let mut seen = Seen::default();
    seen.until_ended(&host.queue, 1);
    assert_eq!(seen.outcomes[&kept].code(), None);
    host.assert_idle();
    assert_eq!(host.engine.stats().requests_cancelled, 1);
    let refused = host.engine.submit(&gone, request(1, 5, 5), None);
    assert_eq!(refused.unwrap_err().code, Code::Closed);
    host.assert_idle();
}

#[test]
fn the_report_names_every_value_and_where_it_comes_from() {
    let host = host(
        CanaryOptions::default(),
        &options(100, r#"{"chunk": 20, "age_ms": 7}"#),
    );
    let info = host.engine.info();
    assert_eq!((info.vocab_size, info.max_running), (97, 19));
    assert_eq!((info.kv_blocks, info.max_context), (512, 4096));
    let json: serde_json::Value = serde_json::from_str(&host.engine.metrics_json()).unwrap();
    assert_eq!(json["state"], "ready");
    assert_eq!(json["config"]["max_running"]["origin"], "adjusted");
    assert_eq!(json["config"]["age_ms"]["value"], 7);
    assert_eq!(json["config"]["chunk"]["value"], 16);
    assert_eq!(json["counters"]["kv_blocks_total"], 512);
}
