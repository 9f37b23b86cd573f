//! Vocabulary, encoding with special ranges, and the bytes of each token.
//!
//! Input: a `tokenizer.json`; text with byte ranges. Output: ids, or the bytes of ids. The base
//! vocabulary and the added tokens are kept apart on purpose: only a special range becomes an added
//! token, so text that merely spells `</think>` stays text.
//!
//! Loading reads the file once (about 6 MB for the published models, near 30 MB in memory); encoding is
//! linear in the text and takes no locks.

mod bpe;
mod byte_level;
mod file;
mod reuse;
mod split;
mod unicode;

use std::collections::HashMap;
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use aho_corasick::{AhoCorasick, MatchKind};

pub(super) use self::reuse::Reuse;

use self::bpe::{Bpe, Scratch};
use self::split::Splitter;
use super::error::{Error, Stage};
use crate::engine;
use crate::engine::constraint::{Token, TokenTable, Vocabulary};

/// A loaded `tokenizer.json`. Immutable; any number of threads.
pub struct Tokenizer {
    bpe: Bpe,
    splitter: Splitter,
    tokens: Tokens,
    /// Ids of the added tokens, by spelling.
    named: HashMap<String, u32, ahash::RandomState>,
    /// Added tokens matched first, then those matched in what is left.
    added: [Matcher; 2],
    /// Made when the first output is constrained.
    table: OnceLock<Result<Arc<TokenTable>, engine::Error>>,
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokenizer")
            .field("vocab_size", &self.vocab_size())
            .finish_non_exhaustive()
    }
}

impl Tokenizer {
    /// Loads a `tokenizer.json`, or the one inside a directory.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let file = if path.is_dir() {
            path.join("tokenizer.json")
        } else {
            path.to_owned()
        };
        let named = |reason: &dyn std::fmt::Display| format!("{}: {reason}", file.display());
        let bytes = std::fs::read(&file)
            .map_err(|error| Error::new(Stage::Tokenizer, "tokenizer_path", named(&error)))?;
        Self::from_bytes(&bytes)
            .map_err(|error| Error::new(Stage::Tokenizer, error.param.clone(), named(&error)))
    }

    /// Loads from the bytes of a `tokenizer.json`.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, Error> {
        let file = file::parse(bytes)?;
        let tokens = Tokens::new(&file)?;
        let added: std::collections::HashSet<u32> = file.added.iter().map(|t| t.id).collect();
        let entries = file
            .vocab
            .iter()
            .filter(|(_, id)| !added.contains(id))
            .map(|(_, id)| (tokens.bytes(*id).to_vec(), *id))
            .collect();
        let bpe = Bpe::new(entries, &file.merges, file.ignore_merges).map_err(|byte| {
            let entry = byte_level::char_of(byte);
            file::wrong(
                "model.vocab",
                format!("the byte {byte:#04x} ({entry:?}) has no entry"),
            )
        })?;
        let matcher = |normalized: bool| {
            Matcher::new(
                file.added
                    .iter()
                    .filter(|token| token.normalized == normalized),
            )
        };
        Ok(Self {
            added: [matcher(false)?, matcher(true)?],
            named: file
                .added
                .into_iter()
                .map(|token| (token.content, token.id))
                .collect(),
            table: OnceLock::new(),
            splitter: file.splitter,
            tokens,
            bpe,
        })
    }

    /// Whether text is cut by the hand-written rule of V4. Any other pre-tokeniser runs through the general
    /// engine: the same ids as that engine gives, many times slower.
    pub fn cuts_by_hand(&self) -> bool {
        matches!(self.splitter, Splitter::V4)
    }

    /// Number of ids, added tokens included (largest id + 1).
    pub fn vocab_size(&self) -> u32 {
        self.tokens.len()
    }

    /// Ids of `text`, whose `special` byte ranges are each exactly one special token; the rest is text
    /// even where it spells one.
    pub fn encode(&self, text: &str, special: &[Range<usize>]) -> Result<Vec<u32>, Error> {
        self.encode_reusing(text, special, None)
    }

    /// The same, with what earlier calls left in `reuse`.
    pub(super) fn encode_reusing(
        &self,
        text: &str,
        special: &[Range<usize>],
        reuse: Option<&Reuse>,
    ) -> Result<Vec<u32>, Error> {
        let mut ids = Vec::with_capacity(text.len() / 3 + special.len());
        let mut scratch = Scratch::for_text(text.len());
        let mut encode = |region: &str, ids: &mut Vec<u32>| match reuse {
            Some(reuse) => reuse.encode(region, ids, |ids| {
                self.encode_region(region, ids, &mut scratch)
            }),
            None => self.encode_region(region, ids, &mut scratch),
        };
        let mut done = 0;
        for range in special {
            let region = text.get(done..range.start);
            let (Some(region), Some(spelling)) = (region, text.get(range.clone())) else {
                return Err(Error::new(
                    Stage::Internal,
                    "",
                    format!(
                        "special range {}..{} is out of order or cuts a character of {} bytes of text",
                        range.start,
                        range.end,
                        text.len()
                    ),
                ));
            };
            encode(region, &mut ids)?;
            let id = *self.named.get(spelling).ok_or_else(|| {
                let message =
                    format!("special token \"{spelling}\" is not in the added vocabulary");
                Error::new(Stage::Internal, "", message)
            })?;
            ids.push(id);
            done = range.end;
        }
        encode(&text[done..], &mut ids)?;
        Ok(ids)
    }

    /// Ids of `text`, in which spellings of special tokens count as these tokens.
    pub fn encode_allow_special(&self, text: &str) -> Result<Vec<u32>, Error> {
        let mut ids = Vec::with_capacity(text.len() / 3);
        let [first, second] = &self.added;
        let mut scratch = Scratch::for_text(text.len());
        first.split(text, &mut ids, |rest, ids| {
            second.split(rest, ids, |text, ids| {
                self.encode_region(text, ids, &mut scratch)
            })
        })?;
        Ok(ids)
    }

    /// Bytes that `token` stands for (the spelling, for an added token); `None` outside the vocabulary.
    pub fn token_bytes(&self, token: u32) -> Option<&[u8]> {
        (self.tokens.kind(token)? != Kind::Unused).then(|| self.tokens.bytes(token))
    }

    /// Whether `token` is an added token (special or merely named).
    pub fn is_added(&self, token: u32) -> bool {
        self.tokens.kind(token) == Some(Kind::Added)
    }

    /// The id whose spelling is exactly `text`: an added token, else the vocabulary entry that stands for
    /// these bytes.
    pub fn token_id(&self, text: &str) -> Option<u32> {
        let named = self.named.get(text).copied();
        named.or_else(|| self.bpe.entry(text.as_bytes()))
    }

    /// Ids of text without any special token.
    fn encode_region(
        &self,
        region: &str,
        ids: &mut Vec<u32>,
        scratch: &mut Scratch,
    ) -> Result<(), Error> {
        self.splitter
            .split(region, |piece| self.bpe.encode(piece, ids, scratch))
            .map_err(|reason| Error::new(Stage::Internal, "", format!("pre-tokenizer: {reason}")))
    }
}

impl Vocabulary for Tokenizer {
    fn table(&self) -> Result<Arc<TokenTable>, engine::Error> {
        let make = || {
            let tokens = (0..self.vocab_size()).map(|id| match self.tokens.kind(id) {
                Some(Kind::Base) => Token::Text(self.tokens.bytes(id)),
                Some(Kind::Added) => Token::Control,
                Some(Kind::Unused) | None => Token::Unused,
            });
            TokenTable::new(tokens).map(Arc::new)
        };
        self.table.get_or_init(make).clone()
    }

    fn made_table(&self) -> Option<Arc<TokenTable>> {
        self.table.get()?.clone().ok()
    }
}

/// What an id is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// A hole in the numbering.
    Unused,
    /// An entry of the base vocabulary.
    Base,
    /// An added token.
    Added,
}

/// The bytes of every id, one after another.
#[derive(Debug)]
struct Tokens {
    bytes: Vec<u8>,
    /// Where each id's bytes start; one more than there are ids.
    starts: Vec<u32>,
    kinds: Vec<Kind>,
}

impl Tokens {
    fn new(file: &file::File) -> Result<Self, Error> {
        let ids = file.vocab.iter().map(|(_, id)| *id);
        let largest = ids.chain(file.added.iter().map(|token| token.id)).max();
        let Some(largest) = largest else {
            return Err(file::wrong("model.vocab", "it is empty"));
        };
        let size = largest as usize + 1;
        let mut all: Vec<Option<Vec<u8>>> = vec![None; size];
        let mut kinds = vec![Kind::Unused; size];
        for (at, token) in file.added.iter().enumerate() {
            if all[token.id as usize].is_some() {
                let field = format!("added_tokens[{at}].id");
                return Err(file::wrong(
                    &field,
                    format!("the id {} is taken twice", token.id),
                ));
            }
            all[token.id as usize] = Some(token.content.as_bytes().to_vec());
            kinds[token.id as usize] = Kind::Added;
        }
        for (entry, id) in &file.vocab {
            let wrong = |reason: String| Err(file::wrong("model.vocab", reason));
            match kinds[*id as usize] {
                // An added token may also stand in the vocabulary, under the same spelling.
                Kind::Added if all[*id as usize].as_deref() == Some(entry.as_bytes()) => continue,
                Kind::Unused => {}
                Kind::Base | Kind::Added => return wrong(format!("the id {id} is taken twice")),
            }
            let Some(bytes) = byte_level::bytes_of(entry) else {
                return wrong(format!("the entry {entry:?} is not byte-level"));
            };
            all[*id as usize] = Some(bytes);
            kinds[*id as usize] = Kind::Base;
        }
        let mut tokens = Self {
            bytes: Vec::new(),
            starts: Vec::with_capacity(size + 1),
            kinds,
        };
        for bytes in all {
            tokens.starts.push(offset(tokens.bytes.len())?);
            tokens.bytes.extend(bytes.unwrap_or_default());
        }
        tokens.starts.push(offset(tokens.bytes.len())?);
        Ok(tokens)
    }

    fn len(&self) -> u32 {
        u32::try_from(self.kinds.len()).unwrap_or(u32::MAX)
    }

    fn kind(&self, token: u32) -> Option<Kind> {
        self.kinds.get(token as usize).copied()
    }

    /// Bytes of an id below `len`.
    fn bytes(&self, token: u32) -> &[u8] {
        let start = self.starts[token as usize] as usize;
        &self.bytes[start..self.starts[token as usize + 1] as usize]
    }
}

fn offset(bytes: usize) -> Result<u32, Error> {
    u32::try_from(bytes).map_err(|_| file::wrong("model.vocab", "it has more than 4 GiB of text"))
}

/// Finds added tokens in text: leftmost, the longest of those that start there.
#[derive(Debug)]
struct Matcher {
    automaton: AhoCorasick,
    ids: Vec<u32>,
}

impl Matcher {
    fn new<'a>(tokens: impl Iterator<Item = &'a file::Added>) -> Result<Self, Error> {
        let (spellings, ids): (Vec<&str>, Vec<u32>) = tokens
            .map(|token| (token.content.as_str(), token.id))
            .unzip();
        let automaton = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .build(spellings)
            .map_err(|error| file::wrong("added_tokens", error))?;
        Ok(Self { automaton, ids })
    }

    /// Pushes the ids of matches and hands what lies between to `rest`.
    fn split(
        &self,
        text: &str,
        ids: &mut Vec<u32>,
        mut rest: impl FnMut(&str, &mut Vec<u32>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mut done = 0;
        for found in self.automaton.find_iter(text) {
            rest(&text[done..found.start()], ids)?;
            ids.push(self.ids[found.pattern().as_usize()]);
            done = found.end();
        }
        rest(&text[done..], ids)
    }
}
