//! One file a protocol: JSON is parsed, validated and converted into a conversation and options.
//!
//! Three steps, in this order for every protocol: the body is parsed into a JSON value, its shape is read
//! into a typed request (both fail with stage `deserialize`), and the typed request is converted (stage
//! `convert`, with the official texts). What protocols share has a file of its own: reading shapes, thinking
//! and effort, sampling, tools, schemas, content, images.

mod billing;
mod chat;
mod content;
mod conversation;
mod fields;
mod image;
mod messages;
mod prefix;
mod read;
mod responses;
mod sampling;
mod schema;
mod thinking;
mod tools;
mod warnings;

use super::conversation::{Conversation, Fim};
use super::encoding::{Encoding, Task};
use super::error::{Error, Stage};
use super::json::{self, Json};
use super::options::{InferenceOptions, ParsingOptions, Protocol, ResponseOptions, Warning};
use super::settings::Settings;

/// A request after conversion, not yet rendered.
#[derive(Clone, Debug)]
pub(super) struct Converted {
    /// Messages and tools.
    pub(super) conversation: Conversation,
    /// Sampling wishes.
    pub(super) inference: InferenceOptions,
    /// How to read the output.
    pub(super) parsing: ParsingOptions,
    /// How to write the response.
    pub(super) response: ResponseOptions,
    /// What was accepted and not honoured.
    pub(super) warnings: Vec<Warning>,
}

/// What conversion depends on besides the request.
#[derive(Clone, Copy)]
pub(super) struct Context<'a> {
    /// Options of the host.
    pub(super) settings: &'a Settings,
    /// The template of the model that the request names.
    pub(super) encoding: Encoding,
}

/// A body whose shape is right, by its protocol.
#[allow(
    clippy::large_enum_variant,
    reason = "one lives on the stack while its request is prepared"
)]
pub(super) enum Body<'v> {
    Chat(chat::Body<'v>),
    Conversation(conversation::Body<'v>),
    Responses(responses::Body<'v>),
    Messages(messages::Body<'v>),
}

impl<'v> Body<'v> {
    /// Reads the shape of a body.
    pub(super) fn read(
        protocol: Protocol,
        value: &'v Json<'v>,
        settings: &Settings,
    ) -> Result<Self, Error> {
        match protocol {
            Protocol::ChatCompletions => chat::read(value, settings).map(Self::Chat),
            Protocol::Conversation => conversation::read(value).map(Self::Conversation),
            Protocol::Responses => responses::read(value, settings).map(Self::Responses),
            Protocol::Messages => messages::read(value, settings).map(Self::Messages),
        }
    }

    /// The name of the model.
    pub(super) fn model(&self) -> &'v str {
        match self {
            Self::Chat(body) => body.model,
            Self::Conversation(body) => body.model,
            Self::Responses(body) => body.model,
            Self::Messages(body) => body.model,
        }
    }

    /// The template, where the request names it itself.
    pub(super) fn encoding(&self) -> Option<Encoding> {
        match self {
            Self::Conversation(body) => body.encoding,
            _ => None,
        }
    }

    /// The quick instruction of the request, which wins over the host's default.
    pub(super) fn task(&self) -> Option<Task> {
        match self {
            Self::Conversation(body) => body.task,
            _ => None,
        }
    }

    /// Text with a gap, in place of messages.
    pub(super) fn fim(&self) -> Option<Fim> {
        match self {
            Self::Conversation(body) => body.fim(),
            _ => None,
        }
    }

    /// Converts it for a model that is known by now.
    pub(super) fn convert(&self, context: Context<'_>) -> Result<Converted, Error> {
        match self {
            Self::Chat(body) => chat::convert(context, body),
            Self::Conversation(body) => conversation::convert(context, body),
            Self::Responses(body) => responses::convert(context, body),
            Self::Messages(body) => messages::convert(context, body),
        }
    }
}

/// The longest body. The images of a request, as base64, take a third of it.
const MOST_BYTES: usize = 256 << 20;

/// Parses the body of a request.
pub(super) fn parse(body: &[u8]) -> Result<Json<'_>, Error> {
    if body.len() > MOST_BYTES {
        let message = format!(
            "invalid JSON request: {} bytes, more than {MOST_BYTES}",
            body.len()
        );
        return Err(Error::new(Stage::Deserialize, "", message));
    }
    let text = std::str::from_utf8(body).map_err(|error| {
        let message = format!(
            "invalid JSON request: not UTF-8 at byte {}",
            error.valid_up_to()
        );
        Error::new(Stage::Utf8, "", message)
    })?;
    json::parse(text).map_err(|error| {
        Error::new(
            Stage::Deserialize,
            "",
            format!("invalid JSON request: {error}"),
        )
    })
}

/// A refused value, in the text that the official API uses.
fn refused(param: impl Into<String>, message: impl Into<String>) -> Error {
    Error::new(Stage::Convert, param, message)
}
