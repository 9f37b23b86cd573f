//! The ready-made adapter: an API request in, protocol events out.

use std::ffi::c_char;
use std::sync::Arc;

use super::boundary::{Out, guarded};
use super::engine;
use super::error::Failed;
use super::handle;
use super::image::{self, fathom_fetch_policy};
use super::input;
use super::library::buffer;
use super::options::{self, Versioned};
use super::queue;
use super::recipe::protocol_of;
use super::request::{self, fathom_submit_options};
use super::types::*;
use crate::call::{self, Options};
use crate::engine::queue::QueueOptions;
use crate::engine::request::EventKind;
use crate::engine::{Queue, RequestId};
use crate::recipe::Protocol;

/// How one request is called. Set up with fathom_call_options_init. Everything it points to is copied before the
/// call returns.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fathom_call_options {
    /// Set by fathom_call_options_init.
    pub struct_size: usize,
    /// NULL = defaults.
    pub submit: *const fathom_submit_options,
    /// NULL = a request with image URLs is refused.
    pub fetch: *const fathom_fetch_policy,
    /// Absent = generated.
    pub response_id: fathom_str,
    /// 0 = now; tests fix it.
    pub created_unix_s: i64,
    /// Of this request only.
    pub options_json: fathom_str,
}

// SAFETY: `repr(C)` without padding; integers and pointers.
unsafe impl Versioned for fathom_call_options {
    const NAME: &'static str = "fathom_call_options";
    fn defaults() -> Self {
        Self {
            struct_size: size_of::<Self>(),
            submit: std::ptr::null(),
            fetch: std::ptr::null(),
            response_id: fathom_str::ABSENT,
            created_unix_s: 0,
            options_json: fathom_str::ABSENT,
        }
    }
}

/// Zeroes `struct_size` bytes, writes the size and sets defaults. Pass sizeof(fathom_call_options).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fathom_call_options_init(o: *mut fathom_call_options, struct_size: usize) {
    // SAFETY: the caller's duty: NULL or `struct_size` writable bytes.
    unsafe { options::init(o, struct_size) };
}

/// What both ways of calling take.
#[derive(Clone, Copy)]
struct Arguments {
    e: *mut fathom_engine,
    r: *const fathom_recipe,
    protocol: i32,
    json: *const c_char,
    json_len: usize,
    o: *const fathom_call_options,
}

impl Arguments {
    /// Checks everything, and hands it to the engine.
    ///
    /// # Safety
    ///
    /// The pointers are NULL or valid, with all that they point to.
    unsafe fn call(&self, queue: &Queue, whole: bool) -> Result<RequestId, Failed> {
        let object = engine::enter(self.e)?;
        let recipe = handle::enter(self.r, "r")?;
        let protocol: Protocol = protocol_of(self.protocol)?;
        // SAFETY: the caller's promise.
        let (json, mut options) = unsafe {
            (
                input::bytes(self.json, self.json_len, "json")?.to_vec(),
                read_options(self.o)?,
            )
        };
        options.whole = whole;
        options.style = recipe.style;
        let recipe = Arc::clone(&recipe.recipe);
        let style = options.style.with_options(&options.options_json);
        call::call(&object.engine, &recipe, queue, protocol, json, options)
            .map_err(|error| Failed::from(error).styled(style))
    }
}

/// # Safety
///
/// `o` is NULL or valid, with all that it points to.
unsafe fn read_options(o: *const fathom_call_options) -> Result<Options, Failed> {
    // SAFETY: the caller's promise.
    let (given, submit) = unsafe {
        let given = options::read(o)?;
        image::read_policy(given.fetch)?;
        (given, request::read_options(given.submit, true)?)
    };
    // SAFETY: as above.
    let (response_id, options_json) = unsafe {
        (
            input::optional(given.response_id, "response_id")?,
            input::optional(given.options_json, "options_json")?,
        )
    };
    Ok(Options {
        submit,
        response_id: response_id.unwrap_or_default().to_owned(),
        created_unix_s: given.created_unix_s,
        options_json: options_json.unwrap_or_default().to_owned(),
        ..Options::default()
    })
}

/// Takes an API request, gives out an id and returns; preparation runs on the engine's threads. With
/// "stream": true the protocol's events come through `q` one by one, otherwise one DATA holds the response; then
/// DONE. What goes wrong after this call arrives in DONE. `o` may be NULL. Never blocks, any thread. Statuses:
/// FATHOM_ERR_BUSY, _STATE, _SHUTDOWN, _INVALID_ARGUMENT with the option as param, _UNSUPPORTED, _FORKED.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fathom_call(
    e: *mut fathom_engine,
    r: *const fathom_recipe,
    q: *mut fathom_queue,
    protocol: i32,
    json: *const c_char,
    json_len: usize,
    o: *const fathom_call_options,
    out: *mut fathom_request_id,
    err: *mut *mut fathom_error,
) -> fathom_status {
    guarded(err, || {
        let out = Out::new(out, 0, "out")?;
        let arguments = Arguments {
            e,
            r,
            protocol,
            json,
            json_len,
            o,
        };
        let queue = queue::enter(q)?;
        // SAFETY: the caller's duty.
        let id = unsafe { arguments.call(&queue.queue, false) }?;
        out.set(id.0);
        Ok(())
    })
}

/// fathom_call on a queue of its own, waiting for the end: the whole response as one JSON document, also if the
/// request asks for a stream. Free with fathom_buf_free. Blocks until the request is done; any thread, but no
/// callback. Statuses: those of fathom_call, and whatever DONE carries.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fathom_call_blocking(
    e: *mut fathom_engine,
    r: *const fathom_recipe,
    protocol: i32,
    json: *const c_char,
    json_len: usize,
    o: *const fathom_call_options,
    out_json: *mut *mut fathom_buf,
    err: *mut *mut fathom_error,
) -> fathom_status {
    guarded(err, || {
        let out = Out::new(out_json, std::ptr::null_mut(), "out_json")?;
        super::boundary::not_in_callback("fathom_call_blocking")?;
        let arguments = Arguments {
            e,
            r,
            protocol,
            json,
            json_len,
            o,
        };
        // Judged before a queue is made, so that a stray handle costs nothing.
        drop(engine::enter(e)?);
        let queue = PrivateQueue(Queue::new(QueueOptions::default())?);
        // SAFETY: the caller's duty.
        unsafe { arguments.call(&queue.0, true) }?;
        out.set(buffer(queue.answer()?)?);
        Ok(())
    })
}

/// Closed whatever happens, so that its request does not run on for nobody.
struct PrivateQueue(Queue);

impl PrivateQueue {
    fn answer(&self) -> Result<String, Failed> {
        let mut answer = None;
        let mut events = Vec::new();
        loop {
            self.0.poll(&mut events, None)?;
            for event in events.drain(..) {
                match event.kind {
                    EventKind::Data { data, .. } => answer = Some(data),
                    EventKind::Done(done) => {
                        if let Some(failure) = &done.failure {
                            return Err(Failed::from(failure));
                        }
                        return answer.ok_or_else(|| {
                            Failed::new(
                                FATHOM_ERR_INTERNAL,
                                "",
                                "the request ended without a response",
                            )
                        });
                    }
                    EventKind::Tokens(_) => {}
                }
            }
        }
    }
}

impl Drop for PrivateQueue {
    fn drop(&mut self) {
        self.0.close();
    }
}
