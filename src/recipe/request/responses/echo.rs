//! What a response repeats of its request.

use super::shape::{Format, Meant, Request, ToolChoice};
use super::tools::{self, strict_field, text_field, value_field};
use crate::recipe::json::{self, Json, JsonText, Style};
use crate::recipe::options::Echo;
use crate::recipe::request::tools::Choice;

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
            Some(choice) => tool_choice(choice),
            None => JsonText::of(&Json::from("auto")),
        },
        tools: JsonText::written(tools::declarations(&request.tools)),
    }
}

/// One tool as its type and name, whatever else stood beside them; all else as it was given.
fn tool_choice(choice: &ToolChoice<'_>) -> JsonText {
    let named = match &choice.meant {
        Meant::Functions(Choice::Named(name)) => Some(*name),
        Meant::Functions(_) => return JsonText::of(choice.given),
        Meant::WebSearch => None,
    };
    let kind = choice.given.get("type").and_then(Json::as_str);
    let mut out = String::from("{\"type\":");
    json::write_string(&mut out, kind.unwrap_or_default());
    if named.is_some() {
        text_field(&mut out, "name", named);
    }
    out.push('}');
    JsonText::written(out)
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
            value_field(&mut out, "schema", Some(schema));
            text_field(&mut out, "description", description);
            strict_field(&mut out, strict);
        }
    }
    out.push('}');
    text_field(&mut out, "verbosity", request.text.verbosity);
    out.push('}');
    out
}
