//! Recorded outputs cut at random places, a hundred thousand times.

use fathom::recipe::stream::Recovery;

use super::chunkings::{comparable, depends_on_chunks};
use super::pieces::{Random, cut, recorded, whole};
use super::readers::InRust;
use super::{cases, check_all, only_in_rust, prepared, protocol, run};

/// Of each case and recovery.
const SPLITS: u64 = 64;

#[test]
fn any_split_gives_the_same_events() {
    let mut random = Random::new(2026);
    let mut compared = 0;
    for recovery in [Recovery::Robust, Recovery::Strict] {
        check_all(recovery, |case| {
            // Log-probabilities of another number than the ids cannot be cut.
            if depends_on_chunks(case, recovery) || only_in_rust(case) {
                return Ok(());
            }
            let request = prepared(case, recovery);
            let reader = || InRust::new(&request, recovery, protocol(case));
            let pieces = whole(recorded(case));
            let wanted = comparable(case, &run(reader(), case, &pieces), recovery);
            for _ in 0..SPLITS {
                // Parts of about one length, from single characters to a few long ones.
                let most = 1 << random.below(10);
                let parts = cut(&pieces, || 1 + random.below(most) as usize);
                let ours = comparable(case, &run(reader(), case, &parts), recovery);
                compared += 1;
                if ours != wanted {
                    return Err(format!("{parts:?}\n  ours {ours}\n  want {wanted}"));
                }
            }
            Ok(())
        });
    }
    assert!(
        compared >= 100_000,
        "{compared} splits of {} cases",
        cases().all.len()
    );
}
