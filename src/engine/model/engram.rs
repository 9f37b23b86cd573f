//! Which rows of the n-gram tables a token reads (V4.1).
//!
//! Input: compressed ids, the current one and those before it. Output: row numbers, `(ngram - 1) * heads` a
//! token. The hash of the 2-, 3-, … n-gram that ends at a token is taken modulo a prime for each head; the
//! primes and the multipliers follow from the configuration alone, as the published tables were made. Cost:
//! a few hundred bytes a layer, some 30 multiplications and remainders a token and layer.

#![forbid(unsafe_code)]

use super::config::EngramConfig;
use crate::engine::error::{Code, Error};

/// Compressed id of a position that takes no part in n-grams: an image, or an id outside the tokenizer.
pub const DEAD: i64 = -1;

/// Largest count of compressed ids. Below it multipliers come from the generator's 64-bit branch only.
pub(crate) const MAX_COMPRESSED: usize = 1 << 24;

/// Addresses of all engram layers of a model.
#[derive(Clone, Debug)]
pub struct EngramHash {
    /// Compressed id of each token.
    map: Vec<u32>,
    /// Stands before the start of a sequence and beyond a dead position.
    pad: i64,
    layers: Vec<LayerHash>,
}

#[derive(Clone, Debug)]
struct LayerHash {
    /// One for each look-back distance.
    multipliers: Vec<i64>,
    /// (bucket size, first row), grouped by distance from 1 on.
    buckets: Vec<Vec<(i64, u32)>>,
}

impl EngramHash {
    /// `token_map[id]` is the compressed id of a token. Every hash depends on the map, so a map with
    /// another count of distinct ids than the configuration names is refused.
    pub fn new(config: &EngramConfig, token_map: &[u32]) -> Result<Self, Error> {
        let distinct = token_map.iter().max().map_or(0, |&last| last as usize + 1);
        if distinct != config.compressed_vocab {
            let message = format!(
                "the tokenizer gives {distinct} compressed ids, \"engram_compressed_vocab_size\" is {}",
                config.compressed_vocab
            );
            let key = "engram_compressed_vocab_size";
            return Err(Error::new(Code::BadFormat, key, message));
        }
        let Some(&pad) = token_map.get(config.pad_token as usize) else {
            let message = format!(
                "\"engram_pad_token_id\" is {}, the tokenizer has {} ids",
                config.pad_token,
                token_map.len()
            );
            return Err(Error::new(Code::BadFormat, "engram_pad_token_id", message));
        };
        let sizes = bucket_sizes(config);
        let multipliers = multipliers(config);
        let layers = sizes.iter().zip(multipliers).map(|(orders, multipliers)| {
            let mut first = 0;
            let mut place = |&size: &u32| {
                let bucket = (i64::from(size), first);
                first += size;
                bucket
            };
            let buckets = orders
                .iter()
                .map(|heads| heads.iter().map(&mut place).collect());
            LayerHash {
                buckets: buckets.collect(),
                multipliers,
            }
        });
        Ok(Self {
            map: token_map.to_vec(),
            pad: i64::from(pad),
            layers: layers.collect(),
        })
    }

    /// The compressed id of a token; [`DEAD`] outside the tokenizer.
    pub fn compress(&self, token: u32) -> i64 {
        let id = self.map.get(token as usize);
        id.map_or(DEAD, |&id| i64::from(id))
    }

    /// Rows that a token reads of each table.
    pub fn columns(&self, which: usize) -> usize {
        self.layers[which].buckets.iter().map(Vec::len).sum()
    }

    /// Appends the rows of the last `count` entries of `compressed` to `out`, token after token: all heads
    /// of the 2-gram, then of the 3-gram, and so on. `which` counts engram layers from 0. Entries before the
    /// last `count` are history; the sequence starts where `compressed` does, so give `ngram - 1` entries
    /// of it, or all there are.
    pub fn rows(&self, which: usize, compressed: &[i64], count: usize, out: &mut Vec<u32>) {
        let layer = &self.layers[which];
        let start = compressed.len().saturating_sub(count);
        for position in start..compressed.len() {
            let mut before = compressed[..=position].iter().rev().copied();
            // Once a dead position or the start is met, everything beyond it is padding.
            let mut next = || match before.next() {
                Some(id) if id != DEAD => id,
                _ => {
                    before = [].iter().rev().copied();
                    self.pad
                }
            };
            // Ids and multipliers are bounded so that products stay below 2^63.
            let mut hash = next().wrapping_mul(layer.multipliers[0]);
            for (heads, multiplier) in layer.buckets.iter().zip(&layer.multipliers[1..]) {
                hash ^= next().wrapping_mul(*multiplier);
                let rows = heads
                    .iter()
                    .map(|&(size, first)| first + hash.rem_euclid(size) as u32);
                out.extend(rows);
            }
        }
    }
}

/// `[layer][n-gram length - 2][head]`: consecutive primes from `vocab` on, none handed out twice.
pub fn bucket_sizes(config: &EngramConfig) -> Vec<Vec<Vec<u32>>> {
    let mut primes = (config.vocab as u64..).filter(|&number| is_prime(number));
    // Primes lie dense enough that `u32` holds thousands of them beyond any `vocab` of `u31`.
    let mut next = || primes.next().map_or(u32::MAX, |prime| prime as u32);
    let mut heads = || (0..config.heads).map(|_| next()).collect();
    let mut orders = || (1..config.ngram).map(|_| heads()).collect();
    config.layers.iter().map(|_| orders()).collect()
}

/// `[layer][distance]`: odd multipliers, drawn for each layer by NumPy's default generator seeded with
/// 10007 times the layer's number. The bound keeps an id times a multiplier below 2^63.
pub fn multipliers(config: &EngramConfig) -> Vec<Vec<i64>> {
    let bound = (i64::MAX / config.compressed_vocab.max(1) as i64 / 2).max(1) as u64;
    let layer = |&layer: &usize| {
        let mut random = Pcg64::new(10007 * layer as u64);
        let draws = (0..config.ngram).map(|_| random.below(bound) as i64 * 2 + 1);
        draws.collect()
    };
    config.layers.iter().map(layer).collect()
}

/// Miller–Rabin with bases that decide every number below 3 215 031 751.
fn is_prime(number: u64) -> bool {
    const BASES: [u64; 4] = [2, 3, 5, 7];
    if number < 2 {
        return false;
    }
    for base in BASES {
        if number.is_multiple_of(base) {
            return number == base;
        }
    }
    let twos = (number - 1).trailing_zeros();
    let odd = (number - 1) >> twos;
    BASES.iter().all(|&base| {
        let mut power = power_modulo(base, odd, number);
        if power == 1 || power == number - 1 {
            return true;
        }
        (1..twos).any(|_| {
            power = power * power % number;
            power == number - 1
        })
    })
}

/// `base ^ exponent mod modulus`, for a modulus below 2^32.
fn power_modulo(mut base: u64, mut exponent: u64, modulus: u64) -> u64 {
    let mut result = 1;
    while exponent > 0 {
        if exponent & 1 == 1 {
            result = result * base % modulus;
        }
        base = base * base % modulus;
        exponent >>= 1;
    }
    result
}

/// The generator behind `numpy.random.default_rng(seed)`: PCG XSL-RR 128/64 (O'Neill 2014), seeded through
/// NumPy's `SeedSequence`.
struct Pcg64 {
    state: u128,
    increment: u128,
}

impl Pcg64 {
    fn new(seed: u64) -> Self {
        let [a, b, c, d] = seed_sequence(seed);
        let wide = |high: u64, low: u64| (u128::from(high) << 64) | u128::from(low);
        let mut generator = Self {
            state: 0,
            increment: (wide(c, d) << 1) | 1,
        };
        generator.step();
        generator.state = generator.state.wrapping_add(wide(a, b));
        generator.step();
        generator
    }

    fn step(&mut self) {
        const MULTIPLIER: u128 = 0x2360_ed05_1fc6_5da4_4385_df64_9fcc_f645;
        let product = self.state.wrapping_mul(MULTIPLIER);
        self.state = product.wrapping_add(self.increment);
    }

    fn next(&mut self) -> u64 {
        self.step();
        let folded = (self.state >> 64) as u64 ^ self.state as u64;
        folded.rotate_right((self.state >> 122) as u32)
    }

    /// Uniform in `0..bound` by Lemire's multiplication, as `Generator.integers` draws it for a range of
    /// more than 32 bits.
    fn below(&mut self, bound: u64) -> u64 {
        let mut product = u128::from(self.next()) * u128::from(bound);
        if (product as u64) < bound {
            let threshold = bound.wrapping_neg() % bound;
            while (product as u64) < threshold {
                product = u128::from(self.next()) * u128::from(bound);
            }
        }
        (product >> 64) as u64
    }
}

/// `SeedSequence(seed).generate_state(4, uint64)`: the seed spread over a pool of four words, then hashed.
fn seed_sequence(seed: u64) -> [u64; 4] {
    /// A word times a constant that changes with each use.
    struct Hash {
        constant: u32,
        multiplier: u32,
    }
    impl Hash {
        fn mix(&mut self, word: u32) -> u32 {
            let word = word ^ self.constant;
            self.constant = self.constant.wrapping_mul(self.multiplier);
            let word = word.wrapping_mul(self.constant);
            word ^ (word >> 16)
        }
    }
    fn join(a: u32, b: u32) -> u32 {
        let word = a
            .wrapping_mul(0xca01_f9dd)
            .wrapping_sub(b.wrapping_mul(0x4973_f715));
        word ^ (word >> 16)
    }

    let mut hash = Hash {
        constant: 0x43b0_d7e5,
        multiplier: 0x931e_8875,
    };
    let mut pool = [seed as u32, (seed >> 32) as u32, 0, 0].map(|word| hash.mix(word));
    for from in 0..4 {
        for to in 0..4 {
            if from != to {
                pool[to] = join(pool[to], hash.mix(pool[from]));
            }
        }
    }
    let mut hash = Hash {
        constant: 0x8b51_f9dd,
        multiplier: 0x58f3_8ded,
    };
    let words: [u32; 8] = std::array::from_fn(|index| hash.mix(pool[index % 4]));
    std::array::from_fn(|index| {
        u64::from(words[2 * index]) | (u64::from(words[2 * index + 1]) << 32)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The sizes of the published checkpoint.
    fn published() -> EngramConfig {
        EngramConfig {
            layers: vec![1, 14],
            rows: vec![384_006_168, 384_016_682],
            ngram: 4,
            vocab: 16_000_000,
            heads: 8,
            head_dim: 256,
            pad_token: 2,
            compressed_vocab: 99_092,
        }
    }

    /// A token map that only has the right count of compressed ids.
    fn identity(config: &EngramConfig) -> Vec<u32> {
        (0..config.compressed_vocab as u32).collect()
    }

    #[test]
    fn multipliers_are_the_published_ones() {
        let expected = [
            [
                76632096046245,
                4839876093313,
                35959672319349,
                73987337458391,
            ],
            [
                67716810739261,
                51510806800915,
                30921347202721,
                82619226485591,
            ],
        ];
        assert_eq!(multipliers(&published()), expected);
    }

    #[test]
    fn bucket_sizes_add_up_to_the_published_tables() {
        let config = published();
        let sizes = bucket_sizes(&config);
        let sums = sizes
            .iter()
            .map(|layer| layer.iter().flatten().map(|&size| size as usize).sum());
        assert_eq!(sums.collect::<Vec<usize>>(), config.rows);
        let second: Vec<u32> = sizes[0][1].iter().map(|size| size - 16_000_000).collect();
        assert_eq!(second, [189, 207, 211, 253, 277, 289, 307, 321]);
        let last: Vec<u32> = sizes[1][2].iter().map(|size| size - 16_000_000).collect();
        assert_eq!(last, [781, 799, 813, 819, 841, 877, 879, 889]);
    }

    #[test]
    fn primality_agrees_with_trial_division() {
        let by_division = |number: u64| {
            number > 1
                && (2..number)
                    .take_while(|d| d * d <= number)
                    .all(|d| !number.is_multiple_of(d))
        };
        for number in (0..3000).chain(2_147_483_600..2_147_483_700) {
            assert_eq!(is_prime(number), by_division(number), "{number}");
        }
    }

    #[test]
    fn a_dead_position_hides_everything_before_it() {
        let config = published();
        let hash = EngramHash::new(&config, &identity(&config)).unwrap();
        let rows = |compressed: &[i64]| {
            let mut out = Vec::new();
            hash.rows(0, compressed, 1, &mut out);
            out
        };
        assert_eq!(rows(&[7, 8, DEAD, 5]), rows(&[5]));
        assert_eq!(rows(&[7, 8, DEAD]), rows(&[2]));
        assert_ne!(rows(&[7, 8, 5]), rows(&[5]));
        assert_eq!(rows(&[6, 7, 8, 5]), rows(&[1, 2, 6, 7, 8, 5]));
        assert_eq!(rows(&[5]).len(), hash.columns(0));
    }

    #[test]
    fn rows_do_not_depend_on_how_many_are_asked_at_once() {
        let config = published();
        let hash = EngramHash::new(&config, &identity(&config)).unwrap();
        let compressed = [3, 1, DEAD, 4, 1, 5, 9, 2, 6];
        let mut together = Vec::new();
        hash.rows(1, &compressed, compressed.len(), &mut together);
        let mut alone = Vec::new();
        for end in 1..=compressed.len() {
            hash.rows(1, &compressed[end.saturating_sub(4)..end], 1, &mut alone);
        }
        assert_eq!(together, alone);
        let highest = together.iter().max().unwrap();
        assert!((*highest as usize) < config.rows[1]);
    }

    #[test]
    fn another_tokenizer_is_refused() {
        let config = published();
        let mut map = identity(&config);
        map.pop();
        let error = EngramHash::new(&config, &map).unwrap_err();
        assert_eq!(error.code, Code::BadFormat);
        assert!(error.message.contains("99091 compressed ids"), "{error}");
        assert!(error.message.contains("is 99092"), "{error}");
    }
}
