//! Completion queues: events out, wake-ups, acknowledgement.
//!
//! The engine thread appends under one short lock and announces once a step; pollers take everything that
//! waits and run adapters outside the lock. Tokens of one request that wait together are one event, so unread
//! output costs a few bytes a token. Cost: one lock a step and poll, one system call on each change between
//! empty and not empty where a descriptor is in use.

#![forbid(unsafe_code)]

use std::collections::{HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, OnceLock, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};

use super::delivery::{Cancel, Content, Delivery, End, NO_PLACE};
use super::error::{Code, Error};
use super::request::{Event, First, RequestId, Tokens};
use super::sync;

/// How a queue wakes its consumer.
#[derive(Clone, Copy, Debug, Default)]
pub struct QueueOptions {
    /// Never wake more often; 0 = each engine step.
    pub wake_interval_us: u32,
}

/// Where events of requests wait for their consumer. A cheap handle: clones are the same queue, and the last
/// one to go closes it.
#[derive(Clone, Debug)]
pub struct Queue {
    handle: Arc<Handle>,
}

impl Queue {
    /// An empty queue.
    pub fn new(options: QueueOptions) -> Result<Self, Error> {
        let interval = Duration::from_micros(options.wake_interval_us.into());
        let shared = Arc::new(Shared {
            inner: Mutex::new(Inner::default()),
            arrived: Condvar::new(),
            interval,
            callback: Mutex::new(None),
            flag: OnceLock::new(),
            alarm: Arc::new(Alarm::default()),
        });
        let mut alarm_thread = None;
        if !interval.is_zero() {
            let (alarm, shared) = (shared.alarm.clone(), Arc::downgrade(&shared));
            alarm_thread = Some(sync::spawn("fathom-wake", move || alarm.run(&shared))?);
        }
        Ok(Self {
            handle: Arc::new(Handle {
                shared,
                alarm_thread: Mutex::new(alarm_thread),
            }),
        })
    }

    /// Appends what is ready to `out`; waits for something up to `timeout` (`None`: without limit), for
    /// [`Self::wake`], or for [`Self::close`]. Runs the adapters of the requests on the calling thread. A
    /// closed queue answers [`Code::Closed`].
    pub fn poll(&self, out: &mut Vec<Event>, timeout: Option<Duration>) -> Result<(), Error> {
        self.handle.shared.poll(out, timeout)
    }

    /// Ends one wait early: the one that goes on, or the next. Never blocks.
    pub fn wake(&self) {
        let shared = &self.handle.shared;
        shared.inner.lock().woken = true;
        shared.arrived.notify_one();
    }

    /// A descriptor that is readable exactly while something waits; owned by the queue.
    #[cfg(unix)]
    pub fn fd(&self) -> Result<i32, Error> {
        let shared = &self.handle.shared;
        let inner = shared.inner.lock();
        if let Some(flag) = shared.flag.get() {
            return Ok(flag.fd());
        }
        let flag = sync::Flag::new().map_err(|e| {
            Error::new(
                Code::Io,
                "",
                format!("cannot make a descriptor for the queue: {e}"),
            )
        })?;
        if inner.announced {
            flag.raise();
        }
        // The lock is held: nobody else gets between `get` and here.
        Ok(shared.flag.get_or_init(|| flag).fd())
    }

    /// A descriptor that is readable exactly while something waits; owned by the queue.
    #[cfg(not(unix))]
    pub fn fd(&self) -> Result<i32, Error> {
        Err(Error::new(
            Code::Unsupported,
            "",
            "queues have no descriptor on this system",
        ))
    }

    /// Calls `callback` each time the queue goes from empty to not empty, on a thread of the library; it must
    /// only signal. What waits already is not announced again: poll once after setting it. `None` removes it
    /// and returns once no call is running. From inside a callback this changes nothing.
    pub fn on_ready(&self, callback: Option<Box<dyn Fn() + Send + Sync>>) {
        let old = match self.handle.shared.callback.try_lock() {
            Some(mut now) => std::mem::replace(&mut *now, callback),
            None if sync::on_library_thread() => return,
            None => std::mem::replace(&mut *self.handle.shared.callback.lock(), callback),
        };
        // Outside the lock: what it owned may do anything on drop.
        drop(old);
    }

    /// Discards what waits and whatever comes later, and cancels the requests that deliver here. Waits of
    /// [`Self::poll`] end with [`Code::Closed`]; the callback is removed as by [`Self::on_ready`].
    pub fn close(&self) {
        self.handle.close();
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.handle.shared
    }
}

/// Closes the queue when its last owner goes; requests hold only [`Shared`].
#[derive(Debug)]
struct Handle {
    shared: Arc<Shared>,
    alarm_thread: Mutex<Option<JoinHandle<()>>>,
}

impl Handle {
    fn close(&self) {
        self.shared.close();
        self.shared.alarm.stop();
        if sync::on_library_thread() {
            // It may be the alarm's own thread, which ends by itself.
            return;
        }
        let callback = self.shared.callback.lock().take();
        drop(callback);
        if let Some(thread) = self.alarm_thread.lock().take() {
            // It catches its panics; there is nothing to learn from the result.
            let _ = thread.join();
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.close();
    }
}

struct Entry {
    delivery: Arc<Delivery>,
    content: Content,
}

#[derive(Default)]
struct Inner {
    entries: VecDeque<Entry>,
    /// Requests whose end has not been pushed.
    live: HashMap<RequestId, Arc<Delivery>>,
    closed: bool,
    /// Something waits and the consumer has been told.
    announced: bool,
    /// [`Queue::wake`] was called.
    woken: bool,
    last_announcement: Option<Instant>,
    /// A poller passed over entries whose adapter another one was running.
    left_behind: bool,
}

/// One token on its way into the queue.
pub(crate) struct NewToken<'a> {
    pub(crate) token: u32,
    pub(crate) logprob: Option<f32>,
    /// Alternatives, all tokens of a request with the same number of them.
    pub(crate) top: &'a [(u32, f32)],
    pub(crate) first: Option<First>,
}

impl NewToken<'_> {
    pub(crate) fn append_to(&self, tokens: &mut Tokens) {
        tokens.top_count = self.top.len() as u32;
        tokens.tokens.push(self.token);
        tokens.logprobs.extend(self.logprob);
        tokens.top_tokens.extend(self.top.iter().map(|t| t.0));
        tokens.top_logprobs.extend(self.top.iter().map(|t| t.1));
        if self.first.is_some() {
            tokens.first = self.first;
        }
    }
}

impl Tokens {
    /// Moves the first `count` tokens behind those of `to`.
    fn shift(&mut self, count: usize, to: &mut Self) {
        fn some<T>(from: &mut Vec<T>, count: usize, to: &mut Vec<T>) {
            let count = count.min(from.len());
            to.extend(from.drain(..count));
        }
        let entries = count.saturating_mul(self.top_count as usize);
        some(&mut self.tokens, count, &mut to.tokens);
        some(&mut self.logprobs, count, &mut to.logprobs);
        some(&mut self.top_tokens, entries, &mut to.top_tokens);
        some(&mut self.top_logprobs, entries, &mut to.top_logprobs);
        to.top_count = self.top_count;
        to.first = self.first.take().or(to.first);
    }

    /// Keeps the first `count` tokens.
    pub(crate) fn truncate(&mut self, count: usize) {
        let entries = count.saturating_mul(self.top_count as usize);
        self.tokens.truncate(count);
        self.logprobs.truncate(count);
        self.top_tokens.truncate(entries);
        self.top_logprobs.truncate(entries);
    }
}

/// The queue without its owners: what requests and the engine hold.
pub(crate) struct Shared {
    inner: Mutex<Inner>,
    arrived: Condvar,
    interval: Duration,
    callback: Mutex<Option<Box<dyn Fn() + Send + Sync>>>,
    #[cfg(unix)]
    flag: OnceLock<sync::Flag>,
    #[cfg(not(unix))]
    flag: OnceLock<()>,
    alarm: Arc<Alarm>,
}

impl Shared {
    /// Registers a request that will deliver here.
    pub(crate) fn attach(&self, delivery: &Arc<Delivery>) -> Result<(), Error> {
        let mut inner = self.inner.lock();
        if inner.closed {
            return Err(closed());
        }
        inner.live.insert(delivery.id, delivery.clone());
        Ok(())
    }

    /// Undoes [`Self::attach`] for a request that was refused after all.
    pub(crate) fn detach(&self, id: RequestId) {
        self.inner.lock().live.remove(&id);
    }

    /// Appends one token; [`Self::flush`] announces it.
    pub(crate) fn push_token(&self, delivery: &Arc<Delivery>, new: &NewToken<'_>) {
        self.push(delivery, 1, |tokens| new.append_to(tokens));
    }

    /// Moves the first `count` tokens of `from` here; [`Self::flush`] announces them. A queue that takes nothing
    /// more drops them.
    pub(crate) fn push_tokens(&self, delivery: &Arc<Delivery>, from: &mut Tokens, count: usize) {
        if !self.push(delivery, count as u32, |tokens| from.shift(count, tokens)) {
            from.shift(count, &mut Tokens::default());
        }
    }

    /// Where tokens of a request go: behind those that wait already, if there are any. Answers whether it takes any.
    fn push(&self, delivery: &Arc<Delivery>, count: u32, append: impl FnOnce(&mut Tokens)) -> bool {
        let mut inner = self.inner.lock();
        if inner.closed || delivery.ended.load(Relaxed) {
            return false;
        }
        delivery.note_queued(count);
        let place = delivery.place.load(Relaxed);
        if let Some(Entry {
            content: Content::Tokens(tokens),
            ..
        }) = inner.entries.get_mut(place)
        {
            append(tokens);
            return true;
        }
        delivery.place.store(inner.entries.len(), Relaxed);
        let mut tokens = Tokens::default();
        append(&mut tokens);
        inner.entries.push_back(Entry {
            delivery: delivery.clone(),
            content: Content::Tokens(tokens),
        });
        true
    }

    /// Appends the end of a request unless it has one; answers whether it had none.
    pub(crate) fn push_end(&self, delivery: &Arc<Delivery>, end: End) -> bool {
        let mut inner = self.inner.lock();
        if delivery.ended.swap(true, Relaxed) {
            return false;
        }
        inner.live.remove(&delivery.id);
        if !inner.closed {
            inner.entries.push_back(Entry {
                delivery: delivery.clone(),
                content: Content::End(Box::new(end)),
            });
        }
        true
    }

    /// Tells the consumer of what was pushed, now or when the wake interval allows.
    pub(crate) fn flush(&self) {
        let mut inner = self.inner.lock();
        if inner.entries.is_empty() || inner.closed {
            return;
        }
        if !self.interval.is_zero()
            && let Some(last) = inner.last_announcement
            && last.elapsed() < self.interval
        {
            self.alarm.set(last + self.interval);
            return;
        }
        self.announce(&mut inner);
        let rose = !std::mem::replace(&mut inner.announced, true);
        drop(inner);
        if rose {
            self.call_back();
        }
    }

    /// The wait of a poller and the descriptor.
    fn announce(&self, inner: &mut Inner) {
        if !self.interval.is_zero() {
            inner.last_announcement = Some(Instant::now());
        }
        #[cfg(unix)]
        if !inner.announced
            && let Some(flag) = self.flag.get()
        {
            flag.raise();
        }
        self.arrived.notify_one();
    }

    fn call_back(&self) {
        let callback = self.callback.lock();
        if let Some(callback) = &*callback {
            // Its panic is the host's; the engine thread is not the place where it ends.
            let _ = catch_unwind(AssertUnwindSafe(callback));
        }
    }

    fn settle(&self, inner: &mut Inner) {
        if inner.entries.is_empty() && std::mem::replace(&mut inner.announced, false) {
            #[cfg(unix)]
            if let Some(flag) = self.flag.get() {
                flag.clear();
            }
        }
    }

    fn poll(&self, out: &mut Vec<Event>, timeout: Option<Duration>) -> Result<(), Error> {
        let before = out.len();
        // A time beyond the clock's range is no limit.
        let deadline = timeout.map(|t| Instant::now().checked_add(t));
        let mut inner = self.inner.lock();
        loop {
            let batch = take(&mut inner);
            self.settle(&mut inner);
            if !batch.is_empty() {
                inner = self.deliver(inner, batch, out);
                if out.len() == before || inner.left_behind {
                    inner.left_behind = false;
                    continue;
                }
            }
            if out.len() > before {
                return Ok(());
            }
            if inner.closed {
                return Err(closed());
            }
            if timeout.is_some_and(|t| t.is_zero()) {
                return Ok(());
            }
            if std::mem::take(&mut inner.woken) {
                return Ok(());
            }
            let timed_out = match deadline {
                Some(Some(deadline)) => self.arrived.wait_until(&mut inner, deadline).timed_out(),
                Some(None) | None => {
                    self.arrived.wait(&mut inner);
                    false
                }
            };
            if timed_out && inner.entries.is_empty() {
                return Ok(());
            }
            if timed_out {
                // One look more, as if asked not to wait.
                drop(inner);
                return self.poll(out, Some(Duration::ZERO));
            }
        }
    }

    fn deliver<'a>(
        &'a self,
        inner: MutexGuard<'a, Inner>,
        batch: VecDeque<Entry>,
        out: &mut Vec<Event>,
    ) -> MutexGuard<'a, Inner> {
        drop(inner);
        let mut adapted: Vec<Arc<Delivery>> = Vec::new();
        for Entry { delivery, content } in batch {
            delivery.deliver(content, out);
            if delivery.has_reader() {
                adapted.push(delivery);
            }
        }
        let inner = self.inner.lock();
        for delivery in adapted {
            delivery.busy.store(false, Relaxed);
        }
        inner
    }

    fn close(&self) {
        let mut inner = self.inner.lock();
        inner.closed = true;
        let entries = std::mem::take(&mut inner.entries);
        let live = std::mem::take(&mut inner.live);
        self.settle(&mut inner);
        drop(inner);
        self.arrived.notify_all();
        drop(entries);
        for delivery in live.into_values() {
            delivery.cancel(Cancel::Abandon);
        }
    }
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Queue")
            .field("interval", &self.interval)
            .finish_non_exhaustive()
    }
}

fn closed() -> Error {
    Error::new(Code::Closed, "queue", "the queue is closed")
}

/// Takes what waits, but for requests whose adapter runs on another poller; marks those taken.
fn take(inner: &mut Inner) -> VecDeque<Entry> {
    let is_ours = |delivery: &Delivery| !delivery.busy.load(Relaxed);
    let mut batch = std::mem::take(&mut inner.entries);
    if batch.iter().any(|entry| !is_ours(&entry.delivery)) {
        inner.left_behind = true;
        let (ours, others) = batch
            .into_iter()
            .partition::<VecDeque<_>, _>(|entry| is_ours(&entry.delivery));
        batch = ours;
        inner.entries = others;
        for (place, entry) in inner.entries.iter().enumerate() {
            // The last one wins, which is the one that may take more tokens.
            entry.delivery.place.store(place, Relaxed);
        }
    }
    for entry in &batch {
        entry.delivery.place.store(NO_PLACE, Relaxed);
        if entry.delivery.has_reader() {
            entry.delivery.busy.store(true, Relaxed);
        }
    }
    batch
}

/// Announces later what came too early after the last announcement.
#[derive(Debug, Default)]
struct Alarm {
    state: Mutex<AlarmState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct AlarmState {
    due: Option<Instant>,
    stopped: bool,
}

impl Alarm {
    fn set(&self, due: Instant) {
        let mut state = self.state.lock();
        if state.due.is_none() {
            state.due = Some(due);
            self.changed.notify_one();
        }
    }

    fn stop(&self) {
        self.state.lock().stopped = true;
        self.changed.notify_one();
    }

    fn run(&self, queue: &Weak<Shared>) {
        loop {
            let mut state = self.state.lock();
            loop {
                if state.stopped {
                    return;
                }
                match state.due {
                    None => self.changed.wait(&mut state),
                    Some(due) if due <= Instant::now() => break,
                    Some(due) => {
                        self.changed.wait_until(&mut state, due);
                    }
                }
            }
            state.due = None;
            drop(state);
            match queue.upgrade() {
                Some(queue) => queue.flush(),
                None => return,
            }
        }
    }
}

#[cfg(test)]
mod tests;
