//! Feed-forward part: router, chosen experts, shared expert.

use super::matrix::Matrix;
use super::{Batch, Host, Kernels, Linear, MoeSpec, MoeWeights, Rows};
use crate::engine::backend::RouterChoice;

/// Chosen experts, `topk` a row, in the order chosen.
#[derive(Clone, Debug, Default)]
pub struct Routing {
    topk: usize,
    experts: Vec<u32>,
    weights: Vec<f32>,
}

impl Routing {
    pub(super) fn rows(&self) -> Vec<Vec<(u32, f32)>> {
        let pairs: Vec<_> = self
            .experts
            .iter()
            .copied()
            .zip(self.weights.iter().copied())
            .collect();
        pairs.chunks(self.topk.max(1)).map(<[_]>::to_vec).collect()
    }
}

/// `sqrt(ln(1 + e^u))`.
fn score(u: f32) -> f32 {
    (u.max(0.0) + (-u.abs()).exp().ln_1p()).sqrt()
}

impl<K: Kernels> Host<K> {
    pub(super) fn choose_experts(
        &mut self,
        w: &MoeWeights<Matrix>,
        spec: &MoeSpec,
        x: &Rows,
        batch: &Batch,
        routing: &mut Routing,
    ) {
        let mut scores = std::mem::take(&mut self.scratch.a);
        self.linear_f32(&w.gate, &x.data, &mut scores);
        routing.topk = spec.topk;
        routing.experts.clear();
        routing.weights.clear();
        let mut order: Vec<u32> = Vec::new();
        for (row, scores) in scores.chunks_mut(w.gate.rows).enumerate() {
            scores.iter_mut().for_each(|s| *s = score(*s));
            let first = routing.weights.len();
            match &w.choice {
                RouterChoice::Table(table) => {
                    let token = batch.tokens[row] as usize;
                    routing
                        .experts
                        .extend_from_slice(&table[token * spec.topk..(token + 1) * spec.topk]);
                }
                RouterChoice::Scores { bias, image_bias } => {
                    let bias = if batch.image[row] && !image_bias.is_empty() {
                        image_bias
                    } else {
                        bias
                    };
                    order.clear();
                    order.extend(0..scores.len() as u32);
                    let biased = |e: &u32| scores[*e as usize] + bias[*e as usize];
                    order.sort_by(|a, b| biased(b).total_cmp(&biased(a)).then(a.cmp(b)));
                    routing.experts.extend_from_slice(&order[..spec.topk]);
                }
            }
            let chosen = &routing.experts[first..];
            let sum: f32 = chosen.iter().map(|e| scores[*e as usize]).sum::<f32>() + 1e-20;
            routing.weights.extend(
                chosen
                    .iter()
                    .map(|e| scores[*e as usize] / sum * spec.scale),
            );
        }
        self.scratch.a = scores;
    }

    /// `h = silu(min(gate, limit)) · clamp(up) · weight`, ready for `w2`.
    fn activate(&self, spec: &MoeSpec, gate: &mut [f32], up: &[f32], weight: Option<f32>) {
        let limit = if spec.limit > 0.0 {
            spec.limit
        } else {
            f32::INFINITY
        };
        self.kernels
            .swiglu(gate, up, limit, weight.unwrap_or(1.0), self.numerics.bf16);
        if !spec.direct {
            self.store(gate);
        }
        if self.numerics.activations {
            self.kernels.fake_fp8(gate, self.group);
        }
    }

    pub(super) fn run_experts(
        &mut self,
        w: &MoeWeights<Matrix>,
        spec: &MoeSpec,
        x: &Rows,
        routing: &Routing,
        y: &mut Rows,
    ) {
        let count = x.count();
        let dim = x.width;
        let inter = w.shared.w1.rows;
        // Rows in the order of their experts, the shared expert's rows last.
        let mut places: Vec<usize> = (0..routing.experts.len()).collect();
        places.sort_by_key(|place| routing.experts[*place]);
        let total = places.len() + count;
        let mut quantised = std::mem::take(&mut self.scratch.quantised);
        quantised.clear();
        quantised.extend_from_slice(&x.data);
        self.quantise(&mut quantised, dim);
        let mut gathered = std::mem::take(&mut self.scratch.a);
        gathered.resize(total * dim, 0.0);
        self.each_row(&mut gathered, dim, dim, |i, to| {
            let row = places
                .get(i)
                .map_or_else(|| i - places.len(), |place| place / spec.topk);
            to.copy_from_slice(&quantised[row * dim..(row + 1) * dim]);
        });
        let runs = runs(&places, &routing.experts, count);
        let weights_of = |expert: Option<u32>| expert.map_or(&w.shared, |e| &w.experts[e as usize]);
        let exact = self.numerics.bf16 || self.numerics.activations;

        let mut gate = std::mem::take(&mut self.scratch.b);
        let mut up = std::mem::take(&mut self.scratch.c);
        gate.resize(total * inter, 0.0);
        up.resize(total * inter, 0.0);
        let mut jobs = Vec::with_capacity(2 * runs.len());
        split(
            &runs,
            &gathered,
            dim,
            &mut gate,
            inter,
            exact,
            |e| &weights_of(e).w1,
            &mut jobs,
        );
        split(
            &runs,
            &gathered,
            dim,
            &mut up,
            inter,
            exact,
            |e| &weights_of(e).w3,
            &mut jobs,
        );
        self.kernels.linear(&mut jobs);
        drop(jobs);
        self.each_row(&mut gate, inter, 24 * inter, |i, gate| {
            let weight = places.get(i).map(|place| routing.weights[*place]);
            self.activate(spec, gate, &up[i * inter..(i + 1) * inter], weight);
        });
        let out = &mut gathered;
        let mut jobs = Vec::with_capacity(runs.len());
        split(
            &runs,
            &gate,
            inter,
            out,
            dim,
            exact,
            |e| &weights_of(e).w2,
            &mut jobs,
        );
        self.kernels.linear(&mut jobs);
        drop(jobs);

        // Where each row's experts ended up, in the order they were chosen.
        let mut at = vec![0; places.len()];
        places
            .iter()
            .enumerate()
            .for_each(|(i, place)| at[*place] = i);
        let out = &gathered;
        y.shape(count, dim);
        self.each_row(&mut y.data, dim, (spec.topk + 2) * dim, |row, y| {
            y.fill(0.0);
            let shared = places.len() + row;
            for i in at[row * spec.topk..(row + 1) * spec.topk]
                .iter()
                .copied()
                .chain([shared])
            {
                let part = &out[i * dim..(i + 1) * dim];
                self.kernels.add(y, part, self.numerics.bf16);
            }
            self.store(y);
        });
        self.scratch.quantised = quantised;
        self.scratch.a = gathered;
        self.scratch.b = gate;
        self.scratch.c = up;
    }
}

/// Consecutive rows of one expert; `None` is the shared one.
struct Run {
    expert: Option<u32>,
    rows: usize,
}

fn runs(places: &[usize], experts: &[u32], shared: usize) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for place in places {
        let expert = Some(experts[*place]);
        match runs.last_mut() {
            Some(run) if run.expert == expert => run.rows += 1,
            _ => runs.push(Run { expert, rows: 1 }),
        }
    }
    runs.push(Run {
        expert: None,
        rows: shared,
    });
    runs
}

/// One job for each run, over its part of `x` and `y`.
#[expect(clippy::too_many_arguments, reason = "both operands with their widths")]
fn split<'a>(
    runs: &[Run],
    mut x: &'a [f32],
    x_width: usize,
    mut y: &'a mut [f32],
    y_width: usize,
    exact: bool,
    weights: impl Fn(Option<u32>) -> &'a Matrix,
    jobs: &mut Vec<Linear<'a>>,
) {
    for run in runs {
        let (x_here, x_rest) = x.split_at(run.rows * x_width);
        let (y_here, y_rest) = y.split_at_mut(run.rows * y_width);
        (x, y) = (x_rest, y_rest);
        jobs.push(Linear {
            w: weights(run.expert),
            first_row: 0,
            x: x_here,
            y: y_here,
            exact,
        });
    }
}
