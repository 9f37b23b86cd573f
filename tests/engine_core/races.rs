//! Many threads at once, and the engine going away under them: what was accepted ends, once.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use fathom::engine::backend::canary::{CanaryOptions, Fault};
use fathom::engine::request::{Adapter, Event, Flow};
use fathom::engine::{Code, RequestId};

use crate::host::*;

/// Passes everything on.
struct Through;

impl Adapter for Through {
    fn adapt(&mut self, event: Event, out: &mut Vec<Event>) -> Flow {
        out.push(event);
        Flow::Continue
    }
}

/// Four threads submit, cancel and acknowledge, three poll the one queue; `end` is called in the middle.
fn storm(host: &Host, end: impl Fn(&Host)) -> BTreeMap<RequestId, Outcome> {
    let accepted = Mutex::new(Vec::new());
    let events = Mutex::new(Vec::new());
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let submitters: Vec<_> = (0..4u32)
            .map(|thread| {
                let accepted = &accepted;
                scope.spawn(move || {
                    for n in 0..60 {
                        let number = thread * 1000 + n;
                        let mut one = request(number, 1 + number % 40, number % 30);
                        one.explicit_ack = n % 4 == 0;
                        one.max_unread_tokens = 10;
                        let adapter = || Some(Box::new(Through) as Box<dyn Adapter>);
                        let result = match n % 3 {
                            0 => host.engine.submit(&host.queue, one, None),
                            1 => host.engine.submit(&host.queue, one, adapter()),
                            _ => host.engine.submit_deferred(
                                &host.queue,
                                number.into(),
                                None,
                                Box::new(move || Ok((one, adapter()))),
                            ),
                        };
                        match result {
                            Ok(id) => {
                                accepted.lock().unwrap().push(id);
                                if n % 7 == 0 {
                                    host.engine.cancel(&[id]);
                                }
                            }
                            Err(error) => assert!(
                                [Code::Shutdown, Code::Closed, Code::WorkerPanic]
                                    .contains(&error.code),
                                "{error}"
                            ),
                        }
                    }
                })
            })
            .collect();
        for _ in 0..3 {
            let (events, is_over) = (&events, &is_over);
            scope.spawn(move || {
                let mut own = Vec::new();
                while !is_over.load(SeqCst) {
                    host.queue
                        .poll(&mut own, Some(Duration::from_millis(5)))
                        .unwrap();
                    for event in &own {
                        host.engine.ack(&[(event.request, 1000)]);
                    }
                    events.lock().unwrap().append(&mut own);
                }
            });
        }
        end(host);
        for submitter in submitters {
            submitter.join().unwrap();
        }
        // Whatever comes after this was not accepted.
        let stats = || host.engine.stats();
        wait_for(|| {
            let stats = stats();
            let ended = stats.requests_finished + stats.requests_cancelled + stats.requests_failed;
            stats.requests_accepted == ended
        });
        is_over.store(true, SeqCst);
    });
    let mut events = events.into_inner().unwrap();
    host.queue.poll(&mut events, Some(Duration::ZERO)).unwrap();
    // With several pollers the spans of a request without an adapter may change places: only ends are looked at.
    let mut ends = BTreeMap::new();
    for event in events {
        if let fathom::engine::request::EventKind::Done(done) = event.kind {
            let outcome = Outcome {
                done: Some(done),
                ..Outcome::default()
            };
            assert!(ends.insert(event.request, outcome).is_none());
        }
    }
    let mut accepted = accepted.into_inner().unwrap();
    accepted.sort_unstable();
    assert_eq!(ends.keys().copied().collect::<Vec<_>>(), accepted);
    ends
}

#[test]
fn a_shutdown_in_the_middle_of_everything_ends_everybody() {
    for drain in [0, 1, 1000] {
        let host = host(
            CanaryOptions {
                delay: Duration::from_micros(200),
                ..CanaryOptions::default()
            },
            &options(4, r#"{"chunk": 8, "max_step_tokens": 24}"#),
        );
        let ends = storm(&host, |host| {
            wait_for(|| host.engine.stats().steps > 20);
            host.engine.shutdown(Duration::from_millis(drain)).unwrap();
        });
        assert!(!ends.is_empty());
        assert!(ends.values().all(|o| o.done().failure.is_none()
            || [Some(Code::Cancelled), Some(Code::Shutdown)].contains(&o.code())));
        host.assert_idle();
    }
}

#[test]
fn a_fault_in_the_middle_of_everything_ends_everybody() {
    for step in [1, 30] {
        let host = host(
            CanaryOptions {
                fault: Some((step, Fault::Panic)),
                ..CanaryOptions::default()
            },
            &options(4, r#"{"chunk": 8, "max_step_tokens": 24}"#),
        );
        let ends = storm(&host, |host| {
            wait_for(|| host.engine.state() == fathom::engine::EngineState::Failed);
        });
        assert!(ends.values().any(|o| o.code() == Some(Code::WorkerPanic)));
        host.engine.shutdown(Duration::ZERO).unwrap();
        host.assert_idle();
    }
}
