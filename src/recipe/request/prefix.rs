//! A final assistant message that the model is to continue.

use super::refused;
use crate::recipe::conversation::InputMessage;
use crate::recipe::error::Error;

/// Such a message does not go together with tools, neither declared ones nor calls and results of old turns.
pub(super) fn refuse_tools(has_tools: bool, messages: &[InputMessage]) -> Result<(), Error> {
    let uses_tools = |message: &InputMessage| {
        matches!(
            message,
            InputMessage::Tool { .. }
                | InputMessage::Assistant {
                    tool_calls: Some(_),
                    ..
                }
        )
    };
    if has_tools || messages.iter().any(uses_tools) {
        let message = "Function call should not be used with prefix";
        return Err(refused("messages", message));
    }
    Ok(())
}
