//! Writes what the search starts from: `seeds DIR` fills a folder of `DIR` for each target from the vectors in
//! tests/data. What an earlier run has found is left there.

// By its path: the library's crate would bring in fathom, whose instrumentation only the fuzzer's runtime serves.
#[allow(dead_code, reason = "the targets use the rest")]
#[path = "../data.rs"]
mod data;

use std::path::Path;

use data::unpack;
use serde_json::Value;

/// Longer inputs are slow and teach nothing more.
const LONGEST: usize = 4096;
/// The tokenizer's oracle is slow, and sees the first part of a text only.
const LONGEST_TEXT: usize = 512;

fn main() -> std::io::Result<()> {
    let folder = std::env::args_os().nth(1).expect("usage: seeds DIR");
    let folder = Path::new(&folder);
    let write = |target: &str, name: &str, seed: &[u8]| {
        let folder = folder.join(target);
        std::fs::create_dir_all(&folder)?;
        let longest = if target == "tokenizer" {
            LONGEST_TEXT
        } else {
            LONGEST
        };
        if seed.len() > longest {
            return Ok(());
        }
        std::fs::write(folder.join(name), seed)
    };
    for (at, vector) in lines("tests/data/recipe/encode.jsonl.gz").enumerate() {
        let protocol = vector["protocol"].as_str().expect("a protocol");
        let body = match vector["request_raw"].as_str() {
            Some(raw) => raw.to_owned(),
            None => vector["request"].to_string(),
        };
        write(protocol, &format!("seed-{at}"), body.as_bytes())?;
        if let Some(prompt) = vector["result"]["prompt"].as_str() {
            write("tokenizer", &format!("prompt-{at}"), prompt.as_bytes())?;
        }
    }
    for (at, vector) in lines("tests/data/tokenizer/tokenize.jsonl.gz").enumerate() {
        let text = vector["text"].as_str().or(vector["unit"].as_str());
        write(
            "tokenizer",
            &format!("text-{at}"),
            text.expect("a text").as_bytes(),
        )?;
    }
    Ok(())
}

/// One JSON value a line.
fn lines(path: &str) -> impl Iterator<Item = Value> {
    let bytes = unpack(path);
    let values: Vec<Value> = bytes
        .split(|byte| *byte == b'\n')
        .filter(|line| !line.is_empty())
        .map(|line| serde_json::from_slice(line).expect("vectors are JSON"))
        .collect();
    values.into_iter()
}
