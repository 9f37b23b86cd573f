//! What a checkpoint's `config.json` says of the model, as one flat record.
//!
//! Input: the bytes of the file. Output: a [`ModelConfig`] whose numbers are inside sane bounds and fit each
//! other, so that the loader and the forward pass need not ask again, or an [`Error`] that names the file
//! and the key. Cost: one pass over a few kilobytes; engram tables add a search for primes, microseconds.

#![forbid(unsafe_code)]

mod check;
mod reader;

use std::path::Path;

use serde_json::Value;

use self::reader::Reader;
use crate::engine::error::{Code, Error};

/// Largest `config.json` that is read.
const MAX_BYTES: u64 = 16 << 20;
/// The two generations that differ in structure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// `deepseek_v4`.
    V4,
    /// `deepseek_v41`.
    V41,
}

/// Stretches rotations beyond the context that the model was trained on.
#[derive(Clone, Debug, PartialEq)]
pub struct Yarn {
    /// How far.
    pub factor: f32,
    /// Positions before stretching.
    pub original: usize,
    /// Turns above which a frequency stays.
    pub beta_fast: f32,
    /// Turns below which a frequency is divided by `factor`.
    pub beta_slow: f32,
}

/// The first of two selection levels (V4.1): one layer picks blocks, later ones pick rows inside them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidates {
    /// The layer that picks.
    pub layer: usize,
    /// Blocks kept.
    pub blocks: usize,
    /// Rows of a block.
    pub block_size: usize,
}

/// The n-gram memory (V4.1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngramConfig {
    /// Layers that read it, ascending.
    pub layers: Vec<usize>,
    /// Height of each layer's table.
    pub rows: Vec<usize>,
    /// Longest n-gram.
    pub ngram: usize,
    /// Bucket sizes are primes from here on.
    pub vocab: usize,
    /// Hashes of one n-gram length.
    pub heads: usize,
    /// Values in a row.
    pub head_dim: usize,
    /// Token whose compressed id stands before the start of a sequence.
    pub pad_token: u32,
    /// Distinct compressed ids.
    pub compressed_vocab: usize,
}

/// Every size that the loader and the forward pass need; both families.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelConfig {
    /// Which structure.
    pub family: Family,
    /// Ids with a row in the embedding and in the head.
    pub vocab: usize,
    /// Width of a stream.
    pub dim: usize,
    /// Layers of the backbone.
    pub layers: usize,
    /// Query heads.
    pub heads: usize,
    /// Width of a head and of the latent that is key and value.
    pub head_dim: usize,
    /// Channels that rotate, the last ones.
    pub rope_dim: usize,
    /// Inner width of the query projection.
    pub q_rank: usize,
    /// Inner width of the output projection of one group.
    pub o_rank: usize,
    /// Groups of heads in the output projection.
    pub o_groups: usize,
    /// Tokens that attention sees uncompressed.
    pub window: usize,
    /// Tokens per compressed row, of each of the `layers`; 0 = no compressed rows.
    pub ratios: Vec<usize>,
    /// Inner width of an expert.
    pub moe_inter: usize,
    /// Routed experts of a layer.
    pub experts: usize,
    /// Experts a token goes to.
    pub topk_experts: usize,
    /// Factor on the normalised expert weights.
    pub route_scale: f32,
    /// Clamp inside experts; 0 = none.
    pub swiglu_limit: f32,
    /// Added to the mean square in norms.
    pub norm_eps: f32,
    /// Residual streams (`hc_mult`).
    pub streams: usize,
    /// Rounds of normalisation of the mixing matrix, the first included.
    pub sinkhorn_iters: usize,
    /// Added in the mix.
    pub hc_eps: f32,
    /// Rotation base of layers without compressed rows.
    pub rope_theta: f32,
    /// Rotation base of layers with them.
    pub compress_theta: f32,
    /// Goes with `compress_theta` only.
    pub yarn: Option<Yarn>,
    /// Heads of the indexer.
    pub index_heads: usize,
    /// Width of an index key.
    pub index_dim: usize,
    /// Compressed rows the indexer keeps.
    pub index_topk: usize,
    /// Side of the square of FP8 weights that share a scale, and the activation group: 128 or 32.
    pub weight_block: usize,
    /// First layers whose experts come from a table of token ids (V4).
    pub hash_layers: usize,
    /// Layers that make compressed rows, ascending (V4.1).
    pub kv_sources: Vec<usize>,
    /// Layers that select rows, ascending (V4.1).
    pub index_sources: Vec<usize>,
    /// Two-level selection (V4.1).
    pub candidates: Option<Candidates>,
    /// N-gram memory (V4.1).
    pub engram: Option<EngramConfig>,
    /// Compressed rows are FP4 records (V4.1, `use_fp4_sparse_kv`); else FP8 like the window.
    pub fp4_rows: bool,
    /// Positions a sequence may have.
    pub max_context: usize,
    /// Starts a sequence.
    pub bos: u32,
    /// Ends it.
    pub eos: u32,
    /// Fills; unnamed in V4.
    pub pad: Option<u32>,
    /// Stands at every image position.
    pub image_token: Option<u32>,
    /// The checkpoint has a vision tower.
    pub vision: bool,
    /// What `num_nextn_predict_layers` says; checkpoints may hold another number of draft stages.
    pub draft_layers: usize,
}

impl ModelConfig {
    /// Reads `dir/config.json`.
    pub fn read(dir: &Path) -> Result<Self, Error> {
        let file = dir.join("config.json");
        let json = read_small(dir, &file, MAX_BYTES)?;
        Self::parse(&json, &file)
    }

    /// Reads the text of a `config.json`; `file` is for messages.
    pub fn parse(json: &[u8], file: &Path) -> Result<Self, Error> {
        let root: Value = serde_json::from_slice(json).map_err(|error| {
            Error::new(
                Code::BadFormat,
                file.display().to_string(),
                format!("{}: not JSON: {error}", file.display()),
            )
        })?;
        let reader = Reader::new(&root, file)?;
        let config = reader.config()?;
        reader.check(&config)?;
        Ok(config)
    }

    /// Compressed layers of V4.1 read the rows of this layer: the nearest source at or before them.
    pub fn kv_source(&self, layer: usize) -> Option<usize> {
        nearest(&self.kv_sources, layer)
    }

    /// And the selection of this one.
    pub fn index_source(&self, layer: usize) -> Option<usize> {
        nearest(&self.index_sources, layer)
    }
}

fn nearest(sources: &[usize], layer: usize) -> Option<usize> {
    sources.iter().copied().rfind(|&source| source <= layer)
}

/// Reads a whole file of at most `limit` bytes; `dir` tells a missing directory from a missing file.
pub(crate) fn read_small(dir: &Path, file: &Path, limit: u64) -> Result<Vec<u8>, Error> {
    let name = file.display();
    let fail = |code, message| Err(Error::new(code, name.to_string(), message));
    let meta = match std::fs::metadata(file) {
        Ok(meta) => meta,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound && dir.is_dir() => {
            return fail(Code::BadFormat, format!("{name}: the file is missing"));
        }
        Err(_) if !dir.exists() => {
            let message = format!("{}: no such directory", dir.display());
            return fail(Code::NotFound, message);
        }
        Err(_) if !dir.is_dir() => {
            let message = format!("{}: not a directory", dir.display());
            return fail(Code::NotFound, message);
        }
        Err(error) => return fail(Code::Io, format!("{name}: {error}")),
    };
    // Opening a pipe would wait for a writer.
    if !meta.is_file() {
        return fail(Code::BadFormat, format!("{name}: not a regular file"));
    }
    if meta.len() > limit {
        let message = format!("{name}: {} bytes, at most {limit} are read", meta.len());
        return fail(Code::BadFormat, message);
    }
    match std::fs::read(file) {
        Ok(bytes) => Ok(bytes),
        Err(error) => fail(Code::Io, format!("{name}: {error}")),
    }
}
