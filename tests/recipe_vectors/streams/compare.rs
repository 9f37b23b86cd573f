//! A run beside what the reference did with the same input.

use fathom::recipe::Protocol;
use fathom::recipe::stream::Recovery;
use serde_json::{Value, json};

use super::readers::Event;

/// What running a case gave.
pub(crate) struct Ran {
    /// With the number of the chunk that released each.
    pub(crate) events: Vec<(usize, Event)>,
    /// The first error, with the number of its chunk.
    pub(crate) error: Option<(usize, String)>,
    pub(crate) response: Value,
}

impl Ran {
    fn data(&self) -> impl Iterator<Item = Value> {
        self.events.iter().map(|(_, (_, data))| data.clone())
    }

    /// Makes equal what differs from run to run: times, the random part of ids, and, where no chunk said it, the
    /// answer's identity.
    pub(crate) fn settle(&mut self, case: &Value) {
        let own = [&self.response["id"], &self.response["response"]["id"]];
        let own = own.iter().find_map(|id| id.as_str()).map(str::to_owned);
        let own = own.unwrap_or_else(|| "none".into());
        assert!(!own.is_empty());
        let values = self.events.iter_mut().map(|(_, (_, data))| data);
        for value in values.chain([&mut self.response]) {
            settle(value, &own, case);
        }
    }
}

fn settle(value: &mut Value, own_id: &str, case: &Value) {
    match value {
        Value::String(text) => {
            if let Some(random) = text.strip_prefix("call_")
                && random.len() >= 27
                && !text.ends_with('*')
            {
                text.truncate(text.len() - 24);
                text.push('*');
            } else if text.contains(own_id) {
                *text = text.replace(own_id, case["response_id"].as_str().unwrap());
            }
        }
        Value::Array(list) => list.iter_mut().for_each(|item| settle(item, own_id, case)),
        Value::Object(map) => {
            for (name, value) in map {
                let is_time = matches!(name.as_str(), "created" | "created_at" | "completed_at");
                if is_time && value.is_number() {
                    *value = json!(0);
                } else if name == "model" && *value == case["request"]["model"] {
                    *value = case["response_model"].clone();
                } else {
                    settle(value, own_id, case);
                }
            }
        }
        _ => {}
    }
}

/// Where the text of a delta stands, and under which key neighbours join.
fn joint(protocol: Protocol, event: &Value) -> Option<(String, String)> {
    match protocol {
        Protocol::Responses => {
            let kind = event["type"].as_str()?;
            kind.ends_with(".delta")
                .then(|| (format!("{kind} {}", event["item_id"]), "/delta".into()))
        }
        Protocol::Messages => {
            let field = match event["delta"]["type"].as_str()? {
                "text_delta" => "text",
                "thinking_delta" => "thinking",
                "input_json_delta" => "partial_json",
                _ => return None,
            };
            Some((
                format!("{} {field}", event["index"]),
                format!("/delta/{field}"),
            ))
        }
        Protocol::ChatCompletions => {
            let choice = event["choices"].get(0)?;
            if !choice["finish_reason"].is_null() {
                return None;
            }
            let delta = choice["delta"].as_object()?;
            let mut texts = delta.iter().filter(|(_, value)| !value.is_null());
            let (Some((key, value)), None) = (texts.next(), texts.next()) else {
                return None;
            };
            if key != "tool_calls" {
                return value
                    .is_string()
                    .then(|| (key.clone(), format!("/choices/0/delta/{key}")));
            }
            value[0].get("id").is_none().then(|| {
                let text = "/choices/0/delta/tool_calls/0/function/arguments";
                (format!("call {}", value[0]["index"]), text.into())
            })
        }
        Protocol::Conversation => None,
    }
}

/// Neighbouring deltas of one kind and target become one, empty ones and numbers go.
pub(crate) fn merged(protocol: Protocol, events: impl IntoIterator<Item = Value>) -> Vec<Value> {
    let mut all: Vec<(Option<String>, Value)> = Vec::new();
    for mut event in events {
        if let Some(map) = event.as_object_mut() {
            map.remove("sequence_number");
        }
        let Some((key, place)) = joint(protocol, &event) else {
            all.push((None, event));
            continue;
        };
        let text = event.pointer(&place).and_then(Value::as_str).unwrap();
        if text.is_empty() {
            continue;
        }
        match all.last_mut() {
            Some((Some(last_key), last)) if *last_key == key => {
                let before = last.pointer_mut(&place).unwrap();
                *before = json!(before.as_str().unwrap().to_owned() + text);
                join_logprobs(last, &event);
            }
            _ => all.push((Some(key), event)),
        }
    }
    all.into_iter().map(|(_, event)| event).collect()
}

fn join_logprobs(last: &mut Value, next: &Value) {
    let extend = |list: &mut Value, more: &Value| {
        if list.is_null() {
            *list = json!([]);
        }
        let more = more.as_array().unwrap().iter().cloned();
        list.as_array_mut().unwrap().extend(more);
    };
    if next["logprobs"].is_array() {
        extend(&mut last["logprobs"], &next["logprobs"]);
    }
    if let Some(parts) = next["choices"][0]["logprobs"].as_object() {
        let mine = &mut last["choices"][0]["logprobs"];
        if mine.is_null() {
            *mine = json!({});
        }
        for (name, more) in parts {
            extend(&mut mine[name], more);
        }
    }
}

/// Takes members of these names out, wherever they are.
pub(crate) fn remove(value: &mut Value, names: &[&str]) {
    match value {
        Value::Object(map) => {
            map.retain(|name, _| !names.contains(&name.as_str()));
            map.values_mut().for_each(|value| remove(value, names));
        }
        Value::Array(list) => list.iter_mut().for_each(|value| remove(value, names)),
        _ => {}
    }
}

/// What a client has put together.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Said {
    pub(crate) reasoning: String,
    pub(crate) content: String,
    /// Names with the text of the arguments.
    pub(crate) calls: Vec<(String, String)>,
}

impl Said {
    /// From events, in whatever pieces they come.
    pub(crate) fn of<'e>(protocol: Protocol, events: impl IntoIterator<Item = &'e Value>) -> Self {
        let mut said = Self::default();
        for event in events {
            match protocol {
                Protocol::ChatCompletions => said.chat(event),
                Protocol::Responses => said.responses(event),
                Protocol::Messages => said.messages(event),
                Protocol::Conversation => panic!("no wire protocol"),
            }
        }
        said
    }

    fn call(&mut self, name: &Value) {
        let name = name.as_str().unwrap().to_owned();
        self.calls.push((name, String::new()));
    }

    fn arguments(&mut self, text: &str) {
        self.calls.last_mut().expect("a call is open").1 += text;
    }

    fn chat(&mut self, event: &Value) {
        let delta = &event["choices"][0]["delta"];
        self.content += delta["content"].as_str().unwrap_or_default();
        self.reasoning += delta["reasoning_content"].as_str().unwrap_or_default();
        for call in delta["tool_calls"].as_array().into_iter().flatten() {
            if call.get("id").is_some() {
                assert_eq!(call["index"], self.calls.len());
                self.call(&call["function"]["name"]);
            }
            assert_eq!(call["index"], self.calls.len() - 1);
            self.arguments(call["function"]["arguments"].as_str().unwrap());
        }
    }

    fn responses(&mut self, event: &Value) {
        let text = event["delta"].as_str().unwrap_or_default();
        match event["type"].as_str().unwrap() {
            "response.reasoning_text.delta" => self.reasoning += text,
            "response.output_text.delta" => self.content += text,
            "response.function_call_arguments.delta" | "response.custom_tool_call_input.delta" => {
                self.arguments(text)
            }
            "response.output_item.added" if event["item"].get("call_id").is_some() => {
                let name = event["item"].get("name").cloned();
                self.call(&name.unwrap_or(json!("tool_search")));
            }
            _ => {}
        }
    }

    fn messages(&mut self, event: &Value) {
        let (block, delta) = (&event["content_block"], &event["delta"]);
        if block["type"] == "tool_use" {
            self.call(&block["name"]);
        }
        let text = |name: &str| delta[name].as_str().unwrap_or_default();
        self.content += text("text");
        self.reasoning += text("thinking");
        if let Some(text) = delta["partial_json"].as_str() {
            self.arguments(text);
        }
    }

    /// From the complete response.
    fn of_response(protocol: Protocol, response: &Value) -> Self {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
        let mut said = Self::default();
        match protocol {
            Protocol::ChatCompletions => {
                let message = &response["choices"][0]["message"];
                said.content = text(&message["content"]);
                said.reasoning = text(&message["reasoning_content"]);
                said.calls = list(&message["tool_calls"])
                    .iter()
                    .map(|call| &call["function"])
                    .map(|call| (text(&call["name"]), text(&call["arguments"])))
                    .collect();
            }
            Protocol::Responses => {
                for item in list(&response["output"]) {
                    match item["type"].as_str().unwrap() {
                        "reasoning" => said.reasoning += &text(&item["content"][0]["text"]),
                        "message" => said.content += &text(&item["content"][0]["text"]),
                        "custom_tool_call" => {
                            said.calls.push((text(&item["name"]), text(&item["input"])));
                        }
                        "function_call" => {
                            let call = (text(&item["name"]), text(&item["arguments"]));
                            said.calls.push(call);
                        }
                        "tool_search_call" => {
                            said.calls.push(("tool_search".into(), String::new()));
                        }
                        other => panic!("item {other}"),
                    }
                }
            }
            Protocol::Messages => {
                for block in list(&response["content"]) {
                    match block["type"].as_str().unwrap() {
                        "thinking" => said.reasoning += &text(&block["thinking"]),
                        "text" => said.content += &text(&block["text"]),
                        "tool_use" => {
                            let call = (text(&block["name"]), block["input"].to_string());
                            said.calls.push(call);
                        }
                        other => panic!("block {other}"),
                    }
                }
            }
            Protocol::Conversation => panic!("no wire protocol"),
        }
        said
    }

    /// Calls with their arguments as values: white space does not count.
    fn values(&self) -> Vec<(&str, Value)> {
        let value = |text: &str| serde_json::from_str(text).unwrap_or(json!("cut off"));
        let calls = self.calls.iter();
        calls
            .map(|(name, arguments)| (name.as_str(), value(arguments)))
            .collect()
    }
}

fn recorded(case: &Value) -> Option<Vec<Value>> {
    let events = case.get("events")?.as_array()?.iter();
    Some(events.map(|event| event["data"].clone()).collect())
}

/// Where the two recoveries differ on purpose, outside of divergences: see STREAM.md.
struct Exceptions {
    /// `reasoning_tokens` counts what came, not what its text would encode to.
    reasoning_tokens: bool,
    /// A token behind a stop sequence is not reported.
    logprobs: bool,
    /// A bracket waits one character longer, for it may close a call.
    times: bool,
    /// A value that is no JSON is a string.
    search: bool,
    /// The complete message leaves out a call that was cut; the stream does not.
    whole_only: bool,
}

impl Exceptions {
    fn of(case: &Value, recovery: Recovery) -> Self {
        let id = case["id"].as_str().unwrap();
        let is = |name: &str| recovery == Recovery::Robust && id.starts_with(name);
        Self {
            reasoning_tokens: is("plain-spelled-think-end"),
            logprobs: is("logprobs-stop-split"),
            times: is("content-lt-newline-mix"),
            search: is("tool-search-bad-json"),
            whole_only: is("cut-in-value-stop/messages"),
        }
    }
}

/// Compares a settled run with the case, whose events stand in `base` if it has none.
pub(crate) fn compare(
    protocol: Protocol,
    case: &Value,
    base: Option<&Value>,
    ran: &Ran,
    recovery: Recovery,
) -> Result<(), String> {
    let but = Exceptions::of(case, recovery);
    for (_, (name, data)) in &ran.events {
        let expected = data["type"]
            .as_str()
            .filter(|_| protocol != Protocol::ChatCompletions);
        if name.as_deref() != expected {
            return Err(format!("{name:?} for {data}"));
        }
    }
    compare_error(case, ran)?;
    if but.search {
        let item = &ran.response["output"][0];
        return match item["arguments"] == json!({"query": "{x"}) && item["status"] == "completed" {
            true => Ok(()),
            false => Err(format!("item {item}")),
        };
    }
    let diverges = recovery == Recovery::Robust && case.get("divergence").is_some();
    if diverges {
        compare_meaning(protocol, case, ran)?;
    }
    if !diverges || but.whole_only {
        compare_events(protocol, case, base, ran, &but)?;
    }
    if !diverges {
        let (mut ours, mut wanted) = (ran.response.clone(), case["final_response"].clone());
        for value in [&mut ours, &mut wanted] {
            leave_out(value, &but);
        }
        if ours != wanted {
            return Err(format!("response\n  ours {ours}\n  want {wanted}"));
        }
        if !but.times {
            compare_times(protocol, case, ran, recovery == Recovery::Strict)?;
        }
    }
    Ok(())
}

fn leave_out(value: &mut Value, but: &Exceptions) {
    if but.reasoning_tokens {
        remove(
            value,
            &["completion_tokens_details", "output_tokens_details"],
        );
    }
    if but.logprobs {
        remove(value, &["logprobs"]);
    }
}

fn compare_error(case: &Value, ran: &Ran) -> Result<(), String> {
    let wanted = case.get("error").map(|error| {
        let at = error["at"].as_u64().unwrap() as usize;
        (at, error["message"].as_str().unwrap().to_owned())
    });
    if ran.error != wanted {
        return Err(format!("error\n  ours {:?}\n  want {wanted:?}", ran.error));
    }
    Ok(())
}

fn compare_events(
    protocol: Protocol,
    case: &Value,
    base: Option<&Value>,
    ran: &Ran,
    but: &Exceptions,
) -> Result<(), String> {
    let own = recorded(case);
    let is_own = own.is_some();
    let wanted = own.or_else(|| recorded(base?)).ok_or("no events")?;
    let mut ours = json!(merged(protocol, ran.data()));
    let mut wanted = json!(merged(protocol, wanted));
    for events in [&mut ours, &mut wanted] {
        if !is_own {
            remove(events, &["usage", "logprobs"]);
        }
        leave_out(events, but);
    }
    if ours != wanted {
        return Err(format!("events\n  ours {ours}\n  want {wanted}"));
    }
    Ok(())
}

/// Nothing is held longer than the reference holds it. Robust recovery holds values that are not strings until they
/// are known to be JSON, so `arguments` count in strict mode only.
fn compare_times(
    protocol: Protocol,
    case: &Value,
    ran: &Ran,
    arguments: bool,
) -> Result<(), String> {
    let Some(events) = case.get("events").and_then(Value::as_array) else {
        return Ok(());
    };
    for at in 0..case["chunks"].as_array().unwrap().len() {
        let until = |when: Option<usize>| when.is_some_and(|when| when <= at);
        let theirs = events
            .iter()
            .filter(|event| until(event["at"].as_u64().map(|at| at as usize)));
        let theirs = Said::of(protocol, theirs.map(|event| &event["data"]));
        let ours = ran.events.iter().filter(|(when, _)| until(Some(*when)));
        let ours = Said::of(protocol, ours.map(|(_, (_, data))| data));
        let texts = |said: &Said| said.calls.iter().map(|(_, text)| text.len()).sum::<usize>();
        if ours.content.len() < theirs.content.len()
            || ours.reasoning.len() < theirs.reasoning.len()
            || ours.calls.len() < theirs.calls.len()
            || arguments && texts(&ours) < texts(&theirs)
        {
            return Err(format!("at {at}\n  ours {ours:?}\n  theirs {theirs:?}"));
        }
    }
    Ok(())
}

/// What robust recovery must make of a case that the reference gets wrong.
fn compare_meaning(protocol: Protocol, case: &Value, ran: &Ran) -> Result<(), String> {
    let divergence = &case["divergence"];
    let data: Vec<Value> = ran.data().collect();
    let streamed = Said::of(protocol, &data);
    let whole = Said::of_response(protocol, &ran.response);
    let fail = |what: &str| {
        Err(format!(
            "{what}: {streamed:?}\n  {whole:?}\n  want {divergence}"
        ))
    };
    let Some(expected) = divergence["expected"].as_object() else {
        return compare_logprobs(&data);
    };
    for (key, value) in expected {
        let same = match key.as_str() {
            "content" => whole.content == *value,
            "reasoning" => whole.reasoning == *value,
            "completion_tokens" => {
                let usage = &ran.response["usage"];
                let ours = usage.get("completion_tokens");
                ours.or(usage.get("output_tokens")) == Some(value)
            }
            "finish" => ran.response["stop_reason"] == *value,
            "tool_calls" => has_calls(&whole, value.as_array().unwrap()),
            other => panic!("expected {other}"),
        };
        if !same {
            return fail(key);
        }
    }
    let Some(reference) = divergence.get("reference") else {
        return Ok(());
    };
    let calls = reference["tool_calls"].as_array().unwrap().iter();
    let calls: Vec<(String, String)> = calls
        .map(|call| {
            let text = |name: &str| call[name].as_str().unwrap().to_owned();
            (text("name"), text("arguments"))
        })
        .collect();
    if streamed.content != reference["content"]
        || streamed.reasoning != reference["reasoning"]
        || streamed.calls != calls
    {
        return fail("reference");
    }
    // The complete response says what the stream said.
    let same_calls = match protocol {
        Protocol::Messages => whole.values() == streamed.values(),
        _ => whole.calls == streamed.calls,
    };
    if !same_calls || (&whole.content, &whole.reasoning) != (&streamed.content, &streamed.reasoning)
    {
        return fail("response");
    }
    Ok(())
}

fn has_calls(said: &Said, wanted: &[Value]) -> bool {
    said.calls.len() == wanted.len()
        && said
            .calls
            .iter()
            .zip(wanted)
            .all(|((name, arguments), want)| {
                let right = match want.get("arguments_prefix") {
                    Some(prefix) => *prefix == *arguments,
                    None => serde_json::from_str::<Value>(arguments)
                        .is_ok_and(|value| value == want["arguments"]),
                };
                want["name"] == *name && right
            })
}

/// Each token once, with the delta that carries its first byte.
fn compare_logprobs(events: &[Value]) -> Result<(), String> {
    let tokens: Vec<&str> = events
        .iter()
        .filter_map(|event| event["choices"][0]["logprobs"]["content"].as_array())
        .flatten()
        .map(|entry| entry["token"].as_str().unwrap())
        .collect();
    match tokens == ["a", "\":", " ", "1", "}"] {
        true => Ok(()),
        false => Err(format!("logprobs {tokens:?}")),
    }
}
