//! What C callers point at: bytes, text, arrays.

use std::ffi::c_char;
use std::path::PathBuf;
use std::time::Duration;

use super::error::Failed;
use super::types::{FATHOM_ERR_INVALID_UTF8, fathom_str};

/// An array of the caller's. NULL is an empty one, if `len` says so.
///
/// # Safety
///
/// `ptr` is NULL or points to `len` readable values, which nobody changes for `'a`.
pub(crate) unsafe fn slice<'a, T: Copy>(
    ptr: *const T,
    len: usize,
    argument: &'static str,
) -> Result<&'a [T], Failed> {
    if len == 0 {
        return Ok(&[]);
    }
    if ptr.is_null() {
        return Err(Failed::argument(
            argument,
            format!("{argument} is NULL and has a length of {len}"),
        ));
    }
    if !ptr.is_aligned() {
        return Err(Failed::argument(
            argument,
            format!("{argument} is not aligned"),
        ));
    }
    if len > isize::MAX as usize / size_of::<T>().max(1) {
        return Err(Failed::argument(
            argument,
            format!("{argument} has an impossible length of {len}"),
        ));
    }
    // SAFETY: not NULL, aligned, of possible length; readable by the caller's promise.
    Ok(unsafe { std::slice::from_raw_parts(ptr, len) })
}

/// Bytes that must be there; they may be none.
///
/// # Safety
///
/// As [`slice`].
pub(crate) unsafe fn bytes<'a>(
    ptr: *const c_char,
    len: usize,
    argument: &'static str,
) -> Result<&'a [u8], Failed> {
    if ptr.is_null() {
        return Err(Failed::argument(argument, format!("{argument} is NULL")));
    }
    // SAFETY: the caller's promise.
    unsafe { slice(ptr.cast::<u8>(), len, argument) }
}

/// Text that must be there; it may be empty.
///
/// # Safety
///
/// As [`slice`].
pub(crate) unsafe fn text<'a>(
    ptr: *const c_char,
    len: usize,
    argument: &'static str,
) -> Result<&'a str, Failed> {
    // SAFETY: the caller's promise.
    let bytes = unsafe { bytes(ptr, len, argument) }?;
    utf8(bytes, argument)
}

/// Text that may be absent: `{NULL, 0}`.
///
/// # Safety
///
/// As [`slice`].
pub(crate) unsafe fn optional<'a>(
    string: fathom_str,
    argument: &'static str,
) -> Result<Option<&'a str>, Failed> {
    if string.ptr.is_null() && string.len == 0 {
        return Ok(None);
    }
    // SAFETY: the caller's promise.
    unsafe { text(string.ptr, string.len, argument) }.map(Some)
}

/// A file's path: bytes on Unix, UTF-8 elsewhere.
///
/// # Safety
///
/// As [`slice`].
pub(crate) unsafe fn path(
    ptr: *const c_char,
    len: usize,
    argument: &'static str,
) -> Result<PathBuf, Failed> {
    // SAFETY: the caller's promise.
    let bytes = unsafe { bytes(ptr, len, argument) }?;
    if bytes.is_empty() {
        return Err(Failed::argument(argument, format!("{argument} is empty")));
    }
    if bytes.contains(&0) {
        return Err(Failed::argument(
            argument,
            format!("{argument} has a NUL byte"),
        ));
    }
    #[cfg(unix)]
    {
        use std::os::unix::ffi::OsStrExt;
        Ok(PathBuf::from(std::ffi::OsStr::from_bytes(bytes)))
    }
    #[cfg(not(unix))]
    {
        utf8(bytes, argument).map(PathBuf::from)
    }
}

fn utf8<'a>(bytes: &'a [u8], argument: &'static str) -> Result<&'a str, Failed> {
    std::str::from_utf8(bytes).map_err(|error| {
        let mut failed = Failed::new(
            FATHOM_ERR_INVALID_UTF8,
            argument,
            format!("{argument} is not UTF-8 after byte {}", error.valid_up_to()),
        );
        failed.http = 400;
        failed
    })
}

/// A duration, cut to a length that can be added to any clock: a century is no limit.
pub(crate) fn milliseconds(value: u64) -> Duration {
    const CENTURY_MS: u64 = 100 * 365 * 24 * 3600 * 1000;
    Duration::from_millis(value.min(CENTURY_MS))
}

/// Refuses bits that this library does not know.
pub(crate) fn flags(value: u32, known: u32, argument: &'static str) -> Result<u32, Failed> {
    if value & !known != 0 {
        return Err(Failed::argument(
            argument,
            format!("{argument} has unknown bits: {:#x}", value & !known),
        ));
    }
    Ok(value)
}

/// Refuses a reserved field in use: a newer caller wants something this library lacks.
pub(crate) fn reserved(value: u32, argument: &'static str) -> Result<(), Failed> {
    if value != 0 {
        return Err(Failed::abi(argument, format!("{argument} must be zero")));
    }
    Ok(())
}
