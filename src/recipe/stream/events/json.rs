//! JSON text, written straight into the event: no tree of values on the way of a token.

use std::fmt::Write;

/// Appends `text` as the inside of a JSON string: quote, backslash and control characters are escaped,
/// everything else stays.
pub(in crate::recipe::stream) fn escape(text: &str, into: &mut String) {
    let mut start = 0;
    for (at, byte) in text.bytes().enumerate() {
        if byte >= 0x20 && byte != b'"' && byte != b'\\' {
            continue;
        }
        into.push_str(&text[start..at]);
        start = at + 1;
        match byte {
            b'"' => into.push_str("\\\""),
            b'\\' => into.push_str("\\\\"),
            b'\n' => into.push_str("\\n"),
            b'\r' => into.push_str("\\r"),
            b'\t' => into.push_str("\\t"),
            0x08 => into.push_str("\\b"),
            0x0C => into.push_str("\\f"),
            _ => {
                const HEX: &[u8; 16] = b"0123456789abcdef";
                into.push_str("\\u00");
                into.push(char::from(HEX[usize::from(byte >> 4)]));
                into.push(char::from(HEX[usize::from(byte & 15)]));
            }
        }
    }
    into.push_str(&text[start..]);
}

/// Appends `text` as a JSON string.
pub(in crate::recipe::stream) fn string(text: &str, into: &mut String) {
    into.push('"');
    escape(text, into);
    into.push('"');
}

/// Appends `text` as a JSON string, or null.
pub(in crate::recipe::stream) fn string_or_null(text: Option<&str>, into: &mut String) {
    match text {
        Some(text) => string(text, into),
        None => into.push_str("null"),
    }
}

/// Appends a whole number.
pub(in crate::recipe::stream) fn integer(value: impl itoa::Integer, into: &mut String) {
    into.push_str(itoa::Buffer::new().format(value));
}

/// Appends a number, or null for what JSON has none for.
pub(in crate::recipe::stream) fn float(value: f32, into: &mut String) {
    if value.is_finite() {
        // Writing to a string cannot fail. The debug form is the shortest that reads back, and always a valid JSON number.
        let _ = write!(into, "{value:?}");
    } else {
        into.push_str("null");
    }
}

/// Appends a logarithm of a probability; JSON has no infinities, so the impossible is very unlikely.
pub(in crate::recipe::stream) fn logarithm(value: f32, into: &mut String) {
    float(if value.is_finite() { value } else { -9999.0 }, into);
}

/// Whether `text` is one JSON value (RFC 8259), white space around it allowed.
pub(in crate::recipe::stream) fn is_value(text: &str) -> bool {
    serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_are_escaped_as_the_protocols_expect() {
        let mut out = String::new();
        string("a\"\\\n\r\t\u{8}\u{c}\u{1}\u{1f}/\u{7f}é", &mut out);
        assert_eq!(out, "\"a\\\"\\\\\\n\\r\\t\\b\\f\\u0001\\u001f/\u{7f}é\"");
        let back: String = serde_json::from_str(&out).unwrap();
        assert_eq!(back, "a\"\\\n\r\t\u{8}\u{c}\u{1}\u{1f}/\u{7f}é");
    }

    #[test]
    fn only_rfc_8259_is_json() {
        for good in [
            "1",
            " [1, 2] \n",
            "\"\\ud83d\"",
            "1e999",
            "{\"a\": null}",
            "-0",
        ] {
            assert!(is_value(good), "{good}");
        }
        for bad in [
            "", " ", "NaN", "Infinity", "True", "01", "[1,]", "{'a': 1}", "1 2", "\"\\H\"",
            "\"\n\"",
        ] {
            assert!(!is_value(bad), "{bad}");
        }
        // Deep nesting neither overflows nor is refused.
        let deep = "[".repeat(100_000) + &"]".repeat(100_000);
        assert!(is_value(&deep));
    }
}
