//! Declared tools become functions: those of the request, then those that tool searches found. Namespaces are
//! flattened, and what is no function is dropped or refused.

use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt::{self, Display, Formatter};
use std::ops::Range;
use std::sync::LazyLock;

use super::names::Names;
use super::shape::Item;
use super::tools::{Execution, Function, Member, Tool};
use crate::recipe::encoding::Encoding;
use crate::recipe::error::Error;
use crate::recipe::json::{self, Json};
use crate::recipe::options::NamespacedTool;
use crate::recipe::request::tools::{self as shared, Declared, Repeated};
use crate::recipe::request::warnings::Warnings;
use crate::recipe::request::{Context, refused};

/// The one custom tool that the models know.
pub(super) const APPLY_PATCH: &str = "apply_patch";

/// What its function is described with, byte for byte what the models were trained on.
const APPLY_PATCH_DESCRIPTION: &str = include_str!("apply_patch.txt");

static APPLY_PATCH_PARAMETERS: LazyLock<Json<'static>> = LazyLock::new(|| {
    let text = r#"{"type":"object","additionalProperties":false,"properties":{"input":{"type":"string","description":"The entire contents of the apply_patch command (the *** Begin Patch ... *** End Patch envelope)."}},"required":["input"]}"#;
    json::parse(text).expect("the text above is JSON")
});

/// The name of the function that searches tools.
pub(super) const TOOL_SEARCH: &str = "tool_search";

/// Where a declaration stands in the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    /// The tool-search output that found it.
    item: Option<usize>,
    tool: usize,
    /// Its place inside a namespace.
    member: Option<usize>,
}

impl Place {
    /// The path of its name.
    fn name(self) -> String {
        format!("{self}.name")
    }
}

impl Display for Place {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if let Some(item) = self.item {
            write!(f, "input[{item}].")?;
        }
        write!(f, "tools[{}]", self.tool)?;
        match self.member {
            Some(member) => write!(f, ".tools[{member}]"),
            None => Ok(()),
        }
    }
}

/// A function that a declaration became.
struct Flat<'v> {
    name: Cow<'v, str>,
    description: Option<Cow<'v, str>>,
    parameters: Option<&'v Json<'v>>,
    strict: Option<bool>,
    place: Place,
}

/// All functions of a request.
pub(super) struct Declarations<'v> {
    functions: Vec<Flat<'v>>,
    /// The tool-search outputs, in order, with the functions that each of them found.
    found: Vec<(usize, Range<usize>)>,
    /// Names in use.
    pub(super) names: Names<'v>,
    /// Functions of namespaces, those that searches found among them: the model may call any.
    pub(super) namespaced: Vec<NamespacedTool>,
    /// What members repeat of their namespaces.
    repeated: Repeated,
    /// Whether the client has `apply_patch`.
    pub(super) patches: bool,
    /// Whether the client runs tool searches. It may say so to a model that is not told.
    pub(super) client_search: bool,
}

impl<'v> Declarations<'v> {
    /// Reads the declarations of a request.
    pub(super) fn read(
        context: Context<'_>,
        tools: &[Tool<'v>],
        items: &[Item<'v>],
        warnings: &mut Warnings,
    ) -> Result<Self, Error> {
        let mut declarations = Self {
            functions: Vec::with_capacity(tools.len()),
            found: Vec::new(),
            names: Names::default(),
            namespaced: Vec::new(),
            repeated: Repeated::default(),
            patches: false,
            client_search: tools.iter().any(is_client_search),
        };
        let searched = items.iter().filter_map(|item| match item {
            Item::SearchOutput { tools, .. } => Some(tools.as_slice()),
            _ => None,
        });
        for tool in std::iter::once(tools).chain(searched).flatten() {
            if let Tool::Function(Function { name, .. }) | Tool::Custom { name } = tool {
                declarations.names.take(name);
            }
        }
        declarations.add_all(context, tools, None, warnings)?;
        if context.encoding == Encoding::V4 {
            return Ok(declarations);
        }
        for (item, search) in items.iter().enumerate() {
            if let Item::SearchOutput { tools, .. } = search {
                let first = declarations.functions.len();
                declarations.add_all(context, tools, Some(item), warnings)?;
                let functions = first..declarations.functions.len();
                declarations.found.push((item, functions));
            }
        }
        Ok(declarations)
    }

    /// Whether there is no function at all.
    pub(super) fn is_empty(&self) -> bool {
        self.functions.is_empty()
    }

    /// The functions, as all protocols declare them.
    pub(super) fn declared(&self) -> Vec<Declared<'_>> {
        let functions = self.functions.iter().map(|function| Declared {
            name: &function.name,
            description: function.description.as_deref(),
            parameters: function.parameters,
            strict: function.strict,
            defer_loading: function.place.item.is_some(),
        });
        functions.collect()
    }

    /// Where the function `at` is declared.
    pub(super) fn path(&self, at: usize) -> String {
        self.functions[at].place.to_string()
    }

    /// Names of the functions that the output `item` of a tool search found.
    pub(super) fn found(&self, item: usize) -> impl Iterator<Item = &str> {
        let functions = match self.found.binary_search_by_key(&item, |(item, _)| *item) {
            Ok(at) => &self.functions[self.found[at].1.clone()],
            Err(_) => &[],
        };
        functions.iter().map(|function| &*function.name)
    }

    fn add_all(
        &mut self,
        context: Context<'_>,
        tools: &[Tool<'v>],
        item: Option<usize>,
        warnings: &mut Warnings,
    ) -> Result<(), Error> {
        for (at, tool) in tools.iter().enumerate() {
            let place = Place {
                item,
                tool: at,
                member: None,
            };
            self.add(context, tool, place, warnings)?;
        }
        Ok(())
    }

    fn add(
        &mut self,
        context: Context<'_>,
        tool: &Tool<'v>,
        place: Place,
        warnings: &mut Warnings,
    ) -> Result<(), Error> {
        match tool {
            Tool::Function(function) => {
                shared::check_name(function.name, || place.to_string(), false)?;
                self.functions.push(Flat {
                    name: function.name.into(),
                    description: function.description.map(Cow::Borrowed),
                    parameters: function.parameters,
                    strict: function.strict,
                    place,
                });
            }
            Tool::Namespace {
                name,
                description,
                members,
            } => self.add_namespace(context, name, *description, members, place)?,
            Tool::Custom { name } => {
                if *name != APPLY_PATCH {
                    let message = format!(
                        "Unsupported custom tool: '{name}'. Only 'apply_patch' is supported."
                    );
                    return Err(refused(place.name(), message));
                }
                self.patches = true;
                self.functions.push(Flat {
                    name: APPLY_PATCH.into(),
                    description: Some(apply_patch_description(context.encoding)),
                    parameters: Some(&*APPLY_PATCH_PARAMETERS),
                    strict: None,
                    place,
                });
            }
            Tool::Search {
                execution: Some(Execution::Client),
                description,
                parameters,
            } if context.encoding == Encoding::V41 => {
                self.functions.push(Flat {
                    name: TOOL_SEARCH.into(),
                    description: description.map(Cow::Borrowed),
                    parameters: *parameters,
                    strict: None,
                    place,
                });
            }
            Tool::Search { .. } => {
                let message = "tool searches are offered only to V4.1, and run by the client";
                warnings.add("dropped_tool", place.to_string(), message);
            }
            Tool::WebSearch { .. } => {
                if context.settings.responses_web_search_rejected {
                    return Err(no_server_tools(place.to_string()));
                }
                warnings.add("dropped_tool", place.to_string(), "there is no web search");
            }
            // Of those that a search found, more is said where its output is shown.
            Tool::Ignored(_) if place.item.is_some() => {}
            Tool::Ignored(kind) => {
                let message = format!("tools of the type {kind:?} are not offered");
                warnings.add("dropped_tool", place.to_string(), message);
            }
        }
        Ok(())
    }

    fn add_namespace(
        &mut self,
        context: Context<'_>,
        namespace: &'v str,
        description: Option<&'v str>,
        members: &[Member<'v>],
        place: Place,
    ) -> Result<(), Error> {
        shared::check_name(namespace, || place.to_string(), false)?;
        let mut locals: HashSet<&str, ahash::RandomState> = HashSet::default();
        for (at, member) in members.iter().enumerate() {
            let place = Place {
                member: Some(at),
                ..place
            };
            let function = match member {
                Member::Function(function) => function,
                Member::Custom { name } => {
                    let message = format!(
                        "Currently custom tools are not allowed inside a namespace. Found custom tool '{name}' in {place}."
                    );
                    return Err(refused(place.to_string(), message));
                }
            };
            shared::check_name(function.name, || place.to_string(), false)?;
            if !locals.insert(function.name) {
                let message = "Tool names within a namespace must be unique.";
                return Err(refused(place.name(), message));
            }
            let name = self
                .names
                .declare(context.encoding, namespace, function.name);
            self.namespaced.push(NamespacedTool {
                function: name.clone(),
                namespace: namespace.to_owned(),
                local: function.name.to_owned(),
            });
            if context.encoding == Encoding::V41 {
                let bytes = description.map_or(0, str::len);
                let param = || place.to_string();
                self.repeated.add(bytes, param, function.name)?;
            }
            let description = match description {
                Some(about) if !about.is_empty() && context.encoding == Encoding::V41 => Some(
                    [about, "\n", function.description.unwrap_or("")]
                        .concat()
                        .into(),
                ),
                _ => function.description.map(Cow::Borrowed),
            };
            self.functions.push(Flat {
                name: name.into(),
                description,
                parameters: function.parameters,
                strict: function.strict,
                place,
            });
        }
        Ok(())
    }
}

fn is_client_search(tool: &Tool<'_>) -> bool {
    let client = Some(Execution::Client);
    matches!(tool, Tool::Search { execution, .. } if *execution == client)
}

/// The refusal of a tool that only the official service could run.
pub(super) fn no_server_tools(param: String) -> Error {
    refused(param, "Server tools are not supported")
}

/// The text of V4 lacks one line break.
fn apply_patch_description(encoding: Encoding) -> Cow<'static, str> {
    match encoding {
        Encoding::V41 => APPLY_PATCH_DESCRIPTION.into(),
        Encoding::V4 => APPLY_PATCH_DESCRIPTION
            .replacen("envelope:\n\n", "envelope:\n", 1)
            .into(),
    }
}
