//! Neutral events become those of a wire protocol: one file a protocol.

pub(super) mod chat;
pub(super) mod conversation;
pub(super) mod json;
pub(super) mod messages;
pub(super) mod responses;

use std::fmt::Debug;

use super::answer::{Answer, Parsed};
use super::output::Output;
use super::settings::ParserOptions;
use crate::recipe::options::Protocol;

/// Writes the events and the complete response of one protocol. The answer it gets already contains
/// what the event says, so a protocol without state of its own needs none.
pub(super) trait Writer: Debug + Send {
    /// Writes what `event` leads to; `tokens` were generated for it.
    fn event(&mut self, event: Parsed<'_>, tokens: u32, answer: &Answer, out: &mut Output);
    /// Writes the protocol's error event.
    fn failed(&mut self, http_status: u16, message: &str, answer: &Answer, out: &mut Output);
    /// The complete, non-streaming response.
    fn response(&self, answer: &Answer) -> String;
}

/// The writer for the protocol of `options`.
pub(super) fn writer(options: &ParserOptions) -> Box<dyn Writer> {
    match options.protocol {
        Protocol::ChatCompletions => Box::new(chat::Chat::new(options)),
        Protocol::Responses => Box::new(responses::Responses::new(options)),
        Protocol::Messages => Box::new(messages::Messages::new(options)),
        Protocol::Conversation => Box::new(conversation::Conversation),
    }
}

/// The code of an error in the protocols of OpenAI.
pub(super) fn error_code(http_status: u16) -> &'static str {
    match http_status {
        400 => "invalid_request_error",
        429 => "rate_limit_error",
        503 | 529 => "overloaded_error",
        _ => "internal_error",
    }
}
