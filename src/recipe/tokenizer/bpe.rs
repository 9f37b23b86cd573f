//! Byte-pair encoding of one piece of text.
//!
//! Input: bytes of a piece; output: ids appended to a list. A piece that is a vocabulary entry and
//! encodes to itself, as most words do, costs one lookup; any other costs `O(n log n)` merges. Nothing
//! is locked and nothing grows: the only thing remembered is one byte a vocabulary entry.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::sync::atomic::{AtomicU8, Ordering};

/// Whether an entry is known to encode to itself.
const UNKNOWN: u8 = 0;
const WHOLE: u8 = 1;
const PARTS: u8 = 2;

/// A merge: lower ranks first, then from the left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Merge {
    rank: u32,
    result: u32,
}

/// Vocabulary and merges of a byte-level model.
pub(super) struct Bpe {
    /// Id of each single byte.
    bytes: [u32; 256],
    /// Ids of the entries, by the bytes they stand for.
    entries: HashMap<Box<[u8]>, u32, ahash::RandomState>,
    merges: HashMap<(u32, u32), Merge, ahash::RandomState>,
    /// Length of the longest entry: longer pieces are not looked up.
    longest: usize,
    /// For each id, one of the three constants above.
    whole: Vec<AtomicU8>,
    /// The file asks to take entries whole whatever the merges say.
    ignore_merges: bool,
}

impl std::fmt::Debug for Bpe {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Bpe")
            .field("entries", &self.entries.len())
            .field("merges", &self.merges.len())
            .finish_non_exhaustive()
    }
}

impl Bpe {
    /// A model of `entries` (bytes and id) and `merges` (pairs of ids, best first, with the id they
    /// become). Every byte must be an entry; the byte that is not comes back as the error.
    pub(super) fn new(
        entries: Vec<(Vec<u8>, u32)>,
        merges: &[super::file::Merge],
        ignore_merges: bool,
    ) -> Result<Self, u8> {
        let longest = entries.iter().map(|(bytes, _)| bytes.len()).max();
        let ids = entries.iter().map(|(_, id)| *id as usize + 1).max();
        let entries: HashMap<Box<[u8]>, u32, _> = entries
            .into_iter()
            .map(|(bytes, id)| (bytes.into_boxed_slice(), id))
            .collect();
        let mut bytes = [0; 256];
        for (byte, id) in (0..=u8::MAX).zip(&mut bytes) {
            *id = *entries.get([byte].as_slice()).ok_or(byte)?;
        }
        Ok(Self {
            bytes,
            entries,
            // A pair that is listed twice keeps its last rank, as in the reference.
            merges: (0..)
                .zip(merges)
                .map(|(rank, &(pair, result))| (pair, Merge { rank, result }))
                .collect(),
            longest: longest.unwrap_or(0),
            whole: (0..ids.unwrap_or(0))
                .map(|_| AtomicU8::new(UNKNOWN))
                .collect(),
            ignore_merges,
        })
    }

    /// The entry that stands for exactly these bytes.
    pub(super) fn entry(&self, bytes: &[u8]) -> Option<u32> {
        self.entries.get(bytes).copied()
    }

    /// Appends the ids of `piece`.
    pub(super) fn encode(&self, piece: &[u8], ids: &mut Vec<u32>) {
        if let [byte] = piece {
            ids.push(self.bytes[usize::from(*byte)]);
            return;
        }
        let entry = (piece.len() <= self.longest)
            .then(|| self.entries.get(piece).copied())
            .flatten();
        let Some(id) = entry else {
            self.merge(piece, ids);
            return;
        };
        let known = &self.whole[id as usize];
        // Relaxed: the value depends on the model only, whoever writes it writes the same.
        match known.load(Ordering::Relaxed) {
            WHOLE => ids.push(id),
            PARTS => self.merge(piece, ids),
            _ => {
                let before = ids.len();
                if self.ignore_merges {
                    ids.push(id);
                } else {
                    self.merge(piece, ids);
                }
                let state = if ids[before..] == [id] { WHOLE } else { PARTS };
                known.store(state, Ordering::Relaxed);
            }
        }
    }

    fn merge(&self, piece: &[u8], ids: &mut Vec<u32>) {
        /// Pieces up to this length are merged by scanning for the best pair: quadratic, but without
        /// the bookkeeping of the heap.
        const SHORT: usize = 48;
        if piece.len() <= SHORT {
            self.merge_short(piece, ids);
        } else {
            self.merge_long(piece, ids);
        }
    }

    fn merge_short(&self, piece: &[u8], ids: &mut Vec<u32>) {
        let before = ids.len();
        ids.extend(piece.iter().map(|byte| self.bytes[usize::from(*byte)]));
        let mut pairs: Vec<Option<Merge>> = ids[before..]
            .windows(2)
            .map(|pair| self.pair(pair[0], pair[1]))
            .collect();
        loop {
            let best = pairs
                .iter()
                .enumerate()
                .filter_map(|(at, pair)| pair.map(|merge| (merge.rank, at, merge.result)))
                .min();
            let Some((_, at, result)) = best else { return };
            let symbols = &mut ids[before..];
            symbols[at] = result;
            ids.remove(before + at + 1);
            pairs.remove(at);
            let symbols = &ids[before..];
            if let Some(pair) = pairs.get_mut(at) {
                *pair = self.pair(symbols[at], symbols[at + 1]);
            }
            if at > 0 {
                pairs[at - 1] = self.pair(symbols[at - 1], symbols[at]);
            }
        }
    }

    fn merge_long(&self, piece: &[u8], ids: &mut Vec<u32>) {
        const END: usize = usize::MAX;
        /// A symbol in a linked list; `live` is false once it was merged into its left neighbour.
        struct Symbol {
            id: u32,
            previous: usize,
            next: usize,
            live: bool,
        }
        let mut symbols: Vec<Symbol> = piece
            .iter()
            .enumerate()
            .map(|(at, byte)| Symbol {
                id: self.bytes[usize::from(*byte)],
                previous: at.checked_sub(1).unwrap_or(END),
                next: if at + 1 < piece.len() { at + 1 } else { END },
                live: true,
            })
            .collect();
        let mut queue: BinaryHeap<Reverse<(u32, usize, u32)>> = symbols
            .windows(2)
            .enumerate()
            .filter_map(|(at, pair)| {
                let merge = self.pair(pair[0].id, pair[1].id)?;
                Some(Reverse((merge.rank, at, merge.result)))
            })
            .collect();
        while let Some(Reverse((rank, at, result))) = queue.pop() {
            let Symbol { id, next, live, .. } = symbols[at];
            // Entries are not removed when their pair changes, so most of them are stale by now.
            let current = (live && next != END)
                .then(|| self.pair(id, symbols[next].id))
                .flatten();
            if current != Some(Merge { rank, result }) {
                continue;
            }
            let after = symbols[next].next;
            symbols[next].live = false;
            symbols[at].id = result;
            symbols[at].next = after;
            if after != END {
                symbols[after].previous = at;
                if let Some(merge) = self.pair(result, symbols[after].id) {
                    queue.push(Reverse((merge.rank, at, merge.result)));
                }
            }
            let previous = symbols[at].previous;
            if previous != END
                && let Some(merge) = self.pair(symbols[previous].id, result)
            {
                queue.push(Reverse((merge.rank, previous, merge.result)));
            }
        }
        ids.extend(symbols.iter().filter(|symbol| symbol.live).map(|s| s.id));
    }

    fn pair(&self, left: u32, right: u32) -> Option<Merge> {
        self.merges.get(&(left, right)).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Bytes, then `ab`, `abc`, `bc`, `aa`, `aaaa`, with merges that make `abc` unreachable as a whole.
    fn model() -> Bpe {
        let mut entries: Vec<(Vec<u8>, u32)> =
            (0..=u8::MAX).map(|b| (vec![b], u32::from(b))).collect();
        for (id, entry) in (256..).zip(["bc", "aa", "ab", "abc", "aaaa"]) {
            entries.push((entry.as_bytes().to_vec(), id));
        }
        let (a, b, c) = (97, 98, 99);
        let merges = [
            ((b, c), 256),
            ((a, a), 257),
            ((a, b), 258),
            ((258, c), 259),
            ((257, 257), 260),
        ];
        Bpe::new(entries, &merges, false).expect("every byte is an entry")
    }

    fn encode(model: &Bpe, piece: &[u8]) -> Vec<u32> {
        let mut ids = Vec::new();
        model.encode(piece, &mut ids);
        ids
    }

    #[test]
    fn merges_win_over_the_vocabulary() {
        let model = model();
        // Asked twice: the second answer comes from what was remembered.
        for _ in 0..2 {
            assert_eq!(encode(&model, b"abc"), [97, 256]);
            assert_eq!(encode(&model, b"aaaa"), [260]);
            assert_eq!(encode(&model, b"aaaaa"), [260, 97]);
        }
    }

    #[test]
    fn a_vocabulary_without_all_bytes_is_refused() {
        let entries = (0..=254).map(|b| (vec![b], u32::from(b))).collect();
        assert_eq!(Bpe::new(entries, &[], false).err(), Some(255));
    }

    proptest! {
        #[test]
        fn both_ways_to_merge_agree(piece in "[abc]{0,120}") {
            let model = model();
            let (mut short, mut long) = (Vec::new(), Vec::new());
            model.merge_short(piece.as_bytes(), &mut short);
            model.merge_long(piece.as_bytes(), &mut long);
            prop_assert_eq!(short, long);
        }
    }
}
