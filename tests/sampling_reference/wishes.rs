//! Random requests that want anything of sampling, each wish on its own or beside any other.

use fathom::engine::Request;
use fathom::engine::request::{
    LogprobSource, Logprobs, PromptLogprobs, RepeatGuard, Reporting, Sampling, Think,
};
use proptest::prelude::*;

fn maybe<T: Clone + std::fmt::Debug>(
    usual: T,
    wish: impl Strategy<Value = T> + 'static,
) -> impl Strategy<Value = T> {
    prop_oneof![2 => Just(usual), 1 => wish]
}

fn filters() -> impl Strategy<Value = Sampling> {
    (
        prop_oneof![Just(0f32), Just(1.0), 0.05f32..4.0],
        maybe(0, 1u32..40),
        maybe(1.0, 0.01f32..1.0),
        maybe(0.0, 0.0f32..1.0),
        any::<u64>(),
        maybe(0, 0u8..64),
    )
        .prop_map(
            |(temperature, top_k, top_p, min_p, seed, choice_base)| Sampling {
                temperature,
                top_k,
                top_p,
                min_p,
                seed: Some(seed),
                choice_base,
                ..Sampling::default()
            },
        )
}

/// `vocab` ids; id 0 is in no prompt.
pub(crate) fn any_sampling(vocab: u32) -> impl Strategy<Value = Sampling> {
    let id = move || 0..vocab;
    let penalties = (
        maybe(0.0, -2.0f32..2.0),
        maybe(0.0, -2.0f32..2.0),
        maybe(1.0, 0.1f32..10.0),
    );
    let bias = prop::collection::btree_map(id(), -100f32..100.0, 0..4);
    let edits = (
        maybe(vec![], bias.prop_map(|map| map.into_iter().collect())),
        maybe(None, prop::collection::vec(id(), 1..20).prop_map(Some)),
        maybe(
            vec![],
            prop::collection::vec(prop::collection::vec(id(), 1..3), 0..30),
        ),
        maybe(0, 0u32..8),
    );
    let given = (
        maybe(vec![], prop::collection::vec(prop::option::of(id()), 0..8)),
        maybe(
            None,
            (0u32..6, prop::collection::vec(id(), 1..4))
                .prop_map(|(budget, end)| Some(Think { budget, end })),
        ),
    );
    (filters(), penalties, edits, given).prop_map(
        |(filters, penalties, (bias, allowed, bad_words, min_tokens), (golden, think))| Sampling {
            presence_penalty: penalties.0,
            frequency_penalty: penalties.1,
            repetition_penalty: penalties.2,
            logit_bias: bias,
            allowed_tokens: allowed,
            bad_words,
            min_tokens,
            golden_tokens: golden,
            think,
            ..filters
        },
    )
}

fn any_logprobs() -> impl Strategy<Value = Logprobs> {
    prop_oneof![
        Just(Logprobs::Off),
        Just(Logprobs::Sampled),
        (1u32..8).prop_map(Logprobs::Top),
    ]
}

/// A short prompt, and reports of any kind.
pub(crate) fn any_request(vocab: u32) -> impl Strategy<Value = Request> {
    let id = move || 0..vocab;
    (
        any_sampling(vocab),
        prop::collection::vec(id(), 1..12),
        any_logprobs(),
        prop_oneof![Just(LogprobSource::Raw), Just(LogprobSource::Processed)],
        (any::<bool>(), any::<bool>()),
        maybe(vec![], prop::collection::vec(id(), 0..4)),
        (
            maybe(None, (0u32..5).prop_map(Some)),
            maybe(
                None,
                (1u32..5, 2u32..4)
                    .prop_map(|(pattern, count)| Some(RepeatGuard { pattern, count })),
            ),
            maybe(vec![], prop::collection::vec(id(), 0..3)),
        ),
    )
        .prop_map(
            |(
                sampling,
                prompt,
                logprobs,
                source,
                (tail_mass, digest),
                tokens,
                (top, guard, stops),
            )| {
                Request {
                    sampling,
                    stop_tokens: stops,
                    logprobs,
                    reporting: Reporting {
                        source,
                        tail_mass: tail_mass && logprobs != Logprobs::Off,
                        tokens,
                        prompt: top.map(|top| PromptLogprobs {
                            top,
                            start: top % prompt.len() as u32,
                        }),
                        digest,
                    },
                    repeat_guard: guard,
                    ..Request::new(prompt)
                }
            },
        )
}
