//! Step 6: what has been said before becomes less likely.
//!
//! The ids of prompt and output are counted as they come, so a choice costs one operation for each different id
//! and nothing for the rest of the vocabulary.

#![forbid(unsafe_code)]

use std::collections::HashMap;

/// Repetition, frequency and presence penalties of one sequence, with its counts.
#[derive(Clone, Debug)]
pub(super) struct Penalties {
    repetition: f32,
    frequency: f32,
    presence: f32,
    /// Different ids and how often the output has each; those of the prompt only with a repetition penalty.
    seen: Vec<(u32, u32)>,
    places: HashMap<u32, usize, ahash::RandomState>,
}

impl Penalties {
    pub(super) fn new(repetition: f32, frequency: f32, presence: f32, prompt: &[u32]) -> Self {
        let mut penalties = Self {
            repetition,
            frequency,
            presence,
            seen: Vec::new(),
            places: HashMap::default(),
        };
        if repetition != 1.0 {
            for &id in prompt {
                penalties.entry(id);
            }
        }
        penalties
    }

    /// Takes a token of the output.
    pub(super) fn accept(&mut self, id: u32) {
        self.entry(id).1 += 1;
    }

    fn entry(&mut self, id: u32) -> &mut (u32, u32) {
        let place = *self.places.entry(id).or_insert_with(|| {
            self.seen.push((id, 0));
            self.seen.len() - 1
        });
        &mut self.seen[place]
    }

    /// What is finite stays finite, so that no penalty removes an id or makes it certain.
    pub(super) fn apply(&self, row: &mut [f32]) {
        for &(id, count) in &self.seen {
            let Some(z) = row.get_mut(id as usize).filter(|z| z.is_finite()) else {
                continue;
            };
            let repeated = if *z > 0.0 {
                *z / self.repetition
            } else {
                *z * self.repetition
            };
            let used = if count > 0 { self.presence } else { 0.0 };
            let value = repeated - self.frequency * count as f32 - used;
            *z = value.clamp(f32::MIN, f32::MAX);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches: a prompt that counts for the other two, or an order of the three that is not the documented one.
    #[test]
    fn the_prompt_counts_for_repetition_only() {
        let mut penalties = Penalties::new(2.0, 0.5, 0.25, &[0, 1, 1]);
        penalties.accept(1);
        penalties.accept(2);
        penalties.accept(2);
        let mut row = [4.0, -4.0, 4.0, 4.0];
        penalties.apply(&mut row);
        assert_eq!(row, [2.0, -8.0 - 0.5 - 0.25, 2.0 - 1.0 - 0.25, 4.0]);
    }

    #[test]
    fn nothing_leaves_the_range_of_numbers() {
        let mut penalties = Penalties::new(1e-30, 0.0, 0.0, &[0, 2]);
        let mut row = [1e30, 1.0, f32::NEG_INFINITY];
        penalties.accept(0);
        penalties.apply(&mut row);
        assert_eq!(row, [f32::MAX, 1.0, f32::NEG_INFINITY]);
        let penalties = Penalties::new(10.0, 0.0, 0.0, &[0]);
        let mut row = [-3e38];
        penalties.apply(&mut row);
        assert_eq!(row, [f32::MIN]);
    }
}
