//! Reads shapes out of a JSON value: typed access that knows where it is.
//!
//! A path is a chain of borrowed steps and becomes text only when something is wrong, so reading a request
//! allocates nothing. Strings are borrowed from the value.

use std::fmt::{self, Display, Formatter};

use crate::recipe::error::{Error, Stage};
use crate::recipe::json::{Json, Object};

/// A value and the way to it.
#[derive(Clone, Copy)]
pub(super) struct Node<'v, 'p> {
    value: &'v Json<'v>,
    path: Path<'p>,
}

/// The way from the body to a value.
#[derive(Clone, Copy)]
struct Path<'p> {
    parent: Option<&'p Path<'p>>,
    step: Step<'p>,
}

#[derive(Clone, Copy)]
enum Step<'p> {
    Body,
    Key(&'p str),
    Index(usize),
}

impl Display for Path<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if let Some(parent) = self.parent {
            parent.fmt(f)?;
        }
        match self.step {
            Step::Body => Ok(()),
            Step::Index(index) => write!(f, "[{index}]"),
            Step::Key(key) => {
                let at_top = self.parent.is_none_or(|p| matches!(p.step, Step::Body));
                write!(f, "{}{key}", if at_top { "" } else { "." })
            }
        }
    }
}

impl<'v> Node<'v, '_> {
    /// The body itself.
    pub(super) fn body(value: &'v Json<'v>) -> Self {
        let path = Path {
            parent: None,
            step: Step::Body,
        };
        Self { value, path }
    }

    /// The value.
    pub(super) fn value(&self) -> &'v Json<'v> {
        self.value
    }

    /// The path as text.
    pub(super) fn path(&self) -> String {
        self.path.to_string()
    }

    /// Says that something else was expected here.
    pub(super) fn expected(&self, what: &str) -> Error {
        let found = match self.value {
            Json::Null => "null".to_owned(),
            Json::Bool(value) => value.to_string(),
            Json::Number(value) => format!("the number {value}"),
            Json::String(value) if value.len() <= 64 => format!("the string {value:?}"),
            Json::String(_) => "a long string".to_owned(),
            Json::Array(_) => "an array".to_owned(),
            Json::Object(_) => "an object".to_owned(),
        };
        self.wrong(&format!("expected {what}, got {found}"))
    }

    /// Says what is wrong here.
    pub(super) fn wrong(&self, reason: &str) -> Error {
        let path = self.path();
        let message = if path.is_empty() {
            format!("invalid request body: {reason}")
        } else {
            format!("invalid request body: {path}: {reason}")
        };
        Error::new(Stage::Deserialize, path, message)
    }

    /// The value as an object. An array of its fields is not one.
    pub(super) fn object(&self) -> Result<&'v Object<'v>, Error> {
        self.value
            .as_object()
            .ok_or_else(|| self.expected("an object"))
    }

    /// Refuses the first field that is not `known`.
    pub(super) fn refuse_unknown(&self, known: impl Fn(&str) -> bool) -> Result<(), Error> {
        match self.object()?.iter().find(|(name, _)| !known(name)) {
            None => Ok(()),
            Some((name, value)) => Err(self.child(value, Step::Key(name)).wrong("unknown field")),
        }
    }

    /// A field that must be there.
    pub(super) fn required<'s>(&'s self, key: &'s str) -> Result<Node<'v, 's>, Error> {
        let value = self.object()?.get(key);
        let Some(value) = value else {
            return Err(self.at_key(key, &format!("missing field \"{key}\"")));
        };
        Ok(self.child(value, Step::Key(key)))
    }

    /// A field that may be absent or null.
    pub(super) fn optional<'s>(&'s self, key: &'s str) -> Result<Option<Node<'v, 's>>, Error> {
        let value = self.object()?.get(key).filter(|value| !value.is_null());
        Ok(value.map(|value| self.child(value, Step::Key(key))))
    }

    /// What `read` makes of a field that may be absent or null.
    pub(super) fn maybe<'s, T>(
        &'s self,
        key: &'s str,
        read: impl FnOnce(Node<'v, 's>) -> Result<T, Error>,
    ) -> Result<Option<T>, Error> {
        self.optional(key)?.map(read).transpose()
    }

    /// Refuses keys other than `known`, for input in which a misspelt key must be seen.
    pub(super) fn only(&self, known: &[&str]) -> Result<(), Error> {
        let Some(key) = self.object()?.keys().find(|key| !known.contains(key)) else {
            return Ok(());
        };
        Err(self.at_key(key, &format!("unknown field {key:?}")))
    }

    /// What is wrong with the object at `key`, whether or not it has that key.
    pub(super) fn at_key(&self, key: &str, reason: &str) -> Error {
        let step = Step::Key(key);
        let parent = Some(&self.path);
        let mut error = self.wrong(reason);
        error.param = Path { parent, step }.to_string();
        error
    }

    /// What `read` makes of each item of an array.
    pub(super) fn list<T>(
        &self,
        mut read: impl FnMut(Node<'v, '_>) -> Result<T, Error>,
    ) -> Result<Vec<T>, Error> {
        let items = self
            .value
            .as_array()
            .ok_or_else(|| self.expected("an array"))?;
        items
            .iter()
            .enumerate()
            .map(|(at, item)| read(self.child(item, Step::Index(at))))
            .collect()
    }

    /// A string.
    pub(super) fn text(&self) -> Result<&'v str, Error> {
        self.value.as_str().ok_or_else(|| self.expected("a string"))
    }

    /// A boolean.
    pub(super) fn boolean(&self) -> Result<bool, Error> {
        self.value
            .as_bool()
            .ok_or_else(|| self.expected("true or false"))
    }

    /// An integer that fits `T`. A float is none, whatever its value.
    pub(super) fn integer<T: TryFrom<u64>>(&self) -> Result<T, Error> {
        self.value
            .as_u64()
            .and_then(|value| T::try_from(value).ok())
            .ok_or_else(|| {
                let bits = 8 * size_of::<T>();
                self.expected(&format!("an unsigned integer of {bits} bits"))
            })
    }

    /// Any number, as the protocols keep them.
    pub(super) fn float(&self) -> Result<f32, Error> {
        let value = self.value.as_f64();
        #[expect(
            clippy::cast_possible_truncation,
            reason = "rounding to f32 is the rule"
        )]
        value
            .map(|value| value as f32)
            .ok_or_else(|| self.expected("a number"))
    }

    /// One of `names`, case-sensitive.
    pub(super) fn choice<T: Copy>(&self, names: &[(&str, T)]) -> Result<T, Error> {
        let text = self.value.as_str();
        let found = names.iter().find(|(name, _)| text == Some(name));
        found.map(|(_, value)| *value).ok_or_else(|| {
            let names: Vec<String> = names
                .iter()
                .map(|(name, _)| format!("\"{name}\""))
                .collect();
            self.expected(&format!("one of {}", names.join(", ")))
        })
    }

    fn child<'s>(&'s self, value: &'v Json<'v>, step: Step<'s>) -> Node<'v, 's> {
        Node {
            value,
            path: Path {
                parent: Some(&self.path),
                step,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipe::json::parse;

    #[test]
    fn an_error_names_the_way_to_the_value() {
        let body = parse(r#"{"messages": [{}, {"content": {"n": 1.0}}]}"#).expect("it is valid");
        let body = Node::body(&body);
        let messages = body.required("messages").expect("it is there");
        let error = messages
            .list(|message| {
                message.maybe("content", |content| content.required("n")?.integer::<u8>())
            })
            .expect_err("1.0 is no integer");
        assert_eq!(error.param, "messages[1].content.n");
        assert_eq!(
            error.message,
            "invalid request body: messages[1].content.n: expected an unsigned integer of 8 bits, got the number 1.0"
        );
    }

    #[test]
    fn absent_and_null_are_the_same_where_a_field_is_optional() {
        let body = parse(r#"{"a": null, "b": 255}"#).expect("it is valid");
        let body = Node::body(&body);
        for key in ["a", "c"] {
            assert_eq!(
                body.maybe(key, |n| n.text()).expect("it may be absent"),
                None
            );
        }
        assert_eq!(
            body.maybe("b", |n| n.integer::<u8>()).expect("it fits"),
            Some(255)
        );
        assert!(body.required("c").is_err());
    }
}
