//! The forward pass of each model version, in terms of backend operations.
//!
//! The engine sees [`Model`] only. A model keeps its state in pools that it owns; the engine decides
//! which block and which slot belongs to whom. All state is addressed by absolute position: running a
//! sequence again from an earlier position *is* the rollback.

pub mod compressed;
pub mod config;
pub mod engram;

use super::error::Error;
use super::kv::{BlockId, SlotId};

/// Which rows of a sequence need logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogitRows {
    /// None: a chunk that is not the last.
    None,
    /// The last row.
    Last,
    /// Every row.
    All,
}

/// Consecutive rows of one sequence in a step.
#[derive(Clone, Copy, Debug)]
pub struct StepSequence<'a> {
    /// Its bounded state.
    pub slot: SlotId,
    /// Block `i` holds positions `i * block_tokens ..`; must cover the rows of this step.
    pub blocks: &'a [BlockId],
    /// Position of the first row; everything before it was run earlier with the same slot and blocks.
    pub position: u32,
    /// Ids of the rows.
    pub tokens: &'a [u32],
    /// Ids before `position`: at least the last [`ModelLimits::history`], or all there are.
    pub history: &'a [u32],
    /// Whether a row is an image position; empty = none is.
    pub image: &'a [bool],
    /// Which rows need logits.
    pub logits: LogitRows,
}

/// What the engine must know of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelLimits {
    /// Ids with a logit.
    pub vocab: u32,
    /// Positions a sequence may have.
    pub max_context: u32,
    /// Tokens a block covers.
    pub block_tokens: u32,
    /// Blocks in the pools, block 0 included.
    pub blocks: u32,
    /// Slots, slot 0 included.
    pub slots: u32,
    /// Rows that can be taken back.
    pub max_rollback: u32,
    /// Ids before a row that the model looks at.
    pub history: u32,
    /// Ends a sequence.
    pub eos: Vec<u32>,
}

/// A loaded model with its state pools. One thread at a time.
pub trait Model: Send {
    /// Sizes.
    fn limits(&self) -> &ModelLimits;

    /// Makes `slot` ready for a new sequence; nothing of a former owner can be read afterwards.
    fn clear_slot(&mut self, slot: SlotId);

    /// Runs the rows of all sequences at once and appends the wanted logits, row after row in the order
    /// of `step`, to `logits` (`vocab` values each; cleared first). A row's logits depend only on its own
    /// sequence, never on its neighbours.
    fn forward(&mut self, step: &[StepSequence<'_>], logits: &mut Vec<f32>) -> Result<(), Error>;
}
