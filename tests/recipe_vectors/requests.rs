//! Requests of every protocol: the prepared object, or the error.

use std::collections::HashMap;
use std::path::PathBuf;

use fathom::capi::constraint::{
    FATHOM_CONSTRAINT_JSON_OBJECT, FATHOM_CONSTRAINT_JSON_SCHEMA, FATHOM_CONSTRAINT_REGEX,
    FATHOM_CONSTRAINT_STRUCTURAL_TAG,
};
use fathom::capi::recipe::{
    FATHOM_PROTOCOL_CHAT_COMPLETIONS, FATHOM_PROTOCOL_CONVERSATION, FATHOM_PROTOCOL_MESSAGES,
    FATHOM_PROTOCOL_RESPONSES,
};
use fathom::capi::types::{
    FATHOM_ERR_CONTEXT_LENGTH, FATHOM_ERR_INVALID_JSON, FATHOM_ERR_INVALID_REQUEST,
    FATHOM_ERR_INVALID_UTF8, FATHOM_ERR_UNKNOWN_MODEL,
};
use serde_json::{Map, Value, json};

use crate::handles::{Failure, Prepared, Recipe};
use crate::recipe_support::requests::{
    Answer, File, body_and_file, compare_refusal, protocol as rust_protocol, same,
};
use crate::recipe_support::{lines, v4_file, v41_file};

#[test]
fn requests_become_what_the_vectors_say() {
    let mut recipes = Recipes::new();
    let (mut counts, mut failures) = (HashMap::new(), Vec::new());
    for vector in lines("recipe/encode.jsonl.gz") {
        *counts.entry(number(&vector)).or_insert(0) += 1;
        if let Err(difference) = check(&mut recipes, &vector) {
            failures.push(format!("{}: {difference}", vector["id"]));
        }
    }
    assert!(
        failures.is_empty(),
        "{}\n{}",
        failures.len(),
        failures.join("\n")
    );
    let expected = [
        (FATHOM_PROTOCOL_CHAT_COMPLETIONS, 470),
        (FATHOM_PROTOCOL_RESPONSES, 167),
        (FATHOM_PROTOCOL_MESSAGES, 164),
        (FATHOM_PROTOCOL_CONVERSATION, 76),
    ];
    assert_eq!(counts, HashMap::from(expected));
}

fn number(vector: &Value) -> i32 {
    use fathom::recipe::Protocol;
    match rust_protocol(vector) {
        Protocol::ChatCompletions => FATHOM_PROTOCOL_CHAT_COMPLETIONS,
        Protocol::Responses => FATHOM_PROTOCOL_RESPONSES,
        Protocol::Messages => FATHOM_PROTOCOL_MESSAGES,
        Protocol::Conversation => FATHOM_PROTOCOL_CONVERSATION,
    }
}

/// Recipes by tokenizer file, options and context: each opened once, for that reads the file.
struct Recipes {
    folder: tempfile::TempDir,
    opened: HashMap<(PathBuf, String, u32), Recipe>,
}

impl Recipes {
    fn new() -> Self {
        Self {
            folder: tempfile::tempdir().expect("a scratch folder"),
            opened: HashMap::new(),
        }
    }

    fn of(&mut self, file: File, options: &Value, max_context: u32) -> &Recipe {
        let (name, content): (_, fn() -> Vec<u8>) = match file {
            File::V4 => ("v4.json", v4_file),
            File::V41 => ("v41.json", || v41_file("<｜image｜>")),
            File::V41Checkpoint => ("checkpoint.json", || v41_file("<｜deepseek_image｜>")),
        };
        let path = self.folder.path().join(name);
        if !path.exists() {
            std::fs::write(&path, content()).expect("writable");
        }
        let options = options.to_string();
        let key = (path, options, max_context);
        let opened = self.opened.entry(key);
        opened.or_insert_with_key(|(path, options, context)| {
            Recipe::open(Some(path), options, *context)
        })
    }
}

/// Options of the recipe, and those that a request may bring: these come with it, which saves opening a recipe.
fn split_options(vector: &Value) -> (Value, Option<String>) {
    let all = vector["options"].as_object().expect("an object").clone();
    let (of_recipe, of_request): (Map<_, _>, Map<_, _>) = all
        .into_iter()
        .partition(|(key, _)| matches!(key.as_str(), "model_aliases" | "image_token"));
    let of_request = (!of_request.is_empty()).then(|| Value::from(of_request).to_string());
    (of_recipe.into(), of_request)
}

fn check(recipes: &mut Recipes, vector: &Value) -> Result<(), String> {
    let protocol = number(vector);
    let (body, file) = body_and_file(vector);
    let (options, own) = split_options(vector);
    let recipe = recipes.of(file, &options, 0);
    let prepared = match (
        vector.get("error"),
        recipe.prepare(protocol, &body, own.as_deref()),
    ) {
        (None, Ok(prepared)) => prepared,
        (None, Err(failure)) => return Err(format!("refused: {failure:?}")),
        (Some(expected), Ok(_)) => return Err(format!("accepted, not refused with {expected}")),
        (Some(expected), Err(failure)) => return check_failure(expected, protocol, &failure),
    };
    check_prepared(vector, protocol, &body, &prepared)?;

    let Some(context) = vector["context_limit"].as_u64() else {
        return Ok(());
    };
    let context = u32::try_from(context).expect("a context");
    let recipe = recipes.of(file, &options, context);
    let result = &vector["result"];
    match recipe.prepare(protocol, &body, own.as_deref()) {
        Ok(prepared) => same(
            "budget",
            &json!(prepared.info().max_tokens),
            &result["resolved_max_tokens"],
        ),
        Err(failure) => {
            same(
                "budget",
                &json!(failure.message),
                &result["resolved_max_tokens_error"],
            )?;
            same(
                "status",
                &json!(failure.status),
                &json!(FATHOM_ERR_CONTEXT_LENGTH),
            )?;
            same("http", &json!(failure.http), &json!(400))
        }
    }
}

fn check_prepared(
    vector: &Value,
    protocol: i32,
    body: &str,
    prepared: &Prepared,
) -> Result<(), String> {
    let result = &vector["result"];
    let answer = Answer {
        options: prepared.options(),
        prompt: prepared.prompt(),
        tokens: prepared.tokens(),
        special_ranges: prepared.special_ranges(),
        max_tokens: prepared.info().max_tokens,
    };
    answer.compare(result)?;

    let info = prepared.info();
    let request: Value = serde_json::from_str(body).map_err(|error| error.to_string())?;
    // A conversation that names no model has the name of its template.
    let model = request.get("model").or(request.get("encoding"));
    same(
        "info.model",
        &json!(prepared.model()),
        model.unwrap_or(&Value::Null),
    )?;
    same("info.protocol", &json!(info.protocol), &json!(protocol))?;
    same(
        "info.token_count",
        &json!(info.token_count),
        &result["token_count"],
    )?;
    let images = result["images"].as_array().map_or(0, Vec::len);
    same("info.image_count", &json!(info.image_count), &json!(images))?;
    let placed = answer.options["images"].as_array().expect("a list");
    let placed = placed
        .iter()
        .filter(|image| !image["position"].is_null())
        .count();
    same(
        "info.pending_images",
        &json!(info.pending_images),
        &json!(placed),
    )?;
    same("info.reserved0", &json!(info.reserved0), &json!(0))?;
    // Conversations' vectors have no options; those of the description were compared above.
    let inference = result.get("inference_options");
    let inference = inference.unwrap_or(&answer.options["inference_options"]);
    let stream = result.get("stream").unwrap_or(&answer.options["stream"]);
    same("info.stream", &json!(info.stream != 0), stream)?;
    for (key, found) in [("temperature", info.temperature), ("top_p", info.top_p)] {
        let expected = inference[key].as_f64().ok_or("no number")? as f32;
        same(key, &json!(found), &json!(expected))?;
    }
    let kind = constraint_kind(&inference["output_constraint"]);
    same(
        "info.constraint_kind",
        &json!(info.constraint_kind),
        &json!(kind),
    )
}

fn constraint_kind(constraint: &Value) -> i32 {
    match (constraint["kind"].as_str(), constraint["schema"].as_str()) {
        (None, _) => 0,
        (Some("json"), Some("")) => FATHOM_CONSTRAINT_JSON_OBJECT,
        (Some("json"), _) => FATHOM_CONSTRAINT_JSON_SCHEMA,
        (Some("regex"), _) => FATHOM_CONSTRAINT_REGEX,
        (Some(_), _) => FATHOM_CONSTRAINT_STRUCTURAL_TAG,
    }
}

fn check_failure(expected: &Value, protocol: i32, failure: &Failure) -> Result<(), String> {
    let stage = match failure.status {
        FATHOM_ERR_INVALID_UTF8 | FATHOM_ERR_INVALID_JSON => "deserialize",
        FATHOM_ERR_INVALID_REQUEST | FATHOM_ERR_UNKNOWN_MODEL => "convert",
        _ => return Err(format!("{failure:?}")),
    };
    compare_refusal(expected, stage, &failure.message)?;
    same("status", &json!(failure.http), &expected["status"])?;
    let (kind, message) = (&expected["type"], &failure.message);
    let body = if protocol == FATHOM_PROTOCOL_MESSAGES {
        json!({"type": "error", "error": {"type": kind, "message": message}})
    } else {
        json!({"error": {"message": message, "type": kind, "param": null, "code": kind}})
    };
    same("body", &failure.body, &body)?;
    // What is no JSON has no place in it, and a body that is no object none either.
    let is_of_the_body = failure.message.starts_with("invalid JSON request: ")
        || failure
            .message
            .starts_with("invalid request body: expected an object");
    if is_of_the_body != failure.param.is_empty() {
        return Err(format!("{failure:?}"));
    }
    Ok(())
}
