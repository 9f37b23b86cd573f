//! Rows of x in the order that B tiles want.
//!
//! `[x tile][k tile][k pair][x row]` of pairs `(x[s, k], x[s, k+1])` as bfloat16. A tile has as many columns
//! as the job has rows of x, at most 16: one row alone is packed as it lies.

use std::arch::x86_64::*;

use super::{DEPTH, ROWS, Tiles};

/// Columns of a tile for a job of `count` rows of x.
pub(in super::super) fn columns(count: usize) -> usize {
    count.min(ROWS)
}

/// Values of one x tile of a job.
pub(in super::super) fn tile_len(count: usize, cols: usize) -> usize {
    cols.div_ceil(DEPTH) * DEPTH * columns(count)
}

/// Packs x tile `tile` of `x` `[count, cols]` into `out`, of `tile_len` values.
pub(in super::super) fn pack(_: Tiles, x: &[f32], cols: usize, tile: usize, out: &mut [u16]) {
    let count = x.len() / cols;
    let first = tile * ROWS;
    assert!(
        first < count && out.len() == tile_len(count, cols),
        "an x tile of another shape"
    );
    debug_assert!(
        x.iter().all(|v| v.is_nan() || v.to_bits() & 0xffff == 0),
        "an exact input is not a bfloat16"
    );
    // SAFETY: `Tiles` proves the instructions.
    unsafe {
        pack_rows(
            &x[first * cols..count.min(first + ROWS) * cols],
            cols,
            columns(count),
            out,
        )
    };
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi")]
fn pack_rows(x: &[f32], cols: usize, columns: usize, out: &mut [u16]) {
    let rows = x.len() / cols;
    for (k, tile) in (0..cols)
        .step_by(DEPTH)
        .zip(out.chunks_exact_mut(DEPTH * columns))
    {
        if columns == 1 {
            let row = &x[k..];
            // SAFETY: the tile has `DEPTH` values.
            unsafe {
                let pairs = upper_halves(&row[..row.len().min(DEPTH)]);
                _mm512_storeu_si512(tile.as_mut_ptr().cast(), pairs);
            }
            continue;
        }
        let mut pairs = [_mm512_setzero_si512(); ROWS];
        // Loops of sixteen turns are unrolled, so that the rows stay in registers.
        for s in 0..ROWS {
            if s < rows {
                let row = &x[s * cols + k..(s + 1) * cols];
                pairs[s] = upper_halves(&row[..row.len().min(DEPTH)]);
            }
        }
        let pairs = transpose(pairs);
        let mask = ((1u32 << columns) - 1) as u16;
        assert_eq!(tile.len(), DEPTH * columns);
        for (pair, values) in pairs.into_iter().enumerate() {
            // SAFETY: as many pairs as there are columns, of the sixteen that the tile has room for.
            unsafe {
                let to = tile.as_mut_ptr().add(pair * 2 * columns);
                _mm512_mask_storeu_epi32(to.cast(), mask, values);
            }
        }
    }
}

/// Up to 32 floats as bfloat16 by their upper halves, zeros behind.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi")]
pub(super) fn upper_halves(row: &[f32]) -> __m512i {
    let some = ((1u64 << row.len().min(DEPTH)) - 1) as u32;
    // SAFETY: lanes beyond the row are not read.
    let (low, high) = unsafe {
        (
            _mm512_maskz_loadu_epi32(some as u16, row.as_ptr().cast()),
            _mm512_maskz_loadu_epi32((some >> 16) as u16, row.as_ptr().wrapping_add(16).cast()),
        )
    };
    let low = _mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(low));
    let high = _mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(high));
    _mm512_inserti64x4::<1>(_mm512_castsi256_si512(low), high)
}

/// Transposes 16 rows of 16 values of 32 bits.
#[inline]
#[target_feature(enable = "avx512f")]
#[must_use]
pub(super) fn transpose(rows: [__m512i; 16]) -> [__m512i; 16] {
    let mut out = rows;
    // Pairs of 32 bits, then of 64, inside each quarter of a vector.
    let mut t = [_mm512_setzero_si512(); 16];
    for i in 0..8 {
        t[2 * i] = _mm512_unpacklo_epi32(rows[2 * i], rows[2 * i + 1]);
        t[2 * i + 1] = _mm512_unpackhi_epi32(rows[2 * i], rows[2 * i + 1]);
    }
    // u[4i + c]: column c of each quarter, of rows 4i..4i + 4.
    let mut u = [_mm512_setzero_si512(); 16];
    for i in 0..4 {
        u[4 * i] = _mm512_unpacklo_epi64(t[4 * i], t[4 * i + 2]);
        u[4 * i + 1] = _mm512_unpackhi_epi64(t[4 * i], t[4 * i + 2]);
        u[4 * i + 2] = _mm512_unpacklo_epi64(t[4 * i + 1], t[4 * i + 3]);
        u[4 * i + 3] = _mm512_unpackhi_epi64(t[4 * i + 1], t[4 * i + 3]);
    }
    // Quarters: a 4 by 4 transposition for each c.
    for c in 0..4 {
        let low01 = _mm512_shuffle_i32x4::<0x44>(u[c], u[4 + c]);
        let high01 = _mm512_shuffle_i32x4::<0xee>(u[c], u[4 + c]);
        let low23 = _mm512_shuffle_i32x4::<0x44>(u[8 + c], u[12 + c]);
        let high23 = _mm512_shuffle_i32x4::<0xee>(u[8 + c], u[12 + c]);
        out[c] = _mm512_shuffle_i32x4::<0x88>(low01, low23);
        out[4 + c] = _mm512_shuffle_i32x4::<0xdd>(low01, low23);
        out[8 + c] = _mm512_shuffle_i32x4::<0x88>(high01, high23);
        out[12 + c] = _mm512_shuffle_i32x4::<0xdd>(high01, high23);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pair_lands_in_its_column() {
        let Some(tiles) = Tiles::detect() else {
            eprintln!("skipped: no AMX on this machine");
            return;
        };
        for (count, cols) in [
            (1, 64),
            (1, 70),
            (2, 32),
            (5, 33),
            (16, 96),
            (16, 45),
            (21, 64),
        ] {
            let x: Vec<f32> = (0..count * cols)
                .map(|i| (i % 251) as f32 - 125.0)
                .collect();
            for tile in 0..usize::div_ceil(count, ROWS) {
                let mut out = vec![0xffff; tile_len(count, cols)];
                pack(tiles, &x, cols, tile, &mut out);
                let width = columns(count);
                for (at, bits) in out.iter().enumerate() {
                    let (pair, half) = (at / 2, at % 2);
                    let (k, s) = (pair / width * 2 + half, tile * ROWS + pair % width);
                    let expected = if k < cols && s < count {
                        x[s * cols + k]
                    } else {
                        0.0
                    };
                    assert_eq!(
                        u32::from(*bits) << 16,
                        expected.to_bits(),
                        "{count} {cols} {at}"
                    );
                }
            }
        }
    }
}
