//! What an output must look like, as the request says it; engines hold the output to it.

use super::conversation::{Conversation, ToolDefinition};
use super::json::{self, JsonText};

/// What the output must look like, whatever the model would rather write. In thinking mode it holds for what
/// follows the reasoning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OutputConstraint {
    /// JSON: of this schema, or any.
    Json(Option<JsonText>),
    /// Text that matches this expression.
    Regex(String),
    /// Text in which calls are calls of the conversation's tools.
    ToolCalls {
        /// Nothing but calls, at least one.
        required: bool,
    },
}

impl OutputConstraint {
    /// The name of its kind, as `output_constraint` of a prepared request has it.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Json(_) => "json",
            Self::Regex(_) => "regex",
            Self::ToolCalls { required: false } => "tool_call",
            Self::ToolCalls { required: true } => "tool_call_required",
        }
    }

    /// Its content: a schema (empty for any JSON), an expression, or the tools of `conversation` as a compact
    /// JSON array.
    pub fn text(&self, conversation: &Conversation) -> String {
        match self {
            Self::Json(schema) => schema.as_ref().map_or("", JsonText::as_str).to_owned(),
            Self::Regex(pattern) => pattern.clone(),
            Self::ToolCalls { .. } => tools(&conversation.tools),
        }
    }
}

fn tools(tools: &[ToolDefinition]) -> String {
    let mut out = String::from("[");
    for (at, tool) in tools.iter().enumerate() {
        if at > 0 {
            out.push(',');
        }
        out.push_str("{\"type\":\"function\",\"function\":{\"name\":");
        json::write_string(&mut out, &tool.name);
        out.push_str(",\"description\":");
        match &tool.description {
            Some(description) => json::write_string(&mut out, description),
            None => out.push_str("null"),
        }
        out.push_str(",\"parameters\":");
        out.push_str(tool.parameters.as_str());
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
