//! The way in and out: no panic leaves, errors become a status and an object, and the host's callbacks
//! are called with a note that they are running.

use std::cell::Cell;
use std::sync::Once;

use super::error::{ErrorObject, Failed};
use super::log;
use super::types::{FATHOM_OK, fathom_error, fathom_status};
use crate::call::{contain, is_contained, note_panic};

/// Runs `body` on behalf of a C caller. On failure the status comes back and, where `err` is not NULL, an
/// object that the caller owns; on success `*err` is NULL.
///
/// `err` is written through, so the exported function's caller promises that it is NULL or writable.
pub(crate) fn guarded(
    err: *mut *mut fathom_error,
    body: impl FnOnce() -> Result<(), Failed>,
) -> fathom_status {
    install_hook();
    write(err, std::ptr::null_mut());
    let outcome = contain(body).unwrap_or_else(|panicked| Err(Failed::panicked(&panicked)));
    let Err(failed) = outcome else {
        return FATHOM_OK;
    };
    let status = failed.status;
    if !err.is_null() {
        // Building the object must not panic outwards either; without one the status still tells.
        let object = contain(|| ErrorObject::owned(failed)).ok().flatten();
        write(err, object.unwrap_or(std::ptr::null_mut()));
    }
    status
}

/// Runs `body` for a function that answers with a value: `otherwise` after a failure or a panic.
pub(crate) fn quiet<T>(otherwise: T, body: impl FnOnce() -> Result<T, Failed>) -> T {
    install_hook();
    match contain(body) {
        Ok(Ok(value)) => value,
        Ok(Err(_)) | Err(_) => otherwise,
    }
}

/// Writes to an out-parameter that may be NULL.
pub(crate) fn write<T>(out: *mut T, value: T) {
    if !out.is_null() {
        // SAFETY: not NULL, and the header asks for an out-parameter that may be written.
        unsafe { out.write(value) };
    }
}

/// An out-parameter that must be there; holds `nothing` until [`Out::set`].
pub(crate) struct Out<T>(*mut T);

impl<T> Out<T> {
    pub(crate) fn new(out: *mut T, nothing: T, argument: &'static str) -> Result<Self, Failed> {
        if out.is_null() {
            return Err(Failed::argument(argument, format!("{argument} is NULL")));
        }
        write(out, nothing);
        Ok(Self(out))
    }

    pub(crate) fn set(self, value: T) {
        write(self.0, value);
    }
}

thread_local! {
    static IN_CALLBACK: Cell<bool> = const { Cell::new(false) };
}

/// Calls back into the host. Functions that would wait for this very callback refuse or defer meanwhile.
pub(crate) fn calling_back<T>(call: impl FnOnce() -> T) -> T {
    struct Restore(bool);
    impl Drop for Restore {
        fn drop(&mut self) {
            let _ = IN_CALLBACK.try_with(|flag| flag.set(self.0));
        }
    }
    let _restore = Restore(IN_CALLBACK.replace(true));
    call()
}

/// Whether one of the host's callbacks is running on this thread.
pub(crate) fn in_callback() -> bool {
    IN_CALLBACK.get()
}

/// Refuses a call from inside a callback.
pub(crate) fn not_in_callback(function: &'static str) -> Result<(), Failed> {
    if in_callback() {
        return Err(Failed::state(format!(
            "{function} was called from a callback"
        )));
    }
    Ok(())
}

/// Sends what panics say to the log instead of stderr, with the first call of a C function.
///
/// In `libfathom.so` and `libfathom.a` the hook belongs to our own copy of the standard library. In the
/// rlib it is the program's, which is why nothing but the C functions installs it, and why every panic
/// that is not ours goes on to the hook that was there before: ours are those that a container catches and
/// those of threads named `fathom-…`.
fn install_hook() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let ours = is_contained()
                || std::thread::current()
                    .name()
                    .is_some_and(|name| name.starts_with("fathom-"));
            if ours {
                log::error("panic", &note_panic(info));
            } else {
                before(info);
            }
        }));
    });
}
