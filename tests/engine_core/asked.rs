//! Whatever a request asks of sampling, stopping and reports, it gets what the specification says, on full pools and
//! on pools so small that everybody is preempted.

use std::sync::Arc;

use fathom::engine::backend::canary::{CanaryOptions, Gate, expected};
use fathom::engine::model::ModelLimits;
use fathom::engine::request::{
    FinishReason, LogprobSource, Logprobs, PromptLogprobs, RepeatGuard, Reporting, StopStrings,
    Think,
};
use fathom::engine::sampling::stops::TokenText;
use fathom::engine::{Code, EngineOptions, Request};
use proptest::prelude::*;
use serde_json::Value;

use crate::host::*;
use crate::{twin, whole, wishes};

const VOCAB: u32 = 97;

/// Few letters, so that stop strings are found; parts of characters; an id without text.
struct Letters;

impl TokenText for Letters {
    fn text(&self, id: u32) -> Option<&[u8]> {
        let texts: [&[u8]; 11] = [
            b"a",
            b"b",
            b"ab",
            b"ba",
            b"bb",
            "é".as_bytes(),
            &[0xe6],
            &[0xb1, 0x89],
            b"aab",
            "bé".as_bytes(),
            b"",
        ];
        Some(texts[id as usize % texts.len()])
    }
}

fn stop_strings(strings: &[&str], include: bool) -> Option<StopStrings> {
    Some(StopStrings {
        strings: strings.iter().map(|s| (*s).to_owned()).collect(),
        include,
        text: Arc::new(Letters),
    })
}

fn any_request() -> impl Strategy<Value = Request> {
    let stops = (
        prop::collection::vec("[ab]{2,5}|bé[ab]", 1..4),
        any::<bool>(),
    );
    (
        wishes::any_request(VOCAB),
        (1usize..60, 0u32..40),
        prop_oneof![1 => Just(None), 1 => stops.prop_map(Some)],
        prop_oneof![Just(1u32), 2u32..9],
        (any::<bool>(), 0u32..6),
    )
        .prop_map(
            |(mut request, (length, most), stops, interval, (ignore_eos, unread))| {
                let cycle = request.prompt.clone();
                request.prompt = cycle.into_iter().cycle().take(length).collect();
                if let Some(wish) = &mut request.reporting.prompt {
                    wish.start = wish.start.min(length as u32 - 1);
                }
                request.max_tokens = Some(most);
                request.sampling.min_tokens = request.sampling.min_tokens.min(most);
                if let Some((strings, include)) = stops {
                    let strings: Vec<&str> = strings.iter().map(String::as_str).collect();
                    request.stop_strings = stop_strings(&strings, include);
                }
                request.stream_interval = interval;
                request.ignore_eos = ignore_eos;
                request.max_unread_tokens = unread;
                request
            },
        )
}

fn near(value: &Value, expected: f64) -> bool {
    match value.as_f64() {
        None => value.is_null() && expected == f64::NEG_INFINITY,
        Some(own) => (own - expected).abs() <= 1e-4,
    }
}

/// Every value of a list is as expected.
fn assert_list(list: &Value, expected: impl IntoIterator<Item = f64>, what: &str) {
    let expected: Vec<f64> = expected.into_iter().collect();
    let list = list.as_array().unwrap_or_else(|| panic!("no {what}"));
    assert_eq!(list.len(), expected.len(), "{what}");
    for (own, expected) in list.iter().zip(expected) {
        assert!(near(own, expected), "{what}: {own} is not {expected}");
    }
}

fn assert_as_said(canary: &CanaryOptions, request: &Request, outcome: &Outcome) {
    let eos = &canary.limits.eos;
    let run = whole::run(request, eos, &[], &|tokens| expected(canary, tokens));
    let detail = outcome.detail();
    assert_eq!(outcome.finish(), run.finish(), "{detail}");
    assert_eq!(detail["reason"], run.reason);
    let is_error = run.reason == "error";
    assert_eq!(outcome.code(), is_error.then_some(Code::MaskEmpty));
    let usage = outcome.done().usage;
    assert_eq!(usage.completion_tokens as usize, run.tokens.len());

    let delivered = outcome.tokens.len();
    assert_eq!(outcome.tokens, run.tokens[..delivered]);
    match &run.stop {
        None => {
            assert_eq!(delivered, run.tokens.len());
            assert!(detail.get("tail").is_none());
        }
        Some(stop) => {
            assert_eq!(detail["stop"], stop.as_str());
            let mut text = whole::text(request, &outcome.tokens);
            let tail = detail.get("tail").map_or("", |tail| tail.as_str().unwrap());
            text.extend_from_slice(tail.as_bytes());
            let lossy = |text: &[u8]| String::from_utf8_lossy(text).into_owned();
            assert_eq!(lossy(&text), lossy(&run.text));
        }
    }

    let values = run.values(request);
    let own: Vec<f64> = values
        .iter()
        .zip(&run.tokens)
        .map(|(values, token)| values[*token as usize])
        .collect();
    if whole::wants_logprobs(request) {
        let logprobs = outcome.logprobs.iter().map(|v| f64::from(*v)).collect();
        let logprobs: Vec<f64> = logprobs;
        assert_eq!(logprobs.len(), delivered);
        for (value, own) in logprobs.iter().zip(&own) {
            assert!(value == own || (value - own).abs() <= 1e-4, "{value} {own}");
        }
        let ranks = values.iter().zip(&run.tokens).map(|(values, token)| {
            let place = twin::ranked(values).iter().position(|id| id == token);
            place.unwrap() as f64 + 1.0
        });
        assert_list(&detail["ranks"], ranks, "ranks");
        let sum = &detail["cumulative_logprob"];
        let expected: f64 = own.iter().sum();
        assert!(near(sum, expected) || (sum.as_f64().unwrap() - expected).abs() < 1e-3);
    } else {
        assert!(outcome.logprobs.is_empty() && detail.get("ranks").is_none());
    }
    let reporting = &request.reporting;
    assert_eq!(detail.get("tail_mass").is_some(), reporting.tail_mass);
    if reporting.tail_mass {
        let tails = values.iter().zip(&run.tokens);
        let tails = tails.map(|(values, token)| whole::tail(values, *token));
        assert_list(&detail["tail_mass"], tails, "tail_mass");
    }
    if reporting.tokens.is_empty() {
        assert!(detail.get("token_logprobs").is_none());
    } else {
        for (list, values) in detail["token_logprobs"]
            .as_array()
            .unwrap()
            .iter()
            .zip(&values)
        {
            let expected = reporting.tokens.iter().map(|id| values[*id as usize]);
            assert_list(list, expected, "token_logprobs");
        }
    }
    assert_eq!(detail.get("digest").is_some(), reporting.digest);
    match reporting.prompt {
        None => assert!(detail.get("prompt_logprobs").is_none()),
        Some(wish) => assert_prompt(canary, request, wish, &detail["prompt_logprobs"]),
    }
}

fn assert_prompt(canary: &CanaryOptions, request: &Request, wish: PromptLogprobs, told: &Value) {
    let start = wish.start.max(1) as usize;
    assert_eq!(told["start"], start);
    let rows: Vec<Vec<f64>> = (start..request.prompt.len())
        .map(|at| twin::log_softmax(&expected(canary, &request.prompt[..at])))
        .collect();
    let chosen = rows.iter().zip(&request.prompt[start..]);
    let own = chosen.clone().map(|(row, id)| row[*id as usize]);
    assert_list(&told["logprobs"], own, "prompt logprobs");
    let ranks = chosen.map(|(row, id)| {
        let place = twin::ranked(row).iter().position(|other| other == id);
        place.unwrap() as f64 + 1.0
    });
    assert_list(&told["ranks"], ranks, "prompt ranks");
    if wish.top > 0 && !rows.is_empty() {
        let lists = told["top_tokens"].as_array().unwrap();
        let values = told["top_logprobs"].as_array().unwrap();
        assert_eq!((lists.len(), values.len()), (rows.len(), rows.len()));
        for ((ids, values), row) in lists.iter().zip(values).zip(&rows) {
            let top = &twin::ranked(row)[..wish.top as usize];
            assert_list(ids, top.iter().map(|id| f64::from(*id)), "prompt top");
            let expected = top.iter().map(|id| row[*id as usize]);
            assert_list(values, expected, "prompt top logprobs");
        }
    }
}

/// Pools for so many tokens.
fn canary(tokens: u32) -> CanaryOptions {
    CanaryOptions {
        limits: ModelLimits {
            max_context: 120,
            blocks: tokens.div_ceil(8) + 1,
            slots: 8,
            ..CanaryOptions::default().limits
        },
        ..CanaryOptions::default()
    }
}

/// All of them at once; in the order in which they were given.
fn all_at_once(host: &Host, requests: &[Request]) -> Vec<Outcome> {
    let ids: Vec<_> = requests.iter().map(|r| host.submit(r.clone())).collect();
    let mut seen = Seen::default();
    seen.until_ended(&host.queue, ids.len());
    host.assert_idle();
    ids.iter()
        .map(|id| seen.outcomes.remove(id).unwrap())
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]
    /// P-12, P-18, P-20, P-22 and P-46: all wishes together, under preemption, as each alone.
    #[test]
    fn a_crowd_of_wishes_on_small_pools_gets_what_the_specification_says(
        requests in prop::collection::vec(any_request(), 1..7),
        rows in 1u32..40,
    ) {
        let tuning = format!(
            r#"{{"chunk": 8, "max_step_tokens": 24, "watermark": 0, "max_logit_rows": {rows}}}"#
        );
        let small = all_at_once(&host(canary(112), &options(6, &tuning)), &requests);
        let large = all_at_once(&host(canary(4000), &EngineOptions::default()), &requests);
        for ((request, outcome), other) in requests.iter().zip(&small).zip(&large) {
            assert_as_said(&canary(112), request, outcome);
            // Bit for bit, whatever happened around it.
            let bits = |o: &Outcome| o.logprobs.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
            prop_assert_eq!(&outcome.tokens, &other.tokens);
            prop_assert_eq!(bits(outcome), bits(other));
            prop_assert_eq!(&outcome.top, &other.top);
            let detail = |o: &Outcome| {
                let mut detail = o.detail();
                detail["preemptions"] = Value::Null;
                detail
            };
            prop_assert_eq!(detail(outcome), detail(other));
        }
    }
}

/// P-46: what counts from the first token on counts once, wherever the request is preempted.
#[test]
fn once_only_rules_hold_under_preemption_at_each_position() {
    let mut preempted = 0;
    for behind in 0..25 {
        let gate = Gate::closed();
        let mut canary = canary(0);
        // Room for both at the moment when the second one comes, and not a block more.
        canary.limits.blocks = 1 + 6 + 2;
        canary.gate = Some(gate.clone());
        let host = host(
            canary.clone(),
            &options(
                2,
                r#"{"chunk": 8, "max_step_tokens": 16, "watermark": 0, "lookahead_blocks": 0}"#,
            ),
        );
        let mut victim = request(1, 20, 26);
        victim.class = 7;
        victim.sampling = seeded(3);
        victim.sampling.min_tokens = 24;
        victim.sampling.golden_tokens = vec![None, Some(30), None, Some(31)];
        victim.sampling.frequency_penalty = 1.5;
        victim.sampling.think = Some(Think {
            budget: 9,
            end: vec![40, 41],
        });
        victim.logprobs = Logprobs::Top(3);
        victim.repeat_guard = Some(RepeatGuard {
            pattern: 4,
            count: 6,
        });
        // Never found: the request is meant to go on.
        victim.stop_strings = stop_strings(&["aaaaaaaaaaaaaaaaaaaaaa"], false);
        victim.reporting = Reporting {
            source: LogprobSource::Processed,
            tail_mass: true,
            tokens: vec![40, 41],
            prompt: Some(PromptLogprobs { top: 2, start: 0 }),
            digest: true,
        };
        let id = host.submit(victim.clone());
        gate.allow(behind);
        gate.wait_begun(behind + 1);
        let mut senior = request(2, 15, 20);
        senior.class = 0;
        senior.ignore_eos = true;
        let other = host.submit(senior.clone());
        gate.open();
        let mut seen = Seen::default();
        seen.until_ended(&host.queue, 2);
        let outcome = &seen.outcomes[&id];
        preempted += u32::from(outcome.detail()["preemptions"] != 0);
        canary.gate = None;
        assert_as_said(&canary, &victim, outcome);
        assert_eq!(seen.outcomes[&other].tokens, alone(&canary, &senior).0);
        host.assert_idle();
    }
    assert!(preempted >= 15, "only {preempted} of 25 were preempted");
}

#[test]
fn tokens_go_in_the_parts_that_were_asked_for() {
    let gate = Gate::closed();
    let mut canary = canary(4000);
    canary.gate = Some(gate.clone());
    let host = host(canary, &EngineOptions::default());
    let mut asked = request(1, 5, 13);
    asked.ignore_eos = true;
    asked.stream_interval = 5;
    let id = host.submit(asked);
    let mut seen = Seen::default();
    let mut parts = Vec::new();
    let mut before = 0;
    for step in 1..=13 {
        gate.wait_begun(step);
        gate.allow(1);
        if step < 13 {
            // The next one begins when this one has been told.
            gate.wait_begun(step + 1);
            seen.glance(&host.queue);
            let count = seen.outcomes.get(&id).map_or(0, |o| o.tokens.len());
            parts.extend((count > before).then_some(count - before));
            before = count;
        }
    }
    seen.until_ended(&host.queue, 1);
    parts.push(seen.outcomes[&id].tokens.len() - before);
    assert_eq!(parts, [1, 5, 5, 2]);
}

/// Catches: a reader with little room that waits for company, which waits for its room.
#[test]
fn a_part_larger_than_the_room_of_the_reader_does_not_stall() {
    let host = host(canary(4000), &EngineOptions::default());
    let mut asked = request(1, 5, 40);
    asked.ignore_eos = true;
    asked.stream_interval = 30;
    asked.max_unread_tokens = 3;
    assert_eq!(host.run(asked).tokens.len(), 40);
}

/// P-21.
#[test]
fn a_seed_gives_the_same_beside_requests_without_one() {
    let host = host(canary(200), &options(6, r#"{"chunk": 8, "watermark": 0}"#));
    let mut seeded_one = request(1, 20, 40);
    seeded_one.sampling = seeded(77);
    seeded_one.ignore_eos = true;
    let requests: Vec<Request> = (0..6)
        .map(|number| {
            let mut other = request(number, 10 + number, 40);
            other.sampling = seeded(0);
            other.sampling.seed = None;
            other.ignore_eos = true;
            if number == 3 {
                seeded_one.clone()
            } else {
                other
            }
        })
        .collect();
    let outcomes = all_at_once(&host, &requests);
    assert_eq!(outcomes[3].tokens, alone(&host.canary, &seeded_one).0);
    let preemptions = |o: &Outcome| o.detail()["preemptions"].as_u64();
    assert!(outcomes.iter().any(|o| preemptions(o) > Some(0)));
}

#[test]
fn what_is_held_back_comes_with_a_cancel() {
    let gate = Gate::closed();
    let mut canary = canary(4000);
    canary.gate = Some(gate.clone());
    let host = host(canary, &EngineOptions::default());
    let mut asked = request(1, 5, 40);
    // The text of 11 and of 22 is "a".
    asked.sampling.golden_tokens = vec![Some(11), Some(22), Some(11)];
    asked.stop_strings = stop_strings(&["aaaaaaaaaab"], false);
    let id = host.submit(asked);
    gate.allow(3);
    gate.wait_begun(4);
    let mut seen = Seen::default();
    assert_eq!(seen.glance(&host.queue), 0, "it could become a stop string");
    host.engine.cancel(&[id]);
    gate.open();
    seen.until_ended(&host.queue, 1);
    let outcome = &seen.outcomes[&id];
    assert_eq!(outcome.tokens[..3], [11, 22, 11]);
    assert_eq!(outcome.finish(), FinishReason::Cancelled);
    let usage = outcome.done().usage;
    assert_eq!(usage.completion_tokens as usize, outcome.tokens.len());
}

#[test]
fn an_id_of_the_blacklist_is_nobodys() {
    let plain = host(canary(4000), &EngineOptions::default());
    let mut asked = request(1, 5, 30);
    asked.ignore_eos = true;
    let first = plain.run(asked.clone()).tokens[0];
    let tuning = format!(r#"{{"token_blacklist": [{first}, 7]}}"#);
    let listed = host(canary(4000), &options(2, &tuning));
    let tokens = listed.run(asked.clone()).tokens;
    assert!(!tokens.contains(&first) && !tokens.contains(&7));
    let run = whole::run(&asked, &[1], &[first, 7], &|tokens| {
        expected(&listed.canary, tokens)
    });
    assert_eq!(tokens, run.tokens);
}

/// A row with nothing left but its end ends the request, and says so where everybody can count it.
#[test]
fn min_tokens_give_way_where_only_the_end_is_left() {
    let host = host(canary(4000), &EngineOptions::default());
    let mut asked = request(1, 5, 10);
    asked.sampling.allowed_tokens = Some(vec![1]);
    asked.sampling.min_tokens = 5;
    let run = whole::run(&asked, &[1], &[], &|tokens| expected(&host.canary, tokens));
    assert_eq!((&run.tokens[..], run.ignored), (&[1][..], 1));
    assert_eq!(host.run(asked).tokens, [1]);
    let metrics: Value = serde_json::from_str(&host.engine.metrics_json()).unwrap();
    assert_eq!(metrics["counters"]["min_tokens_ignored"], 1);
}
