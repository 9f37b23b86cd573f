//! Recorded model outputs, with the events that the reference made of them.

use std::collections::HashMap;
use std::sync::Arc;

use fathom::recipe::encoding::Encoding;
use fathom::recipe::stream::{
    Chunk, DeclaredTool, Finish, Output, Parser, ParserOptions, Recovery, StartInfo, StreamOptions,
    Vocabulary,
};
use fathom::recipe::{ParsingOptions, Protocol, ResponseOptions, ThinkingStage};
use serde_json::{Value, json};

use crate::merge::{hide_ids, merged, without};
use crate::recipe_support::lines;
use crate::support::{Tokens, data, options, seen};

pub(crate) fn case_options(case: &Value, protocol: Protocol, recovery: Recovery) -> ParserOptions {
    let parsing = &case["options"];
    let flag = |name: &str| parsing[name].as_bool().unwrap();
    let request = &case["request"];
    let tools = request["tools"].as_array().map(|tools| {
        tools
            .iter()
            .map(|tool| {
                let tool = tool.get("function").unwrap_or(tool);
                let schema = tool.get("input_schema").unwrap_or(&tool["parameters"]);
                DeclaredTool {
                    name: tool["name"].as_str().unwrap().into(),
                    properties: schema["properties"]
                        .as_object()
                        .map(|map| map.keys().cloned().collect())
                        .unwrap_or_default(),
                }
            })
            .collect()
    });
    ParserOptions {
        protocol,
        encoding: if case["encoding"] == "v4" {
            Encoding::V4
        } else {
            Encoding::V41
        },
        parsing: ParsingOptions {
            parse_tool_calls: flag("parse_tool_calls"),
            starts_in_tool_calls: flag("starts_in_tool_calls"),
            parse_json_output: flag("parse_json_output"),
            thinking_initial_stage: match parsing["thinking_initial_stage"].as_str() {
                None => None,
                Some("reasoning_start") => Some(ThinkingStage::ReasoningStart),
                Some("reasoning_continuation") => Some(ThinkingStage::ReasoningContinuation),
                Some("content_continuation") => Some(ThinkingStage::ContentContinuation),
                Some(other) => panic!("stage {other}"),
            },
            stop_sequences: serde_json::from_value::<Vec<String>>(
                parsing["stop_sequences"].clone(),
            )
            .unwrap(),
        },
        response: ResponseOptions {
            stream: request["stream"].as_bool().unwrap_or(false),
            include_usage: request["stream_options"]["include_usage"]
                .as_bool()
                .unwrap_or(false),
            ..ResponseOptions::default()
        },
        model: MODEL.into(),
        continues_message: case["continues_message"].as_bool().unwrap(),
        tools,
        stream: StreamOptions {
            recovery,
            id_seed: Some(5),
            ..StreamOptions::default()
        },
        ..options()
    }
}

/// What running a case gave: events with the index of the chunk that released them.
pub(crate) struct Ran {
    pub(crate) events: Vec<(usize, Value)>,
    pub(crate) names: Vec<Option<&'static str>>,
    pub(crate) error: Option<(usize, String)>,
    pub(crate) response: Value,
}

impl Ran {
    /// The events alone.
    pub(crate) fn data(&self) -> Vec<Value> {
        self.events.iter().map(|(_, event)| event.clone()).collect()
    }
}

/// Sets times to 0 and gives an answer that chose its own identity the one of the vectors.
fn normalise(value: &mut Value, own_id: &str, case: &Value) {
    match value {
        Value::String(text) if text == own_id => *value = case["response_id"].clone(),
        Value::String(text) if text == MODEL => *value = case["response_model"].clone(),
        Value::Array(list) => {
            for item in list {
                normalise(item, own_id, case);
            }
        }
        Value::Object(map) => {
            for (key, value) in map {
                if key.starts_with("created") || key.starts_with("completed") {
                    *value = json!(0);
                } else {
                    normalise(value, own_id, case);
                }
            }
        }
        _ => {}
    }
}

/// The model of every request.
const MODEL: &str = "the request's model";

pub(crate) fn run_case(case: &Value, protocol: Protocol, recovery: Recovery) -> Ran {
    let id = case["id"].as_str().unwrap();
    let vocabulary = case
        .get("tokenizer")
        .filter(|_| !id.starts_with("tokens-without-tokenizer"))
        .map(|tokenizer| Arc::new(Tokens::of(tokenizer)) as Arc<dyn Vocabulary>);
    let mut parser = Parser::with(case_options(case, protocol, recovery), vocabulary).unwrap();
    let info = StartInfo {
        response_id: case["response_id"].as_str().unwrap().into(),
        model: case["response_model"].as_str().unwrap().into(),
        ..StartInfo::default()
    };
    let mut ran = Ran {
        events: Vec::new(),
        names: Vec::new(),
        error: None,
        response: Value::Null,
    };
    let chunks = case["chunks"].as_array().unwrap();
    for at in 0..=chunks.len() {
        let mut out = Output::default();
        let chunk = chunks
            .get(at)
            .cloned()
            .unwrap_or(json!({"kind": "finish", "reason": "end"}));
        let number = |name: &str| chunk[name].as_u64().unwrap_or(0) as u32;
        let result = match chunk["kind"].as_str().unwrap() {
            "ready" => parser.start(
                &StartInfo {
                    prompt_tokens: number("prompt_tokens"),
                    cached_tokens: number("prompt_cache_hit_tokens"),
                    system_fingerprint: chunk["system_fingerprint"]
                        .as_str()
                        .unwrap_or_default()
                        .into(),
                    ..info.clone()
                },
                &mut out,
            ),
            "text" => parser.push(
                &Chunk {
                    text: chunk["content"].as_str(),
                    text_tokens: number("token_count"),
                    ..Chunk::default()
                },
                &mut out,
            ),
            "tokens" => push_ids(&mut parser, &chunk, &mut out),
            "finish" => {
                let finish = match chunk["reason"].as_str().unwrap() {
                    "stop" => Finish::Stop,
                    "length" => Finish::Length,
                    "content_filter" => Finish::ContentFilter,
                    "end" => Finish::EndOfStream,
                    other => panic!("reason {other}"),
                };
                parser.finish(finish, None, &mut out)
            }
            other => panic!("kind {other}"),
        };
        ran.events
            .extend(data(&out).into_iter().map(|event| (at, event)));
        ran.names.extend(out.events().map(|event| event.name));
        match (result, &ran.error) {
            (Ok(()), _) => {}
            (Err(error), None) => ran.error = Some((at, error.message)),
            (Err(error), Some((_, message))) => assert_eq!(&error.message, message, "{id}"),
        }
    }
    ran.response = serde_json::from_str(&parser.response().unwrap()).unwrap();
    let own_id = ran.response["id"].as_str().unwrap_or("none").to_owned();
    assert_ne!(own_id, "");
    for value in ran.events.iter_mut().map(|(_, event)| event) {
        normalise(value, &own_id, case);
    }
    normalise(&mut ran.response, &own_id, case);
    ran
}

pub(crate) fn push_ids(
    parser: &mut Parser,
    chunk: &Value,
    out: &mut Output,
) -> Result<(), fathom::recipe::Error> {
    let ids: Vec<u32> = serde_json::from_value(chunk["ids"].clone()).unwrap();
    let entries: Vec<(f32, Vec<(u32, f32)>)> = chunk
        .get("logprobs")
        .map(|l| serde_json::from_value(l.clone()).unwrap())
        .unwrap_or_default();
    let width = entries.iter().map(|(_, top)| top.len()).max().unwrap_or(0);
    let mut logprobs = Vec::new();
    let mut top_tokens = Vec::new();
    let mut top_logprobs = Vec::new();
    for (logprob, top) in &entries {
        logprobs.push(*logprob);
        for place in 0..width {
            let (token, logprob) = top.get(place).copied().unwrap_or((u32::MAX, 0.0));
            top_tokens.push(token);
            top_logprobs.push(logprob);
        }
    }
    parser.push(
        &Chunk {
            tokens: &ids,
            logprobs: &logprobs,
            top_tokens: &top_tokens,
            top_logprobs: &top_logprobs,
            top_count: width as u32,
            ..Chunk::default()
        },
        out,
    )
}

pub(crate) fn recorded(case: &Value) -> Option<Vec<(String, Value)>> {
    let events = case.get("events")?.as_array()?;
    Some(
        events
            .iter()
            .map(|e| (e["at"].to_string(), e["data"].clone()))
            .collect(),
    )
}

/// Compares a run with what the reference did.
fn compare_exactly(
    case: &Value,
    base: Option<&Value>,
    ran: &Ran,
    reasoning_tokens: bool,
    logprobs: bool,
) -> Result<(), String> {
    let own = recorded(case);
    let expected = own.clone().or_else(|| recorded(base?)).ok_or("no events")?;
    let mut expected = merged(expected.into_iter().map(|(_, event)| event));
    let mut ours = merged(ran.events.iter().map(|(_, event)| event.clone()));
    let mut response = ran.response.clone();
    hide_ids(&mut response);
    let mut wanted = case["final_response"].clone();
    if own.is_none() || !logprobs {
        expected = without(expected, own.is_none(), true);
        ours = without(ours, own.is_none(), true);
    }
    if !logprobs {
        for response in [&mut response, &mut wanted] {
            response["choices"][0]["logprobs"] = Value::Null;
        }
    }
    if !reasoning_tokens {
        for value in expected
            .iter_mut()
            .chain(&mut ours)
            .chain([&mut response, &mut wanted])
        {
            if let Some(usage) = value["usage"].as_object_mut() {
                usage.remove("completion_tokens_details");
            }
        }
    }
    if ours != expected {
        return Err(format!(
            "events\n  ours {}\n  want {}",
            json!(ours),
            json!(expected)
        ));
    }
    if response != wanted {
        return Err(format!("response\n  ours {response}\n  want {wanted}"));
    }
    let error = case.get("error").map(|e| {
        (
            e["at"].as_u64().unwrap() as usize,
            e["message"].as_str().unwrap().to_owned(),
        )
    });
    if ran.error != error {
        return Err(format!("error\n  ours {:?}\n  want {error:?}", ran.error));
    }
    Ok(())
}

/// Nothing is held longer than the reference holds it.
fn compare_times(case: &Value, ran: &Ran, arguments: bool) -> Result<(), String> {
    let Some(events) = recorded(case) else {
        return Ok(());
    };
    let last = case["chunks"].as_array().unwrap().len();
    for at in 0..last {
        let theirs: Vec<Value> = events
            .iter()
            .filter(|(when, _)| when.parse::<usize>().is_ok_and(|when| when <= at))
            .map(|(_, event)| event.clone())
            .collect();
        let ours: Vec<Value> = ran
            .events
            .iter()
            .filter(|(when, _)| *when <= at)
            .map(|(_, e)| e.clone())
            .collect();
        let (theirs, ours) = (seen(&theirs), seen(&ours));
        let late = ours.content.len() < theirs.content.len()
            || ours.reasoning.len() < theirs.reasoning.len()
            || ours.calls.len() < theirs.calls.len()
            || arguments
                && ours
                    .calls
                    .iter()
                    .zip(&theirs.calls)
                    .any(|(o, t)| o.1.len() < t.1.len());
        if late {
            return Err(format!("at {at}\n  ours {ours:?}\n  theirs {theirs:?}"));
        }
    }
    Ok(())
}

/// What the robust grammar must make of a case that the reference gets wrong.
fn compare_meaning(case: &Value, ran: &Ran) -> Result<(), String> {
    let events: Vec<Value> = ran.events.iter().map(|(_, event)| event.clone()).collect();
    let ours = seen(&events);
    let divergence = &case["divergence"];
    let fail = |what: &str| Err(format!("{what}: {ours:?}\n  want {divergence}"));
    if let Some(expected) = divergence["expected"].as_object() {
        for (key, value) in expected {
            let same = match key.as_str() {
                "content" => ours.content == value.as_str().unwrap(),
                "reasoning" => ours.reasoning == value.as_str().unwrap(),
                "completion_tokens" => ran.response["usage"]["completion_tokens"] == *value,
                "tool_calls" => {
                    let calls = value.as_array().unwrap();
                    calls.len() == ours.calls.len()
                        && calls
                            .iter()
                            .zip(&ours.calls)
                            .all(|(want, (name, arguments))| {
                                let right = match want.get("arguments_prefix") {
                                    Some(prefix) => arguments == prefix.as_str().unwrap(),
                                    None => serde_json::from_str::<Value>(arguments)
                                        .is_ok_and(|a| a == want["arguments"]),
                                };
                                want["name"] == *name && right
                            })
                }
                other => panic!("expected {other}"),
            };
            if !same {
                return fail(key);
            }
        }
    } else {
        // Each token once, with the delta that carries its first byte.
        let tokens: Vec<&str> = events
            .iter()
            .filter_map(|e| e["choices"][0]["logprobs"]["content"].as_array())
            .flatten()
            .map(|entry| entry["token"].as_str().unwrap())
            .collect();
        if tokens != ["a", "\":", " ", "1", "}"] {
            return fail(&format!("logprobs {tokens:?}"));
        }
    }
    if let Some(reference) = divergence.get("reference") {
        let calls: Vec<(String, String)> = reference["tool_calls"]
            .as_array()
            .unwrap()
            .iter()
            .map(|c| {
                (
                    c["name"].as_str().unwrap().into(),
                    c["arguments"].as_str().unwrap().into(),
                )
            })
            .collect();
        if ours.content != reference["content"].as_str().unwrap()
            || ours.reasoning != reference["reasoning"].as_str().unwrap()
            || ours.calls != calls
        {
            return fail("reference");
        }
    }
    // The complete response says the same.
    let message = &ran.response["choices"][0]["message"];
    if message["content"].as_str().unwrap() != ours.content
        || message["reasoning_content"].as_str().unwrap_or_default() != ours.reasoning
        || message["tool_calls"].as_array().map_or(0, Vec::len) != ours.calls.len()
    {
        return fail("response");
    }
    Ok(())
}

fn check_vectors(recovery: Recovery) {
    let cases = lines("recipe/stream_chat.jsonl.gz");
    assert_eq!(cases.len(), 557);
    let by_id: HashMap<&str, &Value> = cases
        .iter()
        .map(|case| (case["id"].as_str().unwrap(), case))
        .collect();
    let strict = recovery == Recovery::Strict;
    let mut failures = Vec::new();
    for case in &cases {
        let id = case["id"].as_str().unwrap();
        let base = case.get("base").map(|base| by_id[base.as_str().unwrap()]);
        let ran = run_case(case, Protocol::ChatCompletions, recovery);
        let diverges = case.get("divergence").is_some();
        let result = if diverges && !strict {
            compare_meaning(case, &ran)
        } else {
            // Ids that spell a marker without being one are counted as they came, not as their text
            // would be encoded.
            let reasoning_tokens = strict || !id.starts_with("plain-spelled-think-end");
            let logprobs = strict || !id.starts_with("logprobs-stop-split");
            compare_exactly(case, base, &ran, reasoning_tokens, logprobs).and_then(|()| {
                // Robust mode waits for the rest of `</`, which may close a call (R5).
                let waits = !strict && id.starts_with("content-lt-newline-mix");
                if waits {
                    Ok(())
                } else {
                    compare_times(case, &ran, strict)
                }
            })
        };
        if let Err(failure) = result {
            failures.push(format!("{id}: {failure}"));
        }
    }
    let count = failures.len();
    failures.truncate(12);
    assert!(count == 0, "{count} cases fail:\n{}", failures.join("\n"));
}

#[test]
fn recorded_outputs_are_read_by_the_robust_grammar() {
    check_vectors(Recovery::Robust);
}

#[test]
fn recorded_outputs_are_read_by_the_strict_grammar() {
    check_vectors(Recovery::Strict);
}
