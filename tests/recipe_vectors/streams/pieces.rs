//! The input of a case: what a backend gave, as it was recorded, put together again, and cut anew.

use fathom::recipe::stream::Finish;
use serde_json::Value;

/// One chunk.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Piece {
    Ready {
        prompt_tokens: u32,
        cached_tokens: u32,
        fingerprint: String,
    },
    Text {
        text: String,
        tokens: u32,
    },
    Ids {
        ids: Vec<u32>,
        /// One for each id, or none: its own, and the alternatives.
        logprobs: Vec<(f32, Vec<(u32, f32)>)>,
    },
    Finish(Finish),
}

/// As recorded, and the end of the input.
pub(crate) fn recorded(case: &Value) -> Vec<Piece> {
    let chunks = case["chunks"].as_array().unwrap().iter().map(piece);
    chunks.chain([Piece::Finish(Finish::EndOfStream)]).collect()
}

fn piece(chunk: &Value) -> Piece {
    let number = |name: &str| chunk[name].as_u64().unwrap_or(0) as u32;
    let text = |name: &str| chunk[name].as_str().unwrap_or_default().to_owned();
    match chunk["kind"].as_str().unwrap() {
        "ready" => Piece::Ready {
            prompt_tokens: number("prompt_tokens"),
            cached_tokens: number("prompt_cache_hit_tokens"),
            fingerprint: text("system_fingerprint"),
        },
        "text" => Piece::Text {
            text: text("content"),
            tokens: number("token_count"),
        },
        "tokens" => Piece::Ids {
            ids: serde_json::from_value(chunk["ids"].clone()).unwrap(),
            logprobs: match chunk.get("logprobs") {
                Some(logprobs) => serde_json::from_value(logprobs.clone()).unwrap(),
                None => Vec::new(),
            },
        },
        "finish" => Piece::Finish(match chunk["reason"].as_str().unwrap() {
            "stop" => Finish::Stop,
            "length" => Finish::Length,
            "content_filter" => Finish::ContentFilter,
            other => panic!("reason {other}"),
        }),
        other => panic!("kind {other}"),
    }
}

/// Neighbours of one kind as one; ids that have log-probabilities only join their like.
pub(crate) fn whole(pieces: Vec<Piece>) -> Vec<Piece> {
    let mut all: Vec<Piece> = Vec::new();
    for piece in pieces {
        match (all.last_mut(), piece) {
            (
                Some(Piece::Text { text, tokens }),
                Piece::Text {
                    text: more,
                    tokens: more_tokens,
                },
            ) => {
                text.push_str(&more);
                *tokens += more_tokens;
            }
            (
                Some(Piece::Ids { ids, logprobs }),
                Piece::Ids {
                    ids: more,
                    logprobs: more_logprobs,
                },
            ) if logprobs.is_empty() == more_logprobs.is_empty() => {
                ids.extend(more);
                logprobs.extend(more_logprobs);
            }
            (_, piece) => all.push(piece),
        }
    }
    all
}

/// Cuts text and ids: `length` says how many characters, or ids, the next part has.
pub(crate) fn cut(pieces: &[Piece], mut length: impl FnMut() -> usize) -> Vec<Piece> {
    let mut parts = Vec::new();
    for piece in pieces {
        match piece {
            Piece::Text { text, tokens } => {
                let mut left = *tokens;
                let mut rest = text.as_str();
                loop {
                    let mut ends = rest.char_indices().map(|(at, c)| at + c.len_utf8());
                    let end = ends.nth(length().max(1) - 1).unwrap_or(rest.len());
                    let (part, after) = rest.split_at(end);
                    // As many as there are, one a part, and the rest with the last.
                    let own = if after.is_empty() { left } else { left.min(1) };
                    left -= own;
                    parts.push(Piece::Text {
                        text: part.to_owned(),
                        tokens: own,
                    });
                    rest = after;
                    if rest.is_empty() {
                        break;
                    }
                }
            }
            Piece::Ids { ids, logprobs } => {
                let mut at = 0;
                while at < ids.len() {
                    let end = (at + length().max(1)).min(ids.len());
                    parts.push(Piece::Ids {
                        ids: ids[at..end].to_vec(),
                        logprobs: logprobs.get(at..end).unwrap_or_default().to_vec(),
                    });
                    at = end;
                }
            }
            other => parts.push(other.clone()),
        }
    }
    parts
}

/// A generator of small numbers that is the same everywhere.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// From 0 to below `limit`.
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        // SplitMix64.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (x ^ (x >> 31)) % limit
    }
}
