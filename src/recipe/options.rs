//! What a request asks for besides its conversation, in the form every protocol converts to.

use serde_json::{Value, json};

use super::constraint::OutputConstraint;
use super::json::JsonText;

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
    /// What the output must look like; `None`: free.
    pub output_constraint: Option<OutputConstraint>,
    /// How many answers are asked for (Chat Completions, where the host allows more than one).
    pub choices: u8,
    /// Settings of the request that the models do not define, kept only if the host asks for them.
    pub engine: EngineParams,
}

impl Default for InferenceOptions {
    fn default() -> Self {
        Self {
            max_tokens: None,
            temperature: 1.0,
            top_p: 1.0,
            logprobs: false,
            top_logprobs: None,
            seed: None,
            output_constraint: None,
            choices: 1,
            engine: EngineParams::default(),
        }
    }
}

/// Sampling settings that an engine may know and the models do not ask for.
#[derive(Clone, Debug, Default, PartialEq)]
#[expect(missing_docs, reason = "named as the fields of a request")]
pub struct EngineParams {
    pub presence_penalty: Option<f32>,
    pub frequency_penalty: Option<f32>,
    pub top_k: Option<u32>,
    pub min_p: Option<f32>,
    pub logit_bias: Option<JsonText>,
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

impl ThinkingStage {
    /// Every stage.
    pub const ALL: [Self; 3] = [
        Self::ReasoningStart,
        Self::ReasoningContinuation,
        Self::ContentContinuation,
    ];

    /// The name in `parsing_options`.
    pub fn name(self) -> &'static str {
        match self {
            Self::ReasoningStart => "reasoning_start",
            Self::ReasoningContinuation => "reasoning_continuation",
            Self::ContentContinuation => "content_continuation",
        }
    }
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
    pub echo: Option<Echo>,
    /// Responses: functions that stand for members of declared namespaces.
    pub namespace_tool_map: Vec<NamespacedTool>,
    /// Responses: functions that stand for custom tools.
    pub custom_tool_names: Vec<String>,
    /// Responses: the client runs tool searches, so that their calls are items of their own.
    pub client_tool_search: bool,
}

/// A function that stands for a member of a namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamespacedTool {
    /// As the model knows it.
    pub function: String,
    /// The namespace of the request.
    pub namespace: String,
    /// The name inside it.
    pub local: String,
}

/// Settings of a Responses request, as it gave them: what the model gets may be different.
#[derive(Clone, Debug, PartialEq)]
pub struct Echo {
    /// The first system message.
    pub instructions: Option<String>,
    /// As requested.
    pub max_output_tokens: Option<u32>,
    /// As requested, or 1.
    pub temperature: f32,
    /// As requested, or 1.
    pub top_p: f32,
    /// As requested, or 0.
    pub top_logprobs: u8,
    /// Whom the client serves.
    pub user: Option<String>,
    /// `{"effort","summary"}`.
    pub reasoning: JsonText,
    /// `{"format","verbosity"}`.
    pub text: JsonText,
    /// As requested, or `"auto"`.
    pub tool_choice: JsonText,
    /// Declared tools, those of unsupported types left out.
    pub tools: JsonText,
}

/// Something a request asked for that was accepted and not honoured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning {
    /// One of the codes of `recipe-requests.md` 4.10.
    pub code: &'static str,
    /// Path in the request.
    pub param: String,
    /// For people.
    pub message: String,
}

impl Warning {
    /// The object that hosts see.
    pub fn to_json(&self) -> Value {
        json!({"code": self.code, "param": self.param, "message": self.message})
    }
}
