//! The rows of one step: what every operation may know about them.

use std::ops::Range;

use crate::engine::kv::{BlockId, SlotId};

/// Consecutive rows of one sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    /// Where they are in the batch.
    pub rows: Range<usize>,
    /// Position of the first one.
    pub position: usize,
    /// The sequence's bounded state.
    pub slot: SlotId,
    /// The sequence's blocks: entry `i` holds positions `i * block_tokens ..`.
    pub blocks: Vec<BlockId>,
}

/// All rows of a step, sequence after sequence.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    /// Token ids.
    pub tokens: Vec<u32>,
    /// Positions in their sequences.
    pub positions: Vec<usize>,
    /// Whether a row is an image position.
    pub image: Vec<bool>,
    /// Sequences, in row order.
    pub spans: Vec<Span>,
}

/// A compressed row that becomes complete in this step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group {
    /// Index into [`Batch::spans`].
    pub span: usize,
    /// Which group of the sequence: tokens `index * ratio ..`.
    pub index: usize,
}

impl Batch {
    /// Rows.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// Groups of `ratio` tokens whose last token is in this step, in row order.
    pub fn groups(&self, ratio: usize) -> impl Iterator<Item = Group> + '_ {
        self.spans.iter().enumerate().flat_map(move |(span, s)| {
            let end = s.position + s.rows.len();
            (s.position / ratio..end / ratio).map(move |index| Group { span, index })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_completes_in_the_step_of_its_last_token() {
        let span = |rows, position| Span {
            rows,
            position,
            slot: SlotId(1),
            blocks: Vec::new(),
        };
        let batch = Batch {
            spans: vec![span(0..3, 2), span(3..4, 7), span(4..5, 4)],
            ..Batch::default()
        };
        let groups: Vec<_> = batch.groups(4).map(|g| (g.span, g.index)).collect();
        assert_eq!(groups, [(0, 0), (1, 1)]);
        assert_eq!(batch.groups(1).count(), 5);
    }
}
