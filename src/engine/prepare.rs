//! The small pool that makes requests out of what hosts submit: parsing, rendering, tokenising.
//!
//! In: jobs in order of arrival. Out: commands for the engine thread. A job that panics or fails ends its
//! request; one whose request has ended meanwhile is not run.

#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

use parking_lot::{Condvar, Mutex};

use super::Prepared;
use super::core::{Command, Core, Submission};
use super::delivery::Delivery;
use super::draw_seed;
use super::error::{Code, Error};
use super::request::Failure;
use super::sync;

/// One deferred request.
pub(super) struct Job {
    pub(super) delivery: Arc<Delivery>,
    pub(super) submitted: Instant,
    pub(super) deadline: Option<Instant>,
    pub(super) run: Box<dyn FnOnce() -> Prepared + Send>,
}

/// The threads and what they have to do.
pub(super) struct Pool {
    todo: Arc<Todo>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Default)]
struct Todo {
    state: Mutex<TodoState>,
    changed: Condvar,
}

#[derive(Default)]
struct TodoState {
    jobs: VecDeque<Job>,
    closed: bool,
}

impl Pool {
    pub(super) fn start(core: &Arc<Core>) -> Result<Self, Error> {
        let mut pool = Self {
            todo: Arc::default(),
            threads: Vec::new(),
        };
        for n in 0..core.config.prepare_threads {
            let (todo, core) = (pool.todo.clone(), core.clone());
            let body = move || {
                while let Some(job) = todo.next() {
                    run(&core, job);
                }
            };
            match sync::spawn(&format!("fathom-prepare-{n}"), body) {
                Ok(thread) => pool.threads.push(thread),
                Err(error) => return Err(error),
            }
        }
        Ok(pool)
    }

    pub(super) fn push(&self, job: Job) {
        let mut state = self.todo.state.lock();
        if !state.closed {
            state.jobs.push_back(job);
            self.todo.changed.notify_one();
        }
    }

    /// Drops what was not begun.
    fn stop(&self) {
        let mut state = self.todo.state.lock();
        state.closed = true;
        let jobs = std::mem::take(&mut state.jobs);
        drop(state);
        self.todo.changed.notify_all();
        // What jobs own may do anything on drop.
        let _ = catch_unwind(AssertUnwindSafe(|| drop(jobs)));
    }

    /// Drops what was not begun and waits for what was.
    pub(super) fn close(&mut self) {
        self.stop();
        for thread in self.threads.drain(..) {
            // Jobs are run under a guard: there is no panic to learn of.
            let _ = thread.join();
        }
    }
}

impl Drop for Pool {
    /// Without waiting: it may happen on one of the threads.
    fn drop(&mut self) {
        self.stop();
    }
}

impl Todo {
    fn next(&self) -> Option<Job> {
        let mut state = self.state.lock();
        loop {
            if state.closed {
                return None;
            }
            if let Some(job) = state.jobs.pop_front() {
                return Some(job);
            }
            self.changed.wait(&mut state);
        }
    }
}

fn run(core: &Core, job: Job) {
    let Job {
        delivery,
        submitted,
        deadline,
        run,
    } = job;
    if core.find(delivery.id).is_none() {
        // Cancelled or late. What the job owns may do anything on drop.
        let _ = catch_unwind(AssertUnwindSafe(|| drop(run)));
        return;
    }
    let prepared = catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|_| {
        Err(Failure::Engine(Error::new(
            Code::WorkerPanic,
            "",
            "the preparation of this request panicked",
        )))
    });
    let checked = prepared.and_then(|(request, adapter)| {
        delivery.equip(request.explicit_ack, adapter);
        let seed = draw_seed(&request).map_err(Failure::Engine)?;
        let budget = request.check(&core.bounds).map_err(Failure::Engine)?;
        Ok((request, seed, budget))
    });
    core.tell(match checked {
        Err(failure) => Command::Refuse(delivery.id, failure),
        Ok((request, seed, budget)) => Command::Submit(Box::new(Submission {
            delivery,
            request,
            budget,
            seed,
            submitted,
            deadline,
        })),
    });
}
