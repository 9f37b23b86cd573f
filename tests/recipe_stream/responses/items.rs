//! Each kind of item, and the response around them.

use fathom::recipe::ThinkingStage;
use fathom::recipe::stream::{
    Chunk, Finish, Output, Parser, StartInfo, UnterminatedReasoning, Usage,
};
use serde_json::{Value, json};

use super::client::{Client, events};
use super::{calls, function, options, read, strict};
use crate::support::{call, dsml, id_chunk, text_chunk};

#[test]
fn reasoning_and_message_follow_one_another() {
    let thinking = options(&json!({"reasoning": {"effort": "high"}}));
    let client = read(
        &thinking,
        "\nplan \"it\"\n</think>\n\nDone.\n",
        Finish::Stop,
    );
    let response = &client.response;
    let id = response["id"].as_str().unwrap();
    assert!(id.starts_with("resp_") && id.len() == 29, "{id}");
    let items = json!([
        {
            "type": "reasoning", "id": format!("rs_{id}_0"), "status": "completed", "summary": [],
            "content": [{"type": "reasoning_text", "text": "plan \"it\""}],
            "encrypted_content": format!("{id}-0"),
        },
        {
            "type": "message", "id": format!("msg_{id}_1"), "status": "completed",
            "role": "assistant", "phase": "final_answer",
            "content": [{"type": "output_text", "annotations": [], "logprobs": [], "text": "Done.\n"}],
        },
    ]);
    assert_eq!(response["output"], items);
    assert_eq!(response["incomplete_details"], Value::Null);
    // Nothing at all is an answer without items.
    let client = read(&thinking, "</think>", Finish::Stop);
    assert_eq!(client.response["output"], json!([]));
    assert_eq!(client.response["status"], "completed");
}

#[test]
fn the_last_item_ends_as_the_response_does() {
    for (finish, status, reason) in [
        (Finish::Length, "incomplete", Some("max_output_tokens")),
        (Finish::ContentFilter, "incomplete", Some("content_filter")),
        (Finish::EndOfStream, "completed", None),
        (Finish::Stop, "completed", None),
    ] {
        let text = format!("Hi{}", calls(&[("f", &[("a", "b")])]));
        let client = read(&options(&json!({"tools": [function("f")]})), &text, finish);
        let statuses: Vec<&Value> = client.items.iter().map(|item| &item["status"]).collect();
        assert_eq!(statuses, ["completed", status]);
        assert_eq!(client.response["status"], status);
        let details = &client.response["incomplete_details"];
        assert_eq!(
            *details,
            reason.map_or(Value::Null, |reason| json!({"reason": reason}))
        );
    }
}

#[test]
fn a_message_before_a_call_is_a_commentary() {
    let options = options(&json!({"tools": [function("f"), function("g")]}));
    let text = format!(
        "Let me see.{}",
        calls(&[("f", &[("a", "x\ny")]), ("g", &[])])
    );
    let client = read(&options, &text, Finish::Stop);
    let kinds: Vec<&Value> = client.items.iter().map(|item| &item["type"]).collect();
    assert_eq!(kinds, ["message", "function_call", "function_call"]);
    assert_eq!(client.items[0]["phase"], "commentary");
    assert_eq!(client.items[1]["arguments"], r#"{"a": "x\ny"}"#);
    assert_eq!(client.items[2]["arguments"], "{}");
    assert!(client.items[1].get("namespace").is_none());
    assert_ne!(client.items[1]["call_id"], client.items[2]["call_id"]);
    assert!(
        client.items[2]["call_id"]
            .as_str()
            .unwrap()
            .starts_with("call_01_")
    );
}

#[test]
fn a_namespace_and_its_member_are_told_apart() {
    let namespaces =
        json!({"tools": [{"type": "namespace", "name": "mail", "tools": [function("send")]}]});
    let client = read(
        &options(&namespaces),
        &calls(&[("mail::send", &[])]),
        Finish::Stop,
    );
    assert_eq!(client.items[0]["namespace"], "mail");
    assert_eq!(client.items[0]["name"], "send");
    // What nobody declared keeps the name the model gave it,
    let client = read(
        &options(&namespaces),
        &calls(&[("post::send", &[])]),
        Finish::Stop,
    );
    assert_eq!(client.items[0]["name"], "post::send");
    // unless nothing was declared.
    let plain = options(&json!({"tools": [function("f")]}));
    let client = read(&plain, &calls(&[("post::send::now", &[])]), Finish::Stop);
    assert_eq!(client.items[0]["namespace"], "post");
    assert_eq!(client.items[0]["name"], "send::now");
}

#[test]
fn many_namespaces_cost_no_search() {
    let members: Vec<Value> = (0..20_000).map(|at| function(&format!("f{at}"))).collect();
    let options =
        options(&json!({"tools": [{"type": "namespace", "name": "n", "tools": members}]}));
    let many: Vec<String> = (0..20_000).map(|at| format!("n::f{at}")).collect();
    let many: Vec<(&str, &[(&str, &str)])> =
        many.iter().map(|name| (name.as_str(), &[][..])).collect();
    let mut parser = Parser::with(options, None).unwrap();
    let mut out = Output::default();
    parser
        .push(&text_chunk(&dsml(&calls(&many))), &mut out)
        .unwrap();
    parser.finish(Finish::Stop, None, &mut out).unwrap();
    let client = Client::of(&events(&out));
    assert_eq!(client.items.len(), 20_000);
    assert!(client.items.iter().all(|item| item["namespace"] == "n"));
}

#[test]
fn the_input_of_a_custom_tool_is_its_text() {
    let options = options(&json!({"tools": [{"type": "custom", "name": "apply_patch"}]}));
    let patch = "*** Begin Patch\n+\"q\" \\n \\ud83e é 🤭\t\u{1}\n*** End Patch";
    let client = read(
        &options,
        &calls(&[("apply_patch", &[("input", patch)])]),
        Finish::Stop,
    );
    assert_eq!(client.items[0]["type"], "custom_tool_call");
    assert_eq!(client.items[0]["input"], patch);
    assert_eq!(client.seen.calls, [call("apply_patch", patch)]);
    // Other shapes are the input as they stand.
    let client = read(
        &options,
        &calls(&[("apply_patch", &[("patch", "p")])]),
        Finish::Stop,
    );
    assert_eq!(client.items[0]["input"], r#"{"patch": "p"}"#);
    let client = read(&options, &calls(&[("apply_patch", &[])]), Finish::Stop);
    assert_eq!(client.items[0]["input"], "{}");
    // A text that JSON escapes is decoded, a cut one goes as far as it goes.
    let json =
        "<D: calls><D: invoke name=\"apply_patch\"><D: parameter name=\"input\" string=\"false\">";
    let whole = format!("{json}\"\\ud83e\\udd2d\\u0041\\n\"</D: parameter></D: invoke></D: calls>");
    assert_eq!(
        read(&options, &whole, Finish::Stop).items[0]["input"],
        "🤭A\n"
    );
    let cut = strict(options.clone());
    let client = read(&cut, &format!("{json}\"a\\ud83e\\udd"), Finish::Length);
    assert_eq!(client.items[0]["input"], "a\\ud83e\\udd");
    assert_eq!(client.items[0]["status"], "incomplete");
    // The prefix alone is no input.
    let client = read(&cut, json, Finish::Length);
    assert_eq!(client.items[0]["input"], "{\"input\": ");
}

#[test]
fn a_tool_search_has_an_object_or_is_incomplete() {
    let options =
        options(&json!({"tools": [{"type": "tool_search", "execution": "client"}, function("f")]}));
    let client = read(
        &options,
        &calls(&[("tool_search", &[("query", "a\nb")]), ("f", &[])]),
        Finish::Stop,
    );
    let search = &client.items[0];
    assert_eq!(search["arguments"], json!({"query": "a\nb"}));
    assert_eq!(
        (&search["status"], &search["execution"]),
        (&json!("completed"), &json!("client"))
    );
    assert!(search.get("name").is_none());
    assert_eq!(client.items[1]["type"], "function_call");
    let bad = "<D: calls><D: invoke name=\"tool_search\"><D: parameter name=\"q\" string=\"false\">{x</D: parameter></D: invoke></D: calls>";
    // The reference's arguments are no JSON; ours are a string.
    for (options, arguments, status) in [
        (strict(options.clone()), json!({}), "incomplete"),
        (options.clone(), json!({"q": "{x"}), "completed"),
    ] {
        let client = read(&options, bad, Finish::Stop);
        assert_eq!(client.items[0]["arguments"], arguments);
        assert_eq!(client.items[0]["status"], status);
        assert_eq!(client.response["status"], "completed");
    }
    // A limit reached behind a complete search still leaves it undone.
    for text in [
        "<D: calls><D: invoke name=\"tool_search\">",
        &calls(&[("tool_search", &[("q", "x")])]),
    ] {
        let client = read(&options, text, Finish::Length);
        assert_eq!(client.items[0]["arguments"], json!({}));
        assert_eq!(client.items[0]["status"], "incomplete");
    }
    // Layout inside the arguments does not get into the event.
    let text = "<D: calls><D: invoke name=\"tool_search\">{\n \"q\":\n [1.50, 1]\n}</D: invoke></D: calls>";
    assert_eq!(
        read(&options, text, Finish::Stop).items[0]["arguments"],
        json!({"q": [1.5, 1]})
    );
    // Deep nesting is refused, not followed.
    let deep = "[".repeat(100_000) + &"]".repeat(100_000);
    let text = format!(
        "<D: calls><D: invoke name=\"tool_search\"><D: parameter name=\"q\" string=\"false\">{deep}</D: parameter></D: invoke></D: calls>"
    );
    let mut parser = Parser::with(options, None).unwrap();
    let mut out = Output::default();
    parser.push(&text_chunk(&dsml(&text)), &mut out).unwrap();
    parser.finish(Finish::Stop, None, &mut out).unwrap();
    assert_eq!(Client::of(&events(&out)).items[0]["status"], "incomplete");
}

#[test]
fn the_response_repeats_its_request() {
    let request = json!({
        "input": "hi in json", "instructions": "Be \"brief\".\n", "max_output_tokens": 77, "temperature": 0.7, "top_p": 0.9, "user": "u",
        "top_logprobs": 3, "reasoning": {"effort": "none", "generate_summary": "auto"},
        "text": {"format": {"type": "json_object"}, "verbosity": "low"},
        "tools": [function("f"), {"type": "mcp"}], "tool_choice": {"type": "function", "name": "f"},
        "metadata": {"k": "v"}, "store": true,
    });
    let options = options(&request);
    let mut parser = Parser::with(options, None).unwrap();
    let mut out = Output::default();
    let info = StartInfo {
        created_unix_s: 1_000,
        response_id: "resp_\"x\"".into(),
        model: "m".into(),
        prompt_tokens: 9,
        cached_tokens: 4,
        ..StartInfo::default()
    };
    parser.start(&info, &mut out).unwrap();
    parser
        .push(&text_chunk(&dsml(&calls(&[("f", &[])]))), &mut out)
        .unwrap();
    parser.finish(Finish::Stop, None, &mut out).unwrap();
    let response = Client::of(&events(&out)).response;
    assert_eq!(response["id"], "resp_\"x\"");
    assert_eq!(response["output"][0]["id"], "fc_resp_\"x\"_0");
    assert_eq!(
        (&response["model"], &response["created_at"]),
        (&json!("m"), &json!(1000))
    );
    // By the host's clock, not ours.
    assert!((1000..1060).contains(&response["completed_at"].as_i64().unwrap()));
    assert_eq!(
        response["usage"],
        json!({
            "input_tokens": 9, "input_tokens_details": {"cached_tokens": 4}, "output_tokens": 1,
            "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": 10,
        })
    );
    for (name, value) in [
        ("instructions", json!("Be \"brief\".\n")),
        ("max_output_tokens", json!(77)),
        ("temperature", json!(0.7)),
        ("top_p", json!(0.9)),
        ("top_logprobs", json!(3)),
        ("user", json!("u")),
        ("reasoning", json!({"effort": "none", "summary": "auto"})),
        (
            "text",
            json!({"format": {"type": "json_object"}, "verbosity": "low"}),
        ),
        ("tool_choice", json!({"type": "function", "name": "f"})),
        ("store", json!(false)),
        ("metadata", json!({})),
    ] {
        assert_eq!(response[name], value, "{name}");
    }
    assert_eq!(response["tools"].as_array().unwrap().len(), 1);
    assert_eq!(response["tools"][0]["name"], "f");
}

#[test]
fn a_response_without_a_known_request_has_all_its_keys() {
    let mut bare = options(&json!({}));
    let keys = |response: &Value| -> Vec<String> {
        response.as_object().unwrap().keys().cloned().collect()
    };
    let known = read(&bare, "Hi", Finish::Stop).response;
    bare.response.echo = None;
    let unknown = read(&bare, "Hi", Finish::Stop).response;
    assert_eq!(keys(&known), keys(&unknown));
    assert_eq!(keys(&known).len(), 35);
    assert_eq!(unknown["tool_choice"], "auto");
    assert_eq!(unknown["temperature"], 1.0);
}

#[test]
fn tokens_are_counted_for_the_events_that_carry_them() {
    let options = options(&json!({"tools": [
        {"type": "tool_search", "execution": "client"}, {"type": "custom", "name": "apply_patch"}, function("f"),
    ]}));
    let text = calls(&[
        ("f", &[("a", "b")]),
        ("tool_search", &[("q", "x")]),
        ("apply_patch", &[("input", "p")]),
    ]);
    let text = dsml(&format!("Let me see.{text}"));
    let mut parser = Parser::with(options, None).unwrap();
    let mut out = Output::default();
    for c in text.chars() {
        parser
            .push(&text_chunk(c.encode_utf8(&mut [0; 4])), &mut out)
            .unwrap();
    }
    parser.finish(Finish::Stop, None, &mut out).unwrap();
    let counted: u32 = out.events().map(|event| event.token_count).sum();
    assert_eq!(counted, parser.usage().completion_tokens);
    assert_eq!(counted as usize, text.chars().count());
    let delta =
        |event: &fathom::recipe::stream::Event<'_>| event.data.contains("output_text.delta");
    assert!(
        out.events()
            .filter(delta)
            .all(|event| event.token_count >= 1)
    );
}

#[test]
fn reasoning_that_was_content_is_only_content_in_the_response() {
    let mut options = options(&json!({"reasoning": {"effort": "high"}}));
    options.stream.unterminated_reasoning = UnterminatedReasoning::Content;
    let client = read(&options, "Hello.", Finish::Stop);
    assert_eq!(
        (client.seen.reasoning.as_str(), client.seen.content.as_str()),
        ("Hello.", "Hello.")
    );
    assert_eq!(client.items[0]["content"], json!([]));
    assert_eq!(client.items[1]["content"][0]["text"], "Hello.");
    let client = read(&options, "Hello.", Finish::Length);
    assert_eq!(client.items[0]["content"][0]["text"], "Hello.");
    assert_eq!(client.items.len(), 1);
}

#[test]
fn logprobs_of_a_message_are_repeated_when_it_ends() {
    use crate::support::Tokens;
    let options = options(&json!({"top_logprobs": 1}));
    let mut parser = Parser::with(options, Some(std::sync::Arc::new(Tokens::bytewise()))).unwrap();
    let mut out = Output::default();
    for (id, logprob) in [(72, -0.5), (105, f32::NEG_INFINITY)] {
        let ids = [id];
        let chunk = Chunk {
            logprobs: &[logprob],
            top_tokens: &[id],
            top_logprobs: &[logprob],
            top_count: 1,
            ..id_chunk(&ids)
        };
        parser.push(&chunk, &mut out).unwrap();
    }
    parser.push(&id_chunk(&[33]), &mut out).unwrap();
    parser.finish(Finish::Stop, None, &mut out).unwrap();
    let client = Client::of(&events(&out));
    let entry = |text: &str, logprob: f64| {
        let bytes = text.as_bytes();
        let top = json!({"token": text, "logprob": logprob, "bytes": bytes});
        json!({"token": text, "logprob": logprob, "bytes": bytes, "top_logprobs": [top]})
    };
    let part = &client.items[0]["content"][0];
    assert_eq!(
        part["logprobs"],
        json!([entry("H", -0.5), entry("i", -9999.0)])
    );
    assert_eq!(part["text"], "Hi!");
}

#[test]
fn reasoning_tokens_are_told_where_they_are_known() {
    use crate::support::Tokens;
    let mut options = options(&json!({"reasoning": {"effort": "high"}}));
    let run = |options: &fathom::recipe::stream::ParserOptions, text: &str| {
        let vocabulary = std::sync::Arc::new(Tokens::bytewise());
        let mut parser = Parser::with(options.clone(), Some(vocabulary)).unwrap();
        let mut out = Output::default();
        parser
            .push(&id_chunk(&Tokens::encode(text)), &mut out)
            .unwrap();
        let usage = Usage {
            prompt_tokens: 7,
            cached_tokens: 2,
            ..Usage::default()
        };
        parser.finish(Finish::Stop, Some(&usage), &mut out).unwrap();
        Client::of(&events(&out)).response["usage"].clone()
    };
    let usage = run(&options, "plan</think>ok");
    assert_eq!(usage["output_tokens_details"]["reasoning_tokens"], 4);
    assert_eq!(
        (&usage["input_tokens"], &usage["total_tokens"]),
        (&json!(7), &json!(14))
    );
    options.parsing.thinking_initial_stage = None::<ThinkingStage>;
    let usage = run(&options, "ok");
    assert_eq!(usage["output_tokens_details"]["reasoning_tokens"], 0);
}
