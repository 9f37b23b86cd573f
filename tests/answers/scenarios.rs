//! What clients ask for, in each protocol: stories, reasoning, calls and their results, stops, counts.

use fathom::capi::queue::{FATHOM_FINISH_STOP, FATHOM_FINISH_TOOL_CALLS};
use serde_json::{Value, json};

use crate::called::{alone, ask, call, fixed, shared};
use crate::host::Wishes;
use crate::protocols::{ALL, Answer, Ask, Call, Chat, End, Messages, Responses, Tool};
use crate::streams;

pub(crate) fn story() -> Ask {
    Ask::new("Tell me a story about a fox named Lily.")
}

pub(crate) fn sum() -> Ask {
    Ask::new("What is 23 + 45?").thinking()
}

/// One call with an integer and a text.
pub(crate) fn timer() -> Ask {
    Ask::new("Set a timer of 12 minutes for tea.")
        .thinking()
        .tools([set_timer()])
}

/// Two calls: an integer and a text, and two numbers of which one is no integer.
pub(crate) fn timer_and_sum() -> Ask {
    let ask = Ask::new("Set a timer of 12 minutes for tea and what is 312.5 plus 45?");
    ask.thinking().tools([set_timer(), add()])
}

fn weather() -> Ask {
    Ask::new("What is the weather in Paris in celsius?").tools([get_weather(), add()])
}

fn set_timer() -> Tool {
    Tool {
        name: "set_timer",
        description: "Start a timer",
        schema: json!({"type": "object", "properties":
            {"minutes": {"type": "integer"}, "label": {"type": "string"}}, "required": ["minutes", "label"]}),
    }
}

fn add() -> Tool {
    Tool {
        name: "add",
        description: "Add two numbers",
        schema: json!({"type": "object", "properties":
            {"a": {"type": "number"}, "b": {"type": "number"}}, "required": ["a", "b"]}),
    }
}

fn get_weather() -> Tool {
    Tool {
        name: "get_weather",
        description: "Get the current weather of a city",
        schema: json!({"type": "object", "properties": {"city": {"type": "string"},
            "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]}}, "required": ["city"]}),
    }
}

/// Calls with their arguments read.
fn calls(answer: &Answer) -> Vec<(&str, Value)> {
    answer.calls.iter().map(Call::of).collect()
}

#[test]
fn a_story_is_told() {
    let _turn = shared();
    let mut told = Vec::new();
    for protocol in ALL {
        let (answer, _, done) = ask(protocol, &story());
        assert_eq!(answer.finish, protocol.word(End::Stop));
        assert_eq!(done.finish, FATHOM_FINISH_STOP);
        assert_eq!((&answer.reasoning, answer.calls.len()), (&None, 0));
        assert!(answer.content.starts_with("Once upon a time"));
        assert!(
            answer.content.matches("Lily").count() > 2,
            "{}",
            answer.content
        );
        assert!(answer.content.ends_with('.'), "it is told to its end");
        told.push((answer.content, answer.usage));
    }
    // The same prompt, so the same story, in as many tokens.
    assert!(told.iter().all(|one| *one == told[0]), "{told:?}");
}

#[test]
fn reasoning_comes_apart_from_the_answer() {
    let _turn = shared();
    for protocol in ALL {
        let (answer, _, _) = ask(protocol, &sum());
        let reasoning = answer.reasoning.expect("it thinks");
        assert!(reasoning.ends_with("So 68."), "{reasoning}");
        assert_eq!(answer.content, "23 + 45 = 68");
        assert_eq!(answer.finish, protocol.word(End::Stop));
        // The same question without thinking: there is no place for reasoning at all.
        let quick = Ask {
            thinking: false,
            ..sum()
        };
        let (answer, _, _) = ask(protocol, &quick);
        assert_eq!(answer.reasoning, None);
        assert!(
            answer.content.starts_with("23 + 45 ="),
            "{}",
            answer.content
        );
    }
}

#[test]
fn a_tool_is_called_and_its_result_is_told() {
    let _turn = shared();
    for protocol in ALL {
        let (first, response, done) = ask(protocol, &weather());
        assert_eq!(first.finish, protocol.word(End::ToolCalls));
        assert_eq!(done.finish, FATHOM_FINISH_TOOL_CALLS);
        assert_eq!(first.content, "");
        let expected = json!({"city": "Paris", "unit": "celsius"});
        assert_eq!(calls(&first), [("get_weather", expected)]);
        assert!(first.calls[0].id.starts_with("call_00_"));

        let result = r#"{"temperature": 7, "unit": "celsius", "sky": "cloudy"}"#;
        let more = protocol.follow_up(&response, &[result]);
        let (answer, _, _) = ask(protocol, &Ask { more, ..weather() });
        assert_eq!(
            answer.content,
            "It is 7 degrees celsius and cloudy in Paris."
        );
        assert_eq!(answer.finish, protocol.word(End::Stop));
        assert!(answer.calls.is_empty());
    }
}

#[test]
fn two_tools_are_called_at_once_with_arguments_of_their_types() {
    let _turn = shared();
    for protocol in ALL {
        let (first, response, _) = ask(protocol, &timer_and_sum());
        assert_eq!(first.finish, protocol.word(End::ToolCalls));
        let reasoning = first.reasoning.as_deref().expect("it thinks");
        assert!(reasoning.contains("set_timer and add"), "{reasoning}");
        let calls = calls(&first);
        let [("set_timer", timer), ("add", add)] = calls.as_slice() else {
            panic!("{calls:?}");
        };
        // Integers are integers, numbers are numbers, texts are texts.
        assert!(timer["minutes"].is_u64() && timer["label"].is_string());
        assert!(add["a"].is_f64() && add["b"].is_u64());
        assert_eq!(*timer, json!({"minutes": 12, "label": "tea"}));
        assert_eq!(*add, json!({"a": 312.5, "b": 45}));
        assert_ne!(first.calls[0].id, first.calls[1].id);

        // The client sends back what it got, reasoning and all, and what its tools gave.
        let more = protocol.follow_up(&response, &["timer started", "357.5"]);
        let (answer, _, _) = ask(
            protocol,
            &Ask {
                more,
                ..timer_and_sum()
            },
        );
        let expected = "The tea timer is set for 12 minutes. 312.5 plus 45 is 357.5.";
        assert_eq!(answer.content, expected);
        assert!(answer.reasoning.is_some_and(|text| !text.is_empty()));
        assert_eq!(answer.finish, protocol.word(End::Stop));
    }
}

#[test]
fn a_stop_sequence_ends_the_answer_and_the_work() {
    const STOP: &str = "with a glass";
    let (host, _turn) = alone();
    let (full, _, _) = ask(Chat, &story());
    let at = full.content.find(STOP).expect("it is in the story");
    let stopping = Ask {
        stop: vec![STOP],
        ..story()
    };
    for protocol in [Chat, Messages] {
        let (answer, response, done) = ask(protocol, &stopping);
        assert_eq!(answer.content, full.content[..at]);
        assert_eq!(answer.finish, protocol.word(End::StopSequence));
        assert_eq!(done.finish, FATHOM_FINISH_STOP);
        assert_eq!(done.detail.unwrap()["stop"], STOP);
        if protocol == Messages {
            assert_eq!(response["stop_sequence"], STOP);
        }
        // Up to the stop, and its own tokens.
        let before = host.encode(&full.content[..at]).len() as u32;
        let stop = host.encode(STOP).len() as u32;
        assert!(answer.usage.completion > before);
        assert!(answer.usage.completion <= before + stop + 1);

        // Its reader keeps the engine from running ahead: what was computed is what was counted, but for a few steps.
        let decoded = host.stats().tokens_decoded;
        let wishes = Wishes {
            max_unread_tokens: 1,
            ..fixed()
        };
        let called = call(protocol, &stopping.body(protocol, true), &wishes);
        let told = called.done.usage.unwrap().completion;
        assert_eq!(told, answer.usage.completion);
        let decoded = host.stats().tokens_decoded - decoded;
        assert!(
            (u64::from(told)..u64::from(told) + 8).contains(&decoded),
            "{decoded} of {told}"
        );
        assert!(told < full.usage.completion / 2);
    }
}

#[test]
fn a_stop_sequence_is_for_the_answer_and_not_for_its_reasoning_or_its_calls() {
    let _turn = shared();
    for protocol in [Chat, Messages] {
        let (free, _, _) = ask(protocol, &timer());
        let stop = vec!["The user", "12", "tea", "call"];
        let (answer, _, _) = ask(protocol, &Ask { stop, ..timer() });
        assert_eq!(answer, free);
        let (answer, _, _) = ask(
            protocol,
            &Ask {
                stop: vec![" = "],
                ..sum()
            },
        );
        assert_eq!(answer.content, "23 + 45");
        assert!(answer.reasoning.unwrap().contains(" = "));
    }
}

#[test]
fn tokens_are_counted_as_they_are() {
    let (host, _turn) = shared();
    for question in [story(), sum(), timer_and_sum()] {
        let mut prompts = Vec::new();
        for protocol in ALL {
            let (answer, _, done) = ask(protocol, &question);
            let body = question.body(protocol, true).to_string();
            let prepared = host.prepare(protocol.number(), &body, &fixed()).unwrap();
            let usage = done.usage.unwrap();
            assert_eq!(usage.prompt as usize, prepared.tokens().len());
            assert!(usage.cached <= usage.prompt);
            prompts.push(prepared.tokens());

            // The model writes its own markup the way its template does.
            let reasoning = answer.reasoning.as_deref().unwrap_or_default();
            assert_eq!(usage.reasoning as usize, host.encode(reasoning).len());
            let mut text = answer.content.clone();
            if question.thinking {
                text.insert_str(0, &format!("{reasoning}</think>"));
            }
            if !answer.calls.is_empty() {
                text += &written(&answer.calls);
            }
            text += "<｜end▁of▁sentence｜>";
            assert_eq!(
                usage.completion as usize,
                host.encode(&text).len(),
                "{text}"
            );
        }
        // One question is one prompt, whatever protocol it comes in.
        assert!(prompts.iter().all(|prompt| *prompt == prompts[0]));
    }
}

/// Calls as the model writes them.
fn written(calls: &[Call]) -> String {
    let mut text = "\n\n<｜DSML｜ calls>\n".to_owned();
    for call in calls {
        let (name, arguments) = Call::of(call);
        text += &format!("<｜DSML｜ invoke name=\"{name}\">\n");
        for (key, value) in arguments.as_object().unwrap() {
            let raw = value.as_str().map_or(value.to_string(), str::to_owned);
            let string = value.is_string();
            text += &format!(
                "<｜DSML｜ parameter name=\"{key}\" string=\"{string}\">{raw}</｜DSML｜ parameter>\n"
            );
        }
        text += "</｜DSML｜ invoke>\n";
    }
    text + "</｜DSML｜ calls>"
}

#[test]
fn every_token_of_the_answer_has_its_log_probability() {
    let (host, _turn) = shared();
    for protocol in [Chat, Responses] {
        for question in [story(), sum()] {
            let question = Ask {
                logprobs: Some(3),
                ..question
            };
            let (answer, _, _) = ask(protocol, &question);
            let (content, reasoning) = &answer.logprobs;
            check_logprobs(content, &answer.content);
            assert_eq!(content.len(), host.encode(&answer.content).len());
            // Reasoning tokens are reported by Chat Completions only.
            let text = answer.reasoning.as_deref().unwrap_or_default();
            if protocol == Chat {
                check_logprobs(reasoning, text);
                assert_eq!(reasoning.len() as u32, answer.usage.reasoning);
            } else {
                assert!(reasoning.is_empty());
            }
        }
        // Nothing of a stop sequence is reported.
        if protocol == Chat {
            let question = Ask {
                logprobs: Some(1),
                stop: vec![" glass"],
                ..story()
            };
            let (answer, _, _) = ask(protocol, &question);
            check_logprobs(&answer.logprobs.0, &answer.content);
        }
        // Calls have none.
        let (answer, _, _) = ask(
            protocol,
            &Ask {
                logprobs: Some(1),
                thinking: false,
                ..timer()
            },
        );
        assert_eq!((answer.calls.len(), answer.logprobs.0.len()), (1, 0));
    }
    let (answer, _, _) = ask(Chat, &sum());
    assert_eq!(answer.logprobs, (vec![], vec![]));
}

/// The entries are those of `text`, each with its alternatives, the likeliest first.
fn check_logprobs(entries: &[Value], text: &str) {
    let mut bytes = Vec::new();
    for entry in entries {
        let logprob = entry["logprob"].as_f64().unwrap();
        assert!(logprob <= 0.0);
        bytes.extend(
            entry["bytes"]
                .as_array()
                .unwrap()
                .iter()
                .map(|byte| byte.as_u64().unwrap() as u8),
        );
        let top = entry["top_logprobs"].as_array().unwrap();
        assert!(!top.is_empty());
        // The likeliest was taken.
        assert_eq!(
            (&top[0]["token"], &top[0]["logprob"]),
            (&entry["token"], &entry["logprob"])
        );
        let values: Vec<f64> = top
            .iter()
            .map(|one| one["logprob"].as_f64().unwrap())
            .collect();
        assert!(values.is_sorted_by(|a, b| a >= b), "{values:?}");
    }
    assert_eq!(String::from_utf8(bytes).unwrap(), text);
}

#[test]
fn a_chat_stream_that_wants_no_usage_gets_it_once_at_the_end() {
    let _turn = shared();
    let mut body = Ask::new("Hello").body(Chat, true);
    body.as_object_mut().unwrap().remove("stream_options");
    let called = call(Chat, &body, &fixed());
    let has_usage = called
        .lines
        .iter()
        .map(|(_, chunk)| chunk.get("usage").is_some());
    let mut expected = vec![false; called.lines.len() - 1];
    expected.push(true);
    assert_eq!(has_usage.collect::<Vec<_>>(), expected);
    // With OpenAI's form of it, in a chunk of its own and only if asked for.
    for (include, chunks) in [(false, 0), (true, 1)] {
        let mut body = body.clone();
        if include {
            body["stream_options"] = json!({"include_usage": true});
        }
        let wishes = Wishes {
            options_json: Some(r#"{"usage_chunk": "openai"}"#.to_owned()),
            ..fixed()
        };
        let called = call(Chat, &body, &wishes);
        let with_usage: Vec<&Value> = called
            .lines
            .iter()
            .map(|(_, c)| c)
            .filter(|c| c["usage"].is_object())
            .collect();
        assert_eq!(with_usage.len(), chunks);
        assert!(with_usage.iter().all(|chunk| chunk["choices"] == json!([])));
    }
}

#[test]
fn several_requests_in_different_protocols_share_one_queue() {
    let (host, _turn) = shared();
    let mut queue = crate::host::Queue::new(1);
    let mut lines: [Vec<streams::Line>; 3] = Default::default();
    for (tag, protocol) in ALL.into_iter().enumerate() {
        let wishes = Wishes {
            tag: tag as u64,
            ..fixed()
        };
        let body = timer().body(protocol, true).to_string();
        host.call(&queue, protocol.number(), &body, &wishes)
            .unwrap();
    }
    let mut left = 3;
    while left > 0 {
        for event in queue.poll(-1) {
            let of = event.tag as usize;
            match &event.kind {
                crate::host::Kind::Done(done) => {
                    assert_eq!(done.finish, FATHOM_FINISH_TOOL_CALLS);
                    left -= 1;
                }
                _ => lines[of].push(crate::called::line(event).0),
            }
        }
    }
    for (protocol, lines) in ALL.into_iter().zip(&lines) {
        let response = streams::read(protocol, lines).response;
        let answer = protocol.read(&response);
        let expected = json!({"minutes": 12, "label": "tea"});
        assert_eq!(calls(&answer), [("set_timer", expected)]);
    }
}
