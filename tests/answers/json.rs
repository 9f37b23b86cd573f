//! Answers that are JSON because the request says so, in the protocols that have such a wish. Messages has none.

use serde_json::{Value, json};

use crate::called::{call, fixed, shared, whole, without_time};
use crate::protocols::{Ask, Chat, End, Messages, Protocol, Responses};
use crate::streams;

/// A request for an object, any or of a schema, in the words of a protocol.
fn asked(
    protocol: Protocol,
    question: &'static str,
    schema: Option<&Value>,
    stream: bool,
) -> Value {
    let mut body = Ask::new(question).body(protocol, stream);
    let named = |schema: &Value| json!({"name": "person", "schema": schema});
    match (protocol, schema) {
        (Chat, None) => body["response_format"] = json!({"type": "json_object"}),
        (Chat, Some(schema)) => {
            body["response_format"] = json!({"type": "json_schema", "json_schema": named(schema)});
        }
        (Responses, None) => body["text"] = json!({"format": {"type": "json_object"}}),
        (Responses, Some(schema)) => {
            let mut format = named(schema);
            format["type"] = "json_schema".into();
            body["text"] = json!({ "format": format });
        }
        (Messages, _) => panic!("Messages has no format of its text"),
    }
    body
}

/// The object that a request gives, streamed and whole.
fn object(protocol: Protocol, question: &'static str, schema: Option<&Value>) -> Value {
    let called = call(protocol, &asked(protocol, question, schema, true), &fixed());
    assert_eq!(called.done.error, None);
    let streamed = streams::read(protocol, &called.lines);
    assert_eq!(streamed.error, None);
    let (response, _) = whole(protocol, &asked(protocol, question, schema, false));
    assert_eq!(without_time(streamed.response), response);
    let answer = protocol.read(&response);
    assert_eq!(answer.finish, protocol.word(End::Stop));
    serde_json::from_str(&answer.content).expect(&answer.content)
}

#[test]
fn an_answer_is_an_object_when_one_is_asked_for() {
    const QUESTION: &str = "Reply in JSON with the keys name, age: Anna is 7 years old.";
    let _turn = shared();
    for protocol in [Chat, Responses] {
        assert_eq!(
            object(protocol, QUESTION, None),
            json!({"name": "Anna", "age": 7})
        );
    }
}

#[test]
fn an_answer_is_of_the_schema_that_is_asked_for() {
    const QUESTION: &str = "Extract the data: Anna is 7 years old.";
    let _turn = shared();
    let schema = json!({"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
        "required": ["name", "age"], "additionalProperties": false});
    for protocol in [Chat, Responses] {
        assert_eq!(
            object(protocol, QUESTION, Some(&schema)),
            json!({"name": "Anna", "age": 7})
        );
    }
}

#[test]
fn an_answer_is_of_the_schema_also_where_the_model_would_say_something_else() {
    // Left to itself it tells a story.
    const QUESTION: &str = "Tell me a story about a fox named Lily in JSON.";
    let _turn = shared();
    let schema = json!({"type": "object", "properties": {"done": {"type": "boolean"}},
        "required": ["done"], "additionalProperties": false});
    for protocol in [Chat, Responses] {
        let object = object(protocol, QUESTION, Some(&schema));
        assert!(
            object["done"].is_boolean() && object.as_object().unwrap().len() == 1,
            "{object}"
        );
    }
}
