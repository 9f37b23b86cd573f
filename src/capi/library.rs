//! The library itself: version, devices, log; bytes and errors that callers own.

use std::ffi::{CStr, c_char, c_void};

use serde_json::json;

use super::boundary::{Out, guarded, not_in_callback, quiet, write};
use super::error::{ErrorObject, Failed, terminate};
use super::handle::{self, handle};
use super::log::{self, Sink, UserData};
use super::recipe::protocol_of;
use super::status;
use super::types::*;

const VERSION: &CStr =
    match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
        Ok(version) => version,
        Err(_) => panic!("the version has no NUL"),
    };

const BUILD_INFO: &CStr = match CStr::from_bytes_with_nul(
    concat!(
        "{\"version\":\"",
        env!("CARGO_PKG_VERSION"),
        "\",\"abi\":0,\"commit\":\"",
        env!("FATHOM_BUILD_COMMIT"),
        "\",\"target\":\"",
        env!("FATHOM_BUILD_TARGET"),
        "\",\"profile\":\"",
        env!("FATHOM_BUILD_PROFILE"),
        "\",\"features\":[],\"missing\":[\"cuda\",\"images\",\"fetch\"],\"gpu_targets\":[],",
        "\"environment\":[]}\0"
    )
    .as_bytes(),
) {
    Ok(info) => info,
    Err(_) => panic!("no part has a NUL"),
};

/// The library's version, "0.1.0". Static; never freed. Never blocks, any thread.
#[unsafe(no_mangle)]
pub extern "C" fn fathom_version() -> *const c_char {
    VERSION.as_ptr()
}

/// The library's FATHOM_ABI_VERSION. A binding compares it with the constant it was built with, when it
/// loads. Never blocks, any thread.
#[unsafe(no_mangle)]
pub extern "C" fn fathom_abi_version() -> u32 {
    FATHOM_ABI_VERSION
}

/// The constant's name ("FATHOM_ERR_BUSY"), or "unknown". Static; never freed. Never blocks, any thread.
#[unsafe(no_mangle)]
pub extern "C" fn fathom_status_name(s: fathom_status) -> *const c_char {
    status::name(s).as_ptr()
}

/// JSON: version, commit, target, `features` of this build, what is `missing` from it (such calls answer
/// FATHOM_ERR_UNSUPPORTED), GPU targets, and the variables of the environment that dependencies would read
/// and are kept from (none). Static; never freed. Never blocks, any thread.
#[unsafe(no_mangle)]
pub extern "C" fn fathom_build_info() -> *const c_char {
    BUILD_INFO.as_ptr()
}

/// The devices a model can be opened on, as a JSON array, best last; `device` is what
/// fathom_engine_options takes. Opens no device. Any thread.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fathom_devices(
    out_json: *mut *mut fathom_buf,
    err: *mut *mut fathom_error,
) -> fathom_status {
    guarded(err, || {
        let out = Out::new(out_json, std::ptr::null_mut(), "out_json")?;
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let devices = json!([
            {"device": "cpu", "name": std::env::consts::ARCH, "threads": threads},
        ]);
        out.set(buffer(devices.to_string())?);
        Ok(())
    })
}

/// Takes one log record. `level`: 1 error, 2 warn, 3 info, 4 debug, 5 trace; prompts and generated text appear at
/// trace only. Runs on any thread, at the same time on several; must not call fathom, nor throw.
pub type fathom_log_fn = Option<
    unsafe extern "C" fn(
        user_data: *mut c_void,
        level: i32,
        target: *const c_char,
        target_len: usize,
        message: *const c_char,
        message_len: usize,
    ),
>;

/// Sends log records up to `max_level` (0 = none) to `fn`; NULL ends it. Off until called.
/// Waits until the previous callback is not running, then calls its `drop`. When this call fails, `drop` is
/// not called. Any thread. Statuses: FATHOM_ERR_INVALID_ARGUMENT for an unknown level, FATHOM_ERR_STATE from
/// inside a callback.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fathom_set_log(
    max_level: i32,
    r#fn: fathom_log_fn,
    user_data: *mut c_void,
    drop: Option<unsafe extern "C" fn(user_data: *mut c_void)>,
) -> fathom_status {
    guarded(std::ptr::null_mut(), || {
        not_in_callback("fathom_set_log")?;
        if !(0..=log::TRACE).contains(&max_level) {
            return Err(Failed::argument(
                "max_level",
                format!("unknown level {max_level}"),
            ));
        }
        let sink = r#fn.map(|function| Sink {
            function,
            user_data: UserData {
                pointer: user_data,
                drop,
            },
        });
        log::set(max_level, sink);
        Ok(())
    })
}

handle!(fathom_buf, 0x02, Vec<u8>);

/// Bytes that the caller owns; one NUL stands behind them.
pub(crate) fn buffer(bytes: impl Into<Vec<u8>>) -> Result<*mut fathom_buf, Failed> {
    let mut bytes: Vec<u8> = bytes.into();
    bytes.push(0);
    handle::create(bytes)
}

/// The bytes, of which there are `*len`; a NUL stands behind the last. They live as long as `b`. `len` may
/// be NULL. NULL and 0 for what is no live buffer. Never blocks, any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fathom_buf_data(b: *const fathom_buf, len: *mut usize) -> *const u8 {
    write(len, 0);
    quiet(std::ptr::null(), || {
        let bytes = handle::enter(b, "b")?;
        write(len, bytes.len() - 1);
        Ok(bytes.as_ptr())
    })
}

/// Gives a buffer back. NULL is fine. Never blocks, any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fathom_buf_free(b: *mut fathom_buf) {
    quiet((), || handle::retire(b.cast_const(), "b").map(drop));
}

/// The status that the failed call answered. FATHOM_ERR_INVALID_ARGUMENT for what is no live error. Never
/// blocks, any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fathom_error_status(e: *const fathom_error) -> fathom_status {
    quiet(FATHOM_ERR_INVALID_ARGUMENT, || {
        Ok(handle::enter(e, "e")?.failed.status)
    })
}

/// What happened, for a person. Lives as long as `e`; `len` may be NULL. Never blocks, any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fathom_error_message(
    e: *const fathom_error,
    len: *mut usize,
) -> *const c_char {
    text_of(e, len, |failed| &failed.message)
}

/// Where: the path in the request ("messages[2].content"), the option's key or the argument's name; empty
/// when there is none. Lives as long as `e`; `len` may be NULL. Never blocks, any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fathom_error_param(
    e: *const fathom_error,
    len: *mut usize,
) -> *const c_char {
    text_of(e, len, |failed| &failed.param)
}

fn text_of(
    e: *const fathom_error,
    len: *mut usize,
    text: impl FnOnce(&Failed) -> &str,
) -> *const c_char {
    write(len, 0);
    quiet(std::ptr::null(), || {
        let error = handle::enter(e, "e")?;
        let text = text(&error.failed);
        write(len, text.len());
        Ok(text.as_ptr().cast())
    })
}

/// What a server should answer: 400, 429, 503, ... 500 for what is no live error. Never blocks, any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fathom_error_http_status(e: *const fathom_error) -> i32 {
    quiet(500, || Ok(i32::from(handle::enter(e, "e")?.failed.http)))
}

/// The JSON body of the answer, in the dialect of `protocol` (FATHOM_PROTOCOL_*). The recipe's options
/// `error_param` and `messages_error_shape` change it. Free with fathom_buf_free. Never blocks, any thread.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fathom_error_body(
    e: *const fathom_error,
    protocol: i32,
    out_json: *mut *mut fathom_buf,
) -> fathom_status {
    guarded(std::ptr::null_mut(), || {
        let out = Out::new(out_json, std::ptr::null_mut(), "out_json")?;
        let error = handle::enter(e, "e")?;
        let body = error.failed.body(protocol_of(protocol)?);
        out.set(buffer(body.to_string())?);
        Ok(())
    })
}

/// An error of the caller's own with the same content: keeps one that an event lent. NULL for what is no
/// live error. Free with fathom_error_free. Never blocks, any thread.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fathom_error_retain(e: *const fathom_error) -> *mut fathom_error {
    quiet(std::ptr::null_mut(), || {
        let failed = handle::enter(e, "e")?.failed.clone();
        handle::create(ErrorObject {
            failed,
            lent: false,
        })
    })
}

/// Gives an error back. NULL is fine, and so is one that an event lent: it stays its batch's. Never blocks,
/// any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fathom_error_free(e: *mut fathom_error) {
    quiet((), || {
        if handle::enter(e.cast_const(), "e")?.lent {
            return Ok(());
        }
        handle::retire(e.cast_const(), "e").map(drop)
    });
}

/// A copy with a NUL behind its last byte, outside the length.
pub(crate) fn terminated(text: &str) -> String {
    let mut copy = String::with_capacity(text.len() + 1);
    copy.push_str(text);
    terminate(&mut copy);
    copy
}
