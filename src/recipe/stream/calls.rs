//! The arguments of a call as JSON text: keys, values and their types (rules R7, R8, R11 and R13).

use std::collections::HashSet;
use std::sync::Arc;

use super::events::json::{escape, is_value, string};
use super::held::Held;
use super::sink::Sink;

/// What the `string` attribute says about a value.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ValueKind {
    String,
    Json,
    /// Nothing usable: the content decides. It may hold the value itself.
    Untyped(Option<String>),
}

impl ValueKind {
    pub(super) fn of(attribute: Option<String>) -> Self {
        match attribute {
            Some(text) if text.eq_ignore_ascii_case("true") => Self::String,
            Some(text) if text.eq_ignore_ascii_case("false") => Self::Json,
            other => Self::Untyped(other),
        }
    }
}

/// A value that is being read.
#[derive(Debug)]
pub(super) struct Value {
    kind: ValueKind,
    /// The parameter's name, if it may wrap all arguments and was not given out.
    wrapper: Option<String>,
    pub(super) start: u64,
    pub(super) cursor: u64,
}

impl Value {
    pub(super) fn new(kind: ValueKind, wrapper: Option<String>, start: u64) -> Self {
        Self {
            kind,
            wrapper,
            start,
            cursor: start,
        }
    }

    fn streams(&self) -> bool {
        self.kind == ValueKind::String && self.wrapper.is_none()
    }
}

/// The arguments of the current call.
#[derive(Debug, Default)]
pub(super) struct Arguments {
    /// The call has a name, so its arguments go out.
    live: bool,
    /// Something stands between the braces.
    opened: bool,
    /// The text is complete.
    complete: bool,
    /// Declared names of parameters.
    properties: Arc<HashSet<String>>,
}

const WRAPPERS: [&str; 2] = ["arguments", "input"];

impl Arguments {
    pub(super) fn new(live: bool, properties: Arc<HashSet<String>>) -> Self {
        Self {
            live,
            opened: false,
            complete: false,
            properties,
        }
    }

    /// Whether the next parameter may be a wrapper: it is the first, and the schema names parameters.
    pub(super) fn may_be_wrapped(&self) -> bool {
        !self.opened
            && !self.properties.is_empty()
            && WRAPPERS.iter().all(|name| !self.properties.contains(*name))
    }

    pub(super) fn is_wrapper_name(name: &str) -> bool {
        WRAPPERS.contains(&name)
    }

    pub(super) fn may_become_wrapper_name(name: &str) -> bool {
        WRAPPERS.iter().any(|wrapper| wrapper.starts_with(name))
    }

    pub(super) fn raw(&self, text: &str, sink: &mut Sink) {
        if self.live && !self.complete {
            sink.arguments(text);
        }
    }

    pub(super) fn escaped(&self, text: &str, sink: &mut Sink) {
        let mut out = String::new();
        escape(text, &mut out);
        self.raw(&out, sink);
    }

    pub(super) fn open_key(&mut self, sink: &mut Sink) {
        self.raw(if self.opened { ", \"" } else { "{\"" }, sink);
        self.opened = true;
    }

    fn key(&mut self, name: &str, sink: &mut Sink) {
        self.open_key(sink);
        self.escaped(name, sink);
        self.raw("\": ", sink);
    }

    /// A value begins.
    pub(super) fn open_value(&self, value: &Value, sink: &mut Sink) {
        if value.streams() {
            self.raw("\"", sink);
        }
    }

    /// Whether text of `value` goes out as it comes.
    pub(super) fn stream_out(&self, value: &Value) -> bool {
        value.streams() && self.live && !self.complete
    }

    /// More of a string value is certain.
    pub(super) fn stream(&self, value: &Value, to: u64, held: &mut Held, sink: &mut Sink) {
        if !value.streams() {
            return;
        }
        if self.stream_out(value) {
            sink.emit_escaped(held, to);
        } else {
            sink.skip(held, to);
        }
    }

    /// A value is complete; its text ends at `to`.
    pub(super) fn value(&mut self, value: Value, to: u64, held: &mut Held, sink: &mut Sink) {
        if value.streams() {
            self.stream(&value, to, held, sink);
            self.raw("\"", sink);
            return;
        }
        let body = held.slice(value.start, to);
        if let Some(name) = &value.wrapper {
            if let Some(inner) = self.unwrapped(body, &value.kind) {
                sink.recover("R13", value.start);
                self.open_object(&inner, sink);
                return;
            }
            self.key(name, sink);
        }
        let mut text = String::new();
        match &value.kind {
            ValueKind::String => string(body, &mut text),
            ValueKind::Json if is_value(body) => text.push_str(body),
            ValueKind::Json => {
                sink.recover("R8", value.start);
                string(body, &mut text);
            }
            ValueKind::Untyped(attribute) => {
                sink.recover("R7", value.start);
                match attribute {
                    Some(attribute) if body.is_empty() => string(attribute, &mut text),
                    _ if is_value(body) => text.push_str(body),
                    _ => string(body, &mut text),
                }
            }
        }
        self.raw(&text, sink);
    }

    /// The output ends inside a value, whose text ends at `to`: it stays unfinished (R14).
    pub(super) fn cut_value(&mut self, value: Value, to: u64, held: &mut Held, sink: &mut Sink) {
        if value.streams() {
            self.stream(&value, to, held, sink);
            return;
        }
        if let Some(name) = &value.wrapper {
            self.key(name, sink);
        }
        let body = held.slice(value.start, to);
        let is_string = match value.kind {
            ValueKind::String => true,
            ValueKind::Json => false,
            ValueKind::Untyped(_) => !body
                .trim_start()
                .starts_with(|c: char| matches!(c, '{' | '[' | '"' | '-') || c.is_ascii_digit()),
        };
        if !is_string {
            let text = without_cut_bracket(body).to_owned();
            self.raw(&text, sink);
        } else if !body.is_empty() || value.kind == ValueKind::String {
            let text = body.to_owned();
            self.raw("\"", sink);
            self.escaped(&text, sink);
        }
    }

    /// The object inside a wrapper, if all its keys are declared.
    fn unwrapped(&self, body: &str, kind: &ValueKind) -> Option<String> {
        let text = match kind {
            ValueKind::String => body.to_owned(),
            ValueKind::Json | ValueKind::Untyped(_) => {
                serde_json::from_str::<String>(body).unwrap_or_else(|_| body.to_owned())
            }
        };
        let map: serde_json::Map<String, serde_json::Value> = serde_json::from_str(&text).ok()?;
        let declared = map.keys().all(|key| self.properties.contains(key));
        declared.then_some(text)
    }

    /// Gives out an object but for its last brace, so that parameters may follow.
    fn open_object(&mut self, text: &str, sink: &mut Sink) {
        let text = text.trim();
        let inner = text.strip_suffix('}').unwrap_or(text).trim_end();
        if inner != "{" {
            self.raw(inner, sink);
            self.opened = true;
        }
    }

    /// A JSON object stood where parameters should, up to `to`; with `goes_on` parameters follow. False
    /// if it was none.
    pub(super) fn object(&mut self, to: u64, goes_on: bool, held: &Held, sink: &mut Sink) -> bool {
        let body = held.slice(held.base(), to).trim();
        if !is_value(body) {
            return false;
        }
        if goes_on {
            self.open_object(body, sink);
        } else {
            self.raw(body, sink);
            self.complete = true;
        }
        true
    }

    /// The call ends.
    pub(super) fn end(&mut self, sink: &mut Sink) {
        self.raw(if self.opened { "}" } else { "{}" }, sink);
        self.complete = true;
    }
}

/// JSON that the end of the output cut, without the bracket of a tag behind it: outside of its strings JSON has none.
pub(super) fn without_cut_bracket(json: &str) -> &str {
    let Some(rest) = json.strip_suffix("</").or_else(|| json.strip_suffix('<')) else {
        return json;
    };
    let (mut in_string, mut bytes) = (false, rest.bytes());
    while let Some(byte) = bytes.next() {
        match byte {
            b'"' => in_string = !in_string,
            b'\\' if in_string => _ = bytes.next(),
            _ => {}
        }
    }
    if in_string { json } else { rest }
}
