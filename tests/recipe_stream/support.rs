//! A vocabulary of a few tokens, a parser run in one line, and what a client makes of the events.

use std::collections::HashMap;
use std::sync::Arc;

use fathom::recipe::encoding::{Encoding, SpecialTokens};
use fathom::recipe::stream::{Finish, Output, Parser, ParserOptions, StreamOptions, Vocabulary};
use fathom::recipe::{ParsingOptions, Protocol, ResponseOptions};
use serde_json::Value;

pub(crate) use crate::recipe_support::client::{
    Seen, data, id_chunk, seen, seen_content, text_chunk,
};

/// A vocabulary made of its parts.
#[derive(Debug, Default)]
pub(crate) struct Tokens {
    pub(crate) bytes: HashMap<u32, Vec<u8>>,
    pub(crate) special: Vec<u32>,
    pub(crate) counts: HashMap<String, u32>,
}

impl Vocabulary for Tokens {
    fn bytes(&self, token: u32) -> Option<&[u8]> {
        self.bytes.get(&token).map(Vec::as_slice)
    }
    fn is_added(&self, token: u32) -> bool {
        self.special.contains(&token)
    }
    fn token_id(&self, text: &str) -> Option<u32> {
        self.special.iter().copied().find(|id| {
            self.bytes
                .get(id)
                .is_some_and(|bytes| bytes == text.as_bytes())
        })
    }
    fn count(&self, text: &str) -> Option<u32> {
        // Texts that the vectors do not count are counted by characters: enough to see what was asked.
        Some(
            self.counts
                .get(text)
                .copied()
                .unwrap_or(text.chars().count() as u32),
        )
    }
}

impl Tokens {
    /// One token for each byte, and the special tokens from 1000 on.
    pub(crate) fn bytewise() -> Self {
        let mut tokens = Self::default();
        for byte in 0..=255u8 {
            tokens.bytes.insert(u32::from(byte), vec![byte]);
        }
        for (at, text) in SPECIAL.iter().enumerate() {
            let id = 1000 + at as u32;
            tokens.bytes.insert(id, text.as_bytes().to_vec());
            tokens.special.push(id);
        }
        tokens
    }

    /// Ids of `text` in [`Tokens::bytewise`], special spellings as their tokens.
    pub(crate) fn encode(text: &str) -> Vec<u32> {
        let mut ids = Vec::new();
        let mut rest = text;
        'text: while let Some(first) = rest.chars().next() {
            for (at, special) in SPECIAL.iter().enumerate() {
                if let Some(after) = rest.strip_prefix(special) {
                    ids.push(1000 + at as u32);
                    rest = after;
                    continue 'text;
                }
            }
            let (head, tail) = rest.split_at(first.len_utf8());
            ids.extend(head.bytes().map(u32::from));
            rest = tail;
        }
        ids
    }
}

pub(crate) const SPECIAL: [&str; 4] = ["<｜end▁of▁sentence｜>", "<think>", "</think>", "｜DSML｜"];

pub(crate) fn options() -> ParserOptions {
    ParserOptions {
        protocol: Protocol::ChatCompletions,
        encoding: Encoding::V4,
        parsing: ParsingOptions {
            parse_tool_calls: true,
            starts_in_tool_calls: false,
            parse_json_output: false,
            thinking_initial_stage: None,
            stop_sequences: Vec::new(),
        },
        response: ResponseOptions {
            stream: true,
            ..ResponseOptions::default()
        },
        model: "test-model".into(),
        continues_message: false,
        tools: None,
        special_tokens: SpecialTokens::default(),
        stream: StreamOptions {
            id_seed: Some(1),
            ..StreamOptions::default()
        },
    }
}

/// Pushes `pieces` as text and finishes; the events and the parser.
pub(crate) fn run(
    options: &ParserOptions,
    pieces: &[&str],
    finish: Finish,
) -> (Vec<Value>, Parser) {
    let mut parser = Parser::with(options.clone(), None).unwrap();
    let mut out = Output::default();
    for piece in pieces {
        parser.push(&text_chunk(piece), &mut out).unwrap();
    }
    parser.finish(finish, None, &mut out).unwrap();
    (data(&out), parser)
}

pub(crate) fn read(options: &ParserOptions, text: &str, finish: Finish) -> Seen {
    seen(&run(options, &[text], finish).0)
}

/// The same output as token ids, `step` at a time.
pub(crate) fn run_ids(
    options: &ParserOptions,
    ids: &[u32],
    step: usize,
    finish: Finish,
) -> (Vec<Value>, Parser) {
    let mut parser = Parser::with(options.clone(), Some(Arc::new(Tokens::bytewise()))).unwrap();
    let mut out = Output::default();
    for tokens in ids.chunks(step) {
        parser.push(&id_chunk(tokens), &mut out).unwrap();
    }
    parser.finish(finish, None, &mut out).unwrap();
    (data(&out), parser)
}

/// `｜DSML｜` for every `D:` of a test's text.
pub(crate) fn dsml(text: &str) -> String {
    text.replace("D:", "｜DSML｜")
}

pub(crate) fn call(name: &str, arguments: &str) -> (String, String) {
    (name.into(), arguments.into())
}

/// Reads `text` (with `D:` for the marker) whole, by character, and as ids; all must agree.
#[track_caller]
pub(crate) fn read_all_ways(options: &ParserOptions, text: &str, finish: Finish) -> Seen {
    let text = dsml(text);
    let whole = read(options, &text, finish);
    let chars: Vec<String> = text.chars().map(String::from).collect();
    let chars: Vec<&str> = chars.iter().map(String::as_str).collect();
    assert_eq!(seen(&run(options, &chars, finish).0), whole, "by character");
    let ids = Tokens::encode(&text);
    assert_eq!(
        seen(&run_ids(options, &ids, 1, finish).0),
        whole,
        "by token"
    );
    whole
}

/// One call without a block around it.
pub(crate) const PARIS: &str =
    "<D:invoke name=\"f\">\n<D:parameter name=\"c\" string=\"true\">P</D:parameter>\n</D:invoke>";
