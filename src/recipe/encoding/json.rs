//! JSON as the templates write it: key order kept, three styles of spaces and numbers.

use std::fmt::Write;

use serde_json::{Number, Value};

/// How JSON is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::recipe) enum Style {
    /// No spaces; numbers as in [`Style::Spaced`].
    Compact,
    /// A space after commas and colons: V4.
    Spaced,
    /// The same with numbers as Python writes them: V4.1.
    Python,
}

/// Appends `value` to `out`.
pub(in crate::recipe) fn write(out: &mut String, value: &Value, style: Style) {
    let (comma, colon) = match style {
        Style::Compact => (",", ":"),
        Style::Spaced | Style::Python => (", ", ": "),
    };
    match value {
        Value::Null => out.push_str("null"),
        Value::Bool(true) => out.push_str("true"),
        Value::Bool(false) => out.push_str("false"),
        Value::Number(number) => write_number(out, number, style),
        Value::String(text) => write_string(out, text),
        Value::Array(items) => {
            out.push('[');
            for (at, item) in items.iter().enumerate() {
                if at > 0 {
                    out.push_str(comma);
                }
                write(out, item, style);
            }
            out.push(']');
        }
        Value::Object(entries) => {
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
pub(in crate::recipe) fn to_string(value: &Value, style: Style) -> String {
    let mut out = String::new();
    write(&mut out, value, style);
    out
}

/// Appends `text` in quotes. Only quotes, backslashes and control characters are escaped.
pub(in crate::recipe) fn write_string(out: &mut String, text: &str) {
    out.push('"');
    let mut done = 0;
    for (at, byte) in text.bytes().enumerate() {
        let escape = match byte {
            b'"' => "\\\"",
            b'\\' => "\\\\",
            0x08 => "\\b",
            b'\t' => "\\t",
            b'\n' => "\\n",
            0x0C => "\\f",
            b'\r' => "\\r",
            0..0x20 => "",
            _ => continue,
        };
        out.push_str(&text[done..at]);
        if escape.is_empty() {
            write!(out, "\\u{byte:04x}").expect("a string takes everything");
        } else {
            out.push_str(escape);
        }
        done = at + 1;
    }
    out.push_str(&text[done..]);
    out.push('"');
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
    use serde_json::json;

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
            assert_eq!(to_string(&json!(float), Style::Spaced), spaced);
            assert_eq!(to_string(&json!(float), Style::Python), python);
            let read: f64 = python.parse().expect("a number");
            assert_eq!(read.to_bits(), float.to_bits());
        }
    }

    #[test]
    fn only_quotes_backslashes_and_control_characters_are_escaped() {
        let value = json!({"k\"": ["/\u{7f}\u{2028}é\u{1}\u{8}\t\n\u{c}\r\\", {}, [], null, true]});
        assert_eq!(
            to_string(&value, Style::Compact),
            "{\"k\\\"\":[\"/\u{7f}\u{2028}é\\u0001\\b\\t\\n\\f\\r\\\\\",{},[],null,true]}"
        );
        assert_eq!(
            to_string(&json!([1, {"a": -2}]), Style::Spaced),
            "[1, {\"a\": -2}]"
        );
    }
}
