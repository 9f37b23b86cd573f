//! Writes what the search starts from: `seeds DIR` fills a folder of `DIR` for each target from the vectors in
//! tests/data. What an earlier run has found is left there.

// By its path: the library's crate would bring in fathom, whose instrumentation only the fuzzer's runtime serves.
#[allow(dead_code, reason = "the targets use the rest")]
#[path = "../data.rs"]
mod data;
#[allow(dead_code, reason = "the target reads what is written here")]
#[path = "../streams/header.rs"]
mod header;

use std::collections::HashMap;
use std::path::Path;

use data::unpack;
use header::{Header, op};
use serde_json::Value;

/// Longer inputs are slow and teach nothing more.
const LONGEST: usize = 4096;
/// The tokenizer's oracle is slow, and sees the first part of a text only; outputs are read three times.
const LONGEST_TEXT: usize = 512;

fn main() -> std::io::Result<()> {
    let folder = std::env::args_os().nth(1).expect("usage: seeds DIR");
    let folder = Path::new(&folder);
    let write = |target: &str, name: &str, seed: &[u8]| {
        let folder = folder.join(target);
        std::fs::create_dir_all(&folder)?;
        let longest = if matches!(target, "tokenizer" | "stream") {
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
    let tokens = tokens();
    let whole = |vector: &Value| vector.get("base").is_none();
    for (at, vector) in lines("tests/data/recipe/streams.jsonl.gz")
        .filter(whole)
        .enumerate()
    {
        let seed = output(&vector, &tokens);
        write("stream", &format!("output-{at}"), &seed)?;
    }
    Ok(())
}

/// What the ids of the published V4 vocabulary stand for. In the file each byte is a character: itself where it can
/// be printed, else one from U+0100 on.
fn tokens() -> HashMap<u64, Vec<u8>> {
    let file: Value = serde_json::from_slice(&unpack("tests/data/tokenizer/deepseek-v4.json.gz"))
        .expect("the tokenizer is JSON");
    let printed = |byte: &u8| matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    let others = (0..=255u8).filter(|byte| !printed(byte));
    let hidden = ('\u{100}'..).zip(others);
    let shown = (0..=255u8)
        .filter(printed)
        .map(|byte| (char::from(byte), byte));
    let bytes: HashMap<char, u8> = hidden.chain(shown).collect();
    let vocabulary = file["model"]["vocab"].as_object().expect("a vocabulary");
    // Control tokens stand there as well, as they are.
    let ordinary = vocabulary.iter().filter_map(|(text, id)| {
        let text: Option<Vec<u8>> = text.chars().map(|c| bytes.get(&c).copied()).collect();
        Some((id.as_u64().expect("an id"), text?))
    });
    let added = file["added_tokens"]
        .as_array()
        .expect("added tokens")
        .iter();
    let added = added.map(|token| {
        let text = token["content"].as_str().expect("a text").into();
        (token["id"].as_u64().expect("an id"), text)
    });
    ordinary.chain(added).collect()
}

/// A recorded output as the input that does the same, as far as its small vocabulary and its options go.
fn output(vector: &Value, tokens: &HashMap<u64, Vec<u8>>) -> Vec<u8> {
    let protocols = ["chat_completions", "responses", "messages"];
    let protocol = protocols
        .iter()
        .position(|name| vector["protocol"] == *name);
    let options = &vector["options"];
    let is = |name: &str| options[name] == true;
    let header = Header {
        protocol: protocol.expect("a protocol") as u8,
        json: is("parse_json_output"),
        no_calls: !is("parse_tool_calls"),
        starts_in_calls: is("starts_in_tool_calls"),
        stage: match options["thinking_initial_stage"].as_str() {
            Some("reasoning_start") => 1,
            Some("reasoning_continuation") => 2,
            Some(_) => 3,
            None => 0,
        },
        finish: u8::from(vector["chunks"].to_string().contains("\"length\"")),
        words: vector["encoding"] == "v41",
        ..Header::default()
    };
    let mut seed = header.bytes().to_vec();
    for chunk in vector["chunks"].as_array().expect("chunks") {
        match chunk["kind"].as_str().expect("a kind") {
            "ready" => seed.push(op::START),
            "text" => {
                seed.push(op::TEXT);
                seed.extend(chunk["content"].as_str().expect("text").bytes());
            }
            "tokens" => {
                seed.push(op::IDS);
                for id in chunk["ids"].as_array().expect("ids") {
                    let bytes = tokens.get(&id.as_u64().expect("an id"));
                    seed.extend(bytes.into_iter().flatten());
                }
            }
            _ => seed.push(op::FINISH),
        }
    }
    seed
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
