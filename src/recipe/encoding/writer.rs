//! Builds a prompt: text, and which bytes of it are special tokens.

use super::special::{GROUNDING, SpecialToken, SpecialTokens};
use crate::recipe::conversation::{ImageSource, Prompt};

/// A prompt under construction.
pub(super) struct Writer<'a> {
    prompt: Prompt,
    images: Vec<PlacedImage<'a>>,
    tokens: &'a SpecialTokens,
}

/// An image of the conversation and its placeholder.
#[derive(Clone, Copy, Debug)]
pub struct PlacedImage<'a> {
    /// Where the image comes from.
    pub source: &'a ImageSource,
    /// Index of its placeholder in the prompt's special ranges; `None` when the text has none for it.
    pub range: Option<usize>,
}

impl<'a> Writer<'a> {
    pub(super) fn new(tokens: &'a SpecialTokens, capacity: usize) -> Self {
        Self {
            prompt: Prompt {
                text: String::with_capacity(capacity),
                special_ranges: Vec::with_capacity(16),
            },
            images: Vec::new(),
            tokens,
        }
    }

    pub(super) fn finish(self) -> (Prompt, Vec<PlacedImage<'a>>) {
        (self.prompt, self.images)
    }

    /// Appends text that is text whatever it spells.
    pub(super) fn text(&mut self, text: &str) {
        self.prompt.text.push_str(text);
    }

    /// The text so far, for writers of JSON.
    pub(super) fn text_mut(&mut self) -> &mut String {
        &mut self.prompt.text
    }

    /// Appends a control token.
    pub(super) fn special(&mut self, token: SpecialToken) {
        self.special_spelling(self.tokens.spelling(token));
    }

    /// Appends content of a message: its text, its placeholders, and the images they stand for.
    pub(super) fn content(&mut self, content: Content<'a>) {
        let offset = self.prompt.text.len();
        let first = self.prompt.special_ranges.len();
        let Prompt {
            text,
            special_ranges,
        } = content.prompt;
        self.prompt.text.push_str(text);
        let moved = special_ranges
            .iter()
            .map(|range| range.start + offset..range.end + offset);
        self.prompt.special_ranges.extend(moved);
        let placed = content
            .images
            .iter()
            .enumerate()
            .map(|(at, source)| PlacedImage {
                source,
                range: (at < special_ranges.len()).then_some(first + at),
            });
        self.images.extend(placed);
    }

    /// Appends what an assistant wrote: grounding tokens in it are special, nothing else is.
    pub(super) fn assistant_text(&mut self, text: &str) {
        let spellings = GROUNDING.map(|token| self.tokens.spelling(token));
        let (mut done, mut at) = (0, 0);
        while let Some(found) = next_start(&text[at..], &spellings) {
            let here = at + found;
            let matching = spellings
                .iter()
                .filter(|spelling| !spelling.is_empty() && text[here..].starts_with(**spelling))
                .max_by_key(|spelling| spelling.len());
            at = match matching {
                Some(spelling) => {
                    self.text(&text[done..here]);
                    self.special_spelling(spelling);
                    done = here + spelling.len();
                    done
                }
                None => here + text[here..].chars().next().map_or(1, char::len_utf8),
            };
        }
        self.text(&text[done..]);
    }

    fn special_spelling(&mut self, spelling: &str) {
        if spelling.is_empty() {
            return;
        }
        let start = self.prompt.text.len();
        self.prompt.text.push_str(spelling);
        self.prompt
            .special_ranges
            .push(start..self.prompt.text.len());
    }
}

/// Where one of `spellings` may begin in `text`: the next byte that is the first of one of them. UTF-8 has no such
/// byte inside a character.
fn next_start(text: &str, spellings: &[&str]) -> Option<usize> {
    let mut firsts = spellings.iter().filter_map(|s| s.bytes().next());
    let first = firsts.next()?;
    if firsts.all(|other| other == first) {
        // So it is unless somebody spells them another way.
        return memchr::memchr(first, text.as_bytes());
    }
    text.bytes()
        .position(|byte| spellings.iter().any(|s| s.bytes().next() == Some(byte)))
}

/// Content of a message and the images of its placeholders.
#[derive(Clone, Copy, Debug)]
pub(super) struct Content<'a> {
    pub(super) prompt: &'a Prompt,
    pub(super) images: &'a [ImageSource],
}

impl<'a> Content<'a> {
    pub(super) fn new(prompt: &'a Prompt, images: &'a [ImageSource]) -> Self {
        Self { prompt, images }
    }
}
