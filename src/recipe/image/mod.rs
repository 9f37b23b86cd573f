//! Images: what the model makes of one, known from its size alone.
//!
//! Nothing here decodes or fetches. A size becomes a [`Plan`]; counting tokens needs no more.

mod plan;

pub use plan::{Plan, Refusal, Vision};
