//! Makes requests out of what hosts submit: parsing, rendering, tokenising.
//!
//! In: jobs in order of arrival, on the preparation threads. Out: commands for the engine thread. A job that
//! panics or fails ends its request; one whose request has ended meanwhile is not run.

#![forbid(unsafe_code)]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

use super::Prepared;
use super::core::{Command, Core, Submission};
use super::delivery::Delivery;
use super::draw_seed;
use super::error::{Code, Error};
use super::grammars::Grammars;
use super::request::Failure;

/// One deferred request.
pub(super) struct Job {
    pub(super) delivery: Arc<Delivery>,
    pub(super) submitted: Instant,
    pub(super) deadline: Option<Instant>,
    pub(super) run: Box<dyn FnOnce() -> Prepared + Send>,
}

/// Runs one job.
pub(super) fn run(core: &Core, grammars: &Grammars, job: Job) {
    let Job {
        delivery,
        submitted,
        deadline,
        run,
    } = job;
    if core.find(delivery.id).is_none() {
        // Cancelled or late.
        return;
    }
    let prepared = catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|_| {
        Err(Failure::Engine(Error::new(
            Code::WorkerPanic,
            "",
            "the preparation of this request panicked",
        )))
    });
    let checked = prepared.and_then(|(request, adapter)| {
        delivery.equip(request.explicit_ack, adapter);
        let seed = draw_seed(&request).map_err(Failure::Engine)?;
        let budget = request.check(&core.bounds).map_err(Failure::Engine)?;
        Ok((request, seed, budget))
    });
    match checked {
        Err(failure) => core.tell(Command::Refuse(delivery.id, failure)),
        Ok((request, seed, budget)) => {
            let submission = Submission {
                delivery,
                request,
                budget,
                seed,
                submitted,
                deadline,
                ruled: None,
            };
            match grammars.ready(submission) {
                Ok(submission) => core.tell(Command::Submit(submission)),
                Err(submission) => grammars.wait(core, submission),
            }
        }
    }
}
