//! Any output in any split: the client sees a valid stream, and the same.

use std::sync::Arc;
use std::time::Instant;

use fathom::recipe::Protocol;
use fathom::recipe::options::{NamespacedTool, ResponseOptions};
use fathom::recipe::stream::{Output, Parser, ParserOptions};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::client::{Client, events};
use super::{calls, options};
use crate::splits::{any_finish, any_options, any_text, splittable};
use crate::support::{Tokens, dsml, id_chunk, text_chunk};

/// As in Chat Completions, with calls of every kind besides.
fn any_calls() -> impl Strategy<Value = String> {
    let names = proptest::sample::select(vec!["f", "apply_patch", "tool_search", "n::f", "a::b"]);
    let value = "(\\\\|u|d83e|n|\"|\\{|\n|é|🤭|[a-z]){0,12}";
    let one = (names, any::<bool>(), value).prop_map(|(name, input, value)| {
        let key = if input { "input" } else { "a" };
        dsml(&calls(&[(name, &[(key, &value)])]))
    });
    (any_text(), proptest::collection::vec(one, 0..3))
        .prop_map(|(text, calls)| text + &calls.concat())
}

fn of_responses(mut options: ParserOptions) -> ParserOptions {
    options.protocol = Protocol::Responses;
    options.response = ResponseOptions {
        stream: true,
        namespace_tool_map: vec![NamespacedTool {
            function: "n::f".into(),
            namespace: "n".into(),
            local: "f".into(),
        }],
        custom_tool_names: vec!["apply_patch".into()],
        client_tool_search: true,
        ..ResponseOptions::default()
    };
    splittable(options)
}

/// Events with everything made equal that may differ from run to run.
fn comparable(events: Vec<Value>) -> Vec<Value> {
    let events = events.into_iter().map(|mut event| {
        if let Some(response) = event["response"].as_object_mut() {
            for name in ["created_at", "completed_at", "usage"] {
                response[name] = json!(response[name].is_null());
            }
        }
        event
    });
    merged(events)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_split_gives_the_same_events(
        text in any_calls(),
        options in any_options(),
        finish in any_finish(),
        step in 1usize..40,
    ) {
        let options = of_responses(options);
        let run = |step: usize, ids: bool| {
            let mut parser = Parser::with(options.clone(), Some(Arc::new(Tokens::bytewise()))).unwrap();
            let mut out = Output::default();
            if ids {
                for ids in Tokens::encode(&text).chunks(step) {
                    parser.push(&id_chunk(ids), &mut out).unwrap();
                }
            } else {
                let chars: Vec<char> = text.chars().collect();
                for piece in chars.chunks(step) {
                    let piece: String = piece.iter().collect();
                    parser.push(&text_chunk(&piece), &mut out).unwrap();
                }
            }
            parser.finish(finish, None, &mut out).unwrap();
            let events = events(&out);
            let client = Client::of(&events);
            let response: Value = serde_json::from_str(&parser.response().unwrap()).unwrap();
            assert_eq!(response, client.response);
            let counted: u32 = out.events().map(|event| event.token_count).sum();
            assert!(counted <= parser.usage().completion_tokens);
            comparable(events)
        };
        for ids in [false, true] {
            let whole = run(usize::MAX, ids);
            prop_assert_eq!(run(step, ids), whole.clone());
            prop_assert_eq!(run(1, ids), whole);
        }
    }
}

/// Megabytes in small pieces, into each kind of item. Quadratic work would take hours.
#[test]
fn long_items_cost_linear_time() {
    let open = |name: &str, string: bool| {
        format!(
            "<D: calls><D: invoke name=\"{name}\"><D: parameter name=\"input\" string=\"{string}\">"
        )
    };
    for (lead, unit) in [
        (String::new(), "text"),
        (open("f", true), "\n\"x\\"),
        (open("apply_patch", true), "\n\"x\\"),
        (open("apply_patch", true), "\\ud83e"),
        (open("tool_search", true), "text"),
    ] {
        let mut parser = Parser::with(
            of_responses(options(&json!({"tools": [super::function("f")]}))),
            None,
        )
        .unwrap();
        let mut out = Output::default();
        parser.push(&text_chunk(&dsml(&lead)), &mut out).unwrap();
        let started = Instant::now();
        for _ in 0..1_000_000 / unit.len() {
            parser.push(&text_chunk(unit), &mut out).unwrap();
            out.clear();
        }
        assert!(started.elapsed().as_secs() < 60, "{lead}");
        parser
            .finish(fathom::recipe::stream::Finish::Stop, None, &mut out)
            .unwrap();
        // An unfinished search has no arguments.
        let searches = lead.contains("tool_search");
        assert!(searches || out.events().last().unwrap().data.len() > 1_000_000);
    }
}

/// Neighbouring deltas of one item become one, numbers go.
fn merged(events: impl IntoIterator<Item = Value>) -> Vec<Value> {
    let is_delta = |event: &Value| event["type"].as_str().unwrap().ends_with(".delta");
    let mut all: Vec<Value> = Vec::new();
    for mut event in events {
        event.as_object_mut().unwrap().remove("sequence_number");
        if !is_delta(&event) {
            all.push(event);
            continue;
        }
        if event["delta"] == "" {
            continue;
        }
        match all.last_mut() {
            Some(last) if is_delta(last) && last["item_id"] == event["item_id"] => {
                assert_eq!(last["type"], event["type"]);
                let text = [&last["delta"], &event["delta"]].map(|text| text.as_str().unwrap());
                last["delta"] = json!(text.concat());
                if let Some(more) = event["logprobs"].as_array() {
                    last["logprobs"]
                        .as_array_mut()
                        .unwrap()
                        .extend(more.iter().cloned());
                }
            }
            _ => all.push(event),
        }
    }
    all
}
