//! From an API request to token ids, and from tokens to protocol events.
//!
//! Pure: no threads, no network, no clock but the one passed in; the same input gives the same output.
//! A new protocol adds one file in [`request`] and one in `stream::events`; a new model version adds
//! one in [`encoding`]. Neither knows the other: they meet in [`conversation`].

#![forbid(unsafe_code)]

mod budget;
mod constraint;
pub mod conversation;
mod describe;
pub mod encoding;
mod error;
pub mod image;
pub mod json;
mod models;
pub mod options;
mod prepare;
pub mod request;
pub mod settings;
pub mod stream;
pub mod tokenizer;

pub use budget::resolve_max_tokens;
pub use constraint::OutputConstraint;
pub use error::{Error, Stage};
pub use options::{
    Echo, EngineParams, InferenceOptions, NamespacedTool, ParsingOptions, Protocol,
    ResponseOptions, ThinkingStage, Warning,
};
pub use prepare::{Prepared, PreparedImage, Recipe, RecipeOptions};
pub use settings::Settings;
