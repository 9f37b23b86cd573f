//! The engine thread: commands in, plans carried out, tokens out.
//!
//! It alone owns the sequences, the pools and the model. One turn of [`Worker::run`] reads the ring, ends what is
//! over, asks the scheduler for a plan, runs the model over all its rows, samples and delivers. Cost beside the
//! model: a few microseconds a sequence; memory is reused from step to step.

#![forbid(unsafe_code)]

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use super::constraint::timed_out;
use super::core::{Command, Compiling, Core, shutting_down};
use super::delivery::{Cancel, Delivery, End};
use super::error::{Code, Error};
use super::kv::{self, Bounded, Budget, Fence, Hit, Memory, Order, SlotId, Supply};
use super::metrics::count;
use super::metrics::steps::{StepKind, StepRecord};
use super::model::{Bounds, LogitRows, Model, StepSequence};
use super::queue::Shared;
use super::request::{Failure, FinishReason, RequestId, Usage};
use super::sampling::Sampler;
use super::scheduler::{Plan, Running, Scheduler, Source, View, Waiting};
use super::sequence::{
    PauseChange, Place, Sequence, TokenTime, cancelled, earliest, expired, manner,
};

/// Index in [`Worker::sequences`].
type Key = usize;

/// A request that is still being made.
struct Preparing {
    delivery: Arc<Delivery>,
    until: Compiling,
}

impl Preparing {
    /// The next expected end by the clock, and what it would be called.
    fn due(&self) -> Option<(Instant, Code)> {
        let until = &self.until;
        [
            (until.total, Code::DeadlineTotal),
            (until.queue, Code::DeadlineQueue),
            (until.first_token, Code::DeadlineFirstToken),
            (until.grammar, Code::ConstraintTimeout),
        ]
        .into_iter()
        .filter_map(|(at, code)| at.map(|at| (at, code)))
        .min_by_key(|(at, _)| *at)
    }
}

/// See the module.
pub(crate) struct Worker {
    core: Arc<Core>,
    model: Box<dyn Model>,
    eos: Vec<u32>,
    vocab: usize,
    block_tokens: u32,
    memory: Memory,
    scheduler: Scheduler,
    sampler: Sampler,
    sequences: Vec<Option<Box<Sequence>>>,
    vacant: Vec<Key>,
    keys: HashMap<RequestId, Key>,
    running: Vec<Key>,
    waiting: Vec<Key>,
    preparing: BTreeMap<RequestId, Preparing>,
    /// Queues with events that were not announced.
    unannounced: Vec<Arc<Shared>>,
    /// No deadline passes before it.
    next_due: Option<Instant>,
    step: u64,
    /// Steps that could not be noted while somebody read the others.
    unnoted: Vec<StepRecord>,
    drain: Option<Option<Instant>>,
    scratch: Scratch,
}

/// Memory that is reused.
#[derive(Default)]
struct Scratch {
    commands: VecDeque<Command>,
    cancels: Vec<(RequestId, Cancel)>,
    running: Vec<Running>,
    waiting: Vec<Waiting>,
    plan: Plan,
    /// Who has rows in this step.
    rows: Vec<Rows>,
    cleared: Vec<SlotId>,
    steps: Vec<StepSequence<'static>>,
    logits: Vec<f32>,
}

/// Consecutive rows of one sequence in a step.
#[derive(Clone, Copy)]
struct Rows {
    key: Key,
    count: u32,
    logits: LogitRows,
    /// The last of them chooses a token.
    ends: bool,
}

impl Rows {
    /// How many of them have logits.
    fn with_logits(&self) -> u32 {
        match self.logits {
            LogitRows::None => 0,
            LogitRows::Last => 1,
            LogitRows::All => self.count,
        }
    }
}

impl Worker {
    pub(crate) fn new(core: Arc<Core>, model: Box<dyn Model>) -> Self {
        let limits = model.limits();
        let worker = Self {
            eos: limits.eos.clone(),
            vocab: limits.vocab as usize,
            block_tokens: limits.block_tokens,
            memory: Memory::new(&kv::Options {
                blocks: limits.blocks,
                slots: limits.slots,
                block_tokens: limits.block_tokens,
                budget: Budget::default(),
                bounded: Bounded::Stored,
                key: 0,
                hash: None,
                order: Order::Recent,
            }),
            scheduler: Scheduler::new(core.config.scheduler),
            sampler: Sampler::without(&core.config.token_blacklist),
            sequences: Vec::new(),
            vacant: Vec::new(),
            keys: HashMap::new(),
            running: Vec::new(),
            waiting: Vec::new(),
            preparing: BTreeMap::new(),
            unannounced: Vec::new(),
            next_due: None,
            step: 0,
            unnoted: Vec::new(),
            drain: None,
            scratch: Scratch::default(),
            core,
            model,
        };
        let counters = &worker.core.counters;
        let (blocks, slots) = (worker.memory.block_counts(), worker.memory.slot_counts());
        counters.kv_blocks_total.store(blocks.total(), Relaxed);
        let slots = slots.free + slots.owned + slots.quarantined;
        counters.slots_total.store(slots, Relaxed);
        worker
    }

    /// The life of the thread: nothing leaves it but through the core and the queues.
    pub(crate) fn live(mut self) {
        let core = self.core.clone();
        let outcome = catch_unwind(AssertUnwindSafe(|| self.run()));
        if outcome.is_err() {
            core.fail(panicked("the engine thread"));
        }
        core.close_inbox();
        if let Some(error) = core.failure() {
            // Its own records may be what is broken: a second panic only loses the counts of the ends.
            let _ = catch_unwind(AssertUnwindSafe(|| self.end_all_failed(error)));
            core.end_everyone(error, FinishReason::Error, "engine_failed");
        } else {
            core.end_everyone(&shutting_down(), FinishReason::Cancelled, "shutdown");
        }
        // A model that panicked may do so again on drop.
        let _ = catch_unwind(AssertUnwindSafe(|| drop(self)));
        core.counters.clear_gauges();
        core.mark_exited();
    }

    fn run(&mut self) {
        loop {
            let now = Instant::now();
            self.drain_commands(now);
            self.expire(now);
            if self.is_over(now) {
                self.announce();
                return;
            }
            self.look_around(now);
            self.plan();
            self.announce();
            if self.scratch.plan.rows.is_empty() {
                if self.is_stuck() {
                    let error = "the scheduler found no work although there is some";
                    self.core.fail(Error::new(Code::Internal, "", error));
                    return;
                }
                self.core.wait(self.earliest_due(), self.drain);
                continue;
            }
            if let Err(error) = self.carry_out(now) {
                self.core.fail(error);
                return;
            }
            if self.core.has_failed() {
                // The watchdog has ended everybody meanwhile.
                return;
            }
            self.announce();
        }
    }

    // Commands and clocks.

    fn drain_commands(&mut self, now: Instant) {
        let mut commands = std::mem::take(&mut self.scratch.commands);
        let mut cancels = std::mem::take(&mut self.scratch.cancels);
        self.drain = self.core.drain_inbox(&mut commands, &mut cancels);
        for command in commands.drain(..) {
            match command {
                Command::Submit(submission) => {
                    let id = submission.delivery.id;
                    if self.preparing.remove(&id).is_none() && self.core.find(id).is_none() {
                        // Deferred, and over before it was made.
                        continue;
                    }
                    let cancel = submission.delivery.cancel_wish();
                    let sequence =
                        Sequence::new(*submission, &self.eos, self.vocab as u32, now, self.step);
                    let key = self.insert(sequence);
                    if let Some(why) = cancel {
                        // Asked for before the thread knew of it.
                        self.cancel(key, why, now);
                    }
                }
                Command::Defer { delivery, deadline } => {
                    self.next_due = earliest([self.next_due, deadline]);
                    let (id, wish) = (delivery.id, delivery.cancel_wish());
                    let until = Compiling {
                        total: deadline,
                        ..Compiling::default()
                    };
                    self.preparing.insert(id, Preparing { delivery, until });
                    if wish.is_some() {
                        self.end_preparing(id, Failure::Engine(cancelled()));
                    }
                }
                Command::Compiling(id, until) => {
                    if let Some(preparing) = self.preparing.get_mut(&id) {
                        preparing.until = until;
                        let due = preparing.due().map(|(at, _)| at);
                        self.next_due = earliest([self.next_due, due]);
                    }
                }
                Command::Refuse(id, failure) => self.end_preparing(id, failure),
            }
        }
        for (id, why) in cancels.drain(..) {
            if let Some(&key) = self.keys.get(&id) {
                self.cancel(key, why, now);
            } else {
                self.end_preparing(id, Failure::Engine(cancelled()));
            }
        }
        self.scratch.commands = commands;
        self.scratch.cancels = cancels;
    }

    fn insert(&mut self, sequence: Sequence) -> Key {
        let stall = self.core.config.stall_timeout;
        self.next_due = earliest([self.next_due, sequence.due(stall).map(|d| d.0)]);
        let key = self.vacant.pop().unwrap_or_else(|| {
            self.sequences.push(None);
            self.sequences.len() - 1
        });
        self.keys.insert(sequence.id(), key);
        self.waiting.push(key);
        self.sequences[key] = Some(Box::new(sequence));
        key
    }

    fn cancel(&mut self, key: Key, why: Cancel, now: Instant) {
        let end = self.sequence(key).end_cancelled(now, why);
        self.end(key, end);
    }

    fn end_preparing(&mut self, id: RequestId, failure: Failure) {
        let Some(Preparing { delivery, .. }) = self.preparing.remove(&id) else {
            return;
        };
        let (finish, reason) = match &failure {
            Failure::Engine(error) => manner(error.code),
            Failure::Prepare(_) => (FinishReason::Error, "error"),
        };
        let code = match &failure {
            Failure::Engine(error) => Some(error.code),
            Failure::Prepare(_) => None,
        };
        let mut end = End {
            finish,
            failure: Some(failure),
            usage: Usage::default(),
            detail: super::delivery::Detail::default(),
        };
        end.detail.reason = reason;
        end.detail.code = code;
        self.core.give_place();
        self.core.end(&delivery, end);
        self.touch(&delivery.queue);
    }

    fn expire(&mut self, now: Instant) {
        if self.next_due.is_none_or(|due| due > now) {
            return;
        }
        self.next_due = None;
        let stall = self.core.config.stall_timeout;
        for key in 0..self.sequences.len() {
            let Some(sequence) = &self.sequences[key] else {
                continue;
            };
            match sequence.due(stall) {
                Some((at, code)) if at <= now => {
                    let end = sequence.end_by(now, expired(code));
                    self.end(key, end);
                }
                Some((at, _)) => self.next_due = earliest([self.next_due, Some(at)]),
                None => {}
            }
        }
        let late: Vec<_> = self
            .preparing
            .iter()
            .filter_map(|(id, p)| p.due().filter(|(at, _)| *at <= now).map(|due| (*id, due.1)))
            .collect();
        for (id, code) in late {
            let error = match code {
                Code::ConstraintTimeout => timed_out(self.core.config.grammar_timeout),
                code => expired(code),
            };
            self.end_preparing(id, Failure::Engine(error));
        }
        for preparing in self.preparing.values() {
            self.next_due = earliest([self.next_due, preparing.due().map(|(at, _)| at)]);
        }
    }

    fn earliest_due(&self) -> Option<Instant> {
        earliest([self.next_due, self.drain.flatten()])
    }

    /// Whether shutdown was asked for and nothing is left to wait for; ends what is left when its time is up.
    fn is_over(&mut self, now: Instant) -> bool {
        let Some(until) = self.drain else {
            return false;
        };
        if until.is_some_and(|until| until <= now) {
            for key in 0..self.sequences.len() {
                if let Some(sequence) = &self.sequences[key] {
                    let end = sequence.end_by(now, shutting_down());
                    self.end(key, end);
                }
            }
            while let Some((&id, _)) = self.preparing.first_key_value() {
                self.end_preparing(id, Failure::Engine(shutting_down()));
            }
        }
        self.keys.is_empty() && self.preparing.is_empty()
    }

    // Planning.

    /// Looks at the readers and makes the scheduler's view.
    fn look_around(&mut self, now: Instant) {
        let config = &self.core.config;
        self.scratch.running.clear();
        self.scratch.waiting.clear();
        let mut paused = 0;
        for &key in self.running.iter().chain(&self.waiting) {
            let Some(sequence) = self.sequences[key].as_deref_mut() else {
                continue;
            };
            if sequence.look_at_reader(now) == PauseChange::Paused {
                count(&self.core.counters.paused_for_reader);
                let due = sequence.due(config.stall_timeout).map(|d| d.0);
                self.next_due = earliest([self.next_due, due]);
            }
            paused += u32::from(sequence.paused_since.is_some());
            match sequence.place {
                Place::Running { .. } => self.scratch.running.push(sequence.as_running()),
                Place::Waiting { since, since_step } => {
                    let is_starved = self.step - since_step >= config.age_steps
                        || now.saturating_duration_since(since) >= config.age;
                    self.scratch.waiting.push(sequence.as_waiting(is_starved));
                }
            }
        }
        self.core.counters.paused.store(paused, Relaxed);
    }

    fn plan(&mut self) {
        let Supply {
            blocks_now,
            slots_now,
            ..
        } = self.memory.supply();
        let view = View {
            running: &self.scratch.running,
            waiting: &self.scratch.waiting,
            free_blocks: blocks_now,
            free_slots: slots_now,
        };
        self.scheduler.plan(view, &mut self.scratch.plan);
    }

    fn is_stuck(&self) -> bool {
        self.scratch.running.iter().any(|r| !r.is_paused)
            || self.scratch.waiting.iter().any(|w| !w.is_paused)
    }

    fn publish(&self) {
        let counters = &self.core.counters;
        let running = self.running.len() as u32;
        let waiting = (self.waiting.len() + self.preparing.len()) as u32;
        counters.running.store(running, Relaxed);
        counters.waiting.store(waiting, Relaxed);
        let (blocks, slots) = (self.memory.block_counts(), self.memory.slot_counts());
        counters.kv_blocks_used.store(blocks.owned, Relaxed);
        counters.slots_used.store(slots.owned, Relaxed);
    }

    // Carrying out.

    /// Runs the planned step; the turn of the loop began at `began`.
    fn carry_out(&mut self, began: Instant) -> Result<(), Error> {
        let now = Instant::now();
        let plan = std::mem::take(&mut self.scratch.plan);
        let mut times = [now; 2];
        let done = self
            .make_room(&plan, now)
            .and_then(|()| {
                times[0] = Instant::now();
                let done = self.forward();
                times[1] = Instant::now();
                done
            })
            .and_then(|()| {
                // Needs nothing that the forward pass makes: it could run beside it.
                self.prepare_masks();
                self.settle()
            });
        if done.is_ok() {
            self.note_step(&plan, began, times);
        }
        self.scratch.plan = plan;
        self.step += 1;
        done
    }

    /// Writes down a step: when it began, when the model began and ended.
    fn note_step(&mut self, plan: &Plan, began: Instant, [forward, post]: [Instant; 2]) {
        let micros = |from: Instant, to: Instant| {
            let time = to.saturating_duration_since(from).as_micros();
            u64::try_from(time).unwrap_or(u64::MAX)
        };
        let blocks = self.memory.block_counts();
        let (mut prefill_rows, mut decode_rows) = (0, 0);
        for rows in &plan.rows {
            match rows.count {
                1 if rows.position > 0 => decode_rows += 1,
                count => prefill_rows += count,
            }
        }
        let record = StepRecord {
            number: self.step,
            kind: match (prefill_rows, decode_rows) {
                (0, _) => StepKind::Decode,
                (_, 0) => StepKind::Prefill,
                _ => StepKind::Mixed,
            },
            began: self.core.micros_after_birth(began),
            schedule: micros(began, forward),
            forward: micros(forward, post),
            post: micros(post, Instant::now()),
            sequences: plan.rows.len() as u32,
            prefill_rows,
            decode_rows,
            admitted: plan.admit.len() as u32,
            preempted: plan.preempt.len() as u32,
            running: self.running.len() as u32,
            waiting: self.waiting.len() as u32,
            blocks_used: blocks.owned,
            blocks_free: blocks.free,
        };
        self.core.counters.times.step(&record);
        self.core.steps.push(record, &mut self.unnoted);
        self.core.profiler.step(&record);
    }

    /// Moves slots and blocks as planned, and lists the rows.
    fn make_room(&mut self, plan: &Plan, now: Instant) -> Result<(), Error> {
        self.scratch.cleared.clear();
        self.scratch.rows.clear();
        // The plan's indices are those of the lists as they are now; they change below.
        let row_keys = plan.rows.iter().map(|rows| match rows.source {
            Source::Running(at) => self.running[at],
            Source::Admitted(at) => self.waiting[plan.admit[at]],
        });
        let rows = row_keys.zip(&plan.rows).map(|(key, rows)| Rows {
            key,
            count: rows.count,
            logits: LogitRows::None,
            ends: false,
        });
        self.scratch.rows.extend(rows);
        for &at in &plan.overtaken {
            live(&mut self.sequences, self.waiting[at]).overtaken += 1;
            count(&self.core.counters.overtakes);
        }
        let victims: Vec<Key> = plan.preempt.iter().map(|&at| self.running[at]).collect();
        let newcomers: Vec<Key> = plan.admit.iter().map(|&at| self.waiting[at]).collect();
        for key in victims {
            self.preempt(key, now);
        }
        for key in newcomers {
            self.admit(key)?;
        }
        let mut logit_rows = self.core.config.max_logit_rows;
        for (at, planned) in plan.rows.iter().enumerate() {
            let rows = &mut self.scratch.rows[at];
            let sequence = live(&mut self.sequences, rows.key);
            if !self.memory.grow(&mut sequence.table, planned.new_blocks) {
                return Err(Error::new(
                    Code::Internal,
                    "",
                    "the plan needs more blocks than there are",
                ));
            }
            if sequence.logit_rows(rows.count) == LogitRows::All {
                // Memory for logits is bounded: what does not fit any more runs in a later step.
                let (from, fits) = (sequence.computed, rows.count.min(logit_rows));
                if fits < rows.count {
                    rows.count = whole_blocks(from, fits, self.block_tokens);
                }
                logit_rows -= rows.count;
            }
            rows.logits = sequence.logit_rows(rows.count);
            let is_last = sequence.computed + rows.count == sequence.len();
            rows.ends = is_last && rows.count > 0 && !sequence.is_prefill_only();
            if rows.count > 0 {
                sequence.note_launch(now);
            }
        }
        self.scratch.rows.retain(|rows| rows.count > 0);
        Ok(())
    }

    fn preempt(&mut self, key: Key, now: Instant) {
        self.release(key);
        self.running.retain(|&k| k != key);
        self.waiting.push(key);
        let step = self.step;
        let sequence = live(&mut self.sequences, key);
        sequence.computed = 0;
        sequence.forget();
        sequence.preemptions += 1;
        sequence.place = Place::Waiting {
            since: now,
            since_step: step,
        };
        count(&self.core.counters.preemptions);
    }

    fn admit(&mut self, key: Key) -> Result<(), Error> {
        let table = &mut live(&mut self.sequences, key).table;
        let slot = self.memory.admit(table, &Hit::default(), 0);
        let slot = slot.ok_or_else(|| {
            Error::new(
                Code::Internal,
                "",
                "the plan needs more slots than there are",
            )
        })?;
        self.scratch.cleared.push(slot);
        self.waiting.retain(|&k| k != key);
        self.running.push(key);
        let sequence = live(&mut self.sequences, key);
        sequence.place = Place::Running { slot };
        if std::mem::take(&mut sequence.holds_place) {
            self.core.give_place();
        }
        Ok(())
    }

    /// The one way by which slots and blocks come back.
    fn release(&mut self, key: Key) {
        let sequence = live(&mut self.sequences, key);
        let slot = match sequence.place {
            Place::Running { slot } => Some(slot),
            Place::Waiting { .. } => None,
        };
        // A step is over before anything comes back.
        self.memory.release(&mut sequence.table, slot, Fence(0));
    }

    fn forward(&mut self) -> Result<(), Error> {
        let Scratch {
            rows,
            cleared,
            steps,
            logits,
            ..
        } = &mut self.scratch;
        // No borrow outlives the step; an empty list changes its lifetime and keeps its memory.
        let mut list = recycle(std::mem::take(steps));
        for rows in rows.iter() {
            let Some(sequence) = self.sequences[rows.key].as_deref() else {
                continue;
            };
            let Place::Running { slot } = sequence.place else {
                continue;
            };
            let (before, rest) = sequence.tokens.split_at(sequence.computed as usize);
            list.push(StepSequence {
                slot,
                blocks: sequence.table.blocks(),
                position: sequence.computed,
                tokens: &rest[..rows.count as usize],
                history: before,
                image: &[],
                bounds: Bounds::default(),
                logits: rows.logits,
            });
        }
        self.core.mark_step(true);
        let model = &mut self.model;
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            for slot in cleared.iter() {
                model.clear_slot(*slot);
            }
            model.forward(&list, logits)
        }));
        self.core.mark_step(false);
        *steps = recycle(list);
        count(&self.core.counters.steps);
        outcome.unwrap_or_else(|_| Err(panicked("the model")))?;
        let wanted = rows.iter().map(|r| r.with_logits() as usize).sum::<usize>() * self.vocab;
        if logits.len() != wanted {
            let got = logits.len();
            return Err(Error::new(
                Code::Internal,
                "",
                format!("the model made {got} logits, {wanted} were wanted"),
            ));
        }
        Ok(())
    }

    /// Makes the masks of the rows that are sampled in this step; what fails is told when they are.
    fn prepare_masks(&mut self) {
        for rows in &self.scratch.rows {
            if rows.ends {
                live(&mut self.sequences, rows.key).prepare_mask();
            }
        }
    }

    /// Turns the logits of the step into tokens and ends.
    fn settle(&mut self) -> Result<(), Error> {
        if self.core.has_failed() {
            return Ok(());
        }
        let now = Instant::now();
        let all = std::mem::take(&mut self.scratch.rows);
        let mut logits = std::mem::take(&mut self.scratch.logits);
        let mut made = logits.chunks_exact(self.vocab);
        for rows in &all {
            let own = made.by_ref().take(rows.with_logits() as usize);
            self.settle_one(rows, own, now);
        }
        if all.iter().any(|rows| rows.logits == LogitRows::All) {
            // Logits of whole prompts are too much to keep for later.
            logits = Vec::new();
        }
        self.scratch.rows = all;
        self.scratch.logits = logits;
        Ok(())
    }

    fn settle_one<'l>(
        &mut self,
        rows: &Rows,
        mut logits: impl ExactSizeIterator<Item = &'l [f32]>,
        now: Instant,
    ) {
        let sequence = live(&mut self.sequences, rows.key);
        if !sequence.is_decoding() {
            let counters = &self.core.counters;
            let counter = match sequence.preemptions {
                0 => &counters.tokens_prefilled,
                _ => &counters.tokens_recomputed,
            };
            counter.fetch_add(rows.count.into(), Relaxed);
        }
        let position = sequence.computed;
        sequence.computed += rows.count;
        let mut last = None;
        let from = rows.count - rows.with_logits();
        for (row, position) in logits.by_ref().zip(position + from..) {
            if let Err(error) = sequence.note_prompt_row(&mut self.sampler, row, position) {
                let end = sequence.end_by(now, error);
                self.end(rows.key, end);
                return logits.for_each(drop);
            }
            last = Some(row);
        }
        if rows.ends {
            self.sample(rows.key, last.unwrap_or_default(), now);
        } else if sequence.computed == sequence.len() {
            self.complete(rows.key, now);
        }
    }

    fn sample(&mut self, key: Key, row: &[f32], now: Instant) {
        let sequence = live(&mut self.sequences, key);
        let token_time = sequence.token_time(now);
        let sampled = match sequence.fault() {
            Some(fault) => Err(fault.into_error()),
            None => sequence.sample(&mut self.sampler, row, now),
        };
        let sampled = match sampled {
            Ok(sampled) => sampled,
            Err(error) => {
                if error.code == Code::Numeric {
                    count(&self.core.counters.numeric_rows);
                }
                let end = sequence.end_by(now, error);
                self.end(key, end);
                return;
            }
        };
        let counters = &self.core.counters;
        count(&counters.tokens_decoded);
        if sampled.min_tokens_ignored {
            count(&counters.min_tokens_ignored);
        }
        match token_time {
            TokenTime::First(time) => counters.times.first_token.time(time),
            TokenTime::Next(time) => counters.times.inter_token.time(time),
        }
        if sampled.has_news {
            let queue = sequence.delivery.queue.clone();
            self.touch(&queue);
        }
        self.complete(key, now);
    }

    /// Ends a sequence whose output is complete.
    fn complete(&mut self, key: Key, now: Instant) {
        let sequence = self.sequence(key);
        let end = match (sequence.fault(), sequence.completion()) {
            (Some(fault), _) => sequence.end_by(now, fault.into_error()),
            (None, Some(why)) => sequence.end_complete(now, &why),
            (None, None) => return,
        };
        self.end(key, end);
    }

    // Ends.

    /// Gives back everything a sequence holds and delivers its end.
    fn end(&mut self, key: Key, end: End) {
        self.release(key);
        self.running.retain(|&k| k != key);
        self.waiting.retain(|&k| k != key);
        let Some(mut sequence) = self.sequences[key].take() else {
            return;
        };
        sequence.flush();
        self.vacant.push(key);
        self.keys.remove(&sequence.id());
        if sequence.holds_place {
            self.core.give_place();
        }
        self.core.end(&sequence.delivery, end);
        self.touch(&sequence.delivery.queue);
    }

    /// With the counts that each has; the rest is done without this thread's records.
    fn end_all_failed(&mut self, error: &Error) {
        let now = Instant::now();
        for sequence in self.sequences.iter_mut().flatten() {
            sequence.flush();
            let mut end = sequence.end_by(now, error.clone());
            end.finish = FinishReason::Error;
            end.detail.reason = "engine_failed";
            self.core.end(&sequence.delivery, end);
            sequence.delivery.queue.flush();
        }
        self.announce();
    }

    /// Remembers a queue for [`Self::announce`].
    fn touch(&mut self, queue: &Arc<Shared>) {
        if !self.unannounced.iter().any(|q| Arc::ptr_eq(q, queue)) {
            self.unannounced.push(queue.clone());
        }
    }

    /// One wake a queue and step; counters first, so that who sees an end sees them without it.
    fn announce(&mut self) {
        self.publish();
        for queue in self.unannounced.drain(..) {
            queue.flush();
        }
    }

    fn sequence(&self, key: Key) -> &Sequence {
        self.sequences[key]
            .as_deref()
            .expect("keys in the lists have a sequence")
    }
}

/// Keys in the lists always have a sequence; a mistake here ends the engine, not the process.
fn live(sequences: &mut [Option<Box<Sequence>>], key: Key) -> &mut Sequence {
    sequences[key]
        .as_deref_mut()
        .expect("keys in the lists have a sequence")
}

/// Rows from `position` on, at most `count`, that end on a block border if any do.
fn whole_blocks(position: u32, count: u32, block_tokens: u32) -> u32 {
    let end = (position + count) / block_tokens * block_tokens;
    if end > position {
        end - position
    } else {
        count
    }
}

/// An empty list for other lifetimes in the same memory.
fn recycle<'b>(mut list: Vec<StepSequence<'_>>) -> Vec<StepSequence<'b>> {
    list.clear();
    list.into_iter()
        .map(|_| unreachable!("the list is empty"))
        .collect()
}

fn panicked(who: &str) -> Error {
    Error::new(Code::WorkerPanic, "", format!("{who} panicked"))
}
