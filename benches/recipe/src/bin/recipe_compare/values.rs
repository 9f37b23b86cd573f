//! Values that are worth trying.

use fathom::recipe::Protocol;
use serde_json::{Value, json};

use crate::mutate::Random;

pub const NUMBERS_AS_TEXT: [&str; 16] = [
    "1e5",
    "-0",
    "-0.0",
    "1.0",
    "1e400",
    "0.1",
    "1E-7",
    "01",
    "18446744073709551615",
    "18446744073709551616",
    "-9223372036854775809",
    "1.7976931348623157e308",
    "5e-324",
    "123456789012345678",
    "0.30000000000000004",
    "9007199254740993.0",
];

const STRINGS: [&str; 58] = [
    "",
    " ",
    "\n",
    "\n\n",
    "json",
    "JSON",
    "jSoN please",
    "<think>",
    "</think>",
    "<｜User｜>",
    "<｜Assistant｜>",
    "<｜System｜>",
    "<｜begin▁of▁sentence｜>",
    "<｜end▁of▁sentence｜>",
    "｜DSML｜",
    "<｜DSML｜tool_calls>",
    "</｜DSML｜ invoke>",
    "<｜image｜>",
    "<｜deepseek_image｜>",
    "<｜ref｜>a<｜/ref｜><｜box｜>[[1,2]]<｜/box｜>",
    "<｜ref｜><｜ref｜",
    "<｜point｜>x<｜/point｜>",
    "<｜latest_reminder｜>",
    "<tool_result>x</tool_result>",
    "x-anthropic-billing-header: a=b;\nrest",
    "X-Anthropic-Billing-Header: a You are b",
    "x-anthropic-billing-header",
    "<image_resize_notice>x</image_resize_notice>",
    "<image_resize_notice></image_resize_notice>",
    "😀",
    "👩‍👩‍👧",
    "汉字と仮名",
    "e\u{301}\u{200b}\u{202e}",
    "\u{0}\u{1}\u{1f}\u{7f}\u{85}\u{2028}",
    "\"quoted\\\"",
    "\t\r\n ",
    "a::b",
    "a_",
    "_a",
    "ns__tool",
    "tool.search",
    "tool_search",
    "web_search",
    "apply_patch",
    "null",
    "{}",
    "[1]",
    "{\"a\":1,\"b\":\"x\",\"c\":[1.0,1e-7,1e22],\"d\":{\"e\":null}}",
    "{\"a\":1,\"a\":2}",
    "{\"a\":\"</think>\"} ",
    "call_00_ET_abcdefghijklmnopqrst1234",
    "call00ETabcdefghij",
    "http",
    "HTTP://x",
    "https://example.com/a.png",
    "data:image/png;base64,iVBORw0KGgo=",
    "data:image/png;base64,%41%41=",
    "data:text/plain;base64,AA==",
];

fn long_strings(random: &mut Random) -> String {
    let (unit, times) = *random.pick(&[
        ("a", 128),
        ("a", 129),
        ("é", 64),
        ("é", 65),
        ("http", 2048),
        ("http", 2049),
        ("汉", 300),
        ("word ", 200),
        ("\n", 40),
    ]);
    unit.repeat(times)
}

pub fn string(random: &mut Random) -> String {
    if random.one_in(12) {
        return long_strings(random);
    }
    (*random.pick(&STRINGS)).to_owned()
}

pub fn number(random: &mut Random) -> Value {
    let numbers = [
        json!(0),
        json!(1),
        json!(-1),
        json!(2),
        json!(20),
        json!(21),
        json!(255),
        json!(256),
        json!(0.0),
        json!(-0.0),
        json!(1.0),
        json!(0.5),
        json!(0.95),
        json!(0.1),
        json!(1.000_000_01),
        json!(2.000_000_1),
        json!(1e-5),
        json!(1e-4),
        json!(1.5e-7),
        json!(1e16),
        json!(1e15),
        json!(1e22),
        json!(1e300),
        json!(1e-46),
        json!(3.5e38),
        json!(393_216),
        json!(393_217),
        json!(4_294_967_295_u64),
        json!(4_294_967_296_u64),
        json!(9_223_372_036_854_775_807_u64),
        json!(9_223_372_036_854_775_808_u64),
        json!(u64::MAX),
        json!(i64::MIN),
    ];
    random.pick(&numbers).clone()
}

/// A value of any type.
pub fn any(random: &mut Random) -> Value {
    match random.below(10) {
        0..2 => Value::Null,
        2 => json!(random.one_in(2)),
        3 => number(random),
        4..6 => string(random).into(),
        6 => json!([]),
        7 => json!({}),
        8 => json!([string(random)]),
        _ => {
            let key = string(random);
            json!({key: number(random)})
        }
    }
}

/// Another value of the same type.
pub fn replace_alike(random: &mut Random, node: &mut Value) {
    match node {
        Value::Null => *node = any(random),
        Value::Bool(value) => *value = !*value,
        Value::Number(_) => *node = number(random),
        Value::String(text) => match random.below(8) {
            0 => text.insert_str(0, &string(random)),
            1 => text.push_str(&string(random)),
            2 => {
                text.pop();
            }
            3 => *text = text.to_uppercase(),
            _ => *text = string(random),
        },
        Value::Array(items) => items.reverse(),
        Value::Object(object) => {
            let entries: Vec<_> = std::mem::take(object).into_iter().rev().collect();
            object.extend(entries);
        }
    }
}

/// Gives the request another setting, mostly one that is allowed.
pub fn set(random: &mut Random, protocol: Protocol, request: &mut Value) {
    let Some(fields) = request.as_object_mut() else {
        return;
    };
    let effort = |random: &mut Random| {
        json!(random.pick(&[
            "none", "minimal", "low", "medium", "high", "xhigh", "ultra", "max", "High", ""
        ]))
    };
    let thinking = |random: &mut Random| {
        random
            .pick(&[
                json!({"type": "enabled"}),
                json!({"type": "disabled"}),
                json!({"type": "adaptive"}),
                json!({"type": "enabled", "budget_tokens": 1024}),
                json!({"type": "disabled", "budget_tokens": -1}),
                json!({"type": "auto"}),
                json!({}),
                Value::Null,
            ])
            .clone()
    };
    let tool = |random: &mut Random| {
        json!(random.pick(&[
            "get_weather",
            "f",
            "search",
            "add",
            "nope",
            "apply_patch",
            "a::b"
        ]))
    };
    let (name, value) = match random.below(14) {
        0..2 => {
            let models = ["DeepSeek-V4-Pro", "DeepSeek-V4.1-Flash", "deepseek-v4-pro"];
            // The last one is not known.
            let at = random.below(9).min(8) / 4;
            ("model", json!(models[at]))
        }
        2..4 => match protocol {
            Protocol::Responses => {
                let summary = random
                    .pick(&[json!("auto"), json!("x"), Value::Null])
                    .clone();
                (
                    "reasoning",
                    json!({"effort": effort(random), "summary": summary}),
                )
            }
            Protocol::Messages if random.one_in(2) => {
                ("output_config", json!({"effort": effort(random)}))
            }
            Protocol::Messages => ("thinking", thinking(random)),
            _ if random.one_in(2) => ("reasoning_effort", effort(random)),
            _ => ("thinking", thinking(random)),
        },
        4..6 => {
            let name = tool(random);
            let choice = match protocol {
                Protocol::Messages => random
                    .pick(&[
                        json!({"type": "auto"}),
                        json!({"type": "any"}),
                        json!({"type": "none"}),
                        json!({"type": "tool", "name": name}),
                        json!({"type": "tool"}),
                        json!("auto"),
                        json!({"type": "auto", "disable_parallel_tool_use": true}),
                        Value::Null,
                    ])
                    .clone(),
                Protocol::Responses => random
                    .pick(&[
                        json!("none"),
                        json!("auto"),
                        json!("required"),
                        json!({"type": "function", "name": name}),
                        json!({"type": "custom", "name": name}),
                        json!({"type": "web_search"}),
                        json!({"type": "allowed_tools", "mode": "auto", "tools": []}),
                        json!({"name": name, "x": 1, "type": "function"}),
                        json!("any"),
                        Value::Null,
                    ])
                    .clone(),
                _ => random
                    .pick(&[
                        json!("none"),
                        json!("auto"),
                        json!("required"),
                        json!({"type": "function", "function": {"name": name}}),
                        json!({"type": "custom", "custom": {"name": name}}),
                        json!("any"),
                        Value::Null,
                    ])
                    .clone(),
            };
            ("tool_choice", choice)
        }
        6..8 => {
            let schema = schema(random, 3);
            let strict = random
                .pick(&[Value::Null, json!(true), json!(false)])
                .clone();
            match protocol {
                Protocol::Responses => {
                    let format = random
                        .pick(&[
                            json!({"type": "text"}),
                            json!({"type": "json_object"}),
                            json!({"type": "json_schema", "name": "n", "schema": schema, "strict": strict}),
                            json!({"type": "json_schema", "schema": schema}),
                            json!({"type": "regex", "regex": "a+"}),
                            Value::Null,
                        ])
                        .clone();
                    ("text", json!({"format": format}))
                }
                Protocol::Messages => {
                    let stops = random
                        .pick(&[
                            json!(["a"]),
                            json!([]),
                            json!([""]),
                            json!("a"),
                            json!(vec!["x"; 17]),
                        ])
                        .clone();
                    ("stop_sequences", stops)
                }
                _ => {
                    let format = random
                        .pick(&[
                            json!({"type": "text"}),
                            json!({"type": "json_object"}),
                            json!({"type": "json_schema", "json_schema": {"schema": schema, "strict": strict}}),
                            json!({"type": "json_schema", "json_schema": {"name": "n"}}),
                            json!({"type": "regex", "regex": "a+"}),
                            Value::Null,
                        ])
                        .clone();
                    ("response_format", format)
                }
            }
        }
        8 => match protocol {
            Protocol::ChatCompletions => {
                let stop = random
                    .pick(&[
                        json!("a"),
                        json!(""),
                        json!([]),
                        json!(["a", "b"]),
                        json!(["a", ""]),
                        json!(vec!["x"; 16]),
                        json!(vec!["x"; 17]),
                    ])
                    .clone();
                ("stop", stop)
            }
            Protocol::Messages => (
                "system",
                random
                    .pick(&[
                        json!("be brief"),
                        json!(""),
                        json!([]),
                        json!([{"type": "text", "text": "a"}, {"type": "text", "text": ""}]),
                        json!([{"type": "text", "text": "X-anthropic-billing-header: x"}]),
                    ])
                    .clone(),
            ),
            _ => ("instructions", string(random).into()),
        },
        9 => {
            let limit = random.pick(&[0, 1, 100, 5000, 393_216, 393_217, 1_048_576]);
            let name = if protocol == Protocol::Responses {
                "max_output_tokens"
            } else {
                "max_tokens"
            };
            (name, json!(limit))
        }
        10 => ("temperature", number(random)),
        11 => ("top_p", number(random)),
        12 => (
            *random.pick(&[
                "n",
                "seed",
                "top_logprobs",
                "presence_penalty",
                "frequency_penalty",
            ]),
            number(random),
        ),
        _ => (
            *random.pick(&[
                "stream",
                "logprobs",
                "stream_options",
                "parallel_tool_calls",
                "metadata",
            ]),
            random
                .pick(&[
                    json!(true),
                    json!(false),
                    Value::Null,
                    json!({}),
                    json!({"include_usage": true}),
                    json!({"user_id": "u"}),
                ])
                .clone(),
        ),
    };
    fields.insert(name.to_owned(), value);
}

/// A block with an image, a file or text, in the protocol's forms.
pub fn block(random: &mut Random, protocol: Protocol) -> Value {
    let url = string(random);
    let id = string(random);
    let url = if random.one_in(2) {
        "data:image/png;base64,iVBORw0KGgo=".to_owned()
    } else {
        url
    };
    let blocks = match protocol {
        Protocol::Messages => vec![
            json!({"type": "text", "text": id}),
            json!({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}}),
            json!({"type": "image", "source": {"type": "base64", "media_type": "image/jpeg", "data": id}}),
            json!({"type": "image", "source": {"type": "base64", "media_type": "image/bmp", "data": ""}}),
            json!({"type": "image", "source": {"type": "url", "url": url}}),
            json!({"type": "image", "source": {"type": "file", "file_id": id}}),
            json!({"type": "document", "source": {"media_type": id}}),
            json!({"type": "document", "source": {}}),
            json!({"type": "thinking", "thinking": id}),
            json!({"type": "tool_use", "id": id, "name": "f", "input": {"a": 1.0, "b": [1e-7, "x"]}}),
            json!({"type": "tool_result", "tool_use_id": id}),
            json!({"type": "tool_result", "tool_use_id": id, "content": [{"type": "tool_reference", "tool_name": "f"}]}),
            json!({"type": "server_tool_use", "id": id, "name": "web_search", "input": {}}),
            json!({"type": "web_search_tool_result", "tool_use_id": id, "content": []}),
            json!({"type": "tool_addition", "tool": {"type": "tool_reference", "name": "f"}}),
            json!({"type": "redacted_thinking", "data": id}),
        ],
        Protocol::Responses => vec![
            json!({"type": "input_text", "text": id}),
            json!({"type": "output_text", "text": id}),
            json!({"type": "input_image", "image_url": url}),
            json!({"type": "input_image", "image_url": url, "detail": "low"}),
            json!({"type": "input_image", "file_id": id}),
            json!({"type": "input_image", "image_url": url, "file_id": id}),
            json!({"type": "input_image"}),
            json!({"type": "input_file", "file_id": id}),
            json!({"type": "refusal", "refusal": id}),
        ],
        _ => vec![
            json!({"type": "text", "text": id}),
            json!({"type": "image_url", "image_url": {"url": url}}),
            json!({"type": "image_url", "image_url": {"url": url, "detail": "low"}}),
            json!({"type": "image_url", "image_url": {"url": url, "detail": "auto"}}),
            json!({"type": "image_url", "image_url": url}),
            json!({"type": "file", "file_data": url}),
            json!({"type": "file", "file_data": url, "filename": "a.png"}),
            json!({"type": "file", "file_id": id}),
            json!({"type": "file", "file_id": id, "file_data": url}),
            json!({"type": "file", "file": {"file_id": id}}),
        ],
    };
    random.pick(&blocks).clone()
}

/// A schema, mostly a valid one.
fn schema(random: &mut Random, depth: usize) -> Value {
    if depth == 0 || random.one_in(4) {
        return random
            .pick(&[
                json!({"type": "string"}),
                json!({"type": "integer", "minimum": 0}),
                json!({"type": ["string", "null"], "description": "d"}),
                json!({"type": "boolean"}),
                json!({"$ref": "#/$defs/a"}),
                json!({"type": "string", "enum": ["a", "b"], "x": 1}),
                json!({"const": 1}),
                json!(true),
                json!({}),
            ])
            .clone();
    }
    let mut value = match random.below(4) {
        0 => json!({"type": "array", "items": schema(random, depth - 1)}),
        1 => json!({"anyOf": [schema(random, depth - 1), schema(random, depth - 1)]}),
        _ => {
            let mut object = json!({"type": "object", "properties": {
                "a": schema(random, depth - 1),
                "b": schema(random, depth - 1),
            }});
            if random.one_in(2) {
                object["required"] = json!(["a", "b"]);
            }
            object
        }
    };
    if random.one_in(3) {
        add_keyword(random, &mut value);
    }
    value
}

/// Adds a keyword to a schema, or a schema to properties.
pub fn add_keyword(random: &mut Random, node: &mut Value) {
    let Some(object) = node.as_object_mut() else {
        *node = schema(random, 2);
        return;
    };
    let keyword = *random.pick(&[
        "type",
        "properties",
        "required",
        "additionalProperties",
        "items",
        "anyOf",
        "oneOf",
        "allOf",
        "not",
        "enum",
        "const",
        "default",
        "$ref",
        "$defs",
        "$def",
        "definitions",
        "$schema",
        "$id",
        "pattern",
        "format",
        "minimum",
        "exclusiveMinimum",
        "multipleOf",
        "minLength",
        "maxItems",
        "patternProperties",
        "dependencies",
        "if",
        "description",
        "title",
        "prefixItems",
        "uniqueItems",
        "propertyNames",
        "unevaluatedProperties",
    ]);
    let value = match random.below(14) {
        0..3 => schema(random, 2),
        3 => json!({"a": schema(random, 1)}),
        4 => json!([schema(random, 1)]),
        5 => json!(["a", "b"]),
        6 => json!(["a", "a"]),
        7 => json!(random.pick(&[
            "object", "string", "array", "number", "integer", "null", "any"
        ])),
        8 => json!(random.pick(&[
            "^a+$",
            "(",
            "(?<=a)b",
            "email",
            "date-time",
            "#",
            "#/$defs/a",
            "http://json-schema.org/draft-07/schema#",
            "http://json-schema.org/draft-04/schema#",
            "https://json-schema.org/draft/2020-12/schema",
            "https://json-schema.org/draft/2019-09/schema",
            "x:y"
        ])),
        9 => json!(random.one_in(2)),
        10 => number(random),
        11 => Value::Null,
        12 => string(random).into(),
        _ => any(random),
    };
    object.insert(keyword.to_owned(), value);
}
