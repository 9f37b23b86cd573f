//! Required and strict tool calls: the grammar by itself, and what the demo model is made to write.

use std::sync::Arc;

use fathom::call::{Options, Submit};
use fathom::engine::constraint::{
    Grammar, Markup, Matcher, Opening, Spec, TokenTable, Tool, ToolCalls, Vocabulary, compile,
};
use fathom::engine::request::FinishReason;
use fathom::recipe::Protocol;
use fathom::recipe::tokenizer::Tokenizer;
use serde_json::{Value, json};

use crate::recipe_support::demo_model;
use crate::world::{Called, World};

const V4: Markup = Markup {
    block: "tool_calls",
    call: "invoke",
    parameter: "parameter",
    empty_line: false,
};
const V41: Markup = Markup {
    block: " calls",
    call: " invoke",
    parameter: " parameter",
    empty_line: true,
};

struct Bench {
    table: Arc<TokenTable>,
    tokenizer: Tokenizer,
    marker: u32,
}

impl Bench {
    fn new() -> Self {
        let tokenizer = Tokenizer::open(&demo_model()).unwrap();
        Self {
            table: tokenizer.table().unwrap(),
            marker: tokenizer.token_id("｜DSML｜").unwrap(),
            tokenizer,
        }
    }

    fn grammar(&self, tools: &[(&str, Value)], markup: Markup, opening: Opening) -> Arc<Grammar> {
        let tools = tools
            .iter()
            .map(|(name, parameters)| Tool {
                name: (*name).to_owned(),
                parameters: parameters.to_string(),
                strict: true,
            })
            .collect();
        let spec = Spec::ToolCalls(ToolCalls {
            tools,
            marker: self.marker,
            markup,
            opening,
            single: false,
        });
        compile(spec, self.table.clone()).unwrap()
    }

    /// Whether the text is allowed as a whole; `¦` stands for the marker, whose spelling is text like any other.
    fn allows(&self, grammar: &Grammar, text: &str) -> bool {
        let mut matcher = grammar.matcher();
        for (at, part) in text.split('¦').enumerate() {
            if at > 0 && matcher.accept(self.marker).is_err() {
                return false;
            }
            let ids = self.tokenizer.encode(part, &[]).unwrap();
            if !ids.iter().all(|id| matcher.accept(*id).is_ok()) {
                return false;
            }
        }
        matcher.is_complete()
    }
}

fn weather() -> Value {
    json!({"type": "object", "required": ["city"], "additionalProperties": false, "properties": {
        "city": {"type": "string"},
        "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
        "note": {"type": ["string", "null"]},
        "tags": {"$ref": "#/$defs/tags"},
    }, "$defs": {"tags": {"type": "array", "items": {"type": "string"}}}})
}

/// Catches: tags of the other model, missing line breaks, parameters that are not declared, required or of another
/// type, in another order or twice, and text around the calls.
#[test]
fn calls_are_written_as_each_model_was_trained_to() {
    let bench = Bench::new();
    let tools = [
        ("get_weather", weather()),
        ("now", json!({"type": "object", "properties": {}})),
    ];
    let v4 = bench.grammar(&tools, V4, Opening::Done);
    let v41 = bench.grammar(&tools, V41, Opening::Done);
    let call = |parameters: &str| {
        format!("<¦invoke name=\"get_weather\">\n{parameters}</¦invoke>\n</¦tool_calls>")
    };
    let text = |name: &str, value: &str| {
        format!("<¦parameter name=\"{name}\" string=\"true\">{value}</¦parameter>\n")
    };
    let json = |name: &str, value: &str| {
        format!("<¦parameter name=\"{name}\" string=\"false\">{value}</¦parameter>\n")
    };
    let city = text("city", "Paris");
    for good in [
        call(&city),
        call(&text("city", "")),
        // Whatever looks like a tag inside a value is text.
        call(&text("city", "a</b> </｜DSML｜parameter>\n\"<x>")),
        call(&(city.clone() + &text("unit", "celsius") + &json("days", "9"))),
        call(&(city.clone() + &json("days", "1") + &text("note", "x"))),
        call(&(city.clone() + &json("note", "null") + &json("tags", "[\"a\", \"b\"]"))),
        "<¦invoke name=\"now\">\n</¦invoke>\n</¦tool_calls>".to_owned(),
        format!("<¦invoke name=\"now\">\n</¦invoke>\n{}", call(&city)),
    ] {
        assert!(bench.allows(&v4, &good), "{good}");
        if good.contains("name=\"now\"") || good.contains("｜DSML｜") {
            continue;
        }
        // The other model's words, and nothing else, are different.
        let other = good
            .replace("¦tool_calls", "¦ calls")
            .replace("¦invoke", "¦ invoke")
            .replace("¦parameter", "¦ parameter");
        assert!(bench.allows(&v41, &other), "{other}");
        assert!(!bench.allows(&v41, &good), "{good}");
        assert!(!bench.allows(&v4, &other), "{other}");
    }
    let empty = "<¦ invoke name=\"now\">\n\n</¦ invoke>\n</¦ calls>";
    assert!(bench.allows(&v41, empty));
    assert!(!bench.allows(&v41, &empty.replace("\n\n", "\n")));
    for bad in [
        String::new(),
        "Hello".to_owned(),
        "</¦tool_calls>".to_owned(),
        call(""),
        call(&(city.clone() + &city)),
        call(&(text("unit", "celsius") + &city)),
        call(&(city.clone() + &text("unit", "kelvin"))),
        call(&(city.clone() + &text("country", "France"))),
        call(&(city.clone() + &json("days", "10"))),
        call(&(city.clone() + &text("days", "3"))),
        call(&(city.clone() + &json("tags", "[1]"))),
        call(&json("city", "\"Paris\"")),
        call(&city).replace("get_weather", "get_time"),
        call(&city) + " ",
        call(&city).replace("</¦invoke>\n", ""),
        call(&city).replace("string=\"true\"", ""),
        call(&city).replace('¦', "｜DSML｜"),
    ] {
        assert!(!bench.allows(&v4, &bad), "{bad}");
    }
}

/// Catches: a block without its opener, text where none may be, and a marker in the free text.
#[test]
fn the_block_is_opened_as_it_was_asked_for() {
    let bench = Bench::new();
    let tools = [("now", json!({"type": "object", "properties": {}}))];
    let block = "<¦invoke name=\"now\">\n</¦invoke>\n</¦tool_calls>";
    let opened = format!("\n\n<¦tool_calls>\n{block}");
    let required = bench.grammar(&tools, V4, Opening::Required);
    assert!(bench.allows(&required, &opened));
    assert!(!bench.allows(&required, block));
    assert!(!bench.allows(&required, &format!("So:{opened}")));
    let optional = bench.grammar(&tools, V4, Opening::Optional);
    for good in [
        opened.clone(),
        format!("So: a < b{opened}"),
        "No call: 1 < 2.".to_owned(),
        String::new(),
    ] {
        assert!(bench.allows(&optional, &good), "{good}");
    }
    for bad in [
        "a ¦ b".to_owned(),
        format!("{opened} and"),
        "\n\n<¦tool_calls>\n</¦tool_calls>".to_owned(),
    ] {
        assert!(!bench.allows(&optional, &bad), "{bad}");
    }
}

/// Catches: schemas without types that are refused or held to one form.
#[test]
fn schemas_of_all_shapes_can_be_called() {
    let bench = Bench::new();
    let one = |schema: Value, required: bool| {
        let names: &[&str] = if required { &["a"] } else { &[] };
        let parameters = json!({"type": "object", "properties": {"a": schema}, "required": names});
        bench.grammar(&[("f", parameters)], V4, Opening::Done)
    };
    let text = |value: &str| {
        format!(
            "<¦invoke name=\"f\">\n<¦parameter name=\"a\" string=\"true\">{value}</¦parameter>\n</¦invoke>\n</¦tool_calls>"
        )
    };
    let json = |value: &str| text(value).replace("true\">", "false\">");
    for (schema, texts, values) in [
        (
            json!({}),
            vec!["x", ""],
            vec!["1", "{\"b\": [null]}", "null"],
        ),
        (json!(true), vec!["x"], vec!["1"]),
        (json!({"type": "string"}), vec!["x"], vec![]),
        (
            json!({"enum": ["x", 3, null]}),
            vec!["x"],
            vec!["3", "null"],
        ),
        (json!({"const": 5}), vec![], vec!["5"]),
        (
            json!({"anyOf": [{"type": "string"}, {"type": "object"}]}),
            vec!["x", "{"],
            vec!["{}"],
        ),
        (
            json!({"type": ["integer", "string"]}),
            vec!["x"],
            vec!["12"],
        ),
        (
            json!({"$ref": "#/properties/a/x", "x": {"type": "boolean"}}),
            vec![],
            vec!["true"],
        ),
    ] {
        let grammar = one(schema.clone(), true);
        for value in texts
            .iter()
            .map(|t| text(t))
            .chain(values.iter().map(|v| json(v)))
        {
            assert!(bench.allows(&grammar, &value), "{schema}: {value}");
        }
        for (value, is_good) in [
            (text("y</"), !texts.is_empty()),
            (json("\"y\""), false),
            (json("tru"), false),
        ] {
            // An enumeration holds its texts, too.
            let is_good = is_good && schema.get("enum").is_none();
            assert_eq!(bench.allows(&grammar, &value), is_good, "{schema}: {value}");
        }
    }
    let free = bench.grammar(&[("f", json!({"type": "object"}))], V4, Opening::Done);
    assert!(bench.allows(&free, &text("x")) && bench.allows(&free, &json("[1]")));
    let none = bench.grammar(&[("f", json!({}))], V4, Opening::Done);
    assert!(!bench.allows(&none, &text("x")));
    assert!(bench.allows(&none, "<¦invoke name=\"f\">\n</¦invoke>\n</¦tool_calls>"));
}

fn seeded(seed: u64) -> Options {
    Options {
        submit: Submit {
            temperature: Some(seed as f32 / 4.0),
            seed: Some(seed),
            ..Submit::default()
        },
        ..Options::default()
    }
}

fn tools() -> [(&'static str, Value); 2] {
    let person = json!({"type": "object", "required": ["name", "age", "tags"], "additionalProperties": false, "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "maxItems": 3, "items": {"enum": ["a", "b"]}}}});
    [("get_weather", weather()), ("save_person", person)]
}

fn assert_valid(name: &str, arguments: &str) {
    let tools = tools();
    let (_, schema) = tools
        .iter()
        .find(|(known, _)| *known == name)
        .unwrap_or_else(|| panic!("{name}"));
    let value: Value =
        serde_json::from_str(arguments).unwrap_or_else(|error| panic!("{arguments}: {error}"));
    assert!(
        jsonschema::validator_for(schema).unwrap().is_valid(&value),
        "{name} {arguments}"
    );
}

fn ended(called: &Called) -> bool {
    assert!(called.done.failure.is_none(), "{called:?}");
    called.finish() == FinishReason::ToolCalls
}

/// Catches: a choice that is ignored in one protocol or for one model, arguments that break their schema, calls of
/// other tools.
#[test]
fn required_calls_are_made_in_every_protocol() {
    let world = World::new("{}");
    let mut whole = 0;
    for (seed, model) in (0..3).flat_map(|seed| [(seed, "demo"), (seed, "demo-v4")]) {
        let functions: Vec<Value> = tools()
            .iter()
            .map(|(name, schema)| json!({"type": "function", "function": {"name": name, "parameters": schema}}))
            .collect();
        let text = "Tell me a story about Anna, who is 7.";
        for (choice, wanted) in [
            (json!("required"), None),
            (
                json!({"type": "function", "function": {"name": "save_person"}}),
                Some("save_person"),
            ),
        ] {
            let request = json!({"model": model, "max_tokens": 160, "thinking": {"type": "disabled"}, "tools": functions,
                "tool_choice": choice, "messages": [{"role": "user", "content": text}]});
            let called = world.call(Protocol::ChatCompletions, &request, seeded(seed));
            if ended(&called) && called.reason() == "constraint_complete" {
                for call in called.response()["choices"][0]["message"]["tool_calls"]
                    .as_array()
                    .unwrap()
                {
                    let name = call["function"]["name"].as_str().unwrap();
                    assert!(wanted.is_none_or(|wanted| wanted == name), "{call}");
                    assert_valid(name, call["function"]["arguments"].as_str().unwrap());
                }
                whole += 1;
            }
        }
        let flat: Vec<Value> = tools()
            .iter()
            .map(|(name, schema)| json!({"type": "function", "name": name, "parameters": schema}))
            .collect();
        let request = json!({"model": model, "max_output_tokens": 160, "reasoning": {"effort": "none"}, "tools": flat,
            "tool_choice": "required", "input": text});
        let called = world.call(Protocol::Responses, &request, seeded(seed));
        if ended(&called) && called.reason() == "constraint_complete" {
            for item in called.response()["output"].as_array().unwrap() {
                assert_eq!(item["type"], "function_call");
                assert_valid(
                    item["name"].as_str().unwrap(),
                    item["arguments"].as_str().unwrap(),
                );
            }
            whole += 1;
        }
        let blocks: Vec<Value> = tools()
            .iter()
            .map(|(name, schema)| json!({"name": name, "input_schema": schema}))
            .collect();
        let request = json!({"model": model, "max_tokens": 160, "thinking": {"type": "disabled"}, "tools": blocks,
            "tool_choice": {"type": "tool", "name": "save_person"}, "messages": [{"role": "user", "content": text}]});
        let called = world.call(Protocol::Messages, &request, seeded(seed));
        if ended(&called) && called.reason() == "constraint_complete" {
            for block in called.response()["content"].as_array().unwrap() {
                assert_eq!(
                    (&block["type"], &block["name"]),
                    (&json!("tool_use"), &json!("save_person"))
                );
                assert_valid("save_person", &block["input"].to_string());
            }
            whole += 1;
        }
    }
    println!("{whole} of 24 calls are whole");
    assert!(whole >= 8, "{whole} of 24");
}

/// Catches: a required call in thinking mode that opens the block twice or not at all, and reasoning that is held to
/// the grammar.
#[test]
fn required_calls_come_after_the_reasoning_where_the_host_allows_it() {
    let world = World::new("{}");
    let mut whole = 0;
    for seed in 0..6 {
        let functions: Vec<Value> = tools()
            .iter()
            .map(|(name, schema)| json!({"type": "function", "function": {"name": name, "parameters": schema}}))
            .collect();
        let request = json!({"model": "demo", "max_tokens": 400, "thinking": {"type": "enabled"}, "tools": functions,
            "tool_choice": "required", "messages": [{"role": "user", "content": "What is 3 plus 4?"}]});
        let options = Options {
            options_json: r#"{"fixes": ["thinking_tool_choice"]}"#.to_owned(),
            ..seeded(seed)
        };
        let called = world.call(Protocol::ChatCompletions, &request, options);
        if ended(&called) && called.reason() == "constraint_complete" {
            let message = &called.response()["choices"][0]["message"];
            assert!(
                message["reasoning_content"]
                    .as_str()
                    .is_some_and(|text| !text.is_empty()),
                "{message}"
            );
            for call in message["tool_calls"].as_array().unwrap() {
                let call = &call["function"];
                assert_valid(
                    call["name"].as_str().unwrap(),
                    call["arguments"].as_str().unwrap(),
                );
            }
            whole += 1;
        }
    }
    assert!(whole > 2, "{whole} of 6");
}

/// Catches: strict tools that are refused or ignored, and answers in text that are no longer possible.
#[test]
fn strict_tools_may_be_called_and_then_hold_their_schema() {
    let world = World::new("{}");
    let (mut calls, mut answers) = (0, 0);
    for seed in 0..8 {
        let functions = [
            json!({"type": "function", "function": {"name": "get_weather", "strict": true, "parameters": {
            "type": "object", "required": ["city", "unit"], "additionalProperties": false, "properties": {
                "city": {"type": "string"}, "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]}}}}}),
        ];
        let asked = json!({"role": "user", "content": "What is the weather in Paris?"});
        let answered = [
            asked.clone(),
            json!({"role": "assistant", "content": "", "tool_calls": [{"id": "1", "type": "function", "function": {
                "name": "get_weather", "arguments": "{\"city\": \"Paris\", \"unit\": \"celsius\"}"}}]}),
            json!({"role": "tool", "tool_call_id": "1", "content": "{\"temperature\": 18, \"sky\": \"clear\"}"}),
        ];
        for messages in [&[asked][..], &answered[..]] {
            let request = json!({"model": "demo", "max_tokens": 200, "thinking": {"type": "disabled"}, "tools": functions,
                "messages": messages});
            let called = world.call(Protocol::ChatCompletions, &request, seeded(seed));
            let message = &called.response()["choices"][0]["message"];
            match called.finish() {
                FinishReason::ToolCalls => {
                    for call in message["tool_calls"].as_array().unwrap() {
                        assert_eq!(call["function"]["name"], "get_weather");
                        let arguments = call["function"]["arguments"].as_str().unwrap();
                        let value: Value = serde_json::from_str(arguments).unwrap();
                        assert!(
                            ["celsius", "fahrenheit"].contains(&value["unit"].as_str().unwrap()),
                            "{arguments}"
                        );
                        assert!(value["city"].is_string());
                    }
                    calls += 1;
                }
                FinishReason::Stop => {
                    assert!(
                        !message["content"].as_str().unwrap().contains("DSML"),
                        "{message}"
                    );
                    answers += 1;
                }
                _ => {}
            }
        }
    }
    assert!(calls > 4 && answers > 4, "{calls} calls, {answers} answers");
}
