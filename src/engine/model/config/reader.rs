//! Finds keys, reads their values, and names them in errors.

#![forbid(unsafe_code)]

use std::fmt::Display;
use std::path::Path;

use serde_json::{Map, Value};

use super::{Candidates, EngramConfig, Family, ModelConfig, Yarn};
use crate::engine::error::{Code, Error};
use crate::engine::model::engram;

/// Largest width, rank or count of heads. Products of three still fit 64 bits.
const MAX_WIDTH: usize = 1 << 20;
/// Largest count of rows: token ids and engram rows are `u32`.
const MAX_ROWS: usize = 1 << 31;
/// Largest count of layers.
const MAX_LAYERS: usize = 1024;
/// Largest count of experts over all layers: each has six names in the list of tensors. The published models
/// have 23 424 at most.
pub(super) const MAX_EXPERTS: usize = 1 << 17;

/// Looks keys up in the text part first, then at the top, and names them in errors.
pub(super) struct Reader<'a> {
    file: &'a Path,
    root: &'a Map<String, Value>,
    text: Option<&'a Map<String, Value>>,
    quantization: &'a Map<String, Value>,
    family: Family,
}

impl<'a> Reader<'a> {
    pub(super) fn new(root: &'a Value, file: &'a Path) -> Result<Self, Error> {
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

    pub(super) fn error(&self, key: &str, message: impl Display) -> Error {
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

    pub(super) fn config(&self) -> Result<ModelConfig, Error> {
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
}

/// A value for a message, cut where a list or a text would flood it.
fn shorten(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(80) {
        None => text,
        Some((end, _)) => format!("{}…", &text[..end]),
    }
}
