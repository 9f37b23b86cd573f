//! What a client puts together from the events of an answer.

use fathom::recipe::stream::{Chunk, Output};
use serde_json::Value;

/// The JSON of every event.
pub(crate) fn data(output: &Output) -> Vec<Value> {
    output
        .events
        .iter()
        .map(|event| serde_json::from_str(&event.data).expect(&event.data))
        .collect()
}

/// What a client puts together from the events.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Seen {
    pub(crate) reasoning: String,
    pub(crate) content: String,
    pub(crate) calls: Vec<(String, String)>,
    pub(crate) finish: Option<String>,
}

/// Puts the deltas of Chat Completions together.
pub(crate) fn seen(events: &[Value]) -> Seen {
    let mut seen = Seen::default();
    for event in events {
        let Some(choice) = event["choices"].get(0) else {
            continue;
        };
        let delta = &choice["delta"];
        seen.content += delta["content"].as_str().unwrap_or_default();
        seen.reasoning += delta["reasoning_content"].as_str().unwrap_or_default();
        for call in delta["tool_calls"].as_array().into_iter().flatten() {
            let index = call["index"].as_u64().unwrap() as usize;
            if let Some(name) = call["function"]["name"].as_str() {
                assert_eq!(index, seen.calls.len());
                seen.calls.push((name.into(), String::new()));
            }
            seen.calls[index].1 += call["function"]["arguments"].as_str().unwrap();
        }
        if let Some(finish) = choice["finish_reason"].as_str() {
            assert_eq!(seen.finish, None, "one finish only");
            seen.finish = Some(finish.into());
        }
    }
    seen
}

/// The content of these events.
pub(crate) fn seen_content(events: &[Value]) -> String {
    seen(events).content
}

/// A step of a backend that gives text, one token's worth.
pub(crate) fn text_chunk(text: &str) -> Chunk<'_> {
    Chunk {
        text: Some(text),
        text_tokens: 1,
        ..Chunk::default()
    }
}

/// A step of a backend that gives ids.
pub(crate) fn id_chunk(tokens: &[u32]) -> Chunk<'_> {
    Chunk {
        tokens,
        ..Chunk::default()
    }
}
