//! What an engine says of itself: OpenMetrics text, the last steps, profiles.

use std::collections::{BTreeMap, BTreeSet};

use fathom::engine::backend::canary::{CanaryOptions, Fault};
use fathom::engine::{Code, EngineOptions, EngineState};
use serde_json::Value;

use crate::host::{Seen, host, options, request};

/// Samples by family, as a strict reader of OpenMetrics 1.0 takes them.
#[derive(Debug, Default)]
struct Scrape {
    kinds: BTreeMap<String, String>,
    samples: BTreeMap<String, f64>,
}

impl Scrape {
    fn read(text: &str) -> Self {
        let mut scrape = Self::default();
        let mut family = String::new();
        let mut helped = BTreeSet::new();
        let body = text.strip_suffix("# EOF\n").expect("the end is said");
        for line in body.lines() {
            if let Some(comment) = line.strip_prefix("# ") {
                let (word, rest) = comment.split_once(' ').unwrap();
                let (name, what) = rest.split_once(' ').unwrap();
                if word == "TYPE" {
                    family = name.to_owned();
                    let before = scrape.kinds.insert(family.clone(), what.to_owned());
                    assert_eq!(before, None, "{name} comes twice");
                }
                assert_eq!(name, family, "{line}");
                assert!(word != "UNIT" || name.ends_with(what), "{line}");
                assert!(word != "HELP" || helped.insert(name.to_owned()), "{line}");
                continue;
            }
            let (sample, value) = line.rsplit_once(' ').unwrap();
            let name = sample.split('{').next().unwrap();
            let suffix = name.strip_prefix(family.as_str()).expect(line);
            let allowed: &[&str] = match scrape.kinds[&family].as_str() {
                "counter" => &["_total"],
                "gauge" => &[""],
                "histogram" => &["_bucket", "_sum", "_count"],
                "info" => &["_info"],
                other => panic!("kind {other}"),
            };
            assert!(allowed.contains(&suffix), "{line}");
            let labels = sample.strip_prefix(name).unwrap();
            let inner = labels.strip_prefix('{').and_then(|l| l.strip_suffix('}'));
            let inner = inner.expect("every sample has labels");
            assert!(inner.starts_with("engine=\""), "{line}");
            let value: f64 = value.parse().expect(line);
            let before = scrape.samples.insert(sample.to_owned(), value);
            assert_eq!(before, None, "{sample} comes twice");
        }
        let kinds: BTreeSet<_> = scrape.kinds.keys().cloned().collect();
        assert_eq!(kinds, helped);
        scrape
    }

    /// The sum of all samples of this name that have these labels.
    fn sum(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let wanted: Vec<String> = labels.iter().map(|(l, v)| format!("{l}=\"{v}\"")).collect();
        let mut found = self
            .samples
            .iter()
            .filter(|(sample, _)| sample.split('{').next() == Some(name))
            .filter(|(sample, _)| wanted.iter().all(|label| sample.contains(label)))
            .peekable();
        assert!(found.peek().is_some(), "no {name} {labels:?}");
        found.map(|(_, value)| value).sum()
    }
}

#[test]
fn the_text_counts_what_happened() {
    // A pool in which three requests push each other out.
    let mut canary = CanaryOptions::default();
    canary.limits.blocks = 12;
    let host = host(canary, &options(3, r#"{"chunk": 8}"#));
    let mut requests: Vec<_> = (0..3).map(|n| request(n, 20, 30)).collect();
    requests.iter_mut().for_each(|r| r.ignore_eos = true);
    let refused = request(9, 5000, 1);
    assert!(host.engine.submit(&host.queue, refused, None).is_err());
    for request in requests {
        host.submit(request);
    }
    let mut seen = Seen::default();
    seen.until_ended(&host.queue, 3);
    host.assert_idle();
    let generated: usize = seen.outcomes.values().map(|o| o.tokens.len()).sum();
    assert_eq!(generated, 90);

    let stats = host.engine.stats();
    let scrape = Scrape::read(&host.engine.metrics_text());
    let one = |name: &str| scrape.sum(name, &[]);
    assert_eq!(
        scrape.sum("fathom_requests_total", &[("outcome", "finished")]),
        3.0
    );
    assert_eq!(one("fathom_requests_total"), 3.0);
    assert_eq!(
        scrape.sum("fathom_rejections_total", &[("code", "CONTEXT_EXCEEDED")]),
        1.0
    );
    assert_eq!(one("fathom_generated_tokens_total"), 90.0);
    assert!(stats.preemptions > 0);
    assert_eq!(one("fathom_preemptions_total"), stats.preemptions as f64);
    let prompts = |source| scrape.sum("fathom_prompt_tokens_total", &[("source", source)]);
    assert_eq!((prompts("computed"), prompts("hit")), (60.0, 0.0));
    assert!(prompts("recomputed") > 0.0);
    // Tokens come in order: one first of each request, all others behind another.
    assert_eq!(one("fathom_time_to_first_token_seconds_count"), 3.0);
    assert_eq!(one("fathom_inter_token_seconds_count"), 87.0);
    for family in ["queue", "e2e", "prefill", "decode", "time_per_output_token"] {
        assert_eq!(
            one(&format!("fathom_{family}_seconds_count")),
            3.0,
            "{family}"
        );
    }
    let steps = one("fathom_steps_total");
    assert_eq!(steps, stats.steps as f64);
    for family in [
        "step_seconds",
        "step_rows",
        "schedule_seconds",
        "post_seconds",
    ] {
        assert_eq!(one(&format!("fathom_{family}_count")), steps, "{family}");
    }
    let rows = host.probe.rows.load(std::sync::atomic::Ordering::Relaxed);
    assert_eq!(one("fathom_step_rows_sum"), rows as f64);
    // Everything was given back.
    let blocks = |state| scrape.sum("fathom_blocks", &[("state", state)]);
    assert_eq!((blocks("owned"), blocks("free")), (0.0, 11.0));
    assert_eq!(scrape.sum("fathom_ring_slots", &[("state", "owned")]), 0.0);
    assert_eq!(one("fathom_requests_running"), 0.0);
    assert_eq!(
        scrape.sum("fathom_engine_state", &[("state", "ready")]),
        1.0
    );
    assert_eq!(one("fathom_engine_state"), 1.0);
    // Buckets never fall, and the last has everything.
    for (name, kind) in &scrape.kinds {
        if kind == "histogram" {
            let count = one(&format!("{name}_count"));
            assert_eq!(
                scrape.sum(&format!("{name}_bucket"), &[("le", "+Inf")]),
                count
            );
        }
    }
}

#[test]
fn two_engines_are_told_apart() {
    let a = host(CanaryOptions::default(), &EngineOptions::default());
    let b = host(CanaryOptions::default(), &EngineOptions::default());
    let label = |text: String| text.split("engine=\"").nth(1).unwrap()[..4].to_owned();
    assert_ne!(
        label(a.engine.metrics_text()),
        label(b.engine.metrics_text())
    );
}

fn steps(json: &str) -> Vec<Value> {
    let json: Value = serde_json::from_str(json).unwrap();
    json["steps"].as_array().unwrap().clone()
}

#[test]
fn steps_are_written_down_also_those_before_a_failure() {
    let canary = CanaryOptions {
        fault: Some((6, Fault::Error(Code::DeviceLost))),
        ..CanaryOptions::default()
    };
    let host = host(
        canary,
        &options(2, r#"{"chunk": 8, "max_step_tokens": 16}"#),
    );
    let mut long = request(1, 30, 50);
    long.ignore_eos = true;
    host.run(long);
    assert_eq!(host.engine.state(), EngineState::Failed);
    let steps = steps(&host.engine.steps_json());
    let number = |step: &Value, name: &str| step[name].as_u64().unwrap();
    // The step that failed has no record.
    assert_eq!(steps.len(), 6);
    let kinds: Vec<_> = steps.iter().map(|s| s["kind"].as_str().unwrap()).collect();
    assert_eq!(
        kinds,
        ["prefill", "prefill", "decode", "decode", "decode", "decode"]
    );
    let prefilled: u64 = steps.iter().map(|s| number(s, "prefill_rows")).sum();
    assert_eq!(prefilled, 30);
    for (at, step) in steps.iter().enumerate() {
        assert_eq!(number(step, "step"), at as u64);
        assert_eq!(number(step, "admitted"), u64::from(at == 0));
        assert_eq!(number(step, "sequences"), 1);
        assert!(number(step, "blocks_used") >= 2);
    }
    let text = Scrape::read(&host.engine.metrics_text());
    assert_eq!(text.sum("fathom_engine_state", &[("state", "failed")]), 1.0);
    assert!(text.sum("fathom_faults_total", &[("code", "DEVICE_LOST")]) >= 1.0);
}

#[test]
fn a_profile_holds_as_many_steps_as_were_asked_for() {
    let host = host(CanaryOptions::default(), &EngineOptions::default());
    let code = |result: Result<String, fathom::engine::Error>| result.unwrap_err().code;
    assert_eq!(code(host.engine.stop_profile()), Code::WrongMoment);
    let refused = host.engine.start_profile(1001).unwrap_err();
    assert_eq!(
        (refused.code, refused.param.as_str()),
        (Code::InvalidParam, "max_steps")
    );

    host.engine.start_profile(5).unwrap();
    let again = host.engine.start_profile(5).unwrap_err();
    assert_eq!(again.code, Code::WrongMoment);
    let mut long = request(1, 10, 30);
    long.ignore_eos = true;
    host.run(long.clone());
    let trace: Value = serde_json::from_str(&host.engine.stop_profile().unwrap()).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let named = |name: &str| events.iter().filter(|e| e["name"] == name).count();
    assert_eq!(named("forward"), 5);
    assert_eq!((named("prefill"), named("decode")), (1, 4));
    assert_eq!((named("blocks"), named("requests")), (5, 5));
    // Parts lie inside their step, and steps do not overlap.
    let spans: Vec<(&str, u64, u64)> = events
        .iter()
        .filter(|event| event["ph"] == "X")
        .map(|event| {
            let number = |name: &str| event[name].as_u64().unwrap();
            let (from, length) = (number("ts"), number("dur"));
            (event["name"].as_str().unwrap(), from, from + length)
        })
        .collect();
    let mut last = (0, 0);
    for &(name, from, to) in &spans {
        if name == "prefill" || name == "decode" {
            assert!(from >= last.1, "{spans:?}");
            last = (from, to);
        } else {
            assert!(from >= last.0 && to <= last.1, "{spans:?}");
        }
    }
    assert_eq!(code(host.engine.stop_profile()), Code::WrongMoment);
    // Nothing is recorded by itself; the default is 20.
    host.engine.start_profile(0).unwrap();
    host.run(long);
    let trace = host.engine.stop_profile().unwrap();
    assert_eq!(trace.matches("\"forward\"").count(), 20);
}
