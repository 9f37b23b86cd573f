//! Content of a message, put together block by block: text, and placeholders where images stand.

use super::image::{self, UNSUPPORTED_IMAGE};
use super::warnings::Warnings;
use super::{Context, refused};
use crate::recipe::conversation::{ImageOrigin, ImageSource, InputMessage, Prompt};
use crate::recipe::encoding::SpecialToken;
use crate::recipe::error::Error;

/// What separates the parts of a content.
pub(super) const BETWEEN_PARTS: &str = "\n\n";

/// The content so far.
pub(super) struct Parts<'a> {
    context: Context<'a>,
    prompt: Prompt,
    sources: Vec<ImageSource>,
    is_first: bool,
}

impl<'a> Parts<'a> {
    /// Nothing yet.
    pub(super) fn new(context: Context<'a>) -> Self {
        Self {
            context,
            prompt: Prompt::default(),
            sources: Vec::new(),
            is_first: true,
        }
    }

    /// Adds a text, which counts as a part even when it is empty.
    pub(super) fn text(&mut self, text: &str) {
        self.separate();
        self.prompt.text.push_str(text);
    }

    /// Adds an image.
    pub(super) fn image(&mut self, source: ImageSource) {
        self.separate();
        let tokens = &self.context.settings.special_tokens;
        let start = self.prompt.text.len();
        self.prompt
            .text
            .push_str(tokens.spelling(SpecialToken::Image));
        self.prompt
            .special_ranges
            .push(start..self.prompt.text.len());
        self.sources.push(source);
    }

    /// Adds what a model without eyes reads for an image; `param` names the block.
    pub(super) fn unseen_image(&mut self, param: impl FnOnce() -> String, warnings: &mut Warnings) {
        self.text(UNSUPPORTED_IMAGE);
        let message = format!("the model sees no images; it reads {UNSUPPORTED_IMAGE:?}");
        warnings.add("image_as_text", param(), message);
    }

    /// Checks inline images, now that every block was read; `param` names the content.
    pub(super) fn check_data_urls(&self, param: impl Fn() -> String) -> Result<(), Error> {
        for source in &self.sources {
            if let ImageOrigin::DataUrl(url) = &source.origin {
                image::check_data_url(url, &source.path, &param())?;
            }
        }
        Ok(())
    }

    /// The content and its images.
    pub(super) fn finish(self) -> (Prompt, Vec<ImageSource>) {
        (self.prompt, self.sources)
    }

    fn separate(&mut self) {
        if !self.is_first {
            self.prompt.text.push_str(BETWEEN_PARTS);
        }
        self.is_first = false;
    }
}

/// Somewhere in what the model reads, the word must stand: without it, models fill the context with spaces.
/// `message` is the text of the refusal.
pub(super) fn check_json_word(
    messages: &[InputMessage],
    param: &str,
    message: &str,
) -> Result<(), Error> {
    let says_json = |message: &InputMessage| {
        let text = match message {
            InputMessage::System { content, .. }
            | InputMessage::User { content, .. }
            | InputMessage::Tool { content, .. } => &content.text,
            InputMessage::Assistant { content, .. } | InputMessage::LatestReminder { content } => {
                content
            }
        };
        text.as_bytes()
            .windows(4)
            .any(|word| word.eq_ignore_ascii_case(b"json"))
    };
    if messages.iter().any(says_json) {
        return Ok(());
    }
    Err(refused(param, message))
}
