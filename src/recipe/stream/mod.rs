//! Tokens become reasoning, text, tool calls and a stop; then events, one file a protocol.
//!
//! ```text
//! ids, text ─ decode ─ held text ─ text · robust or strict ─ sink ─ events::{one protocol} ─ JSON
//!          └──────────── straight ───────────────────────────┘
//! ```
//!
//! [`Parser`] is pushed: it owns no input, and the events do not depend on how the input was split. What is
//! not decided yet stays in the held text; everything else is in the events of the same push. Cost is
//! linear in the output; memory is the complete answer and what is held. Nearly every token is text that no
//! marker can claim: `straight` sends it past the grammar, in a tenth of a microsecond and without allocating.

mod answer;
mod attributes;
mod calls;
mod decode;
mod events;
mod held;
mod ids;
mod output;
mod robust;
mod settings;
mod sink;
mod stops;
mod straight;
mod strict;
mod tags;
mod text;

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use super::encoding::SpecialToken;
use super::error::{Error, Stage};
use super::options::ThinkingStage;
use super::prepare::Prepared;
use answer::{Answer, Reason};
use decode::{Decoder, EndFilter};
use held::{Class, Held, Logprob, Mark, TokenMark};
use ids::Ids;
use robust::{Input, Robust};
use sink::Sink;
use stops::Stops;
use straight::Hot;
use strict::Strict;
use text::{Rules, Stage as TextStage, Text};

pub use output::{Event, Output};
pub use settings::{
    DeclaredTool, LateReady, ParserOptions, Recovery, StreamOptions, UnterminatedReasoning,
    UsageChunk, Vocabulary,
};

/// What a backend knows before the first token; all optional.
#[derive(Clone, Debug, Default)]
pub struct StartInfo {
    /// Prompt usage.
    pub prompt_tokens: u32,
    /// Of these, found in a cache.
    pub cached_tokens: u32,
    /// 0 = now.
    pub created_unix_s: i64,
    /// Empty = generated.
    pub response_id: String,
    /// Empty = none.
    pub system_fingerprint: String,
    /// Empty = the request's own.
    pub model: String,
    /// Which of the `n` siblings.
    pub choice: u32,
}

/// One step of a backend: ids or text, with or without log-probabilities.
#[derive(Clone, Copy, Debug, Default)]
pub struct Chunk<'a> {
    /// Ids, in order.
    pub tokens: &'a [u32],
    /// Text instead of ids.
    pub text: Option<&'a str>,
    /// How many tokens `text` stands for.
    pub text_tokens: u32,
    /// One for each token, or empty; NaN where missing.
    pub logprobs: &'a [f32],
    /// `tokens.len() × top_count` ids, or empty; `u32::MAX` where unused.
    pub top_tokens: &'a [u32],
    /// Same shape.
    pub top_logprobs: &'a [f32],
    /// Alternatives for each token.
    pub top_count: u32,
}

/// Why the output ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Finish {
    /// The end token, or a stop of the engine.
    #[default]
    Stop,
    /// `max_tokens` or the context.
    Length,
    /// Tool calls (found by the parser only).
    ToolCalls,
    /// A filter of the host.
    ContentFilter,
    /// The input simply ended.
    EndOfStream,
}

/// Token counts of a finished stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Prompt positions.
    pub prompt_tokens: u32,
    /// Of these, found in a cache.
    pub cached_tokens: u32,
    /// Generated, the end token included.
    pub completion_tokens: u32,
    /// Of these, reasoning.
    pub reasoning_tokens: u32,
}

/// Where the stream is.
#[derive(Debug)]
enum State {
    /// Output may come.
    Open,
    /// The end token came; the closing events wait for the reason.
    AtEnd,
    /// All events are out.
    Closed,
    /// The input was wrong; every further call says so.
    Failed(Error),
}

#[derive(Debug)]
enum Grammar {
    Robust(Robust),
    Strict(Strict),
}

/// Ids of the tokens that mean something.
#[derive(Debug, Default)]
struct SpecialIds {
    eos: Option<u32>,
    think_start: Option<u32>,
    think_end: Option<u32>,
    dsml: Option<u32>,
}

/// Reads the output of one request. Any split of the token stream gives the same events.
///
/// Methods that yield events append them to an [`Output`]; none blocks.
#[derive(Debug)]
pub struct Parser {
    options: ParserOptions,
    vocabulary: Option<Arc<dyn Vocabulary>>,
    special: SpecialIds,
    rules: Rules,
    stops: Stops,
    decoder: Decoder,
    end_filter: EndFilter,
    /// What the short way leaves to the long one.
    hot: Hot,
    /// Bytes of a chunk of ids, kept for their memory.
    bytes: Vec<u8>,
    held: Held,
    grammar: Grammar,
    sink: Sink,
    state: State,
    /// The error event is out.
    failed_event: bool,
}

impl Parser {
    /// A parser for the output of `prepared`, as its host wants it read and written.
    pub fn new(prepared: &Arc<Prepared>) -> Result<Self, Error> {
        let tokenizer = prepared.tokenizer.clone();
        Self::with(
            ParserOptions::of(prepared),
            tokenizer.map(|tokenizer| tokenizer as Arc<dyn Vocabulary>),
        )
    }

    /// A parser made of its parts. Without a vocabulary it reads text only.
    pub fn with(
        options: ParserOptions,
        vocabulary: Option<Arc<dyn Vocabulary>>,
    ) -> Result<Self, Error> {
        let strict = options.stream.recovery == Recovery::Strict;
        let parsing = &options.parsing;
        let spellings = &options.special_tokens;
        let thinking = parsing.thinking_initial_stage;
        let rules = Rules {
            markup: tags::Markup::new(spellings),
            strict,
            parse_tool_calls: parsing.parse_tool_calls,
            json: parsing.parse_json_output,
            thinking: thinking.is_some(),
            include_stop: options.stream.include_stop_sequence,
        };
        let (stage, strip) = match thinking {
            _ if parsing.starts_in_tool_calls => (rules.content(), false),
            Some(ThinkingStage::ReasoningStart) => (TextStage::Reasoning, true),
            Some(ThinkingStage::ReasoningContinuation) => (TextStage::Reasoning, false),
            Some(ThinkingStage::ContentContinuation) => (rules.content(), false),
            None => (rules.content(), strict || !options.continues_message),
        };
        let text = Text::new(stage, strip, strip, 0);
        let in_block = parsing.starts_in_tool_calls;
        let grammar = if strict {
            Grammar::Strict(Strict::new(text, in_block))
        } else {
            Grammar::Robust(Robust::new(text, in_block, options.tools.clone()))
        };
        let id_of = |token| vocabulary.as_ref()?.token_id(spellings.spelling(token));
        let special = SpecialIds {
            eos: id_of(SpecialToken::Eos),
            think_start: id_of(SpecialToken::ThinkingStart),
            think_end: id_of(SpecialToken::ThinkingEnd),
            dsml: id_of(SpecialToken::Dsml),
        };
        let answer = Answer {
            id: String::new(),
            model: options.model.clone(),
            created: 0,
            system_fingerprint: options.stream.system_fingerprint.clone(),
            choice: 0,
            thinking: thinking.is_some(),
            starts_in_reasoning: matches!(
                thinking,
                Some(ThinkingStage::ReasoningStart | ThinkingStage::ReasoningContinuation)
            ),
            started: false,
            reasoning: String::new(),
            content: String::new(),
            calls: Vec::new(),
            reasoning_logprobs: Vec::new(),
            content_logprobs: Vec::new(),
            finish: None,
            stop_sequence: None,
            usage: Usage::default(),
            knows_reasoning_tokens: vocabulary.is_some(),
            vocabulary: vocabulary.clone(),
        };
        let sink = Sink::new(
            answer,
            Ids::new(options.stream.id_seed)?,
            events::writer(&options),
            strict,
        );
        let markers = [
            SpecialToken::Eos,
            SpecialToken::ThinkingStart,
            SpecialToken::ThinkingEnd,
            SpecialToken::Dsml,
        ]
        .map(|token| spellings.spelling(token));
        let stop_sequences = parsing.stop_sequences.iter().map(String::as_str);
        Ok(Self {
            hot: Hot::of(stop_sequences.chain(markers)),
            bytes: Vec::new(),
            stops: Stops::new(&parsing.stop_sequences, spellings, strict),
            end_filter: EndFilter::new(match strict {
                true => "",
                false => spellings.spelling(SpecialToken::Eos),
            }),
            decoder: Decoder::new(strict),
            held: Held::default(),
            state: State::Open,
            failed_event: false,
            options,
            vocabulary,
            special,
            rules,
            grammar,
            sink,
        })
    }

    /// Gives what is known before the first token and yields the opening events. After output started
    /// it changes nothing, or with [`LateReady::Correct`] the prompt side of the final usage.
    pub fn start(&mut self, info: &StartInfo, out: &mut Output) -> Result<(), Error> {
        match &self.state {
            State::Failed(error) => return Err(error.clone()),
            State::Closed => return Ok(()),
            State::Open | State::AtEnd => {}
        }
        let answer = &mut self.sink.answer;
        let late = answer.started;
        if !late || self.options.stream.late_ready == LateReady::Correct {
            answer.usage.prompt_tokens = info.prompt_tokens;
            answer.usage.cached_tokens = info.cached_tokens;
        }
        if late {
            return Ok(());
        }
        answer.created = info.created_unix_s;
        answer.choice = info.choice;
        answer.id.clone_from(&info.response_id);
        if !info.system_fingerprint.is_empty() {
            answer.system_fingerprint = Some(info.system_fingerprint.clone());
        }
        if !info.model.is_empty() {
            answer.model.clone_from(&info.model);
        }
        self.writing_to(out, Self::open);
        Ok(())
    }

    /// Reads more output. After the end it does nothing; after an error it gives the same error.
    pub fn push(&mut self, chunk: &Chunk<'_>, out: &mut Output) -> Result<(), Error> {
        match &self.state {
            State::Failed(error) => return Err(error.clone()),
            State::AtEnd | State::Closed => return Ok(()),
            State::Open => {}
        }
        if self.push_straight(chunk, out) {
            return Ok(());
        }
        let result = self.writing_to(out, |parser| {
            let result = parser.read_chunk(chunk);
            parser.sink.flush();
            result
        });
        match self.state {
            State::AtEnd => out.done = Some(Finish::Stop),
            State::Closed => out.done = self.sink.answer.finish.map(Reason::finish),
            State::Open | State::Failed(_) => {}
        }
        if let Err(error) = &result {
            self.state = State::Failed(error.clone());
        }
        result
    }

    fn read_chunk(&mut self, chunk: &Chunk<'_>) -> Result<(), Error> {
        match chunk.text {
            Some(text) if chunk.tokens.is_empty() => {
                self.push_text(text, chunk.text_tokens);
                Ok(())
            }
            Some(_) => Err(Error::new(
                Stage::Option,
                "text",
                "a chunk has ids or text, not both",
            )),
            None => self.push_tokens(chunk),
        }
    }

    /// Lets `step` append its events to `out`.
    fn writing_to<T>(&mut self, out: &mut Output, step: impl FnOnce(&mut Self) -> T) -> T {
        std::mem::swap(&mut self.sink.out, out);
        let result = step(self);
        std::mem::swap(&mut self.sink.out, out);
        result
    }

    fn push_text(&mut self, text: &str, tokens: u32) {
        let strict = self.rules.strict;
        if !strict {
            self.decoder.flush(&mut self.held);
        }
        self.open();
        self.sink.answer.usage.completion_tokens = self
            .sink
            .answer
            .usage
            .completion_tokens
            .saturating_add(tokens);
        self.held.tokens.push_back(TokenMark {
            at: self.held.end(),
            count: tokens,
            is_id: false,
            logprob: None,
        });
        if strict {
            decode::piece(&mut self.held, Vec::new());
        }
        self.end_filter.push(text, &mut self.held);
        self.advance(None);
    }

    fn push_tokens(&mut self, chunk: &Chunk<'_>) -> Result<(), Error> {
        let ids = chunk.tokens;
        let Some(vocabulary) = self.vocabulary.clone() else {
            return match ids {
                [] => Ok(()),
                _ => Err(Error::new(
                    Stage::State,
                    "tokens",
                    "token chunk received without a tokenizer",
                )),
            };
        };
        if !chunk.logprobs.is_empty() && chunk.logprobs.len() != ids.len() {
            let message = format!(
                "invalid log probabilities: {} log probabilities for {} token IDs",
                chunk.logprobs.len(),
                ids.len()
            );
            return Err(Error::new(Stage::Option, "logprobs", message));
        }
        let width = chunk.top_count as usize;
        if width > 0
            && (chunk.top_tokens.len() != ids.len() * width
                || chunk.top_logprobs.len() != chunk.top_tokens.len())
        {
            let message = format!(
                "invalid log probabilities: {} alternatives for {} token IDs with {width} each",
                chunk.top_tokens.len().min(chunk.top_logprobs.len()),
                ids.len()
            );
            return Err(Error::new(Stage::Option, "top_tokens", message));
        }
        if let Some(id) = ids.iter().find(|&&id| vocabulary.bytes(id).is_none()) {
            let message = format!("failed to decode token IDs: {id} is not in the vocabulary");
            return Err(Error::new(Stage::Option, "tokens", message));
        }
        self.end_filter.flush(false, &mut self.held);
        for (index, &id) in ids.iter().enumerate() {
            let bytes = vocabulary.bytes(id).unwrap_or_default();
            let logprob = logprob_of(chunk, index);
            if !vocabulary.is_added(id) {
                self.count(u32::from(!self.rules.strict));
                self.decoder.token(bytes, logprob, &mut self.held);
                continue;
            }
            // What is pending is a piece of its own: a stop inside it ends the count.
            self.end_piece();
            if !matches!(self.state, State::Open) {
                return Ok(());
            }
            self.count(1);
            if Some(id) == self.special.eos && !self.rules.strict {
                self.held.tokens.push_back(TokenMark {
                    at: self.held.end(),
                    count: 1,
                    is_id: true,
                    logprob: None,
                });
                self.state = State::AtEnd;
                return Ok(());
            }
            self.special_token(id, bytes, logprob);
            if !matches!(self.state, State::Open) {
                return Ok(());
            }
        }
        if !self.rules.strict {
            self.read();
        } else if self.decoder.ends_complete() {
            self.end_piece();
        }
        Ok(())
    }

    /// Settles ordinary tokens and reads them.
    fn end_piece(&mut self) {
        let settled = self.decoder.flush(&mut self.held);
        self.count(settled);
        self.read();
    }

    /// Reads what was decoded, if anything was.
    fn read(&mut self) {
        if self.held.end() > self.held.base() {
            self.open();
            self.advance(None);
        }
    }

    fn special_token(&mut self, id: u32, bytes: &[u8], logprob: Option<Logprob>) {
        let special = &self.special;
        let mark = match Some(id) {
            found if found == special.think_end => Mark::ThinkEnd,
            found if found == special.think_start => Mark::ThinkStart,
            found if found == special.dsml => Mark::Dsml,
            _ => Mark::Other,
        };
        let at = self.held.end();
        if self.rules.strict {
            decode::piece(&mut self.held, logprob.into_iter().collect());
            self.held.tokens.push_back(TokenMark {
                at,
                count: 1,
                is_id: true,
                logprob: None,
            });
        } else {
            self.held.tokens.push_back(TokenMark {
                at,
                count: 1,
                is_id: true,
                logprob,
            });
        }
        self.held
            .push(&String::from_utf8_lossy(bytes), Class::Special(mark));
        self.open();
        self.advance(None);
    }

    fn count(&mut self, tokens: u32) {
        let usage = &mut self.sink.answer.usage;
        usage.completion_tokens = usage.completion_tokens.saturating_add(tokens);
    }

    /// Lets the grammar read what is held.
    fn advance(&mut self, end: Option<Reason>) {
        let input = Input {
            rules: &self.rules,
            stops: &mut self.stops,
            held: &mut self.held,
            sink: &mut self.sink,
            end,
        };
        let stopped = match &mut self.grammar {
            Grammar::Robust(grammar) => grammar.advance(input),
            Grammar::Strict(grammar) => grammar.advance(input),
        };
        if let Some(index) = stopped {
            self.sink.answer.stop_sequence = Some(self.stops.text(index).to_owned());
            self.close(Reason::StopSequence);
        }
    }

    /// Yields the opening events, once.
    fn open(&mut self) {
        let answer = &mut self.sink.answer;
        if answer.started {
            return;
        }
        if answer.id.is_empty() {
            answer.id = self.sink.ids.response(self.options.protocol);
        }
        if answer.created == 0 {
            let now = SystemTime::now().duration_since(UNIX_EPOCH);
            answer.created = now.map_or(0, |now| now.as_secs() as i64);
        }
        self.sink.start();
    }

    fn close(&mut self, reason: Reason) {
        self.sink.finish(reason);
        self.state = State::Closed;
    }

    /// Flushes what was held back and yields the closing events. `usage` corrects the prompt side.
    pub fn finish(
        &mut self,
        finish: Finish,
        usage: Option<&Usage>,
        out: &mut Output,
    ) -> Result<(), Error> {
        let mut reason = Reason::of(finish);
        match &self.state {
            State::Failed(error) => return Err(error.clone()),
            State::Closed => return Ok(()),
            State::AtEnd if reason == Reason::EndOfStream => reason = Reason::Stop,
            State::Open | State::AtEnd => {}
        }
        if let Some(usage) = usage {
            self.sink.answer.usage.prompt_tokens = usage.prompt_tokens;
            self.sink.answer.usage.cached_tokens = usage.cached_tokens;
        }
        self.writing_to(out, |parser| parser.end(reason));
        Ok(())
    }

    fn end(&mut self, mut reason: Reason) {
        self.open();
        self.end_filter.flush(true, &mut self.held);
        self.advance(None);
        // A call whose name is complete by now is what the output ended with.
        let called = !self.sink.answer.calls.is_empty();
        if matches!(self.state, State::Open | State::AtEnd) {
            self.advance(Some(reason));
        }
        if !matches!(self.state, State::Open | State::AtEnd) {
            return;
        }
        let unterminated = match &self.grammar {
            Grammar::Robust(grammar) => grammar.in_reasoning(),
            Grammar::Strict(grammar) => grammar.in_reasoning(),
        };
        if unterminated
            && reason == Reason::Stop
            && self.options.stream.unterminated_reasoning == UnterminatedReasoning::Content
        {
            self.sink.reasoning_is_content();
        }
        if called && reason == Reason::Stop {
            reason = Reason::ToolCalls;
        }
        self.close(reason);
    }

    /// Ends the stream with the protocol's error event; what was held back is not given out. Nothing
    /// after the closing events.
    pub fn fail(&mut self, http_status: u16, message: &str, out: &mut Output) -> Result<(), Error> {
        if matches!(self.state, State::Closed) || self.failed_event {
            return Ok(());
        }
        self.failed_event = true;
        self.writing_to(out, |parser| parser.sink.fail(http_status, message));
        if !matches!(self.state, State::Failed(_)) {
            self.state = State::Closed;
        }
        Ok(())
    }

    /// The whole, non-streaming answer as JSON; before the end, what there is of it.
    pub fn response(&self) -> Result<String, Error> {
        Ok(self.sink.writer.response(&self.sink.answer))
    }

    /// How the output ended, once it has: the finish the protocol reports, and the stop sequence that
    /// matched.
    pub fn finish_reason(&self) -> Option<(Finish, Option<&str>)> {
        let answer = &self.sink.answer;
        answer
            .finish
            .map(|reason| (reason.finish(), answer.stop_sequence.as_deref()))
    }

    /// The parser's own count.
    pub fn usage(&self) -> Usage {
        self.sink.answer.usage
    }

    /// Recoveries so far: `[{"code": "R8", "offset": 120, "count": 1}, …]`, in the order of their first
    /// appearance, with its byte offset in the decoded output.
    pub fn diagnostics(&self) -> String {
        self.sink.diagnostics()
    }
}

/// The log-probability of token `index`, if there is one.
fn logprob_of(chunk: &Chunk<'_>, index: usize) -> Option<Logprob> {
    let logprob = chunk
        .logprobs
        .get(index)
        .copied()
        .filter(|value| !value.is_nan())?;
    let width = chunk.top_count as usize;
    let from = index * width;
    let top = (from..from + width)
        .filter(|&at| chunk.top_tokens[at] != u32::MAX)
        .map(|at| (chunk.top_tokens[at], chunk.top_logprobs[at]))
        .collect();
    Some(Logprob {
        token: chunk.tokens[index],
        logprob,
        top,
    })
}
