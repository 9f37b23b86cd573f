//! Thirty outputs that public parsers of this markup got wrong, and what is right. The numbers are those of the list
//! they were collected in; each is read in both dialects, as text and as ids, whole and piece by piece.

use fathom::recipe::ThinkingStage;
use fathom::recipe::stream::{
    DeclaredTool, Finish, Output, Parser, ParserOptions, UnterminatedReasoning,
};
use serde_json::{Value, json};

use crate::support::{
    PARIS, Seen, Tokens, call, data, dsml, options, read_all_ways, run, run_ids, seen,
    seen_content, text_chunk,
};

/// The text in the dialect of V4, where `D:` is the marker, and in that of V4.1.
fn dialects(text: &str) -> [String; 2] {
    let spaced = text.replace("<D:", "<D: ").replace("</D:", "</D: ");
    [text.to_owned(), spaced.replace("tool_calls", "calls")]
}

/// Reads the output in every way, which must agree.
#[track_caller]
fn read(options: &ParserOptions, text: &str, finish: Finish) -> Seen {
    let seen = read_all_ways(options, text, finish);
    let ids = Tokens::encode(&dsml(text));
    let whole = run_ids(options, &ids, ids.len().max(1), finish).0;
    assert_eq!(crate::support::seen(&whole), seen, "all ids at once");
    seen
}

/// Both dialects give this content and these calls.
#[track_caller]
fn expect(text: &str, content: &str, calls: &[(&str, &str)]) {
    expect_of(&options(), text, content, calls);
}

#[track_caller]
fn expect_of(options: &ParserOptions, text: &str, content: &str, calls: &[(&str, &str)]) {
    for (text, content) in dialects(text).iter().zip(dialects(content)) {
        let wanted = Seen {
            reasoning: String::new(),
            content: dsml(&content),
            calls: calls
                .iter()
                .map(|(name, arguments)| call(name, arguments))
                .collect(),
            finish: Some(
                if calls.is_empty() {
                    "stop"
                } else {
                    "tool_calls"
                }
                .into(),
            ),
        };
        assert_eq!(read(options, text, Finish::Stop), wanted, "{text}");
    }
}

/// A block with one call of `f` that has this body.
fn block(body: &str) -> String {
    format!("\n\n<D:tool_calls>\n<D:invoke name=\"f\">\n{body}\n</D:invoke>\n</D:tool_calls>")
}

/// A call with this body has these arguments.
#[track_caller]
fn expect_arguments(body: &str, arguments: &str) {
    expect(&block(body), "", &[("f", arguments)]);
}

fn thinking() -> ParserOptions {
    let mut options = options();
    options.parsing.thinking_initial_stage = Some(ThinkingStage::ReasoningStart);
    options
}

fn declares(name: &str, properties: &[&str]) -> ParserOptions {
    let mut options = options();
    options.tools = Some(vec![DeclaredTool {
        name: name.into(),
        properties: properties.iter().map(|&name| name.into()).collect(),
    }]);
    options
}

const CITY: (&str, &str) = ("f", "{\"c\": \"P\"}");

#[test]
fn failure_01_an_opener_split_anywhere() {
    for text in dialects(&format!("Hi\n\n<D:tool_calls>\n{PARIS}\n</D:tool_calls>")) {
        let text = dsml(&text);
        let right = |events: &[Value]| {
            let seen = seen(events);
            assert_eq!(
                (seen.content.as_str(), seen.calls),
                ("Hi", vec![call(CITY.0, CITY.1)])
            );
        };
        for at in text.char_indices().map(|(at, _)| at) {
            let (first, second) = text.split_at(at);
            let mut parser = Parser::with(options(), None).unwrap();
            let mut out = Output::default();
            parser.push(&text_chunk(first), &mut out).unwrap();
            let early = seen_content(&data(&out));
            assert!("Hi".starts_with(&early), "{early:?} of {first:?}");
            parser.push(&text_chunk(second), &mut out).unwrap();
            parser.finish(Finish::Stop, None, &mut out).unwrap();
            right(&data(&out));
        }
        let ids = Tokens::encode(&text);
        for step in 1..=ids.len() {
            right(&run_ids(&options(), &ids, step, Finish::Stop).0);
        }
    }
}

#[test]
fn failure_02_wrappers_of_other_names() {
    for (open, close) in [
        ("<D:toolcalls>", "</D:toolcalls>"),
        ("<D:tool>", "</D:tool>"),
        ("<D:function_calls>", "</D:function_calls>"),
        ("<D:tool_calls", "</D:tool_calls>"),
        (
            "<D:tool_calls>\n<D:tool_calls>",
            "</D:tool_calls>\n</D:tool_calls></D:invoke>",
        ),
        ("<D:tool>", "</D:tool_calls>"),
    ] {
        expect(
            &format!("Sure.\n\n{open}\n{PARIS}\n{close}"),
            "Sure.",
            &[CITY],
        );
    }
}

#[test]
fn failure_03_a_call_without_a_wrapper() {
    expect(&format!("Sure.\n\n{PARIS}"), "Sure.", &[CITY]);
    expect(&format!("Sure.\n\n{PARIS}\n\nAfter."), "Sure.", &[CITY]);
    expect(&format!("{PARIS}\n{PARIS}"), "", &[CITY, CITY]);
}

#[test]
fn failure_04_a_wrapper_that_never_closes() {
    expect(
        &format!("Sure.\n\n<D:tool_calls>\n{PARIS}\n"),
        "Sure.",
        &[CITY],
    );
    expect(
        &format!("<D:tool_calls>\n{PARIS}{PARIS}"),
        "",
        &[CITY, CITY],
    );
}

#[test]
fn failure_05_stray_closing_tags() {
    let closers = "</D:parameter></D:invoke></D:tool_calls>";
    expect(&format!("Answer.{closers}"), "Answer.", &[]);
    expect(
        "Answer.\n</D:parameter>\n</D:invoke>\n\n</D:tool_calls>\nMore",
        "Answer.\nMore",
        &[],
    );
    let text = format!("Ok.\n\n<D:tool_calls>\n{PARIS}\n</D:tool_calls>\n{closers}");
    expect(&text, "Ok.", &[CITY]);
}

#[test]
fn failure_06_a_call_inside_reasoning() {
    for text in dialects(&format!(
        "I must call.\n\n<D:tool_calls>\n{PARIS}\n</D:tool_calls>"
    )) {
        let seen = read(&thinking(), &text, Finish::Stop);
        assert_eq!(
            (seen.reasoning.as_str(), seen.content.as_str()),
            ("I must call.", "")
        );
        assert_eq!(seen.calls, [call(CITY.0, CITY.1)]);
        assert_eq!(seen.finish.as_deref(), Some("tool_calls"));
    }
}

#[test]
fn failure_07_reasoning_that_never_ends() {
    let mut options = thinking();
    let seen = read(&options, "It is 4.", Finish::Stop);
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

/// A string value comes out as it stands.
#[track_caller]
fn expect_exact(value: &str) {
    for text in dialects(&block(&format!(
        "<D:parameter name=\"v\" string=\"true\">{value}</D:parameter>"
    ))) {
        let seen = read(&options(), &text, Finish::Stop);
        let arguments: Value = serde_json::from_str(&seen.calls[0].1).unwrap();
        assert_eq!((arguments, seen.calls.len()), (json!({"v": value}), 1));
    }
}

#[test]
fn failure_08_values_that_end_like_markup() {
    for value in [
        "ls 2>&1",
        "<div></div>",
        "a </parameter>",
        "a </",
        "</",
        "<",
        "a\n",
        "\n\na",
        "a </b> </ <｜ </x> 1 < 2",
        "line\n\nline",
        "\\n \\u0041",
        " spaced ",
        "<parameter name=\"x\">",
        "</think>x",
    ] {
        expect_exact(value);
    }
}

#[test]
fn failure_09_values_that_end_in_letters_of_the_tag() {
    for value in [
        "find /tmp",
        "parameter",
        "a parameter>",
        "/",
        "retemarap",
        "invoke",
        "r",
    ] {
        expect_exact(value);
    }
}

#[test]
fn failure_10_a_closing_tag_in_pieces() {
    for text in dialects(
        "<D:tool_calls>\n<D:invoke name=\"f\">\n<D:parameter name=\"v\" string=\"true\">x</D:parameter>",
    ) {
        let text = dsml(&text);
        let value = text.find("x</").unwrap() + 1;
        for at in text
            .char_indices()
            .map(|(at, _)| at)
            .filter(|&at| at >= value)
        {
            let mut parser = Parser::with(options(), None).unwrap();
            let mut out = Output::default();
            parser.push(&text_chunk(&text[..at]), &mut out).unwrap();
            assert_eq!(seen(&data(&out)).calls, [call("f", "{\"v\": \"x")], "{at}");
            parser.push(&text_chunk(&text[at..]), &mut out).unwrap();
            assert_eq!(
                seen(&data(&out)).calls,
                [call("f", "{\"v\": \"x\"")],
                "{at}"
            );
        }
    }
}

#[test]
fn failure_11_no_string_attribute() {
    expect_arguments("<D:parameter name=\"n\">5</D:parameter>", "{\"n\": 5}");
    expect_arguments(
        "<D:parameter name=\"n\">abc d</D:parameter>",
        "{\"n\": \"abc d\"}",
    );
    expect_arguments(
        "<D:parameter name=\"n\" string=\"maybe\">abc</D:parameter>",
        "{\"n\": \"abc\"}",
    );
    // Any order, quotes, case and blanks.
    expect_arguments(
        "<D:parameter string=\"false\" name=\"n\">[1, 2]</D:parameter>",
        "{\"n\": [1, 2]}",
    );
    expect_arguments(
        "<D:parameter name='n' string='TRUE' x=\"y\" >5</D:parameter>",
        "{\"n\": \"5\"}",
    );
}

#[test]
fn failure_12_a_parameter_that_lost_its_marker() {
    expect_arguments(
        "<parameter name=\"enabled\">true</D:parameter>",
        "{\"enabled\": true}",
    );
    expect_arguments(
        "<D:parameter name=\"a\" string=\"true\">x</D:parameter>\n<parameter name=\"b\">[]</D:parameter>",
        "{\"a\": \"x\", \"b\": []}",
    );
}

#[test]
fn failure_13_an_array_and_the_shell_behind_it() {
    expect_arguments(
        "<D:parameter name=\"n\" string=\"false\">[\"a\"] 2>/dev/null</D:parameter>",
        "{\"n\": \"[\\\"a\\\"] 2>/dev/null\"}",
    );
}

#[test]
fn failure_14_python_instead_of_json() {
    for (value, string) in [
        ("True", "True"),
        ("None", "None"),
        ("{'k': None}", "{'k': None}"),
        ("'x'", "'x'"),
        ("NaN", "NaN"),
        ("01", "01"),
        ("[1,]", "[1,]"),
        ("", ""),
    ] {
        expect_arguments(
            &format!("<D:parameter name=\"n\" string=\"false\">{value}</D:parameter>"),
            &format!("{{\"n\": \"{string}\"}}"),
        );
    }
}

#[test]
fn failure_15_an_invalid_escape() {
    expect_arguments(
        "<D:parameter name=\"n\" string=\"false\">\"\\H\"</D:parameter>",
        "{\"n\": \"\\\"\\\\H\\\"\"}",
    );
    // A lone surrogate is JSON, and stays as it is.
    expect_arguments(
        "<D:parameter name=\"n\" string=\"false\">\"\\ud83d\"</D:parameter>",
        "{\"n\": \"\\ud83d\"}",
    );
}

#[test]
fn failure_16_all_arguments_in_one_parameter() {
    let parameter = |name: &str, string: bool, value: &str| {
        format!("<D:parameter name=\"{name}\" string=\"{string}\">{value}</D:parameter>")
    };
    let more = parameter("days", false, "2");
    let with_more = |lead: String| lead + &more;
    let known = declares("f", &["city", "days"]);
    for (body, expected) in [
        (
            parameter("arguments", false, "{\"city\": \"P\"}"),
            "{\"city\": \"P\"}",
        ),
        (
            with_more(parameter("input", true, "{\"city\": \"P\"}")),
            "{\"city\": \"P\", \"days\": 2}",
        ),
        (
            parameter("input", false, "\"{\\\"city\\\": 1}\""),
            "{\"city\": 1}",
        ),
        (with_more(parameter("input", false, "{}")), "{\"days\": 2}"),
        (
            parameter("arguments", false, "{\"town\": \"P\"}"),
            "{\"arguments\": {\"town\": \"P\"}}",
        ),
        (parameter("arguments", true, "P"), "{\"arguments\": \"P\"}"),
        (parameter("argument", true, "P"), "{\"argument\": \"P\"}"),
    ] {
        expect_of(&known, &block(&body), "", &[("f", expected)]);
    }
    let body = block(&parameter("arguments", false, "{\"arguments\": 1}"));
    let kept = "{\"arguments\": {\"arguments\": 1}}";
    expect_of(&declares("f", &["arguments"]), &body, "", &[("f", kept)]);
    let body = block(&parameter("input", false, "{}"));
    expect_of(&declares("f", &[]), &body, "", &[("f", "{\"input\": {}}")]);
}

#[test]
fn failure_17_an_object_instead_of_parameters() {
    expect_arguments("{\"a\": 1, \"b\": \"x\"}", "{\"a\": 1, \"b\": \"x\"}");
    expect_arguments("{\"a\": {\"b\":[ ]}}", "{\"a\": {\"b\":[ ]}}");
    expect_arguments("{\"a\": 1", "{}");
    expect_arguments(
        "{\"a\": 1 }\n<D:parameter name=\"b\" string=\"true\">x</D:parameter>",
        "{\"a\": 1, \"b\": \"x\"}",
    );
}

#[test]
fn failure_18_other_bars() {
    let text = dsml(&format!("Hm.\n\n<D:tool_calls>\n{PARIS}\n</D:tool_calls>"));
    let (known, other) = (declares("f", &[]), declares("g", &[]));
    for dialect in ["", " "] {
        let text = text.replace("｜DSML｜", &format!("｜DSML｜{dialect}"));
        for bars in ["|DSML|", "||DSML||", "‖DSML‖"] {
            let text = text.replace("｜DSML｜", bars);
            for step in [1, 7, text.len()] {
                let chars: Vec<char> = text.chars().collect();
                let pieces: Vec<String> = chars.chunks(step).map(String::from_iter).collect();
                let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
                let seen = seen(&run(&known, &pieces, Finish::Stop).0);
                assert_eq!(
                    (seen.content.as_str(), seen.calls),
                    ("Hm.", vec![call(CITY.0, CITY.1)])
                );
            }
            // Ordinary tokens that spell such a marker are text, and so is a call of an unknown tool.
            let ids = Tokens::encode(&text);
            let spelled = seen(&run_ids(&known, &ids, 1, Finish::Stop).0);
            assert_eq!(
                (&spelled.content, spelled.calls.len()),
                (&text, 0),
                "{bars}"
            );
            let unknown = seen(&run(&other, &[&text], Finish::Stop).0);
            assert_eq!(
                (&unknown.content, unknown.calls.len()),
                (&text, 0),
                "{bars}"
            );
            let bare = text.replace("tool_calls>", "x>");
            assert_eq!(
                seen(&run(&known, &[&bare], Finish::Stop).0).calls.len(),
                1,
                "{bars}"
            );
        }
        let doubled = text.replace("｜DSML｜", "｜｜DSML｜｜");
        assert_eq!(read(&other, &doubled, Finish::Stop).calls.len(), 1);
    }
}

#[test]
fn failure_19_prose_about_the_markup() {
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
        expect(text, text.trim_start_matches('\n'), &[]);
    }
}

#[test]
fn failure_20_markup_where_no_tools_are_declared() {
    let mut none = options();
    none.parsing.parse_tool_calls = false;
    let text = format!("Example:\n\n<D:tool_calls>{PARIS}</D:tool_calls>");
    expect_of(&none, &text, &text, &[]);
}

#[test]
fn failure_21_a_block_without_a_call() {
    for (text, content) in [
        (
            "Ok.\n\n<D:tool_calls>\n</D:tool_calls>\n\nText",
            "Ok.\n\nText",
        ),
        ("<D:tool_calls></D:tool_calls>Text", "Text"),
        (
            "Ok.\n\n<D:tool_calls>\nI changed\n</D:tool_calls>my mind.",
            "Ok.\nI changed\nmy mind.",
        ),
        (
            "Ok.\n\n<D:tool_calls>\nI changed <D:tool_calls>my</think> mind.",
            "Ok.\nI changed my mind.",
        ),
        ("Ok.\n<D:tool_calls> <D:tool_calls>", "Ok."),
        (
            "<D:tool_calls>a</D:tool_calls>\n<D:tool_calls>b</D:tool_calls>c",
            "abc",
        ),
    ] {
        expect(text, content, &[]);
    }
    let mut required = options();
    required.parsing.starts_in_tool_calls = true;
    let text = "\nI need more details.";
    expect_of(&required, text, text, &[]);
    // What becomes content obeys the stop sequences.
    let mut stops = options();
    stops.parsing.stop_sequences = vec!["END".into()];
    let text = "<D:tool_calls>one EN<D:tool_calls>D two</D:tool_calls>three";
    expect_of(&stops, text, "one ", &[]);
}

#[test]
fn failure_22_text_behind_the_calls() {
    let text =
        format!("Ok.\n\n<D:tool_calls>\n{PARIS}\nbetween\n{PARIS}\n</D:tool_calls>\n\nDone!");
    expect(&text, "Ok.", &[CITY, CITY]);
}

#[test]
fn failure_23_a_call_without_arguments() {
    for body in [
        "<D:invoke name=\"f\">\n</D:invoke>",
        "<D:invoke name=\"f\"></D:invoke>",
        "<D:invoke name=\"f\"/>",
    ] {
        expect(
            &format!("<D:tool_calls>\n{body}\n</D:tool_calls>"),
            "",
            &[("f", "{}")],
        );
        for text in dialects(&format!("<D:tool_calls>\n{body}\n</D:tool_calls>")) {
            let text = dsml(&text);
            let chars: Vec<String> = text.chars().map(String::from).collect();
            let chars: Vec<&str> = chars.iter().map(String::as_str).collect();
            for pieces in [&[text.as_str()][..], &chars] {
                let (events, _) = run(&options(), pieces, Finish::Stop);
                let arguments = events.iter().filter_map(|event| {
                    let function = &event["choices"][0]["delta"]["tool_calls"][0]["function"];
                    function["arguments"]
                        .as_str()
                        .filter(|text| !text.is_empty())
                });
                assert_eq!(arguments.collect::<Vec<_>>(), ["{}"], "once");
            }
        }
    }
    expect_arguments("prose", "{}");
}

#[test]
fn failure_24_one_malformed_call_among_others() {
    let nameless = "<D:invoke><D:parameter name=\"a\" string=\"true\">x</D:parameter></D:invoke>";
    let text = format!("<D:tool_calls>{PARIS}{nameless}{PARIS}</D:tool_calls>text");
    expect(&text, "", &[CITY, CITY]);
    let unclosed = "<D:invoke name=\"g\">\n<D:parameter name=\"a\" string=\"true\">x\n";
    let text = format!("<D:tool_calls>\n{PARIS}\n{unclosed}{PARIS}\n</D:tool_calls>");
    expect(&text, "", &[CITY, ("g", "{\"a\": \"x\"}"), CITY]);
}

#[test]
fn failure_25_more_than_one_end_of_reasoning() {
    let seen = read(
        &thinking(),
        "plan</think></think>\nok</think>ay",
        Finish::Stop,
    );
    assert_eq!(
        (seen.reasoning.as_str(), seen.content.as_str()),
        ("plan", "\nokay")
    );
    let text = format!("<D:tool_calls></think>\n{PARIS}</think>\n</D:tool_calls></think>");
    expect(&text, "", &[CITY]);
    expect_arguments("</think>", "{}");
}

#[test]
fn failure_26_the_token_limit_cuts_markup() {
    let lead = "Hi\n\n<D:tool_calls>\n<D:invoke name=\"f\">\n<D:parameter name=\"city\" string=\"true\">Par";
    for (cut, arguments) in [
        ("<D:", None),
        ("<D:tool", None),
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
        for cut in dialects(cut) {
            let seen = read(&options(), &format!("Hi\n\n{cut}"), Finish::Length);
            let calls: Vec<_> = arguments.into_iter().map(|a| call("f", a)).collect();
            assert_eq!((seen.content.as_str(), seen.calls), ("Hi", calls), "{cut}");
            assert_eq!(seen.finish.as_deref(), Some("length"));
        }
    }
    for (lead, close) in dialects(lead).iter().zip(dialects("</D:parameter>")) {
        let close = dsml(&close);
        for end in close.char_indices().map(|(at, _)| at).skip(1) {
            let seen = seen(&run(&options(), &[&dsml(lead), &close[..end]], Finish::Length).0);
            let tail = if end < 3 { &close[..end] } else { "" };
            assert_eq!(
                seen.calls,
                [call("f", &format!("{{\"city\": \"Par{tail}"))],
                "{end}"
            );
        }
    }
}

#[test]
fn failure_27_a_stop_sequence_in_reasoning_or_arguments() {
    let mut options = thinking();
    options.parsing.stop_sequences = vec!["END".into()];
    let text = "END</think>a\n\n<D:tool_calls><D:invoke name=\"f\"><D:parameter name=\"a\" string=\"true\">END</D:parameter></D:invoke></D:tool_calls>END";
    for text in dialects(text) {
        let seen = read(&options, &text, Finish::Stop);
        assert_eq!(
            (seen.reasoning.as_str(), seen.content.as_str()),
            ("END", "a")
        );
        assert_eq!(seen.calls, [call("f", "{\"a\": \"END\"}")]);
        assert_eq!(seen.finish.as_deref(), Some("tool_calls"));
    }
}

#[test]
fn failure_28_a_character_split_before_a_special_token() {
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

#[test]
fn failure_29_the_value_inside_the_attribute() {
    expect_arguments(
        "<D:parameter name=\"q\" string=\"a b c\"></D:parameter>",
        "{\"q\": \"a b c\"}",
    );
    expect_arguments(
        "<D:parameter name=\"q\" string=\"a b c\">",
        "{\"q\": \"a b c\"}",
    );
    expect_arguments("<D:parameter name=\"q\" string=\"true\"/>", "{\"q\": \"\"}");
}

#[test]
fn failure_30_closing_tags_without_an_end() {
    let loops = "</D:invoke>\n</D:tool_calls>\n".repeat(50);
    expect(
        &format!("<D:tool_calls>{PARIS}</D:tool_calls>{loops}"),
        "",
        &[CITY],
    );
    expect(&format!("Answer.{loops}"), "Answer.\n", &[]);
}
