//! Chat Completions requests, from the body to token ids, against the vectors and beyond them.

mod recipe_support;

use std::sync::{Arc, OnceLock};

use fathom::recipe::tokenizer::Tokenizer;
use fathom::recipe::{Error, Prepared, Protocol, Recipe, RecipeOptions, Stage, resolve_max_tokens};
use recipe_support::{lines, sha256, sha256_of_ids, v4_file, v41_file};
use serde_json::{Value, json};

const V4: &str = "DeepSeek-V4-Pro";
const V41: &str = "DeepSeek-V4.1-Flash";

/// The tokenizer of a model, opened once. `image` is the spelling of the image token.
fn tokenizer(file: File) -> Arc<Tokenizer> {
    static OPENED: [OnceLock<Arc<Tokenizer>>; 3] = [const { OnceLock::new() }; 3];
    let open = || {
        let bytes = match file {
            File::V4 => v4_file(),
            File::V41 => v41_file("<｜image｜>"),
            File::V41Checkpoint => v41_file("<｜deepseek_image｜>"),
        };
        Arc::new(Tokenizer::from_bytes(&bytes).expect("the file is valid"))
    };
    Arc::clone(OPENED[file as usize].get_or_init(open))
}

#[derive(Clone, Copy)]
enum File {
    V4,
    V41,
    V41Checkpoint,
}

fn recipe(file: File, options: &Value, max_context: u32) -> Recipe {
    let options = RecipeOptions {
        options_json: options.to_string(),
        max_context,
        ..RecipeOptions::default()
    };
    Recipe::with_tokenizer(&options, Some(tokenizer(file))).unwrap_or_else(|e| panic!("{e}"))
}

fn prepare(recipe: &Recipe, body: &str) -> Result<Prepared, Error> {
    recipe.prepare(Protocol::ChatCompletions, body.as_bytes(), None)
}

/// Prepares a body with these recipe options and the V4.1 tokenizer.
fn with(options: &Value, body: &Value) -> Result<Prepared, Error> {
    prepare(&recipe(File::V41, options, 0), &body.to_string())
}

/// A V4.1 request of one user message and more fields.
fn body(more: Value) -> Value {
    let mut body = json!({"model": V41, "messages": [{"role": "user", "content": "hi json"}]});
    let more = more.as_object().expect("fields").clone();
    body.as_object_mut().expect("a map").extend(more);
    body
}

#[test]
fn requests_become_what_the_vectors_say() {
    let (mut count, mut failures) = (0, Vec::new());
    for vector in lines("recipe/encode.jsonl.gz") {
        if vector["protocol"] == "chat" {
            count += 1;
            if let Err(difference) = check(&vector) {
                failures.push(format!("{}: {difference}", vector["id"]));
            }
        }
    }
    assert_eq!(count, 470);
    assert!(
        failures.is_empty(),
        "{}\n{}",
        failures.len(),
        failures.join("\n")
    );
}

/// Compares one vector with what we make of it.
fn check(vector: &Value) -> Result<(), String> {
    let body = match vector.get("request_raw") {
        Some(raw) => raw.as_str().expect("text").to_owned(),
        None => vector["request"].to_string(),
    };
    let is_v4 = vector["result"]["encoding"] == "v4";
    let file = if vector["options"].get("image_token").is_some() {
        File::V41Checkpoint
    } else if is_v4 {
        File::V4
    } else {
        File::V41
    };
    let result = &vector["result"];
    let prepared = prepare(&recipe(file, &vector["options"], 0), &body);
    let prepared = match (vector.get("error"), prepared) {
        (None, Ok(prepared)) => prepared,
        (None, Err(error)) => return Err(format!("refused: {error:?}")),
        (Some(expected), Ok(_)) => return Err(format!("accepted, not refused with {expected}")),
        (Some(expected), Err(error)) => return check_error(expected, &error),
    };
    let options: Value = serde_json::from_str(&prepared.options_json()).expect("an object");
    for key in [
        "encoding",
        "stream",
        "conversation",
        "inference_options",
        "parsing_options",
    ] {
        // Long vectors leave out what is large.
        if let Some(expected) = result.get(key) {
            same(key, &options[key], expected)?;
        }
    }
    let mut images = options["images"].clone();
    for (image, placed) in images
        .as_array_mut()
        .expect("a list")
        .iter_mut()
        .zip(&prepared.images)
    {
        let position = image.as_object_mut().expect("an object").remove("position");
        same(
            "position",
            &position.expect("every image has it"),
            &json!(placed.position),
        )?;
        if prepared
            .tokens
            .get(placed.position.ok_or("an image has no place")?)
            != Some(&129_264)
        {
            return Err("an image is not at its position".to_owned());
        }
    }
    same("images", &images, &result["images"])?;
    if let Some(prompt) = result.get("prompt") {
        same("prompt", &json!(prepared.prompt.text), prompt)?;
        same("token_ids", &json!(prepared.tokens), &result["token_ids"])?;
    } else {
        same(
            "prompt_bytes",
            &json!(prepared.prompt.text.len()),
            &result["prompt_bytes"],
        )?;
        let hash = sha256(prepared.prompt.text.as_bytes());
        same("prompt_sha256", &json!(hash), &result["prompt_sha256"])?;
        let hash = sha256_of_ids(&prepared.tokens);
        same(
            "token_ids_sha256_u32le",
            &json!(hash),
            &result["token_ids_sha256_u32le"],
        )?;
    }
    same(
        "token_count",
        &json!(prepared.tokens.len()),
        &result["token_count"],
    )?;
    let ranges: Vec<[usize; 2]> = prepared
        .special_ranges()
        .iter()
        .map(|range| [range.start, range.end])
        .collect();
    same("special_ranges", &json!(ranges), &result["special_ranges"])?;
    same(
        "max_tokens",
        &json!(prepared.max_tokens),
        &result["default_max_tokens_1m"],
    )?;
    check_budget(vector, file, &body)
}

fn check_error(expected: &Value, error: &Error) -> Result<(), String> {
    let stage = match error.stage {
        Stage::Deserialize | Stage::Utf8 => "deserialize",
        Stage::Convert | Stage::Model => "convert",
        other => return Err(format!("{other:?}")),
    };
    same("stage", &json!(stage), &expected["stage"])?;
    same("status", &json!(400), &expected["status"])?;
    same("type", &json!("invalid_request_error"), &expected["type"])?;
    if stage == "deserialize" {
        return Ok(());
    }
    // Texts of the schema validator and of shape errors in schemas are advisory.
    let text = expected["message"].as_str().expect("a text");
    let advisory = |prefix: &str| text.starts_with(prefix) && error.message.starts_with(prefix);
    let is_about_schema = advisory("Invalid tool parameters schema : ")
        || advisory("Invalid json schema: ")
        || (text.contains("in the 'anyOf' keyword") || text.contains("is not of types"))
            && advisory("Invalid schema for function 'f': ");
    if is_about_schema {
        return Ok(());
    }
    same("message", &json!(error.message), &expected["message"])
}

/// Vectors with a context of their own.
fn check_budget(vector: &Value, file: File, body: &str) -> Result<(), String> {
    let Some(limit) = vector["context_limit"].as_u64() else {
        return Ok(());
    };
    let limit = u32::try_from(limit).expect("a context");
    let result = &vector["result"];
    match prepare(&recipe(file, &vector["options"], limit), body) {
        Ok(prepared) => same(
            "budget",
            &json!(prepared.max_tokens),
            &result["resolved_max_tokens"],
        ),
        Err(error) if error.stage == Stage::Budget => same(
            "budget",
            &json!(error.message),
            &result["resolved_max_tokens_error"],
        ),
        Err(error) => Err(format!("refused: {error:?}")),
    }
}

fn same(what: &str, found: &Value, expected: &Value) -> Result<(), String> {
    if found == expected {
        return Ok(());
    }
    Err(format!("{what}\n  found    {found}\n  expected {expected}"))
}

#[test]
fn output_budgets_are_those_of_the_vectors() {
    use fathom::recipe::conversation::ReasoningEffort;
    let vectors = lines("recipe/max_tokens.jsonl.gz");
    assert_eq!(vectors.len(), 600);
    for vector in vectors {
        let number = |key: &str| {
            vector[key]
                .as_u64()
                .map(|n| u32::try_from(n).expect("it fits"))
        };
        let effort = match vector["effort"].as_str() {
            None => None,
            Some("low") => Some(ReasoningEffort::Low),
            Some("high") => Some(ReasoningEffort::High),
            Some("xhigh") => Some(ReasoningEffort::Xhigh),
            Some("max") => Some(ReasoningEffort::Max),
            Some(other) => panic!("effort {other}"),
        };
        let found = resolve_max_tokens(
            vector["thinking"].as_bool().expect("a mode"),
            effort,
            number("requested"),
            number("prompt_tokens").expect("a count"),
            number("context_limit").expect("a limit"),
        );
        match found {
            Ok(max_tokens) => assert_eq!(Some(max_tokens), number("max_tokens"), "{vector}"),
            Err(error) => assert_eq!(error.message, vector["error"], "{vector}"),
        }
    }
}
