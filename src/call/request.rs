//! A prepared request, or bare token ids, becomes the engine's request. What the host says replaces what
//! the client said; what neither said is the model's default.

use std::time::Duration;

use super::constraint;
use super::error::Error;
use crate::engine::constraint::{Constraint, Rules};
use crate::engine::request::{Logprobs, Request, Sampling};
use crate::recipe::{self, Prepared, Stage};

/// What a host wants of the engine. `Default` is "as prepared, else the model's default".
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Submit {
    /// Returned in every event.
    pub tag: u64,
    /// Class 0 (first) ..= 7; `None` is 4.
    pub class: Option<u8>,
    /// For the whole request.
    pub deadline: Option<Duration>,
    /// Until its first row runs.
    pub deadline_queue: Option<Duration>,
    /// Until its first token.
    pub deadline_first_token: Option<Duration>,
    /// 0 = 4096.
    pub max_unread_tokens: u32,
    /// Tokens stay unread until acknowledged.
    pub explicit_ack: bool,
    /// Neither reads nor writes the prefix cache.
    pub no_cache: bool,
    /// Output budget; `Some(0)` only fills the cache.
    pub max_tokens: Option<u32>,
    /// Replaces the prepared one.
    pub temperature: Option<f32>,
    /// Replaces the prepared one.
    pub top_p: Option<f32>,
    /// Off without it.
    pub top_k: Option<u32>,
    /// Off without it.
    pub min_p: Option<f32>,
    /// Replaces the prepared one.
    pub seed: Option<u64>,
    /// Replaces the prepared wish.
    pub logprobs: Option<Logprobs>,
    /// Added to the model's end tokens.
    pub stop_tokens: Vec<u32>,
    /// Go on after the end tokens.
    pub ignore_eos: bool,
    /// Replaces the prepared constraint.
    pub rules: Option<Rules>,
    /// Where the constraint starts; `None`: behind the reasoning, if there is any.
    pub constraint_start: Option<ConstraintStart>,
}

/// Where a host wants a constraint to start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConstraintStart {
    /// With the first token.
    AtOnce,
    /// Behind the reasoning.
    AfterThinking,
    /// Behind these ids; once `bound` appears the rest of them is forced.
    After {
        /// At least one id.
        trigger: Vec<u32>,
        /// Ends the free text.
        bound: Option<u32>,
    },
}

/// The request for bare token ids. Refused where a constraint starts behind a reasoning that nothing is known of.
pub fn of_tokens(prompt: Vec<u32>, submit: Submit) -> Result<Request, Error> {
    let constraint = constraint::of_tokens(submit.rules.clone(), submit.constraint_start.as_ref())?;
    Ok(of_both(prompt, constraint, submit))
}

fn of_both(prompt: Vec<u32>, constraint: Option<Constraint>, submit: Submit) -> Request {
    Request {
        prompt,
        max_tokens: submit.max_tokens,
        sampling: Sampling {
            temperature: submit.temperature.unwrap_or(1.0),
            top_k: submit.top_k.unwrap_or(0),
            top_p: submit.top_p.unwrap_or(1.0),
            min_p: submit.min_p.unwrap_or(0.0),
            seed: submit.seed,
        },
        stop_tokens: submit.stop_tokens,
        ignore_eos: submit.ignore_eos,
        logprobs: submit.logprobs.unwrap_or_default(),
        class: submit.class.unwrap_or(4),
        deadline: submit.deadline,
        deadline_queue: submit.deadline_queue,
        deadline_first_token: submit.deadline_first_token,
        max_unread_tokens: submit.max_unread_tokens,
        explicit_ack: submit.explicit_ack,
        no_cache: submit.no_cache,
        constraint,
        tag: submit.tag,
    }
}

/// The request for a prepared one. Refused without a tokenizer, and with images that are not there yet. `context` is the engine's: what a request does
/// not say about its length is what there is room for.
pub fn of_prepared(prepared: &Prepared, submit: Submit, context: u32) -> Result<Request, Error> {
    let refuse = |stage, param: &str, message: &str| {
        Err(Error::recipe(recipe::Error::new(stage, param, message)))
    };
    if prepared.tokens.is_empty() {
        return refuse(
            Stage::State,
            "",
            "the recipe has no tokenizer, so the request has no token ids",
        );
    }
    let pending = pending_images(prepared);
    if pending > 0 {
        return refuse(Stage::State, "", &format!("{pending} images are pending"));
    }
    let start = submit.constraint_start.as_ref();
    let constraint = constraint::of_prepared(prepared, submit.rules.clone(), start)?;
    let wishes = &prepared.inference;
    let logprobs = match wishes.top_logprobs {
        Some(top) if top > 0 && wishes.logprobs => Logprobs::Top(u32::from(top)),
        _ if wishes.logprobs => Logprobs::Sampled,
        _ => Logprobs::Off,
    };
    let max_tokens = match submit.max_tokens {
        Some(tokens) => tokens,
        None => prepared.max_tokens_within(context).map_err(Error::recipe)?,
    };
    let submit = Submit {
        max_tokens: Some(max_tokens),
        temperature: submit.temperature.or(Some(wishes.temperature)),
        top_p: submit.top_p.or(Some(wishes.top_p)),
        seed: submit.seed.or(wishes.seed),
        logprobs: submit.logprobs.or(Some(logprobs)),
        ..submit
    };
    Ok(of_both(prepared.tokens.clone(), constraint, submit))
}

/// Images of the input whose bytes are not there: all of them, until they can be resolved. A size that is known
/// beforehand makes no difference.
pub fn pending_images(prepared: &Prepared) -> usize {
    prepared.images.iter().filter(|i| i.is_placed).count()
}
