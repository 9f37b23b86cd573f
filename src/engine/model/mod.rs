//! The forward pass of each model version, in terms of backend operations.
//!
//! The engine sees [`Model`] only. A model keeps its state in pools that it owns; the engine decides
//! which block and which slot belongs to whom. All state is addressed by absolute position: running a
//! sequence again from an earlier position *is* the rollback.

#![forbid(unsafe_code)]

pub mod compressed;
pub mod config;
pub mod engram;
pub mod parts;
pub mod v4;
pub mod v41;

use super::backend::Backend;
use super::error::Error;
use super::kv::layout::StateLayout;
use super::kv::{BlockId, SlotId};
use super::weights::Checkpoint;
use config::{Family, ModelConfig};
use parts::{Pools, Probe};
use v4::V4;
use v41::V41;

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

/// What the layers leave out, and what no row looks at. The default is nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bounds {
    /// Layers behind the last source of growing rows neither run nor keep the rows before it, and their rows see
    /// nothing before it. Fixed for the life of a sequence; logits depend on it.
    pub cut: u32,
    /// Rows before it run only to bring the bounded state back: their growing rows are there and are not written.
    pub write_from: u32,
    /// No row sees window rows before it.
    pub floor: u32,
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
    /// What is left out.
    pub bounds: Bounds,
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
    /// The last positions of a prompt that [`Bounds::cut`] keeps; 0 = the model runs all rows.
    pub truncation_keep: u32,
    /// Tokens to run again where [`Bounds::write_from`] and [`Bounds::floor`] stand in for a snapshot; 0 = only a
    /// snapshot does.
    pub replay_window: u32,
    /// Ends a sequence.
    pub eos: Vec<u32>,
}

/// A loaded model with its state pools. One thread at a time.
pub trait Model: Send {
    /// Sizes.
    fn limits(&self) -> &ModelLimits;

    /// Makes `slot` ready for a new sequence; nothing of a former owner can be read afterwards.
    fn clear_slot(&mut self, slot: SlotId);

    /// Copies the bounded state of a sequence out. Growing rows stay where its blocks are: together they
    /// are the sequence at its newest position.
    fn save(&mut self, slot: SlotId) -> Vec<u8>;

    /// Puts bounded state back, into any slot.
    fn restore(&mut self, slot: SlotId, saved: &[u8]) -> Result<(), Error>;

    /// Runs the rows of all sequences at once and appends the wanted logits, row after row in the order
    /// of `step`, to `logits` (`vocab` values each; cleared first). A row's logits depend only on its own
    /// sequence, never on its neighbours.
    fn forward(&mut self, step: &[StepSequence<'_>], logits: &mut Vec<f32>) -> Result<(), Error>;
}

/// State that a model of this configuration keeps.
pub fn layout(config: &ModelConfig, pools: Pools) -> StateLayout {
    match config.family {
        Family::V4 => v4::layout(config, pools),
        Family::V41 => v41::layout(config, pools),
    }
}

/// A model of either version on one backend.
pub enum AnyModel<B: Backend> {
    /// DeepSeek V4.
    V4(Box<V4<B>>),
    /// DeepSeek V4.1.
    V41(Box<V41<B>>),
}

impl<B: Backend> AnyModel<B> {
    /// Takes the weights of `checkpoint` over. `token_map` gives each token's compressed id and is only
    /// read where the configuration has an n-gram memory.
    pub fn new(
        backend: B,
        config: &ModelConfig,
        checkpoint: &Checkpoint,
        pools: Pools,
        token_map: &[u32],
    ) -> Result<Self, Error> {
        Ok(match config.family {
            Family::V4 => Self::V4(Box::new(V4::new(backend, config, checkpoint, pools)?)),
            Family::V41 => Self::V41(Box::new(V41::new(
                backend, config, checkpoint, pools, token_map,
            )?)),
        })
    }

    /// [`Model::forward`], watched by a probe.
    pub fn forward_probed(
        &mut self,
        step: &[StepSequence<'_>],
        logits: &mut Vec<f32>,
        watch: Option<&mut dyn Probe>,
    ) -> Result<(), Error> {
        match self {
            Self::V4(model) => model.forward_probed(step, logits, watch),
            Self::V41(model) => model.forward_probed(step, logits, watch),
        }
    }

    fn inner(&mut self) -> &mut dyn Model {
        match self {
            Self::V4(model) => &mut **model,
            Self::V41(model) => &mut **model,
        }
    }
}

impl<B: Backend> Model for AnyModel<B> {
    fn limits(&self) -> &ModelLimits {
        match self {
            Self::V4(model) => model.limits(),
            Self::V41(model) => model.limits(),
        }
    }

    fn clear_slot(&mut self, slot: SlotId) {
        self.inner().clear_slot(slot);
    }

    fn save(&mut self, slot: SlotId) -> Vec<u8> {
        self.inner().save(slot)
    }

    fn restore(&mut self, slot: SlotId, saved: &[u8]) -> Result<(), Error> {
        self.inner().restore(slot, saved)
    }

    fn forward(&mut self, step: &[StepSequence<'_>], logits: &mut Vec<f32>) -> Result<(), Error> {
        self.forward_probed(step, logits, None)
    }
}
