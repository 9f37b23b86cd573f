//! `max_tokens` after every single token of an answer: in reasoning, in content, in the name of a tool, in a key, in a
//! value, in a closing tag. A cut answer says that it was cut, is the beginning of the whole one, and shows nothing of
//! the markup that was cut.
//!
//! Every protocol, streamed and whole, is cut everywhere by hand, from the tokens of one run: that this is what a call
//! gives is proved elsewhere, and here again for cuts through all states, each made by the engine in the next protocol
//! and manner.

use serde_json::Value;

use crate::by_hand::{self, Output};
use crate::called::{call, fixed, shared, without_time};
use crate::host::host;
use crate::protocols::{ALL, Answer, Ask, End, Messages, Protocol};
use crate::recipe_support::client::seen_messages;
use crate::scenarios::{sum, timer, timer_and_sum};
use crate::streams;

/// Where a cut fell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum State {
    Reasoning,
    Content,
    /// Markup before a call has its name, and the name.
    Opening,
    /// Behind a name, before any argument.
    Named,
    Key,
    Number,
    Text,
    /// Behind the arguments.
    Closing,
    Complete,
}

#[test]
fn a_call_may_be_cut_anywhere() {
    let _turn = shared();
    let states = cut_everywhere(&timer(), 5);
    let expected = [
        State::Reasoning,
        // Nothing has come behind the reasoning.
        State::Content,
        State::Opening,
        State::Named,
        State::Key,
        State::Number,
        State::Text,
        State::Closing,
        State::Complete,
    ];
    assert_eq!(states, expected);
}

#[test]
fn an_answer_may_be_cut_anywhere() {
    let _turn = shared();
    let states = cut_everywhere(&sum(), 1);
    assert_eq!(states, [State::Reasoning, State::Content, State::Complete]);
}

#[test]
fn the_second_of_two_calls_may_be_cut_anywhere() {
    let _turn = shared();
    for protocol in ALL {
        let body = timer_and_sum().body(protocol, true);
        let output = by_hand::submit(protocol, &body, &fixed());
        let (_, whole) = read_by_hand(protocol, &body, &output);
        let mut before = Answer::default();
        for cut in 1..output.ids().len() {
            let (_, answer) = read_by_hand(protocol, &body, &output.cut(cut));
            check(protocol, &answer, &whole, &output.ids()[..cut]);
            assert!(answer.calls.len() >= before.calls.len());
            before = answer;
        }
        assert_eq!(before.calls, whole.calls, "only the end token is missing");
    }
}

/// Cuts the answer to `question` after each of its tokens, and lets the engine make `every` so manieth cut. The states
/// that cuts fell into.
fn cut_everywhere(question: &Ask, every: usize) -> Vec<State> {
    let mut states = Vec::new();
    let outputs =
        ALL.map(|protocol| by_hand::submit(protocol, &question.body(protocol, true), &fixed()));
    let ids = outputs[0].ids();
    for cut in 1..=ids.len() {
        let question = Ask {
            max_tokens: cut as u32,
            ..question.clone()
        };
        for (at, (protocol, output)) in ALL.into_iter().zip(&outputs).enumerate() {
            assert_eq!(output.ids(), ids, "one prompt, one answer");
            let (_, whole) = read_by_hand(protocol, &question.body(protocol, true), output);
            let cut_output = if cut == ids.len() {
                output.clone()
            } else {
                output.cut(cut)
            };
            let body = question.body(protocol, true);
            let (response, answer) = read_by_hand(protocol, &body, &cut_output);

            // Three protocols, two manners: each cut that the engine makes is the turn of one of them.
            let turn = cut / every;
            if cut.is_multiple_of(every) && turn % ALL.len() == at {
                let stream = turn.is_multiple_of(2);
                let called = call(protocol, &question.body(protocol, stream), &fixed());
                assert_eq!(called.done.error, None);
                assert_eq!(called.done.usage.unwrap().completion as usize, cut);
                let told = if stream {
                    streams::read(protocol, &called.lines).response
                } else {
                    called.lines[0].1.clone()
                };
                assert_eq!(without_time(told), response, "{protocol:?} cut after {cut}");
            }
            if cut == ids.len() {
                assert_eq!(answer, whole);
            } else {
                check(protocol, &answer, &whole, &ids[..cut]);
            }
            if protocol != Messages {
                states.push(state(&answer, &ids[..cut]));
            }
        }
    }
    states.sort();
    states.dedup();
    states
}

/// What clients of a stream and of a whole answer know, which is the same.
fn read_by_hand(protocol: Protocol, body: &Value, output: &Output) -> (Value, Answer) {
    let (events, whole) = by_hand::parse(protocol, body, output, &fixed());
    let lines = by_hand::lines(&events);
    let streamed = streams::read(protocol, &lines);
    assert_eq!(streamed.error, None);
    let response = without_time(serde_json::from_str(&whole).unwrap());
    assert_eq!(without_time(streamed.response), response);
    let mut answer = protocol.read(&response);
    if protocol == Messages {
        // A message has only what can be run of a call; its stream has all there was.
        let events: Vec<Value> = lines.into_iter().map(|(_, data)| data).collect();
        for (call, (_, arguments)) in answer.calls.iter_mut().zip(seen_messages(&events).calls) {
            let read = serde_json::from_str(&arguments).unwrap_or_else(|_| serde_json::json!({}));
            assert_eq!(
                serde_json::from_str::<Value>(&call.arguments).unwrap(),
                read
            );
            call.arguments = arguments;
        }
    }
    (response, answer)
}

/// An answer that was cut behind `ids`, beside the whole one.
fn check(protocol: Protocol, answer: &Answer, whole: &Answer, ids: &[u32]) {
    let text = host().decode(ids);
    // Only what may yet be text is shown as text: the bracket before a marker, and no bar of it.
    let shown = |part: &str| {
        let mut part = part;
        for bracket in ["</", "<"] {
            if text.ends_with(bracket) {
                part = part.strip_suffix(bracket).unwrap_or(part);
            }
        }
        assert!(!part.contains(['<', '>', '｜']), "{part} of {text}");
        part.to_owned()
    };
    assert_eq!(answer.finish, protocol.word(End::Length), "{text}");
    assert_eq!(answer.usage.completion as usize, ids.len());
    assert_eq!(
        (answer.usage.prompt, answer.usage.cached),
        (whole.usage.prompt, whole.usage.cached)
    );

    // Reasoning is there to its last token.
    let reasoning = text.split("</think>").next().unwrap();
    assert_eq!(answer.reasoning.as_deref(), Some(reasoning));
    if protocol != Messages {
        let thought = host().encode("</think>")[0];
        let thought = ids
            .iter()
            .position(|id| *id == thought)
            .unwrap_or(ids.len());
        assert_eq!(answer.usage.reasoning as usize, thought);
    }
    let whole_content = if whole.calls.is_empty() {
        whole.content.as_str()
    } else {
        ""
    };
    assert!(
        whole_content.starts_with(&shown(&answer.content)),
        "{:?} of {text}",
        answer.content
    );

    // Calls are those of the whole answer, the last one perhaps a part.
    assert!(answer.calls.len() <= whole.calls.len());
    for (at, (part, call)) in answer.calls.iter().zip(&whole.calls).enumerate() {
        assert_eq!((&part.id, &part.name), (&call.id, &call.name));
        if at + 1 < answer.calls.len() {
            assert_eq!(part.arguments, call.arguments);
        }
        // A value that is no text has no brackets.
        let in_text = part.arguments.matches('"').count() % 2 == 1;
        let arguments = if in_text {
            shown(&part.arguments)
        } else {
            part.arguments.clone()
        };
        assert!(
            call.arguments.starts_with(&arguments),
            "{arguments} of {text}"
        );
    }
}

/// Where the cut behind `ids` fell, by what a client sees.
fn state(answer: &Answer, ids: &[u32]) -> State {
    let text = host().decode(ids);
    if text.ends_with("<｜end▁of▁sentence｜>") {
        return State::Complete;
    }
    let Some((_, after)) = text.split_once("</think>") else {
        return State::Reasoning;
    };
    let Some(call) = answer.calls.last() else {
        let content = answer.content.trim_end_matches('<');
        return if content.is_empty() && !after.is_empty() {
            State::Opening
        } else {
            State::Content
        };
    };
    let arguments = call.arguments.as_str();
    match arguments.rsplit_once(": ") {
        _ if arguments.is_empty() => State::Named,
        _ if arguments.ends_with('}') => State::Closing,
        Some((_, value)) if value.starts_with('"') => State::Text,
        Some((_, value))
            if value.starts_with(|c: char| c.is_ascii_digit()) && !value.contains('"') =>
        {
            State::Number
        }
        _ => State::Key,
    }
}
