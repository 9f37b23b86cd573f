//! The outputs recorded for Chat Completions mean the same without a wire protocol.

use fathom::recipe::Protocol;
use fathom::recipe::stream::Recovery;
use serde_json::{Value, json};

use super::pieces::recorded;
use super::readers::InRust;
use super::{cases, prepared, protocol, run};
use crate::recipe_support::client::{of_chat, seen_neutral, seen_neutral_response};

fn check_summaries(recovery: Recovery) -> usize {
    let mut checked = 0;
    for case in &cases().all {
        let diverges = case.get("divergence").is_some() && recovery == Recovery::Robust;
        if protocol(case) != Protocol::ChatCompletions || diverges {
            continue;
        }
        checked += 1;
        let id = &case["id"];
        let request = prepared(case, recovery);
        let reader = InRust::new(&request, recovery, Protocol::Conversation);
        let ran = run(reader, case, &recorded(case));
        let events = ran
            .events
            .iter()
            .map(|(_, (name, data))| (name.as_deref().unwrap(), data));
        let seen = seen_neutral(events);
        let summary = &case["summary"];
        let calls: Vec<Value> = seen
            .calls
            .iter()
            .map(|(name, arguments)| json!({"name": name, "arguments": arguments}))
            .collect();
        assert_eq!(json!(calls), summary["tool_calls"], "{id}");
        assert_eq!(seen.content, summary["content"], "{id}");
        assert_eq!(ran.response["reasoning"], summary["reasoning"], "{id}");
        let finish = seen.finish.as_deref().map(of_chat);
        assert_eq!(finish, summary["finish"].as_str(), "{id}");
        assert_eq!(seen_neutral_response(&ran.response), seen, "{id}");
        // The identity of calls is the one that Chat Completions would give.
        let wanted = &case["final_response"]["choices"][0]["message"]["tool_calls"];
        let wanted = wanted.as_array().into_iter().flatten();
        let made = ran.response["tool_calls"].as_array().unwrap().iter();
        for (ours, theirs) in made.zip(wanted) {
            assert_eq!(ours["id"], theirs["id"], "{id}");
        }
    }
    checked
}

#[test]
fn recorded_outputs_mean_the_same_without_a_wire_protocol() {
    assert_eq!(check_summaries(Recovery::Strict), 557);
    assert_eq!(check_summaries(Recovery::Robust), 418);
}
