//! Texts to ids and back.

use fathom::capi::tokenizer::{FATHOM_DETOKENIZE_KEEP_SPECIAL, FATHOM_TOKENIZE_ALLOW_SPECIAL};
use serde_json::Value;

use crate::handles::Tokenizer;
use crate::recipe_support::{ids, lines, sha256_of_ids, v41_file};

#[test]
fn texts_become_the_ids_of_the_vectors_and_texts_again() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let path = folder.path().join("tokenizer.json");
    std::fs::write(&path, v41_file("<｜image｜>")).expect("writable");
    let tokenizer = Tokenizer::open(&path);

    let (mut texts, mut repeated) = (0, 0);
    for vector in lines("tokenizer/tokenize.jsonl.gz") {
        if let Some(text) = vector["text"].as_str() {
            texts += 1;
            let plain = ids(&vector["ids"]);
            assert_eq!(encode(&tokenizer, text, 0), plain, "{text:?}");
            let full = vector.get("ids_full_vocab").map_or(plain, ids);
            let found = encode(&tokenizer, text, FATHOM_TOKENIZE_ALLOW_SPECIAL);
            assert_eq!(found, full, "{text:?} with special tokens");
        } else {
            repeated += 1;
            let unit = vector["unit"].as_str().expect("a unit");
            let times = vector["repeat"].as_u64().expect("a count");
            let text = unit.repeat(usize::try_from(times).expect("small"));
            for flags in [0, FATHOM_TOKENIZE_ALLOW_SPECIAL] {
                let found = encode(&tokenizer, &text, flags);
                assert_eq!(Value::from(found.len()), vector["token_count"]);
                assert_eq!(found[..16], ids(&vector["first_ids"])[..16]);
                assert_eq!(sha256_of_ids(&found), vector["ids_sha256_u32le"]);
            }
        }
    }
    assert_eq!((texts, repeated), (375, 13));
}

/// Asks for the number first, as a caller does who does not guess; checks that too little room is left alone, and
/// that the ids spell the text.
fn encode(tokenizer: &Tokenizer, text: &str, flags: u32) -> Vec<u32> {
    const UNTOUCHED: u32 = u32::MAX;
    let needed = tokenizer.encode(text, flags, &mut []);
    assert!(needed <= text.len() + 8, "{needed} ids of {text:?}");
    if let Some(less) = needed.checked_sub(1) {
        let mut room = vec![UNTOUCHED; less];
        assert_eq!(tokenizer.encode(text, flags, &mut room), needed);
        assert!(room.iter().all(|id| *id == UNTOUCHED), "{text:?}");
    }
    let mut room = vec![UNTOUCHED; needed + 1];
    assert_eq!(tokenizer.encode(text, flags, &mut room), needed);
    assert_eq!(room.pop(), Some(UNTOUCHED), "{text:?}");

    let spelled = tokenizer.decode(&room, FATHOM_DETOKENIZE_KEEP_SPECIAL);
    assert_eq!(spelled, text.as_bytes());
    if flags == 0 {
        // Text gives no special token, so there is none to leave out.
        assert_eq!(tokenizer.decode(&room, 0), text.as_bytes());
    }
    room
}
