//! State of sequences: blocks of growing rows, ring slots of bounded rows, and who owns them.

pub mod layout;

/// A page in every growing pool at once. Block 0 is never given out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockId(pub u32);

/// The bounded state of one sequence. Slot 0 is never given out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SlotId(pub u32);
