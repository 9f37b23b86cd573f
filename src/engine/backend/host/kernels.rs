//! The inner loops that decide speed. Everything around them is shared by all host backends.
//!
//! Contract of every implementation: the result of a row never depends on the other rows of the call,
//! on the number of threads, or on how the work was split. Work is divided by output, never along a sum.

use super::matrix::Matrix;
use super::numbers;

/// `y[s, n] = Σ_k x[s, k] · w[n, k]` for all rows of `w`: one job of [`Kernels::linear`].
#[derive(Debug)]
pub struct Linear<'a> {
    /// `[n, k]`.
    pub w: &'a Matrix,
    /// First row of `w` that is used; `y` is `[s, rows]` with `rows = y.len() / s`.
    pub first_row: usize,
    /// `[s, k]`, contiguous.
    pub x: &'a [f32],
    /// `[s, rows]`, contiguous.
    pub y: &'a mut [f32],
    /// Every value of `x` is exactly a bfloat16 (published numerics): products may be formed from
    /// bfloat16 inputs without loss, sums are still f32.
    pub exact: bool,
}

/// Rows that are key and value at once: `[n, width]`, contiguous.
#[derive(Clone, Copy, Debug)]
pub enum Keys<'a> {
    /// Plain numerics.
    F32(&'a [f32]),
    /// Published numerics: every value is exactly a bfloat16.
    Bf16(&'a [u16]),
}

/// One query row of sparse attention.
#[derive(Debug)]
pub struct Attend<'a> {
    /// `[heads, width]`.
    pub q: &'a [f32],
    /// The key set, `[n, width]`.
    pub keys: Keys<'a>,
    /// Head width.
    pub width: usize,
    /// `[heads]`: the score of a virtual key without value.
    pub sink: &'a [f32],
    /// Multiplies every score (not the sink).
    pub scale: f32,
    /// Round probabilities to bfloat16 before the sum over values (published numerics; `q` is then
    /// exactly bfloat16 too).
    pub exact: bool,
    /// `[heads, width]`.
    pub out: &'a mut [f32],
}

/// Implemented by the plain reference and by the CPU backend.
pub trait Kernels: Send + Sync + 'static {
    /// Name for plans and metrics: what was chosen on this machine.
    fn describe(&self) -> String;

    /// Threads that [`Self::parallel`] may use.
    fn threads(&self) -> usize;

    /// Calls `body` once for each item of `0..items`, on any thread, in any order; returns when all are
    /// done. `cost` is roughly the multiply-adds of one item: small totals stay on the calling thread.
    fn parallel(&self, items: usize, cost: usize, body: &(dyn Fn(usize) + Sync));

    /// Runs all jobs; may divide them over threads together.
    fn linear(&self, jobs: &mut [Linear<'_>]);

    /// `out[h] = Σ_j softmax(q[h]·k_j · scale, with the sink)_j · k_j`. Runs on the calling thread.
    fn attend(&self, job: &mut Attend<'_>);

    /// `out[j] = Σ_h w[h] · max(q[h]·k_j, 0)` for `q` `[heads, width]`. Runs on the calling thread.
    fn index_scores(&self, q: &[f32], w: &[f32], keys: Keys<'_>, width: usize, out: &mut [f32]);

    /// Rounds to bfloat16.
    fn round_bf16(&self, x: &mut [f32]) {
        x.iter_mut().for_each(|v| *v = numbers::round_bf16(*v));
    }

    /// E4M3 with one power-of-two scale for each `group` values.
    fn fake_fp8(&self, x: &mut [f32], group: usize) {
        numbers::fake_fp8(x, group);
    }

    /// E2M1 with one power-of-two scale for each 32 values.
    fn fake_fp4(&self, x: &mut [f32]) {
        numbers::fake_fp4(x);
    }

    /// Orthonormal Walsh-Hadamard transform.
    fn hadamard(&self, x: &mut [f32]) {
        numbers::hadamard(x);
    }

    /// `Σ x²`.
    fn sum_of_squares(&self, x: &[f32]) -> f64 {
        x.iter().map(|v| f64::from(*v) * f64::from(*v)).sum()
    }

    /// `x = weight · (x · scale)`.
    fn scale_by(&self, x: &mut [f32], weight: &[f32], scale: f32) {
        x.iter_mut()
            .zip(weight)
            .for_each(|(v, w)| *v = *w * (*v * scale));
    }

    /// `gate = silu(min(gate, limit)) · clamp(up, limit) · weight`, inputs rounded to bfloat16 first
    /// where `round` says so. An infinite limit clamps nothing.
    fn swiglu(&self, gate: &mut [f32], up: &[f32], limit: f32, weight: f32, round: bool) {
        for (g, u) in gate.iter_mut().zip(up) {
            let (a, b) = if round {
                (numbers::round_bf16(*g), numbers::round_bf16(*u))
            } else {
                (*g, *u)
            };
            // A comparison keeps NaN, which `min` would replace by the limit.
            let (a, b) = (if a > limit { limit } else { a }, b.clamp(-limit, limit));
            *g = a / (1.0 + (-a).exp()) * b * weight;
        }
    }

    /// `y += x`, with `x` rounded to bfloat16 first where `round` says so.
    fn add(&self, y: &mut [f32], x: &[f32], round: bool) {
        y.iter_mut()
            .zip(x)
            .for_each(|(y, x)| *y += if round { numbers::round_bf16(*x) } else { *x });
    }

    /// `y += a · x`.
    fn add_scaled(&self, y: &mut [f32], a: f32, x: &[f32]) {
        y.iter_mut().zip(x).for_each(|(y, x)| *y += a * x);
    }

    /// Rotates adjacent pairs by angles with these cosines and sines.
    fn rotate(&self, x: &mut [f32], cos: &[f32], sin: &[f32]) {
        for ((pair, c), s) in x.chunks_exact_mut(2).zip(cos).zip(sin) {
            let (a, b) = (pair[0], pair[1]);
            pair[0] = a * c - b * s;
            pair[1] = a * s + b * c;
        }
    }

    /// One candidate of a softmax, channel by channel: `weight = e^(gate - max)`, `total += weight`,
    /// `out += weight · value`.
    fn softmax_step(
        &self,
        out: &mut [f32],
        total: &mut [f32],
        max: &[f32],
        gate: &[f32],
        value: &[f32],
    ) {
        for ((((o, t), m), g), v) in out.iter_mut().zip(total).zip(max).zip(gate).zip(value) {
            let weight = (*g - *m).exp();
            *t += weight;
            *o += weight * *v;
        }
    }
}
