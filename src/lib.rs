//! fathom runs DeepSeek V4 and V4.1 models inside the host's process and speaks their API protocols.
//!
//! The product is the C API of `include/fathom.h`, which [`capi`] implements; Rust programs may use the
//! rooms below it directly, without a promise of stability. Data flows from top to bottom:
//!
//! * [`capi`]: checks what C callers pass, calls one function below, converts back.
//! * [`call`]: an API request in, protocol events out; joins the two rooms below.
//! * [`recipe`]: requests to token ids, tokens to events; no threads, no network.
//! * [`engine`]: token ids to tokens; one thread decides, backends compute.

pub mod call;
pub mod capi;
pub mod engine;
pub mod recipe;
