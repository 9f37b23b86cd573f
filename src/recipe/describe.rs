//! A prepared request as JSON: for hosts with a backend of their own, and for tests.

use serde_json::{Map, Value, json};

use super::conversation::{
    Conversation, ImageDetail, ImageOrigin, ImageSource, InputMessage, ReasoningEffort,
    ResponseFormat, ToolChoice, ToolDefinition,
};
use super::json::JsonText;
use super::options::{Echo, InferenceOptions, ParsingOptions, ThinkingStage, Warning};
use super::prepare::Prepared;
use super::stream::Recovery;

/// The object of `prepared_options_json`.
pub(super) fn prepared(prepared: &Prepared) -> Value {
    let images: Vec<Value> = prepared
        .images
        .iter()
        .map(|image| {
            let mut described = source(&image.source);
            described["position"] = image.position.into();
            if let Some(plan) = image.plan {
                described["width"] = plan.width.into();
                described["height"] = plan.height.into();
                described["patch_grid"] = json!(plan.patch_grid());
                described["token_grid"] = json!(plan.token_grid());
                described["token_count"] = plan.token_count().into();
            }
            described
        })
        .collect();
    let warnings: Vec<Value> = prepared.warnings.iter().map(Warning::to_json).collect();
    let mut namespaces = Map::new();
    for tool in &prepared.response.namespace_tool_map {
        namespaces.insert(tool.function.clone(), json!([tool.namespace, tool.local]));
    }
    let mut conversation = conversation(&prepared.conversation);
    if let Some(fim) = &prepared.fim {
        conversation["fim"] = json!({"prefix": fim.prefix, "suffix": fim.suffix});
    }
    json!({
        "encoding": prepared.encoding.name(),
        "stream": prepared.response.stream,
        "conversation": conversation,
        "inference_options": inference(prepared),
        "parsing_options": parsing(&prepared.parsing),
        "namespace_tool_map": namespaces,
        "echo": prepared.response.echo.as_ref().map(echo),
        "images": images,
        "include_usage": prepared.response.include_usage,
        "context_limit": prepared.context_limit,
        "recovery": match prepared.settings.stream.recovery {
            Recovery::Robust => "robust",
            Recovery::Strict => "strict",
        },
        "warnings": warnings,
    })
}

fn conversation(conversation: &Conversation) -> Value {
    json!({
        "messages": conversation.messages.iter().map(message).collect::<Vec<_>>(),
        "thinking_mode": conversation.thinking_mode,
        "tools": tools(&conversation.tools),
        "tool_choice": match conversation.tool_choice {
            ToolChoice::Auto => "auto",
            ToolChoice::None => "none",
            ToolChoice::Required => "required",
        },
        "reasoning_effort": conversation.reasoning_effort.map(effort),
        "response_format": match &conversation.response_format {
            ResponseFormat::Text => json!({"type": "text"}),
            ResponseFormat::JsonObject => json!({"type": "json_object"}),
            ResponseFormat::JsonSchema(schema) => {
                json!({"type": "json_schema", "schema": schema.to_value()})
            },
            ResponseFormat::Regex(pattern) => json!({"type": "regex", "regex": pattern}),
        },
    })
}

fn effort(effort: ReasoningEffort) -> Value {
    match effort {
        ReasoningEffort::Low => "low".into(),
        ReasoningEffort::High => "high".into(),
        ReasoningEffort::Xhigh => "xhigh".into(),
        ReasoningEffort::Max => "max".into(),
        ReasoningEffort::Percent(percent) => percent.into(),
    }
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
            "tool_calls": tool_calls.as_ref().map(|calls| {
                let call = |call: &super::conversation::ToolCall| {
                    json!({"id": call.id, "name": call.name, "arguments": call.arguments})
                };
                calls.iter().map(call).collect::<Vec<_>>()
            }),
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
        InputMessage::LatestReminder { content } => {
            json!({"role": "latest_reminder", "content": content})
        }
    }
}

fn tools(tools: &[ToolDefinition]) -> Value {
    let tool = |tool: &ToolDefinition| {
        json!({
            "name": tool.name,
            "description": tool.description,
            "parameters": tool.parameters.to_value(),
            "strict": tool.strict,
            "defer_loading": tool.defer_loading,
        })
    };
    tools.iter().map(tool).collect()
}

fn sources(images: &[ImageSource]) -> Value {
    images.iter().map(source).collect()
}

fn source(image: &ImageSource) -> Value {
    let detail = match image.detail {
        ImageDetail::Low => "low",
        ImageDetail::High => "high",
        ImageDetail::Original => "original",
        ImageDetail::Auto => "auto",
    };
    let mut described = json!({"kind": null, "detail": detail, "path": image.path});
    match &image.origin {
        ImageOrigin::DataUrl(url) => {
            described["kind"] = "data_url".into();
            described["data_url"] = url.as_str().into();
        }
        ImageOrigin::Url(url) => {
            described["kind"] = "url".into();
            described["url"] = url.as_str().into();
        }
        ImageOrigin::Bytes(bytes) => {
            described["kind"] = "bytes".into();
            described["length"] = bytes.len().into();
        }
    }
    described
}

fn inference(prepared: &Prepared) -> Value {
    let InferenceOptions {
        max_tokens,
        temperature,
        top_p,
        logprobs,
        top_logprobs,
        seed,
        output_constraint,
        choices,
        engine,
    } = &prepared.inference;
    let mut described = json!({
        "max_tokens": max_tokens,
        "temperature": float(*temperature),
        "top_p": float(*top_p),
        "logprobs": logprobs,
        "top_logprobs": top_logprobs,
        "seed": seed,
        "output_constraint": output_constraint.as_ref().map(|constraint| {
            let text = constraint.text(&prepared.conversation);
            json!({"kind": constraint.kind(), "schema": text})
        }),
    });
    if prepared.settings.max_choices > 1 {
        described["n"] = (*choices).into();
    }
    if prepared.settings.engine_params {
        described["presence_penalty"] = engine.presence_penalty.map(float).into();
        described["frequency_penalty"] = engine.frequency_penalty.map(float).into();
        described["top_k"] = engine.top_k.into();
        described["min_p"] = engine.min_p.map(float).into();
        described["logit_bias"] = engine.logit_bias.as_ref().map(JsonText::to_value).into();
    }
    described
}

/// An `f32` as the shortest decimal that reads back as the same `f32`.
fn float(value: f32) -> Value {
    let shortest: Option<f64> = value.to_string().parse().ok();
    shortest.into()
}

/// What a backend may want to know; the rest of it only the response needs.
fn echo(echo: &Echo) -> Value {
    json!({
        "instructions": echo.instructions,
        "max_output_tokens": echo.max_output_tokens,
        "temperature": float(echo.temperature),
        "top_p": float(echo.top_p),
        "top_logprobs": echo.top_logprobs,
        "user": echo.user,
    })
}

fn parsing(parsing: &ParsingOptions) -> Value {
    json!({
        "parse_tool_calls": parsing.parse_tool_calls,
        "starts_in_tool_calls": parsing.starts_in_tool_calls,
        "parse_json_output": parsing.parse_json_output,
        "thinking_initial_stage": parsing.thinking_initial_stage.map(ThinkingStage::name),
        "stop_sequences": parsing.stop_sequences,
    })
}
