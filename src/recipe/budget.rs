//! How many tokens an answer may have.

use super::conversation::ReasoningEffort;
use super::error::{Error, Stage};

/// The models' context.
pub(super) const MAX_CONTEXT: u32 = 1_048_576;

/// Output tokens when a request does not say.
fn default_max_tokens(thinking: bool, effort: Option<ReasoningEffort>) -> u32 {
    match effort {
        _ if !thinking => 8192,
        Some(ReasoningEffort::Max | ReasoningEffort::Percent(100)) => 131_072,
        _ => 65_536,
    }
}

/// The output budget: as requested or the default, and never past the end of the context.
///
/// A prompt that fills the context exactly leaves room for one token. What does not fit is refused with the
/// official text.
pub fn resolve_max_tokens(
    thinking: bool,
    effort: Option<ReasoningEffort>,
    requested: Option<u32>,
    prompt_tokens: u32,
    context_limit: u32,
) -> Result<u32, Error> {
    let completion = requested.unwrap_or(0);
    let sum = prompt_tokens.saturating_add(completion);
    if sum > context_limit {
        let message = format!(
            "This model's maximum context length is {context_limit} tokens. However, you requested {sum} tokens ({prompt_tokens} in the messages, {completion} in the completion). Please reduce the length of the messages or completion."
        );
        return Err(Error::new(Stage::Budget, "messages", message));
    }
    let wanted = requested.unwrap_or_else(|| default_max_tokens(thinking, effort));
    Ok(wanted.min(context_limit - prompt_tokens).max(1))
}
