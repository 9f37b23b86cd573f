//! Ring slots: the bounded state of a sequence, one slot for each that runs.
//!
//! FREE → OWNED → QUARANTINE → FREE. A slot is never shared: a fork copies it. All operations are O(1).

#![forbid(unsafe_code)]

use super::fence::{Behind, Fence};
use super::lists::{Links, List};
use super::{Order, SlotId};

/// How many slots are in which state; slot 0 is in none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlotCounts {
    /// Can be taken.
    pub free: u32,
    /// Out.
    pub owned: u32,
    /// Given back, named by steps that are not over.
    pub quarantined: u32,
}

#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    is_owned: bool,
    /// Of the last step that names it as far as is known.
    fence: Fence,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Slots {
    slots: Vec<Slot>,
    links: Links,
    free: List,
    behind: Behind<List>,
    order: Order,
}

impl Slots {
    /// `total` includes slot 0.
    pub(super) fn new(total: u32, order: Order) -> Self {
        let mut links = Links::new(total as usize);
        let mut free = List::default();
        for id in 1..total {
            links.push_last(&mut free, id);
        }
        Self {
            slots: vec![Slot::default(); total as usize],
            links,
            free,
            behind: Behind::new(),
            order,
        }
    }

    pub(super) fn counts(&self) -> SlotCounts {
        let total = self.slots.len().saturating_sub(1) as u32;
        let quarantined = self.behind.iter().map(|(_, list)| list.len()).sum();
        SlotCounts {
            free: self.free.len(),
            owned: total - self.free.len() - quarantined,
            quarantined,
        }
    }

    pub(super) fn free(&self) -> u32 {
        self.free.len()
    }

    pub(super) fn take(&mut self) -> Option<SlotId> {
        let id = self.order.pop(&mut self.links, &mut self.free)?;
        self.slots[id as usize] = Slot {
            is_owned: true,
            fence: Fence(0),
        };
        Some(SlotId(id))
    }

    /// A step up to `fence` reads the slot, whoever owns it then.
    pub(super) fn hold(&mut self, slot: SlotId, fence: Fence) {
        let own = &mut self.slots[slot.0 as usize];
        assert!(own.is_owned, "slot {} is held and not out", slot.0);
        own.fence = own.fence.max(fence);
    }

    /// Takes a slot back, to be used again after `fence`.
    pub(super) fn give(&mut self, slot: SlotId, fence: Fence) {
        let own = &mut self.slots[slot.0 as usize];
        assert!(own.is_owned, "slot {} was given back twice", slot.0);
        own.is_owned = false;
        let fence = own.fence.max(fence);
        if self.behind.has_passed(fence) {
            self.links.push_first(&mut self.free, slot.0);
        } else {
            self.links.push_last(self.behind.at(fence), slot.0);
        }
    }

    pub(super) fn pass(&mut self, fence: Fence) {
        while let Some(list) = self.behind.pass(fence) {
            self.links.append(&mut self.free, list);
        }
    }

    pub(super) fn break_fences(&mut self) {
        self.behind.break_fences();
    }

    /// Recounts.
    pub(super) fn audit(&self) {
        let listed = self.links.iter(self.free).count()
            + self
                .behind
                .iter()
                .map(|(_, list)| self.links.iter(*list).count())
                .sum::<usize>();
        let owned = self.slots.iter().filter(|s| s.is_owned).count();
        assert_eq!(listed + owned + 1, self.slots.len(), "slots are lost");
        assert_eq!(owned, self.counts().owned as usize);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slots(total: u32) -> Slots {
        Slots::new(total, Order::Recent)
    }

    #[test]
    fn slot_zero_is_never_given_out() {
        let mut slots = slots(3);
        let taken = [slots.take(), slots.take(), slots.take()];
        assert_eq!(taken, [Some(SlotId(1)), Some(SlotId(2)), None]);
        slots.audit();
    }

    #[test]
    fn a_slot_waits_for_its_fence() {
        let mut slots = slots(2);
        let slot = slots.take().unwrap();
        slots.give(slot, Fence(3));
        assert_eq!((slots.take(), slots.counts().quarantined), (None, 1));
        slots.pass(Fence(2));
        assert_eq!(slots.take(), None);
        slots.pass(Fence(3));
        assert_eq!(slots.take(), Some(slot));
        slots.give(slot, Fence(3));
        assert_eq!(slots.counts().free, 1, "its fence has passed");
    }

    #[test]
    fn the_source_of_a_copy_waits_for_the_copy() {
        let mut slots = slots(2);
        let slot = slots.take().unwrap();
        slots.hold(slot, Fence(5));
        slots.give(slot, Fence(3));
        slots.pass(Fence(4));
        assert_eq!(slots.take(), None);
        slots.pass(Fence(5));
        assert_eq!(slots.take(), Some(slot));
        slots.give(slot, Fence(0));
        assert_eq!(slots.free(), 1);
    }

    #[test]
    #[should_panic(expected = "given back twice")]
    fn a_slot_given_back_twice_is_a_bug() {
        let mut slots = slots(3);
        let slot = slots.take().unwrap();
        slots.give(slot, Fence(0));
        slots.give(slot, Fence(0));
    }
}
