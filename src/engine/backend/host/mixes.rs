//! Residual streams: embedding, hyper-connection mixes, collapse, expand, and the n-gram memory.

use super::matrix::{Matrix, Table};
use super::{Batch, EngramWeights, Host, Kernels, MixSpec, MixWeights, Rows, Shared};

/// Results of a mix, row by row.
#[derive(Clone, Debug, Default)]
pub struct Mix {
    streams: usize,
    /// `[S, N]`.
    pre: Vec<f32>,
    /// `[S, N]`.
    post: Vec<f32>,
    /// `[S, N, N]`: old stream, new stream.
    comb: Vec<f32>,
}

impl Mix {
    #[cfg(test)]
    pub(super) fn parts(&self) -> (&[f32], &[f32], &[f32]) {
        (&self.pre, &self.post, &self.comb)
    }

    pub(super) fn take(&mut self, from: &Self, rows: &[usize]) {
        let n = from.streams;
        self.streams = n;
        self.pre.clear();
        self.post.clear();
        self.comb.clear();
        for &row in rows {
            self.pre
                .extend_from_slice(&from.pre[row * n..(row + 1) * n]);
            self.post
                .extend(from.post.get(row * n..(row + 1) * n).unwrap_or_default());
            self.comb.extend(
                from.comb
                    .get(row * n * n..(row + 1) * n * n)
                    .unwrap_or_default(),
            );
        }
    }
}

fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

/// Softmax over rows, then alternating normalisation of columns and rows (`model-v4.md` 5).
fn normalise(comb: &mut [f32], n: usize, spec: &MixSpec) {
    for row in comb.chunks_mut(n) {
        let max = row.iter().fold(f32::NEG_INFINITY, |m, v| m.max(*v));
        row.iter_mut().for_each(|v| *v = (*v - max).exp());
        let sum: f32 = row.iter().sum();
        row.iter_mut().for_each(|v| *v = *v / sum + spec.eps);
    }
    let columns = |comb: &mut [f32]| {
        for k in 0..n {
            let sum: f32 = (0..n).map(|j| comb[j * n + k]).sum::<f32>() + spec.eps;
            (0..n).for_each(|j| comb[j * n + k] /= sum);
        }
    };
    columns(comb);
    for _ in 1..spec.iterations {
        for row in comb.chunks_mut(n) {
            let sum: f32 = row.iter().sum::<f32>() + spec.eps;
            row.iter_mut().for_each(|v| *v /= sum);
        }
        columns(comb);
    }
}

impl<K: Kernels> Host<K> {
    pub(super) fn embed_rows(&self, table: &Matrix, batch: &Batch, streams: usize, h: &mut Rows) {
        let dim = table.cols;
        h.shape(batch.len(), streams * dim);
        for (row, token) in h.data.chunks_mut(streams * dim).zip(&batch.tokens) {
            let (first, rest) = row.split_at_mut(dim);
            table.row(*token as usize, 0..dim, first);
            rest.chunks_mut(dim)
                .for_each(|stream| stream.copy_from_slice(first));
        }
    }

    /// `m = (fn · flat) / RMS(flat)`, `[S, outputs]`, into scratch `a`.
    fn mix_products(&mut self, w: &MixWeights<Matrix>, spec: &MixSpec, h: &Rows) -> Vec<f32> {
        let mut m = std::mem::take(&mut self.scratch.a);
        m.resize(h.count() * w.function.rows, 0.0);
        // The mixers are f32, so products are never formed from bfloat16.
        self.kernels.linear(&mut [super::Linear {
            w: &w.function,
            first_row: 0,
            x: &h.data,
            y: &mut m,
            exact: false,
        }]);
        self.each_row(&mut m, w.function.rows, 2 * h.width, |row, m| {
            let scale = self.inverse_rms(h.row(row), spec.norm_eps);
            m.iter_mut().for_each(|v| *v *= scale);
        });
        m
    }

    pub(super) fn full_mix(
        &mut self,
        w: &MixWeights<Matrix>,
        spec: &MixSpec,
        h: &Rows,
        mix: &mut Mix,
    ) {
        let n = spec.streams;
        let m = self.mix_products(w, spec, h);
        let rows = h.count();
        mix.streams = n;
        mix.pre.resize(rows * n, 0.0);
        mix.post.resize(rows * n, 0.0);
        mix.comb.resize(rows * n * n, 0.0);
        for (row, m) in m.chunks(w.function.rows).enumerate() {
            for i in 0..n {
                mix.pre[row * n + i] = sigmoid(m[i] * w.scale[0] + w.base[i]) + spec.eps;
                mix.post[row * n + i] = 2.0 * sigmoid(m[n + i] * w.scale[1] + w.base[n + i]);
            }
            let comb = &mut mix.comb[row * n * n..(row + 1) * n * n];
            for (i, c) in comb.iter_mut().enumerate() {
                *c = m[2 * n + i] * w.scale[2] + w.base[2 * n + i];
            }
            normalise(comb, n, spec);
        }
        self.scratch.a = m;
    }

    pub(super) fn head_mix(
        &mut self,
        w: &MixWeights<Matrix>,
        spec: &MixSpec,
        h: &Rows,
        mix: &mut Mix,
    ) {
        let n = spec.streams;
        let m = self.mix_products(w, spec, h);
        mix.streams = n;
        mix.pre.clear();
        mix.post.clear();
        mix.comb.clear();
        for m in m.chunks(n) {
            mix.pre.extend(
                m.iter()
                    .zip(&w.base)
                    .map(|(m, base)| sigmoid(m * w.scale[0] + base) + spec.eps),
            );
        }
        self.scratch.a = m;
    }

    pub(super) fn collapse_norm(
        &self,
        h: &Rows,
        mix: Option<&Mix>,
        norm: &[f32],
        spec: &MixSpec,
        x: &mut Rows,
    ) {
        let (n, dim) = (spec.streams, spec.dim);
        x.shape(h.count(), dim);
        self.each_row(&mut x.data, dim, (n + 3) * dim, |row, x| {
            let streams = h.row(row);
            match mix {
                None => x.copy_from_slice(&streams[..dim]),
                Some(mix) => {
                    x.fill(0.0);
                    for (stream, p) in streams.chunks(dim).zip(&mix.pre[row * n..(row + 1) * n]) {
                        self.kernels.add_scaled(x, *p, stream);
                    }
                    self.store(x);
                }
            }
            self.norm_row(x, norm, spec.norm_eps);
        });
    }

    pub(super) fn expand_streams(&self, y: &Rows, mix: &Mix, spec: &MixSpec, h: &mut Rows) {
        /// Channels handled at a time: the old streams of a piece fit the registers' reach.
        const PIECE: usize = 256;
        let (n, dim) = (spec.streams, spec.dim);
        let width = h.width;
        self.each_row(&mut h.data, width, (n + 1) * width, |row, h| {
            let y = y.row(row);
            let post = &mix.post[row * n..(row + 1) * n];
            let comb = &mix.comb[row * n * n..(row + 1) * n * n];
            let mut old = [0.0f32; PIECE * 8];
            assert!(n <= 8, "the configuration allows up to 8 streams");
            for start in (0..dim).step_by(PIECE) {
                let len = PIECE.min(dim - start);
                for j in 0..n {
                    old[j * PIECE..j * PIECE + len]
                        .copy_from_slice(&h[j * dim + start..j * dim + start + len]);
                }
                for k in 0..n {
                    let out = &mut h[k * dim + start..k * dim + start + len];
                    for (o, y) in out.iter_mut().zip(&y[start..start + len]) {
                        *o = post[k] * y;
                    }
                    for j in 0..n {
                        let c = comb[j * n + k];
                        self.kernels
                            .add_scaled(out, c, &old[j * PIECE..j * PIECE + len]);
                    }
                    self.store(out);
                }
            }
        });
    }

    pub(super) fn add_engram(
        &mut self,
        w: &EngramWeights<Matrix, Table>,
        spec: &MixSpec,
        rows: &[u32],
        batch: &Batch,
        h: &mut Rows,
    ) {
        let (n, dim, width) = (spec.streams, spec.dim, w.table.width);
        let count = batch.len();
        let mut e = std::mem::take(&mut self.scratch.a);
        let mut kv = std::mem::take(&mut self.scratch.b);
        // The stored rows are the FP8 activation of the product: they are not quantised again.
        e.resize(rows.len() * width, 0.0);
        self.each_row(&mut e, width, width, |i, out| {
            w.table.row(rows[i] as usize, out)
        });
        kv.resize(count * w.wkv.rows, 0.0);
        self.kernels.linear(&mut [super::Linear {
            w: &w.wkv,
            first_row: 0,
            x: &e,
            y: &mut kv,
            exact: true,
        }]);
        self.store(&mut kv);
        let streams = Shared::new(&mut h.data);
        self.kernels.parallel(count, 6 * n * dim, &|row| {
            // SAFETY: each item has its own row.
            let h = unsafe { streams.part(row * n * dim, n * dim) };
            let kv = &kv[row * (n + 1) * dim..(row + 1) * (n + 1) * dim];
            let value = &kv[n * dim..];
            for ((h, key), weight) in h
                .chunks_mut(dim)
                .zip(kv.chunks(dim))
                .zip(w.gate.chunks(dim))
            {
                let mut dot = 0.0f64;
                for ((h, k), w) in h.iter().zip(key).zip(weight) {
                    dot += f64::from(h * w) * f64::from(*k);
                }
                let dot = dot as f32
                    * (dim as f32).powf(-0.5)
                    * self.inverse_rms(h, spec.norm_eps)
                    * self.inverse_rms(key, spec.norm_eps);
                let gate = if batch.image[row] {
                    0.0
                } else {
                    sigmoid(dot.abs().max(1e-6).sqrt().copysign(dot))
                };
                self.kernels.add_scaled(h, gate, value);
                self.store(h);
            }
        });
        self.scratch.a = e;
        self.scratch.b = kv;
    }
}
