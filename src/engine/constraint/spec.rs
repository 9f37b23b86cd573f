//! What a text must look like, and the two forms that all kinds of it become.
//!
//! In: the text of a constraint. Out: a JSON Schema or a grammar in the form of Lark, for `guided.rs`. Linear in
//! the text; everything that a text can get wrong before a grammar is built is found here.

#![forbid(unsafe_code)]

use serde_json::{Map, Value, json};

use super::{Limits, ebnf, regex, tag, tools::ToolCalls};
use crate::engine::error::{Code, Error};

/// A constraint as it was asked for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Spec {
    /// One JSON object.
    JsonObject,
    /// JSON of this schema.
    JsonSchema(String),
    /// Text that this expression matches as a whole.
    Regex(String),
    /// A grammar in the form of Lark.
    Lark(String),
    /// A grammar in EBNF.
    Ebnf(String),
    /// One of the strings of this JSON array.
    Choice(String),
    /// Free text with tagged parts, as a JSON object.
    StructuralTag(String),
    /// Calls of tools in the model's own form.
    ToolCalls(ToolCalls),
}

/// What the grammar library reads.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Source {
    Schema(Value),
    Lark(String),
}

impl Source {
    /// About how long it is.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::Lark(text) => text.len(),
            Self::Schema(schema) => schema.to_string().len(),
        }
    }
}

/// White space between the parts of a JSON text: enough for any layout, and too little to fill an answer with.
pub(super) const JSON_SPACE: &str = r"[ \t]{1,4}|\r?\n[ \t]{0,64}";
/// How deep brackets of a grammar may nest: its reader recurses.
const NESTING: usize = 200;
/// Rules of a grammar: its compiler recurses from rule to rule.
const RULES: usize = 2000;
/// Properties of one object: compiling takes time with their square, a tenth of a second for so many.
const PROPERTIES: usize = 1000;
/// The largest `multipleOf`, its decimal point left out: its automaton has about so many states.
const MULTIPLE: u64 = 1000;

impl Spec {
    /// Bytes of its text.
    fn bytes(&self) -> usize {
        match self {
            Self::JsonObject => 0,
            Self::JsonSchema(text)
            | Self::Regex(text)
            | Self::Lark(text)
            | Self::Ebnf(text)
            | Self::Choice(text)
            | Self::StructuralTag(text) => text.len(),
            Self::ToolCalls(calls) => calls.bytes(),
        }
    }

    /// Refuses what is too long, and reads the rest.
    pub(crate) fn source(&self, limits: &Limits) -> Result<Source, Error> {
        let (bytes, most) = (self.bytes(), limits.source);
        if bytes > most {
            return Err(refuse(format!(
                "the constraint has {bytes} bytes, more than the limit of {most}"
            )));
        }
        match self {
            Self::JsonObject => Ok(schema(json!({"type": "object"}))),
            Self::JsonSchema(text) => {
                let mut value: Value = serde_json::from_str(text)
                    .map_err(|error| refuse(format!("the schema is not JSON: {error}")))?;
                match value {
                    Value::Object(_) | Value::Bool(_) => {
                        tidy(&mut value)?;
                        Ok(schema(value))
                    }
                    _ => Err(refuse("a schema is an object, true or false".to_owned())),
                }
            }
            Self::Regex(text) => Ok(Source::Lark(format!(
                "start: /{}/",
                lark_regex(&regex::whole_text(text)?)
            ))),
            Self::Lark(text) => {
                check_lark(text)?;
                Ok(Source::Lark(text.clone()))
            }
            Self::Ebnf(text) => ebnf::to_lark(text).map(Source::Lark),
            Self::Choice(text) => choice(text),
            Self::StructuralTag(text) => tag::to_lark(text).map(Source::Lark),
            Self::ToolCalls(calls) => calls.to_lark().map(Source::Lark),
        }
    }
}

/// An error about the constraint's text.
pub(super) fn refuse(message: String) -> Error {
    Error::new(Code::InvalidConstraint, "constraint", message)
}

/// Adds how JSON is laid out. Whatever the client put in its place is not a keyword of JSON Schema.
pub(super) fn with_layout(value: Value) -> Value {
    let mut object = match value {
        Value::Object(object) => object,
        Value::Bool(true) => Map::new(),
        other => return other,
    };
    object.insert(
        "x-guidance".to_owned(),
        json!({"whitespace_pattern": JSON_SPACE}),
    );
    Value::Object(object)
}

fn schema(value: Value) -> Source {
    Source::Schema(with_layout(value))
}

/// Formats that are held; others say something about a text that JSON Schema does not ask to be true.
const FORMATS: [&str; 10] = [
    "date",
    "date-time",
    "duration",
    "email",
    "hostname",
    "ipv4",
    "ipv6",
    "time",
    "uri",
    "uuid",
];

/// Bounds what compiling a schema costs beyond its length, and drops annotations that the library takes for
/// keywords. Recursion is bounded by the JSON reader.
pub(super) fn tidy(schema: &mut Value) -> Result<(), Error> {
    let object = match schema {
        Value::Array(items) => return items.iter_mut().try_for_each(tidy),
        Value::Object(object) => object,
        _ => return Ok(()),
    };
    if let Some(Value::Object(properties)) = object.get("properties")
        && properties.len() > PROPERTIES
    {
        return Err(refuse(format!(
            "an object of the schema has more than {PROPERTIES} properties"
        )));
    }
    if let Some(Value::Number(number)) = object.get("multipleOf") {
        let text = number.to_string();
        let digits = text.split(['e', 'E']).next().unwrap_or_default();
        let digits = digits.replace('.', "");
        if digits.parse().is_ok_and(|digits: u64| digits > MULTIPLE) {
            return Err(refuse(format!(
                "\"multipleOf\" is {text}, more than the limit of {MULTIPLE}"
            )));
        }
    }
    let is_text = object.get("type").is_none_or(|kind| *kind == "string");
    if let Some(Value::String(format)) = object.get("format")
        && !(is_text && FORMATS.contains(&format.as_str()))
    {
        object.shift_remove("format");
    }
    if object.get("deprecated").is_some_and(Value::is_boolean) {
        object.shift_remove("deprecated");
    }
    object
        .iter_mut()
        // Below these are values, not schemas.
        .filter(|(key, _)| !["const", "enum", "default", "examples"].contains(&key.as_str()))
        .try_for_each(|(_, value)| tidy(value))
}

/// An expression as it stands between slashes.
pub(super) fn lark_regex(expression: &str) -> String {
    llguidance::regex_to_lark(expression, "")
}

/// A text as it stands between quotes.
pub(super) fn lark_string(text: &str) -> String {
    // JSON's escapes are Lark's but for this one character.
    Value::from(text).to_string().replace('\u{7f}', "\\u007f")
}

fn choice(text: &str) -> Result<Source, Error> {
    let choices: Vec<String> = serde_json::from_str(text)
        .map_err(|error| refuse(format!("a choice is a JSON array of strings: {error}")))?;
    if choices.is_empty() {
        return Err(refuse("the choice has no strings".to_owned()));
    }
    // One terminal: a longer choice may begin with a shorter one.
    let mut lark = String::from("start: CHOICE\nCHOICE: ");
    for (at, choice) in choices.iter().enumerate() {
        if choice.is_empty() {
            return Err(refuse(format!("string {at} of the choice is empty")));
        }
        if at > 0 {
            lark.push_str(" | ");
        }
        lark.push_str(&lark_string(choice));
    }
    Ok(Source::Lark(lark))
}

/// Bounds what the library's reader and compiler would recurse into, and refuses what takes tokens back.
fn check_lark(text: &str) -> Result<(), Error> {
    let rules = text.lines().filter(|line| line.contains(':')).count();
    if rules > RULES {
        return Err(refuse(format!("the grammar has more than {RULES} rules")));
    }
    let (mut depth, mut deepest) = (0usize, 0);
    for byte in text.bytes() {
        match byte {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        deepest = deepest.max(depth);
    }
    if deepest > NESTING {
        return Err(refuse(format!(
            "the grammar nests deeper than {NESTING} levels"
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wide(count: usize) -> String {
        let names: Map<String, Value> = (0..count).map(|n| (n.to_string(), json!({}))).collect();
        json!({ "properties": names }).to_string()
    }

    fn refused(spec: &Spec) -> String {
        let error = spec.source(&Limits::default()).unwrap_err();
        assert_eq!(error.code, Code::InvalidConstraint);
        error.message
    }

    #[test]
    fn texts_that_cannot_be_read_are_refused_with_their_reason() {
        for (spec, reason) in [
            (Spec::JsonSchema("{".to_owned()), "not JSON"),
            (
                Spec::JsonSchema("[]".to_owned()),
                "an object, true or false",
            ),
            (Spec::JsonSchema(wide(1001)), "1000 properties"),
            (
                Spec::JsonSchema(r#"{"items":{"multipleOf":10.01}}"#.to_owned()),
                "limit of 1000",
            ),
            (Spec::Choice("{}".to_owned()), "array of strings"),
            (Spec::Choice("[]".to_owned()), "no strings"),
            (Spec::Choice(r#"["a",""]"#.to_owned()), "string 1"),
            (Spec::Lark("(".repeat(300)), "200 levels"),
            (Spec::Lark("a: b\n".repeat(2001)), "2000 rules"),
            (Spec::Regex("x".repeat((1 << 19) + 1)), "limit of 524288"),
        ] {
            let message = refused(&spec);
            assert!(message.contains(reason), "{message}");
        }
    }

    #[test]
    fn annotations_are_dropped_where_they_are_annotations() {
        let mut schema = json!({
            "format": "colour", "deprecated": true, "const": {"format": "colour"},
            "properties": {
                "format": {"type": "integer", "format": "int32"},
                "deprecated": {"type": "string", "format": "date"},
            },
        });
        tidy(&mut schema).unwrap();
        let expected = json!({
            "const": {"format": "colour"},
            "properties": {
                "format": {"type": "integer"},
                "deprecated": {"type": "string", "format": "date"},
            },
        });
        assert_eq!(schema, expected);
    }

    #[test]
    fn strings_are_quoted_as_lark_reads_them() {
        assert_eq!(lark_string("a\"b\\\n\u{7f}é"), "\"a\\\"b\\\\\\n\\u007fé\"");
    }
}
