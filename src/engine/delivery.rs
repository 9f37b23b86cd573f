//! One request as seen from both sides of its queue: what is unread, who adapts its tokens, whom to tell.
//!
//! The engine thread and the pollers share a [`Delivery`] by reference count. Counts are atomics; the adapter
//! is run by one poller at a time (see `queue.rs`). Cost: two atomic operations a token span.

#![forbid(unsafe_code)]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{
    AtomicBool, AtomicU8, AtomicU32, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst,
};

use parking_lot::Mutex;
use serde_json::{Map, Value};

use super::error::{Code, Error};
use super::queue::Shared;
use super::request::{
    Adapter, Done, Event, EventKind, Failure, FinishReason, Flow, RequestId, Tokens, Usage,
};
use super::sampling::Reported;

/// Why somebody wants a request to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cancel {
    /// The host asked.
    Host,
    /// Its adapter has seen the end of the output.
    Stop,
    /// Its adapter cannot go on, or its queue is gone: nobody will look at the rest.
    Abandon,
}

/// What deliveries ask of the engine they belong to. Never blocks.
pub(crate) trait Control: Send + Sync {
    /// Ends a request at the next step; unknown ids are skipped.
    fn cancel(&self, id: RequestId, why: Cancel);
    /// Room was made for a paused request.
    fn nudge(&self);
}

/// The facts behind `detail` of a request's end.
#[derive(Clone, Debug, Default)]
pub(crate) struct Detail {
    pub(crate) seed: Option<u64>,
    pub(crate) reason: &'static str,
    pub(crate) code: Option<Code>,
    pub(crate) stop: Option<Stop>,
    /// Text of the output behind the last token delivered, where a stop string cut a token.
    pub(crate) tail: Option<String>,
    /// Only where it was capped.
    pub(crate) max_tokens: Option<u32>,
    pub(crate) preemptions: u32,
    /// What was gathered on the way, where it was asked for.
    pub(crate) told: Option<Box<Reported>>,
}

/// What matched.
#[derive(Clone, Debug)]
pub(crate) enum Stop {
    Token(u32),
    Text(String),
}

impl Detail {
    fn to_json(&self) -> String {
        let mut map = Map::new();
        if let Some(seed) = self.seed {
            map.insert("seed".to_owned(), seed.into());
        }
        map.insert("reason".to_owned(), self.reason.into());
        if let Some(code) = self.code {
            map.insert("code".to_owned(), code.name().into());
        }
        if let Some(stop) = &self.stop {
            let stop = match stop {
                Stop::Token(token) => Value::from(*token),
                Stop::Text(text) => Value::from(text.as_str()),
            };
            map.insert("stop".to_owned(), stop);
        }
        if let Some(tail) = &self.tail {
            map.insert("tail".to_owned(), tail.as_str().into());
        }
        if let Some(max_tokens) = self.max_tokens {
            map.insert("max_tokens".to_owned(), max_tokens.into());
        }
        map.insert("preemptions".to_owned(), self.preemptions.into());
        if let Some(told) = &self.told {
            told.describe(&mut map);
        }
        Value::Object(map).to_string()
    }
}

/// A request's end, as the engine knows it. Becomes a [`Done`] on the poller's thread.
#[derive(Clone, Debug)]
pub(crate) struct End {
    pub(crate) finish: FinishReason,
    pub(crate) failure: Option<Failure>,
    pub(crate) usage: Usage,
    pub(crate) detail: Detail,
}

impl End {
    /// An end by the engine's own error.
    pub(crate) fn by(
        error: Error,
        finish: FinishReason,
        reason: &'static str,
        usage: Usage,
    ) -> Self {
        Self {
            finish,
            usage,
            detail: Detail {
                reason,
                code: Some(error.code),
                ..Detail::default()
            },
            failure: Some(Failure::Engine(error)),
        }
    }

    fn into_done(self) -> Done {
        Done {
            finish: self.finish,
            failure: self.failure,
            usage: self.usage,
            detail: self.detail.to_json(),
        }
    }
}

/// What an entry of the queue holds.
#[derive(Debug)]
pub(crate) enum Content {
    Tokens(Tokens),
    End(Box<End>),
}

/// The adapter of a request and how far it has come.
struct Reader {
    adapter: Box<dyn Adapter>,
    /// Tokens it was given.
    seen: u32,
    state: ReaderState,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum ReaderState {
    Reading,
    /// It said [`Flow::Stop`].
    Stopped,
    /// It panicked.
    Broken,
}

/// See the module.
pub(crate) struct Delivery {
    pub(crate) id: RequestId,
    pub(crate) tag: u64,
    pub(crate) queue: Arc<Shared>,
    control: Arc<dyn Control>,
    /// Tokens in the queue.
    queued: AtomicU32,
    /// Tokens delivered but not acknowledged; stays 0 without explicit acknowledgement.
    outstanding: AtomicU32,
    explicit_ack: AtomicBool,
    paused: AtomicBool,
    /// The first [`Cancel`], as a number; 0 for none.
    wish: AtomicU8,
    has_reader: AtomicBool,
    reader: Mutex<Option<Reader>>,
    /// The three below are only touched under the queue's lock.
    pub(super) place: AtomicUsize,
    pub(super) busy: AtomicBool,
    pub(super) ended: AtomicBool,
}

/// No entry of the request in the queue can take more tokens.
pub(super) const NO_PLACE: usize = usize::MAX;

impl Delivery {
    pub(crate) fn new(
        id: RequestId,
        tag: u64,
        queue: Arc<Shared>,
        control: Arc<dyn Control>,
    ) -> Self {
        Self {
            id,
            tag,
            queue,
            control,
            queued: AtomicU32::new(0),
            outstanding: AtomicU32::new(0),
            explicit_ack: AtomicBool::new(false),
            paused: AtomicBool::new(false),
            wish: AtomicU8::new(0),
            has_reader: AtomicBool::new(false),
            reader: Mutex::new(None),
            place: AtomicUsize::new(NO_PLACE),
            busy: AtomicBool::new(false),
            ended: AtomicBool::new(false),
        }
    }

    /// Sets what is known once there is a request; before its first event.
    pub(crate) fn equip(&self, explicit_ack: bool, adapter: Option<Box<dyn Adapter>>) {
        self.explicit_ack.store(explicit_ack, Relaxed);
        if let Some(adapter) = adapter {
            *self.reader.lock() = Some(Reader {
                adapter,
                seen: 0,
                state: ReaderState::Reading,
            });
            self.has_reader.store(true, SeqCst);
        }
    }

    /// Whether an adapter reads it: then one poller at a time.
    pub(super) fn has_reader(&self) -> bool {
        self.has_reader.load(SeqCst)
    }

    /// Tokens that wait for the host.
    pub(crate) fn unread(&self) -> u32 {
        // In this order a span on its way from one count to the other is seen twice rather than never.
        let queued = self.queued.load(SeqCst);
        queued.saturating_add(self.outstanding.load(SeqCst))
    }

    /// Asks for a nudge when room is made. The caller looks at [`Self::unread`] once more afterwards.
    pub(crate) fn set_paused(&self, paused: bool) {
        self.paused.store(paused, SeqCst);
    }

    /// Cancels once; later calls do nothing.
    pub(crate) fn cancel(&self, why: Cancel) {
        let number = match why {
            Cancel::Host => 1,
            Cancel::Stop => 2,
            Cancel::Abandon => 3,
        };
        if self
            .wish
            .compare_exchange(0, number, SeqCst, SeqCst)
            .is_ok()
        {
            self.control.cancel(self.id, why);
        }
    }

    /// Who wanted it to end, if anybody did.
    pub(crate) fn cancel_wish(&self) -> Option<Cancel> {
        match self.wish.load(SeqCst) {
            0 => None,
            1 => Some(Cancel::Host),
            2 => Some(Cancel::Stop),
            _ => Some(Cancel::Abandon),
        }
    }

    /// Reports up to `count` delivered tokens as read.
    pub(crate) fn acknowledge(&self, count: u32) {
        let _ = self
            .outstanding
            .fetch_update(SeqCst, SeqCst, |n| Some(n.saturating_sub(count)));
        self.made_room();
    }

    pub(super) fn note_queued(&self, count: u32) {
        self.queued.fetch_add(count, SeqCst);
    }

    fn made_room(&self) {
        if self.paused.load(SeqCst) {
            self.control.nudge();
        }
    }

    /// `count` tokens left the queue; `shown` of them, or of earlier ones, are in events now.
    fn note_taken(&self, count: u32, shown: u32) {
        if self.explicit_ack.load(Relaxed) {
            self.outstanding.fetch_add(shown, SeqCst);
        }
        self.queued.fetch_sub(count, SeqCst);
        self.made_room();
    }

    /// Turns one entry into events, through the adapter if there is one.
    pub(super) fn deliver(&self, content: Content, out: &mut Vec<Event>) {
        let mut reader = self.reader.lock();
        match (reader.as_mut(), content) {
            (None, Content::Tokens(tokens)) => {
                let count = tokens.tokens.len() as u32;
                self.note_taken(count, count);
                out.push(self.event(EventKind::Tokens(tokens)));
            }
            (None, Content::End(end)) => {
                out.push(self.event(EventKind::Done(end.into_done())));
            }
            (Some(reader), Content::Tokens(tokens)) => {
                let count = tokens.tokens.len() as u32;
                let shown = self.adapt(reader, tokens, out);
                self.note_taken(count, shown);
            }
            (Some(reader), Content::End(end)) => {
                self.adapt_end(reader, *end, out);
            }
        }
    }

    fn event(&self, kind: EventKind) -> Event {
        Event {
            request: self.id,
            tag: self.tag,
            kind,
        }
    }

    /// Answers how many tokens stand behind the events made.
    fn adapt(&self, reader: &mut Reader, tokens: Tokens, out: &mut Vec<Event>) -> u32 {
        if reader.state != ReaderState::Reading {
            return 0;
        }
        reader.seen = reader.seen.saturating_add(tokens.tokens.len() as u32);
        let from = out.len();
        match self.run(reader, EventKind::Tokens(tokens), out) {
            Some(Flow::Continue) => {}
            Some(Flow::Stop) => {
                reader.state = ReaderState::Stopped;
                self.cancel(Cancel::Stop);
            }
            None => {
                reader.state = ReaderState::Broken;
                self.cancel(Cancel::Abandon);
            }
        }
        // An end before the end would be a second one later.
        self.keep(out, from, |kind| !matches!(kind, EventKind::Done(_)));
        out[from..]
            .iter()
            .map(|event| match &event.kind {
                EventKind::Data { token_count, .. } => *token_count,
                EventKind::Tokens(tokens) => tokens.tokens.len() as u32,
                EventKind::Done(_) => 0,
            })
            .sum()
    }

    fn adapt_end(&self, reader: &mut Reader, mut end: End, out: &mut Vec<Event>) {
        let from = out.len();
        if reader.state == ReaderState::Stopped {
            // What the engine did after the adapter's end is nobody's concern.
            end.finish = FinishReason::Stop;
            end.failure = None;
            end.usage.completion_tokens = reader.seen;
            end.detail.reason = "stop";
            end.detail.code = None;
            end.detail.stop = None;
            end.detail.tail = None;
            if let Some(told) = &mut end.detail.told {
                told.truncate(reader.seen as usize);
            }
        }
        if reader.state != ReaderState::Broken {
            let done = end.clone().into_done();
            if self
                .run(reader, EventKind::Done(done.clone()), out)
                .is_some()
            {
                let mut ends = 0;
                self.keep(out, from, |kind| {
                    let is_end = matches!(kind, EventKind::Done(_));
                    ends += usize::from(is_end);
                    !is_end || ends == 1
                });
                if ends == 0 {
                    out.push(self.event(EventKind::Done(done)));
                } else {
                    // Last, whatever was appended behind it.
                    out[from..].sort_by_key(|event| matches!(event.kind, EventKind::Done(_)));
                }
                return;
            }
            reader.state = ReaderState::Broken;
            out.truncate(from);
        }
        let error = Error::new(
            Code::Internal,
            "",
            "the reader of this request's output panicked",
        );
        let detail = end.detail;
        let mut end = End::by(error, FinishReason::Error, "error", end.usage);
        end.detail.seed = detail.seed;
        end.detail.preemptions = detail.preemptions;
        out.push(self.event(EventKind::Done(end.into_done())));
    }

    /// `None` after a panic; what it had appended stays.
    fn run(&self, reader: &mut Reader, kind: EventKind, out: &mut Vec<Event>) -> Option<Flow> {
        let event = self.event(kind);
        catch_unwind(AssertUnwindSafe(|| reader.adapter.adapt(event, out))).ok()
    }

    /// Drops new events that `wanted` refuses, and makes the others this request's.
    fn keep(&self, out: &mut Vec<Event>, from: usize, mut wanted: impl FnMut(&EventKind) -> bool) {
        let mut at = 0;
        out.retain_mut(|event| {
            let is_new = at >= from;
            at += 1;
            if !is_new {
                return true;
            }
            event.request = self.id;
            event.tag = self.tag;
            wanted(&event.kind)
        });
    }
}

impl std::fmt::Debug for Delivery {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Delivery")
            .field("id", &self.id)
            .field("tag", &self.tag)
            .field("unread", &self.unread())
            .finish_non_exhaustive()
    }
}

impl Drop for Delivery {
    fn drop(&mut self) {
        // The last owner may be the engine thread, and what the adapter owns may panic on drop.
        let reader = self.reader.get_mut().take();
        let _ = catch_unwind(AssertUnwindSafe(|| drop(reader)));
    }
}
