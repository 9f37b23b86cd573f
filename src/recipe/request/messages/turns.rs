//! Messages become messages of a conversation, in order, each checked as it comes.
//!
//! A user's blocks become messages of their own, in their order; those of an assistant or of the system
//! become one. Cost is linear in the request.

use std::collections::HashSet;

use super::images;
use super::pairing::Pending;
use super::shape::{Block, Content, Message, Part, ResultContent, Role, ToolResult};
use crate::recipe::conversation::{InputMessage, Prompt, ToolCall, ToolDefinition};
use crate::recipe::encoding::Encoding;
use crate::recipe::error::Error;
use crate::recipe::json::{self, Style};
use crate::recipe::request::content::{BETWEEN_PARTS, Parts};
use crate::recipe::request::image::UNSUPPORTED_IMAGE;
use crate::recipe::request::warnings::Warnings;
use crate::recipe::request::{Context, refused, tools};

/// Names or ids of the request.
type Names<'v> = HashSet<&'v str, ahash::RandomState>;

/// Converts all messages behind those that are in `converted` already. `known` are the names of tools that
/// messages may refer to.
pub(super) fn convert(
    context: Context<'_>,
    messages: &[Message<'_>],
    known: &Names<'_>,
    converted: &mut Vec<InputMessage>,
    warnings: &mut Warnings,
) -> Result<(), Error> {
    if messages.is_empty() {
        let message = "messages: at least one message is required";
        return Err(refused("messages", message));
    }
    converted.reserve(messages.len());
    let mut turns = Turns {
        context,
        known,
        converted,
        warnings,
        pending: Pending::default(),
    };
    for (at, message) in messages.iter().enumerate() {
        match (message.role, &message.content) {
            (Role::User, Content::Text(text)) => {
                turns.pending.allow_message(at)?;
                turns.push_user(Prompt::plain(*text));
            }
            (Role::User, Content::Blocks(blocks)) => turns.user(at, blocks)?,
            (Role::Assistant, Content::Text(text)) => {
                turns.pending.allow_message(at)?;
                turns.converted.push(InputMessage::Assistant {
                    content: (*text).to_owned(),
                    reasoning_content: None,
                    tool_calls: None,
                    prefix: false,
                });
            }
            (Role::Assistant, Content::Blocks(blocks)) => {
                turns.pending.allow_message(at)?;
                turns.assistant(at, blocks)?;
            }
            (Role::System, content) => {
                turns.pending.allow_message(at)?;
                turns.system(at, content)?;
            }
        }
    }
    turns.pending.end()
}

/// The conversation so far.
struct Turns<'v, 'a> {
    context: Context<'a>,
    known: &'a Names<'v>,
    converted: &'a mut Vec<InputMessage>,
    warnings: &'a mut Warnings,
    pending: Pending<'v>,
}

impl<'v> Turns<'v, '_> {
    fn user(&mut self, at: usize, blocks: &[Block<'v>]) -> Result<(), Error> {
        check_not_empty(at, blocks)?;
        let mut answered = Names::default();
        let mut found = Vec::new();
        for (index, block) in blocks.iter().enumerate() {
            match block {
                Block::Part(part) => {
                    self.pending.allow_message(at)?;
                    let mut parts = Parts::new(self.context);
                    self.add(&mut parts, part, Place::Message(at), index)?;
                    let (content, image_sources) = parts.finish();
                    self.converted.push(InputMessage::User {
                        content,
                        image_sources,
                    });
                }
                Block::ToolResult(result) => {
                    self.check_answer(result.id, &mut answered, at, index)?;
                    self.tool_result(result, &mut found, at, index)?;
                }
                other => return Err(misplaced(other, at, index)),
            }
        }
        self.pending.end()?;
        if !found.is_empty() {
            self.converted.push(InputMessage::System {
                content: Prompt::default(),
                image_sources: Vec::new(),
                tools: Some(found),
            });
        }
        Ok(())
    }

    /// Checks that the result at `index` is the only one of a call that waits for it.
    fn check_answer(
        &mut self,
        id: &'v str,
        answered: &mut Names<'v>,
        at: usize,
        index: usize,
    ) -> Result<(), Error> {
        let param = || format!("messages[{at}].content[{index}].tool_use_id");
        if answered.contains(id) {
            let message = format!(
                "messages.{at}.content.{index}: each tool_use must have a single result. Found multiple `tool_result` blocks with id: {id}"
            );
            return Err(refused(param(), message));
        }
        if !self.pending.answer(id) {
            let message = format!(
                "unexpected `messages.{at}.content.{index}: tool_use_id` found in `tool_result` blocks: {id}. Each `tool_result` block must have a corresponding `tool_use` block in the previous message."
            );
            return Err(refused(param(), message));
        }
        answered.insert(id);
        Ok(())
    }

    /// Converts a result, and collects in `found` the tools that it names.
    fn tool_result(
        &mut self,
        result: &ToolResult<'v>,
        found: &mut Vec<ToolDefinition>,
        at: usize,
        index: usize,
    ) -> Result<(), Error> {
        if result.is_error {
            let param = format!("messages[{at}].content[{index}].is_error");
            let message = "the model reads results and errors alike";
            self.warnings.add("ignored_field", param, message);
        }
        let mut parts = Parts::new(self.context);
        match &result.content {
            ResultContent::Text(text) => parts.text(text),
            ResultContent::Parts(list) => {
                for (inner, part) in list.iter().enumerate() {
                    self.add(&mut parts, part, Place::Result(at, index), inner)?;
                    let Part::Reference(name) = part else {
                        continue;
                    };
                    if !self.known.contains(name) {
                        let param =
                            format!("messages[{at}].content[{index}].content[{inner}].tool_name");
                        let message = format!(
                            "messages.{at}.content.{index}: tool reference '{name}' not found in available tools"
                        );
                        return Err(refused(param, message));
                    }
                    if self.context.encoding == Encoding::V41 {
                        found.push(tools::mention(name));
                    }
                }
            }
        }
        let (content, image_sources) = parts.finish();
        self.converted.push(InputMessage::Tool {
            content,
            image_sources,
            tool_call_id: Some(result.id.to_owned()),
        });
        Ok(())
    }

    fn assistant(&mut self, at: usize, blocks: &[Block<'v>]) -> Result<(), Error> {
        check_not_empty(at, blocks)?;
        let mut content = String::new();
        let mut reasoning: Option<String> = None;
        let mut calls = Vec::new();
        let mut pending = Pending::new(at);
        for (index, block) in blocks.iter().enumerate() {
            match block {
                Block::Part(part) => {
                    pending.allow_block(at, index)?;
                    if !content.is_empty() {
                        content.push_str(BETWEEN_PARTS);
                    }
                    self.add_assistant(&mut content, part, at, index)?;
                }
                Block::Thinking(thought) => match &mut reasoning {
                    Some(reasoning) => {
                        reasoning.push_str(BETWEEN_PARTS);
                        reasoning.push_str(thought);
                    }
                    None => reasoning = Some((*thought).to_owned()),
                },
                Block::RedactedThinking => {
                    let message = "the model cannot read thinking of others";
                    self.dropped(at, index, message);
                }
                Block::ToolUse { id, name, input } => {
                    if !pending.add(id) {
                        let message =
                            format!("messages.{at}.content.{index}: `tool_use` ids must be unique");
                        let param = format!("messages[{at}].content[{index}].id");
                        return Err(refused(param, message));
                    }
                    calls.push(ToolCall {
                        id: (*id).to_owned(),
                        name: (*name).to_owned(),
                        arguments: json::to_string(input, Style::Spaced),
                    });
                }
                Block::ServerToolUse | Block::WebSearchToolResult => {
                    if self.context.settings.messages_web_search_rejected {
                        let message = "Unsupported content block: server tools are not supported";
                        let param = format!("messages[{at}].content[{index}]");
                        return Err(refused(param, message));
                    }
                    self.dropped(at, index, "there are no server tools");
                }
                other => return Err(misplaced(other, at, index)),
            }
        }
        self.pending = pending;
        self.converted.push(InputMessage::Assistant {
            content,
            reasoning_content: reasoning,
            tool_calls: (!calls.is_empty()).then_some(calls),
            prefix: false,
        });
        Ok(())
    }

    fn system(&mut self, at: usize, content: &Content<'v>) -> Result<(), Error> {
        let mut parts = Parts::new(self.context);
        let mut added = Vec::new();
        match content {
            Content::Text(text) => parts.text(text),
            Content::Blocks(blocks) => {
                for (index, block) in blocks.iter().enumerate() {
                    match block {
                        Block::Part(part) => {
                            self.add(&mut parts, part, Place::System(at), index)?;
                        }
                        Block::ToolAddition(name) if self.known.contains(name) => {
                            added.push(tools::mention(name));
                        }
                        Block::ToolAddition(name) => {
                            let param = format!("messages[{at}].content[{index}].tool.name");
                            let message = format!(
                                "messages.{at}.content.{index}: `tool_addition` references unknown tool '{name}'"
                            );
                            return Err(refused(param, message));
                        }
                        other => return Err(misplaced(other, at, index)),
                    }
                }
            }
        }
        let (content, image_sources) = parts.finish();
        if self.context.encoding == Encoding::V41 {
            self.converted.push(InputMessage::System {
                content,
                image_sources,
                tools: (!added.is_empty()).then_some(added),
            });
        } else if !content.text.is_empty() {
            // This version has system messages at the start only.
            let text = format!("<system-reminder>\n{}\n</system-reminder>", content.text);
            self.push_user(Prompt::plain(text));
        }
        Ok(())
    }

    /// Adds a part, the one at `index` of `place`.
    fn add(
        &mut self,
        parts: &mut Parts<'_>,
        part: &Part<'_>,
        place: Place,
        index: usize,
    ) -> Result<(), Error> {
        match part {
            Part::Text(text) => parts.text(text),
            Part::Reference(name) => parts.text(name),
            Part::Document(media_type) => {
                let text = self.document(*media_type, || place.param(index));
                parts.text(&text);
            }
            Part::Image(_) if self.context.encoding == Encoding::V4 => {
                parts.unseen_image(|| place.param(index), self.warnings);
            }
            Part::Image(image) => parts.image(images::convert(
                self.context,
                image,
                || place.path(index),
                || place.param(index),
                place.source(index),
            )?),
        }
        Ok(())
    }

    /// Adds a part to what an assistant said, which has no images.
    fn add_assistant(
        &mut self,
        content: &mut String,
        part: &Part<'_>,
        at: usize,
        index: usize,
    ) -> Result<(), Error> {
        let param = || Place::Message(at).param(index);
        match part {
            Part::Text(text) | Part::Reference(text) => content.push_str(text),
            Part::Document(media_type) => {
                let text = self.document(*media_type, param);
                content.push_str(&text);
            }
            Part::Image(_) if self.context.encoding == Encoding::V4 => {
                content.push_str(UNSUPPORTED_IMAGE);
                let message = format!("the model sees no images; it reads {UNSUPPORTED_IMAGE:?}");
                self.warnings.add("image_as_text", param(), message);
            }
            Part::Image(image) => {
                // An image that is wrong in itself is refused for that.
                let place = Place::Message(at);
                let path = || place.path(index);
                images::convert(self.context, image, path, param, place.source(index))?;
                let message = "Image in assistant message is unsupported";
                return Err(refused(param(), message));
            }
        }
        Ok(())
    }

    /// What stands for a document.
    fn document(&mut self, media_type: Option<&str>, param: impl FnOnce() -> String) -> String {
        let text = format!(
            "[Unsupported document type: {}]",
            media_type.unwrap_or("unknown")
        );
        let message = "the model reads no documents, only their type";
        self.warnings.add("image_as_text", param(), message);
        text
    }

    fn dropped(&mut self, at: usize, index: usize, message: &str) {
        let param = format!("messages[{at}].content[{index}]");
        self.warnings.add("dropped_item", param, message);
    }

    fn push_user(&mut self, content: Prompt) {
        self.converted.push(InputMessage::User {
            content,
            image_sources: Vec::new(),
        });
    }
}

/// Whose parts these are, by the index of the message.
#[derive(Clone, Copy)]
enum Place {
    /// Of a user or an assistant.
    Message(usize),
    System(usize),
    /// Of the result that is the block of the second index.
    Result(usize, usize),
}

impl Place {
    /// Where the part at `index` stands, as texts of errors say it.
    fn path(self, index: usize) -> String {
        match self {
            Self::Message(at) | Self::System(at) => format!("messages.{at}.content[{index}]"),
            Self::Result(..) => format!("{}.content[{index}]", self.source(index)),
        }
    }

    /// Where its image comes from: images of one content share a path.
    fn source(self, index: usize) -> String {
        match self {
            Self::Message(_) => self.path(index),
            Self::System(at) => format!("messages.{at}"),
            Self::Result(at, block) => format!("messages.{at}.content.{block}.tool_result"),
        }
    }

    /// The same in the request.
    fn param(self, index: usize) -> String {
        match self {
            Self::Message(at) | Self::System(at) => format!("messages[{at}].content[{index}]"),
            Self::Result(at, block) => {
                format!("messages[{at}].content[{block}].content[{index}]")
            }
        }
    }
}

fn check_not_empty(at: usize, blocks: &[Block<'_>]) -> Result<(), Error> {
    if blocks.is_empty() {
        let message = format!("messages.{at}: all messages must have non-empty content");
        return Err(refused(format!("messages[{at}].content"), message));
    }
    Ok(())
}

/// The text for a block in a message of the wrong role.
fn misplaced(block: &Block<'_>, at: usize, index: usize) -> Error {
    let (kind, role) = match block {
        Block::ToolUse { .. } | Block::ServerToolUse => ("tool_use", "assistant"),
        Block::ToolResult(_) => ("tool_result", "user"),
        Block::WebSearchToolResult => ("web_search_tool_result", "assistant"),
        Block::ToolAddition(_) => ("tool_addition", "system"),
        // Text goes anywhere; what is left is thinking, which has a text of its own.
        Block::Part(_) | Block::Thinking(_) | Block::RedactedThinking => {
            let message = format!(
                "messages.{at}.content: thinking blocks may only be in `assistant` messages"
            );
            return refused(format!("messages[{at}].content[{index}]"), message);
        }
    };
    let message = format!("messages.{at}: `{kind}` blocks can only be in `{role}` messages");
    refused(format!("messages[{at}].content[{index}]"), message)
}
