//! The grammar of the reference implementation, its flaws included: whatever it would say about malformed
//! output, this says too.

use super::events::json::escape;
use super::held::{Class, Held};
use super::robust::Input;
use super::tags::{Look, plain};
use super::text::{Exit, Stage as TextStage, Text};

#[derive(Debug)]
enum Stage {
    Text(Text),
    Calls,
    Name,
    Arguments { first: bool },
    Key,
    Attribute,
    Value { string: bool },
    Finished,
}

/// See the module. All text before `cursor` was looked at.
#[derive(Debug)]
pub(super) struct Strict {
    stage: Stage,
    cursor: u64,
    stopped: Option<usize>,
}

/// A marker and what follows it.
enum Marker {
    Plain(&'static str, Stage),
    /// `</` and the special token, then one of these.
    Close(&'static [&'static str], Stage),
}

impl Strict {
    pub(super) fn new(text: Text, in_block: bool) -> Self {
        let stage = if in_block {
            Stage::Calls
        } else {
            Stage::Text(text)
        };
        Self {
            stage,
            cursor: 0,
            stopped: None,
        }
    }

    /// Reads what is held. The index of a stop sequence once one matched.
    pub(super) fn advance(&mut self, mut input: Input<'_>) -> Option<usize> {
        while self.step(&mut input) {}
        self.stopped
    }

    /// Whether the output is still reasoning.
    pub(super) fn in_reasoning(&self) -> bool {
        matches!(&self.stage, Stage::Text(text) if text.stage == TextStage::Reasoning)
    }

    fn step(&mut self, input: &mut Input<'_>) -> bool {
        let (markers, keeps) = match &mut self.stage {
            Stage::Text(text) => {
                match text.run(input.rules, input.stops, input.held, input.sink, input.end) {
                    Exit::More => return false,
                    Exit::Stopped(index) => {
                        self.stopped = Some(index);
                        self.stage = Stage::Finished;
                    }
                    Exit::Opened(tag) => {
                        input.sink.skip(input.held, tag.end);
                        self.cursor = tag.end;
                        self.stage = Stage::Calls;
                    }
                }
                return true;
            }
            Stage::Finished => {
                input.sink.skip(input.held, input.held.end());
                return false;
            }
            Stage::Calls => (
                vec![
                    Marker::Plain("invoke name=\"", Stage::Name),
                    Marker::Close(&["tool_calls>", " calls>"], Stage::Finished),
                ],
                false,
            ),
            Stage::Name => (
                vec![Marker::Plain("\"", Stage::Arguments { first: true })],
                true,
            ),
            Stage::Arguments { .. } => (
                vec![
                    Marker::Plain("parameter name=", Stage::Key),
                    Marker::Close(&[""], Stage::Calls),
                ],
                false,
            ),
            Stage::Key => (vec![Marker::Plain(" ", Stage::Attribute)], false),
            Stage::Attribute => (
                vec![
                    Marker::Plain("true\">", Stage::Value { string: true }),
                    Marker::Plain("false\">", Stage::Value { string: false }),
                ],
                false,
            ),
            Stage::Value { .. } => (
                vec![Marker::Close(&[""], Stage::Arguments { first: false })],
                false,
            ),
        };
        match self.find(markers, input) {
            Ok((start, end, next)) => {
                self.leave(start, &next, input);
                input.sink.skip(input.held, end);
                self.cursor = end;
                self.stage = next;
                true
            }
            Err(at) => {
                self.cursor = at;
                let to = if input.end.is_some() {
                    input.held.end()
                } else {
                    at
                };
                // A name that never ends is no name.
                if !keeps {
                    self.text(to, input);
                } else if input.end.is_some() {
                    input.sink.skip(input.held, to);
                }
                false
            }
        }
    }

    /// The first marker from the cursor on. `Err` is where the text ends that is none.
    fn find(&self, mut markers: Vec<Marker>, input: &Input<'_>) -> Result<(u64, u64, Stage), u64> {
        let held = &*input.held;
        let mut at = self.cursor;
        while at < held.end() {
            let (class, run_end) = held.class_at(at);
            if let Class::Special(_) = class {
                at = run_end;
                continue;
            }
            let bytes = &held.bytes(at)[..(run_end - at) as usize];
            let begins = |byte: &u8| {
                markers.iter().any(|marker| match marker {
                    Marker::Plain(text, _) => text.as_bytes()[0] == *byte,
                    Marker::Close(..) => *byte == b'<',
                })
            };
            let Some(skip) = bytes.iter().position(begins) else {
                at = run_end;
                continue;
            };
            at += skip as u64;
            for index in 0..markers.len() {
                match look(&markers[index], held, at, input) {
                    Look::Yes(end) => {
                        let (Marker::Plain(_, next) | Marker::Close(_, next)) =
                            markers.swap_remove(index);
                        return Ok((at, end, next));
                    }
                    Look::Partial if input.end.is_none() => return Err(at),
                    Look::Partial | Look::No => {}
                }
            }
            at += 1;
        }
        Err(held.end())
    }

    /// What the text before a marker and the marker itself give out.
    fn leave(&mut self, start: u64, next: &Stage, input: &mut Input<'_>) {
        if let Stage::Name = self.stage {
            let name = input.held.slice(input.held.base(), start).to_owned();
            input.sink.call(&name);
            return;
        }
        self.text(start, input);
        let text = match (&self.stage, next) {
            (Stage::Arguments { first }, Stage::Key) => {
                if *first {
                    "{"
                } else {
                    ", "
                }
            }
            (Stage::Arguments { first }, _) => {
                if *first {
                    "{}"
                } else {
                    "}"
                }
            }
            (Stage::Key, _) => ": ",
            (Stage::Attribute, Stage::Value { string: true })
            | (Stage::Value { string: true }, _) => "\"",
            _ => "",
        };
        input.sink.arguments(text);
    }

    /// Text of the current stage up to `to`.
    fn text(&mut self, to: u64, input: &mut Input<'_>) {
        match self.stage {
            Stage::Key | Stage::Value { string: false } => {
                let text = input.held.slice(input.held.base(), to).to_owned();
                input.sink.arguments(&text);
            }
            Stage::Value { string: true } => {
                let mut text = String::new();
                escape(input.held.slice(input.held.base(), to), &mut text);
                input.sink.arguments(&text);
            }
            Stage::Text(_)
            | Stage::Calls
            | Stage::Name
            | Stage::Arguments { .. }
            | Stage::Attribute
            | Stage::Finished => {}
        }
        input.sink.skip(input.held, to);
    }
}

fn look(marker: &Marker, held: &Held, at: u64, input: &Input<'_>) -> Look<u64> {
    match marker {
        Marker::Plain(text, _) => plain(held, at, text),
        Marker::Close(words, _) => {
            let end = match input.rules.markup.bare(held, at, "</") {
                Look::Yes(end) => end,
                look => return look,
            };
            let mut result = Look::No;
            for word in *words {
                match plain(held, end, word) {
                    Look::Yes(end) => return Look::Yes(end),
                    Look::Partial => result = Look::Partial,
                    Look::No => {}
                }
            }
            result
        }
    }
}
