//! One item of a response's output: what identifies it, what it holds so far, and its JSON.

use super::Status;
use super::input::InputDecoder;
use crate::recipe::json::{self, Json, Style};
use crate::recipe::stream::events::json::{integer, string};

/// What an item is.
#[derive(Debug)]
pub(super) enum Kind {
    /// What the model thought; `encrypted` numbers it.
    Reasoning { encrypted: usize },
    /// What it says. A commentary comes before a tool call.
    Message { commentary: bool },
    /// A call of a function.
    Function,
    /// A call of a custom tool.
    Custom { decoder: InputDecoder },
    /// A search that the client runs: call number `call`, its arguments once they are known to be an object.
    ToolSearch {
        call: usize,
        arguments: Option<String>,
    },
}

/// An item that is not closed yet.
#[derive(Debug)]
pub(super) struct Item {
    pub(super) kind: Kind,
    /// As the inside of a JSON string.
    pub(super) id: String,
    /// Members that only a call has: its id and name.
    pub(super) call: String,
    /// What the deltas said, as the inside of a JSON string: each text is escaped once.
    pub(super) text: String,
    /// Members of the array.
    pub(super) logprobs: String,
}

/// What the events that carry the text of an item are called.
pub(super) struct TextNames {
    pub(super) delta: &'static str,
    pub(super) done: &'static str,
    /// The member that holds the whole text.
    pub(super) whole: &'static str,
}

impl Item {
    /// The item at `output_index` of the response whose id is `response_id`, the inside of a JSON string.
    pub(super) fn new(kind: Kind, response_id: &str, output_index: usize) -> Self {
        let prefix = match kind {
            Kind::Reasoning { .. } => "rs_",
            Kind::Message { .. } => "msg_",
            Kind::Function => "fc_",
            Kind::Custom { .. } => "ctc_",
            Kind::ToolSearch { .. } => "tsc_",
        };
        let mut id = String::with_capacity(prefix.len() + response_id.len() + 8);
        id.push_str(prefix);
        id.push_str(response_id);
        id.push('_');
        integer(output_index, &mut id);
        Self {
            kind,
            id,
            call: String::new(),
            text: String::new(),
            logprobs: String::new(),
        }
    }

    /// The item, as that of a call.
    pub(super) fn of_call(mut self, call_id: &str, name: &str, namespace: Option<&str>) -> Self {
        self.call.push_str(",\"call_id\":");
        string(call_id, &mut self.call);
        if matches!(self.kind, Kind::ToolSearch { .. }) {
            self.call.push_str(",\"execution\":\"client\"");
            return self;
        }
        self.call.push_str(",\"name\":");
        string(name, &mut self.call);
        if let Some(namespace) = namespace {
            self.call.push_str(",\"namespace\":");
            string(namespace, &mut self.call);
        }
        self
    }

    /// Whether its text is that of a content part.
    pub(super) fn has_part(&self) -> bool {
        matches!(self.kind, Kind::Reasoning { .. } | Kind::Message { .. })
    }

    /// Whether its text comes with log-probabilities.
    pub(super) fn has_logprobs(&self) -> bool {
        matches!(self.kind, Kind::Message { .. })
    }

    /// About as long as its JSON, and that of an event around it.
    pub(super) fn size(&self) -> usize {
        self.text.len() + self.logprobs.len() + self.call.len() + 3 * self.id.len() + 192
    }

    /// How its text is told; that of a tool search is not.
    pub(super) fn text_names(&self) -> Option<TextNames> {
        let (delta, done, whole) = match self.kind {
            Kind::Reasoning { .. } => (
                "response.reasoning_text.delta",
                "response.reasoning_text.done",
                "text",
            ),
            Kind::Message { .. } => (
                "response.output_text.delta",
                "response.output_text.done",
                "text",
            ),
            Kind::Function => (
                "response.function_call_arguments.delta",
                "response.function_call_arguments.done",
                "arguments",
            ),
            Kind::Custom { .. } => (
                "response.custom_tool_call_input.delta",
                "response.custom_tool_call_input.done",
                "input",
            ),
            Kind::ToolSearch { .. } => return None,
        };
        Some(TextNames { delta, done, whole })
    }

    /// Gives a tool search its arguments, if they are an object.
    pub(super) fn read_search(&mut self, text: &str) {
        if let Kind::ToolSearch { arguments, .. } = &mut self.kind
            && let Ok(object @ Json::Object(_)) = json::parse(text)
        {
            // Not as the model wrote it: a line break would end the line of the event.
            *arguments = Some(json::to_string(&object, Style::Compact));
        }
    }

    /// Appends its content part.
    pub(super) fn write_part(&self, into: &mut String) {
        if let Kind::Message { .. } = self.kind {
            into.push_str("{\"type\":\"output_text\",\"annotations\":[],\"logprobs\":[");
            into.push_str(&self.logprobs);
            into.push_str("],\"text\":\"");
        } else {
            into.push_str("{\"type\":\"reasoning_text\",\"text\":\"");
        }
        into.push_str(&self.text);
        into.push_str("\"}");
    }

    fn write_content(&self, into: &mut String) {
        into.push_str(",\"content\":[");
        if !self.text.is_empty() {
            self.write_part(into);
        }
        into.push(']');
    }

    /// Appends the item.
    pub(super) fn write(&self, status: Status, response_id: &str, into: &mut String) {
        let (kind, status) = match &self.kind {
            Kind::Reasoning { .. } => ("reasoning", status),
            Kind::Message { .. } => ("message", status),
            Kind::Function => ("function_call", status),
            Kind::Custom { .. } => ("custom_tool_call", status),
            Kind::ToolSearch {
                arguments: None, ..
            } if status == Status::Completed => ("tool_search_call", Status::Incomplete),
            Kind::ToolSearch { .. } => ("tool_search_call", status),
        };
        into.push_str("{\"type\":\"");
        into.push_str(kind);
        into.push_str("\",\"id\":\"");
        into.push_str(&self.id);
        into.push_str("\",\"status\":\"");
        into.push_str(status.name());
        into.push('"');
        into.push_str(&self.call);
        match &self.kind {
            Kind::Reasoning { encrypted } => {
                self.write_content(into);
                into.push_str(",\"summary\":[],\"encrypted_content\":\"");
                into.push_str(response_id);
                into.push('-');
                integer(*encrypted, into);
                into.push('"');
            }
            Kind::Message { commentary } => {
                into.push_str(",\"role\":\"assistant\",\"phase\":\"");
                into.push_str(if *commentary {
                    "commentary"
                } else {
                    "final_answer"
                });
                into.push('"');
                self.write_content(into);
            }
            Kind::Function | Kind::Custom { .. } => {
                into.push_str(if matches!(self.kind, Kind::Function) {
                    ",\"arguments\":\""
                } else {
                    ",\"input\":\""
                });
                into.push_str(&self.text);
                into.push('"');
            }
            Kind::ToolSearch { arguments, .. } => {
                into.push_str(",\"arguments\":");
                into.push_str(arguments.as_deref().unwrap_or("{}"));
            }
        }
        into.push('}');
    }
}
