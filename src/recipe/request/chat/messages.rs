//! Messages of Chat Completions become messages of a conversation, in order, each checked as it comes.

use std::collections::HashSet;

use super::shape::{Block, Call, Content, Message};
use crate::recipe::conversation::{
    ImageDetail, ImageOrigin, ImageSource, InputMessage, Prompt, ToolCall,
};
use crate::recipe::encoding::Encoding;
use crate::recipe::error::Error;
use crate::recipe::request::content::Parts;
use crate::recipe::request::image::{self, DataUrl};
use crate::recipe::request::warnings::Warnings;
use crate::recipe::request::{Context, billing, refused};

/// Converts all messages.
pub(super) fn convert(
    context: Context<'_>,
    messages: &[Message<'_>],
    warnings: &mut Warnings,
) -> Result<Vec<InputMessage>, Error> {
    if messages.is_empty() {
        return Err(refused("messages", "Empty input messages"));
    }
    let mut converted = Vec::with_capacity(messages.len());
    let mut pending: Option<Pending<'_>> = None;
    for (at, message) in messages.iter().enumerate() {
        match (&mut pending, message) {
            (Some(calls), Message::Tool { call_id, .. }) => {
                calls.answer(at, call_id)?;
                if calls.open.is_empty() {
                    pending = None;
                }
            }
            (Some(calls), _) => return Err(calls.unanswered()),
            (None, Message::Tool { .. }) => {
                let message = "Messages with role 'tool' must be a response to a preceding message with 'tool_calls'";
                return Err(refused(format!("messages[{at}]"), message));
            }
            (None, _) => {}
        }
        let mut contents = Contents {
            context,
            at,
            warnings,
        };
        match message {
            Message::System(content) => {
                let (content, image_sources) = contents.convert(content)?;
                let content = without_billing_header(context, content);
                if !content.text.is_empty() {
                    converted.push(InputMessage::System {
                        content,
                        image_sources,
                        tools: None,
                    });
                }
            }
            Message::User(content) => {
                let (content, image_sources) = contents.convert(content)?;
                converted.push(InputMessage::User {
                    content,
                    image_sources,
                });
            }
            Message::Assistant {
                content,
                reasoning,
                calls,
                prefix,
            } => {
                if content.is_none() && calls.is_none() {
                    let message = "Invalid assistant message: content or tool_calls must be set";
                    return Err(refused(format!("messages[{at}]"), message));
                }
                let text = match content {
                    Some(content) => contents.convert_assistant(content)?,
                    None => String::new(),
                };
                if let Some(calls) = calls {
                    pending = Some(Pending::new(calls, at)?);
                }
                converted.push(InputMessage::Assistant {
                    content: text,
                    reasoning_content: reasoning.map(str::to_owned),
                    tool_calls: calls.as_ref().map(|calls| calls.iter().map(call).collect()),
                    prefix: *prefix,
                });
            }
            Message::Tool { content, call_id } => {
                let (content, image_sources) = contents.convert(content)?;
                converted.push(InputMessage::Tool {
                    content,
                    image_sources,
                    tool_call_id: Some((*call_id).to_owned()),
                });
            }
            Message::LatestReminder(text) => {
                if context.encoding == Encoding::V41
                    && matches!(converted.last(), Some(InputMessage::LatestReminder { .. }))
                {
                    let dropped = if context.settings.fixes.keep_last_reminder {
                        at - 1
                    } else {
                        at
                    };
                    let message = "of two adjacent reminders only one is shown";
                    warnings.add("dropped_reminder", format!("messages[{dropped}]"), message);
                }
                converted.push(InputMessage::LatestReminder {
                    content: (*text).to_owned(),
                });
            }
        }
    }
    match pending {
        Some(calls) => Err(calls.unanswered()),
        None => Ok(converted),
    }
}

fn call(call: &Call<'_>) -> ToolCall {
    ToolCall {
        id: call.id.to_owned(),
        name: call.name.to_owned(),
        arguments: call.arguments.to_owned(),
    }
}

const UNANSWERED: &str = "An assistant message with 'tool_calls' must be followed by tool messages responding to each 'tool_call_id'";

/// The calls of an assistant message, which the messages right after it must answer, in any order.
struct Pending<'m> {
    /// Index of that message.
    from: usize,
    ids: HashSet<&'m str>,
    /// Those without an answer so far.
    open: HashSet<&'m str>,
}

impl<'m> Pending<'m> {
    /// Checks the calls of the message `from`.
    fn new(calls: &[Call<'m>], from: usize) -> Result<Self, Error> {
        if calls.is_empty() {
            let param = format!("messages[{from}].tool_calls");
            let message = format!(
                "Invalid '{param}': empty array. Expected an array with minimum length 1, but got an empty array instead."
            );
            return Err(refused(param, message));
        }
        let mut ids = HashSet::with_capacity(calls.len());
        for call in calls {
            if !ids.insert(call.id) {
                return Err(duplicate(call.id, from));
            }
        }
        let open = ids.clone();
        Ok(Self { from, ids, open })
    }

    /// Takes the answer `at`.
    fn answer(&mut self, at: usize, id: &str) -> Result<(), Error> {
        if !self.ids.contains(id) {
            let message = format!(
                "{UNANSWERED}, The following tool_call_ids did not have response messages: {id}"
            );
            return Err(refused(format!("messages[{at}].tool_call_id"), message));
        }
        if !self.open.remove(id) {
            return Err(duplicate(id, at));
        }
        Ok(())
    }

    /// Something else comes before all answers are there.
    fn unanswered(&self) -> Error {
        let message =
            format!("{UNANSWERED}. (insufficient tool messages following tool_calls message)");
        refused(format!("messages[{}].tool_calls", self.from), message)
    }
}

fn duplicate(id: &str, at: usize) -> Error {
    let message = format!("Duplicate value for 'tool_call_id' of {id} in message[{at}]");
    refused(format!("messages[{at}]"), message)
}

/// Drops the line that some clients put before their system prompt for accounting.
fn without_billing_header(context: Context<'_>, content: Prompt) -> Prompt {
    let any_case = context.settings.fixes.one_billing_header_rule;
    let kept = billing::without_header(&content.text, any_case);
    let removed = content.text.len() - kept.len();
    if removed == 0 {
        return content;
    }
    let special_ranges = content
        .special_ranges
        .iter()
        .filter(|range| range.start >= removed)
        .map(|range| range.start - removed..range.end - removed)
        .collect();
    Prompt {
        text: kept.to_owned(),
        special_ranges,
    }
}

/// Converts the content of one message.
struct Contents<'a, 'w> {
    context: Context<'a>,
    /// Index of the message.
    at: usize,
    warnings: &'w mut Warnings,
}

impl<'a> Contents<'a, '_> {
    fn convert(&mut self, content: &Content<'_>) -> Result<(Prompt, Vec<ImageSource>), Error> {
        let blocks = match content {
            Content::Text(text) => return Ok((Prompt::plain(*text), Vec::new())),
            Content::Blocks(blocks) => blocks,
        };
        let parts = self.parts(blocks)?;
        parts.check_data_urls(|| format!("messages[{}].content", self.at))?;
        Ok(parts.finish())
    }

    /// An assistant has no images, whatever is in them.
    fn convert_assistant(&mut self, content: &Content<'_>) -> Result<String, Error> {
        let blocks = match content {
            Content::Text(text) => return Ok((*text).to_owned()),
            Content::Blocks(blocks) => blocks,
        };
        let (prompt, sources) = self.parts(blocks)?.finish();
        if sources.is_empty() {
            return Ok(prompt.text);
        }
        let param = format!("messages[{}].content", self.at);
        Err(refused(
            param,
            "Image in assistant message is not supported",
        ))
    }

    /// What the blocks say; inline images are not looked into.
    fn parts(&mut self, blocks: &[Block<'_>]) -> Result<Parts<'a>, Error> {
        let mut parts = Parts::new(self.context);
        for (index, block) in blocks.iter().enumerate() {
            match block {
                Block::Text(text) => parts.text(text),
                _ if self.context.encoding == Encoding::V4 => parts.unseen_image(
                    || format!("messages[{}].content[{index}]", self.at),
                    self.warnings,
                ),
                Block::Image { url, detail } => parts.image(self.image(url, *detail, index)?),
                Block::File { id, data, name } => {
                    parts.image(self.file(*id, *data, *name, index)?);
                }
            }
        }
        Ok(parts)
    }

    fn image(&self, url: &str, detail: ImageDetail, index: usize) -> Result<ImageSource, Error> {
        let at = self.at;
        let limit = self.context.settings.image.url_bytes;
        let origin = if image::is_external(url) {
            let length = url.len();
            if length > limit as usize {
                let message = format!(
                    ".messages[{at}].image_url.url[{index}]: image_url.url external link length {length} too long, max link length {limit}. Consider passing file data directly with base64 data url instead."
                );
                let param = format!("messages[{at}].content[{index}].image_url.url");
                return Err(refused(param, message));
            }
            ImageOrigin::Url(url.to_owned())
        } else {
            ImageOrigin::DataUrl(url.to_owned())
        };
        Ok(ImageSource {
            origin,
            detail,
            path: self.path(),
        })
    }

    fn file(
        &self,
        id: Option<&str>,
        data: Option<&str>,
        name: Option<&str>,
        index: usize,
    ) -> Result<ImageSource, Error> {
        let wrong = |what: &str| {
            let param = format!("messages[{}].content[{index}]", self.at);
            Err(refused(param, format!("{}: {what}", self.path())))
        };
        let data = match (id, data) {
            (None, None) => return wrong("file must have a file_id or file_data"),
            (Some(_), Some(_)) => return wrong("file cannot have both file_id and file_data"),
            (Some(_), None) if name.is_some() => {
                return wrong("file cannot have filename when file_id is present");
            }
            (Some(_), None) => {
                return wrong(
                    "file_id is not supported. Pass the image as a base64 data url instead.",
                );
            }
            (None, Some(data)) => data,
        };
        match DataUrl::parse(data) {
            Some(url) if !url.is_image() => {
                return wrong(
                    "You have uploaded an unsupported file. Please make sure your file is valid and has one of the following formats: webp, png, jpeg, and gif.",
                );
            }
            Some(url) if url.decodes() => {}
            _ => return wrong("file_data is not a valid base64 data url"),
        }
        Ok(ImageSource {
            origin: ImageOrigin::DataUrl(data.to_owned()),
            detail: ImageDetail::default(),
            path: self.path(),
        })
    }

    /// Where images of this message come from, as the texts of errors begin.
    fn path(&self) -> String {
        format!(".messages[{}]", self.at)
    }
}
