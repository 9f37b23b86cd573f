//! Reasoning, content and JSON output: the part of an answer that is text for people.
//!
//! Text goes out as soon as it cannot be part of a marker any more; what a marker takes with it (the
//! newlines before it) waits for its end. Calls are read by [`super::robust`] and [`super::strict`].

use super::answer::Reason;
use super::held::{Class, Held, Mark};
use super::sink::{Part, Sink};
use super::stops::Stops;
use super::tags::{Kind, Look, Markup, Tag, Wanted, Word, plain};

/// Which kind of text is being read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    Reasoning,
    Content,
    /// JSON output before the document.
    JsonBefore,
    /// The document.
    Json,
    /// JSON output after a closed fence.
    JsonAfter,
}

/// How the text ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Exit {
    /// It did not: more input is needed.
    More,
    /// This stop sequence matched; the text before it is out.
    Stopped(usize),
    /// Tool calls begin; in robust mode nothing of the opener is consumed.
    Opened(Tag),
}

/// What the text stages look for, fixed for a request.
#[derive(Debug)]
pub(super) struct Rules {
    pub(super) markup: Markup,
    pub(super) strict: bool,
    pub(super) parse_tool_calls: bool,
    pub(super) json: bool,
    pub(super) thinking: bool,
    pub(super) include_stop: bool,
}

impl Rules {
    /// Where content begins.
    pub(super) fn content(&self) -> Stage {
        if self.json {
            Stage::JsonBefore
        } else {
            Stage::Content
        }
    }
}

/// See the module.
#[derive(Clone, Copy, Debug)]
pub(super) struct Text {
    pub(super) stage: Stage,
    /// Leading newlines are dropped; ends with the first other text or marker.
    pub(super) strip: bool,
    /// Nothing but newlines was read since the beginning of the output.
    pub(super) fresh: bool,
    /// Next place to look for markers.
    pub(super) cursor: u64,
    /// Openers that need proof are text before this place: it was tried.
    pub(super) refuted: u64,
    /// Strict mode: the last piece that was replaced by a blank.
    blanked: u64,
}

/// Which of [`Held::newline_floors`] is whose.
const THINK_END: usize = 0;
const OPENER: usize = 1;

enum Found {
    Nothing,
    Partial(u64),
    Tag(Tag),
    /// Start and end of a fence or bracket that begins a document; the fence is not part of it.
    Document {
        start: u64,
        end: u64,
        fence: bool,
    },
    /// Start and end of a fence that ends it.
    Close {
        start: u64,
        end: u64,
    },
}

impl Text {
    pub(super) fn new(stage: Stage, strip: bool, fresh: bool, cursor: u64) -> Self {
        Self {
            stage,
            strip,
            fresh,
            cursor,
            refuted: 0,
            blanked: u64::MAX,
        }
    }

    /// Where text goes that no marker claims, if it goes out at once.
    pub(super) fn straight(&self) -> Option<Part> {
        self.part().filter(|_| !self.strip && !self.fresh)
    }

    /// Reads held text. With `end` there will be no more.
    pub(super) fn run(
        &mut self,
        rules: &Rules,
        stops: &mut Stops,
        held: &mut Held,
        sink: &mut Sink,
        end: Option<Reason>,
    ) -> Exit {
        loop {
            if let Some(exit) = self.strip_newlines(rules, stops, held, sink) {
                return exit;
            }
            let found = self.find(rules, held, end);
            // What ends first counts, and a tag counts from its marker on: nothing behind it, not the rest of the tag
            // either, is content that a sequence could stop.
            let marker_end = |at, otherwise| {
                let marker = rules.markup.marker_end(held, at);
                marker.filter(|_| !rules.strict).unwrap_or(otherwise)
            };
            let limit = match found {
                Found::Nothing => held.end(),
                Found::Partial(at) => marker_end(at, held.end()),
                Found::Tag(tag) => marker_end(tag.start, tag.end),
                Found::Document { end, .. } | Found::Close { end, .. } => end,
            };
            if let Some(exit) = self.check_stops(rules, stops, held, sink, limit) {
                return exit;
            }
            match found {
                Found::Nothing => {
                    self.cursor = held.end();
                    self.release(rules, stops, held, sink, self.cursor, end);
                    return Exit::More;
                }
                Found::Partial(at) => {
                    self.cursor = at;
                    if end == Some(Reason::Length) && self.drop_cut_opener(rules, held, sink, at) {
                        continue;
                    }
                    self.release(rules, stops, held, sink, at, end);
                    return Exit::More;
                }
                Found::Document { start, end, fence } => {
                    self.noise(rules, held, sink, start);
                    sink.next_segment();
                    sink.skip(held, if fence { end } else { start });
                    if !fence {
                        sink.emit(held, end, Part::Content);
                    }
                    sink.next_segment();
                    self.enter(Stage::Json, false, end, stops);
                }
                Found::Close { start, end } => {
                    sink.emit(held, start, Part::Content);
                    sink.skip(held, end);
                    sink.next_segment();
                    self.enter(Stage::JsonAfter, false, end, stops);
                }
                Found::Tag(tag) => {
                    if let Some(exit) = self.tag(rules, stops, held, sink, tag) {
                        return exit;
                    }
                }
            }
        }
    }

    fn enter(&mut self, stage: Stage, strip: bool, at: u64, stops: &mut Stops) {
        self.stage = stage;
        self.strip = strip;
        self.cursor = at;
        self.blanked = u64::MAX;
        stops.reset(at);
    }

    /// Drops newlines at the beginning. `Some` when a stop sequence matched there or nothing else came.
    fn strip_newlines(
        &mut self,
        rules: &Rules,
        stops: &mut Stops,
        held: &mut Held,
        sink: &mut Sink,
    ) -> Option<Exit> {
        if !self.strip {
            return None;
        }
        while self.cursor < held.end() {
            if let Some(end) = held.hole_at(self.cursor) {
                self.cursor = end;
                continue;
            }
            if held.byte(self.cursor) != b'\n' {
                return None;
            }
            let next = self.cursor + 1;
            if let Some(exit) = self.check_stops(rules, stops, held, sink, next) {
                return Some(exit);
            }
            stops.reset(next);
            sink.next_segment();
            sink.cut(held, self.cursor, next);
            self.cursor = next;
        }
        Some(Exit::More)
    }

    fn check_stops(
        &mut self,
        rules: &Rules,
        stops: &mut Stops,
        held: &mut Held,
        sink: &mut Sink,
        limit: u64,
    ) -> Option<Exit> {
        if !matches!(self.stage, Stage::Content | Stage::Json) {
            return None;
        }
        let (index, start, end) = stops.scan(held, limit)?;
        let shown = if rules.include_stop { end } else { start };
        sink.emit(held, shown, Part::Content);
        sink.skip(held, held.end());
        Some(Exit::Stopped(index))
    }

    /// What stands next from the cursor on.
    fn find(&mut self, rules: &Rules, held: &mut Held, end: Option<Reason>) -> Found {
        let mut at = self.cursor;
        let mut cut = None;
        while at < held.end() {
            if let Some(hole_end) = held.hole_at(at) {
                at = hole_end;
                continue;
            }
            let (class, run_end) = held.class_at(at);
            let run_end = held.solid_end(at, run_end);
            let interesting = match class {
                Class::Special(Mark::ThinkStart | Mark::ThinkEnd) => true,
                Class::Special(Mark::Dsml | Mark::Other) => false,
                Class::Text | Class::Plain => {
                    let bytes = &held.bytes(at)[..(run_end - at) as usize];
                    match bytes.iter().position(|&byte| self.stops_at(rules, byte)) {
                        Some(skip) => {
                            if skip > 0 {
                                self.strip = false;
                                self.fresh = false;
                            }
                            at += skip as u64;
                            true
                        }
                        None => false,
                    }
                }
            };
            if interesting {
                match self.look(rules, held, at, end.is_some()) {
                    Look::Yes(found) => return found,
                    Look::Partial if end.is_none() => return Found::Partial(at),
                    Look::Partial => {
                        if end == Some(Reason::Length)
                            && cut.is_none()
                            && rules.parse_tool_calls
                            && !rules.strict
                            && rules.markup.is_cut_opener(held, at)
                        {
                            cut = Some(at);
                        }
                    }
                    Look::No => {
                        for marker in [THINK_END, OPENER] {
                            let opener = marker == OPENER;
                            if rules.strict
                                && (!opener || rules.parse_tool_calls)
                                && let Some(newline) =
                                    rules.markup.broken_by_newline(held, at, opener)
                            {
                                held.newline_floors[marker] = newline + 1;
                            }
                        }
                    }
                }
                at = if let Class::Special(_) = class {
                    run_end
                } else {
                    at + 1
                };
            } else {
                at = run_end;
            }
            self.strip = false;
            self.fresh = false;
        }
        match cut {
            Some(at) => Found::Partial(at),
            None => Found::Nothing,
        }
    }

    /// Bytes that may begin a marker.
    fn stops_at(&self, rules: &Rules, byte: u8) -> bool {
        match self.stage {
            Stage::Reasoning | Stage::Content | Stage::JsonAfter => rules.markup.begins_with(byte),
            Stage::JsonBefore => begins_document(byte) || rules.markup.begins_with(byte),
            Stage::Json => byte == b'\n',
        }
    }

    fn look(&self, rules: &Rules, held: &Held, at: u64, end: bool) -> Look<Found> {
        if self.stage == Stage::Json {
            return match plain(held, at, "\n```") {
                Look::Yes(end) => Look::Yes(Found::Close { start: at, end }),
                Look::Partial => Look::Partial,
                Look::No => Look::No,
            };
        }
        if self.stage == Stage::JsonBefore
            && begins_document(held.byte(at))
            && !matches!(held.class_at(at).0, Class::Special(_))
        {
            if held.byte(at) != b'`' {
                return Look::Yes(Found::Document {
                    start: at,
                    end: at + 1,
                    fence: false,
                });
            }
            let mut look = Look::No;
            for fence in ["```json\n", "```\n"] {
                match plain(held, at, fence) {
                    Look::Yes(end) => {
                        return Look::Yes(Found::Document {
                            start: at,
                            end,
                            fence: true,
                        });
                    }
                    Look::Partial => look = Look::Partial,
                    Look::No => {}
                }
            }
            return look;
        }
        if rules.strict {
            return self.look_strict(rules, held, at);
        }
        let wanted = Wanted {
            think_start: self.takes_think_start(rules),
            think_end: self.stage != Stage::JsonAfter,
            calls: rules.parse_tool_calls,
            aliases: true,
        };
        match rules.markup.tag(held, at, wanted, end) {
            Look::Yes(tag) if self.takes(rules, &tag) => Look::Yes(Found::Tag(tag)),
            Look::Yes(_) | Look::No => Look::No,
            Look::Partial => Look::Partial,
        }
    }

    fn look_strict(&self, rules: &Rules, held: &Held, at: u64) -> Look<Found> {
        let tag = |end, kind| Tag::new(at, end, kind);
        let mut look = Look::No;
        if rules.parse_tool_calls {
            match rules.markup.bare(held, at, "<") {
                Look::Yes(end) => return Look::Yes(Found::Tag(tag(end, Kind::Open(Word::Block)))),
                Look::Partial => look = Look::Partial,
                Look::No => {}
            }
        }
        if self.stage != Stage::JsonAfter {
            match rules.markup.think_end(held, at) {
                Look::Yes(end) => return Look::Yes(Found::Tag(tag(end, Kind::ThinkEnd))),
                Look::Partial => look = Look::Partial,
                Look::No => {}
            }
        }
        look
    }

    /// Whether a tag means something in this stage; if not it is text.
    fn takes(&self, rules: &Rules, tag: &Tag) -> bool {
        match tag.kind {
            Kind::ThinkEnd => self.stage != Stage::JsonAfter,
            Kind::ThinkStart => self.takes_think_start(rules),
            Kind::Open(Word::Parameter) => false,
            Kind::Open(Word::Block) => {
                rules.parse_tool_calls && (!tag.alias || tag.start >= self.refuted)
            }
            Kind::Open(Word::Invoke) => rules.parse_tool_calls && tag.start >= self.refuted,
            Kind::Close(_) => rules.parse_tool_calls && !tag.alias,
        }
    }

    /// Whether an opening of reasoning would be the very first output.
    fn takes_think_start(&self, rules: &Rules) -> bool {
        self.fresh && self.strip && (self.stage == Stage::Reasoning || !rules.thinking)
    }

    fn tag(
        &mut self,
        rules: &Rules,
        stops: &mut Stops,
        held: &mut Held,
        sink: &mut Sink,
        tag: Tag,
    ) -> Option<Exit> {
        match tag.kind {
            Kind::ThinkStart => {
                sink.recover("R0", tag.start);
                self.drop(rules, held, sink, tag.start, tag.end);
                self.fresh = false;
                self.enter(Stage::Reasoning, true, tag.end, stops);
                None
            }
            Kind::ThinkEnd => {
                self.fresh = false;
                if self.stage == Stage::Reasoning {
                    let start = held.newline_start(tag.start, held.newline_floors[THINK_END]);
                    sink.emit(held, start, Part::Reasoning);
                    sink.skip(held, tag.end);
                    self.enter(rules.content(), true, tag.end, stops);
                } else {
                    self.drop(rules, held, sink, tag.start, tag.end);
                    self.enter(self.stage, false, tag.end, stops);
                }
                sink.next_segment();
                None
            }
            Kind::Close(_) => {
                sink.recover("R5", tag.start);
                let start = held.newline_start(tag.start, 0);
                self.drop(rules, held, sink, start, tag.end);
                self.fresh = false;
                self.enter(self.stage, false, tag.end, stops);
                None
            }
            Kind::Open(_) => {
                let start = held.newline_start(tag.start, held.newline_floors[OPENER]);
                match self.part() {
                    Some(part) => sink.emit(held, start, part),
                    None if rules.strict => self.noise(rules, held, sink, start),
                    None if self.stage == Stage::JsonAfter => sink.skip(held, start),
                    None => {}
                }
                sink.next_segment();
                self.cursor = tag.start;
                Some(Exit::Opened(Tag { start, ..tag }))
            }
        }
    }

    /// Removes markup; the text before it goes out, or waits if the stage keeps it.
    fn drop(&mut self, rules: &Rules, held: &mut Held, sink: &mut Sink, from: u64, to: u64) {
        match self.part() {
            Some(part) => sink.emit(held, from, part),
            None if rules.strict => self.noise(rules, held, sink, from),
            None if self.stage == Stage::JsonAfter => sink.skip(held, from),
            None => {}
        }
        sink.cut(held, from, to);
    }

    fn part(&self) -> Option<Part> {
        match self.stage {
            Stage::Reasoning => Some(Part::Reasoning),
            Stage::Content | Stage::Json => Some(Part::Content),
            Stage::JsonBefore | Stage::JsonAfter => None,
        }
    }

    /// Text around a document up to `to`: dropped; in strict mode one blank for each piece.
    fn noise(&mut self, rules: &Rules, held: &mut Held, sink: &mut Sink, to: u64) {
        if !rules.strict {
            sink.skip(held, to);
            return;
        }
        while held.base() < to {
            let base = held.base();
            let after = held.pieces.partition_point(|piece| piece.at <= base);
            let piece = held
                .pieces
                .get(after.wrapping_sub(1))
                .map_or(base, |piece| piece.at);
            let next = held.pieces.get(after).map_or(to, |piece| piece.at.min(to));
            let blank = if piece == self.blanked { "" } else { " " };
            self.blanked = piece;
            sink.replace(held, next, Part::Content, blank);
        }
    }

    /// Lets go of text that no marker can claim any more.
    fn release(
        &mut self,
        rules: &Rules,
        stops: &Stops,
        held: &mut Held,
        sink: &mut Sink,
        to: u64,
        end: Option<Reason>,
    ) {
        let mut to = to;
        if end.is_some() {
            to = held.end();
        } else {
            let calls = self.may_be_call(rules, held, to);
            if self.stage == Stage::Reasoning || calls {
                let [think_end, opener] = held.newline_floors;
                let floor = match self.stage {
                    Stage::Reasoning if rules.parse_tool_calls => think_end.min(opener),
                    Stage::Reasoning => think_end,
                    _ => opener,
                };
                to = held.newline_start(to, floor);
            }
            if matches!(self.stage, Stage::Content | Stage::Json) && !stops.is_empty() {
                to = to.min(stops.hold(held));
            }
        }
        match self.part() {
            Some(part) => sink.emit(held, to, part),
            None if rules.strict => self.noise(rules, held, sink, to),
            None if self.stage == Stage::JsonAfter => sink.skip(held, to),
            // No document ever began: a refusal or a scalar must not be lost.
            None if end.is_some() => Self::release_noise(held, sink, to),
            None => {}
        }
    }

    /// Whether calls may begin at `at`, and take the newlines before it along.
    fn may_be_call(&self, rules: &Rules, held: &Held, at: u64) -> bool {
        if !rules.parse_tool_calls || self.stage == Stage::Json {
            return false;
        }
        if at == held.end() {
            return true;
        }
        if rules.strict {
            return rules.markup.bare(held, at, "<") == Look::Partial;
        }
        let calls = Wanted {
            think_start: false,
            think_end: false,
            calls: true,
            aliases: true,
        };
        rules.markup.tag(held, at, calls, false) == Look::Partial
    }

    /// Gives out what stood before a document that never came.
    pub(super) fn release_noise(held: &mut Held, sink: &mut Sink, to: u64) {
        if held.has_text(held.base(), to) {
            sink.emit(held, to, Part::Content);
        } else {
            sink.skip(held, to);
        }
    }

    /// The token limit cut an opener at `at`: it and the newlines before it are markup.
    fn drop_cut_opener(
        &mut self,
        rules: &Rules,
        held: &mut Held,
        sink: &mut Sink,
        at: u64,
    ) -> bool {
        if self.stage == Stage::Json || !rules.parse_tool_calls || rules.strict {
            return false;
        }
        sink.recover("R1", at);
        let start = held.newline_start(at, 0);
        let end = held.end();
        self.drop(rules, held, sink, start, end);
        self.cursor = end;
        true
    }
}

/// Whether a JSON document, or the fence around one, may begin with `byte`.
fn begins_document(byte: u8) -> bool {
    matches!(byte, b'`' | b'{' | b'[')
}
