//! A prepared request, or bare token ids, becomes the engine's request. What the host says replaces what
//! the client said; what neither said is the model's default.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use super::constraint;
use super::error::Error;
use crate::engine::constraint::{Constraint, Rules};
use crate::engine::request::{
    Logprobs, RepeatGuard, Reporting, Request, Sampling, StopStrings, Think,
};
use crate::engine::sampling::stops::TokenText;
use crate::engine::{self, Code};
use crate::recipe::tokenizer::Tokenizer;
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
    /// Replaces the prepared one.
    pub presence_penalty: Option<f32>,
    /// Replaces the prepared one.
    pub frequency_penalty: Option<f32>,
    /// Off without it.
    pub repetition_penalty: Option<f32>,
    /// Replaces the prepared one.
    pub logit_bias: Option<Vec<(u32, f32)>>,
    /// All without it.
    pub allowed_tokens: Option<Vec<u32>>,
    /// Runs of ids that are not completed.
    pub bad_words: Vec<Vec<u32>>,
    /// No id that ends the output comes before.
    pub min_tokens: u32,
    /// Ids in place of chosen ones.
    pub golden_tokens: Vec<Option<u32>>,
    /// Limits the reasoning; without an end it is the prepared request's.
    pub think: Option<Think>,
    /// Index in the random counter.
    pub choice_base: u8,
    /// What the end tells of the tokens.
    pub reporting: Reporting,
    /// Texts that end the output.
    pub stop_strings: Vec<String>,
    /// Whether the one that was found belongs to the output.
    pub include_stop: bool,
    /// Ends an output that repeats itself.
    pub repeat_guard: Option<RepeatGuard>,
    /// Tokens that are delivered together; `None` is 1.
    pub stream_interval: Option<u32>,
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

/// The request for bare token ids, whose text is `tokenizer`'s. Refused where a constraint starts behind a reasoning
/// that nothing is known of, and where there are stop strings and no tokenizer.
pub fn of_tokens(
    prompt: Vec<u32>,
    submit: Submit,
    tokenizer: Option<Arc<Tokenizer>>,
) -> Result<Request, Error> {
    let think = submit.think.as_ref();
    if think.is_some_and(|think| think.end.is_empty()) {
        let message = "what ends the reasoning is not known of bare token ids: say its \"end\"";
        return Err(invalid("think", message));
    }
    // The reasoning's end is where a constraint starts, unless it is told otherwise.
    let behind = think.map(|think| ConstraintStart::After {
        trigger: think.end.clone(),
        bound: None,
    });
    let start = submit
        .constraint_start
        .clone()
        .or(behind.filter(|_| submit.rules.is_some()));
    let constraint = constraint::of_tokens(submit.rules.clone(), start.as_ref())?;
    of_both(prompt, constraint, submit, tokenizer)
}

fn of_both(
    prompt: Vec<u32>,
    constraint: Option<Constraint>,
    submit: Submit,
    tokenizer: Option<Arc<Tokenizer>>,
) -> Result<Request, Error> {
    let stop_strings = match (submit.stop_strings.is_empty(), tokenizer) {
        (true, _) if submit.include_stop => {
            return Err(invalid(
                "include_stop",
                "there are no \"stop_strings\" to include",
            ));
        }
        (true, _) => None,
        (false, Some(text)) => Some(StopStrings {
            strings: submit.stop_strings,
            include: submit.include_stop,
            text,
        }),
        (false, None) => {
            let message = "stop_strings are text, and there is no tokenizer";
            return Err(Error::recipe(recipe::Error::new(
                Stage::State,
                "stop_strings",
                message,
            )));
        }
    };
    Ok(Request {
        prompt,
        max_tokens: submit.max_tokens,
        sampling: Sampling {
            temperature: submit.temperature.unwrap_or(1.0),
            top_k: submit.top_k.unwrap_or(0),
            top_p: submit.top_p.unwrap_or(1.0),
            min_p: submit.min_p.unwrap_or(0.0),
            seed: submit.seed,
            presence_penalty: submit.presence_penalty.unwrap_or(0.0),
            frequency_penalty: submit.frequency_penalty.unwrap_or(0.0),
            repetition_penalty: submit.repetition_penalty.unwrap_or(1.0),
            logit_bias: submit.logit_bias.unwrap_or_default(),
            allowed_tokens: submit.allowed_tokens,
            bad_words: submit.bad_words,
            min_tokens: submit.min_tokens,
            golden_tokens: submit.golden_tokens,
            think: submit.think,
            choice_base: submit.choice_base,
        },
        stop_tokens: submit.stop_tokens,
        ignore_eos: submit.ignore_eos,
        logprobs: submit.logprobs.unwrap_or_default(),
        reporting: submit.reporting,
        stop_strings,
        repeat_guard: submit.repeat_guard,
        stream_interval: submit.stream_interval.unwrap_or(1),
        class: submit.class.unwrap_or(4),
        deadline: submit.deadline,
        deadline_queue: submit.deadline_queue,
        deadline_first_token: submit.deadline_first_token,
        max_unread_tokens: submit.max_unread_tokens,
        explicit_ack: submit.explicit_ack,
        no_cache: submit.no_cache,
        constraint,
        tag: submit.tag,
    })
}

/// `{"id": bias}` as pairs.
pub(crate) fn logit_bias(value: &Value) -> Option<Vec<(u32, f32)>> {
    let pairs = value.as_object()?.iter();
    pairs
        .map(|(id, bias)| Some((id.parse().ok()?, bias.as_f64()? as f32)))
        .collect()
}

/// The text of ids: special tokens have none, as in decoded text.
impl TokenText for Tokenizer {
    fn text(&self, id: u32) -> Option<&[u8]> {
        self.token_bytes(id).filter(|_| !self.is_added(id))
    }
}

fn invalid(param: &str, message: &str) -> Error {
    Error::engine(engine::Error::new(Code::InvalidParam, param, message))
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
    // Kept by the recipe only if its host asks for them.
    let extra = &wishes.engine;
    let logit_bias = match (submit.logit_bias, &extra.logit_bias) {
        (Some(given), _) => Some(given),
        (None, None) => None,
        (None, Some(asked)) => Some(logit_bias(&asked.to_value()).ok_or_else(|| {
            invalid(
                "logit_bias",
                "logit_bias must be an object of numbers by token ids",
            )
        })?),
    };
    let think = match submit.think {
        // Without a reasoning there is none that could be too long.
        Some(think) if think.end.is_empty() => {
            constraint::reasoning_end(prepared)?.map(|end| Think {
                end: vec![end],
                ..think
            })
        }
        think => think,
    };
    let submit = Submit {
        max_tokens: Some(max_tokens),
        temperature: submit.temperature.or(Some(wishes.temperature)),
        top_p: submit.top_p.or(Some(wishes.top_p)),
        top_k: submit.top_k.or(extra.top_k),
        min_p: submit.min_p.or(extra.min_p),
        seed: submit.seed.or(wishes.seed),
        presence_penalty: submit.presence_penalty.or(extra.presence_penalty),
        frequency_penalty: submit.frequency_penalty.or(extra.frequency_penalty),
        logit_bias,
        think,
        logprobs: submit.logprobs.or(Some(logprobs)),
        ..submit
    };
    let tokenizer = prepared.tokenizer.clone();
    of_both(prepared.tokens.clone(), constraint, submit, tokenizer)
}

/// Images of the input whose bytes are not there: all of them, until they can be resolved. A size that is known
/// beforehand makes no difference.
pub fn pending_images(prepared: &Prepared) -> usize {
    prepared.images.iter().filter(|i| i.is_placed).count()
}
