//! The shared form of messages, tools and images. It knows no protocol and no model version.

use std::ops::Range;

use super::json::JsonText;

/// Text with the byte ranges that are special tokens: ascending, disjoint. Text of a request is never
/// special; only image placeholders are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Prompt {
    /// UTF-8 text.
    pub text: String,
    /// Byte ranges of `text`, one for each special token.
    pub special_ranges: Vec<Range<usize>>,
}

impl Prompt {
    /// Text without any special token.
    pub fn plain(text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            special_ranges: Vec::new(),
        }
    }
}

/// Where an image comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ImageOrigin {
    /// A `data:` URL.
    DataUrl(String),
    /// An `http` or `https` URL.
    Url(String),
    /// The file itself.
    Bytes(Vec<u8>),
}

/// How closely the model looks at an image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ImageDetail {
    /// Fewer tokens.
    Low,
    /// The default.
    #[default]
    High,
    /// As sent.
    Original,
    /// The model decides.
    Auto,
}

/// One image of a message, in the order of its placeholders.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageSource {
    /// Where it comes from.
    pub origin: ImageOrigin,
    /// How closely to look.
    pub detail: ImageDetail,
    /// Where it stands in the request: the prefix of errors about it.
    pub path: String,
}

/// A function the model may call.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolDefinition {
    /// Unique in a conversation.
    pub name: String,
    /// For the model.
    pub description: Option<String>,
    /// JSON Schema; `{}` when absent.
    pub parameters: JsonText,
    /// Whether the arguments must satisfy the schema.
    pub strict: Option<bool>,
    /// Not shown until a tool search finds it.
    pub defer_loading: bool,
}

/// A call the model made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolCall {
    /// Refers to it from the result.
    pub id: String,
    /// The function.
    pub name: String,
    /// JSON text, as the model or the client wrote it.
    pub arguments: String,
}

/// One message.
#[derive(Clone, Debug, PartialEq)]
#[allow(
    missing_docs,
    reason = "the fields are those every protocol has, under the same names"
)]
pub enum InputMessage {
    /// Instructions; `tools` are definitions introduced at this point.
    System {
        content: Prompt,
        image_sources: Vec<ImageSource>,
        tools: Option<Vec<ToolDefinition>>,
    },
    /// What the user says.
    User {
        content: Prompt,
        image_sources: Vec<ImageSource>,
    },
    /// What the model said; `prefix` asks it to go on from here.
    Assistant {
        content: String,
        reasoning_content: Option<String>,
        tool_calls: Option<Vec<ToolCall>>,
        prefix: bool,
    },
    /// What a tool answered.
    Tool {
        content: Prompt,
        image_sources: Vec<ImageSource>,
        tool_call_id: Option<String>,
    },
    /// A note that stays at the end of the conversation.
    LatestReminder { content: String },
}

/// Whether the model may, must not or must call a tool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ToolChoice {
    /// It may.
    #[default]
    Auto,
    /// It must not.
    None,
    /// It must.
    Required,
}

/// How hard a thinking model thinks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReasoningEffort {
    /// Briefly.
    Low,
    /// The usual.
    High,
    /// Longer.
    Xhigh,
    /// As long as it takes.
    Max,
    /// 1..=100, where the host allows numbers.
    Percent(u8),
}

/// What the answer must look like.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum ResponseFormat {
    /// Free text.
    #[default]
    Text,
    /// Any JSON object.
    JsonObject,
    /// JSON of this schema.
    JsonSchema(JsonText),
    /// Text that matches this expression.
    Regex(String),
}

/// A conversation, ready to be rendered for any model version.
#[derive(Clone, Debug, PartialEq)]
pub struct Conversation {
    /// In order.
    pub messages: Vec<InputMessage>,
    /// Whether the model thinks before it answers.
    pub thinking_mode: bool,
    /// Functions offered from the start.
    pub tools: Vec<ToolDefinition>,
    /// May, must not or must call.
    pub tool_choice: ToolChoice,
    /// How hard to think.
    pub reasoning_effort: Option<ReasoningEffort>,
    /// What the answer must look like.
    pub response_format: ResponseFormat,
}

/// Text around a gap, in place of messages: the model writes what belongs into it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fim {
    /// Before the gap.
    pub prefix: String,
    /// Behind it.
    pub suffix: String,
}
