//! JSON of requests: a tree that borrows its text from the body, and values kept as text.
//!
//! Input: the text of a body, of arguments, of a schema. Output: [`Json`], whose strings are slices of that
//! text unless they hold escapes, or [`JsonText`], one compact text for values that are only ever written
//! again. Reading is linear; nesting is limited to 127 levels by the reader below it, so no walk over a tree
//! can exhaust the stack. A number is an integer if it is written as one and fits 64 bits, else a double; a key
//! that is repeated keeps its first place and its last value.

mod write;

use std::borrow::Cow;
use std::cell::Cell;
use std::collections::HashMap;
use std::fmt::{self, Formatter};
use std::sync::Arc;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::Number;

pub use self::write::{Style, to_string, write};
pub(super) use self::write::{restyle, write_string};

/// A JSON value that borrows from the text it was read from.
#[derive(Clone, Debug, PartialEq)]
pub enum Json<'b> {
    /// `null`.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// An integer of 64 bits, or a double.
    Number(Number),
    /// A string, its escapes resolved.
    String(Cow<'b, str>),
    /// An array.
    Array(Vec<Json<'b>>),
    /// An object.
    Object(Object<'b>),
}

/// Entries in the order of the text.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Object<'b> {
    entries: Vec<(Cow<'b, str>, Json<'b>)>,
}

/// The most values in one text, those inside others included. A tree of so many takes a few hundred megabytes;
/// requests have thousands.
pub const MOST_VALUES: usize = 4 << 20;

/// Reads `text`, which must be one value.
pub fn parse(text: &str) -> Result<Json<'_>, serde_json::Error> {
    let mut reader = serde_json::Deserializer::from_str(text);
    let left = Cell::new(MOST_VALUES);
    let value = Reader { left: &left }.deserialize(&mut reader)?;
    reader.end()?;
    Ok(value)
}

impl<'b> Json<'b> {
    /// The text of a string.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Self::String(text) => Some(text),
            _ => None,
        }
    }

    /// `true` or `false`.
    pub fn as_bool(&self) -> Option<bool> {
        match self {
            Self::Bool(value) => Some(*value),
            _ => None,
        }
    }

    /// A number.
    pub fn as_number(&self) -> Option<&Number> {
        match self {
            Self::Number(number) => Some(number),
            _ => None,
        }
    }

    /// An integer that is not negative and fits.
    pub fn as_u64(&self) -> Option<u64> {
        self.as_number().and_then(Number::as_u64)
    }

    /// An integer that fits.
    pub fn as_i64(&self) -> Option<i64> {
        self.as_number().and_then(Number::as_i64)
    }

    /// Any number, rounded to a double.
    pub fn as_f64(&self) -> Option<f64> {
        self.as_number().and_then(Number::as_f64)
    }

    /// The items of an array.
    pub fn as_array(&self) -> Option<&[Self]> {
        match self {
            Self::Array(items) => Some(items),
            _ => None,
        }
    }

    /// The entries of an object.
    pub fn as_object(&self) -> Option<&Object<'b>> {
        match self {
            Self::Object(object) => Some(object),
            _ => None,
        }
    }

    /// Whether this is `null`.
    pub fn is_null(&self) -> bool {
        matches!(self, Self::Null)
    }

    /// The value of `key`, if this is an object that has it.
    pub fn get(&self, key: &str) -> Option<&Self> {
        self.as_object()?.get(key)
    }
}

impl<'b> Object<'b> {
    /// The value of `key`. Linear in the number of entries.
    pub fn get(&self, key: &str) -> Option<&Json<'b>> {
        let mut entries = self.entries.iter();
        entries.find_map(|(name, value)| (name == key).then_some(value))
    }

    /// Whether there is a `key`.
    pub fn contains_key(&self, key: &str) -> bool {
        self.get(key).is_some()
    }

    /// Entries in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &Json<'b>)> + Clone {
        self.entries.iter().map(|(key, value)| (&**key, value))
    }

    /// Keys in order.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.iter().map(|(key, _)| key)
    }

    /// Values in order.
    pub fn values(&self) -> impl Iterator<Item = &Json<'b>> {
        self.iter().map(|(_, value)| value)
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Adds an entry behind the others. The key must be new.
    pub(super) fn push(&mut self, key: impl Into<Cow<'b, str>>, value: Json<'b>) {
        self.entries.push((key.into(), value));
    }
}

impl<'b> FromIterator<(Cow<'b, str>, Json<'b>)> for Object<'b> {
    /// The keys must be different.
    fn from_iter<I: IntoIterator<Item = (Cow<'b, str>, Json<'b>)>>(entries: I) -> Self {
        Self {
            entries: entries.into_iter().collect(),
        }
    }
}

impl<'b> From<&'b str> for Json<'b> {
    fn from(text: &'b str) -> Self {
        Self::String(Cow::Borrowed(text))
    }
}

/// A JSON value as compact text, for values that are kept only to be written again. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct JsonText(Arc<str>);

impl JsonText {
    /// The text of `value`.
    pub fn of(value: &Json<'_>) -> Self {
        Self(to_string(value, Style::Compact).into())
    }

    /// A text that was written value by value, and is one compact value.
    pub(super) fn written(text: String) -> Self {
        Self(text.into())
    }

    /// The text: no spaces, numbers in their shortest form.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The value again.
    pub fn parse(&self) -> Json<'_> {
        // Written by us from a tree, so it reads.
        parse(&self.0).unwrap_or(Json::Null)
    }

    /// The value as a tree of its own.
    pub fn to_value(&self) -> serde_json::Value {
        serde_json::from_str(&self.0).unwrap_or_default()
    }
}

/// Reads values, as long as there are not too many.
#[derive(Clone, Copy)]
struct Reader<'c> {
    left: &'c Cell<usize>,
}

impl<'de> DeserializeSeed<'de> for Reader<'_> {
    type Value = Json<'de>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        let Some(left) = self.left.get().checked_sub(1) else {
            let message = format!("more than {MOST_VALUES} values");
            return Err(D::Error::custom(message));
        };
        self.left.set(left);
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Reader<'_> {
    type Value = Json<'de>;

    fn expecting(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(Json::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Self::Value, E> {
        Ok(Json::Bool(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Self::Value, E> {
        Ok(Json::Number(value.into()))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Self::Value, E> {
        Ok(Json::Number(value.into()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Self::Value, E> {
        // The reader refuses what is not finite.
        Ok(Number::from_f64(value).map_or(Json::Null, Json::Number))
    }

    fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
        Ok(Json::String(Cow::Borrowed(text)))
    }

    fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
        Ok(Json::String(Cow::Owned(text.to_owned())))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Self::Value, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = access.next_element_seed(self)? {
            items.push(item);
        }
        Ok(Json::Array(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Self::Value, A::Error> {
        /// Up to this many entries a repeated key is found by looking at all.
        const FEW: usize = 24;
        let mut entries: Vec<(Cow<'de, str>, Json<'de>)> = Vec::new();
        // Where the keys are, once there are many.
        let mut places: Option<HashMap<Cow<'de, str>, usize, ahash::RandomState>> = None;
        while let Some(key) = access.next_key_seed(KeySeed)? {
            let value = access.next_value_seed(self)?;
            let known = if entries.len() <= FEW {
                entries.iter().position(|(name, _)| *name == key)
            } else {
                let places = places.get_or_insert_with(|| {
                    let names = entries.iter().map(|(name, _)| name.clone());
                    names.zip(0..).collect()
                });
                places.get(&key).copied()
            };
            match known {
                Some(at) => entries[at].1 = value,
                None => {
                    if let Some(places) = &mut places {
                        places.insert(key.clone(), entries.len());
                    }
                    entries.push((key, value));
                }
            }
        }
        Ok(Json::Object(Object { entries }))
    }
}

struct KeySeed;

impl<'de> DeserializeSeed<'de> for KeySeed {
    type Value = Cow<'de, str>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<'de> Visitor<'de> for KeySeed {
    type Value = Cow<'de, str>;

    fn expecting(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
        Ok(Cow::Borrowed(text))
    }

    fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
        Ok(Cow::Owned(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::Value;

    fn same(json: &Json<'_>, value: &Value) -> bool {
        match (json, value) {
            (Json::Null, Value::Null) => true,
            (Json::Bool(left), Value::Bool(right)) => left == right,
            (Json::Number(left), Value::Number(right)) => left == right,
            (Json::String(left), Value::String(right)) => left == right,
            (Json::Array(left), Value::Array(right)) => {
                left.len() == right.len() && left.iter().zip(right).all(|(l, r)| same(l, r))
            }
            (Json::Object(left), Value::Object(right)) => {
                let pairs = left.iter().zip(right);
                left.len() == right.len()
                    && pairs
                        .into_iter()
                        .all(|((lk, l), (rk, r))| lk == rk && same(l, r))
            }
            _ => false,
        }
    }

    proptest! {
        #[test]
        fn a_text_reads_as_the_general_reader_reads_it(
            text in "([\\[\\]{},:]|\"[ab\\\\u0-9é]{0,6}\"|\"a\":|-?[0-9]{1,21}(\\.[0-9]{1,3})?(e[+-]?[0-9]{1,3})?|true|null| ){0,24}"
        ) {
            let expected = serde_json::from_str::<Value>(&text);
            match (parse(&text), expected) {
                (Ok(json), Ok(value)) => prop_assert!(same(&json, &value), "{text}"),
                (Err(json), Err(value)) => prop_assert_eq!(json.to_string(), value.to_string()),
                (json, value) => prop_assert!(false, "{text}: {json:?} {value:?}"),
            }
        }
    }

    #[test]
    fn strings_without_escapes_are_not_copied() {
        let json = parse(r#"{"a": "b", "c\u0064": "\n"}"#).expect("it is valid");
        let entries = &json.as_object().expect("an object").entries;
        assert!(matches!(
            &entries[0],
            (Cow::Borrowed("a"), Json::String(Cow::Borrowed("b")))
        ));
        assert!(matches!(
            &entries[1],
            (Cow::Owned(_), Json::String(Cow::Owned(_)))
        ));
    }

    #[test]
    fn a_repeated_key_keeps_its_first_place_and_last_value() {
        let json = parse(r#"{"a": 1, "b": 2, "a": 3}"#).expect("it is valid");
        assert_eq!(to_string(&json, Style::Compact), r#"{"a":3,"b":2}"#);
        let mut text = String::from("{");
        for at in 0..200 {
            text.push_str(&format!("\"k{}\": {at},", at % 70));
        }
        text.push_str("\"k3\": -1}");
        let json = parse(&text).expect("it is valid");
        let object = json.as_object().expect("an object");
        assert_eq!(object.len(), 70);
        assert_eq!(
            object.iter().nth(3),
            Some(("k3", &Json::Number((-1).into())))
        );
        assert_eq!(object.get("k5").and_then(Json::as_u64), Some(145));
    }

    #[test]
    fn nesting_has_a_limit() {
        let nested = |depth: usize| "[".repeat(depth) + &"]".repeat(depth);
        assert!(parse(&nested(127)).is_ok());
        assert!(parse(&nested(128)).is_err());
        assert!(parse(&"{\"a\":".repeat(1_000_000)).is_err());
    }

    #[test]
    fn values_have_a_limit() {
        let many = |count: usize| format!("[{}0]", "0,".repeat(count - 2));
        assert!(parse(&many(MOST_VALUES)).is_ok());
        let error = parse(&many(MOST_VALUES + 1)).expect_err("one too many");
        assert!(
            error.to_string().starts_with("more than 4194304 values"),
            "{error}"
        );
        assert!(parse(&"[[],".repeat(60)).is_err());
    }
}
