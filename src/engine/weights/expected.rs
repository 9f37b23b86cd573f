//! Which tensors the backbone of a configuration needs: the tables of the format, as a list.
//!
//! The list serves twice: a checkpoint is compared with it before anything runs, and its sizes are the memory
//! plan, exact to the byte, without a checkpoint. Cost: a name and a shape a tensor, some ten megabytes for
//! the largest model.

#![forbid(unsafe_code)]

use super::bytes::Dtype;
use crate::engine::model::config::{EngramConfig, Family, ModelConfig};

/// How routed experts are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpertFormat {
    /// FP4 with a power of two for 32 columns.
    Fp4,
    /// FP8 in blocks, as all other matrices; scales may be `F32` (Base checkpoints of V4).
    Fp8,
}

/// What a tensor belongs to in the memory plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Read for every token.
    Dense,
    /// Routed experts.
    Experts,
    /// Tables of n-gram rows: mapped, never read through.
    Engram,
    /// Embedding and head.
    Embedding,
}

/// A tensor that must be there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expected {
    /// Without a leading `model.`.
    pub name: String,
    /// The only shape.
    pub shape: Vec<usize>,
    /// Any of these; the first is the published one.
    pub dtypes: &'static [Dtype],
    /// Where it counts.
    pub part: Part,
}

impl Expected {
    /// Bytes in the published type; the largest number for a size that no memory has.
    pub fn bytes(&self) -> u64 {
        let size = self.dtypes[0].size() as u64;
        let sides = self.shape.iter().map(|&side| side as u64);
        sides.fold(size, u64::saturating_mul)
    }
}

/// Bytes of weights by part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WeightBytes {
    /// Read for every token.
    pub dense: u64,
    /// Routed experts.
    pub experts: u64,
    /// Tables of n-gram rows.
    pub engram: u64,
    /// Embedding and head.
    pub embedding: u64,
}

impl WeightBytes {
    /// All parts.
    pub fn total(&self) -> u64 {
        [self.experts, self.engram, self.embedding]
            .into_iter()
            .fold(self.dense, u64::saturating_add)
    }

    pub(super) fn add(&mut self, part: Part, bytes: u64) {
        let sum = match part {
            Part::Dense => &mut self.dense,
            Part::Experts => &mut self.experts,
            Part::Engram => &mut self.engram,
            Part::Embedding => &mut self.embedding,
        };
        *sum = sum.saturating_add(bytes);
    }
}

/// The memory plan of a configuration in its published types.
pub fn weight_bytes(config: &ModelConfig, experts: ExpertFormat) -> WeightBytes {
    let mut sum = WeightBytes::default();
    for tensor in expected(config, experts) {
        sum.add(tensor.part, tensor.bytes());
    }
    sum
}

/// Whether a tensor is part of the checkpoint without being part of the backbone: drafts and vision.
pub fn is_beside_the_backbone(name: &str) -> bool {
    ["mtp.", "vision.", "aligner."]
        .iter()
        .any(|prefix| name.starts_with(prefix))
        || matches!(name, "image_start" | "image_end" | "image_newline")
}

const BF16: &[Dtype] = &[Dtype::Bf16];
const F32: &[Dtype] = &[Dtype::F32];
const F8: &[Dtype] = &[Dtype::F8E4M3];
const E8: &[Dtype] = &[Dtype::F8E8M0];

/// Every tensor of the backbone, in the order of use.
pub fn expected(config: &ModelConfig, experts: ExpertFormat) -> Vec<Expected> {
    let mut list = List {
        config,
        experts,
        tensors: Vec::new(),
    };
    list.backbone();
    list.tensors
}

struct List<'a> {
    config: &'a ModelConfig,
    experts: ExpertFormat,
    tensors: Vec<Expected>,
}

impl List<'_> {
    fn push(&mut self, part: Part, name: String, dtypes: &'static [Dtype], shape: &[usize]) {
        self.tensors.push(Expected {
            name,
            shape: shape.to_vec(),
            dtypes,
            part,
        });
    }

    fn dense(&mut self, name: String, dtypes: &'static [Dtype], shape: &[usize]) {
        self.push(Part::Dense, name, dtypes, shape);
    }

    /// An FP8 matrix of `rows` outputs and `columns` inputs, and its scales.
    fn fp8(&mut self, part: Part, stem: &str, rows: usize, columns: usize) {
        let block = self.config.weight_block;
        let scales = [rows.div_ceil(block), columns.div_ceil(block)];
        let dtypes: &[Dtype] = match (self.config.family, self.experts) {
            (Family::V41, _) => E8,
            (Family::V4, ExpertFormat::Fp4) => &[Dtype::F8E8M0, Dtype::F32],
            (Family::V4, ExpertFormat::Fp8) => &[Dtype::F32, Dtype::F8E8M0],
        };
        self.push(part, format!("{stem}.weight"), F8, &[rows, columns]);
        self.push(part, format!("{stem}.scale"), dtypes, &scales);
    }

    /// A routed expert's matrix and its scales.
    fn expert(&mut self, stem: &str, rows: usize, columns: usize) {
        let part = Part::Experts;
        match self.experts {
            ExpertFormat::Fp8 => self.fp8(part, stem, rows, columns),
            ExpertFormat::Fp4 => {
                let weight = format!("{stem}.weight");
                self.push(part, weight, &[Dtype::I8], &[rows, columns / 2]);
                self.push(part, format!("{stem}.scale"), E8, &[rows, columns / 32]);
            }
        }
    }

    fn backbone(&mut self) {
        let c = self.config;
        self.push(
            Part::Embedding,
            "embed.weight".into(),
            BF16,
            &[c.vocab, c.dim],
        );
        for layer in 0..c.layers {
            self.layer(layer);
        }
        if c.family == Family::V4 {
            let n = c.streams;
            self.dense("hc_head_fn".into(), F32, &[n, n * c.dim]);
            self.dense("hc_head_base".into(), F32, &[n]);
            self.dense("hc_head_scale".into(), F32, &[1]);
        }
        self.dense("norm.weight".into(), BF16, &[c.dim]);
        self.push(
            Part::Embedding,
            "head.weight".into(),
            BF16,
            &[c.vocab, c.dim],
        );
    }

    fn layer(&mut self, layer: usize) {
        let c = self.config;
        let at = format!("layers.{layer}");
        if let Some(engram) = c.engram.as_ref()
            && let Some(which) = engram.layers.iter().position(|&l| l == layer)
        {
            self.engram(&at, engram, engram.rows[which]);
        }
        for sub in ["attn", "ffn"] {
            let mixes = (2 + c.streams) * c.streams;
            let flat = c.streams * c.dim;
            self.dense(format!("{at}.hc_{sub}_fn"), F32, &[mixes, flat]);
            self.dense(format!("{at}.hc_{sub}_base"), F32, &[mixes]);
            self.dense(format!("{at}.hc_{sub}_scale"), F32, &[3]);
            self.dense(format!("{at}.{sub}_norm.weight"), BF16, &[c.dim]);
        }
        self.attention(&format!("{at}.attn"), layer);
        self.feed_forward(&format!("{at}.ffn"), layer);
    }

    fn engram(&mut self, at: &str, engram: &EngramConfig, rows: usize) {
        let c = self.config;
        let width = engram.head_dim;
        let table = format!("{at}.engram.embed");
        self.push(Part::Engram, format!("{table}.weight"), F8, &[rows, width]);
        self.push(
            Part::Engram,
            format!("{table}.scale"),
            E8,
            &[rows, width / 32],
        );
        // One key for each stream, and a value.
        let inputs = (engram.ngram - 1) * engram.heads * width;
        let outputs = (c.streams + 1) * c.dim;
        self.fp8(Part::Dense, &format!("{at}.engram.wkv"), outputs, inputs);
        self.dense(format!("{at}.engram.q_weight"), BF16, &[c.streams, c.dim]);
        self.dense(format!("{at}.engram.k_weight"), BF16, &[c.streams, c.dim]);
    }

    fn attention(&mut self, at: &str, layer: usize) {
        let c = self.config;
        let queries = c.heads * c.head_dim;
        let grouped = c.o_groups * c.o_rank;
        let dense = Part::Dense;
        self.dense(format!("{at}.attn_sink"), F32, &[c.heads]);
        self.fp8(dense, &format!("{at}.wq_a"), c.q_rank, c.dim);
        self.dense(format!("{at}.q_norm.weight"), BF16, &[c.q_rank]);
        self.fp8(dense, &format!("{at}.wq_b"), queries, c.q_rank);
        self.fp8(dense, &format!("{at}.wkv"), c.head_dim, c.dim);
        self.dense(format!("{at}.kv_norm.weight"), BF16, &[c.head_dim]);
        self.fp8(dense, &format!("{at}.wo_a"), grouped, queries / c.o_groups);
        self.fp8(dense, &format!("{at}.wo_b"), c.dim, grouped);

        let ratio = c.ratios[layer];
        let rows_made = match c.family {
            Family::V4 => ratio > 0,
            Family::V41 => c.kv_sources.contains(&layer),
        };
        if rows_made {
            self.compressor(&format!("{at}.compressor"), ratio, c.head_dim);
        }
        let at = format!("{at}.indexer");
        let selects = match c.family {
            Family::V4 => ratio == 4,
            Family::V41 => c.index_sources.contains(&layer),
        };
        if selects {
            let queries = c.index_heads * c.index_dim;
            self.fp8(dense, &format!("{at}.wq_b"), queries, c.q_rank);
            let weights = format!("{at}.weights_proj.weight");
            self.dense(weights, BF16, &[c.index_heads, c.dim]);
        }
        match c.family {
            Family::V4 if selects => {
                self.compressor(&format!("{at}.compressor"), ratio, c.index_dim);
            }
            Family::V41 if rows_made => {
                self.dense(format!("{at}.wk.weight"), BF16, &[c.index_dim, c.head_dim]);
                self.dense(format!("{at}.k_norm.weight"), BF16, &[c.index_dim]);
            }
            Family::V4 | Family::V41 => {}
        }
    }

    /// Makes rows of `width`.
    fn compressor(&mut self, at: &str, ratio: usize, width: usize) {
        let c = self.config;
        // Ratio 4 overlaps: a token has one half for its own group and one for the next.
        let halves = if ratio == 4 { 2 } else { 1 };
        let shape = [halves * width, c.dim];
        self.dense(format!("{at}.wkv.weight"), BF16, &shape);
        // At ratio 1 there is nothing to weigh.
        if ratio > 1 {
            self.dense(format!("{at}.wgate.weight"), BF16, &shape);
        }
        if c.family == Family::V4 {
            let dtypes = &[Dtype::F32, Dtype::Bf16];
            self.dense(format!("{at}.ape"), dtypes, &[ratio, halves * width]);
        }
        self.dense(format!("{at}.norm.weight"), BF16, &[width]);
    }

    fn feed_forward(&mut self, at: &str, layer: usize) {
        let c = self.config;
        let gate = format!("{at}.gate");
        self.dense(format!("{gate}.weight"), BF16, &[c.experts, c.dim]);
        let hashed = layer < c.hash_layers;
        if hashed {
            let table = format!("{gate}.tid2eid");
            self.dense(table, &[Dtype::I64], &[c.vocab, c.topk_experts]);
        }
        // With vision, image positions of hash layers choose by score too.
        let images = c.family == Family::V41 || c.vision;
        if !hashed || images {
            self.dense(format!("{gate}.bias"), F32, &[c.experts]);
        }
        if images {
            self.dense(format!("{gate}.bias_vl"), F32, &[c.experts]);
        }
        for expert in 0..c.experts {
            let at = format!("{at}.experts.{expert}");
            self.expert(&format!("{at}.w1"), c.moe_inter, c.dim);
            self.expert(&format!("{at}.w3"), c.moe_inter, c.dim);
            self.expert(&format!("{at}.w2"), c.dim, c.moe_inter);
        }
        let at = format!("{at}.shared_experts");
        self.fp8(Part::Dense, &format!("{at}.w1"), c.moe_inter, c.dim);
        self.fp8(Part::Dense, &format!("{at}.w3"), c.moe_inter, c.dim);
        self.fp8(Part::Dense, &format!("{at}.w2"), c.dim, c.moe_inter);
    }
}
