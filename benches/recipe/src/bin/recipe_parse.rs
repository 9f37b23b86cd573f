//! Times model output → protocol events → JSON beside deepseek-recipe 0.2.0: same outputs, same chunks, same process,
//! rounds in turn. Before timing, both must say the same.
//!
//! `cargo run --release --bin recipe_parse -- [rounds] [kilobytes]`. Prints one JSON object a line. Rates are by thread
//! CPU time, the time of a push is by the wall clock, from one chunk to the next; of all rounds the best counts.

use std::ffi::c_char;
use std::pin::{Pin, pin};
use std::ptr::{null, null_mut};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use deepseek_recipe::anthropic::MessagesRequest;
use deepseek_recipe::openai::{ChatCompletionRequest, ResponsesRequest};
use deepseek_recipe::request::{ConversationRequest, ConversionOptions, ProtocolRequest};
use deepseek_recipe::response::ProtocolResponse;
use deepseek_recipe::stream::{
    ChunkGenerator, InferenceChunk, InferenceFinishReason, StreamProcessor,
};
use deepseek_recipe_encoding::PromptTokenizer;
use fathom::capi;
use fathom::capi::queue::fathom_event;
use fathom::capi::types::{FATHOM_OK, fathom_batch, fathom_error, fathom_parser};
use fathom::recipe::stream::{Chunk, Finish, Output, Parser};
use fathom::recipe::tokenizer::Tokenizer;
use fathom::recipe::{Prepared, Protocol, Recipe, RecipeOptions};
use fathom_recipe_bench::{Counting, allocations, percentile, tokenizer_files};
use serde_json::{Value, json};
use tokio_stream::Stream;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const PROTOCOLS: [Protocol; 3] = [
    Protocol::ChatCompletions,
    Protocol::Responses,
    Protocol::Messages,
];

/// One output in the chunks of a backend.
struct Case {
    shape: &'static str,
    chunking: &'static str,
    thinking: bool,
    bytes: usize,
    chunks: Vec<Piece>,
}

#[derive(Clone)]
enum Piece {
    Text(String),
    Ids(Vec<u32>),
}

/// What became of a case: JSON documents and their names, when each chunk was asked for, and allocations.
trait Sink {
    /// Before each chunk, before the finish and behind it.
    fn tick(&mut self);
    fn event(&mut self, name: Option<&'static str>, data: &[u8]);
}

/// Counts bytes; nothing else should cost.
#[derive(Default)]
struct Bytes(usize);

impl Sink for Bytes {
    fn tick(&mut self) {}
    fn event(&mut self, name: Option<&'static str>, data: &[u8]) {
        self.0 += name.map_or(0, str::len) + std::hint::black_box(data).len();
    }
}

/// Notes when each chunk began.
#[derive(Default)]
struct Times(Vec<Instant>);

impl Sink for Times {
    fn tick(&mut self) {
        self.0.push(Instant::now());
    }
    fn event(&mut self, _: Option<&'static str>, data: &[u8]) {
        std::hint::black_box(data);
    }
}

/// Notes the allocator's count at each chunk.
#[derive(Default)]
struct Allocations(Vec<u64>);

impl Sink for Allocations {
    fn tick(&mut self) {
        self.0.push(allocations().0);
    }
    fn event(&mut self, _: Option<&'static str>, data: &[u8]) {
        std::hint::black_box(data);
    }
}

/// What a client reads: deltas joined by what they are.
#[derive(Default)]
struct Client(Vec<(String, String)>);

impl Sink for Client {
    fn tick(&mut self) {}
    fn event(&mut self, _: Option<&'static str>, data: &[u8]) {
        let event: Value = serde_json::from_slice(data).expect("an event is JSON");
        let chat = &event["choices"][0]["delta"];
        let places = [
            ("content", &chat["content"]),
            ("reasoning", &chat["reasoning_content"]),
            ("arguments", &chat["tool_calls"][0]["function"]["arguments"]),
            ("content", &event["delta"]["text"]),
            ("reasoning", &event["delta"]["thinking"]),
            ("arguments", &event["delta"]["partial_json"]),
            (event["type"].as_str().unwrap_or_default(), &event["delta"]),
        ];
        for (kind, text) in places {
            let Some(text) = text.as_str().filter(|text| !text.is_empty()) else {
                continue;
            };
            match self.0.last_mut() {
                Some((last, joined)) if last == kind => joined.push_str(text),
                _ => self.0.push((kind.to_owned(), text.to_owned())),
            }
        }
    }
}

/// Something that reads outputs.
trait System {
    fn name(&self) -> &'static str;
    /// A run with everything made beforehand: `read` is what is timed.
    fn load<'c>(&'c self, protocol: Protocol, case: &'c Case) -> Box<dyn Run + 'c>;
}

trait Run {
    fn bytes(self: Box<Self>, sink: &mut Bytes);
    fn times(self: Box<Self>, sink: &mut Times);
    fn allocations(self: Box<Self>, sink: &mut Allocations);
    fn client(self: Box<Self>, sink: &mut Client);
}

/// Each system reads into any sink; a run is an object.
trait Read {
    fn read<S: Sink>(self, sink: &mut S);
}

impl<R: Read> Run for R {
    fn bytes(self: Box<Self>, sink: &mut Bytes) {
        self.read(sink);
    }
    fn times(self: Box<Self>, sink: &mut Times) {
        self.read(sink);
    }
    fn allocations(self: Box<Self>, sink: &mut Allocations) {
        self.read(sink);
    }
    fn client(self: Box<Self>, sink: &mut Client) {
        self.read(sink);
    }
}

// ---- the peer

struct Peer {
    tokenizer: Arc<tokenizers::Tokenizer>,
}

struct PeerRun<R: ProtocolRequest> {
    request: ConversationRequest,
    tokenizer: Option<Arc<tokenizers::Tokenizer>>,
    chunks: Vec<InferenceChunk>,
    protocol: std::marker::PhantomData<R>,
}

/// Gives chunk after chunk, and says when.
struct Backend<'s, S> {
    chunks: std::vec::IntoIter<InferenceChunk>,
    sink: &'s std::cell::RefCell<&'s mut S>,
}

impl<S: Sink> Stream for Backend<'_, S> {
    type Item = InferenceChunk;
    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<InferenceChunk>> {
        self.sink.borrow_mut().tick();
        Poll::Ready(self.chunks.next())
    }
}

// The bench has one thread; the peer wants a stream that could change it.
// SAFETY: nothing is ever sent to another thread.
unsafe impl<S> Send for Backend<'_, S> {}

impl<R> Read for PeerRun<R>
where
    R: ProtocolRequest,
    <<R::Response as ProtocolResponse>::ChunkGenerator as ChunkGenerator>::Chunk:
        serde::Serialize + Send,
{
    fn read<S: Sink>(self, sink: &mut S) {
        let sink = std::cell::RefCell::new(sink);
        let generator = R::chunk_generator(&self.request, "id".into(), "model".into());
        let mut processor = StreamProcessor::new(generator, self.request.parsing_options);
        if let Some(tokenizer) = self.tokenizer {
            processor = processor.with_tokenizer(tokenizer);
        }
        let backend = Backend {
            chunks: self.chunks.into_iter(),
            sink: &sink,
        };
        let mut events = pin!(processor.into_protocol_stream(backend));
        let mut context = Context::from_waker(Waker::noop());
        let mut json = Vec::new();
        loop {
            match events.as_mut().poll_next(&mut context) {
                Poll::Ready(Some(event)) => {
                    let event = event.expect("the output is fine");
                    json.clear();
                    serde_json::to_writer(&mut json, &event).expect("events are JSON");
                    let name = R::Response::sse_event_name(&event);
                    sink.borrow_mut().event(name, &json);
                }
                Poll::Ready(None) => break,
                Poll::Pending => unreachable!("every chunk is there"),
            }
        }
        sink.borrow_mut().tick();
    }
}

impl Peer {
    fn run<'c, R>(&'c self, body: Value, case: &'c Case) -> Box<dyn Run + 'c>
    where
        R: ProtocolRequest + serde::de::DeserializeOwned + 'c,
        <<R::Response as ProtocolResponse>::ChunkGenerator as ChunkGenerator>::Chunk:
            serde::Serialize + Send,
    {
        let request: R = serde_json::from_value(body).expect("a request");
        let request = request.convert(ConversionOptions::default());
        let chunk = |piece: &Piece| match piece {
            Piece::Text(text) => InferenceChunk::Text {
                content: text.clone(),
                token_count: 1,
            },
            Piece::Ids(ids) => InferenceChunk::Tokens {
                token_ids: ids.clone(),
                logprobs: None,
            },
        };
        let finish = InferenceChunk::Finish {
            finish_reason: InferenceFinishReason::Stop,
        };
        let ids = matches!(case.chunks.first(), Some(Piece::Ids(_)));
        Box::new(PeerRun::<R> {
            request: request.expect("it converts"),
            tokenizer: ids.then(|| self.tokenizer.clone()),
            chunks: case.chunks.iter().map(chunk).chain([finish]).collect(),
            protocol: std::marker::PhantomData,
        })
    }
}

impl System for Peer {
    fn name(&self) -> &'static str {
        "deepseek-recipe"
    }
    fn load<'c>(&'c self, protocol: Protocol, case: &'c Case) -> Box<dyn Run + 'c> {
        let body = body(protocol, case.thinking);
        match protocol {
            Protocol::Responses => self.run::<ResponsesRequest>(body, case),
            Protocol::Messages => self.run::<MessagesRequest>(body, case),
            _ => self.run::<ChatCompletionRequest>(body, case),
        }
    }
}

// ---- fathom

struct Ours {
    with_tokenizer: Recipe,
    without: Recipe,
}

impl Ours {
    fn prepared(&self, protocol: Protocol, case: &Case) -> Arc<Prepared> {
        let body = serde_json::to_vec(&body(protocol, case.thinking)).expect("it is JSON");
        let recipe = match case.chunks.first() {
            Some(Piece::Ids(_)) => &self.with_tokenizer,
            _ => &self.without,
        };
        let prepared = recipe.prepare(protocol, &body, None);
        Arc::new(prepared.unwrap_or_else(|error| panic!("{error}")))
    }
}

fn chunks(case: &Case) -> Vec<Chunk<'_>> {
    let chunk = |piece| match piece {
        &Piece::Text(ref text) => Chunk {
            text: Some(text),
            text_tokens: 1,
            ..Chunk::default()
        },
        Piece::Ids(ids) => Chunk {
            tokens: ids,
            ..Chunk::default()
        },
    };
    case.chunks.iter().map(chunk).collect()
}

struct RustRun<'c> {
    prepared: Arc<Prepared>,
    chunks: Vec<Chunk<'c>>,
}

impl Read for RustRun<'_> {
    fn read<S: Sink>(self, sink: &mut S) {
        let mut parser = Parser::new(&self.prepared).unwrap_or_else(|error| panic!("{error}"));
        let mut out = Output::default();
        for chunk in &self.chunks {
            sink.tick();
            out.clear();
            parser.push(chunk, &mut out).expect("the output is fine");
            for event in out.events() {
                sink.event(event.name, event.data.as_bytes());
            }
        }
        sink.tick();
        out.clear();
        parser.finish(Finish::Stop, None, &mut out).expect("fine");
        for event in out.events() {
            sink.event(event.name, event.data.as_bytes());
        }
        sink.tick();
    }
}

impl System for Ours {
    fn name(&self) -> &'static str {
        "fathom"
    }
    fn load<'c>(&'c self, protocol: Protocol, case: &'c Case) -> Box<dyn Run + 'c> {
        Box::new(RustRun {
            prepared: self.prepared(protocol, case),
            chunks: chunks(case),
        })
    }
}

/// The same through the C functions.
struct OursInC {
    with_tokenizer: *mut capi::types::fathom_recipe,
    without: *mut capi::types::fathom_recipe,
}

impl OursInC {
    fn open(tokenizer: Option<&str>) -> *mut capi::types::fathom_recipe {
        use capi::recipe::{fathom_recipe_open, fathom_recipe_options, fathom_recipe_options_init};
        let mut options = std::mem::MaybeUninit::<fathom_recipe_options>::uninit();
        let mut recipe = null_mut();
        // SAFETY: the options are as large as is said and set up before use; the path outlives the call.
        unsafe {
            fathom_recipe_options_init(options.as_mut_ptr(), size_of::<fathom_recipe_options>());
            let mut options = options.assume_init();
            if let Some(path) = tokenizer {
                options.tokenizer_path = capi::types::fathom_str {
                    ptr: path.as_ptr().cast(),
                    len: path.len(),
                };
            }
            let status = fathom_recipe_open(&options, &mut recipe, null_mut());
            assert_eq!(status, FATHOM_OK);
        }
        recipe
    }
}

struct CRun<'c> {
    parser: *mut fathom_parser,
    batch: *mut fathom_batch,
    case: &'c Case,
}

impl CRun<'_> {
    fn call<S: Sink>(
        sink: &mut S,
        call: impl FnOnce(*mut *const fathom_event, *mut usize, *mut *mut fathom_error) -> i32,
    ) {
        let (mut events, mut count, mut error) = (null(), 0, null_mut());
        assert_eq!(call(&mut events, &mut count, &mut error), FATHOM_OK);
        if count == 0 {
            return;
        }
        // SAFETY: so many events lie there until the next call, and so does what they point to.
        for event in unsafe { std::slice::from_raw_parts(events, count) } {
            // SAFETY: as above.
            let data =
                unsafe { std::slice::from_raw_parts(event.data.ptr.cast::<u8>(), event.data.len) };
            sink.event(None, data);
        }
    }
}

impl Read for CRun<'_> {
    fn read<S: Sink>(self, sink: &mut S) {
        use capi::parser::{
            fathom_parser_finish, fathom_parser_push_text, fathom_parser_push_tokens,
        };
        let (parser, batch) = (self.parser, self.batch);
        for piece in &self.case.chunks {
            sink.tick();
            Self::call(sink, |events, count, error| {
                // SAFETY: parser and batch are live, the chunk readable, the results writable.
                unsafe {
                    match piece {
                        Piece::Text(text) => {
                            let (start, length) = (text.as_ptr().cast::<c_char>(), text.len());
                            fathom_parser_push_text(
                                parser, start, length, 1, batch, events, count, error,
                            )
                        }
                        Piece::Ids(ids) => {
                            let (start, length) = (ids.as_ptr(), ids.len());
                            fathom_parser_push_tokens(
                                parser, start, length, batch, events, count, error,
                            )
                        }
                    }
                }
            });
        }
        sink.tick();
        Self::call(sink, |events, count, error| {
            let stop = capi::queue::FATHOM_FINISH_STOP;
            // SAFETY: as above.
            unsafe { fathom_parser_finish(parser, stop, null(), batch, events, count, error) }
        });
        sink.tick();
    }
}

impl Drop for CRun<'_> {
    fn drop(&mut self) {
        // SAFETY: both are live and freed once.
        unsafe {
            capi::parser::fathom_parser_free(self.parser);
            capi::batch::fathom_batch_free(self.batch);
        }
    }
}

impl System for OursInC {
    fn name(&self) -> &'static str {
        "fathom, C functions"
    }
    fn load<'c>(&'c self, protocol: Protocol, case: &'c Case) -> Box<dyn Run + 'c> {
        use capi::recipe::{fathom_prepare, fathom_prepared_free};
        let body = serde_json::to_vec(&body(protocol, case.thinking)).expect("it is JSON");
        let recipe = match case.chunks.first() {
            Some(Piece::Ids(_)) => self.with_tokenizer,
            _ => self.without,
        };
        let number = match protocol {
            Protocol::Responses => 2,
            Protocol::Messages => 3,
            _ => 1,
        };
        let (mut prepared, mut parser, mut batch) = (null_mut(), null_mut(), null_mut());
        // SAFETY: the recipe is live, the body readable, the results writable.
        unsafe {
            let (start, length) = (body.as_ptr().cast::<c_char>(), body.len());
            let status = fathom_prepare(recipe, number, start, length, &mut prepared, null_mut());
            assert_eq!(status, FATHOM_OK);
            let status = capi::parser::fathom_parser_new(prepared, &mut parser, null_mut());
            assert_eq!(status, FATHOM_OK);
            fathom_prepared_free(prepared);
            let status = capi::batch::fathom_batch_new(size_of::<fathom_event>(), &mut batch);
            assert_eq!(status, FATHOM_OK);
        }
        Box::new(CRun {
            parser,
            batch,
            case,
        })
    }
}

// ---- outputs

const DSML: &str = "｜DSML｜";

/// About `bytes` of prose with markup characters, code, ideographs and an emoji.
fn words(bytes: usize, seed: usize) -> String {
    const TEXT: &str = "The quick brown fox jumps over the lazy dog while reading a long answer about rivers, \
        mountains & code: `let x = a < b;` 你好世界 naïve café 🤭 (see [1]).\n";
    let words: Vec<&str> = TEXT.split(' ').collect();
    let mut out = String::new();
    let mut at = seed;
    while out.len() < bytes {
        out.push_str(words[at % words.len()]);
        out.push(' ');
        at += if at.is_multiple_of(3) { 1 } else { 7 };
    }
    out
}

/// About `bytes` of calls that write files, as V4.1 writes them.
fn calls(bytes: usize) -> String {
    let each = (bytes / 8).clamp(400, 65_536);
    let mut out = format!("<{DSML} calls>\n");
    let mut done = 0;
    while done < bytes {
        let content = words(each, done + 3);
        out += &format!(
            "<{DSML} invoke name=\"write_file\">\n\
             <{DSML} parameter name=\"path\" string=\"true\">src/a.rs</{DSML} parameter>\n\
             <{DSML} parameter name=\"content\" string=\"true\">{content}</{DSML} parameter>\n\
             <{DSML} parameter name=\"opts\" string=\"false\">{{\"n\": [1, 2, 3]}}</{DSML} parameter>\n\
             </{DSML} invoke>\n"
        );
        done += each;
    }
    out + &format!("</{DSML} calls>")
}

fn outputs(bytes: usize) -> [(&'static str, bool, String); 3] {
    let thought = |share: usize| words(share, 1) + "</think>\n\n";
    [
        ("content", false, words(bytes, 1)),
        (
            "reasoning, content",
            true,
            thought(bytes / 2) + &words(bytes / 2, 5),
        ),
        (
            "tool calls",
            true,
            thought(bytes / 10) + &calls(bytes / 10 * 9),
        ),
    ]
}

fn body(protocol: Protocol, thinking: bool) -> Value {
    let schema = json!({"type": "object", "properties": {}});
    let messages = json!([{"role": "user", "content": "hi"}]);
    let mut body = json!({"model": "DeepSeek-V4.1-Flash", "stream": true});
    let more = match protocol {
        Protocol::Responses => json!({
            "input": "hi",
            "reasoning": {"effort": if thinking { "high" } else { "none" }},
            "tools": [{"type": "function", "name": "write_file", "parameters": schema}],
        }),
        Protocol::Messages => json!({
            "messages": messages,
            "max_tokens": 1024,
            "thinking": {"type": if thinking { "enabled" } else { "disabled" }},
            "tools": [{"name": "write_file", "input_schema": schema}],
        }),
        _ => json!({
            "messages": messages,
            "thinking": {"type": if thinking { "enabled" } else { "disabled" }},
            "tools": [{"type": "function", "function": {"name": "write_file", "parameters": schema}}],
        }),
    };
    let more = more.as_object().expect("an object").clone();
    body.as_object_mut().expect("an object").extend(more);
    body
}

fn cases(bytes: usize, tokenizer: &Tokenizer) -> Vec<Case> {
    let mut cases = Vec::new();
    for (shape, thinking, text) in outputs(bytes) {
        let chars: Vec<char> = text.chars().collect();
        let fours = chars.chunks(4).map(|four| four.iter().collect());
        let ids = tokenizer.encode_allow_special(&text).expect("it encodes");
        let by = |size: usize| {
            ids.chunks(size)
                .map(|ids| Piece::Ids(ids.to_vec()))
                .collect()
        };
        let chunkings = [
            ("4 characters", fours.map(Piece::Text).collect()),
            ("1 id", by(1)),
            ("8 ids", by(8)),
            ("whole text", vec![Piece::Text(text.clone())]),
        ];
        cases.extend(chunkings.map(|(chunking, chunks)| Case {
            shape,
            chunking,
            thinking,
            bytes: text.len(),
            chunks,
        }));
    }
    cases
}

// ---- timing

fn main() {
    let mut arguments = std::env::args().skip(1);
    let mut number = |default: usize| {
        let given = arguments.next();
        given.map_or(default, |n| n.parse().expect("a number"))
    };
    let (rounds, kilobytes) = (number(5), number(500));
    let [_, file] = tokenizer_files();
    let tokenizer = Arc::new(Tokenizer::from_bytes(&file).expect("it is valid"));
    let theirs = tokenizers::Tokenizer::from_bytes(&file).expect("it is valid");
    // The peer's own type makes sure that the file suits it.
    PromptTokenizer::new(&theirs);
    let peer = Peer {
        tokenizer: Arc::new(theirs),
    };
    let open = |tokenizer| {
        Recipe::with_tokenizer(&RecipeOptions::default(), tokenizer).expect("defaults are valid")
    };
    let ours = Ours {
        with_tokenizer: open(Some(tokenizer.clone())),
        without: open(None),
    };
    let path = std::env::temp_dir().join(format!("fathom-bench-{}.json", std::process::id()));
    std::fs::write(&path, &file).expect("a scratch file");
    let in_c = OursInC {
        with_tokenizer: OursInC::open(path.to_str()),
        without: OursInC::open(None),
    };
    std::fs::remove_file(&path).expect("it was written");
    let systems: [&dyn System; 3] = [&peer, &ours, &in_c];

    for case in &cases(kilobytes * 1000, &tokenizer) {
        for protocol in PROTOCOLS {
            let [theirs, ours, in_c] = systems.map(|system| {
                let mut client = Client::default();
                system.load(protocol, case).client(&mut client);
                client.0
            });
            assert!(!theirs.is_empty());
            assert!(theirs == ours && ours == in_c, "{protocol:?} differs");
            compare(&systems, protocol, case, rounds);
        }
    }
    for bytes in [100_000, 1_000_000, 4_000_000] {
        let [(shape, thinking, text), ..] = outputs(bytes);
        let pieces = text.as_bytes().chunks(4096);
        let case = Case {
            shape,
            chunking: "4096 bytes",
            thinking,
            bytes: text.len(),
            chunks: pieces
                .map(|piece| Piece::Text(String::from_utf8_lossy(piece).into()))
                .collect(),
        };
        for protocol in PROTOCOLS {
            closing(&systems, protocol, &case, rounds);
        }
    }
    let [_, (shape, thinking, text), _] = outputs(1_000_000);
    let ids = tokenizer.encode_allow_special(&text).expect("it encodes");
    let case = Case {
        shape,
        chunking: "1 id",
        thinking,
        bytes: text.len(),
        chunks: ids.iter().map(|&id| Piece::Ids(vec![id])).collect(),
    };
    closing(&systems, Protocol::ChatCompletions, &case, rounds);
}

/// CPU time of this thread in seconds.
fn cpu() -> f64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the structure is writable.
    let status = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    assert_eq!(status, 0);
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

fn compare(systems: &[&dyn System], protocol: Protocol, case: &Case, rounds: usize) {
    let mut best = vec![f64::INFINITY; systems.len()];
    // Of each round; the best round counts, as for the rates.
    let mut p50 = vec![f64::INFINITY; systems.len()];
    let mut p99 = vec![f64::INFINITY; systems.len()];
    let mut counts = vec![0; systems.len()];
    let mut written = vec![0; systems.len()];
    for _ in 0..rounds {
        for (at, system) in systems.iter().enumerate() {
            let (run, mut sink) = (system.load(protocol, case), Bytes::default());
            let start = cpu();
            run.bytes(&mut sink);
            best[at] = best[at].min(cpu() - start);
            written[at] = sink.0;
            let mut times = Times(Vec::with_capacity(case.chunks.len() + 3));
            system.load(protocol, case).times(&mut times);
            let took = times.0.windows(2).map(|pair| pair[1] - pair[0]);
            // The last interval is the finish.
            let chunks = took.take(case.chunks.len());
            let mut pushes: Vec<f64> = chunks.map(|time| time.as_secs_f64() * 1e9).collect();
            p50[at] = p50[at].min(percentile(&mut pushes, 0.5));
            p99[at] = p99[at].min(percentile(&mut pushes, 0.99));
        }
    }
    for (at, system) in systems.iter().enumerate() {
        let mut sink = Allocations(Vec::with_capacity(case.chunks.len() + 3));
        system.load(protocol, case).allocations(&mut sink);
        let chunks = case.chunks.len();
        // The middle of the output: neither the beginning nor the end.
        counts[at] = sink.0[chunks * 3 / 4] - sink.0[chunks / 4];
    }
    let round = |value: f64| (value * 10.0).round() / 10.0;
    for (at, system) in systems.iter().enumerate() {
        let chunks = case.chunks.len() as f64;
        println!(
            "{}",
            json!({
                "output": case.shape,
                "chunks_of": case.chunking,
                "protocol": format!("{protocol:?}"),
                "system": system.name(),
                "chunks": case.chunks.len(),
                "json_bytes": written[at],
                "ns_a_chunk": round(best[at] * 1e9 / chunks),
                "megabytes_per_s": round(case.bytes as f64 / 1e6 / best[at]),
                "times_faster": (best[0] / best[at] * 100.0).round() / 100.0,
                "push_p50_ns": p50[at].round(),
                "push_p99_ns": p99[at].round(),
                "allocations_per_1000_chunks": round(counts[at] as f64 * 2000.0 / chunks),
            })
        );
    }
}

/// The time of the last push, and of the finish.
fn closing(systems: &[&dyn System], protocol: Protocol, case: &Case, rounds: usize) {
    for system in systems {
        let mut finish = f64::INFINITY;
        for _ in 0..rounds {
            let mut times = Times(Vec::with_capacity(case.chunks.len() + 3));
            system.load(protocol, case).times(&mut times);
            let ticks = &times.0[case.chunks.len()..];
            let took = ticks[ticks.len() - 1] - ticks[0];
            finish = finish.min(took.as_secs_f64() * 1e6);
        }
        println!(
            "{}",
            json!({
                "output": case.shape,
                "chunks_of": case.chunking,
                "protocol": format!("{protocol:?}"),
                "system": system.name(),
                "bytes": case.bytes,
                "finish_us": (finish * 10.0).round() / 10.0,
            })
        );
    }
}
