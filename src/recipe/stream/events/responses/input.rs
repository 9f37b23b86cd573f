//! The input of a custom tool, out of the arguments of the function that stands for it.
//!
//! Input: argument text, `{"input": "…"}` cut anywhere. Output: what the string says, as far as it is known;
//! at most one escape is held. Arguments of any other shape are the input as they stand. Cost: each byte is
//! looked at once, text without escapes is copied in runs.

/// What must stand before the text, white space allowed before each part but the first.
const PREFIX: [&str; 4] = ["{", "\"input\"", ":", "\""];

/// See the module.
#[derive(Debug)]
pub(super) struct InputDecoder {
    state: State,
    /// As it came: of the prefix, or of an escape.
    held: String,
}

#[derive(Clone, Copy, Debug)]
enum State {
    /// So many parts of the prefix are there, and so many bytes of the next.
    Prefix { parts: usize, bytes: usize },
    /// Inside the string; `held` is an escape, or nothing.
    Text,
    /// It is another shape.
    Raw,
    /// Behind the string.
    Ended,
}

impl InputDecoder {
    pub(super) fn new() -> Self {
        Self {
            state: State::Prefix { parts: 0, bytes: 0 },
            held: String::new(),
        }
    }

    /// Reads more argument text and appends the input it makes known.
    pub(super) fn push(&mut self, text: &str, into: &mut String) {
        let mut rest = text;
        while let Some(first) = rest.chars().next() {
            match self.state {
                State::Raw => return into.push_str(rest),
                State::Ended => return,
                State::Text if self.held.is_empty() => {
                    let run = rest.find(['"', '\\']).unwrap_or(rest.len());
                    into.push_str(&rest[..run]);
                    rest = &rest[run..];
                    if rest.starts_with('"') {
                        self.state = State::Ended;
                    } else if !rest.is_empty() {
                        self.held.push('\\');
                        rest = &rest[1..];
                    }
                }
                State::Text => {
                    if self.escape(first, into) {
                        rest = &rest[first.len_utf8()..];
                    }
                }
                State::Prefix { parts, bytes } => {
                    self.prefix(parts, bytes, first, into);
                    rest = &rest[first.len_utf8()..];
                }
            }
        }
    }

    /// No more arguments come: what is held was never finished, and is given out as it stands.
    pub(super) fn finish(&mut self, into: &mut String) {
        into.push_str(&self.held);
        self.held.clear();
        self.state = State::Ended;
    }

    fn prefix(&mut self, parts: usize, bytes: usize, next: char, into: &mut String) {
        self.held.push(next);
        let part = PREFIX[parts].as_bytes();
        let blank = matches!(next, ' ' | '\t' | '\n' | '\r');
        self.state = if u32::from(part[bytes]) == u32::from(next) {
            if bytes + 1 < part.len() {
                State::Prefix {
                    parts,
                    bytes: bytes + 1,
                }
            } else if parts + 1 < PREFIX.len() {
                State::Prefix {
                    parts: parts + 1,
                    bytes: 0,
                }
            } else {
                self.held.clear();
                State::Text
            }
        } else if blank && parts > 0 && bytes == 0 {
            State::Prefix { parts, bytes }
        } else {
            into.push_str(&self.held);
            self.held.clear();
            State::Raw
        };
    }

    /// Reads a character behind the beginning of an escape; false if it is not part of it and has to be read
    /// again. What is no escape passes as it stands.
    fn escape(&mut self, next: char, into: &mut String) -> bool {
        // `\uD83E` waits for its other half: `\`, `u` and four digits.
        match (self.held.len(), next) {
            (1, 'u') | (7, 'u') | (6, '\\') => self.held.push(next),
            (1, _) => {
                match simple(next) {
                    Some(meant) => into.push(meant),
                    None => {
                        into.push('\\');
                        into.push(next);
                    }
                }
                self.held.clear();
            }
            (2..=5 | 8..=11, digit) if digit.is_ascii_hexdigit() => {
                self.held.push(digit);
                match self.held.len() {
                    6 => self.unit(into),
                    12 => self.pair(into),
                    _ => {}
                }
            }
            // Half a pair without the other half; what follows it may still be an escape.
            (7..=11, _) => {
                into.push_str(&self.held[..6]);
                self.held.drain(..6);
                return false;
            }
            _ => {
                into.push_str(&self.held);
                self.held.clear();
                return false;
            }
        }
        true
    }

    /// `held` is `\uXXXX`.
    fn unit(&mut self, into: &mut String) {
        let code = hex(&self.held[2..6]);
        if is_high(code) {
            return;
        }
        match char::from_u32(code) {
            Some(meant) => into.push(meant),
            None => into.push_str(&self.held),
        }
        self.held.clear();
    }

    /// `held` is `\uXXXX\uXXXX`, the first a high surrogate.
    fn pair(&mut self, into: &mut String) {
        let (high, low) = (hex(&self.held[2..6]), hex(&self.held[8..12]));
        if (0xDC00..0xE000).contains(&low) {
            let code = 0x1_0000 + ((high - 0xD800) << 10) + (low - 0xDC00);
            into.extend(char::from_u32(code));
            self.held.clear();
        } else {
            into.push_str(&self.held[..6]);
            self.held.drain(..6);
            self.unit(into);
        }
    }
}

fn is_high(code: u32) -> bool {
    (0xD800..0xDC00).contains(&code)
}

/// The value of four digits.
fn hex(digits: &str) -> u32 {
    digits
        .chars()
        .filter_map(|digit| digit.to_digit(16))
        .fold(0, |code, digit| code * 16 + digit)
}

fn simple(escaped: char) -> Option<char> {
    Some(match escaped {
        '"' | '\\' | '/' => escaped,
        'b' => '\u{8}',
        'f' => '\u{c}',
        'n' => '\n',
        'r' => '\r',
        't' => '\t',
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Decodes `text` in one piece, cut at every place, and by character; all must agree.
    #[track_caller]
    fn decode(text: &str) -> String {
        let run = |pieces: &[&str]| {
            let mut decoder = InputDecoder::new();
            let mut out = String::new();
            for piece in pieces {
                decoder.push(piece, &mut out);
            }
            decoder.finish(&mut out);
            out
        };
        let whole = run(&[text]);
        for (at, _) in text.char_indices() {
            assert_eq!(
                run(&[&text[..at], &text[at..]]),
                whole,
                "{text} cut at {at}"
            );
        }
        let chars: Vec<String> = text.chars().map(String::from).collect();
        let chars: Vec<&str> = chars.iter().map(String::as_str).collect();
        assert_eq!(run(&chars), whole, "{text} by character");
        whole
    }

    #[test]
    fn the_string_is_decoded_however_it_is_cut() {
        assert_eq!(
            decode(r#"{"input": "a\nb\t\"\\\/\b\f\r é"}"#),
            "a\nb\t\"\\/\u{8}\u{c}\r é"
        );
        assert_eq!(decode("{ \n\"input\"\t:\r \"p\"}"), "p");
        assert_eq!(decode(r#"{"input": "p", "z": "q"}"#), "p");
        assert_eq!(decode(r#"{"input": ""}"#), "");
    }

    #[test]
    fn surrogate_pairs_become_one_character() {
        assert_eq!(decode(r#"{"input": "\u00e9\ud83e\udd2d\u0041"}"#), "é🤭A");
        // Halves without the other stay as they are; what follows them is read on its own.
        assert_eq!(decode(r#"{"input": "\ud83e|\udd2d|"}"#), r"\ud83e|\udd2d|");
        assert_eq!(decode(r#"{"input": "\ud83e\u0041"}"#), r"\ud83eA");
        assert_eq!(decode(r#"{"input": "\ud83e\ud83e\udd2d"}"#), r"\ud83e🤭");
        assert_eq!(
            decode(r#"{"input": "\ud83e\n\ud83e\\\ud83e"}"#),
            "\\ud83e\n\\ud83e\\\\ud83e"
        );
        assert_eq!(decode(r#"{"input": "\ud83e\u00"x"}"#), r"\ud83e\u00");
    }

    #[test]
    fn invalid_escapes_pass_as_they_are() {
        assert_eq!(
            decode(r#"{"input": "\H \é \u12G4 \u\n"}"#),
            "\\H \\é \\u12G4 \\u\n"
        );
        assert_eq!(decode(r#"{"input": "\u12" , "a": 1}"#), r"\u12");
    }

    #[test]
    fn other_shapes_pass_as_they_are() {
        for other in [
            r#"{"patch": "p"}"#,
            r#"{"input": 5}"#,
            r#"{"input": ["a"]}"#,
            r#"{"inputs": "p"}"#,
            r#"{"input" "p"}"#,
            " {\"input\": \"p\"}",
            "{\"in put\": \"p\"}",
            "{é",
            "{}",
            "[]",
        ] {
            assert_eq!(decode(other), other);
        }
    }

    #[test]
    fn what_is_cut_off_is_given_out_as_it_stands() {
        for (cut, input) in [
            ("", ""),
            ("{\"inp", "{\"inp"),
            ("{\"input\": ", "{\"input\": "),
            ("{\"input\": \"", ""),
            ("{\"input\": \"abc\\", "abc\\"),
            ("{\"input\": \"abc\\u00e", "abc\\u00e"),
            ("{\"input\": \"\\ud83e", "\\ud83e"),
            ("{\"input\": \"\\ud83e\\udd2", "\\ud83e\\udd2"),
        ] {
            assert_eq!(decode(cut), input, "{cut}");
        }
    }

    proptest! {
        #[test]
        fn any_json_string_is_decoded_as_json_says(text in any::<String>()) {
            let arguments = serde_json::json!({ "input": text }).to_string();
            prop_assert_eq!(decode(&arguments), text);
        }

        #[test]
        fn any_text_in_any_split_gives_the_same(text in "(\\\\|u|[dD]8|[dD]c|0|\"|é|[a-f0-9]{1,4}|\\\\u|\\\\ud83e|\\\\udd2d){0,16}") {
            decode(&format!("{{\"input\": \"{text}"));
        }
    }
}
