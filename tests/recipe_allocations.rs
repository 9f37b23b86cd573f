//! A token of an answer costs no allocation: what its push needs is there from the pushes before it.
//!
//! Its own program, because the allocator is everybody's. Growing the answer itself is counted and allowed: it
//! doubles, so it is a handful in any number of tokens.

mod allocator;
mod recipe_support;

use std::ptr::{null, null_mut};
use std::sync::Arc;

use allocator::calls_of;
use fathom::capi::batch::{fathom_batch_free, fathom_batch_new};
use fathom::capi::parser::{fathom_parser_free, fathom_parser_new, fathom_parser_push_tokens};
use fathom::capi::queue::fathom_event;
use fathom::capi::recipe::{
    fathom_prepare, fathom_prepared_free, fathom_recipe_free, fathom_recipe_open,
    fathom_recipe_options, fathom_recipe_options_init,
};
use fathom::capi::types::{FATHOM_OK, fathom_str};
use fathom::recipe::stream::{Output, Parser};
use fathom::recipe::{Prepared, Protocol, Recipe, RecipeOptions};
use recipe_support::client::{id_chunk, text_chunk};
use recipe_support::demo_model;
use serde_json::{Value, json};

const TOKENS: usize = 40_000;
/// How often the texts of an answer of so many tokens grow: the answer, its JSON, the batch.
const GROWTHS: usize = 40;

/// A thought, content with characters and lines cut anywhere, and a call with a long string.
const STRETCHES: [&str; 3] = [
    "thinking of 你好 🤭 and <b>, line\nby line. ",
    "</think>say \"this\" or 2 < 3 | 你好世界 🤭\nor that. ",
    "\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"write\">\n<｜DSML｜ parameter name=\"text\" string=\"true\">line \"of\" 🤭\n text ",
];

/// The first time a stretch is whole; then its last words repeat.
fn stretch(of: usize, bytes: usize) -> String {
    let (head, words) = match of {
        0 => ("", STRETCHES[0]),
        1 => STRETCHES[1].split_at("</think>".len()),
        _ => STRETCHES[2].split_at(STRETCHES[2].len() - "line \"of\" 🤭\n text ".len()),
    };
    let mut text = head.to_owned();
    while text.len() < bytes {
        text.push_str(words);
    }
    text
}

fn body(protocol: Protocol) -> Value {
    let schema = json!({"type": "object", "properties": {"text": {"type": "string"}}});
    let messages = json!([{"role": "user", "content": "Say it."}]);
    let mut body = json!({"model": "DeepSeek-V4.1-Flash", "stream": true});
    let more = match protocol {
        Protocol::Responses => json!({
            "input": "Say it.",
            "reasoning": {"effort": "high"},
            "tools": [{"type": "function", "name": "write", "parameters": schema}],
        }),
        Protocol::Messages => json!({
            "messages": messages,
            "max_tokens": 1024,
            "thinking": {"type": "enabled", "budget_tokens": 1024},
            "tools": [{"name": "write", "input_schema": schema}],
        }),
        _ => json!({
            "messages": messages,
            "thinking": {"type": "enabled"},
            "tools": [{"type": "function", "function": {"name": "write", "parameters": schema}}],
        }),
    };
    let more = more.as_object().unwrap().clone();
    body.as_object_mut().unwrap().extend(more);
    body
}

fn prepared(protocol: Protocol) -> Arc<Prepared> {
    let options = RecipeOptions {
        tokenizer_path: Some(demo_model()),
        ..RecipeOptions::default()
    };
    let recipe = Recipe::open(&options).unwrap();
    let body = body(protocol).to_string();
    Arc::new(recipe.prepare(protocol, body.as_bytes(), None).unwrap())
}

const PROTOCOLS: [Protocol; 3] = [
    Protocol::ChatCompletions,
    Protocol::Responses,
    Protocol::Messages,
];

#[test]
fn pushing_ids_or_text_does_not_allocate() {
    for protocol in PROTOCOLS {
        let prepared = prepared(protocol);
        let tokenizer = prepared.tokenizer.as_ref().unwrap();
        for as_text in [false, true] {
            let mut parser = Parser::new(&prepared).unwrap();
            let mut out = Output::default();
            let mut events = 0;
            for of in 0..STRETCHES.len() {
                let text = stretch(of, TOKENS * 4);
                let ids = tokenizer.encode_allow_special(&text).unwrap();
                let chars: Vec<char> = text.chars().collect();
                let fours: Vec<String> =
                    chars.chunks(4).map(|four| four.iter().collect()).collect();
                let mut push = |at: usize| {
                    out.clear();
                    let chunk = match as_text {
                        true => text_chunk(&fours[at]),
                        false => id_chunk(&ids[at..=at]),
                    };
                    parser.push(&chunk, &mut out).unwrap();
                    events += out.len();
                };
                // Markup and first pushes may allocate: names, items, buffers.
                (0..200).for_each(&mut push);
                let count = if as_text { fours.len() } else { ids.len() };
                assert!(count > TOKENS / 2);
                let calls = calls_of(|| (200..count).for_each(&mut push));
                // Reasoning that comes as text is encoded now and then, to count its tokens.
                let allowed = match as_text && of == 0 {
                    true => GROWTHS + text.len() / 100,
                    false => GROWTHS,
                };
                assert!(
                    calls <= allowed,
                    "{protocol:?}, stretch {of}: {calls} allocations"
                );
            }
            assert!(events > TOKENS, "{events} events");
        }
    }
}

#[test]
fn pushing_through_c_does_not_allocate() {
    for (number, protocol) in [(1, PROTOCOLS[0]), (2, PROTOCOLS[1]), (3, PROTOCOLS[2])] {
        let model = demo_model();
        let model = model.to_str().unwrap();
        let body = body(protocol).to_string();
        let (mut recipe, mut request, mut parser, mut batch) =
            (null_mut(), null_mut(), null_mut(), null_mut());
        let mut options = std::mem::MaybeUninit::<fathom_recipe_options>::uninit();
        // SAFETY: everything is live while it is used, and as large as is said.
        unsafe {
            fathom_recipe_options_init(options.as_mut_ptr(), size_of::<fathom_recipe_options>());
            let mut options = options.assume_init();
            options.tokenizer_path = fathom_str {
                ptr: model.as_ptr().cast(),
                len: model.len(),
            };
            let opened = fathom_recipe_open(&options, &mut recipe, null_mut());
            assert_eq!(opened, FATHOM_OK);
            let (start, length) = (body.as_ptr().cast(), body.len());
            let made = fathom_prepare(recipe, number, start, length, &mut request, null_mut());
            assert_eq!(made, FATHOM_OK);
            assert_eq!(
                fathom_parser_new(request, &mut parser, null_mut()),
                FATHOM_OK
            );
            let made = fathom_batch_new(size_of::<fathom_event>(), &mut batch);
            assert_eq!(made, FATHOM_OK);
        }
        let text = stretch(0, TOKENS * 2) + &stretch(1, TOKENS * 2);
        let ids = prepared(protocol);
        let ids = ids.tokenizer.as_ref().unwrap();
        let ids = ids.encode_allow_special(&text).unwrap();
        let mut seen = 0;
        let mut push = |token: &u32| {
            let (mut events, mut count) = (null::<fathom_event>(), 0);
            // SAFETY: as above; the results are writable.
            let status = unsafe {
                fathom_parser_push_tokens(
                    parser,
                    token,
                    1,
                    batch,
                    &mut events,
                    &mut count,
                    null_mut(),
                )
            };
            assert_eq!(status, FATHOM_OK);
            seen += count;
        };
        ids[..200].iter().for_each(&mut push);
        let calls = calls_of(|| ids[200..].iter().for_each(&mut push));
        // In the middle content begins, and with it an item of Responses.
        assert!(calls <= 2 * GROWTHS, "{protocol:?}: {calls} allocations");
        assert!(
            seen > ids.len() / 2,
            "{seen} events of {} tokens",
            ids.len()
        );
        // SAFETY: each was made above and is freed once.
        unsafe {
            fathom_parser_free(parser);
            fathom_batch_free(batch);
            fathom_prepared_free(request);
            fathom_recipe_free(recipe);
        }
    }
}
