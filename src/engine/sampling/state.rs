//! What the choices of one sequence depend on besides its logits, in one place that can be cloned.
//!
//! In: a row, the mask of a constraint if there is one, the tokens so far. Out: the next token, with the values that
//! travel with it. Everything kept here is a function of the request and of the tokens chosen, so it outlives a
//! preemption untouched; nothing of it refers to slots, blocks or steps.

#![forbid(unsafe_code)]

use super::edits::{Before, Edits, edit, is_set};
use super::forced::Forced;
use super::repeats::Repeats;
use super::report::{Report, Reported};
use super::{Field, Noise, Purpose, RowFault, Sampler, check};
use crate::engine::request::{Request, Sampling};

/// See the module.
#[derive(Clone, Debug)]
pub struct State {
    sampling: Sampling,
    seed: u64,
    prompt: usize,
    edits: Option<Box<Edits>>,
    forced: Option<Box<Forced>>,
    repeats: Option<Box<Repeats>>,
    is_looping: bool,
    report: Option<Box<Report>>,
}

/// A chosen token and what goes with it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Choice<'a> {
    /// The token.
    pub token: u32,
    /// Its log-probability, where it is wanted.
    pub logprob: Option<f32>,
    /// Alternatives, most probable first.
    pub top: &'a [(u32, f32)],
    /// `min_tokens` had to give way, because only ids that end the output were left.
    pub min_tokens_ignored: bool,
}

impl State {
    /// For a request that was checked. `eos` are the model's end tokens, `seed` is drawn where the request has none.
    pub fn new(request: &Request, eos: &[u32], seed: u64) -> Self {
        let sampling = request.sampling.clone();
        let mut ends = request.stop_tokens.clone();
        ends.extend_from_slice(eos);
        let is_forced = !sampling.golden_tokens.is_empty() || sampling.think.is_some();
        Self {
            edits: Edits::of(&sampling, &request.prompt, &ends),
            forced: is_forced.then(|| {
                Box::new(Forced::new(
                    &sampling.golden_tokens,
                    sampling.think.as_ref(),
                ))
            }),
            repeats: request
                .repeat_guard
                .map(|guard| Box::new(Repeats::new(guard))),
            is_looping: false,
            report: Report::of(request),
            prompt: request.prompt.len(),
            seed,
            sampling,
        }
    }

    /// Chooses the token behind `tokens`, prompt and output, and takes it. `mask` has a bit for each id that a
    /// constraint allows. The steps are those of `engine.md` section 12.
    pub fn choose<'s>(
        &mut self,
        sampler: &'s mut Sampler,
        logits: &[f32],
        mask: Option<&[u32]>,
        tokens: &[u32],
    ) -> Result<Choice<'s>, RowFault> {
        let produced = tokens.len() - self.prompt;
        // 1: faults of this row.
        let best = check(logits)?;
        let mut chosen = Chosen {
            best,
            token: best,
            field: Field::All,
            min_tokens_ignored: false,
        };
        let edits = self.edits.as_deref().filter(|e| !e.is_idle(produced));
        if edits.is_none() && mask.is_none() && sampler.banned.is_empty() {
            self.pick(sampler, logits, tokens, mask, &mut chosen)?;
        } else {
            // 2 to 6, in memory that comes back whatever happens.
            let mut row = std::mem::take(&mut sampler.edited);
            let before = Before { tokens, produced };
            let picked =
                edit(edits, &sampler.banned, mask, logits, before, &mut row).and_then(|edited| {
                    chosen.best = edited.best;
                    chosen.min_tokens_ignored = edited.min_tokens_ignored;
                    self.pick(sampler, &row, tokens, mask, &mut chosen)
                });
            sampler.edited = row;
            picked?;
        }
        let logprob = self.tell(sampler, logits, tokens.len() as u32, &chosen);
        self.accept(&tokens[self.prompt..], chosen.token);
        Ok(Choice {
            token: chosen.token,
            logprob,
            top: &sampler.top,
            min_tokens_ignored: chosen.min_tokens_ignored,
        })
    }

    /// Steps 7 to 12, and what is given instead.
    fn pick(
        &self,
        sampler: &mut Sampler,
        row: &[f32],
        tokens: &[u32],
        mask: Option<&[u32]>,
        chosen: &mut Chosen,
    ) -> Result<(), RowFault> {
        let forced = self.forced.as_deref();
        let given = forced.and_then(|forced| forced.next(tokens.len() - self.prompt));
        let is_greedy = self.sampling.is_greedy();
        let is_processed = self.report.as_deref().is_some_and(Report::is_processed);
        if is_processed || (given.is_none() && !is_greedy) {
            chosen.field = sampler.narrow(row, chosen.best, &self.sampling);
        }
        chosen.token = match given {
            // A constraint is never broken, not even by a token that is given.
            Some(id) if mask.is_some_and(|mask| !is_set(mask, id)) => return Err(RowFault::Empty),
            Some(id) => id,
            None if is_greedy => chosen.best,
            None => sampler.draw(chosen.field, chosen.best, self.noise(tokens.len() as u32)),
        };
        Ok(())
    }

    fn noise(&self, position: u32) -> Noise {
        let choice = self.sampling.choice_base;
        Noise::new(self.seed, position, choice, Purpose::Target)
    }

    /// Gathers what is wanted about the choice; answers the token's own value.
    fn tell(
        &mut self,
        sampler: &mut Sampler,
        logits: &[f32],
        position: u32,
        chosen: &Chosen,
    ) -> Option<f32> {
        sampler.top.clear();
        let report = self.report.as_deref_mut()?;
        report.fold(position, logits, chosen.token, &mut sampler.bytes);
        let (mut order, mut top) = (
            std::mem::take(&mut sampler.order),
            std::mem::take(&mut sampler.top),
        );
        let row = if report.is_processed() {
            sampler.processed(chosen.field, chosen.best)
        } else {
            logits
        };
        let logprob = report.note(row, chosen.token, &mut order, &mut top);
        sampler.order = order;
        sampler.top = top;
        logprob
    }

    /// Takes a token that comes behind `output`.
    fn accept(&mut self, output: &[u32], token: u32) {
        if let Some(edits) = &mut self.edits {
            edits.accept(token);
        }
        if let Some(forced) = &mut self.forced {
            forced.accept(token);
        }
        if let Some(repeats) = &mut self.repeats {
            self.is_looping = repeats.accept(output, token);
        }
    }

    /// Whether the repeat guard has seen enough.
    pub fn is_looping(&self) -> bool {
        self.is_looping
    }

    /// The seed of its random numbers.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Whether prompt log-probabilities need the logits of any of these rows.
    pub(crate) fn wants_prompt_rows(&self, from: u32, count: u32) -> bool {
        self.report
            .as_deref()
            .is_some_and(|report| report.wants_rows(from, count))
    }

    /// Takes the row of a position of the prompt, if prompt log-probabilities want it. Each is taken once, however
    /// often it is computed.
    pub(crate) fn note_prompt_row(
        &mut self,
        sampler: &mut Sampler,
        logits: &[f32],
        position: u32,
        tokens: &[u32],
    ) -> Result<(), RowFault> {
        let Some(report) = self.report.as_deref_mut() else {
            return Ok(());
        };
        if report.wants_row(position) {
            check(logits)?;
            report.note_prompt(logits, tokens[position as usize + 1], &mut sampler.order);
        }
        Ok(())
    }

    /// What the end of the request tells.
    pub(crate) fn told(&self) -> Option<Reported> {
        self.report.as_deref().map(Report::told)
    }
}

/// A choice in the making.
struct Chosen {
    /// The largest of the edited row.
    best: u32,
    token: u32,
    field: Field,
    min_tokens_ignored: bool,
}
