//! Parsers behind one face: through the C functions, and as the Rust type.

use std::ffi::c_char;
use std::ptr::{null, null_mut};
use std::sync::Arc;

use fathom::capi::batch::{fathom_batch_free, fathom_batch_new};
use fathom::capi::library::{fathom_error_free, fathom_error_message};
use fathom::capi::parser::{
    FATHOM_PARSER_CONTENT_FILTER, fathom_chunk, fathom_parser_finish, fathom_parser_free,
    fathom_parser_new, fathom_parser_push, fathom_parser_push_text, fathom_parser_push_tokens,
    fathom_parser_response, fathom_parser_start, fathom_parser_start_info,
};
use fathom::capi::queue::{
    FATHOM_EVENT_DATA, FATHOM_EVENT_DONE, FATHOM_FINISH_LENGTH, FATHOM_FINISH_NONE,
    FATHOM_FINISH_STOP, fathom_event,
};
use fathom::capi::types::{FATHOM_OK, fathom_batch, fathom_error, fathom_parser, fathom_str};
use fathom::recipe::stream::{
    Chunk, Finish, Output, Parser, ParserOptions, Recovery, StartInfo, Vocabulary,
};
use fathom::recipe::{Prepared, Protocol};
use serde_json::Value;

use super::pieces::Piece;
use crate::handles;

/// An event: its name and its data.
pub(crate) type Event = (Option<String>, Value);

/// What reads a stream.
pub(crate) trait Reader {
    /// Takes a chunk; its events, or what went wrong.
    fn take(&mut self, case: &Value, piece: &Piece) -> Result<Vec<Event>, String>;
    /// The complete response so far.
    fn response(&self) -> Value;
}

/// Through C.
pub(crate) struct InC {
    parser: *mut fathom_parser,
    batch: *mut fathom_batch,
}

impl InC {
    pub(crate) fn new(prepared: &handles::Prepared) -> Self {
        let (mut parser, mut batch) = (null_mut(), null_mut());
        // SAFETY: the request is live, the results are writable.
        unsafe {
            let made = fathom_parser_new(prepared.handle(), &mut parser, null_mut());
            assert_eq!(made, FATHOM_OK);
            let made = fathom_batch_new(size_of::<fathom_event>(), &mut batch);
            assert_eq!(made, FATHOM_OK);
        }
        Self { parser, batch }
    }

    fn call(
        &self,
        call: impl FnOnce(*mut *const fathom_event, *mut usize, *mut *mut fathom_error) -> i32,
    ) -> Result<Vec<Event>, String> {
        let (mut events, mut count, mut error) = (null(), usize::MAX, null_mut());
        let status = call(&mut events, &mut count, &mut error);
        if status != FATHOM_OK {
            assert!(
                events.is_null() && count == 0,
                "outputs beside status {status}"
            );
            let mut length = 0;
            // SAFETY: the error is live until it is freed here.
            unsafe {
                let message = fathom_error_message(error, &mut length);
                let message = text(fathom_str {
                    ptr: message,
                    len: length,
                });
                fathom_error_free(error);
                return Err(message.expect("an error has a message"));
            }
        }
        assert!(error.is_null());
        let mut seen = Vec::new();
        for at in 0..count {
            // SAFETY: so many events lie there until the next call with this batch.
            let event = unsafe { &*events.add(at) };
            if event.kind == FATHOM_EVENT_DONE {
                assert_eq!(at + 1, count, "nothing follows DONE");
                continue;
            }
            assert_eq!(event.kind, FATHOM_EVENT_DATA);
            // SAFETY: what an event points to lives as long.
            let (name, data) = unsafe { (text(event.name), text(event.data)) };
            let data = data.expect("an event has data");
            seen.push((name, serde_json::from_str(&data).expect(&data)));
        }
        Ok(seen)
    }
}

/// A copy of text, which must have a NUL behind it.
///
/// # Safety
///
/// It is absent, or readable for its length and one byte more.
unsafe fn text(given: fathom_str) -> Option<String> {
    if given.ptr.is_null() {
        return None;
    }
    // SAFETY: the caller's promise.
    let bytes = unsafe { std::slice::from_raw_parts(given.ptr.cast::<u8>(), given.len + 1) };
    let (nul, bytes) = bytes.split_last().expect("one more");
    assert_eq!(*nul, 0);
    Some(String::from_utf8(bytes.to_vec()).expect("texts are UTF-8"))
}

fn borrowed(text: &str) -> fathom_str {
    fathom_str {
        ptr: text.as_ptr().cast(),
        len: text.len(),
    }
}

/// Log-probabilities in rows of one width; unused places are marked.
struct Rows {
    own: Vec<f32>,
    top_tokens: Vec<u32>,
    top: Vec<f32>,
    width: usize,
}

impl Rows {
    fn of(logprobs: &[(f32, Vec<(u32, f32)>)]) -> Self {
        let width = logprobs.iter().map(|(_, top)| top.len()).max().unwrap_or(0);
        let mut rows = Self {
            own: Vec::new(),
            top_tokens: Vec::new(),
            top: Vec::new(),
            width,
        };
        for (own, top) in logprobs {
            rows.own.push(*own);
            for place in 0..width {
                let (token, value) = top.get(place).copied().unwrap_or((u32::MAX, f32::NAN));
                rows.top_tokens.push(token);
                rows.top.push(value);
            }
        }
        rows
    }
}

impl Reader for InC {
    fn take(&mut self, case: &Value, piece: &Piece) -> Result<Vec<Event>, String> {
        let (parser, batch) = (self.parser, self.batch);
        match piece {
            Piece::Ready {
                prompt_tokens,
                cached_tokens,
                fingerprint,
            } => {
                let info = fathom_parser_start_info {
                    struct_size: size_of::<fathom_parser_start_info>(),
                    prompt_tokens: *prompt_tokens,
                    cached_tokens: *cached_tokens,
                    created_unix_s: 0,
                    response_id: borrowed(case["response_id"].as_str().unwrap()),
                    system_fingerprint: borrowed(fingerprint),
                    model: borrowed(case["response_model"].as_str().unwrap()),
                    choice: 0,
                    reserved0: 0,
                };
                // SAFETY: parser and batch are live, the texts outlive the call.
                self.call(|events, count, error| unsafe {
                    fathom_parser_start(parser, &info, batch, events, count, error)
                })
            }
            Piece::Text { text, tokens } => {
                // SAFETY: as above.
                self.call(|events, count, error| unsafe {
                    let (start, length) = (text.as_ptr().cast::<c_char>(), text.len());
                    fathom_parser_push_text(
                        parser, start, length, *tokens, batch, events, count, error,
                    )
                })
            }
            Piece::Ids { ids, logprobs } if logprobs.is_empty() => {
                // SAFETY: as above.
                self.call(|events, count, error| unsafe {
                    let (start, length) = (ids.as_ptr(), ids.len());
                    fathom_parser_push_tokens(parser, start, length, batch, events, count, error)
                })
            }
            Piece::Ids { ids, logprobs } => {
                assert_eq!(ids.len(), logprobs.len(), "C cannot say this");
                let rows = Rows::of(logprobs);
                let chunk = fathom_chunk {
                    struct_size: size_of::<fathom_chunk>(),
                    tokens: ids.as_ptr(),
                    token_count: ids.len(),
                    text: fathom_str {
                        ptr: null(),
                        len: 0,
                    },
                    text_tokens: 0,
                    top_count: rows.width as u32,
                    logprobs: rows.own.as_ptr(),
                    top_tokens: rows.top_tokens.as_ptr(),
                    top_logprobs: rows.top.as_ptr(),
                };
                // SAFETY: as above; the arrays are as long as the header states.
                self.call(|events, count, error| unsafe {
                    fathom_parser_push(parser, &chunk, batch, events, count, error)
                })
            }
            Piece::Finish(finish) => {
                let finish = match finish {
                    Finish::Stop | Finish::ToolCalls => FATHOM_FINISH_STOP,
                    Finish::Length => FATHOM_FINISH_LENGTH,
                    Finish::ContentFilter => FATHOM_PARSER_CONTENT_FILTER,
                    Finish::EndOfStream => FATHOM_FINISH_NONE,
                };
                // SAFETY: as above.
                self.call(|events, count, error| unsafe {
                    fathom_parser_finish(parser, finish, null(), batch, events, count, error)
                })
            }
        }
    }

    fn response(&self) -> Value {
        let mut buffer = null_mut();
        // SAFETY: the parser is live, the result writable, the buffer ours.
        let json = unsafe {
            let status = fathom_parser_response(self.parser, &mut buffer, null_mut());
            assert_eq!(status, FATHOM_OK);
            handles::bytes(buffer)
        };
        serde_json::from_slice(&json).expect("a response is JSON")
    }
}

impl Drop for InC {
    fn drop(&mut self) {
        // SAFETY: both are live and freed once.
        unsafe {
            fathom_parser_free(self.parser);
            fathom_batch_free(self.batch);
        }
    }
}

/// The Rust type itself; it can be told what C cannot.
pub(crate) struct InRust {
    parser: Parser,
    out: Output,
}

impl InRust {
    pub(crate) fn new(prepared: &Prepared, recovery: Recovery, protocol: Protocol) -> Self {
        let mut options = ParserOptions::of(prepared);
        options.stream.recovery = recovery;
        options.protocol = protocol;
        let vocabulary = prepared.tokenizer.clone();
        let vocabulary = vocabulary.map(|tokenizer| tokenizer as Arc<dyn Vocabulary>);
        Self {
            parser: Parser::with(options, vocabulary).unwrap(),
            out: Output::default(),
        }
    }
}

impl Reader for InRust {
    fn take(&mut self, case: &Value, piece: &Piece) -> Result<Vec<Event>, String> {
        self.out.clear();
        let (parser, out) = (&mut self.parser, &mut self.out);
        let outcome = match piece {
            Piece::Ready {
                prompt_tokens,
                cached_tokens,
                fingerprint,
            } => {
                let info = StartInfo {
                    prompt_tokens: *prompt_tokens,
                    cached_tokens: *cached_tokens,
                    response_id: case["response_id"].as_str().unwrap().into(),
                    system_fingerprint: fingerprint.clone(),
                    model: case["response_model"].as_str().unwrap().into(),
                    ..StartInfo::default()
                };
                parser.start(&info, out)
            }
            Piece::Text { text, tokens } => {
                let chunk = Chunk {
                    text: Some(text),
                    text_tokens: *tokens,
                    ..Chunk::default()
                };
                parser.push(&chunk, out)
            }
            Piece::Ids { ids, logprobs } => {
                let rows = Rows::of(logprobs);
                let chunk = Chunk {
                    tokens: ids,
                    logprobs: &rows.own,
                    top_tokens: &rows.top_tokens,
                    top_logprobs: &rows.top,
                    top_count: rows.width as u32,
                    ..Chunk::default()
                };
                parser.push(&chunk, out)
            }
            Piece::Finish(finish) => parser.finish(*finish, None, out),
        };
        outcome.map_err(|error| error.message)?;
        let events = self.out.events().map(|event| {
            let data = serde_json::from_str(event.data).expect(event.data);
            (event.name.map(str::to_owned), data)
        });
        Ok(events.collect())
    }

    fn response(&self) -> Value {
        serde_json::from_str(&self.parser.response().unwrap()).expect("a response is JSON")
    }
}
