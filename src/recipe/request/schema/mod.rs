//! JSON Schemas of tools and response formats: is it a schema at all, and its normal form in strict mode.

mod meta;
mod strict;

pub(super) use self::meta::check;
pub(super) use self::strict::{Root, normalize};

use std::fmt::{self, Display, Formatter};

use crate::recipe::json::Json;

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

/// Follows a JSON pointer (without `#`, percent-decoded) inside `root`.
fn pointed<'v, 'b>(root: &'v Json<'b>, reference: &str) -> Option<&'v Json<'b>> {
    let fragment = reference.strip_prefix('#')?;
    if !fragment.contains('%') {
        return root.pointer(fragment);
    }
    let mut bytes = Vec::with_capacity(fragment.len());
    let mut rest = fragment;
    while let Some((before, after)) = rest.split_once('%') {
        bytes.extend_from_slice(before.as_bytes());
        bytes.push(u8::from_str_radix(after.get(..2)?, 16).ok()?);
        rest = &after[2..];
    }
    bytes.extend_from_slice(rest.as_bytes());
    root.pointer(std::str::from_utf8(&bytes).ok()?)
}
