//! Any bytes as a request: answered whole, or refused for a fault of their own.

use std::sync::{Arc, OnceLock};

use fathom::recipe::tokenizer::Tokenizer;
use fathom::recipe::{Error, Prepared, Protocol, Recipe, RecipeOptions, Stage};
use serde_json::Value;

use crate::data::repository;
use crate::digest;

/// Everything that makes more requests acceptable, or accepts them in another way.
const OPEN: &str = r#"{
    "fixes": "all", "allow_numeric_effort": true, "accept_max_completion_tokens": true, "messages_prefill": true,
    "engine_params": true, "max_choices": 4, "error_param": true, "messages_web_search": "drop",
    "default_thinking_mode": false, "image_max_side": 65535, "cache_bytes": 65536
}"#;

/// The hosts that are played: one that sets nothing, and one that allows everything.
struct Hosts {
    plain: Recipe,
    open: Recipe,
}

fn hosts() -> &'static Hosts {
    static HOSTS: OnceLock<Hosts> = OnceLock::new();
    HOSTS.get_or_init(|| {
        let file = repository("models/fathom-demo/tokenizer.json");
        let tokenizer = Arc::new(Tokenizer::open(&file).unwrap_or_else(|e| panic!("{e}")));
        let recipe = |options_json: &str| {
            let options = RecipeOptions {
                options_json: options_json.to_owned(),
                ..RecipeOptions::default()
            };
            Recipe::with_tokenizer(&options, Some(Arc::clone(&tokenizer)))
                .unwrap_or_else(|e| panic!("{e}"))
        };
        Hosts {
            plain: recipe(""),
            open: recipe(OPEN),
        }
    })
}

/// Panics if either host makes something wrong of `body`.
pub fn check(protocol: Protocol, body: &[u8]) {
    let hosts = hosts();
    let answer = hosts.plain.prepare(protocol, body, None);
    let is_readable = !matches!(&answer, Err(error) if error.param.is_empty());
    check_answer(&hosts.plain, protocol, body, answer);
    // What is no JSON is none for any host.
    if is_readable {
        check_answer(
            &hosts.open,
            protocol,
            body,
            hosts.open.prepare(protocol, body, None),
        );
    }
}

fn check_answer(recipe: &Recipe, protocol: Protocol, body: &[u8], answer: Result<Prepared, Error>) {
    // Told by the input alone, so that a finding is found again.
    let is_tried_twice = digest(body).is_multiple_of(8);
    match answer {
        Ok(prepared) => {
            check_prepared(recipe, body, &prepared);
            if is_tried_twice {
                let again = recipe
                    .prepare(protocol, body, None)
                    .expect("the body was accepted before");
                assert_eq!(again.tokens, prepared.tokens, "ids differ the second time");
                assert_eq!(again.options_json(), prepared.options_json());
                // Ids that were kept from an earlier prompt are those that this one has alone.
                let alone = recipe.tokenizer().expect("both hosts have one");
                let alone = alone.encode(&prepared.prompt.text, prepared.special_ranges());
                assert_eq!(
                    alone.as_ref(),
                    Ok(&prepared.tokens),
                    "ids depend on what was prepared before"
                );
            }
        }
        Err(error) => {
            check_error(&error);
            if is_tried_twice {
                let again = recipe.prepare(protocol, body, None);
                assert_eq!(again.err(), Some(error), "another answer the second time");
            }
        }
    }
}

fn check_prepared(recipe: &Recipe, body: &[u8], prepared: &Prepared) {
    let text = &prepared.prompt.text;
    let mut end = 0;
    for range in prepared.special_ranges() {
        assert!(
            range.start >= end && range.start < range.end,
            "{range:?} after {end}"
        );
        assert!(
            text.get(range.clone()).is_some(),
            "{range:?} cuts a character"
        );
        end = range.end;
    }
    let tokenizer = recipe.tokenizer().expect("both hosts have one");
    let decoded: Vec<u8> = prepared
        .tokens
        .iter()
        .flat_map(|id| {
            tokenizer
                .token_bytes(*id)
                .expect("ids are in the vocabulary")
        })
        .copied()
        .collect();
    assert!(decoded == text.as_bytes(), "the ids spell another text");
    let added = prepared.tokens.iter().filter(|id| tokenizer.is_added(**id));
    assert_eq!(added.count(), prepared.special_ranges().len());
    for image in prepared.images.iter().filter(|image| image.is_placed) {
        let at = image.position.expect("a placed image has a position");
        assert!(tokenizer.is_added(prepared.tokens[at]));
    }

    let described = prepared.options_json();
    let options: Value = serde_json::from_str(&described).expect("the description is JSON");
    assert!(options["conversation"]["messages"].is_array());
    assert!(prepared.max_tokens >= 1);

    // Templates say at most so much for each thing that a body names in a few bytes.
    let (fixed, factor) = (16_384, 24);
    let bound = fixed + factor * body.len();
    assert!(
        text.len() <= bound,
        "{} bytes of prompt from {}",
        text.len(),
        body.len()
    );
    assert!(
        described.len() <= bound,
        "{} bytes of description from {}",
        described.len(),
        body.len()
    );
}

fn check_error(error: &Error) {
    assert!(!error.message.is_empty(), "{error:?}");
    let names_a_place = match error.stage {
        // The whole body is at fault; where its shape is, the place is told.
        Stage::Utf8 | Stage::Unsupported => false,
        Stage::Deserialize => {
            // The last is a field whose name is empty, and so is its path.
            let of_the_body = [
                "invalid JSON request: ",
                "invalid request body: expected an object",
                "invalid request body: unknown field \"\"",
            ];
            !of_the_body
                .iter()
                .any(|start| error.message.starts_with(start))
        }
        Stage::Convert | Stage::Model | Stage::Budget => true,
        _ => panic!("a request was answered with {error:?}"),
    };
    assert!(!names_a_place || !error.param.is_empty(), "{error:?}");
}
