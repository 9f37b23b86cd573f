//! Output held to a grammar, through the whole engine: over the canary, whose every choice can be computed
//! without it, and over the trained demo model, by way of the protocols.
//!
//! Each test says in its comment which mistakes it is there to catch.

mod recipe_support;

#[path = "engine_constraints/canary.rs"]
mod canary;
#[path = "engine_constraints/demo.rs"]
mod demo;
#[path = "engine_constraints/failures.rs"]
mod failures;
#[path = "engine_constraints/protocols.rs"]
mod protocols;
#[path = "engine_constraints/schemas.rs"]
mod schemas;
#[path = "engine_constraints/tools.rs"]
mod tools;
#[path = "engine_constraints/twins.rs"]
mod twins;
#[path = "engine_constraints/world.rs"]
mod world;
