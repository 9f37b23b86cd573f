//! What a request asks for besides its conversation, in the form every protocol converts to.

use serde_json::Value;

/// Which wire protocol a request speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// OpenAI Chat Completions.
    ChatCompletions,
    /// OpenAI Responses.
    Responses,
    /// Anthropic Messages.
    Messages,
    /// No wire protocol: the normalized conversation in, neutral events out.
    Conversation,
}

/// Sampling wishes of a request, after conversion.
#[derive(Clone, Debug, PartialEq)]
pub struct InferenceOptions {
    /// As requested; `None` takes the budget's default.
    pub max_tokens: Option<u32>,
    /// Always set after conversion.
    pub temperature: f32,
    /// Always set after conversion.
    pub top_p: f32,
    /// Whether the response carries log-probabilities.
    pub logprobs: bool,
    /// Alternatives for each token, 0..=20.
    pub top_logprobs: Option<u8>,
    /// Makes sampling reproducible.
    pub seed: Option<u64>,
    /// What the output must look like, as the object of the vectors (`None`: free).
    pub output_constraint: Option<Value>,
}

/// Where the output of a thinking model begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThinkingStage {
    /// Reasoning, right after the opening marker.
    ReasoningStart,
    /// Reasoning that the prompt already began.
    ReasoningContinuation,
    /// Content that the prompt already began.
    ContentContinuation,
}

/// How the output is to be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParsingOptions {
    /// Look for tool calls.
    pub parse_tool_calls: bool,
    /// The prompt already opened a block of tool calls.
    pub starts_in_tool_calls: bool,
    /// The content is one JSON object.
    pub parse_json_output: bool,
    /// `None` outside thinking mode.
    pub thinking_initial_stage: Option<ThinkingStage>,
    /// Strings that end the content.
    pub stop_sequences: Vec<String>,
}

/// How the response is to be written.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct ResponseOptions {
    /// One event after another, or one document at the end.
    pub stream: bool,
    /// Chat Completions: usage in the last chunk.
    pub include_usage: bool,
    /// Responses: settings of the request that the response repeats.
    pub echo: Option<Value>,
    /// Responses: function name → (namespace, local name).
    pub namespace_tool_map: Vec<(String, String, String)>,
}
