//! Input items become messages of a conversation, in order, each checked as it comes.
//!
//! Calls wait in a group until each of them has its output; only then do they become one assistant message and
//! the messages of their outputs. Everything else that a model reads ends a group, so an output that is missing
//! is noticed there.

use super::calls::{Answer, Calls};
use super::declared::{Declarations, TOOL_SEARCH};
use super::shape::{Arguments, Block, Content, Input, Item, Request, Role};
use super::tools::{self, Tool};
use crate::recipe::conversation::{
    ImageDetail, ImageOrigin, ImageSource, InputMessage, Prompt, ToolDefinition,
};
use crate::recipe::encoding::Encoding;
use crate::recipe::error::Error;
use crate::recipe::json::{self, Style};
use crate::recipe::request::content::{BETWEEN_PARTS, Parts};
use crate::recipe::request::image;
use crate::recipe::request::tools as shared;
use crate::recipe::request::warnings::Warnings;
use crate::recipe::request::{Context, refused};

/// What the model reads for a file.
const UNSUPPORTED_DOCUMENT: &str = "[Unsupported Document]";

/// What is said where the host refuses what would need a store of responses.
pub(super) const NO_STATE: &str =
    "previous_response_id is not supported: no response store. Send the whole input.";

/// Converts instructions and input.
pub(super) fn convert<'v>(
    context: Context<'_>,
    request: &Request<'v>,
    declarations: &mut Declarations<'v>,
    warnings: &mut Warnings,
) -> Result<Vec<InputMessage>, Error> {
    let instructions = request.instructions.filter(|text| !text.is_empty());
    let mut messages = Vec::new();
    if let Some(instructions) = instructions {
        messages.push(InputMessage::System {
            content: Prompt::plain(instructions),
            image_sources: Vec::new(),
            tools: None,
        });
    }
    match &request.input {
        None if instructions.is_none() => {
            let message = "Either input or instructions must be provided";
            return Err(refused("input", message));
        }
        None => {}
        Some(Input::Text(text)) => messages.push(InputMessage::User {
            content: Prompt::plain(*text),
            image_sources: Vec::new(),
        }),
        Some(Input::Items(items)) => {
            if items.is_empty() {
                return Err(refused("input", "Input items array must not be empty"));
            }
            messages.reserve(items.len());
            let mut converter = Converter {
                context,
                declarations,
                warnings,
                calls: Calls::default(),
                messages,
            };
            converter.convert(items)?;
            messages = converter.messages;
        }
    }
    Ok(messages)
}

/// Where converting the items stands.
struct Converter<'a, 'd, 'v> {
    context: Context<'a>,
    declarations: &'d mut Declarations<'v>,
    warnings: &'d mut Warnings,
    calls: Calls<'v>,
    messages: Vec<InputMessage>,
}

impl<'a, 'v> Converter<'a, '_, 'v> {
    fn convert(&mut self, items: &[Item<'v>]) -> Result<(), Error> {
        let encoding = self.context.encoding;
        let mut items = items.iter().enumerate().peekable();
        while let Some((at, item)) = items.next() {
            match item {
                Item::Message { role, content } => {
                    self.calls.check_answered()?;
                    self.message(at, *role, content)?;
                }
                Item::Reasoning { texts, encrypted } => {
                    self.calls.check_answered()?;
                    self.reasoning(at, texts, *encrypted);
                }
                Item::Call {
                    id,
                    name,
                    namespace,
                    arguments,
                } => self.call(at, id, name, *namespace, arguments)?,
                Item::Output { id, content } => {
                    // A notice about the images of an output belongs to it, not to the conversation.
                    let notice = match encoding {
                        Encoding::V41 => items.next_if(|(_, next)| resize_notice(next).is_some()),
                        Encoding::V4 => None,
                    };
                    let notice = notice.and_then(|(_, item)| resize_notice(item));
                    self.output(at, *id, content, notice)?;
                }
                Item::SearchCall { id, arguments } if encoding == Encoding::V41 => {
                    let arguments = json::to_string(arguments, Style::Compact);
                    self.calls.add(at, id, TOOL_SEARCH.to_owned(), arguments)?;
                }
                Item::SearchOutput { id, tools } if encoding == Encoding::V41 => {
                    self.search_output(at, id, tools)?;
                }
                Item::SearchCall { .. } | Item::SearchOutput { .. } => {
                    let message = "the model knows no tool searches";
                    self.drop_item(at, message);
                }
                Item::WebSearchCall => {
                    self.calls.check_answered()?;
                    self.drop_item(at, "there is no web search");
                }
                Item::Reference => {
                    if self.context.settings.fixes.refuse_state {
                        return Err(refused(format!("input[{at}]"), NO_STATE));
                    }
                    let message = "nothing is stored";
                    self.warnings
                        .add("ignored_state", format!("input[{at}]"), message);
                }
                Item::Ignored(kind) => {
                    self.drop_item(at, format!("items of the type {kind:?} are ignored"));
                }
            }
        }
        self.calls.check_answered()
    }

    fn drop_item(&mut self, at: usize, message: impl Into<String>) {
        self.warnings
            .add("dropped_item", format!("input[{at}]"), message);
    }

    fn message(&mut self, at: usize, role: Role, content: &Content<'_>) -> Result<(), Error> {
        if role == Role::Assistant {
            let text = self.assistant_text(at, content)?;
            self.assistant(text);
            return Ok(());
        }
        let (content, image_sources) = self.content(at, content, "content")?;
        // V4 has system messages at the start only.
        let as_user = role == Role::Developer && self.context.encoding == Encoding::V4;
        self.messages.push(if role == Role::User || as_user {
            InputMessage::User {
                content,
                image_sources,
            }
        } else {
            InputMessage::System {
                content,
                image_sources,
                tools: None,
            }
        });
        Ok(())
    }

    /// What an assistant said. It has no images, whatever is in them.
    fn assistant_text(&mut self, at: usize, content: &Content<'_>) -> Result<String, Error> {
        let blocks = match content {
            Content::Text(text) => return Ok((*text).to_owned()),
            Content::Blocks(blocks) => blocks,
        };
        let (content, image_sources) = self.parts(at, blocks, "content")?.finish();
        if image_sources.is_empty() {
            return Ok(content.text);
        }
        let message = format!("input[{at}]: Image in assistant message is unsupported");
        Err(refused(format!("input[{at}].content"), message))
    }

    /// Texts of one turn are one message.
    fn assistant(&mut self, text: String) {
        if let Some(InputMessage::Assistant {
            content,
            tool_calls: None,
            ..
        }) = self.messages.last_mut()
        {
            if content.is_empty() {
                *content = text;
            } else if !text.is_empty() {
                content.push_str(BETWEEN_PARTS);
                content.push_str(&text);
            }
            return;
        }
        self.messages.push(InputMessage::Assistant {
            content: text,
            reasoning_content: None,
            tool_calls: None,
            prefix: false,
        });
    }

    /// Reasoning comes before the text of its turn; after a text it begins another.
    fn reasoning(&mut self, at: usize, texts: &[&str], encrypted: bool) {
        let text = texts.join("\n");
        if text.is_empty() {
            if encrypted {
                let param = format!("input[{at}].encrypted_content");
                let message = "encrypted reasoning cannot be read";
                self.warnings.add("ignored_field", param, message);
            }
            return;
        }
        if let Some(InputMessage::Assistant {
            content,
            reasoning_content,
            ..
        }) = self.messages.last_mut()
            && content.is_empty()
        {
            match reasoning_content {
                Some(before) => {
                    before.push('\n');
                    before.push_str(&text);
                }
                None => *reasoning_content = Some(text),
            }
            return;
        }
        self.messages.push(InputMessage::Assistant {
            content: String::new(),
            reasoning_content: Some(text),
            tool_calls: None,
            prefix: false,
        });
    }

    fn call(
        &mut self,
        at: usize,
        id: &'v str,
        name: &'v str,
        namespace: Option<&'v str>,
        arguments: &Arguments<'_>,
    ) -> Result<(), Error> {
        let encoding = self.context.encoding;
        let name = match namespace {
            Some(namespace) => self.declarations.names.called(encoding, namespace, name),
            None => name.to_owned(),
        };
        let arguments = match arguments {
            Arguments::Json(text) => (*text).to_owned(),
            Arguments::Input(text) => {
                let mut object = String::with_capacity(text.len() + 16);
                object.push_str("{\"input\":");
                json::write_string(&mut object, text);
                object.push('}');
                object
            }
        };
        self.calls.add(at, id, name, arguments)
    }

    fn output(
        &mut self,
        at: usize,
        id: Option<&str>,
        content: &Content<'_>,
        notice: Option<&str>,
    ) -> Result<(), Error> {
        let (content, image_sources) = self.content(at, content, "output")?;
        let place = match id {
            Some(id) => Some(self.calls.take(at, id)?),
            None => {
                self.calls.check_answered()?;
                None
            }
        };
        let message = InputMessage::Tool {
            content,
            image_sources,
            tool_call_id: id.map(str::to_owned),
        };
        let notice = notice.map(|text| InputMessage::System {
            content: Prompt::plain(text),
            image_sources: Vec::new(),
            tools: None,
        });
        match place {
            Some(place) => self.answer(place, message, notice, Vec::new()),
            None => {
                self.messages.push(message);
                self.messages.extend(notice);
            }
        }
        Ok(())
    }

    fn search_output(&mut self, at: usize, id: &str, tools: &[Tool<'_>]) -> Result<(), Error> {
        let place = self.calls.take(at, id)?;
        for (index, tool) in tools.iter().enumerate() {
            let Tool::Ignored(kind) = tool else {
                continue;
            };
            let param = format!("input[{at}].tools[{index}]");
            if !self.context.settings.fixes.skip_searched_tools {
                let message = format!(
                    "input[{at}]: a tool of the type {kind:?} cannot be shown to the model"
                );
                return Err(refused(param, message));
            }
            let message = format!("tools of the type {kind:?} are not offered");
            self.warnings.add("dropped_tool", param, message);
        }
        let message = InputMessage::Tool {
            content: Prompt::plain(tools::found(tools)),
            image_sources: Vec::new(),
            tool_call_id: Some(id.to_owned()),
        };
        let found = self.declarations.found(at).map(shared::mention).collect();
        self.answer(place, message, None, found);
        Ok(())
    }

    fn answer(
        &mut self,
        place: usize,
        message: InputMessage,
        notice: Option<InputMessage>,
        found: Vec<ToolDefinition>,
    ) {
        let answer = Answer {
            message,
            notice,
            found,
        };
        let keep_order = self.context.settings.fixes.keep_call_order;
        self.calls
            .answer(place, answer, keep_order, &mut self.messages);
    }

    /// Converts the content of the item `at`, which stands in its `field`.
    fn content(
        &mut self,
        at: usize,
        content: &Content<'_>,
        field: &str,
    ) -> Result<(Prompt, Vec<ImageSource>), Error> {
        let blocks = match content {
            Content::Text(text) => return Ok((Prompt::plain(*text), Vec::new())),
            Content::Blocks(blocks) => blocks,
        };
        let parts = self.parts(at, blocks, field)?;
        parts.check_data_urls(|| format!("input[{at}].{field}"))?;
        Ok(parts.finish())
    }

    /// What the blocks say; inline images are not looked into.
    fn parts(&mut self, at: usize, blocks: &[Block<'_>], field: &str) -> Result<Parts<'a>, Error> {
        let mut parts = Parts::new(self.context);
        for (index, block) in blocks.iter().enumerate() {
            let path = || format!("input[{at}].{field}[{index}]");
            match block {
                Block::Input(text) | Block::Output(text) => parts.text(text),
                Block::File => {
                    parts.text(UNSUPPORTED_DOCUMENT);
                    let message = format!("the model reads {UNSUPPORTED_DOCUMENT:?} instead");
                    self.warnings.add("image_as_text", path(), message);
                }
                Block::Image { .. } if self.context.encoding == Encoding::V4 => {
                    parts.unseen_image(path, self.warnings);
                }
                Block::Image {
                    url,
                    file_id,
                    detail,
                } => parts.image(self.image(at, *url, *file_id, *detail, path)?),
            }
        }
        Ok(parts)
    }

    fn image(
        &self,
        at: usize,
        url: Option<&str>,
        file_id: Option<&str>,
        detail: ImageDetail,
        path: impl Fn() -> String,
    ) -> Result<ImageSource, Error> {
        let wrong = |what: &str| {
            let path = path();
            let message = format!("{path}: {what}");
            Err(refused(path, message))
        };
        let url = match (url, file_id) {
            (None, None) => return wrong("input_image must have image_url or file_id"),
            (Some(_), Some(_)) => {
                return wrong("input_image cannot have both image_url and file_id");
            }
            (None, Some(_)) => {
                return wrong(
                    "file_id is not supported. Pass the image as a base64 data url instead.",
                );
            }
            (Some(url), None) => url,
        };
        let origin = if image::is_external(url) {
            let (length, limit) = (url.len(), self.context.settings.image.url_bytes);
            if length > limit as usize {
                return wrong(&format!(
                    "image_url external link length {length} too long, max link length {limit}. Consider passing file data directly with base64 data url instead."
                ));
            }
            ImageOrigin::Url(url.to_owned())
        } else {
            ImageOrigin::DataUrl(url.to_owned())
        };
        Ok(ImageSource {
            origin,
            detail,
            path: format!("input[{at}]"),
        })
    }
}

/// The text of a developer message that tells how images of the output before it were scaled.
fn resize_notice<'v>(item: &Item<'v>) -> Option<&'v str> {
    let Item::Message {
        role: Role::Developer,
        content: Content::Blocks(blocks),
    } = item
    else {
        return None;
    };
    match blocks.as_slice() {
        [Block::Input(text)] => {
            let is_notice = text.starts_with("<image_resize_notice>")
                && text.ends_with("</image_resize_notice>");
            is_notice.then_some(*text)
        }
        _ => None,
    }
}
