//! Snapshots: the bounded state of a sequence at the end of a published block.
//!
//! Opaque bytes that belong to one block and are found through it. The one that was not used for longest goes first;
//! one that is pinned stays. Every operation is O(1) but for the bytes themselves, which come from the caller and are
//! not copied.

#![forbid(unsafe_code)]

use super::BlockId;
use super::lists::{Links, List};

/// A snapshot that is or was there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotId {
    index: u32,
    number: u64,
}

#[derive(Debug, Default)]
struct Held {
    bytes: Vec<u8>,
    /// `None`: cannot be found any more and goes with its last pin.
    block: Option<BlockId>,
    number: u64,
    pins: u32,
    /// When it was used, and how often.
    used: u64,
    uses: u32,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Snapshots {
    /// Index 0 is not used.
    held: Vec<Held>,
    links: Links,
    /// Not pinned; the one that was not used for longest is first.
    idle: List,
    vacant: Vec<u32>,
    /// Of each block; 0 = none.
    of_block: Vec<u32>,
    bytes: u64,
    pinned_bytes: u64,
    last_number: u64,
}

impl Snapshots {
    /// For the blocks below `total`.
    pub(super) fn new(total: u32) -> Self {
        Self {
            held: vec![Held::default()],
            links: Links::new(1),
            idle: List::default(),
            vacant: Vec::new(),
            of_block: vec![0; total as usize],
            bytes: 0,
            pinned_bytes: 0,
            last_number: 0,
        }
    }

    /// How many there are, findable or pinned.
    pub(super) fn len(&self) -> u32 {
        (self.held.len() - 1 - self.vacant.len()) as u32
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn pinned_bytes(&self) -> u64 {
        self.pinned_bytes
    }

    /// [`Self::pinned_bytes`] once `id` is pinned too.
    pub(super) fn bytes_pinned_with(&self, id: Option<SnapshotId>) -> u64 {
        let idle = id.and_then(|id| self.held(id)).filter(|h| h.pins == 0);
        self.pinned_bytes + idle.map_or(0, |held| held.bytes.len() as u64)
    }

    pub(super) fn at(&self, block: BlockId) -> Option<SnapshotId> {
        let index = self.of_block[block.0 as usize];
        (index != 0).then(|| SnapshotId {
            index,
            number: self.held[index as usize].number,
        })
    }

    fn held(&self, id: SnapshotId) -> Option<&Held> {
        self.held
            .get(id.index as usize)
            .filter(|held| held.number == id.number)
    }

    /// The bytes, if they are still there.
    pub(super) fn get(&self, id: SnapshotId) -> Option<&[u8]> {
        self.held(id).map(|held| held.bytes.as_slice())
    }

    /// Where it is found.
    pub(super) fn block(&self, id: SnapshotId) -> Option<BlockId> {
        self.held(id)?.block
    }

    /// Adds one for a block that has none.
    pub(super) fn insert(&mut self, block: BlockId, bytes: Vec<u8>, now: u64) -> SnapshotId {
        debug_assert_eq!(self.of_block[block.0 as usize], 0);
        let index = self.vacant.pop().unwrap_or_else(|| {
            self.held.push(Held::default());
            self.links.grow();
            self.held.len() as u32 - 1
        });
        self.last_number += 1;
        self.bytes += bytes.len() as u64;
        self.held[index as usize] = Held {
            bytes,
            block: Some(block),
            number: self.last_number,
            pins: 0,
            used: now,
            uses: 0,
        };
        self.of_block[block.0 as usize] = index;
        self.links.push_last(&mut self.idle, index);
        SnapshotId {
            index,
            number: self.last_number,
        }
    }

    /// Keeps it until it is unpinned as often; it counts as used.
    pub(super) fn pin(&mut self, id: SnapshotId, now: u64) -> bool {
        if self.held(id).is_none() {
            return false;
        }
        let held = &mut self.held[id.index as usize];
        held.used = now;
        held.uses += 1;
        held.pins += 1;
        if held.pins == 1 {
            self.pinned_bytes += held.bytes.len() as u64;
            self.links.remove(&mut self.idle, id.index);
        }
        true
    }

    /// It counts as used now, by nobody in particular.
    pub(super) fn touch(&mut self, id: SnapshotId, now: u64) {
        if self.held(id).is_some_and(|held| held.pins == 0) {
            self.held[id.index as usize].used = now;
            self.links.remove(&mut self.idle, id.index);
            self.links.push_last(&mut self.idle, id.index);
        }
    }

    /// Goes first from now on, if it was used once at most.
    pub(super) fn demote(&mut self, id: SnapshotId) {
        if self.held(id).is_some_and(|h| h.pins == 0 && h.uses <= 1) {
            self.held[id.index as usize].used = 0;
            self.links.remove(&mut self.idle, id.index);
            self.links.push_first(&mut self.idle, id.index);
        }
    }

    pub(super) fn unpin(&mut self, id: SnapshotId) {
        let pins = self.held(id).map_or(0, |held| held.pins);
        assert!(pins > 0, "a snapshot was unpinned twice");
        let held = &mut self.held[id.index as usize];
        held.pins -= 1;
        if held.pins > 0 {
            return;
        }
        self.pinned_bytes -= held.bytes.len() as u64;
        let is_findable = held.block.is_some();
        self.links.push_last(&mut self.idle, id.index);
        if !is_findable {
            self.drop_idle(id.index);
        }
    }

    /// The one that goes first, and when it was used.
    pub(super) fn oldest(&self) -> Option<(BlockId, u64)> {
        let held = &self.held[self.idle.first()? as usize];
        held.block.map(|block| (block, held.used))
    }

    /// The snapshot of a block cannot be found any more. Answers whether there was one.
    pub(super) fn forget(&mut self, block: BlockId) -> bool {
        let index = std::mem::take(&mut self.of_block[block.0 as usize]);
        if index == 0 {
            return false;
        }
        let held = &mut self.held[index as usize];
        held.block = None;
        if held.pins == 0 {
            self.drop_idle(index);
        }
        true
    }

    fn drop_idle(&mut self, index: u32) {
        self.links.remove(&mut self.idle, index);
        let held = std::mem::take(&mut self.held[index as usize]);
        self.bytes -= held.bytes.len() as u64;
        self.vacant.push(index);
    }

    /// Recounts.
    pub(super) fn audit(&self) {
        let live = || self.held[1..].iter().filter(|held| held.number != 0);
        let size = |held: &Held| held.bytes.len() as u64;
        assert_eq!(live().count(), self.len() as usize);
        assert_eq!(live().map(size).sum::<u64>(), self.bytes);
        let pinned = || live().filter(|held| held.pins > 0);
        assert_eq!(pinned().map(size).sum::<u64>(), self.pinned_bytes);
        let idle = live().count() - pinned().count();
        assert_eq!(self.links.iter(self.idle).count(), idle);
        let with_block = live().filter(|held| held.block.is_some()).count();
        let named = self.of_block.iter().filter(|&&index| index != 0).count();
        assert_eq!(with_block, named);
        for held in live().filter(|held| held.pins == 0) {
            assert!(held.block.is_some(), "a snapshot that nobody can use");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pinned_snapshot_outlives_its_block() {
        let mut snapshots = Snapshots::new(3);
        let id = snapshots.insert(BlockId(1), vec![7; 3], 1);
        assert_eq!(snapshots.at(BlockId(1)), Some(id));
        assert!(snapshots.pin(id, 2) && snapshots.pin(id, 2));
        assert_eq!((snapshots.bytes(), snapshots.pinned_bytes()), (3, 3));
        assert!(snapshots.forget(BlockId(1)));
        assert_eq!(
            (snapshots.at(BlockId(1)), snapshots.block(id)),
            (None, None)
        );
        snapshots.unpin(id);
        assert_eq!(snapshots.get(id), Some(&[7; 3][..]));
        snapshots.audit();
        snapshots.unpin(id);
        assert_eq!((snapshots.get(id), snapshots.len()), (None, 0));
        snapshots.audit();
    }

    #[test]
    fn an_id_of_a_former_snapshot_finds_nothing() {
        let mut snapshots = Snapshots::new(3);
        let id = snapshots.insert(BlockId(1), vec![1], 1);
        snapshots.forget(BlockId(1));
        let next = snapshots.insert(BlockId(2), vec![2], 2);
        assert_ne!(id, next);
        assert_eq!(snapshots.get(id), None);
        assert!(!snapshots.pin(id, 3));
        assert!(!snapshots.forget(BlockId(1)));
    }

    #[test]
    fn the_least_recently_used_goes_first() {
        let mut snapshots = Snapshots::new(4);
        let a = snapshots.insert(BlockId(1), vec![1], 1);
        snapshots.insert(BlockId(2), vec![2], 2);
        assert_eq!(snapshots.oldest(), Some((BlockId(1), 1)));
        snapshots.pin(a, 3);
        assert_eq!(snapshots.oldest(), Some((BlockId(2), 2)));
        snapshots.unpin(a);
        assert_eq!(snapshots.oldest(), Some((BlockId(2), 2)));
        snapshots.forget(BlockId(2));
        assert_eq!(snapshots.oldest(), Some((BlockId(1), 3)));
        snapshots.audit();
    }

    #[test]
    fn what_one_user_left_behind_goes_first_and_what_two_used_does_not() {
        let mut snapshots = Snapshots::new(4);
        let [a, b, c] = [1, 2, 3].map(|n| snapshots.insert(BlockId(n), vec![0], n.into()));
        for id in [b, c, c] {
            snapshots.pin(id, 4);
            snapshots.unpin(id);
        }
        snapshots.demote(c);
        assert_eq!(snapshots.oldest(), Some((BlockId(1), 1)));
        snapshots.demote(b);
        assert_eq!(snapshots.oldest(), Some((BlockId(2), 0)));
        snapshots.touch(b, 5);
        assert_eq!(snapshots.oldest(), Some((BlockId(1), 1)));
        snapshots.pin(a, 6);
        snapshots.demote(a);
        snapshots.touch(a, 7);
        assert_eq!(snapshots.oldest(), Some((BlockId(3), 4)));
        snapshots.audit();
    }

    #[test]
    #[should_panic(expected = "unpinned twice")]
    fn unpinning_twice_is_a_bug() {
        let mut snapshots = Snapshots::new(2);
        let id = snapshots.insert(BlockId(1), vec![1], 1);
        snapshots.pin(id, 1);
        snapshots.unpin(id);
        snapshots.unpin(id);
    }
}
