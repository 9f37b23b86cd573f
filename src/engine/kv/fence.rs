//! Fences: what a launched step names is used again only after that step is over.
//!
//! A [`Fence`] is the number of a step. What is given back goes behind the fence of the last step that names it and
//! comes out when the engine says that the fence has passed. Where steps are over before anything is given back (a
//! CPU without overlap) every fence has passed and nothing ever waits. There are as many open fences as steps in
//! flight, a handful, so finding one is a scan of that many.

#![forbid(unsafe_code)]

use std::collections::VecDeque;

/// The number of a step; 0 is before all steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fence(pub u64);

/// What waits, a `T` for each fence that has not passed.
#[derive(Debug)]
pub(super) struct Behind<T> {
    passed: Fence,
    open: VecDeque<(Fence, T)>,
    is_broken: bool,
}

impl<T: Default> Behind<T> {
    pub(super) fn new() -> Self {
        Self {
            passed: Fence(0),
            open: VecDeque::with_capacity(8),
            is_broken: false,
        }
    }

    /// Lets everything pass from now on: what a test must notice.
    pub(super) fn break_fences(&mut self) {
        self.is_broken = true;
    }

    pub(super) fn has_passed(&self, fence: Fence) -> bool {
        self.is_broken || fence <= self.passed
    }

    /// What waits for `fence`, which has not passed.
    pub(super) fn at(&mut self, fence: Fence) -> &mut T {
        let after = self.open.iter().rev().take_while(|(f, _)| *f > fence);
        let at = self.open.len() - after.count();
        if at > 0 && self.open[at - 1].0 == fence {
            return &mut self.open[at - 1].1;
        }
        self.open.insert(at, (fence, T::default()));
        &mut self.open[at].1
    }

    /// The fence and all before it have passed: hands out what waited, oldest first, one a call.
    pub(super) fn pass(&mut self, fence: Fence) -> Option<T> {
        self.passed = self.passed.max(fence);
        let is_due = self.open.front().is_some_and(|(f, _)| *f <= fence);
        let (_, waited) = self.open.pop_front_if(|_| is_due)?;
        Some(waited)
    }

    /// All that waits, oldest first.
    pub(super) fn iter(&self) -> impl Iterator<Item = &(Fence, T)> {
        self.open.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_comes_out_in_the_order_of_the_fences() {
        let mut behind = Behind::<Vec<u32>>::new();
        behind.at(Fence(4)).push(1);
        behind.at(Fence(2)).push(2);
        behind.at(Fence(3)).push(3);
        behind.at(Fence(2)).push(4);
        assert!(!behind.has_passed(Fence(2)));
        assert_eq!(behind.pass(Fence(1)), None);
        assert_eq!(behind.pass(Fence(3)), Some(vec![2, 4]));
        assert_eq!(behind.pass(Fence(3)), Some(vec![3]));
        assert_eq!(behind.pass(Fence(3)), None);
        assert!(behind.has_passed(Fence(3)) && !behind.has_passed(Fence(4)));
        assert_eq!(behind.pass(Fence(2)), None, "fences do not come back");
        assert!(behind.has_passed(Fence(3)));
    }
}
