//! Recording the next steps into memory, and what a trace viewer reads of them.
//!
//! Nothing is recorded until a host asks, and nothing beyond what it asked for: a recording ends by itself. It is
//! no listener and no file.

#![forbid(unsafe_code)]

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use parking_lot::Mutex;
use serde_json::{Value, json};

use super::error::{Code, Error};
use super::metrics::steps::StepRecord;

/// Steps where the host does not say.
const DEFAULT_STEPS: u32 = 20;
/// Steps that one recording may hold.
const MAX_STEPS: u32 = 1000;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Profiler {
    /// Looked at once a step.
    is_on: AtomicBool,
    recording: Mutex<Option<Recording>>,
}

#[derive(Debug)]
struct Recording {
    steps: Vec<StepRecord>,
    most: usize,
}

impl Profiler {
    /// Records the next `max_steps` steps; 0 is 20.
    pub(crate) fn start(&self, max_steps: u32) -> Result<(), Error> {
        if max_steps > MAX_STEPS {
            let message = format!("max_steps {max_steps} exceeds {MAX_STEPS}");
            return Err(Error::new(Code::InvalidParam, "max_steps", message));
        }
        let mut recording = self.recording.lock();
        if recording.is_some() {
            return Err(Error::new(
                Code::WrongMoment,
                "",
                "a profile is being recorded already",
            ));
        }
        let most = match max_steps {
            0 => DEFAULT_STEPS,
            steps => steps,
        };
        *recording = Some(Recording {
            steps: Vec::with_capacity(most as usize),
            most: most as usize,
        });
        self.is_on.store(true, Relaxed);
        Ok(())
    }

    /// A step is over.
    pub(crate) fn step(&self, record: &StepRecord) {
        if !self.is_on.load(Relaxed) {
            return;
        }
        if let Some(recording) = &mut *self.recording.lock() {
            if recording.steps.len() < recording.most {
                recording.steps.push(*record);
            }
            if recording.steps.len() == recording.most {
                self.is_on.store(false, Relaxed);
            }
        }
    }

    /// Ends the recording: a document of JSON trace events.
    pub(crate) fn stop(&self) -> Result<String, Error> {
        self.is_on.store(false, Relaxed);
        let recording = self.recording.lock().take();
        let recording = recording
            .ok_or_else(|| Error::new(Code::WrongMoment, "", "no profile is being recorded"))?;
        Ok(trace(&recording.steps).to_string())
    }
}

/// A step and its parts as spans, the pools and the lines as counters.
fn trace(steps: &[StepRecord]) -> Value {
    let mut events = vec![
        json!({"ph": "M", "pid": 1, "name": "process_name", "args": {"name": "fathom"}}),
        json!({"ph": "M", "pid": 1, "tid": 1, "name": "thread_name", "args": {"name": "engine"}}),
    ];
    for step in steps {
        let span = |name: &str, at: u64, length: u64, args: Value| json!({"ph": "X", "pid": 1, "tid": 1, "name": name, "ts": at, "dur": length, "args": args});
        let whole = step.schedule + step.forward + step.post;
        let args = json!({
            "step": step.number,
            "sequences": step.sequences,
            "prefill_rows": step.prefill_rows,
            "decode_rows": step.decode_rows,
            "admitted": step.admitted,
            "preempted": step.preempted,
        });
        events.push(span(step.kind.name(), step.began, whole, args));
        let mut at = step.began;
        for (name, length) in [
            ("schedule", step.schedule),
            ("forward", step.forward),
            ("post", step.post),
        ] {
            events.push(span(name, at, length, json!({})));
            at += length;
        }
        for (name, args) in [
            (
                "requests",
                json!({"running": step.running, "waiting": step.waiting}),
            ),
            (
                "blocks",
                json!({"used": step.blocks_used, "free": step.blocks_free}),
            ),
        ] {
            events.push(json!({"ph": "C", "pid": 1, "name": name, "ts": step.began, "args": args}));
        }
    }
    json!({"displayTimeUnit": "ms", "traceEvents": events})
}
