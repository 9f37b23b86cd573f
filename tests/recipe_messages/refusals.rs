//! Values that are not acceptable: the official texts, their places, and the order of the checks.

use fathom::recipe::Stage;
use serde_json::{Value, json};

use super::recipe_support::requests::V41;
use super::{assistant, body, system, text, tool, tool_result, tool_use, user, with};

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
            says(assistant(json!([text("x"), image(json!({"type": "url", "url": "http://x"}))]))),
            "messages[1].content[1]",
            "Image in assistant message is unsupported".to_owned(),
        ),
        (
            // What is wrong with the image itself is told first.
            says(assistant(json!([text("x"), ftp()]))),
            "messages[1].content[1]",
            "messages.1.content[1]: invalid url: \"ftp://\\\"x\"".to_owned(),
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
