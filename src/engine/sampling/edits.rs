//! Steps 2 to 6 of a choice: everything that changes logits before the temperature does.
//!
//! In: a row, what the request asks for, the tokens so far. Out: the same row with ids taken out, biased or
//! penalised, and its largest entry. One copy of the row, then only the ids that a wish names are touched; a
//! request without wishes has no edits at all.

#![forbid(unsafe_code)]

use super::penalties::Penalties;
use super::{RowFault, largest};
use crate::engine::request::Sampling;

/// What one sequence does to its rows.
#[derive(Clone, Debug, Default)]
pub(super) struct Edits {
    allowed: Option<Vec<u32>>,
    bad_words: Vec<Vec<u32>>,
    /// Not before so many tokens of output…
    min_tokens: usize,
    /// …any of these.
    ends: Vec<u32>,
    bias: Vec<(u32, f32)>,
    penalties: Option<Penalties>,
}

/// The tokens a row comes after.
#[derive(Clone, Copy, Debug)]
pub(super) struct Before<'a> {
    /// Prompt and output.
    pub(super) tokens: &'a [u32],
    /// Of these, output.
    pub(super) produced: usize,
}

/// A row after its edits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Edited {
    pub(super) best: u32,
    /// Only ids that end the output were left: they were not kept back.
    pub(super) min_tokens_ignored: bool,
}

impl Edits {
    /// `None` for a request that edits nothing. `ends` are the ids that end an output.
    pub(super) fn of(sampling: &Sampling, prompt: &[u32], ends: &[u32]) -> Option<Box<Self>> {
        let Sampling {
            repetition_penalty,
            frequency_penalty,
            presence_penalty,
            ..
        } = *sampling;
        let penalises =
            repetition_penalty != 1.0 || frequency_penalty != 0.0 || presence_penalty != 0.0;
        let has_any = penalises
            || sampling.allowed_tokens.is_some()
            || !sampling.bad_words.is_empty()
            || !sampling.logit_bias.is_empty()
            || sampling.min_tokens > 0;
        has_any.then(|| {
            Box::new(Self {
                allowed: sampling.allowed_tokens.clone(),
                bad_words: sampling.bad_words.clone(),
                min_tokens: sampling.min_tokens as usize,
                ends: ends.to_vec(),
                bias: sampling.logit_bias.clone(),
                penalties: penalises.then(|| {
                    Penalties::new(
                        repetition_penalty,
                        frequency_penalty,
                        presence_penalty,
                        prompt,
                    )
                }),
            })
        })
    }

    /// Takes a token of the output.
    pub(super) fn accept(&mut self, token: u32) {
        if let Some(penalties) = &mut self.penalties {
            penalties.accept(token);
        }
    }

    /// Whether a row after so much output stays as it is.
    pub(super) fn is_idle(&self, produced: usize) -> bool {
        self.allowed.is_none()
            && self.bad_words.is_empty()
            && self.bias.is_empty()
            && self.penalties.is_none()
            && produced >= self.min_tokens
    }

    /// Steps 3 to 6.
    fn apply(&self, row: &mut [f32], before: Before<'_>, keeps_ends_back: bool) {
        // 3: bad words.
        for word in &self.bad_words {
            if let Some((last, first)) = word.split_last()
                && before.tokens.ends_with(first)
            {
                remove(row, *last);
            }
        }
        // 4: the least length.
        if keeps_ends_back {
            self.ends.iter().for_each(|id| remove(row, *id));
        }
        // 5: bias.
        for &(id, bias) in &self.bias {
            if let Some(z) = row.get_mut(id as usize) {
                *z += bias;
            }
        }
        // 6: penalties.
        if let Some(penalties) = &self.penalties {
            penalties.apply(row);
        }
    }
}

/// Steps 2 to 6 into `row`. `banned` ids are given to nobody; `mask` has a bit for each id that may come, and ids
/// behind its end may not.
pub(super) fn edit(
    edits: Option<&Edits>,
    banned: &[u32],
    mask: Option<&[u32]>,
    logits: &[f32],
    before: Before<'_>,
    row: &mut Vec<f32>,
) -> Result<Edited, RowFault> {
    let keeps_ends_back = edits.is_some_and(|edits| before.produced < edits.min_tokens);
    let mut attempt = |keeps_ends_back| {
        restrict(edits, banned, mask, logits, row);
        if let Some(edits) = edits {
            edits.apply(row, before, keeps_ends_back);
        }
        largest(row)
    };
    match attempt(keeps_ends_back) {
        Err(RowFault::Empty) if keeps_ends_back => Ok(Edited {
            best: attempt(false)?,
            min_tokens_ignored: true,
        }),
        best => Ok(Edited {
            best: best?,
            min_tokens_ignored: false,
        }),
    }
}

/// Step 2: the ids that may come at all.
fn restrict(
    edits: Option<&Edits>,
    banned: &[u32],
    mask: Option<&[u32]>,
    logits: &[f32],
    row: &mut Vec<f32>,
) {
    row.clear();
    match (edits.and_then(|edits| edits.allowed.as_deref()), mask) {
        (None, None) => row.extend_from_slice(logits),
        (Some(allowed), mask) => {
            row.resize(logits.len(), f32::NEG_INFINITY);
            for &id in allowed {
                let place = id as usize;
                if place < row.len() && mask.is_none_or(|mask| is_set(mask, id)) {
                    row[place] = logits[place];
                }
            }
        }
        (None, Some(mask)) => {
            row.resize(logits.len(), f32::NEG_INFINITY);
            let words = row.chunks_mut(32).zip(logits.chunks(32));
            for ((row, logits), &word) in words.zip(mask) {
                // Most words of a mask are empty, or full.
                match word {
                    0 => {}
                    u32::MAX => row.copy_from_slice(logits),
                    _ => {
                        for (at, (z, logit)) in row.iter_mut().zip(logits).enumerate() {
                            if word >> at & 1 == 1 {
                                *z = *logit;
                            }
                        }
                    }
                }
            }
        }
    }
    for &id in banned {
        remove(row, id);
    }
}

/// Whether a mask allows an id.
pub(super) fn is_set(mask: &[u32], id: u32) -> bool {
    mask.get(id as usize / 32)
        .is_some_and(|word| word >> (id % 32) & 1 == 1)
}

fn remove(row: &mut [f32], id: u32) {
    if let Some(z) = row.get_mut(id as usize) {
        *z = f32::NEG_INFINITY;
    }
}
