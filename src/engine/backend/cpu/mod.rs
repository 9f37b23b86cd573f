//! Inner loops with vector units and threads.
//!
//! [`Cpu`] picks once, from what the processor has, how it computes ([`Tier`]): matrix units for exact
//! bfloat16 inputs, vectors of f32 for everything else. The choice never depends on how many rows a call
//! has, so a row's result is the same alone, in a batch, and on any number of threads. Weights are read in
//! their published bytes and converted block by block in the first- and second-level caches; working
//! memory belongs to threads and is kept.
//!
//! * `pool`: the threads; `cores`: how many.
//! * `linear`: jobs to tasks; `dense`: a task in f32; `amx`: a task on tiles.
//! * `elementwise`: rounding, quantising, gating, norms.
//! * `attention`: attention and index scores in f32; on tiles in `amx`.
//! * `lanes`: what a vector of each kind can do.

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod amx;
#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
#[path = "amx_absent.rs"]
mod amx;
mod attention;
mod cores;
mod dense;
mod elementwise;
mod lanes;
mod linear;
mod pool;
mod scratch;

use self::amx::Tiles;
use self::attention::{AttendF32, IndexF32, key_count};
use self::lanes::{Lanes, Work};
use self::pool::Pool;
use self::scratch::with_buffers;
use super::host::kernels::{Attend, Kernels, Keys, Linear};
use crate::engine::{Code, Error};

/// Multiply-adds below which another thread costs more than it saves: a few microseconds of work.
const INLINE: usize = 1 << 16;

/// How a machine computes, from the plainest to the fastest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tier {
    /// Any machine.
    Portable,
    /// AVX2 with FMA and F16C.
    Avx2,
    /// AVX-512 F, BW, DQ and VL.
    Avx512,
    /// AVX-512 with VBMI and BF16, and AMX with bfloat16.
    Amx,
}

impl Tier {
    /// All that this machine has; [`Self::Portable`] is the first.
    pub fn available() -> Vec<Self> {
        [Self::Portable, Self::Avx2, Self::Avx512, Self::Amx]
            .into_iter()
            .filter(|tier| tier.detect().is_some())
            .collect()
    }

    fn detect(self) -> Option<(Isa, Option<Tiles>)> {
        #[cfg(target_arch = "x86_64")]
        let avx2 = || lanes::Avx2::detect().map(Isa::Avx2);
        #[cfg(target_arch = "x86_64")]
        let avx512 = || lanes::Avx512::detect().map(Isa::Avx512);
        #[cfg(not(target_arch = "x86_64"))]
        let (avx2, avx512) = (|| None, || None);
        match self {
            Self::Portable => Some((Isa::Portable(lanes::Portable), None)),
            Self::Avx2 => avx2().map(|isa| (isa, None)),
            Self::Avx512 => avx512().map(|isa| (isa, None)),
            Self::Amx => avx512().and_then(|isa| Some((isa, Some(Tiles::detect()?)))),
        }
    }
}

/// The vectors of a machine, with the proof that it has them.
#[derive(Clone, Copy, Debug)]
enum Isa {
    Portable(lanes::Portable),
    #[cfg(target_arch = "x86_64")]
    Avx2(lanes::Avx2),
    #[cfg(target_arch = "x86_64")]
    Avx512(lanes::Avx512),
}

impl Isa {
    fn run<W: Work>(self, work: W) -> W::Out {
        match self {
            Self::Portable(l) => l.run(work),
            #[cfg(target_arch = "x86_64")]
            Self::Avx2(l) => l.run(work),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512(l) => l.run(work),
        }
    }
}

/// The kernels of this machine, with their threads.
#[derive(Debug)]
pub struct Cpu {
    tier: Tier,
    isa: Isa,
    tiles: Option<Tiles>,
    pool: Pool,
}

impl Cpu {
    /// The best tier of this machine. `threads` includes the calling one; 0 takes as many as there are
    /// physical cores for this process.
    pub fn new(threads: usize) -> Result<Self, Error> {
        let best = Tier::available().into_iter().max();
        Self::with_tier(threads, best.unwrap_or(Tier::Portable))
    }

    /// A tier by choice; one that the machine lacks is [`Code::Unsupported`].
    pub fn with_tier(threads: usize, tier: Tier) -> Result<Self, Error> {
        let (isa, tiles) = tier.detect().ok_or_else(|| {
            Error::new(
                Code::Unsupported,
                "tier",
                format!("this machine does not have what \"{tier:?}\" needs"),
            )
        })?;
        let threads = if threads == 0 {
            cores::count()
        } else {
            threads
        };
        let pool = Pool::new(threads)?;
        Ok(Self {
            tier,
            isa,
            tiles,
            pool,
        })
    }

    /// What was chosen.
    pub fn tier(&self) -> Tier {
        self.tier
    }
}

impl Kernels for Cpu {
    fn describe(&self) -> String {
        let units = match self.tier {
            Tier::Portable => "portable",
            Tier::Avx2 => "AVX2",
            Tier::Avx512 => "AVX-512",
            Tier::Amx => "AMX and AVX-512",
        };
        let threads = self.threads();
        format!(
            "cpu ({units}, {threads} thread{})",
            if threads == 1 { "" } else { "s" }
        )
    }

    fn threads(&self) -> usize {
        self.pool.threads()
    }

    fn parallel(&self, items: usize, cost: usize, body: &(dyn Fn(usize) + Sync)) {
        // Cheap items are handed out several at a time.
        let grain = (INLINE / 4).checked_div(cost).unwrap_or(items).max(1);
        let grain = if items.saturating_mul(cost) < INLINE {
            items
        } else {
            grain
        };
        self.pool.run(items, grain, body);
    }

    fn linear(&self, jobs: &mut [Linear<'_>]) {
        linear::run(self.isa, self.tiles, &self.pool, jobs);
    }

    fn attend(&self, job: &mut Attend<'_>) {
        let (heads, width) = (job.sink.len(), job.width);
        check_keys(job.keys, width);
        assert!(
            job.q.len() == heads * width && job.out.len() == heads * width,
            "{heads} heads of {width} have {} queries and {} outputs",
            job.q.len(),
            job.out.len()
        );
        with_buffers(|buffers| match (self.tiles, job.keys) {
            (Some(tiles), Keys::Bf16(keys)) if job.exact && amx::takes_width(width) => {
                tiles.attend(job, keys, buffers);
            }
            _ => self.isa.run(AttendF32 { job, buffers }),
        });
    }

    fn index_scores(&self, q: &[f32], w: &[f32], keys: Keys<'_>, width: usize, out: &mut [f32]) {
        check_keys(keys, width);
        let n = key_count(keys, width);
        assert!(n >= out.len(), "{} scores of {n} keys", out.len());
        assert!(
            q.len() == w.len() * width,
            "{} heads of {width} have {} queries",
            w.len(),
            q.len()
        );
        with_buffers(|buffers| match (self.tiles, keys) {
            // Whether the query is exact is a fact of its row alone.
            (Some(tiles), Keys::Bf16(keys)) if amx::takes_width(width) && is_bf16(q) => {
                tiles.index_scores(q, w, keys, width, out, buffers);
            }
            _ => self.isa.run(IndexF32 {
                q,
                w,
                keys,
                width,
                out,
                buffers,
            }),
        });
    }

    fn round_bf16(&self, x: &mut [f32]) {
        elementwise::round_bf16(x);
    }

    fn fake_fp8(&self, x: &mut [f32], group: usize) {
        elementwise::fake_fp8(x, group);
    }

    fn fake_fp4(&self, x: &mut [f32]) {
        elementwise::fake_fp4(x);
    }

    fn hadamard(&self, x: &mut [f32]) {
        elementwise::hadamard(x);
    }

    fn sum_of_squares(&self, x: &[f32]) -> f64 {
        elementwise::sum_of_squares(x)
    }

    fn scale_by(&self, x: &mut [f32], weight: &[f32], scale: f32) {
        elementwise::scale_by(x, weight, scale);
    }

    fn swiglu(&self, gate: &mut [f32], up: &[f32], limit: f32, weight: f32, round: bool) {
        elementwise::swiglu(gate, up, limit, weight, round);
    }

    fn add(&self, y: &mut [f32], x: &[f32], round: bool) {
        elementwise::add(y, x, round);
    }

    fn add_scaled(&self, y: &mut [f32], a: f32, x: &[f32]) {
        elementwise::add_scaled(y, a, x);
    }

    fn rotate(&self, x: &mut [f32], cos: &[f32], sin: &[f32]) {
        elementwise::rotate(x, cos, sin);
    }

    fn softmax_step(
        &self,
        out: &mut [f32],
        total: &mut [f32],
        max: &[f32],
        gate: &[f32],
        value: &[f32],
    ) {
        elementwise::softmax_step(out, total, max, gate, value);
    }
}

fn check_keys(keys: Keys<'_>, width: usize) {
    let len = match keys {
        Keys::F32(rows) => rows.len(),
        Keys::Bf16(rows) => rows.len(),
    };
    assert!(
        width > 0 && len.is_multiple_of(width),
        "{len} key values are not whole rows of {width}"
    );
}

/// Whether all values are exactly bfloat16.
fn is_bf16(values: &[f32]) -> bool {
    values.iter().fold(0, |bits, v| bits | v.to_bits()) & 0xffff == 0
}

/// Asks for memory that will be read soon, into the second-level cache. Any address is allowed.
#[inline(always)]
fn prefetch(at: *const u8, len: usize) {
    #[cfg(target_arch = "x86_64")]
    for line in (0..len).step_by(64) {
        use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        // SAFETY: a prefetch reads nothing a program could notice, and every processor of this architecture has it.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(at.wrapping_add(line).cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (at, len);
}
