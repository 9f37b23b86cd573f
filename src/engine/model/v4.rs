//! DeepSeek V4, text backbone (`model-v4.md`).
//!
//! Each sub-layer collapses the streams with weights it computes itself. Every layer with compressed
//! rows makes its own: ratio 4 with overlap and an indexer, larger ratios without either.

use super::config::ModelConfig;
use super::parts::{
    Collapse, FeedForward, Point, Pools, Probe, ROLLBACK, Source, Workspace, batch_of, frequencies,
    limits, logit_rows, mix_spec, moe_spec, probe,
};
use super::{Model, ModelLimits, StepSequence};
use crate::engine::backend::batch::Batch;
use crate::engine::backend::{
    AttentionSpec, AttentionWeights, Backend, Compressed, CompressorWeights, Frequencies,
    IndexerWeights, Level, MixSpec, MixWeights, MoeSpec, Pooling, RowFormat,
};
use crate::engine::error::Error;
use crate::engine::kv::SlotId;
use crate::engine::kv::layout::{GroupId, RingId, StateLayout};
use crate::engine::weights::Checkpoint;

/// Tokens a block covers unless the caller says otherwise.
const BLOCK_TOKENS: usize = 256;
/// The ratio whose groups overlap and are selected by an indexer.
const INDEXED: usize = 4;

/// Compressed rows of a layer.
struct CompressedRows<M> {
    compressor: CompressorWeights<M>,
    pooling: Pooling,
    rows: GroupId,
    index: Option<Index<M>>,
}

/// The indexer of a ratio-4 layer, with a compressor of its own for the keys.
struct Index<M> {
    compressor: CompressorWeights<M>,
    pooling: Pooling,
    keys: GroupId,
    weights: IndexerWeights<M>,
}

struct Layer<M> {
    attention_mix: MixWeights<M>,
    attention_norm: Vec<f32>,
    attention: AttentionWeights<M>,
    feed_forward: FeedForward<M>,
    ring: RingId,
    ratio: usize,
    compressed: Option<CompressedRows<M>>,
}

/// A loaded V4 model.
pub struct V4<B: Backend> {
    backend: B,
    state: B::State,
    limits: ModelLimits,
    frequencies: Frequencies,
    attention: AttentionSpec,
    mixes: MixSpec,
    moe: MoeSpec,
    embed: B::Matrix,
    layers: Vec<Layer<B::Matrix>>,
    head_mix: MixWeights<B::Matrix>,
    norm: Vec<f32>,
    head: B::Matrix,
    workspace: Workspace<B>,
}

/// State of a V4 model: a window ring a layer; with compressed rows a raw ring and a group; for ratio 4
/// the same once more for index keys.
pub fn layout(config: &ModelConfig, pools: Pools) -> StateLayout {
    let block_tokens = if pools.block_tokens == 0 {
        BLOCK_TOKENS
    } else {
        pools.block_tokens
    };
    let mut layout = StateLayout::new(config.window, ROLLBACK, block_tokens);
    (layout.blocks, layout.slots) = (pools.blocks, pools.slots);
    for &ratio in &config.ratios {
        layout.window_ring(config.head_dim);
        if ratio == INDEXED {
            // The open group and the one before it; every token has both halves.
            layout.raw_ring(2 * ratio, 2 * config.head_dim);
            layout.group(ratio, config.head_dim);
            layout.raw_ring(2 * ratio, 2 * config.index_dim);
            layout.group(ratio, config.index_dim);
        } else if ratio > 0 {
            layout.raw_ring(ratio, config.head_dim);
            layout.group(ratio, config.head_dim);
        }
    }
    layout
}

impl<B: Backend> V4<B> {
    /// Takes the weights of `checkpoint` over.
    pub fn new(
        mut backend: B,
        config: &ModelConfig,
        checkpoint: &Checkpoint,
        pools: Pools,
    ) -> Result<Self, Error> {
        let layout = layout(config, pools);
        let state = backend.state(&layout)?;
        let mut source = Source {
            backend: &mut backend,
            checkpoint,
        };
        let embed = source.matrix("embed")?;
        let head = source.matrix("head")?;
        let norm = source.vector("norm.weight")?;
        let head_mix = source.mix("hc_head")?;
        let mut layers = Vec::with_capacity(config.layers);
        // Rings and groups are numbered in the order in which `layout` adds them.
        let (mut rings, mut groups) = ((0..).map(RingId), (0..).map(GroupId));
        let mut ring = || rings.next().expect("the numbers do not end");
        let mut group = || groups.next().expect("the numbers do not end");
        for (i, &ratio) in config.ratios.iter().enumerate() {
            let window = ring();
            let compressed = if ratio == 0 {
                None
            } else {
                let overlap = ratio == INDEXED;
                let stem = format!("layers.{i}.attn.compressor");
                let compressor = source.compressor(&stem)?;
                let pooling = Pooling {
                    ratio,
                    width: config.head_dim,
                    overlap,
                    ring: Some(ring()),
                };
                let rows = group();
                let index = if overlap {
                    let stem = format!("layers.{i}.attn.indexer");
                    let pooling = Pooling {
                        ratio,
                        width: config.index_dim,
                        overlap,
                        ring: Some(ring()),
                    };
                    Some(Index {
                        compressor: source.compressor(&format!("{stem}.compressor"))?,
                        pooling,
                        keys: group(),
                        weights: source.indexer(&stem)?,
                    })
                } else {
                    None
                };
                Some(CompressedRows {
                    compressor,
                    pooling,
                    rows,
                    index,
                })
            };
            layers.push(Layer {
                attention_mix: source.mix(&format!("layers.{i}.hc_attn"))?,
                attention_norm: source.vector(&format!("layers.{i}.attn_norm.weight"))?,
                attention: source.attention(&format!("layers.{i}.attn"))?,
                feed_forward: source.feed_forward(i, config, i < config.hash_layers)?,
                ring: window,
                ratio,
                compressed,
            });
        }
        Ok(Self {
            state,
            limits: limits(config, &layout, 0),
            frequencies: frequencies(config),
            attention: AttentionSpec {
                heads: config.heads,
                head_dim: config.head_dim,
                rope_dim: config.rope_dim,
                window: config.window,
                groups: config.o_groups,
                query_norm: true,
                quantised_output: false,
                row_format: RowFormat::Fp8Nope,
                index_heads: config.index_heads,
                index_dim: config.index_dim,
                index_topk: config.index_topk,
                index_scaled: true,
                index_format: RowFormat::Index { hadamard: true },
            },
            mixes: mix_spec(config),
            moe: moe_spec(config, false),
            embed,
            layers,
            head_mix,
            norm,
            head,
            workspace: Workspace::default(),
            backend,
        })
    }

    /// [`Model::forward`], watched by a probe.
    pub fn forward_probed(
        &mut self,
        step: &[StepSequence<'_>],
        logits: &mut Vec<f32>,
        mut watch: Option<&mut dyn Probe>,
    ) -> Result<(), Error> {
        let batch = batch_of(step, &self.limits)?;
        self.backend
            .begin(&batch, &self.frequencies, &mut self.state)?;
        self.backend.embed(
            &self.embed,
            &batch,
            self.mixes.streams,
            &mut self.workspace.h,
        );

        for i in 0..self.layers.len() {
            self.attention_sublayer(i, &batch, &mut watch);
            self.feed_forward_sublayer(i, &batch, &mut watch);
            probe(
                &self.backend,
                &mut watch,
                Point::LayerOut,
                i,
                &mut self.workspace.h,
            );
        }

        logits.clear();
        let rows = logit_rows(step, &batch);
        if !rows.is_empty() {
            let (b, w) = (&mut self.backend, &mut self.workspace);
            b.take_rows(&w.h, &rows, &mut w.last);
            b.mix_head(&self.head_mix, &self.mixes, &w.last, &mut w.last_mix);
            b.collapse(
                &w.last,
                Some(&w.last_mix),
                &self.norm,
                &self.mixes,
                &mut w.x,
            );
            probe(b, &mut watch, Point::Final, self.layers.len(), &mut w.x);
            b.head(&self.head, &w.x, logits);
        }
        Ok(())
    }

    fn attention_sublayer(&mut self, i: usize, batch: &Batch, watch: &mut Option<&mut dyn Probe>) {
        let (layer, b, w) = (&self.layers[i], &mut self.backend, &mut self.workspace);
        let eps = self.mixes.norm_eps;
        b.mix(&layer.attention_mix, &self.mixes, &w.h, &mut w.mix);
        b.collapse(
            &w.h,
            Some(&w.mix),
            &layer.attention_norm,
            &self.mixes,
            &mut w.x,
        );
        probe(b, watch, Point::AttentionIn, i, &mut w.x);

        b.project(
            &layer.attention,
            &self.attention,
            layer.ratio > 0,
            eps,
            &w.x,
            &mut w.projected,
        );
        let mut rows = Compressed::None;
        if let Some(compressed) = &layer.compressed {
            let format = self.attention.row_format;
            b.compress(
                &compressed.compressor,
                &compressed.pooling,
                eps,
                &w.x,
                batch,
                &mut self.state,
                &mut w.latents,
            );
            b.append(
                &w.latents,
                layer.ratio,
                format,
                batch,
                &mut self.state,
                compressed.rows,
            );
            rows = Compressed::All(compressed.rows);
            if let Some(index) = &compressed.index {
                let format = self.attention.index_format;
                b.compress(
                    &index.compressor,
                    &index.pooling,
                    eps,
                    &w.x,
                    batch,
                    &mut self.state,
                    &mut w.keys,
                );
                b.append(
                    &w.keys,
                    layer.ratio,
                    format,
                    batch,
                    &mut self.state,
                    index.keys,
                );
                b.select(
                    &index.weights,
                    &self.attention,
                    Level::All,
                    layer.ratio,
                    &w.x,
                    &w.projected.qr,
                    batch,
                    &self.state,
                    index.keys,
                    &mut w.candidates,
                    &mut w.selection,
                );
                if let Some(watch) = watch {
                    watch.selection(i, b.read_selection(&w.selection));
                }
                rows = Compressed::Selected(compressed.rows, &w.selection);
            }
        }
        b.attend(
            &layer.attention,
            &self.attention,
            &w.projected,
            layer.ring,
            rows,
            layer.ratio,
            batch,
            &mut self.state,
            &mut w.o,
        );
        b.output(&layer.attention, &self.attention, &w.o, &mut w.y);
        probe(b, watch, Point::AttentionOut, i, &mut w.y);
        b.expand(&w.y, &w.mix, &self.mixes, &mut w.h);
    }

    fn feed_forward_sublayer(
        &mut self,
        i: usize,
        batch: &Batch,
        watch: &mut Option<&mut dyn Probe>,
    ) {
        let (b, w) = (&mut self.backend, &mut self.workspace);
        let layer = &self.layers[i].feed_forward;
        layer.run(i, Collapse::Own, &self.mixes, &self.moe, batch, b, w, watch);
    }
}

impl<B: Backend> Model for V4<B> {
    fn limits(&self) -> &ModelLimits {
        &self.limits
    }

    fn clear_slot(&mut self, slot: SlotId) {
        self.backend.clear(&mut self.state, slot);
    }

    fn save(&mut self, slot: SlotId) -> Vec<u8> {
        self.backend.save(&self.state, slot)
    }

    fn restore(&mut self, slot: SlotId, saved: &[u8]) -> Result<(), Error> {
        self.backend.restore(&mut self.state, slot, saved)
    }

    fn forward(&mut self, step: &[StepSequence<'_>], logits: &mut Vec<f32>) -> Result<(), Error> {
        self.forward_probed(step, logits, None)
    }
}
