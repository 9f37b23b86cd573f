//! Basic types: statuses, borrowed strings, the opaque handles.
//!
//! Handles are empty types that nobody dereferences: their addresses are looked up in
//! [`super::handle`], which owns the objects behind them.

use std::ffi::c_char;

/// Counts breaks of this interface; compare with `fathom_abi_version` when loading.
pub const FATHOM_ABI_VERSION: u32 = 0;

/// What a call answers: below 100 the caller can fix it, below 200 try later or elsewhere, below 300 the
/// environment, from 900 a bug in fathom. Numbers are never reused; treat unknown ones by range.
pub type fathom_status = i32;

/// Done.
pub const FATHOM_OK: fathom_status = 0;
/// NULL, a bad length, a wrong handle, an unknown enum.
pub const FATHOM_ERR_INVALID_ARGUMENT: fathom_status = 1;
/// Text that is not UTF-8.
pub const FATHOM_ERR_INVALID_UTF8: fathom_status = 2;
/// Not JSON, or not the request's shape.
pub const FATHOM_ERR_INVALID_JSON: fathom_status = 3;
/// Valid JSON, refused by the rules of the protocol.
pub const FATHOM_ERR_INVALID_REQUEST: fathom_status = 4;
/// The model's name is not known.
pub const FATHOM_ERR_UNKNOWN_MODEL: fathom_status = 5;
/// Prompt and output do not fit the context.
pub const FATHOM_ERR_CONTEXT_LENGTH: fathom_status = 6;
/// A schema, regex or grammar cannot be compiled.
pub const FATHOM_ERR_CONSTRAINT: fathom_status = 7;
/// An image is undecodable or too large, or there are too many.
pub const FATHOM_ERR_IMAGE: fathom_status = 8;
/// Fetching an image was refused by policy, or failed.
pub const FATHOM_ERR_IMAGE_FETCH: fathom_status = 9;
/// Not in this build, or not on this device.
pub const FATHOM_ERR_UNSUPPORTED: fathom_status = 10;
/// Right call, wrong moment; or two threads at once.
pub const FATHOM_ERR_STATE: fathom_status = 11;
/// What was named does not exist.
pub const FATHOM_ERR_NOT_FOUND: fathom_status = 12;
/// Header and library do not match.
pub const FATHOM_ERR_ABI: fathom_status = 13;
/// The admission queue is full.
pub const FATHOM_ERR_BUSY: fathom_status = 100;
/// A deadline passed.
pub const FATHOM_ERR_DEADLINE: fathom_status = 101;
/// Cancelled by the host.
pub const FATHOM_ERR_CANCELLED: fathom_status = 102;
/// Pushed out of the queue by a higher priority; a running request resumes instead.
pub const FATHOM_ERR_PREEMPTED: fathom_status = 103;
/// The engine is shutting down.
pub const FATHOM_ERR_SHUTDOWN: fathom_status = 104;
/// Reading or writing failed.
pub const FATHOM_ERR_IO: fathom_status = 200;
/// The model's files are damaged or not understood.
pub const FATHOM_ERR_BAD_MODEL: fathom_status = 201;
/// Not enough host memory.
pub const FATHOM_ERR_HOST_MEMORY: fathom_status = 202;
/// Not enough device memory.
pub const FATHOM_ERR_DEVICE_MEMORY: fathom_status = 203;
/// A device failed.
pub const FATHOM_ERR_DEVICE: fathom_status = 204;
/// The handle crossed a fork().
pub const FATHOM_ERR_FORKED: fathom_status = 205;
/// A bug in fathom was contained.
pub const FATHOM_ERR_PANIC: fathom_status = 900;
/// An earlier panic left this object unusable.
pub const FATHOM_ERR_POISONED: fathom_status = 901;
/// An impossible state: a bug in fathom.
pub const FATHOM_ERR_INTERNAL: fathom_status = 902;

/// Borrowed UTF-8. Never owned, never required to end in NUL. {NULL, 0} is "absent".
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fathom_str {
    /// First byte.
    pub ptr: *const c_char,
    /// Number of bytes, a NUL after them not counted.
    pub len: usize,
}

impl fathom_str {
    /// {NULL, 0}.
    pub const ABSENT: Self = Self {
        ptr: std::ptr::null(),
        len: 0,
    };
}

/// Never 0, never reused in a process.
pub type fathom_request_id = u64;

/// Why a call failed. Immutable; all threads at once. Free with `fathom_error_free`, unless an event lent it.
#[derive(Debug)]
pub struct fathom_error {
    _opaque: [u8; 0],
}

/// Bytes owned by the caller. Immutable; all threads at once. Free with `fathom_buf_free`, never with `free()`.
#[derive(Debug)]
pub struct fathom_buf {
    _opaque: [u8; 0],
}

/// A loaded model and the threads that run it. All threads at once.
#[derive(Debug)]
pub struct fathom_engine {
    _opaque: [u8; 0],
}

/// Where events of requests wait for their consumer. All threads at once; may outlive the engine.
#[derive(Debug)]
pub struct fathom_queue {
    _opaque: [u8; 0],
}

/// The memory that events are delivered in. One thread at a time.
#[derive(Debug)]
pub struct fathom_batch {
    _opaque: [u8; 0],
}

/// Model names, templates, limits and a tokenizer. Immutable; all threads at once.
#[derive(Debug)]
pub struct fathom_recipe {
    _opaque: [u8; 0],
}

/// A request, ready for the engine. All threads at once when it has no pending images, else one at a time.
#[derive(Debug)]
pub struct fathom_prepared {
    _opaque: [u8; 0],
}

/// Reads the output of one request. One thread at a time.
#[derive(Debug)]
pub struct fathom_parser {
    _opaque: [u8; 0],
}

/// A vocabulary. Immutable; all threads at once.
#[derive(Debug)]
pub struct fathom_tokenizer {
    _opaque: [u8; 0],
}

/// A compiled schema, regex or grammar. Immutable; all threads at once.
#[derive(Debug)]
pub struct fathom_constraint {
    _opaque: [u8; 0],
}
