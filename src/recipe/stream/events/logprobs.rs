//! Log-probabilities as Chat Completions and Responses write them.

use super::json::{integer, logarithm, string};
use crate::recipe::stream::answer::Answer;
use crate::recipe::stream::held::Logprob;
use crate::recipe::stream::settings::Vocabulary;

/// Appends the members of an array, without its brackets.
pub(super) fn write_entries(logprobs: &[Logprob], answer: &Answer, into: &mut String) {
    for (at, entry) in logprobs.iter().enumerate() {
        if at > 0 {
            into.push(',');
        }
        write_token(entry.token, entry.logprob, answer, into);
        into.push_str(",\"top_logprobs\":[");
        for (at, (token, logprob)) in entry.top.iter().enumerate() {
            if at > 0 {
                into.push(',');
            }
            write_token(*token, *logprob, answer, into);
            into.push('}');
        }
        into.push_str("]}");
    }
}

/// A token's text, or its bytes in hexadecimal when they are no text; left open for more members.
fn write_token(token: u32, logprob: f32, answer: &Answer, into: &mut String) {
    let vocabulary: Option<&dyn Vocabulary> = answer.vocabulary.as_deref();
    let bytes = vocabulary.and_then(|v| v.bytes(token)).unwrap_or_default();
    into.push_str("{\"token\":");
    match std::str::from_utf8(bytes) {
        Ok(text) => string(text, into),
        Err(_) => {
            let hex: String = bytes.iter().map(|byte| format!("\\x{byte:02x}")).collect();
            string(&hex, into);
        }
    }
    into.push_str(",\"logprob\":");
    logarithm(logprob, into);
    into.push_str(",\"bytes\":[");
    for (at, byte) in bytes.iter().enumerate() {
        if at > 0 {
            into.push(',');
        }
        integer(byte, into);
    }
    into.push(']');
}
