//! The Responses protocol: its events, its items and its response object.

mod client;
mod failures;
mod golden;
mod items;
mod splits;

use std::sync::OnceLock;

use fathom::recipe::stream::{Finish, Output, Parser, ParserOptions, Recovery};
use fathom::recipe::{Prepared, Protocol, Recipe, RecipeOptions};
use serde_json::{Value, json};

use crate::support::{dsml, text_chunk};
use client::{Client, events};

/// What a request is prepared to, without a tokenizer.
fn prepared(request: &Value) -> Prepared {
    static RECIPE: OnceLock<Recipe> = OnceLock::new();
    let recipe = RECIPE
        .get_or_init(|| Recipe::with_tokenizer(&RecipeOptions::default(), None).expect("defaults"));
    recipe
        .prepare(Protocol::Responses, request.to_string().as_bytes(), None)
        .unwrap_or_else(|error| panic!("{request}: {error}"))
}

/// A request without thinking, with these members besides.
fn request(more: &Value) -> Value {
    let mut request = json!({
        "model": "DeepSeek-V4.1-Flash",
        "stream": true,
        "input": "hi",
        "reasoning": {"effort": "none"},
    });
    for (name, value) in more.as_object().expect("members") {
        request[name] = value.clone();
    }
    request
}

/// Options of the answer to [`request`].
fn options(more: &Value) -> ParserOptions {
    let mut options = ParserOptions::of(&prepared(&request(more)));
    options.stream.id_seed = Some(3);
    options
}

fn strict(mut options: ParserOptions) -> ParserOptions {
    options.stream.recovery = Recovery::Strict;
    options
}

/// Reads `text` (with `D:` for the marker) whole and by character; the client must see the same.
#[track_caller]
fn read(options: &ParserOptions, text: &str, finish: Finish) -> Client {
    let text = dsml(text);
    let run = |pieces: &[&str]| {
        let mut parser = Parser::with(options.clone(), None).unwrap();
        let mut out = Output::default();
        for piece in pieces {
            parser.push(&text_chunk(piece), &mut out).unwrap();
        }
        parser.finish(finish, None, &mut out).unwrap();
        let client = Client::of(&events(&out));
        let response: Value = serde_json::from_str(&parser.response().unwrap()).unwrap();
        assert_eq!(
            response, client.response,
            "the complete response is the last event's"
        );
        client
    };
    let whole = run(&[&text]);
    let chars: Vec<String> = text.chars().map(String::from).collect();
    let chars: Vec<&str> = chars.iter().map(String::as_str).collect();
    assert_eq!(run(&chars).seen, whole.seen, "by character");
    whole
}

/// A block of these calls: a name, then parameters that are strings.
fn calls(calls: &[(&str, &[(&str, &str)])]) -> String {
    let mut text = String::from("\n\n<D: calls>\n");
    for (name, parameters) in calls {
        text += &format!("<D: invoke name=\"{name}\">\n");
        for (key, value) in *parameters {
            text +=
                &format!("<D: parameter name=\"{key}\" string=\"true\">{value}</D: parameter>\n");
        }
        text += "</D: invoke>\n";
    }
    text + "</D: calls>"
}

/// A function without parameters.
fn function(name: &str) -> Value {
    json!({"type": "function", "name": name, "parameters": {"type": "object", "properties": {}}})
}
