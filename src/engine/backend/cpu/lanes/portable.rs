//! [`Lanes`] without instructions of its own: eight lanes, which compilers map to what a target has.

use std::sync::LazyLock;

use super::{Lanes, Work};
use crate::engine::backend::host::numbers::{e2m1, e4m3, from_bf16, round_bf16};

/// Any machine.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Portable;

static E4M3: LazyLock<[f32; 256]> = LazyLock::new(|| std::array::from_fn(|c| e4m3(c as u8)));

type V = [f32; 8];

#[inline(always)]
fn zip(a: V, b: V, f: impl Fn(f32, f32) -> f32) -> V {
    std::array::from_fn(|i| f(a[i], b[i]))
}

impl Lanes for Portable {
    type V = V;
    const N: usize = 8;
    const BLOCK: usize = 2;

    #[inline(always)]
    fn run<W: Work>(self, work: W) -> W::Out {
        work.go(self)
    }

    #[inline(always)]
    fn splat(self, x: f32) -> V {
        [x; 8]
    }

    #[inline(always)]
    fn add(self, a: V, b: V) -> V {
        zip(a, b, |a, b| a + b)
    }

    #[inline(always)]
    fn mul(self, a: V, b: V) -> V {
        zip(a, b, |a, b| a * b)
    }

    #[inline(always)]
    fn max(self, a: V, b: V) -> V {
        zip(a, b, |a, b| if a > b { a } else { b })
    }

    /// Two roundings: without the instruction, `mul_add` would be a slow call.
    #[inline(always)]
    fn fma(self, a: V, b: V, c: V) -> V {
        std::array::from_fn(|i| a[i] * b[i] + c[i])
    }

    #[inline(always)]
    fn round(self, a: V) -> V {
        a.map(f32::round_ties_even)
    }

    #[inline(always)]
    fn times_power(self, a: V, n: V) -> V {
        zip(a, n, |a, n| {
            a * f32::from_bits(((n as i32 + 127) as u32) << 23)
        })
    }

    #[inline(always)]
    fn round_bf16(self, a: V) -> V {
        a.map(round_bf16)
    }

    #[inline(always)]
    fn sum(self, a: V) -> f32 {
        let b = [a[0] + a[4], a[1] + a[5], a[2] + a[6], a[3] + a[7]];
        (b[0] + b[2]) + (b[1] + b[3])
    }

    #[inline(always)]
    fn sums(self, a: [V; 4]) -> [f32; 4] {
        a.map(|a| self.sum(a))
    }

    #[inline(always)]
    fn largest(self, a: V) -> f32 {
        a.into_iter().fold(f32::NEG_INFINITY, f32::max)
    }

    #[inline(always)]
    unsafe fn load(self, at: *const f32) -> V {
        // SAFETY: the caller's promise; arrays of floats are read unaligned.
        unsafe { at.cast::<V>().read_unaligned() }
    }

    #[inline(always)]
    unsafe fn load_some(self, at: *const f32, n: usize) -> V {
        let mut out = [0.0; 8];
        for (i, v) in out.iter_mut().enumerate().take(n) {
            // SAFETY: `i` < `n`, which the caller promises.
            *v = unsafe { at.add(i).read_unaligned() };
        }
        out
    }

    #[inline(always)]
    unsafe fn store(self, at: *mut f32, a: V) {
        // SAFETY: the caller's promise; arrays of floats are written unaligned.
        unsafe { at.cast::<V>().write_unaligned(a) }
    }

    #[inline(always)]
    unsafe fn load_bf16(self, at: *const u8) -> V {
        // SAFETY: the caller's promise: 16 bytes.
        let bytes = unsafe { at.cast::<[[u8; 2]; 8]>().read_unaligned() };
        bytes.map(|b| from_bf16(u16::from_le_bytes(b)))
    }

    #[inline(always)]
    unsafe fn load_e4m3(self, at: *const u8) -> V {
        // SAFETY: the caller's promise: 8 bytes.
        let codes = unsafe { at.cast::<[u8; 8]>().read_unaligned() };
        let table = &*E4M3;
        codes.map(|c| table[usize::from(c)])
    }

    #[inline(always)]
    unsafe fn load_e2m1(self, at: *const u8) -> V {
        // SAFETY: the caller's promise: 4 bytes.
        let codes = unsafe { at.cast::<[u8; 4]>().read_unaligned() };
        std::array::from_fn(|i| e2m1(codes[i / 2] >> (4 * (i % 2)) & 15))
    }

    #[inline(always)]
    fn zero_where_below(self, x: V, limit: V, a: V) -> V {
        std::array::from_fn(|i| if x[i] < limit[i] { 0.0 } else { a[i] })
    }
}
