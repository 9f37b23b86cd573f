//! A request as the host gives it, and the events it produces. Inside the scheduler it is a sequence.

use std::error::Error as StdError;
use std::sync::Arc;
use std::time::Duration;

use super::error::Error;

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
    /// Echoed in every event.
    pub tag: u64,
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
