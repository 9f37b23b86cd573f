//! Panics on demand, for the tests that prove they are contained. Only with the feature `fault-injection`;
//! nothing is exported, the wish travels as the key `inject_panic` of `options_json`.

use serde_json::Value;

/// Where to panic: `"capi"`, `"call"`, `"recipe"` or `"parser"`.
pub type Layer = &'static str;

const LAYERS: [Layer; 4] = ["capi", "call", "recipe", "parser"];

/// The layer that `options_json` wishes to panic, and the options without the wish.
pub fn take(options_json: &str) -> (String, Option<Layer>) {
    let Ok(Value::Object(mut options)) = serde_json::from_str(options_json) else {
        return (options_json.to_owned(), None);
    };
    let Some(wish) = options.shift_remove("inject_panic") else {
        return (options_json.to_owned(), None);
    };
    let layer = LAYERS.into_iter().find(|layer| wish == *layer);
    let rest = if options.is_empty() {
        String::new()
    } else {
        Value::Object(options).to_string()
    };
    (rest, layer)
}

/// As [`take`], for the options of a call.
pub fn of_call(mut options: super::Options) -> (super::Options, Option<Layer>) {
    let (rest, layer) = take(&options.options_json);
    options.options_json = rest;
    (options, layer)
}

/// Panics if `wish` is this layer.
pub fn panic_in(layer: Layer, wish: Option<Layer>) {
    assert!(wish != Some(layer), "injected into {layer}");
}
