//! A conversation becomes text with special ranges, then token ids: one file a model version.

pub mod v4;
pub mod v41;

use super::conversation::{Conversation, Prompt};
use super::error::Error;

/// Which template a model was trained with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Encoding {
    /// DeepSeek V4.
    V4,
    /// DeepSeek V4.1.
    V41,
}

/// Renders `conversation` for a model of `encoding`.
pub fn render(encoding: Encoding, conversation: &Conversation) -> Result<Prompt, Error> {
    match encoding {
        Encoding::V4 => v4::render(conversation),
        Encoding::V41 => v41::render(conversation),
    }
}
