//! Pools in host memory: window rings, raw compressor rings, growing rows, and the position tags that
//! prove whose rows a ring holds.
//!
//! Kept values are bfloat16 in the published numerics, where that is exact, and f32 otherwise.

use std::alloc::{Layout, alloc_zeroed};
use std::ops::Range;

use super::kernels::Keys;
use super::numbers::{bf16_bits, from_bf16};
use crate::engine::backend::batch::{Batch, Span};
use crate::engine::error::{Code, Error};
use crate::engine::kv::layout::{GroupId, RingId, RingKind, StateLayout};
use crate::engine::kv::{BlockId, SlotId};

/// Values of rows that are kept.
#[derive(Debug)]
pub enum Values {
    /// Plain numerics.
    F32(Vec<f32>),
    /// Published numerics.
    Bf16(Vec<u16>),
}

impl Values {
    fn zeroed(bf16: bool, len: usize) -> Result<Self, Error> {
        Ok(if bf16 {
            Self::Bf16(reserve(len)?)
        } else {
            Self::F32(reserve(len)?)
        })
    }

    /// An empty buffer of the same kind: a place to gather rows.
    pub fn like(&self) -> Self {
        match self {
            Self::F32(_) => Self::F32(Vec::new()),
            Self::Bf16(_) => Self::Bf16(Vec::new()),
        }
    }

    /// Replaces `values.len()` values from `at`.
    pub fn put(&mut self, at: usize, values: &[f32]) {
        match self {
            Self::F32(to) => to[at..at + values.len()].copy_from_slice(values),
            Self::Bf16(to) => {
                for (t, v) in to[at..at + values.len()].iter_mut().zip(values) {
                    *t = bf16_bits(*v);
                }
            }
        }
    }

    /// Appends values of `from`.
    pub fn extend(&mut self, from: &Self, range: Range<usize>) {
        match (self, from) {
            (Self::F32(to), Self::F32(from)) => to.extend_from_slice(&from[range]),
            (Self::Bf16(to), Self::Bf16(from)) => to.extend_from_slice(&from[range]),
            (Self::F32(to), Self::Bf16(from)) => {
                to.extend(from[range].iter().map(|b| from_bf16(*b)))
            }
            (Self::Bf16(to), Self::F32(from)) => {
                to.extend(from[range].iter().map(|v| bf16_bits(*v)))
            }
        }
    }

    /// Appends values that are in f32.
    pub fn extend_f32(&mut self, from: &[f32]) {
        match self {
            Self::F32(to) => to.extend_from_slice(from),
            Self::Bf16(to) => to.extend(from.iter().map(|v| bf16_bits(*v))),
        }
    }

    /// Forgets all values, keeps the memory.
    pub fn clear(&mut self) {
        match self {
            Self::F32(v) => v.clear(),
            Self::Bf16(v) => v.clear(),
        }
    }

    /// A view for the kernels.
    pub fn keys(&self, range: Range<usize>) -> Keys<'_> {
        match self {
            Self::F32(v) => Keys::F32(&v[range]),
            Self::Bf16(v) => Keys::Bf16(&v[range]),
        }
    }

    /// All values.
    pub fn all(&self) -> Keys<'_> {
        match self {
            Self::F32(v) => Keys::F32(v),
            Self::Bf16(v) => Keys::Bf16(v),
        }
    }

    fn save(&self, range: Range<usize>, out: &mut Vec<u8>) {
        match self {
            Self::F32(v) => v[range]
                .iter()
                .for_each(|x| out.extend_from_slice(&x.to_le_bytes())),
            Self::Bf16(v) => v[range]
                .iter()
                .for_each(|x| out.extend_from_slice(&x.to_le_bytes())),
        }
    }

    fn restore(&mut self, range: Range<usize>, saved: &mut &[u8]) {
        match self {
            Self::F32(v) => v[range]
                .iter_mut()
                .for_each(|x| *x = f32::from_le_bytes(take(saved))),
            Self::Bf16(v) => v[range]
                .iter_mut()
                .for_each(|x| *x = u16::from_le_bytes(take(saved))),
        }
    }
}

fn take<const N: usize>(saved: &mut &[u8]) -> [u8; N] {
    let (head, tail) = saved.split_at(N);
    *saved = tail;
    head.try_into().expect("split at N")
}

/// Plain numbers whose value of all zero bits is zero.
trait Zeroable: Copy {}
impl Zeroable for f32 {}
impl Zeroable for u16 {}

/// Zeroed memory, or an error instead of an abort. The system hands the pages out when they are first
/// written, so a pool costs what is used of it.
fn reserve<T: Zeroable>(len: usize) -> Result<Vec<T>, Error> {
    let refused = || {
        let bytes = len.saturating_mul(size_of::<T>());
        let message = format!("{bytes} bytes of state cannot be reserved");
        Error::new(Code::OutOfHostMemory, "kv_bytes", message)
    };
    let layout = Layout::array::<T>(len).map_err(|_| refused())?;
    if layout.size() == 0 {
        return Ok(Vec::new());
    }
    // SAFETY: the size is not zero.
    let start = unsafe { alloc_zeroed(layout) }.cast::<T>();
    if start.is_null() {
        return Err(refused());
    }
    // SAFETY: just allocated by the global allocator with the layout of `len` values, all of which are
    // initialised: zero bits are a value of `T`.
    Ok(unsafe { Vec::from_raw_parts(start, len, len) })
}

/// No position.
const NONE: u32 = u32::MAX;

/// All pools of a model.
#[derive(Debug)]
pub struct State {
    layout: StateLayout,
    /// Window rings by [`RingId`] (`None` for raw rings): `[slots, capacity, width]`.
    windows: Vec<Option<Values>>,
    /// Raw rings by [`RingId`] (empty for windows): `[slots, capacity, width]`.
    raw: Vec<Vec<f32>>,
    /// By [`GroupId`]: `[blocks, block_tokens / ratio, width]`.
    groups: Vec<Values>,
    /// One past the highest position each slot has held since it was cleared: what the rings have
    /// overwritten depends on it.
    ends: Vec<u32>,
    /// Position whose rows each place of a slot's rings holds: `[slots, window + rollback]`.
    tags: Vec<u32>,
}

impl State {
    /// Pools of `layout`.
    pub fn new(layout: &StateLayout, bf16: bool) -> Result<Self, Error> {
        let mut windows = Vec::new();
        let mut raw = Vec::new();
        for ring in &layout.rings {
            let len = layout.slots * ring.capacity * ring.width;
            let (window, rows) = match ring.kind {
                RingKind::Window => (Some(Values::zeroed(bf16, len)?), Vec::new()),
                RingKind::Raw => (None, reserve(len)?),
            };
            windows.push(window);
            raw.push(rows);
        }
        let groups = layout
            .groups
            .iter()
            .map(|g| {
                Values::zeroed(
                    bf16,
                    layout.blocks * (layout.block_tokens / g.ratio) * g.width,
                )
            })
            .collect::<Result<_, _>>()?;
        let tags = vec![NONE; layout.slots * (layout.window + layout.rollback)];
        Ok(Self {
            layout: layout.clone(),
            windows,
            raw,
            groups,
            ends: vec![0; layout.slots],
            tags,
        })
    }

    fn tag_range(&self, slot: SlotId) -> Range<usize> {
        let capacity = self.layout.window + self.layout.rollback;
        let start = slot.0 as usize * capacity;
        start..start + capacity
    }

    /// Makes a slot ready for a new sequence.
    pub fn clear(&mut self, slot: SlotId) {
        let range = self.tag_range(slot);
        self.tags[range].fill(NONE);
        self.ends[slot.0 as usize] = 0;
    }

    /// Checks that each sequence's rings hold the positions its rows look back to, then tags the
    /// positions of the step.
    pub fn begin(&mut self, batch: &Batch) -> Result<(), Error> {
        let capacity = self.layout.window + self.layout.rollback;
        for span in &batch.spans {
            let range = self.tag_range(span.slot);
            let tags = &mut self.tags[range];
            for p in span.position.saturating_sub(self.layout.window - 1)..span.position {
                if tags[p % capacity] != p as u32 {
                    let found = tags[p % capacity];
                    return Err(Error::new(
                        Code::StateCorrupt,
                        "",
                        format!(
                            "slot {} holds position {found} where a row needs {p}",
                            span.slot.0
                        ),
                    ));
                }
            }
            let end = &mut self.ends[span.slot.0 as usize];
            if *end as usize > span.position + self.layout.rollback {
                let message = format!(
                    "slot {} has held position {}, which is more than {} rows past {}",
                    span.slot.0,
                    *end - 1,
                    self.layout.rollback,
                    span.position
                );
                return Err(Error::new(Code::StateCorrupt, "", message));
            }
            *end = (*end).max((span.position + span.rows.len()) as u32);
            for p in span.position..span.position + span.rows.len() {
                tags[p % capacity] = p as u32;
            }
        }
        Ok(())
    }

    /// Window rows of a ring and where the row of `position` starts.
    pub fn window(&self, ring: RingId, slot: SlotId, position: usize) -> (&Values, usize) {
        let spec = self.layout.rings[ring.0];
        let values = self.windows[ring.0]
            .as_ref()
            .expect("the layout says this ring has window rows");
        (
            values,
            (slot.0 as usize * spec.capacity + position % spec.capacity) * spec.width,
        )
    }

    /// Keeps the newest window rows of a span: `rows` are all of its rows, `[len, width]`.
    pub fn commit_window(&mut self, ring: RingId, span: &Span, rows: &[f32]) {
        let spec = self.layout.rings[ring.0];
        let values = self.windows[ring.0]
            .as_mut()
            .expect("the layout says this ring has window rows");
        let len = span.rows.len();
        for i in len.saturating_sub(spec.capacity)..len {
            let place = (span.position + i) % spec.capacity;
            let at = (span.slot.0 as usize * spec.capacity + place) * spec.width;
            values.put(at, &rows[i * spec.width..(i + 1) * spec.width]);
        }
    }

    /// The raw row of `position`: values, then gates.
    pub fn raw(&self, ring: RingId, slot: SlotId, position: usize) -> &[f32] {
        let spec = self.layout.rings[ring.0];
        let at = (slot.0 as usize * spec.capacity + position % spec.capacity) * spec.width;
        &self.raw[ring.0][at..at + spec.width]
    }

    /// Keeps the newest raw rows of a span; `row(i)` gives values and gates of its row `i`.
    pub fn commit_raw<'a>(
        &mut self,
        ring: RingId,
        span: &Span,
        row: impl Fn(usize) -> (&'a [f32], &'a [f32]),
    ) {
        let spec = self.layout.rings[ring.0];
        let len = span.rows.len();
        for i in len.saturating_sub(spec.capacity)..len {
            let place = (span.position + i) % spec.capacity;
            let at = (span.slot.0 as usize * spec.capacity + place) * spec.width;
            let (values, gates) = row(i);
            let to = &mut self.raw[ring.0][at..at + spec.width];
            to[..values.len()].copy_from_slice(values);
            to[values.len()..].copy_from_slice(gates);
        }
    }

    /// Rows of a group in one block.
    pub fn rows_per_block(&self, group: GroupId) -> usize {
        self.layout.block_tokens / self.layout.groups[group.0].ratio
    }

    /// Width of a group's rows.
    pub fn width(&self, group: GroupId) -> usize {
        self.layout.groups[group.0].width
    }

    /// Values of a group and where row `index` of the sequence starts.
    pub fn grown(&self, group: GroupId, blocks: &[BlockId], index: usize) -> (&Values, usize) {
        (&self.groups[group.0], self.grown_at(group, blocks, index))
    }

    fn grown_at(&self, group: GroupId, blocks: &[BlockId], index: usize) -> usize {
        let per_block = self.rows_per_block(group);
        let block = blocks[index / per_block].0 as usize;
        (block * per_block + index % per_block) * self.width(group)
    }

    /// Writes row `index` of the sequence.
    pub fn append(&mut self, group: GroupId, blocks: &[BlockId], index: usize, row: &[f32]) {
        let at = self.grown_at(group, blocks, index);
        self.groups[group.0].put(at, row);
    }

    /// Copies the bounded state of a slot out.
    pub fn save(&self, slot: SlotId) -> Vec<u8> {
        let mut out = self.ends[slot.0 as usize].to_le_bytes().to_vec();
        for tag in &self.tags[self.tag_range(slot)] {
            out.extend_from_slice(&tag.to_le_bytes());
        }
        for (index, ring) in self.layout.rings.iter().enumerate() {
            let len = ring.capacity * ring.width;
            let start = slot.0 as usize * len;
            match &self.windows[index] {
                Some(values) => values.save(start..start + len, &mut out),
                None => {
                    self.raw[index][start..start + len]
                        .iter()
                        .for_each(|x| out.extend_from_slice(&x.to_le_bytes()));
                }
            }
        }
        out
    }

    /// Copies bounded state back into any slot of the same layout.
    pub fn restore(&mut self, slot: SlotId, mut saved: &[u8]) -> Result<(), Error> {
        let expected = self.save(slot).len();
        if saved.len() != expected {
            let found = saved.len();
            return Err(Error::new(
                Code::StateCorrupt,
                "",
                format!("a snapshot has {found} bytes, not {expected}"),
            ));
        }
        self.ends[slot.0 as usize] = u32::from_le_bytes(take(&mut saved));
        let range = self.tag_range(slot);
        for tag in &mut self.tags[range] {
            *tag = u32::from_le_bytes(take(&mut saved));
        }
        for (index, ring) in self.layout.rings.iter().enumerate() {
            let len = ring.capacity * ring.width;
            let start = slot.0 as usize * len;
            match &mut self.windows[index] {
                Some(values) => values.restore(start..start + len, &mut saved),
                None => {
                    self.raw[index][start..start + len]
                        .iter_mut()
                        .for_each(|x| *x = f32::from_le_bytes(take(&mut saved)));
                }
            }
        }
        Ok(())
    }
}
