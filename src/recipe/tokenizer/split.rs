//! Text is cut into the pieces that are tokenised one by one.
//!
//! The files of V4 and V4.1 name three regular expressions; running them is most of the time a general
//! tokenizer takes. [`Splitter::V4`] is the same rule written out by hand: one pass, no allocation.
//! Any other pre-tokeniser runs through the `tokenizers` crate.

use serde_json::Value;
use tokenizers::{OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer};

use super::unicode::{CJK, Classes, LETTER, MARK, NUMBER, SPACE, SYMBOL};

/// The expressions of the V4 file, in its order.
const V4_PATTERNS: [&str; 3] = [
    r"\p{N}{1,3}",
    "[一-龥\u{3040}-ゟ゠-ヿ]+",
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+",
];

/// How text is cut.
#[derive(Debug)]
pub(super) enum Splitter {
    /// The V4 rule, by hand.
    V4,
    /// Whatever the file asks for.
    General(Box<tokenizers::PreTokenizerWrapper>),
}

impl Splitter {
    /// Reads the `pre_tokenizer` field of a tokenizer file.
    pub(super) fn from_json(field: &Value) -> Result<Self, String> {
        if is_v4(field) {
            return Ok(Self::V4);
        }
        let general = serde_json::from_value(field.clone()).map_err(|error| error.to_string())?;
        if !maps_bytes(field) {
            return Err("it has no \"ByteLevel\" stage, the only mapping supported".to_owned());
        }
        Ok(Self::General(Box::new(general)))
    }

    /// Calls `piece` for each piece of `text`, in order.
    ///
    /// Pieces of [`Splitter::General`] are in the byte-level alphabet and are handed on as bytes again.
    pub(super) fn split(&self, text: &str, mut piece: impl FnMut(&[u8])) -> Result<(), String> {
        match self {
            Self::V4 => {
                v4(text, |part| piece(part.as_bytes()));
                Ok(())
            }
            Self::General(general) => {
                let mut parts = PreTokenizedString::from(text);
                general
                    .pre_tokenize(&mut parts)
                    .map_err(|error| error.to_string())?;
                for (part, _, _) in parts.get_splits(OffsetReferential::Original, OffsetType::Byte)
                {
                    let bytes = super::byte_level::bytes_of(part)
                        .ok_or_else(|| format!("the piece {part:?} is not byte-level"))?;
                    piece(&bytes);
                }
                Ok(())
            }
        }
    }
}

/// Whether `field` is exactly the V4 sequence of stages.
fn is_v4(field: &Value) -> bool {
    let Some(stages) = field["pretokenizers"].as_array() else {
        return false;
    };
    let [splits @ .., last] = stages.as_slice() else {
        return false;
    };
    field["type"] == "Sequence"
        && splits.len() == V4_PATTERNS.len()
        && splits.iter().zip(V4_PATTERNS).all(|(stage, pattern)| {
            // Some writers escape CR and LF for the expression, others put the characters themselves.
            let same = stage["pattern"]["Regex"]
                .as_str()
                .is_some_and(|found| found.replace("\\r", "\r").replace("\\n", "\n") == pattern);
            stage["type"] == "Split"
                && stage["behavior"] == "Isolated"
                && stage["invert"] == false
                && same
        })
        && last["type"] == "ByteLevel"
        && last["add_prefix_space"] == false
        && last["use_regex"] == false
}

/// Whether one of the stages turns text into the byte-level alphabet.
fn maps_bytes(field: &Value) -> bool {
    field["type"] == "ByteLevel"
        || field["pretokenizers"]
            .as_array()
            .is_some_and(|stages| stages.iter().any(maps_bytes))
}

/// The V4 rule. Stage 1 isolates runs of up to three numeric characters, stage 2 runs of ideographs and
/// kana; stage 3 cuts every other run, and the ideograph runs again, with the third expression. No
/// match of a later stage crosses the border of an earlier one.
fn v4(text: &str, mut piece: impl FnMut(&str)) {
    let classes = Classes::shared();
    let mut at = 0;
    while at < text.len() {
        let (class, length) = classes.at(text, at);
        if class & NUMBER != 0 {
            let start = at;
            at += length;
            for _ in 1..3 {
                let (class, length) = classes.at(text, at);
                if class & NUMBER == 0 {
                    break;
                }
                at += length;
            }
            piece(&text[start..at]);
        } else {
            let run = Run {
                classes,
                text,
                kind: class & CJK,
            };
            at = run.cut(at, &mut piece);
        }
    }
}

/// Letters and marks.
const WORD: u8 = LETTER | MARK;

/// Characters of one kind, ideographs and kana or neither, up to the first of another kind or a number.
struct Run<'t> {
    classes: &'static Classes,
    text: &'t str,
    /// `CJK` or 0.
    kind: u8,
}

impl Run<'_> {
    /// Class and length of the character at `at`; class 0 and length 0 at the end of the run.
    #[inline]
    fn class(&self, at: usize) -> (u8, usize) {
        let (class, length) = self.classes.at(self.text, at);
        if class & (NUMBER | CJK) == self.kind {
            (class, length)
        } else {
            (0, 0)
        }
    }

    /// The end of the characters from `at` on that have one of the classes `any`.
    #[inline]
    fn end_of(&self, mut at: usize, any: u8) -> usize {
        loop {
            let (class, length) = self.class(at);
            if class & any == 0 {
                return at;
            }
            at += length;
        }
    }

    fn byte(&self, at: usize) -> u8 {
        self.text.as_bytes().get(at).copied().unwrap_or(0)
    }

    /// Cuts the run that begins at `start` with the third expression and gives its end: matches and what lies
    /// between them are pieces.
    fn cut(&self, start: usize, piece: &mut impl FnMut(&str)) -> usize {
        let mut at = start;
        let mut unmatched = start;
        loop {
            let (class, length) = self.class(at);
            let end = if length == 0 {
                at
            } else {
                self.matched(at, class, length)
            };
            if length != 0 && end == at {
                at += length;
                continue;
            }
            if unmatched < at {
                piece(&self.text[unmatched..at]);
            }
            if length == 0 {
                return at;
            }
            piece(&self.text[at..end]);
            at = end;
            unmatched = end;
        }
    }

    /// The end of the match that begins at `at`, where a character of `class` and `length` stands; `at` for
    /// none. The alternatives are tried in their order.
    #[inline]
    fn matched(&self, at: usize, class: u8, length: usize) -> usize {
        if class & WORD != 0 {
            return self.end_of(at, WORD);
        }
        let first = self.byte(at);
        let after = at + length;
        // Ascii punctuation and the ascii letters behind it.
        if first.is_ascii_punctuation() {
            let letters = self.text.as_bytes()[after..].iter();
            let letters = letters
                .take_while(|byte| byte.is_ascii_alphabetic())
                .count();
            if letters > 0 && self.kind == 0 {
                return after + letters;
            }
        }
        // Letters and marks, with at most one character before them that is none of: letter, punctuation,
        // symbol, CR, LF.
        let (second, _) = self.class(after);
        if class & SYMBOL == 0 && !is_line_break(first) && second & WORD != 0 {
            return self.end_of(after, WORD);
        }
        // Punctuation and symbols, with a space before and line breaks behind.
        if class & SYMBOL != 0 || (first == b' ' && second & SYMBOL != 0) {
            let mut end = self.end_of(after, SYMBOL);
            while self.kind == 0 && is_line_break(self.byte(end)) {
                end += 1;
            }
            return end;
        }
        // White space: up to its last line break; else all of it at the end of the run; else all but the
        // last character, which goes with the word that follows.
        if class & SPACE == 0 {
            return at;
        }
        let (mut end, mut last, mut last_break) = (at, at, None);
        loop {
            let (class, length) = self.class(end);
            if class & SPACE == 0 {
                break;
            }
            if is_line_break(self.byte(end)) {
                last_break = Some(end + 1);
            }
            last = end;
            end += length;
        }
        if let Some(end) = last_break {
            return end;
        }
        let ends_run = self.class(end).1 == 0;
        if ends_run || last == at { end } else { last }
    }
}

fn is_line_break(byte: u8) -> bool {
    byte == b'\r' || byte == b'\n'
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn stages() -> Value {
        let split = |pattern: &str| json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false});
        json!({"type": "Sequence", "pretokenizers": [
            split(V4_PATTERNS[0]), split(V4_PATTERNS[1]), split(V4_PATTERNS[2]),
            {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false}]})
    }

    fn pieces(splitter: &Splitter, text: &str) -> Vec<Vec<u8>> {
        let mut found = Vec::new();
        splitter
            .split(text, |piece| found.push(piece.to_vec()))
            .expect("both splitters accept every text");
        found
    }

    fn oracle() -> Splitter {
        Splitter::General(Box::new(
            serde_json::from_value(stages()).expect("the V4 stages are valid"),
        ))
    }

    #[test]
    fn the_v4_stages_are_recognised_and_others_are_not() {
        assert!(matches!(Splitter::from_json(&stages()), Ok(Splitter::V4)));
        let mut other = stages();
        other["pretokenizers"][0]["pattern"]["Regex"] = json!(r"\p{N}{1,2}");
        assert!(matches!(
            Splitter::from_json(&other),
            Ok(Splitter::General(_))
        ));
    }

    #[test]
    fn words_numbers_and_white_space_are_cut_as_the_expressions_say() {
        let text = "Hello  wörld 12345!\r\n\r\n  x(foo) \t\n y\u{200B}z 漢字かなー12";
        let found: Vec<String> = pieces(&Splitter::V4, text)
            .into_iter()
            .map(|piece| String::from_utf8(piece).expect("pieces are whole characters"))
            .collect();
        assert_eq!(found.concat(), text);
        assert_eq!(
            found,
            [
                "Hello",
                " ",
                " wörld",
                " ",
                "123",
                "45",
                "!\r\n\r\n",
                " ",
                " x",
                "(foo",
                ")",
                " \t\n",
                " y",
                "\u{200B}z",
                " ",
                "漢字かなー",
                "12"
            ]
        );
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1500))]
        #[test]
        fn the_hand_written_rule_equals_the_expressions(text in
            "([ -~]|[ \t\r\n]|[a-c]|[0-9½Ⅷ٣]|[一龥々〇ぁ゙ヿ・゠\u{9FA6}]|[é\u{301}\u{20DD}ßʼ]|[。｜▁$€—]|[\u{85}\u{A0}\u{2028}\u{3000}\u{200B}\u{0}\u{7F}\u{FEFF}]|\\PC){0,40}") {
            prop_assert_eq!(pieces(&Splitter::V4, &text), pieces(&oracle(), &text));
        }
    }
}
