//! The short way of a push. Nearly every token of an answer is text that no marker can claim, read where text
//! goes out at once; such a push needs none of the bookkeeping of held text.
//!
//! It answers exactly as the long way does, or leaves the chunk to it untouched: `tests/recipe_stream` compares
//! the two over all recorded outputs and any split of them.

use super::output::Output;
use super::{Chunk, Grammar, Parser, Vocabulary};

/// Bytes with which something begins that takes more than a look at itself: markers, stop sequences, the end of
/// the output, newlines that a marker may take along.
#[derive(Debug)]
pub(super) struct Hot([bool; 256]);

impl Hot {
    /// All first bytes of `spellings`, and newlines.
    pub(super) fn of<'s>(spellings: impl Iterator<Item = &'s str>) -> Self {
        let mut hot = [false; 256];
        for first in spellings.filter_map(|spelling| spelling.bytes().next()) {
            hot[usize::from(first)] = true;
        }
        for byte in [b'\n', b'<'] {
            hot[usize::from(byte)] = true;
        }
        Self(hot)
    }

    fn none_in(&self, text: &str) -> bool {
        !text.bytes().any(|byte| self.0[usize::from(byte)])
    }
}

impl Parser {
    /// Reads a chunk that goes straight out; false if it has to take the long way, and nothing happened.
    pub(super) fn push_straight(&mut self, chunk: &Chunk<'_>, out: &mut Output) -> bool {
        let Grammar::Robust(grammar) = &mut self.grammar else {
            return false;
        };
        let Some(part) = grammar.straight() else {
            return false;
        };
        let idle = self.sink.answer.started
            && self.held.is_idle()
            && self.stops.is_idle()
            && self.decoder.is_idle()
            && self.end_filter.is_idle();
        if !idle || !chunk.logprobs.is_empty() || chunk.top_count != 0 {
            return false;
        }
        let (text, tokens, is_id) = match (chunk.text, &self.vocabulary) {
            (Some(text), _) if chunk.tokens.is_empty() => (text, chunk.text_tokens, false),
            (None, Some(vocabulary)) => {
                let text = ordinary_text(vocabulary.as_ref(), chunk.tokens, &mut self.bytes);
                (text.unwrap_or_default(), chunk.tokens.len() as u32, true)
            }
            _ => return false,
        };
        if text.is_empty() || !self.hot.none_in(text) {
            return false;
        }
        grammar.pass(text.len() as u64);
        self.held.pass(text.len() as u64);
        let usage = &mut self.sink.answer.usage;
        usage.completion_tokens = usage.completion_tokens.saturating_add(tokens);
        self.sink.straight(part, text, tokens, is_id, out);
        true
    }
}

/// The text of `tokens` if all are ordinary and their characters are whole; `room` is for more than one.
fn ordinary_text<'t>(
    vocabulary: &'t dyn Vocabulary,
    tokens: &[u32],
    room: &'t mut Vec<u8>,
) -> Option<&'t str> {
    let ordinary = |token: u32| {
        let bytes = vocabulary.bytes(token)?;
        (!vocabulary.is_added(token)).then_some(bytes)
    };
    let bytes = match *tokens {
        [token] => ordinary(token)?,
        _ => {
            room.clear();
            for &token in tokens {
                room.extend_from_slice(ordinary(token)?);
            }
            room
        }
    };
    std::str::from_utf8(bytes).ok()
}
