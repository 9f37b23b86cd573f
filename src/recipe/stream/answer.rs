//! The answer so far, in the shape that every protocol writes from, and the neutral events that build it.

use std::sync::Arc;

use super::held::Logprob;
use super::settings::Vocabulary;
use super::{Finish, Usage};

/// Why an answer ended, before a protocol puts it in its own words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reason {
    Stop,
    Length,
    ToolCalls,
    StopSequence,
    ContentFilter,
    EndOfStream,
}

impl Reason {
    /// The reason without the parser's own knowledge.
    pub(super) fn of(finish: Finish) -> Self {
        match finish {
            Finish::Stop | Finish::ToolCalls => Self::Stop,
            Finish::Length => Self::Length,
            Finish::ContentFilter => Self::ContentFilter,
            Finish::EndOfStream => Self::EndOfStream,
        }
    }

    pub(super) fn finish(self) -> Finish {
        match self {
            Self::Stop | Self::StopSequence => Finish::Stop,
            Self::Length => Finish::Length,
            Self::ToolCalls => Finish::ToolCalls,
            Self::ContentFilter => Finish::ContentFilter,
            Self::EndOfStream => Finish::EndOfStream,
        }
    }
}

/// One tool call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Call {
    pub(super) id: String,
    pub(super) name: String,
    /// JSON text; incomplete while the call is.
    pub(super) arguments: String,
}

/// What a protocol is told, in order: a start, any number of the middle ones, a finish unless the stream
/// fails. The [`Answer`] already contains what the event says.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Parsed<'a> {
    Start,
    Reasoning {
        text: &'a str,
        logprobs: &'a [Logprob],
    },
    Content {
        text: &'a str,
        logprobs: &'a [Logprob],
    },
    ToolCallNamed {
        index: usize,
        call: &'a Call,
    },
    ToolCallArguments {
        index: usize,
        text: &'a str,
    },
    Finish {
        reason: Reason,
    },
}

/// See the module.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) id: String,
    pub(super) model: String,
    pub(super) created: i64,
    pub(super) system_fingerprint: Option<String>,
    pub(super) choice: u32,
    /// The request asked for thinking.
    pub(super) thinking: bool,
    /// The output begins inside reasoning.
    pub(super) starts_in_reasoning: bool,
    /// The start event is out.
    pub(super) started: bool,
    pub(super) reasoning: String,
    pub(super) content: String,
    pub(super) calls: Vec<Call>,
    pub(super) reasoning_logprobs: Vec<Logprob>,
    pub(super) content_logprobs: Vec<Logprob>,
    pub(super) finish: Option<Reason>,
    pub(super) stop_sequence: Option<String>,
    pub(super) usage: Usage,
    /// `usage.reasoning_tokens` is a count, not merely zero.
    pub(super) knows_reasoning_tokens: bool,
    pub(super) vocabulary: Option<Arc<dyn Vocabulary>>,
}
