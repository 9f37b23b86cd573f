//! Batches: the memory in which events and all that they point to live until the next poll.
//!
//! Events are kept as they were made, the engine's and a parser's, and only pointed into; what C wants
//! differently (a stride of the caller's, usage, error objects, NULs) is made beside them. One pass, no copy
//! of tokens or text.

use parking_lot::{Mutex, MutexGuard};

use super::boundary::{Out, guarded, quiet};
use super::error::{Failed, LentError, terminate};
use super::handle::{self, Inside, handle};
use super::queue::*;
use super::types::*;
use crate::engine::request::{Event, EventKind, FinishReason, Usage};
use crate::recipe::stream::{Finish, Output};

/// What must fit any version of the caller's struct: request, tag, kind and finish.
const LEAST_EVENT: usize = 24;
/// A struct larger than this is a mistake, not a newer version.
const MOST_EVENT: usize = 4096;

handle!(fathom_batch, 0x04, Mutex<Batch>);

/// Events with a stride of the caller's.
pub(crate) struct Batch {
    /// The caller's `sizeof(fathom_event)`: a multiple of eight.
    stride: usize,
    /// The array: words, so that it is aligned.
    array: Vec<u64>,
    /// From a queue.
    events: Vec<Event>,
    /// From a parser.
    parsed: Output,
    usages: Vec<fathom_usage>,
    errors: Vec<LentError>,
    /// `detail` of first tokens, each with a NUL behind it.
    details: Vec<String>,
    /// Names of the protocols' events, each with a NUL behind it; they stay from poll to poll.
    names: Vec<(&'static str, String)>,
}

impl Batch {
    fn new(stride: usize) -> Self {
        Self {
            stride,
            array: Vec::new(),
            events: Vec::new(),
            parsed: Output::default(),
            usages: Vec::new(),
            errors: Vec::new(),
            details: Vec::new(),
            names: Vec::new(),
        }
    }

    /// Ends the life of what the last poll gave, and takes new events from `source`. The array lives until
    /// the next call.
    pub(crate) fn refill(
        &mut self,
        source: impl FnOnce(&mut Vec<Event>) -> Result<(), Failed>,
    ) -> Result<(*const fathom_event, usize), Failed> {
        self.clear();
        let outcome = source(&mut self.events);
        // What was delivered must reach the caller, also beside an error: the error comes back with the
        // next poll, if it lasts.
        if self.events.is_empty() {
            outcome?;
            return Ok((std::ptr::null(), 0));
        }
        self.lay_out()?;
        Ok((self.array.as_ptr().cast(), self.events.len()))
    }

    /// The same for events of a parser, which are there on success only.
    pub(crate) fn refill_parsed(
        &mut self,
        source: impl FnOnce(&mut Output) -> Result<(), Failed>,
    ) -> Result<(*const fathom_event, usize), Failed> {
        self.clear();
        let mut parsed = std::mem::take(&mut self.parsed);
        let outcome = source(&mut parsed);
        let count = parsed.len() + usize::from(parsed.done.is_some());
        if outcome.is_ok() && count > 0 {
            self.lay_out_parsed(&parsed, count);
        }
        self.parsed = parsed;
        outcome?;
        if count == 0 {
            return Ok((std::ptr::null(), 0));
        }
        Ok((self.array.as_ptr().cast(), count))
    }

    fn clear(&mut self) {
        self.array.clear();
        self.usages.clear();
        self.errors.clear();
        self.details.clear();
        self.events.clear();
        self.parsed.clear();
    }

    fn lay_out_parsed(&mut self, parsed: &Output, count: usize) {
        let mut places = self.places(count);
        for ((event, with_nul), place) in parsed.terminated().zip(&mut places) {
            let seen = fathom_event {
                kind: FATHOM_EVENT_DATA,
                token_count: event.token_count as usize,
                name: event
                    .name
                    .map_or(fathom_str::ABSENT, |name| self.name(name)),
                data: fathom_str {
                    ptr: with_nul.as_ptr().cast(),
                    len: event.data.len(),
                },
                ..fathom_event::EMPTY
            };
            self.write(&seen, place);
        }
        if let (Some(finish), Some(place)) = (parsed.done, places.next()) {
            let finish = match finish {
                Finish::Length => FATHOM_FINISH_LENGTH,
                Finish::ToolCalls => FATHOM_FINISH_TOOL_CALLS,
                Finish::Stop | Finish::ContentFilter | Finish::EndOfStream => FATHOM_FINISH_STOP,
            };
            let seen = fathom_event {
                kind: FATHOM_EVENT_DONE,
                finish,
                ..fathom_event::EMPTY
            };
            self.write(&seen, place);
        }
    }

    fn lay_out(&mut self) -> Result<(), Failed> {
        // Neither may move once something points into it.
        self.usages.reserve(self.events.len());
        self.details.reserve(self.events.len());
        let places = self.places(self.events.len());
        let mut events = std::mem::take(&mut self.events);
        let made = events
            .iter_mut()
            .zip(places)
            .try_for_each(|(event, place)| {
                let event = self.convert(event)?;
                self.write(&event, place);
                Ok(())
            });
        self.events = events;
        made
    }

    /// Makes the array as long as `count` events: their places in it.
    fn places(&mut self, count: usize) -> impl Iterator<Item = usize> + use<> {
        let words = self.stride / size_of::<u64>();
        self.array.resize(words * count, 0);
        (0..count).map(move |number| number * words)
    }

    /// Writes an event to its place, cut or padded to the caller's size.
    fn write(&mut self, event: &fathom_event, place: usize) {
        let place = &mut self.array[place..place + self.stride / size_of::<u64>()];
        // SAFETY: the place is as long as a stride, neither length is exceeded, and the two do not overlap.
        unsafe {
            place.as_mut_ptr().cast::<u8>().copy_from_nonoverlapping(
                std::ptr::from_ref(event).cast(),
                self.stride.min(size_of::<fathom_event>()),
            );
        }
    }

    /// The event as C sees it; points into `event`, which stays where its vector is.
    fn convert(&mut self, event: &mut Event) -> Result<fathom_event, Failed> {
        let mut seen = fathom_event {
            request: event.request.0,
            tag: event.tag,
            ..fathom_event::EMPTY
        };
        match &mut event.kind {
            EventKind::Tokens(tokens) => {
                seen.kind = FATHOM_EVENT_TOKENS;
                seen.tokens = pointer(&tokens.tokens);
                seen.token_count = tokens.tokens.len();
                seen.choice = tokens.choice;
                seen.logprobs = pointer(&tokens.logprobs);
                seen.top_tokens = pointer(&tokens.top_tokens);
                seen.top_logprobs = pointer(&tokens.top_logprobs);
                seen.top_count = tokens.top_count;
                if let Some(first) = &tokens.first {
                    seen.usage = self.usage(&first.usage);
                    let mut detail = format!("{{\"seed\":{}}}", first.seed);
                    seen.detail = borrowed(&mut detail);
                    self.details.push(detail);
                }
            }
            EventKind::Data {
                name,
                data,
                token_count,
            } => {
                seen.kind = FATHOM_EVENT_DATA;
                seen.token_count = *token_count as usize;
                seen.name = name.map_or(fathom_str::ABSENT, |name| self.name(name));
                seen.data = borrowed(data);
            }
            EventKind::Done(done) => {
                seen.kind = FATHOM_EVENT_DONE;
                seen.finish = match done.finish {
                    FinishReason::Stop => FATHOM_FINISH_STOP,
                    FinishReason::Length => FATHOM_FINISH_LENGTH,
                    FinishReason::ToolCalls => FATHOM_FINISH_TOOL_CALLS,
                    FinishReason::Cancelled => FATHOM_FINISH_CANCELLED,
                    FinishReason::Error => FATHOM_FINISH_ERROR,
                };
                if let Some(failure) = &done.failure {
                    let error = LentError::new(Failed::from(failure)).ok_or_else(out_of_handles)?;
                    seen.error = error.as_ptr();
                    self.errors.push(error);
                }
                seen.usage = self.usage(&done.usage);
                seen.detail = borrowed(&mut done.detail);
            }
        }
        Ok(seen)
    }

    /// Room was reserved: what was pushed before does not move.
    fn usage(&mut self, usage: &Usage) -> *const fathom_usage {
        self.usages.push(fathom_usage {
            prompt_tokens: usage.prompt_tokens,
            cached_tokens: usage.cached_tokens,
            completion_tokens: usage.completion_tokens,
            reasoning_tokens: usage.reasoning_tokens,
            drafted_tokens: usage.drafted_tokens,
            accepted_tokens: usage.accepted_tokens,
            queued_us: usage.queued_us,
            prefill_us: usage.prefill_us,
            decode_us: usage.decode_us,
        });
        self.usages
            .last()
            .map_or(std::ptr::null(), std::ptr::from_ref)
    }

    fn name(&mut self, name: &'static str) -> fathom_str {
        let known = self.names.iter().position(|(known, _)| *known == name);
        let place = known.unwrap_or_else(|| {
            let mut copy = name.to_owned();
            terminate(&mut copy);
            self.names.push((name, copy));
            self.names.len() - 1
        });
        // The text's bytes stay when the list of texts moves.
        let text = &self.names[place].1;
        fathom_str {
            ptr: text.as_ptr().cast(),
            len: text.len(),
        }
    }
}

fn out_of_handles() -> Failed {
    Failed::new(FATHOM_ERR_HOST_MEMORY, "", "too many handles are alive")
}

fn pointer<T>(values: &[T]) -> *const T {
    if values.is_empty() {
        std::ptr::null()
    } else {
        values.as_ptr()
    }
}

/// Text as C sees it, with a NUL behind it. Empty text is absent.
fn borrowed(text: &mut String) -> fathom_str {
    if text.is_empty() {
        return fathom_str::ABSENT;
    }
    terminate(text);
    fathom_str {
        ptr: text.as_ptr().cast(),
        len: text.len(),
    }
}

/// The batch of a call, and who keeps it alive meanwhile.
pub(crate) fn enter(b: *const fathom_batch) -> Result<Inside<fathom_batch>, Failed> {
    handle::enter(b, "b")
}

/// The batch itself, for one thread at a time. A panic leaves nothing in it that the next refill would not
/// clear, so it is never poisoned: other parsers may share it.
pub(crate) fn lock(batch: &Inside<fathom_batch>) -> Result<MutexGuard<'_, Batch>, Failed> {
    batch
        .try_lock()
        .ok_or_else(|| Failed::state("b is in use by another thread"))
}

/// Memory for events. `event_size` is the caller's sizeof(fathom_event), which arrays keep as their stride.
/// Free with fathom_batch_free. Never blocks, any thread.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fathom_batch_new(
    event_size: usize,
    out: *mut *mut fathom_batch,
) -> fathom_status {
    guarded(std::ptr::null_mut(), || {
        let out = Out::new(out, std::ptr::null_mut(), "out")?;
        let possible = (LEAST_EVENT..=MOST_EVENT).contains(&event_size)
            && event_size.is_multiple_of(align_of::<fathom_event>());
        if !possible {
            return Err(Failed::abi(
                "event_size",
                format!("{event_size} is not the size of any version of fathom_event"),
            ));
        }
        out.set(handle::create(Mutex::new(Batch::new(event_size)))?);
        Ok(())
    })
}

/// Gives a batch back, and with it the events of its last poll. NULL is fine. Never blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fathom_batch_free(b: *mut fathom_batch) {
    quiet((), || handle::retire(b.cast_const(), "b").map(drop));
}
