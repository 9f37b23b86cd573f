//! The sampler against the specification: every combination of parameters, token by token, and the law of what is
//! drawn. `FATHOM_SOAK=1` makes the long versions run.

#[path = "sampling_reference/twin.rs"]
mod twin;
#[path = "sampling_reference/wishes.rs"]
mod wishes;

use fathom::engine::Request;
use fathom::engine::request::{LogprobSource, Logprobs, Sampling};
use fathom::engine::sampling::{Noise, Purpose, RowFault, Sampler, State};
use proptest::prelude::*;

fn soak(usual: u32, long: u32) -> u32 {
    if std::env::var_os("FATHOM_SOAK").is_some() {
        long
    } else {
        usual
    }
}

const VOCAB: u32 = 60;
const EOS: [u32; 2] = [1, 3];

fn logit() -> impl Strategy<Value = f32> {
    prop_oneof![
        8 => -12f32..12.0,
        2 => (-4i8..4).prop_map(f32::from),
        1 => Just(f32::NEG_INFINITY),
    ]
}

fn close(own: f32, expected: f64) -> bool {
    let own = f64::from(own);
    own == expected || (own - expected).abs() <= 1e-5 * expected.abs().max(1.0)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(soak(400, 20_000)))]
    /// P-18 and P-20.
    #[test]
    fn any_parameters_give_the_tokens_of_the_specification(
        request in wishes::any_request(VOCAB),
        rows in prop::collection::vec(prop::collection::vec(logit(), VOCAB as usize), 1..12),
        masks in prop::collection::vec(prop::option::of(any::<u64>()), 12),
        banned in prop::collection::vec(0..VOCAB, 0..3),
    ) {
        let seed = request.sampling.seed.unwrap();
        let mut sampler = Sampler::without(&banned);
        let mut state = State::new(&request, &EOS, seed);
        let mut tokens = request.prompt.clone();
        for (row, mask) in rows.iter().zip(masks) {
            let words = mask.map(|mask| [mask as u32, (mask >> 32) as u32]);
            let is_set = |v: u32| mask.is_none_or(|mask| mask >> v & 1 == 1);
            let output = tokens[request.prompt.len()..].to_vec();
            let expected = twin::choose(&request, &EOS, &banned, &is_set, row, &output);
            let words = words.as_ref().map(|words| &words[..]);
            let chosen = state.choose(&mut sampler, row, words, &tokens);
            let expected = match expected {
                // A token that is given is held to the mask as well.
                Ok(told) if is_set(told.token) => told,
                _ => {
                    prop_assert_eq!(chosen.map(|c| c.token), Err(RowFault::Empty));
                    break;
                }
            };
            let chosen = chosen.unwrap();
            prop_assert_eq!(chosen.token, expected.token);
            prop_assert_eq!(chosen.min_tokens_ignored, expected.min_tokens_ignored);
            let values = match request.reporting.source {
                LogprobSource::Raw => &expected.raw,
                LogprobSource::Processed => &expected.processed,
            };
            let own = values[chosen.token as usize];
            match request.logprobs {
                Logprobs::Off => prop_assert_eq!(chosen.logprob, None),
                Logprobs::Sampled | Logprobs::Top(_) => {
                    prop_assert!(close(chosen.logprob.unwrap(), own), "{:?} {own}", chosen.logprob);
                }
            }
            if let Logprobs::Top(count) = request.logprobs {
                prop_assert_eq!(chosen.top.len(), count.min(VOCAB) as usize);
                for (entry, id) in chosen.top.iter().zip(twin::ranked(values)) {
                    // Nearly equal ones may change places between f32 and f64.
                    prop_assert!(close(entry.1, values[id as usize]));
                    prop_assert!(close(entry.1, values[entry.0 as usize]));
                }
            } else {
                prop_assert!(chosen.top.is_empty());
            }
            tokens.push(chosen.token);
        }
    }
}

/// P-19: frequencies of many draws follow the law that the parameters define; bounds are far tails.
#[test]
fn frequencies_follow_the_processed_distribution() {
    let row = [1.0f32, 0.2, -0.5, 2.0, 0.0, -3.0, 1.5, f32::NEG_INFINITY];
    let draws = soak(60_000, 1_000_000);
    let plain = Sampling {
        seed: Some(0x5eed),
        ..Sampling::default()
    };
    let biased = Sampling {
        logit_bias: vec![(0, 1.5), (3, -4.0)],
        repetition_penalty: 1.7,
        ..plain.clone()
    };
    let filtered = Sampling {
        temperature: 1.4,
        top_p: 0.9,
        min_p: 0.05,
        choice_base: 9,
        ..plain.clone()
    };
    let forbidden = Sampling {
        bad_words: vec![vec![2, 3], vec![6]],
        temperature: 0.7,
        ..plain.clone()
    };
    for sampling in [plain, biased, filtered, forbidden] {
        let mut seen = [0u32; 8];
        let mut expected = Vec::new();
        let mut sampler = Sampler::new();
        for draw in 0..draws {
            // Positions differ by the length of the prompt, which ends alike.
            let mut request = Request::new(vec![2]);
            request.sampling = Sampling {
                seed: sampling.seed.map(|seed| seed + u64::from(draw)),
                ..sampling.clone()
            };
            if draw == 0 {
                let told = twin::choose(&request, &[], &[], &|_| true, &row, &[]).unwrap();
                expected = told.processed;
            }
            let mut state = State::new(&request, &[], request.sampling.seed.unwrap());
            let choice = state.choose(&mut sampler, &row, None, &request.prompt);
            seen[choice.unwrap().token as usize] += 1;
        }
        let chi: f64 = (0..8)
            .filter(|v| expected[*v].is_finite())
            .map(|v| {
                let wanted = expected[v].exp() * f64::from(draws);
                (f64::from(seen[v]) - wanted).powi(2) / wanted
            })
            .sum();
        assert!(chi < 35.0, "{sampling:?}: {chi} {seen:?}");
        for v in 0..8 {
            assert!(expected[v].is_finite() || seen[v] == 0, "{sampling:?}");
        }
    }
}

/// P-19: choices of one seed are independent.
#[test]
fn choices_of_one_seed_agree_no_more_often_than_chance() {
    let row = [0.0f32; 8];
    let mut sampler = Sampler::new();
    let sampling = Sampling::default();
    let draws = 20_000;
    let equal = (0..draws)
        .filter(|position| {
            let mut of = |choice| {
                let noise = Noise::new(11, *position, choice, Purpose::Target);
                sampler.choose(&row, &sampling, noise).unwrap()
            };
            of(0) == of(1)
        })
        .count();
    // One in eight, within five deviations.
    let (mean, deviation) = (2500.0, (20_000.0f64 * 7.0 / 64.0).sqrt());
    assert!((equal as f64 - mean).abs() < 5.0 * deviation, "{equal}");
}

/// What one request asks for changes nothing for the next one that uses the same memory.
#[test]
fn a_sampler_keeps_nothing_of_a_request() {
    let row: Vec<f32> = (0..VOCAB).map(|v| (v * 37 % 23) as f32 * 0.3).collect();
    let mut plain = Request::new(vec![5]);
    plain.sampling.seed = Some(4);
    let mut wild = plain.clone();
    wild.sampling.allowed_tokens = Some(vec![2, 4]);
    wild.sampling.top_k = 1;
    wild.logprobs = Logprobs::Top(5);
    wild.reporting.source = LogprobSource::Processed;
    let run = |sampler: &mut Sampler, request: &Request| {
        let mut state = State::new(request, &EOS, 4);
        let choice = state.choose(sampler, &row, None, &request.prompt).unwrap();
        (choice.token, choice.logprob, choice.top.to_vec())
    };
    let alone = run(&mut Sampler::new(), &plain);
    let mut shared = Sampler::new();
    run(&mut shared, &wild);
    assert_eq!(run(&mut shared, &plain), alone);
}
