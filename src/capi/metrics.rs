//! Counters, metrics, profiles.

use super::boundary::{Out, guarded};
use super::engine;
use super::error::Failed;
use super::library::buffer;
use super::options::{self, Versioned};
use super::types::*;

/// A copy of an engine's counters. Zero it, set struct_size.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fathom_engine_stats {
    /// Set by the caller.
    pub struct_size: usize,
    /// Given an id.
    pub requests_accepted: u64,
    /// Ended by themselves.
    pub requests_finished: u64,
    /// Refused at submit.
    pub requests_refused: u64,
    /// Ended by cancel, deadline or shutdown.
    pub requests_cancelled: u64,
    /// Ended by an error.
    pub requests_failed: u64,
    /// Prompt positions computed.
    pub tokens_prefilled: u64,
    /// Prompt positions found in the prefix cache.
    pub tokens_cached: u64,
    /// Tokens generated.
    pub tokens_decoded: u64,
    /// Drafts verified.
    pub tokens_drafted: u64,
    /// Drafts accepted.
    pub tokens_accepted: u64,
    /// Steps of the engine.
    pub steps: u64,
    /// Requests that gave up their memory for a while.
    pub preemptions: u64,
    /// Times a request waited for its reader.
    pub paused_for_reader: u64,
    /// Requests that are being computed.
    pub running: u32,
    /// Requests that wait to be.
    pub waiting: u32,
    /// Requests that wait for their reader.
    pub paused: u32,
    /// Blocks of paged state in use.
    pub kv_blocks_used: u32,
    /// Blocks of paged state.
    pub kv_blocks_total: u32,
    /// Zero.
    pub reserved0: u32,
}

// SAFETY: `repr(C)` without padding; integers.
unsafe impl Versioned for fathom_engine_stats {
    const NAME: &'static str = "fathom_engine_stats";
    fn defaults() -> Self {
        Self {
            struct_size: size_of::<Self>(),
            requests_accepted: 0,
            requests_finished: 0,
            requests_refused: 0,
            requests_cancelled: 0,
            requests_failed: 0,
            tokens_prefilled: 0,
            tokens_cached: 0,
            tokens_decoded: 0,
            tokens_drafted: 0,
            tokens_accepted: 0,
            steps: 0,
            preemptions: 0,
            paused_for_reader: 0,
            running: 0,
            waiting: 0,
            paused: 0,
            kv_blocks_used: 0,
            kv_blocks_total: 0,
            reserved0: 0,
        }
    }
}

/// OpenMetrics text for a scraper.
pub const FATHOM_METRICS_OPENMETRICS: i32 = 1;
/// Counters, every effective option with its origin (`config`), the memory plan (`plan`).
pub const FATHOM_METRICS_JSON: i32 = 2;
/// The last 4096 steps, JSON; also after a failure.
pub const FATHOM_METRICS_STEPS: i32 = 3;

/// Copies the counters into `out`, as far as its struct_size reaches. Shares no lock with the engine's step; never
/// blocks, any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fathom_engine_stats_get(
    e: *const fathom_engine,
    out: *mut fathom_engine_stats,
) -> fathom_status {
    guarded(std::ptr::null_mut(), || {
        let stats = engine::enter(e)?.engine.stats();
        let stats = fathom_engine_stats {
            struct_size: size_of::<fathom_engine_stats>(),
            requests_accepted: stats.requests_accepted,
            requests_finished: stats.requests_finished,
            requests_refused: stats.requests_refused,
            requests_cancelled: stats.requests_cancelled,
            requests_failed: stats.requests_failed,
            tokens_prefilled: stats.tokens_prefilled,
            tokens_cached: stats.tokens_cached,
            tokens_decoded: stats.tokens_decoded,
            tokens_drafted: stats.tokens_drafted,
            tokens_accepted: stats.tokens_accepted,
            steps: stats.steps,
            preemptions: stats.preemptions,
            paused_for_reader: stats.paused_for_reader,
            running: stats.running,
            waiting: stats.waiting,
            paused: stats.paused,
            kv_blocks_used: stats.kv_blocks_used,
            kv_blocks_total: stats.kv_blocks_total,
            reserved0: 0,
        };
        // SAFETY: the caller's duty: as many bytes as `struct_size` says.
        unsafe { options::fill(out, "out", &stats) }
    })
}

/// Everything the engine says of itself, in FATHOM_METRICS_*. Free with fathom_buf_free. Never blocks, any thread.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fathom_engine_metrics(
    e: *const fathom_engine,
    format: i32,
    out: *mut *mut fathom_buf,
    err: *mut *mut fathom_error,
) -> fathom_status {
    guarded(err, || {
        let out = Out::new(out, std::ptr::null_mut(), "out")?;
        let object = engine::enter(e)?;
        let document = match format {
            FATHOM_METRICS_OPENMETRICS => object.engine.metrics_text(),
            FATHOM_METRICS_JSON => object.engine.metrics_json(),
            FATHOM_METRICS_STEPS => object.engine.steps_json(),
            _ => {
                return Err(Failed::argument(
                    "format",
                    format!("unknown format {format}"),
                ));
            }
        };
        out.set(buffer(document)?);
        Ok(())
    })
}

/// Records the next `max_steps` steps (0 = 20, at most 1000) into memory. FATHOM_ERR_STATE while a profile is being
/// recorded. Never blocks, any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fathom_profile_start(
    e: *mut fathom_engine,
    max_steps: u32,
    err: *mut *mut fathom_error,
) -> fathom_status {
    guarded(err, || {
        let object = engine::enter(e)?;
        object.engine.start_profile(max_steps)?;
        Ok(())
    })
}

/// Ends a profile, which need not be full, and gives it as JSON trace events: steps with their parts, and counters.
/// FATHOM_ERR_STATE when none is being recorded. Free with fathom_buf_free. Any thread.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fathom_profile_stop(
    e: *mut fathom_engine,
    out_trace: *mut *mut fathom_buf,
    err: *mut *mut fathom_error,
) -> fathom_status {
    guarded(err, || {
        let out = Out::new(out_trace, std::ptr::null_mut(), "out_trace")?;
        let object = engine::enter(e)?;
        out.set(buffer(object.engine.stop_profile()?)?);
        Ok(())
    })
}
