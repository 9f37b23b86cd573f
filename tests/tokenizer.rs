//! The tokenizer against the published files' vectors, against the `tokenizers` crate, and on broken files.

#![allow(
    clippy::single_range_in_vec_init,
    reason = "one special range is the usual case"
)]

mod recipe_support;

use std::ffi::{c_char, c_void};
use std::path::Path;
use std::ptr::null_mut;
use std::str::FromStr;
use std::sync::{Mutex, OnceLock};

use fathom::capi::library::fathom_set_log;
use fathom::capi::tokenizer::{fathom_tokenizer_free, fathom_tokenizer_open};
use fathom::capi::types::FATHOM_OK;
use fathom::recipe::Stage;
use fathom::recipe::tokenizer::Tokenizer;
use proptest::prelude::*;
use recipe_support::{demo_model, ids, lines, sha256_of_ids, v4_file, v41_file};
use serde_json::{Value, json};

/// V4.1 with the image spelling of the vectors.
fn v41() -> &'static Tokenizer {
    static TOKENIZER: OnceLock<Tokenizer> = OnceLock::new();
    TOKENIZER.get_or_init(|| open(&v41_file("<｜image｜>")))
}

fn open(file: &[u8]) -> Tokenizer {
    Tokenizer::from_bytes(file).unwrap_or_else(|error| panic!("{error}"))
}

fn demo() -> Tokenizer {
    Tokenizer::open(&demo_model()).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn text_becomes_the_ids_of_the_vectors() {
    let tokenizer = v41();
    let vectors = lines("tokenizer/tokenize.jsonl.gz");
    assert_eq!(vectors.len(), 388);
    for vector in &vectors {
        let Some(text) = vector["text"].as_str() else {
            let unit = vector["unit"].as_str().expect("a unit");
            let repeat = vector["repeat"].as_u64().expect("a count");
            let text = unit.repeat(usize::try_from(repeat).expect("small"));
            let found = tokenizer.encode(&text, &[]).expect("text encodes");
            assert_eq!(
                found.len() as u64,
                vector["token_count"].as_u64().expect("a count")
            );
            assert_eq!(sha256_of_ids(&found), vector["ids_sha256_u32le"]);
            continue;
        };
        let expected = ids(&vector["ids"]);
        assert_eq!(
            tokenizer.encode(text, &[]).expect("text encodes"),
            expected,
            "{text:?}"
        );
        let full = vector.get("ids_full_vocab").map_or(expected, ids);
        assert_eq!(
            tokenizer.encode_allow_special(text).expect("text encodes"),
            full,
            "{text:?} with special tokens"
        );
    }
}

#[test]
fn ids_become_the_bytes_of_their_text_again() {
    let tokenizer = v41();
    for vector in lines("tokenizer/tokenize.jsonl.gz") {
        let Some(text) = vector["text"].as_str() else {
            continue;
        };
        for ids in [
            tokenizer.encode(text, &[]),
            tokenizer.encode_allow_special(text),
        ] {
            let ids = ids.expect("text encodes");
            let bytes: Vec<u8> = ids
                .iter()
                .flat_map(|id| {
                    tokenizer
                        .token_bytes(*id)
                        .expect("encoded ids are in the vocabulary")
                })
                .copied()
                .collect();
            assert_eq!(bytes, text.as_bytes());
        }
    }
}

#[test]
fn a_spelling_is_a_control_token_only_inside_a_special_range() {
    let tokenizer = v41();
    let text = "</think></think>";
    let tagged = tokenizer
        .encode(text, &[8..16])
        .expect("both halves encode");
    assert_eq!(tagged, [1718, 37947, 32, 128822]);
    // The counts of the public API for control tokens in user text.
    for (text, count) in [
        ("<｜User｜>", 5),
        ("<｜Assistant｜>", 5),
        ("<｜System｜>", 5),
        ("<think>", 3),
        ("</think>", 3),
    ] {
        assert_eq!(
            tokenizer.encode(text, &[]).expect("text encodes").len(),
            count,
            "{text}"
        );
    }
}

#[test]
fn text_on_both_sides_of_a_special_token_is_cut_on_its_own() {
    let tokenizer = v41();
    let text = "a</think>\n\nb";
    let ids = tokenizer.encode(text, &[1..9]).expect("text encodes");
    let mut expected = tokenizer.encode("a", &[]).expect("text encodes");
    expected.push(128822);
    expected.extend(tokenizer.encode("\n\nb", &[]).expect("text encodes"));
    assert_eq!(ids, expected);
}

#[test]
fn a_special_range_must_spell_an_added_token() {
    let error = v41().encode("a<b>", &[1..4]).expect_err("<b> is no token");
    assert_eq!(error.stage, Stage::Internal);
    assert_eq!(
        error.message,
        "special token \"<b>\" is not in the added vocabulary"
    );
    // An entry of the base vocabulary is not a special token either.
    assert!(v41().encode("a", &[0..1]).is_err());
    // Out of order, outside the text, inside a character.
    for ranges in [vec![8..16, 0..8], vec![8..99], vec![1..16]] {
        assert!(v41().encode("</think></think>", &ranges).is_err());
    }
    assert!(v41().encode("é", &[1..2]).is_err());
}

#[test]
fn added_tokens_are_known_whatever_their_special_flag_says() {
    let tokenizer = v41();
    assert_eq!(tokenizer.vocab_size(), 129_280);
    for (spelling, id) in [
        ("<｜begin▁of▁sentence｜>", 0),
        ("<｜System｜>", 128_799),
        ("<｜User｜>", 128_803),
        ("<think>", 128_821),
        ("｜DSML｜", 128_825),
        ("<｜image｜>", 129_264),
    ] {
        assert_eq!(tokenizer.token_id(spelling), Some(id), "{spelling}");
        assert!(tokenizer.is_added(id), "{spelling}");
        assert_eq!(tokenizer.token_bytes(id), Some(spelling.as_bytes()));
    }
    assert!(!tokenizer.is_added(67));
    assert_eq!(tokenizer.token_bytes(67), Some(b"a".as_slice()));
    assert_eq!(tokenizer.token_id(" a"), Some(260));
    assert_eq!(tokenizer.token_id("not a token"), None);
    assert_eq!(tokenizer.token_bytes(129_280), None);
    assert!(!tokenizer.is_added(u32::MAX));

    let v4 = open(&v4_file());
    assert_eq!(v4.token_id("<｜System｜>"), None);
    assert_eq!(v4.token_id("<｜image｜>"), Some(129_279));
}

#[test]
fn the_demo_model_and_its_directory_open() {
    let tokenizer = demo();
    assert_eq!(tokenizer.vocab_size(), 4096);
    let ids = tokenizer
        .encode("<｜User｜>Hello", &[0..12])
        .expect("text encodes");
    assert_eq!(ids[0], 4036);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn any_text_gets_the_ids_of_the_tokenizers_crate(text in
        "([a-z]{1,12}|[A-Z][a-z]{2,8}|[ -~]|[ \t\r\n]{1,3}|[0-9]{1,7}|[一-鿿]{1,4}|[ぁ-ヿ]{1,4}|[а-я]{1,9}|\\PC|[\u{0}-\u{20}]|</think>|<｜User｜>|<\\|EOT\\|>){0,24}") {
        static ORACLE: OnceLock<tokenizers::Tokenizer> = OnceLock::new();
        let oracle = ORACLE.get_or_init(|| {
            let file = String::from_utf8(v41_file("<｜image｜>")).expect("the file is text");
            tokenizers::Tokenizer::from_str(&file).expect("the file is valid")
        });
        let expected = oracle.encode(text.as_str(), false).expect("text encodes");
        prop_assert_eq!(v41().encode_allow_special(&text).expect("text encodes"), expected.get_ids());
    }
}

/// A valid file of 256 bytes, one merge and one added token.
fn small() -> Value {
    let mut vocab = serde_json::Map::new();
    let printable = (0x21..=0x7E).chain(0xA1..=0xAC).chain(0xAE..=0xFF);
    let alphabet = printable.chain(0x100..=0x143).filter_map(char::from_u32);
    for (id, character) in alphabet.enumerate() {
        vocab.insert(character.to_string(), json!(id));
    }
    assert_eq!(vocab.len(), 256);
    vocab.insert("ab".to_owned(), json!(256));
    json!({
        "added_tokens": [{"id": 257, "content": "<x>", "special": true, "normalized": false}],
        "normalizer": null,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "model": {"type": "BPE", "vocab": vocab, "merges": [["a", "b"]]},
    })
}

#[test]
fn a_small_file_with_another_pre_tokenizer_works() {
    let tokenizer = open(&serde_json::to_vec(&small()).expect("values are written"));
    assert_eq!(tokenizer.vocab_size(), 258);
    assert_eq!(
        tokenizer.encode("ab<x>", &[2..5]).expect("text encodes"),
        [256, 257]
    );
}

/// Keeps what the log says about tokenizers. `user_data` is a list of texts behind a lock.
unsafe extern "C" fn note(
    user_data: *mut c_void,
    level: i32,
    target: *const c_char,
    target_len: usize,
    message: *const c_char,
    message_len: usize,
) {
    let text = |start: *const c_char, length| {
        // SAFETY: texts of a record are readable until the callback returns.
        let bytes = unsafe { std::slice::from_raw_parts(start.cast::<u8>(), length) };
        String::from_utf8_lossy(bytes).into_owned()
    };
    if text(target, target_len) == "tokenizer" {
        let line = format!("{level} {}", text(message, message_len));
        // SAFETY: the test below passes such a list and keeps it until the log is off.
        let lines = unsafe { &*user_data.cast::<Mutex<Vec<String>>>() };
        lines
            .lock()
            .expect("no test panics in a callback")
            .push(line);
    }
}

#[test]
fn a_file_that_needs_the_general_engine_is_told_in_the_log() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("tokenizer.json");
    std::fs::write(&path, small().to_string()).expect("it is written");
    assert!(!Tokenizer::open(&path).expect("it is valid").cuts_by_hand());
    assert!(demo().cuts_by_hand() && v41().cuts_by_hand());

    let lines: Mutex<Vec<String>> = Mutex::default();
    let open = |path: &Path| {
        let path = path.to_str().expect("a plain path");
        let mut tokenizer = null_mut();
        // SAFETY: the path is readable for its length, the handle writable, the error may be NULL.
        unsafe {
            let status =
                fathom_tokenizer_open(path.as_ptr().cast(), path.len(), &mut tokenizer, null_mut());
            assert_eq!(status, FATHOM_OK);
            fathom_tokenizer_free(tokenizer);
        }
    };
    // SAFETY: `note` fits, and the list lives until the log is off.
    unsafe {
        let list = (&raw const lines).cast_mut().cast();
        assert_eq!(fathom_set_log(2, Some(note), list, None), FATHOM_OK);
        open(&demo_model());
        open(&path);
        assert_eq!(fathom_set_log(0, None, null_mut(), None), FATHOM_OK);
    }
    let lines = lines.into_inner().expect("no test panics in a callback");
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].starts_with("2 the pre-tokeniser of this file is not the rule of V4"));
}

#[test]
fn a_broken_file_is_refused_with_the_field_at_fault() {
    type Change = fn(&mut Value);
    let cases: [(&str, Change); 17] = [
        ("model", |f| f["model"] = json!(3)),
        ("model.type", |f| f["model"]["type"] = json!("Unigram")),
        ("model.vocab", |f| f["model"]["vocab"] = json!([])),
        ("model.vocab", |f| f["model"]["vocab"]["ab"] = json!(-1)),
        ("model.vocab", |f| {
            f["model"]["vocab"]["ab"] = json!(4_000_000_000_u64)
        }),
        ("model.vocab", |f| f["model"]["vocab"]["ab"] = json!(7)),
        ("model.vocab", |f| f["model"]["vocab"]["漢"] = json!(300)),
        ("model.vocab", |f| {
            f["model"]["vocab"]
                .as_object_mut()
                .expect("a map")
                .remove("Ġ");
        }),
        ("model.merges", |f| f["model"]["merges"] = Value::Null),
        ("model.merges[0]", |f| {
            f["model"]["merges"] = json!(["a b c"])
        }),
        ("model.merges[1]", |f| {
            f["model"]["merges"] = json!(["a b", ["b", "c"]])
        }),
        ("model.byte_fallback", |f| {
            f["model"]["byte_fallback"] = json!(true)
        }),
        ("normalizer", |f| f["normalizer"] = json!({"type": "NFC"})),
        ("pre_tokenizer", |f| {
            f["pre_tokenizer"] = json!({"type": "Whitespace"})
        }),
        ("added_tokens[0].id", |f| {
            f["added_tokens"][0]["id"] = json!("x")
        }),
        ("added_tokens[0].content", |f| {
            f["added_tokens"][0]["content"] = json!("")
        }),
        ("added_tokens[0].lstrip", |f| {
            f["added_tokens"][0]["lstrip"] = json!(true)
        }),
    ];
    for (field, change) in cases {
        let mut file = small();
        change(&mut file);
        let bytes = serde_json::to_vec(&file).expect("values are written");
        let error = Tokenizer::from_bytes(&bytes).expect_err(field);
        assert_eq!(error.stage, Stage::Tokenizer, "{field}");
        assert_eq!(error.param, field, "{error}");
        assert!(error.message.contains(field), "{error}");
    }
    let error = Tokenizer::from_bytes(b"{\"model\": ").expect_err("cut");
    assert_eq!(error.stage, Stage::Tokenizer);
    let error = Tokenizer::open(Path::new("no/such/file.json")).expect_err("missing");
    assert_eq!(error.stage, Stage::Tokenizer);
    assert!(error.message.contains("no/such/file.json"), "{error}");
}
