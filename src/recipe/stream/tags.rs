//! Markup at one place of the held text: is it there, may it come, or is it not.
//!
//! Every question looks at a bounded number of bytes, so asking again when more text arrives is cheap.

use super::held::{Class, Held, Mark};
use crate::recipe::encoding::{SpecialToken, SpecialTokens};

/// The answer to "does it stand here?".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Look<T> {
    No,
    /// The text ends before this can be told.
    Partial,
    Yes(T),
}

/// What a tag names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Word {
    Block,
    Invoke,
    Parameter,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    ThinkStart,
    ThinkEnd,
    Open(Word),
    Close(Word),
}

/// One piece of markup. Openers of calls and parameters end behind their word; attributes follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tag {
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) kind: Kind,
    /// Its marker is a special token, so it cannot be quoted text.
    pub(super) special: bool,
    /// Its marker is spelled with bars of another kind.
    pub(super) alias: bool,
    /// Its marker has more bars than it should.
    pub(super) bars: bool,
    /// Its words are not those of the template.
    pub(super) odd: bool,
}

impl Tag {
    /// Markup in text, as the template writes it.
    pub(super) fn new(start: u64, end: u64, kind: Kind) -> Self {
        Self {
            start,
            end,
            kind,
            special: false,
            alias: false,
            bars: false,
            odd: false,
        }
    }
}

const WORDS: [(&str, Word); 7] = [
    ("tool_calls", Word::Block),
    ("calls", Word::Block),
    ("toolcalls", Word::Block),
    ("tool", Word::Block),
    ("function_calls", Word::Block),
    ("invoke", Word::Invoke),
    ("parameter", Word::Parameter),
];
const ALIASES: [&str; 3] = ["|DSML|", "||DSML||", "‖DSML‖"];
const BAR: &str = "｜";
/// Bars or blanks that are skipped; more are no slip of a model.
const SLACK: usize = 8;

/// Plain text `wanted` at `at`: any text but special tokens.
pub(super) fn plain(held: &Held, at: u64, wanted: &str) -> Look<u64> {
    literal(held, at, wanted, |class| {
        !matches!(class, Class::Special(_))
    })
}

/// Text without token boundaries that spells `wanted`.
fn spelled(held: &Held, at: u64, wanted: &str) -> Look<u64> {
    literal(held, at, wanted, |class| class == Class::Text)
}

fn literal(held: &Held, at: u64, wanted: &str, allowed: impl Fn(Class) -> bool) -> Look<u64> {
    let mut at = at;
    let mut left = wanted.as_bytes();
    let end = held.end();
    while !left.is_empty() {
        if at == end {
            return Look::Partial;
        }
        let (class, run_end) = held.class_at(at);
        let length = left.len().min((run_end - at) as usize);
        if !allowed(class) || held.bytes(at)[..length] != left[..length] {
            return Look::No;
        }
        at += length as u64;
        left = &left[length..];
    }
    Look::Yes(at)
}

/// The special token `mark` at `at`, or text that spells it.
fn special(held: &Held, at: u64, mark: Mark, spelling: &str) -> Look<u64> {
    if at == held.end() {
        return Look::Partial;
    }
    match held.class_at(at) {
        (Class::Special(found), end) if found == mark => Look::Yes(end),
        (Class::Text, _) => spelled(held, at, spelling),
        _ => Look::No,
    }
}

/// Which markup means something where the question is asked; a start of any other is text.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    pub(super) think_start: bool,
    pub(super) think_end: bool,
    pub(super) calls: bool,
    pub(super) aliases: bool,
}

/// Spellings to look for.
#[derive(Debug)]
pub(super) struct Markup {
    think_start: String,
    think_end: String,
    dsml: String,
    /// First bytes of the markers of reasoning; tags begin with `<`.
    first: [u8; 2],
}

impl Markup {
    pub(super) fn new(special: &SpecialTokens) -> Self {
        let spelling = |token| special.spelling(token).to_owned();
        let first = [SpecialToken::ThinkingStart, SpecialToken::ThinkingEnd]
            .map(|token| special.spelling(token).bytes().next().unwrap_or(b'<'));
        Self {
            think_start: spelling(SpecialToken::ThinkingStart),
            think_end: spelling(SpecialToken::ThinkingEnd),
            dsml: spelling(SpecialToken::Dsml),
            first,
        }
    }

    /// Whether markup may begin with `byte`.
    pub(super) fn begins_with(&self, byte: u8) -> bool {
        byte == b'<' || self.first.contains(&byte)
    }

    /// The tag at `at`. With `end` no more text will come: what a tag needs behind it may be missing.
    pub(super) fn tag(&self, held: &Held, at: u64, wanted: Wanted, end: bool) -> Look<Tag> {
        let tag = |stop, kind, special| Tag {
            special,
            ..Tag::new(at, stop, kind)
        };
        match held.class_at(at) {
            (Class::Special(Mark::ThinkEnd), stop) => {
                return Look::Yes(tag(stop, Kind::ThinkEnd, true));
            }
            (Class::Special(Mark::ThinkStart), stop) => {
                return Look::Yes(tag(stop, Kind::ThinkStart, true));
            }
            (Class::Special(_), _) => return Look::No,
            (Class::Text | Class::Plain, _) => {}
        }
        let mut partial = false;
        for (active, spelling, kind) in [
            (wanted.think_end, &self.think_end, Kind::ThinkEnd),
            (wanted.think_start, &self.think_start, Kind::ThinkStart),
        ] {
            if !active {
                continue;
            }
            match spelled(held, at, spelling) {
                Look::Yes(stop) if stop > at => return Look::Yes(tag(stop, kind, false)),
                Look::Partial => partial = true,
                Look::Yes(_) | Look::No => {}
            }
        }
        if !wanted.calls {
            return if partial { Look::Partial } else { Look::No };
        }
        match self.dsml_tag(held, at, wanted.aliases, end) {
            Look::No if partial => Look::Partial,
            look => look,
        }
    }

    fn dsml_tag(&self, held: &Held, start: u64, aliases: bool, end: bool) -> Look<Tag> {
        let mut at = match plain(held, start, "<") {
            Look::Yes(at) => at,
            Look::Partial => return Look::Partial,
            Look::No => return Look::No,
        };
        let closing = match plain(held, at, "/") {
            Look::Yes(next) => {
                at = next;
                true
            }
            Look::Partial => return Look::Partial,
            Look::No => false,
        };
        let marker = match self.marker(held, at, aliases) {
            Look::Yes(marker) => marker,
            Look::Partial => return Look::Partial,
            Look::No => return Look::No,
        };
        at = marker.end;
        let spaced = match plain(held, at, " ") {
            Look::Yes(next) => {
                at = next;
                true
            }
            Look::Partial | Look::No => false,
        };
        let (word, next) = match word(held, at, end) {
            Look::Yes(found) => found,
            Look::Partial => return Look::Partial,
            Look::No => return Look::No,
        };
        at = next;
        let kind = if closing {
            Kind::Close(word)
        } else {
            Kind::Open(word)
        };
        let mut tag = Tag {
            special: marker.special,
            alias: marker.alias,
            bars: marker.bars,
            ..Tag::new(start, at, kind)
        };
        if closing {
            return match self.close(held, at) {
                Look::Yes(stop) => Look::Yes(Tag { end: stop, ..tag }),
                Look::Partial => Look::Partial,
                Look::No => Look::No,
            };
        }
        if word == Word::Block {
            match plain(held, at, ">") {
                Look::Yes(stop) => tag.end = stop,
                Look::Partial if !end => return Look::Partial,
                Look::Partial | Look::No => tag.odd = true,
            }
            let written = if spaced { " calls" } else { "tool_calls" };
            tag.odd |= !held.slice(marker.end, at).eq(written);
        }
        Look::Yes(tag)
    }

    fn close(&self, held: &Held, at: u64) -> Look<u64> {
        let mut at = at;
        for _ in 0..SLACK {
            match plain(held, at, ">") {
                Look::No
                    if !matches!(held.class_at(at).0, Class::Special(_))
                        && held.byte(at).is_ascii_whitespace() =>
                {
                    at += 1
                }
                look => return look,
            }
        }
        Look::No
    }

    fn marker(&self, held: &Held, at: u64, aliases: bool) -> Look<Marker> {
        let mut at = at;
        for bars in 0..SLACK {
            match special(held, at, Mark::Dsml, &self.dsml) {
                Look::Yes(next) => {
                    let special = matches!(held.class_at(at).0, Class::Special(_));
                    return trailing_bars(held, next, special, bars > 0);
                }
                Look::Partial => return Look::Partial,
                Look::No => {}
            }
            if aliases && bars == 0 && held.class_at(at).0 == Class::Text {
                let mut partial = false;
                for alias in ALIASES {
                    match spelled(held, at, alias) {
                        Look::Yes(end) => {
                            return Look::Yes(Marker {
                                end,
                                special: false,
                                alias: true,
                                bars: false,
                            });
                        }
                        Look::Partial => partial = true,
                        Look::No => {}
                    }
                }
                if partial {
                    return Look::Partial;
                }
            }
            match plain(held, at, BAR) {
                Look::Yes(next) => at = next,
                Look::Partial => return Look::Partial,
                Look::No => return Look::No,
            }
        }
        Look::No
    }

    /// Where the marker of a tag at `start` ends, whatever follows, if all of it is there.
    pub(super) fn marker_end(&self, held: &Held, start: u64) -> Option<u64> {
        let Look::Yes(mut at) = plain(held, start, "<") else {
            return None;
        };
        if let Look::Yes(next) = plain(held, at, "/") {
            at = next;
        }
        match self.marker(held, at, false) {
            Look::Yes(marker) => Some(marker.end),
            // Bars may yet come behind it.
            Look::Partial => match special(held, at, Mark::Dsml, &self.dsml) {
                Look::Yes(end) => Some(end),
                Look::Partial | Look::No => None,
            },
            Look::No => None,
        }
    }

    /// Whether the text ends at a complete marker and the start of a word that opens calls: a tag that
    /// the token limit cut.
    pub(super) fn is_cut_opener(&self, held: &Held, start: u64) -> bool {
        let Look::Yes(at) = plain(held, start, "<") else {
            return false;
        };
        if at == held.end() {
            return false;
        }
        let Look::Yes(marker) = self.marker(held, at, false) else {
            // A marker at the very end has no more text behind it to look for bars in.
            return special(held, at, Mark::Dsml, &self.dsml) == Look::Yes(held.end());
        };
        let rest = held.slice(marker.end, held.end());
        let rest = rest.strip_prefix(' ').unwrap_or(rest);
        WORDS.iter().any(|(text, word)| {
            *word != Word::Parameter && text.len() > rest.len() && text.starts_with(rest)
        })
    }

    /// Strict mode: `<` or `</` and the marker; nothing behind it is looked at.
    pub(super) fn bare(&self, held: &Held, start: u64, prefix: &str) -> Look<u64> {
        match plain(held, start, prefix) {
            Look::Yes(at) => special(held, at, Mark::Dsml, &self.dsml),
            look => look,
        }
    }

    /// The end of reasoning at `start`.
    pub(super) fn think_end(&self, held: &Held, start: u64) -> Look<u64> {
        match special(held, start, Mark::ThinkEnd, &self.think_end) {
            // A marker without a spelling is no text, so it stands nowhere.
            Look::Yes(end) if end == start => Look::No,
            look => look,
        }
    }

    /// Strict mode: whether a newline ended what began at `start` like an opener of calls, or else like the end of
    /// reasoning, and where it stands.
    pub(super) fn broken_by_newline(&self, held: &Held, start: u64, opener: bool) -> Option<u64> {
        let spelled = |at, marker: &str| matching(held, at, marker, |class| class == Class::Text);
        let end = match (opener, plain(held, start, "<")) {
            (false, _) => spelled(start, &self.think_end),
            (true, Look::Yes(next)) => spelled(next, &self.dsml),
            (true, Look::Partial | Look::No) => start,
        };
        let newline = end > start
            && end < held.end()
            && held.byte(end) == b'\n'
            && !matches!(held.class_at(end).0, Class::Special(_));
        newline.then_some(end)
    }
}

/// Where the text stops that begins at `at` and spells the beginning of `wanted`.
fn matching(held: &Held, at: u64, wanted: &str, allowed: impl Fn(Class) -> bool) -> u64 {
    let mut end = at;
    for &byte in wanted.as_bytes() {
        if end == held.end() || !allowed(held.class_at(end).0) || held.byte(end) != byte {
            break;
        }
        end += 1;
    }
    end
}

struct Marker {
    end: u64,
    special: bool,
    alias: bool,
    bars: bool,
}

fn trailing_bars(held: &Held, at: u64, special: bool, bars: bool) -> Look<Marker> {
    let mut end = at;
    for more in 0..SLACK {
        match plain(held, end, BAR) {
            Look::Yes(next) => end = next,
            Look::Partial => return Look::Partial,
            Look::No => {
                return Look::Yes(Marker {
                    end,
                    special,
                    alias: false,
                    bars: bars || more > 0,
                });
            }
        }
    }
    Look::No
}

/// A word of the grammar as a whole word.
fn word(held: &Held, at: u64, end: bool) -> Look<(Word, u64)> {
    let (class, _) = if at < held.end() {
        held.class_at(at)
    } else {
        (Class::Text, at)
    };
    if let Class::Special(_) = class {
        return Look::No;
    }
    let mut partial = false;
    for (text, word) in WORDS {
        match plain(held, at, text) {
            Look::Yes(stop) if stop < held.end() => {
                let boundary = match held.class_at(stop).0 {
                    Class::Special(_) => true,
                    Class::Text | Class::Plain => !held
                        .char_at(stop)
                        .is_some_and(|c| c.is_alphanumeric() || c == '_'),
                };
                if boundary {
                    return Look::Yes((word, stop));
                }
            }
            Look::Yes(stop) if end => return Look::Yes((word, stop)),
            Look::Yes(_) | Look::Partial => partial = true,
            Look::No => {}
        }
    }
    if partial { Look::Partial } else { Look::No }
}

/// A parameter tag that lost its marker.
pub(super) fn bare_parameter(held: &Held, start: u64) -> Look<u64> {
    let Look::Yes(at) = plain(held, start, "<parameter") else {
        return plain(held, start, "<parameter");
    };
    if at == held.end() {
        return Look::Partial;
    }
    match held.class_at(at).0 {
        Class::Special(_) => Look::No,
        Class::Text | Class::Plain if held.byte(at).is_ascii_whitespace() => Look::Yes(at),
        Class::Text | Class::Plain => Look::No,
    }
}
