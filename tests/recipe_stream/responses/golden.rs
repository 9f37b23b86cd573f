//! What the demo model wrote: from the request to the response, read by hand and by the adapter of calls.

use std::sync::Arc;

use fathom::call::{Answer, ErrorStyle, Reader};
use fathom::engine::RequestId;
use fathom::engine::request::{
    Adapter, Done, Event, EventKind, Failure, FinishReason, First, Tokens, Usage,
};
use fathom::engine::{Code, Error};
use fathom::recipe::stream::{Finish, Output, Parser, StartInfo, Usage as ParserUsage};
use fathom::recipe::{Prepared, Protocol, Recipe, RecipeOptions};
use serde_json::{Value, json};

use super::client::{Client, events};
use super::request;
use crate::recipe_support::{demo_cases, demo_model, ids};
use crate::support::id_chunk;

fn prepare(request: &Value) -> Arc<Prepared> {
    let options = RecipeOptions {
        tokenizer_path: Some(demo_model()),
        options_json: json!({"id_seed": 4}).to_string(),
        ..RecipeOptions::default()
    };
    let recipe = Recipe::open(&options).unwrap();
    let body = request.to_string();
    Arc::new(
        recipe
            .prepare(Protocol::Responses, body.as_bytes(), None)
            .unwrap(),
    )
}

/// The recorded output of a case, its end token included.
fn output(name: &str) -> Vec<u32> {
    let cases = demo_cases();
    let case = cases.iter().find(|case| case["name"] == name).unwrap();
    ids(&case["output_ids"])
}

fn usage(prepared: &Prepared) -> Usage {
    Usage {
        prompt_tokens: prepared.tokens.len() as u32,
        cached_tokens: 1,
        ..Usage::default()
    }
}

/// Reads `tokens`, so many at a time, as a host does that has a parser.
fn by_hand(
    prepared: &Arc<Prepared>,
    tokens: &[u32],
    step: usize,
    finish: Finish,
) -> (Output, String) {
    let mut parser = Parser::new(prepared).unwrap();
    let mut out = Output::default();
    let usage = usage(prepared);
    let info = StartInfo {
        prompt_tokens: usage.prompt_tokens,
        cached_tokens: usage.cached_tokens,
        response_id: "resp_x".into(),
        created_unix_s: 5,
        ..StartInfo::default()
    };
    parser.start(&info, &mut out).unwrap();
    for tokens in tokens.chunks(step) {
        parser.push(&id_chunk(tokens), &mut out).unwrap();
    }
    let usage = ParserUsage {
        prompt_tokens: usage.prompt_tokens,
        cached_tokens: usage.cached_tokens,
        ..ParserUsage::default()
    };
    parser.finish(finish, Some(&usage), &mut out).unwrap();
    (out, parser.response().unwrap())
}

/// Reads the same as a call does.
fn called(
    prepared: &Arc<Prepared>,
    tokens: &[u32],
    step: usize,
    whole: bool,
    end: (FinishReason, Option<Failure>),
) -> Vec<(Option<&'static str>, String)> {
    let answer = Answer {
        response_id: "resp_x".into(),
        created_unix_s: 5,
        whole,
        style: ErrorStyle::default(),
    };
    let mut reader = Reader::new(Arc::clone(prepared), answer).unwrap();
    let mut out = Vec::new();
    let event = |kind| Event {
        request: RequestId(1),
        tag: 0,
        kind,
    };
    for (at, tokens) in tokens.chunks(step).enumerate() {
        let first = First {
            usage: usage(prepared),
            seed: 0,
        };
        let tokens = Tokens {
            tokens: tokens.to_vec(),
            first: (at == 0).then_some(first),
            ..Tokens::default()
        };
        reader.adapt(event(EventKind::Tokens(tokens)), &mut out);
    }
    let done = Done {
        finish: end.0,
        failure: end.1,
        usage: usage(prepared),
        detail: "{}".into(),
    };
    reader.adapt(event(EventKind::Done(done)), &mut out);
    let data = out.into_iter().filter_map(|event| match event.kind {
        EventKind::Data { name, data, .. } => Some((name, data)),
        _ => None,
    });
    data.collect()
}

/// Both ways give the same events, byte for byte, in steps of any size.
#[track_caller]
fn read(request: &Value, tokens: &[u32], length: bool) -> Client {
    let prepared = prepare(request);
    let finish = match length {
        true => (Finish::Length, FinishReason::Length),
        false => (Finish::Stop, FinishReason::Stop),
    };
    let mut client = None;
    for step in [1, 3, 1000] {
        let (out, response) = by_hand(&prepared, tokens, step, finish.0);
        let hand: Vec<_> = out.events().map(|e| (e.name, e.data.to_owned())).collect();
        assert_eq!(
            called(&prepared, tokens, step, false, (finish.1, None)),
            hand
        );
        let whole = called(&prepared, tokens, step, true, (finish.1, None));
        assert_eq!(whole, [(None, response.clone())]);
        let read = Client::of(&events(&out));
        assert_eq!(
            serde_json::from_str::<Value>(&response).unwrap(),
            read.response
        );
        let usage = &read.response["usage"];
        assert_eq!(usage["input_tokens"], prepared.tokens.len());
        assert_eq!(usage["output_tokens"], tokens.len());
        client = Some(read);
    }
    client.unwrap()
}

#[test]
fn a_story() {
    let story = output("story");
    let client = read(
        &request(&json!({"input": "Tell me a story."})),
        &story,
        false,
    );
    assert!(
        client.seen.content.starts_with("Once upon a time"),
        "{:?}",
        client.seen
    );
    assert_eq!(client.items.len(), 1);
    // Cut off by the limit.
    let client = read(
        &request(&json!({"max_output_tokens": 9})),
        &story[..9],
        true,
    );
    assert_eq!(
        client.response["incomplete_details"]["reason"],
        "max_output_tokens"
    );
    assert_eq!(client.items[0]["status"], "incomplete");
}

#[test]
fn thinking() {
    let cases = demo_cases();
    let case = cases
        .iter()
        .find(|case| case["protocol"] == "responses")
        .unwrap();
    assert_eq!(prepare(&case["request"]).tokens, ids(&case["prompt_ids"]));
    let client = read(&case["request"], &ids(&case["output_ids"]), false);
    assert_eq!(
        client.seen.reasoning,
        "86 - 52: ones 6 - 2 = 4. tens 8 - 5 = 3. So 34."
    );
    assert_eq!(client.seen.content, "86 - 52 = 34");
    let details = &client.response["usage"]["output_tokens_details"];
    assert!(details["reasoning_tokens"].as_u64() > Some(10), "{details}");
}

#[test]
fn tool_calls() {
    let tools = json!([super::function("set_timer"), super::function("get_weather")]);
    let thinking = json!({"tools": tools, "reasoning": {"effort": "high"}});
    let client = read(
        &request(&thinking),
        &output("tool-call-parallel-thinking"),
        false,
    );
    let kinds: Vec<&Value> = client.items.iter().map(|item| &item["type"]).collect();
    assert_eq!(kinds, ["reasoning", "function_call", "function_call"]);
    assert_eq!(client.seen.calls[0].1, r#"{"minutes": 12, "label": "tea"}"#);
    assert_eq!(
        client.seen.calls[1],
        crate::support::call("get_weather", r#"{"city": "Rome"}"#)
    );
}

#[test]
fn json_output() {
    let format = json!({"type": "json_object"});
    let asked = json!({"input": "Anna is 7 years old, in json.", "text": {"format": format}});
    let client = read(&request(&asked), &output("json-schema"), false);
    assert_eq!(client.seen.content, r#"{"name": "Anna", "age": 7}"#);
    assert_eq!(client.response["text"]["format"], format);
}

#[test]
fn a_lost_engine_fails_the_response_that_has_begun() {
    let prepared = prepare(&request(&json!({})));
    let story = output("story");
    let lost = || {
        let error = Error::new(Code::DeviceLost, "", "the device is gone");
        (FinishReason::Error, Some(Failure::Engine(error)))
    };
    let told = called(&prepared, &story[..5], 2, false, lost());
    let told: Vec<Value> = told
        .iter()
        .map(|(_, data)| serde_json::from_str(data).unwrap())
        .collect();
    let client = Client::of(&told);
    assert_eq!(told.last().unwrap()["type"], "response.failed");
    assert_eq!(client.response["error"]["code"], "internal_error");
    assert_eq!(client.response["output"][0]["status"], "incomplete");
    // Before the first event the caller hears of it from the end alone.
    assert_eq!(called(&prepared, &[], 1, false, lost()), []);
    assert_eq!(called(&prepared, &story[..5], 2, true, lost()), []);
}
