//! What goes wrong: before the first event, in the middle, by the client's own wish.
//!
//! A reader that takes nothing holds its request still: the engine waits, so that a deadline passes, or a cancel comes,
//! in the middle of the answer and never behind its end.

use fathom::capi::queue::{FATHOM_FINISH_CANCELLED, FATHOM_FINISH_ERROR, FATHOM_FINISH_STOP};
use fathom::capi::types::{
    FATHOM_ERR_CANCELLED, FATHOM_ERR_CONTEXT_LENGTH, FATHOM_ERR_DEADLINE, FATHOM_ERR_INVALID_JSON,
    FATHOM_ERR_INVALID_REQUEST, FATHOM_ERR_UNKNOWN_MODEL,
};
use serde_json::{Value, json};

use crate::called::{Called, alone, call, collect, fixed, line, shared};
use crate::host::{Failure, Host, Kind, Queue, Wishes};
use crate::protocols::{ALL, Chat, Messages, Protocol, Responses};
use crate::scenarios::story;
use crate::streams::{self, Line};

/// A request whose reader has seen something and reads no more.
struct Held {
    queue: Queue,
    id: u64,
    seen: Vec<Line>,
}

/// Calls for a story and reads its first text.
fn hold(host: &Host, protocol: Protocol, wishes: &Wishes) -> Held {
    let wishes = Wishes {
        max_unread_tokens: 1,
        ..wishes.clone()
    };
    let mut queue = Queue::new(protocol.number());
    let body = story().body(protocol, true).to_string();
    let id = host
        .call(&queue, protocol.number(), &body, &wishes)
        .unwrap();
    let mut seen = Vec::new();
    while !seen
        .iter()
        .any(|(_, data): &Line| data.to_string().contains("Once"))
    {
        for event in queue.poll(-1) {
            match event.kind {
                Kind::Done(done) => panic!("{protocol:?} ended before its first text: {done:?}"),
                _ => seen.push(line(event).0),
            }
        }
    }
    Held { queue, id, seen }
}

impl Held {
    /// Reads on, to the end.
    fn read(mut self) -> Called {
        let mut called = collect(&mut self.queue, self.id);
        self.seen.append(&mut called.lines);
        Called {
            lines: self.seen,
            ..called
        }
    }
}

/// The stream broke off with the protocol's own error event, and the end says why.
fn broke_off(protocol: Protocol, called: &Called) -> Failure {
    let streamed = streams::read(protocol, &called.lines);
    let event = streamed
        .error
        .unwrap_or_else(|| panic!("no error event in {:?}", called.lines));
    let failure = called.done.error.clone().expect("an error at the end");
    // The event has the message of the end.
    let message = match protocol {
        Chat | Messages => &event["error"]["message"],
        Responses => &event["response"]["error"]["message"],
    };
    assert_eq!(*message, failure.message);
    match protocol {
        Chat => {
            let code = &event["error"]["code"];
            assert_eq!(event["error"]["type"], *code);
            assert_eq!(
                event,
                json!({"error": {"message": message, "type": code, "param": null, "code": code}})
            );
        }
        Responses => {
            assert_eq!(event["type"], "response.failed");
            assert_eq!(event["response"]["status"], "failed");
            // What there is of the answer is still there to be read.
            assert_eq!(
                event["response"]["usage"].is_null(),
                streamed.response["usage"].is_null()
            );
        }
        Messages => assert_eq!(event["type"], "error"),
    }
    failure
}

#[test]
fn a_deadline_in_the_middle_breaks_the_stream_off() {
    let (host, _turn) = alone();
    let cancelled = host.stats().requests_cancelled + ALL.len() as u64;
    // Long enough for the first tokens even of a slow machine; all three wait at once.
    let wishes = Wishes {
        deadline_ms: 3000,
        ..fixed()
    };
    let held = ALL.map(|protocol| (protocol, hold(host, protocol, &wishes)));
    while host.stats().requests_cancelled < cancelled {
        // Nobody reads, and nothing else tells of it.
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    for (protocol, held) in held {
        let told = held.seen.len();
        let called = held.read();
        assert!(called.lines.len() > told);
        assert_eq!(called.done.finish, FATHOM_FINISH_CANCELLED);
        let failure = broke_off(protocol, &called);
        assert_eq!((failure.status, failure.http), (FATHOM_ERR_DEADLINE, 504));
        assert!(failure.message.contains("deadline"), "{}", failure.message);
        // Half a story: some of it, and not its end.
        let text: String = called
            .lines
            .iter()
            .map(|(_, data)| data.to_string())
            .collect();
        assert!(text.contains("Once") && !text.contains("smile"), "{text}");
    }
}

#[test]
fn a_cancelled_request_ends_and_leaves_others_alone() {
    let (host, _turn) = shared();
    for protocol in ALL {
        let held = hold(host, protocol, &fixed());
        let body = story().body(protocol, true);
        let mut queue = Queue::new(protocol.number());
        let other = host
            .call(&queue, protocol.number(), &body.to_string(), &fixed())
            .unwrap();
        host.cancel(held.id);
        // Twice, and one that never was: all the same.
        host.cancel(held.id);
        host.cancel(u64::MAX);
        let called = held.read();
        assert_eq!(called.done.finish, FATHOM_FINISH_CANCELLED);
        let failure = broke_off(protocol, &called);
        assert_eq!((failure.status, failure.http), (FATHOM_ERR_CANCELLED, 499));
        assert!(called.done.usage.unwrap().completion < 40);

        let other = collect(&mut queue, other);
        assert_eq!(
            (other.done.finish, other.done.error),
            (FATHOM_FINISH_STOP, None)
        );
        let response = streams::read(protocol, &other.lines).response;
        assert!(protocol.read(&response).content.ends_with('.'));
    }
}

#[test]
fn before_the_first_event_a_failure_is_told_by_the_end_alone() {
    let (host, _turn) = shared();
    for protocol in ALL {
        for stream in [true, false] {
            let mut queue = Queue::new(protocol.number());
            // It is read in many steps, so that the cancel comes before the last of them.
            let mut body = story().body(protocol, stream);
            let turns = if protocol == Responses {
                "input"
            } else {
                "messages"
            };
            body[turns][0]["content"] = "Tell me a story. ".repeat(200).into();
            let body = body.to_string();
            let id = host
                .call(&queue, protocol.number(), &body, &fixed())
                .unwrap();
            host.cancel(id);
            let called = collect(&mut queue, id);
            assert_eq!(called.lines, []);
            assert_eq!(called.done.finish, FATHOM_FINISH_CANCELLED);
            let failure = called.done.error.unwrap();
            assert_eq!((failure.status, failure.http), (FATHOM_ERR_CANCELLED, 499));
            check_body(protocol, &failure, None);
        }
    }
}

#[test]
fn a_whole_answer_that_breaks_off_is_none() {
    let (host, _turn) = shared();
    for protocol in ALL {
        // No machine tells a story in that.
        let wishes = Wishes {
            deadline_ms: 1,
            ..fixed()
        };
        let called = call(protocol, &story().body(protocol, false), &wishes);
        assert_eq!(called.lines, []);
        let failure = called.done.error.unwrap();
        assert_eq!((failure.status, failure.http), (FATHOM_ERR_DEADLINE, 504));
        check_body(protocol, &failure, None);
        let body = story().body(protocol, true).to_string();
        let failure = host
            .call_blocking(protocol.number(), &body, &wishes)
            .unwrap_err();
        assert_eq!(failure.status, FATHOM_ERR_DEADLINE);
    }
}

#[test]
fn a_client_that_goes_away_with_its_queue_ends_its_request() {
    let (host, _turn) = alone();
    for protocol in ALL {
        let before = host.stats();
        let held = hold(host, protocol, &fixed());
        drop(held.queue);
        let begun = std::time::Instant::now();
        // The end is counted a moment before nobody runs any more.
        let after = loop {
            let now = host.stats();
            let left = now.running + now.waiting + now.paused;
            if now.requests_cancelled > before.requests_cancelled && left == 0 {
                break now;
            }
            let patience = std::time::Duration::from_secs(60);
            assert!(begun.elapsed() < patience, "{left} requests are left");
            std::thread::sleep(std::time::Duration::from_millis(1));
        };
        assert_eq!(after.requests_finished, before.requests_finished);
    }
}

/// A server answers with this body.
fn check_body(protocol: Protocol, failure: &Failure, param: Option<&str>) {
    let error = &failure.body["error"];
    assert_eq!(error["message"], failure.message);
    assert!(error["type"].is_string());
    match protocol {
        // Only where it is asked for.
        Messages => {
            assert_eq!(failure.body["type"], "error");
            assert_eq!(error.get("param").and_then(Value::as_str), param);
        }
        Chat | Responses => {
            assert_eq!(error["param"], param.map_or(Value::Null, Value::from));
            assert!(error["code"].is_string());
        }
    }
}

#[test]
fn a_bad_request_is_told_by_the_end_alone_with_its_field() {
    let _turn = shared();
    let many = |protocol: Protocol| {
        let mut body = story().body(protocol, true);
        body[if protocol == Responses {
            "max_output_tokens"
        } else {
            "max_tokens"
        }] = 100_000.into();
        body
    };
    for protocol in ALL {
        let mut unknown = story().body(protocol, true);
        unknown["model"] = "gpt-1".into();
        let mut temperature = story().body(protocol, true);
        temperature["temperature"] = 7.into();
        let wrong =
            json!({"model": crate::protocols::MODEL, "messages": 1, "input": 1.5, "max_tokens": 1});
        let turns = if protocol == Responses {
            "input"
        } else {
            "messages"
        };
        let cases = [
            (unknown, FATHOM_ERR_UNKNOWN_MODEL, "model"),
            (temperature, FATHOM_ERR_INVALID_REQUEST, "temperature"),
            (wrong, FATHOM_ERR_INVALID_JSON, turns),
            (many(protocol), FATHOM_ERR_CONTEXT_LENGTH, turns),
        ];
        for (body, status, param) in cases {
            let wishes = Wishes {
                options_json: Some(r#"{"error_param": true}"#.to_owned()),
                ..fixed()
            };
            let called = call(protocol, &body, &wishes);
            assert_eq!(called.lines, []);
            assert_eq!(called.done.finish, FATHOM_FINISH_ERROR);
            let failure = called.done.error.unwrap();
            assert_eq!(
                (failure.status, failure.http),
                (status, 400),
                "{protocol:?} {}",
                failure.message
            );
            assert_eq!(failure.param, param);
            check_body(protocol, &failure, Some(param));
        }
    }
}
