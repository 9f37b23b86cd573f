//! Large requests: linear time, bounded prompts.

use std::time::{Duration, Instant};

use fathom::recipe::{Recipe, RecipeOptions, Stage};
use serde_json::{Value, json};

use super::recipe_support::requests::{V4, V41};
use super::{assistant, body, prepare, system, text, tool_result, tool_use, user};

/// Items of a large request.
const MANY: usize = 100_000;

/// A JSON array of what `item` writes for each index.
fn array(item: impl Fn(usize) -> String) -> String {
    let items: Vec<String> = (0..MANY).map(item).collect();
    format!("[{}]", items.join(","))
}

/// The same item everywhere.
fn same(item: &Value) -> String {
    let item = item.to_string();
    array(|_| item.clone())
}

#[test]
fn large_requests_take_linear_time() {
    let recipe = Recipe::open(&RecipeOptions {
        options_json: json!({"messages_web_search": "drop"}).to_string(),
        ..RecipeOptions::default()
    })
    .expect("nothing is needed");
    let uses = array(|at| {
        format!(r#"{{"type": "tool_use", "id": "id{at}", "name": "f", "input": {{}}}}"#)
    });
    let results = array(|at| {
        let at = MANY - 1 - at;
        format!(r#"{{"type": "tool_result", "tool_use_id": "id{at}"}}"#)
    });
    let tools =
        array(|at| format!(r#"{{"name": "id{at}", "input_schema": {{"type": "object"}}}}"#));
    let additions = array(|at| {
        format!(
            r#"{{"type": "tool_addition", "tool": {{"type": "tool_reference", "name": "id{at}"}}}}"#
        )
    });
    let references = array(|at| format!(r#"{{"type": "tool_reference", "tool_name": "id{at}"}}"#));
    let turns = array(|at| {
        let turn = match at % 4 {
            0 => user(json!("q")),
            1 => assistant(json!([tool_use("a")])),
            2 => user(json!([tool_result("a")])),
            _ => system(json!("s")),
        };
        turn.to_string()
    });
    let fields: Vec<String> = (0..MANY).map(|at| format!(r#""id{at}": 1"#)).collect();
    let texts = same(&text("q"));
    let thoughts = same(&json!({"type": "thinking", "thinking": "t"}));
    let searches = same(&json!({"type": "web_search_1"}));
    let says = |role: &str, content: &str| format!(r#"{{"role": "{role}", "content": {content}}}"#);
    let one = |message: String| format!(r#""messages": [{message}]"#);
    let asked = user(json!("q")).to_string();
    let used = assistant(json!([tool_use("a")])).to_string();
    let found =
        format!(r#"[{{"type": "tool_result", "tool_use_id": "a", "content": {references}}}]"#);
    let cases = [
        ("turns", format!(r#""messages": {turns}"#)),
        (
            "users",
            format!(r#""messages": {}"#, same(&user(json!("q")))),
        ),
        ("blocks", one(says("user", &texts))),
        (
            "parts",
            format!(r#""system": {texts}, {}"#, one(says("system", &texts))),
        ),
        ("thoughts", one(says("assistant", &thoughts))),
        (
            "calls",
            one(format!(
                "{}, {}",
                says("assistant", &uses),
                says("user", &results)
            )),
        ),
        ("unanswered", one(says("assistant", &uses))),
        (
            "searches",
            format!(
                r#""tools": {searches}, "tool_choice": {{"type": "tool", "name": "web_search"}}, {}"#,
                one(asked.clone())
            ),
        ),
        (
            "tools",
            format!(
                r#""tools": {tools}, "tool_choice": {{"type": "tool", "name": "id7"}}, {}"#,
                one(asked.clone())
            ),
        ),
        (
            "additions",
            format!(r#""tools": {tools}, {}"#, one(says("system", &additions))),
        ),
        (
            "references",
            format!(
                r#""tools": {tools}, {}"#,
                one(format!("{used}, {}", says("user", &found)))
            ),
        ),
        ("fields", format!("{}, {}", fields.join(","), one(asked))),
    ];
    for (name, fields) in cases {
        for model in [V41, V4] {
            let request =
                format!(r#"{{"model": "{model}", "thinking": {{"type": "disabled"}}, {fields}}}"#);
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
    assert_eq!(
        error.message,
        "tools repeat more than 67108864 bytes of definitions and descriptions, up to tool \"f\""
    );
    // Where they are not shown, they do no harm.
    let mut hidden = request(64);
    hidden["tool_choice"] = json!({"type": "none"});
    prepare(&recipe, &hidden.to_string()).expect("none is shown");
}
