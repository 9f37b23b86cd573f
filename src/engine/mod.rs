//! Runs a model: one thread decides, backends compute.
//!
//! `submit` copies a request onto the command ring; the engine thread drains it, asks the scheduler (a
//! pure function) for a plan, runs the model over all rows of the plan at once, samples, and pushes the
//! tokens to the request's queue. Every accepted request ends with exactly one `Done`.

pub mod backend;
mod delivery;
mod error;
pub mod kv;
pub mod model;
pub mod options;
pub mod queue;
pub mod request;
pub mod sampling;
pub mod scheduler;
mod sync;
pub mod weights;

use std::time::Duration;

pub use error::{Code, Error};
pub use options::{EngineInfo, EngineOptions, EngineState, Stats};
pub use queue::Queue;
pub use request::{Request, RequestId};

use model::Model;
use request::{Adapter, Failure};

/// What a deferred submission makes on a preparation thread: the request, and who reads its tokens.
pub type Prepared = Result<(Request, Option<Box<dyn Adapter>>), Failure>;

/// A loaded model and the threads that run it. All methods from all threads.
#[derive(Debug)]
pub struct Engine {}

impl Engine {
    /// Loads a model. `progress` gets a fraction and a phase at most ten times a second; `false` aborts
    /// with [`Code::Cancelled`]. Blocks.
    pub fn open(
        _options: &EngineOptions,
        _progress: &mut dyn FnMut(f32, &str) -> bool,
    ) -> Result<Self, Error> {
        unimplemented!()
    }

    /// Runs a model made elsewhere: tests.
    pub fn with_model(_model: Box<dyn Model>, _options: &EngineOptions) -> Result<Self, Error> {
        unimplemented!()
    }

    /// Where it is in its life; no device work.
    pub fn state(&self) -> EngineState {
        unimplemented!()
    }

    /// What became of the options.
    pub fn info(&self) -> EngineInfo {
        unimplemented!()
    }

    /// A copy of the counters.
    pub fn stats(&self) -> Stats {
        unimplemented!()
    }

    /// `config` (every effective value with its origin), `plan` and the counters as JSON.
    pub fn metrics_json(&self) -> String {
        unimplemented!()
    }

    /// Accepts or refuses at once; never waits. With an adapter, its output replaces the events.
    pub fn submit(
        &self,
        _queue: &Queue,
        _request: Request,
        _adapter: Option<Box<dyn Adapter>>,
    ) -> Result<RequestId, Error> {
        unimplemented!()
    }

    /// Gives out an id and returns; `job` runs on a preparation thread, and its failure arrives as the
    /// request's `Done`. `deadline` runs from now.
    pub fn submit_deferred(
        &self,
        _queue: &Queue,
        _tag: u64,
        _deadline: Option<Duration>,
        _job: Box<dyn FnOnce() -> Prepared + Send>,
    ) -> Result<RequestId, Error> {
        unimplemented!()
    }

    /// Idempotent; finished and unknown ids are skipped. Never waits.
    pub fn cancel(&self, _ids: &[RequestId]) {
        unimplemented!()
    }

    /// Reports tokens as read; increments. Never waits.
    pub fn ack(&self, _reads: &[(RequestId, u32)]) {
        unimplemented!()
    }

    /// Refuses new requests, lets running ones go on for `drain`, ends the rest, joins all threads.
    pub fn shutdown(&self, _drain: Duration) -> Result<(), Error> {
        unimplemented!()
    }

    /// Forgets cached prefixes.
    pub fn clear_cache(&self) -> Result<(), Error> {
        unimplemented!()
    }
}
