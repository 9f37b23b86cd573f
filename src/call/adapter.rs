//! Tokens of one request become protocol events while they are polled, on the poller's thread.
//!
//! The stream starts with the first tokens and ends with the engine's `Done`, or earlier if the parser
//! finds a stop: the engine is then told to stop, and the rest is not delivered. A failure before the
//! first event is told by `Done` alone; after it also by the protocol's error event. A panic in the parser
//! ends this request and no other.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::contain::contain;
use super::error::{Cause, Error, ErrorStyle, http_of_cause};
use crate::engine::RequestId;
use crate::engine::request::{
    Adapter, Done, Event, EventKind, Failure, FinishReason, First, Flow, Tokens, Usage,
};
use crate::recipe::options::Warning;
use crate::recipe::stream::{Chunk, Finish, Output, Parser, StartInfo, Usage as ParserUsage};
use crate::recipe::{self, Prepared};

/// How the answer is written.
#[derive(Clone, Debug, Default)]
pub struct Answer {
    /// Empty = generated.
    pub response_id: String,
    /// 0 = now.
    pub created_unix_s: i64,
    /// One document at the end.
    pub whole: bool,
    /// How errors are written.
    pub style: ErrorStyle,
}

/// Reads the tokens of one request.
#[derive(Debug)]
pub struct Reader {
    prepared: Arc<Prepared>,
    parser: Parser,
    answer: Answer,
    /// The parser knows what the engine knew before the first token.
    started: bool,
    /// The client has seen an event.
    told: bool,
    end: End,
    /// Events of one step, kept for its memory.
    output: Output,
    #[cfg(feature = "fault-injection")]
    fault: Option<super::fault::Layer>,
}

/// Whether the output has ended, before the engine said so.
#[derive(Debug)]
enum End {
    Open,
    Stopped,
    Failed(Error),
}

impl Reader {
    /// Reads the output of `prepared`.
    pub fn new(prepared: Arc<Prepared>, answer: Answer) -> Result<Self, Error> {
        let parser = Parser::new(&prepared).map_err(Error::recipe)?;
        Ok(Self {
            prepared,
            parser,
            answer,
            started: false,
            told: false,
            end: End::Open,
            output: Output::default(),
            #[cfg(feature = "fault-injection")]
            fault: None,
        })
    }

    /// Panics where the test says.
    #[cfg(feature = "fault-injection")]
    #[must_use]
    pub fn with_fault(mut self, fault: Option<super::fault::Layer>) -> Self {
        self.fault = fault;
        self
    }

    /// Runs a step of the parser; its events are then in `output`. A panic is an error like any other.
    fn step(
        &mut self,
        step: impl FnOnce(&mut Self, &mut Output) -> Result<(), recipe::Error>,
    ) -> Result<(), Error> {
        let mut output = std::mem::take(&mut self.output);
        output.clear();
        let outcome = contain(|| step(self, &mut output));
        self.output = output;
        match outcome {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(Error::recipe(error)),
            Err(panicked) => Err(Error::panicked(panicked)),
        }
    }

    fn start(&mut self, first: Usage, output: &mut Output) -> Result<(), recipe::Error> {
        if std::mem::replace(&mut self.started, true) {
            return Ok(());
        }
        let info = StartInfo {
            prompt_tokens: first.prompt_tokens,
            cached_tokens: first.cached_tokens,
            created_unix_s: self.answer.created_unix_s,
            response_id: self.answer.response_id.clone(),
            ..StartInfo::default()
        };
        self.parser.start(&info, output)
    }

    fn tokens(&mut self, tokens: &Tokens, to: Destination, out: &mut Vec<Event>) -> Flow {
        if !matches!(self.end, End::Open) {
            return Flow::Stop;
        }
        let step = self.step(|reader, output| {
            #[cfg(feature = "fault-injection")]
            super::fault::panic_in("parser", reader.fault);
            if let Some(First { usage, .. }) = tokens.first {
                reader.start(usage, output)?;
            }
            reader.parser.push(&chunk(tokens), output)
        });
        match step {
            Ok(()) => {
                self.deliver(to, out);
                if self.output.done.is_some() {
                    self.end = End::Stopped;
                    return Flow::Stop;
                }
                Flow::Continue
            }
            Err(error) => {
                self.end = End::Failed(error);
                Flow::Stop
            }
        }
    }

    /// Hands on what the last step made; a whole answer waits for its end.
    fn deliver(&mut self, to: Destination, out: &mut Vec<Event>) {
        if self.answer.whole {
            return;
        }
        self.told |= !self.output.is_empty();
        out.extend(self.output.events().map(|event| {
            // One byte more: C gets a NUL behind it.
            let mut data = String::with_capacity(event.data.len() + 1);
            data.push_str(event.data);
            to.event(EventKind::Data {
                name: event.name,
                data,
                token_count: event.token_count,
            })
        }));
    }

    fn done(&mut self, done: Done, to: Destination, out: &mut Vec<Event>) {
        let stopped = matches!(self.end, End::Stopped);
        let closed = match std::mem::replace(&mut self.end, End::Stopped) {
            End::Failed(error) => Err((FinishReason::Error, error)),
            // The engine was told to stop: that it calls this a cancel is not the client's matter.
            End::Stopped => self.close(Finish::Stop, &done, to, out),
            End::Open => match (&done.failure, done.finish) {
                (Some(failure), finish) => Err((finish, self.own(failure))),
                (None, FinishReason::Length) => self.close(Finish::Length, &done, to, out),
                (None, _) => self.close(Finish::Stop, &done, to, out),
            },
        };
        match closed {
            Ok(finish) => {
                let mut usage = done.usage;
                let counted = self.parser.usage();
                usage.reasoning_tokens = counted.reasoning_tokens;
                if stopped {
                    // Tokens behind the stop are the engine's haste, not the client's.
                    usage.completion_tokens = counted.completion_tokens;
                }
                let detail = self.detail(&done.detail, stopped);
                out.push(to.event(EventKind::Done(Done {
                    finish,
                    failure: None,
                    usage,
                    detail,
                })));
            }
            Err((finish, error)) => {
                self.tell(&error, to, out);
                let detail = self.detail(&done.detail, false);
                out.push(to.event(EventKind::Done(Done {
                    finish,
                    failure: Some(self.failure(error)),
                    usage: done.usage,
                    detail,
                })));
            }
        }
    }

    /// The closing events, or the whole answer.
    fn close(
        &mut self,
        finish: Finish,
        done: &Done,
        to: Destination,
        out: &mut Vec<Event>,
    ) -> Result<FinishReason, (FinishReason, Error)> {
        let usage = ParserUsage {
            prompt_tokens: done.usage.prompt_tokens,
            cached_tokens: done.usage.cached_tokens,
            ..ParserUsage::default()
        };
        let closing = |reader: &mut Self, output: &mut Output| {
            reader.start(done.usage, output)?;
            reader.parser.finish(finish, Some(&usage), output)
        };
        self.step(closing)
            .map_err(|error| (FinishReason::Error, error))?;
        if self.answer.whole {
            let mut whole = None;
            self.step(|reader, _| {
                whole = Some(reader.parser.response()?);
                Ok(())
            })
            .map_err(|error| (FinishReason::Error, error))?;
            let token_count = self.parser.usage().completion_tokens;
            out.extend(whole.map(|data| {
                to.event(EventKind::Data {
                    name: None,
                    data,
                    token_count,
                })
            }));
        } else {
            self.deliver(to, out);
        }
        let reason = self
            .parser
            .finish_reason()
            .map_or(finish, |(reason, _)| reason);
        Ok(match reason {
            Finish::Length => FinishReason::Length,
            Finish::ToolCalls => FinishReason::ToolCalls,
            Finish::Stop | Finish::ContentFilter | Finish::EndOfStream => FinishReason::Stop,
        })
    }

    /// The protocol's error event, if the client has seen one before.
    fn tell(&mut self, error: &Error, to: Destination, out: &mut Vec<Event>) {
        if !self.told {
            return;
        }
        let http = http_of_cause(&error.cause);
        let message = error.to_string();
        // A parser that cannot even fail leaves it to `Done`.
        let failing =
            |reader: &mut Self, output: &mut Output| reader.parser.fail(http, &message, output);
        if self.step(failing).is_ok() {
            self.deliver(to, out);
        }
    }

    /// `detail` of the engine, and what the parser and the recipe add.
    fn detail(&self, engine: &str, stopped: bool) -> String {
        let mut detail = match serde_json::from_str(engine) {
            Ok(Value::Object(detail)) => detail,
            _ => Map::new(),
        };
        if stopped {
            detail.insert("reason".to_owned(), json!("stop"));
            detail.remove("code");
        }
        if let Some((_, Some(stop))) = self.parser.finish_reason() {
            detail.insert("stop".to_owned(), json!(stop));
        }
        if !self.prepared.warnings.is_empty() {
            detail.insert("warnings".to_owned(), warnings(&self.prepared.warnings));
        }
        if let Ok(Value::Array(recoveries)) = serde_json::from_str(&self.parser.diagnostics())
            && !recoveries.is_empty()
        {
            detail.insert("diagnostics".to_owned(), Value::Array(recoveries));
        }
        Value::Object(detail).to_string()
    }

    fn own(&self, failure: &Failure) -> Error {
        match failure {
            Failure::Engine(error) => Error::engine(error.clone()),
            Failure::Prepare(error) => match error.downcast_ref::<Error>() {
                Some(error) => error.clone(),
                None => Error::recipe(recipe::Error::new(
                    recipe::Stage::Internal,
                    "",
                    error.to_string(),
                )),
            },
        }
    }

    fn failure(&self, error: Error) -> Failure {
        match error.cause {
            // As the engine told it, so that its code stays readable for Rust hosts, unless a dialect
            // has to travel along.
            Cause::Engine(error) if self.answer.style == ErrorStyle::default() => {
                Failure::Engine(error)
            }
            _ => Failure::Prepare(Arc::new(error.styled(self.answer.style))),
        }
    }
}

impl Adapter for Reader {
    fn adapt(&mut self, event: Event, out: &mut Vec<Event>) -> Flow {
        let to = Destination {
            request: event.request,
            tag: event.tag,
        };
        match event.kind {
            EventKind::Tokens(tokens) => self.tokens(&tokens, to, out),
            EventKind::Done(done) => {
                let (usage, made) = (done.usage, out.len());
                if let Err(panicked) = contain(|| self.done(done, to, out)) {
                    // Whatever was made before is half an ending.
                    out.truncate(made);
                    let error = Error::panicked(panicked);
                    out.push(to.event(EventKind::Done(Done {
                        finish: FinishReason::Error,
                        failure: Some(self.failure(error)),
                        usage,
                        detail: "{}".to_owned(),
                    })));
                }
                Flow::Continue
            }
            // Only adapters make these.
            EventKind::Data { .. } => Flow::Continue,
        }
    }
}

/// Whose events are made.
#[derive(Clone, Copy)]
struct Destination {
    request: RequestId,
    tag: u64,
}

impl Destination {
    fn event(self, kind: EventKind) -> Event {
        Event {
            request: self.request,
            tag: self.tag,
            kind,
        }
    }
}

fn chunk(tokens: &Tokens) -> Chunk<'_> {
    Chunk {
        tokens: &tokens.tokens,
        logprobs: &tokens.logprobs,
        top_tokens: &tokens.top_tokens,
        top_logprobs: &tokens.top_logprobs,
        top_count: tokens.top_count,
        ..Chunk::default()
    }
}

/// As they stand in the details of a request's end.
fn warnings(warnings: &[Warning]) -> Value {
    warnings
        .iter()
        .map(|warning| json!({"code": warning.code, "param": warning.param, "message": warning.message}))
        .collect()
}
