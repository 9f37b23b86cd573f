//! What models get wrong besides the outputs of [`super::failures`], and what must come of it.

use fathom::recipe::ThinkingStage;
use fathom::recipe::stream::{Finish, Recovery};
use serde_json::{Value, json};

use crate::support::{
    PARIS, Tokens, call, dsml, options, read, read_all_ways, run_ids, seen_content,
};

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

/// The reference, found by comparing random outputs with it.
#[test]
fn strict_recovery_has_the_flaws_of_the_reference_and_no_others() {
    let mut strict = options();
    strict.stream.recovery = Recovery::Strict;
    // A newline behind the beginning of one marker may still belong to another.
    let text = dsml("</\n<D:");
    assert_eq!(read(&strict, &text, Finish::Stop).content, "</");
    assert_eq!(read(&strict, "<\n</think>", Finish::Stop).content, "<\n");
    let mut thinking = strict.clone();
    thinking.parsing.thinking_initial_stage = Some(ThinkingStage::ReasoningStart);
    assert_eq!(read(&thinking, &text, Finish::Stop).reasoning, "</");
    let mixed = dsml("x</\n</think>y");
    assert_eq!(read(&thinking, &mixed, Finish::Stop).reasoning, "x</\n");
    // Noise around JSON is one blank for what stands before a stray marker, and one for what stands behind it.
    let mut json = strict.clone();
    json.parsing.parse_json_output = true;
    assert_eq!(read(&json, "a</think>b", Finish::Stop).content, "  ");
    assert_eq!(read(&json, "a</think>", Finish::Stop).content, " ");
    // Ordinary tokens that spell a special one match a stop sequence that does.
    strict.parsing.stop_sequences = vec!["</think>".into()];
    let spelled: Vec<u32> = "a</think>b".bytes().map(u32::from).collect();
    let (events, _) = run_ids(&strict, &spelled, 3, Finish::Stop);
    assert_eq!(seen_content(&events), "a");
}
