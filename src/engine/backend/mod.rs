//! The seam between models and hardware.
//!
//! [`Backend`] is a small set of coarse operations over rows with positions; the models in
//! [`super::model`] are written once over it. Two of its implementations share host memory and the
//! shape of every operation ([`host`]) and differ in their inner loops: [`reference`] is plain and
//! trusted by tests, [`cpu`] uses vector units and threads.
//!
//! Shapes: S rows of the step, D model width, N residual streams, H heads, E head width, R rotary
//! width, G compressed rows that become complete in the step.

pub mod batch;
pub mod canary;
pub mod cpu;
pub mod host;
pub mod reference;

use super::error::Error;
use super::kv::SlotId;
use super::kv::layout::{GroupId, RingId, StateLayout};
use super::weights::Tensor as Stored;
use batch::Batch;

/// Where activations and cache entries are rounded. The weights were trained for `OFFICIAL`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Numerics {
    /// FP8 activations in front of FP8 and FP4 matrices.
    pub activations: bool,
    /// Quantised window and compressed rows.
    pub rows: bool,
    /// Quantised index queries and keys.
    pub index: bool,
    /// bfloat16 wherever the published runtime keeps bfloat16 tensors.
    pub bf16: bool,
}

impl Numerics {
    /// As published.
    pub const OFFICIAL: Self = Self {
        activations: true,
        rows: true,
        index: true,
        bf16: true,
    };
    /// Nothing is rounded below f32.
    pub const PLAIN: Self = Self {
        activations: false,
        rows: false,
        index: false,
        bf16: false,
    };
    /// Every quantisation, but f32 between: what single operations are compared in.
    pub const QUANTISED: Self = Self {
        activations: true,
        rows: true,
        index: true,
        bf16: false,
    };
}

/// Frequencies of both rotations, `[R/2]` each.
#[derive(Clone, Debug, Default)]
pub struct Frequencies {
    /// Layers without compressed rows.
    pub plain: Vec<f32>,
    /// Layers with compressed rows, and everything compressed.
    pub compressed: Vec<f32>,
}

/// How a row is quantised before it is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowFormat {
    /// FP8 in groups of 64, the rotated channels unquantised: V4 window and compressed rows.
    Fp8Nope,
    /// FP8 in groups of 32 over the whole row: V4.1 window rows.
    Fp8,
    /// FP4 in groups of 16 with E4M3 scales: V4.1 compressed rows.
    Fp4,
    /// FP4 in groups of 32: index queries and keys.
    Index {
        /// Walsh-Hadamard transform first (V4).
        hadamard: bool,
    },
}

/// Sizes and rules of attention that all layers of a model share.
#[derive(Clone, Copy, Debug)]
pub struct AttentionSpec {
    /// H.
    pub heads: usize,
    /// E.
    pub head_dim: usize,
    /// R: the last channels of a head rotate.
    pub rope_dim: usize,
    /// W.
    pub window: usize,
    /// Groups of the output projection.
    pub groups: usize,
    /// Each query head is scaled to unit RMS (V4).
    pub query_norm: bool,
    /// The output projection's first half takes FP8 activations and feeds the second in FP8 (V4.1).
    pub quantised_output: bool,
    /// Of window rows.
    pub row_format: RowFormat,
    /// Indexer heads.
    pub index_heads: usize,
    /// Indexer head width.
    pub index_dim: usize,
    /// Rows the indexer keeps.
    pub index_topk: usize,
    /// Index weights are scaled (V4); scores are rounded to bfloat16 instead in V4.1.
    pub index_scaled: bool,
    /// Index queries.
    pub index_format: RowFormat,
}

/// Two-level selection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// All visible rows compete.
    All,
    /// All visible rows compete; the best blocks become candidates for later layers.
    Publish {
        /// Blocks kept.
        blocks: usize,
        /// Rows a block.
        size: usize,
    },
    /// Only rows of the published blocks compete.
    Candidates {
        /// Rows a block.
        size: usize,
    },
}

/// Which compressed rows a layer attends to.
#[derive(Clone, Copy, Debug)]
pub enum Compressed<'a, S> {
    /// None: window only.
    None,
    /// Every visible row of the group.
    All(GroupId),
    /// The selected rows of the group.
    Selected(GroupId, &'a S),
}

/// Hyper-connection weights of one sub-layer.
#[derive(Debug)]
pub struct MixWeights<M> {
    /// `[(2+N)·N, N·D]`.
    pub function: M,
    /// `[(2+N)·N]`.
    pub base: Vec<f32>,
    /// `[3]`: pre, post, comb.
    pub scale: Vec<f32>,
}

/// Attention projections of one layer.
#[derive(Debug)]
pub struct AttentionWeights<M> {
    /// `[q_rank, D]`.
    pub wq_a: M,
    /// `[q_rank]`.
    pub q_norm: Vec<f32>,
    /// `[H·E, q_rank]`.
    pub wq_b: M,
    /// `[E, D]`.
    pub wkv: M,
    /// `[E]`.
    pub kv_norm: Vec<f32>,
    /// `[H]`.
    pub sink: Vec<f32>,
    /// `[groups·o_rank, H·E/groups]`.
    pub wo_a: M,
    /// `[D, groups·o_rank]`.
    pub wo_b: M,
}

/// A compressor: V4 with or without overlap, V4.1 of ratio 2 (no bias) or 1 (no gate).
#[derive(Debug)]
pub struct CompressorWeights<M> {
    /// `[c·width, D]`.
    pub wkv: M,
    /// Likewise; `None` for ratio 1.
    pub wgate: Option<M>,
    /// `[ratio, c·width]`; empty without positional bias.
    pub bias: Vec<f32>,
    /// `[width]`.
    pub norm: Vec<f32>,
}

/// Shape of a compressor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pooling {
    /// Tokens a group.
    pub ratio: usize,
    /// Channels of a compressed row.
    pub width: usize,
    /// A group also mixes the first halves of the group before it.
    pub overlap: bool,
    /// Where raw rows of unfinished groups are; `None` for ratio 1.
    pub ring: Option<RingId>,
}

/// Indexer projections.
#[derive(Debug)]
pub struct IndexerWeights<M> {
    /// `[Hi·Ei, q_rank]`.
    pub wq_b: M,
    /// `[Hi, D]`.
    pub weights: M,
}

/// Index keys derived from compressed rows (V4.1).
#[derive(Debug)]
pub struct IndexKeyWeights<M> {
    /// `[Ei, E]`.
    pub wk: M,
    /// `[Ei]`.
    pub norm: Vec<f32>,
}

/// One expert.
#[derive(Debug)]
pub struct ExpertWeights<M> {
    /// Gate, `[inter, D]`.
    pub w1: M,
    /// Down, `[D, inter]`.
    pub w2: M,
    /// Up, `[inter, D]`.
    pub w3: M,
}

/// How experts are chosen.
#[derive(Debug)]
pub enum RouterChoice {
    /// By score plus bias; image positions have a bias of their own when it is not empty.
    Scores {
        /// `[experts]`.
        bias: Vec<f32>,
        /// `[experts]` or empty.
        image_bias: Vec<f32>,
    },
    /// By token id: `[V, topk]`.
    Table(Vec<u32>),
}

/// Feed-forward part of one layer.
#[derive(Debug)]
pub struct MoeWeights<M> {
    /// `[experts, D]`.
    pub gate: M,
    /// Who is chosen.
    pub choice: RouterChoice,
    /// Routed experts.
    pub experts: Vec<ExpertWeights<M>>,
    /// The expert every token takes.
    pub shared: ExpertWeights<M>,
}

/// Sizes and rules of the feed-forward part.
#[derive(Clone, Copy, Debug)]
pub struct MoeSpec {
    /// Experts a token.
    pub topk: usize,
    /// Multiplies the routing weights.
    pub scale: f32,
    /// Clamp of gate and up; 0 = none.
    pub limit: f32,
    /// The product goes to `w2` without a bfloat16 in between (V4.1).
    pub direct: bool,
}

/// N-gram memory of one layer (V4.1).
#[derive(Debug)]
pub struct EngramWeights<M, T> {
    /// Rows of `width` values, as stored.
    pub table: T,
    /// `[(N+1)·D, columns·width]`.
    pub wkv: M,
    /// `[N, D]`: the product of both norm weights.
    pub gate: Vec<f32>,
}

/// A host's or a device's implementation of the operations. One thread at a time.
///
/// Outputs are resized by the operation that writes them; their buffers are kept between steps. Every
/// operation treats each row by itself, and sequences only through their own slot and blocks.
#[expect(
    clippy::too_many_arguments,
    reason = "an operation names its weights, rules, inputs, state and outputs"
)]
pub trait Backend: Send + 'static {
    /// Activations, `[rows, width]` of f32.
    type Tensor: Default + Send;
    /// A weight as this backend keeps it.
    type Matrix: Send + Sync;
    /// An n-gram table as this backend keeps it.
    type Table: Send + Sync;
    /// Pools of all sequences' state.
    type State: Send;
    /// Results of a hyper-connection mix.
    type Mix: Default + Send;
    /// Selected compressed rows, row by row.
    type Selection: Default + Send;
    /// Candidate blocks, row by row.
    type Candidates: Default + Send;
    /// Chosen experts and their weights, row by row.
    type Routing: Default + Send;

    /// What runs the inner loops, for plans and metrics.
    fn describe(&self) -> String;
    /// Takes over a stored matrix (with its scales, where it has any).
    fn matrix(&mut self, weight: Stored, scale: Option<Stored>) -> Result<Self::Matrix, Error>;
    /// Takes over a stored n-gram table with its scales.
    fn table(&mut self, rows: Stored, scales: Stored) -> Result<Self::Table, Error>;
    /// Makes the pools.
    fn state(&mut self, layout: &StateLayout) -> Result<Self::State, Error>;
    /// Makes a slot ready for a new sequence.
    fn clear(&mut self, state: &mut Self::State, slot: SlotId);
    /// Copies the bounded state of a sequence out.
    fn save(&mut self, state: &Self::State, slot: SlotId) -> Vec<u8>;
    /// Copies it back into any slot.
    fn restore(&mut self, state: &mut Self::State, slot: SlotId, saved: &[u8])
    -> Result<(), Error>;
    /// Copies activations to the host: probes.
    fn read(&self, tensor: &Self::Tensor) -> Vec<f32>;
    /// Replaces activations: probes.
    fn write(&self, tensor: &mut Self::Tensor, values: &[f32]);

    /// Begins a step: rotation tables, and a check that every sequence's bounded state is the one its
    /// rows need.
    fn begin(
        &mut self,
        batch: &Batch,
        frequencies: &Frequencies,
        state: &mut Self::State,
    ) -> Result<(), Error>;
    /// `h[n] = table[token]` for every stream: `[S, N·D]`.
    fn embed(&mut self, table: &Self::Matrix, batch: &Batch, streams: usize, h: &mut Self::Tensor);
    /// `pre [S, N]`, `post [S, N]`, `comb [S, N, N]` from the streams (`model-v4.md` 5).
    fn mix(
        &mut self,
        w: &MixWeights<Self::Matrix>,
        spec: &MixSpec,
        h: &Self::Tensor,
        mix: &mut Self::Mix,
    );
    /// `pre` alone, in front of the head (V4).
    fn mix_head(
        &mut self,
        w: &MixWeights<Self::Matrix>,
        spec: &MixSpec,
        h: &Self::Tensor,
        mix: &mut Self::Mix,
    );
    /// `x = norm · RMS(Σ_n pre[n]·h[n])`, `[S, D]`; without a mix stream 0 alone.
    fn collapse(
        &mut self,
        h: &Self::Tensor,
        mix: Option<&Self::Mix>,
        norm: &[f32],
        spec: &MixSpec,
        x: &mut Self::Tensor,
    );
    /// `h[k] = post[k]·y + Σ_j comb[j,k]·h[j]`.
    fn expand(&mut self, y: &Self::Tensor, mix: &Self::Mix, spec: &MixSpec, h: &mut Self::Tensor);
    /// `qr [S, q_rank]`, rotated `q [S, H·E]`, rotated and quantised window rows `kv [S, E]`.
    fn project(
        &mut self,
        w: &AttentionWeights<Self::Matrix>,
        spec: &AttentionSpec,
        compressed: bool,
        eps: f32,
        x: &Self::Tensor,
        out: &mut Projected<Self::Tensor>,
    );
    /// Latents of the groups that become complete, normed but neither rotated nor quantised: `[G, width]`.
    /// Raw rows of the step go to the ring.
    fn compress(
        &mut self,
        w: &CompressorWeights<Self::Matrix>,
        pooling: &Pooling,
        eps: f32,
        x: &Self::Tensor,
        batch: &Batch,
        state: &mut Self::State,
        latents: &mut Self::Tensor,
    );
    /// Rotates latents to the first position of their group, quantises and appends them to `group`.
    fn append(
        &mut self,
        rows: &Self::Tensor,
        ratio: usize,
        format: RowFormat,
        batch: &Batch,
        state: &mut Self::State,
        group: GroupId,
    );
    /// Index keys from latents: `k_norm · RMS(latent · wkᵀ)`, `[G, Ei]`.
    fn index_keys(
        &mut self,
        w: &IndexKeyWeights<Self::Matrix>,
        eps: f32,
        latents: &Self::Tensor,
        keys: &mut Self::Tensor,
    );
    /// The `index_topk` best visible rows of `group` for every row, lower index first on ties.
    fn select(
        &mut self,
        w: &IndexerWeights<Self::Matrix>,
        spec: &AttentionSpec,
        level: Level,
        ratio: usize,
        x: &Self::Tensor,
        qr: &Self::Tensor,
        batch: &Batch,
        state: &Self::State,
        group: GroupId,
        candidates: &mut Self::Candidates,
        selection: &mut Self::Selection,
    );
    /// Sparse attention over window and compressed rows with sinks, rotated back: `o [S, H·E]`. The
    /// step's window rows go to the ring afterwards.
    fn attend(
        &mut self,
        w: &AttentionWeights<Self::Matrix>,
        spec: &AttentionSpec,
        projected: &Projected<Self::Tensor>,
        ring: RingId,
        compressed: Compressed<'_, Self::Selection>,
        ratio: usize,
        batch: &Batch,
        state: &mut Self::State,
        o: &mut Self::Tensor,
    );
    /// Grouped output projection: `y [S, D]`.
    fn output(
        &mut self,
        w: &AttentionWeights<Self::Matrix>,
        spec: &AttentionSpec,
        o: &Self::Tensor,
        y: &mut Self::Tensor,
    );
    /// Chooses experts and their weights.
    fn route(
        &mut self,
        w: &MoeWeights<Self::Matrix>,
        spec: &MoeSpec,
        x: &Self::Tensor,
        batch: &Batch,
        routing: &mut Self::Routing,
    );
    /// Chosen experts plus the shared one: `y [S, D]`.
    fn experts(
        &mut self,
        w: &MoeWeights<Self::Matrix>,
        spec: &MoeSpec,
        x: &Self::Tensor,
        routing: &Self::Routing,
        y: &mut Self::Tensor,
    );
    /// Adds the gated n-gram memory to every stream; `rows` are `[S, columns]` table rows.
    fn engram(
        &mut self,
        w: &EngramWeights<Self::Matrix, Self::Table>,
        spec: &MixSpec,
        rows: &[u32],
        batch: &Batch,
        h: &mut Self::Tensor,
    );
    /// Keeps rows `rows` of `from`.
    fn take_rows(&mut self, from: &Self::Tensor, rows: &[usize], to: &mut Self::Tensor);
    /// Likewise for a mix.
    fn take_mix(&mut self, from: &Self::Mix, rows: &[usize], to: &mut Self::Mix);
    /// `logits [rows, V]` to the host.
    fn head(&mut self, w: &Self::Matrix, x: &Self::Tensor, logits: &mut Vec<f32>);

    /// For probes: selected rows of each row, ascending.
    fn read_selection(&self, selection: &Self::Selection) -> Vec<Vec<u32>>;
    /// For probes: candidate blocks of each row, ascending.
    fn read_candidates(&self, candidates: &Self::Candidates) -> Vec<Vec<u32>>;
    /// For probes: experts of each row in the order chosen, with their weights.
    fn read_routing(&self, routing: &Self::Routing) -> Vec<Vec<(u32, f32)>>;
}

/// Numbers of the hyper-connections and norms.
#[derive(Clone, Copy, Debug)]
pub struct MixSpec {
    /// N.
    pub streams: usize,
    /// D.
    pub dim: usize,
    /// Rounds of normalisation.
    pub iterations: usize,
    /// Added where the mix divides.
    pub eps: f32,
    /// Added under the root.
    pub norm_eps: f32,
}

/// What the attention projections give.
#[derive(Debug, Default)]
pub struct Projected<T> {
    /// `[S, q_rank]`.
    pub qr: T,
    /// `[S, H·E]`.
    pub q: T,
    /// `[S, E]`.
    pub kv: T,
}
