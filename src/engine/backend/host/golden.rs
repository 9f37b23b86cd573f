//! Single steps of the host operations against golden vectors: mixes, rotation, selection.

use std::path::Path;

use super::index::{best, best_blocks};
use super::matrix::{Format, Matrix};
use super::mixes::Mix;
use super::{Host, MixSpec, MixWeights, Rows, angles};
use crate::engine::backend::Numerics;
use crate::engine::backend::reference::Plain;
use crate::engine::weights::{Bytes, Shard};

fn golden() -> Shard {
    let file = "tests/data/model/formats/formats.safetensors";
    Shard::open(&Path::new(env!("CARGO_MANIFEST_DIR")).join(file)).unwrap()
}

fn floats(golden: &Shard, name: &str) -> Vec<f32> {
    golden.tensor(name).unwrap().to_f32().unwrap()
}

fn ints(golden: &Shard, name: &str) -> Vec<i64> {
    golden.tensor(name).unwrap().to_i64().unwrap()
}

fn host() -> Host<Plain> {
    Host::new(Plain, Numerics::PLAIN, 128)
}

fn assert_close(have: &[f32], want: &[f32], tolerance: f32) {
    assert_eq!(have.len(), want.len());
    for (i, (h, w)) in have.iter().zip(want).enumerate() {
        assert!((h - w).abs() <= tolerance, "{i}: {h}, expected {w}");
    }
}

#[test]
fn streams_mix_collapse_and_expand_as_the_oracle_does() {
    let g = golden();
    let function = g.tensor("mix.fn").unwrap();
    let weights = MixWeights {
        function: Matrix {
            rows: function.shape[0],
            cols: function.shape[1],
            data: function.bytes.clone(),
            format: Format::F32,
        },
        base: floats(&g, "mix.base"),
        scale: floats(&g, "mix.scale"),
    };
    let spec = MixSpec {
        streams: 4,
        dim: 24,
        iterations: 20,
        eps: 1e-6,
        norm_eps: 1e-6,
    };
    let mut h = Rows {
        data: floats(&g, "mix.streams"),
        width: 96,
    };
    let mut host = host();
    let mut mix = Mix::default();
    host.full_mix(&weights, &spec, &h, &mut mix);
    let (pre, post, comb) = mix.parts();
    assert_close(pre, &floats(&g, "mix.pre"), 1e-6);
    assert_close(post, &floats(&g, "mix.post"), 2e-6);
    assert_close(comb, &floats(&g, "mix.comb"), 2e-6);

    // The operation goes on with the norm; the golden value is the one in front of it.
    let mut x = Rows::default();
    host.collapse_norm(&h, Some(&mix), &[1.0; 24], &spec, &mut x);
    let mut collapsed = floats(&g, "mix.collapsed");
    collapsed
        .chunks_mut(24)
        .for_each(|row| host.norm_row(row, &[1.0; 24], 1e-6));
    assert_close(&x.data, &collapsed, 2e-6);

    let y = Rows {
        data: floats(&g, "mix.y"),
        width: 24,
    };
    host.expand_streams(&y, &mix, &spec, &mut h);
    assert_close(&h.data, &floats(&g, "mix.expanded"), 5e-6);
}

#[test]
fn rows_rotate_by_the_golden_angles_up_to_a_million_positions() {
    let g = golden();
    let input = floats(&g, "rope.input");
    let positions = ints(&g, "rope.position");
    for (frequencies, output, back) in [
        ("rope.freq_plain", "rope.plain", false),
        ("rope.freq_compress", "rope.compress", false),
        ("rope.freq_compress", "rope.compress_inverse", true),
    ] {
        let frequencies = floats(&g, frequencies);
        let (mut cos, mut sin) = (vec![0.0; frequencies.len()], vec![0.0; frequencies.len()]);
        let mut rows = input.clone();
        let heads = rows.len() / positions.len() / 96;
        for (row, position) in rows.chunks_mut(heads * 96).zip(&positions) {
            angles(*position as usize, &frequencies, &mut cos, &mut sin);
            if back {
                sin.iter_mut().for_each(|s| *s = -*s);
            }
            row.chunks_mut(96)
                .for_each(|head| host().rotate(head, &cos, &sin));
        }
        assert_close(&rows, &floats(&g, output), 1e-6);
    }
}

#[test]
fn ties_masked_scores_and_short_rows_are_picked_as_golden() {
    let g = golden();
    let width = g.tensor("select.score").unwrap().shape[1];
    let mut order = Vec::new();
    let rows = floats(&g, "select.score");
    let (top, six) = (ints(&g, "select.top4_order"), ints(&g, "select.pick6"));
    for (i, scores) in rows.chunks(width).enumerate() {
        let scored = || scores.iter().enumerate().map(|(id, s)| (id as u32, *s));
        let mut want: Vec<u32> = top[i * 4..(i + 1) * 4]
            .iter()
            .map(|id| *id as u32)
            .filter(|id| scores[*id as usize] > f32::NEG_INFINITY)
            .collect();
        want.sort_unstable();
        let have: Vec<u32> = best(scored(), 4, &mut order).collect();
        assert_eq!(have, want, "top 4 of row {i}");
        let want: Vec<u32> = six[i * 6..(i + 1) * 6]
            .iter()
            .filter(|id| **id >= 0)
            .map(|id| *id as u32)
            .collect();
        let have: Vec<u32> = best(scored(), 6, &mut order).collect();
        assert_eq!(have, want, "pick 6 of row {i}");
    }
}

#[test]
fn candidate_blocks_are_the_golden_ones_and_hold_the_newest_row() {
    let g = golden();
    let positions = ints(&g, "candidates.position");
    let rows = floats(&g, "candidates.score");
    let width = rows.len() / positions.len();
    let mut order = Vec::new();
    for (name, count) in [
        ("candidates.keep_blocks", 3),
        ("candidates.keep_blocks_2", 2),
    ] {
        let keep: Bytes = g.tensor(name).unwrap().bytes;
        for (i, position) in positions.iter().enumerate() {
            let scores = &rows[i * width..][..*position as usize + 1];
            let want: Vec<u32> = (0..3).filter(|b| keep[i * 3 + *b as usize] != 0).collect();
            let have: Vec<u32> = best_blocks(scores, count, 4, &mut order).collect();
            assert_eq!(have, want, "{name} at {position}");
        }
    }
}
