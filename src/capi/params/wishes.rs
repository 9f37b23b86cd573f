//! The keys of `params_json` about sampling, stopping and reports.
//!
//! Only their form is checked here; ranges and ids are the engine's to check, under the same names.

use serde_json::{Map, Value};

use super::{switch, token, wrong};
use crate::call::Submit;
use crate::call::request::logit_bias;
use crate::capi::error::Failed;
use crate::engine::request::{LogprobSource, PromptLogprobs, RepeatGuard, Think};

/// Reads one key; answers whether it is one of these.
pub(super) fn read(
    key: &str,
    value: &Value,
    submit: &mut Submit,
    of_call: bool,
) -> Result<bool, Failed> {
    match key {
        "presence_penalty" => submit.presence_penalty = Some(number(key, value)?),
        "frequency_penalty" => submit.frequency_penalty = Some(number(key, value)?),
        "repetition_penalty" => submit.repetition_penalty = Some(number(key, value)?),
        "min_tokens" => submit.min_tokens = count(key, value)?,
        "choice_base" => {
            let base = value.as_u64().and_then(|base| u8::try_from(base).ok());
            submit.choice_base = base.ok_or_else(|| wrong(key, value, "0 to 63"))?;
        }
        "stream_interval" => submit.stream_interval = Some(count(key, value)?),
        "tail_mass" => submit.reporting.tail_mass = switch(key, value)?,
        "digest" => submit.reporting.digest = switch(key, value)?,
        "allowed_tokens" => submit.allowed_tokens = Some(ids(key, value)?),
        "logprob_tokens" => submit.reporting.tokens = ids(key, value)?,
        "golden_tokens" => submit.golden_tokens = golden(key, value)?,
        "bad_words" => {
            let words = value.as_array().map(|words| {
                let words = words.iter();
                words.map(|word| ids(key, word)).collect::<Result<_, _>>()
            });
            submit.bad_words =
                words.ok_or_else(|| wrong(key, value, "a list of lists of ids"))??;
        }
        "logit_bias" => {
            let bias = logit_bias(value);
            submit.logit_bias =
                Some(bias.ok_or_else(|| wrong(key, value, "an object of numbers by token ids"))?);
        }
        "logprob_source" => {
            submit.reporting.source = match value.as_str() {
                Some("raw") => LogprobSource::Raw,
                Some("processed") => LogprobSource::Processed,
                _ => return Err(wrong(key, value, "\"raw\" or \"processed\"")),
            };
        }
        "prompt_logprobs" => {
            let wish = object(key, value, &["top", "start"])?;
            submit.reporting.prompt = Some(PromptLogprobs {
                top: part(key, wish, "top")?.unwrap_or(0),
                start: part(key, wish, "start")?.unwrap_or(0),
            });
        }
        "repeat_guard" => {
            let wish = object(key, value, &["pattern", "count"])?;
            let needed = |name| {
                part(key, wish, name)?
                    .ok_or_else(|| wrong(key, value, "an object of \"pattern\" and \"count\""))
            };
            submit.repeat_guard = Some(RepeatGuard {
                pattern: needed("pattern")?,
                count: needed("count")?,
            });
        }
        "think" => {
            let wish = object(key, value, &["budget", "end"])?;
            let budget = part(key, wish, "budget")?;
            submit.think = Some(Think {
                budget: budget.ok_or_else(|| wrong(key, value, "an object with a \"budget\""))?,
                end: match wish.get("end") {
                    Some(end) => ids(key, end)?,
                    None => Vec::new(),
                },
            });
        }
        "stop_strings" | "include_stop" if of_call => {
            // The text of a call is its parser's, which looks for the stop sequences of the request.
            return Err(Failed::argument(
                key.to_owned(),
                format!("\"{key}\" is not for calls: stop sequences are said by the request"),
            ));
        }
        "stop_strings" => {
            let strings = value.as_array().map(|strings| strings.iter());
            let strings = strings.and_then(|strings| {
                strings
                    .map(|string| string.as_str().map(str::to_owned))
                    .collect::<Option<Vec<_>>>()
            });
            submit.stop_strings = strings
                .filter(|strings| !strings.is_empty())
                .ok_or_else(|| wrong(key, value, "a list of 1 to 16 texts"))?;
        }
        "include_stop" => submit.include_stop = switch(key, value)?,
        _ => return Ok(false),
    }
    Ok(true)
}

fn number(key: &str, value: &Value) -> Result<f32, Failed> {
    let number = value.as_f64().map(|number| number as f32);
    number.ok_or_else(|| wrong(key, value, "a number"))
}

fn count(key: &str, value: &Value) -> Result<u32, Failed> {
    let count = value.as_u64().and_then(|count| u32::try_from(count).ok());
    count.ok_or_else(|| wrong(key, value, "a whole number"))
}

fn ids(key: &str, value: &Value) -> Result<Vec<u32>, Failed> {
    let ids = value.as_array().map(|ids| ids.iter().map(token));
    ids.and_then(|ids| ids.collect::<Option<Vec<_>>>())
        .ok_or_else(|| wrong(key, value, "a list of token ids"))
}

fn golden(key: &str, value: &Value) -> Result<Vec<Option<u32>>, Failed> {
    let one = |id: &Value| match id {
        Value::Null => Some(None),
        id => token(id).map(Some),
    };
    let ids = value.as_array().map(|ids| ids.iter().map(one));
    ids.and_then(|ids| ids.collect::<Option<Vec<_>>>())
        .ok_or_else(|| wrong(key, value, "a list of token ids and nulls"))
}

/// An object that has only these keys.
fn object<'v>(
    key: &str,
    value: &'v Value,
    names: &[&str],
) -> Result<&'v Map<String, Value>, Failed> {
    let wanted = || format!("an object of \"{}\"", names.join("\" and \""));
    let wish = value
        .as_object()
        .ok_or_else(|| wrong(key, value, &wanted()))?;
    match wish.keys().find(|name| !names.contains(&name.as_str())) {
        None => Ok(wish),
        Some(name) => Err(Failed::argument(
            key.to_owned(),
            format!("unknown key \"{name}\" in \"{key}\""),
        )),
    }
}

fn part(key: &str, wish: &Map<String, Value>, name: &str) -> Result<Option<u32>, Failed> {
    wish.get(name).map(|value| count(key, value)).transpose()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capi::params;
    use crate::capi::types::FATHOM_ERR_INVALID_ARGUMENT;
    use crate::engine::request::Reporting;

    #[test]
    fn every_key_arrives() {
        let json = r#"{"presence_penalty": 1, "frequency_penalty": -0.5, "repetition_penalty": 1.5,
            "min_tokens": 3, "choice_base": 7, "stream_interval": 4, "tail_mass": true, "digest": true,
            "allowed_tokens": [1, 2], "logprob_tokens": [3], "golden_tokens": [4, null],
            "bad_words": [[5, 6], [7]], "logit_bias": {"8": -100, "9": 0.5}, "logprob_source": "processed",
            "prompt_logprobs": {"top": 2, "start": 1}, "repeat_guard": {"pattern": 3, "count": 4},
            "think": {"budget": 5, "end": [6]}, "stop_strings": ["a", "b"], "include_stop": true}"#;
        let mut submit = Submit::default();
        params::read(json, &mut submit, false).unwrap();
        let expected = Submit {
            presence_penalty: Some(1.0),
            frequency_penalty: Some(-0.5),
            repetition_penalty: Some(1.5),
            min_tokens: 3,
            choice_base: 7,
            stream_interval: Some(4),
            allowed_tokens: Some(vec![1, 2]),
            golden_tokens: vec![Some(4), None],
            bad_words: vec![vec![5, 6], vec![7]],
            logit_bias: Some(vec![(8, -100.0), (9, 0.5)]),
            reporting: Reporting {
                source: LogprobSource::Processed,
                tail_mass: true,
                tokens: vec![3],
                prompt: Some(PromptLogprobs { top: 2, start: 1 }),
                digest: true,
            },
            repeat_guard: Some(RepeatGuard {
                pattern: 3,
                count: 4,
            }),
            think: Some(Think {
                budget: 5,
                end: vec![6],
            }),
            stop_strings: vec!["a".to_owned(), "b".to_owned()],
            include_stop: true,
            ..Submit::default()
        };
        assert_eq!(submit, expected);
    }

    #[test]
    fn a_wrong_form_names_its_key() {
        for (key, value) in [
            ("presence_penalty", "\"1\""),
            ("min_tokens", "-1"),
            ("choice_base", "256"),
            ("stream_interval", "1.5"),
            ("tail_mass", "1"),
            ("allowed_tokens", "3"),
            ("logprob_tokens", "[-1]"),
            ("golden_tokens", "[\"a\"]"),
            ("bad_words", "[3]"),
            ("logit_bias", "{\"x\": 1}"),
            ("logit_bias", "{\"1\": null}"),
            ("logit_bias", "[1]"),
            ("logprob_source", "\"cooked\""),
            ("prompt_logprobs", "3"),
            ("prompt_logprobs", "{\"tops\": 1}"),
            ("repeat_guard", "{\"pattern\": 3}"),
            ("think", "{\"end\": [1]}"),
            ("think", "{\"budget\": 1, \"end\": 1}"),
            ("stop_strings", "\"a\""),
            ("stop_strings", "[]"),
            ("stop_strings", "[1]"),
            ("include_stop", "0"),
        ] {
            let json = format!("{{\"{key}\": {value}}}");
            let failed = params::read(&json, &mut Submit::default(), false).unwrap_err();
            let told = (failed.status, &*failed.param);
            assert_eq!(told, (FATHOM_ERR_INVALID_ARGUMENT, key), "{json}");
        }
    }

    #[test]
    fn a_call_leaves_stop_strings_to_its_request() {
        for json in [r#"{"stop_strings": ["a"]}"#, r#"{"include_stop": true}"#] {
            let mut submit = Submit::default();
            assert!(params::read(json, &mut submit, true).is_err());
        }
    }
}
