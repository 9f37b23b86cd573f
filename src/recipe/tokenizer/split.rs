//! Text is cut into the pieces that are tokenised one by one.
//!
//! The files of V4 and V4.1 name three regular expressions; running them is most of the time a general
//! tokenizer takes. [`Splitter::V4`] is the same rule written out by hand: one pass, no allocation.
//! Any other pre-tokeniser runs through the `tokenizers` crate.

use serde_json::Value;
use tokenizers::{OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer};

use super::unicode::{self, Classes};

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
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let class = classes.of(first);
        if class & unicode::NUMBER != 0 {
            let end = rest
                .char_indices()
                .take(4)
                .enumerate()
                .find(|(count, (_, c))| *count == 3 || classes.of(*c) & unicode::NUMBER == 0)
                .map_or(rest.len(), |(_, (at, _))| at);
            let (digits, after) = rest.split_at(end);
            piece(digits);
            rest = after;
            continue;
        }
        let kind = class & (unicode::NUMBER | unicode::CJK);
        let end = rest
            .char_indices()
            .find(|(_, c)| classes.of(*c) & (unicode::NUMBER | unicode::CJK) != kind)
            .map_or(rest.len(), |(at, _)| at);
        let (run, after) = rest.split_at(end);
        stage3(classes, run, &mut piece);
        rest = after;
    }
}

/// Cuts `run` with the third expression: matches and what lies between them are pieces.
fn stage3(classes: &Classes, run: &str, piece: &mut impl FnMut(&str)) {
    let mut at = 0;
    let mut unmatched = 0;
    while at < run.len() {
        let here = &run[at..];
        match matched(classes, here) {
            0 => at += here.chars().next().map_or(1, char::len_utf8),
            length => {
                if unmatched < at {
                    piece(&run[unmatched..at]);
                }
                piece(&here[..length]);
                at += length;
                unmatched = at;
            }
        }
    }
    if unmatched < run.len() {
        piece(&run[unmatched..]);
    }
}

/// Length of the match at the start of `here`, 0 for none. The alternatives are tried in their order.
fn matched(classes: &Classes, here: &str) -> usize {
    let mut chars = here.chars();
    let Some(first) = chars.next() else { return 0 };
    let class = classes.of(first);
    let second = chars.next().map_or(0, |c| classes.of(c));
    let after_first = first.len_utf8();

    // Ascii punctuation and the ascii letters behind it.
    if first.is_ascii_punctuation() {
        let letters = leading(&here[1..], |c| c.is_ascii_alphabetic());
        if letters > 0 {
            return 1 + letters;
        }
    }
    // Letters and marks, with at most one character before them that is none of: letter, punctuation,
    // symbol, CR, LF.
    const WORD: u8 = unicode::LETTER | unicode::MARK;
    let word = |text: &str| leading(text, |c| classes.of(c) & WORD != 0);
    let may_precede = class & (unicode::LETTER | unicode::SYMBOL) == 0 && !is_line_break(first);
    if may_precede && second & WORD != 0 {
        return after_first + word(&here[after_first..]);
    }
    if class & WORD != 0 {
        return word(here);
    }
    // Punctuation and symbols, with a space before and line breaks behind.
    let symbols_at = if class & unicode::SYMBOL != 0 {
        Some(0)
    } else if first == ' ' && second & unicode::SYMBOL != 0 {
        Some(1)
    } else {
        None
    };
    if let Some(start) = symbols_at {
        let end = start + leading(&here[start..], |c| classes.of(c) & unicode::SYMBOL != 0);
        return end + leading(&here[end..], is_line_break);
    }
    // White space: up to its last line break; else all of it at the end of the run; else all but the
    // last character, which goes with the word that follows.
    if class & unicode::SPACE == 0 {
        return 0;
    }
    let space = leading(here, |c| classes.of(c) & unicode::SPACE != 0);
    if let Some(last_break) = here[..space].rfind(is_line_break) {
        return last_break + 1;
    }
    if space == here.len() {
        return space;
    }
    let last = here[..space].chars().next_back().map_or(0, char::len_utf8);
    if last < space { space - last } else { space }
}

/// Bytes at the start of `text` whose characters all satisfy `accept`.
fn leading(text: &str, accept: impl Fn(char) -> bool) -> usize {
    text.find(|c| !accept(c)).unwrap_or(text.len())
}

fn is_line_break(character: char) -> bool {
    character == '\r' || character == '\n'
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
