//! The V4 template.
//!
//! System messages move to the front, tool calls and their results are sorted by id, and the effort of
//! thinking is a paragraph of instructions.

use std::cmp::Ordering;

use super::special::SpecialToken::{
    Assistant as AssistantToken, Bos, Eos, LatestReminder, ThinkingEnd, ThinkingStart, User,
};
use super::tools::{Markup, RESPONSE_FORMAT, STRICTLY_FOLLOW};
use super::{
    Assistant, Content, RenderOptions, Rendered, Turn, Writer, append, expected_length,
    shows_tools, sort_results_by_call, task_answer, write_end, write_header,
};
use crate::recipe::conversation::{Conversation, ReasoningEffort, ResponseFormat};
use crate::recipe::error::{Error, Stage};
use crate::recipe::json::{self, Style};

const EFFORT_HIGH: &str = "Reasoning Effort: Absolute maximum with no shortcuts permitted.\nYou MUST be very thorough in your thinking and comprehensively decompose the problem to resolve the root cause, rigorously stress-testing your logic against all potential paths, edge cases, and adversarial scenarios.\nExplicitly write out your entire deliberation process, documenting every intermediate step, considered alternative, and rejected hypothesis to ensure absolutely no assumption is left unchecked.\n\n";

const EFFORT_MAX: &str = "Reasoning Effort: Beyond maximum — exhaustive, relentless, and uncompromising.\nYou MUST reason with the utmost depth and rigor, leaving absolutely nothing to chance: exhaustively decompose the problem into its most fundamental components, trace every causal chain to its root, and resolve the underlying cause rather than any surface symptom.\nDo not stop reasoning until you have independently verified the solution from multiple angles and are certain that no assumption remains unchecked and no error remains undiscovered.\n\n";

const JSON_OBJECT: &str = "You are a helpful assistant designed to output JSON.\n## Response Format:\n\nReply with JSON object ONLY.";

pub(super) fn render<'a>(
    conversation: &'a Conversation,
    options: &RenderOptions<'a>,
) -> Result<Rendered<'a>, Error> {
    let markup = Markup {
        block: "tool_calls",
        call: "invoke",
        parameter: "parameter",
        style: if options.v4_reference_exact {
            Style::Python
        } else {
            Style::Spaced
        },
        empty_line: options.v4_reference_exact,
    };
    let (systems, turns) = arrange(conversation, options);
    let mut out = Writer::new(options.special_tokens, expected_length(conversation));
    out.special(Bos);
    if conversation.thinking_mode {
        out.text(effort(conversation.reasoning_effort)?);
    }
    write_systems(&mut out, conversation, &systems, &markup);

    let task_answer = task_answer(&turns);
    let mut previous: Option<&Turn<'_>> = None;
    for (at, turn) in turns.iter().enumerate() {
        match turn {
            // They all moved to the front.
            Turn::System(..) => {}
            Turn::User(first, more) => {
                let continues = matches!(previous, Some(Turn::User(..) | Turn::Tool(..)));
                open_user(&mut out, continues);
                let mut written = false;
                for part in std::iter::once(first).chain(more) {
                    let empty = part.prompt.text.is_empty();
                    if written && !empty {
                        out.text("\n\n");
                    }
                    out.content(*part);
                    written |= !empty;
                }
            }
            Turn::Tool(content, _) => {
                let continues = match previous {
                    Some(Turn::Tool(..)) => true,
                    Some(Turn::User(..)) => options.v4_join_tool_after_user,
                    _ => false,
                };
                open_user(&mut out, continues);
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
                    write_opening(&mut out, conversation, message);
                }
                out.assistant_text(message.content);
                if let Some(calls) = &message.calls {
                    markup.calls(&mut out, calls.iter().copied());
                }
                if !(message.prefix && at + 1 == turns.len()) {
                    out.special(Eos);
                }
            }
        }
        previous = Some(turn);
    }
    let task = write_end(&mut out, conversation, options, &markup, &turns);
    let (prompt, images) = out.finish();
    Ok(Rendered {
        prompt,
        images,
        task,
    })
}

/// System messages, which go first, and the other messages in the order and grouping of the template.
fn arrange<'a>(
    conversation: &'a Conversation,
    options: &RenderOptions<'_>,
) -> (Vec<Content<'a>>, Vec<Turn<'a>>) {
    let mut systems = Vec::new();
    let mut turns: Vec<Turn<'a>> = Vec::with_capacity(conversation.messages.len());
    for message in &conversation.messages {
        match Turn::of(message) {
            Turn::System(content, _) if content.prompt.text.is_empty() => {}
            Turn::System(content, _) => systems.push(content),
            turn => append(&mut turns, turn),
        }
    }
    if options.v4_reference_exact {
        sort_results_by_call(&mut turns);
    } else {
        sort_by_id(&mut turns);
    }
    (systems, turns)
}

/// Calls are sorted by id, and so are the results among the messages that follow, as many as there are
/// calls. Where fewer follow, they stay. The stretches are those of the order before any sorting.
fn sort_by_id(turns: &mut [Turn<'_>]) {
    let mut stretches = Vec::new();
    for (at, turn) in turns.iter_mut().enumerate() {
        if let Turn::Assistant(Assistant {
            calls: Some(calls), ..
        }) = turn
        {
            calls.sort_by(|left, right| left.id.cmp(&right.id));
            stretches.push(at + 1..at + 1 + calls.len());
        }
    }
    for stretch in stretches {
        if let Some(following) = turns.get_mut(stretch) {
            // Tool results first; `None` sorts before any id.
            following.sort_by(|left, right| match (left, right) {
                (Turn::Tool(_, left), Turn::Tool(_, right)) => left.cmp(right),
                (Turn::Tool(..), _) => Ordering::Less,
                (_, Turn::Tool(..)) => Ordering::Greater,
                _ => Ordering::Equal,
            });
        }
    }
}

fn effort(effort: Option<ReasoningEffort>) -> Result<&'static str, Error> {
    match effort {
        Some(ReasoningEffort::Low) => Ok(""),
        None | Some(ReasoningEffort::High | ReasoningEffort::Xhigh) => Ok(EFFORT_HIGH),
        Some(ReasoningEffort::Max) => Ok(EFFORT_MAX),
        Some(ReasoningEffort::Percent(percent)) => Err(Error::new(
            Stage::Convert,
            "reasoning_effort",
            format!("Invalid reasoning_effort value {percent}: V4 models take the names only"),
        )),
    }
}

/// System messages, then tool prompt and response format, separated by blank lines. The extras are never
/// the first of the list: where no message leads, an empty one does.
fn write_systems<'a>(
    out: &mut Writer<'a>,
    conversation: &Conversation,
    systems: &[Content<'a>],
    markup: &Markup,
) {
    for (at, content) in systems.iter().enumerate() {
        if at > 0 {
            out.text("\n\n");
        }
        out.content(*content);
    }
    if shows_tools(conversation) {
        out.text("\n\n");
        markup.instructions(out);
        for tool in conversation.tools.iter().filter(|tool| !tool.defer_loading) {
            markup.schema(out, tool);
            out.text("\n");
        }
        out.text("\n");
        out.text(STRICTLY_FOLLOW);
    }
    match &conversation.response_format {
        ResponseFormat::JsonObject => {
            out.text("\n\n");
            out.text(JSON_OBJECT);
        }
        ResponseFormat::JsonSchema(schema) => {
            out.text("\n\n");
            out.text(RESPONSE_FORMAT);
            json::restyle(out.text_mut(), schema.as_str(), markup.style);
        }
        ResponseFormat::Text | ResponseFormat::Regex(_) => {}
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
fn write_opening(out: &mut Writer<'_>, conversation: &Conversation, message: &Assistant<'_>) {
    out.special(AssistantToken);
    if let Some(reasoning) = message.reasoning
        && (message.prefix || shows_tools(conversation))
    {
        out.special(ThinkingStart);
        out.assistant_text(reasoning);
    }
    if !(conversation.thinking_mode && message.prefix && message.content.is_empty()) {
        out.special(ThinkingEnd);
    }
}
