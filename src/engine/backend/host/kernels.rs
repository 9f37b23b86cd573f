//! The inner loops that decide speed. Everything around them is shared by all host backends.
//!
//! Contract of every implementation: the result of a row never depends on the other rows of the call,
//! on the number of threads, or on how the work was split. Work is divided by output, never along a sum.

use super::matrix::Matrix;

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
}
