//! Vectors of f32 of one width, so that the f32 loops are written once: [`Lanes`] and its
//! implementations for AVX-512, AVX2 and any machine.
//!
//! A value of an implementing type proves that this machine has the instructions: x86 ones come only
//! from `detect`. Loops are written as [`Work`], whose `go` is inlined into a function compiled for the
//! instructions ([`Lanes::run`]).

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod portable;

#[cfg(target_arch = "x86_64")]
pub(super) use avx2::Avx2;
#[cfg(target_arch = "x86_64")]
pub(super) use avx512::Avx512;
pub(super) use portable::Portable;

/// Something to run with the vectors of a machine. Implementations mark `go` `#[inline(always)]`.
pub(super) trait Work {
    type Out;
    fn go<L: Lanes>(self, l: L) -> Self::Out;
}

/// Vectors of [`Self::N`] f32.
pub(super) trait Lanes: Copy + Send + Sync + 'static {
    type V: Copy;

    /// Lanes of a vector: divides 32.
    const N: usize;
    /// Rows of x that four rows of weights are multiplied with at a time, so that all sums stay in registers.
    const BLOCK: usize;

    /// Runs `work` compiled for these instructions.
    fn run<W: Work>(self, work: W) -> W::Out;

    fn splat(self, x: f32) -> Self::V;
    fn add(self, a: Self::V, b: Self::V) -> Self::V;
    fn mul(self, a: Self::V, b: Self::V) -> Self::V;
    fn max(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a · b + c`, in one rounding where the machine can.
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// Nearest whole number, ties to even.
    fn round(self, a: Self::V) -> Self::V;
    /// `a · 2^n` for whole `n` in -126..=127.
    fn times_power(self, a: Self::V, n: Self::V) -> Self::V;
    /// Nearest bfloat16, ties to even; not for NaN.
    fn round_bf16(self, a: Self::V) -> Self::V;
    /// Sum of the lanes, in an order that depends on `N` only.
    fn sum(self, a: Self::V) -> f32;
    /// [`Self::sum`] of each, to the bit.
    fn sums(self, a: [Self::V; 4]) -> [f32; 4];
    /// Largest of the lanes.
    fn largest(self, a: Self::V) -> f32;

    /// # Safety
    /// `N` floats can be read at `at`; it need not be aligned.
    unsafe fn load(self, at: *const f32) -> Self::V;
    /// The first `n` lanes, zeros behind.
    ///
    /// # Safety
    /// `n` < `N` floats can be read at `at`; it need not be aligned.
    unsafe fn load_some(self, at: *const f32, n: usize) -> Self::V;
    /// # Safety
    /// `N` floats can be written at `at`; it need not be aligned.
    unsafe fn store(self, at: *mut f32, a: Self::V);
    /// `N` bfloat16 values.
    ///
    /// # Safety
    /// `2 · N` bytes can be read at `at`.
    unsafe fn load_bf16(self, at: *const u8) -> Self::V;
    /// `N` E4M3 values.
    ///
    /// # Safety
    /// `N` bytes can be read at `at`.
    unsafe fn load_e4m3(self, at: *const u8) -> Self::V;
    /// `N` E2M1 values, the first in the low half of the first byte.
    ///
    /// # Safety
    /// `N / 2` bytes can be read at `at`.
    unsafe fn load_e2m1(self, at: *const u8) -> Self::V;

    fn zero(self) -> Self::V {
        self.splat(0.0)
    }

    /// `e^x` for `x` ≤ 0, within 2 units in the last place; 0 where the result would be subnormal.
    ///
    /// `x = n·ln 2 + r` with |r| ≤ ln 2 / 2, then the polynomial for `e^r` (degree 7: its remainder is
    /// below 2^-26 there).
    #[inline(always)]
    fn exp(self, x: Self::V) -> Self::V {
        // The high part of ln 2 has 9 trailing zero bits, so its product with n is exact.
        const LN2_HIGH: f32 = 355.0 / 512.0;
        const LN2_LOW: f32 = -2.121_944_4e-4;
        const SMALLEST: f32 = -87.0;
        let low = self.splat(SMALLEST);
        // In this order the instructions keep NaN.
        let clamped = self.max(low, x);
        let n = self.round(self.mul(clamped, self.splat(std::f32::consts::LOG2_E)));
        let r = self.fma(n, self.splat(-LN2_HIGH), clamped);
        let r = self.fma(n, self.splat(-LN2_LOW), r);
        let mut p = self.splat(1.0 / 5040.0);
        for c in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5] {
            p = self.fma(p, r, self.splat(c));
        }
        // e^r = 1 + (r + r²·p): the small parts are summed first.
        let tail = self.fma(self.mul(r, r), p, r);
        let e = self.add(tail, self.splat(1.0));
        self.zero_where_below(x, low, self.times_power(e, n))
    }

    /// `a`, or 0 in lanes where `x < limit`.
    fn zero_where_below(self, x: Self::V, limit: Self::V, a: Self::V) -> Self::V;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::backend::host::numbers::{e2m1, e4m3, from_bf16, round_bf16};

    /// All operations against their plain meaning.
    struct Check;

    impl Work for Check {
        type Out = ();

        #[inline(always)]
        fn go<L: Lanes>(self, l: L) {
            let n = L::N;
            let store = |v: L::V| {
                let mut out = vec![0.0f32; n];
                // SAFETY: the vector holds `N` floats.
                unsafe { l.store(out.as_mut_ptr(), v) };
                out
            };
            for first in (0..256usize).step_by(n) {
                let codes: Vec<u8> = (first..first + n).map(|c| c as u8).collect();
                // SAFETY: `N` codes.
                let values = store(unsafe { l.load_e4m3(codes.as_ptr()) });
                for (v, c) in values.iter().zip(&codes) {
                    let expected = e4m3(*c);
                    assert!(
                        v.to_bits() == expected.to_bits() || (v.is_nan() && expected.is_nan()),
                        "e4m3 {c:#x}: {v} for {expected}"
                    );
                }
            }
            for low in 0..16u8 {
                for high in 0..16u8 {
                    let bytes = vec![low | high << 4; n / 2];
                    // SAFETY: `N / 2` bytes.
                    let values = store(unsafe { l.load_e2m1(bytes.as_ptr()) });
                    for (i, v) in values.iter().enumerate() {
                        let expected = e2m1(if i % 2 == 0 { low } else { high });
                        assert_eq!(v.to_bits(), expected.to_bits());
                    }
                }
            }
            // The order of the nibbles over a whole vector.
            let bytes: Vec<u8> = (0..n / 2).map(|i| (i * 37 + 11) as u8).collect();
            // SAFETY: `N / 2` bytes.
            let values = store(unsafe { l.load_e2m1(bytes.as_ptr()) });
            for (i, v) in values.iter().enumerate() {
                assert_eq!(*v, e2m1(bytes[i / 2] >> (4 * (i % 2)) & 15));
            }
            let words: Vec<u8> = (0..2 * n).map(|i| (i * 29 + 5) as u8).collect();
            // SAFETY: `2 · N` bytes.
            let values = store(unsafe { l.load_bf16(words.as_ptr()) });
            for (v, w) in values.iter().zip(words.chunks(2)) {
                assert_eq!(
                    v.to_bits(),
                    from_bf16(u16::from_le_bytes([w[0], w[1]])).to_bits()
                );
            }
            let a: Vec<f32> = (0..n).map(|i| (i as f32 - 3.3) * 1.7).collect();
            // SAFETY: `N` floats.
            let va = unsafe { l.load(a.as_ptr()) };
            for some in 0..n {
                // SAFETY: fewer than `N` of them.
                let part = store(unsafe { l.load_some(a.as_ptr(), some) });
                assert!((0..n).all(|i| part[i] == if i < some { a[i] } else { 0.0 }));
            }
            for (v, x) in store(l.round(va)).iter().zip(&a) {
                assert_eq!(*v, x.round_ties_even());
            }
            for (v, x) in store(l.round_bf16(va)).iter().zip(&a) {
                assert_eq!(*v, round_bf16(*x));
            }
            assert_eq!(l.largest(va), a[n - 1]);
            let sum: f32 = a.iter().sum();
            assert!((l.sum(va) - sum).abs() < 1e-4 * sum.abs().max(1.0));
            let doubled = l.add(va, va);
            let four = l.sums([va, doubled, l.zero(), l.mul(va, va)]);
            assert_eq!(four, [l.sum(va), l.sum(doubled), 0.0, l.sum(l.mul(va, va))]);
        }
    }

    /// The largest error of `exp` in units in the last place.
    struct ExpError;

    impl Work for ExpError {
        type Out = f64;

        #[inline(always)]
        fn go<L: Lanes>(self, l: L) -> f64 {
            let mut worst = 0.0f64;
            let mut out = vec![0.0f32; L::N];
            for i in 0..400_000u32 {
                let x = -(f64::from(i) * 2.17e-4) as f32;
                // SAFETY: the vector holds `N` floats.
                unsafe { l.store(out.as_mut_ptr(), l.exp(l.splat(x))) };
                let expected = f64::from(x).exp();
                let unit = f64::from(f32::from_bits((expected as f32).to_bits() + 1))
                    - f64::from(expected as f32);
                worst = worst.max((f64::from(out[0]) - expected).abs() / unit);
            }
            for (x, expected) in [
                (0.0, 1.0),
                (-0.0, 1.0),
                (-88.0, 0.0),
                (f32::NEG_INFINITY, 0.0),
            ] {
                // SAFETY: the vector holds `N` floats.
                unsafe { l.store(out.as_mut_ptr(), l.exp(l.splat(x))) };
                assert_eq!(out[0], expected);
            }
            worst
        }
    }

    fn check(l: impl Lanes) {
        l.run(Check);
        let worst = l.run(ExpError);
        assert!(worst < 2.0, "exp is {worst} units off");
    }

    #[test]
    fn portable_vectors_mean_what_they_say() {
        check(Portable);
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn avx2_vectors_mean_what_they_say() {
        match Avx2::detect() {
            Some(l) => check(l),
            None => eprintln!("skipped: no AVX2 on this machine"),
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn avx512_vectors_mean_what_they_say() {
        match Avx512::detect() {
            Some(l) => check(l),
            None => eprintln!("skipped: no AVX-512 on this machine"),
        }
    }
}
