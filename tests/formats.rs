//! Number formats, block quantisers, weight containers and rotation tables against golden vectors.

mod common;

use common::{Golden, repository};
use fathom::engine::backend::host::matrix::{Format, Matrix, Scales, Table};
use fathom::engine::backend::host::numbers::*;
use fathom::engine::model::config::{Family, ModelConfig};
use fathom::engine::model::parts::frequencies;
use fathom::engine::weights::Bytes;

fn golden() -> Golden {
    Golden::open(&repository("tests/data/model/formats/formats.safetensors"))
}

fn bytes(golden: &Golden, name: &str) -> Vec<u8> {
    golden.ints(name).into_iter().map(|b| b as u8).collect()
}

#[test]
fn every_e4m3_code_decodes_and_encodes() {
    let g = golden();
    for (code, want) in g.floats("e4m3.decode").into_iter().enumerate() {
        let have = e4m3(code as u8);
        assert!(
            have == want || (have.is_nan() && want.is_nan()),
            "code {code}: {have}, expected {want}"
        );
        if !want.is_nan() && want.to_bits() != 0x8000_0000 {
            assert_eq!(to_e4m3(want), code as u8);
        }
    }
    for (x, want) in g
        .floats("e4m3.input")
        .into_iter()
        .zip(bytes(&g, "e4m3.byte"))
    {
        assert_eq!(to_e4m3(x), want, "{x}");
    }
}

#[test]
fn e2m1_ties_go_to_the_even_code() {
    let g = golden();
    for (x, want) in g
        .floats("e2m1.input")
        .into_iter()
        .zip(bytes(&g, "e2m1.code"))
    {
        assert_eq!(to_e2m1(x), want, "{x}");
    }
}

#[test]
fn powers_of_two_round_up() {
    let g = golden();
    for (x, want) in g
        .floats("pow2_ceil.input")
        .into_iter()
        .zip(g.floats("pow2_ceil.output"))
    {
        assert_eq!(pow2_ceil(x), want, "{x}");
    }
}

#[test]
fn block_quantisers_give_the_golden_values() {
    let g = golden();
    let input = g.floats("fake.input");
    let check = |name: &str, quantise: &dyn Fn(&mut [f32])| {
        let mut have = input.clone();
        quantise(&mut have);
        assert_eq!(have, g.floats(name), "{name}");
    };
    check("fake.fp8_128", &|x| fake_fp8(x, 128));
    check("fake.fp8_64", &|x| fake_fp8(x, 64));
    check("fake.fp8_32", &|x| fake_fp8(x, 32));
    check("fake.fp4_e8m0_32", &fake_fp4);
    check("fake.fp4_e4m3_16", &fake_fp4_e4m3);
}

#[test]
fn the_hadamard_transform_is_the_golden_one() {
    let g = golden();
    for (x, want) in g
        .floats("hadamard.input")
        .chunks(128)
        .zip(g.floats("hadamard.output").chunks(128))
    {
        let mut have = x.to_vec();
        hadamard(&mut have);
        for (h, w) in have.iter().zip(want) {
            assert!((h - w).abs() < 2e-6, "{h} {w}");
        }
    }
}

#[test]
fn weight_containers_decode_partial_edge_blocks_too() {
    let g = golden();
    let of = |stem: &str, format: &dyn Fn(Scales) -> Format| {
        let shape = g.shape(&format!("{stem}.value"));
        let scales = Scales::E8m0(Bytes::from_vec(bytes(&g, &format!("{stem}.scale"))));
        let matrix = Matrix {
            rows: shape[0],
            cols: shape[1],
            data: Bytes::from_vec(bytes(&g, &format!("{stem}.weight"))),
            format: format(scales),
        };
        let want = g.floats(&format!("{stem}.value"));
        let mut have = vec![0.0; matrix.cols];
        for (row, want) in want.chunks(matrix.cols).enumerate() {
            matrix.row(row, 0..matrix.cols, &mut have);
            assert_eq!(have, want, "{stem} row {row}");
        }
    };
    of("fp8w_32", &|scales| Format::Fp8 { block: 32, scales });
    of("fp8w_128", &|scales| Format::Fp8 { block: 128, scales });
    of("fp4w", &|scales| Format::Fp4 { scales });

    let table = Table {
        width: 64,
        data: Bytes::from_vec(bytes(&g, "rows.weight")),
        scales: Bytes::from_vec(bytes(&g, "rows.scale")),
    };
    let mut have = vec![0.0; 64];
    for (row, want) in g.floats("rows.value").chunks(64).enumerate() {
        table.row(row, &mut have);
        assert_eq!(have, want, "table row {row}");
    }
}

#[test]
fn frequencies_of_the_published_models_are_the_golden_ones() {
    let g = golden();
    let mut config = ModelConfig::read(&repository("tests/data/model/v4-tiny")).unwrap();
    assert_eq!(config.family, Family::V4);
    config.rope_dim = 64;
    config.rope_theta = 10_000.0;
    config.compress_theta = 160_000.0;
    config.yarn.as_mut().unwrap().original = 65_536;
    let have = frequencies(&config);
    for (name, have) in [
        ("rope.freq_plain", have.plain),
        ("rope.freq_compress", have.compressed),
    ] {
        for (i, (h, w)) in have.iter().zip(g.floats(name)).enumerate() {
            // One unit in the last place: at position 10^6 that is an angle of 0.06.
            assert!((h - w).abs() <= w * 1.2e-7, "{name} {i}: {h} {w}");
        }
    }
}
