//! Tensors as they lie in a file: bytes, a type and a shape.

#![forbid(unsafe_code)]

use std::fmt;
use std::ops::{Deref, Range};
use std::sync::Arc;

use memmap2::Mmap;

/// Immutable bytes with several owners: a part of a mapped file, or of a vector. Cloning and slicing cost one
/// atomic increment.
///
/// Mapped bytes are those of the file: whoever shortens or rewrites a checkpoint in use breaks the process
/// (`SIGBUS`, or wrong weights). Keeping the files as they are is the host's duty.
#[derive(Clone)]
pub struct Bytes {
    owner: Arc<Owner>,
    range: Range<usize>,
}

enum Owner {
    Vector(Vec<u8>),
    File(Mmap),
}

impl Owner {
    fn all(&self) -> &[u8] {
        match self {
            Self::Vector(bytes) => bytes,
            Self::File(map) => map,
        }
    }
}

impl Bytes {
    /// Takes a vector without copying it.
    pub fn from_vec(bytes: Vec<u8>) -> Self {
        let range = 0..bytes.len();
        let owner = Arc::new(Owner::Vector(bytes));
        Self { owner, range }
    }

    pub(super) fn from_map(map: Mmap) -> Self {
        let range = 0..map.len();
        let owner = Arc::new(Owner::File(map));
        Self { owner, range }
    }

    /// A part of these bytes, with the same owner; `None` when it is not inside.
    pub fn slice(&self, range: Range<usize>) -> Option<Self> {
        if range.start > range.end || range.end > self.len() {
            return None;
        }
        Some(Self {
            owner: Arc::clone(&self.owner),
            range: self.range.start + range.start..self.range.start + range.end,
        })
    }

    /// Asks the kernel to read these bytes of a mapped file soon.
    pub(super) fn read_ahead(&self) {
        #[cfg(unix)]
        self.advise(memmap2::Advice::WillNeed);
    }

    /// Tells the kernel not to read more of a mapped file than is touched.
    pub(super) fn expect_random_reads(&self) {
        #[cfg(unix)]
        self.advise(memmap2::Advice::Random);
    }

    #[cfg(unix)]
    fn advise(&self, advice: memmap2::Advice) {
        if let Owner::File(map) = &*self.owner {
            // A kernel that refuses the hint still reads the pages when they are touched.
            let _ = map.advise_range(advice, self.range.start, self.range.len());
        }
    }
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.owner.all()[self.range.clone()]
    }
}

impl From<Vec<u8>> for Bytes {
    fn from(bytes: Vec<u8>) -> Self {
        Self::from_vec(bytes)
    }
}

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Bytes({} bytes)", self.len())
    }
}

/// How values are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the names are the documentation")]
pub enum Dtype {
    /// Four exponent bits, three mantissa bits, no infinity: FP8 weights.
    F8E4M3,
    /// A power of two: the scales of FP8 and FP4 weights.
    F8E8M0,
    /// Two FP4 values a byte, the even column in the low half.
    I8,
    U8,
    Bf16,
    F16,
    F32,
    I32,
    I64,
}

impl Dtype {
    /// Bytes of one value.
    pub fn size(self) -> usize {
        match self {
            Self::F8E4M3 | Self::F8E8M0 | Self::I8 | Self::U8 => 1,
            Self::Bf16 | Self::F16 => 2,
            Self::F32 | Self::I32 => 4,
            Self::I64 => 8,
        }
    }

    /// As in a file's header.
    pub fn name(self) -> &'static str {
        match self {
            Self::F8E4M3 => "F8_E4M3",
            Self::F8E8M0 => "F8_E8M0",
            Self::I8 => "I8",
            Self::U8 => "U8",
            Self::Bf16 => "BF16",
            Self::F16 => "F16",
            Self::F32 => "F32",
            Self::I32 => "I32",
            Self::I64 => "I64",
        }
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A tensor of a checkpoint. Its bytes are as many as type and shape say, values little-endian and in row
/// order; they may start at any address.
#[derive(Clone, Debug)]
pub struct Tensor {
    /// Without a leading `model.`.
    pub name: String,
    /// How values are stored.
    pub dtype: Dtype,
    /// Rows first.
    pub shape: Vec<usize>,
    /// The values.
    pub bytes: Bytes,
}

impl Tensor {
    /// Count of values.
    pub fn len(&self) -> usize {
        self.bytes.len() / self.dtype.size()
    }

    /// Whether there are no values.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The values of an `F32`, `BF16` or `F16` tensor; `None` for other types.
    pub fn to_f32(&self) -> Option<Vec<f32>> {
        let pairs = || {
            self.bytes
                .chunks_exact(2)
                .map(|b| u16::from_le_bytes([b[0], b[1]]))
        };
        match self.dtype {
            Dtype::F32 => {
                let words = self.bytes.chunks_exact(4);
                Some(
                    words
                        .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
                        .collect(),
                )
            }
            Dtype::Bf16 => Some(
                pairs()
                    .map(|bits| half::bf16::from_bits(bits).to_f32())
                    .collect(),
            ),
            Dtype::F16 => Some(
                pairs()
                    .map(|bits| half::f16::from_bits(bits).to_f32())
                    .collect(),
            ),
            _ => None,
        }
    }

    /// The values of an integer tensor (`I64`, `I32`, `I8`, `U8`); `None` for other types.
    pub fn to_i64(&self) -> Option<Vec<i64>> {
        match self.dtype {
            Dtype::I64 => Some(self.bytes.chunks_exact(8).map(i64_at).collect()),
            Dtype::I32 => {
                let words = self.bytes.chunks_exact(4);
                Some(
                    words
                        .map(|b| i64::from(i32::from_le_bytes([b[0], b[1], b[2], b[3]])))
                        .collect(),
                )
            }
            Dtype::I8 => Some(self.bytes.iter().map(|&b| i64::from(b as i8)).collect()),
            Dtype::U8 => Some(self.bytes.iter().map(|&b| i64::from(b)).collect()),
            _ => None,
        }
    }
}

/// The number in a slice of eight bytes.
pub(super) fn i64_at(b: &[u8]) -> i64 {
    i64::from_le_bytes([b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slice_of_a_slice_counts_from_the_slice() {
        let bytes = Bytes::from_vec((0..10).collect());
        let middle = bytes.slice(2..8).unwrap();
        assert_eq!(&*middle.slice(1..3).unwrap(), &[3, 4]);
        assert!(middle.slice(0..7).is_none());
        #[expect(clippy::reversed_empty_ranges, reason = "what is refused")]
        let reversed = middle.slice(3..2);
        assert!(reversed.is_none());
    }

    #[test]
    fn values_are_little_endian_whatever_the_address() {
        let bytes = Bytes::from_vec(vec![9, 0, 0, 0x80, 0x3f, 0, 0, 0, 0xc0]);
        let mut tensor = Tensor {
            name: "t".into(),
            dtype: Dtype::F32,
            shape: vec![2],
            bytes: bytes.slice(1..9).unwrap(),
        };
        assert_eq!(tensor.to_f32().unwrap(), [1.0, -2.0]);
        tensor.dtype = Dtype::Bf16;
        assert_eq!(tensor.to_f32().unwrap(), [0.0, 1.0, 0.0, -2.0]);
        tensor.dtype = Dtype::I32;
        assert_eq!(tensor.to_i64().unwrap(), [0x3f80_0000, -0x4000_0000]);
        assert_eq!(tensor.to_f32(), None);
    }
}
