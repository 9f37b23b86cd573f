//! JSON as the templates write it: key order kept, three styles of spaces and numbers.

use std::fmt::Write;

use serde_json::Number;

use super::Json;

/// How JSON is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// No spaces; numbers as in [`Style::Spaced`].
    Compact,
    /// A space after commas and colons: V4.
    Spaced,
    /// The same with numbers as Python writes them: V4.1.
    Python,
}

impl Style {
    /// What stands between items, and between a key and its value.
    fn separators(self) -> (&'static str, &'static str) {
        match self {
            Self::Compact => (",", ":"),
            Self::Spaced | Self::Python => (", ", ": "),
        }
    }
}

/// Appends `value` to `out`.
pub fn write(out: &mut String, value: &Json<'_>, style: Style) {
    let (comma, colon) = style.separators();
    match value {
        Json::Null => out.push_str("null"),
        Json::Bool(true) => out.push_str("true"),
        Json::Bool(false) => out.push_str("false"),
        Json::Number(number) => write_number(out, number, style),
        Json::String(text) => write_string(out, text),
        Json::Array(items) => {
            out.push('[');
            for (at, item) in items.iter().enumerate() {
                if at > 0 {
                    out.push_str(comma);
                }
                write(out, item, style);
            }
            out.push(']');
        }
        Json::Object(entries) => {
            out.push('{');
            for (at, (key, item)) in entries.iter().enumerate() {
                if at > 0 {
                    out.push_str(comma);
                }
                write_string(out, key);
                out.push_str(colon);
                write(out, item, style);
            }
            out.push('}');
        }
    }
}

/// `value` on its own.
pub fn to_string(value: &Json<'_>, style: Style) -> String {
    let mut out = String::new();
    write(&mut out, value, style);
    out
}

/// Appends the value of `compact`, a text in the compact style, in another style. The value is not read: strings
/// are copied as they stand, and only numbers that are no integers are written anew.
pub(in crate::recipe) fn restyle(out: &mut String, compact: &str, style: Style) {
    let (comma, colon) = style.separators();
    let bytes = compact.as_bytes();
    let (mut done, mut at) = (0, 0);
    while at < bytes.len() {
        match bytes[at] {
            b'"' => {
                at += 1;
                while at < bytes.len() && bytes[at] != b'"' {
                    at += if bytes[at] == b'\\' { 2 } else { 1 };
                }
                at += 1;
            }
            mark @ (b',' | b':') => {
                out.push_str(&compact[done..at]);
                out.push_str(if mark == b',' { comma } else { colon });
                at += 1;
                done = at;
            }
            b'-' | b'0'..=b'9' => {
                let rest = &bytes[at..];
                let end = rest
                    .iter()
                    .position(|byte| matches!(byte, b',' | b']' | b'}'));
                let end = at + end.unwrap_or(rest.len());
                let number = &compact[at..end];
                let is_integer = !number.contains(['.', 'e', 'E']);
                if let (false, Ok(float)) = (is_integer, number.parse()) {
                    out.push_str(&compact[done..at]);
                    write_float(out, float, style);
                    done = end;
                }
                at = end;
            }
            _ => at += 1,
        }
    }
    out.push_str(&compact[done..]);
}

/// Appends `text` in quotes. Only quotes, backslashes and control characters are escaped.
pub(in crate::recipe) fn write_string(out: &mut String, text: &str) {
    out.push('"');
    let bytes = text.as_bytes();
    let (mut done, mut at) = (0, 0);
    loop {
        at += plain(&bytes[at..]);
        let Some(byte) = bytes.get(at) else { break };
        let escape = match byte {
            b'"' => "\\\"",
            b'\\' => "\\\\",
            0x08 => "\\b",
            b'\t' => "\\t",
            b'\n' => "\\n",
            0x0C => "\\f",
            b'\r' => "\\r",
            _ => "",
        };
        out.push_str(&text[done..at]);
        if escape.is_empty() {
            write!(out, "\\u{byte:04x}").expect("a string takes everything");
        } else {
            out.push_str(escape);
        }
        at += 1;
        done = at;
    }
    out.push_str(&text[done..]);
    out.push('"');
}

/// Bytes at the start of `bytes` that need no escape.
fn plain(bytes: &[u8]) -> usize {
    const EACH: u64 = u64::MAX / 255;
    const HIGH: u64 = EACH * 0x80;
    // The high bit of each byte that is zero; above the first such byte there may be false ones.
    let zero = |word: u64| word.wrapping_sub(EACH) & !word & HIGH;
    let (words, rest) = bytes.as_chunks::<8>();
    for (at, word) in words.iter().enumerate() {
        let word = u64::from_le_bytes(*word);
        let control = word.wrapping_sub(EACH * 0x20) & !word & HIGH;
        let found = control
            | zero(word ^ (EACH * u64::from(b'"')))
            | zero(word ^ (EACH * u64::from(b'\\')));
        if found != 0 {
            return at * 8 + found.trailing_zeros() as usize / 8;
        }
    }
    let needs_escape = |byte: &u8| matches!(byte, b'"' | b'\\' | 0..0x20);
    let end = rest.iter().position(needs_escape).unwrap_or(rest.len());
    words.len() * 8 + end
}

fn write_number(out: &mut String, number: &Number, style: Style) {
    match number.as_f64() {
        Some(float) if number.is_f64() => write_float(out, float, style),
        // Integers: serde_json writes them in decimal.
        _ => write!(out, "{number}").expect("a string takes everything"),
    }
}

/// Appends the shortest decimal that reads back as `float`, with a fraction or an exponent.
fn write_float(out: &mut String, float: f64, style: Style) {
    if float == 0.0 {
        out.push_str(if float.is_sign_negative() {
            "-0.0"
        } else {
            "0.0"
        });
        return;
    }
    // `{:e}` gives the shortest digits and the exponent of the first one: `-1.25e-5`.
    let shortest = format!("{float:e}");
    let (mantissa, exponent) = shortest
        .split_once('e')
        .expect("the format above writes an exponent");
    let exponent: i32 = exponent
        .parse()
        .expect("the format above writes an integer");
    let lowest = match style {
        Style::Python => -4,
        Style::Compact | Style::Spaced => -5,
    };
    if (lowest..16).contains(&exponent) {
        // `{:?}` is positional in this range only down to 1e-5, `{}` everywhere.
        write!(out, "{float}").expect("a string takes everything");
        if exponent >= 0 && float.fract() == 0.0 {
            out.push_str(".0");
        }
        return;
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    let width = if exponent < 0 && style == Style::Python {
        2
    } else {
        1
    };
    write!(out, "{mantissa}e{sign}{:0width$}", exponent.unsigned_abs())
        .expect("a string takes everything");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipe::json::parse;

    /// The value of `text` in a style, written from the tree and from the compact text.
    fn styled(text: &str, style: Style) -> String {
        let value = parse(text).expect("it is valid");
        let written = to_string(&value, style);
        let mut restyled = String::new();
        restyle(&mut restyled, &to_string(&value, Style::Compact), style);
        assert_eq!(written, restyled);
        written
    }

    #[test]
    fn floats_are_written_as_each_version_learned_them() {
        let cases: [(f64, &str, &str); 12] = [
            (0.0, "0.0", "0.0"),
            (-0.0, "-0.0", "-0.0"),
            (100000.0, "100000.0", "100000.0"),
            (1e15, "1000000000000000.0", "1000000000000000.0"),
            (1e16, "1e+16", "1e+16"),
            (
                1.2345678901234568e16,
                "1.2345678901234568e+16",
                "1.2345678901234568e+16",
            ),
            (1e-4, "0.0001", "0.0001"),
            (9.99e-5, "0.0000999", "9.99e-05"),
            (1e-5, "0.00001", "1e-05"),
            (1e-6, "1e-6", "1e-06"),
            (-1.5e-7, "-1.5e-7", "-1.5e-07"),
            (2.5e-308, "2.5e-308", "2.5e-308"),
        ];
        for (float, spaced, python) in cases {
            let text = format!("{float:?}");
            assert_eq!(styled(&text, Style::Spaced), spaced);
            assert_eq!(styled(&text, Style::Python), python);
            let read: f64 = python.parse().expect("a number");
            assert_eq!(read.to_bits(), float.to_bits());
        }
    }

    #[test]
    fn only_quotes_backslashes_and_control_characters_are_escaped() {
        let text =
            "{\"k\\\"\": [\"/\u{7f}\u{2028}é\\u0001\\b\\t\\n\\f\\r\\\\\", {}, [], null, true]}";
        assert_eq!(
            styled(text, Style::Compact),
            "{\"k\\\"\":[\"/\u{7f}\u{2028}é\\u0001\\b\\t\\n\\f\\r\\\\\",{},[],null,true]}"
        );
        assert_eq!(
            styled("[1,{\"a,:\\\\\":-2},3e-5,\"1.0,\\\"\"]", Style::Python),
            "[1, {\"a,:\\\\\": -2}, 3e-05, \"1.0,\\\"\"]"
        );
    }
}
