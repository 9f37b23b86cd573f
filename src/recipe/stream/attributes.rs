//! Attributes of a tag, read piece by piece: `name="…" string="true">`, in any order and either quotes.

use super::held::{Class, Held};

/// How far a tag was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// More input is needed.
    More,
    /// A value is complete: see [`Attributes::key`] and [`Attributes::value`].
    Value,
    /// The tag ended; `closed` with `/>`.
    End { closed: bool },
    /// A doubtful tag is none.
    Refuted,
}

/// No tool has a longer name; what is longer is prose behind a stray quote.
const LONGEST_NAME: usize = 256;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Gap,
    Slash,
    Key,
    AfterKey,
    BeforeValue,
    Quoted(u8),
    Bare,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Attributes {
    pub(super) cursor: u64,
    /// The attribute that is being read or was read last.
    pub(super) key: String,
    pub(super) value: String,
    phase: Phase,
    /// Something stands there that no tag has.
    pub(super) broken: bool,
    /// It is a tag only if nothing in it is broken. Read no further than to the first byte that shows it is
    /// none: where that is must not depend on how much of the input is there.
    pub(super) doubtful: bool,
}

impl Attributes {
    /// A tag whose word ends at `at`.
    pub(super) fn new(at: u64, doubtful: bool) -> Self {
        Self {
            cursor: at,
            key: String::new(),
            value: String::new(),
            phase: Phase::Gap,
            broken: false,
            doubtful,
        }
    }

    /// Whether a tag that needs proof is none.
    fn is_refuted(&self) -> bool {
        self.doubtful && (self.broken || self.value.len() > LONGEST_NAME)
    }

    /// Whether the value of [`Attributes::key`] has begun and not ended.
    pub(super) fn in_value(&self) -> bool {
        matches!(self.phase, Phase::Quoted(_) | Phase::Bare)
    }

    /// Reads on until something is complete.
    pub(super) fn read(&mut self, held: &Held) -> Progress {
        while !self.is_refuted() && self.cursor < held.end() {
            if let Phase::Quoted(quote) = self.phase {
                let (class, mut end) = held.class_at(self.cursor);
                let mut text = held.slice(self.cursor, end);
                if self.doubtful && !matches!(class, Class::Special(_)) {
                    let room = LONGEST_NAME + 1 - self.value.len();
                    text = &text[..text.ceil_char_boundary(room)];
                    end = self.cursor + text.len() as u64;
                }
                let stop = match class {
                    Class::Special(_) => None,
                    Class::Text | Class::Plain => text.bytes().position(|byte| byte == quote),
                };
                self.value.push_str(&text[..stop.unwrap_or(text.len())]);
                match stop {
                    None => self.cursor = end,
                    Some(length) => {
                        self.cursor += length as u64 + 1;
                        self.phase = Phase::Gap;
                        return Progress::Value;
                    }
                }
                continue;
            }
            let (class, end) = held.class_at(self.cursor);
            if let Class::Special(_) = class {
                self.broken = true;
                self.cursor = end;
                continue;
            }
            let byte = held.byte(self.cursor);
            if byte == b'<' && self.phase != Phase::Bare {
                // The tag lost its end: the next one begins.
                self.broken = true;
                return Progress::End {
                    closed: self.phase == Phase::Slash,
                };
            }
            if let Some(progress) = self.byte(byte, held) {
                return progress;
            }
        }
        if self.is_refuted() {
            return Progress::Refuted;
        }
        Progress::More
    }

    fn byte(&mut self, byte: u8, held: &Held) -> Option<Progress> {
        let blank = byte.is_ascii_whitespace();
        if byte == b'>' {
            self.cursor += 1;
            let closed = self.phase == Phase::Slash;
            self.broken |= matches!(
                self.phase,
                Phase::Key | Phase::AfterKey | Phase::BeforeValue
            );
            let complete = self.phase == Phase::Bare;
            self.phase = Phase::Gap;
            if complete {
                // The end of the tag is read again, once the value is taken.
                self.cursor -= 1;
                return Some(Progress::Value);
            }
            return Some(Progress::End { closed });
        }
        match self.phase {
            Phase::Bare if blank => {
                self.phase = Phase::Gap;
                return Some(Progress::Value);
            }
            Phase::Bare => {
                let c = held.char_at(self.cursor)?;
                self.value.push(c);
                self.cursor += c.len_utf8() as u64;
                return None;
            }
            Phase::BeforeValue => match byte {
                b'"' | b'\'' => self.phase = Phase::Quoted(byte),
                _ if blank => {}
                _ => {
                    self.broken = true;
                    self.phase = Phase::Bare;
                    return None;
                }
            },
            Phase::Gap | Phase::Slash | Phase::Key | Phase::AfterKey => {
                let named = byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b':');
                if byte == b'=' {
                    self.broken |= !matches!(self.phase, Phase::Key | Phase::AfterKey);
                    self.value.clear();
                    self.phase = Phase::BeforeValue;
                } else if named && self.phase == Phase::Key {
                    self.key.push(char::from(byte));
                } else if named {
                    self.broken |= self.phase == Phase::AfterKey;
                    self.key.clear();
                    self.key.push(char::from(byte));
                    self.phase = Phase::Key;
                } else if blank {
                    if self.phase == Phase::Key {
                        self.phase = Phase::AfterKey;
                    }
                } else if byte == b'/' {
                    self.phase = Phase::Slash;
                } else {
                    self.broken = true;
                    self.phase = Phase::Gap;
                }
            }
            Phase::Quoted(_) => {}
        }
        self.cursor += 1;
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> (Vec<(String, String)>, Progress, bool) {
        let mut held = Held::default();
        let mut attributes = Attributes::new(0, false);
        let mut values = Vec::new();
        let mut last = Progress::More;
        // One character at a time: what is not complete must go on where it was.
        for c in text.chars() {
            held.push(c.encode_utf8(&mut [0; 4]), Class::Text);
            loop {
                last = attributes.read(&held);
                if last != Progress::Value {
                    break;
                }
                values.push((attributes.key.clone(), attributes.value.clone()));
            }
            if let Progress::End { .. } = last {
                break;
            }
        }
        (values, last, attributes.broken)
    }

    fn pairs(list: &[(&str, &str)]) -> Vec<(String, String)> {
        list.iter()
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
            .collect()
    }

    #[test]
    fn order_quotes_and_blanks_are_free() {
        let end = Progress::End { closed: false };
        let (values, last, broken) = read(" string = 'true'\n name=\"a 'b' é\" >");
        assert_eq!(values, pairs(&[("string", "true"), ("name", "a 'b' é")]));
        assert_eq!((last, broken), (end, false));
        assert_eq!(read(" name=x>").0, pairs(&[("name", "x")]));
    }

    #[test]
    fn a_slash_closes_and_an_opener_ends_the_tag() {
        assert_eq!(read(" name=\"now\"/>").1, Progress::End { closed: true });
        assert_eq!(read(" name=\"now\"\n<x").1, Progress::End { closed: false });
    }

    #[test]
    fn prose_is_no_tag() {
        assert!(read(" tag is used.").2);
        assert!(read("` opens a call").2);
        assert!(!read(" name=\"get_wea").2);
        assert!(!read(" na").2);
    }
}
