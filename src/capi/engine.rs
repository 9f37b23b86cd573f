//! Engines: open, state, shut down, free.

use std::ffi::{c_char, c_void};
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use super::boundary::{Out, calling_back, guarded, in_callback, not_in_callback, quiet};
use super::error::Failed;
use super::handle::{self, Handle, Inside, handle};
use super::input;
use super::library::terminated;
use super::log;
use super::options::{self, Versioned};
use super::types::*;
use crate::engine::{Engine, EngineOptions, EngineState};
use crate::recipe::tokenizer::Tokenizer;

/// Told how far opening is: `fraction` of 1, and the name of the phase. Runs on the opening thread at most
/// ten times a second; must not call fathom, nor throw. Nonzero aborts.
pub type fathom_progress_fn = Option<
    unsafe extern "C" fn(
        user_data: *mut c_void,
        fraction: f32,
        phase: *const c_char,
        phase_len: usize,
    ) -> i32,
>;

/// How an engine is opened. Set up with fathom_engine_options_init.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fathom_engine_options {
    /// Set by fathom_engine_options_init.
    pub struct_size: usize,
    /// A directory of safetensors, config.json and tokenizer.json.
    pub model_path: fathom_str,
    /// "cpu", "cuda", "cuda:0,1"; absent = the best that works.
    pub device: fathom_str,
    /// 0 = what is free after weights, within memory_share.
    pub kv_bytes: u64,
    /// 0 = from the model.
    pub max_context: u32,
    /// Sequences decoded together; 0 = 256 on GPU, 16 on CPU.
    pub max_running: u32,
    /// Beyond it submit answers FATHOM_ERR_BUSY; 0 = 4096.
    pub max_queued: u32,
    /// 0 = physical cores of the affinity mask.
    pub cpu_threads: u32,
    /// FATHOM_ENGINE_*.
    pub flags: u32,
    /// Zero.
    pub reserved0: u32,
    /// May be NULL.
    pub progress: fathom_progress_fn,
    /// For `progress`.
    pub progress_data: *mut c_void,
    /// Everything experimental: one JSON object.
    pub tuning_json: fathom_str,
}

// SAFETY: `repr(C)` without padding; integers, pointers and a nullable function.
unsafe impl Versioned for fathom_engine_options {
    const NAME: &'static str = "fathom_engine_options";
    fn defaults() -> Self {
        Self {
            struct_size: size_of::<Self>(),
            model_path: fathom_str::ABSENT,
            device: fathom_str::ABSENT,
            kv_bytes: 0,
            max_context: 0,
            max_running: 0,
            max_queued: 0,
            cpu_threads: 0,
            flags: 0,
            reserved0: 0,
            progress: None,
            progress_data: std::ptr::null_mut(),
            tuning_json: fathom_str::ABSENT,
        }
    }
}

/// Results do not depend on what else runs (level D2), or FATHOM_ERR_UNSUPPORTED.
pub const FATHOM_ENGINE_DETERMINISTIC: u32 = 1 << 0;
/// No reuse of common prefixes.
pub const FATHOM_ENGINE_NO_PREFIX_CACHE: u32 = 1 << 1;
/// No drafts, whatever a request asks for.
pub const FATHOM_ENGINE_NO_SPECULATION: u32 = 1 << 2;
/// Dry run: reads headers, computes the memory plan, loads nothing; the engine is born closed.
pub const FATHOM_ENGINE_PLAN_ONLY: u32 = 1 << 3;

/// Takes requests.
pub const FATHOM_ENGINE_READY: i32 = 0;
/// Shutting down: finishes what runs.
pub const FATHOM_ENGINE_DRAINING: i32 = 1;
/// A fault ended every request; can only be freed.
pub const FATHOM_ENGINE_FAILED: i32 = 2;
/// Shut down, or a plan only.
pub const FATHOM_ENGINE_CLOSED: i32 = 3;

/// What became of the options. Zero it, set struct_size.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fathom_engine_info {
    /// Set by the caller.
    pub struct_size: usize,
    /// Ids the model knows.
    pub vocab_size: u32,
    /// Positions a sequence may have.
    pub max_context: u32,
    /// Sequences decoded together.
    pub max_running: u32,
    /// Devices in use.
    pub device_count: u32,
    /// Bytes of weights.
    pub weight_bytes: u64,
    /// Bytes of paged state.
    pub kv_bytes: u64,
    /// Blocks of paged state.
    pub kv_blocks: u64,
    /// Lives as long as the engine.
    pub model_name: *const c_char,
}

// SAFETY: `repr(C)` without padding; integers and a pointer.
unsafe impl Versioned for fathom_engine_info {
    const NAME: &'static str = "fathom_engine_info";
    fn defaults() -> Self {
        Self {
            struct_size: size_of::<Self>(),
            vocab_size: 0,
            max_context: 0,
            max_running: 0,
            device_count: 0,
            weight_bytes: 0,
            kv_bytes: 0,
            kv_blocks: 0,
            model_name: std::ptr::null(),
        }
    }
}

/// The object behind a `fathom_engine`.
pub(crate) struct EngineObject {
    pub(crate) engine: Engine,
    /// With a NUL behind it.
    model_name: String,
    /// Where its tokenizer is, if it has one.
    model_path: PathBuf,
    /// Read when a request needs it.
    tokenizer: OnceLock<Option<Arc<Tokenizer>>>,
    process: Process,
}

impl EngineObject {
    /// The model's own tokenizer, if there is one. Read on first use.
    pub(crate) fn tokenizer(&self) -> Result<Option<Arc<Tokenizer>>, Failed> {
        if let Some(known) = self.tokenizer.get() {
            return Ok(known.clone());
        }
        let file = self.model_path.join("tokenizer.json");
        let tokenizer = match file.is_file() {
            true => Some(Arc::new(Tokenizer::open(&file)?)),
            false => None,
        };
        Ok(self.tokenizer.get_or_init(|| tokenizer).clone())
    }
}

handle!(fathom_engine, 0x03, EngineObject);

/// The process that made an object with threads or locks.
#[derive(Clone, Copy)]
pub(crate) struct Process(u32);

impl Process {
    pub(crate) fn current() -> Self {
        Self(std::process::id())
    }

    /// Refuses in the child of a fork.
    pub(crate) fn check(self, argument: &'static str) -> Result<(), Failed> {
        if self.0 != std::process::id() {
            return Err(Failed::new(
                FATHOM_ERR_FORKED,
                argument,
                format!("{argument} was made before a fork, by another process"),
            ));
        }
        Ok(())
    }
}

/// Enters an engine of this process.
pub(crate) fn enter(e: *const fathom_engine) -> Result<Inside<fathom_engine>, Failed> {
    let object = handle::enter(e, "e")?;
    object.process.check("e")?;
    Ok(object)
}

/// A handle for an engine that Rust code made; for tests. NULL when memory is gone.
pub fn wrap(engine: Engine) -> *mut fathom_engine {
    create(engine, PathBuf::new()).unwrap_or(std::ptr::null_mut())
}

fn create(engine: Engine, model_path: PathBuf) -> Result<*mut fathom_engine, Failed> {
    let model_name = terminated(&engine.info().model_name.replace('\0', ""));
    handle::create(EngineObject {
        engine,
        model_name,
        model_path,
        tokenizer: OnceLock::new(),
        process: Process::current(),
    })
}

/// Zeroes `struct_size` bytes, writes the size and sets defaults. Pass sizeof(fathom_engine_options).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fathom_engine_options_init(
    o: *mut fathom_engine_options,
    struct_size: usize,
) {
    // SAFETY: the caller's duty: NULL or `struct_size` writable bytes.
    unsafe { options::init(o, struct_size) };
}

/// Loads a model. Blocks, for minutes with a large one. Free with fathom_engine_free. Any thread.
/// Statuses: FATHOM_ERR_NOT_FOUND, _IO, _BAD_MODEL, _HOST_MEMORY, _DEVICE_MEMORY, _UNSUPPORTED,
/// _CANCELLED (by `progress`), _INVALID_ARGUMENT with the option as param, _ABI.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fathom_engine_open(
    o: *const fathom_engine_options,
    out: *mut *mut fathom_engine,
    err: *mut *mut fathom_error,
) -> fathom_status {
    guarded(err, || {
        let out = Out::new(out, std::ptr::null_mut(), "out")?;
        not_in_callback("fathom_engine_open")?;
        if o.is_null() {
            return Err(Failed::argument(
                "o",
                "o is NULL: an engine needs a model_path",
            ));
        }
        // SAFETY: the caller's duty: as many bytes as `struct_size` says.
        let given = unsafe { options::read(o) }?;
        // SAFETY: the caller's duty for the strings inside.
        let options = unsafe { engine_options(&given) }?;
        let mut progress = |fraction: f32, phase: &str| -> bool {
            let Some(function) = given.progress else {
                return true;
            };
            // SAFETY: the host gave the function for this pointer; the text lives until it returns.
            calling_back(|| unsafe {
                function(
                    given.progress_data,
                    fraction,
                    phase.as_ptr().cast(),
                    phase.len(),
                )
            }) == 0
        };
        let engine = Engine::open(&options, &mut progress)?;
        let handle = create(engine, options.model_path)?;
        log::info("engine", "an engine was opened");
        out.set(handle);
        Ok(())
    })
}

/// # Safety
///
/// The strings of `given` are readable.
unsafe fn engine_options(given: &fathom_engine_options) -> Result<EngineOptions, Failed> {
    let known = FATHOM_ENGINE_DETERMINISTIC
        | FATHOM_ENGINE_NO_PREFIX_CACHE
        | FATHOM_ENGINE_NO_SPECULATION
        | FATHOM_ENGINE_PLAN_ONLY;
    let flags = input::flags(given.flags, known, "flags")?;
    input::reserved(given.reserved0, "reserved0")?;
    // SAFETY: the caller's promise.
    let (model_path, device, tuning_json) = unsafe {
        (
            input::path(given.model_path.ptr, given.model_path.len, "model_path")?,
            input::optional(given.device, "device")?,
            input::optional(given.tuning_json, "tuning_json")?,
        )
    };
    Ok(EngineOptions {
        model_path,
        device: device.unwrap_or_default().to_owned(),
        kv_bytes: given.kv_bytes,
        max_context: given.max_context,
        max_running: given.max_running,
        max_queued: given.max_queued,
        cpu_threads: given.cpu_threads,
        deterministic: flags & FATHOM_ENGINE_DETERMINISTIC != 0,
        no_prefix_cache: flags & FATHOM_ENGINE_NO_PREFIX_CACHE != 0,
        no_speculation: flags & FATHOM_ENGINE_NO_SPECULATION != 0,
        plan_only: flags & FATHOM_ENGINE_PLAN_ONLY != 0,
        tuning_json: tuning_json.unwrap_or_default().to_owned(),
    })
}

/// FATHOM_ENGINE_READY, _DRAINING, _FAILED or _CLOSED; CLOSED for what is no live engine of this process.
/// No device work, never blocks, any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fathom_engine_state(e: *const fathom_engine) -> i32 {
    quiet(FATHOM_ENGINE_CLOSED, || {
        Ok(match enter(e)?.engine.state() {
            EngineState::Ready => FATHOM_ENGINE_READY,
            EngineState::Draining => FATHOM_ENGINE_DRAINING,
            EngineState::Failed => FATHOM_ENGINE_FAILED,
            EngineState::Closed => FATHOM_ENGINE_CLOSED,
        })
    })
}

/// Copies what became of the options into `out`, as far as its struct_size reaches. Never blocks, any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fathom_engine_info_get(
    e: *const fathom_engine,
    out: *mut fathom_engine_info,
) -> fathom_status {
    guarded(std::ptr::null_mut(), || {
        let object = enter(e)?;
        let info = object.engine.info();
        let info = fathom_engine_info {
            struct_size: size_of::<fathom_engine_info>(),
            vocab_size: info.vocab_size,
            max_context: info.max_context,
            max_running: info.max_running,
            device_count: info.device_count,
            weight_bytes: info.weight_bytes,
            kv_bytes: info.kv_bytes,
            kv_blocks: info.kv_blocks,
            model_name: object.model_name.as_ptr().cast(),
        };
        // SAFETY: the caller's duty: as many bytes as `struct_size` says.
        unsafe { options::fill(out, "out", &info) }
    })
}

/// Refuses new requests, gives running ones `drain_ms`, ends the rest with
/// FATHOM_ERR_SHUTDOWN and joins the engine's threads. Blocks. Any thread, but no callback
/// (FATHOM_ERR_STATE). FATHOM_ERR_DEVICE when a device never answered.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fathom_engine_shutdown(
    e: *mut fathom_engine,
    drain_ms: i64,
    err: *mut *mut fathom_error,
) -> fathom_status {
    guarded(err, || {
        let object = enter(e.cast_const())?;
        not_in_callback("fathom_engine_shutdown")?;
        let drain = u64::try_from(drain_ms)
            .map_err(|_| Failed::argument("drain_ms", format!("drain_ms is {drain_ms}")))?;
        object.engine.shutdown(input::milliseconds(drain))?;
        Ok(())
    })
}

/// Forgets cached prefixes. Never blocks, any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fathom_engine_clear_cache(
    e: *mut fathom_engine,
    err: *mut *mut fathom_error,
) -> fathom_status {
    guarded(err, || {
        enter(e.cast_const())?.engine.clear_cache()?;
        Ok(())
    })
}

/// Shuts down with no time to drain, then gives the engine back. NULL is fine. Blocks while threads are
/// joined; called from a callback it returns at once and another thread does that. Does nothing in the child
/// of a fork. Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fathom_engine_free(e: *mut fathom_engine) {
    quiet((), || {
        enter(e.cast_const())?;
        let object = handle::retire(e.cast_const(), "e")?;
        free_outside_callbacks("fathom-free-engine", object, |object| {
            // A device that never answers was reported by the log; there is nobody else to tell.
            if let Err(error) = object.engine.shutdown(Duration::ZERO) {
                log::error("engine", &error.to_string());
            }
        });
        Ok(())
    });
}

/// Ends an object, on another thread if this one is inside a callback that the end may wait for.
pub(crate) fn free_outside_callbacks<H: Handle + 'static>(
    thread: &str,
    object: Inside<H>,
    end: impl FnOnce(&H::Object) + Send + 'static,
) {
    if !in_callback() {
        end(&object);
        return;
    }
    // The object goes along, so that its last breath is not in the callback either. If no thread can be
    // made, the closure is dropped here: the object ends without waiting for what it started.
    let _ = without_signals(|| {
        std::thread::Builder::new()
            .name(thread.to_owned())
            .spawn(move || end(&object))
    });
}

/// Threads inherit the mask of their maker: runs `make` with everything blocked that comes from outside, so
/// that the host's handlers never run on a thread of ours.
#[cfg(unix)]
fn without_signals<T>(make: impl FnOnce() -> T) -> T {
    use std::mem::MaybeUninit;
    let mut blocked = MaybeUninit::<libc::sigset_t>::uninit();
    let mut before = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: both sets are ours and are initialised by the calls that take them first; signals that a
    // thread causes itself stay as they are.
    unsafe {
        libc::sigfillset(blocked.as_mut_ptr());
        for own in [
            libc::SIGSEGV,
            libc::SIGBUS,
            libc::SIGFPE,
            libc::SIGILL,
            libc::SIGTRAP,
            libc::SIGABRT,
            libc::SIGSYS,
        ] {
            libc::sigdelset(blocked.as_mut_ptr(), own);
        }
        libc::pthread_sigmask(libc::SIG_BLOCK, blocked.as_ptr(), before.as_mut_ptr());
    }
    let made = make();
    // SAFETY: `before` was filled above, by a call that cannot fail with a valid operation.
    unsafe {
        libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut());
    }
    made
}

/// Threads inherit nothing that matters here.
#[cfg(not(unix))]
fn without_signals<T>(make: impl FnOnce() -> T) -> T {
    make()
}
