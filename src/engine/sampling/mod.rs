//! Logits become a token, deterministically given a seed (`engine.md` sections 12 and 13).
//!
//! In: one row of logits, the request's parameters, its seed and the position. Out: the token, and its
//! log-probabilities if asked for. A row is read in a few passes; nothing is sorted without a filter, and with
//! filters only what may survive them is. All buffers live in [`Sampler`] and are reused.

#![forbid(unsafe_code)]

pub mod logprobs;
mod philox;

pub use philox::{Noise, Purpose, philox4x32_10};

use logprobs::LogSumExp;
use philox::{GUMBEL_MAX, gumbel};

use super::error::Code;
use super::request::Sampling;

/// Below it the choice is a true argmax.
pub const GREEDY_BELOW: f32 = 1e-5;

/// Why a row gave no token; ends its request only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowFault {
    /// NaN or +inf.
    Numeric,
    /// No finite entry is left.
    Empty,
}

impl RowFault {
    /// The engine's name for it.
    pub fn code(self) -> Code {
        match self {
            Self::Numeric => Code::Numeric,
            Self::Empty => Code::MaskEmpty,
        }
    }
}

/// Resolutions of the weight histogram: an octave has 2^5 buckets, 64 octaves below the maximum are told
/// apart, everything smaller shares the last bucket.
const BUCKETS_PER_OCTAVE_LOG2: u32 = 5;
const BUCKETS: usize = (64 << BUCKETS_PER_OCTAVE_LOG2) + 1;

/// Chooses tokens; owns the scratch memory of one thread.
#[derive(Debug)]
pub struct Sampler {
    /// Logits without the ids that are not allowed.
    masked: Vec<f32>,
    /// Logits after the steps that change them, divided by the temperature.
    scaled: Vec<f32>,
    /// exp(scaled - max): p up to the common factor.
    weights: Vec<f64>,
    /// Ids that may survive the filters, then those that do.
    survivors: Vec<u32>,
    mass: Vec<f64>,
    count: Vec<u32>,
    skip: SkipTable,
    order: Vec<u32>,
}

impl Default for Sampler {
    fn default() -> Self {
        Self::new()
    }
}

impl Sampler {
    /// Scratch grows with the first row.
    pub fn new() -> Self {
        Self {
            masked: Vec::new(),
            scaled: Vec::new(),
            weights: Vec::new(),
            survivors: Vec::new(),
            mass: vec![0.0; BUCKETS],
            count: vec![0; BUCKETS],
            skip: SkipTable::new(),
            order: Vec::new(),
        }
    }

    /// Chooses one token. The steps carry the numbers of `engine.md` section 12; those between 1 and 7 (masks,
    /// bias, penalties) change `logits` in place before this is called with what is left of them.
    pub fn choose(
        &mut self,
        logits: &[f32],
        sampling: &Sampling,
        noise: Noise,
    ) -> Result<u32, RowFault> {
        // 1, 2: faults of this row.
        let best = check(logits)?;
        // 7: greedy.
        if sampling.temperature < GREEDY_BELOW {
            return Ok(best);
        }
        // 8: temperature.
        let temperature = sampling.temperature;
        self.scaled.clear();
        self.scaled.extend(logits.iter().map(|z| z / temperature));
        let max = self.scaled[best as usize];
        if !max.is_finite() {
            // Out of the range of f32: the distribution is all on the largest.
            return Ok(best);
        }
        let filtered = sampling.top_p < 1.0 || sampling.top_k > 0 || sampling.min_p > 0.0;
        if !filtered {
            return Ok(self.draw_all(best, noise));
        }
        // 9, 10, 11: filters.
        self.filter(sampling, max);
        // 12: the draw.
        Ok(self.draw_survivors(noise))
    }

    /// Chooses among the ids whose bit is set in `allowed`; ids behind its end are not allowed. A fault of the row
    /// counts wherever it is.
    pub fn choose_among(
        &mut self,
        logits: &[f32],
        allowed: &[u32],
        sampling: &Sampling,
        noise: Noise,
    ) -> Result<u32, RowFault> {
        // 1: faults of this row.
        check(logits)?;
        // 2: the mask.
        let mut masked = std::mem::take(&mut self.masked);
        masked.clear();
        masked.resize(logits.len(), f32::NEG_INFINITY);
        let words = masked.chunks_mut(32).zip(logits.chunks(32));
        for ((masked, logits), &word) in words.zip(allowed) {
            // Most words of a mask are empty, or full.
            match word {
                0 => {}
                u32::MAX => masked.copy_from_slice(logits),
                _ => {
                    for (at, (masked, logit)) in masked.iter_mut().zip(logits).enumerate() {
                        if word >> at & 1 == 1 {
                            *masked = *logit;
                        }
                    }
                }
            }
        }
        let chosen = self.choose(&masked, sampling, noise);
        self.masked = masked;
        chosen
    }

    /// Leaves in `survivors` the ids that pass top-p, top-k and min-p, most probable first. All three look at
    /// the same distribution.
    fn filter(&mut self, sampling: &Sampling, max: f32) {
        let max = f64::from(max);
        self.mass.fill(0.0);
        self.count.fill(0);
        let mut total = 0.0;
        self.weights.clear();
        for &z in &self.scaled {
            let w = (f64::from(z) - max).exp();
            total += w;
            self.weights.push(w);
            let bucket = bucket(w);
            self.mass[bucket] += w;
            self.count[bucket] += 1;
        }
        let wanted_mass = if sampling.top_p < 1.0 {
            f64::from(sampling.top_p) * total
        } else {
            f64::INFINITY
        };
        let wanted_count = match sampling.top_k {
            0 => usize::MAX,
            k => k as usize,
        };
        let floor = f64::from(sampling.min_p);

        // Which buckets may hold survivors. The running sum of whole buckets rounds differently from the sum in
        // order below: a little more than the wanted mass is asked for, so that the cut is never short.
        let enough_mass = wanted_mass * (1.0 + 1e-9);
        let (mut mass, mut count) = (0.0, 0usize);
        let mut last = BUCKETS - 1;
        for at in 0..BUCKETS {
            mass += self.mass[at];
            count += self.count[at] as usize;
            if mass >= enough_mass || count >= wanted_count {
                last = at;
                break;
            }
        }
        last = last.min(bucket(floor));

        self.survivors.clear();
        for (&w, id) in self.weights.iter().zip(0u32..) {
            if w > 0.0 && w >= floor && bucket(w) <= last {
                self.survivors.push(id);
            }
        }
        if sampling.top_p >= 1.0 && sampling.top_k == 0 {
            return;
        }
        let weights = &self.weights;
        self.survivors.sort_unstable_by(|a, b| {
            weights[*b as usize]
                .total_cmp(&weights[*a as usize])
                .then(a.cmp(b))
        });
        self.survivors.truncate(wanted_count);
        let mut sum = 0.0;
        let kept = self
            .survivors
            .iter()
            .position(|&id| {
                sum += weights[id as usize];
                sum >= wanted_mass
            })
            .map_or(self.survivors.len(), |at| at + 1);
        self.survivors.truncate(kept);
    }

    /// The draw over the whole row. Noise is made only where it could win.
    fn draw_all(&mut self, first: u32, noise: Noise) -> u32 {
        let mut best = Best::new(first, self.scaled[first as usize], noise);
        for (quad, at) in self.scaled.chunks(4).zip(0u32..) {
            // The noise comes four at a time: one look at the largest logit and the largest word is enough for
            // nearly all of them.
            let largest = quad.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let gap = best.value - f64::from(largest);
            if gap > GUMBEL_MAX {
                continue;
            }
            let words = noise.words(at);
            let [a, b, c, d] = words;
            if self.skip.is_hopeless(gap, a.max(b).max(c.max(d))) {
                continue;
            }
            for ((&z, word), id) in quad.iter().zip(words).zip(at * 4..) {
                best.offer(id, z, word);
            }
        }
        best.id
    }

    fn draw_survivors(&mut self, noise: Noise) -> u32 {
        let first = self.survivors[0];
        let mut best = Best::new(first, self.scaled[first as usize], noise);
        for &id in &self.survivors[1..] {
            let z = self.scaled[id as usize];
            if f64::from(z) < best.value - GUMBEL_MAX {
                continue;
            }
            let word = noise.words(id >> 2)[(id & 3) as usize];
            if !self.skip.is_hopeless(best.value - f64::from(z), word) {
                best.offer(id, z, word);
            }
        }
        best.id
    }

    /// Appends the `count` most probable ids of the raw row with their log-probabilities.
    pub fn top(
        &mut self,
        logits: &[f32],
        sum: &LogSumExp,
        count: usize,
        out: &mut Vec<(u32, f32)>,
    ) {
        logprobs::top(logits, sum, count, &mut self.order, out);
    }
}

/// The winner so far under (value, smaller id).
struct Best {
    id: u32,
    value: f64,
}

impl Best {
    fn new(id: u32, z: f32, noise: Noise) -> Self {
        Self {
            id,
            value: f64::from(z) + noise.gumbel(id),
        }
    }

    fn offer(&mut self, id: u32, z: f32, word: u32) {
        let value = f64::from(z) + gumbel(word);
        if value > self.value || (value == self.value && id < self.id) {
            *self = Self { id, value };
        }
    }
}

/// Finds faults and the largest entry, smallest id on ties.
fn check(logits: &[f32]) -> Result<u32, RowFault> {
    // One branch-free pass that the compiler can vectorise, then the search.
    let bad = logits
        .iter()
        .fold(false, |bad, z| bad | z.is_nan() | (*z == f32::INFINITY));
    if bad {
        return Err(RowFault::Numeric);
    }
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    if max == f32::NEG_INFINITY {
        return Err(RowFault::Empty);
    }
    // `position` compares with ==, so -0 and 0 are one value, as in the order of floats.
    let at = logits
        .iter()
        .position(|&z| z == max)
        .ok_or(RowFault::Empty)?;
    Ok(at as u32)
}

/// Place of a weight in (0, 1] in the histogram, 0 for the largest; monotone in the weight, exactly, because
/// the bits of positive floats are ordered like their values.
fn bucket(weight: f64) -> usize {
    const SHIFT: u32 = 52 - BUCKETS_PER_OCTAVE_LOG2;
    let steps_below_one = (1.0f64.to_bits() >> SHIFT).saturating_sub(weight.to_bits() >> SHIFT);
    (steps_below_one as usize).min(BUCKETS - 1)
}

/// Which raw words cannot win, without taking logarithms: for a gap between the best value and a logit, the
/// smallest word whose noise closes the gap, rounded down to be safe.
#[derive(Debug)]
struct SkipTable {
    words: Vec<u32>,
}

impl SkipTable {
    const LOWEST: f64 = -3.0;
    const STEPS: f64 = 8.0;

    fn new() -> Self {
        let size = ((GUMBEL_MAX - Self::LOWEST) * Self::STEPS) as usize + 1;
        let words = (0..size)
            .map(|at| {
                let gap = Self::LOWEST + at as f64 / Self::STEPS;
                let u = (-(-gap).exp()).exp();
                // Rounding of the gap and of these functions moves the bound by far less than one word.
                (u * 4_294_967_296.0 - 4.0).max(0.0) as u32
            })
            .collect();
        Self { words }
    }

    /// Whether the noise of `word` is below `gap` for certain.
    fn is_hopeless(&self, gap: f64, word: u32) -> bool {
        let at = (gap - Self::LOWEST) * Self::STEPS;
        if at < 0.0 {
            return false;
        }
        match self.words.get(at as usize) {
            Some(&least) => word < least,
            None => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Catches a mask after the filters, one that is off by a bit, and one that hides a fault.
    #[test]
    fn a_mask_is_as_if_the_other_ids_were_impossible() {
        let logits: Vec<f32> = (0..100).map(|id| (id * 37 % 101) as f32 / 9.0).collect();
        let allowed = [0x8000_0001, 0, u32::MAX];
        let is_allowed = |id: usize| id == 0 || id == 31 || (64..96).contains(&id);
        let masked: Vec<f32> = (0..100)
            .map(|id| {
                if is_allowed(id) {
                    logits[id]
                } else {
                    f32::NEG_INFINITY
                }
            })
            .collect();
        let mut sampler = Sampler::new();
        for (top_k, top_p) in [(0, 1.0), (3, 1.0), (0, 0.7), (5, 0.9)] {
            for seed in 0..50 {
                let sampling = sampling(seed as f32 / 20.0, top_k, top_p, 0.0);
                let noise = || Noise::new(seed, 9, 0, Purpose::Target);
                let chosen = sampler.choose_among(&logits, &allowed, &sampling, noise());
                assert_eq!(chosen, sampler.choose(&masked, &sampling, noise()));
                assert!(is_allowed(chosen.unwrap() as usize));
            }
        }
        let greedy = sampling(0.0, 0, 1.0, 0.0);
        let mut choose = |logits: &[f32], allowed: &[u32]| {
            let noise = Noise::new(0, 0, 0, Purpose::Target);
            sampler.choose_among(logits, allowed, &greedy, noise)
        };
        assert_eq!(choose(&logits, &[0, 0, 0, 0]), Err(RowFault::Empty));
        assert_eq!(choose(&logits, &[]), Err(RowFault::Empty));
        let mut broken = logits.clone();
        broken[50] = f32::NAN;
        assert_eq!(choose(&broken, &allowed), Err(RowFault::Numeric));
    }

    fn sampling(temperature: f32, top_k: u32, top_p: f32, min_p: f32) -> Sampling {
        Sampling {
            temperature,
            top_k,
            top_p,
            min_p,
            seed: None,
        }
    }

    /// The rule of the specification, step by step, with a full sort.
    fn reference(logits: &[f32], s: &Sampling, noise: Noise) -> u32 {
        let ids = 0..logits.len() as u32;
        if s.temperature < GREEDY_BELOW {
            return ids
                .reduce(|a, b| {
                    if logits[b as usize] > logits[a as usize] {
                        b
                    } else {
                        a
                    }
                })
                .unwrap();
        }
        let z: Vec<f32> = logits.iter().map(|z| z / s.temperature).collect();
        let max = f64::from(z.iter().copied().fold(f32::NEG_INFINITY, f32::max));
        let w: Vec<f64> = z.iter().map(|z| (f64::from(*z) - max).exp()).collect();
        let total: f64 = w.iter().sum();
        let p: Vec<f64> = w.iter().map(|w| w / total).collect();
        let mut order: Vec<u32> = ids.filter(|v| z[*v as usize] > f32::NEG_INFINITY).collect();
        order.sort_by(|a, b| p[*b as usize].total_cmp(&p[*a as usize]).then(a.cmp(b)));
        let by_p = if s.top_p < 1.0 {
            let mut sum = 0.0;
            order
                .iter()
                .position(|v| {
                    sum += p[*v as usize];
                    sum >= f64::from(s.top_p)
                })
                .map_or(order.len(), |at| at + 1)
        } else {
            order.len()
        };
        let by_k = if s.top_k > 0 {
            (s.top_k as usize).min(order.len())
        } else {
            order.len()
        };
        let most = p[order[0] as usize];
        order[..by_p.min(by_k)]
            .iter()
            .copied()
            .filter(|v| p[*v as usize] >= f64::from(s.min_p) * most)
            .map(|v| (f64::from(z[v as usize]) + noise.gumbel(v), v))
            .reduce(|a, b| {
                if b.0 > a.0 || (b.0 == a.0 && b.1 < a.1) {
                    b
                } else {
                    a
                }
            })
            .unwrap()
            .1
    }

    fn logit() -> impl Strategy<Value = f32> {
        prop_oneof![
            8 => -12f32..12.0,
            2 => (-4i8..4).prop_map(f32::from),
            1 => Just(f32::NEG_INFINITY),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(600))]
        #[test]
        fn the_fast_path_equals_the_plain_rule(
            row in proptest::collection::vec(logit(), 1..700),
            temperature in prop_oneof![Just(0f32), Just(1.0), 0.05f32..4.0, Just(1000.0)],
            top_k in prop_oneof![Just(0u32), 1..40u32, Just(100_000)],
            top_p in prop_oneof![Just(1f32), 0.01f32..1.0],
            min_p in prop_oneof![Just(0f32), 0.0f32..1.0],
            seed in any::<u64>(),
            position in 0..2_000_000u32,
        ) {
            prop_assume!(row.iter().any(|z| z.is_finite()));
            let s = sampling(temperature, top_k, top_p, min_p);
            let mut sampler = Sampler::new();
            for choice in 0..4 {
                let noise = Noise::new(seed, position, choice, Purpose::Target);
                prop_assert_eq!(sampler.choose(&row, &s, noise), Ok(reference(&row, &s, noise)));
            }
        }
    }

    #[test]
    fn wide_rows_take_the_same_token_as_the_plain_rule() {
        // The size of a real vocabulary, and logits as flat as they get: the skip table has the most to do.
        let mut sampler = Sampler::new();
        for seed in 0..6u64 {
            let spread = [0.0f32, 0.5, 8.0][seed as usize % 3];
            let noise = Noise::new(seed, 7, 1, Purpose::Draft);
            let row: Vec<f32> = (0..129_280u32)
                .map(|v| (noise.gumbel(v) as f32) * spread)
                .collect();
            for s in [
                sampling(1.0, 0, 1.0, 0.0),
                sampling(0.7, 50, 0.95, 0.0),
                sampling(1.3, 0, 0.999, 0.01),
            ] {
                let noise = Noise::new(seed, 99, 0, Purpose::Target);
                assert_eq!(
                    sampler.choose(&row, &s, noise),
                    Ok(reference(&row, &s, noise))
                );
            }
        }
    }

    #[test]
    fn greedy_takes_the_lowest_of_equal_ids() {
        let mut sampler = Sampler::new();
        let noise = Noise::new(1, 1, 0, Purpose::Target);
        let s = sampling(0.0, 0, 1.0, 0.0);
        assert_eq!(sampler.choose(&[1.0, 3.0, 3.0, -1.0], &s, noise), Ok(1));
        assert_eq!(sampler.choose(&[-0.0, 0.0], &s, noise), Ok(0));
    }

    #[test]
    fn a_bad_row_is_a_fault_and_not_a_token() {
        let mut sampler = Sampler::new();
        let noise = Noise::new(1, 1, 0, Purpose::Target);
        for t in [0.0, 1.0] {
            let s = sampling(t, 0, 1.0, 0.0);
            assert_eq!(
                sampler.choose(&[0.0, f32::NAN], &s, noise),
                Err(RowFault::Numeric)
            );
            assert_eq!(
                sampler.choose(&[f32::INFINITY, 0.0], &s, noise),
                Err(RowFault::Numeric)
            );
            assert_eq!(
                sampler.choose(&[f32::NEG_INFINITY; 3], &s, noise),
                Err(RowFault::Empty)
            );
        }
    }

    #[test]
    fn logits_beyond_the_range_after_scaling_still_give_the_largest() {
        let mut sampler = Sampler::new();
        let noise = Noise::new(3, 1, 0, Purpose::Target);
        let s = sampling(2e-5, 0, 0.9, 0.0);
        assert_eq!(sampler.choose(&[1e38, 2e38, 1.0], &s, noise), Ok(1));
        assert_eq!(sampler.choose(&[-2e38, -1e38], &s, noise), Ok(1));
    }

    /// Chi-square of 60 000 draws over positions; bounds are the 99.99 % points.
    #[test]
    fn frequencies_follow_the_distribution() {
        let row = [1.0f32, 0.2, -0.5, 2.0, 0.0, -3.0, 1.5, f32::NEG_INFINITY];
        for (s, bound) in [
            (sampling(1.0, 0, 1.0, 0.0), 27.9),
            (sampling(0.6, 4, 1.0, 0.0), 21.1),
            (sampling(1.4, 0, 0.9, 0.05), 27.9),
        ] {
            let mut sampler = Sampler::new();
            let mut seen = [0u32; 8];
            let draws = 60_000;
            for position in 0..draws {
                let noise = Noise::new(0x5eed, position, 0, Purpose::Target);
                seen[sampler.choose(&row, &s, noise).unwrap() as usize] += 1;
            }
            let kept: Vec<usize> = (0..8).filter(|v| seen[*v] > 0).collect();
            let w = |v: usize| f64::from(row[v] / s.temperature).exp();
            let total: f64 = kept.iter().map(|v| w(*v)).sum();
            let chi: f64 = kept
                .iter()
                .map(|v| {
                    let expected = w(*v) / total * f64::from(draws);
                    (f64::from(seen[*v]) - expected).powi(2) / expected
                })
                .sum();
            assert!(chi < bound, "{s:?}: {chi} {seen:?}");
            assert_eq!(seen[7], 0);
        }
    }
}
