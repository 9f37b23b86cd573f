//! The top-level fields of a protocol: which have an effect, which are ignored, and what is said about the rest.

use super::read::Node;
use super::warnings::Warnings;
use crate::recipe::error::Error;

/// The fields that a protocol's documents name.
pub(super) struct Fields {
    /// With an effect.
    pub(super) used: &'static [&'static str],
    /// Known and ignored, unless an option gives them an effect.
    pub(super) ignored: &'static [&'static str],
}

impl Fields {
    /// Refuses a body with a field that no document names.
    pub(super) fn refuse_unknown(&self, body: &Node<'_, '_>) -> Result<(), Error> {
        body.refuse_unknown(|name| self.used.contains(&name) || self.ignored.contains(&name))
    }

    /// Tells of a field that has no effect.
    pub(super) fn warn(&self, name: &str, warnings: &mut Warnings) {
        if self.used.contains(&name) {
            return;
        }
        if self.ignored.contains(&name) {
            warnings.add("ignored_field", name, "it has no effect");
        } else {
            warnings.add("unknown_field", name, "it is unknown and has no effect");
        }
    }
}
