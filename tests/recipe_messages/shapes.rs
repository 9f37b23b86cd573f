//! Shapes: what is missing, of the wrong type, of an unknown kind or nested too deep is refused with its place.

use fathom::recipe::{Recipe, Stage};
use serde_json::{Value, json};

use super::recipe_support::requests::{File, V41, recipe};
use super::{body, prepare, user, warnings, with};

/// Something of everything that a request may hold.
fn full_body() -> Value {
    json!({
        "model": V41, "max_tokens": 100, "temperature": 0.5, "top_p": 0.9, "stream": true,
        "stop_sequences": ["x"], "metadata": {"user_id": "u"},
        "system": [{"type": "text", "text": "s", "cache_control": {"type": "ephemeral"}}],
        "thinking": {"type": "enabled", "budget_tokens": 9}, "output_config": {"effort": "low"},
        "tools": [
            {"name": "f", "description": "d", "input_schema": {"type": "object"}, "defer_loading": false},
            {"name": "g", "input_schema": {"type": "object"}, "defer_loading": true},
            {"type": "web_search_20250305", "name": "web_search"},
        ],
        "tool_choice": {"type": "auto", "disable_parallel_tool_use": false},
        "messages": [
            {"role": "user", "content": [
                {"type": "text", "text": "t"},
                {"type": "image", "source": {"type": "url", "url": "https://e.test/a.png"}},
                {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}},
                {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "aGk="}},
            ]},
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "ergo", "signature": "sig"},
                {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}},
                {"type": "web_search_tool_result", "tool_use_id": "s", "content": []},
                {"type": "text", "text": "t"},
                {"type": "tool_use", "id": "a", "name": "f", "input": {"x": 1}},
            ]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "is_error": false, "content": [
                {"type": "text", "text": "t"},
                {"type": "image", "source": {"type": "url", "url": "https://e.test/a.png"}},
                {"type": "document", "source": {"media_type": "text/plain"}},
                {"type": "tool_reference", "tool_name": "g"},
            ]}]},
            {"role": "system", "content": [
                {"type": "text", "text": "t"},
                {"type": "tool_addition", "tool": {"type": "tool_reference", "name": "g"}},
            ]},
        ],
    })
}

/// JSON pointers and request paths of all values in `value` whose shape the protocol fixes.
fn places(value: &Value, pointer: &str, path: &str, found: &mut Vec<(String, String)>) {
    found.push((pointer.to_owned(), path.to_owned()));
    match value {
        Value::Array(items) => {
            for (at, item) in items.iter().enumerate() {
                places(
                    item,
                    &format!("{pointer}/{at}"),
                    &format!("{path}[{at}]"),
                    found,
                );
            }
        }
        Value::Object(map) => {
            for (key, item) in map {
                // Free of form, or not read.
                let free = ["input", "input_schema", "cache_control"].contains(&key.as_str())
                    || pointer.ends_with("/1/content/2") && key == "content"
                    || pointer.ends_with("/source")
                        && path.ends_with("content[3].source")
                        && key != "media_type"
                    || pointer.ends_with("/content/2/source")
                        && key != "media_type"
                        && item != "base64"
                        && item != "aGk=";
                if !free {
                    let dot = if path.is_empty() { "" } else { "." };
                    places(
                        item,
                        &format!("{pointer}/{key}"),
                        &format!("{path}{dot}{key}"),
                        found,
                    );
                }
            }
        }
        _ => {}
    }
}

#[test]
fn a_value_of_the_wrong_type_is_refused_with_its_place() {
    let body = full_body();
    let recipe = recipe(File::V41, &json!({"messages_web_search": "drop"}), 0);
    prepare(&recipe, &body.to_string()).expect("the body is valid");
    let mut found = Vec::new();
    places(&body, "", "", &mut found);
    assert!(found.len() > 100, "{}", found.len());
    for (pointer, path) in found {
        let value = body.pointer(&pointer).expect("it is there");
        // An array of the fields is no object; nothing is an array of arrays; the rest is no object.
        let wrong = match value {
            Value::Object(map) => Value::Array(map.values().cloned().collect()),
            Value::Array(_) => json!(7),
            Value::String(_) | Value::Bool(_) => json!(7.5),
            _ => json!("7"),
        };
        let mut damaged = body.clone();
        *damaged.pointer_mut(&pointer).expect("it is there") = wrong;
        let error = prepare(&recipe, &damaged.to_string()).expect_err(&pointer);
        assert_eq!(error.stage, Stage::Deserialize, "{pointer}: {error}");
        assert_eq!(error.param, path, "{error}");
        let start = if path.is_empty() {
            "invalid request body: ".to_owned()
        } else {
            format!("invalid request body: {path}: ")
        };
        assert!(error.message.starts_with(&start), "{error}");
    }
}

#[test]
fn what_must_be_there_is_asked_for() {
    let recipe = recipe(File::V41, &json!({"messages_web_search": "drop"}), 0);
    let body = full_body();
    for pointer in [
        "/model",
        "/messages",
        "/system/0/type",
        "/system/0/text",
        "/thinking/type",
        "/tools/0/name",
        "/tool_choice/type",
        "/messages/0/role",
        "/messages/0/content",
        "/messages/0/content/0/type",
        "/messages/0/content/0/text",
        "/messages/0/content/1/source",
        "/messages/0/content/1/source/type",
        "/messages/0/content/1/source/url",
        "/messages/0/content/2/source/media_type",
        "/messages/0/content/2/source/data",
        "/messages/0/content/3/source",
        "/messages/1/content/0/thinking",
        "/messages/1/content/1/id",
        "/messages/1/content/1/name",
        "/messages/1/content/1/input",
        "/messages/1/content/2/tool_use_id",
        "/messages/1/content/2/content",
        "/messages/1/content/4/id",
        "/messages/1/content/4/name",
        "/messages/1/content/4/input",
        "/messages/2/content/0/tool_use_id",
        "/messages/2/content/0/content/0/text",
        "/messages/2/content/0/content/3/tool_name",
        "/messages/3/content/1/tool",
        "/messages/3/content/1/tool/type",
        "/messages/3/content/1/tool/name",
    ] {
        let (parent, key) = pointer.rsplit_once('/').expect("a pointer");
        for null in [false, true] {
            let mut damaged = body.clone();
            let fields = damaged.pointer_mut(parent).and_then(Value::as_object_mut);
            let fields = fields.expect("it is there");
            assert!(fields.remove(key).is_some(), "{pointer}");
            if null {
                fields.insert(key.to_owned(), Value::Null);
            }
            // These may hold any value.
            if null && (key == "input" || pointer == "/messages/1/content/2/content") {
                prepare(&recipe, &damaged.to_string()).expect(pointer);
                continue;
            }
            let error = prepare(&recipe, &damaged.to_string()).expect_err(pointer);
            assert_eq!(error.stage, Stage::Deserialize, "{pointer}: {error}");
        }
    }
    // The rest may be absent or null.
    let mut least = json!({"model": V41, "messages": [{"role": "user", "content": "x"}]});
    for key in body.as_object().expect("a map").keys() {
        least
            .as_object_mut()
            .expect("a map")
            .entry(key)
            .or_insert(Value::Null);
    }
    let prepared = prepare(&recipe, &least.to_string()).expect("the rest is optional");
    assert_eq!(warnings(&prepared), []);
}

#[test]
fn unknown_tags_are_refused() {
    let result = |part: Value| {
        let result = json!({"type": "tool_result", "tool_use_id": "a", "content": [part]});
        json!({"messages": [user(json!([result]))]})
    };
    let block = |block: Value| json!({"messages": [user(json!([block]))]});
    for (fields, param) in [
        (
            json!({"messages": [{"role": "tool", "content": "x"}]}),
            "messages[0].role",
        ),
        (
            json!({"messages": [{"role": "User", "content": "x"}]}),
            "messages[0].role",
        ),
        (
            block(json!({"type": "audio"})),
            "messages[0].content[0].type",
        ),
        (
            block(json!({"type": "tool_reference", "tool_name": "f"})),
            "messages[0].content[0].type",
        ),
        (
            block(json!({"type": "redacted_thinking", "data": "x"})),
            "messages[0].content[0].type",
        ),
        (
            block(json!({"type": "image", "source": {"type": "path"}})),
            "messages[0].content[0].source.type",
        ),
        (
            block(
                json!({"type": "image", "source": {"type": "base64", "media_type": "image/bmp", "data": ""}}),
            ),
            "messages[0].content[0].source.media_type",
        ),
        (
            result(json!({"type": "tool_use"})),
            "messages[0].content[0].content[0].type",
        ),
        (
            block(json!({"type": "tool_addition", "tool": {"type": "tool", "name": "f"}})),
            "messages[0].content[0].tool.type",
        ),
        (
            json!({"system": [{"type": "image", "source": {}}]}),
            "system[0].type",
        ),
        (json!({"thinking": {"type": "auto"}}), "thinking.type"),
        (
            json!({"tool_choice": {"type": "required"}}),
            "tool_choice.type",
        ),
        (
            json!({"output_config": {"effort": "most"}}),
            "output_config.effort",
        ),
        (
            json!({"output_config": {"effort": 50}}),
            "output_config.effort",
        ),
    ] {
        let error = with(&json!({}), &body(fields.clone())).expect_err("it is refused");
        let found = (error.stage, error.param.as_str());
        assert_eq!(found, (Stage::Deserialize, param), "{fields}: {error}");
    }
}

#[test]
fn nesting_is_limited_but_free_values_may_be_deep() {
    let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
    let request = |input: &str| {
        format!(
            r#"{{"model": "{V41}", "thinking": {{"type": "disabled"}}, "messages": [
                {{"role": "assistant", "content": [{{"type": "tool_use", "id": "a", "name": "f", "input": {input}}}]}},
                {{"role": "user", "content": [{{"type": "tool_result", "tool_use_id": "a"}}]}}]}}"#
        )
    };
    let recipe = recipe(File::V41, &json!({}), 0);
    // The body, the messages, a message, its content and the block are five levels.
    prepare(&recipe, &request(&nested(122))).expect("it is deep enough");
    for depth in [123, 1000, 1_000_000] {
        let error = prepare(&recipe, &request(&nested(depth))).expect_err("it is too deep");
        assert_eq!(error.stage, Stage::Deserialize);
    }
    let open = r#"{"type":"object","properties":{"a":"#.repeat(60);
    let schema = format!("{open}{{}}{}", "}}".repeat(60));
    let request = format!(
        r#"{{"model": "{V41}", "messages": [{{"role": "user", "content": "q"}}], "tools": [{{"name": "f", "input_schema": {schema}}}]}}"#
    );
    prepare(&recipe, &request).expect("a deep schema is a schema");
}

mod damaged {
    use std::sync::OnceLock;

    use super::*;
    use crate::recipe_support::requests::{check_whole, damage, odd_values, short_bodies};
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(3000))]
        #[test]
        fn requests_are_answered_or_refused_but_never_break_anything(
            which in any::<prop::sample::Index>(),
            steps in prop::collection::vec(0usize..8, 1..7),
            pick in 0usize..14,
            fixes in any::<bool>(),
        ) {
            static BODIES: OnceLock<Vec<Value>> = OnceLock::new();
            static RECIPES: OnceLock<[Recipe; 2]> = OnceLock::new();
            let bodies = BODIES.get_or_init(|| {
                let mut bodies = short_bodies("messages");
                bodies.push(full_body());
                bodies
            });
            let recipes = RECIPES.get_or_init(|| [
                recipe(File::V41, &json!({}), 0),
                recipe(File::V41, &json!({"fixes": "all", "engine_params": true, "messages_prefill": true,
                    "messages_web_search": "drop", "allow_numeric_effort": true}), 0),
            ]);
            let mut body = which.get(bodies).clone();
            damage(&mut body, &steps, odd_values()[pick].clone());
            let answer = prepare(&recipes[usize::from(fixes)], &body.to_string());
            prop_assert_eq!(check_whole(answer), Ok(()));
        }
    }
}

#[test]
fn a_type_that_is_null_is_not_the_lack_of_one() {
    let tool = json!({"type": null, "name": "f", "input_schema": {"type": "object"}});
    let error = with(&json!({}), &body(json!({"tools": [tool]}))).expect_err("null is no type");
    assert_eq!(
        (error.stage, error.param.as_str()),
        (Stage::Deserialize, "tools[0].type")
    );
}
