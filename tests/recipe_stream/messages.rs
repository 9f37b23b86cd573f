//! Messages: recorded answers, blocks of each kind, answers that were cut, stops, errors and usage.

use std::sync::Arc;

use fathom::recipe::stream::{
    Finish, LateReady, Output, Parser, ParserOptions, Recovery, StartInfo, UnterminatedReasoning,
    Usage,
};
use fathom::recipe::{Protocol, ThinkingStage};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::merge::hide_ids;
use crate::recipe_support::client::seen_messages;
use crate::splits::{any_finish, any_options, any_text, splittable};
use crate::support::{
    PARIS, Seen, Tokens, call, data, dsml, id_chunk, options, run, run_ids, seen, text_chunk,
};

fn messages() -> ParserOptions {
    ParserOptions {
        protocol: Protocol::Messages,
        ..options()
    }
}

fn thinking() -> ParserOptions {
    let mut options = messages();
    options.parsing.thinking_initial_stage = Some(ThinkingStage::ReasoningStart);
    options
}

/// The names and texts of the events, one a line.
fn written(out: &Output) -> Vec<String> {
    let line = |event: fathom::recipe::stream::Event<'_>| {
        let data: Value = serde_json::from_str(event.data).unwrap();
        assert_eq!(event.name, data["type"].as_str());
        event.data.to_owned()
    };
    out.events().map(line).collect()
}

fn response(parser: &Parser) -> Value {
    serde_json::from_str(&parser.response().unwrap()).unwrap()
}

/// The kind of a delta and its text, under which neighbours join; a signature stands alone.
fn joint(event: &Value) -> Option<(&'static str, &str)> {
    let delta = &event["delta"];
    let field = match delta["type"].as_str()? {
        "text_delta" => "text",
        "thinking_delta" => "thinking",
        "input_json_delta" => "partial_json",
        _ => return None,
    };
    Some((field, delta[field].as_str()?))
}

/// Neighbouring deltas of one block become one; empty deltas go.
fn merged(events: Vec<Value>) -> Vec<Value> {
    let mut all: Vec<Value> = Vec::new();
    for mut event in events {
        hide_ids(&mut event);
        if let Some((field, text)) = joint(&event) {
            if text.is_empty() {
                continue;
            }
            if let Some(last) = all.last_mut()
                && let Some((last_field, before)) = joint(last)
                && (last_field, &last["index"]) == (field, &event["index"])
            {
                let joined = format!("{before}{text}");
                last["delta"][field] = json!(joined);
                continue;
            }
        }
        all.push(event);
    }
    all
}

fn without_usage(mut events: Vec<Value>) -> Vec<Value> {
    for event in &mut events {
        event.as_object_mut().unwrap().remove("usage");
    }
    events
}

/// What a complete message says, the calls with the text of their input.
fn seen_response(response: &Value) -> Seen {
    let mut seen = Seen::default();
    for block in response["content"].as_array().unwrap() {
        match block["type"].as_str().unwrap() {
            "thinking" => {
                assert!(seen.reasoning.is_empty() && seen.content.is_empty());
                seen.reasoning = block["thinking"].as_str().unwrap().into();
            }
            "text" => {
                assert!(seen.content.is_empty() && seen.calls.is_empty());
                seen.content = block["text"].as_str().unwrap().into();
            }
            "tool_use" => {
                assert!(block["input"].is_object(), "{block}");
                let name = block["name"].as_str().unwrap();
                seen.calls.push((name.into(), block["input"].to_string()));
            }
            other => panic!("block {other}"),
        }
    }
    seen.finish = response["stop_reason"].as_str().map(str::to_owned);
    seen
}

/// Calls with their arguments as values, so that spaces do not count.
fn values(calls: &[(String, String)]) -> Vec<(String, Value)> {
    let value = |(name, arguments): &(String, String)| {
        let value = serde_json::from_str(arguments);
        (name.clone(), value.unwrap_or(json!("cut off")))
    };
    calls.iter().map(value).collect()
}

#[test]
fn a_text_block_is_opened_filled_and_closed() {
    let mut parser = Parser::with(messages(), None).unwrap();
    let mut out = Output::default();
    let info = StartInfo {
        prompt_tokens: 11,
        cached_tokens: 3,
        response_id: "msg_\"1\"".into(),
        model: "m".into(),
        ..StartInfo::default()
    };
    parser.start(&info, &mut out).unwrap();
    parser.push(&text_chunk("Hi \"you\"\n"), &mut out).unwrap();
    parser.push(&text_chunk("!"), &mut out).unwrap();
    parser.finish(Finish::Stop, None, &mut out).unwrap();
    let written = written(&out);
    assert_eq!(
        written,
        [
            r#"{"type":"message_start","message":{"id":"msg_\"1\"","type":"message","role":"assistant","model":"m","content":[],"stop_reason":null,"stop_sequence":null,"usage":{"input_tokens":8,"cache_creation_input_tokens":0,"cache_read_input_tokens":3,"output_tokens":0,"service_tier":"standard"}}}"#,
            r#"{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}"#,
            r#"{"type":"ping"}"#,
            r#"{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"Hi \"you\""}}"#,
            r#"{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"\n!"}}"#,
            r#"{"type":"content_block_stop","index":0}"#,
            r#"{"type":"message_delta","delta":{"stop_reason":"end_turn","stop_sequence":null},"usage":{"input_tokens":8,"cache_creation_input_tokens":0,"cache_read_input_tokens":3,"output_tokens":2,"service_tier":"standard"}}"#,
            r#"{"type":"message_stop"}"#,
        ]
    );
    assert_eq!(
        parser.response().unwrap(),
        r#"{"id":"msg_\"1\"","type":"message","role":"assistant","model":"m","content":[{"type":"text","text":"Hi \"you\"\n!"}],"stop_reason":"end_turn","stop_sequence":null,"usage":{"input_tokens":8,"cache_creation_input_tokens":0,"cache_read_input_tokens":3,"output_tokens":2,"service_tier":"standard"}}"#
    );
}

#[test]
fn a_thinking_block_is_opened_at_once_and_signed_at_its_end() {
    for (signature, expected) in [
        (None, "msg_x"),
        (Some("signed \"here\""), "signed \"here\""),
    ] {
        let mut options = thinking();
        options.stream.signature = signature.map(str::to_owned);
        let mut parser = Parser::with(options, None).unwrap();
        let mut out = Output::default();
        let info = StartInfo {
            response_id: "msg_x".into(),
            ..StartInfo::default()
        };
        parser.start(&info, &mut out).unwrap();
        assert_eq!(
            written(&out)[1..],
            [
                r#"{"type":"content_block_start","index":0,"content_block":{"type":"thinking","thinking":"","signature":""}}"#,
                r#"{"type":"ping"}"#,
            ]
        );
        parser.push(&text_chunk("plan"), &mut out).unwrap();
        // Nobody can vouch for what is not complete.
        let block = json!({"type": "thinking", "thinking": "plan", "signature": ""});
        assert_eq!(response(&parser)["content"], json!([block]));
        parser.push(&text_chunk("</think>ok"), &mut out).unwrap();
        assert_eq!(
            data(&out)[3..],
            [
                json!({"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": "plan"}}),
                json!({"type": "content_block_delta", "index": 0, "delta": {"type": "signature_delta", "signature": expected}}),
                json!({"type": "content_block_stop", "index": 0}),
                json!({"type": "content_block_start", "index": 1, "content_block": {"type": "text", "text": ""}}),
                json!({"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": "ok"}}),
            ]
        );
        let block = json!({"type": "thinking", "thinking": "plan", "signature": expected});
        assert_eq!(response(&parser)["content"][0], block);
    }
    // No reasoning is an empty block.
    let (events, parser) = run(&thinking(), &["</think>", "ok"], Finish::Stop);
    assert_eq!(seen_messages(&events).reasoning, "");
    let kinds = |value: &Value| value["content"][0]["type"].clone();
    assert_eq!(kinds(&response(&parser)), "thinking");
    assert_eq!(events[1]["content_block"]["type"], "thinking");
}

#[test]
fn reasoning_that_was_not_asked_for_has_a_block_too() {
    let text = "<think>plan</think>answer";
    let (events, parser) = run(&messages(), &[text], Finish::Stop);
    let seen = seen_messages(&events);
    assert_eq!((&*seen.reasoning, &*seen.content), ("plan", "answer"));
    assert_eq!(seen_response(&response(&parser)), seen);
}

#[test]
fn each_tool_call_has_a_block_of_its_own() {
    let empty = "<D:invoke name=\"now\">\n</D:invoke>";
    let text = dsml(&format!(
        "Let me see.\n\n<D:tool_calls>\n{PARIS}\n{empty}\n</D:tool_calls>"
    ));
    let (events, parser) = run(&messages(), &[&text], Finish::Stop);
    let expected = Seen {
        content: "Let me see.".into(),
        calls: vec![call("f", "{\"c\": \"P\"}"), call("now", "{}")],
        finish: Some("tool_use".into()),
        ..Seen::default()
    };
    assert_eq!(seen_messages(&events), expected);
    let mut blocks = events
        .iter()
        .filter(|event| event["type"] == "content_block_start")
        .map(|event| event["content_block"].clone());
    let response = response(&parser);
    assert_eq!(blocks.next(), Some(json!({"type": "text", "text": ""})));
    for (at, input) in [(1, json!({"c": "P"})), (2, json!({}))] {
        let mut block = blocks.next().unwrap();
        assert_eq!(block["input"], json!({}));
        block["input"] = input;
        assert_eq!(response["content"][at], block);
    }
    assert_eq!(response["stop_reason"], "tool_use");
    // A call without parameters says so once.
    let inputs: Vec<&Value> = events
        .iter()
        .filter(|event| event["index"] == 2 && event["type"] == "content_block_delta")
        .map(|event| &event["delta"])
        .collect();
    assert_eq!(
        inputs,
        [&json!({"type": "input_json_delta", "partial_json": "{}"})]
    );
}

#[test]
fn an_input_is_handed_out_as_the_model_wrote_it() {
    let value = "{\"n\": 12345678901234567890.10, \"s\": \"\\u00e9\"}";
    let text = dsml(&format!(
        "<D:tool_calls><D:invoke name=\"f\"><D:parameter name=\"a\" string=\"false\">{value}</D:parameter></D:invoke></D:tool_calls>"
    ));
    let (_, parser) = run(&messages(), &[&text], Finish::Stop);
    let response = parser.response().unwrap();
    let input = format!("\"input\":{{\"a\": {value}}}}}],");
    assert!(response.contains(&input), "{response}");
}

/// A message that was cut anywhere never has a call with an input nobody wrote, unless it says that it was cut.
#[test]
fn a_call_that_was_cut_off_is_not_handed_out_as_if_it_were_whole() {
    let second = PARIS.replace("\"f\"", "\"second\"");
    let text = dsml(&format!(
        "Hi\n\n<D:tool_calls>\n{PARIS}\n{second}\n</D:tool_calls>"
    ));
    let complete = json!({"c": "P"});
    let mut dropped = 0;
    for (cut, _) in text.char_indices().chain([(text.len(), ' ')]) {
        for (finish, reason) in [
            (Finish::Stop, None),
            (Finish::Length, Some("max_tokens")),
            (Finish::ContentFilter, Some("refusal")),
            (Finish::EndOfStream, Some("end_turn")),
        ] {
            let (events, parser) = run(&messages(), &[&text[..cut]], finish);
            let streamed = seen_messages(&events);
            let response = response(&parser);
            let whole = seen_response(&response);
            let finished = values(&streamed.calls)
                .into_iter()
                .filter(|(_, input)| *input == complete)
                .count();
            match reason {
                Some(reason) => {
                    assert_eq!(whole.finish.as_deref(), Some(reason), "{cut}");
                    assert_eq!(whole.calls.len(), streamed.calls.len(), "{cut}");
                }
                None => {
                    assert_eq!(whole.calls.len(), finished, "{cut}");
                    let reason = ["end_turn", "tool_use"][usize::from(finished > 0)];
                    assert_eq!(whole.finish.as_deref(), Some(reason), "{cut}");
                    dropped += streamed.calls.len() - finished;
                }
            }
            for (at, (_, input)) in values(&whole.calls).into_iter().enumerate() {
                let wanted = if at < finished { &complete } else { &json!({}) };
                assert_eq!(&input, wanted, "{cut}");
            }
            if finish != Finish::Stop {
                continue;
            }
            let mut strict = messages();
            strict.stream.recovery = Recovery::Strict;
            let (_, parser) = run(&strict, &[&text[..cut]], finish);
            let whole: Value = serde_json::from_str(&parser.response().unwrap()).unwrap();
            let blocks = whole["content"].as_array().unwrap();
            let calls = blocks.iter().filter(|block| block["type"] == "tool_use");
            assert_eq!(calls.count(), streamed.calls.len(), "{cut}");
        }
    }
    assert!(dropped > 50, "{dropped}");
    // Before the end nobody knows, either.
    let mut parser = Parser::with(messages(), None).unwrap();
    let mut out = Output::default();
    parser
        .push(&text_chunk(&text[..text.len() - 80]), &mut out)
        .unwrap();
    assert_eq!(seen_messages(&data(&out)).calls.len(), 2);
    assert_eq!(seen_response(&response(&parser)).calls.len(), 1);
}

#[test]
fn a_stop_sequence_is_named_and_not_part_of_the_text() {
    let mut options = messages();
    options.parsing.stop_sequences = vec!["END".into(), "ST\"OP".into()];
    let (events, parser) = run(&options, &["one ST", "\"OP two END"], Finish::Length);
    let seen = seen_messages(&events);
    assert_eq!(seen.content, "one ");
    assert_eq!(seen.finish.as_deref(), Some("stop_sequence"));
    let last = &events[events.len() - 2];
    assert_eq!(
        last["delta"],
        json!({"stop_reason": "stop_sequence", "stop_sequence": "ST\"OP"})
    );
    let response = response(&parser);
    assert_eq!(response["stop_reason"], "stop_sequence");
    assert_eq!(response["stop_sequence"], "ST\"OP");
    assert_eq!(response["usage"]["output_tokens"], 2);
}

#[test]
fn every_finish_has_a_stop_reason() {
    for (finish, reason) in [
        (Finish::Stop, "end_turn"),
        (Finish::Length, "max_tokens"),
        (Finish::ContentFilter, "refusal"),
        (Finish::EndOfStream, "end_turn"),
    ] {
        let (events, parser) = run(&messages(), &["x"], finish);
        assert_eq!(seen_messages(&events).finish.as_deref(), Some(reason));
        assert_eq!(response(&parser)["stop_reason"], reason);
    }
}

#[test]
fn an_error_may_come_at_any_moment_but_after_the_end() {
    let text = dsml(&format!("plan</think>Hi\n\n<D:tool_calls>\n{PARIS}"));
    for (cut, _) in text.char_indices().chain([(text.len(), ' ')]) {
        let mut parser = Parser::with(thinking(), None).unwrap();
        let mut out = Output::default();
        parser.push(&text_chunk(&text[..cut]), &mut out).unwrap();
        let before = out.len();
        parser.fail(529, "too \"busy\"", &mut out).unwrap();
        parser.push(&text_chunk("more"), &mut out).unwrap();
        parser.finish(Finish::Stop, None, &mut out).unwrap();
        parser.fail(500, "again", &mut out).unwrap();
        assert_eq!(out.len(), before + 1);
        assert_eq!(
            written(&out)[before],
            r#"{"type":"error","error":{"type":"overloaded_error","message":"too \"busy\""}}"#
        );
        assert_eq!(seen_messages(&data(&out)).finish, None);
        let response = response(&parser);
        assert_eq!(response["stop_reason"], Value::Null);
        assert_eq!(response["usage"]["output_tokens"], 0);
    }
    let (_, mut parser) = run(&messages(), &["x"], Finish::Stop);
    let mut out = Output::default();
    parser.fail(500, "late", &mut out).unwrap();
    assert!(out.is_empty());
}

#[test]
fn every_http_status_has_an_error_type() {
    for (status, kind) in [
        (400, "invalid_request_error"),
        (401, "authentication_error"),
        (403, "permission_error"),
        (404, "not_found_error"),
        (413, "request_too_large"),
        (429, "rate_limit_error"),
        (500, "api_error"),
        (503, "overloaded_error"),
        (504, "api_error"),
        (529, "overloaded_error"),
    ] {
        // Before any output the error stands alone.
        let mut parser = Parser::with(messages(), None).unwrap();
        let mut out = Output::default();
        parser.fail(status, "m", &mut out).unwrap();
        let expected = json!({"type": "error", "error": {"type": kind, "message": "m"}});
        assert_eq!(data(&out), [expected]);
        assert_eq!(out.events().next().unwrap().name, Some("error"));
        assert_eq!(response(&parser)["content"], json!([]));
    }
}

#[test]
fn input_tokens_are_those_that_no_cache_had() {
    for (late_ready, input, cached) in [(LateReady::Ignore, 0, 0), (LateReady::Correct, 15, 5)] {
        let mut options = messages();
        options.stream.late_ready = late_ready;
        let mut parser = Parser::with(options, None).unwrap();
        let mut out = Output::default();
        parser.push(&text_chunk("a"), &mut out).unwrap();
        let late = StartInfo {
            prompt_tokens: 20,
            cached_tokens: 5,
            ..StartInfo::default()
        };
        parser.start(&late, &mut out).unwrap();
        parser.finish(Finish::Stop, None, &mut out).unwrap();
        let usage = json!({"input_tokens": input, "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": cached, "output_tokens": 1, "service_tier": "standard"});
        let events = data(&out);
        assert_eq!(events[events.len() - 2]["usage"], usage);
        assert_eq!(response(&parser)["usage"], usage);
    }
    let mut parser = Parser::with(messages(), None).unwrap();
    let mut out = Output::default();
    let usage = Usage {
        prompt_tokens: 4,
        cached_tokens: 9,
        ..Usage::default()
    };
    parser.finish(Finish::Stop, Some(&usage), &mut out).unwrap();
    // More cached than asked for is nonsense, and no reason to fail.
    assert_eq!(response(&parser)["usage"]["input_tokens"], 0);
}

#[test]
fn reasoning_that_never_ended_may_be_the_content() {
    let mut options = thinking();
    options.stream.unterminated_reasoning = UnterminatedReasoning::Content;
    let (events, parser) = run(&options, &["the ", "answer"], Finish::Stop);
    let seen = seen_messages(&events);
    // What went out stands.
    assert_eq!(
        (&*seen.reasoning, &*seen.content),
        ("the answer", "the answer")
    );
    let whole = seen_response(&response(&parser));
    assert_eq!((&*whole.reasoning, &*whole.content), ("", "the answer"));
}

#[test]
fn tokens_are_counted_for_the_events_that_carry_them() {
    let text = format!("plan</think>Hi\n\n<D:tool_calls>\n{PARIS}\n</D:tool_calls>");
    let ids = Tokens::encode(&dsml(&text));
    for step in [1, 7, 1000] {
        let vocabulary = Arc::new(Tokens::bytewise());
        let mut parser = Parser::with(thinking(), Some(vocabulary)).unwrap();
        let mut out = Output::default();
        for tokens in ids.chunks(step) {
            parser.push(&id_chunk(tokens), &mut out).unwrap();
        }
        parser.finish(Finish::Stop, None, &mut out).unwrap();
        let counted = out.events().map(|event| event.token_count as usize);
        assert_eq!(counted.sum::<usize>(), ids.len());
    }
}

/// Quadratic work would take hours.
#[test]
fn a_hundred_thousand_calls_cost_linear_time() {
    for protocol in [Protocol::Messages, Protocol::Conversation] {
        let options = ParserOptions {
            protocol,
            ..options()
        };
        let mut parser = Parser::with(options, None).unwrap();
        let mut out = Output::default();
        parser
            .push(&text_chunk(&dsml("<D:tool_calls>")), &mut out)
            .unwrap();
        let call = dsml(PARIS);
        for _ in 0..100_000 {
            parser.push(&text_chunk(&call), &mut out).unwrap();
            out.clear();
        }
        parser.finish(Finish::Stop, None, &mut out).unwrap();
        let response = response(&parser);
        let calls = match protocol {
            Protocol::Messages => &response["content"],
            _ => &response["tool_calls"],
        };
        assert_eq!(calls.as_array().unwrap().len(), 100_000);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 800, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_split_gives_the_same_events_and_they_say_what_chat_completions_says(
        text in any_text(),
        options in any_options(),
        finish in any_finish(),
        step in 1usize..9,
    ) {
        let chat = splittable(options);
        let options = ParserOptions { protocol: Protocol::Messages, ..chat.clone() };
        let (whole, parser) = run(&options, &[&text], finish);
        let chars: Vec<char> = text.chars().collect();
        let pieces: Vec<String> = chars.chunks(step).map(|piece| piece.iter().collect()).collect();
        let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
        let (split, _) = run(&options, &pieces, finish);
        prop_assert_eq!(without_usage(merged(split)), without_usage(merged(whole.clone())));
        let ids = Tokens::encode(&text);
        let (by_ids, _) = run_ids(&options, &ids, step, finish);
        let (all_ids, _) = run_ids(&options, &ids, ids.len().max(1), finish);
        prop_assert_eq!(without_usage(merged(by_ids)), without_usage(merged(all_ids)));

        let ours = seen_messages(&whole);
        let theirs = seen(&run(&chat, &[&text], finish).0);
        prop_assert_eq!((&ours.reasoning, &ours.content, &ours.calls), (&theirs.reasoning, &theirs.content, &theirs.calls));

        let response = response(&parser);
        let message = seen_response(&response);
        prop_assert_eq!((&message.reasoning, &message.content), (&ours.reasoning, &ours.content));
        if options.stream.recovery == Recovery::Robust {
            let kept = values(&ours.calls).into_iter().filter(|(_, input)| input.is_object());
            let complete: Vec<_> = values(&message.calls).into_iter().filter(|(_, input)| *input != json!({})).collect();
            prop_assert_eq!(kept.filter(|(_, input)| *input != json!({})).collect::<Vec<_>>(), complete);
        }
    }
}
