//! Chat Completions requests, from the body to token ids, against the vectors and beyond them.

mod recipe_support;

use std::sync::OnceLock;

use fathom::recipe::{
    Error, OutputConstraint, Prepared, Protocol, Recipe, RecipeOptions, Stage, resolve_max_tokens,
};
use recipe_support::lines;
use recipe_support::requests::{File, V4, V41, check_all, recipe};
use serde_json::{Value, json};

fn prepare(recipe: &Recipe, body: &str) -> Result<Prepared, Error> {
    recipe.prepare(Protocol::ChatCompletions, body.as_bytes(), None)
}

/// Prepares a body with these recipe options and the V4.1 tokenizer.
fn with(options: &Value, body: &Value) -> Result<Prepared, Error> {
    prepare(&recipe(File::V41, options, 0), &body.to_string())
}

/// A V4.1 request of one user message and more fields.
fn body(more: Value) -> Value {
    let mut body = json!({"model": V41, "messages": [{"role": "user", "content": "hi json"}]});
    let more = more.as_object().expect("fields").clone();
    body.as_object_mut().expect("a map").extend(more);
    body
}

#[test]
fn requests_become_what_the_vectors_say() {
    check_all("chat", 470);
}

#[test]
fn output_budgets_are_those_of_the_vectors() {
    use fathom::recipe::conversation::ReasoningEffort;
    let vectors = lines("recipe/max_tokens.jsonl.gz");
    assert_eq!(vectors.len(), 600);
    for vector in vectors {
        let number = |key: &str| {
            vector[key]
                .as_u64()
                .map(|n| u32::try_from(n).expect("it fits"))
        };
        let effort = match vector["effort"].as_str() {
            None => None,
            Some("low") => Some(ReasoningEffort::Low),
            Some("high") => Some(ReasoningEffort::High),
            Some("xhigh") => Some(ReasoningEffort::Xhigh),
            Some("max") => Some(ReasoningEffort::Max),
            Some(other) => panic!("effort {other}"),
        };
        let found = resolve_max_tokens(
            vector["thinking"].as_bool().expect("a mode"),
            effort,
            number("requested"),
            number("prompt_tokens").expect("a count"),
            number("context_limit").expect("a limit"),
        );
        match found {
            Ok(max_tokens) => assert_eq!(Some(max_tokens), number("max_tokens"), "{vector}"),
            Err(error) => assert_eq!(error.message, vector["error"], "{vector}"),
        }
    }
}

/// Found by fuzzing: it was the object that lacks the field, at the top an empty path.
#[test]
fn a_missing_field_is_the_place_of_its_error() {
    let body = |messages: Value| json!({"model": V41, "messages": messages});
    for (body, param) in [
        (json!({"model": V41}), "messages"),
        (json!({"messages": []}), "model"),
        (body(json!([{"content": "x"}])), "messages[0].role"),
        (
            body(json!([{"role": "tool", "content": "x"}])),
            "messages[0].tool_call_id",
        ),
    ] {
        let error = with(&json!({}), &body).expect_err(param);
        assert_eq!(
            (error.stage, &*error.param),
            (Stage::Deserialize, param),
            "{body}: {error}"
        );
    }
}

#[test]
fn an_error_names_its_place_in_the_request() {
    let image = |url: &str| json!([{"type": "image_url", "image_url": {"url": url}}]);
    for (fields, stage, param) in [
        (json!({"messages": {}}), Stage::Deserialize, "messages"),
        (
            json!({"messages": [{"role": "user", "content": 3}]}),
            Stage::Deserialize,
            "messages[0].content",
        ),
        (
            json!({"messages": [{"role": "developer", "content": ""}]}),
            Stage::Deserialize,
            "messages[0].role",
        ),
        (
            json!({"tools": [{"type": "function", "function": {"name": 1}}]}),
            Stage::Deserialize,
            "tools[0].function.name",
        ),
        (
            json!({"max_tokens": 10.0}),
            Stage::Deserialize,
            "max_tokens",
        ),
        (
            json!({"thinking": ["enabled"]}),
            Stage::Deserialize,
            "thinking",
        ),
        (json!({"temperature": 3}), Stage::Convert, "temperature"),
        (json!({"stop": ["a", ""]}), Stage::Convert, "stop[1]"),
        (
            json!({"messages": [{"role": "user", "content": image("ftp://x")}]}),
            Stage::Convert,
            "messages[0].content",
        ),
        (
            json!({"tools": [{"type": "function", "function": {"name": "a b"}}]}),
            Stage::Convert,
            "tools[0].function.name",
        ),
        (
            json!({"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "x"}}}]}),
            Stage::Convert,
            "tools[0].function.parameters",
        ),
        (json!({"model": "other"}), Stage::Model, "model"),
    ] {
        let error = with(&json!({}), &body(fields.clone())).expect_err("it is refused");
        assert_eq!(
            (error.stage, error.param.as_str()),
            (stage, param),
            "{fields}: {error}"
        );
    }
    let recipe = recipe(File::V41, &json!({}), 0);
    for raw in ["[]", "3", "null", "\"x\"", "", "{", "{}x", "\u{FEFF}{}"] {
        let error = prepare(&recipe, raw).expect_err("it is no request");
        assert_eq!(error.stage, Stage::Deserialize, "{raw}");
    }
    let error = recipe
        .prepare(Protocol::ChatCompletions, b"{\"model\": \"\xFF\"}", None)
        .expect_err("it is not UTF-8");
    assert_eq!(error.stage, Stage::Utf8);
}

#[test]
fn a_wrong_option_is_an_error_with_its_key() {
    for (options, key) in [
        (json!({"defualt_effort": "low"}), "defualt_effort"),
        (json!({"default_thinking_mode": 1}), "default_thinking_mode"),
        (json!({"default_effort": "none"}), "default_effort"),
        (
            json!({"reasoning_content_behavior": "drop"}),
            "reasoning_content_behavior",
        ),
        (
            json!({"thinking_max_tokens_upper_bound": 0}),
            "thinking_max_tokens_upper_bound",
        ),
        (
            json!({"thinking_max_tokens_upper_bound": 1u64 << 32}),
            "thinking_max_tokens_upper_bound",
        ),
        (json!({"effort": 101}), "effort"),
        (json!({"task": "sing"}), "task"),
        (json!({"fixes": ["everything"]}), "fixes"),
        (json!({"parsing": {"stop": []}}), "parsing.stop"),
        (
            json!({"parsing": {"thinking_initial_stage": "middle"}}),
            "parsing.thinking_initial_stage",
        ),
        (json!({"special_tokens": {"bos": 1}}), "special_tokens.bos"),
        (
            json!({"special_tokens": {"sos": "x"}}),
            "special_tokens.sos",
        ),
        (
            json!({"special_tokens": {"image": "a"}, "image_token": "b"}),
            "image_token",
        ),
        (json!({"max_choices": 256}), "max_choices"),
        (json!({"image_sizes": [[1]]}), "image_sizes[0]"),
        (json!({"fetch_ports": ["0"]}), "fetch_ports"),
        (json!({"cache_bytes": -1}), "cache_bytes"),
        (json!({"id_seed": 1.5}), "id_seed"),
        (json!({"model_aliases": {"a": "v9"}}), "model_aliases"),
        (json!([]), "options_json"),
    ] {
        let recipe = RecipeOptions {
            options_json: options.to_string(),
            ..RecipeOptions::default()
        };
        let error = Recipe::open(&recipe).expect_err("the option is wrong");
        assert_eq!(
            (error.stage, error.param.as_str()),
            (Stage::Option, key),
            "{error}"
        );
    }
}

/// Every documented key with a value other than its default.
fn all_options() -> Value {
    let text = r#"{
        "default_thinking_mode": false, "reasoning_content_behavior": "reject",
        "responses_web_search": "reject", "messages_web_search": "drop",
        "thinking_max_tokens_upper_bound": 7, "non_thinking_max_tokens_upper_bound": 8,
        "default_effort": "low", "model_aliases": {"m": "v4.1"}, "models_replace": true,
        "alias_preset": "official_api", "official_pro": "v4.1",
        "special_tokens": {"bos": "", "/ref": "x"}, "image_token": "<｜deepseek_image｜>",
        "allow_numeric_effort": true, "effort": 40, "task": "title", "messages_prefill": true,
        "accept_max_completion_tokens": true, "reject_unknown_fields": true, "engine_params": true,
        "max_choices": 4, "v4_reference_exact": true, "fixes": "all",
        "messages_error_shape": "openai", "error_param": true, "recovery": "strict",
        "parsing": {"parse_tool_calls": true, "thinking_initial_stage": null, "stop_sequences": ["x"]},
        "unterminated_reasoning": "content", "include_stop_sequence": true, "late_ready": "correct",
        "usage_chunk": "openai", "system_fingerprint": "f", "signature": "s", "id_seed": 18446744073709551615,
        "image_exif": "ignore", "image_resampler": "opencv_cubic", "image_alpha": "blend",
        "image_fit": "once", "image_sizes": [null, [3, 4]], "image_max_side": 1,
        "image_max_side_many": 2, "image_many": 3, "image_low_side": 4, "image_url_bytes": 5,
        "image_decode_ms": 6, "fetch_connect_ms": 7, "fetch_attempt_ms": 8, "fetch_retries": 0,
        "fetch_retry_429": true, "fetch_strict_content_type": true, "fetch_ports": ["80", "8000-8080"],
        "cache_bytes": 0}"#;
    serde_json::from_str(text).expect("it is JSON")
}

#[test]
fn every_documented_option_is_known_and_a_request_may_set_those_that_are_its_own() {
    const OF_THE_RECIPE: [&str; 20] = [
        "model_aliases",
        "models_replace",
        "alias_preset",
        "official_pro",
        "special_tokens",
        "image_token",
        "max_choices",
        "image_max_side",
        "image_max_side_many",
        "image_many",
        "image_low_side",
        "image_url_bytes",
        "image_decode_ms",
        "fetch_connect_ms",
        "fetch_attempt_ms",
        "fetch_retries",
        "fetch_retry_429",
        "fetch_strict_content_type",
        "fetch_ports",
        "cache_bytes",
    ];
    let options = all_options();
    recipe(File::V41, &options, 0);
    let recipe = recipe(File::V41, &json!({}), 0);
    let image = json!({"type": "image_url", "image_url": {"url": "https://e.test/1.png"}});
    let body = body(json!({"messages": [{"role": "user", "content": [image, image]}]})).to_string();
    for (key, value) in options.as_object().expect("a map") {
        let one = json!({ key: value }).to_string();
        let found = recipe.prepare(Protocol::ChatCompletions, body.as_bytes(), Some(&one));
        if OF_THE_RECIPE.contains(&key.as_str()) {
            let error = found.expect_err(key);
            assert_eq!((error.stage, &error.param), (Stage::Option, key));
        } else {
            found.unwrap_or_else(|error| panic!("{key}: {error}"));
        }
    }
}

#[test]
fn options_of_a_request_change_this_request_only() {
    let recipe = recipe(File::V41, &json!({"default_thinking_mode": false}), 0);
    let body = body(json!({})).to_string();
    let thinks = |options: Option<&str>| {
        let prepared = recipe.prepare(Protocol::ChatCompletions, body.as_bytes(), options);
        prepared.expect("it is valid").conversation.thinking_mode
    };
    assert!(!thinks(None));
    assert!(thinks(Some("{\"default_thinking_mode\": true}")));
    assert!(!thinks(None));
}

#[test]
fn effort_may_be_a_number_where_the_host_allows_it() {
    let allow = json!({"allow_numeric_effort": true});
    let prepared = with(&allow, &body(json!({"reasoning_effort": 42}))).expect("42 is allowed");
    assert!(
        prepared
            .prompt
            .text
            .contains("Reasoning Effort: 42 (range 1-100")
    );
    let decided: Value = serde_json::from_str(&prepared.options_json()).expect("an object");
    assert_eq!(decided["conversation"]["reasoning_effort"], 42);
    let hundred = with(&allow, &body(json!({"reasoning_effort": 100}))).expect("100 is allowed");
    assert_eq!(hundred.max_tokens, 131_072);

    let error = with(&allow, &body(json!({"reasoning_effort": 0}))).expect_err("0 is too low");
    assert_eq!(
        error.message,
        "Invalid reasoning_effort value, the valid range of reasoning_effort is [1, 100]"
    );
    let error = with(&allow, &body(json!({"reasoning_effort": 0.5}))).expect_err("a float");
    assert_eq!(error.stage, Stage::Deserialize);
    let error = with(&allow, &body(json!({"reasoning_effort": 42, "model": V4}))).expect_err("V4");
    assert_eq!(error.stage, Stage::Convert);
    let error = with(&json!({}), &body(json!({"reasoning_effort": 42}))).expect_err("not allowed");
    assert_eq!(error.stage, Stage::Deserialize);
}

#[test]
fn the_effort_of_the_host_wins() {
    let request = body(json!({"thinking": {"type": "enabled"}, "reasoning_effort": "max"}));
    let off = with(&json!({"effort": "none"}), &request).expect("it is valid");
    assert!(!off.conversation.thinking_mode);
    let low = with(
        &json!({"effort": "minimal"}),
        &body(json!({"thinking": {"type": "disabled"}})),
    );
    assert!(
        low.expect("it is valid")
            .prompt
            .text
            .contains("Reasoning Effort: 50")
    );
    let usual = with(&json!({"default_effort": "ultra"}), &body(json!({}))).expect("it is valid");
    assert!(usual.prompt.text.contains("Reasoning Effort: 100"));
    let error = with(&json!({"effort": 7}), &body(json!({"model": V4}))).expect_err("V4 has names");
    assert_eq!(
        (error.stage, error.param.as_str()),
        (Stage::Option, "effort")
    );
}

#[test]
fn a_task_replaces_the_header_of_the_answer() {
    let end = |task: &str, request: &Value| {
        let prepared = with(&json!({ "task": task }), request).expect("it is valid");
        let last = prepared.special_ranges().last().expect("a header").clone();
        let spelled = prepared.prompt.text[last].to_owned();
        (
            spelled,
            prepared.parsing.thinking_initial_stage.is_some(),
            prepared.prompt.text,
        )
    };
    let (token, thinks, text) = end("title", &body(json!({})));
    assert_eq!((token.as_str(), thinks), ("<｜title｜>", false));
    assert!(text.ends_with("hi json<｜title｜>"), "{text}");
    let (token, thinks, text) = end("action", &body(json!({})));
    assert_eq!((token.as_str(), thinks), ("<｜action｜>", true));
    assert!(
        text.ends_with("<｜Assistant｜><think><｜action｜>"),
        "{text}"
    );
}

#[test]
fn fields_without_effect_are_told_as_warnings() {
    let request = json!({
        "model": V41, "temperature": 0.5, "top_p": 0.5, "presence_penalty": 1, "store": true,
        "user": "u", "logit_bias": {"1": 2}, "parallel_tool_calls": true, "surprise": 1, "metadata": null,
        "thinking": {"type": "enabled", "budget_tokens": 5},
        "messages": [
            {"role": "assistant", "content": "a", "reasoning_content": "because"},
            {"role": "latest_reminder", "content": "1"}, {"role": "latest_reminder", "content": "2"},
        ],
    });
    let prepared = with(&json!({}), &request).expect("it is accepted");
    let found: Vec<(&str, &str)> = prepared
        .warnings
        .iter()
        .map(|w| (w.code, w.param.as_str()))
        .collect();
    assert_eq!(
        found,
        [
            ("ignored_state", "store"),
            ("ignored_field", "user"),
            ("ignored_field", "logit_bias"),
            ("ignored_field", "parallel_tool_calls"),
            ("unknown_field", "surprise"),
            ("ignored_field", "thinking.budget_tokens"),
            ("dropped_reminder", "messages[2]"),
            ("ignored_value", "temperature"),
            ("ignored_value", "top_p"),
            ("ignored_value", "presence_penalty"),
            ("dropped_reasoning", "messages[0].reasoning_content"),
        ]
    );
    let decided: Value = serde_json::from_str(&prepared.options_json()).expect("an object");
    assert_eq!(decided["warnings"][0]["code"], "ignored_state");
    assert_eq!(decided["context_limit"], 1_048_576);
    assert_eq!(decided["recovery"], "robust");
    assert_eq!(decided["include_usage"], false);

    let error = with(&json!({"reject_unknown_fields": true}), &request).expect_err("it is strict");
    assert_eq!(error.param, "surprise");
}

#[test]
fn parameters_of_the_engine_travel_on_when_the_host_asks() {
    let request = body(
        json!({"top_k": 5, "min_p": 0.1, "logit_bias": {"1": 2}, "presence_penalty": -1, "n": 2}),
    );
    let options = json!({"engine_params": true, "max_choices": 2});
    let prepared = with(&options, &request).expect("it is valid");
    assert!(prepared.warnings.is_empty(), "{:?}", prepared.warnings);
    let decided: Value = serde_json::from_str(&prepared.options_json()).expect("an object");
    let inference = &decided["inference_options"];
    assert_eq!(inference["top_k"], 5);
    assert_eq!(inference["min_p"], 0.1);
    assert_eq!(inference["presence_penalty"], -1.0);
    assert_eq!(inference["logit_bias"], json!({"1": 2}));
    assert_eq!(inference["n"], 2);
    assert!(with(&options, &body(json!({"n": 3}))).is_err());
}

#[test]
fn max_completion_tokens_is_an_alias_where_the_host_accepts_it() {
    let accept = json!({"accept_max_completion_tokens": true});
    let max_tokens = |options: &Value, more: Value| {
        with(options, &body(more)).map(|prepared| prepared.inference.max_tokens)
    };
    assert_eq!(
        max_tokens(&accept, json!({"max_completion_tokens": 9})),
        Ok(Some(9))
    );
    assert_eq!(
        max_tokens(&json!({}), json!({"max_completion_tokens": 9})),
        Ok(None)
    );
    let both = json!({"max_completion_tokens": 9, "max_tokens": 8});
    assert!(max_tokens(&accept, both).is_err());
}

#[test]
fn fixes_are_off_until_they_are_asked_for() {
    let fix = |name: &str| json!({"fixes": [name]});
    let tool = |parameters: Value| json!([{"type": "function", "function": {"name": "f", "parameters": parameters}}]);

    let request = body(json!({"tools": tool(json!({}))}));
    assert!(with(&json!({}), &request).is_err());
    let fixed = with(&fix("empty_schema"), &request).expect("it is accepted");
    assert_eq!(
        fixed.conversation.tools[0].parameters.as_str(),
        r#"{"type":"object","properties":{}}"#
    );

    let request =
        body(json!({"tools": tool(json!({"type": "object"})), "tool_choice": "required"}));
    assert!(with(&json!({}), &request).is_err());
    let fixed = with(&fix("thinking_tool_choice"), &request).expect("it is accepted");
    assert!(fixed.prompt.text.ends_with("<｜Assistant｜><think>"));
    assert!(!fixed.parsing.starts_in_tool_calls);
    let kind = fixed
        .inference
        .output_constraint
        .expect("calls are required");
    assert_eq!(kind, OutputConstraint::ToolCalls { required: true });

    let request = body(json!({"tools": [{"type": "function", "function": {"name": "a::b"}}]}));
    assert!(with(&json!({}), &request).is_err());
    assert!(with(&fix("chat_namespaces"), &request).is_ok());

    let reminders = body(
        json!({"messages": [{"role": "latest_reminder", "content": "old"}, {"role": "latest_reminder", "content": "new"}]}),
    );
    let shows = |options: &Value, word| {
        with(options, &reminders)
            .expect("valid")
            .prompt
            .text
            .contains(word)
    };
    assert!(shows(&json!({}), "old") && !shows(&json!({}), "new"));
    assert!(shows(&fix("keep_last_reminder"), "new") && !shows(&fix("keep_last_reminder"), "old"));

    let prefix = body(
        json!({"messages": [{"role": "assistant", "content": "", "reasoning_content": "ergo", "prefix": true}]}),
    );
    assert!(
        !with(&json!({}), &prefix)
            .expect("valid")
            .prompt
            .text
            .contains("ergo")
    );
    let fixed = with(&fix("prefix_reasoning_first"), &prefix).expect("valid");
    assert!(
        fixed.prompt.text.ends_with("<think>ergo"),
        "{}",
        fixed.prompt.text
    );

    let newer = body(json!({
        "messages": [
            {"role": "developer", "content": "rules"}, {"role": "user", "content": "u"},
            {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
        ],
        "tools": [{"type": "function", "function": {"name": "f"}}, {"type": "function", "function": {"name": "g"}}],
        "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [{"type": "function", "function": {"name": "g"}}]}},
        "max_completion_tokens": 3,
    }));
    assert!(with(&json!({}), &newer).is_err());
    let fixed = with(&fix("newer_inputs"), &newer).expect("valid");
    assert_eq!(fixed.conversation.tools.len(), 1);
    assert_eq!(fixed.conversation.tools[0].name, "g");
    assert_eq!(fixed.inference.max_tokens, Some(3));
    assert!(
        fixed
            .warnings
            .iter()
            .any(|w| w.code == "dropped_tool" && w.param == "tools[0].function")
    );

    let header = body(
        json!({"messages": [{"role": "system", "content": "X-Anthropic-Billing-Header: 1\nYou are"}, {"role": "user", "content": "u"}]}),
    );
    assert!(
        with(&json!({}), &header)
            .expect("valid")
            .prompt
            .text
            .contains("Billing")
    );
    assert!(
        !with(&fix("one_billing_header_rule"), &header)
            .expect("valid")
            .prompt
            .text
            .contains("Billing")
    );
}

#[test]
fn v4_follows_its_published_encoder_when_asked() {
    let call = |id: &str, arguments: &str| json!({"id": id, "type": "function", "function": {"name": "f", "arguments": arguments}});
    let request = json!({
        "model": V4, "thinking": {"type": "disabled"},
        "messages": [
            {"role": "user", "content": "u"},
            {"role": "assistant", "content": "", "tool_calls": [call("b", "{}"), call("a", "{\"x\": 1e-6}")]},
            {"role": "tool", "tool_call_id": "a", "content": "A"},
            {"role": "tool", "tool_call_id": "b", "content": "B"},
        ],
    });
    let text = |options: &Value| {
        let prepared = prepare(&recipe(File::V4, options, 0), &request.to_string());
        prepared.expect("it is valid").prompt.text
    };
    let default = text(&json!({}));
    assert!(default.contains("<tool_result>A</tool_result>\n\n<tool_result>B</tool_result>"));
    assert!(default.contains(">1e-6</") && default.contains("name=\"f\">\n</｜DSML｜invoke>"));
    let exact = text(&json!({"v4_reference_exact": true}));
    assert!(exact.contains("<tool_result>B</tool_result>\n\n<tool_result>A</tool_result>"));
    assert!(exact.contains(">1e-06</") && exact.contains("name=\"f\">\n\n</｜DSML｜invoke>"));
}

#[test]
fn the_image_token_is_spelled_as_the_tokenizer_file_says() {
    let request = body(json!({"messages": [{"role": "user", "content": [
        {"type": "text", "text": "<｜deepseek_image｜>"},
        {"type": "image_url", "image_url": {"url": "https://e.test/1.png"}}]}]}));
    for (file, spelling) in [
        (File::V41, "<｜image｜>"),
        (File::V41Checkpoint, "<｜deepseek_image｜>"),
    ] {
        let prepared = prepare(&recipe(file, &json!({}), 0), &request.to_string()).expect("valid");
        let position = prepared.images[0].position.expect("it has a placeholder");
        assert_eq!(prepared.tokens[position], 129_264);
        assert!(
            prepared
                .prompt
                .text
                .contains(&format!("\n\n{spelling}<｜Assistant｜>"))
        );
        assert_eq!(
            prepared.tokens.iter().filter(|id| **id == 129_264).count(),
            1
        );
    }
}

#[test]
fn a_recipe_without_a_tokenizer_gives_the_prompt() {
    let recipe = Recipe::open(&RecipeOptions::default()).expect("nothing is needed");
    let prepared = prepare(&recipe, &body(json!({})).to_string()).expect("it is valid");
    assert!(prepared.tokens.is_empty());
    assert!(
        prepared
            .prompt
            .text
            .ends_with("hi json<｜Assistant｜><think>")
    );
    assert_eq!(prepared.max_tokens, 65_536);
}

#[test]
fn the_demo_model_takes_chat_requests() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("models/fathom-demo");
    let recipe = Recipe::open(&RecipeOptions {
        tokenizer_path: Some(folder),
        aliases_json: r#"{"demo": "v4.1"}"#.to_owned(),
        max_context: 2048,
        ..RecipeOptions::default()
    })
    .unwrap_or_else(|error| panic!("{error}"));
    let request = body(json!({"model": "demo", "thinking": {"type": "disabled"}}));
    let prepared = prepare(&recipe, &request.to_string()).expect("it is valid");
    let tokenizer = recipe.tokenizer().expect("one was given");
    let text: Vec<u8> = prepared
        .tokens
        .iter()
        .flat_map(|id| tokenizer.token_bytes(*id).expect("ids are known"))
        .copied()
        .collect();
    assert_eq!(text, prepared.prompt.text.as_bytes());
    assert_eq!(prepared.max_tokens as usize, 2048 - prepared.tokens.len());
}

/// What a message of these blocks is refused with.
fn refused_message(role: &str, blocks: Value) -> String {
    let body = json!({"model": V41, "messages": [{"role": role, "content": blocks}]});
    with(&json!({}), &body).expect_err("it is refused").message
}

#[test]
fn an_image_of_an_assistant_is_refused_before_its_data_is_looked_into() {
    for url in ["data:text/plain,x", "", "http://x"] {
        let image = json!([{"type": "image_url", "image_url": {"url": url}}]);
        let message = refused_message("assistant", image);
        assert_eq!(message, "Image in assistant message is not supported");
    }
    // Faults of the block itself come first.
    let message = refused_message("assistant", json!([{"type": "file"}]));
    assert_eq!(
        message,
        ".messages[0]: file must have a file_id or file_data"
    );
}

#[test]
fn results_are_checked_one_by_one_in_their_order() {
    let call =
        |id| json!({"id": id, "type": "function", "function": {"name": "f", "arguments": "{}"}});
    let image = json!([{"type": "image_url", "image_url": {"url": "x"}}]);
    let result =
        |id: &str, content: &Value| json!({"role": "tool", "tool_call_id": id, "content": content});
    let (text, image) = (&json!("x"), &image);
    let user = json!({"role": "user", "content": "x"});
    const UNREADABLE: &str = ".messages[1]: Unsupported image_url format";
    const UNKNOWN: &str = "An assistant message with 'tool_calls' must be followed by tool messages responding to each 'tool_call_id', The following tool_call_ids did not have response messages: c";
    for (more, message) in [
        (vec![result("a", image), result("a", text)], UNREADABLE),
        (vec![result("a", image), result("c", text)], UNREADABLE),
        (vec![result("a", image), user], UNREADABLE),
        (vec![result("a", image)], UNREADABLE),
        (vec![result("c", image), result("a", text)], UNKNOWN),
    ] {
        let mut messages = vec![json!({"role": "assistant", "tool_calls": [call("a"), call("b")]})];
        messages.extend(more);
        let body = json!({"model": V41, "messages": messages});
        let error = with(&json!({}), &body).expect_err("it is refused");
        assert_eq!(error.message, message, "{body}");
    }
}

#[test]
fn the_type_of_a_file_is_told_before_its_data() {
    for (data, start) in [
        (
            "data:application/pdf;base64,@@",
            ".messages[0]: You have uploaded an unsupported file.",
        ),
        (
            "data:image/png;base64,@@",
            ".messages[0]: file_data is not a valid base64 data url",
        ),
    ] {
        let message = refused_message("user", json!([{"type": "file", "file_data": data}]));
        assert!(message.starts_with(start), "{message}");
    }
}

#[test]
fn the_name_of_a_speaker_is_ignored_but_must_be_text() {
    for role in ["system", "user", "assistant"] {
        let request = |name: Value| json!({"model": V41, "messages": [{"role": role, "content": "x", "name": name}]});
        with(&json!({}), &request(json!("n"))).expect("it is ignored");
        let error = with(&json!({}), &request(json!({}))).expect_err("it is no text");
        assert_eq!(
            (error.stage, error.param.as_str()),
            (Stage::Deserialize, "messages[0].name")
        );
    }
}

#[test]
fn a_schema_that_is_null_is_there_and_no_schema() {
    for strict in [false, true] {
        let format =
            json!({"type": "json_schema", "json_schema": {"schema": null, "strict": strict}});
        let error = with(&json!({}), &body(json!({"response_format": format})));
        let error = error.expect_err("null is no schema");
        assert_eq!(error.stage, Stage::Convert);
        assert!(
            error.message.starts_with("Invalid json schema: "),
            "{error}"
        );
    }
}

/// One path may be as long as the schema, so that keeping all of them would take the square of its size.
#[test]
fn dropped_keywords_below_a_long_name_cost_no_more_than_the_request() {
    let mut inner = json!({"type": "string"});
    for at in 0..50_000 {
        inner[format!("k{at}")] = 1.into();
    }
    let long = "n".repeat(500_000);
    let schema = json!({"type": "object", "properties": {long: inner}});
    let tool = json!({"type": "function", "function": {"name": "f", "strict": true, "parameters": schema}});
    let recipe = Recipe::open(&RecipeOptions::default()).expect("nothing is needed");
    let body = body(json!({"tools": [tool]})).to_string();
    let prepared = prepare(&recipe, &body).expect("it is accepted");
    assert_eq!(prepared.warnings.len(), 65);
    assert_eq!(prepared.warnings[64].message, "49936 more were left out");
}

/// Each reference looks into an object with as many entries as there are references.
#[test]
fn many_references_into_many_definitions_take_linear_time() {
    const MANY: usize = 100_000;
    let mut schema = String::from(r#"{"type":"object","allOf":["#);
    for at in 0..MANY {
        let comma = if at == 0 { "" } else { "," };
        schema.push_str(&format!(r##"{comma}{{"$ref":"#/$defs/d{at}"}}"##));
    }
    schema.push_str("],\"$defs\":{");
    for at in 0..MANY {
        let comma = if at == 0 { "" } else { "," };
        schema.push_str(&format!(r#"{comma}"d{at}":{{"type":"string"}}"#));
    }
    schema.push_str("}}");
    let body = format!(
        r#"{{"model":"{V41}","messages":[{{"role":"user","content":"x"}}],"tools":[{{"type":"function","function":{{"name":"f","parameters":{schema}}}}}]}}"#
    );
    let recipe = Recipe::open(&RecipeOptions::default()).expect("nothing is needed");
    let start = std::time::Instant::now();
    prepare(&recipe, &body).expect("it is accepted");
    // A fraction of a second; looking at all definitions for each reference takes minutes.
    assert!(start.elapsed() < std::time::Duration::from_secs(10));
}

mod damaged {
    use super::recipe_support::requests::{check_whole, damage, odd_values, short_bodies};
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(3000))]
        #[test]
        fn requests_are_answered_or_refused_but_never_break_anything(
            which in any::<prop::sample::Index>(),
            steps in prop::collection::vec(0usize..8, 1..6),
            pick in 0usize..14,
            fixes in any::<bool>(),
        ) {
            static BODIES: OnceLock<Vec<Value>> = OnceLock::new();
            static RECIPES: OnceLock<[Recipe; 2]> = OnceLock::new();
            let bodies = BODIES.get_or_init(|| short_bodies("chat"));
            let recipes = RECIPES.get_or_init(|| [
                recipe(File::V41, &json!({}), 0),
                recipe(File::V41, &json!({"fixes": "all", "engine_params": true, "allow_numeric_effort": true}), 0),
            ]);
            let mut body = which.get(bodies).clone();
            damage(&mut body, &steps, odd_values()[pick].clone());
            let answer = prepare(&recipes[usize::from(fixes)], &body.to_string());
            prop_assert_eq!(check_whole(answer), Ok(()));
        }
    }
}
