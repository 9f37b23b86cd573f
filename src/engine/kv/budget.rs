//! How many bytes blocks and snapshots may take together.
//!
//! They draw on one budget, so that snapshots fill what the blocks leave and blocks take it back when they grow.
//! Each has a floor: without the one of snapshots a busy pool would lose the state that its own blocks need to be of
//! use, without the one of blocks a few large snapshots would displace what they belong to.

#![forbid(unsafe_code)]

/// Snapshots kept for each slot, whatever the blocks need: the turn before and the one that is running.
const SNAPSHOTS_A_SLOT: u64 = 2;

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Of blocks that are not free, and snapshots.
    pub bytes: u64,
    /// Of a block.
    pub block_bytes: u64,
    /// Bytes that belong to snapshots alone.
    pub snapshot_floor: u64,
    /// Of the blocks that are not free, so many are not evicted for a snapshot. Those that are free it may use.
    pub block_floor: u32,
}

impl Default for Budget {
    /// No limit.
    fn default() -> Self {
        Self {
            bytes: u64::MAX,
            block_bytes: 0,
            snapshot_floor: 0,
            block_floor: 0,
        }
    }
}

impl Budget {
    /// All blocks of a pool and the least snapshots for its slots; what the blocks do not need, more snapshots may
    /// take. Block 0 and slot 0 are not counted in.
    pub fn of_pools(blocks: u32, block_bytes: u64, slots: u32, snapshot_bytes: u64) -> Self {
        let floor = u64::from(slots)
            .saturating_mul(SNAPSHOTS_A_SLOT)
            .saturating_mul(snapshot_bytes);
        Self {
            bytes: u64::from(blocks)
                .saturating_mul(block_bytes)
                .saturating_add(floor),
            block_bytes,
            snapshot_floor: floor,
            block_floor: blocks / 2,
        }
    }

    /// What blocks and the snapshots above their floor share.
    fn shared(&self) -> u64 {
        self.bytes.saturating_sub(self.snapshot_floor)
    }

    fn above_floor(&self, snapshot_bytes: u64) -> u64 {
        snapshot_bytes.saturating_sub(self.snapshot_floor)
    }

    fn of_blocks(&self, blocks: u32) -> u64 {
        u64::from(blocks).saturating_mul(self.block_bytes)
    }

    /// How many blocks fit beside so many bytes of snapshots.
    pub(super) fn blocks_beside(&self, snapshot_bytes: u64) -> u32 {
        let left = self
            .shared()
            .saturating_sub(self.above_floor(snapshot_bytes));
        let blocks = left.checked_div(self.block_bytes);
        blocks.map_or(u32::MAX, |n| u32::try_from(n).unwrap_or(u32::MAX))
    }

    /// Whether both fit together.
    pub(super) fn fits(&self, blocks: u32, snapshot_bytes: u64) -> bool {
        let blocks = self.of_blocks(blocks);
        blocks.saturating_add(self.above_floor(snapshot_bytes)) <= self.shared()
    }

    /// Whether a block gains anything when a snapshot goes.
    pub(super) fn is_above_floor(&self, snapshot_bytes: u64) -> bool {
        snapshot_bytes > self.snapshot_floor
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_never_lose_to_snapshots_below_their_floor() {
        let budget = Budget::of_pools(10, 100, 2, 50);
        assert_eq!(budget.snapshot_floor, 200);
        assert_eq!(budget.blocks_beside(0), 10);
        assert_eq!(budget.blocks_beside(200), 10);
        assert_eq!(budget.blocks_beside(250), 9);
        assert!(budget.fits(10, 200) && !budget.fits(10, 201) && budget.fits(9, 300));
        assert!(budget.fits(0, 1_200) && !budget.fits(0, 1_201));
        assert_eq!(Budget::default().blocks_beside(1 << 40), u32::MAX);
        assert!(Budget::default().fits(u32::MAX, 1 << 40));
    }
}
