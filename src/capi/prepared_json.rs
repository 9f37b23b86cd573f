//! What a request was converted to, as the JSON object that `fathom_prepared_options_json` gives: the keys
//! and shapes of the golden requests.

use serde_json::{Map, Value, json};

use crate::call::warnings;
use crate::recipe::conversation::{
    Conversation, ImageDetail, ImageOrigin, ImageSource, InputMessage, ReasoningEffort,
    ResponseFormat, ToolCall, ToolChoice, ToolDefinition,
};
use crate::recipe::encoding::Encoding;
use crate::recipe::{InferenceOptions, ParsingOptions, Prepared, ThinkingStage};

/// Positions of the published models.
const MODEL_CONTEXT: u32 = 1_048_576;
/// Spellings of the image token, in the order of preference.
const IMAGE_SPELLINGS: [&str; 2] = ["<｜deepseek_image｜>", "<｜image｜>"];

/// Settings of the recipe that a prepared request does not carry.
#[derive(Clone, Debug)]
pub(crate) struct Extra {
    context_limit: u32,
    recovery: String,
}

impl Extra {
    pub(crate) fn new(max_context: u32, options_json: &str) -> Self {
        let limit = if max_context == 0 {
            MODEL_CONTEXT
        } else {
            max_context
        };
        Self {
            context_limit: limit,
            recovery: "robust".to_owned(),
        }
        .with_options(options_json)
    }

    /// These settings, changed by the options of one request, which the recipe judges.
    pub(crate) fn with_options(&self, options_json: &str) -> Self {
        let mut changed = self.clone();
        if options_json.contains("recovery")
            && let Ok(Value::Object(options)) = serde_json::from_str(options_json)
            && let Some(Value::String(recovery)) = options.get("recovery")
        {
            changed.recovery = recovery.clone();
        }
        changed
    }
}

/// The whole object.
pub(crate) fn options(prepared: &Prepared, extra: &Extra) -> Value {
    json!({
        "encoding": match prepared.encoding {
            Encoding::V4 => "v4",
            Encoding::V41 => "v4.1",
        },
        "stream": prepared.response.stream,
        "conversation": conversation(&prepared.conversation),
        "inference_options": inference(&prepared.inference),
        "parsing_options": parsing(&prepared.parsing),
        "namespace_tool_map": namespaces(&prepared.response.namespace_tool_map),
        "echo": prepared.response.echo,
        "images": images(prepared),
        "include_usage": prepared.response.include_usage,
        "context_limit": extra.context_limit,
        "recovery": extra.recovery,
        "warnings": warnings(&prepared.warnings),
    })
}

fn conversation(conversation: &Conversation) -> Value {
    json!({
        "messages": conversation.messages.iter().map(message).collect::<Value>(),
        "thinking_mode": conversation.thinking_mode,
        "tools": tools(&conversation.tools),
        "tool_choice": match conversation.tool_choice {
            ToolChoice::Auto => "auto",
            ToolChoice::None => "none",
            ToolChoice::Required => "required",
        },
        "reasoning_effort": match conversation.reasoning_effort {
            None => Value::Null,
            Some(ReasoningEffort::Low) => json!("low"),
            Some(ReasoningEffort::High) => json!("high"),
            Some(ReasoningEffort::Xhigh) => json!("xhigh"),
            Some(ReasoningEffort::Max) => json!("max"),
            Some(ReasoningEffort::Percent(percent)) => json!(percent),
        },
        "response_format": match &conversation.response_format {
            ResponseFormat::Text => json!({"type": "text"}),
            ResponseFormat::JsonObject => json!({"type": "json_object"}),
            ResponseFormat::JsonSchema(schema) => json!({"type": "json_schema", "schema": schema}),
            ResponseFormat::Regex(regex) => json!({"type": "regex", "regex": regex}),
        },
    })
}

fn message(message: &InputMessage) -> Value {
    match message {
        InputMessage::System {
            content,
            image_sources,
            tools: introduced,
        } => json!({
            "role": "system",
            "content": content.text,
            "image_sources": sources(image_sources),
            "tools": introduced.as_deref().map(tools),
        }),
        InputMessage::User {
            content,
            image_sources,
        } => json!({
            "role": "user",
            "content": content.text,
            "image_sources": sources(image_sources),
        }),
        InputMessage::Assistant {
            content,
            reasoning_content,
            tool_calls,
            prefix,
        } => json!({
            "role": "assistant",
            "content": content,
            "reasoning_content": reasoning_content,
            "tool_calls": tool_calls
                .as_ref()
                .map(|calls| calls.iter().map(tool_call).collect::<Value>()),
            "prefix": prefix,
        }),
        InputMessage::Tool {
            content,
            image_sources,
            tool_call_id,
        } => json!({
            "role": "tool",
            "content": content.text,
            "tool_call_id": tool_call_id,
            "image_sources": sources(image_sources),
        }),
        InputMessage::LatestReminder { content } => json!({
            "role": "latest_reminder",
            "content": content,
        }),
    }
}

fn tool_call(call: &ToolCall) -> Value {
    json!({"id": call.id, "name": call.name, "arguments": call.arguments})
}

fn tools(tools: &[ToolDefinition]) -> Value {
    tools
        .iter()
        .map(|tool| {
            json!({
                "name": tool.name,
                "description": tool.description,
                "parameters": tool.parameters,
                "strict": tool.strict,
                "defer_loading": tool.defer_loading,
            })
        })
        .collect()
}

fn sources(sources: &[ImageSource]) -> Value {
    sources.iter().map(source).collect()
}

fn source(source: &ImageSource) -> Value {
    let (kind, key, value) = match &source.origin {
        ImageOrigin::DataUrl(url) => ("data_url", "data_url", json!(url)),
        ImageOrigin::Url(url) => ("url", "url", json!(url)),
        // The bytes themselves are the host's: it handed them over.
        ImageOrigin::Bytes(bytes) => ("bytes", "length", json!(bytes.len())),
    };
    json!({
        "kind": kind,
        "detail": match source.detail {
            ImageDetail::Low => "low",
            ImageDetail::High => "high",
            ImageDetail::Original => "original",
            ImageDetail::Auto => "auto",
        },
        "path": source.path,
        key: value,
    })
}

fn inference(options: &InferenceOptions) -> Value {
    json!({
        "max_tokens": options.max_tokens,
        "temperature": options.temperature,
        "top_p": options.top_p,
        "logprobs": options.logprobs,
        "top_logprobs": options.top_logprobs,
        "seed": options.seed,
        "output_constraint": options.output_constraint,
    })
}

fn parsing(options: &ParsingOptions) -> Value {
    json!({
        "parse_tool_calls": options.parse_tool_calls,
        "starts_in_tool_calls": options.starts_in_tool_calls,
        "parse_json_output": options.parse_json_output,
        "thinking_initial_stage": options.thinking_initial_stage.map(|stage| match stage {
            ThinkingStage::ReasoningStart => "reasoning_start",
            ThinkingStage::ReasoningContinuation => "reasoning_continuation",
            ThinkingStage::ContentContinuation => "content_continuation",
        }),
        "stop_sequences": options.stop_sequences,
    })
}

fn namespaces(map: &[(String, String, String)]) -> Value {
    map.iter()
        .map(|(function, namespace, name)| (function.clone(), json!([namespace, name])))
        .collect::<Map<_, _>>()
        .into()
}

/// Every image with its place in the ids of the prompt.
fn images(prepared: &Prepared) -> Value {
    let placeholder = prepared.tokenizer.as_ref().and_then(|tokenizer| {
        IMAGE_SPELLINGS
            .iter()
            .find_map(|spelling| tokenizer.token_id(spelling))
    });
    let mut places = prepared
        .tokens
        .iter()
        .enumerate()
        .filter(|(_, token)| Some(**token) == placeholder)
        .map(|(place, _)| place);
    let mut list = Vec::new();
    for message in &prepared.conversation.messages {
        let (InputMessage::System { image_sources, .. }
        | InputMessage::User { image_sources, .. }
        | InputMessage::Tool { image_sources, .. }) = message
        else {
            continue;
        };
        for image in image_sources {
            let mut entry = source(image);
            entry["position"] = json!(places.next());
            list.push(entry);
        }
    }
    Value::Array(list)
}
