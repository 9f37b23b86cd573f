//! One output in every chunking gives the same events, through C.

use std::sync::Arc;

use fathom::recipe::Protocol;
use fathom::recipe::stream::Recovery;
use fathom::recipe::tokenizer::Tokenizer;
use serde_json::{Value, json};

use super::compare::{Ran, merged, remove};
use super::pieces::{Piece, Random, cut, recorded, whole};
use super::readers::InC;
use super::{Recipes, cases, check_all, only_in_rust, prepared, protocol, run};

/// The events of a run as far as the chunks may not change them. In strict mode the reference's dependence on
/// chunks is reproduced: which tokens of a chunk are counted and reported.
pub(super) fn comparable(case: &Value, ran: &Ran, recovery: Recovery) -> Value {
    let events = ran.events.iter().map(|(_, (_, data))| data.clone());
    let mut events = json!(merged(protocol(case), events));
    let mut response = ran.response.clone();
    let stops = case["options"]["stop_sequences"].as_array().unwrap();
    for value in [&mut events, &mut response] {
        if recovery == Recovery::Strict {
            remove(value, &["usage", "logprobs"]);
        } else if !stops.is_empty() {
            // A stop sequence ends the count with the chunk it is in.
            remove(value, &["usage"]);
        }
    }
    json!({"events": events, "response": response, "error": ran.error.as_ref().map(|error| &error.1)})
}

/// Where even the merged events depend on the chunks: blanks for noise around JSON, and broken characters.
pub(super) fn depends_on_chunks(case: &Value, recovery: Recovery) -> bool {
    if recovery == Recovery::Robust {
        return false;
    }
    let has_ids = case["tokenizer"] == true;
    case["options"]["parse_json_output"] == true || has_ids
}

/// Text cut where a tokenizer would, as a backend that decodes each token gives it.
fn by_tokens(pieces: &[Piece], tokenizer: &Tokenizer) -> Vec<Piece> {
    let mut lengths = Vec::new();
    for piece in pieces {
        let Piece::Text { text, .. } = piece else {
            continue;
        };
        let ids = tokenizer.encode_allow_special(text).unwrap();
        let mut waiting = Vec::new();
        for id in ids {
            waiting.extend_from_slice(tokenizer.token_bytes(id).unwrap());
            if let Ok(text) = std::str::from_utf8(&waiting) {
                lengths.push(text.chars().count());
                waiting.clear();
            }
        }
    }
    let mut lengths = lengths.into_iter();
    cut(pieces, || lengths.next().unwrap_or(1))
}

#[test]
fn every_chunking_gives_the_same_events() {
    let recipes = Recipes::open();
    let mut compared = 0;
    for recovery in [Recovery::Robust, Recovery::Strict] {
        check_all(recovery, |case| {
            // A case with a base is its base in other chunks; those that C cannot say stay as they are.
            if cases().base(case).is_some()
                || only_in_rust(case)
                || depends_on_chunks(case, recovery)
            {
                return Ok(());
            }
            let request = recipes.prepare(case, recovery);
            let run = |pieces: &[Piece]| {
                let ran = run(InC::new(&request), case, pieces);
                comparable(case, &ran, recovery)
            };
            let pieces = whole(recorded(case));
            let wanted = run(&pieces);
            let tokenizer: Arc<Tokenizer> = {
                let mut with = case.clone();
                with["tokenizer"] = json!(true);
                with["id"] = json!("any");
                prepared(&with, recovery).tokenizer.clone().unwrap()
            };
            let mut random = Random::new(7);
            let chunkings = [
                ("one by one", cut(&pieces, || 1)),
                ("by tokens", by_tokens(&pieces, &tokenizer)),
                ("batched", cut(&pieces, || 1 + random.below(6) as usize)),
                ("random", cut(&pieces, || 1 + random.below(9) as usize)),
                ("long", cut(&pieces, || 1 + random.below(40) as usize)),
            ];
            for (name, pieces) in chunkings {
                let ours = run(&pieces);
                compared += 1;
                if ours != wanted {
                    return Err(format!("{name}\n  ours {ours}\n  want {wanted}"));
                }
            }
            Ok(())
        });
    }
    assert!(compared > 3_000, "{compared} chunkings");
    // All protocols are among them.
    let all = [
        Protocol::ChatCompletions,
        Protocol::Responses,
        Protocol::Messages,
    ];
    for wanted in all {
        assert!(cases().all.iter().any(|case| protocol(case) == wanted));
    }
}
