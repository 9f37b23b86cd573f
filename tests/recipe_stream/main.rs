//! The output side of the recipe: model output in, protocol events out.

mod failures;
mod grammar;
mod life;
mod merge;
mod messages;
mod neutral;
#[path = "../recipe_support/mod.rs"]
mod recipe_support;
mod responses;
mod splits;
mod support;
