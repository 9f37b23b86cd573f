//! State of sequences: blocks of growing rows, ring slots of bounded rows, who holds them, and what of it can be
//! used again.
//!
//! Only numbers live here; the pools behind them belong to the model, and no thread, clock or device is known.
//! [`Memory`] is the whole of it: it hands out blocks and slots, all of an admission or nothing, evicts what is
//! cached when that is needed, and finds the prefix of a prompt among published blocks. A sequence keeps its part in
//! a [`Table`]. Below it, one file a concept:
//!
//! * `blocks.rs`, `slots.rs`: states, holders, order of eviction; `fence.rs`: what waits for launched steps;
//! * `hash.rs`: what a block is called; `prefix.rs`: the index from names to blocks; `reuse.rs`: lookups and
//!   publication;
//! * `snapshots.rs`: bounded state at block ends; `budget.rs`: how many bytes are whose;
//! * `layout.rs`: sizes of the state of a model.
//!
//! Taking, giving back and evicting cost O(1) an id; a lookup under a microsecond a block the first time and a few
//! nanoseconds after that. Counts are exact: giving back what is not out is a bug and panics, which the engine thread
//! contains.

#![forbid(unsafe_code)]

mod blocks;
mod budget;
mod fence;
mod hash;
pub mod layout;
mod lists;
mod memory;
mod prefix;
mod reuse;
mod slots;
mod snapshots;
mod table;

use lists::{Links, List};

pub use blocks::BlockCounts;
pub use budget::Budget;
pub use fence::Fence;
pub use hash::{BlockHash, HashFunction, Identity, Media, Scope};
pub use memory::{Counters, Fork, Memory, Options, Supply, Write};
pub use reuse::{Bounded, Hit, Query};
pub use slots::SlotCounts;
pub use snapshots::SnapshotId;
pub use table::Table;

/// A page in every growing pool at once. Block 0 is never given out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockId(pub u32);

/// The bounded state of one sequence. Slot 0 is never given out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SlotId(pub u32);

/// Which free id goes out next. No result may depend on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// The one that became free last: its memory is warm.
    #[default]
    Recent,
    /// Drawn from this state: what tests compare with.
    Shuffled(u64),
}

impl Order {
    fn pop(&mut self, links: &mut Links, list: &mut List) -> Option<u32> {
        match self {
            Self::Recent => links.pop_first(list),
            Self::Shuffled(state) => {
                // A linear congruential step; its highest bit is good enough for a choice of two ends.
                *state = state
                    .wrapping_mul(0x5851_f42d_4c95_7f2d)
                    .wrapping_add(0x1405_7b7e_f767_814f);
                match *state >> 63 {
                    0 => links.pop_first(list),
                    _ => links.pop_last(list),
                }
            }
        }
    }
}
