//! Why a call failed, on its way to a status and an error object.

use std::borrow::Cow;
use std::sync::Arc;

use serde_json::{Value, json};

use super::handle::{self, handle};
use super::types::{
    FATHOM_ERR_ABI, FATHOM_ERR_INVALID_ARGUMENT, FATHOM_ERR_PANIC, FATHOM_ERR_STATE,
    FATHOM_ERR_UNSUPPORTED, fathom_error, fathom_status,
};
use crate::call::{ErrorStyle, Panicked};
use crate::recipe::Protocol;

/// What a [`fathom_error`] tells.
#[derive(Clone, Debug)]
pub(crate) struct Failed {
    pub(crate) status: fathom_status,
    /// What a server should answer.
    pub(crate) http: u16,
    pub(crate) message: Cow<'static, str>,
    /// A path in the request, an option's key or an argument's name; empty when there is none.
    pub(crate) param: Cow<'static, str>,
    /// How its body is written.
    pub(crate) style: ErrorStyle,
}

impl Failed {
    /// A failure that a client of the host did not cause: HTTP 500.
    pub(crate) fn new(
        status: fathom_status,
        param: impl Into<Cow<'static, str>>,
        message: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self {
            status,
            http: 500,
            message: message.into(),
            param: param.into(),
            style: ErrorStyle::default(),
        }
    }

    pub(crate) fn argument(
        param: impl Into<Cow<'static, str>>,
        message: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self::new(FATHOM_ERR_INVALID_ARGUMENT, param, message)
    }

    pub(crate) fn abi(param: &'static str, message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(FATHOM_ERR_ABI, param, message)
    }

    pub(crate) fn state(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(FATHOM_ERR_STATE, "", message)
    }

    pub(crate) fn unsupported(
        param: impl Into<Cow<'static, str>>,
        message: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self::new(FATHOM_ERR_UNSUPPORTED, param, message)
    }

    pub(crate) fn panicked(panicked: &Panicked) -> Self {
        Self::new(FATHOM_ERR_PANIC, "", panicked.to_string())
    }

    pub(crate) fn styled(mut self, style: ErrorStyle) -> Self {
        self.style = style;
        self
    }

    /// The body that a server answers with, in the dialect of `protocol`.
    pub(crate) fn body(&self, protocol: Protocol) -> Value {
        let message = &*self.message;
        let param = match &*self.param {
            path if self.style.error_param && !path.is_empty() => json!(path),
            _ => Value::Null,
        };
        match protocol {
            Protocol::Conversation => json!({"status": self.http, "message": message}),
            Protocol::Messages if !self.style.openai_messages => {
                let mut error = json!({"type": messages_type(self.http), "message": message});
                // Not a field of this dialect, so it is there only when it says something.
                if !param.is_null() {
                    error["param"] = param;
                }
                json!({"type": "error", "error": error})
            }
            Protocol::ChatCompletions | Protocol::Responses | Protocol::Messages => {
                let kind = openai_type(self.http);
                json!({"error": {"message": message, "type": kind, "param": param, "code": kind}})
            }
        }
    }
}

/// `error.type` and `error.code` of Chat Completions and Responses.
fn openai_type(http: u16) -> &'static str {
    match http {
        400 => "invalid_request_error",
        429 => "rate_limit_error",
        503 | 529 => "overloaded_error",
        _ => "internal_error",
    }
}

/// `error.type` of Messages.
fn messages_type(http: u16) -> &'static str {
    match http {
        400 => "invalid_request_error",
        401 => "authentication_error",
        403 => "permission_error",
        404 => "not_found_error",
        413 => "request_too_large",
        429 => "rate_limit_error",
        503 | 529 => "overloaded_error",
        _ => "api_error",
    }
}

/// The object behind a [`fathom_error`].
pub(crate) struct ErrorObject {
    /// Message and param each have a NUL after their last byte, outside the length.
    pub(crate) failed: Arc<Failed>,
    /// Belongs to a batch: the host may read it and may not free it.
    pub(crate) lent: bool,
}

handle!(fathom_error, 0x01, ErrorObject);

impl ErrorObject {
    fn new(mut failed: Failed, lent: bool) -> Self {
        terminate(failed.message.to_mut());
        terminate(failed.param.to_mut());
        Self {
            failed: Arc::new(failed),
            lent,
        }
    }

    /// An error object that the caller owns.
    pub(crate) fn owned(failed: Failed) -> Option<*mut fathom_error> {
        handle::create(Self::new(failed, false)).ok()
    }
}

/// An error object that a batch owns and events point to.
pub(crate) struct LentError(*mut fathom_error);

// SAFETY: the pointer is only an address to look up; the object behind it is shared by all threads.
unsafe impl Send for LentError {}

impl LentError {
    pub(crate) fn new(failed: Failed) -> Option<Self> {
        handle::create(ErrorObject::new(failed, true))
            .ok()
            .map(Self)
    }

    pub(crate) fn as_ptr(&self) -> *const fathom_error {
        self.0
    }
}

impl Drop for LentError {
    fn drop(&mut self) {
        drop(handle::retire(self.0.cast_const(), "error"));
    }
}

/// Puts a NUL behind the last byte without counting it: a convenience for C.
pub(crate) fn terminate(text: &mut String) {
    text.push('\0');
    // The byte stays where it is, in the spare room behind the text.
    text.pop();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_follow_the_dialect_of_the_protocol() {
        let mut failed = Failed::argument("messages[0].role", "unknown role");
        failed.http = 400;
        assert_eq!(
            failed.body(Protocol::ChatCompletions).to_string(),
            r#"{"error":{"message":"unknown role","type":"invalid_request_error","param":null,"code":"invalid_request_error"}}"#
        );
        assert_eq!(
            failed.body(Protocol::Messages).to_string(),
            r#"{"type":"error","error":{"type":"invalid_request_error","message":"unknown role"}}"#
        );
        assert_eq!(
            failed.body(Protocol::Conversation).to_string(),
            r#"{"status":400,"message":"unknown role"}"#
        );
        failed.style.error_param = true;
        assert_eq!(
            failed.body(Protocol::Messages).to_string(),
            r#"{"type":"error","error":{"type":"invalid_request_error","message":"unknown role","param":"messages[0].role"}}"#
        );
        let style = ErrorStyle {
            error_param: true,
            openai_messages: true,
        };
        assert_eq!(
            failed.styled(style).body(Protocol::Messages).to_string(),
            r#"{"error":{"message":"unknown role","type":"invalid_request_error","param":"messages[0].role","code":"invalid_request_error"}}"#
        );
    }

    #[test]
    fn each_dialect_has_names_of_its_own_for_an_http_status() {
        for (http, openai, messages) in [
            (400, "invalid_request_error", "invalid_request_error"),
            (429, "rate_limit_error", "rate_limit_error"),
            (503, "overloaded_error", "overloaded_error"),
            (500, "internal_error", "api_error"),
            (504, "internal_error", "api_error"),
        ] {
            let mut failed = Failed::state("it failed");
            failed.http = http;
            // Without a place there is nothing to fill in.
            failed.style.error_param = true;
            let body = failed.body(Protocol::Responses);
            assert_eq!(body["error"]["type"], openai);
            assert_eq!(body["error"]["param"], Value::Null);
            let body = failed.body(Protocol::Messages);
            assert_eq!(
                body,
                json!({"type": "error", "error": {"type": messages, "message": "it failed"}})
            );
        }
    }
}
