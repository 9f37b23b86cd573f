//! What can be wrong with a request, told so that a server can answer it.

/// The step that refused the input (`deserialize`, `convert`, … in the protocol documents).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Stage {
    /// The body is not UTF-8.
    Utf8,
    /// The body is not JSON, or does not have the request's shape.
    Deserialize,
    /// The shape is fine, a value is not acceptable.
    Convert,
    /// The model name is not known.
    Model,
    /// Prompt and output do not fit the context.
    Budget,
    /// An option of the host (`options_json`, `aliases_json`, a path) is wrong.
    Option,
    /// The tokenizer file cannot be read or understood.
    Tokenizer,
    /// Valid, but not built yet.
    Unsupported,
    /// Right call, wrong moment (ids without a tokenizer, pushing after a failure).
    State,
    /// A bug.
    Internal,
}

/// A refused input: what, and where in the request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    /// Which step refused it.
    pub stage: Stage,
    /// For the client; in the wording of the protocol where that is fixed.
    pub message: String,
    /// Path in the request (`messages[2].content`) or the option's key; empty when there is none.
    pub param: String,
}

impl Error {
    /// An error of `stage` at `param`.
    pub fn new(stage: Stage, param: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            stage,
            message: message.into(),
            param: param.into(),
        }
    }
}
