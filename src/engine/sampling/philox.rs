//! Counter-based noise: Philox4x32 with 10 rounds, and the Gumbel noise made of it.
//!
//! No state: the noise of an id is a function of (seed, position, choice, purpose, id), so it depends on no
//! neighbour, schedule or filter. Cost: about ten multiplications an id, two logarithms where it is used.

#![forbid(unsafe_code)]

/// What a draw is for; independent streams under one seed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// The token itself.
    Target = 0,
    /// A draft's proposal.
    Draft = 1,
    /// Accepting a draft.
    Accept = 2,
    /// The residual after a refused draft.
    Residual = 3,
}

/// `"FTM1"`: sets fathom's stream apart from other uses of the same seed.
const DOMAIN: u32 = 0x4654_4d31;

/// No noise value is above it: −ln(−ln(1 − 2⁻³³)) is 22.88.
pub(super) const GUMBEL_MAX: f64 = 22.9;

/// One block of four words.
pub fn philox4x32_10(counter: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    const M0: u64 = 0xd251_1f53;
    const M1: u64 = 0xcd9e_8d57;
    let [mut c0, mut c1, mut c2, mut c3] = counter;
    let [mut k0, mut k1] = key;
    for _ in 0..10 {
        let p0 = M0 * u64::from(c0);
        let p1 = M1 * u64::from(c2);
        (c0, c1, c2, c3) = (
            (p1 >> 32) as u32 ^ c1 ^ k0,
            p1 as u32,
            (p0 >> 32) as u32 ^ c3 ^ k1,
            p0 as u32,
        );
        k0 = k0.wrapping_add(0x9e37_79b9);
        k1 = k1.wrapping_add(0xbb67_ae85);
    }
    [c0, c1, c2, c3]
}

/// The noise of one position of one sequence.
#[derive(Clone, Copy, Debug)]
pub struct Noise {
    key: [u32; 2],
    position: u32,
    stream: u32,
}

impl Noise {
    /// `position` is the index in the sequence, prompt included, of the token being chosen.
    pub fn new(seed: u64, position: u32, choice: u8, purpose: Purpose) -> Self {
        Self {
            key: [seed as u32, (seed >> 32) as u32],
            position,
            stream: u32::from(choice) << 8 | purpose as u32,
        }
    }

    /// The raw words of ids `4 * quad .. 4 * quad + 4`.
    pub fn words(&self, quad: u32) -> [u32; 4] {
        philox4x32_10([quad, self.position, self.stream, DOMAIN], self.key)
    }

    /// The Gumbel noise of one id.
    pub fn gumbel(&self, id: u32) -> f64 {
        gumbel(self.words(id >> 2)[(id & 3) as usize])
    }
}

/// A raw word as Gumbel noise.
pub(super) fn gumbel(word: u32) -> f64 {
    // Half a step inside at both ends: never 0, never 1.
    let u = (f64::from(word) + 0.5) * (1.0 / 4_294_967_296.0);
    -(-u.ln()).ln()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_answers_of_the_generator() {
        let known = [
            (
                [0; 4],
                [0; 2],
                [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8],
            ),
            (
                [u32::MAX; 4],
                [u32::MAX; 2],
                [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd],
            ),
            (
                [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
                [0xa409_3822, 0x299f_31d0],
                [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1],
            ),
        ];
        for (counter, key, words) in known {
            assert_eq!(philox4x32_10(counter, key), words);
        }
    }

    #[test]
    fn known_noise_in_our_layout() {
        use Purpose::*;
        #[rustfmt::skip]
        let known = [
            (0, 0, 0, 0, Target, 0xcd56_d77d, 1.511_793_759_263_9),
            (42, 0, 5, 0, Target, 0xc996_b310, 1.431_508_858_499_5),
            (42, 1, 5, 0, Target, 0x5d0e_ed96, -0.011_880_277_632_3),
            (42, 128_798, 1000, 0, Target, 0xb859_5036, 1.113_683_102_650_6),
            (42, 128_798, 1000, 1, Target, 0x75b2_9813, 0.252_239_589_263_5),
            (42, 128_798, 1000, 0, Accept, 0xdf0e_682f, 1.982_290_580_576_4),
            (0xdead_beef_cafe_f00d, 129_279, 1_048_575, 63, Residual, 0x52e0_b452, -0.120_278_404_900_9),
        ];
        for (seed, id, position, choice, purpose, word, g) in known {
            let noise = Noise::new(seed, position, choice, purpose);
            assert_eq!(noise.words(id >> 2)[(id & 3) as usize], word);
            assert!((noise.gumbel(id) - g).abs() < 1e-12, "{id}: {g}");
        }
    }

    #[test]
    fn noise_is_finite_and_bounded() {
        for word in [0, 1, u32::MAX - 1, u32::MAX] {
            let g = gumbel(word);
            assert!(g.is_finite() && g < GUMBEL_MAX, "{word}: {g}");
        }
    }
}
