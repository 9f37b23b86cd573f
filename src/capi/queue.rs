//! Queues: poll, wake, descriptors and callbacks for event loops.

use std::ffi::c_void;
use std::time::Duration;

use super::batch;
use super::boundary::{Out, calling_back, guarded, not_in_callback, quiet};
use super::engine::{Process, free_outside_callbacks};
use super::error::Failed;
use super::handle::{self, Inside, handle};
use super::input;
use super::log::UserData;
use super::options::{self, Versioned};
use super::types::*;
use crate::engine::Queue;
use crate::engine::queue::QueueOptions;

/// Tokens of one request that became ready together.
pub const FATHOM_EVENT_TOKENS: i32 = 1;
/// One event of the protocol, made by the parser.
pub const FATHOM_EVENT_DATA: i32 = 2;
/// The end of a request: exactly one, last.
pub const FATHOM_EVENT_DONE: i32 = 3;

/// Not ended.
pub const FATHOM_FINISH_NONE: i32 = 0;
/// An end token, a stop token, a stop sequence or a complete constraint.
pub const FATHOM_FINISH_STOP: i32 = 1;
/// max_tokens, the context, or a loop.
pub const FATHOM_FINISH_LENGTH: i32 = 2;
/// Tool calls, found by the parser.
pub const FATHOM_FINISH_TOOL_CALLS: i32 = 3;
/// Cancel, deadline or shutdown: the event's error says which.
pub const FATHOM_FINISH_CANCELLED: i32 = 4;
/// Failed: the event's error says why.
pub const FATHOM_FINISH_ERROR: i32 = 5;

/// Counts and times of a request. Frozen: new numbers go into `detail`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct fathom_usage {
    /// Positions of the prompt.
    pub prompt_tokens: u32,
    /// Of these, found in the prefix cache.
    pub cached_tokens: u32,
    /// Generated, the stop token included.
    pub completion_tokens: u32,
    /// Of these, reasoning.
    pub reasoning_tokens: u32,
    /// Drafts verified.
    pub drafted_tokens: u32,
    /// Of these, accepted.
    pub accepted_tokens: u32,
    /// Until its first row ran.
    pub queued_us: u64,
    /// Until its first token.
    pub prefill_us: u64,
    /// Until its end.
    pub decode_us: u64,
}

/// What a queue or a parser delivers. It and all that it points to live in the batch, until the next call
/// with that batch or its free.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fathom_event {
    /// Whose; 0 from a parser.
    pub request: fathom_request_id,
    /// The request's tag.
    pub tag: u64,
    /// FATHOM_EVENT_*.
    pub kind: i32,
    /// FATHOM_FINISH_*, in DONE.
    pub finish: i32,
    /// TOKENS.
    pub tokens: *const u32,
    /// TOKENS: token_count, the chosen tokens' own; NULL unless asked for.
    pub logprobs: *const f32,
    /// TOKENS: length of the span. DATA: tokens behind this event.
    pub token_count: usize,
    /// DATA: the protocol's event name, or absent.
    pub name: fathom_str,
    /// DATA: one JSON document, no framing.
    pub data: fathom_str,
    /// DONE with FATHOM_FINISH_ERROR or _CANCELLED: borrowed, see fathom_error_retain.
    pub error: *const fathom_error,
    /// DONE; the first TOKENS of a request: prompt side only.
    pub usage: *const fathom_usage,
    /// TOKENS: token_count x top_count ids, most probable first; NULL unless asked for.
    pub top_tokens: *const u32,
    /// TOKENS: same shape.
    pub top_logprobs: *const f32,
    /// TOKENS: alternatives for each token.
    pub top_count: u32,
    /// Which of the n siblings, from 0.
    pub choice: u32,
    /// DONE, and the first TOKENS of a request: one JSON object.
    pub detail: fathom_str,
}

impl fathom_event {
    pub(crate) const EMPTY: Self = Self {
        request: 0,
        tag: 0,
        kind: 0,
        finish: FATHOM_FINISH_NONE,
        tokens: std::ptr::null(),
        logprobs: std::ptr::null(),
        token_count: 0,
        name: fathom_str::ABSENT,
        data: fathom_str::ABSENT,
        error: std::ptr::null(),
        usage: std::ptr::null(),
        top_tokens: std::ptr::null(),
        top_logprobs: std::ptr::null(),
        top_count: 0,
        choice: 0,
        detail: fathom_str::ABSENT,
    };
}

/// How a queue wakes its consumer. Zero it, set struct_size.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fathom_queue_options {
    /// Set by the caller.
    pub struct_size: usize,
    /// None yet: 0.
    pub flags: u32,
    /// Never wake the consumer more often; 0 = each engine step.
    pub wake_interval_us: u32,
}

// SAFETY: `repr(C)` without padding; integers.
unsafe impl Versioned for fathom_queue_options {
    const NAME: &'static str = "fathom_queue_options";
    fn defaults() -> Self {
        Self {
            struct_size: size_of::<Self>(),
            flags: 0,
            wake_interval_us: 0,
        }
    }
}

/// Called when a queue goes from empty to not empty. Runs on an engine thread; must only signal: not block, not
/// call fathom, nor throw.
pub type fathom_wake_fn = Option<unsafe extern "C" fn(user_data: *mut c_void)>;

/// `intptr_t` of C, under a name that cbindgen.toml renders so.
type native_int = isize;

/// The object behind a `fathom_queue`.
pub(crate) struct QueueObject {
    pub(crate) queue: Queue,
    process: Process,
}

handle!(fathom_queue, 0x05, QueueObject);

/// Enters a queue of this process.
pub(crate) fn enter(q: *const fathom_queue) -> Result<Inside<fathom_queue>, Failed> {
    let object = handle::enter(q, "q")?;
    object.process.check("q")?;
    Ok(object)
}

/// An empty queue. `o` may be NULL. Free with fathom_queue_free. Never blocks, any thread.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fathom_queue_new(
    o: *const fathom_queue_options,
    out: *mut *mut fathom_queue,
    err: *mut *mut fathom_error,
) -> fathom_status {
    guarded(err, || {
        let out = Out::new(out, std::ptr::null_mut(), "out")?;
        // SAFETY: the caller's duty: NULL, or as many bytes as `struct_size` says.
        let given = unsafe { options::read(o) }?;
        input::flags(given.flags, 0, "flags")?;
        let queue = Queue::new(QueueOptions {
            wake_interval_us: given.wake_interval_us,
        })?;
        out.set(handle::create(QueueObject {
            queue,
            process: Process::current(),
        })?);
        Ok(())
    })
}

/// A descriptor (a HANDLE on Windows) that is readable exactly while something waits, for epoll and its kin.
/// It is the queue's: never read or close it. Never blocks, any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fathom_queue_fd(
    q: *mut fathom_queue,
    out: *mut native_int,
) -> fathom_status {
    guarded(std::ptr::null_mut(), || {
        let out = Out::new(out, -1, "out")?;
        let descriptor = enter(q)?.queue.fd()?;
        out.set(isize::try_from(descriptor).map_err(|_| Failed::state("no descriptor"))?);
        Ok(())
    })
}

/// Calls `fn` each time the queue goes from empty to not empty; NULL ends it. Waits until the previous callback
/// is not running, and then its `drop` has run; fathom_queue_free does the same. When this call fails, `drop` is
/// not called. Any thread, but no callback (FATHOM_ERR_STATE).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fathom_queue_on_ready(
    q: *mut fathom_queue,
    r#fn: fathom_wake_fn,
    user_data: *mut c_void,
    drop: Option<unsafe extern "C" fn(user_data: *mut c_void)>,
) -> fathom_status {
    guarded(std::ptr::null_mut(), || {
        not_in_callback("fathom_queue_on_ready")?;
        let object = enter(q)?;
        let callback = r#fn.map(|function| {
            let user_data = UserData {
                pointer: user_data,
                drop,
            };
            Box::new(move || {
                // The whole of it is moved in, so that its drop runs with the closure's.
                let user_data = &user_data;
                // SAFETY: the host gave the function for this pointer, for any thread.
                calling_back(|| unsafe { function(user_data.pointer) });
            }) as Box<dyn Fn() + Send + Sync>
        });
        object.queue.on_ready(callback);
        Ok(())
    })
}

/// Takes everything that is ready into `b`; waits up to `timeout_ms` for something (0 = not at all, -1 = without
/// limit), or for fathom_queue_wake. `*events` is an array of `*count` events of the batch's stride, which lives
/// until the next call with `b`. A timeout is FATHOM_OK with no events. The protocol parsing of fathom_call
/// happens here. Any thread, each with its own batch.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fathom_queue_poll(
    q: *mut fathom_queue,
    b: *mut fathom_batch,
    timeout_ms: i64,
    events: *mut *const fathom_event,
    count: *mut usize,
    err: *mut *mut fathom_error,
) -> fathom_status {
    guarded(err, || {
        let events = Out::new(events, std::ptr::null(), "events")?;
        let count = Out::new(count, 0, "count")?;
        let object = enter(q)?;
        let batch = batch::enter(b)?;
        let mut batch = batch::lock(&batch)?;
        let timeout = timeout(timeout_ms)?;
        let (array, length) = batch.refill(|out| Ok(object.queue.poll(out, timeout)?))?;
        events.set(array);
        count.set(length);
        Ok(())
    })
}

fn timeout(timeout_ms: i64) -> Result<Option<Duration>, Failed> {
    if timeout_ms == -1 {
        return Ok(None);
    }
    let wait = u64::try_from(timeout_ms)
        .map_err(|_| Failed::argument("timeout_ms", format!("timeout_ms is {timeout_ms}")))?;
    Ok(Some(input::milliseconds(wait)))
}

/// Ends one wait in fathom_queue_poll early. Never blocks, any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fathom_queue_wake(q: *mut fathom_queue) -> fathom_status {
    guarded(std::ptr::null_mut(), || {
        enter(q)?.queue.wake();
        Ok(())
    })
}

/// Discards what waits, cancels the requests that deliver here and gives the queue back. NULL is fine. Called from
/// a callback it returns at once and another thread does that. Does nothing in the child of a fork. Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fathom_queue_free(q: *mut fathom_queue) {
    quiet((), || {
        enter(q)?;
        let object = handle::retire(q.cast_const(), "q")?;
        free_outside_callbacks("fathom-free-queue", object, |object| {
            object.queue.on_ready(None);
            object.queue.close();
        });
        Ok(())
    });
}
