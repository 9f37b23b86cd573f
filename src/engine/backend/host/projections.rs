//! Attention inputs and outputs: low-rank queries, window rows, the grouped output projection.

use super::matrix::Matrix;
use super::{AttentionSpec, AttentionWeights, Host, Kernels, Linear, Projected, Rows};

impl<K: Kernels> Host<K> {
    pub(super) fn projections(
        &mut self,
        w: &AttentionWeights<Matrix>,
        spec: &AttentionSpec,
        compressed: bool,
        eps: f32,
        x: &Rows,
        out: &mut Projected<Rows>,
    ) {
        let count = x.count();
        let half = spec.rope_dim / 2;
        out.qr.width = w.wq_a.rows;
        out.q.width = w.wq_b.rows;
        out.kv.width = w.wkv.rows;
        self.linear(
            &x.data,
            &mut [(&w.wq_a, &mut out.qr.data), (&w.wkv, &mut out.kv.data)],
        );
        let width = out.qr.width;
        self.each_row(&mut out.qr.data, width, 4 * width, |_, row| {
            self.norm_row(row, &w.q_norm, eps)
        });
        self.linear(&out.qr.data, &mut [(&w.wq_b, &mut out.q.data)]);
        debug_assert_eq!(out.q.count(), count);

        let angles = if compressed {
            &self.compressed
        } else {
            &self.plain
        };
        let width = out.q.width;
        self.each_row(&mut out.q.data, width, 4 * width, |row, q| {
            let (cos, sin) = angles.row(row, half);
            for head in q.chunks_mut(spec.head_dim) {
                if spec.query_norm {
                    let scale = self.inverse_rms(head, eps);
                    head.iter_mut().for_each(|v| *v *= scale);
                    self.store(head);
                }
                self.rotate(head, cos, sin);
            }
        });
        let width = out.kv.width;
        self.each_row(&mut out.kv.data, width, 12 * width, |row, kv| {
            let (cos, sin) = angles.row(row, half);
            self.norm_row(kv, &w.kv_norm, eps);
            self.rotate(kv, cos, sin);
            self.quantise_row(kv, spec.row_format, spec.rope_dim);
        });
    }

    pub(super) fn output_projection(
        &mut self,
        w: &AttentionWeights<Matrix>,
        spec: &AttentionSpec,
        o: &Rows,
        y: &mut Rows,
    ) {
        let count = o.count();
        let (groups, width) = (spec.groups, o.width / spec.groups);
        let rank = w.wo_a.rows / groups;
        // Group by group, so that each group's rows are contiguous: [groups, S, H·E/groups].
        let mut grouped = std::mem::take(&mut self.scratch.a);
        let mut parts = std::mem::take(&mut self.scratch.b);
        let mut joined = std::mem::take(&mut self.scratch.c);
        grouped.resize(o.data.len(), 0.0);
        self.each_row(&mut grouped, width, width, |i, to| {
            let (group, row) = (i / count.max(1), i % count.max(1));
            to.copy_from_slice(&o.row(row)[group * width..(group + 1) * width]);
        });
        let quantised = spec.quantised_output && self.numerics.activations;
        if quantised {
            self.quantise(&mut grouped, width);
        }
        parts.resize(groups * count * rank, 0.0);
        let exact = self.numerics.bf16 || quantised;
        let mut jobs: Vec<Linear<'_>> = parts
            .chunks_mut((count * rank).max(1))
            .zip(grouped.chunks((count * width).max(1)))
            .enumerate()
            .map(|(group, (y, x))| Linear {
                w: &w.wo_a,
                first_row: group * rank,
                x,
                y,
                exact,
            })
            .collect();
        self.kernels.linear(&mut jobs);
        drop(jobs);
        joined.resize(count * groups * rank, 0.0);
        self.each_row(&mut joined, groups * rank, groups * rank, |row, to| {
            for (group, to) in to.chunks_mut(rank).enumerate() {
                let at = (group * count + row) * rank;
                to.copy_from_slice(&parts[at..at + rank]);
            }
            // The published V4.1 runtime goes from the f32 sums straight to FP8.
            if !spec.quantised_output {
                self.store(to);
            }
        });
        y.width = w.wo_b.rows;
        self.linear(&joined, &mut [(&w.wo_b, &mut y.data)]);
        self.scratch.a = grouped;
        self.scratch.b = parts;
        self.scratch.c = joined;
    }
}
