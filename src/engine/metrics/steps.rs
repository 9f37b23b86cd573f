//! The last steps of an engine, always recorded, readable at any time, also after a fault.

use std::collections::VecDeque;
use std::fmt::Write;

use parking_lot::Mutex;

/// How many are kept.
const KEPT: usize = 4096;

/// What a step's rows were.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StepKind {
    /// Rows of prompts only.
    Prefill,
    /// One row a sequence, each behind its last token.
    Decode,
    /// Both.
    Mixed,
}

impl StepKind {
    pub(crate) const ALL: [Self; 3] = [Self::Prefill, Self::Decode, Self::Mixed];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Prefill => "prefill",
            Self::Decode => "decode",
            Self::Mixed => "mixed",
        }
    }
}

/// One step. Times are in microseconds, `began` after the engine was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StepRecord {
    pub(crate) number: u64,
    pub(crate) kind: StepKind,
    pub(crate) began: u64,
    /// Reading commands and deciding what runs.
    pub(crate) schedule: u64,
    /// The model.
    pub(crate) forward: u64,
    /// Sampling and delivering.
    pub(crate) post: u64,
    pub(crate) sequences: u32,
    pub(crate) prefill_rows: u32,
    pub(crate) decode_rows: u32,
    pub(crate) admitted: u32,
    pub(crate) preempted: u32,
    pub(crate) running: u32,
    pub(crate) waiting: u32,
    pub(crate) blocks_used: u32,
    pub(crate) blocks_free: u32,
}

/// See the module. The engine thread never waits for a reader: what it cannot store at once it keeps for the
/// next step.
#[derive(Debug, Default)]
pub(crate) struct StepRing {
    kept: Mutex<VecDeque<StepRecord>>,
}

impl StepRing {
    /// Stores a step and what `late` holds from before; only the engine thread calls it.
    pub(crate) fn push(&self, record: StepRecord, late: &mut Vec<StepRecord>) {
        let Some(mut kept) = self.kept.try_lock() else {
            late.push(record);
            return;
        };
        if kept.capacity() == 0 {
            kept.reserve_exact(KEPT);
        }
        for record in late.drain(..).chain([record]) {
            if kept.len() == KEPT {
                kept.pop_front();
            }
            kept.push_back(record);
        }
    }

    /// `{"steps":[{"step":0,"kind":"prefill",…},…]}`, the oldest first.
    pub(crate) fn to_json(&self) -> String {
        let kept: Vec<StepRecord> = self.kept.lock().iter().copied().collect();
        let mut out = String::with_capacity(32 + kept.len() * 256);
        out.push_str("{\"steps\":[");
        for (at, step) in kept.iter().enumerate() {
            if at > 0 {
                out.push(',');
            }
            write_step(step, &mut out);
        }
        out.push_str("]}");
        out
    }
}

/// Appends the JSON object of a step.
pub(crate) fn write_step(step: &StepRecord, out: &mut String) {
    // Writing to a string cannot fail.
    let _ = write!(
        out,
        "{{\"step\":{},\"kind\":\"{}\",\"began_us\":{},\"schedule_us\":{},\"forward_us\":{},\"post_us\":{},\
         \"sequences\":{},\"prefill_rows\":{},\"decode_rows\":{},\"admitted\":{},\"preempted\":{},\
         \"running\":{},\"waiting\":{},\"blocks_used\":{},\"blocks_free\":{}}}",
        step.number,
        step.kind.name(),
        step.began,
        step.schedule,
        step.forward,
        step.post,
        step.sequences,
        step.prefill_rows,
        step.decode_rows,
        step.admitted,
        step.preempted,
        step.running,
        step.waiting,
        step.blocks_used,
        step.blocks_free,
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(number: u64) -> StepRecord {
        StepRecord {
            number,
            kind: StepKind::Mixed,
            began: 1,
            schedule: 2,
            forward: 3,
            post: 4,
            sequences: 5,
            prefill_rows: 6,
            decode_rows: 7,
            admitted: 8,
            preempted: 9,
            running: 10,
            waiting: 11,
            blocks_used: 12,
            blocks_free: 13,
        }
    }

    fn numbers(ring: &StepRing) -> Vec<u64> {
        let json: serde_json::Value = serde_json::from_str(&ring.to_json()).unwrap();
        let steps = json["steps"].as_array().unwrap();
        steps.iter().map(|s| s["step"].as_u64().unwrap()).collect()
    }

    #[test]
    fn the_last_steps_are_kept_in_order() {
        let (ring, mut late) = (StepRing::default(), Vec::new());
        for number in 0..KEPT as u64 + 3 {
            ring.push(step(number), &mut late);
        }
        let numbers = numbers(&ring);
        assert_eq!(numbers.len(), KEPT);
        assert_eq!((numbers[0], numbers[KEPT - 1]), (3, KEPT as u64 + 2));
    }

    #[test]
    fn a_reader_delays_the_record_and_not_the_step() {
        let (ring, mut late) = (StepRing::default(), Vec::new());
        let reading = ring.kept.lock();
        ring.push(step(0), &mut late);
        assert_eq!(late.len(), 1);
        drop(reading);
        ring.push(step(1), &mut late);
        assert!(late.is_empty());
        assert_eq!(numbers(&ring), [0, 1]);
    }
}
