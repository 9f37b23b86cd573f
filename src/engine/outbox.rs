//! Tokens of one sequence on their way to its reader: held back for a stop string, or to go in larger parts.
//!
//! In: chosen tokens. Out: spans for the queue, and the end that a stop string makes. A request that wants neither
//! hands its tokens on one by one and keeps nothing here.

#![forbid(unsafe_code)]

use std::sync::Arc;

use super::delivery::Delivery;
use super::queue::NewToken;
use super::request::{Request, Tokens};
use super::sampling::stops::{Found, Stops};

/// See the module.
#[derive(Debug)]
pub(crate) struct Outbox {
    stops: Option<Box<Stops>>,
    interval: usize,
    waiting: Tokens,
    /// Of those waiting, the ones that wait for company only.
    free: usize,
    has_begun: bool,
    found: Option<TextStop>,
}

/// A stop string that ended an output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TextStop {
    pub(crate) stop: String,
    /// Text of the output behind the last token that was delivered.
    pub(crate) tail: String,
}

impl Outbox {
    pub(crate) fn new(request: &Request) -> Self {
        let stops = request.stop_strings.as_ref();
        Self {
            stops: stops.map(|wish| Box::new(Stops::new(wish))),
            interval: request.stream_interval as usize,
            waiting: Tokens::default(),
            free: 0,
            has_begun: false,
            found: None,
        }
    }

    /// Tokens that the reader could have already.
    pub(crate) fn free(&self) -> u32 {
        self.free as u32
    }

    /// The stop string that was found.
    pub(crate) fn found(&self) -> Option<&TextStop> {
        self.found.as_ref()
    }

    /// Takes a token, and hands on what is due; answers whether anything was. `ends` says that this token ends the
    /// output by itself: its text is not searched. With no more than `room` unread nothing waits for company.
    pub(crate) fn push(
        &mut self,
        new: &NewToken<'_>,
        ends: bool,
        room: u32,
        delivery: &Arc<Delivery>,
    ) -> bool {
        if self.stops.is_none() && self.interval <= 1 {
            delivery.queue.push_token(delivery, new);
            return true;
        }
        new.append_to(&mut self.waiting);
        match self.stops.as_deref_mut().filter(|_| !ends) {
            None => self.free = self.waiting.tokens.len(),
            Some(stops) => match stops.accept(new.token) {
                Found::Nothing { free } => self.free += free,
                Found::Stop { free, stop, tail } => {
                    self.free += free;
                    self.waiting.truncate(self.free);
                    self.found = Some(TextStop { stop, tail });
                }
            },
        }
        let is_due = !self.has_begun
            || self.free >= self.interval
            || delivery.unread().saturating_add(self.free()) >= room;
        if self.free == 0 || !is_due {
            return false;
        }
        self.hand_on(self.free, delivery);
        true
    }

    /// Hands on everything: nothing more comes.
    pub(crate) fn flush(&mut self, delivery: &Arc<Delivery>) {
        let count = self.waiting.tokens.len();
        if count > 0 {
            self.hand_on(count, delivery);
        }
    }

    fn hand_on(&mut self, count: usize, delivery: &Arc<Delivery>) {
        self.has_begun = true;
        self.free = self.free.saturating_sub(count);
        let queue = &delivery.queue;
        queue.push_tokens(delivery, &mut self.waiting, count);
    }
}
