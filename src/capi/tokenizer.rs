//! Tokenizers.

use std::ffi::c_char;
use std::sync::Arc;

use super::boundary::{Out, guarded, quiet};
use super::error::Failed;
use super::handle::{self, handle};
use super::input;
use super::library::buffer;
use super::log;
use super::types::*;
use crate::recipe::tokenizer::Tokenizer;

/// For fathom_tokenizer_encode: spellings of special tokens count as these tokens.
pub const FATHOM_TOKENIZE_ALLOW_SPECIAL: u32 = 1 << 0;
/// For fathom_tokenizer_decode: special tokens give their spelling; else nothing.
pub const FATHOM_DETOKENIZE_KEEP_SPECIAL: u32 = 1 << 1;

handle!(fathom_tokenizer, 0x09, Arc<Tokenizer>);

/// Loads a tokenizer.json, or the one inside a directory. Blocks while reading. Free with fathom_tokenizer_free. Any
/// thread. FATHOM_ERR_BAD_MODEL when the file cannot be read or understood.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fathom_tokenizer_open(
    path: *const c_char,
    path_len: usize,
    out: *mut *mut fathom_tokenizer,
    err: *mut *mut fathom_error,
) -> fathom_status {
    guarded(err, || {
        let out = Out::new(out, std::ptr::null_mut(), "out")?;
        // SAFETY: the caller's duty.
        let path = unsafe { input::path(path, path_len, "path") }?;
        let tokenizer = Tokenizer::open(&path)?;
        warn_if_slow(&tokenizer);
        out.set(handle::create(Arc::new(tokenizer))?);
        Ok(())
    })
}

/// The recipe's tokenizer, as a handle of its own. FATHOM_ERR_STATE for a recipe without one. Free with
/// fathom_tokenizer_free. Never blocks, any thread.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fathom_recipe_tokenizer(
    r: *const fathom_recipe,
    out: *mut *mut fathom_tokenizer,
) -> fathom_status {
    guarded(std::ptr::null_mut(), || {
        let out = Out::new(out, std::ptr::null_mut(), "out")?;
        let recipe = handle::enter(r, "r")?;
        let tokenizer = recipe
            .recipe
            .tokenizer()
            .ok_or_else(|| Failed::state("the recipe was opened without a tokenizer"))?;
        out.set(handle::create(Arc::clone(tokenizer))?);
        Ok(())
    })
}

/// Writes the ids of `text` to `out`, which has room for `cap`, and their number to `*needed`. With too little room
/// nothing but `*needed` is written and the call answers FATHOM_OK; `len + 8` is always enough. Never blocks, any
/// thread.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fathom_tokenizer_encode(
    t: *const fathom_tokenizer,
    text: *const c_char,
    len: usize,
    flags: u32,
    out: *mut u32,
    cap: usize,
    needed: *mut usize,
    err: *mut *mut fathom_error,
) -> fathom_status {
    guarded(err, || {
        let needed = Out::new(needed, 0, "needed")?;
        let tokenizer = handle::enter(t, "t")?;
        let flags = input::flags(flags, FATHOM_TOKENIZE_ALLOW_SPECIAL, "flags")?;
        if cap > 0 && out.is_null() {
            return Err(Failed::argument(
                "out",
                format!("out is NULL and has room for {cap}"),
            ));
        }
        // SAFETY: the caller's duty.
        let text = unsafe { input::text(text, len, "text") }?;
        let tokens = if flags & FATHOM_TOKENIZE_ALLOW_SPECIAL != 0 {
            tokenizer.encode_allow_special(text)?
        } else {
            tokenizer.encode(text, &[])?
        };
        if tokens.len() <= cap && !out.is_null() {
            // SAFETY: room for `cap` by the caller's duty, and no more than that is written.
            unsafe { out.copy_from_nonoverlapping(tokens.as_ptr(), tokens.len()) };
        }
        needed.set(tokens.len());
        Ok(())
    })
}

/// The bytes that `tokens` stand for; they may end inside a character. Free with fathom_buf_free. Never blocks, any
/// thread. FATHOM_ERR_INVALID_ARGUMENT for an id outside the vocabulary.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fathom_tokenizer_decode(
    t: *const fathom_tokenizer,
    tokens: *const u32,
    count: usize,
    flags: u32,
    out: *mut *mut fathom_buf,
    err: *mut *mut fathom_error,
) -> fathom_status {
    guarded(err, || {
        let out = Out::new(out, std::ptr::null_mut(), "out")?;
        let tokenizer = handle::enter(t, "t")?;
        let flags = input::flags(flags, FATHOM_DETOKENIZE_KEEP_SPECIAL, "flags")?;
        // SAFETY: the caller's duty.
        let tokens = unsafe { input::slice(tokens, count, "tokens") }?;
        let keep = flags & FATHOM_DETOKENIZE_KEEP_SPECIAL != 0;
        let mut text = Vec::new();
        for (place, token) in tokens.iter().enumerate() {
            let bytes = tokenizer
                .token_bytes(*token)
                .ok_or_else(|| outside(*token, place))?;
            if keep || !tokenizer.is_added(*token) {
                text.extend_from_slice(bytes);
            }
        }
        out.set(buffer(text)?);
        Ok(())
    })
}

fn outside(token: u32, place: usize) -> Failed {
    Failed::argument(
        "tokens",
        format!("id {token} at {place} is outside the vocabulary"),
    )
}

/// The bytes that `token` stands for, without a NUL behind them. They live as long as the tokenizer. Never blocks,
/// any thread. FATHOM_ERR_NOT_FOUND outside the vocabulary.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fathom_tokenizer_token_bytes(
    t: *const fathom_tokenizer,
    token: u32,
    bytes: *mut *const u8,
    len: *mut usize,
) -> fathom_status {
    guarded(std::ptr::null_mut(), || {
        let bytes = Out::new(bytes, std::ptr::null(), "bytes")?;
        let len = Out::new(len, 0, "len")?;
        let tokenizer = handle::enter(t, "t")?;
        let found = tokenizer.token_bytes(token).ok_or_else(|| {
            Failed::new(
                FATHOM_ERR_NOT_FOUND,
                "token",
                format!("id {token} is outside the vocabulary"),
            )
        })?;
        bytes.set(found.as_ptr());
        len.set(found.len());
        Ok(())
    })
}

/// The id whose spelling is exactly `text`. FATHOM_ERR_NOT_FOUND when there is none. Never blocks, any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fathom_tokenizer_token_id(
    t: *const fathom_tokenizer,
    text: *const c_char,
    len: usize,
    out: *mut u32,
) -> fathom_status {
    guarded(std::ptr::null_mut(), || {
        let out = Out::new(out, 0, "out")?;
        let tokenizer = handle::enter(t, "t")?;
        // SAFETY: the caller's duty.
        let text = unsafe { input::text(text, len, "text") }?;
        let id = tokenizer
            .token_id(text)
            .ok_or_else(|| Failed::new(FATHOM_ERR_NOT_FOUND, "text", "no id has this spelling"))?;
        out.set(id);
        Ok(())
    })
}

/// Number of ids, added tokens included. 0 for what is no live tokenizer. Never blocks, any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fathom_tokenizer_vocab_size(t: *const fathom_tokenizer) -> u32 {
    quiet(0, || Ok(handle::enter(t, "t")?.vocab_size()))
}

/// Gives a tokenizer back. NULL is fine. Never blocks, any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fathom_tokenizer_free(t: *mut fathom_tokenizer) {
    quiet((), || handle::retire(t.cast_const(), "t").map(drop));
}

/// Tells the host's log about a file whose text is cut by the general engine.
pub(super) fn warn_if_slow(tokenizer: &Tokenizer) {
    if !tokenizer.cuts_by_hand() {
        log::warn(
            "tokenizer",
            "the pre-tokeniser of this file is not the rule of V4: text is cut by the general engine, many times slower",
        );
    }
}
