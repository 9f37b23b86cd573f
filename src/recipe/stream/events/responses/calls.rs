//! What the functions of a request stand for in its response.

use std::collections::{HashMap, HashSet};

use crate::recipe::options::ResponseOptions;

/// The name of the function that is a tool search.
const TOOL_SEARCH: &str = "tool_search";

/// See the module.
#[derive(Debug)]
pub(super) struct Functions {
    custom: HashSet<String, ahash::RandomState>,
    client_search: bool,
    /// Namespace and local name of a function.
    namespaced: HashMap<String, (String, String), ahash::RandomState>,
}

/// What one function stands for.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Meaning<'a> {
    Custom,
    ToolSearch,
    Function {
        namespace: Option<&'a str>,
        name: &'a str,
    },
}

impl Functions {
    pub(super) fn of(options: &ResponseOptions) -> Self {
        let namespaced = options.namespace_tool_map.iter();
        Self {
            custom: options.custom_tool_names.iter().cloned().collect(),
            client_search: options.client_tool_search,
            namespaced: namespaced
                .map(|tool| {
                    let place = (tool.namespace.clone(), tool.local.clone());
                    (tool.function.clone(), place)
                })
                .collect(),
        }
    }

    /// What a call of `function` is a call of.
    pub(super) fn meaning<'a>(&'a self, function: &'a str) -> Meaning<'a> {
        if self.custom.contains(function) {
            return Meaning::Custom;
        }
        if self.client_search && function == TOOL_SEARCH {
            return Meaning::ToolSearch;
        }
        let place = match self.namespaced.get(function) {
            Some((namespace, local)) => Some((namespace.as_str(), local.as_str())),
            // A model that knows namespaces may use some that the request does not declare.
            None if self.namespaced.is_empty() => function.split_once("::"),
            None => None,
        };
        match place {
            Some((namespace, name)) => Meaning::Function {
                namespace: Some(namespace),
                name,
            },
            None => Meaning::Function {
                namespace: None,
                name: function,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipe::options::NamespacedTool;

    fn function<'a>(namespace: Option<&'a str>, name: &'a str) -> Meaning<'a> {
        Meaning::Function { namespace, name }
    }

    #[test]
    fn declared_namespaces_are_the_only_ones() {
        let functions = Functions::of(&ResponseOptions {
            namespace_tool_map: vec![NamespacedTool {
                function: "mail__send".into(),
                namespace: "mail".into(),
                local: "send".into(),
            }],
            ..ResponseOptions::default()
        });
        assert_eq!(
            functions.meaning("mail__send"),
            function(Some("mail"), "send")
        );
        assert_eq!(functions.meaning("a::b"), function(None, "a::b"));
        let functions = Functions::of(&ResponseOptions::default());
        assert_eq!(functions.meaning("a::b::c"), function(Some("a"), "b::c"));
        assert_eq!(functions.meaning("ab"), function(None, "ab"));
    }

    #[test]
    fn special_tools_are_special_only_where_they_are_declared() {
        let plain = Functions::of(&ResponseOptions::default());
        for name in ["apply_patch", "tool_search"] {
            assert_eq!(plain.meaning(name), function(None, name));
        }
        let functions = Functions::of(&ResponseOptions {
            custom_tool_names: vec!["apply_patch".into()],
            client_tool_search: true,
            ..ResponseOptions::default()
        });
        assert_eq!(functions.meaning("apply_patch"), Meaning::Custom);
        assert_eq!(functions.meaning("tool_search"), Meaning::ToolSearch);
    }
}
