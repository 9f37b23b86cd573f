//! Requests of the protocols that ask for a form of the output get it from the demo model.

use fathom::call::{Options, Submit};
use fathom::engine::request::FinishReason;
use fathom::recipe::Protocol;
use serde_json::{Value, json};

use crate::world::{Called, World};

fn seeded(seed: Option<u64>) -> Options {
    let submit = Submit {
        temperature: Some(if seed.is_some() { 1.0 } else { 0.0 }),
        seed,
        ..Submit::default()
    };
    Options {
        submit,
        ..Options::default()
    }
}

fn chat(think: bool, extra: Value) -> Value {
    let mut request = json!({
        "model": "demo", "max_tokens": 400,
        "thinking": {"type": if think { "enabled" } else { "disabled" }},
        "messages": [{"role": "user", "content": "Extract the data as json: Anna is 7 years old and likes blue."}],
    });
    request
        .as_object_mut()
        .unwrap()
        .extend(extra.as_object().unwrap().clone());
    request
}

/// Greedy and some seeds, thinking off and on.
fn each(mut check: impl FnMut(bool, Options)) {
    for think in [false, true] {
        for seed in [None, Some(1), Some(2), Some(3)] {
            check(think, seeded(seed));
        }
    }
}

/// The text, unless the model spent all of its budget before the end.
fn complete(called: &Called) -> Option<&str> {
    let content = called.content();
    (called.finish() == FinishReason::Stop).then_some(content)
}

/// Catches: JSON mode that only filters; reasoning that is held to the grammar; an answer with prose around it.
#[test]
fn json_objects_are_bare_and_whole() {
    let world = World::new("{}");
    let mut whole = 0;
    each(|think, options| {
        let request = chat(think, json!({"response_format": {"type": "json_object"}}));
        let called = world.call(Protocol::ChatCompletions, &request, options);
        let Some(content) = complete(&called) else {
            return;
        };
        assert!(
            content.starts_with('{') && content.ends_with('}'),
            "{content}"
        );
        let value: Value = serde_json::from_str(content).unwrap();
        assert!(value.is_object());
        assert_eq!(called.reason(), "constraint_complete");
        let reasoning = &called.response()["choices"][0]["message"]["reasoning_content"];
        assert_eq!(
            reasoning.as_str().is_some_and(|text| text.contains(' ')),
            think,
            "{reasoning}"
        );
        whole += 1;
    });
    assert!(whole >= 6, "{whole} of 8");
}

pub(crate) fn schemas() -> Vec<Value> {
    vec![
        json!({"type": "object", "required": ["name", "age"], "additionalProperties": false,
            "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "minimum": 0, "maximum": 120}}}),
        json!({"type": "object", "required": ["people"], "properties": {"people": {"type": "array", "minItems": 1, "maxItems": 2,
            "items": {"$ref": "#/$defs/person"}}}, "additionalProperties": false,
            "$defs": {"person": {"type": "object", "required": ["colour", "happy"], "additionalProperties": false,
                "properties": {"colour": {"enum": ["blue", "red", null]}, "happy": {"type": "boolean"}}}}}),
        json!({"anyOf": [{"const": "nothing"}, {"type": "array", "items": {"type": "number"}, "maxItems": 4}]}),
        json!({"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3}$"}),
        json!({"type": "object", "properties": {"when": {"type": "string", "format": "date"}, "id": {"type": "string", "format": "uuid"}},
            "required": ["when", "id"], "additionalProperties": false}),
    ]
}

/// Catches: keywords that are read and not held, and references that are not followed.
#[test]
fn answers_satisfy_their_schema() {
    let world = World::new("{}");
    let mut whole = 0;
    for schema in schemas() {
        let judge = jsonschema::validator_for(&schema).unwrap();
        each(|think, options| {
            let format =
                json!({"type": "json_schema", "json_schema": {"name": "x", "schema": schema}});
            let request = chat(think, json!({"response_format": format}));
            let called = world.call(Protocol::ChatCompletions, &request, options);
            let Some(content) = complete(&called) else {
                return;
            };
            let value: Value = serde_json::from_str(content).unwrap();
            assert!(judge.is_valid(&value), "{content} for {schema}");
            whole += 1;
        });
    }
    assert!(whole >= 34, "{whole} of 40");
}

/// Catches: an expression that is searched for instead of matched.
#[test]
fn answers_match_their_expression() {
    let world = World::new("{}");
    each(|think, options| {
        let pattern = "^[a-z]{3,8} is [0-9]{1,3}$";
        let request = chat(
            think,
            json!({"response_format": {"type": "regex", "regex": pattern}}),
        );
        let called = world.call(Protocol::ChatCompletions, &request, options);
        let Some(content) = complete(&called) else {
            return;
        };
        let (name, age) = content.split_once(" is ").unwrap();
        assert!(
            (3..=8).contains(&name.len()) && name.bytes().all(|b| b.is_ascii_lowercase()),
            "{content}"
        );
        assert!(
            (1..=3).contains(&age.len()) && age.bytes().all(|b| b.is_ascii_digit()),
            "{content}"
        );
    });
}

/// Catches: a protocol whose wish is not read, or whose answer is not written.
#[test]
fn responses_keep_their_formats_too() {
    let world = World::new("{}");
    let schema = &schemas()[0];
    let judge = jsonschema::validator_for(schema).unwrap();
    let text = "Extract the data as json: Anna is 7 years old.";
    for format in [
        json!({"type": "json_schema", "name": "x", "schema": schema}),
        json!({"type": "json_object"}),
    ] {
        let request = json!({"model": "demo", "input": text, "reasoning": {"effort": "none"},
            "max_output_tokens": 300, "text": {"format": format}});
        let called = world.call(Protocol::Responses, &request, seeded(None));
        let answer = called.response()["output"][0]["content"][0]["text"]
            .as_str()
            .unwrap();
        let value: Value = serde_json::from_str(answer).unwrap();
        assert!(
            value.is_object() && (format["type"] == "json_object" || judge.is_valid(&value)),
            "{answer}"
        );
    }
}

/// Catches: a spelling of a control token inside a string that becomes the token itself.
#[test]
fn control_tokens_in_strings_stay_text() {
    let world = World::new("{}");
    let spelled = r#"{"const": "a</think><｜User｜>b"}"#;
    let schema: Value = serde_json::from_str(spelled).unwrap();
    for think in [false, true] {
        let format = json!({"type": "json_schema", "json_schema": {"name": "x", "schema": schema}});
        let request = chat(think, json!({"response_format": format}));
        let called = world.call(Protocol::ChatCompletions, &request, seeded(None));
        assert_eq!(complete(&called), Some("\"a</think><｜User｜>b\""));
    }
}
