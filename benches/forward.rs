//! Speed of the engine on one checkpoint: prefill and decode, alone and in a batch.
//!
//! ```text
//! cargo bench --bench forward -- MODEL [--prompt 256,1024] [--decode 32] [--batch 1,4,16] [--threads N] [--tries 3]
//!                                      [--device cpu] [--tuning JSON]
//! ```
//!
//! Prints one JSON line for each prompt length and batch, with the fields of `benches/peers/common.py`, so that lines
//! of other engines stand beside them. Prompts are the same ids there and here, decoding is greedy, no request finds
//! a cached prefix, no draft is made.
//!
//! * `prefill_tok_s`: all prompts of the batch, from submission to the end of the last request with `max_tokens` 1.
//! * `decode_tok_s`: tokens that arrive after every request of the batch had its first one, over the time they took.
//! * `bandwidth_share`: the bytes of weights that a decoded token must read at least, times decode speed, over the
//!   read bandwidth that the same number of threads reach on this machine. Bytes of cache entries are not counted.

use std::error::Error;
use std::fs;
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use fathom::engine::queue::QueueOptions;
use fathom::engine::request::{Event, EventKind, Failure, FinishReason, Sampling};
use fathom::engine::{Engine, EngineOptions, Queue, Request};
use serde_json::{Value, json};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn main() -> Result<()> {
    let settings = Settings::parse(std::env::args().skip(1))?;
    let weights = WeightBytes::of(&settings.model)?;
    let bandwidth = read_bandwidth(settings.threads);

    let engine = Engine::open(&settings.engine_options(), &mut |_, _| true)?;
    let vocab = engine.info().vocab_size;
    if vocab < 256 {
        return Err(format!("a vocabulary of {vocab} leaves no ids for prompts").into());
    }
    let queue = Queue::new(QueueOptions::default())?;
    for &batch in &settings.batches {
        for &prompt in &settings.prompts {
            let case = Case {
                prompt,
                decode: settings.decode,
                batch,
                vocab,
            };
            let mut measured = Measured::default();
            for _ in 0..settings.tries {
                case.prefill(&engine, &queue, &mut measured)?;
                case.decode(&engine, &queue, &mut measured)?;
            }
            println!("{}", measured.line(&settings, &case, &weights, bandwidth));
        }
    }
    engine.shutdown(Duration::ZERO)?;
    Ok(())
}

/// What the command line says.
struct Settings {
    model: PathBuf,
    prompts: Vec<usize>,
    decode: usize,
    batches: Vec<usize>,
    threads: usize,
    tries: usize,
    device: String,
    tuning: String,
}

impl Settings {
    fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Self> {
        let mut settings = Self {
            model: PathBuf::new(),
            prompts: vec![256, 1024],
            decode: 32,
            batches: vec![1, 4, 16],
            threads: std::thread::available_parallelism()?.get(),
            tries: 3,
            device: "cpu".to_owned(),
            tuning: String::new(),
        };
        while let Some(argument) = arguments.next() {
            let mut value = || {
                arguments
                    .next()
                    .ok_or(format!("{argument:?} needs a value"))
            };
            match argument.as_str() {
                "--bench" => {} // Cargo's own
                "--prompt" => settings.prompts = numbers(&value()?)?,
                "--decode" => settings.decode = value()?.parse()?,
                "--batch" => settings.batches = numbers(&value()?)?,
                "--threads" => settings.threads = value()?.parse()?,
                "--tries" => settings.tries = value()?.parse()?,
                "--device" => settings.device = value()?,
                "--tuning" => settings.tuning = value()?,
                path if settings.model.as_os_str().is_empty() && !path.starts_with("--") => {
                    settings.model = PathBuf::from(path);
                }
                unknown => return Err(format!("unknown argument {unknown:?}").into()),
            }
        }
        if settings.model.as_os_str().is_empty() {
            return Err("name a checkpoint directory: cargo bench --bench forward -- MODEL".into());
        }
        if settings.threads == 0 || settings.tries == 0 || settings.decode == 0 {
            return Err("--threads, --tries and --decode must be at least 1".into());
        }
        Ok(settings)
    }

    fn engine_options(&self) -> EngineOptions {
        EngineOptions {
            model_path: self.model.clone(),
            device: self.device.clone(),
            max_running: self.batches.iter().copied().max().unwrap_or(1) as u32,
            cpu_threads: self.threads as u32,
            no_prefix_cache: true,
            no_speculation: true,
            tuning_json: self.tuning.clone(),
            ..EngineOptions::default()
        }
    }
}

fn numbers(list: &str) -> Result<Vec<usize>> {
    let numbers: Vec<usize> = list
        .split(',')
        .map(str::parse)
        .collect::<std::result::Result<_, _>>()?;
    if numbers.contains(&0) {
        return Err(format!("zero in {list:?}").into());
    }
    Ok(numbers)
}

/// One line of the table.
struct Case {
    prompt: usize,
    decode: usize,
    batch: usize,
    vocab: u32,
}

impl Case {
    /// Runs all prompts to their first token.
    fn prefill(&self, engine: &Engine, queue: &Queue, measured: &mut Measured) -> Result<()> {
        let start = Instant::now();
        let arrivals = self.run(engine, queue, 1)?;
        measured
            .prefill_s
            .push((arrivals.end - start).as_secs_f64());
        Ok(())
    }

    /// Runs all requests to their last token; counts from the moment when all are decoding.
    fn decode(&self, engine: &Engine, queue: &Queue, measured: &mut Measured) -> Result<()> {
        let arrivals = self.run(engine, queue, self.decode + 1)?;
        let all_decode = arrivals
            .first
            .iter()
            .flatten()
            .copied()
            .max()
            .ok_or("no request made a token")?;
        let last = arrivals
            .tokens
            .iter()
            .map(|token| token.at)
            .max()
            .ok_or("no request made a token")?;
        let counted: usize = arrivals
            .tokens
            .iter()
            .filter(|token| token.at > all_decode)
            .map(|token| token.count)
            .sum();
        if counted == 0 {
            return Err(
                "the last request got its first token when all others were done: raise --decode"
                    .into(),
            );
        }
        measured
            .decode_s_per_token
            .push((last - all_decode).as_secs_f64() / counted as f64);
        measured.first_tokens = arrivals.row0.into_iter().take(8).collect();
        Ok(())
    }

    fn run(&self, engine: &Engine, queue: &Queue, max_tokens: usize) -> Result<Arrivals> {
        for row in 0..self.batch {
            engine.submit(queue, self.request(row, max_tokens), None)?;
        }
        let mut arrivals = Arrivals::new(self.batch);
        let mut events = Vec::new();
        let mut open = self.batch;
        while open > 0 {
            events.clear();
            queue.poll(&mut events, None)?;
            let now = Instant::now();
            for event in events.drain(..) {
                open -= usize::from(arrivals.take(event, now)?);
            }
        }
        Ok(arrivals)
    }

    fn request(&self, row: usize, max_tokens: usize) -> Request {
        Request {
            max_tokens: Some(max_tokens as u32),
            sampling: Sampling {
                temperature: 0.0,
                seed: Some(0),
                ..Sampling::default()
            },
            ignore_eos: true,
            no_cache: true,
            constraint: None,
            tag: row as u64,
            ..Request::new(prompt(self.prompt, self.vocab, row))
        }
    }
}

/// The same ids for every engine: `prompt` of `benches/peers/common.py` is its twin.
fn prompt(length: usize, vocab: u32, row: usize) -> Vec<u32> {
    // Ids at both ends of a vocabulary have a meaning: begin, end, pad; roles and image places.
    const FIRST_PLAIN: usize = 3;
    const SPECIAL: usize = 128;
    let plain = vocab as usize - FIRST_PLAIN - SPECIAL;
    let id = |i: usize| (FIRST_PLAIN + (i * 7919 + row * 104_729 + 17) % plain) as u32;
    (0..length).map(id).collect()
}

/// When tokens of a batch arrived.
struct Arrivals {
    first: Vec<Option<Instant>>,
    tokens: Vec<Arrival>,
    row0: Vec<u32>,
    end: Instant,
}

struct Arrival {
    at: Instant,
    count: usize,
}

impl Arrivals {
    fn new(batch: usize) -> Self {
        Self {
            first: vec![None; batch],
            tokens: Vec::new(),
            row0: Vec::new(),
            end: Instant::now(),
        }
    }

    /// Notes an event; true when it ends its request.
    fn take(&mut self, event: Event, now: Instant) -> Result<bool> {
        let row = event.tag as usize;
        match event.kind {
            EventKind::Tokens(span) if span.tokens.is_empty() => Ok(false),
            EventKind::Tokens(span) => {
                self.first[row].get_or_insert(now);
                self.tokens.push(Arrival {
                    at: now,
                    count: span.tokens.len(),
                });
                if row == 0 {
                    self.row0.extend(span.tokens);
                }
                Ok(false)
            }
            EventKind::Done(done) if done.finish == FinishReason::Length => {
                self.end = now;
                Ok(true)
            }
            EventKind::Done(done) => {
                let why = match done.failure {
                    Some(Failure::Engine(error)) => error.to_string(),
                    Some(Failure::Prepare(error)) => error.to_string(),
                    None => format!("{:?}", done.finish),
                };
                Err(format!("request {row} ended early: {why}").into())
            }
            EventKind::Data { .. } => Err("events of an adapter, though none was given".into()),
        }
    }
}

#[derive(Default)]
struct Measured {
    prefill_s: Vec<f64>,
    decode_s_per_token: Vec<f64>,
    first_tokens: Vec<u32>,
}

impl Measured {
    fn line(
        mut self,
        settings: &Settings,
        case: &Case,
        weights: &WeightBytes,
        bandwidth: f64,
    ) -> Value {
        self.prefill_s.sort_by(f64::total_cmp);
        self.decode_s_per_token.sort_by(f64::total_cmp);
        let prefilled = (case.prompt * case.batch) as f64;
        let decode_tok_s = 1.0 / self.decode_s_per_token[0];
        let bytes = weights.per_token(case.batch);
        json!({
            "peer": "fathom", "version": env!("CARGO_PKG_VERSION"), "device": settings.device,
            "batch": case.batch, "prompt": case.prompt, "decode": case.decode,
            "threads": settings.threads, "tries": settings.tries,
            "prefill_tok_s": rounded(prefilled / self.prefill_s[0]),
            "decode_tok_s": rounded(decode_tok_s),
            "prefill_tok_s_median": rounded(prefilled / median(&self.prefill_s)),
            "decode_tok_s_median": rounded(1.0 / median(&self.decode_s_per_token)),
            "load1": load_average(),
            "bytes_read_per_token": bytes as u64,
            "read_gb_s": rounded(bandwidth / 1e9),
            "bandwidth_share": rounded(bytes * decode_tok_s / bandwidth),
            "first_tokens": self.first_tokens,
        })
    }
}

fn median(sorted: &[f64]) -> f64 {
    let middle = sorted.len() / 2;
    if sorted.len() % 2 == 1 {
        sorted[middle]
    } else {
        (sorted[middle - 1] + sorted[middle]) / 2.0
    }
}

fn rounded(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

fn load_average() -> Option<f64> {
    fs::read_to_string("/proc/loadavg")
        .ok()?
        .split(' ')
        .next()?
        .parse()
        .ok()
}

/// Bytes of the weights that decoding touches.
struct WeightBytes {
    /// Read once a step, whatever the batch.
    always: f64,
    /// All routed experts of the backbone.
    experts: f64,
    /// The share of the experts that one token uses.
    expert_share: f64,
}

impl WeightBytes {
    /// Sums the headers of the checkpoint's files. Tables of which a token reads single rows count nothing, nor does
    /// the draft module.
    fn of(model: &Path) -> Result<Self> {
        let config: Value = serde_json::from_slice(&fs::read(model.join("config.json"))?)?;
        let text = config.get("text_config").unwrap_or(&config);
        let number = |key: &str| {
            text[key]
                .as_f64()
                .ok_or(format!("config.json has no number {key:?}"))
        };
        let mut bytes = Self {
            always: 0.0,
            experts: 0.0,
            expert_share: number("num_experts_per_tok")? / number("n_routed_experts")?,
        };
        for entry in fs::read_dir(model)? {
            let path = entry?.path();
            if path
                .extension()
                .is_some_and(|extension| extension == "safetensors")
            {
                bytes.add_file(&path)?;
            }
        }
        Ok(bytes)
    }

    fn add_file(&mut self, path: &Path) -> Result<()> {
        let header = safetensors_header(path)?;
        for (name, tensor) in header
            .as_object()
            .ok_or("a safetensors header is an object")?
        {
            let Some(offsets) = tensor["data_offsets"].as_array() else {
                continue;
            }; // __metadata__
            let [start, end] =
                [0, 1].map(|i| offsets.get(i).and_then(Value::as_f64).unwrap_or(0.0));
            let row_table = name == "embed.weight"
                || name.ends_with("tid2eid")
                || name.contains("engram.embed");
            if row_table || name.starts_with("mtp.") {
                continue;
            }
            *(if name.contains(".experts.") {
                &mut self.experts
            } else {
                &mut self.always
            }) += end - start;
        }
        Ok(())
    }

    /// What a token costs at least when `batch` tokens share a step: a matrix is read once for all of them, and an
    /// expert when any of them wants it (as if experts were drawn evenly).
    fn per_token(&self, batch: usize) -> f64 {
        let wanted = 1.0 - (1.0 - self.expert_share).powi(batch as i32);
        (self.always + self.experts * wanted) / batch as f64
    }
}

fn safetensors_header(path: &Path) -> Result<Value> {
    use std::io::Read;
    let mut file = fs::File::open(path)?;
    let mut length = [0; 8];
    file.read_exact(&mut length)?;
    let mut header = Vec::new();
    file.take(u64::from_le_bytes(length))
        .read_to_end(&mut header)?;
    Ok(serde_json::from_slice(&header)?)
}

/// Bytes a second that `threads` threads read from memory, each its own 256 MiB: the best of five passes.
fn read_bandwidth(threads: usize) -> f64 {
    const WORDS: usize = 256 * 1024 * 1024 / 8;
    let parts: Vec<Vec<u64>> = std::thread::scope(|scope| {
        // Filled by the threads that share the node with the readers, so that pages lie near them.
        let fills: Vec<_> = (0..threads)
            .map(|_| scope.spawn(|| vec![black_box(1_u64); WORDS]))
            .collect();
        fills
            .into_iter()
            .map(|fill| fill.join().expect("filling does not panic"))
            .collect()
    });
    let pass = || {
        let start = Instant::now();
        std::thread::scope(|scope| {
            for part in &parts {
                scope.spawn(move || black_box(sum(part)));
            }
        });
        start.elapsed().as_secs_f64()
    };
    let best = (0..5).map(|_| pass()).fold(f64::INFINITY, f64::min);
    (threads * WORDS * 8) as f64 / best
}

/// Reads every word, with the widest loads this machine has.
fn sum(words: &[u64]) -> u64 {
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx512f")]
        fn wide(words: &[u64]) -> u64 {
            streams(words)
        }
        if is_x86_feature_detected!("avx512f") {
            // SAFETY: the feature was detected just above.
            return unsafe { wide(words) };
        }
    }
    streams(words)
}

/// Four places at once keep more reads in flight than one; sums side by side become vector registers.
#[inline(always)]
fn streams(words: &[u64]) -> u64 {
    const LANES: usize = 16;
    let quarter = words.len() / 4;
    let mut sums = [[0_u64; LANES]; 4];
    let (ab, cd) = words.split_at(2 * quarter);
    let ((a, b), (c, d)) = (ab.split_at(quarter), cd.split_at(quarter));
    let lanes = |part: &'_ [u64]| part.len() / LANES;
    for i in 0..lanes(a) {
        for (sums, part) in sums.iter_mut().zip([a, b, c, d]) {
            let words = &part[i * LANES..(i + 1) * LANES];
            sums.iter_mut()
                .zip(words)
                .for_each(|(s, w)| *s = s.wrapping_add(*w));
        }
    }
    sums.iter()
        .flatten()
        .fold(0, |total, sum| total.wrapping_add(*sum))
}
