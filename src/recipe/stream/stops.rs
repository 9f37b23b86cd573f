//! Stop sequences, matched byte by byte over decoded content.

use super::held::{Class, Held};
use crate::recipe::encoding::{SpecialToken, SpecialTokens};

#[derive(Debug)]
struct Stop {
    text: String,
    /// Length of the longest proper border of each prefix (Knuth, Morris, Pratt).
    borders: Vec<usize>,
    /// How much of `text` the content ends with.
    matched: usize,
    /// It spells a special token, so ordinary tokens cannot match it.
    text_only: bool,
}

impl Stop {
    fn feed(&mut self, byte: u8) -> bool {
        let text = self.text.as_bytes();
        while self.matched > 0 && text[self.matched] != byte {
            self.matched = self.borders[self.matched - 1];
        }
        if text[self.matched] == byte {
            self.matched += 1;
        }
        if self.matched == text.len() {
            self.matched = 0;
            return true;
        }
        false
    }
}

/// All stop sequences of a request. The first to end wins; among those, the first of the list.
#[derive(Debug)]
pub(super) struct Stops {
    stops: Vec<Stop>,
    first: [bool; 256],
    idle: bool,
    cursor: u64,
}

impl Stops {
    /// `strict`: ordinary tokens match any sequence, also one that spells a special token.
    pub(super) fn new(texts: &[String], special: &SpecialTokens, strict: bool) -> Self {
        let markers = [
            SpecialToken::Eos,
            SpecialToken::ThinkingStart,
            SpecialToken::ThinkingEnd,
            SpecialToken::Dsml,
        ]
        .map(|token| special.spelling(token));
        let mut first = [false; 256];
        let mut stops = Vec::new();
        for text in texts.iter().filter(|text| !text.is_empty()) {
            let bytes = text.as_bytes();
            first[bytes[0] as usize] = true;
            let mut borders = vec![0; bytes.len()];
            let mut length = 0;
            for at in 1..bytes.len() {
                while length > 0 && bytes[at] != bytes[length] {
                    length = borders[length - 1];
                }
                length += usize::from(bytes[at] == bytes[length]);
                borders[at] = length;
            }
            stops.push(Stop {
                borders,
                matched: 0,
                text_only: !strict && markers.iter().any(|m| !m.is_empty() && text.contains(m)),
                text: text.clone(),
            });
        }
        Self {
            stops,
            first,
            idle: true,
            cursor: 0,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.stops.is_empty()
    }

    /// Whether what was read is the beginning of none.
    pub(super) fn is_idle(&self) -> bool {
        self.idle
    }

    pub(super) fn text(&self, index: usize) -> &str {
        &self.stops[index].text
    }

    /// Begins anew at `at`.
    pub(super) fn reset(&mut self, at: u64) {
        self.cursor = at;
        self.forget();
    }

    fn forget(&mut self) {
        self.idle = true;
        for stop in &mut self.stops {
            stop.matched = 0;
        }
    }

    /// Reads held text up to `limit`; the index and the range of a sequence that ends there.
    pub(super) fn scan(&mut self, held: &Held, limit: u64) -> Option<(usize, u64, u64)> {
        if self.stops.is_empty() {
            return None;
        }
        self.cursor = self.cursor.max(held.base());
        while self.cursor < limit {
            if let Some(end) = held.hole_at(self.cursor) {
                self.cursor = end;
                continue;
            }
            let (class, run_end) = held.class_at(self.cursor);
            let end = held.solid_end(self.cursor, run_end.min(limit));
            if let Class::Special(_) = class {
                self.forget();
                self.cursor = end;
                continue;
            }
            let bytes = &held.bytes(self.cursor)[..(end - self.cursor) as usize];
            let mut at = 0;
            while at < bytes.len() {
                if self.idle {
                    match bytes[at..].iter().position(|&b| self.first[b as usize]) {
                        Some(skip) => at += skip,
                        None => break,
                    }
                }
                let mut found = None;
                self.idle = true;
                for (index, stop) in self.stops.iter_mut().enumerate() {
                    if stop.text_only && class == Class::Plain {
                        stop.matched = 0;
                        continue;
                    }
                    if stop.feed(bytes[at]) && found.is_none() {
                        found = Some(index);
                    }
                    self.idle &= stop.matched == 0;
                }
                at += 1;
                if let Some(index) = found {
                    let end = self.cursor + at as u64;
                    let start = held.back(end, self.stops[index].text.len());
                    self.reset(end);
                    return Some((index, start, end));
                }
            }
            self.cursor = end;
        }
        None
    }

    /// Where the longest sequence begins that the text read so far may be the start of.
    pub(super) fn hold(&self, held: &Held) -> u64 {
        let matched = self
            .stops
            .iter()
            .map(|stop| stop.matched)
            .max()
            .unwrap_or(0);
        held.back(self.cursor, matched)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(stops: &[&str], text: &str) -> Option<(usize, u64, u64)> {
        let texts: Vec<String> = stops.iter().map(|s| (*s).to_owned()).collect();
        let mut held = Held::default();
        held.push(text, Class::Text);
        Stops::new(&texts, &SpecialTokens::default(), false).scan(&held, held.end())
    }

    #[test]
    fn a_failed_prefix_may_hold_the_next_match() {
        assert_eq!(find(&["abc"], "ababc"), Some((0, 2, 5)));
        assert_eq!(find(&["aab"], "aaab"), Some((0, 1, 4)));
    }

    #[test]
    fn the_first_to_end_wins_then_the_first_listed() {
        assert_eq!(find(&["three", "two"], "one two three"), Some((1, 4, 7)));
        assert_eq!(find(&["lo", "hello"], "say hello"), Some((0, 7, 9)));
        assert_eq!(find(&["hello", "lo"], "say hello"), Some((0, 4, 9)));
    }
}
