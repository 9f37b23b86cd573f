//! Conversations given directly, rendered for both versions, against the vectors.

mod recipe_support;

use std::sync::OnceLock;

use fathom::recipe::conversation::{
    Conversation, ImageDetail, ImageOrigin, ImageSource, InputMessage, Prompt, ReasoningEffort,
    ResponseFormat, ToolCall, ToolChoice, ToolDefinition,
};
use fathom::recipe::encoding::{Encoding, RenderOptions, render_with};
use fathom::recipe::json::{JsonText, parse};
use fathom::recipe::tokenizer::Tokenizer;
use recipe_support::{ids, lines, v4_file, v41_file};
use serde_json::{Value, json};

#[test]
fn conversations_render_as_the_vectors_say() {
    let mut count = 0;
    for vector in lines("recipe/encode.jsonl.gz") {
        if vector["protocol"] != "conversation" {
            continue;
        }
        count += 1;
        let id = &vector["id"];
        let encoding = Encoding::from_name(vector["encoding"].as_str().expect("an encoding"))
            .expect("a known encoding");
        let conversation = conversation(&vector["request"]);
        let options = RenderOptions::default();
        let rendered = render_with(encoding, &conversation, &options).expect("it renders");
        let result = &vector["result"];
        assert_eq!(rendered.prompt.text, result["prompt"], "{id}");
        let ranges: Vec<Value> = rendered
            .prompt
            .special_ranges
            .iter()
            .map(|range| json!([range.start, range.end]))
            .collect();
        assert_eq!(Value::from(ranges), result["special_ranges"], "{id}");
        let tokens = tokenizer(encoding)
            .encode(&rendered.prompt.text, &rendered.prompt.special_ranges)
            .expect("it encodes");
        assert_eq!(tokens, ids(&result["token_ids"]), "{id}");
        let images: Vec<String> = rendered
            .images
            .iter()
            .map(|image| match &image.source.origin {
                ImageOrigin::Url(url) | ImageOrigin::DataUrl(url) => url.clone(),
                ImageOrigin::Bytes(_) => panic!("vectors hold URLs"),
            })
            .collect();
        let expected: Vec<&str> = list(&result["images"])
            .iter()
            .map(|image| image["url"].as_str().expect("a URL"))
            .collect();
        assert_eq!(images, expected, "{id}");
    }
    assert_eq!(count, 76);
}

fn tokenizer(encoding: Encoding) -> &'static Tokenizer {
    static V4: OnceLock<Tokenizer> = OnceLock::new();
    static V41: OnceLock<Tokenizer> = OnceLock::new();
    let open = |file: Vec<u8>| Tokenizer::from_bytes(&file).expect("the file is valid");
    match encoding {
        Encoding::V4 => V4.get_or_init(|| open(v4_file())),
        Encoding::V41 => V41.get_or_init(|| open(v41_file("<｜image｜>"))),
    }
}

fn conversation(value: &Value) -> Conversation {
    Conversation {
        messages: list(&value["messages"]).iter().map(message).collect(),
        thinking_mode: value["thinking_mode"].as_bool().unwrap_or(true),
        tools: list(&value["tools"]).iter().map(tool).collect(),
        tool_choice: match value["tool_choice"].as_str() {
            Some("none") => ToolChoice::None,
            Some("required") => ToolChoice::Required,
            _ => ToolChoice::Auto,
        },
        reasoning_effort: value["reasoning_effort"]
            .as_str()
            .map(|effort| match effort {
                "low" => ReasoningEffort::Low,
                "high" => ReasoningEffort::High,
                "xhigh" => ReasoningEffort::Xhigh,
                "max" => ReasoningEffort::Max,
                other => panic!("effort {other}"),
            }),
        response_format: match value["response_format"]["type"].as_str() {
            Some("json_object") => ResponseFormat::JsonObject,
            Some("json_schema") => {
                ResponseFormat::JsonSchema(json_text(&value["response_format"]["schema"]))
            }
            Some("regex") => ResponseFormat::Regex(text(&value["response_format"]["regex"])),
            _ => ResponseFormat::Text,
        },
    }
}

fn message(value: &Value) -> InputMessage {
    let image_sources: Vec<ImageSource> = list(&value["image_sources"])
        .iter()
        .map(|image| ImageSource {
            origin: ImageOrigin::Url(text(&image["url"])),
            detail: ImageDetail::High,
            path: String::new(),
        })
        .collect();
    let content = placeholders(text(&value["content"]), image_sources.len());
    match value["role"].as_str() {
        Some("system") => InputMessage::System {
            content,
            image_sources,
            tools: value["tools"]
                .as_array()
                .map(|tools| tools.iter().map(tool).collect()),
        },
        Some("user") => InputMessage::User {
            content,
            image_sources,
        },
        Some("assistant") => InputMessage::Assistant {
            content: content.text,
            reasoning_content: value["reasoning_content"].as_str().map(str::to_owned),
            tool_calls: value["tool_calls"].as_array().map(|calls| {
                let call = |call: &Value| ToolCall {
                    id: text(&call["id"]),
                    name: text(&call["name"]),
                    arguments: text(&call["arguments"]),
                };
                calls.iter().map(call).collect()
            }),
            prefix: value["prefix"].as_bool().unwrap_or(false),
        },
        Some("tool") => InputMessage::Tool {
            content,
            image_sources,
            tool_call_id: value["tool_call_id"].as_str().map(str::to_owned),
        },
        Some("latest_reminder") => InputMessage::LatestReminder {
            content: content.text,
        },
        other => panic!("role {other:?}"),
    }
}

/// The first `count` spellings of the image token are placeholders.
fn placeholders(text: String, count: usize) -> Prompt {
    let special_ranges = text
        .match_indices("<｜image｜>")
        .take(count)
        .map(|(at, found)| at..at + found.len())
        .collect();
    Prompt {
        text,
        special_ranges,
    }
}

fn tool(value: &Value) -> ToolDefinition {
    ToolDefinition {
        name: text(&value["name"]),
        description: value["description"].as_str().map(str::to_owned),
        parameters: json_text(value.get("parameters").unwrap_or(&json!({}))),
        strict: value["strict"].as_bool(),
        defer_loading: value["defer_loading"].as_bool().unwrap_or(false),
    }
}

fn json_text(value: &Value) -> JsonText {
    JsonText::of(&parse(&value.to_string()).expect("it is valid"))
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

#[test]
fn a_tool_result_after_a_user_message_joins_its_turn_when_asked() {
    let conversation = conversation(&json!({"thinking_mode": false, "messages": [
        {"role": "user", "content": "u"}, {"role": "tool", "content": "r", "tool_call_id": "1"}]}));
    let text = |v4_join_tool_after_user| {
        let options = RenderOptions {
            v4_join_tool_after_user,
            ..RenderOptions::default()
        };
        let rendered = render_with(Encoding::V4, &conversation, &options).expect("it renders");
        rendered.prompt.text
    };
    assert!(text(false).contains("u<｜User｜><tool_result>r"));
    assert!(text(true).contains("u\n\n<tool_result>r"));
}
