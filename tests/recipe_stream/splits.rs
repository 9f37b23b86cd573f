//! Any input in any split: the same events, nothing lost, nothing broken.

use std::sync::Arc;

use fathom::recipe::stream::{
    Chunk, DeclaredTool, Finish, Output, Parser, ParserOptions, Recovery,
};
use fathom::recipe::{ParsingOptions, ThinkingStage};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::merge::{merged, without};
use crate::support::{Tokens, data, options, read, run, run_ids, seen};

const FRAGMENTS: [&str; 40] = [
    "<",
    "</",
    ">",
    "\n",
    "\n\n",
    " ",
    "x",
    "é",
    "🤭",
    "{",
    "}",
    "[",
    "\"",
    "=",
    "/",
    "`",
    "```json\n",
    "\n```",
    "END",
    "EN",
    "<think>",
    "</think>",
    "｜DSML｜",
    "｜",
    "|DSML|",
    "‖DSML‖",
    "tool_calls",
    " calls",
    "calls>",
    "invoke",
    " name=\"f\"",
    "parameter",
    " string=\"true\"",
    " string=\"false\"",
    "<｜DSML｜tool_calls>",
    "<｜DSML｜invoke name=\"f\">",
    "<｜DSML｜parameter name=\"a\" string=\"true\">",
    "</｜DSML｜parameter>",
    "</｜DSML｜invoke>",
    "</｜DSML｜tool_calls>",
];

pub(crate) fn any_text() -> impl Strategy<Value = String> {
    let fragment = prop_oneof![
        8 => proptest::sample::select(FRAGMENTS.as_slice()).prop_map(str::to_owned),
        1 => "[ -~\n]{0,4}",
        1 => Just("<｜end▁of▁sentence｜>".to_owned()),
    ];
    proptest::collection::vec(fragment, 0..24).prop_map(|parts| parts.concat())
}

pub(crate) fn any_options() -> impl Strategy<Value = ParserOptions> {
    let stage = proptest::sample::select(vec![
        None,
        Some(ThinkingStage::ReasoningStart),
        Some(ThinkingStage::ReasoningContinuation),
        Some(ThinkingStage::ContentContinuation),
    ]);
    let stops = proptest::sample::select(vec![
        vec![],
        vec!["END"],
        vec!["\n\n", "x\n<"],
        vec!["｜DSML｜c"],
    ]);
    let tools = proptest::sample::select(vec![None, Some(vec![]), Some(vec!["f"])]);
    let flags = proptest::array::uniform5(any::<bool>());
    (stage, stops, tools, flags).prop_map(
        |(stage, stops, tools, [calls, starts, json, continues, strict])| {
            let mut options = options();
            options.parsing = ParsingOptions {
                parse_tool_calls: calls || starts,
                starts_in_tool_calls: starts && calls,
                parse_json_output: json,
                thinking_initial_stage: stage,
                stop_sequences: stops.into_iter().map(str::to_owned).collect(),
            };
            options.continues_message = continues;
            options.tools = tools.map(|names: Vec<&str>| {
                let tool = |name: &str| DeclaredTool {
                    name: name.into(),
                    properties: vec!["a".into()],
                };
                names.into_iter().map(tool).collect()
            });
            options.stream.recovery = if strict {
                Recovery::Strict
            } else {
                Recovery::Robust
            };
            options
        },
    )
}

pub(crate) fn any_finish() -> impl Strategy<Value = Finish> {
    proptest::sample::select(vec![Finish::Stop, Finish::Length, Finish::EndOfStream])
}

/// The reference writes one blank for each chunk of noise around JSON; nothing else depends on chunks.
pub(crate) fn splittable(mut options: ParserOptions) -> ParserOptions {
    options.parsing.parse_json_output &= options.stream.recovery == Recovery::Robust;
    options
}

/// Events of ids whose log-probabilities are minus their place.
fn run_logprobs(options: &ParserOptions, ids: &[u32], step: usize, finish: Finish) -> Vec<Value> {
    let mut parser = Parser::with(options.clone(), Some(Arc::new(Tokens::bytewise()))).unwrap();
    let mut out = Output::default();
    let mut place = 0.0;
    for tokens in ids.chunks(step) {
        let logprobs: Vec<f32> = tokens
            .iter()
            .map(|_| {
                place -= 1.0;
                place
            })
            .collect();
        parser
            .push(
                &Chunk {
                    tokens,
                    logprobs: &logprobs,
                    ..Chunk::default()
                },
                &mut out,
            )
            .unwrap();
    }
    parser.finish(finish, None, &mut out).unwrap();
    data(&out)
}

/// Events with everything that may differ from run to run made equal. Where a stop sequence ended the
/// output, how much of the last chunk was counted depends on the chunk.
fn comparable(events: Vec<Value>) -> Vec<Value> {
    let events = events.into_iter().map(|mut event| {
        event["created"] = json!(0);
        event
    });
    without(merged(events), true, false)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_split_of_text_gives_the_same_events(
        text in any_text(),
        options in any_options(),
        finish in any_finish(),
        cuts in proptest::collection::vec(any::<prop::sample::Index>(), 0..12),
    ) {
        let options = splittable(options);
        let (whole, parser) = run(&options, &[&text], finish);
        let whole = comparable(whole);
        let places: Vec<usize> = text.char_indices().map(|(at, _)| at).chain([text.len()]).collect();
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| places[cut.index(places.len())]).collect();
        cuts.sort_unstable();
        let mut pieces = Vec::new();
        let mut from = 0;
        for cut in cuts.into_iter().chain([text.len()]) {
            pieces.push(&text[from..cut]);
            from = cut;
        }
        let (split, split_parser) = run(&options, &pieces, finish);
        prop_assert_eq!(comparable(split), whole.clone(), "split {:?}", pieces);
        let chars: Vec<String> = text.chars().map(String::from).collect();
        let chars: Vec<&str> = chars.iter().map(String::as_str).collect();
        let (by_char, char_parser) = run(&options, &chars, finish);
        prop_assert_eq!(comparable(by_char), whole, "by character");
        prop_assert_eq!(split_parser.diagnostics(), parser.diagnostics());
        prop_assert_eq!(char_parser.diagnostics(), parser.diagnostics());
    }

    #[test]
    fn any_split_of_ids_gives_the_same_events(
        text in any_text(),
        noise in proptest::collection::vec(any::<u8>(), 0..6),
        options in any_options(),
        finish in any_finish(),
        step in 1usize..9,
    ) {
        let options = splittable(options);
        let mut ids = Tokens::encode(&text);
        // The reference drops broken bytes at the end of a chunk or keeps them, as it happens.
        let noise = if options.stream.recovery == Recovery::Strict { Vec::new() } else { noise };
        let middle = ids.len() / 2;
        ids.splice(middle..middle, noise.iter().map(|&byte| u32::from(byte)));
        let (whole, parser) = run_ids(&options, &ids, ids.len().max(1), finish);
        let (split, split_parser) = run_ids(&options, &ids, step, finish);
        prop_assert_eq!(comparable(split), comparable(whole));
        prop_assert_eq!(split_parser.diagnostics(), parser.diagnostics());
    }

    #[test]
    fn finished_calls_have_an_object_and_the_response_says_what_the_events_say(
        text in any_text(),
        options in any_options(),
        finish in any_finish(),
    ) {
        let (events, parser) = run(&options, &[&text], finish);
        let seen = seen(&events);
        let response: Value = serde_json::from_str(&parser.response().unwrap()).unwrap();
        let message = &response["choices"][0]["message"];
        prop_assert_eq!(message["content"].as_str().unwrap(), &seen.content);
        prop_assert_eq!(message["reasoning_content"].as_str().unwrap_or_default(), &seen.reasoning);
        prop_assert_eq!(response["choices"][0]["finish_reason"].as_str(), seen.finish.as_deref());
        for (index, (name, arguments)) in seen.calls.iter().enumerate() {
            prop_assert_eq!(&message["tool_calls"][index]["function"]["arguments"], arguments);
            if options.stream.recovery == Recovery::Robust && index + 1 < seen.calls.len() {
                let value: Value = serde_json::from_str(arguments).unwrap_or_default();
                prop_assert!(value.is_object(), "{name} {arguments}");
            }
        }
    }

    #[test]
    fn each_logprob_comes_once_with_its_first_byte_in_any_split(
        text in any_text(),
        options in any_options(),
        finish in any_finish(),
        step in 1usize..9,
    ) {
        let mut options = options;
        options.stream.recovery = Recovery::Robust;
        let ids = Tokens::encode(&text);
        let whole = comparable(run_logprobs(&options, &ids, ids.len().max(1), finish));
        prop_assert_eq!(&comparable(run_logprobs(&options, &ids, step, finish)), &whole);
        let mut places = Vec::new();
        for event in &whole {
            let choice = &event["choices"][0];
            for (name, entries) in choice["logprobs"].as_object().into_iter().flatten() {
                let entries = entries.as_array().unwrap();
                // A byte a token here, so only the bytes of one character may share a place.
                let text = choice["delta"][name].as_str().unwrap();
                prop_assert!(entries.len() <= text.len(), "{}", choice);
                prop_assert!(entries.len() >= text.chars().filter(char::is_ascii_lowercase).count().min(1), "{}", choice);
                places.extend(entries.iter().map(|entry| entry["logprob"].as_f64().unwrap()));
            }
        }
        prop_assert!(places.is_sorted_by(|a, b| a > b), "{:?}", places);
    }

    #[test]
    fn text_without_markup_is_never_lost(text in "[a-z{}\"=/ \n|]{0,40}", options in any_options()) {
        let mut options = options;
        options.parsing.stop_sequences.clear();
        options.parsing.parse_json_output = false;
        options.stream.recovery = Recovery::Robust;
        let seen = read(&options, &text, Finish::Stop);
        let read = seen.reasoning + &seen.content;
        let kept = text.trim_start_matches('\n');
        prop_assert!(read == text || read == kept || (kept.trim().is_empty() && read.is_empty()), "{:?}", read);
    }
}
