//! Parsers: output of any backend becomes protocol events.

use std::ffi::c_char;

use super::batch;
use super::boundary::{Out, guarded, quiet};
use super::error::Failed;
use super::handle::{self, Solo, handle};
use super::input;
use super::library::buffer;
use super::options::{self, Versioned};
use super::queue::*;
use super::types::*;
use crate::call::ErrorStyle;
use crate::recipe;
use crate::recipe::stream::{Chunk, Finish, Output, Parser, StartInfo, Usage};

/// What a backend knows before the first token; all optional. Zero it, set struct_size.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fathom_parser_start_info {
    /// Set by the caller.
    pub struct_size: usize,
    /// Positions of the prompt.
    pub prompt_tokens: u32,
    /// Of these, found in a cache.
    pub cached_tokens: u32,
    /// 0 = now.
    pub created_unix_s: i64,
    /// Absent = generated.
    pub response_id: fathom_str,
    /// Absent = the option's.
    pub system_fingerprint: fathom_str,
    /// Absent = the request's own.
    pub model: fathom_str,
    /// Which of the n siblings; each has a parser of its own.
    pub choice: u32,
    /// Zero.
    pub reserved0: u32,
}

// SAFETY: `repr(C)` without padding; integers and pointers.
unsafe impl Versioned for fathom_parser_start_info {
    const NAME: &'static str = "fathom_parser_start_info";
    fn defaults() -> Self {
        Self {
            struct_size: size_of::<Self>(),
            prompt_tokens: 0,
            cached_tokens: 0,
            created_unix_s: 0,
            response_id: fathom_str::ABSENT,
            system_fingerprint: fathom_str::ABSENT,
            model: fathom_str::ABSENT,
            choice: 0,
            reserved0: 0,
        }
    }
}

/// For fathom_parser_finish, beside FATHOM_FINISH_*: a filter of the host ended the output.
pub const FATHOM_PARSER_CONTENT_FILTER: i32 = 100;

/// One step of a backend: ids or text, with or without logprobs. Zero it, set struct_size.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fathom_chunk {
    /// Set by the caller.
    pub struct_size: usize,
    /// Ids, in order.
    pub tokens: *const u32,
    /// How many.
    pub token_count: usize,
    /// Instead of tokens.
    pub text: fathom_str,
    /// How many tokens the text stands for.
    pub text_tokens: u32,
    /// Alternatives for each token.
    pub top_count: u32,
    /// token_count, NaN where missing; or NULL.
    pub logprobs: *const f32,
    /// token_count x top_count, UINT32_MAX where unused; or NULL.
    pub top_tokens: *const u32,
    /// Same shape.
    pub top_logprobs: *const f32,
}

// SAFETY: `repr(C)` without padding; integers and pointers.
unsafe impl Versioned for fathom_chunk {
    const NAME: &'static str = "fathom_chunk";
    fn defaults() -> Self {
        Self {
            struct_size: size_of::<Self>(),
            tokens: std::ptr::null(),
            token_count: 0,
            text: fathom_str::ABSENT,
            text_tokens: 0,
            top_count: 0,
            logprobs: std::ptr::null(),
            top_tokens: std::ptr::null(),
            top_logprobs: std::ptr::null(),
        }
    }
}

/// What a parser was told, and what it became.
pub(crate) struct ParserObject {
    parser: Parser,
    style: ErrorStyle,
    end: End,
    /// Events made by a step that failed.
    held: Output,
}

/// Whether more output is read.
enum End {
    Open,
    /// Pushing is fine and does nothing.
    Ended,
    /// Pushing gives this again.
    Failed(Failed),
}

handle!(fathom_parser, 0x08, Solo<ParserObject>);

impl ParserObject {
    /// Runs a step of the parser, which appends its events.
    fn step(
        &mut self,
        out: &mut Output,
        step: impl FnOnce(&mut Parser, &mut Output) -> Result<(), recipe::Error>,
    ) -> Result<(), Failed> {
        step(&mut self.parser, out).map_err(|error| {
            let failed = Failed::from(error).styled(self.style);
            self.end = End::Failed(failed.clone());
            failed
        })
    }

    /// Reads more output, unless it has ended.
    fn push(&mut self, out: &mut Output, chunk: &Chunk<'_>) -> Result<(), Failed> {
        match &self.end {
            End::Open => self.step(out, |parser, output| parser.push(chunk, output)),
            End::Ended => Ok(()),
            End::Failed(failed) => Err(failed.clone()),
        }
    }
}

/// A parser for the output of `p`, which may be freed before it. Free with fathom_parser_free. Never blocks, any
/// thread.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fathom_parser_new(
    p: *const fathom_prepared,
    out: *mut *mut fathom_parser,
    err: *mut *mut fathom_error,
) -> fathom_status {
    guarded(err, || {
        let out = Out::new(out, std::ptr::null_mut(), "out")?;
        let prepared = handle::enter(p, "p")?;
        let _watch = prepared.poison.watch("p")?;
        let parser = Parser::new(&prepared.prepared)
            .map_err(|error| Failed::from(error).styled(prepared.style))?;
        out.set(handle::create(Solo::new(ParserObject {
            parser,
            style: prepared.style,
            end: End::Open,
            held: Output::default(),
        }))?);
        Ok(())
    })
}

/// The part that all functions which make events share: out-parameters, the parser, the batch.
fn feed(
    s: *mut fathom_parser,
    b: *mut fathom_batch,
    events: *mut *const fathom_event,
    event_count: *mut usize,
    step: impl FnOnce(&mut ParserObject, &mut Output) -> Result<(), Failed>,
) -> Result<(), Failed> {
    let events = Out::new(events, std::ptr::null(), "events")?;
    let event_count = Out::new(event_count, 0, "event_count")?;
    let object = handle::enter(s.cast_const(), "s")?;
    let batch = batch::enter(b)?;
    let mut batch = batch::lock(&batch)?;
    let mut parser = object.enter("s")?;
    let (array, count) = batch.refill_parsed(|out| {
        let outcome = step(&mut parser, out);
        if outcome.is_err() {
            // Outputs are written on success only: what was made before the failure waits for the call that
            // tells the client.
            parser.held.append(out);
        }
        outcome
    })?;
    events.set(array);
    event_count.set(count);
    Ok(())
}

/// Gives what is known before the first token, and yields the opening events. Optional; changes nothing after
/// output started. `i` may be NULL. The events live in `b` until the next call with it. Never blocks; one thread
/// at a time (FATHOM_ERR_STATE).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fathom_parser_start(
    s: *mut fathom_parser,
    i: *const fathom_parser_start_info,
    b: *mut fathom_batch,
    events: *mut *const fathom_event,
    event_count: *mut usize,
    err: *mut *mut fathom_error,
) -> fathom_status {
    guarded(err, || {
        // SAFETY: the caller's duty: NULL, or as many bytes as `struct_size` says.
        let given = unsafe { options::read(i) }?;
        input::reserved(given.reserved0, "reserved0")?;
        // SAFETY: the caller's duty for the strings inside.
        let (response_id, system_fingerprint, model) = unsafe {
            (
                input::optional(given.response_id, "response_id")?,
                input::optional(given.system_fingerprint, "system_fingerprint")?,
                input::optional(given.model, "model")?,
            )
        };
        let info = StartInfo {
            prompt_tokens: given.prompt_tokens,
            cached_tokens: given.cached_tokens,
            created_unix_s: given.created_unix_s,
            response_id: response_id.unwrap_or_default().to_owned(),
            system_fingerprint: system_fingerprint.unwrap_or_default().to_owned(),
            model: model.unwrap_or_default().to_owned(),
            choice: given.choice,
        };
        feed(s, b, events, event_count, |parser, out| match &parser.end {
            End::Open => parser.step(out, |parser, output| parser.start(&info, output)),
            End::Ended => Ok(()),
            End::Failed(failed) => Err(failed.clone()),
        })
    })
}

/// Reads more output: ids or text, not both. The push in which the output ends closes its events with one of kind
/// DONE: stop generating then. After the end it is FATHOM_OK without events, after a failure the same status
/// again. The events live in `b` until the next call with it. Never blocks; one thread at a time
/// (FATHOM_ERR_STATE).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fathom_parser_push(
    s: *mut fathom_parser,
    chunk: *const fathom_chunk,
    b: *mut fathom_batch,
    events: *mut *const fathom_event,
    event_count: *mut usize,
    err: *mut *mut fathom_error,
) -> fathom_status {
    guarded(err, || {
        if chunk.is_null() {
            return Err(Failed::argument("chunk", "chunk is NULL"));
        }
        // SAFETY: the caller's duty: as many bytes as `struct_size` says.
        let given = unsafe { options::read(chunk) }?;
        // SAFETY: the caller's duty for the arrays inside.
        let chunk = unsafe { read_chunk(&given) }?;
        feed(s, b, events, event_count, |parser, out| {
            parser.push(out, &chunk)
        })
    })
}

/// # Safety
///
/// The arrays of `given` are readable.
unsafe fn read_chunk(given: &fathom_chunk) -> Result<Chunk<'_>, Failed> {
    let count = given.token_count;
    // An absent array is an empty one, whatever the others say.
    let length = |missing: bool, full: usize| if missing { 0 } else { full };
    let alternatives = count
        .checked_mul(given.top_count as usize)
        .ok_or_else(|| Failed::argument("top_count", "token_count x top_count is too large"))?;
    let tops = length(given.top_tokens.is_null(), alternatives);
    let top_logprobs = length(given.top_logprobs.is_null(), alternatives);
    if tops != top_logprobs {
        return Err(Failed::argument(
            "top_logprobs",
            "top_tokens and top_logprobs go together",
        ));
    }
    // SAFETY: the caller's promise.
    let (tokens, text) = unsafe {
        (
            input::slice(given.tokens, count, "tokens")?,
            input::optional(given.text, "text")?,
        )
    };
    if count > 0 && text.is_some() {
        return Err(Failed::argument(
            "text",
            "a chunk has ids or text, not both",
        ));
    }
    // SAFETY: as above; the lengths are those the header states.
    unsafe {
        Ok(Chunk {
            tokens,
            text,
            text_tokens: given.text_tokens,
            logprobs: input::slice(
                given.logprobs,
                length(given.logprobs.is_null(), count),
                "logprobs",
            )?,
            top_tokens: input::slice(given.top_tokens, tops, "top_tokens")?,
            top_logprobs: input::slice(given.top_logprobs, top_logprobs, "top_logprobs")?,
            top_count: if tops == 0 { 0 } else { given.top_count },
        })
    }
}

/// fathom_parser_push for ids alone.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fathom_parser_push_tokens(
    s: *mut fathom_parser,
    tokens: *const u32,
    count: usize,
    b: *mut fathom_batch,
    events: *mut *const fathom_event,
    event_count: *mut usize,
    err: *mut *mut fathom_error,
) -> fathom_status {
    guarded(err, || {
        let chunk = Chunk {
            // SAFETY: the caller's duty.
            tokens: unsafe { input::slice(tokens, count, "tokens") }?,
            ..Chunk::default()
        };
        feed(s, b, events, event_count, |parser, out| {
            parser.push(out, &chunk)
        })
    })
}

/// fathom_parser_push for text that stands for `token_count` tokens. Markers can then only be matched by their
/// spelling. Bytes that end inside a character are FATHOM_ERR_INVALID_UTF8.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fathom_parser_push_text(
    s: *mut fathom_parser,
    text: *const c_char,
    len: usize,
    token_count: u32,
    b: *mut fathom_batch,
    events: *mut *const fathom_event,
    event_count: *mut usize,
    err: *mut *mut fathom_error,
) -> fathom_status {
    guarded(err, || {
        let chunk = Chunk {
            // SAFETY: the caller's duty.
            text: Some(unsafe { input::text(text, len, "text") }?),
            text_tokens: token_count,
            ..Chunk::default()
        };
        feed(s, b, events, event_count, |parser, out| {
            parser.push(out, &chunk)
        })
    })
}

/// Flushes what was held back and yields the closing events. `finish` is FATHOM_FINISH_STOP, _LENGTH, _TOOL_CALLS
/// (as _STOP), _NONE (the input simply ended) or FATHOM_PARSER_CONTENT_FILTER. `usage` may be NULL; it corrects
/// prompt and cached tokens. The events live in `b` until the next call with it. Never blocks; one thread at a
/// time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fathom_parser_finish(
    s: *mut fathom_parser,
    finish: i32,
    usage: *const fathom_usage,
    b: *mut fathom_batch,
    events: *mut *const fathom_event,
    event_count: *mut usize,
    err: *mut *mut fathom_error,
) -> fathom_status {
    guarded(err, || {
        let finish = match finish {
            FATHOM_FINISH_STOP | FATHOM_FINISH_TOOL_CALLS => Finish::Stop,
            FATHOM_FINISH_LENGTH => Finish::Length,
            FATHOM_FINISH_NONE => Finish::EndOfStream,
            FATHOM_PARSER_CONTENT_FILTER => Finish::ContentFilter,
            FATHOM_FINISH_CANCELLED | FATHOM_FINISH_ERROR => {
                return Err(Failed::argument(
                    "finish",
                    "a stream that failed ends with fathom_parser_fail",
                ));
            }
            _ => {
                return Err(Failed::argument(
                    "finish",
                    format!("unknown finish {finish}"),
                ));
            }
        };
        // SAFETY: the caller's duty: NULL or a usage.
        let usage = unsafe { usage.as_ref() }.map(|usage| Usage {
            prompt_tokens: usage.prompt_tokens,
            cached_tokens: usage.cached_tokens,
            completion_tokens: usage.completion_tokens,
            reasoning_tokens: usage.reasoning_tokens,
        });
        feed(s, b, events, event_count, |parser, out| match &parser.end {
            End::Open => {
                parser.step(out, |parser, output| {
                    parser.finish(finish, usage.as_ref(), output)
                })?;
                parser.end = End::Ended;
                Ok(())
            }
            End::Ended => Ok(()),
            End::Failed(failed) => Err(failed.clone()),
        })
    })
}

/// Ends the stream with the protocol's error event: the backend, or the parser, failed. Events that a failed push
/// had made come first. `http_status` is 400..599. The events live
/// in `b` until the next call with it. Never blocks; one thread at a time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fathom_parser_fail(
    s: *mut fathom_parser,
    http_status: i32,
    message: *const c_char,
    len: usize,
    b: *mut fathom_batch,
    events: *mut *const fathom_event,
    event_count: *mut usize,
    err: *mut *mut fathom_error,
) -> fathom_status {
    guarded(err, || {
        let http = u16::try_from(http_status)
            .ok()
            .filter(|http| (400..600).contains(http))
            .ok_or_else(|| {
                Failed::argument(
                    "http_status",
                    format!("http_status {http_status} is not in 400..599"),
                )
            })?;
        // SAFETY: the caller's duty.
        let message = unsafe { input::text(message, len, "message") }?;
        feed(s, b, events, event_count, |parser, out| match &parser.end {
            // Also after a failure of its own, which the client has not heard of yet.
            End::Open | End::Failed(_) => {
                out.append(&mut parser.held);
                parser.step(out, |parser, output| parser.fail(http, message, output))?;
                parser.end = End::Ended;
                Ok(())
            }
            End::Ended => Ok(()),
        })
    })
}

/// The whole answer as one JSON document, for a request that is not streamed. Free with fathom_buf_free. Never
/// blocks; one thread at a time.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fathom_parser_response(
    s: *const fathom_parser,
    out_json: *mut *mut fathom_buf,
    err: *mut *mut fathom_error,
) -> fathom_status {
    guarded(err, || {
        let out = Out::new(out_json, std::ptr::null_mut(), "out_json")?;
        let object = handle::enter(s, "s")?;
        let parser = object.enter("s")?;
        let response = parser
            .parser
            .response()
            .map_err(|error| Failed::from(error).styled(parser.style))?;
        out.set(buffer(response)?);
        Ok(())
    })
}

/// The recoveries so far, as JSON: [{"code": "R8", "offset": 120, "count": 1}, ...]. Free with fathom_buf_free.
/// Never blocks; one thread at a time.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fathom_parser_diagnostics(
    s: *const fathom_parser,
    out_json: *mut *mut fathom_buf,
    err: *mut *mut fathom_error,
) -> fathom_status {
    guarded(err, || {
        let out = Out::new(out_json, std::ptr::null_mut(), "out_json")?;
        let object = handle::enter(s, "s")?;
        let parser = object.enter("s")?;
        out.set(buffer(parser.parser.diagnostics())?);
        Ok(())
    })
}

/// Gives a parser back. NULL is fine. Never blocks, any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fathom_parser_free(s: *mut fathom_parser) {
    quiet((), || handle::retire(s.cast_const(), "s").map(drop));
}
