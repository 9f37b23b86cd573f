//! How an engine is opened, and what it says of itself.
//!
//! `Config` joins what the host asked for, what the model can do and the defaults; it is made once, at open,
//! and every value in it is reported with its origin.

#![forbid(unsafe_code)]

mod tuning;

use std::path::PathBuf;
use std::time::Duration;

pub use tuning::{Determinism, Numerics, Origin, Report, Setting, Tuning};

use super::error::{Code, Error};
use super::model::ModelLimits;
use super::scheduler::Limits;

/// Options of [`super::Engine::open`]; zero means the default of `engine.md` section 31.
#[derive(Clone, Debug, Default)]
pub struct EngineOptions {
    /// A directory of safetensors, `config.json` and `tokenizer.json`.
    pub model_path: PathBuf,
    /// `cpu`, `reference`, `cuda`, `cuda:0,1`; empty: the best that works.
    pub device: String,
    /// Bytes of paged state; 0 = what is free.
    pub kv_bytes: u64,
    /// 0 = the model's.
    pub max_context: u32,
    /// Sequences decoded together; 0 = 16 on CPU.
    pub max_running: u32,
    /// 0 = 4096.
    pub max_queued: u32,
    /// 0 = physical cores of the affinity mask.
    pub cpu_threads: u32,
    /// Level D2, or refuse.
    pub deterministic: bool,
    /// No prefix reuse.
    pub no_prefix_cache: bool,
    /// No drafts.
    pub no_speculation: bool,
    /// Compute the memory plan, load nothing; the engine is born closed.
    pub plan_only: bool,
    /// Everything experimental (`engine.md` section 31); empty for none.
    pub tuning_json: String,
}

/// What became of the options.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EngineInfo {
    /// Ids the model knows.
    pub vocab_size: u32,
    /// Positions a sequence may have.
    pub max_context: u32,
    /// Sequences decoded together.
    pub max_running: u32,
    /// Devices in use.
    pub device_count: u32,
    /// Bytes of weights.
    pub weight_bytes: u64,
    /// Bytes of paged state.
    pub kv_bytes: u64,
    /// Blocks of paged state.
    pub kv_blocks: u64,
    /// The directory's name.
    pub model_name: String,
}

/// Where the engine is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EngineState {
    /// Takes requests.
    Ready,
    /// Finishes what runs.
    Draining,
    /// A fault ended every request; may be freed.
    Failed,
    /// Shut down, or a plan only.
    Closed,
}

/// Counters; a copy without a lock shared with the step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(
    missing_docs,
    reason = "the names of fathom_engine_stats, documented in the header"
)]
pub struct Stats {
    pub requests_accepted: u64,
    pub requests_finished: u64,
    pub requests_refused: u64,
    pub requests_cancelled: u64,
    pub requests_failed: u64,
    pub tokens_prefilled: u64,
    pub tokens_cached: u64,
    pub tokens_decoded: u64,
    pub tokens_drafted: u64,
    pub tokens_accepted: u64,
    pub steps: u64,
    pub preemptions: u64,
    pub paused_for_reader: u64,
    /// Choices that had nothing but ids that `min_tokens` keeps back; only in the JSON of the metrics.
    pub min_tokens_ignored: u64,
    pub running: u32,
    pub waiting: u32,
    pub paused: u32,
    pub kv_blocks_used: u32,
    pub kv_blocks_total: u32,
}

/// Rows in a step where nobody says otherwise.
const STEP_TOKENS: u32 = 2048;
/// Rows of one prompt in a step while others wait.
const CHUNK: u32 = 512;
/// Sequences decoded together.
const RUNNING: u32 = 16;
/// Requests that may wait.
const QUEUED: u32 = 4096;

/// The effective values of a running engine.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    pub(crate) scheduler: Limits,
    /// Positions a sequence may have.
    pub(crate) max_context: u32,
    pub(crate) max_queued: u32,
    pub(crate) prepare_threads: u32,
    pub(crate) step_timeout: Duration,
    pub(crate) stall_timeout: Option<Duration>,
    pub(crate) age_steps: u64,
    pub(crate) age: Duration,
    pub(crate) grammar_threads: u32,
    pub(crate) grammar_timeout: Duration,
    pub(crate) grammar_cache_bytes: u64,
    /// Ids that no request gets.
    pub(crate) token_blacklist: Vec<u32>,
    /// Rows with logits that prompts may have in a step.
    pub(crate) max_logit_rows: u32,
    pub(crate) report: Report,
}

impl Config {
    /// Adjusts what can be adjusted and refuses the rest.
    pub(crate) fn new(
        options: &EngineOptions,
        tuning: &Tuning,
        model: &ModelLimits,
    ) -> Result<Self, Error> {
        check_model(model)?;
        let mut report = tuning.report.clone();
        let max_context = capped(
            &mut report,
            "max_context",
            options.max_context,
            (model.max_context, Origin::Model),
            model.max_context,
        );
        let sequences = capped(
            &mut report,
            "max_running",
            options.max_running,
            (RUNNING, Origin::Default),
            model.slots - 1,
        );
        let max_queued = capped(
            &mut report,
            "max_queued",
            options.max_queued,
            (QUEUED, Origin::Default),
            u32::MAX,
        );
        let block_tokens = model.block_tokens;
        match tuning.block_tokens {
            Some(wanted) if wanted != block_tokens => report.adjust(
                "block_tokens",
                block_tokens,
                format!("the model's pools have blocks of {block_tokens}, {wanted} was asked for"),
            ),
            Some(_) => {}
            None => report.set("block_tokens", block_tokens, Origin::Model),
        }
        let mut chunk = tuning.chunk.unwrap_or(CHUNK) / block_tokens * block_tokens;
        chunk = chunk.max(block_tokens);
        match tuning.chunk {
            Some(wanted) if wanted != chunk => report.adjust(
                "chunk",
                chunk,
                format!("a multiple of the block size {block_tokens}, {wanted} was asked for"),
            ),
            Some(_) => {}
            None => report.set("chunk", chunk, Origin::Default),
        }
        let blocks = model.blocks - 1;
        let mut limits = Limits {
            tokens: 0,
            sequences,
            chunk,
            block_tokens,
            reserve: (f64::from(blocks) * tuning.watermark) as u32,
            lookahead: tuning.lookahead_blocks,
            overtake_limit: tuning.overtake_limit,
            max_preemptions: tuning.max_preemptions,
            fixed_chunks: tuning.determinism >= Determinism::D1,
        };
        let least = limits.least_tokens();
        limits.tokens = match tuning.max_step_tokens {
            Some(tokens) if tokens < least => {
                return Err(Error::new(
                    Code::InvalidParam,
                    "max_step_tokens",
                    format!(
                        "\"max_step_tokens\" {tokens} is below {least}, which {sequences} sequences and \
                         one part of a prompt need"
                    ),
                ));
            }
            Some(tokens) => tokens,
            None => {
                let tokens = STEP_TOKENS.max(least);
                report.set("max_step_tokens", tokens, Origin::Default);
                tokens
            }
        };
        Ok(Self {
            scheduler: limits,
            max_context,
            max_queued,
            prepare_threads: tuning.prepare_threads,
            step_timeout: tuning.step_timeout,
            stall_timeout: tuning.stall_timeout,
            age_steps: tuning.age_steps,
            age: tuning.age,
            grammar_threads: tuning.grammar_threads,
            grammar_timeout: tuning.grammar_timeout,
            grammar_cache_bytes: tuning.grammar_cache_bytes,
            token_blacklist: blacklist(&tuning.token_blacklist, model.vocab)?,
            max_logit_rows: tuning.max_logit_rows,
            report,
        })
    }
}

/// Checked here because only now the vocabulary is known.
fn blacklist(ids: &[u32], vocab: u32) -> Result<Vec<u32>, Error> {
    if let Some(id) = ids.iter().find(|id| **id >= vocab) {
        return Err(Error::new(
            Code::InvalidParam,
            "token_blacklist",
            format!("\"token_blacklist\" has {id}, which is outside the vocabulary of {vocab}"),
        ));
    }
    Ok(ids.to_vec())
}

/// 0 takes the default; both are capped.
fn capped(
    report: &mut Report,
    name: &'static str,
    wanted: u32,
    usual: (u32, Origin),
    most: u32,
) -> u32 {
    let value = if wanted == 0 { usual.0 } else { wanted };
    if value > most && wanted > 0 {
        report.adjust(
            name,
            most,
            format!("{wanted} was asked for, {most} is what there is"),
        );
    } else if wanted > 0 {
        report.set(name, value, Origin::Caller);
    } else {
        report.set(name, value.min(most), usual.1);
    }
    value.min(most)
}

/// A model that cannot run anything is a mistake of the loader.
fn check_model(model: &ModelLimits) -> Result<(), Error> {
    for (name, value, least) in [
        ("vocab", model.vocab, 1),
        ("max_context", model.max_context, 2),
        ("block_tokens", model.block_tokens, 1),
        ("blocks", model.blocks, 2),
        ("slots", model.slots, 2),
    ] {
        if value < least {
            return Err(Error::new(
                Code::BadFormat,
                name,
                format!("the model has \"{name}\" {value}, at least {least} is needed"),
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model() -> ModelLimits {
        ModelLimits {
            vocab: 100,
            max_context: 1000,
            block_tokens: 8,
            blocks: 101,
            slots: 5,
            max_rollback: 0,
            history: 0,
            truncation_keep: 0,
            replay_window: 0,
            eos: vec![],
        }
    }

    fn config(options: &EngineOptions) -> Result<Config, Error> {
        let tuning = Tuning::parse(&options.tuning_json, options.deterministic)?;
        Config::new(options, &tuning, &model())
    }

    #[test]
    fn defaults_come_from_the_model_and_the_table() {
        let config = config(&EngineOptions::default()).unwrap();
        assert_eq!(config.max_context, 1000);
        assert_eq!(config.scheduler.sequences, 4);
        assert_eq!(config.scheduler.tokens, 2048);
        assert_eq!(config.scheduler.chunk, 512);
        assert_eq!(config.scheduler.reserve, 1);
        let json = config.report.to_json();
        assert_eq!(json["max_context"]["origin"], "model");
        assert_eq!(json["block_tokens"]["value"], 8);
    }

    #[test]
    fn what_cannot_be_is_adjusted_and_said() {
        let config = config(&EngineOptions {
            max_running: 100,
            max_context: 2000,
            tuning_json: r#"{"chunk": 30, "block_tokens": 16}"#.to_owned(),
            ..EngineOptions::default()
        })
        .unwrap();
        assert_eq!(config.scheduler.sequences, 4);
        assert_eq!(config.scheduler.chunk, 24);
        let json = config.report.to_json();
        for name in ["max_running", "max_context", "chunk", "block_tokens"] {
            assert_eq!(json[name]["origin"], "adjusted", "{name}");
            assert!(json[name]["why"].is_string(), "{name}");
        }
    }

    #[test]
    fn a_budget_that_could_starve_a_prompt_is_refused() {
        let options = EngineOptions {
            tuning_json: r#"{"max_step_tokens": 11}"#.to_owned(),
            ..EngineOptions::default()
        };
        assert_eq!(config(&options).unwrap_err().param, "max_step_tokens");
        let mut options = EngineOptions {
            tuning_json: r#"{"max_step_tokens": 12, "chunk": 64}"#.to_owned(),
            ..EngineOptions::default()
        };
        assert_eq!(config(&options).unwrap().scheduler.tokens, 12);
        options.deterministic = true;
        assert_eq!(config(&options).unwrap_err().param, "max_step_tokens");
    }
}
