//! Panics that stop here: a bug in one request must end that request, not the host's process.

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind};

/// A panic that was caught.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("panicked: {0}")]
pub struct Panicked(
    /// The panic's message, and where it happened if a hook called [`note_panic`].
    pub String,
);

thread_local! {
    /// How many containers this thread is inside.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
    /// What [`note_panic`] saw last.
    static NOTED: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Runs `body` and turns a panic into an error. What `body` was working on may be broken: the caller
/// drops it or marks it.
pub fn contain<T>(body: impl FnOnce() -> T) -> Result<T, Panicked> {
    DEPTH.set(DEPTH.get() + 1);
    let outcome = catch_unwind(AssertUnwindSafe(body));
    DEPTH.set(DEPTH.get() - 1);
    outcome.map_err(|payload| {
        let noted = NOTED.try_with(|noted| noted.borrow_mut().take());
        let message = noted.ok().flatten().unwrap_or_else(|| {
            payload
                .downcast_ref::<&str>()
                .map(|text| (*text).to_owned())
                .or_else(|| payload.downcast_ref::<String>().cloned())
                .unwrap_or_else(|| "no message".to_owned())
        });
        Panicked(message)
    })
}

/// Whether a panic on this thread would be contained.
pub fn is_contained() -> bool {
    DEPTH.get() > 0
}

/// For panic hooks: keeps message and place for the container that will catch the panic.
pub fn note_panic(info: &PanicHookInfo<'_>) -> String {
    let message = info.payload_as_str().unwrap_or("no message");
    let text = match info.location() {
        Some(place) => format!("{message}, at {}:{}", place.file(), place.line()),
        None => message.to_owned(),
    };
    if is_contained() {
        let _ = NOTED.try_with(|noted| *noted.borrow_mut() = Some(text.clone()));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_an_error_with_its_message() {
        let caught: Result<(), _> = contain(|| std::panic::resume_unwind(Box::new("broken")));
        assert_eq!(caught, Err(Panicked("broken".to_owned())));
        assert!(!is_contained());
        assert_eq!(contain(is_contained), Ok(true));
    }
}
