//! A client that believes nothing: it checks the order of events, their numbers and places, and that whatever
//! is repeated is repeated exactly.

use fathom::recipe::stream::Output;
use serde_json::{Value, json};

use crate::support::Seen;

/// The JSON of every event, whose name must be its type.
pub(super) fn events(output: &Output) -> Vec<Value> {
    let events = output.events().map(|event| {
        let data: Value = serde_json::from_str(event.data).expect(event.data);
        assert!(!event.data.contains('\n'), "{}", event.data);
        assert_eq!(event.name, data["type"].as_str());
        data
    });
    events.collect()
}

/// What it has put together.
#[derive(Debug, Default)]
pub(super) struct Client {
    pub(super) seen: Seen,
    /// Closed items.
    pub(super) items: Vec<Value>,
    /// The last response object.
    pub(super) response: Value,
    open: Option<Open>,
    ended: bool,
}

#[derive(Debug)]
struct Open {
    item: Value,
    has_part: bool,
    text: String,
    logprobs: Vec<Value>,
    text_done: bool,
    part_done: bool,
}

impl Client {
    pub(super) fn of(events: &[Value]) -> Self {
        let mut client = Self::default();
        for (at, event) in events.iter().enumerate() {
            assert_eq!(event["sequence_number"], at, "{event}");
            assert!(!client.ended, "after the end: {event}");
            client.event(at, event);
        }
        client
    }

    fn event(&mut self, at: usize, event: &Value) {
        let kind = event["type"].as_str().unwrap();
        let lifecycle = match at {
            0 => "response.created",
            1 => "response.in_progress",
            _ => "",
        };
        if !lifecycle.is_empty() && kind != "error" {
            assert_eq!(kind, lifecycle);
        }
        match kind {
            "response.created" | "response.in_progress" => {
                self.response = event["response"].clone();
                assert_eq!(self.response["status"], "in_progress");
                assert_eq!(self.response["output"], json!([]));
                assert!(
                    self.response["usage"].is_null() && self.response["completed_at"].is_null()
                );
            }
            "response.completed" | "response.incomplete" => {
                self.response = event["response"].clone();
                assert!(self.open.is_none(), "{event}");
                assert_eq!(self.response["output"], json!(self.items));
                assert_eq!(
                    kind,
                    format!("response.{}", self.response["status"].as_str().unwrap())
                );
                assert!(
                    self.response["completed_at"].as_i64() >= self.response["created_at"].as_i64()
                );
                self.seen.finish = self.response["status"].as_str().map(str::to_owned);
                self.ended = true;
            }
            "response.failed" | "error" => {
                self.response = event.get("response").unwrap_or(event).clone();
                self.ended = true;
            }
            "response.output_item.added" => self.added(event),
            "response.output_item.done" => self.done(event),
            _ => self.inside(kind, event),
        }
    }

    fn added(&mut self, event: &Value) {
        assert!(self.open.is_none(), "{event}");
        assert_eq!(event["output_index"], self.items.len());
        let item = event["item"].clone();
        assert_eq!(item["status"], "in_progress");
        let id = self.response["id"].as_str().unwrap();
        let prefix = match item["type"].as_str().unwrap() {
            "reasoning" => "rs",
            "message" => "msg",
            "function_call" => "fc",
            "custom_tool_call" => "ctc",
            "tool_search_call" => "tsc",
            other => panic!("{other}"),
        };
        assert_eq!(item["id"], format!("{prefix}_{id}_{}", self.items.len()));
        if item.get("call_id").is_some() {
            let name = item["name"].as_str().unwrap_or("tool_search").to_owned();
            self.seen.calls.push((name, String::new()));
        }
        self.open = Some(Open {
            item,
            has_part: false,
            text: String::new(),
            logprobs: Vec::new(),
            text_done: false,
            part_done: false,
        });
    }

    fn inside(&mut self, kind: &str, event: &Value) {
        let open = self.open.as_mut().expect(kind);
        assert_eq!(event["item_id"], open.item["id"]);
        assert_eq!(event["output_index"], self.items.len());
        let expected = match open.item["type"].as_str().unwrap() {
            "reasoning" => "response.reasoning_text",
            "message" => "response.output_text",
            "function_call" => "response.function_call_arguments",
            "custom_tool_call" => "response.custom_tool_call_input",
            other => panic!("{kind} of {other}"),
        };
        let message = expected == "response.output_text";
        let with_part = message || expected == "response.reasoning_text";
        assert_eq!(
            event.get("content_index"),
            with_part.then_some(&json!(0)),
            "{event}"
        );
        match kind.strip_prefix(expected) {
            Some(".delta") => {
                assert!(open.has_part == with_part && !open.text_done, "{event}");
                let delta = event["delta"].as_str().unwrap();
                assert!(!delta.is_empty());
                open.text += delta;
                match expected {
                    "response.reasoning_text" => self.seen.reasoning += delta,
                    "response.output_text" => self.seen.content += delta,
                    _ => self.seen.calls.last_mut().unwrap().1 += delta,
                }
                assert_eq!(event.get("logprobs").is_some(), message);
                if message {
                    open.logprobs
                        .extend(event["logprobs"].as_array().unwrap().iter().cloned());
                }
            }
            Some(".done") => {
                assert!(!std::mem::replace(&mut open.text_done, true), "{event}");
                let whole = match expected {
                    "response.function_call_arguments" => "arguments",
                    "response.custom_tool_call_input" => "input",
                    _ => "text",
                };
                assert_eq!(event[whole], open.text);
                if message {
                    assert_eq!(event["logprobs"], json!(open.logprobs));
                }
            }
            Some(other) => panic!("{other}"),
            None => {
                let part = if message {
                    json!({"type": "output_text", "annotations": [], "logprobs": open.logprobs, "text": open.text})
                } else {
                    json!({"type": "reasoning_text", "text": open.text})
                };
                assert!(with_part, "{event}");
                assert_eq!(event["part"], part);
                match kind {
                    "response.content_part.added" => {
                        assert!(!std::mem::replace(&mut open.has_part, true));
                        assert_eq!(open.text, "");
                    }
                    "response.content_part.done" => {
                        assert!(open.text_done && !std::mem::replace(&mut open.part_done, true));
                    }
                    other => panic!("{other}"),
                }
            }
        }
    }

    fn done(&mut self, event: &Value) {
        let open = self.open.take().expect("an open item");
        assert_eq!(event["output_index"], self.items.len());
        let item = &event["item"];
        assert_eq!(open.part_done, open.has_part);
        // Only these may differ from what was announced.
        let mut expected = open.item.clone();
        let text = json!(open.text);
        match open.item["type"].as_str().unwrap() {
            "message" => {
                expected["content"] = json!([{"type": "output_text", "annotations": [], "logprobs": open.logprobs, "text": text}]);
                expected["phase"] = item["phase"].clone();
            }
            "reasoning" => {
                // Emptied if it turned out to be content.
                if item["content"] != json!([]) {
                    expected["content"] = json!([{"type": "reasoning_text", "text": text}]);
                }
            }
            "function_call" => expected["arguments"] = text,
            "custom_tool_call" => expected["input"] = text,
            "tool_search_call" => {
                expected["arguments"] = item["arguments"].clone();
                assert!(item["arguments"].is_object());
                self.seen.calls.last_mut().unwrap().1 = item["arguments"].to_string();
            }
            other => panic!("{other}"),
        }
        let told = open.text_done || open.item["type"] == "tool_search_call";
        assert!(told, "{event}");
        expected["status"] = item["status"].clone();
        assert!(["completed", "incomplete"].contains(&item["status"].as_str().unwrap()));
        assert_eq!(*item, expected);
        self.items.push(item.clone());
    }
}
