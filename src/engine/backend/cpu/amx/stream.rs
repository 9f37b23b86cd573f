//! Linear layers on tiles for few rows of x: weights are used once, so they pass by.
//!
//! With at most one x tile, converting weights takes longer than multiplying them. The two are interleaved: while
//! vector units convert the next 64 columns of a pair of strips into a small ring, the matrix unit multiplies the
//! 64 before them. Sums stay in their tiles from the first column to the last; the order of a sum is that of
//! [`super::linear`]. bfloat16 needs no conversion and is read by the matrix unit where it lies.
//!
//! Bound: port 5 of the vector units, about 7 cycles for 64 E4M3 codes, 5 for 64 E2M1 codes.

use std::arch::asm;
use std::arch::x86_64::*;

use super::weights::{
    E4m3Table, e2m1_row, e2m1_tables, e4m3_rows, e4m3_tables, lower, scale_byte, upper,
};
use super::{DEPTH, Loaded, PAIR, ROWS, TILE};
use crate::engine::backend::host::matrix::{Format, Matrix, Scales};

/// Columns of one step.
const STEP: usize = 64;
/// Bytes ahead of the step that are asked for in each row.
const AHEAD: usize = 512;

/// The inputs of one x tile, packed.
#[derive(Clone, Copy)]
pub(super) struct Inputs {
    pub(super) b: *const u16,
    /// Bytes of a row of B, and of a tile.
    pub(super) stride: usize,
    pub(super) tile: usize,
}

/// Whether [`run`] takes this matrix: the others go block by block.
pub(super) fn takes(w: &Matrix, pair: usize) -> bool {
    w.cols.is_multiple_of(DEPTH)
        && match w.format {
            Format::Fp8 { .. } => true,
            Format::Fp4 { ref scales } => matches!(scales, Scales::E8m0(_)),
            // Tiles are read in place, so all their rows must be there.
            Format::Bf16 => (pair + 1) * PAIR <= w.rows,
            Format::F32 => false,
        }
}

/// Sums of one pair of strips for one x tile: two tiles at `sums`. Sums of rows that the matrix does not have
/// mean nothing.
///
/// # Safety
/// * [`takes`] and `folds` hold, and the matrix holds its values and scales.
/// * `inputs` has a tile for each 32 columns, with the number of columns that `Loaded` was made for.
/// * Two tiles of 16 rows of 64 bytes can be written at `sums`.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi")]
pub(super) unsafe fn run(loaded: &Loaded, w: &Matrix, pair: usize, inputs: Inputs, sums: *mut f32) {
    // SAFETY: tiles are configured; the caller's promises are passed on.
    unsafe {
        asm!("tilezero tmm0", "tilezero tmm1", out("tmm0") _, out("tmm1") _, options(nostack));
        match &w.format {
            Format::Fp8 { block, scales } => e4m3(loaded, w, pair, *block, scales, inputs),
            Format::Fp4 {
                scales: Scales::E8m0(scales),
            } => e2m1(loaded, w, pair, scales, inputs),
            _ => bf16(loaded, w, pair, inputs),
        }
        asm!(
            "tilestored [{c} + {row}*1], tmm0",
            "tilestored [{c} + {row}*1 + 1024], tmm1",
            c = in(reg) sums,
            row = in(reg) 64usize,
            options(nostack, preserves_flags),
        );
    }
}

/// Adds the products of one tile of both strips with one of B. The sums are in tiles 0 and 1, which nothing but
/// the functions of this file uses between the zeroing and the storing in [`run`].
///
/// # Safety
/// Tiles are configured, and the three can be read.
#[inline(always)]
unsafe fn multiply(
    _: &Loaded,
    a: [*const u16; 2],
    a_stride: usize,
    b: *const u16,
    b_stride: usize,
) {
    // SAFETY: the caller's promise.
    unsafe {
        asm!(
            "tileloadd tmm6, [{b} + {bs}*1]",
            "tileloadd tmm4, [{a0} + {as}*1]",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tileloadd tmm5, [{a1} + {as}*1]",
            "tdpbf16ps tmm1, tmm5, tmm6",
            a0 = in(reg) a[0],
            a1 = in(reg) a[1],
            as = in(reg) a_stride,
            b = in(reg) b,
            bs = in(reg) b_stride,
            out("tmm0") _, out("tmm1") _, out("tmm4") _, out("tmm5") _, out("tmm6") _,
            options(nostack, preserves_flags),
        );
    }
}

/// Tiles that are converted and not yet multiplied: `[step, odd or even][k tile][strip]`.
#[repr(C, align(64))]
struct Ring([u16; 2 * 4 * TILE]);

impl Ring {
    fn slot(&mut self, step: usize) -> *mut u16 {
        self.0[step % 2 * 4 * TILE..].as_mut_ptr()
    }

    /// Multiplies the `tiles` k tiles of `step`.
    ///
    /// # Safety
    /// As [`multiply`]; `inputs` has these tiles.
    #[inline(always)]
    unsafe fn multiply(&mut self, loaded: &Loaded, step: usize, tiles: usize, inputs: Inputs) {
        let slot = self.slot(step).cast_const();
        for tile in 0..tiles {
            let k = step * (STEP / DEPTH) + tile;
            // SAFETY: a slot has two tiles for each k tile; the rest is the caller's promise.
            unsafe {
                let a = slot.add(tile * 2 * TILE);
                let b = inputs.b.byte_add(k * inputs.tile);
                multiply(loaded, [a, a.add(TILE)], 2 * DEPTH, b, inputs.stride);
            }
        }
    }
}

/// The rows of a pair as addresses: rows that are not there are replaced by the last, whose sums nobody reads.
struct Rows {
    base: *const u8,
    stride: usize,
    last: usize,
}

impl Rows {
    fn new(w: &Matrix, pair: usize, bits: usize) -> Self {
        let stride = w.cols * bits / 8;
        Self {
            base: w.data.as_ptr().wrapping_add(pair * PAIR * stride),
            stride,
            last: w.rows - pair * PAIR - 1,
        }
    }

    #[inline(always)]
    fn at(&self, row: usize, byte: usize) -> *const u8 {
        self.base
            .wrapping_add(row.min(self.last) * self.stride + byte)
    }

    /// Asks for what `row` is read for `AHEAD` bytes later; behind the end of the row that is the start of the row
    /// that takes its place.
    #[inline(always)]
    fn prefetch(&self, row: usize, byte: usize) {
        let ahead = byte + AHEAD;
        let wrap = if ahead < self.stride {
            0
        } else {
            PAIR * self.stride - self.stride
        };
        let at = self.base.wrapping_add(row * self.stride + ahead + wrap);
        // SAFETY: a prefetch reads nothing a program could notice.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) };
    }
}

/// # Safety
/// As [`run`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi")]
unsafe fn e4m3(
    loaded: &Loaded,
    w: &Matrix,
    pair: usize,
    block: usize,
    scales: &Scales,
    inputs: Inputs,
) {
    let rows = Rows::new(w, pair, 8);
    let blocks = pair * PAIR / block * w.cols.div_ceil(block);
    let tables = e4m3_tables();
    let table = |k: usize| -> *const E4m3Table { &tables[scale_byte(scales, blocks + k / block)] };
    let mut ring = Ring([0; 2 * 4 * TILE]);
    let whole = w.cols / STEP;
    for step in 0..whole {
        let k = step * STEP;
        let (first, second) = (table(k), table(k + DEPTH));
        let to = ring.slot(step);
        for row in (0..PAIR).step_by(2) {
            rows.prefetch(row, k);
            rows.prefetch(row + 1, k);
            // SAFETY: 64 codes of two rows; rows `row` and `row + 1` of the strips of both k tiles, which lie one
            // behind the other.
            unsafe {
                let a = _mm512_loadu_si512(rows.at(row, k).cast());
                let b = _mm512_loadu_si512(rows.at(row + 1, k).cast());
                let to = to.add(row * DEPTH);
                e4m3_rows(_mm512_permutex2var_epi64(a, lower(), b), first, to);
                e4m3_rows(
                    _mm512_permutex2var_epi64(a, upper(), b),
                    second,
                    to.add(2 * TILE),
                );
            }
        }
        if step > 0 {
            // SAFETY: the step before is converted; the caller's promises.
            unsafe { ring.multiply(loaded, step - 1, 2, inputs) };
        }
    }
    if whole > 0 {
        // SAFETY: as above.
        unsafe { ring.multiply(loaded, whole - 1, 2, inputs) };
    }
    if w.cols > whole * STEP {
        let k = whole * STEP;
        let (table, to) = (table(k), ring.slot(whole));
        for row in (0..PAIR).step_by(2) {
            // SAFETY: 32 codes of two rows; rows of one k tile.
            unsafe {
                let a = _mm256_loadu_si256(rows.at(row, k).cast());
                let b = _mm256_loadu_si256(rows.at(row + 1, k).cast());
                let (a, b) = (_mm512_castsi256_si512(a), _mm512_castsi256_si512(b));
                let codes = _mm512_permutex2var_epi64(a, lower(), b);
                e4m3_rows(codes, table, to.add(row * DEPTH));
            }
        }
        // SAFETY: as above, for one tile.
        unsafe { ring.multiply(loaded, whole, 1, inputs) };
    }
}

/// # Safety
/// As [`run`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi")]
unsafe fn e2m1(loaded: &Loaded, w: &Matrix, pair: usize, scales: &[u8], inputs: Inputs) {
    let rows = Rows::new(w, pair, 4);
    let width = w.cols / DEPTH;
    let tables = e2m1_tables();
    let codes: [*const u8; PAIR] = std::array::from_fn(|row| rows.at(row, 0));
    let scales: [&[u8]; PAIR] = std::array::from_fn(|row| {
        let first = (pair * PAIR + row.min(rows.last)) * width;
        &scales[first..first + width]
    });
    let mut ring = Ring([0; 2 * 4 * TILE]);
    let steps = width.div_ceil(2);
    for step in 0..=steps {
        if step < steps {
            let to = ring.slot(step);
            let k = step * 2;
            for (row, (codes, scales)) in codes.iter().zip(&scales).enumerate() {
                // Half a line a step: asked for once a line.
                if step % 2 == 0 {
                    rows.prefetch(row, k * DEPTH / 2);
                }
                // SAFETY: 16 bytes are 32 codes of the row for each k tile, of which there is a first and, where the
                // row has one more, a second; row `row` of the strips of these k tiles.
                unsafe {
                    let (codes, to) = (codes.add(k * DEPTH / 2), to.add(row * DEPTH));
                    let scales = &scales[k..];
                    e2m1_row(codes, &tables[usize::from(scales[0])], to);
                    if let Some(scale) = scales.get(1) {
                        let table = &tables[usize::from(*scale)];
                        e2m1_row(codes.add(DEPTH / 2), table, to.add(2 * TILE));
                    }
                }
            }
        }
        if step > 0 {
            let tiles = 2.min(width - (step - 1) * 2);
            // SAFETY: the step before is converted; the caller's promises.
            unsafe { ring.multiply(loaded, step - 1, tiles, inputs) };
        }
    }
}

/// # Safety
/// As [`run`].
#[target_feature(enable = "avx512f")]
unsafe fn bf16(loaded: &Loaded, w: &Matrix, pair: usize, inputs: Inputs) {
    let rows = Rows::new(w, pair, 16);
    for tile in 0..w.cols / DEPTH {
        let byte = tile * 2 * DEPTH;
        for row in 0..PAIR {
            rows.prefetch(row, byte);
        }
        // SAFETY: `takes` made sure of 32 rows; the caller's promises.
        unsafe {
            let a = [rows.at(0, byte).cast(), rows.at(ROWS, byte).cast()];
            multiply(
                loaded,
                a,
                rows.stride,
                inputs.b.byte_add(tile * inputs.tile),
                inputs.stride,
            );
        }
    }
}
