//! The slow matcher that tests trust: plain automata over bytes, one language each, written without the grammar
//! library.
//!
//! A [`Language`] reads one byte after another. [`Plain`] makes a [`Matcher`] of it: a mask tries every token, a
//! rollback goes back to a state that was kept. Cost: every byte of the vocabulary for a mask.

#![forbid(unsafe_code)]

use std::collections::BTreeSet;
use std::sync::Arc;

use regex_syntax::hir::{Hir, HirKind, Look};
use regex_syntax::utf8::Utf8Sequences;

use super::{Fault, Matcher, TokenTable};

/// A set of texts, read byte by byte.
pub trait Language: Clone + Send + 'static {
    /// Reads a byte; `false` if no text of the language goes on so.
    fn push(&mut self, byte: u8) -> bool;
    /// Whether what was read is a text of the language.
    fn is_word(&self) -> bool;
}

/// See the module.
#[derive(Clone)]
pub struct Plain<L> {
    table: Arc<TokenTable>,
    /// The state before each accepted token, then the one after all of them.
    states: Vec<L>,
    forced: Option<u32>,
    is_dead: bool,
}

impl<L: Language> Plain<L> {
    /// A matcher at the beginning of the text.
    pub fn new(language: L, table: Arc<TokenTable>) -> Self {
        Self {
            table,
            states: vec![language],
            forced: None,
            is_dead: false,
        }
    }

    fn state(&self) -> &L {
        &self.states[self.states.len() - 1]
    }

    fn after(&self, token: u32) -> Option<L> {
        let mut state = self.state().clone();
        let text = self.table.text(token)?;
        text.iter().all(|byte| state.push(*byte)).then_some(state)
    }
}

impl<L: Language> Matcher for Plain<L> {
    fn mask(&mut self, out: &mut [u32]) -> Result<(), Fault> {
        if self.is_dead {
            return Err(Fault::Dead);
        }
        out.fill(0);
        for token in 0..self.table.len() {
            if self.after(token).is_some() {
                out[token as usize / 32] |= 1 << (token % 32);
            }
        }
        Ok(())
    }

    fn accept(&mut self, token: u32) -> Result<(), Fault> {
        if self.is_dead {
            return Err(Fault::Dead);
        }
        match self.after(token) {
            Some(state) => {
                self.states.push(state);
                Ok(())
            }
            None => {
                self.is_dead = true;
                Err(Fault::Refused)
            }
        }
    }

    fn validate(&mut self, tokens: &[u32]) -> usize {
        let mut copy = self.clone();
        tokens
            .iter()
            .take_while(|token| copy.accept(**token).is_ok())
            .count()
    }

    fn rollback(&mut self, count: usize) -> Result<(), Fault> {
        if self.is_dead {
            return Err(Fault::Dead);
        }
        if count >= self.states.len() {
            self.is_dead = true;
            return Err(Fault::Refused);
        }
        self.states.truncate(self.states.len() - count);
        Ok(())
    }

    fn forced(&mut self) -> &[u32] {
        let mut allowed = (0..self.table.len()).filter(|token| self.after(*token).is_some());
        self.forced = match (allowed.next(), allowed.next()) {
            (Some(only), None) if !self.state().is_word() => Some(only),
            _ => None,
        };
        self.forced.as_slice()
    }

    fn fork(&self) -> Box<dyn Matcher> {
        Box::new(self.clone())
    }

    fn is_complete(&mut self) -> bool {
        !self.is_dead && self.state().is_word()
    }

    fn can_continue(&mut self) -> bool {
        !self.is_dead && (0..self.table.len()).any(|token| self.after(token).is_some())
    }

    fn is_dead(&self) -> bool {
        self.is_dead
    }
}

/// Texts that a regular expression matches as a whole: a nondeterministic automaton, all of its states at once.
#[derive(Clone)]
pub struct Expression {
    nodes: Arc<Vec<Node>>,
    now: BTreeSet<usize>,
}

enum Node {
    /// Reads a byte of this range.
    Byte(u8, u8, usize),
    /// Reads nothing, and goes on in all of these.
    Split(Vec<usize>),
    Word,
}

impl Expression {
    /// Of an expression without look-around except for anchors of the text, which may only stand at its ends.
    pub fn new(expression: &str) -> Result<Self, String> {
        let hir = regex_syntax::parse(expression).map_err(|error| error.to_string())?;
        let mut nodes = vec![Node::Word];
        let start = build(&hir, 0, &mut nodes)?;
        let mut language = Self {
            nodes: Arc::new(nodes),
            now: BTreeSet::new(),
        };
        language.enter(start);
        Ok(language)
    }

    fn enter(&mut self, node: usize) {
        let mut todo = vec![node];
        while let Some(node) = todo.pop() {
            if self.now.insert(node)
                && let Node::Split(next) = &self.nodes[node]
            {
                todo.extend(next);
            }
        }
    }
}

impl Language for Expression {
    fn push(&mut self, byte: u8) -> bool {
        let before = std::mem::take(&mut self.now);
        let nodes = self.nodes.clone();
        for node in before {
            if let Node::Byte(low, high, next) = nodes[node]
                && (low..=high).contains(&byte)
            {
                self.enter(next);
            }
        }
        !self.now.is_empty()
    }

    fn is_word(&self) -> bool {
        self.now.contains(&0)
    }
}

/// Adds nodes for `hir` that go on at `next`; answers the first of them.
fn build(hir: &Hir, next: usize, nodes: &mut Vec<Node>) -> Result<usize, String> {
    let add = |nodes: &mut Vec<Node>, node| {
        nodes.push(node);
        nodes.len() - 1
    };
    Ok(match hir.kind() {
        HirKind::Empty | HirKind::Look(Look::Start | Look::End) => next,
        HirKind::Look(look) => return Err(format!("it looks around: {look:?}")),
        HirKind::Literal(literal) => literal.0.iter().rev().fold(next, |next, byte| {
            add(nodes, Node::Byte(*byte, *byte, next))
        }),
        HirKind::Class(regex_syntax::hir::Class::Bytes(class)) => {
            let ranges = class.ranges().iter();
            let all = ranges
                .map(|range| add(nodes, Node::Byte(range.start(), range.end(), next)))
                .collect();
            add(nodes, Node::Split(all))
        }
        HirKind::Class(regex_syntax::hir::Class::Unicode(class)) => {
            let mut all = Vec::new();
            for range in class.ranges() {
                for sequence in Utf8Sequences::new(range.start(), range.end()) {
                    all.push(sequence.as_slice().iter().rev().fold(next, |next, byte| {
                        add(nodes, Node::Byte(byte.start, byte.end, next))
                    }));
                }
            }
            add(nodes, Node::Split(all))
        }
        HirKind::Capture(capture) => build(&capture.sub, next, nodes)?,
        HirKind::Concat(parts) => {
            let mut at = next;
            for part in parts.iter().rev() {
                at = build(part, at, nodes)?;
            }
            at
        }
        HirKind::Alternation(branches) => {
            let all: Result<Vec<usize>, String> = branches
                .iter()
                .map(|branch| build(branch, next, nodes))
                .collect();
            add(nodes, Node::Split(all?))
        }
        HirKind::Repetition(repetition) => {
            let mut at = match repetition.max {
                Some(max) => {
                    let mut at = next;
                    for _ in repetition.min..max {
                        let once = build(&repetition.sub, at, nodes)?;
                        at = add(nodes, Node::Split(vec![once, next]));
                    }
                    at
                }
                None => {
                    let round = add(nodes, Node::Split(vec![next]));
                    let once = build(&repetition.sub, round, nodes)?;
                    nodes[round] = Node::Split(vec![once, next]);
                    round
                }
            };
            for _ in 0..repetition.min {
                at = build(&repetition.sub, at, nodes)?;
            }
            at
        }
    })
}

/// One JSON object, as [`super::Spec::JsonObject`] has it: a little white space between its parts, none around it, and
/// escapes only for what needs them.
#[derive(Clone)]
pub struct JsonObject {
    /// Open brackets.
    open: Vec<u8>,
    at: At,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum At {
    Start,
    /// Behind `{`: a key or the end.
    FirstKey(Space),
    /// Behind a comma of an object.
    Key(Space),
    /// Behind a key.
    Colon(Space),
    Value(Space),
    /// Behind `[`: a value or the end.
    FirstValue(Space),
    /// Behind a value.
    Next(Space),
    /// In a string, with what the bytes before ask for.
    Text {
        is_key: bool,
        want: Want,
    },
    Number(Digits),
    /// In `true`, `false` or `null`: the rest.
    Word(&'static [u8]),
    End,
}

/// White space so far, at this place.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Space {
    None,
    /// Blanks on the same line.
    Blanks(u8),
    Return,
    /// Blanks on a new line.
    Line(u8),
}

/// What a string goes on with.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Want {
    Any,
    Escape,
    /// Of `\u00`, then one digit of 0, 1 and 7, then the last.
    Hex(u8),
    /// Bytes of a character: how many, and the range of the next.
    Rest(u8, u8, u8),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Digits {
    Minus,
    Zero,
    Whole,
    Point,
    Fraction,
    Exponent,
    Sign,
    Power,
}

impl Default for JsonObject {
    fn default() -> Self {
        Self {
            open: Vec::new(),
            at: At::Start,
        }
    }
}

impl Space {
    fn push(self, byte: u8) -> Option<Self> {
        match (self, byte) {
            (Self::None, b' ' | b'\t') => Some(Self::Blanks(1)),
            (Self::Blanks(n), b' ' | b'\t') if n < 4 => Some(Self::Blanks(n + 1)),
            (Self::None, b'\r') => Some(Self::Return),
            (Self::None | Self::Return, b'\n') => Some(Self::Line(0)),
            (Self::Line(n), b' ' | b'\t') if n < 64 => Some(Self::Line(n + 1)),
            _ => None,
        }
    }
}

impl JsonObject {
    fn close(&mut self, byte: u8) -> Option<At> {
        let opener = if byte == b'}' { b'{' } else { b'[' };
        if self.open.last() != Some(&opener) {
            return None;
        }
        self.open.pop();
        Some(if self.open.is_empty() {
            At::End
        } else {
            At::Next(Space::None)
        })
    }

    fn value(&mut self, byte: u8) -> Option<At> {
        Some(match byte {
            b'{' | b'[' => {
                self.open.push(byte);
                if byte == b'{' {
                    At::FirstKey(Space::None)
                } else {
                    At::FirstValue(Space::None)
                }
            }
            b'"' => At::Text {
                is_key: false,
                want: Want::Any,
            },
            b'-' => At::Number(Digits::Minus),
            b'0' => At::Number(Digits::Zero),
            b'1'..=b'9' => At::Number(Digits::Whole),
            b't' => At::Word(b"rue"),
            b'f' => At::Word(b"alse"),
            b'n' => At::Word(b"ull"),
            _ => return None,
        })
    }

    fn next(&mut self, byte: u8) -> Option<At> {
        match (byte, self.open.last()) {
            (b',', Some(b'{')) => Some(At::Key(Space::None)),
            (b',', Some(_)) => Some(At::Value(Space::None)),
            (b'}' | b']', _) => self.close(byte),
            _ => None,
        }
    }

    fn step(&mut self, byte: u8) -> Option<At> {
        const KEY: At = At::Text {
            is_key: true,
            want: Want::Any,
        };
        let spaced = |space: Space, at: fn(Space) -> At| space.push(byte).map(at);
        match self.at {
            // A return is no end of white space.
            _ if byte != b'\n' && self.is_behind_return() => None,
            At::Start if byte == b'{' => self.value(byte),
            At::Start | At::End => None,
            At::FirstKey(space) => match byte {
                b'"' => Some(KEY),
                b'}' => self.close(byte),
                _ => spaced(space, At::FirstKey),
            },
            At::Key(_) if byte == b'"' => Some(KEY),
            At::Key(space) => spaced(space, At::Key),
            At::Colon(_) if byte == b':' => Some(At::Value(Space::None)),
            At::Colon(space) => spaced(space, At::Colon),
            At::Value(space) => self.value(byte).or_else(|| spaced(space, At::Value)),
            At::FirstValue(_) if byte == b']' => self.close(byte),
            At::FirstValue(space) => self.value(byte).or_else(|| spaced(space, At::FirstValue)),
            At::Next(space) => self.next(byte).or_else(|| spaced(space, At::Next)),
            At::Text { is_key, want } => text(byte, is_key, want),
            At::Number(digits) => number(byte, digits).or_else(|| {
                let is_whole = matches!(
                    digits,
                    Digits::Zero | Digits::Whole | Digits::Fraction | Digits::Power
                );
                if !is_whole {
                    return None;
                }
                self.next(byte).or_else(|| spaced(Space::None, At::Next))
            }),
            At::Word(rest) => (rest.first() == Some(&byte)).then(|| match &rest[1..] {
                [] => At::Next(Space::None),
                rest => At::Word(rest),
            }),
        }
    }

    fn is_behind_return(&self) -> bool {
        matches!(
            self.at,
            At::FirstKey(Space::Return)
                | At::Key(Space::Return)
                | At::Colon(Space::Return)
                | At::Value(Space::Return)
                | At::FirstValue(Space::Return)
                | At::Next(Space::Return)
        )
    }
}

fn text(byte: u8, is_key: bool, want: Want) -> Option<At> {
    let goes_on = |want| Some(At::Text { is_key, want });
    match want {
        Want::Any => match byte {
            b'"' if is_key => Some(At::Colon(Space::None)),
            b'"' => Some(At::Next(Space::None)),
            b'\\' => goes_on(Want::Escape),
            0x20..=0x7E => goes_on(Want::Any),
            0xC2..=0xDF => goes_on(Want::Rest(1, 0x80, 0xBF)),
            0xE0 => goes_on(Want::Rest(2, 0xA0, 0xBF)),
            0xED => goes_on(Want::Rest(2, 0x80, 0x9F)),
            0xE1..=0xEF => goes_on(Want::Rest(2, 0x80, 0xBF)),
            0xF0 => goes_on(Want::Rest(3, 0x90, 0xBF)),
            0xF1..=0xF3 => goes_on(Want::Rest(3, 0x80, 0xBF)),
            0xF4 => goes_on(Want::Rest(3, 0x80, 0x8F)),
            _ => None,
        },
        Want::Escape => match byte {
            b'"' | b'\\' | b'b' | b'f' | b'n' | b'r' | b't' => goes_on(Want::Any),
            b'u' => goes_on(Want::Hex(0)),
            _ => None,
        },
        Want::Hex(at @ 0..=1) if byte == b'0' => goes_on(Want::Hex(at + 1)),
        Want::Hex(2) => match byte {
            b'0' | b'1' => goes_on(Want::Hex(3)),
            b'7' => goes_on(Want::Hex(4)),
            _ => None,
        },
        Want::Hex(3) if byte.is_ascii_hexdigit() => goes_on(Want::Any),
        Want::Hex(4) if byte.eq_ignore_ascii_case(&b'f') => goes_on(Want::Any),
        Want::Hex(_) => None,
        Want::Rest(count, low, high) if (low..=high).contains(&byte) => goes_on(match count {
            1 => Want::Any,
            _ => Want::Rest(count - 1, 0x80, 0xBF),
        }),
        Want::Rest(..) => None,
    }
}

fn number(byte: u8, digits: Digits) -> Option<At> {
    use Digits::*;
    let next = match (digits, byte) {
        (Minus, b'0') => Zero,
        (Minus, b'1'..=b'9') | (Whole, b'0'..=b'9') => Whole,
        (Zero | Whole, b'.') => Point,
        (Point | Fraction, b'0'..=b'9') => Fraction,
        (Zero | Whole | Fraction, b'e' | b'E') => Exponent,
        (Exponent, b'+' | b'-') => Sign,
        (Exponent | Sign | Power, b'0'..=b'9') => Power,
        _ => return None,
    };
    Some(At::Number(next))
}

impl Language for JsonObject {
    fn push(&mut self, byte: u8) -> bool {
        match self.step(byte) {
            Some(at) => {
                self.at = at;
                true
            }
            None => false,
        }
    }

    fn is_word(&self) -> bool {
        self.at == At::End
    }
}
