//! Bytes of tokens become text: characters split over tokens, bytes that are none, the end marker.
//!
//! No window is ever decoded twice; a stream of broken bytes costs as much as one of letters.

use super::held::{Class, Held, Logprob, PieceMark, TokenMark};

const REPLACEMENT: &str = "\u{FFFD}";

/// Decodes ordinary tokens. Special tokens and text need no decoding, but whoever adds one to the held
/// text flushes first.
#[derive(Debug, Default)]
pub(super) struct Decoder {
    /// An incomplete character; in strict mode everything since the last complete end.
    tail: Vec<u8>,
    /// Takes turns with `tail`, so that neither is allocated again.
    spare: Vec<u8>,
    /// Strict mode: tokens of `tail`.
    waiting: Vec<Option<Logprob>>,
    strict: bool,
}

impl Decoder {
    pub(super) fn new(strict: bool) -> Self {
        Self {
            strict,
            ..Self::default()
        }
    }

    /// Whether no character is incomplete.
    pub(super) fn is_idle(&self) -> bool {
        self.tail.is_empty()
    }

    /// Reads one ordinary token.
    pub(super) fn token(&mut self, bytes: &[u8], logprob: Option<Logprob>, held: &mut Held) {
        if self.strict {
            self.tail.extend_from_slice(bytes);
            self.waiting.push(logprob);
            return;
        }
        if self.tail.is_empty() {
            mark(held, logprob);
            self.complete(bytes, held);
            return;
        }
        let kept = self.tail.len();
        let mut joined = std::mem::replace(&mut self.tail, std::mem::take(&mut self.spare));
        joined.extend_from_slice(bytes);
        let mut rest = joined.as_slice();
        // The old bytes end as broken ones without the new token's help: it begins behind them.
        if let Err(error) = std::str::from_utf8(rest)
            && error.valid_up_to() == 0
            && error.error_len() == Some(kept)
        {
            held.push(REPLACEMENT, Class::Plain);
            rest = &rest[kept..];
        }
        mark(held, logprob);
        self.complete(rest, held);
        joined.clear();
        self.spare = joined;
    }

    /// Adds all characters of `bytes`; an incomplete one at the end waits.
    fn complete(&mut self, bytes: &[u8], held: &mut Held) {
        let mut rest = bytes;
        while !rest.is_empty() {
            let error = match std::str::from_utf8(rest) {
                Ok(text) => return held.push(text, Class::Plain),
                Err(error) => error,
            };
            let (valid, broken) = rest.split_at(error.valid_up_to());
            held.push(std::str::from_utf8(valid).unwrap_or_default(), Class::Plain);
            let Some(length) = error.error_len() else {
                self.tail.extend_from_slice(broken);
                return;
            };
            held.push(REPLACEMENT, Class::Plain);
            rest = &broken[length..];
        }
    }

    /// Strict mode: whether the waiting bytes end with a complete character.
    pub(super) fn ends_complete(&self) -> bool {
        let tail = &self.tail;
        (1..=tail.len().min(4)).any(|length| {
            let last = &tail[tail.len() - length..];
            std::str::from_utf8(last).is_ok_and(|text| text != REPLACEMENT)
        })
    }

    /// Turns what waits into text, broken or not. The number of tokens this settles.
    pub(super) fn flush(&mut self, held: &mut Held) -> u32 {
        if !self.strict {
            if !self.tail.is_empty() {
                self.tail.clear();
                held.push(REPLACEMENT, Class::Plain);
            }
            return 0;
        }
        let count = self.waiting.len() as u32;
        if count > 0 {
            let all: Option<Vec<Logprob>> = self.waiting.drain(..).collect();
            self.waiting.clear();
            piece(held, all.unwrap_or_default());
            held.tokens.push_back(TokenMark {
                at: held.end(),
                count,
                is_id: true,
                logprob: None,
            });
            held.push(&String::from_utf8_lossy(&self.tail), Class::Plain);
            self.tail.clear();
        }
        count
    }
}

fn mark(held: &mut Held, logprob: Option<Logprob>) {
    let at = held.end();
    held.tokens.push_back(TokenMark {
        at,
        count: 1,
        is_id: true,
        logprob,
    });
}

/// Strict mode: the next piece of held text begins here.
pub(super) fn piece(held: &mut Held, logprobs: Vec<Logprob>) {
    let at = held.end();
    held.pieces.push_back(PieceMark {
        at,
        logprobs,
        segment: u64::MAX,
    });
}

/// Removes the spelling of the end token from the very end of text input.
#[derive(Debug, Default)]
pub(super) struct EndFilter {
    spelling: String,
    /// How much of the spelling the text ends with; none of it is held text yet.
    matched: usize,
}

impl EndFilter {
    pub(super) fn new(spelling: &str) -> Self {
        Self {
            spelling: spelling.to_owned(),
            matched: 0,
        }
    }

    /// Whether the text ends with no part of the marker.
    pub(super) fn is_idle(&self) -> bool {
        self.matched == 0
    }

    /// Adds `text` to the held text but for an end that may be the marker.
    pub(super) fn push(&mut self, text: &str, held: &mut Held) {
        let total = self.matched + text.len();
        let longest = (1..=self.spelling.len().min(total))
            .rev()
            .find(|&length| self.ends_with(text, length))
            .unwrap_or(0);
        let released = total - longest;
        if released <= self.matched {
            held.push(&self.spelling[..released], Class::Text);
        } else {
            held.push(&self.spelling[..self.matched], Class::Text);
            held.push(&text[..released - self.matched], Class::Text);
        }
        self.matched = longest;
    }

    /// Whether what is kept and `text` together end with the first `length` bytes of the spelling.
    fn ends_with(&self, text: &str, length: usize) -> bool {
        let wanted = &self.spelling.as_bytes()[..length];
        let text = text.as_bytes();
        match length.checked_sub(text.len()) {
            None => text.ends_with(wanted),
            Some(before) => {
                let kept = &self.spelling.as_bytes()[..self.matched];
                wanted.ends_with(text) && kept.ends_with(&wanted[..before])
            }
        }
    }

    /// Other input follows, or the output ends (`end`): an incomplete marker was text.
    pub(super) fn flush(&mut self, end: bool, held: &mut Held) {
        if !end || self.matched < self.spelling.len() {
            held.push(&self.spelling[..self.matched], Class::Text);
        }
        self.matched = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode(tokens: &[&[u8]]) -> String {
        let mut held = Held::default();
        let mut decoder = Decoder::new(false);
        for token in tokens {
            decoder.token(token, None, &mut held);
        }
        held.slice(0, held.end()).to_owned()
    }

    #[test]
    fn a_character_split_over_tokens_waits_for_its_end() {
        assert_eq!(decode(&[b"a", b"\xf0\x9f\xa4"]), "a");
        assert_eq!(decode(&[b"a", b"\xf0\x9f\xa4", b"\xad z"]), "a🤭 z");
    }

    #[test]
    fn bytes_that_can_never_be_a_character_are_replaced_at_once() {
        assert_eq!(decode(&[b"a\xad"]), "a\u{FFFD}");
        assert_eq!(decode(&[b"\xf0\x9f", b"ok"]), "\u{FFFD}ok");
        assert_eq!(
            decode(&[b"\xe4\xbd", b"\xf0\x9f", b"\xa4\xad"]),
            "\u{FFFD}🤭"
        );
    }

    #[test]
    fn any_split_decodes_as_the_lossy_whole() {
        let bytes = b"x\xff\xe2\x82\xac\xe2\x82\xf0\x9f\xa4\xad\xed\xa0\x80\xc3(\xf4\x90";
        let whole = String::from_utf8_lossy(bytes);
        for at in 0..bytes.len() {
            for to in at..bytes.len() {
                let split = decode(&[&bytes[..at], &bytes[at..to], &bytes[to..]]);
                assert_eq!(split, whole, "split at {at} and {to}");
            }
        }
    }

    #[test]
    fn the_end_marker_is_removed_only_at_the_very_end() {
        for chunks in [
            &["done<E", "ND>"][..],
            &["done<END>"],
            &["d", "o", "n", "e", "<", "E", "N", "D", ">"],
        ] {
            let mut held = Held::default();
            let mut filter = EndFilter::new("<END>");
            for chunk in chunks {
                filter.push(chunk, &mut held);
            }
            filter.flush(true, &mut held);
            assert_eq!(held.slice(0, held.end()), "done");
        }
        let mut held = Held::default();
        let mut filter = EndFilter::new("<END>");
        for chunk in ["a<END>", "b<", "<EN", "x<E"] {
            filter.push(chunk, &mut held);
        }
        filter.flush(true, &mut held);
        assert_eq!(held.slice(0, held.end()), "a<END>b<<ENx<E");
    }
}
