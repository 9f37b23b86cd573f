//! Linear layers in f32: plain numerics, f32 matrices, and machines without matrix units.
//!
//! `y[s, n] = Σ_k x[s, k] · w[n, k]`. Weights are decoded sixteen rows and [`BLOCK`] columns at a time into a
//! buffer that stays in the cache, and multiplied there with all rows of x.
//!
//! The sum of one output, whatever its neighbours: the columns are cut into blocks of [`BLOCK`]; in a
//! block, lane `i` of one vector adds the products of columns `i`, `i + N`, … in order; lanes are
//! added by [`Lanes::sum`], blocks in order. The error grows with `BLOCK / N` plus the number of blocks,
//! not with the number of columns.

#![expect(
    clippy::needless_range_loop,
    reason = "register blocks: loops over constant ranges index several arrays at once"
)]

use super::lanes::{Lanes, Work};
use super::prefetch;
use super::scratch::Scratch;
use crate::engine::backend::host::matrix::{Format, Matrix};

/// Columns of one partial sum. 4 rows of weights and 6 of x of this length fit into 48 KiB.
const BLOCK: usize = 1024;
/// Rows decoded at a time.
const GROUP: usize = 16;

/// Some rows of one job, for some rows of x.
pub(super) struct Dense<'a> {
    pub(super) w: &'a Matrix,
    /// The first of the rows of `w`.
    pub(super) first_row: usize,
    pub(super) rows: usize,
    /// `[count, cols]`.
    pub(super) x: &'a [f32],
    /// Where the output of the first row of `x` and the first row of `w` goes.
    pub(super) y: *mut f32,
    /// Distance of the outputs of two rows of x.
    pub(super) y_stride: usize,
    /// For decoded weights.
    pub(super) buffer: &'a mut Scratch,
    /// For blocks of x.
    pub(super) inputs: &'a mut Scratch,
}

impl Work for Dense<'_> {
    type Out = ();

    /// Sound where
    /// * `w` holds `rows · cols` values and their scales, `first_row + rows` ≤ `w.rows`, and
    /// * for each row of `x`, `rows` floats can be written at `y` and nobody else uses them.
    #[inline(always)]
    fn go<L: Lanes>(mut self, l: L) {
        let cols = self.w.cols;
        let count = self.x.len() / cols;
        if count <= L::BLOCK {
            // Each decoded row is used once: eight of them need not leave the first-level cache, and rows are read
            // from end to end.
            for group in (0..self.rows).step_by(8) {
                for k in (0..cols).step_by(BLOCK) {
                    let x = (self.x[k..].as_ptr(), cols);
                    self.group(l, group, 8.min(self.rows - group), k, count, x);
                }
            }
            return;
        }
        for k in (0..cols).step_by(BLOCK) {
            // Rows of x lie far apart and would meet in few sets of the caches: their block is copied together, once for
            // all rows of weights.
            let len = BLOCK.min(cols - k);
            let inputs = self.inputs.take::<f32>(count * BLOCK);
            for (to, from) in inputs
                .chunks_exact_mut(BLOCK)
                .zip(self.x.chunks_exact(cols))
            {
                to[..len].copy_from_slice(&from[k..k + len]);
            }
            let x = (inputs.as_ptr(), BLOCK);
            for group in (0..self.rows).step_by(GROUP) {
                self.group(l, group, GROUP.min(self.rows - group), k, count, x);
            }
        }
    }
}

impl Dense<'_> {
    /// Adds the products of one block of columns for up to `GROUP` rows of weights. `x` is the first row of the
    /// block and the distance of rows.
    #[inline(always)]
    fn group<L: Lanes>(
        &mut self,
        l: L,
        group: usize,
        rows: usize,
        k: usize,
        count: usize,
        x: (*const f32, usize),
    ) {
        let cols = self.w.cols;
        let len = BLOCK.min(cols - k);
        let buffer = self.buffer.take::<f32>(GROUP * BLOCK);
        for row in 0..rows {
            let at = self.first_row + group + row;
            let ahead = if k + len < cols {
                (at, k + len)
            } else {
                (at + rows, 0)
            };
            prefetch_block(self.w, ahead.0, ahead.1);
            decode(
                l,
                self.w,
                at,
                k,
                len,
                &mut buffer[row * BLOCK..(row + 1) * BLOCK],
            );
        }
        for s in (0..count).step_by(L::BLOCK) {
            let x_rows = L::BLOCK.min(count - s);
            let mut row = 0;
            while row < rows {
                // One row of x alone keeps the arithmetic busy only with eight rows of weights.
                let some = if x_rows == 1 { 8 } else { 4 }.min(rows - row);
                let block = Block {
                    w: buffer[row * BLOCK..].as_ptr(),
                    x: x.0.wrapping_add(s * x.1),
                    x_stride: x.1,
                    len,
                    y: self.y.wrapping_add(s * self.y_stride + group + row),
                    y_stride: self.y_stride,
                    rows: some,
                    is_first: k == 0,
                };
                // SAFETY: from `row` on, the buffer has at least `some` rounded up to 4 rows of `BLOCK` floats, as
                // `GROUP` is a multiple of 8; `x_rows` rows of x have `len` columns of this block; the outputs are
                // ours, see `go`.
                unsafe { block.dispatch(l, x_rows) };
                row += some;
            }
        }
    }
}

/// Up to eight rows of weights times some rows of x, over one block of columns.
#[derive(Clone, Copy)]
struct Block {
    /// Rows at a distance of `BLOCK`; zeros behind `len` up to whole vectors.
    w: *const f32,
    x: *const f32,
    x_stride: usize,
    len: usize,
    y: *mut f32,
    y_stride: usize,
    /// Rows of weights whose outputs are wanted.
    rows: usize,
    /// Outputs are written, not added to.
    is_first: bool,
}

impl Block {
    /// # Safety
    /// * `rows` rounded up to a multiple of 4 rows of `BLOCK` floats at `w`.
    /// * `x_rows` rows of `len` floats at `x`, and of `rows` floats at `y`, which nobody else uses.
    #[inline(always)]
    unsafe fn dispatch<L: Lanes>(self, l: L, x_rows: usize) {
        // SAFETY: the caller's promises, which name the same numbers.
        unsafe {
            match x_rows {
                1 if self.rows > 4 => self.multiply::<L, 8, 1>(l),
                1 => self.multiply::<L, 4, 1>(l),
                2 => self.multiply::<L, 4, 2>(l),
                3 => self.multiply::<L, 4, 3>(l),
                4 => self.multiply::<L, 4, 4>(l),
                5 => self.multiply::<L, 4, 5>(l),
                _ => self.multiply::<L, 4, 6>(l),
            }
        }
    }

    /// # Safety
    /// As [`Self::dispatch`], for `R` rows of weights and `S` of x.
    #[inline(always)]
    unsafe fn multiply<L: Lanes, const R: usize, const S: usize>(self, l: L) {
        let mut sums = [[l.zero(); R]; S];
        let whole = self.len / L::N * L::N;
        let mut k = 0;
        while k < whole {
            // SAFETY: `k + N` ≤ `len`, so both loads stay inside the caller's rows.
            unsafe {
                let mut w = [l.zero(); R];
                for r in 0..R {
                    w[r] = l.load(self.w.add(r * BLOCK + k));
                }
                for s in 0..S {
                    let x = l.load(self.x.add(s * self.x_stride + k));
                    for r in 0..R {
                        sums[s][r] = l.fma(w[r], x, sums[s][r]);
                    }
                }
            }
            k += L::N;
        }
        if whole < self.len {
            // SAFETY: fewer than `N` values of x are left; rows of weights are as long as `BLOCK`.
            unsafe {
                for s in 0..S {
                    let x = l.load_some(self.x.add(s * self.x_stride + whole), self.len - whole);
                    for r in 0..R {
                        let w = l.load(self.w.add(r * BLOCK + whole));
                        sums[s][r] = l.fma(w, x, sums[s][r]);
                    }
                }
            }
        }
        for s in 0..S {
            for r in (0..R).step_by(4) {
                let four = l.sums([sums[s][r], sums[s][r + 1], sums[s][r + 2], sums[s][r + 3]]);
                for (i, sum) in four
                    .into_iter()
                    .enumerate()
                    .take(self.rows.saturating_sub(r))
                {
                    // SAFETY: output `r + i` < `rows` of row `s` of x.
                    unsafe {
                        let y = self.y.add(s * self.y_stride + r + i);
                        y.write(if self.is_first { sum } else { *y + sum });
                    }
                }
            }
        }
    }
}

/// Asks for the columns from `k` on of one row, which will be decoded in the next round.
#[inline(always)]
fn prefetch_block(w: &Matrix, row: usize, k: usize) {
    let bits = match w.format {
        Format::Fp8 { .. } => 8,
        Format::Fp4 { .. } => 4,
        Format::Bf16 => 16,
        Format::F32 => 32,
    };
    let len = BLOCK.min(w.cols - k);
    prefetch(
        w.data.as_ptr().wrapping_add((row * w.cols + k) * bits / 8),
        len * bits / 8,
    );
}

/// Columns `k..k + len` of a row as f32, zeros behind them up to whole vectors. `k` is a multiple of
/// `BLOCK`.
///
/// Sound where the matrix holds the row.
#[inline(always)]
fn decode<L: Lanes>(l: L, w: &Matrix, row: usize, k: usize, len: usize, out: &mut [f32]) {
    let base = row * w.cols + k;
    let to = out.as_mut_ptr();
    // Vectors of 32 columns never cross a scale where blocks are whole multiples of 32.
    match &w.format {
        Format::Fp8 { block, scales } if block.is_multiple_of(32) && w.cols.is_multiple_of(32) => {
            let tiles = row / block * w.cols.div_ceil(*block);
            let mut at = 0;
            while at < len {
                let end = len.min(((k + at) / block + 1) * block - k);
                let scale = l.splat(scales.get(tiles + (k + at) / block));
                while at < end {
                    // SAFETY: `at + 32` ≤ `len` ≤ `BLOCK`: inside the row and the buffer.
                    unsafe {
                        let codes = w.data.as_ptr().add(base + at);
                        l.store(to.add(at), l.mul(l.load_e4m3(codes), scale));
                    }
                    at += L::N;
                }
            }
        }
        Format::Fp4 { scales } if w.cols.is_multiple_of(32) => {
            let groups = base / 32;
            let mut at = 0;
            while at < len {
                let scale = l.splat(scales.get(groups + at / 32));
                let end = at + 32;
                while at < end {
                    // SAFETY: `at + N` ≤ `len` ≤ `BLOCK`: inside the row and the buffer.
                    unsafe {
                        let codes = w.data.as_ptr().add((base + at) / 2);
                        l.store(to.add(at), l.mul(l.load_e2m1(codes), scale));
                    }
                    at += L::N;
                }
            }
        }
        Format::Bf16 => {
            let whole = len / L::N * L::N;
            let mut at = 0;
            while at < whole {
                // SAFETY: `at + N` ≤ `len` ≤ `BLOCK`: inside the row and the buffer.
                unsafe {
                    l.store(
                        to.add(at),
                        l.load_bf16(w.data.as_ptr().add((base + at) * 2)),
                    )
                };
                at += L::N;
            }
            rest(w, row, k, whole, len, L::N, out);
        }
        Format::F32 => {
            let whole = len / L::N * L::N;
            let mut at = 0;
            while at < whole {
                // SAFETY: `at + N` ≤ `len` ≤ `BLOCK`: inside the row and the buffer; `load` takes any
                // alignment.
                unsafe {
                    l.store(
                        to.add(at),
                        l.load(w.data.as_ptr().add((base + at) * 4).cast()),
                    )
                };
                at += L::N;
            }
            rest(w, row, k, whole, len, L::N, out);
        }
        // No published matrix is like this.
        Format::Fp8 { .. } | Format::Fp4 { .. } => rest(w, row, k, 0, len, L::N, out),
    }
}

/// Columns `k + from..k + len` one by one, then zeros.
#[inline(never)]
fn rest(w: &Matrix, row: usize, k: usize, from: usize, len: usize, lanes: usize, out: &mut [f32]) {
    w.row(row, k + from..k + len, &mut out[from..len]);
    out[len..len.next_multiple_of(lanes)].fill(0.0);
}
