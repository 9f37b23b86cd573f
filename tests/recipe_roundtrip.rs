//! From request to answer: a recipe over the demo model's tokenizer, the options of its host, a parser
//! for the prepared request, and ids as an engine gives them.

mod recipe_support;

use std::sync::Arc;

use fathom::call::{Answer as Wanted, Reader};
use fathom::engine::RequestId;
use fathom::engine::request::{
    Adapter, Done, Event, EventKind, FinishReason, First, Tokens, Usage,
};
use fathom::recipe::stream::{Chunk, Finish, Output, Parser, StartInfo};
use fathom::recipe::{Prepared, Protocol, Recipe, RecipeOptions};
use recipe_support::client::{Seen, data, id_chunk, seen, seen_messages, text_chunk};
use recipe_support::{demo_cases, demo_model, ids};
use serde_json::{Value, json};

/// A recipe over the demo model whose host chose `options`.
fn recipe(options: &Value) -> Recipe {
    let options = RecipeOptions {
        tokenizer_path: Some(demo_model()),
        options_json: options.to_string(),
        ..RecipeOptions::default()
    };
    Recipe::open(&options).unwrap()
}

/// Prepares `body`; `options` change this request only.
fn prepare(recipe: &Recipe, body: &Value, options: &Value) -> Arc<Prepared> {
    prepare_as(recipe, Protocol::ChatCompletions, body, options)
}

fn prepare_as(recipe: &Recipe, protocol: Protocol, body: &Value, options: &Value) -> Arc<Prepared> {
    let (body, options) = (body.to_string(), options.to_string());
    let prepared = recipe.prepare(protocol, body.as_bytes(), Some(&options));
    Arc::new(prepared.unwrap())
}

/// A streamed request with more fields; it thinks if they do not say otherwise.
fn body(more: Value) -> Value {
    let mut body = json!({
        "model": "DeepSeek-V4.1-Flash",
        "stream": true,
        "messages": [{"role": "user", "content": "Say it, in json if you like."}],
    });
    let more = more.as_object().unwrap().clone();
    body.as_object_mut().unwrap().extend(more);
    body
}

fn without_thinking(more: Value) -> Value {
    let mut body = body(more);
    body["thinking"] = json!({"type": "disabled"});
    body
}

/// One tool, `f`, with an integer and a text.
fn tools() -> Value {
    json!([{"type": "function", "function": {"name": "f", "parameters": {
        "type": "object",
        "properties": {"count": {"type": "integer"}, "name": {"type": "string"}},
    }}}])
}

/// Everything an answer leaves behind.
struct Answer {
    events: Vec<Value>,
    seen: Seen,
    response: Value,
    parser: Parser,
    /// How many of the chunks were read when the parser asked to stop.
    stopped_after: Option<usize>,
}

/// Pushes `tokens` one by one, until the parser has enough, and finishes.
fn answer(prepared: &Arc<Prepared>, tokens: &[u32]) -> Answer {
    let chunks = tokens
        .iter()
        .map(|token| id_chunk(std::slice::from_ref(token)));
    answer_in(prepared, chunks)
}

/// The same for any chunks.
fn answer_in<'c>(prepared: &Arc<Prepared>, chunks: impl Iterator<Item = Chunk<'c>>) -> Answer {
    let mut parser = Parser::new(prepared).unwrap();
    let mut out = Output::default();
    let start = StartInfo {
        prompt_tokens: prepared.tokens.len() as u32,
        ..StartInfo::default()
    };
    parser.start(&start, &mut out).unwrap();
    let mut stopped_after = None;
    for (at, chunk) in chunks.enumerate() {
        parser.push(&chunk, &mut out).unwrap();
        if out.done.is_some() {
            stopped_after = Some(at + 1);
            break;
        }
    }
    parser.finish(Finish::Stop, None, &mut out).unwrap();
    let events = data(&out);
    Answer {
        seen: seen(&events),
        response: serde_json::from_str(&parser.response().unwrap()).unwrap(),
        events,
        parser,
        stopped_after,
    }
}

/// Ids of `text` as a model writes it, spellings of control tokens being these tokens.
fn written(prepared: &Prepared, text: &str) -> Vec<u32> {
    let tokenizer = prepared.tokenizer.as_ref().unwrap();
    tokenizer.encode_allow_special(text).unwrap()
}

/// The answer to `body`, prepared with `options`, when the model writes `text`.
fn answer_of(recipe: &Recipe, body: &Value, options: &Value, text: &str) -> Answer {
    let prepared = prepare(recipe, body, options);
    answer(&prepared, &written(&prepared, text))
}

fn call(name: &str, arguments: &str) -> (String, String) {
    (name.into(), arguments.into())
}

#[test]
fn golden_answers_of_the_demo_model_come_out_as_what_they_mean() {
    const SUM: &str = "23 + 45: ones 3 + 5 = 8. tens 2 + 4 = 6. So 68.";
    const PLAN: &str = "The user wants a tea timer of 12 minutes and the weather in Rome. I will call set_timer and get_weather.";
    let recipe = recipe(&json!({}));
    let mut read = 0;
    for case in demo_cases() {
        if case["protocol"] != "chat" {
            continue;
        }
        read += 1;
        let name = case["name"].as_str().unwrap();
        let prepared = prepare(&recipe, &case["request"], &json!({}));
        assert_eq!(prepared.tokens, ids(&case["prompt_ids"]), "{name}");
        let tokens = ids(&case["output_ids"]);
        let answer = answer(&prepared, &tokens);
        let text = case["output_text"].as_str().unwrap();
        let text = text.strip_suffix("<｜end▁of▁sentence｜>").unwrap();
        let (reasoning, content) = text.split_once("</think>").unwrap_or(("", text));
        let (reasoning, content, calls) = match name {
            "sum-thinking" => (SUM, "23 + 45 = 68", vec![]),
            "tool-call" => {
                let arguments = r#"{"city": "Paris", "unit": "celsius"}"#;
                ("", "", vec![call("get_weather", arguments)])
            }
            "tool-call-parallel-thinking" => {
                let timer = call("set_timer", r#"{"minutes": 12, "label": "tea"}"#);
                let weather = call("get_weather", r#"{"city": "Rome"}"#);
                (PLAN, "", vec![timer, weather])
            }
            "json-schema" => ("", r#"{"name": "Anna", "age": 7}"#, vec![]),
            _ => (reasoning, content, vec![]),
        };
        let finish = if calls.is_empty() {
            "stop"
        } else {
            "tool_calls"
        };
        let expected = Seen {
            reasoning: reasoning.into(),
            content: content.into(),
            calls,
            finish: Some(finish.into()),
        };
        assert_eq!(answer.seen, expected, "{name}");
        assert_eq!(answer.stopped_after, Some(tokens.len()), "{name}");
        assert_eq!(answer.parser.diagnostics(), "[]", "{name}");

        let message = &answer.response["choices"][0]["message"];
        assert_eq!(message["content"], expected.content, "{name}");
        assert_eq!(
            message["reasoning_content"].as_str().unwrap_or_default(),
            expected.reasoning,
            "{name}"
        );
        let made = message["tool_calls"].as_array().map_or(0, Vec::len);
        assert_eq!(made, expected.calls.len(), "{name}");
        let usage = &answer.response["usage"];
        assert_eq!(usage["prompt_tokens"], prepared.tokens.len(), "{name}");
        assert_eq!(usage["completion_tokens"], tokens.len(), "{name}");
    }
    assert_eq!(read, 9);
}

#[test]
fn golden_answers_to_messages_come_out_as_what_they_mean() {
    let recipe = recipe(&json!({}));
    let mut read = 0;
    for case in demo_cases() {
        if case["protocol"] != "messages" {
            continue;
        }
        read += 1;
        let name = case["name"].as_str().unwrap();
        let prepared = prepare_as(&recipe, Protocol::Messages, &case["request"], &json!({}));
        assert_eq!(prepared.tokens, ids(&case["prompt_ids"]), "{name}");
        let mut parser = Parser::new(&prepared).unwrap();
        let mut out = Output::default();
        for token in ids(&case["output_ids"]) {
            parser.push(&id_chunk(&[token]), &mut out).unwrap();
        }
        parser.finish(Finish::Stop, None, &mut out).unwrap();
        let text = case["output_text"].as_str().unwrap();
        let text = text.strip_suffix("<｜end▁of▁sentence｜>").unwrap();
        let expected = match name {
            "tool-call-messages" => Seen {
                calls: vec![call("add", "{\"a\": 312, \"b\": 45}")],
                finish: Some("tool_use".into()),
                ..Seen::default()
            },
            _ => Seen {
                content: text.into(),
                finish: Some("end_turn".into()),
                ..Seen::default()
            },
        };
        assert_eq!(seen_messages(&data(&out)), expected, "{name}");
        let response: Value = serde_json::from_str(&parser.response().unwrap()).unwrap();
        let block = match response["content"].as_array().unwrap().as_slice() {
            [block] => block,
            blocks => panic!("{name} has {blocks:?}"),
        };
        match expected.calls.is_empty() {
            true => assert_eq!(block["text"], text, "{name}"),
            false => assert_eq!(block["input"], json!({"a": 312, "b": 45}), "{name}"),
        }
    }
    assert_eq!(read, 2);
}

/// Name, text and tokens of every event that a call makes of `tokens`, `step` at a time.
fn called(
    prepared: &Arc<Prepared>,
    tokens: &[u32],
    step: usize,
) -> Vec<(Option<&'static str>, String, u32)> {
    let wanted = Wanted {
        response_id: "id".into(),
        created_unix_s: 1,
        ..Wanted::default()
    };
    let mut reader = Reader::new(Arc::clone(prepared), wanted).unwrap();
    let event = |kind| Event {
        request: RequestId(1),
        tag: 0,
        kind,
    };
    let usage = Usage {
        prompt_tokens: prepared.tokens.len() as u32,
        cached_tokens: 2,
        ..Usage::default()
    };
    let mut events = Vec::new();
    for (at, tokens) in tokens.chunks(step).enumerate() {
        let tokens = Tokens {
            tokens: tokens.to_vec(),
            first: (at == 0).then_some(First { usage, seed: 1 }),
            ..Tokens::default()
        };
        reader.adapt(event(EventKind::Tokens(tokens)), &mut events);
    }
    let done = Done {
        finish: FinishReason::Stop,
        failure: None,
        usage,
        detail: "{}".into(),
    };
    reader.adapt(event(EventKind::Done(done)), &mut events);
    let data = events.into_iter().filter_map(|event| match event.kind {
        EventKind::Data {
            name,
            data,
            token_count,
        } => Some((name, data, token_count)),
        _ => None,
    });
    data.collect()
}

#[test]
fn the_steps_of_a_call_gone_by_hand_give_the_same_events_byte_for_byte() {
    const TEXT: &str = "I plan.</think>Let me see.\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"f\">\n<｜DSML｜ parameter name=\"name\" string=\"true\">a \"b\" c</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n</｜DSML｜ calls><｜end▁of▁sentence｜>";
    let recipe = recipe(&json!({"id_seed": 3}));
    let messages = json!([{"role": "user", "content": "Say it."}]);
    let bodies = [
        (Protocol::ChatCompletions, body(json!({"tools": tools()}))),
        (
            Protocol::Messages,
            json!({"model": "DeepSeek-V4.1-Flash", "stream": true, "max_tokens": 100, "messages": messages,
                "thinking": {"type": "enabled"}, "tools": [{"name": "f", "input_schema": {"type": "object"}}]}),
        ),
        (
            Protocol::Conversation,
            json!({"encoding": "v4.1", "stream": true, "messages": messages, "tools": [{"name": "f"}]}),
        ),
    ];
    for (protocol, body) in bodies {
        let prepared = prepare_as(&recipe, protocol, &body, &json!({}));
        let tokens = written(&prepared, TEXT);
        for step in [1, 3, 1000] {
            let mut parser = Parser::new(&prepared).unwrap();
            let mut out = Output::default();
            let start = StartInfo {
                prompt_tokens: prepared.tokens.len() as u32,
                cached_tokens: 2,
                created_unix_s: 1,
                response_id: "id".into(),
                ..StartInfo::default()
            };
            parser.start(&start, &mut out).unwrap();
            for tokens in tokens.chunks(step) {
                parser.push(&id_chunk(tokens), &mut out).unwrap();
            }
            parser.finish(Finish::Stop, None, &mut out).unwrap();
            let by_hand = out.events();
            let by_hand: Vec<_> = by_hand
                .map(|event| (event.name, event.data.to_owned(), event.token_count))
                .collect();
            assert!(by_hand.len() > 4, "{by_hand:?}");
            assert_eq!(called(&prepared, &tokens, step), by_hand, "{protocol:?}");
        }
    }
}

#[test]
fn json_output_is_the_document_without_what_the_model_says_around_it() {
    let recipe = recipe(&json!({}));
    let body = without_thinking(json!({"response_format": {"type": "json_object"}}));
    let text = "Here you are:\n```json\n{\"a\": [1, 2]}\n```\nAnything else?";
    let answer = answer_of(&recipe, &body, &json!({}), text);
    assert_eq!(answer.seen.content, "{\"a\": [1, 2]}");
    // The host may read the same answer as plain text.
    let options = json!({"parsing": {"parse_json_output": false}});
    let answer = answer_of(&recipe, &body, &options, text);
    assert_eq!(answer.seen.content, text);
}

#[test]
fn a_stop_sequence_of_the_request_ends_the_answer_and_is_not_part_of_it() {
    let recipe = recipe(&json!({}));
    let body = without_thinking(json!({"stop": ["four", "END"]}));
    // Only the conversation protocol may show it.
    let options = json!({"include_stop_sequence": true});
    let answer = answer_of(&recipe, &body, &options, "one two three END and more text");
    assert_eq!(answer.seen.content, "one two three ");
    assert_eq!(answer.seen.finish.as_deref(), Some("stop"));
    assert_eq!(
        answer.parser.finish_reason(),
        Some((Finish::Stop, Some("END")))
    );
    let prepared = prepare(&recipe, &body, &json!({}));
    let all = written(&prepared, "one two three END and more text").len();
    assert!(answer.stopped_after.is_some_and(|after| after < all));
}

#[test]
fn ids_of_answers_and_calls_repeat_with_the_seed_and_differ_without() {
    const CALL: &str =
        "\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"f\">\n</｜DSML｜ invoke>\n</｜DSML｜ calls>";
    let seeded = recipe(&json!({"id_seed": 7}));
    let body = without_thinking(json!({"tools": tools()}));
    let made = |recipe: &Recipe, options: Value| {
        let answer = answer_of(recipe, &body, &options, CALL);
        assert_eq!(answer.seen.calls, [call("f", "{}")]);
        let message = &answer.response["choices"][0]["message"];
        let ids = [
            &answer.response["id"],
            &message["tool_calls"][0]["id"],
            &answer.events[0]["id"],
        ];
        ids.map(|id| id.as_str().unwrap().to_owned())
    };
    let first = made(&seeded, json!({}));
    assert!(first[0].starts_with("chatcmpl-") && first[0] == first[2]);
    assert!(first[1].starts_with("call_00_"));
    assert_eq!(made(&seeded, json!({})), first);
    let unseeded = recipe(&json!({}));
    assert_eq!(made(&unseeded, json!({"id_seed": 7})), first);
    let other = made(&seeded, json!({"id_seed": 8}));
    assert!(other[0] != first[0] && other[1] != first[1]);
    let random = made(&seeded, json!({"id_seed": null}));
    let again = made(&seeded, json!({"id_seed": null}));
    assert!(random[0] != again[0] && random[1] != again[1]);
}

#[test]
fn recovery_is_strict_where_the_host_says_so() {
    // No JSON, though the model says that it is.
    const BROKEN: &str = "<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"f\">\n<｜DSML｜ parameter name=\"name\" string=\"false\">Ada</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n</｜DSML｜ calls>";
    const REPAIRED: &str = r#"{"name": "Ada"}"#;
    const AS_WRITTEN: &str = r#"{"name": Ada}"#;
    let body = without_thinking(json!({"tools": tools()}));
    let robust = recipe(&json!({}));
    let strict = recipe(&json!({"recovery": "strict"}));
    for (recipe, options, arguments) in [
        (&robust, json!({}), REPAIRED),
        (&robust, json!({"recovery": "strict"}), AS_WRITTEN),
        (&strict, json!({}), AS_WRITTEN),
        (&strict, json!({"recovery": "robust"}), REPAIRED),
    ] {
        let answer = answer_of(recipe, &body, &options, BROKEN);
        assert_eq!(answer.seen.calls, [call("f", arguments)], "{options}");
        let repaired = answer.parser.diagnostics().contains("\"R8\"");
        assert_eq!(repaired, arguments == REPAIRED, "{options}");
    }
}

#[test]
fn reasoning_that_never_ended_is_content_if_the_host_wants_it() {
    let recipe = recipe(&json!({}));
    for (options, content) in [
        (json!({}), ""),
        (json!({"unterminated_reasoning": "content"}), "It is 4."),
    ] {
        let answer = answer_of(&recipe, &body(json!({})), &options, "It is 4.");
        assert_eq!(answer.seen.reasoning, "It is 4.");
        assert_eq!(answer.seen.content, content, "{options}");
        let message = &answer.response["choices"][0]["message"];
        assert_eq!(message["content"], content, "{options}");
    }
}

#[test]
fn usage_and_fingerprint_are_written_as_the_host_chose() {
    let recipe = recipe(&json!({"usage_chunk": "openai", "system_fingerprint": "fp_1"}));
    let body = without_thinking(json!({"stream_options": {"include_usage": true}}));
    let answer = answer_of(&recipe, &body, &json!({}), "Yes.");
    let last = answer.events.last().unwrap();
    assert_eq!(last["choices"], json!([]));
    assert!(last["usage"]["completion_tokens"].as_u64() > Some(0));
    for event in &answer.events {
        assert_eq!(event["system_fingerprint"], "fp_1");
    }
    let options = json!({"usage_chunk": "deepseek", "system_fingerprint": null});
    let answer = answer_of(&recipe, &body, &options, "Yes.");
    let last = answer.events.last().unwrap();
    assert_eq!(last["choices"][0]["finish_reason"], "stop");
    assert!(last["usage"].is_object() && last["system_fingerprint"].is_null());
}

#[test]
fn a_start_after_output_counts_if_the_host_says_so() {
    for (late_ready, prompt_tokens) in [("ignore", 0), ("correct", 9)] {
        let recipe = recipe(&json!({"late_ready": late_ready}));
        let prepared = prepare(&recipe, &without_thinking(json!({})), &json!({}));
        let mut parser = Parser::new(&prepared).unwrap();
        let mut out = Output::default();
        let tokens = written(&prepared, "Yes.");
        parser.push(&id_chunk(&tokens), &mut out).unwrap();
        let late = StartInfo {
            prompt_tokens: 9,
            ..StartInfo::default()
        };
        parser.start(&late, &mut out).unwrap();
        parser.finish(Finish::Stop, None, &mut out).unwrap();
        assert_eq!(parser.usage().prompt_tokens, prompt_tokens, "{late_ready}");
    }
}

#[test]
fn an_answer_is_read_with_the_spellings_that_the_prompt_was_written_with() {
    let recipe = recipe(&json!({"special_tokens": {
        "eos": "<|EOT|>", "thinking_start": "<｜query｜>", "thinking_end": "<｜title｜>",
        "dsml": "<｜task｜>",
    }}));
    let body = body(json!({"tools": tools()}));
    for recovery in ["robust", "strict"] {
        let options = json!({"recovery": recovery});
        let prepared = prepare(&recipe, &body, &options);
        assert!(prepared.prompt.text.ends_with("<｜query｜>"));
        assert!(prepared.prompt.text.contains("<<｜task｜> calls>"));
        let text = "I </think> plan.<｜title｜>Now.\n\n<<｜task｜> calls>\n<<｜task｜> invoke name=\"f\">\n<<｜task｜> parameter name=\"count\" string=\"false\">3</<｜task｜> parameter>\n</<｜task｜> invoke>\n</<｜task｜> calls>";
        let answer = answer(&prepared, &written(&prepared, text));
        let expected = Seen {
            reasoning: "I </think> plan.".into(),
            content: "Now.".into(),
            calls: vec![call("f", "{\"count\": 3}")],
            finish: Some("tool_calls".into()),
        };
        assert_eq!(answer.seen, expected, "{recovery}");
    }
    let tokens = "<｜title｜>Bye.<|EOT|> more";
    let answer = answer_of(&recipe, &body, &json!({}), tokens);
    assert_eq!(answer.seen.content, "Bye.");
    assert!(answer.stopped_after.is_some());
}

#[test]
fn text_is_read_with_spellings_that_look_like_no_tags() {
    let options = json!({"special_tokens": {
        "eos": "[end]", "thinking_start": "[think]", "thinking_end": "[/think]", "dsml": "§",
    }});
    let options = RecipeOptions {
        options_json: options.to_string(),
        ..RecipeOptions::default()
    };
    let recipe = Recipe::open(&options).unwrap();
    let text = "A [/plan].[/think]Now.\n\n<§ calls>\n<§ invoke name=\"f\">\n<§ parameter name=\"name\" string=\"true\">[/think]</§ parameter>\n</§ invoke>\n</§ calls>[end]";
    let expected = Seen {
        reasoning: "A [/plan].".into(),
        content: "Now.".into(),
        calls: vec![call("f", "{\"name\": \"[/think]\"}")],
        finish: Some("tool_calls".into()),
    };
    let characters: Vec<String> = text.chars().map(String::from).collect();
    for recovery in ["robust", "strict"] {
        let options = json!({"recovery": recovery});
        let prepared = prepare(&recipe, &body(json!({"tools": tools()})), &options);
        let whole = answer_in(&prepared, std::iter::once(text_chunk(text)));
        assert_eq!(whole.seen, expected, "{recovery}");
        let pieces = characters.iter().map(|piece| text_chunk(piece));
        let by_character = answer_in(&prepared, pieces);
        assert_eq!(by_character.seen, expected, "{recovery} by character");
    }
}

#[test]
fn a_marker_without_a_spelling_is_never_read() {
    const TEXT: &str = "All <b>of</b> it.";
    let recipe = recipe(&json!({"special_tokens": {"thinking_end": ""}}));
    for recovery in ["robust", "strict"] {
        let options = json!({"recovery": recovery});
        let prepared = prepare(&recipe, &body(json!({})), &options);
        let answer = answer_in(&prepared, std::iter::once(text_chunk(TEXT)));
        assert_eq!(answer.seen.reasoning, TEXT, "{recovery}");
        assert_eq!(answer.seen.content, "", "{recovery}");
    }
}
