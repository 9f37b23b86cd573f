//! Failures at each moment of a stream.

use fathom::recipe::stream::{Finish, Output, Parser, StartInfo};
use serde_json::{Value, json};

use super::client::{Client, events};
use super::{calls, function, options};
use crate::support::{dsml, text_chunk};

/// Pushes `text`, fails, and gives the events and the complete response.
fn fail_after(text: &str, http_status: u16) -> (Vec<Value>, Value) {
    let options = options(&json!({"tools": [
        function("f"), {"type": "custom", "name": "apply_patch"}, {"type": "tool_search", "execution": "client"},
    ]}));
    let mut parser = Parser::with(options, None).unwrap();
    let mut out = Output::default();
    parser.start(&StartInfo::default(), &mut out).unwrap();
    if !text.is_empty() {
        parser.push(&text_chunk(&dsml(text)), &mut out).unwrap();
    }
    parser
        .fail(http_status, "engine \"lost\"", &mut out)
        .unwrap();
    // Only once, and nothing after it.
    parser.fail(500, "again", &mut out).unwrap();
    parser.push(&text_chunk("more"), &mut out).unwrap();
    parser.finish(Finish::Stop, None, &mut out).unwrap();
    let events = events(&out);
    Client::of(&events);
    let response = serde_json::from_str(&parser.response().unwrap()).unwrap();
    (events, response)
}

#[test]
fn before_the_first_event_the_error_stands_alone() {
    for (status, code) in [
        (400, "invalid_request_error"),
        (429, "rate_limit_error"),
        (503, "overloaded_error"),
        (529, "overloaded_error"),
        (500, "internal_error"),
    ] {
        let mut parser = Parser::with(options(&json!({})), None).unwrap();
        let mut out = Output::default();
        parser.fail(status, "no", &mut out).unwrap();
        parser.push(&text_chunk("x"), &mut out).unwrap();
        let error = json!({"type": "error", "code": code, "message": "no", "param": null, "sequence_number": 0});
        assert_eq!(events(&out), [error]);
        let response: Value = serde_json::from_str(&parser.response().unwrap()).unwrap();
        assert_eq!(response["status"], "failed");
        assert_eq!(response["error"], json!({"code": code, "message": "no"}));
    }
}

#[test]
fn later_the_response_fails_with_what_there_is() {
    let call = "<D: calls><D: invoke name=";
    for (text, items) in [
        ("", json!([])),
        ("Hel", json!([["message", "incomplete"]])),
        (
            &format!("Hi{}", calls(&[("f", &[("a", "b")])])),
            json!([["message", "completed"], ["function_call", "incomplete"]]),
        ),
        (
            &format!("{call}\"f\"><D: parameter name=\"a\" string=\"true\">b"),
            json!([["function_call", "incomplete"]]),
        ),
        (
            &format!("{call}\"apply_patch\"><D: parameter name=\"input\" string=\"true\">b"),
            json!([["custom_tool_call", "incomplete"]]),
        ),
        (
            &calls(&[("tool_search", &[("q", "x")])]),
            json!([["tool_search_call", "incomplete"]]),
        ),
        (&format!("{call}\"f"), json!([])),
    ] {
        let (events, response) = fail_after(text, 503);
        let last = events.last().unwrap();
        assert_eq!(last["type"], "response.failed");
        assert_eq!(last["response"], response, "{text}");
        assert_eq!(response["status"], "failed");
        let error = json!({"code": "overloaded_error", "message": "engine \"lost\""});
        assert_eq!(response["error"], error);
        assert!(response["usage"].is_null() && response["completed_at"].is_null());
        let output = response["output"].as_array().unwrap();
        let seen: Vec<[&Value; 2]> = output
            .iter()
            .map(|item| [&item["type"], &item["status"]])
            .collect();
        assert_eq!(json!(seen), items, "{text}");
    }
    let (_, response) = fail_after("Hel", 500);
    assert_eq!(response["output"][0]["content"][0]["text"], "Hel");
    assert_eq!(response["error"]["code"], "internal_error");
}

#[test]
fn a_broken_stream_fails_with_the_next_number() {
    let mut parser = Parser::with(options(&json!({})), None).unwrap();
    let mut out = Output::default();
    parser.push(&text_chunk("a"), &mut out).unwrap();
    let error = parser
        .push(&crate::support::id_chunk(&[1]), &mut out)
        .unwrap_err();
    let before: Value = serde_json::from_str(&parser.response().unwrap()).unwrap();
    assert_eq!(before["status"], "in_progress");
    assert_eq!(before["output"][0]["status"], "in_progress");
    parser.fail(500, &error.message, &mut out).unwrap();
    let events = events(&out);
    assert_eq!(events.last().unwrap()["sequence_number"], events.len() - 1);
    let response = Client::of(&events).response;
    assert_eq!(response["error"]["message"], error.message);
}

#[test]
fn nothing_fails_behind_the_end() {
    let mut parser = Parser::with(options(&json!({})), None).unwrap();
    let mut out = Output::default();
    parser.finish(Finish::Stop, None, &mut out).unwrap();
    let count = out.len();
    parser.fail(500, "late", &mut out).unwrap();
    assert_eq!(out.len(), count);
    let response: Value = serde_json::from_str(&parser.response().unwrap()).unwrap();
    assert_eq!(
        (&response["status"], &response["error"]),
        (&json!("completed"), &Value::Null)
    );
}
