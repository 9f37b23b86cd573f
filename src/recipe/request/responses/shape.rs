//! The shape of a Responses body. Values are not judged here, only their types.

use super::tools::{self, Tool};
use crate::recipe::conversation::ImageDetail;
use crate::recipe::error::Error;
use crate::recipe::json::Json;
use crate::recipe::request::image;
use crate::recipe::request::read::Node;
use crate::recipe::request::thinking::{self, EffortField};
use crate::recipe::request::tools::Choice;
use crate::recipe::settings::Settings;

/// A whole request.
pub(super) struct Request<'v> {
    pub(super) input: Option<Input<'v>>,
    pub(super) instructions: Option<&'v str>,
    pub(super) max_output_tokens: Option<u32>,
    pub(super) temperature: Option<f32>,
    pub(super) top_p: Option<f32>,
    pub(super) top_logprobs: Option<u8>,
    pub(super) reasoning: Reasoning<'v>,
    pub(super) text: Text<'v>,
    pub(super) tools: Vec<Tool<'v>>,
    pub(super) tool_choice: Option<ToolChoice<'v>>,
    pub(super) stream: bool,
    pub(super) user: Option<&'v str>,
}

/// `input`.
pub(super) enum Input<'v> {
    Text(&'v str),
    Items(Vec<Item<'v>>),
}

/// One item, by its type.
pub(super) enum Item<'v> {
    Message {
        role: Role,
        content: Content<'v>,
    },
    /// The texts of the reasoning; one that is only encrypted has none.
    Reasoning {
        texts: Vec<&'v str>,
        encrypted: bool,
    },
    Call {
        id: &'v str,
        name: &'v str,
        namespace: Option<&'v str>,
        arguments: Arguments<'v>,
    },
    /// What a function or a custom tool answered.
    Output {
        id: Option<&'v str>,
        content: Content<'v>,
    },
    SearchCall {
        id: &'v str,
        arguments: &'v Json<'v>,
    },
    SearchOutput {
        id: &'v str,
        tools: Vec<Tool<'v>>,
    },
    WebSearchCall,
    /// Stands for an item of an earlier response.
    Reference,
    /// Of a type that we do not know.
    Ignored(&'v str),
}

/// Who speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    User,
    Assistant,
    System,
    Developer,
}

/// What a tool is called with.
pub(super) enum Arguments<'v> {
    /// JSON text.
    Json(&'v str),
    /// The free text of a custom tool.
    Input(&'v str),
}

/// Content of a message or an output.
pub(super) enum Content<'v> {
    Text(&'v str),
    Blocks(Vec<Block<'v>>),
}

/// One part of a content.
pub(super) enum Block<'v> {
    Input(&'v str),
    Output(&'v str),
    Image {
        url: Option<&'v str>,
        file_id: Option<&'v str>,
        detail: ImageDetail,
    },
    File,
}

/// `reasoning`.
#[derive(Default)]
pub(super) struct Reasoning<'v> {
    pub(super) effort: Option<EffortField>,
    /// The effort as it was given.
    pub(super) given_effort: Option<&'v Json<'v>>,
    pub(super) summary: Option<&'static str>,
    pub(super) generate_summary: Option<&'static str>,
}

/// `text`.
#[derive(Default)]
pub(super) struct Text<'v> {
    pub(super) format: Format<'v>,
    pub(super) verbosity: Option<&'static str>,
}

/// `text.format`.
#[derive(Clone, Copy, Default)]
pub(super) enum Format<'v> {
    #[default]
    Text,
    JsonObject,
    JsonSchema {
        name: &'v str,
        description: Option<&'v str>,
        schema: &'v Json<'v>,
        strict: Option<bool>,
    },
}

/// `tool_choice`, as it was given and as it is meant.
pub(super) struct ToolChoice<'v> {
    pub(super) given: &'v Json<'v>,
    pub(super) meant: Meant<'v>,
}

/// What a tool choice asks for.
pub(super) enum Meant<'v> {
    Functions(Choice<'v>),
    WebSearch,
}

/// The model's name, which decides what the rest means.
pub(super) fn model<'v>(body: &Node<'v, '_>) -> Result<&'v str, Error> {
    body.required("model")?.text()
}

/// Reads the body.
pub(super) fn read<'v>(body: &Node<'v, '_>, settings: &Settings) -> Result<Request<'v>, Error> {
    let newer = settings.fixes.newer_inputs;
    Ok(Request {
        input: body.maybe("input", |node| input(node, newer))?,
        instructions: body.maybe("instructions", |node| node.text())?,
        max_output_tokens: body.maybe("max_output_tokens", |node| node.integer())?,
        temperature: body.maybe("temperature", |node| node.float())?,
        top_p: body.maybe("top_p", |node| node.float())?,
        top_logprobs: body.maybe("top_logprobs", |node| node.integer())?,
        reasoning: body
            .maybe("reasoning", |node| reasoning(node, settings))?
            .unwrap_or_default(),
        text: body.maybe("text", text)?.unwrap_or_default(),
        tools: body
            .maybe("tools", |node| node.list(tools::read))?
            .unwrap_or_default(),
        tool_choice: body.maybe("tool_choice", |node| choice(node, newer))?,
        stream: body
            .maybe("stream", |node| node.boolean())?
            .unwrap_or(false),
        user: body.maybe("user", |node| node.text())?,
    })
}

fn input<'v>(node: Node<'v, '_>, newer: bool) -> Result<Input<'v>, Error> {
    match node.value() {
        Json::String(text) => Ok(Input::Text(text)),
        Json::Array(_) => node.list(|node| item(node, newer)).map(Input::Items),
        _ => Err(node.expected("a string or an array of items")),
    }
}

fn item<'v>(node: Node<'v, '_>, newer: bool) -> Result<Item<'v>, Error> {
    // A type that is null is a type, and a wrong one.
    if !node.object()?.contains_key("type") {
        if !node.object()?.contains_key("role") {
            return Err(node.wrong("an item needs a field \"type\" or \"role\""));
        }
        return message(&node, newer);
    }
    let call_id = || node.required("call_id")?.text();
    Ok(match node.required("type")?.text()? {
        "message" => return message(&node, newer),
        "reasoning" => Item::Reasoning {
            texts: node
                .maybe("content", |node| {
                    node.list(|part| part.required("text")?.text())
                })?
                .unwrap_or_default(),
            encrypted: node
                .maybe("encrypted_content", |node| node.text())?
                .is_some(),
        },
        "function_call" => Item::Call {
            id: call_id()?,
            name: node.required("name")?.text()?,
            namespace: node.maybe("namespace", |node| node.text())?,
            arguments: Arguments::Json(node.required("arguments")?.text()?),
        },
        "custom_tool_call" => Item::Call {
            id: call_id()?,
            name: node.required("name")?.text()?,
            namespace: None,
            arguments: Arguments::Input(node.required("input")?.text()?),
        },
        "function_call_output" => Item::Output {
            id: node.maybe("call_id", |node| node.text())?,
            content: content(node.required("output")?, Blocks::Output)?,
        },
        "custom_tool_call_output" => Item::Output {
            id: Some(call_id()?),
            content: node
                .maybe("output", |node| content(node, Blocks::Output))?
                .unwrap_or(Content::Text("")),
        },
        "tool_search_call" => {
            node.maybe("execution", tools::execution)?;
            let arguments = node.required("arguments")?;
            arguments.object()?;
            Item::SearchCall {
                id: call_id()?,
                arguments: arguments.value(),
            }
        }
        "tool_search_output" => {
            node.maybe("execution", tools::execution)?;
            Item::SearchOutput {
                id: call_id()?,
                tools: node.required("tools")?.list(tools::read)?,
            }
        }
        "web_search_call" => Item::WebSearchCall,
        "item_reference" => Item::Reference,
        other => Item::Ignored(other),
    })
}

fn message<'v>(node: &Node<'v, '_>, newer: bool) -> Result<Item<'v>, Error> {
    let role = node.required("role")?.choice(&[
        ("user", Role::User),
        ("assistant", Role::Assistant),
        ("system", Role::System),
        ("developer", Role::Developer),
    ])?;
    let blocks = if newer && role == Role::Assistant {
        Blocks::Assistant
    } else {
        Blocks::Message
    };
    Ok(Item::Message {
        role,
        content: content(node.required("content")?, blocks)?,
    })
}

/// Whose blocks they are, which says what may be among them.
#[derive(Clone, Copy)]
enum Blocks {
    Output,
    Message,
    /// Also what an assistant declined to do, as its text.
    Assistant,
}

fn content<'v>(node: Node<'v, '_>, blocks: Blocks) -> Result<Content<'v>, Error> {
    match node.value() {
        Json::String(text) => Ok(Content::Text(text)),
        Json::Array(_) => node.list(|node| block(node, blocks)).map(Content::Blocks),
        _ => Err(node.expected("a string or an array of blocks")),
    }
}

fn block<'v>(node: Node<'v, '_>, blocks: Blocks) -> Result<Block<'v>, Error> {
    #[derive(Clone, Copy)]
    enum Kind {
        Input,
        Image,
        File,
        Output,
        Refusal,
    }
    const KINDS: [(&str, Kind); 5] = [
        ("input_text", Kind::Input),
        ("input_image", Kind::Image),
        ("input_file", Kind::File),
        ("output_text", Kind::Output),
        ("refusal", Kind::Refusal),
    ];
    let kinds = match blocks {
        Blocks::Output => &KINDS[..3],
        Blocks::Message => &KINDS[..4],
        Blocks::Assistant => &KINDS[..],
    };
    Ok(match node.required("type")?.choice(kinds)? {
        Kind::Input => Block::Input(node.required("text")?.text()?),
        Kind::Output => Block::Output(node.required("text")?.text()?),
        Kind::Refusal => Block::Output(node.required("refusal")?.text()?),
        Kind::File => Block::File,
        Kind::Image => Block::Image {
            // An empty one is none.
            url: node
                .maybe("image_url", |node| node.text())?
                .filter(|url| !url.is_empty()),
            file_id: node.maybe("file_id", |node| node.text())?,
            detail: node.maybe("detail", image::detail)?.unwrap_or_default(),
        },
    })
}

fn reasoning<'v>(node: Node<'v, '_>, settings: &Settings) -> Result<Reasoning<'v>, Error> {
    let summary = |node: Node<'_, '_>| {
        node.choice(&[
            ("auto", "auto"),
            ("concise", "concise"),
            ("detailed", "detailed"),
        ])
    };
    Ok(Reasoning {
        effort: node.maybe("effort", |node| thinking::read_effort(node, settings))?,
        given_effort: node.optional("effort")?.map(|node| node.value()),
        summary: node.maybe("summary", summary)?,
        generate_summary: node.maybe("generate_summary", summary)?,
    })
}

fn text<'v>(node: Node<'v, '_>) -> Result<Text<'v>, Error> {
    Ok(Text {
        format: node.maybe("format", format)?.unwrap_or_default(),
        verbosity: node.maybe("verbosity", |node| {
            node.choice(&[("low", "low"), ("medium", "medium"), ("high", "high")])
        })?,
    })
}

fn format<'v>(node: Node<'v, '_>) -> Result<Format<'v>, Error> {
    #[derive(Clone, Copy)]
    enum Kind {
        Text,
        JsonObject,
        JsonSchema,
    }
    let kind = node.required("type")?.choice(&[
        ("text", Kind::Text),
        ("json_object", Kind::JsonObject),
        ("json_schema", Kind::JsonSchema),
    ])?;
    Ok(match kind {
        Kind::Text => Format::Text,
        Kind::JsonObject => Format::JsonObject,
        Kind::JsonSchema => Format::JsonSchema {
            name: node.required("name")?.text()?,
            description: node.maybe("description", |node| node.text())?,
            schema: node.required("schema")?.value(),
            strict: node.maybe("strict", |node| node.boolean())?,
        },
    })
}

fn choice<'v>(node: Node<'v, '_>, newer: bool) -> Result<ToolChoice<'v>, Error> {
    #[derive(Clone, Copy)]
    enum Kind {
        Named,
        WebSearch,
        Allowed,
    }
    const KINDS: [(&str, Kind); 5] = [
        ("function", Kind::Named),
        ("custom", Kind::Named),
        ("web_search", Kind::WebSearch),
        ("web_search_2025_08_26", Kind::WebSearch),
        // Accepted only where the host takes newer inputs.
        ("allowed_tools", Kind::Allowed),
    ];
    let wrong = || node.expected("\"none\", \"auto\", \"required\" or a tool");
    let meant = match node.value() {
        Json::String(name) => Meant::Functions(match &**name {
            "none" => Choice::None,
            "auto" => Choice::Auto,
            "required" => Choice::Required,
            _ => return Err(wrong()),
        }),
        Json::Object(_) => {
            let kinds = if newer { &KINDS[..] } else { &KINDS[..4] };
            match node.required("type")?.choice(kinds)? {
                Kind::Named => Meant::Functions(Choice::Named(node.required("name")?.text()?)),
                Kind::WebSearch => Meant::WebSearch,
                Kind::Allowed => Meant::Functions(allowed(&node)?),
            }
        }
        _ => return Err(wrong()),
    };
    Ok(ToolChoice {
        given: node.value(),
        meant,
    })
}

/// Some of the declared functions. Tools of other kinds are not offered anyway.
fn allowed<'v>(node: &Node<'v, '_>) -> Result<Choice<'v>, Error> {
    let required = node
        .required("mode")?
        .choice(&[("auto", false), ("required", true)])?;
    let names = node.required("tools")?.list(|tool| {
        Ok(match tool.required("type")?.text()? {
            "function" | "custom" => Some(tool.required("name")?.text()?),
            _ => None,
        })
    })?;
    Ok(Choice::Allowed(
        names.into_iter().flatten().collect(),
        required,
    ))
}
