//! Operations on host memory, written once over [`kernels::Kernels`].
//!
//! One file for each family: [`mixes`] (streams, norms, engram), [`projections`] (attention inputs and
//! outputs), [`compress`] (compressed rows), [`index`] (selection), [`attention`], [`experts`].

mod attention;
mod compress;
mod experts;
#[cfg(test)]
mod golden;
mod index;
pub mod kernels;
pub mod matrix;
mod mixes;
pub mod numbers;
mod projections;
pub mod state;

use std::cell::RefCell;

use super::batch::Batch;
use super::{
    AttentionSpec, AttentionWeights, Backend, Compressed, CompressorWeights, EngramWeights,
    Frequencies, IndexKeyWeights, IndexerWeights, Level, MixSpec, MixWeights, MoeSpec, MoeWeights,
    Numerics, Pooling, Projected, RowFormat,
};
use crate::engine::error::{Code, Error};
use crate::engine::kv::SlotId;
use crate::engine::kv::layout::{GroupId, RingId, StateLayout};
use crate::engine::weights::{Dtype, Tensor as Stored};
use kernels::{Kernels, Linear};
use matrix::{Format, Matrix, Scales, Table};
use state::State;

pub use experts::Routing;
pub use index::{Candidates, Selection};
pub use mixes::Mix;

/// Activations: `[rows, width]`.
#[derive(Clone, Debug, Default)]
pub struct Rows {
    /// Row-major values.
    pub data: Vec<f32>,
    /// Values a row.
    pub width: usize,
}

impl Rows {
    /// Gives it `rows` rows of `width`, whose values are then unspecified, and returns them.
    pub fn shape(&mut self, rows: usize, width: usize) -> &mut [f32] {
        self.width = width;
        self.data.resize(rows * width, 0.0);
        &mut self.data
    }

    /// Rows.
    pub fn count(&self) -> usize {
        self.data.len().checked_div(self.width).unwrap_or(0)
    }

    /// Row `index`.
    pub fn row(&self, index: usize) -> &[f32] {
        &self.data[index * self.width..(index + 1) * self.width]
    }
}

/// Cosines and sines of every row of the step, `[S, R/2]` each.
#[derive(Debug, Default)]
struct Angles {
    cos: Vec<f32>,
    sin: Vec<f32>,
    /// Sines of the way back.
    back: Vec<f32>,
}

/// The host backend.
#[derive(Debug)]
pub struct Host<K> {
    kernels: K,
    numerics: Numerics,
    /// Columns that share an activation scale in front of a quantised matrix: 128 (V4) or 32 (V4.1).
    group: usize,
    frequencies: Frequencies,
    plain: Angles,
    compressed: Angles,
    scratch: Scratch,
}

/// Buffers that operations keep between steps.
#[derive(Debug, Default)]
struct Scratch {
    quantised: Vec<f32>,
    a: Vec<f32>,
    b: Vec<f32>,
    c: Vec<f32>,
}

thread_local! {
    /// A buffer of each worker thread for the rows it gathers.
    static GATHER: RefCell<Option<state::Values>> = const { RefCell::new(None) };
}

/// A mutable slice that several threads write at places which never overlap.
struct Shared<T> {
    start: *mut T,
    len: usize,
}

// SAFETY: access goes through `part`, whose callers give each item of a parallel loop its own range.
unsafe impl<T: Send> Sync for Shared<T> {}

impl<T> Shared<T> {
    fn new(values: &mut [T]) -> Self {
        Self {
            start: values.as_mut_ptr(),
            len: values.len(),
        }
    }

    /// The part `at..at + len`.
    ///
    /// # Safety
    /// No two threads hold overlapping parts at once, and the slice outlives the part.
    #[expect(
        clippy::mut_from_ref,
        reason = "parts are disjoint by the caller's promise"
    )]
    unsafe fn part(&self, at: usize, len: usize) -> &mut [T] {
        assert!(
            at.checked_add(len).is_some_and(|end| end <= self.len),
            "a part lies inside its slice"
        );
        // SAFETY: inside the slice by the assertion; disjoint and alive by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(at), len) }
    }
}

impl<K: Kernels> Host<K> {
    /// A backend over `kernels`; `group` is the activation group of the checkpoint's quantised matrices.
    pub fn new(kernels: K, numerics: Numerics, group: usize) -> Self {
        Self {
            kernels,
            numerics,
            group,
            frequencies: Frequencies::default(),
            plain: Angles::default(),
            compressed: Angles::default(),
            scratch: Scratch::default(),
        }
    }

    /// Rounds to bfloat16 where the published runtime keeps bfloat16.
    fn store(&self, values: &mut [f32]) {
        if self.numerics.bf16 {
            self.kernels.round_bf16(values);
        }
    }

    /// Calls `body` with each row of `values`, over threads.
    fn each_row(
        &self,
        values: &mut [f32],
        width: usize,
        cost: usize,
        body: impl Fn(usize, &mut [f32]) + Sync,
    ) {
        let rows = values.len() / width.max(1);
        let shared = Shared::new(values);
        self.kernels.parallel(rows, cost, &|row| {
            // SAFETY: each item has its own row.
            body(row, unsafe { shared.part(row * width, width) });
        });
    }

    /// FP8 activations for a quantised matrix, in place.
    fn quantise(&self, x: &mut [f32], width: usize) {
        if self.numerics.activations {
            self.each_row(x, width, 8 * width, |_, row| {
                self.kernels.fake_fp8(row, self.group)
            });
        }
    }

    /// `y = x · wᵀ` for several matrices that take the same quantised activations.
    fn linear(&mut self, x: &[f32], jobs: &mut [(&Matrix, &mut Vec<f32>)]) {
        let width = jobs[0].0.cols;
        let count = x.len() / width;
        let mut quantised = std::mem::take(&mut self.scratch.quantised);
        quantised.clear();
        quantised.extend_from_slice(x);
        self.quantise(&mut quantised, width);
        let exact = self.numerics.bf16;
        let mut list: Vec<Linear<'_>> = jobs
            .iter_mut()
            .map(|(w, y)| {
                y.resize(count * w.rows, 0.0);
                let takes_quantised = w.is_quantised();
                Linear {
                    w,
                    first_row: 0,
                    x: if takes_quantised { &quantised } else { x },
                    y,
                    exact: exact || (takes_quantised && self.numerics.activations),
                }
            })
            .collect();
        self.kernels.linear(&mut list);
        drop(list);
        self.scratch.quantised = quantised;
        for (_, y) in jobs {
            self.store(y);
        }
    }

    /// `y = x · wᵀ`, neither quantised nor rounded.
    fn linear_f32(&self, w: &Matrix, x: &[f32], y: &mut Vec<f32>) {
        let count = x.len() / w.cols;
        y.resize(count * w.rows, 0.0);
        self.kernels.linear(&mut [Linear {
            w,
            first_row: 0,
            x,
            y,
            exact: self.numerics.bf16,
        }]);
    }

    /// `row = weight · RMS(row)`, rounded.
    fn norm_row(&self, row: &mut [f32], weight: &[f32], eps: f32) {
        let scale = self.inverse_rms(row, eps);
        self.kernels.scale_by(row, weight, scale);
        self.store(row);
    }

    /// Rotates adjacent pairs of the last `2 · cos.len()` channels.
    fn rotate(&self, row: &mut [f32], cos: &[f32], sin: &[f32]) {
        let start = row.len() - 2 * cos.len();
        let tail = &mut row[start..];
        self.kernels.rotate(tail, cos, sin);
        self.store(tail);
    }

    /// `1 / sqrt(mean(x²) + eps)`.
    fn inverse_rms(&self, x: &[f32], eps: f32) -> f32 {
        let mean = self.kernels.sum_of_squares(x) / x.len() as f64;
        (1.0 / (mean + f64::from(eps)).sqrt()) as f32
    }

    /// Quantises a row that is kept.
    fn quantise_row(&self, row: &mut [f32], format: RowFormat, rope_dim: usize) {
        match format {
            RowFormat::Index { hadamard } if self.numerics.index => {
                if hadamard {
                    self.kernels.hadamard(row);
                    self.store(row);
                }
                self.kernels.fake_fp4(row);
            }
            RowFormat::Fp8Nope if self.numerics.rows => {
                let plain = row.len() - rope_dim;
                self.kernels.fake_fp8(&mut row[..plain], 64);
                self.store(&mut row[..plain]);
            }
            RowFormat::Fp8 if self.numerics.rows => {
                self.kernels.fake_fp8(row, 32);
                self.store(row);
            }
            RowFormat::Fp4 if self.numerics.rows => {
                numbers::fake_fp4_e4m3(row);
                self.store(row);
            }
            RowFormat::Index { .. } | RowFormat::Fp8Nope | RowFormat::Fp8 | RowFormat::Fp4 => {}
        }
    }
}

/// Cosine and sine of `position · frequency`; the angle is an f32 product, as published.
fn angles(position: usize, frequencies: &[f32], cos: &mut [f32], sin: &mut [f32]) {
    for ((f, c), s) in frequencies.iter().zip(cos).zip(sin) {
        let (sine, cosine) = f64::from(position as f32 * f).sin_cos();
        (*c, *s) = (cosine as f32, sine as f32);
    }
}

impl Angles {
    fn fill(&mut self, positions: &[usize], frequencies: &[f32]) {
        let half = frequencies.len();
        self.cos.resize(positions.len() * half, 0.0);
        self.sin.resize(positions.len() * half, 0.0);
        for (i, p) in positions.iter().enumerate() {
            let range = i * half..(i + 1) * half;
            angles(
                *p,
                frequencies,
                &mut self.cos[range.clone()],
                &mut self.sin[range],
            );
        }
        self.back.clear();
        self.back.extend(self.sin.iter().map(|s| -s));
    }

    fn row(&self, row: usize, half: usize) -> (&[f32], &[f32]) {
        (
            &self.cos[row * half..(row + 1) * half],
            &self.sin[row * half..(row + 1) * half],
        )
    }

    fn back(&self, row: usize, half: usize) -> (&[f32], &[f32]) {
        let range = row * half..(row + 1) * half;
        (&self.cos[range.clone()], &self.back[range])
    }
}

fn matrix_of(weight: Stored, scale: Option<Stored>) -> Result<Matrix, Error> {
    let bad = |what: String| Error::new(Code::BadFormat, weight.name.clone(), what);
    let [rows, stored_cols] = weight.shape[..] else {
        return Err(bad(format!(
            "{} has {} dimensions, expected 2",
            weight.name,
            weight.shape.len()
        )));
    };
    let scales = |scale: Option<Stored>| -> Result<(Scales, Vec<usize>), Error> {
        let scale = scale.ok_or_else(|| bad(format!("{} has no scale", weight.name)))?;
        let scales = match scale.dtype {
            Dtype::F8E8M0 => Scales::E8m0(scale.bytes),
            Dtype::F32 => Scales::F32(scale.bytes),
            other => return Err(bad(format!("{} has scales of {other:?}", weight.name))),
        };
        Ok((scales, scale.shape))
    };
    let (cols, format) = match weight.dtype {
        Dtype::F8E4M3 => {
            let (scales, shape) = scales(scale)?;
            // Both published block sizes; a matrix that one block of either covers reads the same with both.
            let block = if shape == [rows.div_ceil(128), stored_cols.div_ceil(128)] {
                128
            } else {
                32
            };
            (stored_cols, Format::Fp8 { block, scales })
        }
        Dtype::I8 | Dtype::U8 => (
            stored_cols * 2,
            Format::Fp4 {
                scales: scales(scale)?.0,
            },
        ),
        Dtype::Bf16 => (stored_cols, Format::Bf16),
        Dtype::F32 => (stored_cols, Format::F32),
        other => {
            return Err(bad(format!(
                "{} is stored as {other:?}, which no operation reads",
                weight.name
            )));
        }
    };
    Ok(Matrix {
        rows,
        cols,
        data: weight.bytes,
        format,
    })
}

fn table_of(rows: Stored, scales: Stored) -> Result<Table, Error> {
    match (rows.dtype, scales.dtype, &rows.shape[..], &scales.shape[..]) {
        (Dtype::F8E4M3, Dtype::F8E8M0, &[height, width], &[same, groups])
            if height == same && groups * 32 == width =>
        {
            Ok(Table {
                width,
                data: rows.bytes,
                scales: scales.bytes,
            })
        }
        _ => {
            let message = format!(
                "{} is not a table of FP8 rows with a scale for each 32 values",
                rows.name
            );
            Err(Error::new(Code::BadFormat, rows.name.clone(), message))
        }
    }
}

impl<K: Kernels> Backend for Host<K> {
    type Tensor = Rows;
    type Matrix = Matrix;
    type Table = Table;
    type State = State;
    type Mix = Mix;
    type Selection = Selection;
    type Candidates = Candidates;
    type Routing = Routing;

    fn describe(&self) -> String {
        self.kernels.describe()
    }

    fn matrix(&mut self, weight: Stored, scale: Option<Stored>) -> Result<Matrix, Error> {
        matrix_of(weight, scale)
    }

    fn table(&mut self, rows: Stored, scales: Stored) -> Result<Table, Error> {
        table_of(rows, scales)
    }

    fn state(&mut self, layout: &StateLayout) -> Result<State, Error> {
        State::new(layout, self.numerics.bf16)
    }

    fn clear(&mut self, state: &mut State, slot: SlotId) {
        state.clear(slot);
    }

    fn save(&mut self, state: &State, slot: SlotId) -> Vec<u8> {
        state.save(slot)
    }

    fn restore(&mut self, state: &mut State, slot: SlotId, saved: &[u8]) -> Result<(), Error> {
        state.restore(slot, saved)
    }

    fn read(&self, tensor: &Rows) -> Vec<f32> {
        tensor.data.clone()
    }

    fn write(&self, tensor: &mut Rows, values: &[f32]) {
        tensor.data.copy_from_slice(values);
    }

    fn begin(
        &mut self,
        batch: &Batch,
        frequencies: &Frequencies,
        state: &mut State,
    ) -> Result<(), Error> {
        self.frequencies.clone_from(frequencies);
        self.plain.fill(&batch.positions, &frequencies.plain);
        self.compressed
            .fill(&batch.positions, &frequencies.compressed);
        state.begin(batch)
    }

    fn embed(&mut self, table: &Matrix, batch: &Batch, streams: usize, h: &mut Rows) {
        self.embed_rows(table, batch, streams, h);
    }

    fn mix(&mut self, w: &MixWeights<Matrix>, spec: &MixSpec, h: &Rows, mix: &mut Mix) {
        self.full_mix(w, spec, h, mix);
    }

    fn mix_head(&mut self, w: &MixWeights<Matrix>, spec: &MixSpec, h: &Rows, mix: &mut Mix) {
        self.head_mix(w, spec, h, mix);
    }

    fn collapse(
        &mut self,
        h: &Rows,
        mix: Option<&Mix>,
        norm: &[f32],
        spec: &MixSpec,
        x: &mut Rows,
    ) {
        self.collapse_norm(h, mix, norm, spec, x);
    }

    fn expand(&mut self, y: &Rows, mix: &Mix, spec: &MixSpec, h: &mut Rows) {
        self.expand_streams(y, mix, spec, h);
    }

    fn project(
        &mut self,
        w: &AttentionWeights<Matrix>,
        spec: &AttentionSpec,
        compressed: bool,
        eps: f32,
        x: &Rows,
        out: &mut Projected<Rows>,
    ) {
        self.projections(w, spec, compressed, eps, x, out);
    }

    fn compress(
        &mut self,
        w: &CompressorWeights<Matrix>,
        pooling: &Pooling,
        eps: f32,
        x: &Rows,
        batch: &Batch,
        state: &mut State,
        latents: &mut Rows,
    ) {
        self.pool(w, pooling, eps, x, batch, state, latents);
    }

    fn append(
        &mut self,
        rows: &Rows,
        ratio: usize,
        format: RowFormat,
        batch: &Batch,
        state: &mut State,
        group: GroupId,
    ) {
        self.append_rows(rows, ratio, format, batch, state, group);
    }

    fn index_keys(
        &mut self,
        w: &IndexKeyWeights<Matrix>,
        eps: f32,
        latents: &Rows,
        keys: &mut Rows,
    ) {
        self.derive_keys(w, eps, latents, keys);
    }

    fn select(
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
        self.select_rows(
            w, spec, level, ratio, x, qr, batch, state, group, candidates, selection,
        );
    }

    fn attend(
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
        self.sparse_attention(w, spec, projected, ring, compressed, ratio, batch, state, o);
    }

    fn output(
        &mut self,
        w: &AttentionWeights<Matrix>,
        spec: &AttentionSpec,
        o: &Rows,
        y: &mut Rows,
    ) {
        self.output_projection(w, spec, o, y);
    }

    fn route(
        &mut self,
        w: &MoeWeights<Matrix>,
        spec: &MoeSpec,
        x: &Rows,
        batch: &Batch,
        routing: &mut Routing,
    ) {
        self.choose_experts(w, spec, x, batch, routing);
    }

    fn experts(
        &mut self,
        w: &MoeWeights<Matrix>,
        spec: &MoeSpec,
        x: &Rows,
        routing: &Routing,
        y: &mut Rows,
    ) {
        self.run_experts(w, spec, x, routing, y);
    }

    fn engram(
        &mut self,
        w: &EngramWeights<Matrix, Table>,
        spec: &MixSpec,
        rows: &[u32],
        batch: &Batch,
        h: &mut Rows,
    ) {
        self.add_engram(w, spec, rows, batch, h);
    }

    fn take_rows(&mut self, from: &Rows, rows: &[usize], to: &mut Rows) {
        to.width = from.width;
        to.data.clear();
        for row in rows {
            to.data.extend_from_slice(from.row(*row));
        }
    }

    fn take_mix(&mut self, from: &Mix, rows: &[usize], to: &mut Mix) {
        to.take(from, rows);
    }

    fn head(&mut self, w: &Matrix, x: &Rows, logits: &mut Vec<f32>) {
        self.linear_f32(w, &x.data, logits);
    }

    fn read_selection(&self, selection: &Selection) -> Vec<Vec<u32>> {
        selection.rows().map(<[u32]>::to_vec).collect()
    }

    fn read_candidates(&self, candidates: &Candidates) -> Vec<Vec<u32>> {
        candidates.rows().map(<[u32]>::to_vec).collect()
    }

    fn read_routing(&self, routing: &Routing) -> Vec<Vec<(u32, f32)>> {
        routing.rows()
    }
}
