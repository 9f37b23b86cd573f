//! A host of the library, through its C functions: one engine with the demo model for the whole process, a recipe,
//! and as many queues as tests want. Whatever a function lends is copied here, so that nothing else has to know how
//! long it lives.

#![allow(dead_code, reason = "each test crate uses its own part")]

use std::ffi::c_char;
use std::path::Path;
use std::ptr::{null, null_mut};
use std::sync::OnceLock;

use fathom::capi::batch::{fathom_batch_free, fathom_batch_new};
use fathom::capi::call::{
    fathom_call, fathom_call_blocking, fathom_call_options, fathom_call_options_init,
};
use fathom::capi::engine::{
    fathom_engine_free, fathom_engine_open, fathom_engine_options, fathom_engine_options_init,
};
use fathom::capi::library::{
    fathom_buf_data, fathom_buf_free, fathom_error_body, fathom_error_free,
    fathom_error_http_status, fathom_error_message, fathom_error_param, fathom_error_status,
};
use fathom::capi::metrics::{fathom_engine_stats, fathom_engine_stats_get};
use fathom::capi::parser::{
    fathom_chunk, fathom_parser_finish, fathom_parser_free, fathom_parser_new, fathom_parser_push,
    fathom_parser_response, fathom_parser_start, fathom_parser_start_info,
};
use fathom::capi::queue::{
    FATHOM_EVENT_DATA, FATHOM_EVENT_DONE, FATHOM_EVENT_TOKENS, fathom_event, fathom_queue_free,
    fathom_queue_new, fathom_queue_poll, fathom_usage,
};
use fathom::capi::recipe::{
    fathom_prepare_with, fathom_prepared_free, fathom_prepared_tokens, fathom_recipe_free,
    fathom_recipe_open, fathom_recipe_options, fathom_recipe_options_init,
};
use fathom::capi::request::{
    FATHOM_SUBMIT_NO_CACHE, fathom_cancel, fathom_submit, fathom_submit_options,
    fathom_submit_options_init,
};
use fathom::capi::tokenizer::{
    FATHOM_DETOKENIZE_KEEP_SPECIAL, FATHOM_TOKENIZE_ALLOW_SPECIAL, fathom_recipe_tokenizer,
    fathom_tokenizer_decode, fathom_tokenizer_encode, fathom_tokenizer_free,
};
use fathom::capi::types::{
    FATHOM_OK, fathom_batch, fathom_buf, fathom_engine, fathom_error, fathom_parser,
    fathom_prepared, fathom_queue, fathom_recipe, fathom_str, fathom_tokenizer,
};
use serde_json::Value;

/// What an error object says.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Failure {
    pub(crate) status: i32,
    pub(crate) http: i32,
    pub(crate) message: String,
    pub(crate) param: String,
    /// What a server answers, in the dialect of the protocol.
    pub(crate) body: Value,
}

impl Failure {
    /// Reads an object that is owned or lent.
    ///
    /// # Safety
    ///
    /// `error` is live.
    unsafe fn read(error: *const fathom_error, protocol: i32) -> Self {
        assert!(!error.is_null(), "a failure without an error object");
        let (mut length, mut body) = (0, null_mut());
        // SAFETY: the error is live, the out-parameters are writable, the buffer is ours.
        unsafe {
            let message = fathom_error_message(error, &mut length);
            let message = copied(message, length);
            let param = fathom_error_param(error, &mut length);
            let param = copied(param, length);
            assert_eq!(fathom_error_body(error, protocol, &mut body), FATHOM_OK);
            Self {
                status: fathom_error_status(error),
                http: fathom_error_http_status(error),
                message,
                param,
                body: serde_json::from_str(&buffer(body)).expect("a body is JSON"),
            }
        }
    }

    /// Reads and frees the object of a call that answered `status`.
    fn take(status: i32, error: *mut fathom_error, protocol: i32) -> Box<Self> {
        // SAFETY: the call made it, nobody else has it.
        unsafe {
            let failure = Self::read(error, protocol);
            fathom_error_free(error);
            assert_eq!(failure.status, status);
            Box::new(failure)
        }
    }
}

/// Copies text.
///
/// # Safety
///
/// `start` has `length` readable bytes.
unsafe fn copied(start: *const c_char, length: usize) -> String {
    assert!(!start.is_null());
    // SAFETY: the caller's promise.
    let bytes = unsafe { std::slice::from_raw_parts(start.cast::<u8>(), length) };
    String::from_utf8(bytes.to_vec()).expect("texts are UTF-8")
}

/// Copies borrowed text; nothing if it is absent.
///
/// # Safety
///
/// As of [`copied`].
unsafe fn optional(text: fathom_str) -> Option<String> {
    // SAFETY: the caller's promise.
    (!text.ptr.is_null()).then(|| unsafe { copied(text.ptr, text.len) })
}

/// Copies numbers; none if there are none.
///
/// # Safety
///
/// `start` is NULL or has `length` readable elements.
unsafe fn numbers<T: Copy>(start: *const T, length: usize) -> Vec<T> {
    if start.is_null() {
        return Vec::new();
    }
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts(start, length).to_vec() }
}

/// Copies and frees a buffer.
///
/// # Safety
///
/// `buffer` is live.
unsafe fn buffer(buffer: *mut fathom_buf) -> String {
    let mut length = 0;
    // SAFETY: the caller's promise; the bytes are text that we made.
    unsafe {
        let start = fathom_buf_data(buffer, &mut length);
        let text = copied(start.cast(), length);
        fathom_buf_free(buffer);
        text
    }
}

fn borrowed(text: &str) -> fathom_str {
    fathom_str {
        ptr: text.as_ptr().cast(),
        len: text.len(),
    }
}

/// What a host asks for besides the request. By `Default` only for the likeliest tokens, for requests that think may
/// not say so themselves.
#[derive(Clone, Debug)]
pub(crate) struct Wishes {
    pub(crate) tag: u64,
    /// NaN = as the request says.
    pub(crate) temperature: f32,
    pub(crate) response_id: Option<String>,
    pub(crate) created_unix_s: i64,
    pub(crate) options_json: Option<String>,
    pub(crate) deadline_ms: u64,
    /// 0 = the engine's own. 1 keeps the engine from running ahead of its reader.
    pub(crate) max_unread_tokens: u32,
    pub(crate) no_cache: bool,
    pub(crate) params_json: Option<String>,
}

impl Default for Wishes {
    fn default() -> Self {
        Self {
            tag: 0,
            temperature: 0.0,
            response_id: None,
            created_unix_s: 0,
            options_json: None,
            deadline_ms: 0,
            max_unread_tokens: 0,
            no_cache: false,
            params_json: None,
        }
    }
}

impl Wishes {
    fn submit_options(&self) -> fathom_submit_options {
        let mut options = std::mem::MaybeUninit::<fathom_submit_options>::uninit();
        // SAFETY: it is as large as is said, and set up before it is read.
        let mut options = unsafe {
            fathom_submit_options_init(options.as_mut_ptr(), size_of::<fathom_submit_options>());
            options.assume_init()
        };
        options.tag = self.tag;
        options.temperature = self.temperature;
        options.deadline_ms = self.deadline_ms;
        options.max_unread_tokens = self.max_unread_tokens;
        if self.no_cache {
            options.flags |= FATHOM_SUBMIT_NO_CACHE;
        }
        if let Some(params) = &self.params_json {
            options.params_json = borrowed(params);
        }
        options
    }

    /// Calls `with` the options of a call; they live as long as that takes.
    fn with_call_options<T>(&self, with: impl FnOnce(*const fathom_call_options) -> T) -> T {
        let submit = self.submit_options();
        let mut options = std::mem::MaybeUninit::<fathom_call_options>::uninit();
        // SAFETY: it is as large as is said, and set up before it is read.
        let mut options = unsafe {
            fathom_call_options_init(options.as_mut_ptr(), size_of::<fathom_call_options>());
            options.assume_init()
        };
        options.submit = &submit;
        options.created_unix_s = self.created_unix_s;
        if let Some(id) = &self.response_id {
            options.response_id = borrowed(id);
        }
        if let Some(json) = &self.options_json {
            options.options_json = borrowed(json);
        }
        with(&options)
    }
}

/// The engine with the demo model, and a recipe over its tokenizer.
#[derive(Debug)]
pub(crate) struct Host {
    engine: *mut fathom_engine,
    recipe: *mut fathom_recipe,
    tokenizer: *mut fathom_tokenizer,
}

// SAFETY: all threads may use these objects at once.
unsafe impl Send for Host {}
// SAFETY: as above.
unsafe impl Sync for Host {}

/// The host of this process. It is never closed: a process may end while its engine runs.
pub(crate) fn host() -> &'static Host {
    static HOST: OnceLock<Host> = OnceLock::new();
    HOST.get_or_init(|| {
        let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/fathom-demo");
        Host::open(&model, "{}")
    })
}

impl Host {
    /// Opens an engine for a CPU and a recipe with options.
    pub(crate) fn open(model: &Path, recipe_options: &str) -> Self {
        let path = model.to_str().expect("paths of the repository are UTF-8");
        let (mut engine, mut recipe, mut tokenizer) = (null_mut(), null_mut(), null_mut());
        let mut error = null_mut();
        let mut engine_options = std::mem::MaybeUninit::<fathom_engine_options>::uninit();
        let mut options = std::mem::MaybeUninit::<fathom_recipe_options>::uninit();
        // SAFETY: the options are as large as is said and set up before they are read, their strings outlive the
        // calls, and the out-parameters are writable.
        unsafe {
            fathom_engine_options_init(
                engine_options.as_mut_ptr(),
                size_of::<fathom_engine_options>(),
            );
            let mut engine_options = engine_options.assume_init();
            engine_options.model_path = borrowed(path);
            engine_options.device = borrowed("cpu");
            engine_options.cpu_threads = 2;
            // Short steps, so that a cancel need not wait for a whole prompt.
            engine_options.tuning_json = borrowed(r#"{"chunk": 128, "max_step_tokens": 160}"#);
            let status = fathom_engine_open(&engine_options, &mut engine, &mut error);
            if status != FATHOM_OK {
                panic!("{:?}", Failure::take(status, error, 1));
            }
            fathom_recipe_options_init(options.as_mut_ptr(), size_of::<fathom_recipe_options>());
            let mut options = options.assume_init();
            options.tokenizer_path = borrowed(path);
            options.options_json = borrowed(recipe_options);
            let status = fathom_recipe_open(&options, &mut recipe, &mut error);
            if status != FATHOM_OK {
                panic!("{:?}", Failure::take(status, error, 1));
            }
            let status = fathom_recipe_tokenizer(recipe, &mut tokenizer);
            assert_eq!(status, FATHOM_OK);
        }
        Self {
            engine,
            recipe,
            tokenizer,
        }
    }

    /// Accepts a request; its events come through the queue.
    pub(crate) fn call(
        &self,
        queue: &Queue,
        protocol: i32,
        json: &str,
        wishes: &Wishes,
    ) -> Result<u64, Box<Failure>> {
        let json = borrowed(json);
        let (mut id, mut error) = (0, null_mut());
        // SAFETY: the objects are live, the texts readable for their lengths, the out-parameters writable.
        let status = wishes.with_call_options(|options| unsafe {
            fathom_call(
                self.engine,
                self.recipe,
                queue.queue,
                protocol,
                json.ptr,
                json.len,
                options,
                &mut id,
                &mut error,
            )
        });
        if status != FATHOM_OK {
            return Err(Failure::take(status, error, protocol));
        }
        assert_ne!(id, 0);
        Ok(id)
    }

    /// The whole answer, waited for.
    pub(crate) fn call_blocking(
        &self,
        protocol: i32,
        json: &str,
        wishes: &Wishes,
    ) -> Result<String, Box<Failure>> {
        let json = borrowed(json);
        let (mut out, mut error) = (null_mut(), null_mut());
        // SAFETY: as above; the buffer is ours.
        unsafe {
            let status = wishes.with_call_options(|options| {
                fathom_call_blocking(
                    self.engine,
                    self.recipe,
                    protocol,
                    json.ptr,
                    json.len,
                    options,
                    &mut out,
                    &mut error,
                )
            });
            if status != FATHOM_OK {
                return Err(Failure::take(status, error, protocol));
            }
            Ok(buffer(out))
        }
    }

    /// Turns a request into token ids, by hand.
    pub(crate) fn prepare(
        &self,
        protocol: i32,
        json: &str,
        wishes: &Wishes,
    ) -> Result<Prepared, Box<Failure>> {
        let json = borrowed(json);
        let options = borrowed(wishes.options_json.as_deref().unwrap_or("{}"));
        let (mut prepared, mut error) = (null_mut(), null_mut());
        // SAFETY: as above.
        let status = unsafe {
            fathom_prepare_with(
                self.recipe,
                protocol,
                json.ptr,
                json.len,
                options.ptr,
                options.len,
                &mut prepared,
                &mut error,
            )
        };
        if status != FATHOM_OK {
            return Err(Failure::take(status, error, protocol));
        }
        Ok(Prepared(prepared))
    }

    /// Gives a prepared request to the engine; its tokens come through the queue.
    pub(crate) fn submit(
        &self,
        queue: &Queue,
        prepared: &Prepared,
        wishes: &Wishes,
    ) -> Result<u64, Box<Failure>> {
        let options = wishes.submit_options();
        let (mut id, mut error) = (0, null_mut());
        // SAFETY: as above.
        let status = unsafe {
            fathom_submit(
                self.engine,
                queue.queue,
                prepared.0,
                &options,
                &mut id,
                &mut error,
            )
        };
        if status != FATHOM_OK {
            return Err(Failure::take(status, error, 1));
        }
        Ok(id)
    }

    pub(crate) fn cancel(&self, id: u64) {
        // SAFETY: the engine is live, the one id readable.
        let status = unsafe { fathom_cancel(self.engine, &id, 1) };
        assert_eq!(status, FATHOM_OK);
    }

    /// The engine's counters.
    pub(crate) fn stats(&self) -> fathom_engine_stats {
        // SAFETY: all zeroes are a valid value of this plain structure.
        let mut stats: fathom_engine_stats = unsafe { std::mem::zeroed() };
        stats.struct_size = size_of::<fathom_engine_stats>();
        // SAFETY: the engine is live, the structure as large as it says.
        let status = unsafe { fathom_engine_stats_get(self.engine, &mut stats) };
        assert_eq!(status, FATHOM_OK);
        stats
    }

    /// Ids of a text in which special tokens stand by their spelling.
    pub(crate) fn encode(&self, text: &str) -> Vec<u32> {
        let mut room = vec![0; text.len() + 8];
        let (mut needed, mut error) = (0, null_mut());
        let text = borrowed(text);
        // SAFETY: the tokenizer is live, the text readable and the room writable for its length.
        let status = unsafe {
            fathom_tokenizer_encode(
                self.tokenizer,
                text.ptr,
                text.len,
                FATHOM_TOKENIZE_ALLOW_SPECIAL,
                room.as_mut_ptr(),
                room.len(),
                &mut needed,
                &mut error,
            )
        };
        if status != FATHOM_OK {
            panic!("{:?}", Failure::take(status, error, 1));
        }
        room.truncate(needed);
        room
    }

    /// The text of these ids, special tokens by their spelling.
    pub(crate) fn decode(&self, ids: &[u32]) -> String {
        let (mut out, mut error) = (null_mut(), null_mut());
        // SAFETY: the tokenizer is live, the ids are readable, the out-parameters writable, the buffer is ours.
        unsafe {
            let status = fathom_tokenizer_decode(
                self.tokenizer,
                ids.as_ptr(),
                ids.len(),
                FATHOM_DETOKENIZE_KEEP_SPECIAL,
                &mut out,
                &mut error,
            );
            if status != FATHOM_OK {
                panic!("{:?}", Failure::take(status, error, 1));
            }
            buffer(out)
        }
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        // SAFETY: each came from its maker and is freed once; in any order.
        unsafe {
            fathom_tokenizer_free(self.tokenizer);
            fathom_recipe_free(self.recipe);
            fathom_engine_free(self.engine);
        }
    }
}

/// What a queue or a parser delivered.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Event {
    pub(crate) request: u64,
    pub(crate) tag: u64,
    pub(crate) kind: Kind,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Kind {
    Tokens(Tokens),
    Data {
        name: Option<String>,
        data: String,
        token_count: usize,
    },
    Done(Done),
}

/// Ids of one span, with what was asked for.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Tokens {
    pub(crate) ids: Vec<u32>,
    pub(crate) logprobs: Vec<f32>,
    pub(crate) top_ids: Vec<u32>,
    pub(crate) top_logprobs: Vec<f32>,
    pub(crate) top_count: u32,
    /// Prompt and cached tokens, in the first span.
    pub(crate) prompt: Option<(u32, u32)>,
}

/// The end of a request.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Done {
    pub(crate) finish: i32,
    pub(crate) error: Option<Failure>,
    pub(crate) usage: Option<Usage>,
    pub(crate) detail: Option<Value>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    pub(crate) prompt: u32,
    pub(crate) cached: u32,
    pub(crate) completion: u32,
    pub(crate) reasoning: u32,
}

/// Copies what a call lent.
///
/// # Safety
///
/// `events` are `count` events of a batch that is not used in between.
unsafe fn events(events: *const fathom_event, count: usize, protocol: i32) -> Vec<Event> {
    // SAFETY: the caller's promise; the batch was made for events of this size, and all that an event points to
    // lives as long as the batch is not used.
    unsafe {
        let events = numbers(events, count);
        let copy = |event: fathom_event| Event {
            request: event.request,
            tag: event.tag,
            kind: match event.kind {
                FATHOM_EVENT_TOKENS => {
                    let wide = event.token_count * event.top_count as usize;
                    Kind::Tokens(Tokens {
                        ids: numbers(event.tokens, event.token_count),
                        logprobs: numbers(event.logprobs, event.token_count),
                        top_ids: numbers(event.top_tokens, wide),
                        top_logprobs: numbers(event.top_logprobs, wide),
                        top_count: event.top_count,
                        prompt: event
                            .usage
                            .as_ref()
                            .map(|u| (u.prompt_tokens, u.cached_tokens)),
                    })
                }
                FATHOM_EVENT_DATA => Kind::Data {
                    name: optional(event.name),
                    data: optional(event.data).expect("DATA has data"),
                    token_count: event.token_count,
                },
                FATHOM_EVENT_DONE => Kind::Done(Done {
                    finish: event.finish,
                    error: (!event.error.is_null()).then(|| Failure::read(event.error, protocol)),
                    usage: event.usage.as_ref().map(|usage| Usage {
                        prompt: usage.prompt_tokens,
                        cached: usage.cached_tokens,
                        completion: usage.completion_tokens,
                        reasoning: usage.reasoning_tokens,
                    }),
                    detail: optional(event.detail)
                        .map(|json| serde_json::from_str(&json).expect("details are JSON")),
                }),
                other => panic!("an event of kind {other}"),
            },
        };
        events.into_iter().map(copy).collect()
    }
}

/// The memory of events.
#[derive(Debug)]
struct Batch(*mut fathom_batch);

impl Batch {
    fn new() -> Self {
        let mut batch = null_mut();
        // SAFETY: the out-parameter is writable.
        let status = unsafe { fathom_batch_new(size_of::<fathom_event>(), &mut batch) };
        assert_eq!(status, FATHOM_OK);
        Self(batch)
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        // SAFETY: it came from fathom_batch_new and is freed once.
        unsafe { fathom_batch_free(self.0) };
    }
}

/// Where events wait for one consumer.
#[derive(Debug)]
pub(crate) struct Queue {
    queue: *mut fathom_queue,
    batch: Batch,
    /// How error bodies are written.
    protocol: i32,
}

impl Queue {
    pub(crate) fn new(protocol: i32) -> Self {
        let (mut queue, mut error) = (null_mut(), null_mut());
        // SAFETY: the out-parameters are writable.
        let status = unsafe { fathom_queue_new(null(), &mut queue, &mut error) };
        if status != FATHOM_OK {
            panic!("{:?}", Failure::take(status, error, protocol));
        }
        Self {
            queue,
            batch: Batch::new(),
            protocol,
        }
    }

    /// What is ready; waits for something without limit if `timeout_ms` is negative.
    pub(crate) fn poll(&mut self, timeout_ms: i64) -> Vec<Event> {
        let (mut found, mut count, mut error) = (null(), 0, null_mut());
        // SAFETY: queue and batch are live and ours alone, the out-parameters writable.
        unsafe {
            let status = fathom_queue_poll(
                self.queue,
                self.batch.0,
                timeout_ms,
                &mut found,
                &mut count,
                &mut error,
            );
            if status != FATHOM_OK {
                panic!("{:?}", Failure::take(status, error, self.protocol));
            }
            events(found, count, self.protocol)
        }
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        // SAFETY: it came from fathom_queue_new and is freed once.
        unsafe { fathom_queue_free(self.queue) };
    }
}

/// A request that became token ids.
#[derive(Debug)]
pub(crate) struct Prepared(*mut fathom_prepared);

impl Prepared {
    pub(crate) fn tokens(&self) -> Vec<u32> {
        let (mut tokens, mut count) = (null(), 0);
        // SAFETY: the request is live, and so are its ids.
        unsafe {
            let status = fathom_prepared_tokens(self.0, &mut tokens, &mut count);
            assert_eq!(status, FATHOM_OK);
            numbers(tokens, count)
        }
    }
}

impl Drop for Prepared {
    fn drop(&mut self) {
        // SAFETY: it came from fathom_prepare_with and is freed once.
        unsafe { fathom_prepared_free(self.0) };
    }
}

/// Reads the output of one request, by hand.
#[derive(Debug)]
pub(crate) struct Parser {
    parser: *mut fathom_parser,
    batch: Batch,
    protocol: i32,
}

impl Parser {
    pub(crate) fn new(prepared: &Prepared, protocol: i32) -> Self {
        let (mut parser, mut error) = (null_mut(), null_mut());
        // SAFETY: the request is live, the out-parameters are writable.
        let status = unsafe { fathom_parser_new(prepared.0, &mut parser, &mut error) };
        if status != FATHOM_OK {
            panic!("{:?}", Failure::take(status, error, protocol));
        }
        Self {
            parser,
            batch: Batch::new(),
            protocol,
        }
    }

    /// Runs one step and copies its events.
    fn step(
        &mut self,
        step: impl FnOnce(
            *mut fathom_parser,
            *mut fathom_batch,
            *mut *const fathom_event,
            *mut usize,
            *mut *mut fathom_error,
        ) -> i32,
    ) -> Vec<Event> {
        let (mut made, mut count, mut error) = (null(), 0, null_mut());
        let status = step(self.parser, self.batch.0, &mut made, &mut count, &mut error);
        if status != FATHOM_OK {
            panic!("{:?}", Failure::take(status, error, self.protocol));
        }
        // SAFETY: the step made them, the batch is ours.
        unsafe { events(made, count, self.protocol) }
    }

    /// Tells what is known before the first token.
    pub(crate) fn start(&mut self, (prompt, cached): (u32, u32), wishes: &Wishes) -> Vec<Event> {
        let info = fathom_parser_start_info {
            struct_size: size_of::<fathom_parser_start_info>(),
            prompt_tokens: prompt,
            cached_tokens: cached,
            created_unix_s: wishes.created_unix_s,
            response_id: wishes
                .response_id
                .as_deref()
                .map_or(fathom_str::ABSENT, borrowed),
            system_fingerprint: fathom_str::ABSENT,
            model: fathom_str::ABSENT,
            choice: 0,
            reserved0: 0,
        };
        // SAFETY: the objects are live, what `info` points to outlives the call.
        self.step(|s, b, events, count, err| unsafe {
            fathom_parser_start(s, &info, b, events, count, err)
        })
    }

    pub(crate) fn push(&mut self, tokens: &Tokens) -> Vec<Event> {
        let or_null = |list: &[f32]| {
            if list.is_empty() {
                null()
            } else {
                list.as_ptr()
            }
        };
        let chunk = fathom_chunk {
            struct_size: size_of::<fathom_chunk>(),
            tokens: tokens.ids.as_ptr(),
            token_count: tokens.ids.len(),
            text: fathom_str::ABSENT,
            text_tokens: 0,
            top_count: tokens.top_count,
            logprobs: or_null(&tokens.logprobs),
            top_tokens: if tokens.top_ids.is_empty() {
                null()
            } else {
                tokens.top_ids.as_ptr()
            },
            top_logprobs: or_null(&tokens.top_logprobs),
        };
        // SAFETY: as above.
        self.step(|s, b, events, count, err| unsafe {
            fathom_parser_push(s, &chunk, b, events, count, err)
        })
    }

    /// Ends the output as the engine did.
    pub(crate) fn finish(&mut self, done: &Done) -> Vec<Event> {
        let usage = done.usage.map(|usage| fathom_usage {
            prompt_tokens: usage.prompt,
            cached_tokens: usage.cached,
            ..fathom_usage::default()
        });
        let usage = usage.as_ref().map_or(null(), std::ptr::from_ref);
        // SAFETY: as above.
        self.step(|s, b, events, count, err| unsafe {
            fathom_parser_finish(s, done.finish, usage, b, events, count, err)
        })
    }

    /// The whole answer.
    pub(crate) fn response(&self) -> String {
        let (mut out, mut error) = (null_mut(), null_mut());
        // SAFETY: the parser is live, the out-parameters are writable, the buffer is ours.
        unsafe {
            let status = fathom_parser_response(self.parser, &mut out, &mut error);
            if status != FATHOM_OK {
                panic!("{:?}", Failure::take(status, error, self.protocol));
            }
            buffer(out)
        }
    }
}

impl Drop for Parser {
    fn drop(&mut self) {
        // SAFETY: it came from fathom_parser_new and is freed once.
        unsafe { fathom_parser_free(self.parser) };
    }
}
