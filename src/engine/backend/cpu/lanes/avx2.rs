//! [`Lanes`] with AVX2, FMA and F16C: eight lanes.

use std::arch::x86_64::*;

use super::{Lanes, Work};

/// Proof that this machine has AVX2, FMA and F16C.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Avx2(());

impl Avx2 {
    pub(in super::super) fn detect() -> Option<Self> {
        (is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c"))
        .then_some(Self(()))
    }
}

/// `work` compiled for these instructions.
///
/// # Safety
/// The machine has them.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn run<W: Work>(l: Avx2, work: W) -> W::Out {
    work.go(l)
}

/// Opens the one unsafe block that every operation of this file needs.
macro_rules! avx2 {
    ($($body:tt)*) => {
        // SAFETY: `self` proves the instructions; memory is touched only as the caller of the operation
        // promises.
        unsafe { $($body)* }
    };
}

/// Sums of the halves: the first step of [`Lanes::sum`].
#[inline(always)]
fn fold(_: Avx2, a: __m256) -> __m128 {
    avx2! { _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps::<1>(a)) }
}

/// The second step of [`Lanes::sums`]: `(v0 + v2) + (v1 + v3)` of four vectors.
///
/// # Safety
/// The machine has SSE (all of this architecture do).
#[inline(always)]
pub(super) unsafe fn finish(a: [__m128; 4]) -> [f32; 4] {
    // SAFETY: SSE only; the array is as large as the vector.
    unsafe {
        let ab = _mm_add_ps(_mm_unpacklo_ps(a[0], a[1]), _mm_unpackhi_ps(a[0], a[1]));
        let cd = _mm_add_ps(_mm_unpacklo_ps(a[2], a[3]), _mm_unpackhi_ps(a[2], a[3]));
        let sum = _mm_add_ps(_mm_movelh_ps(ab, cd), _mm_movehl_ps(cd, ab));
        std::mem::transmute::<__m128, [f32; 4]>(sum)
    }
}

impl Lanes for Avx2 {
    type V = __m256;
    const N: usize = 8;
    const BLOCK: usize = 3;

    #[inline(always)]
    fn run<W: Work>(self, work: W) -> W::Out {
        avx2! { run(self, work) }
    }

    #[inline(always)]
    fn splat(self, x: f32) -> __m256 {
        avx2! { _mm256_set1_ps(x) }
    }

    #[inline(always)]
    fn add(self, a: __m256, b: __m256) -> __m256 {
        avx2! { _mm256_add_ps(a, b) }
    }

    #[inline(always)]
    fn mul(self, a: __m256, b: __m256) -> __m256 {
        avx2! { _mm256_mul_ps(a, b) }
    }

    #[inline(always)]
    fn max(self, a: __m256, b: __m256) -> __m256 {
        avx2! { _mm256_max_ps(a, b) }
    }

    #[inline(always)]
    fn fma(self, a: __m256, b: __m256, c: __m256) -> __m256 {
        avx2! { _mm256_fmadd_ps(a, b, c) }
    }

    #[inline(always)]
    fn round(self, a: __m256) -> __m256 {
        avx2! { _mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(a) }
    }

    #[inline(always)]
    fn times_power(self, a: __m256, n: __m256) -> __m256 {
        avx2! {
            let exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
            _mm256_mul_ps(a, _mm256_castsi256_ps(_mm256_slli_epi32::<23>(exponent)))
        }
    }

    #[inline(always)]
    fn round_bf16(self, a: __m256) -> __m256 {
        avx2! {
            let bits = _mm256_castps_si256(a);
            let odd = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
            let bits = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
            _mm256_castsi256_ps(_mm256_and_si256(bits, _mm256_set1_epi32(0xffff_0000_u32 as i32)))
        }
    }

    #[inline(always)]
    fn sum(self, a: __m256) -> f32 {
        let a = fold(self, a);
        avx2! { finish([a, a, a, a])[0] }
    }

    #[inline(always)]
    fn sums(self, a: [__m256; 4]) -> [f32; 4] {
        let a = [
            fold(self, a[0]),
            fold(self, a[1]),
            fold(self, a[2]),
            fold(self, a[3]),
        ];
        avx2! { finish(a) }
    }

    #[inline(always)]
    fn largest(self, a: __m256) -> f32 {
        let mut lanes = [0.0f32; 8];
        avx2! { _mm256_storeu_ps(lanes.as_mut_ptr(), a) };
        lanes.into_iter().fold(f32::NEG_INFINITY, f32::max)
    }

    #[inline(always)]
    unsafe fn load(self, at: *const f32) -> __m256 {
        avx2! { _mm256_loadu_ps(at) }
    }

    #[inline(always)]
    unsafe fn load_some(self, at: *const f32, n: usize) -> __m256 {
        avx2! {
            let lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
            _mm256_maskload_ps(at, _mm256_cmpgt_epi32(_mm256_set1_epi32(n as i32), lanes))
        }
    }

    #[inline(always)]
    unsafe fn store(self, at: *mut f32, a: __m256) {
        avx2! { _mm256_storeu_ps(at, a) }
    }

    #[inline(always)]
    unsafe fn load_bf16(self, at: *const u8) -> __m256 {
        avx2! {
            let words = _mm256_cvtepu16_epi32(_mm_loadu_si128(at.cast()));
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(words))
        }
    }

    #[inline(always)]
    unsafe fn load_e4m3(self, at: *const u8) -> __m256 {
        avx2! {
            let words = _mm_cvtepu8_epi16(_mm_loadl_epi64(at.cast()));
            let sign = _mm_slli_epi16::<8>(_mm_and_si128(words, _mm_set1_epi16(0x80)));
            let magnitude = _mm_and_si128(words, _mm_set1_epi16(0x7f));
            let nan = _mm_cmpeq_epi16(magnitude, _mm_set1_epi16(0x7f));
            let bits = _mm_or_si128(_mm_slli_epi16::<7>(magnitude), sign);
            // f16 bits, 2^8 too small; NaN stays NaN.
            let halves = _mm_or_si128(bits, _mm_and_si128(nan, _mm_set1_epi16(0x7e00)));
            _mm256_mul_ps(_mm256_cvtph_ps(halves), _mm256_set1_ps(256.0))
        }
    }

    #[inline(always)]
    unsafe fn load_e2m1(self, at: *const u8) -> __m256 {
        avx2! {
            let codes = _mm256_set1_epi32(at.cast::<i32>().read_unaligned());
            let codes = _mm256_srlv_epi32(codes, _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28));
            let table = _mm256_setr_ps(0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0);
            // The lookup reads three bits; the fourth is the sign.
            let magnitude = _mm256_permutevar8x32_ps(table, codes);
            let sign = _mm256_slli_epi32::<31>(_mm256_srli_epi32::<3>(codes));
            _mm256_xor_ps(magnitude, _mm256_castsi256_ps(sign))
        }
    }

    #[inline(always)]
    fn zero_where_below(self, x: __m256, limit: __m256, a: __m256) -> __m256 {
        avx2! { _mm256_andnot_ps(_mm256_cmp_ps::<_CMP_LT_OQ>(x, limit), a) }
    }
}
