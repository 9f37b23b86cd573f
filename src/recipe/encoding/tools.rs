//! Tool instructions and tool calls, which both versions write in the same markup with other names.

use super::special::SpecialToken::{Dsml, ThinkingEnd, ThinkingStart};
use super::writer::Writer;
use crate::recipe::conversation::{ToolCall, ToolDefinition};
use crate::recipe::json::{self, Json, Style};

/// The words of a version's markup.
pub(super) struct Markup {
    /// The element around all calls.
    pub(super) block: &'static str,
    /// The element of one call.
    pub(super) call: &'static str,
    /// The element of one argument.
    pub(super) parameter: &'static str,
    /// How values and schemas are written.
    pub(super) style: Style,
    /// Whether a call without arguments has an empty line where they would stand.
    pub(super) empty_line: bool,
}

/// The closing sentence of the tool prompt.
pub(super) const STRICTLY_FOLLOW: &str = "You MUST strictly follow the above defined tool name and parameter schemas to invoke tool calls.\n";

/// What stands before a response schema, after a blank line.
pub(super) const RESPONSE_FORMAT: &str =
    "## Response Format:\n\nYou MUST strictly adhere to the following schema to reply:\n";

impl Markup {
    /// How to use tools, up to the schemas.
    pub(super) fn instructions(&self, out: &mut Writer<'_>) {
        out.text("## Tools\n\nYou have access to a set of tools to help answer the user's question. You can invoke tools by writing a \"");
        self.open(out, self.block, "");
        out.text("\" block like the following:\n\n");
        self.open(out, self.block, "");
        out.text("\n");
        self.open(out, self.call, " name=\"$TOOL_NAME\"");
        out.text("\n");
        self.open(
            out,
            self.parameter,
            " name=\"$PARAMETER_NAME\" string=\"true|false\"",
        );
        out.text("$PARAMETER_VALUE");
        self.close(out, self.parameter);
        out.text("\n...\n");
        self.close(out, self.call);
        out.text("\n");
        self.open(out, self.call, " name=\"$TOOL_NAME2\"");
        out.text("\n...\n");
        self.close(out, self.call);
        out.text("\n");
        self.close(out, self.block);
        out.text("\n\nString parameters should be specified as is and set `string=\"true\"`. For all other types (numbers, booleans, arrays, objects), pass the value in JSON format and set `string=\"false\"`.\n\nIf thinking_mode is enabled (triggered by ");
        out.special(ThinkingStart);
        out.text("), you MUST output your complete reasoning inside ");
        out.special(ThinkingStart);
        out.text("...");
        out.special(ThinkingEnd);
        out.text(" BEFORE any tool calls or final response.\n\nOtherwise, output directly after ");
        out.special(ThinkingEnd);
        out.text(" with tool calls or final response.\n\n### Available Tool Schemas\n\n");
    }

    /// One tool as JSON.
    pub(super) fn schema(&self, out: &mut Writer<'_>, tool: &ToolDefinition) {
        let text = out.text_mut();
        text.push_str("{\"name\": ");
        json::write_string(text, &tool.name);
        text.push_str(", \"description\": ");
        json::write_string(text, tool.description.as_deref().unwrap_or(""));
        text.push_str(", \"parameters\": ");
        json::restyle(text, tool.parameters.as_str(), self.style);
        text.push('}');
    }

    /// A block of calls, after a blank line.
    pub(super) fn calls<'c>(
        &self,
        out: &mut Writer<'_>,
        calls: impl Iterator<Item = &'c ToolCall>,
    ) {
        self.open_block(out);
        for call in calls {
            out.text("<");
            out.special(Dsml);
            out.text(self.call);
            out.text(" name=\"");
            out.text(&call.name);
            out.text("\">\n");
            let empty = self.arguments(out, &call.arguments) == 0;
            if empty && self.empty_line {
                out.text("\n");
            }
            self.close(out, self.call);
            out.text("\n");
        }
        self.close(out, self.block);
    }

    /// The first line of a block of calls, after a blank line.
    pub(super) fn open_block(&self, out: &mut Writer<'_>) {
        out.text("\n\n");
        self.open(out, self.block, "");
        out.text("\n");
    }

    /// Writes the arguments of a call, a line each, and says how many there are. Arguments that are not
    /// an object become one argument with their text.
    fn arguments(&self, out: &mut Writer<'_>, arguments: &str) -> usize {
        let Ok(Json::Object(entries)) = json::parse(arguments) else {
            self.argument(out, "arguments", true, |text| text.push_str(arguments));
            return 1;
        };
        for (name, value) in entries.iter() {
            match value {
                Json::String(value) => {
                    self.argument(out, name, true, |text| text.push_str(value));
                }
                value => self.argument(out, name, false, |text| {
                    json::write(text, value, self.style);
                }),
            }
        }
        entries.len()
    }

    fn argument(
        &self,
        out: &mut Writer<'_>,
        name: &str,
        is_string: bool,
        value: impl FnOnce(&mut String),
    ) {
        out.text("<");
        out.special(Dsml);
        out.text(self.parameter);
        out.text(" name=\"");
        out.text(name);
        out.text(if is_string {
            "\" string=\"true\">"
        } else {
            "\" string=\"false\">"
        });
        value(out.text_mut());
        self.close(out, self.parameter);
        out.text("\n");
    }

    fn open(&self, out: &mut Writer<'_>, element: &str, attributes: &str) {
        out.text("<");
        out.special(Dsml);
        out.text(element);
        out.text(attributes);
        out.text(">");
    }

    fn close(&self, out: &mut Writer<'_>, element: &str) {
        out.text("</");
        out.special(Dsml);
        out.text(element);
        out.text(">");
    }
}
