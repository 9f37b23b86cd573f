//! `tuning_json`: every key of `engine.md` section 31, its type and range, and what it means today.
//!
//! A key whose feature is not built is accepted at the value that describes the engine as it is and refused
//! otherwise, so that no setting is ever ignored. Read once, at open.

#![forbid(unsafe_code)]

use std::time::Duration;

use serde_json::{Map, Value};

use crate::engine::error::{Code, Error};

/// Where activations and cache entries are rounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Numerics {
    /// As the published runtime does, which the weights were trained for.
    Official,
    /// Nowhere: tests and studies.
    Plain,
}

/// How much of a result is promised to repeat (`engine.md` section 17).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Determinism {
    /// Valid samples.
    D0,
    /// A row's logits depend on its own tokens only.
    D1,
    /// D1, and equal requests give equal results in any process.
    D2,
}

/// Where an effective value comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Nobody asked.
    Default,
    /// The checkpoint says so.
    Model,
    /// As asked.
    Caller,
    /// Changed, and why is said.
    Adjusted,
}

impl Origin {
    fn name(self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::Model => "model",
            Self::Caller => "caller",
            Self::Adjusted => "adjusted",
        }
    }
}

/// One effective value, for the report.
#[derive(Clone, Debug, PartialEq)]
pub struct Setting {
    name: &'static str,
    value: Value,
    origin: Origin,
    why: Option<String>,
}

/// All effective values, in the order they were named.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    settings: Vec<Setting>,
}

impl Report {
    /// Names a value, or replaces what was said of it.
    pub fn set(&mut self, name: &'static str, value: impl Into<Value>, origin: Origin) {
        self.put(name, value.into(), origin, None);
    }

    /// Names a value that is not the one asked for.
    pub fn adjust(&mut self, name: &'static str, value: impl Into<Value>, why: String) {
        self.put(name, value.into(), Origin::Adjusted, Some(why));
    }

    fn put(&mut self, name: &'static str, value: Value, origin: Origin, why: Option<String>) {
        let setting = Setting {
            name,
            value,
            origin,
            why,
        };
        match self.settings.iter_mut().find(|s| s.name == name) {
            Some(known) => *known = setting,
            None => self.settings.push(setting),
        }
    }

    /// The effective value of a key.
    pub fn value(&self, name: &str) -> Option<&Value> {
        self.settings
            .iter()
            .find(|s| s.name == name)
            .map(|s| &s.value)
    }

    /// `{"chunk": {"value": 512, "origin": "default"}, …}`
    pub fn to_json(&self) -> Value {
        let entry = |s: &Setting| {
            let mut map = Map::new();
            map.insert("value".to_owned(), s.value.clone());
            map.insert("origin".to_owned(), s.origin.name().into());
            if let Some(why) = &s.why {
                map.insert("why".to_owned(), why.as_str().into());
            }
            (s.name.to_owned(), Value::Object(map))
        };
        Value::Object(self.settings.iter().map(entry).collect())
    }
}

/// What the keys that are in use say.
#[derive(Clone, Debug, PartialEq)]
pub struct Tuning {
    /// `numerics`
    pub numerics: Numerics,
    /// `determinism`; the option flag of the engine raises it.
    pub determinism: Determinism,
    /// `step_timeout_ms`
    pub step_timeout: Duration,
    /// `max_step_tokens`
    pub max_step_tokens: Option<u32>,
    /// `chunk`
    pub chunk: Option<u32>,
    /// `block_tokens`
    pub block_tokens: Option<u32>,
    /// `prepare_threads`
    pub prepare_threads: u32,
    /// `prefault`
    pub prefault: bool,
    /// `watermark`: share of the blocks that only running requests may use.
    pub watermark: f64,
    /// `lookahead_blocks`
    pub lookahead_blocks: u32,
    /// `overtake_limit`
    pub overtake_limit: u32,
    /// `max_preemptions`
    pub max_preemptions: u32,
    /// `age_steps`
    pub age_steps: u64,
    /// `age_ms`
    pub age: Duration,
    /// `stall_timeout_ms`
    pub stall_timeout: Option<Duration>,
    /// `grammar_threads`
    pub grammar_threads: u32,
    /// `grammar_timeout_ms`
    pub grammar_timeout: Duration,
    /// `grammar_cache_bytes`
    pub grammar_cache_bytes: u64,
    /// `token_blacklist`
    pub token_blacklist: Vec<u32>,
    /// `max_logit_rows`
    pub max_logit_rows: u32,
    /// All keys; for those not above ask here.
    pub report: Report,
}

/// What a value of a key must be.
#[derive(Clone, Copy, Debug)]
enum Rule {
    Switch,
    Count(u64, u64),
    Number(f64, f64),
    Word(&'static [&'static str]),

    Text,
    Ids,
    Object,
    /// One number, or a list of them.
    Numbers,
    /// `null` means none, off, or "by the model".
    Maybe(&'static Rule),
}

impl Rule {
    fn allows(&self, value: &Value) -> bool {
        match self {
            Self::Switch => value.is_boolean(),
            Self::Count(least, most) => value
                .as_u64()
                .is_some_and(|n| (*least..=*most).contains(&n)),
            Self::Number(least, most) => value
                .as_f64()
                .is_some_and(|n| (*least..=*most).contains(&n)),
            Self::Word(words) => value.as_str().is_some_and(|w| words.contains(&w)),
            Self::Text => value.is_string(),
            Self::Ids => value
                .as_array()
                .is_some_and(|a| a.iter().all(|id| id.as_u64().is_some_and(|n| n < 1 << 32))),
            Self::Object => value.is_object(),
            Self::Numbers => {
                value.is_number()
                    || value
                        .as_array()
                        .is_some_and(|a| a.iter().all(Value::is_number))
            }
            Self::Maybe(rule) => value.is_null() || rule.allows(value),
        }
    }

    fn wanted(&self) -> String {
        match self {
            Self::Switch => "true or false".to_owned(),
            Self::Count(least, most) => format!("a whole number of {least} to {most}"),
            Self::Number(least, most) => format!("a number of {least} to {most}"),
            Self::Word(words) => format!("one of \"{}\"", words.join("\", \"")),
            Self::Text => "a string".to_owned(),
            Self::Ids => "a list of token ids".to_owned(),
            Self::Object => "an object".to_owned(),
            Self::Numbers => "a number or a list of numbers".to_owned(),
            Self::Maybe(rule) => format!("null or {}", rule.wanted()),
        }
    }
}

/// The value a key has when nobody names it, as JSON text.
struct Key {
    name: &'static str,
    rule: Rule,
    value: &'static str,
    /// Whether other values do something; else they are refused.
    is_live: bool,
}

const fn live(name: &'static str, rule: Rule, value: &'static str) -> Key {
    Key {
        name,
        rule,
        value,
        is_live: true,
    }
}

const fn fixed(name: &'static str, rule: Rule, value: &'static str) -> Key {
    Key {
        name,
        rule,
        value,
        is_live: false,
    }
}

const U32: Rule = Rule::Count(0, u32::MAX as u64);
const POSITIVE: Rule = Rule::Count(1, u32::MAX as u64);
const SHARE: Rule = Rule::Number(0.0, 1.0);
/// A hundred years; more is a mistake of units.
const MILLISECONDS: Rule = Rule::Count(1, 100 * 365 * 24 * 3600 * 1000);
const BYTES: Rule = Rule::Count(0, u64::MAX);
const DIRECTORY: Rule = Rule::Maybe(&Rule::Text);

#[rustfmt::skip]
const KEYS: &[Key] = &[
    // Sizes.
    fixed("slot_ratio", Rule::Number(1.0, 16.0), "1.2"),
    live("max_step_tokens", Rule::Maybe(&POSITIVE), "null"),
    fixed("max_draft_tokens", Rule::Maybe(&U32), "null"),
    live("max_logit_rows", Rule::Count(1, 8192), "8192"),
    fixed("max_prefill_context", Rule::Maybe(&POSITIVE), "null"),
    live("chunk", Rule::Maybe(&POSITIVE), "null"),
    live("block_tokens", Rule::Maybe(&POSITIVE), "null"),
    fixed("memory_share", SHARE, "0.9"),
    fixed("min_context", Rule::Maybe(&POSITIVE), "null"),
    fixed("index_workspace_bytes", Rule::Maybe(&BYTES), "null"),
    // Admission. No affinity yet: 0 is what is.
    fixed("admission", Rule::Word(&["dynamic", "full"]), r#""dynamic""#),
    live("watermark", SHARE, "0.01"),
    live("lookahead_blocks", U32, "1"),
    fixed("class_preemption", Rule::Switch, "false"),
    fixed("displace", Rule::Switch, "false"),
    fixed("class_quota", Rule::Maybe(&Rule::Object), "null"),
    live("max_preemptions", U32, "3"),
    live("age_steps", POSITIVE, "256"),
    live("age_ms", MILLISECONDS, "2000"),
    live("overtake_limit", U32, "8"),
    fixed("affinity_window", U32, "0"),
    fixed("max_queued_tokens", Rule::Maybe(&BYTES), "null"),
    live("prepare_threads", Rule::Count(1, 64), "2"),
    // Lockstep.
    fixed("any_age", POSITIVE, "8"),
    fixed("max_prefill_run", POSITIVE, "4"),
    fixed("fill", SHARE, "0.5"),
    live("step_timeout_ms", MILLISECONDS, "120000"),
    fixed("comm_timeout_ms", MILLISECONDS, "120000"),
    fixed("comm_sms", Rule::Maybe(&POSITIVE), "null"),
    fixed("group", Rule::Maybe(&Rule::Object), "null"),
    // Pipeline: one step after the other, no captured graphs.
    fixed("overlap", Rule::Switch, "false"),
    fixed("mixed", Rule::Switch, "true"),
    fixed("ttft_first", Rule::Switch, "false"),
    fixed("graphs", Rule::Word(&["all", "main", "off"]), r#""off""#),
    fixed("graph_step", POSITIVE, "8"),
    // Cache.
    fixed("swa_reuse", Rule::Maybe(&Rule::Word(&["stored", "replay", "recompute"])), "null"),
    fixed("snapshot_interval", U32, "0"),
    fixed("prefill_truncation", Rule::Word(&["off", "mask", "compact"]), r#""off""#),
    fixed("truncation_keep", U32, "140"),
    fixed("main_kv", Rule::Maybe(&Rule::Word(&["fp4", "fp8"])), "null"),
    // Sampling.
    live("determinism", Rule::Word(&["D0", "D1"]), r#""D0""#),
    live("token_blacklist", Rule::Maybe(&Rule::Ids), "null"),
    fixed("shortlist", Rule::Maybe(&POSITIVE), "null"),
    live("numerics", Rule::Word(&["official", "plain"]), r#""official""#),
    // Speculation: no drafts.
    fixed("max_draft", Rule::Count(0, 64), "0"),
    fixed("max_backtrack", Rule::Count(0, 64), "6"),
    fixed("verify", Rule::Word(&["exact", "block", "token"]), r#""exact""#),
    fixed("draft_top", POSITIVE, "1024"),
    fixed("spec_policy", Rule::Word(&["rule", "lagged", "scan", "causal"]), r#""rule""#),
    fixed("confidence_temperature", Rule::Numbers, "1"),
    fixed("cost_table", Rule::Text, r#""measured""#),
    // Constraints.
    live("grammar_threads", Rule::Count(1, 64), "2"),
    live("grammar_timeout_ms", MILLISECONDS, "10000"),
    live("grammar_cache_bytes", BYTES, "268435456"),
    // Experts.
    fixed("redundant_experts", U32, "0"),
    fixed("eplb_interval", Rule::Maybe(&POSITIVE), "null"),
    fixed("eplb_window", POSITIVE, "100"),
    fixed("eplb_min_gain", Rule::Maybe(&Rule::Number(0.0, f64::MAX)), "null"),
    fixed("router_override", Rule::Maybe(&Rule::Text), "null"),
    // Loading.
    fixed("load", Rule::Word(&["files", "dummy"]), r#""files""#),
    fixed("dummy_seed", BYTES, "0"),
    fixed("expected_digest", Rule::Maybe(&Rule::Text), "null"),
    live("prefault", Rule::Switch, "true"),
    fixed("lock", Rule::Switch, "false"),
    fixed("huge_pages", Rule::Switch, "false"),
    fixed("numa", Rule::Switch, "false"),
    // Engram.
    fixed("table_placement", Rule::Word(&["auto", "host", "device", "disk"]), r#""auto""#),
    // CUDA.
    fixed("kernel_cache_dir", DIRECTORY, "null"),
    fixed("cuda_library_dir", DIRECTORY, "null"),
    fixed("cuda_line_info", Rule::Switch, "false"),
    // Delivery, faults, profiling.
    live("stall_timeout_ms", Rule::Maybe(&MILLISECONDS), "null"),
    fixed("nan_window", POSITIVE, "1000"),
    fixed("profile", Rule::Maybe(&Rule::Object), "null"),
];

/// Names of section 31 that are fields or flags elsewhere.
#[rustfmt::skip]
const ELSEWHERE: &[(&str, &str)] = &[
    ("max_context", "the engine option of that name"),
    ("kv_bytes", "the engine option of that name"),
    ("device", "the engine option of that name"),
    ("max_queued", "the engine option of that name"),
    ("max_seqs", "the engine option max_running"),
    ("prefix_cache", "the engine flag against the prefix cache"),
    ("spec", "the engine flag against speculation, or a parameter of the request"),
    ("max_unread_tokens", "a parameter of the request"),
];

impl Tuning {
    /// Reads the object; empty text is no object. `deterministic` is the engine's flag for D2.
    pub fn parse(json: &str, deterministic: bool) -> Result<Self, Error> {
        let given = read_object(json)?;
        for name in given.keys() {
            if let Some((_, place)) = ELSEWHERE.iter().find(|(n, _)| n == name) {
                return Err(invalid(
                    name,
                    format!("\"{name}\" is not tuning but {place}"),
                ));
            }
            if !KEYS.iter().any(|key| key.name == name) {
                return Err(invalid(name, format!("unknown tuning key \"{name}\"")));
            }
        }
        let mut report = Report::default();
        for key in KEYS {
            let usual: Value = serde_json::from_str(key.value).expect("the table holds JSON");
            match given.get(key.name) {
                None => report.set(key.name, usual, Origin::Default),
                Some(value) => {
                    check(key, value, &usual)?;
                    report.set(key.name, value.clone(), Origin::Caller);
                }
            }
        }
        let mut tuning = Self::from_report(report);
        if deterministic {
            if given.contains_key("determinism") {
                return Err(invalid(
                    "determinism",
                    "\"determinism\" and the flag for determinism exclude each other".to_owned(),
                ));
            }
            tuning.determinism = Determinism::D2;
            tuning.report.set("determinism", "D2", Origin::Caller);
        }
        Ok(tuning)
    }

    fn from_report(report: Report) -> Self {
        let count = |name: &str| report.value(name).and_then(Value::as_u64);
        // Counts of 32 bits by their rules.
        let small = |name: &str| count(name).and_then(|n| u32::try_from(n).ok());
        let word = |name: &str| report.value(name).and_then(Value::as_str);
        let time = |name: &str| count(name).map(Duration::from_millis);
        Self {
            numerics: match word("numerics") {
                Some("plain") => Numerics::Plain,
                _ => Numerics::Official,
            },
            determinism: match word("determinism") {
                Some("D1") => Determinism::D1,
                _ => Determinism::D0,
            },
            step_timeout: time("step_timeout_ms").unwrap_or_default(),
            max_step_tokens: small("max_step_tokens"),
            chunk: small("chunk"),
            block_tokens: small("block_tokens"),
            prepare_threads: small("prepare_threads").unwrap_or_default(),
            prefault: report.value("prefault").and_then(Value::as_bool) == Some(true),
            watermark: report
                .value("watermark")
                .and_then(Value::as_f64)
                .unwrap_or_default(),
            lookahead_blocks: small("lookahead_blocks").unwrap_or_default(),
            overtake_limit: small("overtake_limit").unwrap_or_default(),
            max_preemptions: small("max_preemptions").unwrap_or_default(),
            age_steps: count("age_steps").unwrap_or_default(),
            age: time("age_ms").unwrap_or_default(),
            stall_timeout: time("stall_timeout_ms"),
            grammar_threads: small("grammar_threads").unwrap_or_default(),
            grammar_timeout: time("grammar_timeout_ms").unwrap_or_default(),
            grammar_cache_bytes: count("grammar_cache_bytes").unwrap_or_default(),
            token_blacklist: report
                .value("token_blacklist")
                .and_then(Value::as_array)
                .map(|ids| {
                    let ids = ids.iter().filter_map(Value::as_u64);
                    ids.filter_map(|id| u32::try_from(id).ok()).collect()
                })
                .unwrap_or_default(),
            max_logit_rows: small("max_logit_rows").unwrap_or(1),
            report,
        }
    }
}

fn read_object(json: &str) -> Result<Map<String, Value>, Error> {
    if json.trim().is_empty() {
        return Ok(Map::new());
    }
    match serde_json::from_str(json) {
        Ok(Value::Object(map)) => Ok(map),
        Ok(_) => Err(invalid(
            "tuning_json",
            "tuning_json is not a JSON object".to_owned(),
        )),
        Err(e) => Err(invalid(
            "tuning_json",
            format!("tuning_json is not JSON: {e}"),
        )),
    }
}

fn check(key: &Key, value: &Value, usual: &Value) -> Result<(), Error> {
    let name = key.name;
    if !key.rule.allows(value) {
        let wanted = key.rule.wanted();
        return Err(invalid(
            name,
            format!("tuning key \"{name}\" is {value}, wanted {wanted}"),
        ));
    }
    let is_usual =
        value == usual || matches!((value.as_f64(), usual.as_f64()), (Some(a), Some(b)) if a == b);
    if !key.is_live && !is_usual {
        return Err(Error::new(
            Code::Unsupported,
            name,
            format!("tuning key \"{name}\" can only be {usual} in this version, not {value}"),
        ));
    }
    Ok(())
}

fn invalid(name: &str, message: String) -> Error {
    Error::new(Code::InvalidParam, name, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_default_satisfies_its_own_rule_and_names_are_unique() {
        for (at, key) in KEYS.iter().enumerate() {
            let usual: Value = serde_json::from_str(key.value).unwrap();
            assert!(key.rule.allows(&usual), "{}", key.name);
            assert!(KEYS[..at].iter().all(|k| k.name != key.name));
            let text = format!("{{\"{}\": {usual}}}", key.name);
            Tuning::parse(&text, false).unwrap();
        }
    }

    #[test]
    fn values_in_use_arrive_and_are_reported_with_their_origin() {
        let tuning = Tuning::parse(
            r#"{"chunk": 64, "numerics": "plain", "step_timeout_ms": 5, "watermark": 0}"#,
            false,
        )
        .unwrap();
        assert_eq!(tuning.chunk, Some(64));
        assert_eq!(tuning.numerics, Numerics::Plain);
        assert_eq!(tuning.step_timeout, Duration::from_millis(5));
        assert_eq!(tuning.watermark, 0.0);
        assert_eq!(tuning.prepare_threads, 2);
        assert_eq!(tuning.max_step_tokens, None);
        let json = tuning.report.to_json();
        assert_eq!(json["chunk"]["origin"], "caller");
        assert_eq!(json["age_steps"]["value"], 256);
        assert_eq!(json["age_steps"]["origin"], "default");
    }

    #[test]
    fn nothing_is_ignored() {
        for (json, code, param) in [
            (r#"{"chunck": 1}"#, Code::InvalidParam, "chunck"),
            (r#"{"chunk": 0}"#, Code::InvalidParam, "chunk"),
            (r#"{"chunk": 1.5}"#, Code::InvalidParam, "chunk"),
            (r#"{"prefault": 1}"#, Code::InvalidParam, "prefault"),
            (r#"{"watermark": 1.01}"#, Code::InvalidParam, "watermark"),
            (r#"{"numerics": "fast"}"#, Code::InvalidParam, "numerics"),
            (r#"{"max_seqs": 4}"#, Code::InvalidParam, "max_seqs"),
            (r#"{"overlap": true}"#, Code::Unsupported, "overlap"),
            (r#"{"profile": {}}"#, Code::Unsupported, "profile"),
            (r#"{"step_timeout": 5}"#, Code::InvalidParam, "step_timeout"),
            ("[]", Code::InvalidParam, "tuning_json"),
            ("{", Code::InvalidParam, "tuning_json"),
        ] {
            let error = Tuning::parse(json, false).unwrap_err();
            assert_eq!((error.code, &error.param[..]), (code, param), "{json}");
        }
    }

    #[test]
    fn the_flag_and_a_level_exclude_each_other() {
        assert_eq!(
            Tuning::parse("", true).unwrap().determinism,
            Determinism::D2
        );
        let error = Tuning::parse(r#"{"determinism": "D1"}"#, true).unwrap_err();
        assert_eq!(error.param, "determinism");
    }
}
