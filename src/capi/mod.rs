//! The C API: the only `extern "C"` functions. Each checks what it was given, calls one function below,
//! and converts back; `include/fathom.h` is rendered from these files by `tests/header.rs`.
//!
//! * [`handle`]: which addresses are live objects, who is inside them, what a panic broke.
//! * `boundary`: no panic leaves, errors become a status and an object; the panic hook.
//! * `options`, `input`: structs that say their size, bytes, text and arrays.
//! * `status`, `error`: errors of the rooms below become statuses, messages and bodies.
//! * The rest are the topics of the header, one file each.
//!
//! Duties of every caller of the `unsafe` functions here, said once: pointers to bytes, arrays and structs
//! are NULL or valid for the length that goes with them (for a struct, its `struct_size`) and not changed by
//! others during the call; out-parameters are NULL or writable; callbacks and their user data work as the
//! header says. Handles carry no duty: a value of any origin is looked up before it is used.

#![allow(
    non_camel_case_types,
    reason = "these are the names of the header, and renaming would hide them from a search"
)]
#![allow(
    clippy::missing_safety_doc,
    reason = "the duties are the same for all functions: the module's documentation states them"
)]

pub mod batch;
mod boundary;
pub mod call;
pub mod constraint;
pub mod engine;
mod error;
pub mod handle;
pub mod image;
mod input;
pub mod library;
mod log;
pub mod metrics;
mod options;
mod params;
pub mod parser;
pub mod queue;
pub mod recipe;
pub mod request;
mod status;
pub mod tokenizer;
pub mod types;
