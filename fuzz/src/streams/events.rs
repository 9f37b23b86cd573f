//! What a client makes of events: deltas joined, everything else as it stands.

use std::borrow::Cow;

use fathom::recipe::Protocol;
use fathom::recipe::stream::Output;
use serde::Deserialize;
use serde_json::Value;

/// One event as the parser gives it: its name, its JSON and its tokens. Nothing else here knows how outputs are made.
pub fn each(out: &Output, mut read: impl FnMut(Option<&str>, &str, u32)) {
    for event in out.events() {
        read(event.name, event.data, event.token_count);
    }
}

/// Kind of the text of a delta.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    Reasoning,
    Content,
    Arguments,
}

/// What remains of the events once their split does not show.
#[derive(Clone, Debug)]
pub enum Item {
    Delta {
        part: Part,
        index: u64,
        text: String,
        logprobs: Vec<f64>,
    },
    /// As it was written.
    Other(String),
}

impl Item {
    /// Whether both say the same; times and numbers of events do not count, nor with `loose` do tokens.
    fn says(&self, other: &Self, loose: bool) -> bool {
        match (self, other) {
            (
                Self::Delta {
                    part,
                    index,
                    text,
                    logprobs,
                },
                Self::Delta {
                    part: other_part,
                    index: other_index,
                    text: other_text,
                    logprobs: other_logprobs,
                },
            ) => {
                (part, index, text, logprobs)
                    == (other_part, other_index, other_text, other_logprobs)
            }
            (Self::Other(ours), Self::Other(theirs)) => {
                ours == theirs || normal(ours, loose) == normal(theirs, loose)
            }
            _ => false,
        }
    }
}

/// Joins the events of a run.
#[derive(Debug, Default)]
pub struct Seen {
    pub items: Vec<Item>,
    pub events: usize,
    pub tokens: u64,
}

impl Seen {
    /// Adds the events of a step, each of which must be JSON.
    pub fn add(&mut self, protocol: Protocol, out: &Output) {
        each(out, |name, data, tokens| {
            self.tokens += u64::from(tokens);
            match delta(protocol, name, data) {
                Some(delta) => self.delta(delta),
                None => self.other(protocol, name, data),
            }
            self.events += 1;
        });
    }

    fn delta(&mut self, delta: Delta<'_>) {
        assert!(!delta.text.is_empty(), "an empty delta");
        if let Some(number) = delta.number {
            assert_eq!(number, self.events, "sequence_number");
        }
        let logprobs = delta.logprobs.iter().map(|entry| entry.logprob);
        if let Some(Item::Delta {
            part,
            index,
            text,
            logprobs: all,
        }) = self.items.last_mut()
            && (*part, *index) == (delta.part, delta.index)
        {
            text.push_str(&delta.text);
            all.extend(logprobs);
            return;
        }
        self.items.push(Item::Delta {
            part: delta.part,
            index: delta.index,
            text: delta.text.into_owned(),
            logprobs: logprobs.collect(),
        });
    }

    fn other(&mut self, protocol: Protocol, name: Option<&str>, data: &str) {
        #[derive(Deserialize)]
        struct Kind<'a> {
            #[serde(rename = "type")]
            kind: Option<&'a str>,
            sequence_number: Option<usize>,
        }
        let kind: Kind<'_> = read(data);
        match protocol {
            Protocol::ChatCompletions => assert_eq!(name, None),
            Protocol::Responses => {
                assert_eq!(name, kind.kind);
                assert_eq!(kind.sequence_number, Some(self.events));
            }
            Protocol::Messages => assert_eq!(name, kind.kind),
            Protocol::Conversation => assert!(name.is_some()),
        }
        self.items.push(Item::Other(data.to_owned()));
    }

    /// The text of all deltas of a kind.
    pub fn text(&self, wanted: Part) -> String {
        let texts = self.items.iter().filter_map(|item| match item {
            Item::Delta { part, text, .. } if *part == wanted => Some(text.as_str()),
            _ => None,
        });
        texts.collect()
    }

    /// Whether Messages announced a call, which its complete message leaves out if it never ended.
    pub fn has_tool_use(&self) -> bool {
        self.items.iter().any(|item| match item {
            Item::Other(data) => data.contains(r#""content_block":{"type":"tool_use""#),
            Item::Delta { .. } => false,
        })
    }

    /// Panics unless `other` says the same.
    pub fn compare(&self, other: &Self, loose: bool) {
        let same = self.items.len() == other.items.len()
            && self
                .items
                .iter()
                .zip(&other.items)
                .all(|(ours, theirs)| ours.says(theirs, loose));
        assert!(same, "{:#?}\n{:#?}", self.items, other.items);
    }
}

/// An event without what may differ from run to run.
fn normal(data: &str, loose: bool) -> Value {
    let mut value: Value = read(data);
    for at in ["", "/response"] {
        let Some(map) = value.pointer_mut(at).and_then(Value::as_object_mut) else {
            continue;
        };
        for (name, value) in map {
            match name.as_str() {
                "created" | "created_at" | "completed_at" => *value = Value::Bool(value.is_null()),
                "sequence_number" => *value = Value::Null,
                "usage" if loose => *value = Value::Null,
                _ => {}
            }
        }
    }
    value
}

struct Delta<'a> {
    part: Part,
    index: u64,
    text: Cow<'a, str>,
    logprobs: Vec<Entry>,
    number: Option<usize>,
}

#[derive(Deserialize)]
struct Entry {
    logprob: f64,
}

/// The event as a delta; `None` if it is anything else.
fn delta<'a>(protocol: Protocol, name: Option<&str>, data: &'a str) -> Option<Delta<'a>> {
    match protocol {
        Protocol::ChatCompletions => chat(data),
        Protocol::Responses => responses(name?, data),
        Protocol::Messages => messages(name?, data),
        Protocol::Conversation => neutral(name?, data),
    }
}

/// A delta whose shape is the one expected; the check that it is JSON with every key known is that it can be read.
fn read<'a, T: Deserialize<'a>>(data: &'a str) -> T {
    serde_json::from_str(data).unwrap_or_else(|error| panic!("{error}: {data}"))
}

fn chat(data: &str) -> Option<Delta<'_>> {
    #[derive(Deserialize)]
    struct Chunk<'a> {
        #[serde(borrow, default)]
        choices: Vec<Choice<'a>>,
    }
    #[derive(Deserialize)]
    struct Choice<'a> {
        #[serde(borrow)]
        delta: Fields<'a>,
        finish_reason: Option<&'a str>,
        logprobs: Option<Lists>,
    }
    #[derive(Deserialize)]
    struct Fields<'a> {
        role: Option<&'a str>,
        #[serde(borrow)]
        content: Option<Cow<'a, str>>,
        #[serde(borrow)]
        reasoning_content: Option<Cow<'a, str>>,
        #[serde(borrow)]
        tool_calls: Option<Vec<Call<'a>>>,
    }
    #[derive(Deserialize)]
    struct Call<'a> {
        index: u64,
        id: Option<&'a str>,
        #[serde(borrow)]
        function: Function<'a>,
    }
    #[derive(Deserialize)]
    struct Function<'a> {
        #[serde(borrow)]
        arguments: Cow<'a, str>,
    }
    #[derive(Deserialize)]
    struct Lists {
        #[serde(default)]
        content: Vec<Entry>,
        #[serde(default)]
        reasoning_content: Vec<Entry>,
    }
    let mut choice = read::<Chunk<'_>>(data).choices.pop()?;
    let fields = choice.delta;
    if fields.role.is_some() || choice.finish_reason.is_some() {
        return None;
    }
    let lists = choice.logprobs.take();
    let (part, index, text, logprobs) =
        match (fields.content, fields.reasoning_content, fields.tool_calls) {
            (Some(text), None, None) => {
                let logprobs = lists.map(|lists| (lists.reasoning_content.len(), lists.content));
                (Part::Content, 0, text, logprobs)
            }
            (None, Some(text), None) => {
                let logprobs = lists.map(|lists| (lists.content.len(), lists.reasoning_content));
                (Part::Reasoning, 0, text, logprobs)
            }
            (None, None, Some(mut calls)) => {
                let call = calls.pop().filter(|call| call.id.is_none())?;
                (Part::Arguments, call.index, call.function.arguments, None)
            }
            _ => panic!("{data}"),
        };
    let (stray, logprobs) = logprobs.unwrap_or_default();
    assert_eq!(stray, 0, "{data}");
    Some(Delta {
        part,
        index,
        text,
        logprobs,
        number: None,
    })
}

fn responses<'a>(name: &str, data: &'a str) -> Option<Delta<'a>> {
    #[derive(Deserialize)]
    struct Event<'a> {
        sequence_number: usize,
        output_index: u64,
        #[serde(borrow)]
        delta: Cow<'a, str>,
        #[serde(default)]
        logprobs: Vec<Entry>,
    }
    let part = match name.strip_suffix(".delta")? {
        "response.reasoning_text" => Part::Reasoning,
        "response.output_text" => Part::Content,
        "response.function_call_arguments" | "response.custom_tool_call_input" => Part::Arguments,
        _ => panic!("{data}"),
    };
    let event: Event<'_> = read(data);
    Some(Delta {
        part,
        index: event.output_index,
        text: event.delta,
        logprobs: event.logprobs,
        number: Some(event.sequence_number),
    })
}

fn messages<'a>(name: &str, data: &'a str) -> Option<Delta<'a>> {
    #[derive(Deserialize)]
    struct Event<'a> {
        index: u64,
        #[serde(borrow)]
        delta: Kind<'a>,
    }
    #[derive(Deserialize)]
    struct Kind<'a> {
        #[serde(borrow)]
        text: Option<Cow<'a, str>>,
        #[serde(borrow)]
        thinking: Option<Cow<'a, str>>,
        #[serde(borrow)]
        partial_json: Option<Cow<'a, str>>,
    }
    if name != "content_block_delta" {
        return None;
    }
    let Event { index, delta } = read(data);
    let (part, text) = match (delta.text, delta.thinking, delta.partial_json) {
        (Some(text), None, None) => (Part::Content, text),
        (None, Some(text), None) => (Part::Reasoning, text),
        (None, None, Some(text)) => (Part::Arguments, text),
        // A signature.
        (None, None, None) => return None,
        _ => panic!("{data}"),
    };
    Some(Delta {
        part,
        index,
        text,
        logprobs: Vec::new(),
        number: None,
    })
}

fn neutral<'a>(name: &str, data: &'a str) -> Option<Delta<'a>> {
    #[derive(Deserialize)]
    struct Event<'a> {
        #[serde(default)]
        index: u64,
        #[serde(borrow)]
        text: Cow<'a, str>,
        #[serde(default)]
        logprobs: Vec<Entry>,
    }
    let part = match name {
        "reasoning" => Part::Reasoning,
        "content" => Part::Content,
        "tool_call_arguments" => Part::Arguments,
        _ => return None,
    };
    let event: Event<'_> = read(data);
    Some(Delta {
        part,
        index: event.index,
        text: event.text,
        logprobs: event.logprobs,
        number: None,
    })
}
