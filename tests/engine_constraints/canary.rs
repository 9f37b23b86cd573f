//! The canary under constraints: every choice of the engine is computed again without it, with the plain matcher.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use fathom::engine::backend::canary::{Canary, CanaryOptions, expected};
use fathom::engine::constraint::plain::{Expression, JsonObject, Language, Plain};
use fathom::engine::constraint::{
    Constraint, Matcher, Rules, Spec, Start, Token, TokenTable, Tokens, compile,
};
use fathom::engine::model::ModelLimits;
use fathom::engine::queue::QueueOptions;
use fathom::engine::request::{Done, EventKind, FinishReason, Logprobs, Sampling};
use fathom::engine::sampling::logprobs::LogSumExp;
use fathom::engine::sampling::{Noise, Purpose, Sampler};
use fathom::engine::{Engine, EngineOptions, Queue, Request, RequestId};
use serde_json::Value;

use crate::world::PATIENCE;

/// The canary's end token.
const END: u32 = 1;

/// Its vocabulary: two marks, and a token for each printable ASCII character.
pub(crate) fn table() -> Arc<TokenTable> {
    let bytes: Vec<[u8; 1]> = (b' '..=b'~').map(|byte| [byte]).collect();
    let texts = bytes.iter().map(|byte| Token::Text(byte));
    let tokens = [Token::Control, Token::Control].into_iter().chain(texts);
    Arc::new(TokenTable::new(tokens).unwrap())
}

pub(crate) fn id(character: char) -> u32 {
    character as u32 - 32 + 2
}

pub(crate) fn text(tokens: &[u32]) -> String {
    let texts = tokens.iter().filter(|id| **id >= 2);
    texts
        .map(|id| char::from_u32(id - 2 + 32).unwrap())
        .collect()
}

/// So few blocks that a crowd preempts each other.
pub(crate) fn tiny() -> CanaryOptions {
    CanaryOptions {
        limits: ModelLimits {
            blocks: 30,
            slots: 10,
            ..CanaryOptions::default().limits
        },
        ..CanaryOptions::default()
    }
}

pub(crate) struct Outcome {
    pub(crate) tokens: Vec<u32>,
    pub(crate) logprobs: Vec<f32>,
    pub(crate) done: Done,
}

impl Outcome {
    pub(crate) fn reason(&self) -> String {
        let detail: Value = serde_json::from_str(&self.done.detail).unwrap();
        detail["reason"].as_str().unwrap().to_owned()
    }
}

pub(crate) struct Host {
    pub(crate) engine: Engine,
    pub(crate) queue: Queue,
}

impl Host {
    pub(crate) fn new(canary: &CanaryOptions, tuning: &str) -> Self {
        let options = EngineOptions {
            max_running: 8,
            tuning_json: tuning.to_owned(),
            ..EngineOptions::default()
        };
        let model = Box::new(Canary::new(canary.clone()));
        Self {
            engine: Engine::with_model(model, &options).unwrap(),
            queue: Queue::new(QueueOptions::default()).unwrap(),
        }
    }

    pub(crate) fn run(&self, requests: &[Request]) -> Vec<Outcome> {
        let ids: Vec<RequestId> = requests
            .iter()
            .map(|request| {
                self.engine
                    .submit(&self.queue, request.clone(), None)
                    .unwrap()
            })
            .collect();
        let mut ended: HashMap<RequestId, Outcome> = HashMap::new();
        let mut open: HashMap<RequestId, (Vec<u32>, Vec<f32>)> = HashMap::new();
        let mut events = Vec::new();
        while ended.len() < ids.len() {
            self.queue.poll(&mut events, Some(PATIENCE)).unwrap();
            assert!(!events.is_empty(), "nothing for {PATIENCE:?}");
            for event in events.drain(..) {
                match event.kind {
                    EventKind::Tokens(new) => {
                        let (tokens, logprobs) = open.entry(event.request).or_default();
                        tokens.extend(new.tokens);
                        logprobs.extend(new.logprobs);
                    }
                    EventKind::Done(done) => {
                        let (tokens, logprobs) = open.remove(&event.request).unwrap_or_default();
                        let outcome = Outcome {
                            tokens,
                            logprobs,
                            done,
                        };
                        ended.insert(event.request, outcome);
                    }
                    EventKind::Data { .. } => panic!("no adapter was given"),
                }
            }
        }
        ids.iter().map(|id| ended.remove(id).unwrap()).collect()
    }
}

/// What the specification says of a constrained request, with nothing but the canary's logits, the sampler and the
/// plain matcher: tokens, reason, and the log-probabilities of the unmasked row.
fn alone<L: Language>(
    canary: &CanaryOptions,
    request: &Request,
    language: &L,
) -> (Vec<u32>, &'static str, Vec<f32>) {
    let start = &request.constraint.as_ref().unwrap().start;
    let mut matcher = Plain::new(language.clone(), table());
    let mut sampler = Sampler::new();
    let mut tokens = request.prompt.clone();
    let (prompt, seed) = (tokens.len(), request.sampling.seed.unwrap());
    let mut logprobs = Vec::new();
    let mut is_held = *start == Start::AtOnce;
    for _ in 0..request.max_tokens.unwrap() {
        let mut logits = expected(canary, &tokens);
        let sum = LogSumExp::of(&logits);
        let raw = logits.clone();
        let mut mask = [u32::MAX; 4];
        if is_held {
            matcher.mask(&mut mask).unwrap();
        }
        let may_end = is_held && matcher.is_complete();
        for (at, logit) in logits.iter_mut().enumerate() {
            let is_allowed = if at as u32 == END {
                may_end
            } else {
                mask[at / 32] >> (at % 32) & 1 == 1
            };
            if !is_allowed {
                *logit = f32::NEG_INFINITY;
            }
        }
        let noise = Noise::new(seed, tokens.len() as u32, 0, Purpose::Target);
        let token = sampler.choose(&logits, &request.sampling, noise).unwrap();
        logprobs.push(sum.logprob(raw[token as usize]));
        tokens.push(token);
        let output = &tokens[prompt..];
        if is_held && token == END {
            return (output.to_vec(), "stop", logprobs);
        }
        if is_held {
            matcher.accept(token).unwrap();
            if matcher.is_complete() && !matcher.can_continue() {
                return (output.to_vec(), "constraint_complete", logprobs);
            }
        } else if let Start::After { trigger, .. } = start {
            is_held = output.ends_with(trigger);
        }
    }
    (tokens.split_off(prompt), "length", logprobs)
}

fn request(number: u32, constraint: Constraint) -> Request {
    let id = |at: u32| 2 + (number.wrapping_mul(37) ^ at.wrapping_mul(11)) % 90;
    Request {
        max_tokens: Some(20 + number * 7 % 60),
        logprobs: if number.is_multiple_of(3) {
            Logprobs::Sampled
        } else {
            Logprobs::Off
        },
        sampling: match number % 2 {
            0 => Sampling {
                temperature: 0.0,
                seed: Some(0),
                ..Sampling::default()
            },
            _ => Sampling {
                temperature: 0.9,
                top_k: [0, 7][number as usize / 2 % 2],
                top_p: 0.97,
                seed: Some(u64::from(number)),
                ..Sampling::default()
            },
        },
        constraint: Some(constraint),
        ..Request::new((0..5 + number * 13 % 50).map(id).collect())
    }
}

fn source(spec: &Spec, table: &Arc<TokenTable>) -> Rules {
    Rules::Source {
        spec: Arc::new(spec.clone()),
        tokens: Tokens::Table(table.clone()),
    }
}

fn assert_as_alone<L: Language>(language: &L, spec: &Spec) {
    let table = table();
    let starts = [
        Start::AtOnce,
        // Seen by chance, or forced by its first id.
        Start::After {
            trigger: vec![id('a')],
            bound: None,
        },
    ];
    let requests: Vec<Request> = (0..32)
        .map(|number| {
            request(
                number,
                Constraint {
                    start: starts[number as usize / 5 % 2].clone(),
                    ..Constraint::new(source(spec, &table))
                },
            )
        })
        .collect();
    let canary = tiny();
    let wanted: Vec<_> = requests
        .iter()
        .map(|request| alone(&canary, request, language))
        .collect();
    for tuning in [
        r#"{"max_step_tokens": 24, "chunk": 16}"#,
        r#"{"max_step_tokens": 40, "chunk": 8, "watermark": 0, "lookahead_blocks": 0}"#,
        "",
    ] {
        let host = Host::new(&canary, tuning);
        let outcomes = host.run(&requests);
        for ((outcome, (tokens, reason, logprobs)), request) in
            outcomes.iter().zip(&wanted).zip(&requests)
        {
            assert_eq!(
                text(&outcome.tokens),
                text(tokens),
                "{spec:?} {tuning} {request:?}"
            );
            assert_eq!(&outcome.tokens, tokens);
            assert_eq!(outcome.reason(), *reason, "{:?}", text(tokens));
            let finish = if *reason == "length" {
                FinishReason::Length
            } else {
                FinishReason::Stop
            };
            assert_eq!(outcome.done.finish, finish);
            if request.logprobs != Logprobs::Off {
                assert_eq!(&outcome.logprobs, logprobs);
            }
        }
        let stats = host.engine.stats();
        assert!(
            stats.preemptions > 0,
            "the pools were meant to be too small: {stats:?}"
        );
        assert_eq!(stats.kv_blocks_used, 0);
    }
    let ended = |reason: &str| wanted.iter().filter(|(_, r, _)| *r == reason).count();
    assert!(ended("length") < 32, "no output was complete");
}

/// Catches: masks after the filters, or log-probabilities of the masked row; a replay that loses or repeats a token
/// after a preemption; a matcher that another sequence advances; an end token in the free text; an end one token
/// late.
#[test]
fn constrained_outputs_are_those_computed_without_the_engine() {
    let expression = "[a-z]{2,6}( [0-9]{1,3}){3,9}!?";
    assert_as_alone(
        &Expression::new(expression).unwrap(),
        &Spec::Regex(expression.to_owned()),
    );
    assert_as_alone(&JsonObject::default(), &Spec::JsonObject);
}

/// Catches: a constraint that costs its neighbours anything.
#[test]
fn requests_without_a_constraint_are_as_before() {
    let table = table();
    let free: Vec<Request> = (0..12)
        .map(|number| Request {
            constraint: None,
            ..request(number, Constraint::new(source(&Spec::JsonObject, &table)))
        })
        .collect();
    let alone: Vec<Vec<u32>> = free
        .iter()
        .map(|request| {
            Host::new(&tiny(), "")
                .run(std::slice::from_ref(request))
                .remove(0)
                .tokens
        })
        .collect();
    let mut mixed = free.clone();
    mixed.extend((0..12).map(|n| request(n, Constraint::new(source(&Spec::JsonObject, &table)))));
    let together = Host::new(&tiny(), "").run(&mixed);
    for (alone, together) in alone.iter().zip(&together) {
        assert_eq!(alone, &together.tokens);
    }
}

/// Catches: a stop token of the request that ends an incomplete text, and an end token that is allowed although the
/// request ignores it.
#[test]
fn stop_tokens_end_complete_texts_only() {
    let grammar = compile(Spec::Regex("[0-9]{2,5}".to_owned()), table()).unwrap();
    let mut asked = Request {
        stop_tokens: vec![id('7')],
        max_tokens: Some(40),
        ..request(0, Constraint::new(Rules::Compiled(grammar)))
    };
    let mut seen = Vec::new();
    for seed in 0..40 {
        asked.sampling = Sampling {
            temperature: 1.5,
            seed: Some(seed),
            ..Sampling::default()
        };
        asked.ignore_eos = seed % 2 == 0;
        let outcome = Host::new(&CanaryOptions::default(), "")
            .run(&[asked.clone()])
            .remove(0);
        let text = text(&outcome.tokens);
        match outcome.reason().as_str() {
            "stop" => {
                let last = *outcome.tokens.last().unwrap();
                assert!(
                    last == END && !asked.ignore_eos || last == id('7'),
                    "{text}"
                );
                let complete = text.trim_end_matches('7');
                assert!((2..=5).contains(&complete.len()), "{text}");
            }
            "constraint_complete" => assert_eq!(text.len(), 5, "{text}"),
            other => panic!("{other}: {text}"),
        }
        seen.push(outcome.reason());
    }
    assert!(seen.contains(&"stop".to_owned()) && seen.contains(&"constraint_complete".to_owned()));
}

/// Catches: free text that goes on behind the bound, and a trigger that is looked for in the prompt.
#[test]
fn a_bound_forces_the_rest_of_the_trigger() {
    let grammar = compile(Spec::Choice(r#"["ok"]"#.to_owned()), table()).unwrap();
    let trigger = [id('e'), id('>'), id('>')];
    let mut bounded = 0;
    for seed in 0..20 {
        let mut asked = request(
            1,
            Constraint {
                start: Start::After {
                    trigger: trigger.to_vec(),
                    bound: Some(id('e')),
                },
                ..Constraint::new(Rules::Compiled(grammar.clone()))
            },
        );
        asked.prompt.extend(trigger);
        asked.max_tokens = Some(400);
        asked.sampling = Sampling {
            seed: Some(seed),
            ..Sampling::default()
        };
        let outcome = Host::new(&CanaryOptions::default(), "")
            .run(&[asked])
            .remove(0);
        let text = text(&outcome.tokens);
        match text.split_once('e') {
            Some((_, rest)) => {
                assert_eq!(rest, ">>ok", "{text}");
                assert_eq!(outcome.reason(), "constraint_complete");
                bounded += 1;
            }
            None => assert_eq!(outcome.reason(), "length"),
        }
    }
    assert!(bounded > 0);
}

/// Catches: work that is done for nobody, and threads that are not joined.
#[test]
fn an_engine_shuts_down_while_grammars_are_compiled() {
    let words: Vec<String> = (0..20_000).map(|n| format!("value {}", n * 7919)).collect();
    let spec = Spec::Choice(serde_json::to_string(&words).unwrap());
    let host = Host::new(&CanaryOptions::default(), "");
    let table = table();
    for number in 0..6 {
        let asked = request(number, Constraint::new(source(&spec, &table)));
        host.engine.submit(&host.queue, asked, None).unwrap();
    }
    host.engine.shutdown(Duration::ZERO).unwrap();
    let (mut events, mut ends) = (Vec::new(), 0);
    while ends < 6 {
        host.queue.poll(&mut events, Some(PATIENCE)).unwrap();
        assert!(!events.is_empty(), "{ends} of 6 have ended");
        ends += events
            .drain(..)
            .filter(|event| matches!(event.kind, EventKind::Done(_)))
            .count();
    }
}
