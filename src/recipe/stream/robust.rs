//! The tolerant grammar (rules R1 to R15): text, then calls, whatever the model got wrong on the way.
//!
//! One state after another, each consumed by the step that leaves it. What a state has not decided stays
//! in the held text, so giving up on a block or a tag is going back to a place, once.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::answer::Reason;
use super::attributes::{Attributes, Progress};
use super::calls::{Arguments, Value, ValueKind, without_cut_bracket};
use super::held::{Class, Held, Mark};
use super::settings::DeclaredTool;
use super::sink::{Part, Sink};
use super::stops::Stops;
use super::tags::{Kind, Look, Tag, Wanted, Word, bare_parameter};
use super::text::{Exit, Rules, Stage as TextStage, Text};

/// What a step works on.
pub(super) struct Input<'a> {
    pub(super) rules: &'a Rules,
    pub(super) stops: &'a mut Stops,
    pub(super) held: &'a mut Held,
    pub(super) sink: &'a mut Sink,
    /// Set when there will be no more input.
    pub(super) end: Option<Reason>,
}

/// A block of calls that has none yet. Everything inside is held.
#[derive(Debug)]
struct Block {
    /// Where its markup begins, newlines before it included.
    open: u64,
    /// Where its inside begins.
    from: u64,
    cursor: u64,
    /// What was read before it.
    back: Text,
    /// It is a block only if a call with an acceptable name follows.
    unproven: bool,
    opener: Option<Tag>,
}

/// The opening tag of a call.
#[derive(Debug)]
struct CallTag {
    start: u64,
    attributes: Attributes,
    /// Until the call has its name: the block whose first call it is.
    block: Option<Block>,
    named: bool,
}

/// The opening tag of a parameter.
#[derive(Debug)]
struct ParameterTag {
    attributes: Attributes,
    name: Option<String>,
    /// How much of the name is out.
    shown: usize,
    opened: bool,
    /// Where the name's value ended.
    name_end: u64,
    colon: bool,
    string: Option<String>,
    /// It may be a wrapper around all arguments, so its name waits.
    wrapper: bool,
}

#[derive(Debug)]
enum Stage {
    Text(Text),
    Block(Block),
    CallTag(CallTag),
    /// Inside a call, between parameters; `blank`: nothing but white space yet.
    Body {
        cursor: u64,
        blank: bool,
    },
    ParameterTag(ParameterTag),
    Value(Value),
    /// A JSON object instead of parameters, from `start` on.
    Object {
        start: u64,
        cursor: u64,
    },
    /// Behind a call: text is dropped, calls go on.
    Between {
        cursor: u64,
        noted: bool,
    },
    Finished,
}

/// Where a tag is looked for: it decides which ones mean something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Block,
    Body,
    Value,
    Between,
}

enum Step {
    Again(Stage),
    /// Nothing more to do with the input there is.
    Wait(Stage),
}
use Step::{Again, Wait};

/// See the module.
#[derive(Debug)]
pub(super) struct Robust {
    stage: Stage,
    arguments: Arguments,
    /// Names of declared tools and of their parameters, if they are known.
    tools: Option<HashMap<String, Arc<HashSet<String>>>>,
    /// The block's marker is spelled with other bars, and so may its tags be.
    aliases: bool,
    stopped: Option<usize>,
}

impl Robust {
    /// Begins with `text`, or inside a block.
    pub(super) fn new(text: Text, in_block: bool, tools: Option<Vec<DeclaredTool>>) -> Self {
        let stage = if in_block {
            Stage::Block(Block {
                open: 0,
                from: 0,
                cursor: 0,
                back: text,
                unproven: false,
                opener: None,
            })
        } else {
            Stage::Text(text)
        };
        Self {
            stage,
            arguments: Arguments::default(),
            tools: tools.map(by_name),
            aliases: false,
            stopped: None,
        }
    }

    /// Reads what is held. The index of a stop sequence once one matched.
    pub(super) fn advance(&mut self, mut input: Input<'_>) -> Option<usize> {
        loop {
            let stage = std::mem::replace(&mut self.stage, Stage::Finished);
            match self.step(stage, &mut input) {
                Again(stage) => self.stage = stage,
                Wait(stage) => {
                    self.stage = stage;
                    return self.stopped;
                }
            }
        }
    }

    /// Where text goes that no marker claims, if it goes out at once.
    pub(super) fn straight(&self) -> Option<Part> {
        match &self.stage {
            Stage::Text(text) => text.straight(),
            Stage::Value(value) if self.arguments.stream_out(value) => Some(Part::Arguments),
            _ => None,
        }
    }

    /// So much text went straight out.
    pub(super) fn pass(&mut self, count: u64) {
        match &mut self.stage {
            Stage::Text(text) => text.cursor += count,
            Stage::Value(value) => value.cursor += count,
            _ => {}
        }
    }

    /// Whether the output is still reasoning.
    pub(super) fn in_reasoning(&self) -> bool {
        matches!(&self.stage, Stage::Text(text) if text.stage == TextStage::Reasoning)
    }

    fn step(&mut self, stage: Stage, input: &mut Input<'_>) -> Step {
        match stage {
            Stage::Text(text) => self.text(text, input),
            Stage::Block(block) => self.block(block, input),
            Stage::CallTag(tag) => self.call_tag(tag, input),
            Stage::Body { cursor, blank } => self.body(cursor, blank, input),
            Stage::ParameterTag(tag) => self.parameter_tag(tag, input),
            Stage::Value(value) => self.value(value, input),
            Stage::Object { start, cursor } => self.object(start, cursor, input),
            Stage::Between { cursor, noted } => self.between(cursor, noted, input),
            Stage::Finished => {
                input.sink.skip(input.held, input.held.end());
                Wait(Stage::Finished)
            }
        }
    }

    fn text(&mut self, mut text: Text, input: &mut Input<'_>) -> Step {
        match text.run(input.rules, input.stops, input.held, input.sink, input.end) {
            Exit::More => Wait(Stage::Text(text)),
            Exit::Stopped(index) => {
                self.stopped = Some(index);
                Wait(Stage::Finished)
            }
            Exit::Opened(tag) => {
                let block = Block {
                    open: tag.start,
                    from: tag.end,
                    cursor: tag.end,
                    back: text,
                    unproven: tag.alias || tag.kind == Kind::Open(Word::Invoke),
                    opener: Some(tag),
                };
                self.aliases = tag.alias;
                if !block.unproven {
                    note_opener(&tag, input.sink);
                    input.sink.cut(input.held, tag.start, tag.end);
                }
                if tag.kind == Kind::Open(Word::Invoke) {
                    return Again(call_tag(text.cursor, tag.end, Some(block)));
                }
                Again(Stage::Block(block))
            }
        }
    }

    /// The next tag from `cursor` on that counts here. `Err` is where the text ends that is no tag.
    fn next_tag(&self, input: &Input<'_>, cursor: u64, place: Place) -> Result<Tag, u64> {
        let held = &*input.held;
        let markup = &input.rules.markup;
        let wanted = Wanted {
            think_start: place == Place::Block,
            think_end: matches!(place, Place::Block | Place::Body),
            calls: true,
            aliases: self.aliases,
        };
        let mut at = cursor;
        while at < held.end() {
            let (class, run_end) = held.class_at(at);
            match class {
                Class::Special(Mark::ThinkStart | Mark::ThinkEnd) => {}
                Class::Special(_) => {
                    at = run_end;
                    continue;
                }
                Class::Text | Class::Plain => {
                    let bytes = &held.bytes(at)[..(run_end - at) as usize];
                    match bytes.iter().position(|&byte| markup.begins_with(byte)) {
                        Some(skip) => at += skip as u64,
                        None => {
                            at = run_end;
                            continue;
                        }
                    }
                }
            }
            match markup.tag(held, at, wanted, input.end.is_some()) {
                Look::Yes(tag) => return Ok(tag),
                Look::Partial if input.end.is_none() => return Err(at),
                Look::Partial | Look::No => {}
            }
            if place == Place::Body {
                match bare_parameter(held, at) {
                    Look::Yes(end) => {
                        let kind = Kind::Open(Word::Parameter);
                        return Ok(Tag {
                            odd: true,
                            ..Tag::new(at, end, kind)
                        });
                    }
                    Look::Partial if input.end.is_none() => return Err(at),
                    Look::Partial | Look::No => {}
                }
            }
            at += 1;
        }
        Err(held.end())
    }

    fn block(&mut self, mut block: Block, input: &mut Input<'_>) -> Step {
        loop {
            let tag = match self.next_tag(input, block.cursor, Place::Block) {
                Ok(tag) => tag,
                Err(at) if input.end.is_none() => {
                    block.cursor = at;
                    return Wait(Stage::Block(block));
                }
                Err(end) => {
                    // Tags are what a block is made of: here one that was cut at once is one, too.
                    let inside_end = cut_tag(input.held, block.cursor, true).unwrap_or(end);
                    return self.close_block(block, inside_end, end, input);
                }
            };
            match tag.kind {
                Kind::Open(Word::Invoke) => {
                    return Again(call_tag(tag.start, tag.end, Some(block)));
                }
                Kind::Close(Word::Block) => {
                    return self.close_block(block, tag.start, tag.end, input);
                }
                Kind::Open(Word::Parameter) => {}
                Kind::Open(Word::Block) | Kind::Close(_) | Kind::ThinkStart | Kind::ThinkEnd => {
                    if !block.unproven {
                        input.sink.cut(input.held, tag.start, tag.end);
                        if block.from == tag.start {
                            block.from = tag.end;
                        }
                    }
                }
            }
            block.cursor = tag.end;
        }
    }

    /// A block that ends without a call (R3): its text and what follows is content.
    fn close_block(
        &mut self,
        block: Block,
        inside_end: u64,
        after: u64,
        input: &mut Input<'_>,
    ) -> Step {
        if block.unproven {
            return self.refute(block, after, input);
        }
        input.sink.recover("R3", block.open);
        let stage = match block.back.stage {
            TextStage::JsonAfter => TextStage::JsonAfter,
            _ => input.rules.content(),
        };
        let cursor = if input.held.has_text(block.from, inside_end) {
            input.sink.cut(input.held, inside_end, after);
            block.from
        } else {
            input.held.restore(block.from);
            input.sink.cut(input.held, block.from, after);
            after
        };
        input.stops.reset(cursor);
        let mut text = Text::new(stage, false, false, cursor);
        text.refuted = block.back.refuted;
        Again(Stage::Text(text))
    }

    /// What looked like calls was text; it is read again as such. Nothing up to `read` is tried again.
    fn refute(&mut self, block: Block, read: u64, input: &mut Input<'_>) -> Step {
        input.held.restore(block.open);
        self.aliases = false;
        let mut text = block.back;
        text.refuted = read;
        Again(Stage::Text(text))
    }

    fn call_tag(&mut self, mut tag: CallTag, input: &mut Input<'_>) -> Step {
        loop {
            match tag.attributes.read(input.held) {
                Progress::Value => {
                    if tag.named || tag.attributes.key != "name" {
                        continue;
                    }
                    let name = trim(&tag.attributes.value).to_owned();
                    let proven = self.proves(&tag.attributes, &name);
                    if let Some(block) = tag.block.take_if(|block| block.unproven && !proven) {
                        return self.refute(block, tag.attributes.cursor, input);
                    }
                    self.begin_call(&mut tag, &name, input);
                }
                Progress::End { closed } => {
                    if !tag.named {
                        if let Some(block) = tag.block.take_if(|block| block.unproven) {
                            return self.refute(block, tag.attributes.cursor, input);
                        }
                        self.begin_call(&mut tag, "", input);
                    }
                    let cursor = tag.attributes.cursor;
                    input.sink.skip(input.held, cursor);
                    if closed {
                        self.arguments.end(input.sink);
                        return Again(Stage::Between {
                            cursor,
                            noted: false,
                        });
                    }
                    return Again(Stage::Body {
                        cursor,
                        blank: true,
                    });
                }
                Progress::Refuted => {
                    if let Some(block) = tag.block.take() {
                        return self.refute(block, tag.attributes.cursor, input);
                    }
                    tag.attributes.doubtful = false;
                }
                Progress::More => return self.call_tag_waits(tag, input),
            }
        }
    }

    fn call_tag_waits(&mut self, mut tag: CallTag, input: &mut Input<'_>) -> Step {
        if tag.named {
            input.sink.skip(input.held, tag.attributes.cursor);
            return Wait(Stage::CallTag(tag));
        }
        let Some(block) = tag.block.take() else {
            if input.end.is_some() {
                input.sink.skip(input.held, input.held.end());
            }
            return Wait(Stage::CallTag(tag));
        };
        let Some(reason) = input.end else {
            tag.block = Some(block);
            return Wait(Stage::CallTag(tag));
        };
        let end = input.held.end();
        if !block.unproven {
            return self.close_block(block, tag.start, end, input);
        }
        if self.aliases || reason != Reason::Length {
            return self.refute(block, end, input);
        }
        // A call without a block, cut by the token limit, is markup all the same.
        input.sink.cut(input.held, block.open, end);
        let mut text = block.back;
        text.cursor = end;
        Again(Stage::Text(text))
    }

    /// Whether `name` shows that a doubtful opener really opens calls.
    fn proves(&self, attributes: &Attributes, name: &str) -> bool {
        if attributes.broken || name.contains(['\n', '<', '>']) {
            return false;
        }
        match &self.tools {
            Some(tools) if self.aliases => tools.contains_key(name),
            _ => true,
        }
    }

    fn begin_call(&mut self, tag: &mut CallTag, name: &str, input: &mut Input<'_>) {
        tag.named = true;
        tag.attributes.doubtful = false;
        if let Some(block) = tag.block.take() {
            if let Some(opener) = block.opener.filter(|_| block.unproven) {
                note_opener(&opener, input.sink);
            }
            if block.back.stage == TextStage::JsonBefore {
                Text::release_noise(input.held, input.sink, block.open);
            }
            if input
                .held
                .has_text(block.from.max(input.held.base()), tag.start)
            {
                input.sink.recover("R4", block.from);
            }
        }
        input.held.restore(input.held.base());
        input.sink.skip(input.held, tag.attributes.cursor);
        if name.is_empty() {
            input.sink.recover("R12", tag.start);
        }
        let properties = self.tools.as_ref().and_then(|tools| tools.get(name));
        self.arguments = Arguments::new(!name.is_empty(), properties.cloned().unwrap_or_default());
        if !name.is_empty() {
            input.sink.call(name);
        }
    }

    fn body(&mut self, cursor: u64, blank: bool, input: &mut Input<'_>) -> Step {
        let found = self.next_tag(input, cursor, Place::Body);
        let to = match &found {
            Ok(tag) => tag.start,
            Err(at) => *at,
        };
        let mut blank = blank;
        if blank {
            let text = input.held.slice(cursor, to);
            if let Some(at) = text.bytes().position(|byte| !byte.is_ascii_whitespace()) {
                let start = cursor + at as u64;
                if text.as_bytes()[at] == b'{'
                    && !matches!(input.held.class_at(start).0, Class::Special(_))
                {
                    input.sink.skip(input.held, start);
                    return Again(Stage::Object {
                        start,
                        cursor: start,
                    });
                }
                input.sink.recover("R4", start);
                blank = false;
            }
        }
        input.sink.skip(input.held, to);
        let Ok(tag) = found else {
            return Wait(Stage::Body { cursor: to, blank });
        };
        match tag.kind {
            Kind::Open(Word::Parameter) => {
                input.sink.skip(input.held, tag.end);
                if tag.odd {
                    input.sink.recover("R6", tag.start);
                }
                Again(Stage::ParameterTag(ParameterTag {
                    attributes: Attributes::new(tag.end, false),
                    name: None,
                    shown: 0,
                    opened: false,
                    name_end: 0,
                    colon: false,
                    string: None,
                    wrapper: self.arguments.may_be_wrapped(),
                }))
            }
            Kind::Open(Word::Invoke) => {
                input.sink.recover("R10", tag.start);
                self.arguments.end(input.sink);
                Again(call_tag(tag.start, tag.end, None))
            }
            Kind::Close(Word::Invoke | Word::Block) => {
                if tag.kind == Kind::Close(Word::Block) {
                    input.sink.recover("R10", tag.start);
                }
                self.arguments.end(input.sink);
                input.sink.skip(input.held, tag.end);
                Again(Stage::Between {
                    cursor: tag.end,
                    noted: false,
                })
            }
            Kind::Open(Word::Block)
            | Kind::Close(Word::Parameter)
            | Kind::ThinkStart
            | Kind::ThinkEnd => {
                input.sink.recover("R4", tag.start);
                input.sink.skip(input.held, tag.end);
                Again(Stage::Body {
                    cursor: tag.end,
                    blank,
                })
            }
        }
    }

    fn parameter_tag(&mut self, mut tag: ParameterTag, input: &mut Input<'_>) -> Step {
        loop {
            match tag.attributes.read(input.held) {
                Progress::Value => {
                    let attributes = &tag.attributes;
                    if attributes.key == "name" && tag.name.is_none() {
                        tag.name = Some(trim(&attributes.value).to_owned());
                        tag.name_end = attributes.cursor;
                        tag.wrapper &= Arguments::is_wrapper_name(trim(&attributes.value));
                    } else if attributes.key == "string" && tag.string.is_none() {
                        tag.string = Some(attributes.value.clone());
                    }
                    self.show_name(&mut tag, input.sink);
                }
                // Inside a call no tag is doubtful.
                Progress::More | Progress::Refuted => {
                    tag.wrapper &= input.end.is_none();
                    self.show_name(&mut tag, input.sink);
                    input.sink.skip(input.held, tag.attributes.cursor);
                    return Wait(Stage::ParameterTag(tag));
                }
                Progress::End { closed } => {
                    let start = tag.attributes.cursor;
                    if tag.name.is_none() {
                        input.sink.recover("R6", start);
                        tag.name = Some(String::new());
                        tag.wrapper = false;
                    }
                    tag.name_end = 0;
                    self.show_name(&mut tag, input.sink);
                    input.sink.skip(input.held, start);
                    let kind = ValueKind::of(tag.string);
                    let wrapper = tag.name.filter(|_| tag.wrapper);
                    let value = Value::new(kind, wrapper, start);
                    self.arguments.open_value(&value, input.sink);
                    if closed {
                        self.arguments.value(value, start, input.held, input.sink);
                        return Again(Stage::Body {
                            cursor: start,
                            blank: false,
                        });
                    }
                    return Again(Stage::Value(value));
                }
            }
        }
    }

    /// Gives out as much of the parameter's name as is certain.
    fn show_name(&mut self, tag: &mut ParameterTag, sink: &mut Sink) {
        let attributes = &tag.attributes;
        let name = match &tag.name {
            Some(name) => name.as_str(),
            None if attributes.in_value() && attributes.key == "name" => trim(&attributes.value),
            None => return,
        };
        if tag.wrapper {
            if tag.name.is_some() || Arguments::may_become_wrapper_name(name) {
                return;
            }
            tag.wrapper = false;
        }
        if !tag.opened {
            tag.opened = true;
            self.arguments.open_key(sink);
        }
        if tag.shown < name.len() {
            self.arguments.escaped(&name[tag.shown..], sink);
            tag.shown = name.len();
        }
        if tag.name.is_some() && !tag.colon {
            // Twice, because the reference shows the colon one character after the name.
            if tag.shown <= name.len() {
                self.arguments.raw("\"", sink);
                tag.shown = name.len() + 1;
            }
            if attributes.cursor > tag.name_end {
                self.arguments.raw(": ", sink);
                tag.colon = true;
            }
        }
    }

    /// The next tag that ends a value or an object: `Ok` with where the text before it ends.
    fn next_end(
        &self,
        cursor: u64,
        start: u64,
        close: Word,
        input: &Input<'_>,
    ) -> Result<(Tag, u64), u64> {
        let mut at = cursor;
        loop {
            let tag = self.next_tag(input, at, Place::Value)?;
            if tag.kind == Kind::Close(close) {
                return Ok((tag, tag.start));
            }
            let structural = matches!(
                tag.kind,
                Kind::Open(Word::Parameter | Word::Invoke)
                    | Kind::Close(Word::Invoke | Word::Block)
            );
            let newline =
                tag.start > start.max(input.held.base()) && input.held.byte(tag.start - 1) == b'\n';
            if structural && (tag.special || newline) {
                return Ok((tag, tag.start - u64::from(newline)));
            }
            at = tag.start + 1;
            if let (Class::Special(_), run_end) = input.held.class_at(tag.start) {
                at = run_end;
            }
        }
    }

    fn value(&mut self, mut value: Value, input: &mut Input<'_>) -> Step {
        match self.next_end(value.cursor, value.start, Word::Parameter, input) {
            Ok((tag, body_end)) => {
                let closed = tag.kind == Kind::Close(Word::Parameter);
                if !closed {
                    input.sink.recover("R9", tag.start);
                }
                let cursor = if closed { tag.end } else { tag.start };
                self.arguments
                    .value(value, body_end, input.held, input.sink);
                input.sink.skip(input.held, cursor);
                Again(Stage::Body {
                    cursor,
                    blank: false,
                })
            }
            Err(_) if input.end.is_some() => {
                let end = self.without_cut_close(value.cursor, input);
                self.arguments.cut_value(value, end, input.held, input.sink);
                input.sink.skip(input.held, input.held.end());
                Wait(Stage::Finished)
            }
            Err(at) => {
                value.cursor = at;
                let newline =
                    at > value.start.max(input.held.base()) && input.held.byte(at - 1) == b'\n';
                self.arguments
                    .stream(&value, at - u64::from(newline), input.held, input.sink);
                Wait(Stage::Value(value))
            }
        }
    }

    /// Where the output ends, but for a closing tag that was cut (R14).
    fn without_cut_close(&self, cursor: u64, input: &mut Input<'_>) -> u64 {
        match cut_tag(input.held, cursor, false) {
            Some(at) if input.held.slice(at, input.held.end()).starts_with("</") => {
                input.sink.recover("R14", at);
                at
            }
            _ => input.held.end(),
        }
    }

    fn object(&mut self, start: u64, cursor: u64, input: &mut Input<'_>) -> Step {
        match self.next_end(cursor, start, Word::Invoke, input) {
            Ok((tag, body_end)) => {
                let goes_on = tag.kind == Kind::Open(Word::Parameter);
                if !self
                    .arguments
                    .object(body_end, goes_on, input.held, input.sink)
                {
                    input.sink.recover("R11", start);
                }
                input.sink.skip(input.held, tag.start);
                Again(Stage::Body {
                    cursor: tag.start,
                    blank: false,
                })
            }
            Err(_) if input.end.is_some() => {
                let end = self.without_cut_close(cursor, input);
                let text = without_cut_bracket(input.held.slice(start, end)).to_owned();
                self.arguments.raw(&text, input.sink);
                input.sink.skip(input.held, input.held.end());
                Wait(Stage::Finished)
            }
            Err(at) => Wait(Stage::Object { start, cursor: at }),
        }
    }

    fn between(&mut self, cursor: u64, noted: bool, input: &mut Input<'_>) -> Step {
        let found = self.next_tag(input, cursor, Place::Between);
        let to = match &found {
            Ok(tag) => tag.start,
            Err(at) => *at,
        };
        let mut noted = noted;
        if !noted {
            let text = input.held.slice(cursor, to);
            if let Some(at) = text.bytes().position(|byte| !byte.is_ascii_whitespace()) {
                input.sink.recover("R4", cursor + at as u64);
                noted = true;
            }
        }
        let Ok(tag) = found else {
            input.sink.skip(input.held, to);
            return Wait(Stage::Between { cursor: to, noted });
        };
        input.sink.skip(input.held, tag.end);
        if tag.kind == Kind::Open(Word::Invoke) {
            return Again(call_tag(tag.start, tag.end, None));
        }
        Again(Stage::Between {
            cursor: tag.end,
            noted,
        })
    }
}

/// Of tools with one name the first counts.
fn by_name(tools: Vec<DeclaredTool>) -> HashMap<String, Arc<HashSet<String>>> {
    let mut all = HashMap::with_capacity(tools.len());
    for tool in tools {
        let properties = || Arc::new(tool.properties.into_iter().collect());
        all.entry(tool.name).or_insert_with(properties);
    }
    all
}

fn call_tag(start: u64, at: u64, block: Option<Block>) -> Stage {
    Stage::CallTag(CallTag {
        start,
        attributes: Attributes::new(at, block.as_ref().is_some_and(|block| block.unproven)),
        block,
        named: false,
    })
}

fn note_opener(tag: &Tag, sink: &mut Sink) {
    if tag.alias || tag.bars {
        sink.recover("R2", tag.start);
    } else if tag.odd || tag.kind == Kind::Open(Word::Invoke) {
        sink.recover("R1", tag.start);
    }
}

/// Where a tag begins that the end of the output cut behind the first part of its marker; with `bare` also before it.
fn cut_tag(held: &Held, cursor: u64, bare: bool) -> Option<u64> {
    let text = held.slice(cursor.max(held.base()), held.end());
    let at = text.rfind('<')?;
    let tail = text[at + 1..].strip_prefix('/').unwrap_or(&text[at + 1..]);
    // Longer than any marker with its word: text that merely begins like one.
    let marker =
        tail.starts_with(['｜', '|', '‖']) && tail.len() < 64 && !tail.contains(['>', '\n']);
    (marker || bare && tail.is_empty()).then(|| cursor.max(held.base()) + at as u64)
}

fn trim(text: &str) -> &str {
    text.trim_matches(|c: char| c.is_ascii_whitespace())
}
