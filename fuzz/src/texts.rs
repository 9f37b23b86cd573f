//! Any bytes as text: the ids of the `tokenizers` crate, and the text again.

use std::ops::Range;
use std::sync::OnceLock;

use fathom::recipe::tokenizer::Tokenizer;

use crate::data::{repository, unpack};
use crate::digest;

/// A tokenizer file as we read it, and as the oracle does: with its added tokens, and without any.
struct Pair {
    ours: Tokenizer,
    full: tokenizers::Tokenizer,
    plain: tokenizers::Tokenizer,
}

impl Pair {
    fn of(file: &[u8]) -> Self {
        let mut without: serde_json::Value =
            serde_json::from_slice(file).expect("the file is JSON");
        without["added_tokens"] = serde_json::json!([]);
        let without = serde_json::to_vec(&without).expect("values are written");
        let oracle =
            |file: &[u8]| tokenizers::Tokenizer::from_bytes(file).expect("the file is valid");
        Self {
            ours: Tokenizer::from_bytes(file).unwrap_or_else(|e| panic!("{e}")),
            full: oracle(file),
            plain: oracle(&without),
        }
    }

    /// Round trips of the whole text; the slow oracle sees the first part of it.
    fn check(&self, text: &str) {
        let plain = self.ours.encode(text, &[]).expect("text encodes");
        let full = self.ours.encode_allow_special(text).expect("text encodes");
        assert!(
            self.is_spelled(&plain, text, false),
            "the ids spell another text"
        );
        if full != plain {
            assert!(
                self.is_spelled(&full, text, true),
                "the ids spell another text"
            );
            self.check_ranges(text);
        }
        const ORACLE_BYTES: usize = 128;
        let head = &text[..text.floor_char_boundary(ORACLE_BYTES)];
        if head.len() == text.len() {
            self.check_oracle(text, &plain, &full);
        } else {
            let plain = self.ours.encode(head, &[]).expect("text encodes");
            let full = self.ours.encode_allow_special(head).expect("text encodes");
            self.check_oracle(head, &plain, &full);
        }
    }

    fn check_oracle(&self, text: &str, plain: &[u32], full: &[u32]) {
        let oracle = self.plain.encode_fast(text, false).expect("text encodes");
        assert_eq!(plain, oracle.get_ids(), "{text:?}");
        // Without a spelling both oracles do the same work.
        if full != plain || digest(text.as_bytes()).is_multiple_of(8) {
            let oracle = self.full.encode_fast(text, false).expect("text encodes");
            assert_eq!(full, oracle.get_ids(), "{text:?} with special tokens");
        }
    }

    /// Special ranges cut the text: each gives its own id, and what lies between is encoded on its own.
    fn check_ranges(&self, text: &str) {
        let ranges = spellings(text);
        if ranges.is_empty() {
            return;
        }
        let found = self
            .ours
            .encode(text, &ranges)
            .expect("the ranges are tokens");
        let (mut expected, mut done) = (Vec::new(), 0);
        for range in &ranges {
            expected.extend(
                self.ours
                    .encode(&text[done..range.start], &[])
                    .expect("text encodes"),
            );
            expected.push(self.ours.token_id(&text[range.clone()]).expect("a token"));
            done = range.end;
        }
        expected.extend(self.ours.encode(&text[done..], &[]).expect("text encodes"));
        assert_eq!(found, expected, "{ranges:?} of {text:?}");
    }

    /// Whether the bytes of `ids` are those of `text`, with added tokens among them only if these may be there.
    fn is_spelled(&self, ids: &[u32], text: &str, may_be_added: bool) -> bool {
        let mut rest = text.as_bytes();
        let all_match = ids.iter().all(|id| {
            let bytes = self
                .ours
                .token_bytes(*id)
                .expect("ids are in the vocabulary");
            let Some(behind) = rest.strip_prefix(bytes) else {
                return false;
            };
            rest = behind;
            may_be_added || !self.ours.is_added(*id)
        });
        all_match && rest.is_empty()
    }
}

/// Where the text spells tokens that both files have: ascending, disjoint.
fn spellings(text: &str) -> Vec<Range<usize>> {
    let mut done = 0;
    let mut at = |(start, _)| {
        let known = ["<｜User｜>", "</think>", "｜DSML｜"];
        let spells = |spelling: &&&str| text[start..].starts_with(**spelling);
        let spelling = known.iter().filter(|_| start >= done).find(spells)?;
        done = start + spelling.len();
        Some(start..done)
    };
    text.char_indices().filter_map(&mut at).collect()
}

/// Panics if our ids are not the oracle's, or not those of the text.
pub fn check(bytes: &[u8]) {
    static SMALL: OnceLock<Pair> = OnceLock::new();
    static PUBLISHED: OnceLock<Pair> = OnceLock::new();
    let text = String::from_utf8_lossy(bytes);
    SMALL
        .get_or_init(|| {
            let file = repository("models/fathom-demo/tokenizer.json");
            Pair::of(&std::fs::read(&file).unwrap_or_else(|e| panic!("{}: {e}", file.display())))
        })
        .check(&text);
    // The large vocabulary finds little that the small one does not, and takes longer.
    if digest(bytes).is_multiple_of(16) {
        PUBLISHED
            .get_or_init(|| Pair::of(&unpack("tests/data/tokenizer/deepseek-v4.json.gz")))
            .check(&text);
    }
}
