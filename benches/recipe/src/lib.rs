//! What the benches share: the set of requests, the tokenizer files, an allocator that counts, and percentiles.

use std::alloc::{GlobalAlloc, Layout, System};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use fathom::recipe::Protocol;
use serde_json::Value;

/// The system's allocator with a count of its calls.
pub struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);
static ALLOCATED: AtomicU64 = AtomicU64::new(0);

// SAFETY: every call is handed on unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: as promised by the caller.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as promised by the caller.
        unsafe { System.dealloc(pointer, layout) }
    }
    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size);
        // SAFETY: as promised by the caller.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

fn count(bytes: usize) {
    ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
    ALLOCATED.fetch_add(bytes as u64, Ordering::Relaxed);
}

/// Calls and bytes so far, of all threads.
pub fn allocations() -> (u64, u64) {
    (
        ALLOCATIONS.load(Ordering::Relaxed),
        ALLOCATED.load(Ordering::Relaxed),
    )
}

/// One request of the set.
#[derive(Clone)]
pub struct Item {
    pub protocol: Protocol,
    pub body: Vec<u8>,
    pub group: &'static str,
}

/// The requests of a file with one `{"protocol", "request"}` a line, gzip-compressed.
pub fn requests(path: &Path) -> Vec<Item> {
    json_lines(path).iter().map(item).collect()
}

/// The values of a file with one a line, gzip-compressed.
pub fn json_lines(path: &Path) -> Vec<Value> {
    let text = unpack(path);
    let lines = text
        .split(|byte| *byte == b'\n')
        .filter(|line| !line.is_empty());
    lines
        .map(|line| serde_json::from_slice(line).expect("a line is JSON"))
        .collect()
}

fn item(line: &Value) -> Item {
    let request = &line["request"];
    let body = serde_json::to_vec(request).expect("it was JSON");
    let group = match body.len() {
        0..4096 => "short chat",
        _ if body.len() > 60_000 => "long",
        _ => "agent",
    };
    let protocol = match line["protocol"].as_str() {
        Some("chat") => Protocol::ChatCompletions,
        Some("responses") => Protocol::Responses,
        Some("messages") => Protocol::Messages,
        other => panic!("protocol {other:?}"),
    };
    Item {
        protocol,
        body,
        group,
    }
}

/// The turns that led to each request: the same body with its history cut after every result and every word of the
/// user. What a server sees when an agent works.
pub fn turns(items: &[Item]) -> Vec<Item> {
    let mut found = Vec::new();
    for item in items {
        let body: Value = serde_json::from_slice(&item.body).expect("it is JSON");
        let key = if item.protocol == Protocol::Responses {
            "input"
        } else {
            "messages"
        };
        let messages = body[key].as_array().expect("a list");
        for end in 1..=messages.len() {
            let answers = |message: &Value| match item.protocol {
                Protocol::Responses => {
                    message["type"] == "function_call_output" || message["role"] == "user"
                }
                _ => message["role"] == "user" || message["role"] == "tool",
            };
            let next_answers = messages.get(end).is_some_and(answers);
            if answers(&messages[end - 1]) && !next_answers {
                let mut cut = body.clone();
                cut[key] = messages[..end].into();
                let body = serde_json::to_vec(&cut).expect("it was JSON");
                found.push(Item {
                    body,
                    ..item.clone()
                });
            }
        }
    }
    found
}

/// The published tokenizer files of V4 and V4.1, as they lie among the tests' data.
pub fn tokenizer_files() -> [Vec<u8>; 2] {
    let data = root().join("tests/data/tokenizer");
    let v4 = unpack(&data.join("deepseek-v4.json.gz"));
    let delta = std::fs::read(data.join("deepseek-v41-delta.json")).expect("the delta exists");
    let delta: Value = serde_json::from_slice(&delta).expect("the delta is JSON");
    let mut file: Value = serde_json::from_slice(&v4).expect("the file is JSON");
    let added = file["added_tokens"].as_array_mut().expect("a list");
    for change in delta["changes"].as_array().expect("a list") {
        let token = added.iter_mut().find(|token| token["id"] == change["id"]);
        let token = token.expect("the id is an added token");
        for key in ["content", "normalized", "special"] {
            token[key] = change[key].clone();
        }
        // Both systems spell the image token as the peer does.
        if token["id"] == 129_264 {
            token["content"] = "<｜image｜>".into();
        }
    }
    let v41 = serde_json::to_vec(&file).expect("it was JSON");
    [v4, v41]
}

/// The root of the repository.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn unpack(path: &Path) -> Vec<u8> {
    let file = std::fs::File::open(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let mut bytes = Vec::new();
    let mut reader = flate2::read::GzDecoder::new(file);
    reader
        .read_to_end(&mut bytes)
        .unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    bytes
}

/// The value below which `part` of the sorted `values` lie.
pub fn percentile(values: &mut [f64], part: f64) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    let at = ((values.len() as f64 * part).ceil() as usize).clamp(1, values.len());
    values[at - 1]
}
