//! Requests of the protocols that ask for a form of the output get it from the demo model.

use fathom::call::Options;
use fathom::recipe::Protocol;
use serde_json::{Value, json};

use crate::world::World;

#[test]
fn smoke() {
    let world = World::new("{}");
    for think in ["disabled", "enabled"] {
        for (name, extra) in [
            ("obj", json!({"response_format": {"type": "json_object"}})),
            (
                "schema",
                json!({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type":"object","properties":{"name":{"type":"string"},"age":{"type":"integer"}},"required":["name","age"]}}}}),
            ),
            (
                "regex",
                json!({"response_format": {"type": "regex", "regex": "^[a-z]{3,8} is [0-9]{1,3}$"}}),
            ),
            (
                "tools",
                json!({"tools":[{"type":"function","function":{"name":"get_weather","parameters":{"type":"object","properties":{"city":{"type":"string"},"days":{"type":"integer"}},"required":["city"]}}}],"tool_choice":"required"}),
            ),
        ] {
            let mut request = json!({"model": "demo", "max_tokens": 300, "temperature": 0, "thinking": {"type": think},
            "messages": [{"role": "user", "content": "What is the weather in Paris? Answer as json."}]});
            for (k, v) in extra.as_object().unwrap() {
                request[k] = v.clone();
            }
            let called = world.call(Protocol::ChatCompletions, &request, Options::default());
            println!(
                "{think} {name}: {:?} {} {:?}\n   {:?}",
                called.done.finish,
                called.done.detail,
                called.response.as_ref().map(Value::to_string),
                called.done.failure
            );
        }
    }
}
