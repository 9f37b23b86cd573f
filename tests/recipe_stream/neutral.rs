//! The neutral protocol: the parsed events under their own names, and the object with all of them.

use std::sync::Arc;

use fathom::recipe::stream::{Chunk, Finish, Output, Parser, ParserOptions, StartInfo};
use fathom::recipe::{Protocol, ThinkingStage};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::recipe_support::client::{of_chat, seen_neutral, seen_neutral_response};
use crate::splits::{any_finish, any_options, any_text, splittable};
use crate::support::{PARIS, Seen, Tokens, data, dsml, options, run, seen, text_chunk};

fn neutral() -> ParserOptions {
    ParserOptions {
        protocol: Protocol::Conversation,
        ..options()
    }
}

/// Pushes `pieces` as text and finishes.
fn answer(options: &ParserOptions, pieces: &[&str], finish: Finish) -> (Output, Parser) {
    let mut parser = Parser::with(options.clone(), None).unwrap();
    let mut out = Output::default();
    for piece in pieces {
        parser.push(&text_chunk(piece), &mut out).unwrap();
    }
    parser.finish(finish, None, &mut out).unwrap();
    (out, parser)
}

fn named(out: &Output) -> Vec<(&'static str, Value)> {
    let names = out.events().map(|event| event.name.unwrap());
    names.zip(data(out)).collect()
}

fn read(out: &Output) -> Seen {
    let events = named(out);
    seen_neutral(events.iter().map(|(name, data)| (*name, data)))
}

fn response(parser: &Parser) -> Value {
    serde_json::from_str(&parser.response().unwrap()).unwrap()
}

#[test]
fn every_event_says_what_the_parser_found() {
    let mut options = neutral();
    options.parsing.thinking_initial_stage = Some(ThinkingStage::ReasoningStart);
    let mut parser = Parser::with(options, None).unwrap();
    let mut out = Output::default();
    let info = StartInfo {
        prompt_tokens: 11,
        cached_tokens: 3,
        system_fingerprint: "fp".into(),
        ..StartInfo::default()
    };
    parser.start(&info, &mut out).unwrap();
    let text = format!("a \"plan\"</think>ok\n\n<D:tool_calls>{PARIS}</D:tool_calls>");
    parser.push(&text_chunk(&dsml(&text)), &mut out).unwrap();
    parser.finish(Finish::Stop, None, &mut out).unwrap();
    let whole = response(&parser);
    let id = whole["tool_calls"][0]["id"].as_str().unwrap();
    assert!(id.starts_with("call_00_") && id.len() == 32, "{id}");
    let events: Vec<(&str, &str)> = out
        .events()
        .map(|event| (event.name.unwrap(), event.data))
        .collect();
    let called = format!(r#"{{"index":0,"id":"{id}","name":"f"}}"#);
    let usage =
        r#"{"prompt_tokens":11,"cached_tokens":3,"completion_tokens":1,"reasoning_tokens":null}"#;
    let finish = format!(r#"{{"reason":"tool_calls","stop_sequence":null,"usage":{usage}}}"#);
    assert_eq!(
        events,
        [
            (
                "start",
                r#"{"system_fingerprint":"fp","prompt_tokens":11,"cached_tokens":3}"#
            ),
            ("reasoning", r#"{"text":"a \"plan\""}"#),
            ("content", r#"{"text":"ok"}"#),
            ("tool_call", called.as_str()),
            (
                "tool_call_arguments",
                r#"{"index":0,"text":"{\"c\": \"P\"}"}"#
            ),
            ("finish", finish.as_str()),
        ]
    );
    assert_eq!(
        parser.response().unwrap(),
        format!(
            r#"{{"reasoning":"a \"plan\"","content":"ok","tool_calls":[{{"id":"{id}","name":"f","arguments":"{{\"c\": \"P\"}}"}}],"finish_reason":"tool_calls","stop_sequence":null,"usage":{usage}}}"#
        )
    );
}

#[test]
fn every_reason_has_its_own_name() {
    for (finish, reason) in [
        (Finish::Stop, "stop"),
        (Finish::Length, "length"),
        (Finish::ContentFilter, "content_filter"),
        (Finish::EndOfStream, "end_of_stream"),
    ] {
        let (out, parser) = answer(&neutral(), &["x"], finish);
        assert_eq!(read(&out).finish.as_deref(), Some(reason));
        assert_eq!(response(&parser)["finish_reason"], reason);
    }
}

#[test]
fn the_matched_stop_sequence_is_named_and_may_be_part_of_the_content() {
    for (include, content) in [(false, "go "), (true, "go ST\"OP")] {
        let mut options = neutral();
        options.parsing.stop_sequences = vec!["ST\"OP".into()];
        options.stream.include_stop_sequence = include;
        let (out, parser) = answer(&options, &["go ST", "\"OP on"], Finish::Stop);
        let seen = read(&out);
        assert_eq!(
            (&*seen.content, seen.finish.as_deref()),
            (content, Some("stop_sequence"))
        );
        assert_eq!(named(&out).last().unwrap().1["stop_sequence"], "ST\"OP");
        let whole = response(&parser);
        assert_eq!(
            (&whole["content"], &whole["stop_sequence"]),
            (&json!(content), &json!("ST\"OP"))
        );
    }
}

#[test]
fn reasoning_tokens_are_null_unless_they_are_known() {
    let mut thinking = neutral();
    thinking.parsing.thinking_initial_stage = Some(ThinkingStage::ReasoningStart);
    for (options, vocabulary, expected) in [
        (&thinking, true, json!(4)),
        (&thinking, false, json!(null)),
        (&neutral(), true, json!(null)),
    ] {
        let vocabulary = vocabulary.then(|| Arc::new(Tokens::bytewise()) as _);
        let mut parser = Parser::with(options.clone(), vocabulary).unwrap();
        let mut out = Output::default();
        parser
            .push(&text_chunk("plan</think>ok"), &mut out)
            .unwrap();
        assert_eq!(response(&parser)["usage"], Value::Null);
        parser.finish(Finish::Stop, None, &mut out).unwrap();
        assert_eq!(
            named(&out).last().unwrap().1["usage"]["reasoning_tokens"],
            expected
        );
        assert_eq!(response(&parser)["usage"]["reasoning_tokens"], expected);
    }
}

#[test]
fn reasoning_is_null_where_there_was_none_to_expect() {
    let (_, parser) = answer(&neutral(), &["x"], Finish::Stop);
    assert_eq!(response(&parser)["reasoning"], Value::Null);
    let mut thinking = neutral();
    thinking.parsing.thinking_initial_stage = Some(ThinkingStage::ReasoningStart);
    let (_, parser) = answer(&thinking, &["</think>x"], Finish::Stop);
    assert_eq!(response(&parser)["reasoning"], "");
}

#[test]
fn an_error_ends_the_stream_at_any_moment() {
    for pieces in [&[][..], &["hi"], &["hi", " there"]] {
        let mut parser = Parser::with(neutral(), None).unwrap();
        let mut out = Output::default();
        for piece in pieces {
            parser.push(&text_chunk(piece), &mut out).unwrap();
        }
        let before = out.len();
        parser.fail(503, "engine \"lost\"", &mut out).unwrap();
        parser.push(&text_chunk("more"), &mut out).unwrap();
        parser.fail(503, "again", &mut out).unwrap();
        assert_eq!(out.len(), before + 1);
        let last = out.events().last().unwrap();
        assert_eq!(last.name, Some("error"));
        assert_eq!(last.data, r#"{"status":503,"message":"engine \"lost\""}"#);
        let whole = response(&parser);
        assert_eq!(whole["content"], pieces.concat());
        assert_eq!(
            (&whole["finish_reason"], &whole["usage"]),
            (&json!(null), &json!(null))
        );
    }
}

#[test]
fn logprobs_stand_beside_the_text_they_belong_to() {
    let mut options = neutral();
    options.parsing.thinking_initial_stage = Some(ThinkingStage::ReasoningStart);
    let vocabulary = Arc::new(Tokens::bytewise());
    let mut parser = Parser::with(options, Some(vocabulary)).unwrap();
    let mut out = Output::default();
    let tokens = Tokens::encode("a</think>b");
    let chunk = Chunk {
        tokens: &tokens,
        logprobs: &[-0.5, -1.0, -0.25],
        top_tokens: &[97, 98, u32::MAX],
        top_logprobs: &[-0.5, -1.5, 0.0],
        top_count: 1,
        ..Chunk::default()
    };
    parser.push(&chunk, &mut out).unwrap();
    let entry = |name: &str, text: &str, logprob: f64, top: Value| {
        let bytes = text.as_bytes();
        let entry = json!({"token": text, "logprob": logprob, "bytes": bytes, "top_logprobs": top});
        (name.to_owned(), json!({"text": text, "logprobs": [entry]}))
    };
    let top = json!([{"token": "a", "logprob": -0.5, "bytes": [97]}]);
    let events: Vec<(String, Value)> = named(&out)
        .into_iter()
        .skip(1)
        .map(|(name, data)| (name.to_owned(), data))
        .collect();
    assert_eq!(
        events,
        [
            entry("reasoning", "a", -0.5, top),
            entry("content", "b", -0.25, json!([]))
        ]
    );
}

/// Events with neighbouring texts joined. How much of the last chunk was counted depends on the chunk.
fn merged(out: &Output) -> Vec<(&'static str, Value)> {
    let mut all: Vec<(&'static str, Value)> = Vec::new();
    for (name, mut data) in named(out) {
        if let Some(usage) = data.get_mut("usage") {
            *usage = Value::Null;
        }
        if let Some((last_name, last)) = all.last_mut()
            && *last_name == name
            && let (Some(before), Some(text)) = (last["text"].as_str(), data["text"].as_str())
            && last["index"] == data["index"]
        {
            last["text"] = json!(format!("{before}{text}"));
            continue;
        }
        all.push((name, data));
    }
    all
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_split_gives_the_same_events_and_they_say_what_chat_completions_says(
        text in any_text(),
        options in any_options(),
        finish in any_finish(),
        step in 1usize..9,
    ) {
        let chat = splittable(options);
        let options = ParserOptions { protocol: Protocol::Conversation, ..chat.clone() };
        let (whole, parser) = answer(&options, &[&text], finish);
        let chars: Vec<char> = text.chars().collect();
        let pieces: Vec<String> = chars.chunks(step).map(|piece| piece.iter().collect()).collect();
        let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
        let (split, _) = answer(&options, &pieces, finish);
        // The ids of calls, too: they are seeded.
        prop_assert_eq!(merged(&split), merged(&whole));
        let ours = read(&whole);
        let theirs = seen(&run(&chat, &[&text], finish).0);
        let meant = Seen { finish: ours.finish.as_deref().map(|reason| of_chat(reason).to_owned()), ..ours.clone() };
        prop_assert_eq!(meant, theirs);
        prop_assert_eq!(seen_neutral_response(&response(&parser)), ours);
    }
}
