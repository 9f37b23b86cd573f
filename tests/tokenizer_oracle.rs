//! Ids of generated texts against the `tokenizers` crate: every general category, script and spelling that the
//! pre-tokeniser could take for another.
//!
//! 80 000 texts for each tokenizer; `FATHOM_ORACLE_STRINGS` asks for another number (`make fuzz`: 1 000 000).

mod recipe_support;

use std::str::FromStr;

use fathom::recipe::tokenizer::Tokenizer;
use recipe_support::{demo_model, v4_file};
use regex_syntax::hir::{Class, HirKind};
use serde_json::{Value, json};

const STRINGS: u64 = 80_000;

#[test]
fn the_published_tokenizer_gives_the_ids_of_the_oracle() {
    check(&v4_file(), 1);
}

#[test]
fn the_demo_models_tokenizer_gives_the_ids_of_the_oracle() {
    let file = demo_model().join("tokenizer.json");
    check(&std::fs::read(file).expect("the file exists"), 2);
}

/// Every general category but surrogates, which no text can hold.
const CATEGORIES: [&str; 29] = [
    "Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd", "Nl", "No", "Pc", "Pd", "Ps", "Pe", "Pi",
    "Pf", "Po", "Sm", "Sc", "Sk", "So", "Zs", "Zl", "Zp", "Cc", "Cf", "Co", "Cn",
];

fn check(file: &[u8], seed: u64) {
    let strings = match std::env::var("FATHOM_ORACLE_STRINGS") {
        Ok(number) => number.parse().expect("FATHOM_ORACLE_STRINGS is a number"),
        Err(_) => STRINGS,
    };
    let mut parsed: Value = serde_json::from_slice(file).expect("the file is JSON");
    let added: Vec<String> = parsed["added_tokens"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|token| token["content"].as_str().expect("a spelling").to_owned())
        .collect();
    let full = oracle(&parsed);
    parsed["added_tokens"] = json!([]);
    let plain = oracle(&parsed);
    let ours = Tokenizer::from_bytes(file).unwrap_or_else(|error| panic!("{error}"));

    let generator = Generator::new(added);
    let mut random = Random(seed);
    let (mut with_special, mut bytes) = (0, 0);
    for number in 0..strings {
        let text = generator.text(&mut random);
        let found = ours.encode(&text, &[]).expect("text encodes");
        let expected = plain
            .encode_fast(text.as_str(), false)
            .expect("text encodes");
        assert_eq!(found, expected.get_ids(), "text {number}: {text:?}");
        let found_full = ours.encode_allow_special(&text).expect("text encodes");
        // Without a spelling in it both oracles do the same work.
        if found_full != found || number % 16 == 0 {
            let expected = full
                .encode_fast(text.as_str(), false)
                .expect("text encodes");
            assert_eq!(
                found_full,
                expected.get_ids(),
                "text {number}, with special tokens: {text:?}"
            );
        }
        for ids in [&found, &found_full] {
            let spelled = ids
                .iter()
                .flat_map(|id| ours.token_bytes(*id).expect("an id of the vocabulary"));
            assert!(
                spelled.eq(text.as_bytes()),
                "text {number} is spelled otherwise: {text:?}"
            );
        }
        with_special += u64::from(found_full != found);
        bytes += text.len() as u64;
    }
    // Were the generator broken, everything would be equal.
    assert!(
        strings < 100 || with_special > strings / 20,
        "{with_special} texts with special tokens"
    );
    assert!(strings < 100 || bytes > 20 * strings, "{bytes} bytes");
}

fn oracle(file: &Value) -> tokenizers::Tokenizer {
    tokenizers::Tokenizer::from_str(&file.to_string()).expect("the file is valid")
}

/// Characters by what the pre-tokeniser may see in them.
struct Generator {
    categories: Vec<Characters>,
    digits: Characters,
    marks: Characters,
    letters: Characters,
    spaces: Characters,
    emoji: Characters,
    ideographs: Characters,
    added: Vec<String>,
}

impl Generator {
    fn new(added: Vec<String>) -> Self {
        Self {
            categories: CATEGORIES
                .iter()
                .map(|name| Characters::of(&format!(r"\p{{{name}}}")))
                .collect(),
            digits: Characters::of(r"\p{N}"),
            marks: Characters::of(r"\p{M}"),
            letters: Characters::of(r"\p{L}"),
            spaces: Characters::of(r"[\p{White_Space}\x1c-\x1f\u{200b}\u{feff}\u{180e}]"),
            emoji: Characters::of(r"\p{Extended_Pictographic}"),
            // The pre-tokeniser's own ranges, their neighbours, and what looks alike.
            ideographs: Characters::of(
                r"[一-龥぀-ヿ\u{9fa6}-\u{9fff}\u{3400}-\u{3410}\u{20000}-\u{20010}\u{303e}-\u{3040}\u{3100}-\u{3110}\u{31f0}-\u{31ff}\u{ff66}-\u{ff9d}가-힣]",
            ),
            added,
        }
    }

    fn text(&self, random: &mut Random) -> String {
        let mut text = String::new();
        for _ in 0..=random.below(8) {
            self.piece(&mut text, random);
        }
        text
    }

    fn piece(&self, text: &mut String, random: &mut Random) {
        match random.below(14) {
            0 | 1 => {
                for _ in 0..=random.below(4) {
                    let category = random.below(self.categories.len());
                    text.push(self.categories[category].any(random));
                }
            }
            2 => self.ideographs.push(text, 1 + random.below(6), random),
            3 => self.digits.push(text, 1 + random.below(7), random),
            4 => text
                .extend((0..=random.below(7)).map(|_| char::from(b'0' + random.below(10) as u8))),
            5 => self.spaces.push(text, 1 + random.below(6), random),
            6 => text.extend(
                (0..=random.below(6)).map(|_| *random.choose(&[' ', ' ', '\n', '\r', '\t'])),
            ),
            7 => {
                let base = if random.below(2) == 0 {
                    &self.letters
                } else {
                    &self.emoji
                };
                text.push(base.any(random));
                self.marks.push(text, 1 + random.below(3), random);
            }
            8 => self.emoji_sequence(text, random),
            9 => text.push_str(random.word(&[
                "\\ud800",
                "\\uDFFF",
                "\u{feff}",
                "\u{fffd}",
                "\u{fffe}",
                "\u{e000}",
                "\u{10ffff}",
                "\u{378}",
                "\0",
                "\u{7f}",
                "\u{85}",
                "\u{202e}",
                "\u{2028}",
                "\u{2029}",
                "\u{ad}",
                "\u{34f}",
                "\u{115f}",
            ])),
            10 => text.push_str(random.choose::<String>(&self.added)),
            11 => {
                // A spelling that is cut or changed is text.
                let spelling: &String = random.choose(&self.added);
                let part = spelling
                    .chars()
                    .skip(random.below(2))
                    .take(1 + random.below(12));
                text.extend(part);
            }
            12 => {
                let words = [
                    "the",
                    "It's",
                    "don't",
                    "WE'LL",
                    "foo_bar",
                    "a.b.c",
                    "http://e.test/?q=1&r=2",
                    "#include",
                    " (x)",
                    "x=-1;",
                    "}\r\n",
                    "...\n\n",
                    "naïve",
                    "Straße",
                    "привет",
                    "مرحبا",
                    "नमस्ते",
                    "สวัสดี",
                    "e\u{301}",
                ];
                for _ in 0..=random.below(3) {
                    text.push_str(if random.below(2) == 0 { " " } else { "" });
                    text.push_str(random.word(&words));
                }
            }
            _ => {
                let mut unit = String::new();
                let category = random.below(self.categories.len());
                self.categories[category].push(&mut unit, 1 + random.below(3), random);
                text.push_str(&unit.repeat(1 + random.below(12)));
            }
        }
    }

    /// Joined, coloured, with variation selectors, flags and keycaps.
    fn emoji_sequence(&self, text: &mut String, random: &mut Random) {
        text.push(self.emoji.any(random));
        for _ in 0..random.below(4) {
            match random.below(6) {
                0 => text.push('\u{fe0f}'),
                1 => text.push('\u{fe0e}'),
                2 => text.push(*random.choose(&['\u{1f3fb}', '\u{1f3ff}'])),
                3 => text.push_str("\u{1f1e9}\u{1f1ea}"),
                4 => text.push_str("3\u{fe0f}\u{20e3}"),
                _ => {
                    text.push('\u{200d}');
                    text.push(self.emoji.any(random));
                }
            }
        }
    }
}

/// The characters of a class.
struct Characters {
    ranges: Vec<(char, char)>,
}

impl Characters {
    fn of(class: &str) -> Self {
        let parsed = regex_syntax::parse(class).unwrap_or_else(|error| panic!("{error}"));
        let ranges = match parsed.kind() {
            HirKind::Class(Class::Unicode(class)) => class
                .iter()
                .map(|range| (range.start(), range.end()))
                .collect(),
            // One character is a literal.
            HirKind::Literal(literal) => {
                let text = std::str::from_utf8(&literal.0).expect("a character");
                text.chars()
                    .map(|character| (character, character))
                    .collect()
            }
            other => panic!("{class} is {other:?}"),
        };
        Self { ranges }
    }

    /// Any range, and in it the first, the last or any character: borders are where tables go wrong.
    fn any(&self, random: &mut Random) -> char {
        let (first, last) = *random.choose(&self.ranges);
        match random.below(4) {
            0 => first,
            1 => last,
            _ => {
                let width = last as usize - first as usize + 1;
                let code = first as u32 + random.below(width) as u32;
                // The range may span the surrogates.
                char::from_u32(code).unwrap_or(last)
            }
        }
    }

    fn push(&self, text: &mut String, count: usize, random: &mut Random) {
        text.extend((0..count).map(|_| self.any(random)));
    }
}

/// Splitmix64.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((mixed ^ (mixed >> 31)) % end as u64).expect("below a usize")
    }

    fn word<'a>(&mut self, of: &[&'a str]) -> &'a str {
        of[self.below(of.len())]
    }

    fn choose<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len())]
    }
}
