//! Requests: submit, cancel, acknowledge.

use std::sync::Arc;

use super::boundary::{Out, guarded};
use super::engine;
use super::error::Failed;
use super::handle;
use super::input;
use super::options::{self, Versioned};
use super::params;
use super::queue;
use super::types::*;
use crate::call::{self, Submit};
use crate::engine::RequestId;
use crate::engine::constraint::Rules;
use crate::engine::request::Logprobs;

/// What the host wants of the engine for one request. Set up with fathom_submit_options_init. Everything it
/// points to is copied before the call returns.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fathom_submit_options {
    /// Set by fathom_submit_options_init.
    pub struct_size: usize,
    /// Returned in every event; the caller's own meaning.
    pub tag: u64,
    /// -3..4, larger first; 0 = normal.
    pub priority: i32,
    /// FATHOM_SUBMIT_*.
    pub flags: u32,
    /// For the whole request, from now; 0 = none.
    pub deadline_ms: u64,
    /// The request is paused beyond it; 0 = 4096.
    pub max_unread_tokens: u32,
    /// 0 = as prepared, without it the model's default.
    pub max_tokens: u32,
    /// NaN (set by init) = as prepared, without it the model's default.
    pub temperature: f32,
    /// NaN (set by init) = as prepared, without it the model's default.
    pub top_p: f32,
    /// Used with FATHOM_SUBMIT_SEED; else as prepared, or drawn and reported.
    pub seed: u64,
    /// Alternatives wanted for each token, up to 1000; 0 = as prepared.
    pub logprobs: u32,
    /// Up to 64.
    pub stop_token_count: u32,
    /// Added to the model's end tokens.
    pub stop_tokens: *const u32,
    /// Instead of the prepared one; borrowed for the call.
    pub constraint: *const fathom_constraint,
    /// Every other parameter of a request: one JSON object.
    pub params_json: fathom_str,
}

// SAFETY: `repr(C)` without padding; numbers and pointers.
unsafe impl Versioned for fathom_submit_options {
    const NAME: &'static str = "fathom_submit_options";
    fn defaults() -> Self {
        Self {
            struct_size: size_of::<Self>(),
            tag: 0,
            priority: 0,
            flags: 0,
            deadline_ms: 0,
            max_unread_tokens: 0,
            max_tokens: 0,
            temperature: f32::NAN,
            top_p: f32::NAN,
            seed: 0,
            logprobs: 0,
            stop_token_count: 0,
            stop_tokens: std::ptr::null(),
            constraint: std::ptr::null(),
            params_json: fathom_str::ABSENT,
        }
    }
}

/// `seed` is meant.
pub const FATHOM_SUBMIT_SEED: u32 = 1 << 0;
/// Neither reads nor writes the prefix cache.
pub const FATHOM_SUBMIT_NO_CACHE: u32 = 1 << 1;
/// Tokens stay "unread" until fathom_ack.
pub const FATHOM_SUBMIT_ACK: u32 = 1 << 2;

/// Alternatives for a token that a request may ask for.
const MAX_LOGPROBS: u32 = 1000;
/// Stop tokens that a request may add.
const MAX_STOP_TOKENS: u32 = 64;

/// Reads a caller's options; NULL is all defaults.
///
/// # Safety
///
/// `o` is NULL or valid, with all that it points to.
pub(crate) unsafe fn read_options(
    o: *const fathom_submit_options,
    of_call: bool,
) -> Result<Submit, Failed> {
    // SAFETY: the caller's promise.
    let given = unsafe { options::read(o) }?;
    let known = FATHOM_SUBMIT_SEED | FATHOM_SUBMIT_NO_CACHE | FATHOM_SUBMIT_ACK;
    let flags = input::flags(given.flags, known, "flags")?;
    if !(-3..=4).contains(&given.priority) {
        return Err(Failed::argument(
            "priority",
            format!("priority {} is not in -3..4", given.priority),
        ));
    }
    if given.logprobs > MAX_LOGPROBS {
        return Err(Failed::argument(
            "logprobs",
            format!("logprobs {} exceeds {MAX_LOGPROBS}", given.logprobs),
        ));
    }
    if given.stop_token_count > MAX_STOP_TOKENS {
        return Err(Failed::argument(
            "stop_token_count",
            format!(
                "{} stop tokens exceed {MAX_STOP_TOKENS}",
                given.stop_token_count
            ),
        ));
    }
    // SAFETY: the caller's promise.
    let (stop_tokens, params_json) = unsafe {
        (
            input::slice(
                given.stop_tokens,
                given.stop_token_count as usize,
                "stop_tokens",
            )?,
            input::optional(given.params_json, "params_json")?,
        )
    };
    let rules = if given.constraint.is_null() {
        None
    } else {
        let grammar = handle::enter(given.constraint, "constraint")?;
        Some(Rules::Compiled(Arc::clone(&grammar)))
    };
    let positive = |value: u32| (value > 0).then_some(value);
    let mut submit = Submit {
        tag: given.tag,
        // In range: checked above.
        class: u8::try_from(4 - given.priority).ok(),
        deadline: (given.deadline_ms > 0).then(|| input::milliseconds(given.deadline_ms)),
        max_unread_tokens: given.max_unread_tokens,
        explicit_ack: flags & FATHOM_SUBMIT_ACK != 0,
        no_cache: flags & FATHOM_SUBMIT_NO_CACHE != 0,
        max_tokens: positive(given.max_tokens),
        temperature: (!given.temperature.is_nan()).then_some(given.temperature),
        top_p: (!given.top_p.is_nan()).then_some(given.top_p),
        seed: (flags & FATHOM_SUBMIT_SEED != 0).then_some(given.seed),
        logprobs: positive(given.logprobs).map(Logprobs::Top),
        stop_tokens: stop_tokens.to_vec(),
        rules,
        ..Submit::default()
    };
    if let Some(json) = params_json {
        params::read(json, &mut submit, of_call)?;
    }
    Ok(submit)
}

/// Zeroes `struct_size` bytes, writes the size and sets defaults. Pass sizeof(fathom_submit_options).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fathom_submit_options_init(
    o: *mut fathom_submit_options,
    struct_size: usize,
) {
    // SAFETY: the caller's duty: NULL or `struct_size` writable bytes.
    unsafe { options::init(o, struct_size) };
}

/// Gives a prepared request to the engine; its events come through `q` and end with one
/// FATHOM_EVENT_DONE. `o` may be NULL. Never waits for the device; any thread. Statuses: FATHOM_ERR_BUSY
/// (the admission queue is full), _STATE (images are pending, no tokenizer, the engine is closed),
/// _SHUTDOWN, _CONTEXT_LENGTH, _UNSUPPORTED, _INVALID_ARGUMENT with the option as param, _FORKED; of a failed
/// engine its cause.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fathom_submit(
    e: *mut fathom_engine,
    q: *mut fathom_queue,
    p: *const fathom_prepared,
    o: *const fathom_submit_options,
    out: *mut fathom_request_id,
    err: *mut *mut fathom_error,
) -> fathom_status {
    guarded(err, || {
        let out = Out::new(out, 0, "out")?;
        let (object, queue) = (engine::enter(e)?, queue::enter(q)?);
        let prepared = handle::enter(p, "p")?;
        let _watch = prepared.poison.watch("p")?;
        // SAFETY: the caller's duty.
        let submit = unsafe { read_options(o, false) }?;
        let request =
            call::request::of_prepared(&prepared.prepared, submit, object.engine.max_context())
                .map_err(|error| Failed::from(error.styled(prepared.style)))?;
        let id = object
            .engine
            .submit(&queue.queue, request, None)
            .map_err(|error| Failed::from(error).styled(prepared.style))?;
        out.set(id.0);
        Ok(())
    })
}

/// As fathom_submit, for bare token ids. Takes milliseconds with long prompts, and a moment for the first request of an
/// engine that has stop strings, whose text is that of the model's own tokenizer.json (FATHOM_ERR_STATE without one).
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fathom_submit_tokens(
    e: *mut fathom_engine,
    q: *mut fathom_queue,
    tokens: *const u32,
    count: usize,
    o: *const fathom_submit_options,
    out: *mut fathom_request_id,
    err: *mut *mut fathom_error,
) -> fathom_status {
    guarded(err, || {
        let out = Out::new(out, 0, "out")?;
        let (object, queue) = (engine::enter(e)?, queue::enter(q)?);
        if tokens.is_null() {
            return Err(Failed::argument("tokens", "tokens is NULL"));
        }
        // SAFETY: the caller's duty.
        let (tokens, submit) = unsafe {
            (
                input::slice(tokens, count, "tokens")?,
                read_options(o, false)?,
            )
        };
        let tokenizer = if submit.stop_strings.is_empty() {
            None
        } else {
            object.tokenizer()?
        };
        let request = call::request::of_tokens(tokens.to_vec(), submit, tokenizer)?;
        let id = object.engine.submit(&queue.queue, request, None)?;
        out.set(id.0);
        Ok(())
    })
}

/// Ends requests; the DONE of each follows. Idempotent: finished and unknown ids are skipped. Returns at once;
/// any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fathom_cancel(
    e: *mut fathom_engine,
    ids: *const fathom_request_id,
    count: usize,
) -> fathom_status {
    guarded(std::ptr::null_mut(), || {
        let object = engine::enter(e)?;
        // SAFETY: the caller's duty.
        let ids = unsafe { input::slice(ids, count, "ids") }?;
        let ids: Vec<RequestId> = ids.iter().copied().map(RequestId).collect();
        object.engine.cancel(&ids);
        Ok(())
    })
}

/// Reports `tokens[i]` more tokens of request `ids[i]` as read, for requests with FATHOM_SUBMIT_ACK. More than
/// is outstanding counts as all of it; unknown and finished ids are skipped. Returns at once; any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fathom_ack(
    e: *mut fathom_engine,
    ids: *const fathom_request_id,
    tokens: *const u32,
    count: usize,
) -> fathom_status {
    guarded(std::ptr::null_mut(), || {
        let object = engine::enter(e)?;
        // SAFETY: the caller's duty.
        let (ids, tokens) = unsafe {
            (
                input::slice(ids, count, "ids")?,
                input::slice(tokens, count, "tokens")?,
            )
        };
        let reads: Vec<(RequestId, u32)> = ids
            .iter()
            .zip(tokens)
            .map(|(id, tokens)| (RequestId(*id), *tokens))
            .collect();
        object.engine.ack(&reads);
        Ok(())
    })
}
