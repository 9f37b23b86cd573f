//! How an engine is opened, and what it says of itself.

use std::path::PathBuf;

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
    pub running: u32,
    pub waiting: u32,
    pub paused: u32,
    pub kv_blocks_used: u32,
    pub kv_blocks_total: u32,
}
