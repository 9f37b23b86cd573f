//! Working memory that a thread keeps between calls, aligned to cache lines: steady state allocates
//! nothing. A thread's share is freed when the thread ends.

use std::cell::RefCell;

#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([u8; 64]);

/// A buffer of plain numbers that only grows.
#[derive(Default)]
pub(super) struct Scratch {
    lines: Vec<Line>,
}

/// Numbers that any bytes are a value of, at most 64 bytes wide.
///
/// # Safety
/// No padding, no invalid bit patterns, an alignment of at most 64.
pub(super) unsafe trait Plain: Copy {}
// SAFETY: an integer without padding.
unsafe impl Plain for u16 {}
// SAFETY: every bit pattern is a float.
unsafe impl Plain for f32 {}

impl Scratch {
    /// `len` numbers, aligned to 64 bytes, with whatever was there before.
    pub(super) fn take<T: Plain>(&mut self, len: usize) -> &mut [T] {
        let lines = (len * size_of::<T>()).div_ceil(64);
        if self.lines.len() < lines {
            // Not `resize`: the old content need not be copied.
            self.lines = vec![Line([0; 64]); lines];
        }
        // SAFETY: the buffer holds at least `len` numbers of `T`, is initialised, is aligned for any
        // `Plain`, and is borrowed for as long as the result.
        unsafe { std::slice::from_raw_parts_mut(self.lines.as_mut_ptr().cast(), len) }
    }
}

/// The buffers of one thread, by what they hold.
#[cfg_attr(
    not(all(target_arch = "x86_64", target_os = "linux")),
    expect(dead_code, reason = "some are for tiles only")
)]
#[derive(Default)]
pub(super) struct Buffers {
    /// Weights or keys as the arithmetic wants them.
    pub(super) weights: Scratch,
    /// Sums that are not final yet.
    pub(super) sums: Scratch,
    /// Activations or queries as the arithmetic wants them.
    pub(super) inputs: Scratch,
    /// Attention scores.
    pub(super) scores: Scratch,
    /// Attention probabilities.
    pub(super) shares: Scratch,
}

thread_local! {
    static BUFFERS: RefCell<Buffers> = RefCell::default();
}

/// Lends this thread's buffers to an inner loop. Inner loops call no code of others, so the loan is
/// never nested; were it, the inner one would get fresh memory.
pub(super) fn with_buffers<R>(body: impl FnOnce(&mut Buffers) -> R) -> R {
    BUFFERS.with(|buffers| match buffers.try_borrow_mut() {
        Ok(mut buffers) => body(&mut buffers),
        Err(_) => body(&mut Buffers::default()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_aligned_and_keep_their_place() {
        let mut scratch = Scratch::default();
        let first = scratch.take::<f32>(100).as_ptr() as usize;
        assert_eq!(first % 64, 0);
        assert_eq!(scratch.take::<u16>(150).as_ptr() as usize, first);
        assert_eq!(scratch.take::<f32>(5000).len(), 5000);
    }
}
