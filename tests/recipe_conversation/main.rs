//! Conversations given directly, against the vectors and beyond them.

mod fim_and_tasks;
mod images;
#[path = "../recipe_support/mod.rs"]
mod recipe_support;
mod refused;

use std::sync::{Arc, OnceLock};

use fathom::recipe::conversation::ReasoningEffort;
use fathom::recipe::encoding::Encoding;
use fathom::recipe::tokenizer::Tokenizer;
use fathom::recipe::{
    Error, OutputConstraint, Prepared, Protocol, Recipe, RecipeOptions, Stage, ThinkingStage,
};
use recipe_support::{ids, lines, v4_file, v41_file};
use serde_json::{Value, json};

const IMAGE: u32 = 129_264;

/// Recipes over the three tokenizer files, opened once.
#[derive(Clone, Copy)]
enum File {
    V4,
    V41,
    /// As V4.1, with the image token spelled as in released checkpoints.
    Checkpoint,
}

fn tokenizer(file: File) -> Arc<Tokenizer> {
    static OPENED: [OnceLock<Arc<Tokenizer>>; 3] = [const { OnceLock::new() }; 3];
    let open = || {
        let bytes = match file {
            File::V4 => v4_file(),
            File::V41 => v41_file("<｜image｜>"),
            File::Checkpoint => v41_file("<｜deepseek_image｜>"),
        };
        Arc::new(Tokenizer::from_bytes(&bytes).expect("the file is valid"))
    };
    Arc::clone(OPENED[file as usize].get_or_init(open))
}

fn prepare_with(file: File, options: &Value, request: &Value) -> Result<Prepared, Error> {
    let options = RecipeOptions {
        options_json: options.to_string(),
        ..RecipeOptions::default()
    };
    let recipe = Recipe::with_tokenizer(&options, Some(tokenizer(file)))?;
    let body = request.to_string();
    recipe.prepare(Protocol::Conversation, body.as_bytes(), None)
}

/// Prepares a V4.1 conversation of these fields.
fn prepare(request: &Value) -> Result<Prepared, Error> {
    prepare_with(File::V41, &json!({}), &with_encoding(request, "v4.1"))
}

fn with_encoding(request: &Value, encoding: &str) -> Value {
    let mut request = request.clone();
    request["encoding"] = encoding.into();
    request
}

fn prepared(request: &Value) -> Prepared {
    prepare(request).unwrap_or_else(|error| panic!("{request}: {error}"))
}

fn described(prepared: &Prepared) -> Value {
    serde_json::from_str(&prepared.options_json()).expect("it is JSON")
}

/// One user message of this content.
fn user(content: &str) -> Value {
    json!({"role": "user", "content": content})
}

#[test]
fn conversations_become_what_the_vectors_say() {
    let mut count = 0;
    for vector in lines("recipe/encode.jsonl.gz") {
        if vector["protocol"] != "conversation" {
            continue;
        }
        count += 1;
        let (id, result) = (&vector["id"], &vector["result"]);
        let encoding = vector["encoding"].as_str().expect("an encoding");
        let file = match Encoding::from_name(encoding) {
            Some(Encoding::V4) => File::V4,
            _ => File::V41,
        };
        let request = with_encoding(&vector["request"], encoding);
        let prepared = prepare_with(file, &vector["options"], &request)
            .unwrap_or_else(|error| panic!("{id}: {error}"));
        assert_eq!(prepared.protocol, Protocol::Conversation);
        assert_eq!(prepared.encoding.name(), encoding);
        assert_eq!(prepared.prompt.text, result["prompt"], "{id}");
        let ranges = prepared.special_ranges().iter();
        let ranges: Vec<Value> = ranges.map(|r| json!([r.start, r.end])).collect();
        assert_eq!(Value::from(ranges), result["special_ranges"], "{id}");
        assert_eq!(prepared.tokens, ids(&result["token_ids"]), "{id}");
        assert_eq!(prepared.prompt_tokens(), result["token_count"], "{id}");

        let mut options = described(&prepared);
        for image in options["images"].as_array_mut().expect("a list") {
            let position = image.as_object_mut().expect("an image").remove("position");
            if let Some(position) = position.as_ref().and_then(Value::as_u64) {
                let position = usize::try_from(position).expect("a place");
                assert_eq!(prepared.tokens[position], IMAGE, "{id}");
            }
        }
        assert_eq!(options["images"], result["images"], "{id}");
        // What was read is what was given: the description is the same request again.
        let mut again = options["conversation"].clone();
        again["encoding"] = encoding.into();
        again["inference"] = options["inference_options"].clone();
        again["parsing"] = options["parsing_options"].clone();
        let again = prepare_with(file, &vector["options"], &again)
            .unwrap_or_else(|error| panic!("{id}: {error}"));
        assert_eq!(again.conversation, prepared.conversation, "{id}");
        assert_eq!(again.inference, prepared.inference, "{id}");
        assert_eq!(again.parsing, prepared.parsing, "{id}");
        assert_eq!(again.tokens, prepared.tokens, "{id}");
    }
    assert_eq!(count, 76);
}

#[test]
fn a_tool_result_after_a_user_message_joins_its_turn_when_asked() {
    let request = json!({"encoding": "v4", "thinking_mode": false, "messages": [
        user("u"), {"role": "tool", "content": "r", "tool_call_id": "1"}]});
    let text = |options: Value| {
        let prepared = prepare_with(File::V4, &options, &request);
        prepared.expect("it renders").prompt.text
    };
    assert!(text(json!({})).contains("u<｜User｜><tool_result>r"));
    let joined = text(json!({"fixes": ["v4_join_tool_after_user"]}));
    assert!(joined.contains("u\n\n<tool_result>r"));
}

#[test]
fn what_is_absent_has_the_default_of_the_normalized_form() {
    let prepared = prepared(&json!({"messages": [user("hi")]}));
    assert_eq!(prepared.model, "v4.1");
    assert_eq!(
        prepared.prompt.text,
        "<｜begin▁of▁sentence｜><｜System｜>Reasoning Effort: 75 (range 1-100, the higher the value, the more thorough the reasoning)\n\n<｜User｜>hi<｜Assistant｜><think>"
    );
    let options = described(&prepared);
    assert_eq!(
        options["conversation"],
        json!({
            "messages": [{"role": "user", "content": "hi", "image_sources": []}],
            "thinking_mode": true, "tools": [], "tool_choice": "auto", "reasoning_effort": null,
            "response_format": {"type": "text"},
        })
    );
    assert_eq!(
        options["inference_options"],
        json!({"max_tokens": null, "temperature": 1.0, "top_p": 1.0, "logprobs": false,
            "top_logprobs": null, "seed": null, "output_constraint": null})
    );
    assert_eq!(
        options["parsing_options"],
        json!({"parse_tool_calls": false, "starts_in_tool_calls": false, "parse_json_output": false,
            "thinking_initial_stage": "reasoning_start", "stop_sequences": []})
    );
    assert_eq!(options["stream"], false);
    assert_eq!(prepared.max_tokens, 65_536);
    let nothing = prepare(&json!({"messages": null, "tools": null, "fim": null})).expect("valid");
    assert_eq!(nothing.tokens, [0, 128_804, 128_821]);
}

#[test]
fn every_field_is_taken_as_it_stands() {
    let request = json!({
        "messages": [
            {"role": "system", "content": "s", "tools": [{"name": "late", "parameters": {"b": 1, "a": 2}}]},
            user("u"),
            {"role": "assistant", "content": "c", "reasoning_content": "r",
                "tool_calls": [{"id": "1", "name": "f", "arguments": "{}"}]},
            {"role": "tool", "content": "t", "tool_call_id": "1"},
            {"role": "latest_reminder", "content": "l"},
            {"role": "assistant", "content": "so", "prefix": true},
        ],
        "thinking_mode": true, "reasoning_effort": "max", "stream": true,
        "tools": [{"name": "f", "description": "d", "parameters": {"x": 1.0}, "strict": false, "defer_loading": true}],
        "tool_choice": "required",
        "response_format": {"type": "regex", "regex": "a+"},
        "inference": {"max_tokens": 9, "temperature": 0.25, "top_p": 0.5, "logprobs": true,
            "top_logprobs": 3, "seed": 7, "output_constraint": {"kind": "json", "schema": "{\"a\": 1}"}},
        "parsing": {"parse_json_output": true, "stop_sequences": ["x", "y"]},
    });
    let prepared = prepared(&request);
    let options = described(&prepared);
    let conversation = &options["conversation"];
    assert_eq!(conversation["reasoning_effort"], "max");
    assert_eq!(conversation["tools"], request["tools"]);
    assert_eq!(conversation["response_format"], request["response_format"]);
    assert_eq!(
        conversation["messages"][0]["tools"][0]["parameters"],
        json!({"b": 1, "a": 2})
    );
    assert_eq!(
        conversation["messages"][2],
        request["messages"][2].clone().tap("prefix", false)
    );
    assert_eq!(conversation["messages"][3]["tool_call_id"], "1");
    assert_eq!(options["stream"], true);
    assert_eq!(
        options["inference_options"],
        json!({"max_tokens": 9, "temperature": 0.25, "top_p": 0.5, "logprobs": true,
            "top_logprobs": 3, "seed": 7, "output_constraint": {"kind": "json", "schema": "{\"a\":1}"}})
    );
    assert_eq!(
        options["parsing_options"],
        json!({"parse_tool_calls": true, "starts_in_tool_calls": true, "parse_json_output": true,
            "thinking_initial_stage": "content_continuation", "stop_sequences": ["x", "y"]})
    );
    assert_eq!(prepared.max_tokens, 9);
}

/// A copy of an object with one more field.
trait Tap {
    fn tap(self, key: &str, value: impl Into<Value>) -> Self;
}

impl Tap for Value {
    fn tap(mut self, key: &str, value: impl Into<Value>) -> Self {
        self[key] = value.into();
        self
    }
}

#[test]
fn how_to_read_the_output_follows_from_the_conversation() {
    let stage = |request: Value| prepared(&request).parsing.thinking_initial_stage;
    let ends = |reasoning: Value, content: &str| {
        json!({"messages": [user("u"), {"role": "assistant", "content": content,
            "reasoning_content": reasoning, "prefix": true}]})
    };
    assert_eq!(
        stage(ends(json!("r"), "c")),
        Some(ThinkingStage::ContentContinuation)
    );
    assert_eq!(
        stage(ends(json!("r"), "")),
        Some(ThinkingStage::ReasoningContinuation)
    );
    assert_eq!(
        stage(ends(json!(null), "")),
        Some(ThinkingStage::ReasoningStart)
    );
    assert_eq!(
        stage(ends(json!(null), "").tap("thinking_mode", false)),
        None
    );
    let given = json!({"thinking_initial_stage": null});
    assert_eq!(stage(ends(json!("r"), "c").tap("parsing", given)), None);

    let tool = json!([{"name": "f"}]);
    let calls = |request: Value| {
        let parsing = prepared(&request).parsing;
        (parsing.parse_tool_calls, parsing.starts_in_tool_calls)
    };
    assert_eq!(calls(json!({"tools": tool})), (true, false));
    assert_eq!(
        calls(json!({"tools": tool, "tool_choice": "required"})),
        (true, true)
    );
    assert_eq!(
        calls(json!({"tools": tool, "tool_choice": "none"})),
        (false, false)
    );
    // Without tools the prompt opens no block.
    assert_eq!(calls(json!({"tool_choice": "required"})), (false, false));
    let introduced = json!({"messages": [{"role": "system", "content": "", "tools": tool}]});
    assert_eq!(calls(introduced.clone()), (true, false));
    let v4 = prepare_with(File::V4, &json!({}), &with_encoding(&introduced, "v4"));
    assert!(!v4.expect("it is valid").parsing.parse_tool_calls);
}

#[test]
fn a_constraint_is_as_given_or_follows_from_tools_and_format() {
    let constraint = |request: Value| prepared(&request).inference.output_constraint;
    let kind = |request: Value| constraint(request).map(|constraint| constraint.kind());
    let tools = json!([{"name": "f", "strict": true}]);
    assert_eq!(kind(json!({})), None);
    assert_eq!(
        kind(json!({"response_format": {"type": "json_object"}})),
        Some("json")
    );
    assert_eq!(kind(json!({"tools": tools})), Some("tool_call"));
    assert_eq!(
        kind(json!({"tools": tools, "tool_choice": "required"})),
        Some("tool_call_required")
    );
    let given = |given: Value| json!({"tools": tools, "inference": {"output_constraint": given}});
    assert_eq!(
        constraint(given(json!({"kind": "regex", "schema": "a"}))),
        Some(OutputConstraint::Regex("a".to_owned()))
    );
    assert_eq!(
        constraint(given(json!({"kind": "json"}))),
        Some(OutputConstraint::Json(None))
    );
    let required = OutputConstraint::ToolCalls { required: true };
    assert_eq!(
        constraint(given(json!({"kind": "tool_call_required"}))),
        Some(required)
    );
}

#[test]
fn the_model_may_be_named_instead_of_the_encoding() {
    let named = json!({"model": "DeepSeek-V4-Pro", "messages": [user("u")]});
    let prepared = prepare_with(File::V4, &json!({}), &named).expect("it is known");
    assert_eq!(
        (prepared.model.as_str(), prepared.encoding),
        ("DeepSeek-V4-Pro", Encoding::V4)
    );
    let unknown = json!({"model": "x", "messages": []});
    let error = prepare_with(File::V4, &json!({}), &unknown).expect_err("it is unknown");
    assert_eq!((error.stage, error.param.as_str()), (Stage::Model, "model"));
}

#[test]
fn the_effort_of_the_host_wins_and_numbers_are_opt_in() {
    let request = json!({"messages": [user("u")], "reasoning_effort": "low"});
    let with = |options: Value, request: &Value| {
        prepare_with(File::V41, &options, &with_encoding(request, "v4.1"))
    };
    let low = with(json!({}), &request).expect("it is valid");
    assert_eq!(
        low.conversation.reasoning_effort,
        Some(ReasoningEffort::Low)
    );
    let max = with(json!({"effort": "max"}), &request).expect("it is valid");
    assert_eq!(
        max.conversation.reasoning_effort,
        Some(ReasoningEffort::Max)
    );
    assert_eq!(max.max_tokens, 131_072);
    let off = with(json!({"effort": "none"}), &request).expect("it is valid");
    assert!(!off.conversation.thinking_mode && off.prompt.text.ends_with("</think>"));

    let number = json!({"messages": [user("u")], "reasoning_effort": 42});
    let allowed = with(json!({"allow_numeric_effort": true}), &number).expect("it is allowed");
    assert!(allowed.prompt.text.contains("Reasoning Effort: 42 "));
    let error = with(json!({}), &number).expect_err("it is not allowed");
    assert_eq!(
        (error.stage, error.param.as_str()),
        (Stage::Deserialize, "reasoning_effort")
    );
    let error = with(
        json!({"allow_numeric_effort": true}),
        &json!({"reasoning_effort": 101}),
    );
    assert_eq!(error.expect_err("it is too much").stage, Stage::Convert);
    let v4 = prepare_with(File::V4, &json!({"effort": 7}), &json!({"encoding": "v4"}));
    assert_eq!(v4.expect_err("V4 takes names").param, "effort");
}

#[test]
fn penalties_and_engine_settings_are_taken_where_the_host_passes_them_on() {
    let request = json!({"encoding": "v4.1", "inference": {"n": 2, "presence_penalty": 1.5, "frequency_penalty": -1.0,
        "top_k": 5, "min_p": 0.5, "logit_bias": {"1": 2}}});
    let options = json!({"engine_params": true, "max_choices": 3});
    let prepared = prepare_with(File::V41, &options, &request).expect("it is valid");
    let shown = described(&prepared);
    for (key, value) in request["inference"].as_object().expect("a map") {
        assert_eq!(&shown["inference_options"][key], value, "{key}");
    }
}
