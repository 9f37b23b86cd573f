//! What the threads of an engine share: its state, the command ring, and who is alive.
//!
//! Hosts write commands and flags here and never wait; the engine thread reads them between steps. The ring is
//! bounded by the limit on waiting requests, since each request adds a bounded number of commands. Cost: one
//! short lock a call.

#![forbid(unsafe_code)]

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::constraint::Ruled;
use super::delivery::{Cancel, Control, Delivery, End};
use super::error::{Code, Error};
use super::metrics::steps::StepRing;
use super::metrics::{Counters, count};
use super::options::{Config, EngineState};
use super::profile::Profiler;
use super::request::{Bounds, Budget, Failure, FinishReason, Request, RequestId, Usage};

/// A checked request on its way to the engine thread.
pub(crate) struct Submission {
    pub(crate) delivery: Arc<Delivery>,
    pub(crate) request: Request,
    pub(crate) budget: Budget,
    pub(crate) seed: u64,
    pub(crate) submitted: Instant,
    /// Of the whole request, from a deferred submission.
    pub(crate) deadline: Option<Instant>,
    /// The request's constraint, compiled; taken out of the request.
    pub(crate) ruled: Option<Ruled>,
}

/// Until when a request waits for its grammar.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Compiling {
    pub(crate) grammar: Option<Instant>,
    pub(crate) queue: Option<Instant>,
    pub(crate) first_token: Option<Instant>,
    pub(crate) total: Option<Instant>,
}

/// What the engine thread is told.
pub(crate) enum Command {
    /// Ready to wait for admission.
    Submit(Box<Submission>),
    /// Alive, but its request is still being made.
    Defer {
        delivery: Arc<Delivery>,
        deadline: Option<Instant>,
    },
    /// A deferred request waits for its grammar.
    Compiling(RequestId, Compiling),
    /// A deferred request could not be made.
    Refuse(RequestId, Failure),
}

#[derive(Default)]
pub(crate) struct Inbox {
    pub(crate) commands: VecDeque<Command>,
    pub(crate) cancels: Vec<(RequestId, Cancel)>,
    nudged: bool,
    /// Shutdown was asked for; `Some(None)` drains without limit.
    pub(crate) drain: Option<Option<Instant>>,
    /// The engine thread takes no more.
    closed: bool,
}

impl Inbox {
    fn has_news(&self) -> bool {
        self.nudged || !self.commands.is_empty() || !self.cancels.is_empty()
    }
}

const READY: u8 = 0;
const DRAINING: u8 = 1;
const FAILED: u8 = 2;
const CLOSED: u8 = 3;

/// See the module.
pub(crate) struct Core {
    pub(crate) config: Config,
    pub(crate) bounds: Bounds,
    pub(crate) counters: Counters,
    pub(crate) steps: StepRing,
    pub(crate) profiler: Profiler,
    state: AtomicU8,
    failure: OnceLock<Error>,
    inbox: Mutex<Inbox>,
    arrived: Condvar,
    live: Mutex<HashMap<RequestId, Arc<Delivery>>>,
    /// Requests that have never run and count against `max_queued`.
    queued: AtomicU32,
    born: Instant,
    /// Microseconds after `born` at which the step that runs began, and 1 more; 0 between steps.
    step_began: AtomicU64,
    exited: Mutex<bool>,
    changed: Condvar,
}

impl Core {
    pub(crate) fn new(config: Config, bounds: Bounds, is_closed: bool) -> Self {
        Self {
            config,
            bounds,
            counters: Counters::default(),
            steps: StepRing::default(),
            profiler: Profiler::default(),
            state: AtomicU8::new(if is_closed { CLOSED } else { READY }),
            failure: OnceLock::new(),
            inbox: Mutex::new(Inbox::default()),
            arrived: Condvar::new(),
            live: Mutex::new(HashMap::new()),
            queued: AtomicU32::new(0),
            born: Instant::now(),
            step_began: AtomicU64::new(0),
            exited: Mutex::new(is_closed),
            changed: Condvar::new(),
        }
    }

    pub(crate) fn state(&self) -> EngineState {
        match self.state.load(SeqCst) {
            READY => EngineState::Ready,
            DRAINING => EngineState::Draining,
            FAILED => EngineState::Failed,
            _ => EngineState::Closed,
        }
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.state.load(SeqCst) == FAILED
    }

    /// The cause, once it has failed.
    pub(crate) fn failure(&self) -> Option<&Error> {
        self.failure.get()
    }

    /// Why new requests are refused, if they are.
    pub(crate) fn refusal(&self) -> Option<Error> {
        match self.state() {
            EngineState::Ready => None,
            EngineState::Draining => Some(shutting_down()),
            EngineState::Failed => self.failure.get().cloned(),
            EngineState::Closed => Some(Error::new(Code::Closed, "", "the engine is closed")),
        }
    }

    /// Moves to FAILED, unless it is closed; the first cause stays.
    pub(crate) fn fail(&self, error: Error) {
        self.counters.faults.count(error.code);
        let _ = self.failure.set(error);
        let _ = self
            .state
            .fetch_update(SeqCst, SeqCst, |s| (s != CLOSED).then_some(FAILED));
        // A shutdown may be waiting for a thread that will not come back.
        let _exited = self.exited.lock();
        self.changed.notify_all();
    }

    /// A place among the requests that wait.
    pub(crate) fn take_place(&self) -> Result<(), Error> {
        let most = self.config.max_queued;
        self.queued
            .fetch_update(SeqCst, SeqCst, |n| (n < most).then_some(n + 1))
            .map(drop)
            .map_err(|_| {
                Error::new(
                    Code::QueueFull,
                    "",
                    format!("{most} requests wait already, try again later"),
                )
            })
    }

    pub(crate) fn give_place(&self) {
        self.queued.fetch_sub(1, SeqCst);
    }

    /// Puts a new request on the ring and makes it known; refused ones leave no trace.
    pub(crate) fn accept(&self, delivery: &Arc<Delivery>, command: Command) -> Result<(), Error> {
        delivery.queue.attach(delivery)?;
        let mut inbox = self.inbox.lock();
        let refusal = if inbox.closed { self.refusal() } else { None };
        // Between the first look at the state and here a shutdown may have begun.
        if let Some(error) = refusal.or_else(|| inbox.drain.map(|_| shutting_down())) {
            drop(inbox);
            delivery.queue.detach(delivery.id);
            return Err(error);
        }
        let mut live = self.live.lock();
        if self.has_failed() {
            // Whoever fails the engine ends all that are in the list afterwards: too late to join it.
            drop((live, inbox));
            delivery.queue.detach(delivery.id);
            return Err(self.refusal().unwrap_or_else(shutting_down));
        }
        live.insert(delivery.id, delivery.clone());
        drop(live);
        inbox.commands.push_back(command);
        drop(inbox);
        count(&self.counters.requests_accepted);
        self.arrived.notify_one();
        Ok(())
    }

    /// A command about a request that is known already.
    pub(crate) fn tell(&self, command: Command) {
        let mut inbox = self.inbox.lock();
        if !inbox.closed {
            inbox.commands.push_back(command);
            self.arrived.notify_one();
        }
    }

    pub(crate) fn find(&self, id: RequestId) -> Option<Arc<Delivery>> {
        self.live.lock().get(&id).cloned()
    }

    /// Takes what is in the ring.
    pub(crate) fn drain_inbox(
        &self,
        commands: &mut VecDeque<Command>,
        cancels: &mut Vec<(RequestId, Cancel)>,
    ) -> Option<Option<Instant>> {
        let mut inbox = self.inbox.lock();
        inbox.nudged = false;
        std::mem::swap(&mut inbox.commands, commands);
        std::mem::swap(&mut inbox.cancels, cancels);
        inbox.drain
    }

    /// Sleeps until there is something to read, or until `due`. `seen` is what [`Self::drain_inbox`] answered.
    pub(crate) fn wait(&self, due: Option<Instant>, seen: Option<Option<Instant>>) {
        let mut inbox = self.inbox.lock();
        while !inbox.has_news() && inbox.drain == seen && !self.has_failed() {
            match due {
                None => self.arrived.wait(&mut inbox),
                Some(due) => {
                    if self.arrived.wait_until(&mut inbox, due).timed_out() {
                        return;
                    }
                }
            }
        }
    }

    /// Refuses from now on, and lets the engine thread finish until `until`.
    pub(crate) fn begin_drain(&self, until: Option<Instant>) {
        let mut inbox = self.inbox.lock();
        // The earlier end of two shutdowns counts.
        inbox.drain = Some(match (inbox.drain, until) {
            (Some(Some(a)), Some(b)) => Some(a.min(b)),
            (Some(None), b) | (None, b) => b,
            (a @ Some(Some(_)), None) => a.flatten(),
        });
        let _ = self.state.compare_exchange(READY, DRAINING, SeqCst, SeqCst);
        self.arrived.notify_one();
    }

    /// The engine thread reads no more commands.
    pub(crate) fn close_inbox(&self) {
        let mut inbox = self.inbox.lock();
        inbox.closed = true;
        let commands = std::mem::take(&mut inbox.commands);
        inbox.cancels.clear();
        drop(inbox);
        drop(commands);
    }

    pub(crate) fn close(&self) {
        let _ = self
            .state
            .fetch_update(SeqCst, SeqCst, |s| (s != FAILED).then_some(CLOSED));
    }

    /// Pushes the end of one request; answers whether it was alive. Its queue is to be flushed.
    pub(crate) fn end(&self, delivery: &Arc<Delivery>, end: End) -> bool {
        let counter = match end.finish {
            FinishReason::Stop | FinishReason::Length | FinishReason::ToolCalls => {
                &self.counters.requests_finished
            }
            FinishReason::Cancelled => &self.counters.requests_cancelled,
            FinishReason::Error => &self.counters.requests_failed,
        };
        if self.live.lock().remove(&delivery.id).is_none() {
            return false;
        }
        count(counter);
        match &end.failure {
            None => self.counters.times.request(&end.usage),
            Some(_) if end.finish == FinishReason::Error => {
                self.counters
                    .faults
                    .count(end.detail.code.unwrap_or(Code::Internal));
            }
            Some(_) => {}
        }
        delivery.queue.push_end(delivery, end)
    }

    /// Ends whoever is still alive.
    pub(crate) fn end_everyone(&self, error: &Error, finish: FinishReason, reason: &'static str) {
        let everyone: Vec<_> = self.live.lock().values().cloned().collect();
        for delivery in everyone {
            let end = End::by(error.clone(), finish, reason, Usage::default());
            self.end(&delivery, end);
            delivery.queue.flush();
        }
    }

    /// Microseconds since the engine was opened.
    pub(crate) fn micros_after_birth(&self, at: Instant) -> u64 {
        let time = at.saturating_duration_since(self.born).as_micros();
        u64::try_from(time).unwrap_or(u64::MAX)
    }

    /// Marks the beginning and the end of a step for the watchdog.
    pub(crate) fn mark_step(&self, runs: bool) {
        let now = if runs {
            self.born.elapsed().as_micros() as u64 + 1
        } else {
            0
        };
        self.step_began.store(now, Relaxed);
    }

    /// How long the step that runs has been running.
    pub(crate) fn step_age(&self) -> Option<Duration> {
        let began = Duration::from_micros(self.step_began.load(Relaxed).checked_sub(1)?);
        Some(self.born.elapsed().saturating_sub(began))
    }

    /// The engine thread is gone.
    pub(crate) fn mark_exited(&self) {
        *self.exited.lock() = true;
        self.changed.notify_all();
    }

    /// Waits for the end of the engine thread; after a watchdog failure no longer than `patience`. Answers
    /// whether it ended.
    pub(crate) fn wait_exited(&self, patience: Duration) -> bool {
        let mut exited = self.exited.lock();
        while !*exited {
            let is_lost = self.failure.get().is_some_and(|e| e.code == Code::Watchdog);
            if !is_lost {
                self.changed.wait(&mut exited);
            } else if self.changed.wait_for(&mut exited, patience).timed_out() {
                return *exited;
            }
        }
        true
    }

    /// Waits for the end of the engine thread at most `time`; answers whether it ended or the engine failed.
    pub(crate) fn wait_over(&self, time: Duration) -> bool {
        let mut exited = self.exited.lock();
        if !*exited && !self.has_failed() {
            self.changed.wait_for(&mut exited, time);
        }
        *exited || self.has_failed()
    }
}

impl Control for Core {
    fn cancel(&self, id: RequestId, why: Cancel) {
        let mut inbox = self.inbox.lock();
        if !inbox.closed {
            inbox.cancels.push((id, why));
            self.arrived.notify_one();
        }
    }

    fn nudge(&self) {
        self.inbox.lock().nudged = true;
        self.arrived.notify_one();
    }
}

pub(crate) fn shutting_down() -> Error {
    Error::new(Code::Shutdown, "", "the engine is shutting down")
}
