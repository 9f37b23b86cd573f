//! Output held to a grammar, through the whole engine: over the canary, whose every choice can be computed
//! without it, and over the trained demo model, by way of the protocols.

mod recipe_support;

#[path = "engine_constraints/world.rs"]
mod world;

#[path = "engine_constraints/protocols.rs"]
mod protocols;
