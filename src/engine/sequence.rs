//! A request inside the engine thread: its tokens, what it holds, and its clock.
//!
//! Plain data with the rules that concern one sequence only; `worker.rs` moves it between states.

#![forbid(unsafe_code)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::constraint::{Fault, Guide, Step};
use super::core::Submission;
use super::delivery::{Cancel, Delivery, Detail, End, Stop};
use super::error::{Code, Error};
use super::kv::{SlotId, Table};
use super::model::LogitRows;
use super::outbox::Outbox;
use super::queue::NewToken;
use super::request::{Failure, FinishReason, First, Request, RequestId, Usage};
use super::sampling::{RowFault, Sampler, State};
use super::scheduler::{Running, Waiting};

/// Unread tokens where the request does not say.
const UNREAD: u32 = 4096;
/// Two steps of one token: less would pause a request whose reader is on time.
const LEAST_UNREAD: u32 = 2;

/// Where a sequence stands. What it holds is part of the state.
#[derive(Debug)]
pub(crate) enum Place {
    /// Holds nothing.
    Waiting { since: Instant, since_step: u64 },
    /// Holds a slot, and the blocks in [`Sequence::table`].
    Running { slot: SlotId },
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Sequence {
    pub(crate) delivery: Arc<Delivery>,
    /// What its choices depend on.
    choices: State,
    /// Tokens that are not with the reader yet.
    outbox: Outbox,
    stop_tokens: Vec<u32>,
    /// What the output is held to; nothing for most.
    held: Option<Box<Held>>,
    class: u8,
    /// Prompt and output.
    pub(crate) tokens: Vec<u32>,
    prompt: u32,
    max_tokens: u32,
    is_capped: bool,
    max_unread: u32,
    /// Tokens whose rows have run with the blocks held now.
    pub(crate) computed: u32,
    /// Outside [`Place`] so that its memory is reused after a preemption.
    pub(crate) table: Table,
    pub(crate) place: Place,
    pub(crate) preemptions: u32,
    /// How often others were admitted before it.
    pub(crate) overtaken: u32,
    clock: Clock,
    /// Its reader has no room, and since when.
    pub(crate) paused_since: Option<Instant>,
    /// Counts against `max_queued` until it runs for the first time.
    pub(crate) holds_place: bool,
}

/// A constraint and what became of it.
#[derive(Debug)]
struct Held {
    guide: Guide,
    /// It failed, and ends the request.
    fault: Option<Fault>,
    /// The text is complete and nothing may follow.
    is_over: bool,
}

#[derive(Debug)]
struct Clock {
    submitted: Instant,
    total: Option<Instant>,
    queue: Option<Instant>,
    first_token: Option<Instant>,
    first_row_at: Option<Instant>,
    first_token_at: Option<Instant>,
    last_token_at: Option<Instant>,
}

/// Why the output is complete.
pub(crate) enum Complete {
    /// This token stops it.
    Stop(u32),
    /// Its text has a stop string.
    Text,
    /// It repeats itself.
    Repeat,
    /// Its constraint allows nothing more.
    Constraint,
    Length,
}

impl Sequence {
    /// `eos` are the model's end tokens; `vocab` ids have logits.
    pub(crate) fn new(
        submission: Submission,
        eos: &[u32],
        vocab: u32,
        now: Instant,
        step: u64,
    ) -> Self {
        let Submission {
            delivery,
            request,
            budget,
            seed,
            submitted,
            deadline,
            ruled,
        } = submission;
        let choices = State::new(&request, eos, seed);
        let outbox = Outbox::new(&request);
        let Request {
            prompt,
            mut stop_tokens,
            ignore_eos,
            class,
            max_unread_tokens,
            ..
        } = request;
        if !ignore_eos {
            stop_tokens.extend_from_slice(eos);
        }
        let held = ruled.map(|ruled| {
            Box::new(Held {
                guide: Guide::new(ruled, &stop_tokens, vocab),
                fault: None,
                is_over: false,
            })
        });
        // A time beyond the clock's range never comes.
        let at = |d: Option<Duration>| d.and_then(|d| submitted.checked_add(d));
        let own = at(request.deadline);
        Self {
            clock: Clock {
                submitted,
                total: earliest([own, deadline]),
                queue: at(request.deadline_queue),
                first_token: at(request.deadline_first_token),
                first_row_at: None,
                first_token_at: None,
                last_token_at: None,
            },
            max_unread: match max_unread_tokens {
                0 => UNREAD,
                n => n.max(LEAST_UNREAD),
            },
            prompt: prompt.len() as u32,
            max_tokens: budget.max_tokens,
            is_capped: budget.is_capped,
            tokens: prompt,
            delivery,
            choices,
            outbox,
            stop_tokens,
            held,
            class,
            computed: 0,
            table: Table::default(),
            place: Place::Waiting {
                since: now,
                since_step: step,
            },
            preemptions: 0,
            overtaken: 0,
            paused_since: None,
            holds_place: true,
        }
    }

    pub(crate) fn id(&self) -> RequestId {
        self.delivery.id
    }

    pub(crate) fn len(&self) -> u32 {
        self.tokens.len() as u32
    }

    fn produced(&self) -> u32 {
        self.len() - self.prompt
    }

    /// Only fills the cache.
    pub(crate) fn is_prefill_only(&self) -> bool {
        self.max_tokens == 0
    }

    /// Whether all rows but that of a sampled token have run.
    pub(crate) fn is_decoding(&self) -> bool {
        self.computed + 1 == self.len() && self.computed >= self.prompt
    }

    /// Looks whether its reader has room for one more token; arranges to be told when it has not.
    pub(crate) fn look_at_reader(&mut self, now: Instant) -> PauseChange {
        let has_room = |s: &Self| {
            let unread = s.delivery.unread().saturating_add(s.outbox.free());
            s.is_prefill_only() || unread < s.max_unread
        };
        let mut may_go_on = has_room(self);
        if !may_go_on && self.paused_since.is_none() {
            self.delivery.set_paused(true);
            // Who read before the flag was up told nobody.
            may_go_on = has_room(self);
            if !may_go_on {
                self.paused_since = Some(now);
                return PauseChange::Paused;
            }
        }
        if may_go_on {
            self.delivery.set_paused(false);
            self.paused_since = None;
        }
        PauseChange::None
    }

    pub(crate) fn as_running(&self) -> Running {
        Running {
            class: self.class,
            arrival: self.id().0,
            length: self.len(),
            computed: self.computed,
            blocks: self.table.len(),
            is_paused: self.paused_since.is_some(),
            preemptions: self.preemptions,
        }
    }

    pub(crate) fn as_waiting(&self, is_starved: bool) -> Waiting {
        Waiting {
            class: self.class,
            arrival: self.id().0,
            length: self.len(),
            is_starved,
            overtaken: self.overtaken,
            is_paused: self.paused_since.is_some(),
            was_preempted: self.preemptions > 0,
        }
    }

    /// Its rows are about to run.
    pub(crate) fn note_launch(&mut self, now: Instant) {
        self.clock.first_row_at.get_or_insert(now);
    }

    /// The next expected end by the clock, and what it would be called.
    pub(crate) fn due(&self, stall_timeout: Option<Duration>) -> Option<(Instant, Code)> {
        let clock = &self.clock;
        let queue = clock.queue.filter(|_| clock.first_row_at.is_none());
        let first = clock.first_token.filter(|_| clock.first_token_at.is_none());
        let stall = self
            .paused_since
            .zip(stall_timeout)
            .and_then(|(since, time)| since.checked_add(time));
        [
            (clock.total, Code::DeadlineTotal),
            (queue, Code::DeadlineQueue),
            (first, Code::DeadlineFirstToken),
            (stall, Code::ConsumerStalled),
        ]
        .into_iter()
        .filter_map(|(at, code)| at.map(|at| (at, code)))
        .min_by_key(|(at, _)| *at)
    }

    /// Which of its next `count` rows need logits.
    pub(crate) fn logit_rows(&self, count: u32) -> LogitRows {
        if self.choices.wants_prompt_rows(self.computed, count) {
            LogitRows::All
        } else if self.computed + count == self.len() && !self.is_prefill_only() {
            LogitRows::Last
        } else {
            LogitRows::None
        }
    }

    /// Takes the row of a position of its prompt.
    pub(crate) fn note_prompt_row(
        &mut self,
        sampler: &mut Sampler,
        row: &[f32],
        position: u32,
    ) -> Result<(), Error> {
        self.choices
            .note_prompt_row(sampler, row, position, &self.tokens)
            .map_err(|fault| bad_row(fault, position + 1))
    }

    /// Chooses the next token from its row and hands on what its reader may have.
    pub(crate) fn sample(
        &mut self,
        sampler: &mut Sampler,
        row: &[f32],
        now: Instant,
    ) -> Result<Sampled, Error> {
        let mask = self.held.as_ref().map(|held| held.guide.mask());
        let choice = self
            .choices
            .choose(sampler, row, mask, &self.tokens)
            .map_err(|fault| bad_row(fault, self.len()))?;
        let first = self.accept(choice.token, now);
        let new = NewToken {
            token: choice.token,
            logprob: choice.logprob,
            top: choice.top,
            first,
        };
        let ends = self.stop_tokens.contains(&choice.token);
        let room = self.max_unread;
        Ok(Sampled {
            has_news: self.outbox.push(&new, ends, room, &self.delivery),
            min_tokens_ignored: choice.min_tokens_ignored,
        })
    }

    /// Hands on all that waits, for it has ended.
    pub(crate) fn flush(&mut self) {
        self.outbox.flush(&self.delivery);
    }

    /// Takes a sampled token; answers what the queue needs with the first one.
    fn accept(&mut self, token: u32, now: Instant) -> Option<First> {
        self.tokens.push(token);
        self.clock.last_token_at = Some(now);
        if let Some(held) = &mut self.held {
            match held.guide.accept(&self.tokens[self.prompt as usize..]) {
                Ok(step) => held.is_over = step == Step::Over,
                Err(fault) => held.fault = Some(fault),
            }
        }
        if self.clock.first_token_at.is_some() {
            return None;
        }
        self.clock.first_token_at = Some(now);
        Some(First {
            usage: Usage {
                completion_tokens: 0,
                ..self.usage(now)
            },
            seed: self.choices.seed(),
        })
    }

    /// How long the token before this moment took, or all that led to the first.
    pub(crate) fn token_time(&self, now: Instant) -> TokenTime {
        match self.clock.last_token_at {
            Some(last) => TokenTime::Next(now.saturating_duration_since(last)),
            None => TokenTime::First(now.saturating_duration_since(self.clock.submitted)),
        }
    }

    /// Makes the mask of the next token, where there is a constraint.
    pub(crate) fn prepare_mask(&mut self) {
        if let Some(held) = &mut self.held {
            let made = held.guide.prepare(&self.tokens[self.prompt as usize..]);
            held.fault = held.fault.or(made.err());
        }
    }

    /// Why its constraint failed, if it did.
    pub(crate) fn fault(&self) -> Option<Fault> {
        self.held.as_ref().and_then(|held| held.fault)
    }

    /// Drops what its tokens can bring back.
    pub(crate) fn forget(&mut self) {
        if let Some(held) = &mut self.held {
            held.guide.forget();
        }
    }

    /// Whether the newest token was the last.
    pub(crate) fn completion(&self) -> Option<Complete> {
        if self.is_prefill_only() {
            return Some(Complete::Length);
        }
        let last = *self.tokens.last()?;
        if self.produced() > 0 && self.stop_tokens.contains(&last) {
            return Some(Complete::Stop(last));
        }
        if self.outbox.found().is_some() {
            return Some(Complete::Text);
        }
        if self.held.as_ref().is_some_and(|held| held.is_over) {
            return Some(Complete::Constraint);
        }
        if self.choices.is_looping() {
            return Some(Complete::Repeat);
        }
        (self.produced() >= self.max_tokens).then_some(Complete::Length)
    }

    pub(crate) fn usage(&self, now: Instant) -> Usage {
        let clock = &self.clock;
        let span = |from: Option<Instant>, to: Option<Instant>| {
            from.map_or(0, |from| {
                to.unwrap_or(now)
                    .saturating_duration_since(from)
                    .as_micros() as u64
            })
        };
        Usage {
            prompt_tokens: self.prompt,
            completion_tokens: self.produced(),
            queued_us: span(Some(clock.submitted), clock.first_row_at),
            prefill_us: span(clock.first_row_at, clock.first_token_at),
            decode_us: span(clock.first_token_at, None),
            ..Usage::default()
        }
    }

    fn end(&self, now: Instant, finish: FinishReason, reason: &'static str) -> End {
        End {
            finish,
            failure: None,
            usage: self.usage(now),
            detail: Detail {
                seed: Some(self.choices.seed()),
                reason,
                code: None,
                stop: None,
                tail: None,
                max_tokens: self.is_capped.then_some(self.max_tokens),
                preemptions: self.preemptions,
                told: self.choices.told().map(Box::new),
            },
        }
    }

    /// The end by itself.
    pub(crate) fn end_complete(&self, now: Instant, why: &Complete) -> End {
        match why {
            Complete::Stop(token) => {
                let mut end = self.end(now, FinishReason::Stop, "stop");
                end.detail.stop = Some(Stop::Token(*token));
                end
            }
            Complete::Text => {
                let mut end = self.end(now, FinishReason::Stop, "stop");
                if let Some(found) = self.outbox.found() {
                    end.detail.stop = Some(Stop::Text(found.stop.clone()));
                    end.detail.tail = (!found.tail.is_empty()).then(|| found.tail.clone());
                }
                end
            }
            Complete::Repeat => self.end(now, FinishReason::Length, "repeat"),
            Complete::Constraint => self.end(now, FinishReason::Stop, "constraint_complete"),
            Complete::Length => self.end(now, FinishReason::Length, "length"),
        }
    }

    /// The end by an error of the engine, or by a wish or a clock.
    pub(crate) fn end_by(&self, now: Instant, error: Error) -> End {
        let (finish, reason) = manner(error.code);
        let mut end = self.end(now, finish, reason);
        end.detail.code = Some(error.code);
        end.failure = Some(Failure::Engine(error));
        end
    }

    /// The end by somebody's wish.
    pub(crate) fn end_cancelled(&self, now: Instant, why: Cancel) -> End {
        match why {
            Cancel::Stop => self.end(now, FinishReason::Stop, "stop"),
            Cancel::Host | Cancel::Abandon => self.end_by(now, cancelled()),
        }
    }
}

/// What a reader waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TokenTime {
    /// From submit.
    First(Duration),
    /// From the token before.
    Next(Duration),
}

/// What a choice did.
pub(crate) struct Sampled {
    /// Something went to the reader's queue.
    pub(crate) has_news: bool,
    /// `min_tokens` had to give way.
    pub(crate) min_tokens_ignored: bool,
}

fn bad_row(fault: RowFault, position: u32) -> Error {
    let message = format!("the logits of position {position} cannot be sampled");
    Error::new(fault.code(), "", message)
}

/// Whether a look at the reader changed something that is counted.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum PauseChange {
    None,
    Paused,
}

/// The finish and the reason that go with a code.
pub(crate) fn manner(code: Code) -> (FinishReason, &'static str) {
    match code {
        Code::Cancelled => (FinishReason::Cancelled, "cancelled"),
        Code::Shutdown => (FinishReason::Cancelled, "shutdown"),
        Code::DeadlineQueue | Code::DeadlineFirstToken | Code::DeadlineTotal => {
            (FinishReason::Cancelled, "deadline")
        }
        Code::ConsumerStalled => (FinishReason::Cancelled, "consumer_stalled"),
        _ => (FinishReason::Error, "error"),
    }
}

pub(crate) fn cancelled() -> Error {
    Error::new(Code::Cancelled, "", "the request was cancelled")
}

/// What a deadline says.
pub(crate) fn expired(code: Code) -> Error {
    let message = match code {
        Code::DeadlineQueue => "the deadline for starting passed",
        Code::DeadlineFirstToken => "the deadline for the first token passed",
        Code::ConsumerStalled => "nobody read the output for too long",
        _ => "the deadline of the request passed",
    };
    Error::new(code, "", message)
}

/// The earlier of those that are set.
pub(crate) fn earliest<const N: usize>(times: [Option<Instant>; N]) -> Option<Instant> {
    times.into_iter().flatten().min()
}
