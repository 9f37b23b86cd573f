//! Rollback and snapshots: a sequence that wandered off and came back is as if it had never gone.

mod common;

use common::{Device, Golden, Sequence, TestModel, open, repository};
use fathom::engine::Code;
use fathom::engine::backend::Numerics;
use fathom::engine::kv::SlotId;
use fathom::engine::model::LogitRows;

const CONTEXT: usize = 512;

fn model(name: &str, numerics: Numerics, sequences: usize) -> (TestModel, Vec<u32>) {
    let dir = repository("tests/data/model").join(name);
    let golden = Golden::open(&dir.join("golden.safetensors"));
    let as_u32 = |ids: Vec<i64>| ids.into_iter().map(|i| i as u32).collect::<Vec<_>>();
    let map = if golden.has("engram.token_map") {
        as_u32(golden.ints("engram.token_map"))
    } else {
        Vec::new()
    };
    let model = open(&dir, Device::Cpu, numerics, &map, sequences, CONTEXT);
    (model, as_u32(golden.ints("input_ids")))
}

/// Logits of every row of `ids`, run one row at a time.
fn straight(model: &mut TestModel, ids: &[u32]) -> Vec<Vec<f32>> {
    let mut sequence = Sequence::new(model, 0, CONTEXT);
    ids.iter().map(|id| sequence.feed(model, &[*id])).collect()
}

#[test]
fn one_to_eight_rows_can_be_taken_back_at_every_position() {
    for name in ["v4-tiny", "v41-tiny"] {
        for numerics in [Numerics::PLAIN, Numerics::OFFICIAL] {
            let (mut model, ids) = model(name, numerics, 1);
            let want = straight(&mut model, &ids);
            let mut sequence = Sequence::new(&mut model, 0, CONTEXT);
            for (position, id) in ids.iter().enumerate() {
                // Go on with other tokens, in one call or one by one, and come back.
                let rows = 1 + position % 8;
                let strange: Vec<u32> = (0..rows).map(|i| (id + 7 * i as u32 + 3) % 500).collect();
                if position % 3 == 0 {
                    strange
                        .iter()
                        .for_each(|s| drop(sequence.feed(&mut model, &[*s])));
                } else {
                    sequence.feed(&mut model, &strange);
                }
                sequence.tokens.truncate(position);
                assert_eq!(
                    sequence.feed(&mut model, &[*id]),
                    want[position],
                    "{name} {numerics:?} at {position}"
                );
            }
        }
    }
}

#[test]
fn more_rows_than_the_rings_allow_are_refused_not_misread() {
    // Early positions too: there the window still holds every row, but compressor rings do not.
    for (name, end) in [("v41-tiny", 200), ("v4-tiny", 200), ("v4-tiny", 20)] {
        let (mut model, ids) = model(name, Numerics::PLAIN, 1);
        let mut sequence = Sequence::new(&mut model, 0, CONTEXT);
        sequence.feed(&mut model, &ids[..end]);
        sequence.tokens.truncate(end - 9);
        sequence.tokens.push(5);
        let step = [sequence.step(end - 9, end - 8, LogitRows::Last)];
        let error = model.forward(&step, &mut Vec::new(), None).unwrap_err();
        assert_eq!(error.code, Code::StateCorrupt);
        assert!(error.message.contains("position"), "{error}");
    }
}

#[test]
fn a_cleared_slot_holds_nothing_of_its_former_owner() {
    let (mut model, ids) = model("v41-tiny", Numerics::PLAIN, 1);
    let mut sequence = Sequence::new(&mut model, 0, CONTEXT);
    sequence.feed(&mut model, &ids[..40]);
    model.model().clear_slot(sequence.slot);
    sequence.tokens.push(1);
    let error = model
        .forward(
            &[sequence.step(40, 41, LogitRows::Last)],
            &mut Vec::new(),
            None,
        )
        .unwrap_err();
    assert_eq!(error.code, Code::StateCorrupt);
}

#[test]
fn a_snapshot_at_every_position_restores_into_any_slot() {
    for name in ["v4-tiny", "v41-tiny"] {
        for numerics in [Numerics::PLAIN, Numerics::OFFICIAL] {
            let (mut model, ids) = model(name, numerics, 2);
            let want = straight(&mut model, &ids);
            let mut sequence = Sequence::new(&mut model, 0, CONTEXT);
            for (position, id) in ids.iter().enumerate() {
                let snapshot = model.model().save(sequence.slot);
                // Wander further than any rollback, in this slot; every 16th time through the whole ring.
                let far = if position % 16 == 0 { 150 } else { 20 };
                let strange: Vec<u32> = (0..far).map(|i| (id + 11 * i) % 500).collect();
                if position + strange.len() <= CONTEXT {
                    sequence.feed(&mut model, &strange);
                }
                sequence.tokens.truncate(position);
                // Go on in the other slot.
                sequence.slot = SlotId(3 - sequence.slot.0);
                model.model().clear_slot(sequence.slot);
                model.model().restore(sequence.slot, &snapshot).unwrap();
                assert_eq!(
                    sequence.feed(&mut model, &[*id]),
                    want[position],
                    "{name} {numerics:?} at {position}"
                );
            }
        }
    }
}

#[test]
fn a_snapshot_of_another_size_is_refused() {
    let (mut model, _) = model("v41-tiny", Numerics::PLAIN, 1);
    let mut snapshot = model.model().save(SlotId(1));
    snapshot.pop();
    let error = model.model().restore(SlotId(1), &snapshot).unwrap_err();
    assert!(error.message.contains("bytes"), "{error}");
}
