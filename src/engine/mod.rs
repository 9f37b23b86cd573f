//! Runs a model: one thread decides, backends compute.
//!
//! `submit` checks a request and copies it onto the command ring (`core.rs`); the engine thread (`worker.rs`)
//! drains the ring, asks the scheduler, a pure function, for a plan, runs the model over all rows of the plan at
//! once, samples, and pushes the tokens to the request's queue. Every accepted request ends with exactly one
//! `Done`.
//!
//! Threads, all started by `sync.rs`: `fathom-engine`; `fathom-watch`, which ends everybody when a step does not
//! end; `fathom-prepare-n`, which make deferred requests; `fathom-grammar-n`, which compile constraints;
//! `fathom-wake` of a queue with a wake interval. Nothing
//! but the engine thread touches the model, the pools or a sequence.

pub mod backend;
pub mod constraint;
mod core;
mod delivery;
mod error;
mod grammars;
pub mod kv;
mod load;
mod metrics;
pub mod model;
pub mod options;
mod outbox;
mod pool;
mod prepare;
mod profile;
pub mod queue;
pub mod request;
pub mod sampling;
pub mod scheduler;
mod sequence;
pub(crate) mod sync;
pub mod weights;
mod worker;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde_json::Value;

pub use error::{Code, Error};
pub use load::LoadReport;
pub use options::{EngineInfo, EngineOptions, EngineState, Stats};
pub use queue::Queue;
pub use request::{Request, RequestId};

use self::core::{Command, Core, Submission};
use delivery::{Cancel, Control, Delivery};
use grammars::Grammars;
use model::{Model, ModelLimits};
use options::{Config, Tuning};
use pool::{Pool, Todo};
use request::{Adapter, Bounds, Failure, FinishReason};
use worker::Worker;

/// What a deferred submission makes on a preparation thread: the request, and who reads its tokens.
pub type Prepared = Result<(Request, Option<Box<dyn Adapter>>), Failure>;

/// A loaded model and the threads that run it. All methods from all threads.
pub struct Engine {
    /// Tells the engines of a process apart.
    number: u64,
    core: Arc<Core>,
    grammars: Arc<Grammars>,
    info: EngineInfo,
    plan: Value,
    threads: Mutex<Option<Threads>>,
}

/// A number that no engine of this process has.
fn next_number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Relaxed)
}

struct Threads {
    worker: JoinHandle<()>,
    watchdog: JoinHandle<()>,
    prepare: Pool<prepare::Job>,
    compile: Pool<grammars::Job>,
}

impl Engine {
    /// Loads a model. `progress` gets a fraction and a phase at most ten times a second; `false` aborts
    /// with [`Code::Cancelled`]. Blocks.
    pub fn open(
        options: &EngineOptions,
        progress: &mut dyn FnMut(f32, &str) -> bool,
    ) -> Result<Self, Error> {
        let tuning = Tuning::parse(&options.tuning_json, options.deterministic)?;
        if options.plan_only {
            return Self::planned(options, &tuning, load::plan_model(options, &tuning)?);
        }
        let (model, report) = load::load_model(options, &tuning, progress)?;
        Self::start(model, report, options, &tuning)
    }

    /// Runs a model made elsewhere: tests.
    pub fn with_model(model: Box<dyn Model>, options: &EngineOptions) -> Result<Self, Error> {
        let tuning = Tuning::parse(&options.tuning_json, options.deterministic)?;
        Self::start(model, LoadReport::default(), options, &tuning)
    }

    /// An engine that only says what it would be.
    fn planned(
        options: &EngineOptions,
        tuning: &Tuning,
        report: LoadReport,
    ) -> Result<Self, Error> {
        // A plan that does not fit has no sizes; the smallest ones let it be reported all the same.
        let limits = report.limits.clone().unwrap_or(ModelLimits {
            vocab: 1,
            max_context: 2,
            block_tokens: 1,
            blocks: 2,
            slots: 2,
            max_rollback: 0,
            history: 0,
            truncation_keep: 0,
            replay_window: 0,
            eos: Vec::new(),
        });
        let config = Config::new(options, tuning, &limits)?;
        let info = match report.limits {
            Some(_) => info(&report, &limits, &config),
            None => EngineInfo {
                model_name: report.model_name.clone(),
                ..EngineInfo::default()
            },
        };
        let core = Core::new(config, bounds(&limits, limits.max_context), true);
        Ok(Self {
            number: next_number(),
            grammars: Arc::new(Grammars::new(&core, Todo::new())),
            core: Arc::new(core),
            info,
            plan: report.plan,
            threads: Mutex::new(None),
        })
    }

    fn start(
        model: Box<dyn Model>,
        report: LoadReport,
        options: &EngineOptions,
        tuning: &Tuning,
    ) -> Result<Self, Error> {
        let limits = model.limits().clone();
        let config = Config::new(options, tuning, &limits)?;
        let info = info(&report, &limits, &config);
        let bounds = bounds(&limits, config.max_context);
        let core = Arc::new(Core::new(config, bounds, false));
        let to_compile = Todo::new();
        let grammars = Arc::new(Grammars::new(&core, to_compile.clone()));
        let (prepare, compile) = start_pools(&core, &grammars, to_compile)?;
        let worker = Worker::new(core.clone(), model);
        let worker = sync::spawn("fathom-engine", move || worker.live())?;
        let watched = core.clone();
        let watchdog = sync::spawn("fathom-watch", move || watch(&watched))
            // Nobody would ever stop the thread that runs already.
            .inspect_err(|_| core.begin_drain(Some(Instant::now())))?;
        Ok(Self {
            number: next_number(),
            core,
            grammars,
            info,
            plan: report.plan,
            threads: Mutex::new(Some(Threads {
                worker,
                watchdog,
                prepare,
                compile,
            })),
        })
    }

    /// Where it is in its life; no device work.
    pub fn state(&self) -> EngineState {
        self.core.state()
    }

    /// What became of the options.
    pub fn info(&self) -> EngineInfo {
        self.info.clone()
    }

    /// Positions a sequence may have.
    pub fn max_context(&self) -> u32 {
        self.info.max_context
    }

    /// A copy of the counters.
    pub fn stats(&self) -> Stats {
        self.core.counters.snapshot()
    }

    /// `config` (every effective value with its origin), `plan` and the counters as JSON.
    pub fn metrics_json(&self) -> String {
        metrics::to_json(
            self.state(),
            self.stats(),
            &self.core.config.report,
            &self.plan,
        )
    }

    /// The numbers of the engine as OpenMetrics text, for the host to serve.
    pub fn metrics_text(&self) -> String {
        let identity = metrics::Identity {
            engine: self.number,
            model: &self.info.model_name,
            state: self.state(),
        };
        metrics::to_text(&identity, &self.core.counters)
    }

    /// The last 4096 steps as JSON, the oldest first; also after a failure.
    pub fn steps_json(&self) -> String {
        self.core.steps.to_json()
    }

    /// Records the next `max_steps` steps into memory; 0 is 20, and 1000 the most.
    pub fn start_profile(&self, max_steps: u32) -> Result<(), Error> {
        self.core.profiler.start(max_steps)
    }

    /// Ends the recording and gives it as JSON trace events.
    pub fn stop_profile(&self) -> Result<String, Error> {
        self.core.profiler.stop()
    }

    /// Accepts or refuses at once; never waits. With an adapter, its output replaces the events.
    pub fn submit(
        &self,
        queue: &Queue,
        request: Request,
        adapter: Option<Box<dyn Adapter>>,
    ) -> Result<RequestId, Error> {
        self.refuse(|| {
            let submitted = Instant::now();
            let budget = request.check(&self.core.bounds)?;
            let seed = draw_seed(&request)?;
            let delivery = self.delivery(queue, request.tag);
            delivery.equip(request.explicit_ack, adapter);
            let submission = self.grammars.ready(Submission {
                delivery: delivery.clone(),
                request,
                budget,
                seed,
                submitted,
                deadline: None,
                ruled: None,
            });
            match submission {
                Ok(submission) => self.accept(&delivery, || Command::Submit(submission)),
                Err(submission) => {
                    let id = self.accept(&delivery, || Command::Defer {
                        delivery: delivery.clone(),
                        deadline: None,
                    })?;
                    self.grammars.wait(&self.core, submission);
                    Ok(id)
                }
            }
        })
    }

    /// Gives out an id and returns; `job` runs on a preparation thread, and its failure arrives as the
    /// request's `Done`. `deadline` runs from now.
    pub fn submit_deferred(
        &self,
        queue: &Queue,
        tag: u64,
        deadline: Option<Duration>,
        job: Box<dyn FnOnce() -> Prepared + Send>,
    ) -> Result<RequestId, Error> {
        self.refuse(|| {
            let submitted = Instant::now();
            let deadline = deadline.and_then(|d| submitted.checked_add(d));
            let delivery = self.delivery(queue, tag);
            let id = self.accept(&delivery, || Command::Defer {
                delivery: delivery.clone(),
                deadline,
            })?;
            if let Some(threads) = &*self.threads.lock() {
                threads.prepare.push(prepare::Job {
                    delivery,
                    submitted,
                    deadline,
                    run: job,
                });
            }
            Ok(id)
        })
    }

    /// Idempotent; finished and unknown ids are skipped. Never waits.
    pub fn cancel(&self, ids: &[RequestId]) {
        for &id in ids {
            if let Some(delivery) = self.core.find(id) {
                delivery.cancel(Cancel::Host);
            }
        }
    }

    /// Reports tokens as read; increments. Never waits.
    pub fn ack(&self, reads: &[(RequestId, u32)]) {
        for &(id, count) in reads {
            if let Some(delivery) = self.core.find(id) {
                delivery.acknowledge(count);
            }
        }
    }

    /// Refuses new requests, lets running ones go on for `drain`, ends the rest, joins all threads. A thread
    /// that waits for a device which does not answer is left behind, with [`Code::Watchdog`].
    pub fn shutdown(&self, drain: Duration) -> Result<(), Error> {
        if sync::on_library_thread() {
            return Err(Error::new(
                Code::WrongMoment,
                "",
                "an engine cannot be shut down from a thread of the library",
            ));
        }
        self.core.begin_drain(Instant::now().checked_add(drain));
        // Waited for without the lock, which submissions take for a moment.
        let has_exited = self.core.wait_exited(self.core.config.step_timeout);
        let Some(mut threads) = self.threads.lock().take() else {
            return Ok(());
        };
        threads.prepare.close();
        threads.compile.close();
        // The bodies catch their panics: joining has nothing to tell.
        let _ = threads.watchdog.join();
        if !has_exited {
            return Err(Error::new(
                Code::Watchdog,
                "",
                "the engine thread waits for a device that does not answer and was left behind",
            ));
        }
        let _ = threads.worker.join();
        self.core.close();
        Ok(())
    }

    /// Forgets cached prefixes.
    pub fn clear_cache(&self) -> Result<(), Error> {
        // Nothing is cached: no request ever finds a prefix of another.
        match self.core.refusal() {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    fn refuse(
        &self,
        accept: impl FnOnce() -> Result<RequestId, Error>,
    ) -> Result<RequestId, Error> {
        let result = match self.core.refusal() {
            Some(error) => Err(error),
            None => accept(),
        };
        if let Err(error) = &result {
            metrics::count(&self.core.counters.requests_refused);
            self.core.counters.rejections.count(error.code);
        }
        result
    }

    fn delivery(&self, queue: &Queue, tag: u64) -> Arc<Delivery> {
        // Shared by all engines: an id is never reused in a process.
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let id = RequestId(NEXT.fetch_add(1, Relaxed));
        let control: Arc<dyn Control> = self.core.clone();
        Arc::new(Delivery::new(id, tag, queue.shared().clone(), control))
    }

    fn accept(
        &self,
        delivery: &Arc<Delivery>,
        command: impl FnOnce() -> Command,
    ) -> Result<RequestId, Error> {
        self.core.take_place()?;
        self.core
            .accept(delivery, command())
            .inspect_err(|_| self.core.give_place())?;
        Ok(delivery.id)
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        // From a callback the threads cannot be joined: they end by themselves.
        if self.shutdown(Duration::ZERO).is_err() {
            self.core.begin_drain(Some(Instant::now()));
        }
    }
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine")
            .field("state", &self.state())
            .field("info", &self.info)
            .finish_non_exhaustive()
    }
}

/// The threads that make requests and compile their grammars.
fn start_pools(
    core: &Arc<Core>,
    grammars: &Arc<Grammars>,
    to_compile: Todo<grammars::Job>,
) -> Result<(Pool<prepare::Job>, Pool<grammars::Job>), Error> {
    let config = &core.config;
    let (shared, rules) = (core.clone(), grammars.clone());
    let prepare = Pool::start(
        "fathom-prepare",
        config.prepare_threads,
        sync::STACK,
        Todo::new(),
        move |job| prepare::run(&shared, &rules, job),
    )?;
    let (shared, rules) = (core.clone(), grammars.clone());
    let compile = Pool::start(
        "fathom-grammar",
        config.grammar_threads,
        constraint::STACK,
        to_compile,
        move |job| rules.run(&shared, job),
    )?;
    Ok((prepare, compile))
}

/// The seed of a request, from the operating system if it names none.
fn draw_seed(request: &Request) -> Result<u64, Error> {
    match request.sampling.seed {
        Some(seed) => Ok(seed),
        None => getrandom::u64().map_err(|e| {
            Error::new(
                Code::Internal,
                "seed",
                format!("the system gives no random numbers: {e}"),
            )
        }),
    }
}

fn bounds(limits: &ModelLimits, max_context: u32) -> Bounds {
    Bounds {
        vocab: limits.vocab,
        max_context,
        pool_tokens: (limits.blocks - 1).saturating_mul(limits.block_tokens),
    }
}

fn info(report: &LoadReport, limits: &ModelLimits, config: &Config) -> EngineInfo {
    EngineInfo {
        vocab_size: limits.vocab,
        max_context: config.max_context,
        max_running: config.scheduler.sequences,
        device_count: report.device_count.max(1),
        weight_bytes: report.weight_bytes,
        kv_bytes: report.kv_bytes,
        kv_blocks: u64::from(limits.blocks - 1),
        model_name: report.model_name.clone(),
    }
}

/// Ends everybody when a step does not.
fn watch(core: &Core) {
    let timeout = core.config.step_timeout;
    // Often enough to be at most a quarter late.
    let pause = (timeout / 4).max(Duration::from_millis(1));
    while !core.wait_over(pause) {
        if core.step_age().is_some_and(|age| age > timeout) {
            let error = Error::new(
                Code::Watchdog,
                "",
                format!("a step took longer than {} ms", timeout.as_millis()),
            );
            core.fail(error.clone());
            core.end_everyone(&error, FinishReason::Error, "engine_failed");
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::queue::QueueOptions;

    #[test]
    fn a_planned_engine_is_born_closed_and_tells_its_plan() {
        let options = EngineOptions::default();
        let tuning = Tuning::parse("", false).unwrap();
        let report = LoadReport {
            plan: serde_json::json!({"fits": false, "weight_bytes": 5}),
            model_name: "tiny".to_owned(),
            ..LoadReport::default()
        };
        let engine = Engine::planned(&options, &tuning, report).unwrap();
        assert_eq!(engine.state(), EngineState::Closed);
        let json: Value = serde_json::from_str(&engine.metrics_json()).unwrap();
        assert_eq!(json["plan"]["fits"], false);
        assert_eq!(json["state"], "closed");
        assert_eq!(engine.info().model_name, "tiny");
        let queue = Queue::new(QueueOptions::default()).unwrap();
        let refused = engine.submit(&queue, Request::new(vec![0]), None);
        assert_eq!(refused.unwrap_err().code, Code::Closed);
        engine.shutdown(Duration::ZERO).unwrap();
    }

    #[test]
    fn handles_may_be_used_from_all_threads() {
        fn is_shared<T: Send + Sync>() {}
        is_shared::<Engine>();
        is_shared::<Queue>();
    }

    #[test]
    fn a_device_that_is_not_built_in_is_refused_by_its_name() {
        for (device, code) in [
            ("abacus", Code::InvalidParam),
            ("cuda:0", Code::Unsupported),
        ] {
            for plan_only in [false, true] {
                let options = EngineOptions {
                    plan_only,
                    device: device.to_owned(),
                    ..EngineOptions::default()
                };
                let error = Engine::open(&options, &mut |_, _| true).unwrap_err();
                assert_eq!(error.code, code);
                assert_eq!(error.param, "device");
                assert!(error.message.contains(device), "{error}");
            }
        }
    }
}
