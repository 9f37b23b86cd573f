//! The index of published blocks: from a name to the block whose rows can be used again.
//!
//! Each publication has a number that is never used again, and a published block knows the number of the block
//! before it. A hit is a name, the number before, the extra digest and the token ids, all equal; so a name that two
//! contents share, by accident or by design, costs a computation and never a wrong answer. A block whose predecessor
//! is gone cannot be found until somebody who holds both publishes the predecessor again.
//!
//! Of equal content computed twice one block is published; the other remembers it as its twin. Costs: one hash map
//! probe and the comparison of a block's token ids. Nothing is allocated after the start: token ids have their place,
//! four bytes each.

#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use super::BlockId;
use super::hash::{BlockHash, Extra, Name};

/// The number before a first block.
pub(super) const ROOT: u64 = 1;

/// What is known of the content of a block.
#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    hash: BlockHash,
    extra: Extra,
    /// Its rows are complete: `hash`, `extra` and the stored token ids describe them.
    is_recorded: bool,
    /// The rows are wrong: whoever holds the block, it is not published again.
    is_withdrawn: bool,
    /// Of its publication; 0 = not published.
    number: u64,
    /// Of the publication before it.
    before: u64,
    /// Another block with the same content, published under this number.
    twin: Option<(BlockId, u64)>,
}

/// What became of a block that was to be published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Linked {
    /// It, or its twin, can be found under this number.
    As(u64),
    /// The same, and a block with the same name was taken out of the index for it.
    Instead(u64, BlockId),
    /// Another content has its name, or its rows are wrong.
    Refused,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Index {
    map: HashMap<BlockHash, BlockId, BuildHasherDefault<Prehashed>>,
    entries: Vec<Entry>,
    tokens: Vec<u32>,
    block_tokens: usize,
    last_number: u64,
    /// How often something was taken out.
    removals: u64,
}

impl Index {
    /// For the blocks below `total`.
    pub(super) fn new(total: u32, block_tokens: u32) -> Self {
        let (total, block_tokens) = (total as usize, block_tokens as usize);
        Self {
            // With twice the room the map cleans itself in place and never grows.
            map: HashMap::with_capacity_and_hasher(2 * total, BuildHasherDefault::default()),
            entries: vec![Entry::default(); total],
            tokens: vec![0; total * block_tokens],
            block_tokens,
            last_number: ROOT,
            removals: 0,
        }
    }

    /// As long as this is the same, what was found can still be found.
    pub(super) fn removals(&self) -> u64 {
        self.removals
    }

    /// Whether its rows are complete and it is known of what.
    pub(super) fn is_recorded(&self, block: BlockId) -> bool {
        self.entry(block).is_recorded
    }

    /// The number of a block's publication, if it is published.
    pub(super) fn published(&self, block: BlockId) -> Option<u64> {
        Some(self.entry(block).number).filter(|&number| number != 0)
    }

    /// The block with the same content that is published in its stead.
    pub(super) fn twin(&self, block: BlockId) -> Option<BlockId> {
        self.live_twin(block).map(|(twin, _)| twin)
    }

    fn live_twin(&self, block: BlockId) -> Option<(BlockId, u64)> {
        let own = self.entry(block);
        own.twin
            .filter(|&(twin, number)| own.number == 0 && self.entry(twin).number == number)
    }

    /// The block under which the content of a block can be found, itself or its twin, and the number.
    pub(super) fn stand_in(&self, block: BlockId) -> Option<(BlockId, u64)> {
        let own = self.published(block).map(|number| (block, number));
        own.or_else(|| self.live_twin(block))
    }

    /// The published block of this name and content behind the publication `before`.
    pub(super) fn find(&self, before: u64, name: &Name, tokens: &[u32]) -> Option<(BlockId, u64)> {
        let &block = self.map.get(&name.hash)?;
        let own = self.entry(block);
        let is_it = own.before == before && own.extra == name.extra && self.tokens(block) == tokens;
        is_it.then_some((block, own.number))
    }

    /// The rows of a block are complete: these are its tokens.
    pub(super) fn record(&mut self, block: BlockId, name: &Name, tokens: &[u32]) {
        if self.entry(block).is_recorded {
            // Another table that shares it was first.
            return;
        }
        let at = block.0 as usize * self.block_tokens;
        self.tokens[at..at + self.block_tokens].copy_from_slice(tokens);
        self.entries[block.0 as usize] = Entry {
            hash: name.hash,
            extra: name.extra,
            is_recorded: true,
            ..Entry::default()
        };
    }

    /// Makes the content of a recorded block found behind the publication `before`.
    pub(super) fn link(&mut self, block: BlockId, before: u64) -> Linked {
        let own = *self.entry(block);
        debug_assert!(own.is_recorded, "block {} has no name", block.0);
        if own.is_withdrawn {
            return Linked::Refused;
        }
        if own.number != 0 {
            // The one before it may have been replaced by a block with the same content.
            self.entries[block.0 as usize].before = before;
            return Linked::As(own.number);
        }
        if let Some((_, number)) = self.live_twin(block) {
            return Linked::As(number);
        }
        let mut displaced = None;
        if let Some(&other) = self.map.get(&own.hash) {
            let found = *self.entry(other);
            if found.extra != own.extra || self.tokens(other) != self.tokens(block) {
                return Linked::Refused;
            }
            if found.before == before {
                self.entries[block.0 as usize].twin = Some((other, found.number));
                return Linked::As(found.number);
            }
            // What was before it is gone, so nobody finds it. Or two contents met, and somebody computes again.
            self.remove(other);
            displaced = Some(other);
        }
        self.last_number += 1;
        let number = self.last_number;
        self.map.insert(own.hash, block);
        let own = &mut self.entries[block.0 as usize];
        (own.number, own.before, own.twin) = (number, before, None);
        displaced.map_or(Linked::As(number), |other| Linked::Instead(number, other))
    }

    /// The block cannot be found any more.
    pub(super) fn remove(&mut self, block: BlockId) -> bool {
        let own = &mut self.entries[block.0 as usize];
        if own.number == 0 {
            return false;
        }
        own.number = 0;
        self.map.remove(&own.hash);
        self.removals += 1;
        true
    }

    /// The rows of a block are wrong.
    pub(super) fn withdraw(&mut self, block: BlockId) {
        self.entries[block.0 as usize].is_withdrawn = true;
    }

    /// The rows of the block are about to change or are nobody's.
    pub(super) fn forget(&mut self, block: BlockId) {
        self.remove(block);
        self.entries[block.0 as usize] = Entry::default();
    }

    fn entry(&self, block: BlockId) -> &Entry {
        &self.entries[block.0 as usize]
    }

    fn tokens(&self, block: BlockId) -> &[u32] {
        let at = block.0 as usize * self.block_tokens;
        &self.tokens[at..at + self.block_tokens]
    }

    /// The published block before a published one.
    pub(super) fn before(&self, block: BlockId) -> u64 {
        self.entry(block).before
    }

    /// Recounts.
    pub(super) fn audit(&self) {
        let published = self.entries.iter().filter(|e| e.number != 0).count();
        assert_eq!(published, self.map.len(), "published blocks");
        for (hash, &block) in &self.map {
            let own = self.entry(block);
            assert!(own.is_recorded && own.number != 0 && own.hash == *hash);
            assert!(own.number <= self.last_number);
        }
    }
}

/// Names are hashes already.
#[derive(Default)]
struct Prehashed(u64);

impl Hasher for Prehashed {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u128(&mut self, value: u128) {
        self.0 = value as u64;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: BlockId = BlockId(1);
    const B: BlockId = BlockId(2);
    const C: BlockId = BlockId(3);

    fn name(hash: u128) -> Name {
        Name {
            hash: BlockHash(hash),
            extra: [0; 32],
        }
    }

    fn index(recorded: &[(BlockId, u128, [u32; 2])]) -> Index {
        let mut index = Index::new(5, 2);
        for (block, hash, tokens) in recorded {
            index.record(*block, &name(*hash), tokens);
        }
        index
    }

    #[test]
    fn of_equal_content_the_first_is_found() {
        let mut index = index(&[(A, 1, [1, 2]), (B, 1, [1, 2])]);
        let Linked::As(number) = index.link(A, ROOT) else {
            panic!()
        };
        assert_eq!(index.link(B, ROOT), Linked::As(number));
        assert_eq!(index.find(ROOT, &name(1), &[1, 2]), Some((A, number)));
        assert_eq!((index.twin(B), index.twin(A)), (Some(A), None));
        assert_eq!(
            (index.stand_in(B), index.published(B)),
            (Some((A, number)), None)
        );
        index.audit();
        // Without the first the second takes its place, as another publication.
        index.forget(A);
        assert_eq!((index.twin(B), index.stand_in(B)), (None, None));
        let Linked::As(later) = index.link(B, ROOT) else {
            panic!()
        };
        assert_ne!(later, number);
        assert_eq!(index.find(ROOT, &name(1), &[1, 2]), Some((B, later)));
        index.audit();
    }

    #[test]
    fn a_name_that_two_contents_share_finds_neither_in_the_place_of_the_other() {
        let mut index = index(&[(A, 1, [1, 2]), (B, 1, [3, 4]), (C, 2, [5, 6])]);
        let Linked::As(number) = index.link(A, ROOT) else {
            panic!()
        };
        assert_eq!(index.find(ROOT, &name(1), &[3, 4]), None);
        assert_eq!(index.link(B, ROOT), Linked::Refused);
        index.link(C, number);
        let other = Name {
            extra: [1; 32],
            ..name(1)
        };
        assert_eq!(index.find(ROOT, &other, &[1, 2]), None);
        // The same name behind another block.
        assert_eq!(index.find(ROOT, &name(2), &[5, 6]), None);
        assert!(index.find(number, &name(2), &[5, 6]).is_some());
        // B takes the place of A: what was behind A is not behind B.
        index.remove(A);
        let Linked::As(of_b) = index.link(B, ROOT) else {
            panic!()
        };
        assert_eq!(index.find(of_b, &name(2), &[5, 6]), None);
        index.audit();
    }

    #[test]
    fn a_block_without_its_predecessor_makes_place() {
        let mut index = index(&[(A, 1, [1, 2]), (B, 1, [1, 2])]);
        index.link(A, 77);
        let Linked::Instead(number, displaced) = index.link(B, ROOT) else {
            panic!()
        };
        assert_eq!(displaced, A);
        assert_eq!(index.find(ROOT, &name(1), &[1, 2]), Some((B, number)));
        assert_eq!((index.published(A), index.removals()), (None, 1));
        // The predecessor of a published block is replaced by an equal one.
        assert_eq!(index.link(B, 88), Linked::As(number));
        assert!(index.find(88, &name(1), &[1, 2]).is_some());
    }
}
