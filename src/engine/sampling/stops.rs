//! Stop strings: the text of an output is searched for them, token by token (`engine.md` section 11.3).
//!
//! In: tokens. Out: how many of the tokens held back may go. Only tokens that reach into the longest end of the text
//! that may still become a stop string, or into an incomplete character, are held back. Where a stop string ends
//! inside a token, or begins inside one that must not be shown, that token is not delivered: what belongs to the
//! output of its text is the *tail*. The text of the delivered tokens and the tail together are the output, exactly.
//!
//! One comparison a byte and stop string; nothing is searched twice.

#![forbid(unsafe_code)]

use std::sync::Arc;

use super::pattern::Pattern;
use crate::engine::request::StopStrings;

/// The text of token ids.
pub trait TokenText: Send + Sync {
    /// The bytes that stand for `id`; `None` if it has none.
    fn text(&self, id: u32) -> Option<&[u8]>;
}

/// See the module.
#[derive(Clone)]
pub struct Stops {
    text: Arc<dyn TokenText>,
    strings: Vec<Pattern<u8>>,
    include: bool,
    /// Bytes of each string that the text ends with.
    seen: Vec<usize>,
    /// Text of the tokens held back, and where each of them ends in it.
    held: Vec<u8>,
    ends: Vec<usize>,
}

/// What a token did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// So many of the tokens held back may go.
    Nothing {
        /// How many.
        free: usize,
    },
    /// A stop string is complete. So many of the tokens held back belong to the output; the others do not go.
    Stop {
        /// How many.
        free: usize,
        /// The stop string.
        stop: String,
        /// Text of the output behind the last token that goes.
        tail: String,
    },
}

impl Stops {
    /// For a request that was checked.
    pub fn new(wish: &StopStrings) -> Self {
        let strings = wish.strings.iter();
        Self {
            text: wish.text.clone(),
            strings: strings
                .map(|string| Pattern::new(string.clone().into_bytes()))
                .collect(),
            include: wish.include,
            seen: vec![0; wish.strings.len()],
            held: Vec::new(),
            ends: Vec::new(),
        }
    }

    /// Takes the next token of the output.
    pub fn accept(&mut self, token: u32) -> Found {
        let text = self.text.clone();
        let bytes = text.text(token).unwrap_or_default();
        if bytes.is_empty() {
            // A gap in the text: nothing reaches over it.
            self.seen.fill(0);
            let free = self.ends.len() + 1;
            self.held.clear();
            self.ends.clear();
            return Found::Nothing { free };
        }
        for (at, &byte) in bytes.iter().enumerate() {
            self.held.push(byte);
            if let Some(string) = self.advance(byte) {
                return self.stop(string, at + 1 == bytes.len());
            }
        }
        self.ends.push(self.held.len());
        let open = self.seen.iter().copied().max().unwrap_or(0);
        let safe = self.held.len() - open.max(incomplete(&self.held));
        let free = self.whole(safe);
        if let Some(gone) = self.ends[..free].last().copied() {
            self.held.drain(..gone);
            self.ends.drain(..free);
            self.ends.iter_mut().for_each(|end| *end -= gone);
        }
        Found::Nothing { free }
    }

    /// How many of the tokens held back end within the first `safe` bytes, and not inside a character whose rest
    /// stays.
    fn whole(&self, safe: usize) -> usize {
        let mut free = self.ends.partition_point(|end| *end <= safe);
        while free > 0 {
            let end = self.ends[free - 1];
            if end == safe || incomplete(&self.held[..end]) == 0 {
                break;
            }
            free -= 1;
        }
        free
    }

    /// The longest string that is complete with this byte.
    fn advance(&mut self, byte: u8) -> Option<usize> {
        let mut found: Option<usize> = None;
        for (at, (string, seen)) in self.strings.iter().zip(&mut self.seen).enumerate() {
            *seen = string.advance(*seen, byte);
            let length = string.items().len();
            let is_longer = found.is_none_or(|f| self.strings[f].items().len() < length);
            if *seen == length && is_longer {
                found = Some(at);
            }
        }
        found
    }

    /// The end of the output, with the last byte of `held`.
    fn stop(&mut self, string: usize, is_at_end: bool) -> Found {
        let stop = self.strings[string].items();
        if is_at_end {
            self.ends.push(self.held.len());
        }
        let shown = if self.include {
            self.held.len()
        } else {
            self.held.len() - stop.len()
        };
        let free = self.whole(shown);
        let gone = self.ends[..free].last().copied().unwrap_or(0);
        Found::Stop {
            free,
            stop: String::from_utf8_lossy(stop).into_owned(),
            tail: String::from_utf8_lossy(&self.held[gone..shown]).into_owned(),
        }
    }
}

impl std::fmt::Debug for Stops {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stops")
            .field("strings", &self.strings.len())
            .field("held", &self.ends.len())
            .finish_non_exhaustive()
    }
}

/// Bytes at the end of a text that begin a character and do not complete it.
fn incomplete(text: &[u8]) -> usize {
    for (back, &byte) in text.iter().rev().take(3).enumerate() {
        let length = match byte {
            0x80..=0xbf => continue,
            0xc2..=0xdf => 2,
            0xe0..=0xef => 3,
            0xf0..=0xf4 => 4,
            _ => return 0,
        };
        return if back + 1 < length { back + 1 } else { 0 };
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Ids are places in a list of texts.
    struct Texts(Vec<Vec<u8>>);

    impl TokenText for Texts {
        fn text(&self, id: u32) -> Option<&[u8]> {
            self.0.get(id as usize).map(Vec::as_slice)
        }
    }

    fn stops(strings: &[String], include: bool, texts: Vec<Vec<u8>>) -> Stops {
        Stops::new(&StopStrings {
            strings: strings.to_vec(),
            include,
            text: Arc::new(Texts(texts)),
        })
    }

    /// What is shown of `pieces`, piece by piece: how many bytes after each, whether it stopped, all bytes.
    fn run(strings: &[String], include: bool, pieces: &[Vec<u8>]) -> (Vec<usize>, bool, Vec<u8>) {
        let mut stops = stops(strings, include, pieces.to_vec());
        let (mut shown, mut steps) = (Vec::new(), Vec::new());
        let mut gone = 0;
        for at in 0..pieces.len() {
            let (free, tail) = match stops.accept(at as u32) {
                Found::Nothing { free } => (free, None),
                Found::Stop { free, tail, .. } => (free, Some(tail)),
            };
            pieces[gone..gone + free]
                .iter()
                .for_each(|piece| shown.extend_from_slice(piece));
            gone += free;
            if let Some(tail) = tail {
                shown.extend_from_slice(tail.as_bytes());
                return (steps, true, shown);
            }
            steps.push(shown.len());
        }
        pieces[gone..]
            .iter()
            .for_each(|piece| shown.extend_from_slice(piece));
        (steps, false, shown)
    }

    /// The whole text searched at once: the earliest end, then the longest.
    fn plain(strings: &[String], include: bool, text: &[u8]) -> (bool, Vec<u8>) {
        for end in 1..=text.len() {
            let found = strings
                .iter()
                .filter(|s| text[..end].ends_with(s.as_bytes()));
            if let Some(longest) = found.max_by_key(|s| s.len()) {
                let shown = if include { end } else { end - longest.len() };
                return (true, text[..shown].to_vec());
            }
        }
        (false, text.to_vec())
    }

    fn text() -> impl Strategy<Value = String> {
        let part =
            prop_oneof![4 => "[ab]{1,3}", 1 => Just("é".to_owned()), 1 => Just("汉".to_owned())];
        prop::collection::vec(part, 0..20).prop_map(|parts| parts.concat())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]
        #[test]
        fn any_split_shows_the_same_bytes_and_no_more_is_held_than_must_be(
            text in text(),
            strings in prop::collection::vec("[ab]{1,4}|é[ab]?|汉|a汉", 1..4),
            include in any::<bool>(),
            cuts in prop::collection::vec(0usize..200, 0..30),
        ) {
            let bytes = text.as_bytes();
            let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut % (bytes.len() + 1)).collect();
            cuts.extend([0, bytes.len()]);
            cuts.sort_unstable();
            cuts.dedup();
            let pieces: Vec<Vec<u8>> = cuts.windows(2).map(|cut| bytes[cut[0]..cut[1]].to_vec()).collect();
            let (steps, stopped, shown) = run(&strings, include, &pieces);
            let expected = plain(&strings, include, bytes);
            prop_assert_eq!((stopped, &shown), (expected.0, &expected.1));
            let mut so_far = 0;
            for (piece, shown) in pieces.iter().zip(steps) {
                so_far += piece.len();
                // The longest end that begins a stop string or is part of a character; whole tokens are held.
                let open = (0..=so_far.min(8)).rev().find(|length| {
                    let end = &bytes[so_far - length..so_far];
                    strings.iter().any(|s| s.len() > *length && s.as_bytes().starts_with(end))
                }).unwrap();
                let cut = (0..4).find(|back| text.is_char_boundary(so_far - back)).unwrap();
                let safe = so_far - open.max(cut);
                let borders = cuts.iter().copied().filter(|cut| text.is_char_boundary(*cut));
                let whole = borders.filter(|cut| *cut <= safe).max().unwrap();
                prop_assert_eq!(shown, whole);
            }
        }
    }

    #[test]
    fn the_longest_of_those_that_end_first_is_told() {
        let strings = ["b".to_owned(), "ab".to_owned(), "abc".to_owned()];
        let mut stops = stops(&strings, false, vec![b"xabc".to_vec()]);
        let expected = Found::Stop {
            free: 0,
            stop: "ab".to_owned(),
            tail: "x".to_owned(),
        };
        assert_eq!(stops.accept(0), expected);
    }

    #[test]
    fn an_id_without_text_parts_what_stands_around_it() {
        let texts = vec![b"a".to_vec(), Vec::new(), b"b".to_vec()];
        let mut stops = stops(&["ab".to_owned()], false, texts);
        assert_eq!(stops.accept(0), Found::Nothing { free: 0 });
        assert_eq!(stops.accept(1), Found::Nothing { free: 2 });
        assert_eq!(stops.accept(2), Found::Nothing { free: 1 });
        assert_eq!(stops.accept(0), Found::Nothing { free: 0 });
        assert_eq!(stops.accept(99), Found::Nothing { free: 2 });
    }

    #[test]
    fn bytes_that_are_no_text_are_not_waited_for() {
        let texts = vec![vec![0xff], vec![0x80], vec![0xe6, 0xb1], vec![b'x']];
        let mut stops = stops(&["zz".to_owned()], false, texts);
        for (token, free) in [(0, 1), (1, 1), (2, 0), (3, 2)] {
            assert_eq!(stops.accept(token), Found::Nothing { free }, "{token}");
        }
    }
}
