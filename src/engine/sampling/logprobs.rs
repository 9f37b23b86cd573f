//! Log-probabilities of one row: the raw one, or what the filters left of it.
//!
//! The sum runs in index order by fixed blocks, so the values depend on the row only. Cost: one exponential
//! an id; top entries are one selection over the row.

#![forbid(unsafe_code)]

use std::cmp::Ordering;

/// Ids summed before their sum joins the total.
const BLOCK: usize = 1024;

/// The normaliser of one row: a log-probability is `logit - max - ln_sum`.
#[derive(Clone, Copy, Debug)]
pub struct LogSumExp {
    max: f64,
    ln_sum: f64,
}

impl LogSumExp {
    /// Of a row without NaN and with at least one finite entry.
    pub fn of(logits: &[f32]) -> Self {
        let max = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
        let sum: f64 = logits
            .chunks(BLOCK)
            .map(|block| {
                block
                    .iter()
                    .map(|&z| (f64::from(z) - max).exp())
                    .sum::<f64>()
            })
            .sum();
        Self {
            max,
            ln_sum: sum.ln(),
        }
    }

    /// The log-probability behind a logit of the row.
    pub fn logprob(&self, logit: f32) -> f32 {
        (f64::from(logit) - self.max - self.ln_sum) as f32
    }
}

/// Appends the `count` most probable ids, most probable first, smaller id first among equals. `order` is
/// scratch.
pub fn top(
    logits: &[f32],
    sum: &LogSumExp,
    count: usize,
    order: &mut Vec<u32>,
    out: &mut Vec<(u32, f32)>,
) {
    let count = count.min(logits.len());
    if count == 0 {
        return;
    }
    // Without NaN; -0 and 0 are one value.
    let first = |a: &u32, b: &u32| -> Ordering {
        logits[*b as usize]
            .partial_cmp(&logits[*a as usize])
            .unwrap_or(Ordering::Equal)
            .then(a.cmp(b))
    };
    order.clear();
    order.extend(0..logits.len() as u32);
    if count < order.len() {
        order.select_nth_unstable_by(count - 1, first);
        order.truncate(count);
    }
    order.sort_unstable_by(first);
    out.extend(
        order
            .iter()
            .map(|&id| (id, sum.logprob(logits[id as usize]))),
    );
}

/// The mass of all ids that are not more probable than `id`, itself included; larger ids count as more probable
/// among equals.
pub fn tail_mass(logits: &[f32], sum: &LogSumExp, id: u32) -> f32 {
    let own = logits[id as usize];
    let mut tail = 0.0;
    for (block, from) in logits.chunks(BLOCK).zip((0u32..).step_by(BLOCK)) {
        tail += block
            .iter()
            .zip(from..)
            .filter(|&(&z, v)| z < own || (z == own && v <= id))
            .map(|(&z, _)| (f64::from(z) - sum.max - sum.ln_sum).exp())
            .sum::<f64>();
    }
    tail as f32
}

/// Place of `id` among all ids, from 1; smaller ids come first among equals.
pub fn rank(logits: &[f32], id: u32) -> u32 {
    let own = logits[id as usize];
    let before = logits
        .iter()
        .zip(0u32..)
        .filter(|&(&z, v)| z > own || (z == own && v < id))
        .count();
    before as u32 + 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn values_equal_a_plain_computation(
            row in proptest::collection::vec(prop_oneof![8 => -30f32..30.0, 1 => Just(0.5f32), 1 => Just(f32::NEG_INFINITY)], 1..3000),
            count in 0usize..40,
        ) {
            prop_assume!(row.iter().any(|z| z.is_finite()));
            let sum = LogSumExp::of(&row);
            let total: f64 = row.iter().map(|&z| f64::from(z).exp()).sum();
            let plain: Vec<f64> = row.iter().map(|&z| f64::from(z) - total.ln()).collect();
            for (z, p) in row.iter().zip(&plain) {
                let own = f64::from(sum.logprob(*z));
                prop_assert!(own == *p || (own - p).abs() <= 1e-5, "{own} {p}");
            }
            let mut order: Vec<u32> = (0..row.len() as u32).collect();
            order.sort_by(|a, b| row[*b as usize].total_cmp(&row[*a as usize]).then(a.cmp(b)));
            let mut out = Vec::new();
            top(&row, &sum, count, &mut Vec::new(), &mut out);
            let ids: Vec<u32> = out.iter().map(|e| e.0).collect();
            prop_assert_eq!(&ids[..], &order[..count.min(row.len())]);
            for (place, id) in order.iter().take(5).enumerate() {
                prop_assert_eq!(rank(&row, *id), place as u32 + 1);
                // Nearly the ids behind it, but among equals the smaller ids belong to the tail.
                let own = row[*id as usize];
                let tail: f64 = (0..row.len())
                    .filter(|v| row[*v] < own || (row[*v] == own && *v <= *id as usize))
                    .map(|v| plain[v].exp())
                    .sum();
                prop_assert!((f64::from(tail_mass(&row, &sum, *id)) - tail).abs() <= 1e-5);
            }
        }
    }
}
