//! Errors of the rooms below become a status: one exhaustive match a layer, so that the compiler lists
//! what a new variant touches.

use super::error::Failed;
use super::types::*;
use crate::call;
use crate::engine::request::Failure;
use crate::engine::{self, Code};
use crate::recipe::{self, Stage};

/// The stage of `c-api.md` section 10.
fn of_stage(stage: Stage) -> fathom_status {
    match stage {
        Stage::Utf8 => FATHOM_ERR_INVALID_UTF8,
        Stage::Deserialize => FATHOM_ERR_INVALID_JSON,
        Stage::Convert => FATHOM_ERR_INVALID_REQUEST,
        Stage::Model => FATHOM_ERR_UNKNOWN_MODEL,
        Stage::Budget => FATHOM_ERR_CONTEXT_LENGTH,
        Stage::Option => FATHOM_ERR_INVALID_ARGUMENT,
        Stage::Tokenizer => FATHOM_ERR_BAD_MODEL,
        Stage::Unsupported => FATHOM_ERR_UNSUPPORTED,
        Stage::State => FATHOM_ERR_STATE,
        Stage::Internal => FATHOM_ERR_INTERNAL,
    }
}

/// The last column of `engine.md` section 20.
fn of_code(code: Code) -> fathom_status {
    match code {
        Code::InvalidParam | Code::InvalidPrompt => FATHOM_ERR_INVALID_ARGUMENT,
        Code::InvalidConstraint | Code::MaskEmpty | Code::ConstraintTimeout => {
            FATHOM_ERR_CONSTRAINT
        }
        Code::Unsupported | Code::NoDevice | Code::UnsupportedDeterminism => FATHOM_ERR_UNSUPPORTED,
        Code::ContextExceeded | Code::NeverFits => FATHOM_ERR_CONTEXT_LENGTH,
        Code::QueueFull => FATHOM_ERR_BUSY,
        Code::Displaced => FATHOM_ERR_PREEMPTED,
        Code::Cancelled => FATHOM_ERR_CANCELLED,
        Code::Shutdown => FATHOM_ERR_SHUTDOWN,
        Code::DeadlineQueue
        | Code::DeadlineFirstToken
        | Code::DeadlineTotal
        | Code::ConsumerStalled => FATHOM_ERR_DEADLINE,
        Code::Numeric | Code::StateCorrupt | Code::Internal => FATHOM_ERR_INTERNAL,
        Code::NotFound => FATHOM_ERR_NOT_FOUND,
        Code::Io => FATHOM_ERR_IO,
        Code::BadFormat => FATHOM_ERR_BAD_MODEL,
        Code::OutOfHostMemory => FATHOM_ERR_HOST_MEMORY,
        Code::OutOfDeviceMemory => FATHOM_ERR_DEVICE_MEMORY,
        Code::Closed | Code::WrongMoment => FATHOM_ERR_STATE,
        Code::DeviceLost | Code::Watchdog => FATHOM_ERR_DEVICE,
        Code::WorkerPanic => FATHOM_ERR_POISONED,
    }
}

impl From<recipe::Error> for Failed {
    fn from(error: recipe::Error) -> Self {
        Self::from(&error)
    }
}

impl From<&recipe::Error> for Failed {
    fn from(error: &recipe::Error) -> Self {
        let mut failed = Self::new(
            of_stage(error.stage),
            error.param.clone(),
            error.message.clone(),
        );
        failed.http = call::http_of_stage(error.stage);
        failed
    }
}

impl From<engine::Error> for Failed {
    fn from(error: engine::Error) -> Self {
        Self::from(&error)
    }
}

impl From<&engine::Error> for Failed {
    fn from(error: &engine::Error) -> Self {
        let mut failed = Self::new(
            of_code(error.code),
            error.param.clone(),
            error.message.clone(),
        );
        failed.http = call::http_of_code(error.code);
        failed
    }
}

impl From<&call::Error> for Failed {
    fn from(error: &call::Error) -> Self {
        match &error.cause {
            call::Cause::Recipe(cause) => Self::from(cause),
            call::Cause::Engine(cause) => Self::from(cause),
            call::Cause::Panicked(cause) => Self::panicked(cause),
        }
        .styled(error.style)
    }
}

impl From<call::Error> for Failed {
    fn from(error: call::Error) -> Self {
        Self::from(&error)
    }
}

impl From<&Failure> for Failed {
    fn from(failure: &Failure) -> Self {
        match failure {
            Failure::Engine(error) => Self::from(error),
            Failure::Prepare(error) => {
                if let Some(error) = error.downcast_ref::<call::Error>() {
                    Self::from(error)
                } else if let Some(error) = error.downcast_ref::<recipe::Error>() {
                    Self::from(error)
                } else {
                    // A Rust host's own job; its type is not ours to know.
                    Self::new(FATHOM_ERR_INTERNAL, "", error.to_string())
                }
            }
        }
    }
}

/// The constant's name.
pub(crate) fn name(status: fathom_status) -> &'static std::ffi::CStr {
    match status {
        FATHOM_OK => c"FATHOM_OK",
        FATHOM_ERR_INVALID_ARGUMENT => c"FATHOM_ERR_INVALID_ARGUMENT",
        FATHOM_ERR_INVALID_UTF8 => c"FATHOM_ERR_INVALID_UTF8",
        FATHOM_ERR_INVALID_JSON => c"FATHOM_ERR_INVALID_JSON",
        FATHOM_ERR_INVALID_REQUEST => c"FATHOM_ERR_INVALID_REQUEST",
        FATHOM_ERR_UNKNOWN_MODEL => c"FATHOM_ERR_UNKNOWN_MODEL",
        FATHOM_ERR_CONTEXT_LENGTH => c"FATHOM_ERR_CONTEXT_LENGTH",
        FATHOM_ERR_CONSTRAINT => c"FATHOM_ERR_CONSTRAINT",
        FATHOM_ERR_IMAGE => c"FATHOM_ERR_IMAGE",
        FATHOM_ERR_IMAGE_FETCH => c"FATHOM_ERR_IMAGE_FETCH",
        FATHOM_ERR_UNSUPPORTED => c"FATHOM_ERR_UNSUPPORTED",
        FATHOM_ERR_STATE => c"FATHOM_ERR_STATE",
        FATHOM_ERR_NOT_FOUND => c"FATHOM_ERR_NOT_FOUND",
        FATHOM_ERR_ABI => c"FATHOM_ERR_ABI",
        FATHOM_ERR_BUSY => c"FATHOM_ERR_BUSY",
        FATHOM_ERR_DEADLINE => c"FATHOM_ERR_DEADLINE",
        FATHOM_ERR_CANCELLED => c"FATHOM_ERR_CANCELLED",
        FATHOM_ERR_PREEMPTED => c"FATHOM_ERR_PREEMPTED",
        FATHOM_ERR_SHUTDOWN => c"FATHOM_ERR_SHUTDOWN",
        FATHOM_ERR_IO => c"FATHOM_ERR_IO",
        FATHOM_ERR_BAD_MODEL => c"FATHOM_ERR_BAD_MODEL",
        FATHOM_ERR_HOST_MEMORY => c"FATHOM_ERR_HOST_MEMORY",
        FATHOM_ERR_DEVICE_MEMORY => c"FATHOM_ERR_DEVICE_MEMORY",
        FATHOM_ERR_DEVICE => c"FATHOM_ERR_DEVICE",
        FATHOM_ERR_FORKED => c"FATHOM_ERR_FORKED",
        FATHOM_ERR_PANIC => c"FATHOM_ERR_PANIC",
        FATHOM_ERR_POISONED => c"FATHOM_ERR_POISONED",
        FATHOM_ERR_INTERNAL => c"FATHOM_ERR_INTERNAL",
        _ => c"unknown",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn the_cause_is_found_behind_every_kind_of_failure() {
        let refused = recipe::Error::new(Stage::Model, "model", "unknown model 'x'");
        let styled = call::Error::recipe(refused.clone()).styled(call::ErrorStyle {
            error_param: true,
            openai_messages: false,
        });
        for failure in [
            Failure::Prepare(Arc::new(refused)),
            Failure::Prepare(Arc::new(styled)),
        ] {
            let failed = Failed::from(&failure);
            assert_eq!(
                (failed.status, failed.http),
                (FATHOM_ERR_UNKNOWN_MODEL, 400)
            );
            assert_eq!(failed.param, "model");
        }
        let busy = engine::Error::new(Code::QueueFull, "max_queued", "4096 requests are waiting");
        let failed = Failed::from(&Failure::Engine(busy));
        assert_eq!((failed.status, failed.http), (FATHOM_ERR_BUSY, 429));
        let foreign = Failure::Prepare(Arc::new(std::fmt::Error));
        assert_eq!(Failed::from(&foreign).status, FATHOM_ERR_INTERNAL);
    }
}
