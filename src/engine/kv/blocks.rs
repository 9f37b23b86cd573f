//! Blocks: who holds them, which rest in the cache, which wait for a fence.
//!
//! FREE → OWNED (held once or more) → CACHED (held by nobody, its content can be found) → OWNED again or evicted →
//! QUARANTINE → FREE. Only numbers live here; the pools behind them belong to the model. Every operation is O(1),
//! a fence that passes costs O(1) for all that waited, and nothing is allocated after the start.
//!
//! Cached blocks are ordered by last use. Tables give back their last block first, so a chain of blocks always lies
//! in the order tail to head and loses its tail before its head. A fence keeps that order: a block waits for the
//! latest fence of all who held it, so a head never comes out before its tail.

#![forbid(unsafe_code)]

use super::fence::{Behind, Fence};
use super::lists::{Links, List};
use super::{BlockId, Order};

/// How many blocks are in which state; block 0 is in none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockCounts {
    /// Hold nothing.
    pub free: u32,
    /// Held, each counted once.
    pub owned: u32,
    /// Held by nobody, kept for who finds them.
    pub cached: u32,
    /// Of these, named by steps that are not over: they can be found, and not evicted to any use.
    pub cached_behind_fences: u32,
    /// Empty, named by steps that are not over.
    pub quarantined: u32,
}

impl BlockCounts {
    /// All blocks but block 0.
    pub fn total(&self) -> u32 {
        self.free + self.owned + self.cached + self.quarantined
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Free,
    Owned,
    Cached,
    Quarantined,
}

#[derive(Clone, Copy, Debug)]
struct Block {
    state: State,
    holders: u32,
    /// Of the last step that names it as far as is known.
    fence: Fence,
    /// When it was last used, in the caller's clock.
    used: u64,
}

/// What waits for one fence.
#[derive(Clone, Copy, Debug, Default)]
struct Waiting {
    cached: List,
    empty: List,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Blocks {
    blocks: Vec<Block>,
    links: Links,
    free: List,
    /// Can be evicted; the one that was not used for longest is first.
    cached: List,
    behind: Behind<Waiting>,
    owned: u32,
    order: Order,
}

impl Blocks {
    /// `total` includes block 0.
    pub(super) fn new(total: u32, order: Order) -> Self {
        let mut links = Links::new(total as usize);
        let mut free = List::default();
        for id in 1..total {
            links.push_last(&mut free, id);
        }
        let block = Block {
            state: State::Free,
            holders: 0,
            fence: Fence(0),
            used: 0,
        };
        Self {
            blocks: vec![block; total as usize],
            links,
            free,
            cached: List::default(),
            behind: Behind::new(),
            owned: 0,
            order,
        }
    }

    pub(super) fn counts(&self) -> BlockCounts {
        let waiting = |of: fn(&Waiting) -> List| -> u32 {
            self.behind.iter().map(|(_, w)| of(w).len()).sum()
        };
        let cached_behind_fences = waiting(|w| w.cached);
        BlockCounts {
            free: self.free.len(),
            owned: self.owned,
            cached: self.cached.len() + cached_behind_fences,
            cached_behind_fences,
            quarantined: waiting(|w| w.empty),
        }
    }

    pub(super) fn free(&self) -> u32 {
        self.free.len()
    }

    /// Cached, and of use at once when evicted.
    pub(super) fn evictable(&self) -> u32 {
        self.cached.len()
    }

    /// Not free.
    pub(super) fn used(&self) -> u32 {
        self.blocks.len().saturating_sub(1) as u32 - self.free.len()
    }

    pub(super) fn owned(&self) -> u32 {
        self.owned
    }

    pub(super) fn holders(&self, block: BlockId) -> u32 {
        self.blocks[block.0 as usize].holders
    }

    /// Of the last step that names it as far as is known.
    pub(super) fn fence(&self, block: BlockId) -> Fence {
        self.blocks[block.0 as usize].fence
    }

    /// Nobody holds it, and it counts among [`Self::evictable`].
    pub(super) fn is_evictable(&self, block: BlockId) -> bool {
        let own = &self.blocks[block.0 as usize];
        own.state == State::Cached && self.behind.has_passed(own.fence)
    }

    /// Takes a free block.
    pub(super) fn take(&mut self) -> Option<BlockId> {
        let id = self.order.pop(&mut self.links, &mut self.free)?;
        let own = &mut self.blocks[id as usize];
        debug_assert_eq!(own.state, State::Free);
        own.state = State::Owned;
        own.holders = 1;
        own.fence = Fence(0);
        self.owned += 1;
        Some(BlockId(id))
    }

    /// One more holds a block that is held or cached.
    pub(super) fn share(&mut self, block: BlockId) {
        match self.blocks[block.0 as usize].state {
            State::Owned => {}
            State::Cached => {
                self.unlist_cached(block);
                self.blocks[block.0 as usize].state = State::Owned;
                self.owned += 1;
            }
            State::Free | State::Quarantined => {
                panic!("block {} is shared and holds nothing", block.0)
            }
        }
        self.blocks[block.0 as usize].holders += 1;
    }

    /// One less holds the block, whose steps are over after `fence`. Without holders it stays cached where
    /// `is_kept`, otherwise it is on its way to the free ones: then the answer is `true`.
    pub(super) fn give(&mut self, block: BlockId, fence: Fence, is_kept: bool, now: u64) -> bool {
        let own = &mut self.blocks[block.0 as usize];
        assert!(own.holders > 0, "block {} was given back twice", block.0);
        own.fence = own.fence.max(fence);
        own.used = now;
        own.holders -= 1;
        if own.holders > 0 {
            return false;
        }
        self.owned -= 1;
        if is_kept {
            own.state = State::Cached;
            self.list_cached(block);
        } else {
            self.empty(block);
        }
        !is_kept
    }

    /// A block that is cached or held is used as if it had been held until `fence`.
    pub(super) fn touch(&mut self, block: BlockId, fence: Fence, now: u64) {
        let is_cached = self.blocks[block.0 as usize].state == State::Cached;
        if is_cached {
            self.unlist_cached(block);
        }
        let own = &mut self.blocks[block.0 as usize];
        own.fence = own.fence.max(fence);
        own.used = now;
        if is_cached {
            self.list_cached(block);
        }
    }

    /// The evictable block that was not used for longest, and when it was.
    pub(super) fn oldest(&self) -> Option<(BlockId, u64)> {
        let id = self.cached.first()?;
        Some((BlockId(id), self.blocks[id as usize].used))
    }

    /// Nobody can find the block any more: if it is cached it becomes free, after its fence.
    pub(super) fn evict(&mut self, block: BlockId) -> bool {
        let is_cached = self.blocks[block.0 as usize].state == State::Cached;
        if is_cached {
            self.unlist_cached(block);
            self.empty(block);
        }
        is_cached
    }

    pub(super) fn pass(&mut self, fence: Fence) {
        while let Some(waited) = self.behind.pass(fence) {
            self.links.append(&mut self.cached, waited.cached);
            for id in self.links.iter(waited.empty) {
                self.blocks[id as usize].state = State::Free;
            }
            self.links.append(&mut self.free, waited.empty);
        }
    }

    pub(super) fn break_fences(&mut self) {
        self.behind.break_fences();
    }

    fn empty(&mut self, block: BlockId) {
        let own = &mut self.blocks[block.0 as usize];
        if self.behind.has_passed(own.fence) {
            own.state = State::Free;
            self.links.push_first(&mut self.free, block.0);
        } else {
            own.state = State::Quarantined;
            let waiting = self.behind.at(own.fence);
            self.links.push_last(&mut waiting.empty, block.0);
        }
    }

    fn list_cached(&mut self, block: BlockId) {
        let fence = self.blocks[block.0 as usize].fence;
        if self.behind.has_passed(fence) {
            self.links.push_last(&mut self.cached, block.0);
        } else {
            let waiting = self.behind.at(fence);
            self.links.push_last(&mut waiting.cached, block.0);
        }
    }

    fn unlist_cached(&mut self, block: BlockId) {
        let fence = self.blocks[block.0 as usize].fence;
        if self.behind.has_passed(fence) {
            self.links.remove(&mut self.cached, block.0);
        } else {
            let waiting = self.behind.at(fence);
            self.links.remove(&mut waiting.cached, block.0);
        }
    }

    /// Cached blocks in the order in which they would go.
    pub(super) fn cached_in_order(&self) -> impl Iterator<Item = BlockId> {
        let behind = self.behind.iter().map(|(_, w)| w.cached);
        std::iter::once(self.cached)
            .chain(behind)
            .flat_map(|list| self.links.iter(list))
            .map(BlockId)
    }

    /// Recounts everything.
    pub(super) fn audit(&self) {
        let count = |state| self.blocks[1..].iter().filter(|b| b.state == state).count();
        let counts = self.counts();
        assert_eq!(count(State::Free), counts.free as usize, "free");
        assert_eq!(count(State::Owned), counts.owned as usize, "owned");
        assert_eq!(count(State::Cached), counts.cached as usize, "cached");
        let quarantined = counts.quarantined as usize;
        assert_eq!(count(State::Quarantined), quarantined, "quarantined");
        assert_eq!(counts.total() as usize + 1, self.blocks.len());
        assert_eq!(self.links.iter(self.free).count(), counts.free as usize);
        assert_eq!(self.cached_in_order().count(), counts.cached as usize);
        for own in &self.blocks {
            assert_eq!(own.holders > 0, own.state == State::Owned);
        }
        for (fence, waiting) in self.behind.iter() {
            let both = [waiting.cached, waiting.empty];
            for id in both.into_iter().flat_map(|list| self.links.iter(list)) {
                assert_eq!(self.blocks[id as usize].fence, *fence, "block {id}");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blocks(total: u32) -> Blocks {
        Blocks::new(total, Order::Recent)
    }

    #[test]
    fn block_zero_is_never_given_out() {
        let mut blocks = blocks(4);
        let taken: Vec<_> = std::iter::from_fn(|| blocks.take()).collect();
        assert_eq!(taken, [BlockId(1), BlockId(2), BlockId(3)]);
        blocks.audit();
        assert_eq!((blocks.free(), blocks.owned(), blocks.used()), (0, 3, 3));
    }

    #[test]
    fn a_block_is_free_when_the_last_holder_gives_it_back() {
        let mut blocks = blocks(2);
        let block = blocks.take().unwrap();
        blocks.share(block);
        assert_eq!(blocks.holders(block), 2);
        assert!(!blocks.give(block, Fence(0), false, 1));
        assert_eq!(blocks.take(), None);
        assert!(blocks.give(block, Fence(0), false, 2));
        assert_eq!(blocks.take(), Some(block));
    }

    #[test]
    fn the_latest_fence_of_all_holders_counts() {
        let mut blocks = blocks(2);
        let block = blocks.take().unwrap();
        blocks.share(block);
        blocks.give(block, Fence(7), false, 1);
        blocks.give(block, Fence(5), false, 2);
        assert_eq!(blocks.counts().quarantined, 1);
        blocks.pass(Fence(6));
        assert_eq!(blocks.take(), None);
        blocks.pass(Fence(7));
        assert_eq!(blocks.take(), Some(block));
        blocks.give(block, Fence(7), false, 3);
        assert_eq!(blocks.free(), 1, "the next owner has a fence of its own");
        blocks.audit();
    }

    #[test]
    fn cached_blocks_can_be_shared_before_their_fence_and_evicted_after_it() {
        let mut blocks = blocks(3);
        let block = blocks.take().unwrap();
        blocks.give(block, Fence(2), true, 1);
        assert_eq!((blocks.evictable(), blocks.oldest()), (0, None));
        assert_eq!(blocks.counts().cached_behind_fences, 1);
        blocks.share(block);
        assert_eq!(blocks.counts().cached, 0);
        blocks.give(block, Fence(1), true, 2);
        blocks.audit();
        blocks.pass(Fence(1));
        assert_eq!(blocks.evictable(), 0, "the first holder's step is not over");
        blocks.pass(Fence(2));
        assert_eq!(blocks.oldest(), Some((block, 2)));
        assert!(blocks.is_evictable(block));
        assert!(blocks.evict(block));
        assert_eq!(blocks.free(), 2);
        assert!(!blocks.evict(block));
        blocks.audit();
    }

    #[test]
    fn a_block_evicted_before_its_fence_is_quarantined() {
        let mut blocks = blocks(2);
        let block = blocks.take().unwrap();
        blocks.give(block, Fence(2), true, 1);
        assert!(blocks.evict(block));
        assert_eq!((blocks.take(), blocks.counts().quarantined), (None, 1));
        blocks.pass(Fence(2));
        assert_eq!(blocks.take(), Some(block));
    }

    #[test]
    fn the_least_recently_used_goes_first() {
        let mut blocks = blocks(4);
        let [a, b, c] = [(); 3].map(|()| blocks.take().unwrap());
        for (block, now) in [(c, 1), (a, 2), (b, 3)] {
            blocks.give(block, Fence(0), true, now);
        }
        blocks.touch(c, Fence(0), 4);
        let order: Vec<_> = blocks.cached_in_order().collect();
        assert_eq!(order, [a, b, c]);
        blocks.touch(a, Fence(9), 5);
        let order: Vec<_> = blocks.cached_in_order().collect();
        assert_eq!(order, [b, c, a]);
        assert_eq!(blocks.evictable(), 2);
        blocks.audit();
    }

    #[test]
    #[should_panic(expected = "given back twice")]
    fn a_block_given_back_twice_is_a_bug() {
        let mut blocks = blocks(3);
        let block = blocks.take().unwrap();
        blocks.give(block, Fence(0), false, 0);
        blocks.give(block, Fence(0), false, 0);
    }

    #[test]
    #[should_panic(expected = "holds nothing")]
    fn a_free_block_cannot_be_shared() {
        blocks(3).share(BlockId(1));
    }
}
