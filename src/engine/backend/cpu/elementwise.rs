//! Operations on single rows: rounding, quantising, gating, norms.
//!
//! Each is one loop without branches that the compiler turns into vector code, compiled once for each
//! instruction set and chosen at run time. The plain meaning is in
//! [`numbers`](crate::engine::backend::host::numbers); tests compare every value.

/// Compiles `body` for AVX-512, AVX2 and the baseline, and calls the best that this machine has.
macro_rules! versions {
    ($(#[$doc:meta])* fn $name:ident($($arg:ident: $type:ty),*) $(-> $out:ty)? $body:block) => {
        $(#[$doc])*
        pub(super) fn $name($($arg: $type),*) $(-> $out)? {
            #[inline(always)]
            fn body($($arg: $type),*) $(-> $out)? $body

            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,fma,avx2")]
                fn avx512($($arg: $type),*) $(-> $out)? {
                    body($($arg),*)
                }
                #[target_feature(enable = "avx2,fma")]
                fn avx2($($arg: $type),*) $(-> $out)? {
                    body($($arg),*)
                }
                if is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512vl")
                    && is_x86_feature_detected!("avx512dq")
                {
                    // SAFETY: the features were detected just above.
                    return unsafe { avx512($($arg),*) };
                }
                if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
                    // SAFETY: the features were detected just above.
                    return unsafe { avx2($($arg),*) };
                }
            }
            body($($arg),*)
        }
    };
}

/// Largest magnitude, by comparing bits: unlike `f32::max` this is one vector instruction.
#[inline(always)]
fn largest(x: &[f32]) -> f32 {
    f32::from_bits(x.iter().fold(0, |m, v| m.max(v.to_bits() & 0x7fff_ffff)))
}

#[inline(always)]
fn pow2_ceil(x: f32) -> f32 {
    f32::from_bits((x.to_bits() + 0x007f_ffff) & 0x7f80_0000)
}

#[inline(always)]
fn bf16(x: f32) -> f32 {
    let bits = x.to_bits();
    f32::from_bits((bits + 0x7fff + ((bits >> 16) & 1)) & 0xffff_0000)
}

/// Nearest E4M3 value of something that is at most 448.
#[inline(always)]
fn e4m3(x: f32) -> f32 {
    // Adding and taking away 1.5 · 2^14 leaves a multiple of 2^-9, the step below 2^-6.
    let subnormal = (x + 24_576.0) - 24_576.0;
    let bits = x.to_bits();
    let normal = f32::from_bits((bits + 0x0007_ffff + ((bits >> 20) & 1)) & 0xfff0_0000);
    if x.abs() < 0.015_625 {
        subnormal.copysign(x)
    } else {
        normal
    }
}

/// Nearest E2M1 value of something that is at most 6.
#[inline(always)]
fn e2m1(x: f32) -> f32 {
    // 1.5 · 2^22: a multiple of one half, the step below 1.
    let small = (x + 6_291_456.0) - 6_291_456.0;
    let bits = x.to_bits();
    let large = f32::from_bits((bits + 0x001f_ffff + ((bits >> 22) & 1)) & 0xffc0_0000);
    if x.abs() < 1.0 {
        small.copysign(x)
    } else {
        large
    }
}

/// `e^x` to within two units in the last place; 0 below -87.3, infinite nowhere below 88.7.
#[inline(always)]
fn exp(x: f32) -> f32 {
    const LOG2_E: f32 = std::f32::consts::LOG2_E;
    // ln 2 in two parts, the first with few bits, so that n · LN2_HIGH is exact.
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    const MAGIC: f32 = 12_582_912.0; // 1.5 · 2^23
    let clamped = x.clamp(-87.3, 88.7);
    let n = (clamped * LOG2_E + MAGIC) - MAGIC;
    let r = (clamped - n * LN2_HIGH) - n * LN2_LOW;
    // Minimax polynomial of (e^r - 1 - r) / r² on |r| <= ln 2 / 2 (Cephes, `expf`).
    let p = 1.987_569_2e-4;
    let p = p * r + 1.398_199_9e-3;
    let p = p * r + 8.333_452e-3;
    let p = p * r + 4.166_579_6e-2;
    let p = p * r + 1.666_666_5e-1;
    let p = p * r + 0.5;
    let value = p * (r * r) + r + 1.0;
    let scale = f32::from_bits((((n as i32) + 127) << 23) as u32);
    if x < -87.3 { 0.0 } else { value * scale }
}

versions! {
    /// Rounds to bfloat16.
    fn round_bf16(x: &mut [f32]) {
        x.iter_mut().for_each(|v| *v = bf16(*v));
    }
}

versions! {
    /// E4M3 with one power-of-two scale for each `group` values.
    fn fake_fp8(x: &mut [f32], group: usize) {
        for block in x.chunks_mut(group) {
            let scale = pow2_ceil(largest(block).max(1e-4) / 448.0);
            let inverse = 1.0 / scale;
            block.iter_mut().for_each(|v| *v = e4m3(*v * inverse) * scale);
        }
    }
}

versions! {
    /// E2M1 with one power-of-two scale for each 32 values.
    fn fake_fp4(x: &mut [f32]) {
        for block in x.chunks_mut(32) {
            let scale = pow2_ceil(largest(block).max(6.0 * f32::from_bits(1 << 23)) / 6.0);
            let inverse = 1.0 / scale;
            block.iter_mut().for_each(|v| *v = e2m1(*v * inverse) * scale);
        }
    }
}

versions! {
    /// Orthonormal Walsh-Hadamard transform.
    fn hadamard(x: &mut [f32]) {
        crate::engine::backend::host::numbers::hadamard(x);
    }
}

versions! {
    /// `Σ x²` in f64, sixteen sums side by side.
    fn sum_of_squares(x: &[f32]) -> f64 {
        let mut sums = [0.0f64; 16];
        let chunks = x.chunks_exact(16);
        let tail: f64 = chunks.remainder().iter().map(|v| f64::from(*v) * f64::from(*v)).sum();
        for chunk in chunks {
            for (sum, v) in sums.iter_mut().zip(chunk) {
                *sum += f64::from(*v) * f64::from(*v);
            }
        }
        sums.iter().sum::<f64>() + tail
    }
}

versions! {
    /// `x = weight · (x · scale)`.
    fn scale_by(x: &mut [f32], weight: &[f32], scale: f32) {
        x.iter_mut().zip(weight).for_each(|(v, w)| *v = *w * (*v * scale));
    }
}

versions! {
    /// `gate = silu(min(gate, limit)) · clamp(up) · weight`; inputs are rounded to bfloat16 first where
    /// `round` says so. A limit of infinity clamps nothing.
    fn swiglu(gate: &mut [f32], up: &[f32], limit: f32, weight: f32, round: bool) {
        for (g, u) in gate.iter_mut().zip(up) {
            let (a, b) = if round { (bf16(*g), bf16(*u)) } else { (*g, *u) };
            // A comparison keeps NaN, which `min` would replace by the limit.
            let (a, b) = (if a > limit { limit } else { a }, b.clamp(-limit, limit));
            *g = a / (1.0 + exp(-a)) * b * weight;
        }
    }
}

versions! {
    /// `y += x`, with `x` rounded to bfloat16 first where `round` says so.
    fn add(y: &mut [f32], x: &[f32], round: bool) {
        if round {
            y.iter_mut().zip(x).for_each(|(y, x)| *y += bf16(*x));
        } else {
            y.iter_mut().zip(x).for_each(|(y, x)| *y += x);
        }
    }
}

versions! {
    /// `y += a · x`.
    fn add_scaled(y: &mut [f32], a: f32, x: &[f32]) {
        y.iter_mut().zip(x).for_each(|(y, x)| *y += a * x);
    }
}

versions! {
    /// Rotates adjacent pairs.
    fn rotate(x: &mut [f32], cos: &[f32], sin: &[f32]) {
        for ((pair, c), s) in x.chunks_exact_mut(2).zip(cos).zip(sin) {
            let (a, b) = (pair[0], pair[1]);
            pair[0] = a * c - b * s;
            pair[1] = a * s + b * c;
        }
    }
}

versions! {
    /// One step of a softmax over candidates, channel by channel: `weight = e^(gate - max)`, then
    /// `total += weight` and `out += weight · value`.
    fn softmax_step(out: &mut [f32], total: &mut [f32], max: &[f32], gate: &[f32], value: &[f32]) {
        for ((((o, t), m), g), v) in out.iter_mut().zip(total).zip(max).zip(gate).zip(value) {
            let weight = exp(*g - *m);
            *t += weight;
            *o += weight * *v;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::backend::host::numbers;

    /// Values over many magnitudes, with ties, zeros and both signs.
    fn samples() -> Vec<f32> {
        let mut state = 9u64;
        let mut values: Vec<f32> = (0..4096)
            .map(|i| {
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1_442_695_040_888_963_407);
                let unit = (state >> 40) as f32 / (1u64 << 24) as f32 - 0.5;
                unit * 2f32.powi(i % 40 - 30)
            })
            .collect();
        values.extend((0..2048).map(|i| (i as f32 - 1024.0) / 16.0));
        values.extend([0.0, -0.0, 448.0, -448.0, 6.0, 5.0, 2.5, 0.25, 0.75, 1e-30]);
        values.resize(values.len().next_multiple_of(128), 0.125);
        values
    }

    #[test]
    fn quantisers_and_rounding_equal_the_plain_ones() {
        for group in [32, 64, 128] {
            let (mut have, mut want) = (samples(), samples());
            fake_fp8(&mut have, group);
            numbers::fake_fp8(&mut want, group);
            assert_eq!(have, want);
        }
        let (mut have, mut want) = (samples(), samples());
        fake_fp4(&mut have);
        numbers::fake_fp4(&mut want);
        assert_eq!(have, want);
        let mut have = samples();
        round_bf16(&mut have);
        for (h, x) in have.iter().zip(samples()) {
            assert_eq!(h.to_bits(), numbers::round_bf16(x).to_bits());
        }
    }

    #[test]
    fn the_exponential_is_within_two_units_in_the_last_place() {
        for i in -87_000..88_000 {
            let x = i as f32 / 1000.0;
            let want = f64::from(x).exp();
            let unit =
                f64::from(f32::from_bits((want as f32).to_bits() + 1)) - f64::from(want as f32);
            assert!((f64::from(exp(x)) - want).abs() <= 2.0 * unit, "{x}");
        }
        assert_eq!(exp(-1000.0), 0.0);
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp(0.0), 1.0);
    }

    #[test]
    fn gating_equals_the_formula() {
        let up = samples();
        let mut gate: Vec<f32> = samples().iter().rev().copied().collect();
        let want: Vec<f64> = gate
            .iter()
            .zip(&up)
            .map(|(g, u)| {
                let (g, u) = (f64::from(g.min(10.0)), f64::from(u.clamp(-10.0, 10.0)));
                g / (1.0 + (-g).exp()) * u * 0.5
            })
            .collect();
        swiglu(&mut gate, &up, 10.0, 0.5, false);
        for (h, w) in gate.iter().zip(want) {
            assert!(
                (f64::from(*h) - w).abs() <= w.abs() * 1e-6 + 1e-30,
                "{h} {w}"
            );
        }
    }

    #[test]
    fn a_value_that_is_not_a_number_stays_visible() {
        use crate::engine::backend::host::kernels::Kernels;
        use crate::engine::backend::reference::Plain;

        let mut gates = [[1.0, f32::NAN, 3.0], [1.0, f32::NAN, 3.0]];
        swiglu(&mut gates[0], &[1.0; 3], 10.0, 1.0, true);
        Plain.swiglu(&mut gates[1], &[1.0; 3], 10.0, 1.0, true);
        for gate in gates {
            assert_eq!(gate.map(f32::is_nan), [false, true, false]);
        }
        let mut x = [1.0, f32::NAN, 3.0];
        round_bf16(&mut x);
        assert!(x[1].is_nan());
        let mut x = [f32::NAN; 32];
        fake_fp8(&mut x, 32);
        assert!(x.iter().all(|v| v.is_nan()));
    }
}
