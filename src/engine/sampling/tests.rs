//! The choice against the rule of the specification, step by step, with a full sort.

use super::*;
use crate::engine::request::Request;
use proptest::prelude::*;

fn sampling(temperature: f32, top_k: u32, top_p: f32, min_p: f32) -> Sampling {
    Sampling {
        temperature,
        top_k,
        top_p,
        min_p,
        ..Sampling::default()
    }
}

/// The rule of the specification, step by step, with a full sort.
fn reference(logits: &[f32], s: &Sampling, noise: Noise) -> u32 {
    let ids = 0..logits.len() as u32;
    if s.temperature < GREEDY_BELOW {
        return ids
            .reduce(|a, b| {
                if logits[b as usize] > logits[a as usize] {
                    b
                } else {
                    a
                }
            })
            .unwrap();
    }
    let z: Vec<f32> = logits.iter().map(|z| z / s.temperature).collect();
    let max = f64::from(z.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    let w: Vec<f64> = z.iter().map(|z| (f64::from(*z) - max).exp()).collect();
    let total: f64 = w.iter().sum();
    let p: Vec<f64> = w.iter().map(|w| w / total).collect();
    let mut order: Vec<u32> = ids.filter(|v| z[*v as usize] > f32::NEG_INFINITY).collect();
    order.sort_by(|a, b| p[*b as usize].total_cmp(&p[*a as usize]).then(a.cmp(b)));
    let by_p = if s.top_p < 1.0 {
        let mut sum = 0.0;
        order
            .iter()
            .position(|v| {
                sum += p[*v as usize];
                sum >= f64::from(s.top_p)
            })
            .map_or(order.len(), |at| at + 1)
    } else {
        order.len()
    };
    let by_k = if s.top_k > 0 {
        (s.top_k as usize).min(order.len())
    } else {
        order.len()
    };
    let most = p[order[0] as usize];
    order[..by_p.min(by_k)]
        .iter()
        .copied()
        .filter(|v| p[*v as usize] >= f64::from(s.min_p) * most)
        .map(|v| (f64::from(z[v as usize]) + noise.gumbel(v), v))
        .reduce(|a, b| {
            if b.0 > a.0 || (b.0 == a.0 && b.1 < a.1) {
                b
            } else {
                a
            }
        })
        .unwrap()
        .1
}

fn logit() -> impl Strategy<Value = f32> {
    prop_oneof![
        8 => -12f32..12.0,
        2 => (-4i8..4).prop_map(f32::from),
        1 => Just(f32::NEG_INFINITY),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]
    #[test]
    fn the_fast_path_equals_the_plain_rule(
        row in proptest::collection::vec(logit(), 1..700),
        temperature in prop_oneof![Just(0f32), Just(1.0), 0.05f32..4.0, Just(1000.0)],
        top_k in prop_oneof![Just(0u32), 1..40u32, Just(100_000)],
        top_p in prop_oneof![Just(1f32), 0.01f32..1.0],
        min_p in prop_oneof![Just(0f32), 0.0f32..1.0],
        seed in any::<u64>(),
        position in 0..2_000_000u32,
    ) {
        prop_assume!(row.iter().any(|z| z.is_finite()));
        let s = sampling(temperature, top_k, top_p, min_p);
        let mut sampler = Sampler::default();
        for choice in 0..4 {
            let noise = Noise::new(seed, position, choice, Purpose::Target);
            prop_assert_eq!(sampler.choose(&row, &s, noise), Ok(reference(&row, &s, noise)));
        }
    }
}

#[test]
fn wide_rows_take_the_same_token_as_the_plain_rule() {
    // The size of a real vocabulary, and logits as flat as they get: the skip table has the most to do.
    let mut sampler = Sampler::default();
    for seed in 0..6u64 {
        let spread = [0.0f32, 0.5, 8.0][seed as usize % 3];
        let noise = Noise::new(seed, 7, 1, Purpose::Draft);
        let row: Vec<f32> = (0..129_280u32)
            .map(|v| (noise.gumbel(v) as f32) * spread)
            .collect();
        for s in [
            sampling(1.0, 0, 1.0, 0.0),
            sampling(0.7, 50, 0.95, 0.0),
            sampling(1.3, 0, 0.999, 0.01),
        ] {
            let noise = Noise::new(seed, 99, 0, Purpose::Target);
            assert_eq!(
                sampler.choose(&row, &s, noise),
                Ok(reference(&row, &s, noise))
            );
        }
    }
}

#[test]
fn greedy_takes_the_lowest_of_equal_ids() {
    let mut sampler = Sampler::default();
    let noise = Noise::new(1, 1, 0, Purpose::Target);
    let s = sampling(0.0, 0, 1.0, 0.0);
    assert_eq!(sampler.choose(&[1.0, 3.0, 3.0, -1.0], &s, noise), Ok(1));
    assert_eq!(sampler.choose(&[-0.0, 0.0], &s, noise), Ok(0));
}

#[test]
fn a_bad_row_is_a_fault_and_not_a_token() {
    let mut sampler = Sampler::default();
    let noise = Noise::new(1, 1, 0, Purpose::Target);
    for t in [0.0, 1.0] {
        let s = sampling(t, 0, 1.0, 0.0);
        assert_eq!(
            sampler.choose(&[0.0, f32::NAN], &s, noise),
            Err(RowFault::Numeric)
        );
        assert_eq!(
            sampler.choose(&[f32::INFINITY, 0.0], &s, noise),
            Err(RowFault::Numeric)
        );
        assert_eq!(
            sampler.choose(&[f32::NEG_INFINITY; 3], &s, noise),
            Err(RowFault::Empty)
        );
    }
}

#[test]
fn logits_beyond_the_range_after_scaling_still_give_the_largest() {
    let mut sampler = Sampler::default();
    let noise = Noise::new(3, 1, 0, Purpose::Target);
    let s = sampling(2e-5, 0, 0.9, 0.0);
    assert_eq!(sampler.choose(&[1e38, 2e38, 1.0], &s, noise), Ok(1));
    assert_eq!(sampler.choose(&[-2e38, -1e38], &s, noise), Ok(1));
}

/// Chi-square of 60 000 draws over positions; bounds are the 99.99 % points.
#[test]
fn frequencies_follow_the_distribution() {
    let row = [1.0f32, 0.2, -0.5, 2.0, 0.0, -3.0, 1.5, f32::NEG_INFINITY];
    for (s, bound) in [
        (sampling(1.0, 0, 1.0, 0.0), 27.9),
        (sampling(0.6, 4, 1.0, 0.0), 21.1),
        (sampling(1.4, 0, 0.9, 0.05), 27.9),
    ] {
        let mut sampler = Sampler::default();
        let mut seen = [0u32; 8];
        let draws = 60_000;
        for position in 0..draws {
            let noise = Noise::new(0x5eed, position, 0, Purpose::Target);
            seen[sampler.choose(&row, &s, noise).unwrap() as usize] += 1;
        }
        let kept: Vec<usize> = (0..8).filter(|v| seen[*v] > 0).collect();
        let w = |v: usize| f64::from(row[v] / s.temperature).exp();
        let total: f64 = kept.iter().map(|v| w(*v)).sum();
        let chi: f64 = kept
            .iter()
            .map(|v| {
                let expected = w(*v) / total * f64::from(draws);
                (f64::from(seen[*v]) - expected).powi(2) / expected
            })
            .sum();
        assert!(chi < bound, "{s:?}: {chi} {seen:?}");
        assert_eq!(seen[7], 0);
    }
}

/// Catches a mask after the filters, one that is off by a bit, and one that hides a fault.
#[test]
fn a_mask_is_as_if_the_other_ids_were_impossible() {
    let logits: Vec<f32> = (0..100).map(|id| (id * 37 % 101) as f32 / 9.0).collect();
    let allowed = [0x8000_0001, 0, u32::MAX];
    let is_allowed = |id: usize| id == 0 || id == 31 || (64..96).contains(&id);
    let masked: Vec<f32> = (0..100)
        .map(|id| {
            if is_allowed(id) {
                logits[id]
            } else {
                f32::NEG_INFINITY
            }
        })
        .collect();
    let mut sampler = Sampler::new();
    let mut choose = |logits: &[f32], mask: Option<&[u32]>, sampling: Sampling, seed| {
        let mut request = Request::new(vec![1; 9]);
        request.sampling = sampling;
        let mut state = State::new(&request, &[], seed);
        let choice = state.choose(&mut sampler, logits, mask, &request.prompt);
        choice.map(|choice| choice.token)
    };
    for (top_k, top_p) in [(0, 1.0), (3, 1.0), (0, 0.7), (5, 0.9)] {
        for seed in 0..50 {
            let sampling = || sampling(seed as f32 / 20.0, top_k, top_p, 0.0);
            let chosen = choose(&logits, Some(&allowed), sampling(), seed);
            assert_eq!(chosen, choose(&masked, None, sampling(), seed));
            assert!(is_allowed(chosen.unwrap() as usize));
        }
    }
    let mut greedy =
        |logits: &[f32], mask: &[u32]| choose(logits, Some(mask), sampling(0.0, 0, 1.0, 0.0), 0);
    assert_eq!(greedy(&logits, &[0, 0, 0, 0]), Err(RowFault::Empty));
    assert_eq!(greedy(&logits, &[]), Err(RowFault::Empty));
    let mut broken = logits.clone();
    broken[50] = f32::NAN;
    assert_eq!(greedy(&broken, &allowed), Err(RowFault::Numeric));
}
