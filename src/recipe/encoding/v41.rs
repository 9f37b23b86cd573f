//! The V4.1 template.
//!
//! Messages stay where they are: system messages may stand anywhere, tool results are put into the order of
//! their calls, and the tool prompt joins the first system message.

use std::fmt::Write;

use super::special::SpecialToken::{
    Assistant as AssistantToken, Bos, Eos, LatestReminder, System, ThinkingEnd, ThinkingStart, User,
};
use super::tools::{Markup, RESPONSE_FORMAT, STRICTLY_FOLLOW};
use super::{
    Assistant, RenderOptions, Rendered, Turn, Writer, append, expected_length, shows_tools,
    sort_results_by_call, task_answer, write_end, write_header,
};
use crate::recipe::conversation::{Conversation, ReasoningEffort, ResponseFormat, ToolDefinition};
use crate::recipe::json::{self, Style};

const MARKUP: Markup = Markup {
    block: " calls",
    call: " invoke",
    parameter: " parameter",
    style: Style::Python,
    empty_line: true,
};

pub(super) fn render<'a>(
    conversation: &'a Conversation,
    options: &RenderOptions<'a>,
) -> Rendered<'a> {
    let turns = arrange(conversation, options);
    let mut out = Writer::new(options.special_tokens, expected_length(conversation));
    let has_extras = shows_tools(conversation)
        || matches!(
            conversation.response_format,
            ResponseFormat::JsonObject | ResponseFormat::JsonSchema(_)
        );
    let leads = matches!(turns.first(), Some(Turn::System(..)));

    out.special(Bos);
    let has_messages = has_extras || !turns.is_empty();
    if has_messages && (conversation.thinking_mode || has_extras || leads) {
        out.special(System);
    }
    if has_messages && conversation.thinking_mode {
        let effort = effort(conversation.reasoning_effort);
        out.text("Reasoning Effort: ");
        write!(out.text_mut(), "{effort}").expect("a string takes everything");
        out.text(" (range 1-100, the higher the value, the more thorough the reasoning)\n\n");
    }
    // The extras belong to the first system message; without one, to an empty one before all others.
    let inserted = has_extras && !leads;
    if inserted {
        write_extras(&mut out, conversation);
    }
    let task_answer = task_answer(&turns);
    let mut continues_user = false;
    for (at, turn) in turns.iter().enumerate() {
        match turn {
            Turn::System(content, tools) => {
                if at > 0 || inserted {
                    out.special(System);
                }
                out.content(*content);
                if at == 0 && has_extras && leads {
                    write_extras(&mut out, conversation);
                }
                if !tools.is_empty() {
                    out.text("\n\n### Updated Tool Schemas\n\n");
                    write_schemas(&mut out, tools.iter());
                }
            }
            Turn::User(first, more) => {
                open_user(&mut out, continues_user);
                out.content(*first);
                for part in more {
                    out.text("\n\n");
                    out.content(*part);
                }
            }
            Turn::Tool(content, _) => {
                open_user(&mut out, continues_user);
                out.text("<tool_result>");
                out.content(*content);
                out.text("</tool_result>");
            }
            Turn::Reminder(text) => {
                out.special(LatestReminder);
                out.text(text);
            }
            Turn::Assistant(message) => {
                if let Some(task) = options.task.filter(|_| at == task_answer) {
                    write_header(&mut out, conversation, Some(task));
                } else {
                    let leading = at == 0 && !inserted;
                    let may_reason = conversation.thinking_mode
                        && (!leading || (options.prefix_reasoning_first && message.prefix));
                    write_opening(&mut out, conversation, message, may_reason);
                }
                out.assistant_text(message.content);
                if let Some(calls) = message.calls.as_ref().filter(|calls| !calls.is_empty()) {
                    MARKUP.calls(&mut out, calls.iter().copied());
                }
                if !message.prefix {
                    out.special(Eos);
                }
            }
        }
        continues_user = matches!(turn, Turn::User(..) | Turn::Tool(..));
    }
    let task = write_end(&mut out, conversation, options, &MARKUP, &turns);
    let (prompt, images) = out.finish();
    Rendered {
        prompt,
        images,
        task,
    }
}

/// Messages in the order and grouping of the template.
fn arrange<'a>(conversation: &'a Conversation, options: &RenderOptions<'_>) -> Vec<Turn<'a>> {
    let mut turns: Vec<Turn<'a>> = Vec::with_capacity(conversation.messages.len());
    for message in &conversation.messages {
        let turn = Turn::of(message);
        if let (Some(Turn::Reminder(last)), Turn::Reminder(text)) = (turns.last_mut(), &turn) {
            if options.keep_last_reminder {
                *last = text;
            }
            continue;
        }
        append(&mut turns, turn);
    }
    sort_results_by_call(&mut turns);
    turns
}

fn effort(effort: Option<ReasoningEffort>) -> u8 {
    match effort {
        Some(ReasoningEffort::Low) => 50,
        None | Some(ReasoningEffort::High | ReasoningEffort::Xhigh) => 75,
        Some(ReasoningEffort::Max) => 100,
        Some(ReasoningEffort::Percent(percent)) => percent,
    }
}

/// Tool prompt and response format, each after a blank line.
fn write_extras(out: &mut Writer<'_>, conversation: &Conversation) {
    if shows_tools(conversation) {
        out.text("\n\n");
        MARKUP.instructions(out);
        write_schemas(
            out,
            conversation.tools.iter().filter(|tool| !tool.defer_loading),
        );
        out.text("\n\n");
        out.text(STRICTLY_FOLLOW);
    }
    let schema = match &conversation.response_format {
        ResponseFormat::JsonObject => r#"{"type":"json_object"}"#,
        ResponseFormat::JsonSchema(schema) => schema.as_str(),
        ResponseFormat::Text | ResponseFormat::Regex(_) => return,
    };
    out.text("\n\n");
    out.text(RESPONSE_FORMAT);
    json::restyle(out.text_mut(), schema, Style::Python);
}

fn write_schemas<'a>(out: &mut Writer<'_>, tools: impl Iterator<Item = &'a ToolDefinition>) {
    for (at, tool) in tools.enumerate() {
        if at > 0 {
            out.text("\n");
        }
        MARKUP.schema(out, tool);
    }
}

fn open_user(out: &mut Writer<'_>, continues: bool) {
    if continues {
        out.text("\n\n");
    } else {
        out.special(User);
    }
}

/// Header and reasoning of an assistant message. Old reasoning is shown only beside tools, or where the
/// message itself is to be continued.
fn write_opening(
    out: &mut Writer<'_>,
    conversation: &Conversation,
    message: &Assistant<'_>,
    may_reason: bool,
) {
    out.special(AssistantToken);
    let reasons = may_reason && (shows_tools(conversation) || message.prefix);
    if !reasons {
        out.special(ThinkingEnd);
        return;
    }
    let has_calls = message
        .calls
        .as_ref()
        .is_some_and(|calls| !calls.is_empty());
    let stays_open = message.prefix && message.content.is_empty() && !has_calls;
    out.special(ThinkingStart);
    out.assistant_text(message.reasoning.unwrap_or(""));
    if !stays_open {
        out.special(ThinkingEnd);
    }
}
