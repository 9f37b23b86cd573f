//! What the specification says of a whole request, with nothing but the logits of the canary: every token looks at
//! all tokens before it anew.

use fathom::engine::Request;
use fathom::engine::request::{FinishReason, LogprobSource, Logprobs};

use crate::twin::{Empty, Told, choose};

/// Mass of what is not more probable than `token`.
pub(crate) fn tail(values: &[f64], token: u32) -> f64 {
    let own = values[token as usize];
    (0..values.len())
        .filter(|v| values[*v] < own || (values[*v] == own && *v <= token as usize))
        .map(|v| values[v].exp())
        .sum()
}

/// A request from its first token to its end.
#[derive(Clone, Debug)]
pub(crate) struct Run {
    /// All tokens that were chosen.
    pub(crate) tokens: Vec<u32>,
    pub(crate) told: Vec<Told>,
    pub(crate) reason: &'static str,
    /// How often `min_tokens` gave way.
    pub(crate) ignored: usize,
    /// The stop string that was found.
    pub(crate) stop: Option<String>,
    /// The output as text, where there are stop strings.
    pub(crate) text: Vec<u8>,
}

impl Run {
    pub(crate) fn finish(&self) -> FinishReason {
        match self.reason {
            "stop" => FinishReason::Stop,
            "error" => FinishReason::Error,
            _ => FinishReason::Length,
        }
    }

    /// The values that are reported.
    pub(crate) fn values(&self, request: &Request) -> Vec<&[f64]> {
        let told = self.told.iter();
        told.map(|told| match request.reporting.source {
            LogprobSource::Raw => &told.raw[..],
            LogprobSource::Processed => &told.processed[..],
        })
        .collect()
    }
}

/// Runs a request against a function of its tokens. It must say how many tokens it wants.
pub(crate) fn run(
    request: &Request,
    eos: &[u32],
    banned: &[u32],
    logits: &dyn Fn(&[u32]) -> Vec<f32>,
) -> Run {
    let mut run = Run {
        tokens: Vec::new(),
        told: Vec::new(),
        reason: "length",
        ignored: 0,
        stop: None,
        text: Vec::new(),
    };
    while run.tokens.len() < request.max_tokens.unwrap() as usize {
        let all = [&request.prompt[..], &run.tokens].concat();
        match choose(request, eos, banned, &|_| true, &logits(&all), &run.tokens) {
            Err(Empty) => {
                run.reason = "error";
                return run;
            }
            Ok(told) => {
                run.tokens.push(told.token);
                run.ignored += usize::from(told.min_tokens_ignored);
                run.told.push(told);
            }
        }
        let last = *run.tokens.last().unwrap();
        if request.stop_tokens.contains(&last) || (eos.contains(&last) && !request.ignore_eos) {
            run.reason = "stop";
            break;
        }
        if let Some((stop, text)) = stopped(request, &run.tokens) {
            run.reason = "stop";
            run.stop = Some(stop);
            run.text = text;
            return run;
        }
        if is_loop(request, &run.tokens) {
            run.reason = "repeat";
            break;
        }
    }
    run.text = text(request, &run.tokens);
    run
}

pub(crate) fn text(request: &Request, tokens: &[u32]) -> Vec<u8> {
    let Some(stops) = &request.stop_strings else {
        return Vec::new();
    };
    let pieces = tokens
        .iter()
        .map(|id| stops.text.text(*id).unwrap_or_default());
    pieces.collect::<Vec<_>>().concat()
}

/// The first stop string in the text of all tokens, and the output it leaves.
fn stopped(request: &Request, tokens: &[u32]) -> Option<(String, Vec<u8>)> {
    let stops = request.stop_strings.as_ref()?;
    let mut before = Vec::new();
    // Nothing reaches over an id without text.
    for part in tokens.split(|id| stops.text.text(*id).unwrap_or_default().is_empty()) {
        let part = text(request, part);
        for end in 1..=part.len() {
            let ends = stops
                .strings
                .iter()
                .filter(|s| part[..end].ends_with(s.as_bytes()));
            if let Some(longest) = ends.max_by_key(|s| s.len()) {
                let shown = if stops.include {
                    end
                } else {
                    end - longest.len()
                };
                before.extend_from_slice(&part[..shown]);
                return Some((longest.clone(), before));
            }
        }
        before.extend_from_slice(&part);
    }
    None
}

fn is_loop(request: &Request, output: &[u32]) -> bool {
    let Some(guard) = request.repeat_guard else {
        return false;
    };
    (1..=guard.pattern as usize).any(|period| {
        let whole = period * guard.count as usize;
        whole <= output.len() && {
            let tail = &output[output.len() - whole..];
            tail.chunks(period).all(|round| *round == tail[..period])
        }
    })
}

/// Whether logprobs are wanted at all.
pub(crate) fn wants_logprobs(request: &Request) -> bool {
    request.logprobs != Logprobs::Off
}
