//! Tools of Messages: those of the client, and those that would run on a server.

use std::collections::{HashMap, HashSet};

use super::shape::Tool;
use crate::recipe::conversation::{InputMessage, ToolDefinition};
use crate::recipe::encoding::Encoding;
use crate::recipe::error::Error;
use crate::recipe::request::tools::{Choice, Declared, Repeated, check_name, unknown_function};
use crate::recipe::request::warnings::Warnings;
use crate::recipe::request::{Context, refused};

/// The tools of a request, checked one by one.
pub(super) struct Tools<'v> {
    /// Those of the client.
    pub(super) client: Vec<Declared<'v>>,
    /// The index in the request of each of them.
    indices: Vec<usize>,
    /// Their names.
    pub(super) names: HashSet<&'v str, ahash::RandomState>,
    /// Names of tools that were dropped.
    dropped: HashSet<&'v str, ahash::RandomState>,
}

impl<'v> Tools<'v> {
    /// Checks names and kinds, and that a tool is there from the start.
    pub(super) fn new(
        context: Context<'_>,
        declared: &[Tool<'v>],
        warnings: &mut Warnings,
    ) -> Result<Self, Error> {
        let mut tools = Self {
            client: Vec::with_capacity(declared.len()),
            indices: Vec::with_capacity(declared.len()),
            names: HashSet::default(),
            dropped: HashSet::default(),
        };
        let defers = context.encoding == Encoding::V41;
        for (at, tool) in declared.iter().enumerate() {
            match tool {
                Tool::Client(tool) => {
                    check_name(tool.name, || format!("tools[{at}]"), false)?;
                    tools.names.insert(tool.name);
                    tools.indices.push(at);
                    tools.client.push(Declared {
                        defer_loading: tool.defer_loading && defers,
                        ..*tool
                    });
                }
                Tool::Server { kind, name } => {
                    if context.settings.messages_web_search_rejected
                        || !kind.starts_with("web_search")
                    {
                        let message = format!("tools[{at}]: server tools are not supported");
                        return Err(refused(format!("tools[{at}]"), message));
                    }
                    tools.dropped.insert(name.unwrap_or("web_search"));
                    let message = "there are no server tools";
                    warnings.add("dropped_tool", format!("tools[{at}]"), message);
                }
            }
        }
        if !tools.client.is_empty() && tools.client.iter().all(|tool| tool.defer_loading) {
            let message = "tools: at least one tool must have defer_loading=false. All tools cannot be deferred.";
            return Err(refused("tools", message));
        }
        Ok(tools)
    }

    /// The request path of a client tool.
    pub(super) fn path(&self, client: usize) -> String {
        format!("tools[{}]", self.indices[client])
    }

    /// The choice among the client tools. A dropped tool cannot be chosen, so the model may do as it likes;
    /// `forces` says that `any` is to force a call.
    pub(super) fn choice(&self, wanted: &Choice<'v>, forces: bool) -> Result<Choice<'v>, Error> {
        match wanted {
            Choice::Required if !forces => Ok(Choice::Auto),
            Choice::Named(name) if self.names.contains(name) => Ok(wanted.clone()),
            Choice::Named(name) if self.dropped.contains(name) => Ok(Choice::Auto),
            // A name is checked behind the schemas; but where every tool was dropped, none comes there.
            Choice::Named(name) if self.client.is_empty() && !self.dropped.is_empty() => {
                Err(unknown_function(name))
            }
            other => Ok(other.clone()),
        }
    }
}

/// Refuses messages that introduce the same definitions over and over.
pub(super) fn check_introduced(
    messages: &[InputMessage],
    definitions: &[ToolDefinition],
) -> Result<(), Error> {
    let introduced = messages.iter().filter_map(|message| match message {
        InputMessage::System { tools, .. } => tools.as_deref(),
        _ => None,
    });
    let mut introduced = introduced.flatten().peekable();
    if introduced.peek().is_none() {
        return Ok(());
    }
    let lengths: HashMap<&str, usize, ahash::RandomState> = definitions
        .iter()
        .map(|tool| (tool.name.as_str(), length(tool)))
        .collect();
    let mut repeated = Repeated::default();
    introduced.try_for_each(|tool| {
        let length = lengths.get(tool.name.as_str()).unwrap_or(&0);
        repeated.add(*length, || "messages".to_owned(), &tool.name)
    })
}

fn length(tool: &ToolDefinition) -> usize {
    let description = tool.description.as_deref().unwrap_or("");
    tool.name.len() + description.len() + tool.parameters.as_str().len()
}
