//! Events as the vectors compare them: neighbouring deltas joined, empty ones gone, random ids hidden.

use serde_json::{Value, json};

pub(crate) fn hide_ids(value: &mut Value) {
    match value {
        Value::Object(map) => {
            if let Some(Value::String(id)) = map.get_mut("id")
                && id.starts_with("call_")
                && !id.ends_with('*')
            {
                assert!(id.len() >= 32, "{id}");
                id.truncate(id.len() - 24);
                id.push('*');
            }
            map.values_mut().for_each(hide_ids);
        }
        Value::Array(list) => list.iter_mut().for_each(hide_ids),
        _ => {}
    }
}

/// The key under which neighbours join: the one text of a delta.
pub(crate) fn joint(event: &Value) -> Option<(String, String)> {
    let choice = event["choices"].get(0)?;
    if !choice["finish_reason"].is_null() {
        return None;
    }
    let delta = choice["delta"].as_object()?;
    let texts: Vec<_> = delta.iter().filter(|(_, value)| !value.is_null()).collect();
    let [(key, value)] = texts.as_slice() else {
        return None;
    };
    if *key == "tool_calls" {
        let call = &value[0];
        let arguments = call
            .get("id")
            .is_none()
            .then(|| call["function"]["arguments"].as_str())??;
        return Some((format!("call {}", call["index"]), arguments.into()));
    }
    Some(((*key).clone(), value.as_str()?.into()))
}

pub(crate) fn join(event: &mut Value, key: &str, text: &str, next: &Value) {
    let choice = &mut event["choices"][0];
    if key.starts_with("call") {
        let arguments = &mut choice["delta"]["tool_calls"][0]["function"]["arguments"];
        *arguments = json!(arguments.as_str().unwrap().to_owned() + text);
    } else {
        let old = &mut choice["delta"][key];
        *old = json!(old.as_str().unwrap().to_owned() + text);
    }
    let more = &next["choices"][0]["logprobs"];
    let Some(more) = more.as_object() else { return };
    if choice["logprobs"].is_null() {
        choice["logprobs"] = json!({});
    }
    for (name, list) in more {
        let all = &mut choice["logprobs"][name];
        let mut joined = all.as_array().cloned().unwrap_or_default();
        joined.extend(list.as_array().unwrap().iter().cloned());
        *all = json!(joined);
    }
}

/// Neighbouring deltas of one kind become one; empty deltas go.
pub(crate) fn merged(events: impl IntoIterator<Item = Value>) -> Vec<Value> {
    let mut all: Vec<Value> = Vec::new();
    for mut event in events {
        hide_ids(&mut event);
        if let Some((key, text)) = joint(&event) {
            if text.is_empty() {
                continue;
            }
            if let Some(last) = all.last_mut()
                && joint(last).is_some_and(|(last_key, _)| last_key == key)
            {
                join(last, &key, &text, &event);
                continue;
            }
        }
        all.push(event);
    }
    all
}

pub(crate) fn without(mut events: Vec<Value>, usage: bool, logprobs: bool) -> Vec<Value> {
    for event in &mut events {
        if usage {
            event.as_object_mut().unwrap().remove("usage");
        }
        if logprobs {
            for choice in event["choices"].as_array_mut().unwrap() {
                choice["logprobs"] = Value::Null;
            }
        }
    }
    events
}
