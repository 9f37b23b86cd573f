//! JSON Schemas of tools and response formats: is it a schema at all, and its normal form in strict mode.

mod meta;
mod strict;

pub(super) use self::meta::check;
pub(super) use self::strict::{Root, normalize};

use serde_json::Value;

/// Follows a JSON pointer (without `#`, percent-decoded) inside `root`.
fn pointed<'v>(root: &'v Value, reference: &str) -> Option<&'v Value> {
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
