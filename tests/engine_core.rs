//! The engine over the canary model: every request ends once, with the tokens it has alone, whatever happens
//! around it.

#[path = "engine_core/host.rs"]
mod host;

#[path = "sampling_reference/twin.rs"]
mod twin;
#[path = "sampling_reference/wishes.rs"]
mod wishes;

#[path = "engine_core/asked.rs"]
mod asked;
#[path = "engine_core/ends.rs"]
mod ends;
#[path = "engine_core/faults.rs"]
mod faults;
#[path = "engine_core/numbers.rs"]
mod numbers;
#[path = "engine_core/races.rs"]
mod races;
#[path = "engine_core/readers.rs"]
mod readers;
#[path = "engine_core/scenarios.rs"]
mod scenarios;
#[path = "engine_core/tokens.rs"]
mod tokens;
#[path = "engine_core/whole.rs"]
mod whole;
