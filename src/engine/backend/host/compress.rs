//! Compressed rows: pooling of raw rows into latents, and appending them (or index keys) to their pool.

use super::matrix::Matrix;
use super::state::State;
use super::{
    Batch, CompressorWeights, GroupId, Host, IndexKeyWeights, Kernels, Linear, Pooling, RowFormat,
    Rows, angles,
};
use crate::engine::backend::batch::{Group, Span};

impl<K: Kernels> Host<K> {
    #[expect(
        clippy::too_many_arguments,
        reason = "the operation's inputs, outputs and state"
    )]
    pub(super) fn pool(
        &mut self,
        w: &CompressorWeights<Matrix>,
        pooling: &Pooling,
        eps: f32,
        x: &Rows,
        batch: &Batch,
        state: &mut State,
        latents: &mut Rows,
    ) {
        let width = pooling.width;
        let (Some(wgate), Some(ring)) = (&w.wgate, pooling.ring) else {
            latents.width = width;
            self.linear_f32(&w.wkv, &x.data, &mut latents.data);
            self.each_row(&mut latents.data, width, 4 * width, |_, row| {
                self.store(row);
                self.norm_row(row, &w.norm, eps);
            });
            return;
        };
        let raw = w.wkv.rows;
        let mut values = std::mem::take(&mut self.scratch.a);
        let mut gates = std::mem::take(&mut self.scratch.b);
        values.resize(x.count() * raw, 0.0);
        gates.resize(x.count() * raw, 0.0);
        self.kernels.linear(&mut [
            Linear {
                w: &w.wkv,
                first_row: 0,
                x: &x.data,
                y: &mut values,
                exact: self.numerics.bf16,
            },
            Linear {
                w: wgate,
                first_row: 0,
                x: &x.data,
                y: &mut gates,
                exact: self.numerics.bf16,
            },
        ]);
        // Values and gates of the row at `position` of a span: from this step, or from the ring.
        let row_of = |span: &Span, position: usize| -> (&[f32], &[f32]) {
            if position < span.position {
                state.raw(ring, span.slot, position).split_at(raw)
            } else {
                let at = (span.rows.start + position - span.position) * raw;
                (&values[at..at + raw], &gates[at..at + raw])
            }
        };
        let groups: Vec<Group> = batch.groups(pooling.ratio).collect();
        latents.shape(groups.len(), width);
        self.each_row(
            &mut latents.data,
            width,
            24 * width * pooling.ratio,
            |i, out| {
                let Group { span, index } = groups[i];
                let span = &batch.spans[span];
                let first = index * pooling.ratio;
                // (token position, channel offset, slot of the bias) of every candidate, in token order.
                let own = if pooling.overlap { width } else { 0 };
                let before = if pooling.overlap && index > 0 {
                    pooling.ratio
                } else {
                    0
                };
                let candidates = (first - before..first + pooling.ratio).map(|position| {
                    let offset = if position < first { 0 } else { own };
                    (position, offset, position % pooling.ratio)
                });
                // A softmax a channel: maximum, then weighted sums, always in token order.
                let gate_of = |(position, offset, slot): (usize, usize, usize),
                               gate: &mut [f32]| {
                    gate.copy_from_slice(&row_of(span, position).1[offset..offset + width]);
                    if !w.bias.is_empty() {
                        self.kernels.add(
                            gate,
                            &w.bias[slot * raw + offset..slot * raw + offset + width],
                            false,
                        );
                    }
                };
                let mut gate = vec![0.0f32; width];
                let mut max = vec![f32::NEG_INFINITY; width];
                for candidate in candidates.clone() {
                    gate_of(candidate, &mut gate);
                    max.iter_mut().zip(&gate).for_each(|(m, g)| *m = m.max(*g));
                }
                let mut total = vec![0.0f32; width];
                out.fill(0.0);
                for candidate in candidates {
                    gate_of(candidate, &mut gate);
                    let value = &row_of(span, candidate.0).0[candidate.1..candidate.1 + width];
                    self.kernels
                        .softmax_step(out, &mut total, &max, &gate, value);
                }
                out.iter_mut().zip(&total).for_each(|(o, t)| *o /= t);
                self.store(out);
                self.norm_row(out, &w.norm, eps);
            },
        );
        for span in &batch.spans {
            state.commit_raw(ring, span, |i| {
                let at = (span.rows.start + i) * raw;
                (&values[at..at + raw], &gates[at..at + raw])
            });
        }
        self.scratch.a = values;
        self.scratch.b = gates;
    }

    pub(super) fn append_rows(
        &mut self,
        rows: &Rows,
        ratio: usize,
        format: RowFormat,
        batch: &Batch,
        state: &mut State,
        group: GroupId,
    ) {
        let half = self.frequencies.compressed.len();
        let (mut cos, mut sin) = (vec![0.0; half], vec![0.0; half]);
        let mut row = vec![0.0; rows.width];
        for (i, Group { span, index }) in batch.groups(ratio).enumerate() {
            row.copy_from_slice(rows.row(i));
            angles(
                index * ratio,
                &self.frequencies.compressed,
                &mut cos,
                &mut sin,
            );
            self.rotate(&mut row, &cos, &sin);
            self.quantise_row(&mut row, format, 2 * half);
            state.append(group, &batch.spans[span].blocks, index, &row);
        }
    }

    pub(super) fn derive_keys(
        &self,
        w: &IndexKeyWeights<Matrix>,
        eps: f32,
        latents: &Rows,
        keys: &mut Rows,
    ) {
        keys.width = w.wk.rows;
        self.linear_f32(&w.wk, &latents.data, &mut keys.data);
        self.each_row(&mut keys.data, w.wk.rows, 4 * w.wk.rows, |_, row| {
            self.store(row);
            self.norm_row(row, &w.norm, eps);
        });
    }
}
