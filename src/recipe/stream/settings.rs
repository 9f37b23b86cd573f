//! What the output side needs to know about a request: how to read the output and how to write the answer.

use std::fmt::Debug;

use crate::recipe::conversation::InputMessage;
use crate::recipe::encoding::{Encoding, SpecialTokens};
use crate::recipe::json::Json;
use crate::recipe::options::{ParsingOptions, Protocol, ResponseOptions};
use crate::recipe::prepare::Prepared;
use crate::recipe::tokenizer::Tokenizer;

/// How malformed output is read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Recovery {
    /// Repairs what models are known to get wrong; each repair is counted in the diagnostics.
    #[default]
    Robust,
    /// Reads exactly as the reference implementation does, its flaws included.
    Strict,
}

/// What becomes of reasoning that the model never closed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UnterminatedReasoning {
    /// It stays reasoning.
    #[default]
    Reasoning,
    /// When the output ends with `stop`, it is the content. Deltas that went out as reasoning stand;
    /// the text follows once more as content, and the complete response has it as content only.
    Content,
}

/// What a start that comes after the first output does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LateReady {
    /// Nothing.
    #[default]
    Ignore,
    /// Corrects the prompt side of the final usage.
    Correct,
}

/// Where Chat Completions puts the usage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UsageChunk {
    /// In the last chunk.
    #[default]
    Deepseek,
    /// In one more chunk without choices, if the request asks for usage.
    Openai,
}

/// Options of the host for the output side: their keys in `options_json` have the same names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StreamOptions {
    /// How malformed output is read.
    pub recovery: Recovery,
    /// What becomes of reasoning that never ended.
    pub unterminated_reasoning: UnterminatedReasoning,
    /// What a late start does.
    pub late_ready: LateReady,
    /// Where Chat Completions puts the usage.
    pub usage_chunk: UsageChunk,
    /// Whether the matched stop sequence is part of the content (conversation protocol only).
    pub include_stop_sequence: bool,
    /// Fingerprint when the backend gives none.
    pub system_fingerprint: Option<String>,
    /// Signature of the thinking blocks of Messages; `None`: the response id.
    pub signature: Option<String>,
    /// Makes generated ids reproducible.
    pub id_seed: Option<u64>,
}

/// A tool that the request declares.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeclaredTool {
    /// As the model writes it.
    pub name: String,
    /// Names of its parameters; empty when the schema names none.
    pub properties: Vec<String>,
}

/// Everything a parser is made of.
#[derive(Clone, Debug)]
pub struct ParserOptions {
    /// The protocol of the answer.
    pub protocol: Protocol,
    /// The template of the prompt.
    pub encoding: Encoding,
    /// How to read the output.
    pub parsing: ParsingOptions,
    /// How to write the answer.
    pub response: ResponseOptions,
    /// The model's name in the answer, when the backend gives none.
    pub model: String,
    /// Whether the prompt ends inside an assistant message that the output continues.
    pub continues_message: bool,
    /// Declared tools; `None` when they are not known.
    pub tools: Option<Vec<DeclaredTool>>,
    /// Spellings of the model.
    pub special_tokens: SpecialTokens,
    /// Options of the host.
    pub stream: StreamOptions,
}

impl ParserOptions {
    /// Options of the answer to `prepared`, those of its host included.
    pub fn of(prepared: &Prepared) -> Self {
        let settings = &prepared.settings;
        let mut stream = settings.stream.clone();
        // The wire protocols promise content without it.
        stream.include_stop_sequence &= prepared.protocol == Protocol::Conversation;
        let conversation = &prepared.conversation;
        let introduced = conversation.messages.iter().filter_map(|m| match m {
            InputMessage::System { tools, .. } => tools.as_ref(),
            _ => None,
        });
        let tools = conversation
            .tools
            .iter()
            .chain(introduced.flatten())
            .map(|tool| DeclaredTool {
                name: tool.name.clone(),
                properties: match tool.parameters.parse().get("properties") {
                    Some(Json::Object(map)) => map.keys().map(str::to_owned).collect(),
                    _ => Vec::new(),
                },
            })
            .collect();
        Self {
            protocol: prepared.protocol,
            encoding: prepared.encoding,
            parsing: prepared.parsing.clone(),
            response: prepared.response.clone(),
            model: prepared.model.clone(),
            continues_message: matches!(
                conversation.messages.last(),
                Some(InputMessage::Assistant { prefix: true, .. })
            ),
            tools: Some(tools),
            special_tokens: settings.special_tokens.clone(),
            stream,
        }
    }
}

/// What the parser asks a vocabulary.
pub trait Vocabulary: Debug + Send + Sync {
    /// Bytes that `token` stands for; `None` outside the vocabulary.
    fn bytes(&self, token: u32) -> Option<&[u8]>;
    /// Whether `token` is an added token, special or merely named.
    fn is_added(&self, token: u32) -> bool;
    /// The id whose spelling is exactly `text`.
    fn token_id(&self, text: &str) -> Option<u32>;
    /// Number of tokens that `text` encodes to; `None` when it cannot be told.
    fn count(&self, text: &str) -> Option<u32>;
}

impl Vocabulary for Tokenizer {
    fn bytes(&self, token: u32) -> Option<&[u8]> {
        self.token_bytes(token)
    }
    fn is_added(&self, token: u32) -> bool {
        Tokenizer::is_added(self, token)
    }
    fn token_id(&self, text: &str) -> Option<u32> {
        Tokenizer::token_id(self, text)
    }
    fn count(&self, text: &str) -> Option<u32> {
        let ids = self.encode_allow_special(text).ok()?;
        u32::try_from(ids.len()).ok()
    }
}
