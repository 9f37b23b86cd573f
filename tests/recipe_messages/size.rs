//! Large requests: linear time, bounded prompts.

use std::time::{Duration, Instant};

use fathom::recipe::{Recipe, RecipeOptions, Stage};
use serde_json::{Value, json};

use super::recipe_support::requests::{V4, V41};
use super::{assistant, body, prepare, system, text, tool, tool_result, tool_use, user};

#[test]
fn large_requests_take_linear_time() {
    const MANY: usize = 100_000;
    let recipe = Recipe::open(&RecipeOptions {
        options_json: json!({"messages_web_search": "drop"}).to_string(),
        ..RecipeOptions::default()
    })
    .expect("nothing is needed");
    let ids: Vec<String> = (0..MANY).map(|at| format!("id{at}")).collect();
    let many = |item: Value| Value::Array(vec![item; MANY]);
    let uses: Vec<Value> = ids.iter().map(|id| tool_use(id)).collect();
    let results: Vec<Value> = ids.iter().rev().map(|id| tool_result(id)).collect();
    let mut turns = Vec::new();
    for _ in 0..MANY / 4 {
        turns.extend([
            user(json!("q")),
            assistant(json!([tool_use("a")])),
            user(json!([tool_result("a")])),
            system(json!("s")),
        ]);
    }
    let tools: Vec<Value> = ids.iter().map(|id| tool(id)).collect();
    let names: Vec<Value> = ids
        .iter()
        .map(|id| json!({"type": "tool_addition", "tool": {"type": "tool_reference", "name": id}}))
        .collect();
    let references: Vec<Value> = ids
        .iter()
        .map(|id| json!({"type": "tool_reference", "tool_name": id}))
        .collect();
    let found = json!({"type": "tool_result", "tool_use_id": "a", "content": references});
    let extra: serde_json::Map<String, Value> =
        ids.iter().map(|id| (id.clone(), json!(1))).collect();
    let thoughts = many(json!({"type": "thinking", "thinking": "t"}));
    let cases = [
        ("turns", json!({ "messages": turns })),
        ("users", json!({"messages": many(user(json!("q")))})),
        ("blocks", json!({"messages": [user(many(text("q")))]})),
        (
            "parts",
            json!({"messages": [system(many(text("q")))], "system": many(text("q"))}),
        ),
        ("thoughts", json!({"messages": [assistant(thoughts)]})),
        (
            "calls",
            json!({"messages": [assistant(json!(uses)), user(json!(results))]}),
        ),
        (
            "searches",
            json!({"tools": many(json!({"type": "web_search_1"})), "tool_choice": {"type": "tool", "name": "web_search"}}),
        ),
        (
            "tools",
            json!({"tools": tools, "tool_choice": {"type": "tool", "name": "id7"}}),
        ),
        (
            "additions",
            json!({"tools": tools, "messages": [system(json!(names))]}),
        ),
        (
            "references",
            json!({"tools": tools, "messages": [assistant(json!([tool_use("a")])), user(json!([found]))]}),
        ),
        ("fields", Value::Object(extra)),
        ("unanswered", json!({"messages": [assistant(json!(uses))]})),
    ];
    for (name, fields) in cases {
        for model in [V41, V4] {
            let mut request = body(fields.clone());
            request["model"] = json!(model);
            let request = request.to_string();
            let start = Instant::now();
            let answer = prepare(&recipe, &request);
            let took = start.elapsed();
            assert_eq!(
                answer.is_err(),
                name == "unanswered",
                "{name}: {:?}",
                answer.err()
            );
            // Less than half a second each; what is quadratic takes minutes.
            assert!(
                took < Duration::from_secs(10),
                "{name} took {took:?} on {model}"
            );
        }
    }
}

#[test]
fn one_large_definition_is_not_introduced_without_end() {
    let addition =
        json!({"type": "tool_addition", "tool": {"type": "tool_reference", "name": "f"}});
    let request = |times: usize| {
        let large = json!({"name": "f", "description": "d".repeat(1 << 20), "input_schema": {"type": "object"}});
        body(
            json!({"tools": [large], "messages": [system(Value::Array(vec![addition.clone(); times]))]}),
        )
    };
    let recipe = Recipe::open(&RecipeOptions::default()).expect("nothing is needed");
    prepare(&recipe, &request(3).to_string()).expect("three are fine");
    let error = prepare(&recipe, &request(64).to_string()).expect_err("that is too much");
    assert_eq!(
        (error.stage, error.param.as_str()),
        (Stage::Convert, "messages")
    );
    // Where they are not shown, they do no harm.
    let mut hidden = request(64);
    hidden["tool_choice"] = json!({"type": "none"});
    prepare(&recipe, &hidden.to_string()).expect("none is shown");
}
