//! Makes requests out of requests: structural changes drawn from a seeded generator.
//!
//! Most changes keep the shape right, so that conversion and rendering are reached: values move between requests
//! of the same protocol under the same key, items move, settings change. The others break types and text.

use std::collections::{HashMap, HashSet};

use fathom::recipe::Protocol;
use serde_json::{Map, Value, json};

use crate::values;

/// A generator of numbers: SplitMix64.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    pub fn one_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }

    pub fn pick<'t, T>(&mut self, items: &'t [T]) -> &'t T {
        &items[self.below(items.len())]
    }
}

/// What requests of one protocol are made of.
pub struct Pool {
    protocol: Protocol,
    /// Values by the key they stood under; items of an array under the key of the array.
    values: HashMap<String, Vec<Value>>,
    /// Keys of objects, by the key that the object stood under.
    keys: HashMap<String, Vec<String>>,
}

impl Pool {
    pub fn new(protocol: Protocol, seeds: &[Value]) -> Self {
        let mut pool = Self {
            protocol,
            values: HashMap::new(),
            keys: HashMap::new(),
        };
        let mut seen = HashSet::new();
        for seed in seeds {
            pool.collect("", seed, &mut seen);
        }
        pool
    }

    fn collect(&mut self, key: &str, value: &Value, seen: &mut HashSet<String>) {
        /// Larger values would make every request large.
        const LARGEST: usize = 4096;
        let text = value.to_string();
        if text.len() <= LARGEST && seen.insert(format!("{key}\n{text}")) {
            self.values
                .entry(key.to_owned())
                .or_default()
                .push(value.clone());
        }
        match value {
            Value::Object(object) => {
                for (inner, value) in object {
                    let keys = self.keys.entry(key.to_owned()).or_default();
                    if !keys.contains(inner) {
                        keys.push(inner.clone());
                    }
                    self.collect(inner, value, seen);
                }
            }
            Value::Array(items) => items.iter().for_each(|item| self.collect(key, item, seen)),
            _ => {}
        }
    }

    fn value(&self, random: &mut Random, key: &str) -> Option<Value> {
        self.values
            .get(key)
            .map(|values| random.pick(values).clone())
    }

    /// Changes `request`, once or a few times.
    pub fn mutate(&self, random: &mut Random, request: &mut Value) {
        loop {
            match random.below(10) {
                0..3 => values::set(random, self.protocol, request),
                3 => self.regroup(random, request),
                4 => repeat_value(random, request),
                _ => self.change_somewhere(random, request),
            }
            if random.one_in(2) {
                return;
            }
        }
    }

    /// The list that the conversation is in.
    fn list_key(&self) -> &'static str {
        match self.protocol {
            Protocol::Responses => "input",
            _ => "messages",
        }
    }

    fn change_somewhere(&self, random: &mut Random, request: &mut Value) {
        let list = self.list_key();
        let into_list = random.one_in(2) && request.get(list).is_some();
        let (key, node) = if into_list {
            descend(random, list, &mut request[list])
        } else {
            descend(random, "", request)
        };
        match random.below(16) {
            0..5 => {
                if let Some(value) = self.value(random, &key) {
                    *node = value;
                }
            }
            5..11 => self.change_inside(random, &key, node),
            11..14 => values::replace_alike(random, node),
            14 if is_schema_key(&key) => values::add_keyword(random, node),
            _ => *node = values::any(random),
        }
    }

    /// Adds, removes and moves what is in an object or array.
    fn change_inside(&self, random: &mut Random, key: &str, node: &mut Value) {
        match node {
            Value::Object(object) => match random.below(6) {
                0..2 if !object.is_empty() => {
                    let gone = nth_key(random, object);
                    object.shift_remove(&gone);
                }
                2 if !object.is_empty() => {
                    // To the end.
                    let moved = nth_key(random, object);
                    if let Some(value) = object.shift_remove(&moved) {
                        object.insert(moved, value);
                    }
                }
                3 if is_schema_key(key) => values::add_keyword(random, node),
                _ => {
                    let Some(keys) = self.keys.get(key) else {
                        return;
                    };
                    let added = random.pick(keys);
                    if let Some(value) = self.value(random, added) {
                        object.insert(added.clone(), value);
                    }
                }
            },
            Value::Array(items) => {
                if items.is_empty() || random.one_in(4) {
                    let value = match self.values.get(key) {
                        Some(_) if random.one_in(3) => values::block(random, self.protocol),
                        Some(values) => random.pick(values).clone(),
                        None => values::any(random),
                    };
                    // What stands under the key is the array itself or one of its items.
                    let added = match value {
                        Value::Array(inner) if !random.one_in(8) => inner,
                        value => vec![value],
                    };
                    let at = random.below(items.len() + 1);
                    items.splice(at..at, added);
                    return;
                }
                let (from, to) = (random.below(items.len()), random.below(items.len()));
                match random.below(6) {
                    0 => drop(items.remove(from)),
                    1 => items.insert(to, items[from].clone()),
                    2 => items.swap(from, to),
                    3 => {
                        let moved = items.remove(from);
                        items.insert(to, moved);
                    }
                    4 => items.truncate(from),
                    _ => drop(items.drain(..from)),
                }
            }
            _ => values::replace_alike(random, node),
        }
    }

    /// Splits one message in two, or joins two.
    fn regroup(&self, random: &mut Random, request: &mut Value) {
        let list = request.get_mut(self.list_key());
        let Some(messages) = list.and_then(Value::as_array_mut) else {
            return;
        };
        if messages.len() < 2 {
            return;
        }
        let at = random.below(messages.len() - 1);
        if random.one_in(2) {
            let mut next = messages.remove(at + 1);
            let taken = next.get_mut("content").map(Value::take);
            if let (Some(Value::Array(blocks)), Some(Value::Array(more))) =
                (messages[at].get_mut("content"), taken)
            {
                blocks.extend(more);
            }
        } else if let Some(blocks) = messages[at]
            .get_mut("content")
            .and_then(Value::as_array_mut)
            .filter(|blocks| blocks.len() > 1)
        {
            let second = blocks.split_off(1 + random.below(blocks.len() - 1));
            let mut next = messages[at].clone();
            next["content"] = second.into();
            messages.insert(at + 1, next);
        } else {
            messages.swap(at, at + 1);
        }
    }
}

/// A node below `root`, and the key that it stands under.
fn descend<'v>(random: &mut Random, key: &str, root: &'v mut Value) -> (String, &'v mut Value) {
    let (mut key, mut node) = (key.to_owned(), root);
    let stop = 2 + random.below(8);
    loop {
        let current = node;
        let is_leaf = match current {
            Value::Object(object) => object.is_empty(),
            Value::Array(items) => items.is_empty(),
            _ => true,
        };
        if is_leaf || random.one_in(stop) {
            return (key, current);
        }
        match current {
            Value::Object(object) => {
                let at = random.below(object.len());
                let (name, value) = object.iter_mut().nth(at).expect("it is below the length");
                name.clone_into(&mut key);
                node = value;
            }
            Value::Array(items) => {
                let at = random.below(items.len());
                node = &mut items[at];
            }
            leaf => unreachable!("{leaf} has nothing inside"),
        }
    }
}

/// Puts a value of the request in place of another one under the same key: ids and names are used twice.
fn repeat_value(random: &mut Random, request: &mut Value) {
    fn all(value: &Value, found: &mut Vec<(String, Value)>) {
        match value {
            Value::Object(object) => object.iter().for_each(|(key, value)| {
                found.push((key.clone(), value.clone()));
                all(value, found);
            }),
            Value::Array(items) => items.iter().for_each(|item| all(item, found)),
            _ => {}
        }
    }
    let mut found = Vec::new();
    all(request, &mut found);
    let (key, node) = descend(random, "", request);
    found.retain(|(name, _)| *name == key);
    if !found.is_empty() {
        *node = random.pick(&found).1.clone();
    }
}

fn is_schema_key(key: &str) -> bool {
    matches!(
        key,
        "parameters" | "schema" | "input_schema" | "properties" | "items" | "anyOf" | "$defs"
    )
}

fn nth_key(random: &mut Random, object: &Map<String, Value>) -> String {
    let at = random.below(object.len());
    let key = object.keys().nth(at);
    key.expect("it is below the length").clone()
}

/// Changes the text of a body, so that it may not be JSON any more, or not the same.
pub fn mutate_text(random: &mut Random, text: &mut String) {
    let places: Vec<usize> = text.char_indices().map(|(at, _)| at).collect();
    if places.is_empty() {
        return;
    }
    let at = *random.pick(&places);
    match random.below(6) {
        0 => drop(text.remove(at)),
        1 => text.insert(
            at,
            *random.pick(&['"', '\\', ',', '{', '}', '[', ']', '0', '\u{0}', ' ', '-']),
        ),
        2 => text.truncate(at),
        3 => text.push_str(random.pick::<&str>(&[" ", "\n", "x", "{}", "\u{feff}", "\u{a0}"])),
        4 => {
            let numbers: Vec<usize> = text
                .match_indices(|c: char| c.is_ascii_digit())
                .map(|(at, _)| at)
                .collect();
            if !numbers.is_empty() {
                let at = *random.pick(&numbers);
                let number = *random.pick(&values::NUMBERS_AS_TEXT);
                text.replace_range(at..=at, number);
            }
        }
        _ => {
            // A key again, with a value that it does not have.
            let keys: Vec<usize> = text.match_indices("\":").map(|(at, _)| at).collect();
            let ends: Vec<usize> = text.match_indices('}').map(|(at, _)| at).collect();
            if let (false, false) = (keys.is_empty(), ends.is_empty()) {
                let end = *random.pick(&keys);
                let start = text[..end].rfind('"').unwrap_or(0);
                let again = format!(",{}:{}", &text[start..=end], values::any(random));
                text.insert_str(*random.pick(&ends), &again);
            }
        }
    }
}

/// Smaller requests like this one, largest cuts first.
pub fn smaller(request: &Value) -> Vec<Value> {
    fn cuts(value: &Value) -> Vec<Value> {
        let mut found = Vec::new();
        match value {
            Value::Object(object) => {
                for key in object.keys() {
                    let mut cut = object.clone();
                    cut.shift_remove(key);
                    found.push(Value::Object(cut));
                }
                for (key, inner) in object {
                    for smaller in cuts(inner) {
                        let mut cut = object.clone();
                        cut[key] = smaller;
                        found.push(Value::Object(cut));
                    }
                }
            }
            Value::Array(items) => {
                for at in 0..items.len() {
                    let mut cut = items.clone();
                    cut.remove(at);
                    found.push(cut.into());
                }
                for (at, inner) in items.iter().enumerate() {
                    for smaller in cuts(inner) {
                        let mut cut = items.clone();
                        cut[at] = smaller;
                        found.push(cut.into());
                    }
                }
            }
            Value::String(text) if text.chars().count() > 12 => {
                found.push(json!(""));
                let half = text.chars().count() / 2;
                found.push(text.chars().take(half).collect::<String>().into());
                found.push(text.chars().skip(half).collect::<String>().into());
            }
            _ => {}
        }
        found
    }
    cuts(request)
}
