//! What is refused, with the stage, the place and the text of the first fault.

use super::*;

#[test]
fn a_wrong_shape_names_its_place() {
    let tool = |tool: Value| json!({"tools": [tool]});
    let item = |item: Value| json!({"input": [item]});
    let block = |block: Value| json!({"input": [{"role": "user", "content": [block]}]});
    let format = |format: Value| json!({"text": {"format": format}});
    for (fields, param) in [
        (json!({"input": 3}), "input"),
        (json!({"input": {}}), "input"),
        (json!({"instructions": []}), "instructions"),
        (json!({"max_output_tokens": 7.0}), "max_output_tokens"),
        (
            json!({"max_output_tokens": 1u64 << 32}),
            "max_output_tokens",
        ),
        (json!({"temperature": "1"}), "temperature"),
        (json!({"top_p": []}), "top_p"),
        (json!({"top_logprobs": 256}), "top_logprobs"),
        (json!({"stream": "yes"}), "stream"),
        (json!({"user": 3}), "user"),
        (json!({"reasoning": ["none"]}), "reasoning"),
        (json!({"reasoning": {"effort": 3}}), "reasoning.effort"),
        (json!({"reasoning": {"effort": "None"}}), "reasoning.effort"),
        (
            json!({"reasoning": {"summary": "long"}}),
            "reasoning.summary",
        ),
        (
            json!({"reasoning": {"generate_summary": 1}}),
            "reasoning.generate_summary",
        ),
        (json!({"text": []}), "text"),
        (json!({"text": {"verbosity": "loud"}}), "text.verbosity"),
        (format(json!("json_object")), "text.format"),
        (format(json!({})), "text.format.type"),
        (format(json!({"type": "regex"})), "text.format.type"),
        (
            format(json!({"type": "json_schema", "schema": {}})),
            "text.format.name",
        ),
        (
            format(json!({"type": "json_schema", "name": "n"})),
            "text.format.schema",
        ),
        (
            format(json!({"type": "json_schema", "name": "n", "schema": {}, "strict": 1})),
            "text.format.strict",
        ),
        (json!({"tools": {}}), "tools"),
        (tool(json!("function")), "tools[0]"),
        (tool(json!(["function", "f"])), "tools[0]"),
        (tool(json!({"name": "f"})), "tools[0].type"),
        (tool(json!({"type": null})), "tools[0].type"),
        (
            tool(json!({"type": "function", "function": {"name": "f"}})),
            "tools[0].name",
        ),
        (
            tool(json!({"type": "function", "name": "f", "strict": "no"})),
            "tools[0].strict",
        ),
        (
            tool(json!({"type": "function", "name": "f", "description": {}})),
            "tools[0].description",
        ),
        (tool(json!({"type": "custom"})), "tools[0].name"),
        (
            tool(json!({"type": "web_search", "search_context_size": "Low"})),
            "tools[0].search_context_size",
        ),
        (
            tool(json!({"type": "tool_search", "execution": "both"})),
            "tools[0].execution",
        ),
        (
            tool(json!({"type": "web_search", "user_location": "Oslo"})),
            "tools[0].user_location",
        ),
        (
            tool(json!({"type": "web_search", "user_location": {"city": 1}})),
            "tools[0].user_location.city",
        ),
        (
            tool(json!({"type": "web_search", "search_context_size": 1})),
            "tools[0].search_context_size",
        ),
        (
            tool(json!({"type": "namespace", "name": "a"})),
            "tools[0].tools",
        ),
        (
            tool(json!({"type": "namespace", "name": "a", "tools": {}})),
            "tools[0].tools",
        ),
        (
            tool(json!({"type": "namespace", "name": "a", "tools": [{"type": "mcp"}]})),
            "tools[0].tools[0].type",
        ),
        (
            tool(json!({"type": "namespace", "name": "a", "tools": [namespace("b", &["c"])]})),
            "tools[0].tools[0].type",
        ),
        (
            tool(json!({"type": "namespace", "name": "a", "tools": [{"type": "function"}]})),
            "tools[0].tools[0].name",
        ),
        (json!({"tool_choice": "any"}), "tool_choice"),
        (json!({"tool_choice": ["function", "f"]}), "tool_choice"),
        (json!({"tool_choice": {"name": "f"}}), "tool_choice.type"),
        (
            json!({"tool_choice": {"type": "function"}}),
            "tool_choice.name",
        ),
        (json!({"tool_choice": {"type": "mcp"}}), "tool_choice.type"),
        (
            json!({"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": []}}),
            "tool_choice.type",
        ),
        (item(json!("hi")), "input[0]"),
        (item(json!(["user", "hi"])), "input[0]"),
        (item(json!({"content": "hi"})), "input[0]"),
        (item(json!({"type": null, "role": "user"})), "input[0].type"),
        (item(json!({"type": 1})), "input[0].type"),
        (
            item(json!({"role": "tool", "content": ""})),
            "input[0].role",
        ),
        (item(json!({"role": "user"})), "input[0].content"),
        (
            item(json!({"role": "user", "content": 1})),
            "input[0].content",
        ),
        (block(json!("hi")), "input[0].content[0]"),
        (
            block(json!({"type": "refusal", "refusal": "no"})),
            "input[0].content[0].type",
        ),
        (
            block(json!({"type": "input_text"})),
            "input[0].content[0].text",
        ),
        (
            block(json!({"type": "output_text", "text": 1})),
            "input[0].content[0].text",
        ),
        (
            block(json!({"type": "input_image", "detail": "tiny"})),
            "input[0].content[0].detail",
        ),
        (
            item(json!({"type": "reasoning", "content": "because"})),
            "input[0].content",
        ),
        (
            item(json!({"type": "reasoning", "content": [{"type": "reasoning_text"}]})),
            "input[0].content[0].text",
        ),
        (
            item(json!({"type": "reasoning", "encrypted_content": {}})),
            "input[0].encrypted_content",
        ),
        (
            item(json!({"type": "function_call", "call_id": "a", "name": "f", "arguments": {}})),
            "input[0].arguments",
        ),
        (
            item(json!({"type": "function_call", "call_id": null, "name": "f", "arguments": ""})),
            "input[0].call_id",
        ),
        (
            item(
                json!({"type": "function_call", "call_id": "a", "name": "f", "arguments": "", "namespace": 1}),
            ),
            "input[0].namespace",
        ),
        (
            item(json!({"type": "function_call_output", "call_id": "a"})),
            "input[0].output",
        ),
        (
            item(json!({"type": "function_call_output", "output": [{"type": "output_text"}]})),
            "input[0].output[0].type",
        ),
        (
            item(json!({"type": "custom_tool_call", "call_id": "a", "name": "f"})),
            "input[0].input",
        ),
        (
            item(json!({"type": "custom_tool_call_output", "output": ""})),
            "input[0].call_id",
        ),
        (
            item(json!({"type": "tool_search_call", "call_id": "a", "arguments": "{}"})),
            "input[0].arguments",
        ),
        (
            item(
                json!({"type": "tool_search_call", "call_id": "a", "arguments": {}, "execution": 1}),
            ),
            "input[0].execution",
        ),
        (
            item(json!({"type": "tool_search_output", "call_id": "a", "tools": [{}]})),
            "input[0].tools[0].type",
        ),
    ] {
        for request in [body(fields.clone()), on_v4(body(fields.clone()))] {
            let (stage, found, message) = refusal(&json!({}), &request);
            assert_eq!(
                (stage, found.as_str()),
                (Stage::Deserialize, param),
                "{fields}: {message}"
            );
        }
    }
    let (stage, param, _) = refusal(&json!({}), &body(json!({"model": null})));
    assert_eq!((stage, param.as_str()), (Stage::Deserialize, "model"));
    for raw in [
        "[]",
        "null",
        "\"x\"",
        "",
        "{\"model\"",
        "[\"DeepSeek-V4-Pro\"]",
    ] {
        let recipe = recipe(File::V41, &json!({}), 0);
        let error = recipe
            .prepare(Protocol::Responses, raw.as_bytes(), None)
            .expect_err("it is no request");
        assert_eq!(error.stage, Stage::Deserialize, "{raw}");
    }
}

#[test]
fn a_value_that_is_not_acceptable_names_its_place() {
    let content = |blocks: Value| json!({"input": [{"role": "user", "content": blocks}]});
    let long = format!("http://{}", "a".repeat(8192));
    let namespaced = |member: Value| json!({"tools": [{"type": "namespace", "name": "a", "tools": [function("b"), member]}]});
    for (fields, param) in [
        (json!({"input": null}), "input"),
        (json!({"input": []}), "input"),
        (json!({"max_output_tokens": 0}), "max_output_tokens"),
        (json!({"temperature": 3}), "temperature"),
        (json!({"top_p": 0}), "top_p"),
        (json!({"top_logprobs": 21}), "top_logprobs"),
        (json!({"tools": [function("")]}), "tools[0].name"),
        (
            json!({"tools": [function("f"), function("f")]}),
            "tools[1].name",
        ),
        (
            json!({"tools": [{"type": "function", "name": "f", "parameters": {"type": "x"}}]}),
            "tools[0].parameters",
        ),
        (
            json!({"tools": [{"type": "custom", "name": "sh"}]}),
            "tools[0].name",
        ),
        (json!({"tools": [namespace("a b", &[])]}), "tools[0].name"),
        (namespaced(function("b c")), "tools[0].tools[1].name"),
        (namespaced(function("b")), "tools[0].tools[1].name"),
        (
            namespaced(json!({"type": "custom", "name": "apply_patch"})),
            "tools[0].tools[1]",
        ),
        (
            namespaced(json!({"type": "function", "name": "c", "parameters": {}})),
            "tools[0].tools[1].parameters",
        ),
        (
            json!({"tools": [function("f")], "tool_choice": {"type": "function", "name": "g"}}),
            "tool_choice",
        ),
        (
            json!({"tools": [function("f")], "tool_choice": "required", "reasoning": {}}),
            "tool_choice",
        ),
        (
            json!({"input": "x", "text": {"format": {"type": "json_object"}}}),
            "text.format",
        ),
        (
            json!({"text": {"format": {"type": "json_schema", "name": "n", "schema": 3}}}),
            "text.format.schema",
        ),
        (
            json!({"text": {"format": {"type": "json_object"}}, "tools": [{"type": "function", "name": "f", "strict": true}]}),
            "text.format",
        ),
        (
            json!({"tools": [function("g"), {"type": "function", "name": "f", "strict": true}]}),
            "tools",
        ),
        (
            content(json!([{"type": "input_image"}])),
            "input[0].content[0]",
        ),
        (
            content(
                json!([{"type": "input_text", "text": ""}, {"type": "input_image", "file_id": "f"}]),
            ),
            "input[0].content[1]",
        ),
        (content(json!([image(&long)])), "input[0].content[0]"),
        (content(json!([image("ftp://x")])), "input[0].content"),
        (
            json!({"input": [{"role": "assistant", "content": [image("http://x")]}]}),
            "input[0].content",
        ),
        (
            json!({"input": [{"type": "function_call_output", "output": [image("data:,")]}]}),
            "input[0].output",
        ),
        (json!({"input": [call("")]}), "input[0].call_id"),
        (json!({"input": [call("a"), call("a")]}), "input[1].call_id"),
        (
            json!({"input": [call("a"), output("a"), call("a")]}),
            "input[2].call_id",
        ),
        (json!({"input": [output("a")]}), "input[0].call_id"),
        (
            json!({"input": [call("a"), output("")]}),
            "input[1].call_id",
        ),
        (
            json!({"input": [call("a"), output("a"), output("a")]}),
            "input[2].call_id",
        ),
        (
            json!({"input": [call("a"), call("b"), output("a")]}),
            "input[1].call_id",
        ),
        (
            json!({"input": [call("a"), {"type": "reasoning", "content": []}, output("a")]}),
            "input[0].call_id",
        ),
        (
            json!({"input": [call("a"), {"type": "function_call_output", "output": ""}, output("a")]}),
            "input[0].call_id",
        ),
        (
            json!({"input": [search("s"), searched("s", json!([{"type": "mcp"}]))]}),
            "input[1].tools[0]",
        ),
        (
            json!({"input": [search("s"), searched("s", json!([function("f"), namespace("n", &["a b"])]))]}),
            "input[1].tools[1].tools[0].name",
        ),
        (
            json!({"tools": [function("f")], "input": [search("s"), searched("s", json!([function("f")]))]}),
            "input[1].tools[0].name",
        ),
    ] {
        let (stage, found, message) = refusal(&json!({}), &body(fields.clone()));
        assert_eq!(
            (stage, found.as_str()),
            (Stage::Convert, param),
            "{fields}: {message}"
        );
    }
    let (stage, param, _) = refusal(&json!({}), &body(json!({"model": "other"})));
    assert_eq!((stage, param.as_str()), (Stage::Model, "model"));
    let reject = json!({"reasoning_content_behavior": "reject"});
    let history =
        json!({"reasoning": {}, "tools": [function("f")], "input": [call("a"), output("a")]});
    let (stage, param, _) = refusal(&reject, &body(history));
    assert_eq!((stage, param.as_str()), (Stage::Convert, "input"));
}

#[test]
fn of_several_faults_the_first_in_the_official_order_is_told() {
    let mut request = body(json!({
        "tools": [{"type": "custom", "name": "sh"}],
        "input": [output("a")],
        "tool_choice": {"type": "function", "name": "g"},
        "text": {"format": {"type": "json_schema", "name": "n", "schema": 3}},
        "temperature": 3,
    }));
    let mut seen = Vec::new();
    for (field, value) in [
        ("tools", json!([function("f")])),
        ("input", json!("hi")),
        ("tool_choice", json!("auto")),
        ("text", json!({})),
    ] {
        seen.push(refusal(&json!({}), &request).1);
        request[field] = value;
    }
    seen.push(refusal(&json!({}), &request).1);
    assert_eq!(
        seen,
        [
            "tools[0].name",
            "input[0].call_id",
            "tool_choice",
            "text.format.schema",
            "temperature"
        ]
    );
}

#[test]
fn an_image_of_an_assistant_is_refused_before_its_data_is_looked_into() {
    let image = json!([{"type": "input_image", "image_url": "data:text/plain,x"}]);
    let request = input(json!([{"role": "assistant", "content": image}]));
    let (_, _, message) = refusal(&json!({}), &request);
    assert_eq!(
        message,
        "input[0]: Image in assistant message is unsupported"
    );
}

#[test]
fn an_output_is_read_before_its_call_is_looked_for() {
    let image = json!([{"type": "input_image", "image_url": "data:text/plain,x"}]);
    for id in [json!("nobody"), json!(""), Value::Null] {
        let output = json!({"type": "function_call_output", "call_id": id, "output": image});
        let (_, _, message) = refusal(&json!({}), &input(json!([output])));
        assert_eq!(message, "input[0]: Unsupported image_url format");
    }
}

#[test]
fn a_schema_that_is_null_is_there_and_no_schema() {
    let format = json!({"type": "json_schema", "name": "n", "schema": null});
    let (stage, _, message) = refusal(&json!({}), &body(json!({"text": {"format": format}})));
    assert_eq!(stage, Stage::Convert);
    assert!(message.starts_with("Invalid json schema: "), "{message}");
}
