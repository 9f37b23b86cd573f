//! Threads that do one thing after another, in order of arrival.
//!
//! In: pieces of work. Out: whatever the work does with them, under a guard: a panic is the worker's matter and
//! never ends a thread. What was not begun is dropped when the pool closes.

#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;

use parking_lot::{Condvar, Mutex};

use super::error::Error;
use super::sync;

/// The threads, and what they have to do.
pub(super) struct Pool<T: Send + 'static> {
    todo: Todo<T>,
    threads: Vec<JoinHandle<()>>,
}

/// Where work is put. Clones are the same list.
pub(super) struct Todo<T>(Arc<(Mutex<State<T>>, Condvar)>);

struct State<T> {
    work: VecDeque<T>,
    closed: bool,
}

impl<T: Send + 'static> Pool<T> {
    /// Starts `threads` named `name-0` and so on, which pass what is put into `todo` to `run`.
    pub(super) fn start(
        name: &str,
        threads: u32,
        stack_bytes: usize,
        todo: Todo<T>,
        run: impl Fn(T) + Clone + Send + 'static,
    ) -> Result<Self, Error> {
        let mut pool = Self {
            todo,
            threads: Vec::new(),
        };
        for n in 0..threads {
            let (todo, run) = (pool.todo.clone(), run.clone());
            let body = move || {
                while let Some(work) = todo.next() {
                    // What the work owns may panic on drop.
                    let _ = catch_unwind(AssertUnwindSafe(|| run(work)));
                }
            };
            let thread = sync::spawn_with_stack(&format!("{name}-{n}"), stack_bytes, body)?;
            pool.threads.push(thread);
        }
        Ok(pool)
    }

    pub(super) fn push(&self, work: T) {
        self.todo.push(work);
    }

    /// Drops what was not begun and waits for what was.
    pub(super) fn close(&mut self) {
        self.todo.close();
        for thread in self.threads.drain(..) {
            // Work is run under a guard: there is no panic to learn of.
            let _ = thread.join();
        }
    }
}

impl<T: Send + 'static> Drop for Pool<T> {
    /// Without waiting: it may happen on one of the threads.
    fn drop(&mut self) {
        self.todo.close();
    }
}

impl<T> Todo<T> {
    /// Nothing to do yet.
    pub(super) fn new() -> Self {
        let state = State {
            work: VecDeque::new(),
            closed: false,
        };
        Self(Arc::new((Mutex::new(state), Condvar::new())))
    }

    /// Adds to the end; nothing once the pool is closed.
    pub(super) fn push(&self, work: T) {
        let (state, changed) = &*self.0;
        let mut state = state.lock();
        if !state.closed {
            state.work.push_back(work);
            changed.notify_one();
        }
    }

    fn next(&self) -> Option<T> {
        let (state, changed) = &*self.0;
        let mut state = state.lock();
        loop {
            if state.closed {
                return None;
            }
            if let Some(work) = state.work.pop_front() {
                return Some(work);
            }
            changed.wait(&mut state);
        }
    }

    fn close(&self) {
        let (state, changed) = &*self.0;
        let mut state = state.lock();
        state.closed = true;
        let work = std::mem::take(&mut state.work);
        drop(state);
        changed.notify_all();
        // What work owns may do anything on drop.
        let _ = catch_unwind(AssertUnwindSafe(|| drop(work)));
    }
}

impl<T> Clone for Todo<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}
