//! What can go wrong between request and events, and what a server answers then.

use serde_json::Value;

use super::contain::Panicked;
use crate::engine::{self, Code};
use crate::recipe::{self, Stage};

/// A failure of a called request, with the dialect to tell it in.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{cause}")]
pub struct Error {
    /// What happened.
    pub cause: Cause,
    /// How its body is written.
    pub style: ErrorStyle,
}

/// Whose failure it was.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Cause {
    /// The request, or its output, was refused.
    #[error("{0}")]
    Recipe(recipe::Error),
    /// The engine's.
    #[error("{0}")]
    Engine(engine::Error),
    /// A bug, contained.
    #[error("{0}")]
    Panicked(Panicked),
}

impl Error {
    /// The recipe refused.
    pub fn recipe(error: recipe::Error) -> Self {
        Self::of(Cause::Recipe(error))
    }

    /// The engine refused or failed.
    pub fn engine(error: engine::Error) -> Self {
        Self::of(Cause::Engine(error))
    }

    /// A bug was contained.
    pub fn panicked(panicked: Panicked) -> Self {
        Self::of(Cause::Panicked(panicked))
    }

    fn of(cause: Cause) -> Self {
        Self {
            cause,
            style: ErrorStyle::default(),
        }
    }

    /// With another dialect.
    pub fn styled(mut self, style: ErrorStyle) -> Self {
        self.style = style;
        self
    }
}

/// How error bodies are written (`error_param` and `messages_error_shape` of `c-api.md` section 10).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ErrorStyle {
    /// Fill `param`.
    pub error_param: bool,
    /// The OpenAI shape for Messages, too.
    pub openai_messages: bool,
}

impl ErrorStyle {
    /// This style, changed by what `options_json` says of it. Only the recipe judges that object, so
    /// whatever is wrong with it changes nothing here.
    pub fn with_options(mut self, options_json: &str) -> Self {
        // Most calls give no options, or options without these.
        if !options_json.contains("error_param") && !options_json.contains("messages_error_shape") {
            return self;
        }
        let Ok(Value::Object(options)) = serde_json::from_str(options_json) else {
            return self;
        };
        if let Some(Value::Bool(fill)) = options.get("error_param") {
            self.error_param = *fill;
        }
        if let Some(Value::String(shape)) = options.get("messages_error_shape") {
            self.openai_messages = shape == "openai";
        }
        self
    }
}

/// The HTTP status of `c-api.md` section 10: what a client caused is 400, what the host caused 500.
pub fn http_of_stage(stage: Stage) -> u16 {
    match stage {
        Stage::Utf8
        | Stage::Deserialize
        | Stage::Convert
        | Stage::Model
        | Stage::Budget
        | Stage::Unsupported => 400,
        Stage::Option | Stage::Tokenizer | Stage::State | Stage::Internal => 500,
    }
}

/// The HTTP status a server answers for a failure of the engine.
pub fn http_of_code(code: Code) -> u16 {
    match code {
        Code::InvalidParam
        | Code::InvalidPrompt
        | Code::InvalidConstraint
        | Code::ConstraintTimeout
        | Code::Unsupported
        | Code::ContextExceeded
        | Code::NeverFits => 400,
        Code::QueueFull => 429,
        // The client went away, or the host thinks so: nobody reads this answer.
        Code::Cancelled => 499,
        Code::Displaced | Code::Shutdown | Code::Closed => 503,
        Code::DeadlineQueue
        | Code::DeadlineFirstToken
        | Code::DeadlineTotal
        | Code::ConsumerStalled => 504,
        Code::Numeric
        | Code::StateCorrupt
        | Code::MaskEmpty
        | Code::NotFound
        | Code::Io
        | Code::BadFormat
        | Code::OutOfHostMemory
        | Code::OutOfDeviceMemory
        | Code::NoDevice
        | Code::UnsupportedDeterminism
        | Code::WrongMoment
        | Code::DeviceLost
        | Code::Watchdog
        | Code::WorkerPanic
        | Code::Internal => 500,
    }
}

/// The HTTP status of any cause.
pub fn http_of_cause(cause: &Cause) -> u16 {
    match cause {
        Cause::Recipe(error) => http_of_stage(error.stage),
        Cause::Engine(error) => http_of_code(error.code),
        Cause::Panicked(_) => 500,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_changes_the_style_of_its_recipe() {
        let recipe = ErrorStyle::default().with_options(r#"{"error_param": true}"#);
        assert!(recipe.error_param && !recipe.openai_messages);
        let request =
            recipe.with_options(r#"{"error_param": false, "messages_error_shape": "openai"}"#);
        assert!(!request.error_param && request.openai_messages);
        for odd in ["", "{", "[]", r#"{"error_param": 1}"#] {
            assert_eq!(recipe.with_options(odd), recipe, "{odd}");
        }
    }
}
