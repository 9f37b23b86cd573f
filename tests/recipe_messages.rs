//! Messages requests, from the body to token ids, against the vectors and beyond them.

mod recipe_support;

#[path = "recipe_messages/options.rs"]
mod options;
#[path = "recipe_messages/refusals.rs"]
mod refusals;
#[path = "recipe_messages/shapes.rs"]
mod shapes;
#[path = "recipe_messages/size.rs"]
mod size;

use fathom::recipe::conversation::InputMessage;
use fathom::recipe::{Error, Prepared, Protocol, Recipe};
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
