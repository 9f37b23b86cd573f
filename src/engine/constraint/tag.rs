//! Free text with tagged parts: `{"structures": [{"begin", "schema", "end"}], "triggers": [string]}`.
//!
//! The text is free until it spells a trigger. From there it goes on as one of the structures whose `begin`
//! starts with that trigger: the rest of `begin`, JSON of `schema`, `end`; then it is free again. It may end
//! wherever it is free. Linear in the text.

#![forbid(unsafe_code)]

use std::fmt::Write;

use serde::Deserialize;
use serde_json::Value;

use super::spec::{lark_regex, lark_string, refuse, tidy, with_layout};
use crate::engine::error::Error;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Tags {
    /// The name of the kind, which some clients repeat here.
    #[serde(default, rename = "type")]
    kind: Option<String>,
    structures: Vec<Structure>,
    triggers: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Structure {
    begin: String,
    schema: Value,
    end: String,
}

pub(super) fn to_lark(text: &str) -> Result<String, Error> {
    let mut tags: Tags = serde_json::from_str(text)
        .map_err(|error| refuse(format!("the structural tag cannot be read: {error}")))?;
    if let Some(kind) = tags.kind.filter(|kind| kind != "structural_tag") {
        return Err(refuse(format!(
            "the type of the structural tag is \"{kind}\", wanted \"structural_tag\""
        )));
    }
    if tags.triggers.is_empty() || tags.triggers.iter().any(String::is_empty) {
        return Err(refuse(
            "a structural tag needs triggers, and none of them empty".to_owned(),
        ));
    }
    // A trigger that another one begins with is always seen first.
    let mut tails: Vec<Vec<String>> = tags.triggers.iter().map(|_| Vec::new()).collect();
    for (at, structure) in tags.structures.iter_mut().enumerate() {
        let begins = |trigger: &String| structure.begin.starts_with(trigger.as_str());
        let Some(first) = tags.triggers.iter().position(begins) else {
            return Err(refuse(format!(
                "structure {at} begins with none of the triggers"
            )));
        };
        tidy(&mut structure.schema)?;
        let rest = &structure.begin[tags.triggers[first].len()..];
        let mut tail = String::new();
        for part in [rest, "\u{0}", structure.end.as_str()] {
            match part {
                "\u{0}" => {
                    let _ = write!(tail, " %json {}", with_layout(structure.schema.clone()));
                }
                "" => {}
                text => {
                    let _ = write!(tail, " {}", lark_string(text));
                }
            }
        }
        tails[first].push(tail);
    }
    let mut lark = String::from("start: tag* FREE?\ntag: ");
    let used = || {
        tails
            .iter()
            .enumerate()
            .filter(|(_, tails)| !tails.is_empty())
    };
    for (n, (at, _)) in used().enumerate() {
        let _ = write!(lark, "{}t{at}", if n > 0 { " | " } else { "" });
    }
    if used().next().is_none() {
        return Err(refuse("the structural tag has no structures".to_owned()));
    }
    lark.push('\n');
    for (at, tails) in used() {
        let trigger = lark_string(&tags.triggers[at]);
        let _ = writeln!(lark, "u{at}[suffix={trigger}]: /(?s:.*)/");
        let _ = writeln!(lark, "t{at}: u{at} ({})", tails.join(" |"));
    }
    // What never spells a trigger.
    let all: Vec<String> = tags
        .triggers
        .iter()
        .map(|trigger| regex_syntax::escape(trigger))
        .collect();
    let spelled = lark_regex(&format!("(?s:.*)(?:{})(?s:.*)", all.join("|")));
    let _ = writeln!(lark, "FREE: /(?s:.+)/ & ~/{spelled}/");
    Ok(lark)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_that_make_no_sense_are_refused() {
        for (text, reason) in [
            ("[]", "cannot be read"),
            (r#"{"structures":[],"triggers":["<"]}"#, "no structures"),
            (r#"{"structures":[],"triggers":[""]}"#, "none of them empty"),
            (
                r#"{"structures":[{"begin":"[","schema":{},"end":"]"}],"triggers":["<"]}"#,
                "structure 0",
            ),
            (r#"{"structures":[],"triggers":["<"],"more":1}"#, "more"),
        ] {
            let error = to_lark(text).unwrap_err();
            assert!(error.message.contains(reason), "{error}");
        }
    }
}
