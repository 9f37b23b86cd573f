//! Logits become a token, deterministically given a seed (`engine.md` sections 12 and 13).
//!
//! In: one row of logits, the [`State`] of its sequence and the tokens so far. Out: the token, and what is told of
//! it. `state.rs` is the one entry: steps 2 to 6 are `edits.rs` and `penalties.rs`, 7 to 12 are here, tokens that
//! are not chosen but given are `forced.rs`, log-probabilities `logprobs.rs` and `report.rs`. What ends an output
//! besides tokens: `stops.rs` and `repeats.rs`.
//!
//! A row is read in a few passes; nothing is sorted without a filter, and with filters only what may survive them
//! is; a row is copied only for requests that edit it. All buffers live in [`Sampler`] and are reused: a choice
//! allocates nothing.

#![forbid(unsafe_code)]

mod edits;
mod forced;
pub mod logprobs;
mod pattern;
mod penalties;
mod philox;
mod repeats;
mod report;
mod state;
pub mod stops;

pub use philox::{Noise, Purpose, philox4x32_10};
pub use state::{Choice, State};

pub(super) use report::Reported;

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
    /// Ids that no request gets.
    banned: Vec<u32>,
    /// Logits after steps 2 to 6.
    edited: Vec<f32>,
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
    /// Logits of the field.
    processed: Vec<f32>,
    top: Vec<(u32, f32)>,
    /// Bytes of a row on their way into a digest.
    bytes: Vec<u8>,
}

/// Who takes part in a draw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Field {
    /// The largest has all the mass.
    One,
    /// Everybody.
    All,
    /// Those in [`Sampler::survivors`].
    Survivors,
}

impl Default for Sampler {
    fn default() -> Self {
        Self::new()
    }
}

impl Sampler {
    /// Scratch grows with the first row.
    pub fn new() -> Self {
        Self::without(&[])
    }

    /// Gives these ids to nobody who asks with a [`State`].
    pub fn without(banned: &[u32]) -> Self {
        Self {
            banned: banned.to_vec(),
            edited: Vec::new(),
            scaled: Vec::new(),
            weights: Vec::new(),
            survivors: Vec::new(),
            mass: vec![0.0; BUCKETS],
            count: vec![0; BUCKETS],
            skip: SkipTable::new(),
            order: Vec::new(),
            processed: Vec::new(),
            top: Vec::new(),
            bytes: Vec::new(),
        }
    }

    /// Chooses one token from a row that needs no edits: steps 1 and 7 to 12 of `engine.md` section 12.
    pub fn choose(
        &mut self,
        logits: &[f32],
        sampling: &Sampling,
        noise: Noise,
    ) -> Result<u32, RowFault> {
        let best = check(logits)?;
        if sampling.is_greedy() {
            return Ok(best);
        }
        let field = self.narrow(logits, best, sampling);
        Ok(self.draw(field, best, noise))
    }

    /// Steps 8 to 11: who takes part in the draw. A greedy request's field is that of temperature 1.
    fn narrow(&mut self, row: &[f32], best: u32, sampling: &Sampling) -> Field {
        // 8: temperature.
        let temperature = if sampling.is_greedy() {
            1.0
        } else {
            sampling.temperature
        };
        self.scaled.clear();
        self.scaled.extend(row.iter().map(|z| z / temperature));
        let max = self.scaled[best as usize];
        if !max.is_finite() {
            // Out of the range of f32: the distribution is all on the largest.
            return Field::One;
        }
        if sampling.top_p >= 1.0 && sampling.top_k == 0 && sampling.min_p <= 0.0 {
            return Field::All;
        }
        // 9, 10, 11: filters.
        self.filter(sampling, max);
        Field::Survivors
    }

    /// Step 12.
    fn draw(&self, field: Field, best: u32, noise: Noise) -> u32 {
        match field {
            Field::One => best,
            Field::All => self.draw_all(best, noise),
            Field::Survivors => self.draw_survivors(noise),
        }
    }

    /// The logits of the field, all others without any mass.
    fn processed(&mut self, field: Field, best: u32) -> &[f32] {
        if field == Field::All {
            return &self.scaled;
        }
        self.processed.clear();
        self.processed.resize(self.scaled.len(), f32::NEG_INFINITY);
        match field {
            Field::One => self.processed[best as usize] = 0.0,
            Field::All | Field::Survivors => {
                for &id in &self.survivors {
                    self.processed[id as usize] = self.scaled[id as usize];
                }
            }
        }
        &self.processed
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
    fn draw_all(&self, first: u32, noise: Noise) -> u32 {
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

    fn draw_survivors(&self, noise: Noise) -> u32 {
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
    largest(logits)
}

/// The largest entry of a row without faults.
fn largest(logits: &[f32]) -> Result<u32, RowFault> {
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
mod tests;
