//! A pattern that is looked for in a stream (Knuth, Morris and Pratt): overlaps count, and each item of the stream
//! is looked at once.

#![forbid(unsafe_code)]

/// See the module.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Pattern<T> {
    items: Vec<T>,
    /// For each length of a matched beginning, the next shorter one that is also its end.
    shorter: Vec<usize>,
}

impl<T: Copy + PartialEq> Pattern<T> {
    pub(super) fn new(items: Vec<T>) -> Self {
        let mut pattern = Self {
            shorter: vec![0; items.len() + 1],
            items,
        };
        for at in 1..pattern.items.len() {
            let seen = pattern.advance(pattern.shorter[at], pattern.items[at]);
            pattern.shorter[at + 1] = seen;
        }
        pattern
    }

    pub(super) fn items(&self) -> &[T] {
        &self.items
    }

    /// How many of its items end the stream once `item` follows `seen` of them.
    pub(super) fn advance(&self, mut seen: usize, item: T) -> usize {
        loop {
            if self.items.get(seen) == Some(&item) {
                return seen + 1;
            }
            if seen == 0 {
                return 0;
            }
            seen = self.shorter[seen];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn it_knows_the_longest_beginning_that_ends_the_stream(
            items in prop::collection::vec(0u8..3, 1..8),
            stream in prop::collection::vec(0u8..3, 0..60),
        ) {
            let pattern = Pattern::new(items.clone());
            let mut seen = 0;
            for (at, item) in stream.iter().enumerate() {
                seen = pattern.advance(seen, *item);
                let so_far = &stream[..=at];
                let longest = (0..=items.len()).rev().find(|n| so_far.ends_with(&items[..*n]));
                prop_assert_eq!(Some(seen), longest);
            }
        }
    }
}
