//! Sampling fields of all protocols: checked in one order, then resolved.

use super::warnings::Warnings;
use super::{Context, refused, tools};
use crate::recipe::encoding::Encoding;
use crate::recipe::error::Error;
use crate::recipe::options::InferenceOptions;
use crate::recipe::settings::Settings;

/// The fields as a request gave them.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sampling {
    pub(super) choices: Option<u8>,
    pub(super) presence_penalty: Option<f32>,
    pub(super) frequency_penalty: Option<f32>,
    pub(super) temperature: Option<f32>,
    pub(super) top_p: Option<f32>,
    pub(super) logprobs: bool,
    pub(super) top_logprobs: Option<u8>,
    pub(super) max_tokens: Option<u32>,
    pub(super) seed: Option<u64>,
}

impl Sampling {
    /// Checks the fields and resolves what depends on the mode.
    pub(super) fn resolve(
        &self,
        context: Context<'_>,
        thinking: bool,
        parses_tool_calls: bool,
        warnings: &mut Warnings,
    ) -> Result<InferenceOptions, Error> {
        self.check(context, thinking)?;
        let temperature = if thinking {
            1.0
        } else {
            self.temperature.unwrap_or(1.0)
        };
        let asked = self.top_p.unwrap_or(1.0);
        let top_p = match (context.encoding, thinking) {
            (Encoding::V41, true) => asked.max(0.95),
            (Encoding::V41, false) => 1.0,
            (Encoding::V4, true) if parses_tool_calls => 0.95,
            (Encoding::V4, true) => 1.0,
            (Encoding::V4, false) => asked,
        };
        for (name, asked, used) in [
            ("temperature", self.temperature, temperature),
            ("top_p", self.top_p, top_p),
        ] {
            if let Some(asked) = asked.filter(|asked| *asked != used) {
                warnings.add(
                    "ignored_value",
                    name,
                    format!("{asked} was replaced by {used}"),
                );
            }
        }
        let mut inference = InferenceOptions {
            max_tokens: self.max_tokens,
            temperature,
            top_p,
            logprobs: self.logprobs,
            top_logprobs: self.top_logprobs,
            seed: self.seed,
            choices: self.choices.unwrap_or(1),
            ..InferenceOptions::default()
        };
        if context.settings.engine_params {
            inference.engine.presence_penalty = self.presence_penalty;
            inference.engine.frequency_penalty = self.frequency_penalty;
        } else {
            for (name, penalty) in [
                ("presence_penalty", self.presence_penalty),
                ("frequency_penalty", self.frequency_penalty),
            ] {
                if penalty.is_some_and(|penalty| penalty != 0.0) {
                    warnings.add("ignored_value", name, "penalties have no effect");
                }
            }
        }
        Ok(inference)
    }

    /// Checks the fields, in the order of the official API.
    pub(super) fn check(&self, context: Context<'_>, thinking: bool) -> Result<(), Error> {
        let settings = context.settings;
        let most = settings.max_choices;
        if self.choices.is_some_and(|n| n == 0 || n > most) {
            let message = if most == 1 {
                "Invalid n value (currently only n = 1 is supported)".to_owned()
            } else {
                format!("Invalid n value, the valid range of n is [1, {most}]")
            };
            return Err(refused("n", message));
        }
        range(
            "presence_penalty",
            self.presence_penalty,
            -2.0,
            2.0,
            "[-2, 2]",
        )?;
        range(
            "frequency_penalty",
            self.frequency_penalty,
            -2.0,
            2.0,
            "[-2, 2]",
        )?;
        range("temperature", self.temperature, 0.0, 2.0, "[0, 2]")?;
        // The smallest positive number stands for the open end.
        range("top_p", self.top_p, f32::from_bits(1), 1.0, "(0, 1.0]")?;
        if let Some(top_logprobs) = self.top_logprobs {
            if !self.logprobs {
                let message = "Invalid top_logprobs and logprobs value, logprobs must be set to true if top_logprobs is used.";
                return Err(refused("top_logprobs", message));
            }
            if top_logprobs > 20 {
                let message =
                    "Invalid top_logprobs value, the valid range of top_logprobs is [0, 20].";
                return Err(refused("top_logprobs", message));
            }
        }
        let bound = longest_output(settings, thinking);
        if self
            .max_tokens
            .is_some_and(|max| !(1..=bound).contains(&max))
        {
            let message =
                format!("Invalid max_tokens value, the valid range of max_tokens is [1, {bound}]");
            return Err(refused("max_tokens", message));
        }
        if self.seed.is_some_and(|seed| seed >= 1 << 63) {
            let message = "Invalid seed value, the valid range of seed is [0, 2^63)";
            return Err(refused("seed", message));
        }
        Ok(())
    }
}

/// The largest `max_tokens` of a request.
pub(super) fn longest_output(settings: &Settings, thinking: bool) -> u32 {
    if thinking {
        settings.thinking_max_tokens_upper_bound
    } else {
        settings.non_thinking_max_tokens_upper_bound
    }
}

/// Checks the stop sequences of a list at `param`. The texts call it `stop` whatever the protocol does.
pub(super) fn stop_sequences(list: &[&str], param: &str) -> Result<Vec<String>, Error> {
    if list.len() > 16 {
        let message = format!("Stop string array too long: {}", list.len());
        return Err(refused(param, message));
    }
    if let Some(at) = list.iter().position(|text| text.is_empty()) {
        let mut error = tools::empty_string(&format!("stop[{at}]"));
        error.param = format!("{param}[{at}]");
        return Err(error);
    }
    Ok(list.iter().map(|text| (*text).to_owned()).collect())
}

/// Refuses a value outside `low..=high`, NaN included.
fn range(name: &str, value: Option<f32>, low: f32, high: f32, text: &str) -> Result<(), Error> {
    if value.is_none_or(|value| (low..=high).contains(&value)) {
        return Ok(());
    }
    let message = format!("Invalid {name} value, the valid range of {name} is {text}");
    Err(refused(name, message))
}
