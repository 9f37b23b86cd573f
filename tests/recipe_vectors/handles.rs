//! The C functions behind types that free what they hold. Whatever a function promises about its results is read
//! here, once.

use std::ffi::{CStr, c_char};
use std::path::Path;
use std::ptr::{null, null_mut};

use fathom::capi::library::{
    fathom_buf_data, fathom_buf_free, fathom_error_body, fathom_error_free,
    fathom_error_http_status, fathom_error_message, fathom_error_param, fathom_error_status,
};
use fathom::capi::recipe::{
    fathom_prepare, fathom_prepare_with, fathom_prepared_free, fathom_prepared_info,
    fathom_prepared_info_get, fathom_prepared_options_json, fathom_prepared_prompt,
    fathom_prepared_special_ranges, fathom_prepared_tokens, fathom_recipe_free, fathom_recipe_open,
    fathom_recipe_options, fathom_recipe_options_init,
};
use fathom::capi::tokenizer::{
    fathom_tokenizer_decode, fathom_tokenizer_encode, fathom_tokenizer_free, fathom_tokenizer_open,
};
use fathom::capi::types::{
    FATHOM_OK, fathom_buf, fathom_error, fathom_prepared, fathom_recipe, fathom_str,
    fathom_tokenizer,
};
use serde_json::Value;

/// What an error object says.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) status: i32,
    pub(crate) http: i32,
    pub(crate) message: String,
    pub(crate) param: String,
    /// In the dialect of the protocol that was asked for.
    pub(crate) body: Value,
}

impl Failure {
    /// Reads and frees the object of a call that answered `status`.
    fn take(status: i32, error: *mut fathom_error, protocol: i32) -> Self {
        assert!(!error.is_null(), "status {status} without an error object");
        let mut body = null_mut();
        // SAFETY: the error is live until it is freed at the end; out-parameters are writable.
        unsafe {
            let mut length = 0;
            let message = fathom_error_message(error, &mut length);
            let message = text(message, length);
            let param = fathom_error_param(error, &mut length);
            let param = text(param, length);
            assert_eq!(fathom_error_status(error), status);
            assert_eq!(fathom_error_body(error, protocol, &mut body), FATHOM_OK);
            let http = fathom_error_http_status(error);
            fathom_error_free(error);
            Self {
                status,
                http,
                message,
                param,
                body: serde_json::from_slice(&bytes(body)).expect("a body is JSON"),
            }
        }
    }
}

/// Copies text with a NUL behind it.
///
/// # Safety
///
/// `start` has `length` readable bytes and one more.
unsafe fn text(start: *const c_char, length: usize) -> String {
    assert!(!start.is_null());
    // SAFETY: the caller's promise.
    let bytes = unsafe { std::slice::from_raw_parts(start.cast::<u8>(), length + 1) };
    assert_eq!(bytes[length], 0, "no NUL behind the text");
    String::from_utf8(bytes[..length].to_vec()).expect("texts are UTF-8")
}

/// Copies and frees a buffer.
///
/// # Safety
///
/// `buffer` is live.
pub(crate) unsafe fn bytes(buffer: *mut fathom_buf) -> Vec<u8> {
    let mut length = 0;
    // SAFETY: the buffer is live until it is freed, and has a NUL behind its bytes.
    unsafe {
        let start = fathom_buf_data(buffer, &mut length);
        assert!(!start.is_null());
        assert_eq!(start.add(length).read(), 0, "no NUL behind the bytes");
        let copy = std::slice::from_raw_parts(start, length).to_vec();
        fathom_buf_free(buffer);
        copy
    }
}

fn borrowed(text: &str) -> fathom_str {
    fathom_str {
        ptr: text.as_ptr().cast(),
        len: text.len(),
    }
}

/// A recipe.
pub(crate) struct Recipe(*mut fathom_recipe);

impl Recipe {
    /// Without a file it has no tokenizer; a context of 0 is the model's.
    pub(crate) fn open(tokenizer: Option<&Path>, options: &str, max_context: u32) -> Self {
        let mut given = std::mem::MaybeUninit::<fathom_recipe_options>::uninit();
        let (mut recipe, mut error) = (null_mut(), null_mut());
        // SAFETY: the options are as large as is said, and set up before they are read; their strings outlive the call.
        let status = unsafe {
            fathom_recipe_options_init(given.as_mut_ptr(), size_of::<fathom_recipe_options>());
            let mut given = given.assume_init();
            if let Some(path) = tokenizer {
                given.tokenizer_path = borrowed(path.to_str().expect("scratch folders are UTF-8"));
            }
            given.options_json = borrowed(options);
            given.max_context = max_context;
            fathom_recipe_open(&given, &mut recipe, &mut error)
        };
        if status != FATHOM_OK {
            panic!("{:?}", Failure::take(status, error, 1));
        }
        Self(recipe)
    }

    /// Prepares a request with options of its own, if it has any.
    pub(crate) fn prepare(
        &self,
        protocol: i32,
        body: &str,
        options: Option<&str>,
    ) -> Result<Prepared, Box<Failure>> {
        let (mut prepared, mut error) = (null_mut(), null_mut());
        let json = borrowed(body);
        // SAFETY: the recipe is live, the texts are readable for their lengths, the out-parameters writable.
        let status = unsafe {
            match options.map(borrowed) {
                None => fathom_prepare(
                    self.0,
                    protocol,
                    json.ptr,
                    json.len,
                    &mut prepared,
                    &mut error,
                ),
                Some(options) => fathom_prepare_with(
                    self.0,
                    protocol,
                    json.ptr,
                    json.len,
                    options.ptr,
                    options.len,
                    &mut prepared,
                    &mut error,
                ),
            }
        };
        if status == FATHOM_OK {
            assert!(error.is_null() && !prepared.is_null());
            return Ok(Prepared(prepared));
        }
        assert!(prepared.is_null(), "status {status} with an object");
        Err(Box::new(Failure::take(status, error, protocol)))
    }
}

impl Drop for Recipe {
    fn drop(&mut self) {
        // SAFETY: it came from fathom_recipe_open and is freed once.
        unsafe { fathom_recipe_free(self.0) };
    }
}

/// A prepared request.
pub(crate) struct Prepared(*mut fathom_prepared);

impl Prepared {
    pub(crate) fn handle(&self) -> *const fathom_prepared {
        self.0
    }

    /// The numbers of the request.
    pub(crate) fn info(&self) -> fathom_prepared_info {
        // SAFETY: all zeroes are a valid value of this plain structure.
        let mut info: fathom_prepared_info = unsafe { std::mem::zeroed() };
        info.struct_size = size_of::<fathom_prepared_info>();
        // SAFETY: the request is live, the structure as large as it says.
        let status = unsafe { fathom_prepared_info_get(self.0, &mut info) };
        assert_eq!(status, FATHOM_OK);
        info
    }

    /// The model's name.
    pub(crate) fn model(&self) -> String {
        // SAFETY: the name has a NUL behind it and lives as long as the request.
        let model = unsafe { CStr::from_ptr(self.info().model) };
        model.to_str().expect("names are UTF-8").to_owned()
    }

    pub(crate) fn tokens(&self) -> Vec<u32> {
        let (mut tokens, mut count) = (null(), 0);
        // SAFETY: the request is live and so are its ids, of which there are `count`.
        unsafe {
            assert_eq!(
                fathom_prepared_tokens(self.0, &mut tokens, &mut count),
                FATHOM_OK
            );
            std::slice::from_raw_parts(tokens, count).to_vec()
        }
    }

    pub(crate) fn prompt(&self) -> String {
        let (mut start, mut length) = (null(), 0);
        // SAFETY: the request is live and so is its prompt, with a NUL behind its `length` bytes.
        unsafe {
            assert_eq!(
                fathom_prepared_prompt(self.0, &mut start, &mut length),
                FATHOM_OK
            );
            text(start, length)
        }
    }

    pub(crate) fn special_ranges(&self) -> Vec<[usize; 2]> {
        let (mut ranges, mut count) = (null(), 0);
        // SAFETY: the request is live and so are its ranges, of which there are `count`.
        let ranges = unsafe {
            assert_eq!(
                fathom_prepared_special_ranges(self.0, &mut ranges, &mut count),
                FATHOM_OK
            );
            std::slice::from_raw_parts(ranges, count)
        };
        ranges
            .iter()
            .map(|range| [range.start, range.end])
            .collect()
    }

    /// The object of fathom_prepared_options_json.
    pub(crate) fn options(&self) -> Value {
        let (mut buffer, mut error) = (null_mut(), null_mut());
        // SAFETY: the request is live, the out-parameters are writable, the buffer is ours.
        let json = unsafe {
            let status = fathom_prepared_options_json(self.0, &mut buffer, &mut error);
            assert_eq!(status, FATHOM_OK);
            bytes(buffer)
        };
        serde_json::from_slice(&json).expect("it is JSON")
    }
}

impl Drop for Prepared {
    fn drop(&mut self) {
        // SAFETY: it came from fathom_prepare and is freed once.
        unsafe { fathom_prepared_free(self.0) };
    }
}

/// A tokenizer.
pub(crate) struct Tokenizer(*mut fathom_tokenizer);

impl Tokenizer {
    pub(crate) fn open(path: &Path) -> Self {
        let path = borrowed(path.to_str().expect("scratch folders are UTF-8"));
        let (mut tokenizer, mut error) = (null_mut(), null_mut());
        // SAFETY: the path is readable for its length, the out-parameters are writable.
        let status =
            unsafe { fathom_tokenizer_open(path.ptr, path.len, &mut tokenizer, &mut error) };
        if status != FATHOM_OK {
            panic!("{:?}", Failure::take(status, error, 1));
        }
        Self(tokenizer)
    }

    /// Writes ids to `room` if they fit; the result is their number.
    pub(crate) fn encode(&self, text: &str, flags: u32, room: &mut [u32]) -> usize {
        let (mut needed, mut error) = (usize::MAX, null_mut());
        let start = if room.is_empty() {
            null_mut()
        } else {
            room.as_mut_ptr()
        };
        let text = borrowed(text);
        // SAFETY: the tokenizer is live, the text readable for its length, the room writable for its own.
        let status = unsafe {
            fathom_tokenizer_encode(
                self.0,
                text.ptr,
                text.len,
                flags,
                start,
                room.len(),
                &mut needed,
                &mut error,
            )
        };
        if status != FATHOM_OK {
            panic!("{:?}", Failure::take(status, error, 1));
        }
        needed
    }

    pub(crate) fn decode(&self, tokens: &[u32], flags: u32) -> Vec<u8> {
        let (mut buffer, mut error) = (null_mut(), null_mut());
        // SAFETY: the tokenizer is live, the ids are readable for their number, the out-parameters writable.
        let status = unsafe {
            fathom_tokenizer_decode(
                self.0,
                tokens.as_ptr(),
                tokens.len(),
                flags,
                &mut buffer,
                &mut error,
            )
        };
        if status != FATHOM_OK {
            panic!("{:?}", Failure::take(status, error, 1));
        }
        // SAFETY: the buffer is live and ours.
        unsafe { bytes(buffer) }
    }
}

impl Drop for Tokenizer {
    fn drop(&mut self) {
        // SAFETY: it came from fathom_tokenizer_open and is freed once.
        unsafe { fathom_tokenizer_free(self.0) };
    }
}
