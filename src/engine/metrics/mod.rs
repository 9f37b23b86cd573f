//! Numbers of an engine: written by its threads, copied by anybody, as plain numbers, JSON or OpenMetrics text
//! for the host to serve. Names and meanings are those of `engine.md` section 26; what is not built has none.
//!
//! Cost: an atomic addition each; a step takes no lock that a reader holds.

#![forbid(unsafe_code)]

mod histogram;
pub(crate) mod steps;
mod text;

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;
use serde_json::{Value, json};

use super::error::Code;
use super::options::{EngineState, Report, Stats};
use super::request::Usage;
use histogram::Histogram;
use steps::{StepKind, StepRecord};
use text::{Kind, Text};

/// What [`Stats`] is a copy of.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) requests_accepted: AtomicU64,
    pub(crate) requests_finished: AtomicU64,
    pub(crate) requests_refused: AtomicU64,
    pub(crate) requests_cancelled: AtomicU64,
    pub(crate) requests_failed: AtomicU64,
    pub(crate) tokens_prefilled: AtomicU64,
    pub(crate) tokens_cached: AtomicU64,
    pub(crate) tokens_decoded: AtomicU64,
    pub(crate) tokens_drafted: AtomicU64,
    pub(crate) tokens_accepted: AtomicU64,
    pub(crate) steps: AtomicU64,
    pub(crate) preemptions: AtomicU64,
    pub(crate) paused_for_reader: AtomicU64,
    pub(crate) running: AtomicU32,
    pub(crate) waiting: AtomicU32,
    pub(crate) paused: AtomicU32,
    pub(crate) kv_blocks_used: AtomicU32,
    pub(crate) kv_blocks_total: AtomicU32,
    pub(crate) slots_used: AtomicU32,
    pub(crate) slots_total: AtomicU32,
    /// Rows that ran again after a preemption.
    pub(crate) tokens_recomputed: AtomicU64,
    pub(crate) overtakes: AtomicU64,
    /// Rows with NaN or infinity among their logits.
    pub(crate) numeric_rows: AtomicU64,
    /// Rows that had nothing left but ids that `min_tokens` keeps back.
    pub(crate) min_tokens_ignored: AtomicU64,
    pub(crate) rejections: ByCode,
    /// Ends by an error, and failures of the engine.
    pub(crate) faults: ByCode,
    pub(crate) times: Times,
}

/// How often each cause was the cause. Causes are rare, so this has a lock.
#[derive(Debug, Default)]
pub(crate) struct ByCode(Mutex<Vec<(Code, u64)>>);

impl ByCode {
    pub(crate) fn count(&self, code: Code) {
        let mut counts = self.0.lock();
        match counts.iter_mut().find(|(known, _)| *known == code) {
            Some((_, count)) => *count += 1,
            None => counts.push((code, 1)),
        }
    }

    fn read(&self) -> Vec<(Code, u64)> {
        self.0.lock().clone()
    }
}

/// Where the time of requests and steps goes. Times of requests run from submit.
#[derive(Debug)]
pub(crate) struct Times {
    queue: Histogram,
    pub(crate) first_token: Histogram,
    pub(crate) inter_token: Histogram,
    per_output_token: Histogram,
    whole: Histogram,
    prefill: Histogram,
    decode: Histogram,
    /// By the kind of step.
    steps: [Histogram; 3],
    rows: [Histogram; 3],
    schedule: Histogram,
    post: Histogram,
}

impl Default for Times {
    fn default() -> Self {
        let time = Histogram::of_times;
        Self {
            queue: time(),
            first_token: time(),
            inter_token: time(),
            per_output_token: time(),
            whole: time(),
            prefill: time(),
            decode: time(),
            steps: [time(), time(), time()],
            rows: std::array::from_fn(|_| Histogram::of_rows()),
            schedule: Histogram::of_short_times(),
            post: Histogram::of_short_times(),
        }
    }
}

impl Times {
    /// Counts a request that ended by itself.
    pub(crate) fn request(&self, usage: &Usage) {
        self.queue.add(usage.queued_us);
        self.prefill.add(usage.prefill_us);
        self.decode.add(usage.decode_us);
        let whole = usage.queued_us + usage.prefill_us + usage.decode_us;
        self.whole.add(whole);
        if usage.completion_tokens > 1 {
            let intervals = u64::from(usage.completion_tokens - 1);
            self.per_output_token.add(usage.decode_us / intervals);
        }
    }

    /// Counts a step.
    pub(crate) fn step(&self, step: &StepRecord) {
        let kind = step.kind as usize;
        self.steps[kind].add(step.forward + step.post);
        self.rows[kind].add(u64::from(step.prefill_rows + step.decode_rows));
        self.schedule.add(step.schedule);
        self.post.add(step.post);
    }
}

impl Counters {
    /// Nobody is alive and nothing is held: the engine thread is gone.
    pub(crate) fn clear_gauges(&self) {
        for gauge in [
            &self.running,
            &self.waiting,
            &self.paused,
            &self.kv_blocks_used,
            &self.slots_used,
        ] {
            gauge.store(0, Relaxed);
        }
    }

    /// A copy; numbers of one moment only while the engine is idle.
    pub(crate) fn snapshot(&self) -> Stats {
        Stats {
            requests_accepted: self.requests_accepted.load(Relaxed),
            requests_finished: self.requests_finished.load(Relaxed),
            requests_refused: self.requests_refused.load(Relaxed),
            requests_cancelled: self.requests_cancelled.load(Relaxed),
            requests_failed: self.requests_failed.load(Relaxed),
            tokens_prefilled: self.tokens_prefilled.load(Relaxed),
            tokens_cached: self.tokens_cached.load(Relaxed),
            tokens_decoded: self.tokens_decoded.load(Relaxed),
            tokens_drafted: self.tokens_drafted.load(Relaxed),
            tokens_accepted: self.tokens_accepted.load(Relaxed),
            steps: self.steps.load(Relaxed),
            preemptions: self.preemptions.load(Relaxed),
            paused_for_reader: self.paused_for_reader.load(Relaxed),
            min_tokens_ignored: self.min_tokens_ignored.load(Relaxed),
            running: self.running.load(Relaxed),
            waiting: self.waiting.load(Relaxed),
            paused: self.paused.load(Relaxed),
            kv_blocks_used: self.kv_blocks_used.load(Relaxed),
            kv_blocks_total: self.kv_blocks_total.load(Relaxed),
        }
    }
}

/// Adds one.
pub(crate) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Relaxed);
}

fn state_name(state: EngineState) -> &'static str {
    match state {
        EngineState::Ready => "ready",
        EngineState::Draining => "draining",
        EngineState::Failed => "failed",
        EngineState::Closed => "closed",
    }
}

/// The document of `metrics_json`.
pub(crate) fn to_json(state: EngineState, stats: Stats, config: &Report, plan: &Value) -> String {
    json!({
        "state": state_name(state),
        "counters": {
            "requests_accepted": stats.requests_accepted,
            "requests_finished": stats.requests_finished,
            "requests_refused": stats.requests_refused,
            "requests_cancelled": stats.requests_cancelled,
            "requests_failed": stats.requests_failed,
            "tokens_prefilled": stats.tokens_prefilled,
            "tokens_cached": stats.tokens_cached,
            "tokens_decoded": stats.tokens_decoded,
            "tokens_drafted": stats.tokens_drafted,
            "tokens_accepted": stats.tokens_accepted,
            "steps": stats.steps,
            "preemptions": stats.preemptions,
            "paused_for_reader": stats.paused_for_reader,
            "min_tokens_ignored": stats.min_tokens_ignored,
            "running": stats.running,
            "waiting": stats.waiting,
            "paused": stats.paused,
            "kv_blocks_used": stats.kv_blocks_used,
            "kv_blocks_total": stats.kv_blocks_total,
        },
        "config": config.to_json(),
        "plan": plan,
    })
    .to_string()
}

/// What tells the engines of a process apart in a scrape.
pub(crate) struct Identity<'i> {
    /// Unique in the process.
    pub(crate) engine: u64,
    pub(crate) model: &'i str,
    pub(crate) state: EngineState,
}

/// The document of `metrics_text`.
pub(crate) fn to_text(identity: &Identity<'_>, counters: &Counters) -> String {
    let engine = identity.engine.to_string();
    let mut text = Text::new(&[("engine", &engine)]);
    text.family(Kind::Info, "fathom", "What runs.");
    let version = env!("CARGO_PKG_VERSION");
    text.sample(&[("version", version), ("model", identity.model)], 1);
    text.family(
        Kind::Gauge,
        "fathom_engine_state",
        "1 for the state the engine is in.",
    );
    for state in [
        EngineState::Ready,
        EngineState::Draining,
        EngineState::Failed,
        EngineState::Closed,
    ] {
        let is_in = u64::from(state == identity.state);
        text.sample(&[("state", state_name(state))], is_in);
    }
    write_requests(counters, &mut text);
    write_times(&counters.times, &mut text);
    write_tokens(counters, &mut text);
    write_memory(counters, &mut text);
    write_faults(counters, &mut text);
    text.finish()
}

fn write_requests(counters: &Counters, text: &mut Text) {
    text.family(
        Kind::Counter,
        "fathom_requests",
        "Requests that ended, by how.",
    );
    for (outcome, count) in [
        ("finished", &counters.requests_finished),
        ("cancelled", &counters.requests_cancelled),
        ("failed", &counters.requests_failed),
    ] {
        text.sample(&[("outcome", outcome)], count.load(Relaxed));
    }
    text.family(
        Kind::Counter,
        "fathom_requests_accepted",
        "Requests that were given an id.",
    );
    text.sample(&[], counters.requests_accepted.load(Relaxed));
    text.family(
        Kind::Counter,
        "fathom_rejections",
        "Requests that were refused, by cause.",
    );
    for (code, count) in counters.rejections.read() {
        text.sample(&[("code", code.name())], count);
    }
    for (name, help, gauge) in [
        (
            "fathom_requests_running",
            "Requests that hold memory.",
            &counters.running,
        ),
        (
            "fathom_requests_waiting",
            "Requests that wait for memory.",
            &counters.waiting,
        ),
        (
            "fathom_requests_stalled",
            "Requests that wait for their reader.",
            &counters.paused,
        ),
    ] {
        text.family(Kind::Gauge, name, help);
        text.sample(&[], u64::from(gauge.load(Relaxed)));
    }
    for (name, help, counter) in [
        (
            "fathom_stalls",
            "Times a request waited for its reader.",
            &counters.paused_for_reader,
        ),
        (
            "fathom_preemptions",
            "Times a request gave up its memory.",
            &counters.preemptions,
        ),
        (
            "fathom_overtakes",
            "Times a smaller request went first.",
            &counters.overtakes,
        ),
        (
            "fathom_min_tokens_ignored",
            "Rows that had nothing left but ids that min_tokens keeps back.",
            &counters.min_tokens_ignored,
        ),
    ] {
        text.family(Kind::Counter, name, help);
        text.sample(&[], counter.load(Relaxed));
    }
}

fn write_times(times: &Times, text: &mut Text) {
    for (name, help, histogram) in [
        (
            "fathom_queue_seconds",
            "From submit to the first row.",
            &times.queue,
        ),
        (
            "fathom_time_to_first_token_seconds",
            "From submit to the first token.",
            &times.first_token,
        ),
        (
            "fathom_inter_token_seconds",
            "Between two tokens of a request.",
            &times.inter_token,
        ),
        (
            "fathom_time_per_output_token_seconds",
            "Mean time of a token behind the first.",
            &times.per_output_token,
        ),
        (
            "fathom_e2e_seconds",
            "From submit to the end.",
            &times.whole,
        ),
        (
            "fathom_prefill_seconds",
            "From the first row to the first token.",
            &times.prefill,
        ),
        (
            "fathom_decode_seconds",
            "From the first token to the end.",
            &times.decode,
        ),
        (
            "fathom_schedule_seconds",
            "Deciding what a step runs.",
            &times.schedule,
        ),
        (
            "fathom_post_seconds",
            "Sampling and delivering a step.",
            &times.post,
        ),
    ] {
        text.family(Kind::Histogram, name, help);
        text.histogram(&[], histogram);
    }
    text.family(Kind::Histogram, "fathom_step_seconds", "A step, by kind.");
    for kind in StepKind::ALL {
        text.histogram(&[("kind", kind.name())], &times.steps[kind as usize]);
    }
    text.family(
        Kind::Histogram,
        "fathom_step_rows",
        "Rows of a step, by kind.",
    );
    for kind in StepKind::ALL {
        text.histogram(&[("kind", kind.name())], &times.rows[kind as usize]);
    }
}

fn write_tokens(counters: &Counters, text: &mut Text) {
    text.family(
        Kind::Counter,
        "fathom_prompt_tokens",
        "Rows of prompts, by where they came from.",
    );
    for (source, count) in [
        ("computed", &counters.tokens_prefilled),
        ("hit", &counters.tokens_cached),
        ("recomputed", &counters.tokens_recomputed),
    ] {
        text.sample(&[("source", source)], count.load(Relaxed));
    }
    text.family(
        Kind::Counter,
        "fathom_generated_tokens",
        "Tokens that were chosen.",
    );
    text.sample(&[], counters.tokens_decoded.load(Relaxed));
    text.family(Kind::Counter, "fathom_steps", "Steps.");
    text.sample(&[], counters.steps.load(Relaxed));
}

fn write_memory(counters: &Counters, text: &mut Text) {
    for (name, help, used, total) in [
        (
            "fathom_blocks",
            "Blocks of paged state.",
            &counters.kv_blocks_used,
            &counters.kv_blocks_total,
        ),
        (
            "fathom_ring_slots",
            "Slots of bounded state.",
            &counters.slots_used,
            &counters.slots_total,
        ),
    ] {
        let (used, total) = (used.load(Relaxed), total.load(Relaxed));
        text.family(Kind::Gauge, name, help);
        text.sample(&[("state", "owned")], u64::from(used));
        text.sample(&[("state", "free")], u64::from(total.saturating_sub(used)));
    }
}

fn write_faults(counters: &Counters, text: &mut Text) {
    text.family(
        Kind::Counter,
        "fathom_faults",
        "Requests and engines that failed, by cause.",
    );
    for (code, count) in counters.faults.read() {
        text.sample(&[("code", code.name())], count);
    }
    text.family(
        Kind::Counter,
        "fathom_numeric_rows",
        "Rows whose logits cannot be sampled.",
    );
    text.sample(&[], counters.numeric_rows.load(Relaxed));
}
