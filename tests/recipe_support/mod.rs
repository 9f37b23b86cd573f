//! What the recipe's tests share: compressed vectors and the three tokenizer files.

#![allow(dead_code, reason = "each test binary uses its own part")]

pub(crate) mod client;
pub(crate) mod requests;

use std::io::Read;
use std::path::{Path, PathBuf};

use serde_json::Value;
use sha2::{Digest, Sha256};

/// A file below `tests/data`.
pub(crate) fn data(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/data")
        .join(path)
}

/// The content of a gzip-compressed file below `tests/data`.
pub(crate) fn unpack(path: &str) -> Vec<u8> {
    let path = data(path);
    let file =
        std::fs::File::open(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut bytes = Vec::new();
    flate2::read::GzDecoder::new(file)
        .read_to_end(&mut bytes)
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    bytes
}

/// One JSON value a line.
pub(crate) fn lines(path: &str) -> Vec<Value> {
    unpack(path)
        .split(|byte| *byte == b'\n')
        .filter(|line| !line.is_empty())
        .map(|line| serde_json::from_slice(line).expect("vectors are JSON"))
        .collect()
}

/// The folder of the demo model.
pub(crate) fn demo_model() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("models/fathom-demo")
}

/// Requests, prompts and greedy answers of the demo model.
pub(crate) fn demo_cases() -> Vec<Value> {
    let file = std::fs::read(demo_model().join("golden.json")).expect("the golden file exists");
    let mut golden: Value = serde_json::from_slice(&file).expect("the golden file is JSON");
    match golden["cases"].take() {
        Value::Array(cases) => cases,
        other => panic!("cases are {other}"),
    }
}

/// The published V4 tokenizer file.
pub(crate) fn v4_file() -> Vec<u8> {
    unpack("tokenizer/deepseek-v4.json.gz")
}

/// The V4.1 file: V4 with nine added tokens changed. `image` spells the image token.
pub(crate) fn v41_file(image: &str) -> Vec<u8> {
    let mut file: Value = serde_json::from_slice(&v4_file()).expect("the V4 file is JSON");
    let delta = std::fs::read(data("tokenizer/deepseek-v41-delta.json")).expect("the delta exists");
    let delta: Value = serde_json::from_slice(&delta).expect("the delta is JSON");
    let tokens = file["added_tokens"].as_array_mut().expect("added tokens");
    for change in delta["changes"].as_array().expect("changes") {
        let token = tokens
            .iter_mut()
            .find(|token| token["id"] == change["id"])
            .expect("the delta changes tokens of the V4 file");
        for key in ["content", "normalized", "special"] {
            token[key] = change[key].clone();
        }
        if token["content"] == "<｜deepseek_image｜>" {
            token["content"] = image.into();
        }
    }
    serde_json::to_vec(&file).expect("values are written")
}

/// Ids as the vectors hash them.
pub(crate) fn sha256_of_ids(ids: &[u32]) -> String {
    let bytes: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
    sha256(&bytes)
}

/// SHA-256 in lower-case hexadecimal.
pub(crate) fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

/// A JSON array of ids.
pub(crate) fn ids(value: &Value) -> Vec<u32> {
    value
        .as_array()
        .expect("ids are an array")
        .iter()
        .map(|id| u32::try_from(id.as_u64().expect("ids are integers")).expect("ids fit"))
        .collect()
}
