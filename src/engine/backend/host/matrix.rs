//! Weight matrices as they are stored: mapped, never converted.

use std::ops::Range;

use super::numbers::{E4M3, e2m1, e8m0, from_bf16};
use crate::engine::weights::Bytes;

/// Scales of a quantised matrix.
#[derive(Clone, Debug)]
pub enum Scales {
    /// Powers of two, one byte each.
    E8m0(Bytes),
    /// Base checkpoints of V4.
    F32(Bytes),
}

impl Scales {
    /// Scale number `index`.
    #[inline]
    pub fn get(&self, index: usize) -> f32 {
        match self {
            Self::E8m0(bytes) => e8m0(bytes[index]),
            Self::F32(bytes) => read_f32(bytes, index),
        }
    }
}

/// How the values of a matrix are stored.
#[derive(Clone, Debug)]
pub enum Format {
    /// E4M3, one scale for each `block × block` tile: `[ceil(rows/block), ceil(cols/block)]`.
    Fp8 {
        /// 128 (V4) or 32 (V4.1).
        block: usize,
        /// Row-major tiles.
        scales: Scales,
    },
    /// E2M1, two values a byte (even column in the low nibble), one scale for each 32 columns of a row.
    Fp4 {
        /// `[rows, cols/32]`.
        scales: Scales,
    },
    /// bfloat16, little endian.
    Bf16,
    /// float32, little endian; the bytes may not be aligned.
    F32,
}

/// A matrix `[rows, cols]` = `[out, in]`.
#[derive(Clone, Debug)]
pub struct Matrix {
    /// Output width.
    pub rows: usize,
    /// Input width.
    pub cols: usize,
    /// Row-major values.
    pub data: Bytes,
    /// What the values are.
    pub format: Format,
}

fn read_f32(bytes: &[u8], index: usize) -> f32 {
    let at = index * 4;
    f32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

impl Matrix {
    /// Whether activations in front of it are quantised in the published numerics.
    pub fn is_quantised(&self) -> bool {
        matches!(self.format, Format::Fp8 { .. } | Format::Fp4 { .. })
    }

    /// Bytes of values and scales.
    pub fn bytes(&self) -> usize {
        let scales = match &self.format {
            Format::Fp8 {
                scales: Scales::E8m0(b) | Scales::F32(b),
                ..
            }
            | Format::Fp4 {
                scales: Scales::E8m0(b) | Scales::F32(b),
            } => b.len(),
            Format::Bf16 | Format::F32 => 0,
        };
        self.data.len() + scales
    }

    /// Writes columns `cols` of row `row` as f32: the plain meaning of every format.
    pub fn row(&self, row: usize, cols: Range<usize>, out: &mut [f32]) {
        let base = row * self.cols;
        let pairs = out.iter_mut().zip(cols);
        match &self.format {
            Format::Fp8 { block, scales } => {
                let tiles = (row / block) * self.cols.div_ceil(*block);
                pairs.for_each(|(v, k)| {
                    *v = E4M3[usize::from(self.data[base + k])] * scales.get(tiles + k / block)
                });
            }
            Format::Fp4 { scales } => {
                let first = row * (self.cols / 32);
                pairs.for_each(|(v, k)| {
                    let byte = self.data[(base + k) / 2];
                    let code = if k % 2 == 0 { byte & 15 } else { byte >> 4 };
                    *v = e2m1(code) * scales.get(first + k / 32);
                });
            }
            Format::Bf16 => pairs.for_each(|(v, k)| {
                let at = (base + k) * 2;
                *v = from_bf16(u16::from_le_bytes([self.data[at], self.data[at + 1]]));
            }),
            Format::F32 => pairs.for_each(|(v, k)| *v = read_f32(&self.data, base + k)),
        }
    }
}

/// An n-gram table: rows of E4M3 values with an E8M0 scale for each 32, looked up and never multiplied.
#[derive(Clone, Debug)]
pub struct Table {
    /// Values a row.
    pub width: usize,
    /// Row-major values.
    pub data: Bytes,
    /// `[rows, width / 32]`.
    pub scales: Bytes,
}

impl Table {
    /// Writes row `row` as f32.
    pub fn row(&self, row: usize, out: &mut [f32]) {
        let data = &self.data[row * self.width..][..self.width];
        let scales = &self.scales[row * (self.width / 32)..][..self.width / 32];
        for ((out, data), scale) in out.chunks_mut(32).zip(data.chunks(32)).zip(scales) {
            let scale = e8m0(*scale);
            out.iter_mut()
                .zip(data)
                .for_each(|(v, code)| *v = E4M3[usize::from(*code)] * scale);
        }
    }
}
