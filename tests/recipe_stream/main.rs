//! The output side of the recipe: model output in, Chat Completions events out.

mod grammar;
mod life;
mod merge;
#[path = "../recipe_support/mod.rs"]
mod recipe_support;
mod splits;
mod support;
mod vectors;
