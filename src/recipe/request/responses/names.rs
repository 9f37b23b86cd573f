//! Names of functions inside namespaces: the model knows functions by one name each, so namespace and local
//! name are joined, and told apart from every other function.
//!
//! A name costs one look-up of its own and one for each name that stood in its way, counted once for all names
//! that are spelled alike: many equal names take linear time.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use ahash::RandomState;

use crate::recipe::encoding::Encoding;

/// Names in use, and which function each pair of namespace and local name means.
#[derive(Default)]
pub(super) struct Names<'v> {
    taken: HashSet<Cow<'v, str>, RandomState>,
    /// The number that the next name of this spelling tries first.
    next: HashMap<String, usize, RandomState>,
    functions: HashMap<(&'v str, &'v str), String, RandomState>,
}

impl<'v> Names<'v> {
    /// Marks a name as taken.
    pub(super) fn take(&mut self, name: &'v str) {
        self.taken.insert(name.into());
    }

    /// Names a declared function. Of several with the same namespace and name, calls mean the first.
    pub(super) fn declare(
        &mut self,
        encoding: Encoding,
        namespace: &'v str,
        local: &'v str,
    ) -> String {
        let name = self.free(joined(encoding, namespace, local));
        self.functions
            .entry((namespace, local))
            .or_insert_with(|| name.clone());
        name
    }

    /// The function that an old call means; one that is not declared any more gets a name of its own.
    pub(super) fn called(
        &mut self,
        encoding: Encoding,
        namespace: &'v str,
        local: &'v str,
    ) -> String {
        match self.functions.get(&(namespace, local)) {
            Some(name) => name.clone(),
            None => self.declare(encoding, namespace, local),
        }
    }

    /// `wanted`, or the first free one of `wanted_1`, `wanted_2` and so on; it is taken then.
    fn free(&mut self, wanted: String) -> String {
        if self.taken.insert(wanted.clone().into()) {
            return wanted;
        }
        let next = self.next.entry(wanted.clone()).or_insert(1);
        loop {
            let name = format!("{wanted}_{next}");
            *next += 1;
            if self.taken.insert(name.clone().into()) {
                return name;
            }
        }
    }
}

fn joined(encoding: Encoding, namespace: &str, local: &str) -> String {
    let between = match encoding {
        Encoding::V41 => "::",
        Encoding::V4 if namespace.ends_with('_') || local.starts_with('_') => "",
        Encoding::V4 => "__",
    };
    [namespace, between, local].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_taken_name_is_numbered() {
        let mut names = Names::default();
        for name in ["a__b", "a__b_2"] {
            names.take(name);
        }
        let declared: Vec<String> = (0..3)
            .map(|_| names.declare(Encoding::V4, "a", "b"))
            .collect();
        assert_eq!(declared, ["a__b_1", "a__b_3", "a__b_4"]);
        assert_eq!(names.called(Encoding::V4, "a", "b"), "a__b_1");
        let old = names.called(Encoding::V4, "a_", "_b");
        assert_eq!(old, "a__b_5");
        assert_eq!(names.called(Encoding::V4, "a_", "_b"), old);
    }

    #[test]
    fn many_equal_names_take_linear_time() {
        let taken: Vec<String> = (0..50_000).map(|number| format!("a::b_{number}")).collect();
        let mut names = Names::default();
        for name in &taken {
            names.take(name);
        }
        for _ in 0..100_000 {
            names.declare(Encoding::V41, "a", "b");
        }
        assert_eq!(names.declare(Encoding::V41, "a", "b"), "a::b_149999");
    }
}
