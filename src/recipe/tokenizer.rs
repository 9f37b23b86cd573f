//! Vocabulary, encoding with special ranges, and the bytes of each token.

use std::ops::Range;
use std::path::Path;

use super::error::Error;

/// A loaded `tokenizer.json`. Immutable; any number of threads.
#[derive(Debug)]
pub struct Tokenizer {}

impl Tokenizer {
    /// Loads a `tokenizer.json`, or the one inside a directory.
    pub fn open(_path: &Path) -> Result<Self, Error> {
        unimplemented!()
    }
    /// Loads from the bytes of a `tokenizer.json`.
    pub fn from_bytes(_bytes: &[u8]) -> Result<Self, Error> {
        unimplemented!()
    }
    /// Number of ids, added tokens included (largest id + 1).
    pub fn vocab_size(&self) -> u32 {
        unimplemented!()
    }
    /// Ids of `text`, whose `special` byte ranges are each exactly one special token; the rest is text
    /// even where it spells one.
    pub fn encode(&self, _text: &str, _special: &[Range<usize>]) -> Result<Vec<u32>, Error> {
        unimplemented!()
    }
    /// Ids of `text`, in which spellings of special tokens count as these tokens.
    pub fn encode_allow_special(&self, _text: &str) -> Result<Vec<u32>, Error> {
        unimplemented!()
    }
    /// Bytes that `token` stands for (the spelling, for an added token); `None` outside the vocabulary.
    pub fn token_bytes(&self, _token: u32) -> Option<&[u8]> {
        unimplemented!()
    }
    /// Whether `token` is an added token (special or merely named).
    pub fn is_added(&self, _token: u32) -> bool {
        unimplemented!()
    }
    /// The id whose spelling is exactly `text`.
    pub fn token_id(&self, _text: &str) -> Option<u32> {
        unimplemented!()
    }
    /// For each id its compressed id (engram, `model-v41.md` 7.1) and their number.
    pub fn compressed_ids(&self) -> Result<(Vec<u32>, u32), Error> {
        unimplemented!()
    }
}
