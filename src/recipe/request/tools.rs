//! Tools of all protocols: names, schemas, the choice among them, and what the output must then be.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use super::schema::{self, Root};
use super::warnings::Warnings;
use super::{Context, refused};
use crate::recipe::constraint::OutputConstraint;
use crate::recipe::conversation::{InputMessage, ResponseFormat, ToolChoice, ToolDefinition};
use crate::recipe::error::Error;
use crate::recipe::json::{self, Json, JsonText, Object, Style};

/// A tool as a request declares it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Declared<'v> {
    pub(super) name: &'v str,
    pub(super) description: Option<&'v str>,
    pub(super) parameters: Option<&'v Json<'v>>,
    pub(super) strict: Option<bool>,
    pub(super) defer_loading: bool,
}

/// Which tools a request wants used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Choice<'v> {
    Auto,
    None,
    Required,
    /// One function, by name.
    Named(&'v str),
    /// Some functions, by name, called if the flag says so.
    Allowed(Vec<&'v str>, bool),
}

/// Checks the name of the tool at `path`. `namespaces` allows `::` between its parts.
pub(super) fn check_name(
    name: &str,
    path: impl FnOnce() -> String,
    namespaces: bool,
) -> Result<(), Error> {
    let plain = |part: &str| {
        !part.is_empty()
            && part
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-'))
    };
    if name.len() <= 128 && (plain(name) || (namespaces && name.split("::").all(plain))) {
        return Ok(());
    }
    let param = format!("{}.name", path());
    if name.is_empty() {
        return Err(empty_string(&param));
    }
    if name.len() > 128 {
        let length = name.len();
        let message = format!(
            "Invalid '{param}': string too long. Expected a string with maximum length 128, but got a string with length {length} instead."
        );
        return Err(refused(param, message));
    }
    let message = format!(
        "Invalid '{param}': string does not match pattern. Expected a string that matches the pattern '^[a-zA-Z0-9_-]+$'."
    );
    Err(refused(param, message))
}

/// Guards against a few bytes of a request that stand for many of its prompt: a definition that is introduced by
/// its name, the description of a namespace that each member repeats.
#[derive(Default)]
pub(super) struct Repeated {
    bytes: usize,
}

impl Repeated {
    /// Counts `bytes` that the tool `name` repeats; `param` names what asks for it.
    pub(super) fn add(
        &mut self,
        bytes: usize,
        param: impl FnOnce() -> String,
        name: &str,
    ) -> Result<(), Error> {
        /// More than any context holds.
        const MOST: usize = 64 << 20;
        self.bytes += bytes;
        if self.bytes <= MOST {
            return Ok(());
        }
        let message = format!(
            "tools repeat more than {MOST} bytes of definitions and descriptions, up to tool \"{name}\""
        );
        Err(refused(param(), message))
    }
}

/// The text for a string that may not be empty.
pub(super) fn empty_string(param: &str) -> Error {
    let message = format!(
        "Invalid '{param}': empty string. Expected a string with minimum length 1, but got an empty string instead."
    );
    refused(param, message)
}

/// Converts declared tools and the choice. `path` gives the request path of a tool by its index, `schema` is
/// the name of its field that has the schema.
pub(super) fn convert(
    context: Context<'_>,
    declared: &[Declared<'_>],
    choice: Choice<'_>,
    thinking: bool,
    path: impl Fn(usize) -> String,
    schema: &str,
    warnings: &mut Warnings,
) -> Result<(Vec<ToolDefinition>, ToolChoice), Error> {
    if choice == Choice::None {
        return Ok((Vec::new(), ToolChoice::None));
    }
    if declared.is_empty() {
        return Ok((Vec::new(), ToolChoice::Auto));
    }
    let mut names: HashSet<&str, ahash::RandomState> = HashSet::default();
    let mut tools = Vec::with_capacity(declared.len());
    for (at, tool) in declared.iter().enumerate() {
        if !names.insert(tool.name) {
            return Err(refused(
                format!("{}.name", path(at)),
                "Tool names must be unique.",
            ));
        }
        let param = || format!("{}.{schema}", path(at));
        let parameters = parameters(context, tool, param, warnings)?;
        tools.push(ToolDefinition {
            name: tool.name.to_owned(),
            description: tool.description.map(str::to_owned),
            parameters,
            strict: tool.strict,
            defer_loading: tool.defer_loading,
        });
    }
    let (wanted, required) = match choice {
        Choice::Auto | Choice::None => (None, false),
        Choice::Required => (None, true),
        Choice::Named(name) => (Some(vec![name]), true),
        Choice::Allowed(names, required) => (Some(names), required),
    };
    if let Some(wanted) = wanted {
        if let Some(unknown) = wanted.iter().find(|name| !names.contains(*name)) {
            return Err(unknown_function(unknown));
        }
        let wanted: HashSet<&str, ahash::RandomState> = wanted.into_iter().collect();
        let mut at = 0;
        tools.retain(|tool| {
            let kept = wanted.contains(tool.name.as_str());
            if !kept {
                warnings.add("dropped_tool", path(at), "tool_choice leaves it out");
            }
            at += 1;
            kept
        });
        if tools.is_empty() {
            return Ok((tools, ToolChoice::Auto));
        }
    }
    if !required {
        return Ok((tools, ToolChoice::Auto));
    }
    if thinking && !context.settings.fixes.thinking_tool_choice {
        let message = "Thinking mode does not support this tool_choice";
        return Err(refused("tool_choice", message));
    }
    Ok((tools, ToolChoice::Required))
}

/// Whether the prompt opens a block of calls. Where the model thinks first, the block comes after that.
pub(super) fn opens_calls(context: Context<'_>, choice: ToolChoice, thinking: bool) -> bool {
    choice == ToolChoice::Required && !(thinking && context.settings.fixes.thinking_tool_choice)
}

/// The text for a choice that names a function there is not.
pub(super) fn unknown_function(name: &str) -> Error {
    let message = format!(
        "Invalid value for 'tool_call': no function named '{name}' was specified in the 'tools' parameter."
    );
    refused("tool_choice", message)
}

/// A definition that says only which tool is meant, until [`introduce`] puts the converted one there.
pub(super) fn mention(name: &str) -> ToolDefinition {
    ToolDefinition {
        name: name.to_owned(),
        description: None,
        parameters: JsonText::of(&Json::Null),
        strict: None,
        defer_loading: false,
    }
}

/// Replaces the tools that System messages mention by their converted definitions. Those that are not
/// offered any more go, and so does a message that has nothing else to say.
pub(super) fn introduce(messages: &mut Vec<InputMessage>, tools: &[ToolDefinition]) {
    let mentions =
        |message: &InputMessage| matches!(message, InputMessage::System { tools: Some(_), .. });
    if !messages.iter().any(mentions) {
        return;
    }
    let offered: HashMap<&str, &ToolDefinition, ahash::RandomState> = tools
        .iter()
        .map(|tool| (tool.name.as_str(), tool))
        .collect();
    messages.retain_mut(|message| {
        let InputMessage::System {
            content,
            tools: mentioned,
            ..
        } = message
        else {
            return true;
        };
        let Some(names) = mentioned else {
            return true;
        };
        let definitions: Vec<ToolDefinition> = names
            .iter()
            .filter_map(|tool| offered.get(tool.name.as_str()))
            .map(|tool| (*tool).clone())
            .collect();
        let kept = !definitions.is_empty() || !content.text.is_empty();
        *mentioned = (!definitions.is_empty()).then_some(definitions);
        kept
    });
}

/// The schema of a tool's parameters. `param` gives its place in the request.
fn parameters(
    context: Context<'_>,
    tool: &Declared<'_>,
    param: impl Fn() -> String,
    warnings: &mut Warnings,
) -> Result<JsonText, Error> {
    let fixes = context.settings.fixes;
    let empty_object = || {
        Json::Object(
            [
                (Cow::Borrowed("type"), Json::from("object")),
                (Cow::Borrowed("properties"), Json::Object(Object::default())),
            ]
            .into_iter()
            .collect(),
        )
    };
    if tool.strict == Some(true) {
        let absent;
        let given = match tool.parameters {
            Some(given) => given,
            None => {
                absent = empty_object();
                &absent
            }
        };
        return strict_schema(context, given, Root::Tool, param, warnings);
    }
    let Some(given) = tool.parameters else {
        return Ok(JsonText::of(&Json::Object(Object::default())));
    };
    if fixes.empty_schema && given.as_object().is_some_and(Object::is_empty) {
        return Ok(JsonText::of(&empty_object()));
    }
    let wrong = |reason: String| {
        let message = format!("Invalid schema for function '{}': {reason}", tool.name);
        Err(refused(param(), message))
    };
    if let Err(reason) = schema::check(given) {
        return wrong(reason);
    }
    match given.get("type") {
        Some(Json::String(kind)) if kind == "object" => Ok(JsonText::of(given)),
        other => {
            let kind = json::to_string(other.unwrap_or(&Json::Null), Style::Compact);
            wrong(format!(
                "schema must be a JSON Schema of 'type: \"object\"', got 'type: {kind}'."
            ))
        }
    }
}

/// The normal form of a strict schema, with a warning for each keyword that it loses.
fn strict_schema(
    context: Context<'_>,
    given: &Json<'_>,
    root: Root,
    param: impl Fn() -> String,
    warnings: &mut Warnings,
) -> Result<JsonText, Error> {
    let normal = schema::normalize(given, root, context.settings.fixes.keep_defs)
        .map_err(|message| refused(param(), message))?;
    for keyword in normal.dropped.paths {
        let message = "strict schemas have no such keyword";
        let place = format!("{}{keyword}", param());
        warnings.add("dropped_schema_keyword", place, message);
    }
    warnings.leave_out(normal.dropped.more);
    Ok(JsonText::of(&normal.schema))
}

/// A response format: as the conversation shows it, and as the output is held to it.
#[derive(Clone, Debug)]
pub(super) struct Format {
    pub(super) shown: ResponseFormat,
    /// The normal form of a strict schema.
    pub(super) enforced: Option<JsonText>,
}

impl Format {
    /// A format whose schema, if any, is not strict.
    pub(super) fn plain(shown: ResponseFormat) -> Self {
        Self {
            shown,
            enforced: None,
        }
    }

    /// A format of a JSON schema.
    pub(super) fn schema(
        context: Context<'_>,
        given: &Json<'_>,
        strict: bool,
        param: &str,
        warnings: &mut Warnings,
    ) -> Result<Self, Error> {
        let shown = ResponseFormat::JsonSchema(JsonText::of(given));
        if !strict {
            return schema::check(given)
                .map(|()| Self::plain(shown))
                .map_err(|reason| refused(param, format!("Invalid json schema: {reason}")));
        }
        let enforced = strict_schema(context, given, Root::Format, || param.to_owned(), warnings)?;
        Ok(Self {
            shown,
            enforced: Some(enforced),
        })
    }
}

/// What the output must look like. `format_given` says that the request has a format of its own that does
/// not go together with strict tools.
pub(super) fn constraint(
    tools: &[ToolDefinition],
    choice: ToolChoice,
    format: &Format,
    format_given: bool,
) -> Result<Option<OutputConstraint>, Error> {
    if !tools.is_empty() && choice != ToolChoice::None {
        let strict = tools
            .iter()
            .filter(|tool| tool.strict == Some(true))
            .count();
        if strict > 0 {
            if strict < tools.len() {
                let message = "Cannot use strict tool with non-strict tool in the same request";
                return Err(refused("tools", message));
            }
            if format_given {
                let message = "response_format should not be used with tools";
                return Err(refused("response_format", message));
            }
        }
        return Ok(Some(OutputConstraint::ToolCalls {
            required: choice == ToolChoice::Required,
        }));
    }
    Ok(match &format.shown {
        ResponseFormat::Text => None,
        ResponseFormat::JsonObject => Some(OutputConstraint::Json(None)),
        ResponseFormat::JsonSchema(shown) => {
            let schema = format.enforced.as_ref().unwrap_or(shown);
            Some(OutputConstraint::Json(Some(schema.clone())))
        }
        ResponseFormat::Regex(pattern) => Some(OutputConstraint::Regex(pattern.clone())),
    })
}
