//! Blocks and slots for all sequences: taken all or nothing, shared, copied before a write, given back.
//!
//! Every call either does all of what it says or changes nobody's holdings; a refusal may have cost the cache some
//! blocks, never a sequence. [`Memory::supply`] says beforehand what would be granted. Costs: O(1) for each block
//! that is taken, shared, evicted or given back; no allocation but for a table that grows.

#![forbid(unsafe_code)]

use super::blocks::{BlockCounts, Blocks};
use super::budget::Budget;
use super::fence::Fence;
use super::hash::{HashFunction, Namer};
use super::prefix::Index;
use super::reuse::{Bounded, Hit};
use super::slots::{SlotCounts, Slots};
use super::snapshots::{SnapshotId, Snapshots};
use super::table::Table;
use super::{BlockId, Order, SlotId};

/// What a [`Memory`] is made of.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Blocks in the pools, block 0 included.
    pub blocks: u32,
    /// Slots, slot 0 included.
    pub slots: u32,
    /// Tokens of a block; not 0.
    pub block_tokens: u32,
    /// Bytes of blocks and snapshots.
    pub budget: Budget,
    /// How a hit comes by its bounded state.
    pub bounded: Bounded,
    /// Secret, drawn at the start.
    pub key: u128,
    /// Another hash function, in tests.
    pub hash: Option<HashFunction>,
    /// Which free id goes out next.
    pub order: Order,
}

/// What can be taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Supply {
    /// Blocks that are free or evictable now.
    pub blocks_now: u32,
    /// Blocks once all fences have passed; never less.
    pub blocks_after_fences: u32,
    /// Slots that are free now.
    pub slots_now: u32,
    /// Slots once all fences have passed.
    pub slots_after_fences: u32,
}

/// Sums since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Tokens of admitted prompts that were looked up.
    pub queried_tokens: u64,
    /// Of these, found.
    pub hit_tokens: u64,
    /// Of these, found in blocks and of no use for want of bounded state.
    pub lost_to_state_tokens: u64,
    /// Cached blocks that made place.
    pub evicted_blocks: u64,
    /// Snapshots that made place, by themselves or with their block.
    pub evicted_snapshots: u64,
    /// Blocks copied before a write.
    pub copied_blocks: u64,
}

/// What a writer must do first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Write {
    /// Nothing.
    InPlace,
    /// Copy the page, before any row of the step is written.
    Copy {
        /// Whose rows are read.
        from: BlockId,
        /// Now in the table in its place.
        to: BlockId,
    },
}

/// A second sequence with the state of the first.
#[derive(Debug)]
pub struct Fork {
    /// Shares the blocks of the first.
    pub table: Table,
    /// Its slot. The other's must be copied to it before a row of either is written.
    pub slot: SlotId,
}

/// See the module.
#[derive(Debug)]
pub struct Memory {
    pub(super) blocks: Blocks,
    slots: Slots,
    pub(super) index: Index,
    pub(super) snapshots: Snapshots,
    pub(super) namer: Namer,
    pub(super) budget: Budget,
    pub(super) bounded: Bounded,
    pub(super) block_tokens: u32,
    pub(super) counters: Counters,
    /// Order of uses.
    pub(super) now: u64,
    /// How often the cache was cleared.
    pub(super) era: u64,
    /// Names do not meet: the hash function is the real one.
    has_names_apart: bool,
    /// Attempts to take something that still succeed, in tests.
    fail_after: Option<u32>,
}

impl Memory {
    /// With everything free.
    pub fn new(options: &Options) -> Self {
        assert!(options.block_tokens > 0, "a block has no tokens");
        let total = options.blocks.max(1);
        Self {
            blocks: Blocks::new(total, options.order),
            slots: Slots::new(options.slots.max(1), options.order),
            index: Index::new(total, options.block_tokens),
            snapshots: Snapshots::new(total),
            namer: Namer::new(options.key, options.hash),
            budget: options.budget,
            bounded: options.bounded,
            block_tokens: options.block_tokens,
            counters: Counters::default(),
            now: 0,
            era: 0,
            has_names_apart: options.hash.is_none(),
            fail_after: None,
        }
    }

    // What there is.

    /// Blocks by state.
    pub fn block_counts(&self) -> BlockCounts {
        self.blocks.counts()
    }

    /// Slots by state.
    pub fn slot_counts(&self) -> SlotCounts {
        self.slots.counts()
    }

    /// How many snapshots there are, and their bytes.
    pub fn snapshot_counts(&self) -> (u32, u64) {
        (self.snapshots.len(), self.snapshots.bytes())
    }

    /// Sums since the start.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// What can be taken now and later. A hit uses up [`Hit::cost`] blocks beside the new ones.
    pub fn supply(&self) -> Supply {
        let total = self.blocks.used() + self.blocks.free();
        let slots = self.slots.counts();
        let most = total.min(self.budget.blocks_beside(0));
        Supply {
            blocks_now: self.available(0, self.snapshots.pinned_bytes()),
            blocks_after_fences: most.saturating_sub(self.blocks.owned()),
            slots_now: slots.free,
            slots_after_fences: slots.free + slots.quarantined,
        }
    }

    /// Blocks that can be taken when `idle` of the evictable ones and so many bytes of snapshots stay.
    fn available(&self, idle: u32, pinned_bytes: u64) -> u32 {
        let evictable = self.blocks.evictable().saturating_sub(idle);
        let stay = self.blocks.used() - evictable;
        let affordable = self.budget.blocks_beside(pinned_bytes);
        let by_bytes = affordable.saturating_sub(stay);
        by_bytes.min(self.blocks.free() + evictable)
    }

    /// Blocks that can be taken once a hit has been.
    fn available_beside(&self, found: &[(BlockId, u64)], snapshot: Option<SnapshotId>) -> u32 {
        let idle = found.iter().filter(|f| self.blocks.is_evictable(f.0));
        let pinned_bytes = self.snapshots.bytes_pinned_with(snapshot);
        self.available(idle.count() as u32, pinned_bytes)
    }

    /// How many fewer can be taken once a hit has been.
    pub(super) fn cost(&self, found: &[(BlockId, u64)], snapshot: Option<SnapshotId>) -> u32 {
        let now = self.available(0, self.snapshots.pinned_bytes());
        now - self.available_beside(found, snapshot)
    }

    /// Blocks that `tokens` need.
    pub fn blocks_for(&self, tokens: u32) -> u32 {
        tokens.div_ceil(self.block_tokens)
    }

    /// Blocks that would come back with a table: those that nobody else holds.
    pub fn gain(&self, table: &Table) -> u32 {
        let sole = |block: &&BlockId| self.blocks.holders(**block) == 1;
        table.blocks.iter().filter(sole).count() as u32
    }

    // Taking.

    /// Takes what a hit promised, `fresh` blocks behind it and a slot, or nothing. The table is empty before. The
    /// hit comes from the last lookup of this table and is refused if something of it is gone meanwhile; its
    /// snapshot is pinned until [`Self::unpin`].
    pub fn admit(&mut self, table: &mut Table, hit: &Hit, fresh: u32) -> Option<SlotId> {
        if self.slots.free() == 0 || !self.take(table, hit, fresh) {
            return None;
        }
        self.counters.queried_tokens += u64::from(hit.asked);
        self.counters.hit_tokens += u64::from(hit.tokens);
        self.counters.lost_to_state_tokens += u64::from(hit.lost);
        self.slots.take()
    }

    /// Holds a prefix for the host until the table is released. Needs no slot and no new block.
    pub fn pin_prefix(&mut self, table: &mut Table, hit: &Hit) -> bool {
        let hit = Hit {
            snapshot: None,
            ..*hit
        };
        self.take(table, &hit, 0)
    }

    fn take(&mut self, table: &mut Table, hit: &Hit, fresh: u32) -> bool {
        assert!(table.blocks.is_empty(), "a table is admitted twice");
        if self.strikes() || !self.is_current(table, hit) {
            return false;
        }
        let found = &table.found[..hit.blocks as usize];
        if fresh > self.available_beside(found, hit.snapshot) {
            return false;
        }
        self.now += 1;
        if let Some(id) = hit.snapshot {
            self.snapshots.pin(id, self.now);
        }
        for &(block, _) in found {
            self.blocks.share(block);
            table.blocks.push(block);
        }
        table.restored = hit.snapshot;
        table.settled = hit.blocks;
        table.era = self.era;
        self.take_fresh(fresh, &mut table.blocks);
        true
    }

    /// Appends `count` new blocks to a table, or changes nothing and answers `false`.
    pub fn grow(&mut self, table: &mut Table, count: u32) -> bool {
        let available = self.available(0, self.snapshots.pinned_bytes());
        if count > 0 && (count > available || self.strikes()) {
            return false;
        }
        if table.blocks.is_empty() {
            table.era = self.era;
        }
        self.take_fresh(count, &mut table.blocks);
        true
    }

    /// Takes blocks that were counted as available.
    fn take_fresh(&mut self, count: u32, table: &mut Vec<BlockId>) {
        while self.blocks.free() < count {
            let (oldest, _) = self.blocks.oldest().expect("evictable blocks were counted");
            self.evict(oldest);
        }
        let blocks = |memory: &Self| memory.blocks.used() + count;
        while !self.budget.fits(blocks(self), self.snapshots.bytes()) {
            let block = self.blocks.oldest();
            let is_above_floor = self.budget.is_above_floor(self.snapshots.bytes());
            let snapshot = self.snapshots.oldest().filter(|_| is_above_floor);
            self.evict_older(block, snapshot);
        }
        table.extend((0..count).map_while(|_| self.blocks.take()));
    }

    /// Evicts what was not used for longer; one of both is there, or the bytes were counted wrongly.
    pub(super) fn evict_older(
        &mut self,
        block: Option<(BlockId, u64)>,
        snapshot: Option<(BlockId, u64)>,
    ) {
        match (block, snapshot) {
            (Some((block, used)), other) if other.is_none_or(|(_, at)| used < at) => {
                self.evict(block);
            }
            (_, Some((of, _))) => self.drop_snapshot(of),
            _ => unreachable!("what can be evicted was counted before"),
        }
    }

    fn evict(&mut self, block: BlockId) {
        self.counters.evicted_blocks += 1;
        self.unpublish(block);
    }

    /// Nobody finds the block any more, nor its snapshot. Unless somebody holds it, it becomes free.
    pub(super) fn unpublish(&mut self, block: BlockId) {
        self.drop_snapshot(block);
        self.index.remove(block);
        if self.blocks.evict(block) {
            self.index.forget(block);
        }
    }

    pub(super) fn drop_snapshot(&mut self, block: BlockId) {
        self.counters.evicted_snapshots += u64::from(self.snapshots.forget(block));
    }

    // Sharing.

    /// A second sequence with the first `tokens` of the first, or nothing if there is no slot. Blocks are shared, a
    /// partial last one too; who writes to that first asks [`Self::make_writable`]. The first slot is not given out
    /// before `fence`, that of the step that copies it.
    pub fn fork(&mut self, table: &Table, slot: SlotId, tokens: u32, fence: Fence) -> Option<Fork> {
        if self.strikes() {
            return None;
        }
        let own = self.slots.take()?;
        self.slots.hold(slot, fence);
        let (shared, full) = (self.blocks_for(tokens), tokens / self.block_tokens);
        let mut fork = Table::new(table.scope);
        fork.blocks
            .extend_from_slice(&table.blocks[..shared as usize]);
        let named = table.names.len().min(full as usize);
        fork.names.extend_from_slice(&table.names[..named]);
        fork.settled = table.settled.min(full);
        fork.era = table.era;
        fork.is_closed = table.is_closed;
        for block in &fork.blocks {
            self.blocks.share(*block);
        }
        Some(Fork {
            table: fork,
            slot: own,
        })
    }

    /// Whether rows may be written to a block of the table as it is: nobody else holds it or can find it.
    pub fn is_writable(&self, table: &Table, at: u32) -> bool {
        let block = table.blocks[at as usize];
        self.blocks.holders(block) == 1 && self.index.published(block).is_none()
    }

    /// Blocks that must be copied before rows from `position` on are written; part of the exact need of a step.
    pub fn copies(&self, table: &Table, position: u32) -> u32 {
        let first = position / self.block_tokens;
        let shared = (first..table.len()).filter(|&at| !self.is_writable(table, at));
        shared.count() as u32
    }

    /// Prepares a block of the table for writing, or answers `None` where a copy is needed and there is no block for
    /// it. The source of a copy is not given out before `fence`, that of the step that copies.
    pub fn make_writable(&mut self, table: &mut Table, at: u32, fence: Fence) -> Option<Write> {
        let from = table.blocks[at as usize];
        if self.is_writable(table, at) {
            table.settled = table.settled.min(at);
            self.index.forget(from);
            return Some(Write::InPlace);
        }
        if self.available(0, self.snapshots.pinned_bytes()) == 0 || self.strikes() {
            return None;
        }
        // A published source comes back alone, and still as part of a chain.
        let linked = match self.index.published(from) {
            Some(_) => self.relink(table),
            None => 0,
        };
        // The source is held while the target is found, so it is not what is evicted.
        self.take_fresh(1, &mut table.blocks);
        let to = table.blocks.pop().expect("a block was taken");
        table.blocks[at as usize] = to;
        table.settled = table.settled.min(at);
        self.now += 1;
        self.give(from, fence);
        for before in (0..at.min(linked)).rev() {
            self.touch_twin(table.blocks[before as usize], fence);
        }
        self.counters.copied_blocks += 1;
        Some(Write::Copy { from, to })
    }

    // Giving back.

    /// The one way out: takes back all blocks and the slot, to be used again after `fence`, that of the last step
    /// that names them. Published blocks stay where they can be found.
    pub fn release(&mut self, table: &mut Table, slot: Option<SlotId>, fence: Fence) {
        self.shrink(table, 0, fence);
        if let Some(slot) = slot {
            self.slots.give(slot, fence);
        }
    }

    /// Takes back the blocks behind the first `kept`, last first.
    pub fn shrink(&mut self, table: &mut Table, kept: u32, fence: Fence) {
        let surplus = table.blocks.iter().skip(kept as usize);
        let linked = if surplus.rev().any(|block| self.index.is_recorded(*block)) {
            self.relink(table)
        } else {
            0
        };
        self.now += 1;
        while table.len() > kept {
            let Some(block) = table.blocks.pop() else {
                break;
            };
            if table.len() < linked {
                self.touch_twin(block, fence);
            }
            self.give(block, fence);
        }
        table.settled = table.settled.min(kept);
    }

    /// What was behind the block came back just before: its twin goes later than that, and waits as long, be it for
    /// somebody who gave the same blocks back when there was no twin yet.
    fn touch_twin(&mut self, block: BlockId, fence: Fence) {
        if let Some(twin) = self.index.twin(block) {
            let fence = fence.max(self.blocks.fence(block));
            self.blocks.touch(twin, fence, self.now);
        }
    }

    fn give(&mut self, block: BlockId, fence: Fence) {
        let is_kept = self.index.published(block).is_some();
        if self.blocks.give(block, fence, is_kept, self.now) {
            self.index.forget(block);
        }
    }

    /// All steps up to `fence` are over: what waited for them can be used again.
    pub fn pass(&mut self, fence: Fence) {
        self.blocks.pass(fence);
        self.slots.pass(fence);
    }

    // For tests.

    /// Whether this attempt to take something is the one that fails.
    pub(super) fn strikes(&mut self) -> bool {
        match &mut self.fail_after {
            None => false,
            Some(0) => true,
            Some(left) => {
                *left -= 1;
                false
            }
        }
    }

    /// For tests: after so many successful attempts to take something all fail, until `None` is set.
    #[doc(hidden)]
    pub fn fail_after(&mut self, attempts: Option<u32>) {
        self.fail_after = attempts;
    }

    /// For tests: whether the next attempt fails.
    #[doc(hidden)]
    pub fn fails_next(&self) -> bool {
        self.fail_after == Some(0)
    }

    /// For tests that must notice it: from now on everything is given out without regard to fences.
    #[doc(hidden)]
    pub fn break_fences(&mut self) {
        self.blocks.break_fences();
        self.slots.break_fences();
    }

    /// Recounts everything, and the holders of each block among `tables`, which are all there are. Panics where
    /// something is wrong. For tests and debug builds: costs as much as there are blocks.
    pub fn audit<'a>(&self, tables: impl IntoIterator<Item = &'a Table>) {
        self.blocks.audit();
        self.slots.audit();
        self.index.audit();
        self.snapshots.audit();
        let mut holders = vec![0; (self.blocks.used() + self.blocks.free()) as usize + 1];
        for block in tables.into_iter().flat_map(|t| &t.blocks) {
            assert_ne!(block.0, 0, "block 0 is held");
            holders[block.0 as usize] += 1;
        }
        for (block, &count) in (0..).map(BlockId).zip(&holders) {
            assert_eq!(self.blocks.holders(block), count, "holders of {block:?}");
            if let Some(snapshot) = self.snapshots.at(block) {
                assert!(self.index.published(block).is_some());
                assert!(self.snapshots.get(snapshot).is_some());
            }
        }
        let bytes = self.snapshots.bytes();
        assert!(self.budget.fits(self.blocks.used(), bytes), "bytes");
        // A tail goes before its head. Where names meet, blocks displace each other and only the order suffers.
        if !self.has_names_apart {
            return;
        }
        let mut gone = std::collections::HashSet::new();
        for block in self.blocks.cached_in_order() {
            let number = self.index.published(block);
            gone.insert(number.expect("a cached block can be found"));
            let before = self.index.before(block);
            assert!(!gone.contains(&before), "a head goes before its tail");
        }
    }
}
