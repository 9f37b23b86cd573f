//! Counters of an engine: written by its threads, copied by anybody without a lock.

#![forbid(unsafe_code)]

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use serde_json::{Value, json};

use super::options::{EngineState, Report, Stats};

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
    /// Rows that had nothing left but ids that `min_tokens` keeps back.
    pub(crate) min_tokens_ignored: AtomicU64,
    pub(crate) running: AtomicU32,
    pub(crate) waiting: AtomicU32,
    pub(crate) paused: AtomicU32,
    pub(crate) kv_blocks_used: AtomicU32,
    pub(crate) kv_blocks_total: AtomicU32,
}

impl Counters {
    /// Nobody is alive and nothing is held: the engine thread is gone.
    pub(crate) fn clear_gauges(&self) {
        for gauge in [
            &self.running,
            &self.waiting,
            &self.paused,
            &self.kv_blocks_used,
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

/// The document of `metrics_json`.
pub(crate) fn to_json(state: EngineState, stats: Stats, config: &Report, plan: &Value) -> String {
    let state = match state {
        EngineState::Ready => "ready",
        EngineState::Draining => "draining",
        EngineState::Failed => "failed",
        EngineState::Closed => "closed",
    };
    json!({
        "state": state,
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
