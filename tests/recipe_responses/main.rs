//! Responses requests, from the body to token ids, against the vectors and beyond them.

mod limits;
#[path = "../recipe_support/mod.rs"]
mod recipe_support;
mod refusals;

use fathom::recipe::conversation::{InputMessage, ToolChoice};
use fathom::recipe::{
    Error, OutputConstraint, Prepared, Protocol, Recipe, RecipeOptions, Stage, ThinkingStage,
};
use recipe_support::requests::{File, V4, V41, check_all, recipe};
use serde_json::{Value, json};

fn prepare(recipe: &Recipe, body: &Value) -> Result<Prepared, Error> {
    recipe.prepare(Protocol::Responses, body.to_string().as_bytes(), None)
}

/// Prepares a body with these recipe options and the tokenizer of its model.
fn with(options: &Value, body: &Value) -> Result<Prepared, Error> {
    let file = if body["model"] == V4 {
        File::V4
    } else {
        File::V41
    };
    prepare(&recipe(file, options, 0), body)
}

/// Prepares a body that is valid.
fn valid(options: &Value, body: &Value) -> Prepared {
    with(options, body).unwrap_or_else(|error| panic!("{body}: {error:?}"))
}

/// What is wrong with a body: stage, path, text.
fn refusal(options: &Value, body: &Value) -> (Stage, String, String) {
    match with(options, body) {
        Ok(_) => panic!("{body} is accepted"),
        Err(error) => (error.stage, error.param, error.message),
    }
}

fn fix(name: &str) -> Value {
    json!({ "fixes": [name] })
}

/// A V4.1 request without thinking, and more fields.
fn body(more: Value) -> Value {
    let mut body = json!({"model": V41, "input": "hi json", "reasoning": {"effort": "none"}});
    let more = more.as_object().expect("fields").clone();
    body.as_object_mut().expect("a map").extend(more);
    body
}

fn input(items: Value) -> Value {
    body(json!({ "input": items }))
}

fn on_v4(mut body: Value) -> Value {
    body["model"] = V4.into();
    body
}

fn function(name: &str) -> Value {
    json!({"type": "function", "name": name})
}

fn namespace(name: &str, members: &[&str]) -> Value {
    let members: Vec<Value> = members.iter().map(|name| function(name)).collect();
    json!({"type": "namespace", "name": name, "tools": members})
}

fn call(id: &str) -> Value {
    json!({"type": "function_call", "call_id": id, "name": "f", "arguments": "{}"})
}

fn output(id: &str) -> Value {
    json!({"type": "function_call_output", "call_id": id, "output": format!("of {id}")})
}

fn search(id: &str) -> Value {
    json!({"type": "tool_search_call", "call_id": id, "arguments": {}})
}

fn searched(id: &str, tools: Value) -> Value {
    json!({"type": "tool_search_output", "call_id": id, "tools": tools})
}

fn image(url: &str) -> Value {
    json!({"type": "input_image", "image_url": url})
}

/// The decided options, with the conversation inside.
fn decided(prepared: &Prepared) -> Value {
    serde_json::from_str(&prepared.options_json()).expect("an object")
}

/// Each message in short: its role, its content, and the ids of its calls or the names of its tools.
fn summary(prepared: &Prepared) -> Vec<String> {
    let messages = prepared.conversation.messages.iter();
    let summary = messages.map(|message| match message {
        InputMessage::System { content, tools, .. } => {
            let names = tools.iter().flatten().map(|tool| tool.name.as_str());
            format!("system {} {:?}", content.text, names.collect::<Vec<_>>())
        }
        InputMessage::User { content, .. } => format!("user {}", content.text),
        InputMessage::Assistant {
            content,
            tool_calls,
            ..
        } => {
            let ids = tool_calls.iter().flatten().map(|call| call.id.as_str());
            format!("assistant {content} {:?}", ids.collect::<Vec<_>>())
        }
        InputMessage::Tool { content, .. } => format!("tool {}", content.text),
        InputMessage::LatestReminder { content } => format!("reminder {content}"),
    });
    summary.collect()
}

fn tool_names(prepared: &Prepared) -> Vec<&str> {
    let tools = prepared.conversation.tools.iter();
    tools.map(|tool| tool.name.as_str()).collect()
}

fn warnings(prepared: &Prepared) -> Vec<(&str, &str)> {
    let warnings = prepared.warnings.iter();
    warnings
        .map(|warning| (warning.code, warning.param.as_str()))
        .collect()
}

#[test]
fn requests_become_what_the_vectors_say() {
    check_all("responses", 167);
}

#[test]
fn calls_keep_their_order_when_asked() {
    let request = input(json!([
        {"role": "user", "content": "q"}, call("b"), call("c"), call("a"), output("a"), output("c"), output("b"),
    ]));
    let sorted = [
        "user q",
        "assistant  [\"a\", \"b\", \"c\"]",
        "tool of a",
        "tool of b",
        "tool of c",
    ];
    assert_eq!(summary(&valid(&json!({}), &request)), sorted);
    let kept = [
        "user q",
        "assistant  [\"b\", \"c\", \"a\"]",
        "tool of b",
        "tool of c",
        "tool of a",
    ];
    assert_eq!(summary(&valid(&fix("keep_call_order"), &request)), kept);
}

#[test]
fn state_is_refused_when_asked() {
    const TEXT: &str =
        "previous_response_id is not supported: no response store. Send the whole input.";
    let refuse = fix("refuse_state");
    let previous = body(json!({"previous_response_id": "resp_1"}));
    let reference =
        input(json!([{"role": "user", "content": "q"}, {"type": "item_reference", "id": "i"}]));
    for (request, param) in [(previous, "previous_response_id"), (reference, "input[1]")] {
        assert_eq!(
            warnings(&valid(&json!({}), &request)),
            [("ignored_state", param)]
        );
        let expected = (Stage::Convert, param.to_owned(), TEXT.to_owned());
        assert_eq!(refusal(&refuse, &request), expected);
    }
    valid(
        &refuse,
        &body(json!({"previous_response_id": null, "store": true})),
    );
}

#[test]
fn tools_that_cannot_be_shown_are_skipped_when_asked() {
    let request = input(json!([
        search("s"),
        searched(
            "s",
            json!([{"type": "mcp"}, function("f"), {"type": "shell"}])
        ),
    ]));
    let (_, _, message) = refusal(&json!({}), &request);
    assert!(message.starts_with("input[1]: "), "{message}");
    let prepared = valid(&fix("skip_searched_tools"), &request);
    let shown = r#"tool [{"type":"function","name":"f","description":null,"parameters":null,"strict":null}]"#;
    assert_eq!(
        summary(&prepared),
        ["assistant  [\"s\"]", shown, "system  [\"f\"]"]
    );
    assert_eq!(
        warnings(&prepared),
        [
            ("dropped_tool", "input[1].tools[0]"),
            ("dropped_tool", "input[1].tools[2]")
        ]
    );
}

#[test]
fn newer_inputs_are_accepted_when_asked() {
    let newer = fix("newer_inputs");
    let refused = input(json!([
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": [{"type": "output_text", "text": "I"}, {"type": "refusal", "refusal": "won't"}]},
    ]));
    assert_eq!(
        summary(&valid(&newer, &refused)),
        ["user q", "assistant I\n\nwon't []"]
    );
    let by_user =
        input(json!([{"role": "user", "content": [{"type": "refusal", "refusal": "no"}]}]));
    assert_eq!(refusal(&newer, &by_user).1, "input[0].content[0].type");

    let allowed = |mode: &str, tools: Value| {
        body(json!({
            "tools": [function("f"), function("g"), {"type": "custom", "name": "apply_patch"}, namespace("n", &["h"])],
            "tool_choice": {"type": "allowed_tools", "mode": mode, "tools": tools},
        }))
    };
    let some = json!([
        {"type": "function", "name": "n::h"}, {"type": "custom", "name": "apply_patch"}, {"type": "mcp", "server_label": "x"},
    ]);
    let prepared = valid(&newer, &allowed("auto", some.clone()));
    assert_eq!(tool_names(&prepared), ["apply_patch", "n::h"]);
    assert_eq!(prepared.conversation.tool_choice, ToolChoice::Auto);
    assert_eq!(
        warnings(&prepared),
        [("dropped_tool", "tools[0]"), ("dropped_tool", "tools[1]")]
    );
    let prepared = valid(&newer, &allowed("required", some));
    assert_eq!(prepared.conversation.tool_choice, ToolChoice::Required);
    // Without a tool there is nothing to require.
    let prepared = valid(&newer, &allowed("required", json!([{"type": "mcp"}])));
    assert_eq!(tool_names(&prepared), [""; 0]);
    assert!(!prepared.parsing.starts_in_tool_calls && !prepared.parsing.parse_tool_calls);
    let unknown = allowed("auto", json!([function("x")]));
    assert_eq!(refusal(&newer, &unknown).1, "tool_choice");
    for (choice, param) in [
        (
            json!({"type": "allowed_tools", "tools": []}),
            "tool_choice.mode",
        ),
        (
            json!({"type": "allowed_tools", "mode": "none", "tools": []}),
            "tool_choice.mode",
        ),
        (
            json!({"type": "allowed_tools", "mode": "auto", "tools": ["f"]}),
            "tool_choice.tools[0]",
        ),
    ] {
        let (stage, found, _) = refusal(&newer, &body(json!({"tool_choice": choice})));
        assert_eq!((stage, found.as_str()), (Stage::Deserialize, param));
    }
}

#[test]
fn a_choice_can_be_required_while_thinking_when_asked() {
    let request =
        body(json!({"tools": [function("f")], "tool_choice": "required", "reasoning": {}}));
    let prepared = valid(&fix("thinking_tool_choice"), &request);
    assert!(!prepared.parsing.starts_in_tool_calls);
    assert!(prepared.prompt.text.ends_with("<｜Assistant｜><think>"));
    assert_eq!(
        prepared.inference.output_constraint,
        Some(OutputConstraint::ToolCalls { required: true })
    );
}

#[test]
fn schemas_are_kept_or_completed_when_asked() {
    let tool = |parameters: Value, strict: bool| json!({"tools": [{"type": "function", "name": "f", "parameters": parameters, "strict": strict}]});
    let empty = body(tool(json!({}), false));
    assert_eq!(refusal(&json!({}), &empty).1, "tools[0].parameters");
    let prepared = valid(&fix("empty_schema"), &empty);
    assert_eq!(
        prepared.conversation.tools[0].parameters.as_str(),
        r#"{"type":"object","properties":{}}"#
    );

    let schema = json!({
        "type": "object", "properties": {"a": {"$ref": "#/$defs/b"}}, "$defs": {"b": {"type": "string"}},
    });
    let format = json!({"text": {"format": {"type": "json_schema", "name": "n", "strict": true, "schema": schema}}});
    for (fields, param) in [
        (tool(schema, true), "tools[0].parameters/$defs"),
        (format, "text.format.schema/$defs"),
    ] {
        let dropped = valid(&json!({}), &body(fields.clone()));
        assert_eq!(warnings(&dropped), [("dropped_schema_keyword", param)]);
        let kept = valid(&fix("keep_defs"), &body(fields));
        assert_eq!(warnings(&kept), []);
        let constraint = kept.inference.output_constraint.as_ref().expect("strict");
        assert!(constraint.text(&kept.conversation).contains("\"$defs\""));
    }
}

#[test]
fn what_is_not_honoured_is_told() {
    let request = body(json!({
        "store": true, "previous_response_id": "r", "conversation": "c", "stop": ["x"], "thinking": {},
        "parallel_tool_calls": false, "metadata": null, "surprise": 1, "truncation": "auto",
        "reasoning": {"summary": "auto", "generate_summary": "concise"}, "text": {"verbosity": "low"},
        "temperature": 0.5, "top_p": 0.5,
        "tools": [
            {"type": "web_search"}, {"type": "mcp"}, {"type": "tool_search", "execution": "server"},
        ],
        "tool_choice": {"type": "web_search"},
        "input": [
            {"role": "user", "content": [{"type": "input_file", "file_id": "f"}]},
            {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "because"}]},
            {"type": "reasoning", "encrypted_content": "zzz", "content": []},
            {"type": "web_search_call"}, {"type": "compaction"}, {"type": "item_reference", "id": "i"},
        ],
    }));
    let prepared = valid(&json!({}), &request);
    assert_eq!(
        warnings(&prepared),
        [
            ("ignored_field", "reasoning.summary"),
            ("ignored_field", "reasoning.generate_summary"),
            ("ignored_state", "store"),
            ("ignored_state", "previous_response_id"),
            ("ignored_state", "conversation"),
            ("ignored_field", "stop"),
            ("ignored_field", "thinking"),
            ("ignored_field", "parallel_tool_calls"),
            ("unknown_field", "surprise"),
            ("ignored_field", "truncation"),
            ("ignored_field", "text.verbosity"),
            ("dropped_tool", "tools[0]"),
            ("dropped_tool", "tools[1]"),
            ("dropped_tool", "tools[2]"),
            ("image_as_text", "input[0].content[0]"),
            ("ignored_field", "input[2].encrypted_content"),
            ("dropped_item", "input[3]"),
            ("dropped_item", "input[4]"),
            ("ignored_state", "input[5]"),
            ("dropped_tool", "tool_choice"),
            ("ignored_value", "temperature"),
            ("ignored_value", "top_p"),
            ("dropped_reasoning", "input[1]"),
        ]
    );
    assert_eq!(decided(&prepared)["warnings"][0]["code"], "ignored_field");

    let on_v4 = on_v4(input(json!([
        {"role": "user", "content": [{"type": "input_text", "text": "see"}, image("ftp://x")]},
        search("s"), searched("s", json!([{"type": "mcp"}])),
    ])));
    assert_eq!(
        warnings(&valid(&json!({}), &on_v4)),
        [
            ("image_as_text", "input[0].content[1]"),
            ("dropped_item", "input[1]"),
            ("dropped_item", "input[2]"),
        ]
    );
    // Reasoning beside tools is shown, and a store that is not wanted is not missed.
    let shown = body(json!({
        "reasoning": {}, "tools": [function("f")], "store": false,
        "input": [{"type": "reasoning", "content": [{"text": "because"}]}],
    }));
    assert_eq!(warnings(&valid(&json!({}), &shown)), []);

    let strict = json!({"reject_unknown_fields": true});
    let (stage, param, _) = refusal(&strict, &request);
    assert_eq!((stage, param.as_str()), (Stage::Deserialize, "surprise"));
    valid(
        &strict,
        &body(json!({"previous_response_id": "r", "include": []})),
    );
}

#[test]
fn a_response_can_repeat_its_request() {
    let request = body(json!({
        "instructions": "Be brief.", "max_output_tokens": 77, "temperature": 0.5, "top_p": 0.9, "user": "u",
        "top_logprobs": 2, "reasoning": {"effort": "minimal", "generate_summary": "auto"},
        "text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}}, "verbosity": "low"},
        "tools": [
            {"type": "function", "name": "f", "extra": 1}, {"type": "mcp"}, {"type": "custom", "name": "apply_patch"},
            {"type": "namespace", "name": "n", "description": "N", "tools": [function("g"), function("h")]},
            {"type": "tool_search", "execution": "client", "parameters": {"type": "object"}},
            {"type": "web_search_2025_08_26", "user_location": {"type": "approximate", "city": "Oslo"}},
        ],
        "tool_choice": {"name": "f", "extra": 1, "type": "function"},
    }));
    let prepared = valid(&fix("thinking_tool_choice"), &request);
    let response = &prepared.response;
    assert_eq!(response.custom_tool_names, ["apply_patch"]);
    assert!(response.client_tool_search);
    assert_eq!(
        decided(&prepared)["namespace_tool_map"],
        json!({"n::g": ["n", "g"], "n::h": ["n", "h"]})
    );
    let echo = response
        .echo
        .as_ref()
        .expect("Responses repeats its request");
    assert_eq!(echo.instructions.as_deref(), Some("Be brief."));
    assert_eq!(
        (
            echo.max_output_tokens,
            echo.temperature,
            echo.top_p,
            echo.top_logprobs
        ),
        (Some(77), 0.5, 0.9, 2)
    );
    assert_eq!(
        echo.reasoning.to_value(),
        json!({"effort": "minimal", "summary": "auto"})
    );
    assert_eq!(
        echo.text.to_value(),
        json!({
            "format": {"type": "json_schema", "name": "n", "description": null, "schema": {"type": "object"}, "strict": null},
            "verbosity": "low",
        })
    );
    assert_eq!(
        echo.text.as_str(),
        r#"{"format":{"type":"json_schema","name":"n","schema":{"type":"object"},"description":null,"strict":null},"verbosity":"low"}"#
    );
    assert_eq!(
        echo.tool_choice.as_str(),
        r#"{"type":"function","name":"f"}"#
    );
    let plain = |name| json!({"type": "function", "name": name, "description": null, "parameters": null, "strict": null});
    assert_eq!(
        echo.tools.to_value(),
        json!([
            plain("f"),
            {"type": "custom", "name": "apply_patch"},
            {"type": "namespace", "name": "n", "description": "N", "tools": [plain("g"), plain("h")]},
            {"type": "tool_search", "execution": "client", "description": null, "parameters": {"type": "object"}},
            {
                "type": "web_search_2025_08_26", "search_context_size": null,
                "user_location": {"city": "Oslo", "country": null, "region": null, "timezone": null},
            },
        ])
    );

    let prepared = valid(&json!({}), &json!({"model": V4, "input": "x"}));
    let response = &prepared.response;
    assert!(response.custom_tool_names.is_empty() && !response.client_tool_search);
    let echo = response
        .echo
        .as_ref()
        .expect("Responses repeats its request");
    assert_eq!(
        echo.reasoning.to_value(),
        json!({"effort": null, "summary": null})
    );
    assert_eq!(
        echo.text.to_value(),
        json!({"format": {"type": "text"}, "verbosity": null})
    );
    assert_eq!(echo.tool_choice.to_value(), "auto");
    assert_eq!(echo.tools.to_value(), json!([]));
    assert_eq!(
        prepared.parsing.thinking_initial_stage,
        Some(ThinkingStage::ReasoningStart)
    );
}

#[test]
fn tools_that_a_search_found_are_introduced_after_it() {
    let request = |choice: Value| {
        body(json!({
            "tools": [{"type": "tool_search", "execution": "client"}, namespace("a", &["b"])],
            "tool_choice": choice,
            "input": [
                search("s2"), search("s1"),
                searched("s2", json!([function("z")])), searched("s1", json!([namespace("a", &["b", "c"])])),
                {"role": "user", "content": "go"},
                {"type": "function_call", "call_id": "x", "name": "c", "namespace": "a", "arguments": "{}"}, output("x"),
                {"type": "function_call", "call_id": "y", "name": "b", "namespace": "a", "arguments": "{}"}, output("y"),
            ],
        }))
    };
    let prepared = valid(&json!({}), &request(json!("auto")));
    // Declared ones come first, then those found, in the order of the items.
    assert_eq!(
        tool_names(&prepared),
        ["tool_search", "a::b", "z", "a::b_1", "a::c"]
    );
    let deferred: Vec<bool> = prepared
        .conversation
        .tools
        .iter()
        .map(|tool| tool.defer_loading)
        .collect();
    assert_eq!(deferred, [false, false, true, true, true]);
    let messages = summary(&prepared);
    assert_eq!(messages[0], "assistant  [\"s1\", \"s2\"]");
    assert!(messages[1].contains("\"namespace\":{\"name\":\"a\",\"description\":\"\"}"));
    assert_eq!(messages[3], "system  [\"a::b_1\", \"a::c\"]");
    assert_eq!(messages[4], "system  [\"z\"]");
    let called = |at: usize| {
        decided(&prepared)["conversation"]["messages"][at]["tool_calls"][0]["name"].clone()
    };
    assert_eq!((called(6), called(8)), (json!("a::c"), json!("a::b")));
    assert_eq!(
        decided(&prepared)["namespace_tool_map"],
        json!({"a::b": ["a", "b"], "a::b_1": ["a", "b"], "a::c": ["a", "c"]})
    );

    // A choice that leaves tools out leaves them out here too.
    let prepared = valid(
        &json!({}),
        &request(json!({"type": "function", "name": "a::c"})),
    );
    assert_eq!(summary(&prepared)[3..5], ["system  [\"a::c\"]", "user go"]);
    let none = valid(&json!({}), &request(json!("none")));
    assert_eq!(summary(&none)[3], "user go");
}

#[test]
fn names_in_namespaces_keep_clear_of_all_others() {
    let request = |tools: Value| body(json!({ "tools": tools }));
    let tools = json!([namespace("a", &["b"]), function("a__b"), function("a__b_1")]);
    let prepared = valid(&json!({}), &on_v4(request(tools.clone())));
    assert_eq!(tool_names(&prepared), ["a__b_2", "a__b", "a__b_1"]);
    assert_eq!(
        tool_names(&valid(&json!({}), &request(tools))),
        ["a::b", "a__b", "a__b_1"]
    );

    let patch = json!([namespace("apply_", &["patch"]), {"type": "custom", "name": "apply_patch"}]);
    let prepared = valid(&json!({}), &on_v4(request(patch)));
    assert_eq!(tool_names(&prepared), ["apply_patch_1", "apply_patch"]);

    // V4 shows no tools that a search found, but their names are spoken for.
    let mut found = request(json!([namespace("a", &["b"])]));
    found["input"] = json!([search("s"), searched("s", json!([function("a__b")])), {"role": "user", "content": "q"}]);
    assert_eq!(tool_names(&valid(&json!({}), &on_v4(found))), ["a__b_1"]);

    // An old call of a function that is gone does not take the name of one that is there.
    let old = json!({"type": "function_call", "call_id": "x", "name": "c", "namespace": "a__b", "arguments": "{}"});
    let mut gone = request(json!([function("a__b__c")]));
    gone["input"] = json!([old, output("x")]);
    let prepared = valid(&json!({}), &on_v4(gone));
    let name = &decided(&prepared)["conversation"]["messages"][0]["tool_calls"][0]["name"];
    assert_eq!(name, "a__b__c_1");
}

#[test]
fn a_notice_about_images_stays_with_its_output() {
    const NOTICE: &str = "<image_resize_notice>2x</image_resize_notice>";
    let notice = json!({"role": "developer", "content": [{"type": "input_text", "text": NOTICE}]});
    let shown = format!("system {NOTICE} []");
    let custom = json!({"type": "custom_tool_call", "call_id": "a", "name": "p", "input": "\"x\""});
    let custom_output =
        json!({"type": "custom_tool_call_output", "call_id": "a", "output": "of a"});
    let request = input(json!([
        call("b"),
        custom,
        output("b"),
        custom_output,
        notice
    ]));
    assert_eq!(
        summary(&valid(&json!({}), &request)),
        [
            "assistant  [\"a\", \"b\"]",
            "tool of a",
            &shown,
            "tool of b"
        ]
    );
    let free = input(json!([{"type": "function_call_output", "output": "free"}, notice, notice]));
    assert_eq!(
        summary(&valid(&json!({}), &free)),
        ["tool free", &shown, &shown]
    );
    // Anything else is a message, which may not come between calls and outputs.
    for blocks in [
        json!([{"type": "input_text", "text": "<image_resize_notice>"}]),
        json!([{"type": "output_text", "text": NOTICE}]),
        json!([{"type": "input_text", "text": NOTICE}, {"type": "input_text", "text": ""}]),
        json!([]),
    ] {
        let message = json!({"role": "developer", "content": blocks});
        let request = input(json!([
            call("a"),
            call("b"),
            output("a"),
            message,
            output("b")
        ]));
        let (_, param, text) = refusal(&json!({}), &request);
        assert_eq!(text, "No tool output found for tool call b.");
        assert_eq!(param, "input[1].call_id");
    }
}

#[test]
fn the_effort_may_be_a_number_and_the_web_search_an_error() {
    let request = body(json!({"reasoning": {"effort": 42}}));
    let prepared = valid(&json!({"allow_numeric_effort": true}), &request);
    assert!(
        prepared
            .prompt
            .text
            .contains("Reasoning Effort: 42 (range 1-100")
    );
    let echo = prepared
        .response
        .echo
        .expect("Responses repeats its request");
    assert_eq!(echo.reasoning.to_value()["effort"], 42);
    let (stage, param, _) = refusal(
        &json!({"allow_numeric_effort": true}),
        &body(json!({"reasoning": {"effort": 0}})),
    );
    assert_eq!(
        (stage, param.as_str()),
        (Stage::Convert, "reasoning.effort")
    );

    let reject = json!({"responses_web_search": "reject"});
    let found = json!([search("s"), searched("s", json!([{"type": "web_search"}]))]);
    for (fields, param) in [
        (
            json!({"tools": [function("f"), {"type": "web_search"}]}),
            "tools[1]",
        ),
        (
            json!({"tools": [function("f")], "tool_choice": {"type": "web_search"}}),
            "tool_choice",
        ),
        (json!({ "input": found }), "input[1].tools[0]"),
    ] {
        let expected = (
            Stage::Convert,
            param.to_owned(),
            "Server tools are not supported".to_owned(),
        );
        assert_eq!(refusal(&reject, &body(fields)), expected);
    }
}

#[test]
fn functions_that_a_search_found_in_a_namespace_are_mapped_back_too() {
    let namespace = json!({"type": "namespace", "name": "n", "tools": [function("g")]});
    let prepared = valid(
        &json!({}),
        &input(json!([
            {"type": "tool_search_call", "call_id": "s", "arguments": {}},
            {"type": "tool_search_output", "call_id": "s", "tools": [namespace]},
        ])),
    );
    assert_eq!(
        decided(&prepared)["namespace_tool_map"],
        json!({"n::g": ["n", "g"]})
    );
}

#[test]
fn a_client_that_searches_tools_does_so_for_every_model() {
    let search = json!({"tools": [{"type": "tool_search", "execution": "client"}]});
    let prepared = valid(&json!({}), &on_v4(body(search)));
    assert!(prepared.response.client_tool_search);
    assert!(prepared.conversation.tools.is_empty());
}

#[test]
fn an_empty_namespace_of_an_old_call_is_one() {
    let request = input(json!([
        {"type": "function_call", "call_id": "c", "name": "f", "namespace": "", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "x"},
    ]));
    for (request, name) in [(request.clone(), "::f"), (on_v4(request), "__f")] {
        let messages = decided(&valid(&json!({}), &request))["conversation"]["messages"].clone();
        assert_eq!(messages[0]["tool_calls"][0]["name"], name);
    }
}
