//! The guard against outputs that say the same for ever.
//!
//! For each period up to a limit it knows how long the output has been repeating itself with that period: one
//! comparison a period and token.

#![forbid(unsafe_code)]

use crate::engine::request::RepeatGuard;

/// See the module.
#[derive(Clone, Debug)]
pub(super) struct Repeats {
    count: usize,
    /// By period, less one: how many of the newest tokens equal the one a period before.
    runs: Vec<usize>,
}

impl Repeats {
    pub(super) fn new(guard: RepeatGuard) -> Self {
        Self {
            count: guard.count as usize,
            runs: vec![0; guard.pattern as usize],
        }
    }

    /// Takes the token behind the output `before`; answers whether both end with some pattern `count` times in a row.
    pub(super) fn accept(&mut self, before: &[u32], token: u32) -> bool {
        let mut is_loop = false;
        for (at, run) in self.runs.iter_mut().enumerate() {
            let period = at + 1;
            let is_same = before.len().checked_sub(period).map(|at| before[at]) == Some(token);
            *run = if is_same { *run + 1 } else { 0 };
            is_loop |= *run >= period.saturating_mul(self.count - 1);
        }
        is_loop
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn it_sees_a_loop_with_its_first_full_round(
            output in prop::collection::vec(0u32..3, 1..60),
            pattern in 1u32..6,
            count in 2u32..5,
        ) {
            let mut repeats = Repeats::new(RepeatGuard { pattern, count });
            for end in 1..=output.len() {
                let so_far = &output[..end];
                let expected = (1..=pattern as usize).any(|period| {
                    let whole = period * count as usize;
                    whole <= end && {
                        let tail = &so_far[end - whole..];
                        tail.chunks(period).all(|round| round == &tail[..period])
                    }
                });
                let is_loop = repeats.accept(&so_far[..end - 1], so_far[end - 1]);
                prop_assert_eq!(is_loop, expected, "{:?}", so_far);
            }
        }
    }
}
