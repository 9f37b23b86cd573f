//! Recipes and prepared requests.

use std::ffi::c_char;
use std::path::PathBuf;
use std::sync::Arc;

use super::boundary::{Out, guarded, quiet};
use super::error::{Failed, terminate};
use super::handle::{self, Poison, handle};
use super::input;
use super::library::buffer;
use super::options::{self, Versioned};
use super::tokenizer::warn_if_slow;
use super::types::*;
use crate::call::ErrorStyle;
use crate::call::request::pending_images;
use crate::recipe::{OutputConstraint, Prepared, Protocol, Recipe, RecipeOptions};

/// OpenAI Chat Completions.
pub const FATHOM_PROTOCOL_CHAT_COMPLETIONS: i32 = 1;
/// OpenAI Responses.
pub const FATHOM_PROTOCOL_RESPONSES: i32 = 2;
/// Anthropic Messages.
pub const FATHOM_PROTOCOL_MESSAGES: i32 = 3;
/// No wire protocol: the normalized model in, neutral events out.
pub const FATHOM_PROTOCOL_CONVERSATION: i32 = 4;

/// How a recipe is opened. Set up with fathom_recipe_options_init.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fathom_recipe_options {
    /// Set by fathom_recipe_options_init.
    pub struct_size: usize,
    /// tokenizer.json, or a directory holding one; absent = none: prompts and text only.
    pub tokenizer_path: fathom_str,
    /// {"my-model": "v4.1", "other-*": "v4"}.
    pub aliases_json: fathom_str,
    /// 0 = of the model: 1048576.
    pub max_context: u32,
    /// None yet: 0.
    pub flags: u32,
    /// 0 = 600.
    pub max_images: u32,
    /// 0 = 8.
    pub max_image_concurrency: u32,
    /// 0 = 32 MiB each.
    pub max_image_bytes: u64,
    /// 0 = 64 MiB.
    pub max_image_total_bytes: u64,
    /// 0 = 8192 x 8192; a cap against decompression bombs.
    pub max_image_pixels: u64,
    /// Every other option; an unknown key is an error.
    pub options_json: fathom_str,
}

// SAFETY: `repr(C)` without padding; integers and pointers.
unsafe impl Versioned for fathom_recipe_options {
    const NAME: &'static str = "fathom_recipe_options";
    fn defaults() -> Self {
        Self {
            struct_size: size_of::<Self>(),
            tokenizer_path: fathom_str::ABSENT,
            aliases_json: fathom_str::ABSENT,
            max_context: 0,
            flags: 0,
            max_images: 0,
            max_image_concurrency: 0,
            max_image_bytes: 0,
            max_image_total_bytes: 0,
            max_image_pixels: 0,
            options_json: fathom_str::ABSENT,
        }
    }
}

/// What a request asks for. Zero it, set struct_size.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fathom_prepared_info {
    /// Set by the caller.
    pub struct_size: usize,
    /// The resolved name; lives as long as the prepared request.
    pub model: *const c_char,
    /// FATHOM_PROTOCOL_*.
    pub protocol: i32,
    /// The request's own streaming switch.
    pub stream: u32,
    /// Input positions: ids of the prompt, each image at its full length once its size is known.
    pub token_count: u32,
    /// Images of the request.
    pub image_count: u32,
    /// Of these, those whose bytes are not there.
    pub pending_images: u32,
    /// The output budget.
    pub max_tokens: u32,
    /// As requested, or the default.
    pub temperature: f32,
    /// As requested, or the default.
    pub top_p: f32,
    /// FATHOM_CONSTRAINT_*; 0 = none.
    pub constraint_kind: i32,
    /// Zero.
    pub reserved0: u32,
}

// SAFETY: `repr(C)` without padding; numbers and a pointer.
unsafe impl Versioned for fathom_prepared_info {
    const NAME: &'static str = "fathom_prepared_info";
    fn defaults() -> Self {
        Self {
            struct_size: size_of::<Self>(),
            model: std::ptr::null(),
            protocol: 0,
            stream: 0,
            token_count: 0,
            image_count: 0,
            pending_images: 0,
            max_tokens: 0,
            temperature: 0.0,
            top_p: 0.0,
            constraint_kind: 0,
            reserved0: 0,
        }
    }
}

/// Bytes `start` up to but without `end`. Frozen.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct fathom_range {
    /// First byte.
    pub start: usize,
    /// First byte behind it.
    pub end: usize,
}

/// The object behind a `fathom_recipe`.
pub(crate) struct RecipeObject {
    pub(crate) recipe: Arc<Recipe>,
    pub(crate) style: ErrorStyle,
}

handle!(fathom_recipe, 0x06, RecipeObject);

/// The object behind a `fathom_prepared`. Its texts have NULs behind them, and never change.
pub(crate) struct PreparedObject {
    pub(crate) prepared: Arc<Prepared>,
    pub(crate) poison: Poison,
    pub(crate) style: ErrorStyle,
    ranges: Vec<fathom_range>,
}

handle!(fathom_prepared, 0x07, PreparedObject);

/// The protocol of a number from outside.
pub(crate) fn protocol_of(protocol: i32) -> Result<Protocol, Failed> {
    match protocol {
        FATHOM_PROTOCOL_CHAT_COMPLETIONS => Ok(Protocol::ChatCompletions),
        FATHOM_PROTOCOL_RESPONSES => Ok(Protocol::Responses),
        FATHOM_PROTOCOL_MESSAGES => Ok(Protocol::Messages),
        FATHOM_PROTOCOL_CONVERSATION => Ok(Protocol::Conversation),
        _ => Err(Failed::argument(
            "protocol",
            format!("unknown protocol {protocol}"),
        )),
    }
}

fn number_of(protocol: Protocol) -> i32 {
    match protocol {
        Protocol::ChatCompletions => FATHOM_PROTOCOL_CHAT_COMPLETIONS,
        Protocol::Responses => FATHOM_PROTOCOL_RESPONSES,
        Protocol::Messages => FATHOM_PROTOCOL_MESSAGES,
        Protocol::Conversation => FATHOM_PROTOCOL_CONVERSATION,
    }
}

/// Zeroes `struct_size` bytes, writes the size and sets defaults. Pass sizeof(fathom_recipe_options).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fathom_recipe_options_init(
    o: *mut fathom_recipe_options,
    struct_size: usize,
) {
    // SAFETY: the caller's duty: NULL or `struct_size` writable bytes.
    unsafe { options::init(o, struct_size) };
}

/// Opens a recipe: reads the tokenizer. `o` may be NULL. Blocks while reading. Free with fathom_recipe_free. Any
/// thread. Statuses: FATHOM_ERR_BAD_MODEL (the tokenizer's file), _INVALID_ARGUMENT with the option as param, _ABI.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fathom_recipe_open(
    o: *const fathom_recipe_options,
    out: *mut *mut fathom_recipe,
    err: *mut *mut fathom_error,
) -> fathom_status {
    guarded(err, || {
        let out = Out::new(out, std::ptr::null_mut(), "out")?;
        // SAFETY: the caller's duty: as many bytes as `struct_size` says, with readable strings.
        let options = unsafe { recipe_options(o) }?;
        let recipe = Recipe::open(&options)?;
        if let Some(tokenizer) = recipe.tokenizer() {
            warn_if_slow(tokenizer);
        }
        out.set(handle::create(RecipeObject {
            recipe: Arc::new(recipe),
            style: ErrorStyle::default().with_options(&options.options_json),
        })?);
        Ok(())
    })
}

/// # Safety
///
/// `o` is NULL or valid, with all that it points to.
unsafe fn recipe_options(o: *const fathom_recipe_options) -> Result<RecipeOptions, Failed> {
    // SAFETY: the caller's promise.
    let given = unsafe { options::read(o) }?;
    input::flags(given.flags, 0, "flags")?;
    let path = given.tokenizer_path;
    let tokenizer_path: Option<PathBuf> = if path.ptr.is_null() && path.len == 0 {
        None
    } else {
        // SAFETY: the caller's promise.
        Some(unsafe { input::path(path.ptr, path.len, "tokenizer_path") }?)
    };
    // SAFETY: the caller's promise.
    let (aliases_json, options_json) = unsafe {
        (
            input::optional(given.aliases_json, "aliases_json")?,
            input::optional(given.options_json, "options_json")?,
        )
    };
    Ok(RecipeOptions {
        tokenizer_path,
        aliases_json: aliases_json.unwrap_or_default().to_owned(),
        max_context: given.max_context,
        options_json: options_json.unwrap_or_default().to_owned(),
    })
}

/// Gives a recipe back; what was prepared with it lives on. NULL is fine. Never blocks, any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fathom_recipe_free(r: *mut fathom_recipe) {
    quiet((), || handle::retire(r.cast_const(), "r").map(drop));
}

/// As fathom_prepare_with, without options.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fathom_prepare(
    r: *const fathom_recipe,
    protocol: i32,
    json: *const c_char,
    json_len: usize,
    out: *mut *mut fathom_prepared,
    err: *mut *mut fathom_error,
) -> fathom_status {
    guarded(err, || {
        // SAFETY: the caller's duty.
        unsafe { prepare(r, protocol, (json, json_len), None, out) }
    })
}

/// Validates a request, resolves its model, renders the prompt and tokenises it. `options_json` changes this
/// request only; it comes from the host, never from a client; NULL for none. Decodes and fetches no image. Takes
/// milliseconds with long prompts. Free with fathom_prepared_free. Any thread. Statuses: FATHOM_ERR_INVALID_UTF8,
/// _INVALID_JSON, _INVALID_REQUEST, _UNKNOWN_MODEL, _CONTEXT_LENGTH; _INVALID_ARGUMENT for the host's own options;
/// _UNSUPPORTED.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fathom_prepare_with(
    r: *const fathom_recipe,
    protocol: i32,
    json: *const c_char,
    json_len: usize,
    options_json: *const c_char,
    options_len: usize,
    out: *mut *mut fathom_prepared,
    err: *mut *mut fathom_error,
) -> fathom_status {
    guarded(err, || {
        let options = fathom_str {
            ptr: options_json,
            len: options_len,
        };
        // SAFETY: the caller's duty.
        unsafe {
            let options = input::optional(options, "options_json")?;
            prepare(r, protocol, (json, json_len), options, out)
        }
    })
}

/// # Safety
///
/// `json` is NULL or readable, `out` NULL or writable.
unsafe fn prepare(
    r: *const fathom_recipe,
    protocol: i32,
    json: (*const c_char, usize),
    options: Option<&str>,
    out: *mut *mut fathom_prepared,
) -> Result<(), Failed> {
    let out = Out::new(out, std::ptr::null_mut(), "out")?;
    let object = handle::enter(r, "r")?;
    let protocol = protocol_of(protocol)?;
    // SAFETY: the caller's promise.
    let json = unsafe { input::bytes(json.0, json.1, "json") }?;
    #[cfg(feature = "fault-injection")]
    let stripped = crate::call::fault::take(options.unwrap_or_default());
    #[cfg(feature = "fault-injection")]
    let options = {
        crate::call::fault::panic_in("capi", stripped.1);
        (!stripped.0.is_empty()).then_some(stripped.0.as_str())
    };
    let style = object.style.with_options(options.unwrap_or_default());
    let prepared = object
        .recipe
        .prepare(protocol, json, options)
        .map_err(|error| Failed::from(error).styled(style))?;
    out.set(handle::create(PreparedObject::new(prepared, style))?);
    Ok(())
}

impl PreparedObject {
    fn new(mut prepared: Prepared, style: ErrorStyle) -> Self {
        terminate(&mut prepared.model);
        terminate(&mut prepared.prompt.text);
        let ranges = prepared.special_ranges().iter();
        let ranges = ranges
            .map(|range| fathom_range {
                start: range.start,
                end: range.end,
            })
            .collect();
        Self {
            prepared: Arc::new(prepared),
            poison: Poison::default(),
            style,
            ranges,
        }
    }

    fn info(&self) -> fathom_prepared_info {
        let prepared = &self.prepared;
        fathom_prepared_info {
            struct_size: size_of::<fathom_prepared_info>(),
            model: prepared.model.as_ptr().cast(),
            protocol: number_of(prepared.protocol),
            stream: u32::from(prepared.response.stream),
            token_count: prepared.prompt_tokens(),
            image_count: count(prepared.images.len()),
            pending_images: count(pending_images(prepared)),
            max_tokens: prepared.max_tokens,
            temperature: prepared.inference.temperature,
            top_p: prepared.inference.top_p,
            constraint_kind: prepared
                .inference
                .output_constraint
                .as_ref()
                .map_or(0, constraint_kind),
            reserved0: 0,
        }
    }
}

fn count(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}

/// FATHOM_CONSTRAINT_* of a request's constraint.
fn constraint_kind(constraint: &OutputConstraint) -> i32 {
    use super::constraint::*;
    match constraint {
        OutputConstraint::Json(None) => FATHOM_CONSTRAINT_JSON_OBJECT,
        OutputConstraint::Json(Some(_)) => FATHOM_CONSTRAINT_JSON_SCHEMA,
        OutputConstraint::Regex(_) => FATHOM_CONSTRAINT_REGEX,
        // Tool calls: free text with calls in it.
        OutputConstraint::ToolCalls { .. } => FATHOM_CONSTRAINT_STRUCTURAL_TAG,
    }
}

/// Copies what the request asks for into `out`, as far as its struct_size reaches. Never blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fathom_prepared_info_get(
    p: *const fathom_prepared,
    out: *mut fathom_prepared_info,
) -> fathom_status {
    guarded(std::ptr::null_mut(), || {
        let object = handle::enter(p, "p")?;
        let _watch = object.poison.watch("p")?;
        // SAFETY: the caller's duty: as many bytes as `struct_size` says.
        unsafe { options::fill(out, "out", &object.info()) }
    })
}

/// The ids of the prompt, one for each image. They live as long as `p`. None without a tokenizer. Never blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fathom_prepared_tokens(
    p: *const fathom_prepared,
    tokens: *mut *const u32,
    count: *mut usize,
) -> fathom_status {
    guarded(std::ptr::null_mut(), || {
        let tokens = Out::new(tokens, std::ptr::null(), "tokens")?;
        let count = Out::new(count, 0, "count")?;
        let object = handle::enter(p, "p")?;
        let _watch = object.poison.watch("p")?;
        tokens.set(object.prepared.tokens.as_ptr());
        count.set(object.prepared.tokens.len());
        Ok(())
    })
}

/// The text of the prompt, a NUL behind it. It lives as long as `p`. Never blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fathom_prepared_prompt(
    p: *const fathom_prepared,
    text: *mut *const c_char,
    len: *mut usize,
) -> fathom_status {
    guarded(std::ptr::null_mut(), || {
        let text = Out::new(text, std::ptr::null(), "text")?;
        let len = Out::new(len, 0, "len")?;
        let object = handle::enter(p, "p")?;
        let _watch = object.poison.watch("p")?;
        text.set(object.prepared.prompt.text.as_ptr().cast());
        len.set(object.prepared.prompt.text.len());
        Ok(())
    })
}

/// The bytes of the prompt that are special tokens, ascending; the rest is text, whatever it spells. They live as
/// long as `p`. Never blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fathom_prepared_special_ranges(
    p: *const fathom_prepared,
    ranges: *mut *const fathom_range,
    count: *mut usize,
) -> fathom_status {
    guarded(std::ptr::null_mut(), || {
        let ranges = Out::new(ranges, std::ptr::null(), "ranges")?;
        let count = Out::new(count, 0, "count")?;
        let object = handle::enter(p, "p")?;
        let _watch = object.poison.watch("p")?;
        ranges.set(object.ranges.as_ptr());
        count.set(object.ranges.len());
        Ok(())
    })
}

/// Everything the request was converted to, as one JSON object: conversation, inference and parsing options,
/// images, warnings. Free with fathom_buf_free. Never blocks.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fathom_prepared_options_json(
    p: *const fathom_prepared,
    out: *mut *mut fathom_buf,
    err: *mut *mut fathom_error,
) -> fathom_status {
    guarded(err, || {
        let out = Out::new(out, std::ptr::null_mut(), "out")?;
        let object = handle::enter(p, "p")?;
        let _watch = object.poison.watch("p")?;
        out.set(buffer(object.prepared.options_json())?);
        Ok(())
    })
}

/// Gives a prepared request back; parsers made from it live on. NULL is fine. Never blocks, any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fathom_prepared_free(p: *mut fathom_prepared) {
    quiet((), || handle::retire(p.cast_const(), "p").map(drop));
}
