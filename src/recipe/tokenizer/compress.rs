//! Compressed token ids: tokens whose normalised text is equal share one id (engram lookup).
//!
//! The order of first occurrence gives the ids, so they depend on the tokenizer file alone.

use std::collections::HashMap;

use tokenizers::normalizers::replace::ReplacePattern;
use tokenizers::normalizers::{Lowercase, NFD, NFKC, Replace, Strip, StripAccents};
use tokenizers::{NormalizedString, Normalizer};

/// Stands for a text that is exactly one space while white space is trimmed.
const PROTECTED_SPACE: &str = "\u{E000}";

/// One compressed id for each of `texts`, and how many there are. `texts` yields for each token its
/// decoded text and its spelling in the vocabulary; the latter is the key of tokens that are not
/// whole characters.
pub(super) fn compress(
    texts: impl Iterator<Item = (String, String)>,
) -> Result<(Vec<u32>, u32), tokenizers::Error> {
    let normalizer = Normal::new()?;
    let mut ids: HashMap<String, u32> = HashMap::new();
    let mut compressed = Vec::new();
    let mut next = 0;
    for (text, spelling) in texts {
        let key = if text.contains(char::REPLACEMENT_CHARACTER) {
            spelling
        } else {
            let normal = normalizer.apply(&text)?;
            if normal.is_empty() { text } else { normal }
        };
        let id = *ids.entry(key).or_insert_with(|| {
            next += 1;
            next - 1
        });
        compressed.push(id);
    }
    Ok((compressed, next))
}

/// The sequence of normalisers, from the crate the models were built with: its Unicode tables are part
/// of the definition.
struct Normal {
    runs_of_space: Replace,
    protect: Replace,
    strip: Strip,
}

impl Normal {
    fn new() -> Result<Self, tokenizers::Error> {
        let regex = |pattern: &str| ReplacePattern::Regex(pattern.to_owned());
        Ok(Self {
            runs_of_space: Replace::new(regex(r"[ \t\r\n]+"), " ")?,
            protect: Replace::new(regex("^ $"), PROTECTED_SPACE)?,
            strip: Strip::new(true, true),
        })
    }

    fn apply(&self, text: &str) -> Result<String, tokenizers::Error> {
        let mut text = NormalizedString::from(text);
        NFKC.normalize(&mut text)?;
        NFD.normalize(&mut text)?;
        StripAccents.normalize(&mut text)?;
        Lowercase.normalize(&mut text)?;
        self.runs_of_space.normalize(&mut text)?;
        self.protect.normalize(&mut text)?;
        self.strip.normalize(&mut text)?;
        Ok(text.get().replace(PROTECTED_SPACE, " "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn case_accents_and_space_around_a_word_do_not_distinguish_tokens() {
        let texts = [
            "Été", " ete", "ETE\n", " ", "\n", "  x", "\u{FFFD}", "ﬁ", "fi", "",
        ];
        let spelled = texts
            .iter()
            .map(|text| ((*text).to_owned(), "<0xE9>".to_owned()));
        let (ids, count) = compress(spelled).expect("the normalisers accept every text");
        assert_eq!(ids, [0, 0, 0, 1, 1, 2, 3, 4, 4, 5]);
        assert_eq!(count, 6);
    }
}
