//! JSON Schemas of tools and response formats: is it a schema at all, and its normal form in strict mode.

mod meta;
mod strict;

pub(super) use self::meta::check;
pub(super) use self::strict::{Root, normalize};

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt::{self, Display, Formatter};

use crate::recipe::json::{Json, Object};

/// Where a keyword stands; text only when something is wrong.
enum At<'p> {
    Root,
    Key(&'p At<'p>, &'p str),
    Index(&'p At<'p>, usize),
}

impl Display for At<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Root => Ok(()),
            Self::Key(parent, key) => write!(f, "{parent}/{key}"),
            Self::Index(parent, index) => write!(f, "{parent}/{index}"),
        }
    }
}

/// Follows references inside one document. A large object gets an index when it is first looked into, so that
/// many references into many definitions take linear time.
struct Pointers<'v, 'b> {
    root: &'v Json<'b>,
    indexes: RefCell<HashMap<*const Object<'b>, Index<'v, 'b>>>,
}

type Index<'v, 'b> = HashMap<&'v str, &'v Json<'b>, ahash::RandomState>;

impl<'v, 'b> Pointers<'v, 'b> {
    fn new(root: &'v Json<'b>) -> Self {
        let indexes = RefCell::default();
        Self { root, indexes }
    }

    /// What `#` and a JSON pointer, percent-encoded or not, name.
    fn follow(&self, reference: &str) -> Option<&'v Json<'b>> {
        let fragment = reference.strip_prefix('#')?;
        let pointer = percent_decoded(fragment)?;
        if pointer.is_empty() {
            return Some(self.root);
        }
        let mut steps = pointer.strip_prefix('/')?.split('/');
        steps.try_fold(self.root, |value, step| match value {
            Json::Object(object) if step.contains('~') => {
                self.entry(object, &step.replace("~1", "/").replace("~0", "~"))
            }
            Json::Object(object) => self.entry(object, step),
            Json::Array(items) => {
                let plain = step == "0" || !step.starts_with(['0', '+']);
                items.get(step.parse::<usize>().ok().filter(|_| plain)?)
            }
            _ => None,
        })
    }

    fn entry(&self, object: &'v Object<'b>, key: &str) -> Option<&'v Json<'b>> {
        /// Up to this many entries looking at all is as fast.
        const FEW: usize = 24;
        if object.len() <= FEW {
            return object.get(key);
        }
        let mut indexes = self.indexes.borrow_mut();
        let index = indexes.entry(object);
        let index = index.or_insert_with(|| object.iter().collect());
        index.get(key).copied()
    }
}

/// `text` with `%41` read as `A`; `None` when that is no text any more.
fn percent_decoded(text: &str) -> Option<Cow<'_, str>> {
    if !text.contains('%') {
        return Some(text.into());
    }
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('%') {
        bytes.extend_from_slice(before.as_bytes());
        bytes.push(u8::from_str_radix(after.get(..2)?, 16).ok()?);
        rest = &after[2..];
    }
    bytes.extend_from_slice(rest.as_bytes());
    String::from_utf8(bytes).ok().map(Cow::Owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipe::json::parse;

    #[test]
    fn pointers_name_places() {
        let root = parse(r#"{"a/b": [1, {"~": 2, "%": 3}]}"#).expect("it is valid");
        let pointers = Pointers::new(&root);
        let found = |reference| pointers.follow(reference).and_then(Json::as_u64);
        assert_eq!(pointers.follow("#"), Some(&root));
        assert_eq!(found("#/a~1b/0"), Some(1));
        assert_eq!(found("#/a~1b/1/~0"), Some(2));
        assert_eq!(found("#/a%7E1b/1/%25"), Some(3));
        for nothing in [
            "",
            "/a~1b",
            "#a",
            "#/a~1b/00",
            "#/a~1b/+1",
            "#/a~1b/2",
            "#/a~1b/0/0",
            "#/",
            "#/%",
        ] {
            assert_eq!(pointers.follow(nothing), None, "{nothing}");
        }
    }
}
