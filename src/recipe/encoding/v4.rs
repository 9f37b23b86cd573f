//! Rendering.

use crate::recipe::conversation::{Conversation, Prompt};
use crate::recipe::error::Error;

pub(super) fn render(_conversation: &Conversation) -> Result<Prompt, Error> {
    unimplemented!()
}
