//! `params_json`: the parameters of a request that are no field (`c-api.md` section 12.1).
//!
//! Every documented key is known. Those that this build's engine cannot do answer
//! `FATHOM_ERR_UNSUPPORTED` with the key as param; keys nobody documents `FATHOM_ERR_INVALID_ARGUMENT`.

mod wishes;

use serde_json::{Map, Value};

use super::error::Failed;
use super::input::milliseconds;
use crate::call::{ConstraintStart, Submit};
use crate::engine::request::Logprobs;

/// Documented, and not done yet.
const LATER: [&str; 3] = ["chunk_ends", "n", "spec"];

/// Said by a field, a flag or an option of the engine.
const ELSEWHERE: [(&str, &str); 14] = [
    ("max_tokens", "the field of that name"),
    ("temperature", "the field of that name"),
    ("top_p", "the field of that name"),
    ("seed", "the field of that name"),
    ("stop_tokens", "the field of that name"),
    ("tag", "the field of that name"),
    ("logprobs", "the field of that name"),
    ("constraint", "the field of that name"),
    ("priority", "the field of that name"),
    ("deadline_ms", "the field of that name"),
    ("deadline_total", "the field deadline_ms"),
    ("max_unread_tokens", "the field of that name"),
    ("media", "the images of a prepared request"),
    ("prefix_cache", "FATHOM_ENGINE_NO_PREFIX_CACHE"),
];

/// Reads `json` into `submit`, which already has the fields and flags. A call leaves `n` to its request.
pub(crate) fn read(json: &str, submit: &mut Submit, of_call: bool) -> Result<(), Failed> {
    let value: Value = serde_json::from_str(json).map_err(|error| {
        Failed::argument("params_json", format!("params_json is not JSON: {error}"))
    })?;
    let Value::Object(params) = value else {
        return Err(Failed::argument(
            "params_json",
            "params_json is not an object",
        ));
    };
    for (key, value) in &params {
        one(key, value, submit, of_call)?;
    }
    if let Some(value) = params.get("bound") {
        let id = token(value).ok_or_else(|| wrong("bound", value, "a token id"))?;
        match &mut submit.constraint_start {
            Some(ConstraintStart::After { bound, .. }) => *bound = Some(id),
            _ => {
                return Err(Failed::argument(
                    "bound",
                    "\"bound\" stands without a \"trigger\"",
                ));
            }
        }
    }
    Ok(())
}

fn token(value: &Value) -> Option<u32> {
    value.as_u64().and_then(|id| u32::try_from(id).ok())
}

fn one(key: &str, value: &Value, submit: &mut Submit, of_call: bool) -> Result<(), Failed> {
    if wishes::read(key, value, submit, of_call)? {
        return Ok(());
    }
    match key {
        "top_k" => {
            let top = value
                .as_i64()
                .filter(|top| (-1..=i64::from(i32::MAX)).contains(top))
                .ok_or_else(|| wrong(key, value, "-1, 0 (both off) or up to 2147483647"))?;
            submit.top_k = Some(u32::try_from(top).unwrap_or(0));
        }
        "min_p" => {
            let least = value
                .as_f64()
                .filter(|least| (0.0..=1.0).contains(least))
                .ok_or_else(|| wrong(key, value, "a number from 0 to 1"))?;
            submit.min_p = Some(least as f32);
        }
        "ignore_eos" => submit.ignore_eos = switch(key, value)?,
        "prefill_only" => {
            if switch(key, value)? {
                if submit.max_tokens.is_some() {
                    return Err(beside(key, "max_tokens"));
                }
                submit.max_tokens = Some(0);
            }
        }
        "sampled_logprobs" => {
            if switch(key, value)? {
                if submit.logprobs.is_some() {
                    return Err(beside(key, "logprobs"));
                }
                submit.logprobs = Some(Logprobs::Sampled);
            }
        }
        "deadline_queue_ms" => submit.deadline_queue = Some(milliseconds(count(key, value)?)),
        "deadline_first_token_ms" => {
            submit.deadline_first_token = Some(milliseconds(count(key, value)?));
        }
        "cache" => cache(key, value, submit)?,
        "constraint_start" => {
            let start = match value.as_str() {
                Some("at_once") => ConstraintStart::AtOnce,
                Some("after_thinking") => ConstraintStart::AfterThinking,
                _ => return Err(wrong(key, value, "\"at_once\" or \"after_thinking\"")),
            };
            if submit.constraint_start.replace(start).is_some() {
                return Err(beside(key, "\"trigger\""));
            }
        }
        "trigger" => {
            let ids = value.as_array().filter(|ids| (1..=64).contains(&ids.len()));
            let ids: Option<Vec<u32>> = ids.and_then(|ids| ids.iter().map(token).collect());
            let trigger = ids.ok_or_else(|| wrong(key, value, "a list of 1 to 64 token ids"))?;
            let start = ConstraintStart::After {
                trigger,
                bound: None,
            };
            if submit.constraint_start.replace(start).is_some() {
                return Err(beside(key, "\"constraint_start\""));
            }
        }
        // Read last: it belongs to a trigger.
        "bound" => {}
        "n" if of_call => {
            return Err(Failed::argument(
                "n",
                "the number of choices is said by the request",
            ));
        }
        key if LATER.contains(&key) => {
            return Err(Failed::unsupported(
                key.to_owned(),
                format!("\"{key}\" is not in this build"),
            ));
        }
        key => {
            let place = ELSEWHERE.iter().find(|(name, _)| *name == key);
            return Err(Failed::argument(
                key.to_owned(),
                match place {
                    Some((_, place)) => format!("\"{key}\" is said by {place}"),
                    None => format!("unknown key \"{key}\""),
                },
            ));
        }
    }
    Ok(())
}

/// `{"read", "write", "salt"}`: all or nothing, without a salt.
fn cache(key: &str, value: &Value, submit: &mut Submit) -> Result<(), Failed> {
    let Value::Object(wish) = value else {
        return Err(wrong(
            key,
            value,
            "an object of \"read\", \"write\" and \"salt\"",
        ));
    };
    if submit.no_cache {
        return Err(beside(key, "FATHOM_SUBMIT_NO_CACHE"));
    }
    for name in wish.keys() {
        if !["read", "write", "salt"].contains(&name.as_str()) {
            return Err(Failed::argument(
                "cache",
                format!("unknown key \"{name}\" in \"cache\""),
            ));
        }
    }
    let side =
        |wish: &Map<String, Value>, name| wish.get(name).map_or(Ok(true), |v| switch(key, v));
    let (read, write) = (side(wish, "read")?, side(wish, "write")?);
    match wish.get("salt") {
        None | Some(Value::Null) => {}
        Some(Value::String(salt)) if salt.len() <= 32 => {
            return Err(Failed::unsupported(
                "cache",
                "cache salts are not in this build",
            ));
        }
        Some(salt) => return Err(wrong("cache", salt, "a salt of up to 32 bytes")),
    }
    if read != write {
        return Err(Failed::unsupported(
            "cache",
            "a cache that is only read or only written is not in this build",
        ));
    }
    submit.no_cache = !read;
    Ok(())
}

fn switch(key: &str, value: &Value) -> Result<bool, Failed> {
    value
        .as_bool()
        .ok_or_else(|| wrong(key, value, "true or false"))
}

fn count(key: &str, value: &Value) -> Result<u64, Failed> {
    value
        .as_u64()
        .filter(|count| *count > 0)
        .ok_or_else(|| wrong(key, value, "a whole number above 0"))
}

fn wrong(key: &str, value: &Value, expected: &str) -> Failed {
    Failed::argument(
        key.to_owned(),
        format!("\"{key}\" is '{value}' and must be {expected}"),
    )
}

fn beside(key: &str, other: &str) -> Failed {
    Failed::argument(
        key.to_owned(),
        format!("\"{key}\" stands beside {other}, which says the same"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capi::types::{FATHOM_ERR_INVALID_ARGUMENT, FATHOM_ERR_UNSUPPORTED};
    use std::time::Duration;

    fn refused(json: &str) -> (i32, String) {
        let failed = read(json, &mut Submit::default(), false).unwrap_err();
        (failed.status, failed.param.into_owned())
    }

    #[test]
    fn keys_of_this_build_are_read() {
        let mut submit = Submit::default();
        let json = r#"{"top_k": -1, "min_p": 0.5, "ignore_eos": true, "prefill_only": true,
            "sampled_logprobs": true, "deadline_queue_ms": 20, "cache": {"read": false, "write": false},
            "bound": 7, "trigger": [7, 8]}"#;
        read(json, &mut submit, false).unwrap();
        let expected = Submit {
            top_k: Some(0),
            min_p: Some(0.5),
            ignore_eos: true,
            max_tokens: Some(0),
            logprobs: Some(Logprobs::Sampled),
            deadline_queue: Some(Duration::from_millis(20)),
            no_cache: true,
            constraint_start: Some(ConstraintStart::After {
                trigger: vec![7, 8],
                bound: Some(7),
            }),
            ..Submit::default()
        };
        assert_eq!(submit, expected);
    }

    #[test]
    fn keys_of_later_builds_are_known_and_others_are_not() {
        for key in LATER {
            let json = format!("{{\"{key}\": 1}}");
            assert_eq!(refused(&json), (FATHOM_ERR_UNSUPPORTED, key.to_owned()));
        }
        for key in ["temperature", "max_tokens", "prefix_cache", "nonsense", ""] {
            let json = format!("{{\"{key}\": 1}}");
            assert_eq!(
                refused(&json),
                (FATHOM_ERR_INVALID_ARGUMENT, key.to_owned())
            );
        }
    }

    #[test]
    fn values_out_of_range_name_their_key() {
        for (json, key) in [
            (r#"{"top_k": 2147483648}"#, "top_k"),
            (r#"{"min_p": 1.5}"#, "min_p"),
            (r#"{"ignore_eos": 1}"#, "ignore_eos"),
            (r#"{"deadline_queue_ms": 0}"#, "deadline_queue_ms"),
            (r#"{"cache": {"red": true}}"#, "cache"),
            (r#"{"constraint_start": "soon"}"#, "constraint_start"),
            (r#"{"trigger": []}"#, "trigger"),
            (r#"{"trigger": [-1]}"#, "trigger"),
            (r#"{"bound": 4}"#, "bound"),
            (r#"{"trigger": [4], "bound": "x"}"#, "bound"),
            (
                r#"{"trigger": [4], "constraint_start": "at_once"}"#,
                "constraint_start",
            ),
            ("[]", "params_json"),
            ("{", "params_json"),
        ] {
            assert_eq!(
                refused(json),
                (FATHOM_ERR_INVALID_ARGUMENT, key.to_owned()),
                "{json}"
            );
        }
    }

    #[test]
    fn a_key_beside_the_field_that_says_the_same_is_refused() {
        let mut submit = Submit {
            max_tokens: Some(3),
            no_cache: true,
            ..Submit::default()
        };
        for (json, key) in [
            (r#"{"prefill_only": true}"#, "prefill_only"),
            (r#"{"cache": {}}"#, "cache"),
        ] {
            assert_eq!(read(json, &mut submit, false).unwrap_err().param, key);
        }
    }
}
