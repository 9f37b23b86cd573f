//! Checkpoints: safetensors files, mapped where the page cache has them.
//!
//! Input: a directory and its [`ModelConfig`](super::model::config::ModelConfig). Output: named tensors whose
//! bytes are views of the mapped files, in the published formats; nothing is converted and nothing copied.
//! Cost: opening reads headers only: milliseconds for the demo model, a second for the 93 418 tensors of
//! V4.1-Flash (measured on a busy core); [`Checkpoint::load`] then reads what it is asked to read.

mod bytes;
mod checkpoint;
pub mod expected;
mod shard;

pub use bytes::{Bytes, Dtype, Tensor};
pub use checkpoint::Checkpoint;
pub use expected::{ExpertFormat, Part, WeightBytes, weight_bytes};
pub use shard::Shard;
