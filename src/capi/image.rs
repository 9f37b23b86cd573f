//! Images of a prepared request. This build checks its arguments and resolves none.

use std::ffi::{c_char, c_void};

use super::boundary::{Out, guarded};
use super::error::Failed;
use super::handle::{self, Inside};
use super::input;
use super::options::{self, Versioned};
use super::types::*;

/// An http or https URL.
pub const FATHOM_IMAGE_URL: i32 = 1;
/// Inside the request.
pub const FATHOM_IMAGE_INLINE: i32 = 2;
/// Reserved: requests with file ids are refused today.
pub const FATHOM_IMAGE_FILE_ID: i32 = 3;

/// Where an image comes from. Zero it, set struct_size.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fathom_image_source {
    /// Set by the caller.
    pub struct_size: usize,
    /// FATHOM_IMAGE_*.
    pub kind: i32,
    /// 1 once bytes are there.
    pub resolved: u32,
    /// URL kind, exactly as the client sent it. Lives as long as the prepared request.
    pub url: fathom_str,
    /// Reserved.
    pub file_id: fathom_str,
}

// SAFETY: `repr(C)` without padding; integers and pointers.
unsafe impl Versioned for fathom_image_source {
    const NAME: &'static str = "fathom_image_source";
    fn defaults() -> Self {
        Self {
            struct_size: size_of::<Self>(),
            kind: 0,
            resolved: 0,
            url: fathom_str::ABSENT,
            file_id: fathom_str::ABSENT,
        }
    }
}

/// What the built-in fetcher may do. Zero it, set struct_size.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fathom_fetch_policy {
    /// Set by the caller.
    pub struct_size: usize,
    /// FATHOM_FETCH_*; 0 = https to public addresses only.
    pub flags: u32,
    /// Each hop is checked again; 0 = none followed.
    pub max_redirects: u32,
    /// For the whole set; 0 = 60 s for each attempt.
    pub timeout_ms: u64,
    /// Absent = any public host.
    pub allow_hosts_json: fathom_str,
    /// Judges an address before it is connected to; nonzero refuses. May be NULL; must not call fathom, nor throw.
    pub decide: Option<
        unsafe extern "C" fn(
            user_data: *mut c_void,
            host: *const c_char,
            host_len: usize,
            address: *const u8,
            address_len: usize,
            port: u16,
        ) -> i32,
    >,
    /// For `decide`.
    pub decide_data: *mut c_void,
}

// SAFETY: `repr(C)` without padding; integers, pointers and a nullable function.
unsafe impl Versioned for fathom_fetch_policy {
    const NAME: &'static str = "fathom_fetch_policy";
    fn defaults() -> Self {
        Self {
            struct_size: size_of::<Self>(),
            flags: 0,
            max_redirects: 0,
            timeout_ms: 0,
            allow_hosts_json: fathom_str::ABSENT,
            decide: None,
            decide_data: std::ptr::null_mut(),
        }
    }
}

/// http, too.
pub const FATHOM_FETCH_ALLOW_HTTP: u32 = 1 << 0;
/// Private addresses, too: `decide` alone decides.
pub const FATHOM_FETCH_ALLOW_PRIVATE: u32 = 1 << 1;

/// The model's own input: bfloat16 patches.
pub const FATHOM_PIXELS_BF16_PATCHES: i32 = 1;
/// The canvas, three bytes a pixel.
pub const FATHOM_PIXELS_RGB8: i32 = 2;
/// The canvas as a WebP file.
pub const FATHOM_PIXELS_WEBP: i32 = 3;

/// Reads and checks a caller's policy; NULL is none.
///
/// # Safety
///
/// `policy` is NULL or valid, with all that it points to.
pub(crate) unsafe fn read_policy(policy: *const fathom_fetch_policy) -> Result<(), Failed> {
    // SAFETY: the caller's promise.
    let given = unsafe { options::read(policy) }?;
    let known = FATHOM_FETCH_ALLOW_HTTP | FATHOM_FETCH_ALLOW_PRIVATE;
    input::flags(given.flags, known, "flags")?;
    // SAFETY: the caller's promise.
    unsafe { input::optional(given.allow_hosts_json, "allow_hosts_json") }?;
    Ok(())
}

fn enter(p: *const fathom_prepared) -> Result<Inside<fathom_prepared>, Failed> {
    let object = handle::enter(p, "p")?;
    drop(object.poison.watch("p")?);
    Ok(object)
}

fn missing() -> Failed {
    Failed::unsupported("", "image input is not in this build")
}

/// Where image `index` comes from. Never blocks. This build answers FATHOM_ERR_UNSUPPORTED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fathom_prepared_image(
    p: *const fathom_prepared,
    index: usize,
    out: *mut fathom_image_source,
) -> fathom_status {
    let _ = index;
    guarded(std::ptr::null_mut(), || {
        enter(p)?;
        if out.is_null() {
            return Err(Failed::argument("out", "out is NULL"));
        }
        Err(missing())
    })
}

/// What the model sees of image `index`, in FATHOM_PIXELS_*. Free with fathom_buf_free. This build answers
/// FATHOM_ERR_UNSUPPORTED.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fathom_prepared_image_pixels(
    p: *const fathom_prepared,
    index: usize,
    format: i32,
    out: *mut *mut fathom_buf,
    err: *mut *mut fathom_error,
) -> fathom_status {
    let _ = index;
    guarded(err, || {
        Out::new(out, std::ptr::null_mut(), "out")?;
        enter(p)?;
        if !(FATHOM_PIXELS_BF16_PATCHES..=FATHOM_PIXELS_WEBP).contains(&format) {
            return Err(Failed::argument(
                "format",
                format!("unknown format {format}"),
            ));
        }
        Err(missing())
    })
}

/// Hands over the file of image `index`, fetched by the caller. Copies it; blocks while decoding. This build
/// answers FATHOM_ERR_UNSUPPORTED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fathom_prepared_set_image(
    p: *mut fathom_prepared,
    index: usize,
    bytes: *const u8,
    len: usize,
    err: *mut *mut fathom_error,
) -> fathom_status {
    let _ = index;
    guarded(err, || {
        enter(p)?;
        // SAFETY: the caller's duty.
        unsafe { input::bytes(bytes.cast(), len, "bytes") }?;
        Err(missing())
    })
}

/// Resolves what is pending: inline data, and with a policy URLs. NULL: inline data only. Blocks. This build
/// answers FATHOM_ERR_UNSUPPORTED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fathom_prepared_fetch_images(
    p: *mut fathom_prepared,
    policy: *const fathom_fetch_policy,
    err: *mut *mut fathom_error,
) -> fathom_status {
    guarded(err, || {
        enter(p)?;
        // SAFETY: the caller's duty.
        unsafe { read_policy(policy) }?;
        Err(missing())
    })
}
