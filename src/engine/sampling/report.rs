//! What a request wants to know of its tokens besides the tokens: log-probabilities, ranks, masses, a digest.
//!
//! Values of the chosen tokens travel with them; the rest is gathered here and comes with the end of the request.
//! Each wish reads the row once more; a request without wishes has no report.

#![forbid(unsafe_code)]

use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};

use super::logprobs::{LogSumExp, rank, tail_mass, top};
use crate::engine::request::{LogprobSource, Logprobs, Reporting, Request};

/// Bytes of a digest.
const DIGEST: usize = 16;

/// See the module.
#[derive(Clone, Debug)]
pub(super) struct Report {
    logprobs: Logprobs,
    wishes: Reporting,
    prompt_length: u32,
    told: Reported,
}

/// What was gathered. A list is there where its wish is.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Reported {
    /// Of the chosen tokens.
    logprobs: Option<Vec<f32>>,
    ranks: Option<Vec<u32>>,
    tail_mass: Option<Vec<f32>>,
    /// So many values a token.
    token_logprobs: Option<(usize, Vec<f32>)>,
    /// After each token, so that the end may be moved back.
    digests: Option<Vec<[u8; DIGEST]>>,
    prompt: Option<PromptReported>,
}

/// Of the positions of the prompt from `start` on.
#[derive(Clone, Debug, Default, PartialEq)]
struct PromptReported {
    start: u32,
    logprobs: Vec<f32>,
    ranks: Vec<u32>,
    top_count: usize,
    top: Vec<(u32, f32)>,
}

impl Report {
    /// `None` for a request that wants nothing.
    pub(super) fn of(request: &Request) -> Option<Box<Self>> {
        let logprobs = request.logprobs;
        let wishes = &request.reporting;
        let wants_logprobs = logprobs != Logprobs::Off;
        let has_any =
            wants_logprobs || !wishes.tokens.is_empty() || wishes.digest || wishes.prompt.is_some();
        has_any.then(|| {
            Box::new(Self {
                logprobs,
                prompt_length: request.prompt.len() as u32,
                told: Reported {
                    logprobs: wants_logprobs.then(Vec::new),
                    ranks: wants_logprobs.then(Vec::new),
                    tail_mass: (wants_logprobs && wishes.tail_mass).then(Vec::new),
                    token_logprobs: (!wishes.tokens.is_empty())
                        .then(|| (wishes.tokens.len(), Vec::new())),
                    digests: wishes.digest.then(Vec::new),
                    prompt: wishes.prompt.map(|prompt| PromptReported {
                        // Nothing comes before the first token that could make it probable.
                        start: prompt.start.max(1),
                        ..PromptReported::default()
                    }),
                },
                wishes: wishes.clone(),
            })
        })
    }

    /// Whether it wants the values of what the filters left.
    pub(super) fn is_processed(&self) -> bool {
        self.wishes.source == LogprobSource::Processed && self.reads_rows()
    }

    fn reads_rows(&self) -> bool {
        self.logprobs != Logprobs::Off || !self.wishes.tokens.is_empty()
    }

    /// Takes the chosen token of a row; answers its own value. Alternatives go to `out`; `order` is scratch.
    pub(super) fn note(
        &mut self,
        row: &[f32],
        token: u32,
        order: &mut Vec<u32>,
        out: &mut Vec<(u32, f32)>,
    ) -> Option<f32> {
        if !self.reads_rows() {
            return None;
        }
        let sum = LogSumExp::of(row);
        if let Some((_, values)) = &mut self.told.token_logprobs {
            let wanted = self.wishes.tokens.iter();
            values.extend(wanted.map(|id| sum.logprob(row[*id as usize])));
        }
        if let Some(masses) = &mut self.told.tail_mass {
            masses.push(tail_mass(row, &sum, token));
        }
        if let Some(ranks) = &mut self.told.ranks {
            ranks.push(rank(row, token));
        }
        if let Logprobs::Top(count) = self.logprobs {
            top(row, &sum, count as usize, order, out);
        }
        let own = sum.logprob(row[token as usize]);
        let logprobs = self.told.logprobs.as_mut()?;
        logprobs.push(own);
        Some(own)
    }

    /// Folds a raw row and its token into the digest. `bytes` is scratch.
    pub(super) fn fold(&mut self, position: u32, row: &[f32], token: u32, bytes: &mut Vec<u8>) {
        let Some(digests) = &mut self.told.digests else {
            return;
        };
        bytes.clear();
        bytes.extend(row.iter().flat_map(|z| z.to_le_bytes()));
        let logits = Sha256::digest(&*bytes);
        let mut fold = Sha256::new();
        fold.update(digests.last().copied().unwrap_or_default());
        fold.update(position.to_le_bytes());
        fold.update(logits);
        fold.update(token.to_le_bytes());
        let mut digest = [0; DIGEST];
        digest.copy_from_slice(&fold.finalize()[..DIGEST]);
        digests.push(digest);
    }

    /// The next position of the prompt that it wants to know of.
    fn next_of_prompt(&self) -> Option<u32> {
        let prompt = self.told.prompt.as_ref()?;
        let next = prompt.start + prompt.logprobs.len() as u32;
        (next < self.prompt_length).then_some(next)
    }

    /// Whether it wants the logits of any of these rows, each of which is about the next position.
    pub(super) fn wants_rows(&self, from: u32, count: u32) -> bool {
        self.next_of_prompt()
            .is_some_and(|next| (from + 1..=from.saturating_add(count)).contains(&next))
    }

    /// Whether the row of this position is the next that it wants.
    pub(super) fn wants_row(&self, position: u32) -> bool {
        self.next_of_prompt() == Some(position + 1)
    }

    /// Takes the row before `token` of the prompt, once it is its turn.
    pub(super) fn note_prompt(&mut self, row: &[f32], token: u32, order: &mut Vec<u32>) {
        let (Some(told), Some(wish)) = (&mut self.told.prompt, self.wishes.prompt) else {
            return;
        };
        let sum = LogSumExp::of(row);
        told.logprobs.push(sum.logprob(row[token as usize]));
        told.ranks.push(rank(row, token));
        let before = told.top.len();
        top(row, &sum, wish.top as usize, order, &mut told.top);
        told.top_count = told.top.len() - before;
    }

    pub(super) fn told(&self) -> Reported {
        self.told.clone()
    }
}

impl Reported {
    /// Keeps what belongs to the first `count` tokens.
    pub(crate) fn truncate(&mut self, count: usize) {
        let Self {
            logprobs,
            ranks,
            tail_mass,
            token_logprobs,
            digests,
            prompt: _,
        } = self;
        for values in [logprobs, tail_mass].into_iter().flatten() {
            values.truncate(count);
        }
        if let Some(ranks) = ranks {
            ranks.truncate(count);
        }
        if let Some((width, values)) = token_logprobs {
            values.truncate(count.saturating_mul(*width));
        }
        if let Some(digests) = digests {
            digests.truncate(count);
        }
    }

    /// As it stands in the details of an end; minus infinity is `null`.
    pub(crate) fn describe(&self, map: &mut Map<String, Value>) {
        let mut put = |name: &str, value: Value| map.insert(name.to_owned(), value);
        if let Some(ranks) = &self.ranks {
            put("ranks", ranks.clone().into());
        }
        if let Some(logprobs) = &self.logprobs {
            let sum: f64 = logprobs.iter().map(|value| f64::from(*value)).sum();
            put("cumulative_logprob", sum.into());
        }
        if let Some(masses) = &self.tail_mass {
            put("tail_mass", masses.clone().into());
        }
        if let Some((width, values)) = &self.token_logprobs {
            put(
                "token_logprobs",
                values.chunks(*width).map(|values| json!(values)).collect(),
            );
        }
        if let Some(digests) = &self.digests {
            let last = digests.last().copied().unwrap_or_default();
            put("digest", hex(&last).into());
        }
        if let Some(prompt) = &self.prompt {
            put("prompt_logprobs", prompt.describe());
        }
    }
}

impl PromptReported {
    fn describe(&self) -> Value {
        let mut value = json!({
            "start": self.start,
            "logprobs": self.logprobs,
            "ranks": self.ranks,
        });
        if self.top_count > 0 {
            let rows = self.top.chunks(self.top_count);
            value["top_tokens"] = rows
                .clone()
                .map(|row| row.iter().map(|entry| entry.0).collect::<Value>())
                .collect();
            value["top_logprobs"] = rows
                .map(|row| row.iter().map(|entry| entry.1).collect::<Value>())
                .collect();
        }
        value
    }
}

fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    bytes
        .iter()
        .flat_map(|byte| [byte >> 4, byte & 15])
        .map(|digit| char::from(DIGITS[digit as usize]))
        .collect()
}
