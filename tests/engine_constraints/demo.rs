//! The demo model under constraints: small chunks and preemptions change nothing, and the answers satisfy what was
//! asked for, thinking or not.

use std::collections::HashMap;

use fathom::call::request::{Submit, of_prepared};
use fathom::engine::request::EventKind;
use fathom::engine::{Engine, EngineOptions, Request, RequestId};
use fathom::recipe::Protocol;
use serde_json::{Value, json};

use crate::recipe_support::demo_model;
use crate::world::{PATIENCE, World};

const SMALL_BLOCKS: &str = r#"{"block_tokens":16,"lookahead_blocks":0,"watermark":0}"#;

/// Every kind of constraint, thinking on and off, greedy and seeded.
fn requests(world: &World) -> Vec<(Request, Value)> {
    let tools = json!([{"type": "function", "function": {"name": "get_weather", "parameters": {
        "type": "object", "required": ["city"],
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}}}]);
    let schema = json!({"type": "object", "required": ["name", "age", "tags"], "additionalProperties": false,
        "properties": {"name": {"type": "string"}, "age": {"type": "integer"},
            "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3}}});
    let wishes = [
        json!({"response_format": {"type": "json_object"}}),
        json!({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}}),
        json!({"response_format": {"type": "regex", "regex": "[A-Z][a-z]+( [a-z]+){5,30}\\."}}),
        json!({"tools": tools, "tool_choice": "required"}),
        json!({}),
    ];
    let mut made = Vec::new();
    for number in 0..40u64 {
        let wish = &wishes[number as usize % wishes.len()];
        // A required call and thinking exclude each other.
        let thinks = number / 5 % 2 == 1 && wish.get("tool_choice").is_none();
        let model = ["demo", "demo-v4"][number as usize / 10 % 2];
        let mut request = json!({
            "model": model,
            "messages": [{"role": "user", "content": format!("Tell me about cats and number {number} as json.")}],
            "thinking": {"type": if thinks { "enabled" } else { "disabled" }},
        });
        request
            .as_object_mut()
            .unwrap()
            .extend(wish.as_object().unwrap().clone());
        let json = request.to_string();
        let prepared = world
            .recipe
            .prepare(Protocol::ChatCompletions, json.as_bytes(), None)
            .unwrap();
        let submit = Submit {
            temperature: Some([0.0, 1.0][number as usize % 2]),
            seed: Some(number),
            max_tokens: Some(90),
            ..Submit::default()
        };
        made.push((of_prepared(&prepared, submit, 1024).unwrap(), request));
    }
    made
}

fn run(engine: &Engine, world: &World, requests: &[(Request, Value)]) -> Vec<(Vec<u32>, String)> {
    let ids: Vec<RequestId> = requests
        .iter()
        .map(|(request, _)| engine.submit(&world.queue, request.clone(), None).unwrap())
        .collect();
    let mut answers: HashMap<RequestId, (Vec<u32>, String)> = HashMap::new();
    let (mut events, mut ended) = (Vec::new(), 0);
    while ended < ids.len() {
        world.queue.poll(&mut events, Some(PATIENCE)).unwrap();
        assert!(!events.is_empty(), "nothing for {PATIENCE:?}");
        for event in events.drain(..) {
            let (tokens, reason) = answers.entry(event.request).or_default();
            match event.kind {
                EventKind::Tokens(new) => tokens.extend(new.tokens),
                EventKind::Done(done) => {
                    assert!(done.failure.is_none(), "{done:?}");
                    let detail: Value = serde_json::from_str(&done.detail).unwrap();
                    detail["reason"].as_str().unwrap().clone_into(reason);
                    ended += 1;
                }
                EventKind::Data { .. } => panic!("no adapter was given"),
            }
        }
    }
    ids.iter().map(|id| answers.remove(id).unwrap()).collect()
}

/// Catches: a mask of another step's state with small chunks; a constraint that starts anew, or at the wrong token,
/// after a preemption in the middle of the reasoning, of a string or of a call.
#[test]
fn chunks_and_preemptions_change_no_constrained_answer() {
    let world = World::new(r#"{"max_step_tokens": 2048}"#);
    let requests = requests(&world);
    let alone: Vec<_> = requests
        .iter()
        .map(|request| run(&world.engine, &world, std::slice::from_ref(request)).remove(0))
        .collect();
    let complete = alone
        .iter()
        .filter(|(_, reason)| reason == "constraint_complete")
        .count();
    assert!(complete > 15, "{complete} of 40 are complete");

    let engine = |tuning: &str, kv_bytes: u64, plan_only: bool| {
        let options = EngineOptions {
            model_path: demo_model(),
            max_running: 12,
            max_context: 1024,
            kv_bytes,
            plan_only,
            tuning_json: tuning.to_owned(),
            ..EngineOptions::default()
        };
        Engine::open(&options, &mut |_, _| true).unwrap()
    };
    let plan: Value = serde_json::from_str(&engine(SMALL_BLOCKS, 0, true).metrics_json()).unwrap();
    let pools = |key: &str| plan["plan"]["pools"][key].as_u64().unwrap();
    let tight = pools("needed_bytes") + 15 * pools("block_bytes");
    for (tuning, kv_bytes) in [
        (r#"{"chunk":128,"max_step_tokens":160}"#, 0),
        (SMALL_BLOCKS, tight),
    ] {
        let engine = engine(tuning, kv_bytes, false);
        let together = run(&engine, &world, &requests);
        for (n, (alone, together)) in alone.iter().zip(&together).enumerate() {
            assert_eq!(
                alone, together,
                "request {n} with {tuning}: {}",
                requests[n].1
            );
        }
        let stats = engine.stats();
        assert_eq!(stats.preemptions > 0, kv_bytes == tight, "{stats:?}");
    }
}
