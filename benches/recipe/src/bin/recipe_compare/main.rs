//! Looks for requests that fathom and deepseek-recipe 0.2.0 treat differently, beyond the golden vectors.
//!
//! `cargo run --release --bin recipe_compare -- [cases] [seed]`; with `ask` in place of numbers it compares the requests
//! of its input instead, one `{"protocol", "request" or "request_raw", "options"}` a line. Takes the requests of the golden vectors and of the
//! benches as seeds, changes them, asks both systems and compares whether the request is refused (status, type, and
//! the text where it is fixed), else the prompt, its special ranges, images and every option of sampling, parsing
//! and the response; the ids of one request in fifty. Differences of the kinds in `expected.rs`, which
//! `tests/data/recipe/README.md` lists, are counted apart. Prints one JSON object a kind with the smallest request
//! that shows it, then a summary; fails if there was a difference that is not expected.

mod compare;
mod expected;
mod mutate;
mod systems;
mod values;

use std::collections::BTreeMap;
use std::io::Write;

use fathom::recipe::Protocol;
use fathom_recipe_bench::{json_lines, root, tokenizer_files};
use serde_json::{Map, Value, json};

use self::compare::{Verdict, compare};
use self::mutate::{Pool, Random, mutate_text, smaller};
use self::systems::{Options, Ours, Peer};

/// One in so many requests is also compared by its ids.
const IDS_EVERY: u64 = 50;

const PROTOCOLS: [(Protocol, &str); 3] = [
    (Protocol::ChatCompletions, "chat"),
    (Protocol::Responses, "responses"),
    (Protocol::Messages, "messages"),
];

/// Differences of one kind.
struct Group {
    count: u64,
    example: String,
    options: Options,
    detail: String,
}

fn main() {
    let mut arguments = std::env::args().skip(1).peekable();
    let asks = arguments.next_if(|word| word == "ask").is_some();
    let mut number = |default: u64| {
        let given = arguments.next();
        given.map_or(default, |text| text.parse().expect("a number"))
    };
    let (cases, seed) = (number(100_000), number(1));
    // SAFETY: no other thread runs yet.
    unsafe { std::env::set_var("TOKENIZERS_PARALLELISM", "false") };
    systems::silence_their_panics();
    let files = tokenizer_files();
    let systems = (Peer::new(&files), Ours::new(&files));
    if asks {
        return ask(&systems);
    }
    let sets: Vec<_> = PROTOCOLS
        .iter()
        .map(|(protocol, name)| {
            let seeds = seeds(name);
            (*protocol, *name, Pool::new(*protocol, &seeds), seeds)
        })
        .collect();

    let mut random = Random(seed);
    let mut groups: BTreeMap<String, Group> = BTreeMap::new();
    let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
    for case in 0..cases {
        let (protocol, name, pool, seeds) = random.pick(&sets);
        let mut request = pick_seed(&mut random, seeds).clone();
        // The first cases are the seeds as they are.
        if case > 2000 {
            pool.mutate(&mut random, &mut request);
        }
        let options = if random.one_in(4) {
            some_options(&mut random)
        } else {
            Options::default()
        };
        let mut body = request.to_string();
        let by_text = case > 2000 && random.one_in(20);
        if by_text {
            mutate_text(&mut random, &mut body);
        }
        let with_ids = case % IDS_EVERY == 0 && body.len() < 30_000;
        let verdict = |body: &str, with_ids: bool| {
            let theirs = systems
                .0
                .prepare(*protocol, body.as_bytes(), &options, with_ids);
            let ours = systems
                .1
                .prepare(*protocol, body.as_bytes(), &options, with_ids);
            compare(*protocol, body, &theirs, &ours)
        };
        let found = verdict(&body, with_ids);
        *counts.entry(found.outcome()).or_default() += 1;
        let Verdict::Differ {
            kind,
            detail,
            expected,
        } = found
        else {
            continue;
        };
        let label = if expected { "expected" } else { "DIFFERENCE" };
        let kind = format!("{label}: {name}: {kind}");
        if let Some(group) = groups.get_mut(&kind) {
            group.count += 1;
            continue;
        }
        let is_same = |body: &str| {
            matches!(verdict(body, with_ids), Verdict::Differ { kind: other, expected, .. }
                if format!("{}: {name}: {other}", if expected { "expected" } else { "DIFFERENCE" }) == kind)
        };
        if !by_text {
            body = reduce(request, is_same).to_string();
        }
        let detail = match verdict(&body, with_ids) {
            Verdict::Differ { detail, .. } => detail,
            _ => detail,
        };
        let group = Group {
            count: 1,
            example: body,
            options,
            detail,
        };
        groups.insert(kind, group);
    }
    report(&groups, &counts, cases, seed);
}

/// Compares the requests of the input, one a line.
fn ask((peer, ours): &(Peer, Ours)) {
    for line in std::io::stdin().lines() {
        let line = line.expect("input is text");
        let line: Value = serde_json::from_str(&line).expect("a line is JSON");
        let named = |(_, name): &&(Protocol, &str)| line["protocol"] == **name;
        let (protocol, _) = PROTOCOLS.iter().find(named).expect("a protocol");
        let body = match line["request_raw"].as_str() {
            Some(raw) => raw.to_owned(),
            None => line["request"].to_string(),
        };
        let options = Options(line["options"].as_object().cloned().unwrap_or_default());
        let theirs = peer.prepare(*protocol, body.as_bytes(), &options, true);
        let ours = ours.prepare(*protocol, body.as_bytes(), &options, true);
        let verdict = compare(*protocol, &body, &theirs, &ours);
        let answer = json!({
            "outcome": verdict.outcome(),
            "theirs": compare::text(&theirs),
            "ours": compare::text(&ours),
            "detail": match verdict {
                Verdict::Differ { detail, .. } => Some(detail),
                _ => None,
            },
        });
        println!("{answer}");
    }
}

/// The requests of a protocol: of the vectors, then of the benches.
fn seeds(protocol: &str) -> Vec<Value> {
    let files = [
        "tests/data/recipe/encode.jsonl.gz",
        "benches/recipe/requests.jsonl.gz",
    ];
    let lines = files.iter().flat_map(|file| json_lines(&root().join(file)));
    lines
        .filter(|line| line["protocol"] == protocol)
        .filter_map(|mut line| match line["request"].take() {
            Value::Null => serde_json::from_str(line["request_raw"].as_str()?).ok(),
            request => Some(request),
        })
        .collect()
}

/// Mostly a small one: large ones take most of the time and show little that small ones do not.
fn pick_seed<'s>(random: &mut Random, seeds: &'s [Value]) -> &'s Value {
    const SMALL: usize = 4096;
    loop {
        let seed = random.pick(seeds);
        let list = seed.get("messages").or(seed.get("input"));
        let tools = seed
            .get("tools")
            .and_then(Value::as_array)
            .map_or(0, Vec::len);
        let few = list.and_then(Value::as_array).map_or(0, Vec::len) + tools < 12;
        if (few && seed.to_string().len() <= SMALL) || random.one_in(40) {
            return seed;
        }
    }
}

/// Options that both systems have.
fn some_options(random: &mut Random) -> Options {
    let mut options = Map::new();
    let bounds = [1, 64, 5000, 393_216, 2_000_000, u32::MAX];
    let choices = [
        ("default_thinking_mode", json!(random.one_in(2))),
        (
            "reasoning_content_behavior",
            json!(random.pick(&["fill_empty", "reject", "reject"])),
        ),
        (
            "responses_web_search",
            json!(random.pick(&["drop", "reject"])),
        ),
        (
            "messages_web_search",
            json!(random.pick(&["drop", "drop", "reject"])),
        ),
        (
            "thinking_max_tokens_upper_bound",
            json!(random.pick(&bounds)),
        ),
        (
            "non_thinking_max_tokens_upper_bound",
            json!(random.pick(&bounds)),
        ),
    ];
    for (name, value) in choices {
        if random.one_in(2) {
            options.insert(name.to_owned(), value);
        }
    }
    Options(options)
}

/// The smallest request found that still shows the difference.
fn reduce(mut request: Value, is_same: impl Fn(&str) -> bool) -> Value {
    let mut runs = 0;
    'again: while runs < 3000 {
        for cut in smaller(&request) {
            runs += 1;
            if is_same(&cut.to_string()) {
                request = cut;
                continue 'again;
            }
            if runs >= 3000 {
                break;
            }
        }
        break;
    }
    request
}

fn report(groups: &BTreeMap<String, Group>, counts: &BTreeMap<&str, u64>, cases: u64, seed: u64) {
    let mut out = std::io::stdout().lock();
    let mut unexpected = 0;
    for (kind, group) in groups {
        if !kind.starts_with("expected") {
            unexpected += group.count;
        }
        let line = json!({
            "kind": kind,
            "count": group.count,
            "detail": group.detail,
            "request": group.example,
            "options": group.options.0,
        });
        writeln!(out, "{line}").expect("output is open");
    }
    let line = json!({"cases": cases, "seed": seed, "outcomes": counts, "unexpected": unexpected});
    writeln!(out, "{line}").expect("output is open");
    if unexpected > 0 {
        std::process::exit(1);
    }
}
