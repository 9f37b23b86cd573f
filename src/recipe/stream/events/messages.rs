//! Messages: named events that open, fill and close content blocks, and `message` as the complete response.
//!
//! The blocks come in the order of the answer: thinking, text, then one for each tool call. A delta costs its
//! text; the arguments of a call are looked at once more, when the complete response is written.

use super::Writer;
use super::json::{integer, is_value, string, string_or_null};
use crate::recipe::stream::answer::{Answer, Call, Parsed, Reason};
use crate::recipe::stream::output::Output;
use crate::recipe::stream::settings::{ParserOptions, Recovery};

/// Kind of a content block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Block {
    Thinking,
    Text,
    ToolUse,
}

/// See the module.
#[derive(Debug)]
pub(in crate::recipe::stream) struct Messages {
    /// Of thinking blocks; `None` is the response id.
    signature: Option<String>,
    /// Tool calls that were cut off are handed out as the reference does.
    strict: bool,
    /// The block that is open; it is the last one.
    open: Option<Block>,
    /// How many blocks were opened.
    blocks: usize,
    /// What stands before the text in every delta of the open block.
    before: String,
}

impl Messages {
    pub(in crate::recipe::stream) fn new(options: &ParserOptions) -> Self {
        Self {
            signature: options.stream.signature.clone(),
            strict: options.stream.recovery == Recovery::Strict,
            open: None,
            blocks: 0,
            before: String::new(),
        }
    }

    fn signature<'a>(&'a self, answer: &'a Answer) -> &'a str {
        self.signature.as_deref().unwrap_or(&answer.id)
    }

    /// Makes `block` the open one; `write` adds its members behind the type.
    fn enter(
        &mut self,
        block: Block,
        write: impl FnOnce(&mut String),
        tokens: u32,
        answer: &Answer,
        out: &mut Output,
    ) {
        self.leave(answer, out);
        let index = self.blocks;
        self.open = Some(block);
        self.blocks += 1;

        let (delta, field) = match block {
            Block::Thinking => ("thinking_delta", "thinking"),
            Block::Text => ("text_delta", "text"),
            Block::ToolUse => ("input_json_delta", "partial_json"),
        };
        self.before.clear();
        write_delta_start(index, delta, field, &mut self.before);

        let data = out.open();
        data.push_str("{\"type\":\"content_block_start\",\"index\":");
        integer(index, data);
        data.push_str(",\"content_block\":");
        write(data);
        data.push('}');
        out.close(Some("content_block_start"), tokens);
        if index == 0 {
            out.open().push_str("{\"type\":\"ping\"}");
            out.close(Some("ping"), 0);
        }
    }

    /// Makes a block of text or thinking the open one, unless it is.
    fn enter_text(&mut self, block: Block, answer: &Answer, out: &mut Output) {
        if self.open == Some(block) {
            return;
        }
        let empty = match block {
            Block::Thinking => "{\"type\":\"thinking\",\"thinking\":\"\",\"signature\":\"\"}",
            Block::Text | Block::ToolUse => "{\"type\":\"text\",\"text\":\"\"}",
        };
        self.enter(block, |data| data.push_str(empty), 0, answer, out);
    }

    /// Closes the open block.
    fn leave(&mut self, answer: &Answer, out: &mut Output) {
        let Some(block) = self.open.take() else {
            return;
        };
        let index = self.blocks - 1;
        if block == Block::Thinking {
            let data = out.open();
            write_delta_start(index, "signature_delta", "signature", data);
            string(self.signature(answer), data);
            data.push_str("}}");
            out.close(Some("content_block_delta"), 0);
        }
        let data = out.open();
        data.push_str("{\"type\":\"content_block_stop\",\"index\":");
        integer(index, data);
        data.push('}');
        out.close(Some("content_block_stop"), 0);
    }

    /// More of the open block.
    fn delta(&self, text: &str, tokens: u32, out: &mut Output) {
        let data = out.open();
        data.push_str(&self.before);
        string(text, data);
        data.push_str("}}");
        out.close(Some("content_block_delta"), tokens);
    }

    /// The input of a call in the complete response; `None` if the call is left out. A client may run what it
    /// is handed, so a call that was cut off is there only if the message says that it was cut.
    fn input<'a>(&self, call: &'a Call, finish: Option<Reason>) -> Option<&'a str> {
        let arguments = call.arguments.as_str();
        if self.strict {
            let parsed = serde_json::from_str::<serde_json::Value>(arguments);
            return Some(if parsed.is_ok() { arguments } else { "{}" });
        }
        if arguments.starts_with('{') && is_value(arguments) {
            return Some(arguments);
        }
        match finish {
            Some(Reason::Length | Reason::ContentFilter | Reason::EndOfStream) => Some("{}"),
            Some(Reason::Stop | Reason::ToolCalls | Reason::StopSequence) | None => None,
        }
    }
}

impl Writer for Messages {
    fn event(&mut self, event: Parsed<'_>, tokens: u32, answer: &Answer, out: &mut Output) {
        match event {
            Parsed::Start => {
                let data = out.open();
                data.push_str("{\"type\":\"message_start\",\"message\":");
                write_head(answer, data);
                data.push(']');
                write_tail(None, 0, answer, data);
                data.push_str("}}");
                out.close(Some("message_start"), tokens);
                if answer.thinking {
                    self.enter_text(Block::Thinking, answer, out);
                }
            }
            Parsed::Reasoning { text, .. } => {
                self.enter_text(Block::Thinking, answer, out);
                self.delta(text, tokens, out);
            }
            Parsed::Content { text, .. } => {
                self.enter_text(Block::Text, answer, out);
                self.delta(text, tokens, out);
            }
            Parsed::ToolCallNamed { call, .. } => {
                let empty = |data: &mut String| write_tool_use(call, "{}", data);
                self.enter(Block::ToolUse, empty, tokens, answer, out);
            }
            Parsed::ToolCallArguments { text, .. } => self.delta(text, tokens, out),
            Parsed::Finish { reason } => {
                self.leave(answer, out);
                let data = out.open();
                data.push_str("{\"type\":\"message_delta\",\"delta\":{");
                write_stop(Some(reason), answer, data);
                data.push_str("},\"usage\":");
                write_usage(answer.usage.completion_tokens, answer, data);
                data.push('}');
                out.close(Some("message_delta"), tokens);
                out.open().push_str("{\"type\":\"message_stop\"}");
                out.close(Some("message_stop"), 0);
            }
        }
    }

    fn failed(&mut self, http_status: u16, message: &str, _: &Answer, out: &mut Output) {
        let data = out.open();
        data.push_str("{\"type\":\"error\",\"error\":{\"type\":\"");
        data.push_str(error_type(http_status));
        data.push_str("\",\"message\":");
        string(message, data);
        data.push_str("}}");
        out.close(Some("error"), 0);
    }

    fn response(&self, answer: &Answer) -> String {
        let texts = answer.content.len() + answer.reasoning.len();
        let inputs: usize = answer.calls.iter().map(|c| c.arguments.len() + 128).sum();
        let mut out = String::with_capacity(texts + texts / 8 + inputs + 512);
        write_head(answer, &mut out);
        if answer.started && answer.thinking || !answer.reasoning.is_empty() {
            out.push_str("{\"type\":\"thinking\",\"thinking\":");
            string(&answer.reasoning, &mut out);
            out.push_str(",\"signature\":");
            // It is the last thing to come of a block.
            let open = self.open == Some(Block::Thinking);
            string(if open { "" } else { self.signature(answer) }, &mut out);
            out.push('}');
        }
        if !answer.content.is_empty() {
            separate(&mut out);
            out.push_str("{\"type\":\"text\",\"text\":");
            string(&answer.content, &mut out);
            out.push('}');
        }
        let mut called = false;
        for call in &answer.calls {
            if let Some(input) = self.input(call, answer.finish) {
                called = true;
                separate(&mut out);
                write_tool_use(call, input, &mut out);
            }
        }
        out.push(']');
        let reason = match answer.finish {
            Some(Reason::ToolCalls) if !called => Some(Reason::Stop),
            reason => reason,
        };
        // Like the reason, the count is told by the end.
        let output_tokens = match reason {
            Some(_) => answer.usage.completion_tokens,
            None => 0,
        };
        write_tail(reason, output_tokens, answer, &mut out);
        out.push('}');
        out
    }
}

/// A comma, unless the list has just begun.
fn separate(out: &mut String) {
    if !out.ends_with('[') {
        out.push(',');
    }
}

/// A delta up to its text.
fn write_delta_start(index: usize, kind: &str, field: &str, into: &mut String) {
    into.push_str("{\"type\":\"content_block_delta\",\"index\":");
    integer(index, into);
    into.push_str(",\"delta\":{\"type\":\"");
    into.push_str(kind);
    into.push_str("\",\"");
    into.push_str(field);
    into.push_str("\":");
}

/// A message up to its first block.
fn write_head(answer: &Answer, into: &mut String) {
    into.push_str("{\"id\":");
    string(&answer.id, into);
    into.push_str(",\"type\":\"message\",\"role\":\"assistant\",\"model\":");
    string(&answer.model, into);
    into.push_str(",\"content\":[");
}

/// What follows the blocks, left open.
fn write_tail(reason: Option<Reason>, output_tokens: u32, answer: &Answer, into: &mut String) {
    into.push(',');
    write_stop(reason, answer, into);
    into.push_str(",\"usage\":");
    write_usage(output_tokens, answer, into);
}

fn write_stop(reason: Option<Reason>, answer: &Answer, into: &mut String) {
    into.push_str("\"stop_reason\":");
    into.push_str(match reason {
        None => "null",
        Some(Reason::Stop | Reason::EndOfStream) => "\"end_turn\"",
        Some(Reason::Length) => "\"max_tokens\"",
        Some(Reason::StopSequence) => "\"stop_sequence\"",
        Some(Reason::ToolCalls) => "\"tool_use\"",
        Some(Reason::ContentFilter) => "\"refusal\"",
    });
    into.push_str(",\"stop_sequence\":");
    string_or_null(answer.stop_sequence.as_deref(), into);
}

fn write_tool_use(call: &Call, input: &str, into: &mut String) {
    into.push_str("{\"type\":\"tool_use\",\"id\":");
    string(&call.id, into);
    into.push_str(",\"name\":");
    string(&call.name, into);
    into.push_str(",\"input\":");
    into.push_str(input);
    into.push('}');
}

fn write_usage(output_tokens: u32, answer: &Answer, into: &mut String) {
    let usage = &answer.usage;
    into.push_str("{\"input_tokens\":");
    let input = usage.prompt_tokens.saturating_sub(usage.cached_tokens);
    integer(input, into);
    into.push_str(",\"cache_creation_input_tokens\":0,\"cache_read_input_tokens\":");
    integer(usage.cached_tokens, into);
    into.push_str(",\"output_tokens\":");
    integer(output_tokens, into);
    into.push_str(",\"service_tier\":\"standard\"}");
}

/// The type of an error.
fn error_type(http_status: u16) -> &'static str {
    match http_status {
        400 => "invalid_request_error",
        401 => "authentication_error",
        403 => "permission_error",
        404 => "not_found_error",
        413 => "request_too_large",
        429 => "rate_limit_error",
        503 | 529 => "overloaded_error",
        _ => "api_error",
    }
}
