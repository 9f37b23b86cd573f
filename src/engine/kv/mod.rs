//! State of sequences: blocks of growing rows, ring slots of bounded rows, and who owns them.
//!
//! Only numbers live here; the pools behind them belong to the model. Handing out and taking back costs one
//! stack operation an id. Counts are exact: giving back what is not out is a bug and panics, which the engine
//! thread contains.

#![forbid(unsafe_code)]

pub mod layout;

/// A page in every growing pool at once. Block 0 is never given out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockId(pub u32);

/// The bounded state of one sequence. Slot 0 is never given out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SlotId(pub u32);

/// Free and owned ids of `1..total`.
#[derive(Debug)]
struct Pool {
    free: Vec<u32>,
    is_owned: Vec<bool>,
}

impl Pool {
    fn new(total: u32) -> Self {
        Self {
            // Lowest first at the start, last in first out later.
            free: (1..total).rev().collect(),
            is_owned: vec![false; total as usize],
        }
    }

    fn take(&mut self) -> Option<u32> {
        let id = self.free.pop()?;
        self.is_owned[id as usize] = true;
        Some(id)
    }

    fn give(&mut self, id: u32) {
        let owned = std::mem::replace(&mut self.is_owned[id as usize], false);
        assert!(owned, "id {id} was given back twice");
        self.free.push(id);
    }
}

/// The blocks of all growing pools.
#[derive(Debug)]
pub struct Blocks {
    pool: Pool,
}

impl Blocks {
    /// `total` includes block 0.
    pub fn new(total: u32) -> Self {
        Self {
            pool: Pool::new(total),
        }
    }

    /// How many can be taken.
    pub fn free(&self) -> u32 {
        self.pool.free.len() as u32
    }

    /// How many there are, free or not; without block 0.
    pub fn total(&self) -> u32 {
        self.pool.is_owned.len().saturating_sub(1) as u32
    }

    /// How many are out.
    pub fn used(&self) -> u32 {
        self.total() - self.free()
    }

    /// Appends `count` blocks to a table, or changes nothing and answers `false`.
    pub fn take(&mut self, count: u32, table: &mut Vec<BlockId>) -> bool {
        if count > self.free() {
            return false;
        }
        table.extend((0..count).map_while(|_| self.pool.take()).map(BlockId));
        true
    }

    /// Takes back all blocks of a table, last first, so that they go out again in the same order.
    pub fn give(&mut self, table: &mut Vec<BlockId>) {
        while let Some(block) = table.pop() {
            self.pool.give(block.0);
        }
    }
}

/// The ring slots.
#[derive(Debug)]
pub struct Slots {
    pool: Pool,
}

impl Slots {
    /// `total` includes slot 0.
    pub fn new(total: u32) -> Self {
        Self {
            pool: Pool::new(total),
        }
    }

    /// How many can be taken.
    pub fn free(&self) -> u32 {
        self.pool.free.len() as u32
    }

    /// One slot, if there is one.
    pub fn take(&mut self) -> Option<SlotId> {
        self.pool.take().map(SlotId)
    }

    /// Takes a slot back.
    pub fn give(&mut self, slot: SlotId) {
        self.pool.give(slot.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_or_nothing_and_never_block_zero() {
        let mut blocks = Blocks::new(4);
        let mut table = Vec::new();
        assert!(!blocks.take(4, &mut table));
        assert!(table.is_empty());
        assert!(blocks.take(3, &mut table));
        assert_eq!(table, [BlockId(1), BlockId(2), BlockId(3)]);
        assert_eq!((blocks.free(), blocks.used(), blocks.total()), (0, 3, 3));
        blocks.give(&mut table);
        assert_eq!((blocks.free(), blocks.used()), (3, 0));
        assert!(table.is_empty());
    }

    #[test]
    #[should_panic(expected = "given back twice")]
    fn a_slot_given_back_twice_is_a_bug() {
        let mut slots = Slots::new(3);
        let slot = slots.take().unwrap();
        slots.give(slot);
        slots.give(slot);
    }
}
