//! The constraint of one sequence: free text first where the request says so, then the grammar, then the end.
//!
//! In: the accepted tokens, one by one. Out: before each choice the ids that may come, and after each whether the
//! text is complete. Everything but the grammar and where it begins can be dropped and is made again from the
//! tokens. One mask is kept and reused; nothing else is allocated from step to step.

#![forbid(unsafe_code)]

use std::sync::Arc;

use super::guided::words;
use super::{Fault, Grammar, Guided, Matcher, Start};

/// What a constrained sequence is made with.
#[derive(Debug)]
pub(crate) struct Ruled {
    pub(crate) grammar: Arc<Grammar>,
    pub(crate) start: Start,
    /// Control tokens that free text may not have.
    pub(crate) reserved: Vec<u32>,
}

/// See the module.
pub(crate) struct Guide {
    grammar: Arc<Grammar>,
    trigger: Trigger,
    /// Ids that end the output: allowed exactly where the text may end.
    stops: Vec<u32>,
    /// Ids that free text may not have.
    banned: Vec<u32>,
    phase: Phase,
    /// Made when it is needed.
    matcher: Option<Guided>,
    mask: Vec<u32>,
    /// Whether the mask is that of the next token.
    is_fresh: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Anything goes; this many ids of the trigger have been seen in a row.
    Free { seen: usize },
    /// The rest of the trigger follows, from this id on.
    Forced { next: usize },
    /// The grammar holds, from this output token on.
    Held { from: usize },
}

/// What a token did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// More may come.
    Open,
    /// The text is complete and nothing may follow.
    Over,
}

impl Guide {
    /// `stops` end the output; `vocab` ids have logits.
    pub(crate) fn new(ruled: Ruled, stops: &[u32], vocab: u32) -> Self {
        let Ruled {
            grammar,
            start,
            reserved,
        } = ruled;
        let mut banned = reserved;
        banned.extend_from_slice(stops);
        let (trigger, phase) = match start {
            Start::AtOnce => (Trigger::default(), Phase::Held { from: 0 }),
            Start::After { trigger, bound } => {
                banned.retain(|id| !trigger.contains(id) && bound != Some(*id));
                (Trigger::new(trigger, bound), Phase::Free { seen: 0 })
            }
        };
        Self {
            grammar,
            trigger,
            stops: stops.to_vec(),
            banned,
            phase,
            matcher: None,
            mask: vec![0; words(vocab)],
            is_fresh: false,
        }
    }

    /// Drops what can be made again.
    pub(crate) fn forget(&mut self) {
        self.matcher = None;
        self.is_fresh = false;
    }

    /// Makes the mask of the next token. `output` are the tokens so far. Depends on nothing that a step computes,
    /// so it may run beside the forward pass.
    pub(crate) fn prepare(&mut self, output: &[u32]) -> Result<(), Fault> {
        if self.is_fresh {
            return Ok(());
        }
        match self.phase {
            Phase::Free { .. } => {
                self.mask.fill(u32::MAX);
                for id in &self.banned {
                    set(&mut self.mask, *id, false);
                }
            }
            Phase::Forced { next } => {
                self.mask.fill(0);
                set(&mut self.mask, self.trigger.ids[next], true);
            }
            Phase::Held { from } => {
                let matcher = match &mut self.matcher {
                    Some(matcher) => matcher,
                    None => {
                        let mut fresh = self.grammar.matcher();
                        for token in &output[from..] {
                            fresh.accept(*token)?;
                        }
                        self.matcher.insert(fresh)
                    }
                };
                matcher.mask(&mut self.mask)?;
                let may_end = matcher.is_complete();
                for id in &self.stops {
                    set(&mut self.mask, *id, may_end);
                }
            }
        }
        self.is_fresh = true;
        Ok(())
    }

    /// The ids that may come, after [`Self::prepare`].
    pub(crate) fn mask(&self) -> &[u32] {
        &self.mask
    }

    /// Takes the last token of `output`.
    pub(crate) fn accept(&mut self, output: &[u32]) -> Result<Step, Fault> {
        let Some((&token, before)) = output.split_last() else {
            return Ok(Step::Open);
        };
        self.is_fresh = false;
        match self.phase {
            Phase::Free { seen } => {
                let seen = self.trigger.advance(seen, token);
                self.phase = if seen == self.trigger.ids.len() {
                    Phase::Held { from: output.len() }
                } else if self.trigger.bound == Some(token) {
                    Phase::Forced { next: seen }
                } else {
                    Phase::Free { seen }
                };
                Ok(Step::Open)
            }
            Phase::Forced { next } => {
                self.phase = if next + 1 == self.trigger.ids.len() {
                    Phase::Held { from: output.len() }
                } else {
                    Phase::Forced { next: next + 1 }
                };
                Ok(Step::Open)
            }
            Phase::Held { .. } if self.stops.contains(&token) => Ok(Step::Over),
            Phase::Held { .. } => {
                if self.matcher.is_none() {
                    // Its place in the text comes from the tokens before.
                    self.prepare(before)?;
                    self.is_fresh = false;
                }
                let Some(matcher) = &mut self.matcher else {
                    return Err(Fault::Broken);
                };
                matcher.accept(token)?;
                if !matcher.is_complete() {
                    return Ok(Step::Open);
                }
                if !matcher.can_continue() {
                    return Ok(Step::Over);
                }
                // Only the mask tells for certain; the next choice needs it anyway.
                self.prepare(output)?;
                let goes_on = self.mask.iter().enumerate().any(|(at, word)| {
                    let stops = self.stops.iter().filter(|id| **id / 32 == at as u32);
                    *word & !stops.fold(0, |all, id| all | 1 << (id % 32)) != 0
                });
                Ok(if goes_on { Step::Open } else { Step::Over })
            }
        }
    }
}

impl std::fmt::Debug for Guide {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Guide")
            .field("phase", &self.phase)
            .finish_non_exhaustive()
    }
}

fn set(mask: &mut [u32], id: u32, value: bool) {
    if let Some(word) = mask.get_mut(id as usize / 32) {
        let bit = 1 << (id % 32);
        *word = if value { *word | bit } else { *word & !bit };
    }
}

/// Finds a run of ids, overlaps included (Knuth, Morris and Pratt).
#[derive(Debug, Default)]
struct Trigger {
    ids: Vec<u32>,
    /// For each length of a matched beginning, the next shorter one that is also its end.
    shorter: Vec<usize>,
    bound: Option<u32>,
}

impl Trigger {
    fn new(ids: Vec<u32>, bound: Option<u32>) -> Self {
        let mut trigger = Self {
            shorter: vec![0; ids.len() + 1],
            ids,
            bound,
        };
        for at in 1..trigger.ids.len() {
            let id = trigger.ids[at];
            trigger.shorter[at + 1] = trigger.advance(trigger.shorter[at], id);
        }
        trigger
    }

    /// Ids matched once `token` follows `seen` of them.
    fn advance(&self, mut seen: usize, token: u32) -> usize {
        loop {
            if self.ids.get(seen) == Some(&token) {
                return seen + 1;
            }
            if seen == 0 {
                return 0;
            }
            seen = self.shorter[seen];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Limits, Spec, cache, table::tests::table};
    use super::*;

    const STOP: u32 = 265;

    fn guide(pattern: &str, start: Start) -> Guide {
        let spec = Spec::Regex(pattern.to_owned());
        let grammar = cache::compile(&spec, &Arc::new(table()), &Limits::default()).unwrap();
        let ruled = Ruled {
            grammar,
            start,
            reserved: vec![7],
        };
        Guide::new(ruled, &[STOP], 266)
    }

    fn allowed(guide: &mut Guide, output: &[u32]) -> Vec<u32> {
        guide.prepare(output).unwrap();
        let mask = guide.mask().to_vec();
        (0..266)
            .filter(|id| mask[*id as usize / 32] >> (id % 32) & 1 == 1)
            .collect()
    }

    fn run(guide: &mut Guide, text: &str) -> (Vec<u32>, Vec<Step>) {
        let mut output = Vec::new();
        let steps = text
            .bytes()
            .map(|byte| {
                guide.prepare(&output).unwrap();
                output.push(byte.into());
                guide.accept(&output).unwrap()
            })
            .collect();
        (output, steps)
    }

    /// Catches: a stop allowed before the text is complete, or refused after.
    #[test]
    fn stops_are_allowed_exactly_where_the_text_may_end() {
        let mut guide = guide("ab?c*", Start::AtOnce);
        assert_eq!(allowed(&mut guide, &[]), [97, 261]);
        let (output, _) = run(&mut guide, "a");
        assert_eq!(allowed(&mut guide, &output), [98, 99, STOP]);
    }

    /// Catches: an end that comes one token late, or early where more may follow.
    #[test]
    fn a_text_that_cannot_go_on_is_over_at_once() {
        let mut guide = guide("a(bc)?", Start::AtOnce);
        let (_, steps) = run(&mut guide, "abc");
        assert_eq!(steps, [Step::Open, Step::Open, Step::Over]);
    }

    /// Catches: a trigger that is found by text, restarts from nothing, or lets the free text end.
    #[test]
    fn the_grammar_begins_behind_the_trigger() {
        let start = Start::After {
            trigger: vec![120, 120, 121],
            bound: None,
        };
        let mut guide = guide("a", start);
        let free = allowed(&mut guide, &[]);
        assert_eq!(free.len(), 264, "all but the stop and the reserved id");
        assert!(!free.contains(&STOP) && !free.contains(&7));
        // The second x may be the first or the second of the trigger.
        let (output, steps) = run(&mut guide, "axxxy");
        assert!(steps.iter().all(|step| *step == Step::Open));
        assert_eq!(allowed(&mut guide, &output), [97]);
    }

    /// Catches: free text that goes on behind the bound.
    #[test]
    fn behind_the_bound_the_rest_of_the_trigger_is_forced() {
        let start = Start::After {
            trigger: vec![60, 61, 62],
            bound: Some(60),
        };
        let mut guide = guide("a", start);
        let (mut output, _) = run(&mut guide, "zz<");
        for id in [61, 62, 97] {
            assert_eq!(allowed(&mut guide, &output), [id]);
            output.push(id);
            let step = guide.accept(&output).unwrap();
            assert_eq!(step, if id == 97 { Step::Over } else { Step::Open });
        }
    }

    /// Catches: a replay that starts at the wrong token or forgets one.
    #[test]
    fn forgetting_changes_nothing() {
        let start = Start::After {
            trigger: vec![62],
            bound: None,
        };
        let text = "ab>{1,22,3}";
        let (mut kept, mut dropped) = (
            guide(r"\{(\d+,)*\d+\}", start.clone()),
            guide(r"\{(\d+,)*\d+\}", start),
        );
        let mut output = Vec::new();
        for byte in text.bytes() {
            dropped.forget();
            assert_eq!(allowed(&mut kept, &output), allowed(&mut dropped, &output));
            output.push(u32::from(byte));
            dropped.forget();
            assert_eq!(kept.accept(&output), dropped.accept(&output));
        }
    }
}
