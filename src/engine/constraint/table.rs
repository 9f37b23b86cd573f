//! The vocabulary as grammars see it: the bytes of every id, and which ids no text can produce.
//!
//! In: the tokens of one tokenizer. Out: a prefix tree over their bytes, shared by all grammars compiled for
//! it. Made once a tokenizer, on first use: up to a second and some tens of megabytes for 130 000 ids.
//!
//! A control token has no bytes here, whatever its spelling: a grammar reaches it by its id or not at all, so a
//! text that spells `</think>` inside a JSON string is made of ordinary tokens.

#![forbid(unsafe_code)]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use llguidance::earley::SlicedBiasComputer;
use llguidance::toktrie::{INVALID_TOKEN, TokEnv, TokRxInfo, TokTrie, TokenId, TokenizerEnv};
use sha2::{Digest, Sha256};

use crate::engine::error::{Code, Error};

/// What one id stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Token<'a> {
    /// These bytes.
    Text(&'a [u8]),
    /// A mark between texts.
    Control,
    /// Nothing: a hole in the numbering.
    Unused,
}

/// Something that has a table, once somebody asks for it.
pub trait Vocabulary: Send + Sync {
    /// Makes it if it is not there. May block for a second.
    fn table(&self) -> Result<Arc<TokenTable>, Error>;
    /// If it is there. Never blocks.
    fn made_table(&self) -> Option<Arc<TokenTable>>;
}

/// The vocabulary of a constraint that is to be compiled.
#[derive(Clone)]
pub enum Tokens {
    /// Its table is there.
    Table(Arc<TokenTable>),
    /// Its table may have to be made.
    Vocabulary(Arc<dyn Vocabulary>),
}

impl Tokens {
    pub(crate) fn table(&self) -> Result<Arc<TokenTable>, Error> {
        match self {
            Self::Table(table) => Ok(table.clone()),
            Self::Vocabulary(vocabulary) => vocabulary.table(),
        }
    }

    pub(crate) fn made_table(&self) -> Option<Arc<TokenTable>> {
        match self {
            Self::Table(table) => Some(table.clone()),
            Self::Vocabulary(vocabulary) => vocabulary.made_table(),
        }
    }
}

impl PartialEq for Tokens {
    /// Whether they are the same, not whether they are alike.
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Table(a), Self::Table(b)) => Arc::ptr_eq(a, b),
            (Self::Vocabulary(a), Self::Vocabulary(b)) => Arc::ptr_eq(a, b),
            (Self::Table(_) | Self::Vocabulary(_), _) => false,
        }
    }
}

impl std::fmt::Debug for Tokens {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Tokens").field(&self.made_table()).finish()
    }
}

/// See the module. Immutable; any number of threads.
pub struct TokenTable {
    pub(super) environment: TokEnv,
    pub(super) slices: Arc<SlicedBiasComputer>,
    tokens: u32,
    digest: [u8; 32],
}

impl TokenTable {
    /// A table of `tokens` in the order of their ids.
    pub fn new<'a>(tokens: impl IntoIterator<Item = Token<'a>>) -> Result<Self, Error> {
        let mut digest = Sha256::new();
        let mut words = Vec::new();
        for (token, id) in tokens.into_iter().zip(0u32..) {
            let (tag, bytes): (u8, &[u8]) = match token {
                Token::Text(bytes) => (0, bytes),
                Token::Control => (1, &[]),
                Token::Unused => (2, &[]),
            };
            digest.update([tag]);
            digest.update((bytes.len() as u64).to_le_bytes());
            digest.update(bytes);
            words.push(match token {
                Token::Control => control_word(id),
                // No UTF-8 text holds this byte, and the tree below marks control tokens with it.
                Token::Text(bytes) if !bytes.contains(&TokTrie::SPECIAL_TOKEN_MARKER) => {
                    bytes.to_vec()
                }
                Token::Text(_) | Token::Unused => Vec::new(),
            });
        }
        let failed = |reason: &str| {
            let message = format!("the vocabulary cannot be indexed: {reason}");
            Error::new(Code::BadFormat, "tokenizer", message)
        };
        let count = u32::try_from(words.len()).map_err(|_| failed("too many ids"))?;
        // The tree asserts what it takes for granted.
        let built = catch_unwind(AssertUnwindSafe(|| {
            let environment: TokEnv = Arc::new(Environment::new(count, &words));
            let slices =
                SlicedBiasComputer::new(&environment, &SlicedBiasComputer::general_slices());
            (environment, slices)
        }));
        let (environment, slices) = built.map_err(|_| failed("a token is out of its range"))?;
        let slices = slices.map_err(|error| failed(&error.to_string()))?;
        Ok(Self {
            environment,
            slices: Arc::new(slices),
            tokens: count,
            digest: digest.finalize().into(),
        })
    }

    /// Number of ids.
    pub fn len(&self) -> u32 {
        self.tokens
    }

    /// Whether there is no id at all.
    pub fn is_empty(&self) -> bool {
        self.tokens == 0
    }

    /// Equal for equal vocabularies.
    pub fn digest(&self) -> &[u8; 32] {
        &self.digest
    }

    /// The bytes of an id's text; `None` for ids without text.
    pub fn text(&self, id: u32) -> Option<&[u8]> {
        let word = self.word(id)?;
        (!word.is_empty() && word[0] != TokTrie::SPECIAL_TOKEN_MARKER).then_some(word)
    }

    /// The bytes by which the tree knows an id.
    pub(super) fn word(&self, id: u32) -> Option<&[u8]> {
        (id < self.tokens).then(|| self.environment.tok_trie().token(id))
    }
}

impl std::fmt::Debug for TokenTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TokenTable")
            .field("tokens", &self.tokens)
            .finish_non_exhaustive()
    }
}

/// By its number: spellings need not be unique, and some have none of the form that the tree expects.
fn control_word(id: u32) -> Vec<u8> {
    let mut word = vec![TokTrie::SPECIAL_TOKEN_MARKER];
    word.extend_from_slice(format!("[{id}]").as_bytes());
    word
}

/// What the grammar library asks of a tokenizer. It is never asked to tokenise: which tokens spell a forced text
/// is the model's choice.
struct Environment {
    tree: TokTrie,
}

impl Environment {
    fn new(count: u32, words: &[Vec<u8>]) -> Self {
        // End tokens belong to a request, not to a vocabulary: they are dealt with outside the grammar.
        let info = TokRxInfo::new(count, INVALID_TOKEN);
        Self {
            tree: TokTrie::from(&info, words),
        }
    }
}

impl TokenizerEnv for Environment {
    fn tok_trie(&self) -> &TokTrie {
        &self.tree
    }

    fn tokenize_bytes(&self, text: &[u8]) -> Vec<TokenId> {
        self.tree.greedy_tokenize(text)
    }

    fn tokenize_is_canonical(&self) -> bool {
        false
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// One token a byte, some longer ones, then a control token.
    pub(crate) fn table() -> TokenTable {
        let bytes: Vec<[u8; 1]> = (0..=255).map(|byte| [byte]).collect();
        let longer: [&[u8]; 8] = [
            b"{\"",
            b"\":",
            b"true",
            b"</",
            b"12",
            b"ab",
            b"\n\n",
            "é".as_bytes(),
        ];
        let tokens = bytes
            .iter()
            .map(|byte| Token::Text(byte))
            .chain(longer.iter().map(|text| Token::Text(text)))
            .chain([Token::Unused, Token::Control]);
        TokenTable::new(tokens).unwrap()
    }

    #[test]
    fn control_tokens_and_impossible_bytes_have_no_text() {
        let table = table();
        assert_eq!(table.len(), 266);
        assert_eq!(table.text(65), Some(&b"A"[..]));
        assert_eq!(table.text(258), Some(&b"true"[..]));
        for id in [255, 264, 265, 266, u32::MAX] {
            assert_eq!(table.text(id), None, "{id}");
        }
    }

    #[test]
    fn the_digest_tells_vocabularies_apart() {
        let of = |tokens: &[Token<'_>]| *TokenTable::new(tokens.iter().copied()).unwrap().digest();
        let text = Token::Text(b"a");
        assert_eq!(of(&[text, Token::Unused]), of(&[text, Token::Unused]));
        assert_ne!(of(&[text, Token::Unused]), of(&[text, Token::Control]));
        assert_ne!(
            of(&[Token::Text(b"ab"), text]),
            of(&[text, Token::Text(b"ba")])
        );
    }
}
