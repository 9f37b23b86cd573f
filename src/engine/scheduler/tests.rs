//! Plans from hand-made views, and what every plan must satisfy.

use super::*;
use proptest::prelude::*;

fn limits() -> Limits {
    Limits {
        tokens: 64,
        sequences: 4,
        chunk: 16,
        block_tokens: 8,
        reserve: 0,
        lookahead: 0,
        overtake_limit: 0,
        max_preemptions: 3,
        fixed_chunks: false,
    }
}

fn running(arrival: u64, computed: u32, length: u32) -> Running {
    Running {
        class: 4,
        arrival,
        length,
        computed,
        blocks: computed.div_ceil(8),
        is_paused: false,
        preemptions: 0,
    }
}

fn waiting(arrival: u64, length: u32) -> Waiting {
    Waiting {
        class: 4,
        arrival,
        length,
        is_starved: false,
        overtaken: 0,
        is_paused: false,
        was_preempted: false,
    }
}

fn plan(limits: Limits, running: &[Running], waiting: &[Waiting], free_blocks: u32) -> Plan {
    let mut plan = Plan::default();
    Scheduler::new(limits).plan(
        View {
            running,
            waiting,
            free_blocks,
            free_slots: 4,
        },
        &mut plan,
    );
    plan
}

fn counts(plan: &Plan) -> Vec<(Source, u32)> {
    plan.rows.iter().map(|r| (r.source, r.count)).collect()
}

use Source::{Admitted as A, Running as R};

#[test]
fn decode_rows_come_first_and_a_prompt_rides_along() {
    let plan = plan(
        limits(),
        &[running(1, 20, 21), running(2, 8, 100)],
        &[waiting(3, 30)],
        100,
    );
    // 64 - 1 rows for prompts, of which each gets max(16, 64 / 2).
    assert_eq!(counts(&plan), [(R(0), 1), (R(1), 32), (A(0), 30)]);
    assert_eq!(plan.rows[1].new_blocks, 4);
}

#[test]
fn a_lone_prompt_takes_the_whole_budget_and_ends_on_a_block() {
    let mut limits = limits();
    limits.tokens = 61;
    assert_eq!(
        counts(&plan(limits, &[], &[waiting(1, 1000)], 100)),
        [(A(0), 56)]
    );
    assert_eq!(
        counts(&plan(limits, &[], &[waiting(1, 61)], 100)),
        [(A(0), 61)]
    );
}

#[test]
fn fixed_chunks_do_not_depend_on_the_load() {
    let mut limits = limits();
    limits.fixed_chunks = true;
    let alone = plan(limits, &[running(1, 16, 100)], &[], 100);
    let beside = plan(
        limits,
        &[running(1, 16, 100), running(0, 9, 10)],
        &[waiting(2, 99)],
        100,
    );
    assert_eq!(alone.rows[0].count, 16);
    assert!(
        beside
            .rows
            .iter()
            .all(|r| r.count == 16 || r.source == R(1))
    );
}

#[test]
fn the_youngest_gives_way_and_the_most_senior_never() {
    let full = [running(7, 16, 17), running(3, 16, 17), running(5, 15, 16)];
    let plan = plan(limits(), &full, &[waiting(9, 8)], 0);
    // 3 needs a block: 7 is the youngest. 5 needs none.
    assert_eq!(plan.preempt, [0]);
    assert_eq!(counts(&plan), [(R(1), 1), (R(2), 1)]);
    assert!(plan.admit.is_empty(), "no admission beside a preemption");
}

#[test]
fn nobody_is_preempted_when_no_block_is_needed_or_it_does_not_pay() {
    let none_needed = [running(1, 15, 16), running(2, 13, 14)];
    assert!(plan(limits(), &none_needed, &[], 0).preempt.is_empty());
    // The youngest needs a block itself: it is left out, keeps what it has, and nobody else suffers.
    let youngest = [running(1, 15, 16), running(2, 16, 17)];
    let plan = plan(limits(), &youngest, &[], 0);
    assert!(plan.preempt.is_empty());
    assert_eq!(counts(&plan), [(R(0), 1)]);
}

#[test]
fn as_few_give_way_as_cover_the_shortage() {
    let mut limits = limits();
    limits.fixed_chunks = true;
    // The senior needs two blocks for its chunk; the youngest has one, the next has two.
    let all = [running(1, 16, 90), running(2, 16, 17), running(3, 5, 6)];
    let plan = plan(limits, &all, &[], 0);
    assert_eq!(plan.preempt, [1]);
    assert_eq!(counts(&plan), [(R(0), 16), (R(2), 1)]);
}

#[test]
fn paused_sequences_give_way_first_even_the_oldest_and_even_for_newcomers() {
    let mut paused = running(1, 16, 17);
    paused.is_paused = true;
    let grown = plan(
        limits(),
        &[paused, running(2, 16, 17), running(3, 8, 9)],
        &[],
        0,
    );
    assert_eq!(grown.preempt, [0]);
    let admitted = plan(limits(), &[paused], &[waiting(5, 8)], 0);
    assert_eq!(
        (&admitted.preempt[..], &admitted.admit[..]),
        (&[0][..], &[0][..])
    );
}

#[test]
fn a_prompt_shrinks_to_one_block_before_somebody_loses_work() {
    let plan = plan(limits(), &[running(1, 16, 100), running(2, 16, 17)], &[], 1);
    assert_eq!(counts(&plan), [(R(0), 8)]);
    assert!(plan.preempt.is_empty());
}

#[test]
fn a_head_that_does_not_fit_is_not_overtaken_and_the_reserve_is_kept() {
    let mut limits = limits();
    let line = [waiting(2, 64), waiting(3, 4)];
    assert!(
        plan(limits, &[running(1, 15, 16)], &line, 3)
            .admit
            .is_empty()
    );
    limits.reserve = 1;
    limits.lookahead = 1;
    assert!(
        plan(limits, &[running(1, 15, 16)], &line[1..], 2)
            .admit
            .is_empty()
    );
    assert_eq!(
        plan(limits, &[running(1, 15, 16)], &line[1..], 3).admit,
        [0]
    );
    assert_eq!(
        plan(limits, &[], &line[1..], 1).admit,
        [0],
        "alone it starts"
    );
}

#[test]
fn smaller_ones_overtake_one_that_lacks_blocks_until_its_limit() {
    let mut limits = limits();
    limits.overtake_limit = 2;
    let beside = [running(1, 15, 16)];
    let mut line = [waiting(2, 64), waiting(3, 4), waiting(4, 4), waiting(5, 4)];
    // It needs all of its blocks to come back.
    line[0].was_preempted = true;
    let made = plan(limits, &beside, &line, 3);
    assert_eq!(
        (&made.admit[..], &made.overtaken[..]),
        (&[1, 2][..], &[0, 0][..])
    );
    line[0].overtaken = 1;
    assert_eq!(plan(limits, &beside, &line, 3).admit, [1]);
    line[0].overtaken = 2;
    assert!(plan(limits, &beside, &line, 3).admit.is_empty());
    // Due, it goes before higher classes, as soon as it fits.
    line[1].class = 0;
    assert_eq!(plan(limits, &beside, &line, 9).admit[0], 0);
}

#[test]
fn class_then_arrival_and_the_starved_before_all() {
    let mut limits = limits();
    limits.sequences = 1;
    let mut line = [waiting(1, 4), waiting(2, 4), waiting(3, 4)];
    line[2].class = 0;
    assert_eq!(plan(limits, &[], &line, 9).admit, [2]);
    line[1].is_starved = true;
    assert_eq!(plan(limits, &[], &line, 9).admit, [1]);
    line[1].is_paused = true;
    line[2].is_paused = true;
    assert_eq!(plan(limits, &[], &line, 9).admit, [0]);
}

#[test]
fn one_that_gave_way_comes_back_when_all_of_it_fits() {
    let mut back = waiting(2, 60);
    back.was_preempted = true;
    let beside = [running(1, 15, 16)];
    assert!(plan(limits(), &beside, &[back], 7).admit.is_empty());
    assert_eq!(plan(limits(), &beside, &[back], 8).admit, [0]);
}

prop_compose! {
    fn any_running()(class in 3u8..6, computed in 0u32..60, more in 1u32..40, is_paused in any::<bool>(), preemptions in 0u32..5)
        -> Running {
        let length = computed + more;
        Running { class, arrival: 0, length, computed, blocks: computed.div_ceil(8), is_paused, preemptions }
    }
}

prop_compose! {
    fn any_waiting()(class in 3u8..6, length in 1u32..90, is_starved in any::<bool>(), is_paused in any::<bool>(), was_preempted in any::<bool>(), overtaken in 0u32..4)
        -> Waiting {
        Waiting { class, arrival: 0, length, is_starved, is_paused, was_preempted, overtaken }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]
    #[test]
    fn every_plan_can_be_carried_out(
        mut running in proptest::collection::vec(any_running(), 0..8),
        mut waiting in proptest::collection::vec(any_waiting(), 0..8),
        free_blocks in 0u32..14,
        free_slots in 0u32..4,
        fixed_chunks in any::<bool>(),
        tokens in 20u32..80,
        overtake_limit in 0u32..4,
    ) {
        let arrivals = (0..).map(|n| n * 7 % 31);
        for (r, n) in running.iter_mut().zip(arrivals) { r.arrival = n; }
        for (w, n) in waiting.iter_mut().zip(100..) { w.arrival = n; }
        let limits = Limits { fixed_chunks, tokens, overtake_limit, ..limits() };
        prop_assert!(tokens >= limits.least_tokens());
        let view = View { running: &running, waiting: &waiting, free_blocks, free_slots };
        let mut plan = Plan::default();
        let mut scheduler = Scheduler::new(limits);
        scheduler.plan(view, &mut plan);

        let mut again = plan.clone();
        scheduler.plan(view, &mut again);
        prop_assert_eq!(&plan, &again);

        // Blocks, slots, rows and seats are enough.
        let given: u32 = plan.preempt.iter().map(|&i| running[i].blocks).sum();
        let taken: u32 = plan.rows.iter().map(|r| r.new_blocks).sum();
        prop_assert!(taken <= free_blocks + given);
        prop_assert!(plan.admit.len() <= free_slots as usize + plan.preempt.len());
        prop_assert!(plan.rows.iter().map(|r| r.count).sum::<u32>() <= tokens);
        prop_assert!(plan.rows.len() <= limits.sequences as usize);
        for rows in &plan.rows {
            let (computed, length, blocks) = match rows.source {
                Source::Running(i) => {
                    prop_assert!(!plan.preempt.contains(&i) && !running[i].is_paused);
                    (running[i].computed, running[i].length, running[i].blocks)
                }
                Source::Admitted(i) => (0, waiting[plan.admit[i]].length, 0),
            };
            let end = rows.position + rows.count;
            prop_assert_eq!(rows.position, computed);
            prop_assert!(rows.count > 0 && end <= length);
            prop_assert!(end == length || end % 8 == 0);
            prop_assert!((blocks + rows.new_blocks) * 8 >= end);
        }
        // Nobody is overtaken too often, or while it is due.
        for (at, own) in waiting.iter().enumerate() {
            let times = plan.overtaken.iter().filter(|&&i| i == at).count() as u32;
            if times > 0 {
                prop_assert!(!own.is_starved && !plan.admit.contains(&at));
                prop_assert!(own.overtaken + times <= overtake_limit);
            }
        }
        // Nobody gives way twice, and the senior one moves on if the pools hold it at all.
        let mut once = plan.preempt.clone();
        once.sort_unstable();
        once.dedup();
        prop_assert_eq!(once.len(), plan.preempt.len());
        let senior = (0..running.len())
            .filter(|&i| !running[i].is_paused)
            .min_by_key(|&i| (running[i].class, running[i].arrival));
        if let Some(senior) = senior {
            prop_assert!(!plan.preempt.contains(&senior));
            let others: u32 = running.iter().map(|r| r.blocks).sum::<u32>() - running[senior].blocks;
            if free_blocks + others >= 2 {
                prop_assert!(plan.rows.iter().any(|r| r.source == Source::Running(senior)));
            }
        }
    }
}
