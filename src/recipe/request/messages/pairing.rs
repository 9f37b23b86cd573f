//! Every call is answered in the message after it.

use std::collections::HashSet;

use crate::recipe::error::Error;
use crate::recipe::request::refused;

/// Calls that wait for their results.
#[derive(Default)]
pub(super) struct Pending<'v> {
    ids: HashSet<&'v str, ahash::RandomState>,
    /// Index of the message that made them.
    from: usize,
}

impl<'v> Pending<'v> {
    /// No calls yet of the assistant message `from`.
    pub(super) fn new(from: usize) -> Self {
        Self {
            ids: HashSet::default(),
            from,
        }
    }

    /// Adds a call. False: there is one with this id.
    pub(super) fn add(&mut self, id: &'v str) -> bool {
        self.ids.insert(id)
    }

    /// Takes an answer. False: no call waits for it.
    pub(super) fn answer(&mut self, id: &str) -> bool {
        self.ids.remove(id)
    }

    /// The message `at`, or one of its blocks, cannot come before the results.
    pub(super) fn allow_message(&self, at: usize) -> Result<(), Error> {
        self.check(|| (format!("messages.{at}: "), format!("messages[{at}]")))
    }

    /// The block `index` of the message `at` cannot come after the calls.
    pub(super) fn allow_block(&self, at: usize, index: usize) -> Result<(), Error> {
        self.check(|| {
            let param = format!("messages[{at}].content[{index}]");
            (format!("messages.{at}.{index}: "), param)
        })
    }

    /// Here every call must have been answered.
    pub(super) fn end(&self) -> Result<(), Error> {
        let from = self.from;
        // No space after this colon, unlike after the others.
        self.check(|| (format!("messages.{from}:"), format!("messages[{from}]")))
    }

    /// Refuses with the start of the text and the place in the request that `place` gives.
    fn check(&self, place: impl FnOnce() -> (String, String)) -> Result<(), Error> {
        if self.ids.is_empty() {
            return Ok(());
        }
        let mut ids: Vec<&str> = self.ids.iter().copied().collect();
        ids.sort_unstable();
        let (start, param) = place();
        let message = format!(
            "{start}`tool_use` ids were found without `tool_result` blocks immediately after: {}. Each `tool_use` block must have a corresponding `tool_result` block in the next message.",
            ids.join(", ")
        );
        Err(refused(param, message))
    }
}
