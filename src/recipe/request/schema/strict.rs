//! The normal form of schemas in strict mode: a small, typed part of JSON Schema, in which every object
//! lists all its properties as required and allows no others.

use std::borrow::Cow;
use std::collections::HashSet;

use super::{At, Pointers};
use crate::recipe::json::{Json, Object, Style, to_string};
use crate::recipe::request::warnings;

/// What the schema is for; it decides texts and whether an empty object may be the root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::recipe::request) enum Root {
    /// Parameters of a tool.
    Tool,
    /// A response format.
    Format,
}

/// The normal form, and the keywords that it has no place for.
pub(in crate::recipe::request) struct Normal<'v> {
    pub(in crate::recipe::request) schema: Json<'v>,
    pub(in crate::recipe::request) dropped: Dropped,
}

/// Keywords that were left out.
#[derive(Default)]
pub(in crate::recipe::request) struct Dropped {
    /// Where the first of them were: as many as a request has warnings. One path may be as long as the schema.
    pub(in crate::recipe::request) paths: Vec<String>,
    /// How many more there were.
    pub(in crate::recipe::request) more: usize,
}

impl Dropped {
    fn add(&mut self, at: &At<'_>, keyword: &str) {
        if self.paths.len() < warnings::MOST {
            self.paths.push(format!("{at}/{keyword}"));
        } else {
            self.more += 1;
        }
    }
}

/// Normalises `schema`, or says in the official text what is wrong. With `keep_defs`, `$defs` and
/// `definitions` stay and references must resolve.
pub(in crate::recipe::request) fn normalize<'v>(
    schema: &'v Json<'v>,
    root: Root,
    keep_defs: bool,
) -> Result<Normal<'v>, String> {
    let mut walk = Walk {
        keep_defs,
        dropped: Dropped::default(),
        references: Vec::new(),
    };
    // The whole shape is read before anything is checked: shape errors win.
    let node = walk.read(schema, &At::Root).map_err(|detail| match root {
        Root::Tool => format!("Invalid tool parameters schema : {detail}"),
        Root::Format => format!("Invalid json schema: {detail}"),
    })?;
    let is_object = matches!(node, Node::Object { .. });
    let schema = write(node, root == Root::Tool)?;
    if !is_object {
        return Err(match root {
            Root::Tool => "The top level of the function parameters schema must be an object.",
            Root::Format => "The top level of the json schema must be an object.",
        }
        .to_owned());
    }
    if keep_defs {
        let pointers = Pointers::new(&schema);
        let mut references = walk.references.iter();
        if let Some(reference) = references.find(|r| pointers.follow(r).is_none()) {
            return Err(format!("Reference '{reference}' not found in schema"));
        }
    }
    Ok(Normal {
        schema,
        dropped: walk.dropped,
    })
}

/// Something under a name.
type Named<'v, T> = (&'v str, T);

/// Schemas by name, in the order given.
type Nodes<'v> = Vec<Named<'v, Node<'v>>>;

/// A schema node that strict mode knows.
enum Node<'v> {
    Object {
        properties: Nodes<'v>,
        additional: bool,
        required: Option<Vec<&'v str>>,
        description: Option<&'v str>,
        /// Keyword and its definitions, in the order given.
        definitions: Vec<Named<'v, Nodes<'v>>>,
    },
    Array {
        items: Box<Node<'v>>,
        description: Option<&'v str>,
    },
    AnyOf {
        members: Vec<Node<'v>>,
        description: Option<&'v str>,
    },
    /// Everything without schemas inside, already in its normal form.
    Leaf(Object<'v>),
}

struct Walk<'v> {
    keep_defs: bool,
    dropped: Dropped,
    references: Vec<&'v str>,
}

impl<'v> Walk<'v> {
    fn read(&mut self, schema: &'v Json<'v>, at: &At<'_>) -> Result<Node<'v>, String> {
        const MISSING: &str = "one of `type`, `anyOf`, `$ref` field is required";
        let map = schema.as_object().ok_or(MISSING)?;
        match map.get("type") {
            Some(Json::Array(types)) => self.union(map, types, at),
            Some(Json::String(kind)) => match &**kind {
                "object" => self.object(map, at),
                "array" => self.array(map, at),
                "string" => self.string(map, at),
                "number" => self.number(map, at, |value| value.as_number().is_some(), "a number"),
                "integer" => self.number(map, at, |value| value.as_i64().is_some(), "an integer"),
                "boolean" | "null" => self.leaf(map, at, &["type", "description"]),
                other => Err(format!("unknown type `{other}` at {at}/type")),
            },
            Some(_) => Err(format!(
                "`type` is neither a string nor an array at {at}/type"
            )),
            None if map.contains_key("anyOf") => self.any_of(map, at),
            None => match map.get("$ref") {
                Some(Json::String(reference)) => {
                    self.references.push(reference);
                    self.leaf(map, at, &["$ref"])
                }
                Some(_) => Err(format!("`$ref` is not a string at {at}/$ref")),
                None => Err(MISSING.to_owned()),
            },
        }
    }

    fn union(
        &mut self,
        map: &'v Object<'v>,
        types: &'v [Json<'v>],
        at: &At<'_>,
    ) -> Result<Node<'v>, String> {
        const SIMPLE: [&str; 5] = ["string", "number", "integer", "boolean", "null"];
        let simple = |kind: &Json<'_>| kind.as_str().is_some_and(|kind| SIMPLE.contains(&kind));
        if let Some(kind) = types.iter().find(|kind| !simple(kind)) {
            let kind = to_string(kind, Style::Compact);
            return Err(format!(
                "unknown variant {kind} at {at}/type, expected one of `string`, `number`, `integer`, `boolean`, `null`"
            ));
        }
        self.leaf(map, at, &["type", "description"])
    }

    fn object(&mut self, map: &'v Object<'v>, at: &At<'_>) -> Result<Node<'v>, String> {
        let properties = match map.get("properties") {
            None | Some(Json::Null) => Vec::new(),
            Some(value) => self.nodes(value, &At::Key(at, "properties"))?,
        };
        let additional = match map.get("additionalProperties") {
            None | Some(Json::Null | Json::Bool(false)) => false,
            Some(Json::Bool(true)) => true,
            Some(_) => return Err(format!("`additionalProperties` is not a boolean at {at}")),
        };
        let required = match map.get("required") {
            None | Some(Json::Null) => None,
            Some(value) => Some(
                strings(value)
                    .ok_or_else(|| format!("`required` is not an array of strings at {at}"))?,
            ),
        };
        let mut definitions = Vec::new();
        for (keyword, value) in map.iter() {
            match keyword {
                "type" | "properties" | "additionalProperties" | "required" | "description" => {}
                "$def" => definitions.extend(self.definitions(keyword, value, at)?),
                "$defs" | "definitions" if self.keep_defs => {
                    definitions.extend(self.definitions(keyword, value, at)?);
                }
                _ => self.dropped.add(at, keyword),
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

    /// A keyword with named schemas, unless it is null.
    fn definitions(
        &mut self,
        keyword: &'v str,
        value: &'v Json<'v>,
        at: &At<'_>,
    ) -> Result<Option<Named<'v, Nodes<'v>>>, String> {
        if value.is_null() {
            return Ok(None);
        }
        let nodes = self.nodes(value, &At::Key(at, keyword))?;
        Ok(Some((keyword, nodes)))
    }

    fn nodes(&mut self, value: &'v Json<'v>, at: &At<'_>) -> Result<Nodes<'v>, String> {
        let map = value
            .as_object()
            .ok_or_else(|| format!("not an object at {at}"))?;
        map.iter()
            .map(|(name, schema)| Ok((name, self.read(schema, &At::Key(at, name))?)))
            .collect()
    }

    fn array(&mut self, map: &'v Object<'v>, at: &At<'_>) -> Result<Node<'v>, String> {
        let items = map
            .get("items")
            .ok_or_else(|| format!("missing field `items` at {at}"))?;
        let items = Box::new(self.read(items, &At::Key(at, "items"))?);
        self.drop_others(map, at, &["type", "items", "description"]);
        Ok(Node::Array {
            items,
            description: description(map, at)?,
        })
    }

    fn any_of(&mut self, map: &'v Object<'v>, at: &At<'_>) -> Result<Node<'v>, String> {
        let members = map
            .get("anyOf")
            .and_then(Json::as_array)
            .ok_or_else(|| format!("`anyOf` is not an array at {at}"))?;
        let members = members
            .iter()
            .enumerate()
            .map(|(index, member)| self.member(member, &At::Index(&At::Key(at, "anyOf"), index)))
            .collect::<Result<_, _>>()?;
        self.drop_others(map, at, &["anyOf", "description"]);
        Ok(Node::AnyOf {
            members,
            description: description(map, at)?,
        })
    }

    /// A member of `anyOf`, which must say its one type; where definitions are kept, it may refer to one.
    fn member(&mut self, member: &'v Json<'v>, at: &At<'_>) -> Result<Node<'v>, String> {
        let refers = self.keep_defs && member.get("$ref").is_some();
        if refers || matches!(member.get("type"), Some(Json::String(_))) {
            return self.read(member, at);
        }
        Err(format!("a schema with one `type` is required at {at}"))
    }

    fn string(&mut self, map: &'v Object<'v>, at: &At<'_>) -> Result<Node<'v>, String> {
        const FORMATS: [&str; 5] = ["email", "hostname", "ipv4", "ipv6", "uuid"];
        for keyword in ["pattern", "format"] {
            if map
                .get(keyword)
                .is_some_and(|value| !value.is_null() && value.as_str().is_none())
            {
                return Err(format!("`{keyword}` is not a string at {at}"));
            }
        }
        if let Some(format) = map.get("format").and_then(Json::as_str)
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
        map: &'v Object<'v>,
        at: &At<'_>,
        fits: impl Fn(&Json<'_>) -> bool,
        what: &str,
    ) -> Result<Node<'v>, String> {
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
                .get(keyword)
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
        map: &'v Object<'v>,
        at: &At<'_>,
        keywords: &[&'static str],
    ) -> Result<Node<'v>, String> {
        if keywords.contains(&"description") {
            description(map, at)?;
        }
        self.drop_others(map, at, keywords);
        let kept = keywords.iter().filter_map(|keyword| {
            let value = map.get(keyword).filter(|value| !value.is_null())?;
            Some((Cow::Borrowed(*keyword), value.clone()))
        });
        Ok(Node::Leaf(kept.collect()))
    }

    fn drop_others(&mut self, map: &'v Object<'v>, at: &At<'_>, keywords: &[&str]) {
        let others = map.keys().filter(|keyword| !keywords.contains(keyword));
        others.for_each(|keyword| self.dropped.add(at, keyword));
    }
}

/// The normal form of a node. `may_be_empty` allows an object without properties, at the root of tools only.
fn write(node: Node<'_>, may_be_empty: bool) -> Result<Json<'_>, String> {
    let mut out = Object::default();
    match node {
        Node::Leaf(map) => return Ok(Json::Object(map)),
        Node::Array { items, description } => {
            out.push("type", "array".into());
            out.push("items", write(*items, false)?);
            push_description(&mut out, description);
        }
        Node::AnyOf {
            members,
            description,
        } => {
            let members = members
                .into_iter()
                .map(|member| write(member, may_be_empty));
            out.push("anyOf", Json::Array(members.collect::<Result<_, _>>()?));
            push_description(&mut out, description);
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
            let names: Vec<&str> = properties.iter().map(|(name, _)| *name).collect();
            let properties = write_nodes(properties)?;
            let definitions = definitions
                .into_iter()
                .map(|(keyword, nodes)| Ok((keyword, write_nodes(nodes)?)))
                .collect::<Result<Vec<_>, String>>()?;
            check_required(required.as_deref(), &names)?;
            if additional {
                return Err("additionalProperties should not be true".to_owned());
            }
            out.push("type", "object".into());
            out.push("properties", properties);
            out.push("additionalProperties", Json::Bool(false));
            let names = names.into_iter().map(Json::from).collect();
            out.push("required", Json::Array(names));
            push_description(&mut out, description);
            for (keyword, nodes) in definitions {
                out.push(keyword, nodes);
            }
        }
    }
    Ok(Json::Object(out))
}

fn write_nodes(nodes: Nodes<'_>) -> Result<Json<'_>, String> {
    nodes
        .into_iter()
        .map(|(name, node)| Ok((Cow::Borrowed(name), write(node, false)?)))
        .collect::<Result<Object<'_>, String>>()
        .map(Json::Object)
}

fn check_required(required: Option<&[&str]>, names: &[&str]) -> Result<(), String> {
    let Some(required) = required else {
        return Ok(());
    };
    let names: HashSet<&str> = names.iter().copied().collect();
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

fn push_description<'v>(out: &mut Object<'v>, description: Option<&'v str>) {
    if let Some(description) = description {
        out.push("description", description.into());
    }
}

fn description<'v>(map: &'v Object<'v>, at: &At<'_>) -> Result<Option<&'v str>, String> {
    match map.get("description") {
        None | Some(Json::Null) => Ok(None),
        Some(Json::String(text)) => Ok(Some(text)),
        Some(_) => Err(format!("`description` is not a string at {at}")),
    }
}

fn strings<'v>(value: &'v Json<'v>) -> Option<Vec<&'v str>> {
    value.as_array()?.iter().map(Json::as_str).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipe::json::parse;
    use serde_json::{Value, json};

    /// The compact text of the normal form, and what it has no place for.
    fn normal(
        schema: &Value,
        root: Root,
        keep_defs: bool,
    ) -> Result<(String, Vec<String>), String> {
        let text = schema.to_string();
        let schema = parse(&text).expect("it is valid");
        normalize(&schema, root, keep_defs).map(|normal| {
            (
                to_string(&normal.schema, Style::Compact),
                normal.dropped.paths,
            )
        })
    }

    fn tool(schema: &Value) -> Result<String, String> {
        normal(schema, Root::Tool, false).map(|(schema, _)| schema)
    }

    #[test]
    fn objects_are_closed_and_require_all_properties() {
        let schema = json!({"required": ["b", "a"], "properties": {"a": {"type": "string", "minLength": 1}, "b": {"type": ["null", "number"]}}, "title": "T", "type": "object", "description": "d"});
        let (found, dropped) = normal(&schema, Root::Format, false).expect("it is valid");
        let expected = json!({"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": ["null", "number"]}}, "additionalProperties": false, "required": ["a", "b"], "description": "d"});
        assert_eq!(found, expected.to_string());
        assert_eq!(dropped, ["/properties/a/minLength", "/title"]);
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
        assert!(normal(&json!({"type": "object"}), Root::Format, false).is_err());
    }

    #[test]
    fn what_is_inside_is_told_before_the_kind_of_the_root() {
        let empty = json!({"type": "object"});
        for (schema, message) in [
            (
                json!({"type": "array", "items": empty}),
                "An object with no properties is not allowed.",
            ),
            (
                json!({"type": "array", "items": {"type": "null"}}),
                "The top level of the function parameters schema must be an object.",
            ),
            (
                json!({"anyOf": [empty]}),
                "The top level of the function parameters schema must be an object.",
            ),
        ] {
            assert_eq!(tool(&schema).expect_err("it is refused"), message);
        }
    }

    #[test]
    fn members_of_any_of_say_their_one_type() {
        let any_of =
            |member: Value| json!({"type": "object", "properties": {"a": {"anyOf": [member]}}});
        assert!(tool(&any_of(json!({"type": "array", "items": {"$ref": "#"}}))).is_ok());
        for other in [
            json!({"$ref": "#"}),
            json!({"anyOf": []}),
            json!({"type": ["string", "null"]}),
            json!({}),
        ] {
            assert!(tool(&any_of(other.clone())).is_err(), "{other}");
        }
        // Where definitions stay, one of them may be meant.
        assert!(normal(&any_of(json!({"$ref": "#"})), Root::Tool, true).is_ok());
    }

    #[test]
    fn of_a_reference_nothing_else_is_read() {
        let schema =
            json!({"type": "object", "properties": {"a": {"$ref": "#", "description": 3}}});
        assert!(
            tool(&schema)
                .expect("it is valid")
                .contains(r##""a":{"$ref":"#"}"##)
        );
    }

    #[test]
    fn definitions_stay_when_asked_for_and_references_must_resolve() {
        let schema = json!({"type": "object", "properties": {"a": {"$ref": "#/$defs/x"}}, "$defs": {"x": {"type": "null"}}});
        let (_, dropped) = normal(&schema, Root::Tool, false).expect("it is accepted");
        assert_eq!(dropped, ["/$defs"]);
        let (kept, _) = normal(&schema, Root::Tool, true).expect("it is valid");
        assert!(
            kept.ends_with(r#","$defs":{"x":{"type":"null"}}}"#),
            "{kept}"
        );
        let dangling = json!({"type": "object", "properties": {"a": {"$ref": "#/$defs/y"}}});
        assert!(normal(&dangling, Root::Tool, true).is_err());
    }
}
