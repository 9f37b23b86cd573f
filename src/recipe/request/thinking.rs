//! Whether the model thinks, how hard, and what becomes of the reasoning of earlier turns.

use super::read::Node;
use super::{Context, refused};
use crate::recipe::conversation::{InputMessage, ReasoningEffort, ToolCall};
use crate::recipe::encoding::Encoding;
use crate::recipe::error::{Error, Stage};
use crate::recipe::options::ThinkingStage;
use crate::recipe::settings::{Effort, Settings};

/// `thinking` of a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Thinking {
    enabled: bool,
    /// Whether it had a budget, which is ignored.
    pub(super) has_budget: bool,
}

/// Effort as a request names it.
#[derive(Clone, Copy, Debug)]
pub(super) enum EffortField {
    Named(Effort),
    /// Only where the host allows numbers; not yet checked.
    Number(i64),
}

/// What the conversation gets.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mode {
    pub(super) thinking: bool,
    pub(super) effort: Option<ReasoningEffort>,
}

/// Reads `thinking`.
pub(super) fn read(node: Node<'_, '_>) -> Result<Thinking, Error> {
    let enabled = node.required("type")?.choice(&[
        ("enabled", true),
        ("adaptive", true),
        ("disabled", false),
    ])?;
    let budget = node.maybe("budget_tokens", |node| node.integer::<u64>())?;
    Ok(Thinking {
        enabled,
        has_budget: budget.is_some(),
    })
}

/// Reads an effort: a name or, if the host allows it, an integer.
pub(super) fn read_effort(node: Node<'_, '_>, settings: &Settings) -> Result<EffortField, Error> {
    if settings.allow_numeric_effort
        && let Some(number) = node.value().as_i64()
    {
        return Ok(EffortField::Number(number));
    }
    let named = node.value().as_str().and_then(Effort::from_name);
    named.map(EffortField::Named).ok_or_else(|| {
        node.expected("one of \"none\", \"minimal\", \"low\", \"medium\", \"high\", \"xhigh\", \"ultra\", \"max\"")
    })
}

/// Decides mode and effort. `param` is the path of the effort.
pub(super) fn mode(
    context: Context<'_>,
    thinking: Option<Thinking>,
    effort: Option<EffortField>,
    param: &str,
) -> Result<Mode, Error> {
    let settings = context.settings;
    let requested = match effort {
        None => None,
        Some(EffortField::Named(effort)) => Some(effort),
        Some(EffortField::Number(number)) => Some(Effort::On(percent(context, number, param)?)),
    };
    let host = host_effort(context)?;
    // The host's effort decides alone; else an explicit switch wins over what the effort implies.
    let on = match (host, thinking, requested) {
        (Some(effort), _, _) => effort != Effort::Off,
        (None, Some(thinking), _) => thinking.enabled,
        (None, None, Some(effort)) => effort != Effort::Off,
        (None, None, None) => settings.default_thinking_mode,
    };
    let effort = match host.or(requested) {
        Some(Effort::On(effort)) => effort,
        // Thinking in spite of `none` is thinking of the usual effort.
        Some(Effort::Off) => ReasoningEffort::High,
        None => settings.default_effort,
    };
    Ok(Mode {
        thinking: on,
        effort: on.then_some(effort),
    })
}

/// The effort that the host sets, if any; it wins over the request.
pub(super) fn host_effort(context: Context<'_>) -> Result<Option<Effort>, Error> {
    let effort = context.settings.effort;
    if let Some(Effort::On(ReasoningEffort::Percent(_))) = effort
        && context.encoding == Encoding::V4
    {
        return Err(Error::new(
            Stage::Option,
            "effort",
            "option \"effort\": V4 models take the names only, not a number",
        ));
    }
    Ok(effort)
}

/// An effort that is a number. `param` is its path.
pub(super) fn percent(
    context: Context<'_>,
    number: i64,
    param: &str,
) -> Result<ReasoningEffort, Error> {
    if context.encoding == Encoding::V4 {
        let message = "Invalid reasoning_effort value, numbers are not supported by this model";
        return Err(refused(param, message));
    }
    u8::try_from(number)
        .ok()
        .filter(|percent| (1..=100).contains(percent))
        .map(ReasoningEffort::Percent)
        .ok_or_else(|| {
            let message =
                "Invalid reasoning_effort value, the valid range of reasoning_effort is [1, 100]";
            refused(param, message)
        })
}

/// Normalises the reasoning of old assistant messages: dropped outside thinking mode, never null in it.
/// Where the host insists on it, reasoning that the current turn should have passed back is an error with
/// the text `missing`.
pub(super) fn normalize_history(
    settings: &Settings,
    messages: &mut [InputMessage],
    thinking: bool,
    has_tools: bool,
    missing: &str,
) -> Result<(), Error> {
    let last_user = messages
        .iter()
        .rposition(|message| matches!(message, InputMessage::User { .. }));
    for (at, message) in messages.iter_mut().enumerate() {
        let InputMessage::Assistant {
            reasoning_content,
            tool_calls,
            ..
        } = message
        else {
            continue;
        };
        if !thinking {
            *reasoning_content = None;
            continue;
        }
        if reasoning_content.is_some() {
            continue;
        }
        let in_current_turn = last_user.is_none_or(|user| at > user);
        let calls = tool_calls.as_deref().unwrap_or_default();
        let uses_tools = has_tools || tool_calls.is_some();
        if settings.reject_missing_reasoning
            && in_current_turn
            && uses_tools
            && !calls.iter().any(says_no_reasoning)
        {
            return Err(refused("messages", missing));
        }
        *reasoning_content = Some(String::new());
    }
    Ok(())
}

/// Whether the id of a call says that its turn had no reasoning (generated ids carry a mark, also after a
/// client stripped the underscores).
fn says_no_reasoning(call: &ToolCall) -> bool {
    let id = call.id.as_bytes();
    let marked = |range: std::ops::Range<usize>, mark: &[u8], longer: usize| {
        id.len() > longer && id.get(range) == Some(mark)
    };
    id.is_ascii() && (marked(8..11, b"ET_", 10) || marked(6..8, b"ET", 7))
}

/// Where the output of a thinking model begins.
pub(super) fn initial_stage(messages: &[InputMessage]) -> ThinkingStage {
    let Some(InputMessage::Assistant {
        content,
        reasoning_content,
        prefix: true,
        ..
    }) = messages.last()
    else {
        return ThinkingStage::ReasoningStart;
    };
    if !content.is_empty() {
        return ThinkingStage::ContentContinuation;
    }
    match reasoning_content {
        Some(reasoning) if !reasoning.is_empty() => ThinkingStage::ReasoningContinuation,
        _ => ThinkingStage::ReasoningStart,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(id: &str) -> ToolCall {
        ToolCall {
            id: id.to_owned(),
            name: String::new(),
            arguments: String::new(),
        }
    }

    #[test]
    fn the_mark_is_found_with_and_without_underscores() {
        for (id, marked) in [
            ("call_00_ET_abcdefghijklmnopqrst1234", true),
            ("call00ETabcdefgh", true),
            ("call_00_abcdefghijklmnopqrst1234", false),
            ("call_00_ET", false),
            ("é23456ET", false),
            ("", false),
        ] {
            assert_eq!(says_no_reasoning(&call(id)), marked, "{id}");
        }
    }
}
