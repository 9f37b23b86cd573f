//! Chat Completions: unnamed `data:` events, one choice, and `chat.completion` as the complete response.

use super::json::{integer, logarithm, string, string_or_null};
use super::{Writer, error_code};
use crate::recipe::stream::answer::{Answer, Call, Parsed, Reason};
use crate::recipe::stream::held::Logprob;
use crate::recipe::stream::output::Output;
use crate::recipe::stream::settings::{ParserOptions, UsageChunk, Vocabulary};

/// Which chunks have a `usage` key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum UsageKey {
    /// Only the last chunk.
    Last,
    /// Every chunk; null but in the last.
    Every,
    /// Every chunk, always null; one more chunk has the usage.
    Extra,
    /// No chunk.
    Never,
}

/// See the module.
#[derive(Debug)]
pub(in crate::recipe::stream) struct Chat {
    usage: UsageKey,
    /// What stands before the delta, the same in every chunk.
    before: String,
}

impl Chat {
    pub(in crate::recipe::stream) fn new(options: &ParserOptions) -> Self {
        let response = &options.response;
        let usage = match options.stream.usage_chunk {
            UsageChunk::Deepseek if response.include_usage || !response.stream => UsageKey::Every,
            UsageChunk::Deepseek => UsageKey::Last,
            UsageChunk::Openai if response.include_usage => UsageKey::Extra,
            UsageChunk::Openai => UsageKey::Never,
        };
        Self {
            usage,
            before: String::new(),
        }
    }

    /// Closes a chunk behind its delta; the last one has a reason.
    fn close(
        &self,
        logprobs: Logprobs<'_>,
        reason: Option<Reason>,
        answer: &Answer,
        data: &mut String,
    ) {
        data.push_str(",\"logprobs\":");
        write_logprobs(&[logprobs], answer, data);
        data.push_str(",\"finish_reason\":");
        data.push_str(finish_reason(reason));
        data.push_str("}]");
        match (self.usage, reason) {
            (UsageKey::Last | UsageKey::Every, Some(_)) => {
                data.push_str(",\"usage\":");
                write_usage(answer, data);
            }
            (UsageKey::Every | UsageKey::Extra, _) => data.push_str(",\"usage\":null"),
            (UsageKey::Last | UsageKey::Never, _) => {}
        }
        data.push('}');
    }

    fn write_head(answer: &Answer, object: &str, into: &mut String) {
        into.push_str("{\"id\":");
        string(&answer.id, into);
        into.push_str(",\"object\":\"");
        into.push_str(object);
        into.push_str("\",\"created\":");
        integer(answer.created, into);
        into.push_str(",\"model\":");
        string(&answer.model, into);
    }

    fn write_before(answer: &Answer, into: &mut String) {
        Self::write_head(answer, "chat.completion.chunk", into);
        into.push_str(",\"system_fingerprint\":");
        string_or_null(answer.system_fingerprint.as_deref(), into);
    }
}

/// Log-probabilities under the name of the text they belong to.
type Logprobs<'a> = (&'static str, &'a [Logprob]);

const NO_LOGPROBS: Logprobs<'static> = ("content", &[]);

impl Writer for Chat {
    fn event(&mut self, event: Parsed<'_>, tokens: u32, answer: &Answer, out: &mut Output) {
        let thinking = answer.thinking;
        let mut logprobs = NO_LOGPROBS;
        let mut last = None;
        if event == Parsed::Start {
            self.before.clear();
            Self::write_before(answer, &mut self.before);
            self.before.push_str(",\"choices\":[{\"index\":");
            integer(answer.choice, &mut self.before);
            self.before.push_str(",\"delta\":");
        }
        let data = out.open();
        data.push_str(&self.before);
        match event {
            Parsed::Start => data.push_str(if answer.starts_in_reasoning {
                r#"{"role":"assistant","content":null,"reasoning_content":""}"#
            } else if thinking {
                r#"{"role":"assistant","content":"","reasoning_content":null}"#
            } else {
                r#"{"role":"assistant","content":""}"#
            }),
            Parsed::Reasoning {
                text,
                logprobs: entries,
            } => {
                data.push_str("{\"content\":null,\"reasoning_content\":");
                string(text, data);
                data.push('}');
                logprobs = ("reasoning_content", entries);
            }
            Parsed::Content {
                text,
                logprobs: entries,
            } => {
                data.push_str("{\"content\":");
                string(text, data);
                data.push_str(if thinking {
                    ",\"reasoning_content\":null}"
                } else {
                    "}"
                });
                logprobs = ("content", entries);
            }
            Parsed::ToolCallNamed { index, call } => {
                data.push_str("{\"tool_calls\":[");
                write_call(index, call, "", data);
                data.push_str("]}");
            }
            Parsed::ToolCallArguments { index, text } => {
                data.push_str("{\"tool_calls\":[{\"index\":");
                integer(index, data);
                data.push_str(",\"function\":{\"arguments\":");
                string(text, data);
                data.push_str("}}]}");
            }
            Parsed::Finish { reason } => {
                data.push_str(if thinking {
                    r#"{"content":"","reasoning_content":null}"#
                } else {
                    r#"{"content":""}"#
                });
                last = Some(reason);
            }
        }
        self.close(logprobs, last, answer, data);
        out.close(None, tokens);
        if last.is_some() && self.usage == UsageKey::Extra {
            let data = out.open();
            Self::write_before(answer, data);
            data.push_str(",\"choices\":[],\"usage\":");
            write_usage(answer, data);
            data.push('}');
            out.close(None, 0);
        }
    }

    fn failed(&mut self, http_status: u16, message: &str, _: &Answer, out: &mut Output) {
        let code = error_code(http_status);
        let data = out.open();
        data.push_str("{\"error\":{\"message\":");
        string(message, data);
        for part in [
            ",\"type\":\"",
            code,
            "\",\"param\":null,\"code\":\"",
            code,
            "\"}}",
        ] {
            data.push_str(part);
        }
        out.close(None, 0);
    }

    fn response(&self, answer: &Answer) -> String {
        let mut out = String::with_capacity(answer.content.len() + answer.reasoning.len() + 512);
        Self::write_head(answer, "chat.completion", &mut out);
        out.push_str(",\"choices\":[");
        if answer.started {
            out.push_str("{\"index\":");
            integer(answer.choice, &mut out);
            out.push_str(",\"message\":{\"role\":\"assistant\",\"content\":");
            string(&answer.content, &mut out);
            if answer.starts_in_reasoning || !answer.reasoning.is_empty() {
                out.push_str(",\"reasoning_content\":");
                string(&answer.reasoning, &mut out);
            }
            for (index, call) in answer.calls.iter().enumerate() {
                out.push_str(if index == 0 { ",\"tool_calls\":[" } else { "," });
                write_call(index, call, &call.arguments, &mut out);
            }
            if !answer.calls.is_empty() {
                out.push(']');
            }
            out.push_str("},\"logprobs\":");
            let parts = [
                ("content", answer.content_logprobs.as_slice()),
                ("reasoning_content", answer.reasoning_logprobs.as_slice()),
            ];
            write_logprobs(&parts, answer, &mut out);
            out.push_str(",\"finish_reason\":");
            out.push_str(finish_reason(answer.finish));
            out.push('}');
        }
        out.push(']');
        if answer.finish.is_some() {
            out.push_str(",\"usage\":");
            write_usage(answer, &mut out);
        }
        out.push_str(",\"system_fingerprint\":");
        string_or_null(answer.system_fingerprint.as_deref(), &mut out);
        out.push('}');
        out
    }
}

fn finish_reason(reason: Option<Reason>) -> &'static str {
    match reason {
        None => "null",
        Some(Reason::Stop | Reason::StopSequence | Reason::EndOfStream) => "\"stop\"",
        Some(Reason::Length) => "\"length\"",
        Some(Reason::ToolCalls) => "\"tool_calls\"",
        Some(Reason::ContentFilter) => "\"content_filter\"",
    }
}

fn write_usage(answer: &Answer, into: &mut String) {
    let usage = &answer.usage;
    let total = u64::from(usage.prompt_tokens) + u64::from(usage.completion_tokens);
    let missed = usage.prompt_tokens.saturating_sub(usage.cached_tokens);
    into.push_str("{\"prompt_tokens\":");
    integer(usage.prompt_tokens, into);
    into.push_str(",\"completion_tokens\":");
    integer(usage.completion_tokens, into);
    into.push_str(",\"total_tokens\":");
    integer(total, into);
    into.push_str(",\"prompt_tokens_details\":{\"cached_tokens\":");
    integer(usage.cached_tokens, into);
    into.push('}');
    if answer.thinking && answer.knows_reasoning_tokens {
        into.push_str(",\"completion_tokens_details\":{\"reasoning_tokens\":");
        integer(usage.reasoning_tokens, into);
        into.push('}');
    }
    into.push_str(",\"prompt_cache_hit_tokens\":");
    integer(usage.cached_tokens, into);
    into.push_str(",\"prompt_cache_miss_tokens\":");
    integer(missed, into);
    into.push('}');
}

/// A tool call with its identity.
fn write_call(index: usize, call: &Call, arguments: &str, into: &mut String) {
    into.push_str("{\"index\":");
    integer(index, into);
    into.push_str(",\"id\":");
    string(&call.id, into);
    into.push_str(",\"type\":\"function\",\"function\":{\"name\":");
    string(&call.name, into);
    into.push_str(",\"arguments\":");
    string(arguments, into);
    into.push_str("}}");
}

/// `{"content":[…]}`, or null when no part has any.
fn write_logprobs(parts: &[Logprobs<'_>], answer: &Answer, into: &mut String) {
    let mut opened = false;
    for (name, logprobs) in parts.iter().filter(|(_, logprobs)| !logprobs.is_empty()) {
        into.push_str(if opened { ",\"" } else { "{\"" });
        opened = true;
        into.push_str(name);
        into.push_str("\":");
        write_entries(logprobs, answer, into);
    }
    into.push_str(if opened { "}" } else { "null" });
}

/// The list of these tokens, each with its alternatives.
pub(super) fn write_entries(entries: &[Logprob], answer: &Answer, into: &mut String) {
    into.push('[');
    for (at, entry) in entries.iter().enumerate() {
        if at > 0 {
            into.push(',');
        }
        write_token(entry.token, entry.logprob, answer, into);
        into.push_str(",\"top_logprobs\":[");
        for (at, (token, logprob)) in entry.top.iter().enumerate() {
            if at > 0 {
                into.push(',');
            }
            write_token(*token, *logprob, answer, into);
            into.push('}');
        }
        into.push_str("]}");
    }
    into.push(']');
}

/// A token's text, or its bytes in hexadecimal when they are no text; left open for more members.
fn write_token(token: u32, logprob: f32, answer: &Answer, into: &mut String) {
    let vocabulary: Option<&dyn Vocabulary> = answer.vocabulary.as_deref();
    let bytes = vocabulary.and_then(|v| v.bytes(token)).unwrap_or_default();
    into.push_str("{\"token\":");
    match std::str::from_utf8(bytes) {
        Ok(text) => string(text, into),
        Err(_) => {
            let hex: String = bytes.iter().map(|byte| format!("\\x{byte:02x}")).collect();
            string(&hex, into);
        }
    }
    into.push_str(",\"logprob\":");
    logarithm(logprob, into);
    into.push_str(",\"bytes\":[");
    for (at, &byte) in bytes.iter().enumerate() {
        if at > 0 {
            into.push(',');
        }
        integer(byte, into);
    }
    into.push(']');
}
