//! What models get wrong, and what must come of it.

use fathom::recipe::ThinkingStage;
use fathom::recipe::stream::{DeclaredTool, Finish, UnterminatedReasoning};
use serde_json::{Value, json};

use crate::support::{
    PARIS, Tokens, call, dsml, options, read, read_all_ways, run, run_ids, seen, seen_content,
};

/// The arguments of one call of `f` whose body is `body`.
#[track_caller]
fn arguments(body: &str) -> String {
    let text =
        format!("\n\n<D:tool_calls>\n<D:invoke name=\"f\">\n{body}\n</D:invoke>\n</D:tool_calls>");
    let seen = read_all_ways(&options(), &text, Finish::Stop);
    assert_eq!(seen.calls.len(), 1, "{seen:?}");
    assert_eq!(seen.content, "");
    assert_eq!(seen.finish.as_deref(), Some("tool_calls"));
    seen.calls[0].1.clone()
}

#[test]
fn wrappers_of_other_names_and_none_open_calls() {
    for (open, close) in [
        ("<D:toolcalls>", "</D:toolcalls>"),
        ("<D:tool>", "</D:tool>"),
        ("<D: function_calls>", "</D:function_calls>"),
        ("<D:tool_calls", "</D:tool_calls>"),
        ("<D:tool_calls>", ""),
        ("", ""),
        ("", "\n\nAfter."),
        (
            "<D: calls>\n<D:tool_calls>",
            "</D: calls>\n</D: calls></D:invoke>",
        ),
    ] {
        let text = format!("Sure.\n\n{open}\n{PARIS}\n{close}");
        let seen = read_all_ways(&options(), &text, Finish::Stop);
        assert_eq!(seen.calls, [call("f", "{\"c\": \"P\"}")], "{open}");
        assert_eq!(seen.content, "Sure.", "{open}");
        assert_eq!(seen.finish.as_deref(), Some("tool_calls"));
    }
}

#[test]
fn stray_closers_are_dropped_with_their_newlines() {
    let seen = read_all_ways(
        &options(),
        "Answer.\n</D:parameter>\n</D: invoke>\n\n</D:tool_calls>\nMore",
        Finish::Stop,
    );
    assert_eq!(seen.content, "Answer.\nMore");
    let text = format!(
        "<D:tool_calls>{PARIS}</D:tool_calls>{}",
        "</D:invoke>\n</D: calls>".repeat(50)
    );
    let seen = read_all_ways(&options(), &text, Finish::Stop);
    assert_eq!((seen.content.as_str(), seen.calls.len()), ("", 1));
}

#[test]
fn a_call_inside_reasoning_ends_it() {
    let mut options = options();
    options.parsing.thinking_initial_stage = Some(ThinkingStage::ReasoningStart);
    let seen = read_all_ways(
        &options,
        &format!("I must call.\n\n<D:tool_calls>\n{PARIS}</D:tool_calls>"),
        Finish::Stop,
    );
    assert_eq!(seen.reasoning, "I must call.");
    assert_eq!(seen.calls, [call("f", "{\"c\": \"P\"}")]);
}

#[test]
fn reasoning_without_an_end_stays_reasoning_unless_asked_for() {
    let mut options = options();
    options.parsing.thinking_initial_stage = Some(ThinkingStage::ReasoningStart);
    let seen = read_all_ways(&options, "It is 4.", Finish::Stop);
    assert_eq!(
        (seen.reasoning.as_str(), seen.content.as_str()),
        ("It is 4.", "")
    );
    options.stream.unterminated_reasoning = UnterminatedReasoning::Content;
    let (events, parser) = run(&options, &["It is", " 4."], Finish::Stop);
    assert_eq!(seen_content(&events), "It is 4.");
    let response: Value = serde_json::from_str(&parser.response().unwrap()).unwrap();
    assert_eq!(
        response["choices"][0]["message"],
        json!({"role": "assistant", "content": "It is 4.", "reasoning_content": ""})
    );
    let (events, _) = run(&options, &["It is 4."], Finish::Length);
    assert_eq!(
        seen_content(&events),
        "",
        "only when the model meant to stop"
    );
}

#[test]
fn string_values_are_exact() {
    for value in [
        "ls 2>&1",
        "<div></div>",
        "a </parameter>",
        "a </",
        "find /tmp",
        "parameter",
        "a\n",
        "\n\na",
        "</",
        "<",
        "a </b> </ <｜ </x> 1 < 2",
        "line\n\nline",
        "\\n \\u0041",
        " spaced ",
        "<parameter name=\"x\">",
        "</think>x",
    ] {
        let got = arguments(&format!(
            "<D:parameter name=\"v\" string=\"true\">{value}</D:parameter>"
        ));
        let got: Value = serde_json::from_str(&got).unwrap();
        assert_eq!(got, json!({"v": value}));
    }
}

#[test]
fn quoted_tags_inside_a_value_are_its_text() {
    // As text a tag counts only at the beginning of a line.
    let body = "<D:parameter name=\"v\" string=\"true\">use <D:invoke name=\"x\"> and </D:invoke> here</D:parameter>";
    let text = dsml(&format!(
        "<D:tool_calls><D:invoke name=\"f\">{body}</D:invoke></D:tool_calls>"
    ));
    let seen = read(&options(), &text, Finish::Stop);
    let got: Value = serde_json::from_str(&seen.calls[0].1).unwrap();
    assert_eq!(
        got,
        json!({"v": dsml("use <D:invoke name=\"x\"> and </D:invoke> here")})
    );
    // As tokens what is spelled is never a tag, wherever it stands, and a real one always is.
    let mut ids = Tokens::encode(&dsml(
        "<D:tool_calls><D:invoke name=\"f\"><D:parameter name=\"v\" string=\"true\">",
    ));
    ids.extend(
        "\n</｜DSML｜parameter>\n<｜DSML｜invoke name=\"x\">"
            .bytes()
            .map(u32::from),
    );
    ids.extend(Tokens::encode(&dsml("</D:parameter></D:invoke>")));
    let seen = super::support::seen(&run_ids(&options(), &ids, 3, Finish::Stop).0);
    let got: Value = serde_json::from_str(&seen.calls[0].1).unwrap();
    assert_eq!(
        got,
        json!({"v": "\n</｜DSML｜parameter>\n<｜DSML｜invoke name=\"x\">"})
    );
    assert_eq!(seen.calls.len(), 1);
}

#[test]
fn values_are_typed_by_attribute_then_by_content() {
    for (body, expected) in [
        ("<D:parameter name=\"n\">5</D:parameter>", "{\"n\": 5}"),
        ("<parameter name=\"n\">true</D:parameter>", "{\"n\": true}"),
        (
            "<D:parameter string=\"false\" name=\"n\">[1, 2]</D:parameter>",
            "{\"n\": [1, 2]}",
        ),
        (
            "<D:parameter name='n' string='TRUE' x=\"y\" >5</D:parameter>",
            "{\"n\": \"5\"}",
        ),
        (
            "<D:parameter name=\"n\">abc d</D:parameter>",
            "{\"n\": \"abc d\"}",
        ),
        (
            "<D:parameter name=\"n\" string=\"maybe\">abc</D:parameter>",
            "{\"n\": \"abc\"}",
        ),
        (
            "<D:parameter name=\"q\" string=\"a b c\"></D:parameter>",
            "{\"q\": \"a b c\"}",
        ),
        ("<D:parameter name=\"q\" string=\"true\"/>", "{\"q\": \"\"}"),
        (
            "<D:parameter name=\" full \"name\" string=\"true\">x</D:parameter>",
            "{\"full\": \"x\"}",
        ),
        (
            "<D:parameter name=\"n\" string=\"false\"></D:parameter>",
            "{\"n\": \"\"}",
        ),
        (
            "<D:parameter name=\"n\" string=\"false\">[\"a\"] 2>/dev/null</D:parameter>",
            "{\"n\": \"[\\\"a\\\"] 2>/dev/null\"}",
        ),
        (
            "<D:parameter name=\"n\" string=\"false\">True</D:parameter>",
            "{\"n\": \"True\"}",
        ),
        (
            "<D:parameter name=\"n\" string=\"false\">{'k': None}</D:parameter>",
            "{\"n\": \"{'k': None}\"}",
        ),
        (
            "<D:parameter name=\"n\" string=\"false\">\"\\H\"</D:parameter>",
            "{\"n\": \"\\\"\\\\H\\\"\"}",
        ),
        (
            "<D:parameter name=\"n\" string=\"false\">\"\\ud83d\"</D:parameter>",
            "{\"n\": \"\\ud83d\"}",
        ),
        (
            "<D:parameter name=\"n\" string=\"false\">01</D:parameter>",
            "{\"n\": \"01\"}",
        ),
        ("{\"a\": 1, \"b\": \"x\"}", "{\"a\": 1, \"b\": \"x\"}"),
        ("{\"a\": 1", "{}"),
        (
            "{\"a\": 1 }\n<D:parameter name=\"b\" string=\"true\">x</D:parameter>",
            "{\"a\": 1, \"b\": \"x\"}",
        ),
        ("prose", "{}"),
        ("", "{}"),
        ("</think>", "{}"),
    ] {
        assert_eq!(arguments(body), expected, "{body}");
    }
}

#[test]
fn a_value_or_a_call_without_its_close_ends_at_the_next_tag() {
    let text = "<D:tool_calls>\n<D:invoke name=\"f\">\n<D:parameter name=\"a\" string=\"true\">1\n\n<D:parameter name=\"b\" string=\"false\">2\n<D:invoke name=\"g\">\n<D:parameter name=\"c\" string=\"true\">3\n</D:tool_calls>";
    let seen = read_all_ways(&options(), text, Finish::Stop);
    assert_eq!(
        seen.calls,
        [
            call("f", "{\"a\": \"1\\n\", \"b\": 2}"),
            call("g", "{\"c\": \"3\"}")
        ]
    );
}

#[test]
fn one_malformed_call_leaves_the_others_alone() {
    let text = format!(
        "<D:tool_calls>{PARIS}<D:invoke><D:parameter name=\"a\" string=\"true\">x</D:parameter></D:invoke>{PARIS}</D:tool_calls>text"
    );
    let seen = read_all_ways(&options(), &text, Finish::Stop);
    assert_eq!(
        seen.calls,
        [call("f", "{\"c\": \"P\"}"), call("f", "{\"c\": \"P\"}")]
    );
    assert_eq!(seen.content, "");
}

#[test]
fn a_wrapper_parameter_is_unwrapped_when_the_schema_says_so() {
    let mut options = options();
    let tool = |properties: &[&str]| {
        let properties = properties.iter().map(|p| (*p).to_owned()).collect();
        Some(vec![DeclaredTool {
            name: "f".into(),
            properties,
        }])
    };
    let text = |name: &str, string: &str, value: &str, more: &str| {
        format!(
            "<D:tool_calls><D:invoke name=\"f\"><D:parameter name=\"{name}\" string=\"{string}\">{value}</D:parameter>{more}</D:invoke></D:tool_calls>"
        )
    };
    options.tools = tool(&["city", "days"]);
    let more = "<D:parameter name=\"days\" string=\"false\">2</D:parameter>";
    for (text, expected) in [
        (
            text("arguments", "false", "{\"city\": \"P\"}", ""),
            "{\"city\": \"P\"}",
        ),
        (
            text("input", "true", "{\"city\": \"P\"}", more),
            "{\"city\": \"P\", \"days\": 2}",
        ),
        (
            text("input", "false", "\"{\\\"city\\\": 1}\"", ""),
            "{\"city\": 1}",
        ),
        (text("input", "false", "{}", more), "{\"days\": 2}"),
        (
            text("arguments", "false", "{\"town\": \"P\"}", ""),
            "{\"arguments\": {\"town\": \"P\"}}",
        ),
        (text("arguments", "true", "P", ""), "{\"arguments\": \"P\"}"),
        (text("argument", "true", "P", ""), "{\"argument\": \"P\"}"),
    ] {
        let seen = read_all_ways(&options, &text, Finish::Stop);
        assert_eq!(seen.calls, [call("f", expected)], "{text}");
    }
    options.tools = tool(&["arguments"]);
    let declared = text("arguments", "false", "{\"arguments\": 1}", "");
    assert_eq!(
        read_all_ways(&options, &declared, Finish::Stop).calls[0].1,
        "{\"arguments\": {\"arguments\": 1}}"
    );
    options.tools = tool(&[]);
    let unknown = text("input", "false", "{}", "");
    assert_eq!(
        read_all_ways(&options, &unknown, Finish::Stop).calls[0].1,
        "{\"input\": {}}"
    );
}

#[test]
fn other_bars_open_calls_only_for_declared_tools() {
    let text = dsml(&format!("Hm.\n\n<D:tool_calls>\n{PARIS}\n</D:tool_calls>"));
    let mut known = options();
    known.tools = Some(vec![DeclaredTool {
        name: "f".into(),
        properties: Vec::new(),
    }]);
    let mut other = options();
    other.tools = Some(vec![DeclaredTool {
        name: "g".into(),
        properties: Vec::new(),
    }]);
    for bars in ["|DSML|", "||DSML||", "‖DSML‖"] {
        let text = text.replace("｜DSML｜", bars);
        for step in [1, 7, text.len()] {
            let chars: Vec<char> = text.chars().collect();
            let pieces: Vec<String> = chars.chunks(step).map(String::from_iter).collect();
            let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
            let seen = seen(&run(&known, &pieces, Finish::Stop).0);
            assert_eq!(
                (seen.content.as_str(), seen.calls.len()),
                ("Hm.", 1),
                "{bars}"
            );
        }
        // Ordinary tokens that spell such a marker are text.
        let ids = Tokens::encode(&text);
        let seen = seen(&run_ids(&known, &ids, 1, Finish::Stop).0);
        assert_eq!(
            (seen.content, seen.calls.len()),
            (text.clone(), 0),
            "{bars}"
        );
        assert_eq!(read(&other, &text, Finish::Stop).content, text, "{bars}");
        let bare = text.replace("tool_calls>", "x>");
        assert_eq!(read(&known, &bare, Finish::Stop).calls.len(), 1, "{bars}");
    }
    let doubled = text.replace("｜DSML｜", "｜｜DSML｜｜");
    assert_eq!(read_all_ways(&other, &doubled, Finish::Stop).calls.len(), 1);
}

#[test]
fn prose_about_the_markup_is_content() {
    for text in [
        "The `<D:` marker opens a call.",
        "A tag is <D:invoke name=...> with a name.",
        "Write <D:invoke and then the name.\n\n<D:parameter too.",
        "<D:toolset> is no word, nor is <D:tool_calls_x>",
        "\n<D:",
        "use <|DSML|tool_calls> or ‖DSML‖",
        "<D:invoke name=\"\n\nunclosed",
        "a <D:invoke name=\"x",
    ] {
        let text = dsml(text);
        let expected = text.trim_start_matches('\n');
        assert_eq!(
            read_all_ways(&options(), &text, Finish::Stop).content,
            expected
        );
    }
    let mut none = options();
    none.parsing.parse_tool_calls = false;
    let text = dsml(&format!("Example:\n\n<D:tool_calls>{PARIS}</D:tool_calls>"));
    assert_eq!(read_all_ways(&none, &text, Finish::Stop).content, text);
}

#[test]
fn a_doubtful_call_is_given_up_at_the_same_place_in_any_split() {
    let long = "n".repeat(300);
    for (text, expected, calls) in [
        (
            "<D:invoke é me=\"get_w\">\n<D:invoke name=\"get_we".to_owned(),
            "<D:invoke é me=\"get_w\">".to_owned(),
            0,
        ),
        (
            format!("<D:invoke name=\"{long}\">x"),
            format!("<D:invoke name=\"{long}\">x"),
            0,
        ),
        (
            format!("<D:invoke {long} {PARIS}"),
            format!("<D:invoke {long} "),
            1,
        ),
    ] {
        let seen = read_all_ways(&options(), &text, Finish::Length);
        assert_eq!((seen.content, seen.calls.len()), (dsml(&expected), calls));
    }
}

#[test]
fn a_block_without_a_call_keeps_its_text() {
    for (text, expected) in [
        (
            "Ok.\n\n<D:tool_calls>\n</D:tool_calls>\n\nText",
            "Ok.\n\nText",
        ),
        (
            "Ok.\n\n<D:tool_calls>\nI changed\n</D:tool_calls>my mind.",
            "Ok.\nI changed\nmy mind.",
        ),
        (
            "Ok.\n\n<D:tool_calls>\nI changed <D:tool_calls>my</think> mind.",
            "Ok.\nI changed my mind.",
        ),
        ("Ok.\n<D:tool_calls> <D: calls>", "Ok."),
        (
            "<D:tool_calls>a</D:tool_calls>\n<D:tool_calls>b</D:tool_calls>c",
            "abc",
        ),
    ] {
        let seen = read_all_ways(&options(), text, Finish::Stop);
        assert_eq!(
            (seen.content.as_str(), seen.calls.len()),
            (expected, 0),
            "{text}"
        );
        assert_eq!(seen.finish.as_deref(), Some("stop"));
    }
    let mut required = options();
    required.parsing.starts_in_tool_calls = true;
    let seen = read_all_ways(&required, "\nI need more details.", Finish::Stop);
    assert_eq!(seen.content, "\nI need more details.");
    assert_eq!(seen.finish.as_deref(), Some("stop"));
    // What becomes content obeys the stop sequences.
    let mut stops = options();
    stops.parsing.stop_sequences = vec!["END".into()];
    let seen = read_all_ways(
        &stops,
        "<D:tool_calls>one EN<D:tool_calls>D two</D:tool_calls>three",
        Finish::Stop,
    );
    assert_eq!(seen.content, "one ");
}

#[test]
fn the_token_limit_cuts_without_leaking_markup() {
    let lead = "Hi\n\n<D:tool_calls>\n<D:invoke name=\"f\">\n<D:parameter name=\"city\" string=\"true\">Par";
    for (cut, expected) in [
        ("<D:", None),
        ("<D: tool_c", None),
        ("<D:tool_calls>\n<", None),
        ("<D:tool_calls>\n</", None),
        ("<D:tool_calls>\n<D:invoke na", None),
        ("<D:invoke name=\"f", None),
        ("<D:invoke name=\"f\"", Some("")),
        ("<D:invoke name=\"f\"><D:parameter name=\"ci", Some("{\"ci")),
        (
            "<D:invoke name=\"f\"><D:parameter name=\"city\" string=\"tr",
            Some("{\"city\": "),
        ),
        (
            "<D:invoke name=\"f\"><D:parameter name=\"n\" string=\"false\">[1, ",
            Some("{\"n\": [1, "),
        ),
        (
            "<D:invoke name=\"f\"><D:parameter name=\"n\" string=\"false\">12</",
            Some("{\"n\": 12"),
        ),
        (
            "<D:invoke name=\"f\"><D:parameter name=\"n\" string=\"false\">[\"a\"<",
            Some("{\"n\": [\"a\""),
        ),
        (
            "<D:invoke name=\"f\"><D:parameter name=\"n\" string=\"false\">[\"\\\"</",
            Some("{\"n\": [\"\\\"</"),
        ),
        ("<D:invoke name=\"f\">{\"a\": [1]<", Some("{\"a\": [1]")),
        (
            "<D:invoke name=\"f\"><D:parameter name=\"n\">[1, ",
            Some("{\"n\": [1, "),
        ),
        (
            "<D:invoke name=\"f\"><D:parameter name=\"n\">abc",
            Some("{\"n\": \"abc"),
        ),
        (
            "<D:invoke name=\"f\">{\"a\": [1, </D:inv",
            Some("{\"a\": [1, "),
        ),
    ] {
        let seen = read_all_ways(&options(), &format!("Hi\n\n{cut}"), Finish::Length);
        let calls: Vec<_> = expected.into_iter().map(|a| call("f", a)).collect();
        assert_eq!((seen.content.as_str(), seen.calls), ("Hi", calls), "{cut}");
        assert_eq!(seen.finish.as_deref(), Some("length"));
    }
    let close = dsml("</D:parameter>");
    for end in close.char_indices().map(|(at, _)| at).skip(1) {
        let seen = read(&options(), &(dsml(lead) + &close[..end]), Finish::Length);
        let tail = if end < 3 { &close[..end] } else { "" };
        assert_eq!(
            seen.calls,
            [call("f", &format!("{{\"city\": \"Par{tail}"))],
            "{end}"
        );
    }
}

#[test]
fn no_byte_of_an_opener_leaks_wherever_it_is_split() {
    let text = dsml(&format!("Hi\n\n<D:tool_calls>\n{PARIS}\n</D:tool_calls>"));
    for at in text.char_indices().map(|(at, _)| at) {
        let (first, second) = text.split_at(at);
        let (events, _) = run(&options(), &[first, second], Finish::Stop);
        let seen = seen(&events);
        assert_eq!(
            (seen.content.as_str(), seen.calls),
            ("Hi", vec![call("f", "{\"c\": \"P\"}")]),
            "{at}"
        );
    }
}

#[test]
fn stop_sequences_leave_the_markup_of_calls_alone() {
    const TEXT: &str = "Now\n\n<D: calls>\n<D: invoke name=\"f\">\n</D: invoke>\n</D: calls>";
    for stop in [
        "call", "calls>", " calls", "invoke", "name", "\">\n", ">\n<",
    ] {
        let mut options = options();
        options.parsing.stop_sequences = vec![stop.into()];
        let seen = read_all_ways(&options, TEXT, Finish::Stop);
        assert_eq!(seen.content, "Now", "{stop}");
        assert_eq!(seen.calls, [call("f", "{}")], "{stop}");
        assert_eq!(seen.finish.as_deref(), Some("tool_calls"), "{stop}");
        // The same words, where they are none of a tag.
        let seen = read_all_ways(&options, &format!("a <D: b {stop} c"), Finish::Stop);
        assert_eq!(seen.content, dsml("a <D: b "), "{stop}");
    }
    // What ends before the marker does comes first.
    let mut options = options();
    options.parsing.stop_sequences = vec!["\n<".into()];
    let seen = read_all_ways(&options, TEXT, Finish::Stop);
    assert_eq!((seen.content.as_str(), seen.calls.len()), ("Now\n", 0));
}

#[test]
fn stop_sequences_leave_reasoning_and_arguments_alone() {
    let mut options = options();
    options.parsing.stop_sequences = vec!["END".into()];
    options.parsing.thinking_initial_stage = Some(ThinkingStage::ReasoningStart);
    let text = "END</think>a\n\n<D:tool_calls><D:invoke name=\"f\"><D:parameter name=\"a\" string=\"true\">END</D:parameter></D:invoke></D:tool_calls>END";
    let seen = read_all_ways(&options, text, Finish::Stop);
    assert_eq!(
        (seen.reasoning.as_str(), seen.content.as_str()),
        ("END", "a")
    );
    assert_eq!(seen.calls, [call("f", "{\"a\": \"END\"}")]);
}

#[test]
fn a_cut_character_is_replaced_only_before_a_special_token() {
    let mut ids: Vec<u32> = "🤭".bytes().map(u32::from).collect();
    let whole = [ids.clone(), Tokens::encode("</think>x")].concat();
    ids.truncate(2);
    let cut = [ids.clone(), Tokens::encode("</think>x")].concat();
    for step in 1..6 {
        let text = |ids: &[u32]| seen(&run_ids(&options(), ids, step, Finish::Stop).0).content;
        assert_eq!(text(&whole), "🤭x");
        assert_eq!(text(&cut), "\u{FFFD}x");
        assert_eq!(text(&ids), "");
    }
}
