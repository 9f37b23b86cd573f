//! Differences that are right, each as narrow as it can be told. `tests/data/recipe/README.md` says why
//! they are.

use fathom::recipe::Protocol;
use serde_json::{Value, json};

use crate::systems::{Outcome, Refusal, Refused};

/// The kind of an expected difference, if this is one.
pub fn kind(
    protocol: Protocol,
    body: &str,
    theirs: &Outcome,
    ours: &Outcome,
) -> Option<&'static str> {
    match (theirs, ours) {
        (Outcome::Refused(theirs), _)
            if protocol == Protocol::Responses && refuses_null_format(theirs) =>
        {
            let is_null = value_at(body, "text.format").is_some_and(|format| format.is_null());
            let ours_is_shape =
                matches!(ours, Outcome::Refused(ours) if ours.stage == Refused::Shape);
            (is_null && !ours_is_shape).then_some("text.format that is null")
        }
        (Outcome::Refused(theirs), Outcome::Refused(ours))
            if theirs.stage == Refused::Shape && ours.stage == Refused::Shape =>
        {
            None
        }
        (_, Outcome::Refused(ours)) if ours.stage == Refused::Shape => {
            let message = &ours.message;
            let value = value_at(body, &ours.param)?;
            if value.is_array() && message.ends_with("expected an object, got an array") {
                return Some("an array in place of an object");
            }
            let key = ours.param.rsplit('.').next();
            let is_tag = matches!(key, Some("type" | "role")) || message.contains("one of \"");
            (is_tag && value.is_u64()).then_some("a number in place of a name")
        }
        (Outcome::Refused(theirs), Outcome::Refused(ours)) => {
            let id = |text: &str| {
                let id = text.strip_prefix("No tool output found for tool call ")?;
                Some(json!(id.strip_suffix('.')?))
            };
            let is_call = |id: &Value| {
                let calls = value_at(body, "input");
                let mut calls = calls.iter().filter_map(Value::as_array).flatten();
                calls.any(|call| call["call_id"] == *id)
            };
            let (Some(one), Some(other)) = (id(&theirs.message), id(&ours.message)) else {
                // What fathom leaves out it may miss before another fault, but not for one of a schema.
                let about_schema = schema_detail(&ours.message).is_some();
                return leaves_out(body, theirs).filter(|_| !about_schema);
            };
            (one != other && is_call(&one) && is_call(&other))
                .then_some("which of several calls without output is told")
        }
        (Outcome::Refused(theirs), Outcome::Accepted(_)) => leaves_out(body, theirs),
        _ => None,
    }
}

fn refuses_null_format(theirs: &Refusal) -> bool {
    theirs.stage == Refused::Shape
        && theirs.message
            == "invalid type: null, expected internally tagged enum ResponsesTextFormat"
}

/// The kind of a rule that fathom leaves out, if the peer refuses a schema by one.
fn leaves_out(body: &str, theirs: &Refusal) -> Option<&'static str> {
    let (_, detail) = schema_detail(&theirs.message).filter(|_| theirs.stage == Refused::Value)?;
    finer_rule(body, detail)
}

/// The rules of schemas that fathom leaves out, by what the peer's validator says.
fn finer_rule(body: &str, detail: &str) -> Option<&'static str> {
    if detail.ends_with(" is not a \"regex\"") {
        return Some("an expression in a schema that is none");
    }
    let address = [
        " is not a \"uri\"",
        " is not a \"uri-reference\"",
        "\"^[^#]*#?$\"",
    ];
    let anchor = "does not match \"^[A-Za-z_][-A-Za-z0-9._]*$\"";
    if detail.starts_with("Invalid URI reference '")
        || detail.ends_with(anchor)
        || address.iter().any(|end| detail.ends_with(end))
    {
        return Some("a name in a schema that is none");
    }
    if body.contains("json-schema.org/draft-04/schema") {
        return Some("a finer rule of draft 4");
    }
    let inside = detail.starts_with("Pointer '") && body.contains("json-schema.org/draft");
    inside.then_some("a place inside the schema of a draft that is not there")
}

/// Whether both texts are about the same schema and the peer's comes from its schema validator, or about the same
/// tool that cannot be shown.
pub fn is_advisory(theirs: &str, ours: &str) -> bool {
    const EXACT: [&str; 6] = [
        "schema must be a JSON Schema of",
        "The top level of the",
        "An object with no properties",
        "Required property '",
        "Duplicate required property '",
        "Required properties must match",
    ];
    let is_exact = |text: &str| EXACT.iter().any(|exact| text.starts_with(exact));
    if let (Some(theirs), Some(ours)) = (schema_detail(theirs), schema_detail(ours)) {
        return theirs.0 == ours.0 && !is_exact(theirs.1) && !is_exact(ours.1);
    }
    let at = |text: &str, end: &str| {
        let at = text.strip_suffix(end)?.split_once(": ")?.0;
        Some(at.to_owned())
    };
    let theirs = at(
        theirs,
        "the enum variant ResponsesTool::Unsupported cannot be serialized",
    );
    theirs.is_some() && theirs == at(ours, " cannot be shown to the model")
}

/// What a text says about a schema, and about which.
fn schema_detail(text: &str) -> Option<(&str, &str)> {
    for start in ["Invalid tool parameters schema : ", "Invalid json schema: "] {
        if let Some(detail) = text.strip_prefix(start) {
            return Some((start, detail));
        }
    }
    text.strip_prefix("Invalid schema for function '")?
        .split_once("': ")
}

/// The value that a path of ours (`messages[2].content`) names.
fn value_at(body: &str, path: &str) -> Option<Value> {
    let body: Value = serde_json::from_str(body).ok()?;
    let mut value = &body;
    for part in path.split('.').filter(|part| !part.is_empty()) {
        let (key, indexes) = part.split_at(part.find('[').unwrap_or(part.len()));
        if !key.is_empty() {
            value = value.get(key)?;
        }
        for index in indexes.split(['[', ']']).filter(|index| !index.is_empty()) {
            value = value.get(index.parse::<usize>().ok()?)?;
        }
    }
    Some(value.clone())
}
