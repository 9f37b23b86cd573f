//! Constraints. This build checks its arguments and compiles none.

use std::convert::Infallible;
use std::ffi::c_char;

use super::boundary::{Out, guarded, quiet};
use super::error::Failed;
use super::handle::{self, handle};
use super::input;
use super::types::*;

/// Any JSON object.
pub const FATHOM_CONSTRAINT_JSON_OBJECT: i32 = 1;
/// JSON of a schema.
pub const FATHOM_CONSTRAINT_JSON_SCHEMA: i32 = 2;
/// Text that matches an expression.
pub const FATHOM_CONSTRAINT_REGEX: i32 = 3;
/// Lark.
pub const FATHOM_CONSTRAINT_GRAMMAR: i32 = 4;
/// EBNF.
pub const FATHOM_CONSTRAINT_EBNF: i32 = 5;
/// A JSON array of strings.
pub const FATHOM_CONSTRAINT_CHOICE: i32 = 6;
/// JSON.
pub const FATHOM_CONSTRAINT_STRUCTURAL_TAG: i32 = 7;

// No constraint can be made, so there is no object either.
handle!(fathom_constraint, 0x0A, Infallible);

fn missing() -> Failed {
    Failed::unsupported("", "constraints are not in this build")
}

/// Compiles a constraint of FATHOM_CONSTRAINT_* for a tokenizer. Blocks while compiling. Free with
/// fathom_constraint_free. Any thread. This build answers FATHOM_ERR_UNSUPPORTED.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fathom_constraint_new(
    t: *const fathom_tokenizer,
    kind: i32,
    spec: *const c_char,
    spec_len: usize,
    out: *mut *mut fathom_constraint,
    err: *mut *mut fathom_error,
) -> fathom_status {
    guarded(err, || {
        Out::new(out, std::ptr::null_mut(), "out")?;
        drop(handle::enter(t, "t")?);
        if !(FATHOM_CONSTRAINT_JSON_OBJECT..=FATHOM_CONSTRAINT_STRUCTURAL_TAG).contains(&kind) {
            return Err(Failed::argument("kind", format!("unknown kind {kind}")));
        }
        let spec = fathom_str {
            ptr: spec,
            len: spec_len,
        };
        // SAFETY: the caller's duty.
        unsafe { input::optional(spec, "spec") }?;
        Err(missing())
    })
}

/// Whether a finished text satisfies the constraint: FATHOM_OK, or FATHOM_ERR_CONSTRAINT. Never blocks, any thread.
/// This build answers FATHOM_ERR_UNSUPPORTED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fathom_constraint_check(
    c: *const fathom_constraint,
    text: *const c_char,
    len: usize,
    err: *mut *mut fathom_error,
) -> fathom_status {
    guarded(err, || {
        drop(handle::enter(c, "c")?);
        // SAFETY: the caller's duty.
        unsafe { input::text(text, len, "text") }?;
        Err(missing())
    })
}

/// Gives a constraint back; requests that use it go on. NULL is fine. Never blocks, any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fathom_constraint_free(c: *mut fathom_constraint) {
    quiet((), || handle::retire(c.cast_const(), "c").map(drop));
}
