//! Sparse attention and index scores on tiles, for exact queries and keys.
//!
//! Scores are `K · Qᵀ`: keys are A, as they lie in the cache, heads are columns, so that sixteen heads share
//! a vector and the softmax runs over keys in their order. The sum over values is `P · V`: probabilities,
//! transposed and rounded to bfloat16, are A, and the keys, two of them interleaved, are B. Each value
//! is one f32 sum over the keys in order, 32 at a time.

use std::arch::x86_64::*;

use super::inputs::{transpose, upper_halves};
use super::{DEPTH, Loaded, PAIR, Product, ROWS, TILE, Tiles};
use crate::engine::backend::cpu::lanes::{Avx512, Lanes};
use crate::engine::backend::cpu::scratch::{Buffers, Scratch};
use crate::engine::backend::host::kernels::Attend;

/// Values of a tile of sums.
const SUM: usize = ROWS * ROWS;
/// Keys whose values are interleaved at a time: 512 KiB at the published width of 512.
const VALUE_KEYS: usize = 512;
/// Pairs of key tiles that index scores are made for at a time.
const INDEX_PAIRS: usize = 4;

/// Whether tiles are made for rows of this width.
pub(in super::super) fn takes_width(width: usize) -> bool {
    width.is_multiple_of(DEPTH)
}

impl Tiles {
    /// One query row; `keys` are `[n, width]`. The caller has checked all lengths.
    pub(in super::super) fn attend(
        self,
        job: &mut Attend<'_>,
        keys: &[u16],
        buffers: &mut Buffers,
    ) {
        let vectors = Avx512::detect().expect("a machine with tiles has AVX-512");
        // SAFETY: `self` proves the instructions.
        unsafe { attend(self, vectors, job, keys, buffers) }
    }

    /// Scores of the first `out.len()` keys. The caller has checked all lengths.
    pub(in super::super) fn index_scores(
        self,
        q: &[f32],
        w: &[f32],
        keys: &[u16],
        width: usize,
        out: &mut [f32],
        buffers: &mut Buffers,
    ) {
        let vectors = Avx512::detect().expect("a machine with tiles has AVX-512");
        // SAFETY: `self` proves the instructions.
        unsafe {
            index_scores(
                self,
                vectors,
                q,
                w,
                &keys[..out.len() * width],
                width,
                out,
                buffers,
            )
        }
    }
}

/// Queries of all heads as B tiles: `[head tile][k tile][pair][head]`, an even number of head tiles, zeros
/// where there is no head.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi")]
fn pack_queries<'a>(q: &[f32], width: usize, buffer: &'a mut Scratch) -> &'a [u16] {
    let head_tiles = (q.len() / width).div_ceil(PAIR) * 2;
    let packed = buffer.take::<u16>(head_tiles * ROWS * width);
    for (tile, out) in packed.chunks_exact_mut(ROWS * width).enumerate() {
        for (k, out) in (0..width).step_by(DEPTH).zip(out.chunks_exact_mut(TILE)) {
            let mut pairs = [_mm512_setzero_si512(); ROWS];
            for (h, pair) in pairs.iter_mut().enumerate() {
                let at = (tile * ROWS + h) * width + k;
                if at < q.len() {
                    *pair = upper_halves(&q[at..at + DEPTH]);
                }
            }
            assert_eq!(out.len(), TILE);
            for (i, pair) in transpose(pairs).into_iter().enumerate() {
                // SAFETY: 32 of the tile's values of 16 bits.
                unsafe { _mm512_storeu_si512(out.as_mut_ptr().add(i * DEPTH).cast(), pair) };
            }
        }
    }
    packed
}

/// Rows that A tiles can be read from: those of the cache, or, for the last few, a copy with zeros behind.
struct KeyTiles<'a> {
    keys: &'a [u16],
    /// The last incomplete pair of tiles.
    rest: &'a [u16],
    width: usize,
}

impl<'a> KeyTiles<'a> {
    fn new(keys: &'a [u16], width: usize, buffer: &'a mut Scratch) -> Self {
        let whole = keys.len() / width / PAIR * PAIR * width;
        let rest = buffer.take::<u16>(PAIR * width);
        let left = keys.len() - whole;
        rest[..left].copy_from_slice(&keys[whole..]);
        rest[left..].fill(0);
        Self {
            keys: &keys[..whole],
            rest,
            width,
        }
    }

    /// Keys `pair · 32..` as 32 rows.
    fn pair(&self, pair: usize) -> &[u16] {
        let len = PAIR * self.width;
        self.keys
            .get(pair * len..(pair + 1) * len)
            .unwrap_or(self.rest)
    }
}

/// Scores of one pair of key tiles with all heads: `[head tile][strip][key][head]`.
///
/// # Safety
/// The machine has tiles, configured for 16 columns; `queries` are `pack_queries`' for `width`; `out` has room for
/// two tiles of sums for each head tile.
unsafe fn scores(loaded: &Loaded, keys: &[u16], queries: &[u16], width: usize, out: &mut [f32]) {
    let q_len = ROWS * width;
    assert!(keys.len() >= PAIR * width && out.len() >= queries.len() / q_len * 2 * SUM);
    for (queries, out) in queries
        .chunks_exact(2 * q_len)
        .zip(out.chunks_exact_mut(4 * SUM))
    {
        let product = Product {
            a: [keys.as_ptr(), keys[ROWS * width..].as_ptr()],
            a_stride: 2 * width,
            a_step: 2 * DEPTH,
            b: [queries.as_ptr(), queries[q_len..].as_ptr()],
            b_stride: 2 * DEPTH,
            b_step: 2 * TILE,
            c: out.as_mut_ptr(),
            steps: width / DEPTH,
            is_first: true,
        };
        // SAFETY: 32 rows of keys and two head tiles of `width / 32` k tiles, room for four tiles of sums.
        unsafe { product.two_by_two(loaded) };
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi,avx512bf16,avx2,fma,f16c,avx512dq")]
fn attend(tiles: Tiles, l: Avx512, job: &mut Attend<'_>, keys: &[u16], buffers: &mut Buffers) {
    let width = job.width;
    let heads = job.sink.len();
    let n = keys.len() / width;
    if n == 0 {
        job.out.fill(0.0);
        return;
    }
    let head_tiles = heads.div_ceil(PAIR) * 2;
    let pairs = n.div_ceil(PAIR);
    let queries = pack_queries(job.q, width, &mut buffers.inputs);
    // scores: [pair of key tiles][head tile][strip][key][head]
    let per_pair = head_tiles * 2 * SUM;
    let all = buffers.scores.take::<f32>(pairs * per_pair);
    {
        let rows = KeyTiles::new(keys, width, &mut buffers.weights);
        let loaded = Loaded::new(tiles, ROWS);
        for (pair, out) in all.chunks_exact_mut(per_pair).enumerate() {
            // SAFETY: tiles are configured for 16 columns; the asserts inside check the lengths.
            unsafe { scores(&loaded, rows.pair(pair), queries, width, out) };
        }
    }
    // shares: [head tile][pair of key tiles][head][32 keys]
    let shares = buffers.shares.take::<u16>(head_tiles * pairs * TILE);
    for (tile, shares) in shares.chunks_exact_mut(pairs * TILE).enumerate() {
        let first = tile * ROWS;
        let some = ROWS.min(heads.saturating_sub(first));
        if some == 0 {
            shares.fill(0);
            continue;
        }
        let mut sink = [0.0f32; ROWS];
        sink[..some].copy_from_slice(&job.sink[first..first + some]);
        // SAFETY: sixteen floats.
        let sink = unsafe { l.load(sink.as_ptr()) };
        let scores = Softmax {
            all,
            per_pair,
            offset: tile * 2 * SUM,
            n,
        };
        scores.run(l, job.scale, sink, shares);
    }
    // sums: [head pair][column pair][column tile][head tile][head][column]
    let column_pairs = width / DEPTH;
    let sums = buffers
        .sums
        .take::<f32>(head_tiles * column_pairs * 2 * SUM);
    for first in (0..n).step_by(VALUE_KEYS) {
        let some = VALUE_KEYS.min(n - first);
        let steps = some.div_ceil(PAIR);
        let rows = &keys[first * width..(first + some) * width];
        let values = pack_values(rows, width, &mut buffers.weights);
        let loaded = Loaded::new(tiles, ROWS);
        for (columns, values) in values.chunks_exact(steps * 2 * TILE).enumerate() {
            for head_pair in 0..head_tiles / 2 {
                let share = |tile: usize| {
                    shares[((head_pair * 2 + tile) * pairs + first / PAIR) * TILE..].as_ptr()
                };
                let product = Product {
                    a: [share(0), share(1)],
                    a_stride: 2 * DEPTH,
                    a_step: 2 * TILE,
                    b: [values.as_ptr(), values[steps * TILE..].as_ptr()],
                    b_stride: 2 * DEPTH,
                    b_step: 2 * TILE,
                    c: sums[(head_pair * column_pairs + columns) * 4 * SUM..].as_mut_ptr(),
                    steps,
                    is_first: first == 0,
                };
                // SAFETY: `steps` tiles of shares from key `first` on for two head tiles, as many of values for
                // two column tiles, and four tiles of sums.
                unsafe { product.two_by_two(&loaded) };
            }
        }
    }
    // The columns of two tiles as `pack_values` left them, in quarters of four.
    let low = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
    let high = _mm512_setr_epi32(8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31);
    for (h, out) in job.out.chunks_exact_mut(width).enumerate() {
        for (columns, out) in out.chunks_exact_mut(DEPTH).enumerate() {
            let at = (h / PAIR * column_pairs + columns) * 4 * SUM + h % PAIR * ROWS;
            // SAFETY: row `h` of two tiles, two tiles apart; 32 outputs.
            unsafe {
                let a = _mm512_loadu_ps(sums[at..at + ROWS].as_ptr());
                let b = _mm512_loadu_ps(sums[at + 2 * SUM..at + 2 * SUM + ROWS].as_ptr());
                let to = out.as_mut_ptr();
                _mm512_storeu_ps(to, _mm512_permutex2var_ps(a, low, b));
                _mm512_storeu_ps(to.add(ROWS), _mm512_permutex2var_ps(a, high, b));
            }
        }
    }
}

/// Softmax of sixteen heads over all keys.
struct Softmax<'a> {
    /// Scores of all head tiles; those of these heads start at `offset` of each `per_pair`.
    all: &'a mut [f32],
    per_pair: usize,
    offset: usize,
    n: usize,
}

impl Softmax<'_> {
    /// Where the scores of key `j` are.
    #[inline(always)]
    fn at(&self, j: usize) -> usize {
        j / PAIR * self.per_pair + self.offset + j % PAIR * ROWS
    }

    /// Writes bfloat16 shares `[pair of key tiles][head][32 keys]`.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
    fn run(self, l: Avx512, scale: f32, sink: __m512, shares: &mut [u16]) {
        let scale = _mm512_set1_ps(scale);
        let mut largest = sink;
        for j in 0..self.n {
            let at = self.at(j);
            // SAFETY: sixteen scores.
            let s = unsafe { _mm512_loadu_ps(self.all[at..at + ROWS].as_ptr()) };
            largest = _mm512_max_ps(largest, _mm512_mul_ps(s, scale));
        }
        let mut total = l.exp(_mm512_sub_ps(sink, largest));
        for j in 0..self.n {
            let at = self.at(j);
            let row = &mut self.all[at..at + ROWS];
            // SAFETY: sixteen scores.
            unsafe {
                let s = _mm512_mul_ps(_mm512_loadu_ps(row.as_ptr()), scale);
                let e = l.exp(_mm512_sub_ps(s, largest));
                total = _mm512_add_ps(total, e);
                _mm512_storeu_ps(row.as_mut_ptr(), e);
            }
        }
        let inverse = _mm512_div_ps(_mm512_set1_ps(1.0), total);
        for (pair, out) in shares.chunks_exact_mut(TILE).enumerate() {
            let left = self.strip(pair * PAIR, inverse);
            let right = self.strip(pair * PAIR + ROWS, inverse);
            assert_eq!(out.len(), TILE);
            for h in 0..ROWS {
                let (left, right) = (_mm512_castsi512_ps(left[h]), _mm512_castsi512_ps(right[h]));
                // The first argument makes the upper half.
                let both = _mm512_cvtne2ps_pbh(right, left);
                // SAFETY: 32 of the tile's values of 16 bits, in a type of the same size.
                unsafe {
                    let both = std::mem::transmute::<__m512bh, __m512i>(both);
                    _mm512_storeu_si512(out.as_mut_ptr().add(h * DEPTH).cast(), both);
                }
            }
        }
    }

    /// Shares of sixteen keys from `first` on, a row a head; zero where there is no key.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    fn strip(&self, first: usize, inverse: __m512) -> [__m512i; ROWS] {
        let from = self.at(first);
        let scores = &self.all[from..from + SUM];
        let mut rows = [_mm512_setzero_si512(); ROWS];
        for (j, row) in rows.iter_mut().enumerate() {
            if first + j < self.n {
                // SAFETY: sixteen scores of the tile.
                let e = unsafe { _mm512_loadu_ps(scores.as_ptr().add(j * ROWS)) };
                *row = _mm512_castps_si512(_mm512_mul_ps(e, inverse));
            }
        }
        transpose(rows)
    }
}

/// Values as B tiles `[column tile][pair of key tiles][key pair][column]`, zeros where there is no key. Of each
/// 32 columns the first tile has 0–3, 8–11, 16–19 and 24–27, the second the others: interleaving then takes
/// one instruction.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
fn pack_values<'a>(rows: &[u16], width: usize, buffer: &'a mut Scratch) -> &'a [u16] {
    let n = rows.len() / width;
    let steps = n.div_ceil(PAIR);
    let packed = buffer.take::<u16>(steps * TILE * width / ROWS);
    for pair in 0..steps * ROWS {
        let row = |j: usize| (j < n).then(|| &rows[j * width..(j + 1) * width]);
        let (even, odd) = (row(2 * pair), row(2 * pair + 1));
        for column in (0..width).step_by(DEPTH) {
            let load = |row: Option<&[u16]>| match row {
                // SAFETY: 32 values of the row.
                Some(row) => unsafe {
                    _mm512_loadu_si512(row[column..column + DEPTH].as_ptr().cast())
                },
                None => _mm512_setzero_si512(),
            };
            let (even, odd) = (load(even), load(odd));
            let at = (column / ROWS * steps + pair / ROWS) * TILE + pair % ROWS * DEPTH;
            for (at, values) in [
                (at, _mm512_unpacklo_epi16(even, odd)),
                (at + steps * TILE, _mm512_unpackhi_epi16(even, odd)),
            ] {
                // SAFETY: 32 values.
                unsafe { _mm512_storeu_si512(packed[at..at + DEPTH].as_mut_ptr().cast(), values) };
            }
        }
    }
    packed
}

#[expect(
    clippy::too_many_arguments,
    reason = "the kernel's own signature and what runs it"
)]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi,avx2,fma,f16c,avx512dq")]
fn index_scores(
    tiles: Tiles,
    l: Avx512,
    q: &[f32],
    w: &[f32],
    keys: &[u16],
    width: usize,
    out: &mut [f32],
    buffers: &mut Buffers,
) {
    let head_tiles = w.len().div_ceil(PAIR) * 2;
    let queries = pack_queries(q, width, &mut buffers.inputs);
    let rows = KeyTiles::new(keys, width, &mut buffers.weights);
    let weights = buffers.shares.take::<f32>(head_tiles * ROWS);
    weights[..w.len()].copy_from_slice(w);
    // Heads that are not there have scores of zero, which count nothing.
    weights[w.len()..].fill(0.0);
    let per_pair = head_tiles * 2 * SUM;
    let all = buffers.scores.take::<f32>(INDEX_PAIRS * per_pair);
    let loaded = Loaded::new(tiles, ROWS);
    for (block, out) in out.chunks_mut(INDEX_PAIRS * PAIR).enumerate() {
        for (i, out) in all
            .chunks_exact_mut(per_pair)
            .enumerate()
            .take(out.len().div_ceil(PAIR))
        {
            // SAFETY: tiles are configured for 16 columns; the asserts inside check the lengths.
            unsafe {
                scores(
                    &loaded,
                    rows.pair(block * INDEX_PAIRS + i),
                    queries,
                    width,
                    out,
                )
            };
        }
        for (four, out) in out.chunks_mut(4).enumerate() {
            let pair = four * 4 / PAIR;
            let first = pair * per_pair + four * 4 % PAIR * ROWS;
            let mut sums = [l.zero(); 4];
            for (tile, weights) in weights.chunks_exact(ROWS).enumerate() {
                let at = first + tile * 2 * SUM;
                let scores = &all[at..at + 4 * ROWS];
                // SAFETY: sixteen weights, and four rows of sixteen scores.
                unsafe {
                    let weight = l.load(weights.as_ptr());
                    for (i, sum) in sums.iter_mut().enumerate() {
                        let score = l.load(scores.as_ptr().add(i * ROWS));
                        *sum = l.fma(weight, l.max(score, l.zero()), *sum);
                    }
                }
            }
            let four = l.sums(sums);
            out.copy_from_slice(&four[..out.len()]);
        }
    }
}
