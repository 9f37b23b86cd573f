//! A conversation given directly: what the other protocols convert to, as a request of its own.
//!
//! It comes from a host that has a protocol of its own, so nothing is guessed or corrected: every value is
//! taken as it stands, and an unknown key is an error at any level, because a misspelt one must be seen. What
//! is absent has the default of the normalized form; how to read the output follows from the conversation,
//! as it does after the conversion of other protocols. In place of messages there may be a text with a gap.

use super::image::{check_data_url, decode_base64, is_external};
use super::read::Node;
use super::sampling::Sampling;
use super::warnings::Warnings;
use super::{Context, Converted, refused, thinking, tools};
use crate::recipe::constraint::OutputConstraint;
use crate::recipe::conversation::{
    Conversation, Fim, ImageDetail, ImageOrigin, ImageSource, InputMessage, Prompt,
    ReasoningEffort, ResponseFormat, ToolCall, ToolChoice, ToolDefinition,
};
use crate::recipe::encoding::{Encoding, SpecialToken, Task};
use crate::recipe::error::Error;
use crate::recipe::json::{self, Json, JsonText, Object};
use crate::recipe::options::{
    EngineParams, InferenceOptions, ParsingOptions, ResponseOptions, ThinkingStage,
};
use crate::recipe::settings::{Effort, ParsingOverride};

/// How placeholders of images are always spelled, whatever the tokenizer calls the token.
const PLACEHOLDER: &str = "<｜image｜>";

/// Keys of the object.
const FIELDS: [&str; 13] = [
    "encoding",
    "model",
    "stream",
    "messages",
    "thinking_mode",
    "tools",
    "tool_choice",
    "reasoning_effort",
    "response_format",
    "inference",
    "parsing",
    "task",
    "fim",
];

/// Keys that have no meaning for a text with a gap.
const NOT_WITH_FIM: [&str; 6] = [
    "messages",
    "tools",
    "tool_choice",
    "reasoning_effort",
    "response_format",
    "task",
];

/// What decides how the rest is read.
pub(in crate::recipe) struct Body<'v> {
    value: &'v Json<'v>,
    /// The model's name, or that of the encoding.
    pub(super) model: &'v str,
    /// The template, where the request names it itself.
    pub(super) encoding: Option<Encoding>,
    /// Quick instruction on the last user turn.
    pub(super) task: Option<Task>,
    /// Text before and behind a gap, in place of messages.
    fim: Option<(&'v str, &'v str)>,
}

impl Body<'_> {
    /// The text with a gap, if it is one.
    pub(super) fn fim(&self) -> Option<Fim> {
        self.fim.map(|(prefix, suffix)| Fim {
            prefix: prefix.to_owned(),
            suffix: suffix.to_owned(),
        })
    }
}

/// Reads what the request is about. Its parts are read when the template is known.
pub(super) fn read<'v>(value: &'v Json<'v>) -> Result<Body<'v>, Error> {
    let body = Node::body(value);
    body.only(&FIELDS)?;
    let named = body.maybe("model", |node| node.text())?;
    let encoding = body.optional("encoding")?;
    let (model, encoding) = match (named, encoding) {
        (Some(model), None) => (model, None),
        (None, Some(node)) => {
            let name = node.text()?;
            let encoding = Encoding::from_name(name);
            let encoding = encoding.ok_or_else(|| node.expected("\"v4\" or \"v4.1\""))?;
            (encoding.name(), Some(encoding))
        }
        (Some(_), Some(node)) => return Err(node.wrong("there is a \"model\" already")),
        (None, None) => {
            return Err(body.at_key("encoding", "missing field \"encoding\" or \"model\""));
        }
    };
    let task = body.maybe("task", |node| {
        let task = node.value().as_str().and_then(Task::from_name);
        task.ok_or_else(|| node.expected("the name of a task"))
    })?;
    let fim = body.maybe("fim", |node| {
        node.only(&["prefix", "suffix"])?;
        let text = |key| node.required(key)?.text();
        Ok((text("prefix")?, text("suffix")?))
    })?;
    if fim.is_some() {
        for key in NOT_WITH_FIM {
            if let Some(node) = body.optional(key)? {
                return Err(node.wrong("it does not go together with \"fim\""));
            }
        }
        if let Some(node) = body.optional("thinking_mode")?
            && node.boolean()?
        {
            return Err(node.wrong("there is no thinking with \"fim\""));
        }
    }
    Ok(Body {
        value,
        model,
        encoding,
        task,
        fim,
    })
}

/// Reads the parts for a template that is known by now.
pub(super) fn convert(context: Context<'_>, body: &Body<'_>) -> Result<Converted, Error> {
    let node = Node::body(body.value);
    let conversation = match body.fim {
        Some(_) => Conversation {
            messages: Vec::new(),
            thinking_mode: false,
            tools: Vec::new(),
            tool_choice: ToolChoice::Auto,
            reasoning_effort: None,
            response_format: ResponseFormat::Text,
        },
        None => conversation(context, &node)?,
    };
    let mut parsing = parsing_options(context, &conversation);
    if let Some(given) = node.maybe("parsing", parsing_override)? {
        given.apply(&mut parsing);
    }
    let absent = Json::Object(Object::default());
    let inference = node.optional("inference")?;
    let inference = inference.unwrap_or(Node::body(&absent));
    Ok(Converted {
        inference: inference_options(context, &inference, &conversation, &parsing)?,
        conversation,
        parsing,
        response: ResponseOptions {
            stream: node
                .maybe("stream", |node| node.boolean())?
                .unwrap_or(false),
            ..ResponseOptions::default()
        },
        warnings: Vec::new(),
    })
}

fn conversation(context: Context<'_>, body: &Node<'_, '_>) -> Result<Conversation, Error> {
    let thinking_mode = body.maybe("thinking_mode", |node| node.boolean())?;
    let effort = body.maybe("reasoning_effort", |node| effort(context, node))?;
    let (thinking_mode, reasoning_effort) = match thinking::host_effort(context)? {
        Some(Effort::Off) => (false, None),
        Some(Effort::On(effort)) => (true, Some(effort)),
        None => (thinking_mode.unwrap_or(true), effort),
    };
    let messages = body.maybe("messages", |node| node.list(|node| message(context, &node)))?;
    let tool_choice = body.maybe("tool_choice", |node| {
        node.choice(&[
            ("auto", ToolChoice::Auto),
            ("none", ToolChoice::None),
            ("required", ToolChoice::Required),
        ])
    })?;
    Ok(Conversation {
        messages: messages.unwrap_or_default(),
        thinking_mode,
        tools: body.maybe("tools", tool_list)?.unwrap_or_default(),
        tool_choice: tool_choice.unwrap_or_default(),
        reasoning_effort,
        response_format: body
            .maybe("response_format", response_format)?
            .unwrap_or_default(),
    })
}

/// An effort of the normalized form: fewer names than requests may use.
fn effort(context: Context<'_>, node: Node<'_, '_>) -> Result<ReasoningEffort, Error> {
    if context.settings.allow_numeric_effort
        && let Some(number) = node.value().as_i64()
    {
        return thinking::percent(context, number, &node.path());
    }
    node.choice(&[
        ("low", ReasoningEffort::Low),
        ("high", ReasoningEffort::High),
        ("xhigh", ReasoningEffort::Xhigh),
        ("max", ReasoningEffort::Max),
    ])
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

fn message(context: Context<'_>, node: &Node<'_, '_>) -> Result<InputMessage, Error> {
    let role = node.required("role")?.choice(&[
        ("system", Role::System),
        ("user", Role::User),
        ("assistant", Role::Assistant),
        ("tool", Role::Tool),
        ("latest_reminder", Role::LatestReminder),
    ])?;
    node.only(match role {
        Role::System => &["role", "content", "image_sources", "tools"],
        Role::User => &["role", "content", "image_sources"],
        Role::Assistant => &[
            "role",
            "content",
            "reasoning_content",
            "tool_calls",
            "prefix",
        ],
        Role::Tool => &["role", "content", "image_sources", "tool_call_id"],
        Role::LatestReminder => &["role", "content"],
    })?;
    let owned = |node: Node<'_, '_>| node.text().map(str::to_owned);
    let text = node.required("content")?.text()?;
    Ok(match role {
        Role::System => {
            let (content, image_sources) = with_images(context, node, text)?;
            InputMessage::System {
                content,
                image_sources,
                tools: node.maybe("tools", tool_list)?,
            }
        }
        Role::User => {
            let (content, image_sources) = with_images(context, node, text)?;
            InputMessage::User {
                content,
                image_sources,
            }
        }
        Role::Assistant => InputMessage::Assistant {
            content: text.to_owned(),
            reasoning_content: node.maybe("reasoning_content", owned)?,
            tool_calls: node.maybe("tool_calls", |node| node.list(call))?,
            prefix: node
                .maybe("prefix", |node| node.boolean())?
                .unwrap_or(false),
        },
        Role::Tool => {
            let (content, image_sources) = with_images(context, node, text)?;
            InputMessage::Tool {
                content,
                image_sources,
                tool_call_id: node.maybe("tool_call_id", owned)?,
            }
        }
        Role::LatestReminder => InputMessage::LatestReminder {
            content: text.to_owned(),
        },
    })
}

fn call(node: Node<'_, '_>) -> Result<ToolCall, Error> {
    node.only(&["id", "name", "arguments"])?;
    let text = |key| Ok(node.required(key)?.text()?.to_owned());
    Ok(ToolCall {
        id: text("id")?,
        name: text("name")?,
        arguments: text("arguments")?,
    })
}

fn tool_list(node: Node<'_, '_>) -> Result<Vec<ToolDefinition>, Error> {
    node.list(|node| {
        node.only(&[
            "name",
            "description",
            "parameters",
            "strict",
            "defer_loading",
        ])?;
        let description = node.maybe("description", |node| node.text())?;
        Ok(ToolDefinition {
            name: node.required("name")?.text()?.to_owned(),
            description: description.map(str::to_owned),
            parameters: match node.optional("parameters")? {
                Some(schema) => JsonText::of(schema.value()),
                None => JsonText::of(&Json::Object(Object::default())),
            },
            strict: node.maybe("strict", |node| node.boolean())?,
            defer_loading: node
                .maybe("defer_loading", |node| node.boolean())?
                .unwrap_or(false),
        })
    })
}

fn response_format(node: Node<'_, '_>) -> Result<ResponseFormat, Error> {
    let kind = node.required("type")?.text()?;
    match kind {
        "text" => {
            node.only(&["type"])?;
            Ok(ResponseFormat::Text)
        }
        "json_object" => {
            node.only(&["type"])?;
            Ok(ResponseFormat::JsonObject)
        }
        "json_schema" => {
            node.only(&["type", "schema"])?;
            let schema = node.required("schema")?;
            if schema.value().is_null() {
                return Err(schema.expected("a schema"));
            }
            Ok(ResponseFormat::JsonSchema(JsonText::of(schema.value())))
        }
        "regex" => {
            node.only(&["type", "regex"])?;
            let pattern = node.required("regex")?.text()?;
            Ok(ResponseFormat::Regex(pattern.to_owned()))
        }
        _ => {
            let kinds = "\"text\", \"json_object\", \"json_schema\" or \"regex\"";
            Err(node.required("type")?.expected(kinds))
        }
    }
}

/// The content of a message with its placeholders, and the images they stand for.
fn with_images(
    context: Context<'_>,
    message: &Node<'_, '_>,
    text: &str,
) -> Result<(Prompt, Vec<ImageSource>), Error> {
    let sources = message.maybe("image_sources", |node| {
        let sources = node.list(|node| image_source(context, message, &node))?;
        if context.encoding == Encoding::V4 && !sources.is_empty() {
            return Err(refused(node.path(), "V4 models see no images"));
        }
        Ok(sources)
    })?;
    let sources = sources.unwrap_or_default();
    let tokens = &context.settings.special_tokens;
    let spelling = tokens.spelling(SpecialToken::Image);
    Ok((placeholders(text, sources.len(), spelling), sources))
}

fn image_source(
    context: Context<'_>,
    message: &Node<'_, '_>,
    node: &Node<'_, '_>,
) -> Result<ImageSource, Error> {
    let field = node.required("kind")?.choice(&[
        ("data_url", "data_url"),
        ("url", "url"),
        ("bytes", "data"),
    ])?;
    node.only(&["kind", field, "detail", "path"])?;
    let detail = node.maybe("detail", |node| {
        node.choice(&[
            ("low", ImageDetail::Low),
            ("high", ImageDetail::High),
            ("original", ImageDetail::Original),
            ("auto", ImageDetail::Auto),
        ])
    })?;
    let path = match node.maybe("path", |node| node.text())? {
        Some(path) => path.to_owned(),
        None => message.path(),
    };
    let given = node.required(field)?;
    let text = given.text()?;
    let param = given.path();
    // Errors begin with the path that the host gave, or say at least where this image is.
    let place = if path.is_empty() { &param } else { &path };
    let wrong = |what: String| refused(param.as_str(), format!("{place}: {what}"));
    let origin = match field {
        "data_url" => {
            check_data_url(text, place, &param)?;
            ImageOrigin::DataUrl(text.to_owned())
        }
        "url" => {
            let limit = context.settings.image.url_bytes;
            if text.len() > limit as usize {
                let length = text.len();
                return Err(wrong(format!(
                    "external link length {length} too long, max link length {limit}"
                )));
            }
            if !is_external(text) {
                return Err(wrong(format!("invalid url: {text:?}")));
            }
            ImageOrigin::Url(text.to_owned())
        }
        _ => {
            let bytes = decode_base64(text);
            ImageOrigin::Bytes(bytes.ok_or_else(|| given.wrong("it is not valid base64"))?)
        }
    };
    Ok(ImageSource {
        origin,
        detail: detail.unwrap_or_default(),
        path,
    })
}

/// Makes the first `count` placeholders in `text` special, in either spelling; in the prompt all have that of
/// the tokenizer.
fn placeholders(text: &str, count: usize, spelling: &str) -> Prompt {
    if count == 0 {
        return Prompt::plain(text);
    }
    // An empty pattern would be found between any two characters.
    let own = if spelling.is_empty() {
        PLACEHOLDER
    } else {
        spelling
    };
    let mut own_places = text.match_indices(own).peekable();
    let mut usual_places = text.match_indices(PLACEHOLDER).peekable();
    let mut prompt = Prompt {
        text: String::with_capacity(text.len() + 16),
        special_ranges: Vec::new(),
    };
    let (mut done, mut found) = (0, 0);
    while found < count {
        let own_first = match (own_places.peek(), usual_places.peek()) {
            (Some((own, _)), Some((usual, _))) => own <= usual,
            (own, _) => own.is_some(),
        };
        let next = if own_first {
            own_places.next()
        } else {
            usual_places.next()
        };
        let Some((at, placeholder)) = next else {
            break;
        };
        if at < done {
            // The same place in the other spelling.
            continue;
        }
        prompt.text.push_str(&text[done..at]);
        let start = prompt.text.len();
        prompt.text.push_str(spelling);
        if !spelling.is_empty() {
            prompt.special_ranges.push(start..prompt.text.len());
        }
        done = at + placeholder.len();
        found += 1;
    }
    prompt.text.push_str(&text[done..]);
    prompt
}

/// How the output of this conversation is to be read, unless the request says otherwise.
fn parsing_options(context: Context<'_>, conversation: &Conversation) -> ParsingOptions {
    let introduces_tools = |message: &InputMessage| matches!(message, InputMessage::System { tools: Some(tools), .. } if !tools.is_empty());
    // V4 does not show tools that are introduced on the way.
    let has_tools = !conversation.tools.is_empty()
        || (context.encoding == Encoding::V41
            && conversation.messages.iter().any(introduces_tools));
    let thinking = conversation.thinking_mode;
    let required = conversation.tool_choice == ToolChoice::Required;
    ParsingOptions {
        parse_tool_calls: has_tools && conversation.tool_choice != ToolChoice::None,
        starts_in_tool_calls: required
            && !conversation.tools.is_empty()
            && !(thinking && context.settings.fixes.thinking_tool_choice),
        parse_json_output: conversation.response_format == ResponseFormat::JsonObject,
        thinking_initial_stage: thinking.then(|| thinking::initial_stage(&conversation.messages)),
        stop_sequences: Vec::new(),
    }
}

fn parsing_override(node: Node<'_, '_>) -> Result<ParsingOverride, Error> {
    node.only(&[
        "parse_tool_calls",
        "starts_in_tool_calls",
        "parse_json_output",
        "thinking_initial_stage",
        "stop_sequences",
    ])?;
    let stage = match node.object()?.get("thinking_initial_stage") {
        None => None,
        // Here null is a value: there is no thinking.
        Some(Json::Null) => Some(None),
        Some(_) => node.maybe("thinking_initial_stage", |node| {
            let stages = ThinkingStage::ALL.map(|stage| (stage.name(), stage));
            node.choice(&stages).map(Some)
        })?,
    };
    Ok(ParsingOverride {
        parse_tool_calls: node.maybe("parse_tool_calls", |node| node.boolean())?,
        starts_in_tool_calls: node.maybe("starts_in_tool_calls", |node| node.boolean())?,
        parse_json_output: node.maybe("parse_json_output", |node| node.boolean())?,
        thinking_initial_stage: stage,
        stop_sequences: node.maybe("stop_sequences", |node| {
            node.list(|node| match node.text()? {
                "" => Err(node.expected("a string that is not empty")),
                text => Ok(text.to_owned()),
            })
        })?,
    })
}

/// Sampling as given: the values of the normalized form are not resolved again.
fn inference_options(
    context: Context<'_>,
    node: &Node<'_, '_>,
    conversation: &Conversation,
    parsing: &ParsingOptions,
) -> Result<InferenceOptions, Error> {
    let settings = context.settings;
    let mut known = vec![
        "max_tokens",
        "temperature",
        "top_p",
        "logprobs",
        "top_logprobs",
        "seed",
        "output_constraint",
    ];
    if settings.max_choices > 1 {
        known.push("n");
    }
    if settings.engine_params {
        known.extend([
            "presence_penalty",
            "frequency_penalty",
            "top_k",
            "min_p",
            "logit_bias",
        ]);
    }
    node.only(&known)?;
    let mut asked = Sampling {
        choices: node.maybe("n", |node| node.integer())?,
        presence_penalty: node.maybe("presence_penalty", |node| node.float())?,
        frequency_penalty: node.maybe("frequency_penalty", |node| node.float())?,
        temperature: node.maybe("temperature", |node| node.float())?,
        top_p: node.maybe("top_p", |node| node.float())?,
        logprobs: node
            .maybe("logprobs", |node| node.boolean())?
            .unwrap_or(false),
        top_logprobs: node.maybe("top_logprobs", |node| node.integer())?,
        max_tokens: node.maybe("max_tokens", |node| node.integer())?,
        seed: node.maybe("seed", |node| node.integer())?,
    };
    let thinking = conversation.thinking_mode;
    asked.check(context, thinking).map_err(|error| {
        let param = format!("inference.{}", error.param);
        Error { param, ..error }
    })?;
    // Only what is absent is resolved by the mode.
    let (temperature, top_p) = (asked.temperature.take(), asked.top_p.take());
    let parses = parsing.parse_tool_calls;
    let resolved = asked.resolve(context, thinking, parses, &mut Warnings::default())?;
    Ok(InferenceOptions {
        temperature: temperature.unwrap_or(resolved.temperature),
        top_p: top_p.unwrap_or(resolved.top_p),
        output_constraint: match node.optional("output_constraint")? {
            Some(node) => Some(output_constraint(&node, conversation)?),
            None => tools::constraint(
                &conversation.tools,
                conversation.tool_choice,
                &tools::Format::plain(conversation.response_format.clone()),
                conversation.response_format != ResponseFormat::Text,
            )?,
        },
        engine: EngineParams {
            top_k: node.maybe("top_k", |node| node.integer())?,
            min_p: node.maybe("min_p", |node| node.float())?,
            logit_bias: node.maybe("logit_bias", |node| {
                node.object()?;
                Ok(JsonText::of(node.value()))
            })?,
            ..resolved.engine
        },
        ..resolved
    })
}

/// A constraint in the form that prepared requests show.
fn output_constraint(
    node: &Node<'_, '_>,
    conversation: &Conversation,
) -> Result<OutputConstraint, Error> {
    #[derive(Clone, Copy)]
    enum Kind {
        Json,
        Regex,
        ToolCalls { required: bool },
    }
    node.only(&["kind", "schema"])?;
    let kind = node.required("kind")?.choice(&[
        ("json", Kind::Json),
        ("regex", Kind::Regex),
        ("tool_call", Kind::ToolCalls { required: false }),
        ("tool_call_required", Kind::ToolCalls { required: true }),
    ])?;
    let schema = node.optional("schema")?;
    let text = schema.map_or(Ok(""), |node| node.text())?;
    let wrong = |reason: &str| schema.unwrap_or(*node).wrong(reason);
    Ok(match kind {
        Kind::Json if text.is_empty() => OutputConstraint::Json(None),
        Kind::Json => {
            let schema = json::parse(text).map_err(|error| wrong(&format!("not JSON: {error}")))?;
            OutputConstraint::Json(Some(JsonText::of(&schema)))
        }
        Kind::Regex => OutputConstraint::Regex(node.required("schema")?.text()?.to_owned()),
        Kind::ToolCalls { required } => {
            let constraint = OutputConstraint::ToolCalls { required };
            if schema.is_some() && text != constraint.text(conversation) {
                return Err(wrong("these are not the tools of the conversation"));
            }
            constraint
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn placed(text: &str, count: usize, spelling: &str) -> (String, Vec<String>) {
        let prompt = placeholders(text, count, spelling);
        let special = prompt.special_ranges.iter();
        let special = special.map(|range| prompt.text[range.clone()].to_owned());
        let special = special.collect();
        (prompt.text, special)
    }

    #[test]
    fn either_spelling_is_a_placeholder_and_the_prompt_has_that_of_the_tokenizer() {
        let (text, special) = placed("a <｜image｜> b <x> c <｜image｜> d <x>", 3, "<x>");
        assert_eq!(text, "a <x> b <x> c <x> d <x>");
        assert_eq!(special, ["<x>"; 3]);
        let (text, special) = placed("<x><｜image｜>", 1, "<x>");
        assert_eq!(text, "<x><｜image｜>");
        assert_eq!(special, ["<x>"]);
    }

    #[test]
    fn one_spelling_is_found_once() {
        let (text, special) = placed("<｜image｜><｜image｜>", 2, PLACEHOLDER);
        assert_eq!(text, "<｜image｜><｜image｜>");
        assert_eq!(special.len(), 2);
        let (text, special) = placed("<｜image｜>!", 1, "<｜image｜>!");
        assert_eq!(text, "<｜image｜>!");
        assert_eq!(special, ["<｜image｜>!"]);
    }

    #[test]
    fn an_image_token_without_spelling_leaves_nothing() {
        let (text, special) = placed("a<｜image｜>b", 1, "");
        assert_eq!(text, "ab");
        assert!(special.is_empty());
    }
}
