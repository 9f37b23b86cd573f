//! Models and golden tensors for integration tests.
#![allow(
    dead_code,
    unreachable_pub,
    reason = "each test crate uses its own part"
)]

use std::path::{Path, PathBuf};

use fathom::engine::backend::Numerics;
use fathom::engine::backend::cpu::Cpu;
use fathom::engine::backend::host::Host;
use fathom::engine::backend::host::kernels::Kernels;
use fathom::engine::backend::reference::Plain;
use fathom::engine::kv::{BlockId, SlotId};
use fathom::engine::model::config::{Family, ModelConfig};
use fathom::engine::model::parts::{Pools, Probe};
use fathom::engine::model::{AnyModel, Bounds, LogitRows, Model, StepSequence};
use fathom::engine::weights::{Checkpoint, Shard};

/// A folder of the repository.
pub fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// Golden tensors of one file.
pub struct Golden(Shard);

impl Golden {
    pub fn open(path: &Path) -> Self {
        Self(Shard::open(path).unwrap())
    }

    pub fn has(&self, name: &str) -> bool {
        self.0.has(name)
    }

    pub fn shape(&self, name: &str) -> Vec<usize> {
        self.0.tensor(name).unwrap().shape
    }

    pub fn floats(&self, name: &str) -> Vec<f32> {
        self.0
            .tensor(name)
            .unwrap()
            .to_f32()
            .unwrap_or_else(|| panic!("{name} has no floats"))
    }

    /// Integers of any width.
    pub fn ints(&self, name: &str) -> Vec<i64> {
        let tensor = self.0.tensor(name).unwrap();
        if let Some(ids) = tensor.to_i64() {
            return ids;
        }
        match tensor.dtype.size() {
            1 => tensor.bytes.iter().map(|b| i64::from(*b)).collect(),
            4 => tensor
                .bytes
                .chunks_exact(4)
                .map(|b| i64::from(i32::from_le_bytes([b[0], b[1], b[2], b[3]])))
                .collect(),
            _ => panic!("{name} has no integers"),
        }
    }
}

/// The inner loops a test runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Device {
    Reference,
    Cpu,
}

/// A model on either host backend.
pub enum TestModel {
    Reference(AnyModel<Host<Plain>>),
    Cpu(AnyModel<Host<Cpu>>),
}

impl TestModel {
    pub fn forward(
        &mut self,
        step: &[StepSequence<'_>],
        logits: &mut Vec<f32>,
        watch: Option<&mut dyn Probe>,
    ) -> Result<(), fathom::engine::Error> {
        match self {
            Self::Reference(model) => model.forward_probed(step, logits, watch),
            Self::Cpu(model) => model.forward_probed(step, logits, watch),
        }
    }

    pub fn model(&mut self) -> &mut dyn Model {
        match self {
            Self::Reference(model) => model,
            Self::Cpu(model) => model,
        }
    }
}

/// Opens a checkpoint with room for `sequences` sequences of `context` tokens.
pub fn open(
    dir: &Path,
    device: Device,
    numerics: Numerics,
    token_map: &[u32],
    sequences: usize,
    context: usize,
) -> TestModel {
    let config = ModelConfig::read(dir).unwrap();
    let checkpoint = Checkpoint::open(dir, &config).unwrap();
    let block_tokens = if config.family == Family::V4 {
        256
    } else {
        128
    };
    let blocks = sequences * context.div_ceil(block_tokens) + 1;
    let pools = Pools {
        blocks,
        slots: sequences + 1,
        block_tokens: 0,
    };
    fn build<K: Kernels>(
        kernels: K,
        numerics: Numerics,
        config: &ModelConfig,
        checkpoint: &Checkpoint,
        pools: Pools,
        map: &[u32],
    ) -> AnyModel<Host<K>> {
        AnyModel::new(
            Host::new(kernels, numerics, config.weight_block),
            config,
            checkpoint,
            pools,
            map,
        )
        .unwrap()
    }
    match device {
        Device::Reference => TestModel::Reference(build(
            Plain,
            numerics,
            &config,
            &checkpoint,
            pools,
            token_map,
        )),
        Device::Cpu => TestModel::Cpu(build(
            Cpu::new(2).unwrap(),
            numerics,
            &config,
            &checkpoint,
            pools,
            token_map,
        )),
    }
}

/// One sequence of a test model: sequence `index` owns slot `index + 1` and a run of blocks.
pub struct Sequence {
    pub slot: SlotId,
    pub blocks: Vec<BlockId>,
    pub tokens: Vec<u32>,
}

impl Sequence {
    pub fn new(model: &mut TestModel, index: usize, context: usize) -> Self {
        let block_tokens = model.model().limits().block_tokens as usize;
        let each = context.div_ceil(block_tokens);
        let blocks = (0..each)
            .map(|i| BlockId((1 + index * each + i) as u32))
            .collect();
        let slot = SlotId(index as u32 + 1);
        model.model().clear_slot(slot);
        Self {
            slot,
            blocks,
            tokens: Vec::new(),
        }
    }

    /// The rows `tokens` from `position` on, where `self.tokens` already holds them.
    pub fn step(&self, from: usize, to: usize, logits: LogitRows) -> StepSequence<'_> {
        StepSequence {
            slot: self.slot,
            blocks: &self.blocks,
            position: from as u32,
            tokens: &self.tokens[from..to],
            history: &self.tokens[..from],
            image: &[],
            bounds: Bounds::default(),
            logits,
        }
    }

    /// Runs `tokens` at the end, returns the logits of all of them.
    pub fn feed(&mut self, model: &mut TestModel, tokens: &[u32]) -> Vec<f32> {
        let from = self.tokens.len();
        self.tokens.extend_from_slice(tokens);
        let mut logits = Vec::new();
        model
            .forward(
                &[self.step(from, self.tokens.len(), LogitRows::All)],
                &mut logits,
                None,
            )
            .unwrap();
        logits
    }
}

/// The largest difference and where it is.
pub fn max_difference(a: &[f32], b: &[f32]) -> (f32, usize) {
    assert_eq!(a.len(), b.len());
    let mut worst = (0.0, 0);
    for (i, (x, y)) in a.iter().zip(b).enumerate() {
        let d = (x - y).abs();
        if d > worst.0 || d.is_nan() {
            worst = (d, i);
        }
    }
    worst
}

/// The id of the largest logit below `below`, the smallest on ties.
pub fn argmax(logits: &[f32], below: usize) -> u32 {
    let mut best = 0;
    for (i, v) in logits[..below].iter().enumerate() {
        if *v > logits[best] {
            best = i;
        }
    }
    best as u32
}
