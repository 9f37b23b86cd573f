//! Using rows again: which prefix of a prompt is there, and what becomes findable when.
//!
//! Growing rows alone are not enough to go on at a position: the bounded state there is needed too. A lookup answers
//! the longest prefix for which both can be had, never the whole prompt: its last token always runs. It takes
//! nothing; [`Memory::admit`] does. What a lookup finds is remembered in the table, so that asking again before
//! admission costs a comparison of one number as long as nothing was evicted.

#![forbid(unsafe_code)]

use std::ops::Range;

use super::BlockId;
use super::hash::{BlockHash, Media, Name};
use super::memory::Memory;
use super::prefix::{Linked, ROOT};
use super::snapshots::SnapshotId;
use super::table::Table;

/// How the bounded state of a hit is had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bounded {
    /// From a snapshot: the hit ends at the last block end that has one, the rest is computed again. Exact.
    Stored,
    /// By running the last tokens of the hit again without writing growing rows, where there is no snapshot. Not
    /// exact: what those rows would have seen before `window` tokens is missing.
    Replayed {
        /// Tokens that run again.
        window: u32,
    },
}

/// What is looked up.
#[derive(Clone, Copy, Debug)]
pub struct Query<'a> {
    /// All tokens that are known: the prompt, and what was accepted before a preemption.
    pub tokens: &'a [u32],
    /// What placeholders among them stand for, by position, not overlapping.
    pub media: &'a [Media],
    /// A hit ends here at the latest; `u32::MAX` where only the last token must run.
    pub limit: u32,
}

/// What was found. The default is nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hit {
    /// Where the sequence goes on: a multiple of the block size, below the number of its tokens.
    pub tokens: u32,
    /// Blocks of these tokens.
    pub blocks: u32,
    /// Bounded state at that position.
    pub snapshot: Option<SnapshotId>,
    /// Without a snapshot: run the rows from here to `tokens` again, with growing rows going nowhere and no window
    /// rows visible before it.
    pub replay_from: Option<u32>,
    /// How many fewer blocks are available once the hit is taken, beside new ones: what is cached counts as
    /// available until then.
    pub cost: u32,
    /// Tokens that were asked for.
    pub asked: u32,
    /// Tokens whose blocks are there, beyond the position where bounded state can be had.
    pub lost: u32,
}

impl Memory {
    /// Finds the longest prefix that can be used again.
    pub fn lookup(&mut self, table: &mut Table, query: &Query<'_>) -> Hit {
        let asked = u32::try_from(query.tokens.len()).unwrap_or(u32::MAX);
        let most = query.limit.min(asked.saturating_sub(1)) / self.block_tokens;
        self.find_chain(table, query, most);
        let chain = &table.found[..table.found.len().min(most as usize)];
        let there = chain.len() as u32;
        let (blocks, snapshot) = match self.bounded {
            Bounded::Stored => self.last_snapshot(chain),
            Bounded::Replayed { .. } => {
                let last = chain.last();
                (there, last.and_then(|f| self.snapshots.at(f.0)))
            }
        };
        let tokens = blocks * self.block_tokens;
        let replay_from = match self.bounded {
            Bounded::Replayed { window } if blocks > 0 && snapshot.is_none() => {
                Some(tokens.saturating_sub(window))
            }
            _ => None,
        };
        let cost = self.cost(&chain[..blocks as usize], snapshot);
        Hit {
            tokens,
            blocks,
            snapshot,
            replay_from,
            cost,
            asked,
            lost: there * self.block_tokens - tokens,
        }
    }

    /// Extends what the table knows to be there, up to `most` blocks.
    fn find_chain(&mut self, table: &mut Table, query: &Query<'_>, most: u32) {
        if table.found_at != self.index.removals() {
            let is_there = |f: &&(BlockId, u64)| self.index.published(f.0) == Some(f.1);
            let live = table.found.iter().take_while(is_there).count();
            table.found.truncate(live);
            table.found_at = self.index.removals();
        }
        for at in table.found.len() as u32..most {
            let before = table.found.last().map_or(ROOT, |f| f.1);
            let name = self.name(table, at, query.tokens, query.media);
            let tokens = self.tokens_of(at, query.tokens);
            match self.index.find(before, &name, tokens) {
                Some(found) => table.found.push(found),
                None => return,
            }
        }
    }

    fn last_snapshot(&self, chain: &[(BlockId, u64)]) -> (u32, Option<SnapshotId>) {
        let snapshots = chain.iter().map(|f| self.snapshots.at(f.0));
        let last = snapshots.enumerate().rev().find(|(_, s)| s.is_some());
        last.map_or((0, None), |(at, snapshot)| (at as u32 + 1, snapshot))
    }

    /// Whether all that a lookup found is still there.
    pub(super) fn is_current(&self, table: &Table, hit: &Hit) -> bool {
        let Some(found) = table.found.get(..hit.blocks as usize) else {
            return false;
        };
        let is_there = |f: &(BlockId, u64)| self.index.published(f.0) == Some(f.1);
        let has_state = |id| self.snapshots.block(id) == found.last().map(|f| f.0);
        found.iter().all(is_there) && hit.snapshot.is_none_or(has_state)
    }

    fn tokens_of<'t>(&self, at: u32, tokens: &'t [u32]) -> &'t [u32] {
        let start = at as usize * self.block_tokens as usize;
        &tokens[start..start + self.block_tokens as usize]
    }

    /// The name of full block `at`; those before it have one or get one.
    fn name(&mut self, table: &mut Table, at: u32, tokens: &[u32], media: &[Media]) -> Name {
        for next in table.names.len() as u32..=at {
            let before = table.names.last().map_or(BlockHash(0), |n| n.hash);
            let start = next * self.block_tokens;
            let own = self.tokens_of(next, tokens);
            let name = self.namer.name(before, &table.scope, start, own, media);
            table.names.push(name);
        }
        table.names[at as usize]
    }

    // Publication.

    /// The rows of the first `settled` tokens are complete and of accepted tokens: their full blocks can be found
    /// from now on. Does nothing for a closed table, nor for one from before the cache was cleared.
    pub fn publish(&mut self, table: &mut Table, tokens: &[u32], media: &[Media], settled: u32) {
        if !self.may_publish(table) {
            return;
        }
        let full = (settled / self.block_tokens).min(table.len());
        let first = table.settled;
        for at in first..full {
            let name = self.name(table, at, tokens, media);
            let own = self.tokens_of(at, tokens);
            self.index.record(table.blocks[at as usize], &name, own);
            table.settled = at + 1;
        }
        if full > first {
            // Usually the one before is there; where it is gone, those before it may be too.
            let of = |at: u32| self.index.stand_in(table.blocks[at as usize]);
            let known = (0..first).rev().find_map(|at| Some((at + 1, of(at)?.1)));
            let (from, before) = known.unwrap_or((0, ROOT));
            self.link(table, from..full, before);
        }
    }

    fn may_publish(&self, table: &Table) -> bool {
        !table.is_closed && table.era == self.era
    }

    /// Makes all complete blocks of a table findable again, where a block before one of them was evicted, so that
    /// they can be given back as a chain. Answers how many are one. Looks at the blocks, not at what the table
    /// settled: a fork may hold blocks that the other settled.
    pub(super) fn relink(&mut self, table: &mut Table) -> u32 {
        let is_recorded = |block: &&BlockId| self.index.is_recorded(**block);
        let recorded = table.blocks.iter().take_while(is_recorded).count() as u32;
        if self.may_publish(table) {
            self.link(table, 0..recorded, ROOT);
        }
        let linked = if self.may_publish(table) {
            recorded
        } else {
            self.chain_len(&table.blocks[..recorded as usize])
        };
        for &block in &table.blocks[linked as usize..] {
            // What it once published behind the chain would lie in no order.
            if self.index.published(block).is_some() && self.blocks.holders(block) == 1 {
                self.unpublish(block);
            }
        }
        linked
    }

    /// How many of these blocks can be found one behind the other.
    fn chain_len(&self, blocks: &[BlockId]) -> u32 {
        let mut before = ROOT;
        let is_next = |block: &&BlockId| match self.index.stand_in(**block) {
            Some((other, number)) if self.index.before(other) == before => {
                before = number;
                true
            }
            _ => false,
        };
        blocks.iter().take_while(is_next).count() as u32
    }

    fn link(&mut self, table: &mut Table, range: Range<u32>, mut before: u64) {
        for at in range {
            match self.index.link(table.blocks[at as usize], before) {
                Linked::As(number) => before = number,
                Linked::Instead(number, other) => {
                    before = number;
                    self.unpublish(other);
                }
                Linked::Refused => {
                    // Nothing behind it could be found either.
                    table.close();
                    return;
                }
            }
        }
    }

    /// The rows from block `from` on turned out to be wrong: nobody finds them any more, and nothing more of the
    /// table is published.
    pub fn withdraw(&mut self, table: &mut Table, from: u32) {
        table.close();
        for &block in &table.blocks[from as usize..] {
            self.unpublish(block);
            self.index.withdraw(block);
        }
    }

    /// Empties the cache. Sequences keep what they hold, and nothing of it is found by others any more.
    pub fn clear(&mut self) {
        let total = self.blocks.used() + self.blocks.free();
        for block in (1..=total).map(BlockId) {
            if self.index.published(block).is_some() {
                self.snapshots.forget(block);
                self.unpublish(block);
            }
        }
        self.era += 1;
    }

    // Snapshots.

    /// Whether [`Self::save`] would keep a snapshot of `bytes` at the end of the first `blocks` of a table.
    pub fn wants_snapshot(&self, table: &Table, blocks: u32, bytes: u64) -> bool {
        let target = self.snapshot_target(table, blocks);
        target.is_some_and(|b| self.snapshots.at(b).is_none()) && self.has_room_for(bytes)
    }

    /// Keeps the bounded state at the end of the first `blocks` of a table, all of them published. `None` where
    /// they are not, or where there is no room. Where there is one already it stays.
    pub fn save(&mut self, table: &Table, blocks: u32, state: Vec<u8>) -> Option<SnapshotId> {
        let target = self.snapshot_target(table, blocks)?;
        self.now += 1;
        if let Some(id) = self.snapshots.at(target) {
            self.snapshots.touch(id, self.now);
            return Some(id);
        }
        let size = state.len() as u64;
        if !self.has_room_for(size) || self.strikes() {
            return None;
        }
        if let Some(id) = table.restored {
            // The next turn goes on from here. Unless others used it too, where this one began goes first.
            self.snapshots.demote(id);
        }
        while !self
            .budget
            .fits(self.blocks.used(), self.snapshots.bytes() + size)
        {
            let is_above_floor = self.blocks.used() > self.budget.block_floor;
            let block = self.blocks.oldest().filter(|_| is_above_floor);
            self.evict_older(block, self.snapshots.oldest());
        }
        // Making room may have cost the block itself.
        self.index.published(target)?;
        Some(self.snapshots.insert(target, state, self.now))
    }

    /// The published block that ends where the first `blocks` of the table do.
    fn snapshot_target(&self, table: &Table, blocks: u32) -> Option<BlockId> {
        if blocks == 0 || blocks > table.settled || !self.may_publish(table) {
            return None;
        }
        let block = table.blocks[blocks as usize - 1];
        self.index.stand_in(block).map(|(other, _)| other)
    }

    /// Whether so many bytes fit when everything goes that can.
    fn has_room_for(&self, bytes: u64) -> bool {
        let stay = self.blocks.used() - self.blocks.evictable();
        let least = stay.max(self.blocks.used().min(self.budget.block_floor));
        let bytes = self.snapshots.pinned_bytes().saturating_add(bytes);
        self.budget.fits(least, bytes)
    }

    /// The bytes of a snapshot, if it is still there; a pinned one is.
    pub fn snapshot(&self, id: SnapshotId) -> Option<&[u8]> {
        self.snapshots.get(id)
    }

    /// The state of a hit was restored: its snapshot may go.
    pub fn unpin(&mut self, id: SnapshotId) {
        self.snapshots.unpin(id);
    }

    /// Gives a snapshot up before its time: a later one of the same sequence is there.
    pub fn discard(&mut self, id: SnapshotId) {
        if let Some(block) = self.snapshots.block(id) {
            self.snapshots.forget(block);
        }
    }
}
