//! Requests called through the library, to their end; and who may use the engine meanwhile.

use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use serde_json::Value;

use crate::host::{Done, Event, Host, Kind, Queue, Wishes, host};
use crate::protocols::{Answer, Ask, Protocol};
use crate::streams::{self, Line};

/// Tests that look at the engine's counters want it for themselves.
static TURN: RwLock<()> = RwLock::new(());

pub(crate) fn shared() -> (&'static Host, RwLockReadGuard<'static, ()>) {
    (host(), TURN.read())
}

pub(crate) fn alone() -> (&'static Host, RwLockWriteGuard<'static, ()>) {
    (host(), TURN.write())
}

/// Ids and times that do not change from run to run.
pub(crate) fn fixed() -> Wishes {
    Wishes {
        tag: 77,
        response_id: Some("fixed".to_owned()),
        created_unix_s: 1_700_000_000,
        options_json: Some(r#"{"id_seed": 7}"#.to_owned()),
        ..Wishes::default()
    }
}

/// Everything that one request gave.
#[derive(Debug)]
pub(crate) struct Called {
    pub(crate) lines: Vec<Line>,
    pub(crate) done: Done,
}

/// Reads events of `id` up to its end, of which there is one.
pub(crate) fn collect(queue: &mut Queue, id: u64) -> Called {
    let (mut lines, mut token_count, mut end) = (Vec::new(), 0, None);
    while end.is_none() {
        for event in queue.poll(-1) {
            assert_eq!((event.request, event.tag), (id, 77));
            assert!(end.is_none(), "after the end: {event:?}");
            match event.kind {
                Kind::Data { .. } => {
                    let (line, count) = line(event);
                    lines.push(line);
                    token_count += count;
                }
                Kind::Done(done) => end = Some(done),
                Kind::Tokens(_) => panic!("tokens of a call"),
            }
        }
    }
    assert_eq!(queue.poll(0), []);
    let done = end.unwrap();
    assert!(done.error.is_some() || token_count <= done.usage.unwrap().completion as usize);
    Called { lines, done }
}

/// The line of a data event, and the tokens behind it.
pub(crate) fn line(event: Event) -> (Line, usize) {
    let Kind::Data {
        name,
        data,
        token_count,
    } = event.kind
    else {
        panic!("{event:?} has no data");
    };
    // One line of a stream of events.
    assert!(!data.contains(['\n', '\r']), "{data}");
    (
        (name, serde_json::from_str(&data).expect(&data)),
        token_count,
    )
}

pub(crate) fn call(protocol: Protocol, body: &Value, wishes: &Wishes) -> Called {
    let mut queue = Queue::new(protocol.number());
    let id = host()
        .call(&queue, protocol.number(), &body.to_string(), wishes)
        .unwrap();
    collect(&mut queue, id)
}

/// The complete response of a request that is not streamed.
pub(crate) fn whole(protocol: Protocol, body: &Value) -> (Value, Done) {
    let called = call(protocol, body, &fixed());
    assert_eq!(called.done.error, None);
    match called.lines.as_slice() {
        [(None, response)] => (without_time(response.clone()), called.done),
        lines => panic!("{lines:?}"),
    }
}

/// Asks for a stream and for the whole, which must say the same. What a client then knows, the complete response, and
/// how the library ended it.
pub(crate) fn ask(protocol: Protocol, ask: &Ask) -> (Answer, Value, Done) {
    let called = call(protocol, &ask.body(protocol, true), &fixed());
    assert_eq!(called.done.error, None);
    let streamed = streams::read(protocol, &called.lines);
    assert_eq!(streamed.error, None);
    let streamed = without_time(streamed.response);
    let (response, done) = whole(protocol, &ask.body(protocol, false));
    assert_eq!(streamed, response);
    assert_eq!(
        (called.done.finish, called.done.usage),
        (done.finish, done.usage)
    );
    let answer = protocol.read(&response);
    check_usage(protocol, &answer, &done);
    (answer, response, done)
}

/// The protocol and the end of the request tell the same numbers.
fn check_usage(protocol: Protocol, answer: &Answer, done: &Done) {
    let mut told = done.usage.unwrap();
    if protocol == Protocol::Messages {
        told.reasoning = 0;
    }
    assert_eq!(answer.usage, told, "{protocol:?}");
}

/// Without the one thing that is a matter of time.
pub(crate) fn without_time(mut response: Value) -> Value {
    if let Some(at) = response.get_mut("completed_at")
        && at.is_i64()
    {
        *at = 0.into();
    }
    response
}
