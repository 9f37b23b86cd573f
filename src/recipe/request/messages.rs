//! Messages: a body becomes a conversation and options.
//!
//! Checks run in the order of the official service; of several faults the first in that order is told. Input is
//! the tree of a body, output a [`Converted`]; cost is linear in the body, and what the conversation keeps of
//! it is copied once.

mod images;
mod pairing;
mod shape;
mod tools;
mod turns;

use super::fields::Fields;
use super::read::Node;
use super::warnings::Warnings;
use super::{Context, Converted, billing, content, prefix, sampling, thinking};
use crate::recipe::conversation::{Conversation, InputMessage, Prompt, ResponseFormat, ToolChoice};
use crate::recipe::error::Error;
use crate::recipe::json::Json;
use crate::recipe::options::{ParsingOptions, ResponseOptions};
use crate::recipe::settings::Settings;

use self::shape::{Block, Content, Request, Role, System};
use self::tools::Tools;

const FIELDS: Fields = Fields {
    used: &[
        "model",
        "messages",
        "system",
        "max_tokens",
        "temperature",
        "top_p",
        "stop_sequences",
        "stream",
        "tools",
        "tool_choice",
        "thinking",
        "output_config",
    ],
    ignored: &[
        "metadata",
        "top_k",
        "service_tier",
        "container",
        "mcp_servers",
        "cache_control",
        "context_management",
        "inference_geo",
        "output_format",
        "speed",
    ],
};

/// A body whose shape is right.
pub(in crate::recipe) struct Body<'v> {
    /// The model's name.
    pub(in crate::recipe) model: &'v str,
    value: &'v Json<'v>,
    request: Request<'v>,
}

/// Reads the shape of a body.
pub(in crate::recipe) fn read<'v>(
    value: &'v Json<'v>,
    settings: &Settings,
) -> Result<Body<'v>, Error> {
    let body = Node::body(value);
    let model = shape::model(&body)?;
    let request = shape::read(&body, settings)?;
    if settings.reject_unknown_fields {
        FIELDS.refuse_unknown(&body)?;
    }
    Ok(Body {
        model,
        value,
        request,
    })
}

/// Converts a body for a model that is known by now.
pub(in crate::recipe) fn convert(
    context: Context<'_>,
    body: &Body<'_>,
) -> Result<Converted, Error> {
    let settings = context.settings;
    let request = &body.request;
    let mut warnings = Warnings::default();
    warn_about_fields(settings, body, &mut warnings);

    let tools = Tools::new(context, &request.tools, &mut warnings)?;
    let mode = thinking::mode(
        context,
        request.thinking,
        request.effort,
        "output_config.effort",
    )?;
    let mut messages = Vec::new();
    messages.extend(request.system.as_ref().map(|given| system(settings, given)));
    turns::convert(
        context,
        &request.messages,
        &tools.names,
        &mut messages,
        &mut warnings,
    )?;
    if settings.messages_prefill {
        continue_last(request, &mut messages);
    }
    thinking::normalize_history(
        settings,
        &mut messages,
        mode.thinking,
        !request.tools.is_empty(),
        "The `content[].thinking` in the thinking mode must be passed back to the API.",
    )?;
    // A call cannot be forced while the model thinks, unless only what follows is held to it.
    let forces =
        settings.fixes.any_forces_call && (!mode.thinking || settings.fixes.thinking_tool_choice);
    let (definitions, tool_choice) = super::tools::convert(
        context,
        &tools.client,
        tools.choice(&request.tool_choice, forces)?,
        mode.thinking,
        |at| tools.path(at),
        "input_schema",
        &mut warnings,
    )?;
    tools::check_introduced(&messages, &definitions)?;
    super::tools::introduce(&mut messages, &definitions);
    let has_prefix = is_continued(&messages);
    if has_prefix {
        prefix::refuse_tools(!request.tools.is_empty(), &messages)?;
    }
    let stop_sequences = sampling::stop_sequences(&request.stop_sequences, "stop_sequences")?;
    let format = super::tools::Format::plain(ResponseFormat::Text);
    let output_constraint = super::tools::constraint(&definitions, tool_choice, &format, false)?;
    let parse_tool_calls = !definitions.is_empty() && tool_choice != ToolChoice::None;
    let mut sampling = request.sampling;
    let longest = sampling::longest_output(settings, mode.thinking);
    if let Some(asked) = sampling.max_tokens.filter(|asked| *asked > longest) {
        let message = format!("{asked} was replaced by {longest}");
        warnings.add("clamped", "max_tokens", message);
        sampling.max_tokens = Some(longest);
    }
    let mut inference =
        sampling.resolve(context, mode.thinking, parse_tool_calls, &mut warnings)?;
    inference.output_constraint = output_constraint;
    inference.engine.top_k = request.top_k;

    let shows_reasoning = mode.thinking && parse_tool_calls;
    warn_about_reasoning(request, shows_reasoning, has_prefix, &mut warnings);
    Ok(Converted {
        parsing: ParsingOptions {
            parse_tool_calls,
            starts_in_tool_calls: super::tools::opens_calls(context, tool_choice, mode.thinking),
            parse_json_output: false,
            thinking_initial_stage: mode.thinking.then(|| thinking::initial_stage(&messages)),
            stop_sequences,
        },
        conversation: Conversation {
            messages,
            thinking_mode: mode.thinking,
            tools: definitions,
            tool_choice,
            reasoning_effort: mode.effort,
            response_format: format.shown,
        },
        inference,
        response: ResponseOptions {
            stream: request.stream,
            ..ResponseOptions::default()
        },
        warnings: warnings.finish(),
    })
}

/// The system prompt, without what some clients put before it for accounting.
fn system(settings: &Settings, system: &System<'_>) -> InputMessage {
    let strips_line = settings.fixes.one_billing_header_rule;
    let text = match system {
        System::Text(text) if strips_line => billing::without_header(text, true).to_owned(),
        System::Text(text) => (*text).to_owned(),
        System::Blocks(blocks) => match blocks.split_first() {
            Some((first, rest)) if billing::has_header(first, true) => {
                let kept = if strips_line {
                    billing::without_header(first, true)
                } else {
                    ""
                };
                let first = (!kept.is_empty()).then_some(kept);
                let kept: Vec<&str> = first.into_iter().chain(rest.iter().copied()).collect();
                kept.join(content::BETWEEN_PARTS)
            }
            _ => blocks.join(content::BETWEEN_PARTS),
        },
    };
    InputMessage::System {
        content: Prompt::plain(text),
        image_sources: Vec::new(),
        tools: None,
    }
}

/// Lets the model go on with what the request's last message begins, if that is its own.
fn continue_last(request: &Request<'_>, messages: &mut [InputMessage]) {
    let is_own = |message: &shape::Message<'_>| message.role == Role::Assistant;
    if request.messages.last().is_some_and(is_own)
        && let Some(InputMessage::Assistant { prefix, .. }) = messages.last_mut()
    {
        *prefix = true;
    }
}

fn is_continued(messages: &[InputMessage]) -> bool {
    matches!(
        messages.last(),
        Some(InputMessage::Assistant { prefix: true, .. })
    )
}

fn warn_about_fields(settings: &Settings, body: &Body<'_>, warnings: &mut Warnings) {
    let Some(fields) = body.value.as_object() else {
        return;
    };
    let request = &body.request;
    for (name, value) in fields.iter() {
        if value.is_null() {
            continue;
        }
        match name {
            "thinking" if request.thinking.is_some_and(|t| t.has_budget) => {
                let message = "there is no budget";
                warnings.add("ignored_field", "thinking.budget_tokens", message);
            }
            "output_config" if request.has_format => {
                let message = "the output is not held to a format";
                warnings.add("ignored_field", "output_config.format", message);
            }
            "tool_choice" if request.one_call => {
                let param = "tool_choice.disable_parallel_tool_use";
                warnings.add("ignored_field", param, "calls may always be parallel");
            }
            "top_k" if settings.engine_params => {}
            name => FIELDS.warn(name, warnings),
        }
    }
}

/// Old reasoning is shown beside tools only, and in the message that is to be continued.
fn warn_about_reasoning(
    request: &Request<'_>,
    is_shown: bool,
    has_prefix: bool,
    warnings: &mut Warnings,
) {
    if is_shown {
        return;
    }
    let old = request.messages.len() - usize::from(has_prefix);
    for (at, message) in request.messages[..old].iter().enumerate() {
        let Content::Blocks(blocks) = &message.content else {
            continue;
        };
        for (index, block) in blocks.iter().enumerate() {
            if let Block::Thinking(thought) = block
                && !thought.is_empty()
            {
                let param = format!("messages[{at}].content[{index}].thinking");
                let message = "old reasoning is not part of the prompt";
                warnings.add("dropped_reasoning", param, message);
            }
        }
    }
}
