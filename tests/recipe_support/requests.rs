//! Requests of every protocol against the vectors: the conversation, the options, the prompt and its ids, or
//! the error.

use std::sync::{Arc, OnceLock};

use fathom::recipe::tokenizer::Tokenizer;
use fathom::recipe::{Error, Prepared, Protocol, Recipe, RecipeOptions, Stage};
use serde_json::{Value, json};

use super::{lines, sha256, sha256_of_ids, v4_file, v41_file};

pub(crate) const V4: &str = "DeepSeek-V4-Pro";
pub(crate) const V41: &str = "DeepSeek-V4.1-Flash";

/// The tokenizer of a model, opened once.
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

/// A tokenizer file; the last one spells the image token as released checkpoints do.
#[derive(Clone, Copy)]
pub(crate) enum File {
    V4,
    V41,
    V41Checkpoint,
}

/// A recipe with these options; a context of 0 is the model's own.
pub(crate) fn recipe(file: File, options: &Value, max_context: u32) -> Recipe {
    let options = RecipeOptions {
        options_json: options.to_string(),
        max_context,
        ..RecipeOptions::default()
    };
    Recipe::with_tokenizer(&options, Some(tokenizer(file))).unwrap_or_else(|e| panic!("{e}"))
}

/// Checks all vectors of a protocol, of which there are `count`.
pub(crate) fn check_all(protocol: &str, count: usize) {
    let (mut found, mut failures) = (0, Vec::new());
    for vector in lines("recipe/encode.jsonl.gz") {
        if vector["protocol"] == protocol {
            found += 1;
            if let Err(difference) = check(&vector) {
                failures.push(format!("{}: {difference}", vector["id"]));
            }
        }
    }
    assert_eq!(found, count);
    assert!(
        failures.is_empty(),
        "{}\n{}",
        failures.len(),
        failures.join("\n")
    );
}

/// The protocol of a vector.
pub(crate) fn protocol(vector: &Value) -> Protocol {
    match vector["protocol"].as_str() {
        Some("chat") => Protocol::ChatCompletions,
        Some("responses") => Protocol::Responses,
        Some("messages") => Protocol::Messages,
        Some("conversation") => Protocol::Conversation,
        other => panic!("protocol {other:?}"),
    }
}

/// The body of a vector, and the tokenizer file of its model.
pub(crate) fn body_and_file(vector: &Value) -> (String, File) {
    let body = match vector.get("request_raw") {
        Some(raw) => raw.as_str().expect("text").to_owned(),
        None => {
            let mut body = vector["request"].clone();
            if let Some(encoding) = vector.get("encoding") {
                body["encoding"] = encoding.clone();
            }
            body.to_string()
        }
    };
    let is_v4 = vector["result"]["encoding"] == "v4" || vector["encoding"] == "v4";
    let file = if vector["options"].get("image_token").is_some() {
        File::V41Checkpoint
    } else if is_v4 {
        File::V4
    } else {
        File::V41
    };
    (body, file)
}

/// Compares one vector with what we make of it.
pub(crate) fn check(vector: &Value) -> Result<(), String> {
    let protocol = protocol(vector);
    let (body, file) = body_and_file(vector);
    let prepared = recipe(file, &vector["options"], 0).prepare(protocol, body.as_bytes(), None);
    let prepared = match (vector.get("error"), prepared) {
        (None, Ok(prepared)) => prepared,
        (None, Err(error)) => return Err(format!("refused: {error:?}")),
        (Some(expected), Ok(_)) => return Err(format!("accepted, not refused with {expected}")),
        (Some(expected), Err(error)) => {
            let stage = match error.stage {
                Stage::Deserialize | Stage::Utf8 => "deserialize",
                Stage::Convert | Stage::Model => "convert",
                other => return Err(format!("{other:?}")),
            };
            same("status", &json!(400), &expected["status"])?;
            same("type", &json!("invalid_request_error"), &expected["type"])?;
            return compare_refusal(expected, stage, &error.message);
        }
    };
    Answer::of(&prepared).compare(&vector["result"])?;
    check_budget(vector, protocol, file, &body)
}

/// What a request became, by whichever interface.
pub(crate) struct Answer {
    /// The object of `options_json`.
    pub(crate) options: Value,
    pub(crate) prompt: String,
    pub(crate) tokens: Vec<u32>,
    pub(crate) special_ranges: Vec<[usize; 2]>,
    pub(crate) max_tokens: u32,
}

impl Answer {
    fn of(prepared: &Prepared) -> Self {
        let ranges = prepared.special_ranges().iter();
        Self {
            options: serde_json::from_str(&prepared.options_json()).expect("an object"),
            prompt: prepared.prompt.text.clone(),
            tokens: prepared.tokens.clone(),
            special_ranges: ranges.map(|range| [range.start, range.end]).collect(),
            max_tokens: prepared.max_tokens,
        }
    }

    /// Compares it with the `result` of a vector.
    pub(crate) fn compare(&self, result: &Value) -> Result<(), String> {
        for key in [
            "encoding",
            "stream",
            "conversation",
            "inference_options",
            "parsing_options",
            "echo",
        ] {
            // Long vectors leave out what is large.
            if let Some(expected) = result.get(key) {
                same(key, &self.options[key], expected)?;
            }
        }
        if let Some(expected) = result.get("namespace_tool_map") {
            same("namespaces", &self.declared_namespaces(), expected)?;
        }
        self.compare_images(&result["images"])?;
        if let Some(prompt) = result.get("prompt") {
            same("prompt", &json!(self.prompt), prompt)?;
            same("token_ids", &json!(self.tokens), &result["token_ids"])?;
        } else {
            same(
                "prompt_bytes",
                &json!(self.prompt.len()),
                &result["prompt_bytes"],
            )?;
            let hash = sha256(self.prompt.as_bytes());
            same("prompt_sha256", &json!(hash), &result["prompt_sha256"])?;
            let hash = sha256_of_ids(&self.tokens);
            same(
                "token_ids_sha256_u32le",
                &json!(hash),
                &result["token_ids_sha256_u32le"],
            )?;
        }
        same(
            "token_count",
            &json!(self.tokens.len()),
            &result["token_count"],
        )?;
        same(
            "special_ranges",
            &json!(self.special_ranges),
            &result["special_ranges"],
        )?;
        // Conversations given directly have none.
        if let Some(expected) = result.get("default_max_tokens_1m") {
            same("max_tokens", &json!(self.max_tokens), expected)?;
        }
        Ok(())
    }

    /// The map of namespaces without the functions that a tool search found, which the vectors leave out.
    fn declared_namespaces(&self) -> Value {
        let mut map = self.options["namespace_tool_map"].clone();
        let tools = self.options["conversation"]["tools"].as_array();
        for tool in tools.into_iter().flatten() {
            if tool["defer_loading"] == true
                && let (Some(map), Some(name)) = (map.as_object_mut(), tool["name"].as_str())
            {
                map.remove(name);
            }
        }
        map
    }

    /// Images as the vector has them, which knows no positions: there the id of an image stands.
    fn compare_images(&self, expected: &Value) -> Result<(), String> {
        const IMAGE: u32 = 129_264;
        let mut images = self.options["images"].clone();
        let mut placed = 0;
        for image in images.as_array_mut().expect("a list") {
            let position = image.as_object_mut().expect("an object").remove("position");
            let Some(position) = position.expect("every image has it").as_u64() else {
                continue;
            };
            let position = usize::try_from(position).expect("a place");
            if self.tokens.get(position) != Some(&IMAGE) {
                return Err("an image is not at its position".to_owned());
            }
            placed += 1;
        }
        let ids = self.tokens.iter().filter(|id| **id == IMAGE).count();
        same("images with a place", &json!(placed), &json!(ids))?;
        same("images", &images, expected)
    }
}

/// Compares the stage and the message of an error with those of a vector, as far as these are normative.
pub(crate) fn compare_refusal(expected: &Value, stage: &str, message: &str) -> Result<(), String> {
    same("stage", &json!(stage), &expected["stage"])?;
    if stage == "deserialize" {
        return Ok(());
    }
    // Texts of the schema validator, of shape errors in schemas and of the peer's serializer are advisory.
    let text = expected["message"].as_str().expect("a text");
    let advisory = |prefix: &str| text.starts_with(prefix) && message.starts_with(prefix);
    let before = |end: &str| text.find(end).map_or(text, |at| &text[..at + end.len()]);
    let is_about_schema = advisory("Invalid tool parameters schema : ")
        || advisory("Invalid json schema: ")
        || (text.contains("in the 'anyOf' keyword") || text.contains("is not of types"))
            && advisory(before("': "));
    let is_about_writing = text.ends_with(" cannot be serialized") && advisory(before("]: "));
    if is_about_schema || is_about_writing {
        return Ok(());
    }
    same("message", &json!(message), &expected["message"])
}

/// Vectors with a context of their own.
fn check_budget(vector: &Value, protocol: Protocol, file: File, body: &str) -> Result<(), String> {
    let Some(limit) = vector["context_limit"].as_u64() else {
        return Ok(());
    };
    let limit = u32::try_from(limit).expect("a context");
    let result = &vector["result"];
    match recipe(file, &vector["options"], limit).prepare(protocol, body.as_bytes(), None) {
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

pub(crate) fn same(what: &str, found: &Value, expected: &Value) -> Result<(), String> {
    if found == expected {
        return Ok(());
    }
    Err(format!("{what}\n  found    {found}\n  expected {expected}"))
}

/// Bodies of a protocol's vectors that are short enough to try many times.
pub(crate) fn short_bodies(protocol: &str) -> Vec<Value> {
    let vectors = lines("recipe/encode.jsonl.gz").into_iter();
    let bodies = vectors
        .filter(|vector| vector["protocol"] == protocol)
        .map(|vector| vector["request"].clone());
    bodies
        .filter(|body| body.is_object() && body.to_string().len() < 4000)
        .collect()
}

/// Replaces the value that the steps lead to.
pub(crate) fn damage(value: &mut Value, steps: &[usize], with: Value) {
    let next = steps.split_first().and_then(|(step, rest)| {
        let child = match value {
            Value::Array(list) if !list.is_empty() => {
                let at = step % list.len();
                list.get_mut(at)
            }
            Value::Object(map) if !map.is_empty() => {
                let at = step % map.len();
                map.values_mut().nth(at)
            }
            _ => None,
        };
        child.map(|child| (child, rest))
    });
    match next {
        Some((child, rest)) => damage(child, rest, with),
        None => *value = with,
    }
}

/// Values that stand where something else is expected.
pub(crate) fn odd_values() -> [Value; 14] {
    [
        json!(null),
        json!(true),
        json!(-1),
        json!(1e300),
        json!(""),
        json!("\u{0}<｜User｜>é"),
        json!([]),
        json!({}),
        json!("data:image/png;base64,%"),
        json!([[]]),
        json!({"": {}}),
        json!("required"),
        json!(18_446_744_073_709_551_615_u64),
        json!({"type": "object", "$ref": "#"}),
    ]
}

/// Whatever a request is, it is answered whole or refused for a fault of its own.
pub(crate) fn check_whole(answer: Result<Prepared, Error>) -> Result<(), String> {
    let prepared = match answer {
        Ok(prepared) => prepared,
        Err(error) => {
            return match error.stage {
                Stage::Internal | Stage::Option | Stage::Tokenizer => Err(format!("{error:?}")),
                _ => Ok(()),
            };
        }
    };
    let mut end = 0;
    for range in prepared.special_ranges() {
        if range.start < end || range.end <= range.start {
            return Err(format!("{range:?} comes after {end}"));
        }
        if prepared.prompt.text.get(range.clone()).is_none() {
            return Err(format!("{range:?} cuts a character"));
        }
        end = range.end;
    }
    let described: Result<Value, _> = serde_json::from_str(&prepared.options_json());
    described.map(|_| ()).map_err(|error| error.to_string())
}
