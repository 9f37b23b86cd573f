//! The output side of the recipe: model output in, Chat Completions events out.

mod grammar;
mod life;
mod merge;
mod splits;
mod support;
mod vectors;
