//! The fast inner loops against the plain ones, for every tier that this machine has.

use fathom::engine::backend::cpu::{Cpu, Tier};
use fathom::engine::backend::host::kernels::{Attend, Kernels, Keys, Linear};
use fathom::engine::backend::host::matrix::{Format, Matrix, Scales};
use fathom::engine::backend::host::numbers::{from_bf16, round_bf16};
use fathom::engine::backend::reference::Plain;
use fathom::engine::weights::Bytes;

/// Numbers from a seed: SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    /// About normal: mean 0, deviation 1.
    fn float(&mut self) -> f32 {
        let sum: u64 = (0..12).map(|_| self.next() >> 40).sum();
        (sum as f64 / f64::from(1u32 << 24) - 6.0) as f32
    }

    fn floats(&mut self, len: usize, exact: bool) -> Vec<f32> {
        let value = |x: f32| if exact { round_bf16(x) } else { x };
        (0..len).map(|_| value(self.float())).collect()
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.next() as u8).collect()
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Fp8(usize),
    /// Scales that are powers of two, and such that are not.
    Fp8Floats(bool),
    Fp4,
    Bf16,
    F32,
}

const KINDS: [Kind; 7] = [
    Kind::Fp8(128),
    Kind::Fp8(32),
    Kind::Fp8Floats(true),
    Kind::Fp8Floats(false),
    Kind::Fp4,
    Kind::Bf16,
    Kind::F32,
];

fn matrix(random: &mut Random, kind: Kind, rows: usize, cols: usize) -> Matrix {
    let e8m0 = |random: &mut Random, count: usize| {
        let scales = (0..count).map(|_| 116 + random.below(8) as u8).collect();
        Scales::E8m0(Bytes::from_vec(scales))
    };
    let values = rows * cols;
    let fp8 = |random: &mut Random| {
        let mut data = random.bytes(values);
        // NaN is tested code by code elsewhere.
        data.iter_mut()
            .filter(|c| **c & 0x7f == 0x7f)
            .for_each(|c| *c ^= 1);
        data
    };
    let (data, format) = match kind {
        Kind::Fp8(block) => {
            let scales = e8m0(random, rows.div_ceil(block) * cols.div_ceil(block));
            (fp8(random), Format::Fp8 { block, scales })
        }
        Kind::Fp8Floats(powers) => {
            let count = rows.div_ceil(128) * cols.div_ceil(128);
            let scales: Vec<u8> = (0..count)
                .map(|_| {
                    if powers {
                        2f32.powi(-(random.below(9) as i32))
                    } else {
                        0.01 + random.float().abs() / 100.0
                    }
                })
                .flat_map(f32::to_le_bytes)
                .collect();
            (
                fp8(random),
                Format::Fp8 {
                    block: 128,
                    scales: Scales::F32(Bytes::from_vec(scales)),
                },
            )
        }
        Kind::Fp4 => {
            let scales = e8m0(random, values / 32);
            (random.bytes(values / 2), Format::Fp4 { scales })
        }
        Kind::Bf16 => {
            let floats = random.floats(values, true);
            let data = floats
                .iter()
                .flat_map(|f| ((f.to_bits() >> 16) as u16).to_le_bytes());
            (data.collect(), Format::Bf16)
        }
        Kind::F32 => {
            let data = random
                .floats(values, false)
                .into_iter()
                .flat_map(f32::to_le_bytes);
            (data.collect(), Format::F32)
        }
    };
    Matrix {
        rows,
        cols,
        data: Bytes::from_vec(data),
        format,
    }
}

fn cols_of(random: &mut Random, kind: Kind) -> usize {
    match kind {
        Kind::Bf16 | Kind::F32 => 1 + random.below(1500),
        _ => 32 * (1 + random.below(40)),
    }
}

fn linear(
    kernels: &dyn Kernels,
    w: &Matrix,
    first_row: usize,
    rows: usize,
    x: &[f32],
    exact: bool,
) -> Vec<f32> {
    let mut y = vec![f32::NAN; x.len() / w.cols * rows];
    kernels.linear(&mut [Linear {
        w,
        first_row,
        x,
        y: &mut y,
        exact,
    }]);
    y
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

/// Sums of products, in f32, of values whose products have no common sign: the error of one output is
/// below `2^-24 · Σ|x·w|` times the longest chain of additions of one accumulator and its tree, which is at
/// most 128 + 8 for vectors. Tiles have one chain of `cols / 2`, but errors of a chain of random signs grow
/// with its root. 64 units of `Σ|x·w|` cover both with room, and one wrong product is a thousand times more.
fn assert_sums(
    found: &[f32],
    expected: &[f32],
    w: &Matrix,
    first_row: usize,
    x: &[f32],
    what: &str,
) {
    let rows = found.len() / (x.len() / w.cols);
    let mut weights = vec![0.0; w.cols];
    for n in 0..rows {
        w.row(first_row + n, 0..w.cols, &mut weights);
        for (s, x) in x.chunks(w.cols).enumerate() {
            let size: f64 = x
                .iter()
                .zip(&weights)
                .map(|(x, w)| f64::from(x * w).abs())
                .sum();
            let (a, b) = (found[s * rows + n], expected[s * rows + n]);
            let error = (f64::from(a) - f64::from(b)).abs();
            assert!(
                error <= size * 64.0 * 2f64.powi(-24),
                "{what}: row {s} output {n}: {a} for {b}"
            );
        }
    }
}

fn each_tier(body: impl FnMut(Tier)) {
    let tiers = Tier::available();
    assert_eq!(tiers[0], Tier::Portable);
    tiers.into_iter().for_each(body);
}

#[test]
fn linear_agrees_with_the_plain_loops() {
    each_tier(|tier| {
        let cpu = Cpu::with_tier(2, tier).unwrap();
        let mut random = Random(7);
        for round in 0..10 {
            for kind in KINDS {
                for exact in [false, true] {
                    let cols = cols_of(&mut random, kind);
                    let rows = 1 + random.below(150);
                    let w = matrix(&mut random, kind, rows, cols);
                    let first_row = random.below(rows);
                    let used = if round == 0 {
                        rows - first_row
                    } else {
                        1 + random.below(rows - first_row)
                    };
                    let count = [1, 2, 1 + random.below(40)][round % 3];
                    let x = random.floats(count * cols, exact);
                    let found = linear(&cpu, &w, first_row, used, &x, exact);
                    let expected = linear(&Plain, &w, first_row, used, &x, exact);
                    let what = format!(
                        "{tier:?} {kind:?} [{rows}, {cols}] from {first_row} exact {exact} count {count}"
                    );
                    assert_sums(&found, &expected, &w, first_row, &x, &what);
                }
            }
        }
    });
}

#[test]
fn a_row_is_the_same_alone_in_a_batch_and_on_any_number_of_threads() {
    each_tier(|tier| {
        let teams: Vec<Cpu> = (1..=3).map(|n| Cpu::with_tier(n, tier).unwrap()).collect();
        let mut random = Random(11);
        for kind in KINDS {
            for exact in [false, true] {
                let cols = 1100_usize.next_multiple_of(32)
                    + if matches!(kind, Kind::Bf16 | Kind::F32) {
                        7
                    } else {
                        0
                    };
                let (rows, count) = (85, 37);
                let w = matrix(&mut random, kind, rows, cols);
                let x = random.floats(count * cols, exact);
                let all = linear(&teams[0], &w, 0, rows, &x, exact);
                for cpu in &teams {
                    let what = format!("{tier:?} {kind:?} exact {exact} threads {}", cpu.threads());
                    assert_eq!(
                        bits(&linear(cpu, &w, 0, rows, &x, exact)),
                        bits(&all),
                        "{what}"
                    );
                    for (first, some) in
                        [(0, 1), (36, 1), (3, 2), (5, 16), (1, 17), (0, 33), (10, 5)]
                    {
                        let part = linear(
                            cpu,
                            &w,
                            0,
                            rows,
                            &x[first * cols..(first + some) * cols],
                            exact,
                        );
                        assert_eq!(
                            bits(&part),
                            bits(&all[first * rows..(first + some) * rows]),
                            "{what} {first} {some}"
                        );
                    }
                    for (first_row, used) in [(0, 1), (5, 11), (31, 3), (64, 21), (17, 60)] {
                        let part = linear(cpu, &w, first_row, used, &x, exact);
                        for s in 0..count {
                            let whole = &all[s * rows + first_row..][..used];
                            assert_eq!(
                                bits(&part[s * used..(s + 1) * used]),
                                bits(whole),
                                "{what} rows {first_row}"
                            );
                        }
                    }
                }
            }
        }
    });
}

#[test]
fn chunks_of_long_prefills_meet_without_a_seam() {
    each_tier(|tier| {
        let cpu = Cpu::with_tier(3, tier).unwrap();
        let mut random = Random(13);
        let (rows, cols, count) = (300, 64, 1100);
        let w = matrix(&mut random, Kind::Fp8(128), rows, cols);
        let x = random.floats(count * cols, true);
        let all = linear(&cpu, &w, 0, rows, &x, true);
        for s in [0, 251, 252, 511, 512, 513, 1023, 1024, 1099] {
            let alone = linear(&cpu, &w, 0, rows, &x[s * cols..(s + 1) * cols], true);
            assert_eq!(
                bits(&alone),
                bits(&all[s * rows..(s + 1) * rows]),
                "{tier:?} row {s}"
            );
        }
        let expected = linear(&Plain, &w, 0, rows, &x, true);
        assert_sums(&all, &expected, &w, 0, &x, &format!("{tier:?}"));
    });
}

#[test]
fn scales_that_do_not_fold_are_still_right_beside_those_that_do() {
    each_tier(|tier| {
        let cpu = Cpu::with_tier(2, tier).unwrap();
        let mut random = Random(17);
        let (rows, cols) = (128, 128);
        for kind in [Kind::Fp8(32), Kind::Fp4] {
            let mut w = matrix(&mut random, kind, rows, cols);
            let extreme = |count: usize| {
                let mut scales = vec![120; count];
                // In the second pair of strips only.
                scales[count / 4 + 1] = 1;
                scales[count / 4 + 2] = 0;
                Scales::E8m0(Bytes::from_vec(scales))
            };
            match &mut w.format {
                Format::Fp8 { scales, .. } => *scales = extreme(16),
                Format::Fp4 { scales } => *scales = extreme(rows * 4),
                _ => unreachable!(),
            }
            for count in [1, 20] {
                let x = random.floats(count * cols, true);
                let found = linear(&cpu, &w, 0, rows, &x, true);
                let expected = linear(&Plain, &w, 0, rows, &x, true);
                assert_sums(&found, &expected, &w, 0, &x, &format!("{tier:?} {kind:?}"));
                let part = linear(&cpu, &w, 40, 50, &x, true);
                for s in 0..count {
                    assert_eq!(
                        bits(&part[s * 50..(s + 1) * 50]),
                        bits(&found[s * rows + 40..][..50])
                    );
                }
            }
        }
    });
}

#[test]
fn many_jobs_at_once_are_many_jobs_one_by_one() {
    each_tier(|tier| {
        let cpu = Cpu::with_tier(2, tier).unwrap();
        let mut random = Random(19);
        let mut cases = Vec::new();
        for i in 0..24 {
            let kind = KINDS[i % KINDS.len()];
            let (rows, cols) = (1 + random.below(90), 32 * (1 + random.below(20)));
            let w = matrix(&mut random, kind, rows, cols);
            let count = random.below(4);
            let x = random.floats(count * cols, true);
            cases.push((w, x, count * rows));
        }
        let mut together: Vec<Vec<f32>> = cases.iter().map(|c| vec![f32::NAN; c.2]).collect();
        let mut jobs: Vec<Linear<'_>> = Vec::new();
        for ((w, x, _), y) in cases.iter().zip(&mut together) {
            jobs.push(Linear {
                w,
                first_row: 0,
                x,
                y,
                exact: true,
            });
        }
        cpu.linear(&mut jobs);
        for ((w, x, _), y) in cases.iter().zip(&together) {
            assert_eq!(
                bits(&linear(&cpu, w, 0, w.rows, x, true)),
                bits(y),
                "{tier:?}"
            );
        }
        // Two matrices behind the same input share its packing.
        let x = random.floats(3 * 64, true);
        let pair = [
            matrix(&mut random, Kind::Fp4, 50, 64),
            matrix(&mut random, Kind::Fp8(32), 70, 64),
        ];
        let (mut a, mut b) = (vec![0.0; 150], vec![0.0; 210]);
        cpu.linear(&mut [
            Linear {
                w: &pair[0],
                first_row: 0,
                x: &x,
                y: &mut a,
                exact: true,
            },
            Linear {
                w: &pair[1],
                first_row: 0,
                x: &x,
                y: &mut b,
                exact: true,
            },
        ]);
        assert_eq!(bits(&a), bits(&linear(&cpu, &pair[0], 0, 50, &x, true)));
        assert_eq!(bits(&b), bits(&linear(&cpu, &pair[1], 0, 70, &x, true)));
    });
}

#[test]
fn f32_sums_are_better_than_running_ones() {
    let root_mean_square = |found: &[f32], expected: &[f32]| {
        let errors = found.iter().zip(expected);
        let square: f64 = errors.map(|(a, b)| f64::from(a - b).powi(2)).sum();
        (square / found.len() as f64).sqrt()
    };
    each_tier(|tier| {
        let cpu = Cpu::with_tier(1, tier).unwrap();
        let mut random = Random(23);
        let (rows, cols) = (64, 16384);
        let w = matrix(&mut random, Kind::F32, rows, cols);
        let x = random.floats(cols, false);
        let expected = linear(&Plain, &w, 0, rows, &x, false);
        let found = linear(&cpu, &w, 0, rows, &x, false);
        let mut weights = vec![0.0; cols];
        let running: Vec<f32> = (0..rows)
            .map(|n| {
                w.row(n, 0..cols, &mut weights);
                weights.iter().zip(&x).fold(0.0, |sum, (w, x)| sum + w * x)
            })
            .collect();
        let (ours, theirs) = (
            root_mean_square(&found, &expected),
            root_mean_square(&running, &expected),
        );
        assert!(ours * 5.0 < theirs, "{tier:?}: {ours} against {theirs}");
    });
}

fn attend(
    kernels: &dyn Kernels,
    q: &[f32],
    keys: Keys<'_>,
    width: usize,
    sink: &[f32],
    exact: bool,
) -> Vec<f32> {
    let mut out = vec![f32::NAN; q.len()];
    let scale = 1.0 / (width as f32).sqrt();
    kernels.attend(&mut Attend {
        q,
        keys,
        width,
        sink,
        scale,
        exact,
        out: &mut out,
    });
    out
}

fn bf16_of(values: &[f32]) -> Vec<u16> {
    values.iter().map(|v| (v.to_bits() >> 16) as u16).collect()
}

#[test]
fn attention_agrees_with_the_plain_loops() {
    each_tier(|tier| {
        let cpu = Cpu::with_tier(1, tier).unwrap();
        let mut random = Random(29);
        for (heads, width, n) in [
            (1, 32, 1),
            (3, 40, 5),
            (4, 64, 33),
            (8, 16, 31),
            (16, 96, 64),
            (64, 512, 40),
            (17, 128, 640),
            (40, 64, 1100),
            (2, 7, 9),
            (5, 64, 0),
        ] {
            for exact in [false, true] {
                let q = random.floats(heads * width, exact);
                let keys = random.floats(n * width, exact);
                let sink = random.floats(heads, false);
                let halves = bf16_of(&keys);
                let keys = if exact {
                    Keys::Bf16(&halves)
                } else {
                    Keys::F32(&keys)
                };
                let found = attend(&cpu, &q, keys, width, &sink, exact);
                let expected = attend(&Plain, &q, keys, width, &sink, exact);
                // Plain: rounding of f32 sums. Exact: a probability near a tie may round to the other side, which
                // moves it by 2^-8 of itself; few do, so the sum moves by much less than its size times that.
                let allowed = if exact { 2e-3 } else { 2e-5 };
                for (i, (a, b)) in found.iter().zip(&expected).enumerate() {
                    assert!(
                        (a - b).abs() <= allowed,
                        "{tier:?} {heads} {width} {n} exact {exact} at {i}: {a} for {b}"
                    );
                }
                let square: f64 = found
                    .iter()
                    .zip(&expected)
                    .map(|(a, b)| f64::from(a - b).powi(2))
                    .sum();
                assert!(
                    (square / found.len() as f64).sqrt() < if exact { 2e-4 } else { 1e-6 },
                    "{tier:?} {heads} {width} {n}"
                );
                // A head is the same alone.
                for h in [0, heads / 2, heads - 1] {
                    let alone = attend(
                        &cpu,
                        &q[h * width..(h + 1) * width],
                        keys,
                        width,
                        &sink[h..h + 1],
                        exact,
                    );
                    assert_eq!(
                        bits(&alone),
                        bits(&found[h * width..(h + 1) * width]),
                        "{tier:?} head {h} of {heads}"
                    );
                }
            }
        }
    });
}

#[test]
fn attention_with_large_scores_and_sinks_stays_finite() {
    each_tier(|tier| {
        let cpu = Cpu::with_tier(1, tier).unwrap();
        let mut random = Random(31);
        let (heads, width, n) = (4, 64, 50);
        let q: Vec<f32> = random
            .floats(heads * width, true)
            .iter()
            .map(|v| v * 64.0)
            .collect();
        let halves = bf16_of(&random.floats(n * width, true));
        for sink in [-1e30, 0.0, 1e4] {
            let sink = vec![sink; heads];
            let found = attend(&cpu, &q, Keys::Bf16(&halves), width, &sink, true);
            let expected = attend(&Plain, &q, Keys::Bf16(&halves), width, &sink, true);
            for (a, b) in found.iter().zip(&expected) {
                // Scores of hundreds have an error of 1e-5 of themselves, which `exp` makes absolute.
                assert!((a - b).abs() < 2e-2, "{tier:?}: {a} for {b}");
            }
        }
    });
}

#[test]
fn index_scores_agree_with_the_plain_loops() {
    each_tier(|tier| {
        let cpu = Cpu::with_tier(1, tier).unwrap();
        let mut random = Random(37);
        for (heads, width, n) in [
            (64, 128, 300),
            (32, 128, 129),
            (5, 32, 7),
            (3, 20, 33),
            (33, 64, 1),
            (2, 64, 0),
        ] {
            for (exact_keys, exact_q) in [(true, true), (true, false), (false, false)] {
                let q = random.floats(heads * width, exact_q);
                let w = random.floats(heads, false);
                let keys = random.floats((n + 3) * width, exact_keys);
                let halves = bf16_of(&keys);
                let keys = if exact_keys {
                    Keys::Bf16(&halves)
                } else {
                    Keys::F32(&keys)
                };
                let mut found = vec![f32::NAN; n];
                cpu.index_scores(&q, &w, keys, width, &mut found);
                let mut expected = vec![0.0; n];
                Plain.index_scores(&q, &w, keys, width, &mut expected);
                // Dots of some ten, weighted and summed over heads: 1e-6 of the sum of their sizes.
                let size = 1e-6 * (width as f32).sqrt() * heads as f32;
                for (a, b) in found.iter().zip(&expected) {
                    assert!(
                        (a - b).abs() <= size,
                        "{tier:?} {heads} {width} {n}: {a} for {b}"
                    );
                }
                // A key is the same among fewer.
                if n > 4 {
                    let mut fewer = vec![f32::NAN; n - 4];
                    cpu.index_scores(&q, &w, keys, width, &mut fewer);
                    assert_eq!(bits(&fewer), bits(&found[..n - 4]));
                }
            }
        }
    });
}

#[test]
fn exact_inputs_are_not_rounded_on_the_way() {
    // One product a row: the output is it, to the bit.
    each_tier(|tier| {
        let cpu = Cpu::with_tier(1, tier).unwrap();
        let mut random = Random(41);
        for kind in [Kind::Fp8(128), Kind::Fp4, Kind::Bf16] {
            let (rows, cols) = (64, 128);
            let w = matrix(&mut random, kind, rows, cols);
            for k in [0, 1, 31, 32, 127] {
                let mut x = vec![0.0; cols];
                x[k] = from_bf16(0x3f81);
                let found = linear(&cpu, &w, 0, rows, &x, true);
                let mut weight = [0.0];
                for (n, y) in found.iter().enumerate() {
                    w.row(n, k..k + 1, &mut weight);
                    assert_eq!(*y, weight[0] * x[k], "{tier:?} {kind:?} row {n} column {k}");
                }
            }
        }
    });
}

#[test]
fn wrong_lengths_are_refused_with_a_reason() {
    let cpu = Cpu::new(1).unwrap();
    let mut random = Random(43);
    let refused = |body: &mut dyn FnMut()| {
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body));
        let panic = outcome.expect_err("the call went through");
        panic.downcast_ref::<String>().cloned().unwrap_or_default()
    };
    let w = matrix(&mut random, Kind::Fp8(128), 64, 128);
    let x = vec![0.0; 128];
    let mut y = vec![0.0; 64];
    let text = refused(&mut || {
        cpu.linear(&mut [Linear {
            w: &w,
            first_row: 1,
            x: &x,
            y: &mut y,
            exact: true,
        }])
    });
    assert_eq!(text, "rows 1..65 of a matrix of 64 rows");
    let text = refused(&mut || {
        cpu.linear(&mut [Linear {
            w: &w,
            first_row: 0,
            x: &x[1..],
            y: &mut y,
            exact: true,
        }])
    });
    assert_eq!(text, "127 inputs are not whole rows of 128");
    let short = Matrix {
        data: Bytes::from_vec(vec![0; 64 * 128 - 1]),
        ..w.clone()
    };
    let text = refused(&mut || {
        cpu.linear(&mut [Linear {
            w: &short,
            first_row: 0,
            x: &x,
            y: &mut y,
            exact: true,
        }])
    });
    assert_eq!(text, "a matrix of 64 by 128 has 8191 bytes for 8192");
    let scales = Scales::E8m0(Bytes::from_vec(vec![127; 15]));
    let short = Matrix {
        format: Format::Fp8 { block: 16, scales },
        ..w.clone()
    };
    let text = refused(&mut || {
        cpu.linear(&mut [Linear {
            w: &short,
            first_row: 0,
            x: &x,
            y: &mut y,
            exact: true,
        }])
    });
    assert_eq!(text, "a matrix of 64 by 128 has 15 scales for 32");
    let keys = vec![0u16; 65];
    let text = refused(&mut || cpu.index_scores(&x, &[1.0; 2], Keys::Bf16(&keys), 64, &mut y[..1]));
    assert_eq!(text, "65 key values are not whole rows of 64");
    let text =
        refused(&mut || cpu.index_scores(&x, &[1.0; 2], Keys::Bf16(&keys[..64]), 64, &mut y[..2]));
    assert_eq!(text, "2 scores of 1 keys");
}

#[test]
fn kernels_may_be_called_from_the_body_of_a_parallel_call() {
    each_tier(|tier| {
        let cpu = Cpu::with_tier(2, tier).unwrap();
        let mut random = Random(47);
        let w = matrix(&mut random, Kind::Fp4, 96, 256);
        let x = random.floats(3 * 256, true);
        let expected = linear(&cpu, &w, 0, 96, &x, true);
        cpu.parallel(8, 1 << 20, &|_| {
            assert_eq!(bits(&linear(&cpu, &w, 0, 96, &x, true)), bits(&expected));
        });
    });
}

#[test]
fn a_panic_in_a_body_comes_back_and_the_kernels_live_on() {
    let cpu = Cpu::new(2).unwrap();
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        cpu.parallel(16, 1 << 20, &|i| assert!(i != 7, "item {i} threw"));
    }));
    assert_eq!(
        *outcome.unwrap_err().downcast::<String>().unwrap(),
        "item 7 threw"
    );
    let done = std::sync::atomic::AtomicUsize::new(0);
    cpu.parallel(16, 1 << 20, &|_| {
        done.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    });
    assert_eq!(done.into_inner(), 16);
}

#[test]
fn a_tier_is_named_or_refused() {
    let cpu = Cpu::with_tier(2, Tier::Portable).unwrap();
    assert_eq!(cpu.describe(), "cpu (portable, 2 threads)");
    assert_eq!(
        Cpu::with_tier(1, Tier::Portable).unwrap().describe(),
        "cpu (portable, 1 thread)"
    );
    assert!(Cpu::new(0).unwrap().threads() >= 1);
    let has = Tier::available();
    for tier in [Tier::Avx2, Tier::Avx512, Tier::Amx] {
        match Cpu::with_tier(1, tier) {
            Ok(cpu) => assert_eq!(cpu.tier(), tier),
            Err(error) => {
                assert!(!has.contains(&tier));
                assert_eq!(error.code.name(), "UNSUPPORTED");
            }
        }
    }
}
