//! Grammars by what they were compiled from.
//!
//! In: a spec, a vocabulary, and somebody who waits. Out: the grammar, or whose turn it is to compile it. Equal
//! specs are compiled once, however many wait; what nobody uses leaves, the longest unused first, when the bytes
//! exceed the limit. One short lock a call; compiling happens outside it.

#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use parking_lot::Mutex;

use super::{Fault, Grammar, Limits, Spec, TokenTable};
use crate::engine::error::Error;

/// What a compilation gives.
pub(crate) type Compiled = Result<Arc<Grammar>, Error>;

type Key = (Arc<Spec>, [u8; 32]);

/// See the module. `W` is what waits.
pub(crate) struct Cache<W> {
    limits: Limits,
    /// Bytes that may be kept.
    most: u64,
    state: Mutex<State<W>>,
}

struct State<W> {
    entries: HashMap<Key, Entry<W>>,
    /// Counts looks.
    clock: u64,
}

enum Entry<W> {
    Ready {
        grammar: Arc<Grammar>,
        used: u64,
    },
    /// Somebody compiles it, or is about to.
    Pending(Vec<W>),
}

/// What a look at the cache found.
pub(crate) enum Found<W> {
    /// There; the one who waits comes back.
    Ready(Arc<Grammar>, W),
    /// The first to ask: has to call [`Cache::compile`].
    Mine,
    /// Will be told by whoever compiles it.
    Later,
}

impl<W> Cache<W> {
    pub(crate) fn new(limits: Limits, most: u64) -> Self {
        Self {
            limits,
            most,
            state: Mutex::new(State {
                entries: HashMap::new(),
                clock: 0,
            }),
        }
    }

    /// A grammar that is there.
    pub(crate) fn get(&self, spec: &Arc<Spec>, table: &TokenTable) -> Option<Arc<Grammar>> {
        let key = (spec.clone(), *table.digest());
        let mut state = self.state.lock();
        state.clock += 1;
        let now = state.clock;
        match state.entries.get_mut(&key) {
            Some(Entry::Ready { grammar, used }) if !grammar.is_spoiled() => {
                *used = now;
                Some(grammar.clone())
            }
            Some(_) | None => None,
        }
    }

    /// Finds a grammar or waits for it.
    pub(crate) fn find(&self, spec: &Arc<Spec>, table: &TokenTable, waiter: W) -> Found<W> {
        let key = (spec.clone(), *table.digest());
        let mut state = self.state.lock();
        state.clock += 1;
        let now = state.clock;
        match state.entries.get_mut(&key) {
            Some(Entry::Ready { grammar, used }) if !grammar.is_spoiled() => {
                *used = now;
                Found::Ready(grammar.clone(), waiter)
            }
            Some(Entry::Pending(waiters)) => {
                waiters.push(waiter);
                Found::Later
            }
            Some(Entry::Ready { .. }) | None => {
                state.entries.insert(key, Entry::Pending(vec![waiter]));
                Found::Mine
            }
        }
    }

    /// Compiles what [`Found::Mine`] promised; answers who waited for it. Not at all if none of them `wants` it
    /// any more.
    pub(crate) fn compile(
        &self,
        spec: &Arc<Spec>,
        table: &Arc<TokenTable>,
        wants: impl Fn(&W) -> bool,
    ) -> (Option<Compiled>, Vec<W>) {
        let key = (spec.clone(), *table.digest());
        {
            let mut state = self.state.lock();
            if let Some(Entry::Pending(waiters)) = state.entries.get(&key)
                && !waiters.iter().any(wants)
            {
                return (None, state.forget(&key));
            }
        }
        let compiled = compile(spec, table, &self.limits);
        let mut state = self.state.lock();
        let waiters = state.forget(&key);
        if let Ok(grammar) = &compiled {
            let used = state.clock;
            let grammar = grammar.clone();
            state.entries.insert(key, Entry::Ready { grammar, used });
            state.shrink(self.most);
        }
        (Some(compiled), waiters)
    }

    /// Grammars that are kept.
    #[cfg(test)]
    fn ready(&self) -> usize {
        let state = self.state.lock();
        let is_ready = |entry: &&Entry<W>| matches!(entry, Entry::Ready { .. });
        state.entries.values().filter(is_ready).count()
    }
}

/// Compiles once, without a cache.
pub(crate) fn compile(spec: &Spec, table: &Arc<TokenTable>, limits: &Limits) -> Compiled {
    let compiled = catch_unwind(AssertUnwindSafe(|| {
        let source = spec.source(limits)?;
        Grammar::compile(&source, table, limits).map(Arc::new)
    }));
    // Whoever waits for it must be told.
    compiled.unwrap_or_else(|_| Err(Fault::Broken.into_error()))
}

impl<W> State<W> {
    fn forget(&mut self, key: &Key) -> Vec<W> {
        match self.entries.remove(key) {
            Some(Entry::Pending(waiters)) => waiters,
            Some(Entry::Ready { .. }) | None => Vec::new(),
        }
    }

    /// Forgets the longest unused until the rest fits. Grammars grow while they are used, so all are asked.
    fn shrink(&mut self, most: u64) {
        let mut kept: Vec<(u64, u64, Key)> = self
            .entries
            .iter()
            .filter_map(|(key, entry)| match entry {
                Entry::Ready { grammar, used } => {
                    Some((*used, grammar.bytes() as u64, key.clone()))
                }
                Entry::Pending(_) => None,
            })
            .collect();
        let mut bytes: u64 = kept.iter().map(|(_, bytes, _)| bytes).sum();
        if bytes <= most {
            return;
        }
        kept.sort_unstable_by_key(|(used, _, _)| *used);
        for (_, size, key) in kept {
            if bytes <= most {
                return;
            }
            self.entries.remove(&key);
            bytes -= size;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::table::tests::table;
    use super::*;

    fn spec(pattern: &str) -> Arc<Spec> {
        Arc::new(Spec::Regex(pattern.to_owned()))
    }

    #[test]
    fn equal_grammars_are_compiled_once_and_all_are_told() {
        let table = Arc::new(table());
        let cache = Cache::new(Limits::default(), 1 << 30);
        assert!(matches!(cache.find(&spec("a+"), &table, 1), Found::Mine));
        assert!(matches!(cache.find(&spec("a+"), &table, 2), Found::Later));
        assert!(matches!(cache.find(&spec("b+"), &table, 3), Found::Mine));
        let (compiled, waiters) = cache.compile(&spec("a+"), &table, |_| true);
        let first = compiled.unwrap().unwrap();
        assert_eq!(waiters, [1, 2]);
        let Found::Ready(again, 4) = cache.find(&spec("a+"), &table, 4) else {
            panic!("it is not kept");
        };
        assert!(Arc::ptr_eq(&first, &again));
    }

    #[test]
    fn failures_are_told_and_not_kept() {
        let table = Arc::new(table());
        let cache = Cache::new(Limits::default(), 1 << 30);
        assert!(matches!(cache.find(&spec("("), &table, 1), Found::Mine));
        let (compiled, waiters) = cache.compile(&spec("("), &table, |_| true);
        assert!(compiled.unwrap().is_err());
        assert_eq!(waiters, [1]);
        assert!(matches!(cache.find(&spec("("), &table, 2), Found::Mine));
    }

    #[test]
    fn what_nobody_waits_for_is_not_compiled() {
        let table = Arc::new(table());
        let cache = Cache::new(Limits::default(), 1 << 30);
        assert!(matches!(cache.find(&spec("a"), &table, 1), Found::Mine));
        let (compiled, waiters) = cache.compile(&spec("a"), &table, |_| false);
        assert!(compiled.is_none());
        assert_eq!((waiters, cache.ready()), (vec![1], 0));
    }

    #[test]
    fn the_longest_unused_leave_when_the_bytes_exceed_the_limit() {
        let table = Arc::new(table());
        let size = compile(&spec("a+"), &table, &Limits::default())
            .unwrap()
            .bytes() as u64;
        let cache = Cache::new(Limits::default(), size * 5 / 2);
        for pattern in ["a+", "b+", "c+"] {
            assert!(matches!(
                cache.find(&spec(pattern), &table, ()),
                Found::Mine
            ));
            cache.compile(&spec(pattern), &table, |()| true);
            // Used again: it is the second that leaves.
            cache.find(&spec("a+"), &table, ());
        }
        assert_eq!(cache.ready(), 2);
        assert!(matches!(
            cache.find(&spec("a+"), &table, ()),
            Found::Ready(..)
        ));
        assert!(matches!(cache.find(&spec("b+"), &table, ()), Found::Mine));
    }
}
