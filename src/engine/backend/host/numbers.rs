//! Number formats of checkpoints and caches, one value at a time: E4M3, E2M1, E8M0, bfloat16.
//!
//! Everything else that needs these formats is tested against the functions here.

/// Largest finite E4M3 value.
pub const E4M3_MAX: f32 = 448.0;
/// Largest E2M1 value.
pub const E2M1_MAX: f32 = 6.0;
/// Magnitudes of the eight non-negative E2M1 codes.
pub const E2M1: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];

/// Value of an E8M0 byte: 2^(b-127). Byte 255 is NaN and is refused at load.
#[inline]
pub fn e8m0(byte: u8) -> f32 {
    if byte == 0 {
        f32::from_bits(0x0040_0000)
    } else {
        f32::from_bits(u32::from(byte) << 23)
    }
}

/// Value of an E4M3 code (4 exponent bits of bias 7, 3 mantissa bits, no infinity; 0x7f and 0xff are NaN).
#[inline]
pub const fn e4m3(code: u8) -> f32 {
    let exponent = (code >> 3) & 15;
    let mantissa = (code & 7) as u32;
    let magnitude = if exponent == 15 && mantissa == 7 {
        f32::NAN
    } else if exponent == 0 {
        mantissa as f32 * f32::from_bits(0x3b00_0000) // · 2^-9
    } else {
        f32::from_bits(((exponent as u32 + 120) << 23) | (mantissa << 20))
    };
    if code & 0x80 != 0 {
        -magnitude
    } else {
        magnitude
    }
}

/// Values of all E4M3 codes.
pub static E4M3: [f32; 256] = {
    let mut values = [0.0; 256];
    let mut code = 0;
    while code < 256 {
        values[code] = e4m3(code as u8);
        code += 1;
    }
    values
};

/// Nearest E4M3 code, ties to even, saturating at ±448. NaN stays NaN.
#[inline]
pub fn to_e4m3(x: f32) -> u8 {
    let sign = if x.is_sign_negative() { 0x80 } else { 0 };
    let magnitude = x.abs();
    if magnitude.is_nan() {
        return sign | 0x7f;
    }
    if magnitude >= 464.0 {
        return sign | 0x7e;
    }
    // 2^-6 is the smallest normal value; below it the step is 2^-9.
    if magnitude < f32::from_bits(0x3c80_0000) {
        return sign | (magnitude * 512.0).round_ties_even() as u8;
    }
    // Keep three mantissa bits: add half of the last kept bit, minus one where that bit is even.
    let bits = magnitude.to_bits();
    let rounded = (bits + 0x0007_ffff + ((bits >> 20) & 1)) >> 20;
    sign | ((rounded - (120 << 3)) as u8).min(0x7e)
}

/// `x` rounded to E4M3.
#[inline]
pub fn round_e4m3(x: f32) -> f32 {
    e4m3(to_e4m3(x))
}

/// Nearest E2M1 code, ties to the even code, saturating at ±6.
#[inline]
pub fn to_e2m1(x: f32) -> u8 {
    let sign = if x.is_sign_negative() { 8 } else { 0 };
    let m = x.abs();
    // Midpoints between neighbours; a tie goes to the even code.
    let code = if m <= 0.25 {
        0
    } else if m < 0.75 {
        1
    } else if m <= 1.25 {
        2
    } else if m < 1.75 {
        3
    } else if m <= 2.5 {
        4
    } else if m < 3.5 {
        5
    } else if m <= 5.0 {
        6
    } else {
        7
    };
    sign | code
}

/// Value of an E2M1 code.
#[inline]
pub fn e2m1(code: u8) -> f32 {
    let magnitude = E2M1[usize::from(code & 7)];
    if code & 8 != 0 { -magnitude } else { magnitude }
}

/// Smallest power of two that is at least `x` (`x` > 0, finite).
#[inline]
pub fn pow2_ceil(x: f32) -> f32 {
    let bits = x.to_bits();
    let exponent = bits & 0x7f80_0000;
    if bits & 0x007f_ffff == 0 {
        x
    } else {
        f32::from_bits(exponent + 0x0080_0000)
    }
}

/// `x` rounded to bfloat16, nearest, ties to even.
#[inline]
pub fn round_bf16(x: f32) -> f32 {
    if x.is_nan() {
        return x;
    }
    let bits = x.to_bits();
    f32::from_bits((bits.wrapping_add(0x7fff + ((bits >> 16) & 1))) & 0xffff_0000)
}

/// The bfloat16 bits of a value that is exactly a bfloat16.
#[inline]
pub fn bf16_bits(x: f32) -> u16 {
    debug_assert!(
        x.is_nan() || x.to_bits() & 0xffff == 0,
        "{x} is not a bfloat16"
    );
    (x.to_bits() >> 16) as u16
}

/// Value of bfloat16 bits.
#[inline]
pub fn from_bf16(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// E4M3 with one power-of-two scale for each `group` consecutive values, in place.
pub fn fake_fp8(x: &mut [f32], group: usize) {
    for block in x.chunks_mut(group) {
        let amax = block.iter().fold(0.0f32, |m, v| m.max(v.abs())).max(1e-4);
        let scale = pow2_ceil(amax / E4M3_MAX);
        let inverse = 1.0 / scale;
        for v in block {
            *v = round_e4m3(*v * inverse) * scale;
        }
    }
}

/// E2M1 with one power-of-two scale for each 32 values, in place: index queries and keys.
pub fn fake_fp4(x: &mut [f32]) {
    for block in x.chunks_mut(32) {
        let amax = block
            .iter()
            .fold(0.0f32, |m, v| m.max(v.abs()))
            .max(6.0 * f32::from_bits(1 << 23));
        let scale = pow2_ceil(amax / E2M1_MAX);
        let inverse = 1.0 / scale;
        for v in block {
            *v = e2m1(to_e2m1(*v * inverse)) * scale;
        }
    }
}

/// E2M1 with one E4M3 scale for each 16 values, in place: compressed rows of V4.1.
pub fn fake_fp4_e4m3(x: &mut [f32]) {
    for block in x.chunks_mut(16) {
        let amax = block
            .iter()
            .fold(0.0f32, |m, v| m.max(v.abs()))
            .max(E2M1_MAX * f32::from_bits(0x3b00_0000));
        let scale = round_e4m3(amax * (1.0 / E2M1_MAX));
        // A product with the rounded reciprocal, as published: a division would move ties.
        let inverse = 1.0 / scale;
        for v in block {
            *v = e2m1(to_e2m1(*v * inverse)) * scale;
        }
    }
}

/// Orthonormal Walsh-Hadamard transform in place; the length is a power of two.
pub fn hadamard(x: &mut [f32]) {
    let n = x.len();
    let mut half = 1;
    while half < n {
        for block in x.chunks_mut(2 * half) {
            let (low, high) = block.split_at_mut(half);
            for (a, b) in low.iter_mut().zip(high) {
                (*a, *b) = (*a + *b, *a - *b);
            }
        }
        half *= 2;
    }
    let norm = (n as f32).powf(-0.5);
    for v in x {
        *v *= norm;
    }
}
