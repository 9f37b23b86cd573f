//! What one sequence holds: its blocks in the order of positions, and what they are called.
//!
//! Blocks come and go through [`Memory`](super::Memory) only; names are a function of the tokens and survive a
//! preemption, so that nothing is hashed twice. A table that is dropped with blocks in it loses them.

#![forbid(unsafe_code)]

use super::BlockId;
use super::hash::{Name, Scope};
use super::snapshots::SnapshotId;

/// See the module.
#[derive(Debug, Default)]
pub struct Table {
    /// Block `i` holds positions `i * block_tokens ..`.
    pub(super) blocks: Vec<BlockId>,
    /// Of the first full blocks of the tokens, as far as somebody asked.
    pub(super) names: Vec<Name>,
    /// What the last lookup found, and the number of the publication of each.
    pub(super) found: Vec<(BlockId, u64)>,
    /// State of the index when `found` was known to be right.
    pub(super) found_at: u64,
    /// Where its bounded state came from.
    pub(super) restored: Option<SnapshotId>,
    /// So many of `blocks` have all their rows, of accepted tokens.
    pub(super) settled: u32,
    /// How often the cache had been cleared when its first block was taken.
    pub(super) era: u64,
    pub(super) scope: Scope,
    pub(super) is_closed: bool,
}

impl Table {
    /// An empty one, for tokens that are shared within `scope`.
    pub fn new(scope: Scope) -> Self {
        Self {
            scope,
            ..Self::default()
        }
    }

    /// The blocks, in the order of positions.
    pub fn blocks(&self) -> &[BlockId] {
        &self.blocks
    }

    /// How many there are.
    pub fn len(&self) -> u32 {
        self.blocks.len() as u32
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// Nothing more of it is published: the request does not want it, or a row of it was bad.
    pub fn close(&mut self) {
        self.is_closed = true;
    }

    /// The tokens from `position` on have changed: their blocks need new names.
    pub fn rename_from(&mut self, position: u32, block_tokens: u32) {
        let kept = (position / block_tokens.max(1)) as usize;
        self.names.truncate(kept);
        self.found.truncate(kept);
    }
}
