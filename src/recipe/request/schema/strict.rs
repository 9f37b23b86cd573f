//! The normal form of schemas in strict mode: a small, typed part of JSON Schema, in which every object
//! lists all its properties as required and allows no others.

use std::collections::HashSet;

use serde_json::{Map, Value, json};

use super::pointed;

/// What the schema is for; it decides texts and whether an empty object may be the root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::recipe::request) enum Root {
    /// Parameters of a tool.
    Tool,
    /// A response format.
    Format,
}

/// The normal form, and the paths of keywords that it has no place for.
pub(in crate::recipe::request) struct Normal {
    pub(in crate::recipe::request) schema: Value,
    pub(in crate::recipe::request) dropped: Vec<String>,
}

/// Normalises `schema`, or says in the official text what is wrong. With `keep_defs`, `$defs` and
/// `definitions` stay and references must resolve.
pub(in crate::recipe::request) fn normalize(
    schema: &Value,
    root: Root,
    keep_defs: bool,
) -> Result<Normal, String> {
    let mut walk = Walk {
        keep_defs,
        dropped: Vec::new(),
        references: Vec::new(),
    };
    // The whole shape is read before anything is checked: shape errors win.
    let node = walk.read(schema, "").map_err(|detail| match root {
        Root::Tool => format!("Invalid tool parameters schema : {detail}"),
        Root::Format => format!("Invalid json schema: {detail}"),
    })?;
    if !matches!(node, Node::Object { .. }) {
        return Err(match root {
            Root::Tool => "The top level of the function parameters schema must be an object.",
            Root::Format => "The top level of the json schema must be an object.",
        }
        .to_owned());
    }
    let schema = write(node, root == Root::Tool)?;
    if keep_defs
        && let Some(reference) = walk
            .references
            .iter()
            .find(|r| pointed(&schema, r).is_none())
    {
        return Err(format!("Reference '{reference}' not found in schema"));
    }
    Ok(Normal {
        schema,
        dropped: walk.dropped,
    })
}

/// A schema node that strict mode knows.
enum Node {
    Object {
        properties: Vec<(String, Node)>,
        additional: bool,
        required: Option<Vec<String>>,
        description: Option<String>,
        /// Keyword and its definitions, in the order given.
        definitions: Vec<(String, Vec<(String, Node)>)>,
    },
    Array {
        items: Box<Node>,
        description: Option<String>,
    },
    AnyOf {
        members: Vec<Node>,
        description: Option<String>,
    },
    /// Everything without schemas inside, already in its normal form.
    Leaf(Map<String, Value>),
}

struct Walk {
    keep_defs: bool,
    dropped: Vec<String>,
    references: Vec<String>,
}

impl Walk {
    fn read(&mut self, schema: &Value, at: &str) -> Result<Node, String> {
        const MISSING: &str = "one of `type`, `anyOf`, `$ref` field is required";
        let map = schema.as_object().ok_or(MISSING)?;
        match map.get("type") {
            Some(Value::Array(types)) => self.union(map, types, at),
            Some(Value::String(kind)) => match kind.as_str() {
                "object" => self.object(map, at),
                "array" => self.array(map, at),
                "string" => self.string(map, at),
                "number" => self.number(map, at, |value| value.is_number(), "a number"),
                "integer" => self.number(map, at, |value| value.as_i64().is_some(), "an integer"),
                "boolean" | "null" => self.leaf(map, at, &["type", "description"]),
                other => Err(format!("unknown type `{other}` at {at}/type")),
            },
            Some(_) => Err(format!(
                "`type` is neither a string nor an array at {at}/type"
            )),
            None if map.contains_key("anyOf") => self.any_of(map, at),
            None => match map.get("$ref") {
                Some(Value::String(reference)) => {
                    self.references.push(reference.clone());
                    self.leaf(map, at, &["$ref"])
                }
                Some(_) => Err(format!("`$ref` is not a string at {at}/$ref")),
                None => Err(MISSING.to_owned()),
            },
        }
    }

    fn union(
        &mut self,
        map: &Map<String, Value>,
        types: &[Value],
        at: &str,
    ) -> Result<Node, String> {
        const SIMPLE: [&str; 5] = ["string", "number", "integer", "boolean", "null"];
        let simple = |kind: &Value| kind.as_str().is_some_and(|kind| SIMPLE.contains(&kind));
        if let Some(kind) = types.iter().find(|kind| !simple(kind)) {
            return Err(format!(
                "unknown variant {kind} at {at}/type, expected one of `string`, `number`, `integer`, `boolean`, `null`"
            ));
        }
        self.leaf(map, at, &["type", "description"])
    }

    fn object(&mut self, map: &Map<String, Value>, at: &str) -> Result<Node, String> {
        let properties = match map.get("properties") {
            None | Some(Value::Null) => Vec::new(),
            Some(value) => self.nodes(value, &format!("{at}/properties"))?,
        };
        let additional = match map.get("additionalProperties") {
            None | Some(Value::Null | Value::Bool(false)) => false,
            Some(Value::Bool(true)) => true,
            Some(_) => return Err(format!("`additionalProperties` is not a boolean at {at}")),
        };
        let required = match map.get("required") {
            None | Some(Value::Null) => None,
            Some(value) => Some(
                strings(value)
                    .ok_or_else(|| format!("`required` is not an array of strings at {at}"))?,
            ),
        };
        let mut known = vec![
            "type",
            "properties",
            "additionalProperties",
            "required",
            "description",
            "$def",
        ];
        if self.keep_defs {
            known.extend(["$defs", "definitions"]);
        }
        let mut definitions = Vec::new();
        for (keyword, value) in map {
            if !known.contains(&keyword.as_str()) {
                self.dropped.push(format!("{at}/{keyword}"));
            } else if matches!(keyword.as_str(), "$def" | "$defs" | "definitions")
                && !value.is_null()
            {
                let nodes = self.nodes(value, &format!("{at}/{keyword}"))?;
                definitions.push((keyword.clone(), nodes));
            }
        }
        Ok(Node::Object {
            properties,
            additional,
            required,
            description: description(map, at)?,
            definitions,
        })
    }

    fn nodes(&mut self, value: &Value, at: &str) -> Result<Vec<(String, Node)>, String> {
        let map = value
            .as_object()
            .ok_or_else(|| format!("not an object at {at}"))?;
        map.iter()
            .map(|(name, schema)| Ok((name.clone(), self.read(schema, &format!("{at}/{name}"))?)))
            .collect()
    }

    fn array(&mut self, map: &Map<String, Value>, at: &str) -> Result<Node, String> {
        let items = map
            .get("items")
            .ok_or_else(|| format!("missing field `items` at {at}"))?;
        let items = Box::new(self.read(items, &format!("{at}/items"))?);
        self.drop_others(map, at, &["type", "items", "description"]);
        Ok(Node::Array {
            items,
            description: description(map, at)?,
        })
    }

    fn any_of(&mut self, map: &Map<String, Value>, at: &str) -> Result<Node, String> {
        let members = map["anyOf"]
            .as_array()
            .ok_or_else(|| format!("`anyOf` is not an array at {at}"))?;
        let members = members
            .iter()
            .enumerate()
            .map(|(index, member)| self.read(member, &format!("{at}/anyOf/{index}")))
            .collect::<Result<_, _>>()?;
        self.drop_others(map, at, &["anyOf", "description"]);
        Ok(Node::AnyOf {
            members,
            description: description(map, at)?,
        })
    }

    fn string(&mut self, map: &Map<String, Value>, at: &str) -> Result<Node, String> {
        const FORMATS: [&str; 5] = ["email", "hostname", "ipv4", "ipv6", "uuid"];
        for keyword in ["pattern", "format"] {
            if map
                .get(keyword)
                .is_some_and(|value| !value.is_null() && !value.is_string())
            {
                return Err(format!("`{keyword}` is not a string at {at}"));
            }
        }
        if let Some(format) = map.get("format").and_then(Value::as_str)
            && !FORMATS.contains(&format)
        {
            return Err(format!(
                "unknown variant `{format}`, expected one of `email`, `hostname`, `ipv4`, `ipv6`, `uuid`"
            ));
        }
        if map
            .get("enum")
            .is_some_and(|value| !value.is_null() && strings(value).is_none())
        {
            return Err(format!("`enum` is not an array of strings at {at}"));
        }
        self.leaf(
            map,
            at,
            &["type", "description", "pattern", "format", "enum"],
        )
    }

    fn number(
        &mut self,
        map: &Map<String, Value>,
        at: &str,
        fits: impl Fn(&Value) -> bool,
        what: &str,
    ) -> Result<Node, String> {
        const KEYWORDS: [&str; 9] = [
            "type",
            "description",
            "const",
            "default",
            "minimum",
            "maximum",
            "exclusiveMinimum",
            "exclusiveMaximum",
            "multipleOf",
        ];
        for keyword in &KEYWORDS[2..] {
            if map
                .get(*keyword)
                .is_some_and(|value| !value.is_null() && !fits(value))
            {
                return Err(format!("`{keyword}` is not {what} at {at}"));
            }
        }
        self.leaf(map, at, &KEYWORDS)
    }

    /// A node that keeps `keywords`, in this order.
    fn leaf(
        &mut self,
        map: &Map<String, Value>,
        at: &str,
        keywords: &[&str],
    ) -> Result<Node, String> {
        description(map, at)?;
        self.drop_others(map, at, keywords);
        let kept = keywords.iter().filter_map(|keyword| {
            let value = map.get(*keyword).filter(|value| !value.is_null())?;
            Some(((*keyword).to_owned(), value.clone()))
        });
        Ok(Node::Leaf(kept.collect()))
    }

    fn drop_others(&mut self, map: &Map<String, Value>, at: &str, keywords: &[&str]) {
        let others = map
            .keys()
            .filter(|keyword| !keywords.contains(&keyword.as_str()));
        self.dropped
            .extend(others.map(|keyword| format!("{at}/{keyword}")));
    }
}

/// The normal form of a node. `may_be_empty` allows an object without properties, at the root of tools only.
fn write(node: Node, may_be_empty: bool) -> Result<Value, String> {
    let mut out = Map::new();
    match node {
        Node::Leaf(map) => return Ok(Value::Object(map)),
        Node::Array { items, description } => {
            out.insert("type".to_owned(), json!("array"));
            out.insert("items".to_owned(), write(*items, false)?);
            insert_description(&mut out, description);
        }
        Node::AnyOf {
            members,
            description,
        } => {
            let members = members.into_iter().map(|member| write(member, false));
            out.insert(
                "anyOf".to_owned(),
                members.collect::<Result<Vec<_>, _>>()?.into(),
            );
            insert_description(&mut out, description);
        }
        Node::Object {
            properties,
            additional,
            required,
            description,
            definitions,
        } => {
            if properties.is_empty() && !may_be_empty {
                return Err("An object with no properties is not allowed.".to_owned());
            }
            let names: Vec<String> = properties.iter().map(|(name, _)| name.clone()).collect();
            let properties = write_nodes(properties)?;
            let definitions = definitions
                .into_iter()
                .map(|(keyword, nodes)| Ok((keyword, write_nodes(nodes)?)))
                .collect::<Result<Vec<_>, String>>()?;
            check_required(required.as_deref(), &names)?;
            if additional {
                return Err("additionalProperties should not be true".to_owned());
            }
            out.insert("type".to_owned(), json!("object"));
            out.insert("properties".to_owned(), properties);
            out.insert("additionalProperties".to_owned(), json!(false));
            out.insert("required".to_owned(), names.into());
            insert_description(&mut out, description);
            out.extend(definitions);
        }
    }
    Ok(Value::Object(out))
}

fn write_nodes(nodes: Vec<(String, Node)>) -> Result<Value, String> {
    nodes
        .into_iter()
        .map(|(name, node)| Ok((name, write(node, false)?)))
        .collect::<Result<Map<_, _>, String>>()
        .map(Value::Object)
}

fn check_required(required: Option<&[String]>, names: &[String]) -> Result<(), String> {
    let Some(required) = required else {
        return Ok(());
    };
    let names: HashSet<&String> = names.iter().collect();
    let mut seen = HashSet::new();
    for name in required {
        if !names.contains(name) {
            return Err(format!("Required property '{name}' not found in object"));
        }
        if !seen.insert(name) {
            return Err(format!("Duplicate required property '{name}'"));
        }
    }
    if required.len() != names.len() {
        return Err("Required properties must match all properties in the object".to_owned());
    }
    Ok(())
}

fn insert_description(out: &mut Map<String, Value>, description: Option<String>) {
    if let Some(description) = description {
        out.insert("description".to_owned(), Value::String(description));
    }
}

fn description(map: &Map<String, Value>, at: &str) -> Result<Option<String>, String> {
    match map.get("description") {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(_) => Err(format!("`description` is not a string at {at}")),
    }
}

fn strings(value: &Value) -> Option<Vec<String>> {
    let list = value.as_array()?;
    list.iter()
        .map(|item| item.as_str().map(str::to_owned))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tool(schema: &Value) -> Result<Value, String> {
        normalize(schema, Root::Tool, false).map(|normal| normal.schema)
    }

    #[test]
    fn objects_are_closed_and_require_all_properties() {
        let schema = json!({"required": ["b", "a"], "properties": {"a": {"type": "string", "minLength": 1}, "b": {"type": ["null", "number"]}}, "title": "T", "type": "object", "description": "d"});
        let normal = normalize(&schema, Root::Format, false).expect("it is valid");
        let expected = json!({"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": ["null", "number"]}}, "additionalProperties": false, "required": ["a", "b"], "description": "d"});
        assert_eq!(normal.schema.to_string(), expected.to_string());
        assert_eq!(normal.dropped, ["/properties/a/minLength", "/title"]);
    }

    #[test]
    fn what_is_wrong_is_said_in_the_official_texts() {
        let object = |rest: Value| {
            let mut schema = json!({"type": "object", "properties": {"a": {"type": "string"}}});
            schema
                .as_object_mut()
                .expect("a map")
                .extend(rest.as_object().expect("a map").clone());
            tool(&schema).expect_err("it is refused")
        };
        assert_eq!(
            object(json!({"required": ["x"]})),
            "Required property 'x' not found in object"
        );
        assert_eq!(
            object(json!({"required": ["a", "a"]})),
            "Duplicate required property 'a'"
        );
        assert_eq!(
            object(json!({"required": []})),
            "Required properties must match all properties in the object"
        );
        assert_eq!(
            object(json!({"additionalProperties": true})),
            "additionalProperties should not be true"
        );
        let wrong = tool(
            &json!({"type": "object", "properties": {"a": {"type": "integer", "minimum": 1.5}}}),
        );
        assert!(
            wrong
                .expect_err("1.5 is no integer")
                .starts_with("Invalid tool parameters schema : ")
        );
        assert!(tool(&json!({"type": "object"})).is_ok());
        assert!(normalize(&json!({"type": "object"}), Root::Format, false).is_err());
    }

    #[test]
    fn definitions_stay_when_asked_for_and_references_must_resolve() {
        let schema = json!({"type": "object", "properties": {"a": {"$ref": "#/$defs/x"}}, "$defs": {"x": {"type": "null"}}});
        let dropped = normalize(&schema, Root::Tool, false).expect("it is accepted");
        assert_eq!(dropped.dropped, ["/$defs"]);
        let kept = normalize(&schema, Root::Tool, true).expect("it is valid");
        assert_eq!(kept.schema["$defs"], json!({"x": {"type": "null"}}));
        let dangling = json!({"type": "object", "properties": {"a": {"$ref": "#/$defs/y"}}});
        assert!(normalize(&dangling, Root::Tool, true).is_err());
    }
}
