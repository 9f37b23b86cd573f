//! The queue alone, with a control that records what it is asked.

use std::sync::atomic::{AtomicU32, AtomicU64};
use std::sync::mpsc;

use super::*;
use crate::engine::delivery::{Control, Detail};
use crate::engine::request::{Adapter, Done, EventKind, FinishReason, Flow, Usage};

#[derive(Default)]
struct Recorder {
    cancels: Mutex<Vec<(RequestId, Cancel)>>,
    nudges: AtomicU32,
}

impl Control for Recorder {
    fn cancel(&self, id: RequestId, why: Cancel) {
        self.cancels.lock().push((id, why));
    }
    fn nudge(&self) {
        self.nudges.fetch_add(1, Relaxed);
    }
}

fn request(
    queue: &Queue,
    control: &Arc<Recorder>,
    explicit_ack: bool,
    adapter: Option<Box<dyn Adapter>>,
) -> Arc<Delivery> {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let id = NEXT.fetch_add(1, Relaxed);
    let delivery = Arc::new(Delivery::new(
        RequestId(id),
        id * 10,
        queue.shared().clone(),
        control.clone(),
    ));
    delivery.equip(explicit_ack, adapter);
    queue.shared().attach(&delivery).unwrap();
    delivery
}

fn push(delivery: &Arc<Delivery>, tokens: impl IntoIterator<Item = u32>) {
    for token in tokens {
        delivery.queue.push_token(
            delivery,
            &NewToken {
                token,
                logprob: None,
                top: &[],
                first: None,
            },
        );
    }
    delivery.queue.flush();
}

fn finish(delivery: &Arc<Delivery>, finish: FinishReason) -> bool {
    let fresh = delivery.queue.push_end(
        delivery,
        End {
            finish,
            failure: None,
            usage: Usage {
                completion_tokens: 100,
                ..Usage::default()
            },
            detail: Detail {
                reason: "length",
                ..Detail::default()
            },
        },
    );
    delivery.queue.flush();
    fresh
}

fn now(queue: &Queue) -> Vec<Event> {
    let mut out = Vec::new();
    queue.poll(&mut out, Some(Duration::ZERO)).unwrap();
    out
}

fn tokens(event: &Event) -> &[u32] {
    match &event.kind {
        EventKind::Tokens(tokens) => &tokens.tokens,
        other => panic!("{other:?}"),
    }
}

fn done(event: &Event) -> &Done {
    match &event.kind {
        EventKind::Done(done) => done,
        other => panic!("{other:?}"),
    }
}

fn setup() -> (Queue, Arc<Recorder>) {
    (
        Queue::new(QueueOptions::default()).unwrap(),
        Arc::new(Recorder::default()),
    )
}

#[cfg(unix)]
fn is_readable(queue: &Queue) -> bool {
    sync::is_readable(queue.fd().unwrap())
}

#[test]
fn tokens_that_wait_together_are_one_event() {
    let (queue, control) = setup();
    let a = request(&queue, &control, false, None);
    let b = request(&queue, &control, false, None);
    push(&a, [1, 2]);
    push(&b, [7]);
    push(&a, [3]);
    assert_eq!((a.unread(), b.unread()), (3, 1));
    let events = now(&queue);
    assert_eq!(events.len(), 2);
    assert_eq!((tokens(&events[0]), events[0].tag), (&[1, 2, 3][..], a.tag));
    assert_eq!(tokens(&events[1]), [7]);
    assert_eq!((a.unread(), b.unread()), (0, 0));
    push(&a, [4]);
    assert!(finish(&a, FinishReason::Length));
    assert!(!finish(&a, FinishReason::Length), "one end");
    push(&a, [5]);
    let events = now(&queue);
    assert_eq!(tokens(&events[0]), [4]);
    assert_eq!(done(&events[1]).finish, FinishReason::Length);
    assert_eq!(events.len(), 2);
}

#[test]
fn acknowledged_requests_stay_unread_until_told() {
    let (queue, control) = setup();
    let a = request(&queue, &control, true, None);
    push(&a, [1, 2, 3]);
    assert_eq!(now(&queue).len(), 1);
    assert_eq!(a.unread(), 3);
    a.set_paused(true);
    a.acknowledge(2);
    assert_eq!((a.unread(), control.nudges.load(Relaxed)), (1, 1));
    push(&a, [4]);
    a.acknowledge(u32::MAX);
    assert_eq!(a.unread(), 1, "what was not delivered cannot be read");
}

#[cfg(unix)]
#[test]
fn the_descriptor_is_readable_exactly_while_something_waits() {
    let (queue, control) = setup();
    let a = request(&queue, &control, false, None);
    assert!(!is_readable(&queue));
    push(&a, [1]);
    assert!(is_readable(&queue));
    now(&queue);
    assert!(!is_readable(&queue));
    push(&a, [1]);
    push(&a, [2]);
    assert!(is_readable(&queue));
    queue.close();
    assert!(!is_readable(&queue));

    let (queue, control) = setup();
    push(&request(&queue, &control, false, None), [1]);
    assert!(is_readable(&queue), "made late, it knows what waits");
}

#[test]
fn the_callback_comes_once_for_each_rise_and_never_after_removal() {
    let (queue, control) = setup();
    let calls = Arc::new(AtomicU32::new(0));
    let seen = calls.clone();
    queue.on_ready(Some(Box::new(move || {
        seen.fetch_add(1, Relaxed);
    })));
    let a = request(&queue, &control, false, None);
    push(&a, [1]);
    push(&a, [2]);
    assert_eq!(calls.load(Relaxed), 1);
    now(&queue);
    push(&a, [3]);
    assert_eq!(calls.load(Relaxed), 2);
    now(&queue);
    queue.on_ready(None);
    assert_eq!(Arc::strong_count(&calls), 1, "dropped with the callback");
    push(&a, [4]);
    assert_eq!(calls.load(Relaxed), 2);
}

#[test]
fn a_callback_that_panics_does_not_reach_the_engine() {
    let (queue, control) = setup();
    queue.on_ready(Some(Box::new(|| panic!("of the host"))));
    let a = request(&queue, &control, false, None);
    push(&a, [1]);
    assert_eq!(now(&queue).len(), 1);
}

#[test]
fn a_wait_ends_with_events_with_a_wake_and_with_the_end_of_the_queue() {
    let (queue, control) = setup();
    let a = request(&queue, &control, false, None);
    let (send, receive) = mpsc::channel();
    let poller = {
        let queue = queue.clone();
        std::thread::spawn(move || {
            loop {
                let mut out = Vec::new();
                let result = queue.poll(&mut out, None);
                let is_over = result.is_err();
                send.send((out.len(), result)).unwrap();
                if is_over {
                    break;
                }
            }
        })
    };
    push(&a, [1]);
    assert_eq!(receive.recv().unwrap(), (1, Ok(())));
    queue.wake();
    assert_eq!(receive.recv().unwrap(), (0, Ok(())));
    queue.close();
    let (events, result) = receive.recv().unwrap();
    assert_eq!((events, result.unwrap_err().code), (0, Code::Closed));
    poller.join().unwrap();
    assert_eq!(*control.cancels.lock(), [(a.id, Cancel::Abandon)]);
    push(&a, [2]);
    assert_eq!(a.unread(), 0, "dropped");
    let late = Arc::new(Delivery::new(
        RequestId(u64::MAX),
        0,
        queue.shared().clone(),
        control,
    ));
    assert_eq!(queue.shared().attach(&late).unwrap_err().code, Code::Closed);
}

#[test]
fn a_wait_without_events_ends_after_its_time() {
    let (queue, _control) = setup();
    let mut out = Vec::new();
    queue
        .poll(&mut out, Some(Duration::from_millis(5)))
        .unwrap();
    assert!(out.is_empty());
}

#[test]
fn the_last_handle_closes_the_queue() {
    let (queue, control) = setup();
    let a = request(&queue, &control, false, None);
    drop(queue.clone());
    assert!(control.cancels.lock().is_empty());
    drop(queue);
    assert_eq!(*control.cancels.lock(), [(a.id, Cancel::Abandon)]);
}

#[test]
fn the_wake_interval_defers_announcements_and_loses_none() {
    let queue = Queue::new(QueueOptions {
        // Longer than the test needs for two pushes, however slow the machine.
        wake_interval_us: 200_000,
    })
    .unwrap();
    let control = Arc::new(Recorder::default());
    let (send, receive) = mpsc::channel();
    let send = Mutex::new(send);
    queue.on_ready(Some(Box::new(move || {
        let _ = send.lock().send(Instant::now());
    })));
    let a = request(&queue, &control, false, None);
    push(&a, [1]);
    let first = receive.recv().unwrap();
    assert_eq!(now(&queue).len(), 1);
    push(&a, [2]);
    push(&a, [3]);
    let second = receive.recv().unwrap();
    assert!(second - first >= Duration::from_millis(199));
    assert_eq!(tokens(&now(&queue)[0]), [2, 3]);
}

/// Makes one Data event of every two tokens, stops at 99, panics at 98.
#[derive(Default)]
struct Pairs {
    held: Vec<u32>,
    ends: Arc<AtomicU32>,
    rude: bool,
}

impl Adapter for Pairs {
    fn adapt(&mut self, event: Event, out: &mut Vec<Event>) -> Flow {
        let blank = Event {
            request: RequestId(0),
            tag: 0,
            kind: EventKind::Data {
                name: None,
                data: String::new(),
                token_count: 0,
            },
        };
        match event.kind {
            EventKind::Tokens(tokens) => {
                for token in tokens.tokens {
                    match token {
                        98 => panic!("of the adapter"),
                        99 => return Flow::Stop,
                        _ => self.held.push(token),
                    }
                    if let [a, b] = self.held[..] {
                        self.held.clear();
                        out.push(Event {
                            kind: EventKind::Data {
                                name: Some("pair"),
                                data: format!("[{a},{b}]"),
                                token_count: 2,
                            },
                            ..blank.clone()
                        });
                    }
                }
            }
            EventKind::Done(_) => {
                self.ends.fetch_add(1, Relaxed);
                let repeat = if self.rude {
                    [3, 0][self.held.len() % 2]
                } else {
                    1
                };
                for _ in 0..repeat {
                    out.push(Event {
                        kind: event.kind.clone(),
                        ..blank.clone()
                    });
                }
                out.extend(self.rude.then_some(blank));
            }
            EventKind::Data { .. } => unreachable!("made by adapters only"),
        }
        Flow::Continue
    }
}

#[test]
fn an_adapter_replaces_the_events_and_a_wait_goes_on_without_any() {
    let (queue, control) = setup();
    let a = request(&queue, &control, true, Some(Box::<Pairs>::default()));
    push(&a, [1]);
    assert!(now(&queue).is_empty());
    assert_eq!(a.unread(), 0, "a held token counts as read");
    let poller = {
        let queue = queue.clone();
        std::thread::spawn(move || {
            let mut out = Vec::new();
            queue.poll(&mut out, None).unwrap();
            out
        })
    };
    push(&a, [2]);
    let events = poller.join().unwrap();
    assert!(
        matches!(&events[..], [Event { request, tag, kind: EventKind::Data { data, token_count: 2, .. } }]
            if data == "[1,2]" && *request == a.id && *tag == a.tag),
        "{events:?}"
    );
    assert_eq!(
        a.unread(),
        2,
        "what was shown waits for its acknowledgement"
    );
    a.acknowledge(2);
    assert_eq!(a.unread(), 0);
}

#[test]
fn an_adapter_that_stops_gets_no_more_tokens_and_a_normal_end() {
    let (queue, control) = setup();
    let ends = Arc::new(AtomicU32::new(0));
    let a = request(
        &queue,
        &control,
        false,
        Some(Box::new(Pairs {
            ends: ends.clone(),
            ..Pairs::default()
        })),
    );
    push(&a, [1, 2, 99]);
    assert_eq!(now(&queue).len(), 1);
    assert_eq!(*control.cancels.lock(), [(a.id, Cancel::Stop)]);
    push(&a, [3, 4]);
    assert!(now(&queue).is_empty());
    assert_eq!(a.unread(), 0);
    finish(&a, FinishReason::Cancelled);
    let events = now(&queue);
    let end = done(&events[0]);
    assert_eq!(end.finish, FinishReason::Stop);
    assert_eq!(end.usage.completion_tokens, 3);
    assert!(end.failure.is_none());
    assert_eq!(end.detail, r#"{"reason":"stop","preemptions":0}"#);
    assert_eq!((events.len(), ends.load(Relaxed)), (1, 1));
}

#[test]
fn an_adapter_that_panics_ends_its_request_with_an_error() {
    let (queue, control) = setup();
    let ends = Arc::new(AtomicU32::new(0));
    let a = request(
        &queue,
        &control,
        false,
        Some(Box::new(Pairs {
            ends: ends.clone(),
            ..Pairs::default()
        })),
    );
    push(&a, [1, 98]);
    assert!(now(&queue).is_empty());
    assert_eq!(*control.cancels.lock(), [(a.id, Cancel::Abandon)]);
    push(&a, [1, 2]);
    finish(&a, FinishReason::Cancelled);
    let events = now(&queue);
    assert_eq!(done(&events[0]).finish, FinishReason::Error);
    assert!(done(&events[0]).detail.contains(r#""code":"INTERNAL""#));
    assert_eq!((events.len(), ends.load(Relaxed)), (1, 0));
}

#[test]
fn exactly_one_end_leaves_whatever_the_adapter_appends() {
    for held in [0, 1] {
        let (queue, control) = setup();
        let a = request(
            &queue,
            &control,
            false,
            Some(Box::new(Pairs {
                rude: true,
                ..Pairs::default()
            })),
        );
        push(&a, 0..2 + held);
        now(&queue);
        finish(&a, FinishReason::Length);
        let events = now(&queue);
        assert_eq!(events.len(), 2, "{events:?}");
        assert_eq!(done(&events[1]).finish, FinishReason::Length);
    }
}

#[test]
fn several_pollers_keep_an_adapted_request_in_order_and_lose_nothing() {
    struct Order(u32, Arc<AtomicU32>);
    impl Adapter for Order {
        fn adapt(&mut self, event: Event, out: &mut Vec<Event>) -> Flow {
            assert_eq!(self.1.fetch_add(1, Relaxed), 0, "one call at a time");
            if let EventKind::Tokens(tokens) = &event.kind {
                for &token in &tokens.tokens {
                    assert_eq!(token, self.0);
                    self.0 += 1;
                }
            }
            out.push(event);
            self.1.fetch_sub(1, Relaxed);
            Flow::Continue
        }
    }
    let (queue, control) = setup();
    let running: Vec<_> = (0..8)
        .map(|_| {
            let adapter = Order(0, Arc::new(AtomicU32::new(0)));
            request(&queue, &control, false, Some(Box::new(adapter)))
        })
        .collect();
    let pollers: Vec<_> = (0..3)
        .map(|_| {
            let queue = queue.clone();
            std::thread::spawn(move || {
                let (mut tokens, mut ends) = (0, 0);
                let mut out = Vec::new();
                while queue.poll(&mut out, None).is_ok() {
                    for event in out.drain(..) {
                        match event.kind {
                            EventKind::Tokens(t) => tokens += t.tokens.len(),
                            EventKind::Done(done) => {
                                assert_eq!(done.finish, FinishReason::Length);
                                ends += 1;
                            }
                            EventKind::Data { .. } => unreachable!(),
                        }
                    }
                }
                (tokens, ends)
            })
        })
        .collect();
    for token in 0..2000 {
        for delivery in &running {
            push(delivery, [token]);
        }
    }
    for delivery in &running {
        finish(delivery, FinishReason::Length);
    }
    // The pollers are let go when the queue has run dry.
    while !queue.shared().inner.lock().entries.is_empty()
        || running
            .iter()
            .any(|d| d.busy.load(Relaxed) || d.unread() > 0)
    {
        std::thread::yield_now();
    }
    queue.close();
    let (tokens, ends) = pollers
        .into_iter()
        .map(|p| p.join().unwrap())
        .fold((0, 0), |a, b| (a.0 + b.0, a.1 + b.1));
    assert_eq!((tokens, ends), (8 * 2000, 8));
    assert!(control.cancels.lock().is_empty());
}
