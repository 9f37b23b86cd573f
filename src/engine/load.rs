//! From a directory to a model: the one place that knows which backends are built in.
//!
//! In: the options. Out: a model with its pools, and what to report of it. The memory plan is made from
//! headers alone, before anything is allocated. Blocks as long as reading takes.

#![forbid(unsafe_code)]

use std::path::Path;

use serde_json::{Value, json};

use super::backend::cpu::Cpu;
use super::backend::host::Host;
use super::backend::host::kernels::Kernels;
use super::backend::reference::Plain;
use super::backend::{Backend, Numerics};
use super::error::{Code, Error};
use super::model::compressed::compressed_ids;
use super::model::config::ModelConfig;
use super::model::parts::{Pools, value_bytes};
use super::model::{AnyModel, Model, ModelLimits, layout};
use super::options::{self, EngineOptions, Tuning};
use super::weights::Checkpoint;

/// What is known of a loaded, or planned, model besides the model.
#[derive(Clone, Debug, Default)]
pub struct LoadReport {
    /// Bytes of weights.
    pub weight_bytes: u64,
    /// Bytes of paged state.
    pub kv_bytes: u64,
    /// Devices in use.
    pub device_count: u32,
    /// The memory plan, as it stands under `plan` in the metrics.
    pub plan: Value,
    /// The directory's name.
    pub model_name: String,
    /// Sizes; after a dry run those the plan gives, if it fits.
    pub limits: Option<ModelLimits>,
}

/// Sequences decoded together unless the caller says otherwise.
const MAX_RUNNING: usize = 16;
/// Slots for each running sequence: partly prefilled and paused ones need some too.
const SLOT_RATIO: f64 = 1.2;
/// Share of free memory that paged state may take.
const MEMORY_SHARE: f64 = 0.9;
/// Positions that one request must have room for.
const MIN_CONTEXT: usize = 4096;

/// Loads the model that the options name. `progress` gets a fraction and a phase at most ten times a second and
/// answers `false` to stop with [`Code::Cancelled`].
pub(super) fn load_model(
    options: &EngineOptions,
    tuning: &Tuning,
    progress: &mut dyn FnMut(f32, &str) -> bool,
) -> Result<(Box<dyn Model>, LoadReport), Error> {
    let device = Device::parse(&options.device)?;
    let opened = Opened::new(options, tuning)?;
    let plan = Plan::new(&opened, options, tuning)?;
    if !plan.fits() {
        return Err(plan.refusal());
    }
    opened.checkpoint.load(progress, tuning.prefault)?;
    match device {
        Device::Cpu => opened.build(Cpu::new(options.cpu_threads as usize)?, &plan),
        Device::Reference => opened.build(Plain, &plan),
    }
}

/// The memory plan of the model that the options name; reads headers only.
pub(super) fn plan_model(options: &EngineOptions, tuning: &Tuning) -> Result<LoadReport, Error> {
    Device::parse(&options.device)?;
    let opened = Opened::new(options, tuning)?;
    let plan = Plan::new(&opened, options, tuning)?;
    let limits = plan.fits().then(|| plan.limits(&opened.config));
    Ok(LoadReport {
        limits,
        ..opened.report(&plan, "")
    })
}

/// A backend that is built in.
#[derive(Clone, Copy)]
enum Device {
    Cpu,
    Reference,
}

impl Device {
    fn parse(name: &str) -> Result<Self, Error> {
        match name {
            "" | "cpu" => Ok(Self::Cpu),
            "reference" => Ok(Self::Reference),
            _ if name == "cuda" || name.starts_with("cuda:") => {
                let message = format!("no CUDA backend is built in, \"{name}\" was asked for");
                Err(Error::new(Code::Unsupported, "device", message))
            }
            _ => {
                let message =
                    format!("device \"{name}\" is not known, expected \"cpu\" or \"reference\"");
                Err(Error::new(Code::InvalidParam, "device", message))
            }
        }
    }
}

/// A checkpoint whose headers have been checked.
struct Opened {
    config: ModelConfig,
    checkpoint: Checkpoint,
    token_map: Vec<u32>,
    numerics: Numerics,
    name: String,
}

impl Opened {
    fn new(options: &EngineOptions, tuning: &Tuning) -> Result<Self, Error> {
        let dir = &options.model_path;
        let mut config = ModelConfig::read(dir)?;
        if options.max_context > 0 {
            config.max_context = config.max_context.min(options.max_context as usize);
        }
        let checkpoint = Checkpoint::open(dir, &config)?;
        let token_map = if config.engram.is_some() {
            read_token_map(dir)?
        } else {
            Vec::new()
        };
        let numerics = match tuning.numerics {
            options::Numerics::Official => Numerics::OFFICIAL,
            options::Numerics::Plain => Numerics::PLAIN,
        };
        let name = dir.canonicalize().unwrap_or_else(|_| dir.clone());
        let name = name
            .file_name()
            .map_or_else(String::new, |name| name.to_string_lossy().into_owned());
        Ok(Self {
            config,
            checkpoint,
            token_map,
            numerics,
            name,
        })
    }

    fn build<K: Kernels>(
        self,
        kernels: K,
        plan: &Plan,
    ) -> Result<(Box<dyn Model>, LoadReport), Error> {
        let backend = Host::new(kernels, self.numerics, self.config.weight_block);
        let report = self.report(plan, &backend.describe());
        let model = AnyModel::new(
            backend,
            &self.config,
            &self.checkpoint,
            plan.pools,
            &self.token_map,
        )?;
        let report = LoadReport {
            limits: Some(model.limits().clone()),
            ..report
        };
        Ok((Box::new(model), report))
    }

    fn report(&self, plan: &Plan, backend: &str) -> LoadReport {
        let weights = self.checkpoint.weight_bytes();
        LoadReport {
            weight_bytes: weights.total(),
            kv_bytes: plan.kv_bytes(),
            device_count: 1,
            plan: json!({
                "fits": plan.fits(),
                "backend": backend,
                "model_digest": self.checkpoint.digest(),
                "weights": {
                    "dense_bytes": weights.dense,
                    "expert_bytes": weights.experts,
                    "engram_bytes": weights.engram,
                    "embedding_bytes": weights.embedding,
                    "mapped": true,
                },
                "pools": {
                    "block_tokens": plan.block_tokens,
                    "block_bytes": plan.block_bytes,
                    "blocks": plan.pools.blocks,
                    "slot_bytes": plan.slot_bytes,
                    "slots": plan.pools.slots,
                    "kv_bytes": plan.kv_bytes(),
                    "needed_bytes": plan.needed_bytes(),
                    "available_bytes": plan.available,
                },
                "context_tokens": plan.context_tokens(),
            }),
            model_name: self.name.clone(),
            limits: None,
        }
    }
}

/// Compressed ids need the tokenizer: the n-gram memory hashes text classes, not token ids.
fn read_token_map(dir: &Path) -> Result<Vec<u32>, Error> {
    let file = dir.join("tokenizer.json");
    let tokenizer = tokenizers::Tokenizer::from_file(&file).map_err(|error| {
        let file = file.display().to_string();
        let message =
            format!("{file}: {error}; the n-gram memory of this model needs its tokenizer");
        Error::new(Code::BadFormat, file, message)
    })?;
    compressed_ids(&tokenizer)
}

/// How memory is divided.
struct Plan {
    pools: Pools,
    block_tokens: usize,
    block_bytes: u64,
    slot_bytes: u64,
    /// Blocks that one request of the smallest useful context needs, block 0 included.
    min_blocks: usize,
    /// Bytes for blocks and slots; `None` where the caller did not say and the machine does not tell.
    available: Option<u64>,
}

impl Plan {
    fn new(opened: &Opened, options: &EngineOptions, tuning: &Tuning) -> Result<Self, Error> {
        let block_tokens = tuning.block_tokens.unwrap_or(0) as usize;
        let running = if options.max_running == 0 {
            MAX_RUNNING
        } else {
            options.max_running as usize
        };
        let slots = (running as f64 * SLOT_RATIO).ceil() as usize + 1;
        let shape = layout(
            &opened.config,
            Pools {
                blocks: 0,
                slots: 0,
                block_tokens,
            },
        );
        if let Some(group) = shape
            .groups
            .iter()
            .find(|g| !shape.block_tokens.is_multiple_of(g.ratio))
        {
            let message = format!(
                "block_tokens {} is not a multiple of ratio {}",
                shape.block_tokens, group.ratio
            );
            return Err(Error::new(Code::InvalidParam, "block_tokens", message));
        }
        let value = value_bytes(opened.numerics);
        let (block_bytes, slot_bytes) = (
            shape.block_bytes(value) as u64,
            shape.slot_bytes(value) as u64,
        );
        let max_context = opened.config.max_context;
        let wanted = (running * max_context.div_ceil(shape.block_tokens) + 1) as u64;
        let min_blocks = max_context.min(MIN_CONTEXT).div_ceil(shape.block_tokens) + 1;
        let available = match options.kv_bytes {
            0 => free_memory().map(|free| {
                let weights = opened.checkpoint.weight_bytes();
                let resident = weights.total().saturating_sub(weights.engram);
                (free as f64 * MEMORY_SHARE) as u64
                    - resident.min((free as f64 * MEMORY_SHARE) as u64)
            }),
            bytes => Some(bytes),
        };
        let blocks = match available {
            Some(bytes) if block_bytes > 0 => {
                wanted.min(bytes.saturating_sub(slot_bytes * slots as u64) / block_bytes)
            }
            _ => wanted,
        };
        let pools = Pools {
            blocks: usize::try_from(blocks).unwrap_or(usize::MAX),
            slots,
            block_tokens,
        };
        Ok(Self {
            pools,
            block_tokens: shape.block_tokens,
            block_bytes,
            slot_bytes,
            min_blocks,
            available,
        })
    }

    fn fits(&self) -> bool {
        self.pools.blocks >= self.min_blocks && u32::try_from(self.pools.blocks).is_ok()
    }

    fn kv_bytes(&self) -> u64 {
        self.pools.blocks as u64 * self.block_bytes + self.pools.slots as u64 * self.slot_bytes
    }

    fn needed_bytes(&self) -> u64 {
        self.min_blocks as u64 * self.block_bytes + self.pools.slots as u64 * self.slot_bytes
    }

    fn context_tokens(&self) -> u64 {
        self.pools.blocks.saturating_sub(1) as u64 * self.block_tokens as u64
    }

    fn limits(&self, config: &ModelConfig) -> ModelLimits {
        super::model::parts::limits(config, &layout(config, self.pools), 0)
    }

    fn refusal(&self) -> Error {
        let message = format!(
            "state needs {} bytes for one request ({} blocks of {} and {} slots of {}), {} are available",
            self.needed_bytes(),
            self.min_blocks,
            self.block_bytes,
            self.pools.slots,
            self.slot_bytes,
            self.available
                .map_or_else(|| "unknown".to_owned(), |bytes| bytes.to_string()),
        );
        Error::new(Code::OutOfHostMemory, "kv_bytes", message)
    }
}

/// Bytes that the system would give out now, where it tells.
fn free_memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kilobytes * 1024)
}
