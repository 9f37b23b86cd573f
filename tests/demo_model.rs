//! The trained demo model through the whole engine: its golden continuations, and many requests at once.

mod recipe_support;

use std::collections::HashMap;
use std::time::Duration;

use fathom::engine::queue::QueueOptions;
use fathom::engine::request::{EventKind, FinishReason, Logprobs};
use fathom::engine::{Engine, EngineOptions, Queue, Request, RequestId};
use recipe_support::{demo_cases, demo_model, ids};

/// Long enough for any step on a busy machine; reached only when something hangs.
const PATIENCE: Duration = Duration::from_secs(120);

fn engine(tuning: &str, change: impl FnOnce(&mut EngineOptions)) -> Engine {
    let mut options = EngineOptions {
        model_path: demo_model(),
        tuning_json: tuning.to_owned(),
        ..EngineOptions::default()
    };
    change(&mut options);
    Engine::open(&options, &mut |_, _| true).unwrap()
}

/// What a request produced.
#[derive(Clone, Debug, Default, PartialEq)]
struct Answer {
    tokens: Vec<u32>,
    logprobs: Vec<f32>,
    finish: Option<FinishReason>,
    completion_tokens: u32,
}

/// Polls until every request is done.
fn collect(queue: &Queue, ids: &[RequestId]) -> HashMap<RequestId, Answer> {
    let mut answers: HashMap<RequestId, Answer> =
        ids.iter().map(|id| (*id, Answer::default())).collect();
    let mut events = Vec::new();
    while answers.values().any(|a| a.finish.is_none()) {
        queue.poll(&mut events, Some(PATIENCE)).unwrap();
        assert!(!events.is_empty(), "nothing for {PATIENCE:?}");
        for event in events.drain(..) {
            let answer = answers
                .get_mut(&event.request)
                .expect("an event of a request that was not made");
            assert!(answer.finish.is_none(), "an event after the end");
            match event.kind {
                EventKind::Tokens(tokens) => {
                    answer.tokens.extend(tokens.tokens);
                    answer.logprobs.extend(tokens.logprobs);
                }
                EventKind::Done(done) => {
                    answer.completion_tokens = done.usage.completion_tokens;
                    answer.finish = Some(done.finish);
                }
                EventKind::Data { .. } => panic!("no adapter was given"),
            }
        }
    }
    answers
}

fn greedy(prompt: Vec<u32>) -> Request {
    let mut request = Request::new(prompt);
    request.sampling.temperature = 0.0;
    request
}

#[test]
fn golden_continuations_are_reproduced_wherever_their_margin_allows() {
    // Margins below which the arithmetic may choose otherwise: f32 against f32, and quantised
    // activations, whose choices differ in 3 of 740 steps by the oracle's own count.
    for (device, tuning, safe) in [
        ("cpu", r#"{"numerics":"plain"}"#, 1e-3),
        ("cpu", "{}", 0.1),
        ("reference", r#"{"numerics":"plain"}"#, 1e-3),
    ] {
        let engine = engine(tuning, |o| o.device = device.to_owned());
        let queue = Queue::new(QueueOptions::default()).unwrap();
        let cases = demo_cases();
        // The plain kernels take seconds for a long prompt.
        let cases: Vec<_> = cases
            .into_iter()
            .filter(|case| device == "cpu" || case["prompt_ids"].as_array().unwrap().len() < 100)
            .collect();
        let requests: Vec<RequestId> = cases
            .iter()
            .map(|case| {
                engine
                    .submit(&queue, greedy(ids(&case["prompt_ids"])), None)
                    .unwrap()
            })
            .collect();
        let answers = collect(&queue, &requests);
        let (mut equal, mut whole) = (0, 0);
        for (case, id) in cases.iter().zip(&requests) {
            let want = ids(&case["output_ids"]);
            let have = &answers[id].tokens;
            let margins = case["margins"].as_array().unwrap();
            let sure = margins
                .iter()
                .take_while(|m| m.as_f64().unwrap() >= safe)
                .count();
            let same = want.iter().zip(have).take_while(|(w, h)| w == h).count();
            assert!(
                same >= sure.min(want.len()),
                "{} on {device} {tuning}: {same} tokens are equal, {sure} have a safe margin",
                case["name"]
            );
            if same == want.len() {
                assert_eq!(
                    have.len(),
                    want.len(),
                    "{} on {device} went on after the end",
                    case["name"]
                );
                assert_eq!(answers[id].finish, Some(FinishReason::Stop));
                whole += 1;
            }
            equal += same;
        }
        println!(
            "{device} {tuning}: {whole} of {} cases whole, {equal} tokens equal",
            cases.len()
        );
        assert!(whole > 0);
    }
}

/// 64 requests of mixed lengths, greedy and seeded, with and without log-probabilities.
fn mixed_requests() -> Vec<Request> {
    let prompts: Vec<Vec<u32>> = demo_cases()
        .iter()
        .map(|case| ids(&case["prompt_ids"]))
        .collect();
    (0..64)
        .map(|i: u32| {
            let prompt = &prompts[i as usize % prompts.len()];
            // Some long prompts are cut, so that lengths differ; no cut falls below 14 tokens.
            let keep = prompt.len().min(14 + (i as usize * 37) % 400);
            let mut request = Request::new(prompt[prompt.len() - keep..].to_vec());
            request.max_tokens = Some(5 + (i * 7) % 40);
            request.tag = u64::from(i);
            if i.is_multiple_of(2) {
                request.sampling.temperature = 0.0;
            } else {
                request.sampling.temperature = [0.7, 1.0, 1.5][i as usize % 3];
                request.sampling.seed = Some(1000 + u64::from(i));
                request.sampling.top_p = [1.0, 0.9][i as usize / 2 % 2];
                request.sampling.top_k = [0, 40][i as usize / 4 % 2];
            }
            if i.is_multiple_of(5) {
                request.logprobs = Logprobs::Top(3);
            }
            request
        })
        .collect()
}

#[test]
fn sixty_four_requests_through_one_queue_give_the_tokens_of_each_alone() {
    let requests = mixed_requests();
    let queue = Queue::new(QueueOptions::default()).unwrap();
    let one_by_one = engine("{}", |o| o.max_running = 1);
    let alone: Vec<Answer> = requests
        .iter()
        .map(|request| {
            let id = one_by_one.submit(&queue, request.clone(), None).unwrap();
            collect(&queue, &[id]).remove(&id).unwrap()
        })
        .collect();
    drop(one_by_one);

    let layout = |tuning: &str, kv_bytes: u64| {
        engine(tuning, |o| {
            o.max_running = 16;
            o.kv_bytes = kv_bytes;
            o.max_context = 1024;
        })
    };
    // Enough memory; small chunks and steps; and so little memory that requests are preempted: what one
    // long request needs, and a few small blocks.
    const SMALL_BLOCKS: &str = r#"{"block_tokens":16,"lookahead_blocks":0,"watermark":0}"#;
    let plan = engine(SMALL_BLOCKS, |o| {
        o.max_running = 16;
        o.max_context = 1024;
        o.plan_only = true;
    });
    let plan: serde_json::Value = serde_json::from_str(&plan.metrics_json()).unwrap();
    let pools = |key: &str| plan["plan"]["pools"][key].as_u64().unwrap();
    let tight = pools("needed_bytes") + 15 * pools("block_bytes");
    for (tuning, kv_bytes) in [
        ("{}", 0),
        (r#"{"chunk":128,"max_step_tokens":160}"#, 0),
        (SMALL_BLOCKS, tight),
    ] {
        let engine = layout(tuning, kv_bytes);
        let together: Vec<RequestId> = requests
            .iter()
            .map(|request| engine.submit(&queue, request.clone(), None).unwrap())
            .collect();
        let answers = collect(&queue, &together);
        for (i, (id, alone)) in together.iter().zip(&alone).enumerate() {
            assert_eq!(
                &answers[id], alone,
                "request {i} with {tuning} and {kv_bytes} bytes of state"
            );
        }
        let stats = engine.stats();
        println!(
            "{tuning} {kv_bytes}: {} steps, {} preemptions, {:?}",
            stats.steps,
            stats.preemptions,
            engine.info()
        );
        assert_eq!(stats.preemptions > 0, kv_bytes == tight, "{stats:?}");
        assert_eq!(stats.kv_blocks_used, 0);
        assert_eq!(stats.requests_finished, 64);
    }
}

#[test]
fn a_plan_says_what_the_engine_would_take() {
    let engine = engine("{}", |o| o.plan_only = true);
    let info = engine.info();
    assert_eq!(info.model_name, "fathom-demo");
    assert_eq!(info.vocab_size, 4096);
    let metrics: serde_json::Value = serde_json::from_str(&engine.metrics_json()).unwrap();
    assert_eq!(metrics["plan"]["fits"], true);
    assert_eq!(
        metrics["plan"]["pools"]["kv_bytes"].as_u64().unwrap(),
        info.kv_bytes
    );

    let small = EngineOptions {
        model_path: demo_model(),
        kv_bytes: 1000,
        plan_only: true,
        ..EngineOptions::default()
    };
    let plan = Engine::open(&small, &mut |_, _| true).unwrap();
    let metrics: serde_json::Value = serde_json::from_str(&plan.metrics_json()).unwrap();
    assert_eq!(metrics["plan"]["fits"], false);
    let error = Engine::open(
        &EngineOptions {
            plan_only: false,
            ..small
        },
        &mut |_, _| true,
    )
    .unwrap_err();
    assert_eq!(error.code, fathom::engine::Code::OutOfHostMemory);
    assert!(error.message.contains("bytes"), "{error}");
}

#[test]
fn loading_can_be_aborted() {
    let options = EngineOptions {
        model_path: demo_model(),
        ..EngineOptions::default()
    };
    let mut phases = Vec::new();
    let error = Engine::open(&options, &mut |_, phase| {
        phases.push(phase.to_owned());
        false
    })
    .unwrap_err();
    assert_eq!(error.code, fathom::engine::Code::Cancelled);
    assert!(!phases.is_empty());
}
