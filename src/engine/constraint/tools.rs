//! Calls of tools in the model's own markup, as a grammar.
//!
//! In: the tools with their schemas, the words of the markup and the id of its marker. Out: a grammar in the form
//! of Lark in which only declared tools are called, with their declared parameters, each once, in the order of the
//! schema: raw text where a string is wanted, JSON of the declared type elsewhere. The marker is a control token,
//! so no text of a value can end it early.
//!
//! Raw strings are held to `enum` and `const`; their `pattern` and lengths are not held. Of a tool that is not
//! strict, keywords that cannot be held are dropped. Linear in the schemas.

#![forbid(unsafe_code)]

use std::fmt::Write;

use serde_json::{Map, Value, json};

use super::spec::{JSON_SPACE, lark_string, refuse, tidy};
use crate::engine::error::Error;

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ToolCalls {
    /// What may be called.
    pub tools: Vec<Tool>,
    /// The id of the marker behind `<` and `</` of each tag.
    pub marker: u32,
    /// The words of the tags.
    pub markup: Markup,
    /// What comes before the first call.
    pub opening: Opening,
    /// No more than one call.
    pub single: bool,
}

/// A tool.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Tool {
    /// As it is called.
    pub name: String,
    /// JSON Schema.
    pub parameters: String,
    /// All of the schema must hold.
    pub strict: bool,
}

/// The words between the marker and the end of a tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Markup {
    /// Around all calls.
    pub block: &'static str,
    /// Around one call.
    pub call: &'static str,
    /// Around one parameter.
    pub parameter: &'static str,
    /// A call without parameters has an empty line.
    pub empty_line: bool,
}

/// How the block of calls begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Opening {
    /// The prompt has opened it.
    Done,
    /// The output opens it, with nothing before.
    Required,
    /// There may be text first, and no block at all.
    Optional,
}

/// Steps that the search for a type follows references and alternatives.
const HOPS: usize = 8;
/// The most text that the grammar of all tools may have: definitions are repeated with each parameter.
const MOST: usize = 4 << 20;
/// Tools and parameters together; the compiled grammar counts its symbols in 16 bits.
const RULES: usize = 8000;

impl ToolCalls {
    /// Bytes of names and schemas.
    pub(super) fn bytes(&self) -> usize {
        let sizes = self.tools.iter().map(|t| t.name.len() + t.parameters.len());
        sizes.sum()
    }

    pub(super) fn to_lark(&self) -> Result<String, Error> {
        let marker = format!("<[{}]>", self.marker);
        let Markup { block, call, .. } = self.markup;
        let mut out = String::new();
        let opened = format!("{marker} {}", lark_string(&format!("{block}>\n")));
        match self.opening {
            Opening::Done => out.push_str("start: calls\n"),
            Opening::Required => {
                let _ = writeln!(out, "start: \"\\n\\n<\" {opened} calls");
            }
            Opening::Optional => {
                let _ = writeln!(out, "start: FREE? | OPEN {opened} calls");
                out.push_str("FREE: /(?s:.+)/\nOPEN: /(?s:.*)</\n");
            }
        }
        let many = if self.single { "" } else { "+" };
        let close = lark_string(&format!("{block}>"));
        let _ = writeln!(out, "calls: call{many} \"</\" {marker} {close}");
        let _ = write!(out, "call: \"<\" {marker} (");
        for at in 0..self.tools.len() {
            let _ = write!(out, "{}c{at}", if at > 0 { " | " } else { "" });
        }
        let end = lark_string(&format!("{call}>\n"));
        let _ = writeln!(out, ") \"</\" {marker} {end}");
        // A text up to the tag that ends it: the marker behind it is no text.
        out.push_str("TEXT: /(?s:.*)<\\//\n");
        if self.tools.is_empty() {
            return Err(refuse("there is no tool to call".to_owned()));
        }
        let mut writer = Writer {
            calls: self,
            marker,
            out,
            parameters: 0,
        };
        for (at, tool) in self.tools.iter().enumerate() {
            writer.tool(at, tool)?;
            if at + writer.parameters > RULES {
                return Err(refuse(format!(
                    "there are more than {RULES} tools and parameters"
                )));
            }
            if writer.out.len() > MOST {
                return Err(refuse(format!(
                    "the tools make a grammar of more than {MOST} bytes"
                )));
            }
        }
        Ok(writer.out)
    }
}

struct Writer<'a> {
    calls: &'a ToolCalls,
    marker: String,
    out: String,
    /// Rules of parameters so far.
    parameters: usize,
}

impl Writer<'_> {
    fn tool(&mut self, at: usize, tool: &Tool) -> Result<(), Error> {
        let refuse_tool = |what: &str| refuse(format!("tool \"{}\" {what}", tool.name));
        if !is_spellable(&tool.name) {
            return Err(refuse_tool("has a name that no call can spell"));
        }
        let mut schema: Value = serde_json::from_str(&tool.parameters)
            .map_err(|error| refuse_tool(&format!("has parameters that are not JSON: {error}")))?;
        tidy(&mut schema)?;
        let empty = Map::new();
        let declared = match schema.get("properties") {
            Some(Value::Object(properties)) => properties,
            _ => &empty,
        };
        let required: std::collections::HashSet<&str> = schema
            .get("required")
            .and_then(Value::as_array)
            .map(|names| names.iter().filter_map(Value::as_str).collect())
            .unwrap_or_default();
        let first = self.parameters;
        // Each entry: whether it may be left out.
        let mut optional = Vec::new();
        for (name, property) in declared {
            let is_required = required.contains(name.as_str());
            if !is_spellable(name) {
                if is_required {
                    return Err(refuse_tool("requires a parameter that no call can spell"));
                }
                continue;
            }
            self.parameter(&lark_string(name), property, &schema, tool.strict);
            optional.push(!is_required);
        }
        let open_ended = schema.get("additionalProperties");
        let takes_any = declared.is_empty()
            && schema.get("type").is_some()
            && open_ended != Some(&Value::Bool(false));
        let head = lark_string(&format!(
            "{} name=\"{}\">\n",
            self.calls.markup.call, tool.name
        ));
        if takes_any {
            let value = open_ended.cloned().unwrap_or(Value::Bool(true));
            self.parameter("/[^\"\\\\\\x00-\\x1f]+/", &value, &schema, tool.strict);
            let empty = if self.calls.markup.empty_line {
                "\"\\n\""
            } else {
                "\"\""
            };
            let _ = writeln!(self.out, "c{at}: {head} ({empty} | p{first}+)");
            return Ok(());
        }
        let all_optional = optional.iter().all(|may_miss| *may_miss);
        let list = |out: &mut String, from: usize| {
            for (n, may_miss) in optional.iter().enumerate().skip(from) {
                let _ = write!(
                    out,
                    " p{}{}",
                    first + n,
                    if *may_miss && n >= from { "?" } else { "" }
                );
            }
        };
        let _ = write!(self.out, "c{at}: {head}");
        if !(self.calls.markup.empty_line && all_optional) {
            list(&mut self.out, 0);
            self.out.push('\n');
            return Ok(());
        }
        // An empty line, or at least one parameter: the first that is there decides.
        self.out.push_str(" (\"\\n\"");
        for n in 0..optional.len() {
            let _ = write!(self.out, " | p{} a{at}x{}", first + n, n + 1);
        }
        self.out.push_str(")\n");
        for n in 0..optional.len() {
            // What may follow parameter n: itself a rule, so that the whole stays linear.
            let _ = write!(self.out, "a{at}x{}: ", n + 1);
            if n + 1 == optional.len() {
                self.out.push_str("\"\"\n");
            } else {
                let _ = writeln!(self.out, "p{}? a{at}x{}", first + n + 1, n + 2);
            }
        }
        Ok(())
    }

    /// The rule of one parameter, with the line break behind it. `name` stands as Lark.
    fn parameter(&mut self, name: &str, schema: &Value, root: &Value, strict: bool) {
        let at = self.parameters;
        self.parameters += 1;
        let marker = &self.marker;
        let word = self.calls.markup.parameter;
        let end = lark_string(&format!("{word}>\n"));
        let mut forms = Forms::default();
        forms.add(schema, root, HOPS);
        let _ = write!(
            self.out,
            "p{at}: \"<\" {marker} {} {name} (",
            lark_string(&format!("{word} name=\""))
        );
        let mut separator = "";
        if forms.any_text {
            let _ = write!(self.out, "{} TEXT", lark_string("\" string=\"true\">"));
            separator = " | ";
        } else if !forms.texts.is_empty() {
            let _ = write!(self.out, "{} (", lark_string("\" string=\"true\">"));
            for (n, text) in forms.texts.iter().enumerate() {
                let _ = write!(
                    self.out,
                    "{}{}",
                    if n > 0 { " | " } else { "" },
                    lark_string(text)
                );
            }
            self.out.push_str(") \"</\"");
            separator = " | ";
        }
        if !forms.values.is_empty() {
            let value = with_definitions(one_of(forms.values), root, strict);
            let _ = write!(
                self.out,
                "{separator}{} %json {value} \"</\"",
                lark_string("\" string=\"false\">")
            );
        }
        let _ = writeln!(self.out, ") {marker} {end}");
    }
}

/// Whether a name can stand between the quotes of a tag.
fn is_spellable(name: &str) -> bool {
    !name.is_empty() && !name.contains(|c: char| c == '"' || c.is_control())
}

/// The forms that a value may take.
#[derive(Default)]
struct Forms {
    any_text: bool,
    /// Texts, if not any.
    texts: Vec<String>,
    /// Schemas of values that are not strings.
    values: Vec<Value>,
}

impl Forms {
    /// Adds what `schema` allows. Recursion is bounded by `hops`.
    fn add(&mut self, schema: &Value, root: &Value, hops: usize) {
        let Value::Object(object) = schema else {
            if *schema != Value::Bool(false) {
                self.add_anything(&Map::new());
            }
            return;
        };
        if let Some(target) = object.get("$ref").and_then(Value::as_str) {
            match resolve(target, root).filter(|_| hops > 0) {
                Some(target) => self.add(target, root, hops - 1),
                None => self.add_anything(&Map::new()),
            }
            return;
        }
        for key in ["anyOf", "oneOf"] {
            if let Some(Value::Array(branches)) = object.get(key).filter(|_| hops > 0) {
                for branch in branches {
                    self.add(branch, root, hops - 1);
                }
                return;
            }
        }
        if let Some(value) = object.get("const") {
            self.add_value(value);
            return;
        }
        if let Some(Value::Array(values)) = object.get("enum") {
            for value in values {
                self.add_value(value);
            }
            return;
        }
        match object.get("type") {
            Some(Value::String(kind)) if kind == "string" => self.any_text = true,
            Some(Value::String(_)) => self.values.push(schema.clone()),
            Some(Value::Array(kinds)) => {
                let others: Vec<&Value> = kinds.iter().filter(|kind| *kind != "string").collect();
                self.any_text |= others.len() < kinds.len();
                if !others.is_empty() {
                    let mut rest = object.clone();
                    rest.insert("type".to_owned(), json!(others));
                    self.values.push(Value::Object(rest));
                }
            }
            _ => self.add_anything(object),
        }
    }

    fn add_anything(&mut self, object: &Map<String, Value>) {
        self.any_text = true;
        let mut rest = object.clone();
        rest.insert(
            "type".to_owned(),
            json!(["object", "array", "number", "boolean", "null"]),
        );
        self.values.push(Value::Object(rest));
    }

    fn add_value(&mut self, value: &Value) {
        match value {
            Value::String(text) => self.texts.push(text.clone()),
            other => self.values.push(json!({"const": other})),
        }
    }
}

fn one_of(mut schemas: Vec<Value>) -> Value {
    match schemas.len() {
        1 => schemas.remove(0),
        _ => json!({"anyOf": schemas}),
    }
}

/// A local reference's target.
fn resolve<'v>(target: &str, root: &'v Value) -> Option<&'v Value> {
    let pointer = target.strip_prefix('#')?;
    root.pointer(pointer)
}

/// A schema that stands alone, with what it may refer to.
fn with_definitions(schema: Value, root: &Value, strict: bool) -> Value {
    let Value::Object(mut object) = schema else {
        return schema;
    };
    let text = Value::Object(object.clone()).to_string();
    if text.contains("\"$ref\"") {
        for key in ["$defs", "definitions", "$def"] {
            if let Some(definitions) = root.get(key) {
                object.entry(key).or_insert_with(|| definitions.clone());
            }
        }
    }
    object.insert(
        "x-guidance".to_owned(),
        json!({"whitespace_pattern": JSON_SPACE, "lenient": !strict}),
    );
    Value::Object(object)
}
