//! Changes to a body that keep it JSON, so that the search gets past the parser.

use std::sync::OnceLock;

use serde_json::{Map, Value, json};

/// libFuzzer's own mutation of the first bytes of a buffer; the result is their new number.
pub type Mutation = fn(&mut [u8], usize, usize) -> usize;

/// Changes the `size` bytes of a body in a buffer that may be filled up to `max_size`. Two times in three a
/// JSON value is changed, else, or if the body is none, its bytes.
pub fn body(buffer: &mut [u8], size: usize, max_size: usize, seed: u32, bytes: Mutation) -> usize {
    let mut random = Random(u64::from(seed));
    if random.below(3) == 0 {
        return bytes(buffer, size, max_size);
    }
    let Ok(mut value) = serde_json::from_slice::<Value>(&buffer[..size]) else {
        return bytes(buffer, size, max_size);
    };
    for _ in 0..=random.below(3) {
        change(&mut value, &mut random, bytes);
    }
    let text = value.to_string();
    if text.len() > max_size || text.len() > buffer.len() {
        return bytes(buffer, size, max_size);
    }
    buffer[..text.len()].copy_from_slice(text.as_bytes());
    text.len()
}

/// Changes one value somewhere in `root`.
fn change(root: &mut Value, random: &mut Random, bytes: Mutation) {
    let count = count(root);
    let donor = nth(root, &mut random.below(count)).map(|value| value.clone());
    let donor = donor.filter(|value| value.to_string().len() < 1024);
    let Some(target) = nth(root, &mut random.below(count)) else {
        return;
    };
    let new = |random: &mut Random| match (random.below(3), donor.clone()) {
        (0, Some(donor)) => donor,
        (1, _) => json!(word(random)),
        _ => odd(random),
    };
    match (random.below(4), &mut *target) {
        (0, _) => *target = new(random),
        (_, Value::Object(map)) => change_object(map, random, new),
        (_, Value::Array(list)) => change_array(list, random, new),
        (_, Value::String(text)) => change_text(text, random, bytes),
        (1, Value::Number(number)) => {
            *target = match number.as_i64() {
                Some(value) => json!(value.wrapping_add(random.below(5) as i64 - 2)),
                None => json!(number.as_f64().unwrap_or(0.0) * -1.5),
            }
        }
        (2, _) => *target = json!([target.take()]),
        (3, _) => *target = json!({word(random): target.take()}),
        _ => *target = new(random),
    }
}

fn change_object(
    map: &mut Map<String, Value>,
    random: &mut Random,
    new: impl Fn(&mut Random) -> Value,
) {
    let key = map.keys().nth(random.below(map.len().max(1))).cloned();
    match (random.below(3), key) {
        (0, Some(key)) => {
            map.shift_remove(&key);
        }
        (1, Some(key)) => {
            let value = map.shift_remove(&key).unwrap_or_default();
            map.insert(word(random).to_owned(), value);
        }
        _ => {
            map.insert(word(random).to_owned(), new(random));
        }
    }
}

fn change_array(list: &mut Vec<Value>, random: &mut Random, new: impl Fn(&mut Random) -> Value) {
    let at = random.below(list.len().max(1));
    match (random.below(4), list.is_empty()) {
        (0, false) => {
            list.remove(at);
        }
        (1, false) => list.push(list[at].clone()),
        (2, false) => {
            let last = list.len() - 1;
            list.swap(at, last);
        }
        _ => list.insert(at, new(random)),
    }
}

fn change_text(text: &mut String, random: &mut Random, bytes: Mutation) {
    if random.below(2) == 0 {
        let at = text.floor_char_boundary(random.below(text.len() + 1));
        text.insert_str(at, word(random));
        return;
    }
    let mut buffer = text.clone().into_bytes();
    let size = buffer.len();
    buffer.resize(size + 32, 0);
    let size = bytes(&mut buffer, size, size + 32);
    *text = String::from_utf8_lossy(&buffer[..size]).into_owned();
}

/// A value that stands where something else is expected.
fn odd(random: &mut Random) -> Value {
    match random.below(12) {
        0 => Value::Null,
        1 => json!(true),
        2 => json!(false),
        3 => json!(-1),
        4 => json!(0),
        5 => json!(1e300),
        6 => json!(0.5),
        7 => json!(u64::MAX),
        8 => json!(""),
        9 => json!([]),
        10 => json!({}),
        _ => json!({"type": word(random)}),
    }
}

/// A word of the dictionary: a field, a tag, a special token.
fn word(random: &mut Random) -> &'static str {
    static WORDS: OnceLock<Vec<String>> = OnceLock::new();
    let words = WORDS.get_or_init(|| words(include_str!("../requests.dict")));
    &words[random.below(words.len())]
}

/// The entries of a dictionary file that are words: one in quotes a line, its bytes beyond ASCII as `\x..`.
fn words(file: &str) -> Vec<String> {
    let lines = file
        .lines()
        .filter_map(|line| line.strip_prefix('"')?.strip_suffix('"'));
    lines.filter_map(word_of).collect()
}

fn word_of(entry: &str) -> Option<String> {
    let mut parts = entry.split("\\x");
    let mut word = parts.next()?.as_bytes().to_vec();
    for part in parts {
        word.push(u8::from_str_radix(part.get(..2)?, 16).ok()?);
        word.extend(&part.as_bytes()[2..]);
    }
    // Other escapes stand in pieces of JSON, which are for the mutation of bytes.
    String::from_utf8(word)
        .ok()
        .filter(|word| !word.contains('\\'))
}

/// Values of a tree, itself included.
fn count(value: &Value) -> usize {
    1 + match value {
        Value::Array(list) => list.iter().map(count).sum(),
        Value::Object(map) => map.values().map(count).sum(),
        _ => 0,
    }
}

/// The value that is `left` values behind the first, in the order of the text.
fn nth<'v>(value: &'v mut Value, left: &mut usize) -> Option<&'v mut Value> {
    if *left == 0 {
        return Some(value);
    }
    *left -= 1;
    match value {
        Value::Array(list) => list.iter_mut().find_map(|item| nth(item, left)),
        Value::Object(map) => map.values_mut().find_map(|item| nth(item, left)),
        _ => None,
    }
}

/// Splitmix64: the same choices for the same seed.
struct Random(u64);

impl Random {
    /// A number below `end`, which is at least 1.
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % end.max(1) as u64) as usize
    }
}
