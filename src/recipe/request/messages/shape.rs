//! The shape of a Messages body. Values are not judged here, only their types.

use crate::recipe::error::Error;
use crate::recipe::json::Json;
use crate::recipe::request::read::Node;
use crate::recipe::request::sampling::Sampling;
use crate::recipe::request::thinking::{self, EffortField, Thinking};
use crate::recipe::request::tools::{Choice, Declared};
use crate::recipe::settings::Settings;

/// A whole request.
pub(super) struct Request<'v> {
    pub(super) messages: Vec<Message<'v>>,
    pub(super) system: Option<System<'v>>,
    pub(super) sampling: Sampling,
    pub(super) stop_sequences: Vec<&'v str>,
    pub(super) stream: bool,
    pub(super) tools: Vec<Tool<'v>>,
    /// `any` is read as required.
    pub(super) tool_choice: Choice<'v>,
    /// Whether it wants one call at a time.
    pub(super) one_call: bool,
    pub(super) thinking: Option<Thinking>,
    pub(super) effort: Option<EffortField>,
    /// Whether `output_config` asks for a format.
    pub(super) has_format: bool,
    pub(super) top_k: Option<u32>,
}

/// `system`.
pub(super) enum System<'v> {
    Text(&'v str),
    Blocks(Vec<&'v str>),
}

/// A declared tool.
pub(super) enum Tool<'v> {
    Client(Declared<'v>),
    Server {
        kind: &'v str,
        name: Option<&'v str>,
    },
}

/// A message.
pub(super) struct Message<'v> {
    pub(super) role: Role,
    pub(super) content: Content<'v>,
}

/// Who speaks.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    User,
    Assistant,
    System,
}

/// Content of a message.
pub(super) enum Content<'v> {
    Text(&'v str),
    Blocks(Vec<Block<'v>>),
}

/// One block of a content.
pub(super) enum Block<'v> {
    Part(Part<'v>),
    Thinking(&'v str),
    RedactedThinking,
    ToolUse {
        id: &'v str,
        name: &'v str,
        input: &'v Json<'v>,
    },
    ToolResult(ToolResult<'v>),
    ServerToolUse,
    WebSearchToolResult,
    /// The name of the tool.
    ToolAddition(&'v str),
}

/// What a tool answered.
pub(super) struct ToolResult<'v> {
    pub(super) id: &'v str,
    pub(super) content: ResultContent<'v>,
    pub(super) is_error: bool,
}

/// Content of a tool's answer. None at all is an empty list.
pub(super) enum ResultContent<'v> {
    Text(&'v str),
    Parts(Vec<Part<'v>>),
}

/// What becomes text or an image.
pub(super) enum Part<'v> {
    Text(&'v str),
    Image(Image<'v>),
    /// Its media type.
    Document(Option<&'v str>),
    /// The name of a tool. In answers of tools only.
    Reference(&'v str),
}

/// Where an image comes from.
pub(super) enum Image<'v> {
    Base64 {
        media_type: &'static str,
        data: &'v str,
    },
    Url(&'v str),
    File,
}

/// The model's name, which decides what the rest means.
pub(super) fn model<'v>(body: &Node<'v, '_>) -> Result<&'v str, Error> {
    body.required("model")?.text()
}

/// Reads the body.
pub(super) fn read<'v>(body: &Node<'v, '_>, settings: &Settings) -> Result<Request<'v>, Error> {
    let newer = settings.fixes.newer_inputs;
    // Ignored, but not if it is something else.
    body.maybe("metadata", |node| node.maybe("user_id", |id| id.text()))?;
    let (tool_choice, one_call) = body
        .maybe("tool_choice", choice)?
        .unwrap_or((Choice::Auto, false));
    let (effort, has_format) = body
        .maybe("output_config", |node| output_config(&node, settings))?
        .unwrap_or((None, false));
    Ok(Request {
        messages: body
            .required("messages")?
            .list(|node| message(&node, newer))?,
        system: body.maybe("system", |node| system(&node))?,
        sampling: Sampling {
            temperature: body.maybe("temperature", |node| node.float())?,
            top_p: body.maybe("top_p", |node| node.float())?,
            max_tokens: body.maybe("max_tokens", |node| node.integer())?,
            ..Sampling::default()
        },
        stop_sequences: body
            .maybe("stop_sequences", |node| node.list(|text| text.text()))?
            .unwrap_or_default(),
        stream: body
            .maybe("stream", |node| node.boolean())?
            .unwrap_or(false),
        tools: body
            .maybe("tools", |node| node.list(|tool| self::tool(&tool)))?
            .unwrap_or_default(),
        tool_choice,
        one_call,
        thinking: body.maybe("thinking", thinking::read)?,
        effort,
        has_format,
        top_k: if settings.engine_params {
            body.maybe("top_k", |node| node.integer())?
        } else {
            None
        },
    })
}

fn output_config(
    node: &Node<'_, '_>,
    settings: &Settings,
) -> Result<(Option<EffortField>, bool), Error> {
    let effort = node.maybe("effort", |node| thinking::read_effort(node, settings))?;
    Ok((effort, node.optional("format")?.is_some()))
}

fn system<'v>(node: &Node<'v, '_>) -> Result<System<'v>, Error> {
    match node.value() {
        Json::String(text) => Ok(System::Text(text)),
        Json::Array(_) => {
            let text = |block: Node<'v, '_>| {
                block.required("type")?.choice(&[("text", ())])?;
                block.required("text")?.text()
            };
            node.list(text).map(System::Blocks)
        }
        _ => Err(node.expected("a string or an array of text blocks")),
    }
}

fn message<'v>(node: &Node<'v, '_>, newer: bool) -> Result<Message<'v>, Error> {
    let role = node.required("role")?.choice(&[
        ("user", Role::User),
        ("assistant", Role::Assistant),
        ("system", Role::System),
    ])?;
    let content = node.required("content")?;
    let content = match content.value() {
        Json::String(text) => Content::Text(text),
        Json::Array(_) => Content::Blocks(content.list(|node| block(&node, newer))?),
        _ => return Err(content.expected("a string or an array of blocks")),
    };
    Ok(Message { role, content })
}

/// `newer` accepts thinking that only its maker can read.
fn block<'v>(node: &Node<'v, '_>, newer: bool) -> Result<Block<'v>, Error> {
    #[derive(Clone, Copy)]
    enum Kind {
        Text,
        Image,
        Document,
        Thinking,
        ToolUse,
        ToolResult,
        ServerToolUse,
        WebSearchToolResult,
        ToolAddition,
        RedactedThinking,
    }
    const KINDS: [(&str, Kind); 10] = [
        ("text", Kind::Text),
        ("image", Kind::Image),
        ("document", Kind::Document),
        ("thinking", Kind::Thinking),
        ("tool_use", Kind::ToolUse),
        ("tool_result", Kind::ToolResult),
        ("server_tool_use", Kind::ServerToolUse),
        ("web_search_tool_result", Kind::WebSearchToolResult),
        ("tool_addition", Kind::ToolAddition),
        ("redacted_thinking", Kind::RedactedThinking),
    ];
    let kinds = if newer { &KINDS[..] } else { &KINDS[..9] };
    Ok(match node.required("type")?.choice(kinds)? {
        Kind::Text => Block::Part(text(node)?),
        Kind::Image => Block::Part(image(node)?),
        Kind::Document => Block::Part(document(node)?),
        Kind::Thinking => {
            node.maybe("signature", |node| node.text())?;
            Block::Thinking(node.required("thinking")?.text()?)
        }
        Kind::RedactedThinking => Block::RedactedThinking,
        Kind::ToolUse => {
            let (id, name, input) = tool_use(node)?;
            Block::ToolUse { id, name, input }
        }
        Kind::ServerToolUse => {
            tool_use(node)?;
            Block::ServerToolUse
        }
        Kind::ToolResult => Block::ToolResult(tool_result(node)?),
        Kind::WebSearchToolResult => {
            node.required("tool_use_id")?.text()?;
            node.required("content")?;
            Block::WebSearchToolResult
        }
        Kind::ToolAddition => {
            let tool = node.required("tool")?;
            tool.required("type")?.choice(&[("tool_reference", ())])?;
            Block::ToolAddition(tool.required("name")?.text()?)
        }
    })
}

fn text<'v>(node: &Node<'v, '_>) -> Result<Part<'v>, Error> {
    node.required("text")?.text().map(Part::Text)
}

fn image<'v>(node: &Node<'v, '_>) -> Result<Part<'v>, Error> {
    #[derive(Clone, Copy)]
    enum Kind {
        Base64,
        Url,
        File,
    }
    let source = node.required("source")?;
    let kind = source.required("type")?.choice(&[
        ("base64", Kind::Base64),
        ("url", Kind::Url),
        ("file", Kind::File),
    ])?;
    Ok(Part::Image(match kind {
        Kind::Base64 => Image::Base64 {
            media_type: source.required("media_type")?.choice(&[
                ("image/jpeg", "image/jpeg"),
                ("image/jpg", "image/jpeg"),
                ("image/png", "image/png"),
                ("image/gif", "image/gif"),
                ("image/webp", "image/webp"),
            ])?,
            data: source.required("data")?.text()?,
        },
        Kind::Url => Image::Url(source.required("url")?.text()?),
        Kind::File => {
            source.required("file_id")?.text()?;
            Image::File
        }
    }))
}

fn document<'v>(node: &Node<'v, '_>) -> Result<Part<'v>, Error> {
    let source = node.required("source")?;
    let media_type = source.maybe("media_type", |node| node.text())?;
    Ok(Part::Document(media_type))
}

/// Id, name and input of a call.
fn tool_use<'v>(node: &Node<'v, '_>) -> Result<(&'v str, &'v str, &'v Json<'v>), Error> {
    let id = node.required("id")?.text()?;
    let name = node.required("name")?.text()?;
    Ok((id, name, node.required("input")?.value()))
}

fn tool_result<'v>(node: &Node<'v, '_>) -> Result<ToolResult<'v>, Error> {
    let content = node.maybe("content", |content| match content.value() {
        Json::String(text) => Ok(ResultContent::Text(text)),
        Json::Array(_) => content.list(|node| part(&node)).map(ResultContent::Parts),
        _ => Err(content.expected("a string or an array of blocks")),
    })?;
    Ok(ToolResult {
        id: node.required("tool_use_id")?.text()?,
        content: content.unwrap_or(ResultContent::Parts(Vec::new())),
        is_error: node
            .maybe("is_error", |node| node.boolean())?
            .unwrap_or(false),
    })
}

/// A block of a tool's answer.
fn part<'v>(node: &Node<'v, '_>) -> Result<Part<'v>, Error> {
    #[derive(Clone, Copy)]
    enum Kind {
        Text,
        Image,
        Document,
        Reference,
    }
    let kind = node.required("type")?.choice(&[
        ("text", Kind::Text),
        ("image", Kind::Image),
        ("document", Kind::Document),
        ("tool_reference", Kind::Reference),
    ])?;
    match kind {
        Kind::Text => text(node),
        Kind::Image => image(node),
        Kind::Document => document(node),
        Kind::Reference => node.required("tool_name")?.text().map(Part::Reference),
    }
}

/// What has a `type` runs on the server.
fn tool<'v>(node: &Node<'v, '_>) -> Result<Tool<'v>, Error> {
    // A type that is null is a type, and a wrong one.
    if node.object()?.contains_key("type") {
        let kind = node.required("type")?.text()?;
        let name = node.maybe("name", |node| node.text())?;
        return Ok(Tool::Server { kind, name });
    }
    // Unlike other protocols, this one has no tools without a schema.
    const ABSENT: &Json<'static> = &Json::Null;
    let schema = node.optional("input_schema")?;
    Ok(Tool::Client(Declared {
        name: node.required("name")?.text()?,
        description: node.maybe("description", |node| node.text())?,
        parameters: Some(schema.map_or(ABSENT, |node| node.value())),
        strict: None,
        defer_loading: node
            .maybe("defer_loading", |node| node.boolean())?
            .unwrap_or(false),
    }))
}

/// The choice, and whether it wants one call at a time.
fn choice<'v>(node: Node<'v, '_>) -> Result<(Choice<'v>, bool), Error> {
    #[derive(Clone, Copy)]
    enum Kind {
        Auto,
        Any,
        None,
        Tool,
    }
    let kind = node.required("type")?.choice(&[
        ("auto", Kind::Auto),
        ("any", Kind::Any),
        ("none", Kind::None),
        ("tool", Kind::Tool),
    ])?;
    let one_call = node.maybe("disable_parallel_tool_use", |node| node.boolean())?;
    let choice = match kind {
        Kind::Auto => Choice::Auto,
        Kind::Any => Choice::Required,
        Kind::None => Choice::None,
        Kind::Tool => Choice::Named(node.required("name")?.text()?),
    };
    Ok((choice, one_call.unwrap_or(false)))
}
