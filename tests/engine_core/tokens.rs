//! What comes out, and that nothing around a request changes it.

use std::sync::atomic::Ordering::Relaxed;

use fathom::engine::backend::canary::{CanaryOptions, expected};
use fathom::engine::model::ModelLimits;
use fathom::engine::request::{FinishReason, Logprobs, Sampling};
use fathom::engine::{Code, EngineOptions, Request};

use crate::host::*;

fn tiny() -> CanaryOptions {
    CanaryOptions {
        limits: ModelLimits {
            max_context: 200,
            blocks: 26,
            slots: 10,
            ..CanaryOptions::default().limits
        },
        ..CanaryOptions::default()
    }
}

/// 64 requests of mixed length, half of them seeded; pools that hold two of the longest.
fn crowd() -> Vec<Request> {
    (0..64)
        .map(|n| {
            let mut request = request(n, 1 + n * 7 % 90, 1 + n * 13 % 70);
            if n % 2 == 1 {
                request.sampling = seeded(n.into());
            }
            request.ignore_eos = n % 5 != 0;
            request
        })
        .collect()
}

#[test]
fn sixty_four_at_once_equal_each_alone() {
    for (tuning, deterministic) in [
        (r#"{"max_step_tokens": 24, "chunk": 16}"#, false),
        (
            r#"{"max_step_tokens": 40, "chunk": 8, "watermark": 0, "lookahead_blocks": 0}"#,
            true,
        ),
        ("", false),
    ] {
        let host = host(
            tiny(),
            &EngineOptions {
                deterministic,
                ..options(8, tuning)
            },
        );
        let requests = crowd();
        let ids: Vec<_> = requests.iter().map(|r| host.submit(r.clone())).collect();
        let mut seen = Seen::default();
        seen.until_ended(&host.queue, 64);
        for (id, request) in ids.iter().zip(&requests) {
            let outcome = &seen.outcomes[id];
            let (tokens, finish) = alone(&host.canary, request);
            assert_eq!(outcome.tokens, tokens, "{request:?}");
            assert_eq!(outcome.finish(), finish);
            let usage = outcome.done().usage;
            assert_eq!(usage.completion_tokens as usize, tokens.len());
            assert_eq!(usage.prompt_tokens as usize, request.prompt.len());
            assert_eq!(outcome.seed, request.sampling.seed);
        }
        host.assert_idle();
        let stats = host.engine.stats();
        assert!(
            stats.preemptions > 0,
            "the pools were meant to be too small"
        );
        assert!(host.probe.mixed.load(Relaxed) > 0);
        assert!(host.probe.widest.load(Relaxed) > 2);
        let told: u64 = seen
            .outcomes
            .values()
            .map(|o| o.detail()["preemptions"].as_u64().unwrap())
            .sum();
        assert_eq!(told, stats.preemptions);
    }
}

#[test]
fn two_prompts_larger_together_than_the_pool_both_end() {
    // One request that grows and one with a long prompt: whoever waits for the other's blocks must get them.
    let host = host(
        tiny(),
        &options(4, r#"{"chunk": 16, "max_step_tokens": 32}"#),
    );
    let mut growing = request(1, 20, 170);
    growing.ignore_eos = true;
    let mut long = request(2, 150, 20);
    long.ignore_eos = true;
    let ids = [host.submit(growing.clone()), host.submit(long.clone())];
    let mut seen = Seen::default();
    seen.until_ended(&host.queue, 2);
    for (id, request) in ids.iter().zip([&growing, &long]) {
        assert_eq!(seen.outcomes[id].tokens, alone(&host.canary, request).0);
    }
    host.assert_idle();
}

#[test]
fn stops_by_end_tokens_and_by_stop_tokens_which_are_delivered() {
    let host = host(CanaryOptions::default(), &EngineOptions::default());
    let mut request = request(3, 10, 3000);
    request.max_tokens = None;
    let (tokens, finish) = alone(&host.canary, &request);
    assert_eq!((tokens.last(), finish), (Some(&1), FinishReason::Stop));
    let outcome = host.run(request.clone());
    assert_eq!(outcome.tokens, tokens);
    assert_eq!(outcome.detail()["stop"], 1);
    assert_eq!(outcome.detail()["reason"], "stop");
    assert!(outcome.done().failure.is_none());

    request.stop_tokens = vec![tokens[4]];
    let first = tokens.iter().position(|t| *t == tokens[4]).unwrap();
    let outcome = host.run(request.clone());
    assert_eq!(outcome.tokens, tokens[..=first]);
    assert_eq!(outcome.detail()["stop"], tokens[4]);

    request.stop_tokens.clear();
    request.ignore_eos = true;
    request.max_tokens = Some(tokens.len() as u32 + 5);
    let outcome = host.run(request.clone());
    assert_eq!(outcome.tokens[..tokens.len()], tokens);
    assert_eq!(outcome.finish(), FinishReason::Length);
    assert_eq!(outcome.detail()["reason"], "length");
    host.assert_idle();
}

#[test]
fn the_context_is_the_default_limit() {
    let mut canary = tiny();
    canary.limits.blocks = 100;
    let host = host(canary, &EngineOptions::default());
    let mut request = request(4, 30, 0);
    request.max_tokens = None;
    request.ignore_eos = true;
    let outcome = host.run(request);
    assert_eq!(outcome.tokens.len(), 170);
    assert_eq!(outcome.finish(), FinishReason::Length);
    assert!(outcome.detail().get("max_tokens").is_none());
}

#[test]
fn what_never_fits_is_refused_and_what_fits_in_part_is_capped() {
    let mut canary = tiny();
    canary.limits.blocks = 11; // 80 tokens
    let host = host(canary, &EngineOptions::default());
    let refused = |request: Request| {
        let error = host.engine.submit(&host.queue, request, None).unwrap_err();
        (error.code, error.param)
    };
    assert_eq!(
        refused(request(1, 80, 1)),
        (Code::NeverFits, "tokens".into())
    );
    assert_eq!(
        refused(request(1, 200, 1)),
        (Code::ContextExceeded, "tokens".into())
    );
    assert_eq!(
        refused(request(1, 10, 191)),
        (Code::ContextExceeded, "max_tokens".into())
    );
    assert_eq!(host.engine.stats().requests_refused, 3);
    let mut request = request(1, 50, 100);
    request.ignore_eos = true;
    let outcome = host.run(request);
    assert_eq!(outcome.tokens.len(), 30);
    assert_eq!(outcome.finish(), FinishReason::Length);
    assert_eq!(outcome.detail()["max_tokens"], 30);
}

#[test]
fn no_tokens_wanted_runs_the_prompt_only() {
    let host = host(CanaryOptions::default(), &options(4, r#"{"chunk": 16}"#));
    let outcome = host.run(request(5, 100, 0));
    assert!(outcome.tokens.is_empty());
    assert_eq!(outcome.finish(), FinishReason::Length);
    assert_eq!(outcome.done().usage.prompt_tokens, 100);
    assert_eq!(host.probe.rows.load(Relaxed), 100);
    host.assert_idle();
}

#[test]
fn a_drawn_seed_is_reported_and_repeats_the_output() {
    let host = host(CanaryOptions::default(), &EngineOptions::default());
    let mut request = request(6, 10, 40);
    request.sampling = Sampling::default();
    request.ignore_eos = true;
    let first = host.run(request.clone());
    let other = host.run(request.clone());
    assert_ne!(first.seed, other.seed);
    assert_ne!(first.tokens, other.tokens);
    assert_eq!(first.detail()["seed"].as_u64(), first.seed);
    request.sampling.seed = first.seed;
    assert_eq!(host.run(request).tokens, first.tokens);
}

#[test]
fn logprobs_are_those_of_the_raw_row() {
    let host = host(CanaryOptions::default(), &EngineOptions::default());
    let mut request = with_logprobs(request(7, 10, 12), 3);
    request.sampling = seeded(7);
    request.ignore_eos = true;
    let outcome = host.run(request.clone());
    assert_eq!(outcome.logprobs.len(), 12);
    assert_eq!(outcome.top.len(), 36);
    let ranks = outcome.detail()["ranks"].clone();
    let mut tokens = request.prompt.clone();
    for (at, &token) in outcome.tokens.iter().enumerate() {
        let row = expected(&host.canary, &tokens);
        let sum: f64 = row.iter().map(|z| f64::from(*z).exp()).sum();
        let logprob = |id: u32| f64::from(row[id as usize]) - sum.ln();
        assert!((f64::from(outcome.logprobs[at]) - logprob(token)).abs() < 1e-5);
        let mut order: Vec<u32> = (0..97).collect();
        order.sort_by(|a, b| logprob(*b).total_cmp(&logprob(*a)));
        for (place, (id, value)) in outcome.top[at * 3..][..3].iter().enumerate() {
            assert_eq!(*id, order[place]);
            assert!((f64::from(*value) - logprob(*id)).abs() < 1e-5);
        }
        let rank = order.iter().position(|id| *id == token).unwrap() + 1;
        assert_eq!(ranks[at], rank);
        tokens.push(token);
    }
    request.logprobs = Logprobs::Sampled;
    let sampled = host.run(request);
    assert_eq!(sampled.logprobs, outcome.logprobs);
    assert!(sampled.top.is_empty());
}

#[test]
fn a_higher_class_goes_first() {
    let gate = fathom::engine::backend::canary::Gate::closed();
    let host = host(
        CanaryOptions {
            gate: Some(gate.clone()),
            ..CanaryOptions::default()
        },
        &options(1, ""),
    );
    host.submit(request(1, 5, 1));
    gate.wait_begun(1);
    let mut ids = Vec::new();
    for (number, class) in [(2, 4), (3, 7), (4, 0), (5, 4)] {
        let mut request = request(number, 5, 1);
        request.class = class;
        ids.push(host.submit(request));
    }
    gate.open();
    let mut seen = Seen::default();
    seen.until_ended(&host.queue, 5);
    assert_eq!(seen.order[1..], [ids[2], ids[0], ids[3], ids[1]]);
}
