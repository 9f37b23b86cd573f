//! [`Lanes`] with AVX-512 (F, BW, DQ, VL: every server part since 2017): sixteen lanes.

use std::arch::x86_64::*;

use super::avx2::finish;
use super::{Lanes, Work};

/// Proof that this machine has AVX-512 F, BW, DQ and VL, and what [`super::Avx2`] needs.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Avx512(());

impl Avx512 {
    pub(in super::super) fn detect() -> Option<Self> {
        (super::Avx2::detect().is_some()
            && is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl"))
        .then_some(Self(()))
    }
}

/// `work` compiled for these instructions.
///
/// # Safety
/// The machine has them.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn run<W: Work>(l: Avx512, work: W) -> W::Out {
    work.go(l)
}

/// Opens the one unsafe block that every operation of this file needs.
macro_rules! avx512 {
    ($($body:tt)*) => {
        // SAFETY: `self` proves the instructions; memory is touched only as the caller of the operation
        // promises.
        unsafe { $($body)* }
    };
}

/// Sums of halves, twice: the first step of [`Lanes::sum`].
#[inline(always)]
fn fold(_: Avx512, a: __m512) -> __m128 {
    avx512! {
        let a = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps::<1>(a));
        _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps::<1>(a))
    }
}

impl Lanes for Avx512 {
    type V = __m512;
    const N: usize = 16;
    const BLOCK: usize = 6;

    #[inline(always)]
    fn run<W: Work>(self, work: W) -> W::Out {
        avx512! { run(self, work) }
    }

    #[inline(always)]
    fn splat(self, x: f32) -> __m512 {
        avx512! { _mm512_set1_ps(x) }
    }

    #[inline(always)]
    fn add(self, a: __m512, b: __m512) -> __m512 {
        avx512! { _mm512_add_ps(a, b) }
    }

    #[inline(always)]
    fn mul(self, a: __m512, b: __m512) -> __m512 {
        avx512! { _mm512_mul_ps(a, b) }
    }

    #[inline(always)]
    fn max(self, a: __m512, b: __m512) -> __m512 {
        avx512! { _mm512_max_ps(a, b) }
    }

    #[inline(always)]
    fn fma(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        avx512! { _mm512_fmadd_ps(a, b, c) }
    }

    #[inline(always)]
    fn round(self, a: __m512) -> __m512 {
        avx512! { _mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(a) }
    }

    #[inline(always)]
    fn times_power(self, a: __m512, n: __m512) -> __m512 {
        avx512! { _mm512_scalef_ps(a, n) }
    }

    #[inline(always)]
    fn round_bf16(self, a: __m512) -> __m512 {
        avx512! {
            let bits = _mm512_castps_si512(a);
            let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
            let bits = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
            _mm512_castsi512_ps(_mm512_and_si512(bits, _mm512_set1_epi32(0xffff_0000_u32 as i32)))
        }
    }

    #[inline(always)]
    fn sum(self, a: __m512) -> f32 {
        let a = fold(self, a);
        avx512! { finish([a, a, a, a])[0] }
    }

    #[inline(always)]
    fn sums(self, a: [__m512; 4]) -> [f32; 4] {
        let a = [
            fold(self, a[0]),
            fold(self, a[1]),
            fold(self, a[2]),
            fold(self, a[3]),
        ];
        avx512! { finish(a) }
    }

    #[inline(always)]
    fn largest(self, a: __m512) -> f32 {
        avx512! { _mm512_reduce_max_ps(a) }
    }

    #[inline(always)]
    unsafe fn load(self, at: *const f32) -> __m512 {
        avx512! { _mm512_loadu_ps(at) }
    }

    #[inline(always)]
    unsafe fn load_some(self, at: *const f32, n: usize) -> __m512 {
        avx512! { _mm512_maskz_loadu_ps((1 << n) - 1, at) }
    }

    #[inline(always)]
    unsafe fn store(self, at: *mut f32, a: __m512) {
        avx512! { _mm512_storeu_ps(at, a) }
    }

    #[inline(always)]
    unsafe fn load_bf16(self, at: *const u8) -> __m512 {
        avx512! {
            let words = _mm512_cvtepu16_epi32(_mm256_loadu_si256(at.cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(words))
        }
    }

    #[inline(always)]
    unsafe fn load_e4m3(self, at: *const u8) -> __m512 {
        avx512! {
            let words = _mm256_cvtepu8_epi16(_mm_loadu_si128(at.cast()));
            let sign = _mm256_slli_epi16::<8>(_mm256_and_si256(words, _mm256_set1_epi16(0x80)));
            let magnitude = _mm256_and_si256(words, _mm256_set1_epi16(0x7f));
            let nan = _mm256_cmpeq_epi16(magnitude, _mm256_set1_epi16(0x7f));
            let bits = _mm256_or_si256(_mm256_slli_epi16::<7>(magnitude), sign);
            // f16 bits, 2^8 too small; NaN stays NaN.
            let halves = _mm256_or_si256(bits, _mm256_and_si256(nan, _mm256_set1_epi16(0x7e00)));
            _mm512_mul_ps(_mm512_cvtph_ps(halves), _mm512_set1_ps(256.0))
        }
    }

    #[inline(always)]
    unsafe fn load_e2m1(self, at: *const u8) -> __m512 {
        avx512! {
            // Each byte in 64 bits, its high half moved to the upper 32: the lookup reads four bits of
            // each 32 and ignores the rest.
            let bytes = _mm512_cvtepu8_epi64(_mm_loadl_epi64(at.cast()));
            let codes = _mm512_or_si512(bytes, _mm512_slli_epi64::<28>(bytes));
            let table = _mm512_setr_ps(
                0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0,
                -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0,
            );
            _mm512_permutexvar_ps(codes, table)
        }
    }

    #[inline(always)]
    fn zero_where_below(self, x: __m512, limit: __m512, a: __m512) -> __m512 {
        avx512! { _mm512_maskz_mov_ps(_mm512_cmp_ps_mask::<_CMP_NLT_UQ>(x, limit), a) }
    }
}
