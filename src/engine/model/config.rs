//! What a checkpoint's `config.json` says of the model, as one flat record.
//!
//! Input: the bytes of the file. Output: a [`ModelConfig`] whose numbers are inside sane bounds and fit each
//! other, so that the loader and the forward pass need not ask again, or an [`Error`] that names the file
//! and the key. Cost: one pass over a few kilobytes; engram tables add a search for primes, microseconds.

#![forbid(unsafe_code)]

use std::path::Path;

use serde_json::{Map, Value};

use super::engram;
use crate::engine::error::{Code, Error};

/// Largest `config.json` that is read.
const MAX_BYTES: u64 = 16 << 20;
/// Largest width, rank or count of heads. Products of three still fit 64 bits.
const MAX_WIDTH: usize = 1 << 20;
/// Largest count of rows: token ids and engram rows are `u32`.
const MAX_ROWS: usize = 1 << 31;
/// Largest count of layers.
const MAX_LAYERS: usize = 1024;
/// Largest count of experts over all layers; the published models have 23 424 at most.
const MAX_EXPERTS: usize = 1 << 20;
/// Largest count of bucket sizes over all engram layers; the published model has 48.
const MAX_BUCKETS: usize = 4096;

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

/// Looks keys up in the text part first, then at the top, and names them in errors.
struct Reader<'a> {
    file: &'a Path,
    root: &'a Map<String, Value>,
    text: Option<&'a Map<String, Value>>,
    quantization: &'a Map<String, Value>,
    family: Family,
}

impl<'a> Reader<'a> {
    fn new(root: &'a Value, file: &'a Path) -> Result<Self, Error> {
        let fail = |key: &str, message: String| {
            Err(Error::new(
                Code::BadFormat,
                key,
                format!("{}: {message}", file.display()),
            ))
        };
        let Some(root) = root.as_object() else {
            return fail("", "not a JSON object".into());
        };
        let family = match root.get("model_type").and_then(Value::as_str) {
            Some("deepseek_v4") => Family::V4,
            Some("deepseek_v41") => Family::V41,
            Some(other) => {
                let message = format!(
                    "model_type {other:?} is not supported, only \"deepseek_v4\" and \"deepseek_v41\""
                );
                return fail("model_type", message);
            }
            None => return fail("model_type", "\"model_type\" is missing".into()),
        };
        let text = match root.get("text_config") {
            None | Some(Value::Null) => None,
            Some(Value::Object(text)) => Some(text),
            Some(_) => return fail("text_config", "\"text_config\" is not an object".into()),
        };
        let Some(quantization) = root.get("quantization_config").and_then(Value::as_object) else {
            let message = "\"quantization_config\" is missing, only FP8 checkpoints are supported";
            return fail("quantization_config", message.into());
        };
        Ok(Self {
            file,
            root,
            text,
            quantization,
            family,
        })
    }

    fn error(&self, key: &str, message: impl std::fmt::Display) -> Error {
        let message = format!("{}: {message}", self.file.display());
        Error::new(Code::BadFormat, key, message)
    }

    /// A key that is absent or null counts as not given.
    fn find(&self, key: &str) -> Option<&'a Value> {
        let text = self.text.and_then(|text| text.get(key));
        text.or_else(|| self.root.get(key))
            .filter(|value| !value.is_null())
    }

    fn need(&self, key: &str) -> Result<&'a Value, Error> {
        self.find(key)
            .ok_or_else(|| self.error(key, format_args!("{key:?} is missing")))
    }

    /// A whole number in `min..=max`.
    fn int(&self, key: &str, value: &Value, min: usize, max: usize) -> Result<usize, Error> {
        value
            .as_u64()
            .and_then(|number| usize::try_from(number).ok())
            .filter(|number| (min..=max).contains(number))
            .ok_or_else(|| {
                let found = shorten(value);
                let message =
                    format!("{key:?} is {found}, expected a whole number from {min} to {max}");
                self.error(key, message)
            })
    }

    fn size(&self, key: &str, max: usize) -> Result<usize, Error> {
        self.int(key, self.need(key)?, 1, max)
    }

    fn width(&self, key: &str) -> Result<usize, Error> {
        self.size(key, MAX_WIDTH)
    }

    fn count_or(&self, key: &str, default: usize, max: usize) -> Result<usize, Error> {
        self.find(key)
            .map_or(Ok(default), |value| self.int(key, value, 0, max))
    }

    fn list(&self, key: &str, max_len: usize, max: usize) -> Result<Vec<usize>, Error> {
        let value = self.need(key)?;
        let Some(items) = value.as_array().filter(|items| items.len() <= max_len) else {
            let message = format!("{key:?} is not a list of at most {max_len} numbers");
            return Err(self.error(key, message));
        };
        let numbers = items.iter().map(|item| self.int(key, item, 0, max));
        numbers.collect()
    }

    /// A finite number above zero, or at least zero.
    fn float(&self, key: &str, value: &Value, zero: bool) -> Result<f32, Error> {
        let number = value.as_f64().map(|number| number as f32);
        number
            .filter(|&number| number.is_finite() && (number > 0.0 || zero && number == 0.0))
            .ok_or_else(|| {
                let bound = if zero { "of at least 0" } else { "above 0" };
                let found = shorten(value);
                self.error(
                    key,
                    format!("{key:?} is {found}, expected a number {bound}"),
                )
            })
    }

    fn positive(&self, key: &str) -> Result<f32, Error> {
        self.float(key, self.need(key)?, false)
    }

    /// A key that may be absent, but has one supported value.
    fn only(&self, key: &str, value: Option<&Value>, supported: &Value) -> Result<(), Error> {
        match value {
            None | Some(Value::Null) => Ok(()),
            Some(value) if value == supported => Ok(()),
            Some(value) => {
                let found = shorten(value);
                let message = format!("{key:?} is {found}, only {supported} is supported");
                Err(self.error(key, message))
            }
        }
    }

    fn token(&self, key: &str) -> Result<Option<u32>, Error> {
        let value = match self.find(key) {
            None => return Ok(None),
            // Some exports list the ends of a turn; one id is what the engine stops at.
            Some(Value::Array(ids)) if ids.len() == 1 => &ids[0],
            Some(value) => value,
        };
        Ok(Some(self.int(key, value, 0, MAX_ROWS)? as u32))
    }

    fn need_token(&self, key: &str) -> Result<u32, Error> {
        let token = self.token(key)?;
        token.ok_or_else(|| self.error(key, format_args!("{key:?} is missing")))
    }

    fn config(&self) -> Result<ModelConfig, Error> {
        self.check_supported()?;
        let layers = self.size("num_hidden_layers", MAX_LAYERS)?;
        let mut ratios = self.list("compress_ratios", 2 * MAX_LAYERS, MAX_WIDTH)?;
        if ratios.len() < layers {
            let found = ratios.len();
            let message = format!(
                "\"compress_ratios\" has {found} entries, \"num_hidden_layers\" is {layers}"
            );
            return Err(self.error("compress_ratios", message));
        }
        ratios.truncate(layers);
        let (rope_theta, compress_theta, yarn) = self.rotation()?;
        let v41 = self.family == Family::V41;
        let sources = |key| {
            if v41 {
                self.list(key, layers, layers - 1)
            } else {
                Ok(Vec::new())
            }
        };
        Ok(ModelConfig {
            family: self.family,
            vocab: self.size("vocab_size", MAX_ROWS)?,
            dim: self.width("hidden_size")?,
            layers,
            heads: self.width("num_attention_heads")?,
            head_dim: self.width("head_dim")?,
            rope_dim: self.width("qk_rope_head_dim")?,
            q_rank: self.width("q_lora_rank")?,
            o_rank: self.width("o_lora_rank")?,
            o_groups: self.width("o_groups")?,
            window: self.width("sliding_window")?,
            ratios,
            moe_inter: self.width("moe_intermediate_size")?,
            experts: self.size("n_routed_experts", MAX_EXPERTS)?,
            topk_experts: self.size("num_experts_per_tok", MAX_EXPERTS)?,
            route_scale: self.positive("routed_scaling_factor")?,
            swiglu_limit: match self.find("swiglu_limit") {
                Some(limit) => self.float("swiglu_limit", limit, true)?,
                None => 0.0,
            },
            norm_eps: self.positive("rms_norm_eps")?,
            streams: self.size("hc_mult", 16)?,
            sinkhorn_iters: self.size("hc_sinkhorn_iters", 1000)?,
            hc_eps: self.positive("hc_eps")?,
            rope_theta,
            compress_theta,
            yarn,
            index_heads: self.width("index_n_heads")?,
            index_dim: self.width("index_head_dim")?,
            index_topk: self.width("index_topk")?,
            weight_block: self.weight_block(),
            hash_layers: if v41 {
                0
            } else {
                self.count_or("num_hash_layers", 0, layers)?
            },
            kv_sources: sources("kv_source_layer_ids")?,
            index_sources: sources("index_source_layer_ids")?,
            candidates: if v41 { self.candidates(layers)? } else { None },
            engram: if v41 { self.engram(layers)? } else { None },
            fp4_rows: v41
                && match self.find("use_fp4_sparse_kv") {
                    None => true,
                    Some(Value::Bool(fp4)) => *fp4,
                    Some(other) => {
                        let found = shorten(other);
                        let message =
                            format!("\"use_fp4_sparse_kv\" is {found}, expected true or false");
                        return Err(self.error("use_fp4_sparse_kv", message));
                    }
                },
            max_context: self.size("max_position_embeddings", MAX_ROWS)?,
            bos: self.need_token("bos_token_id")?,
            eos: self.need_token("eos_token_id")?,
            pad: self.token("pad_token_id")?,
            image_token: self.token("image_token_id")?,
            vision: self.vision()?,
            draft_layers: self.count_or("num_nextn_predict_layers", 0, MAX_LAYERS)?,
        })
    }

    fn weight_block(&self) -> usize {
        match self.family {
            Family::V4 => 128,
            Family::V41 => 32,
        }
    }

    /// Everything with one supported value: another one means another computation.
    fn check_supported(&self) -> Result<(), Error> {
        let architecture = match self.family {
            Family::V4 => "DeepseekV4ForCausalLM",
            Family::V41 => "DeepseekV41ForCausalLM",
        };
        self.only(
            "architectures",
            self.root.get("architectures"),
            &Value::from(vec![architecture]),
        )?;
        let fixed = [
            ("hidden_act", Value::from("silu")),
            ("attention_bias", Value::from(false)),
            ("num_key_value_heads", Value::from(1)),
            ("n_shared_experts", Value::from(1)),
            ("scoring_func", Value::from("sqrtsoftplus")),
            ("topk_method", Value::from("noaux_tc")),
            ("norm_topk_prob", Value::from(true)),
            ("tie_word_embeddings", Value::from(false)),
            ("dtype", Value::from("bfloat16")),
            ("torch_dtype", Value::from("bfloat16")),
        ];
        for (key, supported) in &fixed {
            self.only(key, self.find(key), supported)?;
        }
        let block = self.weight_block();
        let quantization = [
            ("fmt", Value::from("e4m3")),
            ("activation_scheme", Value::from("dynamic")),
            ("scale_fmt", Value::from("ue8m0")),
        ];
        for (key, supported) in &quantization {
            let path = format!("quantization_config.{key}");
            self.only(&path, self.quantization.get(*key), supported)?;
        }
        let required = [
            ("quant_method", Value::from("fp8")),
            ("weight_block_size", Value::from(vec![block, block])),
        ];
        for (key, supported) in &required {
            let path = format!("quantization_config.{key}");
            let value = self.quantization.get(*key);
            if value.is_none() {
                return Err(self.error(&path, format_args!("{path:?} is missing")));
            }
            self.only(&path, value, supported)?;
        }
        match self.family {
            Family::V4 => match self.find("expert_dtype") {
                None => Ok(()),
                Some(dtype) if dtype == "fp4" || dtype == "fp8" => Ok(()),
                Some(other) => {
                    let found = shorten(other);
                    let message = format!(
                        "\"expert_dtype\" is {found}, only \"fp4\" and \"fp8\" are supported"
                    );
                    Err(self.error("expert_dtype", message))
                }
            },
            Family::V41 => {
                let dtype = self.quantization.get("expert_dtype");
                let path = "quantization_config.expert_dtype";
                self.only(path, dtype, &Value::from("fp4"))?;
                self.only("hc_shifted", self.find("hc_shifted"), &Value::from(true))?;
                let keys = self.find("index_k_source_layer_ids");
                let rows = self.need("kv_source_layer_ids")?;
                self.only("index_k_source_layer_ids", keys, rows)
            }
        }
    }

    /// Both bases, and YaRN; newer exports nest them in `rope_parameters`.
    fn rotation(&self) -> Result<(f32, f32, Option<Yarn>), Error> {
        let nested = |part: &str| {
            let parameters = self.find("rope_parameters")?;
            parameters.get(part)?.as_object()
        };
        let theta = |key: &str, part: &str| match self.find(key) {
            Some(theta) => self.float(key, theta, false),
            None => match nested(part).and_then(|part| part.get("rope_theta")) {
                Some(theta) => {
                    self.float(&format!("rope_parameters.{part}.rope_theta"), theta, false)
                }
                None => Err(self.error(key, format_args!("{key:?} is missing"))),
            },
        };
        let rope_theta = theta("rope_theta", "main")?;
        let compress_theta = theta("compress_rope_theta", "compress")?;
        let (at, scaling) = match self.find("rope_scaling") {
            Some(scaling) => match scaling.as_object() {
                Some(scaling) => ("rope_scaling", Some(scaling)),
                None => {
                    let message = "\"rope_scaling\" is not an object";
                    return Err(self.error("rope_scaling", message));
                }
            },
            None => ("rope_parameters.compress", nested("compress")),
        };
        let Some(scaling) = scaling else {
            return Ok((rope_theta, compress_theta, None));
        };
        let kind = scaling.get("rope_type").or_else(|| scaling.get("type"));
        match kind.and_then(Value::as_str) {
            Some("yarn") => {}
            Some("default") => return Ok((rope_theta, compress_theta, None)),
            _ => {
                let found = kind.map_or("missing".into(), shorten);
                let message =
                    format!("the type in \"{at}\" is {found}, only \"yarn\" is supported");
                return Err(self.error(at, message));
            }
        }
        let number = |key: &str, default: Option<f32>| {
            let path = format!("{at}.{key}");
            match (scaling.get(key).filter(|value| !value.is_null()), default) {
                (Some(value), _) => self.float(&path, value, false),
                (None, Some(default)) => Ok(default),
                (None, None) => Err(self.error(&path, format_args!("{path:?} is missing"))),
            }
        };
        let path = format!("{at}.original_max_position_embeddings");
        let original = scaling
            .get("original_max_position_embeddings")
            .ok_or_else(|| self.error(&path, format_args!("{path:?} is missing")))?;
        let yarn = Yarn {
            factor: number("factor", None)?,
            original: self.int(&path, original, 1, MAX_ROWS)?,
            beta_fast: number("beta_fast", Some(32.0))?,
            beta_slow: number("beta_slow", Some(1.0))?,
        };
        Ok((rope_theta, compress_theta, Some(yarn)))
    }

    fn candidates(&self, layers: usize) -> Result<Option<Candidates>, Error> {
        let Some(layer) = self.find("candidate_source_layer_id") else {
            return Ok(None);
        };
        Ok(Some(Candidates {
            layer: self.int("candidate_source_layer_id", layer, 0, layers - 1)?,
            blocks: self.size("candidate_topk_blocks", MAX_ROWS)?,
            block_size: self.size("candidate_block_size", MAX_WIDTH)?,
        }))
    }

    fn engram(&self, layers: usize) -> Result<Option<EngramConfig>, Error> {
        if self.find("engram_layer_ids").is_none() {
            return Ok(None);
        }
        let ids = self.list("engram_layer_ids", layers, layers - 1)?;
        if ids.is_empty() {
            return Ok(None);
        }
        Ok(Some(EngramConfig {
            layers: ids,
            rows: self.list("engram_num_embeddings", layers, MAX_ROWS)?,
            ngram: self.size("engram_max_ngram_size", 16)?,
            vocab: self.size("engram_vocab_size", MAX_ROWS)?,
            heads: self.size("engram_n_heads", 1024)?,
            head_dim: self.width("engram_head_dim")?,
            pad_token: self.need_token("engram_pad_token_id")?,
            compressed_vocab: self.size("engram_compressed_vocab_size", engram::MAX_COMPRESSED)?,
        }))
    }

    fn vision(&self) -> Result<bool, Error> {
        let (key, value) = match self.family {
            Family::V4 => ("vision_n_layers", self.find("vision_n_layers")),
            Family::V41 => {
                let vision = self.root.get("vision_config");
                let layers = vision.and_then(|vision| vision.get("num_hidden_layers"));
                ("vision_config.num_hidden_layers", layers)
            }
        };
        match value {
            None => Ok(false),
            Some(value) => Ok(self.int(key, value, 0, MAX_LAYERS)? > 0),
        }
    }

    /// What must hold between keys.
    fn check(&self, config: &ModelConfig) -> Result<(), Error> {
        let fail = |key: &str, message: String| Err(self.error(key, message));
        if config.rope_dim > config.head_dim.min(config.index_dim)
            || !config.rope_dim.is_multiple_of(2)
        {
            let message = format!(
                "\"qk_rope_head_dim\" is {}, expected an even number up to head_dim {} and index_head_dim {}",
                config.rope_dim, config.head_dim, config.index_dim
            );
            return fail("qk_rope_head_dim", message);
        }
        if !config.heads.is_multiple_of(config.o_groups) {
            let message = format!(
                "\"o_groups\" is {}, which does not divide num_attention_heads {}",
                config.o_groups, config.heads
            );
            return fail("o_groups", message);
        }
        // FP4 shares a scale over 32 columns, so a row of any FP4 matrix and of any index key is whole groups.
        for (key, value) in [
            ("hidden_size", config.dim),
            ("moe_intermediate_size", config.moe_inter),
            ("index_head_dim", config.index_dim),
        ] {
            if !value.is_multiple_of(32) {
                return fail(
                    key,
                    format!("{key:?} is {value}, which is no multiple of 32"),
                );
            }
        }
        self.check_rows(config)?;
        if config.topk_experts > config.experts {
            let message = format!(
                "\"num_experts_per_tok\" is {} of {} experts",
                config.topk_experts, config.experts
            );
            return fail("num_experts_per_tok", message);
        }
        if config.layers * config.experts > MAX_EXPERTS {
            let message = format!(
                "\"n_routed_experts\" is {} in {} layers, at most {MAX_EXPERTS} in all are supported",
                config.experts, config.layers
            );
            return fail("n_routed_experts", message);
        }
        for (key, token) in [
            ("bos_token_id", Some(config.bos)),
            ("eos_token_id", Some(config.eos)),
            ("pad_token_id", config.pad),
            ("image_token_id", config.image_token),
        ] {
            if let Some(token) = token.filter(|&token| token as usize >= config.vocab) {
                let message = format!("{key:?} is {token}, beyond vocab_size {}", config.vocab);
                return fail(key, message);
            }
        }
        match config.family {
            Family::V4 => self.check_ratios(config, &[0, 4, 128]),
            Family::V41 => {
                self.check_ratios(config, &[0, 1, 2])?;
                self.check_sources(config)?;
                self.check_engram(config)
            }
        }
    }

    /// The groups in which cache rows are quantised.
    fn check_rows(&self, config: &ModelConfig) -> Result<(), Error> {
        let (quantised, group) = match config.family {
            Family::V4 => (config.head_dim - config.rope_dim, 64),
            Family::V41 => (config.head_dim, 32),
        };
        if !quantised.is_multiple_of(group) {
            let message = format!(
                "\"head_dim\" is {}, which leaves {quantised} channels to quantise in groups of {group}",
                config.head_dim
            );
            return Err(self.error("head_dim", message));
        }
        if config.family == Family::V4 && !config.index_dim.is_power_of_two() {
            let message = format!(
                "\"index_head_dim\" is {}, expected a power of two",
                config.index_dim
            );
            return Err(self.error("index_head_dim", message));
        }
        Ok(())
    }

    fn check_ratios(&self, config: &ModelConfig, allowed: &[usize]) -> Result<(), Error> {
        let wrong = |&(_, ratio): &(usize, &usize)| !allowed.contains(ratio);
        let Some((layer, ratio)) = config.ratios.iter().enumerate().find(wrong) else {
            return Ok(());
        };
        let message = format!(
            "\"compress_ratios\" has {ratio} for layer {layer}, only {allowed:?} are supported"
        );
        Err(self.error("compress_ratios", message))
    }

    fn check_sources(&self, config: &ModelConfig) -> Result<(), Error> {
        let kv = &config.kv_sources;
        let index = &config.index_sources;
        for (key, sources) in [
            ("kv_source_layer_ids", kv),
            ("index_source_layer_ids", index),
        ] {
            if !sources.is_sorted_by(|a, b| a < b) {
                let message = format!("{key:?} is {sources:?}, expected ascending layers");
                return Err(self.error(key, message));
            }
        }
        if let Some(source) = kv.iter().find(|source| !index.contains(source)) {
            let message = format!(
                "layer {source} of \"kv_source_layer_ids\" is missing from \"index_source_layer_ids\""
            );
            return Err(self.error("kv_source_layer_ids", message));
        }
        for (layer, &ratio) in config.ratios.iter().enumerate() {
            let expected = config
                .kv_source(layer)
                .map_or(0, |source| config.ratios[source]);
            if ratio != expected || (ratio == 0 && config.kv_source(layer).is_some()) {
                let source = match config.kv_source(layer) {
                    Some(source) => format!("its source, layer {source}, has {expected}"),
                    None => "no source of \"kv_source_layer_ids\" precedes it".to_string(),
                };
                let message =
                    format!("\"compress_ratios\" has {ratio} for layer {layer}, but {source}");
                return Err(self.error("compress_ratios", message));
            }
        }
        if let Some(layer) = index.first().filter(|&first| Some(first) != kv.first()) {
            let message = format!(
                "layer {layer} of \"index_source_layer_ids\" precedes every layer of \"kv_source_layer_ids\""
            );
            return Err(self.error("index_source_layer_ids", message));
        }
        let Some(candidates) = &config.candidates else {
            return Ok(());
        };
        let key = "candidate_source_layer_id";
        if !index.contains(&candidates.layer) {
            let message = format!(
                "\"candidate_source_layer_id\" is {}, which is missing from \"index_source_layer_ids\"",
                candidates.layer
            );
            return Err(self.error(key, message));
        }
        // Candidates name rows of one source; another source's rows would be masked by mistake.
        if let Some(source) = kv.iter().find(|&&source| source > candidates.layer) {
            let message = format!(
                "\"candidate_source_layer_id\" is {}, but layer {source} of \"kv_source_layer_ids\" follows",
                candidates.layer
            );
            return Err(self.error(key, message));
        }
        Ok(())
    }

    fn check_engram(&self, config: &ModelConfig) -> Result<(), Error> {
        let Some(engram) = &config.engram else {
            return Ok(());
        };
        let fail = |key: &str, message: String| Err(self.error(key, message));
        if !engram.layers.is_sorted_by(|a, b| a < b) {
            let message = format!(
                "\"engram_layer_ids\" is {:?}, expected ascending layers",
                engram.layers
            );
            return fail("engram_layer_ids", message);
        }
        if engram.rows.len() != engram.layers.len() {
            let message = format!(
                "\"engram_num_embeddings\" has {} entries for {} layers in \"engram_layer_ids\"",
                engram.rows.len(),
                engram.layers.len()
            );
            return fail("engram_num_embeddings", message);
        }
        if engram.ngram < 2 {
            let message = "\"engram_max_ngram_size\" is 1, expected at least 2";
            return fail("engram_max_ngram_size", message.into());
        }
        if engram.layers.len() * (engram.ngram - 1) * engram.heads > MAX_BUCKETS {
            let message = format!(
                "\"engram_n_heads\" is {}, at most {MAX_BUCKETS} buckets in all are supported",
                engram.heads
            );
            return fail("engram_n_heads", message);
        }
        if !engram.head_dim.is_multiple_of(32) {
            let message = format!(
                "\"engram_head_dim\" is {}, which is no multiple of 32",
                engram.head_dim
            );
            return fail("engram_head_dim", message);
        }
        if engram.pad_token as usize >= config.vocab {
            let message = format!(
                "\"engram_pad_token_id\" is {}, beyond vocab_size {}",
                engram.pad_token, config.vocab
            );
            return fail("engram_pad_token_id", message);
        }
        let buckets = engram::bucket_sizes(engram);
        for ((layer, &rows), sizes) in engram.layers.iter().zip(&engram.rows).zip(&buckets) {
            let needed: u64 = sizes.iter().flatten().map(|&size| u64::from(size)).sum();
            if (rows as u64) < needed {
                let message = format!(
                    "\"engram_num_embeddings\" has {rows} rows for layer {layer}, its buckets need {needed}"
                );
                return fail("engram_num_embeddings", message);
            }
        }
        Ok(())
    }
}

/// A value for a message, cut where a list or a text would flood it.
fn shorten(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(80) {
        None => text,
        Some((end, _)) => format!("{}…", &text[..end]),
    }
}
