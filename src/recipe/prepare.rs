//! Request in, token ids and options out.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use super::conversation::{Conversation, Prompt};
use super::encoding::Encoding;
use super::error::Error;
use super::options::{InferenceOptions, ParsingOptions, Protocol, ResponseOptions};
use super::tokenizer::Tokenizer;

/// How a recipe is opened.
#[derive(Clone, Debug, Default)]
pub struct RecipeOptions {
    /// `tokenizer.json` or a directory with one; `None`: prompts and text only.
    pub tokenizer_path: Option<PathBuf>,
    /// `{"my-model": "v4.1", "other-*": "v4"}`; empty for none.
    pub aliases_json: String,
    /// Positions; 0 takes the model's 1048576.
    pub max_context: u32,
    /// The options of `c-api.md` section 10; empty for the defaults.
    pub options_json: String,
}

/// Model names, templates, limits and a tokenizer. Immutable; any number of threads.
#[derive(Debug)]
pub struct Recipe {}

/// A request, ready for the engine.
#[derive(Clone, Debug)]
pub struct Prepared {
    /// The protocol it came in.
    pub protocol: Protocol,
    /// The model's name as the request gave it.
    pub model: String,
    /// The template it was rendered with.
    pub encoding: Encoding,
    /// Messages and tools.
    pub conversation: Conversation,
    /// Sampling wishes.
    pub inference: InferenceOptions,
    /// How to read the output.
    pub parsing: ParsingOptions,
    /// How to write the response.
    pub response: ResponseOptions,
    /// Rendered text and special ranges.
    pub prompt: Prompt,
    /// Ids of `prompt`; empty without a tokenizer.
    pub tokens: Vec<u32>,
    /// The output budget, resolved against the context.
    pub max_tokens: u32,
    /// What was accepted but ignored.
    pub warnings: Vec<String>,
    /// Keeps the recipe's tokenizer for the parser.
    pub tokenizer: Option<Arc<Tokenizer>>,
}

impl Recipe {
    /// Opens a recipe; the tokenizer file is read here.
    pub fn open(_options: &RecipeOptions) -> Result<Self, Error> {
        unimplemented!()
    }
    /// The tokenizer, if one was given.
    pub fn tokenizer(&self) -> Option<&Arc<Tokenizer>> {
        unimplemented!()
    }
    /// Validates, converts, renders and tokenises one request. `options_json` changes this request only.
    pub fn prepare(
        &self,
        _protocol: Protocol,
        _json: &[u8],
        _options_json: Option<&str>,
    ) -> Result<Prepared, Error> {
        unimplemented!()
    }
}

impl Prepared {
    /// Special ranges of the prompt, as bytes.
    pub fn special_ranges(&self) -> &[Range<usize>] {
        &self.prompt.special_ranges
    }
}
