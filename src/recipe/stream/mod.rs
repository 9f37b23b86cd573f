//! Tokens become reasoning, text, tool calls and a stop; then events, one file a protocol.

pub mod events;

use std::sync::Arc;

use super::error::Error;
use super::prepare::Prepared;

/// What a backend knows before the first token; all optional.
#[derive(Clone, Debug, Default)]
pub struct StartInfo {
    /// Prompt usage.
    pub prompt_tokens: u32,
    /// Of these, found in a cache.
    pub cached_tokens: u32,
    /// 0 = now.
    pub created_unix_s: i64,
    /// Empty = generated.
    pub response_id: String,
    /// Empty = none.
    pub system_fingerprint: String,
    /// Empty = the request's own.
    pub model: String,
    /// Which of the `n` siblings.
    pub choice: u32,
}

/// One step of a backend: ids or text, with or without log-probabilities.
#[derive(Clone, Copy, Debug, Default)]
pub struct Chunk<'a> {
    /// Ids, in order.
    pub tokens: &'a [u32],
    /// Text instead of ids.
    pub text: Option<&'a str>,
    /// How many tokens `text` stands for.
    pub text_tokens: u32,
    /// One for each token, or empty; NaN where missing.
    pub logprobs: &'a [f32],
    /// `tokens.len() × top_count` ids, or empty; `u32::MAX` where unused.
    pub top_tokens: &'a [u32],
    /// Same shape.
    pub top_logprobs: &'a [f32],
    /// Alternatives for each token.
    pub top_count: u32,
}

/// Why the output ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// The end token, or a stop of the engine.
    Stop,
    /// `max_tokens` or the context.
    Length,
    /// Tool calls (found by the parser only).
    ToolCalls,
    /// A filter of the host.
    ContentFilter,
    /// The input simply ended.
    EndOfStream,
}

/// One protocol event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// The `event:` line of Messages and Responses; `None` for Chat Completions.
    pub name: Option<&'static str>,
    /// One JSON document, no framing.
    pub data: String,
    /// Tokens behind this event.
    pub token_count: u32,
}

/// What one push produced.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Output {
    /// In order.
    pub events: Vec<Event>,
    /// Set in the push in which the output ended (a stop sequence, the end token): stop generating.
    pub done: Option<Finish>,
}

/// Token counts of a finished stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Prompt positions.
    pub prompt_tokens: u32,
    /// Of these, found in a cache.
    pub cached_tokens: u32,
    /// Generated, the end token included.
    pub completion_tokens: u32,
    /// Of these, reasoning.
    pub reasoning_tokens: u32,
}

impl Default for Finish {
    fn default() -> Self {
        Self::Stop
    }
}

/// Reads the output of one request. Any split of the token stream gives the same events.
#[derive(Debug)]
pub struct Parser {}

impl Parser {
    /// A parser for the output of `prepared`.
    pub fn new(_prepared: &Arc<Prepared>) -> Result<Self, Error> {
        unimplemented!()
    }
    /// Gives what is known before the first token and yields the opening events.
    pub fn start(&mut self, _info: &StartInfo, _out: &mut Output) -> Result<(), Error> {
        unimplemented!()
    }
    /// Reads more output.
    pub fn push(&mut self, _chunk: &Chunk<'_>, _out: &mut Output) -> Result<(), Error> {
        unimplemented!()
    }
    /// Flushes what was held back and yields the closing events. `usage` corrects the prompt side.
    pub fn finish(
        &mut self,
        _finish: Finish,
        _usage: Option<&Usage>,
        _out: &mut Output,
    ) -> Result<(), Error> {
        unimplemented!()
    }
    /// Ends the stream with the protocol's error event.
    pub fn fail(
        &mut self,
        _http_status: u16,
        _message: &str,
        _out: &mut Output,
    ) -> Result<(), Error> {
        unimplemented!()
    }
    /// The whole, non-streaming answer as JSON.
    pub fn response(&self) -> Result<String, Error> {
        unimplemented!()
    }
    /// How the output ended, once it has: the stop sequence that matched, and the finish the protocol reports.
    pub fn finish_reason(&self) -> Option<(Finish, Option<&str>)> {
        unimplemented!()
    }
    /// The parser's own count.
    pub fn usage(&self) -> Usage {
        unimplemented!()
    }
    /// Recoveries so far: `[{"code": "R8", "offset": 120, "count": 1}, …]`.
    pub fn diagnostics(&self) -> String {
        unimplemented!()
    }
}
