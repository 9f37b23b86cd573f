//! The neutral protocol: the parsed events themselves, named, and one object with all of them as the complete
//! response. For hosts that speak a protocol of their own.

use super::Writer;
use super::chat::write_entries;
use super::json::{integer, string, string_or_null};
use crate::recipe::stream::answer::{Answer, Parsed, Reason};
use crate::recipe::stream::held::Logprob;
use crate::recipe::stream::output::Output;

/// See the module.
#[derive(Debug)]
pub(in crate::recipe::stream) struct Conversation;

impl Writer for Conversation {
    fn event(&mut self, event: Parsed<'_>, tokens: u32, answer: &Answer, out: &mut Output) {
        let data = out.open();
        let name = match event {
            Parsed::Start => {
                write_start(answer, data);
                "start"
            }
            Parsed::Reasoning { text, logprobs } => {
                write_text(text, logprobs, answer, data);
                "reasoning"
            }
            Parsed::Content { text, logprobs } => {
                write_text(text, logprobs, answer, data);
                "content"
            }
            Parsed::ToolCallNamed { index, call } => {
                data.push_str("{\"index\":");
                integer(index, data);
                data.push_str(",\"id\":");
                string(&call.id, data);
                data.push_str(",\"name\":");
                string(&call.name, data);
                data.push('}');
                "tool_call"
            }
            Parsed::ToolCallArguments { index, text } => {
                data.push_str("{\"index\":");
                integer(index, data);
                data.push_str(",\"text\":");
                string(text, data);
                data.push('}');
                "tool_call_arguments"
            }
            Parsed::Finish { reason } => {
                write_finish(reason, answer, data);
                "finish"
            }
        };
        out.close(Some(name), tokens);
    }

    fn failed(&mut self, http_status: u16, message: &str, _: &Answer, out: &mut Output) {
        let data = out.open();
        data.push_str("{\"status\":");
        integer(http_status, data);
        data.push_str(",\"message\":");
        string(message, data);
        data.push('}');
        out.close(Some("error"), 0);
    }

    fn response(&self, answer: &Answer) -> String {
        let texts = answer.content.len() + answer.reasoning.len();
        let calls: usize = answer.calls.iter().map(|c| c.arguments.len() + 128).sum();
        let mut out = String::with_capacity(texts + texts / 8 + calls + calls / 8 + 256);
        out.push_str("{\"reasoning\":");
        let reasons = answer.starts_in_reasoning || !answer.reasoning.is_empty();
        string_or_null(reasons.then_some(&answer.reasoning), &mut out);
        out.push_str(",\"content\":");
        string(&answer.content, &mut out);
        out.push_str(",\"tool_calls\":[");
        for (index, call) in answer.calls.iter().enumerate() {
            out.push_str(if index == 0 { "{\"id\":" } else { ",{\"id\":" });
            string(&call.id, &mut out);
            out.push_str(",\"name\":");
            string(&call.name, &mut out);
            out.push_str(",\"arguments\":");
            string(&call.arguments, &mut out);
            out.push('}');
        }
        out.push_str("],\"finish_reason\":");
        string_or_null(answer.finish.map(reason_name), &mut out);
        out.push_str(",\"stop_sequence\":");
        string_or_null(answer.stop_sequence.as_deref(), &mut out);
        out.push_str(",\"usage\":");
        if answer.finish.is_some() {
            write_usage(answer, &mut out);
        } else {
            out.push_str("null");
        }
        out.push('}');
        out
    }
}

fn write_start(answer: &Answer, into: &mut String) {
    into.push_str("{\"system_fingerprint\":");
    string_or_null(answer.system_fingerprint.as_deref(), into);
    into.push_str(",\"prompt_tokens\":");
    integer(answer.usage.prompt_tokens, into);
    into.push_str(",\"cached_tokens\":");
    integer(answer.usage.cached_tokens, into);
    into.push('}');
}

fn write_text(text: &str, logprobs: &[Logprob], answer: &Answer, into: &mut String) {
    into.push_str("{\"text\":");
    string(text, into);
    if !logprobs.is_empty() {
        into.push_str(",\"logprobs\":");
        write_entries(logprobs, answer, into);
    }
    into.push('}');
}

fn write_finish(reason: Reason, answer: &Answer, into: &mut String) {
    into.push_str("{\"reason\":");
    string(reason_name(reason), into);
    into.push_str(",\"stop_sequence\":");
    string_or_null(answer.stop_sequence.as_deref(), into);
    into.push_str(",\"usage\":");
    write_usage(answer, into);
    into.push('}');
}

fn reason_name(reason: Reason) -> &'static str {
    match reason {
        Reason::Stop => "stop",
        Reason::Length => "length",
        Reason::ToolCalls => "tool_calls",
        Reason::StopSequence => "stop_sequence",
        Reason::ContentFilter => "content_filter",
        Reason::EndOfStream => "end_of_stream",
    }
}

fn write_usage(answer: &Answer, into: &mut String) {
    let usage = &answer.usage;
    into.push_str("{\"prompt_tokens\":");
    integer(usage.prompt_tokens, into);
    into.push_str(",\"cached_tokens\":");
    integer(usage.cached_tokens, into);
    into.push_str(",\"completion_tokens\":");
    integer(usage.completion_tokens, into);
    into.push_str(",\"reasoning_tokens\":");
    // Without thinking nothing counts them.
    if answer.thinking && answer.knows_reasoning_tokens {
        integer(usage.reasoning_tokens, into);
    } else {
        into.push_str("null");
    }
    into.push('}');
}
