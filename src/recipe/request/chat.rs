//! Chat Completions: a body becomes a conversation and options.
//!
//! Checks run in the order of the official API; of several faults the first in that order is told.

mod messages;
mod shape;

use super::fields::Fields;
use super::read::Node;
use super::tools;
use super::warnings::Warnings;
use super::{Context, Converted, content, prefix, refused, sampling, thinking};
use crate::recipe::conversation::{Conversation, InputMessage, ResponseFormat, ToolChoice};
use crate::recipe::error::Error;
use crate::recipe::json::{Json, JsonText};
use crate::recipe::options::{ParsingOptions, ResponseOptions};
use crate::recipe::settings::Settings;

use self::shape::{Format, Request, Stop};

const FIELDS: Fields = Fields {
    used: &[
        "model",
        "messages",
        "max_tokens",
        "temperature",
        "top_p",
        "presence_penalty",
        "frequency_penalty",
        "n",
        "seed",
        "logprobs",
        "top_logprobs",
        "stop",
        "stream",
        "stream_options",
        "response_format",
        "tools",
        "tool_choice",
        "reasoning_effort",
        "thinking",
        "parallel_tool_calls",
    ],
    ignored: &[
        "max_completion_tokens",
        "user",
        "metadata",
        "store",
        "logit_bias",
        "functions",
        "function_call",
        "top_k",
        "min_p",
        "service_tier",
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

    let tool_path = |at: usize| format!("tools[{at}].function");
    for (at, tool) in request.tools.iter().enumerate() {
        tools::check_name(tool.name, || tool_path(at), settings.fixes.chat_namespaces)?;
    }
    let mode = thinking::mode(
        context,
        request.thinking,
        request.effort,
        "reasoning_effort",
    )?;
    let mut messages = messages::convert(context, &request.messages, &mut warnings)?;
    thinking::normalize_history(
        settings,
        &mut messages,
        mode.thinking,
        !request.tools.is_empty(),
        "The `reasoning_content` in the thinking mode must be passed back to the API.",
    )?;
    check_prefix_position(&messages)?;
    if matches!(request.response_format, Some(Format::JsonObject)) {
        const MISSING: &str = "Prompt must contain the word 'json' in some form to use 'response_format' of type 'json_object'.";
        content::check_json_word(&messages, "response_format", MISSING)?;
    }
    let (tools, tool_choice) = tools::convert(
        context,
        &request.tools,
        request.tool_choice.clone(),
        mode.thinking,
        tool_path,
        "parameters",
        &mut warnings,
    )?;
    check_prefix(request, &messages)?;
    let stop_sequences = stop_sequences(request.stop.as_ref())?;
    if request.stream_options.is_some() && !request.stream {
        let message = "stream_options should be set along with stream = true";
        return Err(refused("stream_options", message));
    }
    let format = response_format(context, request, &mut warnings)?;
    let output_constraint = tools::constraint(
        &tools,
        tool_choice,
        &format,
        request.response_format.is_some(),
    )?;
    let parse_tool_calls = !tools.is_empty() && tool_choice != ToolChoice::None;
    let mut sampling = request.sampling;
    sampling.max_tokens = max_tokens(request)?;
    let mut inference =
        sampling.resolve(context, mode.thinking, parse_tool_calls, &mut warnings)?;
    inference.output_constraint = output_constraint;
    inference.engine.top_k = request.top_k;
    inference.engine.min_p = request.min_p;
    inference.engine.logit_bias = request.logit_bias.map(JsonText::of);

    warn_about_reasoning(request, mode.thinking && parse_tool_calls, &mut warnings);
    Ok(Converted {
        parsing: ParsingOptions {
            parse_tool_calls,
            starts_in_tool_calls: tools::opens_calls(context, tool_choice, mode.thinking),
            parse_json_output: format.shown == ResponseFormat::JsonObject,
            thinking_initial_stage: mode.thinking.then(|| thinking::initial_stage(&messages)),
            stop_sequences,
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
            include_usage: request.stream_options.unwrap_or(false),
            ..ResponseOptions::default()
        },
        warnings: warnings.finish(),
    })
}

/// The first message that is to be continued must be the last of all.
fn check_prefix_position(messages: &[InputMessage]) -> Result<(), Error> {
    let first = messages
        .iter()
        .position(|message| matches!(message, InputMessage::Assistant { prefix: true, .. }));
    if first.is_none_or(|first| first + 1 == messages.len()) {
        return Ok(());
    }
    let message = "Invalid completion message: prefix set true with message which is not final message or message role is not assistant";
    Err(refused("messages", message))
}

/// What does not go together with a message that is to be continued.
fn check_prefix(request: &Request<'_>, messages: &[InputMessage]) -> Result<(), Error> {
    if !matches!(
        messages.last(),
        Some(InputMessage::Assistant { prefix: true, .. })
    ) {
        return Ok(());
    }
    if matches!(request.response_format, Some(Format::JsonObject)) {
        let message = "response_format json_object should not be used with prefix";
        return Err(refused("response_format", message));
    }
    prefix::refuse_tools(!request.tools.is_empty(), messages)
}

fn stop_sequences(stop: Option<&Stop<'_>>) -> Result<Vec<String>, Error> {
    match stop {
        None => Ok(Vec::new()),
        Some(Stop::One("")) => Err(tools::empty_string("stop")),
        Some(Stop::One(text)) => Ok(vec![(*text).to_owned()]),
        Some(Stop::Many(list)) => sampling::stop_sequences(list, "stop"),
    }
}

fn response_format(
    context: Context<'_>,
    request: &Request<'_>,
    warnings: &mut Warnings,
) -> Result<tools::Format, Error> {
    const PARAM: &str = "response_format.json_schema.schema";
    Ok(match &request.response_format {
        None | Some(Format::Text) => tools::Format::plain(ResponseFormat::Text),
        Some(Format::JsonObject) => tools::Format::plain(ResponseFormat::JsonObject),
        Some(Format::Regex(pattern)) => {
            tools::Format::plain(ResponseFormat::Regex((*pattern).to_owned()))
        }
        Some(Format::JsonSchema { schema, strict }) => {
            tools::Format::schema(context, schema, *strict, PARAM, warnings)?
        }
    })
}

/// `max_tokens`, or its newer name where the host accepts it.
fn max_tokens(request: &Request<'_>) -> Result<Option<u32>, Error> {
    match (request.sampling.max_tokens, request.max_completion_tokens) {
        (Some(old), Some(new)) if old != new => Err(refused(
            "max_completion_tokens",
            format!("max_tokens {old} and max_completion_tokens {new} are different"),
        )),
        (old, new) => Ok(old.or(new)),
    }
}

fn warn_about_fields(settings: &Settings, body: &Body<'_>, warnings: &mut Warnings) {
    let Some(fields) = body.value.as_object() else {
        return;
    };
    let engine = settings.engine_params;
    let completion_tokens = settings.accept_max_completion_tokens || settings.fixes.newer_inputs;
    for (name, value) in fields.iter() {
        if value.is_null() {
            continue;
        }
        match name {
            "parallel_tool_calls" => {
                warnings.add("ignored_field", name, "calls may always be parallel");
            }
            "thinking" if body.request.thinking.is_some_and(|t| t.has_budget) => {
                warnings.add(
                    "ignored_field",
                    "thinking.budget_tokens",
                    "there is no budget",
                );
            }
            "store" if value.as_bool() == Some(true) => {
                warnings.add("ignored_state", name, "nothing is stored");
            }
            "max_completion_tokens" if completion_tokens => {}
            "top_k" | "min_p" | "logit_bias" if engine => {}
            name => FIELDS.warn(name, warnings),
        }
    }
}

/// Old reasoning is shown beside tools only, and in the message that is to be continued.
fn warn_about_reasoning(request: &Request<'_>, is_shown: bool, warnings: &mut Warnings) {
    for (at, message) in request.messages.iter().enumerate() {
        if let shape::Message::Assistant {
            reasoning: Some(reasoning),
            prefix: false,
            ..
        } = message
            && !reasoning.is_empty()
            && !is_shown
        {
            let message = "old reasoning is not part of the prompt";
            let param = format!("messages[{at}].reasoning_content");
            warnings.add("dropped_reasoning", param, message);
        }
    }
}
