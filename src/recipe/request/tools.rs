//! Tools of all protocols: names, schemas, the choice among them, and what the output must then be.

use std::collections::HashSet;

use serde_json::{Value, json};

use super::schema::{self, Root};
use super::warnings::Warnings;
use super::{Context, refused};
use crate::recipe::conversation::{ResponseFormat, ToolChoice, ToolDefinition};
use crate::recipe::encoding::json::{self as json_text, Style};
use crate::recipe::error::Error;

/// A tool as a request declares it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Declared<'v> {
    pub(super) name: &'v str,
    pub(super) description: Option<&'v str>,
    pub(super) parameters: Option<&'v Value>,
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

/// Checks a name. `namespaces` allows `::` between its parts.
pub(super) fn check_name(name: &str, path: &str, namespaces: bool) -> Result<(), Error> {
    let param = format!("{path}.name");
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
    let plain = |part: &str| {
        !part.is_empty()
            && part
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-'))
    };
    if plain(name) || (namespaces && name.split("::").all(plain)) {
        return Ok(());
    }
    let message = format!(
        "Invalid '{param}': string does not match pattern. Expected a string that matches the pattern '^[a-zA-Z0-9_-]+$'."
    );
    Err(refused(param, message))
}

/// The text for a string that may not be empty.
pub(super) fn empty_string(param: &str) -> Error {
    let message = format!(
        "Invalid '{param}': empty string. Expected a string with minimum length 1, but got an empty string instead."
    );
    refused(param, message)
}

/// Converts declared tools and the choice. `path` gives the request path of a tool by its index.
pub(super) fn convert(
    context: Context<'_>,
    declared: &[Declared<'_>],
    choice: Choice<'_>,
    thinking: bool,
    path: impl Fn(usize) -> String,
    warnings: &mut Warnings,
) -> Result<(Vec<ToolDefinition>, ToolChoice), Error> {
    if choice == Choice::None {
        return Ok((Vec::new(), ToolChoice::None));
    }
    if declared.is_empty() {
        return Ok((Vec::new(), ToolChoice::Auto));
    }
    let mut names = HashSet::new();
    let mut tools = Vec::with_capacity(declared.len());
    for (at, tool) in declared.iter().enumerate() {
        if !names.insert(tool.name) {
            return Err(refused(
                format!("{}.name", path(at)),
                "Tool names must be unique.",
            ));
        }
        let parameters = parameters(context, tool, &path(at), warnings)?;
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
            let message = format!(
                "Invalid value for 'tool_call': no function named '{unknown}' was specified in the 'tools' parameter."
            );
            return Err(refused("tool_choice", message));
        }
        let mut at = 0;
        tools.retain(|tool| {
            let kept = wanted.contains(&tool.name.as_str());
            if !kept {
                warnings.add("dropped_tool", path(at), "tool_choice leaves it out");
            }
            at += 1;
            kept
        });
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

fn parameters(
    context: Context<'_>,
    tool: &Declared<'_>,
    path: &str,
    warnings: &mut Warnings,
) -> Result<Value, Error> {
    let fixes = context.settings.fixes;
    let param = format!("{path}.parameters");
    if tool.strict == Some(true) {
        let absent = json!({"type": "object", "properties": {}});
        let given = tool.parameters.unwrap_or(&absent);
        return strict_schema(context, given, Root::Tool, &param, warnings);
    }
    let Some(given) = tool.parameters else {
        return Ok(json!({}));
    };
    if fixes.empty_schema && given.as_object().is_some_and(serde_json::Map::is_empty) {
        return Ok(json!({"type": "object", "properties": {}}));
    }
    let wrong = |reason: String| {
        let message = format!("Invalid schema for function '{}': {reason}", tool.name);
        Err(refused(param.clone(), message))
    };
    if let Err(reason) = schema::check(given) {
        return wrong(reason);
    }
    match given.get("type") {
        Some(Value::String(kind)) if kind == "object" => Ok(given.clone()),
        other => {
            let kind = json_text::to_string(other.unwrap_or(&Value::Null), Style::Compact);
            wrong(format!(
                "schema must be a JSON Schema of 'type: \"object\"', got 'type: {kind}'."
            ))
        }
    }
}

/// The normal form of a strict schema, with a warning for each keyword that it loses.
fn strict_schema(
    context: Context<'_>,
    given: &Value,
    root: Root,
    param: &str,
    warnings: &mut Warnings,
) -> Result<Value, Error> {
    let normal = schema::normalize(given, root, context.settings.fixes.keep_defs)
        .map_err(|message| refused(param, message))?;
    for keyword in normal.dropped {
        let message = "strict schemas have no such keyword";
        warnings.add(
            "dropped_schema_keyword",
            format!("{param}{keyword}"),
            message,
        );
    }
    Ok(normal.schema)
}

/// A response format: as the conversation shows it, and as the output is held to it.
#[derive(Clone, Debug)]
pub(super) struct Format {
    pub(super) shown: ResponseFormat,
    /// The normal form of a strict schema.
    pub(super) enforced: Option<Value>,
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
        given: &Value,
        strict: bool,
        param: &str,
        warnings: &mut Warnings,
    ) -> Result<Self, Error> {
        let shown = ResponseFormat::JsonSchema(given.clone());
        if !strict {
            return schema::check(given)
                .map(|()| Self::plain(shown))
                .map_err(|reason| refused(param, format!("Invalid json schema: {reason}")));
        }
        let enforced = strict_schema(context, given, Root::Format, param, warnings)?;
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
) -> Result<Option<Value>, Error> {
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
        let kind = match choice {
            ToolChoice::Required => "tool_call_required",
            ToolChoice::Auto | ToolChoice::None => "tool_call",
        };
        return Ok(Some(json!({"kind": kind, "schema": compact_tools(tools)})));
    }
    Ok(match &format.shown {
        ResponseFormat::Text => None,
        ResponseFormat::JsonObject => Some(json!({"kind": "json", "schema": ""})),
        ResponseFormat::JsonSchema(shown) => {
            let schema = format.enforced.as_ref().unwrap_or(shown);
            let schema = json_text::to_string(schema, Style::Compact);
            Some(json!({"kind": "json", "schema": schema}))
        }
        ResponseFormat::Regex(pattern) => Some(json!({"kind": "regex", "schema": pattern})),
    })
}

/// The tools as one compact JSON array.
fn compact_tools(tools: &[ToolDefinition]) -> String {
    let mut out = String::from("[");
    for (at, tool) in tools.iter().enumerate() {
        if at > 0 {
            out.push(',');
        }
        out.push_str("{\"type\":\"function\",\"function\":{\"name\":");
        json_text::write_string(&mut out, &tool.name);
        out.push_str(",\"description\":");
        match &tool.description {
            Some(description) => json_text::write_string(&mut out, description),
            None => out.push_str("null"),
        }
        out.push_str(",\"parameters\":");
        json_text::write(&mut out, &tool.parameters, Style::Compact);
        out.push_str(match tool.strict {
            Some(true) => ",\"strict\":true}",
            Some(false) => ",\"strict\":false}",
            None => ",\"strict\":null}",
        });
        if tool.defer_loading {
            out.push_str(",\"defer_loading\":true");
        }
        out.push('}');
    }
    out.push(']');
    out
}
