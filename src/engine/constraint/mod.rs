//! Output held to a grammar (`engine.md` section 14).
//!
//! A [`Spec`] says what a text must look like; compiled for a [`TokenTable`] it is a [`Grammar`]; a grammar makes
//! [`Matcher`]s, one a sequence, which say before each choice what may come next. `spec.rs` turns every kind of
//! spec into one of two sources, `cache.rs` compiles a source once, `guide.rs` is the matcher of one sequence with
//! its beginning (at once, or behind the reasoning) and its end. A matcher is a function of the accepted tokens,
//! so preemption may drop it and replay them.
//!
//! Cost: compiling takes milliseconds, on threads of its own; a mask some tens of microseconds and a token a few,
//! for constrained sequences only.

#![forbid(unsafe_code)]

mod cache;
mod ebnf;
mod guide;
mod guided;
pub mod plain;
mod regex;
mod spec;
mod table;
mod tag;
mod tools;

use std::sync::{Arc, mpsc};
use std::time::Duration;

pub use guided::{Grammar, Guided};
pub use spec::Spec;
pub use table::{Token, TokenTable, Tokens, Vocabulary};
pub use tools::{Markup, Opening, Tool, ToolCalls};

pub(crate) use cache::{Cache, Compiled, Found};
pub(crate) use guide::{Guide, Ruled, Step};
pub(crate) use spec::Source;

use super::error::{Code, Error};
use super::sync;

/// Says what may come next in one text. State is a function of the accepted tokens.
pub trait Matcher: Send {
    /// Sets the bit of each id that may come next and clears all others. End tokens are not its matter.
    fn mask(&mut self, out: &mut [u32]) -> Result<(), Fault>;
    /// Takes one token. One that the mask does not allow is [`Fault::Refused`], and the matcher is dead.
    fn accept(&mut self, token: u32) -> Result<(), Fault>;
    /// How many of these could be accepted one after another; nothing is.
    fn validate(&mut self, tokens: &[u32]) -> usize;
    /// Takes the last tokens back.
    fn rollback(&mut self, count: usize) -> Result<(), Fault>;
    /// The token that must come next, if there is only one and the text may not end here.
    fn forced(&mut self) -> &[u32];
    /// An independent copy.
    fn fork(&self) -> Box<dyn Matcher>;
    /// Whether the text so far satisfies the grammar.
    fn is_complete(&mut self) -> bool;
    /// Whether anything may follow. `true` is no promise; `false` is.
    fn can_continue(&mut self) -> bool;
    /// Whether it has failed for good.
    fn is_dead(&self) -> bool;
}

/// Why a matcher failed; ends its request only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The grammar does not allow it.
    Refused,
    /// One choice costs more than the limits allow.
    TooComplex,
    /// A bug of the matcher, contained.
    Broken,
    /// It failed before.
    Dead,
}

impl Fault {
    /// As the end of a request tells it.
    pub fn into_error(self) -> Error {
        let (code, message) = match self {
            Self::TooComplex => (
                Code::ConstraintTimeout,
                "the constraint needs more work for one token than is allowed",
            ),
            Self::Refused => (Code::Internal, "the constraint refuses a token it allowed"),
            Self::Broken => (Code::Internal, "the constraint's matcher is broken"),
            Self::Dead => (Code::Internal, "the constraint's matcher has failed before"),
        };
        Error::new(code, "constraint", message)
    }
}

/// What compiling may cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of the source.
    pub source: usize,
    /// Symbols of the compiled grammar.
    pub symbols: usize,
    /// Work for the lexer: about 50 000 a millisecond.
    pub fuel: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            source: 1 << 19,
            symbols: 500_000,
            fuel: 5_000_000,
        }
    }
}

/// A request's constraint.
#[derive(Clone, Debug, PartialEq)]
pub struct Constraint {
    /// What holds.
    pub grammar: Rules,
    /// From where on.
    pub start: Start,
    /// Control tokens that only the grammar may use, not the free text before it.
    pub reserved: Vec<u32>,
    /// Where the request asks for it, for errors.
    pub param: &'static str,
}

impl Constraint {
    /// From the first token on.
    pub fn new(grammar: Rules) -> Self {
        Self {
            grammar,
            start: Start::AtOnce,
            reserved: Vec::new(),
            param: "constraint",
        }
    }
}

/// A grammar, compiled or not yet.
#[derive(Clone, Debug)]
pub enum Rules {
    /// Ready.
    Compiled(Arc<Grammar>),
    /// To be compiled for this vocabulary.
    Source {
        /// What to compile.
        spec: Arc<Spec>,
        /// For whom.
        tokens: Tokens,
    },
}

/// Where a constraint begins.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Start {
    /// With the first token.
    #[default]
    AtOnce,
    /// Behind the first occurrence of these ids. Once `bound` appears, the rest of them is forced.
    After {
        /// At least one id.
        trigger: Vec<u32>,
        /// Ends the free text.
        bound: Option<u32>,
    },
}

impl PartialEq for Rules {
    /// Compiled grammars are equal when they are the same.
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Compiled(a), Self::Compiled(b)) => Arc::ptr_eq(a, b),
            (Self::Source { spec: a, tokens: s }, Self::Source { spec: b, tokens: t }) => {
                a == b && s == t
            }
            (Self::Compiled(_) | Self::Source { .. }, _) => false,
        }
    }
}

/// How long [`compile`] waits.
const PATIENCE: Duration = Duration::from_secs(10);

/// Compiles within the default limits, on a thread of its own. Blocks.
pub fn compile(spec: Spec, table: Arc<TokenTable>) -> Result<Arc<Grammar>, Error> {
    let (sender, receiver) = mpsc::sync_channel(1);
    let body = move || {
        // Nobody listens any more after the time is up.
        let _ = sender.send(cache::compile(&spec, &table, &Limits::default()));
    };
    sync::spawn_with_stack("fathom-grammar", STACK, body)?;
    receiver.recv_timeout(PATIENCE).unwrap_or_else(|reason| {
        Err(match reason {
            mpsc::RecvTimeoutError::Timeout => timed_out(PATIENCE),
            mpsc::RecvTimeoutError::Disconnected => Fault::Broken.into_error(),
        })
    })
}

/// Grammars are compiled by functions that call themselves, as deep as the rules of a grammar refer to each other.
/// Memory is used as far as they ever go.
pub(super) const STACK: usize = 64 << 20;

/// What an error says when compiling took too long.
pub(super) fn timed_out(limit: Duration) -> Error {
    let message = format!(
        "the constraint was not compiled within {} ms",
        limit.as_millis()
    );
    Error::new(Code::ConstraintTimeout, "constraint", message)
}
