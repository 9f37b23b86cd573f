//! What is refused, and where the error points.

use fathom::recipe::Stage;
use serde_json::{Value, json};

use super::{File, prepare, prepare_with, user, with_encoding};

#[test]
fn a_fault_of_the_shape_names_its_path() {
    let m = |message: Value| json!({"messages": [user("u"), message]});
    let call = |call: Value| m(json!({"role": "assistant", "content": "", "tool_calls": [call]}));
    let tool = |tool: Value| json!({"tools": [{"name": "f"}, tool]});
    let image = |image: Value| m(json!({"role": "user", "content": "", "image_sources": [image]}));
    let format = |format: Value| json!({"response_format": format});
    let inference = |inference: Value| json!({"inference": inference});
    let constraint = |c: Value| json!({"inference": {"output_constraint": c}});
    let parsing = |parsing: Value| json!({"parsing": parsing});
    for (request, param) in [
        (json!({"mesages": []}), "mesages"),
        (json!({"messages": {}}), "messages"),
        (json!({"messages": [1]}), "messages[0]"),
        (json!({"thinking_mode": 1}), "thinking_mode"),
        (json!({"reasoning_effort": "medium"}), "reasoning_effort"),
        (json!({"tool_choice": {"name": "f"}}), "tool_choice"),
        (json!({"stream": "yes"}), "stream"),
        (json!({"task": "sing"}), "task"),
        (json!({"model": "DeepSeek-V4-Pro"}), "encoding"),
        (m(json!({"content": "x"})), "messages[1].role"),
        (
            m(json!({"role": "developer", "content": "x"})),
            "messages[1].role",
        ),
        (m(json!({"role": "user"})), "messages[1].content"),
        (
            m(json!({"role": "user", "content": null})),
            "messages[1].content",
        ),
        (
            m(json!({"role": "user", "content": []})),
            "messages[1].content",
        ),
        (
            m(json!({"role": "user", "content": "", "name": "n"})),
            "messages[1].name",
        ),
        (
            m(json!({"role": "user", "content": "", "image_sources": {}})),
            "messages[1].image_sources",
        ),
        (
            m(json!({"role": "system", "content": "", "tools": {}})),
            "messages[1].tools",
        ),
        (
            m(json!({"role": "system", "content": "", "tools": [{}]})),
            "messages[1].tools[0].name",
        ),
        (
            m(json!({"role": "assistant", "content": "", "image_sources": []})),
            "messages[1].image_sources",
        ),
        (
            m(json!({"role": "assistant", "content": "", "reasoning_content": 1})),
            "messages[1].reasoning_content",
        ),
        (
            m(json!({"role": "assistant", "content": "", "prefix": 1})),
            "messages[1].prefix",
        ),
        (
            m(json!({"role": "assistant", "content": "", "tool_calls": {}})),
            "messages[1].tool_calls",
        ),
        (
            m(json!({"role": "tool", "content": "", "tool_call_id": 1})),
            "messages[1].tool_call_id",
        ),
        (
            m(json!({"role": "tool", "content": "", "tool_cal_id": "1"})),
            "messages[1].tool_cal_id",
        ),
        (
            m(json!({"role": "latest_reminder", "content": "", "x": 1})),
            "messages[1].x",
        ),
        (
            call(json!({"name": "f", "arguments": ""})),
            "messages[1].tool_calls[0].id",
        ),
        (
            call(json!({"id": "1", "name": "f", "arguments": {}})),
            "messages[1].tool_calls[0].arguments",
        ),
        (
            call(json!({"id": "1", "name": "f", "arguments": "", "type": "function"})),
            "messages[1].tool_calls[0].type",
        ),
        (tool(json!({})), "tools[1].name"),
        (tool(json!({"name": 1})), "tools[1].name"),
        (
            tool(json!({"name": "g", "description": 1})),
            "tools[1].description",
        ),
        (tool(json!({"name": "g", "strict": 1})), "tools[1].strict"),
        (
            tool(json!({"name": "g", "defer_loading": 1})),
            "tools[1].defer_loading",
        ),
        (tool(json!({"name": "g", "schema": {}})), "tools[1].schema"),
        (
            image(json!({"url": "https://e.test/a.png"})),
            "messages[1].image_sources[0].kind",
        ),
        (
            image(json!({"kind": "file"})),
            "messages[1].image_sources[0].kind",
        ),
        (
            image(json!({"kind": "url"})),
            "messages[1].image_sources[0].url",
        ),
        (
            image(json!({"kind": "url", "url": 1})),
            "messages[1].image_sources[0].url",
        ),
        (
            image(json!({"kind": "url", "url": "https://e.test", "data": ""})),
            "messages[1].image_sources[0].data",
        ),
        (
            image(json!({"kind": "url", "url": "https://e.test", "detail": "fine"})),
            "messages[1].image_sources[0].detail",
        ),
        (
            image(json!({"kind": "url", "url": "https://e.test", "path": 1})),
            "messages[1].image_sources[0].path",
        ),
        (
            image(json!({"kind": "bytes", "data": "a"})),
            "messages[1].image_sources[0].data",
        ),
        (format(json!("text")), "response_format"),
        (format(json!({"type": "yaml"})), "response_format.type"),
        (
            format(json!({"type": "text", "regex": "a"})),
            "response_format.regex",
        ),
        (
            format(json!({"type": "json_schema"})),
            "response_format.schema",
        ),
        (
            format(json!({"type": "json_schema", "schema": null})),
            "response_format.schema",
        ),
        (
            format(json!({"type": "regex", "regex": 1})),
            "response_format.regex",
        ),
        (inference(json!([])), "inference"),
        (inference(json!({"top_k": 1})), "inference.top_k"),
        (inference(json!({"n": 1})), "inference.n"),
        (
            inference(json!({"max_tokens": 1.0})),
            "inference.max_tokens",
        ),
        (
            inference(json!({"temperature": "1"})),
            "inference.temperature",
        ),
        (inference(json!({"top_p": true})), "inference.top_p"),
        (inference(json!({"logprobs": 1})), "inference.logprobs"),
        (
            inference(json!({"top_logprobs": 256})),
            "inference.top_logprobs",
        ),
        (inference(json!({"seed": -1})), "inference.seed"),
        (constraint(json!("json")), "inference.output_constraint"),
        (
            constraint(json!({"kind": "xml"})),
            "inference.output_constraint.kind",
        ),
        (
            constraint(json!({"kind": "regex"})),
            "inference.output_constraint.schema",
        ),
        (
            constraint(json!({"kind": "json", "schema": "{"})),
            "inference.output_constraint.schema",
        ),
        (
            constraint(json!({"kind": "json", "scheme": ""})),
            "inference.output_constraint.scheme",
        ),
        (
            constraint(json!({"kind": "tool_call", "schema": "[{}]"})),
            "inference.output_constraint.schema",
        ),
        (parsing(json!([])), "parsing"),
        (parsing(json!({"stop": []})), "parsing.stop"),
        (
            parsing(json!({"parse_tool_calls": 1})),
            "parsing.parse_tool_calls",
        ),
        (
            parsing(json!({"starts_in_tool_calls": 1})),
            "parsing.starts_in_tool_calls",
        ),
        (
            parsing(json!({"parse_json_output": 1})),
            "parsing.parse_json_output",
        ),
        (
            parsing(json!({"thinking_initial_stage": "end"})),
            "parsing.thinking_initial_stage",
        ),
        (
            parsing(json!({"stop_sequences": "x"})),
            "parsing.stop_sequences",
        ),
        (
            parsing(json!({"stop_sequences": ["x", ""]})),
            "parsing.stop_sequences[1]",
        ),
        (json!({"fim": "x"}), "fim"),
        (json!({"fim": {"prefix": "a"}}), "fim.suffix"),
        (json!({"fim": {"prefix": "a", "suffix": 1}}), "fim.suffix"),
        (
            json!({"fim": {"prefix": "a", "suffix": "", "middle": ""}}),
            "fim.middle",
        ),
    ] {
        let error = prepare(&request).expect_err(param);
        assert_eq!(
            (error.stage, error.param.as_str()),
            (Stage::Deserialize, param),
            "{request}"
        );
        assert!(
            error.message.starts_with("invalid request body: "),
            "{error}"
        );
    }
    for (request, param) in [
        (json!({"messages": []}), "encoding"),
        (json!({"encoding": "v5"}), "encoding"),
        (json!({"encoding": 4}), "encoding"),
        (json!([]), ""),
    ] {
        let error = prepare_with(File::V41, &json!({}), &request).expect_err(param);
        assert_eq!(
            (error.stage, error.param.as_str()),
            (Stage::Deserialize, param),
            "{request}"
        );
    }
}

#[test]
fn a_value_that_no_model_takes_names_its_path() {
    let inference = |inference: Value| json!({"inference": inference});
    let image = |image: Value| json!({"messages": [{"role": "user", "content": "", "image_sources": [image]}]});
    let long = format!("https://e.test/{}", "a".repeat(8192));
    for (request, param) in [
        (
            inference(json!({"temperature": 2.5})),
            "inference.temperature",
        ),
        (inference(json!({"top_p": 0.0})), "inference.top_p"),
        (
            inference(json!({"top_logprobs": 1})),
            "inference.top_logprobs",
        ),
        (inference(json!({"max_tokens": 0})), "inference.max_tokens"),
        (inference(json!({"seed": 1_u64 << 63})), "inference.seed"),
        (
            image(json!({"kind": "url", "url": "ftp://e.test"})),
            "messages[0].image_sources[0].url",
        ),
        (
            image(json!({"kind": "url", "url": long})),
            "messages[0].image_sources[0].url",
        ),
        (
            image(json!({"kind": "data_url", "data_url": "data:text/plain;base64,aGk="})),
            "messages[0].image_sources[0].data_url",
        ),
        (
            json!({"tools": [{"name": "f", "strict": true}, {"name": "g"}]}),
            "tools",
        ),
    ] {
        let error = prepare(&request).expect_err(param);
        assert_eq!(
            (error.stage, error.param.as_str()),
            (Stage::Convert, param),
            "{error}"
        );
    }
    let image = image(json!({"kind": "url", "url": "https://e.test/a.png"}));
    let error = prepare_with(File::V4, &json!({}), &with_encoding(&image, "v4"));
    let error = error.expect_err("V4 sees nothing");
    assert_eq!(
        (error.stage, error.param.as_str()),
        (Stage::Convert, "messages[0].image_sources")
    );
}

mod damaged {
    use super::*;
    use proptest::prelude::*;

    /// A request that has every field.
    fn whole() -> Value {
        json!({"encoding": "v4.1", "stream": true, "thinking_mode": true, "tool_choice": "auto", "task": "title",
            "reasoning_effort": "high", "tools": [{"name": "f", "parameters": {"type": "object"}}],
            "response_format": {"type": "json_schema", "schema": {}},
            "inference": {"seed": 1, "output_constraint": {"kind": "json", "schema": "{}"}},
            "parsing": {"thinking_initial_stage": "reasoning_start", "stop_sequences": ["x"]},
            "messages": [
                {"role": "system", "content": "s", "tools": [{"name": "g"}]},
                {"role": "user", "content": "<｜image｜>", "image_sources": [{"kind": "bytes", "data": "aGk="}]},
                {"role": "assistant", "content": "", "tool_calls": [{"id": "1", "name": "f", "arguments": "{}"}]},
                {"role": "tool", "content": "", "tool_call_id": "1"},
                {"role": "latest_reminder", "content": ""},
                {"role": "assistant", "content": "", "prefix": true}]})
    }

    /// Every place of `value`, as a JSON pointer.
    fn places(value: &Value, here: &str, out: &mut Vec<String>) {
        out.push(here.to_owned());
        match value {
            Value::Array(items) => {
                for (at, item) in items.iter().enumerate() {
                    places(item, &format!("{here}/{at}"), out);
                }
            }
            Value::Object(map) => {
                for (key, item) in map {
                    places(item, &format!("{here}/{key}"), out);
                }
            }
            _ => {}
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1000))]
        #[test]
        fn conversations_are_taken_or_refused_but_never_break_anything(
            which in any::<prop::sample::Index>(),
            pick in 0usize..9,
        ) {
            let values = [
                json!(null), json!(true), json!(-1), json!(1e300), json!(""), json!("\u{0}<｜User｜>é"),
                json!([]), json!({}), json!("tool"),
            ];
            let mut request = whole();
            let mut all = Vec::new();
            places(&request, "", &mut all);
            let place: &String = which.get(&all);
            *request.pointer_mut(place).expect("it is a place") = values[pick].clone();
            match prepare_with(File::V41, &json!({}), &request) {
                Ok(prepared) => prop_assert!(!prepared.options_json().is_empty()),
                Err(error) => prop_assert!(
                    matches!(error.stage, Stage::Deserialize | Stage::Convert | Stage::Model),
                    "{error:?}"
                ),
            }
        }
    }
}
