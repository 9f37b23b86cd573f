//! A model whose only purpose is to expose mistakes of the engine (`engine.md` section 28).
//!
//! Its state rows are hashes. A row at position p hashes the state read back for p − 1 with its token, and is
//! stored where a real model would store it: a window ring and a compressor ring in the slot, compressed rows
//! and keys in the blocks. Logits are a pseudo-random function of everything a row reads back, so a stale ring
//! row, an aliased block, a wrong chunk border or a missed clear changes tokens. [`expected`] gives the logits
//! from the tokens alone. Cost: a few nanoseconds for each row read.

#![forbid(unsafe_code)]

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use crate::engine::error::{Code, Error};
use crate::engine::kv::{BlockId, SlotId};
use crate::engine::model::{LogitRows, Model, ModelLimits, StepSequence};

/// Shape and behaviour.
#[derive(Clone, Debug)]
pub struct CanaryOptions {
    /// Sizes the engine sees.
    pub limits: ModelLimits,
    /// Rows of the window.
    pub window: u32,
    /// Tokens of a compressed row; divides the block size.
    pub ratio: u32,
    /// Time a step takes at least.
    pub delay: Duration,
    /// What goes wrong, and at which step (from 0).
    pub fault: Option<(u64, Fault)>,
    /// A row of this id has NaN among its logits. No row makes it likely: it comes from prompts only.
    pub poison: Option<u32>,
    /// Lets a test decide when steps run.
    pub gate: Option<Arc<Gate>>,
}

impl Default for CanaryOptions {
    fn default() -> Self {
        Self {
            limits: ModelLimits {
                vocab: 97,
                max_context: 4096,
                block_tokens: 8,
                blocks: 513,
                slots: 20,
                max_rollback: 6,
                history: 3,
                truncation_keep: 0,
                replay_window: 0,
                eos: vec![1],
            },
            window: 12,
            ratio: 4,
            delay: Duration::ZERO,
            fault: None,
            poison: None,
            gate: None,
        }
    }
}

/// What can go wrong in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The step fails with this code.
    Error(Code),
    /// The step panics.
    Panic,
    /// The first row with logits has NaN among them.
    NanRow,
}

/// Holds steps back until a test lets them run.
#[derive(Debug, Default)]
pub struct Gate {
    state: Mutex<GateState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct GateState {
    begun: u64,
    allowed: u64,
    is_open: bool,
}

impl Gate {
    /// No step runs yet.
    pub fn closed() -> Arc<Self> {
        Arc::default()
    }

    /// Lets this many steps run.
    pub fn allow(&self, steps: u64) {
        self.state.lock().allowed += steps;
        self.changed.notify_all();
    }

    /// Lets all steps run from now on.
    pub fn open(&self) {
        self.state.lock().is_open = true;
        self.changed.notify_all();
    }

    /// Waits until this many steps have begun, whether allowed to run or not.
    pub fn wait_begun(&self, steps: u64) {
        let mut state = self.state.lock();
        self.changed.wait_while(&mut state, |s| s.begun < steps);
    }

    fn pass(&self) {
        let mut state = self.state.lock();
        state.begun += 1;
        self.changed.notify_all();
        self.changed
            .wait_while(&mut state, |s| !s.is_open && s.allowed == 0);
        state.allowed = state.allowed.saturating_sub(1);
    }
}

/// What the model saw, for tests to look at while the engine owns it.
#[derive(Debug, Default)]
pub struct Probe {
    /// Steps run.
    pub steps: AtomicU64,
    /// Rows run.
    pub rows: AtomicU64,
    /// Most sequences in a step.
    pub widest: AtomicU64,
    /// Steps with rows of prompts and rows that decode.
    pub mixed: AtomicU64,
    /// Rows read back that were not those of the wanted position.
    pub stale: AtomicU64,
}

/// One stored row: whose position it is, and its value.
type Row = (u32, u64);

const NONE: Row = (u32::MAX, 0xdead);

/// See the module.
#[derive(Debug)]
pub struct Canary {
    options: CanaryOptions,
    probe: Arc<Probe>,
    /// [slots][window ring, then compressor ring]
    slots: Vec<Row>,
    /// [blocks][block_tokens / ratio] compressed rows and keys
    blocks: Vec<(Row, Row)>,
    step: u64,
}

impl Canary {
    /// A model with empty pools.
    pub fn new(options: CanaryOptions) -> Self {
        let limits = &options.limits;
        let slots = limits.slots as usize * slot_rows(&options);
        let blocks = (limits.blocks * (limits.block_tokens / options.ratio)) as usize;
        Self {
            slots: vec![NONE; slots],
            blocks: vec![(NONE, NONE); blocks],
            probe: Arc::default(),
            step: 0,
            options,
        }
    }

    /// The counters, which outlive the model.
    pub fn probe(&self) -> Arc<Probe> {
        self.probe.clone()
    }

    fn run(&mut self, sequence: &StepSequence<'_>, logits: &mut Vec<f32>) -> Result<(), Error> {
        let CanaryOptions { window, ratio, .. } = self.options;
        let block_tokens = self.options.limits.block_tokens;
        let ring = self.window_ring() as usize;
        let tail_ring = slot_rows(&self.options) - ring;
        let base = sequence.slot.0 as usize * slot_rows(&self.options);
        let end = sequence.position + sequence.tokens.len() as u32;
        if sequence.slot.0 == 0
            || (sequence.blocks.len() as u32) * block_tokens < end
            || sequence.blocks.contains(&BlockId(0))
        {
            return Err(broken("a sequence uses the sink or too few blocks"));
        }
        let known = sequence.history.len() as u32;
        if known != sequence.position && known < self.options.limits.history {
            return Err(broken("the history is too short"));
        }
        let cell = |group: u32| {
            let block = sequence.blocks[(group * ratio / block_tokens) as usize].0;
            (block * (block_tokens / ratio) + group % (block_tokens / ratio)) as usize
        };
        for (&token, position) in sequence.tokens.iter().zip(sequence.position..) {
            let before = match position {
                0 => 0,
                p => self.slot_row(base, ring, p - 1),
            };
            let value = chain(before, token);
            self.slots[base + position as usize % ring] = (position, value);
            self.slots[base + ring + position as usize % tail_ring] = (position, !value);
            if (position + 1).is_multiple_of(ratio) {
                let group = position / ratio;
                let sum = (group * ratio..=position).fold(GROUP, |sum, p| {
                    mix(sum, !self.slot_row(base + ring, tail_ring, p))
                });
                self.blocks[cell(group)] = ((group, sum), (group, !sum));
            }
            let wants = match sequence.logits {
                LogitRows::None => false,
                LogitRows::Last => position + 1 == end,
                LogitRows::All => true,
            };
            if !wants {
                continue;
            }
            // Everything a row of a real model would look at.
            let mut read = READ;
            for p in position.saturating_sub(window - 1)..=position {
                read = mix(read, self.slot_row(base, ring, p));
            }
            for group in 0..(position + 1) / ratio {
                let (row, key) = self.blocks[cell(group)];
                for (tag, value) in [row, (key.0, !key.1)] {
                    self.note(tag == group);
                    read = mix(read, value);
                }
            }
            for p in (position + 1) / ratio * ratio..=position {
                read = mix(read, !self.slot_row(base + ring, tail_ring, p));
            }
            let at = (position - sequence.position) as usize;
            let ids = sequence.history.iter().chain(&sequence.tokens[..=at]);
            for id in ids.rev().take(self.options.limits.history as usize + 1) {
                read = mix(read, u64::from(*id));
            }
            fill(&self.options, read, token, logits);
        }
        Ok(())
    }

    fn window_ring(&self) -> u32 {
        self.options.window + self.options.limits.max_rollback
    }

    fn slot_row(&self, base: usize, ring: usize, position: u32) -> u64 {
        let (tag, value) = self.slots[base + position as usize % ring];
        self.note(tag == position);
        value
    }

    fn note(&self, is_right: bool) {
        if !is_right {
            self.probe.stale.fetch_add(1, Relaxed);
        }
    }
}

impl Model for Canary {
    fn limits(&self) -> &ModelLimits {
        &self.options.limits
    }

    fn clear_slot(&mut self, slot: SlotId) {
        let rows = slot_rows(&self.options);
        let base = slot.0 as usize * rows;
        self.slots[base..base + rows].fill(NONE);
    }

    fn save(&mut self, slot: SlotId) -> Vec<u8> {
        let rows = slot_rows(&self.options);
        let base = slot.0 as usize * rows;
        let row = |(tag, value): &(u32, u64)| {
            [u64::from(*tag).to_le_bytes(), value.to_le_bytes()].concat()
        };
        self.slots[base..base + rows].iter().flat_map(row).collect()
    }

    fn restore(&mut self, slot: SlotId, saved: &[u8]) -> Result<(), Error> {
        let rows = slot_rows(&self.options);
        if saved.len() != rows * 16 {
            return Err(broken("a snapshot of another size"));
        }
        let word = |bytes: &[u8]| {
            bytes
                .iter()
                .rev()
                .fold(0u64, |word, byte| (word << 8) | u64::from(*byte))
        };
        let base = slot.0 as usize * rows;
        for (row, saved) in self.slots[base..base + rows]
            .iter_mut()
            .zip(saved.chunks(16))
        {
            *row = (word(&saved[..8]) as u32, word(&saved[8..]));
        }
        Ok(())
    }

    fn forward(&mut self, step: &[StepSequence<'_>], logits: &mut Vec<f32>) -> Result<(), Error> {
        if let Some(gate) = &self.options.gate {
            gate.pass();
        }
        if !self.options.delay.is_zero() {
            std::thread::sleep(self.options.delay);
        }
        let number = self.step;
        self.step += 1;
        let fault = self
            .options
            .fault
            .and_then(|(at, fault)| (at == number).then_some(fault));
        match fault {
            Some(Fault::Panic) => panic!("injected"),
            Some(Fault::Error(code)) => return Err(Error::new(code, "", "injected")),
            Some(Fault::NanRow) | None => {}
        }
        let mut slots = HashSet::new();
        let mut blocks = HashSet::new();
        for sequence in step {
            let is_new = slots.insert(sequence.slot)
                && sequence.blocks.iter().all(|block| blocks.insert(*block));
            if !is_new || sequence.tokens.is_empty() {
                return Err(broken("two sequences share state, or one has no rows"));
            }
        }
        if step.is_empty() {
            return Err(broken("a step without rows"));
        }
        logits.clear();
        for sequence in step {
            self.run(sequence, logits)?;
        }
        if fault == Some(Fault::NanRow)
            && let Some(first) = logits.first_mut()
        {
            *first = f32::NAN;
        }
        let rows: usize = step.iter().map(|s| s.tokens.len()).sum();
        let is_mixed = step.iter().any(|s| s.tokens.len() > 1)
            && step.iter().any(|s| s.tokens.len() == 1 && s.position > 0);
        self.probe.steps.fetch_add(1, Relaxed);
        self.probe.rows.fetch_add(rows as u64, Relaxed);
        self.probe.widest.fetch_max(step.len() as u64, Relaxed);
        self.probe.mixed.fetch_add(is_mixed.into(), Relaxed);
        Ok(())
    }
}

/// The logits after `tokens`, from nothing but the tokens.
pub fn expected(options: &CanaryOptions, tokens: &[u32]) -> Vec<f32> {
    let mut values = Vec::with_capacity(tokens.len());
    for &token in tokens {
        values.push(chain(values.last().copied().unwrap_or(0), token));
    }
    let ratio = options.ratio as usize;
    let recent = values.iter().rev().take(options.window as usize).rev();
    let mut read = recent.fold(READ, |read, value| mix(read, *value));
    for group in values.chunks_exact(ratio) {
        let sum = group.iter().fold(GROUP, |sum, value| mix(sum, *value));
        read = mix(mix(read, sum), sum);
    }
    for value in values.chunks_exact(ratio).remainder() {
        read = mix(read, *value);
    }
    for id in tokens
        .iter()
        .rev()
        .take(options.limits.history as usize + 1)
    {
        read = mix(read, u64::from(*id));
    }
    let mut logits = Vec::new();
    if let Some(&last) = tokens.last() {
        fill(options, read, last, &mut logits);
    }
    logits
}

const GROUP: u64 = 0x6772_6f75_7000_0001;
const READ: u64 = 0x7265_6164_0000_0001;

fn slot_rows(options: &CanaryOptions) -> usize {
    let rollback = options.limits.max_rollback;
    (options.window + rollback + options.ratio + rollback - 1) as usize
}

fn broken(message: &str) -> Error {
    Error::new(Code::Internal, "", message)
}

fn chain(before: u64, token: u32) -> u64 {
    mix(before, u64::from(token) + 1)
}

/// Order matters; every bit of both counts.
fn mix(a: u64, b: u64) -> u64 {
    let mut x = a
        .rotate_left(23)
        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
        .wrapping_add(b);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Appends a row of logits in [0, 8).
fn fill(options: &CanaryOptions, read: u64, token: u32, logits: &mut Vec<f32>) {
    let from = logits.len();
    logits.extend((0..options.limits.vocab).map(|id| {
        let bits = mix(read, u64::from(id)) >> 40;
        bits as f32 * (8.0 / (1 << 24) as f32)
    }));
    if let Some(poison) = options.poison {
        logits[from + poison as usize] = if token == poison {
            f32::NAN
        } else {
            f32::NEG_INFINITY
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::model::Bounds;

    fn sequence<'a>(
        slot: u32,
        blocks: &'a [BlockId],
        tokens: &'a [u32],
        from: usize,
        to: usize,
    ) -> StepSequence<'a> {
        StepSequence {
            slot: SlotId(slot),
            blocks,
            position: from as u32,
            tokens: &tokens[from..to],
            history: &tokens[..from],
            image: &[],
            bounds: Bounds::default(),
            logits: LogitRows::Last,
        }
    }

    #[test]
    fn any_chunks_give_the_logits_of_the_tokens_alone() {
        let options = CanaryOptions::default();
        let tokens: Vec<u32> = (0..60).map(|n| n * 31 % 97).collect();
        let blocks: Vec<BlockId> = (5..20).rev().map(BlockId).collect();
        let mut logits = Vec::new();
        for size in [1, 3, 7, 60] {
            let mut canary = Canary::new(options.clone());
            canary.clear_slot(SlotId(2));
            for from in (0..tokens.len()).step_by(size) {
                let to = (from + size).min(tokens.len());
                canary
                    .forward(&[sequence(2, &blocks, &tokens, from, to)], &mut logits)
                    .unwrap();
                assert_eq!(logits, expected(&options, &tokens[..to]));
            }
            assert_eq!(canary.probe().stale.load(Relaxed), 0);
        }
    }

    #[test]
    fn a_stale_slot_and_a_wrong_block_are_seen() {
        let options = CanaryOptions::default();
        let tokens: Vec<u32> = (0..40).map(|n| n * 17 % 97).collect();
        let blocks: Vec<BlockId> = (1..10).map(BlockId).collect();
        let mut canary = Canary::new(options.clone());
        let mut logits = Vec::new();
        canary
            .forward(&[sequence(1, &blocks, &tokens, 0, 39)], &mut logits)
            .unwrap();
        // Another table from the middle on.
        let mut other = blocks.clone();
        other[2] = BlockId(30);
        canary
            .forward(&[sequence(1, &other, &tokens, 39, 40)], &mut logits)
            .unwrap();
        assert_ne!(logits, expected(&options, &tokens));
        assert!(canary.probe().stale.load(Relaxed) > 0);
        // Another slot.
        let mut canary = Canary::new(options.clone());
        canary
            .forward(&[sequence(1, &blocks, &tokens, 0, 39)], &mut logits)
            .unwrap();
        canary
            .forward(&[sequence(2, &blocks, &tokens, 39, 40)], &mut logits)
            .unwrap();
        assert_ne!(logits, expected(&options, &tokens));
        // One block for two.
        let shared = [
            sequence(1, &blocks, &tokens, 0, 8),
            sequence(2, &blocks, &tokens, 0, 8),
        ];
        assert!(canary.forward(&shared, &mut logits).is_err());
    }
}
