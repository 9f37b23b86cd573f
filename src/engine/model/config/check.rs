//! What must hold between keys, so that no sum in the loader or in the forward pass goes wrong.

#![forbid(unsafe_code)]

use super::reader::{MAX_EXPERTS, Reader};
use super::{Family, ModelConfig};
use crate::engine::error::Error;
use crate::engine::model::engram;

/// Largest count of bucket sizes over all engram layers; the published model has 48.
const MAX_BUCKETS: usize = 4096;

impl Reader<'_> {
    /// What must hold between keys.
    pub(super) fn check(&self, config: &ModelConfig) -> Result<(), Error> {
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
