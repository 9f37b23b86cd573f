//! Tokens that are given and not chosen: golden tokens (teacher forcing), and the end of a reasoning that has used
//! up its budget.
//!
//! What is forced depends on the output so far only, so it survives preemption with the tokens.

#![forbid(unsafe_code)]

use super::pattern::Pattern;
use crate::engine::request::Think;

/// See the module.
#[derive(Clone, Debug, Default)]
pub(super) struct Forced {
    /// By place in the output; holes are chosen as usual.
    golden: Vec<Option<u32>>,
    reasoning: Option<Reasoning>,
}

/// A reasoning with a budget, until it has ended.
#[derive(Clone, Debug)]
struct Reasoning {
    budget: usize,
    end: Pattern<u32>,
    /// Ids of the end that the output ends with.
    seen: usize,
}

impl Forced {
    pub(super) fn new(golden: &[Option<u32>], think: Option<&Think>) -> Self {
        Self {
            golden: golden.to_vec(),
            reasoning: think.map(|think| Reasoning {
                budget: think.budget as usize,
                end: Pattern::new(think.end.clone()),
                seen: 0,
            }),
        }
    }

    /// The token that comes at this place of the output, if it is not chosen.
    pub(super) fn next(&self, produced: usize) -> Option<u32> {
        if let Some(Some(golden)) = self.golden.get(produced) {
            return Some(*golden);
        }
        let reasoning = self.reasoning.as_ref()?;
        (produced >= reasoning.budget).then(|| reasoning.end.items()[reasoning.seen])
    }

    /// Takes a token of the output.
    pub(super) fn accept(&mut self, token: u32) {
        if let Some(reasoning) = &mut self.reasoning {
            reasoning.seen = reasoning.end.advance(reasoning.seen, token);
            if reasoning.seen == reasoning.end.items().len() {
                self.reasoning = None;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn think(budget: u32, end: &[u32]) -> Forced {
        let end = end.to_vec();
        Forced::new(&[], Some(&Think { budget, end }))
    }

    #[test]
    fn the_end_of_a_long_reasoning_is_forced_id_by_id_and_once() {
        let mut forced = think(2, &[7, 8]);
        for (produced, (next, token)) in [(None, 1), (None, 7), (Some(8), 8), (None, 7), (None, 7)]
            .into_iter()
            .enumerate()
        {
            assert_eq!(forced.next(produced), next, "{produced}");
            forced.accept(token);
        }
    }

    #[test]
    fn an_end_within_the_budget_is_the_models() {
        let mut forced = think(3, &[7, 8]);
        forced.accept(7);
        forced.accept(8);
        assert_eq!(forced.next(9), None);
        assert_eq!(think(0, &[7]).next(0), Some(7));
    }

    #[test]
    fn golden_tokens_go_first_and_have_holes() {
        let golden = [Some(4), None, Some(5)];
        let forced = Forced::new(
            &golden,
            Some(&Think {
                budget: 1,
                end: vec![9],
            }),
        );
        let next: Vec<_> = (0..4).map(|at| forced.next(at)).collect();
        assert_eq!(next, [Some(4), Some(9), Some(5), Some(9)]);
    }
}
