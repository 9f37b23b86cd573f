//! Rates of the CPU kernels beside what the machine's memory gives: `cargo bench --bench kernels`.
//!
//! Arguments choose: a tier (`amx`, `avx512`, `avx2`, `portable`), a number of threads, `plain` for f32
//! activations, and names of parts (`memory`, `linear`, `attend`, `index`, `pool`), and of formats. `cores` counts processor time, for a machine
//! that others use too. Each figure is the best of several
//! rounds: other programs may share the machine.

use std::hint::black_box;
use std::time::Instant;

use fathom::engine::backend::cpu::{Cpu, Tier};
use fathom::engine::backend::host::kernels::{Attend, Kernels, Keys, Linear};
use fathom::engine::backend::host::matrix::{Format, Matrix, Scales};
use fathom::engine::backend::host::numbers::round_bf16;
use fathom::engine::weights::Bytes;

/// Rows and columns of the matrices; some of them together are larger than any cache but a server's third.
const SIZE: usize = 4096;
/// Weight bytes that are cycled over, so that each pass comes from memory.
const CYCLE: usize = 512 << 20;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let has = |name: &str| arguments.iter().any(|a| a == name);
    let parts = ["linear", "attend", "index", "pool", "memory"];
    let wants = |part: &str| has(part) || !parts.iter().any(|p| has(p));
    let threads = arguments.iter().find_map(|a| a.parse().ok()).unwrap_or(0);
    let tiers = [
        ("portable", Tier::Portable),
        ("avx2", Tier::Avx2),
        ("avx512", Tier::Avx512),
        ("amx", Tier::Amx),
    ];
    let tier = tiers.iter().find(|(name, _)| has(name));
    let cpu = match tier {
        Some((_, tier)) => Cpu::with_tier(threads, *tier),
        None => Cpu::new(threads),
    };
    let cpu = match cpu {
        Ok(cpu) => cpu,
        Err(error) => return println!("{error}"),
    };
    println!("{}", cpu.describe());
    if wants("memory") {
        println!(
            "memory: {:.1} GB/s read by all threads",
            bandwidth(&cpu) / 1e9
        );
    }
    if wants("pool") {
        let seconds = best(200, None, || {
            cpu.parallel(2, 1 << 30, &|i| _ = black_box(i))
        });
        println!("pool: {:.2} µs for an empty call", seconds * 1e6);
    }
    if wants("linear") {
        let formats = ["fp8/128", "fp8/32", "fp4", "bf16", "f32"];
        let exact = !has("plain");
        for name in formats {
            if has(name) || !formats.iter().any(|f| has(f)) {
                linear(&cpu, name, exact);
            }
        }
    }
    if wants("attend") {
        attend(&cpu, !has("plain"));
    }
    if wants("index") {
        index(&cpu);
    }
}

/// With the argument `cores`, rates are by processor time.
fn by_cores(cpu: &Cpu) -> Option<usize> {
    std::env::args()
        .any(|a| a == "cores")
        .then_some(cpu.threads())
}

/// Seconds of the best round: by the clock, or, with `by_cores`, processor time over the threads. The latter
/// is what the clock would show were nobody else on the machine (except for caches and memory).
fn best(rounds: usize, by_cores: Option<usize>, mut body: impl FnMut()) -> f64 {
    (0..rounds).fold(f64::INFINITY, |best, _| {
        let (start, used) = (Instant::now(), processor_time());
        body();
        best.min(match by_cores {
            Some(threads) => (processor_time() - used) / threads as f64,
            None => start.elapsed().as_secs_f64(),
        })
    })
}

/// Seconds that all threads of this process have run.
fn processor_time() -> f64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the call writes the one structure that it is given.
    let status = unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) };
    assert_eq!(status, 0, "the clock of the process can be read");
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

fn noise(index: usize) -> u64 {
    let z = (index as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (z ^ (z >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 16
}

fn values(len: usize, exact: bool) -> Vec<f32> {
    let value = |i: usize| (noise(i) % 4001) as f32 / 1000.0 - 2.0;
    (0..len)
        .map(|i| {
            if exact {
                round_bf16(value(i))
            } else {
                value(i)
            }
        })
        .collect()
}

/// Bytes a second that all threads read together.
fn bandwidth(cpu: &Cpu) -> f64 {
    let data: Vec<u64> = (0..CYCLE / 8).map(|i| i as u64).collect();
    let parts: Vec<&[u64]> = data.chunks(1 << 16).collect();
    let seconds = best(5, by_cores(cpu), || {
        cpu.parallel(parts.len(), 1 << 30, &|i| {
            let sums = parts[i].chunks_exact(8).fold([0u64; 8], |mut sums, eight| {
                for (sum, value) in sums.iter_mut().zip(eight) {
                    *sum = sum.wrapping_add(*value);
                }
                sums
            });
            black_box(sums);
        });
    });
    CYCLE as f64 / seconds
}

fn matrix(name: &str) -> Matrix {
    let count = SIZE * SIZE;
    let bytes = |len: usize| -> Vec<u8> { (0..len).map(|i| noise(i) as u8).collect() };
    let scales = |count: usize| {
        let bytes = (0..count).map(|i| 115 + (noise(i) % 5) as u8).collect();
        Scales::E8m0(Bytes::from_vec(bytes))
    };
    let fp8 = |block: usize| {
        let mut data = bytes(count);
        data.iter_mut()
            .filter(|c| **c & 0x7f == 0x7f)
            .for_each(|c| *c ^= 1);
        let tiles = (SIZE / block) * (SIZE / block);
        (
            data,
            Format::Fp8 {
                block,
                scales: scales(tiles),
            },
        )
    };
    let (data, format) = match name {
        "fp8/128" => fp8(128),
        "fp8/32" => fp8(32),
        "fp4" => (
            bytes(count / 2),
            Format::Fp4 {
                scales: scales(count / 32),
            },
        ),
        "bf16" => {
            let word = |i: usize| 0x3c00u16 | (noise(i) as u16 & 0x83ff);
            (
                (0..count).flat_map(|i| word(i).to_le_bytes()).collect(),
                Format::Bf16,
            )
        }
        _ => {
            let value = |i: usize| (noise(i) % 2001) as f32 / 1000.0 - 1.0;
            (
                (0..count).flat_map(|i| value(i).to_le_bytes()).collect(),
                Format::F32,
            )
        }
    };
    Matrix {
        rows: SIZE,
        cols: SIZE,
        data: Bytes::from_vec(data),
        format,
    }
}

fn linear(cpu: &Cpu, name: &str, exact: bool) {
    let first = matrix(name);
    // Copies of the values, so that each pass comes from other memory.
    let copy = || Matrix {
        data: Bytes::from_vec(first.data.to_vec()),
        ..first.clone()
    };
    let matrices: Vec<Matrix> = (0..CYCLE / first.bytes()).map(|_| copy()).collect();
    for count in [1, 4, 16, 64, 256, 1024] {
        let x = values(count * SIZE, exact);
        let mut y = vec![0.0; count * SIZE];
        let mut next = 0;
        let rounds = if count == 1 { 2 * matrices.len() } else { 8 };
        let seconds = best(rounds.min(64), by_cores(cpu), || {
            let w = &matrices[next % matrices.len()];
            next += 1;
            cpu.linear(&mut [Linear {
                w,
                first_row: 0,
                x: &x,
                y: &mut y,
                exact,
            }]);
        });
        let operations = 2.0 * (count * SIZE * SIZE) as f64;
        println!(
            "linear {name:8} {count:5} rows: {:9.3} ms {:8.1} GFLOP/s {:6.1} GB/s of weights",
            seconds * 1e3,
            operations / seconds / 1e9,
            first.bytes() as f64 / seconds / 1e9
        );
    }
}

fn attend(cpu: &Cpu, exact: bool) {
    let width = 512;
    for (heads, n) in [(64, 128), (64, 640), (64, 4096), (1, 640)] {
        let q = values(heads * width, exact);
        let keys = values(n * width, true);
        let halves: Vec<u16> = keys.iter().map(|v| (v.to_bits() >> 16) as u16).collect();
        let sink = vec![0.0; heads];
        let mut out = vec![0.0; heads * width];
        let keys = if exact {
            Keys::Bf16(&halves)
        } else {
            Keys::F32(&keys)
        };
        let seconds = best(40, Some(1), || {
            cpu.attend(&mut Attend {
                q: &q,
                keys,
                width,
                sink: &sink,
                scale: 0.044,
                exact,
                out: &mut out,
            });
        });
        let operations = 4.0 * (heads * n * width) as f64;
        println!(
            "attend {heads:3} heads {n:5} keys: {:9.1} µs {:8.1} GFLOP/s on one thread",
            seconds * 1e6,
            operations / seconds / 1e9
        );
    }
}

fn index(cpu: &Cpu) {
    let width = 128;
    for (heads, n) in [(64, 4096), (32, 4096), (64, 32768)] {
        let q = values(heads * width, true);
        let keys = values(n * width, true);
        let halves: Vec<u16> = keys.iter().map(|v| (v.to_bits() >> 16) as u16).collect();
        let w = values(heads, false);
        let mut out = vec![0.0; n];
        let seconds = best(20, Some(1), || {
            cpu.index_scores(&q, &w, Keys::Bf16(&halves), width, &mut out);
        });
        let operations = 2.0 * (heads * n * width) as f64;
        println!(
            "index {heads:3} heads {n:5} keys: {:9.1} µs {:8.1} GFLOP/s on one thread",
            seconds * 1e6,
            operations / seconds / 1e9
        );
    }
}
