//! Whether a value is a JSON Schema: each keyword has the shape that its draft asks for.
//!
//! One walk over the schema; keywords that no draft knows are skipped, as the drafts say. `pattern` is taken
//! as text: its dialect is the constraint engine's affair. References that validation comes by must resolve
//! inside the document, for nothing is ever fetched, and what they name must be a schema. Of draft 4 a few finer
//! rules (arrays that may not be empty) are left out.

use std::cell::OnceCell;
use std::collections::HashSet;

use super::{At, Pointers};
use crate::recipe::json::{Json, Object, Style, to_string};

/// The drafts, oldest first. A keyword of a later draft is unknown in an earlier one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Draft {
    Four,
    Six,
    Seven,
    /// 2019-09.
    Nineteen,
    /// 2020-12, also when the schema does not say.
    Twenty,
}

impl Draft {
    /// The draft that a schema says it is of; `None` for one that is not known.
    fn of(schema: &Json<'_>) -> Option<Self> {
        let uri = schema.get("$schema").and_then(Json::as_str).unwrap_or("");
        let uri = uri.strip_suffix('#').unwrap_or(uri);
        let named = |draft: &Self| without_scheme(draft.uri()) == without_scheme(uri);
        match uri {
            "" | "http://json-schema.org/schema" | "https://json-schema.org/schema" => {
                Some(Self::Twenty)
            }
            _ => Self::ALL.into_iter().find(named),
        }
    }

    const ALL: [Self; 5] = [
        Self::Four,
        Self::Six,
        Self::Seven,
        Self::Nineteen,
        Self::Twenty,
    ];

    /// What its own schema is called.
    fn uri(self) -> &'static str {
        match self {
            Self::Four => "http://json-schema.org/draft-04/schema",
            Self::Six => "http://json-schema.org/draft-06/schema",
            Self::Seven => "http://json-schema.org/draft-07/schema",
            Self::Nineteen => "https://json-schema.org/draft/2019-09/schema",
            Self::Twenty => "https://json-schema.org/draft/2020-12/schema",
        }
    }

    /// Whether this draft knows `keyword`, given that some draft does.
    fn knows(self, keyword: &str) -> bool {
        match keyword {
            "propertyNames" | "contains" | "examples" | "$id" => self >= Self::Six,
            "if" | "then" | "else" | "readOnly" | "writeOnly" | "$comment" | "contentEncoding"
            | "contentMediaType" => self >= Self::Seven,
            "$defs"
            | "dependentSchemas"
            | "dependentRequired"
            | "unevaluatedItems"
            | "unevaluatedProperties"
            | "contentSchema"
            | "minContains"
            | "maxContains"
            | "deprecated"
            | "$anchor"
            | "$vocabulary"
            | "$recursiveRef" => self >= Self::Nineteen,
            "prefixItems" | "$dynamicRef" | "$dynamicAnchor" => self >= Self::Twenty,
            "additionalItems" => self < Self::Twenty,
            _ => true,
        }
    }
}

fn without_scheme(uri: &str) -> &str {
    uri.split_once("://").map_or(uri, |(_, rest)| rest)
}

/// Says why `schema` is none, or nothing.
pub(in crate::recipe::request) fn check(schema: &Json<'_>) -> Result<(), String> {
    let Some(draft) = Draft::of(schema) else {
        let uri = schema.get("$schema").unwrap_or(&Json::Null);
        return Err(wrong(&At::Key(&At::Root, "$schema"), "a known draft", uri));
    };
    let mut walk = Walk {
        draft,
        pointers: Pointers::new(schema),
        names: OnceCell::new(),
        targets: Vec::new(),
        seen: None,
    };
    walk.schema(schema, &At::Root, true)?;
    // What references name is a schema, wherever it stands.
    while let Some((reference, target)) = walk.targets.pop() {
        walk.seen.get_or_insert_default();
        walk.schema(target, &At::Key(&At::Root, reference), true)?;
    }
    Ok(())
}

struct Walk<'v> {
    draft: Draft,
    pointers: Pointers<'v, 'v>,
    /// What schemas in the document call themselves; collected for the first reference by name.
    names: OnceCell<HashSet<&'v str>>,
    /// What references that are in use name, to be looked at as schemas.
    targets: Vec<(&'v str, &'v Json<'v>)>,
    /// Schemas seen since the first of these, so that none is walked over and over.
    seen: Option<HashSet<*const Json<'v>, ahash::RandomState>>,
}

impl<'v> Walk<'v> {
    /// `in_use` says that validation comes by here, so that references must resolve: in definitions that
    /// nothing refers to they need not.
    fn schema(&mut self, schema: &'v Json<'v>, at: &At<'_>, in_use: bool) -> Result<(), String> {
        let seen = self.seen.as_mut().filter(|_| in_use);
        if seen.is_some_and(|seen| !seen.insert(schema)) {
            return Ok(());
        }
        match schema {
            Json::Object(keywords) => keywords.iter().try_for_each(|(keyword, value)| {
                let in_use = in_use && is_applied(keyword, keywords);
                self.keyword(keyword, value, at, in_use)
            }),
            Json::Bool(_) if self.draft > Draft::Four => Ok(()),
            other => Err(wrong(
                at,
                "a schema, which is an object or a boolean",
                other,
            )),
        }
    }

    fn keyword(
        &mut self,
        keyword: &'v str,
        value: &'v Json<'v>,
        parent: &At<'_>,
        in_use: bool,
    ) -> Result<(), String> {
        if !self.draft.knows(keyword) {
            return Ok(());
        }
        let at = At::Key(parent, keyword);
        let needs = |holds: bool, what: &str| {
            if holds {
                Ok(())
            } else {
                Err(wrong(&at, what, value))
            }
        };
        match keyword {
            "type" => needs(is_type(value), "a type or an array of different types"),
            "not"
            | "if"
            | "then"
            | "else"
            | "propertyNames"
            | "contains"
            | "contentSchema"
            | "unevaluatedItems"
            | "unevaluatedProperties" => self.schema(value, &at, in_use),
            "additionalItems" | "additionalProperties" => match value {
                Json::Bool(_) => Ok(()),
                schema => self.schema(schema, &at, in_use),
            },
            "items" => match value {
                Json::Array(list) if self.draft < Draft::Twenty => self.schemas(list, &at, in_use),
                schema => self.schema(schema, &at, in_use),
            },
            "allOf" | "anyOf" | "oneOf" | "prefixItems" => match value {
                Json::Array(list) if !list.is_empty() => self.schemas(list, &at, in_use),
                other => Err(wrong(&at, "an array with at least one schema", other)),
            },
            "properties" | "patternProperties" | "$defs" | "definitions" | "dependentSchemas" => {
                let map = object(value, &at)?;
                map.iter()
                    .try_for_each(|(name, schema)| self.schema(schema, &At::Key(&at, name), in_use))
            }
            "dependencies" => object(value, &at)?.iter().try_for_each(|(name, value)| {
                let at = At::Key(&at, name);
                match value {
                    Json::Array(_) => strings(value, &at),
                    schema => self.schema(schema, &at, in_use),
                }
            }),
            "dependentRequired" => object(value, &at)?
                .iter()
                .try_for_each(|(name, value)| strings(value, &At::Key(&at, name))),
            "required" => strings(value, &at),
            "enum" | "examples" => needs(value.as_array().is_some(), "an array"),
            "multipleOf" => needs(value.as_f64().is_some_and(|n| n > 0.0), "a positive number"),
            "minimum" | "maximum" => needs(value.as_number().is_some(), "a number"),
            "exclusiveMinimum" | "exclusiveMaximum" if self.draft == Draft::Four => {
                needs(value.as_bool().is_some(), "a boolean")
            }
            "exclusiveMinimum" | "exclusiveMaximum" => {
                needs(value.as_number().is_some(), "a number")
            }
            "minLength" | "maxLength" | "minItems" | "maxItems" | "minProperties"
            | "maxProperties" | "minContains" | "maxContains" => {
                let whole = value.as_f64().is_some_and(|n| n >= 0.0 && n.fract() == 0.0);
                needs(whole, "a non-negative integer")
            }
            "uniqueItems" | "deprecated" | "readOnly" | "writeOnly" => {
                needs(value.as_bool().is_some(), "a boolean")
            }
            "title" | "description" | "pattern" | "format" | "$comment" | "contentEncoding"
            | "contentMediaType" | "$id" | "$anchor" | "$dynamicAnchor" | "$schema" => {
                needs(value.as_str().is_some(), "a string")
            }
            "$vocabulary" => object(value, &at)?
                .iter()
                .find(|(_, value)| value.as_bool().is_none())
                .map_or(Ok(()), |(name, value)| {
                    Err(wrong(&At::Key(&at, name), "a boolean", value))
                }),
            "$recursiveRef" => needs(value.as_str().is_some(), "a string"),
            "$ref" | "$dynamicRef" => match value {
                Json::String(reference) if self.resolves(reference, in_use) => Ok(()),
                Json::String(_) => Err(wrong(&at, "a reference inside the schema", value)),
                other => Err(wrong(&at, "a string", other)),
            },
            _ => Ok(()),
        }
    }

    fn schemas(&mut self, list: &'v [Json<'v>], at: &At<'_>, in_use: bool) -> Result<(), String> {
        list.iter()
            .enumerate()
            .try_for_each(|(index, schema)| self.schema(schema, &At::Index(at, index), in_use))
    }

    /// Whether a reference names something in this document, or the schema of its draft.
    fn resolves(&mut self, reference: &'v str, in_use: bool) -> bool {
        if !in_use && reference.starts_with('#') {
            return true;
        }
        if reference.is_empty() {
            return true;
        }
        if let Some(target) = self.pointers.follow(reference) {
            self.targets.push((reference, target));
            return true;
        }
        // By name: an anchor, or an identifier with or without a fragment behind it.
        let target = match reference.split_once('#') {
            Some(("", anchor)) => anchor,
            Some((id, _)) => id,
            None => reference,
        };
        let root = self.pointers.root;
        let names = self.names.get_or_init(|| {
            let mut found = HashSet::new();
            names(root, &mut found);
            found
        });
        target == self.draft.uri() || !target.is_empty() && names.contains(target)
    }
}

/// Whether what is under `keyword` takes part in validation; some keywords do so only beside others, and
/// definitions only where they are referred to.
fn is_applied(keyword: &str, beside: &Object<'_>) -> bool {
    match keyword {
        "$defs" | "definitions" | "contentSchema" => false,
        "if" => beside.contains_key("then") || beside.contains_key("else"),
        "then" | "else" => beside.contains_key("if"),
        "additionalItems" => beside
            .get("items")
            .is_some_and(|items| items.as_array().is_some()),
        _ => true,
    }
}

/// Collects what schemas inside `value` call themselves: anchors, identifiers and their last segments.
fn names<'v>(value: &'v Json<'v>, found: &mut HashSet<&'v str>) {
    match value {
        Json::Object(map) => {
            for key in ["$anchor", "$dynamicAnchor", "$id", "id"] {
                if let Some(name) = map.get(key).and_then(Json::as_str) {
                    let name = name.trim_matches('#');
                    found.insert(name);
                    found.extend(name.rsplit('/').next());
                }
            }
            map.values().for_each(|value| names(value, found));
        }
        Json::Array(list) => list.iter().for_each(|value| names(value, found)),
        _ => {}
    }
}

fn is_type(value: &Json<'_>) -> bool {
    let known = |value: &Json<'_>| {
        value.as_str().is_some_and(|name| {
            [
                "array", "boolean", "integer", "null", "number", "object", "string",
            ]
            .contains(&name)
        })
    };
    match value {
        Json::Array(list) => {
            !list.is_empty()
                && list.iter().all(known)
                && (1..list.len()).all(|at| !list[..at].contains(&list[at]))
        }
        value => known(value),
    }
}

fn object<'v>(value: &'v Json<'v>, at: &At<'_>) -> Result<&'v Object<'v>, String> {
    value
        .as_object()
        .ok_or_else(|| wrong(at, "an object", value))
}

/// Different strings.
fn strings(value: &Json<'_>, at: &At<'_>) -> Result<(), String> {
    let list = value
        .as_array()
        .filter(|list| list.iter().all(|item| item.as_str().is_some()));
    let Some(list) = list else {
        return Err(wrong(at, "an array of strings", value));
    };
    let mut seen: Vec<&str> = list.iter().filter_map(Json::as_str).collect();
    seen.sort_unstable();
    if seen.windows(2).any(|pair| pair[0] == pair[1]) {
        return Err(wrong(at, "an array of different strings", value));
    }
    Ok(())
}

fn wrong(at: &At<'_>, expected: &str, found: &Json<'_>) -> String {
    let mut found = to_string(found, Style::Compact);
    if found.len() > 60 {
        let cut = (0..=60).rev().find(|at| found.is_char_boundary(*at));
        found.truncate(cut.unwrap_or(0));
        found.push('…');
    }
    format!("{found} is not {expected} (at \"{at}\")")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipe::json::parse;
    use serde_json::{Value, json};

    fn checked(schema: &Value) -> Result<(), String> {
        check(&parse(&schema.to_string()).expect("it is valid"))
    }

    #[test]
    fn every_keyword_has_its_shape() {
        for valid in [
            json!(true),
            json!({}),
            json!({"type": ["string", "null"], "enum": [], "x-anything": 3, "format": "made-up"}),
            json!({"properties": {"type": {"type": "string"}}, "required": ["type"]}),
            json!({"$defs": {"a": {"$anchor": "n"}}, "anyOf": [{"$ref": "#/$defs/a"}, {"$ref": "#n"}, {"$ref": "#"}]}),
            json!({"$schema": "http://json-schema.org/draft-04/schema#", "exclusiveMinimum": true, "minimum": 1}),
            json!({"$schema": "http://json-schema.org/draft-07/schema#", "items": [{}, {}], "$defs": 1}),
            json!({"$id": "https://x.test/a", "$ref": "https://x.test/a"}),
            json!({"minLength": 2.0, "multipleOf": 0.5, "additionalProperties": false}),
            json!({"properties": {"a~/b %": {}}, "$ref": "#/properties/a~0~1b%20%25"}),
            json!({"$ref": "https://json-schema.org/draft/2020-12/schema"}),
            json!({"$schema": "https://json-schema.org/draft-07/schema#", "$ref": "http://json-schema.org/draft-07/schema#"}),
            json!({"$schema": "", "$ref": ""}),
            json!({"$vocabulary": {"a": true}}),
        ] {
            assert_eq!(checked(&valid), Ok(()), "{valid}");
        }
        for invalid in [
            json!(null),
            json!("nope"),
            json!({"type": "strin"}),
            json!({"type": []}),
            json!({"type": ["string", "string"]}),
            json!({"properties": []}),
            json!({"properties": {"a": {"items": {"minLength": -1}}}}),
            json!({"items": [{}]}),
            json!({"anyOf": []}),
            json!({"required": "a"}),
            json!({"required": ["a", "a"]}),
            json!({"multipleOf": 0}),
            json!({"exclusiveMinimum": true}),
            json!({"$ref": "#/$defs/none"}),
            json!({"$ref": "https://elsewhere.test/schema"}),
            json!({"$ref": "http://json-schema.org/draft-07/schema#"}),
            json!({"$schema": "http://json-schema.org/draft-03/schema#"}),
            json!({"$schema": "draft-07"}),
            json!({"$vocabulary": {"a": 1}}),
            json!({"$ref": 1}),
            json!({"$schema": "http://json-schema.org/draft-07/schema#", "additionalItems": 1}),
            json!({"$schema": "http://json-schema.org/draft-04/schema#", "not": true}),
        ] {
            assert!(checked(&invalid).is_err(), "{invalid}");
        }
    }

    #[test]
    fn references_must_resolve_where_validation_comes_by() {
        let dangling = || json!({"$ref": "#/nowhere"});
        for unused in [
            json!({"$defs": {"a": dangling()}}),
            json!({"definitions": {"a": {"properties": {"b": dangling()}}}}),
            json!({"if": dangling()}),
            json!({"then": dangling()}),
            json!({"contentSchema": dangling()}),
            json!({"$schema": "http://json-schema.org/draft-07/schema#", "items": {}, "additionalItems": dangling()}),
        ] {
            assert_eq!(checked(&unused), Ok(()), "{unused}");
        }
        for used in [
            json!({"$defs": {"a": dangling()}, "$ref": "#/$defs/a"}),
            json!({"$defs": {"a": {"$ref": "#/$defs/b"}, "b": dangling()}, "not": {"$ref": "#/$defs/a"}}),
            json!({"if": dangling(), "else": {}}),
            json!({"$schema": "http://json-schema.org/draft-07/schema#", "items": [{}], "additionalItems": dangling()}),
            // Other documents are looked for everywhere.
            json!({"$defs": {"a": {"$ref": "elsewhere.json"}}}),
        ] {
            assert!(checked(&used).is_err(), "{used}");
        }
    }

    #[test]
    fn what_a_reference_names_is_a_schema_wherever_it_stands() {
        let refers = |target: Value| json!({"x": target, "$ref": "#/x"});
        assert_eq!(checked(&refers(json!({"type": "null"}))), Ok(()));
        assert!(checked(&refers(json!(3))).is_err());
        assert!(checked(&refers(json!({"type": 3}))).is_err());
        assert!(checked(&refers(json!({"items": {"$ref": "#/y"}}))).is_err());
        // Around in a circle.
        assert_eq!(checked(&refers(json!({"items": {"$ref": "#/x"}}))), Ok(()));
    }
}
