//! Random schemas: whatever the model would rather write, the output satisfies the schema.

use std::sync::Arc;

use fathom::engine::Request;
use fathom::engine::backend::canary::CanaryOptions;
use fathom::engine::constraint::{Constraint, Rules, Spec, Tokens};
use fathom::engine::request::Sampling;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use serde_json::{Map, Value, json};

use crate::canary::{Host, table, text};

fn leaves() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(json!({"type": "boolean"})),
        Just(json!({"type": "null"})),
        (-30i64..30, 0i64..40).prop_map(|(least, more)| {
            json!({"type": "integer", "minimum": least, "maximum": least + more})
        }),
        (1i64..9)
            .prop_map(|n| json!({"type": "integer", "minimum": 0, "maximum": 99, "multipleOf": n})),
        (0u32..4, 0u32..4).prop_map(|(least, more)| {
            json!({"type": "string", "minLength": least, "maxLength": least + more})
        }),
        "[a-c]{1,3}".prop_map(
            |text| json!({"type": "string", "pattern": format!("^({text}|[0-9]{{2}})$")})
        ),
        proptest::collection::vec("[a-z\"]{0,3}", 1..4).prop_map(|texts| json!({"enum": texts})),
        any::<i16>().prop_map(|n| json!({"const": n})),
        Just(json!({"type": ["string", "null"], "maxLength": 2})),
    ]
}

fn schemas() -> impl Strategy<Value = Value> {
    leaves().prop_recursive(3, 12, 3, |inner| {
        prop_oneof![
            (inner.clone(), 0u32..3, 0u32..3).prop_map(|(items, least, more)| {
                json!({"type": "array", "items": items, "minItems": least, "maxItems": least + more})
            }),
            proptest::collection::vec((inner.clone(), any::<bool>()), 1..4).prop_map(|members| {
                let mut properties = Map::new();
                let mut required = Vec::new();
                for (at, (schema, is_required)) in members.into_iter().enumerate() {
                    let name = format!("k{at}");
                    if is_required {
                        required.push(name.clone());
                    }
                    properties.insert(name, schema);
                }
                json!({"type": "object", "properties": properties, "required": required, "additionalProperties": false})
            }),
            proptest::collection::vec(inner, 1..3).prop_map(|branches| json!({"anyOf": branches})),
        ]
    })
}

/// Catches: any keyword of these that is not held; outputs that end before they are complete.
#[test]
fn random_outputs_satisfy_random_schemas() {
    let host = Host::new(&CanaryOptions::default(), "");
    let table = table();
    let config = Config {
        cases: 200,
        failure_persistence: None,
        ..Config::default()
    };
    let complete = std::cell::Cell::new(0);
    TestRunner::new(config)
        .run(&(schemas(), any::<u64>()), |(schema, seed)| {
            let judge = jsonschema::validator_for(&schema).unwrap();
            let spec = Arc::new(Spec::JsonSchema(schema.to_string()));
            let requests: Vec<Request> = (0..4)
                .map(|n| Request {
                    max_tokens: Some(600),
                    sampling: Sampling {
                        temperature: [0.0, 1.0, 2.0, 5.0][n],
                        seed: Some(seed.wrapping_add(n as u64)),
                        ..Sampling::default()
                    },
                    constraint: Some(Constraint::new(Rules::Source {
                        spec: spec.clone(),
                        tokens: Tokens::Table(table.clone()),
                    })),
                    ..Request::new(vec![2 + seed as u32 % 90, 5])
                })
                .collect();
            for outcome in host.run(&requests) {
                prop_assert!(
                    outcome.done.failure.is_none(),
                    "{schema} {:?}",
                    outcome.done
                );
                if outcome.reason() == "length" {
                    continue;
                }
                complete.set(complete.get() + 1);
                let text = text(&outcome.tokens);
                let value: Result<Value, _> = serde_json::from_str(&text);
                prop_assert!(value.is_ok(), "{text} for {schema}");
                prop_assert!(judge.is_valid(&value.unwrap()), "{text} for {schema}");
            }
            Ok(())
        })
        .unwrap();
    let complete = complete.get();
    assert!(complete > 600, "{complete} of 800 outputs are complete");
}
