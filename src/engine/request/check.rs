//! The limits of a request's fields (`engine.md` section 3). Each error names its field.

#![forbid(unsafe_code)]

use std::collections::HashSet;
use std::fmt::Display;

use super::{Bounds, Logprobs, Request};
use crate::engine::constraint::{Constraint, Start};
use crate::engine::error::{Code, Error};

const MAX_LOGPROBS: u32 = 1000;
const MAX_STOP_TOKENS: usize = 64;
const MAX_BIASED: usize = 1024;
const MAX_BAD_WORDS: usize = 256;
const MAX_REPORTED: usize = 128;
const MAX_PROMPT_LOGPROBS: u32 = 64;
const MAX_STOP_STRINGS: usize = 16;
const MAX_STOP_BYTES: usize = 256;
/// Ids of a trigger, of the end of a reasoning, and of a repeated pattern.
const MAX_PATTERN: usize = 64;
const MAX_CHOICE: u8 = 63;

/// Fields that stand for themselves.
pub(super) fn numbers(request: &Request) -> Result<(), Error> {
    let sampling = &request.sampling;
    // Written so that NaN is refused.
    let rules = [
        (
            "temperature",
            sampling.temperature,
            (0.0..=1000.0).contains(&sampling.temperature),
            "0 to 1000",
        ),
        (
            "top_p",
            sampling.top_p,
            sampling.top_p > 0.0 && sampling.top_p <= 1.0,
            "above 0, up to 1",
        ),
        (
            "min_p",
            sampling.min_p,
            (0.0..=1.0).contains(&sampling.min_p),
            "0 to 1",
        ),
        (
            "presence_penalty",
            sampling.presence_penalty,
            (-2.0..=2.0).contains(&sampling.presence_penalty),
            "-2 to 2",
        ),
        (
            "frequency_penalty",
            sampling.frequency_penalty,
            (-2.0..=2.0).contains(&sampling.frequency_penalty),
            "-2 to 2",
        ),
        (
            "repetition_penalty",
            sampling.repetition_penalty,
            sampling.repetition_penalty > 0.0 && sampling.repetition_penalty <= 10.0,
            "above 0, up to 10",
        ),
    ];
    if let Some((name, value, _, wanted)) = rules.into_iter().find(|rule| !rule.2) {
        return Err(invalid(name, value, wanted));
    }
    if sampling.top_k > i32::MAX as u32 {
        return Err(invalid("top_k", sampling.top_k, "0 to 2147483647"));
    }
    if sampling.choice_base > MAX_CHOICE {
        return Err(invalid("choice_base", sampling.choice_base, "0 to 63"));
    }
    if let Logprobs::Top(count) = request.logprobs
        && count > MAX_LOGPROBS
    {
        return Err(invalid("logprobs", count, "0 to 1000"));
    }
    if request.reporting.tail_mass && request.logprobs == Logprobs::Off {
        return Err(invalid("tail_mass", true, "logprobs beside it"));
    }
    if let Some(prompt) = request.reporting.prompt
        && prompt.top > MAX_PROMPT_LOGPROBS
    {
        return Err(invalid("prompt_logprobs", prompt.top, "0 to 64"));
    }
    if let Some(guard) = request.repeat_guard {
        if !(1..=MAX_PATTERN as u32).contains(&guard.pattern) {
            return Err(invalid(
                "repeat_guard",
                guard.pattern,
                "a pattern of 1 to 64 tokens",
            ));
        }
        if guard.count < 2 {
            return Err(invalid("repeat_guard", guard.count, "a count of 2 or more"));
        }
    }
    if request.stream_interval == 0 {
        return Err(invalid("stream_interval", 0, "1 or more"));
    }
    if request.class > 7 {
        return Err(invalid("priority", request.class, "class 0 to 7"));
    }
    stop_strings(request)
}

fn stop_strings(request: &Request) -> Result<(), Error> {
    let Some(stops) = &request.stop_strings else {
        return Ok(());
    };
    let name = "stop_strings";
    if stops.strings.is_empty() || stops.strings.len() > MAX_STOP_STRINGS {
        return Err(invalid(name, stops.strings.len(), "1 to 16 texts"));
    }
    match stops
        .strings
        .iter()
        .find(|string| string.is_empty() || string.len() > MAX_STOP_BYTES)
    {
        Some(string) => Err(invalid(name, string.len(), "texts of 1 to 256 bytes")),
        None => Ok(()),
    }
}

/// Fields that name tokens.
pub(super) fn ids(request: &Request, bounds: &Bounds) -> Result<(), Error> {
    let vocab = bounds.vocab;
    if request.prompt.is_empty() {
        return Err(Error::new(
            Code::InvalidPrompt,
            "tokens",
            "the prompt has no tokens",
        ));
    }
    if let Some(at) = request.prompt.iter().position(|&id| id >= vocab) {
        return Err(Error::new(
            Code::InvalidPrompt,
            "tokens",
            format!("prompt token {at} is outside the vocabulary of {vocab}"),
        ));
    }
    let sampling = &request.sampling;
    at_most(
        "stop_tokens",
        request.stop_tokens.len(),
        MAX_STOP_TOKENS,
        "ids",
    )?;
    known("stop_tokens", vocab, request.stop_tokens.iter().copied())?;

    at_most("logit_bias", sampling.logit_bias.len(), MAX_BIASED, "ids")?;
    known("logit_bias", vocab, sampling.logit_bias.iter().map(|b| b.0))?;
    let mut biased = HashSet::new();
    for &(id, bias) in &sampling.logit_bias {
        if !(-100.0..=100.0).contains(&bias) {
            return Err(invalid("logit_bias", bias, "-100 to 100"));
        }
        if !biased.insert(id) {
            return Err(invalid("logit_bias", id, "each id once"));
        }
    }
    if let Some(allowed) = &sampling.allowed_tokens {
        if allowed.is_empty() {
            return Err(Error::new(
                Code::InvalidParam,
                "allowed_tokens",
                "allowed_tokens allows no token at all",
            ));
        }
        known("allowed_tokens", vocab, allowed.iter().copied())?;
    }
    at_most(
        "bad_words",
        sampling.bad_words.len(),
        MAX_BAD_WORDS,
        "words",
    )?;
    if sampling.bad_words.iter().any(Vec::is_empty) {
        return Err(Error::new(
            Code::InvalidParam,
            "bad_words",
            "bad_words has a word without tokens",
        ));
    }
    known(
        "bad_words",
        vocab,
        sampling.bad_words.iter().flatten().copied(),
    )?;
    known(
        "golden_tokens",
        vocab,
        sampling.golden_tokens.iter().flatten().copied(),
    )?;
    if let Some(think) = &sampling.think {
        if think.end.is_empty() || think.end.len() > MAX_PATTERN {
            return Err(invalid("think", think.end.len(), "an end of 1 to 64 ids"));
        }
        known("think", vocab, think.end.iter().copied())?;
    }
    at_most(
        "logprob_tokens",
        request.reporting.tokens.len(),
        MAX_REPORTED,
        "ids",
    )?;
    known(
        "logprob_tokens",
        vocab,
        request.reporting.tokens.iter().copied(),
    )?;
    start(request, bounds)
}

fn known(name: &str, vocab: u32, mut ids: impl Iterator<Item = u32>) -> Result<(), Error> {
    match ids.find(|id| *id >= vocab) {
        None => Ok(()),
        Some(id) => Err(Error::new(
            Code::InvalidParam,
            name,
            format!("{name} has \"{id}\", which is outside the vocabulary of {vocab}"),
        )),
    }
}

fn start(request: &Request, bounds: &Bounds) -> Result<(), Error> {
    let Some(Constraint {
        start: Start::After { trigger, bound },
        ..
    }) = &request.constraint
    else {
        return Ok(());
    };
    if trigger.is_empty() || trigger.len() > MAX_PATTERN {
        return Err(invalid("trigger", trigger.len(), "1 to 64 ids"));
    }
    let ids = trigger.iter().map(|id| ("trigger", id));
    let mut ids = ids.chain(bound.iter().map(|id| ("bound", id)));
    match ids.find(|(_, id)| **id >= bounds.vocab) {
        None => Ok(()),
        Some((param, id)) => Err(invalid(param, id, "an id of the vocabulary")),
    }
}

/// Fields that are measured against the length of the request.
pub(super) fn lengths(request: &Request, bounds: &Bounds) -> Result<(), Error> {
    let sampling = &request.sampling;
    let prompt = u32::try_from(request.prompt.len()).unwrap_or(u32::MAX);
    // Of what was asked for, not of what the pools cap it to.
    let most = request
        .max_tokens
        .unwrap_or(bounds.max_context.saturating_sub(prompt));
    if sampling.min_tokens > most {
        return Err(Error::new(
            Code::InvalidParam,
            "min_tokens",
            format!(
                "min_tokens {} exceeds max_tokens {most}",
                sampling.min_tokens
            ),
        ));
    }
    at_most(
        "golden_tokens",
        sampling.golden_tokens.len(),
        bounds.max_context as usize,
        "ids",
    )?;
    if let Some(wish) = request.reporting.prompt
        && wish.start >= prompt
    {
        return Err(Error::new(
            Code::InvalidParam,
            "prompt_logprobs",
            format!(
                "prompt_logprobs start at {}, behind the {prompt} prompt tokens",
                wish.start
            ),
        ));
    }
    Ok(())
}

fn at_most(name: &str, count: usize, most: usize, what: &str) -> Result<(), Error> {
    if count <= most {
        return Ok(());
    }
    Err(invalid(name, count, &format!("at most {most} {what}")))
}

fn invalid(param: &str, value: impl Display, wanted: &str) -> Error {
    Error::new(
        Code::InvalidParam,
        param,
        format!("{param} is \"{value}\", wanted {wanted}"),
    )
}
