//! What the memory of the engine promises, one promise a test: which prefixes are found, who loses first, what a
//! fork costs, what a failed attempt leaves behind.

use fathom::engine::kv::{
    Bounded, Budget, Fence, Hit, Identity, Media, Memory, Options, Order, Query, Scope, SlotId,
    Table, Write,
};

const B: u32 = 4;
const NOW: Fence = Fence(0);

const IDENTITY: Identity = Identity {
    model: [1; 32],
    weights_epoch: 1,
    layout: [2; 32],
    determinism: 1,
};

fn options(blocks: u32, slots: u32) -> Options {
    Options {
        blocks: blocks + 1,
        slots: slots + 1,
        block_tokens: B,
        budget: Budget::default(),
        bounded: Bounded::Replayed { window: 3 },
        key: 7,
        hash: None,
        order: Order::Recent,
    }
}

fn query(tokens: &[u32]) -> Query<'_> {
    Query {
        tokens,
        media: &[],
        limit: u32::MAX,
    }
}

fn tokens(seed: u32, len: u32) -> Vec<u32> {
    (0..len).map(|at| seed * 1000 + at).collect()
}

fn scope() -> Scope {
    Scope::new(&IDENTITY, b"")
}

/// A sequence that runs from its hit to its end in one step.
fn ran(memory: &mut Memory, scope: Scope, tokens: &[u32], media: &[Media]) -> (Table, SlotId, Hit) {
    let mut table = Table::new(scope);
    let asked = Query {
        media,
        ..query(tokens)
    };
    let hit = memory.lookup(&mut table, &asked);
    let fresh = memory.blocks_for(tokens.len() as u32) - hit.blocks;
    let slot = memory
        .admit(&mut table, &hit, fresh)
        .expect("there is room");
    if let Some(id) = hit.snapshot {
        memory.unpin(id);
    }
    memory.publish(&mut table, tokens, media, tokens.len() as u32);
    (table, slot, hit)
}

/// The same, and it ends. Answers what it found.
fn visit(memory: &mut Memory, tokens: &[u32]) -> u32 {
    let (mut table, slot, hit) = ran(memory, scope(), tokens, &[]);
    memory.release(&mut table, Some(slot), NOW);
    memory.audit([]);
    hit.tokens
}

/// The hit that these tokens would have.
fn found(memory: &mut Memory, tokens: &[u32]) -> u32 {
    memory
        .lookup(&mut Table::new(scope()), &query(tokens))
        .tokens
}

/// [`visit`] with bounded state saved where the last full block ends.
fn visit_and_save(memory: &mut Memory, tokens: &[u32], bytes: usize) -> u32 {
    let (mut table, slot, hit) = ran(memory, scope(), tokens, &[]);
    let full = tokens.len() as u32 / B;
    if memory.wants_snapshot(&table, full, bytes as u64) {
        memory
            .save(&table, full, vec![0; bytes])
            .expect("it is wanted");
    }
    memory.release(&mut table, Some(slot), NOW);
    memory.audit([]);
    hit.tokens
}

#[test]
fn every_turn_of_a_conversation_finds_the_turn_before() {
    for bounded in [Bounded::Stored, Bounded::Replayed { window: 3 }] {
        for first in 1..14 {
            for more in 1..10 {
                let mut memory = Memory::new(&Options {
                    bounded,
                    ..options(64, 2)
                });
                let mut before = 0;
                for turn in 0..4 {
                    let all = tokens(1, first + turn * more);
                    let hit = visit_and_save(&mut memory, &all, 8);
                    // A prompt that ends with a block runs that block's last token again.
                    let most = (all.len() as u32 - 1) / B * B;
                    assert_eq!(hit, (before / B * B).min(most));
                    before = all.len() as u32;
                }
            }
        }
    }
}

/// Twenty conversations that grow turn by turn, one after the other: every visit goes on where the last one ended.
fn talk_in_turn(budget: Budget, state: usize) {
    let mut memory = Memory::new(&Options {
        bounded: Bounded::Stored,
        budget,
        ..options(1_000, 1)
    });
    let mut before = [0; 20];
    for turn in 1..=6 {
        for (talk, before) in (0..).zip(&mut before) {
            let all = tokens(talk, 8 * turn);
            let hit = visit_and_save(&mut memory, &all, state);
            assert_eq!(hit, *before, "conversation {talk}, turn {turn}");
            *before = 8 * turn;
        }
    }
    assert_eq!(memory.counters().lost_to_state_tokens, 0);
    assert_eq!(memory.counters().evicted_blocks, 0);
}

#[test]
fn conversations_visited_in_turn_all_hit_while_the_pool_is_mostly_empty() {
    // One slot keeps two snapshots; the twenty conversations live from what the blocks leave.
    talk_in_turn(Budget::of_pools(1_000, 100, 1, 4_000), 4_000);
}

#[test]
fn a_snapshot_that_a_later_one_replaces_goes_first() {
    // One snapshot for each conversation and one to spare: the order of use alone would lose the next one's.
    let budget = Budget {
        bytes: 21 * 4_000,
        ..Budget::default()
    };
    talk_in_turn(budget, 4_000);
}

#[test]
fn snapshots_give_way_to_blocks_and_keep_their_floor() {
    const STATE: u64 = 100;
    let mut memory = Memory::new(&Options {
        bounded: Bounded::Stored,
        budget: Budget::of_pools(20, 100, 2, STATE),
        ..options(20, 2)
    });
    for talk in 0..8 {
        visit_and_save(&mut memory, &tokens(talk, 8), STATE as usize);
    }
    assert_eq!(memory.snapshot_counts(), (8, 800));
    // A long sequence takes all blocks: eight conversations keep nothing but the floor allows.
    let mut table = Table::new(scope());
    assert_eq!(memory.supply().blocks_now, 20);
    assert!(memory.grow(&mut table, 4));
    assert_eq!(
        memory.counters().evicted_snapshots + memory.counters().evicted_blocks,
        4
    );
    assert!(memory.grow(&mut table, 16));
    memory.audit([&table]);
    assert_eq!(memory.block_counts().owned, 20);
    // Nothing is there any more that a snapshot could serve, so none is.
    assert_eq!(memory.snapshot_counts(), (0, 0));
    memory.release(&mut table, None, NOW);
    assert_eq!(memory.supply().blocks_now, 20);
}

#[test]
fn state_that_is_lost_shortens_a_hit_and_is_counted() {
    let mut memory = Memory::new(&Options {
        bounded: Bounded::Stored,
        ..options(20, 2)
    });
    let all = tokens(1, 17);
    let (mut table, slot, _) = ran(&mut memory, scope(), &all, &[]);
    let short = memory.save(&table, 2, vec![2]).unwrap();
    let long = memory.save(&table, 4, vec![4]).unwrap();
    assert_eq!(memory.save(&table, 4, vec![9]), Some(long), "it stays");
    assert_eq!(memory.snapshot(long), Some(&[4][..]));
    assert_eq!(memory.save(&table, 0, vec![0]), None);
    assert_eq!(memory.save(&table, 5, vec![5]), None, "not a full block");
    memory.release(&mut table, Some(slot), NOW);
    assert_eq!(found(&mut memory, &all), 16);
    memory.discard(long);
    assert_eq!(found(&mut memory, &all), 8);
    assert_eq!(visit(&mut memory, &all), 8);
    assert_eq!(memory.counters().lost_to_state_tokens, 8);
    memory.discard(short);
    assert_eq!(visit(&mut memory, &all), 0);
    assert_eq!(memory.counters().lost_to_state_tokens, 24);
    assert_eq!(
        (
            memory.counters().hit_tokens,
            memory.counters().queried_tokens
        ),
        (8, 51)
    );
}

#[test]
fn a_replay_starts_a_window_before_the_end_of_the_hit() {
    let mut memory = Memory::new(&options(20, 2));
    let all = tokens(1, 17);
    visit(&mut memory, &all);
    let mut table = Table::new(scope());
    let hit = memory.lookup(&mut table, &query(&all));
    assert_eq!(
        (hit.tokens, hit.replay_from, hit.snapshot),
        (16, Some(13), None)
    );
    let limited = Query {
        limit: 11,
        ..query(&all)
    };
    assert_eq!(memory.lookup(&mut table, &limited).tokens, 8);
    assert_eq!(memory.lookup(&mut table, &query(&all[..4])).tokens, 0);
    assert_eq!(
        memory.lookup(&mut table, &query(&all[..5])).replay_from,
        Some(1)
    );
    assert_eq!(
        memory.lookup(&mut Table::new(scope()), &query(&[])),
        Hit::default()
    );
}

#[test]
fn what_makes_rows_differ_makes_other_entries() {
    let all = tokens(1, 9);
    let image = |start, content| Media {
        start,
        len: 3,
        content: [content; 32],
    };
    let same = |_: u64, _: &[u8]| 0u128;
    for hash in [None, Some(same as fn(u64, &[u8]) -> u128)] {
        let mut memory = Memory::new(&Options {
            hash,
            ..options(40, 9)
        });
        let first = [image(2, 5)];
        let (_table, _, hit) = ran(&mut memory, scope(), &all, &first);
        assert_eq!(hit.tokens, 0);
        // Where all names are one only the first block has it.
        let whole = if hash.is_some() { 4 } else { 8 };
        let again = Query {
            media: &first,
            ..query(&all)
        };
        assert_eq!(
            memory.lookup(&mut Table::new(scope()), &again).tokens,
            whole
        );
        let others = [
            (Scope::new(&IDENTITY, b"salt"), first[0]),
            (
                Scope::new(
                    &Identity {
                        weights_epoch: 2,
                        ..IDENTITY
                    },
                    b"",
                ),
                first[0],
            ),
            (
                Scope::new(
                    &Identity {
                        layout: [3; 32],
                        ..IDENTITY
                    },
                    b"",
                ),
                first[0],
            ),
            (
                Scope::new(
                    &Identity {
                        determinism: 2,
                        ..IDENTITY
                    },
                    b"",
                ),
                first[0],
            ),
            (
                Scope::new(
                    &Identity {
                        model: [3; 32],
                        ..IDENTITY
                    },
                    b"",
                ),
                first[0],
            ),
            (scope(), image(2, 6)),
            (scope(), image(1, 5)),
            (scope(), image(3, 5)),
        ];
        for (scope, media) in others {
            let other = Query {
                media: &[media],
                ..query(&all)
            };
            assert_eq!(memory.lookup(&mut Table::new(scope), &other).tokens, 0);
            let mut changed = all.clone();
            changed[0] += 1;
            assert_eq!(
                memory
                    .lookup(&mut Table::new(scope), &query(&changed))
                    .tokens,
                0
            );
        }
        // An image behind the first block changes nothing before it.
        let behind = [first[0], image(8, 9)];
        let other = Query {
            media: &behind,
            ..query(&all)
        };
        assert_eq!(
            memory.lookup(&mut Table::new(scope()), &other).tokens,
            whole
        );
    }
}

#[test]
fn rows_of_tokens_that_were_not_accepted_are_never_found() {
    let mut memory = Memory::new(&options(20, 4));
    let accepted = tokens(1, 9);
    let drafted: Vec<_> = accepted.iter().copied().chain([7, 7, 7, 7]).collect();
    let mut table = Table::new(scope());
    assert!(memory.grow(&mut table, 4));
    memory.publish(&mut table, &drafted, &[], 9);
    memory.release(&mut table, None, NOW);
    assert_eq!(found(&mut memory, &drafted), 8);
    assert_eq!(
        (memory.block_counts().cached, memory.block_counts().free),
        (2, 18)
    );
    // One that failed publishes nothing after that; one whose rows were bad is not found again, by whomever.
    let other = tokens(2, 13);
    let mut table = Table::new(scope());
    assert!(memory.grow(&mut table, 4));
    memory.publish(&mut table, &other, &[], 8);
    table.close();
    memory.publish(&mut table, &other, &[], 13);
    assert_eq!(found(&mut memory, &other), 8);
    let (mut reader, slot, hit) = ran(&mut memory, scope(), &other[..9], &[]);
    assert_eq!(hit.blocks, 2);
    memory.withdraw(&mut table, 1);
    assert_eq!(found(&mut memory, &other), 4);
    memory.release(&mut table, None, NOW);
    memory.release(&mut reader, Some(slot), NOW);
    memory.audit([]);
    assert_eq!(found(&mut memory, &other), 4);
}

#[test]
fn a_chain_loses_its_tail_before_its_head_and_the_oldest_goes_first() {
    let mut memory = Memory::new(&options(9, 3));
    let (old, new) = (tokens(1, 13), tokens(2, 13));
    visit(&mut memory, &old);
    visit(&mut memory, &new);
    visit(&mut memory, &old[..9]);
    // Three are free; the oldest use is that of the tail of `old`, then `new` from its tail.
    let mut table = Table::new(scope());
    let mut left = Vec::new();
    assert!(memory.grow(&mut table, 3));
    for _ in 0..6 {
        assert!(memory.grow(&mut table, 1));
        left.push((found(&mut memory, &old), found(&mut memory, &new)));
    }
    assert_eq!(left, [(8, 12), (8, 8), (8, 4), (8, 0), (4, 0), (0, 0)]);
    assert!(!memory.grow(&mut table, 1));
    assert_eq!(memory.counters().evicted_blocks, 6);
}

#[test]
fn equal_content_computed_twice_is_kept_once() {
    let mut memory = Memory::new(&options(20, 4));
    let all = tokens(1, 13);
    // Both begin before either is published.
    let mut tables = [Table::new(scope()), Table::new(scope())];
    for table in &mut tables {
        assert!(memory.grow(table, 4));
    }
    for table in &mut tables {
        memory.publish(table, &all, &[], 13);
    }
    let [mut first, mut second] = tables;
    assert_ne!(first.blocks(), second.blocks());
    memory.release(&mut second, None, NOW);
    assert_eq!(memory.block_counts().cached, 0, "the second is private");
    assert!(memory.grow(&mut second, 4));
    memory.publish(&mut second, &all, &[], 13);
    memory.release(&mut first, None, NOW);
    memory.audit([&second]);
    assert_eq!(memory.block_counts().cached, 3);
    // The first is evicted while the second lives: the second takes its place when it ends.
    let mut hog = Table::new(scope());
    assert!(memory.grow(&mut hog, 16));
    assert_eq!(found(&mut memory, &all), 0);
    memory.release(&mut second, None, NOW);
    assert_eq!(found(&mut memory, &all), 12);
    memory.audit([&hog]);
}

#[test]
fn what_the_second_computes_behind_the_first_is_found_behind_it() {
    let mut memory = Memory::new(&options(20, 4));
    let all = tokens(1, 21);
    let mut tables = [Table::new(scope()), Table::new(scope())];
    for table in &mut tables {
        assert!(memory.grow(table, 6));
        memory.publish(table, &all, &[], 9);
    }
    let [mut first, mut second] = tables;
    memory.publish(&mut second, &all, &[], 21);
    assert_eq!(found(&mut memory, &all), 20);
    memory.release(&mut first, None, NOW);
    memory.release(&mut second, None, NOW);
    assert_eq!(memory.block_counts().cached, 5);
    // Head and tail come from two sequences; the tail still goes first.
    let mut table = Table::new(scope());
    for left in [16, 12, 8, 4, 0] {
        let free = memory.block_counts().free;
        assert!(memory.grow(&mut table, free + 1));
        assert_eq!(found(&mut memory, &all), left);
    }
}

#[test]
fn a_head_waits_for_the_fences_of_its_tail() {
    let mut memory = Memory::new(&options(20, 4));
    let all = tokens(1, 9);
    visit(&mut memory, &all[..5]);
    // Begun before that was found; a fork of it ends with a late fence before anything settles.
    let mut table = Table::new(scope());
    let slot = memory.admit(&mut table, &Hit::default(), 3).unwrap();
    let mut fork = memory.fork(&table, slot, 9, Fence(9)).unwrap();
    memory.release(&mut fork.table, Some(fork.slot), Fence(12));
    memory.publish(&mut table, &all, &[], 9);
    memory.release(&mut table, Some(slot), Fence(10));
    memory.audit([]);
    memory.pass(Fence(10));
    assert_eq!(memory.block_counts().cached_behind_fences, 2);
    // The same when the tail comes back by a write.
    memory.pass(Fence(12));
    let mut table = Table::new(scope());
    assert!(memory.grow(&mut table, 4));
    let all = tokens(1, 13);
    memory.publish(&mut table, &all, &[], 13);
    assert!(memory.make_writable(&mut table, 2, Fence(13)).is_some());
    memory.audit([&table]);
}

#[test]
fn a_hit_that_was_evicted_meanwhile_is_refused() {
    let mut memory = Memory::new(&options(5, 3));
    let all = tokens(1, 17);
    visit(&mut memory, &all);
    let mut table = Table::new(scope());
    let hit = memory.lookup(&mut table, &query(&all));
    assert_eq!((hit.blocks, hit.cost), (4, 4));
    let mut other = Table::new(scope());
    assert!(memory.grow(&mut other, 2));
    assert_eq!(memory.admit(&mut table, &hit, 1), None);
    assert!(table.is_empty());
    let hit = memory.lookup(&mut table, &query(&all));
    assert_eq!(
        (hit.blocks, hit.cost, memory.supply().blocks_now),
        (3, 3, 3)
    );
    assert_eq!(
        memory.admit(&mut table, &hit, 1),
        None,
        "the hit uses them up"
    );
    memory.release(&mut other, None, NOW);
    assert!(memory.admit(&mut table, &hit, 2).is_some());
    assert_eq!(memory.supply().blocks_now, 0);
    memory.audit([&table]);
}

#[test]
fn a_pinned_prefix_is_not_evicted() {
    let mut memory = Memory::new(&options(6, 1));
    let all = tokens(1, 13);
    visit(&mut memory, &all);
    let mut pin = Table::new(scope());
    let hit = memory.lookup(&mut pin, &query(&all));
    assert!(memory.pin_prefix(&mut pin, &hit));
    assert_eq!(memory.slot_counts().owned, 0);
    let mut hog = Table::new(scope());
    assert!(!memory.grow(&mut hog, 4));
    assert!(memory.grow(&mut hog, 3));
    assert_eq!(found(&mut memory, &all), 12);
    memory.release(&mut pin, None, NOW);
    assert!(memory.grow(&mut hog, 3));
    assert_eq!(found(&mut memory, &all), 0);
}

#[test]
fn eight_choices_share_one_prompt_and_the_last_writes_in_place() {
    for (len, copies) in [(18, 7), (16, 0)] {
        let mut memory = Memory::new(&options(40, 9));
        let all = tokens(1, len);
        let (first, slot, _) = ran(&mut memory, scope(), &all, &[]);
        let before = memory.block_counts().owned;
        let mut choices = vec![first];
        for _ in 1..8 {
            let fork = memory.fork(&choices[0], slot, len, Fence(5)).unwrap();
            assert_eq!(fork.table.blocks(), choices[0].blocks());
            choices.push(fork.table);
        }
        assert_eq!(memory.block_counts().owned, before);
        for choice in &mut choices {
            let need = memory.blocks_for(len + 1);
            let fresh = need - choice.len();
            assert!(memory.grow(choice, fresh));
        }
        let mut copied = Vec::new();
        for choice in &mut choices {
            let at = len / B;
            match memory.make_writable(choice, at, Fence(5)).unwrap() {
                Write::Copy { from, to } => copied.push((from, to)),
                Write::InPlace => {}
            }
            assert_eq!(
                memory.make_writable(choice, at, Fence(5)),
                Some(Write::InPlace)
            );
        }
        assert_eq!(copied.len(), copies);
        assert_eq!(memory.counters().copied_blocks as usize, copies);
        assert!(memory.block_counts().owned <= before + 8);
        memory.audit(&choices);
    }
}

#[test]
fn a_published_block_is_copied_before_it_is_written() {
    let mut memory = Memory::new(&options(6, 2));
    let all = tokens(1, 9);
    let (mut table, slot, _) = ran(&mut memory, scope(), &all, &[]);
    assert_eq!(memory.copies(&table, 5), 1);
    let written = memory.make_writable(&mut table, 1, Fence(3)).unwrap();
    assert!(matches!(written, Write::Copy { .. }));
    assert_eq!(found(&mut memory, &all), 8, "the source can be found");
    assert_eq!(memory.block_counts().cached_behind_fences, 1);
    // The rows are others now, of a token that came instead.
    let mut other = all.clone();
    other[6] = 1;
    table.rename_from(6, B);
    memory.publish(&mut table, &other, &[], 9);
    memory.release(&mut table, Some(slot), Fence(4));
    memory.pass(Fence(4));
    assert_eq!(
        (found(&mut memory, &all), found(&mut memory, &other)),
        (8, 8)
    );
    memory.audit([]);
}

#[test]
fn what_was_begun_before_the_cache_was_cleared_is_not_found_after() {
    let mut memory = Memory::new(&options(20, 3));
    let all = tokens(1, 17);
    visit(&mut memory, &tokens(2, 9));
    let (mut table, slot, _) = ran(&mut memory, scope(), &all[..9], &[]);
    memory.clear();
    memory.audit([&table]);
    let counts = memory.block_counts();
    assert_eq!((counts.owned, counts.cached, counts.free), (3, 0, 17));
    assert_eq!(memory.counters().evicted_blocks, 0);
    assert!(memory.grow(&mut table, 2));
    memory.publish(&mut table, &all, &[], 17);
    assert_eq!(found(&mut memory, &all), 0);
    memory.release(&mut table, Some(slot), NOW);
    assert_eq!(
        (found(&mut memory, &all), memory.block_counts().free),
        (0, 20)
    );
    // The next life of the same sequence is of the new cache.
    let slot = memory.admit(&mut table, &Hit::default(), 5).unwrap();
    memory.publish(&mut table, &all, &[], 17);
    memory.release(&mut table, Some(slot), NOW);
    assert_eq!(found(&mut memory, &all), 16);
}

#[test]
fn what_a_launched_step_names_comes_back_with_its_fence() {
    let mut memory = Memory::new(&options(4, 1));
    let all = tokens(1, 13);
    let (mut table, slot, _) = ran(&mut memory, scope(), &all, &[]);
    memory.release(&mut table, Some(slot), Fence(2));
    let supply = memory.supply();
    assert_eq!((supply.blocks_now, supply.blocks_after_fences), (0, 4));
    assert_eq!((supply.slots_now, supply.slots_after_fences), (0, 1));
    assert_eq!(found(&mut memory, &all), 12, "it may be found before that");
    memory.pass(Fence(1));
    assert_eq!(memory.supply().blocks_now, 0);
    memory.pass(Fence(2));
    assert_eq!(memory.supply().blocks_now, 4);
    assert_eq!(memory.supply().slots_now, 1);
}

/// A life with every way to take something. Answers how many attempts it made.
fn busy_life(memory: &mut Memory, fail_after: Option<u32>) -> bool {
    let start = (memory.block_counts(), memory.slot_counts());
    let mut failed = false;
    let mut tables: Vec<(Table, Option<SlotId>)> = Vec::new();
    let all = tokens(3, 14);
    memory.fail_after(fail_after);
    for _ in 0..2 {
        let mut table = Table::new(scope());
        let hit = memory.lookup(&mut table, &query(&all));
        let before = memory.block_counts();
        match memory.admit(&mut table, &hit, 4 - hit.blocks) {
            Some(slot) => {
                if let Some(id) = hit.snapshot {
                    memory.unpin(id);
                }
                tables.push((table, Some(slot)));
            }
            None => {
                failed = true;
                assert!(table.is_empty());
                assert_eq!(memory.block_counts(), before);
            }
        }
        if let Some((table, _)) = tables.last_mut() {
            memory.publish(table, &all, &[], 14);
            failed |= memory.save(table, 3, vec![1; 8]).is_none();
        }
    }
    if let Some((table, slot)) = tables.first() {
        let slots = memory.slot_counts();
        match memory.fork(table, slot.unwrap(), 14, NOW) {
            Some(fork) => tables.push((fork.table, Some(fork.slot))),
            None => {
                failed = true;
                assert_eq!(memory.slot_counts(), slots);
            }
        }
    }
    for (table, _) in &mut tables {
        let before = (table.len(), memory.block_counts());
        if !memory.grow(table, 2) {
            failed = true;
            assert_eq!((table.len(), memory.block_counts()), before);
        }
        let before = (table.blocks().to_vec(), memory.block_counts());
        if memory.make_writable(table, 3, NOW).is_none() {
            failed = true;
            assert_eq!((table.blocks().to_vec(), memory.block_counts()), before);
        }
    }
    memory.audit(tables.iter().map(|(table, _)| table));
    memory.fail_after(None);
    for (mut table, slot) in tables {
        memory.release(&mut table, slot, NOW);
    }
    memory.clear();
    assert_eq!((memory.block_counts(), memory.slot_counts()), start);
    assert_eq!(memory.snapshot_counts(), (0, 0));
    failed
}

#[test]
fn an_attempt_that_fails_changes_nothing() {
    let mut memory = Memory::new(&options(30, 4));
    assert!(!busy_life(&mut memory, None));
    let attempts = (0..)
        .take_while(|&n| busy_life(&mut memory, Some(n)))
        .count();
    // Two admissions, a snapshot, a fork, three growths, one copy of the shared last block.
    assert_eq!(attempts, 8);
}

#[test]
#[should_panic(expected = "admitted twice")]
fn a_table_is_admitted_once() {
    let mut memory = Memory::new(&options(4, 2));
    let mut table = Table::new(scope());
    memory.admit(&mut table, &Hit::default(), 1);
    memory.admit(&mut table, &Hit::default(), 1);
}

#[test]
#[should_panic(expected = "given back twice")]
fn a_slot_is_given_back_once() {
    let mut memory = Memory::new(&options(4, 2));
    let mut table = Table::new(scope());
    let slot = memory.admit(&mut table, &Hit::default(), 1);
    memory.release(&mut table, slot, NOW);
    memory.release(&mut table, slot, NOW);
}
