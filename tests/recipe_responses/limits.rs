//! Bodies that are large, deep or damaged.

use std::sync::OnceLock;

use proptest::prelude::*;

use super::recipe_support::requests::{check_whole, damage, odd_values, short_bodies};
use super::*;

#[test]
fn deep_values_are_kept_or_refused_but_never_walked_into() {
    let nested = |depth: usize| format!("{}1{}", "{\"a\":".repeat(depth), "}".repeat(depth));
    let with_arguments = |depth: usize| {
        let item = format!(
            r#"{{"type": "tool_search_call", "call_id": "s", "arguments": {}}}"#,
            nested(depth)
        );
        format!(
            r#"{{"model": "{V41}", "input": [{item}, {{"type": "tool_search_output", "call_id": "s", "tools": []}}]}}"#
        )
    };
    let recipe = recipe(File::V41, &json!({}), 0);
    let answer = |text: String| recipe.prepare(Protocol::Responses, text.as_bytes(), None);
    let prepared = answer(with_arguments(124)).expect("127 levels are allowed");
    let calls = decided(&prepared)["conversation"]["messages"][0]["tool_calls"].clone();
    assert_eq!(calls[0]["arguments"], nested(124));
    for depth in [125, 200_000] {
        let error = answer(with_arguments(depth)).expect_err("that is too deep");
        assert_eq!(error.stage, Stage::Deserialize);
    }
}

/// Each of these would take minutes if any step looked at all others for each one.
#[test]
fn large_requests_take_linear_time() {
    const MANY: usize = 100_000;
    let each = |make: &dyn Fn(usize) -> String| (0..MANY).map(make).collect::<Vec<_>>().join(",");
    let call = |at: usize, more: &str| {
        format!(
            r#"{{"type":"function_call","call_id":"c{at}","name":"f","arguments":"{{}}"{more}}}"#
        )
    };
    let output =
        |at: usize| format!(r#"{{"type":"function_call_output","call_id":"c{at}","output":""}}"#);
    let search = |at: usize| {
        format!(
            r#"{{"type":"tool_search_call","call_id":"c{at}","arguments":{{}}}},{{"type":"tool_search_output","call_id":"c{at}","tools":[{{"type":"function","name":"f{at}"}}]}}"#
        )
    };
    let old_call = |at: usize| {
        let namespace = if at.is_multiple_of(2) { at } else { 0 };
        call(at, &format!(r#","namespace":"n{namespace}""#)) + "," + &output(at)
    };
    let calls = each(&|at| call(at, ""));
    let outputs = each(&|at| output(MANY - 1 - at));
    let functions = each(&|at| format!(r#"{{"type":"function","name":"f{at}"}}"#));
    let input = |items: &str| format!(r#""input":[{items}]"#);
    let tools = |tools: &str| format!(r#""input":"q","tools":[{tools}]"#);
    let namespace =
        |members: &str| format!(r#"{{"type":"namespace","name":"a","tools":[{members}]}}"#);
    let image = r#"{"type":"input_image","image_url":"https://e.test/"}"#;
    let answer = |model: &str, fields: &str, fixes: Value| {
        let recipe = Recipe::open(&RecipeOptions {
            options_json: json!({ "fixes": fixes }).to_string(),
            ..RecipeOptions::default()
        });
        let body = format!(r#"{{"model":"{model}","reasoning":{{"effort":"none"}},{fields}}}"#);
        let recipe = recipe.expect("the options are valid");
        recipe.prepare(Protocol::Responses, body.as_bytes(), None)
    };
    for (what, fields) in [
        ("calls in one group", input(&format!("{calls},{outputs}"))),
        (
            "calls one by one",
            input(&each(&|at| call(at, "") + "," + &output(at))),
        ),
        ("searches", input(&each(&search))),
        ("old calls", input(&each(&old_call))),
        ("functions", tools(&functions)),
        (
            "namespaces",
            tools(&each(&|_| namespace(r#"{"type":"function","name":"b"}"#))),
        ),
        ("members", tools(&namespace(&functions))),
        (
            "texts",
            input(&each(&|_| {
                r#"{"role":"assistant","content":"t"}"#.to_owned()
            })),
        ),
        (
            "reasoning",
            input(&each(&|_| {
                r#"{"type":"reasoning","content":[{"text":"r"}]}"#.to_owned()
            })),
        ),
        (
            "blocks",
            input(&format!(
                r#"{{"role":"user","content":[{}]}}"#,
                each(&|_| image.to_owned())
            )),
        ),
        (
            "ignored items",
            input(&each(&|_| r#"{"type":"item_reference"}"#.to_owned())),
        ),
        (
            "fields",
            r#""input":"q","#.to_owned() + &each(&|at| format!(r#""f{at}":1"#)),
        ),
    ] {
        for model in [V4, V41] {
            let answer = answer(model, &fields, json!([]));
            answer.unwrap_or_else(|error| panic!("{what}: {error}"));
        }
    }
    let choice = format!(
        r#"{},"tool_choice":{{"type":"allowed_tools","mode":"auto","tools":[{functions}]}}"#,
        tools(&functions)
    );
    let prepared = answer(V41, &choice, json!("all")).expect("it is accepted");
    assert_eq!(prepared.conversation.tools.len(), MANY);
    let error = answer(V41, &input(&calls), json!([])).expect_err("outputs are missing");
    assert_eq!(error.message, "No tool output found for tool call c0.");
}

#[test]
fn a_long_description_of_a_namespace_is_not_repeated_without_end() {
    let request = |members: usize| {
        let members: Vec<Value> = (0..members).map(|at| function(&format!("f{at}"))).collect();
        let about = "d".repeat(1 << 20);
        let namespace =
            json!({"type": "namespace", "name": "n", "description": about, "tools": members});
        body(json!({"tools": [namespace]}))
    };
    let recipe = Recipe::open(&RecipeOptions::default()).expect("nothing is needed");
    prepare(&recipe, &request(3)).expect("three are fine");
    let error = prepare(&recipe, &request(65)).expect_err("that is too much");
    assert_eq!(
        (error.stage, error.param.as_str(), error.message.as_str()),
        (
            Stage::Convert,
            "tools[0].tools[64]",
            "tools repeat more than 67108864 bytes of definitions and descriptions, up to tool \"f64\""
        )
    );
    // V4 does not repeat it.
    prepare(&recipe, &on_v4(request(65))).expect("it is accepted");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]
    #[test]
    fn requests_are_answered_or_refused_but_never_break_anything(
        which in any::<prop::sample::Index>(),
        steps in prop::collection::vec(0usize..8, 1..6),
        pick in 0usize..14,
        fixes in any::<bool>(),
        v4 in any::<bool>(),
    ) {
        static BODIES: OnceLock<Vec<Value>> = OnceLock::new();
        static RECIPES: OnceLock<[Recipe; 2]> = OnceLock::new();
        let bodies = BODIES.get_or_init(|| short_bodies("responses"));
        let recipes = RECIPES.get_or_init(|| [
            recipe(File::V41, &json!({}), 0),
            recipe(File::V41, &json!({"fixes": "all", "allow_numeric_effort": true}), 0),
        ]);
        let mut body = which.get(bodies).clone();
        body["model"] = if v4 { V4 } else { V41 }.into();
        damage(&mut body, &steps, odd_values()[pick].clone());
        // The tokenizer of V4.1 lacks nothing of V4.
        prop_assert_eq!(check_whole(prepare(&recipes[usize::from(fixes)], &body)), Ok(()));
    }
}
