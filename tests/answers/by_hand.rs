//! The steps that `fathom_call` saves a host — prepare, submit, poll, parse — give the same bytes as the call.
//!
//! How tokens fall into spans is a matter of timing, and with it where one delta ends and the next begins. Here nobody
//! polls until the engine has ended both requests: then all tokens of a request are one span.

use std::time::Duration;

use serde_json::Value;

use crate::called::{alone, fixed};
use crate::host::{Done, Event, Kind, Parser, Queue, Tokens, Wishes, host};
use crate::protocols::{ALL, Ask, Chat, Messages, Protocol, Responses};
use crate::scenarios::{story, sum, timer, timer_and_sum};
use crate::streams::Line;

/// Name, text and token count of one event.
type Bytes = (Option<String>, String, usize);

/// What the engine made of a request, by hand.
#[derive(Clone, Debug)]
pub(crate) struct Output {
    pub(crate) spans: Vec<Tokens>,
    pub(crate) done: Done,
}

impl Output {
    pub(crate) fn ids(&self) -> Vec<u32> {
        self.spans
            .iter()
            .flat_map(|span| span.ids.iter().copied())
            .collect()
    }

    /// As if its budget had been the first `count` of its ids.
    pub(crate) fn cut(&self, count: usize) -> Self {
        let prompt = self.spans[0].prompt;
        let span = Tokens {
            ids: self.ids()[..count].to_vec(),
            prompt,
            ..Tokens::default()
        };
        let mut done = self.done.clone();
        done.finish = fathom::capi::queue::FATHOM_FINISH_LENGTH;
        Self {
            spans: vec![span],
            done,
        }
    }

    fn of(events: Vec<Event>) -> Self {
        let (mut spans, mut end) = (Vec::new(), None);
        for event in events {
            assert!(end.is_none(), "after the end: {event:?}");
            match event.kind {
                Kind::Tokens(tokens) => spans.push(tokens),
                Kind::Done(done) => end = Some(done),
                Kind::Data { .. } => panic!("{event:?} without a parser"),
            }
        }
        let done = end.expect("an end");
        assert_eq!(done.error, None);
        Self { spans, done }
    }
}

/// Prepares and submits a request, and takes what comes.
pub(crate) fn submit(protocol: Protocol, body: &Value, wishes: &Wishes) -> Output {
    let mut queue = Queue::new(protocol.number());
    let prepared = host()
        .prepare(protocol.number(), &body.to_string(), wishes)
        .unwrap();
    host().submit(&queue, &prepared, wishes).unwrap();
    Output::of(drain(&mut queue))
}

/// Parses what the engine made: the events, and the complete response.
pub(crate) fn parse(
    protocol: Protocol,
    body: &Value,
    output: &Output,
    wishes: &Wishes,
) -> (Vec<Bytes>, String) {
    let prepared = host()
        .prepare(protocol.number(), &body.to_string(), wishes)
        .unwrap();
    let mut parser = Parser::new(&prepared, protocol.number());
    let mut events = Vec::new();
    for span in &output.spans {
        if let Some(prompt) = span.prompt {
            events.extend(parser.start(prompt, wishes));
        }
        events.extend(parser.push(span));
    }
    events.extend(parser.finish(&output.done));
    let data = events.into_iter().filter_map(|event| match event.kind {
        Kind::Data {
            name,
            data,
            token_count,
        } => Some((name, data, token_count)),
        // The parser has enough.
        Kind::Done(_) => None,
        Kind::Tokens(_) => panic!("tokens of a parser"),
    });
    (data.collect(), parser.response())
}

/// The lines of events.
pub(crate) fn lines(events: &[Bytes]) -> Vec<Line> {
    let lines = events.iter();
    lines
        .map(|(name, data, _)| (name.clone(), serde_json::from_str(data).expect(data)))
        .collect()
}

/// Hides the one number that is a matter of time.
fn without_time(text: &str) -> String {
    const NAME: &str = "\"completed_at\":";
    let Some(at) = text.find(NAME) else {
        return text.to_owned();
    };
    let (before, after) = text.split_at(at + NAME.len());
    format!(
        "{before}0{}",
        after.trim_start_matches(|c: char| c.is_ascii_digit())
    )
}

/// Everything that a queue will give for its one request.
fn drain(queue: &mut Queue) -> Vec<Event> {
    let mut events = Vec::new();
    while !events
        .last()
        .is_some_and(|event: &Event| matches!(event.kind, Kind::Done(_)))
    {
        events.extend(queue.poll(-1));
    }
    events
}

/// Sets a request going by hand, called as a stream, and called for the whole, and touches nothing until all three
/// have ended. What the engine made, and what the calls gave.
fn all_ways(protocol: Protocol, question: &Ask) -> (Output, [Vec<Event>; 2]) {
    let (host, _turn) = alone();
    let ended = host.stats().requests_finished + 3;
    let number = protocol.number();
    let mut by_hand = Queue::new(number);
    let body = question.body(protocol, true).to_string();
    let prepared = host.prepare(number, &body, &fixed()).unwrap();
    host.submit(&by_hand, &prepared, &fixed()).unwrap();
    let mut called = [true, false].map(|stream| {
        let queue = Queue::new(number);
        let body = question.body(protocol, stream).to_string();
        host.call(&queue, number, &body, &fixed()).unwrap();
        queue
    });
    while host.stats().requests_finished < ended {
        // Nothing tells of it but the counter, for a queue tells of the first token.
        std::thread::sleep(Duration::from_millis(1));
    }
    let output = Output::of(drain(&mut by_hand));
    (output, called.each_mut().map(drain))
}

#[test]
fn the_steps_by_hand_give_the_events_of_the_call_byte_for_byte() {
    let stopped = Ask {
        stop: vec!["Every day"],
        ..story()
    };
    let cut = Ask {
        max_tokens: 20,
        ..sum()
    };
    let likely = Ask {
        logprobs: Some(2),
        ..sum()
    };
    for protocol in ALL {
        same_bytes(protocol, &timer_and_sum());
        same_bytes(protocol, &cut);
        if protocol != Responses {
            same_bytes(protocol, &stopped);
        }
        if protocol != Messages {
            same_bytes(protocol, &likely);
        }
    }
}

fn same_bytes(protocol: Protocol, question: &Ask) {
    let (output, called) = all_ways(protocol, question);
    assert_eq!(output.spans.len(), 1, "nobody polled");
    for (mut called, stream) in called.into_iter().zip([true, false]) {
        let body = question.body(protocol, stream);
        let (mut expected, response) = parse(protocol, &body, &output, &fixed());
        let Some(Kind::Done(done)) = called.pop().map(|event| event.kind) else {
            panic!("no end");
        };
        assert_eq!(done.error, None);
        let (usage, engine) = (done.usage.unwrap(), output.done.usage.unwrap());
        assert_eq!((usage.prompt, usage.cached), (engine.prompt, engine.cached));
        // What the engine made behind a stop sequence is not the client's.
        assert_eq!(
            usage.completion < engine.completion,
            !question.stop.is_empty()
        );
        assert!(usage.completion <= engine.completion);

        if stream {
            assert!(expected.len() >= 3);
        } else {
            expected = vec![(None, response, usage.completion as usize)];
        }
        let called: Vec<Bytes> = called
            .into_iter()
            .map(|event| match event.kind {
                Kind::Data {
                    name,
                    data,
                    token_count,
                } => (name, without_time(&data), token_count),
                other => panic!("{other:?}"),
            })
            .collect();
        for event in &mut expected {
            event.1 = without_time(&event.1);
        }
        assert_eq!(called, expected, "{protocol:?} {stream}");
    }
}

#[test]
fn ids_repeat_with_a_seed_and_differ_without() {
    let _turn = alone();
    let body = Ask {
        thinking: false,
        ..timer()
    }
    .body(Chat, false);
    let answer = |wishes: &Wishes| {
        let json = host().call_blocking(1, &body.to_string(), wishes).unwrap();
        let response: Value = serde_json::from_str(&json).unwrap();
        (
            response["id"].clone(),
            Chat.read(&response).calls[0].id.clone(),
        )
    };
    let seeded = Wishes {
        options_json: Some(r#"{"id_seed": 5}"#.to_owned()),
        ..Wishes::default()
    };
    let (first, second) = (answer(&seeded), answer(&seeded));
    assert_eq!(first, second);
    assert!(first.0.as_str().unwrap().starts_with("chatcmpl-"));
    let (first, second) = (answer(&Wishes::default()), answer(&Wishes::default()));
    assert!(first.0 != second.0 && first.1 != second.1);
}
