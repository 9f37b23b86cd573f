//! A client of streams in each protocol: it insists on the order of events, and puts the complete response together
//! from nothing but deltas, which must then be what the same request gives when it is not streamed.

use serde_json::{Map, Value, json};

use crate::protocols::{Chat, Messages, Protocol, Responses};
use crate::recipe_support::client::seen_messages;
use crate::responses_client::Client;

/// A `data:` line, and its `event:` line if there is one.
pub(crate) type Line = (Option<String>, Value);

/// What a stream was.
#[derive(Debug)]
pub(crate) struct Streamed {
    /// The response as far as it came.
    pub(crate) response: Value,
    /// The event that ended it, if that was an error.
    pub(crate) error: Option<Value>,
}

pub(crate) fn read(protocol: Protocol, lines: &[Line]) -> Streamed {
    let events: Vec<Value> = lines.iter().map(|(_, data)| data.clone()).collect();
    for (name, data) in lines {
        // The name is the type, where there are names.
        let expected = (protocol != Chat).then(|| data["type"].as_str().unwrap());
        assert_eq!(name.as_deref(), expected, "{data}");
    }
    match protocol {
        Chat => read_chat(&events),
        Responses => read_responses(&events),
        Messages => read_messages(&events),
    }
}

/// Which part of an answer a delta of Chat Completions belongs to, in the order in which they come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Part {
    Nothing,
    Reasoning,
    Content,
    Calls,
}

fn read_chat(events: &[Value]) -> Streamed {
    let (error, chunks) = match events.split_last() {
        Some((last, before)) if last.get("error").is_some() => (Some(last.clone()), before),
        _ => (None, events),
    };
    let first = &chunks[0];
    let mut message = json!({"role": "assistant", "content": ""});
    let (mut logprobs, mut finish, mut part) = (Map::new(), Value::Null, Part::Nothing);
    for (at, chunk) in chunks.iter().enumerate() {
        for same in ["id", "created", "model", "system_fingerprint"] {
            assert_eq!(chunk[same], first[same], "{chunk}");
        }
        assert_eq!(chunk["object"], "chat.completion.chunk");
        assert_eq!(
            chunk["choices"].as_array().map(Vec::len),
            Some(1),
            "{chunk}"
        );
        let choice = &chunk["choices"][0];
        let delta = choice["delta"].as_object().unwrap();
        assert_eq!(choice["index"], 0);
        assert_eq!(delta.contains_key("role"), at == 0, "{chunk}");
        // Usage was asked for: every chunk has it, the last one filled in.
        let last = error.is_none() && at + 1 == chunks.len();
        assert_eq!(
            chunk.get("usage").map(Value::is_object),
            Some(last),
            "{chunk}"
        );
        assert_eq!(choice["finish_reason"].is_string(), last, "{chunk}");
        if at == 0 {
            assert_eq!(delta["role"], "assistant");
            let kept: Vec<&Value> = delta
                .iter()
                .filter(|(k, v)| *k != "role" && !v.is_null())
                .map(|(_, v)| v)
                .collect();
            assert_eq!(kept, [""], "{chunk}");
            if delta.get("reasoning_content").is_some_and(Value::is_string) {
                message["reasoning_content"] = "".into();
            }
            continue;
        }
        if last {
            finish = choice["finish_reason"].clone();
            assert_eq!(delta["content"], "");
            continue;
        }
        let (of, entries) = chat_delta(delta, &mut message);
        // Reasoning, then content, then calls.
        assert!(part <= of, "{chunk}");
        part = of;
        for (name, list) in choice["logprobs"].as_object().into_iter().flatten() {
            assert_eq!(Some(name.as_str()), entries, "{chunk}");
            let list = list.as_array().unwrap();
            assert!(!list.is_empty());
            let all = logprobs.entry(name.clone()).or_insert_with(|| json!([]));
            all.as_array_mut().unwrap().extend(list.iter().cloned());
        }
    }
    let logprobs = if logprobs.is_empty() {
        Value::Null
    } else {
        logprobs.into()
    };
    let last = chunks.last().unwrap();
    let response = json!({
        "id": first["id"], "object": "chat.completion", "created": first["created"], "model": first["model"],
        "choices": [{"index": 0, "message": message, "logprobs": logprobs, "finish_reason": finish}],
        "usage": last["usage"], "system_fingerprint": first["system_fingerprint"],
    });
    Streamed { response, error }
}

/// Adds one delta, which must have one text that is not empty, to the message. Also the name under which its
/// log-probabilities stand.
fn chat_delta(delta: &Map<String, Value>, message: &mut Value) -> (Part, Option<&'static str>) {
    let mut filled = delta.iter().filter(|(_, value)| !value.is_null());
    let (Some((key, value)), None) = (filled.next(), filled.next()) else {
        panic!("{delta:?} says not one thing");
    };
    let append = |to: &mut Value, text: &Value| {
        let text = text.as_str().unwrap();
        assert!(!text.is_empty(), "{delta:?}");
        *to = (to.as_str().unwrap_or_default().to_owned() + text).into();
    };
    match key.as_str() {
        "reasoning_content" => {
            append(&mut message["reasoning_content"], value);
            (Part::Reasoning, Some("reasoning_content"))
        }
        "content" => {
            append(&mut message["content"], value);
            (Part::Content, Some("content"))
        }
        "tool_calls" => {
            let call = match value.as_array().unwrap().as_slice() {
                [call] => call,
                calls => panic!("{calls:?}"),
            };
            let calls = match &mut message["tool_calls"] {
                Value::Array(calls) => calls,
                none => {
                    *none = json!([]);
                    none.as_array_mut().unwrap()
                }
            };
            if call.get("id").is_some() {
                assert_eq!(call["index"], calls.len());
                assert_eq!(call["function"]["arguments"], "");
                calls.push(call.clone());
            } else {
                // Arguments of the call that was named last.
                assert_eq!(call["index"], calls.len() - 1);
                assert!(call["function"].get("name").is_none());
                append(
                    &mut calls.last_mut().unwrap()["function"]["arguments"],
                    &call["function"]["arguments"],
                );
            }
            (Part::Calls, None)
        }
        other => panic!("a delta of {other}"),
    }
}

fn read_responses(events: &[Value]) -> Streamed {
    let client = Client::of(events);
    let last = events.last().unwrap();
    let kind = last["type"].as_str().unwrap();
    let failed = ["response.failed", "error"].contains(&kind);
    assert!(
        failed || ["response.completed", "response.incomplete"].contains(&kind),
        "{last}"
    );
    Streamed {
        response: client.response,
        error: failed.then(|| last.clone()),
    }
}

fn read_messages(events: &[Value]) -> Streamed {
    // The order of the events.
    seen_messages(events);
    let mut message = events[0]["message"].clone();
    let (mut input, mut error) = (String::new(), None);
    for event in events {
        let blocks = message["content"].as_array_mut().unwrap();
        match event["type"].as_str().unwrap() {
            "content_block_start" => {
                blocks.push(event["content_block"].clone());
                input.clear();
            }
            "content_block_delta" => {
                let block = blocks.last_mut().unwrap();
                let delta = event["delta"].as_object().unwrap();
                for (field, text) in delta.iter().filter(|(field, _)| *field != "type") {
                    let text = text.as_str().unwrap();
                    assert!(!text.is_empty(), "{event}");
                    if field == "partial_json" {
                        input += text;
                    } else {
                        block[field] = (block[field].as_str().unwrap().to_owned() + text).into();
                    }
                }
            }
            "content_block_stop" => {
                let block = blocks.last_mut().unwrap();
                if block["type"] == "tool_use" {
                    // What was cut is nothing that could be run.
                    block["input"] = serde_json::from_str(&input).unwrap_or_else(|_| json!({}));
                }
            }
            "message_delta" => {
                for field in ["stop_reason", "stop_sequence"] {
                    message[field] = event["delta"][field].clone();
                }
                message["usage"] = event["usage"].clone();
            }
            "error" => error = Some(event.clone()),
            _ => {}
        }
    }
    let last = events.last().unwrap()["type"].as_str().unwrap();
    assert_eq!(
        last,
        if error.is_some() {
            "error"
        } else {
            "message_stop"
        }
    );
    Streamed {
        response: message,
        error,
    }
}
