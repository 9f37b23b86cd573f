//! What the tests share: an engine over the canary, a patient reader, and the outcome of a request computed
//! without any engine.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use fathom::engine::backend::canary::{Canary, CanaryOptions, Probe, expected};
use fathom::engine::queue::QueueOptions;
use fathom::engine::request::{Done, Event, EventKind, Failure, FinishReason, Logprobs, Sampling};
use fathom::engine::sampling::{Noise, Purpose, Sampler};
use fathom::engine::{Code, Engine, EngineOptions, Queue, Request, RequestId};

/// An engine with its queue and the canary's counters.
pub(crate) struct Host {
    pub(crate) engine: Engine,
    pub(crate) queue: Queue,
    pub(crate) probe: Arc<Probe>,
    pub(crate) canary: CanaryOptions,
}

pub(crate) fn host(canary: CanaryOptions, options: &EngineOptions) -> Host {
    let model = Canary::new(canary.clone());
    let probe = model.probe();
    Host {
        engine: Engine::with_model(Box::new(model), options).unwrap(),
        queue: queue(),
        probe,
        canary,
    }
}

pub(crate) fn queue() -> Queue {
    Queue::new(QueueOptions::default()).unwrap()
}

/// Options with this tuning and so many sequences at once.
pub(crate) fn options(max_running: u32, tuning_json: &str) -> EngineOptions {
    EngineOptions {
        max_running,
        tuning_json: tuning_json.to_owned(),
        ..EngineOptions::default()
    }
}

/// A request with a prompt made of a number.
pub(crate) fn request(number: u32, prompt: u32, max_tokens: u32) -> Request {
    // Ids from 2 on: 1 ends a sequence.
    let id = |at: u32| 2 + (number.wrapping_mul(37) ^ at.wrapping_mul(11)) % 90;
    Request {
        max_tokens: Some(max_tokens),
        tag: number.into(),
        sampling: greedy(),
        ..Request::new((0..prompt).map(id).collect())
    }
}

pub(crate) fn greedy() -> Sampling {
    Sampling {
        temperature: 0.0,
        seed: Some(0),
        ..Sampling::default()
    }
}

pub(crate) fn seeded(seed: u64) -> Sampling {
    Sampling {
        temperature: 0.8,
        top_k: 20,
        top_p: 0.95,
        seed: Some(seed),
        ..Sampling::default()
    }
}

/// What a request gives when nobody else exists: no engine, no pools, no chunks.
pub(crate) fn alone(canary: &CanaryOptions, request: &Request) -> (Vec<u32>, FinishReason) {
    let mut sampler = Sampler::new();
    let mut tokens = request.prompt.clone();
    let seed = request.sampling.seed.unwrap();
    let room = canary.limits.max_context - tokens.len() as u32;
    for _ in 0..request.max_tokens.unwrap_or(room) {
        let logits = expected(canary, &tokens);
        let noise = Noise::new(seed, tokens.len() as u32, 0, Purpose::Target);
        let token = sampler.choose(&logits, &request.sampling, noise).unwrap();
        tokens.push(token);
        let is_eos = canary.limits.eos.contains(&token) && !request.ignore_eos;
        if is_eos || request.stop_tokens.contains(&token) {
            return (tokens.split_off(request.prompt.len()), FinishReason::Stop);
        }
    }
    (tokens.split_off(request.prompt.len()), FinishReason::Length)
}

/// What came of a request.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) tokens: Vec<u32>,
    pub(crate) logprobs: Vec<f32>,
    pub(crate) top: Vec<(u32, f32)>,
    pub(crate) data: Vec<String>,
    pub(crate) seed: Option<u64>,
    pub(crate) done: Option<Done>,
}

impl Outcome {
    pub(crate) fn done(&self) -> &Done {
        self.done.as_ref().expect("it has ended")
    }

    pub(crate) fn finish(&self) -> FinishReason {
        self.done().finish
    }

    pub(crate) fn code(&self) -> Option<Code> {
        match &self.done().failure {
            Some(Failure::Engine(error)) => Some(error.code),
            _ => None,
        }
    }

    pub(crate) fn detail(&self) -> serde_json::Value {
        serde_json::from_str(&self.done().detail).unwrap()
    }
}

/// Everything that came out of a queue, by request.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    pub(crate) outcomes: BTreeMap<RequestId, Outcome>,
    pub(crate) ended: usize,
    /// Who ended, in order.
    pub(crate) order: Vec<RequestId>,
}

impl Seen {
    pub(crate) fn take(&mut self, event: Event) {
        let outcome = self.outcomes.entry(event.request).or_default();
        assert!(outcome.done.is_none(), "nothing comes after the end");
        match event.kind {
            EventKind::Tokens(tokens) => {
                let is_first = outcome.tokens.is_empty();
                assert_eq!(tokens.first.is_some(), is_first);
                assert!(!tokens.tokens.is_empty());
                outcome.seed = outcome.seed.or(tokens.first.map(|f| f.seed));
                outcome.tokens.extend(tokens.tokens);
                outcome.logprobs.extend(tokens.logprobs);
                let top = tokens.top_tokens.into_iter().zip(tokens.top_logprobs);
                outcome.top.extend(top);
            }
            EventKind::Data { data, .. } => outcome.data.push(data),
            EventKind::Done(done) => {
                outcome.done = Some(done);
                self.ended += 1;
                self.order.push(event.request);
            }
        }
    }

    /// Polls until so many requests have ended.
    pub(crate) fn until_ended(&mut self, queue: &Queue, count: usize) {
        let mut events = Vec::new();
        while self.ended < count {
            queue
                .poll(&mut events, Some(Duration::from_secs(60)))
                .unwrap();
            assert!(!events.is_empty(), "an end is missing: {self:?}");
            events.drain(..).for_each(|event| self.take(event));
        }
    }

    /// Polls once without waiting.
    pub(crate) fn glance(&mut self, queue: &Queue) -> usize {
        let mut events = Vec::new();
        queue.poll(&mut events, Some(Duration::ZERO)).unwrap();
        let count = events.len();
        events.into_iter().for_each(|event| self.take(event));
        count
    }
}

impl Host {
    pub(crate) fn submit(&self, request: Request) -> RequestId {
        self.engine.submit(&self.queue, request, None).unwrap()
    }

    /// Runs one request to its end.
    pub(crate) fn run(&self, request: Request) -> Outcome {
        let id = self.submit(request);
        let mut seen = Seen::default();
        seen.until_ended(&self.queue, 1);
        seen.outcomes.remove(&id).unwrap()
    }

    /// Nothing is held, nobody is alive, and no row was ever read that was not meant.
    pub(crate) fn assert_idle(&self) {
        wait_for(|| {
            let stats = self.engine.stats();
            let ended = stats.requests_finished + stats.requests_cancelled + stats.requests_failed;
            let held = stats.running + stats.waiting + stats.paused + stats.kv_blocks_used;
            stats.requests_accepted == ended && held == 0
        });
        assert_eq!(self.probe.stale.load(Relaxed), 0);
    }
}

/// Waits for a state that has no event.
pub(crate) fn wait_for(mut is_reached: impl FnMut() -> bool) {
    let begun = std::time::Instant::now();
    while !is_reached() {
        assert!(begun.elapsed() < Duration::from_secs(60), "never reached");
        std::thread::yield_now();
    }
}

/// A request that wants alternatives.
pub(crate) fn with_logprobs(mut request: Request, count: u32) -> Request {
    request.logprobs = Logprobs::Top(count);
    request
}
