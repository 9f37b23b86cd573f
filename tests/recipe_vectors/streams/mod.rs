//! Recorded outputs: through the C functions in both recoveries, at every chunking, and cut at random.

mod chunkings;
mod compare;
mod neutral;
mod pieces;
mod readers;
mod splits;

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use fathom::capi::recipe::{
    FATHOM_PROTOCOL_CHAT_COMPLETIONS, FATHOM_PROTOCOL_MESSAGES, FATHOM_PROTOCOL_RESPONSES,
};
use fathom::recipe::stream::Recovery;
use fathom::recipe::{Prepared, Protocol};
use serde_json::{Value, json};

use self::compare::{Ran, compare};
use self::pieces::{Piece, recorded};
use self::readers::{InC, InRust, Reader};
use crate::handles;
use crate::recipe_support::requests::{File, recipe};
use crate::recipe_support::{lines, v4_file, v41_file};

/// All cases, and where each is.
struct Cases {
    all: Vec<Value>,
    by_id: HashMap<String, usize>,
}

fn cases() -> &'static Cases {
    static CASES: OnceLock<Cases> = OnceLock::new();
    CASES.get_or_init(|| {
        let all = lines("recipe/streams.jsonl.gz");
        let ids = all
            .iter()
            .map(|case| case["id"].as_str().unwrap().to_owned());
        let by_id = ids.zip(0..).collect();
        Cases { all, by_id }
    })
}

impl Cases {
    /// The case of the same output in one chunk.
    fn base(&self, case: &Value) -> Option<&Value> {
        let base = case.get("base")?.as_str().unwrap();
        Some(&self.all[self.by_id[base]])
    }
}

fn protocol(case: &Value) -> Protocol {
    match case["protocol"].as_str().unwrap() {
        "chat_completions" => Protocol::ChatCompletions,
        "responses" => Protocol::Responses,
        "messages" => Protocol::Messages,
        other => panic!("protocol {other}"),
    }
}

fn is_v41(case: &Value) -> bool {
    match case["encoding"].as_str().unwrap() {
        "v4" => false,
        "v41" => true,
        other => panic!("encoding {other}"),
    }
}

/// Whether the host had a tokenizer.
fn has_tokenizer(case: &Value) -> bool {
    let id = case["id"].as_str().unwrap();
    case["tokenizer"] == true && !id.starts_with("tokens-without-tokenizer")
}

/// Log-probabilities of another number than the ids.
fn only_in_rust(case: &Value) -> bool {
    let id = case["id"].as_str().unwrap();
    id.starts_with("logprob-count-mismatch")
}

/// What the host asked for besides the request.
fn options(case: &Value, recovery: Recovery) -> String {
    let recovery = match recovery {
        Recovery::Robust => "robust",
        Recovery::Strict => "strict",
    };
    let mut options = json!({"recovery": recovery, "id_seed": 5});
    if let Some(parsing) = case.get("options_override") {
        options["parsing"] = parsing.clone();
    }
    options.to_string()
}

/// Recipes through C: of the two tokenizers, and without one.
struct Recipes([handles::Recipe; 3]);

impl Recipes {
    fn open() -> Self {
        let folder = tempfile::tempdir().expect("a scratch folder");
        let open = |name: &str, content: Vec<u8>| {
            let path = folder.path().join(name);
            std::fs::write(&path, content).expect("writable");
            handles::Recipe::open(Some(&path), "", 0)
        };
        Self([
            open("v4.json", v4_file()),
            open("v41.json", v41_file("<｜image｜>")),
            handles::Recipe::open(None, "", 0),
        ])
    }

    fn prepare(&self, case: &Value, recovery: Recovery) -> handles::Prepared {
        let recipe = match (has_tokenizer(case), is_v41(case)) {
            (true, false) => &self.0[0],
            (true, true) => &self.0[1],
            (false, _) => &self.0[2],
        };
        let number = match protocol(case) {
            Protocol::Responses => FATHOM_PROTOCOL_RESPONSES,
            Protocol::Messages => FATHOM_PROTOCOL_MESSAGES,
            _ => FATHOM_PROTOCOL_CHAT_COMPLETIONS,
        };
        let (body, options) = (case["request"].to_string(), options(case, recovery));
        recipe
            .prepare(number, &body, Some(&options))
            .unwrap_or_else(|failure| panic!("{}: {failure:?}", case["id"]))
    }
}

/// The request as the Rust API prepares it.
fn prepared(case: &Value, recovery: Recovery) -> Arc<Prepared> {
    let file = match is_v41(case) {
        false => File::V4,
        true => File::V41,
    };
    let (body, options) = (case["request"].to_string(), options(case, recovery));
    let recipe = recipe(file, &json!({}), 0);
    let prepared = recipe.prepare(protocol(case), body.as_bytes(), Some(&options));
    let mut prepared = prepared.unwrap_or_else(|error| panic!("{}: {error}", case["id"]));
    if !has_tokenizer(case) {
        prepared.tokenizer = None;
    }
    Arc::new(prepared)
}

/// Feeds all pieces, also behind an error, which must come again.
fn run(mut reader: impl Reader, case: &Value, pieces: &[Piece]) -> Ran {
    let (mut events, mut error) = (Vec::new(), None);
    for (at, piece) in pieces.iter().enumerate() {
        match (reader.take(case, piece), &error) {
            (Ok(more), _) => events.extend(more.into_iter().map(|event| (at, event))),
            (Err(message), None) => error = Some((at, message)),
            (Err(again), Some((_, message))) => assert_eq!(&again, message),
        }
    }
    let mut ran = Ran {
        events,
        error,
        response: reader.response(),
    };
    ran.settle(case);
    ran
}

fn check_all(recovery: Recovery, mut check: impl FnMut(&Value) -> Result<(), String>) {
    let mut failures = Vec::new();
    for case in &cases().all {
        if let Err(failure) = check(case) {
            failures.push(format!("{}: {failure}", case["id"]));
        }
    }
    let count = failures.len();
    failures.truncate(8);
    let failures = failures.join("\n");
    assert!(
        count == 0,
        "{count} cases fail in {recovery:?} mode:\n{failures}"
    );
}

/// All cases through C but those that C cannot say, which take the Rust way.
fn check_recorded(recovery: Recovery) {
    let recipes = Recipes::open();
    let mut in_rust = 0;
    check_all(recovery, |case| {
        let pieces = recorded(case);
        let ran = if only_in_rust(case) {
            in_rust += 1;
            let prepared = prepared(case, recovery);
            run(
                InRust::new(&prepared, recovery, protocol(case)),
                case,
                &pieces,
            )
        } else {
            let prepared = recipes.prepare(case, recovery);
            compare_options(case, &prepared)?;
            run(InC::new(&prepared), case, &pieces)
        };
        compare(protocol(case), case, cases().base(case), &ran, recovery)
    });
    assert_eq!((cases().all.len(), in_rust), (913, 3));
}

/// The request leads to the options that the case was recorded with.
fn compare_options(case: &Value, prepared: &handles::Prepared) -> Result<(), String> {
    let (ours, wanted) = (&prepared.options()["parsing_options"], &case["options"]);
    for (name, value) in wanted.as_object().unwrap() {
        if ours[name] != *value {
            return Err(format!("{name} is {}, not {value}", ours[name]));
        }
    }
    Ok(())
}

#[test]
fn recorded_outputs_are_read_by_the_robust_grammar() {
    check_recorded(Recovery::Robust);
}

#[test]
fn recorded_outputs_are_read_by_the_strict_grammar() {
    check_recorded(Recovery::Strict);
}
