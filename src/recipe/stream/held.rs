//! Decoded output that is not yet decided: text, where each part came from, and the tokens behind it.
//!
//! Offsets are absolute, in bytes of decoded output. Text enters at the end and leaves at the front, as
//! output or as markup; markup in the middle is a hole. Every operation is amortised constant or linear
//! in the text it touches for the first time.

use std::collections::VecDeque;
use std::ops::Range;

/// What a special token means to the parser.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mark {
    ThinkStart,
    ThinkEnd,
    Dsml,
    Other,
}

/// Where text came from: it decides which parts of a marker it can be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    /// Text without token boundaries: may spell anything.
    Text,
    /// Ordinary tokens: never the special part of a marker.
    Plain,
    /// One special token: nothing but the special part of a marker.
    Special(Mark),
}

/// The log-probability of one token, with its alternatives.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Logprob {
    pub(super) token: u32,
    pub(super) logprob: f32,
    pub(super) top: Vec<(u32, f32)>,
}

/// Tokens that begin at one place.
#[derive(Debug)]
pub(super) struct TokenMark {
    pub(super) at: u64,
    pub(super) count: u32,
    /// An id, rather than text that stands for `count` tokens.
    pub(super) is_id: bool,
    pub(super) logprob: Option<Logprob>,
}

/// A decoded piece, as strict mode sees it: it carries its log-probabilities as a whole.
#[derive(Debug)]
pub(super) struct PieceMark {
    pub(super) at: u64,
    pub(super) logprobs: Vec<Logprob>,
    /// The segment that got the log-probabilities last; a marker begins a new segment.
    pub(super) segment: u64,
}

#[derive(Debug)]
struct Run {
    start: u64,
    class: Class,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Held {
    text: String,
    /// Where the held text begins inside `text`; what stands before it is garbage.
    head: usize,
    base: u64,
    runs: VecDeque<Run>,
    holes: VecDeque<Range<u64>>,
    newlines: Range<u64>,
    /// Newlines before these places belong to no end of reasoning, and to no opener of calls (strict mode).
    pub(super) newline_floors: [u64; 2],
    pub(super) tokens: VecDeque<TokenMark>,
    pub(super) pieces: VecDeque<PieceMark>,
}

impl Held {
    /// Offset of the first held byte.
    pub(super) fn base(&self) -> u64 {
        self.base
    }

    /// Offset behind the last held byte.
    pub(super) fn end(&self) -> u64 {
        self.base + (self.text.len() - self.head) as u64
    }

    /// Whether nothing is held, no token and no markup either.
    pub(super) fn is_idle(&self) -> bool {
        self.head == self.text.len() && self.tokens.is_empty() && self.holes.is_empty()
    }

    /// Lets `count` bytes of text by while nothing is held.
    pub(super) fn pass(&mut self, count: u64) {
        self.base += count;
        // Text of the class of the last run would join it, and hold it for text that lies further on.
        self.runs.clear();
    }

    /// Adds decoded text.
    pub(super) fn push(&mut self, text: &str, class: Class) {
        if text.is_empty() {
            return;
        }
        let start = self.end();
        let joins = match (self.runs.back(), class) {
            (Some(run), Class::Text | Class::Plain) => run.class == class,
            _ => false,
        };
        if !joins {
            self.runs.push_back(Run { start, class });
        }
        self.text.push_str(text);
    }

    fn index(&self, at: u64) -> usize {
        self.head + (at - self.base) as usize
    }

    /// Held text from `from` to `to`.
    pub(super) fn slice(&self, from: u64, to: u64) -> &str {
        let text = self.text.get(self.index(from)..self.index(to));
        debug_assert!(text.is_some(), "offsets lie between characters");
        text.unwrap_or_default()
    }

    /// Held bytes from `from` to the end.
    pub(super) fn bytes(&self, from: u64) -> &[u8] {
        &self.text.as_bytes()[self.index(from)..]
    }

    /// The byte at `at`, which is held.
    pub(super) fn byte(&self, at: u64) -> u8 {
        self.text.as_bytes()[self.index(at)]
    }

    /// Class of the text at `at`, and where the run of this class ends.
    pub(super) fn class_at(&self, at: u64) -> (Class, u64) {
        let after = self.runs.partition_point(|run| run.start <= at);
        let end = self.runs.get(after).map_or(self.end(), |run| run.start);
        let class = self.runs.get(after.wrapping_sub(1)).map(|run| run.class);
        (class.unwrap_or(Class::Text), end)
    }

    /// The character at `at`.
    pub(super) fn char_at(&self, at: u64) -> Option<char> {
        self.text.get(self.index(at)..)?.chars().next()
    }

    /// Where the newlines begin that stand directly before `at`, but not before `floor`.
    pub(super) fn newline_start(&mut self, at: u64, floor: u64) -> u64 {
        let mut start = at;
        while start > self.base && self.byte(start - 1) == b'\n' {
            if start == self.newlines.end {
                start = self.newlines.start.max(self.base);
                break;
            }
            start -= 1;
        }
        self.newlines = start..at;
        start.max(floor).min(at)
    }

    /// Markup between `from` and `to`, behind all other holes: it will not be output.
    pub(super) fn cut(&mut self, from: u64, to: u64) {
        if from < to {
            self.holes.push_back(from..to);
        }
    }

    /// Forgets the holes from `from` on: what they hid counts as text again.
    pub(super) fn restore(&mut self, from: u64) {
        while self.holes.back().is_some_and(|hole| hole.start >= from) {
            self.holes.pop_back();
        }
    }

    /// The end of the hole that covers `at`.
    pub(super) fn hole_at(&self, at: u64) -> Option<u64> {
        if self.holes.is_empty() {
            return None;
        }
        let after = self.holes.partition_point(|hole| hole.start <= at);
        let hole = self.holes.get(after.checked_sub(1)?)?;
        (at < hole.end).then_some(hole.end)
    }

    /// The end of the text without holes that begins at `at`.
    pub(super) fn solid_end(&self, at: u64, limit: u64) -> u64 {
        if self.holes.is_empty() {
            return limit;
        }
        let after = self.holes.partition_point(|hole| hole.start <= at);
        self.holes
            .get(after)
            .map_or(limit, |hole| hole.start.min(limit))
    }

    /// The offset `count` bytes of text before `at`, holes not counted.
    pub(super) fn back(&self, at: u64, count: usize) -> u64 {
        let mut at = at;
        let mut left = count as u64;
        for hole in self.holes.iter().rev() {
            if hole.end > at {
                continue;
            }
            if at - hole.end >= left {
                break;
            }
            left -= at - hole.end;
            at = hole.start;
        }
        at - left
    }

    /// Whether there is anything but white space between `from` and `to`.
    pub(super) fn has_text(&self, from: u64, to: u64) -> bool {
        let mut at = from;
        while at < to {
            if let Some(end) = self.hole_at(at) {
                at = end;
                continue;
            }
            let end = self.solid_end(at, to);
            if self
                .slice(at, end)
                .bytes()
                .any(|b| !b.is_ascii_whitespace())
            {
                return true;
            }
            at = end;
        }
        false
    }

    /// Removes everything before `to` from the front.
    pub(super) fn skip(&mut self, to: u64) {
        if to <= self.base {
            return;
        }
        self.head += (to - self.base) as usize;
        self.base = to;
        if self.head == self.text.len() {
            self.text.clear();
            self.head = 0;
        } else if self.head > 4096 && self.head * 2 > self.text.len() {
            self.text.drain(..self.head);
            self.head = 0;
        }
        // The last run stays: text of its class joins it.
        while self.runs.get(1).is_some_and(|next| next.start <= to) {
            self.runs.pop_front();
        }
        while self.holes.front().is_some_and(|hole| hole.end <= to) {
            self.holes.pop_front();
        }
        while self.pieces.get(1).is_some_and(|next| next.at <= to) {
            self.pieces.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newlines_before_a_place_are_found_again_without_a_walk() {
        let mut held = Held::default();
        held.push("a", Class::Text);
        for _ in 0..100_000 {
            held.push("\n", Class::Text);
            let end = held.end();
            assert_eq!(held.newline_start(end, 0), 1);
            assert_eq!(held.newline_start(end, end - 1), end - 1);
        }
    }

    #[test]
    fn holes_are_not_text() {
        let mut held = Held::default();
        held.push("ab<x>cd<y>ef", Class::Text);
        held.cut(2, 5);
        held.cut(7, 10);
        assert_eq!(held.back(12, 2), 10);
        assert_eq!(held.back(12, 3), 6);
        assert_eq!(held.back(12, 6), 0);
        assert_eq!(held.hole_at(3), Some(5));
        assert_eq!(held.hole_at(5), None);
        assert_eq!(held.solid_end(5, 12), 7);
        held.restore(6);
        assert_eq!(held.hole_at(8), None);
        assert_eq!(held.solid_end(5, 12), 12);
    }

    #[test]
    fn classes_are_kept_while_text_is_held() {
        let mut held = Held::default();
        held.push("ab", Class::Plain);
        held.push("cd", Class::Plain);
        held.push("!", Class::Special(Mark::Other));
        held.push("ef", Class::Plain);
        assert_eq!(held.class_at(3), (Class::Plain, 4));
        assert_eq!(held.class_at(4), (Class::Special(Mark::Other), 5));
        held.skip(5);
        assert_eq!(held.class_at(5), (Class::Plain, 7));
        assert_eq!(held.slice(5, 7), "ef");
    }
}
