//! From parsed text to events: joins what one push yields, keeps the answer, counts tokens.

use super::Event;
use super::answer::{Answer, Call, Parsed, Reason};
use super::events::Writer;
use super::held::{Held, Logprob};
use super::ids::Ids;

/// What a stretch of text is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    Reasoning,
    Content,
    Arguments,
}

/// Text that the current push has yielded and no event carries yet.
#[derive(Debug, Default)]
struct Pending {
    part: Option<Part>,
    text: String,
    logprobs: Vec<Logprob>,
}

/// A recovery, counted.
#[derive(Debug)]
struct Recovered {
    code: &'static str,
    offset: u64,
    count: u64,
}

/// Reasoning text that came as text and is not counted yet is encoded in steps of about this size: large
/// enough to cost little, small enough that no push waits for it.
const COUNTED_BYTES: usize = 1024;

/// See the module.
#[derive(Debug)]
pub(super) struct Sink {
    pub(super) answer: Answer,
    pub(super) ids: Ids,
    pub(super) writer: Box<dyn Writer>,
    /// Events of the current push.
    pub(super) events: Vec<Event>,
    pending: Pending,
    /// Tokens that no event was counted for.
    tokens: u32,
    strict: bool,
    /// Strict mode: counts the markers, which part the log-probabilities of a piece.
    segment: u64,
    recovered: Vec<Recovered>,
    /// Reasoning that came as text, waiting to be counted.
    uncounted: String,
    /// How long it must be to be looked at again: text without a boundary is not read at every push.
    look_at: usize,
    /// The last token began in text that was dropped and may go on in text that is not.
    cut_token: bool,
}

impl Sink {
    pub(super) fn new(answer: Answer, ids: Ids, writer: Box<dyn Writer>, strict: bool) -> Self {
        Self {
            answer,
            ids,
            writer,
            events: Vec::new(),
            pending: Pending::default(),
            tokens: 0,
            strict,
            segment: 0,
            recovered: Vec::new(),
            uncounted: String::new(),
            look_at: COUNTED_BYTES,
            cut_token: false,
        }
    }

    /// Counts a recovery at byte `offset` of the output.
    pub(super) fn recover(&mut self, code: &'static str, offset: u64) {
        match self.recovered.iter_mut().find(|entry| entry.code == code) {
            Some(entry) => entry.count += 1,
            None => self.recovered.push(Recovered {
                code,
                offset,
                count: 1,
            }),
        }
    }

    pub(super) fn diagnostics(&self) -> String {
        let entries: Vec<String> = self
            .recovered
            .iter()
            .map(|r| {
                format!(
                    r#"{{"code":"{}","offset":{},"count":{}}}"#,
                    r.code, r.offset, r.count
                )
            })
            .collect();
        format!("[{}]", entries.join(","))
    }

    /// Strict mode: a marker was found; what follows is another segment.
    pub(super) fn next_segment(&mut self) {
        self.segment += 1;
    }

    /// Outputs held text up to `to` as `part`, holes left out.
    pub(super) fn emit(&mut self, held: &mut Held, to: u64, part: Part) {
        while held.base() < to {
            let base = held.base();
            if let Some(end) = held.hole_at(base) {
                self.skip(held, end.min(to));
                continue;
            }
            let end = held.solid_end(base, to);
            self.open(part);
            self.take_tokens(held, end, Some(part));
            let text = held.slice(base, end);
            self.pending.text.push_str(text);
            held.skip(end);
        }
    }

    /// Outputs `text` for held text up to `to`.
    pub(super) fn replace(&mut self, held: &mut Held, to: u64, part: Part, text: &str) {
        if !text.is_empty() {
            self.open(part);
            self.take_tokens(held, to, Some(part));
            self.pending.text.push_str(text);
        }
        self.skip(held, to);
    }

    /// Drops held text up to `to`.
    pub(super) fn skip(&mut self, held: &mut Held, to: u64) {
        self.take_tokens(held, to, None);
        held.skip(to);
    }

    /// Drops held text between `from` and `to`; what stands before it stays.
    pub(super) fn cut(&mut self, held: &mut Held, from: u64, to: u64) {
        if from <= held.base() {
            self.skip(held, to);
        } else {
            held.cut(from, to);
        }
    }

    /// Outputs held text up to `to` as part of a string inside the arguments.
    pub(super) fn emit_escaped(&mut self, held: &mut Held, to: u64) {
        if held.base() < to {
            self.open(Part::Arguments);
            let text = held.slice(held.base(), to);
            super::events::json::escape(text, &mut self.pending.text);
            self.skip(held, to);
        }
    }

    /// Outputs argument text that is not in the held text as such.
    pub(super) fn arguments(&mut self, text: &str) {
        if !text.is_empty() {
            self.open(Part::Arguments);
            self.pending.text.push_str(text);
        }
    }

    /// Settles the tokens that begin before `to`.
    fn take_tokens(&mut self, held: &mut Held, to: u64, part: Option<Part>) {
        let base = held.base();
        let reasoning = part == Some(Part::Reasoning);
        if reasoning {
            // A token whose beginning was dropped counts when its rest is output.
            let continues = held.tokens.front().is_none_or(|token| token.at > base);
            if self.cut_token && continues {
                self.answer.usage.reasoning_tokens += 1;
            }
            self.cut_token = false;
            self.count_text(held, base, to);
        }
        while let Some(token) = held.tokens.pop_front_if(|token| token.at < to) {
            self.tokens += token.count;
            if reasoning && token.is_id {
                self.answer.usage.reasoning_tokens += token.count;
            }
            self.cut_token = part.is_none() && token.is_id;
            if let (Some(logprob), Some(_)) = (token.logprob, part) {
                self.pending.logprobs.push(logprob);
            }
        }
        if self.strict && part.is_some() {
            let segment = self.segment;
            let first = held
                .pieces
                .partition_point(|piece| piece.at <= base)
                .saturating_sub(1);
            for piece in held
                .pieces
                .iter_mut()
                .skip(first)
                .take_while(|piece| piece.at < to)
            {
                if piece.segment != segment {
                    piece.segment = segment;
                    self.pending.logprobs.extend(piece.logprobs.iter().cloned());
                }
            }
        }
    }

    /// Notes reasoning that came as text, and counts what is complete of it.
    fn count_text(&mut self, held: &Held, from: u64, to: u64) {
        let Some(vocabulary) = &self.answer.vocabulary else {
            return;
        };
        if !self.answer.thinking {
            return;
        }
        if self.strict {
            // As the reference counts: the whole text at once, when the output ends.
            self.uncounted.push_str(held.slice(from, to));
            return;
        }
        let mut at = from;
        while at < to {
            let (class, end) = held.class_at(at);
            let end = end.min(to);
            if class == super::held::Class::Text {
                self.uncounted.push_str(held.slice(at, end));
            } else if !self.uncounted.is_empty() {
                self.answer.usage.reasoning_tokens +=
                    vocabulary.count(&self.uncounted).unwrap_or(0);
                self.uncounted.clear();
            }
            at = end;
        }
        if self.uncounted.len() >= self.look_at {
            self.look_at = 2 * self.uncounted.len();
            if let Some(split) = token_boundary(&self.uncounted) {
                let count = vocabulary.count(&self.uncounted[..split]);
                self.answer.usage.reasoning_tokens += count.unwrap_or(0);
                self.uncounted.drain(..split);
                self.look_at = COUNTED_BYTES;
            }
        }
    }

    /// Counts the reasoning that is left.
    fn finish_count(&mut self) {
        let text = std::mem::take(&mut self.uncounted);
        if self.strict && self.answer.thinking && self.answer.vocabulary.is_some() {
            self.answer.usage.reasoning_tokens = 0;
        }
        if let Some(vocabulary) = &self.answer.vocabulary
            && !text.is_empty()
        {
            self.answer.usage.reasoning_tokens += vocabulary.count(&text).unwrap_or(0);
        }
    }

    fn open(&mut self, part: Part) {
        if self.pending.part != Some(part) {
            self.flush();
            self.pending.part = Some(part);
        }
    }

    /// Turns what is pending into an event.
    pub(super) fn flush(&mut self) {
        let Some(part) = self.pending.part.take() else {
            return;
        };
        let mut text = std::mem::take(&mut self.pending.text);
        let mut logprobs = std::mem::take(&mut self.pending.logprobs);
        let answer = &mut self.answer;
        let event = match part {
            Part::Reasoning => {
                answer.reasoning.push_str(&text);
                Parsed::Reasoning {
                    text: &text,
                    logprobs: &logprobs,
                }
            }
            Part::Content => {
                answer.content.push_str(&text);
                Parsed::Content {
                    text: &text,
                    logprobs: &logprobs,
                }
            }
            Part::Arguments => {
                let index = answer.calls.len().saturating_sub(1);
                if let Some(call) = answer.calls.last_mut() {
                    call.arguments.push_str(&text);
                }
                logprobs.clear();
                Parsed::ToolCallArguments { index, text: &text }
            }
        };
        if !text.is_empty() {
            let tokens = std::mem::take(&mut self.tokens);
            self.writer
                .event(event, tokens, &self.answer, &mut self.events);
        }
        match part {
            Part::Reasoning => self.answer.reasoning_logprobs.append(&mut logprobs),
            Part::Content => self.answer.content_logprobs.append(&mut logprobs),
            Part::Arguments => {}
        }
        text.clear();
        self.pending.text = text;
        self.pending.logprobs = logprobs;
    }

    /// Opens the answer.
    pub(super) fn start(&mut self) {
        if !self.answer.started {
            self.answer.started = true;
            self.writer
                .event(Parsed::Start, 0, &self.answer, &mut self.events);
        }
    }

    /// A call has its name.
    pub(super) fn call(&mut self, name: &str) {
        self.flush();
        let index = self.answer.calls.len();
        let early = self.answer.thinking && self.answer.reasoning.is_empty();
        let id = self.ids.tool_call(index, early);
        self.answer.calls.push(Call {
            id,
            name: name.to_owned(),
            arguments: String::new(),
        });
        let tokens = std::mem::take(&mut self.tokens);
        self.writer.event(
            Parsed::ToolCallNamed { index },
            tokens,
            &self.answer,
            &mut self.events,
        );
    }

    /// Text that the answer has already given as reasoning is content.
    pub(super) fn reasoning_is_content(&mut self) {
        self.flush();
        let text = std::mem::take(&mut self.answer.reasoning);
        if text.is_empty() {
            return;
        }
        self.open(Part::Content);
        self.pending.text.push_str(&text);
        let mut logprobs = std::mem::take(&mut self.answer.reasoning_logprobs);
        self.pending.logprobs.append(&mut logprobs);
        self.flush();
    }

    /// Closes the answer.
    pub(super) fn finish(&mut self, reason: Reason) {
        self.flush();
        self.finish_count();
        self.answer.finish = Some(reason);
        let tokens = std::mem::take(&mut self.tokens);
        self.writer.event(
            Parsed::Finish { reason },
            tokens,
            &self.answer,
            &mut self.events,
        );
    }

    /// Ends the answer with the protocol's error event.
    pub(super) fn fail(&mut self, http_status: u16, message: &str) {
        self.flush();
        self.writer
            .failed(http_status, message, &self.answer, &mut self.events);
    }
}

/// The last place in `text` that no token of the published vocabularies crosses, whatever follows: their
/// pre-tokenizer always splits before the blank in front of a word, and where ideographs end.
fn token_boundary(text: &str) -> Option<usize> {
    let mut after: Option<(char, Option<char>)> = None;
    for (at, c) in text.char_indices().rev() {
        if let Some((next, second)) = after {
            let word = c.is_ascii_alphabetic()
                && next == ' '
                && second.is_some_and(|second| second.is_ascii_alphabetic());
            let ideographs = is_ideograph(c) && !is_ideograph(next);
            if word || ideographs {
                return Some(at + c.len_utf8());
            }
        }
        after = Some((c, after.map(|(next, _)| next)));
    }
    None
}

fn is_ideograph(c: char) -> bool {
    ('\u{4E00}'..='\u{9FA5}').contains(&c)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_counted_up_to_a_place_no_token_crosses() {
        assert_eq!(token_boundary("one two"), Some(3));
        assert_eq!(token_boundary("one two "), Some(3));
        assert_eq!(token_boundary("中文，好"), Some("中文".len()));
        assert_eq!(token_boundary("onetwo 12"), None);
    }
}
