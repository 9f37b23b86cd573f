//! Messages requests, from the body to token ids, against the vectors and beyond them.

mod recipe_support;

use std::time::{Duration, Instant};

use fathom::recipe::conversation::{InputMessage, ToolChoice};
use fathom::recipe::{
    Error, OutputConstraint, Prepared, Protocol, Recipe, RecipeOptions, Stage, ThinkingStage,
};
use recipe_support::requests::{File, V4, V41, check_all, recipe};
use serde_json::{Value, json};

#[test]
fn requests_become_what_the_vectors_say() {
    check_all("messages", 164);
}

fn prepare(recipe: &Recipe, body: &str) -> Result<Prepared, Error> {
    recipe.prepare(Protocol::Messages, body.as_bytes(), None)
}

/// Prepares a body with these recipe options and the tokenizer of V4.1.
fn with(options: &Value, body: &Value) -> Result<Prepared, Error> {
    prepare(&recipe(File::V41, options, 0), &body.to_string())
}

/// Prepares a body with this fix.
fn fixed(name: &str, body: &Value) -> Prepared {
    let prepared = with(&json!({"fixes": [name]}), body);
    prepared.unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// A V4.1 request outside thinking mode: one user message and more fields.
fn body(more: Value) -> Value {
    let mut body = json!({
        "model": V41, "thinking": {"type": "disabled"}, "messages": [{"role": "user", "content": "hi"}],
    });
    let more = more.as_object().expect("fields").clone();
    body.as_object_mut().expect("a map").extend(more);
    body
}

fn user(content: Value) -> Value {
    json!({"role": "user", "content": content})
}

fn assistant(content: Value) -> Value {
    json!({"role": "assistant", "content": content})
}

fn system(content: Value) -> Value {
    json!({"role": "system", "content": content})
}

fn tool_use(id: &str) -> Value {
    json!({"type": "tool_use", "id": id, "name": "f", "input": {}})
}

fn tool_result(id: &str) -> Value {
    json!({"type": "tool_result", "tool_use_id": id, "content": "ok"})
}

fn text(text: &str) -> Value {
    json!({"type": "text", "text": text})
}

fn tool(name: &str) -> Value {
    json!({"name": name, "input_schema": {"type": "object"}})
}

/// Code and place of each warning.
fn warnings(prepared: &Prepared) -> Vec<(&str, &str)> {
    let warnings = prepared.warnings.iter();
    warnings.map(|w| (w.code, w.param.as_str())).collect()
}

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
fn an_error_names_its_place_in_the_request() {
    let asks = |more: Value| {
        let mut messages = vec![
            user(json!("q")),
            assistant(json!([tool_use("b"), tool_use("a")])),
        ];
        messages.extend(more.as_array().expect("messages").iter().cloned());
        json!({ "messages": messages })
    };
    let says = |message: Value| json!({"messages": [user(json!("q")), message]});
    let image = |source: Value| json!({"type": "image", "source": source});
    let ftp = || image(json!({"type": "url", "url": "ftp://\"x"}));
    let thinking = json!({"type": "thinking", "thinking": "x"});
    let search_result = json!({"type": "web_search_tool_result", "tool_use_id": "s", "content": 1});
    let addition = |name: &str| json!({"type": "tool_addition", "tool": {"type": "tool_reference", "name": name}});
    const TAIL: &str = "`tool_use` ids were found without `tool_result` blocks immediately after: a, b. Each `tool_use` block must have a corresponding `tool_result` block in the next message.";
    for (fields, param, message) in [
        (json!({"messages": []}), "messages", "messages: at least one message is required".to_owned()),
        (asks(json!([user(json!("x"))])), "messages[2]", format!("messages.2: {TAIL}")),
        (asks(json!([assistant(json!("x"))])), "messages[2]", format!("messages.2: {TAIL}")),
        (asks(json!([assistant(json!([text("x")]))])), "messages[2]", format!("messages.2: {TAIL}")),
        (asks(json!([system(json!("x"))])), "messages[2]", format!("messages.2: {TAIL}")),
        (asks(json!([user(json!([ftp()]))])), "messages[2]", format!("messages.2: {TAIL}")),
        (asks(json!([])), "messages[1]", format!("messages.1:{TAIL}")),
        (
            says(assistant(json!([tool_use("b"), tool_use("a"), thinking, ftp()]))),
            "messages[1].content[3]",
            format!("messages.1.3: {TAIL}"),
        ),
        (
            asks(json!([user(json!([tool_result("a"), text("x"), tool_result("b")]))])),
            "messages[2]",
            format!("messages.2: {}", TAIL.replace("a, b", "b")),
        ),
        (
            asks(json!([user(json!([tool_result("a"), tool_result("a")]))])),
            "messages[2].content[1].tool_use_id",
            "messages.2.content.1: each tool_use must have a single result. Found multiple `tool_result` blocks with id: a".to_owned(),
        ),
        (
            asks(json!([user(json!([tool_result("c")]))])),
            "messages[2].content[0].tool_use_id",
            "unexpected `messages.2.content.0: tool_use_id` found in `tool_result` blocks: c. Each `tool_result` block must have a corresponding `tool_use` block in the previous message.".to_owned(),
        ),
        (
            says(assistant(json!([text("x"), tool_use("a"), tool_use("a")]))),
            "messages[1].content[2].id",
            "messages.1.content.2: `tool_use` ids must be unique".to_owned(),
        ),
        (says(user(json!([]))), "messages[1].content", "messages.1: all messages must have non-empty content".to_owned()),
        (says(assistant(json!([]))), "messages[1].content", "messages.1: all messages must have non-empty content".to_owned()),
        (
            says(system(json!([text("x"), tool_use("a")]))),
            "messages[1].content[1]",
            "messages.1: `tool_use` blocks can only be in `assistant` messages".to_owned(),
        ),
        (
            says(system(json!([tool_result("a")]))),
            "messages[1].content[0]",
            "messages.1: `tool_result` blocks can only be in `user` messages".to_owned(),
        ),
        (
            says(user(json!([search_result]))),
            "messages[1].content[0]",
            "messages.1: `web_search_tool_result` blocks can only be in `assistant` messages".to_owned(),
        ),
        (
            says(assistant(json!([addition("f")]))),
            "messages[1].content[0]",
            "messages.1: `tool_addition` blocks can only be in `system` messages".to_owned(),
        ),
        (
            says(system(json!([thinking]))),
            "messages[1].content[0]",
            "messages.1.content: thinking blocks may only be in `assistant` messages".to_owned(),
        ),
        (
            says(system(json!([text("x"), addition("f")]))),
            "messages[1].content[1].tool.name",
            "messages.1.content.1: `tool_addition` references unknown tool 'f'".to_owned(),
        ),
        (
            asks(json!([user(json!([tool_result("a"), {"type": "tool_result", "tool_use_id": "b", "content": [
                text("x"), {"type": "tool_reference", "tool_name": "g"}]}]))])),
            "messages[2].content[1].content[1].tool_name",
            "messages.2.content.1: tool reference 'g' not found in available tools".to_owned(),
        ),
        (
            says(user(json!([text("x"), ftp()]))),
            "messages[1].content[1]",
            r#"messages.1.content[1]: invalid url: "ftp://\"x""#.to_owned(),
        ),
        (
            says(system(json!([text("x"), ftp()]))),
            "messages[1].content[1]",
            r#"messages.1.content[1]: invalid url: "ftp://\"x""#.to_owned(),
        ),
        (
            asks(json!([user(json!([{"type": "tool_result", "tool_use_id": "b", "content": [text("x"), ftp()]}]))])),
            "messages[2].content[0].content[1]",
            r#"messages.2.content.0.tool_result.content[1]: invalid url: "ftp://\"x""#.to_owned(),
        ),
        (
            says(user(json!([image(json!({"type": "base64", "media_type": "image/gif", "data": "aGk"}))]))),
            "messages[1].content[0]",
            "messages.1.content[0]: base64 decode error".to_owned(),
        ),
        (
            says(user(json!([image(json!({"type": "file", "file_id": "f"}))]))),
            "messages[1].content[0]",
            "messages.1.content[0]: file_id is not supported. Pass the image as a base64 data url instead.".to_owned(),
        ),
        (
            says(assistant(json!([text("x"), ftp()]))),
            "messages[1].content[1]",
            "Image in assistant message is unsupported".to_owned(),
        ),
        (
            says(assistant(json!([text("x"), search_result]))),
            "messages[1].content[1]",
            "Unsupported content block: server tools are not supported".to_owned(),
        ),
        (
            json!({"tools": [tool("f"), {"type": "bash_20250124", "name": "bash"}]}),
            "tools[1]",
            "tools[1]: server tools are not supported".to_owned(),
        ),
        (
            json!({"tools": [tool("f"), tool("")]}),
            "tools[1].name",
            "Invalid 'tools[1].name': empty string. Expected a string with minimum length 1, but got an empty string instead.".to_owned(),
        ),
        (
            json!({"tools": [{"name": "f", "input_schema": {"type": "string"}}]}),
            "tools[0].input_schema",
            "Invalid schema for function 'f': schema must be a JSON Schema of 'type: \"object\"', got 'type: \"string\"'.".to_owned(),
        ),
        (json!({"tools": [tool("f"), tool("f")]}), "tools[1].name", "Tool names must be unique.".to_owned()),
        (
            json!({"tools": [{"name": "f", "defer_loading": true, "input_schema": {"type": "object"}}]}),
            "tools",
            "tools: at least one tool must have defer_loading=false. All tools cannot be deferred.".to_owned(),
        ),
        (
            json!({"tools": [tool("f")], "tool_choice": {"type": "tool", "name": "g"}}),
            "tool_choice",
            "Invalid value for 'tool_call': no function named 'g' was specified in the 'tools' parameter.".to_owned(),
        ),
        (
            json!({"tools": [tool("f")], "tool_choice": {"type": "tool", "name": "f"}, "thinking": null}),
            "tool_choice",
            "Thinking mode does not support this tool_choice".to_owned(),
        ),
        (
            json!({"stop_sequences": ["a", ""]}),
            "stop_sequences[1]",
            "Invalid 'stop[1]': empty string. Expected a string with minimum length 1, but got an empty string instead.".to_owned(),
        ),
        (
            json!({"stop_sequences": vec!["a"; 17]}),
            "stop_sequences",
            "Stop string array too long: 17".to_owned(),
        ),
        (
            json!({"temperature": 2.5}),
            "temperature",
            "Invalid temperature value, the valid range of temperature is [0, 2]".to_owned(),
        ),
        (
            json!({"top_p": 0}),
            "top_p",
            "Invalid top_p value, the valid range of top_p is (0, 1.0]".to_owned(),
        ),
        (
            json!({"max_tokens": 0}),
            "max_tokens",
            "Invalid max_tokens value, the valid range of max_tokens is [1, 393216]".to_owned(),
        ),
    ] {
        let error = with(&json!({}), &body(fields.clone())).expect_err("it is refused");
        let found = (error.stage, error.param.as_str(), error.message.as_str());
        assert_eq!(found, (Stage::Convert, param, message.as_str()), "{fields}");
    }
    let error =
        with(&json!({}), &body(json!({"model": "claude-opus-4"}))).expect_err("no such model");
    assert_eq!((error.stage, error.param.as_str()), (Stage::Model, "model"));
}

#[test]
fn of_several_faults_the_first_in_the_official_order_is_told() {
    // Each step mends what the step before it was refused for.
    let mut request = json!({
        "model": "x", "max_tokens": 0, "temperature": 3, "stop_sequences": [""],
        "tools": [{"name": "a b"}], "tool_choice": {"type": "tool", "name": "g"}, "messages": [],
    });
    let options = json!({"reasoning_content_behavior": "reject"});
    let steps = [
        ("model", json!(V41), "model"),
        (
            "tools",
            json!([{"name": "f", "defer_loading": true}]),
            "tools[0].name",
        ),
        ("tools", json!([{"name": "f"}]), "tools"),
        (
            "messages",
            json!([user(json!("q")), assistant(json!("a"))]),
            "messages",
        ),
        ("thinking", json!({"type": "disabled"}), "messages"),
        ("tools", json!([tool("f")]), "tools[0].input_schema"),
        ("tool_choice", json!({"type": "auto"}), "tool_choice"),
        ("stop_sequences", json!([]), "stop_sequences[0]"),
        ("temperature", json!(1), "temperature"),
        ("max_tokens", json!(1), "max_tokens"),
    ];
    for (field, value, fault) in steps {
        let error = with(&options, &request).expect_err(fault);
        assert_eq!(error.param, fault, "{error}");
        request[field] = value;
    }
    with(&options, &request).expect("every fault is mended");
}

#[test]
fn what_is_ignored_is_told_as_warnings() {
    let request = json!({
        "model": V41, "surprise": 1, "metadata": {"user_id": "u"}, "top_k": 5, "service_tier": "auto",
        "container": "c", "mcp_servers": [], "cache_control": {}, "max_tokens": 400_000, "top_p": 0.5,
        "temperature": 0.5, "thinking": {"type": "enabled", "budget_tokens": 5},
        "output_config": {"effort": "low", "format": {"type": "json_schema"}},
        "tools": [{"type": "web_search_20250305"}, tool("f")],
        "tool_choice": {"type": "none", "disable_parallel_tool_use": true},
        "messages": [
            user(json!([{"type": "document", "source": {}}])),
            assistant(json!([
                {"type": "thinking", "thinking": "ergo"}, {"type": "thinking", "thinking": ""},
                {"type": "redacted_thinking", "data": "zz"},
                {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}},
                {"type": "web_search_tool_result", "tool_use_id": "s", "content": []},
                tool_use("a"),
            ])),
            user(json!([{"type": "tool_result", "tool_use_id": "a", "is_error": true, "content": [
                text("x"), {"type": "document", "source": {}}]}])),
        ],
    });
    let options = json!({"messages_web_search": "drop", "fixes": ["newer_inputs"]});
    let prepared = with(&options, &request).expect("it is accepted");
    assert_eq!(
        warnings(&prepared),
        [
            ("unknown_field", "surprise"),
            ("ignored_field", "metadata"),
            ("ignored_field", "top_k"),
            ("ignored_field", "service_tier"),
            ("ignored_field", "container"),
            ("ignored_field", "mcp_servers"),
            ("ignored_field", "cache_control"),
            ("ignored_field", "thinking.budget_tokens"),
            ("ignored_field", "output_config.format"),
            ("ignored_field", "tool_choice.disable_parallel_tool_use"),
            ("dropped_tool", "tools[0]"),
            ("image_as_text", "messages[0].content[0]"),
            ("dropped_item", "messages[1].content[2]"),
            ("dropped_item", "messages[1].content[3]"),
            ("dropped_item", "messages[1].content[4]"),
            ("ignored_field", "messages[2].content[0].is_error"),
            ("image_as_text", "messages[2].content[0].content[1]"),
            ("clamped", "max_tokens"),
            ("ignored_value", "temperature"),
            ("ignored_value", "top_p"),
            ("dropped_reasoning", "messages[1].content[0].thinking"),
        ]
    );
    assert_eq!(prepared.inference.max_tokens, Some(393_216));

    // An image, where the model sees none.
    let image = json!({"type": "image", "source": {"type": "file", "file_id": "f"}});
    let request = json!({"model": V4, "messages": [
        user(json!([text("x"), image])), assistant(json!([image])), system(json!([image]))]});
    let prepared = with(&json!({}), &request).expect("it is accepted");
    assert_eq!(
        warnings(&prepared),
        [
            ("image_as_text", "messages[0].content[1]"),
            ("image_as_text", "messages[1].content[0]"),
            ("image_as_text", "messages[2].content[0]"),
        ]
    );
    // The tools that a choice leaves out, by their places in the request.
    let request = body(json!({
        "tools": [{"type": "web_search_1"}, tool("f"), tool("g"), tool("h")],
        "tool_choice": {"type": "tool", "name": "g"},
    }));
    let prepared = with(&json!({"messages_web_search": "drop"}), &request).expect("it is accepted");
    let dropped = [
        ("dropped_tool", "tools[0]"),
        ("dropped_tool", "tools[1]"),
        ("dropped_tool", "tools[3]"),
    ];
    assert_eq!(warnings(&prepared), dropped);
    // Reasoning that is shown is not dropped.
    let request = json!({"model": V41, "tools": [tool("f")], "messages": [
        user(json!("q")), assistant(json!([{"type": "thinking", "thinking": "ergo"}])), user(json!("z"))]});
    let prepared = with(&json!({}), &request).expect("it is accepted");
    assert_eq!(warnings(&prepared), []);
    assert!(prepared.prompt.text.contains("<think>ergo</think>"));
    // At most 64 of them, and one that counts the rest.
    let results = vec![json!({"type": "document", "source": {}}); 100];
    let prepared = with(
        &json!({}),
        &body(json!({"messages": [user(json!(results))]})),
    );
    let prepared = prepared.expect("it is accepted");
    assert_eq!(prepared.warnings.len(), 65);
    assert_eq!(prepared.warnings[64].code, "more");
}

#[test]
fn unknown_fields_are_refused_when_the_host_says_so() {
    let strict = json!({"reject_unknown_fields": true});
    let known = body(json!({"top_k": 1, "metadata": {}, "context_management": {}}));
    assert!(with(&strict, &known).is_ok());
    let error = with(&strict, &body(json!({"stop": "x"}))).expect_err("that is Chat's");
    assert_eq!(
        (error.stage, error.param.as_str()),
        (Stage::Deserialize, "stop")
    );
}

#[test]
fn the_engine_gets_top_k_when_the_host_asks() {
    let options = json!({"engine_params": true});
    let prepared = with(&options, &body(json!({"top_k": 5}))).expect("it is valid");
    assert_eq!(prepared.inference.engine.top_k, Some(5));
    assert_eq!(warnings(&prepared), []);
    let error = with(&options, &body(json!({"top_k": -1}))).expect_err("it is negative");
    assert_eq!(
        (error.stage, error.param.as_str()),
        (Stage::Deserialize, "top_k")
    );
    // Elsewhere nobody looks at it.
    let prepared = with(&json!({}), &body(json!({"top_k": -1}))).expect("it is ignored");
    assert_eq!(prepared.inference.engine.top_k, None);
}

#[test]
fn an_effort_may_be_a_number_where_the_host_allows_it() {
    let allow = json!({"allow_numeric_effort": true});
    let request = |effort: Value| json!({"model": V41, "messages": [user(json!("q"))], "output_config": {"effort": effort}});
    let prepared = with(&allow, &request(json!(42))).expect("42 is allowed");
    assert!(
        prepared
            .prompt
            .text
            .contains("Reasoning Effort: 42 (range 1-100")
    );
    let error = with(&allow, &request(json!(101))).expect_err("it is too high");
    assert_eq!(
        (error.stage, error.param.as_str()),
        (Stage::Convert, "output_config.effort")
    );
}

#[test]
fn the_official_names_are_opt_in() {
    let request = body(json!({"model": "claude-sonnet-4-5"}));
    assert!(with(&json!({}), &request).is_err());
    let prepared = with(&json!({"alias_preset": "official_api"}), &request).expect("it is known");
    assert_eq!(
        (prepared.model.as_str(), prepared.encoding.name()),
        ("claude-sonnet-4-5", "v4.1")
    );
}

#[test]
fn a_dropped_search_leaves_nothing_behind() {
    let drop = json!({"messages_web_search": "drop"});
    let search = json!({"type": "web_search_20250305", "name": "search"});
    // By the name it was given, or by the usual one; also with a tool of the client beside it.
    for (tools, name) in [
        (json!([search]), "search"),
        (json!([{"type": "web_search_1"}]), "web_search"),
        (json!([search, tool("f")]), "search"),
    ] {
        let fields = json!({"tools": tools, "tool_choice": {"type": "tool", "name": name}, "thinking": null});
        let prepared = with(&drop, &body(fields)).expect("it may do as it likes");
        assert_eq!(prepared.conversation.tool_choice, ToolChoice::Auto);
        assert_eq!(
            prepared.conversation.tools.len(),
            tools.as_array().expect("a list").len() - 1
        );
    }
    // A tool of the client that has the name of a dropped one is meant itself.
    let request = body(
        json!({"tools": [search, tool("search")], "tool_choice": {"type": "tool", "name": "search"}}),
    );
    let prepared = with(&drop, &request).expect("it is valid");
    assert_eq!(prepared.conversation.tool_choice, ToolChoice::Required);
    // Nothing can be forced where nothing is left.
    let request = body(json!({"tools": [search], "tool_choice": {"type": "any"}}));
    let options = json!({"messages_web_search": "drop", "fixes": "all"});
    let prepared = with(&options, &request).expect("it is valid");
    assert_eq!(prepared.conversation.tool_choice, ToolChoice::Auto);
    assert!(!prepared.parsing.starts_in_tool_calls);
    // Without any tool a choice means nothing, whatever it names.
    let request = body(json!({"tool_choice": {"type": "tool", "name": "x"}}));
    assert!(with(&json!({}), &request).is_ok());
}

#[test]
fn any_forces_a_call_when_asked() {
    let request = body(json!({
        "tools": [tool("f"), tool("g")],
        "tool_choice": {"type": "any", "disable_parallel_tool_use": true},
    }));
    let prepared = with(&json!({}), &request).expect("it is valid");
    assert_eq!(prepared.conversation.tool_choice, ToolChoice::Auto);

    let prepared = fixed("any_forces_call", &request);
    assert_eq!(prepared.conversation.tool_choice, ToolChoice::Required);
    assert_eq!(prepared.conversation.tools.len(), 2);
    assert!(prepared.parsing.starts_in_tool_calls);
    assert!(
        prepared.prompt.text.ends_with("<｜DSML｜ calls>\n"),
        "{}",
        prepared.prompt.text
    );
    let constraint = Some(OutputConstraint::ToolCalls { required: true });
    assert_eq!(prepared.inference.output_constraint, constraint);
    // The constraint has no place for the number of calls.
    let told = [("ignored_field", "tool_choice.disable_parallel_tool_use")];
    assert_eq!(warnings(&prepared), told);

    // In thinking mode it stays a wish, unless a choice is allowed there.
    let mut thinks = request;
    thinks["thinking"] = Value::Null;
    let prepared = fixed("any_forces_call", &thinks);
    assert_eq!(prepared.conversation.tool_choice, ToolChoice::Auto);
    let options = json!({"fixes": ["any_forces_call", "thinking_tool_choice"]});
    let prepared = with(&options, &thinks).expect("it is valid");
    assert_eq!(prepared.conversation.tool_choice, ToolChoice::Required);
    assert!(!prepared.parsing.starts_in_tool_calls);
}

#[test]
fn a_tool_may_be_chosen_in_thinking_mode_when_asked() {
    let request = body(json!({
        "tools": [tool("f"), tool("g")], "tool_choice": {"type": "tool", "name": "g"}, "thinking": null,
    }));
    assert!(with(&json!({}), &request).is_err());
    let prepared = fixed("thinking_tool_choice", &request);
    assert_eq!(prepared.conversation.tool_choice, ToolChoice::Required);
    assert_eq!(prepared.conversation.tools[0].name, "g");
    assert!(!prepared.parsing.starts_in_tool_calls);
    assert!(prepared.prompt.text.ends_with("<｜Assistant｜><think>"));
    let constraint = Some(OutputConstraint::ToolCalls { required: true });
    assert_eq!(prepared.inference.output_constraint, constraint);
}

#[test]
fn the_accounting_line_goes_by_one_rule_when_asked() {
    let prompt = |options: &Value, system: Value| {
        let prepared = with(options, &body(json!({ "system": system }))).expect("it is valid");
        match prepared.conversation.messages.first() {
            Some(InputMessage::System { content, .. }) => content.text.clone(),
            other => panic!("{other:?}"),
        }
    };
    let fix = json!({"fixes": ["one_billing_header_rule"]});
    let header = "X-Anthropic-Billing-Header: a=b";
    for (system, usual, mended) in [
        (json!(header), header.to_owned(), ""),
        (
            json!(format!("{header}\n\n Be nice.")),
            format!("{header}\n\n Be nice."),
            "Be nice.",
        ),
        (
            json!(format!("{header} You are.\n")),
            format!("{header} You are.\n"),
            "You are.\n",
        ),
        (
            json!([text(header), text("One.")]),
            "One.".to_owned(),
            "One.",
        ),
        (
            json!([text(&format!("{header}\nZero.")), text("One.")]),
            "One.".to_owned(),
            "Zero.\n\nOne.",
        ),
        (
            json!([text("Zero."), text("x-anthropic-billing-header")]),
            "Zero.\n\nx-anthropic-billing-header".to_owned(),
            "Zero.\n\nx-anthropic-billing-header",
        ),
        (
            json!([text("x-anthropic-billing-heade")]),
            "x-anthropic-billing-heade".to_owned(),
            "x-anthropic-billing-heade",
        ),
        (json!([text(header)]), String::new(), ""),
    ] {
        assert_eq!(prompt(&json!({}), system.clone()), usual, "{system}");
        assert_eq!(prompt(&fix, system.clone()), mended, "{system}");
    }
}

#[test]
fn redacted_thinking_is_dropped_when_newer_inputs_are_taken() {
    let redacted = json!({"type": "redacted_thinking", "data": "zz"});
    let request =
        |message: Value| body(json!({"messages": [user(json!("q")), message, user(json!("z"))]}));
    let own = request(assistant(
        json!([{"type": "thinking", "thinking": "a"}, redacted, text("b")]),
    ));
    assert_eq!(
        with(&json!({}), &own).expect_err("it is unknown").stage,
        Stage::Deserialize
    );
    let prepared = fixed("newer_inputs", &own);
    let InputMessage::Assistant { content, .. } = &prepared.conversation.messages[1] else {
        panic!("{:?}", prepared.conversation.messages);
    };
    assert_eq!(content, "b");
    // On its own it leaves an empty message; elsewhere it has no place.
    let prepared = fixed("newer_inputs", &request(assistant(json!([redacted]))));
    assert_eq!(prepared.conversation.messages.len(), 3);
    let error = with(&json!({"fixes": "all"}), &request(user(json!([redacted]))))
        .expect_err("a user does not think");
    assert_eq!(
        error.message,
        "messages.1.content: thinking blocks may only be in `assistant` messages"
    );
}

#[test]
fn an_empty_schema_is_an_object_when_asked() {
    let request = body(json!({"tools": [{"name": "f", "input_schema": {}}]}));
    assert!(with(&json!({}), &request).is_err());
    let prepared = fixed("empty_schema", &request);
    let parameters = prepared.conversation.tools[0].parameters.as_str();
    assert_eq!(parameters, r#"{"type":"object","properties":{}}"#);
    // None at all is still no schema.
    let request = body(json!({"tools": [{"name": "f"}]}));
    let error = with(&json!({"fixes": "all"}), &request).expect_err("it has no schema");
    assert_eq!(error.param, "tools[0].input_schema");
}

#[test]
fn definitions_inside_a_schema_stay_where_they_are() {
    // Tools of this protocol are never strict, so nothing is dropped, with the fix or without.
    let schema = json!({"type": "object", "properties": {"a": {"$ref": "#/$defs/x"}}, "$defs": {"x": {"type": "null"}}});
    let request = body(json!({"tools": [{"name": "f", "strict": true, "input_schema": schema}]}));
    for options in [json!({}), json!({"fixes": ["keep_defs"]})] {
        let prepared = with(&options, &request).expect("it is valid");
        assert_eq!(
            prepared.conversation.tools[0].parameters.as_str(),
            schema.to_string()
        );
        assert_eq!(prepared.conversation.tools[0].strict, None);
        assert_eq!(warnings(&prepared), []);
    }
}

#[test]
fn a_final_message_of_the_assistant_is_continued_when_the_host_says_so() {
    let prefill = json!({"messages_prefill": true});
    let begun = assistant(json!([{"type": "thinking", "thinking": "ergo"}, text("so {")]));
    let request = |messages: Value, more: Value| {
        let mut request = json!({"model": V41, "messages": messages});
        request
            .as_object_mut()
            .expect("a map")
            .extend(more.as_object().expect("a map").clone());
        request
    };
    let usual = with(
        &json!({}),
        &request(json!([user(json!("q")), begun]), json!({})),
    )
    .expect("it is valid");
    assert!(
        usual
            .prompt
            .text
            .ends_with("so {<｜end▁of▁sentence｜><｜Assistant｜><think>")
    );
    assert_eq!(
        warnings(&usual),
        [("dropped_reasoning", "messages[1].content[0].thinking")]
    );

    let prepared = with(
        &prefill,
        &request(json!([user(json!("q")), begun]), json!({})),
    )
    .expect("it is valid");
    assert!(
        prepared.prompt.text.ends_with("<think>ergo</think>so {"),
        "{}",
        prepared.prompt.text
    );
    assert_eq!(
        prepared.parsing.thinking_initial_stage,
        Some(ThinkingStage::ContentContinuation)
    );
    assert_eq!(warnings(&prepared), []);
    // Reasoning alone goes on as reasoning.
    let thought = assistant(json!([{"type": "thinking", "thinking": "ergo"}]));
    let prepared = with(
        &prefill,
        &request(json!([user(json!("q")), thought]), json!({})),
    )
    .expect("it is valid");
    assert!(
        prepared.prompt.text.ends_with("<think>ergo"),
        "{}",
        prepared.prompt.text
    );
    assert_eq!(
        prepared.parsing.thinking_initial_stage,
        Some(ThinkingStage::ReasoningContinuation)
    );
    // Outside thinking mode, as text.
    let off = json!({"thinking": {"type": "disabled"}});
    let prepared = with(
        &prefill,
        &request(json!([user(json!("q")), assistant(json!("so {"))]), off),
    )
    .expect("it is valid");
    assert!(
        prepared
            .prompt
            .text
            .ends_with("<｜Assistant｜></think>so {")
    );
    assert_eq!(prepared.parsing.thinking_initial_stage, None);
    // Only the last message of the request is continued, also where a message after it leaves no trace.
    for (model, messages) in [
        (V41, json!([assistant(json!("a")), user(json!("q"))])),
        (
            V4,
            json!([user(json!("q")), assistant(json!("a")), system(json!(""))]),
        ),
    ] {
        let mut request = request(messages, json!({}));
        request["model"] = json!(model);
        let prepared = with(&prefill, &request).expect("it is valid");
        let continued = |message: &InputMessage| {
            matches!(message, InputMessage::Assistant { prefix: true, .. })
        };
        assert!(!prepared.conversation.messages.iter().any(continued));
    }
    // Tools do not go together with it: neither declared nor used before.
    let used = json!([
        user(json!("q")),
        assistant(json!([tool_use("a")])),
        user(json!([tool_result("a")])),
        begun
    ]);
    for refused in [
        request(
            json!([user(json!("q")), begun]),
            json!({"tools": [tool("f")]}),
        ),
        request(used, json!({})),
    ] {
        let error = with(&prefill, &refused).expect_err("tools are in use");
        assert_eq!(
            error.message,
            "Function call should not be used with prefix"
        );
        assert_eq!(
            (error.stage, error.param.as_str()),
            (Stage::Convert, "messages")
        );
        assert!(with(&json!({}), &refused).is_ok());
    }
}

#[test]
fn tools_that_messages_introduce_follow_the_choice() {
    let addition = |name: &str| json!({"type": "tool_addition", "tool": {"type": "tool_reference", "name": name}});
    let request = |choice: Value, said: Value| {
        body(json!({
            "tools": [tool("f"), {"name": "g", "defer_loading": true, "input_schema": {"type": "object"}},
                {"name": "h", "defer_loading": true, "input_schema": {"type": "object"}}],
            "tool_choice": choice,
            "messages": [user(json!("q")), system(said)],
        }))
    };
    let introduced = |choice: Value, said: Value| -> Option<(String, Vec<String>)> {
        let prepared = with(&json!({}), &request(choice, said)).expect("it is valid");
        let InputMessage::System { content, tools, .. } = prepared.conversation.messages.get(1)?
        else {
            panic!("{:?}", prepared.conversation.messages);
        };
        let names = tools.iter().flatten().map(|tool| tool.name.clone());
        Some((content.text.clone(), names.collect()))
    };
    let names = |names: &[&str]| {
        names
            .iter()
            .map(|name| (*name).to_owned())
            .collect::<Vec<_>>()
    };
    let all = json!([
        addition("h"),
        text("a"),
        addition("g"),
        text("b"),
        addition("h")
    ]);
    assert_eq!(
        introduced(json!({"type": "auto"}), all.clone()),
        Some(("a\n\nb".to_owned(), names(&["h", "g", "h"])))
    );
    assert_eq!(
        introduced(json!({"type": "tool", "name": "g"}), all.clone()),
        Some(("a\n\nb".to_owned(), names(&["g"])))
    );
    assert_eq!(
        introduced(json!({"type": "none"}), all),
        Some(("a\n\nb".to_owned(), names(&[])))
    );
    assert_eq!(
        introduced(json!({"type": "none"}), json!([addition("g")])),
        None
    );
    assert_eq!(
        introduced(json!({"type": "auto"}), json!([])),
        Some((String::new(), names(&[])))
    );
}

#[test]
fn images_share_the_path_of_the_content_they_stand_in() {
    let image = |name: &str| json!({"type": "image", "source": {"type": "url", "url": format!("https://e.test/{name}")}});
    let request = body(json!({"messages": [
        user(json!([image("a"), image("b")])),
        system(json!([text("x"), image("c"), image("d")])),
        assistant(json!([tool_use("t")])),
        user(json!([{"type": "tool_result", "tool_use_id": "t", "content": [image("e"), text("x"), image("f")]}, image("g")])),
    ]}));
    let prepared = with(&json!({}), &request).expect("it is valid");
    let paths: Vec<&str> = prepared
        .images
        .iter()
        .map(|image| image.source.path.as_str())
        .collect();
    assert_eq!(
        paths,
        [
            "messages.0.content[0]",
            "messages.0.content[1]",
            "messages.1",
            "messages.1",
            "messages.3.content.0.tool_result",
            "messages.3.content.0.tool_result",
            "messages.3.content[1]",
        ]
    );
    // The host may allow less of an address.
    let error = with(&json!({"image_url_bytes": 10}), &request).expect_err("it is too long");
    assert_eq!(
        error.message,
        "messages.0.content[0]: external link length 16 too long, max link length 10. Consider passing file data directly with base64 data url instead."
    );
}

#[test]
fn reasoning_is_joined_and_inputs_keep_their_order() {
    let request = json!({"model": V41, "tools": [tool("f")], "messages": [
        user(json!("q")),
        assistant(json!([
            {"type": "thinking", "thinking": ""}, {"type": "thinking", "thinking": "b"}, text(""), text("c"),
            {"type": "tool_use", "id": "a", "name": "f", "input": {"z": 1e16, "a": "</think>"}},
            {"type": "thinking", "thinking": "d"},
        ])),
        user(json!([tool_result("a")])),
    ]});
    let prepared = with(&json!({}), &request).expect("it is valid");
    let InputMessage::Assistant {
        content,
        reasoning_content,
        tool_calls,
        ..
    } = &prepared.conversation.messages[1]
    else {
        panic!("{:?}", prepared.conversation.messages);
    };
    assert_eq!(content, "c");
    assert_eq!(reasoning_content.as_deref(), Some("\n\nb\n\nd"));
    let calls = tool_calls.as_deref().expect("a call");
    assert_eq!(calls[0].arguments, r#"{"z": 1e+16, "a": "</think>"}"#);
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
    let schema = format!(
        "{}{}",
        r#"{"type":"object","properties":{"a":"#.repeat(60),
        format!("{{}}{}", "}}".repeat(60))
    );
    let request = format!(
        r#"{{"model": "{V41}", "messages": [{{"role": "user", "content": "q"}}], "tools": [{{"name": "f", "input_schema": {schema}}}]}}"#
    );
    prepare(&recipe, &request).expect("a deep schema is a schema");
}

#[test]
fn large_requests_take_linear_time() {
    const MANY: usize = 100_000;
    let recipe = Recipe::open(&RecipeOptions {
        options_json: json!({"messages_web_search": "drop"}).to_string(),
        ..RecipeOptions::default()
    })
    .expect("nothing is needed");
    let ids: Vec<String> = (0..MANY).map(|at| format!("id{at}")).collect();
    let many = |item: Value| Value::Array(vec![item; MANY]);
    let uses: Vec<Value> = ids.iter().map(|id| tool_use(id)).collect();
    let results: Vec<Value> = ids.iter().rev().map(|id| tool_result(id)).collect();
    let mut turns = Vec::new();
    for _ in 0..MANY / 4 {
        turns.extend([
            user(json!("q")),
            assistant(json!([tool_use("a")])),
            user(json!([tool_result("a")])),
            system(json!("s")),
        ]);
    }
    let tools: Vec<Value> = ids.iter().map(|id| tool(id)).collect();
    let names: Vec<Value> = ids
        .iter()
        .map(|id| json!({"type": "tool_addition", "tool": {"type": "tool_reference", "name": id}}))
        .collect();
    let references: Vec<Value> = ids
        .iter()
        .map(|id| json!({"type": "tool_reference", "tool_name": id}))
        .collect();
    let found = json!({"type": "tool_result", "tool_use_id": "a", "content": references});
    let extra: serde_json::Map<String, Value> =
        ids.iter().map(|id| (id.clone(), json!(1))).collect();
    let thoughts = many(json!({"type": "thinking", "thinking": "t"}));
    let cases = [
        ("turns", json!({ "messages": turns })),
        ("users", json!({"messages": many(user(json!("q")))})),
        ("blocks", json!({"messages": [user(many(text("q")))]})),
        (
            "parts",
            json!({"messages": [system(many(text("q")))], "system": many(text("q"))}),
        ),
        ("thoughts", json!({"messages": [assistant(thoughts)]})),
        (
            "calls",
            json!({"messages": [assistant(json!(uses)), user(json!(results))]}),
        ),
        (
            "searches",
            json!({"tools": many(json!({"type": "web_search_1"})), "tool_choice": {"type": "tool", "name": "web_search"}}),
        ),
        (
            "tools",
            json!({"tools": tools, "tool_choice": {"type": "tool", "name": "id7"}}),
        ),
        (
            "additions",
            json!({"tools": tools, "messages": [system(json!(names))]}),
        ),
        (
            "references",
            json!({"tools": tools, "messages": [assistant(json!([tool_use("a")])), user(json!([found]))]}),
        ),
        ("fields", Value::Object(extra)),
        ("unanswered", json!({"messages": [assistant(json!(uses))]})),
    ];
    for (name, fields) in cases {
        for model in [V41, V4] {
            let mut request = body(fields.clone());
            request["model"] = json!(model);
            let request = request.to_string();
            let start = Instant::now();
            let answer = prepare(&recipe, &request);
            let took = start.elapsed();
            assert_eq!(
                answer.is_err(),
                name == "unanswered",
                "{name}: {:?}",
                answer.err()
            );
            // Less than half a second each; what is quadratic takes minutes.
            assert!(
                took < Duration::from_secs(10),
                "{name} took {took:?} on {model}"
            );
        }
    }
}

#[test]
fn one_large_definition_is_not_introduced_without_end() {
    let addition =
        json!({"type": "tool_addition", "tool": {"type": "tool_reference", "name": "f"}});
    let request = |times: usize| {
        let large = json!({"name": "f", "description": "d".repeat(1 << 20), "input_schema": {"type": "object"}});
        body(
            json!({"tools": [large], "messages": [system(Value::Array(vec![addition.clone(); times]))]}),
        )
    };
    let recipe = Recipe::open(&RecipeOptions::default()).expect("nothing is needed");
    prepare(&recipe, &request(3).to_string()).expect("three are fine");
    let error = prepare(&recipe, &request(64).to_string()).expect_err("that is too much");
    assert_eq!(
        (error.stage, error.param.as_str()),
        (Stage::Convert, "messages")
    );
    // Where they are not shown, they do no harm.
    let mut hidden = request(64);
    hidden["tool_choice"] = json!({"type": "none"});
    prepare(&recipe, &hidden.to_string()).expect("none is shown");
}

mod damaged {
    use std::sync::OnceLock;

    use super::recipe_support::requests::{check_whole, damage, odd_values, short_bodies};
    use super::*;
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
