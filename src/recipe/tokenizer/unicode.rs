//! Which of the classes of the V4 pre-tokeniser a character belongs to.
//!
//! The tables come from `regex-syntax`, the crate behind the expressions of the tokenizer file, so
//! that our splitter and these expressions can never disagree about a Unicode version. They are built
//! once in a process (a few milliseconds) and take about 100 KB.

use std::sync::OnceLock;

use regex_syntax::hir::{Class, HirKind};

/// `\p{L}`: letters.
pub(super) const LETTER: u8 = 1;
/// `\p{M}`: combining marks.
pub(super) const MARK: u8 = 2;
/// `\p{N}`: numeric characters.
pub(super) const NUMBER: u8 = 4;
/// `\p{P}` or `\p{S}`: punctuation and symbols.
pub(super) const SYMBOL: u8 = 8;
/// `\s`: white space.
pub(super) const SPACE: u8 = 16;
/// CJK ideographs and kana, as the second stage of the pre-tokeniser lists them.
pub(super) const CJK: u8 = 32;

const BLOCK: usize = 256;

/// Classes of every character: blocks of 256, equal blocks shared.
pub(super) struct Classes {
    blocks: Vec<[u8; BLOCK]>,
    index: Vec<u16>,
    /// The first of them again, at hand.
    ascii: [u8; 128],
}

impl Classes {
    /// The tables, built on first use.
    pub(super) fn shared() -> &'static Self {
        static SHARED: OnceLock<Classes> = OnceLock::new();
        SHARED.get_or_init(Self::build)
    }

    /// The classes of `character`, as bits.
    #[inline]
    pub(super) fn of(&self, character: char) -> u8 {
        let code = character as usize;
        self.blocks[usize::from(self.index[code / BLOCK])][code % BLOCK]
    }

    /// The classes of the character of `text` that begins at `at`, and its length in bytes; 0 and 0 at the end.
    #[inline]
    pub(super) fn at(&self, text: &str, at: usize) -> (u8, usize) {
        match text.as_bytes().get(at) {
            None => (0, 0),
            Some(byte) if byte.is_ascii() => (self.ascii[usize::from(*byte)], 1),
            Some(_) => self.wide_at(text, at),
        }
    }

    fn wide_at(&self, text: &str, at: usize) -> (u8, usize) {
        match text[at..].chars().next() {
            Some(character) => (self.of(character), character.len_utf8()),
            None => (0, 0),
        }
    }

    fn build() -> Self {
        let mut flat = vec![0u8; 0x11_0000];
        for (pattern, bit) in [
            (r"\p{L}", LETTER),
            (r"\p{M}", MARK),
            (r"\p{N}", NUMBER),
            (r"[\p{P}\p{S}]", SYMBOL),
            (r"\s", SPACE),
            ("[\u{4E00}-\u{9FA5}\u{3040}-\u{309F}\u{30A0}-\u{30FF}]", CJK),
        ] {
            for (start, end) in ranges(pattern) {
                for class in &mut flat[start as usize..=end as usize] {
                    *class |= bit;
                }
            }
        }
        let mut blocks: Vec<[u8; BLOCK]> = Vec::new();
        let index = flat
            .chunks_exact(BLOCK)
            .map(|chunk| {
                let block: [u8; BLOCK] = chunk.try_into().expect("chunks are of this size");
                let known = blocks.iter().position(|other| *other == block);
                let position = known.unwrap_or_else(|| {
                    blocks.push(block);
                    blocks.len() - 1
                });
                u16::try_from(position).expect("4352 blocks at most")
            })
            .collect();
        let ascii = flat
            .first_chunk()
            .copied()
            .expect("characters begin with ascii");
        Self {
            blocks,
            index,
            ascii,
        }
    }
}

/// The ranges of a pattern that is a single character class.
fn ranges(pattern: &str) -> Vec<(char, char)> {
    let parsed = regex_syntax::parse(pattern).expect("the patterns above are classes");
    match parsed.kind() {
        HirKind::Class(Class::Unicode(class)) => class
            .ranges()
            .iter()
            .map(|range| (range.start(), range.end()))
            .collect(),
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_have_the_classes_of_the_standard() {
        let classes = Classes::shared();
        assert_eq!(classes.of('a'), LETTER);
        assert_eq!(classes.of('一'), LETTER | CJK);
        assert_eq!(classes.of('・'), SYMBOL | CJK);
        assert_eq!(classes.of('½'), NUMBER);
        assert_eq!(classes.of('\u{0301}'), MARK);
        assert_eq!(classes.of('\u{2028}'), SPACE);
        assert_eq!(classes.of('\u{200B}'), 0);
        assert_eq!(classes.of('$'), SYMBOL);
        assert_eq!(classes.of('\u{10FFFF}'), 0);
    }
}
