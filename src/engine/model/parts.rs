//! What both model versions are made of: weights by name, the rows of a step, probes.

use super::config::ModelConfig;
use super::{ModelLimits, StepSequence};
use crate::engine::backend::batch::{Batch, Span};
use crate::engine::backend::{
    AttentionWeights, Backend, CompressorWeights, ExpertWeights, Frequencies, IndexerWeights,
    MixSpec, MixWeights, MoeSpec, MoeWeights, Numerics, RouterChoice,
};
use crate::engine::error::{Code, Error};
use crate::engine::kv::layout::StateLayout;
use crate::engine::weights::{Checkpoint, Tensor};

/// Rows that can be taken back: the widest verification and one more.
pub const ROLLBACK: usize = 8;

/// How many sequences and tokens the state pools hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pools {
    /// Blocks, block 0 included.
    pub blocks: usize,
    /// Slots, slot 0 included.
    pub slots: usize,
    /// Tokens a block covers; 0 = the model's default.
    pub block_tokens: usize,
}

/// Hands out the weights of a checkpoint by name.
pub struct Source<'a, B> {
    /// Where matrices go.
    pub backend: &'a mut B,
    /// Where they come from.
    pub checkpoint: &'a Checkpoint,
}

impl<B: Backend> Source<'_, B> {
    /// The matrix `{stem}.weight` with `{stem}.scale`, where there is one.
    pub fn matrix(&mut self, stem: &str) -> Result<B::Matrix, Error> {
        let weight = self.checkpoint.tensor(&format!("{stem}.weight"))?;
        let scale = format!("{stem}.scale");
        let scale = if self.checkpoint.has(&scale) {
            Some(self.checkpoint.tensor(&scale)?)
        } else {
            None
        };
        self.backend.matrix(weight, scale)
    }

    /// The table `{stem}.weight` with `{stem}.scale`.
    pub fn table(&mut self, stem: &str) -> Result<B::Table, Error> {
        let rows = self.checkpoint.tensor(&format!("{stem}.weight"))?;
        let scales = self.checkpoint.tensor(&format!("{stem}.scale"))?;
        self.backend.table(rows, scales)
    }

    /// The unquantised matrix `name`.
    fn plain_matrix(&mut self, name: &str) -> Result<B::Matrix, Error> {
        let weight = self.checkpoint.tensor(name)?;
        self.backend.matrix(weight, None)
    }

    /// A small tensor as f32.
    pub fn vector(&self, name: &str) -> Result<Vec<f32>, Error> {
        let tensor = self.checkpoint.tensor(name)?;
        tensor.to_f32().ok_or_else(|| wrong_type(&tensor))
    }

    fn optional_vector(&self, name: &str) -> Result<Vec<f32>, Error> {
        if self.checkpoint.has(name) {
            self.vector(name)
        } else {
            Ok(Vec::new())
        }
    }

    /// `{stem}_fn`, `{stem}_base`, `{stem}_scale`.
    pub fn mix(&mut self, stem: &str) -> Result<MixWeights<B::Matrix>, Error> {
        Ok(MixWeights {
            function: self.plain_matrix(&format!("{stem}_fn"))?,
            base: self.vector(&format!("{stem}_base"))?,
            scale: self.vector(&format!("{stem}_scale"))?,
        })
    }

    /// Projections of one layer's attention.
    pub fn attention(&mut self, stem: &str) -> Result<AttentionWeights<B::Matrix>, Error> {
        Ok(AttentionWeights {
            wq_a: self.matrix(&format!("{stem}.wq_a"))?,
            q_norm: self.vector(&format!("{stem}.q_norm.weight"))?,
            wq_b: self.matrix(&format!("{stem}.wq_b"))?,
            wkv: self.matrix(&format!("{stem}.wkv"))?,
            kv_norm: self.vector(&format!("{stem}.kv_norm.weight"))?,
            sink: self.vector(&format!("{stem}.attn_sink"))?,
            wo_a: self.matrix(&format!("{stem}.wo_a"))?,
            wo_b: self.matrix(&format!("{stem}.wo_b"))?,
        })
    }

    /// A compressor, with or without gate and bias.
    pub fn compressor(&mut self, stem: &str) -> Result<CompressorWeights<B::Matrix>, Error> {
        let gated = self.checkpoint.has(&format!("{stem}.wgate.weight"));
        Ok(CompressorWeights {
            wkv: self.matrix(&format!("{stem}.wkv"))?,
            wgate: if gated {
                Some(self.matrix(&format!("{stem}.wgate"))?)
            } else {
                None
            },
            bias: self.optional_vector(&format!("{stem}.ape"))?,
            norm: self.vector(&format!("{stem}.norm.weight"))?,
        })
    }

    /// Query side of an indexer.
    pub fn indexer(&mut self, stem: &str) -> Result<IndexerWeights<B::Matrix>, Error> {
        Ok(IndexerWeights {
            wq_b: self.matrix(&format!("{stem}.wq_b"))?,
            weights: self.matrix(&format!("{stem}.weights_proj"))?,
        })
    }

    fn expert(&mut self, stem: &str) -> Result<ExpertWeights<B::Matrix>, Error> {
        Ok(ExpertWeights {
            w1: self.matrix(&format!("{stem}.w1"))?,
            w2: self.matrix(&format!("{stem}.w2"))?,
            w3: self.matrix(&format!("{stem}.w3"))?,
        })
    }

    /// Feed-forward sub-layer of layer `i`; `hashed` takes experts from the table of token ids.
    pub fn feed_forward(
        &mut self,
        i: usize,
        config: &ModelConfig,
        hashed: bool,
    ) -> Result<FeedForward<B::Matrix>, Error> {
        let stem = format!("layers.{i}.ffn");
        let choice = if hashed {
            let table = self.token_table(&format!("{stem}.gate.tid2eid"), config.experts)?;
            RouterChoice::Table(table)
        } else {
            RouterChoice::Scores {
                bias: self.vector(&format!("{stem}.gate.bias"))?,
                image_bias: self.optional_vector(&format!("{stem}.gate.bias_vl"))?,
            }
        };
        Ok(FeedForward {
            mix: self.mix(&format!("layers.{i}.hc_ffn"))?,
            norm: self.vector(&format!("layers.{i}.ffn_norm.weight"))?,
            moe: MoeWeights {
                gate: self.matrix(&format!("{stem}.gate"))?,
                choice,
                experts: (0..config.experts)
                    .map(|e| self.expert(&format!("{stem}.experts.{e}")))
                    .collect::<Result<_, _>>()?,
                shared: self.expert(&format!("{stem}.shared_experts"))?,
            },
        })
    }

    fn token_table(&self, name: &str, experts: usize) -> Result<Vec<u32>, Error> {
        let tensor = self.checkpoint.tensor(name)?;
        let ids = tensor.to_i64().ok_or_else(|| wrong_type(&tensor))?;
        ids.into_iter()
            .map(|id| match u32::try_from(id) {
                Ok(expert) if (expert as usize) < experts => Ok(expert),
                _ => Err(Error::new(
                    Code::BadFormat,
                    name,
                    format!("{name} names expert {id}, expected 0..{experts}"),
                )),
            })
            .collect()
    }
}

fn wrong_type(tensor: &Tensor) -> Error {
    let message = format!(
        "{} is stored as {}, which cannot be read here",
        tensor.name,
        tensor.dtype.name()
    );
    Error::new(Code::BadFormat, tensor.name.clone(), message)
}

/// `base^(-2i/R)`, stretched by YaRN where the configuration says so (`model-v4.md` section 6).
pub fn frequencies(config: &ModelConfig) -> Frequencies {
    let half = config.rope_dim / 2;
    let of = |base: f32| -> Vec<f32> {
        (0..half)
            .map(|i| 1.0 / base.powf(2.0 * i as f32 / config.rope_dim as f32))
            .collect()
    };
    let mut compressed = of(config.compress_theta);
    if let Some(yarn) = &config.yarn {
        let dim = config.rope_dim as f64;
        let turn = |turns: f32| {
            let original = yarn.original as f64;
            dim * (original / (f64::from(turns) * 2.0 * std::f64::consts::PI)).ln()
                / (2.0 * f64::from(config.compress_theta).ln())
        };
        let low = turn(yarn.beta_fast).floor().max(0.0) as f32;
        let high = turn(yarn.beta_slow).ceil().min(dim - 1.0) as f32;
        for (i, f) in compressed.iter_mut().enumerate() {
            let ramp = ((i as f32 - low) / (high - low).max(1e-3)).clamp(0.0, 1.0);
            *f = *f / yarn.factor * ramp + *f * (1.0 - ramp);
        }
    }
    Frequencies {
        plain: of(config.rope_theta),
        compressed,
    }
}

/// Numbers of norms and hyper-connections.
pub fn mix_spec(config: &ModelConfig) -> MixSpec {
    MixSpec {
        streams: config.streams,
        dim: config.dim,
        iterations: config.sinkhorn_iters,
        eps: config.hc_eps,
        norm_eps: config.norm_eps,
    }
}

/// Numbers of the feed-forward part.
pub fn moe_spec(config: &ModelConfig, direct: bool) -> MoeSpec {
    MoeSpec {
        topk: config.topk_experts,
        scale: config.route_scale,
        limit: config.swiglu_limit,
        direct,
    }
}

/// What the engine must know of a model with this layout.
pub fn limits(config: &ModelConfig, layout: &StateLayout, history: usize) -> ModelLimits {
    ModelLimits {
        vocab: config.vocab as u32,
        max_context: config.max_context as u32,
        block_tokens: layout.block_tokens as u32,
        blocks: layout.blocks as u32,
        slots: layout.slots as u32,
        max_rollback: layout.rollback as u32,
        history: history as u32,
        truncation_keep: 0,
        replay_window: 0,
        eos: vec![config.eos],
    }
}

/// Checks a step against the limits and lays its rows out.
pub fn batch_of(step: &[StepSequence<'_>], limits: &ModelLimits) -> Result<Batch, Error> {
    let broken = |what: String| Err(Error::new(Code::Internal, "", what));
    let mut batch = Batch::default();
    for sequence in step {
        let (start, len) = (sequence.position as usize, sequence.tokens.len());
        let end = start + len;
        if len == 0 || end > limits.max_context as usize {
            return broken(format!(
                "a step has rows {start}..{end} of a context of {}",
                limits.max_context
            ));
        }
        if sequence.blocks.len() * (limits.block_tokens as usize) < end {
            return broken(format!(
                "{} blocks do not cover {end} positions",
                sequence.blocks.len()
            ));
        }
        if sequence
            .blocks
            .iter()
            .any(|b| b.0 == 0 || b.0 >= limits.blocks)
            || sequence.slot.0 == 0
            || sequence.slot.0 >= limits.slots
        {
            return broken("a step names a block or slot outside the pools".into());
        }
        if sequence
            .tokens
            .iter()
            .chain(sequence.history)
            .any(|t| *t >= limits.vocab)
        {
            return broken("a step has an id outside the vocabulary".into());
        }
        if !sequence.image.is_empty() && sequence.image.len() != len {
            return broken(format!(
                "{} image marks for {len} rows",
                sequence.image.len()
            ));
        }
        if sequence.history.len() < start.min(limits.history as usize) {
            return broken(format!(
                "{} ids of history at position {start}",
                sequence.history.len()
            ));
        }
        let first = batch.len();
        batch.tokens.extend_from_slice(sequence.tokens);
        batch.positions.extend(start..end);
        if sequence.image.is_empty() {
            batch.image.resize(first + len, false);
        } else {
            batch.image.extend_from_slice(sequence.image);
        }
        batch.spans.push(Span {
            rows: first..first + len,
            position: start,
            slot: sequence.slot,
            blocks: sequence.blocks.to_vec(),
        });
    }
    Ok(batch)
}

/// Rows of the batch that need logits, in order.
pub fn logit_rows(step: &[StepSequence<'_>], batch: &Batch) -> Vec<usize> {
    use super::LogitRows;
    let rows = step
        .iter()
        .zip(&batch.spans)
        .flat_map(|(sequence, span)| match sequence.logits {
            LogitRows::None => span.rows.end..span.rows.end,
            LogitRows::Last => span.rows.end - 1..span.rows.end,
            LogitRows::All => span.rows.clone(),
        });
    rows.collect()
}

/// Where a probe looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Point {
    /// Input of attention, after its norm: `[S, D]`.
    AttentionIn,
    /// Output of attention: `[S, D]`.
    AttentionOut,
    /// Input of the feed-forward part, after its norm: `[S, D]`.
    FeedForwardIn,
    /// Output of the feed-forward part: `[S, D]`.
    FeedForwardOut,
    /// Streams after a layer: `[S, N·D]`.
    LayerOut,
    /// Streams in front of the n-gram memory: `[S, N·D]`.
    EngramIn,
    /// Streams after it: `[S, N·D]`.
    EngramOut,
    /// Input of the head: `[wanted rows, D]`.
    Final,
}

/// Looks at a forward pass, and may change what it sees: tests of single operations.
pub trait Probe {
    /// Values at a point; what is left in `values` is what the pass goes on with.
    fn values(&mut self, point: Point, layer: usize, values: &mut Vec<f32>);
    /// Compressed rows that index source `layer` selected, row by row.
    fn selection(&mut self, _layer: usize, _rows: Vec<Vec<u32>>) {}
    /// Candidate blocks that `layer` published, row by row.
    fn candidates(&mut self, _layer: usize, _blocks: Vec<Vec<u32>>) {}
    /// Experts in the order chosen, with weights, row by row.
    fn routing(&mut self, _layer: usize, _experts: Vec<Vec<(u32, f32)>>) {}
    /// Table rows that the n-gram memory of `layer` reads.
    fn engram_rows(&mut self, _layer: usize, _rows: &[u32]) {}
}

/// Shows a tensor to the probe, if there is one, and takes back what it left.
pub fn probe<B: Backend>(
    backend: &B,
    probe: &mut Option<&mut dyn Probe>,
    point: Point,
    layer: usize,
    tensor: &mut B::Tensor,
) {
    if let Some(probe) = probe {
        let mut values = backend.read(tensor);
        probe.values(point, layer, &mut values);
        backend.write(tensor, &values);
    }
}

/// Feed-forward sub-layer of one layer, the same in both versions.
pub struct FeedForward<M> {
    /// Its hyper-connection.
    pub mix: MixWeights<M>,
    /// In front of the router and the experts.
    pub norm: Vec<f32>,
    /// Router and experts.
    pub moe: MoeWeights<M>,
}

/// Which weights collapse the streams in front of a sub-layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Collapse {
    /// Those it computes itself (V4).
    Own,
    /// Those of the sub-layer before it (V4.1); its own are carried on.
    Carried,
}

impl<M> FeedForward<M> {
    /// Mix, collapse, router, experts, expand: from `h` to `h` of the workspace.
    #[expect(
        clippy::too_many_arguments,
        reason = "backend, buffers, rules and rows of one sub-layer"
    )]
    pub fn run<B: Backend<Matrix = M>>(
        &self,
        layer: usize,
        collapse: Collapse,
        mixes: &MixSpec,
        spec: &MoeSpec,
        batch: &Batch,
        b: &mut B,
        w: &mut Workspace<B>,
        watch: &mut Option<&mut dyn Probe>,
    ) {
        b.mix(&self.mix, mixes, &w.h, &mut w.mix);
        let with = match collapse {
            Collapse::Own => &w.mix,
            Collapse::Carried => &w.other,
        };
        b.collapse(&w.h, Some(with), &self.norm, mixes, &mut w.x);
        probe(b, watch, Point::FeedForwardIn, layer, &mut w.x);
        b.route(&self.moe, spec, &w.x, batch, &mut w.routing);
        if let Some(watch) = watch {
            watch.routing(layer, b.read_routing(&w.routing));
        }
        b.experts(&self.moe, spec, &w.x, &w.routing, &mut w.y);
        probe(b, watch, Point::FeedForwardOut, layer, &mut w.y);
        b.expand(&w.y, &w.mix, mixes, &mut w.h);
        if collapse == Collapse::Carried {
            std::mem::swap(&mut w.mix, &mut w.other);
        }
    }
}

/// Activations of a step; the buffers are kept between steps.
pub struct Workspace<B: Backend> {
    /// Streams, `[S, N·D]`.
    pub h: B::Tensor,
    /// Sub-layer input, `[S, D]`.
    pub x: B::Tensor,
    /// Sub-layer output, `[S, D]`.
    pub y: B::Tensor,
    /// Attention output per head, `[S, H·E]`.
    pub o: B::Tensor,
    /// Latents or keys of finished groups.
    pub latents: B::Tensor,
    /// Index keys of finished groups.
    pub keys: B::Tensor,
    /// Streams of the rows that need logits.
    pub last: B::Tensor,
    /// Attention projections.
    pub projected: crate::engine::backend::Projected<B::Tensor>,
    /// The sub-layer's own mix.
    pub mix: B::Mix,
    /// The mix of the sub-layer before (V4.1), or of the rows that need logits.
    pub other: B::Mix,
    /// Mix of the rows that need logits.
    pub last_mix: B::Mix,
    /// Selected compressed rows.
    pub selection: B::Selection,
    /// Candidate blocks.
    pub candidates: B::Candidates,
    /// Chosen experts.
    pub routing: B::Routing,
}

impl<B: Backend> Default for Workspace<B>
where
    B::Tensor: Default,
{
    fn default() -> Self {
        Self {
            h: B::Tensor::default(),
            x: B::Tensor::default(),
            y: B::Tensor::default(),
            o: B::Tensor::default(),
            latents: B::Tensor::default(),
            keys: B::Tensor::default(),
            last: B::Tensor::default(),
            projected: crate::engine::backend::Projected {
                qr: B::Tensor::default(),
                q: B::Tensor::default(),
                kv: B::Tensor::default(),
            },
            mix: B::Mix::default(),
            other: B::Mix::default(),
            last_mix: B::Mix::default(),
            selection: B::Selection::default(),
            candidates: B::Candidates::default(),
            routing: B::Routing::default(),
        }
    }
}

/// Bytes of a kept value on a host backend.
pub fn value_bytes(numerics: Numerics) -> usize {
    if numerics.bf16 { 2 } else { 4 }
}
