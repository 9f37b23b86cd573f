//! The twin of `amx` for machines that have none: a type without values, and the same calls.

use std::ops::Range;

use super::Isa;
use super::scratch::Buffers;
use crate::engine::backend::host::kernels::Attend;
use crate::engine::backend::host::matrix::Matrix;

pub(super) const PAIR: usize = 32;
pub(super) const CHUNK: usize = 512;
pub(super) const MAX_PANEL: usize = 8;

/// Never made.
#[derive(Clone, Copy, Debug)]
pub(super) enum Tiles {}

#[expect(dead_code, reason = "the twin reads these")]
pub(super) struct Part<'a> {
    pub(super) w: &'a Matrix,
    pub(super) rows: Range<usize>,
    pub(super) x: &'a [f32],
    pub(super) packed: &'a [u16],
    pub(super) job_count: usize,
    pub(super) first_x: usize,
    pub(super) y: *mut f32,
    pub(super) y_stride: usize,
}

pub(super) fn takes(_: &Matrix) -> bool {
    false
}

pub(super) fn takes_width(_: usize) -> bool {
    false
}

pub(super) fn columns(count: usize) -> usize {
    count
}

pub(super) fn tile_len(_: usize, _: usize) -> usize {
    0
}

pub(super) fn pack(tiles: Tiles, _: &[f32], _: usize, _: usize, _: &mut [u16]) {
    match tiles {}
}

impl Tiles {
    pub(super) fn detect() -> Option<Self> {
        None
    }

    /// # Safety
    /// None is needed: there is no value to call this on.
    pub(super) unsafe fn linear(self, _: Isa, _: Part<'_>, _: &mut Buffers) {
        match self {}
    }

    pub(super) fn attend(self, _: &mut Attend<'_>, _: &[u16], _: &mut Buffers) {
        match self {}
    }

    pub(super) fn index_scores(
        self,
        _: &[f32],
        _: &[f32],
        _: &[u16],
        _: usize,
        _: &mut [f32],
        _: &mut Buffers,
    ) {
        match self {}
    }
}
