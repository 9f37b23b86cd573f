//! Requests that wait for their grammar, and the threads that compile it.
//!
//! In: checked requests with a constraint. Out: the same with a compiled grammar, as commands for the engine
//! thread, or the reason why there is none. While it waits a request holds neither a slot nor a thread; it may be
//! cancelled, and ends when compiling takes longer than `grammar_timeout_ms`. The compilation itself is stopped by
//! its own limits.

#![forbid(unsafe_code)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::constraint::{
    Cache, Compiled, Found, Grammar, Limits, Ruled, Rules, Spec, TokenTable, Tokens,
};
use super::core::{Command, Compiling, Core, Submission};
use super::pool::Todo;
use super::request::Failure;
use super::sequence::earliest;

/// What there is to do.
pub(super) enum Job {
    /// Make the vocabulary's table that this request needs.
    Index(Box<Submission>),
    /// Compile a grammar.
    Compile {
        spec: Arc<Spec>,
        table: Arc<TokenTable>,
    },
}

/// See the module.
pub(super) struct Grammars {
    cache: Cache<Box<Submission>>,
    todo: Todo<Job>,
    timeout: Duration,
}

impl Grammars {
    pub(super) fn new(core: &Core, todo: Todo<Job>) -> Self {
        let config = &core.config;
        Self {
            cache: Cache::new(Limits::default(), config.grammar_cache_bytes),
            todo,
            timeout: config.grammar_timeout,
        }
    }

    /// A request that needs no grammar, or whose grammar is there; else it comes back as `Err`.
    pub(super) fn ready(
        &self,
        mut submission: Submission,
    ) -> Result<Box<Submission>, Box<Submission>> {
        let grammar = match submission.request.constraint.as_ref().map(|c| &c.grammar) {
            None => return Ok(Box::new(submission)),
            Some(Rules::Compiled(grammar)) => Some(grammar.clone()),
            Some(Rules::Source { spec, tokens }) => tokens
                .made_table()
                .and_then(|table| self.cache.get(spec, &table)),
        };
        match grammar {
            Some(grammar) => {
                rule(&mut submission, grammar);
                Ok(Box::new(submission))
            }
            None => Err(Box::new(submission)),
        }
    }

    /// Lets a request that the engine thread knows as deferred wait for its grammar. Never blocks.
    pub(super) fn wait(&self, core: &Core, submission: Box<Submission>) {
        core.tell(Command::Compiling(
            submission.delivery.id,
            compiling(&submission, self.timeout),
        ));
        match source(&submission).map(|(spec, tokens)| (spec, tokens.made_table())) {
            None => core.tell(Command::Submit(submission)),
            Some((_, None)) => self.todo.push(Job::Index(submission)),
            Some((spec, Some(table))) => self.enter(core, submission, spec, table),
        }
    }

    fn enter(
        &self,
        core: &Core,
        submission: Box<Submission>,
        spec: Arc<Spec>,
        table: Arc<TokenTable>,
    ) {
        match self.cache.find(&spec, &table, submission) {
            Found::Ready(grammar, mut submission) => {
                rule(&mut submission, grammar);
                core.tell(Command::Submit(submission));
            }
            Found::Mine => self.todo.push(Job::Compile { spec, table }),
            Found::Later => {}
        }
    }

    /// Does what there is to do, and tells all who wait for it.
    pub(super) fn run(&self, core: &Core, job: Job) {
        match job {
            Job::Index(submission) => {
                let Some((spec, tokens)) = source(&submission) else {
                    return;
                };
                match tokens.table() {
                    Ok(table) => self.enter(core, submission, spec, table),
                    Err(error) => tell(core, submission, &Err(error)),
                }
            }
            Job::Compile { spec, table } => {
                let (compiled, waiters) = self.cache.compile(&spec, &table, |waiter| {
                    core.find(waiter.delivery.id).is_some()
                });
                let Some(compiled) = compiled else { return };
                for submission in waiters {
                    tell(core, submission, &compiled);
                }
            }
        }
    }
}

/// What a request wants compiled.
fn source(submission: &Submission) -> Option<(Arc<Spec>, Tokens)> {
    match &submission.request.constraint.as_ref()?.grammar {
        Rules::Source { spec, tokens } => Some((spec.clone(), tokens.clone())),
        Rules::Compiled(_) => None,
    }
}

fn tell(core: &Core, mut submission: Box<Submission>, compiled: &Compiled) {
    let command = match compiled {
        Ok(grammar) => {
            rule(&mut submission, grammar.clone());
            Command::Submit(submission)
        }
        Err(error) => {
            let mut error = error.clone();
            if let Some(constraint) = &submission.request.constraint {
                constraint.param.clone_into(&mut error.param);
            }
            Command::Refuse(submission.delivery.id, Failure::Engine(error))
        }
    };
    core.tell(command);
}

/// Moves the constraint to where the sequence takes it from.
fn rule(submission: &mut Submission, grammar: Arc<Grammar>) {
    submission.ruled = submission
        .request
        .constraint
        .take()
        .map(|constraint| Ruled {
            grammar,
            start: constraint.start,
            reserved: constraint.reserved,
        });
}

/// Until when a request waits, and for what it would end.
fn compiling(submission: &Submission, timeout: Duration) -> Compiling {
    let at = |time: Option<Duration>| time.and_then(|d| submission.submitted.checked_add(d));
    let request = &submission.request;
    Compiling {
        grammar: Instant::now().checked_add(timeout),
        queue: at(request.deadline_queue),
        first_token: at(request.deadline_first_token),
        total: earliest([at(request.deadline), submission.deadline]),
    }
}
