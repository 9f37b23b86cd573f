//! What the host decides: options and fixes.

use fathom::recipe::conversation::{InputMessage, ToolChoice};
use fathom::recipe::{OutputConstraint, Stage, ThinkingStage};
use serde_json::{Value, json};

use super::recipe_support::requests::{V4, V41};
use super::{
    assistant, body, fixed, system, text, tool, tool_result, tool_use, user, warnings, with,
};

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
