//! Times request → prompt → ids beside deepseek-recipe 0.2.0: same bodies, same tokenizer files, same process, rounds
//! in turn. Before timing, both must give the same ids for every request.
//!
//! `cargo run --release --bin recipe_prepare -- [rounds] [bodies.jsonl.gz]`, with TOKENIZERS_PARALLELISM=false for one
//! thread (the bench insists on it). Prints one JSON object a line.

use std::sync::Arc;
use std::time::Instant;

use deepseek_recipe::anthropic::MessagesRequest;
use deepseek_recipe::openai::{ChatCompletionRequest, ResponsesRequest};
use deepseek_recipe::request::{
    ConversationRequest, ConversionOptions, ModelVersion, ProtocolRequest,
};
use deepseek_recipe_encoding::v4::dsv4::DeepseekV4Encoding;
use deepseek_recipe_encoding::v4::dsv41::DeepseekV41Encoding;
use deepseek_recipe_encoding::{PromptEncoding, PromptTokenizer};
use fathom::recipe::tokenizer::Tokenizer;
use fathom::recipe::{Protocol, Recipe, RecipeOptions};
use fathom_recipe_bench::{
    Counting, Item, allocations, percentile, requests, root, tokenizer_files, turns,
};
use serde_json::json;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Something that prepares requests.
trait System: Sync {
    fn name(&self) -> &'static str;
    /// Converts and renders; the length of the prompt.
    fn render(&self, item: &Item) -> usize;
    /// All the way to ids.
    fn ids(&self, item: &Item) -> Vec<u32>;
}

struct Peer {
    /// Read bodies into a JSON value first, as the peer's own bindings and example do; only so it takes every body
    /// of its vectors. Straight into its request types is faster, and refuses repeated keys.
    through_value: bool,
    v4: DeepseekV4Encoding,
    v41: DeepseekV41Encoding,
    options: ConversionOptions,
}

impl Peer {
    fn new(through_value: bool, tokenizers: &[PromptTokenizer; 2]) -> Self {
        let [v4, v41] = tokenizers.clone();
        Self {
            through_value,
            v4: DeepseekV4Encoding::new().with_tokenizer(v4),
            v41: DeepseekV41Encoding::new().with_tokenizer(v41),
            options: ConversionOptions::default(),
        }
    }

    fn convert(&self, item: &Item) -> ConversationRequest {
        let options = self.options.clone();
        let converted = match item.protocol {
            Protocol::Responses => self.read::<ResponsesRequest>(item).convert(options),
            Protocol::Messages => self.read::<MessagesRequest>(item).convert(options),
            _ => self.read::<ChatCompletionRequest>(item).convert(options),
        };
        converted.unwrap_or_else(|error| panic!("{error:?}"))
    }

    fn read<T: serde::de::DeserializeOwned>(&self, item: &Item) -> T {
        if !self.through_value {
            return serde_json::from_slice(&item.body).expect("a request");
        }
        let value: serde_json::Value = serde_json::from_slice(&item.body).expect("it is JSON");
        serde_json::from_value(value).expect("a request")
    }

    fn encoding(&self, request: &ConversationRequest) -> &dyn PromptEncoding {
        match request.model_version {
            ModelVersion::DeepseekV4Pro => &self.v4,
            _ => &self.v41,
        }
    }
}

impl System for Peer {
    fn name(&self) -> &'static str {
        if self.through_value {
            "deepseek-recipe"
        } else {
            "deepseek-recipe, typed reading"
        }
    }
    fn render(&self, item: &Item) -> usize {
        let request = self.convert(item);
        let rendered = self
            .encoding(&request)
            .render_conversation(&request.conversation);
        rendered.prompt.len()
    }
    fn ids(&self, item: &Item) -> Vec<u32> {
        let request = self.convert(item);
        self.encoding(&request)
            .encode(&request.conversation)
            .expect("it encodes")
    }
}

struct Ours {
    name: &'static str,
    /// By whether the model is V4.1: each has a tokenizer of its own.
    recipes: [Recipe; 2],
    without_tokenizer: Recipe,
}

impl Ours {
    fn new(name: &'static str, tokenizers: &[Arc<Tokenizer>; 2], options: &str) -> Self {
        let options = RecipeOptions {
            options_json: options.to_owned(),
            ..RecipeOptions::default()
        };
        let open = |tokenizer: Option<&Arc<Tokenizer>>| {
            Recipe::with_tokenizer(&options, tokenizer.cloned()).expect("the options are valid")
        };
        Self {
            name,
            recipes: [open(Some(&tokenizers[0])), open(Some(&tokenizers[1]))],
            without_tokenizer: open(None),
        }
    }
}

impl System for Ours {
    fn name(&self) -> &'static str {
        self.name
    }
    fn render(&self, item: &Item) -> usize {
        let prepared = self
            .without_tokenizer
            .prepare(item.protocol, &item.body, None);
        prepared
            .unwrap_or_else(|error| panic!("{error}"))
            .prompt
            .text
            .len()
    }
    fn ids(&self, item: &Item) -> Vec<u32> {
        let is_v41 = memchr(&item.body, b"DeepSeek-V4.1");
        let prepared = self.recipes[usize::from(is_v41)].prepare(item.protocol, &item.body, None);
        prepared.unwrap_or_else(|error| panic!("{error}")).tokens
    }
}

fn memchr(body: &[u8], needle: &[u8]) -> bool {
    // The model's name is the first field of every body of the set.
    body[..body.len().min(64)]
        .windows(needle.len())
        .any(|window| window == needle)
}

type Stage = fn(&dyn System, &Item) -> usize;

fn main() {
    assert_eq!(
        std::env::var("TOKENIZERS_PARALLELISM").as_deref(),
        Ok("false"),
        "set TOKENIZERS_PARALLELISM=false: the peer would use all cores"
    );
    let mut arguments = std::env::args().skip(1);
    let rounds: usize = arguments
        .next()
        .map_or(15, |n| n.parse().expect("a number of rounds"));
    let path = arguments
        .next()
        .map_or(root().join("benches/recipe/requests.jsonl.gz"), Into::into);
    let files = tokenizer_files();
    let tokenizers = files
        .each_ref()
        .map(|file| Arc::new(Tokenizer::from_bytes(file).expect("it is valid")));
    let theirs = files.each_ref().map(|file| {
        let tokenizer = tokenizers::Tokenizer::from_bytes(file).expect("the file is valid");
        PromptTokenizer::new(&tokenizer)
    });
    let (peer, typed) = (Peer::new(true, &theirs), Peer::new(false, &theirs));
    let items = requests(&path);
    let fresh = || Ours::new("fathom, no reuse", &tokenizers, r#"{"cache_bytes": 0}"#);
    let reusing = || Ours::new("fathom", &tokenizers, "");

    let cold = fresh();
    for (at, item) in items.iter().enumerate() {
        assert!(cold.ids(item) == peer.ids(item), "request {at}: ids differ");
    }
    println!(
        "{}",
        json!({"check": "ids are equal", "requests": items.len()})
    );

    let render: Stage = |system, item| system.render(item);
    let ids: Stage = |system, item| system.ids(item).len();
    for group in ["all", "short chat", "agent", "long"] {
        let set: Vec<Item> = items
            .iter()
            .filter(|item| group == "all" || item.group == group)
            .cloned()
            .collect();
        if set.is_empty() {
            continue;
        }
        let warm = reusing();
        compare(
            "convert + render",
            group,
            render,
            &[&peer, &typed, &cold],
            &set,
            rounds,
        );
        compare(
            "request → ids",
            group,
            ids,
            &[&peer, &typed, &cold, &warm],
            &set,
            rounds,
        );
    }
    for (name, protocol) in [
        ("agent, Chat Completions", Protocol::ChatCompletions),
        ("agent, Responses", Protocol::Responses),
        ("agent, Messages", Protocol::Messages),
    ] {
        let of = |item: &&Item| item.group == "agent" && item.protocol == protocol;
        let set: Vec<Item> = items.iter().filter(of).cloned().collect();
        if !set.is_empty() {
            compare(
                "convert + render",
                name,
                render,
                &[&peer, &typed, &cold],
                &set,
                rounds,
            );
        }
    }

    // An agent at work: each request once, every turn of it in order, over caches that start empty.
    let agents: Vec<Item> = items
        .iter()
        .filter(|item| item.group == "agent")
        .cloned()
        .collect();
    let turns = turns(&agents);
    let mut times = [Vec::new(), Vec::new(), Vec::new()];
    for _ in 0..rounds.min(5) {
        let (cold, warm) = (fresh(), reusing());
        let systems: [&dyn System; 3] = [&peer, &cold, &warm];
        for (times, system) in times.iter_mut().zip(systems) {
            times.extend(turns.iter().map(|item| timed(system, item, ids)));
        }
    }
    let names = [peer.name(), "fathom, no reuse", "fathom"];
    report(
        "request → ids",
        "agent, every turn once",
        &names,
        &mut times,
        None,
    );

    threads(&[&peer, &cold, &reusing()], &agents, rounds);
}

/// Microseconds of one call.
fn timed(system: &dyn System, item: &Item, stage: Stage) -> f64 {
    let start = Instant::now();
    std::hint::black_box(stage(system, item));
    start.elapsed().as_secs_f64() * 1e6
}

fn compare(
    stage_name: &str,
    group: &str,
    stage: Stage,
    systems: &[&dyn System],
    items: &[Item],
    rounds: usize,
) {
    let mut times = vec![Vec::new(); systems.len()];
    for round in 0..rounds + 2 {
        for (times, system) in times.iter_mut().zip(systems) {
            let found = items.iter().map(|item| timed(*system, item, stage));
            if round < 2 {
                found.for_each(drop);
            } else {
                times.extend(found);
            }
        }
    }
    let counts: Vec<(f64, f64)> = systems
        .iter()
        .map(|system| {
            let before = allocations();
            for item in items {
                std::hint::black_box(stage(*system, item));
            }
            let after = allocations();
            let each = |count: u64| count as f64 / items.len() as f64;
            (each(after.0 - before.0), each(after.1 - before.1))
        })
        .collect();
    let names: Vec<&str> = systems.iter().map(|system| system.name()).collect();
    report(stage_name, group, &names, &mut times, Some(&counts));
}

fn report(
    stage: &str,
    group: &str,
    names: &[&str],
    times: &mut [Vec<f64>],
    counts: Option<&[(f64, f64)]>,
) {
    let round = |value: f64| (value * 10.0).round() / 10.0;
    let peer: f64 = times[0].iter().sum();
    for (at, times) in times.iter_mut().enumerate() {
        let sum: f64 = times.iter().sum();
        let mut line = json!({
            "stage": stage,
            "set": group,
            "system": names[at],
            "requests": times.len(),
            "mean_us": round(sum / times.len() as f64),
            "p50_us": round(percentile(times, 0.5)),
            "p99_us": round(percentile(times, 0.99)),
            "times_faster": round(peer / sum),
        });
        if let Some(counts) = counts {
            line["allocations"] = round(counts[at].0).into();
            line["allocated_KiB"] = round(counts[at].1 / 1024.0).into();
        }
        println!("{line}");
    }
}

/// Requests a second of one thread and of two that share the system.
fn threads(systems: &[&dyn System], items: &[Item], rounds: usize) {
    for system in systems {
        let rate = |threads: usize| {
            let start = Instant::now();
            std::thread::scope(|scope| {
                for _ in 0..threads {
                    scope.spawn(|| {
                        for _ in 0..rounds {
                            for item in items {
                                std::hint::black_box(system.ids(item));
                            }
                        }
                    });
                }
            });
            (threads * rounds * items.len()) as f64 / start.elapsed().as_secs_f64()
        };
        let (one, two) = (rate(1), rate(2));
        println!(
            "{}",
            json!({"stage": "request → ids", "set": "agent", "system": system.name(),
                "requests_per_s_1_thread": one.round(), "requests_per_s_2_threads": two.round(),
                "scaling": (two / one * 100.0).round() / 100.0})
        );
    }
}
