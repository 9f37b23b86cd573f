//! Weights in their published bytes, brought into A tiles of bfloat16.
//!
//! E4M3 and E2M1 values have few bits, so a value times a power of two is a bfloat16 exactly, unless the
//! scale is extreme: one lookup makes both. Tables for all scales take 80 KiB; a model uses a few of
//! them. Matrices whose scales are extreme, or are no powers of two, are left to f32 arithmetic, 32 rows
//! at a time.

use std::arch::x86_64::*;
use std::ops::Range;
use std::sync::LazyLock;

use super::{DEPTH, PAIR, ROWS, TILE, Tiles};
use crate::engine::backend::cpu::prefetch;
use crate::engine::backend::host::matrix::{Format, Matrix, Scales};
use crate::engine::backend::host::numbers::{e2m1, e4m3, e8m0};

/// Columns converted at a time, at most: a multiple of 64 and of all blocks of scales.
pub(super) const BLOCK: usize = 512;

/// Scale bytes for which all E4M3 values, 2^-9 to 448, stay normal numbers.
const E4M3_SCALES: Range<u8> = 10..247;
/// The same for E2M1 values, 0.5 to 6.
const E2M1_SCALES: Range<u8> = 2..253;

/// bfloat16 values of the 128 non-negative E4M3 codes for one scale, by low and high bytes.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(super) struct E4m3Table {
    low: [u8; 128],
    high: [u8; 128],
}

/// bfloat16 values of the 16 E2M1 codes for one scale, twice: a lookup reads five bits, of which the fifth
/// belongs to another value.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(super) struct E2m1Table([u16; 32]);

struct Tables {
    e4m3: Box<[E4m3Table; 256]>,
    e2m1: Box<[E2m1Table; 256]>,
}

static TABLES: LazyLock<Tables> = LazyLock::new(|| {
    let bits = |value: f32, scale: u8| ((value * e8m0(scale)).to_bits() >> 16) as u16;
    let e4m3_of = |scale: u8| {
        let words: [u16; 128] = std::array::from_fn(|code| bits(e4m3(code as u8), scale));
        E4m3Table {
            low: words.map(|w| w as u8),
            high: words.map(|w| (w >> 8) as u8),
        }
    };
    let e2m1_of = |scale: u8| {
        E2m1Table(std::array::from_fn(|code| {
            bits(e2m1(code as u8 & 15), scale)
        }))
    };
    Tables {
        e4m3: Box::new(std::array::from_fn(|scale| e4m3_of(scale as u8))),
        e2m1: Box::new(std::array::from_fn(|scale| e2m1_of(scale as u8))),
    }
});

/// Tables by scale byte.
pub(super) fn e4m3_tables() -> &'static [E4m3Table; 256] {
    &TABLES.e4m3
}

/// Tables by scale byte.
pub(super) fn e2m1_tables() -> &'static [E2m1Table; 256] {
    &TABLES.e2m1
}

/// Whether tiles are made for this format.
pub(in super::super) fn takes(w: &Matrix) -> bool {
    match &w.format {
        // Tiles of A must not cross a scale.
        Format::Fp8 { block, .. } => block.is_multiple_of(DEPTH) && w.cols.is_multiple_of(DEPTH),
        Format::Fp4 { .. } => w.cols.is_multiple_of(DEPTH),
        Format::Bf16 => true,
        Format::F32 => false,
    }
}

/// Whether the scales of all values in rows `pair · 32..` can be folded into bfloat16.
pub(super) fn folds(w: &Matrix, pair: usize) -> bool {
    let rows = pair * PAIR..((pair + 1) * PAIR).min(w.rows);
    match &w.format {
        Format::Fp8 { block, scales } => {
            // A block is a multiple of 32 rows, so that these lie in one.
            let width = w.cols.div_ceil(*block);
            let first = rows.start / block * width;
            all_within(scales, first..first + width, E4M3_SCALES)
        }
        Format::Fp4 { scales } => {
            let width = w.cols / 32;
            all_within(scales, rows.start * width..rows.end * width, E2M1_SCALES)
        }
        Format::Bf16 => true,
        Format::F32 => false,
    }
}

fn all_within(scales: &Scales, indices: Range<usize>, allowed: Range<u8>) -> bool {
    match scales {
        Scales::E8m0(bytes) => {
            // Without an early end, compilers make vectors of this.
            let outside =
                |b: &u8| u8::from(b.wrapping_sub(allowed.start) >= allowed.end - allowed.start);
            bytes[indices].iter().fold(0, |any, b| any | outside(b)) == 0
        }
        Scales::F32(_) => indices
            .into_iter()
            .all(|i| power_of_two(scales.get(i)).is_some_and(|b| allowed.contains(&b))),
    }
}

/// The E8M0 byte of a positive normal power of two.
fn power_of_two(x: f32) -> Option<u8> {
    let bits = x.to_bits();
    (bits & 0x807f_ffff == 0 && bits != 0).then_some((bits >> 23) as u8)
}

/// The byte of a scale that folds.
#[inline(always)]
pub(super) fn scale_byte(scales: &Scales, index: usize) -> usize {
    match scales {
        Scales::E8m0(bytes) => usize::from(bytes[index]),
        Scales::F32(_) => (scales.get(index).to_bits() >> 23) as usize & 255,
    }
}

/// Writes columns `cols` of rows `pair · 32..pair · 32 + 32` as A tiles: `[strip of 16 rows][k tile][row][32]`.
/// Rows that the matrix does not have and columns behind its last are zero. They are at most a [`BLOCK`]
/// and start at a multiple of one.
///
/// Also asks for what comes next: the columns behind, or the first ones of the next pair.
///
/// # Safety
/// The matrix holds its values and scales, [`takes`] and [`folds`] hold; `out` has two strips of as many tiles
/// as `cols` touches.
pub(super) unsafe fn convert(
    _: Tiles,
    w: &Matrix,
    pair: usize,
    cols: Range<usize>,
    out: &mut [u16],
) {
    let tiles = cols.len().div_ceil(DEPTH);
    assert!(
        out.len() >= 2 * tiles * TILE,
        "a buffer of {} values for {tiles} tiles",
        out.len()
    );
    for (strip, out) in out.chunks_exact_mut(tiles * TILE).enumerate().take(2) {
        let first = pair * PAIR + strip * ROWS;
        let rows = ROWS.min(w.rows.saturating_sub(first));
        if rows < ROWS {
            out.fill(0);
        }
        let strip = Strip {
            w,
            first,
            rows,
            cols: cols.clone(),
        };
        // SAFETY: `Tiles` proves the instructions; the caller's promises are about all rows.
        unsafe {
            match &w.format {
                Format::Fp8 { block, scales } => strip.e4m3(*block, scales, out),
                Format::Fp4 { scales } => strip.e2m1(scales, out),
                Format::Bf16 => strip.bf16(out),
                Format::F32 => unreachable!("f32 matrices take no tiles"),
            }
        }
    }
}

/// Up to sixteen rows of a matrix, over some columns.
struct Strip<'a> {
    w: &'a Matrix,
    first: usize,
    rows: usize,
    cols: Range<usize>,
}

impl Strip<'_> {
    /// Where the values of a row (counted in the strip) begin at column `k`; `bits` a value.
    #[inline(always)]
    fn at(&self, row: usize, k: usize, bits: usize) -> *const u8 {
        let index = (self.first + row) * self.w.cols + k;
        self.w.data.as_ptr().wrapping_add(index * bits / 8)
    }

    /// Asks for what the next round reads from this row, or from the one that takes its place.
    #[inline(always)]
    fn prefetch_next(&self, row: usize, bits: usize) {
        let (row, k) = if self.cols.end < self.w.cols {
            (row, self.cols.end)
        } else {
            (row + PAIR, 0)
        };
        let len = self.cols.len().min(self.w.cols - k);
        prefetch(self.at(row, k, bits), len * bits / 8);
    }

    /// # Safety
    /// As [`convert`], for this strip.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi")]
    unsafe fn e4m3(&self, block: usize, scales: &Scales, out: &mut [u16]) {
        let count = self.cols.len() / DEPTH;
        let blocks = self.first / block * self.w.cols.div_ceil(block);
        let mut tables = [std::ptr::null::<E4m3Table>(); BLOCK / DEPTH];
        for (tile, table) in tables.iter_mut().enumerate().take(count) {
            let column = self.cols.start + tile * DEPTH;
            *table = &TABLES.e4m3[scale_byte(scales, blocks + column / block)];
        }
        for row in (0..self.rows).step_by(2) {
            self.prefetch_next(row, 8);
            self.prefetch_next(row + 1, 8);
            let left = self.at(row, self.cols.start, 8);
            // All codes of a row that is not there are zero.
            let right = if row + 1 < self.rows {
                self.at(row + 1, self.cols.start, 8)
            } else {
                ZEROS.0.as_ptr()
            };
            let to = out[row * DEPTH..].as_mut_ptr();
            let mut tile = 0;
            while tile + 2 <= count {
                // SAFETY: 64 codes of both rows; rows `row` and `row + 1` of both tiles.
                unsafe {
                    let a = _mm512_loadu_si512(left.add(tile * DEPTH).cast());
                    let b = _mm512_loadu_si512(right.add(tile * DEPTH).cast());
                    let to = to.add(tile * TILE);
                    e4m3_rows(_mm512_permutex2var_epi64(a, lower(), b), tables[tile], to);
                    let codes = _mm512_permutex2var_epi64(a, upper(), b);
                    e4m3_rows(codes, tables[tile + 1], to.add(TILE));
                }
                tile += 2;
            }
            if tile < count {
                // SAFETY: 32 codes of both rows; rows `row` and `row + 1` of the last tile.
                unsafe {
                    let a = _mm256_loadu_si256(left.add(tile * DEPTH).cast());
                    let b = _mm256_loadu_si256(right.add(tile * DEPTH).cast());
                    let (a, b) = (_mm512_castsi256_si512(a), _mm512_castsi256_si512(b));
                    let codes = _mm512_permutex2var_epi64(a, lower(), b);
                    e4m3_rows(codes, tables[tile], to.add(tile * TILE));
                }
            }
        }
    }

    /// # Safety
    /// As [`convert`], for this strip.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi")]
    unsafe fn e2m1(&self, scales: &Scales, out: &mut [u16]) {
        let count = self.cols.len() / DEPTH;
        let tables = e2m1_tables();
        for row in 0..self.rows {
            self.prefetch_next(row, 4);
            let groups = ((self.first + row) * self.w.cols + self.cols.start) / 32;
            let mut folded = [0u8; BLOCK / DEPTH];
            let bytes = match scales {
                Scales::E8m0(bytes) => &bytes[groups..groups + count],
                Scales::F32(_) => {
                    for (i, byte) in folded.iter_mut().enumerate().take(count) {
                        *byte = scale_byte(scales, groups + i) as u8;
                    }
                    &folded[..count]
                }
            };
            let from = self.at(row, self.cols.start, 4);
            let to = out[row * DEPTH..].as_mut_ptr();
            for (tile, byte) in bytes.iter().enumerate() {
                // SAFETY: 16 bytes are 32 codes of the row, one tile's; row `row` of the tile.
                unsafe {
                    let codes = from.add(tile * DEPTH / 2);
                    e2m1_row(codes, &tables[usize::from(*byte)], to.add(tile * TILE));
                }
            }
        }
    }

    /// # Safety
    /// As [`convert`], for this strip.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi")]
    unsafe fn bf16(&self, out: &mut [u16]) {
        for row in 0..self.rows {
            self.prefetch_next(row, 16);
            for tile in 0..self.cols.len().div_ceil(DEPTH) {
                let some = DEPTH.min(self.cols.len() - tile * DEPTH);
                // SAFETY: `some` values of the row; the tile has 16 rows of 32 values.
                unsafe {
                    let from = self.at(row, self.cols.start + tile * DEPTH, 16);
                    let mask = ((1u64 << some) - 1) as u32;
                    let values = _mm512_maskz_loadu_epi16(mask, from.cast());
                    let to = out.as_mut_ptr().add(tile * TILE + row * DEPTH);
                    _mm512_storeu_si512(to.cast(), values);
                }
            }
        }
    }
}

/// Codes of a row that is not there.
#[repr(C, align(64))]
struct Zeros([u8; BLOCK]);
static ZEROS: Zeros = Zeros([0; BLOCK]);

/// Writes 32 values of one row.
///
/// # Safety
/// 16 bytes can be read at `codes`, 32 values written at `to`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
pub(super) unsafe fn e2m1_row(codes: *const u8, table: &E2m1Table, to: *mut u16) {
    // SAFETY: the caller's promise; a table is one aligned vector.
    unsafe {
        // Each byte in 32 bits, its high half moved to the upper 16: the lookup reads five bits of each 16.
        let bytes = _mm512_cvtepu8_epi32(_mm_loadu_si128(codes.cast()));
        let codes = _mm512_or_si512(bytes, _mm512_slli_epi32::<12>(bytes));
        let table = _mm512_load_si512(table.0.as_ptr().cast());
        _mm512_storeu_si512(to.cast(), _mm512_permutexvar_epi16(codes, table));
    }
}

/// Order of the eighths of two rows of 64 codes, so that [`e4m3_rows`] makes the first 32 values of both: their
/// codes alternate by eight.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn lower() -> __m512i {
    _mm512_setr_epi64(0, 8, 1, 9, 2, 10, 3, 11)
}

/// As [`lower`], for the last 32 values.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn upper() -> __m512i {
    _mm512_setr_epi64(4, 12, 5, 13, 6, 14, 7, 15)
}

/// Writes 32 values of one row at `to`, of the other behind them. Low and high bytes are looked up, and
/// interleave to words within each quarter of a vector.
///
/// # Safety
/// `table` points to a table; 64 values can be written at `to`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
pub(super) unsafe fn e4m3_rows(codes: __m512i, table: *const E4m3Table, to: *mut u16) {
    // SAFETY: a table has two vectors of low and two of high bytes, aligned.
    let (low, high) = unsafe {
        let part = |i: usize| _mm512_load_si512(table.cast::<__m512i>().add(i));
        (
            _mm512_permutex2var_epi8(part(0), codes, part(1)),
            _mm512_permutex2var_epi8(part(2), codes, part(3)),
        )
    };
    // The lookup ignores the sign: high | (codes & sign).
    let high = _mm512_ternarylogic_epi64::<0xf8>(high, codes, _mm512_set1_epi8(-128));
    // SAFETY: two vectors of 32 values.
    unsafe {
        _mm512_storeu_si512(to.cast(), _mm512_unpacklo_epi8(low, high));
        _mm512_storeu_si512(to.add(DEPTH).cast(), _mm512_unpackhi_epi8(low, high));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::weights::Bytes;

    /// Converts all of a matrix of 32 rows and compares with `Matrix::row`, bit by bit.
    fn compare(tiles: Tiles, w: &Matrix) {
        assert!(takes(w) && folds(w, 0));
        let count = w.cols.div_ceil(DEPTH);
        let mut out = vec![0xffffu16; 2 * count * TILE];
        // SAFETY: the matrices of these tests are whole.
        unsafe { convert(tiles, w, 0, 0..w.cols, &mut out) };
        let mut row = vec![0.0; w.cols];
        for n in 0..PAIR {
            row.fill(0.0);
            if n < w.rows {
                w.row(n, 0..w.cols, &mut row);
            }
            for (k, expected) in row.iter().enumerate() {
                let at = (n / ROWS * count + k / DEPTH) * TILE + n % ROWS * DEPTH + k % DEPTH;
                let found = f32::from_bits(u32::from(out[at]) << 16);
                assert!(
                    found.to_bits() == expected.to_bits() || (found.is_nan() && expected.is_nan()),
                    "row {n} column {k}: {found} for {expected}"
                );
            }
        }
    }

    /// `bytes` at an odd address.
    fn matrix(rows: usize, cols: usize, data: Vec<u8>, format: Format) -> Matrix {
        Matrix {
            rows,
            cols,
            data: Bytes::from_vec(data),
            format,
        }
    }

    #[test]
    fn every_e4m3_code_times_every_scale_that_folds_is_exact() {
        let Some(tiles) = Tiles::detect() else {
            eprintln!("skipped: no AMX on this machine");
            return;
        };
        // Each code in each of the 64 places of a vector, in even and odd rows.
        for scale in E4M3_SCALES {
            let data = (0..32 * 256).map(|i| (i + i / 256 * 7) as u8).collect();
            let scales = Scales::E8m0(Bytes::from_vec(vec![scale, scale.max(11) - 1]));
            compare(
                tiles,
                &matrix(32, 256, data, Format::Fp8 { block: 128, scales }),
            );
        }
        let scales = Scales::E8m0(Bytes::from_vec(vec![120, 121, 122]));
        let data = (0..27 * 96).map(|i| (i * 11) as u8).collect();
        compare(
            tiles,
            &matrix(27, 96, data, Format::Fp8 { block: 32, scales }),
        );
        let floats = [0.5f32, 2.0].iter().flat_map(|f| f.to_le_bytes()).collect();
        let scales = Scales::F32(Bytes::from_vec(floats));
        let data = (0..5 * 160).map(|i| (i * 13) as u8).collect();
        compare(
            tiles,
            &matrix(5, 160, data, Format::Fp8 { block: 128, scales }),
        );
    }

    #[test]
    fn every_e2m1_code_times_every_scale_that_folds_is_exact() {
        let Some(tiles) = Tiles::detect() else {
            eprintln!("skipped: no AMX on this machine");
            return;
        };
        let data: Vec<u8> = (0..32 * 512 / 2).map(|i| (i + i / 256 * 3) as u8).collect();
        let scales = E2M1_SCALES.chain(E2M1_SCALES).chain(5..15).collect();
        let scales = Scales::E8m0(Bytes::from_vec(scales));
        compare(
            tiles,
            &matrix(
                32,
                512,
                data.clone(),
                Format::Fp4 {
                    scales: scales.clone(),
                },
            ),
        );
        compare(tiles, &matrix(19, 96, data, Format::Fp4 { scales }));
    }

    #[test]
    fn bfloat16_is_copied_and_padded() {
        let Some(tiles) = Tiles::detect() else {
            eprintln!("skipped: no AMX on this machine");
            return;
        };
        for (rows, cols) in [(32, 64), (9, 77), (17, 5)] {
            let data = (0..rows * cols * 2)
                .map(|i| (i * 37 + i / 256) as u8)
                .collect();
            compare(tiles, &matrix(rows, cols, data, Format::Bf16));
        }
    }

    #[test]
    fn extreme_or_odd_scales_do_not_fold() {
        let with = |scales: Scales| {
            matrix(
                32,
                128,
                vec![1; 32 * 128],
                Format::Fp8 { block: 128, scales },
            )
        };
        for (byte, folding) in [
            (0, false),
            (9, false),
            (10, true),
            (246, true),
            (247, false),
        ] {
            assert_eq!(
                folds(&with(Scales::E8m0(Bytes::from_vec(vec![byte]))), 0),
                folding
            );
        }
        for (scale, folding) in [(0.25f32, true), (0.3, false), (-0.5, false), (0.0, false)] {
            let bytes = Bytes::from_vec(scale.to_le_bytes().to_vec());
            assert_eq!(folds(&with(Scales::F32(bytes)), 0), folding);
        }
        let fp4 = |byte: u8| {
            let mut scales = vec![127; 32];
            scales[31] = byte;
            let scales = Scales::E8m0(Bytes::from_vec(scales));
            matrix(32, 32, vec![1; 32 * 16], Format::Fp4 { scales })
        };
        for (byte, folding) in [(1, false), (2, true), (252, true), (253, false)] {
            assert_eq!(folds(&fp4(byte), 0), folding);
        }
    }
}
