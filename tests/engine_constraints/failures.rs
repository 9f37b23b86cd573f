//! Constraints that cannot be compiled, take too long or are not waited for: the right end, the right code, and
//! nobody else notices.

use std::sync::Arc;
use std::time::Duration;

use fathom::call::{Cause, Options};
use fathom::engine::backend::canary::CanaryOptions;
use fathom::engine::constraint::{Constraint, Rules, Spec, Tokens};
use fathom::engine::request::{EventKind, Failure, FinishReason};
use fathom::engine::{Code, Request};
use fathom::recipe::Protocol;
use serde_json::json;

use crate::canary::{Host, table};
use crate::world::{PATIENCE, World};

fn held(spec: Spec) -> Request {
    Request {
        max_tokens: Some(4),
        constraint: Some(Constraint::new(Rules::Source {
            spec: Arc::new(spec),
            tokens: Tokens::Table(table()),
        })),
        ..Request::new(vec![2, 3, 4])
    }
}

/// Slow enough for a limit of a millisecond.
fn slow() -> Spec {
    let properties: Vec<String> = (0..900)
        .map(|n| format!(r#""p{n}":{{"type":"string"}}"#))
        .collect();
    Spec::JsonSchema(format!(
        r#"{{"type":"object","properties":{{{}}}}}"#,
        properties.join(",")
    ))
}

/// Catches: a fault that is told at the wrong place, or with another code, or that hangs the request.
#[test]
fn what_cannot_be_compiled_ends_its_request_with_the_reason() {
    let host = Host::new(&CanaryOptions::default(), "");
    for (spec, reason) in [
        (Spec::Regex("a(".to_owned()), "byte 1"),
        (Spec::Regex(r"a\bc".to_owned()), "assertion at byte 1"),
        (Spec::Regex("é".to_owned()), "no text satisfies it"),
        (Spec::Regex("a".repeat((1 << 19) + 1)), "limit of 524288"),
        (Spec::JsonSchema("{".to_owned()), "not JSON"),
        (Spec::JsonSchema(r#"{"type":"strin"}"#.to_owned()), "strin"),
        (
            Spec::JsonSchema(r#"{"type":"array","uniqueItems":true}"#.to_owned()),
            "uniqueItems",
        ),
        (
            Spec::JsonSchema(r##"{"$ref":"#/$defs/none"}"##.to_owned()),
            "none",
        ),
        (Spec::JsonSchema("false".to_owned()), "schema is false"),
        (Spec::Lark("start: nobody".to_owned()), "nobody"),
        (Spec::Lark("begin: \"x\"".to_owned()), "start"),
        (Spec::Ebnf("root ::= nobody".to_owned()), "nobody"),
        (Spec::Choice("[]".to_owned()), "no strings"),
        (Spec::StructuralTag("{}".to_owned()), "structures"),
    ] {
        let outcome = host.run(&[held(spec.clone())]).remove(0);
        assert_eq!(outcome.done.finish, FinishReason::Error, "{spec:?}");
        let Some(Failure::Engine(error)) = &outcome.done.failure else {
            panic!("{:?}", outcome.done);
        };
        assert_eq!(
            (error.code, error.param.as_str()),
            (Code::InvalidConstraint, "constraint")
        );
        assert!(error.message.contains(reason), "{error}");
        assert!(outcome.tokens.is_empty());
    }
    // The next one is served.
    let outcome = host.run(&[held(Spec::Regex("ab".to_owned()))]).remove(0);
    assert_eq!(outcome.reason(), "constraint_complete");
}

/// Catches: an alphabet or a nesting that exhausts the stack.
#[test]
fn deep_and_hostile_sources_are_refused_or_served() {
    let host = Host::new(&CanaryOptions::default(), "");
    let deep = "(".repeat(200_000);
    let nested = format!(
        "{}true{}",
        r#"{"items":"#.repeat(20_000),
        "}".repeat(20_000)
    );
    let chain: String = (0..1_900)
        .map(|n| format!("r{n}: \"a\" r{}\n", n + 1))
        .collect();
    let terminals: String = (0..1_900)
        .map(|n| format!("T{n}: (\"a\" T{})* | \"b\"\n", n + 1))
        .collect();
    for spec in [
        Spec::Regex(deep.clone()),
        Spec::Lark(format!("start: {deep}")),
        Spec::Ebnf(format!("root ::= {deep}")),
        Spec::JsonSchema(nested),
        Spec::Lark(format!("start: r0\n{chain}r1900: \"b\"")),
        Spec::Lark(format!("start: T0\n{terminals}T1900: \"c\"")),
        Spec::Regex("((a{1,1000}){1,1000}){1,1000}".to_owned()),
        Spec::Regex("(.*a.{0,500}){20}".to_owned()),
        Spec::JsonSchema(r#"{"type":"integer","multipleOf":1000003}"#.to_owned()),
    ] {
        let outcome = host.run(&[held(spec)]).remove(0);
        match &outcome.done.failure {
            None => assert!(!outcome.tokens.is_empty()),
            Some(Failure::Engine(error)) => {
                assert_eq!(error.code, Code::InvalidConstraint, "{error}")
            }
            Some(other) => panic!("{other:?}"),
        }
    }
}

/// Catches: a limit that nobody watches, and one that ends requests which do not wait for a grammar.
#[test]
fn a_compilation_that_takes_too_long_ends_its_requests() {
    let host = Host::new(
        &CanaryOptions::default(),
        r#"{"grammar_timeout_ms": 1, "grammar_threads": 1}"#,
    );
    let mut requests = vec![held(slow()), held(slow()), Request::new(vec![2, 3])];
    requests[2].max_tokens = Some(3);
    let outcomes = host.run(&requests);
    for outcome in &outcomes[..2] {
        let Some(Failure::Engine(error)) = &outcome.done.failure else {
            panic!("{:?}", outcome.done);
        };
        assert_eq!(error.code, Code::ConstraintTimeout);
        assert!(error.message.contains("1 ms"), "{error}");
        assert!(outcome.done.detail.contains("CONSTRAINT_TIMEOUT"));
    }
    assert!(outcomes[2].done.failure.is_none());
}

/// Catches: a request that cannot be cancelled, or not be late, before it has a grammar.
#[test]
fn a_request_that_waits_for_its_grammar_can_be_cancelled_and_be_late() {
    let host = Host::new(&CanaryOptions::default(), r#"{"grammar_threads": 1}"#);
    let mut requests: Vec<Request> = (0..3).map(|_| held(slow())).collect();
    requests[1].deadline = Some(Duration::from_millis(1));
    requests[2].deadline_queue = Some(Duration::from_millis(1));
    let ids: Vec<_> = requests
        .into_iter()
        .map(|request| host.engine.submit(&host.queue, request, None).unwrap())
        .collect();
    host.engine.cancel(&ids[..1]);
    let (mut events, mut codes) = (Vec::new(), Vec::new());
    while codes.len() < 3 {
        host.queue.poll(&mut events, Some(PATIENCE)).unwrap();
        assert!(!events.is_empty());
        for event in events.drain(..) {
            if let EventKind::Done(done) = event.kind {
                let Some(Failure::Engine(error)) = done.failure else {
                    panic!("{:?} got a grammar in no time", event.request);
                };
                codes.push((event.request, error.code));
            }
        }
    }
    codes.sort_unstable_by_key(|(id, _)| *id);
    let codes: Vec<Code> = codes.into_iter().map(|(_, code)| code).collect();
    assert_eq!(
        codes,
        [Code::Cancelled, Code::DeadlineTotal, Code::DeadlineQueue]
    );
}

/// Catches: a failure that a client cannot place, or that is told as the server's.
#[test]
fn a_client_is_told_which_field_is_wrong() {
    let world = World::new("{}");
    let request = json!({
        "model": "demo", "thinking": {"type": "disabled"},
        "messages": [{"role": "user", "content": "Say something."}],
        "response_format": {"type": "regex", "regex": "a("},
    });
    let called = world.call(Protocol::ChatCompletions, &request, Options::default());
    let Cause::Engine(error) = called.error().cause else {
        panic!("{called:?}");
    };
    assert_eq!(
        (error.code, error.param.as_str()),
        (Code::InvalidConstraint, "response_format")
    );
    assert!(error.message.contains("byte 1"), "{error}");
    assert!(called.response.is_none());
}
