//! What can go wrong in the engine: one code a cause (`engine.md` section 20).

#![forbid(unsafe_code)]

/// The cause. The name in capitals stands as `code` in the details of a request's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[allow(
    missing_docs,
    reason = "the names are the documentation: engine.md section 20"
)]
pub enum Code {
    InvalidParam,
    InvalidPrompt,
    InvalidConstraint,
    Unsupported,
    ContextExceeded,
    NeverFits,
    QueueFull,
    Displaced,
    Cancelled,
    Shutdown,
    DeadlineQueue,
    DeadlineFirstToken,
    DeadlineTotal,
    ConsumerStalled,
    Numeric,
    StateCorrupt,
    MaskEmpty,
    ConstraintTimeout,
    NotFound,
    Io,
    BadFormat,
    OutOfHostMemory,
    OutOfDeviceMemory,
    NoDevice,
    UnsupportedDeterminism,
    /// The engine was closed, or was born closed.
    Closed,
    /// Called from a callback, or twice at once.
    WrongMoment,
    DeviceLost,
    Watchdog,
    WorkerPanic,
    Internal,
}

impl Code {
    /// `INVALID_PARAM`, …
    pub fn name(self) -> &'static str {
        match self {
            Self::InvalidParam => "INVALID_PARAM",
            Self::InvalidPrompt => "INVALID_PROMPT",
            Self::InvalidConstraint => "INVALID_CONSTRAINT",
            Self::Unsupported => "UNSUPPORTED",
            Self::ContextExceeded => "CONTEXT_EXCEEDED",
            Self::NeverFits => "NEVER_FITS",
            Self::QueueFull => "QUEUE_FULL",
            Self::Displaced => "DISPLACED",
            Self::Cancelled => "CANCELLED",
            Self::Shutdown => "SHUTDOWN",
            Self::DeadlineQueue => "DEADLINE_QUEUE",
            Self::DeadlineFirstToken => "DEADLINE_FIRST_TOKEN",
            Self::DeadlineTotal => "DEADLINE_TOTAL",
            Self::ConsumerStalled => "CONSUMER_STALLED",
            Self::Numeric => "NUMERIC",
            Self::StateCorrupt => "STATE_CORRUPT",
            Self::MaskEmpty => "MASK_EMPTY",
            Self::ConstraintTimeout => "CONSTRAINT_TIMEOUT",
            Self::NotFound => "NOT_FOUND",
            Self::Io => "IO",
            Self::BadFormat => "BAD_FORMAT",
            Self::OutOfHostMemory => "OUT_OF_HOST_MEMORY",
            Self::OutOfDeviceMemory => "OUT_OF_DEVICE_MEMORY",
            Self::NoDevice => "NO_DEVICE",
            Self::UnsupportedDeterminism => "UNSUPPORTED_DETERMINISM",
            Self::Closed => "CLOSED",
            Self::WrongMoment => "WRONG_MOMENT",
            Self::DeviceLost => "DEVICE_LOST",
            Self::Watchdog => "WATCHDOG",
            Self::WorkerPanic => "WORKER_PANIC",
            Self::Internal => "INTERNAL",
        }
    }
}

/// A cause with the sentence a user needs to fix it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    /// The cause.
    pub code: Code,
    /// Lower case, no full stop, values in quotes, never prompt text.
    pub message: String,
    /// The option's key, the tensor or the file; empty when there is none.
    pub param: String,
}

impl Error {
    /// An error of `code` at `param`.
    pub fn new(code: Code, param: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            param: param.into(),
        }
    }
}
