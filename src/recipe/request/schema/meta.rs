//! Whether a value is a JSON Schema: each keyword has the shape that its draft asks for.
//!
//! One walk over the schema; keywords that no draft knows are skipped, as the drafts say. `pattern` is taken
//! as text: its dialect is the constraint engine's affair. References must resolve inside the document, for
//! nothing is ever fetched. Of draft 4 a few finer rules (arrays that may not be empty) are left out.

use std::cell::OnceCell;
use std::collections::HashSet;

use super::{At, pointed};
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
    fn of(schema: &Json<'_>) -> Self {
        const MARKS: [(&str, Draft); 5] = [
            ("draft-03", Draft::Four),
            ("draft-04", Draft::Four),
            ("draft-06", Draft::Six),
            ("draft-07", Draft::Seven),
            ("2019-09", Draft::Nineteen),
        ];
        let uri = schema.get("$schema").and_then(Json::as_str).unwrap_or("");
        let mark = MARKS.iter().find(|(mark, _)| uri.contains(mark));
        mark.map_or(Self::Twenty, |(_, draft)| *draft)
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
            | "$recursiveRef" => self >= Self::Nineteen,
            "prefixItems" | "$dynamicRef" | "$dynamicAnchor" => self >= Self::Twenty,
            "additionalItems" => self < Self::Twenty,
            _ => true,
        }
    }
}

/// Says why `schema` is none, or nothing.
pub(in crate::recipe::request) fn check(schema: &Json<'_>) -> Result<(), String> {
    let walk = Walk {
        root: schema,
        draft: Draft::of(schema),
        names: OnceCell::new(),
    };
    walk.schema(schema, &At::Root)
}

struct Walk<'v> {
    root: &'v Json<'v>,
    draft: Draft,
    /// What schemas in the document call themselves; collected for the first reference by name.
    names: OnceCell<HashSet<&'v str>>,
}

impl Walk<'_> {
    fn schema(&self, schema: &Json<'_>, at: &At<'_>) -> Result<(), String> {
        match schema {
            Json::Object(keywords) => keywords
                .iter()
                .try_for_each(|(keyword, value)| self.keyword(keyword, value, at)),
            Json::Bool(_) if self.draft > Draft::Four => Ok(()),
            other => Err(wrong(
                at,
                "a schema, which is an object or a boolean",
                other,
            )),
        }
    }

    fn keyword(&self, keyword: &str, value: &Json<'_>, parent: &At<'_>) -> Result<(), String> {
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
            | "unevaluatedProperties" => self.schema(value, &at),
            "additionalItems" | "additionalProperties" => match value {
                Json::Bool(_) => Ok(()),
                schema => self.schema(schema, &at),
            },
            "items" => match value {
                Json::Array(list) if self.draft < Draft::Twenty => self.schemas(list, &at),
                schema => self.schema(schema, &at),
            },
            "allOf" | "anyOf" | "oneOf" | "prefixItems" => match value {
                Json::Array(list) if !list.is_empty() => self.schemas(list, &at),
                other => Err(wrong(&at, "an array with at least one schema", other)),
            },
            "properties" | "patternProperties" | "$defs" | "definitions" | "dependentSchemas" => {
                let map = object(value, &at)?;
                map.iter()
                    .try_for_each(|(name, schema)| self.schema(schema, &At::Key(&at, name)))
            }
            "dependencies" => object(value, &at)?.iter().try_for_each(|(name, value)| {
                let at = At::Key(&at, name);
                match value {
                    Json::Array(_) => strings(value, &at),
                    schema => self.schema(schema, &at),
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
            "$ref" | "$dynamicRef" | "$recursiveRef" => match value {
                Json::String(reference) if self.resolves(reference) => Ok(()),
                Json::String(_) => Err(wrong(&at, "a reference inside the schema", value)),
                other => Err(wrong(&at, "a string", other)),
            },
            _ => Ok(()),
        }
    }

    fn schemas(&self, list: &[Json<'_>], at: &At<'_>) -> Result<(), String> {
        list.iter()
            .enumerate()
            .try_for_each(|(index, schema)| self.schema(schema, &At::Index(at, index)))
    }

    /// Whether a reference points at something in this document or at a draft's own schema.
    fn resolves(&self, reference: &str) -> bool {
        if pointed(self.root, reference).is_some() || reference.contains("://json-schema.org/") {
            return true;
        }
        // By name: an anchor, or an identifier with or without a fragment behind it.
        let target = match reference.split_once('#') {
            Some(("", anchor)) => anchor,
            Some((id, _)) => id,
            None => reference,
        };
        let names = self.names.get_or_init(|| {
            let mut found = HashSet::new();
            names(self.root, &mut found);
            found
        });
        !target.is_empty() && names.contains(target)
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
            json!({"$ref": 1}),
            json!({"$schema": "http://json-schema.org/draft-07/schema#", "additionalItems": 1}),
            json!({"$schema": "http://json-schema.org/draft-04/schema#", "not": true}),
        ] {
            assert!(checked(&invalid).is_err(), "{invalid}");
        }
    }
}
