//! The two systems behind one question: what becomes of this body?

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use deepseek_recipe::anthropic::MessagesRequest;
use deepseek_recipe::openai::{ChatCompletionRequest, ResponsesRequest};
use deepseek_recipe::request::{
    ConversationRequest, ConversionError, ConversionOptions, ModelVersion, ProtocolRequest,
    ReasoningContentBehavior, WebSearchBehavior,
};
use deepseek_recipe_core::multimodal::ImageSource;
use deepseek_recipe_encoding::v4::dsv4::DeepseekV4Encoding;
use deepseek_recipe_encoding::v4::dsv41::DeepseekV41Encoding;
use deepseek_recipe_encoding::{PromptEncoding, PromptTokenizer};
use fathom::recipe::conversation::{ImageDetail, ImageOrigin};
use fathom::recipe::encoding::Encoding;
use fathom::recipe::tokenizer::Tokenizer;
use fathom::recipe::{Error, Prepared, Protocol, Recipe, RecipeOptions, Stage};
use serde_json::{Map, Value, json};

/// Positions of the models' context.
const CONTEXT: u32 = 1 << 20;

/// What a system makes of a body.
pub enum Outcome {
    Accepted(Box<Accepted>),
    Refused(Refusal),
    Panicked(String),
}

pub struct Accepted {
    pub prompt: String,
    pub special_ranges: Vec<std::ops::Range<usize>>,
    /// Everything else that was decided, by name.
    pub facts: Map<String, Value>,
    /// Ids, where they were asked for.
    pub ids: Option<Vec<u32>>,
}

pub struct Refusal {
    pub stage: Refused,
    pub message: String,
    /// Path of the fault; the peer tells none.
    pub param: String,
}

/// Who refuses, as far as a client sees it: status, type and whether the text is fixed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The shape: 400, `invalid_request_error`, free text.
    Shape,
    /// A value: 400, `invalid_request_error`, fixed text.
    Value,
    /// A fault of the system: 500, `internal_error`.
    Internal,
}

/// Options that both have.
#[derive(Clone, Debug, Default)]
pub struct Options(pub Map<String, Value>);

impl Options {
    fn for_peer(&self) -> ConversionOptions {
        let mut options = ConversionOptions::default();
        let web_search = |value: &Value| match value.as_str() {
            Some("reject") => WebSearchBehavior::Reject,
            _ => WebSearchBehavior::Drop,
        };
        let bound = |value: &Value| value.as_u64().and_then(|n| u32::try_from(n).ok());
        for (name, value) in &self.0 {
            match name.as_str() {
                "default_thinking_mode" => options.default_thinking_mode = value == true,
                "reasoning_content_behavior" => {
                    options.reasoning_content_behavior = match value.as_str() {
                        Some("reject") => ReasoningContentBehavior::Reject,
                        _ => ReasoningContentBehavior::FillEmpty,
                    };
                }
                "responses_web_search" => options.responses_web_search = web_search(value),
                "messages_web_search" => options.messages_web_search = web_search(value),
                "thinking_max_tokens_upper_bound" => {
                    options.thinking_max_tokens_upper_bound = bound(value).expect("it fits");
                }
                "non_thinking_max_tokens_upper_bound" => {
                    options.non_thinking_max_tokens_upper_bound = bound(value).expect("it fits");
                }
                other => panic!("no option of both: {other}"),
            }
        }
        options
    }
}

/// The peer, which reads bodies into a JSON value first, as its own bindings do.
pub struct Peer {
    v4: DeepseekV4Encoding,
    v41: DeepseekV41Encoding,
}

impl Peer {
    pub fn new(files: &[Vec<u8>; 2]) -> Self {
        let [v4, v41] = files.each_ref().map(|file| {
            let tokenizer = tokenizers::Tokenizer::from_bytes(file).expect("the file is valid");
            PromptTokenizer::new(&tokenizer)
        });
        Self {
            v4: DeepseekV4Encoding::new().with_tokenizer(v4),
            v41: DeepseekV41Encoding::new().with_tokenizer(v41),
        }
    }

    pub fn prepare(
        &self,
        protocol: Protocol,
        body: &[u8],
        options: &Options,
        with_ids: bool,
    ) -> Outcome {
        match caught(|| self.run(protocol, body, options, with_ids)) {
            Ok(Ok(accepted)) => Outcome::Accepted(Box::new(accepted)),
            Ok(Err(refusal)) => Outcome::Refused(refusal),
            Err(panic) => Outcome::Panicked(panic),
        }
    }

    fn run(
        &self,
        protocol: Protocol,
        body: &[u8],
        options: &Options,
        with_ids: bool,
    ) -> Result<Accepted, Refusal> {
        let options = options.for_peer();
        let request = match protocol {
            Protocol::Responses => read::<ResponsesRequest>(body)?.convert(options),
            Protocol::Messages => read::<MessagesRequest>(body)?.convert(options),
            _ => read::<ChatCompletionRequest>(body)?.convert(options),
        };
        let request = request.map_err(refused_by_peer)?;
        let encoding: &dyn PromptEncoding = match request.model_version {
            ModelVersion::DeepseekV4Pro => &self.v4,
            _ => &self.v41,
        };
        let rendered = encoding.render_conversation(&request.conversation);
        let ids = if with_ids {
            let ids = encoding.encode(&request.conversation);
            Some(
                ids.map_err(|error| refused_by_peer(ConversionError::internal(error.to_string())))?,
            )
        } else {
            None
        };
        let used = ids.as_ref().map_or(0, Vec::len);
        let used = u32::try_from(used).expect("prompts are short");
        let max_tokens = request
            .resolve_max_tokens(used, CONTEXT)
            .map_err(refused_by_peer)?;
        let images = rendered.image_sources.iter().map(peer_image).collect();
        Ok(Accepted {
            prompt: rendered.prompt,
            special_ranges: rendered.special_ranges,
            facts: peer_facts(&request, max_tokens, images),
            ids,
        })
    }
}

fn read<T: serde::de::DeserializeOwned>(body: &[u8]) -> Result<T, Refusal> {
    let shape = |error: serde_json::Error| Refusal {
        stage: Refused::Shape,
        message: error.to_string(),
        param: String::new(),
    };
    let value: Value = serde_json::from_slice(body).map_err(shape)?;
    serde_json::from_value(value).map_err(shape)
}

fn refused_by_peer(error: ConversionError) -> Refusal {
    let status = error.status_code();
    let body = error.into_error_response().error;
    let stage = match (status, body.r#type.as_str(), body.code.as_str()) {
        (400, "invalid_request_error", "invalid_request_error") => Refused::Value,
        (500, "internal_error", "internal_error") => Refused::Internal,
        other => panic!("an error of a kind not known: {other:?}"),
    };
    Refusal {
        stage,
        message: body.message,
        param: String::new(),
    }
}

fn peer_image(source: &ImageSource) -> Value {
    let (kind, origin) = match source {
        ImageSource::DataUrl { data_url, .. } => ("data_url", data_url.as_str()),
        ImageSource::Url { url, .. } => ("url", url.as_str()),
        ImageSource::Bytes { .. } => ("bytes", ""),
    };
    json!([kind, origin, source.detail(), source.path()])
}

fn peer_facts(
    request: &ConversationRequest,
    max_tokens: u32,
    images: Vec<Value>,
) -> Map<String, Value> {
    let inference = &request.inference_options;
    let parsing = &request.parsing_options;
    let response = &request.response_options;
    let constraint = inference.output_constraint.as_ref();
    let mut custom: Vec<&String> = response.custom_tool_names.iter().collect();
    custom.sort();
    let mut namespaced: Vec<(&str, &str, &str)> = response
        .namespace_tool_map
        .iter()
        .flatten()
        .map(|(function, (namespace, local))| (&**function, &**namespace, &**local))
        .collect();
    namespaced.sort_unstable();
    let echo = response.responses_echo.as_ref().map(|echo| {
        json!({
            "instructions": echo.instructions,
            "max_output_tokens": echo.max_output_tokens,
            "temperature": echo.temperature,
            "top_p": echo.top_p,
            "top_logprobs": echo.top_logprobs,
            "user": echo.user,
            "reasoning": text(&echo.reasoning),
            "text": text(&echo.text),
            "tool_choice": text(&echo.tool_choice),
            "tools": text(&echo.tools),
        })
    });
    facts(json!({
        "encoding": match request.model_version {
            ModelVersion::DeepseekV4Pro => "v4",
            _ => "v4.1",
        },
        "thinking_mode": request.conversation.thinking_mode,
        "resolved_max_tokens": max_tokens,
        "max_tokens": inference.max_tokens,
        "temperature": inference.temperature,
        "top_p": inference.top_p,
        "logprobs": inference.logprobs,
        "top_logprobs": inference.top_logprobs,
        "seed": inference.seed,
        "constraint_kind": constraint.map(|constraint| constraint.kind()),
        "constraint": constraint.map(|constraint| constraint.schema()),
        "parse_tool_calls": parsing.parse_tool_calls,
        "starts_in_tool_calls": parsing.starts_in_tool_calls,
        "parse_json_output": parsing.parse_json_output,
        "thinking_initial_stage": format!("{:?}", parsing.thinking_initial_stage),
        "stop_sequences": parsing.stop_sequences,
        "stream": request.stream,
        "include_usage": response.include_usage,
        "custom_tool_names": custom,
        "client_tool_search": response.client_tool_search,
        "namespace_tool_map": namespaced,
        "echo": echo,
        "images": images,
    }))
}

/// The compact text of a value of the peer: in it the order of keys counts.
fn text(value: &impl serde::Serialize) -> String {
    serde_json::to_string(value).unwrap_or_else(|error| format!("not written: {error}"))
}

/// Ourselves.
pub struct Ours {
    plain: Recipe,
    /// With the tokenizers of V4 and V4.1.
    with_ids: [Recipe; 2],
}

impl Ours {
    pub fn new(files: &[Vec<u8>; 2]) -> Self {
        let options = RecipeOptions::default();
        let open = |tokenizer: Option<Arc<Tokenizer>>| {
            Recipe::with_tokenizer(&options, tokenizer).expect("the options are valid")
        };
        Self {
            plain: open(None),
            with_ids: files.each_ref().map(|file| {
                let tokenizer = Tokenizer::from_bytes(file).expect("the file is valid");
                open(Some(Arc::new(tokenizer)))
            }),
        }
    }

    pub fn prepare(
        &self,
        protocol: Protocol,
        body: &[u8],
        options: &Options,
        with_ids: bool,
    ) -> Outcome {
        match caught(|| self.run(protocol, body, options, with_ids)) {
            Ok(Ok(accepted)) => Outcome::Accepted(Box::new(accepted)),
            Ok(Err(error)) => Outcome::Refused(refused_by_us(error)),
            Err(panic) => Outcome::Panicked(panic),
        }
    }

    fn run(
        &self,
        protocol: Protocol,
        body: &[u8],
        options: &Options,
        with_ids: bool,
    ) -> Result<Accepted, Error> {
        let options = (!options.0.is_empty()).then(|| Value::Object(options.0.clone()).to_string());
        let prepare = |recipe: &Recipe| recipe.prepare(protocol, body, options.as_deref());
        let [v4, v41] = &self.with_ids;
        let prepared = match prepare(&self.plain) {
            Ok(plain) if with_ids && plain.encoding == Encoding::V4 => prepare(v4)?,
            Ok(_) if with_ids => prepare(v41)?,
            // The text counts the ids, of which there are as many with either tokenizer.
            Err(error) if with_ids && error.stage == Stage::Budget => prepare(v41)?,
            other => other?,
        };
        Ok(Accepted {
            facts: our_facts(&prepared),
            prompt: prepared.prompt.text,
            special_ranges: prepared.prompt.special_ranges,
            ids: with_ids.then_some(prepared.tokens),
        })
    }
}

fn refused_by_us(error: Error) -> Refusal {
    Refusal {
        stage: match error.stage {
            Stage::Utf8 | Stage::Deserialize => Refused::Shape,
            Stage::Internal => Refused::Internal,
            _ => Refused::Value,
        },
        message: error.message,
        param: error.param,
    }
}

fn our_facts(prepared: &Prepared) -> Map<String, Value> {
    let inference = &prepared.inference;
    let parsing = &prepared.parsing;
    let response = &prepared.response;
    let constraint = inference.output_constraint.as_ref();
    let mut namespaced: Vec<(&str, &str, &str)> = response
        .namespace_tool_map
        .iter()
        .map(|tool| (&*tool.function, &*tool.namespace, &*tool.local))
        .collect();
    namespaced.sort_unstable();
    let images = prepared.images.iter().map(|image| {
        let (kind, origin) = match &image.source.origin {
            ImageOrigin::DataUrl(url) => ("data_url", url.as_str()),
            ImageOrigin::Url(url) => ("url", url.as_str()),
            ImageOrigin::Bytes(_) => ("bytes", ""),
        };
        let detail = match image.source.detail {
            ImageDetail::Low => "low",
            ImageDetail::High => "high",
            ImageDetail::Original => "original",
            ImageDetail::Auto => "auto",
        };
        json!([kind, origin, detail, image.source.path])
    });
    let echo = response.echo.as_ref().map(|echo| {
        json!({
            "instructions": echo.instructions,
            "max_output_tokens": echo.max_output_tokens,
            "temperature": echo.temperature,
            "top_p": echo.top_p,
            "top_logprobs": echo.top_logprobs,
            "user": echo.user,
            "reasoning": echo.reasoning.as_str(),
            "text": echo.text.as_str(),
            "tool_choice": echo.tool_choice.as_str(),
            "tools": echo.tools.as_str(),
        })
    });
    facts(json!({
        "encoding": prepared.encoding.name(),
        "thinking_mode": prepared.conversation.thinking_mode,
        "resolved_max_tokens": prepared.max_tokens,
        "max_tokens": inference.max_tokens,
        "temperature": inference.temperature,
        "top_p": inference.top_p,
        "logprobs": inference.logprobs,
        "top_logprobs": inference.top_logprobs,
        "seed": inference.seed,
        "constraint_kind": constraint.map(|constraint| constraint.kind()),
        "constraint": constraint.map(|constraint| constraint.text(&prepared.conversation)),
        "parse_tool_calls": parsing.parse_tool_calls,
        "starts_in_tool_calls": parsing.starts_in_tool_calls,
        "parse_json_output": parsing.parse_json_output,
        "thinking_initial_stage": format!("{:?}", parsing.thinking_initial_stage),
        "stop_sequences": parsing.stop_sequences,
        "stream": response.stream,
        "include_usage": response.include_usage,
        "custom_tool_names": response.custom_tool_names,
        "client_tool_search": response.client_tool_search,
        "namespace_tool_map": namespaced,
        "echo": echo,
        "images": images.collect::<Vec<_>>(),
    }))
}

fn facts(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(facts) => facts,
        _ => unreachable!("facts are an object"),
    }
}

thread_local! {
    static IN_A_SYSTEM: Cell<bool> = const { Cell::new(false) };
}

/// A panic of either system is an outcome, not a line of output.
pub fn silence_their_panics() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        if !IN_A_SYSTEM.get() {
            usual(info);
        }
    }));
}

/// What `run` returns, or the text of its panic.
fn caught<T>(run: impl FnOnce() -> T) -> Result<T, String> {
    IN_A_SYSTEM.set(true);
    let outcome = catch_unwind(AssertUnwindSafe(run));
    IN_A_SYSTEM.set(false);
    outcome.map_err(|cause| {
        let text = cause.downcast_ref::<&str>().map(|text| (*text).to_owned());
        text.or_else(|| cause.downcast_ref::<String>().cloned())
            .unwrap_or_default()
    })
}
