//! A request as the host gives it, and the events it produces. Inside the scheduler it is a sequence.
//!
//! Everything is checked at submit, once; nothing is checked on the hot path.

#![forbid(unsafe_code)]

mod check;

use std::error::Error as StdError;
use std::sync::Arc;
use std::time::Duration;

use super::constraint::Constraint;
use super::error::{Code, Error};
use super::sampling::GREEDY_BELOW;
use super::sampling::stops::TokenText;

/// Never 0, never reused in a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// Sampling parameters of one request (`engine.md` sections 3 and 12).
#[derive(Clone, Debug, PartialEq)]
pub struct Sampling {
    /// Below 1e-5 is greedy.
    pub temperature: f32,
    /// 0 = off.
    pub top_k: u32,
    /// (0, 1].
    pub top_p: f32,
    /// [0, 1].
    pub min_p: f32,
    /// `None` is drawn at submit and reported.
    pub seed: Option<u64>,
    /// [-2, 2]: taken off ids that the output has.
    pub presence_penalty: f32,
    /// [-2, 2]: taken off for each time that the output has an id.
    pub frequency_penalty: f32,
    /// (0, 10]: divides what speaks for ids that prompt or output have.
    pub repetition_penalty: f32,
    /// Added to logits: up to 1024 different ids, each [-100, 100].
    pub logit_bias: Vec<(u32, f32)>,
    /// The only ids that may come.
    pub allowed_tokens: Option<Vec<u32>>,
    /// Up to 256 runs of ids that are not completed.
    pub bad_words: Vec<Vec<u32>>,
    /// No id that ends the output comes before; stop strings still end it.
    pub min_tokens: u32,
    /// Ids given in place of chosen ones, by place in the output; holes are chosen as usual.
    pub golden_tokens: Vec<Option<u32>>,
    /// Limits the reasoning.
    pub think: Option<Think>,
    /// Index in the random counter, 0..=63: choices of one seed differ by it.
    pub choice_base: u8,
}

impl Default for Sampling {
    /// The plain distribution.
    fn default() -> Self {
        Self {
            temperature: 1.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            seed: None,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            repetition_penalty: 1.0,
            logit_bias: Vec::new(),
            allowed_tokens: None,
            bad_words: Vec::new(),
            min_tokens: 0,
            golden_tokens: Vec::new(),
            think: None,
            choice_base: 0,
        }
    }
}

impl Sampling {
    /// Whether the most probable id is taken, without a draw.
    pub fn is_greedy(&self) -> bool {
        self.temperature < GREEDY_BELOW
    }
}

/// A limit for the reasoning, which begins with the output.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Think {
    /// Tokens until the end is forced.
    pub budget: u32,
    /// What ends it: 1 to 64 ids.
    pub end: Vec<u32>,
}

/// Ends an output that repeats itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RepeatGuard {
    /// The longest pattern that is looked for: 1..=64 tokens.
    pub pattern: u32,
    /// How often it must stand in a row: at least 2.
    pub count: u32,
}

/// Texts that end an output.
#[derive(Clone)]
pub struct StopStrings {
    /// Up to 16, each of 1 to 256 bytes.
    pub strings: Vec<String>,
    /// Whether the one that was found belongs to the output.
    pub include: bool,
    /// The vocabulary they are looked for in.
    pub text: Arc<dyn TokenText>,
}

impl PartialEq for StopStrings {
    /// Vocabularies are equal when they are the same.
    fn eq(&self, other: &Self) -> bool {
        self.strings == other.strings
            && self.include == other.include
            && Arc::ptr_eq(&self.text, &other.text)
    }
}

impl std::fmt::Debug for StopStrings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StopStrings")
            .field("strings", &self.strings)
            .field("include", &self.include)
            .finish_non_exhaustive()
    }
}

/// Which log-probabilities a request wants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Logprobs {
    /// None.
    #[default]
    Off,
    /// The chosen tokens' own.
    Sampled,
    /// The chosen tokens' own and this many alternatives.
    Top(u32),
}

/// Which distribution log-probabilities are those of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogprobSource {
    /// The model's.
    #[default]
    Raw,
    /// The one that was drawn from; of a greedy request the one at temperature 1.
    Processed,
}

/// Log-probabilities of the prompt, always the model's own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PromptLogprobs {
    /// Alternatives at each position: 0..=64.
    pub top: u32,
    /// The first position of the prompt that they are wanted for; position 0 has none.
    pub start: u32,
}

/// What the end of a request tells of its tokens. Lists have a value for each token of the output.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reporting {
    /// Of log-probabilities and masses.
    pub source: LogprobSource,
    /// The mass of all ids that were not more probable than the chosen one; only with log-probabilities.
    pub tail_mass: bool,
    /// Ids whose log-probabilities are wanted whatever was chosen; up to 128.
    pub tokens: Vec<u32>,
    /// Computes all rows of the prompt.
    pub prompt: Option<PromptLogprobs>,
    /// A digest over positions, logits and tokens.
    pub digest: bool,
}

/// A token sequence with parameters.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// At least one id.
    pub prompt: Vec<u32>,
    /// `None` takes the model's default.
    pub max_tokens: Option<u32>,
    /// How to choose.
    pub sampling: Sampling,
    /// Besides the model's end tokens; at most 64.
    pub stop_tokens: Vec<u32>,
    /// Go on after the end tokens.
    pub ignore_eos: bool,
    /// What to report beside the tokens.
    pub logprobs: Logprobs,
    /// What to report at the end.
    pub reporting: Reporting,
    /// Texts that end the output.
    pub stop_strings: Option<StopStrings>,
    /// Ends an output that repeats itself.
    pub repeat_guard: Option<RepeatGuard>,
    /// Tokens are delivered so many at a time, after the first one; at least 1.
    pub stream_interval: u32,
    /// Class 0 (first) ..= 7; 4 is normal.
    pub class: u8,
    /// From now on, for the whole request.
    pub deadline: Option<Duration>,
    /// Until its first row runs.
    pub deadline_queue: Option<Duration>,
    /// Until its first token.
    pub deadline_first_token: Option<Duration>,
    /// Paused beyond it; 0 = 4096.
    pub max_unread_tokens: u32,
    /// Tokens stay unread until acknowledged.
    pub explicit_ack: bool,
    /// Neither reads nor writes the prefix cache.
    pub no_cache: bool,
    /// Holds the output to a grammar.
    pub constraint: Option<Constraint>,
    /// Echoed in every event.
    pub tag: u64,
}

impl Request {
    /// A request with nothing but defaults.
    pub fn new(prompt: Vec<u32>) -> Self {
        Self {
            prompt,
            max_tokens: None,
            sampling: Sampling::default(),
            stop_tokens: Vec::new(),
            ignore_eos: false,
            logprobs: Logprobs::Off,
            reporting: Reporting::default(),
            stop_strings: None,
            repeat_guard: None,
            stream_interval: 1,
            class: 4,
            deadline: None,
            deadline_queue: None,
            deadline_first_token: None,
            max_unread_tokens: 0,
            explicit_ack: false,
            no_cache: false,
            constraint: None,
            tag: 0,
        }
    }

    /// Checks every field and settles how many tokens may come.
    pub(crate) fn check(&self, bounds: &Bounds) -> Result<Budget, Error> {
        check::numbers(self)?;
        check::ids(self, bounds)?;
        let budget = self.budget(bounds)?;
        check::lengths(self, bounds)?;
        Ok(budget)
    }

    /// What fits the context and an engine with nobody else in it.
    fn budget(&self, bounds: &Bounds) -> Result<Budget, Error> {
        let Bounds {
            max_context,
            pool_tokens,
            ..
        } = *bounds;
        let prompt = u32::try_from(self.prompt.len()).unwrap_or(u32::MAX);
        if prompt >= max_context {
            return Err(Error::new(
                Code::ContextExceeded,
                "tokens",
                format!("{prompt} prompt tokens leave no room in the context of {max_context}"),
            ));
        }
        if prompt >= pool_tokens {
            return Err(Error::new(
                Code::NeverFits,
                "tokens",
                format!("{prompt} prompt tokens leave no room in the memory of {pool_tokens}"),
            ));
        }
        let wanted = self.max_tokens.unwrap_or(max_context - prompt);
        if wanted > max_context - prompt {
            return Err(Error::new(
                Code::ContextExceeded,
                "max_tokens",
                format!(
                    "max_tokens {wanted} exceeds the context of {max_context} less {prompt} prompt tokens"
                ),
            ));
        }
        let max_tokens = wanted.min(pool_tokens - prompt);
        Ok(Budget {
            max_tokens,
            is_capped: max_tokens < wanted,
        })
    }
}

/// What requests are checked against.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    pub(crate) vocab: u32,
    pub(crate) max_context: u32,
    /// Positions that all blocks together hold.
    pub(crate) pool_tokens: u32,
}

/// How many tokens a request may produce.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Budget {
    pub(crate) max_tokens: u32,
    /// Less than was asked for, because no more fit the pools.
    pub(crate) is_capped: bool,
}

/// Why a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// An end or stop token.
    Stop,
    /// `max_tokens` or the context.
    Length,
    /// Tool calls: never from the engine, only from an [`Adapter`].
    ToolCalls,
    /// Cancel, deadline, shutdown; see the failure.
    Cancelled,
    /// See the failure.
    Error,
}

/// What ended a request that did not end by itself.
#[derive(Clone, Debug)]
pub enum Failure {
    /// The engine's own.
    Engine(Error),
    /// Of the step before the engine (parsing, rendering); the C API knows its type.
    Prepare(Arc<dyn StdError + Send + Sync>),
}

/// Counts and times of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(
    missing_docs,
    reason = "the names of fathom_usage, documented in the header"
)]
pub struct Usage {
    pub prompt_tokens: u32,
    pub cached_tokens: u32,
    pub completion_tokens: u32,
    pub reasoning_tokens: u32,
    pub drafted_tokens: u32,
    pub accepted_tokens: u32,
    pub queued_us: u64,
    pub prefill_us: u64,
    pub decode_us: u64,
}

/// Tokens of one request that became ready together.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tokens {
    /// In order; the stop token included.
    pub tokens: Vec<u32>,
    /// One each, or empty.
    pub logprobs: Vec<f32>,
    /// `tokens.len() × top_count`, most probable first, or empty.
    pub top_tokens: Vec<u32>,
    /// Same shape.
    pub top_logprobs: Vec<f32>,
    /// Alternatives for each token.
    pub top_count: u32,
    /// Which of the siblings.
    pub choice: u32,
    /// In the first event of a request: its prompt usage and seed.
    pub first: Option<First>,
}

/// What is known with the first token.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct First {
    /// Prompt side only.
    pub usage: Usage,
    /// Given or drawn.
    pub seed: u64,
}

/// The end of a request.
#[derive(Clone, Debug)]
pub struct Done {
    /// Why.
    pub finish: FinishReason,
    /// With `Error` and `Cancelled`.
    pub failure: Option<Failure>,
    /// Counts and times.
    pub usage: Usage,
    /// One JSON object (`c-api.md` section 7, `detail`).
    pub detail: String,
}

/// What a queue delivers.
#[derive(Clone, Debug)]
pub struct Event {
    /// Whose.
    pub request: RequestId,
    /// The request's tag.
    pub tag: u64,
    /// What happened.
    pub kind: EventKind,
}

/// The three kinds of events.
#[derive(Clone, Debug)]
pub enum EventKind {
    /// From the engine.
    Tokens(Tokens),
    /// Made by an [`Adapter`]: one document, with the protocol's event name and the tokens behind it.
    Data {
        /// The protocol's event name.
        name: Option<&'static str>,
        /// One JSON document.
        data: String,
        /// Tokens behind it.
        token_count: u32,
    },
    /// Exactly one, last.
    Done(Done),
}

/// What an [`Adapter`] wants of the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// Go on.
    Continue,
    /// The output has ended: cancel the rest, deliver nothing of it.
    Stop,
}

/// Turns the tokens of one request into something else while they are polled, on the poller's thread.
///
/// The queue calls it with every event of its request, in order, one at a time, and delivers what it
/// appends to `out`. It sees `Done` exactly once, last, and must append exactly one `Done` then.
pub trait Adapter: Send {
    /// Reads one event, appends what becomes of it.
    fn adapt(&mut self, event: Event, out: &mut Vec<Event>) -> Flow;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::constraint::{Rules, Spec, Start, Token, TokenTable, Tokens};

    const BOUNDS: Bounds = Bounds {
        vocab: 100,
        max_context: 64,
        pool_tokens: 48,
    };

    fn starting(trigger: Vec<u32>, bound: Option<u32>) -> Constraint {
        let table = TokenTable::new([Token::Text(b"a")]).unwrap();
        Constraint {
            start: Start::After { trigger, bound },
            ..Constraint::new(Rules::Source {
                spec: Arc::new(Spec::JsonObject),
                tokens: Tokens::Table(Arc::new(table)),
            })
        }
    }

    #[test]
    fn every_field_is_checked_and_named() {
        type Spoil = fn(&mut Request);
        let spoiled: &[(&str, Code, Spoil)] = &[
            ("temperature", Code::InvalidParam, |r| {
                r.sampling.temperature = f32::NAN
            }),
            ("temperature", Code::InvalidParam, |r| {
                r.sampling.temperature = -0.1
            }),
            ("temperature", Code::InvalidParam, |r| {
                r.sampling.temperature = f32::INFINITY
            }),
            ("top_k", Code::InvalidParam, |r| r.sampling.top_k = 1 << 31),
            ("top_p", Code::InvalidParam, |r| r.sampling.top_p = 0.0),
            ("top_p", Code::InvalidParam, |r| r.sampling.top_p = f32::NAN),
            ("min_p", Code::InvalidParam, |r| r.sampling.min_p = 1.1),
            ("logprobs", Code::InvalidParam, |r| {
                r.logprobs = Logprobs::Top(1001)
            }),
            ("priority", Code::InvalidParam, |r| r.class = 8),
            ("tokens", Code::InvalidPrompt, |r| r.prompt.clear()),
            ("tokens", Code::InvalidPrompt, |r| r.prompt[1] = 100),
            ("tokens", Code::ContextExceeded, |r| r.prompt = vec![1; 64]),
            ("tokens", Code::NeverFits, |r| r.prompt = vec![1; 48]),
            ("stop_tokens", Code::InvalidParam, |r| {
                r.stop_tokens = vec![100]
            }),
            ("stop_tokens", Code::InvalidParam, |r| {
                r.stop_tokens = vec![1; 65]
            }),
            ("max_tokens", Code::ContextExceeded, |r| {
                r.max_tokens = Some(62)
            }),
            ("presence_penalty", Code::InvalidParam, |r| {
                r.sampling.presence_penalty = 2.1
            }),
            ("frequency_penalty", Code::InvalidParam, |r| {
                r.sampling.frequency_penalty = f32::NAN
            }),
            ("repetition_penalty", Code::InvalidParam, |r| {
                r.sampling.repetition_penalty = 0.0
            }),
            ("logit_bias", Code::InvalidParam, |r| {
                r.sampling.logit_bias = vec![(100, 1.0)]
            }),
            ("logit_bias", Code::InvalidParam, |r| {
                r.sampling.logit_bias = vec![(1, f32::NAN)]
            }),
            ("logit_bias", Code::InvalidParam, |r| {
                r.sampling.logit_bias = vec![(1, 1.0), (1, 1.0)]
            }),
            ("logit_bias", Code::InvalidParam, |r| {
                r.sampling.logit_bias = vec![(1, 1.0); 1025]
            }),
            ("allowed_tokens", Code::InvalidParam, |r| {
                r.sampling.allowed_tokens = Some(vec![])
            }),
            ("bad_words", Code::InvalidParam, |r| {
                r.sampling.bad_words = vec![vec![1]; 257]
            }),
            ("bad_words", Code::InvalidParam, |r| {
                r.sampling.bad_words = vec![vec![1, 100]]
            }),
            ("min_tokens", Code::InvalidParam, |r| {
                r.max_tokens = Some(3);
                r.sampling.min_tokens = 4
            }),
            ("golden_tokens", Code::InvalidParam, |r| {
                r.sampling.golden_tokens = vec![None; 65]
            }),
            ("think", Code::InvalidParam, |r| {
                r.sampling.think = Some(Think::default())
            }),
            ("choice_base", Code::InvalidParam, |r| {
                r.sampling.choice_base = 64
            }),
            ("tail_mass", Code::InvalidParam, |r| {
                r.reporting.tail_mass = true
            }),
            ("logprob_tokens", Code::InvalidParam, |r| {
                r.reporting.tokens = vec![1; 129]
            }),
            ("prompt_logprobs", Code::InvalidParam, |r| {
                r.reporting.prompt = Some(PromptLogprobs { top: 0, start: 3 })
            }),
            ("repeat_guard", Code::InvalidParam, |r| {
                r.repeat_guard = Some(RepeatGuard {
                    pattern: 0,
                    count: 2,
                })
            }),
            ("stream_interval", Code::InvalidParam, |r| {
                r.stream_interval = 0
            }),
            ("trigger", Code::InvalidParam, |r| {
                r.constraint = Some(starting(vec![], None))
            }),
            ("trigger", Code::InvalidParam, |r| {
                r.constraint = Some(starting(vec![1; 65], None))
            }),
            ("trigger", Code::InvalidParam, |r| {
                r.constraint = Some(starting(vec![1, 100], None))
            }),
            ("bound", Code::InvalidParam, |r| {
                r.constraint = Some(starting(vec![1], Some(100)))
            }),
        ];
        for (param, code, spoil) in spoiled {
            let mut request = Request::new(vec![1, 2, 3]);
            request.check(&BOUNDS).unwrap();
            spoil(&mut request);
            let error = request.check(&BOUNDS).unwrap_err();
            assert_eq!((&error.param[..], error.code), (*param, *code), "{error}");
        }
    }

    #[test]
    fn the_budget_is_the_context_and_capped_by_the_pools() {
        let mut request = Request::new(vec![1; 10]);
        let budget = |r: &Request| r.check(&BOUNDS).map(|b| (b.max_tokens, b.is_capped));
        assert_eq!(budget(&request), Ok((38, true)));
        request.max_tokens = Some(38);
        assert_eq!(budget(&request), Ok((38, false)));
        request.max_tokens = Some(0);
        assert_eq!(budget(&request), Ok((0, false)));
    }
}
