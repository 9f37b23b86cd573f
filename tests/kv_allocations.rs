//! The memory of the engine allocates nothing once it has seen its largest sequences: not for lookups, admissions,
//! growth, publication, eviction, forks' writes or fences.
//!
//! Its own program, because the allocator is everybody's.

mod allocator;

use allocator::calls_of;
use fathom::engine::kv::{
    Bounded, Budget, Fence, Identity, Memory, Options, Order, Query, Scope, SlotId, Table,
};

const B: u32 = 16;
const SEQUENCES: usize = 6;
const LENGTH: u32 = 40 * B;

struct Live {
    table: Table,
    slot: Option<SlotId>,
    tokens: Vec<u32>,
    settled: u32,
}

/// Each sequence runs a block a step, ends, and comes back with other tokens behind a common start.
fn step(memory: &mut Memory, live: &mut [Live], number: u64) {
    let fence = Fence(number);
    for (at, own) in (0u32..).zip(live.iter_mut()) {
        if own.settled == LENGTH {
            memory.release(&mut own.table, own.slot.take(), fence);
            own.table.rename_from(4 * B, B);
            for (position, token) in (0u32..).zip(&mut own.tokens).skip(4 * B as usize) {
                *token = position ^ (number as u32) << 8 ^ at << 24;
            }
            own.settled = 0;
        }
        if own.slot.is_none() {
            let query = Query {
                tokens: &own.tokens,
                media: &[],
                limit: u32::MAX,
            };
            let hit = memory.lookup(&mut own.table, &query);
            own.slot = memory.admit(&mut own.table, &hit, 1);
            own.settled = hit.tokens;
            continue;
        }
        let need = memory.blocks_for(own.settled + B) - own.table.len();
        if !memory.grow(&mut own.table, need) {
            // As after a preemption.
            memory.release(&mut own.table, own.slot.take(), fence);
            own.settled = 0;
            continue;
        }
        let last = own.table.len() - 1;
        assert!(memory.make_writable(&mut own.table, last, fence).is_some());
        own.settled += B;
        memory.publish(&mut own.table, &own.tokens, &[], own.settled);
    }
    if let Some(over) = number.checked_sub(2) {
        memory.pass(Fence(over));
    }
    std::hint::black_box(memory.supply());
}

#[test]
fn nothing_is_allocated_once_the_largest_sequences_were_there() {
    let mut memory = Memory::new(&Options {
        blocks: 150,
        slots: SEQUENCES as u32 + 4,
        block_tokens: B,
        budget: Budget::default(),
        bounded: Bounded::Replayed { window: 8 },
        key: 3,
        hash: None,
        order: Order::Recent,
    });
    let identity = Identity {
        model: [1; 32],
        weights_epoch: 0,
        layout: [2; 32],
        determinism: 0,
    };
    let mut live: Vec<_> = (0..SEQUENCES)
        .map(|at| Live {
            table: Table::new(Scope::new(&identity, b"")),
            slot: None,
            tokens: (0..LENGTH)
                .map(|p| if p < 4 * B { p } else { p + 10_000 * at as u32 })
                .collect(),
            settled: 0,
        })
        .collect();
    for number in 1..2_000 {
        step(&mut memory, &mut live, number);
    }
    let evicted = memory.counters().evicted_blocks;
    let hits = memory.counters().hit_tokens;
    let calls = calls_of(|| {
        for number in 2_000..20_000 {
            step(&mut memory, &mut live, number);
        }
    });
    assert_eq!(calls, 0);
    assert!(memory.counters().evicted_blocks > evicted + 10_000);
    assert!(memory.counters().hit_tokens > hits + 10_000);
    memory.audit(live.iter().map(|own| &own.table));
}
