//! Text with a gap, quick instructions, and what becomes of their answers.

use std::sync::Arc;

use fathom::call::request::{Submit, of_prepared};
use fathom::recipe::stream::{Chunk, Finish, Output, Parser};
use fathom::recipe::{Stage, ThinkingStage};
use serde_json::{Value, json};

use super::{File, described, prepare, prepare_with, prepared, tokenizer, user};

#[test]
fn a_text_with_a_gap_is_rendered_between_its_tokens() {
    let fim = json!({"prefix": "def f(", "suffix": "):\n    </think>"});
    for (file, encoding) in [(File::V4, "v4"), (File::V41, "v4.1")] {
        let request = json!({"encoding": encoding, "fim": fim, "thinking_mode": false, "stream": true,
            "inference": {"max_tokens": 5, "temperature": 0.5}, "parsing": {"stop_sequences": ["\n\n"]}});
        let prepared = prepare_with(file, &json!({}), &request).expect("it is valid");
        let text = |text: &str| tokenizer(file).encode(text, &[]).expect("it encodes");
        let expected = [
            vec![0, 128_801],
            text("def f("),
            vec![128_800],
            text("):\n    </think>"),
            vec![128_802],
        ];
        assert_eq!(prepared.tokens, expected.concat());
        assert_eq!(prepared.special_ranges().len(), 4);
        let options = described(&prepared);
        assert_eq!(options["conversation"]["fim"], fim);
        assert_eq!(options["conversation"]["thinking_mode"], false);
        assert_eq!(options["conversation"]["messages"], json!([]));
        assert_eq!(
            options["parsing_options"],
            json!({"parse_tool_calls": false, "starts_in_tool_calls": false, "parse_json_output": false,
                "thinking_initial_stage": null, "stop_sequences": ["\n\n"]})
        );
        assert_eq!(prepared.inference.temperature, 0.5);
        assert_eq!((prepared.max_tokens, prepared.response.stream), (5, true));
    }
    let prepared = prepared(&json!({"fim": {"prefix": "", "suffix": ""}}));
    assert_eq!(prepared.tokens, [0, 128_801, 128_800, 128_802]);
    assert_eq!(prepared.max_tokens, 8192);
}

#[test]
fn a_text_with_a_gap_has_nothing_of_a_conversation() {
    let fim = json!({"prefix": "", "suffix": ""});
    for (key, value) in [
        ("messages", json!([])),
        ("tools", json!([])),
        ("tool_choice", json!("none")),
        ("reasoning_effort", json!("low")),
        ("response_format", json!({"type": "text"})),
        ("task", json!("title")),
        ("thinking_mode", json!(true)),
    ] {
        let error = prepare(&json!({"fim": fim, key: value})).expect_err(key);
        assert_eq!(
            (error.stage, error.param.as_str()),
            (Stage::Deserialize, key)
        );
    }
    // Defaults of the host that speak of conversations do not reach it.
    let options = json!({"task": "title", "effort": "max"});
    let request = json!({"encoding": "v4.1", "fim": fim});
    let prepared = prepare_with(File::V41, &options, &request).expect("it is valid");
    assert_eq!(prepared.tokens, [0, 128_801, 128_800, 128_802]);
    assert!(!prepared.conversation.thinking_mode);
}

#[test]
fn a_task_heads_the_answer_to_the_last_user_turn() {
    let tasks = [
        ("query", 128_830),
        ("authority", 128_831),
        ("domain", 128_832),
        ("title", 128_836),
        ("read_url", 128_845),
    ];
    for (file, encoding) in [(File::V4, "v4"), (File::V41, "v4.1")] {
        let prepare = |task: &str, more: Value| {
            let mut request = json!({"encoding": encoding, "task": task, "messages": [user("u")]});
            let more = more.as_object().expect("fields").clone();
            request.as_object_mut().expect("a map").extend(more);
            // The request's own task wins over that of the host.
            prepare_with(file, &json!({"task": "domain"}), &request).expect("it is valid")
        };
        let tools = json!({"tools": [{"name": "f"}], "tool_choice": "required"});
        for (task, id) in tasks {
            let titled = prepare(task, json!({}));
            assert!(
                titled.tokens.ends_with(&[87, id]),
                "{task} {:?}",
                titled.tokens
            );
            assert_eq!(titled.parsing.thinking_initial_stage, None);
            // The token stands where a required call would begin.
            let required = prepare(task, tools.clone());
            assert_eq!(required.tokens.last(), Some(&id));
            assert!(!required.parsing.starts_in_tool_calls);
        }
        let action = prepare("action", json!({}));
        assert!(action.tokens.ends_with(&[128_804, 128_821, 128_829]));
        assert_eq!(
            action.parsing.thinking_initial_stage,
            Some(ThinkingStage::ReasoningStart)
        );
        let action = prepare("action", json!({"thinking_mode": false}));
        assert!(action.tokens.ends_with(&[128_804, 128_822, 128_829]));

        let said = |prefix: bool| {
            json!({"messages": [user("u"), {"role": "latest_reminder", "content": "l"},
                {"role": "assistant", "content": "c", "reasoning_content": "r", "prefix": prefix}]})
        };
        // An answer that follows has the token for its header, and the next one is an ordinary answer.
        let answered = prepare("title", said(false));
        let tail = "<｜latest_reminder｜>l<｜title｜>c<｜end▁of▁sentence｜><｜Assistant｜><think>";
        assert!(
            answered.prompt.text.ends_with(tail),
            "{}",
            answered.prompt.text
        );
        assert_eq!(
            answered.parsing.thinking_initial_stage,
            Some(ThinkingStage::ReasoningStart)
        );
        let continued = prepare("title", said(true));
        assert!(
            continued.prompt.text.ends_with("<｜title｜>c"),
            "{}",
            continued.prompt.text
        );
        assert_eq!(continued.parsing.thinking_initial_stage, None);
        // Without a user's turn there is still the answer to come.
        let nothing = prepare("title", json!({"messages": []}));
        assert_eq!(nothing.tokens.last(), Some(&128_836));
    }
}

#[test]
fn the_engine_takes_every_request_and_the_parser_reads_the_answer() {
    for request in [
        json!({"messages": [user("u")]}),
        json!({"messages": [user("u")], "task": "title"}),
        json!({"fim": {"prefix": "a", "suffix": "b"}}),
    ] {
        let mut request = request;
        request["thinking_mode"] = json!(false);
        request["parsing"] = json!({"stop_sequences": ["END"]});
        let prepared = Arc::new(prepared(&request));
        let submitted = of_prepared(&prepared, Submit::default(), 4096).expect("it can be run");
        assert_eq!(submitted.prompt, prepared.tokens);
        let mut parser = Parser::new(&prepared).expect("its answer can be read");
        let mut out = Output::default();
        let tokens = tokenizer(File::V41)
            .encode("\n<tag> END", &[])
            .expect("it encodes");
        let chunk = Chunk {
            tokens: &tokens,
            ..Chunk::default()
        };
        parser.push(&chunk, &mut out).expect("tokens are read");
        assert_eq!(out.done, Some(Finish::Stop));
        let names: Vec<_> = out.events().filter_map(|event| event.name).collect();
        assert_eq!(names, ["start", "content", "finish"]);
        let response = parser.response().expect("there is one");
        let response: Value = serde_json::from_str(&response).expect("it is JSON");
        // Only an answer of its own loses the newlines in front.
        let content = response["content"].as_str().expect("a text");
        assert_eq!(content.trim_start(), "<tag> ");
        assert_eq!(response["finish_reason"], "stop_sequence");
    }
    let image = json!({"messages": [{"role": "user", "content": "<｜image｜>",
        "image_sources": [{"kind": "url", "url": "http://e.test"}]}]});
    assert!(of_prepared(&prepared(&image), Submit::default(), 4096).is_err());
}
