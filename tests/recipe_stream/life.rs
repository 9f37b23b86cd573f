//! The life of a stream: start, end, errors, usage and ids; and its cost.

use std::sync::Arc;

use fathom::recipe::ThinkingStage;
use fathom::recipe::stream::{
    DeclaredTool, Finish, LateReady, Output, Parser, StartInfo, Usage, UsageChunk,
};
use serde_json::{Value, json};

use crate::support::{
    PARIS, Tokens, data, dsml, id_chunk, options, read, read_all_ways, run, run_ids, seen,
    text_chunk,
};

#[test]
fn the_push_in_which_a_stop_matches_closes_the_stream() {
    let mut options = options();
    options.parsing.stop_sequences = vec!["STOP".into()];
    let mut parser = Parser::with(options.clone(), None).unwrap();
    let mut out = Output::default();
    parser.push(&text_chunk("go ST"), &mut out).unwrap();
    assert_eq!(out.done, None);
    assert_eq!(seen(&data(&out)).content, "go ");
    parser.push(&text_chunk("OP more"), &mut out).unwrap();
    assert_eq!(out.done, Some(Finish::Stop));
    assert_eq!(seen(&data(&out)).finish.as_deref(), Some("stop"));
    assert_eq!(parser.finish_reason(), Some((Finish::Stop, Some("STOP"))));
    assert_eq!(parser.usage().completion_tokens, 2);
    let count = out.len();
    parser.push(&text_chunk("more"), &mut out).unwrap();
    parser.finish(Finish::Length, None, &mut out).unwrap();
    assert_eq!((out.len(), parser.usage().completion_tokens), (count, 2));
    options.stream.include_stop_sequence = true;
    assert_eq!(
        read(&options, "go STOP more", Finish::Stop).content,
        "go STOP"
    );
}

#[test]
fn the_end_token_ends_output_and_finish_still_gives_the_reason() {
    let ids = Tokens::encode("bye<｜end▁of▁sentence｜>more");
    for (finish, reason) in [(Finish::EndOfStream, "stop"), (Finish::Length, "length")] {
        let mut parser = Parser::with(options(), Some(Arc::new(Tokens::bytewise()))).unwrap();
        let mut out = Output::default();
        parser.push(&id_chunk(&ids), &mut out).unwrap();
        assert_eq!(out.done, Some(Finish::Stop));
        assert_eq!(seen(&data(&out)).finish, None);
        parser.push(&id_chunk(&ids), &mut out).unwrap();
        parser.finish(finish, None, &mut out).unwrap();
        let seen = seen(&data(&out));
        assert_eq!(
            (seen.content.as_str(), seen.finish.as_deref()),
            ("bye", Some(reason))
        );
        assert_eq!(parser.usage().completion_tokens, 4);
    }
    assert_eq!(
        read_all_ways(&options(), "a<｜end▁of▁sentence｜>", Finish::Stop).content,
        "a"
    );
}

#[test]
fn an_error_stays_the_same_error() {
    let mut parser = Parser::with(options(), Some(Arc::new(Tokens::bytewise()))).unwrap();
    let mut out = Output::default();
    parser.push(&id_chunk(&[104, 105]), &mut out).unwrap();
    let error = parser.push(&id_chunk(&[104, 777]), &mut out).unwrap_err();
    assert!(error.message.contains("777"), "{error}");
    assert_eq!(parser.push(&text_chunk("x"), &mut out), Err(error.clone()));
    assert_eq!(parser.finish(Finish::Stop, None, &mut out), Err(error));
    parser.fail(503, "engine \"lost\"", &mut out).unwrap();
    parser.fail(503, "again", &mut out).unwrap();
    let events = data(&out);
    let last = json!({"error": {"message": "engine \"lost\"", "type": "overloaded_error", "param": null, "code": "overloaded_error"}});
    assert_eq!(events.last(), Some(&last));
    assert_eq!(
        events
            .iter()
            .filter(|event| event.get("error").is_some())
            .count(),
        1
    );
    let response: Value = serde_json::from_str(&parser.response().unwrap()).unwrap();
    assert_eq!(response["choices"][0]["message"]["content"], "hi");
    assert!(response["choices"][0]["finish_reason"].is_null() && response.get("usage").is_none());
}

#[test]
fn a_failure_before_output_has_no_choice() {
    let mut parser = Parser::with(options(), None).unwrap();
    let mut out = Output::default();
    parser.fail(429, "busy", &mut out).unwrap();
    assert_eq!(data(&out)[0]["error"]["code"], "rate_limit_error");
    let response: Value = serde_json::from_str(&parser.response().unwrap()).unwrap();
    assert_eq!(response["choices"], json!([]));
    parser.push(&text_chunk("x"), &mut out).unwrap();
    assert_eq!(out.len(), 1);
}

#[test]
fn a_late_start_corrects_usage_only_when_asked() {
    for (late_ready, prompt) in [(LateReady::Ignore, 0), (LateReady::Correct, 20)] {
        let mut options = options();
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
        assert_eq!(data(&out).last().unwrap()["usage"]["prompt_tokens"], prompt);
    }
    let mut parser = Parser::with(options(), None).unwrap();
    let mut out = Output::default();
    let usage = Usage {
        prompt_tokens: 9,
        cached_tokens: 4,
        completion_tokens: 99,
        ..Usage::default()
    };
    parser.push(&text_chunk("a"), &mut out).unwrap();
    parser.finish(Finish::Stop, Some(&usage), &mut out).unwrap();
    let last = data(&out).pop().unwrap();
    assert_eq!(last["usage"]["total_tokens"], 10);
    assert_eq!(last["usage"]["prompt_cache_miss_tokens"], 5);
}

#[test]
fn usage_goes_where_the_client_expects_it() {
    for (include_usage, usage_chunk, keys, extra) in [
        (false, UsageChunk::Deepseek, 1, false),
        (true, UsageChunk::Deepseek, 3, false),
        (false, UsageChunk::Openai, 0, false),
        (true, UsageChunk::Openai, 4, true),
    ] {
        let mut options = options();
        options.response.include_usage = include_usage;
        options.stream.usage_chunk = usage_chunk;
        let (events, _) = run(&options, &["a"], Finish::Stop);
        assert_eq!(
            events.iter().filter(|e| e.get("usage").is_some()).count(),
            keys
        );
        assert_eq!(
            events.iter().filter(|e| e["usage"].is_object()).count(),
            usize::from(keys > 0)
        );
        assert_eq!(events.last().unwrap()["choices"] == json!([]), extra);
    }
}

#[test]
fn ids_and_fingerprint_come_from_the_options_when_nobody_gives_them() {
    let mut options = options();
    options.stream.system_fingerprint = Some("fp".into());
    options.stream.id_seed = Some(42);
    let text = dsml(&format!("<D:tool_calls>{PARIS}</D:tool_calls>"));
    let (first, _) = run(&options, &[&text], Finish::Stop);
    let (second, _) = run(&options, &[&text], Finish::Stop);
    assert_eq!(first[0]["id"], second[0]["id"]);
    assert_eq!(first[0]["system_fingerprint"], "fp");
    assert_eq!(
        first[1]["choices"][0]["delta"]["tool_calls"][0]["id"],
        second[1]["choices"][0]["delta"]["tool_calls"][0]["id"]
    );
    options.stream.id_seed = None;
    assert_ne!(
        run(&options, &[&text], Finish::Stop).0[0]["id"],
        first[0]["id"]
    );
}

#[test]
fn tokens_are_counted_for_the_events_that_carry_them() {
    let ids = Tokens::encode(&dsml(&format!(
        "Hi\n\n<D:tool_calls>\n{PARIS}\n</D:tool_calls>"
    )));
    for step in [1, 7, 1000] {
        let mut parser = Parser::with(options(), Some(Arc::new(Tokens::bytewise()))).unwrap();
        let mut out = Output::default();
        for tokens in ids.chunks(step) {
            parser.push(&id_chunk(tokens), &mut out).unwrap();
        }
        parser.finish(Finish::Stop, None, &mut out).unwrap();
        let counted: usize = out.events().map(|event| event.token_count as usize).sum();
        assert_eq!(
            (counted, parser.usage().completion_tokens as usize),
            (ids.len(), ids.len())
        );
    }
}

#[test]
fn recoveries_are_listed_with_code_offset_and_count() {
    let text = dsml(
        "Hi <D:tool_calls><D:invoke name=\"f\"><D:parameter name=\"a\" string=\"false\">x</D:parameter><D:parameter name=\"b\" string=\"false\">y</D:parameter></D:invoke></D:tool_calls>",
    );
    let (_, parser) = run(&options(), &[&text], Finish::Stop);
    let offset = text.find("x</").unwrap();
    assert_eq!(
        parser.diagnostics(),
        format!(r#"[{{"code":"R8","offset":{offset},"count":2}}]"#)
    );
    let (_, parser) = run(&options(), &["nothing to repair"], Finish::Stop);
    assert_eq!(parser.diagnostics(), "[]");
}

#[test]
fn reasoning_is_counted_by_ids_or_by_the_tokenizer() {
    let mut options = options();
    options.parsing.thinking_initial_stage = Some(ThinkingStage::ReasoningStart);
    // Dropped newlines are not reasoning; the count of tests is characters.
    let (_, parser) = run_ids(
        &options,
        &Tokens::encode("\n\nplan it\n</think>\nok"),
        4,
        Finish::Stop,
    );
    assert_eq!(parser.usage().reasoning_tokens, 7);
    let long = "plan it ".repeat(1000);
    let mut parser = Parser::with(options, Some(Arc::new(Tokens::bytewise()))).unwrap();
    let mut out = Output::default();
    for piece in long.as_bytes().chunks(5) {
        parser
            .push(&text_chunk(std::str::from_utf8(piece).unwrap()), &mut out)
            .unwrap();
    }
    parser.push(&text_chunk("</think>ok"), &mut out).unwrap();
    parser.finish(Finish::Stop, None, &mut out).unwrap();
    assert_eq!(parser.usage().reasoning_tokens as usize, long.len());
}

/// Declared tools are found by their names, however many there are.
#[test]
fn many_tools_and_calls_cost_no_search() {
    let count = 100_000;
    let mut options = options();
    let tool = |name: String, properties: Vec<String>| DeclaredTool { name, properties };
    let properties = (0..count).map(|at| format!("p{at}")).collect();
    let others = (0..count).map(|at| tool(format!("t{at}"), vec!["p".into()]));
    options.tools = Some(others.chain([tool("f".into(), properties)]).collect());
    let one = dsml(
        "<D:invoke name=\"f\"><D:parameter name=\"a\" string=\"true\">x</D:parameter></D:invoke>",
    );
    let mut parser = Parser::with(options, None).unwrap();
    let mut out = Output::default();
    let mut push = |text: &str| {
        parser.push(&text_chunk(text), &mut out).unwrap();
        out.clear();
    };
    push(&dsml("<D:tool_calls>"));
    for _ in 0..count {
        push(&one);
    }
    // A wrapper around all declared parameters.
    let all: Vec<String> = (0..count).map(|at| format!("\"p{at}\": 1")).collect();
    push(&dsml(
        "<D:invoke name=\"f\"><D:parameter name=\"input\" string=\"false\">{",
    ));
    push(&all.join(", "));
    push(&dsml("}</D:parameter></D:invoke>"));
    parser.finish(Finish::Stop, None, &mut out).unwrap();
    assert!(
        parser.diagnostics().contains("R13"),
        "{}",
        parser.diagnostics()
    );
}

/// Megabytes that defeat parsers which look at their input twice. Quadratic work would take hours.
#[test]
fn long_streams_cost_linear_time() {
    let open = dsml("<D:tool_calls><D:invoke name=\"f\"><D:parameter name=\"a\" string=\"false\">");
    let name = dsml("<D:tool_calls><D:invoke name=\"");
    let mut thinking = options();
    thinking.parsing.thinking_initial_stage = Some(ThinkingStage::ReasoningStart);
    let mut json_output = options();
    json_output.parsing.parse_json_output = true;
    let mut required = options();
    required.parsing.starts_in_tool_calls = true;
    let mut stops = options();
    stops.parsing.stop_sequences = vec!["a".repeat(5000) + "b", "\n\n\n\n\n\nx".into()];
    let mut repeats = options();
    repeats.parsing.stop_sequences = vec!["ab".repeat(3000) + "c"];
    let call = dsml("<D:tool_calls><D:invoke name=\"f\">");
    let parameter = dsml("<D:parameter name=\"a\" string=\"false\">1</D:parameter>\n");
    let calls = dsml("<D:invoke name=\"f\"></D:invoke>");
    let closers = dsml("x\n</D:invoke>");
    for (options, lead, unit) in [
        (&options(), "", "\u{FFFD}"),
        (&options(), "x", "\n"),
        (&thinking, "x", "\n"),
        (&options(), "", "<"),
        (&options(), "", "<｜"),
        (&options(), "", "<｜DSML｜"),
        (&options(), "", "<|DSML|calls>"),
        (&options(), "", "<｜DSML｜calls>x"),
        (&options(), "", "<｜DSML｜invoke "),
        (&options(), open.as_str(), "[1,"),
        (&options(), open.as_str(), "\n<｜"),
        (&options(), name.as_str(), "x"),
        (&json_output, "", "noise "),
        (&json_output, "", "`"),
        (&required, "", "text "),
        (&stops, "", "a"),
        (&repeats, "", "ab"),
        (&repeats, "", closers.as_str()),
        (&options(), "", closers.as_str()),
        (&options(), call.as_str(), parameter.as_str()),
        (&options(), call.as_str(), calls.as_str()),
        (&options(), call.as_str(), "{\"a\": "),
        (&options(), open.as_str(), "\"x\", "),
    ] {
        let mut parser = Parser::with(options.clone(), None).unwrap();
        let mut out = Output::default();
        parser.push(&text_chunk(lead), &mut out).unwrap();
        let piece = unit.repeat(4);
        for _ in 0..1_000_000 / piece.len() {
            parser.push(&text_chunk(&piece), &mut out).unwrap();
            out.clear();
        }
        parser.finish(Finish::Stop, None, &mut out).unwrap();
    }
    // Reasoning that is counted, without a place at which no token goes on.
    let vocabulary = Some(Arc::new(Tokens::bytewise()) as _);
    let mut parser = Parser::with(thinking, vocabulary).unwrap();
    let mut out = Output::default();
    for _ in 0..500_000 {
        parser.push(&text_chunk("a"), &mut out).unwrap();
        out.clear();
    }
    parser.finish(Finish::Stop, None, &mut out).unwrap();
    assert_eq!(parser.usage().reasoning_tokens, 500_000);
    // Bytes that never become a character, one token each.
    let mut parser = Parser::with(options(), Some(Arc::new(Tokens::bytewise()))).unwrap();
    let mut out = Output::default();
    for _ in 0..500_000 {
        parser.push(&id_chunk(&[0xAD]), &mut out).unwrap();
        assert!(!out.is_empty());
        out.clear();
    }
    assert_eq!(parser.usage().completion_tokens, 500_000);
}
