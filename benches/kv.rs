//! What the memory of the engine costs a block: looked up the first time and again, published, evicted, and what a
//! whole visit of a long conversation costs. A lookup must stay below 2 µs a block and eviction must not depend on
//! how much is cached.

use std::time::{Duration, Instant};

use fathom::engine::kv::{
    Bounded, Budget, Fence, Hit, Identity, Memory, Options, Order, Query, Scope, Table,
};

const ROUNDS: usize = 7;
/// Tokens of a conversation.
const LENGTH: usize = 128 * 1024;

fn memory(blocks: u32, block_tokens: u32) -> Memory {
    Memory::new(&Options {
        blocks: blocks + 1,
        slots: 9,
        block_tokens,
        budget: Budget::of_pools(blocks, 114_048, 8, 3_128_928),
        bounded: Bounded::Replayed { window: 128 },
        key: 1,
        hash: None,
        order: Order::Recent,
    })
}

fn table() -> Table {
    let identity = Identity {
        model: [1; 32],
        weights_epoch: 0,
        layout: [2; 32],
        determinism: 0,
    };
    Table::new(Scope::new(&identity, b"salt"))
}

/// Publishes a conversation and leaves it in the cache. Answers how long the publication took.
fn fill(memory: &mut Memory, tokens: &[u32]) -> Duration {
    let mut table = table();
    let len = tokens.len() as u32;
    assert!(memory.grow(&mut table, memory.blocks_for(len)));
    let start = Instant::now();
    memory.publish(&mut table, tokens, &[], len);
    let time = start.elapsed();
    memory.release(&mut table, None, Fence(0));
    time
}

fn best(rounds: impl Iterator<Item = Duration>, count: u32) -> u128 {
    let best = rounds.min().unwrap_or_default();
    best.as_nanos() / u128::from(count)
}

fn lookups(block_tokens: u32) {
    let mut memory = memory(8 * LENGTH as u32 / block_tokens, block_tokens);
    let talks: Vec<Vec<u32>> = (0..8u32)
        .map(|t| (0..LENGTH as u32).map(|at| at * 8 + t).collect())
        .collect();
    let blocks = LENGTH as u32 / block_tokens;
    let published = talks.iter().map(|tokens| fill(&mut memory, tokens));
    let publish = best(published, blocks);
    let (mut first, mut again, mut visit) = (Vec::new(), Vec::new(), Vec::new());
    for tokens in talks.iter().cycle().take(8 * ROUNDS) {
        let query = Query {
            tokens,
            media: &[],
            limit: u32::MAX,
        };
        let mut table = table();
        let start = Instant::now();
        let hit = memory.lookup(&mut table, &query);
        first.push(start.elapsed());
        assert_eq!(hit.blocks, blocks - 1);
        let start = Instant::now();
        assert_eq!(memory.lookup(&mut table, &query), hit);
        again.push(start.elapsed());
        let start = Instant::now();
        let slot = memory.admit(&mut table, &hit, 1);
        memory.release(&mut table, slot, Fence(0));
        visit.push(start.elapsed());
    }
    let first = best(first.into_iter(), blocks);
    let again = best(again.into_iter(), blocks);
    let visit = best(visit.into_iter(), blocks);
    println!(
        "blocks of {block_tokens}: {first} ns a block to look up, {again} again, {publish} to publish, \
         {visit} to take and give back"
    );
}

fn evictions(cached: u32) {
    let tokens: Vec<u32> = (0..cached * 128).collect();
    let times = (0..ROUNDS).map(|_| {
        let mut memory = memory(cached, 128);
        fill(&mut memory, &tokens);
        let mut table = table();
        let count = 1_000;
        let start = Instant::now();
        for _ in 0..count {
            assert!(memory.grow(&mut table, 1));
        }
        let time = start.elapsed();
        assert_eq!(memory.counters().evicted_blocks, count);
        time
    });
    println!(
        "{} ns to evict and take one of {cached} cached blocks",
        best(times, 1_000)
    );
}

fn decodes() {
    let mut memory = memory(4_096, 128);
    let mut table = table();
    let slot = memory
        .admit(&mut table, &Hit::default(), 1)
        .expect("all is free");
    let rounds = (0..ROUNDS).map(|_| {
        let start = Instant::now();
        for step in 0..10_000u64 {
            std::hint::black_box(memory.supply());
            std::hint::black_box(memory.copies(&table, 0));
            std::hint::black_box(memory.make_writable(&mut table, 0, Fence(step)));
            memory.pass(Fence(step));
        }
        start.elapsed()
    });
    println!(
        "{} ns of bookkeeping for a row that needs no block",
        best(rounds, 10_000)
    );
    memory.release(&mut table, Some(slot), Fence(0));
}

fn main() {
    lookups(128);
    lookups(256);
    for cached in [2_000, 20_000, 200_000] {
        evictions(cached);
    }
    decodes();
}
