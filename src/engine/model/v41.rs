//! DeepSeek V4.1, text backbone (`model-v41.md`).
//!
//! Four streams run through the layers; each sub-layer collapses them with the weights that the
//! sub-layer before it computed. A few source layers make compressed rows and select among them; the
//! layers after a source read its rows with its selection.

use super::config::ModelConfig;
use super::engram::{DEAD, EngramHash};
use super::parts::{
    Collapse, FeedForward, Point, Pools, Probe, ROLLBACK, Source, Workspace, batch_of, frequencies,
    limits, logit_rows, mix_spec, moe_spec, probe,
};
use super::{Model, ModelLimits, StepSequence};
use crate::engine::backend::batch::Batch;
use crate::engine::backend::{
    AttentionSpec, AttentionWeights, Backend, Compressed, CompressorWeights, EngramWeights,
    Frequencies, IndexKeyWeights, IndexerWeights, Level, MixSpec, MixWeights, MoeSpec, Pooling,
    RowFormat,
};
use crate::engine::error::Error;
use crate::engine::kv::SlotId;
use crate::engine::kv::layout::{GroupId, RingId, StateLayout};
use crate::engine::weights::Checkpoint;

/// Tokens a block covers unless the caller says otherwise.
const BLOCK_TOKENS: usize = 128;

/// What a KV source adds to the shared rows and keys.
struct KvSource<M> {
    compressor: CompressorWeights<M>,
    pooling: Pooling,
    keys: IndexKeyWeights<M>,
}

struct Indexer<M> {
    weights: IndexerWeights<M>,
    level: Level,
}

struct Layer<M, T> {
    attention_mix: MixWeights<M>,
    attention_norm: Vec<f32>,
    attention: AttentionWeights<M>,
    feed_forward: FeedForward<M>,
    /// Which engram layer this is, and its weights.
    engram: Option<(usize, EngramWeights<M, T>)>,
    ring: RingId,
    ratio: usize,
    /// Rows and keys this layer reads; `None` without compressed rows.
    shared: Option<Shared>,
    source: Option<KvSource<M>>,
    indexer: Option<Indexer<M>>,
}

/// Pools of a KV source.
#[derive(Clone, Copy)]
struct Shared {
    rows: GroupId,
    keys: GroupId,
}

/// A loaded V4.1 model.
pub struct V41<B: Backend> {
    backend: B,
    state: B::State,
    limits: ModelLimits,
    frequencies: Frequencies,
    attention: AttentionSpec,
    mixes: MixSpec,
    moe: MoeSpec,
    row_format: RowFormat,
    embed: B::Matrix,
    layers: Vec<Layer<B::Matrix, B::Table>>,
    norm: Vec<f32>,
    head: B::Matrix,
    hash: Option<EngramHash>,
    workspace: Workspace<B>,
}

/// State of a V4.1 model: a window ring a layer, a raw ring for each source of ratio 2, and rows and keys
/// of each source.
pub fn layout(config: &ModelConfig, pools: Pools) -> StateLayout {
    let block_tokens = if pools.block_tokens == 0 {
        BLOCK_TOKENS
    } else {
        pools.block_tokens
    };
    let mut layout = StateLayout::new(config.window, ROLLBACK, block_tokens);
    (layout.blocks, layout.slots) = (pools.blocks, pools.slots);
    for layer in 0..config.layers {
        layout.window_ring(config.head_dim);
        if config.kv_sources.contains(&layer) {
            let ratio = config.ratios[layer];
            if ratio > 1 {
                layout.raw_ring(ratio, config.head_dim);
            }
            layout.group(ratio, config.head_dim);
            layout.group(ratio, config.index_dim);
        }
    }
    layout
}

impl<B: Backend> V41<B> {
    /// Takes the weights of `checkpoint` over; `token_map` gives each token's compressed id.
    pub fn new(
        mut backend: B,
        config: &ModelConfig,
        checkpoint: &Checkpoint,
        pools: Pools,
        token_map: &[u32],
    ) -> Result<Self, Error> {
        let layout = layout(config, pools);
        let state = backend.state(&layout)?;
        let hash = config
            .engram
            .as_ref()
            .map(|engram| EngramHash::new(engram, token_map))
            .transpose()?;
        let mut source = Source {
            backend: &mut backend,
            checkpoint,
        };
        let embed = source.matrix("embed")?;
        let head = source.matrix("head")?;
        let norm = source.vector("norm.weight")?;
        let mut layers = Vec::with_capacity(config.layers);
        // Rings and groups are numbered in the order in which `layout` adds them.
        let (mut ring, mut group) = (0, 0);
        let next = |count: &mut usize| {
            *count += 1;
            *count - 1
        };
        let mut shared = None;
        for i in 0..config.layers {
            let window = RingId(next(&mut ring));
            let ratio = config.ratios[i];
            let mut kv_source = None;
            if config.kv_sources.contains(&i) {
                let raw = (ratio > 1).then(|| RingId(next(&mut ring)));
                shared = Some(Shared {
                    rows: GroupId(next(&mut group)),
                    keys: GroupId(next(&mut group)),
                });
                kv_source = Some(KvSource {
                    compressor: source.compressor(&format!("layers.{i}.attn.compressor"))?,
                    pooling: Pooling {
                        ratio,
                        width: config.head_dim,
                        overlap: false,
                        ring: raw,
                    },
                    keys: IndexKeyWeights {
                        wk: source.matrix(&format!("layers.{i}.attn.indexer.wk"))?,
                        norm: source.vector(&format!("layers.{i}.attn.indexer.k_norm.weight"))?,
                    },
                });
            }
            let mut indexer = None;
            if config.index_sources.contains(&i) {
                indexer = Some(Indexer {
                    weights: source.indexer(&format!("layers.{i}.attn.indexer"))?,
                    level: level(config, i),
                });
            }
            let engram = match &config.engram {
                Some(engram) => match engram.layers.iter().position(|l| *l == i) {
                    Some(which) => Some((which, engram_weights(&mut source, i)?)),
                    None => None,
                },
                None => None,
            };
            layers.push(Layer {
                attention_mix: source.mix(&format!("layers.{i}.hc_attn"))?,
                attention_norm: source.vector(&format!("layers.{i}.attn_norm.weight"))?,
                attention: source.attention(&format!("layers.{i}.attn"))?,
                feed_forward: source.feed_forward(i, config, false)?,
                engram,
                ring: window,
                ratio,
                shared: if ratio > 0 { shared } else { None },
                source: kv_source,
                indexer,
            });
        }
        let history = config.engram.as_ref().map_or(0, |engram| engram.ngram - 1);
        Ok(Self {
            state,
            limits: limits(config, &layout, history),
            frequencies: frequencies(config),
            attention: AttentionSpec {
                heads: config.heads,
                head_dim: config.head_dim,
                rope_dim: config.rope_dim,
                window: config.window,
                groups: config.o_groups,
                query_norm: false,
                quantised_output: true,
                row_format: RowFormat::Fp8,
                index_heads: config.index_heads,
                index_dim: config.index_dim,
                index_topk: config.index_topk,
                index_scaled: false,
                index_format: RowFormat::Index { hadamard: false },
            },
            mixes: mix_spec(config),
            moe: moe_spec(config, true),
            row_format: if config.fp4_rows {
                RowFormat::Fp4
            } else {
                RowFormat::Fp8
            },
            embed,
            layers,
            norm,
            head,
            hash,
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
        let compressed_ids = self.compressed_ids(step);
        self.backend.embed(
            &self.embed,
            &batch,
            self.mixes.streams,
            &mut self.workspace.h,
        );

        for i in 0..self.layers.len() {
            if let Some((which, _)) = self.layers[i].engram {
                let rows = self.engram_rows(which, &compressed_ids, step);
                self.engram(i, &rows, &batch, &mut watch);
            }
            self.attention_sublayer(i, &batch, &mut watch);
            self.feed_forward_sublayer(i, &batch, &mut watch);
            let w = &mut self.workspace;
            probe(&self.backend, &mut watch, Point::LayerOut, i, &mut w.h);
        }

        logits.clear();
        let rows = logit_rows(step, &batch);
        if !rows.is_empty() {
            let w = &mut self.workspace;
            self.backend.take_rows(&w.h, &rows, &mut w.last);
            self.backend.take_mix(&w.other, &rows, &mut w.last_mix);
            self.backend.collapse(
                &w.last,
                Some(&w.last_mix),
                &self.norm,
                &self.mixes,
                &mut w.x,
            );
            probe(
                &self.backend,
                &mut watch,
                Point::Final,
                self.layers.len(),
                &mut w.x,
            );
            self.backend.head(&self.head, &w.x, logits);
        }
        Ok(())
    }

    /// h ← collapse with the carried weights → attention → expand; the own weights are carried on.
    fn attention_sublayer(&mut self, i: usize, batch: &Batch, watch: &mut Option<&mut dyn Probe>) {
        let (layer, b, w) = (&self.layers[i], &mut self.backend, &mut self.workspace);
        b.mix(&layer.attention_mix, &self.mixes, &w.h, &mut w.mix);
        // The first sub-layer reads stream 0 alone.
        let carried = (i > 0).then_some(&w.other);
        b.collapse(&w.h, carried, &layer.attention_norm, &self.mixes, &mut w.x);
        probe(b, watch, Point::AttentionIn, i, &mut w.x);

        let compressed = layer.ratio > 0;
        b.project(
            &layer.attention,
            &self.attention,
            compressed,
            self.mixes.norm_eps,
            &w.x,
            &mut w.projected,
        );
        if let (Some(shared), Some(source)) = (layer.shared, &layer.source) {
            let eps = self.mixes.norm_eps;
            let ratio = layer.ratio;
            b.compress(
                &source.compressor,
                &source.pooling,
                eps,
                &w.x,
                batch,
                &mut self.state,
                &mut w.latents,
            );
            // Keys come from the latent before rotation.
            b.index_keys(&source.keys, eps, &w.latents, &mut w.keys);
            b.append(
                &w.keys,
                ratio,
                self.attention.index_format,
                batch,
                &mut self.state,
                shared.keys,
            );
            b.append(
                &w.latents,
                ratio,
                self.row_format,
                batch,
                &mut self.state,
                shared.rows,
            );
        }
        if let (Some(shared), Some(indexer)) = (layer.shared, &layer.indexer) {
            b.select(
                &indexer.weights,
                &self.attention,
                indexer.level,
                layer.ratio,
                &w.x,
                &w.projected.qr,
                batch,
                &self.state,
                shared.keys,
                &mut w.candidates,
                &mut w.selection,
            );
            if let Some(watch) = watch {
                watch.selection(i, b.read_selection(&w.selection));
                if matches!(indexer.level, Level::Publish { .. }) {
                    watch.candidates(i, b.read_candidates(&w.candidates));
                }
            }
        }
        let rows = layer.shared.map_or(Compressed::None, |s| {
            Compressed::Selected(s.rows, &w.selection)
        });
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
        std::mem::swap(&mut w.mix, &mut w.other);
    }

    fn feed_forward_sublayer(
        &mut self,
        i: usize,
        batch: &Batch,
        watch: &mut Option<&mut dyn Probe>,
    ) {
        let (b, w) = (&mut self.backend, &mut self.workspace);
        let layer = &self.layers[i].feed_forward;
        layer.run(
            i,
            Collapse::Carried,
            &self.mixes,
            &self.moe,
            batch,
            b,
            w,
            watch,
        );
    }

    fn engram(
        &mut self,
        i: usize,
        rows: &[u32],
        batch: &Batch,
        watch: &mut Option<&mut dyn Probe>,
    ) {
        let (b, w) = (&mut self.backend, &mut self.workspace);
        let Some((_, weights)) = &self.layers[i].engram else {
            return;
        };
        probe(b, watch, Point::EngramIn, i, &mut w.h);
        if let Some(watch) = watch {
            watch.engram_rows(i, rows);
        }
        b.engram(weights, &self.mixes, rows, batch, &mut w.h);
        probe(b, watch, Point::EngramOut, i, &mut w.h);
    }

    /// Compressed ids of each sequence: as much history as n-grams look back to, then its rows.
    fn compressed_ids(&self, step: &[StepSequence<'_>]) -> Vec<Vec<i64>> {
        let Some(hash) = &self.hash else {
            return Vec::new();
        };
        let back = self.limits.history as usize;
        let of = |sequence: &StepSequence<'_>| {
            let history = &sequence.history[sequence.history.len().saturating_sub(back)..];
            let rows = sequence.tokens.iter().enumerate().map(|(i, token)| {
                if sequence.image.get(i).copied().unwrap_or(false) {
                    DEAD
                } else {
                    hash.compress(*token)
                }
            });
            history
                .iter()
                .map(|token| hash.compress(*token))
                .chain(rows)
                .collect()
        };
        step.iter().map(of).collect()
    }

    fn engram_rows(
        &self,
        which: usize,
        compressed: &[Vec<i64>],
        step: &[StepSequence<'_>],
    ) -> Vec<u32> {
        let mut rows = Vec::new();
        if let Some(hash) = &self.hash {
            for (ids, sequence) in compressed.iter().zip(step) {
                hash.rows(which, ids, sequence.tokens.len(), &mut rows);
            }
        }
        rows
    }
}

fn level(config: &ModelConfig, layer: usize) -> Level {
    match &config.candidates {
        Some(c) if c.layer == layer => Level::Publish {
            blocks: c.blocks,
            size: c.block_size,
        },
        Some(c) if c.layer < layer => Level::Candidates { size: c.block_size },
        _ => Level::All,
    }
}

fn engram_weights<B: Backend>(
    source: &mut Source<'_, B>,
    layer: usize,
) -> Result<EngramWeights<B::Matrix, B::Table>, Error> {
    let stem = format!("layers.{layer}.engram");
    let query = source.vector(&format!("{stem}.q_weight"))?;
    let key = source.vector(&format!("{stem}.k_weight"))?;
    Ok(EngramWeights {
        table: source.table(&format!("{stem}.embed"))?,
        wkv: source.matrix(&format!("{stem}.wkv"))?,
        gate: query.iter().zip(&key).map(|(q, k)| q * k).collect(),
    })
}

impl<B: Backend> Model for V41<B> {
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
