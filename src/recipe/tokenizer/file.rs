//! Reads and checks a `tokenizer.json`.
//!
//! Only what the models use is accepted: byte-level BPE without normaliser, added tokens that match
//! exactly. Anything else is refused with the field's name, for a tokenizer that is nearly right gives
//! prompts that are nearly right. Nothing in the file is executed.

use std::collections::HashMap;

use serde_json::{Map, Value};

use super::split::Splitter;
use crate::recipe::error::{Error, Stage};

/// Vocabularies of models are around 130 000; the limit keeps a broken id from reserving gigabytes.
const MAX_ID: u64 = 4_000_000;

/// The checked content of a file.
pub(super) struct File {
    /// Entries of the model: spelling and id.
    pub(super) vocab: Vec<(String, u32)>,
    /// Pairs of ids, best first, with the id they become.
    pub(super) merges: Vec<Merge>,
    /// Take entries whole whatever the merges say.
    pub(super) ignore_merges: bool,
    /// Named tokens, special or not.
    pub(super) added: Vec<Added>,
    /// How text is cut before BPE.
    pub(super) splitter: Splitter,
}

/// Two ids, and the id they become.
pub(super) type Merge = ((u32, u32), u32);

/// One entry of `added_tokens`.
pub(super) struct Added {
    pub(super) id: u32,
    pub(super) content: String,
    /// Matched after, not before, the others.
    pub(super) normalized: bool,
}

/// Parses the bytes of a file.
pub(super) fn parse(bytes: &[u8]) -> Result<File, Error> {
    let root: Value = serde_json::from_slice(bytes)
        .map_err(|error| wrong("", format!("the file is not JSON: {error}")))?;
    let root = object(&root, "")?;
    let model = object(required(root, "model", "model")?, "model")?;
    check_model(model)?;
    check_normalizer(root.get("normalizer").unwrap_or(&Value::Null))?;

    let vocab = vocab(required(model, "vocab", "model.vocab")?)?;
    let merges = {
        let ids: HashMap<&str, u32, ahash::RandomState> = vocab
            .iter()
            .map(|(entry, id)| (entry.as_str(), *id))
            .collect();
        merges(required(model, "merges", "model.merges")?, &ids)?
    };
    let splitter = Splitter::from_json(required(root, "pre_tokenizer", "pre_tokenizer")?)
        .map_err(|reason| wrong("pre_tokenizer", reason))?;
    Ok(File {
        added: added(root.get("added_tokens").unwrap_or(&Value::Null))?,
        ignore_merges: model.get("ignore_merges") == Some(&Value::Bool(true)),
        vocab,
        merges,
        splitter,
    })
}

/// An error at `field` of a tokenizer file.
pub(super) fn wrong(field: &str, reason: impl std::fmt::Display) -> Error {
    let message = if field.is_empty() {
        format!("tokenizer: {reason}")
    } else {
        format!("tokenizer: field \"{field}\": {reason}")
    };
    Error::new(Stage::Tokenizer, field, message)
}

fn check_model(model: &Map<String, Value>) -> Result<(), Error> {
    match model.get("type") {
        None | Some(Value::Null) => {}
        Some(Value::String(kind)) if kind == "BPE" => {}
        Some(other) => {
            return Err(wrong(
                "model.type",
                format!("{other} is not supported, only \"BPE\""),
            ));
        }
    }
    for field in ["dropout", "unk_token"] {
        if !model.get(field).unwrap_or(&Value::Null).is_null() {
            return Err(wrong(&format!("model.{field}"), "must be absent or null"));
        }
    }
    for field in ["continuing_subword_prefix", "end_of_word_suffix"] {
        match model.get(field) {
            None | Some(Value::Null) => {}
            Some(Value::String(text)) if text.is_empty() => {}
            Some(_) => return Err(wrong(&format!("model.{field}"), "must be absent or empty")),
        }
    }
    for field in ["fuse_unk", "byte_fallback", "ignore_merges"] {
        match model.get(field) {
            None | Some(Value::Null | Value::Bool(false)) => {}
            Some(Value::Bool(true)) if field == "ignore_merges" => {}
            Some(other) => {
                return Err(wrong(
                    &format!("model.{field}"),
                    format!("{other} is not supported"),
                ));
            }
        }
    }
    Ok(())
}

fn check_normalizer(normalizer: &Value) -> Result<(), Error> {
    let empty = normalizer.is_null()
        || (normalizer["type"] == "Sequence"
            && normalizer["normalizers"]
                .as_array()
                .is_some_and(Vec::is_empty));
    if empty {
        return Ok(());
    }
    Err(wrong(
        "normalizer",
        "only null and an empty \"Sequence\" are supported",
    ))
}

fn vocab(field: &Value) -> Result<Vec<(String, u32)>, Error> {
    object(field, "model.vocab")?
        .iter()
        .map(|(entry, value)| {
            let id = id(value).ok_or_else(|| {
                wrong(
                    "model.vocab",
                    format!("the entry {entry:?} has the id {value}, which is not an id"),
                )
            })?;
            Ok((entry.clone(), id))
        })
        .collect()
}

fn merges(
    field: &Value,
    ids: &HashMap<&str, u32, ahash::RandomState>,
) -> Result<Vec<Merge>, Error> {
    let list = array(field, "model.merges")?;
    list.iter()
        .enumerate()
        .map(|(at, merge)| {
            let field = || format!("model.merges[{at}]");
            // Older files write a pair as one string with a space, newer ones as an array.
            let (left, right) = match merge {
                Value::String(pair) => pair
                    .split_once(' ')
                    .filter(|(_, right)| !right.contains(' ')),
                Value::Array(pair) => match pair.as_slice() {
                    [Value::String(left), Value::String(right)] => {
                        Some((left.as_str(), right.as_str()))
                    }
                    _ => None,
                },
                _ => None,
            }
            .ok_or_else(|| wrong(&field(), format!("{merge} is not a pair of entries")))?;
            let find = |entry: &str| {
                ids.get(entry)
                    .copied()
                    .ok_or_else(|| wrong(&field(), format!("{entry:?} is not in the vocabulary")))
            };
            let result = find(&format!("{left}{right}"))?;
            Ok(((find(left)?, find(right)?), result))
        })
        .collect()
}

fn added(field: &Value) -> Result<Vec<Added>, Error> {
    if field.is_null() {
        return Ok(Vec::new());
    }
    let list = array(field, "added_tokens")?;
    list.iter()
        .enumerate()
        .map(|(at, token)| {
            let field = |name: &str| format!("added_tokens[{at}].{name}");
            let token = object(token, &format!("added_tokens[{at}]"))?;
            let id = token
                .get("id")
                .and_then(id)
                .ok_or_else(|| wrong(&field("id"), "missing or not an id"))?;
            let content = token
                .get("content")
                .and_then(Value::as_str)
                .filter(|content| !content.is_empty())
                .ok_or_else(|| wrong(&field("content"), "missing or not a string with text"))?;
            let flag = |name: &str| match token.get(name) {
                None | Some(Value::Null) => Ok(false),
                Some(Value::Bool(flag)) => Ok(*flag),
                Some(other) => Err(wrong(&field(name), format!("{other} is not a boolean"))),
            };
            for name in ["single_word", "lstrip", "rstrip"] {
                if flag(name)? {
                    return Err(wrong(&field(name), "true is not supported"));
                }
            }
            Ok(Added {
                id,
                content: content.to_owned(),
                normalized: flag("normalized")?,
            })
        })
        .collect()
}

fn id(value: &Value) -> Option<u32> {
    let id = value.as_u64().filter(|id| *id < MAX_ID)?;
    u32::try_from(id).ok()
}

fn required<'a>(map: &'a Map<String, Value>, key: &str, path: &str) -> Result<&'a Value, Error> {
    map.get(key).ok_or_else(|| wrong(path, "missing"))
}

fn object<'a>(value: &'a Value, path: &str) -> Result<&'a Map<String, Value>, Error> {
    value
        .as_object()
        .ok_or_else(|| wrong(path, "not an object"))
}

fn array<'a>(value: &'a Value, path: &str) -> Result<&'a Vec<Value>, Error> {
    value.as_array().ok_or_else(|| wrong(path, "not an array"))
}
