//! Matrix units of Intel processors (AMX): bfloat16 products of exact inputs, sums in f32.
//!
//! A tile is 16 rows of 64 bytes. `C[i, j] += Σ_k A[i, k] · B[k, j]` takes A as 16 rows of 32 bfloat16 and B
//! as pairs along k: `B[k/2, j]` holds `(B[k, j], B[k+1, j])`. Everything here puts what is large (weights,
//! keys) into A, where rows lie as they are stored, and rows of x or heads into the columns of B. An
//! output then passes through the same instructions whether B has one column or sixteen, so its value
//! does not depend on its neighbours.
//!
//! Tiles are released before a kernel returns: host threads keep a clean state, and the operating system
//! need not save 8 KiB for them.

mod attention;
mod inputs;
mod linear;
mod stream;
mod weights;

use std::arch::asm;
use std::arch::x86_64::{__cpuid, __cpuid_count};
use std::marker::PhantomData;

pub(super) use attention::takes_width;
pub(super) use inputs::{columns, pack, tile_len};
pub(super) use linear::{CHUNK, MAX_PANEL, Part};
pub(super) use weights::takes;

/// Rows of A that are multiplied at a time: two tiles.
pub(super) const PAIR: usize = 32;
/// Columns of A, that is values of the sum, in one tile.
pub(super) const DEPTH: usize = 32;
/// Rows of a tile.
const ROWS: usize = 16;
/// bfloat16 values of a whole tile.
const TILE: usize = ROWS * DEPTH;

/// Proof that this machine has AMX with bfloat16, AVX-512 with VBMI and BF16, and that the operating
/// system lets this process use them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tiles(());

impl Tiles {
    pub(super) fn detect() -> Option<Self> {
        let vectors = super::lanes::Avx512::detect().is_some()
            && is_x86_feature_detected!("avx512vbmi")
            && is_x86_feature_detected!("avx512bf16");
        (vectors && has_tiles() && may_use_tiles()).then_some(Self(()))
    }
}

/// Processor bits for AMX-TILE and AMX-BF16, and a palette of the one shape known so far.
fn has_tiles() -> bool {
    if __cpuid(0).eax < 0x1d {
        return false;
    }
    let features = __cpuid_count(7, 0).edx;
    if features & (1 << 22) == 0 || features & (1 << 24) == 0 {
        return false;
    }
    let palette = __cpuid_count(0x1d, 1);
    palette.ebx & 0xffff == 64 && palette.ebx >> 16 >= 8 && palette.ecx & 0xffff >= ROWS as u32
}

/// Asks Linux for the tile state, once for the process; refused on old kernels, and where a thread has a
/// signal stack that is too small for it.
fn may_use_tiles() -> bool {
    const ARCH_REQ_XCOMP_PERM: libc::c_long = 0x1023;
    const TILE_DATA: libc::c_long = 18;
    // SAFETY: the call takes two numbers and touches no memory of ours.
    unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, TILE_DATA) == 0 }
}

/// Tiles of this thread while they are configured: 0 to 3 hold C, 4 and 5 A, 6 and 7 B.
struct Loaded(PhantomData<*const ()>);

impl Loaded {
    /// Configures the tiles for B (and C) of `columns` columns, 1 to 16.
    fn new(_: Tiles, columns: usize) -> Self {
        #[repr(C, align(64))]
        struct Config([u8; 64]);
        let mut config = Config([0; 64]);
        config.0[0] = 1;
        let width = (4 * columns) as u8;
        for (tile, bytes) in [width, width, width, width, 64, 64, width, width]
            .into_iter()
            .enumerate()
        {
            config.0[16 + 2 * tile] = bytes;
            config.0[48 + tile] = ROWS as u8;
        }
        // SAFETY: `Tiles` proves the instruction; 64 bytes of a valid configuration are read.
        unsafe {
            asm!("ldtilecfg [{config}]", config = in(reg) &config, options(nostack, preserves_flags));
        }
        Self(PhantomData)
    }
}

impl Drop for Loaded {
    fn drop(&mut self) {
        // SAFETY: tiles are configured, so the instruction exists; no kernel runs on this thread now.
        unsafe { asm!("tilerelease", options(nostack, preserves_flags)) };
    }
}

/// Two tiles of A (side by side in rows) times one or two of B.
#[derive(Clone, Copy)]
struct Product {
    a: [*const u16; 2],
    /// Bytes from row to row, and from step to step.
    a_stride: usize,
    a_step: usize,
    b: [*const u16; 2],
    b_stride: usize,
    b_step: usize,
    /// Tiles one after the other, 16 rows of 64 bytes each: first the two of `b[0]`, then those of `b[1]`.
    c: *mut f32,
    /// Tiles along the sum.
    steps: usize,
    /// Sums start at zero instead of at what `c` holds.
    is_first: bool,
}

impl Product {
    /// # Safety
    /// `steps` ≥ 1 tiles can be read at all four inputs and four tiles read and written at `c`; `Loaded` was made
    /// with the number of columns that B has.
    #[inline(always)]
    unsafe fn two_by_two(&self, _: &Loaded) {
        // SAFETY: the caller's promise. The tiles used are declared; nothing else of this program uses any.
        unsafe {
            asm!(
                "test {first}, {first}",
                "jz 3f",
                "tilezero tmm0",
                "tilezero tmm1",
                "tilezero tmm2",
                "tilezero tmm3",
                "jmp 2f",
                "3:",
                "tileloadd tmm0, [{c} + {row}*1]",
                "tileloadd tmm1, [{c} + {row}*1 + 1024]",
                "tileloadd tmm2, [{c} + {row}*1 + 2048]",
                "tileloadd tmm3, [{c} + {row}*1 + 3072]",
                "2:",
                "tileloadd tmm6, [{b0} + {bs}*1]",
                "tileloadd tmm4, [{a0} + {as}*1]",
                "tileloadd tmm5, [{a1} + {as}*1]",
                "tileloadd tmm7, [{b1} + {bs}*1]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tdpbf16ps tmm1, tmm5, tmm6",
                "tdpbf16ps tmm2, tmm4, tmm7",
                "tdpbf16ps tmm3, tmm5, tmm7",
                "add {a0}, {at}",
                "add {a1}, {at}",
                "add {b0}, {bt}",
                "add {b1}, {bt}",
                "dec {steps}",
                "jnz 2b",
                "tilestored [{c} + {row}*1], tmm0",
                "tilestored [{c} + {row}*1 + 1024], tmm1",
                "tilestored [{c} + {row}*1 + 2048], tmm2",
                "tilestored [{c} + {row}*1 + 3072], tmm3",
                first = in(reg) usize::from(self.is_first),
                c = in(reg) self.c,
                row = in(reg) 64usize,
                a0 = inout(reg) self.a[0] => _,
                a1 = inout(reg) self.a[1] => _,
                b0 = inout(reg) self.b[0] => _,
                b1 = inout(reg) self.b[1] => _,
                as = in(reg) self.a_stride,
                bs = in(reg) self.b_stride,
                at = in(reg) self.a_step,
                bt = in(reg) self.b_step,
                steps = inout(reg) self.steps => _,
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack),
            );
        }
    }

    /// # Safety
    /// As [`Self::two_by_two`], without `b[1]` and the last two tiles of `c`.
    #[inline(always)]
    unsafe fn two_by_one(&self, _: &Loaded) {
        // SAFETY: as above.
        unsafe {
            asm!(
                "test {first}, {first}",
                "jz 3f",
                "tilezero tmm0",
                "tilezero tmm1",
                "jmp 2f",
                "3:",
                "tileloadd tmm0, [{c} + {row}*1]",
                "tileloadd tmm1, [{c} + {row}*1 + 1024]",
                "2:",
                "tileloadd tmm6, [{b0} + {bs}*1]",
                "tileloadd tmm4, [{a0} + {as}*1]",
                "tileloadd tmm5, [{a1} + {as}*1]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tdpbf16ps tmm1, tmm5, tmm6",
                "add {a0}, {at}",
                "add {a1}, {at}",
                "add {b0}, {bt}",
                "dec {steps}",
                "jnz 2b",
                "tilestored [{c} + {row}*1], tmm0",
                "tilestored [{c} + {row}*1 + 1024], tmm1",
                first = in(reg) usize::from(self.is_first),
                c = in(reg) self.c,
                row = in(reg) 64usize,
                a0 = inout(reg) self.a[0] => _,
                a1 = inout(reg) self.a[1] => _,
                b0 = inout(reg) self.b[0] => _,
                as = in(reg) self.a_stride,
                bs = in(reg) self.b_stride,
                at = in(reg) self.a_step,
                bt = in(reg) self.b_step,
                steps = inout(reg) self.steps => _,
                out("tmm0") _, out("tmm1") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _,
                options(nostack),
            );
        }
    }
}
