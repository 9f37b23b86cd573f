//! What a recipe keeps from one request for the next never changes an answer.

mod recipe_support;

use std::thread;

use fathom::recipe::{Protocol, Recipe};
use recipe_support::lines;
use recipe_support::requests::{File, protocol, recipe};
use serde_json::{Value, json};

/// Requests of the wire protocols that take no options, with their bodies.
fn requests() -> Vec<(Protocol, String)> {
    lines("recipe/encode.jsonl.gz")
        .iter()
        .filter(|vector| vector.get("error").is_none() && vector["options"] == json!({}))
        .filter(|vector| vector["protocol"] != "conversation")
        .map(|vector| {
            let body = match vector.get("request_raw") {
                Some(raw) => raw.as_str().expect("text").to_owned(),
                None => vector["request"].to_string(),
            };
            (protocol(vector), body)
        })
        .collect()
}

fn ids(recipe: &Recipe, (protocol, body): &(Protocol, String)) -> Vec<u32> {
    let prepared = recipe.prepare(*protocol, body.as_bytes(), None);
    prepared.unwrap_or_else(|error| panic!("{error}")).tokens
}

#[test]
fn ids_are_the_same_whatever_was_prepared_before() {
    let requests = requests();
    assert!(requests.len() > 400, "{}", requests.len());
    let plain = recipe(File::V41, &json!({"cache_bytes": 0}), 0);
    let expected: Vec<Vec<u32>> = requests
        .iter()
        .map(|request| ids(&plain, request))
        .collect();
    // Room for all, for little, and for almost nothing: entries come and go while they are used.
    for cache_bytes in [64 << 20, 200_000, 20_000] {
        let reusing = recipe(File::V41, &json!({"cache_bytes": cache_bytes}), 0);
        thread::scope(|scope| {
            for start in [0, requests.len() / 2] {
                let (reusing, requests, expected) = (&reusing, &requests, &expected);
                scope.spawn(move || {
                    for at in (start..requests.len())
                        .chain(0..start)
                        .chain(0..requests.len())
                    {
                        assert!(ids(reusing, &requests[at]) == expected[at], "{at}");
                    }
                });
            }
        });
    }
}

#[test]
fn an_agent_that_works_on_gets_the_same_ids() {
    let tools: Vec<Value> = (0..12)
        .map(|at| {
            json!({"type": "function", "function": {
                "name": format!("tool_{at}"),
                "description": "Does something useful with words, and tells what became of it. ".repeat(4),
                "parameters": {"type": "object", "properties": {"path": {"type": "string"}}},
            }})
        })
        .collect();
    let plain = recipe(File::V41, &json!({"cache_bytes": 0}), 0);
    let reusing = recipe(File::V41, &json!({}), 0);
    let mut messages = vec![json!({"role": "system", "content": "You work on files. ".repeat(40)})];
    for turn in 0..12 {
        messages
            .push(json!({"role": "user", "content": format!("Look at file {turn}. ").repeat(20)}));
        let body = json!({"model": "DeepSeek-V4.1-Flash", "tools": tools, "messages": messages});
        let request = (Protocol::ChatCompletions, body.to_string());
        assert!(
            ids(&reusing, &request) == ids(&plain, &request),
            "turn {turn}"
        );
        let id = format!("call_{turn}");
        messages.push(json!({"role": "assistant", "content": "", "tool_calls": [
            {"id": id, "type": "function", "function": {"name": "tool_3", "arguments": "{\"path\": \"a/b\"}"}}]}));
        messages.push(json!({"role": "tool", "tool_call_id": id, "content": "a line of text\n".repeat(turn * 9)}));
        messages.push(json!({"role": "assistant", "content": format!("Done with {turn}, it says a lot of things. ")}));
    }
}
