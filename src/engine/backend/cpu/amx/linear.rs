//! Linear layers on tiles.
//!
//! A task multiplies a panel of weights (some pairs of 16 rows) with a chunk of x. The columns are cut into
//! blocks; for each block and pair the weights are converted once and multiplied with all x tiles of the
//! chunk, while sums wait in a scratch. All sums run over the columns in order, 32 at a time, in one f32
//! accumulator of the tile; where blocks end makes no difference.

use std::arch::x86_64::*;
use std::ops::Range;

use super::inputs::{columns, transpose};
use super::stream;
use super::weights::{BLOCK, convert, folds};
use super::{DEPTH, Loaded, PAIR, Product, ROWS, TILE, Tiles};
use crate::engine::backend::cpu::Isa;
use crate::engine::backend::cpu::dense::Dense;
use crate::engine::backend::cpu::scratch::Buffers;
use crate::engine::backend::host::matrix::Matrix;

/// Rows of x of one task: a block of their columns is 512 KiB, a quarter of a second-level cache.
pub(in super::super) const CHUNK: usize = 512;
/// Pairs of one task: their sums for a chunk take 512 KiB.
pub(in super::super) const MAX_PANEL: usize = 8;

/// The work of one task.
pub(in super::super) struct Part<'a> {
    pub(in super::super) w: &'a Matrix,
    /// Rows of `w` whose outputs are wanted.
    pub(in super::super) rows: Range<usize>,
    /// The rows of x of this task, `[count, cols]`.
    pub(in super::super) x: &'a [f32],
    /// The packed inputs of the whole job.
    pub(in super::super) packed: &'a [u16],
    /// Rows of x of the whole job.
    pub(in super::super) job_count: usize,
    /// The first row of x of this task: a multiple of 16.
    pub(in super::super) first_x: usize,
    /// Output of the first wanted row of `w` and the first row of `x`.
    pub(in super::super) y: *mut f32,
    /// Distance of the outputs of two rows of x.
    pub(in super::super) y_stride: usize,
}

impl Tiles {
    /// Runs a task. Pairs whose scales do not fold go to f32 arithmetic: this depends on the matrix alone.
    ///
    /// # Safety
    /// * `w` holds its values and scales, and the wanted rows; [`super::takes`] holds.
    /// * `packed` begins with the inputs of the job as `pack` leaves them.
    /// * Outputs of the wanted rows for all rows of `x` can be written and are nobody else's.
    pub(in super::super) unsafe fn linear(self, isa: Isa, part: Part<'_>, buffers: &mut Buffers) {
        let mut folding = 0u64;
        for (i, pair) in part.pairs().enumerate() {
            if folds(part.w, pair) {
                folding |= 1 << i;
            } else {
                let rows = part.wanted(pair * PAIR, PAIR);
                isa.run(Dense {
                    w: part.w,
                    first_row: rows.start,
                    rows: rows.len(),
                    x: part.x,
                    y: part.y.wrapping_add(rows.start - part.rows.start),
                    y_stride: part.y_stride,
                    buffer: &mut buffers.weights,
                    inputs: &mut buffers.inputs,
                });
            }
        }
        if folding != 0 {
            // SAFETY: the caller's promises; `self` proves the instructions.
            unsafe { part.multiply(self, folding, buffers) };
        }
    }
}

impl Part<'_> {
    /// Pairs of the matrix that have wanted rows.
    fn pairs(&self) -> Range<usize> {
        self.rows.start / PAIR..self.rows.end.div_ceil(PAIR)
    }

    /// The wanted ones of `len` rows from `first` on.
    fn wanted(&self, first: usize, len: usize) -> Range<usize> {
        let start = first.max(self.rows.start);
        start..(first + len).min(self.rows.end).max(start)
    }

    /// # Safety
    /// As [`Tiles::linear`], which also says which pairs fold, one bit each.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    unsafe fn multiply(&self, tiles: Tiles, folding: u64, buffers: &mut Buffers) {
        let cols = self.w.cols;
        let count = self.x.len() / cols;
        let width = columns(self.job_count);
        let x_tiles = count.div_ceil(ROWS);
        let depth = cols.div_ceil(DEPTH);
        // Values of one k tile of packed inputs, and of all of an x tile.
        let (b_len, x_len) = (DEPTH * width, depth * DEPTH * width);
        let packed = &self.packed[self.first_x / ROWS * x_len..][..x_tiles * x_len];
        let weights = buffers.weights.take::<u16>(2 * BLOCK / DEPTH * TILE);
        // sums: [pair][x tile][strip][16 rows of w][16 rows of x]
        const SUM: usize = ROWS * ROWS;
        let pairs = self.pairs();
        let sums = buffers.sums.take::<f32>(pairs.len() * x_tiles * 2 * SUM);
        let loaded = Loaded::new(tiles, width);
        let mut blocked = folding;
        if x_tiles == 1 {
            let b = packed.as_ptr();
            let inputs = stream::Inputs {
                b,
                stride: 4 * width,
                tile: 2 * b_len,
            };
            for (i, pair) in pairs.clone().enumerate() {
                if folding & (1 << i) != 0 && stream::takes(self.w, pair) {
                    blocked &= !(1 << i);
                    let sums = sums[i * 2 * SUM..(i + 1) * 2 * SUM].as_mut_ptr();
                    // SAFETY: the matrix is whole, these rows fold, the one x tile has all k tiles, and there is room
                    // for two tiles of sums.
                    unsafe { stream::run(&loaded, self.w, pair, inputs, sums) };
                }
            }
        }
        for k in (0..cols).step_by(BLOCK) {
            let block = k..cols.min(k + BLOCK);
            let steps = block.len().div_ceil(DEPTH);
            for (i, pair) in pairs.clone().enumerate() {
                if blocked & (1 << i) == 0 {
                    continue;
                }
                // SAFETY: the matrix is whole, and these rows fold.
                unsafe { convert(tiles, self.w, pair, block.clone(), weights) };
                let mut x_tile = 0;
                while x_tile < x_tiles {
                    let b = packed[x_tile * x_len + k / DEPTH * b_len..].as_ptr();
                    let product = Product {
                        a: [weights.as_ptr(), weights[steps * TILE..].as_ptr()],
                        a_stride: 2 * DEPTH,
                        a_step: 2 * TILE,
                        b: [b, b.wrapping_add(x_len)],
                        b_stride: 4 * width,
                        b_step: 2 * b_len,
                        c: sums[(i * x_tiles + x_tile) * 2 * SUM..].as_mut_ptr(),
                        steps,
                        is_first: k == 0,
                    };
                    // SAFETY: `convert` wrote two strips of `steps` tiles; from block `k` on, each x tile has
                    // `steps` more; the sums of two strips and one or two x tiles lie together; tiles
                    // are configured for `width` columns.
                    unsafe {
                        if x_tile + 1 < x_tiles {
                            product.two_by_two(&loaded);
                        } else {
                            product.two_by_one(&loaded);
                        }
                    }
                    x_tile += 2;
                }
            }
        }
        drop(loaded);
        for (i, pair) in pairs.enumerate() {
            if folding & (1 << i) == 0 {
                continue;
            }
            for x_tile in 0..x_tiles {
                for strip in 0..2 {
                    let first = pair * PAIR + strip * ROWS;
                    let rows = self.wanted(first, ROWS);
                    let at = ((i * x_tiles + x_tile) * 2 + strip) * SUM;
                    let x_rows = ROWS.min(count - x_tile * ROWS);
                    let y = self
                        .y
                        .wrapping_add(x_tile * ROWS * self.y_stride)
                        .wrapping_add(rows.start.wrapping_sub(self.rows.start));
                    let sums = &sums[at..at + SUM];
                    // SAFETY: outputs of wanted rows for rows of x of this task.
                    unsafe {
                        store(
                            sums,
                            rows.start - first.min(rows.start),
                            rows.len(),
                            x_rows,
                            y,
                            self.y_stride,
                        );
                    }
                }
            }
        }
    }
}

/// Writes a tile of sums `[row of w][row of x]` the other way round: rows `from..from + len` of w, the first
/// `x_rows` of x.
///
/// # Safety
/// `len` floats can be written at `y` and at each of the next `x_rows - 1` strides.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn store(sums: &[f32], from: usize, len: usize, x_rows: usize, y: *mut f32, stride: usize) {
    if len == 0 {
        return;
    }
    if x_rows == 1 {
        for i in 0..len {
            // SAFETY: the first row of x.
            unsafe { y.add(i).write(sums[(from + i) * ROWS]) };
        }
        return;
    }
    assert_eq!(sums.len(), ROWS * ROWS, "a tile of sums");
    let mut rows = [_mm512_setzero_si512(); ROWS];
    // Loops of sixteen turns are unrolled, so that the rows stay in registers.
    for (i, row) in rows.iter_mut().enumerate() {
        // SAFETY: sixteen floats of the tile.
        *row = unsafe { _mm512_loadu_si512(sums.as_ptr().add(i * ROWS).cast()) };
    }
    let mask = (((1u32 << len) - 1) << from) as u16;
    for (s, row) in transpose(rows).into_iter().enumerate() {
        if s < x_rows {
            // SAFETY: only lanes `from..from + len` are written, to `len` floats from `y` on.
            unsafe {
                let to = y.wrapping_add(s * stride).wrapping_sub(from);
                _mm512_mask_storeu_epi32(to.cast(), mask, row);
            }
        }
    }
}
