//! From bytes to what is done to a parser: its options, then chunks of a small vocabulary or of text, and the odd
//! moments.

use std::sync::{Arc, OnceLock};

use fathom::recipe::encoding::{Encoding, SpecialTokens};
use fathom::recipe::options::NamespacedTool;
use fathom::recipe::stream::{
    DeclaredTool, Finish, LateReady, ParserOptions, Recovery, StreamOptions, UnterminatedReasoning,
    UsageChunk, Vocabulary,
};
use fathom::recipe::{ParsingOptions, Protocol, ResponseOptions, ThinkingStage};

use super::header::{Header, MARKUP, op};

/// One thing that a host does.
#[derive(Clone, Debug)]
pub enum Step {
    Text {
        text: String,
        tokens: u32,
    },
    /// Each with its log-probability, or NaN.
    Ids(Vec<(u32, f32)>),
    UnknownId,
    /// A chunk with text and ids, which is an error.
    Both,
    Start,
    Finish(Finish),
    Fail,
}

/// Everything an input says.
#[derive(Debug)]
pub struct Plan {
    pub options: ParserOptions,
    pub vocabulary: Option<Arc<dyn Vocabulary>>,
    pub steps: Vec<Step>,
}

impl Plan {
    pub fn of(input: &[u8]) -> Self {
        let (header, body) = Header::read(input);
        let options = options(header);
        let vocabulary = (!header.no_vocabulary).then(|| {
            let vocabulary: Arc<dyn Vocabulary> = words().clone();
            vocabulary
        });
        let mut reader = Reader {
            header,
            mode: if header.ids { Mode::Ids } else { Mode::Text },
            logprobs: header.logprobs,
            place: 0.0,
            pending: Vec::new(),
            steps: Vec::new(),
        };
        reader.read(body);
        reader.steps.push(Step::Finish(finish(header)));
        Self {
            options,
            vocabulary,
            steps: reader.steps,
        }
    }

    /// The same with neighbouring chunks of one kind joined.
    pub fn joined(&self) -> Vec<Step> {
        let mut all: Vec<Step> = Vec::new();
        for step in &self.steps {
            match (all.last_mut(), step) {
                (
                    Some(Step::Text { text, tokens }),
                    Step::Text {
                        text: more,
                        tokens: count,
                    },
                ) => {
                    text.push_str(more);
                    *tokens += count;
                }
                (Some(Step::Ids(ids)), Step::Ids(more)) => ids.extend_from_slice(more),
                _ => all.push(step.clone()),
            }
        }
        all
    }

    /// The same in chunks of `size` characters or ids.
    pub fn cut(&self, size: usize) -> Vec<Step> {
        let mut all = Vec::new();
        for step in &self.steps {
            match step {
                Step::Text { text, tokens } if text.len() > size => {
                    let mut tokens = *tokens;
                    let mut rest = text.as_str();
                    while !rest.is_empty() {
                        let end = rest
                            .char_indices()
                            .nth(size)
                            .map_or(rest.len(), |(at, _)| at);
                        let (piece, behind) = rest.split_at(end);
                        let text = piece.to_owned();
                        all.push(Step::Text { text, tokens });
                        (rest, tokens) = (behind, 0);
                    }
                }
                Step::Ids(ids) if ids.len() > size => {
                    all.extend(ids.chunks(size).map(|ids| Step::Ids(ids.to_vec())));
                }
                step => all.push(step.clone()),
            }
        }
        all
    }
}

fn options(header: Header) -> ParserOptions {
    const STOPS: [&[&str]; 8] = [
        &[],
        &["END"],
        &["\n\n", "x\n<"],
        &["｜DSML｜c"],
        &["abab", "ba", "b"],
        &["\n"],
        &["</think>", "é🤭"],
        &["", "q7q7q8"],
    ];
    let protocol = [
        Protocol::ChatCompletions,
        Protocol::Responses,
        Protocol::Messages,
        Protocol::Conversation,
    ][header.protocol as usize];
    let tool = |name: &str, properties: &[&str]| DeclaredTool {
        name: name.into(),
        properties: properties.iter().map(|&name| name.into()).collect(),
    };
    let tools = match header.tools {
        0 => None,
        1 => Some(Vec::new()),
        2 => Some(vec![tool("f", &["a"])]),
        _ => Some(vec![
            tool("f", &["a", "b"]),
            tool("g", &["input"]),
            tool("apply_patch", &["x"]),
        ]),
    };
    let calls = !header.no_calls;
    ParserOptions {
        protocol,
        encoding: if header.words {
            Encoding::V41
        } else {
            Encoding::V4
        },
        parsing: ParsingOptions {
            parse_tool_calls: calls,
            starts_in_tool_calls: calls && header.starts_in_calls,
            // The reference writes a blank for each chunk of noise, so its events depend on the split.
            parse_json_output: header.json && !header.strict,
            thinking_initial_stage: [
                None,
                Some(ThinkingStage::ReasoningStart),
                Some(ThinkingStage::ReasoningContinuation),
                Some(ThinkingStage::ContentContinuation),
            ][header.stage as usize],
            stop_sequences: STOPS[header.stops as usize]
                .iter()
                .map(|&stop| stop.into())
                .collect(),
        },
        response: ResponseOptions {
            stream: true,
            include_usage: header.include_usage,
            namespace_tool_map: vec![NamespacedTool {
                function: "n::f".into(),
                namespace: "n".into(),
                local: "f".into(),
            }],
            custom_tool_names: vec!["apply_patch".into(), "g".into()],
            client_tool_search: true,
            ..ResponseOptions::default()
        },
        model: "m".into(),
        continues_message: header.continues,
        tools,
        special_tokens: SpecialTokens::default(),
        stream: StreamOptions {
            recovery: if header.strict {
                Recovery::Strict
            } else {
                Recovery::Robust
            },
            unterminated_reasoning: match header.unterminated_is_content {
                true => UnterminatedReasoning::Content,
                false => UnterminatedReasoning::Reasoning,
            },
            late_ready: match header.late_ready {
                true => LateReady::Correct,
                false => LateReady::Ignore,
            },
            usage_chunk: match header.openai_usage {
                true => UsageChunk::Openai,
                false => UsageChunk::Deepseek,
            },
            include_stop_sequence: header.include_stop && protocol == Protocol::Conversation,
            id_seed: Some(7),
            ..StreamOptions::default()
        },
    }
}

fn finish(header: Header) -> Finish {
    match header.finish {
        0 | 5 => Finish::Stop,
        1 | 6 => Finish::Length,
        2 => Finish::ContentFilter,
        3 | 7 => Finish::EndOfStream,
        _ => Finish::ToolCalls,
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    Text,
    Ids,
    PlainIds,
}

struct Reader {
    header: Header,
    mode: Mode,
    logprobs: bool,
    place: f32,
    pending: Vec<u8>,
    steps: Vec<Step>,
}

impl Reader {
    fn read(&mut self, body: &[u8]) {
        /// Repeating is cheap to ask for and must not be dear to do.
        const LONGEST: usize = 256;
        let mut length = 0;
        for &byte in body {
            let markup = byte.wrapping_sub(op::MARKUP) as usize;
            match byte {
                b'\t' | b'\n' | b'\r' => self.pending.push(byte),
                0x20.. => self.pending.push(byte),
                _ if markup < MARKUP.len() => self.pending.extend(MARKUP[markup].bytes()),
                _ => {
                    self.flush();
                    self.act(byte, length < LONGEST);
                    length = self
                        .steps
                        .iter()
                        .map(|step| match step {
                            Step::Text { text, .. } => text.len(),
                            Step::Ids(ids) => ids.len(),
                            _ => 1,
                        })
                        .sum();
                }
            }
        }
        self.flush();
    }

    fn act(&mut self, byte: u8, may_repeat: bool) {
        match byte {
            op::TEXT => self.mode = Mode::Text,
            op::IDS => self.mode = Mode::Ids,
            op::PLAIN_IDS => self.mode = Mode::PlainIds,
            op::EMPTY if self.mode == Mode::Text => {
                self.steps.push(Step::Text {
                    text: String::new(),
                    tokens: 2,
                });
            }
            op::EMPTY => self.steps.push(Step::Ids(Vec::new())),
            op::START => self.steps.push(Step::Start),
            op::FINISH => self.steps.push(Step::Finish(finish(self.header))),
            op::FAIL => self.steps.push(Step::Fail),
            op::UNKNOWN_ID => self.steps.push(Step::UnknownId),
            op::LOGPROBS => self.logprobs = !self.logprobs,
            op::BOTH => self.steps.push(Step::Both),
            op::REPEAT if may_repeat => {
                if let Some(last @ (Step::Text { .. } | Step::Ids(_))) = self.steps.last().cloned()
                {
                    self.steps.extend(std::iter::repeat_n(last, 8));
                }
            }
            _ => {}
        }
    }

    /// Ends a chunk.
    fn flush(&mut self) {
        if self.pending.is_empty() {
            return;
        }
        let mut bytes = std::mem::take(&mut self.pending);
        let strict = self.header.strict;
        if strict {
            // The reference keeps or drops broken characters as the chunks have it.
            let whole = String::from_utf8_lossy(&bytes).replace('\u{FFFD}', "?");
            bytes = whole.into_bytes();
        }
        if self.mode == Mode::Text {
            let text = String::from_utf8_lossy(&bytes).into_owned();
            self.steps.push(Step::Text { text, tokens: 1 });
            return;
        }
        let ids = words().encode(&bytes, self.mode == Mode::Ids, self.header.words);
        // In strict mode every delta repeats those of its whole piece.
        let with = self.logprobs && !strict;
        let ids = ids.into_iter().map(|id| {
            self.place -= 1.0;
            (id, if with { self.place } else { f32::NAN })
        });
        let ids = ids.collect();
        self.steps.push(Step::Ids(ids));
    }
}

/// A vocabulary of all bytes, a few words and the special tokens.
#[derive(Debug)]
struct Words {
    bytes: Vec<Vec<u8>>,
    /// Ids from here on are special.
    special: usize,
}

/// The id that stands in no vocabulary.
pub const UNKNOWN: u32 = u32::MAX - 1;
const FIRST_WORD: usize = 256;
const WORDS: [&[u8]; 27] = [
    b"tool",
    b"_calls",
    b" calls",
    b"invoke",
    b" name",
    b"=\"",
    b"\">",
    b"\n\n",
    b"</",
    b">\n",
    b"parameter",
    b" string",
    b"true",
    b"false",
    b"x<",
    b"END",
    b"ab",
    b"```",
    b"json\n",
    "\u{FFFD}".as_bytes(),
    b"\xF0\x9F",
    b"\xA4\xAD",
    b"\xEF\xBD",
    "é".as_bytes(),
    "｜".as_bytes(),
    "｜DSML｜".as_bytes(),
    b"</think>",
];
const SPECIAL: [&str; 6] = [
    "<｜end▁of▁sentence｜>",
    "<think>",
    "</think>",
    "｜DSML｜",
    "<｜ref｜>",
    "<｜image｜>",
];

fn words() -> &'static Arc<Words> {
    static VOCABULARY: OnceLock<Arc<Words>> = OnceLock::new();
    VOCABULARY.get_or_init(|| {
        let single = (0..=255u8).map(|byte| vec![byte]);
        let words = WORDS.iter().map(|word| word.to_vec());
        let special = SPECIAL.iter().map(|text| text.as_bytes().to_vec());
        Arc::new(Words {
            bytes: single.chain(words).chain(special).collect(),
            special: FIRST_WORD + WORDS.len(),
        })
    })
}

/// The id of the end token.
pub fn end_token() -> u32 {
    words().special as u32
}

impl Words {
    fn encode(&self, bytes: &[u8], special: bool, use_words: bool) -> Vec<u32> {
        let mut ids = Vec::with_capacity(bytes.len());
        let mut rest = bytes;
        while let Some(&first) = rest.first() {
            let from = if use_words { FIRST_WORD } else { self.special };
            let to = if special {
                self.bytes.len()
            } else {
                self.special
            };
            let longest = (from.min(to)..to)
                .filter(|&id| self.bytes[id][0] == first && rest.starts_with(&self.bytes[id]))
                .max_by_key(|&id| (id >= self.special, self.bytes[id].len()));
            let id = longest.unwrap_or(first as usize);
            ids.push(id as u32);
            rest = &rest[self.bytes[id].len()..];
        }
        ids
    }
}

impl Vocabulary for Words {
    fn bytes(&self, token: u32) -> Option<&[u8]> {
        self.bytes.get(token as usize).map(Vec::as_slice)
    }
    fn is_added(&self, token: u32) -> bool {
        token as usize >= self.special
    }
    fn token_id(&self, text: &str) -> Option<u32> {
        let special = self.bytes[self.special..].iter();
        let at = special
            .into_iter()
            .position(|bytes| bytes == text.as_bytes())?;
        Some((self.special + at) as u32)
    }
    fn count(&self, text: &str) -> Option<u32> {
        u32::try_from(text.chars().count()).ok()
    }
}

/// What an id stands for.
pub fn bytes_of(id: u32) -> &'static [u8] {
    words().bytes.get(id as usize).map_or(&[], Vec::as_slice)
}
