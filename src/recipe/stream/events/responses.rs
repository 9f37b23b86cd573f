//! Responses: named events with a sequence number, items one after another, and the response object, which is
//! also the complete response.
//!
//! Input: neutral events. Output: the events of the open [`Item`], and of the response around it. Each text is
//! escaped once, into its delta; what the closing events and the response repeat of it is copied. Cost: linear
//! in the output; memory is the output as JSON, besides the answer itself.

mod calls;
mod input;
mod item;

use std::time::Instant;

use self::calls::{Functions, Meaning};
use self::input::InputDecoder;
use self::item::{Item, Kind};
use super::chat::write_entries;
use super::json::{escape, float, integer, string, string_or_null};
use super::{Writer, error_code};
use crate::recipe::options::Echo;
use crate::recipe::stream::answer::{Answer, Call, Parsed, Reason};
use crate::recipe::stream::held::Logprob;
use crate::recipe::stream::output::Output;
use crate::recipe::stream::settings::{ParserOptions, Recovery};

/// Of a response or an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Status {
    InProgress,
    Completed,
    Incomplete,
    Failed,
}

impl Status {
    fn name(self) -> &'static str {
        match self {
            Self::InProgress => "in_progress",
            Self::Completed => "completed",
            Self::Incomplete => "incomplete",
            Self::Failed => "failed",
        }
    }

    fn of(reason: Reason) -> Self {
        match reason {
            Reason::Length | Reason::ContentFilter => Self::Incomplete,
            Reason::Stop | Reason::ToolCalls | Reason::StopSequence | Reason::EndOfStream => {
                Self::Completed
            }
        }
    }
}

/// See the module.
#[derive(Debug)]
pub(in crate::recipe::stream) struct Responses {
    functions: Functions,
    echo: Option<Echo>,
    /// All reasoning items have the same `encrypted_content`, as the reference has it.
    repeats_encrypted: bool,
    /// The response's id as the inside of a JSON string.
    id: String,
    /// Number of the next event.
    sequence: u64,
    /// When the response was created, by a clock that cannot be set.
    created: Option<Instant>,
    /// By the clock of `created_at`.
    completed_at: Option<i64>,
    /// `error` of a failed response.
    failure: Option<String>,
    /// Closed items, members of the array.
    closed: String,
    /// Place of the open item, or of the next.
    output_index: usize,
    reasoning_items: usize,
    open: Option<Item>,
    /// Tokens that no event was counted for.
    tokens: u32,
    /// What stands before the text in every delta of the open item.
    before_delta: String,
    /// Decoded input of a custom tool, kept for its memory.
    input: String,
}

impl Responses {
    pub(in crate::recipe::stream) fn new(options: &ParserOptions) -> Self {
        Self {
            functions: Functions::of(&options.response),
            echo: options.response.echo.clone(),
            repeats_encrypted: options.stream.recovery == Recovery::Strict,
            id: String::new(),
            sequence: 0,
            created: None,
            completed_at: None,
            failure: None,
            closed: String::new(),
            output_index: 0,
            reasoning_items: 0,
            open: None,
            tokens: 0,
            before_delta: String::new(),
            input: String::new(),
        }
    }

    /// Numbers the event being written, which lacks only that, and gives it out.
    fn give(&mut self, name: &'static str, tokens: u32, out: &mut Output) {
        let data = out.open();
        data.push_str(",\"sequence_number\":");
        integer(self.sequence, data);
        data.push('}');
        self.sequence += 1;
        out.close(Some(name), tokens);
    }

    fn give_response(
        &mut self,
        name: &'static str,
        status: Status,
        answer: &Answer,
        tokens: u32,
        out: &mut Output,
    ) {
        let data = begin(name, out);
        data.push_str(",\"response\":");
        self.write_response(status, answer, data);
        self.give(name, tokens, out);
    }

    /// Opens an item. The one before it is closed.
    fn open(&mut self, item: Item, out: &mut Output) {
        let name = "response.output_item.added";
        let data = begin(name, out);
        data.push_str(",\"item\":");
        item.write(Status::InProgress, &self.id, data);
        data.push_str(",\"output_index\":");
        integer(self.output_index, data);
        // Deltas follow an item with a part at once, and carry its tokens.
        let tokens = match item.has_part() {
            true => 0,
            false => std::mem::take(&mut self.tokens),
        };
        self.give(name, tokens, out);
        if item.has_part() {
            self.give_part("response.content_part.added", &item, out);
        }
        if let Some(names) = item.text_names() {
            self.before_delta.clear();
            write_type(names.delta, &mut self.before_delta);
            write_place(&item, self.output_index, &mut self.before_delta);
        }
        self.open = Some(item);
    }

    /// Closes the open item, if there is one.
    fn close(&mut self, status: Status, answer: &Answer, out: &mut Output) {
        if let Some(item) = &mut self.open
            && let Kind::Custom { decoder } = &mut item.kind
        {
            let mut input = std::mem::take(&mut self.input);
            decoder.finish(&mut input);
            self.give_input(input, answer, out);
        }
        let Some(mut item) = self.open.take() else {
            return;
        };
        if let Kind::ToolSearch { call, .. } = item.kind
            && status == Status::Completed
        {
            let call = answer.calls.get(call);
            item.read_search(call.map_or("", |call| &call.arguments));
        }
        self.give_text(&item, out);
        if item.has_part() {
            self.give_part("response.content_part.done", &item, out);
        }
        if matches!(item.kind, Kind::Reasoning { .. }) && answer.reasoning.is_empty() {
            // It was content after all, and follows as such.
            item.text.clear();
        }
        if self.output_index > 0 {
            self.closed.push(',');
        }
        let from = self.closed.len();
        item.write(status, &self.id, &mut self.closed);
        let name = "response.output_item.done";
        let data = begin(name, out);
        data.push_str(",\"item\":");
        data.push_str(&self.closed[from..]);
        data.push_str(",\"output_index\":");
        integer(self.output_index, data);
        self.give(name, 0, out);
        self.output_index += 1;
    }

    fn give_part(&mut self, name: &'static str, item: &Item, out: &mut Output) {
        let data = begin(name, out);
        write_place(item, self.output_index, data);
        data.push_str(",\"part\":");
        item.write_part(data);
        self.give(name, 0, out);
    }

    /// Gives the whole text of an item.
    fn give_text(&mut self, item: &Item, out: &mut Output) {
        let Some(names) = item.text_names() else {
            return;
        };
        let data = begin(names.done, out);
        write_place(item, self.output_index, data);
        if item.has_logprobs() {
            data.push_str(",\"logprobs\":[");
            data.push_str(&item.logprobs);
            data.push(']');
        }
        data.push_str(",\"");
        data.push_str(names.whole);
        data.push_str("\":\"");
        data.push_str(&item.text);
        data.push('"');
        self.give(names.done, 0, out);
    }

    /// Gives more text of the open item.
    fn give_delta(&mut self, text: &str, logprobs: &[Logprob], answer: &Answer, out: &mut Output) {
        let Some(item) = &mut self.open else {
            return;
        };
        let Some(names) = item.text_names() else {
            return;
        };
        let data = out.open();
        data.push_str(&self.before_delta);
        if item.has_logprobs() {
            data.push_str(",\"logprobs\":");
            let from = data.len();
            write_entries(logprobs, answer, data);
            if !logprobs.is_empty() && !item.logprobs.is_empty() {
                item.logprobs.push(',');
            }
            item.logprobs.push_str(&data[from + 1..data.len() - 1]);
        }
        data.push_str(",\"delta\":\"");
        let from = data.len();
        escape(text, data);
        item.text.push_str(&data[from..]);
        data.push('"');
        let tokens = std::mem::take(&mut self.tokens);
        self.give(names.delta, tokens, out);
    }

    fn reasoning(&mut self, text: &str, answer: &Answer, out: &mut Output) {
        if !matches!(self.open_kind(), Some(Kind::Reasoning { .. })) {
            self.close(Status::Completed, answer, out);
            let encrypted = match self.reasoning_items {
                0 => 0,
                _ if self.repeats_encrypted => 0,
                _ => self.output_index,
            };
            self.reasoning_items += 1;
            let kind = Kind::Reasoning { encrypted };
            self.open(Item::new(kind, &self.id, self.output_index), out);
        }
        self.more(text, &[], answer, out);
    }

    fn content(&mut self, text: &str, logprobs: &[Logprob], answer: &Answer, out: &mut Output) {
        if !matches!(self.open_kind(), Some(Kind::Message { .. })) {
            self.close(Status::Completed, answer, out);
            let kind = Kind::Message { commentary: false };
            self.open(Item::new(kind, &self.id, self.output_index), out);
        }
        self.more(text, logprobs, answer, out);
    }

    /// Call number `index` has its name.
    fn call(&mut self, index: usize, call: &Call, answer: &Answer, out: &mut Output) {
        if let Some(item) = &mut self.open
            && let Kind::Message { commentary } = &mut item.kind
        {
            *commentary = true;
        }
        self.close(Status::Completed, answer, out);
        let (kind, name, namespace) = match self.functions.meaning(&call.name) {
            Meaning::Custom => {
                let decoder = InputDecoder::new();
                (Kind::Custom { decoder }, call.name.as_str(), None)
            }
            Meaning::ToolSearch => {
                let arguments = None;
                let kind = Kind::ToolSearch {
                    call: index,
                    arguments,
                };
                (kind, call.name.as_str(), None)
            }
            Meaning::Function { namespace, name } => (Kind::Function, name, namespace),
        };
        let item = Item::new(kind, &self.id, self.output_index);
        self.open(item.of_call(&call.id, name, namespace), out);
    }

    fn open_kind(&self) -> Option<&Kind> {
        self.open.as_ref().map(|item| &item.kind)
    }

    /// Reads more text of the open item.
    fn more(&mut self, text: &str, logprobs: &[Logprob], answer: &Answer, out: &mut Output) {
        let Some(item) = &mut self.open else {
            return;
        };
        let Kind::Custom { decoder } = &mut item.kind else {
            return self.give_delta(text, logprobs, answer, out);
        };
        let mut input = std::mem::take(&mut self.input);
        decoder.push(text, &mut input);
        self.give_input(input, answer, out);
    }

    /// Gives decoded input of a custom tool, if there is any.
    fn give_input(&mut self, mut input: String, answer: &Answer, out: &mut Output) {
        if !input.is_empty() {
            self.give_delta(&input, &[], answer, out);
        }
        input.clear();
        self.input = input;
    }

    fn finish(&mut self, reason: Reason, answer: &Answer, out: &mut Output) {
        let status = Status::of(reason);
        // A host may say when the response was created, and this clock must agree with it.
        let took = self
            .created
            .map_or(0, |created| created.elapsed().as_secs());
        self.completed_at = Some(answer.created.saturating_add_unsigned(took));
        self.close(status, answer, out);
        let name = match status {
            Status::Incomplete => "response.incomplete",
            Status::Completed | Status::InProgress | Status::Failed => "response.completed",
        };
        let tokens = std::mem::take(&mut self.tokens);
        self.give_response(name, status, answer, tokens, out);
    }

    /// About as long as the response object.
    fn response_size(&self) -> usize {
        let open = self.open.as_ref().map_or(0, Item::size);
        let request = self.echo.as_ref().map_or(0, |echo| {
            let instructions = echo.instructions.as_ref().map_or(0, String::len);
            instructions + instructions / 8 + echo.text.as_str().len() + echo.tools.as_str().len()
        });
        self.closed.len() + open + request + 1280
    }

    /// Appends the response object, with what there is of its output.
    fn write_response(&self, status: Status, answer: &Answer, into: &mut String) {
        let echo = self.echo.as_ref();
        into.push_str("{\"id\":");
        string(&answer.id, into);
        into.push_str(",\"object\":\"response\",\"created_at\":");
        integer(answer.created, into);
        into.push_str(",\"status\":\"");
        into.push_str(status.name());
        into.push_str("\",\"background\":false,\"completed_at\":");
        integer_or_null(self.completed_at, into);
        into.push_str(",\"content_filters\":null,\"error\":");
        into.push_str(self.failure.as_deref().unwrap_or("null"));
        into.push_str(",\"frequency_penalty\":0.0,\"incomplete_details\":");
        into.push_str(match answer.finish {
            Some(Reason::Length) => "{\"reason\":\"max_output_tokens\"}",
            Some(Reason::ContentFilter) => "{\"reason\":\"content_filter\"}",
            _ => "null",
        });
        into.push_str(",\"instructions\":");
        string_or_null(echo.and_then(|echo| echo.instructions.as_deref()), into);
        into.push_str(",\"max_output_tokens\":");
        integer_or_null(echo.and_then(|echo| echo.max_output_tokens), into);
        into.push_str(",\"max_tool_calls\":null,\"model\":");
        string(&answer.model, into);
        into.push_str(",\"moderation\":null,\"output\":[");
        into.push_str(&self.closed);
        if let Some(item) = &self.open {
            if self.output_index > 0 {
                into.push(',');
            }
            let status = match status {
                Status::Failed => Status::Incomplete,
                Status::InProgress | Status::Completed | Status::Incomplete => status,
            };
            item.write(status, &self.id, into);
        }
        into.push_str("],\"parallel_tool_calls\":true,\"presence_penalty\":0.0,");
        into.push_str("\"previous_response_id\":null,\"prompt_cache_key\":null,");
        into.push_str("\"prompt_cache_retention\":null,\"reasoning\":");
        into.push_str(echo.map_or(r#"{"effort":null,"summary":null}"#, |echo| {
            echo.reasoning.as_str()
        }));
        into.push_str(",\"safety_identifier\":null,\"service_tier\":\"default\",\"store\":false,");
        into.push_str("\"temperature\":");
        float(echo.map_or(1.0, |echo| echo.temperature), into);
        into.push_str(",\"text\":");
        into.push_str(
            echo.map_or(r#"{"format":{"type":"text"},"verbosity":null}"#, |echo| {
                echo.text.as_str()
            }),
        );
        into.push_str(",\"tool_choice\":");
        into.push_str(echo.map_or("\"auto\"", |echo| echo.tool_choice.as_str()));
        into.push_str(",\"tools\":");
        into.push_str(echo.map_or("[]", |echo| echo.tools.as_str()));
        into.push_str(",\"top_logprobs\":");
        integer(echo.map_or(0, |echo| echo.top_logprobs), into);
        into.push_str(",\"top_p\":");
        float(echo.map_or(1.0, |echo| echo.top_p), into);
        into.push_str(",\"truncation\":\"disabled\",\"usage\":");
        write_usage(answer, into);
        into.push_str(",\"user\":");
        string_or_null(echo.and_then(|echo| echo.user.as_deref()), into);
        into.push_str(",\"metadata\":{}}");
    }
}

impl Writer for Responses {
    fn event(&mut self, event: Parsed<'_>, tokens: u32, answer: &Answer, out: &mut Output) {
        self.tokens = self.tokens.saturating_add(tokens);
        match event {
            Parsed::Start => {
                self.created = Some(Instant::now());
                escape(&answer.id, &mut self.id);
                for name in ["response.created", "response.in_progress"] {
                    self.give_response(name, Status::InProgress, answer, 0, out);
                }
            }
            Parsed::Reasoning { text, .. } => self.reasoning(text, answer, out),
            Parsed::Content { text, logprobs } => self.content(text, logprobs, answer, out),
            Parsed::ToolCallNamed { index, call } => self.call(index, call, answer, out),
            Parsed::ToolCallArguments { text, .. } => self.more(text, &[], answer, out),
            Parsed::Finish { reason } => self.finish(reason, answer, out),
        }
    }

    fn failed(&mut self, http_status: u16, message: &str, answer: &Answer, out: &mut Output) {
        let tokens = std::mem::take(&mut self.tokens);
        let mut members = String::from("\"code\":\"");
        members.push_str(error_code(http_status));
        members.push_str("\",\"message\":");
        string(message, &mut members);
        self.failure = Some(format!("{{{members}}}"));
        if answer.started {
            let name = "response.failed";
            self.give_response(name, Status::Failed, answer, tokens, out);
        } else {
            let data = begin("error", out);
            data.push(',');
            data.push_str(&members);
            data.push_str(",\"param\":null");
            self.give("error", tokens, out);
        }
    }

    fn response(&self, answer: &Answer) -> String {
        let status = match answer.finish {
            _ if self.failure.is_some() => Status::Failed,
            Some(reason) => Status::of(reason),
            None => Status::InProgress,
        };
        let mut out = String::with_capacity(self.response_size());
        self.write_response(status, answer, &mut out);
        out
    }
}

/// Begins an event with its type.
fn begin<'o>(name: &str, out: &'o mut Output) -> &'o mut String {
    let data = out.open();
    write_type(name, data);
    data
}

fn write_type(name: &str, into: &mut String) {
    into.push_str("{\"type\":\"");
    into.push_str(name);
    into.push('"');
}

/// Appends which item an event is about.
fn write_place(item: &Item, output_index: usize, into: &mut String) {
    into.push_str(",\"item_id\":\"");
    into.push_str(&item.id);
    into.push_str("\",\"output_index\":");
    integer(output_index, into);
    if item.has_part() {
        into.push_str(",\"content_index\":0");
    }
}

fn integer_or_null(value: Option<impl itoa::Integer>, into: &mut String) {
    match value {
        Some(value) => integer(value, into),
        None => into.push_str("null"),
    }
}

/// Appends the usage once the output has ended, null before.
fn write_usage(answer: &Answer, into: &mut String) {
    if answer.finish.is_none() {
        return into.push_str("null");
    }
    let usage = &answer.usage;
    let total = u64::from(usage.prompt_tokens) + u64::from(usage.completion_tokens);
    let reasoning = match answer.thinking && answer.knows_reasoning_tokens {
        true => usage.reasoning_tokens,
        false => 0,
    };
    into.push_str("{\"input_tokens\":");
    integer(usage.prompt_tokens, into);
    into.push_str(",\"input_tokens_details\":{\"cached_tokens\":");
    integer(usage.cached_tokens, into);
    into.push_str("},\"output_tokens\":");
    integer(usage.completion_tokens, into);
    into.push_str(",\"output_tokens_details\":{\"reasoning_tokens\":");
    integer(reasoning, into);
    into.push_str("},\"total_tokens\":");
    integer(total, into);
    into.push('}');
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipe::encoding::{Encoding, SpecialTokens};
    use crate::recipe::options::{ParsingOptions, Protocol, ResponseOptions};
    use crate::recipe::stream::{StreamOptions, Usage};

    fn answer() -> Answer {
        Answer {
            id: "r".into(),
            model: "m".into(),
            created: 0,
            system_fingerprint: None,
            choice: 0,
            thinking: true,
            starts_in_reasoning: true,
            started: true,
            reasoning: "a".into(),
            content: String::new(),
            calls: Vec::new(),
            reasoning_logprobs: Vec::new(),
            content_logprobs: Vec::new(),
            finish: None,
            stop_sequence: None,
            usage: Usage::default(),
            knows_reasoning_tokens: false,
            vocabulary: None,
        }
    }

    #[test]
    fn later_reasoning_is_numbered_by_its_place_unless_strict() {
        for (recovery, numbers) in [
            (Recovery::Robust, ["r-0", "r-2"]),
            (Recovery::Strict, ["r-0", "r-0"]),
        ] {
            let mut writer = Responses::new(&ParserOptions {
                protocol: Protocol::Responses,
                encoding: Encoding::V41,
                parsing: ParsingOptions {
                    parse_tool_calls: true,
                    starts_in_tool_calls: false,
                    parse_json_output: false,
                    thinking_initial_stage: None,
                    stop_sequences: Vec::new(),
                },
                response: ResponseOptions::default(),
                model: String::new(),
                continues_message: false,
                tools: None,
                special_tokens: SpecialTokens::default(),
                stream: StreamOptions {
                    recovery,
                    ..StreamOptions::default()
                },
            });
            let (answer, mut out) = (answer(), Output::default());
            let (text, logprobs) = ("x", [].as_slice());
            for event in [
                Parsed::Start,
                Parsed::Reasoning { text, logprobs },
                Parsed::Reasoning { text, logprobs },
                Parsed::Content { text, logprobs },
                Parsed::Reasoning { text, logprobs },
            ] {
                writer.event(event, 1, &answer, &mut out);
            }
            let response: serde_json::Value =
                serde_json::from_str(&writer.response(&answer)).unwrap();
            let output = response["output"].as_array().unwrap();
            let kinds: Vec<_> = output.iter().map(|item| &item["type"]).collect();
            assert_eq!(kinds, ["reasoning", "message", "reasoning"]);
            assert_eq!(output[0]["encrypted_content"], numbers[0]);
            assert_eq!(output[2]["encrypted_content"], numbers[1]);
            assert_eq!(output[0]["content"][0]["text"], "xx");
            assert_eq!(output[2]["status"], "in_progress");
        }
    }
}
