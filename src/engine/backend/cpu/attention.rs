//! Sparse attention and index scores in f32.
//!
//! Keys are values too and may be bfloat16: a block of them is decoded once for all heads. Each score is
//! one sum over the width, lane by lane; each output value is one sum over the keys in their order.

#![expect(
    clippy::needless_range_loop,
    reason = "register blocks: loops over constant ranges index several arrays at once"
)]

use super::lanes::{Lanes, Work};
use super::scratch::Buffers;
use crate::engine::backend::host::kernels::{Attend, Keys};

/// Keys decoded at a time: 64 KiB at the published width of 512.
const KEYS: usize = 32;

/// One query row; see [`Attend`].
pub(super) struct AttendF32<'a, 'b> {
    pub(super) job: &'a mut Attend<'b>,
    pub(super) buffers: &'a mut Buffers,
}

impl Work for AttendF32<'_, '_> {
    type Out = ();

    /// Sound where `q` and `out` are `[heads, width]`, `sink` `[heads]`, keys whole rows.
    #[inline(always)]
    fn go<L: Lanes>(self, l: L) {
        let job = self.job;
        let width = job.width;
        let heads = job.sink.len();
        let n = key_count(job.keys, width);
        // scores: [heads, padded]
        let padded = n.next_multiple_of(L::N);
        let scores = self.buffers.scores.take::<f32>(heads * padded);
        let buffer = self.buffers.weights.take::<f32>(KEYS * width);
        let mut first = 0;
        while first < n {
            let some = KEYS.min(n - first);
            let keys = decode(l, job.keys, first, some, width, buffer);
            all_dots(l, keys, some, job.q, width, &mut scores[first..], padded);
            first += some;
        }
        for h in 0..heads {
            let row = &mut scores[h * padded..(h + 1) * padded];
            softmax(l, row, n, job.scale, job.sink[h], job.exact);
        }
        job.out.fill(0.0);
        let mut first = 0;
        while first < n {
            let some = KEYS.min(n - first);
            let keys = decode(l, job.keys, first, some, width, buffer);
            let mut h = 0;
            while h < heads {
                let block = Values {
                    keys: keys.as_ptr(),
                    count: some,
                    width,
                    shares: scores[h * padded + first..].as_ptr(),
                    shares_stride: padded,
                    out: job.out[h * width..].as_mut_ptr(),
                };
                // SAFETY: as many rows of shares and of output as named, `some` keys of `width` values.
                unsafe {
                    if heads - h >= 4 {
                        block.add::<L, 4>(l);
                        h += 4;
                    } else {
                        block.add::<L, 1>(l);
                        h += 1;
                    }
                }
            }
            first += some;
        }
    }
}

/// Rows of a key set.
#[inline(always)]
pub(super) fn key_count(keys: Keys<'_>, width: usize) -> usize {
    match keys {
        Keys::F32(rows) => rows.len() / width,
        Keys::Bf16(rows) => rows.len() / width,
    }
}

/// Keys `first..first + some` as f32: where they are, or in `buffer`.
#[inline(always)]
fn decode<'k, L: Lanes>(
    l: L,
    keys: Keys<'k>,
    first: usize,
    some: usize,
    width: usize,
    buffer: &'k mut [f32],
) -> &'k [f32] {
    let range = first * width..(first + some) * width;
    match keys {
        Keys::F32(rows) => &rows[range],
        Keys::Bf16(rows) => {
            let rows = &rows[range];
            let whole = rows.len() / L::N * L::N;
            let buffer = &mut buffer[..rows.len()];
            let mut at = 0;
            while at < whole {
                // SAFETY: `at + N` ≤ the length of both.
                unsafe {
                    let values = l.load_bf16(rows.as_ptr().add(at).cast());
                    l.store(buffer.as_mut_ptr().add(at), values);
                }
                at += L::N;
            }
            for at in whole..rows.len() {
                buffer[at] = f32::from_bits(u32::from(rows[at]) << 16);
            }
            buffer
        }
    }
}

/// Scores in, shares of the values out: `e^(s·scale - max) / total`, zero behind `n`.
#[inline(always)]
fn softmax<L: Lanes>(l: L, row: &mut [f32], n: usize, scale: f32, sink: f32, exact: bool) {
    // What lies behind `n` must not win, and must weigh nothing.
    row[n..].fill(f32::NEG_INFINITY);
    let at = row.as_mut_ptr();
    let scale = l.splat(scale);
    let mut largest = l.splat(sink);
    let mut j = 0;
    while j < n {
        // SAFETY: rows are whole vectors.
        unsafe {
            let s = l.mul(l.load(at.add(j)), scale);
            // Padding stays below everything whatever the sign of the scale.
            l.store(at.add(j), s);
            largest = l.max(largest, s);
        }
        j += L::N;
    }
    row[n..].fill(f32::NEG_INFINITY);
    let largest = l.largest(largest);
    let minus = l.splat(-largest);
    let mut total = l.zero();
    let mut j = 0;
    while j < n {
        // SAFETY: rows are whole vectors.
        unsafe {
            let e = l.exp(l.add(l.load(at.add(j)), minus));
            l.store(at.add(j), e);
            total = l.add(total, e);
        }
        j += L::N;
    }
    let total = l.sum(total) + (sink - largest).exp();
    let inverse = l.splat(1.0 / total);
    let mut j = 0;
    while j < n {
        // SAFETY: rows are whole vectors.
        unsafe {
            let p = l.mul(l.load(at.add(j)), inverse);
            l.store(at.add(j), if exact { l.round_bf16(p) } else { p });
        }
        j += L::N;
    }
}

/// `out[h, j] = q[h]·k_j` for all rows of `q` and the first `some` of `keys`; rows of `out` are `stride` apart.
#[inline(always)]
fn all_dots<L: Lanes>(
    l: L,
    keys: &[f32],
    some: usize,
    q: &[f32],
    width: usize,
    out: &mut [f32],
    stride: usize,
) {
    let heads = q.len() / width;
    let mut h = 0;
    while h < heads {
        let q_rows = L::BLOCK.min(heads - h);
        let mut j = 0;
        while j < some {
            let block = Dots {
                keys: keys[j * width..].as_ptr(),
                last: some - j - 1,
                q: q[h * width..].as_ptr(),
                width,
                out: out[h * stride + j..].as_mut_ptr(),
                out_stride: stride,
            };
            // SAFETY: `last + 1` keys and `q_rows` rows of q follow; so do their dots, `stride` apart.
            unsafe { block.dispatch(l, q_rows) };
            j += 4;
        }
        h += q_rows;
    }
}

/// Scores of up to four keys with some rows of q.
#[derive(Clone, Copy)]
struct Dots {
    keys: *const f32,
    /// Keys behind the first: 3 or more when all four are wanted.
    last: usize,
    q: *const f32,
    width: usize,
    out: *mut f32,
    out_stride: usize,
}

impl Dots {
    /// # Safety
    /// `last + 1` rows of `width` floats at `keys`, `q_rows` at `q`; min(4, `last + 1`) floats in each of `q_rows`
    /// rows at `out`.
    #[inline(always)]
    unsafe fn dispatch<L: Lanes>(self, l: L, q_rows: usize) {
        // SAFETY: the caller's promises, which name the same numbers.
        unsafe {
            match q_rows {
                1 => self.multiply::<L, 1>(l),
                2 => self.multiply::<L, 2>(l),
                3 => self.multiply::<L, 3>(l),
                4 => self.multiply::<L, 4>(l),
                5 => self.multiply::<L, 5>(l),
                _ => self.multiply::<L, 6>(l),
            }
        }
    }

    /// # Safety
    /// As [`Self::dispatch`], for `S` rows of q.
    #[inline(always)]
    unsafe fn multiply<L: Lanes, const S: usize>(self, l: L) {
        let mut sums = [[l.zero(); 4]; S];
        // Where keys are missing, the last one is read again and its score not stored.
        let mut keys = [self.keys; 4];
        for (r, key) in keys.iter_mut().enumerate() {
            *key = self.keys.wrapping_add(r.min(self.last) * self.width);
        }
        let whole = self.width / L::N * L::N;
        let mut k = 0;
        while k < whole {
            // SAFETY: `k + N` ≤ `width`.
            unsafe {
                let key = [
                    l.load(keys[0].add(k)),
                    l.load(keys[1].add(k)),
                    l.load(keys[2].add(k)),
                    l.load(keys[3].add(k)),
                ];
                for s in 0..S {
                    let q = l.load(self.q.add(s * self.width + k));
                    for r in 0..4 {
                        sums[s][r] = l.fma(key[r], q, sums[s][r]);
                    }
                }
            }
            k += L::N;
        }
        if whole < self.width {
            let left = self.width - whole;
            // SAFETY: fewer than `N` values are left in each row.
            unsafe {
                for s in 0..S {
                    let q = l.load_some(self.q.add(s * self.width + whole), left);
                    for r in 0..4 {
                        let key = l.load_some(keys[r].add(whole), left);
                        sums[s][r] = l.fma(key, q, sums[s][r]);
                    }
                }
            }
        }
        for s in 0..S {
            let four = l.sums(sums[s]);
            for (r, sum) in four.into_iter().enumerate().take(self.last + 1) {
                // SAFETY: score of a key that is there.
                unsafe { self.out.add(s * self.out_stride + r).write(sum) };
            }
        }
    }
}

/// Values of some keys added to the outputs of some heads.
#[derive(Clone, Copy)]
struct Values {
    keys: *const f32,
    count: usize,
    width: usize,
    shares: *const f32,
    shares_stride: usize,
    out: *mut f32,
}

impl Values {
    /// # Safety
    /// `count` rows of `width` floats at `keys`; for `H` heads, `count` shares and `width` outputs.
    #[inline(always)]
    unsafe fn add<L: Lanes, const H: usize>(self, l: L) {
        let mut d = 0;
        while d + 4 * L::N <= self.width {
            // SAFETY: four vectors from column `d`.
            unsafe { self.add_columns::<L, H, 4>(l, d) };
            d += 4 * L::N;
        }
        while d + L::N <= self.width {
            // SAFETY: one vector from column `d`.
            unsafe { self.add_columns::<L, H, 1>(l, d) };
            d += L::N;
        }
        while d < self.width {
            for h in 0..H {
                // SAFETY: column `d` of a key, a share and an output, all inside the caller's rows.
                unsafe {
                    let out = self.out.add(h * self.width + d);
                    for j in 0..self.count {
                        let p = *self.shares.add(h * self.shares_stride + j);
                        *out += p * *self.keys.add(j * self.width + d);
                    }
                }
            }
            d += 1;
        }
    }

    /// # Safety
    /// As [`Self::add`]; `D` vectors of columns from `d` on.
    #[inline(always)]
    unsafe fn add_columns<L: Lanes, const H: usize, const D: usize>(self, l: L, d: usize) {
        let mut sums = [[l.zero(); D]; H];
        // SAFETY: all addresses are columns `d..d + D · N` of the caller's rows, or shares of its keys.
        unsafe {
            for h in 0..H {
                for i in 0..D {
                    sums[h][i] = l.load(self.out.add(h * self.width + d + i * L::N));
                }
            }
            for j in 0..self.count {
                let mut value = [l.zero(); D];
                for i in 0..D {
                    value[i] = l.load(self.keys.add(j * self.width + d + i * L::N));
                }
                for h in 0..H {
                    let p = l.splat(*self.shares.add(h * self.shares_stride + j));
                    for i in 0..D {
                        sums[h][i] = l.fma(p, value[i], sums[h][i]);
                    }
                }
            }
            for h in 0..H {
                for i in 0..D {
                    l.store(self.out.add(h * self.width + d + i * L::N), sums[h][i]);
                }
            }
        }
    }
}

/// Index scores; see `Kernels::index_scores`.
pub(super) struct IndexF32<'a> {
    pub(super) q: &'a [f32],
    pub(super) w: &'a [f32],
    pub(super) keys: Keys<'a>,
    pub(super) width: usize,
    pub(super) out: &'a mut [f32],
    pub(super) buffers: &'a mut Buffers,
}

impl Work for IndexF32<'_> {
    type Out = ();

    /// Sound where `q` is `[w.len(), width]` and there are at least `out.len()` keys.
    #[inline(always)]
    fn go<L: Lanes>(self, l: L) {
        let (width, heads) = (self.width, self.w.len());
        let buffer = self.buffers.weights.take::<f32>(KEYS * width);
        // dots: [heads, KEYS]
        let dots = self.buffers.scores.take::<f32>(heads * KEYS);
        let mut first = 0;
        while first < self.out.len() {
            let some = KEYS.min(self.out.len() - first);
            let keys = decode(l, self.keys, first, some, width, buffer);
            all_dots(l, keys, some, self.q, width, dots, KEYS);
            let mut sums = [0.0f32; KEYS];
            let mut j = 0;
            while j < some {
                let mut sum = l.zero();
                for h in 0..heads {
                    // SAFETY: `KEYS` is a whole number of vectors; what lies behind `some` is not used.
                    let dot = unsafe { l.load(dots.as_ptr().add(h * KEYS + j)) };
                    sum = l.fma(l.splat(self.w[h]), l.max(dot, l.zero()), sum);
                }
                // SAFETY: as above.
                unsafe { l.store(sums.as_mut_ptr().add(j), sum) };
                j += L::N;
            }
            self.out[first..first + some].copy_from_slice(&sums[..some]);
            first += some;
        }
    }
}
