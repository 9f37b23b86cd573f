//! One request in the words of each protocol, and what a client finds in each complete response.

use serde_json::{Value, json};

use crate::host::Usage;

pub(crate) const MODEL: &str = "DeepSeek-V4.1-Flash";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    Chat,
    Responses,
    Messages,
}

pub(crate) use Protocol::{Chat, Messages, Responses};

pub(crate) const ALL: [Protocol; 3] = [Chat, Responses, Messages];

/// A request, in no protocol.
#[derive(Clone, Debug)]
pub(crate) struct Ask {
    pub(crate) thinking: bool,
    pub(crate) user: &'static str,
    pub(crate) tools: Vec<Tool>,
    /// Turns behind the user's, in the words of the protocol that it is asked in.
    pub(crate) more: Vec<Value>,
    pub(crate) stop: Vec<&'static str>,
    pub(crate) max_tokens: u32,
    /// Alternatives for each token.
    pub(crate) logprobs: Option<u32>,
}

/// A function that the model may call.
#[derive(Clone, Debug)]
pub(crate) struct Tool {
    pub(crate) name: &'static str,
    pub(crate) description: &'static str,
    pub(crate) schema: Value,
}

/// What a client knows at the end.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Answer {
    /// `None` if there is no place for it in the response.
    pub(crate) reasoning: Option<String>,
    pub(crate) content: String,
    pub(crate) calls: Vec<Call>,
    /// In the words of the protocol.
    pub(crate) finish: String,
    pub(crate) usage: Usage,
    /// Log-probabilities of content and of reasoning.
    pub(crate) logprobs: (Vec<Value>, Vec<Value>),
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Call {
    pub(crate) id: String,
    pub(crate) name: String,
    /// As they came; of Messages, as they were read.
    pub(crate) arguments: String,
}

impl Call {
    pub(crate) fn of(call: &Call) -> (&str, Value) {
        let arguments = serde_json::from_str(&call.arguments).expect(&call.arguments);
        (call.name.as_str(), arguments)
    }
}

/// How an answer may end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Stop,
    Length,
    ToolCalls,
    StopSequence,
}

impl Ask {
    pub(crate) fn new(user: &'static str) -> Self {
        Self {
            thinking: false,
            user,
            tools: Vec::new(),
            more: Vec::new(),
            stop: Vec::new(),
            max_tokens: 400,
            logprobs: None,
        }
    }

    /// With reasoning before the answer.
    pub(crate) fn thinking(mut self) -> Self {
        self.thinking = true;
        self
    }

    pub(crate) fn tools(mut self, tools: impl IntoIterator<Item = Tool>) -> Self {
        self.tools.extend(tools);
        self
    }

    /// The body, streamed or not.
    pub(crate) fn body(&self, protocol: Protocol, stream: bool) -> Value {
        let user = json!({"role": "user", "content": self.user});
        let turns: Vec<Value> = [user]
            .into_iter()
            .chain(self.more.iter().cloned())
            .collect();
        let tools = self.tools.iter().map(|tool| tool.declared(protocol));
        let tools: Vec<Value> = tools.collect();
        let mut body = json!({"model": MODEL, "stream": stream});
        let fields = match protocol {
            Chat | Messages => {
                let thinking = if self.thinking { "enabled" } else { "disabled" };
                json!({"messages": turns, "max_tokens": self.max_tokens, "thinking": {"type": thinking}})
            }
            Responses => {
                let effort = if self.thinking { "high" } else { "none" };
                json!({"input": turns, "max_output_tokens": self.max_tokens, "reasoning": {"effort": effort}})
            }
        };
        body.as_object_mut()
            .unwrap()
            .extend(fields.as_object().unwrap().clone());
        if !tools.is_empty() {
            body["tools"] = tools.into();
        }
        if !self.stop.is_empty() {
            match protocol {
                Chat => body["stop"] = self.stop.clone().into(),
                Messages => body["stop_sequences"] = self.stop.clone().into(),
                Responses => panic!("Responses has no stop sequences"),
            }
        }
        if let Some(top) = self.logprobs {
            match protocol {
                Chat => body["logprobs"] = true.into(),
                Responses => {}
                Messages => panic!("Messages has no log-probabilities"),
            }
            body["top_logprobs"] = top.into();
        }
        if protocol == Chat && stream {
            body["stream_options"] = json!({"include_usage": true});
        }
        body
    }
}

impl Tool {
    fn declared(&self, protocol: Protocol) -> Value {
        let (name, description, schema) = (self.name, self.description, &self.schema);
        match protocol {
            Chat => {
                json!({"type": "function", "function":
                    {"name": name, "description": description, "parameters": schema}})
            }
            Responses => {
                json!({"type": "function", "name": name, "description": description, "parameters": schema})
            }
            Messages => json!({"name": name, "description": description, "input_schema": schema}),
        }
    }
}

impl Protocol {
    /// As the C functions count them.
    pub(crate) fn number(self) -> i32 {
        match self {
            Chat => 1,
            Responses => 2,
            Messages => 3,
        }
    }

    /// What a response says of its end.
    pub(crate) fn word(self, end: End) -> &'static str {
        match (self, end) {
            (Chat, End::Stop | End::StopSequence) => "stop",
            (Chat, End::Length) => "length",
            (Chat, End::ToolCalls) => "tool_calls",
            (Responses, End::Length) => "incomplete",
            (Responses, _) => "completed",
            (Messages, End::Stop) => "end_turn",
            (Messages, End::Length) => "max_tokens",
            (Messages, End::ToolCalls) => "tool_use",
            (Messages, End::StopSequence) => "stop_sequence",
        }
    }

    /// Reads a complete response.
    pub(crate) fn read(self, response: &Value) -> Answer {
        match self {
            Chat => read_chat(response),
            Responses => read_responses(response),
            Messages => read_messages(response),
        }
    }

    /// The turns with which a client goes on: the answer as it came, and what its calls gave.
    pub(crate) fn follow_up(self, response: &Value, results: &[&str]) -> Vec<Value> {
        let calls = self.read(response).calls;
        assert_eq!(calls.len(), results.len());
        let results = calls.iter().zip(results);
        match self {
            Chat => {
                let results = results.map(|(call, result)| {
                    json!({"role": "tool", "tool_call_id": call.id, "content": result})
                });
                [response["choices"][0]["message"].clone()]
                    .into_iter()
                    .chain(results)
                    .collect()
            }
            Responses => {
                let results = results.map(|(call, result)| {
                    json!({"type": "function_call_output", "call_id": call.id, "output": result})
                });
                let items = response["output"].as_array().unwrap().iter().cloned();
                items.chain(results).collect()
            }
            Messages => {
                let results = results.map(|(call, result)| {
                    json!({"type": "tool_result", "tool_use_id": call.id, "content": result})
                });
                vec![
                    json!({"role": "assistant", "content": response["content"]}),
                    json!({"role": "user", "content": results.collect::<Vec<_>>()}),
                ]
            }
        }
    }
}

fn text(value: &Value) -> String {
    value
        .as_str()
        .unwrap_or_else(|| panic!("{value} is no text"))
        .to_owned()
}

fn count(value: &Value) -> u32 {
    let count = value
        .as_u64()
        .unwrap_or_else(|| panic!("{value} is no count"));
    u32::try_from(count).unwrap()
}

fn entries(value: &Value) -> Vec<Value> {
    value.as_array().cloned().unwrap_or_default()
}

fn read_chat(response: &Value) -> Answer {
    assert_eq!(response["object"], "chat.completion");
    let choice = match response["choices"].as_array().unwrap().as_slice() {
        [choice] => choice,
        choices => panic!("{choices:?}"),
    };
    let message = &choice["message"];
    assert_eq!(
        (&choice["index"], &message["role"]),
        (&json!(0), &json!("assistant"))
    );
    let calls = entries(&message["tool_calls"]).into_iter().enumerate();
    let calls = calls.map(|(at, call)| {
        assert_eq!(
            (&call["index"], &call["type"]),
            (&json!(at), &json!("function"))
        );
        Call {
            id: text(&call["id"]),
            name: text(&call["function"]["name"]),
            arguments: text(&call["function"]["arguments"]),
        }
    });
    let usage = &response["usage"];
    let counts = Usage {
        prompt: count(&usage["prompt_tokens"]),
        cached: count(&usage["prompt_tokens_details"]["cached_tokens"]),
        completion: count(&usage["completion_tokens"]),
        // Only of requests that think.
        reasoning: usage
            .get("completion_tokens_details")
            .map_or(0, |d| count(&d["reasoning_tokens"])),
    };
    assert_eq!(
        count(&usage["total_tokens"]),
        counts.prompt + counts.completion
    );
    assert_eq!(count(&usage["prompt_cache_hit_tokens"]), counts.cached);
    assert_eq!(
        count(&usage["prompt_cache_miss_tokens"]),
        counts.prompt - counts.cached
    );
    let logprobs = &choice["logprobs"];
    Answer {
        reasoning: message.get("reasoning_content").map(text),
        content: text(&message["content"]),
        calls: calls.collect(),
        finish: text(&choice["finish_reason"]),
        usage: counts,
        logprobs: (
            entries(&logprobs["content"]),
            entries(&logprobs["reasoning_content"]),
        ),
    }
}

fn read_responses(response: &Value) -> Answer {
    assert_eq!(response["object"], "response");
    let mut answer = Answer {
        finish: text(&response["status"]),
        ..Answer::default()
    };
    let is_cut = answer.finish == "incomplete";
    let details = if is_cut {
        json!({"reason": "max_output_tokens"})
    } else {
        Value::Null
    };
    assert_eq!(response["incomplete_details"], details);
    let items = response["output"].as_array().unwrap();
    for (at, item) in items.iter().enumerate() {
        // Only the last item can be cut.
        let complete = item["status"] == "completed";
        assert!(complete || is_cut && at + 1 == items.len(), "{item}");
        match item["type"].as_str().unwrap() {
            "reasoning" => {
                assert_eq!(at, 0);
                answer.reasoning = Some(text(&item["content"][0]["text"]));
            }
            "message" => {
                assert!(answer.content.is_empty() && answer.calls.is_empty());
                answer.content = text(&item["content"][0]["text"]);
                answer.logprobs.0 = entries(&item["content"][0]["logprobs"]);
            }
            "function_call" => answer.calls.push(Call {
                id: text(&item["call_id"]),
                name: text(&item["name"]),
                arguments: text(&item["arguments"]),
            }),
            other => panic!("an item of type {other}"),
        }
    }
    let usage = &response["usage"];
    answer.usage = Usage {
        prompt: count(&usage["input_tokens"]),
        cached: count(&usage["input_tokens_details"]["cached_tokens"]),
        completion: count(&usage["output_tokens"]),
        reasoning: count(&usage["output_tokens_details"]["reasoning_tokens"]),
    };
    let total = answer.usage.prompt + answer.usage.completion;
    assert_eq!(count(&usage["total_tokens"]), total);
    answer
}

fn read_messages(response: &Value) -> Answer {
    assert_eq!(
        (&response["type"], &response["role"]),
        (&json!("message"), &json!("assistant"))
    );
    let usage = &response["usage"];
    let cached = count(&usage["cache_read_input_tokens"]);
    let mut answer = Answer {
        finish: text(&response["stop_reason"]),
        usage: Usage {
            prompt: count(&usage["input_tokens"]) + cached,
            cached,
            completion: count(&usage["output_tokens"]),
            // Not told.
            reasoning: 0,
        },
        ..Answer::default()
    };
    assert_eq!(
        answer.finish == "stop_sequence",
        response["stop_sequence"].is_string()
    );
    for (at, block) in response["content"].as_array().unwrap().iter().enumerate() {
        match block["type"].as_str().unwrap() {
            "thinking" => {
                assert_eq!(at, 0);
                assert!(!text(&block["signature"]).is_empty());
                answer.reasoning = Some(text(&block["thinking"]));
            }
            "text" => {
                assert!(answer.content.is_empty() && answer.calls.is_empty());
                answer.content = text(&block["text"]);
            }
            "tool_use" => {
                assert!(block["input"].is_object());
                answer.calls.push(Call {
                    id: text(&block["id"]),
                    name: text(&block["name"]),
                    arguments: block["input"].to_string(),
                });
            }
            other => panic!("a block of type {other}"),
        }
    }
    answer
}
