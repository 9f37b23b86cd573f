//! Looks for model outputs of which fathom in strict recovery and deepseek-recipe 0.2.0 make different events.
//!
//! `cargo run --release --bin recipe_outputs -- [cases] [seed]`. Random outputs of text and markup, as text or as ids
//! of a small vocabulary, in random chunks, under random parsing options, in each protocol; both get the same chunks,
//! so everything must agree but the cuts between deltas: texts, usage, and what noise around JSON becomes. Prints one
//! JSON object a kind of difference with the smallest output that shows it, then a summary; fails if there was any.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use deepseek_recipe::anthropic::MessagesRequest;
use deepseek_recipe::openai::{ChatCompletionRequest, ResponsesRequest};
use deepseek_recipe::request::{ConversionOptions, ProtocolRequest};
use deepseek_recipe::response::ProtocolResponse;
use deepseek_recipe::stream::{
    ChunkGenerator, InferenceChunk, InferenceFinishReason, StreamProcessor, StreamTokenizer,
    ThinkingInitialStage,
};
use fathom::recipe::stream::{Chunk, Finish, Output, Parser, ParserOptions, Recovery, Vocabulary};
use fathom::recipe::{ParsingOptions, Prepared, Protocol, Recipe, RecipeOptions, ThinkingStage};
use serde_json::{Value, json};

const PROTOCOLS: [Protocol; 3] = [
    Protocol::ChatCompletions,
    Protocol::Responses,
    Protocol::Messages,
];

/// What outputs are made of.
const FRAGMENTS: [&str; 48] = [
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
    "[1, 2]",
    "\"",
    "=",
    "/",
    "\\",
    "`",
    "```json\n",
    "```\n",
    "\n```",
    "END",
    "EN",
    "abab",
    "<think>",
    "</think>",
    "</th",
    "｜DSML｜",
    "｜",
    "DSML",
    "tool_calls>",
    " calls>",
    "invoke name=\"",
    "invoke",
    " name=\"f\">",
    "parameter name=",
    "\"a\" string=\"true\">",
    "\"b\" string=\"false\">",
    "true\">",
    "false\">",
    "<｜DSML｜tool_calls>\n",
    "<｜DSML｜invoke name=\"f\">\n",
    "<｜DSML｜parameter name=\"a\" string=\"true\">",
    "<｜DSML｜parameter name=\"b\" string=\"false\">",
    "</｜DSML｜parameter>\n",
    "</｜DSML｜invoke>\n",
    "</｜DSML｜tool_calls>",
    "</｜DSML｜ calls>",
    "<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"f\">\n<｜DSML｜parameter name=\"a\" string=\"true\">",
];
const STOPS: [&[&str]; 6] = [
    &[],
    &["END"],
    &["\n\n", "x\n<"],
    &["abab", "ba"],
    &["\n"],
    &["</think>", "é🤭"],
];
const SPECIAL: [&str; 5] = [
    "<｜end▁of▁sentence｜>",
    "<think>",
    "</think>",
    "｜DSML｜",
    "<｜ref｜>",
];
/// The first special id; those below stand for one byte each.
const FIRST_SPECIAL: u32 = 256;

/// A vocabulary of bytes and special tokens, for both.
#[derive(Clone, Debug)]
struct Bytes(Arc<Vec<Vec<u8>>>);

impl Bytes {
    fn new() -> Self {
        let single = (0..=255u8).map(|byte| vec![byte]);
        let special = SPECIAL.iter().map(|text| text.as_bytes().to_vec());
        Self(Arc::new(single.chain(special).collect()))
    }

    fn encode(text: &str, special: bool) -> Vec<u32> {
        let mut ids = Vec::new();
        let mut rest = text;
        while let Some(first) = rest.chars().next() {
            let found = SPECIAL
                .iter()
                .position(|token| special && rest.starts_with(token));
            let length = match found {
                Some(at) => {
                    ids.push(FIRST_SPECIAL + at as u32);
                    SPECIAL[at].len()
                }
                None => {
                    ids.extend(rest[..first.len_utf8()].bytes().map(u32::from));
                    first.len_utf8()
                }
            };
            rest = &rest[length..];
        }
        ids
    }
}

impl StreamTokenizer for Bytes {
    fn decode_ids(&self, ids: &[u32], _skip_special_tokens: bool) -> Result<String, String> {
        let bytes: Vec<u8> = ids
            .iter()
            .flat_map(|id| self.0[*id as usize].clone())
            .collect();
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }
    fn count_tokens(&self, text: &str) -> Option<usize> {
        Some(text.chars().count())
    }
    fn is_special_token(&self, id: u32) -> bool {
        id >= FIRST_SPECIAL
    }
}

impl Vocabulary for Bytes {
    fn bytes(&self, token: u32) -> Option<&[u8]> {
        self.0.get(token as usize).map(Vec::as_slice)
    }
    fn is_added(&self, token: u32) -> bool {
        token >= FIRST_SPECIAL
    }
    fn token_id(&self, text: &str) -> Option<u32> {
        let at = SPECIAL.iter().position(|token| *token == text)?;
        Some(FIRST_SPECIAL + at as u32)
    }
    fn count(&self, text: &str) -> Option<u32> {
        u32::try_from(text.chars().count()).ok()
    }
}

#[derive(Clone, Debug, PartialEq)]
enum Piece {
    Text(String),
    Ids(Vec<u32>),
}

/// One output and how it is read.
#[derive(Clone, Debug)]
struct Case {
    protocol: Protocol,
    parsing: ParsingOptions,
    include_usage: bool,
    vocabulary: bool,
    pieces: Vec<Piece>,
    finish: Option<Finish>,
}

impl Case {
    fn thinks(&self) -> bool {
        self.parsing.thinking_initial_stage.is_some()
    }
}

/// Splitmix64.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % end as u64) as usize
    }

    fn one_in(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }

    fn pick<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.below(list.len())]
    }

    fn case(&mut self) -> Case {
        let calls = !self.one_in(5);
        let stops = if self.one_in(2) {
            &[][..]
        } else {
            self.pick(&STOPS)
        };
        let parsing = ParsingOptions {
            parse_tool_calls: calls,
            starts_in_tool_calls: calls && self.one_in(8),
            parse_json_output: self.one_in(5),
            thinking_initial_stage: self.pick(&[
                None,
                Some(ThinkingStage::ReasoningStart),
                Some(ThinkingStage::ReasoningContinuation),
                Some(ThinkingStage::ContentContinuation),
            ]),
            stop_sequences: stops.iter().map(|&stop| stop.to_owned()).collect(),
        };
        let count = 1 + self.below(20);
        let text: String = (0..count).map(|_| self.pick(&FRAGMENTS)).collect();
        let ids = self.one_in(2);
        let pieces = if ids {
            let special = !self.one_in(8);
            let mut ids = Bytes::encode(&text, special);
            if self.one_in(6) {
                // Bytes that are no character.
                let at = self.below(ids.len() + 1);
                let noise = self.pick(&[0xF0, 0x9F, 0xAD, 0xFF, 0xE2]);
                ids.insert(at, noise);
            }
            self.split(&ids).into_iter().map(Piece::Ids).collect()
        } else {
            let chars: Vec<char> = text.chars().collect();
            let pieces = self.split(&chars).into_iter();
            pieces
                .map(|piece| Piece::Text(piece.into_iter().collect()))
                .collect()
        };
        Case {
            protocol: self.pick(&PROTOCOLS),
            parsing,
            include_usage: self.one_in(2),
            vocabulary: ids || self.one_in(4),
            pieces,
            finish: self.pick(&[
                Some(Finish::Stop),
                Some(Finish::Stop),
                Some(Finish::Length),
                Some(Finish::ContentFilter),
                None,
            ]),
        }
    }

    fn split<T: Clone>(&mut self, list: &[T]) -> Vec<Vec<T>> {
        let longest = self.pick(&[1, 3, 12, 60, 4000]);
        let mut all = Vec::new();
        let mut rest = list;
        while !rest.is_empty() {
            let (piece, behind) = rest.split_at((1 + self.below(longest)).min(rest.len()));
            all.push(piece.to_vec());
            rest = behind;
        }
        all
    }
}

/// A request that leads to these choices; a response says by its first events whether it thinks.
fn body(protocol: Protocol, include_usage: bool, thinks: bool) -> Value {
    let message = json!([{"role": "user", "content": "hi"}]);
    let model = "DeepSeek-V4-Pro";
    let thinking = json!({"type": if thinks { "enabled" } else { "disabled" }});
    match protocol {
        Protocol::ChatCompletions => json!({
            "model": model, "messages": message, "stream": true, "thinking": thinking,
            "stream_options": {"include_usage": include_usage},
        }),
        Protocol::Messages => {
            json!({
                "model": model, "messages": message, "stream": true, "max_tokens": 10, "thinking": thinking,
            })
        }
        Protocol::Responses | Protocol::Conversation => {
            json!({
                "model": model, "input": "hi", "stream": true,
                "reasoning": {"effort": if thinks { "high" } else { "none" }},
            })
        }
    }
}

fn theirs(case: &Case, vocabulary: &Bytes) -> Vec<Value> {
    match case.protocol {
        Protocol::ChatCompletions => theirs_of::<ChatCompletionRequest>(case, vocabulary),
        Protocol::Messages => theirs_of::<MessagesRequest>(case, vocabulary),
        Protocol::Responses | Protocol::Conversation => {
            theirs_of::<ResponsesRequest>(case, vocabulary)
        }
    }
}

fn theirs_of<R>(case: &Case, vocabulary: &Bytes) -> Vec<Value>
where
    R: ProtocolRequest + serde::de::DeserializeOwned,
    <<R::Response as ProtocolResponse>::ChunkGenerator as ChunkGenerator>::Chunk:
        serde::Serialize + Send,
{
    let request: R = serde_json::from_value(body(case.protocol, case.include_usage, case.thinks()))
        .expect("a request");
    let request = request.convert(ConversionOptions::default());
    let mut request = request.expect("it converts");
    let (theirs, ours) = (&mut request.parsing_options, &case.parsing);
    theirs.parse_tool_calls = ours.parse_tool_calls;
    theirs.starts_in_tool_calls = ours.starts_in_tool_calls;
    theirs.parse_json_output = ours.parse_json_output;
    theirs.stop_sequences.clone_from(&ours.stop_sequences);
    theirs.thinking_initial_stage = ours.thinking_initial_stage.map(|stage| match stage {
        ThinkingStage::ReasoningStart => ThinkingInitialStage::ReasoningStart,
        ThinkingStage::ReasoningContinuation => ThinkingInitialStage::ReasoningContinuation,
        ThinkingStage::ContentContinuation => ThinkingInitialStage::ContentContinuation,
    });
    let generator = R::chunk_generator(&request, "id".into(), "model".into());
    let mut processor = StreamProcessor::new(generator, request.parsing_options);
    if case.vocabulary {
        processor = processor.with_tokenizer(vocabulary.clone());
    }
    let pieces = case.pieces.iter().map(|piece| match piece {
        Piece::Text(text) => InferenceChunk::Text {
            content: text.clone(),
            token_count: 1,
        },
        Piece::Ids(ids) => InferenceChunk::Tokens {
            token_ids: ids.clone(),
            logprobs: None,
        },
    });
    let finish = case.finish.map(|finish| InferenceChunk::Finish {
        finish_reason: match finish {
            Finish::Length => InferenceFinishReason::Length,
            Finish::ContentFilter => InferenceFinishReason::ContentFilter,
            _ => InferenceFinishReason::Stop,
        },
    });
    let chunks: Vec<_> = pieces.chain(finish).collect();
    let mut events = pin!(processor.into_protocol_stream(tokio_stream::iter(chunks)));
    let mut context = Context::from_waker(Waker::noop());
    let mut all = Vec::new();
    loop {
        match tokio_stream::Stream::poll_next(events.as_mut(), &mut context) {
            Poll::Ready(Some(Ok(event))) => {
                all.push(serde_json::to_value(&event).expect("events are JSON"));
            }
            Poll::Ready(Some(Err(error))) => all.push(json!({"failed": error.to_string()})),
            Poll::Ready(None) => return all,
            // It lets others run now and then.
            Poll::Pending => {}
        }
    }
}

/// One prepared request of each protocol, with and without usage and thinking.
struct Ours(Vec<(Protocol, bool, bool, Prepared)>);

impl Ours {
    fn new() -> Self {
        let recipe = Recipe::with_tokenizer(&RecipeOptions::default(), None).expect("defaults");
        let choices = [(false, false), (false, true), (true, false), (true, true)];
        let all = PROTOCOLS
            .iter()
            .flat_map(|&protocol| choices.map(|(usage, thinks)| (protocol, usage, thinks)));
        let prepared = all.map(|(protocol, usage, thinks)| {
            let body = body(protocol, usage, thinks).to_string();
            let prepared = recipe.prepare(protocol, body.as_bytes(), None);
            let prepared = prepared.unwrap_or_else(|error| panic!("{error}"));
            (protocol, usage, thinks, prepared)
        });
        Self(prepared.collect())
    }

    fn events(&self, case: &Case, vocabulary: &Bytes) -> Vec<Value> {
        let wanted = (case.protocol, case.include_usage, case.thinks());
        let found = self
            .0
            .iter()
            .find(|(protocol, usage, thinks, _)| (*protocol, *usage, *thinks) == wanted);
        let mut options = ParserOptions::of(&found.expect("one of each").3);
        options.parsing = case.parsing.clone();
        options.stream.recovery = Recovery::Strict;
        let vocabulary = case.vocabulary.then(|| Arc::new(vocabulary.clone()) as _);
        let mut parser = Parser::with(options, vocabulary).expect("a seed");
        let mut all = Vec::new();
        let mut out = Output::default();
        // Their answers have an identity before they start: a start here would start ours.
        let mut error = None;
        for piece in &case.pieces {
            let result = match piece {
                Piece::Text(text) => parser.push(
                    &Chunk {
                        text: Some(text),
                        text_tokens: 1,
                        ..Chunk::default()
                    },
                    &mut out,
                ),
                Piece::Ids(ids) => parser.push(
                    &Chunk {
                        tokens: ids,
                        ..Chunk::default()
                    },
                    &mut out,
                ),
            };
            error = error.or(result.err());
            take(&mut out, &mut all);
        }
        if let Some(error) = error {
            all.push(json!({"failed": error.message}));
            return all;
        }
        let finish = case.finish.unwrap_or(Finish::EndOfStream);
        parser
            .finish(finish, None, &mut out)
            .expect("an open stream");
        take(&mut out, &mut all);
        all
    }
}

/// The JSON of the events. Nothing else here knows how outputs are made.
fn take(out: &mut Output, all: &mut Vec<Value>) {
    for event in out.events() {
        all.push(serde_json::from_str(&event.data).expect("an event is JSON"));
    }
    *out = Output::default();
}

/// Makes equal what differs from run to run: times, random parts, the answer's identity.
fn normalise(value: &mut Value, own_id: &str) {
    match value {
        Value::Object(map) => {
            map.shift_remove("sequence_number");
            for (name, value) in map {
                match name.as_str() {
                    "created" | "created_at" | "completed_at" => *value = json!(value.is_null()),
                    "model" => *value = json!("model"),
                    _ => normalise(value, own_id),
                }
            }
        }
        Value::Array(list) => list.iter_mut().for_each(|item| normalise(item, own_id)),
        Value::String(text) => {
            if text.starts_with("call_") && text.len() >= 32 {
                text.truncate(text.len() - 24);
            }
            if !own_id.is_empty() {
                *text = text.replace(own_id, "id");
            }
        }
        _ => {}
    }
}

/// Where the text of a delta is.
const TEXTS: [&str; 7] = [
    "/choices/0/delta/content",
    "/choices/0/delta/reasoning_content",
    "/choices/0/delta/tool_calls/0/function/arguments",
    "/delta",
    "/delta/text",
    "/delta/thinking",
    "/delta/partial_json",
];

/// The text of a delta and what is left of the event without it.
fn delta(event: &Value) -> Option<(&'static str, String, Value)> {
    let choice = &event["choices"][0];
    let begins = !choice["finish_reason"].is_null()
        || choice["delta"].get("role").is_some()
        || choice["delta"]["tool_calls"][0].get("id").is_some();
    if begins {
        return None;
    }
    let mut rest = event.clone();
    TEXTS.iter().find_map(|&path| {
        let text = rest.pointer(path)?.as_str()?.to_owned();
        *rest.pointer_mut(path)? = Value::Null;
        Some((path, text, rest.take()))
    })
}

/// Neighbouring deltas of one kind and target become one; empty ones go.
fn merged(events: Vec<Value>) -> Vec<Value> {
    let first = events.first();
    let id = first.and_then(|event| {
        [
            &event["id"],
            &event["response"]["id"],
            &event["message"]["id"],
        ]
        .into_iter()
        .find_map(|id| id.as_str())
    });
    let id = id.filter(|id| *id != "id").unwrap_or_default().to_owned();
    let mut all: Vec<Value> = Vec::new();
    for mut event in events {
        normalise(&mut event, &id);
        if let Some((path, text, rest)) = delta(&event) {
            if text.is_empty() {
                continue;
            }
            if let Some(last) = all.last_mut()
                && let Some((before_path, before, before_rest)) = delta(last)
                && (before_path, &before_rest) == (path, &rest)
                && let Some(place) = last.pointer_mut(path)
            {
                *place = json!(before + &text);
                continue;
            }
        }
        all.push(event);
    }
    all
}

/// What differs first: the kind of its event, ours and theirs.
fn difference(case: &Case, ours: &Ours, vocabulary: &Bytes) -> Option<(String, Value, Value)> {
    let theirs = merged(theirs(case, vocabulary));
    let ours = merged(ours.events(case, vocabulary));
    let count = theirs.len().max(ours.len());
    let at = (0..count).find(|&at| theirs.get(at) != ours.get(at))?;
    let event = |list: &[Value]| list.get(at).cloned().unwrap_or_default();
    let (ours, theirs) = (event(&ours), event(&theirs));
    let kind = |event: &Value| match delta(event) {
        Some((path, ..)) => path.to_owned(),
        None => match event["type"].as_str() {
            Some(kind) => kind.to_owned(),
            None if event.is_null() => "nothing".to_owned(),
            None => "another event".to_owned(),
        },
    };
    let only_usage = {
        let without = |event: &Value| {
            let mut event = event.clone();
            for at in ["", "/response"] {
                if let Some(map) = event.pointer_mut(at).and_then(Value::as_object_mut) {
                    map.shift_remove("usage");
                }
            }
            event
        };
        without(&ours) == without(&theirs)
    };
    let how = if only_usage { " usage" } else { "" };
    let input = match case.pieces.first() {
        Some(Piece::Ids(_)) => "ids",
        _ => "text",
    };
    let json = if case.parsing.parse_json_output {
        " json"
    } else {
        ""
    };
    let kind = format!(
        "{:?} {input}{json}: ours {}, theirs {}{how}",
        case.protocol,
        kind(&ours),
        kind(&theirs)
    );
    Some((kind, ours, theirs))
}

/// A smaller output with the same kind of difference.
fn reduce(case: Case, is_same: impl Fn(&Case) -> bool) -> Case {
    let mut best = case;
    loop {
        let mut smaller = Vec::new();
        for at in 0..best.pieces.len() {
            let mut case = best.clone();
            case.pieces.remove(at);
            smaller.push(case);
            let halves: Vec<Piece> = match &best.pieces[at] {
                Piece::Text(text) => {
                    let chars: Vec<char> = text.chars().collect();
                    let drop = |skip: usize| {
                        let kept = chars.iter().enumerate().filter(|(at, _)| *at != skip);
                        Piece::Text(kept.map(|(_, c)| *c).collect())
                    };
                    (0..chars.len()).map(drop).collect()
                }
                Piece::Ids(ids) => {
                    let drop = |skip: usize| {
                        let kept = ids.iter().enumerate().filter(|(at, _)| *at != skip);
                        Piece::Ids(kept.map(|(_, id)| *id).collect())
                    };
                    (0..ids.len()).map(drop).collect()
                }
            };
            for piece in halves {
                let mut case = best.clone();
                case.pieces[at] = piece;
                smaller.push(case);
            }
        }
        for at in 0..best.parsing.stop_sequences.len() {
            let mut case = best.clone();
            case.parsing.stop_sequences.remove(at);
            smaller.push(case);
        }
        match smaller.into_iter().find(|case| is_same(case)) {
            Some(case) => best = case,
            None => return best,
        }
    }
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let mut number = |default: u64| {
        let given = arguments.next();
        given.map_or(default, |text| text.parse().expect("a number"))
    };
    let (cases, seed) = (number(1_000_000), number(1));
    let vocabulary = Bytes::new();
    let ours = Ours::new();
    let mut random = Random(seed);
    let mut groups: BTreeMap<String, (u64, String)> = BTreeMap::new();
    let mut differ = 0;
    for _ in 0..cases {
        let case = random.case();
        let Some((kind, ..)) = difference(&case, &ours, &vocabulary) else {
            continue;
        };
        differ += 1;
        if let Some((count, _)) = groups.get_mut(&kind) {
            *count += 1;
            continue;
        }
        let is_same = |case: &Case| {
            difference(case, &ours, &vocabulary).is_some_and(|(other, ..)| other == kind)
        };
        let small = reduce(case, is_same);
        let (_, mine, other) = difference(&small, &ours, &vocabulary).expect("still different");
        let example = json!({
            "case": format!("{small:?}"), "ours": mine, "theirs": other,
        });
        groups.insert(kind, (1, example.to_string()));
    }
    for (kind, (count, example)) in &groups {
        println!(
            "{{\"kind\":{},\"count\":{count},\"example\":{example}}}",
            json!(kind)
        );
    }
    println!(
        "{}",
        json!({"cases": cases, "differ": differ, "kinds": groups.len()})
    );
    assert!(groups.is_empty(), "differences");
}
