//! Lists of ids that live in one array of links, so that an id moves between lists in O(1) and without memory.
//!
//! An id is on one list at most; who keeps the lists knows on which. Id 0 is never on a list: it ends one.

#![forbid(unsafe_code)]

/// The neighbours of every id.
#[derive(Debug)]
pub(super) struct Links(Vec<Link>);

#[derive(Clone, Copy, Debug, Default)]
struct Link {
    before: u32,
    after: u32,
}

/// One list: its ends and its length.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct List {
    first: u32,
    last: u32,
    len: u32,
}

impl List {
    pub(super) fn len(&self) -> u32 {
        self.len
    }

    pub(super) fn first(&self) -> Option<u32> {
        (self.first != 0).then_some(self.first)
    }
}

impl Links {
    /// For the ids below `total`.
    pub(super) fn new(total: usize) -> Self {
        Self(vec![Link::default(); total])
    }

    /// Makes room for one more id.
    pub(super) fn grow(&mut self) {
        self.0.push(Link::default());
    }

    pub(super) fn push_first(&mut self, list: &mut List, id: u32) {
        self.0[id as usize] = Link {
            before: 0,
            after: list.first,
        };
        match list.first {
            0 => list.last = id,
            first => self.0[first as usize].before = id,
        }
        list.first = id;
        list.len += 1;
    }

    pub(super) fn push_last(&mut self, list: &mut List, id: u32) {
        self.0[id as usize] = Link {
            before: list.last,
            after: 0,
        };
        match list.last {
            0 => list.first = id,
            last => self.0[last as usize].after = id,
        }
        list.last = id;
        list.len += 1;
    }

    /// Takes out an id that is on this list.
    pub(super) fn remove(&mut self, list: &mut List, id: u32) {
        let Link { before, after } = self.0[id as usize];
        match before {
            0 => list.first = after,
            before => self.0[before as usize].after = after,
        }
        match after {
            0 => list.last = before,
            after => self.0[after as usize].before = before,
        }
        list.len -= 1;
    }

    pub(super) fn pop_first(&mut self, list: &mut List) -> Option<u32> {
        let id = list.first()?;
        self.remove(list, id);
        Some(id)
    }

    pub(super) fn pop_last(&mut self, list: &mut List) -> Option<u32> {
        let id = (list.last != 0).then_some(list.last)?;
        self.remove(list, id);
        Some(id)
    }

    /// Moves all of `other` behind the last of `list`.
    pub(super) fn append(&mut self, list: &mut List, other: List) {
        if other.len == 0 {
            return;
        }
        match list.last {
            0 => list.first = other.first,
            last => {
                self.0[last as usize].after = other.first;
                self.0[other.first as usize].before = last;
            }
        }
        list.last = other.last;
        list.len += other.len;
    }

    /// The ids of a list, first to last.
    pub(super) fn iter(&self, list: List) -> impl Iterator<Item = u32> {
        let after = |&id: &u32| Some(self.0[id as usize].after).filter(|&id| id != 0);
        std::iter::successors(list.first(), after)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(links: &Links, list: List) -> Vec<u32> {
        let ids: Vec<_> = links.iter(list).collect();
        assert_eq!(ids.len(), list.len() as usize);
        ids
    }

    #[test]
    fn ids_move_between_lists() {
        let mut links = Links::new(7);
        let (mut a, mut b) = (List::default(), List::default());
        for id in 1..4 {
            links.push_last(&mut a, id);
        }
        links.push_first(&mut b, 5);
        links.push_first(&mut b, 4);
        assert_eq!(
            (ids(&links, a), ids(&links, b)),
            (vec![1, 2, 3], vec![4, 5])
        );
        links.remove(&mut a, 2);
        links.push_last(&mut b, 2);
        links.append(&mut a, b);
        assert_eq!(ids(&links, a), [1, 3, 4, 5, 2]);
        links.append(&mut a, List::default());
        assert_eq!(links.pop_first(&mut a), Some(1));
        assert_eq!(links.pop_last(&mut a), Some(2));
        assert_eq!(ids(&links, a), [3, 4, 5]);
        for id in [4, 3, 5] {
            links.remove(&mut a, id);
        }
        assert_eq!(
            (links.pop_first(&mut a), links.pop_last(&mut a)),
            (None, None)
        );
        let mut joined = List::default();
        links.push_last(&mut a, 6);
        links.append(&mut joined, a);
        assert_eq!(ids(&links, joined), [6]);
    }
}
