//! The host's log callback. Off until `fathom_set_log`; nothing is ever printed.

use std::ffi::{c_char, c_void};
use std::sync::atomic::{AtomicI32, Ordering};

use parking_lot::RwLock;

use super::boundary::calling_back;

/// `level`, `target` and `message` of one record.
pub(crate) type LogFn = unsafe extern "C" fn(
    user_data: *mut c_void,
    level: i32,
    target: *const c_char,
    target_len: usize,
    message: *const c_char,
    message_len: usize,
);

/// Where records go.
pub(crate) struct Sink {
    pub(crate) function: LogFn,
    pub(crate) user_data: UserData,
}

/// A host's pointer with the function that ends its life, which runs on drop.
pub(crate) struct UserData {
    pub(crate) pointer: *mut c_void,
    pub(crate) drop: Option<unsafe extern "C" fn(user_data: *mut c_void)>,
}

// SAFETY: the header asks that callbacks and their user data work on any thread, several at once.
unsafe impl Send for UserData {}
// SAFETY: as above.
unsafe impl Sync for UserData {}

impl Drop for UserData {
    fn drop(&mut self) {
        if let Some(function) = self.drop {
            // SAFETY: the host gave the function for this pointer, and it is called once.
            calling_back(|| unsafe { function(self.pointer) });
        }
    }
}

pub(crate) const ERROR: i32 = 1;
pub(crate) const WARN: i32 = 2;
pub(crate) const INFO: i32 = 3;
pub(crate) const TRACE: i32 = 5;

static LEVEL: AtomicI32 = AtomicI32::new(0);
static SINK: RwLock<Option<Sink>> = RwLock::new(None);

/// Replaces the sink; returns once the old one is not running and its user data is dropped.
pub(crate) fn set(level: i32, sink: Option<Sink>) {
    let old = {
        let mut current = SINK.write();
        LEVEL.store(if sink.is_some() { level } else { 0 }, Ordering::Relaxed);
        std::mem::replace(&mut *current, sink)
    };
    drop(old);
}

/// Something went wrong inside fathom.
pub(crate) fn error(target: &str, message: &str) {
    record(ERROR, target, message);
}

/// It works, but not as well as the host may expect.
pub(crate) fn warn(target: &str, message: &str) {
    record(WARN, target, message);
}

/// Rare and interesting.
pub(crate) fn info(target: &str, message: &str) {
    record(INFO, target, message);
}

fn record(level: i32, target: &str, message: &str) {
    if level > LEVEL.load(Ordering::Relaxed) {
        return;
    }
    // Only tried: it is taken for writing while the sink changes, and for ever in the child of a fork
    // that happened meanwhile.
    let Some(sink) = SINK.try_read() else {
        return;
    };
    if let Some(sink) = &*sink {
        // SAFETY: the host promises a function for these arguments; texts live until it returns.
        calling_back(|| unsafe {
            (sink.function)(
                sink.user_data.pointer,
                level,
                target.as_ptr().cast(),
                target.len(),
                message.as_ptr().cast(),
                message.len(),
            );
        });
    }
}
