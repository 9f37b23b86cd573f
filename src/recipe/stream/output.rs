//! The events of a push, in memory that is used again: JSON documents one behind another, and where each ends.
//!
//! Writers append to the open document and close it. A cleared output keeps its memory, so a stream whose
//! host clears one output before every push settles on not allocating for its events at all.

use super::Finish;

/// One protocol event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event<'o> {
    /// The `event:` line of Messages and Responses, the kind of a neutral event; `None` for Chat Completions.
    pub name: Option<&'static str>,
    /// One JSON document, no framing.
    pub data: &'o str,
    /// Tokens behind this event.
    pub token_count: u32,
}

/// What pushes produced. They append; [`Output::clear`] begins anew.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Output {
    /// The documents, a NUL behind each: C is pointed straight at them.
    text: String,
    events: Vec<Closed>,
    /// Set in the push in which the output ended (a stop sequence, the end token): stop generating.
    pub done: Option<Finish>,
}

/// An event whose document is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Closed {
    name: Option<&'static str>,
    /// Of the document, before its NUL.
    end: usize,
    token_count: u32,
}

impl Output {
    /// Forgets the events and keeps their memory.
    pub fn clear(&mut self) {
        self.text.clear();
        self.events.clear();
        self.done = None;
    }

    /// How many events there are.
    pub fn len(&self) -> usize {
        self.events.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// The events, in order.
    pub fn events(&self) -> impl ExactSizeIterator<Item = Event<'_>> {
        self.terminated().map(|(event, _)| event)
    }

    /// The events, each with its data and the NUL behind it.
    pub(crate) fn terminated(&self) -> impl ExactSizeIterator<Item = (Event<'_>, &str)> {
        let mut start = 0;
        self.events.iter().map(move |closed| {
            let with_nul = &self.text[start..=closed.end];
            let event = Event {
                name: closed.name,
                data: &with_nul[..closed.end - start],
                token_count: closed.token_count,
            };
            start = closed.end + 1;
            (event, with_nul)
        })
    }

    /// Moves the events of `other` behind these.
    pub(crate) fn append(&mut self, other: &mut Self) {
        let from = self.text.len();
        self.text.push_str(&other.text);
        self.events.extend(other.events.iter().map(|closed| Closed {
            end: from + closed.end,
            ..*closed
        }));
        self.done = other.done.or(self.done);
        other.clear();
    }

    /// The document being written.
    pub(super) fn open(&mut self) -> &mut String {
        &mut self.text
    }

    /// Completes it. `tokens` were generated for it.
    pub(super) fn close(&mut self, name: Option<&'static str>, tokens: u32) {
        let end = self.text.len();
        self.text.push('\0');
        self.events.push(Closed {
            name,
            end,
            token_count: tokens,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_end_where_they_were_closed() {
        let mut out = Output::default();
        out.open().push_str("{}");
        out.close(Some("a"), 2);
        let mut other = Output::default();
        other.open().push_str("[1]");
        other.close(None, 0);
        other.done = Some(Finish::Stop);
        out.append(&mut other);
        assert!(other.is_empty() && other.done.is_none());
        let events: Vec<_> = out.terminated().collect();
        assert_eq!((events[0].0.name, events[0].0.data), (Some("a"), "{}"));
        assert_eq!((events[0].0.token_count, events[0].1), (2, "{}\0"));
        assert_eq!((events[1].0.name, events[1].1), (None, "[1]\0"));
        assert_eq!((out.len(), out.done), (2, Some(Finish::Stop)));
        out.clear();
        assert_eq!(out, Output::default());
    }
}
