//! What a response repeats of its request.

use super::shape::{Format, Request};
use super::tools::{self, strict_field, text_field, value_field};
use crate::recipe::json::{self, Json, JsonText, Style};
use crate::recipe::options::Echo;

/// Settings of the request, as it gave them: not what they were resolved to.
pub(super) fn echo(request: &Request<'_>) -> Echo {
    Echo {
        instructions: request.instructions.map(str::to_owned),
        max_output_tokens: request.max_output_tokens,
        temperature: request.temperature.unwrap_or(1.0),
        top_p: request.top_p.unwrap_or(1.0),
        top_logprobs: request.top_logprobs.unwrap_or(0),
        user: request.user.map(str::to_owned),
        reasoning: JsonText::written(reasoning(request)),
        text: JsonText::written(text(request)),
        tool_choice: match &request.tool_choice {
            Some(choice) => JsonText::of(choice.given),
            None => JsonText::of(&Json::from("auto")),
        },
        tools: JsonText::written(tools::declarations(&request.tools)),
    }
}

fn reasoning(request: &Request<'_>) -> String {
    let reasoning = &request.reasoning;
    let mut out = String::from("{\"effort\":");
    match reasoning.given_effort {
        Some(effort) => json::write(&mut out, effort, Style::Compact),
        None => out.push_str("null"),
    }
    // The older name of the field.
    let summary = reasoning.summary.or(reasoning.generate_summary);
    text_field(&mut out, "summary", summary);
    out.push('}');
    out
}

fn text(request: &Request<'_>) -> String {
    let mut out = String::from("{\"format\":{\"type\":");
    match request.text.format {
        Format::Text => out.push_str("\"text\""),
        Format::JsonObject => out.push_str("\"json_object\""),
        Format::JsonSchema {
            name,
            description,
            schema,
            strict,
        } => {
            out.push_str("\"json_schema\"");
            text_field(&mut out, "name", Some(name));
            text_field(&mut out, "description", description);
            value_field(&mut out, "schema", Some(schema));
            strict_field(&mut out, strict);
        }
    }
    out.push('}');
    text_field(&mut out, "verbosity", request.text.verbosity);
    out.push('}');
    out
}
