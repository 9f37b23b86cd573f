//! What the specification says of a choice, with nothing but the logits: no histogram, no automaton, no counts kept
//! from token to token. Every step starts over from the tokens so far.

use std::collections::BTreeSet;

use fathom::engine::Request;
use fathom::engine::sampling::{Noise, Purpose};

/// One choice and all that could be told of it.
#[derive(Clone, Debug)]
pub(crate) struct Told {
    pub(crate) token: u32,
    /// Log-probabilities of all ids.
    pub(crate) raw: Vec<f64>,
    pub(crate) processed: Vec<f64>,
    pub(crate) min_tokens_ignored: bool,
}

/// The row that is left has no entry.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Empty;

/// One choice behind `output`.
pub(crate) fn choose(
    request: &Request,
    eos: &[u32],
    banned: &[u32],
    mask: &dyn Fn(u32) -> bool,
    logits: &[f32],
    output: &[u32],
) -> Result<Told, Empty> {
    let s = &request.sampling;
    let tokens = [&request.prompt[..], output].concat();
    let mut z = logits.to_vec();
    // 2
    for v in 0..z.len() as u32 {
        let is_allowed = s.allowed_tokens.as_ref().is_none_or(|a| a.contains(&v));
        if banned.contains(&v) || !is_allowed || !mask(v) {
            z[v as usize] = f32::NEG_INFINITY;
        }
    }
    if all_gone(&z) {
        return Err(Empty);
    }
    // 3
    for word in &s.bad_words {
        let (last, first) = word.split_last().unwrap();
        if tokens.len() >= first.len() && tokens[tokens.len() - first.len()..] == *first {
            z[*last as usize] = f32::NEG_INFINITY;
        }
    }
    // 4
    let mut min_tokens_ignored = false;
    if output.len() < s.min_tokens as usize {
        let mut without = z.clone();
        for id in eos.iter().chain(&request.stop_tokens) {
            without[*id as usize] = f32::NEG_INFINITY;
        }
        min_tokens_ignored = all_gone(&without);
        if !min_tokens_ignored {
            z = without;
        }
    }
    if all_gone(&z) {
        return Err(Empty);
    }
    // 5
    for (id, bias) in &s.logit_bias {
        z[*id as usize] += bias;
    }
    // 6
    let said: BTreeSet<u32> = tokens.iter().copied().collect();
    for v in 0..z.len() as u32 {
        let value = &mut z[v as usize];
        if !value.is_finite() {
            continue;
        }
        if said.contains(&v) {
            *value = if *value > 0.0 {
                *value / s.repetition_penalty
            } else {
                *value * s.repetition_penalty
            };
        }
        let count = output.iter().filter(|t| **t == v).count();
        *value -= s.frequency_penalty * count as f32;
        if count > 0 {
            *value -= s.presence_penalty;
        }
    }
    // 7: the largest, of equal ones the first.
    let ids: Vec<u32> = (0..z.len() as u32).collect();
    let at = |v: &u32| z[*v as usize];
    let best = *ids
        .iter()
        .max_by(|a, b| at(a).partial_cmp(&at(b)).unwrap().then(b.cmp(a)))
        .unwrap();
    let is_greedy = s.temperature < 1e-5;
    // 8
    let temperature = if is_greedy { 1.0 } else { s.temperature };
    let scaled: Vec<f32> = z.iter().map(|z| z / temperature).collect();
    let max = f64::from(scaled[best as usize]);
    let weights: Vec<f64> = scaled.iter().map(|z| (f64::from(*z) - max).exp()).collect();
    let total: f64 = weights.iter().sum();
    let p: Vec<f64> = weights.iter().map(|w| w / total).collect();
    let mut order: Vec<u32> = ids.iter().copied().filter(|v| at(v).is_finite()).collect();
    order.sort_by(|a, b| p[*b as usize].total_cmp(&p[*a as usize]).then(a.cmp(b)));
    // 9, 10, 11, each on its own.
    let mut sum = 0.0;
    let mut by_p = BTreeSet::new();
    for v in &order {
        by_p.insert(*v);
        sum += p[*v as usize];
        if s.top_p < 1.0 && sum >= f64::from(s.top_p) {
            break;
        }
    }
    let k = if s.top_k == 0 {
        order.len()
    } else {
        s.top_k as usize
    };
    let by_k: BTreeSet<u32> = order.iter().copied().take(k).collect();
    let most = p[order[0] as usize];
    let survivors: Vec<u32> = order
        .iter()
        .copied()
        .filter(|v| by_p.contains(v) && by_k.contains(v))
        .filter(|v| p[*v as usize] >= f64::from(s.min_p) * most)
        .collect();
    // 12
    let position = tokens.len() as u32;
    let noise = Noise::new(s.seed.unwrap(), position, s.choice_base, Purpose::Target);
    let drawn = survivors
        .iter()
        .map(|v| (f64::from(scaled[*v as usize]) + noise.gumbel(*v), *v))
        .max_by(|a, b| a.0.total_cmp(&b.0).then(b.1.cmp(&a.1)))
        .unwrap()
        .1;
    let chosen = if is_greedy { best } else { drawn };
    let left: f64 = survivors.iter().map(|v| weights[*v as usize]).sum();
    let mut processed = vec![f64::NEG_INFINITY; z.len()];
    for v in &survivors {
        processed[*v as usize] = f64::from(scaled[*v as usize]) - max - left.ln();
    }
    Ok(Told {
        token: given(request, output).unwrap_or(chosen),
        raw: log_softmax(logits),
        processed,
        min_tokens_ignored,
    })
}

/// The token that stands in for a choice.
fn given(request: &Request, output: &[u32]) -> Option<u32> {
    let s = &request.sampling;
    if let Some(Some(golden)) = s.golden_tokens.get(output.len()) {
        return Some(*golden);
    }
    let think = s.think.as_ref()?;
    let has_ended = output.windows(think.end.len()).any(|w| w == think.end);
    if has_ended || output.len() < think.budget as usize {
        return None;
    }
    let seen = (0..think.end.len())
        .rev()
        .find(|n| output.ends_with(&think.end[..*n]))
        .unwrap();
    Some(think.end[seen])
}

fn all_gone(z: &[f32]) -> bool {
    z.iter().all(|z| *z == f32::NEG_INFINITY)
}

pub(crate) fn log_softmax(logits: &[f32]) -> Vec<f64> {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|z| f64::from(z - max).exp()).sum();
    let of = |z: &f32| f64::from(*z) - f64::from(max) - sum.ln();
    logits.iter().map(of).collect()
}

/// Ids by probability.
pub(crate) fn ranked(values: &[f64]) -> Vec<u32> {
    let mut ids: Vec<u32> = (0..values.len() as u32).collect();
    ids.sort_by(|a, b| {
        values[*b as usize]
            .total_cmp(&values[*a as usize])
            .then(a.cmp(b))
    });
    ids
}
