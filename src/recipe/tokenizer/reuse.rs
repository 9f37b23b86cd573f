//! Ids of texts that were encoded before: the tools and the history that every turn of a conversation repeats.
//!
//! A prompt is encoded region by region, from one special token to the next, and no region knows another, so the
//! ids of a region depend on its text alone. Entries are found by hash and compared byte by byte, so a wrong one is
//! never used. Memory is bounded: texts are kept in two generations, and when the younger one is full the older one
//! is dropped, except for what was asked for since. Any number of threads; a lock is held for a lookup, never while
//! encoding or copying.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

/// Shorter texts are encoded in the time a lookup takes.
const SHORTEST: usize = 64;

/// Threads that prepare at the same time seldom want the same part.
const PARTS: usize = 8;

/// What an entry takes besides its text and ids, roughly.
const OVERHEAD: usize = 96;

/// Encoded texts.
pub(in crate::recipe) struct Reuse {
    hasher: ahash::RandomState,
    parts: [Mutex<Part>; PARTS],
    /// Bytes of one generation of one part.
    limit: usize,
}

#[derive(Default)]
struct Part {
    young: HashMap<u64, Arc<Encoded>, ahash::RandomState>,
    old: HashMap<u64, Arc<Encoded>, ahash::RandomState>,
    /// Bytes of the young ones, and of the old.
    bytes: (usize, usize),
}

struct Encoded {
    text: Box<str>,
    ids: Box<[u32]>,
}

impl Encoded {
    fn bytes(&self) -> usize {
        self.text.len() + size_of_val(&*self.ids) + OVERHEAD
    }
}

impl std::fmt::Debug for Reuse {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reuse").finish_non_exhaustive()
    }
}

impl Reuse {
    /// Keeps about `bytes` at most.
    pub(in crate::recipe) fn new(bytes: u64) -> Self {
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        Self {
            hasher: ahash::RandomState::new(),
            parts: std::array::from_fn(|_| Mutex::default()),
            limit: bytes / PARTS / 2,
        }
    }

    /// Appends the ids of `text`: those kept, or else those that `encode` appends, which are kept.
    pub(super) fn encode<E>(
        &self,
        text: &str,
        ids: &mut Vec<u32>,
        encode: impl FnOnce(&mut Vec<u32>) -> Result<(), E>,
    ) -> Result<(), E> {
        if text.len() < SHORTEST {
            return encode(ids);
        }
        let hash = self.hasher.hash_one(text);
        // The low bits choose the place in the tables.
        let part = &self.parts[(hash >> 60) as usize % PARTS];
        let kept = part.lock().find(hash, self.limit);
        if let Some(kept) = kept.filter(|kept| *kept.text == *text) {
            ids.extend_from_slice(&kept.ids);
            return Ok(());
        }
        let before = ids.len();
        encode(ids)?;
        let new = Encoded {
            text: text.into(),
            ids: ids[before..].into(),
        };
        if new.bytes() <= self.limit {
            part.lock().keep(hash, Arc::new(new), self.limit);
        }
        Ok(())
    }

    /// Bytes of everything kept.
    #[cfg(test)]
    fn bytes(&self) -> usize {
        let parts = self.parts.iter().map(|part| part.lock().bytes);
        parts.map(|(young, old)| young + old).sum()
    }
}

impl Part {
    /// The entry of `hash`, which is young again.
    fn find(&mut self, hash: u64, limit: usize) -> Option<Arc<Encoded>> {
        if let Some(kept) = self.young.get(&hash) {
            return Some(Arc::clone(kept));
        }
        let kept = self.old.remove(&hash)?;
        self.bytes.1 -= kept.bytes();
        self.keep(hash, Arc::clone(&kept), limit);
        Some(kept)
    }

    fn keep(&mut self, hash: u64, new: Arc<Encoded>, limit: usize) {
        if self.bytes.0 + new.bytes() > limit {
            self.old = std::mem::take(&mut self.young);
            self.bytes = (0, self.bytes.0);
        }
        self.bytes.0 += new.bytes();
        if let Some(replaced) = self.young.insert(hash, new) {
            self.bytes.0 -= replaced.bytes();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Stands for an encoder: one id a byte.
    fn encode(reuse: &Reuse, text: &str) -> (Vec<u32>, bool) {
        let mut ids = vec![7];
        let mut encoded = false;
        let done = reuse.encode(text, &mut ids, |ids| {
            encoded = true;
            ids.extend(text.bytes().map(u32::from));
            Ok::<(), ()>(())
        });
        assert_eq!(done, Ok(()));
        assert_eq!(ids.remove(0), 7);
        (ids, encoded)
    }

    #[test]
    fn a_text_is_encoded_once() {
        let reuse = Reuse::new(1 << 20);
        let text = "a".repeat(SHORTEST);
        let (first, encoded) = encode(&reuse, &text);
        assert!(encoded);
        assert_eq!(encode(&reuse, &text), (first, false));
        // Short ones are not worth keeping.
        assert!(encode(&reuse, "a").1 && encode(&reuse, "a").1);
    }

    #[test]
    fn what_is_asked_for_stays_and_the_rest_goes() {
        let reuse = Reuse::new(64 << 10);
        let tools = "t".repeat(500);
        for at in 0..2000 {
            encode(&reuse, &format!("{at:0>200}"));
            let (_, encoded) = encode(&reuse, &tools);
            assert_eq!(encoded, at == 0);
        }
        assert!(encode(&reuse, &format!("{:0>200}", 0)).1);
    }

    #[test]
    fn a_failure_keeps_nothing() {
        let reuse = Reuse::new(1 << 20);
        let text = "a".repeat(SHORTEST);
        let failed = reuse.encode(&text, &mut Vec::new(), |ids| {
            ids.push(1);
            Err("no")
        });
        assert_eq!(failed, Err("no"));
        assert_eq!(reuse.bytes(), 0);
        assert!(encode(&reuse, &text).1);
    }

    proptest! {
        #[test]
        fn ids_are_right_and_memory_is_bounded(
            limit in 0u64..40_000,
            texts in proptest::collection::vec((0usize..20, 0usize..900), 1..200),
        ) {
            let reuse = Reuse::new(limit);
            for (letter, length) in texts {
                let letter = char::from(b'a' + u8::try_from(letter).expect("small"));
                let text = letter.to_string().repeat(length);
                let (ids, _) = encode(&reuse, &text);
                prop_assert!(ids.iter().copied().eq(text.bytes().map(u32::from)));
                prop_assert!(reuse.bytes() as u64 <= limit);
            }
        }
    }
}
