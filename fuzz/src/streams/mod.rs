//! Any bytes as the output of a model and what its host does meanwhile: the same events in any split, JSON all of
//! them, nothing of the text lost, and as many tokens as were pushed.

mod events;
pub mod header;
mod plan;

use fathom::recipe::stream::{Chunk, Output, Parser, Recovery, StartInfo, UnterminatedReasoning};
use fathom::recipe::{Error, Protocol};
use serde_json::Value;

use crate::digest;
use events::{Part, Seen};
use plan::{Plan, Step, UNKNOWN, bytes_of, end_token};

/// What came of a run.
struct Run {
    seen: Seen,
    error: Option<Error>,
    tokens: u32,
    /// Of a stop sequence.
    stopped: bool,
    closed: bool,
    diagnostics: String,
    response: String,
}

/// Panics if a split shows in the events, or if they are wrong. Most inputs are only pushed as they are, one in
/// eight is compared in several splits: told by the input alone, so that a finding is found again.
pub fn check(input: &[u8]) {
    let plan = Plan::of(input);
    if digest(input) >> 8 & 7 != 0 {
        push_only(&plan);
        return;
    }
    let whole = plan.joined();
    let expected = run(&plan, &whole);
    check_run(&plan, &whole, &expected);
    if whole.len() != plan.steps.len() {
        compare(&plan, &expected, run(&plan, &plan.steps));
    }
    // Told by the input alone, so that a finding is found again.
    let size = [1, 1, 1, 2, 3, 7, 0, 0][(digest(input) % 8) as usize];
    if size > 0 {
        compare(&plan, &expected, run(&plan, &plan.cut(size)));
    }
}

/// Takes all steps; nothing but what holds at every moment is looked at.
fn push_only(plan: &Plan) {
    let mut parser = Parser::with(plan.options.clone(), plan.vocabulary.clone())
        .unwrap_or_else(|error| panic!("{error}"));
    let mut out = Output::default();
    let mut tokens = 0;
    for step in &plan.steps {
        out.clear();
        // What fails is compared by the other inputs.
        let _ = take(&mut parser, step, &mut out);
        tokens += out.events().map(|e| u64::from(e.token_count)).sum::<u64>();
    }
    assert!(tokens <= u64::from(parser.usage().completion_tokens));
}

fn run(plan: &Plan, steps: &[Step]) -> Run {
    let mut parser = Parser::with(plan.options.clone(), plan.vocabulary.clone())
        .unwrap_or_else(|error| panic!("{error}"));
    let mut seen = Seen::default();
    let mut out = Output::default();
    let (mut error, mut closed) = (None, false);
    for step in steps {
        let is_closed = closed;
        let result = take(&mut parser, step, &mut out);
        match (&result, step) {
            // The one event that a failed stream has left.
            (Ok(()), Step::Fail) => closed = true,
            (Ok(()), Step::Finish(_)) => closed = true,
            (Ok(()), _) => assert!(error.is_none(), "a failed parser goes on"),
            (Err(found), _) => match &error {
                None => error = Some(found.clone()),
                Some(first) => assert_eq!(found, first, "another error"),
            },
        }
        if out.done.is_some() && parser.finish_reason().is_some() {
            closed = true;
        }
        let before = seen.events;
        seen.add(plan.options.protocol, &out);
        assert!(!is_closed || seen.events == before, "events behind the end");
        out = Output::default();
    }
    let usage = parser.usage();
    if plan.options.stream.recovery == Recovery::Robust && !has_text(steps) {
        assert!(usage.reasoning_tokens <= usage.completion_tokens);
    }
    assert!(seen.tokens <= u64::from(usage.completion_tokens));
    let response = parser.response().unwrap_or_else(|error| panic!("{error}"));
    let finish = parser.finish_reason();
    Run {
        error,
        tokens: usage.completion_tokens,
        stopped: finish.is_some_and(|(_, stop)| stop.is_some()),
        closed: finish.is_some(),
        diagnostics: parser.diagnostics(),
        response,
        seen,
    }
}

fn has_text(steps: &[Step]) -> bool {
    steps.iter().any(|step| matches!(step, Step::Text { .. }))
}

/// Does one thing.
fn take(parser: &mut Parser, step: &Step, out: &mut Output) -> Result<(), Error> {
    match step {
        Step::Text { text, tokens } => {
            let chunk = Chunk {
                text: Some(text),
                text_tokens: *tokens,
                ..Chunk::default()
            };
            parser.push(&chunk, out)
        }
        Step::Ids(ids) => {
            let tokens: Vec<u32> = ids.iter().map(|(id, _)| *id).collect();
            let mut logprobs: Vec<f32> = ids.iter().map(|(_, logprob)| *logprob).collect();
            if logprobs.iter().all(|logprob| logprob.is_nan()) {
                logprobs.clear();
            }
            let chunk = Chunk {
                tokens: &tokens,
                logprobs: &logprobs,
                ..Chunk::default()
            };
            parser.push(&chunk, out)
        }
        Step::UnknownId => {
            let chunk = Chunk {
                tokens: &[b'x'.into(), UNKNOWN],
                ..Chunk::default()
            };
            parser.push(&chunk, out)
        }
        Step::Both => {
            let chunk = Chunk {
                tokens: &[b'x'.into()],
                text: Some("x"),
                ..Chunk::default()
            };
            parser.push(&chunk, out)
        }
        Step::Start => {
            let info = StartInfo {
                prompt_tokens: 9,
                cached_tokens: 4,
                created_unix_s: 1,
                response_id: "id".into(),
                ..StartInfo::default()
            };
            parser.start(&info, out)
        }
        Step::Finish(finish) => parser.finish(*finish, None, out),
        Step::Fail => parser.fail(503, "engine \"lost\"", out),
    }
}

fn compare(plan: &Plan, expected: &Run, run: Run) {
    assert_eq!(run.error, expected.error);
    let robust = plan.options.stream.recovery == Recovery::Robust;
    if robust {
        assert_eq!(run.diagnostics, expected.diagnostics);
    }
    // Strict mode does not count tokens that were never decoded; a stop ends the count where its chunk has it.
    let exact = robust && !expected.stopped;
    if exact {
        assert_eq!(run.tokens, expected.tokens);
    }
    run.seen.compare(&expected.seen, !exact);
}

/// What must hold of every output.
fn check_run(plan: &Plan, steps: &[Step], run: &Run) {
    let response: Value = serde_json::from_str(&run.response)
        .unwrap_or_else(|error| panic!("{error}: {}", run.response));
    let robust = plan.options.stream.recovery == Recovery::Robust;
    if run.error.is_some() || !run.closed {
        return;
    }
    let answer = Answer::of(plan.options.protocol, &response);
    let reasoning = run.seen.text(Part::Reasoning);
    let content = run.seen.text(Part::Content);
    let moved = plan.options.stream.unterminated_reasoning == UnterminatedReasoning::Content;
    if !moved {
        assert_eq!((&answer.reasoning, &answer.content), (&reasoning, &content));
    }
    if !robust {
        return;
    }
    let complete = answer.arguments.len().saturating_sub(1);
    for arguments in &answer.arguments[..complete] {
        // Text, not a value: half a surrogate pair is JSON, and stays.
        let is_json = serde_json::from_str::<serde::de::IgnoredAny>(arguments).is_ok();
        assert!(
            is_json && arguments.starts_with('{'),
            "arguments {arguments:?}"
        );
    }
    let input = Pushed::of(steps);
    if !run.stopped {
        assert_eq!(u64::from(run.tokens), input.tokens, "tokens");
    }
    // What may be dropped then is text; elsewhere it is markup alone.
    if !run.stopped && !plan.options.parsing.parse_json_output {
        let called = !answer.arguments.is_empty()
            || run.seen.has_tool_use()
            || run.diagnostics.contains("R12");
        input.check_text(
            &(answer.reasoning + &answer.content),
            called,
            plan.options.parsing.parse_tool_calls,
        );
    }
}

/// The parts of a complete response.
struct Answer {
    reasoning: String,
    content: String,
    /// Of each call; an empty object where they are no text.
    arguments: Vec<String>,
}

impl Answer {
    fn of(protocol: Protocol, response: &Value) -> Self {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
        match protocol {
            Protocol::ChatCompletions => {
                let message = &response["choices"][0]["message"];
                let calls = list(&message["tool_calls"]);
                Self {
                    reasoning: text(&message["reasoning_content"]),
                    content: text(&message["content"]),
                    arguments: calls
                        .iter()
                        .map(|call| text(&call["function"]["arguments"]))
                        .collect(),
                }
            }
            Protocol::Conversation => Self {
                reasoning: text(&response["reasoning"]),
                content: text(&response["content"]),
                arguments: list(&response["tool_calls"])
                    .iter()
                    .map(|call| text(&call["arguments"]))
                    .collect(),
            },
            Protocol::Messages => Self::of_parts(&list(&response["content"])),
            Protocol::Responses => Self::of_parts(&list(&response["output"])),
        }
    }

    fn of_parts(parts: &[Value]) -> Self {
        let mut answer = Self {
            reasoning: String::new(),
            content: String::new(),
            arguments: Vec::new(),
        };
        for part in parts {
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            match text(&part["type"]).as_str() {
                "thinking" => answer.reasoning += &text(&part["thinking"]),
                "text" => answer.content += &text(&part["text"]),
                "reasoning" => answer.reasoning += &text(&part["content"][0]["text"]),
                "message" => answer.content += &text(&part["content"][0]["text"]),
                "function_call" => answer.arguments.push(text(&part["arguments"])),
                "tool_use" | "custom_tool_call" | "tool_search_call" => {
                    answer.arguments.push("{}".into())
                }
                _ => panic!("{part}"),
            }
        }
        answer
    }
}

/// Letters that stand in no piece of markup, so that they must be read again.
fn is_kept(byte: u8) -> bool {
    matches!(byte, b'x' | b'q' | b'7')
}

/// What was pushed until the output ended.
struct Pushed {
    tokens: u64,
    kept: Vec<u8>,
    /// How many of `kept` stand before the last `<`.
    certain: usize,
    /// A name whose quote never closes takes everything with it.
    has_quote: bool,
}

impl Pushed {
    fn of(steps: &[Step]) -> Self {
        let mut pushed = Self {
            tokens: 0,
            kept: Vec::new(),
            certain: 0,
            has_quote: false,
        };
        for step in steps {
            match step {
                Step::Text { text, tokens } => {
                    pushed.tokens += u64::from(*tokens);
                    pushed.bytes(text.as_bytes());
                }
                Step::Ids(ids) => {
                    for (id, _) in ids {
                        pushed.tokens += 1;
                        if *id == end_token() {
                            return pushed;
                        }
                        pushed.bytes(bytes_of(*id));
                    }
                }
                Step::Start => {}
                Step::UnknownId | Step::Both | Step::Finish(_) | Step::Fail => return pushed,
            }
        }
        pushed
    }

    fn bytes(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            if byte == b'<' {
                self.certain = self.kept.len();
            }
            if is_kept(byte) {
                self.kept.push(byte);
            }
            self.has_quote |= matches!(byte, b'"' | b'\'');
        }
    }

    /// `read` says what was pushed, up to the first call; a tag that the end cut may be missing.
    fn check_text(&self, read: &str, called: bool, calls: bool) {
        let read: Vec<u8> = read.bytes().filter(|byte| is_kept(*byte)).collect();
        let show = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        assert!(
            self.kept.starts_with(&read),
            "{:?} of {:?}",
            show(&read),
            show(&self.kept)
        );
        if called || calls && self.has_quote {
            return;
        }
        let least = if calls { self.certain } else { self.kept.len() };
        assert!(
            read.len() >= least,
            "{:?} of {:?}",
            show(&read),
            show(&self.kept)
        );
    }
}
