//! Selection of compressed rows: index scores, two-level candidates, top-k with the lower index first.

use super::matrix::Matrix;
use super::state::State;
use super::{AttentionSpec, Batch, GroupId, Host, IndexerWeights, Kernels, Level, Rows, Shared};
use crate::engine::backend::batch::Span;

/// Ids a row, ascending; rows one after another.
#[derive(Clone, Debug, Default)]
pub struct Lists {
    ids: Vec<u32>,
    ends: Vec<usize>,
}

impl Lists {
    fn clear(&mut self) {
        self.ids.clear();
        self.ends.clear();
    }

    fn push(&mut self, ids: impl Iterator<Item = u32>) {
        self.ids.extend(ids);
        self.ends.push(self.ids.len());
    }

    /// Ids of row `row`.
    pub fn row(&self, row: usize) -> &[u32] {
        let start = if row == 0 { 0 } else { self.ends[row - 1] };
        &self.ids[start..self.ends[row]]
    }

    /// All rows.
    pub fn rows(&self) -> impl Iterator<Item = &[u32]> {
        (0..self.ends.len()).map(|row| self.row(row))
    }
}

/// Selected compressed rows.
pub type Selection = Lists;
/// Candidate blocks.
pub type Candidates = Lists;

/// Keys scored by one item of work at most: what a thread takes at a time for a long context.
const SEGMENT: usize = 2048;

/// The `k` best scores above −inf, as ascending ids; the lower id wins ties.
pub(super) fn best(
    scores: impl Iterator<Item = (u32, f32)>,
    k: usize,
    order: &mut Vec<u64>,
) -> impl Iterator<Item = u32> + '_ {
    order.clear();
    order.extend(
        scores
            .filter(|(_, s)| *s > f32::NEG_INFINITY)
            .map(|(id, s)| {
                // Ascending u64 = descending score, then ascending id.
                let bits = if s == 0.0 { 0 } else { s.to_bits() };
                let ascending = if bits >> 31 == 0 {
                    bits | 0x8000_0000
                } else {
                    !bits
                };
                (u64::from(!ascending) << 32) | u64::from(id)
            }),
    );
    if order.len() > k {
        if k > 0 {
            order.select_nth_unstable(k - 1);
        }
        order.truncate(k);
    }
    order.iter_mut().for_each(|v| *v &= 0xffff_ffff);
    order.sort_unstable();
    order.iter().map(|v| *v as u32)
}

/// The `blocks` best blocks of `size` visible rows, by their best score; the newest is always among them.
pub(super) fn best_blocks(
    scores: &[f32],
    blocks: usize,
    size: usize,
    order: &mut Vec<u64>,
) -> impl Iterator<Item = u32> {
    let newest = scores.len().checked_sub(1).map(|last| last / size);
    let scored = scores.chunks(size).enumerate().map(move |(block, scores)| {
        let max = scores.iter().fold(f32::NEG_INFINITY, |m, s| m.max(*s));
        let is_newest = Some(block) == newest;
        (block as u32, if is_newest { f32::INFINITY } else { max })
    });
    best(scored, blocks, order)
}

impl<K: Kernels> Host<K> {
    #[expect(
        clippy::too_many_arguments,
        reason = "the operation's inputs, outputs and state"
    )]
    pub(super) fn select_rows(
        &mut self,
        w: &IndexerWeights<Matrix>,
        spec: &AttentionSpec,
        level: Level,
        ratio: usize,
        x: &Rows,
        qr: &Rows,
        batch: &Batch,
        state: &State,
        group: GroupId,
        candidates: &mut Candidates,
        selection: &mut Selection,
    ) {
        let (heads, width) = (spec.index_heads, spec.index_dim);
        let half = spec.rope_dim / 2;
        let mut queries = std::mem::take(&mut self.scratch.a);
        let mut weights = std::mem::take(&mut self.scratch.b);
        let mut scores = std::mem::take(&mut self.scratch.c);
        self.linear(&qr.data, &mut [(&w.wq_b, &mut queries)]);
        self.each_row(&mut queries, heads * width, 16 * heads * width, |row, q| {
            let (cos, sin) = self.compressed.row(row, half);
            for head in q.chunks_mut(width) {
                self.rotate(head, cos, sin);
                self.quantise_row(head, spec.index_format, spec.rope_dim);
            }
        });
        self.linear_f32(&w.weights, &x.data, &mut weights);
        self.store(&mut weights);
        if spec.index_scaled {
            let scale = (width as f32).powf(-0.5) * (heads as f32).powf(-0.5);
            weights.iter_mut().for_each(|v| *v *= scale);
        }

        // Scores of all visible rows, row after row.
        let visible: Vec<usize> = batch.positions.iter().map(|p| (p + 1) / ratio).collect();
        let mut starts = Vec::with_capacity(batch.len());
        let mut total = 0;
        let mut work = Vec::new();
        let per_block = state.rows_per_block(group);
        for span in &batch.spans {
            for row in span.rows.clone() {
                starts.push(total);
                let segment = SEGMENT.next_multiple_of(per_block);
                work.extend(
                    (0..visible[row])
                        .step_by(segment)
                        .map(|from| (span, row, from, segment)),
                );
                total += visible[row];
            }
        }
        scores.resize(total, 0.0);
        let shared = Shared::new(&mut scores);
        self.kernels.parallel(
            work.len(),
            heads * width * SEGMENT.min(total + 1),
            &|item| {
                let (span, row, from, segment): (&Span, usize, usize, usize) = work[item];
                let to = visible[row].min(from + segment);
                for start in (from..to).step_by(per_block) {
                    let len = per_block.min(to - start);
                    // SAFETY: each item has its own range of its row's scores.
                    let out = unsafe { shared.part(starts[row] + start, len) };
                    let (values, at) = state.grown(group, &span.blocks, start);
                    let keys = values.keys(at..at + len * width);
                    let q = &queries[row * heads * width..(row + 1) * heads * width];
                    self.kernels.index_scores(
                        q,
                        &weights[row * heads..(row + 1) * heads],
                        keys,
                        width,
                        out,
                    );
                    if !spec.index_scaled {
                        self.store(out);
                    }
                }
            },
        );

        if matches!(level, Level::Publish { .. }) {
            candidates.clear();
        }
        selection.clear();
        let mut order = Vec::new();
        for (row, start) in starts.into_iter().enumerate() {
            let scores = &scores[start..start + visible[row]];
            if let Level::Publish { blocks, size } = level {
                candidates.push(best_blocks(scores, blocks, size, &mut order));
            }
            if let Level::Candidates { size } = level {
                let eligible = candidates.row(row).iter().flat_map(|block| {
                    let first = *block as usize * size;
                    (first..(first + size).min(scores.len())).map(|id| (id as u32, scores[id]))
                });
                selection.push(best(eligible, spec.index_topk, &mut order));
            } else {
                let all = scores.iter().enumerate().map(|(id, s)| (id as u32, *s));
                selection.push(best(all, spec.index_topk, &mut order));
            }
        }
        self.scratch.a = queries;
        self.scratch.b = weights;
        self.scratch.c = scores;
    }
}

#[cfg(test)]
mod tests {
    use super::best;

    fn picked(scores: &[f32], k: usize) -> Vec<u32> {
        best(
            scores.iter().enumerate().map(|(i, s)| (i as u32, *s)),
            k,
            &mut Vec::new(),
        )
        .collect()
    }

    #[test]
    fn the_lower_index_wins_ties_and_minus_infinity_is_never_kept() {
        assert_eq!(picked(&[1.0, 2.0, 1.0, 2.0, 1.0], 3), [0, 1, 3]);
        assert_eq!(picked(&[0.0, -0.0, 0.0], 2), [0, 1]);
        assert_eq!(picked(&[f32::NEG_INFINITY, -1.0], 2), [1]);
        assert_eq!(picked(&[-3.0, -1.0, -2.0], 1), [1]);
        assert!(picked(&[1.0], 0).is_empty());
    }
}
