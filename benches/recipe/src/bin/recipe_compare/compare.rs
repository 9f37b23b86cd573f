//! Whether two outcomes are the same, and if not, what kind of difference it is.

use fathom::recipe::Protocol;
use serde_json::{Value, json};

use crate::expected;
use crate::systems::{Accepted, Outcome, Refusal, Refused};

/// What became of a comparison.
pub enum Verdict {
    SameAccepted,
    SameRefused(Refused),
    Differ {
        /// The difference without what is particular to the request.
        kind: String,
        detail: String,
        expected: bool,
    },
}

impl Verdict {
    /// For the summary.
    pub fn outcome(&self) -> &'static str {
        match self {
            Self::SameAccepted => "both accept",
            Self::SameRefused(Refused::Shape) => "both refuse the shape",
            Self::SameRefused(Refused::Value) => "both refuse a value",
            Self::SameRefused(Refused::Internal) => "both fail",
            Self::Differ { expected: true, .. } => "they differ as expected",
            Self::Differ { .. } => "they differ",
        }
    }
}

/// Compares what became of `body`.
pub fn compare(protocol: Protocol, body: &str, theirs: &Outcome, ours: &Outcome) -> Verdict {
    if let Some(kind) = expected::kind(protocol, body, theirs, ours) {
        return Verdict::Differ {
            kind: kind.to_owned(),
            detail: format!("theirs: {}, ours: {}", text(theirs), text(ours)),
            expected: true,
        };
    }
    let (kind, detail) = match (theirs, ours) {
        (Outcome::Accepted(theirs), Outcome::Accepted(ours)) => match difference(theirs, ours) {
            None => return Verdict::SameAccepted,
            Some((field, detail)) => (format!("both accept, {field}"), detail),
        },
        (Outcome::Refused(theirs), Outcome::Refused(ours))
            if theirs.stage == ours.stage && same_text(theirs, ours) =>
        {
            return Verdict::SameRefused(theirs.stage);
        }
        _ => (
            format!("theirs {} / ours {}", masked(theirs), masked(ours)),
            format!("theirs: {}, ours: {}", text(theirs), text(ours)),
        ),
    };
    Verdict::Differ {
        kind,
        detail,
        expected: false,
    }
}

fn difference(theirs: &Accepted, ours: &Accepted) -> Option<(String, String)> {
    if theirs.prompt != ours.prompt {
        let at = theirs
            .prompt
            .bytes()
            .zip(ours.prompt.bytes())
            .take_while(|(left, right)| left == right)
            .count();
        let near = |text: &str| {
            let from = text.floor_char_boundary(at.saturating_sub(60));
            let to = text.ceil_char_boundary((at + 100).min(text.len()));
            text[from..to].to_owned()
        };
        let detail = json!({"at": at, "theirs": near(&theirs.prompt), "ours": near(&ours.prompt)});
        return Some(("prompt".to_owned(), detail.to_string()));
    }
    if theirs.special_ranges != ours.special_ranges {
        let detail = format!(
            "theirs {:?}, ours {:?}",
            theirs.special_ranges, ours.special_ranges
        );
        return Some(("special ranges".to_owned(), detail));
    }
    for (name, value) in &theirs.facts {
        let other = ours.facts.get(name).unwrap_or(&Value::Null);
        if value == other {
            continue;
        }
        // The echo has parts of its own.
        let part = value.as_object().and_then(|parts| {
            let part = parts.keys().find(|key| value[*key] != other[*key])?;
            Some((part.clone(), &value[part], &other[part]))
        });
        let (name, value, other) = match part {
            Some((part, value, other)) => (format!("{name}.{part}"), value, other),
            None => (name.clone(), value, other),
        };
        return Some((name, format!("theirs {value}, ours {other}")));
    }
    if theirs.ids != ours.ids {
        return Some(("ids".to_owned(), format!("prompt {:?}", theirs.prompt)));
    }
    None
}

/// Texts of a fixed kind are equal; the others say what they like.
fn same_text(theirs: &Refusal, ours: &Refusal) -> bool {
    match theirs.stage {
        Refused::Shape | Refused::Internal => true,
        Refused::Value => {
            theirs.message == ours.message || expected::is_advisory(&theirs.message, &ours.message)
        }
    }
}

/// An outcome in a few words.
pub fn text(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Accepted(_) => "accepts".to_owned(),
        Outcome::Refused(refusal) => format!("{:?}: {}", refusal.stage, refusal.message),
        Outcome::Panicked(message) => format!("panics: {message}"),
    }
}

/// A text without what is particular to one request: digits, quoted parts, its end.
fn masked(outcome: &Outcome) -> String {
    let text = text(outcome);
    let mut masked = String::new();
    let mut quote = None;
    for c in text.chars() {
        match quote {
            Some(end) if c == end => quote = None,
            Some(_) => continue,
            None if matches!(c, '\'' | '"') => quote = Some(c),
            None => {}
        }
        let c = if c.is_ascii_digit() { '#' } else { c };
        if !(c == '#' && masked.ends_with('#')) {
            masked.push(c);
        }
    }
    masked.chars().take(110).collect()
}
