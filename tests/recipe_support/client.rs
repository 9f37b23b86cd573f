//! What a client puts together from the events of an answer.

use fathom::recipe::stream::{Chunk, Output};
use serde_json::Value;

/// The JSON of every event.
pub(crate) fn data(output: &Output) -> Vec<Value> {
    output
        .events()
        .map(|event| serde_json::from_str(event.data).expect(event.data))
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

/// Puts the events of Messages together, and insists on their order: one start, blocks that open, are filled and
/// close one after another, one ping, one end.
pub(crate) fn seen_messages(events: &[Value]) -> Seen {
    let mut seen = Seen::default();
    let (mut open, mut blocks, mut signed) = (None, 0, false);
    let mut before = "";
    for event in events {
        let kind = event["type"].as_str().unwrap();
        assert_eq!(before.is_empty(), kind == "message_start", "{event}");
        assert!(!matches!(before, "message_stop" | "error"), "{event}");
        assert_eq!(before == "message_delta", kind == "message_stop", "{event}");
        let pinged = before == "content_block_start" && blocks == 1;
        assert_eq!(pinged, kind == "ping", "{event}");
        assert!(!signed || kind == "content_block_stop", "{event}");
        match kind {
            "message_start" => assert_eq!(event["message"]["content"], Value::Array(vec![])),
            "ping" | "message_stop" | "error" => {}
            "content_block_start" => {
                assert_eq!((&open, event["index"].as_u64()), (&None, Some(blocks)));
                let block = &event["content_block"];
                open = block["type"].as_str();
                blocks += 1;
                if open == Some("tool_use") {
                    assert!(block["id"].as_str().unwrap().starts_with("call_"));
                    let name = block["name"].as_str().unwrap();
                    seen.calls.push((name.into(), String::new()));
                }
            }
            "content_block_delta" => {
                assert_eq!(event["index"].as_u64(), Some(blocks - 1));
                let delta = &event["delta"];
                let text = |field: &str| delta[field].as_str().unwrap();
                match (delta["type"].as_str().unwrap(), open.unwrap()) {
                    ("thinking_delta", "thinking") => seen.reasoning += text("thinking"),
                    ("text_delta", "text") => seen.content += text("text"),
                    ("input_json_delta", "tool_use") => {
                        seen.calls.last_mut().unwrap().1 += text("partial_json");
                    }
                    ("signature_delta", "thinking") => signed = !text("signature").is_empty(),
                    (delta, block) => panic!("{delta} in a block of {block}"),
                }
            }
            "content_block_stop" => {
                assert_eq!(event["index"].as_u64(), Some(blocks - 1));
                assert_eq!(open.take() == Some("thinking"), signed, "{event}");
                signed = false;
            }
            "message_delta" => {
                assert_eq!(open, None);
                seen.finish = Some(event["delta"]["stop_reason"].as_str().unwrap().into());
            }
            other => panic!("event {other}"),
        }
        before = kind;
    }
    seen
}

/// Puts neutral events together, and insists on one start and one end.
pub(crate) fn seen_neutral<'e>(events: impl IntoIterator<Item = (&'e str, &'e Value)>) -> Seen {
    let mut seen = Seen::default();
    let mut started = false;
    for (name, data) in events {
        assert_eq!(started, name != "start", "{name} {data}");
        assert_eq!(seen.finish, None, "{name} {data}");
        started = true;
        let text = || data["text"].as_str().unwrap();
        match name {
            "start" => {}
            "reasoning" => seen.reasoning += text(),
            "content" => seen.content += text(),
            "tool_call" => {
                assert_eq!(data["index"], seen.calls.len());
                assert!(data["id"].as_str().unwrap().starts_with("call_"));
                let name = data["name"].as_str().unwrap();
                seen.calls.push((name.into(), String::new()));
            }
            "tool_call_arguments" => {
                assert_eq!(data["index"], seen.calls.len() - 1);
                seen.calls.last_mut().unwrap().1 += text();
            }
            "finish" => seen.finish = Some(data["reason"].as_str().unwrap().into()),
            other => panic!("event {other}"),
        }
    }
    seen
}

/// What the complete response of the neutral protocol says.
pub(crate) fn seen_neutral_response(response: &Value) -> Seen {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let calls = response["tool_calls"].as_array().unwrap().iter();
    Seen {
        reasoning: text(&response["reasoning"]),
        content: text(&response["content"]),
        calls: calls
            .map(|call| (text(&call["name"]), text(&call["arguments"])))
            .collect(),
        finish: response["finish_reason"].as_str().map(str::to_owned),
    }
}

/// The finish of Chat Completions for a neutral reason.
pub(crate) fn of_chat(reason: &str) -> &str {
    match reason {
        "stop_sequence" | "end_of_stream" => "stop",
        other => other,
    }
}
