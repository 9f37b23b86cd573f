//! Tools as Responses declares them: their shape, and how they are written where a declaration is shown again
//! (the response repeats its own, the model reads those that a search found).

use crate::recipe::error::Error;
use crate::recipe::json::{self, Json, Style};
use crate::recipe::request::read::Node;

/// A declared tool, by its type.
pub(super) enum Tool<'v> {
    Function(Function<'v>),
    Namespace {
        name: &'v str,
        description: Option<&'v str>,
        members: Vec<Member<'v>>,
    },
    Custom {
        name: &'v str,
    },
    Search {
        execution: Option<Execution>,
        description: Option<&'v str>,
        parameters: Option<&'v Json<'v>>,
    },
    WebSearch {
        /// Its type, of which there are two.
        kind: &'v str,
        context_size: Option<&'v str>,
        location: Option<Location<'v>>,
    },
    /// Of a type that we do not offer.
    Ignored(&'v str),
}

/// A tool inside a namespace.
pub(super) enum Member<'v> {
    Function(Function<'v>),
    Custom { name: &'v str },
}

/// A function.
pub(super) struct Function<'v> {
    pub(super) name: &'v str,
    pub(super) description: Option<&'v str>,
    pub(super) parameters: Option<&'v Json<'v>>,
    pub(super) strict: Option<bool>,
}

/// Who runs a tool search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Execution {
    Client,
    Server,
}

/// Where the user of a web search is.
pub(super) struct Location<'v> {
    city: Option<&'v str>,
    country: Option<&'v str>,
    region: Option<&'v str>,
    timezone: Option<&'v str>,
}

/// Reads one.
pub(super) fn read<'v>(node: Node<'v, '_>) -> Result<Tool<'v>, Error> {
    let name = || node.required("name")?.text();
    let description = || node.maybe("description", |node| node.text());
    Ok(match node.required("type")?.text()? {
        "function" => Tool::Function(function(&node)?),
        "namespace" => Tool::Namespace {
            name: name()?,
            description: description()?,
            members: node.required("tools")?.list(member)?,
        },
        "custom" => Tool::Custom { name: name()? },
        "tool_search" => Tool::Search {
            execution: node.maybe("execution", execution)?,
            description: description()?,
            parameters: node.optional("parameters")?.map(|node| node.value()),
        },
        kind @ ("web_search" | "web_search_2025_08_26") => Tool::WebSearch {
            kind,
            context_size: node.maybe("search_context_size", |node| {
                node.choice(&[("low", "low"), ("medium", "medium"), ("high", "high")])
            })?,
            location: node.maybe("user_location", location)?,
        },
        other => Tool::Ignored(other),
    })
}

/// Reads who runs a tool search.
pub(super) fn execution(node: Node<'_, '_>) -> Result<Execution, Error> {
    node.choice(&[("client", Execution::Client), ("server", Execution::Server)])
}

fn member<'v>(node: Node<'v, '_>) -> Result<Member<'v>, Error> {
    let is_custom = node
        .required("type")?
        .choice(&[("function", false), ("custom", true)])?;
    if is_custom {
        let name = node.required("name")?.text()?;
        return Ok(Member::Custom { name });
    }
    function(&node).map(Member::Function)
}

fn function<'v>(node: &Node<'v, '_>) -> Result<Function<'v>, Error> {
    Ok(Function {
        name: node.required("name")?.text()?,
        description: node.maybe("description", |node| node.text())?,
        parameters: node.optional("parameters")?.map(|node| node.value()),
        strict: node.maybe("strict", |node| node.boolean())?,
    })
}

fn location<'v>(node: Node<'v, '_>) -> Result<Location<'v>, Error> {
    Ok(Location {
        city: node.maybe("city", |node| node.text())?,
        country: node.maybe("country", |node| node.text())?,
        region: node.maybe("region", |node| node.text())?,
        timezone: node.maybe("timezone", |node| node.text())?,
    })
}

/// The tools as one compact array, as they were declared. Those of types that we do not offer are left out.
pub(super) fn declarations(tools: &[Tool<'_>]) -> String {
    let mut out = String::from("[");
    for tool in tools {
        match tool {
            Tool::Namespace {
                name,
                description,
                members,
            } => {
                open(&mut out, "namespace");
                text_field(&mut out, "name", Some(name));
                text_field(&mut out, "description", *description);
                out.push_str(",\"tools\":[");
                for member in members {
                    write_member(&mut out, member);
                    out.push('}');
                }
                out.push_str("]}");
            }
            Tool::Ignored(_) => {}
            tool => write_plain(&mut out, tool),
        }
    }
    out.push(']');
    out
}

/// The tools that a search found as one compact array: members of a namespace stand on their own and say
/// which one it is.
pub(super) fn found(tools: &[Tool<'_>]) -> String {
    let mut out = String::from("[");
    for tool in tools {
        match tool {
            Tool::Namespace {
                name,
                description,
                members,
            } => {
                for member in members {
                    write_member(&mut out, member);
                    out.push_str(",\"namespace\":{\"name\":");
                    json::write_string(&mut out, name);
                    text_field(&mut out, "description", Some(description.unwrap_or("")));
                    out.push_str("}}");
                }
            }
            Tool::Ignored(_) => {}
            tool => write_plain(&mut out, tool),
        }
    }
    out.push(']');
    out
}

/// Writes a tool that has no tools inside.
fn write_plain(out: &mut String, tool: &Tool<'_>) {
    match tool {
        Tool::Function(function) => write_function(out, function),
        Tool::Custom { name } => {
            open(out, "custom");
            text_field(out, "name", Some(name));
        }
        Tool::Search {
            execution,
            description,
            parameters,
        } => {
            open(out, "tool_search");
            let execution = execution.map(|execution| match execution {
                Execution::Client => "client",
                Execution::Server => "server",
            });
            text_field(out, "execution", execution);
            text_field(out, "description", *description);
            value_field(out, "parameters", *parameters);
        }
        Tool::WebSearch {
            kind,
            context_size,
            location,
        } => {
            open(out, kind);
            text_field(out, "search_context_size", *context_size);
            out.push_str(",\"user_location\":");
            match location {
                None => out.push_str("null"),
                Some(location) => {
                    out.push_str("{\"city\":");
                    write_text(out, location.city);
                    text_field(out, "country", location.country);
                    text_field(out, "region", location.region);
                    text_field(out, "timezone", location.timezone);
                    out.push('}');
                }
            }
        }
        Tool::Namespace { .. } | Tool::Ignored(_) => return,
    }
    out.push('}');
}

/// Writes a member up to its closing brace.
fn write_member(out: &mut String, member: &Member<'_>) {
    match member {
        Member::Function(function) => write_function(out, function),
        Member::Custom { name } => {
            open(out, "custom");
            text_field(out, "name", Some(name));
        }
    }
}

/// Writes a function up to its closing brace.
fn write_function(out: &mut String, function: &Function<'_>) {
    open(out, "function");
    text_field(out, "name", Some(function.name));
    text_field(out, "description", function.description);
    value_field(out, "parameters", function.parameters);
    strict_field(out, function.strict);
}

/// Begins an object of this type, after a comma unless it is the first of its array.
fn open(out: &mut String, kind: &str) {
    if !out.ends_with('[') {
        out.push(',');
    }
    out.push_str("{\"type\":");
    json::write_string(out, kind);
}

/// Writes a further field: a string, or null.
pub(super) fn text_field(out: &mut String, key: &str, value: Option<&str>) {
    out.push_str(",\"");
    out.push_str(key);
    out.push_str("\":");
    write_text(out, value);
}

/// Writes a further field: `strict`.
pub(super) fn strict_field(out: &mut String, strict: Option<bool>) {
    out.push_str(match strict {
        Some(true) => ",\"strict\":true",
        Some(false) => ",\"strict\":false",
        None => ",\"strict\":null",
    });
}

/// Writes a further field: a value, or null.
pub(super) fn value_field(out: &mut String, key: &str, value: Option<&Json<'_>>) {
    out.push_str(",\"");
    out.push_str(key);
    out.push_str("\":");
    match value {
        Some(value) => json::write(out, value, Style::Compact),
        None => out.push_str("null"),
    }
}

fn write_text(out: &mut String, value: Option<&str>) {
    match value {
        Some(text) => json::write_string(out, text),
        None => out.push_str("null"),
    }
}
