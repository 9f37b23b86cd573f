//! Plain inner loops: f32, one thread, nothing clever. Tests trust this one.

use super::host::kernels::{Attend, Kernels, Keys, Linear};
use super::host::numbers::{from_bf16, round_bf16};

/// The plain kernels.
#[derive(Clone, Copy, Debug, Default)]
pub struct Plain;

/// Row `j` of `keys` as f32.
fn key(keys: Keys<'_>, j: usize, width: usize, out: &mut [f32]) {
    match keys {
        Keys::F32(rows) => out.copy_from_slice(&rows[j * width..(j + 1) * width]),
        Keys::Bf16(rows) => {
            for (o, b) in out.iter_mut().zip(&rows[j * width..(j + 1) * width]) {
                *o = from_bf16(*b);
            }
        }
    }
}

fn key_count(keys: Keys<'_>, width: usize) -> usize {
    match keys {
        Keys::F32(rows) => rows.len() / width,
        Keys::Bf16(rows) => rows.len() / width,
    }
}

/// Sums run in f64: the reference must not be the less exact side of a comparison.
fn dot(a: &[f32], b: &[f32]) -> f32 {
    a.iter()
        .zip(b)
        .map(|(x, y)| f64::from(*x) * f64::from(*y))
        .sum::<f64>() as f32
}

impl Kernels for Plain {
    fn describe(&self) -> String {
        "reference (plain f32, one thread)".into()
    }

    fn threads(&self) -> usize {
        1
    }

    fn parallel(&self, items: usize, _cost: usize, body: &(dyn Fn(usize) + Sync)) {
        (0..items).for_each(body);
    }

    fn linear(&self, jobs: &mut [Linear<'_>]) {
        for job in jobs {
            let cols = job.w.cols;
            let count = job.x.len() / cols;
            if count == 0 {
                continue;
            }
            let rows = job.y.len() / count;
            let mut weights = vec![0.0; cols];
            for n in 0..rows {
                job.w.row(job.first_row + n, 0..cols, &mut weights);
                for s in 0..count {
                    job.y[s * rows + n] = dot(&job.x[s * cols..(s + 1) * cols], &weights);
                }
            }
        }
    }

    fn attend(&self, job: &mut Attend<'_>) {
        let width = job.width;
        let n = key_count(job.keys, width);
        let mut rows = vec![0.0; n * width];
        for j in 0..n {
            key(job.keys, j, width, &mut rows[j * width..(j + 1) * width]);
        }
        for (h, sink) in job.sink.iter().enumerate() {
            let q = &job.q[h * width..(h + 1) * width];
            let mut scores: Vec<f32> = rows.chunks(width).map(|k| dot(q, k) * job.scale).collect();
            let max = scores.iter().fold(*sink, |m, s| m.max(*s));
            let mut total = f64::from((sink - max).exp());
            for s in &mut scores {
                *s = (*s - max).exp();
                total += f64::from(*s);
            }
            let out = &mut job.out[h * width..(h + 1) * width];
            out.fill(0.0);
            let mut sums = vec![0.0f64; width];
            for (s, k) in scores.iter().zip(rows.chunks(width)) {
                let p = (f64::from(*s) / total) as f32;
                let p = if job.exact { round_bf16(p) } else { p };
                for (o, v) in sums.iter_mut().zip(k) {
                    *o += f64::from(p) * f64::from(*v);
                }
            }
            for (o, v) in out.iter_mut().zip(sums) {
                *o = v as f32;
            }
        }
    }

    fn index_scores(&self, q: &[f32], w: &[f32], keys: Keys<'_>, width: usize, out: &mut [f32]) {
        let mut row = vec![0.0; width];
        for (j, score) in out.iter_mut().enumerate() {
            key(keys, j, width, &mut row);
            *score = q
                .chunks(width)
                .zip(w)
                .map(|(q, w)| f64::from(*w) * f64::from(dot(q, &row).max(0.0)))
                .sum::<f64>() as f32;
        }
    }
}
