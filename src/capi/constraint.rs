//! Constraints.

use std::ffi::c_char;
use std::sync::Arc;

use super::boundary::{Out, guarded, quiet};
use super::error::Failed;
use super::handle::{self, handle};
use super::input;
use super::types::*;
use crate::engine::constraint::{self, Grammar, Spec, Vocabulary};

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

handle!(fathom_constraint, 0x0A, Arc<Grammar>);

/// Compiles a constraint of FATHOM_CONSTRAINT_* for a tokenizer, within the default limits. `spec` is absent for
/// FATHOM_CONSTRAINT_JSON_OBJECT. Blocks while compiling, at most 10 seconds; the first one of a tokenizer up to a
/// second more. Free with fathom_constraint_free. Any
/// thread. FATHOM_ERR_CONSTRAINT says what cannot be compiled, or which limit was exceeded.
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
        let out = Out::new(out, std::ptr::null_mut(), "out")?;
        let tokenizer = handle::enter(t, "t")?;
        if !(FATHOM_CONSTRAINT_JSON_OBJECT..=FATHOM_CONSTRAINT_STRUCTURAL_TAG).contains(&kind) {
            return Err(Failed::argument("kind", format!("unknown kind {kind}")));
        }
        let text = fathom_str {
            ptr: spec,
            len: spec_len,
        };
        // SAFETY: the caller's duty.
        let text = unsafe { input::optional(text, "spec") }?;
        let text = match (kind, text) {
            (FATHOM_CONSTRAINT_JSON_OBJECT, None | Some("")) => String::new(),
            (FATHOM_CONSTRAINT_JSON_OBJECT, Some(_)) => {
                let message = "spec is given for a kind that takes none";
                return Err(Failed::argument("spec", message));
            }
            (_, Some(text)) => text.to_owned(),
            (_, None) => return Err(Failed::argument("spec", "spec is absent")),
        };
        let spec = match kind {
            FATHOM_CONSTRAINT_JSON_OBJECT => Spec::JsonObject,
            FATHOM_CONSTRAINT_JSON_SCHEMA => Spec::JsonSchema(text),
            FATHOM_CONSTRAINT_REGEX => Spec::Regex(text),
            FATHOM_CONSTRAINT_GRAMMAR => Spec::Lark(text),
            FATHOM_CONSTRAINT_EBNF => Spec::Ebnf(text),
            FATHOM_CONSTRAINT_CHOICE => Spec::Choice(text),
            // The range was checked above.
            _ => Spec::StructuralTag(text),
        };
        let table = tokenizer.table()?;
        let grammar = constraint::compile(spec, table).map_err(|mut error| {
            "spec".clone_into(&mut error.param);
            error
        })?;
        out.set(handle::create(grammar)?);
        Ok(())
    })
}

/// Whether a finished text satisfies the constraint: FATHOM_OK, or FATHOM_ERR_CONSTRAINT with the byte at which it
/// fails. Takes microseconds a byte; never waits, any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fathom_constraint_check(
    c: *const fathom_constraint,
    text: *const c_char,
    len: usize,
    err: *mut *mut fathom_error,
) -> fathom_status {
    guarded(err, || {
        let grammar = handle::enter(c, "c")?;
        // SAFETY: the caller's duty.
        let text = unsafe { input::text(text, len, "text") }?;
        grammar.check(text).map_err(|at| {
            let message = if at == text.len() {
                format!("the text ends at byte {at} before it satisfies the constraint")
            } else {
                format!("the constraint does not allow the text from byte {at} on")
            };
            let code = crate::engine::Code::InvalidConstraint;
            Failed::from(crate::engine::Error::new(code, "text", message))
        })
    })
}

/// Gives a constraint back; requests that use it go on. NULL is fine. Never blocks, any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fathom_constraint_free(c: *mut fathom_constraint) {
    quiet((), || handle::retire(c.cast_const(), "c").map(drop));
}
