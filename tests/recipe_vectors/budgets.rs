//! Output budgets: prompts of exactly so many tokens as a vector says, in a context of its size.

use std::collections::{BTreeSet, HashMap};
use std::rc::Rc;

use fathom::capi::recipe::FATHOM_PROTOCOL_CONVERSATION;
use fathom::capi::types::FATHOM_ERR_CONTEXT_LENGTH;
use serde_json::{Map, Value, json};

use crate::handles::Recipe;
use crate::recipe_support::{lines, v4_file};

/// Stands for the user's text where the template around it is asked for.
const MARK: &str = "\u{1}\u{2}\u{3}";

#[test]
fn output_budgets_are_those_of_the_vectors() {
    let vectors = lines("recipe/max_tokens.jsonl.gz");
    let folder = tempfile::tempdir().expect("a scratch folder");
    let [short, long] = ["short.json", "long.json"].map(|name| folder.path().join(name));
    let frames = frames(&vectors);
    let whole = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false});
    std::fs::write(&short, tokenizer(&frames, &whole)).expect("writable");
    // Cuts the texts of the frame as well, which long prompts can afford, and is much faster.
    let published: Value = serde_json::from_slice(&v4_file()).expect("it is JSON");
    std::fs::write(&long, tokenizer(&frames, &published["pre_tokenizer"])).expect("writable");

    let mut recipes = HashMap::new();
    let (mut reached, mut too_long) = (0, 0);
    for vector in &vectors {
        let number = |key: &str| {
            let number = vector[key].as_u64()?;
            Some(u32::try_from(number).expect("it fits"))
        };
        let prompt_tokens = number("prompt_tokens").expect("a count");
        let context = number("context_limit").expect("a limit");
        let file = match prompt_tokens {
            // Without a tokenizer a prompt has no tokens.
            0 => None,
            1..1000 => Some(&short),
            1000..u32::MAX => Some(&long),
            // No body is that long, nor has it that many images.
            u32::MAX => {
                too_long += 1;
                continue;
            }
        };
        reached += 1;
        let mut recipe = |context| {
            let open = || Recipe::open(file.map(|path| &**path), "", context);
            Rc::clone(
                recipes
                    .entry((file, context))
                    .or_insert_with(|| Rc::new(open())),
            )
        };
        let empty = request(vector, "", &Value::Null);
        let empty = recipe(0).prepare(FATHOM_PROTOCOL_CONVERSATION, &empty, None);
        let frame = empty
            .unwrap_or_else(|failure| panic!("{failure:?}"))
            .info()
            .token_count;
        let missing = prompt_tokens
            .checked_sub(frame)
            .expect("the frame is short");
        let body = request(vector, &"a".repeat(missing as usize), &vector["requested"]);
        match recipe(context).prepare(FATHOM_PROTOCOL_CONVERSATION, &body, None) {
            Ok(prepared) => {
                let info = prepared.info();
                assert_eq!(info.token_count, prompt_tokens, "{vector}");
                assert_eq!(Some(info.max_tokens), number("max_tokens"), "{vector}");
            }
            Err(failure) => {
                assert_eq!(failure.message, vector["error"], "{vector}");
                assert_eq!(failure.status, FATHOM_ERR_CONTEXT_LENGTH, "{vector}");
                assert_eq!(
                    (failure.http, &*failure.param),
                    (400, "messages"),
                    "{vector}"
                );
                assert_eq!(
                    failure.body,
                    json!({"status": 400, "message": failure.message})
                );
            }
        }
    }
    assert_eq!((reached, too_long), (540, 60));
}

fn request(vector: &Value, text: &str, max_tokens: &Value) -> String {
    json!({
        "encoding": "v4.1",
        "thinking_mode": vector["thinking"],
        "reasoning_effort": vector["effort"],
        "messages": [{"role": "user", "content": text}],
        "inference": {"max_tokens": max_tokens},
    })
    .to_string()
}

/// What stands around the user's texts.
#[derive(Default)]
struct Frames {
    /// Spellings of special tokens.
    special: BTreeSet<String>,
    /// Texts between them.
    texts: BTreeSet<String>,
}

fn frames(vectors: &[Value]) -> Frames {
    let recipe = Recipe::open(None, "", 0);
    let mut frames = Frames::default();
    for vector in vectors {
        let body = request(vector, MARK, &Value::Null);
        let prepared = recipe.prepare(FATHOM_PROTOCOL_CONVERSATION, &body, None);
        let prepared = prepared.unwrap_or_else(|failure| panic!("{vector}: {failure:?}"));
        let (prompt, mut done) = (prepared.prompt(), 0);
        for [start, end] in prepared.special_ranges() {
            frames.texts.insert(prompt[done..start].to_owned());
            frames.special.insert(prompt[start..end].to_owned());
            done = end;
        }
        frames.texts.insert(prompt[done..].to_owned());
    }
    assert!(
        frames.texts.remove(MARK),
        "the user's text is not alone between two tokens"
    );
    frames.texts.remove("");
    frames
}

/// A tokenizer file that gives each text of the frames one id if it is not cut, and any other text one for each
/// byte: so a prompt can have as few tokens, or as many, as a vector asks for.
fn tokenizer(frames: &Frames, pre_tokenizer: &Value) -> String {
    let byte_level = |byte: u8| match byte {
        0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF => char::from(byte),
        // The others follow behind all bytes, in their order.
        0..=0x20 => char::from_u32(0x100 + u32::from(byte)).expect("a letter"),
        0x7F..=0xA0 => char::from_u32(0x121 + u32::from(byte) - 0x7F).expect("a letter"),
        0xAD => '\u{143}',
    };
    let mut vocab: Map<String, Value> = Map::new();
    for byte in 0..=u8::MAX {
        vocab.insert(byte_level(byte).to_string(), json!(vocab.len()));
    }
    for text in &frames.texts {
        let entry: String = text.bytes().map(byte_level).collect();
        vocab.insert(entry, json!(vocab.len()));
    }
    let added: Vec<Value> = (vocab.len()..)
        .zip(&frames.special)
        .map(|(id, content)| json!({"id": id, "content": content, "special": true, "normalized": false}))
        .collect();
    json!({
        "added_tokens": added,
        "normalizer": null,
        "pre_tokenizer": pre_tokenizer,
        "model": {"type": "BPE", "vocab": vocab, "merges": [], "ignore_merges": true},
    })
    .to_string()
}
