//! Compressed token ids: tokens that read alike share one (V4.1, for the n-gram tables).
//!
//! Input: a tokenizer. Output: a table from token id to compressed id, for
//! [`EngramHash`](super::engram::EngramHash). The normaliser is the one of the tokenizer library, so that
//! both follow the same version of Unicode. Cost: once at load, eight microseconds a token (measured on a
//! busy core), about a second for the published vocabulary.

#![forbid(unsafe_code)]

use std::collections::HashMap;

use tokenizers::normalizers::replace::ReplacePattern;
use tokenizers::normalizers::{Lowercase, NFD, NFKC, Replace, Strip, StripAccents};
use tokenizers::{NormalizedString, Normalizer, Tokenizer};

use crate::engine::error::{Code, Error};

/// Stands in for a text that is one blank while blanks are trimmed; a code point without meaning.
const LONE_BLANK: &str = "\u{e000}";

/// The compressed id of every token id, in the order in which normalised texts are first seen.
pub fn compressed_ids(tokenizer: &Tokenizer) -> Result<Vec<u32>, Error> {
    let fold = Fold::new()?;
    let mut seen = HashMap::new();
    let mut table = Vec::new();
    for id in 0..tokenizer.get_vocab_size(true) as u32 {
        let text = tokenizer.decode(&[id], false).map_err(failed)?;
        let key = if text.contains('\u{fffd}') {
            // A piece of a character has no text; its name in the vocabulary tells it from others.
            tokenizer.id_to_token(id).unwrap_or(text)
        } else {
            match fold.apply(&text)? {
                folded if folded.is_empty() => text,
                folded => folded,
            }
        };
        let next = seen.len() as u32;
        table.push(*seen.entry(key).or_insert(next));
    }
    Ok(table)
}

/// Compatibility forms, marks, case and runs of blanks removed.
struct Fold {
    squeeze: Replace,
    protect: Replace,
    release: Replace,
}

impl Fold {
    fn new() -> Result<Self, Error> {
        let regex = |pattern: &str| ReplacePattern::Regex(pattern.into());
        Ok(Self {
            squeeze: Replace::new(regex("[ \\t\\r\\n]+"), " ").map_err(failed)?,
            protect: Replace::new(regex("^ $"), LONE_BLANK).map_err(failed)?,
            release: Replace::new(LONE_BLANK, " ").map_err(failed)?,
        })
    }

    fn apply(&self, text: &str) -> Result<String, Error> {
        let mut text = NormalizedString::from(text);
        let strip = Strip::new(true, true);
        let steps: [&dyn Step; 8] = [
            &NFKC,
            &NFD,
            &StripAccents,
            &Lowercase,
            &self.squeeze,
            &self.protect,
            &strip,
            &self.release,
        ];
        for step in steps {
            step.run(&mut text).map_err(failed)?;
        }
        Ok(text.get().to_string())
    }
}

/// A normaliser behind a pointer.
trait Step {
    fn run(&self, text: &mut NormalizedString) -> tokenizers::Result<()>;
}

impl<T: Normalizer> Step for T {
    fn run(&self, text: &mut NormalizedString) -> tokenizers::Result<()> {
        self.normalize(text)
    }
}

fn failed(error: tokenizers::Error) -> Error {
    let message = format!("compressed token ids: {error}");
    Error::new(Code::BadFormat, "tokenizer.json", message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_fold_as_the_published_table_was_made() {
        let pairs = include_str!("../../../tests/data/model/formats/normalise.json");
        let pairs: Vec<(String, String)> = serde_json::from_str(pairs).unwrap();
        assert!(pairs.len() > 20);
        let fold = Fold::new().unwrap();
        for (text, expected) in pairs {
            assert_eq!(fold.apply(&text).unwrap(), expected, "{text:?}");
        }
    }
}
