//! Sparse attention over window rows and compressed rows.

use super::kernels::Attend;
use super::matrix::Matrix;
use super::state::State;
use super::{
    AttentionSpec, AttentionWeights, Batch, Compressed, GATHER, Host, Kernels, Projected, RingId,
    Rows, Selection, Shared,
};

/// Heads of one item of work when a step has fewer rows than threads: what a kernel takes at a time.
const HEADS: usize = 16;

impl<K: Kernels> Host<K> {
    #[expect(
        clippy::too_many_arguments,
        reason = "the operation's inputs, outputs and state"
    )]
    pub(super) fn sparse_attention(
        &mut self,
        w: &AttentionWeights<Matrix>,
        spec: &AttentionSpec,
        projected: &Projected<Rows>,
        ring: RingId,
        compressed: Compressed<'_, Selection>,
        ratio: usize,
        batch: &Batch,
        state: &mut State,
        o: &mut Rows,
    ) {
        let (heads, width) = (spec.heads, spec.head_dim);
        let half = spec.rope_dim / 2;
        let count = batch.len();
        o.shape(count, heads * width);
        let angles = if matches!(compressed, Compressed::None) {
            &self.plain
        } else {
            &self.compressed
        };
        let span_of: Vec<usize> = batch
            .spans
            .iter()
            .enumerate()
            .flat_map(|(i, s)| s.rows.clone().map(move |_| i))
            .collect();
        // Few rows: split each one's heads over threads. The result of a head does not depend on it.
        let parts = if count < self.kernels.threads() {
            heads.div_ceil(HEADS)
        } else {
            1
        };
        let heads_each = heads.div_ceil(parts);
        let out = Shared::new(&mut o.data);
        let scale = (width as f32).powf(-0.5);
        let cost = heads_each * width * (spec.window + spec.index_topk);
        self.kernels.parallel(count * parts, cost, &|item| {
            let (row, first) = (item / parts, item % parts * heads_each);
            if first >= heads {
                return;
            }
            let heads_here = heads_each.min(heads - first);
            let span = &batch.spans[span_of[row]];
            let position = batch.positions[row];
            GATHER.with_borrow_mut(|gathered| {
                // Window rows, oldest first: from the ring, then from this step.
                let (window, _) = state.window(ring, span.slot, 0);
                let keys = gathered.get_or_insert_with(|| window.like());
                if std::mem::discriminant(keys) != std::mem::discriminant(window) {
                    *keys = window.like();
                }
                keys.clear();
                for p in (position + 1).saturating_sub(spec.window)..span.position {
                    let (values, at) = state.window(ring, span.slot, p);
                    keys.extend(values, at..at + width);
                }
                let first_here = (position + 1)
                    .saturating_sub(spec.window)
                    .max(span.position);
                let here = span.rows.start + first_here - span.position;
                keys.extend_f32(&projected.kv.data[here * width..(row + 1) * width]);
                match compressed {
                    Compressed::None => {}
                    Compressed::All(group) => {
                        for index in 0..(position + 1) / ratio {
                            let (values, at) = state.grown(group, &span.blocks, index);
                            keys.extend(values, at..at + width);
                        }
                    }
                    Compressed::Selected(group, selection) => {
                        for index in selection.row(row) {
                            let (values, at) = state.grown(group, &span.blocks, *index as usize);
                            keys.extend(values, at..at + width);
                        }
                    }
                }
                // SAFETY: each item has its own heads of its own row.
                let out = unsafe { out.part((row * heads + first) * width, heads_here * width) };
                let q = &projected.q.row(row)[first * width..(first + heads_here) * width];
                self.kernels.attend(&mut Attend {
                    q,
                    keys: keys.all(),
                    width,
                    sink: &w.sink[first..first + heads_here],
                    scale,
                    exact: self.numerics.bf16,
                    out,
                });
                // Back by the angles that the keys were rotated by.
                let (cos, back) = angles.back(row, half);
                self.store(out);
                for head in out.chunks_mut(width) {
                    self.rotate(head, cos, back);
                }
            });
        });
        for span in &batch.spans {
            let rows = &projected.kv.data[span.rows.start * width..span.rows.end * width];
            state.commit_window(ring, span, rows);
        }
    }
}
