//! Byte-pair encoding of one piece of text.
//!
//! Input: bytes of a piece; output: ids appended to a list. A piece that is a vocabulary entry and
//! encodes to itself, as most words do, costs one lookup; one that was merged before in the same text is
//! copied; any other costs `O(n log n)` merges. Nothing is locked, and the model itself remembers one byte
//! an entry; what a text needs besides is in its [`Scratch`].

use std::cmp::Reverse;
use std::collections::BinaryHeap;
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

/// The rank of a pair that does not merge.
const NEVER: Merge = Merge {
    rank: u32::MAX,
    result: 0,
};

/// Vocabulary and merges of a byte-level model.
pub(super) struct Bpe {
    /// Id of each single byte.
    bytes: [u32; 256],
    entries: Entries,
    merges: Merges,
    /// The file asks to take entries whole whatever the merges say.
    ignore_merges: bool,
}

impl std::fmt::Debug for Bpe {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Bpe").finish_non_exhaustive()
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
        let entries = Entries::new(&entries);
        let mut bytes = [0; 256];
        for (byte, id) in (0..=u8::MAX).zip(&mut bytes) {
            *id = entries.find(&[byte]).ok_or(byte)?.id;
        }
        Ok(Self {
            bytes,
            entries,
            merges: Merges::new(merges),
            ignore_merges,
        })
    }

    /// The entry that stands for exactly these bytes.
    pub(super) fn entry(&self, bytes: &[u8]) -> Option<u32> {
        self.entries.find(bytes).map(|slot| slot.id)
    }

    /// Appends the ids of `piece`.
    #[inline]
    pub(super) fn encode(&self, piece: &[u8], ids: &mut Vec<u32>, scratch: &mut Scratch) {
        if let [byte] = piece {
            ids.push(self.bytes[usize::from(*byte)]);
            return;
        }
        match self.entries.find(piece) {
            // Relaxed: the value depends on the model only, whoever writes it writes the same.
            Some(slot) if slot.whole.load(Ordering::Relaxed) == WHOLE => ids.push(slot.id),
            entry => self.encode_parts(piece, entry, ids, scratch),
        }
    }

    /// Appends the ids of a piece that is no entry, or one not known to encode to itself.
    fn encode_parts(
        &self,
        piece: &[u8],
        entry: Option<&Slot>,
        ids: &mut Vec<u32>,
        scratch: &mut Scratch,
    ) {
        let before = ids.len();
        match entry {
            Some(slot) if slot.whole.load(Ordering::Relaxed) == UNKNOWN => {
                if self.ignore_merges {
                    ids.push(slot.id);
                } else {
                    self.merge(piece, ids, scratch);
                }
                let state = if ids[before..] == [slot.id] {
                    WHOLE
                } else {
                    PARTS
                };
                slot.whole.store(state, Ordering::Relaxed);
            }
            _ => {
                let hash = hash(piece);
                if !scratch.seen.copy(hash, piece, ids) {
                    self.merge(piece, ids, scratch);
                    scratch.seen.keep(hash, piece, &ids[before..]);
                }
            }
        }
    }

    fn merge(&self, piece: &[u8], ids: &mut Vec<u32>, scratch: &mut Scratch) {
        if piece.len() <= SHORT {
            self.merge_short(piece, ids);
        } else {
            self.merge_long(piece, ids, scratch);
        }
    }

    /// Scans for the best pair again and again: quadratic, but without bookkeeping.
    fn merge_short(&self, piece: &[u8], ids: &mut Vec<u32>) {
        debug_assert!(piece.len() <= SHORT);
        let mut symbols = [0; SHORT];
        // The merge of each symbol with the next one.
        let mut merges = [NEVER; SHORT];
        let mut count = piece.len().min(SHORT);
        for (symbol, byte) in symbols.iter_mut().zip(piece) {
            *symbol = self.bytes[usize::from(*byte)];
        }
        for at in 1..count {
            merges[at - 1] = self.merges.find(symbols[at - 1], symbols[at]);
        }
        while count > 1 {
            let (mut best, mut rank) = (0, u32::MAX);
            for (at, merge) in merges[..count - 1].iter().enumerate() {
                if merge.rank < rank {
                    (best, rank) = (at, merge.rank);
                }
            }
            if rank == u32::MAX {
                break;
            }
            symbols[best] = merges[best].result;
            symbols.copy_within(best + 2..count, best + 1);
            merges.copy_within(best + 1..count, best);
            count -= 1;
            merges[best] = if best + 1 < count {
                self.merges.find(symbols[best], symbols[best + 1])
            } else {
                NEVER
            };
            if best > 0 {
                merges[best - 1] = self.merges.find(symbols[best - 1], symbols[best]);
            }
        }
        ids.extend_from_slice(&symbols[..count]);
    }

    /// Keeps the pairs in a heap.
    fn merge_long(&self, piece: &[u8], ids: &mut Vec<u32>, scratch: &mut Scratch) {
        let Scratch { symbols, queue, .. } = scratch;
        symbols.clear();
        symbols.extend(piece.iter().enumerate().map(|(at, byte)| Symbol {
            id: self.bytes[usize::from(*byte)],
            previous: at.checked_sub(1).unwrap_or(END),
            next: if at + 1 < piece.len() { at + 1 } else { END },
            live: true,
        }));
        queue.clear();
        let pairs = symbols.windows(2).enumerate();
        queue.extend(pairs.filter_map(|(at, pair)| {
            let merge = self.pair(pair[0].id, pair[1].id)?;
            Some(Reverse((merge.rank, at, merge.result)))
        }));
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
        let merge = self.merges.find(left, right);
        (merge != NEVER).then_some(merge)
    }
}

/// Pieces up to this length are merged by scanning.
const SHORT: usize = 48;

const END: usize = usize::MAX;

/// A symbol in a linked list; `live` is false once it was merged into its left neighbour.
struct Symbol {
    id: u32,
    previous: usize,
    next: usize,
    live: bool,
}

/// What encoding one text needs besides the model: room for merging, and the pieces merged so far.
#[derive(Default)]
pub(super) struct Scratch {
    symbols: Vec<Symbol>,
    queue: BinaryHeap<Reverse<(u32, usize, u32)>>,
    seen: Seen,
}

impl Scratch {
    /// For a text of so many bytes.
    pub(super) fn for_text(bytes: usize) -> Self {
        let mut scratch = Self::default();
        scratch.seen.most = (bytes / 16).next_power_of_two().clamp(16, 1024);
        scratch
    }
}

/// Pieces of a text that took merges, with their ids: names and numbers come again and again.
#[derive(Default)]
struct Seen {
    /// One piece a place; a newer one takes the place of an older one. Empty until the first piece is kept.
    places: Vec<Place>,
    /// How many places to make then: a power of two, or 0 to keep nothing.
    most: usize,
    text: Vec<u8>,
    ids: Vec<u32>,
}

#[derive(Clone, Copy, Default)]
struct Place {
    hash: u64,
    text: u32,
    ids: u32,
    /// 0 for none: no piece is empty.
    text_length: u16,
    ids_length: u16,
}

impl Seen {
    /// More text than this is not kept.
    const MOST_TEXT: usize = 64 << 10;

    /// Appends the ids of `piece`, if it was kept.
    fn copy(&self, hash: u64, piece: &[u8], ids: &mut Vec<u32>) -> bool {
        let Some(place) = self.places.get(self.index(hash)) else {
            return false;
        };
        let text = place.text as usize..place.text as usize + usize::from(place.text_length);
        if place.hash != hash || &self.text[text] != piece {
            return false;
        }
        let from = place.ids as usize;
        ids.extend_from_slice(&self.ids[from..from + usize::from(place.ids_length)]);
        true
    }

    fn keep(&mut self, hash: u64, piece: &[u8], ids: &[u32]) {
        let (Ok(text_length), Ok(ids_length)) = (piece.len().try_into(), ids.len().try_into())
        else {
            return;
        };
        if self.most == 0 || self.text.len() + piece.len() > Self::MOST_TEXT {
            return;
        }
        let (Ok(text), Ok(first)) = (self.text.len().try_into(), self.ids.len().try_into()) else {
            return;
        };
        if self.places.is_empty() {
            self.places.resize(self.most, Place::default());
        }
        self.text.extend_from_slice(piece);
        self.ids.extend_from_slice(ids);
        let at = self.index(hash);
        self.places[at] = Place {
            hash,
            text,
            ids: first,
            text_length,
            ids_length,
        };
    }

    fn index(&self, hash: u64) -> usize {
        (hash >> 32) as usize & self.most.wrapping_sub(1)
    }
}

/// Mixes the bits of `word`.
#[inline]
fn mix(word: u64) -> u64 {
    let product = u128::from(word ^ 0x2D35_8DCC_AA6C_78A5) * 0x8BB8_4B93_962E_ACC9;
    (product as u64) ^ ((product >> 64) as u64)
}

/// Eight bytes or fewer as a number.
#[inline]
fn word(bytes: &[u8]) -> u64 {
    let length = bytes.len();
    if let Some(all) = bytes.first_chunk::<8>() {
        return u64::from_le_bytes(*all);
    }
    // Two reads that overlap, instead of one for each byte.
    if let (Some(first), Some(last)) = (bytes.first_chunk::<4>(), bytes.last_chunk::<4>()) {
        let last = u64::from(u32::from_le_bytes(*last));
        return u64::from(u32::from_le_bytes(*first)) | last << (8 * (length - 4));
    }
    match bytes {
        [] => 0,
        [first, ..] => {
            let middle = u64::from(bytes[length / 2]) << (8 * (length / 2));
            u64::from(*first) | middle | u64::from(bytes[length - 1]) << (8 * (length - 1))
        }
    }
}

/// A hash of `bytes`. The tables below only ever hold what the tokenizer file lists, and a text can only look things
/// up in them, so the hash needs no secret.
#[inline]
fn hash(bytes: &[u8]) -> u64 {
    let mut state = bytes.len() as u64;
    let (words, rest) = bytes.as_chunks::<8>();
    for word in words {
        state = mix(state ^ u64::from_le_bytes(*word)).rotate_left(23);
    }
    mix(state ^ word(rest))
}

/// The vocabulary by its bytes: open addressing, at most half full.
struct Entries {
    slots: Vec<Slot>,
    /// The bytes of entries longer than eight, and where those of a slot begin.
    text: Vec<u8>,
    starts: Vec<u32>,
}

/// An entry.
struct Slot {
    /// Its bytes, if there are at most eight; else their hash.
    key: u64,
    id: u32,
    /// Bytes of the entry; 0 for a slot without one.
    length: u16,
    /// One of the three constants above.
    whole: AtomicU8,
}

impl Entries {
    fn new(entries: &[(Vec<u8>, u32)]) -> Self {
        let size = (entries.len() * 2).next_power_of_two().max(2);
        let mut table = Self {
            slots: Vec::new(),
            text: Vec::new(),
            starts: vec![0; size],
        };
        table.slots.resize_with(size, || Slot {
            key: 0,
            id: 0,
            length: 0,
            whole: AtomicU8::new(UNKNOWN),
        });
        for (bytes, id) in entries {
            // An empty entry matches nothing, and one of 64 KiB nothing that anybody writes.
            let Ok(length @ 1..) = u16::try_from(bytes.len()) else {
                continue;
            };
            let key = Self::key(bytes);
            let mut at = table.home(key, bytes.len());
            while table.slots[at].length != 0 {
                at = (at + 1) % size;
            }
            let slot = &mut table.slots[at];
            (slot.key, slot.id, slot.length) = (key, *id, length);
            if bytes.len() > 8 {
                table.starts[at] = u32::try_from(table.text.len()).unwrap_or(u32::MAX);
                table.text.extend_from_slice(bytes);
            }
        }
        table
    }

    #[inline]
    fn key(bytes: &[u8]) -> u64 {
        if bytes.len() <= 8 {
            word(bytes)
        } else {
            hash(bytes)
        }
    }

    #[inline]
    fn home(&self, key: u64, length: usize) -> usize {
        let spread = mix(key.wrapping_add((length as u64).rotate_left(32)));
        spread as usize & (self.slots.len() - 1)
    }

    #[inline]
    fn find(&self, bytes: &[u8]) -> Option<&Slot> {
        let key = Self::key(bytes);
        let mut at = self.home(key, bytes.len());
        loop {
            let slot = &self.slots[at];
            if slot.length == 0 {
                return None;
            }
            if slot.key == key
                && usize::from(slot.length) == bytes.len()
                && (bytes.len() <= 8 || self.text_at(at, bytes.len()) == Some(bytes))
            {
                return Some(slot);
            }
            at = (at + 1) & (self.slots.len() - 1);
        }
    }

    fn text_at(&self, at: usize, length: usize) -> Option<&[u8]> {
        let start = self.starts[at] as usize;
        self.text.get(start..start + length)
    }
}

/// The merges by their pairs: open addressing, at most half full.
struct Merges {
    slots: Vec<(u32, u32, Merge)>,
}

impl Merges {
    fn new(merges: &[super::file::Merge]) -> Self {
        let size = (merges.len() * 2).next_power_of_two().max(2);
        let mut table = Self {
            slots: vec![(0, 0, NEVER); size],
        };
        for (rank, &((left, right), result)) in (0..).zip(merges) {
            let mut at = table.home(left, right);
            // A pair that is listed twice keeps its last rank, as in the reference.
            while table.slots[at].2 != NEVER
                && (table.slots[at].0, table.slots[at].1) != (left, right)
            {
                at = (at + 1) & (size - 1);
            }
            table.slots[at] = (left, right, Merge { rank, result });
        }
        table
    }

    #[inline]
    fn home(&self, left: u32, right: u32) -> usize {
        mix(u64::from(left) << 32 | u64::from(right)) as usize & (self.slots.len() - 1)
    }

    /// The merge of a pair, or `NEVER`.
    #[inline]
    fn find(&self, left: u32, right: u32) -> Merge {
        let mut at = self.home(left, right);
        loop {
            let (l, r, merge) = self.slots[at];
            if (l, r) == (left, right) || merge == NEVER {
                return merge;
            }
            at = (at + 1) & (self.slots.len() - 1);
        }
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
        model.encode(piece, &mut ids, &mut Scratch::default());
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
        fn both_ways_to_merge_agree(piece in "[abc]{0,48}") {
            let model = model();
            let (mut short, mut long) = (Vec::new(), Vec::new());
            model.merge_short(piece.as_bytes(), &mut short);
            model.merge_long(piece.as_bytes(), &mut long, &mut Scratch::default());
            prop_assert_eq!(short, long);
        }

        #[test]
        fn a_piece_seen_before_gives_the_same_ids(pieces in proptest::collection::vec("[abcd]{1,70}", 1..40)) {
            let model = model();
            let mut scratch = Scratch::for_text(200);
            for piece in pieces.iter().chain(&pieces) {
                let mut ids = Vec::new();
                model.encode(piece.as_bytes(), &mut ids, &mut scratch);
                prop_assert_eq!(ids, encode(&model, piece.as_bytes()));
            }
        }

        #[test]
        fn bytes_become_words_and_are_found(entries in proptest::collection::btree_set(proptest::collection::vec(0u8..4, 1..20), 1..200)) {
            let entries: Vec<(Vec<u8>, u32)> = entries.into_iter().zip(7..).collect();
            let table = Entries::new(&entries);
            for (bytes, id) in &entries {
                prop_assert_eq!(table.find(bytes).map(|slot| slot.id), Some(*id));
                let mut longer = bytes.clone();
                longer.push(9);
                prop_assert!(table.find(&longer).is_none());
                if bytes.len() <= 8 {
                    let mut padded = [0; 8];
                    padded[..bytes.len()].copy_from_slice(bytes);
                    prop_assert_eq!(word(bytes), u64::from_le_bytes(padded));
                }
            }
        }
    }
}
