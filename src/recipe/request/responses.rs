//! Responses: a body becomes a conversation and options.
//!
//! Checks run in the order of the official API; of several faults the first in that order is told. Nothing is
//! stored: what a client refers to instead of sending it is not there.

mod calls;
mod declared;
mod echo;
mod items;
mod names;
mod shape;
mod tools;

use super::fields::Fields;
use super::read::Node;
use super::sampling::Sampling;
use super::tools::{self as shared, Choice};
use super::warnings::Warnings;
use super::{Context, Converted, content, refused, thinking};
use crate::recipe::conversation::{Conversation, ResponseFormat, ToolChoice};
use crate::recipe::error::Error;
use crate::recipe::json::Json;
use crate::recipe::options::{ParsingOptions, ResponseOptions, ThinkingStage};
use crate::recipe::settings::Settings;

use self::declared::{APPLY_PATCH, Declarations};
use self::shape::{Format, Input, Item, Meant, Request};

const FIELDS: Fields = Fields {
    used: &[
        "model",
        "input",
        "instructions",
        "max_output_tokens",
        "reasoning",
        "stream",
        "temperature",
        "top_p",
        "text",
        "tools",
        "tool_choice",
        "top_logprobs",
        "user",
    ],
    // What the protocol has, and what clients of other protocols send. Those that refer to something stored are
    // ignored too, and told apart in the warnings.
    ignored: &[
        "background",
        "context_management",
        "conversation",
        "include",
        "max_tool_calls",
        "metadata",
        "moderation",
        "parallel_tool_calls",
        "previous_response_id",
        "prompt",
        "prompt_cache_key",
        "prompt_cache_retention",
        "safety_identifier",
        "service_tier",
        "stop",
        "store",
        "stream_options",
        "thinking",
        "truncation",
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
    convert_request(context, body).map_err(|mut error| {
        // What protocols share names its fields as Chat Completions does.
        match error.param.as_str() {
            "messages" => error.param = "input".to_owned(),
            "max_tokens" => error.param = "max_output_tokens".to_owned(),
            "response_format" => error.param = "text.format".to_owned(),
            _ => {}
        }
        error
    })
}

fn convert_request(context: Context<'_>, body: &Body<'_>) -> Result<Converted, Error> {
    let settings = context.settings;
    let request = &body.request;
    if settings.fixes.refuse_state
        && let Some(field) = body.value.get("previous_response_id")
        && !field.is_null()
    {
        return Err(refused("previous_response_id", items::NO_STATE));
    }
    let mut warnings = Warnings::default();
    warn_about_fields(body, &mut warnings);

    let items = match &request.input {
        Some(Input::Items(items)) => items.as_slice(),
        _ => &[],
    };
    let mut declarations = Declarations::read(context, &request.tools, items, &mut warnings)?;
    let effort = request.reasoning.effort;
    let mode = thinking::mode(context, None, effort, "reasoning.effort")?;
    let mut messages = items::convert(context, request, &mut declarations, &mut warnings)?;
    thinking::normalize_history(
        settings,
        &mut messages,
        mode.thinking,
        !declarations.is_empty(),
        "The `reasoning_text` in the thinking mode must be passed back to the API.",
    )?;
    let (tools, tool_choice) = shared::convert(
        context,
        &declarations.declared(),
        tool_choice(context, request, &mut warnings)?,
        mode.thinking,
        |at| declarations.path(at),
        "parameters",
        &mut warnings,
    )?;
    shared::introduce(&mut messages, &tools);
    if matches!(request.text.format, Format::JsonObject) {
        const MISSING: &str = "Response input messages must contain the word 'json' in some form to use 'text.format' of type 'json_object'.";
        content::check_json_word(&messages, "text.format", MISSING)?;
    }
    let format = text_format(context, request, &mut warnings)?;
    let output_constraint = shared::constraint(
        &tools,
        tool_choice,
        &format,
        !matches!(request.text.format, Format::Text),
    )?;
    let parse_tool_calls = !tools.is_empty() && tool_choice != ToolChoice::None;
    let sampling = Sampling {
        temperature: request.temperature,
        top_p: request.top_p,
        logprobs: request.top_logprobs.is_some(),
        top_logprobs: request.top_logprobs,
        max_tokens: request.max_output_tokens,
        ..Sampling::default()
    };
    let mut inference =
        sampling.resolve(context, mode.thinking, parse_tool_calls, &mut warnings)?;
    inference.output_constraint = output_constraint;

    if !(mode.thinking && parse_tool_calls) {
        warn_about_reasoning(items, &mut warnings);
    }
    Ok(Converted {
        parsing: ParsingOptions {
            parse_tool_calls,
            starts_in_tool_calls: shared::opens_calls(context, tool_choice, mode.thinking),
            parse_json_output: format.shown == ResponseFormat::JsonObject,
            thinking_initial_stage: mode.thinking.then_some(ThinkingStage::ReasoningStart),
            stop_sequences: Vec::new(),
        },
        conversation: Conversation {
            messages,
            thinking_mode: mode.thinking,
            tools,
            tool_choice,
            reasoning_effort: mode.effort,
            response_format: format.shown,
        },
        inference,
        response: ResponseOptions {
            stream: request.stream,
            include_usage: false,
            echo: Some(echo::echo(request)),
            namespace_tool_map: declarations.namespaced,
            custom_tool_names: if declarations.patches {
                vec![APPLY_PATCH.to_owned()]
            } else {
                Vec::new()
            },
            client_tool_search: declarations.client_search,
        },
        warnings: warnings.finish(),
    })
}

/// The choice among functions. A web search is none of them.
fn tool_choice<'v>(
    context: Context<'_>,
    request: &Request<'v>,
    warnings: &mut Warnings,
) -> Result<Choice<'v>, Error> {
    match request.tool_choice.as_ref().map(|choice| &choice.meant) {
        None => Ok(Choice::Auto),
        Some(Meant::Functions(choice)) => Ok(choice.clone()),
        Some(Meant::WebSearch) => {
            if context.settings.responses_web_search_rejected {
                return Err(declared::no_server_tools("tool_choice".to_owned()));
            }
            warnings.add("dropped_tool", "tool_choice", "there is no web search");
            Ok(Choice::Auto)
        }
    }
}

fn text_format(
    context: Context<'_>,
    request: &Request<'_>,
    warnings: &mut Warnings,
) -> Result<shared::Format, Error> {
    const PARAM: &str = "text.format.schema";
    Ok(match request.text.format {
        Format::Text => shared::Format::plain(ResponseFormat::Text),
        Format::JsonObject => shared::Format::plain(ResponseFormat::JsonObject),
        Format::JsonSchema { schema, strict, .. } => {
            shared::Format::schema(context, schema, strict == Some(true), PARAM, warnings)?
        }
    })
}

fn warn_about_fields(body: &Body<'_>, warnings: &mut Warnings) {
    let Some(fields) = body.value.as_object() else {
        return;
    };
    let request = &body.request;
    for (name, value) in fields.iter() {
        if value.is_null() {
            continue;
        }
        match name {
            "store" if value.as_bool() == Some(false) => {}
            "store" | "previous_response_id" | "conversation" => {
                warnings.add("ignored_state", name, "nothing is stored");
            }
            "reasoning" => {
                let summaries = [
                    ("reasoning.summary", request.reasoning.summary),
                    (
                        "reasoning.generate_summary",
                        request.reasoning.generate_summary,
                    ),
                ];
                for (param, _) in summaries.iter().filter(|(_, summary)| summary.is_some()) {
                    warnings.add("ignored_field", *param, "reasoning is not summarised");
                }
            }
            "text" if request.text.verbosity.is_some() => {
                warnings.add("ignored_field", "text.verbosity", "it has no effect");
            }
            name => FIELDS.warn(name, warnings),
        }
    }
}

/// Old reasoning is shown beside tools only.
fn warn_about_reasoning(items: &[Item<'_>], warnings: &mut Warnings) {
    for (at, item) in items.iter().enumerate() {
        if let Item::Reasoning { texts, .. } = item
            && texts.iter().any(|text| !text.is_empty())
        {
            let message = "old reasoning is not part of the prompt";
            warnings.add("dropped_reasoning", format!("input[{at}]"), message);
        }
    }
}
