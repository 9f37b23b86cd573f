//! The shape of a Chat Completions body. Values are not judged here, only their types.

use crate::recipe::conversation::ImageDetail;
use crate::recipe::error::Error;
use crate::recipe::json::Json;
use crate::recipe::request::image;
use crate::recipe::request::read::Node;
use crate::recipe::request::sampling::Sampling;
use crate::recipe::request::thinking::{self, EffortField, Thinking};
use crate::recipe::request::tools::{Choice, Declared};
use crate::recipe::settings::Settings;

/// A whole request.
pub(super) struct Request<'v> {
    pub(super) messages: Vec<Message<'v>>,
    pub(super) sampling: Sampling,
    pub(super) max_completion_tokens: Option<u32>,
    pub(super) stop: Option<Stop<'v>>,
    pub(super) stream: bool,
    /// `stream_options`, if any, with its `include_usage`.
    pub(super) stream_options: Option<bool>,
    pub(super) response_format: Option<Format<'v>>,
    pub(super) tools: Vec<Declared<'v>>,
    pub(super) tool_choice: Choice<'v>,
    pub(super) effort: Option<EffortField>,
    pub(super) thinking: Option<Thinking>,
    pub(super) top_k: Option<u32>,
    pub(super) min_p: Option<f32>,
    pub(super) logit_bias: Option<&'v Json<'v>>,
}

/// A message, by its role.
pub(super) enum Message<'v> {
    System(Content<'v>),
    User(Content<'v>),
    Assistant {
        content: Option<Content<'v>>,
        reasoning: Option<&'v str>,
        calls: Option<Vec<Call<'v>>>,
        prefix: bool,
    },
    Tool {
        content: Content<'v>,
        call_id: &'v str,
    },
    LatestReminder(&'v str),
}

/// Content of a message.
pub(super) enum Content<'v> {
    Text(&'v str),
    Blocks(Vec<Block<'v>>),
}

/// One part of a content.
pub(super) enum Block<'v> {
    Text(&'v str),
    Image {
        url: &'v str,
        detail: ImageDetail,
    },
    File {
        id: Option<&'v str>,
        data: Option<&'v str>,
        name: Option<&'v str>,
    },
}

/// A call that an assistant message made.
pub(super) struct Call<'v> {
    pub(super) id: &'v str,
    pub(super) name: &'v str,
    pub(super) arguments: &'v str,
}

/// `stop`.
pub(super) enum Stop<'v> {
    One(&'v str),
    Many(Vec<&'v str>),
}

/// `response_format`.
pub(super) enum Format<'v> {
    Text,
    JsonObject,
    JsonSchema { schema: &'v Json<'v>, strict: bool },
    Regex(&'v str),
}

/// The model's name, which decides what the rest means.
pub(super) fn model<'v>(body: &Node<'v, '_>) -> Result<&'v str, Error> {
    body.required("model")?.text()
}

/// Reads the body.
pub(super) fn read<'v>(body: &Node<'v, '_>, settings: &Settings) -> Result<Request<'v>, Error> {
    let newer = settings.fixes.newer_inputs;
    // Ignored, but not if it is something else.
    body.maybe("parallel_tool_calls", |node| node.boolean())?;
    let accepts_completion_tokens = settings.accept_max_completion_tokens || newer;
    let engine = settings.engine_params;
    Ok(Request {
        messages: body
            .required("messages")?
            .list(|node| message(node, newer))?,
        sampling: Sampling {
            choices: body.maybe("n", |node| node.integer())?,
            presence_penalty: body.maybe("presence_penalty", |node| node.float())?,
            frequency_penalty: body.maybe("frequency_penalty", |node| node.float())?,
            temperature: body.maybe("temperature", |node| node.float())?,
            top_p: body.maybe("top_p", |node| node.float())?,
            logprobs: body
                .maybe("logprobs", |node| node.boolean())?
                .unwrap_or(false),
            top_logprobs: body.maybe("top_logprobs", |node| node.integer())?,
            max_tokens: body.maybe("max_tokens", |node| node.integer())?,
            seed: body.maybe("seed", |node| node.integer())?,
        },
        max_completion_tokens: if accepts_completion_tokens {
            body.maybe("max_completion_tokens", |node| node.integer())?
        } else {
            None
        },
        stop: body.maybe("stop", stop)?,
        stream: body
            .maybe("stream", |node| node.boolean())?
            .unwrap_or(false),
        stream_options: body.maybe("stream_options", |node| {
            let usage = node.maybe("include_usage", |node| node.boolean())?;
            Ok(usage.unwrap_or(false))
        })?,
        response_format: body.maybe("response_format", format)?,
        tools: body
            .maybe("tools", |node| node.list(tool))?
            .unwrap_or_default(),
        tool_choice: body
            .maybe("tool_choice", |node| choice(node, newer))?
            .unwrap_or(Choice::Auto),
        effort: body.maybe("reasoning_effort", |node| {
            thinking::read_effort(node, settings)
        })?,
        thinking: body.maybe("thinking", thinking::read)?,
        top_k: if engine {
            body.maybe("top_k", |node| node.integer())?
        } else {
            None
        },
        min_p: if engine {
            body.maybe("min_p", |node| node.float())?
        } else {
            None
        },
        logit_bias: if engine {
            body.maybe("logit_bias", |node| node.object().map(|_| node.value()))?
        } else {
            None
        },
    })
}

/// What a role's messages hold.
#[derive(Clone, Copy)]
enum Role {
    System,
    User,
    Assistant,
    Tool,
    LatestReminder,
}

fn message<'v>(node: Node<'v, '_>, newer: bool) -> Result<Message<'v>, Error> {
    const ROLES: [(&str, Role); 6] = [
        ("system", Role::System),
        ("user", Role::User),
        ("assistant", Role::Assistant),
        ("tool", Role::Tool),
        ("latest_reminder", Role::LatestReminder),
        // Accepted only where the host takes newer inputs.
        ("developer", Role::System),
    ];
    let roles = if newer { &ROLES[..] } else { &ROLES[..5] };
    let role = node.required("role")?.choice(roles)?;
    let body = |key| content(node.required(key)?, false);
    if matches!(role, Role::System | Role::User | Role::Assistant) {
        node.maybe("name", |node| node.text())?;
    }
    Ok(match role {
        Role::System => Message::System(body("content")?),
        Role::User => Message::User(body("content")?),
        Role::Assistant => Message::Assistant {
            content: node.maybe("content", |node| content(node, newer))?,
            reasoning: node.maybe("reasoning_content", |node| node.text())?,
            calls: node.maybe("tool_calls", |node| node.list(call))?,
            prefix: node
                .maybe("prefix", |node| node.boolean())?
                .unwrap_or(false),
        },
        Role::Tool => Message::Tool {
            content: body("content")?,
            call_id: node.required("tool_call_id")?.text()?,
        },
        Role::LatestReminder => Message::LatestReminder(node.required("content")?.text()?),
    })
}

/// `refusals` accepts what an assistant declined to do as its text.
fn content<'v>(node: Node<'v, '_>, refusals: bool) -> Result<Content<'v>, Error> {
    match node.value() {
        Json::String(text) => Ok(Content::Text(text)),
        Json::Array(_) => node.list(|node| block(node, refusals)).map(Content::Blocks),
        _ => Err(node.expected("a string or an array of blocks")),
    }
}

fn block<'v>(node: Node<'v, '_>, refusals: bool) -> Result<Block<'v>, Error> {
    #[derive(Clone, Copy)]
    enum Kind {
        Text,
        Image,
        File,
        Refusal,
    }
    const KINDS: [(&str, Kind); 4] = [
        ("text", Kind::Text),
        ("image_url", Kind::Image),
        ("file", Kind::File),
        ("refusal", Kind::Refusal),
    ];
    let kinds = if refusals { &KINDS[..] } else { &KINDS[..3] };
    Ok(match node.required("type")?.choice(kinds)? {
        Kind::Text => Block::Text(node.required("text")?.text()?),
        Kind::Refusal => Block::Text(node.required("refusal")?.text()?),
        Kind::Image => {
            let url = node.required("image_url")?;
            let detail = url.maybe("detail", image::detail)?;
            Block::Image {
                url: url.required("url")?.text()?,
                detail: detail.unwrap_or_default(),
            }
        }
        Kind::File => Block::File {
            id: node.maybe("file_id", |node| node.text())?,
            data: node.maybe("file_data", |node| node.text())?,
            name: node.maybe("filename", |node| node.text())?,
        },
    })
}

fn call<'v>(node: Node<'v, '_>) -> Result<Call<'v>, Error> {
    node.required("type")?.choice(&[("function", ())])?;
    let function = node.required("function")?;
    Ok(Call {
        id: node.required("id")?.text()?,
        name: function.required("name")?.text()?,
        arguments: function.required("arguments")?.text()?,
    })
}

fn tool<'v>(node: Node<'v, '_>) -> Result<Declared<'v>, Error> {
    node.required("type")?.choice(&[("function", ())])?;
    let function = node.required("function")?;
    Ok(Declared {
        name: function.required("name")?.text()?,
        description: function.maybe("description", |node| node.text())?,
        parameters: function.optional("parameters")?.map(|node| node.value()),
        strict: function.maybe("strict", |node| node.boolean())?,
        defer_loading: false,
    })
}

fn choice<'v>(node: Node<'v, '_>, newer: bool) -> Result<Choice<'v>, Error> {
    match node.value() {
        Json::String(name) => match &**name {
            "none" => return Ok(Choice::None),
            "auto" => return Ok(Choice::Auto),
            "required" => return Ok(Choice::Required),
            _ => {}
        },
        Json::Object(_) => {
            let kind = node.required("type")?;
            if newer && kind.value().as_str() == Some("allowed_tools") {
                return allowed(node.required("allowed_tools")?);
            }
            kind.choice(&[("function", ())])?;
            return Ok(Choice::Named(named(&node)?));
        }
        _ => {}
    }
    Err(node.expected("\"none\", \"auto\", \"required\" or a tool"))
}

/// Some of the declared functions.
fn allowed<'v>(node: Node<'v, '_>) -> Result<Choice<'v>, Error> {
    let required = node
        .required("mode")?
        .choice(&[("auto", false), ("required", true)])?;
    let names = node.required("tools")?.list(|tool| {
        tool.required("type")?.choice(&[("function", ())])?;
        named(&tool)
    })?;
    Ok(Choice::Allowed(names, required))
}

fn named<'v>(node: &Node<'v, '_>) -> Result<&'v str, Error> {
    node.required("function")?.required("name")?.text()
}

fn stop<'v>(node: Node<'v, '_>) -> Result<Stop<'v>, Error> {
    match node.value() {
        Json::String(text) => Ok(Stop::One(text)),
        Json::Array(_) => node.list(|node| node.text()).map(Stop::Many),
        _ => Err(node.expected("a string or an array of strings")),
    }
}

fn format<'v>(node: Node<'v, '_>) -> Result<Format<'v>, Error> {
    #[derive(Clone, Copy)]
    enum Kind {
        Text,
        JsonObject,
        JsonSchema,
        Regex,
    }
    let kind = node.required("type")?.choice(&[
        ("text", Kind::Text),
        ("json_object", Kind::JsonObject),
        ("json_schema", Kind::JsonSchema),
        ("regex", Kind::Regex),
    ])?;
    Ok(match kind {
        Kind::Text => Format::Text,
        Kind::JsonObject => Format::JsonObject,
        Kind::Regex => Format::Regex(node.required("regex")?.text()?),
        Kind::JsonSchema => {
            let json_schema = node.required("json_schema")?;
            json_schema.maybe("name", |node| node.text())?;
            Format::JsonSchema {
                schema: json_schema.required("schema")?.value(),
                strict: json_schema
                    .maybe("strict", |node| node.boolean())?
                    .unwrap_or(false),
            }
        }
    })
}
