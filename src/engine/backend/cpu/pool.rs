//! A private team of threads for the inner loops: `fathom-cpu-1`, `fathom-cpu-2`, ….
//!
//! One call runs one body over a range of items; the caller takes part, items are handed out one grain
//! at a time, and the call returns when every item is done. A call costs two atomic operations a grain and
//! no allocation; a helper that found work spins for some microseconds before it sleeps, because a small
//! model makes hundreds of calls for one token. A helper that is late never holds a call up: it enters only
//! while the call is open, and the caller waits only for those who entered.
//!
//! A call made while another runs (nested in a body, or from another host thread) runs on its own thread.

use std::any::Any;
use std::cell::UnsafeCell;
use std::hint::spin_loop;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::thread::JoinHandle;

use parking_lot::{Condvar, Mutex};

use crate::engine::{Code, Error};

/// Set in [`Shared::state`] while helpers may enter; the bits below count those inside, the bits above
/// number the calls.
const OPEN: u64 = 1 << 31;
const CALL: u64 = 1 << 32;
const INSIDE: u64 = OPEN - 1;

/// Turns of the waiting loop before a thread sleeps: about 20 to 60 µs, longer than the gap between two
/// calls of one step, shorter than the gap between two steps of an idle engine.
const SPINS: usize = 1000;

#[derive(Clone, Copy)]
struct Job {
    body: *const (dyn Fn(usize) + Sync),
    items: usize,
    grain: usize,
}

struct Shared {
    state: AtomicU64,
    /// Written by the caller while the call is closed and nobody is inside; read by those inside.
    job: UnsafeCell<Option<Job>>,
    next: AtomicUsize,
    /// Helpers that are going to sleep or sleep.
    sleeping: AtomicUsize,
    leaving: AtomicBool,
    lock: Mutex<()>,
    work: Condvar,
    empty: Condvar,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

// SAFETY: `job` is the only field that is not `Sync`. It is written only by the holder of `Pool::turn`
// while `state` is closed with nobody inside, and read only between entering and leaving an open call;
// both are ordered by `state`. The body behind the pointer is `Sync`.
unsafe impl Sync for Shared {}
// SAFETY: as above; the pointer in `job` is never used outside a call, whose caller keeps the body alive.
unsafe impl Send for Shared {}

pub(super) struct Pool {
    shared: Arc<Shared>,
    /// Held by the one caller whose call uses the helpers.
    turn: Mutex<()>,
    helpers: Vec<JoinHandle<()>>,
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool")
            .field("threads", &self.threads())
            .finish_non_exhaustive()
    }
}

impl Pool {
    /// `threads` includes the caller of each call.
    pub(super) fn new(threads: usize) -> Result<Self, Error> {
        let shared = Arc::new(Shared {
            state: AtomicU64::new(0),
            job: UnsafeCell::new(None),
            next: AtomicUsize::new(0),
            sleeping: AtomicUsize::new(0),
            leaving: AtomicBool::new(false),
            lock: Mutex::new(()),
            work: Condvar::new(),
            empty: Condvar::new(),
            panic: Mutex::new(None),
        });
        let mut pool = Self {
            shared,
            turn: Mutex::new(()),
            helpers: Vec::new(),
        };
        // A new thread inherits the mask, so there is no moment in which it could take a signal.
        let _blocked = SignalsBlocked::new();
        for number in 1..threads {
            let shared = Arc::clone(&pool.shared);
            let helper = std::thread::Builder::new()
                .name(format!("fathom-cpu-{number}"))
                .spawn(move || help(&shared))
                .map_err(|error| {
                    Error::new(
                        Code::OutOfHostMemory,
                        "threads",
                        format!("cannot start thread {number} of {threads}: {error}"),
                    )
                })?;
            pool.helpers.push(helper);
        }
        Ok(pool)
    }

    pub(super) fn threads(&self) -> usize {
        self.helpers.len() + 1
    }

    /// Calls `body` once for each of `0..items`. Items are taken `grain` at a time; a call of one grain
    /// stays on this thread. A panic of a body is thrown again here, after all threads have left it.
    pub(super) fn run(&self, items: usize, grain: usize, body: &(dyn Fn(usize) + Sync)) {
        let grain = grain.max(1);
        let turn = if self.helpers.is_empty() || items <= grain {
            None
        } else {
            self.turn.try_lock()
        };
        let Some(_turn) = turn else {
            (0..items).for_each(body);
            return;
        };
        let shared = &*self.shared;
        // SAFETY: only the lifetime is changed. The pointer is used by this thread and by helpers that
        // entered this call, and this function returns only after the last of them has left.
        let body = unsafe {
            std::mem::transmute::<&(dyn Fn(usize) + Sync), &'static (dyn Fn(usize) + Sync)>(body)
        };
        let job = Job { body, items, grain };
        // SAFETY: `turn` is ours, and the last call ended closed and with nobody inside.
        unsafe { *shared.job.get() = Some(job) };
        shared.next.store(0, SeqCst);
        let call = (shared.state.load(SeqCst) / CALL + 1) * CALL;
        shared.state.store(call | OPEN, SeqCst);
        // A helper announces its sleep before its last look at `state`: one of the two sees the other.
        if shared.sleeping.load(SeqCst) > 0 {
            drop(shared.lock.lock());
            shared.work.notify_all();
        }
        shared.take_part(job);
        shared.state.fetch_and(!OPEN, SeqCst);
        shared.wait_until_empty();
        let panic = shared.panic.lock().take();
        if let Some(panic) = panic {
            drop(_turn);
            resume_unwind(panic);
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.leaving.store(true, SeqCst);
        drop(self.shared.lock.lock());
        self.shared.work.notify_all();
        for helper in self.helpers.drain(..) {
            // A helper catches what bodies throw; were one to die of something else, the rest still go.
            let _ = helper.join();
        }
    }
}

impl Shared {
    /// Runs items until none is left. Never unwinds.
    fn take_part(&self, job: Job) {
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            // SAFETY: `job` was read by its caller, or inside its open call; the caller keeps the body
            // alive until everybody has left.
            let body = unsafe { &*job.body };
            loop {
                let first = self.next.fetch_add(job.grain, SeqCst);
                if first >= job.items {
                    return;
                }
                (first..job.items.min(first + job.grain)).for_each(body);
            }
        }));
        if let Err(panic) = outcome {
            // What is not yet taken is dropped: the call has failed.
            self.next.store(job.items, SeqCst);
            self.panic.lock().get_or_insert(panic);
        }
    }

    fn wait_until_empty(&self) {
        let is_empty = || self.state.load(SeqCst) & INSIDE == 0;
        for _ in 0..SPINS {
            if is_empty() {
                return;
            }
            spin_loop();
        }
        let mut guard = self.lock.lock();
        while !is_empty() {
            self.empty.wait(&mut guard);
        }
    }

    /// The number of an open call other than `last`.
    fn open_call(&self, last: u64) -> Option<u64> {
        let state = self.state.load(SeqCst);
        (state & OPEN != 0 && state / CALL != last).then_some(state / CALL)
    }

    /// Enters an open call other than `last`; gives its number.
    fn enter(&self, last: u64) -> Option<u64> {
        let mut state = self.state.load(SeqCst);
        while state & OPEN != 0 && state / CALL != last {
            match self
                .state
                .compare_exchange_weak(state, state + 1, SeqCst, SeqCst)
            {
                Ok(_) => return Some(state / CALL),
                Err(now) => state = now,
            }
        }
        None
    }

    fn leave(&self) {
        let before = self.state.fetch_sub(1, SeqCst);
        if before & OPEN == 0 && before & INSIDE == 1 {
            // The caller looks at `state` under the lock before it sleeps.
            drop(self.lock.lock());
            self.empty.notify_all();
        }
    }

    /// Returns when there may be a call to enter, or it is time to leave.
    fn wait_for_work(&self, last: u64) {
        let is_over = || self.open_call(last).is_some() || self.leaving.load(SeqCst);
        for _ in 0..SPINS {
            if is_over() {
                return;
            }
            spin_loop();
        }
        self.sleeping.fetch_add(1, SeqCst);
        let mut guard = self.lock.lock();
        while !is_over() {
            self.work.wait(&mut guard);
        }
        drop(guard);
        self.sleeping.fetch_sub(1, SeqCst);
    }
}

/// The life of a helper.
fn help(shared: &Shared) {
    let mut last = 0;
    while !shared.leaving.load(SeqCst) {
        let Some(call) = shared.enter(last) else {
            shared.wait_for_work(last);
            continue;
        };
        last = call;
        // SAFETY: we are inside an open call, so its caller wrote `job` before and writes it again only
        // after we have left.
        let job = unsafe { *shared.job.get() };
        if let Some(job) = job {
            shared.take_part(job);
        }
        shared.leave();
    }
}

/// Blocks all asynchronous signals on this thread until dropped: the host's handlers never run on ours.
/// Those that a fault of the thread itself raises stay as they are, so that crash reports still work.
struct SignalsBlocked {
    #[cfg(unix)]
    before: Option<libc::sigset_t>,
}

impl SignalsBlocked {
    #[cfg(unix)]
    fn new() -> Self {
        let mut before = std::mem::MaybeUninit::uninit();
        let mut set = std::mem::MaybeUninit::uninit();
        // SAFETY: both sets are ours; `sigfillset` writes `set` before it is read, and `before` is read
        // only where `pthread_sigmask` reports that it wrote it.
        let before = unsafe {
            libc::sigfillset(set.as_mut_ptr());
            for signal in [
                libc::SIGSEGV,
                libc::SIGBUS,
                libc::SIGFPE,
                libc::SIGILL,
                libc::SIGTRAP,
                libc::SIGSYS,
                libc::SIGABRT,
            ] {
                libc::sigdelset(set.as_mut_ptr(), signal);
            }
            let status = libc::pthread_sigmask(libc::SIG_BLOCK, set.as_ptr(), before.as_mut_ptr());
            (status == 0).then(|| before.assume_init())
        };
        Self { before }
    }

    #[cfg(not(unix))]
    fn new() -> Self {
        Self {}
    }
}

#[cfg(unix)]
impl Drop for SignalsBlocked {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            // SAFETY: `before` is the mask that this thread had.
            unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before, std::ptr::null_mut()) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_item_runs_once_whatever_the_grain() {
        let pool = Pool::new(3).unwrap();
        for items in [0, 1, 2, 5, 64, 1000] {
            for grain in [1, 3, 100] {
                let counts: Vec<AtomicUsize> = (0..items).map(|_| AtomicUsize::new(0)).collect();
                pool.run(items, grain, &|i| {
                    counts[i].fetch_add(1, SeqCst);
                });
                assert!(counts.iter().all(|c| c.load(SeqCst) == 1));
            }
        }
    }

    #[test]
    fn many_short_calls_in_a_row_are_all_completed() {
        let pool = Pool::new(4).unwrap();
        let sum = AtomicUsize::new(0);
        for _ in 0..20_000 {
            pool.run(4, 1, &|i| {
                sum.fetch_add(i, SeqCst);
            });
        }
        assert_eq!(sum.load(SeqCst), 6 * 20_000);
    }

    #[test]
    fn helpers_that_slept_wake_up() {
        let pool = Pool::new(2).unwrap();
        while pool.shared.sleeping.load(SeqCst) == 0 {
            std::thread::yield_now();
        }
        // Both items wait for each other: this ends only if the helper comes.
        let barrier = std::sync::Barrier::new(2);
        pool.run(2, 1, &|_| {
            barrier.wait();
        });
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_lives_on() {
        let pool = Pool::new(2).unwrap();
        for thrower in [0, 57, 99] {
            let outcome = catch_unwind(AssertUnwindSafe(|| {
                pool.run(100, 1, &|i| assert!(i != thrower, "item {i} threw"));
            }));
            let text = *outcome.unwrap_err().downcast::<String>().unwrap();
            assert_eq!(text, format!("item {thrower} threw"));
        }
        // A panic on a helper, not on the caller.
        let caller = std::thread::current().id();
        let barrier = std::sync::Barrier::new(2);
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            pool.run(2, 1, &|_| {
                barrier.wait();
                assert!(std::thread::current().id() == caller, "a helper threw");
            });
        }));
        assert!(outcome.is_err());
        let ran = AtomicUsize::new(0);
        pool.run(10, 1, &|_| {
            ran.fetch_add(1, SeqCst);
        });
        assert_eq!(ran.load(SeqCst), 10);
    }

    #[test]
    fn a_nested_call_runs_on_its_own_thread() {
        let pool = Pool::new(2).unwrap();
        let ran = AtomicUsize::new(0);
        pool.run(8, 1, &|_| {
            let outer = std::thread::current().id();
            pool.run(8, 1, &|_| {
                assert_eq!(std::thread::current().id(), outer);
                ran.fetch_add(1, SeqCst);
            });
        });
        assert_eq!(ran.load(SeqCst), 64);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn helpers_take_no_signals_and_the_caller_still_does() {
        let mask_of = || {
            let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
            let line = status.lines().find(|l| l.starts_with("SigBlk:")).unwrap();
            u64::from_str_radix(line["SigBlk:".len()..].trim(), 16).unwrap()
        };
        let before = mask_of();
        let pool = Pool::new(2).unwrap();
        assert_eq!(mask_of(), before);
        let caller = std::thread::current().id();
        let helper = Mutex::new((0, String::new()));
        let barrier = std::sync::Barrier::new(2);
        pool.run(2, 1, &|_| {
            barrier.wait();
            if std::thread::current().id() != caller {
                let name = std::thread::current().name().unwrap_or("").to_owned();
                *helper.lock() = (mask_of(), name);
            }
        });
        let (mask, name) = helper.into_inner();
        assert_eq!(name, "fathom-cpu-1");
        for signal in [
            libc::SIGTERM,
            libc::SIGINT,
            libc::SIGURG,
            libc::SIGPIPE,
            libc::SIGPROF,
        ] {
            assert!(mask & (1 << (signal - 1)) != 0, "signal {signal}");
        }
        assert!(mask & (1 << (libc::SIGSEGV - 1)) == 0);
    }
}
